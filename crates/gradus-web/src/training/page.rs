//! The pages on which runs are described, begun and changed.

use gradus::config::{FlagKind, FlagSpec, MethodConfig};
use gradus::runs::{Entry, Snapshot, Status};
use serde_json::Value;

use super::fields::{Lists, MIX_DATA, MIX_ROWS, MIXED, Takes, fields};
use super::{Standing, quoted};
use crate::app::App;
use crate::html;
use crate::html::Html;
use crate::runs::{Asked, address, first};
use crate::store::sessions::Session;

/// Headings whose fields are seen at once; the others are opened.
const OPEN: [&str; 2] = ["Input and output", "Reward"];

/// What a folder without runs offers: the demonstration, by a button where pages may start runs, else by its command.
pub fn offer_demo(app: &App, session: &Session) -> Html {
    let (folder, _) = super::place(&app.folder);
    let command = format!("gradus demo --output-dir {}", quoted(&folder.join(super::DEMO).to_string_lossy()));
    let next = match app.training.demo() {
        Some(Standing::Going) => html![
            "<p role=\"status\"><span class=\"badge badge-good\">running</span> The demonstration is running. Its runs appear under Runs.</p>\n"
        ],
        Some(Standing::Ended(said)) if !said.is_empty() => html![
            "<p class=\"bad\">The demonstration ended:</p>\n<pre tabindex=\"0\">" (said.join("\n")) "</pre>\n"
        ],
        _ if app.training.is_allowed() => html![
            "<form method=\"post\" action=\"/runs/demo\">" (csrf(session)) "<button type=\"submit\" class=\"main\">Make the demonstration</button></form>\n"
        ],
        _ => Html::new(),
    };
    html![
        "<div class=\"empty\"><p><strong>There is no run in this folder yet.</strong></p>\n"
        "<p>The demonstration trains small models on a built-in task and compares them.</p>\n" (next)
        "<p class=\"soft small\">The same in a terminal:</p>\n<pre tabindex=\"0\">" (command) "</pre></div>\n"
    ]
}

fn csrf(session: &Session) -> Html {
    html!["<input type=\"hidden\" name=\"csrf\" value=\"" (session.csrf) "\">\n"]
}

/// All methods.
pub fn methods(all: &[MethodConfig]) -> Html {
    let row = |method: &MethodConfig| html!["<li><a href=\"/runs/new?method=" (method.name()) "\">" (method.name()) "</a> <small class=\"soft\">" (method.method().about()) "</small></li>\n"];
    html!["<p>Choose a method.</p>\n<ul class=\"list\">\n" (all.iter().map(row).collect::<Vec<_>>()) "</ul>\n"]
}

fn option(value: &str, words: &str, is_chosen: bool) -> Html {
    let chosen = if is_chosen { html![" selected"] } else { Html::new() };
    html!["<option value=\"" (value) "\"" (chosen) ">" (words) "</option>"]
}

/// A default as a field shows it.
fn default(spec: &FlagSpec) -> Option<String> {
    match spec.default.as_ref()? {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        Value::Bool(is_on) => Some(if *is_on { "yes" } else { "no" }.to_owned()),
        other => Some(other.to_string()),
    }
}

