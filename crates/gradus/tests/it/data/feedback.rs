//! Fine-grained feedback: rejected rows, and QA-Feedback's development split compared to the output of
//! FineGrainedRLHF's own scripts (tools/parity/feedback.py).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::path::Path;

use gradus::data::feedback::{
    ErrorKind, Feedback, FeedbackCounts, Joined, Preference, SEPARATOR, SegmentForm, conflicts, coverage_preferences,
    information, join, preference_rows, segment_labels, segment_row,
};
use gradus::data::{Dataset, LoadOptions, Need, Row, RowData, RowKind, lint, lint_join, load};
use gradus::text::{Level, RuleSplitter, SentenceSplitter, segments};
use serde_json::{Value, json};

use super::Folder;
use crate::support::material;

/// A handwritten row.
fn row() -> Value {
    json!({
        "question": "Who sings before the tea is poured?",
        "passages": [["Tea", "The kettle sings before the tea is poured.", "The cup is warm."], ["Cups", "A cup holds tea."]],
        "gold": "The kettle sings.",
        "prediction 1": "The kettle sings, and the small grey cup is very cold. Näh.",
        "prediction 2": "The kettle.",
        "prediction 3": "The cup is warm.",
        "prediction 4": "Nobody sings.",
        "feedback": {
            "errors": [
                { "error type": "Irrelevant", "explanation": "", "start": 18, "end": 54 },
                { "error type": "Unverifiable", "explanation": "", "start": 55, "end": 59 },
            ],
            "missing-info": [{ "error type": "Missing-Minor-Auxiliary", "passage_id": 1, "sentence_id": [2, 0] }],
            "corrected-prediction": "The kettle sings before the tea is poured. The cup is warm.",
        },
        "preference": [1, 1, 0, 2, 1, 1],
    })
}

fn loaded(value: &Value) -> (Dataset, Folder) {
    let folder = Folder::new();
    let dataset = folder.load("feedback.json", json!([value]).to_string());
    (dataset, folder)
}

fn feedback(row: &Row) -> &Feedback {
    let RowData::Feedback(feedback) = &row.data else { panic!("a row with feedback") };
    feedback
}

#[test]
fn offsets_count_characters_and_become_bytes() {
    let (dataset, _folder) = loaded(&row());
    assert_eq!(dataset.kind, RowKind::Feedback);
    let feedback = feedback(&dataset.rows[0]);
    let spans: Vec<&str> = feedback.errors.iter().map(|error| &feedback.answers[0][error.bytes.clone()]).collect();
    assert_eq!(spans, ["and the small grey cup is very cold.", "Näh."]);
    assert_eq!(Value::Object(feedback.to_columns()), row(), "what is written is what was read");
}

