//! Form with the settings of a conversation, and its parsing.

use gradus::html;
use gradus::html::Html;
use serde::Deserialize;

use crate::models::{Kind, ModelEntry};
use crate::page::csrf;
use crate::store::chats::Settings;
use crate::store::sessions::Session;

/// Maximum length of an answer in tokens, and of the system prompt in bytes.
const MAX_TOKENS: usize = 1 << 16;
const SYSTEM_BYTES: usize = 1 << 16;

/// Fields of the form. All are text, so that parsing can report errors in words.
#[derive(Debug, Deserialize)]
pub struct Fields {
    model: String,
    #[serde(default)]
    other: String,
    blind: Option<String>,
    #[serde(default)]
    judge: String,
    #[serde(default)]
    system: String,
    temperature: String,
    top_p: String,
    top_k: String,
    min_p: String,
    repetition_penalty: String,
    max_tokens: String,
    seed: String,
    /// First message.
    #[serde(default)]
    text: String,
}

impl Fields {
    /// Returns the first message. Empty if the conversation begins without one.
    pub fn first_message(&self) -> String {
        // HTML forms send `\r\n` line breaks.
        self.text.replace("\r\n", "\n")
    }

    /// Parses the settings.
    pub fn settings(&self, found: &[ModelEntry]) -> Result<Settings, String> {
        let check = |name: &String, is_judge: bool| match found
            .iter()
            .any(|found| found.name == *name && found.kind.is_judge() == is_judge)
        {
            true => Ok(name.clone()),
            false => Err(format!("There is no such model: {name}")),
        };
        let mut models = vec![check(&self.model, false)?];
        if !self.other.is_empty() {
            models.push(check(&self.other, false)?);
        }
        let judges = match self.judge.is_empty() {
            true => Vec::new(),
            false => vec![check(&self.judge, true)?],
        };
        if self.system.len() > SYSTEM_BYTES {
            return Err(format!(
                "The system prompt has {} bytes, but at most {SYSTEM_BYTES} are allowed.",
                self.system.len()
            ));
        }
        let number = |name: &str, text: &str, range: std::ops::RangeInclusive<f32>| match text.trim().parse::<f32>() {
            Ok(number) if range.contains(&number) => Ok(number),
            _ => Err(format!("{name} is {text}, but a number from {} to {} is needed.", range.start(), range.end())),
        };
        let count = |name: &str, text: &str, range: std::ops::RangeInclusive<usize>| match text.trim().parse::<usize>()
        {
            Ok(count) if range.contains(&count) => Ok(count),
            _ => Err(format!(
                "{name} is {text}, but a whole number from {} to {} is needed.",
                range.start(),
                range.end()
            )),
        };
        Ok(Settings {
            blind: self.blind.is_some() && models.len() == 2,
            models,
            judges,
            // HTML forms send `\r\n` line breaks.
            system: self.system.replace("\r\n", "\n").trim().to_owned(),
            temperature: number("The temperature", &self.temperature, 0.0..=100.0)?,
            top_p: number("Top-p", &self.top_p, 0.0001..=1.0)?,
            top_k: count("Top-k", &self.top_k, 0..=1 << 24)?,
            min_p: number("Min-p", &self.min_p, 0.0..=1.0)?,
            repetition_penalty: number("The repetition penalty", &self.repetition_penalty, 0.01..=100.0)?,
            max_tokens: count("The length", &self.max_tokens, 1..=MAX_TOKENS)?,
            seed: self
                .seed
                .trim()
                .parse()
                .map_err(|_| format!("The seed is {}, but a whole number is needed.", self.seed))?,
        })
    }
}

/// Returns the initial settings of a conversation.
fn beginning(found: &[ModelEntry]) -> Settings {
    let first = found.iter().find(|found| found.kind == Kind::Language).map(|found| found.name.clone());
    Settings {
        models: first.into_iter().collect(),
        blind: false,
        judges: Vec::new(),
        system: String::new(),
        temperature: 0.8,
        top_p: 1.0,
        top_k: 0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        max_tokens: 256,
        seed: 0,
    }
}

