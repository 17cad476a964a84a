//! One AdamW step over many parameters, one unit per element; the mathematics is in [`crate::adamw`].

use std::sync::LazyLock;

use burn::tensor::{DType, Shape, Tensor};
use burn_cubecl::CubeDevice;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::{UNITS, Words, arg, batch, cube_max, cube_of, elements, grid, segments, table_arg, tensor_of};
use crate::adamw::Rates;
use crate::dynamic::{BLOCK, Codes, DynamicMap, SIGNED, STEPS, UNSIGNED};
use crate::table::{OnDevices, Table};

/// Largest number of parameters per launch. Each takes four of the buffers that a device can bind.
const TENSORS: usize = 16;

/// One step of many parameters. Parameter `t` begins at cube `segments[2 t]` and is decayed if `segments[2 t + 1]` is 1.
#[cube(launch)]
fn adamw_each(
    parameters: &mut Sequence<Box<[f32]>>,
    firsts: &mut Sequence<Box<[f32]>>,
    seconds: &mut Sequence<Box<[f32]>>,
    gradients: &Sequence<Box<[f32]>>,
    segments: &[u32],
    beta1: f32,
    beta2: f32,
    rest1: f32,
    rest2: f32,
    step_size: f32,
    root_correction: f32,
    keep: f32,
    epsilon: f32,
    scale: f32,
    #[comptime] count: usize,
) {
    #[unroll]
    for t in 0..count {
        let begin = segments[2 * t] as usize;
        let end = segments[2 * t + 2] as usize;
        if CUBE_POS >= begin && CUBE_POS < end {
            let i = (CUBE_POS - begin) * (CUBE_DIM as usize) + (UNIT_POS as usize);
            if i < parameters[t].len() {
                let kept = select(segments[2 * t + 1] == 1, keep, 1.0f32);
                let g = gradients[t][i] * scale;
                let m = beta1 * firsts[t][i] + rest1 * g;
                let v = beta2 * seconds[t][i] + rest2 * g * g;
                let moved = parameters[t][i] * kept - step_size * m / (v.sqrt() * root_correction + epsilon);
                let first = firsts.index_mut(t);
                first[i] = m;
                let second = seconds.index_mut(t);
                second[i] = v;
                let parameter = parameters.index_mut(t);
                parameter[i] = moved;
            }
        }
    }
}

/// Returns the tensor itself if this is its only handle, or else a copy.
fn own(tensor: CubeTensor) -> CubeTensor {
    let tensor = into_contiguous(tensor);
    if tensor.can_mut() { tensor } else { tensor.copy() }
}

/// A parameter with its two moments, its gradient and its rates, which may differ only in the decay.
pub(crate) type Moved = ([CubeTensor; 3], CubeTensor, Rates);

/// Updates parameters and their moments, as many per launch as the device binds. Tensors without other handles are updated in place.
pub(crate) fn update_each(all: Vec<Moved>) -> Vec<[CubeTensor; 3]> {
    let Some(([first, ..], ..)) = all.first() else { return Vec::new() };
    let (client, device) = (first.client.clone(), first.device.clone());
    let at_once = batch(&client, 4, TENSORS);
    let mut moved = Vec::with_capacity(all.len());
    let mut rest = all.into_iter().peekable();
    while rest.peek().is_some() {
        let batch: Vec<Moved> = rest.by_ref().take(at_once).collect();
        moved.extend(update_batch(batch, &client, &device));
    }
    moved
}

fn update_batch(batch: Vec<Moved>, client: &Client, device: &CubeDevice) -> Vec<[CubeTensor; 3]> {
    let ready = |(tensors, gradient, rates): Moved| (tensors.map(own), into_contiguous(gradient), rates);
    let batch: Vec<Moved> = batch.into_iter().map(ready).collect();
    // An empty tensor cannot be bound.
    let bound: Vec<&Moved> = batch.iter().filter(|(tensors, ..)| elements(&tensors[0]) > 0).collect();
    if let Some((.., rates)) = bound.first() {
        let sizes = bound.iter().map(|(tensors, ..)| elements(&tensors[0]).div_ceil(UNITS as usize));
        let keep = bound.iter().map(|(.., rates)| rates.keep).find(|keep| *keep != 1.0).unwrap_or(1.0);
        let marks = bound.iter().map(|(.., rates)| u32::from(rates.keep != 1.0));
        let (cubes, segments) = segments(sizes.zip(marks), client, device);
        let each = |of: fn(&Moved) -> &CubeTensor| bound.iter().map(|moved| arg(of(moved))).collect::<SequenceArg<_>>();
        adamw_each::launch(
            client,
            grid(cubes),
            CubeDim::new_1d(UNITS),
            each(|([parameter, ..], ..)| parameter),
            each(|([_, first, _], ..)| first),
            each(|([.., second], ..)| second),
            each(|(_, gradient, _)| gradient),
            segments.arg(),
            rates.beta1,
            rates.beta2,
            rates.rest1,
            rates.rest2,
            rates.step_size,
            rates.root_correction,
            keep,
            rates.epsilon,
            rates.scale,
            bound.len(),
        );
    }
    batch.into_iter().map(|(tensors, ..)| tensors).collect()
}

