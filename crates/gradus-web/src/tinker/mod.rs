//! Training server for Tinker's clients, at `/api/v1/`.
//!
//! A client opens a session, creates models (adapters on a shared base) and sends numbered requests to them. Every request is answered
//! immediately with an id, and `retrieve_future` waits for its result. A repeated request is executed once.
//!
//! [`registry`] stores sessions, models and requests; [`journal`] writes them to disk; [`worker`] is the thread that computes, alternating
//! between clients. [`data`] and [`sampling`] parse requests. Checkpoints are ordinary directories ([`checkpoints`]).

mod bodies;
mod checkpoints;
mod data;
mod journal;
mod options;
mod outcome;
mod proto;
mod registry;
mod sampling;
mod shared;
mod training;
mod worker;

use std::cmp::Reverse;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path as PathOf, Query, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use gradus::model::{ModelDir, ModelShape};
use prost::Message;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::app::App;
use crate::guard::BODY_BYTES;
use crate::models::{Kind as ModelKind, ModelEntry as FoundModel, Models};
use bodies::{CreateBody, LoadBody};
use checkpoints::{Checkpoint, CheckpointAddress, Use};
pub use options::TrainingOptions;
use outcome::{Refused, RequestResult, answer};
use proto::ForwardBackwardRequest;
use registry::{Kind, Registry, RequestState};
use sampling::SampleBody;
use shared::Shared;
pub use training::Training;

/// Prefix of all paths.
pub const PREFIX: &str = "/api/v1/";

/// Returns the routes below `/api/v1`.
pub fn routes() -> Router<Arc<App>> {
    let at = |path: &str| format!("{PREFIX}{path}");
    Router::new()
        .route(&at("healthz"), get(healthy))
        .route(&at("client/config"), post(config))
        .route(&at("client/dynamic_config"), post(dynamic_config))
        .route(&at("telemetry"), post(telemetry))
        .route(&at("get_server_capabilities"), get(capabilities))
        .route(&at("create_session"), post(create_session))
        .route(&at("session_heartbeat"), post(heartbeat))
        .route(&at("sessions"), get(list_sessions))
        .route(&at("sessions/{id}"), get(session))
        .route(&at("sessions/{id}/finish"), post(finish_session))
        .route(&at("create_model"), post(create_model))
        .route(&at("get_info"), post(info))
        .route(&at("unload_model"), post(unload))
        .route(&at("forward_backward"), post(forward_backward))
        .route(&at("optim_step"), post(optim_step))
        .route(&at("save_weights"), post(save_weights))
        .route(&at("save_weights_for_sampler"), post(save_for_sampler))
        .route(&at("save_weights_external"), post(save_external))
        .route(&at("load_weights"), post(load_weights))
        .route(&at("create_sampling_session"), post(create_sampler))
        .route(&at("join_sampling_session"), post(join_sampler))
        .route(&at("samplers/{id}"), get(sampler))
        .route(&at("asample"), post(sample))
        .route(&at("cancel_future"), post(cancel))
        .route(&at("retrieve_future"), post(retrieve))
        .route(&at("weights_info"), post(weights_info))
        .route(&at("checkpoints"), get(list_all_checkpoints))
        .route(&at("training_runs"), get(list_runs))
        .route(&at("training_runs/{run}"), get(run))
        .route(&at("training_runs/{run}/checkpoints"), get(list_checkpoints))
        .route(&at("training_runs/{run}/checkpoints/{of}/{name}"), axum::routing::delete(delete_checkpoint))
        .route(&at("{*rest}"), get(nothing).post(nothing).put(nothing).delete(nothing))
}

/// Returns the response to a request that was not admitted, in the form of this API.
pub fn refusal(status: StatusCode, why: &str) -> Response {
    Refused::new(status, why).into_response()
}

type HandlerResult = Result<Response, Refused>;

fn shared(app: &App) -> Result<&Arc<Shared>, Refused> {
    let training = app.tinker.as_ref().map(|training| &training.shared);
    training.ok_or_else(|| Refused::missing("this server does not train: start it with `gradus serve --training-api`"))
}

/// Accesses the registry on another thread, because it may wait for the disk.
async fn with<R: Send + 'static>(
    app: &App,
    ask: impl FnOnce(&mut Registry) -> Result<R, Refused> + Send + 'static,
) -> Result<R, Refused> {
    let shared = Arc::clone(shared(app)?);
    let task = tokio::task::spawn_blocking(move || {
        let found = ask(&mut shared.registry());
        shared.work.notify_all();
        found
    });
    task.await.map_err(|_| Refused::new(StatusCode::INTERNAL_SERVER_ERROR, "the server failed at this request"))?
}

