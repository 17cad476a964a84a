//! JSON bodies of requests.

use gradus::learner::optimizer::{AdamWConfig, MomentFormat};
use gradus::model::adapter::{LoraConfig, LoraParts};
use gradus::rng::Seed;
use gradus::trainer::{Base, StepParams, Trainer};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Number, Value};

use super::outcome::Failure;

/// α of every adapter.
const ALPHA: f64 = 32.0;

/// Parses a JSON body.
///
/// # Errors
/// A description of the problem and the field.
pub fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let found = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let (path, why) = (error.path().to_string(), error.inner());
        match path.as_str() {
            "." => format!("the request cannot be read: {why}"),
            _ => format!("`{path}` cannot be read: {why}"),
        }
    })?;
    json.end().map_err(|error| format!("the request cannot be read: {error}"))?;
    Ok(found)
}

/// Settings of the requested adapter.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LoraBody {
    rank: i64,
    #[serde(default, deserialize_with = "seed")]
    pub seed: Option<u64>,
    #[serde(default = "yes")]
    train_unembed: bool,
    #[serde(default = "yes")]
    train_mlp: bool,
    #[serde(default = "yes")]
    train_attn: bool,
}

/// Parses a seed: a whole number of 64 bits, with or without a sign.
fn seed<'d, D: Deserializer<'d>>(from: D) -> Result<Option<u64>, D::Error> {
    let Some(number) = Option::<Number>::deserialize(from)? else { return Ok(None) };
    let seed = number.as_u64().or_else(|| number.as_i64().map(i64::cast_unsigned));
    seed.map(Some).ok_or_else(|| serde::de::Error::custom(format!("{number} is not a whole number of 64 bits")))
}

fn yes() -> bool {
    true
}

/// Body of `create_model`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CreateBody {
    pub session_id: String,
    pub model_seq_id: u64,
    pub base_model: String,
    pub lora_config: Option<LoraBody>,
    #[serde(default)]
    optimizer_config: Value,
}

/// Body of `optim_step`.
#[derive(Debug, Clone, Deserialize)]
pub struct StepBody {
    adam_params: Option<AdamBody>,
    optimizer_params: Option<Value>,
}

/// Constants of a step. Missing ones have the defaults of Tinker's clients.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct AdamBody {
    #[serde(deserialize_with = "number")]
    learning_rate: f64,
    #[serde(deserialize_with = "number")]
    beta1: f64,
    #[serde(deserialize_with = "number")]
    beta2: f64,
    #[serde(deserialize_with = "number")]
    eps: f64,
    #[serde(deserialize_with = "number")]
    weight_decay: f64,
    #[serde(deserialize_with = "number")]
    grad_clip_norm: f64,
}

/// Parses a number. Clients send `null` for a non-finite one.
fn number<'d, D: Deserializer<'d>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(from)?.unwrap_or(f64::NAN))
}

impl Default for AdamBody {
    fn default() -> Self {
        Self { learning_rate: 1e-4, beta1: 0.9, beta2: 0.95, eps: 1e-12, weight_decay: 0.0, grad_clip_norm: 0.0 }
    }
}

/// Body of `save_weights`. Checkpoints do not expire.
#[derive(Debug, Clone, Deserialize)]
pub struct SaveBody {
    pub path: Option<String>,
    #[serde(default)]
    pub overwrite: bool,
    pub user_metadata: Option<Value>,
}

/// Body of `save_weights_for_sampler`. A sampler of the kind `inflight` keeps its initial weights, which the protocol allows.
#[derive(Debug, Clone, Deserialize)]
pub struct SaveForSamplerBody {
    pub path: Option<String>,
    pub sampling_session_seq_id: Option<u64>,
    pub user_metadata: Option<Value>,
}

