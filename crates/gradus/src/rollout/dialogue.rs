//! How turns are written: the prompt with what an environment adds to it, and an answer as the ids that follow a turn.
//!
//! What the policy drew is never tokenized again. An answer is the ids that the chat template writes after a turn, found from
//! a conversation of one question, as TRL finds them.

use gradus_environments as env;
use serde_json::{Map, Value, json};

use super::{Exchange, Prompt, Retokenized, StopReason, Turn};
use crate::data::Message;
use crate::error::{Error, Result};
use crate::text::{ChatTemplate, RenderOptions, Tokenizer};

/// Reads the calls of tools in a turn: the text outside of them, and the calls.
pub type ReadCalls = dyn Fn(&str) -> (String, Vec<env::Call>) + Send + Sync;

/// How the turns of episodes are written.
pub struct Dialogue {
    /// Turns text into ids and back.
    pub tokenizer: Tokenizer,
    /// Writes conversations; none: texts follow each other as they are.
    pub template: Option<ChatTemplate>,
    /// The tools, as the template shows them.
    pub tools: Vec<Value>,
    /// Ids that end a turn.
    pub stop_ids: Vec<u32>,
    /// Reads calls; none: a turn has none.
    pub read_calls: Option<Box<ReadCalls>>,
}

impl Dialogue {
    /// What the policy wrote with `ids`.
    ///
    /// # Errors
    /// When the ids cannot be decoded.
    pub(super) fn turn(&self, ids: &[u32]) -> Result<env::Turn> {
        let ids = ids.strip_suffix(self.end_of(ids)).unwrap_or(ids);
        let text = self.tokenizer.decode(ids, true)?;
        let Some(read_calls) = &self.read_calls else {
            return Ok(env::Turn { content: text.clone(), text, calls: Vec::new() });
        };
        let (content, calls) = read_calls(&self.tokenizer.decode(ids, false)?);
        Ok(env::Turn { text, content, calls })
    }