#[test]
fn what_breaks_the_annotation_is_refused_with_its_place() {
    let span = |start: usize, end: usize| json!([{ "error type": "Irrelevant", "explanation": "", "start": start, "end": end }]);
    let two = json!([
        { "error type": "Irrelevant", "explanation": "", "start": 4, "end": 17 },
        { "error type": "Redundant", "explanation": "x", "start": 0, "end": 10 },
    ]);
    let missing = |passage: usize, sentences: Value| json!([{ "error type": "Missing-Answer", "passage_id": passage, "sentence_id": sentences }]);
    for (path, value, message) in [
        (
            "/feedback/errors",
            span(54, 60),
            "`feedback.errors[0]`: the span [54, 60] is not within the 59 characters of `prediction 1`",
        ),
        (
            "/feedback/errors",
            span(4, 4),
            "`feedback.errors[0]`: the span [4, 4] is not within the 59 characters of `prediction 1`",
        ),
        ("/feedback/errors", span(5, 10), "`feedback.errors[0]`: the span [5, 10] cuts a word: `ettle`"),
        ("/feedback/errors", span(4, 9), "`feedback.errors[0]`: the span [4, 9] cuts a word: `kettl`"),
        (
            "/feedback/errors",
            span(3, 10),
            "`feedback.errors[0]`: the span [3, 10] begins or ends with white space: ` kettle`",
        ),
        ("/feedback/errors", two, "`feedback.errors[1]` and `feedback.errors[0]` overlap in `kettle`"),
        (
            "/feedback/errors/0/error type",
            json!("Wrong"),
            "`feedback.errors[0].error type` is `Wrong`, expected one of `Irrelevant`, `Redundant`, `Incoherent`, \
             `Wrong-Grounding`, `Unverifiable`",
        ),
        ("/feedback/errors/0/start", json!(-1), "`feedback.errors[0].start` is -1, expected a whole number from 0"),
        (
            "/feedback/missing-info",
            missing(3, json!([1])),
            "`feedback.missing-info[0].passage_id` is 3, but passages are 1 to 2",
        ),
        (
            "/feedback/missing-info",
            missing(0, json!([1])),
            "`feedback.missing-info[0].passage_id` is 0, but passages are 1 to 2",
        ),
        (
            "/feedback/missing-info",
            missing(2, json!([0, 2])),
            "`feedback.missing-info[0].sentence_id` has 2, but sentences of passage 2 are 0 (its title) to 1",
        ),
        (
            "/feedback/missing-info",
            missing(1, json!([])),
            "`feedback.missing-info[0].sentence_id` is empty, expected one sentence or more",
        ),
        ("/preference", json!([1, 0, 2]), "`preference` has 3 entries, expected 6"),
        (
            "/preference/4",
            json!(3),
            "`preference[4]` is 3, expected 1 (the first is better), 2 (the second) or 0 (neither)",
        ),
        ("/prediction 2", json!(null), "`prediction 2` is null, expected a string"),
        ("/passages/1", json!([]), "`passages[1]` is empty, expected a title and sentences"),
        ("/feedback", json!([]), "`feedback` is a list, expected an object"),
    ] {
        let mut broken = row();
        *broken.pointer_mut(path).expect("a key of the row") = value;
        let text = format!("[\n{},\n{broken}\n]", row());
        let found = Folder::new().error("a.json", text, &LoadOptions::default());
        assert_eq!(found, format!("a.json:3: {message}"));
    }
    let mut short = row();
    short.as_object_mut().expect("an object").remove("prediction 3");
    let found = Folder::new().error("a.json", json!([short]).to_string(), &LoadOptions::default());
    assert_eq!(found, "a.json:1: missing column `prediction 3` (row 1 of the array)");
}

#[test]
fn an_error_needs_no_comment() {
    let mut plain = row();
    *plain.pointer_mut("/feedback/errors/0/explanation").expect("a key of the row") = Value::Null;
    let (dataset, _folder) = loaded(&plain);
    assert_eq!(Value::Object(feedback(&dataset.rows[0]).to_columns()), row(), "the comment is empty");
}

/// Errors and comparisons may be annotated separately: annotations of errors alone have no preferences.
#[test]
fn errors_are_read_without_preferences() {
    let mut alone = row();
    alone.as_object_mut().expect("an object").shift_remove("preference");
    let (dataset, _folder) = loaded(&alone);
    let found = feedback(&dataset.rows[0]);
    assert_eq!((found.preferences, found.errors.len()), (None, 2));
    assert_eq!(Value::Object(found.to_columns()), alone, "what is written is what was read");
    let with = loaded(&row());
    let segments = |feedback: &Feedback| segment_row(feedback, 0, &SegmentForm::R1, &RuleSplitter);
    assert_eq!(segments(found), segments(feedback(&with.0.rows[0])));
    assert!(preference_rows(found).is_empty());
    assert!(lint(&dataset.rows, None, None, &gradus::data::TokenizeOptions::default()).is_empty());
    assert!(FeedbackCounts::of(&dataset.rows).expect("annotated rows").preferences.is_empty());
}

