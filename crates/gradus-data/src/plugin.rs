//! Plug-ins: extensions that a program registers by name, so that a configuration can use them.
//!
//! A configuration contains the name and the options ([`Plugin`]). The program contains the constructor ([`Named`], one
//! for each [`Kind`], all together a `Registry` of `config`). Reading a configuration with a registry
//! joins the two. Running therefore needs no registry: a plan holds the constructor of each plug-in.

use std::fmt;
use std::sync::Arc;

use gradus_environments::{Environment, ToolSource};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{DeserializeOwned, Deserializer, Error as _};
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::suggest::nearest;

/// Key of a schema that states the kind of a plug-in.
pub const SCHEMA_KEY: &str = "plugin";

/// A kind of extension.
pub trait Kind {
    /// Name of the kind in messages: `reward`, `metric`.
    const NAME: &'static str;
    /// Constructor, a closure that already contains the parsed options.
    type Make: ?Sized + Send + Sync;
}

impl Kind for dyn ToolSource {
    const NAME: &'static str = "tool";
    type Make = dyn Fn() -> Result<Box<dyn ToolSource>> + Send + Sync;
}

impl Kind for dyn Environment {
    const NAME: &'static str = "environment";
    type Make = dyn Fn() -> Result<Arc<dyn Environment>> + Send + Sync;
}

/// A plug-in in a configuration: its name, with its options below.
///
/// ```yaml
/// reward: { plugin: { brevity: { words: 20 } } }
/// ```
pub struct Plugin<T: Kind + ?Sized> {
    name: String,
    options: Map<String, Value>,
    make: Option<Arc<T::Make>>,
}

impl<T: Kind + ?Sized> Plugin<T> {
    /// Creates a plug-in from a name and a constructor, without a registry.
    pub fn new(name: impl Into<String>, make: Arc<T::Make>) -> Self {
        Self { name: name.into(), options: Map::new(), make: Some(make) }
    }

    /// Returns the name of the plug-in.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the constructor is known.
    pub fn is_bound(&self) -> bool {
        self.make.is_some()
    }

    /// Returns the constructor.
    ///
    /// # Errors
    /// If the configuration was read without a registry.
    pub fn make(&self) -> Result<&T::Make> {
        self.make.as_deref().ok_or_else(|| {
            let message = format!("there is no constructor for the {} `{}`", T::NAME, self.name);
            Error::input(message).with_hint(HINT)
        })
    }

    /// Looks up the constructor.
    ///
    /// # Errors
    /// A problem with the name or the options.
    pub fn bind(&mut self, named: &Named<T>) -> Result<(), String> {
        let Some(entry) = named.entries.iter().find(|entry| entry.name == self.name) else {
            let near = nearest(&self.name, named.names().map(|name| name as &str));
            let near = near.map_or_else(String::new, |near| format!(": did you mean `{near}`?"));
            return Err(format!("this program has no {} called `{}`{near}", T::NAME, self.name));
        };
        self.make = Some((entry.read)(Value::Object(self.options.clone()))?);
        Ok(())
    }
}

/// Hint for an unavailable plug-in.
pub const HINT: &str = "plug-ins are added by programs that use gradus as a library: docs/plugins.md";

// Implemented by hand, because deriving would require all of these traits of `T`.
impl<T: Kind + ?Sized> Clone for Plugin<T> {
    fn clone(&self) -> Self {
        Self { name: self.name.clone(), options: self.options.clone(), make: self.make.clone() }
    }
}

impl<T: Kind + ?Sized> PartialEq for Plugin<T> {
    /// Compares only the written part; the constructor belongs to the program.
    fn eq(&self, other: &Self) -> bool {
        (&self.name, &self.options) == (&other.name, &other.options)
    }
}

impl<T: Kind + ?Sized> fmt::Debug for Plugin<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plugin").field("name", &self.name).field("options", &self.options).finish()
    }
}

impl<T: Kind + ?Sized> Serialize for Plugin<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(1))?;
        map.serialize_entry(&self.name, &self.options)?;
        map.end()
    }
}

impl<'de, T: Kind + ?Sized> Deserialize<'de> for Plugin<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = Map::<String, Value>::deserialize(deserializer)?;
        let count = written.len();
        match (written.into_iter().next(), count) {
            (Some((name, Value::Object(options))), 1) => Ok(Self { name, options, make: None }),
            (Some((name, Value::Null)), 1) => Ok(Self { name, options: Map::new(), make: None }),
            _ => Err(D::Error::custom("a plug-in is one name with its options below it")),
        }
    }
}

impl<T: Kind + ?Sized> JsonSchema for Plugin<T> {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        definition(T::NAME).into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "object", "minProperties": 1, "maxProperties": 1, SCHEMA_KEY: T::NAME })
    }
}

/// Returns the name of the schema of a kind of plug-in.
pub fn definition(kind: &str) -> String {
    format!("plugin_{kind}")
}

/// Parses the options of a plug-in and returns its constructor.
type Read<M> = Box<dyn Fn(Value) -> Result<Arc<M>, String> + Send + Sync>;

/// Plug-ins of one kind in a program, by name.
pub struct Named<T: Kind + ?Sized> {
    entries: Vec<Entry<T>>,
}

struct Entry<T: Kind + ?Sized> {
    name: String,
    schema: Value,
    read: Read<T::Make>,
}

impl<T: Kind + ?Sized> Default for Named<T> {
    fn default() -> Self {
        Self { entries: Vec::new() }
    }
}

impl<T: Kind + ?Sized> fmt::Debug for Named<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

impl<T: Kind + ?Sized> Named<T> {
    /// Returns their names.
    pub fn names(&self) -> impl Iterator<Item = &str> + Clone {
        self.entries.iter().map(|entry| entry.name.as_str())
    }

    /// Returns the name and the options schema of each plug-in.
    pub fn schemas(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|entry| (entry.name.as_str(), &entry.schema))
    }

    /// Adds a plug-in with options of type `O`.
    ///
    /// # Errors
    /// If the name is not a word of lowercase letters, digits and `_`, or is already taken.
    pub fn add<O: DeserializeOwned + JsonSchema>(
        &mut self,
        name: &str,
        make: impl Fn(O) -> Arc<T::Make> + Send + Sync + 'static,
    ) -> Result<()> {
        let is_word = name.starts_with(|c: char| c.is_ascii_lowercase())
            && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        if !is_word {
            let message = format!("`{name}` cannot be the name of a plug-in ({})", T::NAME);
            return Err(Error::input(message).with_hint("names are small letters, digits and `_`, as in `word_count`"));
        }
        if self.names().any(|taken| taken == name) {
            return Err(Error::input(format!("the name `{name}` is taken ({})", T::NAME)));
        }
        let read: Read<T::Make> =
            Box::new(move |options| serde_json::from_value(options).map(&make).map_err(|error| error.to_string()));
        self.entries.push(Entry { name: name.to_owned(), schema: schemars::schema_for!(O).to_value(), read });
        Ok(())
    }
}
