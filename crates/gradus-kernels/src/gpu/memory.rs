//! GPU memory used by this process.

use burn::tensor::Device;

/// Memory of a GPU that this process uses.
#[derive(Debug, Clone, Copy)]
pub struct DeviceMemory {
    /// Bytes in use by tensors.
    pub in_use: u64,
    /// Bytes that CubeCL has reserved for tensors.
    pub reserved: u64,
}

/// Returns the memory of `device` that this process uses. `None` if it is not a GPU.
pub fn device_memory(device: &Device) -> Option<DeviceMemory> {
    let client = crate::fused::gpu(device)?.client();
    let usage = client.memory_report(cubecl::MemoryScope::Device).usage();
    Some(DeviceMemory { in_use: usage.bytes_in_use, reserved: usage.bytes_reserved })
}
