//! The completions of an online run, step by step.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Query as Address, State};
use axum::response::IntoResponse;
use gradus::run::database::{Query, Record, Sort, Table};
use gradus::run::{RolloutDb, RunDir};

use super::page::address;
use super::{Asked, apart, find, first};
use crate::app::App;
use crate::failed::{Done, Failed};
use crate::html;
use crate::html::{Html, percent};
use crate::page::{Page, Place};
use crate::store::sessions::Session;

/// Completions on a page.
const SHOWN: usize = 25;

/// Shows those that are asked for.
pub async fn show(
    State(app): State<Arc<App>>,
    Extension(session): Extension<Session>,
    Address(asked): Address<Asked>,
) -> Done {
    let name = first(&asked, "run").unwrap_or_default().to_owned();
    let path = find(&app, &name)?;
    let number = |name: &str| first(&asked, name).and_then(|text| text.parse::<usize>().ok());
    let sort = match first(&asked, "sort") {
        Some("reward") => Sort::Reward,
        Some("length") => Sort::Length,
        Some("kl") => Sort::Kl,
        _ => Sort::Step,
    };
    let query = Query {
        table: if first(&asked, "table") == Some("evaluations") { Table::Eval } else { Table::Train },
        first_step: number("step"),
        last_step: number("step"),
        text: first(&asked, "text").map(str::to_owned),
        sort,
        descending: first(&asked, "order") == Some("down"),
        limit: Some(SHOWN),
        offset: number("from").unwrap_or(0),
        ..Query::default()
    };
    let sought = query.clone();
    let found = apart(move || -> gradus::Result<_> {
        let database = RolloutDb::open(&RunDir::open(&path)?)?;
        Ok((database.query(&sought)?, database.count(&sought)?, database.steps(sought.table)?))
    });
    let (records, count, steps) = found.await?.map_err(Failed::from)?;
    let body = body(&name, &asked, &query, &records, count, &steps);
    let title = format!("Completions of {name}");
    let page = Page { title: &title, place: Place::Runs, scripts: &[], styles: &[], body };
    Ok(page.framed(&session).into_response())
}

fn body(name: &str, asked: &Asked, query: &Query, records: &[Record], count: usize, steps: &[usize]) -> Html {
    let option = |value: &str, words: &str, chosen: bool| {
        let chosen = if chosen { html![" selected"] } else { Html::new() };
        html!["<option value=\"" (value) "\"" (chosen) ">" (words) "</option>"]
    };
    let tables = [("training", "Training", Table::Train), ("evaluations", "Evaluations", Table::Eval)];
    let tables: Vec<Html> =
        tables.iter().map(|(value, words, table)| option(value, words, *table == query.table)).collect();
    let step = |step: &usize| option(&step.to_string(), &step.to_string(), query.first_step == Some(*step));
    let sorts = [("step", "As sampled"), ("reward", "Reward"), ("kl", "KL"), ("length", "Length")];
    let sorted = first(asked, "sort").unwrap_or("step");
    let sorts: Vec<Html> = sorts.iter().map(|(value, words)| option(value, words, *value == sorted)).collect();
    let orders = [option("up", "Smallest first", !query.descending), option("down", "Largest first", query.descending)];
    let row = |record: &Record| {
        let number = |value: Option<f64>| value.map(|value| format!("{value:.3}"));
        html![
            "<tr><td class=\"number\">" (record.step) "</td><td class=\"said\">" (record.prompt) "</td><td class=\"said\">" (record.completion)
            "</td><td class=\"number\">" (number(record.reward)) "</td><td class=\"number\">" (number(record.advantage)) "</td><td class=\"number\">"
            (number(record.kl)) "</td><td class=\"number\">" (record.length) "</td><td>" (record.stop_reason) "</td></tr>\n"
        ]
    };
    let last = (query.offset + records.len()).min(count);
    let to = |from: usize, words: &'static str| {
        let rest: String = asked
            .iter()
            .filter(|(key, _)| key != "from" && key != "run")
            .map(|(key, value)| format!("&{}={}", percent(key), percent(value)))
            .collect();
        html!["<a href=\"" (address("completions", name)) (rest) "&amp;from=" (from) "\">" (words) "</a> "]
    };
    let before = if query.offset > 0 { to(query.offset.saturating_sub(SHOWN), "Those before") } else { Html::new() };
    let after = if last < count { to(query.offset + SHOWN, "Those after") } else { Html::new() };
    html![
        "<p><a href=\"" (address("show", name)) "\">The run</a></p>\n"
        "<form method=\"get\" action=\"/runs/completions\" class=\"filter\">\n<input type=\"hidden\" name=\"run\" value=\"" (name) "\">\n"
        "<div><label for=\"table\">Of</label><select id=\"table\" name=\"table\">" (tables) "</select></div>\n"
        "<div><label for=\"step\">Step</label><select id=\"step\" name=\"step\">" (option("", "All", query.first_step.is_none()))
        (steps.iter().map(step).collect::<Vec<_>>()) "</select></div>\n"
        "<div><label for=\"text\">With the text</label><input id=\"text\" name=\"text\" value=\"" (query.text.clone().unwrap_or_default()) "\"></div>\n"
        "<div><label for=\"sort\">By</label><select id=\"sort\" name=\"sort\">" (sorts) "</select></div>\n"
        "<div><label for=\"order\">Order</label><select id=\"order\" name=\"order\">" (orders.to_vec()) "</select></div>\n"
        "<button type=\"submit\">Show</button>\n</form>\n"
        "<p class=\"soft small\">" (if count == 0 { 0 } else { query.offset + 1 }) " to " (last) " of " (count) " " (before) (after) "</p>\n"
        "<div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"Completions\"><table>\n<thead><tr><th scope=\"col\" class=\"number\">Step</th>"
        "<th scope=\"col\">Prompt</th><th scope=\"col\">Completion</th><th scope=\"col\" class=\"number\">Reward</th><th scope=\"col\" class=\"number\">Advantage</th>"
        "<th scope=\"col\" class=\"number\">KL</th><th scope=\"col\" class=\"number\">Tokens</th><th scope=\"col\">End</th></tr></thead>\n<tbody>\n"
        (records.iter().map(row).collect::<Vec<_>>()) "</tbody>\n</table></div>\n"
    ]
}
