//! Chat templates turn conversations into text, in the dialect of Hugging Face model directories.
//!
//! The dialect is Jinja with `trim_blocks` and `lstrip_blocks`, loop controls, Python's string methods, `raise_exception`,
//! `strftime_now`, a `tojson` equal to Python's `json.dumps`, and `{% generation %}…{% endgeneration %}` blocks that mark the
//! assistant's text.
//!
//! Templates come from untrusted sources. They are therefore compiled and rendered in a process of their own; see
//! [`render`](super::render). This module limits their size. The engine limits the instructions they run, the text they write and
//! the widths they pad to. The process limits memory, stack and processor time.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::Tokenizer;
use super::render::{CLOSE, Conversation, OPEN, Pool, RenderError, Settings, Source, marks_generation};
use crate::{Error, Result, files};

/// Maximum size of a template in bytes. The longest known templates have 20,000.
const SOURCE_BYTES: usize = 1 << 20;

/// A compiled chat template with the special tokens that it may print. Copies share it.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    pool: Arc<Pool>,
    /// All templates. Only those that conversations use are compiled.
    named: Arc<Named>,
    /// Whether it marks the assistant's text in conversations without and with tools.
    marks_assistant: [bool; 2],
    /// Whether it writes the texts of contents that are lists of parts; determined at the first such content.
    reads_parts: OnceLock<bool>,
    path: PathBuf,
}

/// Names and sources of templates.
type Named = Vec<(String, String)>;

/// Name of the template for conversations without tools.
const DEFAULT: &str = "default";

/// Folder of a model directory with further templates.
const FOLDER: &str = "additional_chat_templates";

/// A conversation to render: its messages, each of which serializes to an object with `role` and `content`, and its options.
pub type Request<'a, M> = (&'a [M], RenderOptions<'a>);

/// Options for rendering a conversation.
#[derive(Debug, Clone, Default)]
pub struct RenderOptions<'a> {
    /// Tool descriptions. An empty list counts as none.
    pub tools: Option<&'a [Value]>,
    /// Append the head of the assistant's next turn.
    pub add_generation_prompt: bool,
    /// Additional variables (`enable_thinking`, …). They override all others of the same name.
    pub variables: Option<&'a Map<String, Value>>,
    /// Time that `strftime_now` uses. Default: the current time.
    pub now: Option<SystemTime>,
}

/// A rendered conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// Rendered text, to be tokenized without adding special tokens.
    pub text: String,
    /// Byte ranges of `text` inside generation blocks, in order. `None` if the template has no such blocks.
    pub assistant: Option<Vec<Range<usize>>>,
}

impl ChatTemplate {
    /// Loads the template of a model directory: `chat_template.jinja` and the files in `additional_chat_templates`, else the key
    /// `chat_template` of `tokenizer_config.json`. Returns `None` if it has none of them.
    ///
    /// As in transformers, a directory may have several templates with names. [`render`](Self::render) uses `tool_use` for conversations with
    /// tools, and `default` for all others. Templates with other names need not be valid.
    ///
    /// # Errors
    /// If a file cannot be read, or a template that conversations use is not valid.
    pub fn from_dir(directory: &Path, tokenizer: &Tokenizer) -> Result<Option<Self>> {
        stored(directory)?.map(|(path, named)| Self::compile(named, path, tokenizer)).transpose()
    }

