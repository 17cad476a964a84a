//! Weights in 16, 8 and 4 bits. They stay compressed on the device and are expanded for each product; the mathematics
//! is in [`crate::quantized`].

use std::sync::OnceLock;

use burn::backend::ops::FloatTensorOps;
use burn::backend::{BackendTensor, DispatchTensor, DispatchTensorKind};
use burn::tensor::{DType, Shape, Tensor};
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{CubeBackend, CubeDevice};
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::{UNITS, Words, arg, as_dtype, computes, cube_of, dims, elements, grid_of_units, tensor_of};
use crate::linear::Layout;
use crate::product::{Mat, PackedMatrix, WeightFormat};
use crate::quantized::{BLOCK, Quantized};
use crate::table::OnDevices;

/// One unit per number. `scales` has one entry per `of_scale` numbers, and `map` holds the values of the codes.
#[cube(launch)]
fn expand_codes(codes: &[u32], map: &[f32], scales: &[f32], values: &mut [f32], of_scale: u32, #[comptime] bits: u32) {
    let i = ABSOLUTE_POS;
    if i < values.len() {
        let in_word = comptime!(32 / bits as usize);
        let shift = (i % in_word) as u32 * bits;
        let code = (codes[i / in_word] >> shift) & comptime!((1u32 << bits) - 1);
        values[i] = map[code as usize] * scales[i / (of_scale as usize)];
    }
}

/// One unit per number, with two numbers per word. A bf16 is the upper half of the f32 with its value.
#[cube(launch)]
fn expand_halves(halves: &[u32], values: &mut [f32]) {
    let i = ABSOLUTE_POS;
    if i < values.len() {
        let shift = (i % 2) as u32 * 16;
        values[i] = f32::reinterpret(((halves[i / 2] >> shift) & 0xffff) << 16);
    }
}

/// A weight in fewer than 32 bits, on the host.
#[derive(Debug)]
pub(crate) enum CompressedWeight {
    /// In 8 or 4 bits.
    Quantized(Quantized),
    /// In bf16, `[in, out]` with these sizes.
    Bf16(Vec<f32>, [usize; 2]),
}

/// A weight in bf16 that was converted on its device, `[out, in]`.
#[derive(Debug)]
pub(crate) struct Narrow {
    values: CubeTensor,
    packed: OnceLock<PackedMatrix>,
}

impl Narrow {
    /// Converts `weight`, given in its layout on disk, and returns it with a table of copies that contains it. `None` if its device is not
    /// a GPU that computes in bf16.
    pub(crate) fn new(weight: &Tensor<2>, layout: Layout) -> Option<(Self, OnDevices)> {
        let device = crate::fused::gpu(&weight.device()).filter(|device| computes(device, DType::BF16))?;
        let weight = cube_of(weight.clone().inner());
        let values = match layout {
            Layout::OutIn => weight,
            Layout::InOut => CubeBackend::float_transpose(weight),
        };
        // Memory of its own, which no other tensor can use later: the copies of a policy for sampling are freed before it is trained again.
        let client = values.client.clone();
        let values = client.memory_dedicated_allocation(values, |values| as_dtype(&values, DType::BF16));
        let ([out, width], copies) = (dims(&values), OnDevices::default());
        let words = Words { handle: values.handle.clone(), length: (out * width).div_ceil(2) };
        copies.get(&device, || OnDevice::Bf16(words, [out, width]));
        Some((Self { values, packed: OnceLock::new() }, copies))
    }

    /// Inner dimension and columns.
    pub(crate) fn dims(&self) -> [usize; 2] {
        let [out, width] = dims(&self.values);
        [width, out]
    }

    /// The same weight in host memory.
    pub(crate) fn on_host(&self) -> &PackedMatrix {
        self.packed.get_or_init(|| {
            let [out, width] = dims(&self.values);
            let values = tensor_of::<2>(as_dtype(&self.values, DType::F32)).into_data();
            let values = values.try_into_vec::<f32>().expect("f32");
            PackedMatrix::new(Mat::dense(&values, out, width).t(), WeightFormat::BF16)
        })
    }
}

