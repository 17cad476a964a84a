//! Chat templates: conversations to text, in the dialect that Hugging Face model directories use.
//!
//! Jinja with `trim_blocks` and `lstrip_blocks`, loop controls, Python's string methods, `raise_exception`,
//! `strftime_now`, a `tojson` that writes what Python's `json.dumps` writes, and
//! `{% generation %}…{% endgeneration %}` blocks that mark what the assistant said.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::SystemTime;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, ValueKind};
use minijinja::{AutoEscape, Environment, ErrorKind, Output, State, Value as Template};
use regex::Regex;
use serde::Serialize;
use serde_json::{Map, Value};

use super::{Tokenizer, python, strftime::strftime};
use crate::{Error, Result};

/// Enclose a generation block while rendering. Unicode reserves both for use inside a program; input with them is refused.
const OPEN: char = '\u{FDD0}';
const CLOSE: char = '\u{FDD1}';

/// A compiled chat template with the special tokens it may print.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    special_tokens: Vec<(String, String)>,
    marks_assistant: bool,
    path: PathBuf,
}

/// What a template is rendered with besides the messages.
#[derive(Debug, Clone, Default)]
pub struct RenderOptions<'a> {
    /// Tool descriptions; an empty list counts as none.
    pub tools: Option<&'a [Value]>,
    /// Ends the text with the head of the assistant's next turn.
    pub add_generation_prompt: bool,
    /// Further variables (`enable_thinking`, …), over everything else of the same name.
    pub variables: Option<&'a Map<String, Value>>,
    /// What `strftime_now` takes for now. Default: now.
    pub now: Option<SystemTime>,
}

/// A rendered conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// The text, to be tokenised without adding special tokens.
    pub text: String,
    /// The bytes of `text` that stand in generation blocks, in order.
    pub assistant: Vec<Range<usize>>,
}

impl ChatTemplate {
    /// The template of a model directory: `chat_template.jinja`, then the key `chat_template` of
    /// `tokenizer_config.json`. `None` where it has neither.
    ///
    /// # Errors
    /// When a file cannot be read, or the template is not valid.
    pub fn from_dir(directory: &Path, tokenizer: &Tokenizer) -> Result<Option<Self>> {
        let file = directory.join("chat_template.jinja");
        if file.is_file() {
            return Self::from_file(&file, tokenizer).map(Some);
        }
        let path = directory.join("tokenizer_config.json");
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(Error::io(path, e)),
        };
        let config: Value =
            serde_json::from_slice(&bytes).map_err(|e| Error::model(&path, format!("not valid JSON: {e}")))?;
        let named: Vec<(&str, &str)> = match config.get("chat_template") {
            Some(Value::String(source)) => vec![("default", source)],
            Some(Value::Array(list)) => list
                .iter()
                .filter_map(|entry| Some((entry.get("name")?.as_str()?, entry.get("template")?.as_str()?)))
                .collect(),
            _ => return Ok(None),
        };
        if !named.iter().any(|(name, _)| *name == "default") {
            return Ok(None);
        }
        Self::compile(&named, path, tokenizer).map(Some)
    }

    /// The template in a file of its own.
    pub fn from_file(path: &Path, tokenizer: &Tokenizer) -> Result<Self> {
        let source = std::fs::read_to_string(path).map_err(|e| Error::io(path, e))?;
        Self::compile(&[("default", &source)], path.to_path_buf(), tokenizer)
    }

    /// A template given as text; `path` names it in messages.
    pub fn from_source(source: &str, path: impl Into<PathBuf>, tokenizer: &Tokenizer) -> Result<Self> {
        Self::compile(&[("default", source)], path.into(), tokenizer)
    }

    fn compile(named: &[(&str, &str)], path: PathBuf, tokenizer: &Tokenizer) -> Result<Self> {
        let mut environment = environment();
        for (name, source) in named {
            environment
                .add_template_owned((*name).to_owned(), as_filter_blocks(source))
                .map_err(|e| Error::model(&path, format!("not a valid chat template: {}", describe(&e))))?;
        }
        let default = named.iter().find(|(name, _)| *name == "default").map_or("", |(_, source)| source);
        Ok(Self {
            marks_assistant: GENERATION.is_match(default),
            environment,
            special_tokens: tokenizer.named_special_tokens().to_vec(),
            path,
        })
    }

    /// Whether the template marks what the assistant said, which `assistant_only_loss` needs.
    pub fn marks_assistant(&self) -> bool {
        self.marks_assistant
    }

    /// The file the template came from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Renders a conversation; each message serialises to an object with `role` and `content`.
    ///
    /// # Errors
    /// When the template refuses the conversation (`raise_exception`) or fails.
    pub fn render<M: Serialize>(&self, messages: &[M], options: &RenderOptions) -> Result<Rendered> {
        let failed = |message: String| Error::model(&self.path, format!("chat template: {message}"));
        let mut messages = serde_json::to_value(messages).map_err(|e| failed(e.to_string()))?;
        if messages.to_string().contains([OPEN, CLOSE]) {
            return Err(Error::input("a message contains U+FDD0 or U+FDD1, which are not characters"));
        }
        tidy(&mut messages);

        let tools = options.tools.filter(|tools| !tools.is_empty());
        let mut context = Map::new();
        for (name, token) in &self.special_tokens {
            context.insert(name.clone(), Value::from(token.as_str()));
        }
        context.insert("messages".into(), messages);
        context.insert("tools".into(), tools.map_or(Value::Null, |tools| Value::Array(tools.to_vec())));
        context.insert("documents".into(), Value::Null);
        context.insert("add_generation_prompt".into(), Value::Bool(options.add_generation_prompt));
        if let Some(variables) = options.variables {
            context.extend(variables.iter().map(|(k, v)| (k.clone(), v.clone())));
        }

        let name =
            if tools.is_some() && self.environment.get_template("tool_use").is_ok() { "tool_use" } else { "default" };
        let mut environment = self.environment.clone();
        let now = options.now.unwrap_or_else(SystemTime::now);
        environment.add_function("strftime_now", move |format: &str| {
            strftime(now, format).map_err(|e| minijinja::Error::new(ErrorKind::InvalidOperation, e))
        });
        let template = environment.get_template(name).map_err(|e| failed(describe(&e)))?;
        let marked = template.render(Template::from(Serde(&context))).map_err(|e| failed(describe(&e)))?;
        Ok(unmark(&marked))
    }
}

