//! Control of sampling by trainers: health checks, adapters and weights to sample with, and pauses. Names and forms are those of vLLM.
//!
//! Changes require [`Changing`]: the flag, the token, and a path inside a folder that was given at the start.

mod changing;
mod pause;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequestParts, Query, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use gradus::inference::{ChatOptions, Session};
use gradus::model::{Precision, WeightFormat};
use gradus::pretrained::TextFiles;
use gradus::text::Tokenizer;
use serde::Deserialize;
use serde_json::{Value, json};

pub use changing::Changing;
pub use pause::Pause;

use crate::actor::Actor;
use crate::app::App;
use crate::connections::ClientConnection;
use crate::model_queue::ModelQueue;
use crate::models::{InstalledModel, Models};
use crate::openai::fields::{Body, Fields};
use crate::openai::refused::{Refused, json_response, wrong_method};
use crate::secret::given;

/// Paths for programs that are not below `/v1/`.
const PATHS: [&str; 11] = [
    "/health",
    "/inference/v1/generate",
    "/pause",
    "/resume",
    "/is_paused",
    "/collective_rpc",
    "/reset_prefix_cache",
    "/update_weight_version",
    "/weight_info",
    "/get_world_size",
    "/server_info",
];

/// Maximum number of adapters.
const ADAPTERS_MAX: usize = 16;

/// Maximum size of a name or version in bytes.
const NAME_BYTES: usize = 256;

/// Returns whether a path is for programs, not pages.
pub fn is_for_programs(path: &str) -> bool {
    path.starts_with("/v1/") || PATHS.contains(&path)
}

/// Returns the routes, except the one that samples.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/health", get(health))
        .route("/is_paused", get(is_paused))
        .route("/get_world_size", get(world_size))
        .route("/weight_info", get(weight_info))
        .route("/server_info", get(server_info))
        .route("/pause", post(pause_sampling))
        .route("/resume", post(resume))
        .route("/reset_prefix_cache", post(reset_prefix_cache))
        .route("/collective_rpc", post(collective_rpc))
        .route("/update_weight_version", post(update_weight_version))
        .route("/v1/load_lora_adapter", post(load_adapter))
        .route("/v1/unload_lora_adapter", post(unload_adapter))
        .method_not_allowed_fallback(wrong_method)
}

async fn health() -> StatusCode {
    StatusCode::OK
}

async fn is_paused(State(app): State<Arc<App>>) -> Response {
    json_response(StatusCode::OK, &json!({ "is_paused": app.models.pause.is_set() }))
}

async fn world_size() -> Response {
    json_response(StatusCode::OK, &json!({ "world_size": 1 }))
}

async fn weight_info(State(app): State<Arc<App>>) -> Result<Response, Refused> {
    let version = app.models.version(&main_model(&app).await?);
    Ok(json_response(StatusCode::OK, &json!({ "weight_version": version })))
}

async fn server_info(State(app): State<Arc<App>>) -> Result<Response, Refused> {
    let name = main_model(&app).await?;
    let dtype = match app.models.weights() {
        WeightFormat::F32 => "torch.float32",
        WeightFormat::BF16 => "torch.bfloat16",
        _ => "torch.int8",
    };
    let model = json!({ "model": name, "served_model_name": name, "dtype": dtype });
    // Weights can be transferred only through folders.
    let config = json!({ "model_config": model, "weight_transfer_config": null });
    Ok(json_response(StatusCode::OK, &json!({ "vllm_config": config })))
}

/// Returns the default model of requests that name none.
pub async fn main_model(app: &Arc<App>) -> Result<String, Refused> {
    let of = Arc::clone(app);
    let found = tokio::task::spawn_blocking(move || of.models.main()).await;
    Ok(found.map_err(|_| Refused::broken())??)
}

/// The permission of a request to change the server. A handler that takes it refuses all other requests.
struct AuthorizedChange(Changing);

impl FromRequestParts<Arc<App>> for AuthorizedChange {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Refused> {
        let Some(changing) = &app.changing else {
            return Err(Refused::status(
                StatusCode::FORBIDDEN,
                "the adapters and weights of this server cannot be changed: start it with `--allow-weights FOLDER`",
            ));
        };
        if changing.is_known(&parts.headers) {
            return Ok(Self(changing.clone()));
        }
        if given(&parts.headers).is_some() {
            app.wrong_guess(parts.extensions.get::<Arc<ClientConnection>>()).await;
        }
        Err(Refused::status(
            StatusCode::UNAUTHORIZED,
            "this request needs the token for weights, as `Authorization: Bearer TOKEN`. A run of gradus reads it from \
             the environment variable that `rollouts.key_variable` names. Other programs may also send it as a password",
        ))
    }
}

