//! The chat page: conversations with one model, or with two in parallel.
//!
//! A conversation is a tree: editing a turn and requesting another answer create branches. One path is displayed. Only the server renders
//! the page. Its script sends actions, shows an answer while it streams, and reloads the thread from the server.

mod answer;
mod export;
mod form;
mod sidebar;
mod thread;
mod votes;

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{Html as Body, IntoResponse, Redirect};
use axum::routing::{get, post};
use axum::{Extension, Form, Router};
use gradus::html;
use gradus::inference::ChatFormat;
use serde::Deserialize;
use serde_json::json;

use crate::app::App;
use crate::models::ModelEntry;
use crate::page::{Page, Section, csrf};
use crate::page_error::{PageError, PageResult, Path, read};
use crate::store::chats::{Asker, Choice, Settings, Tree, Voted, title as title_of};
use crate::store::sessions::Session;
use form::Fields;

/// Returns the routes below `/chat`.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/chat", get(list).post(begin))
        .route("/chat/preferences.jsonl", get(export::preferences))
        .route("/chat/votes", get(votes::show))
        .route("/chat/votes.json", get(votes::numbers))
        .route("/chat/{id}", get(show))
        .route("/chat/{id}/thread", get(fragment))
        .route("/chat/{id}/say", post(say))
        .route("/chat/{id}/answer", post(answer::answer))
        .route("/chat/{id}/show", post(branch))
        .route("/chat/{id}/vote", post(vote))
        .route("/chat/{id}/settings", post(set))
        .route("/chat/{id}/rename", post(rename))
        .route("/chat/{id}/delete", post(delete))
        .route("/chat/{id}/conversation.jsonl", get(export::conversation))
        .route("/chat/{id}/tokens/{message}", get(tokens))
}

fn missing() -> PageError {
    PageError::missing("There is no such conversation; it may have been deleted.")
}

fn tree(app: &App, asker: &Asker, id: i64) -> Result<Tree, PageError> {
    app.store.chats(asker).tree(id)?.ok_or_else(missing)
}

async fn models(app: &Arc<App>) -> Vec<ModelEntry> {
    let app = Arc::clone(app);
    tokio::task::spawn_blocking(move || app.models.list()).await.unwrap_or_default()
}

/// Returns the models of a conversation without a chat template, with the format in which they read it.
async fn without_template(app: &Arc<App>, found: &[ModelEntry], settings: &Settings) -> Vec<(String, ChatFormat)> {
    let (app, found, names) = (Arc::clone(app), found.to_vec(), settings.models.clone());
    let look = move || {
        let of = |name: String| app.models.format(&found, &name).map(|format| (name, format));
        let known = names.into_iter().filter_map(of).filter(|(_, format)| *format != ChatFormat::Template);
        known.collect::<Vec<_>>()
    };
    tokio::task::spawn_blocking(look).await.unwrap_or_default()
}

#[derive(Deserialize)]
struct Sought {
    #[serde(default)]
    search: String,
}

/// Renders a new conversation, and the list of conversations.
async fn list(
    State(app): State<Arc<App>>,
    Extension(session): Extension<Session>,
    Query(Sought { search }): Query<Sought>,
) -> PageResult {
    let found = models(&app).await;
    let search = search.trim();
    let conversations = app.store.chats(&app.asker(&session)?).search(search)?;
    let body = html![
        "<div class=\"talk\">\n<section class=\"chat\" aria-labelledby=\"new\">\n<h2 id=\"new\">New conversation</h2>\n"
        (form::new(&session, &found)) "</section>\n" (sidebar::sidebar(&conversations, search, None)) "</div>\n"
    ];
    Ok(Page { title: "Chat", section: Section::Chat, scripts: &["page.js"], styles: &[], body }
        .framed(&session)
        .into_response())
}

