//! Chat templates: conversations to text, in the dialect that Hugging Face model directories use.
//!
//! Jinja with `trim_blocks` and `lstrip_blocks`, loop controls, Python's string methods, `raise_exception`,
//! `strftime_now`, a `tojson` that writes what Python's `json.dumps` writes, and
//! `{% generation %}…{% endgeneration %}` blocks that mark what the assistant said.
//!
//! Templates come from strangers. What one may take is bounded: its own size, the instructions it runs, what it writes, and
//! the widths that it pads to.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::SystemTime;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, Serde, ValueKind, ValueOrKwargs};
use minijinja::{AutoEscape, Environment, ErrorKind, Output, State, Value as Template};
use regex::Regex;
use serde::Serialize;
use serde_json::{Map, Value};

use super::{Tokenizer, python, strftime::strftime};
use crate::{Error, Result, border, files};

/// Enclose a generation block while rendering. Unicode reserves both for use inside a program; input with them is refused.
const OPEN: char = '\u{FDD0}';
const CLOSE: char = '\u{FDD1}';

/// The most bytes of a template; the longest that are known have 20,000.
const SOURCE_BYTES: usize = 1 << 20;

/// The instructions that rendering may take: these, and so many for each message. Known templates take a hundredth.
const INSTRUCTIONS: u64 = 1_000_000;
const INSTRUCTIONS_A_MESSAGE: u64 = 50_000;

/// The bytes that rendering may give: these, and so many for each byte of the conversation.
const OUTPUT_BYTES: usize = 4 << 20;
const OUTPUT_A_BYTE: usize = 16;

/// The widest that a template may pad or indent to.
const WIDEST: usize = 1000;

/// A compiled chat template with the special tokens it may print.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
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
        let bytes = match files::read(&path, files::SETTINGS_BYTES) {
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
        let source = files::read_text(path, files::SETTINGS_BYTES).map_err(|e| Error::io(path, e))?;
        Self::compile(&[("default", &source)], path.to_path_buf(), tokenizer)
    }

    /// A template given as text; `path` names it in messages.
    pub fn from_source(source: &str, path: impl Into<PathBuf>, tokenizer: &Tokenizer) -> Result<Self> {
        Self::compile(&[("default", source)], path.into(), tokenizer)
    }

    fn compile(named: &[(&str, &str)], path: PathBuf, tokenizer: &Tokenizer) -> Result<Self> {
        let mut environment = environment();
        for (name, source) in named {
            if source.len() > SOURCE_BYTES {
                let message =
                    format!("the chat template has {} bytes, but at most {SOURCE_BYTES} are read", source.len());
                return Err(Error::model(&path, message));
            }
            let source = as_filter_blocks(source);
            border::cross(|| environment.add_template_owned((*name).to_owned(), source).map_err(|e| describe(&e)))
                .flatten()
                .map_err(|what| Error::model(&path, format!("not a valid chat template: {what}")))?;
        }
        let default = named.iter().find(|(name, _)| *name == "default").map_or("", |(_, source)| source);
        Ok(Self {
            source: default.to_owned(),
            marks_assistant: GENERATION.is_match(default),
            environment,
            special_tokens: tokenizer.named_special_tokens().to_vec(),
            path,
        })
    }

    /// Its text.
    pub fn source(&self) -> &str {
        &self.source
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
        let (written, count) = (messages.to_string(), messages.as_array().map_or(0, Vec::len) as u64);
        if written.contains([OPEN, CLOSE]) {
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
        let instructions = INSTRUCTIONS + INSTRUCTIONS_A_MESSAGE * count;
        environment.set_fuel(Some(instructions));
        let now = options.now.unwrap_or_else(SystemTime::now);
        environment.add_function("strftime_now", move |format: &str| {
            strftime(now, format).map_err(|e| minijinja::Error::new(ErrorKind::InvalidOperation, e))
        });
        let template = environment.get_template(name).map_err(|e| failed(describe(&e)))?;
        let room = OUTPUT_BYTES + OUTPUT_A_BYTE * written.len();
        let mut marked = Bounded { bytes: Vec::new(), room };
        let context = Template::from(Serde(&context));
        let rendered = border::cross(|| template.render_captured_to(context, &mut marked).map(drop));
        let rendered = rendered.map_err(|panicked| failed(format!("the engine failed at it: {panicked}")))?;
        rendered.map_err(|error| match error.kind() {
            ErrorKind::OutOfFuel => {
                failed(format!("it takes more than {instructions} instructions for this conversation"))
            }
            _ if marked.bytes.len() > room => {
                failed(format!("it writes more than {room} bytes for a conversation of {}", written.len()))
            }
            _ => failed(describe(&error)),
        })?;
        let marked = String::from_utf8(marked.bytes).map_err(|_| failed("it wrote no valid text".into()))?;
        Ok(unmark(&marked))
    }
}

