//! Many requests to one model at once: each is a row of the engine, with its own settings, stop strings and random stream.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::answer::{AnswerEnd, Flow, Listener, UnderWay};
use super::talker::{Prompter, Talker};
use super::{ChatFormat, ChatOptions};
use crate::error::{Error, Result};
use crate::generate::sampler::logprobs_of;
use crate::generate::{Engine, Event, Request, SamplingParams, StopRule};
use crate::host::read;
use crate::model::{CausalLm, Rows, Sequence, select_rows};
use crate::rng::Stream;
use crate::text::{Tokenizer, continuation, ranges};

/// Tokens that room is made for at first, a row.
const CAPACITY: usize = 256;

/// The last ids of a prompt, which decide how what follows them reads.
const TAIL: usize = 8;

/// Positions whose logits are in memory at once while a text is scored.
const SCORED_AT_ONCE: usize = 64;

/// What is asked for: completions of one prompt.
#[derive(Debug, Clone)]
pub struct Ask {
    /// The prompt's ids.
    pub prompt: Vec<u32>,
    /// How its completions are drawn; the model's own stop ids are added, and no more tokens are drawn than it has
    /// positions.
    pub params: SamplingParams,
    /// Strings that end a completion, and are no part of it.
    pub stop: Vec<String>,
    /// One stream per completion to draw from.
    pub streams: Vec<Stream>,
}

/// A token, and what the model thought of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Said {
    /// Its id.
    pub id: u32,
    /// Its log-probability under the model at the sampling temperature (1 when greedy), in nats.
    pub logprob: f32,
    /// The likeliest ids there and their log-probabilities, the likeliest first, as many as were asked for.
    pub likeliest: Vec<(u32, f32)>,
    /// Its place among all ids, 1 for the likeliest; known where a given text is scored ([`Session::score`]).
    pub rank: Option<usize>,
}

/// What happened to a row.
#[derive(Debug)]
pub enum Piece {
    /// A token was drawn.
    Token {
        /// The row.
        row: usize,
        /// The token.
        said: Said,
        /// The text that has become certain: it may belong to tokens before, or come with one after.
        text: String,
    },
    /// The completion has ended.
    End {
        /// The row.
        row: usize,
        /// The text that was held back, because it might have become a stop string.
        text: String,
        /// Why it ended; an error when it is no text.
        end: Result<AnswerEnd>,
    },
}

/// A model that answers many requests at once.
pub struct Session {
    talker: Talker,
    engine: Engine<'static>,
    rows: BTreeMap<usize, Telling>,
}

/// A loaded model that several sessions can share.
#[derive(Clone)]
pub struct Base(Talker);

/// A row that is being sampled.
struct Telling {
    answer: UnderWay,
    /// Tokens that were told.
    told: usize,
}

impl Session {
    /// Loads the model; `places` rows are sampled side by side, others wait.
    ///
    /// # Errors
    /// When it cannot be found or read, is a reward model, or has no chat template although one is asked for.
    pub fn open(options: &ChatOptions, places: usize) -> Result<Self> {
        let talker = Talker::open(options)?;
        let engine = Engine::new(&talker.model, places, CAPACITY);
        Ok(Self { talker, engine, rows: BTreeMap::new() })
    }

    /// The model of this session, for further sessions: they share its weights.
    pub fn base(&self) -> Base {
        Base(self.talker.clone())
    }

    /// A session of `base` with the adapter in `adapter`. The weights of the base are held once, and text is read with the
    /// tokenizer of the base.
    ///
    /// # Errors
    /// When the adapter cannot be read or does not fit, or the base has an adapter already.
    pub fn with_adapter(base: Base, adapter: &Path, places: usize) -> Result<Self> {
        let talker = base.0.with_adapter(adapter)?;
        let engine = Engine::new(&talker.model, places, CAPACITY);
        Ok(Self { talker, engine, rows: BTreeMap::new() })
    }

    /// The directory the model came from.
    pub fn directory(&self) -> &Path {
        &self.talker.directory
    }

    /// How conversations are written.
    pub fn format(&self) -> ChatFormat {
        self.talker.format()
    }

