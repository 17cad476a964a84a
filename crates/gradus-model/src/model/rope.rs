//! Rotary angles: the default and the scaled variants of `transformers`.
//!
//! `θₜᵢ = t · fᵢ` with `fᵢ = base^(−2i/dim)`, changed by the variant. Linear: f / factor. Dynamic: the base grows with the length of the
//! sequence. llama3 and yarn: low frequencies are divided by a factor, high ones are unchanged, with a ramp between them. longrope: each
//! frequency has its own divisor, and another one in long sequences. If only a part of each head is rotated, dim is the width of that part.

use std::f64::consts::PI;

use burn::tensor::Tensor;
use gradus_kernels::{Operands, Table, rope_between};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Rotary angles of each token.
#[derive(Clone)]
pub(super) struct Angles {
    /// Their cosines, `[N, dim / 2]`.
    pub cos: Table<f32>,
    /// Their sines, `[N, dim / 2]`.
    pub sin: Table<f32>,
}

impl Angles {
    /// Rotates all heads of `x_nd`, `[N, heads · head_dim]`.
    pub fn turn(&self, x_nd: Tensor<2>, head_dim: usize, operands: Operands) -> Tensor<2> {
        rope_between(x_nd, &self.cos, &self.sin, head_dim, operands)
    }
}

/// Rotary parameters of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    base: f64,
    dim: usize,
    max_positions: usize,
    /// Length of the longest sequence that the scaled angles are designed for.
    made_for: usize,
    variant: Variant,
    /// fᵢ, `[dim / 2]`, unless they depend on the sequence.
    frequencies: Vec<f32>,
    /// Factor of cos and sin (yarn, longrope).
    factor: f32,
}

#[derive(Debug, Clone, PartialEq)]
enum Variant {
    Fixed,
    Dynamic {
        factor: f64,
    },
    /// fᵢ of sequences longer than `original`.
    Long {
        frequencies: Vec<f32>,
        original: usize,
    },
}

/// The keys of `rope_parameters`.
#[derive(Debug, Clone, Default, Deserialize)]
struct Keys {
    rope_type: Option<String>,
    rope_theta: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
    attention_factor: Option<f64>,
    mscale: Option<f64>,
    mscale_all_dim: Option<f64>,
    beta_fast: Option<f64>,
    beta_slow: Option<f64>,
    truncate: Option<bool>,
    partial_rotary_factor: Option<f64>,
    short_factor: Option<Vec<f64>>,
    long_factor: Option<Vec<f64>>,
}

