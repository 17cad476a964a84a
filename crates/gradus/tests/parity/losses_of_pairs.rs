//! DPO and reward-model losses against TRL: one value per pair, averaged over the pairs.

use burn::tensor::Tensor;
use gradus::loss::{dpo, reduce, reward};
use serde_json::Value;

use crate::fixture::*;

/// A pair's two completions, as sums and as means over tokens of policy minus reference.
struct Sides {
    chosen_p: Tensor<1>,
    rejected_p: Tensor<1>,
    mean_delta_p: Tensor<1>,
}

impl Sides {
    fn delta_p(&self) -> Tensor<1> {
        self.chosen_p.clone() - self.rejected_p.clone()
    }
}

fn log_ratios(logprobs_m: &Tensor<1>, reference: &Value, counts_p: &[usize]) -> (Tensor<1>, Tensor<1>) {
    let reference_p = reduce::segment_sum(tensor(&flat32(reference)), counts_p);
    let sums_p = reduce::segment_sum(logprobs_m.clone(), counts_p) - reference_p.clone();
    let lengths_p: Vec<f32> = counts_p.iter().map(|&count| count as f32).collect();
    (sums_p.clone(), sums_p / tensor(&lengths_p))
}

fn loss(name: &str, options: &Value, sides: &Sides) -> Option<Tensor<1>> {
    let plain = |key: &str| options.get(key).is_none_or(Value::is_null);
    let is_here = plain("ld_alpha")
        && plain("loss_weights")
        && options.get("f_divergence_type").is_none_or(|kind| kind == "reverse_kl");
    if !is_here {
        return None;
    }
    let (beta, smoothing) = (number(&options["beta"]), number(&options["label_smoothing"]));
    let (chosen_p, rejected_p) = (sides.chosen_p.clone(), sides.rejected_p.clone());
    Some(match name {
        // TRL's `sigmoid` leaves the smoothing aside; `cdpo` is the same loss with it.
        "sigmoid" => dpo::sigmoid(sides.delta_p(), beta, 0.0),
        "cdpo" => dpo::sigmoid(sides.delta_p(), beta, smoothing),
        "hinge" => dpo::hinge(sides.delta_p(), beta),
        "ipo" => dpo::ipo(sides.mean_delta_p.clone(), beta),
        "ipo_sum" => dpo::ipo(sides.delta_p(), beta),
        "exo_pair" => dpo::exo_pair(sides.delta_p(), beta, smoothing),
        "robust" => dpo::robust(sides.delta_p(), beta, smoothing),
        "discopop" => dpo::discopop(sides.delta_p(), beta),
        "sigmoid_norm" => dpo::sigmoid_norm(sides.mean_delta_p.clone(), beta),
        "nca_pair" => dpo::nca_pair(chosen_p, rejected_p, beta),
        "bco_pair" => dpo::bco_pair(chosen_p, rejected_p, beta),
        "sppo_hard" => dpo::sppo_hard(chosen_p, rejected_p, beta),
        "apo_zero" => dpo::apo_zero(chosen_p, rejected_p, beta),
        "apo_down" => dpo::apo_down(chosen_p, rejected_p, beta),
        _ => return None,
    })
}

#[test]
fn dpo_losses_of_trl() {
    let fixture = read("losses/dpo.json");
    let inputs = &fixture["inputs"];
    let (mut skipped, mut ran) = (Vec::new(), 0);
    for case in list(&fixture["cases"]) {
        let (name, options) = (text(&case["name"]), &case["options"]);
        let (chosen_m, rejected_m) = (leaf(&flat32(&inputs["chosen"])), leaf(&flat32(&inputs["rejected"])));
        let (chosen_p, chosen_mean_p) = log_ratios(&chosen_m, &inputs["ref_chosen"], &lengths(&inputs["chosen"]));
        let (rejected_p, rejected_mean_p) =
            log_ratios(&rejected_m, &inputs["ref_rejected"], &lengths(&inputs["rejected"]));
        let sides = Sides { chosen_p, rejected_p, mean_delta_p: chosen_mean_p - rejected_mean_p };
        let Some(loss_p) = loss(text(&options["loss_type"][0]), options, &sides) else {
            skipped.push(name.to_owned());
            continue;
        };
        let loss = loss_p.mean();
        assert_value(name, f64::from(values(&loss)[0]), number(&case["loss"]));
        let [chosen, rejected] = gradients(&loss, [&chosen_m, &rejected_m]);
        let expected = [flat(&case["grad"]["chosen"]), flat(&case["grad"]["rejected"])].concat();
        assert_gradient(name, &[chosen, rejected].concat(), &expected);
        ran += 1;
    }
    name_skipped("dpo", &skipped);
    assert!(ran >= 18, "most cases ran");
}

#[test]
fn reward_model_losses_of_trl() {
    let fixture = read("losses/reward.json");
    let inputs = &fixture["inputs"];
    for case in list(&fixture["cases"]) {
        let (name, options) = (text(&case["name"]), &case["options"]);
        let (chosen_p, rejected_p) = (leaf(&flat32(&inputs["chosen"])), leaf(&flat32(&inputs["rejected"])));
        let margins_p = (options["margin"] == Value::Bool(true)).then(|| tensor(&flat32(&inputs["margins"])));
        let mut loss = reward::bradley_terry(chosen_p.clone(), rejected_p.clone(), margins_p).mean();
        if let Some(coefficient) = options["centering"].as_f64() {
            loss = loss + reward::centering(chosen_p.clone(), rejected_p.clone()).mean() * coefficient;
        }
        assert_value(name, f64::from(values(&loss)[0]), number(&case["loss"]));
        let [chosen, rejected] = gradients(&loss, [&chosen_p, &rejected_p]);
        let expected = [flat(&case["grad"]["chosen"]), flat(&case["grad"]["rejected"])].concat();
        assert_gradient(name, &[chosen, rejected].concat(), &expected);
    }
}
