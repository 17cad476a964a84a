use super::*;
use crate::fused::testing::values;
use crate::quantized::Quantized;

/// Returns `x` rounded to `precision`.
fn rounded(x: f32, precision: Precision) -> f64 {
    match precision {
        Precision::F32 => f64::from(x),
        Precision::Bf16 => f64::from(f32::from_bits(pack::bf16_bits(x) << 16)),
    }
}

/// Compares every operand order and size with three loops in f64.
fn check(precision: Precision) {
    for (m, n, k) in [(1, 1, 1), (3, 5, 7), (17, 33, 65), (100, 70, 900), (250, 2100, 130), (40, 300, 1300)] {
        let (a, b) = (values(m * k, 1), values(k * n, 2));
        for (a_turned, b_turned) in [(false, false), (true, false), (false, true), (true, true)] {
            let a_mat = if a_turned { Mat::dense(&a, k, m).t() } else { Mat::dense(&a, m, k) };
            let b_mat = if b_turned { Mat::dense(&b, n, k).t() } else { Mat::dense(&b, k, n) };
            let a_at = |i: usize, l: usize| rounded(if a_turned { a[l * m + i] } else { a[i * k + l] }, precision);
            let b_at = |l: usize, j: usize| rounded(if b_turned { b[j * k + l] } else { b[l * n + j] }, precision);
            let mut found = vec![0.5f32; m * n];
            Product::new(precision).scaled(3.0).add(&mut found, n, a_mat, b_mat);
            let mut single = vec![0.5f32; m * n];
            Product::single(precision).scaled(3.0).add(&mut single, n, a_mat, b_mat);
            assert!(found == single, "the threads change the result");
            let mut packed = vec![0.0f32; m * n];
            PackedMatrix::new(b_mat, precision.into()).columns(0..n).multiply(&mut packed, n, 3.0, a_mat);
            let mut fresh = vec![0.0f32; m * n];
            Product::new(precision).scaled(3.0).store(&mut fresh, n, a_mat, b_mat);
            assert!(fresh == packed, "packing once changes the result");
            for i in (0..m).step_by(m.div_ceil(20)) {
                for j in (0..n).step_by(n.div_ceil(50)) {
                    let exact = 0.5 + 3.0 * (0..k).map(|l| a_at(i, l) * b_at(l, j)).sum::<f64>();
                    let error = (f64::from(found[i * n + j]) - exact).abs();
                    assert!(error < 1e-4, "{precision:?} {m}×{n}×{k} at ({i}, {j}): {error}");
                }
            }
        }
    }
}

#[test]
fn products_agree_with_three_loops() {
    check(Precision::F32);
}

#[test]
fn bf16_products_agree_with_three_loops_over_rounded_operands() {
    check(Precision::Bf16);
}

#[test]
fn a_row_gives_the_same_bits_in_any_company() {
    let (m, n, k) = (150, 67, 700);
    let (a, b) = (values(m * k, 1), values(k * n, 2));
    for precision in [Precision::F32, Precision::Bf16] {
        let b = Mat::dense(&b, k, n);
        let mut all = vec![0.0f32; m * n];
        Product::new(precision).store(&mut all, n, Mat::dense(&a, m, k), b);
        let nf4 = PackedMatrix::new(b, WeightFormat::NF4).with_operand(precision);
        let all_nf4 = nf4.fresh(None, Mat::dense(&a, m, k));
        for rows in [1, 5, 100] {
            let mut some = vec![0.0f32; rows * n];
            let packed = PackedMatrix::new(b, precision.into());
            packed.columns(0..n).multiply(&mut some, n, 1.0, Mat::dense(&a, rows, k));
            assert!(some == all[..rows * n], "{precision:?}, {rows} rows");
            let some = nf4.fresh(None, Mat::dense(&a, rows, k));
            assert!(some == all_nf4[..rows * n], "NF4 in {precision:?}, {rows} rows");
        }
    }
}

#[test]
fn a_new_result_begins_as_it_is_told() {
    for (m, n, k) in [(1, 1, 1), (30, 70, 600), (3, 4, 0)] {
        let (a, b, start) = (values(m * k, 1), values(k * n, 2), values(n, 3));
        let (a, b) = (Mat::dense(&a, m, k), Mat::dense(&b, k, n));
        let product = Product::new(Precision::F32);
        let mut expected = start.repeat(m);
        product.add(&mut expected, n, a, b);
        assert_eq!(product.fresh(Some(&start), a, b), expected);
        assert_eq!(PackedMatrix::new(b, WeightFormat::F32).fresh(Some(&start), a), expected);
        let mut expected = vec![0.0f32; m * n];
        product.store(&mut expected, n, a, b);
        assert_eq!(product.fresh(None, a, b), expected);
    }
}

