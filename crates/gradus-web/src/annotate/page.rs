//! HTML pages of annotation.

use axum::response::Html as Body;
use gradus::html;
use gradus::html::Html;

use super::answer::{Answer, Marked};
use super::export::Form;
use super::labels::{BUILT_IN, FaqEntry, LabelSet};
use super::rank::{Rank, pair_name, pairs};
use super::shown::Shown;
use super::stats::{Claim, Number, Stats};
use super::task::Task;
use super::turns;
use crate::components::{table, tile};
use crate::page::{Page, Section, csrf};
use crate::ranking;
use crate::store::projects::{Annotation, AnnotationState, Person, Project, Role};
use crate::store::sessions::Session;
use crate::training::{PendingProject, ProcessState};

/// Returns a path within a project. Names of projects contain no characters that need escaping.
pub fn path(project: &Project, rest: &str) -> String {
    format!("/annotate/{}/{rest}", project.name)
}

/// Returns the path of a task.
pub fn task_path(project: &Project, number: usize) -> String {
    path(project, &format!("task/{number}"))
}

fn page(session: &Session, title: &str, body: Html) -> Body<String> {
    Page { title, section: Section::Annotate, scripts: &[], styles: &[], body }.framed(session)
}

/// A project in the list, with one person's numbers of submitted and skipped tasks.
pub type Listed = (Project, Option<(usize, usize)>);

/// Renders the option that points a command at the served folder. `folder` is quoted for shells.
fn option_of(folder: &str) -> Html {
    html![" --folder "(folder)]
}

/// Content of the owner's forms.
pub struct ProjectForm<'a> {
    /// Data files, with names relative to the folder.
    pub data: &'a [String],
}

/// Renders all projects and the signed-in person. `pending` are projects whose answers are still being generated. `folder` is the served
/// folder, quoted for shells. `refused` is the name of a person whose token was wrong.
pub fn list(
    session: &Session,
    person: Option<&Person>,
    projects: &[Listed],
    pending: &[PendingProject],
    form: Option<&ProjectForm<'_>>,
    folder: &str,
    refused: Option<&str>,
) -> Body<String> {
    let csrf = csrf(session);
    let marks = refused.map(|_| html![" aria-invalid=\"true\" aria-describedby=\"refused\""]);
    let message = refused
        .map(|_| html!["<p class=\"bad\" id=\"refused\" role=\"alert\">The name and the token do not match.</p>\n"]);
    let who = match person {
        Some(person) => html![
            "<form method=\"post\" action=\"/annotate/leave\" class=\"row\">" (csrf) "<p class=\"soft\">Signed in as <strong>" (person.name) "</strong> <span class=\"badge\">"
            (person.role.name()) "</span></p>\n<button type=\"submit\">Sign out</button></form>\n"
        ],
        None => html![
            "<form method=\"post\" action=\"/annotate/enter\" class=\"fields card-form\">\n<h2>Sign in</h2>\n" (csrf) (message)
            "<div><label for=\"name\">Name</label><input id=\"name\" name=\"name\" value=\"" (refused) "\" autocomplete=\"username\" required></div>\n"
            "<div><label for=\"token\">Token</label><input id=\"token\" name=\"token\" type=\"password\" autocomplete=\"current-password\"" (marks) " required></div>\n"
            "<button type=\"submit\" class=\"main\">Sign in</button>\n"
            "<p class=\"small soft\">The owner of the project gives you a token. On this machine, <code>gradus annotate invite NAME --role owner" (option_of(folder)) "</code> prints one.</p>\n</form>\n"
        ],
    };
    let body = html![
        (who) "<h2>Projects</h2>\n<div data-refreshed>\n" (begun_list(pending)) (project_list(person, projects, folder)) "</div>\n"
        (form.map(|form| make(&csrf, form)))
    ];
    let going = pending.iter().any(|project| project.state == ProcessState::Running);
    let scripts = if going { &["making.js"][..] } else { &[] };
    Page { title: "Annotate", section: Section::Annotate, scripts, styles: &[], body }.framed(session)
}

