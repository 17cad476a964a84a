//! Measurements of rollouts, during training and on held-out prompts.

use std::collections::BTreeMap;

use crate::algorithm::Experience;
use crate::algorithm::actor::logprobs;
use crate::batches::MicroBatch;
use crate::error::{Error, Result};
use crate::math::kl;
use crate::math::stats::{Variance, std};
use crate::metric::{
    Measure, Metric, MetricConfig, Models, Perplexity, PerplexityOptions, Row, RowError, distinct_names, of_row,
    remark_on,
};
use crate::metric_models::PolicyReader;
use crate::model::CausalLm;
use crate::process::Interrupt;
use crate::ranks::Ranks;
use crate::reward::{self, Count, Reward, Score, check_references, measured_rows, row_of};
use crate::rng::{Purpose, Seed};
use crate::rollout::{self, EpisodeEnd, Policy, Prompt, Retokenized, RolloutSource, Rollouts, Sampler, StopReason};
use crate::stats::Stats;
use crate::task::{PostProcess, PostProcessor};
use crate::text::Tokenizer;

/// The metrics of an evaluation, and the post-processing of completions before them.
#[derive(Default)]
pub struct Measuring {
    metrics: Vec<(String, Measurement)>,
    post_process: Option<Box<dyn PostProcessor>>,
}

/// A measurement of completions.
enum Measurement {
    /// A metric.
    Metric(Box<dyn Metric>),
    /// The perplexity of the evaluated model.
    OfPolicy(PerplexityOptions),
}

impl Measurement {
    fn remark(&self, name: &str, prompts: &[&Prompt]) -> Option<String> {
        match self {
            Self::Metric(metric) => remark_on(name, &**metric, &mut prompts.iter().map(|prompt| row_of(prompt))),
            Self::OfPolicy(_) => None,
        }
    }

    fn measure(&self, rows: &[Row], policy: &PolicyReads<'_>) -> Result<Result<Vec<Measure>, RowError>> {
        Ok(match self {
            Self::Metric(metric) => metric.measure(rows),
            Self::OfPolicy(options) => Perplexity::of(options.clone(), Box::new(policy.reader()?))?.measure(rows),
        })
    }
}

/// The evaluated model, with the settings for reading texts with it.
#[derive(Clone, Copy)]
struct PolicyReads<'a> {
    policy: &'a CausalLm,
    tokenizer: &'a Tokenizer,
    passes: MicroBatch,
}

impl<'a> PolicyReads<'a> {
    fn reader(self) -> Result<PolicyReader<'a>> {
        if self.policy.trunk.decoder_start().is_some() {
            let message = "`perplexity` without `model` uses the evaluated model, but this model has an encoder, and a model with an encoder has no likelihood of a single text";
            return Err(Error::input(message).with_hint("name a causal language model: `perplexity: { model: … }`"));
        }
        Ok(PolicyReader { model: self.policy, tokenizer: self.tokenizer, passes: self.passes })
    }
}

/// Returns the remarks of a reward on its values for `prompts` that are not among `own`, those of the metrics.
pub fn further_remarks(own: &[String], reward: &dyn Reward, prompts: &[&Prompt]) -> Vec<String> {
    reward.remarks(prompts).into_iter().filter(|remark| !own.contains(remark)).collect()
}

impl Measuring {
    /// Creates the metrics of `configs`. Equal names get a number: `bleu`, `bleu_2`. `models` opens the models that they
    /// use; an `interrupt` ends the wait for programs.
    ///
    /// # Errors
    /// If a file, a model or a program in their options is not available.
    pub fn new(
        configs: &[MetricConfig],
        post_process: Option<&PostProcess>,
        models: &dyn Models,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let measured = |config: &MetricConfig| -> Result<Measurement> {
            Ok(match config {
                MetricConfig::Perplexity(options) if options.model.is_none() => {
                    config.check_alone()?;
                    Measurement::OfPolicy(options.clone())
                }
                config => Measurement::Metric(config.build(models, interrupt)?),
            })
        };
        let names = distinct_names(configs.iter().map(MetricConfig::name));
        let metrics = names.into_iter().zip(configs).map(|(name, config)| Ok((name, measured(config)?)));
        let (metrics, post_process) =
            (metrics.collect::<Result<_>>()?, post_process.map(PostProcess::build).transpose()?);
        Ok(Self { metrics, post_process })
    }

