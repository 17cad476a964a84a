//! Formulas for the memory of each kind of allocation, in bytes.
//!
//! Symbols: N tokens of a pass, M predicted tokens, D width of the hidden states, Q and K widths of all query heads and of all key heads, H
//! query heads, I width of the feed-forward layer, L blocks, V vocabulary, P all weights. Numbers have four bytes. Buffers of a few numbers
//! per token, or of a few megabytes in total, are not counted.

use gradus_kernels::Int8Moments;

use crate::model::{
    BLOCK_LOGITS, Block, HeadLayers, Linear, ModelShape, Precision, WeightFormat, head_format, logits_held,
    longest_side_of_chunk,
};

/// Bytes of one number.
pub(super) const NUMBER: u64 = 4;

/// Numbers per logit that exist at the same time if rows of logits are whole: logits, their mask, logprobs and probabilities. There are
/// different counts for a recorded pass, for an unrecorded one, and before the head's gradient is computed. Counted in `model/support.rs`.
const WHOLE_RECORDED: u64 = 5;
const WHOLE: u64 = 3;
const WHOLE_BEFORE_HEAD: u64 = 2;

/// Numbers per logit of a block that exist at the same time when distributions of student and teacher are compared: logits, logprobs and
/// probabilities of both and of their mixture, and the backward pass. See `loss/distill.rs`; measured.
const COMPARED: u64 = 10;

/// A model, described by its sizes and its head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Model {
    /// Sizes.
    pub shape: ModelShape,
    /// Head on the trunk.
    pub head: Head,
    /// Format of frozen weights.
    pub weights: WeightFormat,
    /// Whether the backward pass computes each block again instead of storing its results.
    pub recompute: bool,
    /// Precision of the products in training.
    pub compute: Precision,
    /// Whether logprobs are normalized over the tokens that could be sampled (`trained_logprobs: processed`). Whole rows of logits
    /// are then in memory.
    pub whole_logits: bool,
    /// Whether its distributions are compared with a teacher's, one block of tokens at a time.
    pub compared_logits: bool,
    /// Adapter that is trained instead of the model itself.
    pub adapter: Option<Adapter>,
    /// Whether only its scalar head is trained.
    pub head_alone: bool,
    /// Kind of the device that computes.
    pub device: DeviceKind,
}

/// Kind of the device that a model computes on, which decides the format of its weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceKind {
    /// The CPU: weights that are not trained are packed for its kernels.
    #[default]
    Cpu,
    /// A GPU: weights are in f32 and shared by all their readers. Quantized weights keep their format and are expanded one at a time for
    /// each product. The backward pass recomputes only the logits of a chunk and the values of activations.
    Gpu,
}

/// Sizes of a low-rank adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Adapter {
    /// Number of its parameters, including a trained head.
    pub numbers: u64,
    /// Number of parameters in tensors that are too small for 8-bit moments.
    pub of_small: u64,
    /// Whether it adapts feed-forward layers, whose inputs are then stored.
    pub feed_forward: bool,
    /// Whether another model already holds the base.
    pub shares_base: bool,
}

/// State that an optimizer keeps for each trained parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moments {
    /// This many numbers.
    Numbers(u64),
    /// Two 8-bit numbers, except in tensors that are too small.
    Int8,
}

/// Head on a model's trunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Head {
    /// LM head.
    Language,
    /// One number per token: reward models and critics.
    Scalar(HeadLayers),
    /// A few numbers per text or token, after one more layer: classifiers.
    Labels,
}

impl Head {
    /// A scalar head of one linear layer.
    pub const SCALAR: Self = Self::Scalar(HeadLayers::Linear);
}

/// Size of a pass through a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PassSize {
    /// Tokens, N. For a model with an encoder, those of the decoder.
    pub tokens: usize,
    /// Tokens that an encoder reads, S.
    pub sources: usize,
    /// Predicted tokens, M.
    pub targets: usize,
}

