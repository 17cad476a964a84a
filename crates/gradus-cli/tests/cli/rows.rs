//! Processing of rows for a run: bad rows, held-out rows, plain text in blocks, and stored reference scores.

use serde_json::{Value, json};

use crate::harness::{CliTest, fixture_model};

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
}

/// Twenty good rows with two bad ones among them.
fn rows() -> String {
    let row = |i: usize| match i {
        7 => "{\"text\": 7}\n".to_owned(),
        12 => "{\"text\": \"cut off\n".to_owned(),
        _ => format!("{{\"text\": \"The tea is number {i}.\"}}\n"),
    };
    (0..22).map(row).collect()
}

#[test]
fn bad_rows_end_a_run_or_are_left_out_and_listed() {
    let test = CliTest::with("texts.jsonl", &rows());
    let model = fixture_model("gpt2");
    let run = |more: &[&str]| {
        let arguments = ["sft", "--model", &model, "--data", "texts.jsonl", "--output-dir", "run", "--max-steps", "1"];
        test.run(&[&arguments[..], more].concat())
    };
    let refused = run(&[]);
    assert_eq!(refused.code, 1, "{}", refused.stderr);
    assert!(
        refused.stderr.contains("texts.jsonl:8: column `text` is a number, expected a string"),
        "{}",
        refused.stderr
    );
    assert!(refused.stderr.contains("2 of 22 rows are bad"), "{}", refused.stderr);

    let run = run(&["--skip-bad-rows", "--overwrite"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let warning = "2 bad rows are left out, the first texts.jsonl:8: column `text` is a number, expected a string; \
                   `skipped_rows.jsonl` lists them";
    assert!(run.stderr.contains(warning), "{}", run.stderr);
    let skipped = lines(&test.read("run/skipped_rows.jsonl"));
    assert_eq!(
        skipped[0],
        json!({ "file": "texts.jsonl", "line": 8, "problem": "column `text` is a number, expected a string" })
    );
    assert_eq!((skipped.len(), &skipped[1]["line"]), (2, &json!(13)));

    // A fifth of the twenty remaining rows, each with its position.
    let held_out = lines(&test.read("run/held_out_rows.jsonl"));
    assert_eq!(held_out.len(), 4);
    for row in &held_out {
        let (number, line) = (row["row"].as_u64().expect("a number"), row["line"].as_u64().expect("a number"));
        let before = [8, 13].iter().filter(|bad| **bad < line).count() as u64;
        assert_eq!((number + before, &row["file"]), (line, &json!("texts.jsonl")));
    }
}

#[test]
fn held_out_rows_are_counted_among_the_bad_ones() {
    let row = |i: usize| format!("{{\"prompt\": \"Question {i}?\", \"completion\": \" Answer {i}.\"}}\n");
    let test = CliTest::with("rows.jsonl", &(0..12).map(row).collect::<String>());
    let model = fixture_model("qwen3");
    let arguments = ["sft", "--model", &model, "--data", "rows.jsonl", "--output-dir", "run", "--max-steps", "1"];
    let run = test.run(&[&arguments[..], &["--system-prompt", "hi", "--eval-fraction", "0.2"]].concat());
    assert_eq!(run.code, 1, "{}", run.stderr);
    assert!(run.stderr.contains("rows.jsonl:1: ") && run.stderr.contains("12 of 12 rows are bad"), "{}", run.stderr);
}

#[test]
fn a_row_that_no_template_renders_is_a_bad_one() {
    let good =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}\n";
    let bad = "{\"messages\": [{\"role\": \"nobody\", \"content\": \"a\"}]}\n";
    let test = CliTest::with("talk.jsonl", &format!("{good}{good}{bad}{good}"));
    let template = "{% for m in messages %}{% if m.role == 'nobody' %}{{ raise_exception('who is that?') }}{% endif %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
    test.write("template.jinja", template);
    let model = fixture_model("gpt2");
    let arguments = ["sft", "--model", &model, "--data", "talk.jsonl", "--output-dir", "run", "--max-steps", "1"];
    let template = ["--chat-template", "template.jinja", "--eval-fraction", "0"];
    assert_eq!(test.run(&[&arguments[..], &template].concat()).code, 1);
    let run = test.run(&[&arguments[..], &template, &["--skip-bad-rows", "--overwrite"]].concat());
    assert_eq!(run.code, 0, "{}", run.stderr);
    let skipped = lines(&test.read("run/skipped_rows.jsonl"));
    assert_eq!((skipped.len(), &skipped[0]["line"]), (1, &json!(3)));
    assert!(skipped[0]["problem"].as_str().expect("a text").contains("who is that?"), "{skipped:?}");
}

#[test]
fn bad_rows_of_a_task_end_a_run_or_are_left_out_and_listed() {
    let row = |i: usize| match i {
        2 => "{\"document\": \"The tea\", \"summary\": 7}\n".to_owned(),
        _ => format!("{{\"document\": \"The tea is number {i}.\", \"summary\": \"tea {i}\"}}\n"),
    };
    let test = CliTest::with("articles.jsonl", &(0..6).map(row).collect::<String>());
    // The same rows from a program.
    test.write("rows.jsonl", "{\"prompt\": \"a\", \"references\": [\"b\"]}\n{\"references\": [\"b\"]}\n");
    let model = fixture_model("gpt2");
    let run = |task: &str, more: &[&str]| {
        let arguments = ["sft", "--model", &model, "--task", task, "--output-dir", "run", "--max-steps", "1"];
        test.run(&[&arguments[..], &["--eval-steps=-1"], more].concat())
    };
    let program = "{ command: [cat, rows.jsonl] }";
    let cases: [(&str, &[&str], &str); 2] = [
        ("xsum", &["--data", "articles.jsonl"], "articles.jsonl:3: column `summary` is 7, expected a text"),
        (program, &[], "the task command `cat rows.jsonl`:2: missing column `prompt`"),
    ];
    for (task, data, problem) in cases {
        let refused = run(task, data);
        assert_eq!(refused.code, 1, "{}", refused.stderr);
        assert!(refused.stderr.contains(problem), "{}", refused.stderr);
        let run = run(task, &[data, &["--skip-bad-rows", "--overwrite"]].concat());
        assert_eq!(run.code, 0, "{}", run.stderr);
        assert!(run.stderr.contains("1 bad row is left out"), "{}", run.stderr);
        let skipped = lines(&test.read("run/skipped_rows.jsonl"));
        assert_eq!(skipped.len(), 1);
        let (file, rest) = problem.split_once(':').expect("a place");
        assert_eq!(skipped[0]["file"], json!(file));
        assert!(
            rest.ends_with(skipped[0]["problem"].as_str().expect("a text").split(" (found").next().expect("words"))
        );
        std::fs::remove_dir_all(test.path().join("run")).expect("a run");
    }
}

#[test]
fn plain_text_is_packed_into_blocks() {
    let story = "The tea is good. The kettle is warm.\n\nA cup of it stands on the table.\n";
    let test = CliTest::with("book.txt", &format!("{story}<|endoftext|>\n{story}"));
    let model = fixture_model("gpt2");
    let shown = test.succeeds(&["data", "show", "book.txt", "--json"]);
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!((&shown["stats"]["rows"], &shown["kind"]), (&json!(2), &json!("text")), "{shown}");
    let arguments = ["sft", "--model", &model, "--data", "book.txt", "--output-dir", "run", "--packing"];
    let run = test.run(&[&arguments[..], &["--max-length", "16", "--max-steps", "2", "--eval-fraction", "0"]].concat());
    assert_eq!(run.code, 0, "{}", run.stderr);
    let summary =
        run.stderr.lines().find(|line| line.contains("training: 2 of 2 rows")).expect("what became of the rows");
    let numbers: Vec<usize> =
        summary.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect();
    let (tokens, blocks) = (numbers[numbers.len() - 2], numbers[numbers.len() - 1]);
    assert!(summary.ends_with("blocks") && blocks == tokens.div_ceil(16), "{summary}");
    // A directory of text files is data. Next to other data files, text files are descriptions.
    std::fs::create_dir(test.path().join("books")).expect("a directory");
    test.write("books/one.txt", story);
    let rows = |test: &CliTest| {
        let shown: Value = serde_json::from_str(&test.succeeds(&["data", "show", "books", "--json"])).expect("JSON");
        shown["stats"]["rows"].as_u64().expect("a number")
    };
    assert_eq!(rows(&test), 1);
    test.write("books/rows.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n{\"text\": \"c\"}\n");
    assert_eq!(rows(&test), 3);
    // The reverse direction: rows of text as one file.
    test.succeeds(&["data", "convert", "book.txt", "--to", "text", "--output", "again.txt", "--quiet"]);
    assert_eq!(test.read("again.txt"), format!("{story}<|endoftext|>\n{story}"));
}

#[test]
fn a_run_that_goes_on_does_not_ask_its_reference_again() {
    let pairs: String = (0..8)
        .map(|i| format!("{{\"prompt\": \"The tea {i} is\", \"chosen\": \" good.\", \"rejected\": \" bad.\"}}\n"))
        .collect();
    let test = CliTest::with("pairs.jsonl", &pairs);
    let model = fixture_model("gpt2");
    let begin = |out: &str, steps: &str, more: &[&str]| {
        let arguments = ["dpo", "--model", &model, "--data", "pairs.jsonl", "--output-dir", out, "--batch-size", "2"];
        let own = ["--max-steps", steps, "--save-steps", "1", "--learning-rate", "0.01", "--lr-schedule", "constant"];
        test.succeeds(&[&arguments[..], &own, more, &["--quiet"]].concat())
    };
    begin("whole", "3", &[]);
    begin("halves", "2", &[]);
    let file = test.path().join("halves/reference.safetensors");
    let state = || {
        let written = std::fs::metadata(&file).and_then(|about| about.modified()).expect("it is there");
        (std::fs::read(&file).expect("it is there"), written)
    };
    let go_on = |steps| test.succeeds(&["dpo", "--output-dir", "halves", "--resume", "--max-steps", steps, "--quiet"]);
    let before = state();
    go_on("3");
    assert!(state() == before, "nothing was asked");
    let weights = |out: &str| std::fs::read(test.path().join(out).join("model/model.safetensors")).expect("weights");
    assert!(weights("whole") == weights("halves"), "to the bit");
    std::fs::write(&file, b"broken").expect("written");
    go_on("4");
    assert!(state().0 == before.0, "it was asked, and said the same");
    begin("halves", "2", &["--overwrite"]);
    assert!(state().0 == before.0, "a run that replaces one asks for itself, and keeps what was said");
}

#[test]
fn prompts_that_leave_no_room_give_their_places_to_others() {
    // Every third prompt is far too long for a completion.
    let row = |i: usize| match i % 3 {
        0 => format!("{{\"prompt\": \"{}\"}}\n", "The tea is good and warm. ".repeat(40)),
        _ => format!("{{\"prompt\": \"The tea {i} is\"}}\n"),
    };
    let test = CliTest::with("prompts.jsonl", &(0..120).map(row).collect::<String>());
    test.write("held_out.jsonl", &(0..30).map(row).collect::<String>());
    let model = fixture_model("gpt2");
    let held_out = |more: &[&str]| {
        let reward = ["--reward-rule-length-target", "4", "--max-new-tokens", "3", "--max-length", "24"];
        let short =
            ["--max-steps", "1", "--batch-size", "2", "--group-size", "2", "--overwrite", "--output-dir", "run"];
        let arguments = ["grpo", "--model", &model, "--data", "prompts.jsonl", "--max-eval-rows", "12"];
        let run = test.run(&[&arguments[..], &reward, &short, more].concat());
        assert_eq!(run.code, 0, "{}", run.stderr);
        let summary = run.stderr.lines().find(|line| line.contains("held out: ")).expect("what became of the rows");
        assert!(summary.contains("held out: 12 of 12 rows"), "{summary}");
        // The files have more usable rows.
        assert!(summary.contains(" tokens; `train.max_eval_rows` is 12"), "{summary}");
        let rows = lines(&test.read("run/held_out_rows.jsonl"));
        assert!(rows.iter().all(|row| row["row"].as_u64().expect("a number") % 3 != 1), "{rows:?}");
        rows.len()
    };
    assert_eq!(held_out(&[]), 12);
    assert_eq!(held_out(&["--eval-data", "held_out.jsonl"]), 12);
}

/// A list of short texts is easily mistaken for rows.
#[test]
fn a_long_document_is_told_to_be_one_row() {
    let test = CliTest::with("lines.txt", &"A line of its own.\n".repeat(2500));
    let warning = "warning: `lines.txt` is one document of 2500 lines, so it is one row; separate documents by lines with \
                `<|endoftext|>`, or write one row per line as .jsonl\n";
    assert!(test.run(&["data", "show", "lines.txt"]).stderr.contains(warning));
    let model = fixture_model("gpt2");
    let train = [
        "sft",
        "--model",
        &model,
        "--data",
        "lines.txt",
        "--output-dir",
        "run",
        "--max-steps",
        "1",
        "--max-length",
        "16",
    ];
    let run = test.run(&[&train[..], &["--too-long", "truncate"]].concat());
    assert!(run.code == 0 && run.stderr.contains(warning), "{run:?}");
    let run = test.run(&["eval", "--model", &model, "--data", "lines.txt", "--max-length", "16"]);
    assert!(run.code == 0 && run.stderr.contains(warning), "{run:?}");
}

/// Splits the fixture's model: the files of its tokenizer and chat template go to a separate directory.
fn model_and_tokenizer_apart(test: &CliTest) -> (String, String) {
    for entry in std::fs::read_dir(fixture_model("gpt2")).expect("the fixture") {
        let entry = entry.expect("a file");
        let name = entry.file_name().into_string().expect("UTF-8");
        let is_text = name.starts_with("tokenizer") || name.starts_with("chat_template");
        let folder = if is_text { "words" } else { "weights" };
        std::fs::create_dir_all(test.path().join(folder)).expect("a folder");
        std::fs::copy(entry.path(), test.path().join(folder).join(&name)).expect("copied");
    }
    ("weights".to_owned(), "words".to_owned())
}

#[test]
fn a_tokenizer_apart_from_the_model_is_used_and_saved() {
    let test = CliTest::with("texts.jsonl", &rows().replace("7}", "\"7\"}").replace("cut off", "cut off\"}"));
    let (model, words) = model_and_tokenizer_apart(&test);
    let arguments = ["sft", "--model", &model, "--data", "texts.jsonl", "--output-dir", "run", "--max-steps", "1"];
    let refused = test.run(&arguments);
    assert!(refused.stderr.contains("weights: no tokenizer"), "{}", refused.stderr);
    assert!(refused.stderr.contains("pass one from another directory with `--tokenizer`"), "{}", refused.stderr);
    test.succeeds(&[&arguments[..], &["--tokenizer", &words]].concat());
    let original = std::fs::read(test.path().join("words/tokenizer.json")).expect("the tokenizer");
    assert_eq!(std::fs::read(test.path().join("run/model/tokenizer.json")).expect("it is saved"), original);

    // The results equal those of the complete model.
    let generate = |model: &str, more: &[&str]| {
        let arguments =
            ["generate", "--model", model, "--prompt", "The tea", "--max-new-tokens", "4", "--temperature", "0"];
        test.succeeds(&[&arguments[..], more].concat())
    };
    assert_eq!(generate(&model, &["--tokenizer", &words]), generate(&fixture_model("gpt2"), &[]));
    // The flag is rejected if it has no effect.
    test.write("texts.csv", "completion,reference\na,b\n");
    let run = test.run(&["eval", "--data", "texts.csv", "--metrics", "bleu", "--tokenizer", &words]);
    assert!(run.stderr.contains("`--tokenizer` needs `--model`"), "{}", run.stderr);
    let run = test.run(&["score", "--classifier", "c", "--data", "texts.jsonl", "--chat-template", "chatml"]);
    assert!(run.stderr.contains("`--chat-template` cannot be used with `--classifier`"), "{}", run.stderr);
}

#[test]
fn saved_weights_are_half_as_large_where_that_is_asked_for() {
    let test = CliTest::with("texts.jsonl", "{\"text\": \"The tea is good.\"}\n{\"text\": \"The kettle is warm.\"}\n");
    let model = fixture_model("gpt2");
    let run = |output: &str, more: &[&str]| {
        let arguments = ["sft", "--model", &model, "--data", "texts.jsonl", "--output-dir", output, "--max-steps", "2"];
        test.succeeds(&[&arguments[..], &["--save-steps", "1", "--eval-fraction", "0"], more].concat());
        let size = |file: &str| std::fs::metadata(test.path().join(output).join(file)).expect("weights").len();
        (size("model/model.safetensors"), size("checkpoints/step-000001/model.safetensors"))
    };
    let exact = run("exact", &[]);
    let half = run("half", &["--saved-weights", "bf16"]);
    assert!(half.0 * 2 < exact.0 + exact.0 / 10, "{half:?} beside {exact:?}");
    assert_eq!(half.1, exact.1, "checkpoints are exact");
    let config: Value = serde_json::from_str(&test.read("half/model/config.json")).expect("JSON");
    assert_eq!((&config["dtype"], &config["torch_dtype"]), (&json!("bfloat16"), &json!("bfloat16")));
    test.succeeds(&["generate", "--model", "half/model", "--prompt", "The tea", "--max-new-tokens", "2"]);

    let arguments = ["sft", "--model", &model, "--data", "texts.jsonl", "--max-steps", "1", "--lora-rank", "2"];
    test.succeeds(&[&arguments[..], &["--output-dir", "adapter"]].concat());
    test.succeeds(&["merge", "--model", "adapter/model", "--output", "merged", "--weights", "f16"]);
    let merged: Value = serde_json::from_str(&test.read("merged/config.json")).expect("JSON");
    assert_eq!(merged["dtype"], json!("float16"));
}

/// Twenty pairs: a tie, a pair with equal answers, one with a short answer, and seventeen useful ones.
fn pairs() -> String {
    let row = |i: usize| match i {
        3 => "{\"prompt\": \"Tea 3?\", \"chosen\": \" Yes, please.\", \"rejected\": \" No, thanks.\", \"margin\": 0}\n"
            .to_owned(),
        8 => "{\"prompt\": \"Tea 8?\", \"chosen\": \" No, thanks.\", \"rejected\": \"No, thanks.\"}\n".to_owned(),
        12 => "{\"prompt\": \"Tea 12?\", \"chosen\": \" Yes, please.\", \"rejected\": \" No\"}\n".to_owned(),
        _ => {
            format!("{{\"prompt\": \"Tea {i}?\", \"chosen\": \" Yes, please.\", \"rejected\": \" No, thanks {i}.\"}}\n")
        }
    };
    (0..20).map(row).collect()
}

#[test]
fn rows_that_teach_little_are_left_out_and_counted() {
    let test = CliTest::with("pairs.jsonl", &pairs());
    let model = fixture_model("qwen3");
    let train = ["reward", "--model", &model, "--data", "pairs.jsonl", "--max-steps", "1", "--batch-size", "2"];
    let filter = ["--filter-drop-ties", "--filter-drop-equal", "--filter-min-characters", "4"];
    let run = test.run(&[&train[..], &filter, &["--output-dir", "run", "--eval-fraction", "0.5"]].concat());
    assert_eq!(run.code, 0, "{}", run.stderr);
    let message = "`data`: 3 of 20 rows are left out: 1 tie, 1 with equal answers, 1 with a short answer";
    assert!(run.stderr.contains(message), "{}", run.stderr);
    assert!(run.stderr.contains("of 9 rows"), "{}", run.stderr);
    let held_out = lines(&test.read("run/held_out_rows.jsonl"));
    assert_eq!(held_out.len(), 8);
    // Rows keep their numbers.
    assert!(held_out.iter().all(|row| row["row"] == row["line"]), "{held_out:?}");
    let none = ["--filter-min-tokens", "1000", "--output-dir", "none"];
    let run = test.run(&[&train[..], &none].concat());
    assert!(run.code == 1 && run.stderr.contains("no row is left: 20 of 20 rows are left out"), "{}", run.stderr);
    let hint = "hint: lower `--filter-min-characters` or `--filter-min-tokens` (keys of `train.filter`)";
    assert!(run.stderr.contains(hint), "{}", run.stderr);
    // Without the first part of its name, a flag of training is found.
    let run = test.run(&[&train[..], &["--drop-equal", "--output-dir", "none"]].concat());
    assert!(run.code == 2 && run.stderr.contains("it is `--filter-drop-equal` here"), "{}", run.stderr);

    // `data` takes the names of training, too.
    let convert = ["data", "convert", "pairs.jsonl", "-o", "out.jsonl", "--json", "--drop-ties", "--filter-drop-equal"];
    let report: Value = serde_json::from_str(&test.succeeds(&convert)).expect("it is JSON");
    assert_eq!(
        (&report["rows"], &report["dropped"]),
        (&json!(18), &json!({"rows": 20, "ties": 1, "equal": 1, "short": 0}))
    );
    assert_eq!(lines(&test.read("out.jsonl")).len(), 18);
    let split =
        ["data", "split", "pairs.jsonl", "--train", "a.jsonl", "--test", "b.jsonl", "--test-size", "4", "--json"];
    let short = ["--min-tokens", "3", "--model", &model, "--drop-ties"];
    let report: Value = serde_json::from_str(&test.succeeds(&[&split[..], &short].concat())).expect("it is JSON");
    assert_eq!(
        (&report["train_rows"], &report["test_rows"], &report["dropped"]["ties"]),
        (&json!(14), &json!(4), &json!(1))
    );
    assert_eq!(report["dropped"]["short"], 1);
    let kept = test.read("a.jsonl") + &test.read("b.jsonl");
    assert!(!kept.contains("\"margin\"") && !kept.contains("\" No\""), "{kept}");
    let run =
        test.run(&["data", "split", "pairs.jsonl", "--train", "c.jsonl", "--test", "d.jsonl", "--min-tokens", "2"]);
    assert!(run.code == 2 && run.stderr.contains("--model"), "{run:?}");
}

#[test]
fn pairs_are_cut_where_training_says() {
    let long = "It was a long day and the tea was cold. ".repeat(4);
    let row = |i: usize| format!("{{\"prompt\": \"{long}\", \"chosen\": \" Yes {i}.\", \"rejected\": \" No {i}.\"}}\n");
    let test = CliTest::with("pairs.jsonl", &(0..12).map(row).collect::<String>());
    let model = fixture_model("qwen3");
    let train = ["reward", "--model", &model, "--data", "pairs.jsonl", "--max-steps", "1", "--batch-size", "2"];
    let short = ["--max-length", "24", "--too-long", "truncate", "--eval-fraction", "0.25"];
    // Truncated on the right, every pair loses its answers.
    let run = test.run(&[&train[..], &short, &["--output-dir", "right"]].concat());
    assert!(
        run.code == 1 && run.stderr.contains("all 12 rows are longer than 24 tokens (`max_length`); the shortest has"),
        "{}",
        run.stderr
    );
    let run = test.run(&[&train[..], &short, &["--truncation", "left", "--output-dir", "left"]].concat());
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(run.stderr.contains("training: 9 of 9 rows cut: their text is longer than the limit"), "{}", run.stderr);
    let config: Value = serde_json::from_str(&test.read("left/model/config.json")).expect("it is JSON");
    assert_eq!(config["gradus"]["keeps_end"], true);
    // Evaluation truncates on the same side as training.
    let eval = ["eval", "--model", "left", "--data", "pairs.jsonl", "--max-length", "24", "--json"];
    let measured: Value = serde_json::from_str(&test.succeeds(&eval)).expect("it is JSON");
    assert_eq!(measured["rows"], 12);
    let run = test.run(&[&train[..], &["--truncation", "left", "--output-dir", "none"]].concat());
    let message = "`method.reward.truncation` sets where long texts are cut, but `train.too_long` skips them";
    assert!(run.code == 2 && run.stderr.contains(message), "{}", run.stderr);
}
