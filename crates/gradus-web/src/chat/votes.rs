//! Preferences among models from votes in conversations.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use gradus::html;
use serde_json::json;

use crate::agreement::ranking::{Outcome, Strength, Versus, Vote, comparisons, strengths};
use crate::app::App;
use crate::components::tile;
use crate::page::{Page, Section};
use crate::page_error::{PageError, PageResult};
use crate::ranking;
use crate::store::chats::{self, Choice};
use crate::store::sessions::Session;

/// Note on votes that depend on each other.
const DEPENDENCE: &str = "Votes in the same conversation depend on each other, so the true intervals are wider.";

/// Result of the votes.
struct VoteResults {
    votes: usize,
    blind: usize,
    comparisons: Vec<Versus>,
    models: Vec<Strength>,
    undefined: Option<&'static str>,
}

impl VoteResults {
    fn of(votes: &[chats::Vote]) -> Self {
        let outcome = |choice: Choice| match choice {
            Choice::Left => Outcome::First,
            Choice::Right => Outcome::Second,
            Choice::Tie | Choice::Bad => Outcome::Tie,
        };
        let between = votes.iter().filter(|vote| vote.left != vote.right);
        let between = between.map(|vote| Vote { one: &vote.left, other: &vote.right, outcome: outcome(vote.choice) });
        let between: Vec<Vote<'_>> = between.collect();
        let named: BTreeSet<&str> = between.iter().flat_map(|vote| [vote.one, vote.other]).collect();
        let (models, undefined) = strengths(&named, &between);
        let blind = votes.iter().filter(|vote| vote.is_blind).count();
        Self { votes: votes.len(), blind, comparisons: comparisons(&between), models, undefined }
    }
}

fn vote_results(app: &App, session: &Session) -> Result<VoteResults, PageError> {
    Ok(VoteResults::of(&app.store.chats(&app.asker(session)?).votes()?))
}

/// Renders the page.
pub async fn show(State(app): State<Arc<App>>, Extension(session): Extension<Session>) -> PageResult {
    let of = vote_results(&app, &session)?;
    let body = match of.votes {
        0 => html![
            "<div class=\"empty\"><p><strong>There is no vote yet.</strong></p>\n<p>Start a conversation with two models. Then vote on their answers.</p>\n"
            "<p><a class=\"button\" href=\"/chat\">New conversation</a></p></div>\n"
        ],
        _ => html![
            "<p class=\"lead\">All votes of the conversations that you can see. A pair of bad answers counts as a tie.</p>\n<div class=\"tiles\">\n"
            (tile("Votes", html![(of.votes)], "in conversations"))
            (tile("Blind", html![(of.blind)], "names were hidden"))
            (tile("Pairs", html![(of.comparisons.len())], "of models")) "</div>\n"
            (ranking::models(&of.models, of.undefined)) (ranking::comparisons(&of.comparisons, DEPENDENCE))
            "<h2>Download</h2>\n<p><a href=\"/chat/preferences.jsonl\" download>All votes as training rows</a> · "
            "<a href=\"/chat/votes.json\" download>These numbers as JSON</a></p>\n"
        ],
    };
    let body = html!["<p><a href=\"/chat\">Conversations</a></p>\n"(body)];
    Ok(Page { title: "Votes and ranking", section: Section::Chat, scripts: &[], styles: &[], body }
        .framed(&session)
        .into_response())
}

/// Returns the same numbers as JSON.
pub async fn numbers(State(app): State<Arc<App>>, Extension(session): Extension<Session>) -> PageResult {
    let of = vote_results(&app, &session)?;
    let body = json!({
        "votes": of.votes,
        "blind": of.blind,
        "comparisons": of.comparisons,
        "models": of.models,
        "models_undefined": of.undefined,
    });
    Ok(([(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response())
}