async fn begin(
    State(app): State<Arc<App>>,
    Extension(session): Extension<Session>,
    Form(fields): Form<Fields>,
) -> PageResult {
    let settings = fields.settings(&models(&app).await).map_err(|why| PageError::request(&why))?;
    let asker = app.asker(&session)?;
    let first = fields.first_message();
    // A message of spaces starts no conversation. Programs may start one without a message.
    if !first.is_empty() && first.trim().is_empty() {
        return Ok(Redirect::to("/chat").into_response());
    }
    let id = app.store.chats(&asker).begin(&settings)?;
    // The page requests an answer to this message when it loads.
    let answers = match first.trim().is_empty() {
        true => "",
        false => app.store.chats(&asker).add_message(id, None, &first)?.map_or("", |_| "#answer"),
    };
    Ok(Redirect::to(&format!("/chat/{id}{answers}")).into_response())
}

async fn show(State(app): State<Arc<App>>, Extension(session): Extension<Session>, Path(id): Path<i64>) -> PageResult {
    let asker = app.asker(&session)?;
    let tree = tree(&app, &asker, id)?;
    let found = models(&app).await;
    let conversations = app.store.chats(&asker).list()?;
    let settings = &tree.conversation.settings;
    let plain = without_template(&app, &found, settings).await;
    let title = &tree.conversation.title;
    let csrf = csrf(&session);
    let body = html![
        "<div class=\"talk\">\n<div class=\"chat\" data-chat=\"" (id) "\" data-sides=\"" (settings.models.len()) "\">\n"
        "<div class=\"chat-head\"><p class=\"soft\" id=\"with\">" (thread::with(settings)) "</p>\n"
        "<details class=\"drawer\">\n<summary>Model and sampling</summary>\n" (form::change(&session, id, settings, &found)) "</details>\n"
        "<details class=\"drawer\">\n<summary>Rename, download, delete</summary>\n<form method=\"post\" action=\"/chat/" (id) "/rename\" class=\"row\">"
        (csrf) "<label for=\"title\">Title</label><input id=\"title\" name=\"title\" value=\"" (title) "\" maxlength=\"80\" required>"
        "<button type=\"submit\">Rename</button></form>\n"
        "<p class=\"row\"><a href=\"/chat/" (id) "/conversation.jsonl\" download>Download as training rows</a></p>\n"
        "<form method=\"post\" action=\"/chat/" (id) "/delete\" class=\"row\">" (csrf)
        "<button type=\"submit\">Delete</button><span class=\"soft small\">This deletes the messages and votes of this conversation.</span></form>\n</details></div>\n"
        (thread::no_template(&plain, settings.blind))
        "<div id=\"thread\">\n" (thread::thread(&tree, &app.rich)) "</div>\n"
        "<div class=\"composer\">\n<p id=\"status\" role=\"status\" class=\"small soft\"></p>\n"
        "<form id=\"say\">\n<label class=\"unseen\" for=\"text\">Your message</label>\n"
        "<textarea id=\"text\" name=\"text\" rows=\"2\" dir=\"auto\" placeholder=\"Your message\" data-sends required></textarea>\n"
        "<div class=\"row\"><button type=\"submit\" class=\"main\">Send</button>"
        "<button type=\"button\" id=\"stop\" hidden>Stop</button>" (form::keys()) "</div>\n</form>\n</div>\n"
        "<noscript><p>This page needs its script. Allow JavaScript for this site.</p></noscript>\n"
        "</div>\n" (sidebar::sidebar(&conversations, "", Some(id))) "</div>\n"
    ];
    let page = Page { title, section: Section::Chat, scripts: &["page.js", "chat.js"], styles: &[], body };
    Ok(page.framed(&session).into_response())
}

async fn fragment(
    State(app): State<Arc<App>>,
    Extension(session): Extension<Session>,
    Path(id): Path<i64>,
) -> PageResult {
    let tree = tree(&app, &app.asker(&session)?, id)?;
    Ok(Body(thread::thread(&tree, &app.rich).into_string()).into_response())
}

#[derive(Deserialize)]
struct NewMessage {
    text: String,
    /// Message before this one. An edited turn has the same parent as the original turn.
    parent: Option<i64>,
}

