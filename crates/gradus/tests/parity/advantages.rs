//! Host arithmetic compared to TRL, transformers and lm-human-preferences: advantages, GAE, whitening, schedules, control
//! of KL and entropy.

use gradus::algorithm::rloo::{Rloo, RlooConfig};
use gradus::algorithm::{Actor, Algorithm, Experience};
use gradus::math::kl::KlController;
use gradus::math::stats::Variance;
use gradus::math::{
    AdaptiveEntropy, Baseline, EntropyController, Scale, Whiten, gae, group_advantages, objective_advantages, returns,
    schedule, stats, whiten,
};
use gradus::method::RolloutKeys;
use gradus::model::{CausalLm, ModelDir};
use gradus::rollout::{Prompt, Rollout, Rollouts, StopReason};
use gradus::settings::{LrSchedule, Settings, TrainConfig};
use serde_json::{Map, Value, json};

use crate::device::device;
use crate::fixture::*;

#[test]
fn group_advantages_of_trl() {
    let fixture = read("losses/advantages.json");
    for case in list(&fixture["cases"]) {
        let (name, options) = (text(&case["name"]), &case["options"]);
        let weights =
            options["reward_weights"].as_array().map(|weights| weights.iter().map(number).collect::<Vec<_>>());
        let weight = |i: usize| weights.as_ref().map_or(1.0, |weights| weights[i]);
        let total = |row: &Value| -> Option<f32> {
            let scored = list(row).iter().enumerate().filter_map(|(i, reward)| Some(reward.as_f64()? * weight(i)));
            scored.reduce(|a, b| a + b).map(|sum| sum as f32)
        };
        let rewards_b: Vec<Option<f32>> = list(&case["rewards"]).iter().map(total).collect();
        let scale = match text(&options["scale_rewards"]) {
            "group" => Scale::Group,
            "batch" => Scale::Batch,
            "none" => Scale::None,
            other => panic!("{other}"),
        };
        let group_size = number(&options["num_generations"]) as usize;
        let sums = match text(&options["multi_objective_aggregation"]) {
            "sum_then_normalize" => true,
            "normalize_then_sum" => false,
            other => panic!("{other}"),
        };
        let found = match sums {
            true => group_advantages(&rewards_b, group_size, Baseline::Mean, scale),
            false => {
                let or_none = |reward: &Value| reward.as_f64().map(|reward| reward as f32);
                let row = |row: &Value| list(row).iter().map(or_none).collect::<Vec<Option<f32>>>();
                let rewards_bk: Vec<Vec<Option<f32>>> = list(&case["rewards"]).iter().map(row).collect();
                let weights_k: Vec<f64> = (0..rewards_bk[0].len()).map(weight).collect();
                objective_advantages(&rewards_bk, &weights_k, group_size)
            }
        };
        assert_all(name, &found.advantages_b, &flat(&case["advantages"]), VALUE, 1.0);

        let scored: Vec<f32> = rewards_b.iter().flatten().copied().collect();
        let metrics = &case["metrics"];
        assert_value(name, stats::mean(&scored).expect("rewards"), number(&metrics["reward"]));
        assert_value(name, stats::std(&scored, Variance::Unbiased).expect("rewards"), number(&metrics["reward_std"]));
        // If TRL divides by the standard deviation of the batch, it compares that with 0, and not those of the groups.
        if sums && scale != Scale::Batch {
            assert_value(name, found.zero_std_fraction(), number(&metrics["frac_reward_zero_std"]));
        }
    }
    assert_eq!(list(&fixture["cases"]).len(), 24);
}

/// TRL's own RLOO trainer on recorded rewards.
#[test]
fn leave_one_out_advantages_of_trl() {
    let fixture = read("losses/rloo.json");
    for case in list(&fixture["cases"]) {
        let name = text(&case["name"]);
        let rewards_b: Vec<Option<f32>> =
            list(&case["rewards"]).iter().map(|reward| reward.as_f64().map(|reward| reward as f32)).collect();
        let group_size = number(&case["num_generations"]) as usize;
        let given = |key: &str| case["options"].get(key).cloned().unwrap_or_default();
        let config = RlooConfig {
            rollouts: RolloutKeys::new(group_size, 512, 1.0),
            kl_coefficient: given("beta").as_f64().unwrap_or(0.0),
            normalize_advantages: given("normalize_advantages") == Value::Bool(true),
            reward_clip_range: serde_json::from_value(given("reward_clip_range")).expect("two numbers or none"),
            ..RlooConfig::default()
        };
        // Sums over two tokens each.
        let kl_b: Vec<f64> = match case.get("logprobs") {
            None => vec![0.0; rewards_b.len()],
            Some(logprobs) => {
                let sums = |rows: &Value| list(rows).iter().map(|row| flat(row).iter().sum()).collect::<Vec<f64>>();
                sums(logprobs).iter().zip(sums(&case["reference"])).map(|(own, other)| own - other).collect()
            }
        };
        let found = config.advantages(&rewards_b, &kl_b);
        if case.get("options").is_none() {
            assert_eq!(found, group_advantages(&rewards_b, group_size, Baseline::LeaveOneOut, Scale::None), "{name}");
        }
        assert_all(name, &found.advantages_b, &flat(&case["advantages"]), VALUE, 1.0);
        assert_value(name, found.zero_std_fraction(), number(&case["metrics"]["frac_reward_zero_std"]));
    }
}

