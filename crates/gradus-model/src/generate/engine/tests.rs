use std::collections::BTreeMap;

use burn::tensor::Device;

use super::*;
use crate::generate::processors::History;
use crate::generate::row::Completion;
use crate::generate::{LogitsMask, NoStopRule, Record, StopReason};
use crate::model::{ModelDir, Support};
use crate::rng::{Purpose, Seed};

/// Tolerance for sums in another order, in f32.
const LOGPROB: f32 = 1e-5;

fn model(name: &str) -> CausalLm {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../gradus/tests/fixtures/parity/models");
    CausalLm::load(&ModelDir::open(&root.join(name)).expect("a fixture"), &Device::flex()).expect("a fixture")
}

fn stream(row: u64) -> Stream {
    Seed(3).stream(Purpose::Generate, 0, row)
}

fn params(max_new_tokens: usize) -> SamplingParams {
    SamplingParams { max_new_tokens, ..SamplingParams::default() }
}

fn request(prompt: &[u32], params: SamplingParams, streams: Range<u64>) -> Request {
    Request {
        prompt: prompt.to_vec(),
        params: Arc::new(params),
        streams: streams.map(stream).collect(),
        is_kept: false,
    }
}

fn kept(prompt: &[u32], params: SamplingParams, of: u64) -> Request {
    Request { is_kept: true, ..request(prompt, params, of..of + 1) }
}

fn turn(ids: &[u32], params: SamplingParams, of: u64) -> Turn {
    Turn { ids: ids.to_vec(), params: Arc::new(params), stream: stream(of) }
}

/// Runs the engine until it has no work.
fn finish(engine: &mut Engine<'_>) -> BTreeMap<usize, Completion> {
    let mut found = BTreeMap::new();
    while engine.is_busy() {
        for event in engine.step(&mut NoStopRule) {
            if let Event::Finished { row, completion } = event {
                assert!(found.insert(row, completion).is_none(), "a row ends once");
            }
        }
    }
    found
}

#[test]
fn requests_with_other_settings_beside_them_are_what_they_are_alone() {
    for name in ["gpt2", "qwen3"] {
        let model = model(name);
        let settings = [
            params(7),
            SamplingParams { temperature: 0.6, top_k: Some(20), top_p: 0.9, ..params(11) },
            SamplingParams { temperature: 0.0, repetition_penalty: 1.3, ..params(5) },
            SamplingParams { no_repeat_ngram_size: 2, suppress_tokens: (0..50).collect(), ..params(9) },
            SamplingParams {
                stop_ids: (0..60).collect(),
                min_new_tokens: 3,
                forced_eos_token_id: Some(7),
                ..params(9)
            },
            SamplingParams { min_p: 0.1, bad_words_ids: vec![vec![1], vec![2, 3]], record: Record::Drawn, ..params(4) },
        ];
        let prompt = |i: usize| -> Vec<u32> { (0..=i as u32).map(|t| (t * 5 + i as u32) % 30).collect() };
        let ask = |i: usize| request(&prompt(i), settings[i].clone(), 10 * i as u64..10 * i as u64 + 2);
        let alone: Vec<Vec<Completion>> = (0..settings.len())
            .map(|i| {
                let mut engine = Engine::new(&model, 9, 20);
                engine.submit(ask(i)).expect("fine");
                finish(&mut engine).into_values().collect()
            })
            .collect();
        for places in [2, 3, 12] {
            let mut engine = Engine::new(&model, places, 20);
            let mut found = BTreeMap::new();
            for i in 0..settings.len() {
                assert_eq!(engine.submit(ask(i)).expect("fine"), 2 * i..2 * i + 2);
                // Some requests arrive while others are in progress.
                if i % 2 == 1 {
                    for event in engine.step(&mut NoStopRule) {
                        if let Event::Finished { row, completion } = event {
                            found.insert(row, completion);
                        }
                    }
                }
            }
            found.extend(finish(&mut engine));
            assert_eq!(found.into_values().collect::<Vec<_>>(), alone.concat(), "{name}, {places} places");
        }
        let supports = &alone[5][0].supports;
        assert!(supports.len() == 4 && supports.iter().all(|support| !support.contains(1)));
        assert!(alone[0][0].supports.is_empty());
    }
}