    /// The stop id at the end of a turn, where it has one.
    fn end_of<'i>(&self, ids: &'i [u32]) -> &'i [u32] {
        match ids.last() {
            Some(last) if self.stop_ids.contains(last) => &ids[ids.len() - 1..],
            _ => &[],
        }
    }

    /// The prompt with `opening` behind the last message of the user.
    ///
    /// # Errors
    /// When the template refuses the conversation.
    pub(super) fn opened(&self, prompt: &Prompt, opening: &str) -> Result<Prompt> {
        let (Some(template), Some(messages)) = (&self.template, &prompt.messages) else {
            let text = format!("{}{opening}", prompt.text);
            let mut ids = self.tokenizer.encode(&text, true)?;
            if self.tokenizer.appends_eos() {
                ids.pop();
            }
            return Ok(Prompt { text, ids, ..prompt.clone() });
        };
        let mut messages = messages.clone();
        match messages.iter_mut().rfind(|message| message.role == "user") {
            Some(last) => {
                last.content.push_str(opening);
                last.extra.remove("content");
            }
            None => messages.push(Message::new("user", opening)),
        }
        let text = template.render(&messages, &self.options(prompt, true))?.text;
        let ids = self.tokenizer.encode(&text, false)?;
        Ok(Prompt { text, ids, messages: Some(messages), ..prompt.clone() })
    }

    /// The ids that stand between a turn, which ended as `stop` says, and the next one: the answer, and what the template writes
    /// around it.
    ///
    /// # Errors
    /// When the template refuses the answer, or does not write it behind the turn.
    pub(super) fn answer(
        &self,
        prompt: &Prompt,
        turn: &env::Turn,
        stop: StopReason,
        replies: &[env::Reply],
    ) -> Result<Vec<u32>> {
        let Some(template) = self.template.as_ref().filter(|_| prompt.messages.is_some()) else {
            let text: String = replies.iter().map(env::Reply::content).collect();
            return self.behind(&turn.text, &text);
        };
        let conversation: Vec<Value> = [json!({ "role": "user", "content": "question" }), asked(turn, replies)].into();
        let answered: Vec<Value> = conversation.iter().cloned().chain(replies.iter().map(message)).collect();
        let requests = [(&conversation[..], self.options(prompt, false)), (&answered[..], self.options(prompt, true))];
        let mut rendered = template.render_all(&requests).into_iter();
        let mut next = || rendered.next().expect("two conversations");
        let (before, after) = (next()?.text, next()?.text);
        // Templates write more behind the mark that ends a turn (a new line): the turn that was drawn ends with the mark.
        let marks = self.stop_ids.iter().filter_map(|&id| self.tokenizer.token(id));
        let end = marks
            .filter_map(|mark| Some(before.rfind(&mark)?..before.rfind(&mark)? + mark.len()))
            .max_by_key(|m| m.end);
        let cut = match (end, stop) {
            (Some(mark), StopReason::StopId) => mark.end,
            (Some(mark), _) => mark.start,
            (None, _) => before.len(),
        };
        if !after.starts_with(&before[..cut]) {
            let message = "the chat template writes a turn otherwise when an answer follows, so the answer cannot be told from it";
            return Err(Error::model(template.path(), message)
                .with_hint("use a template that never changes what stands before: `--chat-template NAME`"));
        }
        self.behind(&before[..cut], &after[cut..])
    }

    /// How the ids of `episodes` compare with those of their whole conversations, turn by turn. Turns whose conversation the chat
    /// template refuses are not counted.
    ///
    /// # Errors
    /// When a text cannot be tokenized.
    pub(super) fn retokenized(&self, episodes: &[Held<'_>]) -> Result<Vec<Retokenized>> {
        let conversations: Vec<Vec<Value>> = episodes.iter().map(Held::conversation).collect();
        let mut requests = Vec::new();
        for (held, messages) in episodes.iter().zip(&conversations).filter(|(held, _)| self.renders(held.prompt)) {
            let ends = held.ends();
            requests.extend(ends.into_iter().map(|end| (&messages[..end], self.options(held.prompt, true))));
        }
        let mut rendered =
            self.template.as_ref().map_or(Vec::new(), |template| template.render_all(&requests)).into_iter();
        let mut compare = |held: &Held<'_>| -> Result<Retokenized> {
            let (mut counts, mut before, mut at) = (Retokenized::default(), held.prompt.ids.clone(), 0);
            let mut plain = held.prompt.text.clone();
            for (turn, exchange) in held.answered() {
                let text = match self.renders(held.prompt) {
                    true => rendered.next().expect("one for each answered turn").ok().map(|rendered| rendered.text),
                    false => {
                        plain.push_str(&exchange.said.text);
                        exchange.observation.replies.iter().for_each(|reply| plain.push_str(reply.content()));
                        Some(plain.clone())
                    }
                };
                let end = at + turn.drawn + turn.answered;
                let appended = before.iter().chain(&held.ids[at..end]);
                let kept = before.len();
                let length = kept + end - at;
                at = end;
                let Some(text) = text else { continue };
                let whole = self.encode_whole(held.prompt, &text)?;
                let same = appended.zip(&whole).take_while(|(one, other)| one == other).count();
                match same {
                    _ if same == whole.len() && same == length => counts.clean += 1,
                    _ if same >= kept => counts.realigned += 1,
                    _ => counts.forked += 1,
                }
                before = whole;
            }
            Ok(counts)
        };
        episodes.iter().map(&mut compare).collect()
    }

    /// Whether the chat template writes the conversations that begin with `prompt`.
    fn renders(&self, prompt: &Prompt) -> bool {
        self.template.is_some() && prompt.messages.is_some()
    }

    /// The ids of the whole text of an episode.
    fn encode_whole(&self, prompt: &Prompt, text: &str) -> Result<Vec<u32>> {
        let is_rendered = self.renders(prompt);
        let mut ids = self.tokenizer.encode(text, !is_rendered)?;
        if !is_rendered && self.tokenizer.appends_eos() {
            ids.pop();
        }
        Ok(ids)
    }

    /// How conversations that begin with `prompt` are rendered.
    fn options<'o>(&'o self, prompt: &'o Prompt, add_generation_prompt: bool) -> RenderOptions<'o> {
        RenderOptions {
            tools: Some(&self.tools),
            add_generation_prompt,
            variables: variables(prompt),
            ..RenderOptions::default()
        }
    }

    /// The ids of `text` where it stands behind `before`: a tokenizer may write the beginning of a text otherwise than its middle.
    fn behind(&self, before: &str, text: &str) -> Result<Vec<u32>> {
        let beginning = self.tokenizer.encode(before, false)?;
        let mut whole = self.tokenizer.encode(&format!("{before}{text}"), false)?;
        match whole.starts_with(&beginning) {
            true => Ok(whole.split_off(beginning.len())),
            false => self.tokenizer.encode(text, false),
        }
    }
}