impl Rope {
    /// Reads the rotary keys of a kind of layers, which are complete: those of [`complete`].
    ///
    /// # Errors
    /// Describes an unknown variant or a missing key.
    pub(crate) fn new(keys: &Map<String, Value>, head_dim: usize, max_positions: usize) -> Result<Self, String> {
        let keys: Keys = serde_json::from_value(Value::Object(keys.clone()))
            .map_err(|error| format!("`rope_parameters`: {error}"))?;
        let base = keys.rope_theta.unwrap_or(10_000.0);
        let original = keys.original_max_position_embeddings.unwrap_or(max_positions as f64);
        let partial = keys.partial_rotary_factor.unwrap_or(1.0);
        let dim = (head_dim as f64 * partial) as usize;
        if partial != 1.0 && (dim < 2 || !dim.is_multiple_of(2)) {
            return Err(format!(
                "`partial_rotary_factor` {partial} rotates {dim} of a head's {head_dim} numbers, which must be even \
                 and at least 2"
            ));
        }
        let needed = |value: Option<f64>, key: &str| value.ok_or(format!("`rope_parameters` has no `{key}`"));
        let kind = keys.rope_type.as_deref().unwrap_or("default");
        let plain = frequencies(base, dim);
        let mut rope = Self {
            base,
            dim,
            max_positions,
            made_for: made_for(kind, &keys, max_positions),
            variant: Variant::Fixed,
            frequencies: Vec::new(),
            factor: 1.0,
        };
        let scaled = match kind {
            "default" => plain,
            "linear" => {
                let factor = needed(keys.factor, "factor")?;
                plain.into_iter().map(|f| f / factor).collect()
            }
            "dynamic" => {
                rope.variant = Variant::Dynamic { factor: needed(keys.factor, "factor")? };
                plain
            }
            "llama3" => {
                let factor = needed(keys.factor, "factor")?;
                let low = needed(keys.low_freq_factor, "low_freq_factor")?;
                let high = needed(keys.high_freq_factor, "high_freq_factor")?;
                plain.into_iter().map(|f| llama3(f, factor, low, high, original)).collect()
            }
            "yarn" => {
                let factor = keys.factor.unwrap_or(max_positions as f64 / original);
                rope.factor = yarn_attention(&keys, factor) as f32;
                yarn(plain, &keys, base, factor, original)
            }
            "longrope" => {
                let factor = keys.factor.unwrap_or(max_positions as f64 / original);
                let grown = if factor > 1.0 { (1.0 + factor.ln() / original.ln()).sqrt() } else { 1.0 };
                rope.factor = keys.attention_factor.unwrap_or(grown) as f32;
                let [short, long] = [(&keys.short_factor, "short_factor"), (&keys.long_factor, "long_factor")]
                    .map(|(factors, key)| longrope(&plain, factors.as_deref(), key));
                let long = long?.into_iter().map(|f| f as f32).collect();
                rope.variant = Variant::Long { frequencies: long, original: original as usize };
                short?
            }
            other => {
                return Err(format!(
                    "rotary embedding `{other}` is not supported (known: default, linear, dynamic, llama3, yarn, longrope)"
                ));
            }
        };
        rope.frequencies = scaled.into_iter().map(|f| f as f32).collect();
        let long: &[f32] = match &rope.variant {
            Variant::Long { frequencies, .. } => frequencies,
            _ => &[],
        };
        let is_finite = rope.factor.is_finite() && rope.frequencies.iter().chain(long).all(|f| f.is_finite());
        if is_finite {
            Ok(rope)
        } else {
            Err(format!("the rotary angles of `{kind}` with these numbers are not finite"))
        }
    }

    /// Length of the longest sequence whose angles do not depend on its length; `None` if angles never do.
    pub(crate) fn limit(&self) -> Option<usize> {
        match &self.variant {
            Variant::Fixed => None,
            Variant::Dynamic { .. } => Some(self.max_positions),
            Variant::Long { original, .. } => Some(*original),
        }
    }

    /// Length of the longest sequence that a model with these angles is designed for.
    pub(crate) fn made_for(&self) -> usize {
        self.made_for
    }

    /// Length of the longest sequence that can be sampled.
    pub(crate) fn max_sampled(&self) -> usize {
        self.limit().unwrap_or(usize::MAX).min(self.made_for())
    }

    /// Base of the frequencies.
    pub fn base(&self) -> f64 {
        self.base
    }

    /// Returns the divisor of each frequency. `None` if angles depend on the sequence length, or if cos and sin are scaled.
    pub fn divisors(&self) -> Option<Vec<f32>> {
        if self.limit().is_some() || self.factor != 1.0 {
            return None;
        }
        let plain = frequencies(self.base, self.dim).into_iter();
        Some(plain.zip(&self.frequencies).map(|(plain, &f)| (plain / f64::from(f)) as f32).collect())
    }

    /// Number of rotated dimensions of a head.
    pub fn dims(&self) -> usize {
        self.dim
    }

