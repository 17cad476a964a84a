//! HTML of the pages on which runs are configured, started and changed.

use gradus::html;
use gradus::html::Html;
use gradus::runs::{Entry, Snapshot, Status};
use gradus::shell;
use serde_json::Value;

use super::form::option;
use super::processes::{DEMO, ProcessState};
use crate::app::App;
use crate::page::csrf;
use crate::query::percent;
use crate::runs::address;
use crate::store::sessions::Session;

/// Renders the demonstration for a folder without runs: a button if pages may start runs, otherwise the command.
pub fn offer_demo(app: &App, session: &Session) -> Html {
    let (folder, _) = super::runs_directory(&app.folder);
    let command = format!("gradus demo --output-dir {}", shell::path(&folder.join(DEMO)));
    let next = match app.training.demo() {
        Some(ProcessState::Running) => html![
            "<p role=\"status\" data-going><span class=\"badge badge-good\">running</span> The demonstration is running. Its runs appear under <a href=\"/runs\">Runs</a>.</p>\n"
        ],
        Some(ProcessState::Ended(log_lines)) if !log_lines.is_empty() => html![
            "<p class=\"bad\">The demonstration ended:</p>\n<pre tabindex=\"0\">" (log_lines.join("\n")) "</pre>\n"
        ],
        _ if app.training.is_allowed() => html![
            "<form method=\"post\" action=\"/runs/demo\">" (csrf(session)) "<button type=\"submit\" class=\"main\">Create the demonstration</button></form>\n"
        ],
        _ => Html::new(),
    };
    html![
        "<div class=\"empty\"><p><strong>There is no run in this folder yet.</strong></p>\n"
        "<p>The demonstration trains small models on a built-in task and compares them.</p>\n" (next)
        "<p class=\"soft small\">The same in a terminal:</p>\n<pre tabindex=\"0\">" (command) "</pre></div>\n"
    ]
}

