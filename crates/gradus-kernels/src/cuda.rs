//! Detects NVIDIA's software on this machine, at run time and in every build.
//!
//! A GPU needs the driver (`libcuda`), which lists the devices; NVRTC, which compiles the kernels; and the headers that NVRTC reads.
//! cuBLASLt multiplies matrices; these kernels also run without it.

use std::ffi::{CStr, c_char, c_int};
use std::path::PathBuf;

use libloading::Library;

/// NVIDIA's software and devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cuda {
    /// Newest CUDA version that the driver supports: major and minor.
    pub driver: Option<(u32, u32)>,
    /// Devices, in the driver's order.
    pub devices: Vec<CudaDevice>,
    /// Version of NVRTC.
    pub nvrtc: Option<(u32, u32)>,
    /// Folder of headers that NVRTC reads.
    pub headers: Option<PathBuf>,
    /// Version of cuBLASLt.
    pub cublas_lt: Option<(u32, u32)>,
}

/// A GPU as the driver describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CudaDevice {
    /// Name of the device.
    pub name: String,
    /// Compute capability: major and minor.
    pub capability: (u32, u32),
    /// Memory in bytes.
    pub memory: u64,
}

/// Major CUDA versions whose libraries are tried; this build's bindings match the first.
const MAJORS: [u32; 3] = [13, 12, 11];

impl Cuda {
    /// Inspects this machine. Opens libraries and reads their versions, but uses no device.
    pub fn detect() -> Self {
        let driver = driver();
        let (version, devices) = driver.and_then(|library| query_driver(&library)).unwrap_or_default();
        Self {
            driver: version,
            devices,
            nvrtc: open(&names("nvrtc")).and_then(|library| nvrtc_version(&library)),
            headers: headers(),
            cublas_lt: open(&names("cublasLt")).and_then(|library| cublas_version(&library)),
        }
    }

    /// Whether kernels can be compiled and run: there is a device, NVRTC and its headers.
    pub fn is_ready(&self) -> bool {
        !self.devices.is_empty() && self.nvrtc.is_some() && self.headers.is_some()
    }

    /// Returns instructions for what to install until [`is_ready`](Self::is_ready) is true, one sentence each.
    pub fn missing(&self) -> Vec<String> {
        let mut missing = Vec::new();
        if self.driver.is_none() {
            missing.push("install NVIDIA's driver: no `libcuda.so.1` was found".into());
        } else if self.devices.is_empty() {
            missing.push("the driver is here but lists no GPU: check `nvidia-smi` and `CUDA_VISIBLE_DEVICES`".into());
        }
        let major = self.driver.map_or(MAJORS[0], |(major, _)| major);
        if self.nvrtc.is_none() {
            missing.push(format!(
                "install NVRTC of CUDA {major} (`pip install nvidia-cuda-nvrtc`), and add the folder of `libnvrtc.so` to \
                 `LD_LIBRARY_PATH`"
            ));
        }
        if self.headers.is_none() {
            missing.push(
                "install CUDA's headers (`pip install nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl`), and set \
                 `CUDA_PATH` to the folder that holds `include`"
                    .into(),
            );
        }
        missing
    }
}

/// File names under which a library of the toolkit may be installed.
pub(crate) fn names(library: &str) -> Vec<String> {
    if cfg!(windows) {
        let suffix = if library == "nvrtc" { "_0" } else { "" };
        return MAJORS
            .map(|major| match library {
                "nvrtc" => format!("nvrtc64_{major}0{suffix}.dll"),
                _ => format!("{library}64_{major}.dll"),
            })
            .into();
    }
    std::iter::once(format!("lib{library}.so")).chain(MAJORS.map(|major| format!("lib{library}.so.{major}"))).collect()
}

pub(crate) fn open(names: &[String]) -> Option<Library> {
    // SAFETY: NVIDIA's libraries run only their own initialization, as in any program that computes on a GPU.
    names.iter().find_map(|name| unsafe { Library::new(name) }.ok())
}

/// Opens NVIDIA's driver.
pub(crate) fn driver() -> Option<Library> {
    match cfg!(windows) {
        true => open(&["nvcuda.dll".into()]),
        false => open(&["libcuda.so.1".into(), "libcuda.so".into()]),
    }
}

/// Finds the folder of headers in the same places as CubeCL.
#[expect(clippy::disallowed_methods, reason = "a variable in the table of ARCHITECTURE.md")]
fn headers() -> Option<PathBuf> {
    let given = std::env::var_os("CUDA_PATH").map(PathBuf::from);
    let usual = || ["/usr/local/cuda", "/opt/cuda"].map(PathBuf::from).into_iter().find(|path| path.exists());
    given.or_else(usual).map(|path| path.join("include")).filter(|path| path.join("cuda_runtime.h").exists())
}

/// Major and minor version from a number such as 13000 for 13.0.
fn version(number: c_int) -> Option<(u32, u32)> {
    let number = u32::try_from(number).ok().filter(|number| *number > 0)?;
    Some((number / 1000, number % 1000 / 10))
}

