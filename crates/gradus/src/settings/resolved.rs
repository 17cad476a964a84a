//! Resolved settings of both training loops: every default of the method has been filled in.

use rand::Rng;

use super::{EvaluationConfig, TrainConfig};
use crate::batches::MicroBatch;
use crate::learner::optimizer::OptimizerConfig;
use crate::math::schedule::{Schedule, warmup_updates};
use crate::model::WeightFormat;
use crate::rng::{Purpose, Seed};
use crate::run::metrics;
use crate::trackers::EnabledTrackers;

/// Constants of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Total number of steps (online methods: iterations).
    pub steps: usize,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// Shape of the learning rate.
    pub lr_schedule: Schedule,
    /// Number of warm-up steps.
    pub warmup: usize,
    /// Constants of the optimizer.
    pub optimizer: OptimizerConfig,
    /// Maximum norm of the gradients; 0 turns clipping off.
    pub max_grad_norm: f64,
    /// Limits on the size of a forward and backward pass.
    pub passes: MicroBatch,
    /// True if the longest pass is tried before the first step.
    pub try_longest: bool,
    /// Scale of the noise on embeddings in training; `None` for no noise.
    pub noise_alpha: Option<f64>,
    /// Number of steps between rows of `metrics.jsonl`.
    pub logging_steps: usize,
    /// Enabled experiment trackers.
    pub trackers: EnabledTrackers,
    /// True if completions of training are stored.
    pub save_rollouts: bool,
    /// Number of steps between evaluations; 0: only at the end; -1: never.
    pub eval_steps: i64,
    /// Number of steps before the first of these evaluations.
    pub eval_delay: usize,
    /// Number of held-out rows per evaluation, sampled with replacement each time; `None`: all of them.
    pub eval_sample: Option<usize>,
    /// Sampling of held-out completions in evaluations, and their metrics.
    pub evaluation: EvaluationConfig,
    /// Number of steps between checkpoints; 0: only at the end.
    pub save_steps: usize,
    /// Number of checkpoints to keep.
    pub keep_checkpoints: usize,
    /// Held-out metric that selects the best model.
    pub best_metric: String,
    /// True if larger values of the best metric are better; `None`: its name decides.
    pub greater_is_better: Option<bool>,
    /// Number of evaluations without improvement before the run stops; 0: never.
    pub early_stopping_patience: usize,
    /// True if rows, and rollouts within an update, are shuffled.
    pub shuffle: bool,
    /// Format of the weights for sampling, if it differs from that of the policy.
    pub sampling_weights: Option<WeightFormat>,
    /// Seed of the run.
    pub seed: Seed,
}

/// Settings of one optimizer step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepSettings {
    /// Learning rate of this step.
    pub learning_rate: f64,
    /// Maximum norm of the gradients; 0 turns clipping off.
    pub max_grad_norm: f64,
    /// Limits on the size of a forward and backward pass.
    pub passes: MicroBatch,
    /// Scale of the noise on embeddings in training; `None` for no noise.
    pub noise_alpha: Option<f64>,
    /// Seed of the run.
    pub seed: Seed,
}

impl Settings {
    /// Resolves `config` for a run of `steps` steps.
    pub fn new(config: &TrainConfig, steps: usize, learning_rate: f64, best_metric: &str) -> Self {
        Self {
            steps,
            learning_rate,
            lr_schedule: config.lr_schedule.resolve(learning_rate, steps, config.warmup_steps),
            warmup: warmup_updates(config.warmup_steps, steps),
            optimizer: config.optimizer(),
            max_grad_norm: config.max_grad_norm,
            passes: config.passes(),
            try_longest: config.try_longest,
            noise_alpha: config.noise_alpha(),
            logging_steps: config.logging_steps.max(1),
            trackers: EnabledTrackers { tensorboard: config.tensorboard, wandb: config.wandb },
            save_rollouts: config.save_rollouts,
            eval_steps: config.eval_steps,
            eval_delay: config.eval_delay,
            eval_sample: config.eval_sample,
            evaluation: config.evaluation.clone(),
            save_steps: config.save_steps,
            keep_checkpoints: config.keep_checkpoints,
            best_metric: config.best_metric.clone().unwrap_or_else(|| best_metric.to_owned()),
            greater_is_better: config.greater_is_better,
            early_stopping_patience: config.early_stopping_patience,
            shuffle: config.shuffle,
            sampling_weights: config.sampling_weights.filter(|&weights| weights != config.compute.into()),
            seed: Seed(config.seed),
        }
    }

    /// Returns true if smaller values of the metric `name` are better.
    pub fn smaller_is_better(&self, name: &str) -> bool {
        let given = self.greater_is_better.filter(|_| name == self.best_metric);
        given.map_or_else(|| metrics::smaller_is_better(name), |greater| !greater)
    }

    /// Returns true if `value` of the best metric is better than `other`.
    pub fn is_better(&self, value: f64, other: f64) -> bool {
        metrics::is_better(!self.smaller_is_better(&self.best_metric), value, other)
    }

    /// Returns the settings of optimizer step `step`, counted from 0.
    pub fn of_step(&self, step: usize) -> StepSettings {
        let Self { max_grad_norm, passes, noise_alpha, seed, .. } = *self;
        let learning_rate = self.learning_rate * self.multiplier(step);
        StepSettings { learning_rate, max_grad_norm, passes, noise_alpha, seed }
    }