impl Model {
    /// Creates a language model.
    pub fn language(shape: ModelShape, weights: WeightFormat) -> Self {
        let (head, compute) = (Head::Language, Precision::F32);
        let (recompute, whole_logits, compared_logits) = (false, false, false);
        Self {
            shape,
            head,
            weights,
            recompute,
            compute,
            whole_logits,
            compared_logits,
            adapter: None,
            head_alone: false,
            device: DeviceKind::Cpu,
        }
    }

    /// Creates a reward model or critic.
    pub fn scalar(shape: ModelShape, weights: WeightFormat) -> Self {
        Self { head: Head::SCALAR, ..Self::language(shape, weights) }
    }

    /// Creates a classifier.
    pub fn classifier(shape: ModelShape, weights: WeightFormat) -> Self {
        Self { head: Head::Labels, ..Self::language(shape, weights) }
    }

    /// P: the trunk and the head, unless that is a tied LM head.
    fn parameters(&self) -> u64 {
        match self.head {
            Head::Language => self.shape.parameters() as u64,
            Head::Scalar(layers) => (self.shape.trunk_parameters() + layers.parameters(self.shape.head_width)) as u64,
            // The layer in front of the labels. The label weights themselves are few.
            Head::Labels => (self.shape.trunk_parameters() + self.shape.width * (self.shape.width + 1)) as u64,
        }
    }

    /// Bytes of all weights: 4 P in f32; quantized layers keep their format.
    pub fn weights(&self) -> u64 {
        match self.shape.quantized {
            None => NUMBER * self.parameters(),
            Some(_) => NUMBER * self.parameters() - NUMBER * self.trunk() + self.packed_trunk(self.weights),
        }
    }

    /// Number of the blocks' weights that enter products.
    fn trunk(&self) -> u64 {
        self.shape.trunk_matrices() as u64
    }

    /// Bytes of the packed weights of the blocks. Quantized layers keep their format.
    fn packed_trunk(&self, weights: WeightFormat) -> u64 {
        self.shape.quantized.map_or(weights, WeightFormat::from).bytes(self.trunk())
    }

    /// Bytes of the trained weights: all weights, the adapter, or the head. Gradients take as much again, and the optimizer's moments twice
    /// as much.
    pub fn trained(&self) -> u64 {
        match self.head {
            Head::Scalar(layers) if self.head_alone => NUMBER * layers.parameters(self.shape.head_width) as u64,
            _ => self.adapter.map_or(self.weights(), |adapter| NUMBER * adapter.numbers),
        }
    }

    /// Bytes of the moments of the trained weights. 8-bit moments take two codes per number and two scales per block.
    pub fn moments(&self, moments: Moments) -> u64 {
        let numbers = self.trained() / NUMBER;
        let of_small = match (self.head, self.adapter) {
            (Head::Scalar(_), _) if self.head_alone => 0,
            (_, Some(adapter)) => adapter.of_small,
            (_, None) => self.shape.small_parameters() as u64,
        };
        match moments {
            Moments::Numbers(each) => NUMBER * each * numbers,
            Moments::Int8 => {
                let (whole, block) = (numbers - of_small.min(numbers), Int8Moments::BLOCK as u64);
                2 * (whole + NUMBER * whole.div_ceil(block)) + 2 * NUMBER * of_small
            }
        }
    }

    /// Bytes of the weights in training: all of them, or the adapter and its base. The base is packed except for tables, norms and head.
    pub fn held(&self) -> u64 {
        let Some(adapter) = self.adapter else { return self.weights() };
        if self.device == DeviceKind::Gpu {
            return self.trained() + if adapter.shares_base { 0 } else { self.as_they_are() };
        }
        let own_head =
            if self.head == Head::Language && !self.shape.tied { self.shape.head_matrix() } else { 0 } as u64;
        let base = Self { head: Head::SCALAR, ..*self }.packed(self.weights) + self.unpacked() + NUMBER * own_head;
        self.trained() + if adapter.shares_base { 0 } else { base }
    }

    /// Bytes of the weights that enter products, packed for repeated use: those of the blocks and of the LM head, tied or not. A weight
    /// takes four bytes, two in bf16, one in INT8. In NF4 it takes about half a byte, and the head's weights two.
    pub fn packed(&self, weights: WeightFormat) -> u64 {
        let head = if self.head == Head::Language { self.shape.head_matrix() } else { 0 } as u64;
        self.packed_trunk(weights) + head_format(weights).bytes(head)
    }

