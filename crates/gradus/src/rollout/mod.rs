//! Rollouts: sampled completions with everything that scoring and updating need.
//!
//! [`Rollouts`] is the struct that rewards, advantages and updates take; nothing after sampling goes back to text
//! or to the sampler.
//!
//! A rollout is an episode of one or more turns. The policy draws a turn; where there is an environment, it answers, and the
//! policy reads the answer before it draws the next turn ([`episodes`]).

mod dialogue;
pub mod episodes;
pub mod server;

use std::borrow::Cow;

pub use crate::data::Prompt;
pub use crate::generate::StopReason;
pub use dialogue::Dialogue;
pub use episodes::{Episodes, Scene};
pub use server::ServerSource;

use std::iter::repeat_n;
use std::ops::Range;

use gradus_environments::Observation;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::generate::{BeamParams, Hooks, Masking, SamplingParams, StopRule, beam_search, generate_with};
use crate::model::{CausalLm, Support, WeightFormat};
use crate::progress::Progress;
use crate::ranks::Ranks;
use crate::rng::Stream;
use crate::text::{self, StopStrings, Tokenizer, continuation, cut_at_stop};

/// One sampled completion.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rollout {
    /// Index into [`Rollouts::prompts`].
    pub prompt: usize,
    /// The completion, decoded without special tokens, cut before a stop string.
    pub completion: String,
    /// The sampled ids, the stop id included. Never empty.
    pub completion_ids: Vec<u32>,
    /// Log-probability of each id under the distribution actually sampled from (after top-k, top-p, …), in nats; under a
    /// mask that trains, among what the mask leaves.
    pub sampled_logprobs: Vec<f32>,
    /// Log-probability of each id under the policy at the training temperature, over all ids.
    pub logprobs: Vec<f32>,
    /// What each id could have been, where the distribution sampled from is what trains; else empty, which also says that
    /// it could have been any.
    pub supports: Vec<Support>,
    /// The turns of the episode, one after the other: together they are `completion_ids`. At least one.
    pub turns: Vec<Turn>,
    /// What became of the episode; none where no environment answered.
    pub episode: Option<Episode>,
    /// Which weights sampled it, where a server did.
    pub sampled_with: Option<SampledWith>,
    /// Why the last turn ended.
    pub stop: StopReason,
}

/// The weights that a server sampled with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampledWith {
    /// What they are called there.
    pub version: String,
    /// After how many steps of the run they were the policy's.
    pub step: usize,
}

/// One turn of an episode: ids that the policy drew, then ids of the environment's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// Ids that the policy drew. They carry loss. At least one.
    pub drawn: usize,
    /// Ids of the answer, which the policy only reads. They carry no loss.
    pub answered: usize,
    /// What was said; none where no environment takes part.
    pub exchange: Option<Exchange>,
}

/// What the policy wrote in a turn, and what the environment answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Exchange {
    /// The turn of the policy.
    pub said: gradus_environments::Turn,
    /// The answer. Where [`Turn::answered`] is 0, the policy read none of its replies.
    pub observation: Observation,
}

impl Turn {
    /// A turn of `drawn` ids that nobody answers.
    pub fn unanswered(drawn: usize) -> Self {
        Self { drawn, answered: 0, exchange: None }
    }
}

/// What became of an episode.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Episode {
    /// Names it within the run: `step 12, prompt 5, completion 3`.
    pub name: String,
    /// What the environment added to the prompt.
    pub opening: Option<String>,
    /// Why it ended.
    pub end: EpisodeEnd,
    /// The environment's reward of the whole episode, beside those of its turns.
    pub reward: Option<f64>,
    /// How its ids compare with those of the whole conversation.
    pub retokenized: Retokenized,
}

/// Why an episode ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum EpisodeEnd {
    /// The environment ended it.
    Done,
    /// It had as many turns as it may have.
    Turns,
    /// The completion had no room for the next answer, or the last turn did not end within it.
    Tokens,
    /// Its answers together took longer than they may.
    Time,
    /// The environment failed. The episode has no reward, and nothing is learned from it.
    Failed(String),
}

impl EpisodeEnd {
    /// The name used in logs: `done`, `turns`, `tokens`, `time` or `failed`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Turns => "turns",
            Self::Tokens => "tokens",
            Self::Time => "time",
            Self::Failed(_) => "failed",
        }
    }
}

