//! Task of a classifier's head: from `architectures`, the label maps and `problem_type` of `config.json`.

use serde_json::{Map, Value, json};

use crate::model::adapter::TaskType;

/// Task of a classifier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// Whether it labels texts or tokens.
    pub scope: Scope,
    /// Interpretation of the logits.
    pub reading: Reading,
    /// Labels by number, one per logit.
    pub labels: Vec<String>,
}

/// Items that a head labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Whole texts.
    Sequence,
    /// Tokens.
    Token,
}

/// Interpretation of logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// Exactly one of several labels applies: softmax.
    OneOf,
    /// Any number of labels may apply: one sigmoid each.
    AnyOf,
    /// The outputs are numbers: regression.
    Values,
}

impl Scope {
    /// Returns peft's name.
    pub(super) fn task_type(self) -> TaskType {
        match self {
            Self::Sequence => TaskType::SequenceClassification,
            Self::Token => TaskType::TokenClassification,
        }
    }

    /// Returns the suffix of its class names.
    pub(crate) fn class_end(self) -> &'static str {
        match self {
            Self::Sequence => "ForSequenceClassification",
            Self::Token => "ForTokenClassification",
        }
    }
}

impl Task {
    /// Reads the task of a head with this scope from `config` (`id2label`, `num_labels`, `problem_type`). `outputs` is the number of the
    /// head's logits, if `config` may not have its labels.
    ///
    /// # Errors
    /// When labels are not numbered from 0, or the `problem_type` is unknown.
    pub(super) fn read(config: &Map<String, Value>, scope: Scope, outputs: Option<usize>) -> Result<Self, String> {
        let mut labels = labels(config)?;
        if let Some(outputs) = outputs.filter(|&outputs| outputs != labels.len()) {
            labels = (0..outputs).map(|k| format!("LABEL_{k}")).collect();
        }
        let reading = match config.get("problem_type").and_then(Value::as_str) {
            None if scope == Scope::Sequence && labels.len() == 1 => Reading::Values,
            None | Some("single_label_classification") => Reading::OneOf,
            Some("multi_label_classification") => Reading::AnyOf,
            Some("regression") => Reading::Values,
            Some(other) => return Err(format!("`problem_type` `{other}` is not known")),
        };
        Ok(Self { scope, reading, labels })
    }

    /// Returns the number of the label with this name or number.
    ///
    /// # Errors
    /// Lists the labels when there is none.
    pub fn label(&self, name: &str) -> Result<usize, String> {
        let numbered = || name.parse().ok().filter(|&number: &usize| number < self.labels.len());
        self.labels.iter().position(|label| label == name).or_else(numbered).ok_or_else(|| {
            let known: Vec<String> = self.labels.iter().map(|label| format!("`{label}`")).collect();
            format!("no label `{name}`: the classifier has {}", known.join(", "))
        })
    }

    /// Computes probabilities of the labels from one row of logits; `None` for regression.
    pub fn probabilities(&self, logits_k: &[f32]) -> Option<Vec<f32>> {
        match self.reading {
            Reading::Values => None,
            Reading::AnyOf => Some(logits_k.iter().map(|logit| 1.0 / (1.0 + (-logit).exp())).collect()),
            Reading::OneOf => {
                let most = logits_k.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let exponentials: Vec<f32> = logits_k.iter().map(|logit| (logit - most).exp()).collect();
                let sum: f32 = exponentials.iter().sum();
                Some(exponentials.into_iter().map(|x| x / sum).collect())
            }
        }
    }

    /// Computes the log-odds of label `label`, `ln p − ln(1 − p)`; for regression, the value itself.
    pub fn log_odds(&self, logits_k: &[f32], label: usize) -> f32 {
        if self.reading != Reading::OneOf {
            return logits_k[label];
        }
        // z − ln Σ exp of the others, which is exact even if the probability is 1 in f32.
        let others = || logits_k.iter().enumerate().filter(|(k, _)| *k != label).map(|(_, logit)| *logit);
        let most = others().fold(f32::NEG_INFINITY, f32::max);
        logits_k[label] - most - others().map(|logit| (logit - most).exp()).sum::<f32>().ln()
    }

    /// Returns the numbers of the labels that apply: the most likely one, or all with a probability above ½. Empty for regression.
    pub fn decide(&self, logits_k: &[f32]) -> Vec<usize> {
        let indices = 0..logits_k.len();
        match self.reading {
            Reading::Values => Vec::new(),
            Reading::AnyOf => indices.filter(|&k| logits_k[k] > 0.0).collect(),
            // Takes the first of equal ones, like `argmax`.
            Reading::OneOf => indices.rev().max_by(|&a, &b| logits_k[a].total_cmp(&logits_k[b])).into_iter().collect(),
        }
    }

    /// Writes labels and reading into a configuration.
    pub(crate) fn describe(&self, config: &mut Map<String, Value>) {
        let numbered = || self.labels.iter().enumerate();
        let by_number: Map<String, Value> = numbered().map(|(k, label)| (k.to_string(), json!(label))).collect();
        let by_name: Map<String, Value> = numbered().map(|(k, label)| (label.clone(), json!(k))).collect();
        config.insert("id2label".into(), by_number.into());
        config.insert("label2id".into(), by_name.into());
        config.remove("num_labels");
        let kind = match (self.scope, self.reading) {
            (Scope::Token, _) => Value::Null,
            (_, Reading::OneOf) => json!("single_label_classification"),
            (_, Reading::AnyOf) => json!("multi_label_classification"),
            (_, Reading::Values) => json!("regression"),
        };
        config.insert("problem_type".into(), kind);
    }
}

