//! Chat templates that are known by a name: the forms in which widespread families of models write conversations.
//!
//! The templates are written from the documented forms and mark what the assistant said. A model keeps the source of its
//! template, so a template is known again by its source.

use std::path::Path;

use super::{ChatTemplate, Tokenizer};
use crate::error::{Error, Result};
use crate::suggest::nearest;

/// A template with a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamedTemplate {
    /// Its name.
    pub name: &'static str,
    /// Its source.
    pub source: &'static str,
    /// The token that ends a turn of the assistant; none where that is the tokenizer's end-of-text token.
    pub turn_end: Option<&'static str>,
}

macro_rules! named {
    ($name:literal, $turn_end:expr) => {
        NamedTemplate { name: $name, source: include_str!(concat!("templates/", $name, ".jinja")), turn_end: $turn_end }
    };
}

/// All of them.
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
    /// The template called `name`.
    pub fn named(name: &str) -> Option<Self> {
        NAMED_TEMPLATES.into_iter().find(|template| template.name == name)
    }

    /// The template with this source.
    pub fn of_source(source: &str) -> Option<Self> {
        NAMED_TEMPLATES.into_iter().find(|template| template.source == source)
    }

    /// What to do about a name that no template and no file has.
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
    /// The template that a user chooses: one of [`NAMED_TEMPLATES`] by its name, or a file.
    ///
    /// # Errors
    /// When there is neither, the file cannot be read, or it is no template.
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
