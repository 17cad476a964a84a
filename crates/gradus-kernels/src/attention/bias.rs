//! A learned bias of the attention scores by the distance from query to key, as in T5.
//!
//! `S_ij = α qᵢ·kⱼ + b[h, bucket(j − i)]`; the gradient of b is the sum of ∂S over the pairs that share a bucket.
//! Raffel et al. 2020, section 2.1, <https://arxiv.org/abs/1910.10683>.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{Int, Tensor, TensorData};

use crate::fused::Dense;
use crate::simd::simd;

/// A bias by distance.
#[derive(Debug, Clone)]
pub struct PositionBias {
    /// One value for each query head and bucket, `[H, R]`; carries gradient.
    pub weight_hr: Tensor<2>,
    /// Assigns each pair of query and key to a bucket.
    pub buckets: PositionBuckets,
}

/// Maps the distance `j − i` from query i to key j to a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PositionBuckets {
    /// Buckets of the distances −reach to reach. Larger distances use the outermost bucket of their side.
    table: Arc<[usize]>,
    buckets: usize,
    #[cfg(feature = "gpu")]
    copies: crate::table::OnDevices,
}

impl PositionBuckets {
    /// Uses the buckets `bucket(−reach)` to `bucket(reach)`, all below `buckets`. Larger distances use the outermost bucket of their side.
    ///
    /// # Panics
    /// If `bucket` returns a number that is not below `buckets`.
    pub fn new(buckets: usize, reach: usize, bucket: impl Fn(isize) -> usize) -> Self {
        let reach = reach as isize;
        let table: Arc<[usize]> = (-reach..=reach).map(bucket).collect();
        assert!(table.iter().all(|&bucket| bucket < buckets), "a bucket is not below their number, {buckets}");
        Self {
            table,
            buckets,
            #[cfg(feature = "gpu")]
            copies: crate::table::OnDevices::default(),
        }
    }

    /// Returns the table on the device of `like`. It is copied there once.
    #[cfg(feature = "gpu")]
    pub(crate) fn on_device(&self, like: &burn_cubecl::tensor::CubeTensor) -> Arc<crate::gpu::Words> {
        let words = || self.table.iter().map(|&bucket| bucket as u32).collect::<Vec<_>>();
        self.copies.get(&like.device, || crate::gpu::Words::new(&like.client, &words()))
    }

    /// T5's buckets in both directions (an encoder). Half of them are for keys after the query. On each side, the nearer half hold one
    /// distance each; the others get logarithmically wider up to `max_distance`, which is in the last.
    ///
    /// # Panics
    /// If there are fewer than two buckets.
    pub fn t5_bidirectional(buckets: usize, max_distance: usize) -> Self {
        let half = buckets / 2;
        Self::new(buckets, max_distance, |distance| {
            let side = if distance > 0 { half } else { 0 };
            side + t5_bucket(distance.unsigned_abs(), half, max_distance)
        })
    }

    /// T5's buckets for keys before the query (a decoder). Keys after the query share the bucket of distance 0.
    ///
    /// # Panics
    /// If there is no bucket.
    pub fn t5_causal(buckets: usize, max_distance: usize) -> Self {
        Self::new(buckets, max_distance, |distance| t5_bucket((-distance).max(0) as usize, buckets, max_distance))
    }

    /// DeBERTa's buckets. The upper half is for keys before the query. Of the `buckets` per side, the nearer half hold one distance each,
    /// and the others grow logarithmically up to `reach`. Without `buckets`, each of `reach` distances has its own. He et al. 2020, section
    /// 3.1, <https://arxiv.org/abs/2006.03654>, as in `transformers`' `deberta_v2`.
    ///
    /// # Panics
    /// If there are fewer than four buckets per side, or `reach` is at most half of `buckets` plus one.
    pub fn deberta(buckets: Option<usize>, reach: usize) -> Self {
        assert!(buckets.is_none_or(|buckets| buckets >= 4 && reach > buckets / 2 + 1), "buckets beyond the distances");
        let span = buckets.unwrap_or(reach) as isize;
        let place = |ahead: isize| {
            let relative = buckets.map_or(ahead, |buckets| deberta_bucket(ahead, buckets / 2, reach));
            (relative + span).clamp(0, 2 * span - 1) as usize
        };
        let ends = |distance: &isize| place(-distance) == 0 && place(*distance) as isize == 2 * span - 1;
        let farthest = (0..).find(ends).expect("buckets grow with the distance");
        Self::new(2 * span as usize, farthest as usize, |distance| place(-distance))
    }

    /// Number of buckets, R.
    pub fn buckets(&self) -> usize {
        self.buckets
    }

    /// Returns the bucket of a pair from the positions of its query and its key.
    pub fn bucket(&self, query: usize, key: usize) -> usize {
        let reach = self.table.len() / 2;
        match key >= query {
            true => self.table[reach + (key - query).min(reach)],
            false => self.table[reach - (query - key).min(reach)],
        }
    }

    /// Returns the buckets of distances, on the device of `distances`.
    pub(super) fn of_distances(&self, distances: Tensor<2, Int>) -> Tensor<2, Int> {
        let ([t, seen], reach) = (distances.dims(), self.table.len() / 2);
        let table: Vec<i32> = self.table.iter().map(|&bucket| bucket as i32).collect();
        let table = Tensor::<1, Int>::from_data(TensorData::new(table, [self.table.len()]), &distances.device());
        let places = distances.clamp(-(reach as i64), reach as i64) + reach as i64;
        table.select(0, places.reshape([t * seen])).reshape([t, seen])
    }

