//! Rotary position embedding; the mathematics is in [`crate::rope`].

use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{EACH, GpuOp, UNITS, arg, dims, element, elements, empty_like, grid_of_groups, nth_element, table_arg};
use crate::rope::Rope;

#[cube(launch)]
fn rotate<F: Float>(
    x: &[F],
    cos: &[f32],
    sin: &[f32],
    y: &mut [F],
    direction: f32,
    width: u32,
    head_dim: u32,
    half: u32,
    #[define(F)] _dtype: ElemType,
) {
    let half = half as usize;
    let mut values = Array::<f32>::new(EACH);
    #[unroll]
    for j in 0..EACH {
        let at = nth_element(j);
        if at < y.len() {
            // A row consists of whole heads.
            let (token, i) = (at / (width as usize), at % (head_dim as usize));
            let mut value = f32::cast_from(x[at]);
            if i < half {
                let angle = token * half + i;
                value = value * cos[angle] - f32::cast_from(x[at + half]) * sin[angle] * direction;
            } else if i < 2 * half {
                let angle = token * half + i - half;
                value = value * cos[angle] + f32::cast_from(x[at - half]) * sin[angle] * direction;
            }
            values[j] = value;
        }
    }
    #[unroll]
    for j in 0..EACH {
        let at = nth_element(j);
        if at < y.len() {
            y[at] = F::cast_from(values[j]);
        }
    }
}

impl Rope {
    fn turned(&self, x: &CubeTensor, direction: f32) -> CubeTensor {
        let ([n, d], y) = (dims(x), empty_like(x));
        if elements(x) > 0 {
            rotate::launch(
                &x.client,
                grid_of_groups(elements(x)),
                CubeDim::new_1d(UNITS),
                arg(x),
                table_arg(&self.cos, x),
                table_arg(&self.sin, x),
                arg(&y),
                direction,
                d as u32,
                self.head_dim as u32,
                (self.cos.len() / n) as u32,
                element(x),
            );
        }
        y
    }
}

impl GpuOp for Rope {
    fn forward(&self, inputs: Vec<CubeTensor>) -> (CubeTensor, Vec<CubeTensor>) {
        (self.turned(&inputs[0], 1.0), Vec::new())
    }

    fn backward(&self, _: &[CubeTensor], grad: CubeTensor, _: &[bool]) -> Vec<Option<CubeTensor>> {
        vec![Some(self.turned(&grad, -1.0))]
    }
}

#[cfg(feature = "cuda")]
pub(super) fn offline(offline: &super::offline::Offline) -> Vec<super::offline::Source> {
    let of = |dtype| {
        let ([a, b, c, d], settings) = (offline.buffers(), offline.settings(UNITS));
        let (device, target) = (offline.device(), offline.target());
        let kernel = rotate::Rotate::new(settings, device, target, a, b, c, d, (), (), (), (), dtype);
        offline.source("rotary", dtype, &kernel)
    };
    offline.dtypes().map(of).into()
}
