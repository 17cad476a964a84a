//! Tools of Model Context Protocol servers (<https://modelcontextprotocol.io>, up to version 2025-11-25), over the channels of a child
//! process or over streamable HTTP.
//!
//! One connection serves all episodes, which call concurrently. The policy reads a tool's answer, including a failure. If the server has
//! ended, is silent or is unreadable, the episodes with open calls fail.

mod http;
mod message;
mod stdio;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::timeout;
use crate::tool::Tool;
use crate::toolbox::{CallResult, ToolSource};
use http::Http;
use message::Response;
use stdio::Stdio;

/// Maximum number of tools of a server, and of pages that list them.
const TOOLS: usize = 256;
const PAGES: usize = 64;

/// Maximum number of parts of a result.
const PARTS: usize = 256;

/// A server, and the choice of its tools.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct McpConfig {
    /// The program of a server that communicates over its input and output, with its arguments: `[python3, server.py]`. It inherits the
    /// environment variables of gradus.
    #[serde(default)]
    pub command: Vec<String>,
    /// The address of a server that communicates over HTTP: `http://localhost:8000/mcp`.
    #[serde(default)]
    pub url: Option<String>,
    /// Headers of each HTTP request. They are saved with the configuration of a run, so put secrets into `key_variable`.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// The environment variable with the bearer token of an HTTP server.
    #[serde(default)]
    pub key_variable: Option<String>,
    /// The names of the tools to offer. Default: all.
    #[serde(default)]
    pub only: Option<Vec<String>>,
    /// The names of tools to leave out. Default: none.
    #[serde(default)]
    pub except: Vec<String>,
    /// Declare that the same call always gives the same result. Default false: answers are recorded for a resumed run.
    #[serde(default)]
    pub deterministic: bool,
    /// The time limit of one answer, in seconds. Default 60.
    #[serde(default = "timeout::default_s")]
    pub timeout_s: f64,
}

impl Default for McpConfig {
    fn default() -> Self {
        Self {
            command: Vec::new(),
            url: None,
            headers: BTreeMap::new(),
            key_variable: None,
            only: None,
            except: Vec::new(),
            deterministic: false,
            timeout_s: timeout::default_s(),
        }
    }
}

/// An MCP server whose tools the policy may call.
pub struct McpServer {
    connection: Connection,
    tools: Vec<Tool>,
    is_deterministic: bool,
}

enum Connection {
    Stdio(Stdio),
    Http(Http),
}

impl Connection {
    fn request(&self, method: &str, params: &Value) -> Result<Response> {
        match self {
            Self::Stdio(stdio) => stdio.request(method, params),
            Self::Http(http) => http.request(method, params),
        }
    }
}

impl McpServer {
    /// Connects to a server and lists its tools.
    ///
    /// # Errors
    /// Returns [`Error::Config`] if the server cannot be reached, or a key does not fit it.
    pub fn connect(config: &McpConfig) -> Result<Self> {
        timeout::check(config.timeout_s)?;
        let connection = match (&config.command[..], &config.url) {
            ([], Some(url)) => Connection::Http(Http::new(config, url)?),
            ([_, ..], None) if !config.headers.is_empty() || config.key_variable.is_some() => {
                return Err(Error::config("`headers` and `key_variable` are for a server with a `url`"));
            }
            (command @ [_, ..], None) => Connection::Stdio(Stdio::new(command, config.timeout_s)),
            ([], None) => {
                return Err(Error::config("the MCP server has neither `command` nor `url`").with_hint(
                    "write `mcp: { command: [python3, server.py] }` or `mcp: { url: http://localhost:8000/mcp }`",
                ));
            }
            ([_, ..], Some(_)) => {
                return Err(Error::config("the MCP server has both `command` and `url`").with_hint("keep one of them"));
            }
        };
        let tools = list(&connection).map_err(|error| match error {
            Error::Episode { message, hint } => Error::Config { message, hint },
            other => other,
        })?;
        let tools = chosen(tools, config)?;
        Ok(Self { connection, tools, is_deterministic: config.deterministic })
    }
}

impl ToolSource for McpServer {
    fn tools(&self) -> &[Tool] {
        &self.tools
    }

    fn call(&self, name: &str, arguments: &Map<String, Value>) -> Result<CallResult> {
        let params = json!({ "name": name, "arguments": arguments });
        match self.connection.request("tools/call", &params)? {
            // Wrong arguments and unknown tools are protocol errors. The policy reads them and can correct its call.
            Response::Refused { message, .. } => Ok(Err(message)),
            Response::Result(result) => result_of(result),
        }
    }

    fn is_deterministic(&self) -> bool {
        self.is_deterministic
    }
}

