//! HTML of the pages of runs.

use gradus::comparison::WinRates;
use gradus::html;
use gradus::html::Html;
use gradus::plots::colors;
use gradus::runs::{Difference, Entry, Settings, Status};

use crate::page::csrf;
use crate::query::percent;
use crate::store::now;
use crate::store::sessions::Session;

/// Returns the address of a page about a run.
pub fn address(what: &str, run: &str) -> String {
    format!("/runs/{what}?run={}", percent(run))
}

/// Renders the state of a run.
pub fn badge(entry: &Entry) -> Html {
    let class = match entry.state {
        Status::Running | Status::Finished => "badge badge-good",
        Status::Failed | Status::Broken => "badge badge-bad",
        Status::Interrupted => "badge",
    };
    html!["<span class=\"" (class) "\">" (entry.state.name()) "</span>"]
}

/// Renders the key figure of a run, and whether nothing beat its start.
pub fn figure(entry: &Entry) -> Html {
    let Some(figure) = &entry.figure else { return Html::new() };
    let word = if figure.last == figure.best { "not better" } else { "worse" };
    let worse = figure
        .never_beat_start()
        .then(|| html![" <strong class=\"bad\">" (word) " than its start, " (short(figure.best)) "</strong>"]);
    html![(figure.key) " " (short(figure.last)) (worse)]
}

/// Formats a number with significant digits.
fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if (1e-3..1e6).contains(&size) => {
            let digits = (3 - size.log10().floor() as i32).clamp(0, 6) as usize;
            format!("{value:.digits$}")
        }
        _ => format!("{value:.3e}"),
    }
}

/// Formats an elapsed time.
pub fn age(changed: Option<u64>) -> Option<String> {
    let passed = u64::try_from(now()).ok()?.saturating_sub(changed?);
    Some(match passed {
        0..=89 => format!("{passed} s ago"),
        90..=5399 => format!("{} min ago", passed / 60),
        5400..=172_799 => format!("{} h ago", passed / 3600),
        _ => format!("{} days ago", passed / 86_400),
    })
}

/// Renders the place for curves.
fn curves(runs: &[&Entry]) -> Html {
    let methods: Vec<Option<&str>> = runs.iter().map(|run| run.method.as_deref()).collect();
    let own = |(run, color): (&&Entry, usize)| html!["<span hidden data-run=\"" (percent(&run.name)) "\" data-color=\"" (color) "\">" (run.name) "</span>\n"];
    let data: Vec<Html> = runs.iter().zip(colors(&methods)).map(own).collect();
    let tiles = (runs.len() == 1).then(|| html!["<div id=\"tiles\" class=\"tiles\"></div>\n"]);
    html![
        "<section class=\"curves\" aria-label=\"Curves\">\n" (data) (tiles)
        "<div class=\"filter\">\n<div><label for=\"metric\">Metric</label><select id=\"metric\"></select></div>\n"
        "<div><label for=\"axis\">X axis</label><select id=\"axis\"><option value=\"step\">steps</option><option value=\"num_examples\">examples</option>"
        "<option value=\"num_tokens\">tokens</option></select></div>\n"
        "<div><label for=\"smooth\">Smoothing</label><input id=\"smooth\" type=\"range\" min=\"0\" max=\"0.99\" step=\"0.01\" value=\"0\"></div>\n"
        "<div class=\"check\"><input id=\"log\" type=\"checkbox\"><label for=\"log\">Log scale</label></div>\n"
        "<button type=\"button\" id=\"whole\" hidden>Reset zoom</button>\n</div>\n"
        "<div id=\"plot\"></div>\n<p id=\"averages\" class=\"small soft\"></p>\n<p id=\"legend\" class=\"small\"></p>\n<p id=\"status\" role=\"status\" class=\"small soft\"></p>\n"
        "<div class=\"find-metric\"><label for=\"find\">Search metrics</label><input id=\"find\" type=\"search\" autocomplete=\"off\"></div>\n"
        "<div id=\"panels\" class=\"panels\" role=\"group\" aria-label=\"Metrics\"></div>\n"
        "<details><summary>All metrics</summary><div id=\"others\" class=\"panels\" role=\"group\" aria-label=\"Further metrics\"></div></details>\n"
        "<details><summary>Values as a table</summary>\n<div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"Values\" id=\"values\"></div>\n</details>\n</section>\n"
    ]
}

