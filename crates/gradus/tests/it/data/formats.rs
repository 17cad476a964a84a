//! The same rows from every format.

use std::sync::Arc;

use gradus::data::{
    Content, Form, Format, ImplicitPrompt, LoadOptions, Message, Need, RowData, RowKind, Target, convert, load, open,
    write_rows,
};
use gradus::files::output::OutputFile;
use parquet::data_type::DoubleType;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use serde_json::{Map, Value, json};

use super::{Folder, gzip};

fn rows() -> Vec<Map<String, Value>> {
    let rows = [
        json!({"prompt": "a,\"b\"\nc", "chosen": "ä 漢", "rejected": "", "margin": 0.5, "id": 1, "tags": ["x", "y"]}),
        json!({"prompt": " ", "chosen": "yes", "rejected": "no", "margin": 2.0, "id": 2, "tags": []}),
        json!({"prompt": "[not json", "chosen": "1", "rejected": "2", "margin": null, "id": 3, "tags": null}),
    ];
    rows.into_iter().filter_map(|row| row.as_object().cloned()).collect()
}

#[test]
fn every_format_reads_what_it_wrote() {
    let folder = Folder::new();
    let mut first: Option<Vec<RowData>> = None;
    for name in ["a.jsonl", "a.json", "a.csv", "a.tsv", "a.parquet", "a.arrow"] {
        for suffix in ["", ".gz"] {
            let path = folder.path(&format!("{name}{suffix}"));
            let format = write_rows(&OutputFile::new(&path).unwrap(), &rows()).unwrap();
            let dataset = load(&path.to_string_lossy(), &LoadOptions::default()).unwrap();
            assert_eq!(dataset.format, Some((format, !suffix.is_empty())), "{name}{suffix}");
            assert_eq!(dataset.kind, RowKind::Preference);
            let data: Vec<RowData> = dataset.rows.iter().map(|row| row.data.clone()).collect();
            assert_eq!(data, *first.get_or_insert_with(|| data.clone()), "{name}{suffix}");
        }
    }
}

#[test]
fn parquet_keeps_nested_values() {
    let folder = Folder::new();
    let rows: Vec<Map<String, Value>> = [
        json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "n": {"k": 1, "l": [1.5]}}),
        json!({"messages": [{"role": "user", "content": "c"}], "n": {"k": null, "l": []}}),
        json!({"messages": [], "n": null}),
        json!({"messages": [{"role": "user", "content": "d"}, {"role": "tool", "content": ""}], "n": {"k": 4, "l": [1.0, 2.0]}}),
    ]
    .into_iter()
    .filter_map(|row| row.as_object().cloned())
    .collect();
    let path = folder.path("nested.parquet");
    write_rows(&OutputFile::new(&path).unwrap(), &rows).unwrap();
    let read: Vec<Map<String, Value>> = open(&path).unwrap().map(|row| row.unwrap().columns).collect();
    assert_eq!(read, rows);
}

