//! A penalty on completions that repeat their prompt: RL4LMs' shaping for CommonGen.

use super::{Reward, Scores, score_each};
use crate::rollout::Rollouts;

/// −1 if the lowercase completion contains the prefix, the word `generate` or `sentence`, or the prompt's text after
/// the prefix without its last character; otherwise 0.
pub struct RepeatPenalty {
    prefix: String,
}

impl RepeatPenalty {
    /// Creates a penalty for prompts that begin with `prefix`, such as `generate a sentence with: `.
    pub fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    fn value(&self, prompt: &str, completion: &str) -> f32 {
        let completion = completion.to_lowercase();
        let mut concepts = prompt.split_once(&self.prefix).map_or(prompt, |(_, concepts)| concepts).chars();
        concepts.next_back();
        let repeated = [&concepts.as_str().to_lowercase(), &self.prefix.to_lowercase(), "generate", "sentence"];
        if repeated.iter().any(|text| completion.contains(text)) { -1.0 } else { 0.0 }
    }
}

impl Reward for RepeatPenalty {
    fn name(&self) -> String {
        "repeat_penalty".into()
    }

    fn score(&mut self, rollouts: &Rollouts) -> Scores {
        score_each(rollouts, |prompt, rollout| Ok(self.value(&prompt.text, &rollout.completion)))
    }
}
