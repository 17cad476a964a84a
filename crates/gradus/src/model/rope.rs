//! Rotary angles: the default and the scaled variants of `transformers`.
//!
//! `θₜᵢ = t · fᵢ` with `fᵢ = base^(−2i/dim)`, changed by the variant: linear (f / factor), dynamic (base grows with the
//! sequence), llama3 and yarn (low frequencies are stretched, high ones kept, a ramp between).

use std::f64::consts::PI;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value};

/// The rotary parameters of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    base: f64,
    dim: usize,
    max_positions: usize,
    variant: Variant,
    /// fᵢ, `[dim / 2]`, where they do not depend on the sequence.
    frequencies: Vec<f32>,
    /// What cos and sin are multiplied by (yarn).
    factor: f32,
}

#[derive(Debug, Clone, PartialEq)]
enum Variant {
    Fixed,
    Dynamic { factor: f64 },
}

/// The keys of `rope_parameters` or `rope_scaling`.
#[derive(Debug, Clone, Default, Deserialize)]
struct Keys {
    #[serde(alias = "type")]
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
}

impl Rope {
    /// From `config.json`: `rope_parameters`, or the older `rope_theta` and `rope_scaling`.
    ///
    /// # Errors
    /// The message for an unknown variant or a missing key.
    pub(crate) fn from_config(config: &Map<String, Value>, dim: usize, max_positions: usize) -> Result<Self, String> {
        let read = |key: &str| match config.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                serde_json::from_value::<Keys>(value.clone()).map(Some).map_err(|error| format!("`{key}`: {error}"))
            }
        };
        let keys = match read("rope_parameters")? {
            Some(keys) => keys,
            None => read("rope_scaling")?.unwrap_or_default(),
        };
        let base = keys.rope_theta.or_else(|| config.get("rope_theta").and_then(Value::as_f64)).unwrap_or(10_000.0);
        if keys.partial_rotary_factor.is_some_and(|factor| factor != 1.0) {
            return Err("`partial_rotary_factor` apart from 1 is not supported".into());
        }
        let needed = |value: Option<f64>, key: &str| value.ok_or(format!("`rope_parameters` has no `{key}`"));
        let kind = keys.rope_type.as_deref().unwrap_or("default");
        let plain = frequencies(base, dim);
        let mut rope = Self { base, dim, max_positions, variant: Variant::Fixed, frequencies: Vec::new(), factor: 1.0 };
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
                let original = needed(keys.original_max_position_embeddings, "original_max_position_embeddings")?;
                let factor = needed(keys.factor, "factor")?;
                let low = needed(keys.low_freq_factor, "low_freq_factor")?;
                let high = needed(keys.high_freq_factor, "high_freq_factor")?;
                plain.into_iter().map(|f| llama3(f, factor, low, high, original)).collect()
            }
            "yarn" => {
                let original = keys.original_max_position_embeddings.unwrap_or(max_positions as f64);
                let factor = keys.factor.unwrap_or(max_positions as f64 / original);
                rope.factor = yarn_attention(&keys, factor) as f32;
                yarn(plain, &keys, base, factor, original)
            }
            other => {
                return Err(format!(
                    "rotary embedding `{other}` is not supported (known: default, linear, dynamic, llama3, yarn)"
                ));
            }
        };
        rope.frequencies = scaled.into_iter().map(|f| f as f32).collect();
        let is_finite = rope.factor.is_finite() && rope.frequencies.iter().all(|f| f.is_finite());
        if is_finite {
            Ok(rope)
        } else {
            Err(format!("the rotary angles of `{kind}` with these numbers are not finite"))
        }
    }

    /// Whether angles depend on how long the sequence becomes.
    pub(crate) fn depends_on_length(&self) -> bool {
        matches!(self.variant, Variant::Dynamic { .. })
    }

    /// cos and sin, `[N, dim / 2]` each, of tokens at `positions` in sequences of `lengths`.
    pub(crate) fn tables(&self, positions: &[u32], lengths: &[u32]) -> (Arc<[f32]>, Arc<[f32]>) {
        let half = self.dim / 2;
        // Positions repeat across a batch: each (position, long length) is computed once.
        let mut known: std::collections::HashMap<(u32, u32), usize> = std::collections::HashMap::new();
        let (mut cos, mut sin) =
            (Vec::with_capacity(positions.len() * half), Vec::with_capacity(positions.len() * half));
        for (n, (&position, &length)) in positions.iter().zip(lengths).enumerate() {
            let stretched = match self.variant {
                Variant::Dynamic { .. } if length as usize > self.max_positions => length,
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
            match self.variant {
                Variant::Dynamic { factor } if stretched > 0 => {
                    let growth = factor * f64::from(length) / self.max_positions as f64 - (factor - 1.0);
                    let base = self.base * growth.powf(self.dim as f64 / (self.dim as f64 - 2.0));
                    frequencies(base, self.dim).into_iter().for_each(|f| push(f as f32));
                }
                _ => self.frequencies.iter().for_each(|&f| push(f)),
            }
        }
        (cos.into(), sin.into())
    }
}

/// base^(−2i/dim), `[dim / 2]`.
fn frequencies(base: f64, dim: usize) -> Vec<f64> {
    (0..dim / 2).map(|i| base.powf(-2.0 * i as f64 / dim as f64)).collect()
}

/// Llama 3.1: frequencies below `low` rotations of the original context are divided by `factor`, above `high` kept.
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

/// What yarn multiplies cos and sin by.
fn yarn_attention(keys: &Keys, factor: f64) -> f64 {
    let scale = |m: f64| if factor <= 1.0 { 1.0 } else { 0.1 * m * factor.ln() + 1.0 };
    match (keys.attention_factor, keys.mscale, keys.mscale_all_dim) {
        (Some(given), _, _) => given,
        (None, Some(m), Some(all)) if m != 0.0 && all != 0.0 => scale(m) / scale(all),
        _ => scale(1.0),
    }
}
