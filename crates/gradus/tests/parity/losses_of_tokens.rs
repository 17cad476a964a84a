//! SFT, GRPO, PPO and KL losses compared to TRL: one value per token, reduced over a step.

use burn::tensor::Tensor;
use gradus::algorithm::rloo::{Rloo, RlooConfig};
use gradus::algorithm::step::Surrogate;
use gradus::loss::kl::{KlCorrection, kl_term};
use gradus::loss::surrogate::{Clip, Level, Statistics, clipped_surrogate};
use gradus::loss::vespo::{Gamma, vespo};
use gradus::loss::{
    cispo::cispo,
    distill::{jensen_shannon, jensen_shannon_among},
    kl, reduce,
    sapo::sapo,
    sft, value,
};
use gradus::math::importance::{Correction, off_policy_mask};
use gradus::math::{Reduction, high_entropy_mask, stats, token_weights, weights::per_token};
use gradus::objective::distill::TeacherTopK;
use gradus::rollout::server::TokenScore;
use serde_json::Value;

use crate::fixture::*;

/// Returns the tokens of `rows` where `keep` is true, and their number per row.
fn counted(rows: &Value, keep: &[Vec<bool>]) -> (Vec<f32>, Vec<usize>) {
    let row = |(row, keep): (&Value, &Vec<bool>)| -> Vec<f32> {
        flat32(row).into_iter().zip(keep).filter_map(|(v, keep)| keep.then_some(v)).collect()
    };
    let kept: Vec<Vec<f32>> = list(rows).iter().zip(keep).map(row).collect();
    (kept.concat(), kept.iter().map(Vec::len).collect())
}

/// Inserts gradients of counted tokens among the zeros of the others.
fn spread(gradient_m: &[f32], keep: &[Vec<bool>]) -> Vec<f32> {
    let mut gradient_m = gradient_m.iter();
    let mut next = |keep: &bool| if *keep { *gradient_m.next().expect("one gradient per counted token") } else { 0.0 };
    keep.iter().flatten().map(&mut next).collect()
}

fn weights(counts_b: &[usize], reduction: Reduction) -> Tensor<1> {
    tensor(&per_token(&token_weights(counts_b, reduction), counts_b))
}

#[test]
fn sft_losses_of_trl() {
    let fixture = read("losses/sft.json");
    for case in list(&fixture["cases"]) {
        let (name, options) = (text(&case["name"]), &case["options"]);
        let keep: Vec<Vec<bool>> =
            list(&case["mask"]).iter().map(|row| flat(row).iter().map(|m| *m == 1.0).collect()).collect();
        let chosen: Vec<Value> =
            flat(&case["rows"]).iter().map(|row| fixture["inputs"]["logprobs"][*row as usize].clone()).collect();
        let (logprobs, counts_b) = counted(&Value::Array(chosen), &keep);
        if logprobs.is_empty() {
            assert_eq!(number(&case["loss"]), 0.0, "{name}: no counted token, no loss");
            continue;
        }
        // A micro-batch of a larger step: the weight of its tokens is 1 divided by the tokens of the step.
        let mut step_counts = counts_b.clone();
        if let Some(tokens) = options["tokens_of_step"].as_u64() {
            step_counts.push(tokens as usize - logprobs.len());
        }
        let weights_b = &token_weights(&step_counts, Reduction::TokenMean)[..counts_b.len()];

        let logprobs_m = leaf(&logprobs);
        let loss_m = match text(&options["loss_type"]) {
            "nll" => sft::nll(logprobs_m.clone()),
            "dft" => sft::dft(logprobs_m.clone()),
            other => panic!("{other}"),
        };
        let loss = reduce::weighted_sum(loss_m, tensor(&per_token(weights_b, &counts_b)));
        assert_value(name, f64::from(values(&loss)[0]), number(&case["loss"]));
        let [found] = gradients(&loss, [&logprobs_m]);
        assert_gradient(name, &spread(&found, &keep), &flat(&case["grad"]));
    }
}

