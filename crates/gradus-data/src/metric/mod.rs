//! Metrics of generated text in a configuration, and the metrics that use models or programs.
//!
//! `gradus_metrics` has the [`Metric`] trait and the metrics of text alone, one per file; this module re-exports what gradus uses.
//! [`MetricConfig`] is the registry of all metrics and their options. A new metric of text is a file there. A new metric with a
//! model is a file here; it gets its model from [`Models`], which the caller passes in. Either needs one variant and one arm of
//! [`MetricConfig::build`]. Library users implement [`Metric`], or write a program ([`CommandMetric`]).

mod bert_score;
mod classifier;
mod command;
mod config;
mod models;
mod perplexity;
mod preference;
mod spice;
mod summac;
mod toxicity;

use crate::error::{Error, Failure};
use crate::plugin::Kind;

pub use bert_score::{BertScore, BertScoreOptions};
pub use classifier::{
    Bleurt, BleurtOptions, IntentAccuracy, IntentAccuracyOptions, LearnedReward, LearnedRewardOptions,
};
pub use command::{CommandMetric, CommandOptions, mistake_in_name};
pub use config::{MetricConfig, MetricOption, NeededColumn, configure, distinct_names, hint_on_absent, not_a_reward};
pub use config::{read_list, schema_of_list};
pub use gradus_metrics::first_values;
pub use gradus_metrics::{
    Aggregate, Bleu, BleuOptions, BleuTokenizer, BleuTotto, BleuTottoOptions, Chrf, ChrfOptions, Cider, CiderOptions,
    CiderTokenizer, CiderVariant, Dates, Distinct, Diversity, DiversityOptions, ExactMatch, IncreasingNumbers,
    IncreasingNumbersOptions, Interval, KeyedBy, LengthUnit, Measure, Meteor, MeteorOptions, Metric, Parent,
    ParentOptions, References, Resampling, Rouge, RougeLMax, RougeLMaxOptions, RougeOptions, RougeType, Row, RowError,
    SacreBleu, SacreBleuOptions, Smoothing, Spice, Ter, TerOptions, TokenF1, Tokenizer, by_prompt, intervals,
};
pub use gradus_metrics::{Punkt, WordTokenizer, treebank::Rules as WordRules};
pub use models::{
    ClassifierModel, Encoded, EncoderModel, LanguageModel, MetricModel, ModelUse, Models, NoModels, TextError,
    TextToTextModel, Truncation,
};
pub use perplexity::{Perplexity, PerplexityOf, PerplexityOptions};
pub use preference::{CommonGenPreference, CommonGenPreferenceOptions};
pub use spice::{SpiceOptions, SpiceProgram, SpiceTokenizer};
pub use summac::{
    Aggregate as SummacAggregate, Bins, Fold, Granularity, InferenceModel, SummacConv, SummacConvOptions, SummacZs,
    SummacZsOptions,
};
pub use toxicity::{Toxicity, ToxicityOptions};
pub use toxicity::{scorer as toxicity_scorer, scores as toxicity_scores};

impl Kind for dyn Metric {
    const NAME: &'static str = "metric";
    type Make = dyn Fn(&dyn Models) -> crate::Result<Box<dyn Metric>> + Send + Sync;
}

/// Converts an error of a text metric.
pub fn error_of_metric(error: gradus_metrics::Error) -> Error {
    use gradus_metrics::Error as Of;
    match error {
        Of::Options { message, hint } => Error::Input { message, hint },
        Of::Data { file, line, message, hint } => Error::Data { file, line, message, hint },
        Of::Io { path, source } => Error::Io { path, source },
    }
}

/// Converts a failure of a program or a scorer to the error of a row.
fn at(row: usize) -> impl FnOnce(Failure) -> RowError {
    move |Failure { message, hint, is_interrupted }| RowError { row, message, hint, is_interrupted }
}

/// Converts the error about a row that cannot be measured. `place` makes an error from the row's index, from 0, and the message. If
/// the user stopped the measurement, the result is [`Error::Interrupted`].
pub fn of_row(error: RowError, place: impl FnOnce(usize, String) -> Error) -> Error {
    if error.is_interrupted {
        return Error::Interrupted;
    }
    let placed = place(error.row, error.message);
    match error.hint {
        Some(hint) => placed.with_hint(hint),
        None => placed,
    }
}

/// Returns the metric's remark on its values for `rows` as a sentence, if it has one.
pub fn remark_on(name: &str, metric: &dyn Metric, rows: &mut dyn Iterator<Item = Row>) -> Option<String> {
    Some(format!("`{name}` is computed {}", metric.remark(rows)?))
}

#[cfg(test)]
mod tests {
    use rand::Rng as _;

    use super::*;
    use crate::rng::{Purpose, Seed};

    #[test]
    fn intervals_draw_from_a_stream_that_nothing_else_draws_from() {
        let values = [0.0, 1.0, 10.0, 100.0, 1000.0];
        let mut stream = Seed(7).stream(Purpose::Resample, 0, 0);
        let drawn: f64 = (0..5).map(|_| values[stream.random_range(0..5u32) as usize]).sum();
        let (units, resampling) = ([0, 1, 2, 3, 4].map(|row| vec![row]), Resampling { samples: 1, seed: 7 });
        let interval = intervals(&[&Measure::mean("", &values)], &units, resampling)[0].expect("an interval");
        assert_eq!(interval.middle, drawn / 5.0);
    }
}
