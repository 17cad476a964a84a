//! Limits of the training server.

use std::time::Duration;

/// Who may train, and how much.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrainingOptions {
    /// The most sessions at work.
    pub sessions: usize,
    /// The most models in memory; others rest on the disk.
    pub models: usize,
    /// The most tokens of a forward pass; a longer text is a pass of its own.
    pub pass_tokens: usize,
    /// After so long without a word, a session's models leave memory, and it makes room for another.
    pub silent: Duration,
    /// After so long without a word, a session ends.
    pub lost: Duration,
    /// How long requests wait for one before them that has not come.
    pub gap: Duration,
    /// How long a client that asks what became of a request is kept waiting before it is told to ask again.
    pub patience: Duration,
}

impl Default for TrainingOptions {
    /// 64 sessions, 16 models in memory, passes of 4096 tokens, 10 minutes, a day, 10 minutes, 20 seconds.
    fn default() -> Self {
        Self {
            sessions: 64,
            models: 16,
            pass_tokens: 4096,
            silent: Duration::from_secs(600),
            lost: Duration::from_secs(86_400),
            gap: Duration::from_secs(600),
            patience: Duration::from_secs(20),
        }
    }
}
