//! Every method learns: a two-layer model moves a trivially checkable quantity past a threshold, with three seeds.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail where they stand")]

use std::path::{Path, PathBuf};

use burn::module::Module;
use burn::tensor::Device;
use gradus::algorithm::a2c::A2cConfig;
use gradus::algorithm::actor::ValueHead;
use gradus::algorithm::critic::{Critic, SeparateCritic};
use gradus::algorithm::grpo::{Grpo, GrpoConfig, GrpoLossType, ImportanceSamplingLevel};
use gradus::algorithm::nlpo::{Nlpo, NlpoConfig};
use gradus::algorithm::ppo::{AdvantageKeys, CriticTrunk, KlConfig, PpoConfig};
use gradus::algorithm::rloo::{Rloo, RlooConfig};
use gradus::algorithm::trpo::TrpoConfig;
use gradus::algorithm::{Actor, Algorithm, AlgorithmInputs, OnlineMethod};
use gradus::batches::Order;
use gradus::config::{Plan, RunConfig};
use gradus::learner::Learner;
use gradus::learner::optimizer::Optimizer;
use gradus::machine::Machine;
use gradus::method::{Iteration, RolloutKeys};
use gradus::model::{CausalLm, ModelDir, Precision, Reference, RewardModel, named_tensors, save_causal};
use gradus::reward::{Reward, RewardError, Score};
use gradus::rng::{Purpose, Seed};
use gradus::rollout::{Prompt, Rollouts};
use gradus::run::{Existing, MetricsRow, RunDir, read_metrics};
use gradus::settings::Settings;
use gradus::settings::TrainConfig;
use gradus::text::Tokenizer;
use gradus::train::observer::{Event, Observer, Silent};
use gradus::train::online::{Online, train};
use gradus::train::recorder::Recorder;
use gradus::train::{FinishedRun, SaveFor};
use gradus::{Error, Result};

const SEEDS: [u64; 3] = [1, 2, 3];

pub(crate) fn model(name: &str) -> ModelDir {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/trajectories/models").join(name);
    ModelDir::open(&path).unwrap()
}

fn device() -> Device {
    Device::flex().autodiff()
}

/// Returns the rows of the steps, without the evaluation before them.
fn rows_of_steps(path: &Path) -> Vec<MetricsRow> {
    let mut rows = read_metrics(path).unwrap();
    rows.retain(|row| row.step > 0);
    rows
}

/// Rewards the share of a completion's ids in the lower half of the vocabulary; about a half for an untrained model.
struct LowerHalf;

impl Reward for LowerHalf {
    fn name(&self) -> String {
        "lower_half".into()
    }

    fn score(&mut self, rollouts: &Rollouts) -> Vec<Result<Score, RewardError>> {
        let share = |ids: &[u32]| ids.iter().filter(|id| **id < 160).count() as f32 / ids.len() as f32;
        let scores = rollouts
            .rollouts
            .iter()
            .map(|rollout| Ok(Score::sequence(share(&rollout.completion_ids), rollout.completion_ids.len())));
        scores.collect()
    }
}

fn prompts() -> Vec<Prompt> {
    let prompt = |row: usize| Prompt {
        row,
        text: format!("prompt {row}"),
        ids: vec![5 + row as u32, 40, 7 * row as u32 + 9],
        encoder_reads_prompt: false,
        messages: None,
        columns: serde_json::Map::new(),
    };
    (0..12).map(prompt).collect()
}

