//! Words with one label each: rejected rows, findings of the linter, and files for reward models of segments.

use std::fmt::Write as _;

use gradus::data::feedback::{SegmentForm, segment_row};
use gradus::data::{
    Dataset, FindingKind, LabelForm, LabelKind, LabelTotals, LoadOptions, Need, RowData, RowKind, TextForm,
    TokenizeOptions, labeled_examples, lint, load,
};
use gradus::text::{Cut, RuleSplitter, Tokenizer};
use serde_json::{Value, json};

use super::Folder;
use crate::support::material;

fn found(rows: &[Value]) -> Vec<(usize, String)> {
    let folder = Folder::new();
    let text: String = rows.iter().map(|row| format!("{row}\n")).collect();
    let dataset = folder.load("a.jsonl", text);
    assert_eq!(dataset.kind, RowKind::Words);
    let mut found = Vec::new();
    for group in lint(&dataset.rows, None, None, &TokenizeOptions::default()) {
        assert_eq!((group.kind, group.kind.is_remark()), (FindingKind::Labels, false));
        let message = |text: &str| text.replace(&format!("{}/", folder.0.path().display()), "");
        found.extend(group.first.iter().map(|one| (one.location.line, message(&one.message))));
    }
    found
}

fn segments(labels: &[(&str, &str)]) -> Value {
    let (words, tags): (Vec<&str>, Vec<&str>) = labels.iter().copied().unzip();
    json!({ "id": "0", "text": words, "feedback_tags": tags, "sentences": "gradus-rules-1" })
}

const BEGIN: [(&str, &str); 2] = [("answer:", "Ignore"), ("</s>", "NF-ERR")];

#[test]
fn what_is_no_list_of_words_and_labels_is_refused_with_its_place() {
    let good = segments(&[("</s>", "O"), ("Tea.", "Ignore")]);
    for (bad, message) in [
        (json!({ "text": "Tea.", "feedback_tags": ["O"] }), "column `text` is a string, expected a list of words"),
        (json!({ "text": ["Tea."], "id": "1" }), "missing column `feedback_tags` (found `text`, `id`)"),
        (json!({ "id": "1" }), "missing column `text` (found `id`)"),
        (json!({ "text": ["Tea."], "feedback_tags": "O" }), "column `feedback_tags` is a string, expected a list"),
        (
            json!({ "text": ["Tea.", 3], "feedback_tags": ["O", "O"] }),
            "word 2 of `text` is a number, expected a string",
        ),
        (json!({ "text": [], "feedback_tags": [] }), "column `text` is an empty list, expected words"),
        (json!({ "text": ["a", "b"], "feedback_tags": ["O"] }), "`feedback_tags` has 1 labels for 2 words"),
        (
            json!({ "text": ["a", "b"], "feedback_tags": ["O", ["O"]] }),
            "label 2 of `feedback_tags` is [\"O\"], which is not a label",
        ),
        (json!({ "tokens": ["a"], "ner_tags": [0.5] }), "label 1 of `ner_tags` is 0.5, which is not a label"),
    ] {
        let error = Folder::new().error("a.jsonl", format!("{good}\n{bad}\n"), &LoadOptions::default());
        assert_eq!(error, format!("a.jsonl:2: {message}"));
    }
    // They can only train classifiers.
    for need in [Need::Sft, Need::Preference, Need::Prompt] {
        Folder::new().error("a.jsonl", good.to_string(), &LoadOptions::needing(need));
    }
}

#[test]
fn labels_of_segments_stand_at_the_separators_before_them() {
    let [begin, separator] = BEGIN;
    let good = segments(&[begin, separator, ("Tea,", "Ignore"), ("</s>", "O"), ("too.", "Ignore")]);
    assert_eq!(found(std::slice::from_ref(&good)), []);
    for (bad, message) in [
        (
            segments(&[begin, separator, ("Milk.", "O")]),
            "word 3 (`Milk.`) has the label `O`, but a segment's label belongs on the separator `</s>` before it",
        ),
        (
            segments(&[begin, separator, ("</s>", "O"), ("Milk.", "Ignore")]),
            "the segment after the separator at word 2 has no words",
        ),
        (
            segments(&[begin, separator, ("Milk.", "Ignore"), ("</s>", "O")]),
            "the segment after the separator at word 4 has no words",
        ),
        (
            segments(&[begin, ("</s>", "o"), ("Milk.", "Ignore")]),
            "the label `o` is none of `NF-ERR`, `F-ERR`, `O`, `Ignore`",
        ),
        (segments(&[begin, ("Milk.", "Ignore")]), "there is no segment: no word is the separator `</s>`"),
        (
            segments(&[begin, ("</s>", "Ignore"), ("Milk.", "Ignore")]),
            "the row has no effect: none of its words has a label that counts",
        ),
        (
            segments(&[begin, ("</s>", "F-ERR"), ("Milk.", "Ignore")]),
            "a segment has the label `F-ERR` in a file of `NF-ERR` (a.jsonl:1)",
        ),
        (
            segments(&[begin, ("</s>", "Ignore"), ("Milk.", "Ignore"), ("</s>", "O"), ("Oats.", "Ignore")]),
            "a segment has the label `Ignore` in a file of `NF-ERR` (a.jsonl:1)",
        ),
    ] {
        assert_eq!(found(&[good.clone(), bad]), [(2, message.to_owned())]);
    }
    let mut other = segments(&[begin, ("</s>", "O"), ("Milk.", "Ignore")]);
    other["sentences"] = json!("spacy");
    let message = "`sentences` is `spacy`, but `gradus-rules-1` at a.jsonl:1: one model cannot be trained on two ways \
         to split texts";
    assert_eq!(found(&[good.clone(), other]), [(2, message.to_owned())]);
    // Segments of factuality may be ignored.
    let facts = segments(&[begin, ("</s>", "F-ERR"), ("Milk.", "Ignore"), ("</s>", "Ignore"), ("Oats.", "Ignore")]);
    assert_eq!(found(&[facts]), []);
}

