//! Compares GRPO with completions sampled by `gradus serve` to GRPO that samples in its own process.

use std::fs;
use std::path::{Path, PathBuf};

use gradus::config::{Argument, Plan, Request, Resume, ResumeFrom, RunConfig};
use gradus::device::DeviceChoice;
use gradus::generate::SamplingParams;
use gradus::machine::Machine;
use gradus::model::{CausalLm, ModelDir, ModelShape, named_tensors, save_causal};
use gradus::observer::{Event, Observer, Silent};
use gradus::progress::Unwatched;
use gradus::rng::{Purpose, Seed, Stream};
use gradus::rollout::server::{Endpoint, ServerKind, ServerOptions, ServerSource};
use gradus::rollout::{LocalEngine, Policy, Prompt, RolloutSource, Sampler};
use gradus::run::database::{Query, Record};
use gradus::run::{RolloutDb, RunDir, read_metrics};
use gradus::text::Tokenizer;
use serde_json::{Value, json};

use crate::client::{Server, fixture, folder};

/// Environment variable that holds the token for weights. Tests cannot set variables, so this is one that every test has.
const KEY: &str = "CARGO_MANIFEST_DIR";

/// Maximum difference of log-probabilities between the local engine and the server, whose weights were packed for the transfer.
const LOGPROB: f32 = 1e-5;

/// Maximum difference of weights after ten steps.
const WEIGHT: f32 = 1e-4;

/// A model, prompts, a folder for weights, and a server that samples.
struct ServerTest {
    models: tempfile::TempDir,
    runs: tempfile::TempDir,
    server: Option<Server>,
}

fn token() -> String {
    std::env::var(KEY).expect("cargo sets it")
}

impl ServerTest {
    fn new() -> Self {
        Self::of(&["qwen3"])
    }

    /// Like [`Self::new`], with these models.
    fn of(models: &[&str]) -> Self {
        let (models, runs) = (folder(models), tempfile::tempdir().expect("a folder"));
        let row = |i: usize| format!("{}\n", json!({ "prompt": format!("The tea {i} is"), "number": i }));
        fs::write(runs.path().join("rows.jsonl"), (0..24).map(row).collect::<String>()).expect("written");
        fs::create_dir(runs.path().join("shared")).expect("a folder");
        let mut test = Self { models, runs, server: None };
        test.serve();
        test
    }

    /// Starts a server that replaces the current one.
    fn serve(&mut self) {
        self.server = None;
        self.server = Some(Server::of(self.models.path(), std::net::IpAddr::from([127, 0, 0, 1]), |options| {
            options.weights = vec![self.shared()];
            options.weights_token = Some(token());
            options.computing.places = 8;
        }));
    }

    fn shared(&self) -> PathBuf {
        self.runs.path().join("shared")
    }

    fn url(&self) -> String {
        format!("http://{}", self.server.as_ref().expect("a server").host())
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint {
            url: self.url(),
            kind: ServerKind::Gradus,
            model: None,
            key: Some(token()),
            connections: 4,
            timeout: std::time::Duration::from_secs(120),
            wait: std::time::Duration::from_secs(120),
            keys: "rollouts",
        }
    }

    fn rollouts(&self, more: &Value) -> Value {
        let mut rollouts =
            json!({ "server": self.url(), "kind": "gradus", "shared": self.shared(), "key_variable": KEY });
        rollouts.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
        rollouts
    }

    /// Plans ten steps of GRPO, with the additional keys `more`.
    fn plan(&self, name: &str, more: &Value) -> Plan {
        let mut config = json!({
            "model": self.models.path().join("qwen3"),
            "data": self.runs.path().join("rows.jsonl"),
            "output_dir": self.runs.path().join(name),
            "method": { "grpo": { "group_size": 4, "max_new_tokens": 10, "temperature": 0.8 } },
            "reward": { "rule": { "length": { "target": 5 } } },
            "train": { "max_steps": 10, "batch_size": 4, "learning_rate": 1e-3, "eval_steps": -1, "seed": 5 },
        });
        config.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
        let written = RunConfig::parse(&config.to_string()).expect("a configuration");
        Plan::check(&written, &Machine::detect()).expect("a plan")
    }