    /// Returns remarks that readers of the values for `prompts` need, one sentence per metric.
    pub fn remarks(&self, prompts: &[&Prompt]) -> Vec<String> {
        self.metrics.iter().filter_map(|(name, metric)| metric.remark(name, prompts)).collect()
    }

    /// Whether there are no metrics.
    pub fn is_empty(&self) -> bool {
        self.metrics.is_empty()
    }

    /// Returns the input of the metrics for the completions.
    pub fn rows(&self, rollouts: &Rollouts) -> Vec<Row> {
        let mut rows = measured_rows(rollouts);
        if let Some(process) = &self.post_process {
            rows.iter_mut().for_each(|row| row.prediction = process.apply(&row.prediction));
        }
        rows
    }

    /// Measures the completions against the references of their prompts; returns each value with the metric's key.
    ///
    /// # Errors
    /// If a prompt lacks a column that a metric needs.
    fn measure(&self, rollouts: &Rollouts, policy: &PolicyReads<'_>) -> Result<Vec<(String, Measure)>> {
        if self.is_empty() {
            return Ok(Vec::new());
        }
        let rows = self.rows(rollouts);
        let mut measured = Vec::new();
        for (name, metric) in &self.metrics {
            let found = match check_references(rollouts) {
                Ok(()) => metric.measure(&rows, policy)?,
                Err(error) => Err(error),
            };
            let found = found.map_err(|error| {
                of_row(error, |row, message| {
                    Error::input(format!("`{name}` of prompt {}: {message}", rollouts.prompt(row).row + 1))
                })
            })?;
            measured.extend(found.into_iter().map(|measure| (measure.key(name), measure)));
        }
        Ok(measured)
    }

    /// [`measure`](Self::measure) on all ranks. The first rank measures, and the others get its values: a program or a service may
    /// answer differently each time, and the values decide how the run continues. The measures of the other ranks have no row values.
    fn measure_on(
        &self,
        ranks: Ranks,
        rollouts: &Rollouts,
        policy: &PolicyReads<'_>,
    ) -> Result<Vec<(String, Measure)>> {
        if ranks.is_alone() || self.is_empty() {
            return self.measure(rollouts, policy);
        }
        let (mut own, mut sent) = (Vec::new(), Ok(Vec::new()));
        if ranks.is_first() {
            match self.measure(rollouts, policy) {
                Ok(measured) => {
                    sent = Ok(measured.iter().map(|(key, measure)| (key.clone(), measure.value())).collect());
                    own = measured;
                }
                Err(error) => sent = Err(error),
            }
        }
        let values: Vec<Vec<(String, f64)>> = ranks.all_ok("metrics", sent)?;
        if ranks.is_first() {
            return Ok(own);
        }
        Ok(values.into_iter().flatten().map(|(key, value)| (key, Measure::whole("", value))).collect())
    }
}

/// An evaluation on held-out prompts, with as many completions per prompt as the sampler is set to, from fixed random
/// streams.
pub struct Evaluation<'a> {
    /// Held-out prompts.
    pub prompts: &'a [Prompt],
    /// Sampling settings; temperature 0 is greedy.
    pub sampler: &'a Sampler<'a>,
    /// Reference of the KL.
    pub reference: Option<&'a CausalLm>,
    /// Seed of the completions' random streams.
    pub seed: Seed,
    /// Size limits of a forward pass.
    pub passes: MicroBatch,
    /// Metrics of the completions, in addition to the reward.
    pub measuring: &'a Measuring,
}

/// Results of an evaluation.
#[derive(Debug, Clone)]
pub struct Evaluated {
    /// Sampled completions.
    pub rollouts: Rollouts,
    /// Scores of the completions.
    pub scores: Vec<Score>,
    /// KL of each completion to the reference, in nats; `None` without a reference.
    pub kls: Option<Vec<f64>>,
    /// Values of metrics, each with its key.
    pub measures: Vec<(String, Measure)>,
    /// `reward`, `reward_std`, `kl` (nats per completion), `length`, `clipped_ratio`, `rewards/…`, and the values of metrics.
    pub stats: Stats,
}

