//! Rotary position embedding; the mathematics is in [`crate::rope`].

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::product::narrower;
use super::{
    Before, EACH, GpuOp, InputGradients, UNITS, arg, dims, element, elements, empty, grid_of_groups, nth_element,
    table_arg,
};
use crate::rope::Rope;

#[cube(launch)]
fn rotate<F: Float, G: Float>(
    x: &[F],
    cos: &[f32],
    sin: &[f32],
    y: &mut [G],
    direction: f32,
    width: u32,
    head_dim: u32,
    half: u32,
    #[define(F, G)] _dtypes: [ElemType; 2],
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
            y[at] = G::cast_from(values[j]);
        }
    }
}

impl Rope {
    /// Rotates `x` and returns the result in `dtype`.
    fn turned(&self, x: &CubeTensor, direction: f32, dtype: DType) -> CubeTensor {
        let [n, d] = dims(x);
        let y = empty(x, &[n, d], dtype);
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
                [element(x), element(&y)],
            );
        }
        y
    }
}

impl GpuOp for Rope {
    fn forward(&self, inputs: Vec<CubeTensor>) -> (CubeTensor, Vec<CubeTensor>) {
        let x = &inputs[0];
        (self.turned(x, 1.0, narrower(x, self.operands.result)), Vec::new())
    }

    fn backward(&self, _: &[CubeTensor], grad: CubeTensor, _: &[bool], _: Before) -> InputGradients {
        vec![Some(self.turned(&grad, -1.0, narrower(&grad, self.operands.input)))]
    }
}

#[cfg(feature = "cuda")]
pub(super) fn offline(offline: &super::offline::Offline) -> Vec<super::offline::Source> {
    let of = |dtypes: [_; 2]| {
        let ([a, b, c, d], settings) = (offline.buffers(), offline.settings(UNITS));
        let (device, target) = (offline.device(), offline.target());
        let kernel = rotate::Rotate::new(settings, device, target, a, b, c, d, (), (), (), (), dtypes);
        offline.source("rotary", dtypes[1], &kernel)
    };
    offline.conversions().map(of).into()
}