/// How ids that were appended compare with those of the conversation when all of it is rendered and tokenized anew at every turn, as a
/// server does that is asked for chat completions. Counts turns of the policy that were answered; the names are TRL's. Training always
/// uses the ids as they were appended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retokenized {
    /// The ids are the same.
    pub clean: usize,
    /// They differ from within the turn or its answer on. The next turn is compared with the new ids.
    pub realigned: usize,
    /// They differ before the turn: the chat template or the tokenizer changes the past.
    pub forked: usize,
}

impl Rollout {
    /// A rollout of one turn, of which no log-probabilities are known yet: they are 0.
    pub fn one_turn(prompt: usize, completion: impl Into<String>, completion_ids: Vec<u32>, stop: StopReason) -> Self {
        let tokens = completion_ids.len();
        Self {
            prompt,
            completion: completion.into(),
            completion_ids,
            sampled_logprobs: vec![0.0; tokens],
            logprobs: vec![0.0; tokens],
            supports: Vec::new(),
            turns: vec![Turn::unanswered(tokens)],
            episode: None,
            sampled_with: None,
            stop,
        }
    }

    /// How many ids carry loss.
    pub fn counted(&self) -> usize {
        self.turns.iter().map(|turn| turn.drawn).sum()
    }

    /// Whether all ids carry loss: nobody but the policy wrote.
    fn is_all_drawn(&self) -> bool {
        self.turns.iter().all(|turn| turn.answered == 0)
    }

    /// Whether each id carries loss.
    pub fn mask(&self) -> impl Iterator<Item = bool> {
        let of_turn = |turn: &Turn| repeat_n(true, turn.drawn).chain(repeat_n(false, turn.answered));
        self.turns.iter().flat_map(of_turn)
    }

    /// What was said, turn by turn; nothing where no environment took part.
    pub fn exchanges(&self) -> impl Iterator<Item = &Exchange> {
        self.turns.iter().filter_map(|turn| turn.exchange.as_ref())
    }

    /// What the environment's failure was, where the episode failed.
    pub fn failure(&self) -> Option<&str> {
        match self.episode.as_ref().map(|episode| &episode.end) {
            Some(EpisodeEnd::Failed(message)) => Some(message),
            _ => None,
        }
    }

    /// The logprobs that train: what the policy, asked again, says of each id at first.
    pub fn trained_logprobs(&self) -> &[f32] {
        if self.supports.is_empty() { &self.logprobs } else { &self.sampled_logprobs }
    }

    /// [`trained_logprobs`](Self::trained_logprobs) of the ids that carry loss.
    pub fn counted_logprobs(&self) -> Cow<'_, [f32]> {
        match self.is_all_drawn() {
            true => Cow::Borrowed(self.trained_logprobs()),
            false => self.only_counted(self.trained_logprobs()).copied().collect(),
        }
    }

    /// The policy's own logprobs of the ids that carry loss, whatever they were drawn among.
    pub fn counted_raw_logprobs(&self) -> Vec<f32> {
        self.only_counted(&self.logprobs).copied().collect()
    }

    /// What the ids that carry loss could have been; nothing where that was not recorded.
    pub fn counted_supports(&self) -> impl Iterator<Item = &Support> {
        self.only_counted(&self.supports)
    }

    /// Of what stands beside each id, that beside the ids that carry loss.
    pub(crate) fn only_counted<'r, T>(&'r self, of_ids: &'r [T]) -> impl Iterator<Item = &'r T> {
        of_ids.iter().zip(self.mask()).filter(|(_, counts)| *counts).map(|(x, _)| x)
    }

    /// Puts the logprobs of the ids that carry loss in the place of those recorded.
    pub fn replace_logprobs(&mut self, counted: &[f32]) {
        assert_eq!(counted.len(), self.counted(), "one logprob per id that carries loss");
        let mut rest = counted;
        let mut logprobs = self.logprobs.as_mut_slice();
        for turn in &self.turns {
            let (own, others) = rest.split_at(turn.drawn);
            logprobs[..turn.drawn].copy_from_slice(own);
            (rest, logprobs) = (others, &mut logprobs[turn.drawn + turn.answered..]);
        }
    }

    /// Rewards per id as rewards of the ids that carry loss: what others got goes to the one before them.
    pub fn rewards_of_counted(&self, rewards_t: &[f32]) -> Vec<f32> {
        let (mut found, mut rest): (Vec<f32>, _) = (Vec::with_capacity(self.counted()), rewards_t);
        for turn in &self.turns {
            let (own, others) = rest.split_at(turn.drawn);
            let (answered, others) = others.split_at(turn.answered);
            found.extend_from_slice(own);
            if let Some(last) = found.last_mut() {
                answered.iter().for_each(|reward| *last += reward);
            }
            rest = others;
        }
        found
    }
}