    /// Biases of one head by distance, from `1 − length` to `length − 1`. The biases of one query and neighboring keys are contiguous.
    fn by_distance(&self, bias_r: &[f32], length: usize) -> Vec<f32> {
        self.distances(length).map(|bucket| bias_r[bucket]).collect()
    }

    /// Adds gradients by distance to the gradients of the buckets.
    pub(crate) fn collect(&self, grad_r: &mut [f32], by_distance: &[f32]) {
        let buckets = self.distances(by_distance.len().div_ceil(2));
        buckets.zip(by_distance).for_each(|(bucket, gradient)| grad_r[bucket] += gradient);
    }

    /// Buckets of the distances `1 − length` to `length − 1`.
    pub(super) fn distances(&self, length: usize) -> impl Iterator<Item = usize> {
        (1..length).rev().map(|query| self.bucket(query, 0)).chain((0..length).map(|key| self.bucket(0, key)))
    }
}

/// The biases of a pass by head and distance.
pub(crate) struct DistanceBias {
    values: Vec<f32>,
    /// Length of the longest sequence.
    length: usize,
}

impl DistanceBias {
    /// Computes the biases for sequences of at most `length` tokens.
    pub(crate) fn new(buckets: &PositionBuckets, weight_hr: &Dense, length: usize) -> Self {
        let rows = weight_hr.values().chunks_exact(buckets.buckets);
        Self { values: rows.flat_map(|bias_r| buckets.by_distance(bias_r, length)).collect(), length }
    }

    /// Number of distances per head.
    pub(crate) fn distances(&self) -> usize {
        (2 * self.length).saturating_sub(1)
    }

    /// Index range of the distances from `query` to `keys` among those of one head.
    pub(crate) fn range(&self, query: usize, keys: &Range<usize>) -> Range<usize> {
        let from = self.length - 1 + keys.start - query;
        from..from + keys.len()
    }

    /// Biases of one head.
    pub(crate) fn of(&self, head: usize, distances: Range<usize>) -> &[f32] {
        &self.values[head * self.distances()..][distances]
    }
}

/// Signed bucket of a distance, before clamping: `half` distances have one each, then `ln(distance)` in equal steps, in single precision as
/// in `transformers`.
fn deberta_bucket(ahead: isize, half: usize, reach: usize) -> isize {
    let distance = ahead.unsigned_abs();
    if distance <= half {
        return ahead;
    }
    let widest = ((reach - 1) as f64 / half as f64) as f32;
    let steps = (distance as f32 / half as f32).ln() / widest.ln() * (half - 1) as f32;
    (steps.ceil() as isize + half as isize) * ahead.signum()
}

/// Bucket on one side: one per distance below `buckets / 2`, then `ln(distance)` in equal steps.
fn t5_bucket(distance: usize, buckets: usize, max_distance: usize) -> usize {
    let exact = (buckets / 2).max(1);
    if distance < exact {
        return distance;
    }
    // Single precision, as in `transformers`: if a step falls on a whole number, rounding decides.
    let steps = (distance as f32 / exact as f32).ln() / (max_distance as f64 / exact as f64).ln() as f32;
    (exact + (steps * buckets.saturating_sub(exact) as f32) as usize).min(buckets.saturating_sub(1))
}

simd! {
    /// `target += values`.
    pub(crate) fn add(target: &mut [f32], values: &[f32]) {
        target.iter_mut().zip(values).for_each(|(target, value)| *target += value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t5_buckets_are_those_of_transformers() {
        let (both, causal) = (PositionBuckets::t5_bidirectional(32, 128), PositionBuckets::t5_causal(32, 128));
        // `T5Attention._relative_position_bucket` of transformers 5.23.0, 32 buckets up to 128.
        for (distance, of_both, of_causal) in [
            (-1000, 15, 31),
            (-128, 15, 31),
            (-127, 15, 31),
            (-112, 15, 30),
            (-91, 15, 29),
            (-46, 13, 24),
            (-45, 12, 23),
            (-32, 12, 21),
            (-23, 11, 18),
            (-16, 10, 16),
            (-15, 9, 15),
            (-8, 8, 8),
            (-7, 7, 7),
            (0, 0, 0),
            (1, 17, 0),
            (7, 23, 0),
            (8, 24, 0),
            (12, 25, 0),
            (16, 26, 0),
            (64, 30, 0),
            (90, 30, 0),
            (91, 31, 0),
            (128, 31, 0),
            (1000, 31, 0),
        ] {
            let (query, key) = if distance < 0 { (-distance as usize, 0) } else { (0, distance as usize) };
            let found = (both.bucket(query, key), causal.bucket(query, key));
            assert_eq!(found, (of_both, of_causal), "distance {distance}");
        }
    }

    #[test]
    fn distances_run_from_the_last_query_to_the_last_key() {
        let buckets = PositionBuckets::new(5, 2, |distance| (distance + 2) as usize);
        let bias = [0.0, 1.0, 2.0, 3.0, 4.0];
        assert_eq!(buckets.by_distance(&bias, 4), [0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 4.0]);
        let mut gradient = [0.0; 5];
        buckets.collect(&mut gradient, &[1.0; 7]);
        assert_eq!(gradient, [2.0, 1.0, 1.0, 1.0, 2.0]);
        assert!(buckets.by_distance(&bias, 0).is_empty());
    }
}
