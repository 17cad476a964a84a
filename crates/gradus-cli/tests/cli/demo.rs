//! Quick tests of `gradus demo`. Complete runs are in `gradus/tests/it/demo.rs`.

use crate::harness::CliTest;

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

#[test]
fn an_unwritable_directory_is_named() {
    let test = CliTest::with("file", "not a directory");
    let run = test.run(&["demo", "--output-dir", "file/demo"]);
    assert_eq!((run.code, run.stdout.as_str()), (1, ""));
    assert!(run.stderr.contains("file/demo"), "{}", run.stderr);
}