/// Lists all tools of the server, page by page.
fn list(connection: &Connection) -> Result<Vec<Tool>> {
    let (mut tools, mut cursor) = (Vec::new(), None);
    for _ in 0..PAGES {
        let params = match &cursor {
            None => json!({}),
            Some(cursor) => json!({ "cursor": cursor }),
        };
        let mut page = match connection.request("tools/list", &params)? {
            Response::Result(page) => page,
            Response::Refused { message, .. } => {
                return Err(Error::config(format!("the MCP server does not list its tools: {message}")));
            }
        };
        let Some(Value::Array(listed)) = page.remove("tools") else {
            return Err(Error::config("the MCP server's list of tools has no `tools`"));
        };
        if tools.len() + listed.len() > TOOLS {
            return Err(Error::config(format!("the MCP server has more than {TOOLS} tools")));
        }
        for tool in listed {
            tools.push(read_tool(tool)?);
        }
        match page.remove("nextCursor") {
            Some(Value::String(next)) => cursor = Some(next),
            _ => return Ok(tools),
        }
    }
    Err(Error::config(format!("the MCP server lists its tools on more than {PAGES} pages")))
}

fn read_tool(mut tool: Value) -> Result<Tool> {
    let unusable = |tool: &Value, why: &str| {
        let shown = tool.to_string();
        Error::config(format!("a tool of the MCP server {why}: `{}`", crate::peer::excerpt(&shown)))
    };
    let Some(name) = tool.get("name").and_then(Value::as_str).filter(|name| !name.is_empty()).map(str::to_owned) else {
        return Err(unusable(&tool, "has no `name`"));
    };
    let text = |key: &str| tool.get(key).and_then(Value::as_str).map(str::to_owned);
    let description = text("description").or_else(|| text("title")).unwrap_or_default();
    match tool.get_mut("inputSchema").map(Value::take) {
        Some(parameters @ Value::Object(_)) => Ok(Tool { name, description, parameters, returns: None }),
        _ => Err(unusable(&tool, "has no object `inputSchema`")),
    }
}

/// Selects the tools to offer.
fn chosen(mut tools: Vec<Tool>, config: &McpConfig) -> Result<Vec<Tool>> {
    let named = config.only.iter().flatten().chain(&config.except);
    for name in named {
        if !tools.iter().any(|tool| tool.name == *name) {
            let names: Vec<String> = tools.iter().map(|tool| format!("`{}`", tool.name)).collect();
            return Err(Error::config(format!("the MCP server has no tool `{name}`; it has {}", names.join(", "))));
        }
    }
    tools.retain(|tool| {
        config.only.as_ref().is_none_or(|only| only.contains(&tool.name)) && !config.except.contains(&tool.name)
    });
    if tools.is_empty() {
        return Err(Error::config("the MCP server offers no tools"));
    }
    Ok(tools)
}

/// Reads `{"content": […], "structuredContent": …, "isError": …}`.
fn result_of(mut result: Map<String, Value>) -> Result<CallResult> {
    if result.get("resultType").is_some_and(|kind| kind == "input_required") {
        return Ok(Err("the tool asks for further input, which it does not get here".to_owned()));
    }
    let content = match result.remove("content") {
        Some(Value::Array(content)) => content,
        found => {
            let found = found.unwrap_or(Value::Null).to_string();
            let message =
                format!("the MCP server's result has no list `content` but `{}`", crate::peer::excerpt(&found));
            return Err(Error::episode(message));
        }
    };
    let mut parts: Vec<String> = content.iter().take(PARTS).map(part).collect();
    if content.len() > PARTS {
        parts.push(format!("({} more parts, which are not shown)", content.len() - PARTS));
    }
    let text = match (parts.is_empty(), result.get("structuredContent")) {
        (true, Some(structured)) if !structured.is_null() => structured.to_string(),
        (true, _) => "(the tool returned nothing)".to_owned(),
        (false, _) => parts.join("\n"),
    };
    let is_error = result.get("isError").is_some_and(|is_error| *is_error == Value::Bool(true));
    Ok(if is_error { Err(text) } else { Ok(text) })
}

/// Converts a part of a result to text. A part that is not text is replaced by a description.
fn part(part: &Value) -> String {
    let text = |of: &Value, key: &str| of.get(key).and_then(Value::as_str).map(str::to_owned);
    let kind = text(part, "type").unwrap_or_default();
    let media = |of: &Value| text(of, "mimeType").map_or_else(String::new, |media| format!("{media}, "));
    match kind.as_str() {
        "text" => text(part, "text").unwrap_or_default(),
        "image" => format!("(an image, {}which is not shown)", media(part)),
        "audio" => format!("(a recording, {}which is not shown)", media(part)),
        "resource_link" => {
            let name = text(part, "name").map_or_else(String::new, |name| format!("{name}: "));
            format!("({name}{})", text(part, "uri").unwrap_or_default())
        }
        "resource" => {
            let resource = part.get("resource").unwrap_or(&Value::Null);
            text(resource, "text").unwrap_or_else(|| {
                format!(
                    "(the file {}, {}which is not shown)",
                    text(resource, "uri").unwrap_or_default(),
                    media(resource)
                )
            })
        }
        other => format!("(a part of the type `{}`, which is not shown)", crate::peer::excerpt(other)),
    }
}

#[cfg(test)]
mod tests;
