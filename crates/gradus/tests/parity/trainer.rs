//! The training primitives for programs with their own loop, compared to torch.
//!
//! The fixture is written by `tools/parity/trainer.py`.

use std::path::PathBuf;

use gradus::Error;
use gradus::batches::MicroBatch;
use gradus::generate::SamplingParams;
use gradus::inference::score_text;
use gradus::learner::optimizer::{AdamWConfig, MomentFormat};
use gradus::model::CausalLm;
use gradus::model::adapter::{LoraConfig, LoraParts};
use gradus::rng::Seed;
use gradus::trainer::{Base, Datum, Loss, StepParams, Targeted, Trainer, TrainerOptions};
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
        "dro" => Loss::Dro { beta: number("beta") },
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
            // The gradients of two calls add up to those of one.
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

/// The same text with a target at each id; targets of the prompt carry no loss.
fn targeted(datum: &Datum) -> Targeted {
    let ids = [&datum.prompt[..], &datum.completion].concat();
    let before = datum.prompt.len() - 1;
    let filled = |values: &[f32]| [&vec![0.0; before][..], values].concat();
    let [weights, old_logprobs] = [&datum.weights, &datum.old_logprobs].map(|values| filled(values));
    let (targets, ids) = (ids[1..].to_vec(), ids[..ids.len() - 1].to_vec());
    Targeted { ids, targets, weights, old_logprobs, ..Targeted::default() }
}

#[test]
fn targets_at_every_id_are_those_of_prompts_and_completions() {
    let text = std::fs::read_to_string(fixtures().join("trainer/fixture.json")).expect("a fixture");
    let fixture: Value = serde_json::from_str(&text).expect("JSON");
    let near = |a: f64, b: f64| (a - b).abs() <= 1e-6 * slack() * b.abs().max(1.0);
    for case in fixture["cases"].as_array().expect("cases") {
        let (name, loss) = (case["loss"].as_str().expect("a name"), loss(case));
        // DRO's penalty covers every target, so the prompt's would count.
        if name == "dro" {
            continue;
        }
        let mut data: Vec<Datum> = case["data"].as_array().expect("data").iter().map(datum).collect();
        // Texts with a common prefix share its computation.
        let alike: Vec<Datum> = (0..3).map(|i| Datum { prompt: (3..30).collect(), ..data[i % 2].clone() }).collect();
        data.extend(alike);
        let rows: Vec<Targeted> = data.iter().map(targeted).collect();
        let (mut one, mut other) = (open("gpt2"), open("gpt2"));
        for _ in 0..2 {
            let of_data = one.forward_backward(&data, loss).expect("finite");
            let whole = other.forward_at(&rows, loss).expect("finite");
            let [first, last] =
                [&rows[..2], &rows[2..]].map(|rows| other.forward_backward_at(rows, loss).expect("finite"));
            assert!(near(first.loss + last.loss, of_data.loss) && near(whole.loss, of_data.loss), "{name}: losses");
            let found = [first.logprobs, last.logprobs].concat();
            for ((found, whole), (datum, expected)) in
                found.iter().zip(&whole.logprobs).zip(data.iter().zip(&of_data.logprobs))
            {
                let own = &found[datum.prompt.len() - 1..];
                let same = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| near(f64::from(*a), f64::from(*b)));
                assert!(own.len() == expected.len() && same(own, expected) && same(found, whole), "{name}: logprobs");
            }
            let params = StepParams {
                learning_rate: 1e-3,
                adamw: AdamWConfig {
                    betas: [0.9, 0.95],
                    epsilon: 1e-12,
                    weight_decay: 0.0,
                    moments: MomentFormat::F32,
                },
                max_grad_norm: 1.5,
            };
            let steps = [one.optim_step(1e-3, 1.5), other.optim_step_with(&params)].map(|step| step.expect("finite"));
            assert!(
                (steps[0].grad_norm - steps[1].grad_norm).abs() <= 1e-5 * slack() * steps[0].grad_norm,
                "{name}: {steps:?}"
            );
        }
    }
}

