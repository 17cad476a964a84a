//! Times matrix products on an NVIDIA GPU with each of CubeCL's strategies, in f32 and with bf16 operands.
//!
//! `cargo bench --workspace --features cuda --bench products -- --device cuda [PART OF A NAME]…` prints one JSON object per line. The
//! choice in `src/gpu/product.rs` is based on these figures.

use std::io::{self, Write};
use std::time::Instant;

use burn::backend::cubecl::dtype_to_storage_type;
use burn::backend::ops::FloatTensorOps;
use burn::backend::{BackendTensor, DispatchTensorKind, TensorMetadata};
use burn::tensor::{DType, Device, DeviceType, Tensor, TensorData};
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::cast;
use burn_cubecl::kernel::matmul::utils::init_matmul_output;
use burn_cubecl::tensor::CubeTensor;
use cubek::matmul::definition::{MatmulElems, MatmulGlobalElems};
use cubek::matmul::launch::launch_ref;
use cubek::matmul::multi_level::Strategy as Staged;
use cubek::matmul::multi_level::routines::TileSizeSelection;
use cubek::matmul::multi_level::routines::batch::double_unit::DoubleUnitSelectionArgs;
use cubek::matmul::multi_level::routines::batch::ordered_double_buffering::OrderedSelectionArgs;
use cubek::matmul::multi_level::routines::batch::simple::SimpleArgs;
use cubek::matmul::multi_level::routines::batch::simple_unit::SimpleUnitSelectionArgs;
use cubek::matmul::routine::BlueprintStrategy::{self, Inferred};
use cubek::matmul::strategy::Strategy;
use cubek::matmul::tiled::Strategy as Tiled;
use cubek::matmul::tiled::cmma::CmmaStrategy;
use cubek::std::InputBinding;

/// Rows, inner dimension and columns, and which operands are transposed.
const PROBLEMS: [(&str, [usize; 3], [bool; 2]); 8] = [
    ("x·Wᵀ", [2048, 1024, 3072], [false, true]),
    ("g·W", [2048, 3072, 1024], [false, false]),
    ("gᵀ·x", [3072, 2048, 1024], [true, false]),
    ("long x·Wᵀ", [16384, 1024, 3072], [false, true]),
    ("logits", [2048, 1024, 16384], [false, true]),
    ("decode x·Wᵀ", [16, 1024, 3072], [false, true]),
    ("decode many x·Wᵀ", [256, 1024, 3072], [false, true]),
    ("square", [8192, 8192, 8192], [false, true]),
];

fn strategies(dtype: DType) -> Vec<(&'static str, Strategy)> {
    let of = |staged: Staged| Strategy::MultiLevel(staged);
    if dtype == DType::F32 {
        return vec![
            (
                "simple unit, large",
                of(Staged::SimpleUnit(Inferred(SimpleUnitSelectionArgs { tile_size: TileSizeSelection::MaxTileSize }))),
            ),
            (
                "double unit, large",
                of(Staged::DoubleUnit(Inferred(DoubleUnitSelectionArgs { tile_size: TileSizeSelection::MaxTileSize }))),
            ),
            (
                "double unit, small",
                of(Staged::DoubleUnit(Inferred(DoubleUnitSelectionArgs { tile_size: TileSizeSelection::MinTileSize }))),
            ),
            ("gemm", of(Staged::Gemm(BlueprintStrategy::default()))),
            ("auto", Strategy::Auto),
        ];
    }
    let simple = |multi_rows| Inferred(SimpleArgs { multi_rows, ..Default::default() });
    vec![
        ("auto", Strategy::Auto),
        ("simple mma, several rows", of(Staged::SimpleCyclicMma(simple(true)))),
        (
            "simple async mma, several rows",
            of(Staged::SimpleAsyncCyclicMma(Inferred(SimpleArgs { multi_rows: true, ..Default::default() }))),
        ),
        (
            "simple tma mma, several rows",
            of(Staged::SimpleTmaMma(Inferred(SimpleArgs { multi_rows: true, ..Default::default() }))),
        ),
        (
            "simple tma cmma, several rows",
            of(Staged::SimpleTmaCmma(Inferred(SimpleArgs { multi_rows: true, ..Default::default() }))),
        ),
        ("double cyclic mma", of(Staged::DoubleCyclicMma(BlueprintStrategy::default()))),
        ("double async cyclic mma", of(Staged::DoubleAsyncCyclicMma(BlueprintStrategy::default()))),
        ("double tma mma", of(Staged::DoubleTmaMma(BlueprintStrategy::default()))),
        ("specialized tma mma", of(Staged::SpecializedTmaMma(BlueprintStrategy::default()))),
        ("specialized tma cmma", of(Staged::SpecializedTmaCmma(BlueprintStrategy::default()))),
        ("specialized cyclic mma", of(Staged::SpecializedCyclicMma(BlueprintStrategy::default()))),
        (
            "ordered double mma",
            of(Staged::OrderedDoubleMma(Inferred(OrderedSelectionArgs {
                partition_k: Some(2),
                row_count: Some(8),
                rows_per_plane: Some(2),
                ..Default::default()
            }))),
        ),
        ("tiled cmma, async", Strategy::Tiled(Tiled::Cmma(Inferred(CmmaStrategy::async_copy())))),
        ("tiled cmma, tma", Strategy::Tiled(Tiled::Cmma(Inferred(CmmaStrategy::tma())))),
        ("gemm", of(Staged::Gemm(BlueprintStrategy::default()))),
    ]
}

