//! Conjugate gradients: solves `A x = b` using only products with `A`.
//!
//! Hestenes and Stiefel 1952; as in Schulman et al. 2015 (TRPO), appendix C, <https://arxiv.org/abs/1502.05477>.

use rayon::prelude::*;

/// Number of values per partial sum. Fixed, so that a sum has the same bits for any number of threads.
const CHUNK: usize = 64 * 1024;

/// `Σ aᵢ·bᵢ`, in `f64`.
///
/// # Panics
/// When the lengths differ.
pub fn dot(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len(), "vectors of one length");
    let chunk = |(a, b): (&[f32], &[f32])| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
    let parts: Vec<f64> = a.par_chunks(CHUNK).zip(b.par_chunks(CHUNK)).map(chunk).collect();
    parts.into_iter().sum()
}

/// `a ← a + scale·b`.
///
/// # Panics
/// When the lengths differ.
pub fn add_scaled(a: &mut [f32], scale: f64, b: &[f32]) {
    assert_eq!(a.len(), b.len(), "vectors of one length");
    let each = |(a, b): (&mut f32, &f32)| *a = (f64::from(*a) + scale * f64::from(*b)) as f32;
    a.par_chunks_mut(CHUNK).zip(b.par_chunks(CHUNK)).for_each(|(a, b)| a.iter_mut().zip(b).for_each(each));
}

/// Solves `A x ≈ b`, starting from `x = 0`. Makes at most `max_steps` products. Stops earlier if `‖b − A x‖²` falls
/// below `tolerance` or the curvature along a direction is not positive.
///
/// # Errors
/// The first error that `product` returns.
pub fn conjugate_gradient<E>(
    mut product: impl FnMut(&[f32]) -> Result<Vec<f32>, E>,
    b: &[f32],
    max_steps: usize,
    tolerance: f64,
) -> Result<Vec<f32>, E> {
    let mut x = vec![0.0; b.len()];
    let mut residual = b.to_vec();
    let mut direction = b.to_vec();
    let mut square = dot(b, b);
    for _ in 0..max_steps {
        if square < tolerance {
            break;
        }
        let along = product(&direction)?;
        let curvature = dot(&direction, &along);
        if curvature.is_nan() || curvature <= 0.0 {
            break;
        }
        let length = square / curvature;
        add_scaled(&mut x, length, &direction);
        add_scaled(&mut residual, -length, &along);
        let before = std::mem::replace(&mut square, dot(&residual, &residual));
        let turn = square / before;
        let each = |(direction, residual): (&mut f32, &f32)| {
            *direction = (f64::from(*residual) + turn * f64::from(*direction)) as f32;
        };
        direction.par_iter_mut().zip(&residual).for_each(each);
    }
    Ok(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: [[f32; 3]; 3] = [[4.0, 1.0, 0.0], [1.0, 3.0, -1.0], [0.0, -1.0, 2.0]];

    fn times(x: &[f32]) -> Result<Vec<f32>, ()> {
        Ok(A.iter().map(|row| row.iter().zip(x).map(|(a, x)| a * x).sum()).collect())
    }

    #[test]
    fn as_many_steps_as_dimensions_solve_the_system() {
        // A·(1, −2, 3) = (2, −8, 8)
        let mut products = 0;
        let count = |x: &[f32]| {
            products += 1;
            times(x)
        };
        let x = conjugate_gradient(count, &[2.0, -8.0, 8.0], 15, 1e-10).unwrap();
        for (found, expected) in x.iter().zip([1.0, -2.0, 3.0]) {
            assert!((found - expected).abs() < 1e-5, "{x:?}");
        }
        assert_eq!(products, 3);
        let rough = conjugate_gradient(times, &[2.0, -8.0, 8.0], 1, 1e-10).unwrap();
        assert!((rough[0] - x[0]).abs() > 1e-3, "one step does not");
    }

    #[test]
    fn nothing_to_solve_and_no_curvature() {
        assert_eq!(conjugate_gradient(times, &[0.0; 3], 15, 1e-10), Ok(vec![0.0; 3]));
        let negative = |x: &[f32]| Ok::<_, ()>(x.iter().map(|x| -x).collect());
        assert_eq!(conjugate_gradient(negative, &[1.0; 3], 15, 1e-10), Ok(vec![0.0; 3]));
        assert_eq!(conjugate_gradient(|_| Err("broken"), &[1.0; 3], 15, 1e-10), Err("broken"));
    }
}
