//! Conversion of turns to ids: the prompt with an environment's opening, and an answer as the ids that follow a turn.
//!
//! The policy's own tokens are never tokenized again. An answer consists of the ids that the chat template writes after
//! a turn, found with a one-question conversation, as in TRL.

use gradus_environments as env;
use gradus_environments::CallFormat;
use serde_json::{Map, Value, json};

use super::{Exchange, Prompt, Retokenized, Rollouts, StopReason, Turn};
use crate::data::{Message, TemplateColumns};
use crate::error::{Error, Result, excerpt};
use crate::text::{ChatTemplate, RenderOptions, Tokenizer, think};

/// Parses the tool calls in a turn. The second argument is whether the turn begins within a thought.
pub type ReadCalls = dyn Fn(&str, bool) -> env::ParsedTurn + Send + Sync;

/// The text format of an episode's turns.
pub struct Dialogue {
    /// Converts between text and ids.
    pub tokenizer: Tokenizer,
    /// Renders conversations; without it, texts are concatenated unchanged.
    pub template: Option<ChatTemplate>,
    /// Tool definitions in the form that the template shows.
    pub tools: Vec<Value>,
    /// Ids that end a turn.
    pub stop_ids: Vec<u32>,
    /// Parses tool calls; without it, turns have no calls.
    pub read_calls: Option<Box<ReadCalls>>,
}

impl Dialogue {
    /// Returns the format in which the template writes tool calls: the one that parses its output. If the template
    /// leaves calls out, returns the format that its text mentions.
    ///
    /// # Errors
    /// If there is no template, or its format is not supported.
    pub fn call_format(&self) -> Result<CallFormat> {
        let template = self.template()?;
        let mentioned = || CallFormat::of_template(template.source_with_tools());
        let hint = "set it with `episode: { tool_calls: hermes }` (or `qwen3_coder`, `llama3`, `mistral`)";
        let silent =
            || Error::input("the chat template does not show how the model writes calls of tools").with_hint(hint);
        let arguments = Map::from_iter([("text".to_owned(), json!("water")), ("count".to_owned(), json!([7]))]);
        let call = env::Call { id: Some("000000000".into()), name: self.first_tool(), arguments: Ok(arguments) };
        let conversation = [question(), assistant_message(&[called(&call)])];
        let [whole, head] = self.bare_options();
        let mut rendered = template.render_all(&[(&conversation[..1], head), (&conversation[..], whole)]).into_iter();
        let mut next = || rendered.next().expect("two conversations");
        let (Ok(before), Ok(whole)) = (next(), next()) else { return mentioned().ok_or_else(silent) };
        let behind_question = || whole.text.rsplit_once(QUESTION).map(|(_, ids_after)| ids_after);
        let turn = whole.text.strip_prefix(&before.text).or_else(behind_question).unwrap_or(&whole.text);
        let turn = self.last_mark(turn).map_or(turn, |(mark, at)| &turn[..at - mark.len()]);
        if let Some(format) = CallFormat::that_reads(turn, &call) {
            return Ok(format);
        }
        if !turn.contains(&call.name) {
            return mentioned().ok_or_else(silent);
        }
        let message = format!(
            "the chat template writes calls of tools in a format that gradus does not read: `{}`",
            excerpt(turn.trim(), QUOTED)
        );
        Err(Error::model(template.path(), message).with_hint(hint))
    }

