//! What is measured of rollouts: while training, and on held-out prompts.

use crate::algorithm::actor::logprobs;
use crate::error::{Error, Result};
use crate::math::kl;
use crate::math::stats::{Variance, std};
use crate::metric::{Measure, Metric, MetricConfig, Models, Row};
use crate::model::CausalLm;
use crate::process::Interrupt;
use crate::reward::{self, Count, Reward, Score, check_references, measured_rows};
use crate::rng::Purpose;
use crate::rollout::{self, Prompt, Rollouts, Sampler, StopReason};
use crate::settings::Settings;
use crate::stats::Stats;
use crate::task::{PostProcess, PostProcessor};

/// The metrics of an evaluation, and what is done to completions before.
#[derive(Default)]
pub struct Measuring {
    metrics: Vec<(String, Box<dyn Metric>)>,
    post_process: Option<Box<dyn PostProcessor>>,
}

impl Measuring {
    /// With the metrics of `configs`, which open what they ask with `models`; an `interrupt` ends the wait for programs.
    ///
    /// # Errors
    /// A file, a model or a program named in their options that cannot be had.
    pub fn new(
        configs: &[MetricConfig],
        post_process: Option<&PostProcess>,
        models: &dyn Models,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let metrics = configs.iter().map(|config| Ok((config.name(), config.build(models, interrupt)?)));
        let (metrics, post_process) =
            (metrics.collect::<Result<_>>()?, post_process.map(PostProcess::build).transpose()?);
        Ok(Self { metrics, post_process })
    }

    /// What a reader of the values must know, one sentence a metric.
    pub fn remarks(&self) -> impl Iterator<Item = String> {
        self.metrics.iter().filter_map(|(name, metric)| Some(format!("`{name}` is computed {}", metric.remark()?)))
    }

    /// Whether there is nothing to measure.
    pub fn is_empty(&self) -> bool {
        self.metrics.is_empty()
    }

    /// What metrics see of the completions.
    pub fn rows(&self, rollouts: &Rollouts) -> Vec<Row> {
        let mut rows = measured_rows(rollouts);
        if let Some(process) = &self.post_process {
            rows.iter_mut().for_each(|row| row.prediction = process.apply(&row.prediction));
        }
        rows
    }

    /// What the completions are worth beside the references of their prompts, each value under the metric's key.
    ///
    /// # Errors
    /// A prompt without what a metric compares with.
    pub fn measure(&self, rollouts: &Rollouts) -> Result<Vec<(String, Measure)>> {
        if self.is_empty() {
            return Ok(Vec::new());
        }
        let rows = self.rows(rollouts);
        let mut measured = Vec::new();
        for (name, metric) in &self.metrics {
            let found = check_references(rollouts).and_then(|()| metric.measure(&rows)).map_err(|error| {
                error.into_error(|row, message| {
                    Error::input(format!("`{name}` of prompt {}: {message}", rollouts.prompt(row).row + 1))
                })
            })?;
            measured.extend(found.into_iter().map(|measure| (measure.key(name), measure)));
        }
        Ok(measured)
    }
}

/// An evaluation on held-out prompts: as many completions of each as the sampler takes, from streams that never change.
pub struct Evaluation<'a> {
    /// The prompts.
    pub prompts: &'a [Prompt],
    /// How completions are sampled; temperature 0 is greedy.
    pub sampler: &'a Sampler<'a>,
    /// What the KL is measured against.
    pub reference: Option<&'a CausalLm>,
    /// The seed, and how large a forward pass may be.
    pub settings: &'a Settings,
    /// What the completions are measured with beside the reward.
    pub measuring: &'a Measuring,
}

/// What an evaluation found.
#[derive(Debug, Clone)]
pub struct Evaluated {
    /// The completions.
    pub rollouts: Rollouts,
    /// What they are worth.
    pub scores: Vec<Score>,
    /// The KL of each to the reference, in nats; none without a reference.
    pub kls: Option<Vec<f64>>,
    /// What metrics found, each under its key.
    pub measures: Vec<(String, Measure)>,
    /// `reward`, `reward_std`, `kl` (nats per completion), `length`, `clipped_ratio`, `rewards/…`, and the values of metrics.
    pub stats: Stats,
}

impl Evaluation<'_> {
    /// Samples, scores where there is a reward, and measures.
    ///
    /// # Errors
    /// A reward or a metric that fails.
    pub fn run(&self, policy: &CausalLm, reward: Option<&mut dyn Reward>) -> Result<Evaluated> {
        let stream = |i: usize| self.settings.seed.stream(Purpose::Evaluation, 0, i as u64);
        let rollouts = rollout::sample(policy, self.prompts.to_vec(), self.sampler, &stream)?;
        let mut stats = Stats::default();
        let scores = match reward {
            Some(reward) => {
                let scores = reward::apply(reward, &rollouts)?;
                observe_rewards(&reward.name(), &scores, &mut stats);
                scores
            }
            None => rollouts.rollouts.iter().map(|_| Score::unscored()).collect(),
        };
        let measures = self.measuring.measure(&rollouts)?;
        let lengths: Vec<f32> = rollouts.rollouts.iter().map(|rollout| rollout.completion_ids.len() as f32).collect();
        let clipped = rollouts.rollouts.iter().filter(|rollout| rollout.stop == StopReason::Length).count();
        stats.mean_of("length", &lengths);
        stats.mean("clipped_ratio", clipped as f64, rollouts.len() as f64);
        let kls = self.reference.map(|reference| {
            // Greedy completions are measured at temperature 1, sampled ones at that of the logprobs which train.
            let temperature = self.sampler.params.logprob_temperature();
            let passes = self.settings.passes;
            let [policy, reference] = [policy, reference].map(|model| logprobs(model, &rollouts, temperature, passes));
            let pairs = policy.iter().zip(&reference);
            pairs.map(|(policy_t, reference_t)| kl::of_sequence(policy_t, reference_t)).collect::<Vec<f64>>()
        });
        for &kl in kls.iter().flatten() {
            stats.mean("kl", kl, 1.0);
        }
        for (key, measure) in &measures {
            // What there is nothing to measure of has no value.
            stats.mean(key, measure.value(), f64::from(u8::from(measure.value().is_finite())));
        }
        Ok(Evaluated { rollouts, scores, kls, measures, stats })
    }
}

/// `reward`, `reward_std`, and mean and spread of the reward called `name` and of every part of it. Rollouts that were not
/// scored are left out. Counts of segments are added up over completions before they are divided.
pub fn observe_rewards(name: &str, scores: &[Score], stats: &mut Stats) {
    let totals: Vec<f32> = scores.iter().filter_map(Score::total).collect();
    stats.mean_of("reward", &totals);
    stats.mean("reward_std", std(&totals, Variance::Unbiased).unwrap_or(0.0), 1.0);
    let mut parts: Vec<(String, Vec<f32>)> = vec![(name.to_owned(), totals)];
    // A reward that is one part has that part's name.
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

/// Lengths of completions under TRL's names: as there, only of what carries loss.
pub fn observe_rollouts(rollouts: &Rollouts, stats: &mut Stats) {
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
}
