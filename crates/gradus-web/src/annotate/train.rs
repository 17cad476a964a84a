//! From annotations to models and back: a reward model trained on annotations, a policy trained against it, and a blind comparison of two
//! policies. Each step writes a file and creates an ordinary run or project. The page also shows the equivalent command.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::extract::{Path as Named, State};
use axum::response::{IntoResponse, Redirect};
use axum::{Extension, Form as Filled};
use gradus::Error;
use gradus::config::MethodConfig;
use gradus::data::Need;
use gradus::files::output::OutputFile;
use gradus::html;
use gradus::html::Html;
use gradus::shell;
use serde::Deserialize;
use serde_json::Value;

use super::export::{Form, rows};
use super::{project, terminal};
use crate::app::App;
use crate::models::{Kind, ModelEntry};
use crate::page::csrf;
use crate::page_error::{PageError, PageResult};
use crate::query::percent;
use crate::runs::blocking;
use crate::store::projects::Project;
use crate::store::sessions::Session;
use crate::training::may_train;
use crate::within;

/// Subdirectory for training rows.
const DATA: &str = "data";

/// Maximum number of prompts in a comparison.
const PROMPTS: usize = 1000;

/// Returns the available models.
pub async fn models(app: &Arc<App>) -> Vec<ModelEntry> {
    let of = Arc::clone(app);
    blocking(move || of.models.list()).await.unwrap_or_default()
}

/// Returns the possible trainings on the annotations of a project: the form of the rows, the result, and the method.
fn steps(project: &Project) -> Vec<(Form, &'static str, String)> {
    let find = |fits: &dyn Fn(&MethodConfig) -> bool| {
        MethodConfig::all().into_iter().find(|method| fits(method)).map(|method| method.name().to_owned())
    };
    let labels = &project.labels;
    let mut steps = Vec::new();
    if labels.comparison {
        let rewards = find(&|method| method.method().need() == Need::Preference && !method.makes_policy());
        steps.extend(rewards.map(|name| (Form::Preference, "a reward model on these annotations", name)));
    }
    if !labels.spans.is_empty() {
        let classifiers = find(&|method| method.method().need() == Need::Columns);
        for (form, words) in [(Form::R1, "a reward model of relevance"), (Form::R2, "a reward model of factuality")] {
            steps.extend(classifiers.clone().map(|name| (form, words, name)));
        }
    }
    steps
}

/// Returns the methods that train a policy against a reward.
fn policies() -> Vec<&'static str> {
    MethodConfig::all().iter().filter(|method| method.is_online()).map(MethodConfig::name).collect()
}

/// Returns the file for rows of a project, relative to the folder.
fn file(project: &Project, form: Form) -> String {
    format!("{DATA}/{}-{}.jsonl", project.name, form.name())
}

/// Renders options and selects the one at `chosen`.
fn options(names: &[&str], chosen: usize) -> Vec<Html> {
    let one = |(at, name): (usize, &&str)| match at == chosen {
        true => html!["<option value=\"" (*name) "\" selected>" (*name) "</option>"],
        false => html!["<option value=\"" (*name) "\">" (*name) "</option>"],
    };
    names.iter().enumerate().map(one).collect()
}

/// Renders the owner's section about training on a project's page.
pub fn section(app: &App, session: &Session, project: &Project, models: &[ModelEntry]) -> Html {
    let folder = shell::path(&app.folder);
    let csrf = csrf(session);
    let is_allowed = app.training.is_allowed();
    let button = |words: Html| match is_allowed {
        true => html!["<button type=\"submit\">" (words) "</button>"],
        false => html!["<button type=\"submit\" disabled>" (words) "</button>"],
    };
    let export = |form: Form| {
        format!(
            "gradus annotate export {} --folder {folder} --form {} --output {folder}/{}",
            project.name,
            form.name(),
            file(project, form)
        )
    };
    let step = |(form, words, method): &(Form, &'static str, String)| {
        html![
            "<form method=\"post\" action=\"/annotate/" (project.name) "/train\" class=\"loop\">" (csrf) "<input type=\"hidden\" name=\"form\" value=\"" (form.name()) "\">"
            "<input type=\"hidden\" name=\"method\" value=\"" (method) "\">" (button(html!["Train " (*words)]))
            "<pre tabindex=\"0\">" (export(*form)) "\ngradus " (method) " --model MODEL --data " (folder) "/" (file(project, *form)) "</pre></form>\n"
        ]
    };
    let first: Vec<Html> = steps(project).iter().map(step).collect();
    let names = |kind: Kind| -> Vec<&str> {
        models.iter().filter(|found| found.kind == kind).map(|found| found.name.as_str()).collect()
    };
    let (languages, judges) = (names(Kind::Language), names(Kind::Reward));
    let prompts = file(project, Form::Prompt);
    let policy = html![
        "<form method=\"post\" action=\"/annotate/" (project.name) "/train\" class=\"loop\">" (csrf) "<input type=\"hidden\" name=\"form\" value=\"" (Form::Prompt.name()) "\">"
        "<div class=\"row\"><label for=\"method\">By</label><select id=\"method\" name=\"method\">" (options(&policies(), 0)) "</select>"
        "<label for=\"judge\">against</label><select id=\"judge\" name=\"reward-model\">" (options(&judges, 0)) "</select>" (button(html!["Train a policy against it"])) "</div>"
        "<pre tabindex=\"0\">" (export(Form::Prompt)) "\ngradus METHOD --model MODEL --reward-model REWARD_MODEL --data " (folder) "/" (prompts) "</pre></form>\n"
    ];
    let compare = html![
        "<form method=\"post\" action=\"/annotate/" (project.name) "/compare\" class=\"loop\">" (csrf)
        "<div class=\"row\"><label for=\"one\">Of</label><select id=\"one\" name=\"one\">" (options(&languages, 0)) "</select><label for=\"other\">and</label><select id=\"other\" name=\"other\">"
        (options(&languages, 1)) "</select><label for=\"prompts\">on at most</label><input id=\"prompts\" name=\"prompts\" value=\"50\" size=\"5\" inputmode=\"numeric\" required>"
        "<label for=\"to\">questions, as</label><input id=\"to\" name=\"name\" value=\"" (project.name) "-blind\" size=\"16\" required>"
        (button(html!["Open a blind comparison of the two"])) "</div>"
        "<pre tabindex=\"0\">gradus annotate new " (project.name) "-blind --folder " (folder) " --data " (folder) "/" (prompts) " --labels comparison --model ONE --model OTHER</pre></form>\n"
    ];
    let leave = match is_allowed {
        true => Html::new(),
        false => html![
            "<p class=\"small soft\">The buttons need a server that was started with <code>--allow-training</code>; the commands do the same.</p>\n"
        ],
    };
    html!["<section class=\"steps\" aria-labelledby=\"loop\">\n<h2 id=\"loop\">Train on the annotations</h2>\n" (leave) (first) (policy) (compare) "</section>\n"]
}