    /// Bytes of the weights that are never packed: tables, norms, biases.
    pub fn unpacked(&self) -> u64 {
        NUMBER * (self.shape.trunk_parameters() - self.shape.trunk_matrices()) as u64
    }

    /// Bytes of the weights of a model that is not trained.
    pub fn frozen_weights(&self) -> u64 {
        match self.adapter {
            Some(_) => self.held(),
            None if self.device == DeviceKind::Gpu => self.with_packed_head(),
            None => self.packed(self.weights) + self.unpacked(),
        }
    }

    /// Bytes of the weights that are packed for sampling: all that enter products. With an adapter, whose base is packed already, only the
    /// head. A GPU packs no weights, but it holds copies in bf16 if it multiplies in bf16.
    pub fn packed_to_sample(&self, weights: WeightFormat) -> u64 {
        match self.adapter {
            _ if self.device == DeviceKind::Gpu && !self.is_copied_to_bf16(weights) => 0,
            Some(_) if self.device == DeviceKind::Gpu => weights.bytes(self.shape.head_matrix() as u64),
            Some(_) => NUMBER * self.shape.head_matrix() as u64,
            None => self.packed(weights),
        }
    }

    /// Bytes of the weights of an untrained model on a GPU: those of its blocks in their format, the others in f32.
    fn as_they_are(&self) -> u64 {
        NUMBER * (self.parameters() - self.trunk()) + self.packed_trunk(self.weights)
    }

    /// Bytes of the weights of an untrained model on a GPU after its LM head was packed: in bf16 if the GPU multiplies in bf16. A tied head
    /// is a copy, and any other head is replaced.
    fn with_packed_head(&self) -> u64 {
        let head = if self.head == Head::Language { self.shape.head_matrix() } else { 0 } as u64;
        match (self.is_copied_to_bf16(self.weights), self.shape.tied) {
            (false, _) => self.as_they_are(),
            (true, true) => self.as_they_are() + self.weights.bytes(head),
            (true, false) => self.as_they_are() - NUMBER * head + self.weights.bytes(head),
        }
    }

    /// Whether a GPU multiplies by bf16 copies of weights in this format.
    fn is_copied_to_bf16(&self, weights: WeightFormat) -> bool {
        self.device == DeviceKind::Gpu && weights == WeightFormat::BF16 && self.compute == Precision::Bf16
    }

    /// Bytes on the host of low-bit weights that a GPU has copies of.
    pub fn kept_on_host(&self) -> u64 {
        if self.is_narrow() { self.packed_trunk(self.weights) } else { 0 }
    }

    /// Whether the weights of its blocks have fewer than 32 bits.
    fn is_narrow(&self) -> bool {
        self.shape.quantized.is_some() || self.weights != WeightFormat::F32
    }

    /// Bytes of an expanded low-bit weight during a product, at most D I numbers. Only a GPU expands whole weights; the CPU expands a
    /// section at a time.
    fn expanded(&self) -> u64 {
        match self.device {
            DeviceKind::Gpu if self.is_narrow() => NUMBER * (self.shape.width * self.shape.inner) as u64,
            _ => 0,
        }
    }

    /// Bytes of the largest tensor, 4 V D. Reading and writing hold it twice, as bytes and as numbers.
    pub fn largest_tensor(&self) -> u64 {
        NUMBER * self.shape.head_matrix().max(self.shape.width * self.shape.inner) as u64
    }

