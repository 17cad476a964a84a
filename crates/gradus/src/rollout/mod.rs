//! Rollouts: sampled completions with everything that scoring and updating need.
//!
//! [`Rollouts`] is the input of rewards, advantages and updates. Nothing after sampling goes back to text or to the
//! sampler.
//!
//! A rollout is an episode of one or more turns. The policy samples a turn. With an environment, the environment
//! answers, and the policy reads the answer before it samples the next turn ([`episodes`]).

mod dialogue;
pub mod episodes;
pub mod server;

use std::any::Any;
use std::borrow::{Borrow, Cow};
use std::fmt;
use std::sync::Arc;

pub use crate::data::Prompt;
pub use crate::generate::StopReason;
pub use dialogue::{Dialogue, completion_messages};
pub use episodes::{Episodes, Scene};
pub use server::ServerSource;

use std::iter::repeat_n;
use std::ops::Range;

use gradus_environments::Observation;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::generate::{BeamParams, Completion, Hooks, Masking, SamplingParams, StopRule, beam_search, generate_with};
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
    /// Log-probability of each id under the sampled distribution (after top-k, top-p, …), in nats. With a mask that
    /// also applies in training: normalized over the ids that the mask allows.
    pub sampled_logprobs: Vec<f32>,
    /// Log-probability of each id under the policy at the training temperature, over all ids.
    pub logprobs: Vec<f32>,
    /// Ids that could have been sampled at each position, if training uses the sampled distribution. Otherwise empty,
    /// which also means that every id was possible.
    pub supports: Vec<Support>,
    /// Turns of the episode in order, at least one. Together they make up `completion_ids`.
    pub turns: Vec<Turn>,
    /// Outcome of the episode; `None` without an environment.
    pub episode: Option<Episode>,
    /// Weights that sampled it, if a server did.
    pub sampled_with: Option<SampledWith>,
    /// Score that ranks it, if a search with beams found it.
    pub beam_score: Option<f32>,
    /// Why the last turn ended.
    pub stop: StopReason,
}

/// The weights that a server sampled with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampledWith {
    /// Name of the weights on the server. No other run and no other session has it.
    pub version: String,
    /// Number of steps of the run after which the policy had these weights.
    pub step: usize,
}

/// One turn of an episode: ids that the policy sampled, then ids of the environment's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// Number of ids that the policy sampled, at least one. They carry loss.
    pub drawn: usize,
    /// Number of ids of the answer, which the policy only reads. They carry no loss.
    pub answered: usize,
    /// Texts of the turn; `None` without an environment.
    pub exchange: Option<Exchange>,
}

/// A turn of the policy and the environment's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Exchange {
    /// The turn of the policy.
    #[serde(rename = "said")]
    pub turn: gradus_environments::Turn,
    /// The answer. If [`Turn::answered`] is 0, the policy read none of its replies.
    pub observation: Observation,
}

impl Turn {
    /// Creates a turn of `drawn` ids without an answer.
    pub fn unanswered(drawn: usize) -> Self {
        Self { drawn, answered: 0, exchange: None }
    }
}

/// Outcome of an episode.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Episode {
    /// Unique name within the run: `step 12, prompt 5, completion 3`.
    pub name: String,
    /// Text that the environment added to the prompt.
    pub opening: Option<String>,
    /// Reason for the end.
    pub end: EpisodeEnd,
    /// The environment's reward for the whole episode, in addition to those of its turns.
    pub reward: Option<f64>,
    /// Comparison of its ids to those of the whole conversation.
    pub retokenized: Retokenized,
    /// The environment's object of the episode.
    #[serde(skip)]
    pub object: EpisodeObject,
}

/// The object of an episode ([`gradus_environments::Episode::object`]). It is not stored, so it does not distinguish episodes.
#[derive(Clone, Default)]
pub struct EpisodeObject(pub Option<Arc<dyn Any + Send + Sync>>);

impl fmt::Debug for EpisodeObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "an object" } else { "no object" })
    }
}

impl PartialEq for EpisodeObject {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// Why an episode ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum EpisodeEnd {
    /// The environment ended it.
    Done,
    /// It reached the maximum number of turns.
    Turns,
    /// The next answer did not fit into the completion, or the last turn was cut at its limit.
    Tokens,
    /// Its answers together exceeded the time limit.
    Time,
    /// The environment failed. The episode has no reward and is not trained on.
    Failed(String),
}

impl EpisodeEnd {
    /// Returns the name used in logs: `done`, `turns`, `tokens`, `time` or `failed`.
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

/// Compares the appended ids to those of the whole conversation, rendered and tokenized again at each turn, as a chat
/// completion server does. Counts answered turns of the policy; the names are TRL's. Training always uses the appended
/// ids.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retokenized {
    /// Number of turns with the same ids in both.
    pub clean: usize,
    /// They differ from a position inside the turn or its answer. The next turn is compared to the new ids.
    pub realigned: usize,
    /// They differ before the turn: the chat template or the tokenizer changes earlier text.
    pub forked: usize,
}

