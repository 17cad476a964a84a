//! The primitives of training, for programs with a loop of their own, beside torch.
//!
//! The fixture is written by `tools/parity/trainer.py`.

use std::path::PathBuf;

use gradus::generate::SamplingParams;
use gradus::model::adapter::LoraConfig;
use gradus::rng::Seed;
use gradus::trainer::{Datum, Loss, Trainer, TrainerOptions};
use serde_json::Value;

use crate::device::{choice, slack};

fn fixtures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity")
}

fn options(model: &str) -> TrainerOptions {
    let model = fixtures().join("trajectories/models").join(model).display().to_string();
    TrainerOptions { model, device: choice(), ..TrainerOptions::default() }
}

fn open(model: &str) -> Trainer {
    Trainer::open(&options(model)).expect("a fixture")
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).expect("ids")
}

fn numbers(value: &Value) -> Vec<f32> {
    serde_json::from_value(value.clone()).expect("numbers")
}

fn datum(value: &Value) -> Datum {
    Datum {
        prompt: ids(&value["prompt"]),
        completion: ids(&value["completion"]),
        weights: numbers(&value["weights"]),
        old_logprobs: numbers(&value["old_logprobs"]),
    }
}

fn loss(case: &Value) -> Loss {
    let number = |key: &str| case[key].as_f64().expect("a number");
    match case["loss"].as_str().expect("a name") {
        "cross_entropy" => Loss::CrossEntropy,
        "importance_sampling" => Loss::ImportanceSampling,
        "ppo" => Loss::Ppo { low: number("low"), high: number("high") },
        "cispo" => Loss::Cispo { low: 0.0, high: number("high") },
        other => panic!("{other}"),
    }
}

#[track_caller]
fn close(what: &str, found: f64, expected: f64) {
    assert!(
        (found - expected).abs() <= 2e-4 * slack() * expected.abs().max(1.0),
        "{what}: {found} instead of {expected}"
    );
}

#[test]
fn losses_gradients_and_steps_are_those_of_torch() {
    let text = std::fs::read_to_string(fixtures().join("trainer/fixture.json")).expect("a fixture");
    let fixture: Value = serde_json::from_str(&text).expect("JSON");
    let [learning_rate, clip] = ["learning_rate", "max_grad_norm"].map(|key| fixture[key].as_f64().expect("a number"));
    for case in fixture["cases"].as_array().expect("cases") {
        let (name, loss) = (case["loss"].as_str().expect("a name"), loss(case));
        let data: Vec<Datum> = case["data"].as_array().expect("data").iter().map(datum).collect();
        let mut trainer = open("gpt2");
        for (i, step) in case["steps"].as_array().expect("steps").iter().enumerate() {
            // Two calls add up to one.
            let found = [&data[..1], &data[1..]].map(|part| trainer.forward_backward(part, loss).expect("finite"));
            close(
                &format!("{name}, loss {i}"),
                found[0].loss + found[1].loss,
                step["loss"].as_f64().expect("a number"),
            );
            let expected = step["logprobs"].as_array().expect("lists").iter().flat_map(numbers);
            let logprobs = found.iter().flat_map(|found| &found.logprobs).flatten();
            for (found, expected) in logprobs.zip(expected) {
                close(&format!("{name}, log-probability"), f64::from(*found), f64::from(expected));
            }
            let done = trainer.optim_step(learning_rate, clip).expect("finite");
            close(&format!("{name}, norm {i}"), done.grad_norm, step["grad_norm"].as_f64().expect("a number"));
            assert_eq!(done.version, i as u64 + 1);
        }
    }
}

