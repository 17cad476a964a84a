//! Heads with one output per hidden state, for reward models and critics.

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use gradus_kernels::{Activated, Gelu, Layout, Precision, linear};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::build::{Builder, Init};
use super::layers::Head;

/// Number of layers of a scalar head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HeadLayers {
    /// `w·h`.
    #[default]
    Linear,
    /// `w·gelu(W h + b) + c` (FineGrainedRLHF's critic).
    TwoLayer,
}

impl HeadLayers {
    /// Number of parameters of such a head for states of this width.
    pub fn parameters(self, width: usize) -> usize {
        match self {
            Self::Linear => width,
            Self::TwoLayer => width * width + 2 * width + 1,
        }
    }
}

/// A head with one output per hidden state. Its file has `score.weight`, or `score.dense.{weight,bias}` and `score.out.{weight,bias}`;
/// these names determine the kind of head.
#[derive(Module, Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one a model")]
pub enum ScalarHead {
    /// `[1, D]`, without a bias, as in `transformers`.
    Linear(Head),
    /// Two layers with a GELU between them.
    TwoLayer(TwoLayer),
}

/// `w·gelu(W h + b) + c`, with the exact GELU; Wu et al. 2023, <https://arxiv.org/abs/2306.01693>.
#[derive(Module, Debug)]
pub struct TwoLayer {
    dense: Affine,
    out: Affine,
}

/// Layer in f32 that is never packed, because heads are trained even if the trunk is not.
#[derive(Module, Debug)]
struct Affine {
    /// `[out, in]`
    weight: Param<Tensor<2>>,
    /// `[out]`
    bias: Param<Tensor<1>>,
}

impl ScalarHead {
    /// Builds the head that the source has, or a linear one initialized by `init`.
    pub(crate) fn build(b: Builder<'_>, width: usize, init: Init) -> Self {
        let layers = if b.holds("dense.weight") { HeadLayers::TwoLayer } else { HeadLayers::Linear };
        Self::with_layers(layers, b, width, init)
    }

    /// Builds a head with these layers; `init` initializes the weights of the last layer.
    pub(crate) fn with_layers(layers: HeadLayers, mut b: Builder<'_>, width: usize, init: Init) -> Self {
        match layers {
            HeadLayers::Linear => Self::Linear(Head { weight: b.param("weight", [1, width], init) }),
            HeadLayers::TwoLayer => {
                // Standard deviation of torch's initial linear layers, 1/√(3 D).
                let spread = Init::Normal((3.0 * width as f32).powf(-0.5));
                let dense = Affine::build(b.enter("dense"), width, width, spread);
                Self::TwoLayer(TwoLayer { dense, out: Affine::build(b.enter("out"), width, 1, init) })
            }
        }
    }

    /// Number of layers.
    pub fn layers(&self) -> HeadLayers {
        match self {
            Self::Linear(_) => HeadLayers::Linear,
            Self::TwoLayer(_) => HeadLayers::TwoLayer,
        }
    }

    /// Computes the head's output for each state: `[N, D]` to `[N]`. All inputs carry gradient.
    pub fn forward(&self, hidden_nd: Tensor<2>) -> Tensor<1> {
        let [n, _] = hidden_nd.dims();
        let out = match self {
            Self::Linear(Head { weight }) => linear(hidden_nd, weight.val(), None, Layout::OutIn, Precision::F32),
            Self::TwoLayer(TwoLayer { dense, out }) => {
                let (weight, bias) = (dense.weight.val(), Some(dense.bias.val()));
                let x_nd = linear(hidden_nd, weight, bias, Layout::OutIn, Precision::F32);
                let (weight, bias) = (out.weight.val(), Some(out.bias.val()));
                Activated::Gelu(Gelu::Exact, x_nd).linear(weight, bias, Layout::OutIn, Precision::F32, Precision::F32)
            }
        };
        out.reshape([n])
    }
}

impl Affine {
    fn build(mut b: Builder<'_>, input: usize, output: usize, init: Init) -> Self {
        Self { weight: b.param("weight", [output, input], init), bias: b.param("bias", [output], Init::Constant(0.0)) }
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::model::build::Source;

    /// Source that counts up, so that all parameters of a head differ.
    struct Counting(u32);

    impl Source for Counting {
        fn values(&mut self, _: &str, shape: &[usize], _: Init) -> Option<Vec<f32>> {
            let mut next = || {
                self.0 += 1;
                (0.1 * f64::from(self.0)).sin() as f32
            };
            Some((0..shape.iter().product()).map(|_| next()).collect())
        }

        fn holds(&self, name: &str) -> bool {
            name == "score.dense.weight"
        }
    }

    #[test]
    fn two_layers_are_what_torch_makes_of_them() {
        let device = Device::flex();
        let (mut source, width) = (Counting(0), 3);
        let mut b = Builder::new(&mut source, &device);
        let head = ScalarHead::build(b.enter("score"), width, Init::Constant(0.0));
        assert_eq!(head.layers(), HeadLayers::TwoLayer);
        let states = Tensor::<2>::from_data([[0.5, -1.0, 2.0], [0.0, 0.25, -0.75]], &device);
        // torch 2.15: `Sequential(Linear(3, 3), GELU(), Linear(3, 1))` in float64, with the numbers of `Counting`.
        let expected = [5.814_213_856_5, 2.265_905_339_4];
        let found: Vec<f32> = head.forward(states).into_data_as::<f32>().try_into_vec().expect("floats");
        for (found, expected) in found.iter().zip(expected) {
            assert!((f64::from(*found) - expected).abs() < 2e-6, "{found} instead of {expected}");
        }
    }

    #[test]
    fn the_forecast_counts_what_there_is() {
        let device = Device::flex();
        for layers in [HeadLayers::Linear, HeadLayers::TwoLayer] {
            let mut source = Counting(0);
            let head = ScalarHead::with_layers(layers, Builder::new(&mut source, &device), 5, Init::Constant(0.0));
            assert_eq!(head.num_params(), layers.parameters(5));
        }
    }
}
