//! Commands replace files of others only with `--overwrite`.

use std::path::Path;

use crate::harness::{CliTest, Run, fixture_model};

const ROWS: &str = "{\"prompt\": \"a\", \"completion\": \" b\"}\n{\"prompt\": \"c\", \"completion\": \" d\"}\n";
const FOREIGN: &str = "somebody else's\n";

/// Creates a directory with rows and an annotation project.
fn prepared() -> CliTest {
    let test = CliTest::with("rows.jsonl", ROWS);
    test.write("asked.jsonl", "{\"prompt\": \"a\", \"completions\": [\"b\", \"c\"]}\n");
    test.succeeds(&["annotate", "new", "p", "--data", "asked.jsonl", "--labels", "comparison"]);
    test
}

fn refused(run: &Run, name: &str) {
    assert_eq!(run.code, 2, "{run:?}");
    assert!(run.stderr.contains(&format!("`{name}` exists; `--overwrite` replaces it")), "{run:?}");
}

#[test]
fn a_file_of_somebody_else_stays_until_overwriting_is_asked_for() {
    let test = prepared();
    let model = fixture_model("qwen3");
    let cases: [(&[&str], &str); 7] = [
        (&["data", "convert", "rows.jsonl", "-o", "out.jsonl"], "out.jsonl"),
        (&["data", "show", "rows.jsonl", "--report", "out.html"], "out.html"),
        (
            &["data", "split", "rows.jsonl", "--test-size", "1", "--train", "out.jsonl", "--test", "b.jsonl"],
            "out.jsonl",
        ),
        (
            &["data", "split", "rows.jsonl", "--test-size", "1", "--train", "c.jsonl", "--test", "out.jsonl"],
            "out.jsonl",
        ),
        (&["annotate", "export", "p", "--form", "prompt", "--output", "out.jsonl"], "out.jsonl"),
        (&["export", "--model", &model, "--output", "out.gguf"], "out.gguf"),
        (
            &[
                "annotate",
                "new",
                "q",
                "--data",
                "rows.jsonl",
                "--labels",
                "comparison",
                "--model",
                &model,
                "--answers",
                "2",
                "--max-new-tokens",
                "2",
                "--progress",
                "out.json",
            ],
            "out.json",
        ),
    ];
    for (arguments, name) in cases {
        test.write(name, FOREIGN);
        refused(&test.run(arguments), name);
        assert_eq!(test.read(name), FOREIGN, "{arguments:?}");
        test.succeeds(&[arguments, &["--overwrite"]].concat());
        assert_ne!(test.path().join(name).metadata().expect("written").len(), FOREIGN.len() as u64, "{arguments:?}");
        std::fs::remove_file(test.path().join(name)).expect("removed");
    }
    assert!(!test.path().join("c.jsonl").exists() || test.read("c.jsonl") != FOREIGN);
}

#[test]
fn a_directory_is_only_replaced_by_its_like() {
    let test = prepared();
    let model = fixture_model("gpt2");
    let sft = ["sft", "--model", &model, "--data", "rows.jsonl", "--max-steps", "1", "--batch-size", "2"];
    test.succeeds(&[&sft[..], &["--output-dir", "runs/a", "--lora-rank", "2"]].concat());
    test.succeeds(&[&sft[..], &["--output-dir", "runs/b"]].concat());
    let cases: [&[&str]; 4] = [
        &["new-model", "--family", "gpt2", "--tokenizer", &model, "--output", "out"],
        &["merge", "--model", "runs/a/model", "--output", "out"],
        &["quantize", "--model", &model, "--format", "int8", "--max-new-tokens", "2", "--output", "out"],
        &["runs", "export", "b", "--output", "out"],
    ];
    for arguments in cases {
        test.write("out/notes.txt", FOREIGN);
        for overwrite in [&[][..], &["--overwrite"]] {
            let run = test.run(&[arguments, overwrite].concat());
            assert_eq!(run.code, 2, "{run:?}");
            assert_eq!(test.read("out/notes.txt"), FOREIGN, "{arguments:?}");
        }
        std::fs::remove_dir_all(test.path().join("out")).expect("removed");
        test.succeeds(arguments);
        assert_eq!(test.run(arguments).code, 2, "{arguments:?}");
        test.succeeds(&[arguments, &["--overwrite"]].concat());
        std::fs::remove_dir_all(test.path().join("out")).expect("removed");
    }
    test.write("comparison/notes.txt", FOREIGN);
    let run = test.run(&["runs", "compare", "a", "b", "--output-dir", "comparison"]);
    assert!(run.code != 0 && test.read("comparison/notes.txt") == FOREIGN, "{run:?}");
}

