//! `gradus data`: its output, its findings, and the files that it writes.

use crate::harness::{CliTest, fixture_model};

const PAIRS: &str = "{\"prompt\": \"Tea?\", \"chosen\": \" Yes.\", \"rejected\": \" No.\", \"id\": 1}\n\
                     {\"prompt\": \"Milk?\", \"chosen\": \" No.\", \"rejected\": \" No.\", \"id\": 2}\n";

#[test]
fn show_prints_sizes_lengths_and_examples() {
    let test = CliTest::with("pairs.jsonl", PAIRS);
    assert_eq!(
        test.succeeds(&["data", "show", "pairs.jsonl", "--examples", "1"]),
        "\
pairs.jsonl
  rows     2
  kind     preferences with a prompt
  files    1 file, JSON lines, 134 B
  columns  id (passed on to rewards and chat templates)

characters      mean     min     p50     p90     p99     max
  prompt         4.5       4       4       5       5       5
  chosen         4.5       4       4       5       5       5
  rejected       4.0       4       4       4       4       4

`--model DIR` counts tokens

pairs.jsonl:1
  prompt      Tea?
  chosen       Yes.
  rejected     No.
"
    );
    let json: serde_json::Value =
        serde_json::from_str(&test.succeeds(&["data", "show", "pairs.jsonl", "--json"])).expect("it is JSON");
    assert_eq!((&json["kind"], &json["stats"]["rows"]), (&"preference".into(), &2.into()));
    assert_eq!(json["stats"]["characters"][0]["quantiles"]["max"], 5);
}

#[test]
fn rows_are_shown_as_a_model_is_trained_on_them() {
    let rows = "{\"prompt\": \"Tea?\", \"completion\": \" Yes, a cup.\"}\n\
                {\"prompt\": \"A long question?\", \"completion\": \" No.\"}\n\
                {\"prompt\": \"A\", \"completion\": \" B\"}\n";
    let test = CliTest::with("rows.jsonl", rows);
    let model = fixture_model("gpt2");
    let arguments = ["data", "show", "rows.jsonl", "--model", &model, "--as-trained", "--examples", "3"];
    let whole = test.succeeds(&arguments);
    assert!(whole.contains("\n  row           12.3       4      15      18      18      18\n\n"), "{whole}");
    let examples = "\nrows.jsonl:1\n  15 tokens, 11 with loss\nTea?⟦ Yes, a cup.<eos>⟧\n\
                    \nrows.jsonl:2\n  18 tokens, 5 with loss\nA long question?⟦ No.<eos>⟧\n\
                    \nrows.jsonl:3\n  4 tokens, 3 with loss\nA⟦ B<eos>⟧\n";
    assert!(whole.ends_with(examples), "{whole}");
    let cut = test.succeeds(&[&arguments[..], &["--max-length", "8"]].concat());
    let lengths = "\n  row            6.0       4       4       8       8       8\n  1 row cut at `--max-length`\n  \
                   1 row dropped: no token that carries loss is left\n\n";
    assert!(cut.contains(lengths), "{cut}");
    let examples = "\nrows.jsonl:1\n  8 tokens, 4 with loss, 7 more cut off\nTea?⟦ Yes⟧✂\n\
                    \nrows.jsonl:2\n  8 tokens, 0 with loss, 10 more cut off; nothing is left to learn\nA long que✂\n\
                    \nrows.jsonl:3\n  4 tokens, 3 with loss\nA⟦ B<eos>⟧\n";
    assert!(cut.ends_with(examples), "{cut}");
    test.write("pairs.jsonl", "{\"prompt\": \"Tea?\", \"chosen\": \" Yes, a cup.\", \"rejected\": \" No.\"}\n");
    let shown = test.succeeds(&["data", "show", "pairs.jsonl", "--model", &model, "--as-trained", "--max-length", "8"]);
    let pair = "\npairs.jsonl:1\n  chosen: 8 tokens, 4 with loss, 7 more cut off\nTea?⟦ Yes⟧✂\n  \
                rejected: 8 tokens, 4 with loss, 1 more cut off\nTea?⟦ No.⟧✂\n";
    assert!(shown.ends_with(pair), "{shown}");
    // Without `--as-trained`, the lengths are those of whole rows.
    let lengths = test.succeeds(&["data", "show", "rows.jsonl", "--model", &model, "--max-length", "8"]);
    assert!(lengths.contains("\n  row           12.3       4      15      18      18      18\n\n"), "{lengths}");
}