impl Rollout {
    /// Creates a rollout of one turn whose log-probabilities are not known yet and set to 0.
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
            beam_score: None,
            stop,
        }
    }

    /// Returns the number of ids that carry loss.
    pub fn counted(&self) -> usize {
        self.turns.iter().map(|turn| turn.drawn).sum()
    }

    /// Whether all ids carry loss, because only the policy wrote them.
    fn is_all_drawn(&self) -> bool {
        self.turns.iter().all(|turn| turn.answered == 0)
    }

    /// Returns, for each id, whether it carries loss.
    pub fn mask(&self) -> impl Iterator<Item = bool> {
        let of_turn = |turn: &Turn| repeat_n(true, turn.drawn).chain(repeat_n(false, turn.answered));
        self.turns.iter().flat_map(of_turn)
    }

    /// Returns the exchanges, turn by turn; nothing without an environment.
    pub fn exchanges(&self) -> impl Iterator<Item = &Exchange> {
        self.turns.iter().filter_map(|turn| turn.exchange.as_ref())
    }

    /// Returns the environment's error if the episode failed.
    pub fn failure(&self) -> Option<&str> {
        match self.episode.as_ref().map(|episode| &episode.end) {
            Some(EpisodeEnd::Failed(message)) => Some(message),
            _ => None,
        }
    }

    /// Returns the log-probabilities used in training: those that the policy, before any update, assigns to each id.
    pub fn trained_logprobs(&self) -> &[f32] {
        if self.supports.is_empty() { &self.logprobs } else { &self.sampled_logprobs }
    }

    /// Returns the [`trained_logprobs`](Self::trained_logprobs) of the ids that carry loss.
    pub fn counted_logprobs(&self) -> Cow<'_, [f32]> {
        match self.is_all_drawn() {
            true => Cow::Borrowed(self.trained_logprobs()),
            false => self.only_counted(self.trained_logprobs()).copied().collect(),
        }
    }

    /// Returns the policy's own logprobs, over all ids, of the ids that carry loss.
    pub fn counted_raw_logprobs(&self) -> Vec<f32> {
        self.only_counted(&self.logprobs).copied().collect()
    }

    /// Returns the supports of the ids that carry loss; nothing if they were not recorded.
    pub fn counted_supports(&self) -> impl Iterator<Item = &Support> {
        self.only_counted(&self.supports)
    }

    /// Filters a per-id list down to the ids that carry loss.
    pub(crate) fn only_counted<'r, T>(&'r self, of_ids: &'r [T]) -> impl Iterator<Item = &'r T> {
        of_ids.iter().zip(self.mask()).filter(|(_, counts)| *counts).map(|(x, _)| x)
    }

    /// Replaces the recorded logprobs of the ids that carry loss.
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

    /// Converts rewards per id to rewards of the ids that carry loss: the reward of any other id moves to the last such
    /// id before it.
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

/// `P` prompts with `G` rollouts each, ordered by group: rollout `i` belongs to prompt `i / group_size`.
///
/// `R` is a rollout, or a rollout with the values that training adds to it.
#[derive(Debug, Clone)]
pub struct Rollouts<R = Rollout> {
    /// The `P` prompts.
    pub prompts: Vec<Prompt>,
    /// The `P · G` rollouts, in the order of the prompts.
    pub rollouts: Vec<R>,
    /// `G`, the number of rollouts of one prompt.
    pub group_size: usize,
    /// Tokenizer of the ids, for [`Rollouts::ranges`]; `None` if the ids represent no text.
    pub tokenizer: Option<Tokenizer>,
}

impl<R: Borrow<Rollout>> Rollouts<R> {
    /// Returns rollout `i`.
    pub fn rollout(&self, i: usize) -> &Rollout {
        self.rollouts[i].borrow()
    }

    /// Returns all rollouts.
    pub fn iter(&self) -> impl Iterator<Item = &Rollout> {
        self.rollouts.iter().map(Borrow::borrow)
    }

    /// Returns the prompt of rollout `i`.
    pub fn prompt(&self, i: usize) -> &Prompt {
        &self.prompts[self.rollout(i).prompt]
    }

