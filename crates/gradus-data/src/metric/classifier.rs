//! Metrics by classifiers: RL4LMs' intent accuracy and learned metric, and BLEURT.
//!
//! Sellam et al. 2020, <https://arxiv.org/abs/2004.04696>: BLEURT is a BERT with a regression output (a
//! `…ForSequenceClassification` with one label in `transformers`, as its checkpoints are published for PyTorch). Checked against
//! `transformers` 5.23.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::models::{ClassifierModel, Models, TextError, Truncation, largest, softmax};
use super::{Measure, Metric, References, Row, RowError};
use crate::error::{Error, Result};

/// End of an utterance in DailyDialog's prompts.
const END: &str = "<EOU>";

/// Options of [`IntentAccuracy`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IntentAccuracyOptions {
    /// The classifier of intents: a directory or a hub name (RL4LMs': `rajkumarrrk/roberta-daily-dialog-intent-classifier`).
    pub model: String,
}

/// 1 if the classifier reads the intent of the row's column `intent` (from 1, or a list that begins with it) in the last utterance
/// of the prompt followed by the prediction, else 0.
pub struct IntentAccuracy(Box<dyn ClassifierModel>);

impl IntentAccuracy {
    /// Creates the metric.
    ///
    /// # Errors
    /// A model that cannot be opened.
    pub fn new(options: &IntentAccuracyOptions, models: &dyn Models) -> Result<Self> {
        models.classifier(&options.model).map(Self)
    }
}

impl Metric for IntentAccuracy {
    fn measure(&self, rows: &[Row]) -> Result<Vec<Measure>, RowError> {
        let labels = self.0.labels().len() as u64;
        let expected = |(i, row): (usize, &Row)| {
            let column = row.metadata.get("intent");
            let first = column.map(|value| value.as_array().map_or(Some(value), |list| list.first()));
            let number = first.flatten().and_then(Value::as_u64).filter(|number| (1..=labels).contains(number));
            number.map(|number| number as usize - 1).ok_or_else(|| {
                let found = column.map_or("nothing".into(), Value::to_string);
                let message = format!("column `intent` holds {found}, expected a number from 1 to {labels}");
                RowError::new(i, message)
            })
        };
        let expected: Vec<usize> = rows.iter().enumerate().map(expected).collect::<Result<_, _>>()?;
        let text = |row: &Row| {
            let last = row.prompt.rsplit(END).find(|utterance| !utterance.trim().is_empty()).unwrap_or_default();
            format!("{last}{}", row.prediction)
        };
        let texts: Vec<String> = rows.iter().map(text).collect();
        let texts: Vec<(&str, Option<&str>)> = texts.iter().map(|text| (text.as_str(), None)).collect();
        let logits = self.0.logits(&texts, Truncation::Left(None)).map_err(of_row)?;
        let score = |(logits, expected): (&Vec<f32>, &usize)| f64::from(u8::from(largest(logits) == *expected));
        let scores: Vec<f64> = logits.iter().zip(&expected).map(score).collect();
        Ok(vec![Measure::mean("", &scores)])
    }
}

/// Options of [`LearnedReward`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LearnedRewardOptions {
    /// The classifier: a directory or a hub name.
    pub model: String,
    /// The label whose probability is the value, by name or number.
    pub label: String,
    /// Put the prompt in front of the prediction.
    #[serde(default = "yes")]
    pub include_prompt: bool,
}

fn yes() -> bool {
    true
}

/// Probability of a label.
pub struct LearnedReward {
    model: Box<dyn ClassifierModel>,
    label: usize,
    include_prompt: bool,
}

impl LearnedReward {
    /// Creates the metric.
    ///
    /// # Errors
    /// A model that cannot be opened, or that lacks the label.
    pub fn new(options: &LearnedRewardOptions, models: &dyn Models) -> Result<Self> {
        let model = models.classifier(&options.model)?;
        let label =
            model.label(&options.label).map_err(|message| Error::input(format!("`learned_reward`: {message}")))?;
        Ok(Self { model, label, include_prompt: options.include_prompt })
    }
}

