//! BLEU as sacreBLEU 2.6 computes it.
//!
//! Papineni et al. 2002, <https://aclanthology.org/P02-1040>; Post 2018, <https://aclanthology.org/W18-6319>. The value is sacreBLEU's
//! divided by 100, as in RL4LMs. Checked against `sacrebleu` 2.6.

use serde::{Deserialize, Serialize};

use crate::bleu::{Counts, counts};
use crate::mteval::Tokenizer;
use crate::options::check_order;
use crate::references::each;
use crate::{Measure, Metric, Result, Row, RowError};

/// Options of [`SacreBleu`], with sacreBLEU's names.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct SacreBleuOptions {
    /// Tokenizer that splits texts into words.
    pub tokenize: Tokenizer,
    /// Smoothing of n-gram orders without a match.
    pub smooth_method: Smoothing,
    /// Value for `floor` and `add-k`. Default 0.1 and 1.
    pub smooth_value: Option<f64>,
    /// Compare lower-cased texts.
    pub lowercase: bool,
    /// Leave out orders that the prediction is too short for.
    pub use_effective_order: bool,
    /// Longest n-gram.
    pub max_ngram_order: usize,
}

impl Default for SacreBleuOptions {
    fn default() -> Self {
        Self {
            tokenize: Tokenizer::V13a,
            smooth_method: Smoothing::Exp,
            smooth_value: None,
            lowercase: false,
            use_effective_order: false,
            max_ngram_order: 4,
        }
    }
}

/// Smoothing of n-gram orders without a match. Chen and Cherry 2014, <https://aclanthology.org/W14-3346>.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Smoothing {
    /// Halves the count with every such order, as NIST's script does.
    #[default]
    #[serde(rename = "exp")]
    Exp,
    /// Adds `smooth_value` to the counts of all orders but the first.
    #[serde(rename = "add-k")]
    AddK,
    /// Counts `smooth_value` matches.
    #[serde(rename = "floor")]
    Floor,
    /// No smoothing: BLEU is 0.
    #[serde(rename = "none")]
    None,
}

/// BLEU of sacreBLEU, from 0 to 1: `BP · exp(Σ log pₙ / N)` with smoothed precisions.
#[derive(Debug, Clone, Default)]
pub struct SacreBleu {
    options: SacreBleuOptions,
}

impl SacreBleu {
    /// Creates the metric with these options.
    ///
    /// # Errors
    /// `max_ngram_order` is not from 1 to 64.
    pub fn new(options: SacreBleuOptions) -> Result<Self> {
        check_order("sacre_bleu", "max_ngram_order", options.max_ngram_order)?;
        Ok(Self { options })
    }

    fn prepared(&self, text: &str) -> String {
        let Self { options } = self;
        if options.lowercase {
            options.tokenize.tokenize(&text.to_lowercase())
        } else {
            options.tokenize.tokenize(text)
        }
    }
}

impl Metric for SacreBleu {
    fn measure(&self, rows: &[Row]) -> Result<Vec<Measure>, RowError> {
        let options = self.options;
        let max_order = options.max_ngram_order;
        let counts = each(rows, |row, references| {
            let references: Vec<String> = references.iter().map(|text| self.prepared(text)).collect();
            counts(&self.prepared(&row.prediction), &references, max_order, closest)
        })?;
        let value = move |sums: &[f64]| value(&Counts::of(sums, max_order), &options);
        Ok(vec![Measure::of_sums("", Counts::width(max_order), counts.concat(), value)])
    }
}

/// Returns the reference length that is nearest to `length`; of two equally near ones, the shorter.
pub(super) fn closest(length: usize, lengths: &[usize]) -> usize {
    lengths.iter().copied().min_by_key(|&other| (other.abs_diff(length), other)).unwrap_or(0)
}

/// `BP · exp(Σ log pₙ / N)` with smoothed precisions.
pub(super) fn value(counts: &Counts<'_>, options: &SacreBleuOptions) -> f64 {
    if counts.correct.iter().all(|&correct| correct == 0.0) {
        return 0.0;
    }
    let smooth_value = options.smooth_value.unwrap_or(match options.smooth_method {
        Smoothing::Floor => 0.1,
        _ => 1.0,
    });
    let orders = counts.correct.len();
    let mut precisions = vec![0.0; orders];
    let (mut effective, mut halved) = (orders, 1.0);
    for (n, precision) in precisions.iter_mut().enumerate() {
        let plus = if options.smooth_method == Smoothing::AddK && n > 0 { smooth_value } else { 0.0 };
        let (correct, total) = (counts.correct[n] + plus, counts.total[n] + plus);
        if total == 0.0 {
            break;
        }
        if options.use_effective_order {
            effective = n + 1;
        }
        *precision = match options.smooth_method {
            _ if correct > 0.0 => correct / total,
            Smoothing::Exp => {
                halved *= 2.0;
                1.0 / (halved * total)
            }
            Smoothing::Floor => smooth_value / total,
            Smoothing::AddK | Smoothing::None => 0.0,
        };
    }
    let precisions = &precisions[..effective];
    if precisions.contains(&0.0) {
        return 0.0;
    }
    let brevity = match (counts.length, counts.reference_length) {
        (length, reference) if length >= reference => 1.0,
        (length, reference) => (1.0 - reference / length).exp(),
    };
    brevity * (precisions.iter().map(|precision| precision.ln()).sum::<f64>() / effective as f64).exp()
}
