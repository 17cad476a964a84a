//! Tokens of a completion with their log-probabilities under models, and the difference to those of another model. If the other model is
//! the reference, these differences sum to `kl`.
//!
//! The values are computed on request and not stored. The completion is tokenized again. The request cannot be made by a page of another
//! site, because it loads a model.

use std::sync::Arc;

use axum::extract::{Query as Address, State};
use axum::http::header;
use axum::response::IntoResponse;
use gradus::run::database::{Query, Record, RolloutTable};
use gradus::run::{RolloutDb, RunDir};
use serde_json::{Value, json};

use super::blocking;
use super::query_params::{QueryParams, find, first};
use crate::app::App;
use crate::model_queue::{ModelQueue, Token};
use crate::page_error::{PageError, PageResult};

/// Returns the name of a table in addresses.
pub fn word(table: RolloutTable) -> &'static str {
    match table {
        RolloutTable::Train => "training",
        RolloutTable::Eval => "evaluations",
        RolloutTable::Test => "test",
    }
}

/// Returns the table that an address selects. The default is training.
pub fn table(params: &QueryParams) -> RolloutTable {
    let named = first(params, "table");
    RolloutTable::ALL.into_iter().find(|&table| named == Some(word(table))).unwrap_or_default()
}

/// Returns the parameters that identify a completion.
pub fn query(record: &Record, table: RolloutTable) -> String {
    let table = word(table);
    format!("table={table}&step={}&prompt={}&place={}", record.step, record.prompt_index, record.rollout_index)
}

/// Returns the tokens of a completion: text, log-probability, and log-probability under the other model.
pub async fn show(State(app): State<Arc<App>>, Address(params): Address<QueryParams>) -> PageResult {
    let path = find(&app, first(&params, "run").unwrap_or_default())?;
    let number = |name: &str| first(&params, name).and_then(|text| text.parse::<usize>().ok());
    let missing = || PageError::missing("There is no such completion.");
    let (step, prompt, place) = (number("step"), number("prompt"), number("place"));
    let (Some(step), Some(prompt), Some(place)) = (step, prompt, place) else { return Err(missing()) };
    let query = Query {
        table: table(&params),
        first_step: Some(step),
        last_step: Some(step),
        prompt_index: Some(prompt),
        ..Query::default()
    };
    let found =
        blocking(move || -> gradus::Result<Vec<Record>> { RolloutDb::open(&RunDir::open(&path)?)?.query(&query) });
    let record = found.await??.into_iter().find(|record| record.rollout_index == place).ok_or_else(missing)?;
    let model =
        first(&params, "model").ok_or_else(|| PageError::request("Choose a model for the token probabilities."))?;
    let own = thoughts(&app, model, &record).await?;
    let other = match first(&params, "against") {
        Some(model) => thoughts(&app, model, &record).await?,
        None => Vec::new(),
    };
    if !other.is_empty() && other.iter().map(|token| token.id).ne(own.iter().map(|token| token.id)) {
        return Err(PageError::request(
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
    let queue = app.models.queue(model).await?;
    let (prompt, completion) = (record.prompt.clone(), record.completion.clone());
    queue.ask(move |queue| scored(queue, &prompt, &completion)).await?
}

fn scored(queue: &ModelQueue, prompt: &str, completion: &str) -> gradus::Result<Vec<Token>> {
    let tokenizer = queue.session.tokenizer();
    let (bare, whole) = (tokenizer.encode(prompt, false)?, tokenizer.encode(prompt, true)?);
    // If the template already contains the beginning-of-text token, it is not added again.
    let mut ids = if bare.first() == whole.first() { bare } else { whole };
    let before = ids.len();
    ids.extend(tokenizer.encode(completion, false)?);
    Ok(queue.score(&ids, 0)?.split_off(before))
}
