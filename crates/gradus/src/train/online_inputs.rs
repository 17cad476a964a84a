//! What a run of an online method is given, beside the algorithm and the reward.

use std::path::Path;

use super::SaveFor;
use crate::algorithm::Algorithm;
use crate::batches::{Order, Weighted};
use crate::error::Result;
use crate::evaluation::Measuring;
use crate::generate::SamplingParams;
use crate::method::Iteration;
use crate::model::CausalLm;
use crate::progress::Progress;
use crate::rollout::{Episodes, Prompt, Sampler, Scene};
use crate::settings::{RolloutsConfig, Settings};
use crate::text::Tokenizer;

/// What the loop trains on, and how.
pub struct Online<'a> {
    /// Prompts to train on.
    pub prompts: &'a [Prompt],
    /// Held-out prompts; empty turns evaluation off.
    pub held_out: &'a [Prompt],
    /// Test prompts, completed before the first iteration and after the last.
    pub test: &'a [Prompt],
    /// Which prompts an iteration takes.
    pub order: Order,
    /// Which it takes where they are drawn with replacement.
    pub weighted: Option<Weighted>,
    /// How an iteration samples.
    pub iteration: Iteration<'a>,
    /// Turns ids into text.
    pub tokenizer: &'a Tokenizer,
    /// Ids that end a completion.
    pub stop_ids: &'a [u32],
    /// The first and the last id of every completion, where the model's generation configuration forces them.
    pub forced_ids: [Option<u32>; 2],
    /// The frozen reference: for the algorithm, and for the KL of evaluations.
    pub reference: Option<&'a CausalLm>,
    /// The environment that answers the policy, where there is one.
    pub episodes: Option<&'a Episodes>,
    /// The server that samples, where one does.
    pub rollouts: Option<&'a RolloutsConfig>,
    /// Everything else.
    pub settings: &'a Settings,
    /// What completions of held-out prompts are measured with beside the reward.
    pub measuring: &'a Measuring,
    /// Writes the policy (without gradient) into a directory.
    pub save: &'a dyn Fn(&CausalLm, &Path, SaveFor) -> Result<()>,
}

impl<'a> Online<'a> {
    /// The rows whose prompts an iteration takes.
    pub(super) fn rows(&self, iteration: usize) -> Vec<usize> {
        match &self.weighted {
            Some(weighted) => weighted.batch(iteration),
            None => self.order.full_batch(iteration),
        }
    }

    /// The sampler of iterations, with the mask that `algorithm` asks for. `when` begins the names of episodes.
    pub(super) fn sampler<'s>(
        &'s self,
        algorithm: &'s dyn Algorithm,
        in_evaluation: bool,
        when: &'s str,
        progress: &'s dyn Progress,
    ) -> Sampler<'s> {
        let Iteration { group_size, max_new_tokens, temperature, stop, sampling, .. } = self.iteration;
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