    /// Turns text into ids and back.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.talker.files.tokenizer
    }

    /// Size of the vocabulary.
    pub fn vocab_size(&self) -> usize {
        self.talker.model.vocab_size()
    }

    /// How many tokens a prompt and its completion may have together, where there is a limit.
    pub fn max_positions(&self) -> Option<usize> {
        self.talker.model.max_positions()
    }

    /// What makes prompts of conversations, for another thread too.
    pub fn prompter(&self) -> &Prompter {
        &self.talker.prompter
    }

    /// The strings that end an answer of a conversation: `asked`, and those of the format.
    pub fn stop_of(&self, asked: &[String]) -> Vec<String> {
        self.talker.stop(asked)
    }

    /// Asks for completions; gives the numbers of their rows.
    ///
    /// # Errors
    /// When a setting has no meaning, or the prompt is empty, holds an id outside the vocabulary, or leaves no room.
    pub fn submit(&mut self, ask: Ask) -> Result<Range<usize>> {
        let Ask { prompt, params, stop, streams } = ask;
        let params = Arc::new(self.talker.params(prompt.len(), params)?);
        // A decoder begins anew: its answer continues nothing.
        let tail = match self.talker.has_encoder() {
            true => Vec::new(),
            false => prompt[prompt.len().saturating_sub(TAIL)..].to_vec(),
        };
        let rows = self.engine.submit(Request { prompt, params, streams, is_kept: false })?;
        let telling = |_| Telling { answer: UnderWay::new(tail.clone(), stop.clone(), false), told: 0 };
        self.rows.extend(rows.clone().map(|row| (row, telling(row))));
        Ok(rows)
    }

    /// Lets go of a row. Whether it was there.
    pub fn cancel(&mut self, row: usize) -> bool {
        self.rows.remove(&row);
        self.engine.cancel(row)
    }

    /// Whether [`step`](Self::step) has something to do.
    pub fn is_busy(&self) -> bool {
        self.engine.is_busy()
    }

    /// Draws one more token for every row, two for one that has just got its place.
    pub fn step(&mut self) -> Vec<Piece> {
        let tokenizer = &self.talker.files.tokenizer;
        let mut listeners = Listeners { tokenizer, rows: &mut self.rows, texts: HashMap::new() };
        let events = self.engine.step(&mut listeners);
        let mut texts = listeners.texts;
        let mut pieces = Vec::with_capacity(events.len());
        for event in events {
            match event {
                Event::Token { row, id, logprob, likeliest } => {
                    let Some(telling) = self.rows.get_mut(&row) else { continue };
                    telling.told += 1;
                    let text = texts.remove(&(row, telling.told)).unwrap_or_default();
                    pieces.push(Piece::Token { row, said: Said { id, logprob, likeliest, rank: None }, text });
                }
                Event::Finished { row, completion } => {
                    let Some(telling) = self.rows.remove(&row) else { continue };
                    let mut text = String::new();
                    let mut hear = |rest: &str| {
                        text.push_str(rest);
                        Flow::GoOn
                    };
                    let end = telling.answer.end(tokenizer, &completion, &mut hear).map(|answer| answer.end);
                    pieces.push(Piece::End { row, text, end });
                }
            }
        }
        pieces
    }

    /// What the model thinks of a text, one entry for each id but the first, which nothing stands before: its
    /// log-probability at temperature 1, and the `likeliest` likeliest ids in its place.
    ///
    /// # Errors
    /// When an id is outside the vocabulary, there are more than the model has positions, or the model has an encoder,
    /// which reads texts without predicting them.
    pub fn score(&self, ids: &[u32], likeliest: usize) -> Result<Vec<Said>> {
        score_text(&self.talker.model, ids, likeliest)
    }

    /// The text of each of `ids`, which stand after `before`; joined they are the text of all. A special id has its name. A
    /// character that several ids spell is the text of the last of them.
    ///
    /// # Errors
    /// When the tokenizer cannot decode them.
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

