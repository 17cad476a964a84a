//! List of runs: filtered, sorted and grouped, with selected columns. The address contains all of these settings.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use gradus::html;
use gradus::html::Html;
use gradus::runs::{Entry, Status, short_model};

use super::page::{address, age, badge, figure, problems};
use super::query_params::{QueryParams, first};
use crate::components::with_code;
use crate::query::percent;
use crate::training::ProcessState;

/// Maximum number of runs in a list that fits on one screen.
const LONG: usize = 12;

/// Values that filters offer.
pub struct Known {
    methods: BTreeSet<String>,
    tags: BTreeSet<String>,
}

impl Known {
    /// Collects the values of these runs.
    pub fn of(entries: &[Entry]) -> Self {
        let methods = entries.iter().filter_map(|entry| entry.method.clone()).collect();
        Self { methods, tags: entries.iter().flat_map(|entry| entry.tags.clone()).collect() }
    }
}

/// A column. The name of the run is always shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    Run,
    Method,
    Model,
    Data,
    State,
    Step,
    Figure,
    Changed,
    Size,
    Note,
    Tags,
}

impl Column {
    const ALL: [Self; 11] = [
        Self::Run,
        Self::Method,
        Self::Model,
        Self::Data,
        Self::State,
        Self::Step,
        Self::Figure,
        Self::Changed,
        Self::Size,
        Self::Note,
        Self::Tags,
    ];

    /// Default columns.
    const USUAL: [Self; 7] =
        [Self::Method, Self::Model, Self::State, Self::Step, Self::Figure, Self::Changed, Self::Tags];

    /// Columns that runs can be grouped by.
    const GROUPS: [Self; 5] = [Self::Method, Self::Model, Self::Data, Self::State, Self::Tags];

    fn heading(self) -> &'static str {
        match self {
            Self::Run => "Run",
            Self::Method => "Method",
            Self::Model => "Model",
            Self::Data => "Data",
            Self::State => "State",
            Self::Step => "Step",
            Self::Figure => "Key figure",
            Self::Changed => "Changed",
            Self::Size => "Size",
            Self::Note => "Note",
            Self::Tags => "Tags",
        }
    }

    /// Returns the name of the column in addresses.
    fn name(self) -> String {
        self.heading().to_lowercase().replace(' ', "-")
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|column| column.name() == name)
    }

    fn is_number(self) -> bool {
        matches!(self, Self::Step | Self::Size)
    }

    /// Returns whether the first click sorts in descending order.
    fn falls(self) -> bool {
        matches!(self, Self::Step | Self::Size | Self::Changed | Self::Figure)
    }

    /// Returns the value as text.
    fn text(self, entry: &Entry) -> String {
        let last = |path: &Option<String>| path.as_deref().map_or("", short_model).to_owned();
        match self {
            Self::Run => entry.name.clone(),
            Self::Method => entry.method.clone().unwrap_or_default(),
            Self::Model => last(&entry.model),
            Self::Data => last(&entry.data),
            Self::State => entry.state.name().to_owned(),
            Self::Size => crate::training::bytes(entry.size_bytes),
            Self::Note => entry.note.clone().unwrap_or_default(),
            Self::Tags => entry.tags.join(" "),
            Self::Step | Self::Figure | Self::Changed => String::new(),
        }
    }

    fn cell(self, entry: &Entry) -> Html {
        match self {
            Self::Run => html!["<a href=\"" (address("show", &entry.name)) "\">" (entry.name) "</a>"],
            Self::State => html![(badge(entry))(why(entry))],
            Self::Step => html![(entry.step)(entry.steps.map(|steps| html![" of "(steps)]))],
            Self::Figure => figure(entry),
            Self::Changed => html![(age(entry.changed))],
            _ => html![(self.text(entry))],
        }
    }

    fn compare(self, a: &Entry, b: &Entry) -> Ordering {
        match self {
            Self::Step => a.step.cmp(&b.step),
            Self::Size => a.size_bytes.cmp(&b.size_bytes),
            Self::Changed => a.changed.cmp(&b.changed),
            // Figures with different names are not compared.
            Self::Figure => {
                let of = |entry: &Entry| entry.figure.as_ref().map(|figure| (figure.key.clone(), figure.last));
                match (of(a), of(b)) {
                    (Some((a_key, a)), Some((b_key, b))) => b_key.cmp(&a_key).then(a.total_cmp(&b)),
                    (a, b) => a.is_some().cmp(&b.is_some()),
                }
            }
            _ => self.text(a).cmp(&self.text(b)),
        }
    }
}