/// Takes so many bytes, and says so with the next.
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
    environment.set_unknown_method_callback(|state, value, method, arguments| {
        if method == "format" {
            check_widths(value)?;
        }
        minijinja_contrib::pycompat::unknown_method_callback(state, value, method, arguments)
    });
    environment.add_filter("any_format", minijinja::filters::format);
    environment.add_filter("format", |state: &mut State, format: &Template, values: Rest<ValueOrKwargs>| {
        check_widths(format)?;
        let arguments: Vec<Template> = [format.clone()].into_iter().chain(values.into_values()).collect();
        state.apply_filter("any_format", &arguments)
    });
    environment.add_filter("any_indent", minijinja::filters::indent);
    environment.add_filter("indent", |state: &mut State, text: &Template, values: Rest<ValueOrKwargs>| {
        let values = values.into_values();
        let named = values.iter().find_map(|value| value.is_kwargs().then(|| value.get_attr("width").ok()).flatten());
        let width = values.first().filter(|value| !value.is_kwargs()).cloned().or(named);
        if let Some(width) = width.and_then(|width| width.as_usize()).filter(|width| *width > WIDEST) {
            return Err(too_wide(width));
        }
        let arguments: Vec<Template> = [text.clone()].into_iter().chain(values).collect();
        state.apply_filter("any_indent", &arguments)
    });
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

fn too_wide(width: usize) -> minijinja::Error {
    let message = format!("a width of {width}, but at most {WIDEST} are padded to");
    minijinja::Error::new(ErrorKind::InvalidOperation, message)
}

/// Refuses `'%9999999d'` and `'{:9999999}'`, and widths that only the values give.
fn check_widths(format: &Template) -> Result<(), minijinja::Error> {
    static WIDTHS: LazyLock<Regex> = LazyLock::new(|| {
        let percent = r"%(?:\([^)]*\))?[-+ #0]*([0-9]+|\*)?(?:\.([0-9]+|\*))?";
        let braces = r"\{[^{}:]*:[^{}0-9]*([0-9]+)?(?:[^{}0-9]+([0-9]+))?";
        Regex::new(&format!("{percent}|{braces}")).expect("a valid pattern")
    });
    let widths = WIDTHS.captures_iter(format.as_str().unwrap_or_default());
    let given = widths.flat_map(|found| (1..found.len()).filter_map(move |i| Some(found.get(i)?.as_str().to_owned())));
    // What is no number is one that no memory holds, or a star.
    let widest = given.map(|width| width.parse().unwrap_or(usize::MAX)).max().unwrap_or(0);
    if widest > WIDEST { Err(too_wide(widest)) } else { Ok(()) }
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rendered(source: &str) -> String {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/trajectories/models/gpt2");
        let tokenizer = Tokenizer::from_dir(&models).expect("a tokenizer");
        let messages = [json!({ "role": "user", "content": "Hi" })];
        let made = ChatTemplate::from_source(source, "t.jinja", &tokenizer);
        match made.and_then(|template| template.render(&messages, &RenderOptions::default())) {
            Ok(rendered) => rendered.text,
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn what_a_template_may_take_is_bounded() {
        let started = std::time::Instant::now();
        for (source, expected) in [
            (
                "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}",
                "it takes more than 1050000 instructions for this conversation",
            ),
            ("{{ 'x' * 90000000 }}", "it writes more than 4194816 bytes for a conversation of 32"),
            ("{{ '%9999999999d' | format(1) }}", "at most 1000 are padded to"),
            ("{{ '%*d' | format(999999999, 1) }}", "at most 1000 are padded to"),
            ("{{ '{:>9999999999}'.format(1) }}", "at most 1000 are padded to"),
            ("{{ 'a\nb' | indent(9999999999) }}", "a width of 9999999999, but at most 1000 are padded to"),
            ("{{ 'a\nb' | indent(width=9999999999) }}", "at most 1000 are padded to"),
            ("{{ messages | tojson(indent=9999999999) }}", "at most 1000 are padded to"),
            (
                &format!("{{{{ {}1{} }}}}", "(".repeat(90_000), ")".repeat(90_000)),
                "t.jinja: not a valid chat template: ",
            ),
            (&"x".repeat(SOURCE_BYTES + 1), "the chat template has 1048577 bytes, but at most 1048576 are read"),
        ] {
            let found = rendered(source);
            assert!(found.len() < 300 && found.contains(expected), "{expected} in {found}");
        }
        assert!(started.elapsed().as_secs() < 60, "it took {:?}", started.elapsed());
        let divided = rendered("{{ 1 is divisibleby(0) }}");
        assert!(divided.contains("the engine failed at it: attempt to calculate the remainder"), "{divided}");
        // What is usual goes on as before.
        assert_eq!(rendered("{{ 'Date: 20240115 %s' | format(7) }}"), "Date: 20240115 7");
        assert_eq!(rendered("{{ '{}: 20240115 {:5.1f}|'.format('a', 2.0) }}"), "a: 20240115   2.0|");
        assert_eq!(rendered("{{ 'a\nb' | indent(2) }}{{ 'a\nb' | indent(width=1, first=true) }}"), "a\n  b a\n b");
        assert_eq!(
            rendered("{{ messages[0] | tojson(indent=1) }}"),
            "{\n \"role\": \"user\",\n \"content\": \"Hi\"\n}"
        );
    }
}