impl AuthorizedChange {
    /// Returns the folder in the field `name`.
    fn path(&self, name: &str, given: Option<String>) -> Result<PathBuf, Refused> {
        let Some(given) = given else {
            return Err(Refused::missing(name, "the path of a folder"));
        };
        self.0.folder(Path::new(&given)).map_err(|why| Refused::field(name, format!("`{name}` is {given}: {why}")))
    }
}

/// Effect of a pause on completions in progress.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Mode {
    /// They end immediately.
    #[default]
    Abort,
    /// They are sampled to their end.
    Wait,
    /// They are suspended and continue afterwards.
    Keep,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PauseQuery {
    mode: Mode,
}

async fn pause_sampling(
    State(app): State<Arc<App>>,
    query: Result<Query<PauseQuery>, QueryRejection>,
    _: AuthorizedChange,
) -> Result<Response, Refused> {
    let wrong =
        |error: QueryRejection| Refused::field("mode", format!("the query cannot be read: {}", error.body_text()));
    let Query(PauseQuery { mode }) = query.map_err(wrong)?;
    let pause = &app.models.pause;
    match mode {
        Mode::Keep => pause.set(true),
        Mode::Abort => {
            pause.set(false);
            for queue in app.models.all_queues() {
                // If the desk has ended, it has no completions.
                let _ = queue.ask(ModelQueue::abort).await;
            }
        }
        Mode::Wait => {
            pause.set(false);
            while pause.is_set() && is_sampling(&app.models).await {
                tokio::time::sleep(pause::LOOK).await;
            }
        }
    }
    Ok(json_response(StatusCode::OK, &json!({ "status": "paused" })))
}

/// Returns whether any completion is in progress.
async fn is_sampling(models: &Models) -> bool {
    for queue in models.all_queues() {
        if queue.ask(|queue| queue.waiting()).await.is_ok_and(|waiting| waiting > 0) {
            return true;
        }
    }
    false
}

async fn resume(State(app): State<Arc<App>>, _: AuthorizedChange) -> Result<Response, Refused> {
    app.models.pause.end();
    Ok(json_response(StatusCode::OK, &json!({ "status": "resumed" })))
}

/// Prefixes are not cached beyond a request, so there is nothing to reset.
async fn reset_prefix_cache(_: AuthorizedChange) -> Response {
    json_response(StatusCode::OK, &json!({ "success": true }))
}

/// Takes a name or version from the field `name`.
fn label(fields: &mut Fields, name: &str) -> Result<String, Refused> {
    let fits = |text: &String| (1..=NAME_BYTES).contains(&text.len()) && !text.chars().any(char::is_control);
    let expected = format!("a string of 1 to {NAME_BYTES} bytes without line breaks");
    fields.needed(name, &expected, |value| value.as_str().map(str::to_owned).filter(fits))
}

/// Takes the name of a model from the field `name`. Default: the default model.
async fn model_in(app: &Arc<App>, fields: &mut Fields, name: &str) -> Result<String, Refused> {
    match fields.text(name)? {
        Some(model) => Ok(model),
        None => main_model(app).await,
    }
}

async fn update_weight_version(
    State(app): State<Arc<App>>,
    _: AuthorizedChange,
    Body(body): Body,
) -> Result<Response, Refused> {
    let mut fields = Fields::read(&body)?;
    let version = label(&mut fields, "new_version")?;
    let name = model_in(&app, &mut fields, "model").await?;
    app.models.set_version(&name, version.clone());
    Ok(json_response(StatusCode::OK, &json!({ "success": true, "new_version": version })))
}

