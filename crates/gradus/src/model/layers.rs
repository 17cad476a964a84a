//! The layers that all families share, with the field names of the safetensors keys.

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use gradus_kernels::Layout;

use super::build::{Builder, Init};

/// A linear layer.
#[derive(Module, Debug)]
pub struct Linear {
    /// `[out, in]`, or `[in, out]` in GPT-2.
    pub weight: Param<Tensor<2>>,
    /// `[out]`.
    pub bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    transposed: bool,
}

impl Linear {
    /// A layer stored `[out, in]`.
    pub(crate) fn build(mut b: Builder<'_>, input: usize, output: usize, bias: bool, deviation: f32) -> Self {
        Self {
            weight: b.param("weight", [output, input], Init::Normal(deviation)),
            bias: bias.then(|| b.param("bias", [output], Init::Constant(0.0))),
            transposed: false,
        }
    }

    /// A layer stored `[in, out]` with a bias: GPT-2's Conv1D.
    pub(crate) fn build_conv1d(mut b: Builder<'_>, input: usize, output: usize, deviation: f32) -> Self {
        Self {
            weight: b.param("weight", [input, output], Init::Normal(deviation)),
            bias: Some(b.param("bias", [output], Init::Constant(0.0))),
            transposed: true,
        }
    }

    /// `x_nd` times the weight, plus the bias.
    pub fn forward(&self, x_nd: Tensor<2>) -> Tensor<2> {
        let layout = if self.transposed { Layout::InOut } else { Layout::OutIn };
        gradus_kernels::linear(x_nd, self.weight.val(), self.bias.as_ref().map(Param::val), layout)
    }
}

/// An embedding table.
#[derive(Module, Debug)]
pub struct Embedding {
    /// `[rows, D]`.
    pub weight: Param<Tensor<2>>,
}

impl Embedding {
    pub(crate) fn build(mut b: Builder<'_>, rows: usize, width: usize, deviation: f32) -> Self {
        Self { weight: b.param("weight", [rows, width], Init::Normal(deviation)) }
    }

    /// Rows `ids_n`, `[N, D]`.
    pub fn forward(&self, ids_n: &[u32]) -> Tensor<2> {
        gradus_kernels::embedding(self.weight.val(), ids_n)
    }
}

/// Layer norm.
#[derive(Module, Debug)]
pub struct LayerNorm {
    /// γ, `[D]`.
    pub weight: Param<Tensor<1>>,
    /// β, `[D]`.
    pub bias: Param<Tensor<1>>,
    #[module(skip)]
    epsilon: f64,
}

impl LayerNorm {
    pub(crate) fn build(mut b: Builder<'_>, width: usize, epsilon: f64) -> Self {
        Self {
            weight: b.param("weight", [width], Init::Constant(1.0)),
            bias: b.param("bias", [width], Init::Constant(0.0)),
            epsilon,
        }
    }

    /// Each row of `x_nd`, normalised.
    pub fn forward(&self, x_nd: Tensor<2>) -> Tensor<2> {
        gradus_kernels::layer_norm(x_nd, self.weight.val(), self.bias.val(), self.epsilon)
    }
}

/// RMS norm.
#[derive(Module, Debug)]
pub struct RmsNorm {
    /// γ, `[D]`.
    pub weight: Param<Tensor<1>>,
    #[module(skip)]
    epsilon: f64,
}

impl RmsNorm {
    pub(crate) fn build(mut b: Builder<'_>, width: usize, epsilon: f64) -> Self {
        Self { weight: b.param("weight", [width], Init::Constant(1.0)), epsilon }
    }

    /// Each row of `x_nd`, normalised.
    pub fn forward(&self, x_nd: Tensor<2>) -> Tensor<2> {
        gradus_kernels::rms_norm(x_nd, self.weight.val(), self.epsilon)
    }

    /// Each head of each row of `x_nd`, normalised by itself: `x_nd` is `[N, H · head_dim]`, γ `[head_dim]`.
    pub fn forward_heads(&self, x_nd: Tensor<2>) -> Tensor<2> {
        let ([n, d], [head_dim]) = (x_nd.dims(), self.weight.dims());
        self.forward(x_nd.reshape([n * d / head_dim, head_dim])).reshape([n, d])
    }
}
