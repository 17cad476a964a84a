//! Common frame of all pages.

use axum::http::StatusCode;
use axum::response::Html as Body;
use gradus::html;
use gradus::html::Html;

use crate::components::with_code;
use crate::store::sessions::Session;

/// Main sections, linked at the top of every page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    /// Overview.
    Home,
    /// Conversations.
    Chat,
    /// Annotation projects.
    Annotate,
    /// Training runs.
    Runs,
}

/// A page without its frame.
pub struct Page<'a> {
    /// Name of the page, in the window's title and the first heading.
    pub title: &'a str,
    /// Section of the page.
    pub section: Section,
    /// Scripts of the page, by their names below `/assets/`.
    pub scripts: &'a [&'static str],
    /// Additional style sheets, by their paths.
    pub styles: &'a [&'a str],
    /// Content of the page.
    pub body: Html,
}

impl Page<'_> {
    /// Renders the whole page for `session`.
    pub fn framed(self, session: &Session) -> Body<String> {
        let Self { title, section, scripts, styles, body } = self;
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
            "</head>\n<body>\n" (head(Some(section))) "<main id=\"main\">\n<h1>" (title) "</h1>\n" (body) "</main>\n</body>\n</html>\n"
        ];
        Body(page.into_string())
    }
}

/// Renders the hidden form field that proves that the form comes from a page of this session.
pub fn csrf(session: &Session) -> Html {
    html!["<input type=\"hidden\" name=\"csrf\" value=\"" (session.csrf) "\">\n"]
}

/// Renders the head of a page with links to the main sections.
fn head(section: Option<Section>) -> Html {
    let link = |to: Section, path: &str, name: &str| match Some(to) == section {
        true => html!["<a href=\"" (path) "\" aria-current=\"page\">" (name) "</a>"],
        false => html!["<a href=\"" (path) "\">" (name) "</a>"],
    };
    html![
        "<a class=\"skip\" href=\"#main\">To the content</a>\n<header>\n"
        "<nav aria-label=\"Places\"><a class=\"name\" href=\"/\">gradus</a>"
        (link(Section::Home, "/", "Overview")) (link(Section::Chat, "/chat", "Chat"))
        (link(Section::Annotate, "/annotate", "Annotate")) (link(Section::Runs, "/runs", "Runs"))
        "</nav>\n</header>\n"
    ]
}

/// Renders an error page with a hint, if there is one, and a link back.
pub fn failed(status: StatusCode, why: &str, hint: Option<&str>) -> Body<String> {
    let hint = hint.map(|hint| html!["<p class=\"soft\" data-why>" (with_code(hint)) "</p>\n"]);
    let after = html![
        (hint) "<p class=\"row\"><a class=\"button\" href=\"/\" data-back hidden>Back</a> <a href=\"/\">Overview</a></p>\n"
        "<script src=\"/assets/page.js\" defer></script>\n"
    ];
    error(status, why, head(None), after)
}

/// Renders an error page for a request that was not admitted. It has no session, so there are no links.
pub fn bare(status: StatusCode, why: &str) -> Body<String> {
    error(status, why, Html::new(), Html::new())
}

/// Returns the heading of an error page.
fn heading(status: StatusCode) -> &'static str {
    match status {
        StatusCode::NOT_FOUND => "Not found",
        StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => "Not allowed",
        StatusCode::PAYLOAD_TOO_LARGE => "Too large",
        StatusCode::SERVICE_UNAVAILABLE => "Not possible at the moment",
        _ => "This did not work",
    }
}

fn error(status: StatusCode, why: &str, head: Html, after: Html) -> Body<String> {
    let page = html![
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
        "<meta name=\"color-scheme\" content=\"light dark\">\n"
        "<title>" (heading(status)) " · gradus</title>\n<link rel=\"icon\" href=\"data:,\">\n"
        "<link rel=\"stylesheet\" href=\"/assets/style.css\">\n</head>\n<body>\n" (head) "<main id=\"main\">\n<h1>"
        (heading(status)) "</h1>\n<p data-why>" (with_code(why))
        "</p>\n" (after) "</main>\n</body>\n</html>\n"
    ];
    Body(page.into_string())
}

/// Responds that there is no page at this address.
pub async fn missing() -> (StatusCode, Body<String>) {
    (StatusCode::NOT_FOUND, failed(StatusCode::NOT_FOUND, "There is no page at this address.", None))
}