#[test]
fn several_targets_of_an_id_are_several_texts() {
    let mut trainer = open("qwen3");
    let ids = vec![5, 6, 7];
    let row =
        |targets: Vec<u32>, weights: Vec<f32>| Targeted { ids: ids.clone(), targets, weights, ..Targeted::default() };
    let both = row(vec![8, 9, 10, 11, 12, 13], vec![0.25, 0.75, 1.0, 0.0, -0.5, 2.0]);
    let [first, second] = [row(vec![8, 10, 12], vec![0.25, 1.0, -0.5]), row(vec![9, 11, 13], vec![0.75, 0.0, 2.0])];
    let found = trainer.forward_backward_at(&[both], Loss::CrossEntropy).expect("finite");
    let norm = trainer.optim_step(0.0, 0.0).expect("finite").grad_norm;
    let separate = trainer.forward_backward_at(&[first, second], Loss::CrossEntropy).expect("finite");
    close("the loss", found.loss, separate.loss);
    close("the norm", trainer.optim_step(0.0, 0.0).expect("finite").grad_norm, norm);
    let interleaved: Vec<f32> =
        separate.logprobs[0].iter().zip(&separate.logprobs[1]).flat_map(|(a, b)| [*a, *b]).collect();
    for (found, expected) in found.logprobs[0].iter().zip(interleaved) {
        close("a log-probability", f64::from(*found), f64::from(expected));
    }
}

#[test]
fn targets_in_any_number_are_targets_of_several_calls() {
    let ids = [5, 6, 7, 8];
    let losses = [
        Loss::CrossEntropy,
        Loss::ImportanceSampling,
        Loss::Ppo { low: 0.8, high: 1.2 },
        Loss::Cispo { low: 0.0, high: 4.0 },
        Loss::Dro { beta: 0.05 },
    ];
    // The targets of each id with their weights and old log-probabilities: none, one or several, also equal ones.
    let cells: [&[(u32, f32, f32)]; 4] = [
        &[(8, 0.25, -5.0), (9, 0.75, -6.0), (8, -0.5, -5.5)],
        &[],
        &[(10, 0.0, -6.0), (11, 2.0, -5.0)],
        &[(12, 0.0, -4.0)],
    ];
    let row = |cells: &[&[(u32, f32, f32)]]| {
        let all = cells.concat();
        Targeted {
            ids: ids[..cells.len()].to_vec(),
            targets: all.iter().map(|of| of.0).collect(),
            counts: cells.iter().map(|of| of.len()).collect(),
            weights: all.iter().map(|of| of.1).collect(),
            old_logprobs: all.iter().map(|of| of.2).collect(),
        }
    };
    for loss in losses {
        let (mut together, mut apart) = (open("qwen3"), open("qwen3"));
        let forward = together.forward_at(&[row(&cells)], loss).expect("finite");
        let found = together.forward_backward_at(&[row(&cells)], loss).expect("finite");
        let (mut of_calls, mut logprobs) = (0.0, Vec::new());
        for (i, of_id) in cells.iter().enumerate() {
            for cell in *of_id {
                let mut alone: Vec<&[(u32, f32, f32)]> = vec![&[]; i];
                alone.push(std::slice::from_ref(cell));
                let one = apart.forward_backward_at(&[row(&alone)], loss).expect("finite");
                of_calls += one.loss;
                logprobs.extend(one.logprobs.concat());
            }
        }
        close(&format!("{loss:?}"), found.loss, of_calls);
        close(&format!("{loss:?} without a gradient"), forward.loss, of_calls);
        for found in [&found.logprobs[0], &forward.logprobs[0]] {
            assert_eq!(found.len(), logprobs.len());
            found.iter().zip(&logprobs).for_each(|(a, b)| close("a log-probability", f64::from(*a), f64::from(*b)));
        }
        // A split text has the same loss and gradient.
        let parts = row(&cells).split(2);
        assert_eq!(parts.len(), 3);
        let mut split = open("qwen3");
        close("parts", split.forward_backward_at(&parts, loss).expect("finite").loss, found.loss);
        let [norm, of_calls, of_parts] =
            [together, apart, split].map(|mut trainer| trainer.optim_step(0.0, 0.0).expect("finite").grad_norm);
        close("the norm", norm, of_calls);
        close("the norm of parts", of_parts, norm);
    }
    let error = open("qwen3").forward_at(&[Targeted { counts: vec![6], ..row(&cells) }], Loss::CrossEntropy);
    let error = error.expect_err("refused").to_string();
    assert!(error.starts_with("datum 1 has 4 ids, 6 targets and 1 `counts`"), "{error}");
}

#[test]
fn a_pass_has_a_limited_number_of_targets() {
    let trainer = Trainer::open(&TrainerOptions { passes: MicroBatch::new(4, None), ..options("qwen3") });
    let trainer = trainer.expect("a fixture");
    let row = |targets: usize| Targeted { ids: vec![5, 6], targets: vec![7; targets], ..Targeted::default() };
    assert_eq!(trainer.passes(&[row(2), row(2), row(2)]), [0..2, 2..3]);
    let most = trainer.targets_per_pass();
    assert_eq!(trainer.passes(&[row(most / 2), row(most / 2), row(2)]), [0..2, 2..3]);
    assert_eq!(trainer.passes(&[row(most), row(2)]), [0..1, 1..2]);
}