    /// Bytes that the backward pass needs from the forward pass: the inputs of every fused operation. A tensor that is the input of several
    /// operations counts once.
    ///
    /// A block stores the residual stream and its norm, twice (4 D); queries and attention's output (2 Q), keys and values (2 K),
    /// attention's normalizers (H); and the input of the activation, I, or gate and up (2 I). With norms of queries and keys it also stores
    /// their inputs (Q + K). With norms after attention and the feed-forward layer (Gemma), it also stores their inputs (2 D). If blocks
    /// are computed again, only the first residual stream of a block is stored (D).
    /// A decoder that reads an encoder's output also stores another residual stream and its norm (2 D), queries and attention's output
    /// (2 Q), normalizers (H), and keys and values of the sources (S 2 K). Each block of the encoder is like a block without such attention
    /// (S instead of N tokens), and its output is stored (S D).
    /// Then there are the last residual stream, N D, and the predicting hidden states, M D. Masks of dropout are not stored: the backward
    /// pass draws them again.
    /// A GPU that multiplies in bf16 stores what only products read in bf16: outputs of norms and of activations. The same holds for
    /// queries, keys, values and attention's output if attention runs on tensor cores. Its products also write gate and up in bf16, and the
    /// inputs of Q's and K's norms, if these are layers of their own without a bias or an adapter.
    pub fn saved(&self, pass: PassSize) -> u64 {
        let (d, _, _, _) = self.widths();
        let (n, m) = (pass.tokens as u64, pass.targets as u64);
        let last = match self.head {
            Head::Language => n * d + m * d,
            Head::Scalar(HeadLayers::Linear) | Head::Labels => 2 * n * d,
            // The input of the GELU is stored.
            Head::Scalar(HeadLayers::TwoLayer) => 3 * n * d,
        };
        let block = if self.recompute { NUMBER * self.streams() * d } else { self.block() };
        let of_encoder = pass.sources as u64 * self.encoder();
        n * self.shape.layers as u64 * block + NUMBER * last + of_encoder
    }

    /// Residual streams stored by a block that is computed again: one each for a decoder's attention and its feed-forward layer.
    fn streams(&self) -> u64 {
        if self.shape.has_encoder() { 2 } else { 1 }
    }

    /// Bytes per source token that the encoder and all blocks of the decoder store.
    fn encoder(&self) -> u64 {
        if !self.shape.has_encoder() {
            return 0;
        }
        let (d, _, k, _) = self.widths();
        let of_decoder = if self.recompute { 0 } else { 2 * k * self.shape.layers as u64 };
        let block = if self.recompute { NUMBER * d } else { self.common_block() };
        self.attended_number() * of_decoder + self.shape.encoder_layers as u64 * block + NUMBER * d
    }

    /// Bytes of a number that only products read.
    fn operand(&self) -> u64 {
        if self.is_copied_to_bf16(WeightFormat::BF16) { WeightFormat::BF16.bytes(1) } else { NUMBER }
    }

    /// Bytes of a number of attention's queries, keys, values and output.
    pub fn attended_number(&self) -> u64 {
        let on_cores = matches!(self.shape.head_dim, 64 | 128) && !matches!(self.shape.block, Block::T5 { .. });
        if on_cores { self.operand() } else { NUMBER }
    }

    /// Bytes per token that one block stores.
    fn block(&self) -> u64 {
        let (d, q, _, _) = self.widths();
        let across = match self.shape.has_encoder() {
            true => (NUMBER + self.operand()) * d + self.attended_number() * 2 * q + NUMBER * self.shape.heads as u64,
            false => 0,
        };
        self.common_block() + across
    }

    /// Bytes per token that a block without attention to sources stores.
    fn common_block(&self) -> u64 {
        let (d, q, k, i) = self.widths();
        let feed_forward = match self.shape.block {
            Block::Gpt2 { .. } | Block::Bart | Block::T5 { gated: false } | Block::Encoder { gated: false, .. } => i,
            Block::Decoder { .. } | Block::T5 { gated: true } | Block::Encoder { gated: true, .. } => 2 * i,
        };
        // Only layers of their own write bf16.
        let made = |layers: usize, has_adapter: bool, narrow: u64| match self.shape.block {
            Block::Decoder { fused: false, biases, .. } if Linear::can_be_narrow(biases[layers], has_adapter) => narrow,
            _ => NUMBER,
        };
        // An adapter is always on attention.
        let of_heads = made(0, self.adapter.is_some(), self.attended_number());
        let of_gates = made(1, self.adapter.is_some_and(|adapter| adapter.feed_forward), self.operand());
        let before_norms = if self.shape.qk_norm { of_heads * (q + k) } else { 0 };
        // The outputs of attention and the feed-forward layer are stored for the norms after them.
        let around = if matches!(self.shape.block, Block::Decoder { norms_around: true, .. }) { 2 * d } else { 0 };
        let numbers = 2 * d + self.shape.heads as u64 + around;
        let read_by_products = d + match self.adapter {
            None => d,
            // Adapted layers store their inputs: the norm's output and the activation's.
            Some(adapter) if adapter.feed_forward => d + i,
            // A frozen layer stores no input.
            Some(_) => 0,
        };
        let made_by_products = of_gates * feed_forward + before_norms;
        NUMBER * numbers
            + made_by_products
            + self.attended_number() * (2 * q + 2 * k)
            + self.operand() * read_by_products
    }