/// Writes the rows of a project into the folder and returns the relative file name.
///
/// An existing file is kept, because it may belong to someone else or to a run. It is reused if it contains the same rows; otherwise the
/// new file gets a number.
fn write(app: &App, project: &Project, form: Form) -> gradus::Result<String> {
    let found = rows(&app.store, project, form)?;
    if found.is_empty() {
        return Err(Error::input(format!("`{}` has no {} rows yet", project.name, form.name())));
    }
    within::made(&app.folder, DATA)?;
    let text: String = found.into_iter().map(|row| Value::Object(row).to_string() + "\n").collect();
    let (mut name, mut number) = (file(project, form), 1);
    loop {
        let path = app.folder.join(&name);
        within::check(&app.folder, &path)?;
        if std::fs::read(&path).is_ok_and(|bytes| bytes == text.as_bytes()) {
            return Ok(name);
        }
        if path.symlink_metadata().is_err() {
            OutputFile::new(&path)?.write(|file| file.write_all(text.as_bytes()))?;
            return Ok(name);
        }
        number += 1;
        name = format!("{DATA}/{}-{}-{number}.jsonl", project.name, form.name());
    }
}

#[derive(Deserialize)]
pub struct TrainForm {
    form: String,
    method: String,
    #[serde(default, rename = "reward-model")]
    judge: String,
}

/// Writes the rows and redirects to the pre-filled form of a run.
pub async fn train(
    State(app): State<Arc<App>>,
    Extension(session): Extension<Session>,
    Named(name): Named<String>,
    Filled(TrainForm { form, method, judge }): Filled<TrainForm>,
) -> PageResult {
    let project = owned(&app, &session, &name)?;
    let form = Form::of(&form).ok_or_else(|| PageError::request("There is no such form of rows."))?;
    let method = MethodConfig::named(&method).ok_or_else(|| PageError::request("There is no such method."))?;
    let (of, at) = (Arc::clone(&app), project);
    let file = blocking(move || write(&of, &at, form)).await??;
    let mut to = format!("/runs/new?method={}&data={}", method.name(), percent(&file));
    if !judge.is_empty() {
        to += &format!("&reward-model={}", percent(&judge));
    }
    Ok(Redirect::to(&to).into_response())
}

/// Returns the project, if the user owns it and training is allowed.
fn owned(app: &App, session: &Session, name: &str) -> Result<Project, PageError> {
    may_train(app, session)?;
    let person = super::who(app, session)?;
    if person.role != crate::store::projects::Role::Owner {
        return Err(PageError::forbidden("The answers of people are only for the owner of the project."));
    }
    project(app, name)
}

#[derive(Deserialize)]
pub struct CompareForm {
    one: String,
    other: String,
    prompts: String,
    name: String,
}

/// Lets both models answer the questions of a project, in a separate process, and creates a project from the answers.
pub async fn compare(
    State(app): State<Arc<App>>,
    Extension(session): Extension<Session>,
    Named(name): Named<String>,
    Filled(form): Filled<CompareForm>,
) -> PageResult {
    let project = owned(&app, &session, &name)?;
    let prompts = form.prompts.trim().parse::<usize>().ok().filter(|count| (1..=PROMPTS).contains(count));
    let prompts =
        prompts.ok_or_else(|| PageError::request(&format!("The number of questions must be from 1 to {PROMPTS}.")))?;
    terminal::check_name(&form.name)?;
    if app.store.projects().find(&form.name)?.is_some() {
        return Err(PageError::request(&format!("A project {} exists already.", form.name)));
    }
    let found = models(&app).await;
    let path = |name: &str| {
        let known = found.iter().find(|found| found.kind == Kind::Language && found.name == name);
        known
            .map(|found| found.path.clone())
            .ok_or_else(|| PageError::request(&format!("There is no such model: {name}")))
    };
    let models = [path(&form.one)?, path(&form.other)?];
    let of = Arc::clone(&app);
    let file = app.folder.join(blocking(move || write(&of, &project, Form::Prompt)).await??);
    let models: Vec<&Path> = models.iter().map(PathBuf::as_path).collect();
    app.training.compare(&app.folder, &form.name, (&file, prompts), &models)?;
    Ok(Redirect::to("/annotate").into_response())
}