#[test]
fn grpo_losses_of_trl() {
    let fixture = read("losses/grpo.json");
    let inputs = &fixture["inputs"];
    for case in list(&fixture["cases"]) {
        let (name, options) = (text(&case["name"]), &case["options"]);
        let reduction = match text(&options["loss_type"]) {
            "grpo" | "sapo" => Reduction::SequenceMean,
            "dr_grpo" => Reduction::FixedLength(number(&options["max_completion_length"]) as usize),
            // One micro-batch: the mean over its tokens is the mean over the step's.
            "bnpo" | "dapo" | "cispo" | "vespo" => Reduction::TokenMean,
            "luspo" => Reduction::SequenceSum,
            other => panic!("{other}"),
        };
        let level = match text(&options["importance_sampling_level"]) {
            "token" => Level::Token,
            "sequence" => Level::SequenceMean,
            other => panic!("{other}"),
        };
        let mask_truncated = options["mask_truncated_completions"] == Value::Bool(true);
        let keep: Vec<Vec<bool>> = lengths(&inputs["logprobs"])
            .iter()
            .zip(list(&inputs["truncated"]))
            .map(|(&length, truncated)| vec![!(mask_truncated && *truncated == Value::Bool(true)); length])
            .collect();

        let (logprobs, counts_b) = counted(&inputs["logprobs"], &keep);
        let old = match options["old_is_current"] == Value::Bool(true) {
            true => logprobs.clone(),
            false => counted(&inputs["old"], &keep).0,
        };
        let advantages = per_token(&flat32(&inputs["advantages"]), &counts_b);
        let clip = Clip {
            low: number(&options["epsilon"]),
            high: number(&options["epsilon_high"]),
            delta: options["delta"].as_f64(),
        };
        let correction = match options["use_bias_correction_kl"] == Value::Bool(true) {
            true => KlCorrection::ImportanceRatio,
            false => KlCorrection::None,
        };
        let (kl_coefficient, entropy_coefficient) = (number(&options["beta"]), number(&options["entropy_coef"]));

        let logprobs_m = leaf(&logprobs);
        let entropies = counted(&inputs["entropies"], &keep).0;
        let mask = high_entropy_mask(&entropies, number(&options["top_entropy_quantile"]));
        let entropies_m = leaf(&entropies);
        let log_ratios_m = level.log_ratios(logprobs_m.clone(), tensor(&old), &counts_b);
        let (mut clip, mut weights_b) = (clip, Vec::new());
        let policy_m = match text(&options["loss_type"]) {
            "cispo" => {
                clip = Clip { low: 1.0, high: clip.high - 1.0, delta: None };
                cispo(logprobs_m.clone(), log_ratios_m.clone(), tensor(&advantages), number(&options["epsilon_high"]))
            }
            "sapo" => sapo(log_ratios_m.clone(), tensor(&advantages), 1.0, 1.05),
            "vespo" => {
                let log_ratios: Vec<f32> = logprobs.iter().zip(&old).map(|(new, old)| new - old).collect();
                weights_b =
                    Gamma { k: [2.0, 3.0], lambda: [3.0, 2.0] }.weights(&log_ratios, None, &advantages, &counts_b);
                vespo(logprobs_m.clone(), tensor(&advantages), tensor(&per_token(&weights_b, &counts_b)))
            }
            _ => clipped_surrogate(log_ratios_m.clone(), tensor(&advantages), &clip),
        };
        let reference_m = tensor(&counted(&inputs["reference"], &keep).0);
        let kl_m = kl_term(logprobs_m.clone(), reference_m, log_ratios_m, correction);
        let losses_m = policy_m * tensor(&mask) + kl_m.clone() * kl_coefficient;
        let loss = reduce::weighted_sum(losses_m, weights(&counts_b, reduction));
        let kept: f32 = mask.iter().sum();
        let entropy = reduce::weighted_sum(entropies_m.clone(), tensor(&mask) / kept);
        let loss = loss - entropy * entropy_coefficient;

        assert_value(name, f64::from(values(&loss)[0]), number(&case["loss"]));
        let [found, found_entropy] = gradients(&loss, [&logprobs_m, &entropies_m]);
        assert_gradient(name, &spread(&found, &keep), &flat(&case["grad"]["logprobs"]));
        if let Some(expected) = case["grad"].get("entropies") {
            assert_gradient(name, &spread(&found_entropy, &keep), &flat(expected));
        }

        let metrics = &case["metrics"];
        let counts = Statistics::at(level, &logprobs, &old, &advantages, &counts_b, &clip);
        if let Some(expected) = metrics.get("vespo/phi_seq_mean") {
            assert_value(name, stats::mean(&weights_b).expect("sequences"), number(expected));
        }
        if let Some(expected) = metrics.get("cispo_clip_ratio") {
            assert_value(name, counts.high_fraction(), number(expected));
        }
        for (key, found) in [
            ("clip_ratio/low_mean", counts.low_fraction()),
            ("clip_ratio/high_mean", counts.high_fraction()),
            ("clip_ratio/region_mean", counts.clip_fraction()),
            ("clip_ratio/low_min", counts.low_min.expect("tokens")),
            ("clip_ratio/high_max", counts.high_max.expect("tokens")),
            ("entropy", stats::mean(&values(&entropies_m)).expect("tokens")),
        ] {
            let Some(expected) = metrics.get(key) else { continue };
            assert_value(&format!("{name}, {key}"), found, number(expected));
        }
        if let Some(expected) = metrics.get("kl") {
            assert_value(&format!("{name}, kl"), stats::mean(&values(&kl_m)).expect("tokens"), number(expected));
        }
    }
    assert_eq!(list(&fixture["cases"]).len(), 59);
}

