//! Metrics of generated text: what predictions are worth beside their references, one metric a file.
//!
//! A [`Metric`] sees all rows at once and gives [`Measure`]s: a value of the whole, one of each row, and a bootstrap
//! interval. [`MetricConfig`] is the registry: it names every metric and its options. A new metric is one file here, one
//! variant and one arm of [`MetricConfig::build`]; library users implement [`Metric`], or write a program ([`CommandMetric`]).
//!
//! A metric that needs a model asks [`Models`] for it, which whoever measures hands in.
//!
//! Every value equals that of the tool its file names, and rows are measured side by side on all threads.

mod answer;
mod bert_score;
mod bleu;
mod bleu_totto;
mod characters;
mod chrf;
mod cider;
mod classified;
mod command;
mod config;
mod dates;
mod detokenise;
mod distinct;
mod diversity;
mod exact_match;
mod increasing_numbers;
mod keyed;
mod lcs;
mod measure;
mod meteor;
mod models;
mod mteval;
mod ngrams;
mod nltk;
mod parent;
mod perplexity;
mod preference;
mod punkt;
mod references;
mod rouge;
mod rouge_l_max;
mod sacre_bleu;
mod spice;
mod stanford;
mod stem;
mod summac;
mod ter;
mod token_f1;
mod totto;
mod toxicity;
mod treebank;
mod wordnet;

use serde_json::{Map, Value};

use crate::error::Error;
use crate::plugin::Kind;

pub use bert_score::{BertScore, BertScoreOptions};
pub use bleu::{Bleu, BleuOptions, BleuTokeniser};
pub use bleu_totto::{BleuTotto, BleuTottoOptions};
pub use chrf::{Chrf, ChrfOptions};
pub use cider::{Cider, CiderOptions, CiderTokeniser, CiderVariant};
pub use classified::{
    Bleurt, BleurtOptions, IntentAccuracy, IntentAccuracyOptions, LearnedReward, LearnedRewardOptions,
};
pub use command::{CommandMetric, CommandOptions};
pub use config::{MetricConfig, MetricOption, configure};
pub(crate) use config::{read_list, schema_of_list};
pub use dates::Dates;
pub use distinct::Distinct;
pub use diversity::{Diversity, DiversityOptions};
pub use exact_match::ExactMatch;
pub use increasing_numbers::{IncreasingNumbers, IncreasingNumbersOptions};
pub use keyed::KeyedBy;
pub use measure::{Interval, Measure, Resampling, intervals};
pub use meteor::{Meteor, MeteorOptions};
pub use models::{
    ClassifierModel, Encoded, EncoderModel, LanguageModel, Longest, MetricModel, ModelUse, Models, NoModels, TextError,
    TextToTextModel,
};
pub use mteval::Tokeniser;
pub(crate) use nltk::WordTokeniser;
pub use parent::{Parent, ParentOptions};
pub use perplexity::{Perplexity, PerplexityOf, PerplexityOptions};
pub use preference::{CommonGenPreference, CommonGenPreferenceOptions};
pub(crate) use punkt::Punkt;
pub use references::References;
pub use rouge::{Aggregate, Rouge, RougeOptions, RougeType};
pub use rouge_l_max::{LengthUnit, RougeLMax, RougeLMaxOptions};
pub use sacre_bleu::{SacreBleu, SacreBleuOptions, Smoothing};
pub use spice::{Spice, SpiceOptions};
pub use summac::{
    Aggregate as SummacAggregate, Bins, Fold, Granularity, InferenceModel, SummacConv, SummacConvOptions, SummacZs,
    SummacZsOptions,
};
pub use ter::{Ter, TerOptions};
pub use token_f1::TokenF1;
pub use toxicity::{Toxicity, ToxicityOptions};
pub(crate) use toxicity::{scorer as toxicity_scorer, scores as toxicity_scores};
pub(crate) use treebank::Rules as WordRules;

/// What a metric sees of one row.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Row {
    /// What the model was given; empty where the data do not say.
    pub prompt: String,
    /// What is measured.
    pub prediction: String,
    /// What it is compared with, one text or several; none where the metric needs none.
    pub references: Vec<String>,
    /// Every other column.
    pub metadata: Map<String, Value>,
}

/// A row that a metric cannot measure.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("row {}: {message}", .row + 1)]
pub struct RowError {
    /// The row, from 0.
    pub row: usize,
    /// What is wrong with it: found against expected.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
    /// Whether the user stopped it.
    pub is_interrupted: bool,
}

impl RowError {
    /// What is wrong with the row, counted from 0.
    pub fn new(row: usize, message: impl Into<String>) -> Self {
        Self { row, message: message.into(), hint: None, is_interrupted: false }
    }

    /// What `place` makes an error of, which knows where the row stands; or that the user stopped it.
    pub fn into_error(self, place: impl FnOnce(usize, String) -> Error) -> Error {
        if self.is_interrupted {
            return Error::Interrupted;
        }
        let error = place(self.row, self.message);
        match self.hint {
            Some(hint) => error.with_hint(hint),
            None => error,
        }
    }
}

impl Kind for dyn Metric {
    const NAME: &'static str = "metric";
    type Make = dyn Fn(&dyn Models) -> crate::Result<Box<dyn Metric>> + Send + Sync;
}

/// Measures generated text. The open extension point of the module.
pub trait Metric: Send + Sync {
    /// The values, in a fixed order. The part of a measure is what stands after the metric's name in its key; empty for a
    /// metric of one value.
    ///
    /// # Errors
    /// A row that lacks what the metric compares with.
    fn measure(&self, rows: &[Row]) -> Result<Vec<Measure>, RowError>;

    /// What a reader of the values must know: a resource that this machine lacks, so that they differ from the reference
    /// implementation's.
    fn remark(&self) -> Option<String> {
        None
    }

    /// What each prediction alone is worth as a reward, where more is better: the row values of the metric's one value, unless
    /// the metric says otherwise.
    ///
    /// # Errors
    /// As [`Self::measure`].
    fn worth(&self, rows: &[Row]) -> Result<Vec<f64>, RowError> {
        let values = self.measure(rows)?.first().and_then(Measure::row_values);
        Ok(values.unwrap_or_else(|| vec![f64::NAN; rows.len()]))
    }

    /// Whether [`Self::worth`] means anything.
    fn is_reward(&self) -> bool {
        true
    }
}

/// What `tools/parity/metrics.py` says of single words and lines.
#[cfg(test)]
fn words_fixture() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/parity/metrics/words.json");
    serde_json::from_str(&std::fs::read_to_string(path).expect("the fixture")).expect("JSON")
}
