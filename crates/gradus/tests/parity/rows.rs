//! Conversion of rows to token ids, compared to TRL 1.16's trainers on the same rows (`tools/parity/rows.py`).

use std::io::Write;
use std::path::PathBuf;

use gradus::data::{
    Content, ImplicitPrompt, LoadOptions, Message, Need, Row, TokenizeOptions, TooLong, load, preference_examples,
    prompts, reward_examples, sft_examples, split_shared_prompt,
};
use gradus::text::{ChatTemplate, Tokenizer};
use serde_json::Value;

use crate::fixture::folder;

fn fixtures() -> PathBuf {
    folder().join("rows")
}

fn read(name: &str) -> Value {
    crate::fixture::read(&format!("rows/{name}"))
}

struct Case {
    name: String,
    rows: Vec<Row>,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    options: TokenizeOptions,
    expected: Value,
}

/// Returns the cases of a file, with rows read by the ordinary reader.
fn cases(file: &str, need: Need) -> Vec<Case> {
    let fixture = read(file);
    let cases = fixture["cases"].as_array().expect("a list of cases");
    assert!(!cases.is_empty());
    cases.iter().map(|case| prepare(case, need)).collect()
}

fn prepare(case: &Value, need: Need) -> Case {
    let settings = &case["options"];
    let directory = fixtures().join(settings["tokenizer"].as_str().expect("a tokenizer"));
    let tokenizer = Tokenizer::from_dir(&directory).expect("a tokenizer");
    let template = ChatTemplate::from_dir(&directory, &tokenizer).expect("a valid template").expect("a template");

    let mut file = tempfile::Builder::new().suffix(".jsonl").tempfile().expect("a temporary file");
    for row in case["rows"].as_array().expect("rows") {
        let mut row = row.clone();
        if let Some(variables) = settings.get("chat_template_kwargs") {
            row["chat_template_kwargs"] = variables.clone();
        }
        writeln!(file, "{row}").expect("written");
    }
    let name = case["name"].as_str().expect("a name").to_owned();
    let dataset =
        load(&file.path().to_string_lossy(), &LoadOptions::needing(need)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let options = TokenizeOptions {
        max_length: settings.get("max_length").and_then(Value::as_u64).map(|n| n as usize),
        completion_only_loss: settings.get("completion_only_loss").and_then(Value::as_bool),
        assistant_only_loss: settings.get("assistant_only_loss").and_then(Value::as_bool) == Some(true),
        implicit_prompt: ImplicitPrompt::Trl,
        ..TokenizeOptions::default()
    };
    Case { name, rows: dataset.rows, tokenizer, template, options, expected: case.clone() }
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().expect("ids").iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

fn kept(case: &Case) -> Vec<usize> {
    ids(&case.expected["kept"]).into_iter().map(|row| row as usize).collect()
}

#[test]
fn sft_rows_give_trl_tokens_and_labels() {
    for case in cases("sft.json", Need::Sft) {
        let name = &case.name;
        let made = sft_examples(&case.rows, &case.tokenizer, Some(&case.template), &case.options)
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let rows: Vec<usize> = made.examples.iter().map(|e| e.row).collect();
        assert_eq!(rows, kept(&case), "{name}: rows kept");
        for (example, expected) in made.examples.iter().zip(case.expected["processed"].as_array().expect("rows")) {
            assert_eq!(example.ids, ids(&expected["input_ids"]), "{name}: row {}", example.row);
            let labels: Vec<i64> = example
                .ids
                .iter()
                .zip(&example.loss_mask)
                .map(|(id, counts)| if *counts { i64::from(*id) } else { -100 })
                .collect();
            let expected_labels: Vec<i64> =
                expected["labels"].as_array().expect("labels").iter().map(|l| l.as_i64().expect("a label")).collect();
            assert_eq!(labels, expected_labels, "{name}: labels of row {}", example.row);
        }
    }
}

#[test]
fn dpo_rows_give_trl_tokens() {
    for case in cases("dpo.json", Need::Preference) {
        let name = &case.name;
        let made = preference_examples(&case.rows, &case.tokenizer, Some(&case.template), &case.options)
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let rows: Vec<usize> = made.examples.iter().map(|e| e.row).collect();
        assert_eq!(rows, kept(&case), "{name}: rows kept");
        for (example, expected) in made.examples.iter().zip(case.expected["processed"].as_array().expect("rows")) {
            let prompt = ids(&expected["prompt_ids"]);
            assert_eq!(example.prompt_len, prompt.len(), "{name}: prompt of row {}", example.row);
            let most = case.options.max_length.unwrap_or(usize::MAX);
            for (found, side) in [(&example.chosen_ids, "chosen_ids"), (&example.rejected_ids, "rejected_ids")] {
                // The fixture contains the rows before TRL's collator cuts them.
                let mut whole = [prompt.clone(), ids(&expected[side])].concat();
                whole.truncate(most);
                assert_eq!(*found, whole, "{name}: {side} of row {}", example.row);
            }
        }
    }
}

#[test]
fn reward_rows_give_trl_tokens() {
    for case in cases("reward.json", Need::Preference) {
        let name = &case.name;
        // TRL leaves out pairs that are too long.
        let options = TokenizeOptions { too_long: TooLong::Skip, ..case.options.clone() };
        let made = reward_examples(&case.rows, &case.tokenizer, Some(&case.template), &options)
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let rows: Vec<usize> = made.examples.iter().map(|e| e.row).collect();
        assert_eq!(rows, kept(&case), "{name}: rows kept");
        for (example, expected) in made.examples.iter().zip(case.expected["processed"].as_array().expect("rows")) {
            assert_eq!(example.chosen_ids, ids(&expected["chosen_ids"]), "{name}: row {}", example.row);
            assert_eq!(example.rejected_ids, ids(&expected["rejected_ids"]), "{name}: row {}", example.row);
        }
        let margins = case.expected["batch"].get("margin").and_then(Value::as_array);
        let expected = margins.map(|list| list.iter().map(|m| m.as_f64().map(|m| m as f32)).collect::<Vec<_>>());
        let found: Vec<Option<f32>> = made.examples.iter().map(|e| e.margin).collect();
        assert_eq!(found, expected.unwrap_or_else(|| vec![None; found.len()]), "{name}: margins");
    }
}

#[test]
fn prompts_give_trl_tokens() {
    for case in cases("grpo.json", Need::Prompt) {
        let made = prompts(&case.rows, &case.tokenizer, Some(&case.template), &case.options).expect("prompts");
        let found: Vec<Vec<u32>> = made.examples.into_iter().map(|p| p.ids).collect();
        let expected: Vec<Vec<u32>> =
            case.expected["prompt_ids"].as_array().expect("prompts").iter().map(ids).collect();
        assert_eq!(found, expected, "{}", case.name);
    }
}

#[test]
fn shared_prompts_end_where_trl_ends_them() {
    for case in read("implicit_prompt.json")["cases"].as_array().expect("cases") {
        let side = |value: &Value| match value {
            Value::String(text) => Content::Text(text.clone()),
            list => Content::Messages(serde_json::from_value::<Vec<Message>>(list.clone()).expect("messages")),
        };
        let (chosen, rejected) = (side(&case["row"]["chosen"]), side(&case["row"]["rejected"]));
        let found = split_shared_prompt(&chosen, &rejected, ImplicitPrompt::Trl).expect("a prompt");
        let expected = &case["expected"];
        let same = |found: &Content, expected_side: &Value| match (found, expected_side) {
            (Content::Messages(found), Value::Array(list)) if list.is_empty() => assert!(found.is_empty()),
            _ => assert_eq!(*found, side(expected_side), "{}", case["row"]),
        };
        same(&found.0, &expected["prompt"]);
        same(&found.1, &expected["chosen"]);
        same(&found.2, &expected["rejected"]);
    }
}
