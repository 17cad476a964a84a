//! Runs Python in a sandbox.

use serde_json::{Map, Value, json};

use crate::error::Result;
use crate::sandbox::{End, Sandbox, SandboxConfig};
use crate::tool::Tool;
use crate::toolbox::Function;

/// Runs Python programs in a [`Sandbox`]. No state is kept between calls.
#[derive(Debug, Clone)]
pub struct Python {
    tool: Tool,
    sandbox: Sandbox,
    seconds: u64,
}

impl Python {
    /// Opens the sandbox.
    ///
    /// # Errors
    /// As [`Sandbox::open`].
    pub fn open(config: &SandboxConfig) -> Result<Self> {
        let parameters = json!({
            "type": "object",
            "properties": { "code": { "type": "string", "description": "A Python program that prints its result" } },
            "required": ["code"],
        });
        let description = "Runs a Python program and returns what it prints.".to_owned();
        let tool = Tool { name: "python".to_owned(), description, parameters, returns: None };
        Ok(Self { tool, sandbox: Sandbox::open(config)?, seconds: config.seconds })
    }
}

impl Function for Python {
    fn tool(&self) -> &Tool {
        &self.tool
    }

    fn call(&self, arguments: &Map<String, Value>) -> Result<String, String> {
        let code = arguments.get("code").and_then(Value::as_str).unwrap_or_default();
        let outcome = self.sandbox.run(code, "").map_err(|error| error.to_string())?;
        let last = |text: &str| text.trim().lines().last().unwrap_or_default().to_owned();
        match outcome.end {
            End::Code(0) if outcome.stdout.is_empty() => Ok("(the program printed nothing)".to_owned()),
            End::Code(0) => Ok(outcome.stdout),
            End::Code(_) if !outcome.stderr.trim().is_empty() => Err(last(&outcome.stderr)),
            End::Code(code) => Err(format!("the program ended with exit code {code}")),
            End::OutOfTime => Err(format!("the program took more than {} s", self.seconds)),
            End::TooMuchOutput => Err("the program printed too much".to_owned()),
            End::OverLimit => {
                Err(format!("the program was ended: it took more than {} s, or too much memory", self.seconds))
            }
            End::Killed(_) if outcome.stderr.trim().is_empty() => Err(format!("the program was {}", outcome.end)),
            End::Killed(_) => Err(format!("the program was {}: {}", outcome.end, last(&outcome.stderr))),
        }
    }

    /// A program may read the clock or random numbers.
    fn is_deterministic(&self) -> bool {
        false
    }
}
