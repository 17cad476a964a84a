//! What both loops take from the configuration, resolved: every default by method has been filled in.

use rand::Rng;

use super::{EvaluationConfig, LrSchedule, TrainConfig};
use crate::batches::MicroBatch;
use crate::learner::optimizer::OptimizerConfig;
use crate::math::schedule;
use crate::model::WeightFormat;
use crate::rng::{Purpose, Seed};
use crate::run::trackers::Wanted;

/// The numbers of a run that no loop changes.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Steps (online methods: iterations) of the whole run.
    pub steps: usize,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// The shape of the learning rate after warm-up.
    pub lr_schedule: LrSchedule,
    /// Steps of warm-up.
    pub warmup: usize,
    /// The optimizer's constants.
    pub optimizer: OptimizerConfig,
    /// Gradients are scaled down to this norm; 0 turns it off.
    pub max_grad_norm: f64,
    /// How large a forward and backward pass may be.
    pub passes: MicroBatch,
    /// Whether the longest pass is tried before the first step.
    pub try_longest: bool,
    /// Log every so many steps.
    pub logging_steps: usize,
    /// Which experiment trackers are written for.
    pub trackers: Wanted,
    /// Whether completions that were trained on are kept.
    pub save_rollouts: bool,
    /// Evaluate every so many steps; 0 only at the end; -1 never.
    pub eval_steps: i64,
    /// Evaluate on so many held-out rows, drawn anew with replacement each time; all of them where absent.
    pub eval_sample: Option<usize>,
    /// How evaluations complete held-out prompts, and what measures them.
    pub evaluation: EvaluationConfig,
    /// Write a checkpoint every so many steps; 0 only at the end.
    pub save_steps: usize,
    /// Keep this many checkpoints.
    pub keep_checkpoints: usize,
    /// The held-out metric that decides which model is best.
    pub best_metric: String,
    /// Stop when it has not improved for so many evaluations; 0 never.
    pub early_stopping_patience: usize,
    /// Whether anything is put in random order: rows, and rollouts within an update.
    pub shuffle: bool,
    /// How the weights that sample are held, where that is not as the policy computes.
    pub sampling_weights: Option<WeightFormat>,
    /// The seed of the run.
    pub seed: Seed,
}

impl Settings {
    /// Resolves `config` for a run of `steps`.
    pub fn new(config: &TrainConfig, steps: usize, learning_rate: f64, best_metric: &str) -> Self {
        Self {
            steps,
            learning_rate,
            lr_schedule: config.lr_schedule,
            warmup: schedule::warmup_updates(config.warmup_steps, steps),
            optimizer: config.optimizer(),
            max_grad_norm: config.max_grad_norm,
            passes: config.passes(),
            try_longest: config.try_longest,
            logging_steps: config.logging_steps.max(1),
            trackers: Wanted { tensorboard: config.tensorboard, wandb: config.wandb },
            save_rollouts: config.save_rollouts,
            eval_steps: config.eval_steps,
            eval_sample: config.eval_sample,
            evaluation: config.evaluation.clone(),
            save_steps: config.save_steps,
            keep_checkpoints: config.keep_checkpoints,
            best_metric: config.best_metric.clone().unwrap_or_else(|| best_metric.to_owned()),
            early_stopping_patience: config.early_stopping_patience,
            shuffle: config.shuffle,
            sampling_weights: config.sampling_weights.filter(|&weights| weights != config.compute.into()),
            seed: Seed(config.seed),
        }
    }

    /// The learning rate of `step`, counted from 0, for a peak of 1.
    pub fn multiplier(&self, step: usize) -> f64 {
        self.multiplier_within(step, 0, 1)
    }

    /// The same at the part `part`, from 0, of the `parts` of a step.
    pub fn multiplier_within(&self, step: usize, part: usize, parts: usize) -> f64 {
        let in_parts = |steps: usize| steps.saturating_mul(parts);
        let (at, all, warmup) = (in_parts(step).saturating_add(part), in_parts(self.steps), in_parts(self.warmup));
        match self.lr_schedule {
            LrSchedule::Linear => schedule::linear(at, all, warmup),
            LrSchedule::Cosine => schedule::cosine(at, all, warmup),
            LrSchedule::Constant => schedule::constant(at, warmup),
        }
    }

    /// Whether the held-out rows are evaluated after `done` steps.
    pub fn evaluates_after(&self, done: usize) -> bool {
        match self.eval_steps {
            ..0 => false,
            0 => done == self.steps,
            every => done == self.steps || done.is_multiple_of(every as usize),
        }
    }

    /// Which of `rows` held-out rows the evaluation after `done` steps takes.
    pub fn evaluated(&self, done: usize, rows: usize) -> Vec<usize> {
        let Some(count) = self.eval_sample.filter(|_| rows > 0) else { return (0..rows).collect() };
        let mut stream = self.seed.stream(Purpose::EvaluationRows, done as u64, 0);
        (0..count).map(|_| stream.random_range(0..rows)).collect()
    }

    /// Whether a checkpoint is written after `done` steps.
    pub fn saves_after(&self, done: usize) -> bool {
        done == self.steps || (self.save_steps > 0 && done.is_multiple_of(self.save_steps))
    }

    /// Whether metrics are appended after `done` steps.
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
        // Its schedule counts two units an optimizer step, of which an iteration has four: 800 of warm-up, 10,000 in all.
        for (unit, expected) in [(0, 0.0), (2, 2.5e-8), (798, 9.975e-6), (800, 1e-5), (5000, 5.4348e-6), (10_000, 0.0)]
        {
            let step: usize = unit / 2;
            let found = 1e-5 * settings.multiplier_within(step / 4, step % 4, 4);
            assert!((found - expected).abs() < 5e-11, "unit {unit}: {found}");
        }
        assert_eq!(settings.multiplier_within(7, 0, 4), settings.multiplier(7));
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