/// Renders the form of a new conversation.
pub fn new(session: &Session, found: &[ModelEntry]) -> Html {
    if !found.iter().any(|found| found.kind == Kind::Language) {
        return html![
            "<div class=\"empty\"><p><strong>There is no language model in this folder yet.</strong></p>\n<p>Train one, or start the server with "
            "<code>gradus serve --model NAME</code>, where NAME is a directory or a name on the hub.</p></div>\n"
        ];
    }
    let fields = fields(&beginning(found), found);
    html![
        "<form method=\"post\" action=\"/chat\" class=\"fields\">\n"
        (csrf(session)) (fields)
        "<div><label for=\"first\">Your message</label><textarea id=\"first\" name=\"text\" rows=\"4\" dir=\"auto\" data-sends required autofocus></textarea></div>\n"
        "<div class=\"row\"><button type=\"submit\" class=\"main\">Send</button>" (keys()) "</div>\n</form>\n"
    ]
}

/// Renders a hint about the keys that send.
pub fn keys() -> Html {
    html![
        "<small class=\"soft send-keys\"><kbd>Enter</kbd> sends, <kbd>Shift</kbd> <kbd>Enter</kbd> starts a new line, <kbd>Esc</kbd> stops</small>"
    ]
}

/// Renders the form that changes a conversation.
pub fn change(session: &Session, id: i64, settings: &Settings, found: &[ModelEntry]) -> Html {
    // The form would reveal the names of the models.
    if settings.blind {
        return html![
            "<p>The settings of a blind conversation cannot change. Start another conversation to choose other models.</p>\n"
        ];
    }
    html![
        "<form method=\"post\" action=\"/chat/" (id) "/settings\" class=\"fields\">\n"
        (csrf(session)) (fields(settings, found))
        "<button type=\"submit\">Save</button>\n</form>\n"
    ]
}

fn fields(settings: &Settings, found: &[ModelEntry]) -> Html {
    let options = |is_judge: bool, chosen: Option<&String>| {
        let of = found.iter().filter(move |found| found.kind.is_judge() == is_judge);
        let option = move |found: &ModelEntry| match Some(&found.name) == chosen {
            true => html!["<option selected>" (found.name) "</option>\n"],
            false => html!["<option>" (found.name) "</option>\n"],
        };
        of.map(option).collect::<Vec<_>>()
    };
    let number = |name: &'static str, label: &'static str, value: String, step: &'static str| {
        html![
            "<div><label for=\"" (name) "\">" (label) "</label><input id=\"" (name) "\" name=\"" (name)
            "\" type=\"number\" inputmode=\"decimal\" min=\"0\" step=\"" (step) "\" value=\"" (value) "\" required></div>\n"
        ]
    };
    let blind = if settings.blind { html![" checked"] } else { Html::new() };
    let judges = match found.iter().any(|found| found.kind.is_judge()) {
        false => Html::new(),
        true => html![
            "<div><label for=\"judge\">Reward model that scores answers (optional)</label><select id=\"judge\" name=\"judge\">\n"
            "<option value=\"\">None</option>\n" (options(true, settings.judges.first())) "</select></div>\n"
        ],
    };
    html![
        "<div class=\"picker\"><div><label for=\"model\">Model</label><select id=\"model\" name=\"model\">\n"
        (options(false, settings.models.first())) "</select></div>\n"
        "<div><label for=\"other\">Compare with</label><select id=\"other\" name=\"other\">\n"
        "<option value=\"\">No second model</option>\n" (options(false, settings.models.get(1))) "</select></div></div>\n"
        "<details class=\"drawer\"><summary>Blind votes, reward model, system prompt, sampling</summary>\n"
        "<div class=\"check\"><input id=\"blind\" name=\"blind\" type=\"checkbox\"" (blind) ">"
        "<label for=\"blind\">Hide the names of two models until I vote</label></div>\n" (judges)
        "<div><label for=\"system\">System prompt</label><textarea id=\"system\" name=\"system\" rows=\"3\">\n" (settings.system)
        "</textarea></div>\n<fieldset class=\"grid\"><legend>Sampling</legend>\n"
        (number("temperature", "Temperature", settings.temperature.to_string(), "any"))
        (number("top_p", "Top-p", settings.top_p.to_string(), "any"))
        (number("top_k", "Top-k (0 is all)", settings.top_k.to_string(), "1"))
        (number("min_p", "Min-p", settings.min_p.to_string(), "any"))
        (number("repetition_penalty", "Repetition penalty", settings.repetition_penalty.to_string(), "any"))
        (number("max_tokens", "Longest answer in tokens", settings.max_tokens.to_string(), "1"))
        (number("seed", "Seed", settings.seed.to_string(), "1"))
        "</fieldset>\n</details>\n"
    ]
}
