//! The pages of annotation.

use axum::response::Html as Body;

use super::answer::{Answer, Rank, pair_name, pairs};
use super::export::Form;
use super::labels::{Asked, LabelSet};
use super::stats::{Number, Stats};
use super::task::Task;
use crate::html;
use crate::html::Html;
use crate::page::{Page, Place};
use crate::store::projects::{Annotation, Person, Project, Role, State};
use crate::store::sessions::Session;
use crate::training::{Making, Standing};

/// The address of something of a project, whose name has no character that an address would escape.
pub fn path(project: &Project, rest: &str) -> String {
    format!("/annotate/{}/{rest}", project.name)
}

/// The address of a task.
pub fn task_path(project: &Project, number: usize) -> String {
    path(project, &format!("task/{number}"))
}

fn page(session: &Session, title: &str, body: Html) -> Body<String> {
    Page { title, place: Place::Annotate, scripts: &[], styles: &[], body }.framed(session)
}

/// All projects, and who is signed in.
pub fn list(
    session: &Session,
    person: Option<&Person>,
    projects: &[(Project, Option<(usize, usize)>)],
    made: &[Making],
) -> Body<String> {
    let csrf = html!["<input type=\"hidden\" name=\"csrf\" value=\"" (session.csrf) "\">\n"];
    let who = match person {
        Some(person) => html![
            "<form method=\"post\" action=\"/annotate/leave\" class=\"row\">" (csrf) "<p>You are " (person.name) ", " (person.role.name())
            ".</p>\n<button type=\"submit\">Sign out</button></form>\n"
        ],
        None => html![
            "<form method=\"post\" action=\"/annotate/enter\" class=\"fields\">\n" (csrf)
            "<div><label for=\"name\">Name</label><input id=\"name\" name=\"name\" autocomplete=\"username\" required></div>\n"
            "<div><label for=\"token\">Token</label><input id=\"token\" name=\"token\" type=\"password\" autocomplete=\"current-password\" required></div>\n"
            "<button type=\"submit\" class=\"main\">Sign in</button>\n"
            "<p class=\"small soft\"><code>gradus annotate invite NAME</code> prints a token.</p>\n</form>\n"
        ],
    };
    let row = |(project, progress): &(Project, Option<(usize, usize)>)| {
        let name = match person {
            Some(_) => html!["<a href=\"/annotate/" (project.name) "\">" (project.name) "</a>"],
            None => html![(project.name)],
        };
        let done = progress.map(|(done, skipped)| html![(done) " done, " (skipped) " skipped"]);
        let of_all = match person.map(|person| person.role) {
            Some(Role::Reviewer | Role::Owner) => html!["<a href=\"" (path(project, "results")) "\">Results</a>"],
            _ => Html::new(),
        };
        html![
            "<tr><td>" (name) "</td><td>" (project.labels.name) "</td><td class=\"number\">" (project.tasks) "</td><td class=\"number\">"
            (project.annotators) "</td><td>" (done) "</td><td>" (of_all) "</td></tr>\n"
        ]
    };
    let projects = match projects.is_empty() {
        true => html![
            "<p>There is no project yet: <code>gradus annotate new NAME --data FILE --labels fine-grained</code> makes one.</p>\n"
        ],
        false => html![
            "<div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"Projects\"><table>\n<thead><tr><th scope=\"col\">Project</th><th scope=\"col\">Asks for</th>"
            "<th scope=\"col\" class=\"number\">Tasks</th><th scope=\"col\" class=\"number\">People a task</th><th scope=\"col\">You</th>"
            "<th scope=\"col\">All</th></tr></thead>\n<tbody>\n" (projects.iter().map(row).collect::<Vec<_>>()) "</tbody>\n</table></div>\n"
        ],
    };
    let row = |Making { name, standing, answers }: &Making| match (standing, answers) {
        (Standing::Going, None) => html!["<li role=\"status\" data-going>" (name) ": models answer …</li>\n"],
        (Standing::Going, Some((done, of))) => html![
            "<li data-going><span role=\"status\">" (name) ": models answer, " (done) " of " (of) " answers</span> "
            "<progress max=\"" (of) "\" value=\"" (done) "\" aria-label=\"Answers of " (name) "\"></progress></li>\n"
        ],
        (Standing::Ended(said), _) => {
            html!["<li class=\"bad\">" (name) " was not made:<pre tabindex=\"0\">" (said.join("\n")) "</pre></li>\n"]
        }
    };
    let going = made.iter().any(|making| making.standing == Standing::Going);
    let made = match made.is_empty() {
        true => Html::new(),
        false => html!["<ul class=\"list\" id=\"made\">\n" (made.iter().map(row).collect::<Vec<_>>()) "</ul>\n"],
    };
    let body = html![(who) "<h2>Projects</h2>\n<div id=\"projects\">\n" (made) (projects) "</div>\n"];
    let scripts = if going { &["making.js"][..] } else { &[] };
    Page { title: "Annotate", place: Place::Annotate, scripts, styles: &[], body }.framed(session)
}