/// Returns the mean rewards of the first and the last iterations.
fn learn(iteration: Iteration<'_>, algorithm: &mut dyn Algorithm, actor: Actor, seed: u64, steps: usize) -> (f64, f64) {
    let directory = tempfile::tempdir().unwrap();
    let run = RunDir::create(directory.path(), Existing::Refuse).unwrap();
    let tokenizer = Tokenizer::from_dir(&model("qwen3").path).unwrap();
    let config = TrainConfig {
        seed,
        lr_schedule: gradus::settings::LrSchedule::Constant,
        eval_steps: 0,
        micro_batch_tokens: 100,
        ..TrainConfig::default()
    };
    let settings = Settings::new(&config, steps, 1e-2, "eval_reward");
    let prompts = prompts();
    let order = Order {
        seed: Seed(seed),
        purpose: Purpose::PromptOrder,
        shuffle: true,
        rows: 8,
        batch_size: 16 / iteration.rollouts.group_size,
    };
    let dir = model("qwen3");
    let save = |policy: &CausalLm, path: &Path, _: SaveFor| save_causal(policy, &dir, path);
    let mut learner = Learner::new(actor, Optimizer::new(settings.optimizer));
    let reference = Reference::frozen(learner.frozen().policy);
    let task = Online {
        prompts: &prompts[..8],
        held_out: &prompts[8..],
        test: &[],
        order,
        weighted: None,
        iteration,
        tokenizer: &tokenizer,
        stop_ids: &[2],
        forced_ids: [None, None],
        reference: Some(&reference),
        episodes: None,
        rollouts: None,
        settings: &settings,
        measuring: &gradus::evaluation::Measuring::default(),
        save: &save,
    };
    let mut silent = Silent;
    let mut recorder = Recorder::start(run.clone(), &mut silent).unwrap();
    train(&task, algorithm, &mut LowerHalf, &mut learner, &mut recorder).unwrap();

    let rows = rows_of_steps(&run.metrics());
    assert_eq!(rows.len(), steps);
    let first = &rows[0].values;
    for name in
        ["loss", "grad_norm", "learning_rate", "entropy", "reward_std", "completions/std_length", "tokens_per_s"]
    {
        assert!(first.get(name).is_some_and(f64::is_finite), "`{name}` of {first:?}");
    }
    let last = &rows[steps - 1].values;
    assert!(last.get("eval_kl").unwrap() > 0.0 && last.get("eval_reward").is_some());
    let mean = |rows: &[gradus::run::MetricsRow]| {
        rows.iter().map(|row| row.values.get("reward").unwrap()).sum::<f64>() / rows.len() as f64
    };
    (mean(&rows[..2]), mean(&rows[steps - 2..]))
}

#[test]
fn an_update_that_diverges_stops_the_run_and_leaves_the_batch() {
    let dir = TestDir::new(questions());
    let rest = "method: {grpo: {group_size: 4, max_new_tokens: 6}}\nreward: {rule: {length: {target: 3}}}\n\
                train: {max_steps: 5, batch_size: 4, learning_rate: 1e30, eval_steps: -1}\n";
    let stopped = gradus::train::run(&dir.plan("run", "qwen3", rest), &mut Silent);
    let Err(Error::Diverged { step, batch: Some(batch), .. }) = stopped else { panic!("{stopped:?}") };
    let written: serde_json::Value = serde_json::from_slice(&std::fs::read(batch).unwrap()).unwrap();
    assert_eq!(written["step"], step);
    assert_eq!(written["batch"].as_array().unwrap().len(), 16);
}

fn policy() -> CausalLm {
    CausalLm::load(&model("qwen3"), &device()).unwrap()
}

#[test]
fn grpo_learns() {
    let types = [GrpoLossType::Dapo, GrpoLossType::DrGrpo, GrpoLossType::Grpo, GrpoLossType::Bnpo];
    for (seed, loss_type) in (1..).zip(types) {
        let config = GrpoConfig {
            rollouts: RolloutKeys::new(8, 8, 1.0),
            mini_batches: 2,
            kl_coefficient: 0.001,
            loss_type,
            ..GrpoConfig::default()
        };
        let (before, after) =
            learn(config.iteration(), &mut Grpo::new(&config), Actor { policy: policy(), value_head: None }, seed, 40);
        assert!(before < 0.65 && after > 0.9, "seed {seed}: from {before} to {after}");
    }
}

#[test]
fn relatives_of_grpo_learn() {
    let types = [GrpoLossType::Grpo, GrpoLossType::Luspo, GrpoLossType::Cispo, GrpoLossType::Sapo, GrpoLossType::Vespo];
    for (seed, loss_type) in (1..).zip(types) {
        let of_sequences = matches!(loss_type, GrpoLossType::Grpo | GrpoLossType::Luspo);
        let level = if of_sequences { ImportanceSamplingLevel::Sequence } else { ImportanceSamplingLevel::Token };
        let config = GrpoConfig {
            rollouts: RolloutKeys::new(8, 8, 1.0),
            mini_batches: 2,
            importance_sampling_level: level,
            clip_range_high: (loss_type == GrpoLossType::Cispo).then_some(5.0),
            loss_type,
            ..GrpoConfig::default()
        };
        let (before, after) =
            learn(config.iteration(), &mut Grpo::new(&config), Actor { policy: policy(), value_head: None }, seed, 40);
        assert!(before < 0.65 && after > 0.9, "{loss_type:?}: from {before} to {after}");
    }
}

#[test]
fn rloo_learns() {
    for seed in SEEDS {
        let config = RlooConfig {
            rollouts: RolloutKeys::new(4, 8, 1.0),
            mini_batches: 2,
            kl_coefficient: 0.001,
            normalize_advantages: seed == 2,
            ..RlooConfig::default()
        };
        let (before, after) =
            learn(config.iteration(), &mut Rloo::new(&config), Actor { policy: policy(), value_head: None }, seed, 40);
        assert!(before < 0.65 && after > 0.85, "seed {seed}: from {before} to {after}");
    }
}