    /// Returns whether a model directory has a chat template, without compiling it.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn is_in(directory: &Path) -> Result<bool> {
        Ok(stored(directory)?.is_some())
    }

    /// Returns the files in the folder `additional_chat_templates` of a model directory, sorted by name.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn additional_files(directory: &Path) -> Result<Vec<PathBuf>> {
        let folder = directory.join(FOLDER);
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) => entries.collect::<std::io::Result<Vec<_>>>().map_err(|e| Error::io(&folder, e))?,
            Err(_) if !folder.is_dir() => Vec::new(),
            Err(e) => return Err(Error::io(&folder, e)),
        };
        let mut files: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
        files.retain(|file| name_of(file).is_some() && file.is_file());
        files.sort();
        Ok(files)
    }

    /// Loads the template from a file of its own.
    ///
    /// # Errors
    /// If the file cannot be read, or if the template is not valid.
    pub fn from_file(path: &Path, tokenizer: &Tokenizer) -> Result<Self> {
        Self::compile(vec![(DEFAULT.into(), read_source(path)?)], path.to_path_buf(), tokenizer)
    }

    /// Compiles a template given as text. `path` identifies it in messages.
    ///
    /// # Errors
    /// If the template is not valid.
    pub fn from_source(source: &str, path: impl Into<PathBuf>, tokenizer: &Tokenizer) -> Result<Self> {
        Self::compile(vec![(DEFAULT.into(), source.into())], path.into(), tokenizer)
    }

    fn compile(named: Named, path: PathBuf, tokenizer: &Tokenizer) -> Result<Self> {
        let is_used = |(name, _): &&(String, String)| Source::PARTS.contains(&name.as_str());
        let used: Named = named.iter().filter(is_used).cloned().collect();
        if let Some((_, source)) = used.iter().find(|(_, source)| source.len() > SOURCE_BYTES) {
            let message = format!("the chat template has {} bytes, but at most {SOURCE_BYTES} are read", source.len());
            return Err(Error::model(&path, message));
        }
        let source = Source { named: used, special_tokens: tokenizer.named_special_tokens().to_vec() };
        let pool = Pool::compile(source).map_err(|refused| match refused {
            RenderError::Rejected(what) => Error::model(&path, format!("not a valid chat template: {what}")),
            RenderError::Stopped(what) => stopped(&path, &what),
        })?;
        let marks_assistant = [false, true]
            .map(|has_tools| Source::part(&named, has_tools).is_some_and(|(_, text)| marks_generation(text)));
        let (pool, named) = (Arc::new(pool), Arc::new(named));
        Ok(Self { pool, named, marks_assistant, reads_parts: OnceLock::new(), path })
    }

    /// Returns the source of the template for conversations without tools. It is empty if the directory has only other templates.
    pub fn source(&self) -> &str {
        Source::part(&self.named, false).map_or("", |(_, source)| source)
    }

    /// Returns the source of the template for conversations with tools.
    pub fn source_with_tools(&self) -> &str {
        Source::part(&self.named, true).map_or("", |(_, source)| source)
    }

    /// Returns the names and sources of all templates, also of those that conversations do not use.
    pub fn named(&self) -> &[(String, String)] {
        &self.named
    }

    /// Returns the file of the template.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Renders a conversation. Each message serializes to an object with `role` and `content`.
    ///
    /// A content is a text or a list of parts with texts. If the template does not write the texts of such a list, it gets the joined
    /// texts instead. Otherwise it would print the list itself, fail, or leave the content out.
    ///
    /// # Errors
    /// If the template rejects the conversation (`raise_exception`), fails, or is stopped because it exceeds a limit.
    pub fn render<M: Serialize>(&self, messages: &[M], options: &RenderOptions) -> Result<Rendered> {
        self.render_all(&[(messages, options.clone())]).pop().expect("an answer for each conversation")
    }

    /// Renders many conversations at once. This is faster than one call per conversation.
    ///
    /// # Errors
    /// Each conversation has its own error, as in [`render`](Self::render).
    pub fn render_all<M: Serialize>(&self, requests: &[Request<'_, M>]) -> Vec<Result<Rendered>> {
        let prepared: Vec<Result<Conversation>> = requests.iter().map(|request| self.prepare(request)).collect();
        let (mut conversations, mut marks, mut refused) = (Vec::with_capacity(prepared.len()), Vec::new(), Vec::new());
        for (at, conversation) in prepared.into_iter().enumerate() {
            match conversation {
                Ok(conversation) => {
                    conversations.push(conversation);
                    marks.push(self.marks_assistant[usize::from(tools(&requests[at].1).is_some())]);
                }
                Err(error) => refused.push((at, Err(error))),
            }
        }
        let answers = self.pool.render(&conversations).into_iter().zip(marks);
        let mut rendered: Vec<Result<Rendered>> = answers
            .map(|(answer, marks_assistant)| match answer {
                Ok(marked) => {
                    let (text, assistant) = unmark(marked);
                    Ok(Rendered { text, assistant: marks_assistant.then_some(assistant) })
                }
                Err(RenderError::Rejected(what)) => Err(self.failed(&what)),
                Err(RenderError::Stopped(what)) => Err(stopped(&self.path, &what)),
            })
            .collect();
        refused.into_iter().for_each(|(at, error)| rendered.insert(at, error));
        rendered
    }

    fn prepare<M: Serialize>(&self, (messages, options): &Request<'_, M>) -> Result<Conversation> {
        if Source::part(&self.named, tools(options).is_some()).is_none() {
            let names: Vec<String> = self.named.iter().map(|(name, _)| format!("`{name}`")).collect();
            let names = names.join(", ");
            let what = format!("no template is called `{DEFAULT}`, which conversations need (found {names})");
            return Err(self.failed(&what));
        }
        let messages = serde_json::to_string(messages).map_err(|e| self.failed(&e.to_string()))?;
        if messages.contains([OPEN, CLOSE]) {
            return Err(Error::input("a message contains U+FDD0 or U+FDD1, which are not characters"));
        }
        let messages = match messages.contains(LIST_OF_PARTS) && !self.reads_parts() {
            true => with_joined_parts(&messages).map_err(|e| self.failed(&e.to_string()))?,
            false => messages,
        };
        let now = options.now.unwrap_or_else(SystemTime::now);
        let settings = Settings {
            tools: tools(options).map(<[Value]>::to_vec),
            add_generation_prompt: options.add_generation_prompt,
            variables: options.variables.cloned().unwrap_or_default(),
            now: now.duration_since(UNIX_EPOCH).map_or(0, |passed| passed.as_secs()),
        };
        let settings = serde_json::to_string(&settings).map_err(|e| self.failed(&e.to_string()))?;
        Ok(Conversation { messages, settings })
    }

    /// Whether a list with one part renders like its text. True if the template refuses such a short conversation.
    fn reads_parts(&self) -> bool {
        *self.reads_parts.get_or_init(|| {
            let settings =
                json!({ "tools": null, "add_generation_prompt": false, "variables": {}, "now": 0 }).to_string();
            let conversation = |content: Value| Conversation {
                messages: json!([{ "role": "user", "content": content }]).to_string(),
                settings: settings.clone(),
            };
            let both = [conversation(json!("Hi.")), conversation(json!([{ "type": "text", "text": "Hi." }]))];
            match &self.pool.render(&both)[..] {
                [Ok(of_text), of_parts] => of_parts.as_ref().is_ok_and(|of_parts| of_parts == of_text),
                _ => true,
            }
        })
    }

    fn failed(&self, what: &str) -> Error {
        Error::model(&self.path, format!("chat template: {what}"))
    }
}

