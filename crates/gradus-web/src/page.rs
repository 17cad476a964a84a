//! The frame of all pages.

use axum::http::StatusCode;
use axum::response::Html as Body;

use crate::html;
use crate::html::Html;
use crate::store::sessions::Session;

/// A place that the head of every page leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// What there is.
    Home,
    /// Conversations.
    Chat,
    /// Projects of annotations.
    Annotate,
    /// Training runs.
    Runs,
}

/// A page before it is framed.
pub struct Page<'a> {
    /// Its name, in the window's title and as the first heading.
    pub title: &'a str,
    /// Where it belongs.
    pub place: Place,
    /// The scripts it has, by their names below `/assets/`.
    pub scripts: &'a [&'static str],
    /// Styles besides those of all pages, by their addresses.
    pub styles: &'a [&'a str],
    /// What stands in it.
    pub body: Html,
}

impl Page<'_> {
    /// The whole page, for `session`.
    pub fn framed(self, session: &Session) -> Body<String> {
        let Self { title, place, scripts, styles, body } = self;
        let styles: Vec<Html> =
            styles.iter().map(|address| html!["<link rel=\"stylesheet\" href=\"" (address) "\">\n"]).collect();
        let scripts: Vec<Html> =
            scripts.iter().map(|name| html!["<script src=\"/assets/" (name) "\" defer></script>\n"]).collect();
        let page = html![
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
            "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
            "<meta name=\"color-scheme\" content=\"light dark\">\n"
            "<meta name=\"csrf\" content=\"" (session.csrf) "\">\n<title>" (title) " · gradus</title>\n"
            "<link rel=\"icon\" href=\"/assets/icon.svg\" type=\"image/svg+xml\">\n<link rel=\"stylesheet\" href=\"/assets/style.css\">\n"
            (styles) (scripts)
            "</head>\n<body>\n" (head(Some(place))) "<main id=\"main\">\n<h1>" (title) "</h1>\n" (body) "</main>\n</body>\n</html>\n"
        ];
        Body(page.into_string())
    }
}

/// The hidden field of a form that shows that it comes from a page of this session.
pub fn csrf(session: &Session) -> Html {
    html!["<input type=\"hidden\" name=\"csrf\" value=\"" (session.csrf) "\">\n"]
}

/// The head of every page, with the places that there are.
fn head(place: Option<Place>) -> Html {
    let link = |to: Place, path: &str, name: &str| match Some(to) == place {
        true => html!["<a href=\"" (path) "\" aria-current=\"page\">" (name) "</a>"],
        false => html!["<a href=\"" (path) "\">" (name) "</a>"],
    };
    html![
        "<a class=\"skip\" href=\"#main\">To the content</a>\n<header>\n"
        "<nav aria-label=\"Places\"><a class=\"name\" href=\"/\">gradus</a>"
        (link(Place::Home, "/", "Overview")) (link(Place::Chat, "/chat", "Chat"))
        (link(Place::Annotate, "/annotate", "Annotate")) (link(Place::Runs, "/runs", "Runs"))
        "</nav>\n</header>\n"
    ]
}

/// A page that says why something was not done.
pub fn failed(status: StatusCode, why: &str) -> Body<String> {
    error(status, why, head(None), html!["<p class=\"soft\"><a href=\"/\">Overview</a></p>\n"])
}

/// The same for a request that was not let in: it has no session, and the places are closed to it.
pub fn bare(status: StatusCode, why: &str) -> Body<String> {
    error(status, why, Html::new(), Html::new())
}

fn error(status: StatusCode, why: &str, head: Html, after: Html) -> Body<String> {
    let page = html![
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
        "<meta name=\"color-scheme\" content=\"light dark\">\n"
        "<title>" (status.as_str()) " · gradus</title>\n<link rel=\"icon\" href=\"data:,\">\n"
        "<link rel=\"stylesheet\" href=\"/assets/style.css\">\n</head>\n<body>\n" (head) "<main id=\"main\">\n<h1>"
        (status.canonical_reason().unwrap_or("Not possible")) "</h1>\n<p>" (why)
        "</p>\n" (after) "</main>\n</body>\n</html>\n"
    ];
    Body(page.into_string())
}

/// There is nothing at this address.
pub async fn missing() -> (StatusCode, Body<String>) {
    (StatusCode::NOT_FOUND, failed(StatusCode::NOT_FOUND, "There is no page at this address."))
}