/// One cube per block of a parameter, one unit per number. A word holds four codes. `maps` holds the values of the codes of the first and
/// of the second moment. `steps` holds the codes of all steps from −1 to 1 for both; see [`crate::dynamic`].
#[cube(launch)]
fn adamw_int8(
    parameter: &mut [f32],
    gradient: &[f32],
    first: &mut [u32],
    second: &mut [u32],
    first_sizes: &mut [f32],
    second_sizes: &mut [f32],
    maps: &[f32],
    steps: &[u32],
    beta1: f32,
    beta2: f32,
    rest1: f32,
    rest2: f32,
    step_size: f32,
    root_correction: f32,
    keep: f32,
    epsilon: f32,
    scale: f32,
) {
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(BLOCK));
    let mut codes1 = Shared::<[u32]>::new_slice(comptime!(BLOCK));
    let mut codes2 = Shared::<[u32]>::new_slice(comptime!(BLOCK));
    let (block, unit) = (CUBE_POS, UNIT_POS as usize);
    let i = block * comptime!(BLOCK) + unit;
    let is_block = block < first_sizes.len();
    let is_number = i < parameter.len();
    let mut m = 0.0f32;
    let mut v = 0.0f32;
    if is_number {
        let shift = ((i % 4) * 8) as u32;
        let code1 = (first[i / 4] >> shift) & 255;
        let code2 = (second[i / 4] >> shift) & 255;
        let g = gradient[i] * scale;
        m = beta1 * (maps[code1 as usize] * first_sizes[block]) + rest1 * g;
        v = beta2 * (maps[256 + code2 as usize] * second_sizes[block]) + rest2 * g * g;
        parameter[i] = parameter[i] * keep - step_size * m / (v.sqrt() * root_correction + epsilon);
    }
    let size1 = min(cube_max(m.abs(), &mut scratch), f32::MAX);
    let size2 = min(cube_max(v, &mut scratch), f32::MAX);
    codes1[unit] = code_of(m, size1, steps, 0);
    codes2[unit] = code_of(v, size2, steps, comptime!(STEPS / 4));
    // Wait until all units have read the sizes.
    sync_cube();
    if is_block && unit == 0 {
        first_sizes[block] = size1;
        second_sizes[block] = size2;
    }
    if is_block && unit < comptime!(BLOCK / 4) {
        let word = block * comptime!(BLOCK / 4) + unit;
        let at = unit * 4;
        first[word] = codes1[at] | (codes1[at + 1] << 8) | (codes1[at + 2] << 16) | (codes1[at + 3] << 24);
        second[word] = codes2[at] | (codes2[at + 1] << 8) | (codes2[at + 2] << 16) | (codes2[at + 3] << 24);
    }
}

/// Values of the codes of first and second moments.
static MAPS: LazyLock<Table<f32>> = LazyLock::new(|| SIGNED.values.into_iter().chain(UNSIGNED.values).collect());

/// Codes of all steps on each device.
static STEP_CODES: LazyLock<OnDevices> = LazyLock::new(OnDevices::default);

/// Codes of all steps for first and second moments, four per word.
fn step_codes() -> Vec<u32> {
    let words = |map: &DynamicMap| {
        let words = map.codes.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word));
        words.collect::<Vec<_>>()
    };
    [words(&SIGNED), words(&UNSIGNED)].concat()
}

/// Returns the code of a number in a block of this size. The codes of its steps begin at word `begin`.
#[cube]
fn code_of(number: f32, size: f32, steps: &[u32], begin: usize) -> u32 {
    let mut code = 0u32;
    if size > 0.0 {
        let scaled = clamp(number * (1.0 / size), -1.0, 1.0);
        let step = ((scaled + 1.0) * 0.5 * comptime!((STEPS - 1) as f32) + 0.5) as u32 as usize;
        code = (steps[begin + step / 4] >> (((step % 4) * 8) as u32)) & 255;
    }
    code
}

/// Both moments of a parameter in eight bits, on a device.
#[derive(Debug, Clone)]
pub(crate) struct Int8Moments {
    numbers: usize,
    /// Codes of both moments, four per word, in whole blocks.
    codes: [CubeTensor; 2],
    /// Block sizes of both moments.
    sizes: [CubeTensor; 2],
}