/// Runs the engine until `row` has ended.
fn finish_of(engine: &mut Engine<'_>, row: usize) -> Completion {
    loop {
        assert!(engine.is_busy(), "the row is there");
        for event in engine.step(&mut NoStopRule) {
            match event {
                Event::Finished { row: ended, completion } if ended == row => return completion,
                _ => {}
            }
        }
    }
}

#[test]
fn a_row_goes_on_as_if_everything_before_had_been_its_prompt() {
    for name in ["gpt2", "qwen3"] {
        let model = model(name);
        let mut engine = Engine::new(&model, 2, 60);
        let mut conversation = vec![3, 1, 4];
        let row = engine.submit(kept(&conversation, params(6), 0)).expect("fine").start;
        // Another row is in progress all the time.
        engine.submit(request(&[9, 9], params(40), 7..8)).expect("fine");
        conversation.extend(finish_of(&mut engine, row).ids);
        for (i, turn_ids) in [vec![15, 9, 2], vec![6], Vec::new()].into_iter().enumerate() {
            let settings = SamplingParams { repetition_penalty: 1.2, no_repeat_ngram_size: 2, ..params(6) };
            let of = 20 + i as u64;
            assert_eq!(engine.ids(row), Some(&conversation[..]));
            engine.extend(row, turn(&turn_ids, settings.clone(), of)).expect("it goes on");
            let found = finish_of(&mut engine, row);

            conversation.extend(&turn_ids);
            let mut anew = Engine::new(&model, 1, 6);
            anew.submit(request(&conversation, settings, of..of + 1)).expect("fine");
            let expected = finish_of(&mut anew, 0);
            assert_eq!(found.ids, expected.ids, "{name}, turn {i}");
            let pairs = [(&found.logprobs, &expected.logprobs), (&found.sampled_logprobs, &expected.sampled_logprobs)];
            for (found, expected) in pairs {
                let worst = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(worst < LOGPROB, "{name}, turn {i}: {worst}");
            }
            conversation.extend(found.ids);
        }
    }
}

#[test]
fn a_conversation_does_not_compute_its_beginning_again() {
    let model = model("gpt2");
    let mut engine = Engine::new(&model, 1, 60);
    let row = engine.submit(kept(&[3, 1, 4, 1], params(5), 0)).expect("fine").start;
    finish_of(&mut engine, row);
    assert_eq!(engine.prefilled(), 4, "the prompt");
    engine.extend(row, turn(&[15, 9], params(5), 1)).expect("it goes on");
    finish_of(&mut engine, row);
    // The last id of the answer was sampled but never computed.
    assert_eq!(engine.prefilled(), 4 + 1 + 2, "and what was added");
    // Everything from the second turn on is replaced.
    assert!(engine.rewind(row, 9));
    engine.extend(row, turn(&[15, 8, 7], params(5), 2)).expect("it goes on");
    let found = finish_of(&mut engine, row);
    assert_eq!(engine.prefilled(), 7 + 3, "and what is said differently");
    let mut anew = Engine::new(&model, 1, 5);
    let joined = [&engine.ids(row).expect("kept")[..9], &[15, 8, 7]].concat();
    anew.submit(request(&joined, params(5), 2..3)).expect("fine");
    assert_eq!(found.ids, finish_of(&mut anew, 0).ids);
    // Another answer to the same prompt.
    assert!(engine.rewind(row, 3));
    engine.extend(row, turn(&[1], params(5), 0)).expect("it goes on");
    let mut first = Engine::new(&model, 1, 5);
    first.submit(request(&[3, 1, 4, 1], params(5), 0..1)).expect("fine");
    assert_eq!(finish_of(&mut engine, row).ids, finish_of(&mut first, 0).ids);
    assert!(!engine.rewind(row, 0), "its first token stays");
}