    /// Returns the byte range in `completion` of each id of rollout `i`, as [`text::ranges`] finds them: without gaps,
    /// on character boundaries. Special ids and text after a stop string have an empty range. Computed on each call.
    ///
    /// # Errors
    /// If the rollouts have no tokenizer, or it cannot decode the ids.
    pub fn ranges(&self, i: usize) -> Result<Vec<Range<usize>>> {
        let Some(tokenizer) = &self.tokenizer else {
            return Err(Error::input("these rollouts have no tokenizer that would know the text of an id"));
        };
        let Rollout { completion, completion_ids, .. } = self.rollout(i);
        let ranges = text::ranges(tokenizer, self.prompt(i).continued(), completion_ids)?;
        let cut = |range: Range<usize>| range.start.min(completion.len())..range.end.min(completion.len());
        Ok(ranges.into_iter().map(cut).collect())
    }

    /// Returns the number of rollouts, `P · G`.
    pub fn len(&self) -> usize {
        self.rollouts.len()
    }

    /// Whether there are no rollouts.
    pub fn is_empty(&self) -> bool {
        self.rollouts.is_empty()
    }
}

impl Rollouts {
    /// Returns some of the groups, by the range of their rollouts.
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

/// Settings of sampling: those of the engine, and those that involve text.
pub struct Sampler<'a> {
    /// Tokenizer that decodes ids and finds stop strings.
    pub tokenizer: &'a Tokenizer,
    /// Number of completions of each prompt.
    pub group_size: usize,
    /// Distribution and limits.
    pub params: SamplingParams,
    /// Beam search, which returns the best completions; `None` samples each completion independently.
    pub beams: Option<BeamParams>,
    /// Strings that end a completion.
    pub stop: &'a [String],
    /// Mask over the sampled ids; not supported with beams.
    pub masking: Option<Masking<'a>>,
    /// Environment that answers the turns of the policy; without it, a rollout is one turn. Not supported with beams.
    pub episodes: Option<Scene<'a>>,
    /// Receives the progress and may end the sampling.
    pub progress: &'a dyn Progress,
}

/// A policy to sample from.
#[derive(Debug, Clone)]
pub struct Policy {
    /// Weights, without gradient.
    pub model: CausalLm,
    /// Version of the weights. It grows with each change, so a source with a copy can tell when the copy is stale.
    pub version: u64,
}

/// Source of completions: the engine of this process ([`LocalEngine`]), or a server.
pub trait RolloutSource {
    /// Samples `group_size` completions of each prompt; completion `i` uses `stream(i)`. With beams, the completions of
    /// prompt `p` use `stream(p)` and come best first. All handles to the weights of `policy` are dropped before the
    /// return, so that the optimizer can update them in place.
    ///
    /// # Errors
    /// If a setting is meaningless, a prompt does not fit, or a completion cannot be decoded; [`Error::Interrupted`] if
    /// the sampler's progress ends the sampling.
    fn sample(
        &mut self,
        policy: Policy,
        prompts: Vec<Prompt>,
        sampler: &Sampler<'_>,
        stream: &dyn Fn(usize) -> Stream,
    ) -> Result<Rollouts>;

    /// Whether the log-probabilities of its completions equal the policy's bit for bit. If not, training computes them
    /// again.
    fn is_exact(&self) -> bool;

    /// Whether it samples on another machine. Then one rank requests the completions for all.
    fn is_remote(&self) -> bool {
        false
    }

    /// Sets the iteration of the next request.
    fn at(&mut self, _iteration: usize) {}

    /// Returns how many iterations sampling runs ahead of training; 0 if each iteration waits for the previous update.
    fn ahead(&self) -> usize {
        0
    }

    /// Starts sampling for iteration `iteration` with the weights of `policy`, unless it has already started.
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

    /// Whether sampling for iteration `iteration` has started.
    fn has_begun(&self, _iteration: usize) -> bool {
        false
    }

    /// Returns messages for the user about events since the last call.
    fn notices(&mut self) -> Vec<String> {
        Vec::new()
    }
}

/// [`RolloutSource::sample`] on all ranks: each rank samples its share of the prompts, and all ranks receive all
/// completions. A completion's random stream does not depend on the rank.
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
    let (prompts, rollouts) = gather(ranks, found)?;
    let tokenizer = Some(sampler.tokenizer.clone());
    Ok(Rollouts { prompts, rollouts, group_size: sampler.group_size, tokenizer })
}

