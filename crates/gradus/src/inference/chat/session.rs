//! Concurrent requests to one model. Each is a row of the engine, with its own settings, stop strings and random stream.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::answer::{AnswerEnd, Flow, Listener, PartialAnswer};
use super::backend::{ChatBackend, Prompter};
use super::{ChatFormat, ChatOptions};
use crate::error::{Error, Result};
use crate::generate::sampler::logprobs_of;
use crate::generate::{Engine, Event, Request, SamplingParams, StopRule};
use crate::host::read;
use crate::model::{CausalLm, Rows, Sequence, select_rows};
use crate::rng::Stream;
use crate::text::{Tokenizer, continuation, ranges};

/// Initial capacity per row in tokens.
const CAPACITY: usize = 256;

/// Number of ids at the end of a prompt that can affect how the next ids are decoded.
const TAIL: usize = 8;

/// Maximum number of positions whose logits are in memory while a text is scored.
const SCORED_AT_ONCE: usize = 64;

/// A request for completions of one prompt.
#[derive(Debug, Clone)]
pub struct CompletionRequest {
    /// Ids of the prompt.
    pub prompt: Vec<u32>,
    /// Sampling settings. The model's own stop ids are added, and the number of tokens is limited by the model's positions.
    pub params: SamplingParams,
    /// Strings that end a completion and are not part of it.
    pub stop: Vec<String>,
    /// Random streams, one per completion.
    pub streams: Vec<Stream>,
    /// Special tokens that stay in the text, such as `[TOOL_CALLS]`. The text has no other special tokens.
    pub kept: Vec<String>,
}

/// A token with its log-probabilities.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenScore {
    /// Id of the token.
    pub id: u32,
    /// Log-probability under the model at the sampling temperature (1 if greedy), in nats.
    pub logprob: f32,
    /// The requested number of likeliest ids at this position with their log-probabilities, likeliest first.
    pub likeliest: Vec<(u32, f32)>,
    /// Rank among all ids, 1 for the likeliest. Available only if a given text is scored ([`Session::score`]).
    pub rank: Option<usize>,
}

/// An event of a row.
#[derive(Debug)]
pub enum Piece {
    /// A token was sampled.
    Token {
        /// Number of the row.
        row: usize,
        /// The sampled token.
        score: TokenScore,
        /// Text that is now final. It may belong to earlier tokens; the text of this token may come with a later one.
        text: String,
    },
    /// The completion has ended.
    End {
        /// Number of the row.
        row: usize,
        /// Text that was held back as a possible stop string.
        text: String,
        /// Reason for the end, or an error if the completion is not valid text.
        end: Result<AnswerEnd>,
    },
}

/// A model that serves many requests at the same time.
pub struct Session {
    backend: ChatBackend,
    engine: Engine<'static>,
    rows: BTreeMap<usize, RowInProgress>,
}

/// A loaded model that several sessions can share.
#[derive(Clone)]
pub struct Base(ChatBackend);

/// A row in progress.
struct RowInProgress {
    answer: PartialAnswer,
    /// Number of tokens reported so far.
    reported: usize,
}

impl Session {
    /// Loads the model. `places` rows are sampled at the same time; others wait. See [`Engine::shared`] for owners without
    /// a place.
    ///
    /// # Errors
    /// If it cannot be found or read, is a reward model, or lacks a requested chat template.
    pub fn open(options: &ChatOptions, places: usize) -> Result<Self> {
        let backend = ChatBackend::open(options)?;
        let engine = Engine::shared(&backend.model, places, CAPACITY);
        Ok(Self { backend, engine, rows: BTreeMap::new() })
    }

    /// Returns the model of this session, for further sessions that share its weights.
    pub fn base(&self) -> Base {
        Base(self.backend.clone())
    }

    /// Creates a session of `base` with the adapter in `adapter`. The weights of the base are in memory once, and the
    /// tokenizer is that of the base.
    ///
    /// # Errors
    /// If the adapter cannot be read or does not fit, or if the base already has an adapter.
    pub fn with_adapter(base: Base, adapter: &Path, places: usize) -> Result<Self> {
        let backend = base.0.with_adapter(adapter)?;
        let engine = Engine::shared(&backend.model, places, CAPACITY);
        Ok(Self { backend, engine, rows: BTreeMap::new() })
    }

    /// Returns the directory that the model was loaded from.
    pub fn directory(&self) -> &Path {
        &self.backend.directory
    }

    /// Returns the format of conversations.
    pub fn format(&self) -> ChatFormat {
        self.backend.format()
    }