/// Products in bf16 change each number a little, but must not change what is learned.
#[test]
fn bf16_learns_what_f32_learns() {
    let noise = |values: &[f64]| {
        let bound = |pick: fn(f64, f64) -> f64, start| values.iter().copied().fold(start, pick);
        bound(f64::max, f64::MIN) - bound(f64::min, f64::MAX)
    };
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let agree = |what: &str, single: Vec<f64>, half: Vec<f64>| {
        assert_ne!(single, half, "{what}: bf16 was not in use");
        let (difference, noise) = ((mean(&single) - mean(&half)).abs(), noise(&single));
        assert!(
            difference <= noise,
            "{what}: f32 {single:?}, bf16 {half:?}: {difference} apart, seeds differ by {noise}"
        );
    };
    let rewards = |compute: Precision| {
        let config = GrpoConfig { rollouts: RolloutKeys::new(8, 8, 1.0), mini_batches: 2, ..GrpoConfig::default() };
        let actor = || Actor { policy: policy().with_compute(compute), value_head: None };
        SEEDS.map(|seed| learn(config.iteration(), &mut Grpo::new(&config), actor(), seed, 40).1).to_vec()
    };
    let (single, half) = (rewards(Precision::F32), rewards(Precision::Bf16));
    assert!(half.iter().all(|reward| *reward > 0.9), "grpo: {half:?}");
    agree("grpo", single, half);
    let losses = |compute: &str| {
        let loss = |seed: u64| {
            let dir = TestDir::new(colors());
            let rest = format!(
                "method: {{sft: {{}}}}\ntrain: {{max_steps: 30, learning_rate: 5e-3, seed: {seed}, eval_fraction: 0.2, compute: {compute}}}\n"
            );
            number(&gradus::train::run(&dir.plan("run", "qwen3", &rest), &mut Silent).unwrap(), "after", "eval_loss")
        };
        SEEDS.map(loss).to_vec()
    };
    agree("sft", losses("f32"), losses("bf16"));
}

fn ppo_config(trunk: CriticTrunk) -> PpoConfig {
    let mut config =
        PpoConfig { rollouts: RolloutKeys::new(1, 8, 1.0), update_epochs: 2, mini_batches: 2, ..PpoConfig::default() };
    config.advantages.kl = KlConfig { coefficient: 0.01, target: Some(6.0), ..KlConfig::default() };
    config.advantages.critic.trunk = trunk;
    config
}

#[test]
fn ppo_learns_with_a_critic_on_the_policys_trunk() {
    for seed in SEEDS {
        let policy = policy();
        let value_head = Some(ValueHead::zeros(policy.trunk.dims().1, &device()));
        let config = ppo_config(CriticTrunk::Shared);
        let mut algorithm = config.actor_critic(Critic::Shared, None);
        let (before, after) = learn(config.iteration(), &mut algorithm, Actor { policy, value_head }, seed, 40);
        assert!(before < 0.65 && after > 0.85, "seed {seed}: from {before} to {after}");
    }
}

#[test]
fn ppo_learns_with_a_critic_of_its_own() {
    for seed in SEEDS {
        let policy = policy();
        let critic = SeparateCritic {
            learner: Learner::new(
                RewardModel::critic_from(&policy),
                Optimizer::new(Settings::new(&TrainConfig::default(), 1, 1.0, "eval_reward").optimizer),
            ),
            learning_rate: 1e-2,
            source: model("qwen3"),
            pad_id: 0,
        };
        let config = ppo_config(CriticTrunk::Separate);
        let mut algorithm = config.actor_critic(Critic::Separate(Box::new(critic)), None);
        let (before, after) = learn(config.iteration(), &mut algorithm, Actor { policy, value_head: None }, seed, 40);
        assert!(before < 0.65 && after > 0.85, "seed {seed}: from {before} to {after}");
    }
}

/// Returns a separate critic, initialized from the policy.
fn own_critic(policy: &CausalLm) -> Critic {
    let config = TrainConfig::default();
    Critic::Separate(Box::new(SeparateCritic {
        learner: Learner::new(RewardModel::critic_from(policy), Optimizer::new(config.optimizer())),
        learning_rate: 1e-2,
        source: model("qwen3"),
        pad_id: 0,
    }))
}

