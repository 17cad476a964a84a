//! The keys under `rollouts`: a server that samples in place of this process.

use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::math::importance::Correction;
use crate::rollout::server::{Endpoint, ServerKind, ServerOptions};

/// A server that samples in place of this process (docs/servers.md).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RolloutsConfig {
    /// The address of the server, such as `http://localhost:8000`.
    pub server: String,
    /// The kind of server: `gradus`, `vllm` or `sglang`. Default `vllm`.
    pub kind: ServerKind,
    /// The name of the model on the server. Default: the first of its list.
    pub model: Option<String>,
    /// A folder that this process and the server both see: adapters and weights go through it.
    pub shared: PathBuf,
    /// The path of that folder at the server. Default: the same.
    pub shared_at_server: Option<PathBuf>,
    /// The environment variable that holds the key of the server. Default: the server wants none.
    pub key_variable: Option<String>,
    /// Requests under way at a time, each for one prompt. Default 16.
    #[schemars(range(max = 1_024))]
    pub connections: usize,
    /// Seconds that one request may take. Default 1800.
    pub timeout_s: f64,
    /// Seconds that the run waits for a server that does not answer, before it writes a checkpoint and ends. Default 600.
    pub wait_s: f64,
    /// How many iterations ahead the server samples while this process trains. The completions are then from weights that are so many
    /// iterations old. Default 0: each waits for the other.
    #[schemars(range(max = 64))]
    pub max_staleness: usize,
    /// Multiply the loss with the ratio of the probabilities that the policy and the server give a completion. Default true (TRL).
    pub importance_sampling_correction: bool,
    /// Whether each token or each sequence has a ratio, and what happens to ratios beyond the bounds: they become the bounds (`truncate`) or 0 (`mask`). Default `sequence_mask` (TRL).
    pub importance_sampling_mode: ImportanceSamplingMode,
    /// The upper bound of the ratio; null for none. Default 3 (TRL).
    pub importance_sampling_clip_max: Option<f64>,
    /// The lower bound of the ratio. Default: none (TRL).
    pub importance_sampling_clip_min: Option<f64>,
}

impl Default for RolloutsConfig {
    fn default() -> Self {
        Self {
            server: String::new(),
            kind: ServerKind::default(),
            model: None,
            shared: PathBuf::new(),
            shared_at_server: None,
            key_variable: None,
            connections: 16,
            timeout_s: 1800.0,
            wait_s: 600.0,
            max_staleness: 0,
            importance_sampling_correction: true,
            importance_sampling_mode: ImportanceSamplingMode::SequenceMask,
            importance_sampling_clip_max: Some(3.0),
            importance_sampling_clip_min: None,
        }
    }
}

/// What has a ratio of policy and sampler, and what happens beyond the bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ImportanceSamplingMode {
    /// A token, cut to the bounds.
    TokenTruncate,
    /// A token, 0 beyond the bounds.
    TokenMask,
    /// A sequence, cut to the bounds.
    SequenceTruncate,
    /// A sequence, 0 beyond the bounds.
    SequenceMask,
}

impl ImportanceSamplingMode {
    /// Whether a sequence has one ratio.
    pub fn is_of_sequences(self) -> bool {
        matches!(self, Self::SequenceTruncate | Self::SequenceMask)
    }

    /// Whether ratios beyond the bounds become 0.
    pub fn masks(self) -> bool {
        matches!(self, Self::TokenMask | Self::SequenceMask)
    }
}

impl RolloutsConfig {
    /// How losses are corrected, where they are.
    pub fn correction(&self) -> Option<Correction> {
        self.importance_sampling_correction.then_some(Correction {
            of_sequences: self.importance_sampling_mode.is_of_sequences(),
            masks: self.importance_sampling_mode.masks(),
            low: self.importance_sampling_clip_min,
            high: self.importance_sampling_clip_max,
        })
    }

    /// The server, with the key that the environment holds.
    ///
    /// # Errors
    /// [`Error::Input`] when the variable of the key is not set.
    pub fn options(&self) -> Result<ServerOptions> {
        Ok(ServerOptions {
            endpoint: Endpoint {
                url: self.server.clone(),
                kind: self.kind,
                model: self.model.clone(),
                key: server_key(self.key_variable.as_deref(), &self.server, "rollouts")?,
                connections: self.connections,
                timeout: Duration::from_secs_f64(self.timeout_s),
                wait: Duration::from_secs_f64(self.wait_s),
                keys: "rollouts",
            },
            shared: self.shared.clone(),
            shared_there: self.shared_at_server.clone(),
            ahead: self.max_staleness,
        })
    }
}

/// The key of `server` in the environment variable that `KEYS.key_variable` names.
///
/// # Errors
/// [`Error::Input`] when the variable is not set.
pub fn server_key(variable: Option<&str>, server: &str, keys: &str) -> Result<Option<String>> {
    let Some(variable) = variable else { return Ok(None) };
    let found = std::env::var(variable).ok().map(|key| key.trim().to_owned()).filter(|key| !key.is_empty());
    let missing = || {
        let message = format!("the environment variable `{variable}` holds no key for {server}");
        Error::input(message)
            .with_hint(format!("set `{variable}`; leave `{keys}.key_variable` out for a server without a key"))
    };
    found.ok_or_else(missing).map(Some)
}