    /// Bytes that a forward pass without a backward pass holds in a block: the residual stream, plus either the feed-forward layer's
    /// tensors or queries, keys, values and two of attention's outputs.
    pub fn forward(&self, pass: PassSize) -> u64 {
        let (d, q, k, i) = self.widths();
        let feed_forward = match self.shape.block {
            Block::Gpt2 { .. } | Block::Bart | Block::T5 { gated: false } | Block::Encoder { gated: false, .. } => {
                2 * i
            }
            Block::Decoder { .. } | Block::T5 { gated: true } | Block::Encoder { gated: true, .. } => 3 * i,
        };
        // The output of attention waits for that of the feed-forward layer.
        let waiting = if matches!(self.shape.block, Block::Gpt2 { parallel: true }) { d } else { 0 };
        let block = NUMBER * pass.tokens.max(pass.sources) as u64 * (d + (feed_forward + waiting).max(3 * q + 2 * k));
        let encoded = NUMBER * pass.sources as u64 * d;
        let head = NUMBER * (pass.tokens as u64 * d + pass.targets as u64 * d) + self.logits(pass.targets, None);
        block.max(head) + encoded + self.expanded()
    }

    /// Bytes of the logits that exist at the same time, in a recorded pass or not.
    pub fn logits(&self, targets: usize, recorded: Option<Precision>) -> u64 {
        match self.head {
            Head::Language if self.whole_logits => {
                let at_once = if recorded.is_some() { WHOLE_RECORDED } else { WHOLE };
                at_once * self.row_of_logits(targets)
            }
            Head::Language if self.compared_logits => {
                let block = (BLOCK_LOGITS / self.shape.vocabulary).max(1);
                COMPARED * self.row_of_logits(targets.min(block))
            }
            Head::Language => {
                // A GPU stores no chunk for the backward pass. There, a chunk exists together with its contribution to the head's gradient.
                let (v, d) = (self.shape.vocabulary, self.shape.head_width);
                let (kept, added) = match self.device {
                    DeviceKind::Cpu => (recorded, 0),
                    DeviceKind::Gpu => (None, recorded.map_or(0, |_| d * longest_side_of_chunk(targets, v))),
                };
                // A GPU that multiplies in bf16 holds copies of the head and of the predicting states in bf16.
                let narrow = WeightFormat::BF16;
                let copies = if self.is_copied_to_bf16(narrow) { narrow.bytes(((v + targets) * d) as u64) } else { 0 };
                NUMBER * (logits_held(targets, v, kept) + added) as u64 + copies
            }
            Head::Scalar(_) | Head::Labels => 0,
        }
    }

    /// Bytes of one number for each id and target, 4 M V.
    fn row_of_logits(&self, targets: usize) -> u64 {
        NUMBER * (targets * self.shape.vocabulary) as u64
    }

    /// Bytes of the head's loss when the backward pass begins, with `head` bytes of the head's gradient.
    fn loss(&self, pass: PassSize, head: u64) -> u64 {
        let logits = self.logits(pass.targets, Some(self.compute));
        match self.whole_logits {
            // The gradient of the logits is computed before that of the head.
            true => logits.max(head + WHOLE_BEFORE_HEAD * self.row_of_logits(pass.targets)),
            false => head + logits,
        }
    }

