//! Fused tensor operations with hand-written gradients.
//!
//! Each file has the same order: the mathematics, the public function, the CPU forward and backward pass, and tests against a `reference`
//! in plain tensors. If an operation has no kernel on a device, the public function runs the reference, so every operation works
//! everywhere. `fused` is the one mechanism that ties a kernel into autodiff. Kernels for GPUs are in `gpu`, with the features `wgpu` and
//! `cuda`. If the environment variable `GRADUS_KERNELS` is `off`, no device has kernels. If it is `wgmma`, attention on GPUs of compute
//! capability 9.0 uses this instruction.
//!
//! Names of tensors end in their dimensions, from the outer one to the inner one: `x_nd` is `[N, D]`, and `logprobs_m` is `[M]`. The letters
//! are B sequences, N packed tokens, M tokens with a target, V ids of the vocabulary, D the width of the hidden states and H heads. A name
//! without such an ending has its shape in the text. All float tensors that a public function takes carry gradient unless the text says
//! otherwise.
//!
//! Most `unsafe` code of gradus is in this crate, for five uses: tiles of matrix products in `product`, memory that parallel tasks
//! initialize in `parts`, calls of functions for the instruction sets that the CPU reports in `simd`, buffers of GPUs in `gpu`, and NVIDIA's
//! libraries in [`cuda`]. The rest is in `gradus-mpi`, in the allocator of `gradus-cli` and in the Python package.

#![deny(missing_docs)]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests read the environment"))]

mod activation;
mod adamw;
mod attention;
pub mod cuda;
mod decode;
mod draw;
mod dropout;
mod dynamic;
mod embedding;
#[cfg(test)]
mod emulated;
mod frozen;
mod fused;
mod geglu;
mod gelu;
#[cfg(feature = "gpu")]
mod gpu;
mod gradient;
mod head_norm;
mod host;
mod linear;
mod long_lived;
mod low_rank;
mod matmul;
pub mod measure;
mod norm;
mod parts;
mod product;
mod quantized;
mod recompute;
#[doc(hidden)]
pub mod reference;
mod relu;
mod rope;
mod segments;
mod simd;
mod softcap;
mod swiglu;
mod table;
#[cfg(test)]
mod tests;
mod token_logprobs;
mod watch;

pub use activation::Activated;
pub use adamw::{AdamWStep, AdamWUpdate, Int8Moments, adamw, adamw_each};
pub use attention::{
    AttentionDropout, AttentionExtras, AttentionShape, Mask, PositionBias, PositionBuckets, Relative, attention,
    attention_across, attention_across_with, attention_biased, attention_disentangled, attention_dropping,
    attention_fused, attention_fused_dropping, attention_operands, attention_with,
};
pub use decode::{CacheRow, LayerCache};
pub use draw::{Draw, DrawChoice, Drawn, draw, draws};
pub use dropout::{dropout, mix};
pub use dynamic::Codes;
pub use embedding::embedding;
pub use frozen::{FrozenWeight, multiplies_in, packs_weights};
pub use fused::rows_are_independent;
pub use geglu::geglu;
pub use gelu::{Gelu, gelu};
#[cfg(feature = "gpu")]
#[doc(hidden)]
pub use gpu::memory::{DeviceMemory, device_memory};
#[cfg(feature = "cuda")]
#[doc(hidden)]
pub use gpu::{cuda_sources, offline::Source as CudaSource};
pub use gradient::{add_gradient, flat_gradient, sum_of_squares};
pub use head_norm::rms_norm_and_rope;
pub use host::{HostValues, host_values};
pub use linear::{Layout, Operands, linear, linear_onto, linear_written_in, operand};
pub use long_lived::{long_lived, long_lived_from};
pub use low_rank::low_rank;
pub use matmul::matmul;
pub use norm::{layer_norm, layer_norm_between, rms_norm, rms_norm_between};
pub use product::{Precision, Quantization, WeightFormat};
pub use quantized::{Absmax, BLOCK, Int8, NESTED_BLOCK, NF4_MAP, NestedAbsmax, Nf4, Quantized};
pub use recompute::{branch, recompute, recompute_of};
pub use rope::{rope, rope_between};
pub use segments::{CrossSegments, Segment, Segments};
pub use simd::{exp_or_zero, maximum, sum_exp};
pub use softcap::softcap;
pub use swiglu::swiglu;
pub use table::Table;
pub use token_logprobs::{LmHead, TokenLogprobs, logits_held, longest_side_of_chunk, row_logprobs, token_logprobs};
pub use watch::{GraphDepth, can_watch, watched};
