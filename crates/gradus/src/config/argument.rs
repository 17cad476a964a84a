//! Configuration keys that a program passes as values: the keyword arguments of the Python package.
//!
//! An argument is named like a flag, with underscores (`learning_rate`), or is a whole section of the configuration
//! under its own key (`evaluation`, `kl`, `reward`). Arguments override the file, as flags do, and follow the same
//! rules.

use std::sync::LazyLock;

use serde_json::Value as Json;

use super::flags::{FlagKind, Scope, flags, set};
use super::foreign::{Spelling, translate};
use super::node::{Entry, Node, Value};
use super::schema::Schema;
use crate::error::Location;
use crate::suggest::nearest;

/// A key with its value.
#[derive(Debug, Clone, PartialEq)]
pub struct Argument {
    name: String,
    key: String,
    value: Json,
}

impl Argument {
    /// Creates the argument `name` of a run of `method`, or of any run if there is no method.
    ///
    /// # Errors
    /// If there is no such key: `has no argument …`, with a suggestion.
    pub fn named(name: &str, value: Json, method: Option<&str>) -> Result<Self, String> {
        // Cached: the schema never changes, and functions are called with dozens of arguments.
        static SCHEMA: LazyLock<Schema> = LazyLock::new(Schema::run_config);
        let schema = &*SCHEMA;
        let scope = method.map_or(Scope::Shared, Scope::Method);
        let specs = flags(schema, scope);
        let flag = name.replace('_', "-");
        let spec = specs.iter().find(|spec| spec.name == flag);
        // A mapping is the section of this name; any other value is the flag's value.
        let parts =
            [Some(name.to_owned()), Some(format!("train.{name}")), method.map(|of| format!("method.{of}.{name}"))];
        let part = || parts.into_iter().flatten().find(|key| schema.field(key).is_some());
        let key = match (spec, &value) {
            (Some(spec), Json::Object(_)) => part().unwrap_or_else(|| spec.key.clone()),
            (Some(spec), _) => spec.key.clone(),
            (None, _) => part().ok_or_else(|| unknown(name, method, specs.iter().map(|spec| &spec.name[..])))?,
        };
        let value = match (spec.filter(|spec| spec.key == key).map(|spec| &spec.kind), value) {
            (Some(FlagKind::Arguments), Json::String(text)) => {
                shlex::split(&text).ok_or_else(|| format!("has a quote in `{name}` that does not end"))?.into()
            }
            (Some(FlagKind::Repeated | FlagKind::Names | FlagKind::Numbers), value) if !value.is_array() => {
                Json::Array(vec![value])
            }
            (_, value) => value,
        };
        Ok(Self { name: name.to_owned(), key, value })
    }

    /// Returns the key of the configuration that it sets.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns its value.
    pub fn value(&self) -> &Json {
        &self.value
    }

    /// Sets the key in `root`.
    pub(super) fn lay(&self, root: &mut Node) {
        let location = Some(Location::Argument(self.name.clone()));
        set(root, &self.key, node(&self.value, &location), &location);
    }
}

fn unknown<'a>(name: &str, method: Option<&str>, known: impl Iterator<Item = &'a str>) -> String {
    let hint = translate(name, method, Spelling::Argument).or_else(|| {
        let near = nearest(&name.replace('_', "-"), known)?;
        Some(format!("did you mean `{}`?", near.replace('-', "_")))
    });
    let hint = hint.map_or_else(String::new, |hint| format!(": {hint}"));
    format!("has no argument `{name}`{hint}")
}

