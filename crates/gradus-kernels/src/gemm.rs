//! Matrix products over strided slices: safe wrappers with checked bounds around the `gemm` crate.

use gemm::Parallelism;

/// A matrix inside a slice: element `(r, c)` is `values[offset + r · row_stride + c · column_stride]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mat<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Mat<'a> {
    /// A row-major matrix with `row_stride` elements from one row to the next.
    ///
    /// # Panics
    /// When the last element lies outside `values`.
    pub(crate) fn strided(values: &'a [f32], rows: usize, columns: usize, row_stride: usize) -> Self {
        if rows > 0 && columns > 0 {
            assert!((rows - 1) * row_stride + columns <= values.len(), "matrix outside its slice");
        }
        Self { values, rows, columns, row_stride, column_stride: 1 }
    }

    /// A dense row-major matrix.
    pub(crate) fn dense(values: &'a [f32], rows: usize, columns: usize) -> Self {
        Self::strided(values, rows, columns, columns)
    }

    /// The transpose, without copying.
    pub(crate) fn t(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }
}

/// How many threads a product uses.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Threads {
    /// All of the pool: for one large product.
    All,
    /// The caller's: inside a task that is itself one of many.
    One,
}

/// `output = beta · output + alpha · a × b`, with `output` row-major and `row_stride` apart.
///
/// # Panics
/// When the shapes do not fit, or the output lies outside its slice.
pub(crate) fn multiply(
    output: &mut [f32],
    row_stride: usize,
    beta: f32,
    alpha: f32,
    a: Mat<'_>,
    b: Mat<'_>,
    threads: Threads,
) {
    assert_eq!(a.columns, b.rows, "inner dimensions");
    let (m, n, k) = (a.rows, b.columns, a.columns);
    if m == 0 || n == 0 {
        return;
    }
    assert!((m - 1) * row_stride + n <= output.len(), "output outside its slice");
    // Below this many multiply-adds, waking the other threads costs more than they save.
    let parallelism = match threads {
        Threads::All if m * n * k > 64 * 64 * 64 => Parallelism::Rayon(0),
        _ => Parallelism::None,
    };
    // SAFETY: `Mat` constructors and the assertion above keep every element that the product touches inside its
    // slice, and `output` is borrowed mutably, so it overlaps neither input.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            output.as_mut_ptr(),
            1,
            row_stride as isize,
            beta != 0.0,
            a.values.as_ptr(),
            a.column_stride as isize,
            a.row_stride as isize,
            b.values.as_ptr(),
            b.column_stride as isize,
            b.row_stride as isize,
            beta,
            alpha,
            false,
            false,
            false,
            parallelism,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fused::testing::{assert_close, values};

    #[test]
    fn products_of_odd_sizes_agree_with_three_loops() {
        for (m, n, k) in [(1, 1, 1), (3, 5, 7), (17, 33, 65), (100, 70, 90), (4, 0, 3), (3, 4, 0)] {
            let (a, b) = (values(m * k, 1), values(k * n, 2));
            let mut expected = vec![0.5f32; m * n];
            for (i, e) in expected.iter_mut().enumerate() {
                let sum: f32 = (0..k).map(|j| a[i / n * k + j] * b[j * n + i % n]).sum();
                *e = *e * 2.0 + 3.0 * sum;
            }
            let mut found = vec![0.5f32; m * n];
            multiply(&mut found, n, 2.0, 3.0, Mat::dense(&a, m, k), Mat::dense(&b, k, n), Threads::All);
            assert_close("product", &found, &expected, 1e-5);
        }
    }
}