    /// Checks that the template shows the tools and their results.
    ///
    /// # Errors
    /// If there is no template, it leaves one of them out, or it rejects such a conversation.
    pub fn check_tools(&self) -> Result<()> {
        let template = self.template()?;
        let left_out = |what: &str| {
            Error::model(template.path(), format!("the chat template does not show the model {what}"))
                .with_hint("use a template that has a place for tools: `--chat-template qwen`")
        };
        let [_, head] = self.bare_options();
        let shown = template.render(&[question()], &head)?.text;
        let names = self.tools.iter().filter_map(|tool| tool["function"]["name"].as_str());
        if let Some(name) = names.into_iter().find(|name| !shown.contains(name)) {
            return Err(left_out(&format!("the tool `{name}`")));
        }
        let call = env::Call { id: None, name: self.first_tool(), arguments: Ok(Map::new()) };
        let reply = env::Reply::Tool { name: call.name.clone(), id: None, content: "water".into() };
        let turn = env::Turn { calls: vec![call], ..env::Turn::default() };
        let (_, answer) = self.answered(template, self.bare_options(), (&turn, &[reply]), StopReason::StopId)?;
        if answer.contains("water") { Ok(()) } else { Err(left_out("the answer of a tool")) }
    }

    fn template(&self) -> Result<&ChatTemplate> {
        self.template.as_ref().ok_or_else(|| {
            let names = self.tools.iter().filter_map(|tool| tool["function"]["name"].as_str());
            let names = names.collect::<Vec<_>>().join(", ");
            Error::input(format!("the model has no chat template, which would show it the tools ({names})"))
                .with_hint("set one with `--chat-template NAME`")
        })
    }

    fn first_tool(&self) -> String {
        self.tools.first().and_then(|tool| tool["function"]["name"].as_str()).unwrap_or("tool").to_owned()
    }

    /// Returns the options for conversations without a row: without and with the header of the next turn.
    fn bare_options(&self) -> [RenderOptions<'_>; 2] {
        [false, true].map(|add_generation_prompt| RenderOptions {
            tools: Some(&self.tools),
            add_generation_prompt,
            ..RenderOptions::default()
        })
    }

    /// Decodes `ids` into a turn of the policy. `before` are the ids that the policy read before it.
    ///
    /// # Errors
    /// If the ids cannot be decoded.
    pub(super) fn turn(&self, before: &[u32], ids: &[u32]) -> Result<env::Turn> {
        let ids = ids.strip_suffix(self.end_of(ids)).unwrap_or(ids);
        let text = self.tokenizer.decode(ids, true)?;
        let Some(read_calls) = &self.read_calls else {
            return Ok(env::Turn { content: text.clone(), answer: text.clone(), text, ..env::Turn::default() });
        };
        let begins_in_thought = self.ends_in_thought(before)?;
        let env::ParsedTurn { outside, thought, answer, calls } =
            read_calls(&self.tokenizer.decode(ids, false)?, begins_in_thought);
        Ok(env::Turn { text, content: outside.trim().to_owned(), thought, answer, calls })
    }

    /// Whether ids end with the mark that opens a thought. Some chat templates write it before the policy's turn.
    fn ends_in_thought(&self, ids: &[u32]) -> Result<bool> {
        let last = &ids[ids.len().saturating_sub(THOUGHT_IDS)..];
        Ok(self.tokenizer.decode(last, false)?.trim_end().ends_with(think::OPEN))
    }

