//! Metrics of text against the tools they follow: sacreBLEU, rouge_score, py-rouge, NLTK, coco's scorers. The rows are sentences of
//! our own, rows at the edges of what a metric expects, and rows of data sets, of which the fixture holds only numbers.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use gradus::batches::MicroBatch;
use gradus::device::DeviceChoice;
use gradus::metric::{Longest, Measure, ModelUse, Models as _, NoModels, Row, configure};
use gradus::metric_models::MetricModels;
use gradus::process::Interrupt;
use serde_json::{Value, json};

use crate::support::material;

/// Values of metrics agree within this, whatever their size: most lie between 0 and 1.
const METRIC: f64 = 1e-6;

/// Those that ask models agree within this.
const MODEL_METRIC: f64 = 1e-4;

/// The folder that `tools/parity/metrics.py` writes.
fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/metrics")
}

fn read(name: &str) -> Value {
    let path = folder().join(format!("{name}.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).expect("JSON")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn text(value: &Value) -> &str {
    value.as_str().expect("text")
}

fn row(prediction: &str, references: &[&str]) -> Row {
    let references = references.iter().map(|text| (*text).to_owned()).collect();
    Row { prediction: prediction.to_owned(), references, ..Row::default() }
}

/// What a metric, its options after its name, says of rows.
fn measured(words: &str, rows: &[Row]) -> Vec<(String, Measure)> {
    let mut words = words.split(' ').map(str::to_owned);
    let name = words.next().expect("a name");
    let options: Vec<String> = words.map(|option| option.replace("FIXTURES", &folder().to_string_lossy())).collect();
    let config = configure(std::slice::from_ref(&name), &options).expect("known");
    let models = MetricModels::new(DeviceChoice::cpu().device(), MicroBatch { tokens: 64, rows: None });
    let measures =
        config[0].build(&models, &Interrupt::default()).expect("readable").measure(rows).expect("measurable");
    let key = |part: &str| if part.is_empty() { name.clone() } else { format!("{name}/{part}") };
    measures.into_iter().map(|measure| (key(&measure.part), measure)).collect()
}

/// Compares every case of a fixture within `tolerance`; how many rows were compared.
fn check_within(tolerance: f64, file: &str, fixture: &Value, rows: &[Row]) -> usize {
    let mut compared = 0;
    let mut wrong = Vec::new();
    for case in list(&fixture["cases"]) {
        let options = list(&case["options"]).iter().map(|option| format!(" {}", text(option))).collect::<String>();
        let words = format!("{}{options}", text(&case["metric"]));
        let found = measured(&words, rows);
        for (key, expected) in case["values"].as_object().expect("values by key") {
            let measure =
                &found.iter().find(|(name, _)| name == key).unwrap_or_else(|| panic!("{words}: no `{key}`")).1;
            let close = |found: f64, expected: f64| (found - expected).abs() <= tolerance * expected.abs().max(1.0);
            let mut compare = |what: String, found: f64, expected: &Value| {
                let agrees = match expected.as_f64() {
                    Some(expected) => close(found, expected),
                    // Where the script divides by zero (an empty prediction) there is a value here: docs/metrics.md.
                    None if key == "bleu" => found.is_finite(),
                    // `null`: there is nothing that the tool would measure.
                    None => found.is_nan(),
                };
                compared += 1;
                if !agrees {
                    wrong.push(format!("{file}: {words}: {key} of {what}: {found} instead of {expected}"));
                }
            };
            if let Some(expected) = expected.get("value") {
                compare("all rows".into(), measure.value(), expected);
            }
            let of_rows = measure.row_values().unwrap_or_default();
            for (i, expected) in expected["rows"].as_array().into_iter().flatten().enumerate() {
                compare(format!("row {i}"), of_rows[i], expected);
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {compared} differ:\n{}", wrong.len(), wrong[..wrong.len().min(40)].join("\n"));
    compared
}

fn check(file: &str, fixture: &Value, rows: &[Row]) -> usize {
    check_within(METRIC, file, fixture, rows)
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

/// With a model of NLTK's and either order of the texts.
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

/// Against `bert-score`, `summac`, `transformers`, and the loops of `evaluate` and RL4LMs.
#[test]
fn metrics_that_ask_models_are_those_of_the_tools() {
    check_models("metric_models", 480);
}

/// The table of `bert-score` 0.3.13.
#[test]
fn layers_of_bert_score_are_the_tools() {
    let path = folder().join("../metric_models/rows.json");
    let fixture: Value = serde_json::from_str(&std::fs::read_to_string(path).expect("the fixture")).expect("JSON");
    let layers = fixture["layers"].as_object().expect("layers by name");
    assert!(layers.len() > 60, "only {} models", layers.len());
    for (name, layer) in layers {
        let config = configure(&["bert_score".into()], &[format!("model={name}")]).expect("known");
        let expected = ModelUse::Encoder { layer: layer.as_u64().map(|layer| layer as usize) };
        let asked: Vec<ModelUse> = config[0].models().into_iter().map(|model| model.asked).collect();
        assert_eq!(asked, [expected], "{name}");
    }
}

#[test]
fn summac_needs_two_labels() {
    let options = ["model=FIXTURES/../encoders/bert", "entailment=good", "contradiction=2"];
    let options: Vec<String> =
        options.iter().map(|option| option.replace("FIXTURES", &folder().to_string_lossy())).collect();
    let models = MetricModels::new(DeviceChoice::cpu().device(), MicroBatch { tokens: 64, rows: None });
    let config = configure(&["summac_zs".into()], &options).expect("known");
    let error = config[0].build(&models, &Interrupt::default()).err().expect("refused").to_string();
    assert_eq!(error, "the options `entailment` and `contradiction` of `summac` both name `good`");
}

/// DeBERTa reads texts of any length; its tokenizer's file says how long those were that it learned from.
#[test]
fn what_classifiers_and_encoders_read_ends_where_their_tokenizer_says() {
    let encoder = folder().join("../encoders/deberta");
    let copy = tempfile::tempdir().expect("a temporary folder");
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(encoder.join(name), copy.path().join(name)).expect("copied");
    }
    std::fs::write(copy.path().join("tokenizer_config.json"), r#"{"model_max_length": 12}"#).expect("written");
    let models = MetricModels::new(DeviceChoice::cpu().device(), MicroBatch { tokens: 64, rows: None });
    let open = |path: &Path| models.classifier(&path.to_string_lossy()).expect("a classifier");
    let (limited, free) = (open(copy.path()), open(&encoder));
    let long = "the tea is warm and the cup is full, she poured the water slowly, more tea for everyone";
    for (given, asked) in
        [(Longest::Left(None), Longest::Left(Some(12))), (Longest::Right(None), Longest::Right(Some(12)))]
    {
        let whole = free.logits(&[(long, None)], given).expect("readable");
        let cut = free.logits(&[(long, None)], asked).expect("readable");
        assert_eq!(limited.logits(&[(long, None)], given).expect("readable"), cut);
        assert_ne!(whole, cut);
    }
    let ids = models.encoder(&copy.path().to_string_lossy(), 1).expect("an encoder").ids(&[long]).expect("readable");
    assert_eq!(ids[0].len(), 12);
}

/// Against `transformers` and arithmetic on its losses.
#[test]
fn metrics_of_the_samples_of_prompts_are_those_of_the_tools() {
    check_models("toxicity", 50);
}

fn check_models(folder: &str, least: usize) {
    let fixture = read(&format!("../{folder}/rows"));
    let of_row = |row: &Value| Row {
        prompt: text(&row["prompt"]).into(),
        prediction: text(&row["prediction"]).into(),
        references: list(&row["references"]).iter().map(|reference| text(reference).into()).collect(),
        metadata: ["intent", "concepts"].map(|key| (key.to_owned(), row[key].clone())).into_iter().collect(),
    };
    let rows: Vec<Row> = list(&fixture["rows"]).iter().map(of_row).collect();
    let compared = check_within(MODEL_METRIC, folder, &fixture, &rows);
    assert!(compared >= least, "only {compared} values were compared");
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

/// Values that were computed with the versions that RL4LMs pins.
#[test]
fn metrics_give_the_golden_values_of_rl4lms() {
    let check = |metric: &str, key: &str, prediction: &str, references: &[&str], expected: f64, digits: i32| {
        let found = measured(metric, &[row(prediction, references)]);
        let value = found.iter().find(|(name, _)| name == key).expect("the key").1.value();
        let tolerance = 0.5 * 10f64.powi(-digits) * 1.0001;
        assert!((value - expected).abs() <= tolerance, "{metric} of {prediction:?}: {value} instead of {expected}");
    };
    let (fox, log) = ("The quick brown fox jumps over the lazy dog", "The quick brown dog jumps on the log.");
    for (key, expected) in [("rouge1", 0.705882), ("rouge2", 0.266667), ("rougeL", 0.588235), ("rougeLsum", 0.588235)] {
        check("rouge", &format!("rouge/{key}"), log, &[fox], expected, 6);
    }
    let cats = ["a small cat sat", "the cat is sitting"];
    for (key, first, coerced) in
        [("rouge1", 0.571429, 0.545455), ("rouge2", 0.4, 0.444444), ("rougeL", 0.571429, 0.363636)]
    {
        let key = format!("rouge/{key}");
        check("rouge references=first", &key, "the cat sat", &cats, first, 6);
        check("rouge references=repr", &key, "the cat sat", &cats, coerced, 6);
    }
    let (sat, sitting, there) =
        ("The cat sat on the mat.", "A cat was sitting on the mat.", "There is a cat on a mat.");
    check("meteor", "meteor", sitting, &[sat], 0.6816901, 7);
    check("meteor references=repr", "meteor", sitting, &[sat], 0.4938776, 7);
    check("meteor references=repr", "meteor", sitting, &[sat, there], 0.2382061, 7);
    check("meteor", "meteor", sitting, &[sat, there], 0.6816901, 7);
    check("meteor", "meteor", sat, &[sat], 0.9985423, 7);
    check("meteor references=repr", "meteor", sat, &[sat], 0.6171249, 7);
    let weighted = "rouge_l_max length_limit=100 length_limit_type=words weight_factor=1.2";
    let (mat, paris) = ("the cat was sitting on the mat", "paris");
    check(weighted, "rouge_l_max", "the cat sat on a mat", &[mat], 0.667525068, 9);
    check(weighted, "rouge_l_max", "he lives in paris", &[paris], 0.479064624, 9);
    check("rouge_l_max", "rouge_l_max", "the cat sat on a mat", &[mat], 0.6153846154, 10);
    check("rouge_l_max", "rouge_l_max", "he lives in paris", &[paris], 0.4, 10);
    check("sacre_bleu tokenize=intl", "sacre_bleu", "Das ist ein Test.", &["Das ist kein Test."], 0.30213754, 8);
    let (obama, ties) = (
        "The relationship between Obama and Netanyahu is not exactly friendly.",
        "The ties between Obama and Netanyahu are not particularly friendly.",
    );
    check("chrf", "chrf", obama, &[ties], 0.615_763_793_781_138, 12);
}

#[test]
fn corpora_give_the_golden_values_of_rl4lms() {
    let value = |metric: &str, rows: &[Row]| measured(metric, rows)[0].1.value();
    let same = "wHaT aBoUt ThIs SeNtEnCe?";
    let rows = [
        row("does this sentence match??", &["does this sentence match", "does this sentence match!?!"]),
        row("what about this sentence?", &[same, same]),
        row("What did the TER metric user say to the developer?", &["Your jokes are...", "...TERrible"]),
    ];
    assert!((value("ter", &rows) - 1.1).abs() < 1e-12);
    assert!((value("ter case_sensitive=true", &rows) - 1.5).abs() < 1e-12);
    let dog = "The dog is the boy 's cat .";
    let rows = [
        row(dog, &[dog, "The dog eats the cat of the boy ."]),
        row("A boy is picking apples from trees and put them into bags .", &["A boy is picking apples from trees ."]),
    ];
    let cider = &measured("cider tokenizer=whitespace", &rows)[0].1;
    let of_rows = cider.row_values().expect("of rows");
    for (found, expected) in [(of_rows[0], 6.2483129), (of_rows[1], 4.4923457), (cider.value(), 5.3703293)] {
        assert!((found - expected).abs() < 1e-7, "{found} instead of {expected}");
    }
    assert_eq!(value("cider tokenizer=whitespace", &rows[..1]), 0.0);
}

#[test]
fn diversity_counts_words_and_runs_of_words() {
    // Words: a b a | a c . — six, four kinds, three of them once; of pairs each is another.
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
        // Windows: a b, a a, c .
        ("msttr-2", 0.83333),
        // Without the period: a b, a a; the fifth word fills no window.
        ("msttr-2_nopunct", 0.75),
        ("distinct-1-nopunct", 0.6),
        ("median_pred_length-nopunct", 2.5),
        ("std_pred_length-nopunct", 0.5),
    ] {
        assert!((value(key) - expected).abs() < 1e-12, "{key}: {} instead of {expected}", value(key));
    }
}

/// By GEM-metrics: no n-grams are no variety, and Python rounds a half to the even digit.
#[test]
fn diversity_at_its_edges() {
    let value = |metric: &str, text: &str, key: &str| {
        let found = measured(metric, &[row(text, &[])]);
        found.iter().find(|(name, _)| *name == format!("diversity/{key}")).expect(key).1.value()
    };
    // 31 windows with one kind of two words and one with two: 16.5 / 32 = 0.515625.
    let text = format!("{} b", ["a"; 63].join(" "));
    assert_eq!(value("diversity window_size=2", &text, "msttr-2"), 0.51562);
    for key in ["distinct-2", "entropy-1", "entropy-2", "cond_entropy-2"] {
        let found = value("diversity", "a", key);
        assert!(found == 0.0 && found.is_sign_positive(), "{key}: {found}");
    }
    assert_eq!(value("diversity", "", "distinct-1"), 0.0);
    assert!(value("diversity", "", "cond_entropy-2").is_nan());
}

/// A penalty above 1, as NLTK 3.10.4 has it: (1 − 2) · Fmean of the one word of two that matches, α 0.9.
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
    // Two of four tuples are found, of four that are wanted; with synonyms a boat is a vessel.
    assert_eq!(spice(""), 0.5);
    assert_eq!(spice(" wordnet=FIXTURES/wordnet"), 0.75);
    // Two words for one thing: nothing is wanted that is not said, and no more is found than there is.
    std::fs::write(file.path(), r#"{"prediction": [["boat"], ["vessel"]], "references": [[["vessel"]]]}"#)
        .expect("writable");
    assert_eq!((spice(""), spice(" wordnet=FIXTURES/wordnet")), (2.0 / 3.0, 1.0));
    // Letters that JSON writes by their numbers have no case there.
    std::fs::write(file.path(), r#"{"prediction": [["\u00c9LAN"]], "references": [[["\u00e9lan"]]]}"#)
        .expect("writable");
    assert_eq!(spice(""), 1.0);
}

/// By `rouge_score` 0.1.2, with its first two arguments in either order.
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
    // Every word has the weight ln 3: the cosine of unigrams is 4 / (4 · √2), no longer n-gram is shared.
    assert!((plain[1] - 10.0 / 4.0 / 2f64.sqrt()).abs() < 1e-12, "{plain:?}");
    // One of the four counts, and there are two bigrams more: 1 / (4 · √2) · exp(−2² / 72).
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
    // n-grams that no document has weigh ln 2, as those do that one has.
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
    // The golden values of the official script.
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
    // As RL4LMs' pool has it: below `raw_table`, and an empty prediction.
    let metadata = serde_json::Map::from_iter([("raw_table".to_owned(), Value::Object(columns))]);
    let empty = [Row { metadata, ..Row::default() }];
    assert!(measured("parent_totto", &empty)[2].1.value() < 0.1);
    let error = configure(&["parent_totto".to_owned()], &[]).expect("known")[0]
        .build(&NoModels, &Interrupt::default())
        .expect("built");
    let error = error.measure(&[row("a", &["a"])]).expect_err("no table").to_string();
    assert!(error.starts_with("row 1: expected a column `table`"), "{error}");
}