/// Everything is done.
pub fn nothing_left(session: &Session, project: &Project) -> Body<String> {
    let body = html![
        "<p>There is nothing left for you in this project. Thank you.</p>\n<p><a href=\"/annotate\">All projects</a></p>\n"
    ];
    page(session, &project.name, body)
}

/// A task: what is given is here, what is asked is made by the script from the label set.
pub fn task(project: &Project, number: usize, task: &Task, state: State, (done, skipped): (usize, usize)) -> Html {
    let before = match state {
        State::Open => Html::new(),
        State::Done => {
            html!["<p class=\"good\">You have handed this in. It can still be changed and handed in again.</p>\n"]
        }
        State::Skipped => html!["<p>You have skipped this. It can still be done.</p>\n"],
    };
    let before = html![
        (before) "<p class=\"soft small\">Task " (number) " of " (project.tasks) " · " (done) " done, " (skipped) " skipped by you</p>\n"
    ];
    let skip = html![
        "<details class=\"skip-task\"><summary>Skip this task</summary>\n<div class=\"field\"><label for=\"reason\">Why?</label><input id=\"reason\"></div>\n"
        "<button type=\"button\" id=\"skip\">Skip</button>\n</details>\n"
    ];
    let places = (task_path(project, number), format!("/annotate/{}", project.name));
    frame(project, task, &places, before, &Html::new(), &skip)
}

/// What all pages of a task have: what is given, `said` by others, and the place for what is asked. `places` are where its script
/// asks, and where it goes when all is said.
fn frame(project: &Project, task: &Task, places: &(String, String), before: Html, said: &Html, skip: &Html) -> Html {
    let labels = &project.labels;
    let passages: Vec<Html> = task.passages.iter().enumerate().map(|(i, passage)| {
        let sentence = |(s, text): (usize, &String)| html!["<li><span class=\"soft small\">S" (s) "</span> " (text) "</li>\n"];
        let sentences: Vec<Html> = std::iter::once(&passage.title).chain(&passage.sentences).enumerate().map(sentence).collect();
        html![
            "<details open><summary>Passage " (i + 1) ": " (passage.title) "</summary>\n<ol class=\"sentences\" start=\"0\">\n" (sentences)
            "</ol>\n</details>\n"
        ]
    }).collect();
    let reference = match task.reference.is_empty() {
        true => Html::new(),
        false => {
            html!["<details open><summary>Reference</summary><p class=\"text\">" (task.reference) "</p></details>\n"]
        }
    };
    html![
        (before) (instructions(labels))
        "<div class=\"work\" data-task=\"" (places.0) "\" data-next=\"" (places.1) "\">\n"
        "<section class=\"given\" aria-label=\"What is given\">\n<h2>Question</h2>\n<p class=\"text\">" (task.question) "</p>\n" (reference) (passages) (said) "</section>\n"
        "<section aria-label=\"What you say\">\n<div id=\"asked\"></div>\n"
        "<div class=\"field\"><label for=\"feedback\">Anything else (optional)</label><textarea id=\"feedback\" rows=\"2\"></textarea></div>\n"
        "<ul id=\"todo\" class=\"small\" aria-live=\"polite\"></ul>\n<p id=\"status\" role=\"status\" class=\"small soft\"></p>\n"
        "<div class=\"row\"><button type=\"button\" id=\"submit\" class=\"main\" disabled>Hand in</button>"
        "<button type=\"button\" id=\"undo\" disabled>Undo</button></div>\n"
        (skip) "<p class=\"small soft\">" (keys(labels)) "</p>\n</section>\n</div>\n"
        "<noscript><p>Annotating needs the script of this page.</p></noscript>\n"
    ]
}

