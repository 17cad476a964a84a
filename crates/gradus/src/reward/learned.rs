//! Learned rewards: a reward model that scores prompt and completion as one text.

use burn::tensor::Device;

use super::{Reward, RewardError, Score, Scores, interrupted, report};
use crate::batches::MicroBatch;
use crate::data::Message;
use crate::error::Result;
use crate::host::read;
use crate::model::{Counted, ModelDir, Ranker, Rows, Sequence, WeightFormat};
use crate::progress::{Progress, Unwatched};
use crate::rollout::{Prompt, Rollout, Rollouts, StopReason};
use crate::text::think::{without_empty_thoughts, without_thoughts_after};
use crate::text::{ChatTemplate, RenderOptions, Tokenizer, without_thoughts};

/// A scalar reward model with its own tokenizer and chat template.
///
/// Texts have the same form as in reward model training. Prompt and completion are one string with the tokenizer's own
/// special tokens, plus the end-of-text token if the completion has ended. Conversations are rendered with the model's
/// own template. Text between `<think>` and `</think>` is not part of the answer and is left out.
pub struct ModelReward {
    model: Ranker,
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    passes: MicroBatch,
}

impl ModelReward {
    /// Loads the model in `dir` onto `device`, which tracks no gradients. `weights` sets the format of its weights.
    ///
    /// # Errors
    /// If `dir` does not hold a reward model, or a file is missing or corrupt.
    pub fn load(dir: &ModelDir, device: &Device, weights: WeightFormat, passes: MicroBatch) -> Result<Self> {
        let model = Ranker::load_packed(dir, weights, device)?.into_frozen(weights);
        let tokenizer = Tokenizer::of_model(dir.tokenizer_dir(), &dir.path)?;
        dir.check_vocabulary(tokenizer.vocab_size())?;
        let template = ChatTemplate::from_dir(&dir.path, &tokenizer)?;
        Ok(Self { model, tokenizer, template, passes })
    }

    /// Returns the ids for the encoder (empty without one), and those for the decoder.
    fn ids(&self, prompt: &Prompt, rollout: &Rollout) -> Result<[Vec<u32>; 2]> {
        let (prompt_text, answer_text) = without_thoughts_after(&prompt.text, &rollout.completion);
        // A completion at the length limit is unfinished, so it gets no end-of-text token.
        let ended = rollout.stop != StopReason::Length && !self.tokenizer.appends_eos();
        let eos = self.tokenizer.eos_token().filter(|_| ended).unwrap_or("");
        if self.model.encoder_reads_prompt() {
            let answer_text = format!("{answer_text}{eos}");
            return Ok([self.tokenizer.encode(&prompt_text, true)?, self.tokenizer.encode(&answer_text, true)?]);
        }
        if let (Some(messages), Some(template)) = (&prompt.messages, &self.template) {
            let mut messages = messages.clone();
            for earlier in messages.iter_mut().filter(|message| message.role == "assistant") {
                earlier.content = without_thoughts(&earlier.content).into_owned();
            }
            messages.push(Message::new("assistant", answer_text));
            let rendered = template.render(&messages, &RenderOptions::default())?.text;
            return Ok([Vec::new(), self.tokenizer.encode(&without_empty_thoughts(&rendered), false)?]);
        }
        Ok([Vec::new(), self.tokenizer.encode(&format!("{prompt_text}{answer_text}{eos}"), true)?])
    }

    /// Returns the ids of each text, or why it cannot be scored.
    fn texts(&self, rollouts: &Rollouts) -> Vec<Result<[Vec<u32>; 2], RewardError>> {
        let room = self.model.position_budget();
        let text = |i: usize| {
            let [source, target] =
                self.ids(rollouts.prompt(i), &rollouts.rollouts[i]).map_err(|error| RewardError::from(&error))?;
            if source.is_empty() && (target.is_empty() || self.model.encoder_reads_prompt()) {
                return Err(RewardError::new("prompt and completion are empty"));
            }
            if !room.holds(source.len(), target.len()) {
                let (n, longest) = (source.len() + target.len(), room.after(0).unwrap_or_default());
                return Err(RewardError::new(format!("{n} tokens, but the reward model takes at most {longest}"))
                    .with_hint("lower `max_new_tokens` or `train.max_length`"));
            }
            Ok([source, target])
        };
        (0..rollouts.len()).map(text).collect()
    }
}

impl Reward for ModelReward {
    fn name(&self) -> String {
        "model".into()
    }

    fn score(&mut self, rollouts: &Rollouts) -> Scores {
        self.score_with_progress(rollouts, &Unwatched)
    }

    fn score_with_progress(&mut self, rollouts: &Rollouts, progress: &dyn Progress) -> Scores {
        let texts = self.texts(rollouts);
        let good: Vec<Sequence<'_>> = texts.iter().flatten().map(scored).collect();
        let lengths: Vec<usize> = good.iter().map(Sequence::tokens).collect();
        let mut rewards = Vec::with_capacity(good.len());
        for pass in self.passes.split(&lengths) {
            rewards.extend(read(&self.model.rewards(&Rows::Alone(good[pass].to_vec()), None)));
            if report(progress, rewards.len(), rollouts.len()).is_err() {
                return interrupted(rollouts);
            }
        }
        let mut rewards = rewards.into_iter();
        let mut score = |(text, rollout): (Result<[Vec<u32>; 2], RewardError>, &Rollout)| {
            text.map(|_| Score::sequence(rewards.next().expect("one reward per text"), rollout.completion_ids.len()))
        };
        texts.into_iter().zip(&rollouts.rollouts).map(&mut score).collect()
    }
}

/// A text that is scored as a whole, after the encoder's source if there is one.
fn scored([source, target]: &[Vec<u32>; 2]) -> Sequence<'_> {
    Sequence { counted: Counted::Nothing, ..Sequence::completion(source, target) }
}