    fn run(&self, name: &str, more: &Value) {
        gradus::train::run(&self.plan(name, more), &mut Silent).expect("it runs");
    }

    fn records(&self, name: &str) -> Vec<Record> {
        let run = RunDir::open(self.runs.path().join(name)).expect("a run");
        RolloutDb::open(&run).expect("a database").query(&Query::default()).expect("read")
    }

    /// Returns all weights of the run's model in one list.
    fn weights(&self, name: &str) -> Vec<f32> {
        let dir = ModelDir::open(&self.runs.path().join(name).join("model")).expect("a model");
        let model = CausalLm::load(&dir, &DeviceChoice::cpu().device()).expect("a model");
        named_tensors(&model).iter().flat_map(|tensor| tensor.values.to_vec()).collect()
    }

    /// Returns the values of a metric by step.
    fn metric(&self, name: &str, key: &str) -> Vec<f64> {
        let rows = read_metrics(&self.runs.path().join(name).join("metrics.jsonl")).expect("metrics");
        rows.iter().filter_map(|row| row.values.to_json().get(key).and_then(Value::as_f64)).collect()
    }
}

/// Returns the step, completion, length and reward of each record.
fn sampled(records: &[Record]) -> Vec<(usize, String, usize, Option<f64>)> {
    let one = |record: &Record| (record.step, record.completion.clone(), record.length, record.reward);
    records.iter().map(one).collect()
}

