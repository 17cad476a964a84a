//! The start page: three entry points, running runs, the newest runs, and the models.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::IntoResponse;
use gradus::html;
use gradus::html::Html;
use gradus::runs::{Entry, Status};

use crate::app::App;
use crate::components::breakable;
use crate::models::{Kind, ModelEntry};
use crate::page::{Page, Section};
use crate::page_error::PageResult;
use crate::runs::{address, badge, blocking, figure};
use crate::store::projects::{AnnotationState, Project};
use crate::store::sessions::Session;
use crate::training::{demo_scripts, offer_demo};

/// Number of listed runs.
const RUNS: usize = 5;

/// Renders the page.
pub async fn show(State(app): State<Arc<App>>, Extension(session): Extension<Session>) -> PageResult {
    let of = Arc::clone(&app);
    let (found, mut entries) = blocking(move || (of.models.list(), of.runs.entries(&of.folder))).await?;
    entries.sort_by(|a, b| b.changed.cmp(&a.changed).then_with(|| a.name.cmp(&b.name)));
    let projects = app.store.projects();
    let mut open = Vec::new();
    for project in projects.list()? {
        let all = projects.annotations(project.id)?;
        let done = all.iter().filter(|annotation| annotation.state == AnnotationState::Done).count();
        open.push((project, done));
    }
    let example =
        found.iter().find(|found| found.kind == Kind::Language).map(|found| example(app.guard.port, &found.name));
    let body = html![
        "<p class=\"lead\">Folder <code>" (app.folder.to_string_lossy().as_ref()) "</code></p>\n"
        (ways(&app, &found, &open)) "<div data-refreshed>\n" (running(&app, &entries)) "<div class=\"two whole\">\n<section>" (recent(&app, &session, &entries)) "</section>\n<section>" (models(&found))
        "</section></div>\n</div>\n" (example)
    ];
    let scripts = demo_scripts(&app);
    Ok(Page { title: "Overview", section: Section::Home, scripts, styles: &[], body }.framed(&session).into_response())
}

/// Renders the three entry points.
fn ways(app: &App, found: &[ModelEntry], projects: &[(Project, usize)]) -> Html {
    let languages = found.iter().filter(|found| found.kind == Kind::Language).count();
    let chat = match languages {
        0 => html!["<p class=\"soft small\">There is no language model in this folder yet.</p>\n"],
        1 => html!["<p class=\"soft small\">1 model answers.</p>\n"],
        many => html!["<p class=\"soft small\">" (many) " models answer.</p>\n"],
    };
    let done: usize = projects.iter().map(|(_, done)| done).sum();
    let annotate = match projects.len() {
        0 => html!["<p class=\"soft small\">There is no project yet.</p>\n"],
        1 => html!["<p class=\"soft small\">1 project, " (done) " annotations.</p>\n"],
        many => html!["<p class=\"soft small\">" (many) " projects, " (done) " annotations.</p>\n"],
    };
    let (train, to) = match app.training.is_allowed() {
        true => (html!["<p class=\"soft small\">Start a run from a form.</p>\n"], "/runs/new"),
        false => (
            html![
                "<p class=\"soft small\">See runs here. Start them with <code>gradus train</code>, or start the server with <code>--allow-training</code>.</p>\n"
            ],
            "/runs",
        ),
    };
    let card = |to: &'static str, title: &'static str, words: &'static str, note: Html| {
        html![
            "<section class=\"card\"><h2><a href=\"" (to) "\">" (title) "</a></h2>\n<p>" (words) "</p>\n" (note) "</section>\n"
        ]
    };
    html![
        "<div class=\"cards\">\n"
        (card("/chat", "Chat", "Chat with a model, or compare two models and vote.", chat))
        (card("/annotate", "Collect feedback", "People mark, correct, compare and rate answers.", annotate))
        (card(to, "Train", "Train a model from feedback, rewards or demonstrations.", train)) "</div>\n"
    ]
}