#[test]
fn nothing_times_nothing_is_zero() {
    let mut output = [1.0f32; 6];
    Product::new(Precision::F32).store(&mut output, 3, Mat::dense(&[], 2, 0), Mat::dense(&[], 0, 3));
    assert_eq!(output, [0.0; 6]);
    Product::new(Precision::F32).store(&mut [], 3, Mat::dense(&[], 0, 2), Mat::dense(&[0.0; 6], 2, 3));
}

#[test]
fn every_kernel_gives_the_portable_result() {
    let (m, n, k) = (29, 70, 301);
    let (a, b) = (values(m * k, 1), values(k * n, 2));
    let (a, b) = (Mat::dense(&a, m, k), Mat::dense(&b, k, n));
    for format in [WeightFormat::F32, WeightFormat::BF16, WeightFormat::INT8, WeightFormat::NF4] {
        let packed = PackedMatrix::new(b, format);
        let start = values(n, 3);
        let compute = |kernel: Kernel| {
            let mut output = vec![0.0f32; m * n];
            let columns = packed.columns(0..n);
            let output_at = Output::new(&mut output, n, m, n);
            let task =
                Task { kernel, ..columns.task(Orientation::AsStored, output_at, StartFrom::Bias(&start), 1.0, a) };
            columns.block(Orientation::AsStored, task, 0..task.panels(), 0..task.inner).run(Threads::One);
            output
        };
        let portable = compute(Kernel::Portable);
        for kernel in Kernel::available() {
            for (i, (found, expected)) in compute(kernel).iter().zip(&portable).enumerate() {
                assert!((found - expected).abs() < 2e-5, "{kernel:?} {format:?} at {i}: {found}, not {expected}");
            }
        }
    }
}

#[test]
fn int8_holds_every_column_to_half_a_step() {
    let (m, n, k) = (5, 70, 301);
    // Columns of very different magnitudes, each with its own scale. One is zero.
    let size = |column: usize| if column == 7 { 0.0 } else { 10f32.powi(column as i32 % 7 - 3) };
    let b: Vec<f32> = values(k * n, 2).iter().enumerate().map(|(i, x)| x * size(i % n)).collect();
    let turned: Vec<f32> = (0..k * n).map(|i| b[i % k * n + i / k]).collect();
    let packed = PackedMatrix::new(Mat::dense(&b, k, n), WeightFormat::INT8);
    assert!(packed.bytes() * 2 < k * n * 4, "a quarter of the memory, and what fills the last panel");
    let unpacked = packed.unpacked();
    for (i, (found, expected)) in unpacked.iter().zip(&b).enumerate() {
        assert!((found - expected).abs() <= 0.501 / 127.0 * size(i % n), "at {i}: {found}, not {expected}");
    }
    assert_eq!(PackedMatrix::new(Mat::dense(&turned, n, k).t(), WeightFormat::INT8).unpacked(), unpacked);
    let a = values(m * k, 1);
    let (mut found, mut expected) = (vec![0.0f32; m * n], vec![0.0f32; m * n]);
    packed.columns(0..n).multiply(&mut found, n, 1.0, Mat::dense(&a, m, k));
    Product::new(Precision::F32).store(&mut expected, n, Mat::dense(&a, m, k), Mat::dense(&unpacked, k, n));
    for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert!((found - expected).abs() <= 0.05 * size(i % n).max(1e-9), "at {i}: {found}, not {expected}");
    }
}

/// A matrix of `k` × `n` in `format`, with columns of very different magnitudes.
fn quantized(k: usize, n: usize, format: WeightFormat, operand: Precision) -> PackedMatrix {
    let size = |column: usize| if column == 7 { 0.0 } else { 10f32.powi(column as i32 % 7 - 3) };
    let b: Vec<f32> = values(k * n, 2).iter().enumerate().map(|(i, x)| x * size(i % n)).collect();
    PackedMatrix::new(Mat::dense(&b, k, n), format).with_operand(operand)
}

#[test]
fn expanded_products_are_those_of_the_unpacked_matrix() {
    // If k is not a multiple of 64, blocks end within columns.
    for (n, k) in [(1, 1), (33, 7), (70, 64), (40, 300), (300, 1100), (530, 129)] {
        for (format, operand) in [
            (WeightFormat::F32, Precision::F32),
            (WeightFormat::BF16, Precision::Bf16),
            (WeightFormat::INT8, Precision::Bf16),
            (WeightFormat::NF4, Precision::F32),
            (WeightFormat::NF4, Precision::Bf16),
        ] {
            let packed = quantized(k, n, format, operand);
            let unpacked = packed.unpacked();
            let matrix = Mat::dense(&unpacked, k, n);
            for m in [1, 13, 130] {
                let (x, g, name) = (values(m * k, 1), values(m * n, 3), format!("{format:?} {operand:?} {m}×{k}×{n}"));
                let (x, g) = (Mat::dense(&x, m, k), Mat::dense(&g, m, n));
                assert!(
                    packed.fresh_transposed(g) == Product::new(operand).fresh(None, g, matrix.t()),
                    "{name}, turned"
                );
                if format != WeightFormat::INT8 {
                    assert!(packed.fresh(None, x) == Product::new(operand).fresh(None, x, matrix), "{name}");
                }
            }
        }
    }
}