/// Parses a JSON body.
fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refused> {
    bodies::parse(body).map_err(Refused::request)
}

fn ok(value: &Value) -> Response {
    answer(StatusCode::OK, value)
}

/// Responds that a request was accepted.
fn promised(request: &str, model: Option<&str>) -> Response {
    ok(&json!({ "request_id": request, "model_id": model }))
}

async fn nothing(State(app): State<Arc<App>>, method: Method, uri: Uri) -> Refused {
    match shared(&app) {
        Ok(_) => {
            let path = uri.path();
            Refused::missing(format!(
                "this server does not support `{method} {path}`: `gradus docs tinker` lists the supported calls"
            ))
        }
        Err(refused) => refused,
    }
}

/// Query of a list, as text: an error then names the field and its value.
#[derive(Deserialize)]
struct ListQuery {
    limit: Option<String>,
    offset: Option<String>,
    project_id: Option<String>,
}

/// Part of a list that a client requests.
struct Page {
    limit: Option<usize>,
    offset: usize,
}

impl Page {
    /// Returns the requested items under `key`, by default at most `limit`, and the position in the list.
    fn of<T: Into<Value>>(self, key: &str, items: Vec<T>, limit: usize) -> Value {
        let (limit, offset, total) = (self.limit.unwrap_or(limit), self.offset, items.len());
        let items: Vec<Value> = items.into_iter().skip(offset).take(limit).map(Into::into).collect();
        json!({ key: items, "cursor": { "offset": offset, "limit": limit, "total_count": total } })
    }
}

type PageQuery = Result<Query<ListQuery>, QueryRejection>;

/// Returns the requested part of a list.
fn page(query: PageQuery) -> Result<Page, Refused> {
    let unreadable =
        |error: QueryRejection| Refused::request(format!("the query cannot be read: {}", error.body_text()));
    let Query(query) = query.map_err(unreadable)?;
    if query.project_id.is_some() {
        return Err(Refused::request("`project_id` is not supported by this server: leave it out"));
    }
    let number = |name: &str, text: Option<String>| {
        let wrong = |text: &str| {
            Refused::request(format!("`{name}` is `{text}`, but a whole number of at least 0 is expected"))
        };
        text.map(|text| text.parse::<usize>().map_err(|_| wrong(&text))).transpose()
    };
    Ok(Page { limit: number("limit", query.limit)?, offset: number("offset", query.offset)?.unwrap_or(0) })
}

async fn list_sessions(State(app): State<Arc<App>>, query: PageQuery) -> HandlerResult {
    let page = page(query)?;
    let all = with(&app, |registry| registry.sessions()).await?;
    Ok(ok(&page.of("sessions", all, 20)))
}

async fn healthy(State(app): State<Arc<App>>) -> HandlerResult {
    shared(&app)?;
    Ok(ok(&json!({ "status": "ok" })))
}

async fn config(State(app): State<Arc<App>>) -> HandlerResult {
    shared(&app)?;
    Ok(ok(&json!({ "pjwt_auth_enabled": false })))
}

async fn dynamic_config(State(app): State<Arc<App>>) -> HandlerResult {
    shared(&app)?;
    Ok(ok(&json!({ "sample_cancel_enabled": true })))
}

/// Telemetry of clients is discarded.
async fn telemetry(State(app): State<Arc<App>>) -> HandlerResult {
    shared(&app)?;
    Ok(ok(&json!({ "status": "accepted" })))
}

/// Returns the base models: language models that are not adapters.
fn bases(models: &Models) -> Vec<(FoundModel, ModelDir)> {
    let found = models.list().into_iter().filter(|found| found.kind == ModelKind::Language);
    let opened = found.filter_map(|found| {
        let dir = ModelDir::open(&gradus::inference::model_of(&found.path).ok()?).ok()?;
        dir.adapter.is_none().then_some((found, dir))
    });
    opened.collect()
}

async fn capabilities(State(app): State<Arc<App>>) -> HandlerResult {
    shared(&app)?;
    let models = Arc::clone(&app.models);
    let list = move || {
        let described = bases(&models).into_iter().map(|(found, dir)| {
            let longest = ModelShape::of(&dir).ok().and_then(|shape| shape.max_positions);
            json!({ "model_name": found.name, "max_context_length": longest, "trainable": true, "sampleable": true })
        });
        described.collect::<Vec<_>>()
    };
    let supported = tokio::task::spawn_blocking(list).await.unwrap_or_default();
    Ok(ok(&json!({ "supported_models": supported })))
}

