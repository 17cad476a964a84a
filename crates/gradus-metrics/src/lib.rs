//! Metrics of generated text: they compare predictions with references. Each metric equals its reference tool.
//!
//! ```
//! use gradus_metrics::{Metric, Resampling, Rouge, Row, SacreBleu, by_prompt, intervals};
//!
//! let rows = [
//!     Row::new("the cat sat on the mat", ["the cat sat on a mat", "a cat was on the mat"]),
//!     Row::new("it rains", ["it is raining today"]),
//! ];
//! for measure in Rouge::default().measure(&rows)? {
//!     println!("{}: {:.4}", measure.key("rouge"), measure.value()); // rouge/rouge1: 0.7500, …
//! }
//! let bleu = SacreBleu::default().measure(&rows)?.remove(0);
//! assert!((100.0 * bleu.value() - 48.9645).abs() < 1e-4); // sacrebleu 2.6: 48.96
//! let of_rows = bleu.row_values(); // BLEU of each row alone
//! let interval = intervals(&[&bleu], &by_prompt(&rows), Resampling { samples: 1000, seed: 0 })[0];
//! # assert!(of_rows.is_some_and(|rows| rows.len() == 2) && interval.is_some());
//! # Ok::<(), gradus_metrics::RowError>(())
//! ```
//!
//! A [`Metric`] receives all rows at once and returns [`Measure`]s. A measure has a value for the whole corpus, a value for each row, and
//! bootstrap [`intervals`]. Values are between 0 and 1 unless the metric documents another range, even if the reference tool prints
//! percent. Rows are measured on all threads of the current `rayon` pool.
//!
//! | metric | paper | equals |
//! |---|---|---|
//! | [`Bleu`] | Papineni et al. 2002 | TensorFlow's `nmt` script; `bleu` of `evaluate` 0.4 |
//! | [`SacreBleu`] | Post 2018 | `sacrebleu` 2.6 |
//! | [`Chrf`]: chrF and chrF++ | Popović 2015, 2017 | `sacrebleu` 2.6 |
//! | [`Ter`] | Snover et al. 2006 | `sacrebleu` 2.6 |
//! | [`Rouge`]: ROUGE-1, -2, -L, -Lsum | Lin 2004 | `rouge_score` 0.1.2 |
//! | [`RougeLMax`] | Lin 2004 | `py-rouge` 1.1 |
//! | [`Meteor`] | Lavie and Agarwal 2007 | `nltk` 3.10.4 |
//! | [`Cider`]: CIDEr-D and CIDEr | Vedantam et al. 2015 | `pycocoevalcap` 1.2 |
//! | [`Spice`] over given scene graphs | Anderson et al. 2016 | the F-score of tuples |
//! | [`Parent`] | Dhingra et al. 2019 | ToTTo's `totto_parent_eval.py` |
//! | [`BleuTotto`] | Parikh et al. 2020 | ToTTo's script |
//! | [`Diversity`] | Gehrmann et al. 2021 | GEM-metrics at 431a817 |
//! | [`Distinct`] | Li et al. 2016 | the count in DExperts |
//! | [`ExactMatch`], [`TokenF1`] | Rajpurkar et al. 2016 | `squad` of torchmetrics 1.9 |
//! | [`Dates`], [`IncreasingNumbers`] | Ramamurthy et al. 2023 | RL4LMs' synthetic tasks |
//!
//! The tools that split texts into words and sentences are public too: [`Tokenizer`] (sacreBLEU's tokenizers), [`treebank::words`] and
//! [`WordTokenizer`] (NLTK), [`stanford::words`], [`Punkt`], [`Porter`], [`WordNet`], [`detokenize::detokenized`] (Moses).
//!
//! The crate ships no third-party data. [`Punkt`] and [`WordNet`] read NLTK's files if the user has them; otherwise each has a simple
//! fallback. The feature `schema` derives `schemars::JsonSchema` for all options.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod answer;
mod bleu;
mod bleu_totto;
pub mod characters;
mod chrf;
mod cider;
mod dates;
pub mod detokenize;
mod distinct;
mod diversity;
mod error;
mod exact_match;
mod files;
mod increasing_numbers;
mod keyed;
mod lcs;
pub mod mathematics;
mod measure;
mod meteor;
mod mteval;
mod ngrams;
mod nltk;
mod options;
mod parent;
mod punkt;
pub mod python;
mod references;
mod rouge;
mod rouge_l_max;
mod row;
mod sacre_bleu;
pub mod spacy;
mod spice;
pub mod stanford;
mod stem;
mod ter;
mod token_f1;
mod totto;
pub mod treebank;
mod wordnet;

