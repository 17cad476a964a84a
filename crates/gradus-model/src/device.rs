//! Compute devices: maps the name in `train.device` or `--device` to Burn's device. No other file of the library names
//! one of Burn's devices.
//!
//! `cpu` has kernels for everything. GPUs have kernels for the operations listed in docs/gpu.md; other operations use
//! the kernels' reference implementations in plain tensors. Both compute in f32.

use std::fmt::{Debug, Display, Formatter};
use std::str::FromStr;

use burn::tensor::Device;
#[cfg(feature = "wgpu")]
use burn::tensor::DeviceKind;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
use burn::tensor::DeviceType;
use gradus_kernels::cuda::Cuda;
use gradus_kernels::{Precision, multiplies_in, packs_weights};
use serde::Serialize;

use crate::error::{Error, Result};

/// The CPU.
const CPU: &str = "cpu";
/// The first GPU; others append a number.
const GPU: &str = "gpu";
/// The first NVIDIA GPU, only with CUDA.
const CUDA: &str = "cuda";
/// A driver that emulates a GPU on the CPU.
const SOFTWARE: &str = "gpu:software";

/// A device that this machine has and this build supports.
#[derive(Clone, PartialEq, Eq)]
pub struct DeviceChoice {
    name: String,
    device: Device,
    /// The device's own memory in bytes, if the driver reports it.
    memory: Option<u64>,
}

impl DeviceChoice {
    /// Returns the CPU, which every build supports.
    pub fn cpu() -> Self {
        Self { name: CPU.into(), device: Device::flex(), memory: None }
    }

    /// Finds a device by name: `cpu`, `gpu` (the first, with CUDA if available), `gpu:1`, `cuda`, `cuda:1`, or
    /// `gpu:software`.
    ///
    /// # Errors
    /// If the name is unknown, or this build or this machine does not have the device.
    pub fn named(name: &str) -> Result<Self> {
        let requested = canonical(name).ok_or_else(|| {
            Error::input(format!("`{name}` is not a device"))
                .with_hint("`cpu`, `gpu`, `gpu:1`, `cuda`, `cuda:1` or `gpu:software`: docs/devices.md")
        })?;
        // GPUs are enumerated only on request.
        if requested == CPU {
            return Ok(Self::cpu());
        }
        let all = Self::all();
        let names: Vec<_> = all.iter().map(|device| format!("`{device}`")).collect();
        let missing = || Error::input(format!("there is no `{name}`: this build finds {}", names.join(", ")));
        all.into_iter().find(|device| device.name == requested).ok_or_else(|| missing().with_hint(suggestion()))
    }

    /// Returns all usable devices, the CPU first.
    pub fn all() -> Vec<Self> {
        let mut all = vec![Self::cpu()];
        all.extend(gpus());
        all
    }

    /// Returns Burn's device, without gradient tracking.
    pub fn device(&self) -> Device {
        self.device.clone()
    }

    /// Returns the size of the device's own memory in bytes, for GPUs whose driver reports it.
    pub fn memory_bytes(&self) -> Option<u64> {
        self.memory
    }

    /// Whether the device supports packed weights, with products of every format. Other devices multiply in f32 and
    /// expand packed weights for each product.
    pub fn has_kernels(&self) -> bool {
        packs_weights(&self.device)
    }

    /// Whether the device can multiply operands in the format `compute`.
    pub fn multiplies_in(&self, compute: Precision) -> bool {
        multiplies_in(&self.device, compute)
    }