/// An episode as it was sampled.
pub(super) struct Held<'e> {
    /// What it began with.
    pub prompt: &'e Prompt,
    /// The ids of all turns and answers.
    pub ids: &'e [u32],
    /// The turns.
    pub turns: &'e [Turn],
}

impl Held<'_> {
    /// The turns whose answers the policy read, with what was said.
    fn answered(&self) -> impl Iterator<Item = (&Turn, &Exchange)> {
        self.turns.iter().take_while(|turn| turn.answered > 0).filter_map(|turn| Some((turn, turn.exchange.as_ref()?)))
    }

    /// The messages of the prompt, of the answered turns, and of their answers.
    fn conversation(&self) -> Vec<Value> {
        let begins = self.prompt.messages.iter().flatten();
        let mut messages: Vec<Value> =
            begins.map(|message| serde_json::to_value(message).expect("plain data with string keys")).collect();
        for (_, Exchange { said, observation }) in self.answered() {
            messages.push(turn_message(said));
            messages.extend(observation.replies.iter().map(message));
        }
        messages
    }

    /// How many messages there are behind each answer.
    fn ends(&self) -> Vec<usize> {
        let begins = self.prompt.messages.as_ref().map_or(0, Vec::len);
        let length = |end: &mut usize, (_, exchange): (&Turn, &Exchange)| {
            *end += 1 + exchange.observation.replies.len();
            Some(*end)
        };
        self.answered().scan(begins, length).collect()
    }
}

/// A turn of the policy as a message. Calls that could not be read stand in its text.
fn turn_message(turn: &env::Turn) -> Value {
    let call = |call: &env::Call| {
        let arguments = call.arguments.as_ref().ok()?;
        let mut value = json!({ "type": "function", "function": { "name": call.name, "arguments": arguments } });
        if let Some(id) = &call.id {
            value["id"] = json!(id);
        }
        Some(value)
    };
    match turn.calls.iter().map(call).collect::<Option<Vec<Value>>>() {
        Some(calls) if !calls.is_empty() => {
            json!({ "role": "assistant", "content": turn.content, "tool_calls": calls })
        }
        _ => json!({ "role": "assistant", "content": turn.text }),
    }
}

/// The row's own variables of the template.
fn variables(prompt: &Prompt) -> Option<&Map<String, Value>> {
    prompt.columns.get("chat_template_kwargs").and_then(Value::as_object)
}

/// A turn of the assistant that `replies` answer. Templates read the names of the tools from it.
fn asked(turn: &env::Turn, replies: &[env::Reply]) -> Value {
    let are_of_tools = replies.iter().any(|reply| matches!(reply, env::Reply::Tool { .. }));
    if !are_of_tools || turn.calls.is_empty() {
        return json!({ "role": "assistant", "content": "answer" });
    }
    let call = |call: &env::Call| {
        let mut value = json!({ "type": "function", "function": { "name": call.name, "arguments": {} } });
        if let Some(id) = &call.id {
            value["id"] = json!(id);
        }
        value
    };
    json!({ "role": "assistant", "content": "", "tool_calls": turn.calls.iter().map(call).collect::<Vec<_>>() })
}

/// A reply as a message of the conversation.
pub(crate) fn message(reply: &env::Reply) -> Value {
    match reply {
        env::Reply::User { content } => json!({ "role": "user", "content": content }),
        env::Reply::Tool { name, id, content } => {
            let mut value = json!({ "role": "tool", "name": name, "content": content });
            if let Some(id) = id {
                value["tool_call_id"] = json!(id);
            }
            value
        }
    }
}