#[test]
fn a_conversation_is_shown_turn_by_turn() {
    let rows = concat!(
        r#"{"messages": [{"role": "user", "content": "How hot?"}, {"role": "assistant", "content": "", "tool_calls": "#,
        r#"[{"type": "function", "function": {"name": "search", "arguments": {"for": "tea"}}}]}, "#,
        r#"{"role": "tool", "name": "search", "content": "90 °C"}, {"role": "assistant", "content": "90 °C."}]}"#,
        "\n"
    );
    let test = CliTest::with("talk.jsonl", rows);
    let shown = test.succeeds(&["data", "show", "talk.jsonl"]);
    let turns = "\ntalk.jsonl:1\n  user        How hot?\n  assistant   → search({\"for\":\"tea\"})\n  tool search 90 °C\n  \
                 assistant   90 °C.\n";
    assert!(shown.ends_with(turns), "{shown}");
    let row = r#"{"prompt": [{"role": "user", "content": "Tea?"}, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Now?"}], "chosen": [{"role": "assistant", "content": "No."}], "rejected": [{"role": "assistant", "content": "Yes."}]}"#;
    test.write("pairs.jsonl", &format!("{row}\n"));
    let shown = test.succeeds(&["data", "show", "pairs.jsonl"]);
    let turns = "  prompt      \n  user        Tea?\n  assistant   Yes.\n  user        Now?\n  chosen      \n  assistant   No.\n  \
                 rejected    \n  assistant   Yes.\n";
    assert!(shown.ends_with(turns), "{shown}");
}

#[test]
fn check_lists_findings_and_fails() {
    let test = CliTest::with("pairs.jsonl", PAIRS);
    let run = test.run(&["data", "check", "pairs.jsonl"]);
    assert_eq!(run.code, 1);
    assert_eq!(run.stdout, "identical pairs: 1 row\n  pairs.jsonl:2: `chosen` and `rejected` are the same\n");
    assert_eq!(run.stderr, "`--model DIR` also checks lengths and end-of-text tokens\nerror: 1 problem in 2 rows\n");
    test.write("good.jsonl", PAIRS.lines().next().expect("a line"));
    let kind = "preferences with a prompt (not of this form: `id`)";
    assert_eq!(
        test.succeeds(&["data", "check", "good.jsonl", "-q"]),
        format!("good.jsonl: 1 row of {kind}, no problems found\n")
    );
    // Rows of an unintended form are readable, too.
    test.write("winner.csv", "prompt, response_a,winner\nTea?,Yes.,a\n");
    let prompts = "winner.csv: 1 row of prompts (not of this form: `response_a`, `winner`), no problems found\n";
    assert_eq!(test.succeeds(&["data", "check", "winner.csv", "-q"]), prompts);
}