    /// Returns the tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.backend.files.tokenizer
    }

    /// Returns the size of the vocabulary.
    pub fn vocab_size(&self) -> usize {
        self.backend.model.vocab_size()
    }

    /// Returns the maximum number of tokens in a prompt and its completion together, if it is limited.
    pub fn max_positions(&self) -> Option<usize> {
        self.backend.model.max_positions()
    }

    /// Returns the converter from conversations to prompts. Other threads can use it too.
    pub fn prompter(&self) -> &Prompter {
        &self.backend.prompter
    }

    /// Returns the strings that end an answer in a conversation: `requested`, and those of the format.
    pub fn stop_of(&self, requested: &[String]) -> Vec<String> {
        self.backend.stop(requested)
    }

    /// Submits a request and returns the numbers of its rows. Requests that are submitted in this way have one owner.
    ///
    /// # Errors
    /// If a setting is invalid, or if the prompt is empty, contains an id outside the vocabulary, or leaves no room.
    pub fn submit(&mut self, ask: CompletionRequest) -> Result<Range<usize>> {
        self.submit_for(0, ask)
    }

    /// Submits a request of `owner` and returns the numbers of its rows. The rows of different owners receive places in
    /// turn.
    ///
    /// # Errors
    /// Same as [`submit`](Self::submit).
    pub fn submit_for(&mut self, owner: u64, ask: CompletionRequest) -> Result<Range<usize>> {
        let CompletionRequest { prompt, params, stop, streams, kept } = ask;
        let kept: Vec<u32> = kept.iter().filter_map(|token| self.tokenizer().token_id(token)).collect();
        let params = Arc::new(self.backend.params("the prompt", prompt.len(), params)?);
        // A decoder starts from its own start id: its answer continues no text.
        let tail = match self.backend.has_encoder() {
            true => Vec::new(),
            false => prompt[prompt.len().saturating_sub(TAIL)..].to_vec(),
        };
        let rows = self.engine.submit_for(owner, Request { prompt, params, streams, is_kept: false })?;
        let answer = || PartialAnswer::new(tail.clone(), stop.clone(), false).keeping(kept.clone());
        let row_in_progress = |_| RowInProgress { answer: answer(), reported: 0 };
        self.rows.extend(rows.clone().map(|row| (row, row_in_progress(row))));
        Ok(rows)
    }

    /// Removes a row and returns whether it existed.
    pub fn cancel(&mut self, row: usize) -> bool {
        self.rows.remove(&row);
        self.engine.cancel(row)
    }

    /// Whether [`step`](Self::step) has work.
    pub fn is_busy(&self) -> bool {
        self.engine.is_busy()
    }

    /// Samples one more token for every row, and two for a row that has just received a slot.
    pub fn step(&mut self) -> Vec<Piece> {
        let tokenizer = &self.backend.files.tokenizer;
        let mut listeners = Listeners { tokenizer, rows: &mut self.rows, texts: HashMap::new() };
        let events = self.engine.step(&mut listeners);
        let mut texts = listeners.texts;
        let mut pieces = Vec::with_capacity(events.len());
        for event in events {
            match event {
                Event::Token { row, id, logprob, likeliest } => {
                    let Some(row_in_progress) = self.rows.get_mut(&row) else { continue };
                    row_in_progress.reported += 1;
                    let text = texts.remove(&(row, row_in_progress.reported)).unwrap_or_default();
                    pieces.push(Piece::Token { row, score: TokenScore { id, logprob, likeliest, rank: None }, text });
                }
                Event::Finished { row, completion } => {
                    let Some(row_in_progress) = self.rows.remove(&row) else { continue };
                    let mut text = String::new();
                    let mut on_text = |rest: &str| {
                        text.push_str(rest);
                        Flow::Continue
                    };
                    let end = row_in_progress.answer.end(tokenizer, &completion, &mut on_text).map(|answer| answer.end);
                    pieces.push(Piece::End { row, text, end });
                }
            }
        }
        pieces
    }

    /// Scores a text. Returns one entry for each id except the first, which has no predecessor: its log-probability at
    /// temperature 1, and the `likeliest` likeliest ids at its position.
    ///
    /// # Errors
    /// If an id is outside the vocabulary, if there are more ids than positions, or if the model has an encoder, which
    /// reads texts without predicting them.
    pub fn score(&self, ids: &[u32], likeliest: usize) -> Result<Vec<TokenScore>> {
        score_text(&self.backend.model, ids, likeliest)
    }

    /// Returns the text of each of `ids`, which follow `before`; joined, they are the text of all. A special id is
    /// shown by its name. A character that several ids encode belongs to the last of them.
    ///
    /// # Errors
    /// If the tokenizer cannot decode them.
    pub fn texts(&self, before: &[u32], ids: &[u32]) -> Result<Vec<String>> {
        let tokenizer = self.tokenizer();
        let before = &before[before.len().saturating_sub(TAIL)..];
        let text = continuation(tokenizer, before, ids)?;
        let of = |(range, id): (Range<usize>, &u32)| match tokenizer.is_special(*id) {
            true => tokenizer.token(*id).unwrap_or_default(),
            false => text[range].to_owned(),
        };
        Ok(ranges(tokenizer, before, ids)?.into_iter().zip(ids).map(of).collect())
    }
}

