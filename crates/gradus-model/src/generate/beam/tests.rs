use burn::tensor::Device;
use serde_json::Value;

use super::*;
use crate::generate::{Hooks, NoStopRule, SamplingParams, generate};
use crate::model::ModelDir;
use crate::rng::{Purpose, Seed};

fn fixtures() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../gradus/tests/fixtures/parity")
}

fn model(name: &str) -> CausalLm {
    let dir = ModelDir::open(&fixtures().join(name)).expect("a fixture");
    CausalLm::load(&dir, &Device::flex()).expect("a fixture")
}

fn stream(row: usize) -> Stream {
    Seed(3).stream(Purpose::Generate, 0, row as u64)
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().expect("ids").iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

/// A case of the fixture: the request, and the ids and scores of transformers.
struct Case {
    name: String,
    prompt: Vec<u32>,
    params: SamplingParams,
    beams: BeamParams,
    returned: usize,
    ids: Vec<Vec<u32>>,
    scores: Option<Vec<f64>>,
}

impl Case {
    fn read(case: &Value) -> Self {
        let settings = &case["settings"];
        let number = |key: &str, default: u64| settings[key].as_u64().unwrap_or(default) as usize;
        let stop = ids(&case["stop"]);
        let params = SamplingParams {
            temperature: 0.0,
            max_new_tokens: number("max_new_tokens", 10),
            min_new_tokens: number("min_new_tokens", 0),
            no_repeat_ngram_size: number("no_repeat_ngram_size", 0),
            encoder_no_repeat_ngram_size: number("encoder_no_repeat_ngram_size", 0),
            repetition_penalty: settings["repetition_penalty"].as_f64().unwrap_or(1.0) as f32,
            forced_eos_token_id: settings["forced_eos_token_id"].as_str().map(|_| stop[0]),
            forced_bos_token_id: settings["forced_bos_token_id"].as_u64().map(|id| id as u32),
            suppress_tokens: settings["suppress_tokens"]
                .as_array()
                .map_or(Vec::new(), |_| ids(&settings["suppress_tokens"])),
            bad_words_ids: settings["bad_words_ids"]
                .as_array()
                .map_or(Vec::new(), |words| words.iter().map(ids).collect()),
            stop_ids: stop,
            ..SamplingParams::default()
        };
        let early_stopping = match &settings["early_stopping"] {
            Value::Bool(true) => EarlyStopping::FirstEnded,
            Value::String(_) => EarlyStopping::Never,
            _ => EarlyStopping::Heuristic,
        };
        let length_penalty = settings["length_penalty"].as_f64().unwrap_or(1.0) as f32;
        Self {
            name: format!("{} {} {settings}", case["model"], case["prompt"]),
            prompt: ids(&case["prompt"]),
            params,
            beams: BeamParams {
                num_beams: number("num_beams", 1),
                length_penalty,
                early_stopping,
                num_beam_groups: number("num_beam_groups", 1),
                diversity_penalty: settings["diversity_penalty"].as_f64().unwrap_or(0.0) as f32,
            },
            returned: number("num_return_sequences", 1),
            ids: case["ids"].as_array().expect("sequences").iter().map(ids).collect(),
            scores: case["scores"].as_array().map(|all| all.iter().map(|x| x.as_f64().expect("a score")).collect()),
        }
    }

    fn check(&self, model: &CausalLm) {
        let Self { name, prompt, params, beams, returned, ids, scores } = self;
        let Some(scores) = scores else {
            let found = generate(model, &[prompt], 1, params, &mut NoStopRule, &stream).expect("sampled");
            return assert_eq!(found[0].ids, ids[0], "{name}");
        };
        let found =
            beam_search(model, &[prompt], *returned, (params, beams), Hooks::unwatched(&mut NoStopRule), &stream)
                .expect("found");
        let mut all: Vec<Vec<u32>> = found.iter().map(|found| found.completion.ids.clone()).collect();
        if beams.num_beam_groups > 1 {
            // The scorer of groups always writes the first stop id, whichever one ended a beam.
            let ends = all.iter_mut().filter_map(|ids| ids.last_mut()).filter(|id| params.stop_ids.contains(id));
            ends.for_each(|id| *id = params.stop_ids[0]);
        }
        assert_eq!(all, *ids, "{name}");
        for (BeamCompletion { score, completion }, expected) in found.iter().zip(scores) {
            assert!(
                (f64::from(*score) - expected).abs() < 2e-5 * expected.abs().max(1.0),
                "{name}: {score} {expected}"
            );
            let sum: f32 = completion.sampled_logprobs.iter().sum();
            let length = (completion.ids.len() as f32).powf(beams.length_penalty);
            assert!((sum / length - score).abs() < 1e-5 * score.abs().max(1.0), "{name}: {sum} over {length}");
        }
    }
}

#[test]
fn ids_and_scores_are_those_of_transformers() {
    assert!(check_all("beams/fixture.json") > 600);
}

#[test]
fn groups_are_those_of_transformers() {
    assert!(check_all("beams/groups.json") > 250);
}

/// Checks all cases of a fixture and returns their number.
fn check_all(fixture: &str) -> usize {
    let text = std::fs::read_to_string(fixtures().join(fixture)).expect("a fixture");
    let fixture: Value = serde_json::from_str(&text).expect("JSON");
    let cases = fixture["cases"].as_array().expect("cases");
    let mut loaded: Option<(&str, CausalLm)> = None;
    for case in cases {
        let name = case["model"].as_str().expect("a name");
        if loaded.as_ref().is_none_or(|(known, _)| *known != name) {
            loaded = Some((name, model(name)));
        }
        let (_, model) = loaded.as_ref().expect("it was loaded");
        Case::read(case).check(model);
    }
    cases.len()
}

#[test]
fn prompts_do_not_depend_on_each_other() {
    let model = model("models/gpt2");
    let prompts: Vec<Vec<u32>> = (1..8).map(|n| (0..n).map(|i| (i * 7 + n) % 30).collect()).collect();
    let prompts: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
    for (temperature, num_beams, num_beam_groups) in [(0.0, 3, 1), (0.8, 3, 1), (0.0, 6, 2), (0.0, 3, 3)] {
        let params = SamplingParams {
            temperature,
            top_k: Some(30),
            max_new_tokens: 9,
            stop_ids: (0..8).collect(),
            ..SamplingParams::default()
        };
        let diversity_penalty = if num_beam_groups > 1 { 0.7 } else { 0.0 };
        let beams = BeamParams { num_beams, num_beam_groups, diversity_penalty, ..BeamParams::default() };
        let search = |places| {
            search_at_once(places, &model, &prompts, 2, (&params, &beams), Hooks::unwatched(&mut NoStopRule), &stream)
                .expect("found")
        };
        let all = search(100);
        assert_eq!(all.len(), 14);
        for places in [6, 12, 18] {
            assert_eq!(search(places), all, "{places} places");
        }
        let lengths: Vec<usize> = all.iter().map(|found| found.completion.ids.len()).collect();
        assert!(lengths.iter().any(|&length| length < 9), "some beams end early: {lengths:?}");
    }
}

#[test]
fn logprobs_are_those_of_the_model_at_the_temperature() {
    let model = model("models/gpt2");
    for temperature in [0.0, 1.0, 0.7] {
        let params = SamplingParams {
            temperature,
            top_k: Some(5),
            repetition_penalty: 1.3,
            forced_eos_token_id: Some(9),
            max_new_tokens: 6,
            ..SamplingParams::default()
        };
        let prompt: &[u32] = &[3, 7, 1];
        let found = beam_search(
            &model,
            &[prompt],
            4,
            (&params, &BeamParams::default()),
            Hooks::unwatched(&mut NoStopRule),
            &stream,
        )
        .expect("found");
        for BeamCompletion { completion, .. } in found {
            let all = [prompt, &completion.ids].concat();
            let mut next = Next::new(&model, 1, 8);
            for (t, (&id, &logprob)) in completion.ids.iter().zip(&completion.logprobs).enumerate() {
                let (_, logits) = next.after_prompts(&[&all[..prompt.len() + t]]);
                let logits = logits.into_host();
                let scaled: Vec<f64> = logits
                    .iter()
                    .map(|z| f64::from(*z) / if temperature == 0.0 { 1.0 } else { f64::from(temperature) })
                    .collect();
                let expected = scaled[id as usize] - scaled.iter().map(|z| z.exp()).sum::<f64>().ln();
                assert!((f64::from(logprob) - expected).abs() < 2e-5, "{temperature}, id {t}: {logprob} {expected}");
            }
        }
    }
}

/// Without replacement, the first id follows the softmax, and the second one the renormalized rest.
#[test]
fn continuations_are_drawn_without_replacement() {
    let probabilities = [[0.05f32, 0.3, 0.15], [0.2, 0.06, 0.24]];
    let lines: Vec<f32> = probabilities.as_flattened().iter().map(|p| p.ln()).collect();
    let (mut counts, draws) = ([[0usize; 6]; 6], 20_000);
    for i in 0..draws {
        let found = drawn(&lines, 3, &[0.0, 0.0], 6, &mut stream(i));
        let places: Vec<usize> = found.iter().map(|candidate| candidate.beam * 3 + candidate.id).collect();
        let mut sorted = places.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, [0, 1, 2, 3, 4, 5]);
        counts[places[0]][places[1]] += 1;
    }
    let p = probabilities.as_flattened();
    for first in 0..6 {
        for second in (0..6).filter(|&second| second != first) {
            let expected = f64::from(p[first] * p[second] / (1.0 - p[first]));
            let share = counts[first][second] as f64 / draws as f64;
            let deviation = (expected * (1.0 - expected) / draws as f64).sqrt();
            assert!((share - expected).abs() < 4.5 * deviation, "{first}, {second}: {share} against {expected}");
        }
    }
}