/// Returns the inputs of a method with a critic.
fn parts() -> (Actor, AlgorithmInputs) {
    let policy = policy();
    let parts = AlgorithmInputs {
        critic: Some(own_critic(&policy)),
        lagged: Some(policy.valid()),
        special_ids: vec![2],
        ..AlgorithmInputs::default()
    };
    (Actor { policy, value_head: None }, parts)
}

#[test]
fn nlpo_learns() {
    for (seed, update) in SEEDS.into_iter().zip([1, 5, 20]) {
        let (actor, parts) = parts();
        let config = NlpoConfig {
            ppo: ppo_config(CriticTrunk::Separate),
            mask_update_iterations: update,
            top_p: 0.95,
            ..NlpoConfig::default()
        };
        let (before, after) = learn(config.iteration(), &mut Nlpo::new(&config, parts), actor, seed, 40);
        assert!(before < 0.65 && after > 0.85, "seed {seed}: from {before} to {after}");
    }
}

#[test]
fn a2c_learns() {
    for seed in SEEDS {
        let (actor, parts) = parts();
        let kl = KlConfig { coefficient: 0.01, ..KlConfig::default() };
        let config = A2cConfig {
            rollouts: RolloutKeys::new(1, 8, 1.0),
            advantages: AdvantageKeys { kl, ..AdvantageKeys::new(0.99, 1.0, true) },
            ..A2cConfig::default()
        };
        let (before, after) = learn(config.iteration(), &mut *config.algorithm(parts), actor, seed, 60);
        assert!(before < 0.65 && after > 0.8, "seed {seed}: from {before} to {after}");
    }
}

#[test]
fn trpo_learns() {
    for seed in SEEDS {
        let (actor, parts) = parts();
        let kl = KlConfig { coefficient: 0.01, ..KlConfig::default() };
        let config = TrpoConfig {
            rollouts: RolloutKeys::new(1, 8, 1.0),
            target_kl: 0.1,
            critic_updates: 3,
            advantages: AdvantageKeys { kl, ..AdvantageKeys::new(0.99, 0.95, true) },
            ..TrpoConfig::default()
        };
        let (before, after) = learn(config.iteration(), &mut *config.algorithm(parts), actor, seed, 40);
        assert!(before < 0.65 && after > 0.8, "seed {seed}: from {before} to {after}");
    }
}

#[test]
fn a_tokenizer_with_more_tokens_than_the_model_knows_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    for file in
        ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    {
        std::fs::copy(model("qwen3").path.join(file), directory.path().join(file)).unwrap();
    }
    let config = directory.path().join("config.json");
    let mut values: serde_json::Value = serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
    let known = values["vocab_size"].as_u64().unwrap();
    values["vocab_size"] = 300.into();
    std::fs::write(&config, values.to_string()).unwrap();

    let dir = TestDir::new(questions());
    std::fs::write(dir.0.path().join("rows.jsonl"), "{\"text\": \"tea is warm\"}\n").unwrap();
    let text = format!(
        "model: {}\ndata: {}\noutput_dir: {}\nmethod: {{sft: {{}}}}\n",
        directory.path().display(),
        dir.0.path().join("rows.jsonl").display(),
        dir.run("run").display()
    );
    let plan = Plan::check(&RunConfig::parse(&text).unwrap(), &Machine::detect()).unwrap();
    let error = gradus::train::run(&plan, &mut Silent).unwrap_err();
    let expected = format!(
        "{}: the tokenizer has {known} tokens, but the model's vocabulary only 300",
        directory.path().display()
    );
    assert_eq!(error.to_string(), expected);
}

/// Directory for the rows and runs of one test.
pub(crate) struct TestDir(tempfile::TempDir);

impl TestDir {
    pub(crate) fn new(rows: impl IntoIterator<Item = serde_json::Value>) -> Self {
        let dir = Self(tempfile::tempdir().unwrap());
        let text: String = rows.into_iter().map(|row| row.to_string() + "\n").collect();
        std::fs::write(dir.0.path().join("rows.jsonl"), text).unwrap();
        dir
    }

    pub(crate) fn plan(&self, name: &str, start: &str, rest: &str) -> Plan {
        let text = format!(
            "model: {}\ndata: {}\noutput_dir: {}\n{rest}",
            model(start).path.display(),
            self.0.path().join("rows.jsonl").display(),
            self.run(name).display()
        );
        Plan::check(&RunConfig::parse(&text).unwrap(), &Machine::detect()).unwrap()
    }

