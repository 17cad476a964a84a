//! The sampler compared to transformers' logits processors: the processed logits, and the ids sampled from them.

use gradus::generate::sampler::{choose, processed_logprobs};
use gradus::generate::{History, Kept, LikeliestMask, SamplingParams};
use gradus::rng::{Purpose, Seed};
use serde_json::Value;

use crate::fixture::*;

/// Tolerance of log-probabilities in f32, relative to their size or 1.
const LOGPROB: f64 = 2e-6;

/// Number of draws per case.
const DRAWS: u64 = 200;

fn params(settings: &Value) -> SamplingParams {
    let given = |key: &str, default: f64| settings.get(key).map_or(default, number) as f32;
    SamplingParams {
        temperature: given("temperature", 1.0),
        top_k: settings.get("top_k").map(|k| number(k) as usize),
        top_p: given("top_p", 1.0),
        min_p: given("min_p", 0.0),
        typical_p: given("typical_p", 1.0),
        repetition_penalty: given("repetition_penalty", 1.0),
        no_repeat_ngram_size: given("no_repeat_ngram_size", 0.0) as usize,
        encoder_no_repeat_ngram_size: given("encoder_no_repeat_ngram_size", 0.0) as usize,
        min_new_tokens: given("min_new_tokens", 0.0) as usize,
        max_new_tokens: given("max_new_tokens", 256.0) as usize,
        bad_words_ids: settings.get("bad_words_ids").map_or(Vec::new(), |words| list(words).iter().map(ids).collect()),
        suppress_tokens: settings.get("suppress_tokens").map_or(Vec::new(), ids),
        stop_ids: settings.get("eos_token_id").map_or(Vec::new(), ids),
        forced_bos_token_id: settings.get("forced_bos_token_id").map(|id| number(id) as u32),
        forced_eos_token_id: settings.get("forced_eos_token_id").map(|id| number(id) as u32),
        ..SamplingParams::default()
    }
}

fn ids(values: &Value) -> Vec<u32> {
    flat(values).iter().map(|id| *id as u32).collect()
}

#[test]
fn distributions_and_draws_of_transformers() {
    let fixture = read("sampling/sampling.json");
    for case in list(&fixture["cases"]).iter().chain(list(&fixture["cases_of_ids"])) {
        let previous = ids(case.get("previous_ids").unwrap_or(&fixture["previous_ids"]));
        let prompt = case.get("prompt_length").map_or(previous.len(), |length| number(length) as usize);
        let source = case.get("source_ids").filter(|source| !source.is_null()).map(ids);
        let history = History::new(&previous, previous.len() - prompt);
        let history = source.as_deref().map_or(history, |source| history.with_encoder(source));
        let params = params(&case["settings"]);
        for (row, expected) in case["logprobs"].as_object().expect("rows of logits") {
            let name = format!("{} {row}", case["settings"]);
            let logits = flat32(&fixture["logits"][row]);
            let expected: Vec<f64> =
                list(expected).iter().map(|logprob| logprob.as_f64().unwrap_or(f64::NEG_INFINITY)).collect();
            let mut found = logits.clone();
            processed_logprobs(&mut found, history, &params);
            let close = |found: f32, expected: f64| {
                f64::from(found) == expected || (f64::from(found) - expected).abs() <= LOGPROB * expected.abs().max(1.0)
            };
            // The choice of top-p among equal logits depends on the order of a sort, so only the sorted values are
            // compared.
            let is_comparable = row != "ties" || params.top_p == 1.0;
            let (mut sorted, mut sorted_expected) = (found.clone(), expected.clone());
            if !is_comparable {
                sorted.sort_unstable_by(f32::total_cmp);
                sorted_expected.sort_unstable_by(f64::total_cmp);
            }
            for (id, (&found, &expected)) in sorted.iter().zip(&sorted_expected).enumerate() {
                assert!(close(found, expected), "{name}, id {id}: {found} against {expected}");
            }

            let at_temperature: Vec<f64> = logits.iter().map(|z| f64::from(z / params.temperature)).collect();
            let largest = at_temperature.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let partition = largest + at_temperature.iter().map(|z| (z - largest).exp()).sum::<f64>().ln();
            for draw in 0..DRAWS {
                let mut stream = Seed(3).stream(Purpose::Rollout, 0, draw);
                let choice = choose(&mut logits.clone(), history, &params, &mut stream);
                let id = choice.id as usize;
                assert!(found[id].is_finite(), "{name}: {id} was drawn, but is cut off");
                assert_eq!(choice.sampled_logprob, found[id], "{name}, id {id}: the recorded logprob");
                let unwarped = at_temperature[id] - partition;
                assert!(close(choice.logprob, unwarped), "{name}, id {id}: {} against {unwarped}", choice.logprob);
            }
        }
    }
}

/// `tools/parity/policies.py`: the output of RL4LMs' mask processor on recorded logits.
#[test]
fn masks_of_rl4lms() {
    let fixture = read("losses/masks.json");
    let special: Vec<u32> = flat(&fixture["special"]).iter().map(|id| *id as u32).collect();
    for case in list(&fixture["cases"]) {
        let top = number(&case["top"]);
        let kept = if case["kind"] == "top_k" { Kept::TopK(top as usize) } else { Kept::TopP(top) };
        let at_least = number(&case["min_tokens_to_keep"]) as usize;
        let mask = LikeliestMask { kept, at_least, always: special.clone(), temperature: 1.0 };
        for (logits, expected) in list(&fixture["logits"]).iter().zip(list(&case["kept"])) {
            let logits = flat32(logits);
            let support = mask.support(&logits);
            let found: Vec<f64> = (0..logits.len() as u32).filter(|id| support.contains(*id)).map(f64::from).collect();
            assert_eq!(found, flat(expected), "{case}");
        }
    }
}
