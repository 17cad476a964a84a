//! Odds ratio preference optimization: supervised fine-tuning on the chosen text that also shifts odds from the
//! rejected to the chosen completion. It needs no reference.
//!
//! Hong et al. 2024, <https://arxiv.org/abs/2403.07691>. Follows TRL 1.16's experimental trainer, with two differences:
//! the mean of the likelihood is over the tokens of the step, and pairs in which a completion has no token have no
//! odds.

use burn::tensor::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Totals;
use super::preference::{self, DEFAULTS, PairLoss, PairPass, observe};
use crate::data::{Need, PreferenceExample};
use crate::host::constant;
use crate::loss::reduce::sum;
use crate::loss::{orpo, reduce, sft};
use crate::method::{Cast, Defaults, Head, Method, Problems, Shared};
use crate::model::Sequence;
use crate::readings::Readings;
use crate::settings::TrainConfig;
use crate::stats::Stats;

/// Keys of `method.orpo`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OrpoConfig {
    /// Weight of the odds ratio relative to the likelihood (λ in the paper). Default 0.1 (TRL).
    pub beta: f64,
}

impl Default for OrpoConfig {
    fn default() -> Self {
        Self { beta: 0.1 }
    }
}

impl Method for OrpoConfig {
    fn name(&self) -> &'static str {
        "orpo"
    }

    fn about(&self) -> &'static str {
        "Fine-tune on preferences in one stage, without a reference"
    }

    fn defaults(&self) -> Defaults {
        DEFAULTS
    }

    fn drops_out(&self) -> bool {
        true
    }

    fn adds_noise(&self) -> bool {
        true
    }

    fn need(&self) -> Need {
        Need::Preference
    }

    fn cast(&self, shared: &Shared<'_>) -> Cast {
        Cast::alone(shared, Head::Language)
    }

    fn rules(&self, problems: &mut Problems<'_>, _train: &TrainConfig) {
        problems.above_zero("method.orpo.beta", self.beta);
    }
}

/// Returns the number of predicted tokens of the chosen and the rejected completion. The first token of a text is not
/// predicted.
fn completions(pair: &PreferenceExample) -> [usize; 2] {
    [&pair.chosen_ids, &pair.rejected_ids].map(|ids| ids.len() - pair.prompt_len.max(1))
}

impl PairLoss for OrpoConfig {
    type Pair = PreferenceExample;

    /// Training covers the whole chosen text, prompt included, unless an encoder reads the prompt. For the rejected
    /// text, only the completion counts.
    fn sequences(pair: &PreferenceExample) -> [Sequence<'_>; 2] {
        let [chosen, rejected] = preference::completions(pair);
        [if pair.encoder_reads_prompt { chosen } else { Sequence::text(&pair.chosen_ids) }, rejected]
    }

    fn loss(&self, pass: PairPass<'_, PreferenceExample>, totals: Totals, measured: &mut Readings<Stats>) -> Tensor<1> {
        let (pairs, counts_b, logprobs_m) = (pass.pairs, pass.counts_b(), &pass.tokens.logprobs_m);
        let (p, device) = (pairs.len(), logprobs_m.device());

        let nll_m = sft::nll(logprobs_m.clone().narrow(0, 0, pass.chosen_tokens()));
        let sides = |side: usize| pairs.iter().map(move |pair| completions(pair)[side]);
        let completions_b: Vec<usize> = sides(0).chain(sides(1)).collect();
        let means_b =
            reduce::segment_sum(logprobs_m.clone() * constant(shares(counts_b, &completions_b), &device), counts_b);
        // A completion without tokens has no odds. Two equal values stand in for such a pair, whose ratio does not
        // count.
        let whole_p: Vec<bool> = pairs.iter().map(|pair| completions(pair).iter().all(|&count| count > 0)).collect();
        let fill_b = |side: usize| {
            let fill =
                whole_p.iter().zip(sides(side)).map(|(&whole, count)| if whole || count > 0 { 0.0 } else { -1.0 });
            constant(fill.collect(), &device)
        };
        let chosen_p = means_b.clone().narrow(0, 0, p) + fill_b(0);
        let rejected_p = means_b.clone().narrow(0, p, p) + fill_b(1);
        let log_odds_p = orpo::log_odds_ratio(chosen_p, rejected_p);
        let weights_p: Vec<f32> = whole_p.iter().map(|&whole| f32::from(u8::from(whole))).collect();
        let odds_p = orpo::odds_ratio(log_odds_p.clone()) * constant(weights_p, &device);

        let beta = self.beta;
        measured.later([&means_b], move |[means], stats| observe(&means, &means, beta, stats));
        measured.mean_of("nll_loss", &nll_m);
        measured.later([&log_odds_p, &-odds_p.clone()], move |[log_odds, odds], stats| {
            let of_whole = |values: Vec<f32>| -> Vec<f32> {
                values.into_iter().zip(&whole_p).filter_map(|(value, &whole)| whole.then_some(value)).collect()
            };
            stats.mean_of("log_odds_chosen", &of_whole(log_odds));
            stats.mean_of("log_odds_ratio", &of_whole(odds));
        });
        sum(nll_m) / totals.targets.max(1) as f64 + sum(odds_p) * (beta / totals.examples as f64)
    }
}

/// Returns the weight of each target in the mean over its completion, which ends its sequence; 0 for targets of the
/// prompt.
fn shares(counts_b: &[usize], completions_b: &[usize]) -> Vec<f32> {
    let shares = counts_b.iter().zip(completions_b).flat_map(|(&count, &completion)| {
        let share = 1.0 / completion.max(1) as f32;
        (0..count).map(move |t| if t + completion >= count { share } else { 0.0 })
    });
    shares.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_is_over_the_completion_at_the_end() {
        assert_eq!(shares(&[4, 3, 2], &[2, 3, 0]), [0.0, 0.0, 0.5, 0.5, 1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0, 0.0, 0.0]);
    }
}
