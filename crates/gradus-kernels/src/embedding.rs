//! Embedding lookup: row `ids[n]` of the table. The backward pass adds each token's gradient to the row of its id.

use std::sync::Arc;

use burn::tensor::{Int, Tensor, TensorData};

use crate::fused::{Dense, Op, apply, supports};
use crate::parts::{one_in_parts, part_of, zeros};

/// Rows per parallel task.
const ROWS: usize = 64;

/// Returns the rows `ids_n` of `weight_vd`, `[N, D]`. The table carries gradient.
///
/// # Panics
/// If an id is outside the table.
pub fn embedding(weight_vd: Tensor<2>, ids_n: &[u32]) -> Tensor<2> {
    let [v, _] = weight_vd.dims();
    assert!(ids_n.iter().all(|&id| (id as usize) < v), "an id lies outside the table of {v} rows");
    let op = Embedding { ids: ids_n.into(), rows: v };
    if supports(&op, &weight_vd.device(), weight_vd.dtype()) {
        apply(op, vec![weight_vd.into_dispatch()])
    } else {
        reference(weight_vd, ids_n)
    }
}

/// The definition, in plain tensors.
pub fn reference(weight_vd: Tensor<2>, ids_n: &[u32]) -> Tensor<2> {
    let ids: Vec<i32> = ids_n.iter().map(|&id| id as i32).collect();
    let ids = Tensor::<1, Int>::from_data(TensorData::new(ids, [ids_n.len()]), &weight_vd.device());
    weight_vd.select(0, ids)
}

#[derive(Debug)]
pub(crate) struct Embedding {
    pub(crate) ids: Arc<[u32]>,
    pub(crate) rows: usize,
}

impl Op for Embedding {
    fn forward(&self, inputs: &[Dense]) -> (Dense, Vec<Dense>) {
        let (table, d) = (inputs[0].values(), inputs[0].dims()[1]);
        let output = one_in_parts(self.ids.len() * d, ROWS * d, |i, output| {
            for (row, &id) in output.chunks_exact_mut(d).zip(part_of(&self.ids, i, ROWS)) {
                row.copy_from_slice(part_of(table, id as usize, d));
            }
        });
        (Dense::new(output, &[self.ids.len(), d]), Vec::new())
    }

    fn backward(&self, _: &[Dense], grad: &Dense, _: &[bool]) -> Vec<Option<Dense>> {
        let d = grad.dims()[1];
        let mut table = zeros(self.rows * d);
        for (&id, row) in self.ids.iter().zip(grad.values().chunks_exact(d)) {
            let target = &mut table[id as usize * d..(id as usize + 1) * d];
            target.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
        }
        vec![Some(Dense::new(table, &[self.rows, d]))]
    }

    #[cfg(feature = "gpu")]
    fn on_gpu(&self) -> Option<&dyn crate::gpu::GpuOp> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fused::testing::{check, given, host, leaf};

    #[test]
    fn agrees_with_the_reference() {
        let ids = [3, 0, 3, 4, 1, 3];
        check(
            "embedding",
            &[leaf([5, 7], 1)],
            |x| embedding(x[0].clone(), &ids),
            |x| reference(x[0].clone(), &ids),
            1e-6,
        );
        check(
            "one token",
            &[leaf([1, 1], 1)],
            |x| embedding(x[0].clone(), &[0]),
            |x| reference(x[0].clone(), &[0]),
            0.0,
        );
    }

    #[test]
    fn rows_are_copied_as_they_are_and_gradients_add_up() {
        let table = given([2, 2], &[1e38, -1e-40, f32::NEG_INFINITY, -0.0]);
        let rows = embedding(table.clone(), &[1, 0, 1]);
        let expected = [f32::NEG_INFINITY, -0.0, 1e38, -1e-40, f32::NEG_INFINITY, -0.0];
        assert_eq!(host(rows.clone().inner()), expected);
        assert_eq!(host(table.grad(&rows.backward()).expect("gradient")), [1.0, 1.0, 2.0, 2.0]);
    }
}
