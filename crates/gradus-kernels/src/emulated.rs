//! Kernels of `gpu/cuda/*.cu` on the CPU: `tests/emulated/` compiles them as plain C++ with emulated GPU instructions.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::fused::testing::values;

#[path = "../../gradus/tests/support/skip.rs"]
mod skip;

/// Compiles a file of `tests/emulated/` into `folder`. `None` without a C++ compiler.
pub(crate) fn compiled(file: &str, defines: &[(&str, usize)], folder: &Path) -> Option<PathBuf> {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/emulated").join(file);
    let program = folder.join("program");
    let mut command = Command::new(&compiler);
    command.args(["-O1", "-std=c++17", "-w"]).args(defines.iter().map(|(name, value)| format!("-D{name}={value}")));
    let Ok(output) = command.arg(source).arg("-o").arg(&program).output() else {
        skip::skipped("c++", &format!("kernels for tensor cores are not emulated: there is no `{compiler}`"));
        return None;
    };
    assert!(output.status.success(), "{file}: {}", String::from_utf8_lossy(&output.stderr));
    Some(program)
}

/// Runs `f` with a temporary folder.
pub(crate) fn in_folder(name: &str, f: impl FnOnce(&Path)) {
    let folder = std::env::temp_dir().join(format!("gradus-emulated-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    f(&folder);
    std::fs::remove_dir_all(&folder).expect("its own folder");
}

/// Returns `bytes` bytes of output of `program` for `input`.
pub(crate) fn answer(program: &Path, input: &[u8], bytes: usize) -> Vec<u8> {
    let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    child.stdin.take().expect("a pipe").write_all(input).expect("it reads");
    let mut output = vec![0; bytes];
    child.stdout.take().expect("a pipe").read_exact(&mut output).expect("it answers");
    assert!(child.wait().expect("it ends").success());
    output
}

/// Numbers that bf16 represents exactly.
pub(crate) fn halves(n: usize, seed: u64) -> Vec<f32> {
    values(n, seed).into_iter().map(|value| f32::from_bits(value.to_bits() & 0xffff_0000)).collect()
}

/// ‖found − expected‖ / ‖expected‖.
pub(crate) fn distance(found: &[f32], expected: &[f32]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let difference = norm(&mut found.iter().zip(expected).map(|(a, b)| f64::from(a - b)));
    difference / norm(&mut expected.iter().map(|&value| f64::from(value))).max(1e-9)
}

/// `left · right` of matrices of `rows` × `inner` and `inner` × `columns`, computed by the kernel.
fn product(program: &Path, blocks: u32, is_late: bool, sizes: [usize; 3], operands: [&[f32]; 2]) -> Vec<f32> {
    let [rows, columns, _] = sizes;
    let head = [blocks, u32::from(is_late)].into_iter().chain(sizes.map(|size| size as u32));
    let mut input: Vec<u8> = head.flat_map(u32::to_le_bytes).collect();
    let halves = operands.into_iter().flatten().flat_map(|value| ((value.to_bits() >> 16) as u16).to_le_bytes());
    input.extend(halves);
    let output = answer(program, &input, 4 * rows * columns);
    output.chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four"))).collect()
}

#[test]
fn products_of_any_layout_are_those_of_the_definition() {
    // A partly filled tile, several tiles, and inner dimensions that are no multiple of a step.
    for (i, [rows, columns, inner]) in
        [[8, 8, 8], [136, 72, 40], [200, 136, 72], [130, 264, 104]].into_iter().enumerate()
    {
        for transposed in [[false, false], [false, true], [true, false], [true, true]] {
            let of_tile = [128, 64][i % 2];
            let [left, right] = transposed.map(usize::from);
            let narrow = i / 2 % 2;
            let defines =
                [("COLUMNS", of_tile), ("LEFT_TRANSPOSED", left), ("RIGHT_TRANSPOSED", right), ("NARROW", narrow)];
            in_folder(&format!("product-{i}-{left}-{right}"), |folder| {
                let Some(program) = compiled("product.cpp", &defines, folder) else { return };
                let (a, b) = (halves(rows * inner, 1), halves(inner * columns, 2));
                let at_a = |r: usize, k: usize| if transposed[0] { a[k * rows + r] } else { a[r * inner + k] };
                let at_b = |k: usize, c: usize| if transposed[1] { b[c * inner + k] } else { b[k * columns + c] };
                let sum = |r, c| (0..inner).map(|k| f64::from(at_a(r, k)) * f64::from(at_b(k, c))).sum::<f64>() as f32;
                let expected: Vec<f32> = (0..rows * columns).map(|at| sum(at / columns, at % columns)).collect();
                let blocks = (rows.div_ceil(128) * columns.div_ceil(of_tile)) as u32;
                for is_late in [false, true] {
                    let found = product(&program, blocks, is_late, [rows, columns, inner], [&a, &b]);
                    let off = distance(&found, &expected);
                    // Half a unit in the last place of bf16, or the rounding of sums in f32.
                    let most = if narrow == 1 { 2.0f64.powi(-9) } else { 1e-6 };
                    assert!(off <= most, "{rows} × {columns} × {inner}, transposed {transposed:?}: {off:.1e} off");
                }
            });
        }
    }
}
