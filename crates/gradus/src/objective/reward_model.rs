//! Reward models: their configuration keys, their objective, and their report on held-out pairs.

use std::cmp::Ordering;

use burn::tensor::{Tensor, TensorData};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{LossContext, Objective, OfflineMethod, evaluate_loss};
use crate::batches::MicroBatch;
use crate::data::{self, Examples, Need, PreferenceExample, Row, Side, TokenizeOptions, TooLong};
use crate::error::Result;
use crate::host::read;
use crate::loss::reduce::sum;
use crate::loss::reward::{bradley_terry, centering};
use crate::math::stats as measure;
use crate::method::{Cast, Defaults, Head, Method, Problems, Shared};
use crate::model::{Counted, DropoutStream, ModelShape, Ranker, Reference, Rows, Sequence, TrainingInfo};
use crate::pretrained::Pretrained;
use crate::progress::Progress;
use crate::readings::Readings;
use crate::settings::TrainConfig;
use crate::stats::Stats;

/// Keys of `method.reward`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RewardModelConfig {
    /// Weight of the term (r_chosen + r_rejected)² that keeps rewards near 0. Default 0; 0.01 is usual (TRL).
    pub center_rewards_coefficient: f64,
    /// Maximum number of training pairs over which mean and standard deviation of the scores are measured at the end,
    /// evenly spaced if there are more. `reward.fine_grained` normalizes by them. 0 disables it. Default 20000.
    pub score_pairs: usize,
    /// Side at which texts over `max_length` are cut, with `too_long: truncate`. `left` keeps the end of the
    /// conversation, which holds the answer (`truncation_side` of transformers). Models with an encoder and a decoder
    /// leave such pairs out. Default `right`.
    pub truncation: Option<Side>,
}

impl Default for RewardModelConfig {
    fn default() -> Self {
        Self { center_rewards_coefficient: 0.0, score_pairs: 20_000, truncation: None }
    }
}

impl Method for RewardModelConfig {
    fn name(&self) -> &'static str {
        "reward"
    }

    fn about(&self) -> &'static str {
        "Train a reward model on preferences"
    }

    fn defaults(&self) -> Defaults {
        Defaults { learning_rate: 1e-4, too_long: TooLong::Skip, best_metric: "eval_accuracy" }
    }

    fn need(&self) -> Need {
        Need::Preference
    }

    fn cast(&self, shared: &Shared<'_>) -> Cast {
        Cast::alone(shared, Head::SCALAR)
    }

    fn rules(&self, problems: &mut Problems<'_>, train: &TrainConfig) {
        let cuts = train.too_long == Some(TooLong::Truncate);
        problems.require(cuts || self.truncation.is_none(), &["method.reward.truncation", "train.too_long"], || {
            let message = "`method.reward.truncation` sets where long texts are cut, but `train.too_long` skips them";
            (message.into(), Some("set `train.too_long` to `truncate`".into()))
        });
        let key = "method.reward.center_rewards_coefficient";
        problems.at_least(key, self.center_rewards_coefficient, 0.0);
    }

    fn drops_out(&self) -> bool {
        true
    }
}

impl OfflineMethod for RewardModelConfig {
    type Example = PreferenceExample;
    type Objective = BradleyTerry;

    fn examples(
        &self,
        rows: &[Row],
        from: &Pretrained,
        options: TokenizeOptions,
    ) -> Result<Examples<PreferenceExample>> {
        let options = TokenizeOptions { pair_cut: self.truncation.unwrap_or(Side::Right), ..options };
        if !from.dir.is_encoder() {
            return data::reward_examples(rows, &from.tokenizer, from.template.as_ref(), &options);
        }
        let positions = ModelShape::of(&from.dir)?.max_positions;
        let limit = options.max_length.into_iter().chain(positions).min();
        let options = TokenizeOptions { max_length: limit, ..options };
        data::reward_examples(rows, &from.tokenizer, from.template.as_ref(), &options)
    }

    fn rows(pair: &PreferenceExample) -> Rows<'_> {
        Rows::Pairs(vec![sequences(pair)])
    }

    fn objective(&self, _reference: Option<Reference>) -> BradleyTerry {
        BradleyTerry::new(self)
    }
}

/// Number of bins of the calibration error.
pub(crate) const CALIBRATION_BINS: usize = 10;

/// Scores of a reward model for one pair.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PairScore {
    /// Index of its row, from 0.
    pub row: usize,
    /// Reward of the better answer.
    pub chosen: f32,
    /// Reward of the worse answer.
    pub rejected: f32,
    /// Margin of the better answer, if the row states one.
    pub margin: Option<f32>,
    /// Number of tokens of prompt and better answer.
    pub chosen_tokens: usize,
    /// Number of tokens of prompt and worse answer.
    pub rejected_tokens: usize,
}

impl PairScore {
    /// Whether the better answer has the larger reward; equal rewards count as wrong.
    pub fn is_right(&self) -> bool {
        self.chosen > self.rejected
    }

