//! Trained part of an adapted linear layer.
//!
//! LoRA (Hu et al. 2021, <https://arxiv.org/abs/2106.09685>): `y = W x + b + s · B (A x)` with A `[r, in]`, B `[out, r]` and `s = α/r`, or
//! rank-stabilized `α/√r` (Kalajdzievski 2023, <https://arxiv.org/abs/2312.03732>).
//!
//! DoRA (Liu et al. 2024, <https://arxiv.org/abs/2402.09353>) also trains the norm of each row of the weight:
//! `y = b + m/‖W + s·BA‖ ∘ (W x + s · B (A x))`. The norms are constants in the backward pass, as in peft. They are computed by
//! `‖W_o + s·(BA)_o‖² = ‖W_o‖² + 2s · B_o·(A Wᵀ)_o + s² · B_o (A Aᵀ) B_oᵀ`, without the sum of the weights.

use std::sync::Arc;

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, TensorData};
use gradus_kernels::{FrozenWeight, Precision, long_lived_from, low_rank, matmul};

use super::dropout::{DropoutSite, DropoutStream};

/// Low-rank part of a linear layer and, with DoRA, the norms of its rows.
#[derive(Module, Debug)]
pub struct Lora {
    /// A, `[r, in]`.
    pub(super) lora_a: Param<Tensor<2>>,
    /// B, `[out, r]`.
    pub(super) lora_b: Param<Tensor<2>>,
    /// m, `[out]`, with DoRA.
    pub(super) magnitude: Option<Param<Tensor<1>>>,
    #[module(skip)]
    scale: f32,
    /// Dropout probability of A's input in training, and the site of the dropout.
    #[module(skip)]
    dropout: Option<(f32, DropoutSite)>,
    /// `‖W_o‖²` of each row, with DoRA.
    #[module(skip)]
    squares: Arc<[f32]>,
    /// `‖W + s·BA‖` of each row, after training has ended.
    #[module(skip)]
    norms: Option<Arc<[f32]>>,
}

/// Values of a low-rank part.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LoraValues {
    /// Rank, r.
    pub rank: usize,
    /// Scale, s.
    pub scale: f32,
    /// A, `[r, in]`.
    pub a: Vec<f32>,
    /// B, `[out, r]`.
    pub b: Vec<f32>,
    /// m, `[out]`, with DoRA.
    pub magnitude: Option<Vec<f32>>,
}

impl Lora {
    /// Creates the low-rank part for a weight of `[input, output]` whose rows have these squared norms.
    pub(super) fn new(values: LoraValues, [input, output]: [usize; 2], squares: Arc<[f32]>, device: &Device) -> Self {
        let LoraValues { rank, scale, a, b, magnitude } = values;
        let matrix = |values: Vec<f32>, shape: [usize; 2]| Param::from_tensor(long_lived_from(values, shape, device));
        let vector = |values: Vec<f32>| Param::from_tensor(long_lived_from(values, [output], device));
        Self {
            lora_a: matrix(a, [rank, input]),
            lora_b: matrix(b, [output, rank]),
            magnitude: magnitude.map(vector),
            scale,
            dropout: None,
            squares,
            norms: None,
        }
    }

    /// Sets the dropout of A's input in passes with masks; `layer` numbers the layer.
    pub(super) fn set_dropout(&mut self, probability: f32, layer: usize) {
        self.dropout = (probability > 0.0).then_some((probability, DropoutSite::Adapter(layer)));
    }

    /// Whether passes with masks use dropout.
    pub(super) fn drops_out(&self) -> bool {
        self.dropout.is_some()
    }

    /// Returns A's input after dropout; `None` without dropout.
    pub(super) fn dropped(&self, x_nd: &Tensor<2>, masks: Option<DropoutStream>) -> Option<Tensor<2>> {
        let (probability, site) = self.dropout?;
        Some(masks?.apply(x_nd.clone(), probability, site))
    }

    /// Returns A and B, and s.
    pub(super) fn parts(&self) -> ([Tensor<2>; 2], f32) {
        ([self.lora_a.val(), self.lora_b.val()], self.scale)
    }

    /// Enables gradients of this part.
    pub(super) fn require_grad(&mut self) {
        self.lora_a = self.lora_a.clone().set_require_grad(true);
        self.lora_b = self.lora_b.clone().set_require_grad(true);
        self.magnitude = self.magnitude.take().map(|magnitude| magnitude.set_require_grad(true));
    }