#[test]
fn rows_with_feedback_are_converted_before_they_teach() {
    for need in [Need::Sft, Need::Preference, Need::Prompt, Need::Score] {
        let found = Folder::new().error("a.json", json!([row()]).to_string(), &LoadOptions::needing(need));
        assert_eq!(found, "a.json:1: rows with feedback must be converted before training (row 1 of the array)");
    }
    let (dataset, _folder) = loaded(&row());
    let feedback = feedback(&dataset.rows[0]);
    let tags = |form: SegmentForm| segment_row(feedback, 7, &form, &RuleSplitter).expect("labels");
    let words = "question: Who sings before the tea is poured? answer: </s> The kettle sings, and the small grey cup is \
                 very cold. </s> Näh.";
    let words: Vec<&str> = words.split(' ').collect();
    let label = |(i, word): (usize, &&str)| match *word {
        SEPARATOR if i == 9 => "NF-ERR",
        SEPARATOR => "O",
        _ => "Ignore",
    };
    let labels: Vec<&str> = words.iter().enumerate().map(label).collect();
    let expected = json!({ "id": "7", "text": words, "feedback_tags": labels, "sentences": "gradus-rules-1" });
    assert_eq!(Value::Object(tags(SegmentForm::R1)), expected);
    // The first sentence has only an error of the other kind, so nothing is known of its facts.
    assert_eq!(segment_labels(feedback, &SegmentForm::R2, &RuleSplitter), ["Ignore", "F-ERR"]);
    let words = tags(SegmentForm::R2)["text"]
        .as_array()
        .expect("words")
        .iter()
        .filter_map(Value::as_str)
        .collect::<Vec<_>>()
        .join(" ");
    let prompt = "question: Who sings before the tea is poured? context: wikipage: Tea text: The kettle sings before the tea \
                  is poured. The cup is warm. wikipage: Cups text: A cup holds tea. answer:";
    assert!(words.starts_with(&format!("{prompt} {SEPARATOR} The kettle")), "{words}");
    let pairs = preference_rows(feedback);
    assert_eq!(pairs.len(), 5);
    assert_eq!(
        Value::Object(pairs[2].clone()),
        json!({
            "prompt": format!("{prompt} "), "chosen": "The cup is warm.", "rejected": "The kettle."
        })
    );
}

#[test]
fn coverage_leaves_out_what_matters_little_and_was_not_said() {
    let (dataset, _folder) = loaded(&row());
    let mut feedback = feedback(&dataset.rows[0]).clone();
    // `The cup is warm.` is the second sentence. It is of minor interest and not part of the first answer.
    assert_eq!(information(&feedback, &RuleSplitter), BTreeSet::from([(1, 1)]));
    feedback.answers[0] = "The cup is warm.".into();
    assert_eq!(information(&feedback, &RuleSplitter), BTreeSet::from([(1, 1), (1, 2)]));
    // `The kettle.` is close enough to the first sentence (20 of 21 characters), `The cup is warm.` is the second, and
    // `Nobody sings.` matches none.
    let found = coverage_preferences(&feedback, &RuleSplitter).expect("information");
    let (equal, first) = (Preference::Equal, Preference::First);
    assert_eq!(found, [equal, equal, first, equal, first, first]);
    feedback.corrected = String::new();
    assert_eq!(coverage_preferences(&feedback, &RuleSplitter), None);
}

/// Returns the development split, and the output of the original's scripts for it.
fn development() -> Option<(Dataset, Value)> {
    let path = material("qa_feedback/dev_feedback.json")?;
    let dataset = load(&path.to_string_lossy(), &LoadOptions::default()).expect("every row is sound");
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/feedback/dev.json");
    let fixture = serde_json::from_slice(&std::fs::read(fixture).expect("the fixture")).expect("JSON");
    Some((dataset, fixture))
}

/// spaCy's sentences of recorded texts.
#[derive(Debug, Default)]
struct Recorded(HashMap<String, Vec<usize>>);

