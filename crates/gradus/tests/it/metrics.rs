//! Metrics by name and options: those that use models compared to the tools they follow, and RL4LMs' golden values. The
//! tests of `gradus-metrics` compare text metrics to their tools.

use std::path::{Path, PathBuf};

use gradus::batches::MicroBatch;
use gradus::device::DeviceChoice;
use gradus::metric::{Measure, ModelUse, Models as _, Row, Truncation, configure};
use gradus::metric_models::MetricModels;
use gradus::process::Interrupt;
use serde_json::Value;

use cases::{list, text};

#[path = "../../../gradus-metrics/tests/support/cases.rs"]
mod cases;

/// Tolerance of values, independent of their size: most are between 0 and 1.
const TOLERANCE: f64 = 1e-4;

/// Returns the folder that `tools/parity/metric_models.py` and similar scripts write.
fn parity() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity")
}

/// Inserts this machine's paths into an option. `FIXTURES` is the folder of `gradus-metrics`; the scripts find the
/// other folders next to it.
fn option(written: &str) -> String {
    let of_metrics = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gradus-metrics/tests/fixtures");
    let here = written.replace("FIXTURES/..", &parity().to_string_lossy());
    here.replace("FIXTURES", &of_metrics.to_string_lossy())
}

fn read(name: &str) -> Value {
    let path = parity().join(format!("{name}.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).expect("JSON")
}

fn row(prediction: &str, references: &[&str]) -> Row {
    let references = references.iter().map(|text| (*text).to_owned()).collect();
    Row { prediction: prediction.to_owned(), references, ..Row::default() }
}

/// Measures rows with a metric, given as its name and its options.
fn measured(words: &str, rows: &[Row]) -> Vec<(String, Measure)> {
    let mut words = words.split(' ').map(str::to_owned);
    let name = words.next().expect("a name");
    let options: Vec<String> = words.map(|word| option(&word)).collect();
    let config = configure(std::slice::from_ref(&name), &options).expect("known");
    let models = MetricModels::new(DeviceChoice::cpu().device(), MicroBatch::new(64, None));
    let measures =
        config[0].build(&models, &Interrupt::default()).expect("readable").measure(rows).expect("measurable");
    let key = |part: &str| if part.is_empty() { name.clone() } else { format!("{name}/{part}") };
    measures.into_iter().map(|measure| (key(&measure.part), measure)).collect()
}

/// Compared to `bert-score`, `summac`, `transformers`, and the loops of `evaluate` and RL4LMs.
#[test]
fn metrics_that_ask_models_are_those_of_the_tools() {
    check_models("metric_models", 480);
}

/// Compared to the table of `bert-score` 0.3.13.
#[test]
fn layers_of_bert_score_are_the_tools() {
    let path = parity().join("metric_models/rows.json");
    let fixture: Value = serde_json::from_str(&std::fs::read_to_string(path).expect("the fixture")).expect("JSON");
    let layers = fixture["layers"].as_object().expect("layers by name");
    assert!(layers.len() > 60, "only {} models", layers.len());
    for (name, layer) in layers {
        let config = configure(&["bert_score".into()], &[format!("model={name}")]).expect("known");
        let expected = ModelUse::Encoder { layer: layer.as_u64().map(|layer| layer as usize) };
        let uses: Vec<ModelUse> = config[0].models().into_iter().map(|model| model.usage).collect();
        assert_eq!(uses, [expected], "{name}");
    }
}

#[test]
fn summac_needs_two_labels() {
    let options = ["model=FIXTURES/../encoders/bert", "entailment=good", "contradiction=2"];
    let options: Vec<String> = options.into_iter().map(option).collect();
    let models = MetricModels::new(DeviceChoice::cpu().device(), MicroBatch::new(64, None));
    let config = configure(&["summac_zs".into()], &options).expect("known");
    let error = config[0].build(&models, &Interrupt::default()).err().expect("refused").to_string();
    assert_eq!(error, "the options `entailment` and `contradiction` of `summac` both name `good`");
}

/// DeBERTa can read texts of any length; its tokenizer file states the length that it was trained with.
#[test]
fn what_classifiers_and_encoders_read_ends_where_their_tokenizer_says() {
    let encoder = parity().join("encoders/deberta");
    let copy = tempfile::tempdir().expect("a temporary folder");
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(encoder.join(name), copy.path().join(name)).expect("copied");
    }
    std::fs::write(copy.path().join("tokenizer_config.json"), r#"{"model_max_length": 12}"#).expect("written");
    let models = MetricModels::new(DeviceChoice::cpu().device(), MicroBatch::new(64, None));
    let open = |path: &Path| models.classifier(&path.to_string_lossy()).expect("a classifier");
    let (limited, free) = (open(copy.path()), open(&encoder));
    let long = "the tea is warm and the cup is full, she poured the water slowly, more tea for everyone";
    for (given, truncation) in
        [(Truncation::Left(None), Truncation::Left(Some(12))), (Truncation::Right(None), Truncation::Right(Some(12)))]
    {
        let whole = free.logits(&[(long, None)], given).expect("readable");
        let cut = free.logits(&[(long, None)], truncation).expect("readable");
        assert_eq!(limited.logits(&[(long, None)], given).expect("readable"), cut);
        assert_ne!(whole, cut);
    }
    let ids = models.encoder(&copy.path().to_string_lossy(), 1).expect("an encoder").ids(&[long]).expect("readable");
    assert_eq!(ids[0].len(), 12);
}

/// Compared to `transformers` and to arithmetic on its losses.
#[test]
fn metrics_of_the_samples_of_prompts_are_those_of_the_tools() {
    check_models("toxicity", 50);
}

fn check_models(folder: &str, least: usize) {
    let fixture = read(&format!("{folder}/rows"));
    let of_row = |row: &Value| Row {
        prompt: text(&row["prompt"]).into(),
        prediction: text(&row["prediction"]).into(),
        references: list(&row["references"]).iter().map(|reference| text(reference).into()).collect(),
        metadata: ["intent", "concepts"].map(|key| (key.to_owned(), row[key].clone())).into_iter().collect(),
    };
    let rows: Vec<Row> = list(&fixture["rows"]).iter().map(of_row).collect();
    let compared = cases::check(TOLERANCE, folder, &fixture, &rows, measured);
    assert!(compared >= least, "only {compared} values were compared");
}

/// Values computed with the versions that RL4LMs pins.
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

/// One of two words matches the reference, and one is a date.
#[test]
fn a_name_without_options_is_its_metric() {
    let rows = [row("2020-01-01 cat", &["2020-01-01 dog"])];
    for (name, expected) in [("exact_match", 0.0), ("token_f1", 0.5), ("dates", 1.0), ("distinct", 1.0)] {
        assert_eq!(measured(name, &rows)[0].1.value(), expected, "{name}");
    }
}