    /// Bytes that the backward pass holds in addition to [`saved`](Self::saved) when it begins: logits, the gradient of the hidden states
    /// (M D) and that of the head (V D). A little later, it holds the top block's recomputed activation and the gradients of its
    /// feed-forward layer (N (2 I + 2 D), with gate and up N (3 I + 2 D)) in addition to the head's. If the block is computed again, it
    /// also holds everything that the block stores.
    pub fn backward_begin(&self, pass: PassSize) -> u64 {
        let (d, _, _, i) = self.widths();
        let (n, m) = (pass.tokens.max(pass.sources) as u64, pass.targets as u64);
        let head = match (self.head, self.adapter) {
            (Head::Language, None) => NUMBER * self.shape.head_matrix() as u64,
            _ => 0,
        };
        let matrix = if self.adapter.is_some() { 0 } else { i * d };
        let block = match self.shape.block {
            Block::Gpt2 { .. } | Block::Bart | Block::T5 { gated: false } | Block::Encoder { gated: false, .. } => {
                n * (2 * i + 2 * d) + matrix
            }
            Block::Decoder { .. } | Block::T5 { gated: true } | Block::Encoder { gated: true, .. } => {
                n * (3 * i + 2 * d) + matrix
            }
        };
        // If gate and up are one layer, their gradients are joined: the first becomes a tensor as wide as both, then the second does (5 I in
        // total, instead of 3 I). An adapter's stored tensors of the block are freed by then.
        let joined = match self.shape.block {
            Block::Decoder { fused: true, .. } if self.recompute || self.adapter.is_none() => 2 * i * n + matrix,
            _ => 0,
        };
        let again = if self.recompute { n * self.block() } else { 0 } + NUMBER * joined;
        (self.loss(pass, head) + NUMBER * m * d).max(head + NUMBER * block + again + self.expanded())
    }

    /// Bytes that the backward pass holds when it ends: the gradients of all weights (4 P), that of the embedding table before it is added
    /// to the head's (V D), and those of the tokens' embeddings (N D).
    pub fn backward_end(&self, pass: PassSize) -> u64 {
        if self.adapter.is_some() {
            return self.trained() + NUMBER * (pass.tokens + pass.sources) as u64 * self.shape.width as u64;
        }
        let table = if self.head == Head::Language && self.shape.tied { self.shape.head_matrix() as u64 } else { 0 };
        self.weights() + NUMBER * (table + (pass.tokens + pass.sources) as u64 * self.shape.width as u64)
    }

