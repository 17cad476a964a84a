//! Matrix products on tensor cores: launches of `product.cu`.

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;

use super::{Buffer, Program, runs_on};
use crate::gpu::{dims, empty};

const TEXT: &str = include_str!("product.cu");

/// Rows per tile.
const ROWS: usize = 128;
/// Columns per tile. The smaller number is used if larger tiles would leave multiprocessors idle.
const COLUMNS: [usize; 2] = [128, 64];

/// Rows, columns and inner dimension of `op(a) · op(b)`.
fn sizes(a: &CubeTensor, b: &CubeTensor, [of_a, of_b]: [bool; 2]) -> [usize; 3] {
    let ([top, side], [above, beside]) = (dims(a), dims(b));
    let (rows, inner) = if of_a { (side, top) } else { (top, side) };
    [rows, if of_b { above } else { beside }, inner]
}

/// Computes `op(a) · op(b)` of bf16 operands with f32 sums, where `op` transposes the operands marked in `transposed`. The result is in
/// `dtype`, f32 or bf16. `None` if there is no kernel: on other GPUs, for more than two dimensions, and if rows do not begin at multiples of
/// 16 bytes.
pub(crate) fn multiply(a: &CubeTensor, b: &CubeTensor, transposed: [bool; 2], dtype: DType) -> Option<CubeTensor> {
    let is_matrix = |x: &CubeTensor| x.meta.num_dims() == 2 && dims(x)[1].is_multiple_of(8);
    if !(runs_on(&a.device) && is_matrix(a) && is_matrix(b)) {
        return None;
    }
    let [rows, columns, inner] = sizes(a, b, transposed);
    let processors = a.client.properties().hardware.num_streaming_multiprocessors.unwrap_or(1) as usize;
    let blocks = |of_tile: usize| rows.div_ceil(ROWS) * columns.div_ceil(of_tile);
    let of_tile = COLUMNS.into_iter().find(|&of_tile| blocks(of_tile) >= processors).unwrap_or(COLUMNS[1]);
    let out = empty(a, &[rows, columns], dtype);
    program(of_tile, transposed, dtype).launch(
        &a.client,
        [blocks(of_tile) as u32, 1],
        [Buffer::read(a), Buffer::read(b), Buffer::written(&out)],
        &[rows, columns, inner].map(|size| size as u32),
    );
    Some(out)
}

fn program(columns: usize, transposed: [bool; 2], dtype: DType) -> Program {
    let [left, right, narrow] = [transposed[0], transposed[1], dtype == DType::BF16].map(u8::from);
    let defines = format!(
        "#define COLUMNS {columns}\n#define LEFT_TRANSPOSED {left}\n#define RIGHT_TRANSPOSED {right}\n#define NARROW {narrow}\n"
    );
    Program { text: TEXT, defines, entry: "product" }
}

/// Sources of the kernels as passed to NVRTC.
pub(in crate::gpu) fn offline(_: &crate::gpu::offline::Offline) -> Vec<crate::gpu::offline::Source> {
    let mut sources = Vec::new();
    for columns in COLUMNS {
        for transposed in [[false, false], [false, true], [true, false]] {
            for dtype in [DType::F32, DType::BF16] {
                let name = format!("product on tensor cores, {columns} columns, transposed {transposed:?}, {dtype:?}");
                sources.push(crate::gpu::offline::Source { name, text: program(columns, transposed, dtype).source() });
            }
        }
    }
    sources
}
