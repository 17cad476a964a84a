//! Capabilities of this machine that this build can use.

use std::collections::BTreeMap;

use gradus_kernels::Precision;
use serde::Serialize;

use crate::device::DeviceChoice;

/// Version of the tensor engine of this build.
const BURN_VERSION: &str = "0.22.1";

/// Capabilities of this machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Machine {
    /// Names accepted by `train.device` and `--device`.
    pub devices: Vec<String>,
    /// Those devices that can multiply operands in bf16.
    pub bf16_devices: Vec<String>,
    /// Memory in bytes of devices that have their own, if the driver reports it.
    pub device_memory_bytes: BTreeMap<String, u64>,
    /// Number of hardware threads.
    pub threads: usize,
    /// Name of the processor, if the system reports it.
    pub processor: Option<String>,
    /// Processor features that the kernels use, and whether this machine has them.
    pub processor_features: Vec<(&'static str, bool)>,
    /// Memory in bytes that this process may use: that of the machine, or the limit of its control group or of the
    /// process (`ulimit -v`), if the system reports it.
    pub memory_bytes: Option<u64>,
    /// Currently free memory in bytes.
    pub memory_free_bytes: Option<u64>,
    /// Components of this build, with versions.
    pub versions: Vec<(&'static str, &'static str)>,
    /// Compiled-in features.
    pub build: Vec<String>,
}

/// Formats a size in memory for messages: `1.5 GB`, with 10⁹ bytes per GB.
pub fn gigabytes(bytes: u64) -> String {
    format!("{:.1} GB", bytes as f64 / 1e9)
}

impl Machine {
    /// Inspects this machine.
    pub fn detect() -> Self {
        let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let devices = DeviceChoice::all();
        let in_bf16 = devices.iter().filter(|device| device.multiplies_in(Precision::Bf16));
        let memory_of = |device: &DeviceChoice| Some((device.to_string(), device.memory_bytes()?));
        Self {
            devices: devices.iter().map(ToString::to_string).collect(),
            bf16_devices: in_bf16.map(ToString::to_string).collect(),
            device_memory_bytes: devices.iter().filter_map(memory_of).collect(),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            processor: entry(&processor, "model name").map(str::to_owned),
            processor_features: processor_features(),
            memory_bytes: [kibibytes(&memory, "MemTotal"), control_group_limit(), address_space_limit()]
                .into_iter()
                .flatten()
                .min(),
            memory_free_bytes: kibibytes(&memory, "MemAvailable"),
            versions: vec![("gradus", env!("CARGO_PKG_VERSION")), ("burn", BURN_VERSION)],
            build: vec![
                format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
                if cfg!(debug_assertions) { "debug".into() } else { "release".into() },
            ],
        }
    }

    /// Returns the memory of the named device in bytes, if it has its own and the driver reports it.
    pub fn device_memory(&self, name: &str) -> Option<u64> {
        self.device_memory_bytes.get(name).copied()
    }

    /// Returns a warning about `--compute bf16` if it does not pay off here: the kernels multiply bf16 only with
    /// AVX512-BF16.
    pub fn bf16_warning(&self) -> Option<String> {
        let multiplies = self.processor_features.contains(&("avx512bf16", true));
        (!multiplies).then(|| {
            "`compute: bf16` halves what operands take, but this processor has no bf16 products (AVX512-BF16): steps take longer \
             than with `f32`"
                .to_owned()
        })
    }
}

/// Returns the value of `key` in a `key: value` listing, as written by Linux.
fn entry<'a>(listing: &'a str, key: &str) -> Option<&'a str> {
    listing.lines().filter_map(|line| line.split_once(':')).find(|(name, _)| name.trim() == key).map(|(_, v)| v.trim())
}

fn kibibytes(listing: &str, key: &str) -> Option<u64> {
    entry(listing, key)?.strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kibibytes| kibibytes * 1024)
}

/// Returns the memory limit of a container, from version 2 or 1 of the kernel's interface. Without a limit the file
/// contains `max`, or a number beyond all memory.
fn control_group_limit() -> Option<u64> {
    let files = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    files.iter().find_map(|file| std::fs::read_to_string(file).ok()?.trim().parse().ok())
}

/// Returns the limit set by `ulimit -v`; `unlimited` is none.
fn address_space_limit() -> Option<u64> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    limits.lines().find_map(|line| line.strip_prefix("Max address space")?.split_whitespace().next()?.parse().ok())
}

#[cfg(target_arch = "x86_64")]
fn processor_features() -> Vec<(&'static str, bool)> {
    vec![
        ("avx2", std::arch::is_x86_feature_detected!("avx2")),
        ("fma", std::arch::is_x86_feature_detected!("fma")),
        ("avx512f", std::arch::is_x86_feature_detected!("avx512f")),
        ("avx512bf16", std::arch::is_x86_feature_detected!("avx512bf16")),
    ]
}

#[cfg(target_arch = "aarch64")]
fn processor_features() -> Vec<(&'static str, bool)> {
    vec![
        ("neon", std::arch::is_aarch64_feature_detected!("neon")),
        ("bf16", std::arch::is_aarch64_feature_detected!("bf16")),
    ]
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn processor_features() -> Vec<(&'static str, bool)> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_linux_lists() {
        let listing = "MemTotal:       24689440 kB\nMemFree:         20 kB\n";
        assert_eq!(kibibytes(listing, "MemTotal"), Some(24_689_440 * 1024));
        assert_eq!(kibibytes(listing, "MemAvailable"), None);
        assert_eq!(entry("model name\t: AMD EPYC\n", "model name"), Some("AMD EPYC"));
    }

    #[test]
    fn the_engine_version_is_the_one_pinned() {
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml");
        let manifest = std::fs::read_to_string(manifest).expect("the workspace has a manifest");
        assert!(
            manifest.contains(&format!("burn = {{ version = \"={BURN_VERSION}\"")),
            "burn is pinned to another version"
        );
    }
}
