//! `/v1/chat/completions`: answers to conversations.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use gradus::data::Message;
use gradus::generate::SamplingParams;
use gradus::inference::{CompletionRequest, TemplateInputs};
use serde_json::{Map, Value, json};

use super::fields::{Body, Fields};
use super::options::{CompletionOptions, LIKELIEST_MAX, as_id};
use super::refused::{Refused, json_response};
use super::tools::{Call, ToolCallParser};
use super::{end_stream, finish_reason, head, refused_prompt, refused_text, served, usage};
use crate::app::App;
use crate::events::Events;
use crate::model_queue::{CompletionEvent, CompletionEvents, ModelQueue, Token, prompt};
use crate::models::ServedModel;

/// Default maximum number of tokens of an answer. The model's positions are another limit.
const MAX_TOKENS: usize = 4096;

/// Parsed request.
struct Request {
    options: CompletionOptions,
    messages: Vec<Message>,
    template_inputs: TemplateInputs,
    max_tokens: usize,
    /// Number of most likely tokens to return per position, if log-probabilities are requested.
    logprobs: Option<usize>,
}

impl Request {
    async fn read(app: &Arc<App>, body: &[u8]) -> Result<Self, Refused> {
        let mut fields = Fields::read(body)?;
        let options = CompletionOptions::read(app, &mut fields).await?;
        let is_text = |value: &Value| value.get("type").and_then(Value::as_str) == Some("text");
        fields.refuse("response_format", is_text)?;
        fields.refuse("functions", |value| value.as_array().is_some_and(Vec::is_empty))?;
        // Without functions, both mean the same.
        fields.refuse("function_call", |value| matches!(value.as_str(), Some("auto" | "none")))?;
        let is_only_text = |value: &Value| {
            value.as_array().is_some_and(|kinds| kinds.iter().all(|kind| kind.as_str() == Some("text")))
        };
        fields.refuse("modalities", is_only_text)?;
        fields.refuse("audio", |_| false)?;
        fields.refuse("echo", |value| value.as_bool() == Some(false))?;
        let tools = fields.read_as("tools", "a list of objects", |value| {
            value.as_array().filter(|tools| tools.iter().all(Value::is_object)).cloned()
        })?;
        // Models cannot be forced to call tools.
        let may_call = fields.read_as("tool_choice", "\"auto\" or \"none\"", |choice| match choice.as_str() {
            Some("auto") => Some(true),
            Some("none") => Some(false),
            _ => None,
        })?;
        let tools = tools.filter(|_| may_call != Some(false)).unwrap_or_default();
        options.check_streams(1)?;
        options.refuse_scored_streams()?;
        fields.refuse("chat_template", |_| false)?;
        // An answer always begins a new message.
        fields.refuse("continue_final_message", |value| value.as_bool() == Some(false))?;
        fields.refuse("add_generation_prompt", |value| value.as_bool() == Some(true))?;
        // Templates write all special tokens.
        fields.refuse("add_special_tokens", |value| value.as_bool() == Some(false))?;
        fields.refuse("reasoning_effort", |value| value.as_str() == Some("none"))?;
        fields.refuse("verbosity", |value| value.as_str() == Some("medium"))?;
        fields.refuse("web_search_options", |_| false)?;
        let longest = fields.count("max_completion_tokens", 1..=1 << 24)?;
        let max_tokens = fields.count("max_tokens", 1..=1 << 24)?;
        let top = fields.count("top_logprobs", 0..=LIKELIEST_MAX)?;
        let logprobs = match (fields.flag("logprobs")?, top) {
            (true, top) => Some(top.unwrap_or(0)),
            (false, None | Some(0)) => None,
            (false, Some(_)) => return Err(Refused::field("top_logprobs", "`top_logprobs` needs `logprobs: true`")),
        };
        let messages = messages(&mut fields)?;
        let template_inputs = TemplateInputs { tools, variables: variables(&mut fields)? };
        let max_tokens = longest.or(max_tokens).unwrap_or(MAX_TOKENS);
        options.check_length(max_tokens)?;
        fields.finish()?;
        Ok(Self { options, messages, template_inputs, max_tokens, logprobs })
    }
}

