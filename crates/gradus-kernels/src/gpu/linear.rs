//! Linear layers; the mathematics is in [`crate::linear`].

use burn::tensor::DType;
use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;

use super::GpuOp;
use super::product::{multiply, plus_bias};
use super::sums::column_sums;
use crate::linear::{Layout, Linear};

impl GpuOp for Linear {
    fn supports(&self, _: &CubeDevice, dtype: DType) -> bool {
        dtype == DType::F32
    }

    fn forward(&self, inputs: Vec<CubeTensor>) -> (CubeTensor, Vec<CubeTensor>) {
        let mut inputs = inputs.into_iter();
        let mut next = || inputs.next();
        let (Some(x), Some(weight), bias) = (next(), next(), next()) else { unreachable!("rows and a weight") };
        let y = multiply(&x, &weight, [false, self.layout == Layout::OutIn], self.precision);
        (plus_bias(y, bias), vec![x, weight])
    }

    fn backward(&self, saved: &[CubeTensor], grad: CubeTensor, needed: &[bool]) -> Vec<Option<CubeTensor>> {
        let [x, weight] = saved else { unreachable!("the forward pass keeps two tensors") };
        let grad_x = needed[0].then(|| multiply(&grad, weight, [false, self.layout == Layout::InOut], self.precision));
        let grad_weight = needed[1].then(|| match self.layout {
            Layout::OutIn => multiply(&grad, x, [true, false], self.precision),
            Layout::InOut => multiply(x, &grad, [true, false], self.precision),
        });
        let grad_bias = needed.get(2).map(|needed| needed.then(|| column_sums(&grad, None, DType::F32)));
        [grad_x, grad_weight].into_iter().chain(grad_bias).collect()
    }
}
