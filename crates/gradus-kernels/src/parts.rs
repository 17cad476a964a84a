//! Results that are computed in parallel parts.
//!
//! Large memory is not cleared by one thread up front. The task that writes a part also clears it, while it is in that task's cache.

use std::mem::MaybeUninit;

use rayon::prelude::*;

/// Default size of a part, in numbers.
pub(crate) const PART: usize = 16 * 1024;

/// Computes `N` results of `size` numbers each. Part `i` of each result holds the numbers from `i · part` on. It is zeroed and then passed
/// to `write`; parts run in any order. The return values of `write` are in the order of the parts.
///
/// # Panics
/// If `part` is 0 and `size` is not.
pub(crate) fn in_parts<T, const N: usize, R>(
    size: usize,
    part: usize,
    write: impl Fn(usize, [&mut [T]; N]) -> R + Sync,
) -> ([Vec<T>; N], Vec<R>)
where
    T: Copy + Default + Send,
    R: Send,
{
    let mut results: [Vec<T>; N] = std::array::from_fn(|_| Vec::with_capacity(size));
    let returned = {
        let mut rest = results.each_mut().map(|result| &mut result.spare_capacity_mut()[..size]);
        let mut parts = Vec::with_capacity(size.div_ceil(part.max(1)));
        while !rest[0].is_empty() {
            let len = part.min(rest[0].len());
            assert!(len > 0, "parts of nothing");
            parts.push(rest.each_mut().map(|rest| rest.split_off_mut(..len).expect("as long as the first")));
        }
        let run = |(i, parts): (usize, [&mut [MaybeUninit<T>]; N])| {
            let parts = parts.map(|part| {
                part.fill(MaybeUninit::new(T::default()));
                // SAFETY: every element was just initialized.
                unsafe { part.assume_init_mut() }
            });
            write(i, parts)
        };
        parts.into_par_iter().enumerate().map(run).collect()
    };
    // SAFETY: all parts together are the first `size` elements, and each was fully written.
    results.iter_mut().for_each(|result| unsafe { result.set_len(size) });
    (results, returned)
}

/// Like [`in_parts`], for one result.
pub(crate) fn one_in_parts<T: Copy + Default + Send>(
    size: usize,
    part: usize,
    write: impl Fn(usize, &mut [T]) + Sync,
) -> Vec<T> {
    let ([result], _) = in_parts(size, part, |i, [result]| write(i, result));
    result
}

/// `size` zeros.
pub(crate) fn zeros(size: usize) -> Vec<f32> {
    one_in_parts(size, 4 * PART, |_, _| ())
}

/// Part `i` of `values`, in parts of size `part`.
pub(crate) fn part_of<T>(values: &[T], i: usize, part: usize) -> &[T] {
    &values[i * part..((i + 1) * part).min(values.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_written_by_its_part() {
        for size in [0, 1, 7, 8, 100] {
            let ([numbers, doubled], lengths) = in_parts(size, 8, |i, [numbers, doubled]: [&mut [usize]; 2]| {
                assert!(numbers.iter().chain(&*doubled).all(|&number| number == 0));
                for (j, (number, double)) in numbers.iter_mut().zip(doubled.iter_mut()).enumerate() {
                    (*number, *double) = (8 * i + j, 2 * (8 * i + j));
                }
                numbers.len()
            });
            assert!(numbers.iter().copied().eq(0..size) && doubled.iter().copied().eq((0..size).map(|n| 2 * n)));
            assert_eq!((lengths.iter().sum::<usize>(), lengths.len()), (size, size.div_ceil(8)));
        }
        assert_eq!(part_of(&[1, 2, 3, 4, 5], 1, 3), [4, 5]);
        assert_eq!(zeros(200_000), vec![0.0; 200_000]);
    }
}