/// Reads the templates of a model directory, and returns them with their path.
fn stored(directory: &Path) -> Result<Option<(PathBuf, Named)>> {
    match of_files(directory)? {
        Some(found) => Ok(Some(found)),
        None => of_settings(directory),
    }
}

/// Reads the template files of a directory. As in transformers, a file of this name in the folder replaces `chat_template.jinja`.
fn of_files(directory: &Path) -> Result<Option<(PathBuf, Named)>> {
    let file = directory.join("chat_template.jinja");
    let mut named = BTreeMap::new();
    if file.is_file() {
        named.insert(DEFAULT.to_owned(), read_source(&file)?);
    }
    let path = if named.is_empty() { directory.join(FOLDER) } else { file };
    for file in ChatTemplate::additional_files(directory)? {
        if let Some(name) = name_of(&file) {
            named.insert(name.to_owned(), read_source(&file)?);
        }
    }
    Ok((!named.is_empty()).then(|| (path, named.into_iter().collect())))
}

/// Returns the name of the template in a file. `None` for other files, also for those that an operating system hides.
fn name_of(file: &Path) -> Option<&str> {
    let name = file.file_name().and_then(OsStr::to_str)?.strip_suffix(".jinja")?;
    (!name.is_empty() && !name.starts_with('.')).then_some(name)
}

