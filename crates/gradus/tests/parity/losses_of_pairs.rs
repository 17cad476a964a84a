//! DPO, KTO and reward-model losses compared to TRL: from the logprobs of tokens to the loss of a step.

use burn::tensor::Tensor;
use gradus::loss::{kto, orpo, reduce, reward};
use gradus::math::weights::on_policy;
use gradus::objective::Totals;
use gradus::objective::cpo::CpoConfig;
use gradus::objective::dpo::{Completions, DpoConfig, PassLoss, RankPartners, rank_partners, sums};
use gradus::objective::kto::{KtoConfig, LossInputs};
use serde_json::Value;

use crate::fixture::*;

/// The pairs of the fixture with the settings of a case.
struct Step {
    config: DpoConfig,
    chosen: Vec<Tensor<1>>,
    rejected: Vec<Tensor<1>>,
    /// Logprob sums under the reference, `[2P]`.
    reference_b: Vec<f32>,
    weights_p: Option<Vec<f32>>,
    totals: Totals,
}

impl Step {
    fn new(inputs: &Value, config: DpoConfig) -> Self {
        let leaves = |side: &str| list(&inputs[side]).iter().map(|row| leaf(&flat32(row))).collect::<Vec<_>>();
        let both = |chosen: &str, rejected: &str| [flat32(&inputs[chosen]), flat32(&inputs[rejected])].concat();
        let counts_b = [lengths(&inputs["chosen"]), lengths(&inputs["rejected"])].concat();
        let pairs = counts_b.len() / 2;
        let reference_m = tensor(&both("ref_chosen", "ref_rejected"));
        let expected_m = flat32(&inputs["log_sum_sq_probs"]);
        let aligned = both("chosen", "rejected").iter().zip(&expected_m).map(|(a, b)| a - b).collect::<Vec<_>>();
        Self {
            weights_p: config.use_weighting.then(|| on_policy(&aligned, &counts_b)),
            reference_b: values(&sums(reference_m, &counts_b, config.ld_alpha)),
            totals: Totals { examples: pairs, targets: counts_b[..pairs].iter().sum(), weight: pairs as f64 },
            chosen: leaves("chosen"),
            rejected: leaves("rejected"),
            config,
        }
    }

    /// Computes the share of the pairs `of` in the loss of the step.
    fn pass(&self, of: std::ops::Range<usize>, partners_p: Option<&[RankPartners]>) -> PassLoss {
        let pairs = self.chosen.len();
        let rows: Vec<Tensor<1>> = [&self.chosen[of.clone()], &self.rejected[of.clone()]].concat();
        let counts_b: Vec<usize> = rows.iter().map(|row| row.dims()[0]).collect();
        let rejected = pairs + of.start..pairs + of.end;
        let completions = Completions {
            logprobs_m: Tensor::cat(rows, 0),
            counts_b: &counts_b,
            reference_b: [&self.reference_b[of.clone()], &self.reference_b[rejected]].concat(),
            partners_p: partners_p.map(|partners_p| partners_p[of.clone()].to_vec()),
            weights_p: self.weights_p.as_ref().map(|weights_p| weights_p[of].to_vec()),
        };
        completions.loss(&self.config, self.totals)
    }

    fn gradient(&self, loss: &Tensor<1>) -> Vec<f32> {
        let gradients = loss.backward();
        let of = |leaf: &Tensor<1>| {
            leaf.grad(&gradients).map_or_else(|| vec![0.0; leaf.dims()[0]], |gradient| values(&gradient))
        };
        self.chosen.iter().chain(&self.rejected).flat_map(of).collect()
    }
}

/// Parses the options of a case, which are gradus keys under TRL's names.
fn config(options: &Value) -> DpoConfig {
    let mut options = options.clone();
    options.as_object_mut().expect("options by name").remove("formula");
    serde_json::from_value(options).expect("keys of `method.dpo`")
}

fn dpo_cases(mut check: impl FnMut(&str, &Step, &Value)) {
    let fixture = read("losses/dpo.json");
    let cases = list(&fixture["cases"]);
    assert_eq!(cases.len(), 63, "every case of the fixture");
    for case in cases {
        check(text(&case["name"]), &Step::new(&fixture["inputs"], config(&case["options"])), case);
    }
}

