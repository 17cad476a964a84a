//! Embedding lookup, one unit per element. The gradient sums the rows of each id in the order of the tokens.

use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{
    Before, GpuOp, InputGradients, UNITS, Words, arg, dims, element, elements, empty, grid, grid_of_units, zeros,
};
use crate::embedding::Embedding;

#[cube(launch)]
fn gather<F: Float>(table: &[F], ids: &[u32], rows: &mut [F], width: u32, #[define(F)] _dtype: ElemType) {
    if ABSOLUTE_POS < rows.len() {
        let (row, at) = (ABSOLUTE_POS / (width as usize), ABSOLUTE_POS % (width as usize));
        rows[ABSOLUTE_POS] = table[ids[row] as usize * (width as usize) + at];
    }
}

/// Runs one cube per [`UNITS`] columns of each id. `ids` lists the ids that occur; the rows of the i-th are
/// `order[starts[i]..starts[i + 1]]`.
#[cube(launch)]
fn scatter<F: Float>(
    grad: &[F],
    ids: &[u32],
    starts: &[u32],
    order: &[u32],
    table: &mut [F],
    width: u32,
    blocks: u32,
    #[define(F)] _dtype: ElemType,
) {
    let (d, entry) = (width as usize, CUBE_POS / (blocks as usize));
    let at = (CUBE_POS % (blocks as usize)) * comptime!(UNITS as usize) + UNIT_POS as usize;
    if entry < ids.len() && at < d {
        let mut sum = 0.0f32;
        let mut i = starts[entry] as usize;
        while i < starts[entry + 1] as usize {
            sum += f32::cast_from(grad[order[i] as usize * d + at]);
            i += 1;
        }
        table[ids[entry] as usize * d + at] = F::cast_from(sum);
    }
}

impl GpuOp for Embedding {
    fn forward(&self, inputs: Vec<CubeTensor>) -> (CubeTensor, Vec<CubeTensor>) {
        let table = &inputs[0];
        let [_, d] = dims(table);
        let rows = empty(table, &[self.ids.len(), d], table.dtype);
        if elements(&rows) > 0 {
            let (grid, ids) = (grid_of_units(elements(&rows)), Words::new(&table.client, &self.ids));
            let units = CubeDim::new_1d(UNITS);
            gather::launch(&table.client, grid, units, arg(table), ids.arg(), arg(&rows), d as u32, element(table));
        }
        (rows, Vec::new())
    }

    fn backward(&self, _: &[CubeTensor], grad: CubeTensor, _: &[bool], _: Before) -> InputGradients {
        let [_, d] = dims(&grad);
        let table = zeros(&grad, &[self.rows, d], grad.dtype);
        if elements(&grad) > 0 {
            let mut order: Vec<u32> = (0..self.ids.len() as u32).collect();
            order.sort_by_key(|&row| self.ids[row as usize]);
            let (mut ids, mut starts) = (Vec::new(), Vec::new());
            for (i, &row) in order.iter().enumerate() {
                let id = self.ids[row as usize];
                if ids.last() != Some(&id) {
                    ids.push(id);
                    starts.push(i as u32);
                }
            }
            starts.push(order.len() as u32);
            let (client, blocks) = (&grad.client, d.div_ceil(UNITS as usize));
            let [of_ids, starts, order] = [&ids, &starts, &order].map(|words| Words::new(client, words));
            scatter::launch(
                client,
                grid(ids.len() * blocks),
                CubeDim::new_1d(UNITS),
                arg(&grad),
                of_ids.arg(),
                starts.arg(),
                order.arg(),
                arg(&table),
                d as u32,
                blocks as u32,
                element(&grad),
            );
        }
        vec![Some(table)]
    }
}

#[cfg(feature = "cuda")]
pub(super) fn offline(offline: &super::offline::Offline) -> Vec<super::offline::Source> {
    let mut sources = Vec::new();
    for dtype in offline.dtypes() {
        let ([a, b, c], settings) = (offline.buffers(), offline.settings(UNITS));
        let kernel = gather::Gather::new(settings, offline.device(), offline.target(), a, b, c, (), dtype);
        sources.push(offline.source("embedding forward", dtype, &kernel));
        let ([a, b, c, d, e], settings) = (offline.buffers(), offline.settings(UNITS));
        let (device, target) = (offline.device(), offline.target());
        let kernel = scatter::Scatter::new(settings, device, target, a, b, c, d, e, (), (), dtype);
        sources.push(offline.source("embedding backward", dtype, &kernel));
    }
    sources
}
