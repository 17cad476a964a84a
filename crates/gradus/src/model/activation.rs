//! Activations by the names that `config.json` gives them: those of `ACT2FN` in `transformers`.

use burn::tensor::{Tensor, activation};
use gradus_kernels::{Activated, Gelu};

/// An activation of one tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activation {
    Gelu(Gelu),
    Relu,
    Tanh,
}

/// The form of GELU that a name means.
fn gelu(name: &str) -> Option<Gelu> {
    match name {
        "gelu" | "gelu_python" => Some(Gelu::Exact),
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Some(Gelu::Tanh),
        _ => None,
    }
}

impl Activation {
    /// The activation `name`, which the key `key` holds.
    ///
    /// # Errors
    /// When it is not known.
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

    /// The activation `name` between the two layers of a feed-forward network, computed together with the second of them.
    ///
    /// # Errors
    /// When it is not known, or has no such form.
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

    /// Of `x_nd`.
    pub(crate) fn of(self, x_nd: Tensor<2>) -> Tensor<2> {
        match self {
            Self::Tanh => activation::tanh(x_nd),
            Self::Relu => Activated::Relu(x_nd).tensor(),
            Self::Gelu(form) => Activated::Gelu(form, x_nd).tensor(),
        }
    }
}

/// An activation that the next linear layer computes.
pub(crate) type FeedForward = fn(Tensor<2>) -> Activated;

/// The activation of a gate, by which another tensor is multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gate {
    Silu,
    Gelu(Gelu),
}

impl Gate {
    /// The gate `name`, which the key `key` holds.
    ///
    /// # Errors
    /// When it is not known.
    pub(crate) fn named(key: &str, name: &str) -> Result<Self, String> {
        match (name, gelu(name)) {
            (_, Some(form)) => Ok(Self::Gelu(form)),
            ("silu" | "swish", _) => Ok(Self::Silu),
            (other, None) => {
                Err(format!("`{key}` `{other}` is not supported (known: silu, gelu, gelu_new, gelu_pytorch_tanh)"))
            }
        }
    }

    /// The activation of `gate_nd`, times `up_nd`.
    pub(crate) fn of(self, gate_nd: Tensor<2>, up_nd: Tensor<2>) -> Activated {
        match self {
            Self::Silu => Activated::Swiglu(gate_nd, up_nd),
            Self::Gelu(form) => Activated::Geglu(form, gate_nd, up_nd),
        }
    }
}
