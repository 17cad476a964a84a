//! State of a conversation: the models, the messages, and the display of answers.

use std::fs::File;
use std::io::Write;
use std::sync::atomic::Ordering;
use std::time::Instant;

use gradus::data::Message;
use gradus::inference::{Answer, AnswerEnd, ChatFormat, ChatJudge, ChatModel, ChatSettings, Flow};
use gradus::text::think::{AnswerPart, parts};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::columns::Columns;
use super::commands::{Command, HELP, set, show};
use super::{ANSWER, ANSWERING, LISTENING, STOPPING, is_dialogue};
use crate::output::Output;
use crate::report;

/// A model with its version of the conversation.
pub struct Speaker {
    name: String,
    model: ChatModel,
    messages: Vec<Message>,
}

impl Speaker {
    /// Creates a speaker without messages. `name` is its display name.
    pub fn new(name: &str, model: ChatModel) -> Self {
        Self { name: name.to_owned(), model, messages: Vec::new() }
    }
}

/// A conversation with one or two models.
pub struct Session {
    speakers: Vec<Speaker>,
    judge: Option<ChatJudge>,
    system: Option<String>,
    settings: ChatSettings,
    /// Number of prompts answered so far, over all conversations. It selects the random streams of an answer.
    turn: u64,
    /// Number of answers to the current prompt so far.
    attempt: u64,
}

/// An answer as one JSON object.
#[derive(Serialize)]
struct AnswerLine<'a> {
    model: &'a str,
    turn: u64,
    attempt: u64,
    prompt: &'a str,
    completion: String,
    /// Sampled text including thoughts, if it differs from the completion.
    #[serde(skip_serializing_if = "Option::is_none")]
    raw: Option<&'a str>,
    tokens: usize,
    tokens_per_s: f64,
    end: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reward: Option<f32>,
}

/// An answer with its measurements.
struct GivenAnswer {
    answer: Answer,
    tokens_per_s: f64,
    reward: Option<f32>,
}

impl Session {
    /// Creates a conversation without messages.
    pub fn new(
        speakers: Vec<Speaker>,
        judge: Option<ChatJudge>,
        system: Option<String>,
        settings: ChatSettings,
    ) -> Self {
        Self { speakers, judge, system, settings, turn: 0, attempt: 0 }
    }

    /// Returns a text that names the models.
    pub fn greeting(&self) -> String {
        let format = |format| match format {
            ChatFormat::Template => "its chat template",
            ChatFormat::Hh => "Human: / Assistant:",
            ChatFormat::Plain => "plain text",
        };
        let who =
            |speaker: &Speaker| format!("{} ({})", speaker.model.directory().display(), format(speaker.model.format()));
        let names: Vec<String> = self.speakers.iter().map(who).collect();
        format!("{}\n`/help` lists the commands", names.join("\n"))
    }

    /// Executes an input line.
    pub fn obey(&mut self, command: Command, out: &Output) -> anyhow::Result<()> {
        match command {
            Command::Say(text) => {
                self.turn += 1;
                self.attempt = 0;
                let first = self.system.iter().map(|system| Message::new("system", system));
                for speaker in &mut self.speakers {
                    if speaker.messages.is_empty() {
                        speaker.messages.extend(first.clone());
                    }
                    speaker.messages.push(Message::new("user", &text));
                }
                self.answer(out)?;
            }
            Command::Regenerate => {
                for Speaker { messages, .. } in &mut self.speakers {
                    messages.pop_if(|message| message.role == "assistant");
                }
                if self.prompt().is_none() {
                    out.warn("there is no prompt to answer yet");
                    return Ok(());
                }
                self.attempt += 1;
                self.answer(out)?;
            }
            Command::System(text) => self.set_system(text, out),
            Command::Set(None) => out.note(show(&self.settings)),
            Command::Set(Some((key, value))) => match set(&mut self.settings, &key, &value) {
                Ok(()) => out.note(show(&self.settings)),
                Err(message) => out.warn(message),
            },
            Command::Reset => {
                self.speakers.iter_mut().for_each(|speaker| speaker.messages.clear());
                out.note("a new conversation");
            }
            Command::Save(path) => match self.save(&path) {
                Ok(()) => out.note(format_args!("saved to `{path}`")),
                Err(error) => out.warn(format_args!("`{path}`: {error}")),
            },
            Command::Help => out.note(HELP),
            Command::Quit => {}
        }
        Ok(())
    }

    fn set_system(&mut self, text: String, out: &Output) {
        self.system = Some(text).filter(|text| !text.is_empty());
        for Speaker { messages, .. } in &mut self.speakers {
            messages.retain(|message| message.role != "system");
            if let Some(system) = self.system.as_ref().filter(|_| !messages.is_empty()) {
                messages.insert(0, Message::new("system", system));
            }
        }
        out.note(if self.system.is_some() { "the system prompt is set" } else { "no system prompt" });
    }