    /// Computes the angles of tokens at `positions` in sequences of `lengths`.
    pub(super) fn angles(&self, positions: &[u32], lengths: &[u32]) -> Angles {
        let half = self.dim / 2;
        // Positions repeat across a batch, so each pair of position and length is computed once.
        let mut known: std::collections::HashMap<(u32, u32), usize> = std::collections::HashMap::new();
        let (mut cos, mut sin) =
            (Vec::with_capacity(positions.len() * half), Vec::with_capacity(positions.len() * half));
        for (n, (&position, &length)) in positions.iter().zip(lengths).enumerate() {
            let is_long = self.limit().is_some_and(|limit| length as usize > limit);
            let stretched = match self.variant {
                Variant::Dynamic { .. } if is_long => length,
                Variant::Long { .. } if is_long => u32::MAX,
                _ => 0,
            };
            let from = *known.entry((position, stretched)).or_insert(n);
            if from < n {
                cos.extend_from_within(from * half..(from + 1) * half);
                sin.extend_from_within(from * half..(from + 1) * half);
                continue;
            }
            let mut push = |frequency: f32| {
                // The angle is rounded to f32 as in `transformers`; its sine and cosine are exact.
                let angle = f64::from(position as f32 * frequency);
                cos.push(angle.cos() as f32 * self.factor);
                sin.push(angle.sin() as f32 * self.factor);
            };
            match &self.variant {
                Variant::Long { frequencies, .. } if stretched > 0 => frequencies.iter().for_each(|&f| push(f)),
                Variant::Dynamic { factor } if stretched > 0 => {
                    let growth = factor * f64::from(length) / self.max_positions as f64 - (factor - 1.0);
                    let base = self.base * growth.powf(self.dim as f64 / (self.dim as f64 - 2.0));
                    frequencies(base, self.dim).into_iter().for_each(|f| push(f as f32));
                }
                _ => self.frequencies.iter().for_each(|&f| push(f)),
            }
        }
        Angles { cos: cos.into(), sin: sin.into() }
    }
}

/// Completes the rotary keys of a kind of layers by what is outside of them in `config`, and gives them the names of `transformers` 5.
///
/// `theta` is the base if they have none. With `rotates_part`, a part of each head can be rotated by angles that are not scaled.
pub(crate) fn complete(
    mut keys: Map<String, Value>,
    theta: Value,
    config: &Map<String, Value>,
    rotates_part: bool,
) -> Map<String, Value> {
    // Some files have both names. The new one counts.
    if let Some(name) = keys.remove("type") {
        fill(&mut keys, "rope_type", name);
    }
    fill(&mut keys, "rope_type", json!("default"));
    fill(&mut keys, "rope_theta", theta);
    let is_longrope = match keys["rope_type"].as_str() {
        // Name in the first Phi-3 models.
        Some("su") => true,
        Some("yarn") => keys.get("short_factor").is_some_and(|factors| !factors.is_null()),
        _ => false,
    };
    if is_longrope {
        keys.insert("rope_type".into(), json!("longrope"));
    }
    if keys["rope_type"] == "default" && !rotates_part {
        keys.remove(PARTIAL);
    } else if let Some(part) = config.get(PARTIAL).filter(|part| !part.is_null()) {
        fill(&mut keys, PARTIAL, part.clone());
    }
    keys
}

/// Share of each head that is rotated.
pub(crate) const PARTIAL: &str = "partial_rotary_factor";
/// Length of the longest sequence before the angles were scaled.
pub(crate) const ORIGINAL: &str = "original_max_position_embeddings";

/// Sets `key` if it is missing or null.
fn fill(keys: &mut Map<String, Value>, key: &str, value: Value) {
    if keys.get(key).is_none_or(Value::is_null) {
        keys.insert(key.into(), value);
    }
}

/// Whether these keys, which are complete, scale angles from the length under [`ORIGINAL`].
pub(crate) fn has_original(keys: &Map<String, Value>) -> bool {
    ["llama3", "yarn", "longrope"].iter().any(|kind| keys["rope_type"] == *kind)
}

/// Computes the length of the longest sequence that a model is designed for. By the convention of `transformers`, `max_position_embeddings`
/// is the length before scaling for linear, dynamic and yarn scaling, and the length after it for llama3 and longrope. If a configuration
/// counts the scaling twice, the result exceeds the model's training length. It is never too short.
fn made_for(kind: &str, keys: &Keys, max_positions: usize) -> usize {
    let factor = keys.factor.filter(|factor| *factor > 1.0).unwrap_or(1.0);
    let scaled = match kind {
        "linear" | "dynamic" => max_positions as f64 * factor,
        "yarn" => keys.original_max_position_embeddings.unwrap_or(max_positions as f64) * factor,
        _ => 0.0,
    };
    // Casts of too large values saturate.
    max_positions.max(scaled as usize)
}