impl Evaluation<'_> {
    /// Samples from `source`, applies the reward if there is one, and measures.
    ///
    /// # Errors
    /// If a reward or a metric fails, or if a metric has the name of another value.
    pub fn run(
        &self,
        source: &mut dyn RolloutSource,
        policy: &Policy,
        reward: Option<&mut dyn Reward>,
    ) -> Result<Evaluated> {
        let (ranks, passes) = (self.passes.ranks(), self.passes);
        let stream = |i: usize| self.seed.stream(Purpose::Evaluation, 0, i as u64);
        let prompts = self.prompts.to_vec();
        let rollouts = rollout::sample_on(ranks, source, policy.clone(), prompts, self.sampler, &stream)?;
        let policy = &policy.model;
        let mut stats = Stats::default();
        let scores = match reward {
            Some(reward) => {
                let scores = reward::apply_on(ranks, reward, &rollouts, self.sampler.progress)?;
                observe_rewards(&reward.name(), &scores, &mut stats);
                scores
            }
            None => rollouts.rollouts.iter().map(|_| Score::unscored()).collect(),
        };
        let reads = PolicyReads { policy, tokenizer: self.sampler.tokenizer, passes: passes.alone() };
        let measures = self.measuring.measure_on(ranks, &rollouts, &reads)?;
        let lengths: Vec<f32> = rollouts.rollouts.iter().map(|rollout| rollout.completion_ids.len() as f32).collect();
        let clipped = rollouts.rollouts.iter().filter(|rollout| rollout.stop == StopReason::Length).count();
        stats.mean_of("length", &lengths);
        stats.mean("clipped_ratio", clipped as f64, rollouts.len() as f64);
        observe_episodes(&rollouts, &mut stats);
        let kls = self.reference.map(|reference| {
            // Greedy completions are measured at temperature 1, sampled ones at the temperature of the trained
            // logprobs.
            let temperature = self.sampler.params.logprob_temperature();
            let [policy, reference] = [policy, reference].map(|model| logprobs(model, &rollouts, temperature, passes));
            let pairs = policy.iter().zip(&reference);
            pairs.map(|(policy_t, reference_t)| kl::of_sequence(policy_t, reference_t)).collect::<Vec<f64>>()
        });
        for &kl in kls.iter().flatten() {
            stats.mean("kl", kl, 1.0);
        }
        for (key, measure) in &measures {
            if stats.has(key) {
                return Err(name_is_taken(key));
            }
            // A measurement without data is NaN, and is left out. An infinite value is a result.
            let value = measure.value();
            stats.mean(key, value, f64::from(u8::from(!value.is_nan())));
        }
        Ok(Evaluated { rollouts, scores, kls, measures, stats })
    }
}

/// Names of values that evaluations of completions have, in training of a method that samples or does not.
pub fn own_names(is_online: bool) -> &'static [&'static str] {
    if is_online {
        &["length", "clipped_ratio", "kl", "reward", "reward_std"]
    } else {
        &["length", "clipped_ratio", "kl", "loss"]
    }
}

/// The error that a metric has the name of another value of its evaluation. A mean of both would be neither of them.
pub(crate) fn name_is_taken(name: &str) -> Error {
    Error::input(format!("a metric has the name `{name}`, but this is the name of another value of the evaluation"))
        .with_hint("give the metric another name; `name` is the option of a `command`")
}