    /// Returns the prompt to answer: the last message, if it is the user's.
    fn prompt(&self) -> Option<&str> {
        self.speakers[0]
            .messages
            .last()
            .filter(|message| message.role == "user")
            .map(|message| message.content.as_str())
    }

    /// Lets all models answer. A prompt that cannot be answered is removed.
    fn answer(&mut self, out: &Output) -> anyhow::Result<()> {
        ANSWER.store(ANSWERING, Ordering::SeqCst);
        let given = self.answers(out);
        ANSWER.store(LISTENING, Ordering::SeqCst);
        let given = match given {
            Ok(given) => given,
            Err(error) if error.is::<gradus::Error>() => {
                self.take_back();
                // A person can react to the error. A pipe must fail visibly.
                if !is_dialogue() {
                    return Err(error);
                }
                report::show(&error, out);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        for (speaker, given) in self.speakers.iter_mut().zip(&given) {
            speaker.messages.push(given.answer.message());
        }
        if given.len() < self.speakers.len() {
            self.take_back();
        }
        Ok(())
    }

    /// Generates all answers and shows them as they grow: in columns if there are two and the terminal is wide enough, otherwise one after
    /// the other.
    fn answers(&mut self, out: &Output) -> anyhow::Result<Vec<GivenAnswer>> {
        if let ([first, second], false, Some(size)) = (self.speakers.as_slice(), out.is_json(), out.size())
            && let Some(columns) = Columns::new([&first.name, &second.name], size)
        {
            return self.side_by_side(columns, out);
        }
        let prompt = self.prompt().unwrap_or_default().to_owned();
        let mut given = Vec::new();
        for i in 0..self.speakers.len() {
            if self.speakers.len() > 1 && !out.is_json() {
                out.text(&format!("[{}]\n", self.speakers[i].name))?;
            }
            let found = self.one(i, out)?;
            if out.is_json() {
                out.json_line(&line(&self.speakers[i].name, (self.turn, self.attempt), &prompt, &found))?;
            } else {
                out.text("\n")?;
                out.note(out.paint().faint(&remark(&found)));
            }
            let stopped = found.answer.end == AnswerEnd::Interrupted;
            given.push(found);
            if stopped {
                break;
            }
        }
        Ok(given)
    }

    /// Removes the last prompt and everything after it from all conversations.
    fn take_back(&mut self) {
        for Speaker { messages, .. } in &mut self.speakers {
            let last = messages.iter().rposition(|message| message.role == "user");
            messages.truncate(last.unwrap_or(0));
        }
    }

    /// Generates the answer of one model and shows it as it grows.
    fn one(&mut self, i: usize, out: &Output) -> anyhow::Result<GivenAnswer> {
        let Speaker { model, messages, .. } = &mut self.speakers[i];
        let begins_inside = model.text_of(messages)?.trim_end().ends_with(gradus::text::think::OPEN);
        let (started, mut printer, mut closed) = (Instant::now(), AnswerPrinter::new(begins_inside), None);
        let mut on_text = |new: &str| {
            if !out.is_json() && closed.is_none() {
                closed = printer.say(new, out).err();
            }
            if closed.is_some() { Flow::Stop } else { flow() }
        };
        let answer = model.answer(messages, &self.settings, (self.turn, self.attempt), &mut on_text)?;
        if let Some(error) = closed {
            return Err(error);
        }
        self.measured(i, answer, started.elapsed().as_secs_f64())
    }

    /// Generates both answers, alternating token by token.
    fn side_by_side(&mut self, mut columns: Columns, out: &Output) -> anyhow::Result<Vec<GivenAnswer>> {
        let mut seconds = [0.0; 2];
        for (speaker, seconds) in self.speakers.iter_mut().zip(&mut seconds) {
            let started = Instant::now();
            speaker.model.begin(&speaker.messages, &self.settings, (self.turn, self.attempt))?;
            *seconds += started.elapsed().as_secs_f64();
        }
        let (mut texts, mut given) = ([String::new(), String::new()], [None, None]);
        while given.iter().any(Option::is_none) {
            for i in 0..2 {
                if given[i].is_some() {
                    continue;
                }
                let started = Instant::now();
                let text = &mut texts[i];
                let answer = self.speakers[i].model.step(&mut |new| {
                    text.push_str(new);
                    flow()
                })?;
                seconds[i] += started.elapsed().as_secs_f64();
                if let Some(answer) = answer {
                    let found = self.measured(i, answer, seconds[i])?;
                    texts[i] = format!("{}\n\n{}", found.answer.text.trim(), remark(&found));
                    given[i] = Some(found);
                }
            }
            let ended = [0, 1].map(|i: usize| given[i].is_some());
            out.drawn(&columns.show([&texts[0], &texts[1]], ended))?;
        }
        Ok(given.into_iter().flatten().collect())
    }

    /// Adds the token rate and the reward to an answer.
    fn measured(&mut self, i: usize, answer: Answer, seconds: f64) -> anyhow::Result<GivenAnswer> {
        let tokens_per_s = answer.tokens as f64 / seconds.max(1e-9);
        let messages = &self.speakers[i].messages;
        let reward = self.judge.as_mut().map(|judge| judge.reward(messages, &answer)).transpose()?;
        Ok(GivenAnswer { answer, tokens_per_s, reward })
    }

    /// Appends each model's conversation to a file, as a training row.
    ///
    /// # Errors
    /// There is nothing to learn from, or the file cannot be written.
    fn save(&self, path: &str) -> Result<(), String> {
        let mut rows = String::new();
        for Speaker { name, messages, .. } in &self.speakers {
            let mut row = training_row(messages)?;
            if self.speakers.len() > 1 {
                row.insert("model".into(), json!(name));
            }
            rows += &Value::Object(row).to_string();
            rows.push('\n');
        }
        let file = File::options().create(true).append(true).open(path);
        file.and_then(|mut file| file.write_all(rows.as_bytes())).map_err(|error| error.to_string())
    }
}

/// Converts a conversation to a training row.
///
/// # Errors
/// It has no answer, or an empty one.
fn training_row(messages: &[Message]) -> Result<Map<String, Value>, String> {
    let answers: Vec<&Message> = messages.iter().filter(|message| message.role == "assistant").collect();
    if answers.is_empty() {
        return Err("nothing was saved: there is no answer yet".into());
    }
    if answers.iter().any(|answer| answer.content.trim().is_empty()) {
        return Err("nothing was saved: an answer is empty. `/regenerate` replaces the last answer".into());
    }
    let message = |message: &Message| json!({ "role": message.role, "content": message.content });
    Ok(Map::from_iter([("messages".to_owned(), messages.iter().map(message).collect::<Value>())]))
}

/// Returns whether an answer continues. Ctrl-C stops it.
fn flow() -> Flow {
    if ANSWER.load(Ordering::SeqCst) == STOPPING { Flow::Stop } else { Flow::Continue }
}

fn line<'a>(model: &'a str, (turn, attempt): (u64, u64), prompt: &'a str, given: &'a GivenAnswer) -> AnswerLine<'a> {
    let completion = given.answer.without_thoughts();
    let raw = Some(given.answer.text.as_str()).filter(|raw| *raw != completion);
    AnswerLine {
        model,
        turn,
        attempt,
        prompt,
        completion,
        raw,
        tokens: given.answer.tokens,
        tokens_per_s: given.tokens_per_s,
        end: given.answer.end.name(),
        reward: given.reward,
    }
}

