//! The Jinja engine of one chat template, with Python's behavior and the engine's own limits.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, Serde, ValueKind, ValueOrKwargs};
use minijinja::{AutoEscape, Environment, ErrorKind, Output, State, Value as Template};
use regex::Regex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::super::{python, strftime::strftime};
use super::builtins::{self, WIDEST, as_json, repr, too_wide};
use crate::border;
use crate::error::excerpt;

/// Marks around a generation block during rendering. Unicode reserves both for internal use; input that contains them is rejected.
pub(in crate::text) const OPEN: char = '\u{FDD0}';
pub(in crate::text) const CLOSE: char = '\u{FDD1}';

/// Instructions that rendering may take: a base, and an allowance per message. Known templates take a hundredth.
const INSTRUCTIONS: u64 = 1_000_000;
const INSTRUCTIONS_A_MESSAGE: u64 = 50_000;

/// Bytes that rendering may write: a base, and an allowance per byte of the conversation.
const OUTPUT_BYTES: usize = 4 << 20;
const OUTPUT_A_BYTE: usize = 16;

/// Source of a template: its parts by name, and the special tokens that it may print.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(in crate::text) struct Source {
    pub named: Vec<(String, String)>,
    pub special_tokens: Vec<(String, String)>,
}

impl Source {
    /// Names of the parts that write conversations.
    pub const PARTS: [&str; 2] = ["tool_use", "default"];

    /// Returns the name and the text of the part of `named` that writes a conversation with or without tools. As in transformers, `tool_use` is
    /// for conversations with tools.
    pub fn part(named: &[(String, String)], has_tools: bool) -> Option<(&str, &str)> {
        let part = |wanted: &str| named.iter().find(|(name, _)| name == wanted);
        let [of_tools, default] = Self::PARTS.map(part);
        of_tools.filter(|_| has_tools).or(default).map(|(name, text)| (name.as_str(), text.as_str()))
    }
}

/// Input of a template as JSON: the messages, and [`Settings`].
#[derive(Debug, Clone)]
pub(in crate::text) struct Conversation {
    pub messages: String,
    pub settings: String,
}

/// Variables of a template besides the messages.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(in crate::text) struct Settings {
    pub tools: Option<Vec<Value>>,
    pub add_generation_prompt: bool,
    pub variables: Map<String, Value>,
    /// Time that `strftime_now` uses, in seconds since 1970.
    pub now: u64,
}

/// A compiled template.
pub(super) struct Engine {
    environment: Environment<'static>,
    source: Arc<Source>,
    now: Arc<AtomicU64>,
}

impl Engine {
    /// Compiles a template.
    ///
    /// # Errors
    /// Why the template is not valid.
    pub(super) fn compile(source: Arc<Source>) -> Result<Self, String> {
        let mut environment = environment();
        for (name, text) in &source.named {
            let text = as_filter_blocks(text);
            border::catch_panic(|| environment.add_template_owned(name.clone(), text).map_err(|e| describe(&e)))
                .flatten()
                .map_err(|what| if source.named.len() > 1 { format!("`{name}`: {what}") } else { what })?;
        }
        let now = Arc::new(AtomicU64::new(0));
        let clock = Arc::clone(&now);
        environment.add_function("strftime_now", move |format: &str| {
            let now = UNIX_EPOCH + Duration::from_secs(clock.load(Ordering::Relaxed));
            strftime(now, format).map_err(|e| minijinja::Error::new(ErrorKind::InvalidOperation, e))
        });
        Ok(Self { environment, source, now })
    }

    /// Renders a conversation. Text in generation blocks is enclosed by [`OPEN`] and [`CLOSE`].
    ///
    /// # Errors
    /// Why the template rejects the conversation, or which limit it exceeds.
    pub(super) fn render(&mut self, conversation: &Conversation) -> Result<String, String> {
        let broken = |error: serde_json::Error| error.to_string();
        let mut messages: Value = serde_json::from_str(&conversation.messages).map_err(broken)?;
        let settings: Settings = serde_json::from_str(&conversation.settings).map_err(broken)?;
        let count = messages.as_array().map_or(0, Vec::len) as u64;
        tidy(&mut messages);

        let has_tools = settings.tools.is_some();
        let mut context = Map::new();
        for (name, token) in &self.source.special_tokens {
            context.insert(name.clone(), Value::from(token.as_str()));
        }
        context.insert("messages".into(), messages);
        if let Some(tools) = &settings.tools {
            // SmolLM3 reads tools that are called as JSON under this name.
            context.insert("xml_tools".into(), Value::Array(tools.clone()));
        }
        context.insert("tools".into(), settings.tools.map_or(Value::Null, Value::Array));
        context.insert("documents".into(), Value::Null);
        context.insert("add_generation_prompt".into(), Value::Bool(settings.add_generation_prompt));
        context.extend(settings.variables);

        let instructions = INSTRUCTIONS + INSTRUCTIONS_A_MESSAGE * count;
        self.environment.set_fuel(Some(instructions));
        self.now.store(settings.now, Ordering::Relaxed);
        let (name, _) = Source::part(&self.source.named, has_tools).ok_or("no template is called `default`")?;
        let template = self.environment.get_template(name).map_err(|e| describe(&e))?;
        let length = conversation.messages.len();
        let room = OUTPUT_BYTES + OUTPUT_A_BYTE * length;
        let mut marked = Bounded { bytes: Vec::new(), room };
        let context = Template::from(Serde(&context));
        let rendered = border::catch_panic(|| template.render_captured_to(context, &mut marked).map(drop));
        let rendered = match rendered {
            Ok(rendered) => rendered,
            Err(panicked) => {
                // After a panic, the engine is replaced, because its state is unknown.
                *self = Self::compile(Arc::clone(&self.source))?;
                return Err(format!("the engine failed at it: {panicked}"));
            }
        };
        rendered.map_err(|error| match error.kind() {
            ErrorKind::OutOfFuel => format!("it takes more than {instructions} instructions for this conversation"),
            _ if marked.bytes.len() > room => {
                format!("it writes more than {room} bytes for a conversation of {length}")
            }
            _ => describe(&error),
        })?;
        String::from_utf8(marked.bytes).map_err(|_| "it wrote no valid text".into())
    }
}