/// `P` prompts with `G` rollouts each, group after group: rollout `i` belongs to prompt `i / group_size`.
#[derive(Debug, Clone)]
pub struct Rollouts {
    /// The prompts, `P` of them.
    pub prompts: Vec<Prompt>,
    /// The rollouts, `P · G` of them, in the order of the prompts.
    pub rollouts: Vec<Rollout>,
    /// `G`, the rollouts of one prompt.
    pub group_size: usize,
    /// The tokenizer of the ids, for [`Rollouts::ranges`]; none where they stand for no text.
    pub tokenizer: Option<Tokenizer>,
}

impl Rollouts {
    /// The prompt of rollout `i`.
    pub fn prompt(&self, i: usize) -> &Prompt {
        &self.prompts[self.rollouts[i].prompt]
    }

    /// The bytes of `completion` behind each id of rollout `i`, as [`text::ranges`] finds them: without gaps, on
    /// boundaries of characters. Special ids and what a stop string cut off have an empty range. Computed when asked.
    ///
    /// # Errors
    /// Where the rollouts have no tokenizer, or it cannot decode the ids.
    pub fn ranges(&self, i: usize) -> Result<Vec<Range<usize>>> {
        let Some(tokenizer) = &self.tokenizer else {
            return Err(Error::input("these rollouts have no tokenizer that would know the text of an id"));
        };
        let Rollout { completion, completion_ids, .. } = &self.rollouts[i];
        let ranges = text::ranges(tokenizer, self.prompt(i).continued(), completion_ids)?;
        let cut = |range: Range<usize>| range.start.min(completion.len())..range.end.min(completion.len());
        Ok(ranges.into_iter().map(cut).collect())
    }

    /// How many rollouts there are, `P · G`.
    pub fn len(&self) -> usize {
        self.rollouts.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rollouts.is_empty()
    }

    /// Some groups of them, by the numbers of their rollouts.
    pub(crate) fn part(&self, range: Range<usize>) -> Self {
        let first = range.start / self.group_size.max(1);
        let prompts = first..range.end.div_ceil(self.group_size.max(1));
        let own = |rollout: &Rollout| Rollout { prompt: rollout.prompt - first, ..rollout.clone() };
        Self {
            prompts: self.prompts[prompts].to_vec(),
            rollouts: self.rollouts[range].iter().map(own).collect(),
            group_size: self.group_size,
            tokenizer: self.tokenizer.clone(),
        }
    }
}

/// How completions are sampled: what the engine needs, and where text comes in.
pub struct Sampler<'a> {
    /// Turns ids into text and watches for stop strings.
    pub tokenizer: &'a Tokenizer,
    /// Completions of each prompt.
    pub group_size: usize,
    /// The distribution and the limits.
    pub params: SamplingParams,
    /// Completions are searched for with beams, and are the best ones found; none: each is sampled by itself.
    pub beams: Option<BeamParams>,
    /// Strings that end a completion.
    pub stop: &'a [String],
    /// A mask over what is drawn; beams are not searched under it.
    pub masking: Option<Masking<'a>>,
    /// The environment that answers the turns of the policy; none: a rollout is one turn. Beams are not searched in it.
    pub episodes: Option<Scene<'a>>,
    /// Receives the progress and may end the sampling.
    pub progress: &'a dyn Progress,
}

/// A policy to sample from.
#[derive(Debug, Clone)]
pub struct Policy {
    /// The weights, without gradient.
    pub model: CausalLm,
    /// Which weights these are: it grows with every change, so a source that keeps a copy knows when it is stale.
    pub version: u64,
}

