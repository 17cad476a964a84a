//! An environment that offers tools. The policy calls them, and the episode ends with the first turn without a call.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use gradus_metrics::python::repr;
use serde_json::{Map, Value, json};

use crate::environment::{Environment, Episode, NewEpisode, Observation, Reply, Start, Turn};
use crate::error::{Error, Result};
use crate::tool::{Call, Tool, fitted};

/// Source of tools. A [`Function`] offers one, a server several.
pub trait ToolSource: Send + Sync {
    /// Returns the tools. They never change.
    fn tools(&self) -> &[Tool];

    /// Calls one of the tools.
    ///
    /// # Errors
    /// Returns [`Error::Episode`] if the source itself fails, so that the episode cannot continue. A failed call is not an error but a
    /// [`CallResult`].
    fn call(&self, name: &str, arguments: &Map<String, Value>) -> Result<CallResult>;

    /// Whether the same calls always give the same results.
    fn is_deterministic(&self) -> bool;
}

/// Result of a call as text, or a description of its failure. The policy reads either.
pub type CallResult = Result<String, String>;

/// A function that a policy may call.
pub trait Function: Send + Sync {
    /// Returns name, description and arguments of the function.
    fn tool(&self) -> &Tool;

    /// Calls the function and returns its result as text. The arguments fit its schema.
    ///
    /// # Errors
    /// Returns a description of the failure for the policy.
    fn call(&self, arguments: &Map<String, Value>) -> CallResult;

    /// Whether the same arguments always give the same result.
    fn is_deterministic(&self) -> bool {
        true
    }
}

impl<F: Function> ToolSource for F {
    fn tools(&self) -> &[Tool] {
        std::slice::from_ref(self.tool())
    }

    fn call(&self, _: &str, arguments: &Map<String, Value>) -> Result<CallResult> {
        let arguments = fitted(&self.tool().parameters, arguments);
        Ok(check(&self.tool().parameters, &arguments).and_then(|()| Function::call(self, &arguments)))
    }

    fn is_deterministic(&self) -> bool {
        Function::is_deterministic(self)
    }
}

/// Maximum number of characters of a result that the policy reads.
const RESULT_CHARACTERS: usize = 20_000;

/// Tools of several sources, combined.
#[derive(Clone)]
pub struct Toolbox {
    tools: Vec<Tool>,
    inside: Arc<ToolSources>,
}

struct ToolSources {
    sources: Vec<Box<dyn ToolSource>>,
    /// Index of the source of each tool.
    places: HashMap<String, usize>,
}

impl Toolbox {
    /// Creates a toolbox from these sources.
    ///
    /// # Errors
    /// Returns [`Error::Config`] if two tools have the same name.
    pub fn new(sources: Vec<Box<dyn ToolSource>>) -> Result<Self> {
        let (mut tools, mut places) = (Vec::new(), HashMap::new());
        for (place, source) in sources.iter().enumerate() {
            for tool in source.tools() {
                if places.insert(tool.name.clone(), place).is_some() {
                    return Err(Error::config(format!("two tools are called `{}`", tool.name))
                        .with_hint("leave one out; for an `mcp` server, use `except: [NAME]`"));
                }
                tools.push(tool.clone());
            }
        }
        Ok(Self { tools, inside: Arc::new(ToolSources { sources, places }) })
    }

    /// Whether there is a tool with this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.inside.places.contains_key(name)
    }

    /// Answers calls in order.
    ///
    /// # Errors
    /// Returns [`Error::Episode`] if the source of a tool fails.
    pub(crate) fn answer<'a>(&self, calls: impl IntoIterator<Item = &'a Call>) -> Result<ToolReplies> {
        let mut answered = ToolReplies::default();
        for call in calls {
            let content = self.one(call)?.unwrap_or_else(|error| {
                answered.failures += 1;
                failure(&error)
            });
            answered.replies.push(Reply::Tool { name: call.name.clone(), id: call.id.clone(), content });
        }
        Ok(answered)
    }

    fn one(&self, call: &Call) -> Result<CallResult> {
        let arguments = match &call.arguments {
            Ok(arguments) => arguments,
            Err(error) => return Ok(Err(error.clone())),
        };
        let Some(&place) = self.inside.places.get(&call.name) else {
            // The words of TRL.
            return Ok(Err(format!("Tool {} not found.", call.name)));
        };
        let shortened = |mut result: String| {
            if let Some((end, _)) = result.char_indices().nth(RESULT_CHARACTERS) {
                result.truncate(end);
                result.push_str("… (cut)");
            }
            result
        };
        let result = self.inside.sources[place].call(&call.name, arguments)?;
        Ok(result.map(shortened).map_err(shortened))
    }
}

/// Answers to calls.
#[derive(Debug, Default)]
pub(crate) struct ToolReplies {
    /// One reply per call.
    pub replies: Vec<Reply>,
    /// Number of failed calls.
    pub failures: usize,
}

impl ToolReplies {
    /// Adds the numbers of calls and failures to the metrics of a turn.
    pub fn count(&self, metrics: &mut BTreeMap<String, f64>) {
        for (name, count) in [("tools/calls", self.replies.len()), ("tools/failures", self.failures)] {
            *metrics.entry(name.to_owned()).or_default() += count as f64;
        }
    }
}

impl Environment for Toolbox {
    fn tools(&self) -> &[Tool] {
        &self.tools
    }

    fn begin(&self, _: &Start) -> Result<NewEpisode> {
        Ok(NewEpisode { episode: Box::new(Calls { toolbox: self.clone() }), opening: None })
    }

    fn is_deterministic(&self) -> bool {
        self.inside.sources.iter().all(|source| source.is_deterministic())
    }
}

struct Calls {
    toolbox: Toolbox,
}

