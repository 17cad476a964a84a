//! AdamW with moments in eight bits: Dettmers et al. 2022, <https://arxiv.org/abs/2110.02861>.
//!
//! A step decodes the moments of a block, applies the step of [`super::step`] in f32, and encodes them again (see [`crate::dynamic`]). The
//! moments take slightly more than two bytes per number instead of eight.

use burn::tensor::{Device, Tensor, TensorData};
use rayon::prelude::*;

use super::step::{AdamWStep, Rates, update};
use crate::dynamic::{BLOCK, Codes, DynamicMap, SIGNED, UNSIGNED};
use crate::host::{dense, host_values};

/// Blocks per parallel task.
const BLOCKS: usize = 64;

/// Both moments of one parameter, in eight bits.
#[derive(Debug, Clone)]
pub struct Int8Moments(MomentStorage);

/// Storage of the moments.
#[derive(Debug, Clone)]
enum MomentStorage {
    /// On the host; also for devices without a kernel.
    Host([Codes; 2]),
    #[cfg(feature = "gpu")]
    Gpu(Box<crate::gpu::adamw::Int8Moments>),
}

impl Int8Moments {
    /// Numbers that are encoded together.
    pub const BLOCK: usize = BLOCK;

    /// Parameters with fewer numbers keep their moments in f32. They take little memory, and they are often sensitive ones, such as norms.
    pub const LEAST: usize = 4096;

    /// Returns the moments of `n` numbers on `device` before the first step.
    pub fn zeros(n: usize, device: &Device) -> Self {
        Self::on([Codes::zeros(n), Codes::zeros(n)], device)
    }

    /// Moves stored moments to `device`.
    ///
    /// # Errors
    /// Returns a description of the problem if their lengths do not fit.
    pub fn new(moments: [Codes; 2], device: &Device) -> Result<Self, String> {
        let n = moments[0].codes.len();
        for Codes { codes, sizes } in &moments {
            if codes.len() != n || sizes.len() != n.div_ceil(BLOCK) {
                return Err(format!(
                    "{} codes with {} sizes of blocks; expected {n} with {}",
                    codes.len(),
                    sizes.len(),
                    n.div_ceil(BLOCK)
                ));
            }
            if let Some(size) = sizes.iter().find(|size| !(size.is_finite() && **size >= 0.0)) {
                return Err(format!("the size of a block is {size}; expected a finite number that is not negative"));
            }
        }
        Ok(Self::on(moments, device))
    }

    fn on(moments: [Codes; 2], device: &Device) -> Self {
        #[cfg(feature = "gpu")]
        if let Some(device) = crate::fused::gpu(device) {
            return Self(MomentStorage::Gpu(Box::new(crate::gpu::adamw::Int8Moments::new(&moments, &device))));
        }
        // Without GPU support all moments are on the host.
        let _ = device;
        Self(MomentStorage::Host(moments))
    }

    /// Number of elements of the parameter.
    pub fn numbers(&self) -> usize {
        match &self.0 {
            MomentStorage::Host([first, _]) => first.codes.len(),
            #[cfg(feature = "gpu")]
            MomentStorage::Gpu(moments) => moments.numbers(),
        }
    }

    /// Returns both moments in the form in which files store them.
    pub fn to_host(&self) -> [Codes; 2] {
        match &self.0 {
            MomentStorage::Host(moments) => moments.clone(),
            #[cfg(feature = "gpu")]
            MomentStorage::Gpu(moments) => moments.to_host(),
        }
    }

    /// Takes one step and returns the parameter. It is updated in place if this is the only handle. Both tensors are flat and
    /// have one number per moment. Neither is tracked by autodiff.
    #[must_use]
    pub fn step(&mut self, parameter: Tensor<1>, gradient: Tensor<1>, step: AdamWStep) -> Tensor<1> {
        let rates = Rates::new(&step);
        match &mut self.0 {
            MomentStorage::Host(moments) => match dense(parameter) {
                Ok(mut parameter) => {
                    move_blocks(parameter.values_mut(), &host_values(gradient), moments, rates);
                    parameter.tensor()
                }
                Err(parameter) => {
                    let (device, shape) = (parameter.device(), parameter.dims());
                    let mut values = host_values(parameter).to_vec();
                    move_blocks(&mut values, &host_values(gradient), moments, rates);
                    Tensor::from_data(TensorData::new(values, shape), &device)
                }
            },
            #[cfg(feature = "gpu")]
            MomentStorage::Gpu(moments) => moments.step(parameter, gradient, &rates),
        }
    }
}