fn project_list(person: Option<&Person>, projects: &[Listed], folder: &str) -> Html {
    if projects.is_empty() {
        return html![
            "<div class=\"empty\"><p><strong>There is no project yet.</strong></p>\n<p>A project takes its tasks from a data file and asks people to mark, "
            "correct, compare or rate answers.</p>\n<pre tabindex=\"0\">gradus annotate new NAME --data FILE --labels comparison" (option_of(folder)) "</pre></div>\n"
        ];
    }
    let sees_all = person.is_some_and(|person| person.role != Role::Annotator);
    let row = |(project, progress): &Listed| {
        let name = match person {
            Some(_) => html!["<a href=\"/annotate/" (project.name) "\">" (project.name) "</a>"],
            None => html![(project.name)],
        };
        let own = progress.map(|(done, skipped)| {
            let skipped = (skipped > 0).then(|| html![", " (skipped) " skipped"]);
            html![
                "<progress max=\"" (project.tasks) "\" value=\"" (done) "\" aria-label=\"Your progress in " (project.name) "\"></progress> <span class=\"soft small\">"
                (done) " submitted" (skipped) "</span>"
            ]
        });
        let results = sees_all.then(|| html!["<a href=\"" (path(project, "results")) "\">Results</a>"]);
        html![
            "<tr><td>" (name) "</td><td>" (project.labels.name) "</td><td class=\"number\">" (project.tasks) "</td><td class=\"number\">"
            (project.annotators) "</td><td>" (own) "</td><td>" (results) "</td></tr>\n"
        ]
    };
    html![
        "<div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"Projects\"><table>\n<thead><tr><th scope=\"col\">Project</th><th scope=\"col\">Type</th>"
        "<th scope=\"col\" class=\"number\">Tasks</th><th scope=\"col\" class=\"number\">People per task</th><th scope=\"col\">Your progress</th>"
        "<td></td></tr></thead>\n<tbody>\n" (projects.iter().map(row).collect::<Vec<_>>()) "</tbody>\n</table></div>\n"
    ]
}

/// Renders projects that are being created.
fn begun_list(pending: &[PendingProject]) -> Html {
    let row = |PendingProject { name, state, answers }: &PendingProject| match (state, answers) {
        (ProcessState::Running, None) => {
            html!["<li role=\"status\" data-going>" (name) ": models are writing answers</li>\n"]
        }
        (ProcessState::Running, Some((done, of))) => html![
            "<li data-going><span role=\"status\">" (name) ": models are writing answers, " (done) " of " (of) "</span> "
            "<progress max=\"" (of) "\" value=\"" (done) "\" aria-label=\"Answers of " (name) "\"></progress></li>\n"
        ],
        (ProcessState::Ended(output), _) => {
            html!["<li class=\"bad\">" (name) " was not created:<pre tabindex=\"0\">" (output.join("\n")) "</pre></li>\n"]
        }
    };
    match pending.is_empty() {
        true => Html::new(),
        false => html!["<ul class=\"list\" id=\"made\">\n" (pending.iter().map(row).collect::<Vec<_>>()) "</ul>\n"],
    }
}