/// Scores a text with `model`; see [`Session::score`].
///
/// # Errors
/// As [`Session::score`].
pub fn score_text(model: &CausalLm, ids: &[u32], likeliest: usize) -> Result<Vec<TokenScore>> {
    if model.trunk.decoder_start().is_some() {
        return Err(Error::input("a prompt has no log-probabilities here: the model reads it with an encoder"));
    }
    let vocabulary = model.vocab_size();
    if let Some(id) = ids.iter().find(|id| **id as usize >= vocabulary) {
        let message = format!("the prompt holds token id {id}, but the model's vocabulary has {vocabulary} ids");
        return Err(Error::input(message).with_hint(format!("ids go from 0 to {}", vocabulary - 1)));
    }
    model.position_budget().check_text("the prompt", ids.len(), 0)?;
    if ids.len() < 2 {
        return Ok(Vec::new());
    }
    let batch = model.batch(&Rows::Alone(vec![Sequence::text(ids)]));
    let hidden_nd = model.hidden(&batch);
    let before: Vec<usize> = (0..ids.len() - 1).collect();
    let mut all = Vec::with_capacity(before.len());
    for positions in before.chunks(SCORED_AT_ONCE) {
        let logits_nv: Vec<f32> = read(&model.logits_of(select_rows(hidden_nd.clone(), positions)).flatten::<1>(0, 1));
        for (&position, logits_v) in positions.iter().zip(logits_nv.chunks(vocabulary)) {
            let id = ids[position + 1];
            let (logprob, likeliest) = logprobs_of(logits_v, id, likeliest);
            let above = logits_v.iter().filter(|logit| **logit > logits_v[id as usize]).count();
            all.push(TokenScore { id, logprob, likeliest, rank: Some(above + 1) });
        }
    }
    Ok(all)
}

/// Stop rule of all rows. It records the text that becomes final with each token.
struct Listeners<'a> {
    tokenizer: &'a Tokenizer,
    rows: &'a mut BTreeMap<usize, RowInProgress>,
    /// Text by row and number of tokens.
    texts: HashMap<(usize, usize), String>,
}