    /// Returns the stop id at the end of a turn, if it has one.
    fn end_of<'i>(&self, ids: &'i [u32]) -> &'i [u32] {
        match ids.last() {
            Some(last) if self.stop_ids.contains(last) => &ids[ids.len() - 1..],
            _ => &[],
        }
    }

    /// Returns the prompt with `opening` appended to the last user message.
    ///
    /// # Errors
    /// If the template rejects the conversation.
    pub(super) fn opened(&self, prompt: &Prompt, opening: &str) -> Result<Prompt> {
        let (Some(template), Some(messages)) = (&self.template, &prompt.messages) else {
            let text = format!("{}{opening}", prompt.text);
            let ids = self.encode_whole(prompt, &text)?;
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
        let columns = self.template_columns(prompt)?;
        let text = template.render(&messages, &self.options(&columns, true))?.text;
        let ids = self.encode_whole(prompt, &text)?;
        Ok(Prompt { text, ids, messages: Some(messages), ..prompt.clone() })
    }

    /// Returns the ids between a turn that ended with `stop` and the next one: the answer, and what the template writes
    /// around it.
    ///
    /// # Errors
    /// If the template rejects the answer, or does not write it after the turn.
    pub fn answer(
        &self,
        prompt: &Prompt,
        turn: &env::Turn,
        stop: StopReason,
        replies: &[env::Reply],
    ) -> Result<Vec<u32>> {
        let Some(template) = self.template.as_ref().filter(|_| prompt.messages.is_some()) else {
            let text: String = replies.iter().map(env::Reply::content).collect();
            return self.ids_after(&turn.text, &text);
        };
        let columns = self.template_columns(prompt)?;
        let options = [false, true].map(|add_generation_prompt| self.options(&columns, add_generation_prompt));
        let (before, answer) = self.answered(template, options, (turn, replies), stop)?;
        self.ids_after(&before, &answer)
    }

    /// Renders a conversation up to the end of a turn, and the text after it: the replies and the header of the next
    /// turn.
    fn answered(
        &self,
        template: &ChatTemplate,
        [alone, going_on]: [RenderOptions<'_>; 2],
        (turn, replies): (&env::Turn, &[env::Reply]),
        stop: StopReason,
    ) -> Result<(String, String)> {
        let mut refused = None;
        for (assistant_turn, replies) in exchanges(turn, replies) {
            let conversation = [question(), assistant_turn];
            let answered: Vec<Value> = conversation.iter().cloned().chain(replies).collect();
            let rendered =
                template.render_all(&[(&conversation[..], alone.clone()), (&answered[..], going_on.clone())]);
            match rendered.into_iter().collect::<Result<Vec<_>>>() {
                Ok(rendered) => {
                    let (before, after) = (&rendered[0].text, &rendered[1].text);
                    let end = self.end_of_turn(before, after, stop).ok_or_else(|| {
                        let message = "the chat template renders a turn differently when an answer follows, so the answer cannot be separated from it";
                        Error::model(template.path(), message)
                            .with_hint("use a template that never changes the text before: `--chat-template NAME`")
                    })?;
                    return Ok((after[..end].to_owned(), after[end..].to_owned()));
                }
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        Err(refused.expect("there is always an exchange"))
    }

    /// Finds where the turn that ends `before` ends in the longer text `after`. Templates write more after the mark
    /// that ends a turn (a newline), but the sampled turn ends with the mark. Without the mark, the turn ends before
    /// it.
    ///
    /// Templates that show thoughts only in the last turn (Qwen3) write the turn differently in `after`. The number of
    /// marks up to its end is still the same.
    fn end_of_turn(&self, before: &str, after: &str, stop: StopReason) -> Option<usize> {
        let Some((mark, _)) = self.last_mark(before) else { return after.starts_with(before).then_some(before.len()) };
        let nth = before.matches(&mark).count();
        let (at, _) = after.match_indices(&mark).nth(nth - 1)?;
        Some(if stop == StopReason::StopId { at + mark.len() } else { at })
    }

    /// Returns the last end-of-turn mark in `text` and its end position.
    fn last_mark(&self, text: &str) -> Option<(String, usize)> {
        let marks = self.stop_ids.iter().filter_map(|&id| self.tokenizer.token(id));
        marks
            .filter_map(|mark| text.rfind(&mark).map(|at| (at + mark.len(), mark)))
            .max()
            .map(|(end, mark)| (mark, end))
    }

    /// Compares the ids of `episodes` to those of their whole conversations, turn by turn. Turns whose conversation the
    /// chat template rejects are not counted.
    ///
    /// # Errors
    /// If a text cannot be tokenized.
    pub(super) fn retokenized(&self, episodes: &[SampledEpisode<'_>]) -> Result<Vec<Retokenized>> {
        let conversations: Vec<Vec<Value>> = episodes.iter().map(SampledEpisode::conversation).collect();
        let columns: Vec<TemplateColumns<'_>> =
            episodes.iter().map(|episode| self.template_columns(episode.prompt)).collect::<Result<_>>()?;
        let mut requests = Vec::new();
        for ((episode, messages), columns) in episodes.iter().zip(&conversations).zip(&columns) {
            if self.renders(episode.prompt) {
                let ends = episode.ends();
                requests.extend(ends.into_iter().map(|end| (&messages[..end], self.options(columns, true))));
            }
        }
        let mut rendered =
            self.template.as_ref().map_or(Vec::new(), |template| template.render_all(&requests)).into_iter();
        let mut compare = |episode: &SampledEpisode<'_>| -> Result<Retokenized> {
            let (mut counts, mut before, mut at) = (Retokenized::default(), episode.prompt.ids.clone(), 0);
            let mut plain = episode.prompt.text.clone();
            for (turn, exchange) in episode.answered_turns() {
                let text = match self.renders(episode.prompt) {
                    true => rendered.next().expect("one for each answered turn").ok().map(|rendered| rendered.text),
                    false => {
                        plain.push_str(&exchange.turn.text);
                        exchange.observation.replies.iter().for_each(|reply| plain.push_str(reply.content()));
                        Some(plain.clone())
                    }
                };
                let kept = before.len();
                let end = at + turn.drawn + turn.answered;
                before.extend_from_slice(&episode.ids[at..end]);
                at = end;
                let Some(text) = text else { continue };
                let whole = self.encode_whole(episode.prompt, &text)?;
                let same = before.iter().zip(&whole).take_while(|(one, other)| one == other).count();
                if before == whole {
                    counts.clean += 1;
                } else if same >= kept {
                    counts.realigned += 1;
                } else {
                    counts.forked += 1;
                }
                before = whole;
            }
            Ok(counts)
        };
        episodes.iter().map(&mut compare).collect()
    }

    /// Whether the chat template renders conversations that begin with `prompt`.
    fn renders(&self, prompt: &Prompt) -> bool {
        self.template.is_some() && prompt.messages.is_some()
    }

    /// Tokenizes a prompt's text together with the text after it.
    fn encode_whole(&self, prompt: &Prompt, text: &str) -> Result<Vec<u32>> {
        let is_rendered = self.renders(prompt);
        let mut ids = self.tokenizer.encode(text, !is_rendered)?;
        if !is_rendered && self.tokenizer.appends_eos() {
            ids.pop();
        }
        Ok(ids)
    }

    /// Returns what the row of `prompt` gives to the template: nothing if the template does not render it.
    fn template_columns<'p>(&self, prompt: &'p Prompt) -> Result<TemplateColumns<'p>> {
        match self.renders(prompt) {
            true => TemplateColumns::read(&prompt.columns)
                .map_err(|what| Error::input(format!("prompt {}: {what}", prompt.row + 1))),
            false => Ok(TemplateColumns::default()),
        }
    }

    /// Returns the options for conversations of a row with these columns.
    fn options<'o>(&'o self, columns: &'o TemplateColumns<'_>, add_generation_prompt: bool) -> RenderOptions<'o> {
        RenderOptions {
            tools: Some(columns.tools.as_deref().unwrap_or(&self.tools)),
            add_generation_prompt,
            variables: columns.variables.as_deref(),
            ..RenderOptions::default()
        }
    }

    /// Returns the ids of `text` when it follows `before`: a tokenizer may encode the beginning of a text differently
    /// from its middle.
    fn ids_after(&self, before: &str, text: &str) -> Result<Vec<u32>> {
        let beginning = self.tokenizer.encode(before, false)?;
        let mut whole = self.tokenizer.encode(&format!("{before}{text}"), false)?;
        match whole.starts_with(&beginning) {
            true => Ok(whole.split_off(beginning.len())),
            false => self.tokenizer.encode(text, false),
        }
    }
}