    /// Rejects products in `compute` if the device lacks them; `what` is the flag that requests them.
    ///
    /// # Errors
    /// If the device multiplies only in f32.
    pub fn check_compute(&self, what: &str, compute: Precision) -> Result<()> {
        if self.multiplies_in(compute) {
            return Ok(());
        }
        Err(Error::input(no_compute(what, compute.name(), &self.name)).with_hint(NO_COMPUTE_HINT))
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

/// Returns the message about products that a device does not support.
pub fn no_compute(what: &str, compute: &str, device: &str) -> String {
    format!("{what} is `{compute}`, but `{device}` multiplies in `f32` only")
}

/// Hint for that error.
pub const NO_COMPUTE_HINT: &str =
    "use `f32` on this device; `bf16` needs the device `cpu`, or `gpu` in a build with `cuda`";

/// Returns the canonical name of a device: numbers count from 0, and the first GPU has none.
pub fn canonical(name: &str) -> Option<String> {
    match name.split_once(':') {
        None if [CPU, GPU, CUDA].contains(&name) => Some(name.to_owned()),
        Some((GPU, "software")) => Some(SOFTWARE.into()),
        Some((kind, number)) if [GPU, CUDA].contains(&kind) => Some(numbered(kind, number.parse().ok()?)),
        _ => None,
    }
}

/// Returns the name of a GPU of a kind.
fn numbered(kind: &str, number: usize) -> String {
    if number == 0 { kind.into() } else { format!("{kind}:{number}") }
}

/// Returns a hint about a missing device.
pub fn suggestion() -> String {
    let with_cuda = || match Cuda::detect().missing() {
        missing if missing.is_empty() => "`gradus doctor` lists the devices".to_owned(),
        missing => format!("for NVIDIA's GPUs: {}", missing.join("; ")),
    };
    let with_wgpu = "other GPUs need their driver for Vulkan, Metal or DirectX 12";
    match (cfg!(feature = "cuda"), cfg!(feature = "wgpu")) {
        (true, true) => format!("{}; {with_wgpu}", with_cuda()),
        (true, false) => with_cuda(),
        (false, true) => {
            "`gradus doctor` lists the devices; a GPU needs its driver for Vulkan, Metal or DirectX 12".to_owned()
        }
        (false, false) => "GPUs need a build with the cargo feature `cuda` or `wgpu`: docs/devices.md".to_owned(),
    }
}

/// Lists NVIDIA's GPUs if CUDA can use them, otherwise those of wgpu, in the order of the drivers; then the software
/// driver, if there is one.
fn gpus() -> Vec<DeviceChoice> {
    let (cuda, [gpus, software]) = (of_cuda(), of_wgpu());
    let unknown = |devices: Vec<Device>| devices.into_iter().map(|device| (device, None)).collect::<Vec<_>>();
    let best = if cuda.is_empty() { unknown(gpus) } else { cuda.clone() };
    let named = |kind: &str, devices: Vec<(Device, Option<u64>)>| {
        let choice = |(i, (device, memory))| DeviceChoice { name: numbered(kind, i), device, memory };
        devices.into_iter().enumerate().map(choice).collect::<Vec<_>>()
    };
    let slow = software.into_iter().take(1);
    let slow = slow.map(|device| DeviceChoice { name: SOFTWARE.into(), device, memory: None });
    named(GPU, best).into_iter().chain(named(CUDA, cuda)).chain(slow).collect()
}

/// Lists NVIDIA's GPUs and their memory, if all libraries that their kernels need are installed.
#[cfg(feature = "cuda")]
fn of_cuda() -> Vec<(Device, Option<u64>)> {
    let found = Cuda::detect();
    if !found.is_ready() {
        return Vec::new();
    }
    // Both lists have the driver's order.
    let memory = found.devices.iter().map(|device| Some(device.memory)).chain(std::iter::repeat(None));
    Device::enumerate(DeviceType::Cuda).into_vec().into_iter().zip(memory).collect()
}

#[cfg(not(feature = "cuda"))]
fn of_cuda() -> Vec<(Device, Option<u64>)> {
    Vec::new()
}

/// Lists wgpu's devices: GPUs, and drivers that compute on the CPU.
#[cfg(feature = "wgpu")]
fn of_wgpu() -> [Vec<Device>; 2] {
    let software = Device::wgpu(DeviceKind::Cpu);
    let (slow, gpus) =
        Device::enumerate(DeviceType::Wgpu).into_vec().into_iter().partition(|device| *device == software);
    [gpus, slow]
}

#[cfg(not(feature = "wgpu"))]
fn of_wgpu() -> [Vec<Device>; 2] {
    Default::default()
}

/// NVIDIA's software and devices on this machine, independent of what this build supports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Nvidia {
    /// Whether this build has kernels for CUDA.
    pub in_this_build: bool,
    /// Newest CUDA version that the driver supports.
    pub driver: Option<String>,
    /// NVIDIA GPUs.
    pub devices: Vec<NvidiaDevice>,
    /// Version of NVRTC, which compiles the kernels.
    pub nvrtc: Option<String>,
    /// Folder of the headers that NVRTC reads.
    pub headers: Option<std::path::PathBuf>,
    /// Version of cuBLASLt.
    pub cublas_lt: Option<String>,
    /// Components to install before CUDA can be used; empty if it can.
    pub missing: Vec<String>,
}

/// An NVIDIA GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NvidiaDevice {
    /// Name of the GPU.
    pub name: String,
    /// Compute capability, such as `9.0`.
    pub compute_capability: String,
    /// Memory in bytes.
    pub memory_bytes: u64,
}

impl Nvidia {
    /// Inspects this machine without using a GPU.
    pub fn detect() -> Self {
        let found = Cuda::detect();
        let written = |(major, minor): (u32, u32)| format!("{major}.{minor}");
        let missing = found.missing();
        let device = |device: gradus_kernels::cuda::CudaDevice| NvidiaDevice {
            compute_capability: written(device.capability),
            name: device.name,
            memory_bytes: device.memory,
        };
        Self {
            in_this_build: cfg!(feature = "cuda"),
            driver: found.driver.map(written),
            devices: found.devices.into_iter().map(device).collect(),
            nvrtc: found.nvrtc.map(written),
            headers: found.headers,
            cublas_lt: found.cublas_lt.map(written),
            missing,
        }
    }
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
            ("cuda", Some("cuda")),
            ("cuda:0", Some("cuda")),
            ("cuda:2", Some("cuda:2")),
            ("cuda:software", None),
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
        assert_eq!(
            error,
            "`tpu` is not a device (`cpu`, `gpu`, `gpu:1`, `cuda`, `cuda:1` or `gpu:software`: docs/devices.md)"
        );
    }

    #[test]
    fn cuda_is_named_only_where_it_can_be_used() {
        let nvidia = Nvidia::detect();
        let has = |name: &str| DeviceChoice::all().iter().any(|device| device.to_string() == name);
        assert_eq!(has("cuda"), nvidia.in_this_build && nvidia.missing.is_empty());
        if let Err(error) = "cuda".parse::<DeviceChoice>() {
            let expected = if nvidia.in_this_build { "for NVIDIA's GPUs: " } else { "`cuda`" };
            assert!(
                error.starts_with("there is no `cuda`: this build finds `cpu`") && error.contains(expected),
                "{error}"
            );
        }
    }
}