async fn say(
    State(app): State<Arc<App>>,
    Extension(session): Extension<Session>,
    Path(id): Path<i64>,
    body: Bytes,
) -> PageResult {
    let NewMessage { text, parent } = read(&body)?;
    if text.trim().is_empty() {
        return Err(PageError::request("The message is empty."));
    }
    let message = app.store.chats(&app.asker(&session)?).add_message(id, parent, &text)?.ok_or_else(missing)?;
    Ok(json!({ "message": message }).to_string().into_response())
}

#[derive(Deserialize)]
struct ShownMessage {
    message: i64,
}

async fn branch(
    State(app): State<Arc<App>>,
    Extension(session): Extension<Session>,
    Path(id): Path<i64>,
    body: Bytes,
) -> PageResult {
    let ShownMessage { message } = read(&body)?;
    let leaf = tree(&app, &app.asker(&session)?, id)?.newest_below(message);
    match app.store.chats(&app.asker(&session)?).show(id, leaf)? {
        true => Ok(StatusCode::NO_CONTENT.into_response()),
        false => Err(missing()),
    }
}

#[derive(Deserialize)]
struct Vote {
    pair: i64,
    choice: Choice,
}

async fn vote(
    State(app): State<Arc<App>>,
    Extension(session): Extension<Session>,
    Path(id): Path<i64>,
    body: Bytes,
) -> PageResult {
    let Vote { pair, choice } = read(&body)?;
    match app.store.chats(&app.asker(&session)?).vote(id, pair, choice)? {
        Voted::Stored => Ok(StatusCode::NO_CONTENT.into_response()),
        Voted::Final => Err(PageError::request("A blind vote is final: the names were shown after it.")),
        Voted::Nowhere => Err(PageError::request("There are no two answers to vote on.")),
    }
}

async fn set(
    State(app): State<Arc<App>>,
    Extension(session): Extension<Session>,
    Path(id): Path<i64>,
    Form(fields): Form<Fields>,
) -> PageResult {
    let settings = fields.settings(&models(&app).await).map_err(|why| PageError::request(&why))?;
    let asker = app.asker(&session)?;
    if tree(&app, &asker, id)?.conversation.settings.blind {
        return Err(PageError::forbidden(
            "The settings of a blind conversation cannot change: they would show the names.",
        ));
    }
    match app.store.chats(&asker).set(id, &settings)? {
        true => Ok(Redirect::to(&format!("/chat/{id}")).into_response()),
        false => Err(missing()),
    }
}

#[derive(Deserialize)]
struct Renamed {
    title: String,
}

async fn rename(
    State(app): State<Arc<App>>,
    Extension(session): Extension<Session>,
    Path(id): Path<i64>,
    Form(Renamed { title }): Form<Renamed>,
) -> PageResult {
    let title = title_of(&title);
    if title.is_empty() {
        return Err(PageError::request("The title is empty."));
    }
    match app.store.chats(&app.asker(&session)?).rename(id, &title)? {
        true => Ok(Redirect::to(&format!("/chat/{id}")).into_response()),
        false => Err(missing()),
    }
}

async fn delete(
    State(app): State<Arc<App>>,
    Extension(session): Extension<Session>,
    Path(id): Path<i64>,
) -> PageResult {
    match app.store.chats(&app.asker(&session)?).remove(id)? {
        true => Ok(Redirect::to("/chat").into_response()),
        false => Err(missing()),
    }
}

async fn tokens(
    State(app): State<Arc<App>>,
    Extension(session): Extension<Session>,
    Path((id, message)): Path<(i64, i64)>,
) -> PageResult {
    let asker = app.asker(&session)?;
    let tree = tree(&app, &asker, id)?;
    if tree.message(message).is_some_and(|message| tree.is_hidden(message)) {
        return Err(PageError::forbidden("Vote first: tokens can show which model answered."));
    }
    let tokens = app.store.chats(&asker).tokens(id, message)?.unwrap_or_else(|| "[]".into());
    Ok(([(axum::http::header::CONTENT_TYPE, "application/json")], tokens).into_response())
}