/// Handles one of the calls to vLLM's workers: loading weights from a folder.
async fn collective_rpc(
    State(app): State<Arc<App>>,
    change: AuthorizedChange,
    Body(body): Body,
) -> Result<Response, Refused> {
    let mut fields = Fields::read(&body)?;
    let method = fields.text("method")?.unwrap_or_default();
    if method != "reload_weights" {
        let message = format!("`method` is `{method}`, but this server supports only `reload_weights`");
        return Err(Refused::field("method", message));
    }
    let mut arguments = fields.within("kwargs")?;
    let path = change.path("weights_path", arguments.text("weights_path")?)?;
    let name = model_in(&app, &mut arguments, "model").await?;
    let old = app.models.queue(&name).await?;
    let chosen = app.models.text_of(&name);
    let (vocabulary, text) = {
        let has_tokenizer = Tokenizer::is_in(&path);
        old.ask(move |queue| {
            let of_old = || queue.session.directory().to_string_lossy().into_owned();
            let tokenizer = chosen.tokenizer.or_else(|| (!has_tokenizer).then(of_old));
            (queue.session.vocab_size(), TextFiles { tokenizer, ..chosen })
        })
        .await?
    };
    let (computing, paused) = (app.models.computing(), app.models.pause.flag());
    let model = path.to_string_lossy().into_owned();
    let options = ChatOptions {
        model,
        adapter: None,
        compute: Precision::F32,
        weights: computing.weights,
        text,
        format: None,
        device: computing.device,
    };
    let made = Actor::start(move || {
        let session = Session::open(&options, computing.places)?;
        let found = session.vocab_size();
        if found != vocabulary {
            let message = format!("the weights have {found} ids, but the model that they replace has {vocabulary}");
            return Err(gradus::Error::input(message).with_hint("load weights of the same model"));
        }
        Ok(ModelQueue::new(session, paused))
    });
    let queue = Arc::new(made.await?);
    let version = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    app.models.place(&name, InstalledModel { queue, path, base: None, version }).await;
    Ok(json_response(StatusCode::OK, &json!({ "results": [null] })))
}

async fn load_adapter(
    State(app): State<Arc<App>>,
    change: AuthorizedChange,
    Body(body): Body,
) -> Result<Response, Refused> {
    let mut fields = Fields::read(&body)?;
    let name = label(&mut fields, "lora_name")?;
    let path = change.path("lora_path", fields.text("lora_path")?)?;
    let replaces = fields.flag("load_inplace")?;
    let of = Arc::clone(&app);
    let there = tokio::task::spawn_blocking(move || of.models.list()).await.map_err(|_| Refused::broken())?;
    let known = there.iter().find(|found| found.name == name);
    let is_adapter = app.models.is_adapter(&name);
    if known.is_some() && !(is_adapter && replaces) {
        let why = if is_adapter { "; set `load_inplace: true` to replace it" } else { "" };
        return Err(Refused::field("lora_name", format!("`lora_name` is `{name}`, which exists already{why}")));
    }
    if known.is_none() && app.models.adapters() >= ADAPTERS_MAX {
        let message = format!("there are {ADAPTERS_MAX} adapters already: remove one with `/v1/unload_lora_adapter`");
        return Err(Refused::field("lora_name", message));
    }
    let on = model_in(&app, &mut fields, "base_model_name").await?;
    if app.models.is_adapter(&on) {
        return Err(Refused::field("base_model_name", format!("`{on}` is an adapter itself")));
    }
    // The thread of the base only provides its weights. The files are read on the adapter's thread.
    let base = app.models.queue(&on).await?.ask(|queue| queue.session.base()).await?;
    let (places, paused) = (app.models.computing().places, app.models.pause.flag());
    let from = path.clone();
    let made = Actor::start(move || Ok(ModelQueue::new(Session::with_adapter(base, &from, places)?, paused)));
    let queue = Arc::new(made.await?);
    let placed = InstalledModel { queue, path, base: Some(on), version: name.clone() };
    app.models.place(&name, placed).await;
    Ok(format!("Success: LoRA adapter '{name}' added successfully.").into_response())
}

/// Removes an adapter. Completions in progress with it are sampled to their end.
async fn unload_adapter(
    State(app): State<Arc<App>>,
    _: AuthorizedChange,
    Body(body): Body,
) -> Result<Response, Refused> {
    let name = label(&mut Fields::read(&body)?, "lora_name")?;
    if !app.models.remove_adapter(&name) {
        return Err(Refused::status(StatusCode::NOT_FOUND, format!("there is no adapter `{name}`")));
    }
    Ok(format!("Success: LoRA adapter '{name}' removed successfully.").into_response())
}

/// Adds to the description of a model: its base, and the maximum number of tokens of a prompt and its completion.
pub fn described(models: &Models, found: &crate::models::ModelEntry, card: &mut Value) {
    let base = models.base_of(&found.name);
    card["root"] = json!(base.as_deref().unwrap_or(&found.name));
    card["parent"] = json!(base);
    card["max_model_len"] = json!(models.positions(found));
}
