//! Runs that a program starts: the same configuration, checks and bits as runs of files.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail where they stand")]

use std::path::Path;

use gradus::config::{MethodConfig, Registry};
use gradus::model::adapter::LoraConfig;
use gradus::objective::dpo::DpoConfig;
use gradus::objective::kto::KtoConfig;
use gradus::objective::sft::SftConfig;
use gradus::train::observer::{Event, Observer};
use gradus::{Error, Training};
use serde_json::{Value, json};

use crate::learning::{TestDir, model, pairs};

fn weights(run: &Path) -> Vec<u8> {
    std::fs::read(run.join("model/model.safetensors")).unwrap()
}

#[test]
fn rows_of_a_program_train_as_those_of_a_file() {
    let dir = TestDir::new(pairs());
    let plan = dir.plan("file", "gpt2", "method: { dpo: { beta: 0.3 } }\ntrain: { max_steps: 4, batch_size: 4 }\n");
    let of_file = gradus::train::run(&plan, &mut gradus::observer::Silent).unwrap();
    let training = |beta: f64| {
        Training::dpo(model("gpt2").path.display().to_string())
            .cache_dir(dir.run("cache"))
            .rows(pairs())
            .set("beta", beta)
            .batch_size(4)
            .max_steps(4)
    };
    let outcome = training(0.3).output_dir(dir.run("program")).run().unwrap();
    assert_eq!(weights(&outcome.directory), weights(&of_file.directory));
    let other = training(0.1).output_dir(dir.run("other")).run().unwrap();
    assert_ne!(weights(&other.directory), weights(&of_file.directory));

    let config = std::fs::read_to_string(outcome.directory.join("config.yml")).unwrap();
    let marked = |key: &str| config.lines().any(|line| line.trim_start().starts_with(key) && line.contains("# set"));
    assert!(marked("beta:") && marked("max_steps:") && !marked("label_smoothing:"), "{config}");
    let error = training(0.3).output_dir(dir.run("program")).run().unwrap_err();
    assert!(error.to_string().contains("program"), "{error}");
    training(0.3).output_dir(dir.run("program")).overwrite().run().unwrap();
}

/// The example on the front page of the documentation, with a smaller model.
#[test]
fn held_out_rows_of_a_program_have_an_accuracy() {
    let row = |prompt: &str, chosen: &str, rejected: &str| json!({ "prompt": prompt, "chosen": chosen, "rejected": rejected });
    let dir = TestDir::new(pairs());
    let outcome = Training::dpo(model("gpt2").path.display().to_string())
        .cache_dir(dir.run("cache"))
        .rows([row("cup one is", " full", " empty"), row("cup two is", " full", " empty")])
        .eval_rows([row("cup three is", " full", " empty")])
        .batch_size(2)
        .max_steps(2)
        .output_dir(dir.run("run"))
        .run()
        .unwrap();
    let accuracy = &outcome.results["after"]["eval_rewards/accuracies"];
    assert!(accuracy.is_number(), "{}", outcome.results);
}

/// Stops the run after `left` steps.
struct Stop {
    left: usize,
}

impl Observer for Stop {
    fn event(&mut self, event: &Event<'_>) {
        if let Event::Step { .. } = event {
            self.left = self.left.saturating_sub(1);
        }
    }

    fn should_stop(&mut self) -> bool {
        self.left == 0
    }
}

#[test]
fn a_closure_is_the_reward_of_a_run_that_is_interrupted_and_resumed() {
    let dir = TestDir::new((0..6).map(|i| json!({ "prompt": format!("cup {i} is") })));
    let short = |_: &gradus::rollout::Prompt, rollout: &gradus::rollout::Rollout| {
        Ok(Some(1.0 / (1 + rollout.completion.len()) as f32))
    };
    let training = |name: &str| {
        Training::grpo(model("qwen3").path.display().to_string())
            .data(dir.run("rows.jsonl").display().to_string())
            .output_dir(dir.run(name))
            .set("group_size", 2)
            .set("max_new_tokens", 4)
            .batch_size(2)
            .max_steps(3)
            .reward(short)
    };
    let whole = training("whole").run().unwrap();
    let error = training("parts").observer(Stop { left: 1 }).run().unwrap_err();
    assert!(matches!(error, Error::Interrupted), "{error}");
    let error = Training::resume(dir.run("parts")).run().unwrap_err();
    assert!(error.to_string().contains("closure"), "{error}");
    let parts = Training::resume(dir.run("parts")).reward(short).run().unwrap();
    assert_eq!(weights(&parts.directory), weights(&whole.directory));
}

#[test]
fn problems_are_reported_when_the_run_is_planned() {
    let message = |mut training: Training| training.plan().unwrap_err().to_string();
    let found = message(Training::dpo("gpt2").data("rows.jsonl").set("betta", 0.1));
    assert_eq!(found, "the run has no argument `betta`: did you mean `beta`?");
    let found = message(Training::sft("gpt2").rows(Vec::<serde_json::Value>::new()));
    assert_eq!(found, "there are no rows");
    let found = message(Training::grpo("gpt2").data("rows.jsonl"));
    assert!(found.contains("reward"), "{found}");
    let found = message(Training::dpo("gpt2").data("rows.jsonl").learning_rate(-1.0).set("beta", json!("much")));
    assert!(found.contains("learning_rate") || found.contains("beta"), "{found}");
}