/// Renders why a run has failed or cannot be read.
fn why(entry: &Entry) -> Option<Html> {
    let reason = match entry.state {
        Status::Broken => problems(entry).next(),
        Status::Failed => entry.reason.clone(),
        Status::Running | Status::Finished | Status::Interrupted => None,
    };
    reason.map(|reason| html!["<span class=\"why small soft\">" (with_code(&reason)) "</span>"])
}

/// Returns the address of the list with some parameters changed.
fn with(params: &QueryParams, changes: &[(&str, &str)]) -> String {
    let is_changed = |name: &str| changes.iter().any(|(changed, _)| *changed == name);
    let kept = params.iter().map(|(name, value)| (name.as_str(), value.as_str())).filter(|(name, _)| !is_changed(name));
    let all = kept.chain(changes.iter().copied()).filter(|(_, value)| !value.is_empty());
    let all: Vec<String> = all.map(|(name, value)| format!("{}={}", percent(name), percent(value))).collect();
    if all.is_empty() { "/runs".to_owned() } else { format!("/runs?{}", all.join("&")) }
}

/// Settings in the address.
struct View {
    columns: Vec<Column>,
    sort: Column,
    falls: bool,
    group: Option<Column>,
}

impl View {
    fn of(params: &QueryParams) -> Self {
        let chosen = params.iter().filter(|(name, _)| name == "column").filter_map(|(_, value)| Column::named(value));
        let chosen: Vec<Column> = chosen.collect();
        let columns = if chosen.is_empty() { Column::USUAL.to_vec() } else { chosen };
        let sort = first(params, "sort").and_then(Column::named).unwrap_or(Column::Changed);
        let falls = first(params, "order").map_or(sort.falls(), |order| order == "down");
        let group = first(params, "group").and_then(Column::named).filter(|group| Column::GROUPS.contains(group));
        Self { columns, sort, falls, group }
    }
}

/// Sorts runs as the address specifies.
pub fn sort(entries: &mut [Entry], params: &QueryParams) {
    let View { sort, falls, .. } = View::of(params);
    entries.sort_by(|a, b| {
        let order = sort.compare(a, b);
        (if falls { order.reverse() } else { order }).then_with(|| a.name.cmp(&b.name))
    });
}

/// Renders the list.
///
/// `bare` are runs that were started here and have no files yet; `None` if pages may not start runs. `empty` is shown for a folder without
/// runs.
pub fn list(
    entries: &[Entry],
    all: usize,
    known: &Known,
    params: &QueryParams,
    bare: Option<&Vec<(String, ProcessState)>>,
    empty: Html,
) -> Html {
    let begin = bare.map(|bare| {
        let row = |(name, state): &(String, ProcessState)| {
            let words = match state {
                ProcessState::Running => html!["<span class=\"badge\">starting</span>"],
                ProcessState::Ended(_) => html!["<span class=\"badge badge-bad\">did not start</span>"],
            };
            html!["<li><a href=\"" (address("show", name)) "\">" (name) "</a> " (words) "</li>\n"]
        };
        let rows: Vec<Html> = bare.iter().map(row).collect();
        let rows = (!rows.is_empty()).then(|| html!["<ul class=\"list\">" (rows) "</ul>\n"]);
        html!["<p><a class=\"button\" href=\"/runs/new\">New run</a></p>\n"(rows)]
    });
    if all == 0 {
        return html![(begin)(empty)];
    }
    let view = View::of(params);
    // The button below a long list is far from the runs that were selected first.
    let above = (entries.len() > LONG).then(|| html![" <button type=\"submit\">Compare selected</button>"]);
    html![
        (begin) (filter(known, params, &view)) "<form method=\"get\" action=\"/runs/show\">\n<p class=\"soft small\">" (entries.len()) " of " (all)
        " runs" (above) "</p>\n" (table(entries, params, &view)) "<button type=\"submit\">Compare selected</button>\n</form>\n"
    ]
}