fn largest(one: &[f32], other: &[f32]) -> f32 {
    assert_eq!(one.len(), other.len());
    one.iter().zip(other).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn a_server_samples_the_ids_of_the_engine_here() {
    let test = ServerTest::new();
    let dir = ModelDir::open(Path::new(&fixture("qwen3"))).expect("a model");
    let tokenizer = Tokenizer::from_dir(&dir.path).expect("a tokenizer");
    // Weights that differ from those the server started with.
    let model = CausalLm::random(&dir, &mut Seed(3).stream(Purpose::Init, 0, 0), &DeviceChoice::cpu().device())
        .expect("a model");
    let save = |policy: &CausalLm, path: &Path| save_causal(policy, &dir, path);
    let options = ServerOptions { endpoint: test.endpoint(), shared: test.shared(), shared_there: None, ahead: 0 };
    let mut source = ServerSource::connect(options, &save, &Unwatched).expect("it is there");
    let prompts: Vec<Prompt> = (0..5)
        .map(|row| Prompt {
            row,
            text: String::new(),
            ids: (0..=row as u32).map(|t| 7 * t + 20).collect(),
            encoder_reads_prompt: false,
            messages: None,
            columns: serde_json::Map::new(),
        })
        .collect();
    let stream = |i: usize| -> Stream { Seed(9).stream(Purpose::Rollout, 4, i as u64) };
    let plain = SamplingParams { max_new_tokens: 20, stop_ids: vec![2, 40], ..SamplingParams::default() };
    let narrow = SamplingParams {
        temperature: 0.6,
        top_k: Some(30),
        top_p: 0.9,
        min_p: 0.01,
        typical_p: 0.95,
        repetition_penalty: 1.1,
        no_repeat_ngram_size: 3,
        min_new_tokens: 4,
        suppress_tokens: vec![11, 12],
        bad_words_ids: vec![vec![30, 31]],
        ..plain.clone()
    };
    for (params, stop) in [(plain.clone(), vec![]), (narrow, vec![]), (plain, vec!["a".to_owned(), "the".to_owned()])] {
        let sampler = Sampler {
            tokenizer: &tokenizer,
            group_size: 3,
            params,
            beams: None,
            stop: &stop,
            masking: None,
            episodes: None,
            progress: &Unwatched,
        };
        let policy = || Policy { model: model.clone(), version: 1 };
        let own = LocalEngine::default().sample(policy(), prompts.clone(), &sampler, &stream).expect("completions");
        let found = source.sample(policy(), prompts.clone(), &sampler, &stream).expect("completions");
        assert_eq!(found.len(), own.len());
        for (found, own) in found.rollouts.iter().zip(&own.rollouts) {
            assert_eq!(found.completion_ids, own.completion_ids);
            assert_eq!((&found.completion, found.stop, found.prompt), (&own.completion, own.stop, own.prompt));
            assert!(largest(&found.logprobs, &own.logprobs) < LOGPROB, "{found:?} and {own:?}");
        }
    }
}

#[test]
fn ten_steps_at_a_server_are_those_without_one() {
    let mut test = ServerTest::new();
    for (kind, more) in
        [("whole", json!({})), ("lora", json!({ "lora": { "rank": 4, "targets": ["q_proj", "v_proj"] } }))]
    {
        // The previous server still has the last weights it received.
        test.serve();
        let names = [format!("{kind}-here"), format!("{kind}-there")];
        test.run(&names[0], &more);
        let mut there = more.clone();
        there["rollouts"] = test.rollouts(&json!({}));
        test.run(&names[1], &there);
        let (here, there) = (test.records(&names[0]), test.records(&names[1]));
        assert_eq!(here.len(), 10 * 4 * 4);
        assert!(sampled(&here) == sampled(&there), "{kind}: other completions");
        for record in &there {
            let version = record.weight_version.as_deref().expect("a server sampled it");
            assert_eq!(version, format!("v{}", record.step - 1), "step {}", record.step);
        }
        assert!(here.iter().all(|record| record.weight_version.is_none()));
        let (one, other) = (test.weights(&names[0]), test.weights(&names[1]));
        let difference = largest(&one, &other);
        assert!(difference < WEIGHT, "{kind}: {difference}");
        let difference = test.metric(&names[1], "sampling/sampling_logp_difference/max");
        assert!(
            difference.len() == 10 && difference.iter().all(|difference| *difference < f64::from(LOGPROB)),
            "{difference:?}"
        );
        assert_eq!(test.metric(&names[1], "sampling/staleness"), [0.0; 10]);
        let ratios = test.metric(&names[1], "sampling/importance_sampling_ratio/mean");
        assert!(ratios.iter().all(|ratio| (ratio - 1.0).abs() < 1e-3), "{ratios:?}");
        // Nothing is left, neither files nor adapters.
        assert_eq!(fs::read_dir(test.shared()).expect("a folder").count(), 0);
        let models = test.server.as_ref().expect("a server").get("/v1/models").json();
        assert_eq!(models["data"].as_array().map(Vec::len), Some(1), "{models}");
        // The weights did change.
        let start = ModelDir::open(&test.models.path().join("qwen3")).expect("a model");
        let start: Vec<f32> = named_tensors(&CausalLm::load(&start, &DeviceChoice::cpu().device()).expect("a model"))
            .iter()
            .flat_map(|tensor| tensor.values.to_vec())
            .collect();
        assert!(one.len() != start.len() || largest(&one, &start) > 10.0 * WEIGHT);
    }
}

#[test]
fn episodes_at_a_server_are_those_without_one() {
    let mut test = ServerTest::new();
    let more = json!({
        "method": { "grpo": { "group_size": 4, "max_new_tokens": 40, "stop": ["e", "a", "1", "t"] } },
        "environment": { "guess": { "low": 1, "high": 9, "guesses": 4, "explain": false } },
        "episode": { "max_turns": 4 },
        "train": { "max_steps": 4, "batch_size": 4, "learning_rate": 1e-3, "eval_steps": -1, "seed": 5 },
    });
    for (kind, lora) in [("whole", Value::Null), ("lora", json!({ "rank": 4, "targets": ["q_proj", "v_proj"] }))] {
        test.serve();
        let mut here = more.clone();
        if !lora.is_null() {
            here["lora"] = lora;
        }
        let mut there = here.clone();
        there["rollouts"] = test.rollouts(&json!({}));
        let names = [format!("{kind}-here"), format!("{kind}-there")];
        test.run(&names[0], &here);
        test.run(&names[1], &there);
        let (here, there) = (test.records(&names[0]), test.records(&names[1]));
        assert_eq!(here.len(), 4 * 4 * 4);
        assert!(sampled(&here) == sampled(&there), "{kind}: other completions");
        let turns = test.metric(&names[1], "environment/turns");
        assert!(turns.iter().all(|turns| *turns > 1.2), "{kind}: {turns:?}");
        assert_eq!(test.metric(&names[0], "environment/turns"), turns);
        for record in &there {
            let version = record.weight_version.as_deref().expect("a server sampled it");
            assert_eq!(version, format!("v{}", record.step - 1), "step {}", record.step);
        }
        let difference = test.metric(&names[1], "sampling/sampling_logp_difference/max");
        assert!(difference.iter().all(|difference| *difference < f64::from(LOGPROB)), "{kind}: {difference:?}");
        let difference = largest(&test.weights(&names[0]), &test.weights(&names[1]));
        assert!(difference < WEIGHT, "{kind}: {difference}");
        assert_eq!(fs::read_dir(test.shared()).expect("a folder").count(), 0);
    }
}

#[test]
fn a_server_that_is_ahead_samples_the_same_every_time() {
    let test = ServerTest::new();
    let more = json!({
        "rollouts": test.rollouts(&json!({ "max_staleness": 2 })),
        "method": { "grpo": { "group_size": 4, "max_new_tokens": 10, "off_policy_mask_threshold": 0.5 } },
    });
    for name in ["one", "other"] {
        test.run(name, &more);
        for record in test.records(name) {
            let version = record.weight_version.expect("a server sampled it");
            // Two iterations earlier, or the initial weights in the first iterations.
            assert_eq!(version, format!("v{}", record.step.saturating_sub(3)), "step {}", record.step);
        }
        assert_eq!(test.metric(name, "sampling/staleness"), [0.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]);
        let difference = test.metric(name, "sampling/sampling_logp_difference/max");
        assert!(difference[5] > 1e-4, "old weights give other numbers: {difference:?}");
        assert_eq!(test.metric(name, "off_policy_masked").len(), 10);
    }
    assert_eq!(test.records("one"), test.records("other"));
    assert_eq!(test.weights("one"), test.weights("other"));
}

#[test]
fn a_server_with_other_weights_is_noticed() {
    let test = ServerTest::new();
    // The first run leaves its weights at the server. The second trains an adapter on what it assumes to be the original model.
    test.run("first", &json!({
        "rollouts": test.rollouts(&json!({})), "train": { "max_steps": 3, "batch_size": 4, "learning_rate": 0.5, "eval_steps": -1 },
    }));
    let more = json!({ "rollouts": test.rollouts(&json!({})), "lora": { "rank": 4 } });
    let mut observer = Stops { server: &mut None, after: 0, warnings: Vec::new() };
    gradus::train::run(&test.plan("second", &more), &mut observer).expect("it runs");
    let count = observer.warnings.iter().filter(|warning| warning.contains("does it serve the same model")).count();
    assert_eq!(count, 1, "{:?}", observer.warnings);
    assert!(test.metric("second", "sampling/importance_sampling_ratio/mean").iter().all(|ratio| *ratio < 3.0));
}

/// Stops the server after a step.
struct Stops<'a> {
    server: &'a mut Option<Server>,
    after: usize,
    warnings: Vec<String>,
}