/// Reads the key `chat_template` of `tokenizer_config.json`: a template, or several in a list or an object.
fn of_settings(directory: &Path) -> Result<Option<(PathBuf, Named)>> {
    let path = directory.join("tokenizer_config.json");
    let bytes = match files::read(&path, files::SETTINGS_BYTES) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::io(path, e)),
    };
    let config: Value =
        serde_json::from_slice(&bytes).map_err(|e| Error::model(&path, format!("not valid JSON: {e}")))?;
    let pair = |name: &str, source: &Value| Some((name.to_owned(), source.as_str()?.to_owned()));
    let named: BTreeMap<String, String> = match config.get("chat_template") {
        Some(Value::String(source)) => BTreeMap::from([(DEFAULT.to_owned(), source.clone())]),
        Some(Value::Array(list)) => {
            list.iter().filter_map(|entry| pair(entry.get("name")?.as_str()?, entry.get("template")?)).collect()
        }
        Some(Value::Object(named)) => named.iter().filter_map(|(name, source)| pair(name, source)).collect(),
        _ => BTreeMap::new(),
    };
    Ok((!named.is_empty()).then(|| (path, named.into_iter().collect())))
}

fn read_source(path: &Path) -> Result<String> {
    files::read_text(path, files::SETTINGS_BYTES).map_err(|e| Error::io(path, e))
}

/// Returns the tools of a conversation, if there are any.
fn tools<'a>(options: &RenderOptions<'a>) -> Option<&'a [Value]> {
    options.tools.filter(|tools| !tools.is_empty())
}

/// How a content that is a list begins in the JSON of a message.
const LIST_OF_PARTS: &str = "\"content\":[";

/// Replaces each content that is a list of texts, or of parts with texts, by the joined texts.
fn with_joined_parts(messages: &str) -> serde_json::Result<String> {
    let text_of = |part: &Value| part.as_str().or_else(|| part.get("text")?.as_str()).map(str::to_owned);
    let mut messages: Vec<Value> = serde_json::from_str(messages)?;
    for content in messages.iter_mut().filter_map(|message| message.get_mut("content")) {
        let joined: Option<String> = content.as_array().and_then(|parts| parts.iter().map(text_of).collect());
        if let Some(joined) = joined {
            *content = joined.into();
        }
    }
    serde_json::to_string(&messages)
}

/// Returns the error for a template that was stopped from outside. The message names the template, not a conversation, because the
/// template is at fault, not the row.
fn stopped(path: &Path, what: &str) -> Error {
    Error::model(path, format!("the chat template was stopped: {what}"))
        .with_hint("the template is broken or meant to do harm: use another with `--chat-template FILE`")
}

