//! An MCP server as a child process, with one message per line.

use std::sync::Arc;

use serde_json::Value;

use super::message::{self, Response};
use crate::error::{Error, Result};
use crate::peer::{Dialect, Peer, Running};

const DIALECT: Dialect = Dialect {
    noun: "the MCP server",
    hint: "it must print one JSON message per line, and nothing else",
    limit: "the `timeout_s` of its `mcp` in `tools`",
    read: message::read,
    cancel: Some(message::cancel),
    ends_when_silent: true,
};

/// The process.
pub(super) struct Stdio(Peer);

impl Stdio {
    pub fn new(command: &[String], timeout_s: f64) -> Self {
        Self(Peer::new(command, timeout_s, &DIALECT))
    }

    /// Returns the running server. If it does not run, it is started and initialized.
    fn running(&self) -> Result<Arc<Running>> {
        let running = self.0.running(|running| {
            let answer = self.0.request(running, message::request("initialize", &message::introduction()))?;
            message::version(message::response(answer)?)?;
            self.0.send(running, &message::notification("notifications/initialized", Value::Null));
            Ok(())
        });
        running.map_err(|error| match error {
            Error::Config { message, hint } => Error::Episode { message, hint },
            other => other,
        })
    }

    pub fn request(&self, method: &str, params: &Value) -> Result<Response> {
        let running = self.running()?;
        message::response(self.0.request(&running, message::request(method, params))?)
    }
}
