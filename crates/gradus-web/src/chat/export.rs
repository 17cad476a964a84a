//! Export of conversations and votes as training rows.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::tree;
use crate::app::App;
use crate::page_error::{PageResult, Path};
use crate::store::chats::{Choice, Message, Tree};
use crate::store::sessions::Session;

fn lines(rows: &[Value]) -> Response {
    let text: String = rows.iter().map(|row| format!("{row}\n")).collect();
    ([(header::CONTENT_TYPE, "application/jsonl; charset=utf-8")], text).into_response()
}

/// Returns the messages up to `leaf`, beginning with the system prompt.
fn messages(tree: &Tree, leaf: Option<i64>) -> Vec<Value> {
    let system = Some(&tree.conversation.settings.system).filter(|system| !system.is_empty());
    let system = system.map(|system| json!({ "role": "system", "content": system }));
    let path = tree.path(leaf).into_iter().map(|message| json!({ "role": message.role, "content": message.text }));
    system.into_iter().chain(path).collect()
}

/// Exports the displayed path as one row of messages. Of two answers to a turn, it contains the one that the conversation continues from.
pub async fn conversation(
    State(app): State<Arc<App>>,
    Extension(session): Extension<Session>,
    Path(id): Path<i64>,
) -> PageResult {
    let tree = tree(&app, &app.asker(&session)?, id)?;
    let mut messages = messages(&tree, tree.conversation.leaf);
    // A training row ends with an answer.
    while messages.last().is_some_and(|message| message["role"] != "assistant") {
        messages.pop();
    }
    let rows: Vec<Value> = if messages.is_empty() { Vec::new() } else { vec![json!({ "messages": messages })] };
    Ok(lines(&rows))
}

/// Exports all votes that prefer one answer as preference rows. Ties and votes that both answers are bad are omitted.
pub async fn preferences(State(app): State<Arc<App>>, Extension(session): Extension<Session>) -> PageResult {
    let mut rows = Vec::new();
    let asker = app.asker(&session)?;
    for conversation in app.store.chats(&asker).list()? {
        let tree = tree(&app, &asker, conversation.id)?;
        let mut votes: Vec<_> = tree.votes.iter().collect();
        votes.sort_by_key(|(pair, _)| **pair);
        rows.extend(votes.into_iter().filter_map(|(&pair, &choice)| preference(&tree, pair, choice)));
    }
    Ok(lines(&rows))
}

fn preference(tree: &Tree, pair: i64, choice: Choice) -> Option<Value> {
    let [left, right] = tree.side_by_side(tree.message(pair)?)[..] else { return None };
    let (chosen, rejected) = match choice {
        Choice::Left => (left, right),
        Choice::Right => (right, left),
        Choice::Tie | Choice::Bad => return None,
    };
    let conversation = |message: &Message| json!([{ "role": "assistant", "content": message.text }]);
    Some(json!({
        "prompt": messages(tree, left.parent),
        "chosen": conversation(chosen),
        "rejected": conversation(rejected),
        "chosen_model": chosen.model,
        "rejected_model": rejected.model,
    }))
}