    /// Computes the whole layer on a packed weight in one operation. `None` with DoRA, which needs more than the sum of both.
    pub(super) fn fused(
        &self,
        x_nd: &Tensor<2>,
        bias: &Option<Tensor<1>>,
        weight: &FrozenWeight,
        precision: Precision,
    ) -> Option<Tensor<2>> {
        self.magnitude.is_none().then(|| {
            let parts = [self.lora_a.val(), self.lora_b.val()];
            weight.apply_adapted(x_nd.clone(), bias.clone(), parts, self.scale, precision)
        })
    }

    /// Computes the whole layer. The input of A is `dropped`, if given. `base` multiplies by the frozen weight and adds a bias, if given.
    pub(super) fn forward(
        &self,
        x_nd: Tensor<2>,
        bias: Option<Tensor<1>>,
        dropped: Option<Tensor<2>>,
        precision: Precision,
        base: impl Fn(Tensor<2>, Option<Tensor<1>>) -> Tensor<2>,
    ) -> Tensor<2> {
        let part = |x: Tensor<2>| low_rank(x, self.lora_a.val(), self.lora_b.val(), self.scale, precision);
        let Some(magnitude) = &self.magnitude else {
            return base(x_nd.clone(), bias) + part(dropped.unwrap_or(x_nd));
        };
        let lengths = magnitude.val() / self.norms(&base, magnitude.val().is_autodiff());
        let lengths: Tensor<2> = lengths.unsqueeze();
        match dropped {
            // As in peft, dropout affects only DoRA's change of the plain layer.
            Some(x) => {
                let moved = base(x.clone(), None) * (lengths.clone() - 1.0) + part(x) * lengths;
                base(x_nd, bias) + moved
            }
            None => {
                let y = (base(x_nd.clone(), None) + part(x_nd)) * lengths;
                match bias {
                    Some(bias) => y + bias.unsqueeze(),
                    None => y,
                }
            }
        }
    }

    /// Computes `‖W + s·BA‖` of each row, `[out]`, without gradient.
    fn norms(&self, base: impl Fn(Tensor<2>, Option<Tensor<1>>) -> Tensor<2>, tracked: bool) -> Tensor<1> {
        let plain = |tensor: Tensor<2>| if tensor.is_autodiff() { tensor.inner() } else { tensor };
        let place = |tensor: Tensor<1>| if tracked { tensor.autodiff() } else { tensor };
        let (a, b) = (plain(self.lora_a.val()), plain(self.lora_b.val()));
        let constant =
            |values: &[f32]| Tensor::<1>::from_data(TensorData::new(values.to_vec(), [values.len()]), &b.device());
        if let Some(norms) = &self.norms {
            return place(constant(norms));
        }
        let (out, s) = (b.dims()[0], self.scale);
        // The base may be on a device with autodiff, so its product with A is computed there and read without gradient.
        let a_there = if tracked { a.clone().autodiff() } else { a.clone() };
        let cross = b.clone() * plain(base(a_there, None)).transpose();
        let square = matmul(b.clone(), matmul(a.clone(), a.transpose())) * b.clone();
        let added = (cross * (2.0 * s) + square * (s * s)).sum_dim(1).reshape([out]);
        // Rounding must not make a row of zeros negative.
        place((constant(&self.squares) + added).clamp_min(0.0).sqrt())
    }

    /// Computes the norms once, because training has ended.
    pub(super) fn cache_norms(&mut self, base: impl Fn(Tensor<2>, Option<Tensor<1>>) -> Tensor<2>) {
        if self.magnitude.is_some() && self.norms.is_none() {
            let norms = self.norms(base, false).into_data().try_to_vec().expect("f32");
            self.norms = Some(norms.into());
        }
    }

    /// Merges this part into the weight: `[in, out]` to `[in, out]`, without gradient. Call [`cache_norms`](Self::cache_norms) before.
    pub(super) fn merged(&self, weight_io: Tensor<2>) -> Tensor<2> {
        let sum = weight_io + matmul(self.lora_a.val().transpose(), self.lora_b.val().transpose()) * self.scale;
        let Some(magnitude) = &self.magnitude else { return sum };
        let norms = self.norms.as_deref().expect("settled");
        let norms = Tensor::<1>::from_data(TensorData::new(norms.to_vec(), [norms.len()]), &sum.device());
        sum * (magnitude.val() / norms).unsqueeze()
    }
}
