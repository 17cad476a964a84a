//! One iteration of online methods: how they sample, and how often they train on the samples.

use super::{Problems, sampling};
use crate::generate::SamplingConfig;
use crate::settings::TrainConfig;

/// One iteration of an online method. `'a` is the lifetime of its configuration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Iteration<'a> {
    /// Completions of each prompt.
    pub group_size: usize,
    /// Longest completion in tokens.
    pub max_new_tokens: usize,
    /// Sampling temperature.
    pub temperature: f64,
    /// Strings that end a completion.
    pub stop: &'a [String],
    /// Other settings of the sampled distribution.
    pub sampling: &'a SamplingConfig,
    /// Number of passes over the completions.
    pub update_epochs: usize,
    /// Number of mini-batches (optimizer steps) of one pass.
    pub mini_batches: usize,
    /// Whether trained logprobs are normalized over the tokens that could be sampled, which needs whole rows of logits in memory.
    pub normalizes_over_supports: bool,
    /// Number of vectors, each as long as the policy's trained parameters, that are held while something other than the optimizer updates
    /// the policy before the critic is trained. `None` if the optimizer updates the policy.
    pub vectors: Option<u64>,
    /// Whether each mini-batch sorts the completions of a prompt together again.
    pub regroups: bool,
}

impl Iteration<'_> {
    /// Returns the temperature of the trained log-probabilities.
    pub fn trained_temperature(&self) -> f32 {
        self.sampling.trained_temperature(self.temperature) as f32
    }

    /// Reports problems with the keys of `method`.
    pub fn rules(&self, problems: &mut Problems<'_>, method: &str, train: &TrainConfig) {
        let key = |name: &str| format!("method.{method}.{name}");
        problems.at_least(&key("max_new_tokens"), self.max_new_tokens, 1);
        problems.at_least(&key("update_epochs"), self.update_epochs, 1);
        problems.at_least(&key("mini_batches"), self.mini_batches, 1);
        problems.require(self.temperature > 0.0, &[&key("temperature")], || {
            let reason = "training needs completions that differ";
            (format!("`{}` is {}, but must be above 0: {reason}", key("temperature"), self.temperature), None)
        });
        sampling::check(problems, method, self.sampling, self.max_new_tokens, train);
        for (i, stop) in self.stop.iter().enumerate() {
            let key = key(&format!("stop[{i}]"));
            problems.require(!stop.is_empty(), &[&key], || {
                (format!("`{key}` is empty, which would end every completion before it starts"), None)
            });
        }
        let (batch, mini_batches) = (train.batch_size * self.group_size, self.mini_batches);
        let divides = mini_batches == 0 || batch.is_multiple_of(mini_batches);
        problems.require(divides, &["train.batch_size", &key("group_size"), &key("mini_batches")], || {
            let divisors: Vec<_> = (1..=batch).filter(|n| batch.is_multiple_of(*n)).collect();
            let below = divisors.iter().rev().find(|n| **n < mini_batches);
            let above = divisors.iter().find(|n| **n > mini_batches);
            let near: Vec<_> = below.into_iter().chain(above).map(ToString::to_string).collect();
            let message = format!(
                "`train.batch_size` × `{}` ({} × {} = {batch} completions) is not a multiple of `{}` ({mini_batches})",
                key("group_size"),
                train.batch_size,
                self.group_size,
                key("mini_batches"),
            );
            (message, Some(format!("{} mini-batches would divide it", near.join(" or "))))
        });
        let (prompt_and_completion, new) = (train.max_length, self.max_new_tokens);
        problems.require(new < prompt_and_completion, &[&key("max_new_tokens"), "train.max_length"], || {
            let message = format!(
                "`{}` is {new}, but `train.max_length` is {prompt_and_completion}, prompt and completion together: no prompt fits",
                key("max_new_tokens")
            );
            (message, Some(format!("raise `train.max_length` above {new}")))
        });
    }
}
