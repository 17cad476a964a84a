//! Definitions of the kernels in plain tensors, for tests and benchmarks. They are not part of the public interface.

pub use crate::adamw::reference as adamw;
pub use crate::attention::reference::{
    across as attention_across, across_with as attention_across_with, attention, biased as attention_biased,
    within_with as attention_with,
};
pub use crate::dropout::reference as dropout;
pub use crate::embedding::reference as embedding;
pub use crate::gelu::reference as gelu;
pub use crate::linear::reference as linear;
pub use crate::norm::{layer_norm_reference as layer_norm, rms_norm_reference as rms_norm};
pub use crate::rope::reference as rope;
pub use crate::swiglu::reference as swiglu;
pub use crate::token_logprobs::reference as token_logprobs;