impl Observer for Stops<'_> {
    fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Step { step, .. } if *step == self.after => *self.server = None,
            Event::Warning(warning) => self.warnings.push((*warning).to_owned()),
            _ => {}
        }
    }
}

#[test]
fn a_run_whose_server_is_gone_keeps_a_checkpoint_and_goes_on_at_another() {
    let mut test = ServerTest::new();
    let more = |test: &ServerTest, wait: f64| json!({ "rollouts": test.rollouts(&json!({ "wait_s": wait })) });
    test.run("whole", &more(&test, 60.0));
    let plan = test.plan("broken", &more(&test, 0.4));
    let mut observer = Stops { server: &mut test.server, after: 4, warnings: Vec::new() };
    let error = gradus::train::run(&plan, &mut observer).expect_err("the server is gone");
    assert!(error.to_string().contains("it has not answered for"), "{error}");
    let kept = observer.warnings.iter().any(|warning| warning.contains("the state after step 4 was saved"));
    assert!(kept, "{:?}", observer.warnings);

    test.serve();
    let rollouts = Argument::named("rollouts", test.rollouts(&json!({ "wait_s": 60.0 })), None).expect("a key");
    let directory = test.runs.path().join("broken");
    let resume = Resume {
        from: ResumeFrom::Run { directory: &directory, step: None },
        request: Request { arguments: &[rollouts], ..Request::default() },
    };
    gradus::train::run(&resume.plan(&Machine::detect()).expect("a plan"), &mut Silent).expect("it goes on");
    assert_eq!(test.records("whole"), test.records("broken"));
    assert_eq!(test.weights("whole"), test.weights("broken"), "to the bit");
}