/// Who samples completions: the engine of this process ([`LocalEngine`]), or a server.
pub trait RolloutSource {
    /// Samples `group_size` completions of each prompt; completion `i` draws from `stream(i)`. With beams those of prompt `p` draw
    /// from `stream(p)`, and come with the best first. All handles to the weights of `policy` end here, so that the optimizer can
    /// write where they lie.
    ///
    /// # Errors
    /// When a setting has no meaning, a prompt does not fit, or a completion cannot be decoded; [`Error::Interrupted`] when
    /// the sampler's progress ends the sampling.
    fn sample(
        &mut self,
        policy: Policy,
        prompts: Vec<Prompt>,
        sampler: &Sampler<'_>,
        stream: &dyn Fn(usize) -> Stream,
    ) -> Result<Rollouts>;

    /// Whether the log-probabilities of its completions are those of the policy, to the bit. Where they are not, training computes
    /// them again.
    fn is_exact(&self) -> bool;

    /// Whether it samples elsewhere: then one rank asks it for all.
    fn is_remote(&self) -> bool {
        false
    }

    /// Says which iteration asks next.
    fn at(&mut self, _iteration: usize) {}

    /// How many iterations ahead of the one that trains it samples; 0 where each waits for the weights before it.
    fn ahead(&self) -> usize {
        0
    }

    /// Begins to sample what iteration `iteration` will ask for, with the weights of `policy`, unless it has begun already.
    ///
    /// # Errors
    /// As [`sample`](Self::sample).
    fn begin(
        &mut self,
        _iteration: usize,
        _policy: Policy,
        _prompts: Vec<Prompt>,
        _sampler: &Sampler<'_>,
        _stream: &dyn Fn(usize) -> Stream,
    ) -> Result<()> {
        Ok(())
    }

    /// Whether it has begun to sample for iteration `iteration`.
    fn has_begun(&self, _iteration: usize) -> bool {
        false
    }

    /// What the user should know of what happened since it was asked last.
    fn notices(&mut self) -> Vec<String> {
        Vec::new()
    }
}

/// [`RolloutSource::sample`] by all ranks: each samples its share of the prompts, and all of them get every completion. A completion's
/// random stream does not depend on who samples it.
///
/// # Errors
/// As [`RolloutSource::sample`], on any rank.
pub(crate) fn sample_on(
    ranks: Ranks,
    source: &mut dyn RolloutSource,
    policy: Policy,
    prompts: Vec<Prompt>,
    sampler: &Sampler<'_>,
    stream: &dyn Fn(usize) -> Stream,
) -> Result<Rollouts> {
    if ranks.is_alone() {
        return source.sample(policy, prompts, sampler, stream);
    }
    let own = match (source.is_remote(), ranks.is_first()) {
        (false, _) => ranks.share(prompts.len(), 1),
        (true, true) => 0..prompts.len(),
        (true, false) => prompts.len()..prompts.len(),
    };
    let first = own.start * if sampler.beams.is_some() { 1 } else { sampler.group_size };
    let earlier: Vec<usize> = prompts[..own.start].iter().map(|prompt| prompt.row).collect();
    let sampler = &Sampler {
        params: sampler.params.clone(),
        episodes: sampler.episodes.map(|scene| Scene { earlier: &earlier, ..scene }),
        ..*sampler
    };
    let found = match own.is_empty() {
        true => Ok((Vec::new(), Vec::new())),
        false => source
            .sample(policy, prompts[own.clone()].to_vec(), sampler, &|i| stream(first + i))
            .map(|found| (found.prompts, found.rollouts)),
    };
    let mut all = Rollouts {
        prompts: Vec::with_capacity(prompts.len()),
        rollouts: Vec::with_capacity(prompts.len() * sampler.group_size),
        group_size: sampler.group_size,
        tokenizer: Some(sampler.tokenizer.clone()),
    };
    // An environment may add to the prompts.
    for (prompts, rollouts) in ranks.all_ok("rollouts", found)? {
        let first = all.prompts.len();
        all.prompts.extend(prompts);
        all.rollouts.extend(rollouts.into_iter().map(|rollout| Rollout { prompt: rollout.prompt + first, ..rollout }));
    }
    Ok(all)
}

/// Samples in this process.
#[derive(Debug, Clone, Copy, Default)]
pub struct LocalEngine {
    /// Coarser weights to sample from, which is faster; none: those of the policy.
    pub weights: Option<WeightFormat>,
}

