//! Pages of runs: a list, one run, a comparison of several, and their completions. They read the files of training and change nothing but
//! tags. Starting and stopping runs is in `training`.
//!
//! A run is identified by its name in the list of runs below the folder, so nothing outside the folder can be reached.

mod cache;
mod completions;
mod conversation;
mod difference;
mod list;
mod page;
pub mod query_params;
mod tokens;

pub use cache::Cache;
pub use page::{address, badge, figure};
use query_params::{QueryParams, find, first};

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Redirect};
use axum::routing::{get, post};
use axum::{Extension, Form, Router};
use gradus::comparison::{Comparison, Entry as Policy, WinRates};
use gradus::html;
use gradus::run::smoothing::thinned;
use gradus::runs::{Entry, Labels, Settings, Snapshot, differences, history, last_warnings, metric_keys, snapshots};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::page::{Page, Section};
use crate::page_error::{PageError, PageResult};
use crate::store::sessions::Session;
use crate::training;

/// Maximum number of points per curve. More points than the screen has columns are useless.
const POINTS: usize = 2000;

/// Maximum number of runs in a comparison.
const COMPARED: usize = 8;

/// Maximum number of displayed warnings.
const WARNINGS: usize = 10;

/// Returns the routes below `/runs`.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/runs", get(all))
        .route("/runs/show", get(show))
        .route("/runs/series", get(curves))
        .route("/runs/state", get(state))
        .route("/runs/tag", post(tag))
        .route("/runs/completions", get(completions::show))
        .route("/runs/tokens", post(tokens::show))
}

/// Runs blocking work without blocking the server.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, PageError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| PageError::request("The page could not be created."))
}

async fn all(
    State(app): State<Arc<App>>,
    Extension(session): Extension<Session>,
    Query(params): Query<QueryParams>,
) -> PageResult {
    let of = Arc::clone(&app);
    let mut entries = blocking(move || of.runs.entries(&of.folder)).await?;
    let number = entries.len();
    let fits = |entry: &Entry| {
        let text = first(&params, "text").is_none_or(|text| {
            let words = [Some(&entry.name), entry.model.as_ref(), entry.data.as_ref(), entry.note.as_ref()];
            words.into_iter().flatten().any(|word| word.to_lowercase().contains(&text.to_lowercase()))
        });
        let state = first(&params, "state").is_none_or(|state| entry.state.name() == state);
        let method = first(&params, "method").is_none_or(|method| entry.method.as_deref() == Some(method));
        let tag = first(&params, "tag").is_none_or(|tag| entry.tags.iter().any(|own| own == tag));
        text && state && method && tag
    };
    let known = list::Known::of(&entries);
    entries.retain(fits);
    list::sort(&mut entries, &params);
    let bare = app.training.without_directory();
    let empty = training::offer_demo(&app, &session);
    let body = list::list(&entries, number, &known, &params, app.training.is_allowed().then_some(&bare), empty);
    // The page is refreshed only until the first run of a demonstration appears, so that it does not change under a selection.
    let scripts = if number == 0 { training::demo_scripts(&app) } else { &[] };
    let body = html!["<div data-refreshed>\n" (body) "</div>\n"];
    Ok(Page { title: "Runs", section: Section::Runs, scripts, styles: &[], body }.framed(&session).into_response())
}

/// Renders one run, or a comparison of several.
async fn show(
    State(app): State<Arc<App>>,
    Extension(session): Extension<Session>,
    Query(params): Query<QueryParams>,
) -> PageResult {
    let names: Vec<String> = params.iter().filter(|(key, _)| key == "run").map(|(_, name)| name.clone()).collect();
    if names.is_empty() || names.len() > COMPARED {
        return Err(PageError::request(&format!("Choose 1 to {COMPARED} runs.")));
    }
    // A run that has just started has no files yet.
    if let [name] = &names[..]
        && let Some((_, state)) = app.training.without_directory().into_iter().find(|(known, _)| known == name)
    {
        let body = training::bare(&state);
        let page = Page { title: name, section: Section::Runs, scripts: &["page.js", "run.js"], styles: &[], body };
        return Ok(page.framed(&session).into_response());
    }
    let paths = names.iter().map(|name| find(&app, name)).collect::<Result<Vec<_>, _>>()?;
    let of = names.clone();
    let is_allowed = app.training.is_allowed();
    let (entries, settings, warnings, models, compared) = blocking(move || {
        let entries: Vec<Entry> = of.into_iter().zip(&paths).map(|(name, path)| Entry::read(name, path)).collect();
        let settings: Vec<Settings> =
            paths.iter().map(|path| Settings::read(&path.join("config.yml")).unwrap_or_default()).collect();
        let warnings: Vec<Vec<String>> = paths.iter().map(|path| last_warnings(path, WARNINGS)).collect();
        let models = entries.iter().filter(|_| is_allowed).filter_map(|entry| {
            let key = entry.figure.as_ref().map(|figure| figure.key.as_str());
            snapshots(&entry.directory().ok()?, key).ok()
        });
        let models: Vec<Vec<Snapshot>> = models.collect();
        let compared = if entries.len() > 1 { compare(&entries) } else { (Vec::new(), None) };
        (entries, settings, warnings, models, compared)
    })
    .await?;
    let (title, body) = match &entries[..] {
        [one] => {
            let state = app.training.state_of(one);
            let actions = models
                .first()
                .map(|models| training::actions(&session, one, models, state.as_ref(), app.training.is_stopping(one)));
            let may_tag = app.may_change_runs(&session)?;
            (one.name.clone(), page::one(&session, one, &settings[0], &warnings[0], actions, may_tag))
        }
        several => (
            format!("{} runs", several.len()),
            page::several(several, &settings, &differences(&settings), &compared.0, compared.1.as_ref()),
        ),
    };
    let page =
        Page { title: &title, section: Section::Runs, scripts: &["page.js", "curves.js", "run.js"], styles: &[], body };
    Ok(page.framed(&session).into_response())
}

