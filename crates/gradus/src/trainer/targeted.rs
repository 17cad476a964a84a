//! Passes over texts with targets at each id.

use std::iter::repeat_n;

use burn::tensor::Tensor;

use super::Targeted;
use crate::host::read;
use crate::model::{CausalLm, Rows, Sequence, Targets};

/// Copies the values of a tensor without gradient to the host.
pub(super) fn values_of(tensor: Tensor<1>) -> Vec<f32> {
    tensor.into_data_as::<f32>().try_into_vec().expect("the data was just converted to f32")
}

/// Positions and ids of the targets of a pass, in order. The targets of a position are adjacent.
pub(super) struct Places {
    positions: Vec<usize>,
    ids: Vec<u32>,
}

impl Places {
    /// Divides the targets into those of positions where some target `carries` a loss, and those of the others.
    pub(super) fn divide(&self, carries: impl Fn(usize) -> bool) -> (Vec<usize>, Vec<usize>) {
        let (mut learned, mut rest, mut first) = (Vec::new(), Vec::new(), 0);
        for same in self.positions.chunk_by(|a, b| a == b) {
            let own = first..first + same.len();
            first = own.end;
            let to = if own.clone().any(&carries) { &mut learned } else { &mut rest };
            to.extend(own);
        }
        (learned, rest)
    }

    /// Returns all targets.
    pub(super) fn all(self) -> Targets {
        let counts_b = vec![self.ids.len()];
        Targets { positions: self.positions, ids: self.ids, counts_b, supports_m: Vec::new() }
    }

    /// Selects some of the targets.
    pub(super) fn at(&self, chosen: &[usize]) -> Targets {
        Targets {
            positions: chosen.iter().map(|&at| self.positions[at]).collect(),
            ids: chosen.iter().map(|&at| self.ids[at]).collect(),
            counts_b: vec![chosen.len()],
            supports_m: Vec::new(),
        }
    }
}

/// Minimum length of a common prefix that texts share, because splitting it off has a cost.
const SHARED_MIN: usize = 16;

/// Computes the final hidden states of `rows`, and the places of their targets.
pub(super) fn hidden_of(model: &CausalLm, rows: &[Targeted]) -> (Tensor<2>, Places) {
    let common = |a: &[u32], b: &[u32]| a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let mut groups: Vec<Vec<Sequence<'_>>> = Vec::new();
    let mut shared = 0;
    for row in rows {
        let begins = groups.last().map_or(0, |group| common(&group[0].target[..shared], &row.ids));
        match groups.last_mut() {
            Some(group) if begins >= SHARED_MIN && 2 * begins >= shared.min(row.ids.len()) => {
                group.push(Sequence::scored(&row.ids));
                shared = begins;
            }
            _ => {
                groups.push(vec![Sequence::scored(&row.ids)]);
                shared = row.ids.len();
            }
        }
    }
    let batch = model.batch(&Rows::Groups(groups));
    let packed = batch.packed();
    let (mut positions, mut ids) = (Vec::new(), Vec::new());
    for (i, row) in rows.iter().enumerate() {
        positions.extend(row.counts().enumerate().flat_map(|(at, count)| repeat_n(packed.index(i, at), count)));
        ids.extend_from_slice(&row.targets);
    }
    (model.hidden(&batch), Places { positions, ids })
}

/// Writes the values of some places to their positions in `all`.
pub(super) fn scatter(all: &mut [f32], places: &[usize], values_m: &Tensor<1>) {
    let values = if values_m.is_autodiff() { read(values_m) } else { values_of(values_m.clone()) };
    places.iter().zip(values).for_each(|(&at, value)| all[at] = value);
}

/// Splits the values of all targets by row.
pub(super) fn per_row<'a>(rows: &'a [Targeted], mut values: &'a [f32]) -> impl Iterator<Item = Vec<f32>> + 'a {
    rows.iter().map(move |row| {
        let (own, rest) = values.split_at(row.targets.len());
        values = rest;
        own.to_vec()
    })
}