impl Int8Moments {
    pub(crate) fn new(moments: &[Codes; 2], device: &CubeDevice) -> Self {
        let client = device.client();
        let tensor = |handle: Handle, length: usize, dtype: DType| {
            CubeTensor::new_contiguous(client.clone(), device.clone(), Shape::from(vec![length]), handle, dtype)
        };
        let codes = |Codes { codes, sizes }: &Codes| {
            let mut bytes = codes.clone();
            bytes.resize(sizes.len().max(1) * BLOCK, 0);
            let words: Vec<u32> = bytes.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word)).collect();
            tensor(client.create_from_slice(u32::as_bytes(&words)), words.len(), DType::U32)
        };
        let sizes = |Codes { sizes, .. }: &Codes| {
            let sizes = if sizes.is_empty() { &[0.0] } else { sizes.as_slice() };
            tensor(client.create_from_slice(f32::as_bytes(sizes)), sizes.len(), DType::F32)
        };
        let numbers = moments[0].codes.len();
        Self { numbers, codes: moments.each_ref().map(codes), sizes: moments.each_ref().map(sizes) }
    }

    pub(crate) fn numbers(&self) -> usize {
        self.numbers
    }

    /// Reads both moments.
    pub(crate) fn to_host(&self) -> [Codes; 2] {
        let read = |tensor: &CubeTensor| {
            let bytes = tensor.client.read_one(tensor.handle.clone());
            bytes.expect("a buffer of the device can be read").to_vec()
        };
        std::array::from_fn(|moment| {
            let (mut codes, sizes) = (read(&self.codes[moment]), read(&self.sizes[moment]));
            codes.truncate(self.numbers);
            let sizes = sizes.as_chunks().0.iter().map(|&size| f32::from_le_bytes(size));
            Codes { codes, sizes: sizes.take(self.numbers.div_ceil(BLOCK)).collect() }
        })
    }

    /// Takes one step of a parameter on the same device.
    pub(crate) fn step(&mut self, parameter: Tensor<1>, gradient: Tensor<1>, rates: &Rates) -> Tensor<1> {
        let (parameter, gradient) = (own(cube_of(parameter)), into_contiguous(cube_of(gradient)));
        if self.numbers == 0 {
            return tensor_of(parameter);
        }
        for held in self.codes.iter_mut().chain(&mut self.sizes) {
            if !held.can_mut() {
                *held = held.copy();
            }
        }
        let client = &parameter.client;
        let steps = STEP_CODES.get(&parameter.device, || Words::new(client, &step_codes()));
        adamw_int8::launch(
            client,
            grid(self.numbers.div_ceil(BLOCK)),
            CubeDim::new_1d(BLOCK as u32),
            arg(&parameter),
            arg(&gradient),
            arg(&self.codes[0]),
            arg(&self.codes[1]),
            arg(&self.sizes[0]),
            arg(&self.sizes[1]),
            table_arg(&MAPS, &parameter),
            steps.arg(),
            rates.beta1,
            rates.beta2,
            rates.rest1,
            rates.rest2,
            rates.step_size,
            rates.root_correction,
            rates.keep,
            rates.epsilon,
            rates.scale,
        );
        tensor_of(parameter)
    }
}

#[cfg(feature = "cuda")]
pub(super) fn offline(offline: &super::offline::Offline) -> Vec<super::offline::Source> {
    let of = |tensors: usize| {
        let each = || offline.buffers::<TENSORS>().into_iter().take(tensors).collect();
        let ([segments], settings) = (offline.buffers(), offline.settings(UNITS));
        let (device, target) = (offline.device(), offline.target());
        let kernel = adamw_each::AdamwEach::new(
            settings,
            device,
            target,
            each(),
            each(),
            each(),
            each(),
            segments,
            (),
            (),
            (),
            (),
            (),
            (),
            (),
            (),
            (),
            tensors,
        );
        offline.source(&format!("adamw of {tensors}"), super::offline::F32, &kernel)
    };
    let mut sources = vec![of(1), of(TENSORS)];
    let ([a, b, c, d, e, f, g, h], settings) = (offline.buffers(), offline.settings(BLOCK as u32));
    let (device, target) = (offline.device(), offline.target());
    let kernel = adamw_int8::AdamwInt8::new(
        settings,
        device,
        target,
        a,
        b,
        c,
        d,
        e,
        f,
        g,
        h,
        (),
        (),
        (),
        (),
        (),
        (),
        (),
        (),
        (),
    );
    sources.push(offline.source("adamw, moments in int8", super::offline::F32, &kernel));
    sources
}