#[test]
fn a_row_that_goes_on_in_several_ways_is_copied_into_places_that_nobody_needs() {
    assert_eq!(fork(&[4, 5, 6], &[0, 1, 2]), (vec![4, 5, 6], vec![]));
    assert_eq!(fork(&[4, 5, 6], &[2, 0, 1]), (vec![6, 4, 5], vec![]));
    assert_eq!(fork(&[4, 5, 6], &[1, 1, 1]), (vec![5, 4, 6], vec![(5, 4), (5, 6)]));
    assert_eq!(fork(&[4, 5, 6], &[2, 0, 2]), (vec![6, 4, 5], vec![(6, 5)]));
}

#[test]
fn broken_logits_and_too_few_ids_do_not_panic() {
    for (logits, params) in [
        ([f32::NAN; 3], SamplingParams::default()),
        ([f32::NAN; 3], SamplingParams { temperature: 0.0, ..SamplingParams::default() }),
        ([f32::NEG_INFINITY; 3], SamplingParams { temperature: 0.0, ..SamplingParams::default() }),
        (
            [1.0, 2.0, 3.0],
            SamplingParams { suppress_tokens: vec![0, 1], stop_ids: vec![2], ..SamplingParams::default() },
        ),
        (
            [1.0, 2.0, 3.0],
            SamplingParams { temperature: 0.0, forced_bos_token_id: Some(1), ..SamplingParams::default() },
        ),
    ] {
        let params = SamplingParams { max_new_tokens: 2, ..params };
        let beams = BeamParams { num_beams: 5, ..BeamParams::default() };
        let mut search = Search::new(0, (0, (vec![0], 1)), None, ((0..5).collect(), &beams), stream(0));
        let settings = Settings { params: &params, beams: &beams };
        search.step(&mut logits.clone(), &settings, &mut NoStopRule);
        if !search.is_done() {
            search.fork();
            search.step(logits.repeat(5).as_mut_slice(), &settings, &mut NoStopRule);
        }
        assert!(search.is_done(), "{params:?}");
        let found = search.best(5);
        assert!(found.len() == 5 && found.iter().all(|found| !found.completion.ids.is_empty()));
    }
}