/// A value without a form in JSON.
struct Formless;

impl serde::Serialize for Formless {
    fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("no form"))
    }
}

#[test]
fn problems_of_setters_are_reported_together_and_not_forgotten() {
    let lora = LoraConfig { alpha: f64::NAN, ..LoraConfig::default() };
    let training = Training::dpo("gpt2").data("rows.jsonl").set("label_smoothing", Formless);
    let mut training = training.set("betta", 0.1).learning_rate(f64::NAN).set("beta", f64::INFINITY).lora(&lora);
    for _ in 0..2 {
        let found = training.plan().unwrap_err().to_string();
        let lines: Vec<&str> = found.lines().collect();
        let expected = [
            "the value of `label_smoothing`: no form",
            "`learning_rate` is NaN, but a finite number is needed",
            "`beta` is inf, but a finite number is needed",
            "`lora.alpha` is NaN, but a finite number is needed",
            "the run has no argument `betta`: did you mean `beta`?",
        ];
        assert_eq!(lines, expected);
    }
    let method = MethodConfig::Dpo(DpoConfig { beta: f64::NAN, ..DpoConfig::default() });
    let found = Training::new(&method, "gpt2").data("rows.jsonl").plan().unwrap_err().to_string();
    assert_eq!(found, "`method.dpo.beta` is NaN, but a finite number is needed");
}

/// Methods on pairs without a reference compute their losses with dropout.
#[test]
fn dropout_changes_what_orpo_cpo_and_simpo_learn() {
    let dir = TestDir::new(pairs());
    for name in ["orpo", "cpo", "simpo"] {
        let adapter = |dropout: f64| {
            let method: MethodConfig = serde_json::from_value(json!({ name: {} })).unwrap();
            let training = Training::new(&method, model("gpt2").path.display().to_string());
            let training = training.data(dir.run("rows.jsonl").display().to_string()).batch_size(4).max_steps(2);
            let training = training.set("lora_rank", 2).set("lora_dropout", dropout).learning_rate(1e-2);
            let outcome = training.output_dir(dir.run(&format!("{name}-{dropout}"))).run().unwrap();
            std::fs::read(outcome.directory.join("model/adapter_model.safetensors")).unwrap()
        };
        assert_ne!(adapter(0.0), adapter(0.5), "{name}");
    }
}

/// In transformers, noise does not reach the two stacks of a T5, because it is added by their common table.
#[test]
fn noise_on_embeddings_is_refused_for_a_model_with_an_encoder() {
    let dir = TestDir::new([json!({ "prompt": "cup one is", "completion": " full" })]);
    let training = Training::sft(model("t5").path.display().to_string()).set("neftune_noise_alpha", 5.0);
    let training = training.data(dir.run("rows.jsonl").display().to_string()).output_dir(dir.run("run"));
    let error = training.run().unwrap_err().to_string();
    assert!(error.contains("has an encoder, but `train.neftune_noise_alpha` is 5"), "{error}");
}

/// Built-in methods, registered under another name, train to the same bits: nothing is lost in the erased types.
#[test]
fn a_registered_offline_method_trains_as_the_built_in_one() {
    let dir = TestDir::new(pairs());
    let check = |name: &str, keys: &str, register: fn(&mut Registry) -> gradus::Result<()>| {
        let training = |run: &str, method: &MethodConfig| {
            let training = Training::new(method, model("gpt2").path.display().to_string());
            let training = training.data(dir.run("rows.jsonl").display().to_string()).output_dir(dir.run(run));
            training.plug_in(register).batch_size(4).max_steps(3).set("eval_steps", 2)
        };
        let keys: Value = serde_json::from_str(keys).unwrap();
        let method = |value: Value| -> MethodConfig { serde_json::from_value(value).unwrap() };
        let own = training(name, &method(json!({ name: keys }))).run().unwrap();
        let registered = method(json!({ "plugin": { "mine": keys } }));
        let mine = training(&format!("{name}-mine"), &registered).run().unwrap();
        assert_eq!(weights(&mine.directory), weights(&own.directory), "{name}");
        assert_eq!(mine.results["eval"], own.results["eval"], "{name}");
    };
    check("dpo", r#"{ "beta": 0.3 }"#, |registry| registry.offline_method::<DpoConfig>("mine"));
    check("kto", "{}", |registry| registry.offline_method::<KtoConfig>("mine"));
    check("sft", r#"{ "label_smoothing": 0.1 }"#, |registry| registry.offline_method::<SftConfig>("mine"));
}

#[test]
fn keys_of_a_method_that_differ_from_their_defaults_are_set() {
    let method = MethodConfig::Dpo(DpoConfig { beta: 0.3, ..DpoConfig::default() });
    let plan = Training::new(&method, "gpt2").data("rows.jsonl").plan().unwrap();
    assert_eq!(plan.method(), &method);
    assert!(plan.is_set("method.dpo.beta") && !plan.is_set("method.dpo.label_smoothing"));
}
