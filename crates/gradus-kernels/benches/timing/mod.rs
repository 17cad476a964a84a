//! Median times of functions that run in turns.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// Seconds that all repetitions of one row may take together, unless [`LEAST`] needs more.
const BUDGET: f64 = 3.0;
/// Minimum and maximum number of repetitions.
const LEAST: f64 = 5.0;
const MOST: f64 = 41.0;
/// Minimum seconds of one repetition. Short functions run several times per repetition.
const REPETITION: f64 = 1e-3;

/// Returns the time that `run` takes. Dropping its result is not counted.
pub fn timed<T>(run: impl FnOnce() -> T) -> Duration {
    let start = Instant::now();
    let result = black_box(run());
    let elapsed = start.elapsed();
    drop(result);
    elapsed
}

/// Milliseconds of two functions that measure their own time; see [`medians`].
pub fn compare(first: &mut dyn FnMut() -> Duration, second: &mut dyn FnMut() -> Duration) -> [f64; 2] {
    let seconds = medians(&mut [first, second]);
    [seconds[0] * 1e3, seconds[1] * 1e3]
}

/// Median seconds of functions that measure their own time. They run in turns, after one uncounted run each.
pub fn medians(runs: &mut [&mut dyn FnMut() -> Duration]) -> Vec<f64> {
    for run in runs.iter_mut() {
        run();
    }
    let once: Vec<f64> = runs.iter_mut().map(|run| run().as_secs_f64().max(1e-9)).collect();
    let times: Vec<u32> = once.iter().map(|seconds| (REPETITION / seconds).clamp(1.0, 1000.0) as u32).collect();
    let round: f64 = once.iter().zip(&times).map(|(seconds, &times)| seconds * f64::from(times)).sum();
    let repetitions = (BUDGET / round).clamp(LEAST, MOST) as usize;
    let mut samples = vec![Vec::with_capacity(repetitions); runs.len()];
    for _ in 0..repetitions {
        for ((run, &times), samples) in runs.iter_mut().zip(&times).zip(&mut samples) {
            let total: Duration = (0..times).map(|_| run()).sum();
            samples.push(total.as_secs_f64() / f64::from(times));
        }
    }
    samples.into_iter().map(median).collect()
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}