/// Renders the owner's forms: a new project, and an invitation.
fn make(csrf: &Html, form: &ProjectForm<'_>) -> Html {
    let option = |name: &str, words: &str| html!["<option value=\"" (name) "\">" (words) "</option>"];
    let data: Vec<Html> = form.data.iter().map(|name| option(name, name)).collect();
    let labels: Vec<Html> = BUILT_IN.iter().map(|(name, _)| option(name, name)).collect();
    let roles = [Role::Annotator, Role::Reviewer, Role::Owner].map(|role| option(role.name(), role.name()));
    let project = match data.is_empty() {
        true => html![
            "<p class=\"soft\">Put a data file into the folder first: JSON lines, JSON, CSV, Parquet or Arrow.</p>\n"
        ],
        false => html![
            "<form method=\"post\" action=\"/annotate/+new\" class=\"fields\">" (csrf)
            "<div><label for=\"new-name\">Name</label><input id=\"new-name\" name=\"name\" required></div>\n"
            "<div><label for=\"new-data\">Data</label><select id=\"new-data\" name=\"data\">" (data) "</select></div>\n"
            "<div><label for=\"new-labels\">Questions for people</label><select id=\"new-labels\" name=\"labels\">" (labels) "</select></div>\n"
            "<div><label for=\"new-annotators\">People per task</label><input id=\"new-annotators\" name=\"annotators\" type=\"number\" min=\"1\" max=\"100\" value=\"1\" required></div>\n"
            "<button type=\"submit\" class=\"main\">Create the project</button></form>\n"
        ],
    };
    html![
        "<div class=\"two owner\">\n<section aria-labelledby=\"new-project\"><h2 id=\"new-project\">New project</h2>\n" (project) "</section>\n"
        "<section aria-labelledby=\"invite\"><h2 id=\"invite\">Invite a person</h2>\n"
        "<form method=\"post\" action=\"/annotate/+invite\" class=\"fields\">" (csrf)
        "<div><label for=\"invite-name\">Name</label><input id=\"invite-name\" name=\"name\" required></div>\n"
        "<div><label for=\"invite-role\">Role</label><select id=\"invite-role\" name=\"role\">" (roles.to_vec()) "</select></div>\n"
        "<button type=\"submit\">Create a token</button>\n<p class=\"small soft\">A person who has a token already gets a new one; the old token becomes invalid.</p></form>\n</section>\n</div>\n"
    ]
}

/// Renders an invitation with its token, which is shown once.
pub fn invited(session: &Session, name: &str, role: Role, token: &str) -> Body<String> {
    let body = html![
        "<p>Give this token to <strong>" (name) "</strong> (" (role.name()) "). It is shown only once.</p>\n<pre tabindex=\"0\" id=\"token\">" (token)
        "</pre>\n<p><a class=\"button\" href=\"/annotate\">Projects</a></p>\n"
    ];
    page(session, "Invitation", body)
}

/// Renders the page for a person without remaining tasks.
pub fn nothing_left(session: &Session, project: &Project, own: &[(usize, AnnotationState)]) -> Body<String> {
    let count = |state: AnnotationState| own.iter().filter(|(_, known)| *known == state).count();
    let (done, skipped) = (count(AnnotationState::Done), count(AnnotationState::Skipped));
    let skipped = (skipped > 0).then(|| html![" and skipped "(skipped)]);
    let row = |(number, state): &(usize, AnnotationState)| html!["<li><a href=\"" (task_path(project, *number)) "\">Task " (*number) "</a> " (badge(*state)) "</li>\n"];
    let tasks = (!own.is_empty()).then(|| {
        html![
            "<details><summary>Your tasks</summary>\n<ul class=\"list\">\n" (own.iter().map(row).collect::<Vec<_>>())
            "</ul>\n</details>\n"
        ]
    });
    let body = html![
        "<div class=\"empty\">\n<p><strong>No task is left for you in this project.</strong> You submitted " (done) (skipped)
        ". Thank you.</p>\n<p class=\"soft\">A task that another person left becomes available after " (u64::from(project.lease_minutes))
        " minutes. Check again later.</p>\n<p><a class=\"button\" href=\"/annotate\">All projects</a></p>\n</div>\n" (tasks)
    ];
    page(session, &project.name, body)
}

/// Renders the page for a reviewer without remaining decisions.
pub fn all_decided(session: &Session, project: &Project) -> Body<String> {
    let body = html![
        "<div class=\"empty\">\n<p><strong>No task waits for a decision.</strong></p>\n<p><a class=\"button\" href=\"" (path(project, "results"))
        "\">Results</a></p>\n</div>\n"
    ];
    page(session, &project.name, body)
}