/// Returns numbers, with NaN for those missing in the file.
fn or_nan(rows: &Value) -> Vec<f32> {
    let one = |value: &Value| value.as_f64().map_or(f32::NAN, |value| value as f32);
    list(rows).iter().flat_map(|row| list(row).iter().map(one)).collect()
}

#[test]
fn off_policy_losses_of_trl() {
    let fixture = read("losses/off_policy.json");
    let inputs = &fixture["inputs"];
    let (logprobs, old) = (flat32(&inputs["logprobs"]), flat32(&inputs["old"]));
    let (sampler, counts_b) = (or_nan(&inputs["sampler"]), lengths(&inputs["logprobs"]));
    let advantages = per_token(&flat32(&inputs["advantages"]), &counts_b);
    let starts: Vec<usize> = counts_b.iter().scan(0, |end, count| Some(std::mem::replace(end, *end + count))).collect();
    let sequences = || starts.iter().zip(&counts_b).map(|(&start, &count)| start..start + count);
    for case in list(&fixture["cases"]) {
        let (name, options) = (text(&case["name"]), &case["options"]);
        let mode = text(&options["mode"]);
        let correction = Correction {
            of_sequences: mode.starts_with("sequence"),
            masks: mode.ends_with("mask"),
            low: options["clip_min"].as_f64(),
            high: options["clip_max"].as_f64(),
        };
        let ratios = (options["corrected"] == Value::Bool(true)).then(|| {
            let of = |at: std::ops::Range<usize>| correction.weights(&old[at.clone()], &sampler[at]);
            sequences().flat_map(of).collect::<Vec<f32>>()
        });
        if let Some(ratios) = &ratios {
            for (found, expected) in ratios.iter().zip(list(&case["ratios"]).iter().flat_map(flat)) {
                assert_value(&format!("{name}, ratios"), f64::from(*found), expected);
            }
        }
        let level = match text(&options["importance_sampling_level"]) {
            "token" => Level::Token,
            _ => Level::SequenceMean,
        };
        let loss_type = text(&options["loss_type"]);
        let reduction = match loss_type {
            "grpo" | "sapo" => Reduction::SequenceMean,
            "dr_grpo" => Reduction::FixedLength(5),
            "luspo" => Reduction::SequenceSum,
            _ => Reduction::TokenMean,
        };
        // As in a step, ratios multiply advantages, unless the loss weights whole sequences with them.
        let weighted: Vec<f32> = match &ratios {
            Some(ratios) if loss_type != "vespo" => advantages.iter().zip(ratios).map(|(a, ratio)| a * ratio).collect(),
            _ => advantages.clone(),
        };
        let logprobs_m = leaf(&logprobs);
        let log_ratios_m = level.log_ratios(logprobs_m.clone(), tensor(&old), &counts_b);
        let high = number(&options["epsilon_high"]);
        let losses_m = match loss_type {
            "cispo" => cispo(logprobs_m.clone(), log_ratios_m, tensor(&weighted), high),
            "sapo" => sapo(log_ratios_m, tensor(&weighted), 1.0, 1.05),
            "vespo" => {
                let log_ratios: Vec<f32> = logprobs.iter().zip(&old).map(|(new, old)| new - old).collect();
                let gamma = Gamma { k: [2.0, 3.0], lambda: [3.0, 2.0] };
                let weights_b = gamma.weights(&log_ratios, ratios.as_deref(), &advantages, &counts_b);
                vespo(logprobs_m.clone(), tensor(&weighted), tensor(&per_token(&weights_b, &counts_b)))
            }
            _ => clipped_surrogate(log_ratios_m, tensor(&weighted), &Clip { low: 0.2, high, delta: None }),
        };
        let mask = match options["off_policy_mask_threshold"].as_f64() {
            Some(threshold) => {
                let of = |at: std::ops::Range<usize>| {
                    off_policy_mask(&sampler[at.clone()], &logprobs[at.clone()], &advantages[at], threshold)
                };
                sequences().flat_map(of).collect()
            }
            None => vec![1.0; logprobs.len()],
        };
        let loss = reduce::weighted_sum(losses_m * tensor(&mask), weights(&counts_b, reduction));
        assert_value(name, f64::from(values(&loss)[0]), number(&case["loss"]));
        let [found] = gradients(&loss, [&logprobs_m]);
        let expected: Vec<f64> = list(&case["grad"]["logprobs"]).iter().flat_map(flat).collect();
        assert_gradient(name, &found, &expected);
    }
    assert_eq!(list(&fixture["cases"]).len(), 37);
}