/// A weight in fewer than 32 bits, on a device.
#[derive(Debug)]
enum OnDevice {
    Codes(Packed),
    /// Two numbers per word, `[out, in]`.
    Bf16(Words, [usize; 2]),
}

impl OnDevice {
    fn new(client: &Client, weight: &CompressedWeight) -> Self {
        // It lives as long as its model; see `long_lived`.
        client.memory_persistent_allocation((), |()| Self::created(client, weight))
    }

    fn created(client: &Client, weight: &CompressedWeight) -> Self {
        match weight {
            CompressedWeight::Quantized(weight) => Self::Codes(Packed::new(client, weight)),
            CompressedWeight::Bf16(values, [width, out]) => {
                let half = |i: usize| values[i % width * out + i / width].to_bits() >> 16;
                let numbers = width * out;
                let word = |at: usize| half(at) | if at + 1 < numbers { half(at + 1) << 16 } else { 0 };
                let words: Vec<u32> = (0..numbers).step_by(2).map(word).collect();
                Self::Bf16(Words::new(client, &words), [*out, *width])
            }
        }
    }

    /// Returns the numbers in f32, `[out, in]`.
    fn expanded(&self, client: &Client, device: &CubeDevice) -> CubeTensor {
        match self {
            Self::Codes(packed) => packed.expanded(client, device),
            Self::Bf16(words, shape) => {
                let shape = Shape::from(shape.to_vec());
                let values = empty_device_contiguous_dtype(client.clone(), device.clone(), shape, DType::F32);
                if elements(&values) > 0 {
                    let grid = grid_of_units(elements(&values));
                    expand_halves::launch(client, grid, CubeDim::new_1d(UNITS), words.arg(), arg(&values));
                }
                values
            }
        }
    }
}

/// A quantized weight on a device.
#[derive(Debug)]
struct Packed {
    shape: [usize; 2],
    codes: Words,
    map: Floats,
    scales: Floats,
    /// Numbers that share a scale.
    of_scale: u32,
    bits: u32,
}

/// Floats on a device.
#[derive(Debug)]
struct Floats(Handle, usize);

impl Floats {
    fn new(client: &Client, values: &[f32]) -> Self {
        let values = if values.is_empty() { &[0.0] } else { values };
        Self(client.create_from_slice(f32::as_bytes(values)), values.len())
    }

    fn arg(&self) -> BufferArg {
        // SAFETY: the buffer was created with this number of values.
        unsafe { BufferArg::from_raw_parts(self.0.clone(), self.1) }
    }
}

impl Packed {
    fn new(client: &Client, weight: &Quantized) -> Self {
        let words = |codes: &mut dyn Iterator<Item = u32>, bits: u32| {
            let in_word = (32 / bits) as usize;
            let mut words = Vec::new();
            for (i, code) in codes.enumerate() {
                match i % in_word {
                    0 => words.push(code),
                    place => *words.last_mut().expect("one was pushed") |= code << (bits * place as u32),
                }
            }
            Words::new(client, &words)
        };
        let shape @ [_, width] = weight.shape();
        match weight {
            Quantized::Int8(weight) => {
                let scales: Vec<f32> = weight.absmax().iter().map(|absmax| absmax / 127.0).collect();
                // Codes are the lower bits of integers; the map restores their signs.
                let map: Vec<f32> = (0..=u8::MAX).map(|code| f32::from(code.cast_signed())).collect();
                Self {
                    shape,
                    codes: words(&mut weight.codes().iter().map(|code| u32::from(code.cast_unsigned())), 8),
                    map: Floats::new(client, &map),
                    scales: Floats::new(client, &scales),
                    of_scale: width as u32,
                    bits: 8,
                }
            }
            Quantized::Nf4(weight) => {
                let blocks = (shape[0] * width).div_ceil(BLOCK);
                let scales: Vec<f32> = (0..blocks).map(|block| weight.absmax().at(block)).collect();
                // The upper half of a byte holds the first code.
                let mut codes = weight.codes().iter().flat_map(|&pair| [u32::from(pair >> 4), u32::from(pair & 15)]);
                Self {
                    shape,
                    codes: words(&mut codes, 4),
                    map: Floats::new(client, weight.map()),
                    scales: Floats::new(client, &scales),
                    of_scale: BLOCK as u32,
                    bits: 4,
                }
            }
        }
    }