/// A sampled episode.
pub(super) struct SampledEpisode<'e> {
    /// Prompt of the episode.
    pub prompt: &'e Prompt,
    /// Ids of all turns and answers.
    pub ids: &'e [u32],
    /// Turns of the episode.
    pub turns: &'e [Turn],
}

impl SampledEpisode<'_> {
    /// Returns the turns whose answers the policy read, with the exchanged texts.
    fn answered_turns(&self) -> impl Iterator<Item = (&Turn, &Exchange)> {
        self.turns.iter().take_while(|turn| turn.answered > 0).filter_map(|turn| Some((turn, turn.exchange.as_ref()?)))
    }

    /// Returns the messages of the prompt, the answered turns and their answers.
    fn conversation(&self) -> Vec<Value> {
        let begins = self.prompt.messages.iter().flatten();
        let mut messages: Vec<Value> =
            begins.map(|message| serde_json::to_value(message).expect("plain data with string keys")).collect();
        for (_, Exchange { turn, observation }) in self.answered_turns() {
            messages.push(turn_message(turn));
            messages.extend(observation.replies.iter().map(message));
        }
        messages
    }

    /// Returns the number of messages up to the end of each answer.
    fn ends(&self) -> Vec<usize> {
        let begins = self.prompt.messages.as_ref().map_or(0, Vec::len);
        let length = |end: &mut usize, (_, exchange): (&Turn, &Exchange)| {
            *end += 1 + exchange.observation.replies.len();
            Some(*end)
        };
        self.answered_turns().scan(begins, length).collect()
    }
}