/// Joins the prompts and rollouts of all ranks. An environment may have extended the prompts. Its objects cannot be sent: a rank keeps those of
/// its own episodes, whose rewards it computes.
fn gather(ranks: Ranks, own: Result<(Vec<Prompt>, Vec<Rollout>)>) -> Result<(Vec<Prompt>, Vec<Rollout>)> {
    let object = |rollout: &Rollout| rollout.episode.as_ref().map(|episode| episode.object.clone());
    let objects: Vec<Option<EpisodeObject>> =
        own.as_ref().map_or_else(|_| Vec::new(), |(_, rollouts)| rollouts.iter().map(object).collect());
    let (mut all_prompts, mut all_rollouts) = (Vec::new(), Vec::new());
    for (rank, (prompts, mut rollouts)) in ranks.all_ok("rollouts", own)?.into_iter().enumerate() {
        if rank == ranks.rank() {
            for (rollout, object) in rollouts.iter_mut().zip(&objects) {
                if let (Some(episode), Some(object)) = (&mut rollout.episode, object) {
                    episode.object = object.clone();
                }
            }
        }
        let first = all_prompts.len();
        all_prompts.extend(prompts);
        all_rollouts.extend(rollouts.into_iter().map(|rollout| Rollout { prompt: rollout.prompt + first, ..rollout }));
    }
    Ok((all_prompts, all_rollouts))
}

/// Sampling engine of this process.
#[derive(Debug, Clone, Copy, Default)]
pub struct LocalEngine {
    /// Coarser weight format for faster sampling; `None` samples from the policy's own weights.
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
    let (group, params) = (sampler.group_size, &sampler.params);
    // A search with beams has one row per prompt.
    let rows = if sampler.beams.is_some() { 1 } else { group };
    let mut stop = StopAtStrings::new(sampler).after(&prompts, rows);
    let hooks = Hooks { stop: &mut stop, progress: sampler.progress };
    let completions: Vec<(Completion, Option<f32>)> = match &sampler.beams {
        Some(beams) => {
            let found = beam_search(policy, &ids, group, (params, beams), hooks, stream)?;
            found.into_iter().map(|found| (found.completion, Some(found.score))).collect()
        }
        None => {
            let sampled = generate_with((policy, sampler.masking), &ids, group, params, hooks, stream)?;
            sampled.into_iter().map(|completion| (completion, None)).collect()
        }
    };
    // If no id was ever excluded, the logprobs over the supports equal the policy's own.
    let all_drawn = |supports: &[Support]| supports.iter().all(|support| *support == Support::All);
    let mut rollouts = Vec::with_capacity(completions.len());
    for (i, (completion, beam_score)) in completions.into_iter().enumerate() {
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
            beam_score,
            stop: completion.stop,
        });
    }
    let tokenizer = Some(sampler.tokenizer.clone());
    Ok(Rollouts { prompts, rollouts, group_size: sampler.group_size, tokenizer })
}

/// The stop strings of a sampler, as a rule over ids.
struct StopAtStrings<'a> {
    strings: StopStrings<'a>,
    /// The last ids that each prompt's completions continue; empty if a completion's text is that of its ids alone.
    before: Vec<Vec<u32>>,
    /// Rows of each prompt.
    rows: usize,
}

impl<'a> StopAtStrings<'a> {
    fn new(sampler: &Sampler<'a>) -> Self {
        let strings = StopStrings::new(sampler.tokenizer, sampler.stop.iter().cloned());
        Self { strings, before: Vec::new(), rows: 1 }
    }

    /// Sets the prompts, each with this number of rows.
    fn after(mut self, prompts: &[Prompt], rows: usize) -> Self {
        self.before = prompts.iter().map(|prompt| self.strings.last_of(prompt.continued())).collect();
        Self { rows, ..self }
    }
}

impl StopRule for StopAtStrings<'_> {
    fn stops(&mut self, row: usize, completion_ids: &[u32]) -> bool {
        let before = self.before.get(row / self.rows).map_or(&[][..], Vec::as_slice);
        self.strings.stops(before, completion_ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranks::{PATIENCE, threads};

    /// A reward of Python reads the object of an episode's environment.
    #[test]
    fn a_rank_keeps_the_objects_of_its_own_episodes() {
        let rollout = |rank: usize| {
            let object = EpisodeObject(Some(Arc::new(rank)));
            let retokenized = Retokenized::default();
            let episode = Episode {
                name: String::new(),
                opening: None,
                end: EpisodeEnd::Done,
                reward: None,
                retokenized,
                object,
            };
            Rollout { episode: Some(episode), ..Rollout::one_turn(0, "", vec![5], StopReason::StopId) }
        };
        let work = |link| {
            let ranks = Ranks::new(link, PATIENCE);
            let (_, all) = gather(ranks, Ok((Vec::new(), vec![rollout(ranks.rank())]))).expect("gathered");
            let object =
                |rollout: &Rollout| rollout.episode.as_ref()?.object.0.as_ref()?.downcast_ref::<usize>().copied();
            all.iter().map(object).collect::<Vec<Option<usize>>>()
        };
        let found: Vec<_> = std::thread::scope(|scope| {
            let work = &work;
            let ranks: Vec<_> = threads(2).into_iter().map(|link| scope.spawn(move || work(link))).collect();
            ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect()
        });
        assert_eq!(found, [[Some(0), None], [None, Some(1)]]);
    }

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
                beam_score: None,
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
