//! What a model says comes next: the one place where sampling computes logits, whatever the model.

use std::ops::Range;

use burn::tensor::Tensor;
use gradus_kernels::CacheRow;

use crate::model::{CausalLm, Context, KvCache, select_rows};

/// A model with a cache of prompts, which are numbered in the order they are computed, and of rows that continue them.
///
/// Of a model without an encoder, the cache holds the tokens of a prompt. Of a model with one it holds what its decoder
/// attends to: the encoded prompt, and the id that the decoder begins with, which all rows share.
pub(super) struct Next {
    model: CausalLm,
    cache: KvCache,
    /// Prompts computed so far.
    prompts: usize,
}

/// An id that a row has got since it was last computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NewToken {
    pub id: u32,
    /// Where it stands among the row's ids.
    pub position: u32,
    /// Where its keys and values go.
    pub row: CacheRow,
}

impl Next {
    /// A cache for `slots` rows that have room for `capacity` new tokens each, and get more when they need it. Weights are
    /// packed as the model computes, unless they are already frozen.
    pub fn new(model: &CausalLm, slots: usize, capacity: usize) -> Self {
        let model = model.clone().into_frozen(model.compute().into());
        Self { cache: model.new_cache(slots, capacity), model, prompts: 0 }
    }

    pub fn model(&self) -> &CausalLm {
        &self.model
    }

    /// Whether prompts are read by an encoder, and rows begin anew.
    pub fn has_encoder(&self) -> bool {
        self.model.trunk.decoder_start().is_some()
    }

    /// The ids that a row of `prompt` begins with, and how many of them are in the cache once the first `computed` ids of
    /// the prompt are computed.
    pub fn given(&self, prompt: &[u32], computed: usize) -> (Vec<u32>, usize) {
        match self.model.trunk.decoder_start() {
            Some(start) => (vec![start], 1),
            None => (prompt.to_vec(), computed),
        }
    }

    /// Computes prompts; returns their numbers, and the logits of what comes after each, one line a prompt.
    pub fn after_prompts(&mut self, prompts: &[&[u32]]) -> (Range<usize>, Vec<f32>) {
        let input = self.model.trunk.prompts(prompts);
        let mut context = Context::Prefill { input: &input, cache: &mut self.cache };
        let hidden_nd = self.model.trunk.forward(&mut context);
        let numbers = self.prompts..self.prompts + prompts.len();
        self.prompts = numbers.end;
        (numbers, host(self.model.logits_of(select_rows(hidden_nd, &input.packed.last_indices()))))
    }

    /// Computes new tokens of rows, those of a row next to each other; returns the logits of what comes after those that
    /// `ends` names, one line each.
    pub fn after(&mut self, tokens: &[NewToken], ends: &[usize]) -> Vec<f32> {
        let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
        let positions: Vec<u32> = tokens.iter().map(|token| token.position).collect();
        let rows: Vec<CacheRow> = tokens.iter().map(|token| token.row).collect();
        let mut context = Context::Decode { ids: &ids, positions: &positions, rows: &rows, cache: &mut self.cache };
        let hidden_nd = self.model.trunk.forward(&mut context);
        let hidden_bd = if ends.len() < ids.len() { select_rows(hidden_nd, ends) } else { hidden_nd };
        host(self.model.logits_of(hidden_bd))
    }

    /// Gives slots what others hold of rows that have added `length` tokens: `(from, to)` each.
    pub fn copy_slots(&mut self, copies: &[(usize, usize)], length: usize) {
        self.cache.copy_slots(copies, length);
    }

    /// Forgets a prompt that no row continues any more.
    pub fn drop_prompt(&mut self, prompt: usize) {
        self.cache.drop_prompt(prompt);
    }
}

fn host(tensor: Tensor<2>) -> Vec<f32> {
    tensor.into_data().try_into_vec().expect("f32 logits")
}
