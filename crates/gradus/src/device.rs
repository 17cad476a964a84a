//! Where tensors are computed: from the name in `train.device` or `--device` to Burn's device. No other file of the
//! library names one of Burn's devices.
//!
//! `cpu` has fused kernels. On other devices everything runs through the kernels' references in plain tensors, in f32.

use std::fmt::{Debug, Display, Formatter};
use std::str::FromStr;

use burn::tensor::Device;
#[cfg(feature = "wgpu")]
use burn::tensor::{DeviceKind, DeviceType};
use gradus_kernels::is_fused;

use crate::error::{Error, Result};

/// The processor.
const CPU: &str = "cpu";
/// The first GPU; the others have a number behind it.
const GPU: &str = "gpu";
/// A driver that computes on the processor.
const SOFTWARE: &str = "gpu:software";

/// A device that this build can compute on and this machine has.
#[derive(Clone, PartialEq, Eq)]
pub struct DeviceChoice {
    name: String,
    device: Device,
}

impl DeviceChoice {
    /// The processor, which every build has.
    pub fn cpu() -> Self {
        Self { name: CPU.into(), device: Device::flex() }
    }

    /// The device of this name: `cpu`, `gpu` (the first), `gpu:1`, or `gpu:software`.
    ///
    /// # Errors
    /// When it is no name of a device, or this build or this machine does not have it.
    pub fn named(name: &str) -> Result<Self> {
        let wanted = canonical(name).ok_or_else(|| {
            Error::input(format!("`{name}` is no device")).with_hint("`cpu`, `gpu`, or `gpu:1` for the second GPU")
        })?;
        // GPUs are only looked for when they are asked for.
        if wanted == CPU {
            return Ok(Self::cpu());
        }
        let all = Self::all();
        let names: Vec<_> = all.iter().map(|device| format!("`{device}`")).collect();
        let missing = || Error::input(format!("there is no `{name}`: this build finds {}", names.join(", ")));
        all.into_iter().find(|device| device.name == wanted).ok_or_else(|| missing().with_hint(suggestion()))
    }

    /// Every device that this build can use here, the processor first.
    pub fn all() -> Vec<Self> {
        let mut all = vec![Self::cpu()];
        all.extend(gpus());
        all
    }

    /// Burn's device; gradients are not tracked.
    pub fn device(&self) -> Device {
        self.device.clone()
    }

    /// Whether it has fused kernels. Elsewhere products are in f32, and weights that are packed are expanded for each.
    pub fn has_kernels(&self) -> bool {
        is_fused(&self.device)
    }

    /// Refuses what only kernels compute: formats other than f32. `what` is the flag or key that asks for `format`.
    ///
    /// # Errors
    /// When `format` is not `f32` and the device has no kernels.
    pub fn check_format(&self, what: &str, format: &str) -> Result<()> {
        if self.has_kernels() || format == "f32" {
            return Ok(());
        }
        Err(Error::input(no_format(what, format, &self.name)).with_hint(NO_FORMAT_HINT))
    }
}

impl Default for DeviceChoice {
    fn default() -> Self {
        Self::cpu()
    }
}

impl Display for DeviceChoice {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

impl Debug for DeviceChoice {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::named(name).map_err(|error| match error.hint() {
            Some(hint) => format!("{error} ({hint})"),
            None => error.to_string(),
        })
    }
}

/// The message about a format that only kernels have.
pub(crate) fn no_format(what: &str, format: &str, device: &str) -> String {
    format!("{what} is `{format}`, but `{device}` computes in `f32` only")
}

/// What to do about it.
pub(crate) const NO_FORMAT_HINT: &str = "other formats need the kernels of `cpu`";

/// The one name of each device: numbers count from 0, and the first GPU needs none.
pub(crate) fn canonical(name: &str) -> Option<String> {
    match name.split_once(':') {
        None if [CPU, GPU].contains(&name) => Some(name.to_owned()),
        Some((GPU, "software")) => Some(SOFTWARE.into()),
        Some((GPU, number)) => Some(gpu_name(number.parse().ok()?)),
        _ => None,
    }
}

fn gpu_name(number: usize) -> String {
    if number == 0 { GPU.into() } else { format!("{GPU}:{number}") }
}

/// What to do about a device that is not there.
pub(crate) fn suggestion() -> &'static str {
    match cfg!(feature = "wgpu") {
        true => "`gradus doctor` lists the devices; a GPU needs its driver for Vulkan, Metal or DirectX 12",
        false => "GPUs need a build with the cargo feature `wgpu`: docs/devices.md",
    }
}

/// GPUs in the order in which the drivers list them, then the driver that computes on the processor, if there is one.
#[cfg(feature = "wgpu")]
fn gpus() -> Vec<DeviceChoice> {
    let software = Device::wgpu(DeviceKind::Cpu);
    let found = Device::enumerate(DeviceType::Wgpu).into_vec();
    let (slow, gpus): (Vec<_>, Vec<_>) = found.into_iter().partition(|device| *device == software);
    let numbered = gpus.into_iter().enumerate().map(|(i, device)| DeviceChoice { name: gpu_name(i), device });
    let slow = slow.into_iter().map(|device| DeviceChoice { name: SOFTWARE.into(), device });
    numbered.chain(slow.take(1)).collect()
}

#[cfg(not(feature = "wgpu"))]
fn gpus() -> Vec<DeviceChoice> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_one_name() {
        for (written, name) in [
            ("cpu", Some("cpu")),
            ("gpu", Some("gpu")),
            ("gpu:0", Some("gpu")),
            ("gpu:1", Some("gpu:1")),
            ("gpu:software", Some("gpu:software")),
            ("GPU", None),
            ("gpu:", None),
            ("gpu:-1", None),
            ("cpu:1", None),
            ("", None),
        ] {
            assert_eq!(canonical(written).as_deref(), name, "`{written}`");
        }
    }

    #[test]
    fn the_processor_is_always_there_and_nothing_is_made_up() {
        assert_eq!(DeviceChoice::all()[0], DeviceChoice::default());
        assert_eq!("cpu".parse::<DeviceChoice>().map(|device| device.device()), Ok(Device::flex()));
        let error = "gpu:99".parse::<DeviceChoice>().expect_err("no machine has a hundred");
        assert!(error.starts_with("there is no `gpu:99`: this build finds `cpu`"), "{error}");
        let error = "tpu".parse::<DeviceChoice>().expect_err("no device");
        assert_eq!(error, "`tpu` is no device (`cpu`, `gpu`, or `gpu:1` for the second GPU)");
    }
}
