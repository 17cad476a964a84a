//! An environment that offers tools: the policy calls them, and the episode ends with the first turn without a call.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::environment::{Begun, Environment, Episode, Observation, Reply, Start, Turn};
use crate::error::{Error, Result};
use crate::tool::{Call, Tool};

/// A function that a policy may call.
pub trait Function: Send + Sync {
    /// Its name, what it does, and its arguments.
    fn tool(&self) -> &Tool;

    /// Its result as text. The arguments fit its schema.
    ///
    /// # Errors
    /// What went wrong, for the policy to read.
    fn call(&self, arguments: &Map<String, Value>) -> std::result::Result<String, String>;

    /// Whether the same arguments always give the same result.
    fn is_deterministic(&self) -> bool {
        true
    }
}

/// The most characters of a result that the policy reads.
const RESULT_CHARACTERS: usize = 20_000;

/// Tools, side by side.
pub struct Toolbox {
    tools: Vec<Tool>,
    functions: Arc<[Box<dyn Function>]>,
}

impl Toolbox {
    /// A toolbox of these functions.
    ///
    /// # Errors
    /// [`Error::Config`] when two have one name.
    pub fn new(functions: Vec<Box<dyn Function>>) -> Result<Self> {
        let tools: Vec<Tool> = functions.iter().map(|function| function.tool().clone()).collect();
        for (i, tool) in tools.iter().enumerate() {
            if tools[..i].iter().any(|other| other.name == tool.name) {
                return Err(Error::config(format!("two tools are called `{}`", tool.name)));
            }
        }
        Ok(Self { tools, functions: functions.into() })
    }
}

/// Answers the calls of a turn, in order: the result of each, or what went wrong. Without a call the episode is over. The metrics
/// `tools/calls` and `tools/failures` count.
pub fn answer_calls(functions: &[Box<dyn Function>], turn: &Turn) -> Observation {
    let mut failures = 0.0;
    let mut replies = Vec::with_capacity(turn.calls.len());
    for call in &turn.calls {
        let content = result(functions, call).unwrap_or_else(|error| {
            failures += 1.0;
            json!({ "error": error }).to_string()
        });
        replies.push(Reply::Tool { name: call.name.clone(), id: call.id.clone(), content });
    }
    let counts = [("tools/calls", turn.calls.len() as f64), ("tools/failures", failures)];
    let metrics: BTreeMap<String, f64> = counts.into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
    Observation { is_done: replies.is_empty(), replies, reward: None, metrics }
}

/// The result of a call.
fn result(functions: &[Box<dyn Function>], call: &Call) -> std::result::Result<String, String> {
    let names = || functions.iter().map(|function| function.tool().name.as_str()).collect::<Vec<_>>().join("`, `");
    let arguments = call.arguments.as_ref().map_err(Clone::clone)?;
    let Some(function) = functions.iter().find(|function| function.tool().name == call.name) else {
        return Err(format!("there is no tool `{}`; there are `{}`", call.name, names()));
    };
    let arguments = fitted(&function.tool().parameters, arguments);
    check(&function.tool().parameters, &arguments)?;
    let mut result = function.call(&arguments)?;
    if let Some((end, _)) = result.char_indices().nth(RESULT_CHARACTERS) {
        result.truncate(end);
        result.push_str("… (cut)");
    }
    Ok(result)
}

impl Environment for Toolbox {
    fn tools(&self) -> &[Tool] {
        &self.tools
    }

    fn begin(&self, _: &Start) -> Result<Begun> {
        Ok(Begun { episode: Box::new(Calls { functions: Arc::clone(&self.functions) }), opening: None })
    }

    fn is_deterministic(&self) -> bool {
        self.functions.iter().all(|function| function.is_deterministic())
    }
}

struct Calls {
    functions: Arc<[Box<dyn Function>]>,
}

impl Episode for Calls {
    fn step(&mut self, turn: &Turn) -> Result<Observation> {
        Ok(answer_calls(&self.functions, turn))
    }
}

/// The arguments with texts that stand for a value of the type that the schema wants, as transformers reads them: `"7"` is 7 where an
/// integer is wanted. Models write many arguments as texts.
fn fitted(schema: &Value, arguments: &Map<String, Value>) -> Map<String, Value> {
    let wanted = |name: &str| schema.get("properties")?.get(name)?.get("type")?.as_str();
    let fit = |(name, value): (&String, &Value)| {
        let read = value.as_str().zip(wanted(name)).and_then(|(text, wanted)| read_as(text.trim(), wanted));
        (name.clone(), read.unwrap_or_else(|| value.clone()))
    };
    arguments.iter().map(fit).collect()
}

