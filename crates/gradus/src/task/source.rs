//! Where rows come from, as a configuration says it.

use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::config::{read_task, schema_of_task};
use super::{Home, Split, TaskConfig};
use crate::data::{self, Place};
use crate::error::Result;

/// Where rows come from: a file, a directory or a hub name; or a task, which makes rows of its public files.
///
/// In a configuration a text is `from` alone.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DataConfig {
    /// A file, a directory or a hub name; the row format is recognized from the columns. With a `task` its files; by default those
    /// that are published on the hub.
    pub from: Option<String>,
    /// The task that makes rows of the files.
    pub task: Option<TaskConfig>,
    /// The part of the data.
    pub split: Option<Split>,
}

/// The mapping form of [`DataConfig`].
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct DataMapping {
    /// A file, a directory or a hub name. With a `task`, its public files; by default the data set on the hub.
    #[serde(default)]
    from: Option<String>,
    /// The task that makes rows of its public files: its name, or a mapping of its name and its keys.
    #[serde(default, deserialize_with = "read_task")]
    #[schemars(schema_with = "schema_of_task")]
    task: Option<TaskConfig>,
    /// The part of the data. Default: for training `train`; to evaluate a task `validation`.
    #[serde(default)]
    split: Option<Split>,
}

impl From<&str> for DataConfig {
    fn from(name: &str) -> Self {
        Self { from: Some(name.to_owned()), ..Self::default() }
    }
}

impl std::fmt::Display for DataConfig {
    /// The name of the rows, for people.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let task = self.task.as_ref().map(TaskConfig::name);
        let parts: Vec<&str> = [task.as_deref(), self.from.as_deref()].into_iter().flatten().collect();
        f.write_str(&parts.join(" of "))?;
        self.split.map_or(Ok(()), |split| write!(f, ":{}", split.name()))
    }
}

impl DataConfig {
    /// The same, with what is left out as in `other`, which has a task.
    #[must_use]
    pub fn or_of(&self, other: &Self) -> Self {
        if self.task.is_some() || other.task.is_none() {
            return self.clone();
        }
        Self { from: self.from.clone().or_else(|| other.from.clone()), task: other.task.clone(), split: self.split }
    }

    /// What a task is evaluated on, unless something else is named: its validation split. A single file has none.
    pub fn validation(&self) -> Option<Self> {
        self.task.as_ref()?;
        let is_file = self.from.as_ref().is_some_and(|from| std::path::Path::new(from).is_file());
        (!is_file).then(|| Self { split: Some(Split::Validation), ..self.clone() })
    }

    /// The name of the rows without a task, as [`data::load`] takes it.
    pub(crate) fn name(&self) -> String {
        let from = self.from.as_deref().unwrap_or_default();
        match self.split {
            Some(split) if !std::path::Path::new(from).is_file() => format!("{from}:{}", split.name()),
            _ => from.to_owned(),
        }
    }

    /// Fetches from the hub what is not here; `on_progress` hears of it.
    ///
    /// # Errors
    /// When there are no such files.
    pub fn fetch(&self, on_progress: &mut dyn FnMut(&str, usize, usize)) -> Result<()> {
        let Some(task) = &self.task else { return data::resolve(&self.name(), on_progress).map(drop) };
        let split = self.split.unwrap_or(Split::Train);
        let task = task.build()?;
        let Home::Hub { name, folder } = task.home(split) else { return Ok(()) };
        let name = self.from.clone().unwrap_or(name);
        if std::path::Path::new(&name).exists() {
            return Ok(());
        }
        data::resolve_split(&name, folder.as_deref(), task.reads(split).name(), on_progress).map(drop)
    }

    /// An error about rows without a place of their own.
    pub(super) fn place(&self) -> Place {
        Place { file: std::path::PathBuf::from(self.to_string()).into(), line: 1, row_in_array: None }
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

// Written by hand because an untagged enum would answer every mistake with "did not match any variant".
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