#[test]
fn check_knows_the_columns_that_chat_templates_read() {
    let prompt = serde_json::json!([{ "role": "user", "content": "Hi" }]);
    let good = serde_json::json!({
        "prompt": prompt, "tools": [{ "name": "f" }], "chat_template_kwargs": "{\"a\": 1}", "id": 1,
    });
    let test = CliTest::with("good.jsonl", &good.to_string());
    assert_eq!(
        test.succeeds(&["data", "check", "good.jsonl", "-q"]),
        "good.jsonl: 1 row of prompts (not of this form: `id`), no problems found\n"
    );
    let bad = serde_json::json!({ "prompt": prompt, "chat_template_kwargs": { "add_generation_prompt": false } });
    test.write("bad.jsonl", &bad.to_string());
    let run = test.run(&["data", "check", "bad.jsonl", "-q"]);
    assert_eq!(run.code, 1, "{}", run.stderr);
    let found = "bad.jsonl:1: `chat_template_kwargs` sets `add_generation_prompt`, which gradus sets itself";
    assert!(run.stdout.contains(found), "{}", run.stdout);
}

#[test]
fn a_field_of_many_lines_is_a_finding_and_an_open_quote_is_an_error() {
    let rows: String = (0..60).map(|i| format!("row {i}\n")).collect();
    let test = CliTest::with("closed.csv", &format!("text\na\n\"{rows}\"\nb\n"));
    let found = test.succeeds(&["data", "check", "closed.csv", "-q"]);
    let expected = "CSV fields that span many lines: 1 row (remark)\n  \
                  closed.csv:3: `text` spans 61 lines; look for a stray quote where it begins\n";
    assert_eq!(found, expected);
    test.write("open.csv", &format!("text\na\n\"{rows}b\n"));
    for arguments in [&["data", "check", "open.csv", "-q"][..], &["data", "convert", "open.csv", "-o", "open.jsonl"]] {
        test.fails(
            arguments,
            1,
            "error: open.csv: the quote that opens a field on line 3 is not closed\n\
             hint: if the quote belongs to the text, put the whole field in quotes and write each quote in it twice (`\"\"`)\n",
        );
    }
}

#[test]
fn a_format_that_would_change_a_value_is_refused_with_the_row() {
    let test = CliTest::new();
    let cases: [(&[&str], &str); 5] = [
        (&["1", "\"x\""], "2: column `a` holds text here and a number before, but a column of Parquet has one type"),
        (
            &["[1]", "[\"x\"]"],
            "2: column `a` holds text here and a number before, but a column of Parquet has one type",
        ),
        (
            &["1", "9223372036854775808"],
            "2: column `a` holds 9223372036854775808, more than a signed 64-bit integer holds",
        ),
        (
            &["0.5", "9007199254740993"],
            "2: column `a` holds fractions and integers above 2^53, which no column of Parquet holds exactly",
        ),
        (&["{}"], "1: column `a` holds objects without any key, which no column of Parquet holds"),
    ];
    for (values, what) in cases {
        let rows: String = values.iter().map(|value| format!("{{\"text\": \"t\", \"a\": {value}}}\n")).collect();
        test.write("rows.jsonl", &rows);
        test.fails(
            &["data", "convert", "rows.jsonl", "-o", "rows.parquet"],
            1,
            &format!("error: rows.parquet:{what}\nhint: write .jsonl or .json, which hold any rows\n"),
        );
        test.succeeds(&["data", "convert", "rows.jsonl", "-o", "same.json", "--overwrite"]);
    }
    assert!(!test.path().join("rows.parquet").exists());
    test.write("rows.jsonl", "{\"text\": \"t\", \"a\": 1}\n{\"text\": \"t\", \"a\": \"x\"}\n");
    test.fails(
        &["data", "convert", "rows.jsonl", "-o", "rows.arrow"],
        1,
        "error: rows.arrow:2: column `a` holds text here and a number before, but a column of Arrow has one type\n\
         hint: write .jsonl or .json, which hold any rows\n",
    );
    for (text, what) in [
        ("a\\n<|endoftext|>\\nb", "has a line `<|endoftext|>`, which ends a document"),
        ("", "is empty, so readers skip it"),
        ("c\\n\\n", "ends in a line end, which readers cut off"),
    ] {
        test.write("texts.jsonl", &format!("{{\"text\": \"t\"}}\n{{\"text\": \"{text}\"}}\n"));
        test.fails(
            &["data", "convert", "texts.jsonl", "-o", "rows.txt"],
            1,
            &format!("error: rows.txt:2: column `text` {what}\nhint: write .jsonl or .json, which hold any rows\n"),
        );
        assert!(!test.path().join("rows.txt").exists());
    }
}

