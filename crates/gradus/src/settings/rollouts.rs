//! The keys under `rollouts`: a server that samples instead of this process.

use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::math::importance::Correction;
use crate::rollout::server::{Endpoint, ServerKind, ServerOptions};

/// A server that samples instead of this process (docs/servers.md).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RolloutsConfig {
    /// Address of the server, such as `http://localhost:8000`.
    pub server: String,
    /// Kind of server: `gradus`, `vllm` or `sglang`. Default `vllm`.
    pub kind: ServerKind,
    /// Name of the model on the server. Default: the first of its list.
    pub model: Option<String>,
    /// Folder that this process and the server can both access. Adapters and weights are exchanged through it.
    pub shared: PathBuf,
    /// Path of that folder on the server. Default: the same.
    pub shared_at_server: Option<PathBuf>,
    /// Environment variable that holds the key of the server. Default: the server needs none.
    pub key_variable: Option<String>,
    /// Maximum number of concurrent requests, each for one prompt. Default 16.
    #[schemars(range(min = 1, max = 1_024))]
    pub connections: usize,
    /// Time limit of one request, in seconds. Default 1800.
    pub timeout_s: f64,
    /// Seconds that the run waits for an unresponsive server before it writes a checkpoint and ends. Default 600.
    pub wait_s: f64,
    /// Number of iterations that the server samples ahead while this process trains. The weights of the completions are then up to so many
    /// iterations old. Default 0: sampling and training alternate.
    #[schemars(range(max = 64))]
    pub max_staleness: usize,
    /// Multiply the loss by the ratio of the completion's probabilities under the policy and under the server. Default true (TRL).
    pub importance_sampling_correction: bool,
    /// Ratio per token or per sequence, and the treatment of ratios beyond the bounds: they become the bounds (`truncate`) or 0 (`mask`).
    /// Default `sequence_mask` (TRL).
    pub importance_sampling_mode: ImportanceSamplingMode,
    /// Upper bound of the ratio; null: none. Default 3 (TRL).
    pub importance_sampling_clip_max: Option<f64>,
    /// Lower bound of the ratio. Default: none (TRL).
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

/// Scope of the ratio of policy and sampler, and treatment of ratios beyond the bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ImportanceSamplingMode {
    /// One ratio per token, cut to the bounds.
    TokenTruncate,
    /// One ratio per token, 0 beyond the bounds.
    TokenMask,
    /// One ratio per sequence, cut to the bounds.
    SequenceTruncate,
    /// One ratio per sequence, 0 beyond the bounds.
    SequenceMask,
}

impl ImportanceSamplingMode {
    /// Returns true if each sequence has one ratio.
    pub fn is_of_sequences(self) -> bool {
        matches!(self, Self::SequenceTruncate | Self::SequenceMask)
    }

    /// Returns true if ratios beyond the bounds become 0.
    pub fn masks(self) -> bool {
        matches!(self, Self::TokenMask | Self::SequenceMask)
    }
}

impl RolloutsConfig {
    /// Correction of losses, if it is enabled.
    pub fn correction(&self) -> Option<Correction> {
        self.importance_sampling_correction.then_some(Correction {
            of_sequences: self.importance_sampling_mode.is_of_sequences(),
            masks: self.importance_sampling_mode.masks(),
            low: self.importance_sampling_clip_min,
            high: self.importance_sampling_clip_max,
        })
    }

    /// Returns the options of the server, with the key from the environment.
    ///
    /// # Errors
    /// [`Error::Input`] if the environment variable of the key is not set.
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

/// Reads the key of `server` from the environment variable `variable`, the value of `KEYS.key_variable`.
///
/// # Errors
/// [`Error::Input`] if the environment variable is not set.
#[expect(clippy::disallowed_methods, reason = "a variable in the table of ARCHITECTURE.md")]
pub(crate) fn server_key(variable: Option<&str>, server: &str, keys: &str) -> Result<Option<String>> {
    let Some(variable) = variable else { return Ok(None) };
    let found = std::env::var(variable).ok().map(|key| key.trim().to_owned()).filter(|key| !key.is_empty());
    let missing = || {
        let message = format!("the environment variable `{variable}` holds no key for {server}");
        Error::input(message)
            .with_hint(format!("set `{variable}`; leave `{keys}.key_variable` out for a server without a key"))
    };
    found.ok_or_else(missing).map(Some)
}
