//! Named chat templates: the formats in which widespread model families write conversations.
//!
//! The templates follow the documented formats and mark the assistant's text. A model directory stores the source of its template,
//! so a template is identified by its source.

use std::path::Path;

use super::{ChatTemplate, Tokenizer};
use crate::error::{Error, Result};
use crate::suggest::nearest;

/// A named chat template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamedTemplate {
    /// Name of the template.
    pub name: &'static str,
    /// Source of the template.
    pub source: &'static str,
    /// Token that ends an assistant turn, or `None` if that is the tokenizer's end-of-text token.
    pub turn_end: Option<&'static str>,
}

macro_rules! named {
    ($name:literal, $turn_end:expr) => {
        NamedTemplate { name: $name, source: include_str!(concat!("templates/", $name, ".jinja")), turn_end: $turn_end }
    };
}

/// All named templates.
pub const NAMED_TEMPLATES: [NamedTemplate; 8] = [
    named!("chatml", Some("<|im_end|>")),
    named!("gemma", Some("<end_of_turn>")),
    named!("llama2", None),
    named!("llama3", Some("<|eot_id|>")),
    named!("mistral", None),
    named!("phi3", Some("<|end|>")),
    named!("qwen", Some("<|im_end|>")),
    named!("zephyr", None),
];

impl NamedTemplate {
    /// Returns the template called `name`.
    pub fn named(name: &str) -> Option<Self> {
        NAMED_TEMPLATES.into_iter().find(|template| template.name == name)
    }

    /// Returns the template with this source.
    pub fn of_source(source: &str) -> Option<Self> {
        NAMED_TEMPLATES.into_iter().find(|template| template.source == source)
    }

    /// Returns a hint for a name that is neither a template nor a file.
    fn hint(name: &str) -> String {
        match nearest(name, NAMED_TEMPLATES.map(|template| template.name)) {
            Some(near) => format!("did you mean `{near}`?"),
            None => {
                let names = NAMED_TEMPLATES.map(|template| format!("`{}`", template.name));
                format!("give a file, or one of {}", names.join(", "))
            }
        }
    }
}

impl ChatTemplate {
    /// Loads the template that a user chose: one of [`NAMED_TEMPLATES`] by its name, or a file.
    ///
    /// # Errors
    /// If neither exists, the file cannot be read, or it is not a valid template.
    pub fn chosen(choice: &Path, tokenizer: &Tokenizer) -> Result<Self> {
        match choice.to_str().and_then(NamedTemplate::named) {
            Some(named) => Self::from_source(named.source, choice, tokenizer),
            None if choice.exists() => Self::from_file(choice, tokenizer),
            None => {
                let shown = choice.to_string_lossy();
                Err(Error::input(format!("there is no chat template `{shown}`")).with_hint(NamedTemplate::hint(&shown)))
            }
        }
    }
}