static GENERATION: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"\{%(?P<left>[-+]?)\s*(?P<end>end)?generation\s*(?P<right>[-+]?)%\}").expect("a valid pattern")
});

/// Generation blocks become filter blocks, which keep the same rules for white space; lines end as Jinja reads them.
fn as_filter_blocks(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    GENERATION
        .replace_all(&source, |found: &regex::Captures| {
            let tag = if found.name("end").is_some() { "endfilter" } else { "filter assistant_said" };
            format!("{{%{} {tag} {}%}}", &found["left"], &found["right"])
        })
        .into_owned()
}

fn unmark(marked: &str) -> Rendered {
    let (mut text, mut assistant, mut start) = (String::with_capacity(marked.len()), Vec::new(), 0);
    for c in marked.chars() {
        match c {
            OPEN => start = text.len(),
            CLOSE => assistant.push(start..text.len()),
            c => text.push(c),
        }
    }
    Rendered { text, assistant }
}

/// The engine with Python's ways: what counts as iterable and as a sequence is what Python iterates and measures.
fn environment() -> Environment<'static> {
    use ValueKind::{Iterable, Map, Seq, String as Str, Undefined};
    let mut environment = Environment::new();
    environment.set_syntax(
        SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .expect("the default delimiters are valid"),
    );
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_formatter(python_format);
    environment.add_function("raise_exception", |message: String| -> Result<String, minijinja::Error> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_filter("tojson", to_json);
    environment.add_test("iterable", |value: Template| matches!(value.kind(), Undefined | Str | Seq | Map | Iterable));
    environment.add_test("sequence", |value: Template| matches!(value.kind(), Undefined | Str | Seq | Map));
    environment.add_filter("assistant_said", |text: &str| format!("{OPEN}{text}{CLOSE}"));
    environment
}

/// The message without the engine's own heading, and the line of the template.
fn describe(error: &minijinja::Error) -> String {
    let message = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    match error.line() {
        Some(line) => format!("{message} (line {line})"),
        None => message,
    }
}

/// Prints values as Python does: `True`, `None`, `1.0`, `['a', 1]`.
fn python_format(out: &mut Output, state: &mut State, value: &Template) -> Result<(), minijinja::Error> {
    let repr = match value.kind() {
        ValueKind::Bool | ValueKind::None | ValueKind::Number | ValueKind::Seq | ValueKind::Map => {
            python::repr(&as_json(value)?)
        }
        ValueKind::Iterable => python::repr(&as_json(&value.try_iter()?.collect())?),
        _ => return minijinja::escape_formatter(out, state, value),
    };
    out.write_str(&repr).map_err(minijinja::Error::from)
}

fn as_json(value: &Template) -> Result<Value, minijinja::Error> {
    serde_json::to_value(value).map_err(|e| minijinja::Error::new(ErrorKind::BadSerialization, e.to_string()))
}

/// Keys that hold nothing are left out; reasoning is written under several names, and templates read
/// `reasoning_content` or `thinking`.
fn tidy(messages: &mut Value) {
    for message in messages.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        message.retain(|_, value| !value.is_null());
        let names = ["reasoning_content", "thinking", "reasoning"];
        let Some(reasoning) = names.iter().find_map(|n| message.get(*n).filter(|v| !v.is_null())).cloned() else {
            continue;
        };
        message.insert("reasoning_content".into(), reasoning.clone());
        if !message.contains_key("thinking") {
            message.insert("thinking".into(), reasoning);
        }
    }
}

/// `json.dumps(value, ensure_ascii=False, indent=…, separators=…, sort_keys=…)`.
fn to_json(value: Template, options: Kwargs) -> Result<Template, minijinja::Error> {
    let indent: Option<usize> = options.get("indent")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    let sort_keys: Option<bool> = options.get("sort_keys")?;
    let ascii: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    if value.is_undefined() {
        let message = "a value that is not defined cannot be written as JSON";
        return Err(minijinja::Error::new(ErrorKind::BadSerialization, message));
    }
    let (item, key) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        _ => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    let style = python::Json { indent, item, key, sort_keys: sort_keys == Some(true), ascii: ascii == Some(true) };
    Ok(Template::from_safe_string(style.dumps(&as_json(&value)?)))
}