/// Renders the running runs with their progress, and the demonstration if it runs.
fn running(app: &App, entries: &[Entry]) -> Html {
    // Without runs, the note is where they will be.
    let is_demo = !entries.is_empty() && !demo_scripts(app).is_empty();
    let demo = is_demo.then(|| html!["<li data-going>The demonstration is running.</li>\n"]);
    let running: Vec<&Entry> = entries.iter().filter(|entry| entry.state == Status::Running).collect();
    if running.is_empty() && demo.is_none() {
        return Html::new();
    }
    let row = |entry: &&Entry| {
        let progress = entry.steps.map(|steps| {
            html!["<progress max=\"" (steps) "\" value=\"" (entry.step) "\" aria-label=\"Steps of " (entry.name) "\"></progress>"]
        });
        let steps = entry.steps.map(|steps| html![" of "(steps)]);
        html![
            "<li><a href=\"" (address("show", &entry.name)) "\">" (entry.name) "</a> <span class=\"soft small\">step " (entry.step) (steps)
            "</span> " (progress) "</li>\n"
        ]
    };
    html!["<h2>Running now</h2>\n<ul class=\"list\">\n" (demo) (running.iter().map(row).collect::<Vec<_>>()) "</ul>\n"]
}

/// Renders the newest runs.
fn recent(app: &App, session: &Session, entries: &[Entry]) -> Html {
    if entries.is_empty() {
        return html!["<h2>Runs</h2>\n"(offer_demo(app, session))];
    }
    let row = |entry: &Entry| {
        html![
            "<tr><td><a href=\"" (address("show", &entry.name)) "\">" (breakable(&entry.name)) "</a></td><td>" (entry.method) "</td><td>" (badge(entry))
            "</td><td>" (figure(entry)) "</td></tr>\n"
        ]
    };
    let more = (entries.len() > RUNS).then(|| html!["<p><a href=\"/runs\">All " (entries.len()) " runs</a></p>\n"]);
    html![
        "<h2>Newest runs</h2>\n<div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"Newest runs\"><table>\n<thead><tr><th scope=\"col\">Run</th>"
        "<th scope=\"col\">Method</th><th scope=\"col\">State</th><th scope=\"col\">Key figure</th></tr></thead>\n<tbody>\n"
        (entries.iter().take(RUNS).map(row).collect::<Vec<_>>()) "</tbody>\n</table></div>\n" (more)
    ]
}

/// Renders the models. Models within a run or model are folded into its row.
fn models(found: &[ModelEntry]) -> Html {
    if found.is_empty() {
        return html![
            "<h2>Models</h2>\n<div class=\"empty\"><p><strong>There is no model in this folder yet.</strong></p>\n"
            "<p>Train one, or put a model of Hugging Face’s format here. It appears automatically. "
            "<code>gradus serve --model NAME</code> also serves models from elsewhere.</p></div>\n"
        ];
    }
    let within = |found: &ModelEntry, other: &ModelEntry| {
        found.name.strip_prefix(other.name.as_str()).is_some_and(|rest| rest.starts_with('/'))
    };
    let kind = |found: &ModelEntry| match found.kind {
        Kind::Language => "language model",
        Kind::Reward => "reward model",
        Kind::Classifier => "classifier",
        Kind::Parts => "rewards for parts of answers",
    };
    let tops = found.iter().filter(|one| !found.iter().any(|other| within(one, other)));
    let row = |top: &ModelEntry| {
        let below: Vec<&ModelEntry> = found.iter().filter(|one| within(one, top)).collect();
        let names = below.iter().map(|one| {
            let rest = one.name.strip_prefix(&format!("{}/", top.name)).unwrap_or(&one.name);
            html!["<li><code>" (rest) "</code></li>\n"]
        });
        let folded = (!below.is_empty()).then(|| {
            html!["<details><summary>" (below.len()) " more inside</summary>\n<ul>\n" (names.collect::<Vec<_>>()) "</ul></details>"]
        });
        html!["<tr><td>" (top.name) (folded) "</td><td><span class=\"badge\">" (kind(top)) "</span></td></tr>\n"]
    };
    html![
        "<h2>Models</h2>\n<div class=\"wide\"><table>\n<thead><tr><th scope=\"col\">Model</th><th scope=\"col\">Kind</th></tr></thead>\n<tbody>\n"
        (tops.map(row).collect::<Vec<_>>()) "</tbody>\n</table></div>\n"
    ]
}

/// Renders an example request for programs.
fn example(port: u16, model: &str) -> Html {
    let body = serde_json::json!({ "model": model, "messages": [{ "role": "user", "content": "Hello" }] });
    let quoted = gradus::shell::word(&body.to_string()).into_owned();
    html![
        "<details><summary>Use a model from a program</summary>\n<p>This port also answers OpenAI’s protocol, below <code>/v1</code>:</p>\n"
        "<pre tabindex=\"0\">curl http://127.0.0.1:" (u32::from(port)) "/v1/chat/completions -H 'Content-Type: application/json' -d "
        (quoted) "</pre>\n</details>\n"
    ]
}