/// Renders the most important messages: that the run never got better than its start, and its warnings.
fn alerts(entry: &Entry, warnings: &[String]) -> Html {
    let worse = entry.figure.as_ref().filter(|figure| figure.never_beat_start()).map(|figure| {
        html![
            "<p><strong>No evaluation beat the start.</strong> " (figure.key) " was " (short(figure.best)) " before training and is "
            (short(figure.last)) " now. There is no best model.</p>\n"
        ]
    });
    let warning = |text: &String| html!["<li>" (text) "</li>\n"];
    let listed =
        (!warnings.is_empty()).then(|| html!["<ul>" (warnings.iter().map(warning).collect::<Vec<_>>()) "</ul>\n"]);
    match (worse.is_some(), listed.is_some()) {
        (false, false) => Html::new(),
        _ => html!["<section class=\"alert\" aria-label=\"Warnings\">\n" (worse) (listed) "</section>\n"],
    }
}

/// Renders win rates of the row's policy against the column's.
fn win_rates(rates: &WinRates) -> Html {
    let head = |name: &String| html!["<th scope=\"col\" class=\"number\">" (name) "</th>"];
    let heads: Vec<Html> = rates.names.iter().map(head).collect();
    let cell = |share: &Option<f64>| match share {
        Some(share) => {
            let class = if *share >= 0.5 { "good" } else { "bad" };
            html!["<td class=\"number\"><span class=\"" (class) "\">" (format!("{:.0} %", 100.0 * share)) "</span></td>"]
        }
        None => html!["<td class=\"number\">–</td>"],
    };
    let row = |(name, shares): (&String, &Vec<Option<f64>>)| html!["<tr><th scope=\"row\">" (name) "</th>" (shares.iter().map(cell).collect::<Vec<_>>()) "</tr>\n"];
    let rows: Vec<Html> = rates.names.iter().zip(&rates.shares).map(row).collect();
    html![
        "<h2>Win rates</h2>\n<p class=\"soft small\">The share of prompts of the last evaluation on which the run of the row has a better reward than the "
        "run of the column. Ties count half.</p>\n<div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"Win rates\"><table>\n<thead><tr><td></td>"
        (heads) "</tr></thead>\n<tbody>\n" (rows) "</tbody></table></div>\n"
    ]
}

/// Renders the progress of a running run.
fn progress(entry: &Entry) -> Html {
    match entry.steps {
        Some(steps) if entry.state == Status::Running => html![
            "<progress id=\"progress\" max=\"" (steps) "\" value=\"" (entry.step) "\" aria-label=\"Steps done\"></progress>\n"
        ],
        _ => Html::new(),
    }
}

