//! The state of optimizers as the tensors of one file: see [`crate::run::checkpoint`].

use std::collections::BTreeMap;

use burn::tensor::Device;
use gradus_kernels::{Codes, Int8Moments, long_lived, long_lived_from};

use crate::learner::optimizer::{HostMoments, Moments, Optimizer, OptimizerConfig};
use crate::run::checkpoint::{FIRST, SECOND, SIZES, SQUARE, moments, moments_in_int8};
use crate::run::{NamedTensor, StateTensor};

/// Prefix of the tensor that holds an optimizer's number of steps.
const STEPS: &str = "step.";

/// Returns the moments of several optimizers, by the names of the parameters in their file; a prefix distinguishes the
/// optimizers. If moments are sharded, all ranks must call this.
pub fn moments_on_host(optimizers: &[(&str, &Optimizer)]) -> Vec<(String, HostMoments)> {
    let of = |(prefix, optimizer): &(&str, &Optimizer)| {
        let named = |(name, moments)| (format!("{prefix}{name}"), moments);
        optimizer.whole_moments().into_iter().map(named).collect::<Vec<_>>()
    };
    optimizers.iter().flat_map(of).collect()
}

/// Converts the moments to tensors of a file, and adds the number of steps of each optimizer.
pub fn tensors<'m>(optimizers: &[(&str, &Optimizer)], found: &'m [(String, HostMoments)]) -> Vec<StateTensor<'m>> {
    let of = |(name, found): &'m (String, HostMoments)| match found {
        HostMoments::F32 { first, second } => moments(name, &[second.len()], first.as_deref(), second),
        HostMoments::Int8(both) => moments_in_int8(name, both.each_ref().map(|of| (&*of.codes, &*of.sizes))),
    };
    let steps = optimizers.iter().map(|(prefix, optimizer)| {
        NamedTensor::new(format!("{STEPS}{prefix}"), [1], vec![optimizer.steps() as f32]).into()
    });
    found.iter().flat_map(of).chain(steps).collect()
}

/// State of one optimizer in a file.
#[derive(Debug)]
pub struct Restored {
    /// Number of its steps, if the file has it.
    pub steps: Option<u64>,
    /// Moments by parameter name.
    pub moments: BTreeMap<String, Moments>,
}

/// Reads the state of the optimizer with this prefix from the tensors of a file. The moments are placed on `device`.
///
/// # Errors
/// A message about missing or inconsistent tensors.
pub fn read(
    tensors: Vec<StateTensor<'static>>,
    prefix: &str,
    config: OptimizerConfig,
    device: &Device,
) -> Result<Restored, String> {
    let device = device.clone().inner();
    let names: &[&str] = match config {
        OptimizerConfig::AdamW(_) => &[FIRST, SECOND],
        OptimizerConfig::RmsProp(_) => &[SQUARE],
    };
    let parameter = |tensor: &str, names: &[&str]| {
        names
            .iter()
            .enumerate()
            .find_map(|(which, moment)| Some((which, tensor.strip_prefix(moment)?.strip_prefix(prefix)?.to_owned())))
    };
    let mut steps = None;
    let mut states = BTreeMap::<String, StoredMoments>::new();
    for tensor in tensors {
        match tensor {
            StateTensor::Numbers(tensor) if tensor.name == format!("{STEPS}{prefix}") => {
                let count = tensor.values.first().filter(|count| **count >= 0.0 && count.fract() == 0.0);
                let count = count.ok_or_else(|| format!("`{}` is not a number of optimizer steps", tensor.name))?;
                steps = Some(*count as u64);
            }
            StateTensor::Numbers(tensor) => {
                if let Some((which, name)) = parameter(&tensor.name, names) {
                    states.entry(name).or_default().numbers[which] = Some(tensor.values.into_owned());
                } else if let Some((which, name)) = parameter(&tensor.name, &SIZES) {
                    states.entry(name).or_default().sizes[which] = Some(tensor.values.into_owned());
                }
            }
            StateTensor::Codes(tensor) => {
                if let Some((which, name)) = parameter(&tensor.name, names) {
                    states.entry(name).or_default().codes[which] = Some(tensor.codes.into_owned());
                }
            }
        }
    }
    let all = |(name, found): (String, StoredMoments)| match found.moments(config, &device) {
        Ok(moments) => Ok((name, moments)),
        Err(message) => Err(format!("the moments of `{name}`: {message}")),
    };
    Ok(Restored { steps, moments: states.into_iter().map(all).collect::<Result<_, _>>()? })
}

