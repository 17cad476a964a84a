//! Start of a run: it is configured, checked, shown with its memory forecast, and started.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::extract::{Query, State};
use axum::response::{IntoResponse, Redirect};
use axum::{Extension, Form};
use gradus::Error;
use gradus::config::{MethodConfig, Plan, Request, RunConfig};
use gradus::error::Location;
use gradus::files::atomic;
use gradus::html::Html;
use gradus::machine::Machine;
use gradus::runs::Settings;
use serde::Deserialize;
use serde_json::Value;

use super::fields::{Lists, Problem, command, given, named_field, set};
use super::processes::{AT_ONCE, CONFIGS, DRAFTS, Draft, ProcessTask, RunStarter, StartedRun, configs, runs_directory};
use super::{form, free, is_plain, may_train, page};
use crate::app::App;
use crate::page::{Page, Section};
use crate::page_error::{PageError, PageResult};
use crate::query::percent;
use crate::runs::blocking;
use crate::runs::query_params::{QueryParams, first};
use crate::secret::secret;
use crate::store::sessions::Session;
use crate::temp_file::TempFile;

fn framed(session: &Session, title: &str, body: Html) -> PageResult {
    Ok(Page { title, section: Section::Runs, scripts: &[], styles: &[], body }.framed(session).into_response())
}

fn form_of(
    session: &Session,
    method: &MethodConfig,
    lists: &Lists,
    filled: &QueryParams,
    problems: &[Problem],
    note: Html,
) -> PageResult {
    let (title, body) =
        (format!("New {} run", method.name()), form::form(session, method, lists, filled, problems, note));
    let page = Page { title: &title, section: Section::Runs, scripts: &["page.js", "form.js"], styles: &[], body };
    Ok(page.framed(session).into_response())
}

async fn lists(app: &Arc<App>) -> Result<Lists, PageError> {
    let of = Arc::clone(app);
    blocking(move || Lists::look(&of.folder, of.models.list())).await
}

/// Renders the methods, or the form of one method with values from the address.
pub async fn choose(
    State(app): State<Arc<App>>,
    Extension(session): Extension<Session>,
    Query(query): Query<QueryParams>,
) -> PageResult {
    may_train(&app, &session)?;
    let lists = lists(&app).await?;
    if let Some(run) = first(&query, "from") {
        let settings = Settings::read(&crate::runs::query_params::find(&app, run)?.join("config.yml"))?;
        let method = settings.method().and_then(MethodConfig::named);
        let method =
            method.ok_or_else(|| PageError::request("This version of gradus does not have the method of this run."))?;
        let (filled, left) = form::of_run(method.name(), &settings, &lists);
        let note = form::duplicated(run, &left);
        return form_of(&session, &method, &lists, &filled, &[], note);
    }
    let Some(method) = first(&query, "method").and_then(MethodConfig::named) else {
        return framed(&session, "New run", form::goals(&MethodConfig::all()));
    };
    let filled: QueryParams = query.iter().filter(|(name, _)| name != "method").cloned().collect();
    let (lists, method, filled) = blocking(move || {
        let filled = form::sensible(&method, &lists, filled);
        (lists, method, filled)
    })
    .await?;
    form_of(&session, &method, &lists, &filled, &[], Html::new())
}

/// Checks the form. Renders the forecast of the run, or the form with its errors.
pub async fn plan(
    State(app): State<Arc<App>>,
    Extension(session): Extension<Session>,
    Form(filled): Form<QueryParams>,
) -> PageResult {
    let starter = may_train(&app, &session)?;
    let method = first(&filled, "method").and_then(MethodConfig::named);
    let method = method.ok_or_else(|| PageError::request("There is no such method."))?;
    let filled: QueryParams = filled.into_iter().filter(|(name, _)| name != "csrf" && name != "method").collect();
    let lists = lists(&app).await?;
    let (of, read) = (Arc::clone(&app), filled.clone());
    let name = method.name();
    let (lists, checked) = blocking(move || {
        let checked = checked(&of, name, &lists, &read);
        (lists, checked)
    })
    .await?;
    let again = |problems: &[Problem]| form_of(&session, &method, &lists, &filled, problems, Html::new());
    let (draft, line) = match checked {
        Ok(checked) => checked,
        Err(problems) => return again(&problems),
    };
    let (of, yaml) = (Arc::clone(&app), draft.yaml.clone());
    let forecast = blocking(move || forecast(starter.as_ref(), &of.folder, &yaml)).await?;
    let forecast = match forecast {
        Ok(forecast) => forecast,
        Err(error) => return again(&in_words(name, &error)),
    };
    let id = secret();
    let query = filled.iter().filter(|(_, value)| !value.is_empty());
    let query: String = query.map(|(name, value)| format!("&{}={}", percent(name), percent(value))).collect();
    let change = format!("/runs/new?method={name}{query}");
    let shown = page::planned(&session, (&id, &draft.name), &forecast, (&draft.yaml, &line), &change);
    {
        let mut processes = app.training.processes();
        processes.drafts.push_back((id, draft));
        while processes.drafts.len() > DRAFTS {
            processes.drafts.pop_front();
        }
    }
    framed(&session, &format!("New {name} run"), shown)
}

