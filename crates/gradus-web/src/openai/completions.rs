//! `/v1/completions`: continuations of texts, and with `echo` the log-probabilities of the texts.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use gradus::generate::SamplingParams;
use gradus::inference::{CompletionRequest, PromptError, Prompter};
use serde_json::{Map, Value, json};

use super::fields::{Body, Fields};
use super::options::{COMPLETIONS_MAX, CompletionOptions, LIKELIEST_MAX, ids_of as ids};
use super::refused::{Refused, json_response};
use super::{end_stream, finish_reason, head, refused_prompt, refused_text, served, usage};
use crate::app::App;
use crate::events::Events;
use crate::model_queue::{CompletionEvent, CompletionEvents, ModelQueue, Token, prompt};
use crate::models::ServedModel;

/// Maximum number of prompts in a request.
const PROMPTS_MAX: usize = 1024;

/// Description of valid prompts.
const PROMPT: &str = "a string, a list of strings, a list of token ids, or a list of such lists,";

/// Parsed request.
struct Request {
    options: CompletionOptions,
    prompts: Vec<Prompt>,
    max_tokens: usize,
    echo: bool,
    /// Number of most likely tokens to return per position, if log-probabilities are requested.
    logprobs: Option<usize>,
    add_special: bool,
}

/// A prompt as given.
enum Prompt {
    Text(String),
    Ids(Vec<u32>),
}

impl Request {
    async fn read(app: &Arc<App>, body: &[u8]) -> Result<Self, Refused> {
        let mut fields = Fields::read(body)?;
        let options = CompletionOptions::read(app, &mut fields).await?;
        fields.refuse("suffix", |value| value.as_str() == Some(""))?;
        if let Some(best_of) = fields.count("best_of", 1..=COMPLETIONS_MAX)?.filter(|best_of| *best_of != options.n) {
            let message = format!(
                "`best_of` is {best_of} and `n` {}: this server samples as many completions as it returns",
                options.n
            );
            return Err(Refused::field("best_of", message));
        }
        let prompts = fields.needed("prompt", PROMPT, prompts)?;
        if prompts.len() * options.n > PROMPTS_MAX {
            let message = format!("{} prompts with `n` {} are more than {PROMPTS_MAX}", prompts.len(), options.n);
            return Err(Refused::field("prompt", message));
        }
        options.check_streams(prompts.len())?;
        let max_tokens = fields.count("max_tokens", 0..=1 << 24)?.unwrap_or(16);
        // Some clients send `logprobs: true` for 1.
        let likeliest = format!("a whole number from 0 to {LIKELIEST_MAX}, or true or false,");
        let logprobs = fields.read_as("logprobs", &likeliest, |value| match value {
            Value::Bool(is_requested) => Some(is_requested.then_some(1)),
            value => value.as_u64().map(|count| count as usize).filter(|count| *count <= LIKELIEST_MAX).map(Some),
        })?;
        let logprobs = logprobs.flatten();
        options.refuse_scored_streams()?;
        let echo = fields.flag("echo")?;
        let add_special = fields.read_as("add_special_tokens", "true or false", Value::as_bool)?.unwrap_or(true);
        options.check_length(max_tokens)?;
        fields.finish()?;
        Ok(Self { options, prompts, max_tokens, echo, logprobs, add_special })
    }
}

/// Parses a text, several texts, ids, or several lists of ids.
fn prompts(value: &Value) -> Option<Vec<Prompt>> {
    let prompts: Vec<Prompt> = match value {
        Value::String(text) => vec![Prompt::Text(text.clone())],
        Value::Array(list) if list.first().is_some_and(Value::is_number) => vec![Prompt::Ids(ids(value)?)],
        Value::Array(list) => {
            let one = |value: &Value| match value {
                Value::String(text) => Some(Prompt::Text(text.clone())),
                other => ids(other).map(Prompt::Ids),
            };
            list.iter().map(one).collect::<Option<_>>()?
        }
        _ => return None,
    };
    (!prompts.is_empty()).then_some(prompts)
}

/// A prompt after tokenization.
struct Read {
    ids: Vec<u32>,
    /// Text that completions begin with: the prompt as given, if `echo` is set. Empty otherwise.
    echo: String,
    /// Tokens of the prompt, if their log-probabilities are returned.
    tokens: Vec<Token>,
    /// Log-probabilities of the prompt's tokens, if requested.
    scored: Option<Value>,
}

/// Returns the ids of each prompt.
fn ids_of(prompter: &Prompter, request: &Request) -> Result<Vec<Vec<u32>>, PromptError> {
    let ids = |prompt: &Prompt| match prompt {
        Prompt::Text(text) => prompter.ids_of(text, request.add_special),
        Prompt::Ids(ids) => Ok(ids.clone()),
    };
    request.prompts.iter().map(ids).collect()
}

