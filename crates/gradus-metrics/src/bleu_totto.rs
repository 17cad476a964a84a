//! ToTTo's BLEU: sacreBLEU on texts prepared as in its official script.
//!
//! Parikh et al. 2020, <https://aclanthology.org/2020.emnlp-main.89>; Post 2018, <https://aclanthology.org/W18-6319>. The value
//! is sacreBLEU's divided by 100.

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::bleu::{Counts, counts};
use crate::mteval::Tokenizer;
use crate::sacre_bleu::{SacreBleuOptions, closest, value};
use crate::totto::{self, SUBSETS, TottoRow};
use crate::{Measure, Metric, Row, RowError};

/// Options of [`BleuTotto`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct BleuTottoOptions {
    /// Round to a tenth of a percent, as the script that RL4LMs calls.
    pub rounded: bool,
}

/// BLEU of all rows, of the rows whose table header occurred in training, and of the remaining rows. The BLEU of an empty subset is NaN.
#[derive(Debug, Clone, Copy, Default)]
pub struct BleuTotto {
    options: BleuTottoOptions,
}

impl BleuTotto {
    /// Creates the metric with these options.
    pub fn new(options: BleuTottoOptions) -> Self {
        Self { options }
    }
}

impl Metric for BleuTotto {
    fn remark(&self, rows: &mut dyn Iterator<Item = Row>) -> Option<String> {
        totto::remark(rows)
    }

    fn measure(&self, rows: &[Row]) -> Result<Vec<Measure>, RowError> {
        let sacre = SacreBleuOptions::default();
        let order = sacre.max_ngram_order;
        let counted = |(i, row): (usize, &Row)| {
            let item = TottoRow::of(i, row)?;
            let references: Vec<String> = item.references.iter().map(|text| Tokenizer::V13a.tokenize(text)).collect();
            Ok((counts(&Tokenizer::V13a.tokenize(&item.prediction), &references, order, closest), item))
        };
        let counted: Vec<(Vec<f64>, TottoRow)> =
            rows.par_iter().enumerate().map(counted).collect::<Result<_, RowError>>()?;
        let rounded = self.options.rounded;
        let width = Counts::width(order) + 1;
        let measure = |subset: &&str| {
            // The last number counts the rows of the subset.
            let of_row = |(counts, item): &(Vec<f64>, TottoRow)| match item.is_in(subset) {
                true => counts.iter().copied().chain([1.0]).collect(),
                false => vec![0.0; width],
            };
            let bleu = move |sums: &[f64]| {
                let (rows, sums) = sums.split_last().expect("a row has numbers");
                match value(&Counts::of(sums, order), &sacre) {
                    _ if *rows == 0.0 => f64::NAN,
                    bleu if rounded => (bleu * 1000.0).round() / 1000.0,
                    bleu => bleu,
                }
            };
            Measure::of_sums(*subset, width, counted.iter().flat_map(of_row).collect(), bleu)
        };
        Ok(SUBSETS.iter().map(measure).collect())
    }
}
