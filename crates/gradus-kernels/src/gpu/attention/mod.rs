//! Attention over packed sequences without a T × T matrix; the mathematics is in [`crate::attention`].
//!
//! In the forward pass, one cube computes [`tile`](Tiling) queries of one head. It loops over the keys that any of them sees, tile by tile,
//! with a running maximum and sum, and stores `Lₜ = logsumexp(Sₜ)`. In the backward pass, one kernel computes `∂Q` of the same tiles.
//! Another computes `∂K` and `∂V` of a tile of keys. It loops over all queries that read them: those of every continuation of a shared
//! prefix, and of every head of a group. So one cube sums each gradient in a fixed order. A table of the batch lists which queries read
//! which keys. It is made once and kept on the device.
//!
//! A bias by distance is looked up for each score. Its gradient is summed along the diagonals of a tile of scores, then by bucket for each
//! tile of queries, then over the tiles. With dropout, each pass draws the mask of each probability again.

mod backward_keys;
mod backward_queries;
mod bias;
mod copies;
mod decode;
mod dots;
mod forward;
mod scores;
mod sequences;
mod tiling;

use burn::backend::TensorMetadata;
use burn::tensor::{DType, Tensor};
use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;

use self::backward_keys::backward_keys;
use self::backward_queries::backward_queries;
use self::bias::Biases;
use self::dots::dots_of;
use self::forward::forward;
pub(crate) use self::sequences::of_sequences;
use self::tiling::Tiling;
#[cfg(feature = "cuda")]
use super::cuda::attention as cores;
#[cfg(feature = "cuda")]
use super::dims;
use super::dropout::Masks;
#[cfg(feature = "cuda")]
use super::offline::{Offline, Source};
use super::sums::column_sums;
use super::tables::with_tables;
use super::{Before, GpuOp, InputGradients, computes, elements, empty_f32, empty_like, zeros};
use crate::attention::tiles::Batch;
use crate::attention::{AttentionDropout, AttentionExtras, AttentionShape, PositionBuckets};
use crate::product::Precision;

/// Attention of a packed batch. With buckets, the bias is the fourth input.
#[derive(Debug)]
pub(crate) struct Attention {
    batch: Batch,
    shape: AttentionShape,
    buckets: Option<PositionBuckets>,
    dropout: Option<AttentionDropout>,
}

impl Attention {
    pub(crate) fn new(
        batch: Batch,
        shape: AttentionShape,
        buckets: Option<PositionBuckets>,
        dropout: Option<AttentionDropout>,
    ) -> Self {
        Self { batch, shape, buckets, dropout: dropout.filter(|dropout| dropout.probability > 0.0) }
    }

    /// The bias among the inputs, and among the saved tensors after the other five.
    fn biases(&self, values: Option<&CubeTensor>, like: &CubeTensor) -> Biases {
        Biases::new(self.buckets.as_ref().zip(values), like)
    }

    /// Whether tensor cores multiply, in bf16.
    #[cfg(feature = "cuda")]
    fn is_on_cores(&self, device: &CubeDevice) -> bool {
        self.buckets.is_none() && reads_operands(&self.shape, device)
    }

    /// Runs [`GpuOp::forward`] on tensor cores.
    #[cfg(feature = "cuda")]
    fn forward_on_cores(&self, qkv: [&CubeTensor; 3]) -> (CubeTensor, Vec<CubeTensor>) {
        let [q, k, v] = qkv.map(cores::narrow);
        let (out, log_sums) = (empty_like(&q), empty_f32(&q, &[dims(&q)[0], self.shape.heads]));
        with_tables(&self.batch, &q, cores::TILE, |tables| {
            let tiles = (&tables.queries, tables.query_tiles);
            cores::forward([&q, &k, &v], (&self.shape, self.dropout), tiles, &out, &log_sums);
        });
        (out.clone(), vec![q, k, v, out, log_sums])
    }