async fn create_session(State(app): State<Arc<App>>, headers: HeaderMap, _body: Bytes) -> HandlerResult {
    let key = headers.get("x-idempotency-key").and_then(|key| key.to_str().ok()).map(str::to_owned);
    let id = with(&app, move |registry| registry.create_session(key.as_deref())).await?;
    Ok(ok(&json!({ "type": "create_session", "session_id": id })))
}

#[derive(Deserialize)]
struct OfSession {
    session_id: String,
}

async fn heartbeat(State(app): State<Arc<App>>, body: Bytes) -> HandlerResult {
    let OfSession { session_id } = read(&body)?;
    with(&app, move |registry| registry.touch(&session_id)).await?;
    Ok(ok(&json!({ "type": "session_heartbeat" })))
}

async fn session(State(app): State<Arc<App>>, PathOf(id): PathOf<String>) -> HandlerResult {
    let (models, samplers) = with(&app, move |registry| registry.of_session(&id)).await?;
    Ok(ok(&json!({ "training_run_ids": models, "sampler_ids": samplers })))
}

async fn finish_session(State(app): State<Arc<App>>, PathOf(id): PathOf<String>) -> HandlerResult {
    with(&app, move |registry| {
        registry.end_session(&id);
        Ok(())
    })
    .await?;
    Ok(ok(&json!({})))
}

/// Checks that a base model exists.
async fn base(app: &Arc<App>, name: &str) -> Result<(), Refused> {
    let (models, name) = (Arc::clone(&app.models), name.to_owned());
    let look = move || {
        let all = bases(&models);
        if all.iter().any(|(found, _)| found.name == name) {
            return Ok(());
        }
        let known: Vec<String> = all.into_iter().map(|(found, _)| format!("`{}`", found.name)).collect();
        Err(Refused::missing(format!("there is no base model `{name}`: the models are {}", known.join(", "))))
    };
    tokio::task::spawn_blocking(look).await.unwrap_or_else(|_| Err(Refused::missing("the models cannot be listed")))
}

async fn create_model(State(app): State<Arc<App>>, body: Bytes) -> HandlerResult {
    let mut create: CreateBody = read(&body)?;
    create.check().map_err(Refused::request)?;
    base(&app, &create.base_model).await?;
    // The random seed is stored, because the request may be repeated.
    if let Some(lora) = create.lora_config.as_mut().filter(|lora| lora.seed.is_none()) {
        lora.seed = Some(sampling::random()?);
    }
    let text = serde_json::to_vec(&create).map_err(|error| Refused::request(error.to_string()))?;
    let CreateBody { session_id, model_seq_id, base_model, .. } = create;
    let made =
        with(&app, move |registry| registry.create_model(&session_id, model_seq_id, &base_model, Kind::Create, &text));
    let (model, request) = made.await?;
    Ok(promised(&request, Some(&model)))
}

#[derive(Deserialize)]
struct OfModel {
    model_id: String,
}

async fn info(State(app): State<Arc<App>>, body: Bytes) -> HandlerResult {
    let OfModel { model_id } = read(&body)?;
    let id = model_id.clone();
    let (base, made) = with(&app, move |registry| registry.info(&id)).await?;
    let RequestResult::Json(made) = &*made else {
        return Err(Refused::request(format!("the model `{model_id}` was not created: its first request failed")));
    };
    let rank = serde_json::from_str::<Value>(made).ok().and_then(|made| made["lora_rank"].as_u64());
    let (models, name) = (Arc::clone(&app.models), base.clone());
    let described = move || {
        let dir = ModelDir::open(&gradus::inference::model_of(&models.language(&name).ok()?.path).ok()?).ok()?;
        let tokenizer = dir.tokenizer_dir().to_string_lossy().into_owned();
        Some(json!({ "arch": dir.model_type(), "model_name": name, "tokenizer_id": tokenizer }))
    };
    let data = tokio::task::spawn_blocking(described).await.ok().flatten();
    let data = data.unwrap_or_else(|| json!({ "model_name": base }));
    Ok(ok(&json!({
        "type": "get_info",
        "model_id": model_id,
        "model_data": data,
        "optimizer_config": { "type": "adamw" },
        "is_lora": true,
        "lora_rank": rank,
        "model_name": base,
    })))
}