/// Renders the state of an annotation.
fn badge(state: AnnotationState) -> Html {
    match state {
        AnnotationState::Open => html!["<span class=\"badge\">in progress</span>"],
        AnnotationState::Done => html!["<span class=\"badge badge-good\">submitted</span>"],
        AnnotationState::Skipped => html!["<span class=\"badge\">skipped</span>"],
    }
}

/// Renders a task. The script adds the parts that depend on the label set.
pub fn task(
    project: &Project,
    number: usize,
    task: &Task,
    annotation: &Annotation,
    own: &[(usize, AnnotationState)],
) -> Html {
    let note = match annotation.state {
        AnnotationState::Open => Html::new(),
        AnnotationState::Done => {
            html!["<p class=\"good\">You submitted this task. You can still change it and submit it again.</p>\n"]
        }
        AnnotationState::Skipped => html!["<p>You skipped this task. You can still do it.</p>\n"],
    };
    let done = own.iter().filter(|(_, state)| *state == AnnotationState::Done).count();
    let before = own.iter().rev().find(|(known, _)| *known < number);
    let after = own.iter().find(|(known, _)| *known > number);
    let to = |to: Option<&(usize, AnnotationState)>, words: &'static str| match to {
        Some((number, _)) => html!["<a href=\"" (task_path(project, *number)) "\">" (words) "</a>"],
        None => html!["<span class=\"soft\" aria-hidden=\"true\">" (words) "</span>"],
    };
    let head = html![
        "<nav class=\"task-head\" aria-label=\"Your tasks\"><a href=\"/annotate\">Projects</a> <span class=\"soft\">" (project.name)
        "</span> <span class=\"steps-of\">" (to(before, "‹ Back")) " <span>Task " (number) " of " (project.tasks) "</span> "
        (to(after, "Next ›")) "</span> <span class=\"soft small\">You submitted " (done) "</span>\n<progress max=\"" (project.tasks)
        "\" value=\"" (done) "\" aria-label=\"Tasks that you submitted\"></progress></nav>\n" (note)
    ];
    let skip = html![
        "<details class=\"skip-task\"><summary>Skip this task</summary>\n<div class=\"row\"><label for=\"reason\">Reason</label>"
        "<input id=\"reason\"><button type=\"button\" id=\"skip\">Skip</button></div>\n</details>\n"
    ];
    let places = (task_path(project, number), format!("/annotate/{}", project.name));
    frame(project, task, &places, head, &Html::new(), &skip)
}

