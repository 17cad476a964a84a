//! Heads, their widths, and which keys their queries see.

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
    /// α, what scores are multiplied by.
    pub scale: f32,
    /// Where scores are softly capped, before they are masked ([`softcap`](crate::softcap)).
    pub cap: Option<f32>,
    /// Which keys a query sees.
    pub mask: Mask,
    /// How the operands of the products are held: in bf16 on the tensor cores of NVIDIA's GPUs, for heads that are 64 or 128 wide;
    /// elsewhere always in f32.
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