type DriverInfo = (Option<(u32, u32)>, Vec<CudaDevice>);

/// Reads version and devices from the driver. `None` if it lacks a function.
fn query_driver(driver: &Library) -> Option<DriverInfo> {
    type Init = unsafe extern "C" fn(c_int) -> c_int;
    type Number = unsafe extern "C" fn(*mut c_int) -> c_int;
    type Get = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
    type Name = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;
    type Memory = unsafe extern "C" fn(*mut usize, c_int) -> c_int;
    type Attribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int;
    const NAME: usize = 256;
    const CAPABILITY: [c_int; 2] = [75, 76];
    // SAFETY: the functions have these types (cuda.h), are called after `cuInit`, and write to variables of their types;
    // the name's buffer has the length that is passed.
    unsafe {
        let init = driver.get::<Init>(b"cuInit\0").ok()?;
        let driver_version = driver.get::<Number>(b"cuDriverGetVersion\0").ok()?;
        let count = driver.get::<Number>(b"cuDeviceGetCount\0").ok()?;
        let get = driver.get::<Get>(b"cuDeviceGet\0").ok()?;
        let name_of = driver.get::<Name>(b"cuDeviceGetName\0").ok()?;
        let memory_of = driver.get::<Memory>(b"cuDeviceTotalMem_v2\0").ok()?;
        let attribute = driver.get::<Attribute>(b"cuDeviceGetAttribute\0").ok()?;
        let mut number = 0;
        let found = (driver_version(&mut number) == 0).then(|| version(number)).flatten();
        let mut devices = 0;
        if init(0) != 0 || count(&mut devices) != 0 {
            return Some((found, Vec::new()));
        }
        let describe = |i: c_int| {
            let (mut device, mut name, mut memory) = (0, [0 as c_char; NAME], 0usize);
            if get(&mut device, i) != 0
                || name_of(name.as_mut_ptr(), NAME as c_int, device) != 0
                || memory_of(&mut memory, device) != 0
            {
                return None;
            }
            name[NAME - 1] = 0;
            let capability = CAPABILITY.map(|kind| {
                let mut value = 0;
                let is_known = attribute(&mut value, kind, device) == 0;
                if is_known { u32::try_from(value).unwrap_or(0) } else { 0 }
            });
            let name = CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned();
            Some(CudaDevice { name, capability: (capability[0], capability[1]), memory: memory as u64 })
        };
        Some((found, (0..devices).filter_map(describe).collect()))
    }
}

fn nvrtc_version(library: &Library) -> Option<(u32, u32)> {
    type Version = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the function has this type (nvrtc.h) and writes two numbers.
    let is_known = unsafe { library.get::<Version>(b"nvrtcVersion\0").ok()?(&mut major, &mut minor) } == 0;
    is_known.then(|| Some((u32::try_from(major).ok()?, u32::try_from(minor).ok()?))).flatten()
}

fn cublas_version(library: &Library) -> Option<(u32, u32)> {
    type Version = unsafe extern "C" fn() -> usize;
    // SAFETY: the function has this type (cublasLt.h) and takes nothing. Major, minor and patch are 10000, 100 and 1.
    let number = unsafe { library.get::<Version>(b"cublasLtGetVersion\0").ok()?() };
    let number = u32::try_from(number).ok()?;
    Some((number / 10_000, number % 10_000 / 100))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_nvidia_writes_them() {
        assert_eq!(version(13_000), Some((13, 0)));
        assert_eq!(version(12_080), Some((12, 8)));
        assert_eq!(version(0), None);
        assert_eq!(version(-1), None);
    }

    #[test]
    fn what_is_missing_is_named_and_nothing_else() {
        let none = Cuda { driver: None, devices: Vec::new(), nvrtc: None, headers: None, cublas_lt: None };
        assert_eq!(none.missing().len(), 3);
        assert!(!none.is_ready() && none.missing()[1].contains("CUDA 13"), "{:?}", none.missing());
        let device = CudaDevice { name: "H200".into(), capability: (9, 0), memory: 1 << 37 };
        let all = Cuda {
            driver: Some((12, 8)),
            devices: vec![device],
            nvrtc: Some((12, 9)),
            headers: Some("/usr/local/cuda/include".into()),
            cublas_lt: None,
        };
        assert!(all.is_ready() && all.missing().is_empty());
        let without_card = Cuda { devices: Vec::new(), ..all.clone() };
        assert!(!without_card.is_ready() && without_card.missing()[0].contains("lists no GPU"));
        let without_compiler = Cuda { nvrtc: None, ..all };
        assert!(!without_compiler.is_ready() && without_compiler.missing()[0].contains("CUDA 12"));
    }

    #[test]
    fn a_machine_without_nvidia_is_described_too() {
        let found = Cuda::detect();
        assert_eq!(found.is_ready(), found.missing().is_empty());
        assert!(found.devices.iter().all(|device| device.memory > 0 && !device.name.is_empty()));
    }
}
