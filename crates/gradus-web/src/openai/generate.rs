//! vLLM's `/inference/v1/generate`: ids in, ids out, with their log-probabilities and without text.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use gradus::generate::SamplingParams;
use gradus::inference::{AnswerEnd, CompletionRequest};
use serde_json::{Value, json};

use super::chat::logprobs;
use super::fields::{Body, Fields};
use super::options::{CompletionOptions, LIKELIEST_MAX, ids_of};
use super::refused::{Refused, json_response};
use super::{finish_reason, head, refused_prompt, served, usage};
use crate::app::App;
use crate::events::Events;
use crate::model_queue::{CompletionEvent, CompletionEvents, ModelQueue, Token};
use crate::models::ServedModel;
use crate::serving::main_model;

/// Default maximum number of tokens of a completion. The model's positions are another limit.
const MAX_TOKENS: usize = 1 << 24;

/// Parsed request.
struct Request {
    options: CompletionOptions,
    /// The client's id of the request.
    id: Option<String>,
    ids: Vec<u32>,
    max_tokens: usize,
    /// Number of most likely ids to return per position, if log-probabilities are requested.
    logprobs: Option<usize>,
}

impl Request {
    async fn read(app: &Arc<App>, body: &[u8]) -> Result<Self, Refused> {
        let mut fields = Fields::read(body)?;
        for name in ["features", "content_parts", "prompt_embeds", "kv_transfer_params"] {
            fields.refuse(name, |_| false)?;
        }
        let model = match fields.text("model")? {
            Some(model) => model,
            None => main_model(app).await?,
        };
        let ids = |value: &Value| ids_of(value).filter(|ids| !ids.is_empty());
        let ids = fields.needed("token_ids", "a list of at least one token id", ids)?;
        let mut sampling = fields.within("sampling_params")?;
        let mut options = CompletionOptions::of(model, &mut sampling)?;
        options.read_stream(&mut fields)?;
        options.returns_ids = fields.flag("return_token_ids")?;
        options.check_streams(1)?;
        options.refuse_scored_streams()?;
        options.check_scored(ids.len())?;
        let max_tokens = sampling.count("max_tokens", 1..=MAX_TOKENS)?.unwrap_or(MAX_TOKENS);
        let logprobs = sampling.count("logprobs", 0..=LIKELIEST_MAX)?;
        // There is no text.
        sampling.take("skip_special_tokens");
        sampling.take("detokenize");
        let id = fields.text("request_id")?;
        options.check_length(max_tokens)?;
        sampling.finish()?;
        fields.finish()?;
        Ok(Self { options, id, ids, max_tokens, logprobs })
    }
}

/// Handles a request.
pub async fn answer(State(app): State<Arc<App>>, Body(body): Body) -> Result<Response, Refused> {
    let request = Arc::new(Request::read(&app, &body).await?);
    let served = served(&app, &request.options.model).await?;
    let shared_request = Arc::clone(&request);
    let start = move |queue: &mut ModelQueue| -> gradus::Result<_> {
        let scored = shared_request
            .options
            .prompt_logprobs
            .map(|likeliest| queue.score(&shared_request.ids, likeliest))
            .transpose()?;
        let params = SamplingParams {
            max_new_tokens: shared_request.max_tokens,
            likeliest: shared_request.logprobs.unwrap_or(0),
            ..shared_request.options.params.clone()
        };
        let (prompt, stop, streams) =
            (shared_request.ids.clone(), shared_request.options.stop.clone(), shared_request.options.streams(0));
        Ok((scored, queue.sample(vec![CompletionRequest { prompt, params, stop, streams, kept: Vec::new() }])?))
    };
    let (length, options) = (request.ids.len(), request.options.clone());
    let begin = served
        .queue
        .ask(move |queue| start(queue).map_err(|error| refused_prompt("token_ids", &options, error, length, queue)));
    let (scored, completion_events) = begin.await??;
    if request.options.is_streamed {
        return Ok(stream(request, completion_events, served));
    }
    whole(&request, completion_events, scored, &served.version).await
}