/// Converts a turn of the policy to a message. Unparsable calls stay in its text.
fn turn_message(turn: &env::Turn) -> Value {
    match readable_calls(turn) {
        Some(calls) if !calls.is_empty() => {
            json!({ "role": "assistant", "content": turn.content, "tool_calls": calls })
        }
        _ => json!({ "role": "assistant", "content": turn.text }),
    }
}

/// Returns the calls of a turn in the form of messages, or `None` if one of them could not be parsed.
fn readable_calls(turn: &env::Turn) -> Option<Vec<Value>> {
    turn.calls.iter().map(|call| call.arguments.is_ok().then(|| called(call))).collect()
}

/// Returns the completion of rollout `i` as messages, in the form that TRL gives to reward functions: the turns of the policy and the answers
/// that it read. A turn that the environment did not answer, because it failed, is a message with the turn's text. `None` if the rollout has
/// no episode.
///
/// # Errors
/// If the text of such a turn cannot be found, as in [`Rollouts::ranges`].
pub fn completion_messages(rollouts: &Rollouts, i: usize) -> Result<Option<Vec<Value>>> {
    let rollout = rollouts.rollout(i);
    if rollout.episode.is_none() {
        return Ok(None);
    }
    let (mut messages, mut at) = (Vec::new(), 0);
    for turn in &rollout.turns {
        match &turn.exchange {
            Some(Exchange { turn: sampled, observation }) => {
                messages.push(sampled_message(sampled));
                if turn.answered > 0 {
                    messages.extend(observation.replies.iter().map(message));
                }
            }
            None => {
                let ranges = &rollouts.ranges(i)?[at..at + turn.drawn];
                let text = ranges.iter().map(|range| &rollout.completion[range.clone()]).collect::<String>();
                messages.push(json!({ "role": "assistant", "content": text }));
            }
        }
        at += turn.drawn + turn.answered;
    }
    Ok(Some(messages))
}

/// Converts a turn of the policy to a message in TRL's form. A turn with unparsable calls is its text.
fn sampled_message(turn: &env::Turn) -> Value {
    let Some(calls) = readable_calls(turn) else { return json!({ "role": "assistant", "content": turn.text }) };
    let mut message = json!({ "role": "assistant", "content": turn.answer });
    if !turn.thought.is_empty() {
        message["reasoning_content"] = json!(turn.thought);
    }
    if !calls.is_empty() {
        message["tool_calls"] = Value::Array(calls);
    }
    message
}

/// Maximum number of ids of the mark that opens a thought, and of the white space after it.
const THOUGHT_IDS: usize = 16;