impl SentenceSplitter for Recorded {
    fn name(&self) -> &'static str {
        "recorded"
    }

    fn split(&self, text: &str) -> Vec<Range<usize>> {
        let ends = self.0.get(text).unwrap_or_else(|| panic!("no sentences are known of `{text}`"));
        let bytes: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
        let mut start = 0;
        ends.iter().map(|&end| std::mem::replace(&mut start, bytes[end])..bytes[end]).collect()
    }
}

fn numbers(value: &Value) -> Vec<usize> {
    value.as_array().expect("a list").iter().map(|number| number.as_u64().expect("a number") as usize).collect()
}

/// Returns the texts of a row that have recorded sentences: its answers, and its correction with normalized white
/// space.
fn texts(feedback: &Feedback) -> Vec<String> {
    let corrected = feedback.corrected.split_whitespace().collect::<Vec<_>>().join(" ");
    feedback.answers.iter().cloned().chain([corrected]).collect()
}

impl Recorded {
    fn of(dataset: &Dataset, fixture: &Value) -> Self {
        let mut recorded = Self::default();
        for (row, ends) in dataset.rows.iter().zip(fixture["sentences"].as_array().expect("rows")) {
            for (text, ends) in texts(feedback(row)).into_iter().zip(ends.as_array().expect("texts")) {
                recorded.0.insert(text, numbers(ends));
            }
        }
        recorded
    }
}