#[test]
fn what_was_sampled_and_saved_has_the_logprobs_of_the_policy() {
    for lora in [None, Some(LoraConfig { rank: 2, ..LoraConfig::default() })] {
        let mut trainer = Trainer::open(&TrainerOptions { lora: lora.clone(), ..options("qwen3") }).expect("a fixture");
        let prompts: [&[u32]; 2] = [&[5, 6, 7], &[8]];
        let params = SamplingParams { max_new_tokens: 6, ..SamplingParams::default() };
        for step in 0..2 {
            let completions = trainer.sample(&prompts, 3, &params, Seed(step)).expect("sampled");
            let rows: Vec<(&[u32], &[u32])> =
                completions.iter().enumerate().map(|(i, of)| (prompts[i / 3], &of.ids[..])).collect();
            let found = trainer.logprobs(&rows).expect("scored");
            for (found, completion) in found.iter().zip(&completions) {
                for (found, sampled) in found.iter().zip(&completion.logprobs) {
                    close("a sampled token", f64::from(*found), f64::from(*sampled));
                }
            }
            let data: Vec<Datum> = rows
                .iter()
                .zip(&completions)
                .map(|((prompt, ids), completion)| Datum {
                    prompt: prompt.to_vec(),
                    completion: ids.to_vec(),
                    weights: vec![if ids.len() > 3 { 1.0 } else { -1.0 }; ids.len()],
                    old_logprobs: completion.logprobs.clone(),
                })
                .collect();
            trainer.forward_backward(&data, Loss::ImportanceSampling).expect("finite");
            trainer.optim_step(1e-2, 1.0).expect("finite");
        }
        let out = tempfile::tempdir().expect("a folder");
        let path = out.path().join("saved");
        trainer.save(&path).expect("saved");
        assert_eq!(path.join("adapter_model.safetensors").exists(), lora.is_some());
        let again = Trainer::open(&TrainerOptions { model: path.display().to_string(), ..options("qwen3") });
        let row: [(&[u32], &[u32]); 1] = [(&[5, 6], &[7, 8, 9])];
        let logprobs = |trainer: &Trainer| trainer.logprobs(&row).expect("scored");
        assert_eq!(logprobs(&again.expect("it can be read")), logprobs(&trainer));
        assert_ne!(logprobs(&open("qwen3")), logprobs(&trainer), "it has learned");
    }
}

#[test]
fn a_loop_of_ones_own_learns() {
    let mut trainer = open("qwen3");
    let params = SamplingParams { max_new_tokens: 8, ..SamplingParams::default() };
    let reward = |ids: &[u32]| ids.iter().filter(|id| **id < 48).count() as f32 / ids.len() as f32;
    let (prompt, mut means) = (vec![5, 40, 9], Vec::new());
    for step in 0..30 {
        let completions = trainer.sample(&[&prompt], 16, &params, Seed(step)).expect("sampled");
        let rewards: Vec<f32> = completions.iter().map(|completion| reward(&completion.ids)).collect();
        let mean = rewards.iter().sum::<f32>() / 16.0;
        let data = completions.iter().zip(&rewards).map(|(completion, reward)| Datum {
            prompt: prompt.clone(),
            weights: vec![(reward - mean) / 16.0; completion.ids.len()],
            old_logprobs: completion.logprobs.clone(),
            completion: completion.ids.clone(),
        });
        trainer.forward_backward(&data.collect::<Vec<_>>(), Loss::ImportanceSampling).expect("finite");
        trainer.optim_step(1e-2, 1.0).expect("finite");
        means.push(mean);
    }
    assert!(means[28] + means[29] > means[0] + means[1] + 0.4, "{means:?}");
}

#[test]
fn bad_data_are_refused_and_leave_no_gradient() {
    let mut trainer = open("gpt2");
    let good =
        Datum { prompt: vec![3], completion: vec![4, 5], weights: vec![1.0, 1.0], old_logprobs: vec![-1.0, -1.0] };
    let cases = [
        (Datum { prompt: Vec::new(), ..good.clone() }, "datum 2 needs at least one id of a prompt"),
        (Datum { weights: vec![1.0], ..good.clone() }, "datum 2 has 1 `weights`, but its completion has 2 ids"),
        (Datum { old_logprobs: Vec::new(), ..good.clone() }, "datum 2 has 0 `old_logprobs`"),
        (Datum { completion: vec![4, 70_000], ..good.clone() }, "datum 2 holds the id 70000, but the vocabulary has"),
        (Datum { prompt: vec![3; 100_000], ..good.clone() }, "datum 2"),
        (Datum { weights: vec![f32::NAN, 1.0], ..good.clone() }, "the loss of data 1 to 2 is NaN"),
    ];
    for (bad, expected) in cases {
        trainer.forward_backward(std::slice::from_ref(&good), Loss::ImportanceSampling).expect("finite");
        let error = trainer.forward_backward(&[good.clone(), bad], Loss::ImportanceSampling).expect_err("refused");
        assert!(error.to_string().starts_with(expected), "{error}");
        let done = trainer.optim_step(0.0, 0.0).expect("nothing is left");
        assert_eq!(done.grad_norm, 0.0);
    }
}
