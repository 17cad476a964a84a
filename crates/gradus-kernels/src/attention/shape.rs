//! Heads, their widths, and the mask.

use super::mask::Mask;
use crate::product::Precision;

/// The shape of an attention layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionShape {
    /// Query heads, H.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// α, the factor of the scores.
    pub scale: f32,
    /// Soft cap of the scores, applied before the mask ([`softcap`](crate::softcap)).
    pub cap: Option<f32>,
    /// Which keys a query sees.
    pub mask: Mask,
    /// Type in which the operands of products are held. bf16 applies to the tensor cores of NVIDIA GPUs and heads of width 64 or 128.
    /// Everything else uses f32.
    pub precision: Precision,
}

impl AttentionShape {
    /// Widths of queries, keys and values.
    pub(crate) fn widths(&self) -> [usize; 3] {
        [self.heads, self.kv_heads, self.kv_heads].map(|heads| heads * self.head_dim)
    }

    /// Query heads per key/value head.
    pub(crate) fn group(&self) -> usize {
        self.heads / self.kv_heads
    }
}
