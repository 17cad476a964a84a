//! Inputs of an online training run, except for the algorithm and the reward.

use std::path::Path;

use super::SaveFor;
use crate::algorithm::Algorithm;
use crate::batches::{Order, Weighted};
use crate::error::Result;
use crate::evaluation::Measuring;
use crate::generate::SamplingParams;
use crate::method::{Iteration, RolloutKeys};
use crate::model::{CausalLm, Reference};
use crate::progress::Progress;
use crate::rollout::{Episodes, Prompt, Sampler, Scene};
use crate::settings::{RolloutsConfig, Settings};
use crate::text::Tokenizer;

/// Data, models and settings of the loop.
pub struct Online<'a> {
    /// Prompts to train on.
    pub prompts: &'a [Prompt],
    /// Held-out prompts; empty turns evaluation off.
    pub held_out: &'a [Prompt],
    /// Test prompts, completed before the first iteration and after the last one.
    pub test: &'a [Prompt],
    /// Order of the prompts.
    pub order: Order,
    /// Weighted choice of prompts, if they are sampled with replacement.
    pub weighted: Option<Weighted>,
    /// Settings of an iteration.
    pub iteration: Iteration<'a>,
    /// Tokenizer for decoding.
    pub tokenizer: &'a Tokenizer,
    /// Ids that end a completion.
    pub stop_ids: &'a [u32],
    /// First and last id of every completion, if the model's generation configuration forces them.
    pub forced_ids: [Option<u32>; 2],
    /// Reference, for the algorithm and for the KL of evaluations.
    pub reference: Option<&'a Reference>,
    /// Environment that replies to the policy, if there is one.
    pub episodes: Option<&'a Episodes>,
    /// Server that samples, if there is one.
    pub rollouts: Option<&'a RolloutsConfig>,
    /// Settings of the run.
    pub settings: &'a Settings,
    /// Metrics of held-out completions, in addition to the reward.
    pub measuring: &'a Measuring,
    /// Writes the policy (without gradients) into a directory.
    pub save: &'a dyn Fn(&CausalLm, &Path, SaveFor) -> Result<()>,
}

impl<'a> Online<'a> {
    /// Returns the rows of an iteration's prompts.
    pub(super) fn rows(&self, iteration: usize) -> Vec<usize> {
        match &self.weighted {
            Some(weighted) => weighted.batch(iteration),
            None => self.order.full_batch(iteration),
        }
    }

    /// Returns the sampler of iterations or evaluations, with the mask of `algorithm`. Names of episodes begin with `when`.
    pub(super) fn sampler<'s>(
        &'s self,
        algorithm: &'s dyn Algorithm,
        in_evaluation: bool,
        when: &'s str,
        progress: &'s dyn Progress,
    ) -> Sampler<'s> {
        let RolloutKeys { group_size, max_new_tokens, temperature, ref stop, ref sampling, .. } =
            *self.iteration.rollouts;
        Sampler {
            tokenizer: self.tokenizer,
            group_size,
            params: sampling
                .apply(SamplingParams {
                    temperature: temperature as f32,
                    max_new_tokens,
                    stop_ids: self.stop_ids.to_vec(),
                    ..SamplingParams::default()
                })
                .forcing(self.forced_ids),
            beams: None,
            stop,
            masking: algorithm.masking(in_evaluation),
            episodes: self.episodes.map(|episodes| Scene { episodes, when, earlier: &[] }),
            progress,
        }
    }
}