/// Renders the common parts of all pages of a task: the given content, the annotations of others, and the place for the input. `places` are
/// the path of the script's requests and the next page.
fn frame(project: &Project, task: &Task, places: &(String, String), head: Html, others: &Html, skip: &Html) -> Html {
    let labels = &project.labels;
    let passages: Vec<Html> = task.passages.iter().enumerate().map(|(i, passage)| {
        let sentence = |(s, text): (usize, &String)| html![
            "<li data-passage=\"" (i + 1) "\" data-sentence=\"" (s) "\"><span class=\"soft small\">S" (s) "</span> <span dir=\"auto\">" (text) "</span></li>\n"
        ];
        let sentences: Vec<Html> = std::iter::once(&passage.title).chain(&passage.sentences).enumerate().map(sentence).collect();
        html![
            "<details open><summary>Passage " (i + 1) ": " (passage.title) "</summary>\n<ol class=\"sentences\" start=\"0\">\n" (sentences)
            "</ol>\n</details>\n"
        ]
    }).collect();
    let passages = match passages.is_empty() {
        true => Html::new(),
        false => html![
            "<aside class=\"passages\" aria-label=\"Passages\"><details id=\"passages\" open><summary><h2>Passages</h2></summary>\n" (passages)
            "</details></aside>\n"
        ],
    };
    let reference = match task.reference.is_empty() {
        true => Html::new(),
        false => {
            html!["<details><summary>Reference answer</summary><p class=\"text\" dir=\"auto\">" (task.reference) "</p></details>\n"]
        }
    };
    let wide = if task.passages.is_empty() { "" } else { " with-passages" };
    html![
        (head) (instructions(labels))
        "<div class=\"work" (wide) "\" data-task=\"" (places.0) "\" data-next=\"" (places.1) "\">\n"
        "<section class=\"given\" aria-label=\"Question\">\n<h2>Question</h2>\n" (turns::question(&task.question)) (reference) "</section>\n"
        (others) (passages)
        "<section class=\"asked\" aria-label=\"Your answer\">\n<div id=\"asked\"></div>\n"
        "<div class=\"field\"><label for=\"feedback\">Comment (optional)</label><textarea id=\"feedback\" rows=\"2\" dir=\"auto\"></textarea></div>\n"
        (skip) "<details class=\"keys\"><summary>Keys</summary>\n<p class=\"small\">" (keys(labels)) "</p></details>\n</section>\n</div>\n"
        "<div id=\"conflict\" class=\"alert\" role=\"alertdialog\" aria-label=\"Two versions\" tabindex=\"-1\" hidden></div>\n"
        "<div class=\"bar\">\n<ul id=\"todo\" class=\"small\" aria-live=\"polite\"></ul>\n"
        "<p class=\"bar-row\"><span id=\"status\" role=\"status\" class=\"small\"></span> <button type=\"button\" id=\"again\" class=\"small\" hidden>Try now</button>"
        "<span class=\"bar-buttons\"><button type=\"button\" id=\"undo\" disabled>Undo</button><button type=\"button\" id=\"redo\" disabled>Redo</button>"
        "<button type=\"button\" id=\"submit\" class=\"main\" disabled>Submit</button></span></p>\n</div>\n"
        "<noscript><p>This page needs its script. Allow JavaScript for this site.</p></noscript>\n"
    ]
}

/// Renders a task on which people differ, with all annotations, for the reviewer who decides.
pub fn decision(
    project: &Project,
    number: usize,
    (task, shown): (&Task, &Shown),
    annotations: &[Annotation],
    verdict: Option<&Annotation>,
    left: usize,
) -> Html {
    let note = match verdict {
        Some(verdict) if verdict.state == AnnotationState::Done => {
            html!["<p class=\"good\">" (verdict.person) " decided this task. You can still change the decision and submit it again.</p>\n"]
        }
        _ => Html::new(),
    };
    let head = html![
        "<nav class=\"task-head\" aria-label=\"Decisions\"><a href=\"" (path(project, "results")) "\">Results</a> <span class=\"soft\">" (project.name)
        "</span> <span>Task " (number) " of " (project.tasks) "</span> <span class=\"soft small\">" (left)
        " wait for a decision. Your decision is the task’s only answer in every export.</span></nav>\n" (note)
    ];
    let one = |(at, annotation): (usize, &Annotation)| {
        let lines = in_words(project, task, &annotation.answer, shown);
        let parts: Vec<Html> = lines.iter().map(|part| html!["<li dir=\"auto\">" (part) "</li>\n"]).collect();
        let parts = match parts.is_empty() {
            true => html!["<p class=\"soft\">Nothing was marked.</p>\n"],
            false => html!["<ul>\n" (parts) "</ul>\n"],
        };
        html![
            "<article class=\"said\"><h3>" (annotation.person) "</h3>\n" (overlaid(project, task, &annotation.answer)) (parts)
            "<button type=\"button\" data-take=\"" (at) "\">Take this</button></article>\n"
        ]
    };
    let section = html![
        "<section class=\"what-people-said\" aria-label=\"What people said\">\n<h2>What people said</h2>\n<div class=\"sides sides-2\">\n"
        (annotations.iter().enumerate().map(one).collect::<Vec<_>>()) "</div>\n</section>\n"
    ];
    let places = (path(project, &format!("adjudicate/{number}")), path(project, "adjudicate"));
    frame(project, task, &places, head, &section, &Html::new())
}