/// Tokenizes the prompts and starts sampling.
fn begin(
    queue: &mut ModelQueue,
    request: &Request,
    prompts: Vec<Vec<u32>>,
) -> gradus::Result<(Vec<Read>, Option<CompletionEvents>)> {
    let (mut read, mut requests) = (Vec::new(), Vec::new());
    let params = SamplingParams {
        max_new_tokens: request.max_tokens,
        likeliest: request.logprobs.unwrap_or(0),
        ..request.options.params.clone()
    };
    for (i, ids) in prompts.into_iter().enumerate() {
        let tokens = match request.logprobs.filter(|_| request.echo) {
            Some(likeliest) => queue.score(&ids, likeliest)?,
            None => Vec::new(),
        };
        let echo = match &request.prompts[i] {
            _ if !request.echo => String::new(),
            Prompt::Text(text) => text.clone(),
            Prompt::Ids(ids) => queue.session.tokenizer().decode(ids, true)?,
        };
        let scored = match request.options.prompt_logprobs {
            Some(likeliest) => Some(CompletionOptions::scored_prompt(&queue.score(&ids, likeliest)?)),
            None => None,
        };
        let streams = request.options.streams(i);
        requests.push(CompletionRequest {
            prompt: ids.clone(),
            params: params.clone(),
            stop: request.options.stop.clone(),
            streams,
            kept: Vec::new(),
        });
        read.push(Read { ids, echo, tokens, scored });
    }
    let completion_events = if request.max_tokens > 0 { Some(queue.sample(requests)?) } else { None };
    Ok((read, completion_events))
}

/// A completion in progress.
#[derive(Default)]
struct Choice {
    text: String,
    tokens: Vec<Token>,
    finish_reason: Option<&'static str>,
}

/// Handles a request.
pub async fn answer(State(app): State<Arc<App>>, Body(body): Body) -> Result<Response, Refused> {
    let request = Arc::new(Request::read(&app, &body).await?);
    let served = served(&app, &request.options.model).await?;
    let shared_request = Arc::clone(&request);
    let ids =
        move |prompter: &Prompter| ids_of(prompter, &shared_request).map_err(|error| refused_text("prompt", error));
    let prompts = prompt(&served.queue, ids).await?;
    let scored = prompts.iter().map(Vec::len).sum::<usize>();
    request.options.check_scored(scored)?;
    let shared_request = Arc::clone(&request);
    let begin = served.queue.ask(move |queue| {
        let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
        let begun = begin(queue, &shared_request, prompts);
        begun.map_err(|error| refused_prompt("prompt", &shared_request.options, error, longest, queue))
    });
    let (read, completion_events) = begin.await??;
    if request.options.is_streamed {
        return Ok(stream(request, read, completion_events, served));
    }
    whole(&request, &read, completion_events, &served.version).await
}

async fn whole(
    request: &Request,
    read: &[Read],
    completion_events: Option<CompletionEvents>,
    version: &str,
) -> Result<Response, Refused> {
    let n = request.options.n;
    let mut choices: Vec<Choice> = read.iter().flat_map(|read| (0..n).map(|_| echoed(read))).collect();
    let mut used = 0;
    if let Some(mut completion_events) = completion_events {
        while let Some((i, event)) = completion_events.recv().await {
            let choice = &mut choices[i];
            match event {
                CompletionEvent::Token(token, text) => {
                    choice.text += &text;
                    choice.tokens.push(token);
                    used += 1;
                }
                CompletionEvent::End(text, end) => {
                    choice.text += &text;
                    choice.finish_reason = Some(finish_reason(end?));
                }
            }
        }
        if choices.iter().any(|choice| choice.finish_reason.is_none()) {
            return Err(Refused::broken());
        }
    }
    let of = |(i, choice): (usize, &Choice)| {
        let read = &read[i / n];
        let own = &choice.tokens[read.tokens.len()..];
        let offsets = || [read.offsets(), offsets_from(read.echo.chars().count(), own)].concat();
        let mut value = json!({
            "index": i,
            "text": choice.text,
            "logprobs": request.logprobs.map(|_| logprobs(&request.options, &choice.tokens, &offsets())),
            // No token was to be sampled.
            "finish_reason": choice.finish_reason.unwrap_or("length"),
        });
        if let Some(versions) = request.options.versions(version, own.len()) {
            value["weight_versions"] = versions;
        }
        if let Some(scored) = &read.scored {
            value["prompt_logprobs"] = scored.clone();
        }
        if request.options.returns_ids {
            value["prompt_token_ids"] = json!(read.ids);
            value["token_ids"] = own.iter().map(|token| token.id).collect();
        }
        value
    };
    let mut answer = head("cmpl", "text_completion", &request.options.model);
    answer["choices"] = choices.iter().enumerate().map(of).collect();
    answer["usage"] = usage(read.iter().map(|read| read.ids.len()).sum(), used);
    Ok(json_response(StatusCode::OK, &answer))
}

/// Creates a choice that begins with its prompt, if `echo` is set.
fn echoed(read: &Read) -> Choice {
    Choice { text: read.echo.clone(), tokens: read.tokens.clone(), finish_reason: None }
}

impl Read {
    /// Returns the character of the echoed prompt at which each of its tokens begins. A token whose text is not there, such as one that
    /// begins a text for the model, takes no characters.
    fn offsets(&self) -> Vec<usize> {
        let (mut rest, mut offset) = (self.echo.as_str(), 0);
        let begin = |token: &Token| {
            let begin = offset;
            if let Some(after) = rest.strip_prefix(token.text.as_str()) {
                rest = after;
                offset += token.text.chars().count();
            }
            begin
        };
        self.tokens.iter().map(begin).collect()
    }
}