/// Computes base^(−2i/dim), `[dim / 2]`.
fn frequencies(base: f64, dim: usize) -> Vec<f64> {
    (0..dim / 2).map(|i| base.powf(-2.0 * i as f64 / dim as f64)).collect()
}

/// Llama 3.1: frequencies below `low` rotations of the original context are divided by `factor`; those above `high` do not change.
fn llama3(frequency: f64, factor: f64, low: f64, high: f64, original: f64) -> f64 {
    let wavelength = 2.0 * PI / frequency;
    if wavelength > original / low {
        frequency / factor
    } else if wavelength < original / high {
        frequency
    } else {
        let smooth = (original / wavelength - low) / (high - low);
        (1.0 - smooth) * frequency / factor + smooth * frequency
    }
}

/// Ding et al. 2024, <https://arxiv.org/abs/2402.13753>: one divisor per frequency.
fn longrope(plain: &[f64], factors: Option<&[f64]>, key: &str) -> Result<Vec<f64>, String> {
    let factors = factors.ok_or(format!("`rope_parameters` has no `{key}`"))?;
    if factors.len() != plain.len() {
        return Err(format!("`{key}` has {} factors for {} frequencies", factors.len(), plain.len()));
    }
    Ok(plain.iter().zip(factors).map(|(f, factor)| f / factor).collect())
}

/// Peng et al. 2023, <https://arxiv.org/abs/2309.00071>, section 3.2.
fn yarn(plain: Vec<f64>, keys: &Keys, base: f64, factor: f64, original: f64) -> Vec<f64> {
    let dim = 2.0 * plain.len() as f64;
    let boundary = |rotations: f64| dim * (original / (rotations * 2.0 * PI)).ln() / (2.0 * base.ln());
    let (mut low, mut high) = (boundary(keys.beta_fast.unwrap_or(32.0)), boundary(keys.beta_slow.unwrap_or(1.0)));
    if keys.truncate.unwrap_or(true) {
        (low, high) = (low.floor(), high.ceil());
    }
    let (low, mut high) = (low.max(0.0), high.min(dim - 1.0));
    if low == high {
        high += 0.001;
    }
    let ramp = |i: usize| ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
    plain.into_iter().enumerate().map(|(i, f)| f / factor * ramp(i) + f * (1.0 - ramp(i))).collect()
}

/// Factor of cos and sin in yarn.
fn yarn_attention(keys: &Keys, factor: f64) -> f64 {
    let scale = |m: f64| if factor <= 1.0 { 1.0 } else { 0.1 * m * factor.ln() + 1.0 };
    match (keys.attention_factor, keys.mscale, keys.mscale_all_dim) {
        (Some(given), _, _) => given,
        (None, Some(m), Some(all)) if m != 0.0 && all != 0.0 => scale(m) / scale(all),
        _ => scale(1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scaling_stretches_the_positions_as_transformers_documents_it() {
        let positions =
            |keys: Value| Rope::new(keys.as_object().expect("an object"), 8, 512).expect("angles").made_for();
        assert_eq!(positions(json!({})), 512);
        assert_eq!(positions(json!({ "rope_type": "linear", "factor": 4.0 })), 2048);
        assert_eq!(positions(json!({ "rope_type": "dynamic", "factor": 2.0 })), 1024);
        let yarn = json!({ "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512 });
        assert_eq!(positions(yarn), 2048);
        // A configuration whose `max_position_embeddings` is the length after scaling.
        let yarn = json!({ "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128 });
        assert_eq!(positions(yarn), 512);
        let llama3 = json!({ "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64 });
        assert_eq!(positions(llama3), 512);
    }
}