/// With `mask_truncated_completions`, a completion that reached the maximum length has no KL.
#[test]
fn leave_one_out_advantages_of_trl_with_masked_completions() {
    let fixture = read("losses/rloo.json");
    let model = ModelDir::open(&folder().join("trajectories/models/qwen3")).expect("opens");
    let policy = CausalLm::load(&model, &device().autodiff()).expect("loads");
    let actor = Actor { policy, value_head: None };
    let settings = Settings::new(&TrainConfig::default(), 1, 0.01, "eval_reward");
    for case in list(&fixture["masked"]) {
        let (name, group_size) = (text(&case["name"]), number(&case["num_generations"]) as usize);
        let lists = |key: &str| list(&case[key]).iter().map(flat32).collect::<Vec<Vec<f32>>>();
        let (rewards_b, logprobs) = (flat32(&case["rewards"]), lists("logprobs"));
        let prompt = |row: usize| Prompt {
            row,
            text: String::new(),
            ids: vec![5],
            encoder_reads_prompt: false,
            messages: None,
            columns: serde_json::Map::new(),
        };
        let rollout = |(i, logprobs_t): (usize, &Vec<f32>)| {
            let stop = if case["truncated"][i] == true { StopReason::Length } else { StopReason::StopId };
            let plain = Rollout::one_turn(i / group_size, "", vec![7; logprobs_t.len()], stop);
            Rollout { logprobs: logprobs_t.clone(), ..plain }
        };
        let rollouts = Rollouts {
            prompts: (0..rewards_b.len() / group_size).map(prompt).collect(),
            rollouts: logprobs.iter().enumerate().map(rollout).collect(),
            group_size,
            tokenizer: None,
        };
        let rewards: Vec<Option<Vec<f32>>> = rewards_b.iter().map(|&reward| Some(vec![0.0, reward])).collect();
        let experience = Experience::new(rollouts, rewards, Some(lists("reference")));
        let config = RlooConfig {
            rollouts: RolloutKeys::new(group_size, 512, 1.0),
            kl_coefficient: number(&case["options"]["beta"]),
            mask_truncated_completions: true,
            ..RlooConfig::default()
        };
        let found = Rloo::new(&config).advantages(&actor, &experience, &settings);
        let advantages_b: Vec<f32> = found.targets.iter().map(|targets| targets.advantages_t[0]).collect();
        assert_all(name, &advantages_b, &flat(&case["advantages"]), VALUE, 1.0);
        for key in ["kl", "frac_reward_zero_std"] {
            let value = found.stats.value(key).expect("logged");
            assert_value(&format!("{name}, {key}"), value, number(&case["metrics"][key]));
        }
    }
}

#[test]
fn gae_and_returns() {
    let fixture = read("losses/gae.json");
    for case in list(&fixture["cases"]) {
        let (discount, gae_lambda) = (number(&case["gamma"]), number(&case["lambda"]));
        for (row, mask) in list(&case["mask"]).iter().enumerate() {
            let name = format!("γ {discount}, λ {gae_lambda}, row {row}");
            let counted = |values: &Value| -> Vec<f64> {
                flat(&values[row]).into_iter().zip(flat(mask)).filter_map(|(v, m)| (m == 1.0).then_some(v)).collect()
            };
            let counted32 = |values: &Value| counted(values).into_iter().map(|v| v as f32).collect::<Vec<f32>>();
            let (rewards_t, values_t) =
                (counted32(&fixture["inputs"]["rewards"]), counted32(&fixture["inputs"]["values"]));
            let advantages_t = gae(&rewards_t, &values_t, 0.0, discount, gae_lambda);
            assert_all(&name, &advantages_t, &counted(&case["advantages"]), VALUE, 1.0);
            assert_all(&name, &returns(&advantages_t, &values_t), &counted(&case["returns"]), VALUE, 1.0);
        }
    }
}

#[test]
fn whitening() {
    let fixture = read("losses/whitening.json");
    let input = flat32(&fixture["input"]);
    for case in list(&fixture["cases"]) {
        let kind = if case["variance"] == "biased" { Variance::Biased } else { Variance::Unbiased };
        let mean = if case["center"] == Value::Bool(true) { Whiten::ZeroMean } else { Whiten::KeepMean };
        assert_eq!(number(&case["eps"]), whiten_epsilon(), "the fixture's epsilon");
        assert_all(&format!("{kind:?} {mean:?}"), &whiten(&input, mean, kind), &flat(&case["output"]), VALUE, 1.0);
    }
}