/// A task on which people differ, with what each said, for the reviewer who decides.
pub fn decision(
    project: &Project,
    number: usize,
    task: &Task,
    said: &[Annotation],
    verdict: Option<&Annotation>,
    left: usize,
) -> Html {
    let before = match verdict {
        Some(verdict) if verdict.state == State::Done => {
            html!["<p class=\"good\">" (verdict.person) " has decided this. It can still be changed and handed in again.</p>\n"]
        }
        _ => Html::new(),
    };
    let before = html![(before) "<p class=\"soft small\">Task " (number) " of " (project.tasks) " · " (left) " wait for a decision, which is final in every export. It begins with what the first said.</p>\n"];
    let one = |said: &Annotation| {
        let parts: Vec<Html> =
            in_words(project, task, &said.answer).iter().map(|part| html!["<li>" (part) "</li>\n"]).collect();
        html!["<details open class=\"said\"><summary>" (said.person) " said</summary>\n<ul>\n" (parts) "</ul>\n</details>\n"]
    };
    let said = html!["<h2>What people said</h2>\n"(said.iter().map(one).collect::<Vec<_>>())];
    let places = (path(project, &format!("adjudicate/{number}")), path(project, "adjudicate"));
    frame(project, task, &places, before, &said, &Html::new())
}

/// An annotation, a line for each part.
fn in_words(project: &Project, task: &Task, answer: &Answer) -> Vec<String> {
    let labels = &project.labels;
    let label = |kind: &str| {
        let known = labels.spans.iter().chain(&labels.missing).find(|known| known.name == kind);
        known.map_or(kind.to_owned(), |known| known.label.clone())
    };
    let mut lines = Vec::new();
    if answer.no_error {
        lines.push("No error".to_owned());
    }
    for span in &answer.spans {
        let text: String = task.answers[0].chars().skip(span.start).take(span.end.saturating_sub(span.start)).collect();
        lines.push(format!("{}: “{text}”", label(&span.kind)));
    }
    lines.extend(answer.missing.iter().map(|missing| {
        format!("{}, passage {}, sentences {:?}", label(&missing.kind), missing.passage, missing.sentences)
    }));
    lines.extend(answer.correction.iter().map(|text| format!("Corrected: {text}")));
    for pair in pairs(task.answers.len()) {
        let name = pair_name(pair);
        let Some(rank) = answer.ranks.get(&name) else { continue };
        let words = match rank {
            Rank::First => format!("{} is better", pair.0 + 1),
            Rank::Second => format!("{} is better", pair.1 + 1),
            Rank::Tie => "as good".to_owned(),
            Rank::Bad => "both bad".to_owned(),
        };
        let strength = answer.strengths.get(&name).map_or(String::new(), |strength| format!(" ({strength})"));
        lines.push(format!("{} and {}: {words}{strength}", pair.0 + 1, pair.1 + 1));
    }
    lines.extend(answer.questions.iter().map(|(name, value)| format!("{name}: {value}")));
    if !answer.feedback.is_empty() {
        lines.push(answer.feedback.clone());
    }
    lines
}

fn instructions(labels: &LabelSet) -> Html {
    if labels.instructions.is_empty() {
        return Html::new();
    }
    let list = |texts: &[String]| {
        let items: Vec<Html> = texts.iter().map(|text| html!["<li>" (text) "</li>\n"]).collect();
        html!["<ul>\n" (items) "</ul>\n"]
    };
    let example = match labels.example.is_empty() {
        true => Html::new(),
        false => html!["<details><summary>Example</summary>\n" (list(&labels.example)) "</details>\n"],
    };
    let one = |asked: &Asked| html!["<dt>" (asked.question) "</dt>\n<dd>" (asked.answer) "</dd>\n"];
    let faq = match labels.faq.is_empty() {
        true => Html::new(),
        false => {
            let all: Vec<Html> = labels.faq.iter().map(one).collect();
            html!["<details><summary>Questions and answers</summary>\n<dl>\n" (all) "</dl>\n</details>\n"]
        }
    };
    html!["<details class=\"instructions\"><summary>Instructions</summary>\n" (list(&labels.instructions)) (example) (faq) "</details>\n"]
}

fn keys(labels: &LabelSet) -> Html {
    let spans = match labels.spans.is_empty() {
        true => Html::new(),
        false => html![
            "In the answer, <kbd>←</kbd> <kbd>→</kbd> go from word to word, <kbd>Shift</kbd> with them selects, <kbd>Enter</kbd> marks. "
        ],
    };
    html![(spans) "<kbd>Ctrl</kbd> <kbd>Z</kbd> undoes, <kbd>Ctrl</kbd> <kbd>Enter</kbd> hands in. Everything is kept as you go."]
}

