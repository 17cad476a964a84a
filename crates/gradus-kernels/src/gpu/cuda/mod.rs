//! Kernels in CUDA C++ that need tensor cores. CubeCL compiles them with NVRTC and queues them with its own kernels.

pub(crate) mod attention;
pub(crate) mod cublas;
pub(crate) mod product;

use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::attributes::BufferIOAttr;
use cubecl::ir::metadata::Info;
use cubecl::ir::{ElemType, UIntKind};
use cubecl::prelude::*;
use cubecl::server::{BufferBinding, KernelArguments, MetadataBindingInfo};
use cubecl::{CubeKernel, PrecompiledSource};

use super::{Words, computes};
use burn::tensor::DType;

/// Instructions that all files use.
const INSTRUCTIONS: &str = include_str!("instructions.cu");
/// Threads per block: four warps.
const THREADS: u32 = 128;

/// Whether kernels of this module run on `device`: an NVIDIA GPU with bf16.
pub(crate) fn runs_on(device: &CubeDevice) -> bool {
    matches!(device, CubeDevice::Cuda(_)) && computes(device, DType::BF16)
}

/// One kernel of a file, with its compile-time constants.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Program {
    /// Text of the file.
    pub(crate) text: &'static str,
    /// `#define`s in front of the file.
    pub(crate) defines: String,
    /// Name of the kernel in the file.
    pub(crate) entry: &'static str,
}

impl Program {
    /// Returns the whole source.
    pub(crate) fn source(&self) -> String {
        format!("{}{INSTRUCTIONS}{}", self.defines, self.text)
    }

    fn settings(&self) -> KernelSettings {
        KernelSettings::new(*CubeDim::new_1d(THREADS), ExecutionMode::Checked, AddressType::U32)
    }

    /// Queues the kernel over a grid of `columns` × `rows` blocks. The kernel receives `buffers` in order, and `scalars` as a struct of
    /// 32-bit numbers.
    pub(crate) fn launch<const N: usize>(
        self,
        client: &Client,
        [columns, rows]: [u32; 2],
        buffers: [Buffer; N],
        scalars: &[u32],
    ) {
        let mut arguments = KernelArguments::new();
        for Buffer(binding, io) in buffers {
            arguments = arguments.with_buffer_io(binding, io);
        }
        let pair = |pair: &[u32]| u64::from(pair[0]) | u64::from(pair.get(1).copied().unwrap_or(0)) << 32;
        let data: Vec<u64> = scalars.chunks(2).map(pair).collect();
        // All of it is passed by value.
        let dynamic_metadata_offset = data.len();
        arguments.info = MetadataBindingInfo { data, dynamic_metadata_offset };
        client.launch(Box::new(self), CubeCount::Static(columns, rows, 1), arguments);
    }
}

/// A buffer as a kernel argument.
pub(crate) struct Buffer(BufferBinding, BufferIOAttr);

impl Buffer {
    /// A buffer that the kernel reads.
    pub(crate) fn read(tensor: &CubeTensor) -> Self {
        Self(tensor.handle.clone().binding(), BufferIOAttr::ReadOnly)
    }

    /// A buffer that the kernel writes.
    pub(crate) fn written(tensor: &CubeTensor) -> Self {
        Self(tensor.handle.clone().binding(), BufferIOAttr::ReadWrite)
    }
}

impl From<&Words> for Buffer {
    fn from(words: &Words) -> Self {
        Self(words.handle.clone().binding(), BufferIOAttr::ReadOnly)
    }
}

impl KernelMetadata for Program {
    fn name(&self) -> &'static str {
        self.entry
    }

    fn id(&self) -> KernelId {
        KernelId::new::<Self>().info(self.clone()).cube_dim(*CubeDim::new_1d(THREADS))
    }

    fn address_type(&self) -> ElemType {
        ElemType::UInt(UIntKind::U32)
    }
}

impl CubeKernel for Program {
    fn define(&self) -> KernelDefinition {
        let settings = self.settings();
        KernelDefinition { body: Scope::root(settings.clone()), settings, info: Info::default() }
    }

    fn source(&self) -> Option<PrecompiledSource> {
        Some(PrecompiledSource { source: Self::source(self), entrypoint_name: self.entry.into(), lang: "cuda" })
    }
}