/// Records `reward`, `reward_std`, and mean and spread of the reward called `name` and of each of its parts. Unscored
/// rollouts are left out. Counts of segments are summed over completions before the division.
pub(crate) fn observe_rewards(name: &str, scores: &[Score], stats: &mut Stats) {
    let totals: Vec<f32> = scores.iter().filter_map(Score::total).collect();
    stats.mean_of("reward", &totals);
    stats.mean("reward_std", std(&totals, Variance::Unbiased).unwrap_or(0.0), 1.0);
    let mut parts: Vec<(String, Vec<f32>)> = vec![(name.to_owned(), totals)];
    // A reward with a single part shares its name with the part.
    for part in scores.iter().flat_map(|score| &score.parts).filter(|part| part.name != name) {
        match parts.iter_mut().find(|(known, _)| *known == part.name) {
            Some((_, values)) => values.push(part.total()),
            None => parts.push((part.name.clone(), vec![part.total()])),
        }
    }
    for (part, values) in parts {
        stats.mean_of(&format!("rewards/{part}/mean"), &values);
        stats.mean(&format!("rewards/{part}/std"), std(&values, Variance::Unbiased).unwrap_or(0.0), 1.0);
    }
    for Count { name, sum, of } in scores.iter().flat_map(|score| &score.counts) {
        stats.mean(&format!("rewards/{name}"), *sum, *of);
    }
}

/// Records `logprobs/mean`, `logprobs/std` and `logprobs/min`: the policy's logprobs of the tokens that carry loss, in
/// nats, over all completions of an iteration. With a reference, also `logprobs/reference_mean` and
/// `logprobs/reference_std` of the same tokens. Standard deviations divide by the number of tokens.
pub(crate) fn observe_logprobs(experience: &Experience, stats: &mut Stats) {
    let own: Vec<f32> = experience.iter().flat_map(|rollout| rollout.counted_logprobs().into_owned()).collect();
    stats.mean_of("logprobs/mean", &own);
    stats.mean("logprobs/std", std(&own, Variance::Biased).unwrap_or(0.0), 1.0);
    if let Some(least) = own.iter().copied().reduce(f32::min) {
        stats.min("logprobs/min", f64::from(least));
    }
    let all: Vec<usize> = (0..experience.len()).collect();
    if let Some(reference) = experience.gather(&all, |scored| scored.reference_t.as_ref()) {
        stats.mean_of("logprobs/reference_mean", &reference);
        stats.mean("logprobs/reference_std", std(&reference, Variance::Biased).unwrap_or(0.0), 1.0);
    }
}

/// Records lengths of completions under TRL's names; as in TRL, only tokens that carry loss count. TRL has no
/// `completions/std_length`, the standard deviation, which divides by the number of completions.
pub fn observe_rollouts(rollouts: &Rollouts, stats: &mut Stats) {
    let lengths: Vec<f32> = rollouts.rollouts.iter().map(|rollout| rollout.counted() as f32).collect();
    stats.mean("completions/std_length", std(&lengths, Variance::Biased).unwrap_or(0.0), 1.0);
    for rollout in &rollouts.rollouts {
        let length = rollout.counted() as f64;
        let truncated = rollout.stop == StopReason::Length;
        stats.mean("completions/mean_length", length, 1.0);
        stats.min("completions/min_length", length);
        stats.max("completions/max_length", length);
        stats.mean("completions/clipped_ratio", f64::from(u8::from(truncated)), 1.0);
        if !truncated {
            stats.mean("completions/mean_terminated_length", length, 1.0);
            stats.min("completions/min_terminated_length", length);
            stats.max("completions/max_terminated_length", length);
        }
    }
    stats.sum("episodes", rollouts.len() as f64);
    observe_episodes(rollouts, stats);
}