/// Variables of a template that the server sets, so requests cannot.
const RESERVED: [&str; 4] = ["messages", "tools", "documents", "add_generation_prompt"];

/// Parses the variables of the template.
fn variables(fields: &mut Fields) -> Result<Map<String, Value>, Refused> {
    let variables = fields.object("chat_template_kwargs")?;
    match RESERVED.into_iter().find(|name| variables.contains_key(*name)) {
        Some(name) => Err(Refused::unsupported(&format!("chat_template_kwargs.{name}"))),
        None => Ok(variables),
    }
}

fn messages(fields: &mut Fields) -> Result<Vec<Message>, Refused> {
    let list = fields.needed("messages", "a list of at least one message", |value| {
        value.as_array().filter(|list| !list.is_empty()).cloned()
    })?;
    let read = |(i, message): (usize, &Value)| {
        let mut message = message.clone();
        arguments_as_objects(&mut message);
        let param = format!("messages[{i}]");
        Message::read(&message).map_err(|what| Refused::field(&param, format!("`{param}` {what}")))
    };
    list.iter().enumerate().map(read).collect()
}

/// Converts the arguments of calls from JSON text, as in OpenAI's API, to objects, which templates print.
fn arguments_as_objects(message: &mut Value) {
    for call in message.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(arguments) = call.pointer_mut("/function/arguments") else { continue };
        let read = match arguments.as_str() {
            // A call without arguments.
            Some(text) if text.trim().is_empty() => Some(json!({})),
            Some(text) => serde_json::from_str(text).ok(),
            None => None,
        };
        if let Some(read) = read {
            *arguments = read;
        }
    }
}

/// Starts sampling. Also returns the parser of an answer. `begins_in_thought` means that the prompt opens a thought.
fn begin(
    queue: &mut ModelQueue,
    request: &Request,
    prompt: Vec<u32>,
    begins_in_thought: bool,
) -> gradus::Result<(CompletionEvents, ToolCallParser)> {
    let params = SamplingParams {
        max_new_tokens: request.max_tokens,
        likeliest: request.logprobs.unwrap_or(0),
        ..request.options.params.clone()
    };
    let stop = queue.session.stop_of(&request.options.stop);
    let tokenizer = queue.session.tokenizer();
    let is_special = |mark: &str| tokenizer.token_id(mark).is_some_and(|id| tokenizer.is_special(id));
    let parser = ToolCallParser::new(&request.template_inputs.tools, begins_in_thought, is_special);
    let kept = parser.marks().to_vec();
    let streams = request.options.streams(0);
    let completion_events = queue.sample(vec![CompletionRequest { prompt, params, stop, streams, kept }])?;
    Ok((completion_events, parser))
}

/// Handles a request.
pub async fn answer(State(app): State<Arc<App>>, Body(body): Body) -> Result<Response, Refused> {
    let request = Arc::new(Request::read(&app, &body).await?);
    let served = served(&app, &request.options.model).await?;
    let shared_request = Arc::clone(&request);
    let (ids, begins_in_thought) = prompt(&served.queue, move |prompter| {
        let begun = prompter.begin(&shared_request.messages, &shared_request.template_inputs);
        begun.map_err(|error| refused_text("messages", error))
    })
    .await?;
    request.options.check_scored(ids.len())?;
    let (shared_request, given) = (Arc::clone(&request), ids.clone());
    let (scored, (completion_events, parser)) = served
        .queue
        .ask(move |queue| {
            let length = given.len();
            let options = shared_request.options.clone();
            let likeliest = options.prompt_logprobs;
            let scored = likeliest.map(|likeliest| queue.score(&given, likeliest)).transpose();
            let begun =
                scored.and_then(|scored| Ok((scored, begin(queue, &shared_request, given, begins_in_thought)?)));
            begun.map_err(|error| refused_prompt("messages", &options, error, length, queue))
        })
        .await??;
    if request.options.is_streamed {
        return Ok(stream(request, ids, (completion_events, parser), served));
    }
    let scored = scored.map(|tokens| CompletionOptions::scored_prompt(&tokens));
    whole(&request, &ids, (completion_events, parser), scored, &served.version).await
}