/// Returns the character at which each of `tokens` begins if the first one begins at `offset`.
fn offsets_from(mut offset: usize, tokens: &[Token]) -> Vec<usize> {
    let begin = |token: &Token| {
        offset += token.text.chars().count();
        offset - token.text.chars().count()
    };
    tokens.iter().map(begin).collect()
}

fn stream(
    request: Arc<Request>,
    read: Vec<Read>,
    completion_events: Option<CompletionEvents>,
    served: ServedModel,
) -> Response {
    let (events, response) = Events::new();
    tokio::spawn(async move {
        // Keeps the desk registered while it samples, so that a pause reaches it.
        let served = served;
        let frame = head("cmpl", "text_completion", &request.options.model);
        let prompt_tokens: usize = read.iter().map(|read| read.ids.len()).sum();
        let (n, mut used) = (request.options.n, 0);
        // Characters and tokens of each choice so far, other than tokens of its prompt.
        let mut lengths: Vec<usize> = (0..read.len() * n).map(|i| read[i / n].echo.chars().count()).collect();
        let mut counts = vec![0; read.len() * n];
        let mut has_begun = vec![false; read.len() * n];
        // `own` is the number of `tokens` if they were sampled, and 0 if they are those of the prompt.
        let mut say = |i: usize, text: &str, tokens: &[Token], own: usize, reason: Option<&str>| {
            let mut choice = json!({ "index": i, "text": text, "logprobs": null, "finish_reason": reason });
            let sampled = &tokens[tokens.len() - own..];
            if request.logprobs.is_some() && !tokens.is_empty() {
                let offsets = if own == 0 { read[i / n].offsets() } else { offsets_from(lengths[i], sampled) };
                choice["logprobs"] = logprobs(&request.options, tokens, &offsets);
            }
            lengths[i] += sampled.iter().map(|token| token.text.chars().count()).sum::<usize>();
            counts[i] += own;
            if let Some(versions) = reason.and_then(|_| request.options.versions(&served.version, counts[i])) {
                choice["weight_versions"] = versions;
            }
            if request.options.returns_ids {
                if !std::mem::replace(&mut has_begun[i], true) {
                    choice["prompt_token_ids"] = json!(read[i / n].ids);
                }
                choice["token_ids"] = sampled.iter().map(|token| token.id).collect();
            }
            let mut chunk = frame.clone();
            chunk["choices"] = json!([choice]);
            events.send(&chunk)
        };
        for i in 0..read.len() * n {
            let Choice { text, tokens, .. } = echoed(&read[i / n]);
            let reason = completion_events.is_none().then_some("length");
            if (!text.is_empty() || !tokens.is_empty() || reason.is_some()) && !say(i, &text, &tokens, 0, reason) {
                return;
            }
        }
        let mut going = if completion_events.is_some() { read.len() * n } else { 0 };
        let mut completion_events = completion_events;
        while let Some((i, event)) = match &mut completion_events {
            Some(completion_events) => completion_events.recv().await,
            None => None,
        } {
            let is_there = match event {
                CompletionEvent::Token(token, text) => {
                    used += 1;
                    // A token without final text waits for the one that completes it, unless the client wants its numbers.
                    let is_reported = !text.is_empty() || request.logprobs.is_some() || request.options.returns_ids;
                    !is_reported || say(i, &text, &[token], 1, None)
                }
                CompletionEvent::End(text, Ok(end)) => {
                    going -= 1;
                    say(i, &text, &[], 0, Some(finish_reason(end)))
                }
                CompletionEvent::End(_, Err(error)) => return events.fail(&error.to_string()),
            };
            if !is_there {
                return;
            }
        }
        let usage = request.options.includes_usage.then(|| usage(prompt_tokens, used));
        end_stream(&events, frame, going > 0, usage);
    });
    response
}

/// Converts tokens to the form of `/v1/completions`. They begin at the characters `offsets`.
fn logprobs(options: &CompletionOptions, tokens: &[Token], offsets: &[usize]) -> Value {
    let name = |token: &Token| options.text_of(token.id, &token.text, token.bytes.as_deref());
    let top = |token: &Token| {
        token.logprob?;
        let mut top = Map::new();
        for of in &token.likeliest {
            // Several ids may have the same text. The most likely one is kept.
            let likely = options.text_of(of.id, &of.text, of.bytes.as_deref());
            top.entry(likely).or_insert(json!(of.logprob));
        }
        // The token itself is always there, as in OpenAI's API.
        top.entry(name(token)).or_insert(json!(token.logprob));
        Some(Value::Object(top))
    };
    json!({
        "tokens": tokens.iter().map(name).collect::<Vec<_>>(),
        "token_logprobs": tokens.iter().map(|token| token.logprob).collect::<Vec<_>>(),
        "top_logprobs": tokens.iter().map(top).collect::<Vec<_>>(),
        "text_offset": offsets,
    })
}