fn field(spec: &FlagSpec, takes: Takes, lists: &Lists, filled: &Asked) -> Html {
    let value = first(filled, &spec.name).unwrap_or_default();
    let usual = default(spec);
    let nothing = usual.as_ref().map_or("–".to_owned(), |usual| format!("Default: {usual}"));
    let options = |choices: &[&str]| {
        let all: Vec<Html> = choices.iter().map(|choice| option(choice, choice, *choice == value)).collect();
        html!["<select id=\"" (spec.name) "\" name=\"" (spec.name) "\" aria-describedby=\"about-" (spec.name) "\">" (option("", &nothing, value.is_empty())) (all) "</select>"]
    };
    let input = |kind: &'static str| {
        html![
            "<input id=\"" (spec.name) "\" name=\"" (spec.name) "\" value=\"" (value) "\" inputmode=\"" (kind) "\" placeholder=\""
            (usual.clone().unwrap_or_default()) "\" autocomplete=\"off\" aria-describedby=\"about-" (spec.name) "\">"
        ]
    };
    let own = match takes {
        Takes::Switch => {
            let all = [("true", "Yes"), ("false", "No")];
            let all: Vec<Html> = all.iter().map(|(of, words)| option(of, words, *of == value)).collect();
            html!["<select id=\"" (spec.name) "\" name=\"" (spec.name) "\" aria-describedby=\"about-" (spec.name) "\">" (option("", &nothing, value.is_empty())) (all) "</select>"]
        }
        Takes::Word => match &spec.kind {
            FlagKind::Words(words) | FlagKind::WordList(words) => {
                options(&words.iter().map(|word| word.name.as_str()).collect::<Vec<_>>())
            }
            _ => input("text"),
        },
        Takes::Number => input("decimal"),
        Takes::Text => input("text"),
        Takes::Model | Takes::Reward | Takes::Data | Takes::Task => options(&lists.names(takes)),
        Takes::Mix => return mix(spec, lists, filled),
    };
    html![
        "<div><label for=\"" (spec.name) "\">" (spec.name) "</label>" (own) "<p class=\"small soft about-field\" id=\"about-" (spec.name) "\">"
        (spec.doc) "</p></div>\n"
    ]
}

/// Pairs of fields: a file, and how many of its rows.
fn mix(spec: &FlagSpec, lists: &Lists, filled: &Asked) -> Html {
    let before = |name: &str, at: usize| {
        let mut of = filled.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str());
        of.nth(at).unwrap_or_default().to_owned()
    };
    let pair = |at: usize| {
        let (data, rows) = (before(MIX_DATA, at), before(MIX_ROWS, at));
        let names = lists.names(Takes::Data);
        let all: Vec<Html> = names.into_iter().map(|name| option(name, name, name == data)).collect();
        html![
            "<div class=\"row\"><select name=\"" (MIX_DATA) "\" aria-label=\"More rows " (at + 1) "\">" (option("", "–", data.is_empty())) (all) "</select>"
            "<input name=\"" (MIX_ROWS) "\" value=\"" (rows) "\" size=\"8\" inputmode=\"numeric\" placeholder=\"all rows\" autocomplete=\"off\" aria-label=\"How many rows, "
            (at + 1) "\"></div>\n"
        ]
    };
    html![
        "<fieldset><legend>" (spec.name) "</legend>\n" ((0..MIXED).map(pair).collect::<Vec<_>>()) "<p class=\"small soft about-field\">" (spec.doc)
        "</p></fieldset>\n"
    ]
}

/// The form of a method, filled with what was said, and above it what is wrong with that.
pub fn form(session: &Session, method: &MethodConfig, lists: &Lists, filled: &Asked, problems: &[String]) -> Html {
    let wrong = match problems.is_empty() {
        true => Html::new(),
        false => {
            let items: Vec<Html> = problems.iter().map(|problem| html!["<li>" (problem) "</li>\n"]).collect();
            html!["<div role=\"alert\"><p class=\"bad\">The run was not begun:</p>\n<ul class=\"bad problems\">\n" (items) "</ul></div>\n"]
        }
    };
    let all = fields(method.name());
    let mut sections: Vec<&str> = Vec::new();
    for (spec, _) in &all {
        if !sections.contains(&spec.section) {
            sections.push(spec.section);
        }
    }
    let section = |name: &&str| {
        let own: Vec<&(FlagSpec, Takes)> = all.iter().filter(|(spec, _)| spec.section == *name).collect();
        let is_filled = own.iter().any(|(spec, takes)| {
            let name = if *takes == Takes::Mix { MIX_DATA } else { &spec.name };
            first(filled, name).is_some()
        });
        let open = if OPEN.contains(name) || is_filled { html![" open"] } else { Html::new() };
        let own: Vec<Html> = own.iter().map(|(spec, takes)| field(spec, *takes, lists, filled)).collect();
        html!["<details" (open) ">\n<summary>" (*name) "</summary>\n<div class=\"grid\">\n" (own) "</div>\n</details>\n"]
    };
    html![
        (wrong) "<p class=\"lead\">" (method.method().about()) ".</p>\n"
        "<form method=\"post\" action=\"/runs/new\" class=\"run-form\">\n" (csrf(session))
        "<input type=\"hidden\" name=\"method\" value=\"" (method.name()) "\">\n"
        "<div class=\"grid\"><div><label for=\"name\">Name of the run</label><input id=\"name\" name=\"name\" value=\""
        (first(filled, "name").unwrap_or_default()) "\" placeholder=\"by itself\" autocomplete=\"off\"></div></div>\n"
        (sections.iter().map(section).collect::<Vec<_>>())
        "<p><button type=\"submit\" class=\"main\">Plan it</button> <small class=\"soft\">Nothing begins yet: the next page says what it will need in memory.</small></p>\n</form>\n"
    ]
}

