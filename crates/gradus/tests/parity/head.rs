//! Log-probabilities and entropies of target tokens from hidden states, compared to TRL's fused head and PyTorch.

use burn::tensor::{Tensor, TensorData};
use gradus_kernels::{LmHead, Precision, token_logprobs};
use serde_json::Value;

use crate::device::device;
use crate::fixture::*;

#[test]
fn token_logprobs_of_trl() {
    let fixture = read("losses/head.json");
    let inputs = &fixture["inputs"];
    let leaf2 = |value: &Value| -> Tensor<2> {
        let shape = [list(value).len(), list(&value[0]).len()];
        Tensor::<2>::from_data(TensorData::new(flat32(value), shape), &device().autodiff()).require_grad()
    };
    let targets: Vec<u32> = flat(&inputs["targets"]).iter().map(|id| *id as u32).collect();
    for case in list(&fixture["cases"]) {
        let temperature = number(&case["temperature"]);
        let name = format!("temperature {temperature}");
        let (hidden_md, weight_vd) = (leaf2(&inputs["hidden"]), leaf2(&inputs["weight"]));
        let found = {
            let head = LmHead::dense(weight_vd.clone(), Precision::F32);
            token_logprobs(hidden_md.clone(), &head, &targets, temperature as f32)
        };
        assert_all(&name, &values(&found.logprobs_m), &flat(&case["logprobs"]), VALUE, 1.0);
        assert_all(&name, &values(&found.entropies_m), &flat(&case["entropies"]), VALUE, 1.0);
        let correct: Vec<Value> = values(&found.correct_m).iter().map(|c| Value::Bool(*c == 1.0)).collect();
        assert_eq!(correct, list(&case["correct"]), "{name}: which targets are the likeliest");

        let gains = |row: usize| tensor(&flat32(&inputs["gains"][row]));
        let loss = (found.logprobs_m * gains(0)).sum() + (found.entropies_m * gains(1)).sum();
        let gradients = loss.backward();
        for (what, leaf, expected) in [("hidden", &hidden_md, "grad_hidden"), ("weight", &weight_vd, "grad_weight")] {
            let gradient = values(&leaf.grad(&gradients).expect("tracked"));
            assert_gradient(&format!("{name}, {what}"), &gradient, &flat(&case[expected]));
        }
    }
}