    /// D, Q, K, I.
    fn widths(&self) -> (u64, u64, u64, u64) {
        let shape = &self.shape;
        (shape.width as u64, shape.q_width() as u64, shape.kv_width() as u64, shape.inner as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ModelDir;
    use serde_json::json;

    fn model(config: serde_json::Value) -> Model {
        let config = config.as_object().expect("an object").clone();
        Model::language(ModelShape::of(&ModelDir::unsaved(config)).expect("a known family"), WeightFormat::F32)
    }

    #[test]
    fn a_gpt2_by_hand() {
        let model = model(json!({
            "model_type": "gpt2", "vocab_size": 100, "n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 10
        }));
        // Tables 110·8, blocks 2·(12·64 + 13·8), last norm 16.
        assert_eq!(model.weights(), 4 * (880 + 2 * 872 + 16));
        // A block stores 8·8 + 2 + 32 = 98 numbers per token. Add the last residual stream and 3 predicting states.
        assert_eq!(model.saved(PassSize { tokens: 5, targets: 3, sources: 0 }), 4 * (5 * 2 * 98 + 5 * 8 + 3 * 8));
        // Whole rows of logits: five numbers per id during the loss, three without a backward pass.
        let whole = Model { whole_logits: true, ..model };
        assert_eq!((whole.logits(30, None), whole.logits(30, Some(Precision::F32))), (4 * 3 * 3000, 4 * 5 * 3000));
        assert_eq!(whole.backward_begin(PassSize { tokens: 30, targets: 30, sources: 0 }), 4 * (5 * 3000 + 30 * 8));
        assert_eq!(Model { whole_logits: true, ..Model::scalar(model.shape, WeightFormat::F32) }.logits(30, None), 0);
        let again = Model { recompute: true, ..model };
        assert_eq!(again.saved(PassSize { tokens: 5, targets: 3, sources: 0 }), 4 * (5 * 2 * 8 + 5 * 8 + 3 * 8));
        assert_eq!(again.backward_begin(PassSize { tokens: 5, targets: 3, sources: 0 }), 4 * (800 + 656 + 5 * 98));
        assert_eq!(model.logits(3, None), 4 * 300);
        // The head's gradient, and the larger of (logits, hidden states) and the top block's tensors, 5·80 + 256.
        assert_eq!(model.backward_begin(PassSize { tokens: 5, targets: 3, sources: 0 }), 4 * (800 + 656));
        assert_eq!(
            model.backward_end(PassSize { tokens: 5, targets: 3, sources: 0 }),
            model.weights() + 4 * (800 + 40)
        );
        let scalar = Model::scalar(model.shape, WeightFormat::BF16);
        assert_eq!((scalar.weights(), scalar.logits(3, None)), (model.weights() + 4 * 8, 0));
        // Blocks and head are packed, in four bytes or two; tables, biases and norms are not.
        assert_eq!(model.packed(WeightFormat::F32), 4 * (2 * 768 + 800));
        assert_eq!((scalar.packed(WeightFormat::BF16), scalar.packed(WeightFormat::INT8)), (2 * 2 * 768, 2 * 768));
        assert_eq!(model.packed(WeightFormat::NF4), 2 * 768 * 33 / 64 + 2 * 800);
        let mut quantized = model;
        quantized.shape.quantized = Some(crate::model::Quantization::Nf4);
        assert_eq!(quantized.packed(WeightFormat::F32), 2 * 768 * 33 / 64 + 4 * 800);
        assert_eq!(model.weights() - quantized.weights(), 4 * 2 * 768 - 2 * 768 * 33 / 64);
        assert_eq!(scalar.frozen_weights(), 2 * 2 * 768 + 4 * (880 + 2 * 104 + 16));
        // No tensor has 4,096 numbers.
        assert_eq!(model.moments(Moments::Int8), model.moments(Moments::Numbers(2)));
        assert_eq!(model.moments(Moments::Numbers(2)), 2 * model.weights());
    }

    #[test]
    fn a_gpu_holds_copies_in_bf16_by_hand() {
        let of = |compute| {
            let config = json!({
                "model_type": "gpt2", "vocab_size": 100, "n_positions": 64, "n_embd": 16, "n_layer": 2, "n_head": 4,
            });
            Model { device: DeviceKind::Gpu, compute, weights: WeightFormat::BF16, ..model(config) }
        };
        let (plain, narrow) = (of(Precision::F32), of(Precision::Bf16));
        // Heads of 4 are not on tensor cores, so only the two norms' outputs have two bytes a number.
        let pass = PassSize { tokens: 5, targets: 3, sources: 0 };
        assert_eq!(plain.saved(pass) - narrow.saved(pass), 5 * 2 * 2 * (16 + 16));
        let wide = |mut model: Model| {
            (model.shape.heads, model.shape.kv_heads, model.shape.head_dim) = (2, 2, 64);
            model.saved(pass)
        };
        assert_eq!(wide(plain) - wide(narrow), 5 * 2 * 2 * (16 + 16 + 4 * 128));
        // Gate and up, and Q and K before their norms, unless a bias is added to them.
        for (attention_bias, mlp_bias) in [(false, false), (true, false), (false, true), (true, true)] {
            let saved = |compute| {
                let config = json!({
                    "model_type": "qwen3", "vocab_size": 100, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
                    "num_key_value_heads": 1, "head_dim": 64, "intermediate_size": 48, "max_position_embeddings": 64,
                    "attention_bias": attention_bias, "mlp_bias": mlp_bias,
                });
                Model { device: DeviceKind::Gpu, compute, weights: WeightFormat::BF16, ..model(config) }.saved(pass)
            };
            let [q, k] = [128, 64];
            let before_norms = if attention_bias { 0 } else { q + k };
            let of_gates = if mlp_bias { 0 } else { 2 * 48 };
            let halved = 16 + 16 + 2 * q + 2 * k + before_norms + of_gates;
            assert_eq!(saved(Precision::F32) - saved(Precision::Bf16), 5 * 2 * 2 * halved);
        }
        let (head, states) = (2 * 100 * 16, 2 * 7 * 16);
        for recorded in [None, Some(Precision::Bf16)] {
            assert_eq!(narrow.logits(7, recorded), plain.logits(7, recorded) + head + states);
        }
        // The head is tied, so the embedding stays in f32 beside the copy.
        assert_eq!(narrow.frozen_weights(), plain.frozen_weights() + head);
        let untied = |mut model: Model| {
            model.shape.tied = false;
            model.frozen_weights()
        };
        assert_eq!(untied(narrow), untied(plain) - head);
        assert_eq!((plain.packed_to_sample(WeightFormat::BF16), narrow.packed_to_sample(WeightFormat::F32)), (0, 0));
        assert_eq!(narrow.packed_to_sample(WeightFormat::BF16), 2 * narrow.trunk() + head);
        let adapter = Adapter { numbers: 10, of_small: 10, feed_forward: false, shares_base: false };
        let adapted = Model { adapter: Some(adapter), ..narrow };
        assert_eq!(adapted.packed_to_sample(WeightFormat::BF16), head);
    }

    #[test]
    fn moments_in_eight_bits_by_hand() {
        let model = model(json!({
            "model_type": "gpt2", "vocab_size": 1000, "n_embd": 64, "n_layer": 1, "n_head": 2, "n_positions": 16
        }));
        // Positions 16·64, biases and norms 13·64 and 2·64 are small. The table and four matrices are not.
        let (whole, small) = (64_000 + 12 * 4096, 1024 + 13 * 64 + 128);
        assert_eq!(model.weights(), 4 * (whole + small));
        assert_eq!(model.moments(Moments::Int8), 2 * whole + 2 * 4 * whole.div_ceil(256) + 8 * small);
    }

    #[test]
    fn a_t5_by_hand() {
        let model = model(json!({
            "model_type": "t5", "vocab_size": 100, "d_model": 8, "d_kv": 3, "d_ff": 20, "num_layers": 2,
            "num_decoder_layers": 1, "num_heads": 4, "decoder_start_token_id": 0
        }));
        // Table 800; two blocks of 4·8·12 + 2·8·20, one with attention twice; norms 7 + 2; biases 2·32·4.
        assert_eq!(model.weights(), 4 * (800 + 2 * 704 + 1088 + 9 * 8 + 256));
        // A block stores 4·8 + 4·12 + 4 + 20 = 104 numbers. The decoder's block adds 2·8 + 2·12 + 4 = 44, and 24 per source token.
        let pass = PassSize { tokens: 5, targets: 3, sources: 7 };
        assert_eq!(model.saved(pass), 4 * (5 * 148 + 5 * 8 + 3 * 8 + 7 * (2 * 104 + 24 + 8)));
        let again = Model { recompute: true, ..model };
        assert_eq!(again.saved(pass), 4 * (5 * 16 + 5 * 8 + 3 * 8 + 7 * (2 * 8 + 8)));
        // A second target computes nothing of the source again.
        assert_eq!(model.saved(PassSize { sources: 0, ..pass }), 4 * (5 * 148 + 5 * 8 + 3 * 8));
    }

    #[test]
    fn a_qwen3_by_hand() {
        let model = model(json!({
            "model_type": "qwen3", "vocab_size": 100, "hidden_size": 8, "intermediate_size": 20, "head_dim": 3,
            "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": false
        }));
        // Table and head 2·800; queries 8·12, keys and values 2·8·6, output 12·8, 3·8·20, norms 16 + 6, last norm 8.
        assert_eq!(model.weights(), 4 * (1600 + 96 + 96 + 96 + 480 + 22 + 8));
        // 4·8 + 2·12 + 2·6 + 4 + 2·20, and 12 + 6 for the inputs of the norms of queries and keys.
        assert_eq!(model.saved(PassSize { tokens: 7, targets: 0, sources: 0 }), 4 * (7 * (112 + 18) + 7 * 8));
    }
}