/// Renders the form for filters and columns.
fn filter(known: &Known, params: &QueryParams, view: &View) -> Html {
    let option = |value: &str, words: &str, is_chosen: bool| {
        let chosen = is_chosen.then(|| html![" selected"]);
        html!["<option value=\"" (value) "\"" (chosen) ">" (words) "</option>"]
    };
    let options = |name: &'static str, values: Vec<&str>| {
        let of = |value: &&str| option(value, value, first(params, name) == Some(*value));
        html!["<option value=\"\">All</option>"(values.iter().map(of).collect::<Vec<_>>())]
    };
    let states = Status::ALL.iter().map(|state| state.name()).collect();
    let groups = Column::GROUPS.map(|column| option(&column.name(), column.heading(), view.group == Some(column)));
    let check = |column: &Column| {
        let checked = view.columns.contains(column).then(|| html![" checked"]);
        let name = column.name();
        html![
            "<div class=\"check\"><input id=\"column-" (name) "\" name=\"column\" type=\"checkbox\" value=\"" (name) "\"" (checked) "><label for=\"column-"
            (name) "\">" (column.heading()) "</label></div>\n"
        ]
    };
    let columns: Vec<Html> = Column::ALL[1..].iter().map(check).collect();
    let kept = ["sort", "order"].map(|name| {
        first(params, name).map(|value| html!["<input type=\"hidden\" name=\"" (name) "\" value=\"" (value) "\">\n"])
    });
    html![
        "<form method=\"get\" action=\"/runs\" class=\"filter\">\n" (kept.to_vec())
        "<div><label for=\"text\">Search</label><input id=\"text\" name=\"text\" value=\"" (first(params, "text").unwrap_or_default()) "\"></div>\n"
        "<div><label for=\"state\">State</label><select id=\"state\" name=\"state\">" (options("state", states)) "</select></div>\n"
        "<div><label for=\"method\">Method</label><select id=\"method\" name=\"method\">"
        (options("method", known.methods.iter().map(String::as_str).collect())) "</select></div>\n"
        "<div><label for=\"tag\">Tag</label><select id=\"tag\" name=\"tag\">" (options("tag", known.tags.iter().map(String::as_str).collect()))
        "</select></div>\n<div><label for=\"group\">Group by</label><select id=\"group\" name=\"group\"><option value=\"\">Nothing</option>"
        (groups.to_vec()) "</select></div>\n<details class=\"columns\"><summary>Columns</summary>\n" (columns) "</details>\n"
        "<button type=\"submit\">Apply</button>\n<a href=\"/runs\" class=\"small\">Reset</a>\n</form>\n"
    ]
}