#[test]
fn dpo_losses_of_trl() {
    dpo_cases(|name, step, case| {
        let pairs = step.chosen.len();
        let found = step.pass(0..pairs, None);
        assert_value(name, f64::from(values(&found.loss)[0]), number(&case["loss"]));
        let expected = [flat(&case["grad"]["chosen"]), flat(&case["grad"]["rejected"])].concat();
        assert_gradient(name, &step.gradient(&found.loss), &expected);
        let Some(metrics) = case.get("metrics") else { return };
        let mean = |values: &[f32]| values.iter().map(|&x| f64::from(x)).sum::<f64>() / pairs as f64;
        for (key, found) in [
            ("logps/chosen", mean(&values(&found.sums_b)[..pairs])),
            ("logps/rejected", mean(&values(&found.sums_b)[pairs..])),
            ("rewards/chosen", step.config.beta * mean(&values(&found.log_ratios_b)[..pairs])),
            ("rewards/rejected", step.config.beta * mean(&values(&found.log_ratios_b)[pairs..])),
        ] {
            assert_value(&format!("{name}, {key}"), found, number(&metrics[key]));
        }
    });
}

#[test]
fn dpo_losses_pass_by_pass() {
    dpo_cases(|name, step, case| {
        let pairs = step.chosen.len();
        let order = rank_partners(&values(&step.pass(0..pairs, None).sums_b), &step.reference_b);
        let (mut share, mut gradient) =
            (0.0, vec![0.0; step.chosen.iter().chain(&step.rejected).map(|row| row.dims()[0]).sum()]);
        for of in [0..1, 1..pairs] {
            let loss = step.pass(of, Some(&order)).loss;
            share += f64::from(values(&loss)[0]);
            for (sum, value) in gradient.iter_mut().zip(step.gradient(&loss)) {
                *sum += value;
            }
        }
        assert_value(name, share, number(&case["loss"]));
        let expected = [flat(&case["grad"]["chosen"]), flat(&case["grad"]["rejected"])].concat();
        assert_gradient(name, &gradient, &expected);
    });
}

#[test]
fn orpo_losses_of_trl() {
    let fixture = read("losses/orpo.json");
    let inputs = &fixture["inputs"];
    for case in list(&fixture["cases"]) {
        let [prompt_m, chosen_m, rejected_m] =
            ["prompt", "chosen", "rejected"].map(|side| leaf(&flat32(&inputs[side])));
        let mean_p = |logprobs_m: &Tensor<1>, side| reduce::segment_mean(logprobs_m.clone(), &lengths(&inputs[side]));
        let log_odds_p = orpo::log_odds_ratio(mean_p(&chosen_m, "chosen"), mean_p(&rejected_m, "rejected"));
        let odds = orpo::odds_ratio(log_odds_p.clone()).mean();
        // The loss covers the whole chosen text, prompts included.
        let nll = -Tensor::cat(vec![prompt_m.clone(), chosen_m.clone()], 0).mean();
        let loss = nll.clone() + odds.clone() * number(&case["options"]["beta"]);

        let name = text(&case["name"]);
        assert_value(name, f64::from(values(&loss)[0]), number(&case["loss"]));
        let metric = |key: &str| number(&case["metrics"][key]);
        assert_value("nll_loss", f64::from(values(&nll)[0]), metric("nll_loss"));
        assert_value("log_odds_ratio", -f64::from(values(&odds)[0]), metric("log_odds_ratio"));
        assert_value("log_odds_chosen", f64::from(values(&log_odds_p.mean())[0]), metric("log_odds_chosen"));
        let found = gradients(&loss, [&prompt_m, &chosen_m, &rejected_m]);
        let expected = ["prompt", "chosen", "rejected"].map(|side| flat(&case["grad"][side]));
        assert_gradient(name, &found.concat(), &expected.concat());
    }
}