async fn unload(State(app): State<Arc<App>>, body: Bytes) -> HandlerResult {
    let OfModel { model_id } = read(&body)?;
    let id = model_id.clone();
    with(&app, move |registry| registry.unload(&id)).await?;
    Ok(promised(&format!("{model_id}{UNLOADED}"), Some(&model_id)))
}

/// Suffix of the id of a request that unloads a model.
const UNLOADED: &str = ":unload";

/// Accepts a numbered request to a model.
async fn submit(app: &App, model: String, seq: u64, kind: Kind, body: Bytes) -> HandlerResult {
    let id = model.clone();
    let request = with(app, move |registry| registry.submit(&id, seq, kind, &body)).await?;
    Ok(promised(&request, Some(&model)))
}

/// Returns the uncompressed body.
fn plain(headers: &HeaderMap, body: Bytes) -> Result<Bytes, Refused> {
    match headers.get(header::CONTENT_ENCODING).map(|of| of.to_str().unwrap_or_default()) {
        None | Some("identity") => Ok(body),
        Some("zstd") => {
            let mut whole = Vec::new();
            let broken = |error: std::io::Error| Refused::request(format!("the body is not zstd: {error}"));
            let decoder = zstd::Decoder::new(&body[..]).map_err(broken)?;
            decoder.take(BODY_BYTES as u64 + 1).read_to_end(&mut whole).map_err(broken)?;
            match whole.len() <= BODY_BYTES {
                true => Ok(whole.into()),
                false => Err(Refused::new(StatusCode::PAYLOAD_TOO_LARGE, "the body is larger than 16 MiB")),
            }
        }
        Some(other) => {
            let message = format!("`Content-Encoding` is `{other}`, but `zstd` or no encoding is needed");
            Err(Refused::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message))
        }
    }
}