#[test]
fn settings_without_meaning_are_refused() {
    let message = |beams: BeamParams, returned: usize| beams.check(returned, 0.0).expect_err("refused").to_string();
    let four = BeamParams::default();
    assert!(four.check(4, 0.7).is_ok());
    assert_eq!(message(four, 5), "5 completions of each prompt are requested, but 4 beams give 1 to 4");
    assert_eq!(message(BeamParams { num_beams: 1, ..four }, 1), "`num_beams` is 1, but beam search needs at least 2");
    let groups = |num_beam_groups, diversity_penalty| BeamParams { num_beam_groups, diversity_penalty, ..four };
    assert!(groups(2, 0.5).check(4, 0.0).is_ok());
    for groups_of in [0, 3, 8] {
        let expected = format!("`num_beam_groups` is {groups_of}, but must divide `num_beams`, which is 4");
        assert_eq!(message(groups(groups_of, 0.5), 1), expected);
    }
    for penalty in [0.0, -1.0, f32::NAN] {
        let expected = format!("`diversity_penalty` is {penalty}, but must be above 0 where beams are in groups");
        assert_eq!(message(groups(2, penalty), 1), expected);
    }
    assert_eq!(message(groups(1, 0.5), 1), "`diversity_penalty` is 0.5, but `num_beam_groups` is 1");
    let endless = BeamParams { length_penalty: f32::INFINITY, ..four };
    assert_eq!(message(endless, 1), "`length_penalty` is inf, but must be a number");
    for &when in EarlyStopping::ALL {
        assert_eq!(when.name().parse(), Ok(when));
    }
    assert_eq!("maybe".parse::<EarlyStopping>(), Err("`maybe` is not known (false, true, never)".to_owned()));
}
