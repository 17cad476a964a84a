//! AdamW with gradient clipping and a schedule, compared to PyTorch step by step.

use burn::module::{Module, Param};
use burn::tensor::{Tensor, TensorData};
use gradus::learner::gradient_sum::GradientSum;
use gradus::learner::optimizer::{AdamWConfig, MomentFormat, Moments, Optimizer, RmsPropConfig};
use serde_json::Value;

use crate::device::device;
use crate::fixture::*;

#[derive(Module, Debug)]
struct Matrix {
    weight: Param<Tensor<2>>,
}

#[derive(Module, Debug)]
struct Vector {
    bias: Param<Tensor<1>>,
}

#[derive(Module, Debug)]
struct Model {
    matrix: Matrix,
    vector: Vector,
}

fn tensor_of<const D: usize>(value: &Value, shape: [usize; D]) -> Tensor<D> {
    Tensor::from_data(TensorData::new(flat32(value), shape), &device().autodiff())
}

#[test]
fn adamw_steps_of_pytorch() {
    let fixture = read("losses/optimizer.json");
    let rows = list(&fixture["start"]["matrix.weight"]);
    let (shape, length) = ([rows.len(), list(&rows[0]).len()], list(&fixture["start"]["vector.bias"]).len());
    for case in list(&fixture["cases"]) {
        let (name, options) = (text(&case["name"]), &case["options"]);
        let mut model = Model {
            matrix: Matrix { weight: Param::from_tensor(tensor_of(&fixture["start"]["matrix.weight"], shape)) },
            vector: Vector { bias: Param::from_tensor(tensor_of(&fixture["start"]["vector.bias"], [length])) },
        };
        let mut optimizer = Optimizer::new(AdamWConfig {
            betas: [number(&options["betas"][0]), number(&options["betas"][1])],
            epsilon: number(&options["eps"]),
            weight_decay: number(&options["weight_decay"]),
            moments: MomentFormat::F32,
        });
        for (step, expected) in list(&case["steps"]).iter().enumerate() {
            let gradients = &fixture["gradients"][step];
            // A loss whose gradients are those of the fixture.
            let of_matrix = model.matrix.weight.val() * tensor_of(&gradients["matrix.weight"], shape);
            let of_vector = model.vector.bias.val() * tensor_of(&gradients["vector.bias"], [length]);
            let mut sum = GradientSum::default();
            sum.add(&model, &mut (of_matrix.sum() + of_vector.sum()).backward());
            let norm = sum.clip(number(&options["max_grad_norm"]));
            assert_value(&format!("{name}, step {step}, norm"), norm, number(&expected["grad_norm"]));
            model = optimizer.step(number(&expected["lr"]), model, sum);
            let found = [values(&model.matrix.weight.val()), values(&model.vector.bias.val())].concat();
            let parameters = &expected["parameters"];
            let expected = [flat(&parameters["matrix.weight"]), flat(&parameters["vector.bias"])].concat();
            assert_all(&format!("{name}, step {step}"), &found, &expected, VALUE, 1.0);
        }
    }
}

/// `tools/parity/policies.py`: PyTorch's RMSprop.
#[test]
fn rmsprop_steps_of_pytorch() {
    let fixture = read("losses/rmsprop.json");
    let shape = [3, 4];
    for case in list(&fixture["cases"]) {
        let mut model = Matrix { weight: Param::from_tensor(tensor_of(&fixture["start"], shape)) };
        let mut optimizer = Optimizer::new(RmsPropConfig {
            alpha: number(&case["alpha"]),
            epsilon: number(&case["epsilon"]),
            weight_decay: number(&case["weight_decay"]),
        });
        for (step, expected) in list(&case["steps"]).iter().enumerate() {
            let loss = model.weight.val() * tensor_of(&fixture["gradients"][step], shape);
            let mut sum = GradientSum::default();
            sum.add(&model, &mut loss.sum().backward());
            model = optimizer.step(number(&case["learning_rate"]), model, sum);
            assert_all(&format!("{case}, step {step}"), &values(&model.weight.val()), &flat(expected), VALUE, 1.0);
        }
        assert!(optimizer.moments().values().all(|moments| matches!(moments, Moments::F32 { first: None, .. })));
    }
}