    /// Runs [`GpuOp::backward`] on tensor cores.
    #[cfg(feature = "cuda")]
    fn backward_on_cores(&self, saved: &[CubeTensor], grad: &CubeTensor, needed: &[bool]) -> InputGradients {
        let [q, k, v, out, log_sums] = saved else { unreachable!("the forward pass keeps five tensors") };
        let narrow = empty_like(out);
        let dots = dots_of(out, grad, Some(&narrow), &self.shape);
        let (operands, kept) = ([q, k, v, &narrow], [log_sums, &dots]);
        with_tables(&self.batch, q, cores::TILE, |tables| {
            let grad_q = needed[0].then(|| {
                let grad_q = empty_f32(q, &dims(q));
                cores::backward_queries(operands, kept, (&self.shape, self.dropout), tables, &grad_q);
                grad_q
            });
            let grads = (needed[1] || needed[2]).then(|| {
                let [grad_k, grad_v] = [k, v].map(|x| empty_f32(x, &dims(x)));
                cores::backward_keys(operands, kept, (&self.shape, self.dropout), tables, [&grad_k, &grad_v]);
                (grad_k, grad_v)
            });
            let (grad_k, grad_v) = grads.unzip();
            vec![grad_q, grad_k.filter(|_| needed[1]), grad_v.filter(|_| needed[2])]
        })
    }

    fn tiling(&self, device: &CubeDevice) -> Tiling {
        let drops = self.dropout.is_some();
        Tiling::new(&self.shape, self.buckets.is_some(), drops, device)
            .expect("`supports` was asked before it was applied")
    }
}

/// Returns the tiling if there is a kernel for tensors of `dtype` on `device`. One unit sums the gradient of each bucket.
fn kernel(
    shape: &AttentionShape,
    buckets: Option<&PositionBuckets>,
    device: &CubeDevice,
    dtype: DType,
) -> Option<Tiling> {
    // Dropout needs no shared memory.
    let tiling = Tiling::new(shape, buckets.is_some(), false, device)?;
    let has_units = buckets.is_none_or(|buckets| buckets.buckets() <= tiling.units() as usize);
    (has_units && computes(device, dtype)).then_some(tiling)
}

/// Computes attention of `batch` on a GPU with the kernel. Returns the tensors unchanged if there is none.
#[expect(clippy::result_large_err, reason = "tensors are handed back as they came")]
pub(crate) fn attention(
    qkv: [Tensor<2>; 3],
    extras: &AttentionExtras,
    batch: Batch,
    shape: AttentionShape,
) -> Result<Tensor<2>, [Tensor<2>; 3]> {
    let (device, dtype) = (qkv[0].device(), qkv[0].dtype());
    let Some(gpu) = crate::fused::gpu(&device) else { return Err(qkv) };
    let bias = extras.bias.as_ref();
    let buckets = bias.map(|bias| &bias.buckets);
    if qkv[0].dims()[0] == 0 || qkv[1].dims()[0] == 0 || kernel(&shape, buckets, &gpu, dtype).is_none() {
        return Err(qkv);
    }
    let op = Attention::new(batch, shape, buckets.cloned(), extras.dropout);
    let values = bias.map(|bias| bias.weight_hr.clone().into_dispatch());
    let inputs = qkv.map(Tensor::into_dispatch).into_iter().chain(values).collect();
    Ok(crate::fused::apply_on_gpu(op, inputs))
}

/// Whether attention of `shape` reads its operands in bf16 on `device`, unless scores have a bias.
#[cfg(feature = "cuda")]
fn reads_operands(shape: &AttentionShape, device: &CubeDevice) -> bool {
    shape.precision == Precision::Bf16 && cores::supports(shape, device)
}

/// Precision in which attention of `shape` without a bias reads queries and keys on `device`.
pub(crate) fn precision_of_operands(shape: &AttentionShape, device: &CubeDevice) -> Precision {
    #[cfg(feature = "cuda")]
    if reads_operands(shape, device) {
        return Precision::Bf16;
    }
    let _ = (shape, device);
    Precision::F32
}

impl GpuOp for Attention {
    fn supports(&self, device: &CubeDevice, dtype: DType) -> bool {
        kernel(&self.shape, self.buckets.as_ref(), device, dtype).is_some()
    }

