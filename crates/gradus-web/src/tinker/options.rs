//! Limits of the training server.

use std::time::Duration;

/// Limits of the training server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrainingOptions {
    /// Maximum number of active sessions.
    pub sessions: usize,
    /// Maximum number of models in memory. Others are kept on disk.
    pub models: usize,
    /// Maximum number of tokens in a forward pass. A longer text is a pass of its own.
    pub pass_tokens: usize,
    /// Idle time after which a session's models leave memory.
    pub silent: Duration,
    /// Idle time after which another session may replace a session. Clients send a heartbeat every 10 seconds.
    pub unheard: Duration,
    /// Idle time after which a session ends.
    pub lost: Duration,
    /// Time that requests wait for a missing earlier request.
    pub gap: Duration,
    /// Time that a client waits for a result before it must repeat its query.
    pub patience: Duration,
}

impl Default for TrainingOptions {
    /// 64 sessions, 16 models in memory, passes of 4096 tokens, 10 minutes, a minute, a day, 10 minutes, 20 seconds.
    fn default() -> Self {
        Self {
            sessions: 64,
            models: 16,
            pass_tokens: 4096,
            silent: Duration::from_secs(600),
            unheard: Duration::from_secs(60),
            lost: Duration::from_secs(86_400),
            gap: Duration::from_secs(600),
            patience: Duration::from_secs(20),
        }
    }
}