pub use bleu::{Bleu, BleuOptions, BleuTokenizer};
pub use bleu_totto::{BleuTotto, BleuTottoOptions};
pub use chrf::{Chrf, ChrfOptions};
pub use cider::{Cider, CiderOptions, CiderTokenizer, CiderVariant};
pub use dates::Dates;
pub use distinct::Distinct;
pub use diversity::{Diversity, DiversityOptions};
pub use error::{Error, Result};
pub use exact_match::ExactMatch;
pub use increasing_numbers::{IncreasingNumbers, IncreasingNumbersOptions};
pub use keyed::KeyedBy;
pub use measure::{Interval, Measure, Resampling, intervals};
pub use meteor::{Meteor, MeteorOptions};
pub use mteval::Tokenizer;
pub use nltk::WordTokenizer;
pub use parent::{Parent, ParentOptions};
pub use punkt::Punkt;
pub use references::References;
pub use rouge::{Aggregate, Rouge, RougeOptions, RougeType};
pub use rouge_l_max::{LengthUnit, RougeLMax, RougeLMaxOptions};
pub use row::{Row, RowError, by_prompt};
pub use sacre_bleu::{SacreBleu, SacreBleuOptions, Smoothing};
pub use spice::Spice;
pub use stem::Porter;
pub use ter::{Ter, TerOptions};
pub use token_f1::TokenF1;
pub use wordnet::WordNet;

/// Returns the row values of the first measure; NaN for rows without a value.
pub fn first_values(measures: &[Measure], rows: usize) -> Vec<f64> {
    measures.first().and_then(Measure::row_values).unwrap_or_else(|| vec![f64::NAN; rows])
}

/// A metric of generated text.
pub trait Metric: Send + Sync {
    /// Measures the rows and returns the values in a fixed order. A metric with a single value returns one measure with an empty part.
    ///
    /// # Errors
    /// A row lacks what the metric compares with.
    fn measure(&self, rows: &[Row]) -> Result<Vec<Measure>, RowError>;

    /// Returns a note for readers of the values: about missing resources on this machine that make them differ from those of the
    /// reference tool, or about parts of `rows` that the metric ignores. The predictions of `rows` may be empty.
    fn remark(&self, _rows: &mut dyn Iterator<Item = Row>) -> Option<String> {
        None
    }

    /// Returns the reward of each prediction; higher is better. By default, these are the row values of the first measure; NaN for rows
    /// without a value.
    ///
    /// # Errors
    /// Same as [`Self::measure`].
    fn rewards(&self, rows: &[Row]) -> Result<Vec<f64>, RowError> {
        Ok(first_values(&self.measure(rows)?, rows.len()))
    }

    /// Like [`Self::rewards`], but reports to `done` how many rows have a value. If `done` returns false, the user has cancelled, and the
    /// work stops. Slow metrics should implement it.
    ///
    /// # Errors
    /// Same as [`Self::rewards`], or an [interruption](RowError::is_interrupted).
    fn rewards_with_progress(&self, rows: &[Row], _done: &mut dyn FnMut(usize) -> bool) -> Result<Vec<f64>, RowError> {
        self.rewards(rows)
    }

    /// Returns whether [`Self::rewards`] is meaningful.
    fn is_reward(&self) -> bool {
        true
    }

    /// Returns whether the reward of a row depends on the other rows of the call. The default is `false`.
    fn depends_on_batch(&self) -> bool {
        false
    }
}
