//! Kernels as CUDA C++ without a GPU: the sources that NVRTC compiles at run time.

use std::sync::Arc;

use cubecl::cuda::{CudaCompilationOptions, CudaCompiler};
use cubecl::ir::features::Features;
use cubecl::ir::nvidia::SmArch;
use cubecl::ir::{DeviceIdentity, FloatKind, HardwareProperties, MemoryDeviceProperties};
use cubecl::prelude::*;
use cubecl::{Compiler, profile::TimingMethod};

/// Single precision.
pub(super) const F32: ElemType = ElemType::Float(FloatKind::F32);

/// Target for which kernels are compiled.
pub(super) struct Offline {
    device: Arc<DeviceProperties>,
    target: Arc<TargetProperties>,
}

/// A kernel in CUDA C++.
#[derive(Debug, Clone)]
pub struct Source {
    /// Name of the kernel with its types.
    pub name: String,
    /// Text of the program.
    pub text: String,
}

impl Offline {
    pub(super) fn new() -> Self {
        let hardware = HardwareProperties {
            load_width: 128,
            vector_register_count: None,
            plane_size_min: 32,
            plane_size_max: 32,
            max_bindings: 1024,
            max_shared_memory_size: 227 << 10,
            max_cube_count: (i32::MAX as u32, 65_535, 65_535),
            max_units_per_cube: 1024,
            max_cube_dim: (1024, 1024, 64),
            num_streaming_multiprocessors: None,
            num_tensor_cores: None,
            min_tensor_cores_dim: None,
            num_cpu_cores: None,
            last_level_cache_size: None,
            max_vector_size: VectorSize::MAX,
            cube_mma_reserved_shared_memory: 0,
        };
        let named = |name: &str| DeviceIdentity { name: name.into(), fingerprint: name.into(), physical: None };
        let memory = MemoryDeviceProperties::new(u64::MAX, 256);
        let (features, timing) = (Features::default(), TimingMethod::Device);
        Self {
            device: Arc::new(DeviceProperties::new(features, memory, hardware, timing, named("offline"))),
            target: Arc::new(TargetProperties::default()),
        }
    }

    pub(super) fn dtypes(&self) -> [ElemType; 2] {
        [F32, ElemType::Float(FloatKind::BF16)]
    }

    /// Types of input and result of kernels that may write an operand of a product.
    pub(super) fn conversions(&self) -> [[ElemType; 2]; 3] {
        let [f32, bf16] = self.dtypes();
        [[f32, f32], [f32, bf16], [bf16, bf16]]
    }

    pub(super) fn buffers<const N: usize>(&self) -> [BufferCompilationArg; N] {
        std::array::from_fn(|_| BufferCompilationArg { inplace: None })
    }

    pub(super) fn settings(&self, units: u32) -> KernelSettings {
        KernelSettings::new(*CubeDim::new_1d(units), ExecutionMode::Checked, AddressType::U32)
    }

    pub(super) fn device(&self) -> Arc<DeviceProperties> {
        Arc::clone(&self.device)
    }

    pub(super) fn target(&self) -> Arc<TargetProperties> {
        Arc::clone(&self.target)
    }

    pub(super) fn source(&self, name: &str, dtype: ElemType, kernel: &impl CubeKernel) -> Source {
        let mut options = CudaCompilationOptions { arch: Some(SmArch::new(90, true)), ..Default::default() };
        // CubeCL sets this on every NVIDIA GPU.
        options.cpp.supports_features.fast_math = true;
        let compiled = CudaCompiler::default().compile(kernel.define(), &options);
        let compiled = compiled.unwrap_or_else(|error| panic!("{name}, {dtype}: {error}"));
        Source { name: format!("{name}, {dtype}"), text: compiled.to_string() }
    }
}