fn number(value: &Number) -> Html {
    match value {
        Number::Value(value) => html![(format!("{value:.3}"))],
        Number::Undefined(why) => html!["<span class=\"soft small\">" (*why) "</span>"],
    }
}

fn table(name: &'static str, heads: &[&'static str], rows: Vec<Html>) -> Html {
    let heads: Vec<Html> = heads.iter().map(|head| html!["<th scope=\"col\">" (*head) "</th>"]).collect();
    html![
        "<h2>" (name) "</h2>\n<div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"" (name) "\"><table>\n<thead><tr>" (heads)
        "</tr></thead>\n<tbody>\n" (rows) "</tbody>\n</table></div>\n"
    ]
}

/// How a project stands.
///
/// `waiting` are tasks on which a reviewer has to decide; `train` is what leads on.
pub fn results(
    session: &Session,
    project: &Project,
    stats: &Stats,
    waiting: usize,
    train: Option<Html>,
) -> Body<String> {
    let people = stats.people.iter().map(|work| html![
        "<tr><td>" (work.name) "</td><td>" (work.done) "</td><td>" (work.skipped) "</td><td>" (number(&work.median_seconds)) "</td><td>" (work.fast)
        "</td><td>" (number(&work.right)) "</td><td>" (work.inattentive) "</td></tr>\n"
    ]);
    let agreement = stats.agreement.iter().map(|of| html![
        "<tr><td>" (of.of) "</td><td>" (of.items) "</td><td>" (number(&of.raw)) "</td><td>" (number(&of.cohen)) "</td><td>" (number(&of.fleiss))
        "</td><td>" (number(&of.alpha)) "</td></tr>\n"
    ]);
    let spans = stats
        .span_f1
        .as_ref()
        .map(|f1| html!["<p>Characters marked alike, F1 over all pairs of people: " (number(f1)) "</p>\n"]);
    let strength = |of: &super::stats::Strength| {
        let (low, high) = of.interval;
        html!["<tr><td>" (of.model) "</td><td>" (format!("{:.3}", of.log_strength)) "</td><td>" (format!("{low:.3} to {high:.3}")) "</td></tr>\n"]
    };
    let models = match (stats.models.is_empty(), stats.models_undefined) {
        (true, None) => Html::new(),
        (true, Some(why)) => html!["<h2>Models</h2>\n<p>No strengths: " (why) ".</p>\n"],
        (false, _) => {
            table("Models", &["Model", "Log-strength", "95 % interval"], stats.models.iter().map(strength).collect())
        }
    };
    let share = |of: &'static str, share: &Number| html!["<tr><td>" (of) "</td><td>" (number(share)) "</td></tr>\n"];
    let bias = match project.labels.comparison {
        true => table(
            "Which answer is preferred",
            &["Of those that are no tie", "Share"],
            vec![share("the one on the left", &stats.left_preferred), share("the longer one", &stats.longer_preferred)],
        ),
        false => Html::new(),
    };
    let links = |form: &Form| -> Vec<Html> {
        let one = |ending: &&str| html!["<a href=\"" (path(project, &format!("{}.{ending}", form.name()))) "\" download>" (*ending) "</a> "];
        ["jsonl", "json", "csv", "parquet", "arrow"].iter().map(one).collect()
    };
    let forms = Form::ALL.iter().map(|form| html!["<li>" (form.name()) ": " (links(form)) "</li>\n"]);
    let decide = match waiting {
        0 => html!["<p>Nobody disagrees about a task that waits for a decision.</p>\n"],
        _ => {
            html!["<p><a href=\"" (path(project, "adjudicate")) "\">Decide where people disagree</a>: " (waiting) " tasks wait, those first on which they differ most.</p>\n"]
        }
    };
    let body = html![
        "<p>" (stats.complete) " of " (stats.tasks) " tasks have all their annotations.</p>\n" (decide)
        (table("People", &["Name", "Done", "Skipped", "Median seconds", "Too fast", "Known right", "Not attentive"], people.collect()))
        (table("Agreement", &["On", "Items", "Same", "Cohen’s κ", "Fleiss’ κ", "Krippendorff’s α"], agreement.collect())) (spans) (models) (bias) (train)
        "<h2>Download</h2>\n<p>For the owner:</p>\n<ul>\n" (forms.collect::<Vec<_>>()) "</ul>\n"
    ];
    page(session, &project.name, body)
}