impl RolloutSource for LocalEngine {
    fn sample(
        &mut self,
        policy: Policy,
        prompts: Vec<Prompt>,
        sampler: &Sampler<'_>,
        stream: &dyn Fn(usize) -> Stream,
    ) -> Result<Rollouts> {
        let model = match self.weights {
            Some(weights) => policy.model.into_frozen(weights),
            None => policy.model,
        };
        match sampler.episodes {
            Some(Scene { episodes, when, earlier }) => {
                episodes.sample(&model, prompts, sampler, (when, earlier), stream)
            }
            None => sample(&model, prompts, sampler, stream),
        }
    }

    fn is_exact(&self) -> bool {
        self.weights.is_none()
    }
}

/// Samples from `policy`: [`RolloutSource::sample`].
fn sample(
    policy: &CausalLm,
    prompts: Vec<Prompt>,
    sampler: &Sampler<'_>,
    stream: &dyn Fn(usize) -> Stream,
) -> Result<Rollouts> {
    let ids: Vec<&[u32]> = prompts.iter().map(|prompt| prompt.ids.as_slice()).collect();
    let mut stop = StopStrings::new(sampler.tokenizer, sampler.stop.iter().cloned());
    let (group, params) = (sampler.group_size, &sampler.params);
    let hooks = Hooks { stop: &mut stop, progress: sampler.progress };
    let completions = match &sampler.beams {
        Some(beams) => {
            let found = beam_search(policy, &ids, group, (params, beams), hooks, stream)?;
            found.into_iter().map(|found| found.completion).collect()
        }
        None => generate_with((policy, sampler.masking), &ids, group, params, hooks, stream)?,
    };
    // Where nothing was ever taken out, the policy's own logprobs are those among the supports.
    let all_drawn = |supports: &[Support]| supports.iter().all(|support| *support == Support::All);
    let mut rollouts = Vec::with_capacity(completions.len());
    for (i, completion) in completions.into_iter().enumerate() {
        let prompt = i / sampler.group_size;
        let text = continuation(sampler.tokenizer, prompts[prompt].continued(), &completion.ids)?;
        rollouts.push(Rollout {
            prompt,
            completion: cut_at_stop(&text, sampler.stop).to_owned(),
            turns: vec![Turn::unanswered(completion.ids.len())],
            completion_ids: completion.ids,
            sampled_logprobs: completion.sampled_logprobs,
            logprobs: completion.logprobs,
            supports: match sampler.masking {
                Some(_) if all_drawn(&completion.supports) => Vec::new(),
                _ => completion.supports,
            },
            episode: None,
            sampled_with: None,
            stop: completion.stop,
        });
    }
    let tokenizer = Some(sampler.tokenizer.clone());
    Ok(Rollouts { prompts, rollouts, group_size: sampler.group_size, tokenizer })
}

impl StopRule for StopStrings<'_> {
    fn stops(&mut self, row: usize, completion_ids: &[u32]) -> bool {
        StopStrings::stops(self, row, completion_ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewards_of_what_a_tool_wrote_go_to_the_policy_before_it() {
        let rollout = |turns: &[(usize, usize)]| {
            let turn = |&(drawn, answered): &(usize, usize)| Turn { answered, ..Turn::unanswered(drawn) };
            let tokens: usize = turns.iter().map(|(drawn, answered)| drawn + answered).sum();
            Rollout {
                prompt: 0,
                completion: String::new(),
                completion_ids: vec![1; tokens],
                sampled_logprobs: Vec::new(),
                logprobs: (0..tokens).map(|t| -(t as f32)).collect(),
                supports: Vec::new(),
                turns: turns.iter().map(turn).collect(),
                episode: None,
                sampled_with: None,
                stop: StopReason::Length,
            }
        };
        let mut answered = rollout(&[(1, 1), (1, 1)]);
        assert_eq!(answered.mask().collect::<Vec<_>>(), [true, false, true, false]);
        assert_eq!(answered.rewards_of_counted(&[1.0, 2.0, 4.0, 8.0]), [3.0, 12.0]);
        assert_eq!((answered.counted(), &*answered.counted_logprobs()), (2, &[0.0, -2.0][..]));
        answered.replace_logprobs(&[5.0, 6.0]);
        assert_eq!(answered.logprobs, [5.0, -1.0, 6.0, -3.0]);
        let alone = rollout(&[(2, 0)]);
        assert_eq!(
            (&*alone.counted_logprobs(), alone.rewards_of_counted(&[1.0, 2.0])),
            (&[0.0, -1.0][..], vec![1.0, 2.0])
        );
    }
}