/// What `model` thinks of a text; see [`Session::score`].
///
/// # Errors
/// As [`Session::score`].
pub fn score_text(model: &CausalLm, ids: &[u32], likeliest: usize) -> Result<Vec<Said>> {
    if model.trunk.decoder_start().is_some() {
        return Err(Error::input("a prompt has no log-probabilities here: the model reads it with an encoder"));
    }
    let vocabulary = model.vocab_size();
    if let Some(id) = ids.iter().find(|id| **id as usize >= vocabulary) {
        let message = format!("the prompt holds token id {id}, but the model's vocabulary has {vocabulary} ids");
        return Err(Error::input(message));
    }
    model.position_budget().check("the prompt", ids.len(), 0)?;
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
            all.push(Said { id, logprob, likeliest, rank: Some(above + 1) });
        }
    }
    Ok(all)
}

/// Hears every row, and notes what becomes certain of its text with each token.
struct Listeners<'a> {
    tokenizer: &'a Tokenizer,
    rows: &'a mut BTreeMap<usize, Telling>,
    /// By row and number of tokens.
    texts: HashMap<(usize, usize), String>,
}

impl StopRule for Listeners<'_> {
    fn stops(&mut self, row: usize, completion_ids: &[u32]) -> bool {
        let Some(telling) = self.rows.get_mut(&row) else { return true };
        let text = self.texts.entry((row, completion_ids.len())).or_default();
        let mut hear = |new: &str| {
            text.push_str(new);
            Flow::GoOn
        };
        Listener::new(self.tokenizer, &mut telling.answer, &mut hear).stops(row, completion_ids)
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
            weights: WeightFormat::F32,
            text: TextFiles::default(),
            format: None,
            device: DeviceChoice::cpu(),
        };
        Session::open(&options, places).expect("a fixture")
    }

    fn ask(session: &Session, prompt: &str, max_new_tokens: usize, streams: Range<u64>) -> Ask {
        Ask {
            prompt: session.tokenizer().encode(prompt, true).expect("ids"),
            params: SamplingParams { max_new_tokens, likeliest: 2, ..SamplingParams::default() },
            stop: Vec::new(),
            streams: streams.map(|i| Seed(5).stream(Purpose::Generate, 0, i)).collect(),
        }
    }

    /// Text, tokens and end of every row.
    fn finish(session: &mut Session) -> BTreeMap<usize, (String, Vec<Said>, AnswerEnd)> {
        let mut found: BTreeMap<usize, (String, Vec<Said>, AnswerEnd)> = BTreeMap::new();
        while session.is_busy() {
            for piece in session.step() {
                match piece {
                    Piece::Token { row, said, text } => {
                        let row = found.entry(row).or_insert((String::new(), Vec::new(), AnswerEnd::Interrupted));
                        row.0 += &text;
                        row.1.push(said);
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
                    let ask = Ask { stop: options.stop.clone(), ..ask(&session, prompt, 12, streams) };
                    session.submit(ask).expect("asked");
                    session.step();
                }
                // The first tokens were told already: what is left must be the end of what is expected.
                for (row, (text, said, _)) in finish(&mut session) {
                    let (completion, ids, logprobs) = &expected[row];
                    assert!(completion.ends_with(text.as_str()), "{name}: {completion:?} does not end with {text:?}");
                    let found: Vec<u32> = said.iter().map(|said| said.id).collect();
                    assert!(ids.ends_with(&found), "{name}: {ids:?}, {found:?}");
                    let rest = &logprobs[logprobs.len() - said.len()..];
                    let close = |(said, logprob): (&Said, &f32)| (said.logprob - logprob).abs() < 1e-5;
                    assert!(said.iter().zip(rest).all(close), "{name}");
                    assert!(said.iter().all(|said| said.likeliest.len() == 2));
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
            text: TextFiles::default(),
            device: DeviceChoice::cpu(),
        };
        let mut expected = Vec::new();
        logprobs::<Error>(&options, &mut |_, _| {}, &mut |row| {
            let Scored::One(row) = row else { unreachable!("one row is no pair") };
            expected = row.logprobs;
            Ok(())
        })
        .expect("logprobs");
        let found = session.score(&ids, 3).expect("scored");
        assert_eq!(found.len(), ids.len() - 1);
        for (i, said) in found.iter().enumerate() {
            assert_eq!(said.id, ids[i + 1]);
            assert!((said.logprob - expected[i]).abs() < 1e-4, "{i}: {} {}", said.logprob, expected[i]);
            assert!(said.likeliest.len() == 3 && said.likeliest[0].1 >= said.logprob);
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