#[test]
fn convert_writes_what_show_reads() {
    let test = CliTest::with("pairs.jsonl", PAIRS);
    let rows = |text: &str| -> Vec<serde_json::Value> {
        text.lines().map(|line| serde_json::from_str(line).expect("it is JSON")).collect()
    };
    for (name, format) in [("pairs.parquet", "Parquet"), ("pairs.arrow", "Arrow")] {
        let stdout = test.succeeds(&["data", "convert", "pairs.jsonl", "--output", name]);
        assert_eq!(stdout, format!("{name}: 2 rows, {format}\n"));
        test.succeeds(&["data", "convert", name, "-o", "back.jsonl", "--overwrite"]);
        assert_eq!(rows(&test.read("back.jsonl")), rows(PAIRS));
    }
    let overwrite = "error: `back.jsonl` exists; `--overwrite` replaces it\n";
    test.fails(&["data", "convert", "pairs.jsonl", "-o", "back.jsonl"], 2, overwrite);
    test.succeeds(&["data", "convert", "pairs.jsonl", "-o", "back.jsonl", "--overwrite", "--to", "prompt-completion"]);
    assert_eq!(
        rows(&test.read("back.jsonl"))[0],
        serde_json::json!({"prompt": "Tea?", "completion": " Yes.", "id": 1})
    );
}

#[test]
fn pairs_become_completions_with_a_label() {
    let test = CliTest::with("pairs.jsonl", PAIRS);
    let stdout = test.succeeds(&["data", "convert", "pairs.jsonl", "-o", "marked.jsonl", "--to", "unpaired"]);
    assert_eq!(stdout, "marked.jsonl: 4 rows, JSON lines\n");
    let first = test.read("marked.jsonl").lines().next().expect("a line").to_owned();
    let first: serde_json::Value = serde_json::from_str(&first).expect("it is JSON");
    assert_eq!(first, serde_json::json!({"prompt": "Tea?", "completion": " Yes.", "label": true, "id": 1}));
    let shown = test.succeeds(&["data", "show", "marked.jsonl"]);
    assert!(shown.contains("kind     completions marked as desirable or not\n"), "{shown}");
    test.succeeds(&["data", "convert", "marked.jsonl", "-o", "again.jsonl"]);
    assert_eq!(test.read("again.jsonl"), test.read("marked.jsonl"));
    // Undesirable completions do not become training targets.
    let run = test.run(&["data", "convert", "marked.jsonl", "-o", "learned.jsonl", "--to", "prompt-completion"]);
    assert!(run.stderr.contains("holds a completion that is not wanted; `unpaired` keeps its label"), "{}", run.stderr);
}

#[test]
fn bad_input_is_named() {
    let test = CliTest::with("pairs.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": 1}\n");
    test.fails(
        &["data", "convert", "pairs.jsonl", "-o", "out.jsonl"],
        1,
        "error: pairs.jsonl:2: column `prompt` is a number, expected a string or a list of messages\n",
    );
    test.fails(
        &["data", "convert", "pairs.jsonl", "-o", "out.jsonl", "--to", "preference", "--max-rows", "1"],
        1,
        "error: pairs.jsonl:1: holds no pair of answers\n",
    );
    test.fails(&["data", "show", "none.jsonl"], 1, "error: none.jsonl: no such file or directory\n");
    test.fails(
        &["data", "show", "pairs.jsonl", "--column", "prompt"],
        2,
        "error: `--column prompt`: expected NAME=COLUMN, such as `prompt=question`\n",
    );
    let good = test.write("good.jsonl", "{\"prompt\": \"a\"}\n");
    test.succeeds(&["data", "convert", &good.to_string_lossy(), "-o", "new/folder/out.jsonl"]);
    assert_eq!(test.read("new/folder/out.jsonl"), "{\"prompt\":\"a\"}\n");
    test.fails(
        &["data", "convert", "good.jsonl", "-o", "out.txt"],
        1,
        "error: `out.txt` can hold only texts, but the rows have other columns\n\
         hint: turn them into texts (`--to text`), or write .jsonl\n",
    );
    test.fails(
        &["data", "convert", "good.jsonl", "-o", "out.doc"],
        1,
        "error: the name `out.doc` has no ending of a known format\n\
         hint: end it in .jsonl, .json, .csv, .tsv, .parquet, .arrow or, for texts, .txt; add .gz to compress\n",
    );
}