/// Commands replace their own files without a flag, so that scripts can run twice.
#[test]
fn a_command_replaces_what_it_wrote_itself() {
    let test = CliTest::with("rows.jsonl", &ROWS.replace("completion", "reference"));
    let model = fixture_model("qwen3");
    let eval = [
        "eval",
        "--model",
        &model,
        "--data",
        "rows.jsonl",
        "--metrics",
        "exact_match",
        "--max-new-tokens",
        "2",
        "--predictions",
        "said.jsonl",
    ];
    test.write("said.jsonl", FOREIGN);
    refused(&test.run(&eval), "said.jsonl");
    assert_eq!(test.read("said.jsonl"), FOREIGN);
    test.succeeds(&[&eval[..], &["--overwrite"]].concat());
    let content = test.read("said.jsonl");
    test.succeeds(&eval);
    assert_eq!(test.read("said.jsonl"), content);

    test.write("asked.jsonl", ROWS);
    let new = |name: &str| {
        let arguments = ["annotate", "new", name, "--data", "asked.jsonl", "--labels", "comparison", "--model", &model];
        let more = ["--answers", "2", "--max-new-tokens", "2", "--progress", "new/told.json"];
        test.succeeds(&[&arguments[..], &more].concat());
    };
    new("p");
    assert_eq!(test.read("new/told.json"), "{\"done\":4,\"of\":4}");
    new("q");
}

#[test]
fn a_split_is_two_files_and_neither_is_read() {
    let test = CliTest::with("rows.jsonl", ROWS);
    std::fs::create_dir(test.path().join("real")).expect("made");
    let split = |train: &str, held_out: &str, more: &[&str]| {
        let arguments = ["data", "split", "rows.jsonl", "--test-size", "1", "--train", train, "--test", held_out];
        test.run(&[&arguments[..], more].concat())
    };
    for (train, held_out) in
        [("x.jsonl", "./x.jsonl"), ("x.jsonl", "real/../x.jsonl"), ("none/x.jsonl", "none/./x.jsonl")]
    {
        let run = split(train, held_out, &[]);
        assert!(run.code == 2 && run.stderr.contains("two outputs are one file"), "{run:?}");
        assert!(!test.path().join("x.jsonl").exists() && !test.path().join("none").exists());
    }
    for overwrite in [&[][..], &["--overwrite"]] {
        assert_eq!(split("./rows.jsonl", "test.jsonl", overwrite).code, 2);
        assert_eq!(test.read("rows.jsonl"), ROWS);
    }
    let run = test.run(&["data", "convert", "rows.jsonl", "-o", "./rows.jsonl", "--to", "prompt", "--overwrite"]);
    assert!(run.code == 2 && run.stderr.contains("`./rows.jsonl` is an input and would be replaced"), "{run:?}");
    assert_eq!(test.read("rows.jsonl"), ROWS);
    // If the second file cannot be written, the first is not created either.
    let run = split("train.jsonl", "rows.jsonl/test.jsonl", &[]);
    assert_ne!(run.code, 0, "{run:?}");
    assert!(!test.path().join("train.jsonl").exists());
    let names: Vec<_> =
        std::fs::read_dir(test.path()).expect("readable").flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    assert_eq!(split("new/deep/train.jsonl", "other/test.jsonl", &[]).code, 0, "directories are made");
    assert!(Path::new(&test.path().join("other/test.jsonl")).is_file());
}