/// Converts a value to the tree that a file would produce.
fn node(value: &Json, location: &Option<Location>) -> Node {
    let scalar = |text: String, quoted| Value::Scalar { text, quoted };
    let value = match value {
        Json::Null => scalar("null".into(), false),
        Json::String(text) => scalar(text.clone(), true),
        Json::Bool(_) | Json::Number(_) => scalar(value.to_string(), false),
        Json::Array(items) => Value::List(items.iter().map(|item| node(item, location)).collect()),
        Json::Object(map) => {
            let entry = |(key, value): (&String, &Json)| Entry {
                key: key.clone(),
                location: location.clone(),
                node: node(value, location),
            };
            Value::Map(map.iter().map(entry).collect())
        }
    };
    Node { value, location: location.clone() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::{Request, RunConfig};
    use crate::error::{Diagnostic, Error};

    fn argument(name: &str, value: Json) -> Argument {
        Argument::named(name, value, Some("grpo")).expect("an argument of grpo")
    }

    fn load(arguments: &[Argument]) -> Result<RunConfig, Vec<Diagnostic>> {
        match RunConfig::load(&Request { method: Some("grpo"), arguments, ..Request::default() }) {
            Ok(written) => Ok(written.config),
            Err(Error::Config(problems)) => Err(problems),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn arguments_are_flags_and_parts_of_the_configuration() {
        let keys = [
            ("learning_rate", json!(1e-5), "train.learning_rate"),
            ("data", json!("rows.jsonl"), "data.from"),
            ("data", json!({ "from": "rows.jsonl" }), "data"),
            ("train", json!({ "max_steps": 3 }), "train"),
            ("evaluation", json!({ "metrics": ["ter"] }), "train.evaluation"),
            ("stop", json!("."), "method.grpo.stop"),
            ("reward", json!({ "rule": { "length": { "target": 3 } } }), "reward"),
        ];
        for (name, value, key) in keys {
            assert_eq!(argument(name, value).key(), key, "{name}");
        }
        let all = [
            argument("model", json!("m")),
            argument("data", json!("rows.jsonl")),
            argument("learning_rate", json!(0.5)),
            argument("stop", json!("null")),
            argument("reward", json!({ "model": "r" })),
        ];
        let config = load(&all).expect("a configuration");
        assert_eq!(config.train.learning_rate, Some(0.5));
        assert_eq!(config.method.iteration().expect("an online method").rollouts.stop, ["null".to_owned()]);
    }

    #[test]
    fn a_problem_names_its_argument() {
        let problems = load(&[
            argument("model", json!("m")),
            argument("data", json!("d")),
            argument("reward", json!({ "model": "r" })),
            argument("batch_size", json!("four")),
        ])
        .expect_err("a text is no number");
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert_eq!(problems[0].locations, [Location::Argument("batch_size".into())]);
    }

    #[test]
    fn an_unknown_argument_has_a_hint() {
        let unknown = |name: &str| Argument::named(name, json!(1), Some("grpo")).expect_err("no argument");
        assert_eq!(unknown("learning_rte"), "has no argument `learning_rte`: did you mean `learning_rate`?");
        assert!(unknown("num_generations").contains("it is `group_size` here"), "{}", unknown("num_generations"));
        assert_eq!(unknown("xyzzy"), "has no argument `xyzzy`");
        // Arguments of earlier versions.
        let moved = |name: &str, method| Argument::named(name, json!(1), method).expect_err("no argument");
        assert_eq!(moved("part_size", Some("ppo")), "has no argument `part_size`: it is now `quirks_part_size`");
        assert_eq!(
            moved("whitening_rewards", Some("trpo")),
            "has no argument `whitening_rewards`: it is now `quirks_whitening_rewards`"
        );
        assert_eq!(
            moved("whitening", Some("a2c")),
            "has no argument `whitening`: it is now a key of `quirks`: `quirks={\"whitening\": {…}}`"
        );
        assert!(Argument::named("quirks", json!({ "whitening": { "rewards": "biased" } }), Some("a2c")).is_ok());
        assert!(Argument::named("quirks_part_size", json!(1), Some("ppo")).is_ok());
        assert_eq!(
            moved("part_size", None),
            "has no argument `part_size`: it is now `method.METHOD.quirks.part_size`, for methods that have it"
        );
    }
}