fn table(entries: &[Entry], params: &QueryParams, view: &View) -> Html {
    let columns: Vec<Column> = std::iter::once(Column::Run).chain(view.columns.iter().copied()).collect();
    let head = |column: &Column| {
        let is_sorted = view.sort == *column;
        let falls = if is_sorted { !view.falls } else { column.falls() };
        let to = with(params, &[("sort", &column.name()), ("order", if falls { "down" } else { "up" })]);
        let (state, sign) = match (is_sorted, view.falls) {
            (false, _) => (Html::new(), ""),
            (true, false) => (html![" aria-sort=\"ascending\""], " ▲"),
            (true, true) => (html![" aria-sort=\"descending\""], " ▼"),
        };
        let class = column.is_number().then(|| html![" class=\"number\""]);
        html!["<th scope=\"col\"" (class) (state) "><a href=\"" (to) "\">" (column.heading()) "</a><span aria-hidden=\"true\">" (sign) "</span></th>"]
    };
    let row = |entry: &Entry| {
        let cell = |column: &Column| {
            let class = column.is_number().then(|| html![" class=\"number\""]);
            html!["<td" (class) ">" (column.cell(entry)) "</td>"]
        };
        html![
            "<tr><td><input type=\"checkbox\" name=\"run\" value=\"" (entry.name) "\" aria-label=\"Select " (entry.name) "\"></td>"
            (columns.iter().map(cell).collect::<Vec<_>>()) "</tr>\n"
        ]
    };
    let bodies = match view.group {
        None => html!["<tbody>\n" (entries.iter().map(row).collect::<Vec<_>>()) "</tbody>\n"],
        Some(group) => {
            let mut groups: BTreeMap<String, Vec<Html>> = BTreeMap::new();
            entries.iter().for_each(|entry| groups.entry(group.text(entry)).or_default().push(row(entry)));
            let body = |(name, rows): (String, Vec<Html>)| {
                let name = if name.is_empty() { "none".to_owned() } else { name };
                html![
                    "<tbody>\n<tr class=\"group\"><th scope=\"rowgroup\" colspan=\"" (columns.len() + 1) "\">" (group.heading()) ": " (name) " ("
                    (rows.len()) ")</th></tr>\n" (rows) "</tbody>\n"
                ]
            };
            html![(groups.into_iter().map(body).collect::<Vec<_>>())]
        }
    };
    html![
        "<div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"Runs\"><table class=\"runs\">\n<thead><tr><td></td>"
        (columns.iter().map(head).collect::<Vec<_>>()) "</tr></thead>\n" (bodies) "</table></div>\n"
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(pairs: &[(&str, &str)]) -> QueryParams {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn addresses_keep_what_was_asked_and_change_what_is_named() {
        let before =
            params(&[("text", "a b&c"), ("column", "step"), ("column", "tags"), ("sort", "step"), ("tag", "")]);
        let to = with(&before, &[("sort", "run"), ("order", "up")]);
        assert_eq!(to, "/runs?text=a%20b%26c&column=step&column=tags&sort=run&order=up");
        assert_eq!(with(&params(&[]), &[("sort", "")]), "/runs");
    }

    #[test]
    fn models_have_the_name_of_their_run_and_broken_runs_their_reason() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("written");
        write("config.yml", "model: runs/sft/model\ndata: d/tea.jsonl\nmethod:\n  dpo: {}\n");
        write("metrics.jsonl", "{\"step\": 1, \"loss\": 2.0}\n");
        let entry = || Entry::read("tea".into(), folder.path());
        assert_eq!((Column::Model.text(&entry()), Column::Data.text(&entry())), ("sft".into(), "tea.jsonl".into()));
        assert_eq!(why(&entry()), None);
        write("config.yml", "nonsense\n");
        let reason = why(&entry()).expect("a reason").into_string();
        assert!(reason.contains("\">config.yml:1: "), "{reason}");
    }

    #[test]
    fn every_column_has_a_word_of_its_own_and_nonsense_is_left_out() {
        let names: BTreeSet<String> = Column::ALL.iter().map(|column| column.name()).collect();
        assert_eq!(names.len(), Column::ALL.len());
        assert!(Column::ALL.iter().all(|column| Column::named(&column.name()) == Some(*column)));
        let view = View::of(&params(&[("column", "x"), ("sort", "<b>"), ("group", "step"), ("order", "y")]));
        assert_eq!((view.columns.len(), view.sort, view.group, view.falls), (7, Column::Changed, None, false));
        let view = View::of(&params(&[("column", "key-figure"), ("sort", "step"), ("group", "method")]));
        assert_eq!((view.columns, view.sort, view.falls), (vec![Column::Figure], Column::Step, true));
    }
}