/// Configuration of a student whose teacher is a local model or one at the server.
fn distilling(test: &ServerTest, teacher: Value, keys: &Value) -> Value {
    let mut distill = json!({ "max_new_tokens": 8 });
    distill.as_object_mut().expect("an object").extend(keys.as_object().cloned().unwrap_or_default());
    distill.as_object_mut().expect("an object").extend(teacher.as_object().cloned().unwrap_or_default());
    let row =
        |i: usize| format!("{}\n", json!({ "prompt": format!("The tea {i} is"), "completion": " warm and full" }));
    let rows = test.runs.path().join("answered.jsonl");
    fs::write(&rows, (0..24).map(row).collect::<String>()).expect("written");
    json!({
        "data": rows, "method": { "distill": distill }, "reward": null,
        "train": { "max_steps": 6, "batch_size": 4, "learning_rate": 1e-3, "eval_steps": 3, "eval_fraction": 0.2, "seed": 5,
            "max_length": 48, "logging_steps": 1 },
    })
}

/// Configuration of a teacher at the server that returns the `top_k` most likely ids.
fn served(test: &ServerTest, top_k: usize, wait: f64) -> Value {
    let server = json!({ "server": test.url(), "kind": "gradus", "model": "gpt2", "key_variable": KEY, "top_k": top_k, "wait_s": wait });
    json!({ "teacher_server": server })
}

#[test]
fn a_teacher_that_tells_all_ids_is_the_teacher_here() {
    let test = ServerTest::of(&["qwen3", "gpt2"]);
    let student = ModelDir::open(Path::new(&fixture("qwen3"))).expect("a model");
    let vocabulary = ModelShape::of(&student).expect("its sizes").vocabulary;
    let local = json!({ "teacher_model": test.models.path().join("gpt2") });
    for (name, keys) in [
        ("forward", json!({ "beta": 0.0, "lmbda": 0.0 })),
        ("both", json!({ "beta": 0.5, "lmbda": 0.5 })),
        ("reverse", json!({ "beta": 1.0, "lmbda": 1.0 })),
    ] {
        let names = [format!("{name}-here"), format!("{name}-there"), format!("{name}-few")];
        test.run(&names[0], &distilling(&test, local.clone(), &keys));
        test.run(&names[1], &distilling(&test, served(&test, vocabulary, 60.0), &keys));
        for key in ["loss", "divergence", "eval_loss", "grad_norm"] {
            let (here, there) = (test.metric(&names[0], key), test.metric(&names[1], key));
            assert!(!here.is_empty() && here.len() == there.len(), "{name} {key}: {here:?}");
            let difference = here.iter().zip(&there).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(difference < 1e-5, "{name} {key}: {difference:e}, {here:?} and {there:?}");
        }
        let difference = largest(&test.weights(&names[0]), &test.weights(&names[1]));
        assert!(difference < WEIGHT, "{name}: {difference}");
        // Few ids carry less information, but some.
        test.run(&names[2], &distilling(&test, served(&test, 4, 60.0), &keys));
        let (whole, few) = (test.metric(&names[0], "loss"), test.metric(&names[2], "loss"));
        assert!(few[0] < whole[0] && few[0] > 0.0, "{name}: {few:?}");
        let evaluated = test.metric(&names[2], "eval_loss");
        assert!(evaluated.last() < evaluated.first(), "{name}: {evaluated:?}");
    }
}

