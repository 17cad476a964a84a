//! OpenAI-compatible server: `/v1/models`, `/v1/completions`, `/v1/chat/completions`; and vLLM's `/inference/v1/generate`.
//!
//! A request is parsed by [`fields`], submitted to a [`ModelQueue`](crate::model_queue::ModelQueue), and answered as a whole or as a
//! stream of events. Fields with an unsupported meaning are rejected, not ignored.

mod chat;
mod completions;
pub mod fields;
mod generate;
mod options;
pub mod refused;
mod tools;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post};
use gradus::inference::{AnswerEnd, PromptError, model_of};
use serde_json::{Value, json};

use crate::app::App;
use crate::events::Events;
use crate::model_queue::ModelQueue;
use crate::models::{Kind, ModelEntry, ServedModel, outermost};
use crate::secret::secret;
use crate::serving;
use options::{CompletionOptions, IDS};
use refused::{BROKEN, Refused, json_response, wrong_method};

/// Returns the routes of OpenAI's protocol, and vLLM's route for token ids.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/models", get(models))
        .route("/v1/models/{*name}", get(model))
        .route("/v1/completions", post(completions::answer))
        .route("/v1/chat/completions", post(chat::answer))
        .route("/inference/v1/generate", post(generate::answer))
        .route("/v1/{*rest}", get(nothing).post(nothing))
        .method_not_allowed_fallback(wrong_method)
}

/// Ends a stream of chunks with the form of `frame`, with the token counts if requested. If the stream broke off before its completions
/// ended, it ends with an error.
fn end_stream(events: &Events, mut frame: Value, is_broken: bool, usage: Option<Value>) {
    if is_broken {
        return events.fail(BROKEN);
    }
    if let Some(usage) = usage {
        frame["choices"] = json!([]);
        frame["usage"] = usage;
        events.send(&frame);
    }
    events.done();
}

async fn nothing() -> Refused {
    let message = "this path does not exist: `/v1/models`, `/v1/completions` and `/v1/chat/completions` do";
    Refused { status: StatusCode::NOT_FOUND, message: message.into(), param: None, code: None }
}

/// Describes a model in OpenAI's form. Its creation time is that of its configuration file.
fn described(app: &App, found: &ModelEntry) -> Value {
    let written = || {
        let model = model_of(&found.path).ok()?;
        let files = ["config.json", "adapter_config.json"].map(|file| model.join(file));
        let changed = files.iter().find_map(|file| file.metadata().ok())?.modified().ok()?;
        changed.duration_since(UNIX_EPOCH).ok()
    };
    let created = written().map_or(0, |since| since.as_secs());
    let mut card = json!({ "id": found.name, "object": "model", "created": created, "owned_by": "gradus" });
    serving::described(&app.models, found, &mut card);
    card
}

/// Returns the available language models.
async fn language_models(app: &Arc<App>) -> Vec<ModelEntry> {
    let app = Arc::clone(app);
    let list = move || app.models.list().into_iter().filter(|found| found.kind == Kind::Language).collect();
    tokio::task::spawn_blocking(list).await.unwrap_or_default()
}

/// Lists the models. Checkpoints of a run are omitted, but can be requested by name.
async fn models(State(app): State<Arc<App>>) -> Response {
    let all = language_models(&app).await;
    let of = Arc::clone(&app);
    let described = move || outermost(&all).map(|found| described(&of, found)).collect();
    let data: Vec<Value> = tokio::task::spawn_blocking(described).await.unwrap_or_default();
    json_response(StatusCode::OK, &json!({ "object": "list", "data": data }))
}

async fn model(State(app): State<Arc<App>>, name: Result<Path<String>, PathRejection>) -> Result<Response, Refused> {
    // A name that is no text.
    let Ok(Path(name)) = name else { return Err(nothing().await) };
    let found = named(&app, &name).await?;
    let card = tokio::task::spawn_blocking(move || described(&app, &found)).await.map_err(|_| Refused::broken())?;
    Ok(json_response(StatusCode::OK, &card))
}

async fn named(app: &Arc<App>, name: &str) -> Result<ModelEntry, Refused> {
    language_models(app).await.into_iter().find(|known| known.name == name).ok_or_else(|| Refused {
        status: StatusCode::NOT_FOUND,
        message: format!("there is no model `{name}`; `/v1/models` lists the models"),
        param: Some("model".into()),
        code: Some("model_not_found"),
    })
}

/// Returns the model of a request, loaded, after any pause has ended.
async fn served(app: &Arc<App>, name: &str) -> Result<ServedModel, Refused> {
    app.models.pause.over().await;
    named(app, name).await?;
    Ok(app.models.served(name).await?)
}

/// Refuses prompts of at most `longest` ids because of `error`, which is about them or about one of the `options`. If the model has fewer
/// positions, the code says so, as OpenAI's does.
fn refused_prompt(
    param: &str,
    options: &CompletionOptions,
    error: gradus::Error,
    longest: usize,
    queue: &ModelQueue,
) -> Refused {
    let refused = Refused::from(error);
    if queue.session.max_positions().is_some_and(|positions| longest >= positions) {
        return Refused { param: Some(param.to_owned()), code: Some(TOO_LONG), ..refused };
    }
    // Messages about a setting begin with its name.
    let setting = IDS.into_iter().find(|name| refused.message.starts_with(&format!("`{name}`")));
    let param = setting.map_or_else(|| param.to_owned(), |name| options.path(name));
    Refused { param: Some(param), ..refused }
}

/// Code of prompts that do not fit into the model, as OpenAI's.
const TOO_LONG: &str = "context_length_exceeded";

/// Refuses a prompt without ids.
fn refused_text(param: &str, error: PromptError) -> Refused {
    match error {
        PromptError::TooLong(error) => {
            Refused { param: Some(param.to_owned()), code: Some(TOO_LONG), ..Refused::from(error) }
        }
        PromptError::Other(error) => Refused::from(error),
    }
}

/// Returns the common fields of all responses.
fn head(prefix: &str, object: &str, model: &str) -> Value {
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |passed| passed.as_secs());
    json!({ "id": format!("{prefix}-{}", &secret()[..24]), "object": object, "created": created, "model": model })
}

/// Returns the reason why a completion ended, in OpenAI's terms.
fn finish_reason(end: AnswerEnd) -> &'static str {
    match end {
        AnswerEnd::Length => "length",
        AnswerEnd::Stop => "stop",
        // vLLM's term.
        AnswerEnd::Interrupted => "abort",
    }
}

fn usage(prompt: usize, completion: usize) -> Value {
    json!({ "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion })
}
