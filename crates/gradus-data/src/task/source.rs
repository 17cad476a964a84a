//! Sources of rows in a configuration.

use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::config::{read_task, schema_of_task};
use super::{Origin, Split, TaskConfig};
use crate::data::{self, RowLocation};
use crate::error::Result;

/// Source of rows: a file, a directory or a hub name; or a task, which makes rows from its public files.
///
/// A plain string in a configuration is `from` alone.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DataConfig {
    /// A file, a directory or a hub name; the row format is recognized from the columns. With a `task`, the task's files; by
    /// default, those published on the hub.
    pub from: Option<String>,
    /// Task that makes rows from the files.
    pub task: Option<TaskConfig>,
    /// Part of the data.
    pub split: Option<Split>,
}

/// The mapping form of [`DataConfig`].
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct DataMapping {
    /// A file, a directory or a hub name. With a `task`, its public files; by default, the data set on the hub.
    #[serde(default)]
    from: Option<String>,
    /// The task that makes rows from its public files: its name, or a mapping of its name and its keys.
    #[serde(default, deserialize_with = "read_task")]
    #[schemars(schema_with = "schema_of_task")]
    task: Option<TaskConfig>,
    /// The part of the data. Default: `train` for training, `validation` for the evaluation of a task.
    #[serde(default)]
    split: Option<Split>,
}

impl From<&str> for DataConfig {
    fn from(name: &str) -> Self {
        Self { from: Some(name.to_owned()), ..Self::default() }
    }
}

impl std::fmt::Display for DataConfig {
    /// Writes the name of the rows, for people.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let task = self.task.as_ref().map(TaskConfig::name);
        let parts: Vec<&str> = [task.as_deref(), self.from.as_deref()].into_iter().flatten().collect();
        f.write_str(&parts.join(" of "))?;
        self.split.map_or(Ok(()), |split| write!(f, ":{}", split.name()))
    }
}

impl DataConfig {
    /// Returns this configuration with missing values taken from `other`, if only `other` has a task.
    #[must_use]
    pub fn or_of(&self, other: &Self) -> Self {
        if self.task.is_some() || other.task.is_none() {
            return self.clone();
        }
        Self { from: self.from.clone().or_else(|| other.from.clone()), task: other.task.clone(), split: self.split }
    }

    /// Returns the default evaluation data of a task: its validation split. A single file has none.
    pub fn validation(&self) -> Option<Self> {
        self.task.as_ref()?;
        let is_file = self.from.as_ref().is_some_and(|from| std::path::Path::new(from).is_file());
        (!is_file).then(|| Self { split: Some(Split::Validation), ..self.clone() })
    }

    /// Returns the name of the rows without a task, as [`data::load`] takes it.
    pub fn name(&self) -> String {
        let from = self.from.as_deref().unwrap_or_default();
        match self.split {
            Some(split) if !std::path::Path::new(from).is_file() => format!("{from}:{}", split.name()),
            _ => from.to_owned(),
        }
    }

    /// Downloads missing files from the hub, and reports to `on_progress`.
    ///
    /// # Errors
    /// If the files do not exist.
    pub fn fetch(&self, on_progress: &mut dyn FnMut(&str, usize, usize)) -> Result<()> {
        let Some(task) = &self.task else { return data::resolve(&self.name(), on_progress).map(drop) };
        let split = self.split.unwrap_or(Split::Train);
        let task = task.build()?;
        let Origin::Hub { name, folder } = task.origin(split) else { return Ok(()) };
        let name = self.from.clone().unwrap_or(name);
        if std::path::Path::new(&name).exists() {
            return Ok(());
        }
        data::resolve_split(&name, folder.as_deref(), task.reads(split).name(), on_progress).map(drop)
    }

    /// Returns a location for errors about rows without a location of their own.
    pub(super) fn location(&self) -> RowLocation {
        RowLocation { file: std::path::PathBuf::from(self.to_string()).into(), line: 1, row_in_array: None }
    }
}

impl Serialize for DataConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self { from: Some(from), task: None, split: None } => serializer.serialize_str(from),
            Self { from, task, split } => {
                DataMapping { from: from.clone(), task: task.clone(), split: *split }.serialize(serializer)
            }
        }
    }
}

// Written by hand, because an untagged enum would report every mistake as "did not match any variant".
impl<'de> Deserialize<'de> for DataConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrMapping;

        impl<'de> Visitor<'de> for TextOrMapping {
            type Value = DataConfig;

            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("a text or a mapping with `from`, `task` and `split`")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<DataConfig, E> {
                Ok(text.into())
            }

            fn visit_map<A: MapAccess<'de>>(self, mapping: A) -> Result<DataConfig, A::Error> {
                let DataMapping { from, task, split } =
                    DataMapping::deserialize(de::value::MapAccessDeserializer::new(mapping))?;
                Ok(DataConfig { from, task, split })
            }
        }

        deserializer.deserialize_any(TextOrMapping)
    }
}

impl JsonSchema for DataConfig {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "DataConfig".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mapping = generator.subschema_for::<DataMapping>();
        json_schema!({ "anyOf": [{ "type": "string" }, mapping] })
    }
}