#[test]
fn a_student_whose_teacher_is_gone_keeps_a_checkpoint_and_goes_on_at_another() {
    let mut test = ServerTest::of(&["qwen3", "gpt2"]);
    let keys = json!({ "lmbda": 0.5 });
    test.run("whole", &distilling(&test, served(&test, 6, 60.0), &keys));
    let plan = test.plan("broken", &distilling(&test, served(&test, 6, 0.4), &keys));
    let mut observer = Stops { server: &mut test.server, after: 2, warnings: Vec::new() };
    let error = gradus::train::run(&plan, &mut observer).expect_err("the server is gone");
    assert!(error.to_string().contains("it has not answered for"), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("teacher_server.wait_s")), "{error:?}");
    let kept = observer.warnings.iter().any(|warning| warning.contains("the state after step 2 was saved"));
    assert!(kept, "{:?}", observer.warnings);

    test.serve();
    let config = distilling(&test, served(&test, 6, 60.0), &keys);
    let method = Argument::named("method", config["method"].clone(), None).expect("a key");
    let directory = test.runs.path().join("broken");
    let resume = Resume {
        from: ResumeFrom::Run { directory: &directory, step: None },
        request: Request { arguments: &[method], ..Request::default() },
    };
    let plan = resume.plan(&Machine::detect()).expect("a plan");
    gradus::train::run(&plan, &mut Silent).expect("it goes on");
    assert_eq!(test.metric("whole", "loss"), test.metric("broken", "loss"));
    assert_eq!(test.weights("whole"), test.weights("broken"), "to the bit");
}

#[test]
fn a_teacher_at_a_server_that_does_not_fit_is_refused() {
    let mut test = ServerTest::of(&["qwen3", "gpt2"]);
    let refused = |test: &ServerTest, teacher: Value| {
        let plan = test.plan("run", &distilling(test, teacher, &json!({})));
        gradus::train::run(&plan, &mut Silent).expect_err("it does not fit").to_string()
    };
    let mut unknown = served(&test, 4, 60.0);
    unknown["teacher_server"]["model"] = json!("gpt3");
    let found = refused(&test, unknown);
    assert!(found.contains("no model `gpt3`; it has"), "{found}");
    // The tokenizer of the served teacher has two tokens swapped.
    let file = test.models.path().join("gpt2/tokenizer.json");
    let mut tokenizer: Value = serde_json::from_str(&fs::read_to_string(&file).expect("a file")).expect("JSON");
    let vocabulary = tokenizer["model"]["vocab"].as_object_mut().expect("tokens");
    let (a, b) = (vocabulary["a"].clone(), vocabulary["b"].clone());
    (vocabulary["a"], vocabulary["b"]) = (b, a);
    fs::write(&file, tokenizer.to_string()).expect("written");
    test.serve();
    let found = refused(&test, served(&test, 4, 60.0));
    assert!(found.contains("has a different tokenizer than the policy"), "{found}");
}
