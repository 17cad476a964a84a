//! Style sheets and scripts, compiled into the program.

use std::sync::Arc;

use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;

use crate::app::App;

const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// Files with path, content type and content.
const FILES: &[(&str, &str, &str)] = &[
    ("/assets/style.css", CSS, include_str!("assets/style.css")),
    ("/assets/icon.svg", SVG, include_str!("assets/icon.svg")),
    ("/assets/page.js", JS, include_str!("assets/page.js")),
    ("/assets/saving.js", JS, include_str!("assets/saving.js")),
    ("/assets/annotate.js", JS, include_str!("assets/annotate.js")),
    ("/assets/form.js", JS, include_str!("assets/form.js")),
    ("/assets/curves.js", JS, include_str!("assets/curves.js")),
    ("/assets/run.js", JS, include_str!("assets/run.js")),
    ("/assets/making.js", JS, include_str!("assets/making.js")),
    ("/assets/tokens.js", JS, include_str!("assets/tokens.js")),
    ("/assets/chat.js", JS, include_str!("assets/chat.js")),
];

/// Returns the routes of all files.
pub fn routes() -> Router<Arc<App>> {
    FILES.iter().fold(Router::new(), |routes, &(path, kind, content)| {
        let headers = [(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "no-cache")];
        routes.route(path, get(move || async move { (headers, content).into_response() }))
    })
}
