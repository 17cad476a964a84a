//! HTML of the pages of runs.

use gradus::comparison::WinRates;
use gradus::html;
use gradus::html::Html;
use gradus::plots::colors;
use gradus::run::RunDir;
use gradus::runs::{Difference, Entry, Key, Settings, Status};

use crate::components::{breakable, with_code};
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
    html![(breakable(&figure.key)) " " (short(figure.last)) (worse)]
}

/// Formats a number with four significant digits.
pub fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if (1e-3..1e6).contains(&size) => {
            let digits = (3 - size.log10().floor() as i32).clamp(0, 6) as usize;
            format!("{value:.digits$}")
        }
        _ => format!("{value:.3e}"),
    }
}

/// Formats a change or a contribution: like [`short`], with its sign.
pub fn signed(value: f64) -> String {
    let sign = if value > 0.0 { "+" } else { "" };
    format!("{sign}{}", short(value))
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

/// Returns why a run cannot be read, with paths relative to its directory.
pub fn problems(entry: &Entry) -> impl Iterator<Item = String> {
    let directory = format!("{}/", entry.path.display());
    entry.problems.iter().map(move |problem| problem.strip_prefix(&directory).unwrap_or(problem).to_owned())
}

/// Renders the most important messages: why the run cannot be read, that it never got better than its start, and its warnings.
fn alerts(entry: &Entry, warnings: &[String]) -> Html {
    let item = |text: String| html!["<li>" (with_code(&text)) "</li>\n"];
    let broken = (!entry.problems.is_empty()).then(|| {
        html![
            "<p><strong>Files of this run cannot be read.</strong></p>\n<ul>" (problems(entry).map(item).collect::<Vec<_>>()) "</ul>\n"
        ]
    });
    let worse = entry.figure.as_ref().filter(|figure| figure.never_beat_start()).map(|figure| {
        html![
            "<p><strong>No evaluation beat the start.</strong> " (figure.key) " was " (short(figure.best)) " before training and is "
            (short(figure.last)) " now. There is no best model.</p>\n"
        ]
    });
    let warning = |text: &String| html!["<li>" (text) "</li>\n"];
    let listed =
        (!warnings.is_empty()).then(|| html!["<ul>" (warnings.iter().map(warning).collect::<Vec<_>>()) "</ul>\n"]);
    match (&broken, &worse, &listed) {
        (None, None, None) => Html::new(),
        _ => html!["<section class=\"alert\" aria-label=\"Warnings\">\n" (broken) (worse) (listed) "</section>\n"],
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
    // Only online methods and evaluations with samples store completions.
    let completions = RunDir::at(&entry.path)
        .rollouts()
        .is_file()
        .then(|| html!["<p><a href=\"" (address("completions", &entry.name)) "\">Completions</a></p>\n"]);
    html![
        "<p data-state=\"" (entry.state.name()) "\">" (badge(entry)) ", step <span id=\"step\">" (entry.step) "</span>" (steps) (entry.reason.as_ref().map(|reason| html![": " (with_code(reason))]))
        "</p>\n" (alerts(entry, warnings)) (progress(entry)) (actions) (curves(&[entry])) (completions)
        "<h2>Tags</h2>\n<div class=\"row\">" (entry.tags.iter().map(tag).collect::<Vec<_>>()) (add) "</div>\n"
        (configuration(settings))
    ]
}

/// Renders a table of keys and values.
fn keys<'k>(name: &'static str, keys: impl Iterator<Item = &'k Key>) -> Html {
    let row = |key: &Key| html!["<tr><th scope=\"row\"><code>" (breakable(&key.path)) "</code></th><td><code>" (key.value) "</code></td></tr>\n"];
    html![
        "<div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"" (name) "\"><table class=\"stacked\">\n"
        "<thead><tr><th scope=\"col\">Key</th><th scope=\"col\">Value</th></tr></thead>\n<tbody>\n" (keys.map(row).collect::<Vec<_>>())
        "</tbody></table></div>\n"
    ]
}

/// Renders the configuration of a run: the keys that were set, and the defaults in a closed section.
fn configuration(settings: &Settings) -> Html {
    let of = |is_set: bool| settings.keys.iter().filter(move |key| key.is_set == is_set);
    let (set, usual) = (of(true).count(), of(false).count());
    if set + usual == 0 {
        return Html::new();
    }
    let chosen = match set {
        0 => html!["<p class=\"soft\">Every key has its default.</p>\n"],
        _ => keys("Configuration", of(true)),
    };
    let defaults = (usual > 0).then(
        || html!["<details><summary>Defaults (" (usual) ")</summary>\n" (keys("Defaults", of(false))) "</details>\n"],
    );
    html!["<h2>Configuration</h2>\n"(chosen)(defaults)]
}

/// Renders the settings that have the same value in all of several runs.
fn shared(settings: &[Settings]) -> Html {
    let [one, others @ ..] = settings else { return Html::new() };
    let is_shared = |path: &str, value: &str| others.iter().all(|other| other.get(path) == Some(value));
    let is_set = |path: &str| settings.iter().any(|of| of.keys.iter().any(|key| key.path == path && key.is_set));
    let found = one.keys.iter().filter(|key| is_set(&key.path) && is_shared(&key.path, &key.value));
    let found: Vec<&Key> = found.collect();
    if found.is_empty() {
        return Html::new();
    }
    html![
        "<details><summary>Shared settings (" (found.len()) ")</summary>\n" (keys("Shared settings", found.into_iter())) "</details>\n"
    ]
}

/// Renders the results of the runs and of their starts. `rows` are the cells of a table with its headings.
fn results(rows: &[Vec<String>]) -> Html {
    let [headings, policies @ ..] = rows else { return Html::new() };
    // Without a measurement, the table has only the names.
    if headings.len() < 2 || policies.is_empty() {
        return Html::new();
    }
    let head = |head: &String| html!["<th scope=\"col\" class=\"number\">" (head) "</th>"];
    let heads: Vec<Html> = headings[1..].iter().map(head).collect();
    let cell = |cell: &String| html!["<td class=\"number\">" (cell) "</td>"];
    let row = |cells: &Vec<String>| {
        let numbers: Vec<Html> = cells[1..].iter().map(cell).collect();
        html!["<tr><th scope=\"row\">" (cells[0]) "</th>" (numbers) "</tr>\n"]
    };
    html![
        "<h2>Results</h2>\n<p class=\"soft small\">The last evaluation of each run.</p>\n"
        "<div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"Results\"><table>\n<thead><tr><td></td>" (heads)
        "</tr></thead>\n<tbody>\n" (policies.iter().map(row).collect::<Vec<_>>()) "</tbody></table></div>\n"
    ]
}

/// Renders a comparison of several runs. `table` has the cells of their results.
pub fn several(
    entries: &[Entry],
    settings: &[Settings],
    differences: &[Difference],
    table: &[Vec<String>],
    rates: Option<&WinRates>,
) -> Html {
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
        html!["<tr><th scope=\"row\"><code>" (breakable(&difference.key)) "</code></th>" (cells(values.collect())) "</tr>\n"]
    };
    let table_of = |name: &'static str, rows: Html| {
        html![
            "<div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"" (name) "\"><table>\n<thead><tr><td></td>" (heads)
            "</tr></thead>\n<tbody>\n" (rows) "</tbody></table></div>\n"
        ]
    };
    let (telling, other): (Vec<&Difference>, Vec<&Difference>) = differences.iter().partition(|one| one.is_telling());
    let rows = |of: &[&Difference]| of.iter().map(|one| row(one)).collect::<Vec<_>>();
    let state = html!["<tr><th scope=\"row\">State</th>" (states) "</tr>\n" (rows(&telling))];
    let defaults = (!other.is_empty()).then(|| {
        html![
            "<details><summary>Defaults that only one method has (" (other.len()) ")</summary>\n" (table_of("Defaults", html![(rows(&other))])) "</details>\n"
        ]
    });
    html![
        (curves(&entries.iter().collect::<Vec<_>>())) (results(table)) (rates.map(win_rates)) "<h2>Differences</h2>\n"
        (table_of("Differences", state)) (defaults) (shared(settings))
    ]
}