/// Summarizes the measurements of an answer.
fn remark(given: &GivenAnswer) -> String {
    let end = match given.answer.end {
        AnswerEnd::Stop => "",
        AnswerEnd::Length => ", cut off",
        AnswerEnd::Interrupted => ", stopped",
    };
    let reward = given.reward.map_or(String::new(), |reward| format!(", reward {reward:.3}"));
    format!("({} tokens, {:.1}/s{end}{reward})", given.answer.tokens, given.tokens_per_s)
}

/// Shows an answer as it grows, with thoughts dimmed.
struct AnswerPrinter {
    text: String,
    begins_inside: bool,
    shown: usize,
}

impl AnswerPrinter {
    fn new(begins_inside: bool) -> Self {
        Self { text: String::new(), begins_inside, shown: 0 }
    }

    fn say(&mut self, new: &str, out: &Output) -> anyhow::Result<()> {
        self.text += new;
        let mut at = 0;
        for part in parts(&self.text, self.begins_inside) {
            let (AnswerPart::Thought(text) | AnswerPart::Answer(text)) = part;
            let end = at + text.len();
            if end > self.shown {
                let piece = &text[self.shown.saturating_sub(at)..];
                match part {
                    AnswerPart::Thought(_) => out.text(&out.stdout_paint().faint(piece))?,
                    AnswerPart::Answer(_) => out.text(piece)?,
                }
                self.shown = end;
            }
            at = end;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_conversations_with_answers_become_training_rows() {
        let [question, answer, empty] =
            [("user", "Tea?"), ("assistant", "Yes."), ("assistant", " ")].map(|(role, text)| Message::new(role, text));
        let row = training_row(&[question.clone(), answer.clone()]).unwrap();
        assert_eq!(row["messages"][1], json!({ "role": "assistant", "content": "Yes." }));
        let refused = |messages: &[Message]| training_row(messages).unwrap_err();
        assert!(refused(&[]).contains("there is no answer yet"));
        assert!(refused(&[question.clone(), answer, question, empty]).contains("an answer is empty"));
    }
}