    /// Probability that the model assigns to its own choice, between 0.5 and 1.
    pub fn confidence(&self) -> f32 {
        1.0 / (1.0 + (-(self.chosen - self.rejected).abs()).exp())
    }

    /// Returns the loss of the pair without centering: `−log σ(r_chosen − r_rejected − margin)`.
    pub fn loss(&self) -> f64 {
        let difference = f64::from(self.chosen) - f64::from(self.rejected) - f64::from(self.margin.unwrap_or(0.0));
        (-difference).max(0.0) + (-difference.abs()).exp().ln_1p()
    }

    /// Returns 1 if the longer text is the better one and 0 if it is not. Equal lengths predict nothing and count as half right.
    pub fn longer_wins(&self) -> f64 {
        match self.chosen_tokens.cmp(&self.rejected_tokens) {
            Ordering::Greater => 1.0,
            Ordering::Equal => 0.5,
            Ordering::Less => 0.0,
        }
    }
}

/// The objective: the Bradley–Terry likelihood of the preferences.
#[derive(Debug, Clone)]
pub struct BradleyTerry {
    center_rewards_coefficient: f64,
    score_pairs: usize,
    truncation: Option<Side>,
}

impl BradleyTerry {
    /// Creates the objective that `config` specifies.
    pub fn new(config: &RewardModelConfig) -> Self {
        let &RewardModelConfig { center_rewards_coefficient, score_pairs, truncation } = config;
        Self { center_rewards_coefficient, score_pairs, truncation }
    }

    /// Returns all statistics on held-out pairs, and the scores that they are computed from.
    ///
    /// # Errors
    /// [`Error::Interrupted`](crate::Error::Interrupted) if `progress` ends it.
    pub fn judged(
        &self,
        model: &Ranker,
        pairs: &[&PreferenceExample],
        passes: MicroBatch,
        progress: &dyn Progress,
    ) -> Result<(Stats, Vec<PairScore>)> {
        let mut stats = evaluate_loss(self, model, pairs, passes, progress)?;
        let scores = self.scores(model, pairs, passes);
        judge(&scores, &mut stats);
        Ok((stats, scores))
    }

    /// Computes the rewards of the chosen and the rejected texts, `[P]` each, in one forward pass over both.
    fn rewards(model: &Ranker, pairs: &[&PreferenceExample], dropout: Option<DropoutStream>) -> [Tensor<1>; 2] {
        let rows = Rows::Pairs(pairs.iter().map(|pair| sequences(pair)).collect());
        let rewards_b = model.rewards(&rows, dropout);
        [rewards_b.clone().narrow(0, 0, pairs.len()), rewards_b.narrow(0, pairs.len(), pairs.len())]
    }
}

/// Returns the chosen and the rejected text; with an encoder, each after its source.
pub(crate) fn sequences(pair: &PreferenceExample) -> [Sequence<'_>; 2] {
    [&pair.chosen_ids, &pair.rejected_ids].map(|ids| {
        let (source, target) = ids.split_at(pair.prompt_len);
        Sequence { source, target, counted: Counted::Nothing }
    })
}

impl Objective for BradleyTerry {
    type Model = Ranker;
    type Example = PreferenceExample;

    fn tokens(&self, pair: &PreferenceExample) -> usize {
        pair.chosen_ids.len() + pair.rejected_ids.len()
    }

    fn targets(&self, _pair: &PreferenceExample) -> usize {
        1
    }

    fn loss(
        &self,
        model: &Ranker,
        pairs: &[&PreferenceExample],
        context: LossContext,
        measured: &mut Readings<Stats>,
    ) -> Option<Tensor<1>> {
        let [chosen_p, rejected_p] = Self::rewards(model, pairs, context.dropout);
        measured.later([&chosen_p, &rejected_p], |[chosen, rejected], stats| observe(&chosen, &rejected, stats));
        let margins_p: Vec<f32> = pairs.iter().map(|pair| pair.margin.unwrap_or(0.0)).collect();
        let margins_p = Tensor::from_data(TensorData::new(margins_p, [pairs.len()]), &chosen_p.device());
        let mut losses_p = bradley_terry(chosen_p.clone(), rejected_p.clone(), Some(margins_p));
        if self.center_rewards_coefficient != 0.0 {
            losses_p = losses_p + centering(chosen_p, rejected_p) * self.center_rewards_coefficient;
        }
        Some(sum(losses_p) / context.totals.examples as f64)
    }

    /// In addition to the training metrics: a 95 % interval for the accuracy, the expected calibration error, the
    /// accuracy of "the longer one wins", and the correlation of reward and length.
    fn evaluate(
        &self,
        model: &Ranker,
        pairs: &[&PreferenceExample],
        passes: MicroBatch,
        progress: &dyn Progress,
    ) -> Result<Stats> {
        Ok(self.judged(model, pairs, passes, progress)?.0)
    }