impl Episode for Calls {
    fn step(&mut self, turn: &Turn) -> Result<Observation> {
        let answered = self.toolbox.answer(&turn.calls)?;
        let mut metrics = BTreeMap::new();
        answered.count(&mut metrics);
        let replies = answered.replies;
        Ok(Observation { is_done: replies.is_empty(), replies, reward: None, metrics })
    }
}

/// Returns the text that the policy reads after a failed call: `{'error': '…'}`, which TRL writes with `str` of a `dict`.
pub(crate) fn failure(error: &str) -> String {
    repr(&json!({ "error": error }))
}

/// Rejects arguments that do not fit the schema: missing or unknown names, and values of another type.
fn check(schema: &Value, arguments: &Map<String, Value>) -> Result<(), String> {
    let empty = Map::new();
    let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&empty);
    let names = || properties.keys().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    for name in schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str) {
        if !arguments.contains_key(name) {
            return Err(format!("the argument `{name}` is missing"));
        }
    }
    for (name, value) in arguments {
        let Some(property) = properties.get(name) else {
            if schema.get("additionalProperties").is_some_and(|more| *more != Value::Bool(false)) {
                continue;
            }
            return Err(match properties.is_empty() {
                true => format!("there is no argument `{name}`: the tool takes none"),
                false => format!("there is no argument `{name}`; there are {}", names()),
            });
        };
        let Some(expected) = property.get("type").and_then(Value::as_str) else { continue };
        let fits = match expected {
            "string" => value.is_string(),
            "integer" => value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0),
            "number" => value.is_number(),
            "boolean" => value.is_boolean(),
            "array" => value.is_array(),
            "object" => value.is_object(),
            "null" => value.is_null(),
            _ => true,
        };
        if !fits {
            return Err(format!("the argument `{name}` is {value}, but must be of the type {expected}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::functions::Calculator;

    fn step(call: (&str, Result<Value, String>)) -> (String, f64) {
        let toolbox = Toolbox::new(vec![Box::new(Calculator::default())]).expect("one tool");
        let start = Start { name: "a".into(), seed: 1, row: Map::new() };
        let mut episode = toolbox.begin(&start).expect("begun").episode;
        let arguments = call.1.map(|value| value.as_object().cloned().expect("an object"));
        let call = Call { id: None, name: call.0.into(), arguments };
        let turn = Turn { calls: vec![call], ..Turn::default() };
        let Observation { replies, metrics, is_done, .. } = episode.step(&turn).expect("answered");
        assert!(!is_done);
        (replies[0].content().to_owned(), metrics["tools/failures"])
    }

    #[test]
    fn results_and_failures_are_answers() {
        assert_eq!(step(("calculator", Ok(json!({ "expression": "2 + 3 * 4" })))), ("14".into(), 0.0));
        for (name, arguments, expected) in [
            ("calculator", Ok(json!({ "expression": "1 / 0" })), "{'error': 'division by zero'}"),
            ("calculator", Ok(json!({})), "{'error': 'the argument `expression` is missing'}"),
            (
                "calculator",
                Ok(json!({ "expression": 3 })),
                "{'error': 'the argument `expression` is 3, but must be of the type string'}",
            ),
            (
                "calculator",
                Ok(json!({ "expression": "1", "digits": 2 })),
                "{'error': 'there is no argument `digits`; there are `expression`'}",
            ),
            ("abacus", Ok(json!({})), "{'error': 'Tool abacus not found.'}"),
            ("calculator", Err("unreadable".to_owned()), "{'error': 'unreadable'}"),
        ] {
            assert_eq!(step((name, arguments)), (expected.into(), 1.0));
        }
    }

    /// The expected texts are those of Python: `str({"error": text})`.
    #[test]
    fn failures_are_written_as_python_writes_them() {
        for (error, expected) in [
            ("plain", "{'error': 'plain'}"),
            ("bad\nnews 'q'", "{'error': \"bad\\nnews 'q'\"}"),
            ("both ' and \"", "{'error': 'both \\' and \"'}"),
            ("a \"b\"", "{'error': 'a \"b\"'}"),
            ("a\\b\tc\r", "{'error': 'a\\\\b\\tc\\r'}"),
            ("\u{e9} \u{6f22}\u{5b57} \u{1f389}", "{'error': '\u{e9} \u{6f22}\u{5b57} \u{1f389}'}"),
            ("\u{0}\u{1b}\u{7f}\u{85}\u{a0}\u{ad}", "{'error': '\\x00\\x1b\\x7f\\x85\\xa0\\xad'}"),
            ("\u{2028}\u{200b}\u{feff}\u{301}", "{'error': '\\u2028\\u200b\\ufeff\u{301}'}"),
            ("\u{e0001}\u{10ffff}\u{3000}", "{'error': '\\U000e0001\\U0010ffff\\u3000'}"),
            ("", "{'error': ''}"),
        ] {
            assert_eq!(failure(error), expected, "{error:?}");
        }
    }

    #[test]
    fn an_episode_ends_with_a_turn_without_calls() {
        let toolbox = Toolbox::new(vec![Box::new(Calculator::default())]).expect("one tool");
        let start = Start { name: "a".into(), seed: 1, row: Map::new() };
        let mut episode = toolbox.begin(&start).expect("begun").episode;
        let observation = episode.step(&Turn { text: "It is 14.".into(), ..Turn::default() }).expect("answered");
        assert!(observation.is_done && observation.replies.is_empty() && observation.reward.is_none());
        let twice = || Box::new(Calculator::default()) as Box<dyn ToolSource>;
        let error = Toolbox::new(vec![twice(), twice()]).err().expect("refused");
        assert_eq!(error.to_string(), "two tools are called `calculator`");
    }
}