/// The value of the type `wanted` that `text` stands for.
fn read_as(text: &str, wanted: &str) -> Option<Value> {
    let number = || text.parse::<f64>().ok().filter(|number| number.is_finite());
    let whole = || text.parse::<i64>().ok().map(Value::from);
    match wanted {
        "integer" => {
            whole().or_else(|| number().filter(|number| is_whole(*number)).map(|number| Value::from(number as i64)))
        }
        "number" => whole().or_else(|| number().map(Value::from)),
        "boolean" => match text.to_lowercase().as_str() {
            "true" | "1" => Some(true.into()),
            "false" | "0" => Some(false.into()),
            _ => None,
        },
        "null" => matches!(text, "null" | "None").then_some(Value::Null),
        "object" => serde_json::from_str(text).ok().filter(Value::is_object),
        "array" => serde_json::from_str(text).ok().filter(Value::is_array),
        _ => None,
    }
}

/// Whether a number is an integer that is exact as a float.
fn is_whole(number: f64) -> bool {
    number.fract() == 0.0 && number.abs() < 2f64.powi(53)
}

/// Refuses arguments that do not fit the schema: missing or unknown names, and values of another type.
fn check(schema: &Value, arguments: &Map<String, Value>) -> std::result::Result<(), String> {
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
        let Some(wanted) = property.get("type").and_then(Value::as_str) else { continue };
        let fits = match wanted {
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
            return Err(format!("the argument `{name}` is {value}, but must be of the type {wanted}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::functions::Calculator;

    fn step(call: (&str, std::result::Result<Value, String>)) -> (String, f64) {
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
            ("calculator", Ok(json!({ "expression": "1 / 0" })), "{\"error\":\"division by zero\"}"),
            ("calculator", Ok(json!({})), "{\"error\":\"the argument `expression` is missing\"}"),
            (
                "calculator",
                Ok(json!({ "expression": 3 })),
                "{\"error\":\"the argument `expression` is 3, but must be of the type string\"}",
            ),
            (
                "calculator",
                Ok(json!({ "expression": "1", "digits": 2 })),
                "{\"error\":\"there is no argument `digits`; there are `expression`\"}",
            ),
            ("abacus", Ok(json!({})), "{\"error\":\"there is no tool `abacus`; there are `calculator`\"}"),
            ("calculator", Err("unreadable".to_owned()), "{\"error\":\"unreadable\"}"),
        ] {
            assert_eq!(step((name, arguments)), (expected.into(), 1.0));
        }
    }

    /// The values are those of transformers 5.23, `utils.chat_parsing.response_parser._coerce`.
    #[test]
    fn texts_stand_for_values_of_the_type_that_is_wanted() {
        for (wanted, text, expected) in [
            ("integer", "7", json!(7)),
            ("integer", " -7 ", json!(-7)),
            ("integer", "3.0", json!(3)),
            ("integer", "3.5", json!("3.5")),
            ("integer", "seven", json!("seven")),
            ("number", "7", json!(7)),
            ("number", "2.5e1", json!(25.0)),
            ("number", "inf", json!("inf")),
            ("boolean", "True", json!(true)),
            ("boolean", "0", json!(false)),
            ("boolean", "no", json!("no")),
            ("null", "None", json!(null)),
            ("array", "[1, 2]", json!([1, 2])),
            ("array", "{}", json!("{}")),
            ("object", "{\"a\": 1}", json!({ "a": 1 })),
            ("string", "7", json!("7")),
        ] {
            let schema = json!({ "properties": { "x": { "type": wanted } } });
            let given = json!({ "x": text, "other": "7" });
            let found = fitted(&schema, given.as_object().expect("an object"));
            assert_eq!(Value::Object(found), json!({ "x": expected, "other": "7" }), "{wanted} {text}");
        }
    }

    #[test]
    fn an_episode_ends_with_a_turn_without_calls() {
        let toolbox = Toolbox::new(vec![Box::new(Calculator::default())]).expect("one tool");
        let start = Start { name: "a".into(), seed: 1, row: Map::new() };
        let mut episode = toolbox.begin(&start).expect("begun").episode;
        let observation = episode.step(&Turn { text: "It is 14.".into(), ..Turn::default() }).expect("answered");
        assert!(observation.is_done && observation.replies.is_empty() && observation.reward.is_none());
        let twice = || Box::new(Calculator::default()) as Box<dyn Function>;
        let error = Toolbox::new(vec![twice(), twice()]).err().expect("refused");
        assert_eq!(error.to_string(), "two tools are called `calculator`");
    }
}