impl Metric for LearnedReward {
    fn measure(&self, rows: &[Row]) -> Result<Vec<Measure>, RowError> {
        let before = |row: &Row| if self.include_prompt { row.prompt.clone() } else { String::new() };
        let texts: Vec<String> = rows.iter().map(|row| before(row) + &row.prediction).collect();
        let texts: Vec<(&str, Option<&str>)> = texts.iter().map(|text| (text.as_str(), None)).collect();
        let logits = self.model.logits(&texts, Truncation::Left(None)).map_err(of_row)?;
        let scores: Vec<f64> = logits.iter().map(|logits| softmax(logits)[self.label]).collect();
        Ok(vec![Measure::mean("", &scores)])
    }
}

/// Options of [`Bleurt`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BleurtOptions {
    /// The regression model: a directory or a hub name, such as `Elron/bleurt-base-128`.
    pub model: String,
    /// Treatment of several references.
    #[serde(default)]
    pub references: References,
    /// Maximum number of ids of a reference and a prediction together; the longer one is cut first. Default: the model's positions.
    #[serde(default)]
    pub max_length: Option<usize>,
}

/// Score of a reference and a prediction by a regression model.
pub struct Bleurt {
    model: Box<dyn ClassifierModel>,
    options: BleurtOptions,
}

impl Bleurt {
    /// Creates the metric.
    ///
    /// # Errors
    /// A model that cannot be opened, or that does not have exactly one output.
    pub fn new(options: BleurtOptions, models: &dyn Models) -> Result<Self> {
        let model = models.classifier(&options.model)?;
        match model.labels().len() {
            1 => Ok(Self { model, options }),
            labels => {
                let message = format!("`bleurt` reads one number, but `{}` gives {labels}", options.model);
                Err(Error::input(message).with_hint("take a model with a regression head of one label"))
            }
        }
    }
}

impl Metric for Bleurt {
    fn measure(&self, rows: &[Row]) -> Result<Vec<Measure>, RowError> {
        let references = |(i, row): (usize, &Row)| match row.references.as_slice() {
            [] => Err(RowError::without_references(i)),
            references => Ok(self.options.references.of(references)),
        };
        let references: Vec<Vec<String>> = rows.iter().enumerate().map(references).collect::<Result<_, _>>()?;
        let (mut pairs, mut of) = (Vec::new(), Vec::new());
        for (i, (row, references)) in rows.iter().zip(&references).enumerate() {
            for reference in references {
                pairs.push((reference.as_str(), Some(row.prediction.as_str())));
                of.push(i);
            }
        }
        let logits = self.model.logits(&pairs, Truncation::Right(self.options.max_length));
        let logits = logits.map_err(|error| RowError::new(of[error.text], error.message))?;
        let mut scores = vec![f64::NEG_INFINITY; rows.len()];
        for (logits, row) in logits.iter().zip(of) {
            scores[row] = scores[row].max(f64::from(logits[0]));
        }
        Ok(vec![Measure::mean("", &scores)])
    }
}

