//! Activations by their names in `config.json`: those of `ACT2FN` in `transformers`.

use burn::tensor::{Tensor, activation};
use gradus_kernels::{Activated, Gelu};

/// An activation of one tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activation {
    Gelu(Gelu),
    Relu,
    Tanh,
}

/// Returns the form of GELU with this name.
fn gelu(name: &str) -> Option<Gelu> {
    match name {
        "gelu" | "gelu_python" => Some(Gelu::Exact),
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Some(Gelu::Tanh),
        _ => None,
    }
}

impl Activation {
    /// Returns the activation `name`. `key` is its configuration key, for error messages.
    ///
    /// # Errors
    /// When the name is unknown.
    pub(crate) fn named(key: &str, name: &str) -> Result<Self, String> {
        match (name, gelu(name)) {
            (_, Some(form)) => Ok(Self::Gelu(form)),
            ("relu", _) => Ok(Self::Relu),
            ("tanh", _) => Ok(Self::Tanh),
            (other, None) => Err(format!(
                "`{key}` `{other}` is not supported (known: gelu, gelu_new, gelu_pytorch_tanh, gelu_fast, relu, tanh)"
            )),
        }
    }

    /// Returns the activation `name` of a feed-forward network, fused with the network's second layer.
    ///
    /// # Errors
    /// When the name is unknown, or has no fused form.
    pub(crate) fn feed_forward(key: &str, name: &str) -> Result<FeedForward, String> {
        match Self::named(key, name) {
            Ok(Self::Gelu(Gelu::Exact)) => Ok(|x| Activated::Gelu(Gelu::Exact, x)),
            Ok(Self::Gelu(Gelu::Tanh)) => Ok(|x| Activated::Gelu(Gelu::Tanh, x)),
            Ok(Self::Relu) => Ok(Activated::Relu),
            Ok(Self::Tanh) | Err(_) => {
                let known = "gelu, gelu_new, gelu_pytorch_tanh, gelu_fast, relu";
                Err(format!("`{key}` `{name}` is not supported (known: {known})"))
            }
        }
    }

    /// Applies the activation to `x_nd`.
    pub(crate) fn of(self, x_nd: Tensor<2>) -> Tensor<2> {
        match self {
            Self::Tanh => activation::tanh(x_nd),
            Self::Relu => Activated::Relu(x_nd).tensor(),
            Self::Gelu(form) => Activated::Gelu(form, x_nd).tensor(),
        }
    }
}

/// An activation that is fused with the following linear layer.
pub(crate) type FeedForward = fn(Tensor<2>) -> Activated;

/// Activation of a gate, which is multiplied by another tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// x · σ(x).
    Silu,
    /// GELU in one of its forms.
    Gelu(Gelu),
}

impl Gate {
    /// Returns the gate `name`. `key` is its configuration key, for error messages.
    ///
    /// # Errors
    /// When the name is unknown.
    pub(crate) fn named(key: &str, name: &str) -> Result<Self, String> {
        match (name, gelu(name)) {
            (_, Some(form)) => Ok(Self::Gelu(form)),
            ("silu" | "swish", _) => Ok(Self::Silu),
            (other, None) => {
                Err(format!("`{key}` `{other}` is not supported (known: silu, gelu, gelu_new, gelu_pytorch_tanh)"))
            }
        }
    }

    /// Applies the activation to `gate_nd` and multiplies by `up_nd`.
    pub(crate) fn of(self, gate_nd: Tensor<2>, up_nd: Tensor<2>) -> Activated {
        match self {
            Self::Silu => Activated::Swiglu(gate_nd, up_nd),
            Self::Gelu(form) => Activated::Geglu(form, gate_nd, up_nd),
        }
    }
}
