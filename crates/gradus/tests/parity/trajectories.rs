//! Ten training steps compared to TRL's (and verl's, for PPO completions of different lengths): the same weights, rows,
//! order and optimizer give the same curves.
//!
//! Losses agree within a relative 1e-3 over ten steps. Offline methods run as a user runs them, from a plan to
//! `metrics.jsonl`; GRPO and PPO update from recorded rollouts.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail where they stand")]

use std::path::{Path, PathBuf};

use burn::module::Module;
use burn::tensor::Tensor;
use gradus::algorithm::critic::{Critic, SeparateCritic};
use gradus::algorithm::fisher::{Distance, Distributions};
use gradus::algorithm::grpo::{Grpo, GrpoConfig, GrpoLossType};
use gradus::algorithm::ppo::{AdvantageKeys, KlConfig, KlEstimator, PpoConfig};
use gradus::algorithm::rloo::{Rloo, RlooConfig};
use gradus::algorithm::step::{Denominator, Learners, MiniBatch, OldLogprobs, PassStats, PolicyLoss, Surrogate};
use gradus::algorithm::{
    Actor, Advantages, Algorithm, AlgorithmInputs, Experience, OnlineMethod, TokenTargets, Update, actor,
};
use gradus::config::{MethodConfig, Plan, RunConfig, Visitor};
use gradus::generate::{History, Masking};
use gradus::learner::Learner;
use gradus::learner::flat::ParameterRange;
use gradus::learner::optimizer::Optimizer;
use gradus::loss::surrogate::Level;
use gradus::machine::Machine;
use gradus::math::conjugate::dot;
use gradus::method::RolloutKeys;
use gradus::model::{CausalLm, ModelDir, Reference, ReferenceSync, RewardModel, Rows, named_tensors};
use gradus::objective::OfflineMethod;
use gradus::progress::Unwatched;
use gradus::rollout::{Prompt, Rollout, Rollouts, StopReason, Turn};
use gradus::run::read_metrics;
use gradus::settings::Settings;
use gradus::settings::TrainConfig;
use gradus::train::observer::Silent;
use serde_json::{Value, json};

use crate::device::{choice, device, slack};

/// Tolerance, relative to the size of the number or 1, whichever is larger.
const CURVE: f64 = 1e-3;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/trajectories")
}

fn read(run: &str) -> Value {
    let path = folder().join(run).join("run.json");
    serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap()
}

