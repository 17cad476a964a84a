//! RL4LMs' preference model of CommonGen: a text-to-text model trained to answer a sentence with `good` or `bad`.
//!
//! Ramamurthy et al. 2023, <https://arxiv.org/abs/2210.01241>. Checked against `transformers` 5.23.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::models::{Models, TextError, TextToTextModel, softmax};
use super::{Measure, Metric, Row, RowError};
use crate::error::{Error, Result};

/// Options of [`CommonGenPreference`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CommonGenPreferenceOptions {
    /// The model with an encoder and a decoder: a directory or a hub name.
    pub model: String,
    /// The model's answer to a good sentence. Default `good`.
    #[serde(default = "good")]
    pub good: String,
    /// The model's answer to a bad sentence. Default `bad`.
    #[serde(default = "bad")]
    pub bad: String,
    /// Penalty per concept that is missing in the prediction: the value is divided by 1 + penalty · missing. Default 0.
    #[serde(default)]
    pub concept_penalty: f64,
    /// The column that lists the concepts. Default `concepts`, as in the task `commongen`.
    #[serde(default = "concepts")]
    pub concepts: String,
}

fn good() -> String {
    "good".into()
}
fn bad() -> String {
    "bad".into()
}
fn concepts() -> String {
    "concepts".into()
}

/// `p / (1 + penalty · missing)`. `p` is the probability of the good word's first id relative to the bad word's, as the first id of
/// the model's answer to the prediction. `missing` is the number of concepts that the lower-cased prediction does not contain.
pub struct CommonGenPreference {
    options: CommonGenPreferenceOptions,
    model: Box<dyn TextToTextModel>,
    /// First ids of the good and the bad word.
    words: [u32; 2],
}

impl CommonGenPreference {
    /// Creates the metric.
    ///
    /// # Errors
    /// A model that cannot be opened, words that begin with the same id, or a penalty below 0.
    pub fn new(options: CommonGenPreferenceOptions, models: &dyn Models) -> Result<Self> {
        let refuse = |message: String| Error::input(format!("`common_gen_preference`: {message}"));
        if !(options.concept_penalty.is_finite() && options.concept_penalty >= 0.0) {
            let found = options.concept_penalty;
            return Err(refuse(format!("the option `concept_penalty` is {found}, but must be a number from 0")));
        }
        let model = models.text_to_text(&options.model)?;
        let first = |word: &str| model.first_id(word).map_err(refuse);
        let words = [first(&options.good)?, first(&options.bad)?];
        if words[0] == words[1] {
            let message = format!("`{}` and `{}` begin with the same token", options.good, options.bad);
            return Err(refuse(message).with_hint("name two words that begin with different tokens: `good` and `bad`"));
        }
        Ok(Self { options, model, words })
    }

    /// Returns the number of a row's concepts that its prediction lacks.
    fn missing(&self, i: usize, row: &Row) -> Result<usize, RowError> {
        if self.options.concept_penalty == 0.0 {
            return Ok(0);
        }
        let column = &self.options.concepts;
        let of_list = |list: &Value| -> Option<Vec<String>> {
            list.as_array()?.iter().map(|concept| concept.as_str().map(str::to_owned)).collect()
        };
        let concepts = row.metadata.get(column).and_then(of_list).ok_or_else(|| {
            let found = row.metadata.get(column).map_or("nothing".into(), Value::to_string);
            RowError::new(i, format!("column `{column}` holds {found}, expected a list of concepts"))
        })?;
        let prediction = row.prediction.to_lowercase();
        Ok(concepts.iter().filter(|concept| !prediction.contains(concept.as_str())).count())
    }
}