#[test]
fn distillation_losses_of_trl() {
    let fixture = read("losses/distill.json");
    let inputs = &fixture["inputs"];
    let (rows, vocabulary) = (list(&inputs["student"]).len(), list(&inputs["student"][0]).len());
    let logits = |values_m: Tensor<1>| values_m.reshape([rows, vocabulary]);
    for case in list(&fixture["cases"]) {
        let student_m = leaf(&flat32(&inputs["student"]));
        let teacher_rv = logits(tensor(&flat32(&inputs["teacher"])));
        let loss = jensen_shannon(logits(student_m.clone()), teacher_rv, number(&case["options"]["beta"])).mean();
        let name = text(&case["name"]);
        assert_value(name, f64::from(values(&loss)[0]), number(&case["loss"]));
        let [found] = gradients(&loss, [&student_m]);
        assert_gradient(name, &found, &flat(&case["grad"]));
    }
}

#[test]
fn distillation_losses_of_trl_from_few_ids() {
    let fixture = read("losses/distill_top_k.json");
    let inputs = &fixture["inputs"];
    let (rows, vocabulary) = (list(&inputs["student"]).len(), list(&inputs["student"][0]).len());
    let own: Vec<u32> = flat(&inputs["own"]).iter().map(|id| *id as u32).collect();
    for case in list(&fixture["cases"]) {
        let (name, options) = (text(&case["name"]), &case["options"]);
        let (beta, add_tail) = (number(&options["beta"]), options["add_tail"].as_bool().expect("a flag"));
        // With β = 1, TRL compares only the actual id.
        let top_k = if beta == 1.0 { 0 } else { number(&options["top_k"]) as usize };
        let score = |(logprobs, &id): (&Value, &u32)| {
            let logprobs = flat32(logprobs);
            let mut likeliest: Vec<(u32, f32)> = (0..).zip(logprobs.iter().copied()).collect();
            likeliest.sort_by(|a, b| b.1.total_cmp(&a.1));
            likeliest.truncate(top_k);
            TokenScore { id, logprob: Some(logprobs[id as usize]), likeliest }
        };
        let scores: Vec<TokenScore> = list(&inputs["told"]).iter().zip(&own).map(score).collect();
        let student_m = leaf(&flat32(&inputs["student"]));
        let support = TeacherTopK::of(&scores, beta).support(0..rows, &student_m.device());
        let student_rv = student_m.clone().reshape([rows, vocabulary]);
        let loss = jensen_shannon_among(student_rv, support, beta, add_tail).mean();
        assert_value(name, f64::from(values(&loss)[0]), number(&case["loss"]));
        let [found] = gradients(&loss, [&student_m]);
        assert_gradient(name, &found, &flat(&case["grad"]));
    }
}

#[test]
fn rloo_losses_of_trl() {
    let fixture = read("losses/rloo.json");
    let inputs = &fixture["inputs"];
    let (logprobs, old) = (flat32(&inputs["logprobs"]), flat32(&inputs["old"]));
    let counts_b = lengths(&inputs["logprobs"]);
    let advantages = per_token(&flat32(&inputs["advantages"]), &counts_b);
    for case in list(&fixture["losses"]) {
        let (name, options) = (text(&case["name"]), &case["options"]);
        let config = RlooConfig {
            clip_range: number(&options["epsilon"]),
            clip_range_high: options["epsilon_high"].as_f64(),
            ..RlooConfig::default()
        };
        let loss = Rloo::new(&config).loss();
        let Surrogate::Clipped(clip) = loss.surrogate else { panic!("it is clipped") };
        let logprobs_m = leaf(&logprobs);
        let log_ratios_m = loss.level.log_ratios(logprobs_m.clone(), tensor(&old), &counts_b);
        let loss_m = clipped_surrogate(log_ratios_m, tensor(&advantages), &clip);
        let reduced = reduce::weighted_sum(loss_m, weights(&counts_b, Reduction::SequenceMean));
        assert_value(name, f64::from(values(&reduced)[0]), number(&case["loss"]));
        let [found] = gradients(&reduced, [&logprobs_m]);
        assert_gradient(name, &found, &flat(&case["grad"]));

        let counts = Statistics::at(loss.level, &logprobs, &old, &advantages, &counts_b, &clip);
        for (key, found) in [
            ("clip_ratio/low_mean", counts.low_fraction()),
            ("clip_ratio/high_mean", counts.high_fraction()),
            ("clip_ratio/region_mean", counts.clip_fraction()),
            ("clip_ratio/low_min", counts.low_min.expect("sequences")),
            ("clip_ratio/high_max", counts.high_max.expect("sequences")),
        ] {
            assert_value(&format!("{name}, {key}"), found, number(&case["metrics"][key]));
        }
    }
}