/// Moments of one parameter in a file. Each of the two has numbers, or codes and the largest absolute values of their
/// blocks.
#[derive(Default)]
struct StoredMoments {
    numbers: [Option<Vec<f32>>; 2],
    codes: [Option<Vec<u8>>; 2],
    sizes: [Option<Vec<f32>>; 2],
}

impl StoredMoments {
    /// Assembles the moments, if nothing is missing.
    fn moments(self, config: OptimizerConfig, device: &Device) -> Result<Moments, String> {
        let Self { numbers: [first, second], codes, sizes } = self;
        let tensor = |values: Vec<f32>| {
            let n = values.len();
            long_lived_from(values, [n], device)
        };
        match (config, first, second, codes, sizes) {
            (OptimizerConfig::AdamW(_), Some(first), Some(second), ..) => {
                Ok(Moments::F32 { first: Some(tensor(first)), second: tensor(second) })
            }
            (OptimizerConfig::RmsProp(_), Some(only), ..) => Ok(Moments::F32 { first: None, second: tensor(only) }),
            (OptimizerConfig::AdamW(_), None, None, [Some(first), Some(second)], [Some(a), Some(b)]) => {
                let of = |codes, sizes| Codes { codes, sizes };
                long_lived(device, || Int8Moments::new([of(first, a), of(second, b)], device)).map(Moments::Int8)
            }
            _ => Err("one of the two moments, or a part of them, is missing".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learner::optimizer::{AdamWConfig, MomentFormat};
    use crate::run::tensors::NamedCodes;

    fn config() -> OptimizerConfig {
        AdamWConfig { betas: [0.9, 0.999], epsilon: 1e-8, weight_decay: 0.0, moments: MomentFormat::Int8 }.into()
    }

    fn codes(name: &str, n: usize) -> StateTensor<'static> {
        StateTensor::Codes(NamedCodes { name: name.to_owned().into(), shape: vec![n], codes: vec![0; n].into() })
    }

    fn numbers(name: &str, n: usize) -> StateTensor<'static> {
        NamedTensor::new(name.to_owned(), [n], vec![1.0; n]).into()
    }

    #[test]
    fn moments_in_both_formats_are_read() {
        let file = vec![
            codes("exp_avg.p.a", 300),
            codes("exp_avg_sq.p.a", 300),
            numbers("exp_avg_absmax.p.a", 2),
            numbers("exp_avg_sq_absmax.p.a", 2),
            numbers("exp_avg.p.b", 3),
            numbers("exp_avg_sq.p.b", 3),
            numbers("step.p.", 1),
        ];
        let found = read(file, "p.", config(), &Device::flex()).expect("nothing is missing");
        assert_eq!(found.steps, Some(1));
        assert_eq!(found.moments.keys().collect::<Vec<_>>(), ["a", "b"]);
        assert!(matches!(&found.moments["a"], Moments::Int8(moments) if moments.numbers() == 300));
        assert!(matches!(found.moments["b"], Moments::F32 { first: Some(_), .. }));
    }

    #[test]
    fn a_damaged_file_is_refused_with_the_parameter() {
        let refusal = |file| read(file, "", config(), &Device::flex()).expect_err("it is damaged");
        let missing = "the moments of `a`: one of the two moments, or a part of them, is missing";
        assert_eq!(refusal(vec![numbers("exp_avg.a", 3)]), missing);
        assert_eq!(refusal(vec![codes("exp_avg.a", 3), codes("exp_avg_sq.a", 3)]), missing);
        let whole = |sizes: usize| {
            let sizes = ["exp_avg_absmax.a", "exp_avg_sq_absmax.a"].map(|name| numbers(name, sizes));
            [codes("exp_avg.a", 300), codes("exp_avg_sq.a", 300)].into_iter().chain(sizes).collect::<Vec<_>>()
        };
        assert!(read(whole(2), "", config(), &Device::flex()).is_ok());
        let expected = "the moments of `a`: 300 codes with 3 sizes of blocks; expected 300 with 2";
        assert_eq!(refusal(whole(3)), expected);
        let steps = NamedTensor::new("step.", [1], vec![-1.0]).into();
        assert_eq!(refusal(vec![steps]), "`step.` is not a number of optimizer steps");
    }
}