#[test]
fn a_canceled_row_leaves_its_place() {
    let model = model("gpt2");
    let mut engine = Engine::new(&model, 1, 60);
    let rows = engine.submit(request(&[3, 1], params(40), 0..3)).expect("fine");
    assert_eq!(rows, 0..3);
    engine.step(&mut NoStopRule);
    let next = engine.submit(kept(&[5], params(2), 9)).expect("fine").start;
    // One row in progress, and one that waits.
    assert!(engine.cancel(0) && engine.cancel(2));
    assert!(!engine.cancel(0), "it is gone");
    let found = finish(&mut engine);
    assert_eq!(found.keys().copied().collect::<Vec<_>>(), [1, next]);
    let mut alone = Engine::new(&model, 1, 60);
    alone.submit(request(&[3, 1], params(40), 1..2)).expect("fine");
    assert_eq!(found[&1], finish_of(&mut alone, 0));
    // The kept row occupies the only slot.
    let last = engine.submit(request(&[3], params(2), 4..5)).expect("fine").start;
    assert!(!engine.is_busy());
    assert!(engine.cancel(next) && engine.is_busy());
    assert_eq!(finish(&mut engine).len(), 1);
    assert_eq!(engine.ids(last), None, "it was not kept");
}

/// Runs the engine, whose rows end in pairs, until it has no work. Returns the pairs in order.
fn pairs_of_ends(engine: &mut Engine<'_>) -> Vec<[usize; 2]> {
    let mut rows: Vec<usize> = Vec::new();
    while engine.is_busy() {
        rows.extend(engine.step(&mut NoStopRule).into_iter().filter_map(|event| match event {
            Event::Finished { row, .. } => Some(row),
            Event::Token { .. } => None,
        }));
    }
    rows.chunks(2).map(|pair| [pair[0].min(pair[1]), pair[0].max(pair[1])]).collect()
}

#[test]
fn owners_take_turns_in_the_order_of_their_last_ones() {
    let model = model("gpt2");
    let mut engine = Engine::new(&model, 2, 9);
    for (owner, streams) in [(1, 0..6), (2, 6..8), (3, 8..10)] {
        let prompt = [3, owner as u32];
        engine.submit_for(owner, request(&prompt, params(4), streams)).expect("fine");
    }
    // Two rows end together and leave two places: 1 and 2, 3 and 1, 2 and 3, then only 1 has rows.
    assert_eq!(pairs_of_ends(&mut engine), [[0, 6], [1, 8], [7, 9], [2, 3], [4, 5]]);
    // One owner keeps the order of its rows.
    let mut engine = Engine::new(&model, 2, 9);
    for streams in [0..3, 3..6] {
        engine.submit(request(&[3, 1], params(4), streams)).expect("fine");
    }
    assert_eq!(pairs_of_ends(&mut engine), [[0, 1], [2, 3], [4, 5]]);
}

#[test]
fn an_owner_without_a_place_does_not_wait_for_the_long_rows_of_another() {
    let model = model("qwen3");
    let mut engine = Engine::shared(&model, 2, 60);
    let long = engine.submit_for(1, request(&[3, 1], params(40), 0..6)).expect("fine");
    engine.step(&mut NoStopRule);
    let short = engine.submit_for(2, request(&[5], params(3), 6..8)).expect("fine");
    let mut found = BTreeMap::new();
    let mut order = Vec::new();
    while engine.is_busy() {
        for event in engine.step(&mut NoStopRule) {
            if let Event::Finished { row, completion } = event {
                order.push(row);
                found.insert(row, completion);
            }
        }
    }
    // The reserve has one place, so the two short rows enter one after the other.
    assert_eq!(order[..2], [short.start, short.start + 1]);
    assert_eq!(found.len(), long.len() + short.len());
    let mut alone = Engine::new(&model, 8, 60);
    alone.submit(request(&[3, 1], params(40), 0..6)).expect("fine");
    alone.submit(request(&[5], params(3), 6..8)).expect("fine");
    assert_eq!(found, finish(&mut alone), "the completions do not depend on the turns");
}

