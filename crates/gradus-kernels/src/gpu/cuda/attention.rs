//! Attention on tensor cores, with bf16 operands and f32 sums: launches of `attention.cu`.

use burn::tensor::DType;
use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;

use super::{Buffer, Program, runs_on};
use crate::attention::tiles::View;
use crate::attention::{AttentionDropout, AttentionShape};
use crate::fused::uses_warpgroups;
use crate::gpu::dropout::Masks;
use crate::gpu::tables::Tables;
use crate::gpu::{Words, as_dtype};

/// Rows of a tile.
pub(crate) const TILE: usize = 64;
const TEXT: &str = include_str!("attention.cu");

/// Whether there is a kernel for heads of `shape` on `device`.
pub(crate) fn supports(shape: &AttentionShape, device: &CubeDevice) -> bool {
    runs_on(device) && matches!(shape.head_dim, 64 | 128)
}

/// Converts an operand of a product to bf16.
pub(crate) fn narrow(x: &CubeTensor) -> CubeTensor {
    as_dtype(x, DType::BF16)
}

/// Heads, and dropout of their probabilities.
pub(crate) type Heads<'a> = (&'a AttentionShape, Option<AttentionDropout>);

/// Returns a kernel of the file, compiled for these heads. With `of_warpgroups`, it uses `wgmma` if the GPU has this instruction.
fn compiled((shape, dropout): Heads<'_>, of_warpgroups: bool, entry: &'static str) -> Program {
    let defines = format!(
        "#define HEAD_DIM {}\n#define GROUP {}\n#define IS_CAPPED {}\n#define DROPS {}\n#define USES_WARPGROUPS {}\n",
        shape.head_dim,
        shape.group(),
        u8::from(shape.cap.is_some()),
        u8::from(dropout.is_some()),
        u8::from(of_warpgroups)
    );
    Program { text: TEXT, defines, entry }
}

/// Returns the kernel that runs for these heads.
pub(crate) fn program(heads: Heads<'_>, entry: &'static str) -> Program {
    compiled(heads, uses_warpgroups(), entry)
}

/// Returns the values of the struct `Scalars` in the file.
pub(crate) fn scalars((shape, dropout): Heads<'_>) -> [u32; 9] {
    let View { before, after } = View::from(shape.mask);
    let Masks { low, high, threshold, factor } = Masks::of_attention(dropout);
    let cap = shape.cap.unwrap_or(1.0);
    [shape.heads as u32, shape.scale.to_bits(), cap.to_bits(), before, after, low, high, threshold, factor.to_bits()]
}

/// Fills `out` (bf16, as the next product reads it) and `log_sums` (f32) for `count` tiles of queries, described by `tiles`.
pub(crate) fn forward(
    [q, k, v]: [&CubeTensor; 3],
    heads: Heads<'_>,
    (tiles, count): (&Words, u32),
    out: &CubeTensor,
    log_sums: &CubeTensor,
) {
    if count > 0 {
        let read = [q, k, v].map(Buffer::read);
        let [q_read, k_read, v_read] = read;
        program(heads, "attention_forward").launch(
            &q.client,
            [count, heads.0.heads as u32],
            [q_read, k_read, v_read, tiles.into(), Buffer::written(out), Buffer::written(log_sums)],
            &scalars(heads),
        );
    }
}

/// Fills `grad_q` (f32) from the results of the forward pass and from `dots`, the sum of `∂O ∘ O` over each head.
pub(crate) fn backward_queries(
    [q, k, v, grad]: [&CubeTensor; 4],
    [log_sums, dots]: [&CubeTensor; 2],
    heads: Heads<'_>,
    tables: &Tables,
    grad_q: &CubeTensor,
) {
    if tables.query_tiles > 0 {
        let [a, b, c, d] = [q, k, v, grad].map(Buffer::read);
        let [e, f] = [log_sums, dots].map(Buffer::read);
        program(heads, "attention_backward_queries").launch(
            &q.client,
            [tables.query_tiles, heads.0.heads as u32],
            [a, b, c, d, e, f, (&tables.queries).into(), Buffer::written(grad_q)],
            &scalars(heads),
        );
    }
}

/// Fills `grad_k` and `grad_v` (f32).
pub(crate) fn backward_keys(
    [q, k, v, grad]: [&CubeTensor; 4],
    [log_sums, dots]: [&CubeTensor; 2],
    heads: Heads<'_>,
    tables: &Tables,
    [grad_k, grad_v]: [&CubeTensor; 2],
) {
    if tables.key_tiles > 0 {
        let [a, b, c, d] = [q, k, v, grad].map(Buffer::read);
        let [e, f] = [log_sums, dots].map(Buffer::read);
        let [to_k, to_v] = [grad_k, grad_v].map(Buffer::written);
        program(heads, "attention_backward_keys").launch(
            &q.client,
            [tables.key_tiles, heads.0.kv_heads as u32],
            [a, b, c, d, e, f, (&tables.keys).into(), (&tables.readers).into(), to_k, to_v],
            &scalars(heads),
        );
    }
}

/// Sources of the kernels as passed to NVRTC.
pub(in crate::gpu) fn offline(_: &crate::gpu::offline::Offline) -> Vec<crate::gpu::offline::Source> {
    let mut sources = Vec::new();
    let dropout = Some(AttentionDropout { probability: 0.1, key: 1 });
    for (head_dim, group, cap, dropout) in
        [(64, 1, None, None), (128, 2, None, None), (128, 2, Some(50.0), None), (64, 1, None, dropout)]
    {
        let mask = crate::attention::Mask::Causal;
        let shape = AttentionShape {
            heads: group,
            kv_heads: 1,
            head_dim,
            scale: 1.0,
            mask,
            cap,
            precision: crate::Precision::Bf16,
        };
        for of_warpgroups in [false, true] {
            let name = format!(
                "attention on tensor cores, {head_dim} wide, {group} a group, {cap:?}, {dropout:?}, warpgroups: {of_warpgroups}"
            );
            let text = compiled((&shape, dropout), of_warpgroups, "attention_forward").source();
            sources.push(crate::gpu::offline::Source { name, text });
        }
    }
    sources
}