const QUESTION: &str = "question";

/// Maximum number of characters of a turn that a message quotes.
const QUOTED: usize = 120;

/// Returns the question used to find out how the template writes turns.
fn question() -> Value {
    json!({ "role": "user", "content": QUESTION })
}

/// Returns an assistant turn with calls.
fn assistant_message(calls: &[Value]) -> Value {
    json!({ "role": "assistant", "content": "", "tool_calls": calls })
}

/// Converts a call to the form that templates read.
fn called(call: &env::Call) -> Value {
    let arguments = call.arguments.as_ref().ok();
    let mut value =
        json!({ "type": "function", "function": { "name": call.name, "arguments": arguments.unwrap_or(&Map::new()) } });
    if let Some(id) = &call.id {
        value["id"] = json!(id);
    }
    value
}

/// Converts an assistant turn and its `replies` to messages: first unchanged, then in variants that stricter templates
/// accept.
///
/// Templates read tool names and call ids from the turn; arguments are left out, as in TRL. Some templates reject
/// several calls in a turn (Llama 3). Some require ids of nine letters or digits (Mistral), but a policy can write
/// others or none.
fn exchanges(turn: &env::Turn, replies: &[env::Reply]) -> Vec<(Value, Vec<Value>)> {
    let own: Vec<Value> = replies.iter().map(message).collect();
    let are_of_tools = replies.iter().any(|reply| matches!(reply, env::Reply::Tool { .. }));
    if !are_of_tools || turn.calls.is_empty() {
        return vec![(json!({ "role": "assistant", "content": "answer" }), own)];
    }
    let bare = |call: &env::Call| called(&env::Call { arguments: Ok(Map::new()), ..call.clone() });
    let mut calls: Vec<Value> = turn.calls.iter().map(bare).collect();
    let mut ways = vec![(assistant_message(&calls), own.clone()), (assistant_message(&calls[..1]), own.clone())];
    let mut numbered = own;
    let of_tools = numbered.iter_mut().filter(|reply| reply["role"] == "tool");
    of_tools.enumerate().for_each(|(i, reply)| reply["tool_call_id"] = json!(format!("{i:09}")));
    calls.iter_mut().enumerate().for_each(|(i, call)| call["id"] = json!(format!("{i:09}")));
    ways.extend([(assistant_message(&calls), numbered.clone()), (assistant_message(&calls[..1]), numbered)]);
    ways
}