/// Body of `load_weights`.
#[derive(Debug, Clone, Deserialize)]
pub struct LoadBody {
    pub model_id: Option<String>,
    pub seq_id: Option<u64>,
    pub session_id: Option<String>,
    pub model_seq_id: Option<u64>,
    pub path: String,
    #[serde(default)]
    pub optimizer: bool,
    #[serde(default)]
    optimizer_config: Value,
    weights_access_token: Option<String>,
}

impl LoadBody {
    /// Rejects unsupported fields.
    pub fn check(&self) -> Result<(), Failure> {
        if self.weights_access_token.is_some() {
            return Err(Failure::user("`weights_access_token` is not supported by this server: leave it out"));
        }
        match self.optimizer_config.get("type").and_then(Value::as_str).filter(|kind| *kind != "adamw") {
            Some(kind) => {
                Err(Failure::user(format!("`optimizer_config` requests `{kind}`, but only `adamw` is supported")))
            }
            None => Ok(()),
        }
    }
}

impl CreateBody {
    /// Rejects a rank that no adapter can have.
    ///
    /// # Errors
    /// A description of the problem.
    pub fn check(&self) -> Result<(), String> {
        match self.lora_config.as_ref().map(|lora| lora.rank).filter(|rank| *rank < 1) {
            Some(rank) => Err(format!("`lora_config.rank` is {rank}, but must be at least 1")),
            None => Ok(()),
        }
    }

    /// Returns the requested adapter.
    pub fn adapter(&self, base: &Base) -> Result<Trainer, Failure> {
        if let Some(kind) = self.optimizer_config.get("type").and_then(Value::as_str).filter(|kind| *kind != "adamw") {
            return Err(Failure::user(format!("`optimizer_config` requests `{kind}`, but only `adamw` is supported")));
        }
        let Some(lora) = &self.lora_config else {
            return Err(Failure::user("`lora_config` is missing: this server trains adapters only"));
        };
        let parts = LoraParts { attention: lora.train_attn, feed_forward: lora.train_mlp, head: lora.train_unembed };
        let targets = parts.targets(&base.files().dir)?;
        let rank = usize::try_from(lora.rank).unwrap_or_default();
        let config = LoraConfig { rank, alpha: ALPHA, targets, ..LoraConfig::default() };
        Ok(base.adapter(&config, Seed(lora.seed.unwrap_or_default()))?)
    }
}

impl StepBody {
    /// Returns the constants of the step.
    pub fn params(&self) -> Result<StepParams, Failure> {
        if let Some(kind) = self.optimizer_params.as_ref().and_then(|of| of.get("type")).and_then(Value::as_str) {
            return Err(Failure::user(format!("`optimizer_params` are for `{kind}`, but only AdamW is supported")));
        }
        let Some(of) = &self.adam_params else { return Err(Failure::user("`adam_params` is missing")) };
        let check = |name: &str, value: f64, fits: bool, needed: &str| match fits && value.is_finite() {
            true => Ok(()),
            false => Err(Failure::user(format!("`{name}` is {value}, but {needed} is needed"))),
        };
        check("learning_rate", of.learning_rate, of.learning_rate >= 0.0, "a number of at least 0")?;
        for (name, beta) in [("beta1", of.beta1), ("beta2", of.beta2)] {
            check(name, beta, (0.0..1.0).contains(&beta), "a number from 0 to below 1")?;
        }
        check("eps", of.eps, of.eps >= 0.0, "a number of at least 0")?;
        check("weight_decay", of.weight_decay, of.weight_decay >= 0.0, "a number of at least 0")?;
        check("grad_clip_norm", of.grad_clip_norm, of.grad_clip_norm >= 0.0, "a number of at least 0")?;
        let (betas, moments) = ([of.beta1, of.beta2], MomentFormat::F32);
        let adamw = AdamWConfig { betas, epsilon: of.eps, weight_decay: of.weight_decay, moments };
        Ok(StepParams { learning_rate: of.learning_rate, adamw, max_grad_norm: of.grad_clip_norm })
    }
}