    /// Returns the numbers in f32, `[out, in]`.
    fn expanded(&self, client: &Client, device: &CubeDevice) -> CubeTensor {
        let shape = Shape::from(self.shape.to_vec());
        let values = empty_device_contiguous_dtype(client.clone(), device.clone(), shape, DType::F32);
        if elements(&values) > 0 {
            expand_codes::launch(
                client,
                grid_of_units(elements(&values)),
                CubeDim::new_1d(UNITS),
                self.codes.arg(),
                self.map.arg(),
                self.scales.arg(),
                arg(&values),
                self.of_scale,
                self.bits,
            );
        }
        values
    }
}

/// Returns the numbers of a compressed weight, `[out, in]`. Its codes are copied to the device once, into `copies`.
pub(super) fn expanded(
    weight: impl FnOnce() -> CompressedWeight,
    copies: &OnDevices,
    device: &CubeDevice,
) -> CubeTensor {
    let client = device.client();
    copies.get(device, || OnDevice::new(&client, &weight())).expanded(&client, device)
}

/// Like [`expanded`], as the operand of a product: in bf16 if the weight is held in it and the device multiplies it.
pub(crate) fn operand(
    weight: impl FnOnce() -> CompressedWeight,
    copies: &OnDevices,
    device: &CubeDevice,
) -> CubeTensor {
    let client = device.client();
    match &*copies.get(device, || OnDevice::new(&client, &weight())) {
        OnDevice::Bf16(words, shape) if computes(device, DType::BF16) => {
            let shape = Shape::from(shape.to_vec());
            CubeTensor::new_contiguous(client, device.clone(), shape, words.handle.clone(), DType::BF16)
        }
        other => other.expanded(&client, device),
    }
}

/// Returns [`expanded`] as a tensor, `[in, out]`. `None` if `device` is not a GPU with kernels.
pub(crate) fn dense(
    weight: impl FnOnce() -> CompressedWeight,
    copies: &OnDevices,
    device: &burn::tensor::Device,
) -> Option<Tensor<2>> {
    let kind = DispatchTensorKind::Cube(BackendTensor::Float(expanded(weight, copies, &crate::fused::gpu(device)?)));
    let autodiff = Tensor::<1>::empty([0], &device.clone().inner()).into_dispatch().autodiff;
    let values = Tensor::<2>::from_dispatch(DispatchTensor { kind, autodiff }).transpose();
    Some(if device.is_autodiff() { values.autodiff() } else { values })
}

#[cfg(feature = "cuda")]
pub(super) fn offline(offline: &super::offline::Offline) -> Vec<super::offline::Source> {
    let of = |bits| {
        let ([a, b, c, d], settings) = (offline.buffers(), offline.settings(UNITS));
        let kernel = expand_codes::ExpandCodes::new(settings, offline.device(), offline.target(), a, b, c, d, (), bits);
        offline.source(&format!("expand {bits} bits"), super::offline::F32, &kernel)
    };
    let ([words, values], settings) = (offline.buffers(), offline.settings(UNITS));
    let halves = expand_halves::ExpandHalves::new(settings, offline.device(), offline.target(), words, values);
    vec![of(4), of(8), offline.source("expand bf16", super::offline::F32, &halves)]
}