#[test]
fn hub_names_need_the_network() {
    let test = CliTest::new();
    let mut command = test.command(&["data", "show", "owner/name"]);
    let output = command.env("HF_HUB_OFFLINE", "1").env("HF_HOME", test.path()).output().expect("the binary runs");
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "error: data set `owner/name`: `HF_HUB_OFFLINE` is set and it is not in the cache\n\
         hint: `owner/name` is not a local file or directory, so it was read as a hub name; without a network, pass a path\n"
    );
}

#[cfg(unix)]
#[test]
fn data_from_a_pipe_a_circle_of_links_and_rows_without_end() {
    use std::io::Write as _;
    let test = CliTest::with("set/pairs.jsonl", PAIRS);
    let mut command = test.command(&["data", "show", "/dev/stdin", "--json"]);
    let mut child =
        command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).spawn().expect("runs");
    child.stdin.take().expect("piped").write_all(PAIRS.as_bytes()).expect("written");
    let output = child.wait_with_output().expect("it ends");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(json["stats"]["rows"], 2);

    std::os::unix::fs::symlink(test.path().join("set"), test.path().join("set/again")).expect("linked");
    let json: serde_json::Value =
        serde_json::from_str(&test.succeeds(&["data", "show", "set", "--json"])).expect("JSON");
    assert_eq!((&json["stats"]["rows"], json["files"].as_array().map(Vec::len)), (&2.into(), Some(1)));

    // One hundred megabytes in one line, compressed to one hundred kilobytes.
    let bomb = "head -c 100000000 /dev/zero | tr '\\0' x | gzip > bomb.jsonl.gz; (echo a,b; gzip -dc bomb.jsonl.gz) | gzip > bomb.csv.gz";
    let made = std::process::Command::new("sh").args(["-c", bomb]).current_dir(test.path()).status().expect("a shell");
    assert!(made.success());
    // One hundred megabytes in one row of many short lines.
    let lines = "(echo a,b; printf '\"'; yes y | head -c 100000000) | gzip > lines.csv.gz; \
                 (echo a,b; printf 'x,\"'; yes y | head -c 100000000; echo '\"') | gzip > closed.csv.gz";
    let made = std::process::Command::new("sh").args(["-c", lines]).current_dir(test.path()).status().expect("a shell");
    assert!(made.success());
    for (name, what) in [
        ("bomb.jsonl.gz", "the row on line 1 has more than 67108864 bytes"),
        ("bomb.csv.gz", "the row on line 2 has more than 67108864 bytes"),
        ("lines.csv.gz", "the quote that opens a field on line 2 is not closed within 67108864 bytes"),
        ("closed.csv.gz", "the quote that opens a field on line 2 is not closed within 67108864 bytes"),
    ] {
        let run = test.run(&["data", "show", name]);
        assert_eq!(run.code, 1);
        assert!(run.stderr.contains(what), "{name}: {}", run.stderr);
        assert!(run.stderr.len() < 1000, "{} bytes", run.stderr.len());
    }

    let header: Vec<String> = (0..100_000).map(|i| format!("column{i}")).collect();
    let cells = vec!["1"; 100_000].join(",");
    test.write("wide.csv", &format!("{}\n{cells}\n{cells}\n", header.join(",")));
    let run = test.run(&["data", "show", "wide.csv"]);
    assert_eq!(run.code, 1);
    assert!(run.stderr.contains("`column19` and 99980 more"), "{}", run.stderr);
    assert!(run.stderr.len() < 3000, "{}", run.stderr);
}