    /// Learning rate of `step`, counted from 0, for a peak of 1.
    pub fn multiplier(&self, step: usize) -> f64 {
        self.multiplier_within(step, 0, 1)
    }

    /// Learning rate in part `part`, from 0, of the `parts` of a step, for a peak of 1.
    pub fn multiplier_within(&self, step: usize, part: usize, parts: usize) -> f64 {
        let in_parts = |steps: usize| steps.saturating_mul(parts);
        let (at, all, warmup) = (in_parts(step).saturating_add(part), in_parts(self.steps), in_parts(self.warmup));
        self.lr_schedule.in_parts(parts).multiplier(at, all, warmup)
    }

    /// Returns true if the held-out rows are evaluated after `done` steps.
    pub fn evaluates_after(&self, done: usize) -> bool {
        match self.eval_steps {
            ..0 => false,
            0 => done == self.steps,
            every => done == self.steps || (done >= self.eval_delay && done.is_multiple_of(every as usize)),
        }
    }

    /// Returns the indices of the `rows` held-out rows that the evaluation after `done` steps uses.
    pub fn evaluated(&self, done: usize, rows: usize) -> Vec<usize> {
        let Some(count) = self.eval_sample.filter(|_| rows > 0) else { return (0..rows).collect() };
        let mut stream = self.seed.stream(Purpose::EvaluationRows, done as u64, 0);
        (0..count).map(|_| stream.random_range(0..rows)).collect()
    }

    /// Returns true if a checkpoint is written after `done` steps.
    pub fn saves_after(&self, done: usize) -> bool {
        done == self.steps || (self.save_steps > 0 && done.is_multiple_of(self.save_steps))
    }

    /// Returns true if metrics are logged after `done` steps.
    pub fn logs_after(&self, done: usize) -> bool {
        done == self.steps || done.is_multiple_of(self.logging_steps) || self.evaluates_after(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_learning_rate_of_fine_grained_rlhf_goes_on_within_a_step() {
        let config = TrainConfig { warmup_steps: 100.0, ..TrainConfig::default() };
        let settings = Settings::new(&config, 1250, 1e-5, "eval_reward");
        // Its schedule counts two units per optimizer step, and an iteration has four of those: 800 units of warm-up, 10,000 in total.
        for (unit, expected) in [(0, 0.0), (2, 2.5e-8), (798, 9.975e-6), (800, 1e-5), (5000, 5.4348e-6), (10_000, 0.0)]
        {
            let step: usize = unit / 2;
            let found = 1e-5 * settings.multiplier_within(step / 4, step % 4, 4);
            assert!((found - expected).abs() < 5e-11, "unit {unit}: {found}");
        }
        assert_eq!(settings.multiplier_within(7, 0, 4), settings.multiplier(7));
    }

    /// As `DefaultFlowCallback` of transformers 5.23, which compares `eval_delay` with the steps done.
    #[test]
    fn a_delay_leaves_out_the_first_evaluations_but_not_the_last_one() {
        let evaluated = |eval_delay: usize| {
            let config = TrainConfig { eval_steps: 3, eval_delay, ..TrainConfig::default() };
            let settings = Settings::new(&config, 10, 1.0, "eval_loss");
            (1..=10).filter(|&done| settings.evaluates_after(done)).collect::<Vec<_>>()
        };
        assert_eq!(evaluated(0), [3, 6, 9, 10]);
        assert_eq!(evaluated(3), [3, 6, 9, 10]);
        assert_eq!(evaluated(4), [6, 9, 10]);
        assert_eq!(evaluated(99), [10]);
    }

    /// As `greater_is_better` of transformers.
    #[test]
    fn the_key_decides_which_values_of_the_best_metric_are_better() {
        let is_better = |best_metric: &str, greater_is_better: Option<bool>| {
            let config = TrainConfig { greater_is_better, ..TrainConfig::default() };
            Settings::new(&config, 1, 1.0, best_metric).is_better(0.1, 0.2)
        };
        assert_eq!([None, Some(false), Some(true)].map(|key| is_better("eval_wer", key)), [false, true, false]);
        assert_eq!([None, Some(false), Some(true)].map(|key| is_better("eval_error_free", key)), [true, true, false]);
        // Other metrics keep their direction.
        let config = TrainConfig { greater_is_better: Some(true), ..TrainConfig::default() };
        assert!(Settings::new(&config, 1, 1.0, "eval_reward").smaller_is_better("eval_loss"));
    }

    #[test]
    fn an_evaluation_draws_with_replacement_and_anew() {
        let settings =
            |eval_sample| Settings::new(&TrainConfig { eval_sample, ..TrainConfig::default() }, 10, 1.0, "eval_loss");
        assert_eq!(settings(None).evaluated(3, 4), [0, 1, 2, 3]);
        let sampled = settings(Some(40));
        let (first, later) = (sampled.evaluated(3, 4), sampled.evaluated(4, 4));
        assert!(first.len() == 40 && first.iter().all(|&row| row < 4) && first != later);
        assert_eq!(first, settings(Some(40)).evaluated(3, 4), "the same after a resumption");
        assert!(sampled.evaluated(3, 0).is_empty());
    }
}
