//! How much of a GPU's memory this program takes.

use burn::tensor::Device;

/// How much of a GPU's memory this program takes.
#[derive(Debug, Clone, Copy)]
pub struct DeviceMemory {
    /// Bytes that tensors are in now.
    pub in_use: u64,
    /// Bytes that CubeCL holds for them.
    pub reserved: u64,
}

/// How much of the memory of `device` this program takes now; none if it is no GPU.
pub fn device_memory(device: &Device) -> Option<DeviceMemory> {
    let client = crate::fused::gpu(device)?.client();
    let usage = client.memory_report(cubecl::MemoryScope::Device).usage();
    Some(DeviceMemory { in_use: usage.bytes_in_use, reserved: usage.bytes_reserved })
}
