//! Logits of the next token: the only place where sampling runs a model.

use std::ops::Range;

use burn::tensor::Tensor;
use gradus_kernels::{CacheRow, draws};

use crate::model::{CausalLm, Context, KvCache, select_rows};

/// A model with a cache of prompts, numbered in the order they are computed, and of rows that continue them.
///
/// For a model without an encoder, the cache holds the tokens of a prompt. For an encoder–decoder, it holds what the
/// decoder attends to: the encoded prompt and the decoder's start id, which all rows share.
pub(super) struct Next {
    model: CausalLm,
    cache: KvCache,
    /// Number of prompts computed so far.
    prompts: usize,
}

/// An id that was added to a row since its last pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NewToken {
    pub id: u32,
    /// Position among the row's ids.
    pub position: u32,
    /// Place of its keys and values.
    pub row: CacheRow,
}

/// Logits of the next token, one line per row.
#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "only two or three exist at a time")]
pub(super) enum Lines {
    /// On a device that draws the next token itself, `[B, V]`.
    Device(Tensor<2>),
    /// On the host, with this vocabulary.
    Host(Vec<f32>, usize),
}

impl Lines {
    fn new(logits_bv: Tensor<2>) -> Self {
        let [_, vocabulary] = logits_bv.dims();
        match draws(&logits_bv) {
            true => Self::Device(logits_bv),
            false => Self::Host(host(logits_bv), vocabulary),
        }
    }

    /// Returns the numbers of all lines.
    pub fn into_host(self) -> Vec<f32> {
        match self {
            Self::Device(logits_bv) => host(logits_bv),
            Self::Host(values, _) => values,
        }
    }

    /// Returns the lines `indices`, in this order.
    pub fn select(&self, indices: &[usize]) -> Self {
        match self {
            Self::Device(logits_bv) => Self::Device(select_rows(logits_bv.clone(), indices)),
            Self::Host(values, vocabulary) => {
                let lines = indices.iter().flat_map(|&i| &values[i * vocabulary..(i + 1) * vocabulary]);
                Self::Host(lines.copied().collect(), *vocabulary)
            }
        }
    }

    /// Returns these lines followed by `others`, which are in the same place.
    pub fn followed_by(self, others: Self) -> Self {
        match (self, others) {
            (Self::Device(a), Self::Device(b)) => Self::Device(Tensor::cat(vec![a, b], 0)),
            (Self::Host(mut values, vocabulary), others) => {
                values.extend(others.into_host());
                Self::Host(values, vocabulary)
            }
            (Self::Device(_), Self::Host(..)) => unreachable!("a model is on one device"),
        }
    }
}

impl Next {
    /// Creates a cache for `slots` rows. Each has room for `capacity` new tokens, and more when needed. Weights are
    /// packed in the model's compute format, unless they are already frozen.
    pub fn new(model: &CausalLm, slots: usize, capacity: usize) -> Self {
        let model = model.clone().into_frozen(model.compute().into());
        Self { cache: model.new_cache(slots, capacity), model, prompts: 0 }
    }

    pub fn model(&self) -> &CausalLm {
        &self.model
    }

    /// Whether an encoder reads the prompts, so that rows start with the decoder's start id.
    pub fn has_encoder(&self) -> bool {
        self.model.trunk.decoder_start().is_some()
    }

    /// Returns the ids that a row of `prompt` starts with, and how many of them are in the cache once the first
    /// `computed` ids of the prompt are.
    pub fn given(&self, prompt: &[u32], computed: usize) -> (Vec<u32>, usize) {
        match self.model.trunk.sampling_start() {
            Some(start) => (vec![start], 1),
            None => (prompt.to_vec(), computed),
        }
    }

    /// Computes prompts. Returns their numbers and the next-token logits of each, one line per prompt.
    pub fn after_prompts(&mut self, prompts: &[&[u32]]) -> (Range<usize>, Lines) {
        let input = self.model.trunk.prompts(prompts);
        let mut context = Context::Prefill { input: &input, cache: &mut self.cache };
        let hidden_nd = self.model.trunk.forward(&mut context);
        let numbers = self.prompts..self.prompts + prompts.len();
        self.prompts = numbers.end;
        (numbers, Lines::new(self.model.logits_of(select_rows(hidden_nd, &input.packed.last_indices()))))
    }

    /// Computes new tokens of rows; those of one row are adjacent. Returns the next-token logits after the tokens with
    /// indices `ends`, one line each.
    pub fn after(&mut self, tokens: &[NewToken], ends: &[usize]) -> Lines {
        let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
        let positions: Vec<u32> = tokens.iter().map(|token| token.position).collect();
        let rows: Vec<CacheRow> = tokens.iter().map(|token| token.row).collect();
        let mut context = Context::Decode { ids: &ids, positions: &positions, rows: &rows, cache: &mut self.cache };
        let hidden_nd = self.model.trunk.forward(&mut context);
        let hidden_bd = if ends.len() < ids.len() { select_rows(hidden_nd, ends) } else { hidden_nd };
        Lines::new(self.model.logits_of(hidden_bd))
    }

    /// Copies the first `length` added tokens of slots; each copy is `(from, to)`.
    pub fn copy_slots(&mut self, copies: &[(usize, usize)], length: usize) {
        self.cache.copy_slots(copies, length);
    }

    /// Drops a prompt that no row uses any more.
    pub fn drop_prompt(&mut self, prompt: usize) {
        self.cache.drop_prompt(prompt);
    }
}

fn host(tensor: Tensor<2>) -> Vec<f32> {
    tensor.into_data().try_into_vec().expect("f32 logits")
}