#[test]
fn ppo_losses_of_trl() {
    let fixture = read("losses/ppo.json");
    let input = |name: &str| flat32(&fixture["inputs"][name]);
    let (logprobs, old, advantages) = (input("logprobs"), input("old"), input("advantages"));
    let whole = [logprobs.len()];
    for case in list(&fixture["policy"]) {
        let (low, high) = (number(&case["options"]["cliprange_low"]), number(&case["options"]["cliprange_high"]));
        let (name, clip) = (format!("policy, clip {low} {high}"), Clip { low, high, delta: None });
        let logprobs_m = leaf(&logprobs);
        let loss_m = clipped_surrogate(logprobs_m.clone() - tensor(&old), tensor(&advantages), &clip);
        let loss = reduce::weighted_sum(loss_m, weights(&whole, Reduction::TokenMean));
        assert_value(&name, f64::from(values(&loss)[0]), number(&case["loss"]));
        let [found] = gradients(&loss, [&logprobs_m]);
        assert_gradient(&name, &found, &flat(&case["grad"]));

        let statistics = Statistics::new(&logprobs, &old, &advantages, &whole, &clip);
        for (key, found) in [
            ("clipfrac", statistics.clip_fraction()),
            ("approxkl", statistics.approx_kl()),
            ("approxkl_k3", statistics.k3()),
            ("ratio", statistics.ratio()),
        ] {
            assert_value(&format!("{name}, {key}"), found, number(&case["metrics"][key]));
        }
    }
    let (predicted, old, returns) = (input("values"), input("old_values"), input("returns"));
    for case in list(&fixture["value"]) {
        let range = case["options"]["cliprange_value"].as_f64();
        let name = format!("value, clip {range:?}");
        let values_m = leaf(&predicted);
        let loss_m = match range {
            Some(range) => value::clipped(values_m.clone(), tensor(&old), tensor(&returns), range),
            None => value::plain(values_m.clone(), tensor(&returns)),
        };
        let loss = reduce::weighted_sum(loss_m, weights(&[predicted.len()], Reduction::TokenMean));
        assert_value(&name, f64::from(values(&loss)[0]), number(&case["loss"]));
        let [found] = gradients(&loss, [&values_m]);
        assert_gradient(&name, &found, &flat(&case["grad"]));

        let metrics = &case["metrics"];
        let clipped = range.map_or(0.0, |range| value::clip_fraction(&predicted, &old, &returns, range));
        assert_value(&name, clipped, number(&metrics["clipfrac"]));
        let explained = stats::explained_variance(&predicted, &returns).expect("returns vary");
        assert_value(&name, explained, number(&metrics["explained_variance"]));
    }
}

#[test]
fn kl_estimators() {
    let fixture = read("losses/kl.json");
    let (logprobs, reference) = (flat32(&fixture["logprobs"]), flat32(&fixture["reference"]));
    type OnTensors = fn(Tensor<1>, Tensor<1>) -> Tensor<1>;
    type OnHost = fn(&[f32], &[f32]) -> Vec<f32>;
    for (name, on_tensors, on_host) in [
        ("k1", kl::k1 as OnTensors, gradus::math::kl::k1 as OnHost),
        ("k2", kl::k2, gradus::math::kl::k2),
        ("k3", kl::k3, gradus::math::kl::k3),
    ] {
        let logprobs_m = leaf(&logprobs);
        let found_m = on_tensors(logprobs_m.clone(), tensor(&reference));
        let expected = flat(&fixture[name]["values"]);
        assert_all(name, &values(&found_m), &expected, VALUE, 1.0);
        assert_all(name, &on_host(&logprobs, &reference), &expected, VALUE, 1.0);
        let [found] = gradients(&found_m.sum(), [&logprobs_m]);
        assert_gradient(name, &found, &flat(&fixture[name]["grad"]));
    }
}