#[test]
fn the_development_split_has_the_counts_of_its_description() {
    let Some((dataset, _)) = development() else { return };
    let tally = FeedbackCounts::of(&dataset.rows).expect("annotated rows");
    let kinds = |counts: &[(&'static str, usize)]| counts.iter().copied().collect::<BTreeMap<_, _>>();
    let errors =
        [("Irrelevant", 909), ("Redundant", 133), ("Incoherent", 16), ("Wrong-Grounding", 163), ("Unverifiable", 152)];
    assert_eq!(kinds(&tally.errors), errors.into());
    let missing = [("Missing-Answer", 240), ("Missing-Major-Auxiliary", 283), ("Missing-Minor-Auxiliary", 319)];
    assert_eq!(kinds(&tally.missing), missing.into());
    assert_eq!((tally.rows_without_errors, tally.rows_without_missing), (36, 121));
    assert_eq!((tally.rows_uncorrected, tally.rows_without_answer), (6, 13));
    let pairs: Vec<[usize; 3]> = tally.preferences.iter().map(|(_, counts)| *counts).collect();
    assert_eq!(pairs, [[261, 179, 60], [286, 158, 56], [271, 157, 72], [265, 169, 66], [267, 169, 64], [227, 207, 66]]);

    let rows: Vec<&Feedback> = dataset.rows.iter().map(feedback).collect();
    let with = |is: &dyn Fn(&Feedback) -> bool| rows.iter().filter(|row| is(row)).count();
    assert_eq!(with(&|row| row.errors.iter().any(|error| error.kind.is_factual())), 198);
    assert_eq!(with(&|row| row.errors.iter().any(|error| !error.kind.is_factual())), 417);
    let words = |row: &Feedback, bytes: &Range<usize>| row.answers[0][bytes.clone()].split_whitespace().count();
    let is_long =
        |row: &Feedback| row.errors.iter().any(|error| !error.kind.is_factual() && words(row, &error.bytes) >= 5);
    assert_eq!(with(&is_long), 410);
    let short = |kind| {
        rows.iter()
            .flat_map(|row| row.errors.iter().map(|error| (error.kind, words(row, &error.bytes))))
            .filter(|(of, words)| *of == kind && *words < 5)
            .count()
    };
    use ErrorKind::{Incoherent, Irrelevant, Redundant, Unverifiable, WrongGrounding};
    assert_eq!([Irrelevant, Redundant, Incoherent, WrongGrounding, Unverifiable].map(short), [100, 22, 11, 90, 41]);
    let mut by_errors = [0; 11];
    rows.iter().for_each(|row| by_errors[row.errors.len()] += 1);
    assert_eq!(by_errors, [36, 84, 118, 120, 73, 38, 16, 9, 3, 2, 1]);
    let ids: Vec<usize> = rows.iter().flat_map(|row| &row.missing).map(|missing| missing.sentences.len()).collect();
    assert_eq!([1, 2, 3].map(|n| ids.iter().filter(|&&of| of == n).count()), [821, 19, 2]);
    assert_eq!(with(&|row| row.errors.is_empty() && row.missing.is_empty()), 6);
    assert_eq!(with(&|row| row.preferences == Some([Preference::Equal; 6])), 12);
    assert_eq!(with(&|row| row.preferences.as_ref().and_then(conflicts).is_some()), 0);
    assert!(lint(&dataset.rows, None, None, &gradus::data::TokenizeOptions::default()).is_empty());
    assert_eq!(rows.iter().map(|row| preference_rows(row).len()).sum::<usize>(), 1577 + 1039);
}

#[test]
fn questions_are_joined_and_prompts_made_anew() {
    let Some((dataset, _)) = development() else { return };
    let Some(path) = material("qa_feedback/dev.json") else { return };
    let split =
        load(&path.to_string_lossy(), &LoadOptions::needing(Need::Prompt)).expect("every prompt is as its row says");
    assert_eq!((split.kind, split.rows.len()), (RowKind::Grounded, 500));
    let mut passages = [0; 5];
    let (mut same, mut with_bars) = (0, 0);
    let joined = join(&dataset.rows, &split.rows);
    assert!(lint_join(&dataset.rows, &split.rows).is_empty());
    for (row, joined) in dataset.rows.iter().zip(&joined) {
        let Joined::Row(found) = joined else { panic!("{}: {joined:?}", row.location) };
        let of_split = &split.rows[*found];
        passages[of_split.columns["passages"].as_array().expect("passages").len()] += 1;
        let RowData::PromptCompletion { prompt, .. } = &of_split.data else { panic!("a prompt") };
        let trained_on = feedback(row).prompt();
        same += usize::from(of_split.columns["reward_prompt"] == json!(trained_on));
        with_bars += usize::from(prompt.plain().split_whitespace().eq(trained_on.split_whitespace()));
    }
    assert_eq!(passages, [2, 93, 168, 228, 9]);
    // Twelve passages lost white space when they were split into sentences.
    assert_eq!((with_bars, same), (91, 489));
}

#[test]
fn rules_find_spacys_boundaries() {
    let Some((dataset, fixture)) = development() else { return };
    let recorded = Recorded::of(&dataset, &fixture);
    let (mut both, mut rules, mut spacy) = (0, 0, 0);
    for text in dataset.rows.iter().flat_map(|row| texts(feedback(row))).filter(|text| !text.is_empty()) {
        // Compared by the word that begins the next sentence.
        let starts = |ranges: Vec<Range<usize>>| -> BTreeSet<usize> {
            let next =
                |range: &Range<usize>| range.start + text[range.clone()].len() - text[range.clone()].trim_start().len();
            ranges.iter().skip(1).map(next).collect()
        };
        let (found, expected) = (starts(RuleSplitter.split(&text)), starts(recorded.split(&text)));
        both += found.intersection(&expected).count();
        rules += found.len();
        spacy += expected.len();
    }
    let [precision, recall] = [both as f64 / rules as f64, both as f64 / spacy as f64];
    assert!(
        spacy > 5000 && precision >= 0.99 && recall >= 0.99,
        "{both} of {rules} and {spacy}: {precision}, {recall}"
    );
}

#[test]
fn with_spacys_sentences_everything_is_what_the_original_makes() {
    let Some((dataset, fixture)) = development() else { return };
    let spacy = Recorded::of(&dataset, &fixture);
    let (mut kept, mut compared) = ([0; 3], [0; 3]);
    for (i, row) in dataset.rows.iter().enumerate() {
        let feedback = feedback(row);
        let text = &feedback.answers[0];
        let starts =
            segments(&spacy, text, Level::SubSentence).into_iter().map(|range| text[..range.start].chars().count());
        let expected = numbers(&fixture["sub_sentences"][i]);
        assert_eq!(starts.chain([text.chars().count()]).collect::<Vec<_>>(), expected, "{}", row.location);
        for (form, name) in [(SegmentForm::R1, "r1"), (SegmentForm::R2, "r2")] {
            let found = segment_row(feedback, i, &form, &spacy).map(|made| {
                let labels = segment_labels(feedback, &form, &spacy)
                    .iter()
                    .map(|label| label[..1].to_owned())
                    .collect::<String>();
                json!([labels, made["text"].as_array().expect("words").len()])
            });
            assert_eq!(found.clone().unwrap_or(Value::Null), fixture[name][i], "{name} of {}", row.location);
            kept[usize::from(name == "r2")] += usize::from(found.is_some());
        }
        let found = coverage_preferences(feedback, &spacy).map(|preferences| preferences.map(Preference::number));
        kept[2] += usize::from(found.is_some());
        found.iter().flatten().for_each(|&number| compared[usize::from(number)] += 1);
        assert_eq!(found.map_or(Value::Null, |found| json!(found)), fixture["r3"][i], "r3 of {}", row.location);
    }
    assert_eq!(kept[..2], [500, 436]);
    assert!(kept[2] > 430 && compared[0] > compared[1] && compared[1] > compared[2], "{kept:?} {compared:?}");
}

#[test]
fn with_rules_the_files_are_what_they_should_be() {
    let Some((dataset, _)) = development() else { return };
    let mut counts: [BTreeMap<&str, usize>; 2] = Default::default();
    let mut rows = [0; 2];
    let (mut covered, mut compared) = (0, [0; 3]);
    for (i, row) in dataset.rows.iter().enumerate() {
        let feedback = feedback(row);
        for (k, form) in [SegmentForm::R1, SegmentForm::R2].into_iter().enumerate() {
            let labels = segment_labels(feedback, &form, &RuleSplitter);
            let made = segment_row(feedback, i, &form, &RuleSplitter);
            assert_eq!(made.is_none(), labels.iter().all(|label| *label == "Ignore"), "{}", row.location);
            let Some(made) = made else { continue };
            let list = |name: &str| {
                made[name].as_array().expect("a list").iter().filter_map(Value::as_str).collect::<Vec<_>>()
            };
            let (words, tags) = (list("text"), list("feedback_tags"));
            assert_eq!(words.len(), tags.len());
            let at_separators: Vec<&str> =
                words.iter().zip(&tags).filter(|(word, _)| **word == SEPARATOR).map(|(_, tag)| *tag).collect();
            assert_eq!(at_separators, labels, "{}", row.location);
            assert!(
                words.iter().zip(&tags).all(|(word, tag)| *word == SEPARATOR || *tag == "Ignore"),
                "{}",
                row.location
            );
            rows[k] += 1;
            labels.into_iter().for_each(|label| *counts[k].entry(label).or_default() += 1);
        }
        if let Some(found) = coverage_preferences(feedback, &RuleSplitter) {
            covered += 1;
            found.into_iter().for_each(|preference| compared[usize::from(preference.number())] += 1);
        }
    }
    assert_eq!(rows, [500, 436]);
    // Within a few percent of the result of a regular expression: 2,699 segments with 50.4 % errors; 522, 618 and 282.
    let near = |found: usize, expected: usize| found.abs_diff(expected) * 20 <= expected;
    let of = |k: usize, label: &str| counts[k].get(label).copied().unwrap_or(0);
    assert!(near(of(0, "NF-ERR"), 1360) && near(of(0, "O"), 1339) && of(0, "Ignore") == 0, "{counts:?}");
    assert!(near(of(1, "O"), 522) && near(of(1, "Ignore"), 618) && near(of(1, "F-ERR"), 282), "{counts:?}");
    assert!(near(covered, 441) && near(compared[0], 1538), "{covered} {compared:?}");
}