/// Renders one run. Without `may_tag`, its tags are read-only.
pub fn one(
    session: &Session,
    entry: &Entry,
    settings: &Settings,
    warnings: &[String],
    actions: Option<Html>,
    may_tag: bool,
) -> Html {
    let steps = entry.steps.map(|steps| html![" of "(steps)]);
    let csrf = html![(csrf(session)) "<input type=\"hidden\" name=\"run\" value=\"" (entry.name) "\">"];
    let tag = |tag: &String| {
        if !may_tag {
            return html!["<span class=\"tag\">" (tag) "</span>"];
        }
        html![
            "<form method=\"post\" action=\"/runs/tag\" class=\"tag\">" (csrf) "<input type=\"hidden\" name=\"remove\" value=\"" (tag) "\">" (tag)
            " <button type=\"submit\" aria-label=\"Remove the tag " (tag) "\">×</button></form>"
        ]
    };
    let add = match may_tag {
        true => html![
            "<form method=\"post\" action=\"/runs/tag\" class=\"row\">" (csrf)
            "<label for=\"add\">New tag</label><input id=\"add\" name=\"add\" size=\"12\" required><button type=\"submit\">Add</button></form>"
        ],
        false => Html::new(),
    };
    let lines = |name: &'static str, lines: &[String]| match lines.is_empty() {
        true => Html::new(),
        false => html!["<h2>" (name) "</h2>\n<pre tabindex=\"0\">" (lines.join("\n")) "</pre>\n"],
    };
    let set: Vec<Html> = settings
        .keys
        .iter()
        .map(|key| {
            let is_set = if key.is_set { html!["set"] } else { Html::new() };
            html!["<tr><td><code>" (key.path) "</code></td><td><code>" (key.value) "</code></td><td class=\"soft small\">" (is_set) "</td></tr>\n"]
        })
        .collect();
    html![
        "<p data-state=\"" (entry.state.name()) "\">" (badge(entry)) ", step <span id=\"step\">" (entry.step) "</span>" (steps) (entry.reason.as_ref().map(|reason| html![": " (reason)]))
        "</p>\n" (alerts(entry, warnings)) (progress(entry)) (actions) (curves(&[entry])) "<p><a href=\"" (address("completions", &entry.name)) "\">Completions</a></p>\n"
        "<h2>Tags</h2>\n<div class=\"row\">" (entry.tags.iter().map(tag).collect::<Vec<_>>()) (add) "</div>\n"
        (lines("Problems", &entry.problems))
        "<h2>Configuration</h2>\n<div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"Configuration\"><table><thead><tr><th scope=\"col\">Key</th>"
        "<th scope=\"col\">Value</th><th scope=\"col\">Set by you</th></tr></thead>\n<tbody>\n" (set) "</tbody></table></div>\n"
    ]
}

/// Renders the settings that have the same value in all of several runs.
fn shared(settings: &[Settings]) -> Html {
    let [one, others @ ..] = settings else { return Html::new() };
    let is_shared = |path: &str, value: &str| others.iter().all(|other| other.get(path) == Some(value));
    let is_set = |path: &str| settings.iter().any(|of| of.keys.iter().any(|key| key.path == path && key.is_set));
    let keys = one.keys.iter().filter(|key| is_set(&key.path) && is_shared(&key.path, &key.value));
    let rows = keys.map(|key| html!["<tr><th scope=\"row\"><code>" (key.path) "</code></th><td><code>" (key.value) "</code></td></tr>\n"]);
    let rows: Vec<Html> = rows.collect();
    if rows.is_empty() {
        return Html::new();
    }
    html![
        "<details><summary>Shared settings (" (rows.len()) ")</summary>\n<div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"Shared settings\"><table>\n"
        "<thead><tr><th scope=\"col\">Key</th><th scope=\"col\">Value</th></tr></thead>\n<tbody>\n" (rows) "</tbody></table></div>\n</details>\n"
    ]
}

/// Renders a comparison of several runs.
pub fn several(entries: &[Entry], settings: &[Settings], differences: &[Difference], rates: Option<&WinRates>) -> Html {
    let names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
    let head = |name: &&str| html!["<th scope=\"col\"><a href=\"" (address("show", name)) "\">" (*name) "</a></th>"];
    let heads: Vec<Html> = names.iter().map(head).collect();
    let cells = |cells: Vec<Html>| html!["<td>" (cells.into_iter().reduce(|row, cell| html![(row) "</td><td>" (cell)]).unwrap_or_default()) "</td>"];
    let states = cells(entries.iter().map(|entry| html![(badge(entry)) ", step " (entry.step)]).collect());
    let row = |difference: &Difference| {
        let values = difference.values.iter().map(|value| match value {
            Some(value) => html!["<code>" (value) "</code>"],
            None => html!["–"],
        });
        html!["<tr><th scope=\"row\"><code>" (difference.key) "</code></th>" (cells(values.collect())) "</tr>\n"]
    };
    html![
        (curves(&entries.iter().collect::<Vec<_>>())) (rates.map(win_rates)) "<h2>Differences</h2>\n<div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"Differences\"><table>\n<thead><tr><td></td>" (heads)
        "</tr></thead>\n<tbody>\n<tr><th scope=\"row\">State</th>" (states) "</tr>\n" (differences.iter().map(row).collect::<Vec<_>>())
        "</tbody></table></div>\n" (shared(settings))
    ]
}