/// Formats a size.
pub fn bytes(bytes: u64) -> String {
    match bytes {
        0 => "–".into(),
        1..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}

/// Renders the forecast of a run, and the button that starts it.
///
/// `change` is the address of the filled form.
pub fn planned(
    session: &Session,
    (draft, name): (&str, &str),
    forecast: &Value,
    (yaml, command): (&str, &str),
    change: &str,
) -> Html {
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
    let who = forecast["gpu"].as_str().unwrap_or("This machine");
    let of = memory.map(|memory| html![" " (who) " has " (bytes(memory)) "."]);
    let begin = match fits {
        true => html![
            "<form method=\"post\" action=\"/runs/start\" class=\"row\">\n" (csrf(session)) "<input type=\"hidden\" name=\"draft\" value=\"" (draft) "\">\n"
            "<button type=\"submit\" class=\"main\">Start " (name) "</button></form>\n"
        ],
        false => html![
            "<p class=\"bad\" role=\"alert\">The run does not fit into memory, so it cannot start. Go back and reduce its memory (micro-batch-size, max-length, lora-rank, recompute).</p>\n"
        ],
    };
    html![
        "<p class=\"lead\">" (name) "</p>\n<h2>Memory</h2>\n<p>The run needs up to <b>" (bytes(peak)) "</b>." (of) "</p>\n"
        "<div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"Memory by phase\"><table>\n<thead><tr><th scope=\"col\">Phase</th><th scope=\"col\" class=\"number\">Weights</th>"
        "<th scope=\"col\" class=\"number\">Gradients</th><th scope=\"col\" class=\"number\">Moments</th><th scope=\"col\" class=\"number\">Activations</th>"
        "<th scope=\"col\" class=\"number\">Working</th><th scope=\"col\" class=\"number\">With the program</th></tr></thead>\n<tbody>\n" (phases)
        "</tbody></table></div>\n" (begin) "<p><a href=\"" (change) "\">Change the settings</a></p>\n"
        "<h2>In a terminal</h2>\n<pre class=\"command\" tabindex=\"0\">" (command) "</pre>\n"
        "<details><summary>The whole configuration</summary><pre tabindex=\"0\">" (yaml) "</pre></details>\n"
    ]
}

/// Renders a run that has no files yet, or whose process ended before it wrote any.
pub fn bare(state: &ProcessState) -> Html {
    match state {
        ProcessState::Running => {
            html!["<p id=\"bare\" role=\"status\">The run is starting: it reads models and rows.</p>\n"]
        }
        ProcessState::Ended(log_lines) => html![
            "<p class=\"bad\" role=\"alert\">The run did not start. The output of its process:</p>\n<pre tabindex=\"0\">" (log_lines.join("\n")) "</pre>\n<p><a href=\"/runs/new\">New run</a></p>\n"
        ],
    }
}

/// Renders the available actions on a run.
pub fn actions(
    session: &Session,
    entry: &Entry,
    snapshots: &[Snapshot],
    state: Option<&ProcessState>,
    is_stopping: bool,
) -> Html {
    let named = html![(csrf(session)) "<input type=\"hidden\" name=\"run\" value=\"" (entry.name) "\">\n"];
    let path = shell::path(&entry.path);
    let is_running = entry.state == Status::Running;
    let change = match (is_running, state) {
        (true, _) if is_stopping => {
            html!["<p role=\"status\">The run ends after its current step and a checkpoint.</p>\n"]
        }
        (true, _) => html![
            "<form method=\"post\" action=\"/runs/stop\" class=\"row\">" (named) "<button type=\"submit\">Stop after a checkpoint</button>"
            "<code class=\"small soft\">gradus runs stop " (path) "</code></form>\n"
        ],
        (false, Some(ProcessState::Running)) => {
            html!["<p role=\"status\" id=\"bare\">The run is about to resume.</p>\n"]
        }
        (false, _) => html![
            "<form method=\"post\" action=\"/runs/resume\" class=\"row\">" (named) "<label for=\"max_steps\">Total steps</label>"
            "<input id=\"max_steps\" name=\"max_steps\" size=\"8\" inputmode=\"numeric\" placeholder=\"" (entry.steps.map(|steps| steps.to_string()).unwrap_or_default())
            "\" autocomplete=\"off\"><button type=\"submit\">Resume</button><code class=\"small soft\">gradus runs resume " (path) "</code></form>\n"
        ],
    };
    let failed = match state {
        Some(ProcessState::Ended(log_lines)) if !log_lines.is_empty() => {
            html!["<details open><summary>Output of its process</summary><pre tabindex=\"0\">" (log_lines.join("\n")) "</pre></details>\n"]
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
    let duplicate = html!["<p><a href=\"/runs/new?from=" (percent(&entry.name)) "\">Duplicate: a new run with these settings</a></p>\n"];
    html!["<section class=\"actions\" aria-label=\"Actions\">\n" (failed) (change) (export) (duplicate) (delete) "</section>\n"]
}

/// Renders the confirmation of a deletion, with everything that would be lost.
pub fn delete(session: &Session, entry: &Entry, users: &[String]) -> Html {
    let used = match users.is_empty() {
        true => Html::new(),
        false => {
            html!["<p class=\"bad\">Other runs use its files: " (users.join(", ")) ".</p>\n"]
        }
    };
    html![
        "<p>Everything in <code>" (entry.path.to_string_lossy().as_ref()) "</code> is lost: " (bytes(entry.size_bytes)) ", checkpoints and models included.</p>\n" (used)
        "<form method=\"post\" action=\"/runs/delete\" class=\"fields\">\n" (csrf(session)) "<input type=\"hidden\" name=\"run\" value=\"" (entry.name) "\">\n"
        "<div><label for=\"confirm\">Type its name, " (entry.name) ", to confirm</label><input id=\"confirm\" name=\"confirm\" autocomplete=\"off\" required></div>\n"
        "<button type=\"submit\" class=\"main\">Delete permanently</button> <a href=\"" (address("show", &entry.name)) "\">Keep it</a>\n</form>\n"
        "<h2>In a terminal</h2>\n<pre tabindex=\"0\">gradus runs rm " (shell::path(&entry.path)) "</pre>\n"
    ]
}
