//! `gradus eval --metrics`: metrics of rows without a model.

use serde_json::{Value, json};

use crate::harness::{CliTest, fixture_model};

const ROWS: &str = concat!(
    "{\"prediction\": \"the cat sat on the mat\", \"references\": [\"the cat sat on the mat\", \"a cat\"]}\n",
    "{\"completion\": \"one two\", \"reference\": \"one two three four\", \"prompt\": \"count\"}\n",
);

fn measured(test: &CliTest, arguments: &[&str]) -> Value {
    let all = [&["eval", "--data", "rows.jsonl", "--json", "--metrics"], arguments].concat();
    serde_json::from_str(&test.succeeds(&all)).expect("JSON")
}

#[test]
fn json_has_values_intervals_and_every_row() {
    let test = CliTest::with("rows.jsonl", ROWS);
    let found = measured(&test, &["exact_match,rouge", "--metric-option", "rouge_type=rouge1"]);
    // The second row has precision 1 and recall 1/2: F = 2/3.
    let two_thirds = 2.0 / 3.0;
    assert_eq!(found["metrics"], json!({ "exact_match": 0.5, "rouge/rouge1": (1.0 + two_thirds) / 2.0 }));
    let rows = json!([{ "exact_match": 1.0, "rouge/rouge1": 1.0 }, { "exact_match": 0.0, "rouge/rouge1": two_thirds }]);
    assert_eq!(found["rows"], rows);
    assert_eq!(found["intervals"]["exact_match"], json!([0.0, 1.0]));
    let off = measured(&test, &["exact_match", "--bootstrap", "0", "--max-rows", "1"]);
    assert_eq!((&off["intervals"], &off["metrics"]["exact_match"]), (&json!({}), &json!(1.0)));
}

#[test]
fn metrics_of_one_name_are_numbered() {
    let found = measured(&CliTest::with("rows.jsonl", ROWS), &["exact_match,exact_match"]);
    assert_eq!(found["metrics"], json!({ "exact_match": 0.5, "exact_match_2": 0.5 }));
}

/// Rows with the same prompt are its samples. They are drawn together, wherever they are.
#[test]
fn an_interval_is_over_prompts_with_all_their_rows() {
    let row = |i: usize| {
        let reference = if i.is_multiple_of(2) { "a b c" } else { "c" };
        json!({ "prompt": i % 2, "prediction": "a b c", "reference": reference })
    };
    let rows: String = (0..8).map(|i| format!("{}\n", row(i))).collect();
    let found = measured(&CliTest::with("rows.jsonl", &rows), &["exact_match,distinct"]);
    // Two equal prompts are drawn in one of four resamples. Eight rows alone would be all right in one of 256.
    assert_eq!(found["intervals"]["exact_match"], json!([0.0, 1.0]));
    // 3 of the 12 words of a prompt are distinct. Every resample contains whole prompts, so it has a value.
    assert_eq!(found["intervals"]["distinct/dist-1"], json!([0.25, 0.25]));
}

#[test]
fn a_table_shows_values_with_their_intervals() {
    let test = CliTest::with("rows.jsonl", ROWS);
    let table = test.succeeds(&["eval", "--data", "rows.jsonl", "--metrics", "exact_match,diversity"]);
    let mut lines = table.lines();
    assert_eq!(
        lines.next().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).as_deref(),
        Some("2 rows value 95 % interval")
    );
    assert_eq!(
        lines.next().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).as_deref(),
        Some("exact_match 0.5000 0.0000 – 1.0000")
    );
    assert!(table.contains("diversity/distinct-1"), "{table}");
}

#[test]
fn a_value_that_is_undefined_has_its_reason() {
    let test = CliTest::with("rows.jsonl", ROWS);
    let eval = ["eval", "--data", "rows.jsonl", "--metrics", "diversity"];
    let run = test.run(&eval);
    let expected = "warning: `diversity/msttr-100` is NaN: all texts together have 8 words, but the window has 100";
    assert!(run.code == 0 && run.stderr.contains(expected), "{run:?}");
    let run = test.run(&[&eval[..], &["--metric-option", "window_size=8"]].concat());
    assert!(run.code == 0 && !run.stderr.contains("NaN"), "{run:?}");
}