/// Renders the marked answer with a person's marks.
fn overlaid(project: &Project, task: &Task, answer: &Answer) -> Html {
    if project.labels.spans.is_empty() {
        return Html::new();
    }
    let chars: Vec<char> = task.answers.first().map_or("", String::as_str).chars().collect();
    let text = |from: usize, to: usize| chars.get(from..to).unwrap_or_default().iter().collect::<String>();
    let mut spans: Vec<&Marked> = answer.spans.iter().filter(|span| span.end <= chars.len()).collect();
    spans.sort_by_key(|span| span.start);
    let (mut html, mut at) = (Html::new(), 0);
    for span in spans.into_iter().filter(|span| span.start < span.end) {
        if span.start < at {
            continue;
        }
        let Some((kind, label)) = kind_of(&project.labels, &span.kind) else { continue };
        html.add(&html![
            (text(at, span.start)) "<mark class=\"kind-" (kind) "\">" (text(span.start, span.end)) "<span class=\"chip\">" (label) "</span></mark>"
        ]);
        at = span.end;
    }
    html![
        "<p class=\"text answer-text overlaid\" dir=\"auto\">" (html) (text(at, chars.len())) "</p>\n"
    ]
}

/// Returns the index of a type among those with colors, and its label.
fn kind_of(labels: &LabelSet, name: &str) -> Option<(usize, String)> {
    let mut types = labels.spans.iter().chain(&labels.missing).enumerate();
    types.find(|(_, kind)| kind.name == name).map(|(at, kind)| (at, kind.label.clone()))
}

/// Describes an annotation, one line per part. The letters of answers come from `shown`.
pub fn in_words(project: &Project, task: &Task, answer: &Answer, shown: &Shown) -> Vec<String> {
    let labels = &project.labels;
    let label = |kind: &str| kind_of(labels, kind).map_or(kind.to_owned(), |(_, label)| label);
    let list = |sentences: &[usize]| sentences.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    let mut lines = Vec::new();
    if answer.no_error {
        lines.push("No error".to_owned());
    }
    for span in &answer.spans {
        let text: String = task.answers[0].chars().skip(span.start).take(span.end.saturating_sub(span.start)).collect();
        let place = match (span.passage, span.repeats.trim()) {
            (0, "") => String::new(),
            (0, repeats) => format!(", repeats “{repeats}”"),
            (passage, _) => format!(", passage {passage}, sentences {}", list(&span.sentences)),
        };
        lines.push(format!("{}: “{text}”{place}", label(&span.kind)));
    }
    lines.extend(answer.missing.iter().map(|missing| {
        format!("{}: passage {}, sentences {}", label(&missing.kind), missing.passage, list(&missing.sentences))
    }));
    lines.extend(answer.correction.iter().map(|text| format!("Correction: {text}")));
    if answer.no_passage_helps {
        lines.push("No passage helps".to_owned());
    }
    let mut compared = Vec::new();
    for pair in pairs(task.answers.len()) {
        let name = pair_name(pair);
        let Some(rank) = answer.ranks.get(&name) else { continue };
        let words = match rank {
            Rank::First => format!("{} is better", shown.letter(pair.0)),
            Rank::Second => format!("{} is better", shown.letter(pair.1)),
            Rank::Tie => "tie".to_owned(),
            Rank::Bad => "both are bad".to_owned(),
        };
        let strength = answer.strengths.get(&name).map(|strength| {
            let known = labels.strengths.iter().find(|known| known.name == *strength);
            known.map_or(strength, |known| &known.label).to_lowercase()
        });
        let strength = strength.map_or(String::new(), |strength| format!(" ({strength})"));
        compared.push(format!("{}: {words}{strength}", shown.pair(pair)));
    }
    compared.sort();
    lines.extend(compared);
    lines.extend(answer.questions.iter().map(|(name, value)| {
        let question = labels.questions.iter().find(|question| question.name == *name);
        format!("{}: {value}", question.map_or(name, |question| &question.question).trim_end_matches('.'))
    }));
    if !answer.feedback.is_empty() {
        lines.push(format!("Comment: {}", answer.feedback));
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
    let one = |entry: &FaqEntry| html!["<dt>" (entry.question) "</dt>\n<dd>" (entry.answer) "</dd>\n"];
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
            "In the answer, <kbd>←</kbd> and <kbd>→</kbd> move from word to word, <kbd>Home</kbd> and <kbd>End</kbd> to the first and last. "
            "<kbd>Shift</kbd> with them selects. <kbd>Enter</kbd> or the number of a type marks. "
        ],
    };
    let compares = match labels.comparison {
        true => html![
            "In a comparison, <kbd>1</kbd> is left, <kbd>2</kbd> tie, <kbd>3</kbd> both bad, <kbd>4</kbd> right. "
        ],
        false => Html::new(),
    };
    html![
        (spans) (compares) "<kbd>Ctrl</kbd> <kbd>Z</kbd> undoes, <kbd>Ctrl</kbd> <kbd>Shift</kbd> <kbd>Z</kbd> redoes, "
        "<kbd>Ctrl</kbd> <kbd>Enter</kbd> submits. Every change is saved at once."
    ]
}