    fn forward(&self, inputs: Vec<CubeTensor>) -> (CubeTensor, Vec<CubeTensor>) {
        let [q, k, v, bias @ ..] = &inputs[..] else { unreachable!("queries, keys and values") };
        #[cfg(feature = "cuda")]
        if self.is_on_cores(&q.device) {
            return self.forward_on_cores([q, k, v]);
        }
        let (shape, tiling) = (&self.shape, self.tiling(&q.device));
        let (out, log_sums) = (empty_like(q), empty_f32(q, &[q.shape()[0], shape.heads]));
        let (biases, masks) = (self.biases(bias.first(), q), Masks::of_attention(self.dropout));
        with_tables(&self.batch, q, tiling.tile, |tables| {
            if tables.query_tiles > 0 {
                let tiles = (&tables.queries, tables.query_tiles);
                forward([q, k, v], tiles, &biases, masks, [&out, &log_sums], shape, tiling);
            }
        });
        let saved = [q.clone(), k.clone(), v.clone(), out.clone(), log_sums].into_iter();
        (out, saved.chain(bias.iter().cloned()).collect())
    }

    fn backward(&self, saved: &[CubeTensor], grad: CubeTensor, needed: &[bool], _: Before) -> InputGradients {
        let [q, k, v, out, log_sums, bias @ ..] = saved else { unreachable!("the forward pass keeps five tensors") };
        #[cfg(feature = "cuda")]
        if self.is_on_cores(&q.device) {
            return self.backward_on_cores(saved, &grad, needed);
        }
        let (shape, tiling) = (&self.shape, self.tiling(&q.device));
        let dots = dots_of(out, &grad, None, shape);
        let (biases, masks) = (self.biases(bias.first(), q), Masks::of_attention(self.dropout));
        let (operands, kept, heads) = ([q, k, v, &grad], [log_sums, &dots], (shape, tiling));
        let needs_bias = needed.get(3).is_some_and(|needed| *needed);
        with_tables(&self.batch, q, tiling.tile, |tables| {
            let of_tiles = empty_f32(q, &[tables.query_tiles.max(1) as usize, elements(&biases.values)]);
            let grad_q = (needed[0] || needs_bias).then(|| {
                let grad_q = empty_like(q);
                backward_queries(operands, kept, heads, tables, &biases, masks, [&grad_q, &of_tiles]);
                grad_q
            });
            let grad_bias = needs_bias.then(|| match tables.query_tiles {
                0 => zeros(&biases.values, &biases.values.shape().to_vec(), DType::F32),
                _ => {
                    let CubeTensor { client, device, handle, dtype, .. } = column_sums(&of_tiles, DType::F32);
                    CubeTensor::new_contiguous(client, device, biases.values.shape(), handle, dtype)
                }
            });
            let [grad_k, grad_v] = match needed[1] || needed[2] {
                false => [None, None],
                true => {
                    let (grad_k, grad_v) = (empty_like(k), empty_like(v));
                    backward_keys(operands, kept, heads, tables, &biases, masks, [&grad_k, &grad_v]);
                    [needed[1].then_some(grad_k), needed[2].then_some(grad_v)]
                }
            };
            let of_bias = bias.iter().map(|_| grad_bias.clone());
            [grad_q.filter(|_| needed[0]), grad_k, grad_v].into_iter().chain(of_bias).collect()
        })
    }
}

#[cfg(feature = "cuda")]
pub(super) fn offline(offline: &Offline) -> Vec<Source> {
    use self::tiling::TILES;
    let mut sources = Vec::new();
    for dtype in offline.dtypes() {
        // Tiles as chosen for 227 KiB, the shared memory of Hopper, and for 48 KiB.
        let plain = |(tile, each), dim, group| Tiling {
            tile,
            each,
            dim,
            group,
            is_capped: false,
            is_biased: false,
            drops: false,
        };
        let kinds = [
            plain(TILES[0], 64, 2),
            plain(TILES[0], 128, 2),
            Tiling { is_capped: true, ..plain(TILES[2], 96, 1) },
            Tiling { is_biased: true, ..plain(TILES[0], 64, 1) },
            Tiling { is_biased: true, drops: true, ..plain(TILES[0], 64, 1) },
        ];
        for tiling in kinds {
            assert!(tiling.bytes() <= 227 << 10, "{tiling:?}");
            sources.push(forward::offline(offline, tiling, dtype));
            sources.push(backward_queries::offline(offline, tiling, dtype));
            sources.push(backward_keys::offline(offline, tiling, dtype));
        }
        sources.push(dots::offline(offline, dtype));
    }
    sources.extend(decode::offline(offline));
    sources
}
