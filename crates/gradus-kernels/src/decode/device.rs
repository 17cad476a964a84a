//! The cache as plain tensors, on devices without fused kernels.

use std::collections::BTreeMap;
use std::ops::Range;

use burn::tensor::Tensor;

use super::{Keys, Memory, Pass};
use crate::attention::PositionBias;
use crate::attention::reference::{Sequence, of_sequences};

/// Keys and values of consecutive tokens, `[T, kv_heads · head_dim]` each.
#[derive(Debug, Clone, Default)]
pub(super) struct Stretch(Option<[Tensor<2>; 2]>);

impl Stretch {
    fn new(keys_and_values: [Tensor<2>; 2], tokens: Range<usize>) -> Self {
        let rows = |x: Tensor<2>| x.narrow(0, tokens.start, tokens.len());
        Self((!tokens.is_empty()).then(|| keys_and_values.map(rows)))
    }

    pub(super) fn length(&self) -> usize {
        self.0.as_ref().map_or(0, |[keys, _]| keys.dims()[0])
    }
}

impl Memory<Stretch> {
    /// Stores keys and values of prompts, the first of which is numbered `first`.
    pub(super) fn put_prompts(&mut self, first: usize, prompts: &[Range<usize>], parts: [Tensor<2>; 2]) {
        let parts = parts.map(Tensor::inner);
        let stretches = prompts.iter().map(|tokens| Stretch::new(parts.clone(), tokens.clone()));
        self.prompts.extend((first..).zip(stretches));
    }

    /// Gives slot `to` the first `length` tokens of slot `from`.
    pub(super) fn copy_slot(&mut self, from: usize, to: usize, length: usize) {
        self.slots[to] = match self.slots[from].0.clone() {
            Some(original) => Stretch::new(original, 0..length),
            None => Stretch::default(),
        };
    }

    /// Stores keys and values of new tokens.
    pub(super) fn put(&mut self, pass: &Pass<'_>, parts: [Tensor<2>; 2]) {
        let (parts, run_of_slot) = (parts.map(Tensor::inner), self.make_slots(pass.rows, &pass.runs));
        for (slot, run) in self.slots.iter_mut().zip(run_of_slot) {
            let Some(run) = run else { continue };
            // The slot may hold more: of a row that has ended.
            let kept = slot.0.take().map(|kept| Stretch::new(kept, 0..pass.rows[run.start].length));
            let kept = kept.and_then(|kept| kept.0);
            let Stretch(added) = Stretch::new(parts.clone(), run);
            slot.0 = match (kept, added) {
                (Some([k, v]), Some([more_k, more_v])) => {
                    Some([Tensor::cat(vec![k, more_k], 0), Tensor::cat(vec![v, more_v], 0)])
                }
                (kept, added) => added.or(kept),
            };
        }
    }

    /// What every token attends to, `[B, H · head_dim]`.
    pub(super) fn attend(&self, pass: &Pass<'_>, q_bd: Tensor<2>) -> Tensor<2> {
        let (q_bd, mut parts, mut rows) = (q_bd.inner(), Parts::default(), BTreeMap::new());
        let sequences: Vec<Sequence> = pass
            .runs
            .iter()
            .map(|run| {
                let row = &pass.rows[run.start];
                let prompt = self.prompt(row.prompt);
                let mut keys = vec![rows.entry(row.prompt).or_insert_with(|| parts.add(prompt)).clone()];
                if pass.keys == Keys::Row {
                    keys.push(parts.add(&self.slots[row.slot]));
                }
                let [position, _] = pass.keys.place(row, prompt.length());
                Sequence { queries: run.clone(), position, keys, global: Vec::new() }
            })
            .collect();
        let [keys, values] = [parts.keys, parts.values].map(|parts| match parts.is_empty() {
            true => Tensor::zeros([0, pass.shape.widths()[1]], &q_bd.device()),
            false => Tensor::cat(parts, 0),
        });
        let bias = pass.bias.map(|PositionBias { weight_hr, buckets }| PositionBias {
            weight_hr: weight_hr.clone().inner(),
            buckets: buckets.clone(),
        });
        of_sequences([q_bd, keys, values], bias.as_ref(), sequences.into_iter(), pass.shape)
    }
}

/// Keys and values of several stretches, which become one tensor each.
#[derive(Default)]
struct Parts {
    keys: Vec<Tensor<2>>,
    values: Vec<Tensor<2>>,
    tokens: usize,
}

impl Parts {
    /// Where the tokens of `stretch` come to lie.
    fn add(&mut self, stretch: &Stretch) -> Range<usize> {
        let from = self.tokens;
        if let Stretch(Some([keys, values])) = stretch {
            self.keys.push(keys.clone());
            self.values.push(values.clone());
            self.tokens += stretch.length();
        }
        from..self.tokens
    }
}