/// Removes the marks from a text, and returns the ranges that they enclosed.
fn unmark(marked: String) -> (String, Vec<Range<usize>>) {
    if !marked.contains([OPEN, CLOSE]) {
        return (marked, Vec::new());
    }
    let (mut text, mut assistant, mut start) = (String::with_capacity(marked.len()), Vec::new(), 0);
    for c in marked.chars() {
        match c {
            OPEN => start = text.len(),
            CLOSE => assistant.push(start..text.len()),
            c => text.push(c),
        }
    }
    (text, assistant)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rendered(source: &str) -> String {
        let models =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../gradus/tests/fixtures/parity/trajectories/models/gpt2");
        let tokenizer = Tokenizer::from_dir(&models).expect("a tokenizer");
        let messages = [json!({ "role": "user", "content": "Hi" })];
        let made = ChatTemplate::from_source(source, "t.jinja", &tokenizer);
        match made.and_then(|template| template.render(&messages, &RenderOptions::default())) {
            Ok(rendered) => rendered.text,
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn texts_in_parts_are_never_lost() {
        let models =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../gradus/tests/fixtures/parity/trajectories/models/gpt2");
        let tokenizer = Tokenizer::from_dir(&models).expect("a tokenizer");
        let parts =
            json!([{ "role": "user", "content": [{ "type": "text", "text": "Hi" }, { "type": "text", "text": "!" }] }]);
        for (source, expected) in [
            // It adds texts, prints what it gets, leaves out what is not a text, or reads the parts.
            ("{% for m in messages %}{{ '<' + m.content + '>' }}{% endfor %}", "<Hi!>"),
            ("{% for m in messages %}<{{ m.content }}>{% endfor %}", "<Hi!>"),
            ("{% for m in messages %}<{{ m.content if m.content is string else '' }}>{% endfor %}", "<Hi!>"),
            (
                "{% for m in messages %}{% if m.content is string %}<{{ m.content }}>{% else %}<{% for p in m.content %}{{ p.text }}\
                 {% if not loop.last %}|{% endif %}{% endfor %}>{% endif %}{% endfor %}",
                "<Hi|!>",
            ),
        ] {
            let template = ChatTemplate::from_source(source, "t.jinja", &tokenizer).expect("a template");
            let rendered = template.render(parts.as_array().expect("a list"), &RenderOptions::default());
            assert_eq!(rendered.expect("rendered").text, expected, "{source}");
        }
    }

    /// The expected texts are those of Jinja 3.1 in Python.
    #[test]
    fn methods_and_filters_are_those_of_python_and_jinja() {
        for (source, expected) in [
            ("{{ missing | length }}|{{ missing | count }}|{{ missing | first }}|{{ missing | last }}|", "0|0|||"),
            ("{{ 'abc'.removeprefix('a') }}|{{ 'abc'.removesuffix('bc') }}|{{ 'abc'.removeprefix('x') }}", "bc|a|abc"),
            ("{{ 'a-b-c'.rsplit('-', 1) }}|{{ 'a-b-c'.rsplit('-', maxsplit=1)[0] }}", "['a-b', 'c']|a-b"),
            ("{{ ' a  b c '.rsplit() }}|{{ ' a  b c '.rsplit(none, 1) }}", "['a', 'b', 'c']|[' a  b', 'c']"),
            ("{{ ' a  b '.rsplit(none, 0) }}|{{ '  '.rsplit(none, 0) }}|{{ ''.rsplit('-') }}", "[' a  b']|[]|['']"),
            ("{{ 'a=b=c'.partition('=')[2] }}|{{ 'a=b=c'.rpartition('=')[0] }}", "b=c|a=b"),
            ("{{ 'abc'.partition('=')[0] }}|{{ 'abc'.rpartition('=')[2] }}", "abc|abc"),
            ("{% set a, b, c = 'k=v'.partition('=') %}{{ c }}", "v"),
            ("{{ 'äbcb'.index('b') }}|{{ 'äbcb'.rindex('b') }}|{{ 'äbcb'.count('b', 2) }}", "1|3|1"),
            ("{{ 'äbcb'.find('b', 2) }}|{{ 'äbcb'.find('b', 2, 3) }}|{{ 'äbcb'.rfind('b', 0, -1) }}", "3|-1|1"),
            ("{{ 'äbcb'.find('ä', -9) }}|{{ 'abc'.find('', 9) }}|{{ 'abc'.find('', 3) }}", "0|-1|3"),
            ("{{ '-42'.zfill(5) }}|{{ '7'.zfill(3) }}|{{ 'abc'.zfill(2) }}", "-0042|007|abc"),
            ("{{ 'ab'.ljust(4, '.') }}|{{ 'ab'.rjust(4) }}|{{ 'ab'.center(5, '*') }}", "ab..|  ab|**ab*"),
            ("{{ 'abc'.center(6, '*') }}|{{ 'abc'.center(2) }}", "*abc**|abc"),
            ("{{ 'aBc'.swapcase() }}|{{ ['a', 'b'].index('b') }}|{{ [1, 2, 1].index(1, 1) }}", "AbC|1|2"),
            ("{{ 'a-b-c' | replace('-', '+', 1) }}|{{ 'a-b-c' | replace('-', '+', count=1) }}", "a+b-c|a+b-c"),
            (
                "{{ 'a-b-c' | replace('-', '') }}|{{ 11 | replace(1, 2) }}|{{ missing | replace('a', 'b') }}|",
                "abc|22||",
            ),
            ("{{ 'ab' | replace('', '-', 2) }}|{{ none | replace('o', '0') }}", "-a-b|N0ne"),
            ("{{ 'x' | int }}|{{ 'x' | int(3) }}|{{ 'x' | int(default=4) }}|{{ [] | int }}", "0|3|4|0"),
            ("{{ ' 12 ' | int }}|{{ '12.7' | int }}|{{ 'ff' | int(base=16) }}|{{ 'nan' | int }}", "12|12|255|0"),
            ("{{ 'x' | float }}|{{ 'x' | float(1.5) }}|{{ ' 2.5 ' | float }}|{{ [] | float }}", "0.0|1.5|2.5|0.0"),
            ("{{ 'Hi you, all' | wordcount }}|{{ missing | wordcount }}|{{ 'ab' | center(5) }}|", "3|0|  ab |"),
            ("{{ 'ab' | center | length }}", "80"),
            ("{{ 'a\nb' | indent('>>') }}|{{ 'a\n\nb\n' | indent(2) }}|", "a\n>>b|a\n\n  b\n|"),
            ("{{ 'a\n\nb' | indent(2, blank=true) }}|{{ 'a\nb' | indent(1, true) }}", "a\n  \n  b| a\n b"),
            ("{{ 'a' is callable }}|{{ raise_exception is callable }}", "False|True"),
            ("{% set x = 0 %}{% generation %}{% set x = 1 %}{{ x }}{% endgeneration %}{{ x }}", "10"),
            (
                "{%- generation -%} c {%- endgeneration +%}\nd{% generation %}\n  a\n{% endgeneration %}\nb",
                "c\nd  a\nb",
            ),
        ] {
            assert_eq!(rendered(source), expected, "{source}");
        }
        for (source, expected) in [
            ("{{ 'abc'.index('x') }}", "`index` did not find the text"),
            ("{{ ['a'].index('b') }}", "`index` did not find the value in the list"),
            ("{{ 'a'.partition('') }}", "the separator is empty"),
            ("{{ 'a'.ljust(3, '--') }}", "`ljust` fills with one character, but got 2"),
            ("{{ 'a'.center(9999999999) }}", "a width of 9999999999, but at most 1000 are padded to"),
        ] {
            let found = rendered(source);
            assert!(found.contains(expected), "{expected} in {found}");
        }
    }

    #[test]
    fn what_a_template_may_take_is_bounded() {
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
        let divided = rendered("{{ 1 is divisibleby(0) }}");
        assert!(divided.contains("the engine failed at it: attempt to calculate the remainder"), "{divided}");
        // Normal use still works.
        assert_eq!(rendered("{{ 'Date: 20240115 %s' | format(7) }}"), "Date: 20240115 7");
        assert_eq!(rendered("{{ '{}: 20240115 {:5.1f}|'.format('a', 2.0) }}"), "a: 20240115   2.0|");
        assert_eq!(rendered("{{ 'a\nb' | indent(2) }}{{ 'a\nb' | indent(width=1, first=true) }}"), "a\n  b a\n b");
        assert_eq!(
            rendered("{{ messages[0] | tojson(indent=1) }}"),
            "{\n \"role\": \"user\",\n \"content\": \"Hi\"\n}"
        );
    }
}