#[test]
fn adapters_on_one_base_learn_apart_and_go_on_from_files() {
    let base = Base::open(&options("qwen3")).expect("a fixture");
    let parts = LoraParts { attention: true, feed_forward: true, head: true };
    let lora =
        |rank| LoraConfig { rank, targets: parts.targets(&base.files().dir).expect("parts"), ..LoraConfig::default() };
    let row = |shift: u32| Targeted {
        ids: vec![5, 6 + shift, 7],
        targets: vec![6 + shift, 7, 8],
        weights: vec![1.0; 3],
        ..Targeted::default()
    };
    let learn = |trainer: &mut Trainer, shift: u32| {
        let loss = trainer.forward_backward_at(&[row(shift)], Loss::CrossEntropy).expect("finite").loss;
        trainer.optim_step(1e-2, 1.0).expect("finite");
        loss
    };
    // In parallel, they learn the same as each alone.
    let alone = |rank, seed, shift| {
        let mut trainer = base.adapter(&lora(rank), Seed(seed)).expect("an adapter");
        (0..4).map(|_| learn(&mut trainer, shift)).collect::<Vec<_>>()
    };
    let expected = [alone(2, 1, 0), alone(3, 2, 4)];
    let (mut a, mut b) =
        (base.adapter(&lora(2), Seed(1)).expect("an adapter"), base.adapter(&lora(3), Seed(2)).expect("an adapter"));
    let side: Vec<[f64; 2]> = (0..4).map(|_| [learn(&mut a, 0), learn(&mut b, 4)]).collect();
    assert_eq!([0, 1].map(|i| side.iter().map(|of| of[i]).collect::<Vec<_>>()), expected);
    assert!(expected[0][3] < expected[0][0]);
    // Loaded with its optimizer, it continues with the same bits; without the optimizer it differs.
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("saved");
    a.save_with_optimizer(&path).expect("saved");
    let mut again = base.saved_adapter(&path).expect("an adapter");
    again.restore_optimizer(&path).expect("its optimizer");
    assert_eq!(again.steps(), 4);
    let mut fresh = base.saved_adapter(&path).expect("an adapter");
    let [own, restored, forgot] = [&mut a, &mut again, &mut fresh].map(|trainer| [0, 0].map(|_| learn(trainer, 0)));
    assert_eq!(own, restored);
    assert!(own[0] == forgot[0] && own[1] != forgot[1], "{own:?}, {forgot:?}");
    let error = b.restore_optimizer(&path).expect_err("another adapter");
    assert!(error.to_string().contains("moments"), "{error}");
    let error = b.restore_optimizer(folder.path()).expect_err("nothing");
    assert!(error.to_string().contains("no optimizer state"), "{error}");
    // The sampled model equals the trained one, from memory and from files.
    let scored = |model: &CausalLm| {
        score_text(model, &[5, 6, 7, 8], 0).expect("scored").iter().map(|of| of.logprob).collect::<Vec<_>>()
    };
    assert!(again.save(&path).is_err(), "the optimizer's state would be lost");
    let path = folder.path().join("again");
    again.save(&path).expect("saved");
    let trained = again.logprobs(&[(&[5], &[6, 7, 8])]).expect("scored").concat();
    for model in [base.sampling_as(&again), base.sampling_with(&path).expect("an adapter")] {
        for (found, expected) in scored(&model).into_iter().zip(&trained) {
            close("a sampler", f64::from(found), f64::from(*expected));
        }
    }
    assert_ne!(scored(base.sampling()), scored(&base.sampling_as(&again)), "the base stands still");
    assert!(Base::open(&options("t5")).expect_err("refused").to_string().contains("has an encoder"));
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
fn saving_replaces_its_own_model_and_no_file_of_others() {
    let trainer = open("qwen3");
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    for _ in 0..2 {
        trainer.save(&at("model")).expect("saved");
    }
    std::fs::create_dir_all(at("project/src")).expect("made");
    std::fs::write(at("notes.txt"), "mine").expect("written");
    for name in ["project", "notes.txt"] {
        let error = trainer.save(&at(name)).expect_err("something else is there");
        assert!(matches!(error, Error::Input { .. }) && error.to_string().contains(name), "{error}");
    }
    assert!(at("project/src").is_dir() && at("notes.txt").is_file());
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
        let error = trainer.optim_step(0.0, 0.0).expect_err("nothing is left");
        assert!(error.to_string().starts_with("there is no gradient"), "{error}");
    }
}

