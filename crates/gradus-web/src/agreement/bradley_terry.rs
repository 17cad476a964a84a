//! Strengths of models, estimated from pairwise preferences.
//!
//! Bradley and Terry 1952, "Rank analysis of incomplete block designs": the probability that i is preferred to j is σ(θ_i − θ_j). A tie
//! counts as half a win for each. Newton's method finds the maximum of the likelihood; the errors follow from the inverse of the
//! information at that point.

/// Maximum-likelihood strengths.
#[derive(Debug, Clone, PartialEq)]
pub struct Strengths {
    /// θ of each model. The sum is 0.
    pub log_strengths: Vec<f64>,
    /// Covariance of the strengths.
    pub covariance: Vec<Vec<f64>>,
}

impl Strengths {
    /// Returns the 95 % interval of a model's θ.
    pub fn interval(&self, model: usize) -> (f64, f64) {
        let (middle, reach) = (self.log_strengths[model], 1.959_963_984_540_054 * self.covariance[model][model].sqrt());
        (middle - reach, middle + reach)
    }
}

/// Maximum number of Newton steps. Each step doubles the number of correct digits.
const STEPS: usize = 100;

/// Computes the strengths of models. `wins[i][j]` is the number of times that i was preferred to j.
///
/// # Errors
/// There are fewer than two models, or the maximum is not finite. This happens if a group of models never lost to the others or was never
/// compared with them.
pub fn bradley_terry(wins: &[Vec<f64>]) -> Result<Strengths, &'static str> {
    let models = wins.len();
    if models < 2 {
        return Err("strengths need at least two models");
    }
    if (0..models).any(|from| !reaches_all(wins, from)) {
        return Err("some models never lost to the others, or were never compared with them: more comparisons are \
                    needed");
    }
    let mut theta = vec![0.0; models];
    for _ in 0..STEPS {
        let (gradient, information) = derivatives(wins, &theta);
        let step = solve(&information, &gradient);
        // A step that is too long oscillates. The limit is a change of 1 per θ.
        let longest = step.iter().fold(1.0f64, |longest, part| longest.max(part.abs()));
        for (theta, part) in theta.iter_mut().zip(&step) {
            *theta += part / longest;
        }
        if step.iter().all(|part| part.abs() < 1e-13) {
            break;
        }
    }
    let (_, information) = derivatives(wins, &theta);
    let unit = |i: usize| (0..models).map(|j| f64::from(u8::from(i == j))).collect::<Vec<f64>>();
    let inverse: Vec<Vec<f64>> = (0..models).map(|i| solve(&information, &unit(i))).collect();
    let even = 1.0 / models as f64;
    let covariance = inverse.into_iter().map(|row| row.into_iter().map(|x| x - even).collect()).collect();
    Ok(Strengths { log_strengths: theta, covariance })
}

/// Returns whether all models are reached from `from` by steps from a winner to a loser.
fn reaches_all(wins: &[Vec<f64>], from: usize) -> bool {
    let mut seen = vec![false; wins.len()];
    let mut open = vec![from];
    while let Some(at) = open.pop() {
        if !std::mem::replace(&mut seen[at], true) {
            open.extend((0..wins.len()).filter(|&to| to != at && wins[at][to] > 0.0));
        }
    }
    seen.into_iter().all(|seen| seen)
}

/// Computes the gradient of the log-likelihood and its information. The sum of θ is undetermined; adding 1/K to every entry holds it at 0.
fn derivatives(wins: &[Vec<f64>], theta: &[f64]) -> (Vec<f64>, Vec<Vec<f64>>) {
    let models = wins.len();
    let mut gradient = vec![0.0; models];
    let mut information = vec![vec![1.0 / models as f64; models]; models];
    for i in 0..models {
        for j in (0..models).filter(|&j| j != i) {
            let met = wins[i][j] + wins[j][i];
            let wins_i = 1.0 / (1.0 + (theta[j] - theta[i]).exp());
            gradient[i] += wins[i][j] - met * wins_i;
            let weight = met * wins_i * (1.0 - wins_i);
            information[i][i] += weight;
            information[i][j] -= weight;
        }
    }
    (gradient, information)
}

/// Solves A x = b for a symmetric positive A, by elimination with the largest pivot.
fn solve(matrix: &[Vec<f64>], right: &[f64]) -> Vec<f64> {
    let n = right.len();
    let mut rows: Vec<Vec<f64>> =
        matrix.iter().zip(right).map(|(row, &b)| row.iter().copied().chain([b]).collect()).collect();
    for at in 0..n {
        let pivot = (at..n).max_by(|&a, &b| rows[a][at].abs().total_cmp(&rows[b][at].abs())).unwrap_or(at);
        rows.swap(at, pivot);
        let own = rows[at].clone();
        for (i, row) in rows.iter_mut().enumerate().filter(|(i, _)| *i != at) {
            let _ = i;
            let factor = row[at] / own[at];
            row.iter_mut().zip(&own).for_each(|(x, p)| *x -= factor * p);
        }
    }
    (0..n).map(|i| rows[i][n] / rows[i][i]).collect()
}