impl Metric for CommonGenPreference {
    fn measure(&self, rows: &[Row]) -> Result<Vec<Measure>, RowError> {
        let missing: Vec<usize> =
            rows.iter().enumerate().map(|(i, row)| self.missing(i, row)).collect::<Result<_, _>>()?;
        let texts: Vec<&str> = rows.iter().map(|row| row.prediction.as_str()).collect();
        let logits = self.model.first_logits(&texts, &self.words);
        let logits = logits.map_err(|TextError { text, message }| RowError::new(text, message))?;
        let score = |(logits, &missing): (&Vec<f32>, &usize)| {
            softmax(logits)[0] / (1.0 + self.options.concept_penalty * missing as f64)
        };
        let scores: Vec<f64> = logits.iter().zip(&missing).map(score).collect();
        Ok(vec![Measure::mean("", &scores)])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use serde_json::json;

    use super::super::{ClassifierModel, EncoderModel, LanguageModel};
    use super::*;

    /// Accepts three words, by their first letters.
    struct Fake;

    impl TextToTextModel for Fake {
        fn first_id(&self, word: &str) -> Result<u32, String> {
            "gbo".find(&word[..1]).map(|id| id as u32).ok_or_else(|| format!("`{word}` has no ids"))
        }

        fn first_logits(&self, texts: &[&str], ids: &[u32]) -> Result<Vec<Vec<f32>>, TextError> {
            // Odds of 3 to 1 for good.
            Ok(texts.iter().map(|_| ids.iter().map(|&id| if id == 0 { 3f32.ln() } else { 0.0 }).collect()).collect())
        }
    }

    struct Opens;

    impl Models for Opens {
        fn language(&self, name: &str) -> crate::Result<Box<dyn LanguageModel>> {
            Err(Error::input(name))
        }

        fn encoder(&self, name: &str, _layer: usize) -> crate::Result<Box<dyn EncoderModel>> {
            Err(Error::input(name))
        }

        fn classifier(&self, name: &str) -> crate::Result<Box<dyn ClassifierModel>> {
            Err(Error::input(name))
        }

        fn text_to_text(&self, _name: &str) -> crate::Result<Box<dyn TextToTextModel>> {
            Ok(Box::new(Fake))
        }

        fn tensors(&self, path: &Path) -> crate::Result<BTreeMap<String, Vec<f32>>> {
            Err(Error::input(path.display().to_string()))
        }
    }

    fn metric(more: &str) -> Result<CommonGenPreference> {
        let options = serde_saphyr::from_str(&format!("{{ model: m{more} }}")).expect("options");
        CommonGenPreference::new(options, &Opens)
    }

    fn row(prediction: &str, concepts: Value) -> Row {
        let metadata = serde_json::Map::from_iter([("concepts".to_owned(), concepts)]);
        Row { prediction: prediction.into(), metadata, ..Row::default() }
    }

    #[test]
    fn missing_concepts_divide_the_probability() {
        let rows = [
            row("A Man drives a car", json!(["man", "car"])),
            row("A car", json!(["man", "car", "race"])),
            // As in RL4LMs, concepts are not converted to lower case.
            row("A man", json!(["Man"])),
        ];
        let values = |more: &str| metric(more).expect("a metric").measure(&rows).expect("measurable")[0].row_values();
        let near = |found: Option<Vec<f64>>, expected: [f64; 3]| {
            let found = found.expect("values of rows");
            assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{found:?}");
        };
        near(values(""), [0.75, 0.75, 0.75]);
        near(values(", concept_penalty: 0.5"), [0.75, 0.375, 0.5]);
        let error = metric(", concept_penalty: 1").expect("a metric").measure(&[row("a", json!("man"))]);
        assert_eq!(error.expect_err("no list").message, "column `concepts` holds \"man\", expected a list of concepts");
    }

    #[test]
    fn what_cannot_be_told_apart_is_refused() {
        let refused = |more: &str| metric(more).err().expect("refused").to_string();
        assert_eq!(
            refused(", good: bright, bad: bad"),
            "`common_gen_preference`: `bright` and `bad` begin with the same token"
        );
        assert_eq!(refused(", good: yes"), "`common_gen_preference`: `yes` has no ids");
        assert_eq!(
            refused(", concept_penalty: -1"),
            "`common_gen_preference`: the option `concept_penalty` is -1, but must be a number from 0"
        );
    }
}