fn lines(path: &Path) -> Vec<Value> {
    std::fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn model(name: &str) -> PathBuf {
    folder().join("models").join(name)
}

#[track_caller]
fn close(what: &str, found: f64, expected: f64) {
    let distance = (found - expected).abs() / expected.abs().max(1.0);
    assert!(distance <= CURVE * slack(), "{what}: {found}, but the other implementation has {expected}");
}

/// Compares the numbers under `names` in each step of a run.
fn offline(run: &str, method: &str, extra: &str, names: &[&str]) {
    let fixture = read(run);
    let given = &fixture["hyper_parameters"];
    let number = |key: &str, default: f64| given[key].as_f64().unwrap_or(default);
    let directory = tempfile::tempdir().unwrap();
    let text = format!(
        "model: {}\ndata: {}\noutput_dir: {}\nmethod: {{{method}}}\ntrain:\n  max_steps: 10\n  shuffle: false\n  \
         batch_size: 4\n  learning_rate: {}\n  lr_schedule: {}\n  max_length: 128\n  warmup_steps: {}\n  \
         weight_decay: {}\n  adam_betas: [0.9, {}]\n  adam_epsilon: {}\n  max_grad_norm: {}\n  \
         device: {}\n{extra}",
        model(fixture["start_model"].as_str().unwrap()).display(),
        folder().join(run).join("rows.jsonl").display(),
        directory.path().join("run").display(),
        number("learning_rate", f64::NAN),
        given["lr_scheduler_type"].as_str().unwrap(),
        number("warmup_steps", 0.0),
        number("weight_decay", 0.0),
        number("adam_beta2", 0.999),
        number("adam_epsilon", 1e-8),
        number("max_grad_norm", 1.0),
        choice(),
    );
    let plan = Plan::check(&RunConfig::parse(&text).unwrap(), &Machine::detect()).unwrap();
    let outcome = gradus::train::run(&plan, &mut Silent).unwrap();

    let rows = read_metrics(&outcome.directory.join("metrics.jsonl")).unwrap();
    let steps = fixture["steps"].as_array().unwrap();
    assert_eq!(rows.len(), steps.len());
    for (row, step) in rows.iter().zip(steps) {
        for name in ["loss", "grad_norm", "learning_rate"].iter().chain(names) {
            let expected = step.get(name).unwrap_or(&step["metrics"][name]).as_f64().unwrap();
            let found = row.values.get(name).unwrap_or_else(|| panic!("`{name}` is not logged"));
            close(&format!("{run}, step {}, {name}", row.step), found, expected);
        }
    }
    let dir = ModelDir::open(&outcome.model).unwrap();
    let device = device();
    let tensors = match dir.is_reward_model() {
        true => named_tensors(&RewardModel::load(&dir, &device).unwrap()),
        false => named_tensors(&CausalLm::load(&dir, &device).unwrap()),
    };
    weights(run, &tensors, &fixture["final_weights"]);
}

/// Compares the norms of all final weights. `names` on disk begin with the family's prefix, those in memory with
/// `trunk.`.
fn weights(run: &str, tensors: &[gradus::model::NamedTensor<'_>], expected: &Value) {
    for (name, expected) in expected.as_object().unwrap() {
        let short = name.trim_start_matches("model.").trim_start_matches("transformer.");
        let Some(found) = tensors.iter().find(|tensor| tensor.name.trim_start_matches("trunk.") == short) else {
            assert!(name == "lm_head.weight", "{run}: no tensor `{name}`");
            continue;
        };
        let norm = found.values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        close(&format!("{run}, norm of `{name}`"), norm, expected["norm"].as_f64().unwrap());
    }
}

#[test]
fn supervised_fine_tuning() {
    offline("sft", "sft: {}", "", &["entropy", "mean_token_accuracy", "num_tokens"]);
}

#[test]
fn supervised_fine_tuning_on_assistant_turns_with_cosine_and_decay() {
    let method = "sft: {assistant_only_loss: true}";
    offline("sft_chat_cosine_decay", method, "", &["entropy", "mean_token_accuracy", "num_tokens"]);
}

/// Compared to a plain loop over transformers, which uses padding and attention masks.
#[test]
fn supervised_fine_tuning_of_an_encoder_and_a_decoder() {
    offline("sft_t5", "sft: {}", "", &[]);
    offline("sft_t5_smoothed", "sft: {label_smoothing: 0.1}", "", &[]);
}

#[test]
fn dynamic_fine_tuning() {
    offline("sft_dft", "sft: {loss_type: dft}", "", &["entropy", "mean_token_accuracy", "num_tokens"]);
    let split = "  micro_batch_size: 3\n";
    offline("sft_dft", "sft: {loss_type: dft}", split, &["entropy", "mean_token_accuracy", "num_tokens"]);
}

const REWARD: [&str; 6] = ["num_tokens", "min_reward", "mean_reward", "max_reward", "accuracy", "margin"];

#[test]
fn reward_model() {
    offline("reward", "reward: {center_rewards_coefficient: 0.01}", "", &REWARD);
}

#[test]
fn reward_model_with_margins() {
    offline("reward_margin", "reward: {}", "", &REWARD);
}

/// Accuracies are left out: at the first step all differences are 0 except for rounding.
const DPO: [&str; 10] = [
    "num_tokens",
    "entropy",
    "mean_token_accuracy",
    "logps/chosen",
    "logps/rejected",
    "logits/chosen",
    "logits/rejected",
    "rewards/chosen",
    "rewards/rejected",
    "rewards/margins",
];

#[test]
fn direct_preference_optimization() {
    offline("dpo", "dpo: {}", "", &DPO);
    offline("dpo", "dpo: {reference: live}", "  micro_batch_size: 3\n", &DPO);
}

/// The reference follows the policy after the third, the sixth and the ninth step.
#[test]
fn direct_preference_optimization_with_a_reference_that_follows() {
    let sync = "  sync_ref_model: true\n  ref_model_mixup_alpha: 0.6\n  ref_model_sync_steps: 3\n";
    offline("dpo_sync", "dpo: {reference: live}", sync, &DPO);
    offline("dpo_sync", "dpo: {reference: live}", &format!("{sync}  micro_batch_size: 3\n"), &DPO);
}

#[test]
fn direct_preference_optimization_on_conversations_with_ipo() {
    offline("dpo_chat_gpt2_ipo", "dpo: {loss_type: ipo, beta: 0.2}", "", &DPO);
}

#[test]
fn direct_preference_optimization_with_several_losses() {
    let method = "dpo: {loss_type: [sigmoid, sft], loss_weights: [1, 0.5]}";
    offline("dpo_and_sft", method, "", &DPO);
    offline("dpo_and_sft", method, "  micro_batch_size: 3\n", &DPO);
    let method = "dpo: {beta: 0.5, loss_type: [exo_pair, discopop], loss_weights: [1, 0.25], label_smoothing: 0.01, \
                  f_divergence_type: js_divergence, use_weighting: true}";
    offline("dpo_js_weighted_pairs", method, "", &DPO);
}

#[test]
fn direct_preference_optimization_that_sorts_the_step() {
    let method = "dpo: {loss_type: aot_unpaired, label_smoothing: 0.1, ld_alpha: 0.5}";
    offline("dpo_aot_unpaired_ld", method, "", &DPO);
    offline("dpo_aot_unpaired_ld", method, "  micro_batch_size: 1\n", &DPO);
}

/// Metrics of TRL's trainers without a reference; their means of logits include prompts.
const PAIRS: [&str; 6] =
    ["logps/chosen", "logps/rejected", "rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies"];

#[test]
fn odds_ratio_preference_optimization() {
    offline("orpo", "orpo: {}", "", &[&PAIRS[..], &["nll_loss", "log_odds_ratio", "log_odds_chosen"]].concat());
}

#[test]
fn contrastive_preference_optimization() {
    let method = "cpo: {beta: 0.2, label_smoothing: 0.05, cpo_alpha: 0.5}";
    offline("cpo", method, "", &[&PAIRS[..], &["nll_loss"]].concat());
    offline("cpo", method, "  micro_batch_size: 3\n", &[&PAIRS[..], &["nll_loss"]].concat());
}

#[test]
fn simple_preference_optimization() {
    offline("simpo", "simpo: {}", "", &PAIRS);
    offline("simpo", "cpo: {loss_type: simpo, beta: 2, simpo_gamma: 1, cpo_alpha: 0}", "", &PAIRS);
}

const UNPAIRED: [&str; 9] = [
    "kl",
    "num_tokens",
    "entropy",
    "logps/chosen",
    "logps/rejected",
    "rewards/chosen",
    "rewards/rejected",
    "rewards/margins",
    "logits/chosen",
];

#[test]
fn kahneman_tversky_optimization() {
    let method = "kto: {beta: 0.3, desirable_weight: 1.2}";
    offline("kto", method, "", &UNPAIRED);
    offline("kto", method, "  micro_batch_size: 3\n", &UNPAIRED);
}

/// Pairs are split: a step contains chosen completions, rejected ones, or both.
#[test]
fn kahneman_tversky_optimization_on_pairs_without_a_point_of_reference() {
    offline(
        "kto_pairs_apo",
        "kto: {loss_type: apo_zero_unpaired, undesirable_weight: 0.75}",
        "",
        &["num_tokens", "entropy"],
    );
}

/// Uses the completions of the rows, so nothing is sampled. The teacher is of another family.
#[test]
fn distillation() {
    let teacher = model("gpt2");
    let method = |rest: &str| format!("distill: {{teacher_model: {}, lmbda: 0, {rest}}}", teacher.display());
    offline("distill", &method("beta: 0.5"), "", &[]);
    offline("distill", &method("beta: 0.5"), "  micro_batch_size: 3\n", &[]);
    offline("distill_reverse", &method("beta: 1"), "", &[]);
}

/// Returns recorded rollouts with recorded rewards; logprobs are the policy's own.
fn rollouts(rows: &[Value], policy: &CausalLm, group_size: usize, temperature: f32, settings: &Settings) -> Rollouts {
    let ids =
        |value: &Value| value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect::<Vec<_>>();
    let prompt = |row: &Value| Prompt {
        row: 0,
        text: String::new(),
        ids: ids(&row["prompt_ids"]),
        encoder_reads_prompt: false,
        messages: None,
        columns: serde_json::Map::new(),
    };
    let rollout = |(i, row): (usize, &Value)| {
        let parts: Vec<[Vec<u32>; 2]> = match row["turns"].as_array() {
            Some(turns) => turns.iter().map(|turn| [ids(&turn["drawn"]), ids(&turn["answered"])]).collect(),
            None => vec![[ids(&row["completion_ids"]), Vec::new()]],
        };
        let completion_ids: Vec<u32> = parts.iter().flatten().flatten().copied().collect();
        // Id 2 ends a text, and id 4 a turn.
        let stop = if matches!(completion_ids.last(), Some(2 | 4)) { StopReason::StopId } else { StopReason::Length };
        let turn =
            |[drawn, answered]: &[Vec<u32>; 2]| Turn { answered: answered.len(), ..Turn::unanswered(drawn.len()) };
        let turns = parts.iter().map(turn).collect();
        Rollout { turns, ..Rollout::one_turn(i / group_size, "", completion_ids, stop) }
    };
    let mut rollouts = Rollouts {
        prompts: rows.iter().step_by(group_size).map(prompt).collect(),
        rollouts: rows.iter().enumerate().map(rollout).collect(),
        group_size,
        tokenizer: None,
    };
    let logprobs = actor::logprobs(policy, &rollouts, temperature, settings.passes);
    for (rollout, logprobs) in rollouts.rollouts.iter_mut().zip(logprobs) {
        rollout.replace_logprobs(&logprobs);
    }
    rollouts
}

/// Returns one reward per completion, on its last token.
fn rewards(rows: &[Value], rollouts: &Rollouts, key: &str) -> Vec<Option<Vec<f32>>> {
    let reward = |(row, rollout): (&Value, &Rollout)| {
        let mut rewards_t = vec![0.0; rollout.completion_ids.len()];
        *rewards_t.last_mut().unwrap() = row[key].as_f64().unwrap() as f32;
        Some(rollout.rewards_of_counted(&rewards_t))
    };
    rows.iter().zip(&rollouts.rollouts).map(reward).collect()
}

/// Returns the advantages of some rollouts.
fn of_part(advantages: &Advantages, part: &[usize]) -> Vec<f32> {
    part.iter().flat_map(|&i| advantages.targets[i].advantages_t.clone()).collect()
}

/// Returns advantages, returns and values of all tokens, with the names of the fixtures.
fn lists(advantages: &Advantages) -> [(&'static str, Vec<f32>); 3] {
    let of = |list: fn(&TokenTargets) -> &Vec<f32>| advantages.targets.iter().flat_map(list).copied().collect();
    [
        ("advantages", of(|targets| &targets.advantages_t)),
        ("returns", of(|targets| &targets.critic.as_ref().expect("a critic").returns_t)),
        ("values", of(|targets| &targets.critic.as_ref().expect("a critic").values_t)),
    ]
}

fn settings(steps: usize, learning_rate: f64, max_grad_norm: f64) -> Settings {
    let config = TrainConfig { shuffle: false, max_grad_norm, ..TrainConfig::default() };
    Settings::new(&config, steps, learning_rate, "eval_reward")
}

fn load(name: &str) -> CausalLm {
    CausalLm::load(&ModelDir::open(&model(name)).unwrap(), &device().autodiff()).unwrap()
}

fn grpo(run: &str) {
    let fixture = read(run);
    let given = &fixture["hyper_parameters"];
    let number = |key: &str, default: f64| given[key].as_f64().unwrap_or(default);
    let level = given["importance_sampling_level"].as_str().unwrap_or("token");
    let config = GrpoConfig {
        rollouts: RolloutKeys::new(
            4,
            number("max_completion_length", f64::NAN) as usize,
            number("temperature", f64::NAN),
        ),
        clip_range: number("epsilon", 0.2),
        clip_range_high: given["epsilon_high"].as_f64(),
        kl_coefficient: number("beta", f64::NAN),
        importance_sampling_level: serde_json::from_value(level.into()).unwrap(),
        loss_type: serde_json::from_value(given["loss_type"].clone()).unwrap(),
        mask_truncated_completions: given["mask_truncated_completions"].as_bool().unwrap_or(false),
        ..GrpoConfig::default()
    };
    let mut names = match config.loss_type {
        GrpoLossType::Cispo => vec!["cispo_clip_ratio"],
        GrpoLossType::Sapo => Vec::new(),
        GrpoLossType::Vespo => vec!["vespo/phi_seq_mean"],
        _ => vec!["clip_ratio/low_mean", "clip_ratio/region_mean"],
    };
    names.extend((config.kl_coefficient != 0.0).then_some("kl"));
    grouped(run, config.rollouts.temperature as f32, &mut Grpo::new(&config), &names);
}

fn rloo(run: &str) {
    let fixture = read(run);
    let given = &fixture["hyper_parameters"];
    let number = |key: &str, default: f64| given[key].as_f64().unwrap_or(default);
    let config = RlooConfig {
        rollouts: RolloutKeys::new(
            4,
            number("max_completion_length", f64::NAN) as usize,
            number("temperature", f64::NAN),
        ),
        clip_range: number("epsilon", 0.2),
        kl_coefficient: number("beta", f64::NAN),
        normalize_advantages: given["normalize_advantages"].as_bool().unwrap_or(false),
        reward_clip_range: serde_json::from_value(given["reward_clip_range"].clone()).unwrap(),
        mask_truncated_completions: given["mask_truncated_completions"].as_bool().unwrap_or(false),
        ..RlooConfig::default()
    };
    grouped(
        run,
        config.rollouts.temperature as f32,
        &mut Rloo::new(&config),
        &["kl", "clip_ratio/low_mean", "clip_ratio/region_mean"],
    );
}

/// Trains on recorded groups of completions, each used as often as the run states.
fn grouped(run: &str, temperature: f32, algorithm: &mut dyn Algorithm, names: &[&str]) {
    let fixture = read(run);
    let given = &fixture["hyper_parameters"];
    let repeats = given["num_iterations"].as_u64().unwrap_or(1) as usize;
    // TRL's schedule advances with each update, so each update is a separate call.
    let settings = settings(10, given["learning_rate"].as_f64().unwrap(), 1.0);
    let recorded = lines(&folder().join(run).join("rollouts.jsonl"));
    let mut learner =
        Learner::new(Actor { policy: load("qwen3"), value_head: None }, Optimizer::new(settings.optimizer));
    let start = learner.frozen().policy;
    let reference = match given["sync_ref_model"].as_bool() {
        Some(true) => {
            let alpha = given["ref_model_mixup_alpha"].as_f64().unwrap();
            let every = given["ref_model_sync_steps"].as_u64().unwrap() as usize;
            Reference::following(&start, &start, ReferenceSync { alpha, every }).unwrap()
        }
        _ => Reference::frozen(start),
    };
    let mut known = None;
    for (update, step) in fixture["steps"].as_array().unwrap().iter().enumerate() {
        let generation = update / repeats;
        if update % repeats == 0 {
            let rows: Vec<Value> = recorded.iter().filter(|row| row["generation"] == generation).cloned().collect();
            let rollouts = rollouts(&rows, &learner.frozen().policy, 4, temperature, &settings);
            let reference = actor::logprobs(&reference.model(), &rollouts, temperature, settings.passes);
            let rewards = rewards(&rows, &rollouts, "reward");
            let experience = Experience::new(rollouts, rewards, Some(reference));
            let advantages = algorithm.advantages(&learner.frozen(), &experience, &settings);
            known = Some((experience, advantages));
        }
        let (experience, advantages) = known.as_ref().unwrap();
        let at = Update {
            iteration: update,
            multiplier: settings.multiplier(update),
            settings: &settings,
            progress: &Unwatched,
        };
        let report = algorithm.update(&mut learner, experience, advantages, at).unwrap();
        reference.end_step(update + 1, || learner.frozen().policy);
        for name in ["loss", "grad_norm", "entropy"].iter().chain(names) {
            let expected = step.get(name).unwrap_or(&step["metrics"][name]).as_f64();
            // Values measured when completions were scored are logged once.
            let Some(expected) = expected else { continue };
            let found = report.metrics.value(name).or_else(|| advantages.stats.value(name)).unwrap();
            close(&format!("{run}, step {}, {name}", update + 1), found, expected);
        }
    }
    weights(run, &named_tensors(&learner.frozen().policy), &fixture["final_weights"]);
}

#[test]
fn group_relative_policy_optimization() {
    grpo("grpo_dapo");
}

#[test]
fn group_relative_policy_optimization_twice_over_each_batch_with_kl() {
    grpo("grpo_two_iterations_kl");
}

/// The reference follows the policy after every second step.
#[test]
fn group_relative_policy_optimization_with_a_reference_that_follows() {
    grpo("grpo_sync");
}

#[test]
fn group_sequence_policy_optimization() {
    grpo("grpo_gspo");
}

#[test]
fn weights_and_gates_in_place_of_the_clip() {
    for run in ["grpo_cispo", "grpo_sapo", "grpo_vespo"] {
        grpo(run);
    }
}

/// Episodes of several turns: answers of tools and environments carry no loss.
#[test]
fn group_relative_policy_optimization_over_several_turns() {
    grpo("grpo_tools");
    grpo("grpo_environment");
}

#[test]
fn reinforce_that_leaves_one_out() {
    rloo("rloo");
    rloo("rloo_two_iterations");
}

fn ppo(run: &str) {
    let fixture = read(run);
    let given = &fixture["hyper_parameters"];
    let number = |key: &str| given[key].as_f64().unwrap();
    let k1 = given["kl_estimator"] == "k1";
    let config = PpoConfig {
        rollouts: RolloutKeys::new(1, 53, number("temperature")),
        update_epochs: number("num_ppo_epochs") as usize,
        mini_batches: number("num_mini_batches") as usize,
        clip_range: number("cliprange"),
        value_clip_range: number("cliprange_value"),
        value_coefficient: number("vf_coef"),
        advantages: AdvantageKeys {
            whiten_rewards: given["whiten_rewards"].as_bool().unwrap(),
            missing_eos_penalty: given["missing_eos_penalty"].as_f64(),
            kl: KlConfig {
                coefficient: number("kl_coef"),
                estimator: if k1 { KlEstimator::K1 } else { KlEstimator::K3 },
                ..KlConfig::default()
            },
            ..AdvantageKeys::new(number("gamma"), number("lam"), true)
        },
        ..PpoConfig::default()
    };
    let temperature = config.rollouts.temperature as f32;
    let iterations = fixture["iterations"].as_array().unwrap().len();
    let settings = settings(iterations, number("learning_rate"), number("max_grad_norm"));
    let source = ModelDir::open(&model(fixture["value_model"].as_str().unwrap())).unwrap();
    let value_model = RewardModel::load(&source, &device().autodiff()).unwrap();
    let critic = SeparateCritic {
        learner: Learner::new(value_model, Optimizer::new(settings.optimizer)),
        learning_rate: settings.learning_rate,
        source,
        pad_id: 0,
    };
    let mut algorithm = config.actor_critic(Critic::Separate(Box::new(critic)), None);
    let mut learner =
        Learner::new(Actor { policy: load("qwen3"), value_head: None }, Optimizer::new(settings.optimizer));
    let reference = learner.frozen().policy;
    let recorded = lines(&folder().join(run).join("rollouts.jsonl"));
    for iteration in 0..iterations {
        let rows: Vec<Value> = recorded.iter().filter(|row| row["iteration"] == iteration).cloned().collect();
        let rollouts = rollouts(&rows, &learner.frozen().policy, 1, temperature, &settings);
        let reference = actor::logprobs(&reference, &rollouts, temperature, settings.passes);
        let rewards = rewards(&rows, &rollouts, "score");
        let experience = Experience::new(rollouts, rewards, Some(reference));
        let advantages = algorithm.advantages(&learner.frozen(), &experience, &settings);
        if let Some(expected) = fixture["iterations"].get(iteration) {
            let metrics = expected["metrics"].as_object().unwrap();
            for (name, value) in metrics {
                let found = match name.as_str() {
                    "objective/kl" => advantages.kl.unwrap().value(),
                    name => advantages.stats.value(name).unwrap(),
                };
                close(&format!("{run}, {name}"), found, value.as_f64().unwrap());
            }
            for (key, found) in lists(&advantages) {
                // Recorded for the first two iterations.
                let Some(rows) = expected.get(key) else { continue };
                let expected = rows.as_array().unwrap().iter().flat_map(|row| row.as_array().unwrap());
                for (found, expected) in found.iter().zip(expected) {
                    close(&format!("{run}, {key}"), f64::from(*found), expected.as_f64().unwrap());
                }
            }
        }
        let at =
            Update { iteration, multiplier: settings.multiplier(iteration), settings: &settings, progress: &Unwatched };
        let report = algorithm.update(&mut learner, &experience, &advantages, at).unwrap();
        let steps: Vec<&Value> =
            fixture["steps"].as_array().unwrap().iter().filter(|step| step["iteration"] == iteration).collect();
        let mean = |of: &dyn Fn(&Value) -> f64| steps.iter().map(|step| of(step)).sum::<f64>() / steps.len() as f64;
        let names = [
            ("loss", "loss"),
            ("grad_norm", "grad_norm_policy"),
            ("critic/grad_norm", "grad_norm_value"),
            ("loss/policy_avg", "loss/policy_avg"),
            ("loss/value_avg", "loss/value_avg"),
        ];
        for (ours, theirs) in names {
            let expected = mean(&|step| step.get(theirs).unwrap_or(&step["metrics"][theirs]).as_f64().unwrap());
            close(&format!("{run}, iteration {iteration}, {ours}"), report.metrics.value(ours).unwrap(), expected);
        }
        // Means over the tokens of the whole update; without counts, all steps have the same number.
        let tokens = |step: &Value| step["tokens"].as_f64().unwrap_or(1.0);
        let measured = steps[0]["metrics"].as_object().unwrap().keys().filter(|name| !name.starts_with("loss/"));
        for name in measured {
            let sum: f64 = steps.iter().map(|step| step["metrics"][name].as_f64().unwrap() * tokens(step)).sum();
            let expected = sum / steps.iter().map(|step| tokens(step)).sum::<f64>();
            close(&format!("{run}, iteration {iteration}, {name}"), report.metrics.value(name).unwrap(), expected);
        }
    }
    weights(run, &named_tensors(&learner.frozen().policy), &fixture["final_policy"]);
    let Some(Critic::Separate(critic)) = algorithm.critic() else { panic!("the critic stands alone") };
    weights(run, &named_tensors(&critic.learner.frozen()), &fixture["final_value"]);
}

#[test]
fn proximal_policy_optimization() {
    ppo("ppo");
}

/// Compared to verl, whose arithmetic the script calls: see `tools/parity/ppo_ragged.py`.
#[test]
fn proximal_policy_optimization_on_completions_of_different_lengths() {
    ppo("ppo_ragged");
}

/// Builds the algorithm of a method with a critic that starts as `source`.
struct WithCritic<'a> {
    settings: &'a Settings,
    policy: &'a str,
    source: ModelDir,
}

impl<'m> Visitor<'m> for WithCritic<'_> {
    type Output = Box<dyn Algorithm>;

    fn offline<M: OfflineMethod>(self, _: &'m M) -> Self::Output {
        unreachable!("these methods sample")
    }

    fn online<M: OnlineMethod>(self, method: &'m M) -> Self::Output {
        let critic = SeparateCritic {
            learner: Learner::new(
                RewardModel::load(&self.source, &device().autodiff()).unwrap(),
                Optimizer::new(self.settings.optimizer),
            ),
            learning_rate: self.settings.learning_rate,
            source: self.source,
            pad_id: 0,
        };
        let critic = Some(Critic::Separate(Box::new(critic)));
        let lagged = Some(load(self.policy).valid());
        method.algorithm(AlgorithmInputs { critic, lagged, special_ids: vec![2], ..AlgorithmInputs::default() })
    }
}

/// Records the support that the mask leaves at each token, and the policy's logprobs over it.
fn mask(rollouts: &mut Rollouts, masking: Masking<'_>, policy: &CausalLm, settings: &Settings) {
    let guide = masking.guide.expect("a lagged policy");
    for rollout in &mut rollouts.rollouts {
        let prompt = &rollouts.prompts[rollout.prompt].ids;
        let ids = [&prompt[..], &rollout.completion_ids].concat();
        let logits: Vec<f32> =
            guide.logits(&guide.batch(&Rows::texts(std::slice::from_ref(&ids)))).into_data().try_into_vec().unwrap();
        let vocabulary = guide.vocab_size();
        for new in 0..rollout.completion_ids.len() {
            let at = prompt.len() + new;
            let line = &logits[(at - 1) * vocabulary..at * vocabulary];
            let history = History::new(&ids[..at], new);
            rollout.supports.extend(masking.mask.supports(&[(0, history)], line, Some(line)));
            assert!(rollout.supports[new].contains(ids[at]), "what was drawn could be drawn");
        }
    }
    let among = actor::logprobs(policy, rollouts, 1.0, settings.passes);
    for (rollout, among_t) in rollouts.rollouts.iter_mut().zip(among) {
        rollout.sampled_logprobs = among_t;
    }
}

/// Runs several iterations from recorded samples, compared to the loop of `tools/parity/policies.py`: losses within
/// 1e-4.
fn recorded(run: &str) {
    recorded_with(run, &json!({}));
}

/// The same with other keys of the method, which must not matter.
fn recorded_with(run: &str, keys: &Value) {
    const LOSS: f64 = 1e-4;
    let mut fixture = read(run);
    for (key, value) in keys.as_object().unwrap() {
        fixture["method"]["ppo"][key] = value.clone();
    }
    let method: MethodConfig = serde_json::from_value(fixture["method"].clone()).unwrap();
    let train: TrainConfig = serde_json::from_value(fixture["train"].clone()).unwrap();
    let steps = train.max_steps.unwrap();
    let settings = Settings::new(&train, steps, train.learning_rate.unwrap(), "eval_reward");
    let source = ModelDir::open(&model(fixture["value_model"].as_str().unwrap())).unwrap();
    let policy = fixture["start_model"].as_str().unwrap();
    let mut algorithm = method.visit(WithCritic { settings: &settings, policy, source });
    let mut learner =
        Learner::new(Actor { policy: load(policy), value_head: None }, Optimizer::new(settings.optimizer));
    let reference = learner.frozen().policy;
    let rows = lines(&folder().join(run).join("rollouts.jsonl"));
    let near = |what: &str, found: f64, expected: f64| {
        let distance = (found - expected).abs() / expected.abs().max(1.0);
        assert!(distance <= LOSS * slack(), "{run}, {what}: {found}, but the loop has {expected}");
    };
    for (iteration, expected) in fixture["iterations"].as_array().unwrap().iter().enumerate() {
        let rows: Vec<Value> = rows.iter().filter(|row| row["iteration"] == iteration).cloned().collect();
        let temperature = method.iteration().expect("it samples").rollouts.trained_temperature();
        let mut rollouts = rollouts(&rows, &learner.frozen().policy, 1, temperature, &settings);
        if let Some(masking) = algorithm.masking(false) {
            mask(&mut rollouts, masking, &learner.frozen().policy, &settings);
        }
        let of = if algorithm.has_raw_kl() { actor::raw_logprobs } else { actor::logprobs };
        let reference = of(&reference, &rollouts, temperature, settings.passes);
        let rewards = rewards(&rows, &rollouts, "score");
        let experience = Experience::new(rollouts, rewards, Some(reference)).with_raw_kl(algorithm.has_raw_kl());
        let coefficient = algorithm.kl_coefficient().unwrap();
        near("kl_coef", coefficient, expected["metrics"]["kl_coef"].as_f64().unwrap());
        let advantages = algorithm.advantages(&learner.frozen(), &experience, &settings);
        for (key, found) in &lists(&advantages)[..2] {
            let expected = expected[key].as_array().unwrap().iter().flat_map(|row| row.as_array().unwrap());
            for (found, expected) in found.iter().zip(expected) {
                near(&format!("iteration {iteration}, {key}"), f64::from(*found), expected.as_f64().unwrap());
            }
        }
        let at =
            Update { iteration, multiplier: settings.multiplier(iteration), settings: &settings, progress: &Unwatched };
        let report = algorithm.update(&mut learner, &experience, &advantages, at).unwrap();
        let steps = expected["steps"].as_array().unwrap();
        // The value loss of the script's loop is not halved.
        let of_value = if run.starts_with("ppo_fine_grained") { 1.0 } else { 0.5 };
        for (ours, theirs, factor) in [
            ("loss", "loss", 1.0),
            ("loss/policy_avg", "policy", 1.0),
            ("loss/value_avg", "value", of_value),
            ("grad_norm", "grad_norm_policy", 1.0),
            ("critic/grad_norm", "grad_norm_value", 1.0),
        ] {
            let values: Vec<f64> = steps.iter().filter_map(|step| step[theirs].as_f64()).collect();
            let expected = factor * values.iter().sum::<f64>() / values.len() as f64;
            near(&format!("iteration {iteration}, {ours}"), report.metrics.value(ours).unwrap(), expected);
        }
    }
    weights(run, &named_tensors(&learner.frozen().policy), &fixture["final_policy"]);
    let Some(Critic::Separate(critic)) = algorithm.critic() else { panic!("the critic stands alone") };
    weights(run, &named_tensors(&critic.learner.frozen()), &fixture["final_value"]);
}

#[test]
fn proximal_policy_optimization_of_rl4lms() {
    recorded("ppo_rl4lms");
}

#[test]
fn proximal_policy_optimization_of_rl4lms_that_stops_before_it_moves_too_far() {
    let fixture = read("ppo_rl4lms_stopping");
    let stopped = |iteration: &Value| iteration["steps"].as_array().unwrap().iter().any(|step| step["stopped"] == true);
    assert!(fixture["iterations"].as_array().unwrap().iter().any(stopped));
    recorded("ppo_rl4lms_stopping");
}

#[test]
fn proximal_policy_optimization_of_fine_grained_rlhf() {
    recorded("ppo_fine_grained");
}

/// Its completions are sampled at a temperature, but its logprobs are the model's own.
#[test]
fn fine_grained_rlhf_trains_at_temperature_one() {
    recorded_with("ppo_fine_grained", &json!({ "temperature": 0.7, "sampling": { "trained_logprobs": "untempered" } }));
}

/// A T5, with a smaller one with the two layers of FineGrainedRLHF as its critic.
#[test]
fn proximal_policy_optimization_of_an_encoder_and_a_decoder() {
    recorded("ppo_fine_grained_t5");
}

#[test]
fn advantage_actor_critic() {
    recorded("a2c");
}

#[test]
fn natural_language_policy_optimization() {
    recorded("nlpo");
}

/// Products with the Fisher matrix compared to PyTorch's, which differentiates the gradient a second time.
#[test]
fn fisher_vector_products_without_a_second_derivative() {
    fisher_vector_products("fisher.json", "model.", (1e-3, false));
}

/// The states are scaled before the head. At the bend of a ReLU, a finite difference is less exact than a derivative.
#[test]
fn fisher_vector_products_of_an_encoder_and_a_decoder() {
    fisher_vector_products("fisher_t5.json", "", (5e-3, true));
}

/// Without a ReLU, a scaled head and norms on both sides of a layer leave the difference as exact as for a decoder.
#[test]
fn fisher_vector_products_of_smooth_encoders_and_decoders() {
    fisher_vector_products("fisher_t5_gated.json", "", (1e-3, false));
    fisher_vector_products("fisher_bart.json", "model.", (1e-3, true));
}

/// Compares products part by part. Differences are relative to the part itself, or to the whole product.
fn fisher_vector_products(file: &str, prefix: &str, (most, beside_whole): (f64, bool)) {
    let fixture: Value = serde_json::from_slice(&std::fs::read(folder().join(file)).unwrap()).unwrap();
    let start_model = fixture["start_model"].as_str().unwrap();
    let settings = settings(1, 1.0, 0.0);
    let mut learner =
        Learner::new(Actor { policy: load(start_model), value_head: None }, Optimizer::new(settings.optimizer));
    let rows = fixture["rows"].as_array().unwrap();
    let rollouts = rollouts(rows, &learner.frozen().policy, 1, 1.0, &settings);
    let mut numbers = fixture["advantages"].as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32);
    let of_rollout = |rollout: &Rollout| TokenTargets {
        advantages_t: numbers.by_ref().take(rollout.counted()).collect(),
        critic: None,
    };
    let targets = rollouts.iter().map(of_rollout).collect();
    let rewards = rewards(rows, &rollouts, "score");
    let experience = Experience::new(rollouts, rewards, None);
    let chosen: Vec<usize> = (0..rows.len()).collect();
    let advantages = Advantages { targets, ..Advantages::default() };
    let batch = MiniBatch {
        experience: &experience,
        advantages: &advantages,
        chosen: &chosen,
        skipped: &[],
        dropout: None,
        old: OldLogprobs::Sampled,
    };
    let loss = PolicyLoss {
        coefficient: 1.0,
        temperature: 1.0,
        surrogate: Surrogate::PolicyGradient,
        level: Level::Token,
        denominator: Denominator::Tokens,
        kl: None,
        entropy_coefficient: 0.0,
        value: None,
        off_policy_threshold: None,
        top_entropy_quantile: None,
        clips_jointly: false,
    };
    let mut learners = Learners { actor: &mut learner, critic: None };
    loss.accumulate(&mut learners, batch, settings.passes, &mut PassStats::default()).unwrap();
    let gradient = -learner.gradient();
    let layout = learner.layout();
    let short = |name: &str| name.replacen("policy.trunk.", prefix, 1);
    let before = learner.parameters();
    // The distance of a policy from itself is exactly 0, so an empty step never counts as an improvement.
    let (policy, every) = (
        learner.frozen().policy,
        Distributions { experience: &experience, chosen: &chosen, temperature: 1.0, passes: settings.passes },
    );
    let objective = every.objective(&policy, &|part| of_part(&advantages, part));
    assert_eq!(every.distance(&policy, &policy, &|part| of_part(&advantages, part)), Distance { kl: 0.0, objective });

    for case in fixture["cases"].as_array().unwrap() {
        let expected = case["product"].as_object().unwrap();
        let wave = |(i, parameter): (usize, &ParameterRange)| {
            let n = parameter.range.len();
            (0..n).map(move |k| (k as f64 * 0.7 + 1.3 * i as f64).sin() as f32)
        };
        let vector = match case["name"].as_str().unwrap() {
            "gradient" => gradient.clone(),
            _ => {
                let names: Vec<&String> = expected.keys().collect();
                assert_eq!(
                    names,
                    layout
                        .iter()
                        .map(|parameter| short(&parameter.name))
                        .collect::<Vec<_>>()
                        .iter()
                        .collect::<Vec<_>>()
                );
                let values: Vec<f32> = layout.iter().enumerate().flat_map(wave).collect();
                Tensor::from_floats(values.as_slice(), &gradient.device())
            }
        };
        let product = every.product(&mut learner, &vector);
        let host: Vec<f32> = vector.into_data().try_into_vec().unwrap();
        let curvature = dot(&host, &product);
        let name = &case["name"];
        let near = |what: &str, found: f64, expected: f64, scale: f64| {
            let distance = (found - expected).abs() / scale;
            assert!(distance <= most, "{name}, {what}: {found}, but PyTorch has {expected}");
        };
        let expected_curvature = case["curvature"].as_f64().unwrap();
        near("curvature", curvature, expected_curvature, expected_curvature);
        let whole = case["norm"].as_f64().unwrap();
        near("norm", dot(&product, &product).sqrt(), whole, whole);
        for parameter in &layout {
            let own = &product[parameter.range.clone()];
            let expected = &expected[&short(&parameter.name)];
            let norm = expected["norm"].as_f64().unwrap();
            let scale = if beside_whole { whole } else { norm };
            near(&parameter.name, dot(own, own).sqrt(), norm, scale);
            let root = (own.len() as f64).sqrt();
            for (found, expected) in own.iter().zip(expected["first"].as_array().unwrap()) {
                near(&parameter.name, f64::from(*found), expected.as_f64().unwrap(), scale / root * 4.0);
            }
        }
    }
    let bits = |parameters: &Tensor<1>| parameters.to_data();
    assert_eq!(bits(&learner.parameters()), bits(&before), "no parameter has moved");
}