/// Converts a reply to a message of the conversation.
pub(crate) fn message(reply: &env::Reply) -> Value {
    match reply {
        env::Reply::User { content } | env::Reply::Tokens { content, .. } => {
            json!({ "role": "user", "content": content })
        }
        env::Reply::Tool { name, id, content } => {
            let mut value = json!({ "role": "tool", "name": name, "content": content });
            if let Some(id) = id {
                value["tool_call_id"] = json!(id);
            }
            value
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::reward::test_rollouts::rollouts;
    use crate::rollout::{Episode, EpisodeEnd, EpisodeObject, Rollout};

    const TOKENIZER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/parity/tool_calls/tokenizer");

    #[test]
    fn the_text_before_a_turn_may_open_its_thought() {
        let tokenizer = Tokenizer::from_dir(Path::new(TOKENIZER)).expect("a tokenizer");
        let ids = |text: &str| tokenizer.encode(text, false).expect("ids");
        let read = |text: &str, begins_in_thought: bool| CallFormat::Hermes.read(text, begins_in_thought);
        let dialogue = Dialogue {
            tokenizer: tokenizer.clone(),
            template: None,
            tools: Vec::new(),
            stop_ids: Vec::new(),
            read_calls: Some(Box::new(read)),
        };
        let said = ids("perhaps <tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>");
        for (before, calls) in [
            ("<|im_start|>assistant\n<think>\n", 0),
            ("<|im_start|>assistant\n<think>", 0),
            ("<|im_start|>assistant\n", 1),
            ("<|im_start|>assistant\n<think>\n\n</think>\n\n", 1),
            ("", 1),
        ] {
            let turn = dialogue.turn(&ids(before), &said).expect("a turn");
            assert_eq!(turn.calls.len(), calls, "{before:?}");
        }
    }

    #[test]
    fn an_episode_is_a_list_of_messages() {
        let says = |answered: usize, turn: env::Turn, replies: Vec<env::Reply>| {
            let observation = env::Observation { replies, ..env::Observation::default() };
            Turn { drawn: 1, answered, exchange: Some(Exchange { turn, observation }) }
        };
        let calls = |arguments: std::result::Result<Map<String, Value>, String>| {
            vec![env::Call { id: None, name: "add".into(), arguments }]
        };
        let three = || vec![env::Reply::Tool { name: "add".into(), id: None, content: "3".into() }];
        let again = vec![env::Reply::User { content: "Again.".into() }];
        let added = calls(Ok(Map::from_iter([("a".to_owned(), json!(1))])));
        let broken = calls(Err("it is no JSON".into()));
        let tokenizer = Tokenizer::from_dir(Path::new(TOKENIZER)).expect("a tokenizer");
        let last = " Then it is 4.";
        let last_ids = tokenizer.encode(last, false).expect("ids");
        let ids = [tokenizer.encode("One, two, three, four.", false).expect("ids"), last_ids.clone()].concat();
        let before = ids.len() - last_ids.len();
        let text = tokenizer.decode(&ids, true).expect("a text");
        let mut rollouts = rollouts([("prompt", Value::Null, "")]);
        rollouts.tokenizer = Some(tokenizer);
        rollouts.prompts[0].ids.clear();
        rollouts.rollouts = vec![Rollout::one_turn(0, text, ids, StopReason::StopId)];
        let of = |rollouts: &Rollouts| json!(completion_messages(rollouts, 0).expect("messages"));
        assert_eq!(of(&rollouts), Value::Null);
        let mut turns = vec![
            says(2, env::Turn { thought: "hm".into(), calls: added, ..env::Turn::default() }, three()),
            says(2, env::Turn { text: "<tool_call>{".into(), calls: broken, ..env::Turn::default() }, again),
            says(0, env::Turn { answer: "It is 3.".into(), ..env::Turn::default() }, three()),
        ];
        let call = json!({ "type": "function", "function": { "name": "add", "arguments": { "a": 1 } } });
        let expected = json!([
            { "role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [call] },
            { "role": "tool", "name": "add", "content": "3" },
            { "role": "assistant", "content": "<tool_call>{" },
            { "role": "user", "content": "Again." },
            { "role": "assistant", "content": "It is 3." },
        ]);
        let episode = |end: EpisodeEnd| Episode {
            name: "step 1, prompt 1, completion 1".into(),
            opening: None,
            end,
            reward: None,
            retokenized: Retokenized::default(),
            object: EpisodeObject::default(),
        };
        rollouts.rollouts[0].episode = Some(episode(EpisodeEnd::Done));
        rollouts.rollouts[0].turns = turns.clone();
        assert_eq!(of(&rollouts), expected);
        // The environment failed at the last turn, or before the first one.
        rollouts.rollouts[0].episode = Some(episode(EpisodeEnd::Failed("it is down".into())));
        turns.truncate(1);
        turns[0].drawn = before - turns[0].answered;
        turns.push(Turn::unanswered(last_ids.len()));
        rollouts.rollouts[0].turns = turns;
        let expected = json!([expected[0], expected[1], { "role": "assistant", "content": last }]);
        assert_eq!(of(&rollouts), expected);
        rollouts.rollouts[0].turns = vec![Turn::unanswered(before + last_ids.len())];
        let expected = json!([{ "role": "assistant", "content": rollouts.rollouts[0].completion }]);
        assert_eq!(of(&rollouts), expected);
    }
}
