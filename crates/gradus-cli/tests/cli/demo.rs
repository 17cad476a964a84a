//! Quick tests of `gradus demo`. Complete runs are in `gradus/tests/it/demo.rs`.

use crate::harness::CliTest;
#[cfg(unix)]
use crate::harness::{signal, wait_until};

#[test]
fn a_directory_in_use_is_refused_with_the_way_out() {
    let test = CliTest::with("runs/demo/notes.txt", "mine");
    let run = test.run(&["demo"]);
    assert_eq!((run.code, run.stdout.as_str()), (1, ""));
    assert!(run.stderr.contains("`runs/demo` is not empty"), "{}", run.stderr);
    assert!(run.stderr.contains("hint: choose another `--output-dir`, or pass `--overwrite`"), "{}", run.stderr);
    let run = test.run(&["demo", "--overwrite"]);
    assert_eq!((run.code, run.stdout.as_str()), (1, ""));
    assert!(run.stderr.contains("`runs/demo` is not a demonstration of gradus"), "{}", run.stderr);
    assert_eq!(test.read("runs/demo/notes.txt"), "mine");
}

#[test]
fn an_unfinished_demonstration_is_refused_with_the_way_out() {
    let test = CliTest::with("demo/sft.yml", "# A model.\n# Again: gradus train demo/sft.yml --overwrite\n");
    test.fails(
        &["demo", "--output-dir", "demo"],
        1,
        "
error: `demo` contains a demonstration, but `demo/sft.yml` has other settings
hint: pass `--overwrite` to make it again, or choose another `--output-dir`
",
    );
}

/// A demonstration starts from the beginning, so no checkpoint is announced.
#[cfg(unix)]
#[test]
fn an_interrupted_demonstration_announces_no_checkpoint() {
    let test = CliTest::with("notes.txt", "mine");
    let arguments = ["demo", "--output-dir", "demo", "--quick"];
    let child = test.command(&arguments).stderr(std::process::Stdio::piped()).spawn().expect("the binary runs");
    let metrics = test.path().join("demo/sft/metrics.jsonl");
    wait_until("a step is logged", || std::fs::read_to_string(&metrics).is_ok_and(|text| !text.is_empty()));
    signal("-INT", &child.id().to_string());
    let output = child.wait_with_output().expect("it ends");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("stopping; press Ctrl-C again to stop now\n"), "{stderr}");
    assert!(stderr.ends_with("interrupted; `--overwrite` starts it from the beginning\n"), "{stderr}");
    assert!(!stderr.contains("checkpoint"), "{stderr}");
}

#[test]
fn an_unwritable_directory_is_named() {
    let test = CliTest::with("file", "not a directory");
    let run = test.run(&["demo", "--output-dir", "file/demo"]);
    assert_eq!((run.code, run.stdout.as_str()), (1, ""));
    assert!(run.stderr.contains("file/demo"), "{}", run.stderr);
}