fn of_row(error: TextError) -> RowError {
    RowError::new(error.text, error.message)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use serde_json::json;

    use super::super::{EncoderModel, LanguageModel, TextToTextModel};
    use super::*;

    /// Has three labels, and assigns the one whose number begins the text: `2 …` is the last.
    struct ByNumber(Vec<String>);

    impl ClassifierModel for ByNumber {
        fn labels(&self) -> &[String] {
            &self.0
        }

        fn label(&self, name: &str) -> Result<usize, String> {
            self.0.iter().position(|label| label == name).ok_or_else(|| format!("no label `{name}`"))
        }

        fn has_probabilities(&self) -> bool {
            true
        }

        fn values(&self, logits: &[f32]) -> Vec<f32> {
            softmax(logits).into_iter().map(|value| value as f32).collect()
        }

        fn logits(&self, texts: &[(&str, Option<&str>)], truncation: Truncation) -> Result<Vec<Vec<f32>>, TextError> {
            assert_eq!(truncation, Truncation::Left(None), "the end of a text is what is asked for");
            let logits = |(i, (text, _)): (usize, &(&str, Option<&str>))| {
                let number: usize = text
                    .trim_start()
                    .get(..1)
                    .and_then(|first| first.parse().ok())
                    .ok_or(TextError { text: i, message: format!("`{text}` begins with no number") })?;
                // Odds of 3 to 1 and 1.
                Ok((0..3).map(|label| if label == number { 3f32.ln() } else { 0.0 }).collect())
            };
            texts.iter().enumerate().map(logits).collect()
        }
    }

    struct Fake;

    impl Models for Fake {
        fn language(&self, name: &str) -> crate::Result<Box<dyn LanguageModel>> {
            Err(Error::input(name))
        }

        fn encoder(&self, name: &str, _layer: usize) -> crate::Result<Box<dyn EncoderModel>> {
            Err(Error::input(name))
        }

        fn classifier(&self, _name: &str) -> crate::Result<Box<dyn ClassifierModel>> {
            Ok(Box::new(ByNumber(["a", "b", "c"].map(String::from).to_vec())))
        }

        fn text_to_text(&self, name: &str) -> crate::Result<Box<dyn TextToTextModel>> {
            Err(Error::input(name))
        }

        fn tensors(&self, path: &Path) -> crate::Result<BTreeMap<String, Vec<f32>>> {
            Err(Error::input(path.display().to_string()))
        }
    }

    fn row(prompt: &str, prediction: &str, intent: u64) -> Row {
        let metadata = serde_json::Map::from_iter([("intent".to_owned(), json!([intent]))]);
        Row { prompt: prompt.into(), prediction: prediction.into(), metadata, ..Row::default() }
    }

    #[test]
    fn the_last_utterance_before_the_prediction_is_judged() {
        let options = IntentAccuracyOptions { model: "fake".into() };
        let metric = IntentAccuracy::new(&options, &Fake).expect("a metric");
        // The last non-blank utterance decides, whatever the earlier ones are. Intents count from 1.
        let rows = [
            row("0 hello<EOU>1 how are you<EOU>2 fine<EOU>", "and you", 3),
            row("0 hello<EOU>1 how are you<EOU>", "2 fine", 2),
            row("0 hello<EOU>1 how are you<EOU>  ", "2 fine", 1),
            // A prompt of one utterance, and one of none: then only the prediction is read.
            row("1 how are you", "2 fine", 2),
            row("<EOU>", "2 fine", 3),
        ];
        let measures = metric.measure(&rows).expect("measurable");
        assert_eq!(measures[0].row_values(), Some(vec![1.0, 1.0, 0.0, 1.0, 1.0]));
        assert_eq!(metric.measure(&[row("none<EOU>", "2", 1)]).expect_err("no number").row, 0);
    }

    #[test]
    fn a_learned_reward_is_the_probability_of_its_label_after_the_prompt_or_alone() {
        let values = |label: &str, include_prompt: bool| {
            let options = LearnedRewardOptions { model: "fake".into(), label: label.into(), include_prompt };
            let metric = LearnedReward::new(&options, &Fake).expect("a metric");
            metric.measure(&[row("1 so ", "2 what", 1), row("0 so ", "1 what", 1)]).expect("measurable")[0].row_values()
        };
        // The odds are 3 to 1 and 1: ⅗ or ⅕.
        let check = |found: Option<Vec<f64>>, expected: [f64; 2]| {
            let found = found.expect("a value a row");
            assert!(found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-6), "{found:?}");
        };
        check(values("b", true), [0.6, 0.2]);
        check(values("b", false), [0.2, 0.6]);
        check(values("a", true), [0.2, 0.6]);
        let options = LearnedRewardOptions { model: "fake".into(), label: "d".into(), include_prompt: true };
        let error = LearnedReward::new(&options, &Fake).err().expect("refused").to_string();
        assert_eq!(error, "`learned_reward`: no label `d`");
    }
}