fn number(value: &Number) -> Html {
    match value {
        Number::Value(value) => html![(format!("{value:.3}"))],
        Number::Undefined(why) => html!["<span class=\"soft small\">" (*why) "</span>"],
    }
}

/// Renders the open tasks.
fn in_progress(session: &Session, project: &Project, claims: &[Claim], is_owner: bool, folder: &str) -> Html {
    if claims.is_empty() {
        return Html::new();
    }
    let row = |claim: &Claim| {
        let state = match claim.holds {
            true => html!["<span class=\"badge\">in progress</span>"],
            false => html!["<span class=\"soft\">left; free for others</span>"],
        };
        let release = (is_owner && claim.holds).then(|| html![
            "<form method=\"post\" action=\"" (path(project, "release")) "\">" (csrf(session))
            "<input type=\"hidden\" name=\"task\" value=\"" (claim.task) "\"><input type=\"hidden\" name=\"person\" value=\"" (claim.person)
            "\"><button type=\"submit\" aria-label=\"Release task " (claim.task) " of " (claim.person) "\">Release</button></form>"
        ]);
        html![
            "<tr><td class=\"number\">" (claim.task) "</td><td>" (claim.person) "</td><td>" (state) "</td><td>" (release) "</td></tr>\n"
        ]
    };
    let rows: Vec<Html> = claims.iter().map(row).collect();
    html![
        "<h2>Open tasks</h2>\n<p class=\"small soft\">An open task is free for others " (u64::from(project.lease_minutes))
        " minutes after its last change. <code>gradus annotate release " (project.name) (option_of(folder)) "</code> frees all of them at once.</p>\n"
        "<div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"Open tasks\"><table>\n<thead><tr><th scope=\"col\" class=\"number\">Task</th>"
        "<th scope=\"col\">Person</th><th scope=\"col\">State</th><td></td></tr></thead>\n<tbody>\n" (rows) "</tbody>\n</table></div>\n"
    ]
}

/// Note on votes that depend on each other.
const DEPENDENCE: &str =
    "Votes on the same task depend on each other, so with several people per task the true intervals are wider.";

/// The owner's part of the results.
pub struct OwnerResults {
    /// Forms of export that have rows.
    pub forms: Vec<Form>,
    /// Section about training.
    pub train: Html,
}