/// Compares the last evaluations: the cells of a table with their results, and win rates on their prompts, if they can be computed.
fn compare(entries: &[Entry]) -> (Vec<Vec<String>>, Option<WinRates>) {
    let run = |entry: &Entry| {
        let policy = Policy::from_run(entry.directory().ok()?).ok()?;
        Some(Policy { name: entry.name.clone(), ..policy })
    };
    let none = String::new;
    let entries: Vec<Policy> = entries.iter().filter_map(run).collect();
    let starts = Policy::starts_of(entries.iter().filter_map(|entry| Some((entry.name.as_str(), entry.run.as_ref()?))));
    let mut compared = Comparison { model: none(), data: none(), budget: none(), evaluation: none(), entries };
    let rates = compared.win_rates();
    compared.entries.splice(0..0, starts);
    (compared.rows(), rates)
}

/// Returns the curves of a run: steps and values of each metric. With `from` and `to`, only of those steps and of `metric`. Long curves are
/// averaged between their first and last value; `averaged` then contains the number of values. A value that is not finite is `null`.
async fn curves(State(app): State<Arc<App>>, Query(params): Query<QueryParams>) -> PageResult {
    let path = find(&app, first(&params, "run").unwrap_or_default())?;
    let metric = first(&params, "metric").map(str::to_owned);
    let end = |name: &str| first(&params, name).and_then(|text| text.parse::<f64>().ok());
    let (from, to) = (end("from").unwrap_or(f64::NEG_INFINITY), end("to").unwrap_or(f64::INFINITY));
    let found = blocking(move || -> gradus::Result<Value> {
        let rows = history(&path)?;
        let mut keys = metric_keys(&rows);
        keys.retain(|key| metric.as_ref().is_none_or(|metric| metric == key));
        let (mut all, mut averaged) = (Map::new(), Map::new());
        for key in &keys {
            let points = rows.iter().filter_map(|row| Some((row.step as f64, row.values.get(key)?)));
            let points: Vec<(f64, f64)> = points.filter(|(step, _)| (from..=to).contains(step)).collect();
            if points.len() > POINTS {
                averaged.insert(key.clone(), json!(points.len()));
            }
            let points = shortened(points);
            if !points.is_empty() {
                all.insert(key.clone(), points.into_iter().map(|(step, value)| json!([step, value])).collect());
            }
        }
        let entry = Entry::read(String::new(), &path);
        let (state, step, steps) = (entry.state.name(), entry.step, entry.steps);
        Ok(json!({ "curves": all, "averaged": averaged, "state": state, "step": step, "steps": steps }))
    });
    let found = found.await??;
    Ok(([(header::CONTENT_TYPE, "application/json")], found.to_string()).into_response())
}

/// Averages a curve with more than [`POINTS`] values. Its first and last value stay as they are, because pages show them as numbers.
fn shortened(points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    if points.len() <= POINTS {
        return points;
    }
    let last = points.len() - 1;
    [&points[..1], thinned(&points[1..last], POINTS - 2).as_slice(), &points[last..]].concat()
}

/// Returns the state of a run for a page that waits: its status, if any, and whether a process that was started here is still running.
async fn state(State(app): State<Arc<App>>, Query(params): Query<QueryParams>) -> PageResult {
    let name = first(&params, "run").unwrap_or_default().to_owned();
    let (path, of) = (find(&app, &name).ok(), name.clone());
    let entry = blocking(move || path.map(|path| Entry::read(of, &path))).await?;
    let state = entry.as_ref().map_or_else(|| app.training.state(&name), |entry| app.training.state_of(entry));
    let going = state == Some(training::ProcessState::Running);
    let state = entry.map(|entry| entry.state.name());
    Ok(([(header::CONTENT_TYPE, "application/json")], json!({ "state": state, "going": going }).to_string())
        .into_response())
}

#[derive(Deserialize)]
struct Tagged {
    run: String,
    #[serde(default)]
    add: String,
    #[serde(default)]
    remove: String,
}

async fn tag(
    State(app): State<Arc<App>>,
    Extension(session): Extension<Session>,
    Form(Tagged { run, add, remove }): Form<Tagged>,
) -> PageResult {
    app.check_changes_runs(&session)?;
    let path = training::own(&app, &run)?;
    let mut labels = Labels::read(&path)?;
    if !add.trim().is_empty() {
        labels.add(add.trim())?;
    }
    labels.remove(&remove);
    labels.write(&path)?;
    Ok(Redirect::to(&page::address("show", &run)).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_curves_keep_their_first_and_last_value() {
        let of = |count: usize| {
            shortened((1..=count).map(|step| (step as f64, if step == count { 9.0 } else { 1.0 })).collect())
        };
        assert_eq!(of(POINTS).len(), POINTS);
        let long = of(2 * POINTS);
        assert_eq!((long.len(), long[0], long[POINTS - 1]), (POINTS, (1.0, 1.0), (2.0 * POINTS as f64, 9.0)));
        assert!(
            long.windows(2).all(|pair| pair[0].0 < pair[1].0) && long[1..POINTS - 1].iter().all(|(_, v)| *v == 1.0)
        );
    }
}