/// Updates a parameter and its moments, block by block.
fn move_blocks(parameter: &mut [f32], gradient: &[f32], [first, second]: &mut [Codes; 2], rates: Rates) {
    const CHUNK: usize = BLOCKS * BLOCK;
    parameter
        .par_chunks_mut(CHUNK)
        .zip(gradient.par_chunks(CHUNK))
        .zip(first.codes.par_chunks_mut(CHUNK).zip(first.sizes.par_chunks_mut(BLOCKS)))
        .zip(second.codes.par_chunks_mut(CHUNK).zip(second.sizes.par_chunks_mut(BLOCKS)))
        .for_each(|(((parameter, gradient), first), second)| {
            let moments = of_blocks(first).zip(of_blocks(second));
            let numbers = parameter.chunks_mut(BLOCK).zip(gradient.chunks(BLOCK));
            for ((parameter, gradient), (first, second)) in numbers.zip(moments) {
                move_block(parameter, gradient, first, second, rates);
            }
        });
}

/// The codes and the largest size of one block.
type Block<'a> = (&'a mut [u8], &'a mut f32);

fn of_blocks<'a>((codes, sizes): (&'a mut [u8], &'a mut [f32])) -> impl Iterator<Item = Block<'a>> {
    codes.chunks_mut(BLOCK).zip(sizes)
}

fn move_block(parameter: &mut [f32], gradient: &[f32], first: Block<'_>, second: Block<'_>, rates: Rates) {
    let n = parameter.len();
    let maps: [&DynamicMap; 2] = [&SIGNED, &UNSIGNED];
    let (mut m, mut v) = ([0.0; BLOCK], [0.0; BLOCK]);
    maps[0].decode(first.0, *first.1, &mut m[..n]);
    maps[1].decode(second.0, *second.1, &mut v[..n]);
    update(parameter, gradient, &mut m[..n], &mut v[..n], rates);
    *first.1 = maps[0].encode(&m[..n], first.0);
    *second.1 = maps[1].encode(&v[..n], second.0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dynamic::testing::{bits, codes, number};
    use crate::fused::testing::host;

    /// The steps of `bitsandbytes.optim.AdamW8bit`. PyTorch rounds once in a multiply-add. So a size may differ in its last bits, and a
    /// code by one if its number is on the border between two codes.
    #[test]
    fn steps_are_those_of_bitsandbytes() {
        let device = Device::flex();
        let n = codes("step 1 first codes").len();
        let numbers = |begin: usize| {
            let values: Vec<f32> = (begin..begin + n).map(|i| number(i as u32, true)).collect();
            Tensor::<1>::from_data(TensorData::new(values, [n]), &device)
        };
        let (mut parameter, mut moments) = (numbers(7), Int8Moments::zeros(n, &device));
        for t in 1..=3 {
            let betas = (0.9, 0.999);
            let (learning_rate, weight_decay) = (0.01, 0.1);
            let step =
                AdamWStep { learning_rate, betas, epsilon: 1e-8, weight_decay, step: t as u64, gradient_scale: 1.0 };
            parameter = moments.step(parameter, numbers(7 + t * n), step);
            let values = host(parameter.clone());
            let expected = bits(&format!("step {t} parameters"));
            for (found, expected) in values.iter().step_by(41).zip(expected) {
                let expected = f32::from_bits(expected);
                assert!((found - expected).abs() <= 1e-6, "step {t}: {found} instead of {expected}");
            }
            for (order, moment) in ["first", "second"].into_iter().zip(moments.to_host()) {
                let expected = codes(&format!("step {t} {order} codes"));
                let differing = moment.codes.iter().zip(&expected).filter(|(a, b)| a != b).count();
                assert!(differing * 1000 <= n, "step {t}, {order}: {differing} codes of {n} differ");
                let difference = moment.codes.iter().zip(&expected).map(|(a, b)| a.abs_diff(*b)).max();
                assert!(difference <= Some(1), "step {t}, {order}: codes are {difference:?} apart");
                for (found, expected) in moment.sizes.iter().zip(bits(&format!("step {t} {order} sizes"))) {
                    let expected = f32::from_bits(expected);
                    assert!((found - expected).abs() <= 2e-7 * expected, "{found} instead of {expected}");
                }
            }
        }
    }

    #[test]
    fn moments_that_do_not_fit_are_refused() {
        let of = |codes: usize, sizes: Vec<f32>| Codes { codes: vec![0; codes], sizes };
        let refusal = |a: Codes, b: Codes| Int8Moments::new([a, b], &Device::flex()).expect_err("they do not fit");
        assert_eq!(
            refusal(of(300, vec![1.0, 1.0]), of(300, vec![1.0])),
            "300 codes with 1 sizes of blocks; expected 300 with 2"
        );
        assert!(refusal(of(300, vec![1.0, 1.0]), of(299, vec![1.0, 1.0])).starts_with("299 codes"));
        assert!(refusal(of(3, vec![1.0]), of(3, vec![f32::NAN])).contains("is NaN"));
        assert!(Int8Moments::new([of(300, vec![1.0, 0.0]), of(300, vec![1.0, 0.0])], &Device::flex()).is_ok());
    }
}