fn cube(tensor: Tensor<2>) -> CubeTensor {
    match tensor.into_dispatch().kind {
        DispatchTensorKind::Cube(BackendTensor::Float(tensor)) => tensor,
        _ => unreachable!("a tensor of floats on a GPU"),
    }
}

fn multiply(strategy: &Strategy, lhs: &CubeTensor, rhs: &CubeTensor) -> Result<CubeTensor, String> {
    let out = init_matmul_output(lhs, rhs, DType::F32);
    let [lhs_type, rhs_type, out_type] = [lhs, rhs, &out].map(|tensor| dtype_to_storage_type(tensor.dtype));
    let mut elems = MatmulElems::from_globals(&MatmulGlobalElems { lhs: lhs_type, rhs: rhs_type, out: out_type });
    let [a, b] =
        [(lhs, lhs_type), (rhs, rhs_type)].map(|(tensor, dtype)| InputBinding::new(tensor.clone().binding(), dtype));
    launch_ref(strategy, &lhs.client, a, b, out.clone().binding(), &mut elems).map_err(|error| format!("{error:?}"))?;
    Ok(out)
}

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test` also runs benches, and there is nothing to check here.
    if !arguments.iter().any(|argument| argument == "--device") {
        return Ok(());
    }
    let asked: Vec<&String> =
        arguments.iter().filter(|word| !["--device", "cuda", "--bench"].contains(&word.as_str())).collect();
    let Some(device) = Device::enumerate(DeviceType::Cuda).into_vec().into_iter().next() else {
        return Err(io::Error::other("there is no GPU of NVIDIA's"));
    };
    let mut out = io::stdout().lock();
    for dtype in [DType::BF16, DType::F32] {
        for (problem, [m, k, n], transposed) in PROBLEMS {
            let operand = |rows: usize, columns: usize, is_transposed: bool, seed: usize| {
                let shape = if is_transposed { [columns, rows] } else { [rows, columns] };
                let numbers = (0..rows * columns).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1001.5 - 1.0);
                let tensor = cube(Tensor::from_data(TensorData::new(numbers.collect::<Vec<f32>>(), shape), &device));
                let tensor = if dtype == DType::F32 { tensor } else { cast(tensor, dtype) };
                if is_transposed { CubeBackend::float_transpose(tensor) } else { tensor }
            };
            let (lhs, rhs) = (operand(m, k, transposed[0], 1), operand(k, n, transposed[1], 2));
            for (name, strategy) in strategies(dtype) {
                if !asked.is_empty()
                    && !asked.iter().any(|part| name.contains(part.as_str()) || problem.contains(part.as_str()))
                {
                    continue;
                }
                let line = measured(&strategy, &lhs, &rhs, &device, [m, k, n]);
                writeln!(
                    out,
                    "{{\"dtype\": \"{dtype:?}\", \"problem\": \"{problem}\", \"strategy\": \"{name}\", {line}}}"
                )?;
                out.flush()?;
            }
        }
    }
    Ok(())
}

/// Time per product with many queued at once, and the error of some of its numbers.
fn measured(strategy: &Strategy, lhs: &CubeTensor, rhs: &CubeTensor, device: &Device, [m, k, n]: [usize; 3]) -> String {
    let start = Instant::now();
    let attempt = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| multiply(strategy, lhs, rhs)));
    let product = match attempt {
        Ok(Ok(product)) => product,
        Ok(Err(error)) => return format!("\"error\": {:?}", error.chars().take(200).collect::<String>()),
        Err(_) => return "\"error\": \"panicked\"".into(),
    };
    if device.sync().is_err() {
        return "\"error\": \"did not run\"".into();
    }
    let first = start.elapsed();
    // Compares some rows with f64 sums over the operands as they are stored.
    let host = |tensor: CubeTensor| -> Vec<f32> {
        let tensor = if tensor.dtype == DType::F32 { tensor } else { cast(tensor, DType::F32) };
        let kind = DispatchTensorKind::Cube(BackendTensor::Float(tensor));
        let tensor: Tensor<2> = Tensor::from_dispatch(burn::backend::DispatchTensor {
            kind,
            autodiff: burn::backend::DispatchAutodiffContext::Disabled,
        });
        tensor.into_data().try_to_vec().expect("f32")
    };
    let is_large = m * n > 1 << 25;
    let error = (!is_large).then(|| {
        let (a, b, c) = (host(lhs.clone()), host(rhs.clone()), host(product.clone()));
        let mut worst = 0.0f64;
        for i in (0..m).step_by(m / 7 + 1) {
            for j in (0..n).step_by(n / 11 + 1) {
                let sum: f64 = (0..k).map(|l| f64::from(a[i * k + l]) * f64::from(b[l * n + j])).sum();
                worst = worst.max((f64::from(c[i * n + j]) - sum).abs());
            }
        }
        worst
    });
    const QUEUED: usize = 20;
    let mut samples: Vec<f64> = (0..5)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..QUEUED {
                let _result = multiply(strategy, lhs, rhs);
            }
            device.sync().expect("the device answers");
            start.elapsed().as_secs_f64() / QUEUED as f64
        })
        .collect();
    samples.sort_by(f64::total_cmp);
    let seconds = samples[2];
    let teraflops = 2.0 * (m * n * k) as f64 / seconds / 1e12;
    let error = error.map_or("null".into(), |error| format!("{error:e}"));
    debug_assert_eq!(product.shape().num_elements(), m * n);
    format!(
        "\"us\": {:.1}, \"teraflops\": {teraflops:.1}, \"error_of_largest\": {error}, \"first_s\": {:.2}",
        seconds * 1e6,
        first.as_secs_f64()
    )
}