#[test]
fn a_number_that_is_not_finite_does_not_become_null() {
    let folder = Folder::new();
    let write = |schema: &str, value: f64| {
        let path = folder.path("numbers.parquet");
        let schema = Arc::new(parse_message_type(schema).unwrap());
        let mut writer =
            SerializedFileWriter::new(std::fs::File::create(&path).unwrap(), schema, Arc::default()).unwrap();
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<DoubleType>().write_batch(&[1.5, value], None, None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
        writer.close().unwrap();
        open(&path).unwrap().map(|row| row.map(|row| row.columns)).collect::<Vec<_>>()
    };
    for (schema, name) in [
        ("message rows { required double margin; }", "margin"),
        ("message rows { required group meta { required double margin; } }", "meta"),
    ] {
        let rows = write(schema, 2.5);
        assert!(rows.iter().all(Result::is_ok), "{rows:?}");
        for value in [f64::NAN, f64::INFINITY] {
            let rows = write(schema, value);
            assert!(rows[0].is_ok(), "{rows:?}");
            let message = rows[1].as_ref().expect_err("no number of JSON").to_string();
            assert!(message.contains(&format!("column `{name}` holds a number that is not finite")), "{message}");
        }
    }
}

#[test]
fn the_format_is_found_in_the_content() {
    let folder = Folder::new();
    let line = b"{\"text\": \"a\"}\n";
    for (name, content, format) in [
        ("rows", line.to_vec(), Format::JsonLines),
        ("rows.json", line.to_vec(), Format::JsonLines),
        ("rows.jsonl", b" [{\"text\": \"a\"}]".to_vec(), Format::JsonArray),
        ("rows.jsonl", gzip(line), Format::JsonLines),
        ("rows.json", [&[0xef, 0xbb, 0xbf], &line[..]].concat(), Format::JsonLines),
        ("rows.csv", b"text\na\n".to_vec(), Format::Csv),
        ("rows.jsonl", b"{\"text\": \"a\"}\r\n\r\n".to_vec(), Format::JsonLines),
    ] {
        let dataset = folder.load(name, content);
        assert_eq!(dataset.format.map(|found| found.0), Some(format), "{name}");
        assert_eq!(dataset.rows[0].data, RowData::Text("a".into()), "{name}");
    }
}

#[test]
fn rows_know_their_lines() {
    let folder = Folder::new();
    let lines = |name: &str, content: &str| -> Vec<usize> {
        folder.load(name, content).rows.iter().map(|row| row.location.line).collect()
    };
    assert_eq!(lines("a.jsonl", "{\"text\": \"a\"}\n\n{\"text\": \"b\"}"), [1, 3]);
    assert_eq!(lines("a.json", "[\n{\n\"text\": \"a\"\n},\n\n{\"text\": \"b\"}]"), [2, 6]);
    assert_eq!(lines("a.csv", "text\n\"a\nb\"\nc\n"), [2, 4]);
}

#[test]
fn directories_are_read_in_name_order() {
    let folder = Folder::new();
    folder.write("d/b.jsonl", "{\"text\": \"2\"}\n");
    folder.write("d/a.json", "[{\"text\": \"1\"}]");
    folder.write("d/sub/c.csv", "text\n3\n");
    folder.write("d/README.md", "# no rows");
    folder.write("d/dataset_info.json", "{}");
    let dataset = load(&folder.path("d").to_string_lossy(), &LoadOptions::default()).unwrap();
    let texts: Vec<RowData> = dataset.rows.into_iter().map(|row| row.data).collect();
    assert_eq!(texts, ["1", "2", "3"].map(|t| RowData::Text(t.into())));
}

#[test]
fn foreign_forms_are_recognized() {
    let folder = Folder::new();
    let kind = |content: &str| folder.load("a.jsonl", content).kind;
    assert_eq!(kind(r#"{"conversations": [{"from": "human", "value": "a"}]}"#), RowKind::ShareGpt);
    assert_eq!(kind(r#"{"instruction": "a", "input": "", "output": "b"}"#), RowKind::Alpaca);
    assert_eq!(kind(r#"{"question": "a", "answer": "b"}"#), RowKind::QuestionAnswer);
    assert_eq!(kind(r#"{"chosen": "a", "rejected": "b"}"#), RowKind::ImplicitPreference);
    assert_eq!(kind(r#"{"prompt": "a", "answer": "b"}"#), RowKind::Prompt);
    assert_eq!(kind(r#"{"chosen_input_ids": [1], "rejected_input_ids": [2]}"#), RowKind::TokenPreference);
    assert_eq!(kind(r#"{"prompt": "p", "text": "t"}"#), RowKind::Text);
    let path = folder.path("a.jsonl").to_string_lossy().into_owned();
    assert_eq!(load(&path, &LoadOptions::needing(Need::Prompt)).unwrap().kind, RowKind::Prompt);
}

#[test]
fn rows_that_fit_several_forms_are_read_for_their_purpose() {
    let folder = Folder::new();
    let turns = json!([{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]);
    let passages = json!([{"wikipage": "w", "content": "c"}]);
    let pair = json!({"prompt": "p", "completion": "c", "chosen": "x", "rejected": "y"});
    let labeled = json!({"prompt": "p", "completion": "c", "label": true, "chosen": "x", "rejected": "y"});
    for (need, row, kind, over) in [
        (
            Need::Prompt,
            json!({"prompt": "p", "messages": turns}),
            RowKind::Prompt,
            Some("`prompt` takes precedence over `messages`"),
        ),
        (
            Need::Prompt,
            json!({"prompt": "p", "question": "q", "passages": passages, "answer": ["a"]}),
            RowKind::Prompt,
            Some("`prompt` takes precedence over `question` + `passages` + `answer`"),
        ),
        // What is no conversation is a column like any other.
        (Need::Prompt, json!({"prompt": "p", "messages": "none"}), RowKind::Prompt, Some("`messages`")),
        (Need::Prompt, json!({"messages": turns}), RowKind::Messages, None),
        (Need::Prompt, json!({"prompt": "p", "completion": "c"}), RowKind::PromptCompletion, None),
        (Need::Prompt, json!({"prompt": "p", "chosen": "x", "rejected": "y"}), RowKind::Preference, None),
        (
            Need::Sft,
            pair.clone(),
            RowKind::PromptCompletion,
            Some("`prompt` + `completion` takes precedence over `prompt` + `chosen`"),
        ),
        (
            Need::Sft,
            json!({"prompt": "p", "completion": "c", "messages": turns}),
            RowKind::PromptCompletion,
            Some("to read `messages` instead, leave out `prompt` + `completion`"),
        ),
        (Need::Sft, json!({"chosen": "x", "rejected": "y"}), RowKind::ImplicitPreference, None),
        (Need::Score, json!({"chosen": "x", "rejected": "y"}), RowKind::ImplicitPreference, None),
        (Need::Score, json!({"conversations": [{"from": "human", "value": "q"}]}), RowKind::ShareGpt, None),
        (Need::Score, json!({"instruction": "q", "output": "a"}), RowKind::Alpaca, None),
        (Need::Unpaired, labeled.clone(), RowKind::Unpaired, Some("leave out `completion` + `label`")),
        (Need::Preference, labeled, RowKind::Preference, None),
        (Need::Any, pair, RowKind::Preference, None),
    ] {
        let path = folder.write("a.jsonl", row.to_string());
        let dataset = load(&path, &LoadOptions::needing(need)).unwrap();
        assert_eq!(dataset.kind, kind, "{need:?}: {row}");
        match over {
            Some(part) => assert!(dataset.remarks[0].contains(part), "{need:?}: {row}: {:?}", dataset.remarks),
            None => assert!(dataset.remarks.is_empty(), "{need:?}: {row}: {:?}", dataset.remarks),
        }
    }
    // A label is about `completion`, not about the conversation.
    let row = json!({"prompt": "p", "completion": "c", "messages": turns, "label": true});
    let path = folder.write("a.jsonl", row.to_string());
    let text = |text: &str| Content::Text(text.into());
    let expected = RowData::Unpaired { prompt: text("p"), completion: text("c"), is_desirable: true };
    assert_eq!(load(&path, &LoadOptions::needing(Need::Unpaired)).unwrap().rows[0].data, expected);
}

#[test]
fn columns_can_be_read_under_other_names() {
    let folder = Folder::new();
    let path = folder.write("a.jsonl", r#"{"question": "a", "response_j": "b", "response_k": "c", "date": "d"}"#);
    let rename = [("question", "prompt"), ("response_j", "chosen"), ("response_k", "rejected")];
    let rename = rename.map(|(from, to)| (from.to_owned(), to.to_owned())).to_vec();
    let dataset = load(&path, &LoadOptions { rename, ..LoadOptions::needing(Need::Preference) }).unwrap();
    assert_eq!(dataset.kind, RowKind::Preference);
    assert_eq!(dataset.rows[0].columns.keys().collect::<Vec<_>>(), ["date"]);
}

#[test]
fn transcripts_convert_to_prompts_and_messages() {
    let folder = Folder::new();
    let pair = json!({
        "chosen": "\n\nHuman: Tea?\n\nAssistant: Yes.\n\nHuman: Sugar?\n\nAssistant: No.",
        "rejected": "\n\nHuman: Tea?\n\nAssistant: Yes.\n\nHuman: Sugar?\n\nAssistant: Never.", "id": 7,
    });
    let row = &folder.load("hh.jsonl", pair.to_string()).rows[0];
    let make = |target, form| Value::Object(convert(row, target, form, ImplicitPrompt::Turns).unwrap());
    assert_eq!(
        make(Target::Same, Form::AsIs),
        json!({
            "prompt": "\n\nHuman: Tea?\n\nAssistant: Yes.\n\nHuman: Sugar?\n\nAssistant:",
            "chosen": " No.", "rejected": " Never.", "id": 7,
        })
    );
    let turn = |role: &str, content: &str| json!({"role": role, "content": content});
    let prompt = [turn("user", "Tea?"), turn("assistant", "Yes."), turn("user", "Sugar?")];
    assert_eq!(
        make(Target::Preference, Form::Messages),
        json!({
            "prompt": prompt, "chosen": [turn("assistant", "No.")], "rejected": [turn("assistant", "Never.")], "id": 7,
        })
    );
    let [a, b, c] = prompt;
    assert_eq!(make(Target::Messages, Form::AsIs), json!({"messages": [a, b, c, turn("assistant", "No.")], "id": 7}));
    assert_eq!(make(Target::Text, Form::AsIs)["text"], pair["chosen"]);
}

#[test]
fn messages_convert_to_text() {
    let folder = Folder::new();
    let row = &folder
        .load("a.jsonl", r#"{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}"#)
        .rows[0];
    let made = convert(row, Target::PromptCompletion, Form::Text, ImplicitPrompt::Turns).unwrap();
    assert_eq!(Value::Object(made), json!({"prompt": "\n\nHuman: a\n\nAssistant:", "completion": " b"}));
    let prompt = folder.load("p.jsonl", r#"{"prompt": "a"}"#).rows.remove(0);
    assert_eq!(prompt.data, RowData::Prompt(Content::Text("a".into())));
    let made = convert(&prompt, Target::Prompt, Form::Messages, ImplicitPrompt::Turns).unwrap();
    assert_eq!(made["prompt"], json!([Message::new("user", "a")]));
    let error = convert(&prompt, Target::Preference, Form::AsIs, ImplicitPrompt::Turns).unwrap_err();
    assert_eq!(error, "holds no pair of answers");
}