/// Prompt, prediction and reference are columns as all others.
#[test]
fn perplexity_reads_any_column() {
    let row = json!({ "prompt": "The kettle", "prediction": "The tea is", "reference": "good and warm.", "source": "The tea is" });
    let test = CliTest::with("rows.jsonl", &format!("{row}\n"));
    let model = format!("model={}", fixture_model("gpt2"));
    let options = ["perplexity", "--metric-option", &model, "--metric-option", "add_start_token=false"];
    let of = |option: &str| {
        let found = measured(&test, &[&options[..], &["--metric-option", option]].concat());
        found["metrics"]["perplexity"].as_f64().expect("a number")
    };
    let prediction = of("of=prediction");
    assert_eq!((of("column=prediction"), of("column=source")), (prediction, prediction));
    assert_eq!(of("column=reference"), of("of=references"));
    assert_ne!(of("column=prompt"), prediction);
    let eval = ["eval", "--data", "rows.jsonl", "--metrics"];
    let run = test.run(&[&eval[..], &options, &["--metric-option", "column=other"]].concat());
    assert!(run.code == 1 && run.stderr.contains("the row has no text in the column `other`"), "{run:?}");
}

#[test]
fn what_is_wrong_is_named_with_its_place() {
    let test = CliTest::with("rows.jsonl", "{\"completion\": \"a\", \"reference\": \"a\"}\n{\"completion\": \"b\"}\n");
    let eval = |metrics: &'static str| ["eval", "--data", "rows.jsonl", "--metrics", metrics];
    let expected = "rows.jsonl:2: `chrf`: no references to compare with (column `references` or `reference`)";
    let hint = "`--skip-bad-rows` leaves bad rows out, `gradus data check` lists them";
    test.fails(&eval("chrf"), 1, &format!("measuring\nerror: {expected}\nhint: {hint}\n"));
    test.write("messages.jsonl", "{\"completion\": [], \"reference\": \"a\"}\n");
    let run = test.run(&["eval", "--data", "messages.jsonl", "--metrics", "chrf"]);
    assert!(run.code == 1 && run.stderr.contains("column `completion` holds [], expected text"), "{run:?}");
    test.fails(&eval("crf"), 1, "error: no metric is called `crf`\nhint: did you mean `chrf`?\n");
}

#[test]
fn bad_rows_are_left_out_where_that_is_wanted() {
    let row = "{\"prediction\": \"a b\", \"reference\": \"a b\"}\n";
    let test = CliTest::with("rows.jsonl", &format!("{row}{{\"prediction\": 3}}\n{row}"));
    let eval = ["eval", "--data", "rows.jsonl", "--metrics", "exact_match", "--json"];
    let run = test.run(&eval);
    assert!(run.code == 1 && run.stderr.contains("hint: `--skip-bad-rows` leaves bad rows out"), "{run:?}");
    let run = test.run(&[&eval[..], &["--skip-bad-rows"]].concat());
    assert_eq!(run.code, 0, "{run:?}");
    assert!(
        run.stderr.contains("warning: 1 bad row is left out, the first rows.jsonl:2: column `prediction` holds 3"),
        "{run:?}"
    );
}

/// A row without references is bad for a metric that compares with them, with recorded predictions and with samples.
#[test]
fn rows_without_references_are_bad_where_a_metric_needs_them() {
    let rows = concat!(
        "{\"prompt\": \"The\", \"prediction\": \"a b\", \"references\": [\"a b\"]}\n",
        "{\"prompt\": \"A\", \"prediction\": \"a c\", \"references\": []}\n",
    );
    let test = CliTest::with("rows.jsonl", rows);
    let model = fixture_model("gpt2");
    let eval = ["eval", "--data", "rows.jsonl", "--json", "--metrics"];
    let sampled = ["--model", &model, "--max-new-tokens", "2"];
    for of_model in [&[][..], &sampled[..]] {
        let run = test.run(&[&eval[..], &["exact_match"], of_model].concat());
        let expected = ["rows.jsonl:2: ", "no references to compare with", "`--skip-bad-rows` leaves bad rows out"];
        assert!(run.code == 1 && expected.iter().all(|part| run.stderr.contains(part)), "{run:?}");
        let run = test.run(&[&eval[..], &["exact_match", "--skip-bad-rows"], of_model].concat());
        assert!(run.code == 0 && run.stderr.contains("1 bad row is left out, the first rows.jsonl:2"), "{run:?}");
        let found: Value = serde_json::from_str(&run.stdout).expect("JSON");
        let rows = found["rows"].as_array().map_or_else(|| found["rows"].as_u64(), |rows| Some(rows.len() as u64));
        assert_eq!(rows, Some(1), "{found}");
        // Other metrics measure both rows.
        test.succeeds(&[&eval[..], &["dates"], of_model].concat());
    }
}