    pub(crate) fn run(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

fn number(outcome: &FinishedRun, part: &str, key: &str) -> f64 {
    outcome.results[part][key].as_f64().unwrap_or_else(|| panic!("`{part}.{key}` in {}", outcome.results))
}

pub(crate) const COLORS: [&str; 6] = ["red", "green", "blue", "grey", "white", "black"];

fn colors() -> impl Iterator<Item = serde_json::Value> {
    (0..60).map(|i| serde_json::json!({ "text": format!("{} is a colour", COLORS[i % 6]) }))
}

pub(crate) fn pairs() -> impl Iterator<Item = serde_json::Value> {
    (0..60).map(|i| {
        let (color, other) = (COLORS[i % 6], COLORS[(i + 2) % 6]);
        serde_json::json!({
            "prompt": format!("{i}: the {other} bird is"),
            "chosen": format!(" happy and {color}"),
            "rejected": format!(" sad and {color}"),
        })
    })
}

#[test]
fn sft_learns() {
    for seed in SEEDS {
        let dir = TestDir::new(colors());
        let plan = dir.plan(
            "run",
            "qwen3",
            &format!("method: {{sft: {{}}}}\ntrain: {{max_steps: 30, learning_rate: 5e-3, seed: {seed}, eval_fraction: 0.2}}\n"),
        );
        let outcome = gradus::train::run(&plan, &mut Silent).unwrap();
        let rows = rows_of_steps(&outcome.directory.join("metrics.jsonl"));
        let (before, after) = (rows[0].values.get("loss").unwrap(), number(&outcome, "after", "eval_loss"));
        assert!(before > 4.0 && after < 1.0, "seed {seed}: from {before} to {after}");
    }
}

#[test]
fn reward_models_learn() {
    for seed in SEEDS {
        let dir = TestDir::new(pairs());
        let plan = dir.plan(
            "run",
            "qwen3",
            &format!("method: {{reward: {{}}}}\ntrain: {{max_steps: 25, learning_rate: 3e-3, seed: {seed}, eval_fraction: 0.2}}\n"),
        );
        let outcome = gradus::train::run(&plan, &mut Silent).unwrap();
        assert!(number(&outcome, "after", "eval_accuracy") > 0.9, "seed {seed}: {}", outcome.results);
        for key in [
            "eval_accuracy_low",
            "eval_calibration_error",
            "eval_longer_wins_accuracy",
            "eval_reward_length_correlation",
        ] {
            assert!(number(&outcome, "after", key).is_finite());
        }
        let saved = ModelDir::open(&outcome.model).unwrap();
        assert!(saved.is_reward_model() && ModelDir::open(&outcome.directory.join("best")).unwrap().is_reward_model());
    }
}

#[test]
fn dpo_learns() {
    for (seed, loss_type) in SEEDS.into_iter().zip(["sigmoid", "hinge", "ipo"]) {
        let dir = TestDir::new(pairs());
        let plan = dir.plan(
            "run",
            "qwen3",
            &format!(
                "method: {{dpo: {{loss_type: {loss_type}}}}}\ntrain: {{max_steps: 25, learning_rate: 3e-3, seed: {seed}, eval_fraction: 0.2}}\n"
            ),
        );
        let outcome = gradus::train::run(&plan, &mut Silent).unwrap();
        assert!(number(&outcome, "after", "eval_rewards/margins") > 0.1, "seed {seed}: {}", outcome.results);
        assert!(number(&outcome, "after", "eval_rewards/accuracies") > 0.9, "seed {seed}: {}", outcome.results);
        if loss_type == "sigmoid" {
            let rows = rows_of_steps(&outcome.directory.join("metrics.jsonl"));
            assert!((rows[0].values.get("loss").unwrap() - std::f64::consts::LN_2).abs() < 1e-6);
        }
    }
}

#[test]
fn simpo_and_cpo_learn() {
    for (seed, method) in SEEDS.into_iter().zip(["simpo: {}", "simpo: {alpha: 0.25, beta: 2.5}", "cpo: {}"]) {
        let dir = TestDir::new(pairs());
        let rest = format!(
            "method: {{{method}}}\ntrain: {{max_steps: 25, learning_rate: 3e-3, seed: {seed}, eval_fraction: 0.2}}\n"
        );
        let outcome = gradus::train::run(&dir.plan("run", "qwen3", &rest), &mut Silent).unwrap();
        assert!(number(&outcome, "after", "eval_rewards/margins") > 0.1, "{method}: {}", outcome.results);
        assert!(number(&outcome, "after", "eval_rewards/accuracies") > 0.9, "{method}: {}", outcome.results);
    }
}

/// Splits pairs into single completions, in an order without adjacent halves of a pair.
pub(crate) fn marked() -> impl Iterator<Item = serde_json::Value> {
    let pairs: Vec<_> = pairs().collect();
    (0..2 * pairs.len()).map(move |i| {
        let (pair, label) = (&pairs[i * 7 % pairs.len()], i % 2 == 0);
        let completion = &pair[if label { "chosen" } else { "rejected" }];
        serde_json::json!({ "prompt": pair["prompt"], "completion": completion, "label": label })
    })
}

#[test]
fn kto_learns() {
    for (seed, loss_type) in SEEDS.into_iter().zip(["kto", "apo_zero_unpaired", "kto"]) {
        let dir = TestDir::new(marked());
        let rest = format!(
            "method: {{kto: {{loss_type: {loss_type}}}}}\ntrain: {{max_steps: 25, learning_rate: 3e-3, seed: {seed}, eval_fraction: 0.2}}\n"
        );
        let outcome = gradus::train::run(&dir.plan("run", "qwen3", &rest), &mut Silent).unwrap();
        assert!(number(&outcome, "after", "eval_rewards/margins") > 0.1, "seed {seed}: {}", outcome.results);
        assert!(number(&outcome, "after", "eval_loss") < 0.49, "seed {seed}: {}", outcome.results);
        assert!((number(&outcome, "before", "eval_loss") - 0.5).abs() < 1e-6, "it starts at the reference");
    }
}

/// The student trains only on its teacher's distributions, over its own completions, the teacher's, or both.
#[test]
fn distill_learns() {
    let dir = TestDir::new(questions_with_answers());
    let rest = "method: {sft: {}}\ntrain: {max_steps: 30, learning_rate: 5e-3, eval_fraction: 0.2}\n";
    let teacher = gradus::train::run(&dir.plan("teacher", "qwen3", rest), &mut Silent).unwrap().model;
    for (seed, keys) in SEEDS.into_iter().zip(["lmbda: 1, beta: 1", "lmbda: 0, seq_kd: true, beta: 0", "lmbda: 0.5"]) {
        let rest = format!(
            "method: {{distill: {{teacher_model: {}, max_new_tokens: 10, {keys}}}}}\n\
             train: {{max_steps: 30, learning_rate: 5e-3, seed: {seed}, eval_fraction: 0.2}}\n",
            teacher.display()
        );
        let outcome = gradus::train::run(&dir.plan(&format!("run{seed}"), "qwen3", &rest), &mut Silent).unwrap();
        let (before, after) = (number(&outcome, "before", "eval_loss"), number(&outcome, "after", "eval_loss"));
        assert!(after < 0.5 * before, "{keys}: from {before} to {after}");
    }
}

/// A student with an adapter trains only the adapter, from a teacher in four bits.
#[test]
fn an_adapter_learns_from_a_quantized_teacher() {
    let dir = TestDir::new(questions_with_answers());
    let rest = format!(
        "method: {{distill: {{teacher_model: {}, lmbda: 0.5, max_new_tokens: 6}}}}\nlora: {{rank: 4}}\n\
         train: {{max_steps: 20, learning_rate: 1e-2, frozen_weights: nf4, eval_fraction: 0.2}}\n",
        model("gpt2").path.display()
    );
    let outcome = gradus::train::run(&dir.plan("run", "qwen3", &rest), &mut Silent).unwrap();
    let (before, after) = (number(&outcome, "before", "eval_loss"), number(&outcome, "after", "eval_loss"));
    assert!(after < 0.9 * before, "from {before} to {after}");
    assert!(outcome.model.join("adapter_model.safetensors").is_file());
}

/// A teacher with other tokens, and rows without prompts to sample from.
#[test]
fn a_teacher_with_another_vocabulary_is_refused() {
    let dir = TestDir::new(questions_with_answers());
    let other = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(model("gpt2").path).unwrap() {
        let from = entry.unwrap().path();
        std::fs::copy(&from, other.path().join(from.file_name().unwrap())).unwrap();
    }
    let file = other.path().join("tokenizer.json");
    let text = std::fs::read_to_string(&file).unwrap();
    let mut tokenizer: serde_json::Value = serde_json::from_str(&text).unwrap();
    let vocabulary = tokenizer["model"]["vocab"].as_object_mut().unwrap();
    let (a, b) = (vocabulary["a"].clone(), vocabulary["b"].clone());
    (vocabulary["a"], vocabulary["b"]) = (b, a);
    std::fs::write(&file, tokenizer.to_string()).unwrap();
    let rest = format!("method: {{distill: {{teacher_model: {}}}}}\n", other.path().display());
    let error = gradus::train::run(&dir.plan("run", "qwen3", &rest), &mut Silent).unwrap_err();
    assert!(error.to_string().starts_with("the teacher `"), "{error}");
    assert!(error.to_string().contains("has a different tokenizer than the policy"), "{error}");
    assert!(error.hint().unwrap().starts_with("set a `teacher_model`"), "{error:?}");

    let dir = TestDir::new(colors());
    let rest = format!("method: {{distill: {{teacher_model: {}}}}}\n", model("gpt2").path.display());
    let error = gradus::train::run(&dir.plan("run", "qwen3", &rest), &mut Silent).unwrap_err();
    assert!(error.to_string().contains("a text without a prompt"), "{error}");
}

/// Stops a run after a number of logged steps.
pub(crate) struct Stopper(pub(crate) usize);

impl Observer for Stopper {
    fn event(&mut self, event: &Event<'_>) {
        if let Event::Step { .. } = event {
            self.0 = self.0.saturating_sub(1);
        }
    }

    fn should_stop(&mut self) -> bool {
        self.0 == 0
    }
}

pub(crate) fn bits(directory: &Path) -> Vec<u32> {
    let policy = CausalLm::load(&ModelDir::open(directory).unwrap(), &Device::flex()).unwrap();
    named_tensors(&policy).iter().flat_map(|tensor| tensor.values.iter().map(|x| x.to_bits())).collect()
}

/// Returns all logged values except timings.
pub(crate) fn logged(run: &Path) -> Vec<(usize, Vec<(String, u64)>)> {
    let timing = |key: &str| key.starts_with("time/") || key == "tokens_per_s";
    let rows = rows_of_steps(&run.join("metrics.jsonl"));
    let values = |row: &gradus::run::MetricsRow| {
        row.values
            .iter()
            .filter(|(key, _)| !timing(key))
            .map(|(key, value)| (key.to_owned(), value.to_bits()))
            .collect()
    };
    rows.iter().map(|row| (row.step, values(row))).collect()
}

pub(crate) fn questions() -> impl Iterator<Item = serde_json::Value> {
    (0..30).map(|i| serde_json::json!({ "prompt": format!("{i}: what is {}?", COLORS[i % 6]) }))
}

#[test]
fn moments_in_int8_learn_what_those_in_f32_learn() {
    let dir = TestDir::new(colors());
    let losses = |moments: &str| -> Vec<f64> {
        let rest = format!(
            "method: {{sft: {{}}}}\ntrain: {{max_steps: 30, learning_rate: 5e-3, eval_fraction: 0.2, moments: {moments}}}\n"
        );
        let outcome = gradus::train::run(&dir.plan(moments, "qwen3", &rest), &mut Silent).unwrap();
        let rows = rows_of_steps(&outcome.directory.join("metrics.jsonl"));
        rows.iter().map(|row| row.values.get("loss").unwrap()).collect()
    };
    let (in_f32, in_int8) = (losses("f32"), losses("int8"));
    assert!(in_f32 != in_int8, "the embedding's moments are rounded");
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    let pairs = in_f32.iter().zip(&in_int8);
    let differences: Vec<f64> = pairs.map(|(a, b)| (a - b).abs()).collect();
    assert!(mean(&differences) < 0.02 * mean(&in_f32), "{in_f32:?} against {in_int8:?}");
    assert!(in_int8[29] < 1.0, "{in_int8:?}");
}

pub(crate) fn questions_with_answers() -> impl Iterator<Item = serde_json::Value> {
    pairs().map(|pair| serde_json::json!({ "prompt": pair["prompt"], "completion": pair["chosen"] }))
}

/// Groups without spread are replaced by other prompts, as long as there are any, and are counted.
#[test]
fn groups_that_teach_nothing_are_replaced() {
    let dir = TestDir::new(questions());
    let train = |name: &str, rounds: usize| {
        let rest = format!(
            "method: {{grpo: {{group_size: 2, max_new_tokens: 6, resample_rounds: {rounds}}}}}\nreward: {{rule: {{regex: e}}}}\n\
             train: {{max_steps: 3, batch_size: 4, learning_rate: 0, eval_steps: -1}}\n"
        );
        let outcome = gradus::train::run(&dir.plan(name, "qwen3", &rest), &mut Silent).unwrap();
        let rows = rows_of_steps(&outcome.directory.join("metrics.jsonl"));
        let sum = |key: &str| rows.iter().map(|row| row.values.get(key).unwrap_or(f64::NAN)).sum::<f64>();
        (sum("frac_reward_zero_std"), sum("sampling/replaced_groups"))
    };
    let (flat, _) = train("kept", 0);
    let (left, replaced) = train("replaced", 4);
    assert!(flat > 0.0 && left < flat, "{left} against {flat}");
    assert!(replaced >= flat * 4.0, "{replaced} of at least {} groups", flat * 4.0);
}

/// Start model, and number of iterations.
const START: (&str, usize) = ("qwen3", 5);

/// Trains `method` from `start` for `steps` iterations.
fn train_online(dir: &TestDir, name: &str, (start, steps): (&str, usize), method: &str) -> FinishedRun {
    let rest = format!(
        "method: {{{method}}}\nreward: {{rule: {{length: {{target: 3}}}}}}\ntrain: {{max_steps: {steps}, batch_size: 4, learning_rate: 1e-3, eval_steps: 2, eval_fraction: 0.1}}\n"
    );
    gradus::train::run(&dir.plan(name, start, &rest), &mut Silent).unwrap()
}

#[test]
fn nlpo_whose_mask_keeps_everything_is_ppo() {
    let dir = TestDir::new(questions());
    let keys = "max_new_tokens: 6, mini_batches: 2, entropy_coefficient: 0.01, temperature: 0.9";
    let ppo = train_online(&dir, "ppo", START, &format!("ppo: {{{keys}}}"));
    for (i, mask) in ["top_p: 1", "top_p: 1, mask_scope: processed, mask_at_eval: true", "top_p: 1, renormalise: false"]
        .into_iter()
        .enumerate()
    {
        let nlpo = train_online(&dir, &format!("nlpo-{i}"), START, &format!("nlpo: {{{keys}, {mask}}}"));
        assert_eq!(logged(&ppo.directory), logged(&nlpo.directory), "{mask}");
        assert_eq!(bits(&ppo.model), bits(&nlpo.model), "{mask}");
    }
    let masked = train_online(&dir, "masked", START, &format!("nlpo: {{{keys}, top_p: 0.6}}"));
    assert_ne!(bits(&ppo.model), bits(&masked.model));
}

/// In the first pass over the first rollouts, every ratio is 1 and the KL to the reference is 0.
#[test]
fn training_starts_from_the_policy_that_sampled() {
    let dir = TestDir::new(questions());
    let methods = [
        "ppo: {max_new_tokens: 6, update_epochs: 1}",
        "ppo: {max_new_tokens: 6, update_epochs: 1, critic: {trunk: shared}}",
        "ppo: {max_new_tokens: 6, update_epochs: 1, sampling: {top_k: 9, trained_logprobs: processed}}",
        "nlpo: {max_new_tokens: 6, update_epochs: 1, top_p: 0.5}",
        "nlpo: {max_new_tokens: 6, update_epochs: 1, top_p: 0.5, mask_scope: processed, sampling: {top_k: 20}}",
        "nlpo: {max_new_tokens: 6, update_epochs: 1, top_p: 0.5, renormalise: false}",
        "a2c: {max_new_tokens: 6}",
        "trpo: {max_new_tokens: 6, critic_updates: 1, cg_max_steps: 2}",
        "grpo: {group_size: 2, max_new_tokens: 6, kl_coefficient: 0.1}",
    ];
    for family in ["qwen3", "gpt2", "t5"] {
        for (i, method) in methods.iter().enumerate() {
            let outcome = train_online(&dir, &format!("{family}-{i}"), (family, 1), method);
            let first = &rows_of_steps(&outcome.directory.join("metrics.jsonl"))[0].values;
            let kl = first.get("objective/kl").unwrap();
            assert!(kl.abs() < 1e-4, "{family}, {method}: KL {kl} at the first step");
            match first.get("val/ratio") {
                Some(ratio) => assert!((ratio - 1.0).abs() < 1e-5, "{family}, {method}: ratio {ratio}"),
                None => assert_eq!(first.get("clip_ratio/region_mean"), Some(0.0), "{family}, {method}"),
            }
        }
    }
}

#[test]
fn trpo_stays_within_its_bound() {
    let dir = TestDir::new(questions());
    let outcome = train_online(&dir, "free", START, "trpo: {max_new_tokens: 6, target_kl: 0.02, critic_updates: 1}");
    let rows = rows_of_steps(&outcome.directory.join("metrics.jsonl"));
    let (mut accepted, mut moved) = (0.0, 0.0f64);
    for row in &rows {
        let value = |key: &str| row.values.get(key).unwrap();
        assert!(value("trust_region/kl") < 0.02, "{row:?}");
        assert!(value("trust_region/improvement") >= 0.0, "{row:?}");
        accepted += value("trust_region/accepted");
        moved = moved.max(value("trust_region/kl"));
    }
    assert!(accepted >= 3.0 && moved > 0.001, "{accepted} steps, {moved}");
    assert_ne!(bits(&outcome.model), bits(&model("qwen3").path));
}
