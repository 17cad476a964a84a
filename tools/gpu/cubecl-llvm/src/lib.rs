//! The types by which CubeCL's CUDA backend names the LLVM backend, without LLVM.
//!
//! gradus compiles its kernels as CUDA C++ (`cubecl/cuda-cpp`), so no code calls this compiler. A call returns an
//! error.

use cubecl_core::CompilationError;
use cubecl_core::ir::nvidia::SmArch;
use cubecl_core::prelude::KernelDefinition;
use cubecl_environment::backtrace::BackTrace;
use cubecl_runtime::compiler::Compiler;
use cubecl_runtime::kernel::BufferIOAttr;

use nvptx::ptx_version::PtxVersion;

/// Target of the LLVM backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LlvmTarget {
    /// The processor.
    #[default]
    Cpu,
    /// NVIDIA's GPUs.
    Nvptx,
}

/// Stand-in for the compiler.
#[derive(Clone, Debug, Default)]
pub struct PlironCompiler {
    /// Target of the compilation.
    pub target: LlvmTarget,
}

/// Options of the compiler.
#[derive(Clone, Debug, Default)]
pub struct PlironOptions {
    /// An AMD architecture. Always `None`.
    pub arch: Option<()>,
    /// An NVIDIA architecture.
    pub sm_arch: Option<SmArch>,
    /// The version of the assembly.
    pub ptx_version: Option<PtxVersion>,
    /// Whether scalars are passed in the block of parameters.
    pub grid_constants: bool,
}

/// A compiled kernel. This crate creates none.
#[derive(Clone, Debug)]
pub struct NvptxModule {
    /// Assembly, terminated by a zero.
    pub ptx: Vec<core::ffi::c_char>,
    /// The name of the kernel.
    pub entrypoint: String,
    /// The intermediate representation.
    pub ir: String,
    /// Shared memory of a launch, in bytes.
    pub shared_memory_size: usize,
    /// How each buffer is used.
    pub io: Vec<BufferIOAttr>,
}

/// Result of a compilation.
#[derive(Clone, Debug)]
pub enum PlironArtifact {
    /// For the processor.
    Jit,
    /// For an NVIDIA GPU.
    NvptxCode(NvptxModule),
}

impl core::fmt::Display for PlironArtifact {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Jit => f.write_str("nothing"),
            Self::NvptxCode(module) => f.write_str(&module.ir),
        }
    }
}

impl Compiler for PlironCompiler {
    type Representation = PlironArtifact;
    type CompilationOptions = PlironOptions;

    fn compile(&mut self, _: KernelDefinition, _: &PlironOptions) -> Result<PlironArtifact, CompilationError> {
        Err(CompilationError::Generic {
            reason: "this build has no LLVM: kernels for NVIDIA GPUs are compiled as CUDA C++".into(),
            backtrace: BackTrace::capture(),
        })
    }

    fn extension(&self) -> &'static str {
        "ll"
    }

    fn lang_tag(&self) -> &'static str {
        "llvm"
    }
}

/// NVIDIA's assembly.
pub mod nvptx {
    /// Its versions.
    pub mod ptx_version {
        /// A version.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct PtxVersion(u32);

        impl PtxVersion {
            /// The version for a driver. Always `None`, because this crate emits no assembly.
            pub fn for_driver(_: i32) -> Option<Self> {
                None
            }
        }

        impl core::fmt::Display for PtxVersion {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, "ptx{}", self.0)
            }
        }
    }
}

/// Items that all targets share.
pub mod shared {
    /// Features of a device that the LLVM backend supports.
    pub mod lowered_features {
        use cubecl_core::ir::DeviceProperties;

        /// A kind of GPU.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum GpuTarget {
            /// NVIDIA's.
            Nvptx,
        }

        /// Removes the features that the LLVM backend does not support. Only a build that selects that backend calls
        /// this function.
        pub fn restrict_features(_: &mut DeviceProperties, _: GpuTarget) {}
    }
}