impl Request {
    /// Returns the common fields of all parts of the response.
    fn head(&self) -> Value {
        let mut head = head("generate", "generate", &self.options.model);
        if let Some(id) = &self.id {
            head["id"] = json!(id);
        }
        json!({ "request_id": head["id"], "model": head["model"], "created": head["created"] })
    }

    /// Formats the tokens of a choice, and the reason for its end, if it has ended.
    fn choice(&self, i: usize, tokens: &[Token], end: Option<AnswerEnd>) -> Value {
        let logprobs = self.logprobs.map(|_| logprobs(tokens, true));
        let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
        let last = ids.last().filter(|id| self.options.params.stop_ids.contains(id));
        let stop_reason = last.filter(|_| end == Some(AnswerEnd::Stop));
        json!({
            "index": i,
            "token_ids": ids,
            "logprobs": logprobs,
            "finish_reason": end.map(finish_reason),
            "stop_reason": stop_reason,
        })
    }
}

/// A completion in progress.
#[derive(Default)]
struct Choice {
    tokens: Vec<Token>,
    end: Option<AnswerEnd>,
}

async fn whole(
    request: &Request,
    mut completion_events: CompletionEvents,
    scored: Option<Vec<Token>>,
    version: &str,
) -> Result<Response, Refused> {
    let mut choices: Vec<Choice> = (0..request.options.n).map(|_| Choice::default()).collect();
    while let Some((i, event)) = completion_events.recv().await {
        match event {
            CompletionEvent::Token(token, _) => choices[i].tokens.push(token),
            CompletionEvent::End(_, end) => choices[i].end = Some(end?),
        }
    }
    let mut answer = request.head();
    let mut values = Vec::with_capacity(choices.len());
    for (i, Choice { tokens, end }) in choices.iter().enumerate() {
        if end.is_none() {
            return Err(Refused::broken());
        }
        let mut choice = request.choice(i, tokens, *end);
        if let Some(versions) = request.options.versions(version, tokens.len()) {
            choice["weight_versions"] = versions;
        }
        values.push(choice);
    }
    answer["choices"] = Value::Array(values);
    if request.options.returns_ids {
        answer["prompt_token_ids"] = json!(request.ids);
    }
    answer["prompt_logprobs"] = scored.map_or(Value::Null, |tokens| CompletionOptions::scored_prompt(&tokens));
    answer["usage"] = usage(request.ids.len(), choices.iter().map(|choice| choice.tokens.len()).sum());
    Ok(json_response(StatusCode::OK, &answer))
}

fn stream(request: Arc<Request>, mut completion_events: CompletionEvents, served: ServedModel) -> Response {
    let (events, response) = Events::new();
    tokio::spawn(async move {
        // Keeps the desk registered while it samples, so that a pause reaches it.
        let served = served;
        let (frame, n) = (request.head(), request.options.n);
        // The last token is sent together with the end, so each token waits for the next event.
        let mut held: Vec<Option<Token>> = (0..n).map(|_| None).collect();
        let (mut counts, mut going) = (vec![0; n], n);
        while let Some((i, event)) = completion_events.recv().await {
            let (tokens, end) = match event {
                CompletionEvent::Token(token, _) => {
                    counts[i] += 1;
                    match held[i].replace(token) {
                        Some(before) => (vec![before], None),
                        None => continue,
                    }
                }
                CompletionEvent::End(_, Ok(end)) => {
                    going -= 1;
                    (held[i].take().into_iter().collect(), Some(end))
                }
                CompletionEvent::End(_, Err(error)) => return events.fail(&error.to_string()),
            };
            let mut choice = request.choice(i, &tokens, end);
            if let Some(versions) = end.and_then(|_| request.options.versions(&served.version, counts[i])) {
                choice["weight_versions"] = versions;
            }
            let mut chunk = frame.clone();
            chunk["choices"] = json!([choice]);
            if !events.send(&chunk) {
                return;
            }
        }
        let usage = request.options.includes_usage.then(|| usage(request.ids.len(), counts.iter().sum()));
        super::end_stream(&events, frame, going > 0, usage);
    });
    response
}