#[test]
fn events_tell_every_id_in_order_and_then_the_end() {
    let model = model("gpt2");
    let mut engine = Engine::new(&model, 3, 9);
    let settings = SamplingParams { stop_ids: (0..40).collect(), likeliest: 3, repetition_penalty: 1.5, ..params(9) };
    engine.submit(request(&[3, 1], settings, 0..5)).expect("fine");
    let (mut reported, mut logprobs, mut ended) = (vec![Vec::new(); 5], vec![Vec::new(); 5], BTreeMap::new());
    while engine.is_busy() {
        for event in engine.step(&mut NoStopRule) {
            match event {
                Event::Token { row, id, logprob, likeliest } => {
                    assert!(!ended.contains_key(&row), "row {row} has ended");
                    reported[row].push(id);
                    assert_eq!(likeliest.len(), 3);
                    assert!(likeliest.is_sorted_by(|a, b| a.1 >= b.1) && logprob <= likeliest[0].1);
                    let own = likeliest.iter().find(|(other, _)| *other == id);
                    assert!(own.is_none_or(|(_, own)| *own == logprob), "one number for one id");
                    logprobs[row].push(logprob);
                }
                Event::Finished { row, completion } => {
                    assert_eq!(reported[row], completion.ids);
                    assert_eq!(logprobs[row], completion.logprobs);
                    ended.insert(row, completion.stop);
                }
            }
        }
    }
    assert_eq!(ended.len(), 5);
    let reasons: Vec<StopReason> = ended.into_values().collect();
    assert!(reasons.contains(&StopReason::StopId), "{reasons:?}");
}

/// Keeps the ids whose parity equals that of the row's length.
struct Parity;

impl LogitsMask for Parity {
    fn supports(&self, rows: &[(usize, History<'_>)], logits_bv: &[f32], _: Option<&[f32]>) -> Vec<Support> {
        let vocabulary = (logits_bv.len() / rows.len()) as u32;
        let of = |(_, history): &(usize, History<'_>)| (history.ids.len() as u32 % 2..vocabulary).step_by(2).collect();
        rows.iter().map(|row| Support::Ids(of(row))).collect()
    }
}

#[test]
fn a_mask_of_the_callers_own_changes_what_is_drawn_and_what_is_recorded() {
    let model = model("gpt2");
    let mut engine = Engine::new(&model, 2, 9).with_mask(&Parity);
    engine.submit(request(&[3, 1], SamplingParams { record: Record::Drawn, ..params(9) }, 0..4)).expect("fine");
    for completion in finish(&mut engine).into_values() {
        for (i, id) in completion.ids.iter().enumerate() {
            assert_eq!(id % 2, (2 + i as u32) % 2);
            assert!(completion.supports[i].contains(*id) && !completion.supports[i].contains(id + 1));
        }
        let above = completion.sampled_logprobs.iter().zip(&completion.logprobs).all(|(masked, raw)| masked > raw);
        assert!(above, "half of the ids are left");
    }
}

#[test]
fn what_cannot_be_sampled_is_refused() {
    let model = model("gpt2");
    let mut engine = Engine::new(&model, 1, 8);
    let refused = |result: Result<Range<usize>>| result.expect_err("refused").to_string();
    assert_eq!(refused(engine.submit(request(&[], params(2), 0..1))), "the prompt has no tokens");
    let long = refused(engine.submit(request(&[1], params(48), 0..1)));
    assert_eq!(long, "the prompt has 1 tokens; with `max_new_tokens` 48 it exceeds the model's 48 positions");
    let forced = SamplingParams { forced_bos_token_id: Some(99_999), ..params(2) };
    assert!(refused(engine.submit(request(&[1], forced, 0..1))).starts_with("`forced_bos_token_id` names token 99999"));
    let first = SamplingParams { forced_bos_token_id: Some(7), ..params(2) };
    assert_eq!(
        refused(engine.submit(request(&[1, 2], first.clone(), 0..1))),
        "the prompt has 2 tokens, but without an encoder, `forced_bos_token_id` needs prompts of one token: transformers \
         forces no id after longer ones"
    );
    let forced = Engine::new(&model, 1, 8).submit(request(&[1], first, 0..1));
    assert!(forced.is_ok(), "transformers forces it, too");
    let row = engine.submit(kept(&[1, 2], params(4), 0)).expect("fine").start;
    let continue_with = |engine: &mut Engine<'_>, ids: &[u32], new| {
        engine.extend(row, turn(ids, params(new), 1)).map_err(|error| error.to_string())
    };
    assert!(continue_with(&mut engine, &[3], 2).expect_err("it is under way").starts_with("row 0 cannot continue"));
    finish(&mut engine);
    assert!(continue_with(&mut engine, &[3, 3], 41).expect_err("no room").starts_with("the conversation has 8 tokens"));
    assert!(engine.rewind(row, 2));
    assert!(continue_with(&mut engine, &[], 2).expect_err("nothing to go on from").contains("it has no new tokens"));
    continue_with(&mut engine, &[3], 2).expect("it goes on");
}
