//! Tokens of a completion with their log-probabilities under models, and the difference to those of another model. If the other model is
//! the reference, these differences sum to `kl`.
//!
//! The values are computed on request and not stored. The completion is tokenized again. The request cannot be made by a page of another
//! site, because it loads a model.

use std::sync::Arc;

use axum::extract::{Query as Address, State};
use axum::http::header;
use axum::response::IntoResponse;
use gradus::run::database::{Query, Record, Table};
use gradus::run::{RolloutDb, RunDir};
use serde_json::{Value, json};

use super::apart;
use super::asked::{Asked, find, first};
use crate::app::App;
use crate::desk::{Desk, Token};
use crate::failed::{Done, Failed};

/// Returns the name of a table in addresses.
pub fn word(table: Table) -> &'static str {
    match table {
        Table::Train => "training",
        Table::Eval => "evaluations",
        Table::Test => "test",
    }
}

/// Returns the table that an address selects. The default is training.
pub fn table(asked: &Asked) -> Table {
    let named = first(asked, "table");
    Table::ALL.into_iter().find(|&table| named == Some(word(table))).unwrap_or_default()
}

/// Returns the parameters that identify a completion.
pub fn query(record: &Record, table: Table) -> String {
    let table = word(table);
    format!("table={table}&step={}&prompt={}&place={}", record.step, record.prompt_index, record.rollout_index)
}

/// Returns the tokens of a completion: text, log-probability, and log-probability under the other model.
pub async fn show(State(app): State<Arc<App>>, Address(asked): Address<Asked>) -> Done {
    let path = find(&app, first(&asked, "run").unwrap_or_default())?;
    let number = |name: &str| first(&asked, name).and_then(|text| text.parse::<usize>().ok());
    let missing = || Failed::missing("There is no such completion.");
    let (step, prompt, place) = (number("step"), number("prompt"), number("place"));
    let (Some(step), Some(prompt), Some(place)) = (step, prompt, place) else { return Err(missing()) };
    let query = Query {
        table: table(&asked),
        first_step: Some(step),
        last_step: Some(step),
        prompt_index: Some(prompt),
        ..Query::default()
    };
    let found = apart(move || -> gradus::Result<Vec<Record>> { RolloutDb::open(&RunDir::open(&path)?)?.query(&query) });
    let record = found.await??.into_iter().find(|record| record.rollout_index == place).ok_or_else(missing)?;
    let model = first(&asked, "model").ok_or_else(|| Failed::request("Choose a model for the token probabilities."))?;
    let own = thoughts(&app, model, &record).await?;
    let other = match first(&asked, "against") {
        Some(model) => thoughts(&app, model, &record).await?,
        None => Vec::new(),
    };
    if !other.is_empty() && other.iter().map(|token| token.id).ne(own.iter().map(|token| token.id)) {
        return Err(Failed::request(
            "The two models split the completion into different tokens, so they cannot be compared.",
        ));
    }
    let token =
        |(i, token): (usize, &Token)| json!([token.text, token.logprob, other.get(i).and_then(|other| other.logprob)]);
    let tokens: Value = own.iter().enumerate().map(token).collect();
    Ok(([(header::CONTENT_TYPE, "application/json")], tokens.to_string()).into_response())
}

/// Computes a model's log-probabilities of the tokens in a completion.
async fn thoughts(app: &App, model: &str, record: &Record) -> gradus::Result<Vec<Token>> {
    let desk = app.models.desk(model).await?;
    let (prompt, completion) = (record.prompt.clone(), record.completion.clone());
    desk.ask(move |desk| scored(desk, &prompt, &completion)).await?
}

fn scored(desk: &Desk, prompt: &str, completion: &str) -> gradus::Result<Vec<Token>> {
    let tokenizer = desk.session.tokenizer();
    let (bare, whole) = (tokenizer.encode(prompt, false)?, tokenizer.encode(prompt, true)?);
    // If the template already contains the beginning-of-text token, it is not added again.
    let mut ids = if bare.first() == whole.first() { bare } else { whole };
    let before = ids.len();
    ids.extend(tokenizer.encode(completion, false)?);
    Ok(desk.score(&ids, 0)?.split_off(before))
}