fn whiten_epsilon() -> f64 {
    gradus::math::whiten::VARIANCE_EPSILON
}

/// Returns the key `lr_schedule` for a schedule of transformers with its settings.
fn lr_schedule(kind: &str, settings: &Value) -> LrSchedule {
    let ours = |name: &str| match name {
        "min_lr_rate" => "min_lr_ratio".to_owned(),
        "warmup_lr_rate" => "warmup_lr_ratio".to_owned(),
        "num_stable_steps" => "stable_steps".to_owned(),
        "num_decay_steps" => "decay_steps".to_owned(),
        same => same.to_owned(),
    };
    let settings = settings.as_object().expect("settings");
    let mut keys: Map<String, Value> = settings.iter().map(|(name, value)| (ours(name), value.clone())).collect();
    let written = match kind {
        "linear" | "cosine" | "constant" if keys.is_empty() => json!(kind),
        "constant_with_warmup" => json!("constant"),
        // Only `cosine_with_min_lr` has a number of waves.
        "cosine" => {
            keys.insert("min_lr_ratio".into(), json!(0));
            json!({ "cosine_with_min_lr": keys })
        }
        _ => json!({ kind: keys }),
    };
    serde_json::from_value(written).unwrap_or_else(|error| panic!("{kind} with {settings:?}: {error}"))
}

#[test]
fn learning_rate_schedules() {
    let fixture = read("losses/schedules.json");
    for case in list(&fixture["cases"]) {
        let (kind, warmup) = (text(&case["kind"]), number(&case["warmup"]));
        let updates = number(&case["steps"]) as usize;
        let train = TrainConfig {
            lr_schedule: lr_schedule(kind, &case["settings"]),
            // transformers' plain `constant` has no warm-up.
            warmup_steps: if kind == "constant" { 0.0 } else { warmup },
            ..TrainConfig::default()
        };
        let settings = Settings::new(&train, updates, number(&fixture["peak"]), "eval_loss");
        for (update, expected) in flat(&case["multipliers"]).into_iter().enumerate() {
            let found = settings.multiplier(update);
            assert!(
                (found - expected).abs() < 1e-12,
                "{kind} with {}, {updates} updates, {warmup} of warm-up, update {update}: {found} against {expected}",
                case["settings"]
            );
        }
    }
    for case in list(&fixture["warmup"]) {
        let found = schedule::warmup_updates(number(&case["warmup_steps"]), number(&case["steps"]) as usize);
        assert_eq!(found, number(&case["count"]) as usize, "{case}");
    }
}

#[test]
fn adaptive_kl_coefficients() {
    let fixture = read("losses/adaptive_kl.json");
    let observed = flat(&fixture["observed_kl"]);
    for case in list(&fixture["cases"]) {
        let mut controller = KlController::Adaptive {
            coefficient: number(&case["initial"]),
            target: number(&case["target"]),
            horizon: number(&case["horizon"]),
        };
        for (kl, expected) in observed.iter().zip(flat(&case["coefficients_after"])) {
            controller.update(*kl, number(&case["sequences_per_step"]) as usize);
            assert!(
                (controller.coefficient() - expected).abs() < 1e-12,
                "{} against {expected}",
                controller.coefficient()
            );
        }
    }
}

#[test]
fn adaptive_entropy_coefficients_of_trl() {
    let fixture = read("losses/adaptive_entropy.json");
    for case in list(&fixture["cases"]) {
        let (name, option) = (text(&case["name"]), |key: &str| number(&case["options"][key]));
        let rule = AdaptiveEntropy {
            target: option("entropy_target"),
            delta: option("entropy_coef_delta"),
            min: option("entropy_coef_min"),
            max: option("entropy_coef_max"),
        };
        let mut controller = EntropyController::new(option("entropy_coef"), Some(rule));
        for (step, (entropies, expected)) in list(&fixture["entropies"]).iter().zip(list(&case["steps"])).enumerate() {
            let applied = controller.applied();
            // The mean over the tokens of the step, whatever its micro-batches.
            let entropy = stats::mean(&flat32(entropies)).expect("tokens");
            controller.update(entropy);
            for (key, found) in [("applied", applied), ("entropy", entropy), ("entropy_coef", controller.coefficient())]
            {
                let expected = number(&expected[key]);
                assert!((found - expected).abs() < 1e-11, "{name}, step {step}, {key}: {found} against {expected}");
            }
        }
    }
    assert_eq!(list(&fixture["cases"]).len(), 3);
}
