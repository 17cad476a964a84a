//! The first page: what there is, and how to use it from elsewhere.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Html as Body;

use crate::app::App;
use crate::html;
use crate::html::Html;
use crate::models::{Found, Kind};
use crate::page::{Page, Place};
use crate::store::sessions::Session;

/// Shows it.
pub async fn show(State(app): State<Arc<App>>, Extension(session): Extension<Session>) -> Body<String> {
    let of = Arc::clone(&app);
    let found = tokio::task::spawn_blocking(move || of.models.list()).await.unwrap_or_default();
    let row = |found: &Found| {
        let kind = match found.kind {
            Kind::Language => "language model",
            Kind::Reward => "reward model",
            Kind::Classifier => "judges answers",
            Kind::Parts => "judges segments of answers",
        };
        html!["<tr><td>" (found.name) "</td><td>" (kind) "</td></tr>\n"]
    };
    let models = match found.is_empty() {
        true => html![
            "<p>There is no model in this folder yet: one that is trained here, or put here, appears by itself.</p>\n"
        ],
        false => html![
            "<div class=\"wide\"><table>\n<thead><tr><th scope=\"col\">Model</th><th scope=\"col\">Kind</th></tr></thead>\n<tbody>\n"
            (found.iter().map(row).collect::<Vec<_>>())
            "</tbody>\n</table></div>\n"
        ],
    };
    let example =
        found.iter().find(|found| found.kind == Kind::Language).map(|found| example(app.guard.port, &found.name));
    let body = html![
        "<p class=\"lead\">" (app.folder.to_string_lossy().as_ref()) "</p>\n<h2>Models</h2>\n" (models) (example)
    ];
    Page { title: "Overview", place: Place::Home, scripts: &[], styles: &[], body }.framed(&session)
}

/// How a program asks a model.
fn example(port: u16, model: &str) -> Html {
    let body = serde_json::json!({ "model": model, "messages": [{ "role": "user", "content": "Hello" }] });
    let quoted = body.to_string().replace('\'', "'\\''");
    html![
        "<h2>For programs</h2>\n<p>The same port speaks OpenAI's protocol, below <code>/v1</code>:</p>\n"
        "<pre tabindex=\"0\">curl http://127.0.0.1:" (u32::from(port)) "/v1/chat/completions -H 'Content-Type: application/json' -d '"
        (quoted) "'</pre>\n"
    ]
}