/// Reads the labels by number: `id2label`, or `LABEL_0` and so on up to `num_labels` (default 2).
fn labels(config: &Map<String, Value>) -> Result<Vec<String>, String> {
    let Some(map) = config.get("id2label").filter(|map| !map.is_null()) else {
        let count = config.get("num_labels").or_else(|| config.get("_num_labels")).and_then(Value::as_u64).unwrap_or(2);
        return match count {
            1..=MOST_LABELS => Ok((0..count).map(|k| format!("LABEL_{k}")).collect()),
            _ => Err(format!("`num_labels` is {count}, but 1 to {MOST_LABELS} are possible")),
        };
    };
    let wrong = || "`id2label` is not a mapping from numbers, 0 and up, to labels".to_owned();
    let map = map.as_object().filter(|map| !map.is_empty()).ok_or_else(wrong)?;
    let mut labels = vec![None; map.len()];
    for (number, label) in map {
        let place = number.parse().ok().and_then(|number: usize| labels.get_mut(number)).ok_or_else(wrong)?;
        *place = Some(label.as_str().map_or_else(|| label.to_string(), str::to_owned));
    }
    labels.into_iter().collect::<Option<Vec<String>>>().ok_or_else(wrong)
}

/// Largest number of labels; larger ones indicate a damaged file.
const MOST_LABELS: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ModelDir;

    fn task(config: Value) -> crate::error::Result<Task> {
        let Value::Object(mut config) = config else { panic!("an object") };
        config.insert("model_type".into(), json!("bert"));
        config.entry("architectures").or_insert(json!(["BertForSequenceClassification"]));
        Task::of(&ModelDir::unsaved(config))
    }

    #[test]
    fn labels_and_reading_come_from_the_configuration() {
        let plain = task(json!({})).expect("two labels");
        assert_eq!((plain.reading, &plain.labels[..]), (Reading::OneOf, &["LABEL_0".to_owned(), "LABEL_1".into()][..]));
        let named = task(json!({ "id2label": { "1": "good", "0": "bad" } })).expect("labels");
        assert_eq!((named.label("good"), named.label("0"), named.labels.len()), (Ok(1), Ok(0), 2));
        assert_eq!(named.label("2"), Err("no label `2`: the classifier has `bad`, `good`".into()));
        assert_eq!(task(json!({ "num_labels": 1 })).expect("a value").reading, Reading::Values);
        let tokens = json!({ "num_labels": 1, "architectures": ["BertForTokenClassification"] });
        let tokens = task(tokens).expect("a token head");
        assert_eq!((tokens.scope, tokens.reading), (Scope::Token, Reading::OneOf));
        let any = json!({ "problem_type": "multi_label_classification" });
        assert_eq!(task(any).expect("labels").reading, Reading::AnyOf);
        for (config, message) in [
            (json!({ "id2label": { "0": "a", "2": "b" } }), "`id2label` is not a mapping"),
            (json!({ "id2label": [] }), "`id2label` is not a mapping"),
            (json!({ "num_labels": 0 }), "`num_labels` is 0"),
            (json!({ "problem_type": "ranking" }), "`problem_type` `ranking` is not known"),
            (json!({ "architectures": ["BertForMaskedLM"] }), "`BertForMaskedLM` is not a classifier"),
        ] {
            let error = task(config).expect_err("refused").to_string();
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn what_is_described_reads_back() {
        for scope in [Scope::Sequence, Scope::Token] {
            for reading in [Reading::OneOf, Reading::AnyOf, Reading::Values] {
                let reading = if scope == Scope::Token { Reading::OneOf } else { reading };
                let written = Task { scope, reading, labels: vec!["no".into(), "yes".into()] };
                let mut config = Map::new();
                written.describe(&mut config);
                config.insert("architectures".into(), json!([format!("Bert{}", scope.class_end())]));
                assert_eq!(task(config.into()).expect("readable"), written);
            }
        }
    }

    #[test]
    fn logits_become_probabilities_odds_and_decisions() {
        let of = |reading| Task { scope: Scope::Sequence, reading, labels: vec![String::new(); 3] };
        // exp: 1, 2, 5. Probabilities: 1/8, 2/8, 5/8.
        let logits = [0.0, 2f32.ln(), 5f32.ln()];
        let one = of(Reading::OneOf);
        let found = one.probabilities(&logits).expect("probabilities");
        for (found, expected) in found.iter().zip([0.125, 0.25, 0.625]) {
            assert!((found - expected).abs() < 1e-6);
        }
        assert!((one.log_odds(&logits, 2) - (5.0f32 / 3.0).ln()).abs() < 1e-6);
        assert!((one.log_odds(&[0.0, 200.0, 0.0], 1) - (200.0 - 2f32.ln())).abs() < 1e-4);
        assert_eq!((one.decide(&logits), one.decide(&[1.0, 1.0, 0.0])), (vec![2], vec![0]));
        let any = of(Reading::AnyOf);
        assert_eq!(any.probabilities(&[0.0, 0.0, 0.0]), Some(vec![0.5; 3]));
        assert_eq!((any.decide(&logits), any.log_odds(&logits, 1)), (vec![1, 2], 2f32.ln()));
        let values = of(Reading::Values);
        assert_eq!((values.probabilities(&logits), values.decide(&logits)), (None, Vec::new()));
    }
}