/// Buffer of limited size. The write that exceeds the limit fails.
struct Bounded {
    bytes: Vec<u8>,
    room: usize,
}

impl std::io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        match self.bytes.len() > self.room {
            true => Err(std::io::Error::from(std::io::ErrorKind::FileTooLarge)),
            false => Ok(bytes.len()),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

static GENERATION: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"\{%(?P<left>[-+]?)\s*(?P<end>end)?generation\s*(?P<right>[-+]?)%\}").expect("a valid pattern")
});

/// Returns whether a template marks the assistant's text.
pub(in crate::text) fn marks_generation(source: &str) -> bool {
    GENERATION.is_match(source)
}

/// Replaces generation blocks by filter blocks, which follow the same rules for white space, and normalizes line ends as Jinja
/// does. The blocks inside keep the variables that are set there.
fn as_filter_blocks(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    GENERATION
        .replace_all(&source, |found: &regex::Captures| {
            let (left, right) = (&found["left"], &found["right"]);
            match found.name("end") {
                None => format!("{{%{left} filter assistant_said %}}{{% with {right}%}}"),
                Some(_) => format!("{{%{left} endwith %}}{{% endfilter {right}%}}"),
            }
        })
        .into_owned()
}

/// Creates an engine with Python's behavior: the same values count as iterables and sequences.
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
    environment.set_unknown_method_callback(|state, value, method, arguments| {
        if method == "format" {
            check_widths(value)?;
        }
        builtins::call_method(state, value, method, arguments)
    });
    environment.add_filter("any_format", minijinja::filters::format);
    environment.add_filter("format", |state: &mut State, format: &Template, values: Rest<ValueOrKwargs>| {
        check_widths(format)?;
        let arguments: Vec<Template> = [format.clone()].into_iter().chain(values.into_values()).collect();
        state.apply_filter("any_format", &arguments)
    });
    builtins::add_to(&mut environment);
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

/// Rejects wide formats such as `'%9999999d'` and `'{:9999999}'`, and widths that are taken from the values.
fn check_widths(format: &Template) -> Result<(), minijinja::Error> {
    static WIDTHS: LazyLock<Regex> = LazyLock::new(|| {
        let percent = r"%(?:\([^)]*\))?[-+ #0]*([0-9]+|\*)?(?:\.([0-9]+|\*))?";
        let braces = r"\{[^{}:]*:[^{}0-9]*([0-9]+)?(?:[^{}0-9]+([0-9]+))?";
        Regex::new(&format!("{percent}|{braces}")).expect("a valid pattern")
    });
    let widths = WIDTHS.captures_iter(format.as_str().unwrap_or_default());
    let given = widths.flat_map(|found| (1..found.len()).filter_map(move |i| Some(found.get(i)?.as_str().to_owned())));
    // A width that does not parse is a star, or too large for any memory.
    let widest = given.map(|width| width.parse().unwrap_or(usize::MAX)).max().unwrap_or(0);
    if widest > WIDEST { Err(too_wide(widest)) } else { Ok(()) }
}

/// Maximum number of characters shown of an error.
const MESSAGE_CHARS: usize = 1000;

/// Returns the message without the engine's heading, and the line of the template.
fn describe(error: &minijinja::Error) -> String {
    // A template may raise a message of any length.
    let message = error.detail().map_or_else(|| error.kind().to_string(), |detail| excerpt(detail, MESSAGE_CHARS));
    match error.line() {
        Some(line) => format!("{message} (line {line})"),
        None => message,
    }
}

/// Prints values like Python: `True`, `None`, `1.0`, `['a', 1]`.
fn python_format(out: &mut Output, state: &mut State, value: &Template) -> Result<(), minijinja::Error> {
    match repr(value)? {
        Some(repr) => out.write_str(&repr).map_err(minijinja::Error::from),
        None => minijinja::escape_formatter(out, state, value),
    }
}

/// Removes keys with null, and copies reasoning to both names that templates read: `reasoning_content` and `thinking`.
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

/// Implements `json.dumps(value, ensure_ascii=False, indent=…, separators=…, sort_keys=…)`.
fn to_json(value: Template, options: Kwargs) -> Result<Template, minijinja::Error> {
    let indent: Option<usize> = options.get("indent")?;
    if let Some(width) = indent.filter(|width| *width > WIDEST) {
        return Err(too_wide(width));
    }
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