#[test]
fn cpo_losses_of_trl() {
    let fixture = read("losses/cpo.json");
    let inputs = &fixture["inputs"];
    let counts_b = [lengths(&inputs["chosen"]), lengths(&inputs["rejected"])].concat();
    let pairs = counts_b.len() / 2;
    let totals = Totals { examples: pairs, targets: counts_b[..pairs].iter().sum(), weight: pairs as f64 };
    let cases = list(&fixture["cases"]);
    assert_eq!(cases.len(), 13, "every case of the fixture");
    for case in cases {
        let name = text(&case["name"]);
        let config: CpoConfig = serde_json::from_value(case["options"].clone()).expect("keys of `method.cpo`");
        let [chosen_m, rejected_m] = ["chosen", "rejected"].map(|side| leaf(&flat32(&inputs[side])));
        let found =
            config.loss_of_logprobs(Tensor::cat(vec![chosen_m.clone(), rejected_m.clone()], 0), &counts_b, totals);

        assert_value(name, f64::from(values(&found.loss)[0]), number(&case["loss"]));
        let mean = |values: &[f32]| values.iter().map(|&x| f64::from(x)).sum::<f64>() / values.len() as f64;
        // TRL does not compute the likelihood if its weight is 0.
        let nll = if config.cpo_alpha == 0.0 { 0.0 } else { mean(&values(&found.nll_m)) };
        for (key, found) in [
            ("logps/chosen", mean(&values(&found.logps_b)[..pairs])),
            ("logps/rejected", mean(&values(&found.logps_b)[pairs..])),
            ("rewards/chosen", config.beta * mean(&values(&found.shaped_b)[..pairs])),
            ("rewards/rejected", config.beta * mean(&values(&found.shaped_b)[pairs..])),
            ("nll_loss", nll),
        ] {
            assert_value(&format!("{name}, {key}"), found, number(&case["metrics"][key]));
        }
        let found = gradients(&found.loss, [&chosen_m, &rejected_m]);
        let expected = ["chosen", "rejected"].map(|side| flat(&case["grad"][side]));
        assert_gradient(name, &found.concat(), &expected.concat());
    }
}

#[test]
fn kto_losses_of_trl() {
    let fixture = read("losses/kto.json");
    let inputs = &fixture["inputs"];
    let sums = |rows: &Value| -> Vec<f64> { list(rows).iter().map(|row| flat(row).iter().sum()).collect() };
    let cases = list(&fixture["cases"]);
    assert_eq!(cases.len(), 8, "every case of the fixture");
    for case in cases {
        let name = text(&case["name"]);
        let config: KtoConfig = serde_json::from_value(case["options"].clone()).expect("keys of `method.kto`");
        let labels_b: Vec<bool> = list(&case["labels"]).iter().map(|label| label == &Value::Bool(true)).collect();
        let of_reference = sums(&inputs["reference_of_others"][text(&case["reference_of_others"])]);
        let log_ratios: Vec<f64> = sums(&inputs["others"]).iter().zip(&of_reference).map(|(a, b)| a - b).collect();
        let is_compared = case["options"]["loss_type"] == "kto";
        let reference_point = if is_compared { kto::reference_point(log_ratios.into_iter()) } else { 0.0 };
        assert_value(&format!("{name}, kl"), reference_point, number(&case["metrics"]["kl"]));
        let reference_b = sums(&inputs["reference"]).iter().map(|&sum| sum as f32).collect();
        let totals = Totals { examples: labels_b.len(), targets: 0, weight: 0.0 };
        let given = LossInputs { labels_b, reference_b, reference_point };
        let logprobs_m = leaf(&flat32(&inputs["logprobs"]));
        let found = config.loss(logprobs_m.clone(), &lengths(&inputs["logprobs"]), &given, totals);

        assert_value(name, f64::from(values(&found.loss)[0]), number(&case["loss"]));
        let [gradient] = gradients(&found.loss, [&logprobs_m]);
        assert_gradient(name, &gradient, &flat(&case["grad"]["logprobs"]));
        for (side, is_chosen) in [("chosen", true), ("rejected", false)] {
            let mean = |values: &[f32]| {
                let of_side = values.iter().zip(&given.labels_b).filter(|(_, label)| **label == is_chosen);
                let of_side: Vec<f64> = of_side.map(|(value, _)| f64::from(*value)).collect();
                of_side.iter().sum::<f64>() / of_side.len() as f64
            };
            let Some(expected) = case["metrics"].get(format!("logps/{side}")) else { continue };
            assert_value(&format!("{name}, logps/{side}"), mean(&values(&found.logps_b)), number(expected));
            let expected = number(&case["metrics"][format!("rewards/{side}")]);
            assert_value(
                &format!("{name}, rewards/{side}"),
                config.beta * mean(&values(&found.log_ratios_b)),
                expected,
            );
        }
    }
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
