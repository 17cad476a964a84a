//! One AdamW step over one parameter, one unit an element; the mathematics is in [`crate::adamw`].

use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{UNITS, arg, elements, grid_of_units};
use crate::adamw::Rates;

#[cube(launch)]
fn adamw(
    parameter: &mut [f32],
    first: &mut [f32],
    second: &mut [f32],
    gradient: &[f32],
    beta1: f32,
    beta2: f32,
    rest1: f32,
    rest2: f32,
    step_size: f32,
    root_correction: f32,
    keep: f32,
    epsilon: f32,
    scale: f32,
) {
    let i = ABSOLUTE_POS;
    if i < parameter.len() {
        let g = gradient[i] * scale;
        let m = beta1 * first[i] + rest1 * g;
        let v = beta2 * second[i] + rest2 * g * g;
        first[i] = m;
        second[i] = v;
        parameter[i] = parameter[i] * keep - step_size * m / (v.sqrt() * root_correction + epsilon);
    }
}

/// Updates a parameter and its moments, in place where nobody else holds them.
pub(crate) fn update(tensors: [CubeTensor; 3], gradient: CubeTensor, rates: &Rates) -> [CubeTensor; 3] {
    let own = |tensor: CubeTensor| {
        let tensor = into_contiguous(tensor);
        if tensor.can_mut() { tensor } else { tensor.copy() }
    };
    let (tensors, gradient) = (tensors.map(own), into_contiguous(gradient));
    let [parameter, first, second] = &tensors;
    if elements(parameter) > 0 {
        adamw::launch(
            &parameter.client,
            grid_of_units(elements(parameter)),
            CubeDim::new_1d(UNITS),
            arg(parameter),
            arg(first),
            arg(second),
            arg(&gradient),
            rates.beta1,
            rates.beta2,
            rates.rest1,
            rates.rest2,
            rates.step_size,
            rates.root_correction,
            rates.keep,
            rates.epsilon,
            rates.scale,
        );
    }
    tensors
}

#[cfg(feature = "cuda")]
pub(super) fn offline(offline: &super::offline::Offline) -> Vec<super::offline::Source> {
    let ([a, b, c, d], settings) = (offline.buffers(), offline.settings(UNITS));
    let (device, target) = (offline.device(), offline.target());
    let kernel = adamw::Adamw::new(settings, device, target, a, b, c, d, (), (), (), (), (), (), (), (), ());
    vec![offline.source("adamw", super::offline::F32, &kernel)]
}