/// Two rows with feedback: one with an error of each category, and one without feedback on its second answer.
fn feedback() -> String {
    let row = |question: &str, errors: serde_json::Value, preference: [u8; 6]| {
        serde_json::json!({
            "question": question,
            "passages": [["Tea", "The kettle sings.", "The cup is warm."]],
            "gold": "The kettle.",
            "prediction 1": "The kettle sings of tea all day. The cup is cold.",
            "prediction 2": "The kettle sings.",
            "prediction 3": "The cup is warm.",
            "prediction 4": "Tea.",
            "feedback": {
                "errors": errors, "missing-info": [], "corrected-prediction": "The kettle sings. The cup is warm."
            },
            "preference": preference,
        })
    };
    let errors = serde_json::json!([
        { "error type": "Irrelevant", "explanation": "", "start": 0, "end": 32 },
        { "error type": "Wrong-Grounding", "explanation": "{}", "start": 44, "end": 49 },
    ]);
    let only_one = serde_json::json!([errors[0]]);
    serde_json::json!([
        row("Who sings?", errors, [1, 1, 1, 0, 0, 0]),
        row("What is warm?", only_one, [1, 2, 1, 1, 1, 1])
    ])
    .to_string()
}

#[test]
fn feedback_is_shown_checked_and_converted() {
    let test = CliTest::with("feedback.json", &feedback());
    let shown = test.succeeds(&["data", "show", "feedback.json", "--examples", "0"]);
    for line in [
        "  kind     answers with fine-grained feedback",
        "errors  3; none in 0 rows",
        "  Irrelevant                     2",
        "  1 and 2            2       0       0",
    ] {
        assert!(shown.contains(&format!("{line}\n")), "{line}:\n{shown}");
    }
    // In the second row, 1 is better than 2, 2 is better than 3, and 3 is better than 1.
    test.write("dev.json", r#"[{"question": "Who sings?", "passages": [], "answer": ["The pot."]}]"#);
    let checked = test.run(&["data", "check", "feedback.json", "--questions", "dev.json", "-q"]);
    assert_eq!(checked.code, 1, "{}", checked.stderr);
    for line in [
        "  feedback.json:1 (row 2): the preferences among the answers 1, 2 and 3 contradict each other",
        "  feedback.json:1 (row 1): `gold` is not the first answer of dev.json:1 (row 1)",
        "  feedback.json:1 (row 2): the question is not in the QA split",
    ] {
        assert!(checked.stdout.contains(line), "{line}:\n{}", checked.stdout);
    }
    let convert = |to: &str, file: &str| test.succeeds(&["data", "convert", "feedback.json", "--to", to, "-o", file]);
    assert_eq!(convert("r1", "r1.jsonl"), "r1.jsonl: 2 rows, JSON lines; segments: NF-ERR 2, O 2\n");
    assert_eq!(convert("r2", "r2.jsonl"), "r2.jsonl: 2 rows, JSON lines; segments: F-ERR 1, Ignore 2, O 1\n");
    assert_eq!(convert("r3", "r3.json"), "r3.json: 2 rows, JSON array\n");
    assert_eq!(convert("preference", "pairs.jsonl"), "pairs.jsonl: 9 rows, JSON lines\n");
    // A complete answer has two sentences. Answers 2 and 3 contain one each, 1 and 4 none.
    assert!(test.read("r3.json").contains("\"preference\": [\n    2,\n    2,\n    0,\n    0,\n    1,\n    1\n  ]"));
    let pairs = test.succeeds(&["data", "convert", "r3.json", "--to", "preference", "-o", "covered.jsonl"]);
    assert_eq!(pairs, "covered.jsonl: 8 rows, JSON lines\n");
    test.fails(
        &["data", "convert", "pairs.jsonl", "--to", "r1", "-o", "out.jsonl"],
        1,
        "error: pairs.jsonl:1: the row has no fine-grained feedback\n\
         hint: `r1`, `r2` and `r3` need rows with `passages`, `prediction 1` and `feedback`\n",
    );
}

#[test]
fn rows_are_parted_as_they_are() {
    let row = |i: usize| format!("{{\"question\":\"q{}\",\"answer\":\"a{i}\",\"n\":{i}}}\n", i / 3);
    let all: Vec<String> = (0..30).map(row).collect();
    let test = CliTest::with("rows.jsonl", &all.concat());
    let split = |more: &[&str]| {
        let files = ["--train", "train.jsonl", "--test", "test.jsonl", "--overwrite"];
        test.succeeds(&[&["data", "split", "rows.jsonl"], &files[..], more].concat());
        let lines = |name: &str| test.read(name).lines().map(|line| format!("{line}\n")).collect::<Vec<_>>();
        (lines("train.jsonl"), lines("test.jsonl"))
    };
    let (train, held_out) = split(&[]);
    assert_eq!((train.len(), held_out.len()), (27, 3));
    assert!(held_out.iter().all(|row| all.contains(row) && !train.contains(row)), "rows are written as they were");
    assert_eq!(split(&[]), (train, held_out.clone()), "the same seed parts the same way");
    assert_ne!(split(&["--seed", "7"]).1, held_out);
    let (train, held_out) = split(&["--by", "question", "--test-size", "6"]);
    assert_eq!(held_out.len(), 6);
    let question = |row: &String| row.split('"').nth(3).map(str::to_owned);
    assert!(held_out.iter().all(|row| train.iter().all(|other| question(row) != question(other))));
    let run = test.run(&["data", "split", "rows.jsonl", "--train", "train.jsonl", "--test", "test.jsonl"]);
    assert!(run.stderr.contains("`train.jsonl` exists; `--overwrite` replaces it"), "{}", run.stderr);
    test.fails(
        &["data", "split", "rows.jsonl", "--train", "a.jsonl", "--test", "b.jsonl", "--stratify", "kind"],
        1,
        "error: rows.jsonl:1: no column `kind` to split by\n",
    );
}

#[test]
fn the_card_of_a_directory_says_which_files_are_read() {
    let test = CliTest::with("r/x/one.jsonl", "{\"text\": \"a\"}\n");
    test.write("r/y.jsonl", "{\"text\": \"T\"}\n");
    let splits = "  data_files:\n  - split: train\n    path: x/*.jsonl\n  - split: test\n    path: y.jsonl\n";
    test.write("r/README.md", &format!("---\nconfigs:\n- config_name: main\n{splits}---\n# Rows\n"));
    let rows = |data: &str| {
        let run = test.run(&["data", "convert", data, "-o", "rows.jsonl", "--overwrite"]);
        assert_eq!(run.code, 0, "{}", run.stderr);
        (test.read("rows.jsonl"), run.stderr)
    };
    let (train, note) = rows("r");
    assert_eq!(train, "{\"text\":\"a\"}\n");
    assert!(note.contains("reading the split `train`; other splits: `test`, as in `r:test`\n"), "{note}");
    // Who names a split knows that there are others.
    for data in ["r:test", "r:main:test"] {
        let (held_out, note) = rows(data);
        assert_eq!(held_out, "{\"text\":\"T\"}\n");
        assert!(!note.contains("split"), "{note}");
    }
    // The same files, as a snapshot in the cache of the hub.
    let snapshot = "hub/datasets--a--b/snapshots/abc";
    for name in ["x/one.jsonl", "y.jsonl", "README.md"] {
        test.write(&format!("{snapshot}/{name}"), &test.read(&format!("r/{name}")));
    }
    test.write("hub/datasets--a--b/refs/main", "abc");
    for (data, row) in [("a/b", "a"), ("a/b:test", "T")] {
        let mut command = test.command(&["data", "convert", data, "-o", "rows.jsonl", "--overwrite"]);
        let output = command.env("HF_HOME", test.path()).env("HF_HUB_OFFLINE", "1").output();
        let output = output.expect("the binary runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(test.read("rows.jsonl"), format!("{{\"text\":\"{row}\"}}\n"), "{data}");
    }
}

/// The HTML page is self-contained, and the JSON file has the same numbers.
#[test]
fn show_writes_a_report() {
    let rows = "\
{\"prompt\": \"Tea?\", \"chosen\": \" Yes, I would love some.\", \"rejected\": \" Yes, I would.\"}
{\"prompt\": \"Milk?\", \"chosen\": \" Yes, I would, please.\", \"rejected\": \" No <b>thank you</b> very much.\", \"margin\": 0}
{\"prompt\": \"Sugar?\", \"chosen\": \" No.\", \"rejected\": \"No. \"}
";
    let test = CliTest::with("pairs.jsonl", rows);
    test.succeeds(&["data", "show", "pairs.jsonl", "--report", "out/rows.html"]);
    let json: serde_json::Value = serde_json::from_str(&test.read("out/rows.json")).expect("it is JSON");
    let pairs = &json["profile"]["pairs"];
    let counts = ["pairs", "longer_chosen", "longer_rejected", "same_length"].map(|key| pairs[key].as_u64());
    assert_eq!(counts, [Some(3), Some(1), Some(1), Some(1)], "{json}");
    assert_eq!(pairs["longer_chosen_share"], 0.5);
    assert_eq!((&pairs["ties"]["count"], &pairs["ties"]["first"][0]), (&1.into(), &"pairs.jsonl:2".into()));
    assert_eq!((&pairs["equal"]["count"], &pairs["equal"]["first"][0]), (&1.into(), &"pairs.jsonl:3".into()));
    assert_eq!(json["profile"]["short"]["count"], 1);
    assert_eq!(json["profile"]["turns"]["2"], 3);
    let openings = json["profile"]["openings"].as_array().expect("a list");
    let yes = openings.iter().find(|opening| opening["words"] == "Yes, I would").expect("three answers begin so");
    assert_eq!((&yes["chosen"], &yes["rejected"]), (&2.into(), &1.into()));
    assert_eq!(json["profile"]["characters"][1]["part"], "chosen");
    let page = test.read("out/rows.html");
    for expected in
        ["<title>pairs.jsonl</title>", "50.0 %", "aria-label=\"Difference of lengths\"", "pairs.jsonl:3", "drop_ties"]
    {
        assert!(page.contains(expected), "{expected} in {page}");
    }
    assert!(!page.contains("src=") && !page.contains("<b>thank"), "{page}");

    let run = test.run(&["data", "show", "pairs.jsonl", "--report", "out/rows.html"]);
    assert!(run.code == 2 && run.stderr.contains("`out/rows.html` exists; `--overwrite` replaces it"), "{run:?}");
    let model = crate::harness::fixture_model("qwen3");
    test.succeeds(&["data", "show", "pairs.jsonl", "--report", "out/rows.html", "--overwrite", "--model", &model]);
    let json: serde_json::Value = serde_json::from_str(&test.read("out/rows.json")).expect("it is JSON");
    assert_eq!(json["profile"]["tokens"][0]["part"], "prompt");
    let run = test.run(&["data", "show", "pairs.jsonl", "--report", "out/rows.txt"]);
    assert!(run.code == 2 && run.stderr.contains("it does not end in `.html`"), "{run:?}");
}
