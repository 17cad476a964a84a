//! Text metrics compared with their reference tools: sacreBLEU, rouge_score, py-rouge, NLTK, coco's scorers. The rows are hand-written
//! sentences, edge cases, and rows of data sets, of which the fixture holds only numbers.

#![allow(clippy::disallowed_methods, reason = "tests read the environment")]

use std::io::Read as _;
use std::path::{Path, PathBuf};

use gradus_metrics::{
    Bleu, BleuTotto, Chrf, Cider, Dates, Distinct, Diversity, ExactMatch, IncreasingNumbers, Measure, Meteor, Metric,
    Parent, Porter, Rouge, RougeLMax, Row, SacreBleu, Spice, Ter, TokenF1, WordNet, detokenize, spacy, stanford,
};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use cases::{list, text};
use material::material;

#[path = "support/cases.rs"]
mod cases;
#[path = "../../gradus/tests/support/material.rs"]
mod material;
#[path = "../../gradus/tests/support/skip.rs"]
mod skip;

/// Absolute tolerance: most values are between 0 and 1.
const TOLERANCE: f64 = 1e-6;

/// Returns the directory that `tools/parity/metrics.py` writes.
fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn read(name: &str) -> Value {
    let path = folder().join(format!("{name}.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).expect("JSON")
}

fn row(prediction: &str, references: &[&str]) -> Row {
    Row::new(prediction, references.iter().copied())
}

/// Creates the metric with options of the form `KEY=VALUE`.
fn metric(name: &str, options: &[&str]) -> Box<dyn Metric> {
    fn read<T: DeserializeOwned>(options: Map<String, Value>) -> T {
        serde_json::from_value(Value::Object(options)).expect("options")
    }
    let option = |option: &&str| {
        let (key, value) = option.split_once('=').expect("KEY=VALUE");
        let value = value.replace("FIXTURES", &folder().to_string_lossy());
        (key.to_owned(), serde_json::from_str(&value).unwrap_or(Value::String(value)))
    };
    let options: Map<String, Value> = options.iter().map(option).collect();
    let path = |key: &str| options.get(key).map(|path| Path::new(text(path)));
    match name {
        "bleu" => Box::new(Bleu::new(read(options)).expect("in bounds")),
        "sacre_bleu" => Box::new(SacreBleu::new(read(options)).expect("in bounds")),
        "chrf" => Box::new(Chrf::new(read(options)).expect("in bounds")),
        "ter" => Box::new(Ter::new(read(options))),
        "rouge" => Box::new(Rouge::new(read(options)).expect("readable")),
        "rouge_l_max" => Box::new(RougeLMax::new(read(options)).expect("readable")),
        "meteor" => Box::new(Meteor::new(read(options)).expect("readable")),
        "cider" => Box::new(Cider::new(read(options)).expect("readable")),
        "spice" => {
            let wordnet = path("wordnet").map(|path| WordNet::read(path).expect("readable"));
            Box::new(Spice::read(path("scene_graphs").expect("a file"), wordnet).expect("readable"))
        }
        "parent_totto" => Box::new(Parent::new(read(options))),
        "bleu_totto" => Box::new(BleuTotto::new(read(options))),
        "diversity" => Box::new(Diversity::new(read(options)).expect("readable")),
        "distinct" => Box::new(Distinct),
        "exact_match" => Box::new(ExactMatch),
        "token_f1" => Box::new(TokenF1),
        "dates" => Box::new(Dates),
        "increasing_numbers" => Box::new(IncreasingNumbers::new(read(options))),
        _ => panic!("no metric is called `{name}`"),
    }
}

/// Measures rows with the metric named in `words`, which also holds its options.
fn measured(words: &str, rows: &[Row]) -> Vec<(String, Measure)> {
    let words: Vec<&str> = words.split(' ').collect();
    let measures = metric(words[0], &words[1..]).measure(rows).expect("measurable");
    measures.into_iter().map(|measure| (measure.key(words[0]), measure)).collect()
}

fn check(file: &str, fixture: &Value, rows: &[Row]) -> usize {
    cases::check(TOLERANCE, file, fixture, rows, measured)
}

fn check_file(name: &str, least: usize) {
    let fixture = read(name);
    let of_row = |row: &Value| Row {
        prediction: text(&row["prediction"]).into(),
        references: list(&row["references"]).iter().map(|reference| text(reference).into()).collect(),
        ..Row::default()
    };
    let rows: Vec<Row> = list(&fixture["rows"]).iter().map(of_row).collect();
    let compared = check(name, &fixture, &rows);
    assert!(compared >= least, "only {compared} values were compared");
}

#[test]
fn metrics_of_our_own_sentences_are_those_of_the_tools() {
    check_file("own", 5000);
}

/// Uses an NLTK model, with prediction and reference in either order.
#[test]
fn rouge_of_sentences_is_that_of_the_tools() {
    check_file("sentences", 950);
}

#[test]
fn metrics_at_the_edges_are_those_of_the_tools() {
    check_file("edges", 700);
}

fn check_material(name: &str, rows: &[Row]) {
    let fixture = read(name);
    let count = fixture["count"].as_u64().expect("a count") as usize;
    assert!(count >= 200, "{name}: only {count} rows");
    let compared = check(name, &fixture, &rows[..count]);
    assert!(compared > count, "{name}: only {compared} values were compared");
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).expect("readable");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn gzip_lines(path: &Path) -> Vec<String> {
    let mut text = String::new();
    let file = std::fs::File::open(path).expect("readable");
    flate2::read::GzDecoder::new(file).read_to_string(&mut text).expect("UTF-8");
    text.split('\n').map(str::to_owned).collect()
}

#[test]
fn metrics_of_commongen_are_those_of_the_tools() {
    let Some(path) = material("commongen/commongen.dev.jsonl") else { return };
    let scenes = lines(&path).into_iter().map(|line| line["scene"].clone());
    let rows: Vec<Row> = scenes
        .filter(|scenes| list(scenes).len() > 1)
        .map(|scenes| {
            let texts: Vec<&str> = list(&scenes).iter().map(text).collect();
            row(texts[0], &texts[1..])
        })
        .collect();
    check_material("commongen", &rows);
}

#[test]
fn metrics_of_summaries_are_those_of_the_tools() {
    let Some(path) = material("tldr/instructgpt_tldr_samples.csv") else { return };
    let mut reader = csv::Reader::from_path(path).expect("readable");
    let headers = reader.headers().expect("a header").clone();
    let column = |name: &str| headers.iter().position(|header| header == name).expect("a column");
    let (sample, reference) = (column("sample"), column("ref_text"));
    let records = reader.records().step_by(5).map(|record| record.expect("a row"));
    let rows: Vec<Row> = records.map(|record| row(&record[sample], &[&record[reference]])).collect();
    check_material("tldr", &rows);
}

#[test]
fn metrics_of_translations_are_those_of_the_tools() {
    let Some(english) = material("multi30k_de_en/test_2016_flickr.en.gz") else { return };
    let Some(german) = material("multi30k_de_en/test_2016_flickr.de.gz") else { return };
    let (english, german) = (gzip_lines(&english), gzip_lines(&german));
    let rows: Vec<Row> = (0..300).map(|i| row(&english[i], &[&english[i + 1], &english[i + 2], &german[i]])).collect();
    check_material("multi30k", &rows);
}

#[test]
fn metrics_of_articles_are_those_of_the_tools() {
    let Some(path) = material("cnn_dailymail/qags_mturk_cnndm.jsonl") else { return };
    let of_article = |article: Value| {
        let sentences: Vec<&str> =
            list(&article["summary_sentences"]).iter().map(|sentence| text(&sentence["sentence"])).collect();
        let article: String = text(&article["article"]).replace(". ", ".\n").chars().take(500).collect();
        row(&sentences.join("\n"), &[&article])
    };
    let rows: Vec<Row> = lines(&path).into_iter().map(of_article).collect();
    check_material("cnn_dailymail", &rows);
}

#[test]
fn diversity_counts_words_and_runs_of_words() {
    // The words are a b a | a c . : six words, four distinct ones, three of which occur once. All bigrams are distinct.
    let found = measured("diversity window_size=2", &[row("a b a", &[]), row("a c.", &[])]);
    let value = |key: &str| found.iter().find(|(name, _)| *name == format!("diversity/{key}")).expect(key).1.value();
    // −Σ p log₂ p of 1/2, 1/6, 1/6, 1/6; −Σ ¼ log₂(¼ / p(x)) with p(a) = 1/2 twice, p(b) = p(c) = 1/6.
    let (entropy, conditional) = (0.5 + 0.5 * 6f64.log2(), -0.25 * 2.0 * (0.5f64.log2() + 1.5f64.log2()));
    for (key, expected) in [
        ("total_length", 6.0),
        ("mean_pred_length", 3.0),
        ("std_pred_length", 0.0),
        ("distinct-1", 4.0 / 6.0),
        ("vocab_size-1", 4.0),
        ("unique-1", 3.0),
        ("entropy-1", entropy),
        ("distinct-2", 1.0),
        ("unique-3", 2.0),
        ("cond_entropy-2", conditional),
        // The windows are: a b, a a, c .
        ("msttr-2", 0.83333),
        // Windows without the period: a b, a a. The fifth word fills no window.
        ("msttr-2_nopunct", 0.75),
        ("distinct-1-nopunct", 0.6),
        ("median_pred_length-nopunct", 2.5),
        ("std_pred_length-nopunct", 0.5),
    ] {
        assert!((value(key) - expected).abs() < 1e-12, "{key}: {} instead of {expected}", value(key));
    }
}

/// Expected values from GEM-metrics: the entropy of no n-grams is 0, and Python rounds a half to the even digit.
#[test]
fn diversity_at_its_edges() {
    let value = |metric: &str, text: &str, key: &str| {
        let found = measured(metric, &[row(text, &[])]);
        found.iter().find(|(name, _)| *name == format!("diversity/{key}")).expect(key).1.value()
    };
    // 31 windows with one distinct word and one window with two: (31 · 0.5 + 1) / 32 = 0.515625.
    let text = format!("{} b", ["a"; 63].join(" "));
    assert_eq!(value("diversity window_size=2", &text, "msttr-2"), 0.51562);
    for key in ["distinct-2", "entropy-1", "entropy-2", "cond_entropy-2"] {
        let found = value("diversity", "a", key);
        assert!(found == 0.0 && found.is_sign_positive(), "{key}: {found}");
    }
    assert_eq!(value("diversity", "", "distinct-1"), 0.0);
    assert!(value("diversity", "", "cond_entropy-2").is_nan());
}

/// A penalty above 1, as in NLTK 3.10.4: (1 − 2) · Fmean. One of the two words matches; α is 0.9.
#[test]
fn meteor_may_be_negative() {
    let rows = [row("cat dog", &["cat house"])];
    assert!((measured("meteor gamma=2", &rows)[0].1.value() + 0.5).abs() < 1e-12);
}

#[test]
fn spice_is_the_f_score_of_tuples_of_all_references_together() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let line = r#"{"prediction": [["Girl"], ["girl", "young"], ["dog"], ["boat"]], "references": [[["girl"], ["girl", "on", "court"]], [["girl", "young"], ["vessel"]]]}"#;
    std::fs::write(file.path(), format!("{line}\n")).expect("writable");
    let spice = |options: &str| {
        measured(&format!("spice scene_graphs={}{options}", file.path().display()), &[row("", &[])])[0].1.value()
    };
    // Two of four tuples match, and four are expected. With synonyms, a boat is a vessel.
    assert_eq!(spice(""), 0.5);
    assert_eq!(spice(" wordnet=FIXTURES/wordnet"), 0.75);
    // Two words for one thing: with synonyms, both tuples match the only expected one.
    std::fs::write(file.path(), r#"{"prediction": [["boat"], ["vessel"]], "references": [[["vessel"]]]}"#)
        .expect("writable");
    assert_eq!((spice(""), spice(" wordnet=FIXTURES/wordnet")), (2.0 / 3.0, 1.0));
    // Escaped letters in JSON are lower-cased after parsing.
    std::fs::write(file.path(), r#"{"prediction": [["\u00c9LAN"]], "references": [[["\u00e9lan"]]]}"#)
        .expect("writable");
    assert_eq!(spice(""), 1.0);
}

/// Expected values from `rouge_score` 0.1.2, with its first two arguments in either order.
#[test]
fn rouge_may_look_for_the_lines_of_the_prediction() {
    let rows = [row("warm warm\ncup kettle", &["cup tea\nkettle tea kettle cup"])];
    let value = |options: &str| measured(&format!("rouge rouge_type=rougeLsum{options}"), &rows)[0].1.value();
    assert!((value("") - 0.4).abs() < 1e-12 && (value(" swapped=true") - 0.2).abs() < 1e-12);
}

#[test]
fn plain_cider_neither_clips_nor_minds_lengths() {
    let rows = [row("a b c d", &["a b c d"]), row("e e e e", &["e f"]), row("g", &["h"])];
    let score = |variant: &str| {
        let metric = format!("cider tokenizer=whitespace variant={variant}");
        measured(&metric, &rows)[0].1.row_values().expect("of rows")
    };
    let (d, plain) = (score("cider-d"), score("cider"));
    assert!((d[0] - 10.0).abs() < 1e-12 && (plain[0] - 10.0).abs() < 1e-12, "identical texts: {d:?}, {plain:?}");
    // Every word has the weight ln 3. The cosine of unigrams is 4 / (4 · √2); no longer n-gram is shared.
    assert!((plain[1] - 10.0 / 4.0 / 2f64.sqrt()).abs() < 1e-12, "{plain:?}");
    // One of the four words counts, and there are two more bigrams: 1 / (4 · √2) · exp(−2² / 72).
    assert!((d[1] - 10.0 / 4.0 / 4.0 / 2f64.sqrt() * (-4f64 / 72.0).exp()).abs() < 1e-12, "{d:?}");
    assert_eq!((d[2], plain[2]), (0.0, 0.0));
}

#[test]
fn cider_takes_its_frequencies_from_a_corpus() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "{\"references\": [\"a b\", \"c\"]}\n{\"reference\": \"d e\"}\n").expect("writable");
    let of_one = |options: &str| {
        measured(&format!("cider tokenizer=whitespace{options}"), &[row("a b c d", &["a b c d"])])[0].1.value()
    };
    assert_eq!(of_one(""), 0.0);
    // N-grams that occur in no document have the weight ln 2, as do those that occur in one.
    assert!((of_one(&format!(" corpus={}", file.path().display())) - 10.0).abs() < 1e-12);
}

#[test]
fn totto_is_measured_by_its_protocol() {
    let cell = |value: &str, is_header: bool| json!([{ "value": value, "is_header": is_header }]);
    let columns = json!({
        "table": [cell("Name", true), cell("Michael Dahlquist", false), cell("drummer", false)],
        "highlighted_cells": [[1, 0], [2, 0]],
        "table_page_title": "Seattle bands",
        "overlap_subset": true,
        "sentence_annotations": [{ "final_sentence":
            "Michael Dahlquist (December 22, 1965 - July 14, 2005) was a drummer in the Seattle band Silkworm." }],
    });
    let Value::Object(columns) = columns else { unreachable!("an object") };
    let prediction = "Michael Dahlquist was a drummer from Seattle.";
    let rows = [Row { prediction: prediction.into(), metadata: columns.clone(), ..Row::default() }];
    let found = measured("parent_totto", &rows);
    let value = |key: &str| found.iter().find(|(name, _)| *name == format!("parent_totto/{key}")).expect(key).1.value();
    // Expected values from the official script.
    for (key, expected) in [
        ("overall/precision", 0.4728708),
        ("overall/recall", 0.8333333),
        ("overall_f_score", 0.6033651),
        ("overlap_f_score", 0.6033651),
    ] {
        assert!((value(key) - expected).abs() < 1e-7, "{key}: {} instead of {expected}", value(key));
    }
    assert!(value("non_overlap_f_score").is_nan());
    // BLEU is sacreBLEU's in lower case, over three references.
    let sentence = "michael dahlquist (december 22, 1965 - july 14, 2005) was a drummer in the seattle band silkworm.";
    let expected =
        measured("sacre_bleu", &[row(&prediction.to_lowercase(), &[sentence, "<null>", "<null>"])])[0].1.value();
    let bleu = measured("bleu_totto", &rows);
    assert_eq!(bleu[0].1.value(), expected);
    assert_eq!(measured("bleu_totto rounded=true", &rows)[0].1.value(), (expected * 1000.0).round() / 1000.0);
    // The scripts compare three references. More are ignored, with a remark.
    let with = |references: &[&str]| Row { metadata: columns.clone(), ..row(prediction, references) };
    let [three, four] = [with(&[sentence, "a", "b"]), with(&[sentence, "a", "b", prediction])];
    for name in ["parent_totto", "bleu_totto"] {
        let value = |row: &Row| measured(name, std::slice::from_ref(row))[0].1.value();
        assert_eq!(value(&three), value(&four), "{name}");
        let remark = |rows: &[Row]| metric(name, &[]).remark(&mut rows.iter().cloned());
        assert_eq!(remark(&[rows[0].clone(), three.clone()]), None, "{name}");
        assert!(
            remark(&[three.clone(), four.clone()]).is_some_and(|text| text.contains("first three references")),
            "{name}"
        );
    }
    // RL4LMs' format: the columns are nested in `raw_table`. The prediction is empty.
    let metadata = serde_json::Map::from_iter([("raw_table".to_owned(), Value::Object(columns))]);
    let empty = [Row { metadata, ..Row::default() }];
    assert!(measured("parent_totto", &empty)[2].1.value() < 0.1);
    let error = metric("parent_totto", &[]).measure(&[row("a", &["a"])]).expect_err("no table").to_string();
    assert!(error.starts_with("row 1: expected a column `table`"), "{error}");
}

/// Expected values from both modes of NLTK's Porter stemmer.
#[test]
fn stems_are_those_of_nltk() {
    let fixture = read("words");
    let mut wrong = Vec::new();
    for case in list(&fixture["stems"]) {
        let [word, extended, original] = [0, 1, 2].map(|i| text(&case[i]));
        for (mode, expected) in [(Porter::Extended, extended), (Porter::Original, original)] {
            let found = mode.stem(word);
            if found != expected {
                wrong.push(format!("{word}: {mode:?}: {found} instead of {expected}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let Some(path) = material("tinyshakespeare/input.txt") else { return };
    let play = std::fs::read_to_string(path).expect("readable");
    let words: std::collections::BTreeSet<&str> = play.split_whitespace().collect();
    let expected = &fixture["shakespeare"];
    assert_eq!(Some(words.len() as u64), expected["words"].as_u64());
    for (i, mode) in [Porter::Extended, Porter::Original].into_iter().enumerate() {
        let stems: Vec<String> = words.iter().map(|word| mode.stem(word)).collect();
        let mut crc = flate2::Crc::new();
        crc.update(stems.join("\n").as_bytes());
        assert_eq!(Some(u64::from(crc.sum())), expected["crc32"][i].as_u64(), "{mode:?}");
    }
}

#[test]
fn words_are_those_of_stanfords_tokenizer() {
    let fixture = read("words");
    let cases = list(&fixture["stanford"]);
    assert!(cases.len() > 200);
    for case in cases {
        let expected: Vec<&str> = list(&case[1]).iter().map(text).collect();
        assert_eq!(stanford::words(text(&case[0])), expected, "{}", case[0]);
    }
}

/// The fixture is written by `tools/parity/spacy_words.py`.
#[test]
fn words_are_those_of_spacys_tokenizer() {
    let fixture = read("spacy");
    let cases = list(&fixture["words"]);
    assert!(cases.len() > 1500);
    for case in cases {
        let expected: Vec<&str> = list(&case[1]).iter().map(text).collect();
        assert_eq!(spacy::words(text(&case[0])), expected, "{}", case[0]);
    }
}

/// Case and punctuation count, unlike with `ptb`.
#[test]
fn cider_of_spacys_words_is_that_of_tokenized_texts() {
    let rows = |split: &dyn Fn(&str) -> String| {
        let row = |prediction: &str, reference: &str| Row::new(split(prediction), [split(reference)]);
        [
            row("The dog is the boy's cat.", "the dog is the boy's cat!"),
            row("A boy isn't picking apples.", "A boy isn't picking apples, is he?"),
        ]
    };
    let value = |tokenizer: &str, split: &dyn Fn(&str) -> String| {
        measured(&format!("cider tokenizer={tokenizer}"), &rows(split))[0].1.value()
    };
    let found = value("spacy", &str::to_owned);
    let expected = value("whitespace", &|text| spacy::joined(text));
    assert!(found == expected && found > 0.0, "{found} instead of {expected}");
    assert!((found - value("ptb", &str::to_owned)).abs() > 0.1, "case and punctuation count");
}

#[test]
fn lines_are_detokenized_as_moses_does() {
    let fixture = read("words");
    let mut wrong = Vec::new();
    for case in list(&fixture["detokenised"]) {
        let [line, expected] = [0, 1].map(|i| text(&case[i]));
        let found = detokenize::detokenized(line);
        if found != expected {
            wrong.push(format!("{line:?}\n  {found:?} instead of\n  {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn orders_of_ngrams_are_bounded() {
    let message = |error: gradus_metrics::Error| error.to_string();
    let error = Chrf::new(gradus_metrics::ChrfOptions { char_order: 0, ..Default::default() }).map(drop);
    let expected = "the option `char_order` plus `word_order` of `chrf` is 0, but must be from 1 to 64";
    assert_eq!(error.map_err(message), Err(expected.to_owned()));
    let error =
        SacreBleu::new(gradus_metrics::SacreBleuOptions { max_ngram_order: 65, ..Default::default() }).map(drop);
    let expected = "the option `max_ngram_order` of `sacre_bleu` is 65, but must be from 1 to 64";
    assert_eq!(error.map_err(message), Err(expected.to_owned()));
}