impl StopRule for Listeners<'_> {
    fn stops(&mut self, row: usize, completion_ids: &[u32]) -> bool {
        let Some(row_in_progress) = self.rows.get_mut(&row) else { return true };
        let text = self.texts.entry((row, completion_ids.len())).or_default();
        let mut on_text = |new: &str| {
            text.push_str(new);
            Flow::Continue
        };
        Listener::new(self.tokenizer, &mut row_in_progress.answer, &mut on_text).stops(row, completion_ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceChoice;
    use crate::inference::{Prompts, SampleOptions, ScoreOptions, Scored, logprobs, sample};
    use crate::model::{Precision, WeightFormat};
    use crate::pretrained::TextFiles;
    use crate::rng::{Purpose, Seed};

    const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/parity/trajectories/models/");

    fn session(name: &str, places: usize) -> Session {
        let options = ChatOptions {
            model: format!("{ROOT}{name}"),
            adapter: None,
            compute: Precision::F32,
            weights: WeightFormat::F32,
            text: TextFiles::default(),
            format: None,
            device: DeviceChoice::cpu(),
        };
        Session::open(&options, places).expect("a fixture")
    }

    fn ask(session: &Session, prompt: &str, max_new_tokens: usize, streams: Range<u64>) -> CompletionRequest {
        CompletionRequest {
            prompt: session.tokenizer().encode(prompt, true).expect("ids"),
            params: SamplingParams { max_new_tokens, likeliest: 2, ..SamplingParams::default() },
            stop: Vec::new(),
            streams: streams.map(|i| Seed(5).stream(Purpose::Generate, 0, i)).collect(),
            kept: Vec::new(),
        }
    }

    /// Returns text, tokens and end of every row.
    fn finish(session: &mut Session) -> BTreeMap<usize, (String, Vec<TokenScore>, AnswerEnd)> {
        let mut found: BTreeMap<usize, (String, Vec<TokenScore>, AnswerEnd)> = BTreeMap::new();
        while session.is_busy() {
            for piece in session.step() {
                match piece {
                    Piece::Token { row, score, text } => {
                        let row = found.entry(row).or_insert((String::new(), Vec::new(), AnswerEnd::Interrupted));
                        row.0 += &text;
                        row.1.push(score);
                    }
                    Piece::End { row, text, end } => {
                        let row = found.get_mut(&row).expect("tokens come before the end");
                        row.0 += &text;
                        row.2 = end.expect("a text");
                    }
                }
            }
        }
        found
    }

    #[test]
    fn requests_side_by_side_are_what_generate_samples_alone() {
        for name in ["gpt2", "qwen3"] {
            let prompts = ["The tea is", "The cup"];
            let folder = tempfile::tempdir().expect("a folder");
            let file = folder.path().join("prompts.jsonl");
            let lines = prompts.map(|prompt| format!("{}\n", serde_json::json!({ "prompt": prompt })));
            std::fs::write(&file, lines.concat()).expect("written");
            let options = SampleOptions {
                params: SamplingParams { max_new_tokens: 12, ..SamplingParams::default() },
                seed: Seed(5),
                stop: vec![" the".into()],
                model: format!("{ROOT}{name}"),
                adapter: None,
                prompts: Prompts::Data(file.to_string_lossy().into_owned()),
                group_size: 2,
                beams: None,
                rename: Vec::new(),
                max_rows: None,
                bad_rows: crate::data::BadRows::Fail,
                at_once: None,
                compute: Precision::F32,
                weights: WeightFormat::F32,
                text: TextFiles::default(),
                device: DeviceChoice::cpu(),
            };
            let mut expected = Vec::new();
            sample::<Error>(&options, &mut |_, _| {}, &mut |sampled| {
                expected.push((sampled.completion, sampled.completion_ids, sampled.logprobs));
                Ok(())
            })
            .expect("completions");

            for places in [1, 3] {
                let mut session = session(name, places);
                for (i, prompt) in prompts.iter().enumerate() {
                    let streams = 2 * i as u64..2 * i as u64 + 2;
                    let ask = CompletionRequest { stop: options.stop.clone(), ..ask(&session, prompt, 12, streams) };
                    session.submit(ask).expect("asked");
                    session.step();
                }
                // The first tokens were already reported, so the rest must be the end of the expected text.
                for (row, (text, score, _)) in finish(&mut session) {
                    let (completion, ids, logprobs) = &expected[row];
                    assert!(completion.ends_with(text.as_str()), "{name}: {completion:?} does not end with {text:?}");
                    let found: Vec<u32> = score.iter().map(|score| score.id).collect();
                    assert!(ids.ends_with(&found), "{name}: {ids:?}, {found:?}");
                    let rest = &logprobs[logprobs.len() - score.len()..];
                    let close = |(score, logprob): (&TokenScore, &f32)| (score.logprob - logprob).abs() < 1e-5;
                    assert!(score.iter().zip(rest).all(close), "{name}");
                    assert!(score.iter().all(|score| score.likeliest.len() == 2));
                }
            }
        }
    }

    #[test]
    fn the_score_of_a_text_is_that_of_the_trainer() {
        let session = session("gpt2", 1);
        let text = "The tea is warm and the cup is full";
        let ids = session.tokenizer().encode(text, true).expect("ids");
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("rows.jsonl");
        let row = serde_json::json!({ "input_ids": ids, "completion_mask": vec![1; ids.len()] });
        std::fs::write(&file, format!("{row}\n")).expect("written");
        let options = ScoreOptions {
            model: format!("{ROOT}gpt2"),
            adapter: None,
            data: file.to_string_lossy().into_owned(),
            add_eos: None,
            rename: Vec::new(),
            max_rows: None,
            bad_rows: crate::data::BadRows::Fail,
            text: TextFiles::default(),
            device: DeviceChoice::cpu(),
        };
        let mut expected = Vec::new();
        logprobs::<Error>(&options, &mut |_, _| {}, &mut |_, row| {
            let Scored::One(row) = row else { unreachable!("one row is no pair") };
            expected = row.logprobs;
            Ok(())
        })
        .expect("logprobs");
        let found = session.score(&ids, 3).expect("scored");
        assert_eq!(found.len(), ids.len() - 1);
        for (i, score) in found.iter().enumerate() {
            assert_eq!(score.id, ids[i + 1]);
            assert!((score.logprob - expected[i]).abs() < 1e-4, "{i}: {} {}", score.logprob, expected[i]);
            assert!(score.likeliest.len() == 3 && score.likeliest[0].1 >= score.logprob);
        }
        assert!(session.score(&ids[..1], 3).expect("nothing to score").is_empty());
        let outside = session.vocab_size() as u32;
        assert!(session.score(&[0, outside], 0).is_err());
        assert_eq!(session.texts(&[], &ids).expect("texts").concat(), text);
    }

    #[test]
    fn a_row_that_is_canceled_says_nothing_more() {
        let mut session = session("gpt2", 2);
        let ask = ask(&session, "The tea is", 30, 0..3);
        assert_eq!(session.submit(ask).expect("asked"), 0..3);
        session.step();
        assert!(session.cancel(0) && !session.cancel(0));
        let found = finish(&mut session);
        assert_eq!(found.keys().copied().collect::<Vec<_>>(), [1, 2]);
    }
}