/// Records statistics of environments, as means over episodes: `environment/turns`, `environment/answered_tokens`
/// (tokens that the policy only read), the shares of each end (`environment/done`, `turns_ended`, `tokens_ended`,
/// `time_ended`, `failed`), and the sums of the environment's own numbers ([`own_key`]). `environment/clean`,
/// `realigned` and `forked` are shares of the answered turns ([`Retokenized`]). An environment counts its tool calls as
/// `tools/calls` and `tools/failures`. Their statistics have TRL's names: `tools/call_frequency` (calls per episode,
/// including episodes without calls) and `tools/failure_frequency` (failures per call; absent without calls).
fn observe_episodes(rollouts: &Rollouts, stats: &mut Stats) {
    let share = |is_so: bool| f64::from(u8::from(is_so));
    let (mut calls, mut failures, mut offers_tools) = (0.0, 0.0, false);
    let mut episodes = 0.0;
    for rollout in &rollouts.rollouts {
        let Some(episode) = &rollout.episode else { continue };
        let answered: usize = rollout.turns.iter().map(|turn| turn.answered).sum();
        let Retokenized { clean, realigned, forked } = episode.retokenized;
        let compared = (clean + realigned + forked) as f64;
        let of_episode = [
            ("turns", rollout.turns.len() as f64, 1.0),
            ("answered_tokens", answered as f64, 1.0),
            ("done", share(episode.end == EpisodeEnd::Done), 1.0),
            ("turns_ended", share(episode.end == EpisodeEnd::Turns), 1.0),
            ("tokens_ended", share(episode.end == EpisodeEnd::Tokens), 1.0),
            ("time_ended", share(episode.end == EpisodeEnd::Time), 1.0),
            ("failed", share(rollout.failure().is_some()), 1.0),
            ("clean", clean as f64, compared),
            ("realigned", realigned as f64, compared),
            ("forked", forked as f64, compared),
        ];
        for (name, sum, weight) in of_episode {
            stats.mean(&format!("environment/{name}"), sum, weight);
        }
        let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
        for (name, value) in rollout.exchanges().flat_map(|exchange| &exchange.observation.metrics) {
            *sums.entry(name).or_default() += value;
        }
        let counted = sums.remove("tools/calls");
        offers_tools |= counted.is_some();
        calls += counted.unwrap_or(0.0);
        failures += sums.remove("tools/failures").unwrap_or(0.0);
        episodes += 1.0;
        for (name, sum) in sums {
            stats.mean(&own_key(name, &of_episode.map(|(known, ..)| known)), sum, 1.0);
        }
    }
    if offers_tools {
        stats.mean("tools/call_frequency", calls, episodes);
        stats.mean("tools/failure_frequency", failures, calls);
    }
}

/// Returns the key of a number that an environment calls `name`: `environment/NAME`. If it is one of the `known` names of
/// statistics, the key is `environment/own/NAME`. No two names have the same key.
fn own_key(name: &str, known: &[&str]) -> String {
    let is_taken = known.contains(&name) || name.starts_with("own/");
    format!("environment/{}{name}", if is_taken { "own/" } else { "" })
}

#[cfg(test)]
mod tests {
    use gradus_environments as env;

    use super::*;
    use crate::rollout::{Episode, EpisodeObject, Exchange, Rollout, Turn};

    #[test]
    fn numbers_of_an_environment_never_mix_with_the_statistics_of_episodes() {
        let metrics = [("turns", 9.0), ("failed", 1.0), ("own/turns", 5.0), ("right", 0.5), ("tools/calls", 3.0)];
        let metrics = metrics.map(|(name, value)| (name.to_owned(), value)).into();
        let observation = env::Observation { metrics, is_done: true, ..env::Observation::default() };
        let exchange = Some(Exchange { turn: env::Turn::default(), observation });
        let rollout = Rollout {
            turns: vec![Turn { drawn: 4, answered: 0, exchange }],
            episode: Some(Episode {
                name: String::new(),
                opening: None,
                end: EpisodeEnd::Done,
                reward: None,
                retokenized: Retokenized::default(),
                object: EpisodeObject::default(),
            }),
            ..Rollout::one_turn(0, "", vec![5; 4], StopReason::StopId)
        };
        let rollouts = Rollouts { prompts: Vec::new(), rollouts: vec![rollout], group_size: 1, tokenizer: None };
        let mut stats = Stats::default();
        observe_episodes(&rollouts, &mut stats);
        for (key, value) in [
            ("environment/turns", Some(1.0)),
            ("environment/failed", Some(0.0)),
            ("environment/done", Some(1.0)),
            ("environment/own/turns", Some(9.0)),
            ("environment/own/failed", Some(1.0)),
            ("environment/own/own/turns", Some(5.0)),
            ("environment/right", Some(0.5)),
            ("tools/call_frequency", Some(3.0)),
            ("environment/clean", None),
        ] {
            assert_eq!(stats.value(key), value, "{key}");
        }
    }
}
