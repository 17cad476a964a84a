//! Keys that online methods share. Each method has its own defaults for them.

use schemars::{JsonSchema, Schema};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::{Problems, sampling};
use crate::generate::SamplingConfig;
use crate::settings::TrainConfig;

/// Keys of the completions that a method samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RolloutKeys {
    /// Completions per prompt.
    #[schemars(range(min = 1, max = 65_536))]
    pub group_size: usize,
    /// Maximum length of a completion in tokens.
    #[schemars(range(min = 1, max = 100_000_000))]
    pub max_new_tokens: usize,
    /// Temperature of sampling and of the trained logprobs (see `sampling.trained_logprobs`).
    pub temperature: f64,
    /// Strings that end a completion.
    pub stop: Vec<String>,
    /// Further settings of the sampling distribution.
    pub sampling: SamplingConfig,
    /// Model directory of the reference. Default: the start model.
    pub reference_model: Option<String>,
}

impl RolloutKeys {
    /// Creates keys with these values and the defaults of all methods for the others.
    pub fn new(group_size: usize, max_new_tokens: usize, temperature: f64) -> Self {
        Self {
            group_size,
            max_new_tokens,
            temperature,
            stop: Vec::new(),
            sampling: SamplingConfig::default(),
            reference_model: None,
        }
    }

    /// Returns the temperature of the trained log-probabilities.
    pub fn trained_temperature(&self) -> f32 {
        self.sampling.trained_temperature(self.temperature) as f32
    }

    /// Reports invalid keys of `method`.
    pub(super) fn rules(&self, problems: &mut Problems<'_>, method: &str, train: &TrainConfig) {
        let key = |name: &str| format!("method.{method}.{name}");
        problems.at_least(&key("max_new_tokens"), self.max_new_tokens, 1);
        problems.require(self.temperature > 0.0, &[&key("temperature")], || {
            let reason = "training needs completions that differ";
            (format!("`{}` is {}, but must be above 0: {reason}", key("temperature"), self.temperature), None)
        });
        sampling::check(problems, method, &self.sampling, self.max_new_tokens, train);
        for (i, stop) in self.stop.iter().enumerate() {
            let key = key(&format!("stop[{i}]"));
            problems.require(!stop.is_empty(), &[&key], || {
                (format!("`{key}` is empty, which would end every completion before it starts"), None)
            });
        }
        let (prompt_and_completion, new) = (train.max_length, self.max_new_tokens);
        problems.require(new < prompt_and_completion, &[&key("max_new_tokens"), "train.max_length"], || {
            let message = format!(
                "`{}` is {new}, but `train.max_length` is {prompt_and_completion}, prompt and completion together: no prompt fits",
                key("max_new_tokens")
            );
            (message, Some(format!("raise `train.max_length` above {new}")))
        });
    }
}

/// Reads keys `K` that are flattened into the keys of method `M`, whose defaults apply. serde's own `flatten` would
/// apply the defaults of `K`.
///
/// ```
/// # use gradus::method::{RolloutKeys, flattened};
/// #[derive(serde::Serialize, serde::Deserialize)]
/// #[serde(default)]
/// struct Keys {
///     #[serde(flatten, deserialize_with = "flattened::<Keys, _, _>")]
///     rollouts: RolloutKeys,
/// }
///
/// impl Default for Keys {
///     fn default() -> Self {
///         Self { rollouts: RolloutKeys::new(4, 16, 1.0) }
///     }
/// }
///
/// let keys: Keys = serde_json::from_str(r#"{"group_size": 8}"#).unwrap();
/// assert_eq!(keys.rollouts, RolloutKeys::new(8, 16, 1.0));
/// ```
///
/// # Errors
/// If a value has the wrong type.
pub fn flattened<'de, M, K, D>(deserializer: D) -> Result<K, D::Error>
where
    M: Default + Serialize,
    K: DeserializeOwned,
    D: Deserializer<'de>,
{
    let mut keys = serde_json::to_value(M::default()).map_err(D::Error::custom)?;
    // serde passes all keys that the method itself does not name. `K` ignores those of others.
    for (key, value) in Map::deserialize(deserializer)? {
        keys[key] = value;
    }
    K::deserialize(keys).map_err(D::Error::custom)
}

/// Completes the schema of method `M`, whose flattened keys have no defaults of their own: makes them optional and adds
/// the method's defaults. `source` is the recipe or the system that has these defaults.
pub fn describe_defaults<M: Default + Serialize>(schema: &mut Schema, source: &str) {
    let Ok(Value::Object(defaults)) = serde_json::to_value(M::default()) else { return };
    schema.remove("required");
    let Some(Value::Object(properties)) = schema.get_mut("properties") else { return };
    for (key, property) in properties {
        let (Some(property), Some(default)) = (property.as_object_mut(), defaults.get(key)) else { continue };
        if property.contains_key("default") {
            continue;
        }
        property.insert("default".to_owned(), default.clone());
        if let (Some(Value::String(text)), Value::Number(_) | Value::Bool(_)) =
            (property.get_mut("description"), default)
        {
            *text += &format!(" Default {} ({source}).", written(default));
        }
    }
}

/// As [`describe_defaults`], for a method that compares the completions of a prompt: it needs at least 2 of them.
pub fn describe_groups<M: Default + Serialize>(schema: &mut Schema, source: &str) {
    describe_defaults::<M>(schema, source);
    let size = schema.get_mut("properties").and_then(|keys| keys.get_mut("group_size"));
    if let Some(size) = size.and_then(Value::as_object_mut) {
        size.insert("minimum".to_owned(), 2.into());
    }
}

/// Returns a number as people write it: 1 instead of 1.0.
fn written(default: &Value) -> String {
    match default.as_f64() {
        Some(number) => number.to_string(),
        None => default.to_string(),
    }
}