async fn forward_backward(State(app): State<Arc<App>>, headers: HeaderMap, body: Bytes) -> HandlerResult {
    shared(&app)?;
    let kind = headers.get(header::CONTENT_TYPE).and_then(|of| of.to_str().ok()).unwrap_or_default();
    if !kind.starts_with("application/x-protobuf") {
        let message = "the body must be a protocol buffer, and `Content-Type` must be `application/x-protobuf`";
        return Err(Refused::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    let body = plain(&headers, body)?;
    let request = ForwardBackwardRequest::decode(&body[..])
        .map_err(|error| Refused::request(format!("the body is not a `ForwardBackwardRequest`: {error}")))?;
    let seq = u64::try_from(request.seq_id).unwrap_or(0);
    submit(&app, request.model_id, seq, Kind::ForwardBackward, body).await
}

#[derive(Deserialize)]
struct Numbered {
    model_id: String,
    seq_id: Option<u64>,
}

/// Accepts a numbered JSON request.
async fn submit_json(app: &App, kind: Kind, body: Bytes) -> HandlerResult {
    let Numbered { model_id, seq_id } = read(&body)?;
    submit(app, model_id, seq_id.unwrap_or(0), kind, body).await
}

async fn optim_step(State(app): State<Arc<App>>, body: Bytes) -> HandlerResult {
    submit_json(&app, Kind::Step, body).await
}

async fn save_weights(State(app): State<Arc<App>>, body: Bytes) -> HandlerResult {
    submit_json(&app, Kind::Save, body).await
}

async fn save_for_sampler(State(app): State<Arc<App>>, body: Bytes) -> HandlerResult {
    submit_json(&app, Kind::SaveForSampler, body).await
}

async fn save_external(State(app): State<Arc<App>>, body: Bytes) -> HandlerResult {
    let Numbered { model_id, seq_id } = read(&body)?;
    let what = Bytes::from_static(b"save_weights_external");
    submit(&app, model_id, seq_id.unwrap_or(0), Kind::Unsupported, what).await
}

async fn load_weights(State(app): State<Arc<App>>, body: Bytes) -> HandlerResult {
    let load: LoadBody = read(&body)?;
    match (load.model_id, load.seq_id, load.session_id, load.model_seq_id) {
        (Some(model), seq, None, None) => submit(&app, model, seq.unwrap_or(0), Kind::Load, body).await,
        (None, None, Some(session), Some(number)) => {
            let folder = shared(&app)?.folder.clone();
            let base = CheckpointAddress::parse(&load.path)?.about(&folder)?.base_model;
            let made = with(&app, move |registry| registry.create_model(&session, number, &base, Kind::Load, &body));
            let (model, request) = made.await?;
            Ok(promised(&request, Some(&model)))
        }
        _ => Err(Refused::request("either `model_id` and `seq_id` or `session_id` and `model_seq_id` are needed")),
    }
}

#[derive(Deserialize)]
struct CreateSampler {
    session_id: String,
    sampling_session_seq_id: u64,
    base_model: Option<String>,
    model_path: Option<String>,
}

async fn create_sampler(State(app): State<Arc<App>>, body: Bytes) -> HandlerResult {
    let CreateSampler { session_id, sampling_session_seq_id, base_model, model_path } = read(&body)?;
    let folder = shared(&app)?.folder.clone();
    let (name, directory) = match (&model_path, base_model) {
        (Some(path), _) => {
            let address = CheckpointAddress::parse(path)?;
            let name = address.about(&folder)?.base_model;
            let below = address.directory(Path::new(""));
            (name, Some(below.to_string_lossy().into_owned()))
        }
        (None, Some(name)) => (name, None),
        (None, None) => return Err(Refused::request("`model_path` or `base_model` is needed")),
    };
    base(&app, &name).await?;
    let made = with(&app, move |registry| {
        registry.create_sampler(&session_id, sampling_session_seq_id, &name, (directory, model_path))
    });
    Ok(ok(&json!({ "type": "create_sampling_session", "sampling_session_id": made.await? })))
}

#[derive(Deserialize)]
struct OfSampler {
    sampling_session_id: String,
}

async fn join_sampler(State(app): State<Arc<App>>, body: Bytes) -> HandlerResult {
    let OfSampler { sampling_session_id } = read(&body)?;
    let number = with(&app, move |registry| registry.join_sampler(&sampling_session_id)).await?;
    Ok(ok(&json!({ "type": "join_sampling_session", "client_counter": number })))
}

async fn sampler(State(app): State<Arc<App>>, PathOf(id): PathOf<String>) -> HandlerResult {
    let stored = with(&app, move |registry| registry.stored_sampler(&id).cloned()).await?;
    Ok(ok(&json!({ "sampler_id": stored.id, "base_model": stored.base, "model_path": stored.path })))
}

async fn sample(State(app): State<Arc<App>>, body: Bytes) -> HandlerResult {
    shared(&app)?;
    let parsed: SampleBody = read(&body)?;
    let (Some(sampler), Some(seq)) = (parsed.sampling_session_id.clone(), parsed.seq_id) else {
        return Err(Refused::request("`sampling_session_id` and `seq_id` are needed: create a sampling session first"));
    };
    let request = parsed.read().map_err(Refused::request)?;
    let samples = request.samples();
    let id = with(&app, move |registry| registry.submit_sample(&sampler, seq, request)).await?;
    let sequences: Vec<String> = (0..samples).map(|i| format!("{id}:{i}")).collect();
    Ok(ok(&json!({ "request_id": id, "sample_sequence_ids": sequences })))
}

#[derive(Deserialize)]
struct OfRequest {
    request_id: String,
}

async fn cancel(State(app): State<Arc<App>>, body: Bytes) -> HandlerResult {
    let OfRequest { request_id } = read(&body)?;
    with(&app, move |registry| {
        registry.cancel(&request_id);
        Ok(())
    })
    .await?;
    Ok(ok(&json!({})))
}

/// Waits for the result of a request.
async fn retrieve(State(app): State<Arc<App>>, body: Bytes) -> HandlerResult {
    let OfRequest { request_id } = read(&body)?;
    let shared = shared(&app)?;
    if let Some(model) = request_id.strip_suffix(UNLOADED) {
        return Ok(ok(&json!({ "model_id": model, "type": "unload_model" })));
    }
    let mut news = shared.news.subscribe();
    let look = async {
        loop {
            news.mark_unchanged();
            // The lock is held only briefly, because nothing is written to disk here.
            match shared.registry().find(&request_id) {
                RequestState::Waiting => {}
                found => return found,
            }
            if news.changed().await.is_err() {
                return RequestState::Gone;
            }
        }
    };
    match tokio::time::timeout(shared.patience, look).await {
        Ok(RequestState::Done(outcome)) => Ok((&*outcome).into_response()),
        Ok(_) => {
            Err(Refused::gone(format!("the request `{request_id}` is unknown: it was never received, or too long ago")))
        }
        Err(_) => {
            let again = json!({ "type": "try_again", "request_id": request_id, "queue_state": "active" });
            Ok(answer(StatusCode::REQUEST_TIMEOUT, &again))
        }
    }
}

#[derive(Deserialize)]
struct OfPath {
    tinker_path: String,
}

/// Accesses the checkpoints on another thread.
async fn on_disk<R: Send + 'static>(
    app: &App,
    ask: impl FnOnce(&Path) -> Result<R, Refused> + Send + 'static,
) -> Result<R, Refused> {
    let folder = shared(app)?.folder.clone();
    let task = tokio::task::spawn_blocking(move || ask(&folder));
    task.await.map_err(|_| Refused::new(StatusCode::INTERNAL_SERVER_ERROR, "the server failed at this request"))?
}

async fn weights_info(State(app): State<Arc<App>>, body: Bytes) -> HandlerResult {
    let OfPath { tinker_path } = read(&body)?;
    let about = on_disk(&app, move |folder| Ok(CheckpointAddress::parse(&tinker_path)?.about(folder)?)).await?;
    Ok(ok(&json!({ "base_model": about.base_model, "is_lora": true, "lora_rank": about.rank })))
}

/// Describes a run by its checkpoints. A run without checkpoints has no description.
fn described(run: &str, checkpoints: &[Checkpoint]) -> Option<Value> {
    let newest = &checkpoints.last()?.about;
    let last = |of: Use| checkpoints.iter().rfind(|checkpoint| checkpoint.address.of == of).map(Checkpoint::described);
    Some(json!({
        "training_run_id": run,
        "base_model": newest.base_model,
        "model_owner": "gradus",
        "is_lora": true,
        "lora_rank": newest.rank,
        "last_request_time": checkpoints::time(newest.time),
        "last_checkpoint": last(Use::Training),
        "last_sampler_checkpoint": last(Use::Sampling),
    }))
}

async fn run(State(app): State<Arc<App>>, PathOf(run): PathOf<String>) -> HandlerResult {
    let found = on_disk(&app, move |folder| {
        // A name that leads elsewhere is not a run.
        CheckpointAddress::parse(&format!("tinker://{run}/weights/x"))?;
        let found = described(&run, &checkpoints::list(folder, &run));
        found.ok_or_else(|| Refused::missing(format!("the run `{run}` has no checkpoints")))
    });
    Ok(ok(&found.await?))
}

async fn list_runs(State(app): State<Arc<App>>, query: PageQuery) -> HandlerResult {
    let page = page(query)?;
    let all = on_disk(&app, |folder| {
        let mut all: Vec<(u64, Value)> = Vec::new();
        for run in checkpoints::runs(folder) {
            let own = checkpoints::list(folder, &run);
            all.extend(described(&run, &own).zip(own.last()).map(|(described, last)| (last.about.time, described)));
        }
        all.sort_by_key(|(time, _)| Reverse(*time));
        Ok(all.into_iter().map(|(_, described)| described).collect::<Vec<_>>())
    });
    Ok(ok(&page.of("training_runs", all.await?, 20)))
}

async fn list_checkpoints(State(app): State<Arc<App>>, PathOf(run): PathOf<String>) -> HandlerResult {
    let all = on_disk(&app, move |folder| {
        CheckpointAddress::parse(&format!("tinker://{run}/weights/x"))?;
        Ok(checkpoints::list(folder, &run).iter().map(Checkpoint::described).collect::<Vec<_>>())
    });
    Ok(ok(&json!({ "checkpoints": all.await? })))
}

async fn list_all_checkpoints(State(app): State<Arc<App>>, query: PageQuery) -> HandlerResult {
    let page = page(query)?;
    let all = on_disk(&app, |folder| {
        let mut all: Vec<Checkpoint> =
            checkpoints::runs(folder).iter().flat_map(|run| checkpoints::list(folder, run)).collect();
        all.sort_by_key(|checkpoint| Reverse(checkpoint.about.time));
        Ok(all.iter().map(Checkpoint::described).collect::<Vec<_>>())
    });
    Ok(ok(&page.of("checkpoints", all.await?, 100)))
}

async fn delete_checkpoint(
    State(app): State<Arc<App>>,
    PathOf((run, of, name)): PathOf<(String, String, String)>,
) -> HandlerResult {
    on_disk(&app, move |folder| {
        let address = CheckpointAddress::parse(&format!("tinker://{run}/{of}/{name}"))?;
        address.about(folder)?;
        Ok(gradus::files::atomic::remove_dir(&address.directory(folder))?)
    })
    .await?;
    Ok(ok(&json!({})))
}