#[test]
fn labels_of_words_may_be_names_or_numbers() {
    let rows = [
        json!({ "tokens": ["Ann", "sings", "."], "ner_tags": [1, 0, -100], "id": 4 }),
        json!({ "tokens": ["Bo", "", "."], "ner_tags": [1, null, 0], "id": 5 }),
    ];
    assert_eq!(found(&rows), []);
    let blank = json!({ "tokens": ["Bo", " "], "ner_tags": [1, 0] });
    assert_eq!(found(&[blank]), [(1, "word 2 is blank, so its label has no effect".into())]);
    let none = json!({ "tokens": ["Bo", "."], "tags": [null, -100] });
    assert_eq!(found(&[none]), [(1, "the row has no effect: none of its words has a label that counts".into())]);
    let dataset = Folder::new().load("a.jsonl", rows.map(|row| row.to_string()).join("\n"));
    let tally = LabelTotals::of(&dataset.rows).expect("labels");
    let labels = [("-100", 1), ("0", 2), ("1", 2), ("null", 1)].map(|(label, n)| (label.to_owned(), n));
    assert_eq!((tally.unit, tally.units, tally.labels), ("words", 6, labels.to_vec()));
}

#[test]
fn rows_that_teach_nothing_are_left_out_with_the_reason() {
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/encoders/bert-token");
    let tokenizer = Tokenizer::from_dir(&directory).expect("a tokenizer");
    let at_the_end: Vec<Option<u8>> = (0..30).map(|i| (i == 29).then_some(1)).collect();
    let rows = [
        json!({ "tokens": vec!["tea"; 30], "ner_tags": at_the_end }),
        json!({ "tokens": ["tea"], "ner_tags": [null] }),
        json!({ "tokens": ["tea"], "ner_tags": [0] }),
    ];
    let made = |rows: &[Value]| {
        let folder = Folder::new();
        let path = folder.write("a.jsonl", rows.iter().map(|row| format!("{row}\n")).collect::<String>());
        let rows = load(&path, &LoadOptions::needing(Need::Columns)).expect("good input").rows;
        let text = TextForm { cut: Some(Cut::Right(20)), ..TextForm::default() };
        let form = LabelForm { text, kind: LabelKind::Tokens, column: None, ignored: None };
        let options = TokenizeOptions { max_length: Some(20), ..TokenizeOptions::default() };
        labeled_examples(&rows, &tokenizer, &form, &["O".to_owned(), "TEA".into()], &[1.0, 1.0], &options)
    };
    let remarks = made(&rows).expect("one row remains").counts.remarks();
    assert_eq!(
        remarks,
        [
            "1 of 3 rows left out: the cut removed every token with loss",
            "1 of 3 rows left out: no token has a label or counts in the loss",
        ]
    );
    let error = made(&rows[1..2]).expect_err("no row remains");
    assert!(error.to_string().ends_with("no row has a token with loss"), "{error}");
    assert_eq!(error.hint(), Some("check the column of the labels, or the loss mask"));
    let error = made(&rows[..1]).expect_err("no row remains");
    assert!(error.to_string().contains("longer than 20 tokens (`max_length`)"), "{error}");
}

#[test]
fn the_files_of_relevance_and_factuality_are_read_back() {
    let Some(path) = material("qa_feedback/dev_feedback.json") else { return };
    let feedback = load(&path.to_string_lossy(), &LoadOptions::default()).expect("every row is sound");
    for (form, rows, labels) in [(SegmentForm::R1, 500, 2), (SegmentForm::R2, 436, 3)] {
        let mut text = String::new();
        for (i, row) in feedback.rows.iter().enumerate() {
            let RowData::Feedback(feedback) = &row.data else { panic!("a row with feedback") };
            if let Some(made) = segment_row(feedback, i, &form, &RuleSplitter) {
                writeln!(text, "{}", Value::Object(made)).expect("memory");
            }
        }
        let dataset: Dataset = Folder::new().load("a.jsonl", &text);
        assert_eq!((dataset.kind, dataset.rows.len()), (RowKind::Words, rows));
        assert_eq!(lint(&dataset.rows, None, None, &TokenizeOptions::default()), []);
        let tally = LabelTotals::of(&dataset.rows).expect("labels");
        let separators = text.matches("\"</s>\"").count();
        assert_eq!((tally.unit, tally.units, tally.labels.len()), ("segments", separators, labels));
    }
}