#[test]
fn products_with_some_columns_are_parts_of_the_product_with_all() {
    let (m, n, k) = (110, 700, 90);
    for format in [WeightFormat::F32, WeightFormat::BF16, WeightFormat::INT8, WeightFormat::NF4] {
        let packed =
            quantized(k, n, format, if format == WeightFormat::NF4 { Precision::F32 } else { Precision::Bf16 });
        let (x, g) = (values(m * k, 1), values(m * n, 3));
        let (whole, turned) = (packed.fresh(None, Mat::dense(&x, m, k)), packed.unpacked());
        let mut found = vec![0.0f32; m * n];
        let mut found_turned = vec![0.0f32; m * k];
        let ranges = [0..256, 256..384, 384..n];
        for range in ranges.clone() {
            let columns = packed.columns(range.clone());
            columns.multiply(&mut found[range.start..], n, 1.0, Mat::dense(&x, m, k));
            columns.add_transposed(&mut found_turned, k, 1.0, Mat::strided(&g[range.start..], m, range.len(), n));
        }
        assert!(found == whole, "{format:?}");
        let mut expected = vec![0.0f32; m * k];
        for range in ranges {
            let matrix = Mat::strided(&turned[range.start..], k, range.len(), n).t();
            let g = Mat::strided(&g[range.start..], m, range.len(), n);
            Product::new(packed.precision()).add(&mut expected, k, g, matrix);
        }
        assert!(found_turned == expected, "{format:?}, turned");
    }
}

#[test]
fn nf4_holds_what_its_codes_stand_for_and_gives_them_back() {
    for (n, k) in [(1, 1), (33, 7), (70, 64), (40, 300), (5, 1101)] {
        let packed = quantized(k, n, WeightFormat::NF4, Precision::F32);
        let Some(Quantized::Nf4(nf4)) = packed.quantized() else { panic!("NF4") };
        let (values, unpacked) = (nf4.values(), packed.unpacked());
        assert!((0..k * n).all(|i| unpacked[i % k * n + i / k] == values[i]), "{k}×{n}");
        assert_eq!(PackedMatrix::from_quantized(Quantized::Nf4(nf4.clone())).unpacked(), unpacked);
        assert_eq!(PackedMatrix::from_quantized(Quantized::Nf4(nf4.clone())).quantized(), Some(Quantized::Nf4(nf4)));
    }
}

#[test]
fn int8_gives_its_codes_back() {
    for (n, k) in [(1, 1), (33, 7), (70, 64), (40, 301)] {
        let packed = quantized(k, n, WeightFormat::INT8, Precision::Bf16);
        let Some(Quantized::Int8(int8)) = packed.quantized() else { panic!("INT8") };
        let unpacked = packed.unpacked();
        for i in 0..k * n {
            let expected = f32::from(int8.codes()[i]) * (int8.absmax()[i / k] / 127.0);
            assert_eq!(unpacked[i % k * n + i / k], expected, "{k}×{n} at {i}");
        }
        let again = PackedMatrix::from_quantized(Quantized::Int8(int8.clone()));
        assert_eq!((again.unpacked(), again.quantized()), (unpacked, Some(Quantized::Int8(int8))));
    }
}

#[test]
fn nf4_takes_an_eighth_of_the_memory_and_its_scales() {
    let (n, k) = (256, 1024);
    let bits = quantized(k, n, WeightFormat::NF4, Precision::F32).bytes() as f64 * 8.0 / (n * k) as f64;
    assert!((4.125..4.20).contains(&bits), "{bits} bits a number");
}

#[test]
fn rounding_to_bf16_is_to_nearest_even() {
    let bits = |x: f32| pack::bf16_bits(x);
    assert_eq!(bits(1.0), 0x3f80);
    // Halfway above 1 rounds down to the even neighbor; halfway above the next number rounds up.
    assert_eq!(bits(f32::from_bits(0x3f80_8000)), 0x3f80);
    assert_eq!(bits(f32::from_bits(0x3f81_8000)), 0x3f82);
    assert_eq!(bits(f32::from_bits(0x3f80_8001)), 0x3f81);
    assert_eq!(bits(f32::NAN), 0x7fc0);
    assert_eq!(bits(f32::NEG_INFINITY), 0xff80);
    assert_eq!(bits(f32::MAX), 0x7f80, "beyond the largest bf16 lies infinity");
}