/// An answer in progress.
struct Choice {
    parser: ToolCallParser,
    text: String,
    tokens: Vec<Token>,
    end: Option<(&'static str, Vec<Call>)>,
}

/// Ends an answer. Returns the rest of its text, the reason for its end, and its calls.
fn ended(mut parser: ToolCallParser, text: &str, reason: &'static str) -> (String, &'static str, Vec<Call>) {
    let mut rest = parser.push(text);
    let (held, calls) = parser.end();
    rest += &held;
    (rest, if calls.is_empty() { reason } else { "tool_calls" }, calls)
}

async fn whole(
    request: &Request,
    ids: &[u32],
    (mut completion_events, parser): (CompletionEvents, ToolCallParser),
    scored: Option<Value>,
    version: &str,
) -> Result<Response, Refused> {
    let new = || Choice { parser: parser.clone(), text: String::new(), tokens: Vec::new(), end: None };
    let mut choices: Vec<Choice> = (0..request.options.n).map(|_| new()).collect();
    let mut used = 0;
    while let Some((i, event)) = completion_events.recv().await {
        let choice = &mut choices[i];
        match event {
            CompletionEvent::Token(token, text) => {
                choice.text += &choice.parser.push(&text);
                choice.tokens.push(token);
                used += 1;
            }
            CompletionEvent::End(text, end) => {
                let (rest, reason, calls) = ended(std::mem::take(&mut choice.parser), &text, finish_reason(end?));
                choice.text += &rest;
                choice.end = Some((reason, calls));
            }
        }
    }
    let mut answer = head("chatcmpl", "chat.completion", &request.options.model);
    let id = answer["id"].as_str().unwrap_or_default().trim_start_matches("chatcmpl-").to_owned();
    let mut values = Vec::with_capacity(choices.len());
    for (i, choice) in choices.into_iter().enumerate() {
        let (reason, calls) = choice.end.ok_or_else(Refused::broken)?;
        let mut message = json!({ "role": "assistant", "content": choice.text });
        if !calls.is_empty() {
            let calls = calls.iter().enumerate().map(|(at, call)| call.to_openai(&format!("{id}_{i}"), at));
            message["tool_calls"] = calls.collect();
        }
        let mut value = json!({ "index": i, "message": message, "logprobs": null, "finish_reason": reason });
        if request.logprobs.is_some() {
            value["logprobs"] = logprobs(&choice.tokens, request.options.ids_for_texts);
        }
        if let Some(versions) = request.options.versions(version, choice.tokens.len()) {
            value["weight_versions"] = versions;
        }
        if request.options.returns_ids {
            value["token_ids"] = choice.tokens.iter().map(|token| token.id).collect();
        }
        values.push(value);
    }
    answer["choices"] = Value::Array(values);
    if request.options.returns_ids {
        answer["prompt_token_ids"] = json!(ids);
    }
    if let Some(scored) = scored {
        answer["prompt_logprobs"] = scored;
    }
    answer["usage"] = usage(ids.len(), used);
    Ok(json_response(StatusCode::OK, &answer))
}

fn stream(
    request: Arc<Request>,
    ids: Vec<u32>,
    (mut completion_events, parser): (CompletionEvents, ToolCallParser),
    served: ServedModel,
) -> Response {
    let (events, response) = Events::new();
    tokio::spawn(async move {
        // Keeps the desk registered while it samples, so that a pause reaches it.
        let served = served;
        let mut counts = vec![0; request.options.n];
        let frame = head("chatcmpl", "chat.completion.chunk", &request.options.model);
        let id = frame["id"].as_str().unwrap_or_default().trim_start_matches("chatcmpl-").to_owned();
        let mut say = |i: usize, delta: Value, tokens: &[Token], reason: Option<&str>| {
            counts[i] += tokens.len();
            let mut choice = json!({ "index": i, "delta": delta, "logprobs": null, "finish_reason": reason });
            if request.logprobs.is_some() && !tokens.is_empty() {
                choice["logprobs"] = logprobs(tokens, request.options.ids_for_texts);
            }
            if let Some(versions) = reason.and_then(|_| request.options.versions(&served.version, counts[i])) {
                choice["weight_versions"] = versions;
            }
            if request.options.returns_ids {
                choice["token_ids"] = tokens.iter().map(|token| token.id).collect();
            }
            let mut chunk = frame.clone();
            chunk["choices"] = json!([choice]);
            events.send(&chunk)
        };
        let n = request.options.n;
        let (mut used, mut going) = (0, n);
        let mut parsers = vec![parser; n];
        for i in 0..n {
            let mut chunk = frame.clone();
            let delta = json!({ "role": "assistant", "content": "" });
            chunk["choices"] = json!([{ "index": i, "delta": delta, "logprobs": null, "finish_reason": null }]);
            if request.options.returns_ids {
                chunk["prompt_token_ids"] = json!(ids);
            }
            events.send(&chunk);
        }
        while let Some((i, event)) = completion_events.recv().await {
            let is_there = match event {
                CompletionEvent::Token(token, text) => {
                    used += 1;
                    let new = parsers[i].push(&text);
                    // A token without final text is held back, unless the client wants its numbers.
                    let is_reported = !new.is_empty() || request.logprobs.is_some() || request.options.returns_ids;
                    !is_reported || say(i, json!({ "content": new }), &[token], None)
                }
                CompletionEvent::End(text, Ok(end)) => {
                    going -= 1;
                    let parser = std::mem::take(&mut parsers[i]);
                    let (rest, reason, calls) = ended(parser, &text, finish_reason(end));
                    if !rest.is_empty() {
                        say(i, json!({ "content": rest }), &[], None);
                    }
                    for (at, call) in calls.iter().enumerate() {
                        say(i, json!({ "tool_calls": [call.to_openai(&format!("{id}_{i}"), at)] }), &[], None);
                    }
                    say(i, json!({}), &[], Some(reason))
                }
                CompletionEvent::End(_, Err(error)) => return events.fail(&error.to_string()),
            };
            if !is_there {
                return;
            }
        }
        let usage = request.options.includes_usage.then(|| usage(ids.len(), used));
        end_stream(&events, frame, going > 0, usage);
    });
    response
}

/// Converts tokens to the form of `/v1/chat/completions`, with ids instead of texts if `as_ids` is set.
pub fn logprobs(tokens: &[Token], as_ids: bool) -> Value {
    let one = |id: u32, text: &str, bytes: Option<&[u8]>, logprob: Option<f32>| {
        let bytes = bytes.unwrap_or(text.as_bytes());
        match as_ids {
            true => json!({ "token": as_id(id), "token_id": id, "logprob": logprob, "bytes": bytes }),
            false => json!({ "token": text, "logprob": logprob, "bytes": bytes }),
        }
    };
    let values = |token: &Token| {
        let mut value = one(token.id, &token.text, token.bytes.as_deref(), token.logprob);
        let top = token.likeliest.iter().map(|of| one(of.id, &of.text, of.bytes.as_deref(), Some(of.logprob)));
        value["top_logprobs"] = top.collect();
        value
    };
    json!({ "content": tokens.iter().map(values).collect::<Vec<_>>(), "refusal": null })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_objects_for_the_template() {
        for (given, expected) in [
            (json!("{\"a\": 1}"), json!({ "a": 1 })),
            (json!(""), json!({})),
            (json!({ "a": 1 }), json!({ "a": 1 })),
            (json!("broken {"), json!("broken {")),
        ] {
            let mut message = json!({ "tool_calls": [{ "function": { "name": "add", "arguments": given } }] });
            arguments_as_objects(&mut message);
            assert_eq!(message["tool_calls"][0]["function"]["arguments"], expected);
        }
    }
}