/// Renders the results of a project. `waiting` is the number of tasks that need a decision. `folder` is the served folder, quoted for
/// shells.
pub fn results(
    session: &Session,
    project: &Project,
    stats: &Stats,
    waiting: usize,
    owner: Option<OwnerResults>,
    folder: &str,
) -> Body<String> {
    let is_owner = owner.is_some();
    let people = stats.people.iter().map(|work| html![
        "<tr><td>" (work.name) "</td><td class=\"number\">" (work.done) "</td><td class=\"number\">" (work.skipped) "</td><td class=\"number\">" (number(&work.median_seconds)) "</td><td class=\"number\">" (work.fast)
        "</td><td class=\"number\">" (number(&work.right)) "</td><td class=\"number\">" (work.inattentive) "</td></tr>\n"
    ]);
    let agreement = stats.agreement.iter().map(|of| html![
        "<tr><td>" (of.of) "</td><td class=\"number\">" (of.items) "</td><td class=\"number\">" (number(&of.raw)) "</td><td class=\"number\">" (number(&of.cohen)) "</td><td class=\"number\">" (number(&of.fleiss))
        "</td><td class=\"number\">" (number(&of.alpha)) "</td></tr>\n"
    ]);
    let spans = stats
        .span_f1
        .as_ref()
        .map(|f1| html!["<p>F1 of marked characters over all pairs of people: " (number(f1)) "</p>\n"]);
    let share = |of: &'static str, share: &Number| html!["<tr><td>" (of) "</td><td class=\"number\">" (number(share)) "</td></tr>\n"];
    let bias = match project.labels.comparison {
        true => table(
            "Bias",
            &["Preferred answer", "#Share"],
            vec![share("the left one", &stats.left_preferred), share("the longer one", &stats.longer_preferred)],
        ),
        false => Html::new(),
    };
    let links = |form: &Form| -> Vec<Html> {
        let one = |ending: &&str| html!["<a href=\"" (path(project, &format!("{}.{ending}", form.name()))) "\" download>" (*ending) "</a> "];
        ["jsonl", "json", "csv", "parquet", "arrow"].iter().map(one).collect()
    };
    let row = |form: &Form| html!["<tr><td>" (form.name()) "</td><td>" (form.about()) "</td><td>" (links(form)) "</td></tr>\n"];
    let download = owner
        .as_ref()
        .map(|owner| table("Download", &["Rows", "Content", "File"], owner.forms.iter().map(row).collect()));
    let train = owner.map(|owner| owner.train);
    let decide = match waiting {
        0 => Html::new(),
        _ => html![
            "<p><a class=\"button\" href=\"" (path(project, "adjudicate")) "\">Decide where people disagree</a></p>\n"
        ],
    };
    let tiles = html![
        "<div class=\"tiles\">\n"
        (tile("Tasks", html![(stats.tasks)], "in this project"))
        (tile("Complete", html![(stats.complete)], "have all annotations"))
        (tile("Submitted", html![(stats.submitted)], "annotations"))
        (tile("In progress", html![(stats.claims.iter().filter(|claim| claim.holds).count())], "open now"))
        (tile("To decide", html![(waiting)], "people disagree")) "</div>\n"
        "<progress max=\"" (stats.tasks) "\" value=\"" (stats.complete) "\" aria-label=\"Complete tasks\"></progress>\n"
    ];
    let people: Vec<Html> = people.collect();
    let people = match people.is_empty() {
        true => html![
            "<div class=\"empty\"><p><strong>Nobody has begun yet.</strong></p>\n<p class=\"soft\"><code>gradus annotate invite NAME" (option_of(folder)) "</code> prints a token for each person. "
            "They sign in on the page Annotate.</p></div>\n"
        ],
        false => table(
            "People",
            &[
                "Name",
                "#Submitted",
                "#Skipped",
                "#Median seconds",
                "#Too fast",
                "#Known answers right",
                "#Attention missed",
            ],
            people,
        ),
    };
    let body = html![
        "<nav class=\"task-head\" aria-label=\"Project\"><a href=\"/annotate\">Projects</a> <a href=\"/annotate/" (project.name) "\">Annotate</a></nav>\n"
        (tiles) (decide) (ranking::comparisons(&stats.comparisons, DEPENDENCE)) (ranking::models(&stats.models, stats.models_undefined)) (people) (in_progress(session, project, &stats.claims, is_owner, folder))
        (table("Agreement", &["On", "#Items", "#Same", "#Cohen’s κ", "#Fleiss’ κ", "#Krippendorff’s α"], agreement.collect())) (spans) (bias) (train) (download)
    ];
    let title = format!("Results of {}", project.name);
    page(session, &title, body)
}