    fn scores(&self, model: &Ranker, pairs: &[&PreferenceExample], passes: MicroBatch) -> Vec<PairScore> {
        let lengths: Vec<usize> = pairs.iter().map(|pair| self.tokens(pair)).collect();
        passes.deal("scores of pairs", &lengths, |_, pass| {
            let [chosen, rejected] = Self::rewards(model, &pairs[pass.clone()], None).map(|rewards_p| read(&rewards_p));
            let of = |((pair, chosen), rejected): ((&&PreferenceExample, f32), f32)| PairScore {
                row: pair.row,
                chosen,
                rejected,
                margin: pair.margin,
                chosen_tokens: pair.chosen_ids.len(),
                rejected_tokens: pair.rejected_ids.len(),
            };
            pairs[pass].iter().zip(chosen).zip(rejected).map(of).collect()
        })
    }

    /// Returns mean and standard deviation of the scores of all chosen and rejected texts.
    fn training_info(&self, model: &Ranker, pairs: &[&PreferenceExample], passes: MicroBatch) -> TrainingInfo {
        let taken = pairs.len().min(self.score_pairs);
        let some: Vec<&PreferenceExample> = (0..taken).map(|i| pairs[i * pairs.len() / taken]).collect();
        let found = self.scores(model, &some, passes);
        let scores: Vec<f32> = found.iter().flat_map(|score| [score.chosen, score.rejected]).collect();
        TrainingInfo {
            score_mean: measure::mean(&scores),
            score_std: measure::std(&scores, measure::Variance::Biased),
            add_eos: Some(TokenizeOptions::default().add_eos),
            keeps_end: self.truncation.map(|side| side == Side::Left),
            ..TrainingInfo::default()
        }
    }

    fn describe(&self, pair: &PreferenceExample) -> Value {
        json!({ "chosen_ids": pair.chosen_ids, "rejected_ids": pair.rejected_ids, "margin": pair.margin })
    }
}

/// Records TRL's metrics. Equal rewards count as wrong.
fn observe(chosen: &[f32], rejected: &[f32], stats: &mut Stats) {
    let right = chosen.iter().zip(rejected).filter(|(chosen, rejected)| chosen > rejected).count();
    stats.mean("accuracy", right as f64, chosen.len() as f64);
    let margins: Vec<f32> = chosen.iter().zip(rejected).map(|(chosen, rejected)| chosen - rejected).collect();
    stats.mean_of("margin", &margins);
    for &reward in chosen.iter().chain(rejected) {
        stats.min("min_reward", f64::from(reward));
        stats.mean("mean_reward", f64::from(reward), 1.0);
        stats.max("max_reward", f64::from(reward));
    }
}

/// Adds the statistics that need a whole split.
fn judge(scores: &[PairScore], stats: &mut Stats) {
    let right: Vec<bool> = scores.iter().map(PairScore::is_right).collect();
    let hits = right.iter().filter(|right| **right).count();
    if let Some((low, high)) = measure::proportion_interval(hits, right.len()) {
        stats.last("accuracy_low", low);
        stats.last("accuracy_high", high);
    }
    let sure: Vec<f32> = scores.iter().map(PairScore::confidence).collect();
    let bins = measure::calibration(&sure, &right, CALIBRATION_BINS, 0.5);
    if let Some(error) = measure::expected_calibration_error(&bins) {
        stats.last("calibration_error", error);
    }
    stats.mean("longer_wins_accuracy", scores.iter().map(PairScore::longer_wins).sum(), scores.len() as f64);
    let rewards: Vec<f32> =
        scores.iter().map(|score| score.chosen).chain(scores.iter().map(|score| score.rejected)).collect();
    let lengths =
        scores.iter().map(|score| score.chosen_tokens).chain(scores.iter().map(|score| score.rejected_tokens));
    let lengths: Vec<f32> = lengths.map(|length| length as f32).collect();
    if let Some(correlation) = measure::correlation(&rewards, &lengths) {
        stats.last("reward_length_correlation", correlation);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loss_of_a_pair_is_that_of_trl() {
        let loss = |chosen, rejected, margin| {
            PairScore { row: 0, chosen, rejected, margin, chosen_tokens: 5, rejected_tokens: 3 }.loss()
        };
        // TRL 1.16.0 on the same rewards, as in `loss::reward`.
        assert!((f64::midpoint(loss(1.0, 0.2, None), loss(0.5, 0.7, None)) - 0.584_619_77).abs() < 1e-7);
        assert!((f64::midpoint(loss(1.0, 0.2, Some(0.0)), loss(0.5, 0.7, Some(0.5))) - 0.737_143_36).abs() < 1e-7);
        // The exponential of neither difference is a number.
        assert_eq!([loss(1e4, 0.0, None), loss(0.0, 1e4, None)], [0.0, 1e4]);
    }
}