/// Returns the run that a form defines, and the equivalent command line. Returns all errors: a bad name does not hide the others.
fn checked(app: &App, method: &str, lists: &Lists, filled: &QueryParams) -> Result<(Draft, String), Vec<Problem>> {
    let plain: QueryParams = filled.iter().filter(|(name, _)| name != "name").cloned().collect();
    let model = first(filled, "model").unwrap_or("model").rsplit('/').next().unwrap_or("model").to_owned();
    let stem = format!("{method}-{model}");
    let name = first(filled, "name").map_or_else(|| free(app, &stem), str::to_owned);
    let (above, before) = runs_directory(&app.folder);
    let bad_name = if !is_plain(&name) || [CONFIGS, "models", "data"].contains(&name.as_str()) {
        Some(format!("{name} cannot be the name of a run: use letters, digits, -, _ and ."))
    } else if above.join(&name).symlink_metadata().is_ok() {
        Some(format!("{before}{name} exists already: choose another name."))
    } else {
        None
    };
    let mut problems: Vec<Problem> = bad_name.map(|text| Problem::of(Some("name"), text)).into_iter().collect();
    let directory = above.join(if problems.is_empty() { name.clone() } else { free(app, &stem) });
    let plan = given(method, lists, &plain).and_then(|mut flags| {
        flags.extend(set(method, "output_dir", &directory.to_string_lossy()));
        let line = command(method, &flags);
        flags.extend(set(method, "train.device", &app.training.device));
        let request = Request { method: Some(method), flags: &flags, ..Request::default() };
        let plan = RunConfig::load(&request).and_then(|written| Plan::check(&written, &Machine::detect()));
        plan.map(|plan| (plan.to_yaml(), line)).map_err(|error| in_words(method, &error))
    });
    match plan {
        Ok((yaml, line)) if problems.is_empty() => {
            Ok((Draft { name: format!("{before}{name}"), directory, yaml }, line))
        }
        Ok(_) => Err(problems),
        Err(others) => {
            problems.extend(others);
            Err(problems)
        }
    }
}

/// Converts errors to problems with their fields.
fn in_words(method: &str, error: &Error) -> Vec<Problem> {
    let Error::Config(problems) = error else {
        let text = error.to_string();
        let field = named_field(method, &text);
        return vec![Problem::of(field.as_deref(), text).with_hint(error.hint())];
    };
    let one = |problem: &gradus::error::Diagnostic| {
        let mut flags = problem.locations.iter().filter_map(|location| match location {
            Location::Flag(flag) => Some(flag.trim_start_matches('-').trim_start_matches("no-").to_owned()),
            Location::File { .. } | Location::Argument(_) => None,
        });
        let text = problem.to_string();
        let field = flags.next().or_else(|| named_field(method, &text));
        Problem::of(field.as_deref(), text).with_hint(problem.hint.as_deref())
    };
    problems.iter().map(one).collect()
}

/// Returns the memory forecast of a run. A separate process reads the rows for it.
fn forecast(starter: &dyn RunStarter, folder: &Path, yaml: &str) -> gradus::Result<Value> {
    let passing = TempFile(configs(folder)?.join(format!(".{}.yml", secret())));
    atomic::write_bytes(&passing.0, yaml.as_bytes())?;
    starter.forecast(&passing.0)
}

#[derive(Deserialize)]
pub struct Starting {
    draft: String,
}

/// Starts a run that was shown.
pub async fn start(
    State(app): State<Arc<App>>,
    Extension(session): Extension<Session>,
    Form(Starting { draft }): Form<Starting>,
) -> PageResult {
    let starter = may_train(&app, &session)?;
    let mut processes = app.training.processes();
    let at = processes.drafts.iter().position(|(id, _)| *id == draft);
    let at = at.ok_or_else(|| PageError::missing("This plan does not exist any more: fill in the form again."))?;
    let going = processes.started.iter().filter(|started| !started.has_ended).count();
    if going >= AT_ONCE {
        return Err(PageError::request(&format!("{going} runs are running, which is the limit: stop one, or wait.")));
    }
    let (_, draft) = processes.drafts.remove(at).expect("it was just there");
    let Draft { name, directory, yaml } = draft;
    // Creating the directory reserves the name.
    std::fs::create_dir(&directory).map_err(|error| Error::io(&directory, error))?;
    let started = configs(&app.folder).and_then(|configs| {
        let (config, log) = files(&configs, &name);
        atomic::write_bytes(&config, yaml.as_bytes())?;
        let going = starter.begin(&ProcessTask::Train { config: &config }, &log)?;
        Ok(StartedRun {
            name: name.clone(),
            directory: directory.clone(),
            log,
            going,
            has_ended: false,
            was_there: false,
            before: None,
        })
    });
    match started {
        Ok(started) => {
            processes.started.retain(|before| before.name != name);
            processes.started.push(started);
            Ok(Redirect::to(&crate::runs::address("show", &name)).into_response())
        }
        Err(error) => {
            let _ = std::fs::remove_dir(&directory);
            Err(error.into())
        }
    }
}

/// Runs the demonstration.
pub async fn demo(State(app): State<Arc<App>>, Extension(session): Extension<Session>) -> PageResult {
    let starter = may_train(&app, &session)?;
    app.training.begin_demo(starter.as_ref(), &app.folder)?;
    Ok(Redirect::to("/").into_response())
}

/// Returns the paths of a run's configuration and of its process's log.
pub(super) fn files(configs: &Path, name: &str) -> (PathBuf, PathBuf) {
    // The prefix prevents a run's name from producing a file name with another meaning.
    let name = format!("run-{}", name.replace('/', "-"));
    (configs.join(format!("{name}.yml")), configs.join(format!("{name}.log")))
}