#[test]
fn a_loss_has_constants_with_a_meaning() {
    let mut trainer = open("gpt2");
    let datum = Datum { prompt: vec![3], completion: vec![4], weights: vec![1.0], old_logprobs: vec![-1.0] };
    let bounds = "the bounds of the ratio are ";
    for (loss, expected) in [
        (Loss::Ppo { low: f64::NAN, high: 1.2 }, bounds),
        (Loss::Ppo { low: 2.0, high: 1.2 }, bounds),
        (Loss::Cispo { low: 0.0, high: f64::NAN }, bounds),
        (Loss::Dro { beta: f64::NAN }, "`beta` is NaN"),
    ] {
        let error = trainer.forward_backward(std::slice::from_ref(&datum), loss).expect_err("refused").to_string();
        assert!(error.starts_with(expected), "{error}");
        let (ids, targets, weights, old_logprobs) = (vec![3], vec![4], vec![1.0], vec![-1.0]);
        let row = Targeted { ids, targets, weights, old_logprobs, ..Targeted::default() };
        let error = trainer.forward_at(&[row], loss).expect_err("refused").to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    let long = vec![4; 100_000];
    let error = trainer.logprobs(&[(&[3], &long[..])]).expect_err("too long").to_string();
    assert!(
        error.starts_with("datum 1 has 1 tokens of a prompt and 100000 of a completion, but the model has"),
        "{error}"
    );
}

#[test]
fn a_step_that_would_destroy_the_policy_is_refused() {
    let mut trainer = open("gpt2");
    let data = [Datum { prompt: vec![3], completion: vec![4, 5], weights: vec![1.0, 1.0], ..Datum::default() }];
    let before = trainer.logprobs(&[(&[3], &[4, 5])]).expect("scored");
    trainer.forward_backward(&data, Loss::CrossEntropy).expect("finite");
    let cases = [
        (f64::NAN, 1.0, "`learning_rate` is NaN"),
        (f64::INFINITY, 1.0, "`learning_rate` is inf"),
        (1e300, 1.0, "`learning_rate` is 1e300"),
        (-1e-3, 1.0, "`learning_rate` is -0.001, but a number of at least 0 is needed"),
        (1e-3, -1.0, "`max_grad_norm` is -1.0"),
        (1e-3, f64::NAN, "`max_grad_norm` is NaN"),
    ];
    for (learning_rate, clip, expected) in cases {
        let error = trainer.optim_step(learning_rate, clip).expect_err("refused");
        assert!(error.to_string().starts_with(expected), "{error}");
    }
    assert_eq!(trainer.logprobs(&[(&[3], &[4, 5])]).expect("scored"), before);
    // The gradient is still there.
    assert!(trainer.optim_step(1e-3, 1.0).expect("finite").grad_norm > 0.0);
    assert_eq!(trainer.version(), 1);
    for (betas, epsilon, weight_decay, expected) in [
        ([2.0, 0.9], 1e-8, 0.0, "`betas[0]` is 2.0, but a number from 0 to below 1 is needed"),
        ([0.9, f64::NAN], 1e-8, 0.0, "`betas[1]` is NaN"),
        ([0.9, 0.9], -1.0, 0.0, "`epsilon` is -1.0"),
        ([0.9, 0.9], 1e-8, -1.0, "`weight_decay` is -1.0"),
    ] {
        let adamw = AdamWConfig { betas, epsilon, weight_decay, moments: MomentFormat::F32 };
        let error = Trainer::open(&TrainerOptions { optimizer: adamw.into(), ..options("gpt2") }).expect_err("refused");
        assert!(error.to_string().starts_with(expected), "{error}");
        let error = Base::open(&TrainerOptions { optimizer: adamw.into(), ..options("gpt2") }).expect_err("refused");
        assert!(error.to_string().starts_with(expected), "{error}");
        let params = StepParams { learning_rate: 1e-3, adamw, max_grad_norm: 1.0 };
        let error = trainer.optim_step_with(&params).expect_err("refused");
        assert!(error.to_string().starts_with(expected), "{error}");
    }
}

#[test]
fn a_gradient_that_is_not_finite_moves_nothing() {
    let mut trainer = open("gpt2");
    let before = trainer.logprobs(&[(&[3], &[4, 5])]).expect("scored");
    // The loss of each call is finite, but the sum of the gradients exceeds the largest f32.
    let data = [Datum { prompt: vec![3], completion: vec![4], weights: vec![1e37], ..Datum::default() }];
    for _ in 0..200 {
        trainer.forward_backward(&data, Loss::CrossEntropy).expect("finite");
    }
    match trainer.optim_step(1e-3, 1.0) {
        Err(Error::Diverged { step: 1, what, batch: None }) => assert!(what.contains("is not finite"), "{what}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(trainer.logprobs(&[(&[3], &[4, 5])]).expect("scored"), before);
    let error = trainer.optim_step(1e-3, 1.0).expect_err("the gradient is discarded");
    assert!(error.to_string().starts_with("there is no gradient"), "{error}");
}