/// A size in words.
pub fn bytes(bytes: u64) -> String {
    match bytes {
        0 => "–".into(),
        1..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}

/// What a run will need, and the button that begins it.
pub fn planned(session: &Session, (draft, name): (&str, &str), forecast: &Value, yaml: &str, command: &str) -> Html {
    let size = |value: &Value| value.as_u64().unwrap_or(0);
    let (peak, memory) = (size(&forecast["peak_bytes"]), forecast["memory_bytes"].as_u64());
    let fits = forecast["fits"].as_bool().unwrap_or(true);
    let row = |phase: &Value| {
        let parts = phase.as_object().into_iter().flatten().filter_map(|(_, value)| value.as_u64());
        let total: u64 = parts.sum();
        let cell = |key: &str| html!["<td class=\"number\">" (bytes(size(&phase[key]))) "</td>"];
        let cells: Vec<Html> =
            ["weights", "gradients", "moments", "activations", "working"].iter().map(|key| cell(key)).collect();
        let is_peak = if total == peak { html![" class=\"peak\""] } else { Html::new() };
        html!["<tr" (is_peak) "><th scope=\"row\">" (phase["name"].as_str().unwrap_or_default()) "</th>" (cells) "<td class=\"number\">" (bytes(total)) "</td></tr>\n"]
    };
    let phases: Vec<Html> = forecast["phases"].as_array().into_iter().flatten().map(row).collect();
    let of = memory.map(|memory| html![" This machine has " (bytes(memory)) "."]);
    let begin = match fits {
        true => html![
            "<form method=\"post\" action=\"/runs/start\" class=\"row\">\n" (csrf(session)) "<input type=\"hidden\" name=\"draft\" value=\"" (draft) "\">\n"
            "<button type=\"submit\" class=\"main\">Begin " (name) "</button></form>\n"
        ],
        false => html![
            "<p class=\"bad\" role=\"alert\">It does not fit, and is not begun: go back and make it smaller (micro-batch-size, max-length, lora-rank, recompute).</p>\n"
        ],
    };
    html![
        "<p class=\"lead\">" (name) "</p>\n<h2>Memory</h2>\n<p>At its most it needs <b>" (bytes(peak)) "</b>." (of) "</p>\n"
        "<div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"Memory by phase\"><table>\n<thead><tr><th scope=\"col\">Phase</th><th scope=\"col\" class=\"number\">Weights</th>"
        "<th scope=\"col\" class=\"number\">Gradients</th><th scope=\"col\" class=\"number\">Moments</th><th scope=\"col\" class=\"number\">Activations</th>"
        "<th scope=\"col\" class=\"number\">Working</th><th scope=\"col\" class=\"number\">With the program</th></tr></thead>\n<tbody>\n" (phases)
        "</tbody></table></div>\n" (begin)
        "<h2>In a terminal</h2>\n<pre class=\"command\" tabindex=\"0\">" (command) "</pre>\n"
        "<details><summary>The whole configuration</summary><pre tabindex=\"0\">" (yaml) "</pre></details>\n"
    ]
}

/// A run that has nothing to show yet, or whose process ended before it had.
pub fn bare(standing: &Standing) -> Html {
    match standing {
        Standing::Going => {
            html!["<p id=\"bare\" role=\"status\">It is about to begin: models and rows are read.</p>\n"]
        }
        Standing::Ended(said) => html![
            "<p class=\"bad\" role=\"alert\">It did not begin. Its process said:</p>\n<pre tabindex=\"0\">" (said.join("\n")) "</pre>\n<p><a href=\"/runs/new\">New run</a></p>\n"
        ],
    }
}

/// What can be done with a run.
pub fn actions(
    session: &Session,
    entry: &Entry,
    snapshots: &[Snapshot],
    standing: Option<&Standing>,
    is_stopping: bool,
) -> Html {
    let named = html![(csrf(session)) "<input type=\"hidden\" name=\"run\" value=\"" (entry.name) "\">\n"];
    let path = quoted(&entry.path.to_string_lossy());
    let is_running = entry.state == Status::Running;
    let change = match (is_running, standing) {
        (true, _) if is_stopping => {
            html!["<p role=\"status\">It ends after its step and a checkpoint.</p>\n"]
        }
        (true, _) => html![
            "<form method=\"post\" action=\"/runs/stop\" class=\"row\">" (named) "<button type=\"submit\">Stop after a checkpoint</button>"
            "<code class=\"small soft\">gradus runs stop " (path) "</code></form>\n"
        ],
        (false, Some(Standing::Going)) => html!["<p role=\"status\" id=\"bare\">It is about to go on.</p>\n"],
        (false, _) => html![
            "<form method=\"post\" action=\"/runs/resume\" class=\"row\">" (named) "<label for=\"max_steps\">Steps in all</label>"
            "<input id=\"max_steps\" name=\"max_steps\" size=\"8\" inputmode=\"numeric\" placeholder=\"" (entry.steps.map(|steps| steps.to_string()).unwrap_or_default())
            "\" autocomplete=\"off\"><button type=\"submit\">Go on</button><code class=\"small soft\">gradus runs resume " (path) "</code></form>\n"
        ],
    };
    let failed = match standing {
        Some(Standing::Ended(said)) if !said.is_empty() => {
            html!["<details open><summary>What its process said</summary><pre tabindex=\"0\">" (said.join("\n")) "</pre></details>\n"]
        }
        _ => Html::new(),
    };
    let whole: Vec<&Snapshot> = snapshots.iter().filter(|found| found.defect.is_none()).collect();
    let export = match whole.is_empty() {
        true => Html::new(),
        false => {
            let all: Vec<Html> = whole
                .iter()
                .rev()
                .map(|found| option(&found.name(), &format!("{}, {}", found.name(), bytes(found.size_bytes)), false))
                .collect();
            let name = entry.name.rsplit('/').next().unwrap_or(&entry.name);
            html![
                "<form method=\"post\" action=\"/runs/export\" class=\"row\">" (named) "<label for=\"snapshot\">Model</label><select id=\"snapshot\" name=\"snapshot\">"
                (all) "</select><label for=\"to\">as models/</label><input id=\"to\" name=\"name\" value=\"" (name) "\" size=\"16\" required autocomplete=\"off\">"
                "<button type=\"submit\">Export</button><code class=\"small soft\">gradus runs export " (path) " --output models/" (name) "</code></form>\n"
            ]
        }
    };
    let delete = match is_running {
        true => Html::new(),
        false => html!["<p><a class=\"bad\" href=\"" (address("delete", &entry.name)) "\">Delete this run</a></p>\n"],
    };
    html!["<section class=\"actions\" aria-label=\"What can be done\">\n" (failed) (change) (export) (delete) "</section>\n"]
}

/// What would be lost, and the question.
pub fn delete(session: &Session, entry: &Entry, users: &[String]) -> Html {
    let used = match users.is_empty() {
        true => Html::new(),
        false => {
            html!["<p class=\"bad\">Other runs are configured with something of it: " (users.join(", ")) ".</p>\n"]
        }
    };
    html![
        "<p>Everything in <code>" (entry.path.to_string_lossy().as_ref()) "</code> is lost: " (bytes(entry.size_bytes)) ", checkpoints and models included.</p>\n" (used)
        "<form method=\"post\" action=\"/runs/delete\" class=\"fields\">\n" (csrf(session)) "<input type=\"hidden\" name=\"run\" value=\"" (entry.name) "\">\n"
        "<div><label for=\"confirm\">Type its name, " (entry.name) ", to confirm</label><input id=\"confirm\" name=\"confirm\" autocomplete=\"off\" required></div>\n"
        "<button type=\"submit\" class=\"main\">Delete for good</button> <a href=\"" (address("show", &entry.name)) "\">Keep it</a>\n</form>\n"
        "<h2>In a terminal</h2>\n<pre tabindex=\"0\">gradus runs rm " (quoted(&entry.path.to_string_lossy())) "</pre>\n"
    ]
}
