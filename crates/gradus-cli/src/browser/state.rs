//! State of the browser as plain data, without terminal or files.

use std::collections::{BTreeMap, BTreeSet};

use gradus::run::MetricsRow;
use gradus::run::database::{Record, RolloutTable};
use gradus::runs::{Entry, Key, Snapshot};

/// Pages on the right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tab {
    Curves,
    Samples,
    Config,
    Snapshots,
    Log,
    Warnings,
}

impl Tab {
    /// All pages, from left to right.
    pub const ALL: [Self; 6] = [Self::Curves, Self::Samples, Self::Config, Self::Snapshots, Self::Log, Self::Warnings];

    /// Returns the heading of the page.
    pub fn name(self) -> &'static str {
        match self {
            Self::Curves => "curves",
            Self::Samples => "samples",
            Self::Config => "config",
            Self::Snapshots => "snapshots",
            Self::Log => "log",
            Self::Warnings => "warnings",
        }
    }

    /// Returns the page `by` positions further, wrapping around at the ends.
    pub fn next(self, by: isize) -> Self {
        let place = Self::ALL.iter().position(|tab| *tab == self).unwrap_or(0) as isize;
        Self::ALL[(place + by).rem_euclid(Self::ALL.len() as isize) as usize]
    }
}

/// Order of completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// In the order in which they were sampled.
    #[default]
    Sampled,
    /// Best reward first.
    Best,
    /// Worst reward first.
    Worst,
}

impl Order {
    /// Returns the order as text.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sampled => "as sampled",
            Self::Best => "best first",
            Self::Worst => "worst first",
        }
    }

    /// Returns the next order.
    pub fn next(self) -> Self {
        match self {
            Self::Sampled => Self::Best,
            Self::Best => Self::Worst,
            Self::Worst => Self::Sampled,
        }
    }
}

/// Selection of completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct View {
    /// Completions of training or of evaluations. `None` selects the table that has some.
    pub table: Option<RolloutTable>,
    /// Step of the completions. `None` selects the last one.
    pub step: Option<usize>,
    /// Order of the completions.
    pub order: Order,
    /// Index of the first completion on the page, from 0.
    pub index: usize,
}

/// The completions of one step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Page {
    /// Run and view that the page was read for. The view's index does not matter.
    pub of: (String, View),
    /// Table that was selected.
    pub table: RolloutTable,
    /// Whether there are completions of test prompts.
    pub has_tests: bool,
    /// Steps in the table.
    pub steps: Vec<usize>,
    /// Step that was selected.
    pub step: usize,
    /// Completions of that step.
    pub records: Vec<Record>,
    /// Reason why there are none.
    pub problem: Option<String>,
}

/// Details of a run, which are read when it is displayed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Details {
    /// Logged metrics, in order of steps.
    pub rows: Vec<MetricsRow>,
    /// Names of the metrics, most important first.
    pub keys: Vec<String>,
    /// Configuration keys.
    pub settings: Vec<Key>,
    /// Saved models.
    pub snapshots: Vec<Snapshot>,
    /// Last lines of `log.txt`.
    pub log: Vec<String>,
    /// Warnings, latest last.
    pub warnings: Vec<String>,
}

/// A dialog on top of the other content. It receives all keys.
#[derive(Debug, Clone, PartialEq)]
pub enum Dialog {
    /// List of the keys.
    Help,
    /// A question. Only `y` confirms.
    Confirm { question: String, what: Action },
    /// An input line.
    Input { title: String, text: String, cursor: usize, what: Action },
    /// A text to read.
    Text { title: String, lines: Vec<String>, scroll: usize },
}

/// Purpose of a dialog.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Edit the tags of a run.
    Tag(String),
    /// Edit the note on a run.
    Note(String),
    /// Rename a run.
    Rename(String),
    /// Choose where a snapshot is copied.
    Export(Box<Snapshot>),
    /// Resume a finished run with more steps.
    Lengthen(String),
    /// Resume a run.
    Resume(String),
    /// Remove a run.
    Remove(String),
    /// Remove a checkpoint of a run.
    RemoveCheckpoint { name: String, step: usize },
    /// Filter the list of runs.
    Filter,
}

/// A message at the bottom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    pub text: String,
    pub is_error: bool,
}

/// Everything that the browser shows.
#[derive(Debug, Default)]
pub struct Browser {
    /// Directory of runs, shown in the title.
    pub root: String,
    /// All runs.
    pub entries: Vec<Entry>,
    /// Name of the selected run.
    pub selected: Option<String>,
    /// Names of the runs that are compared.
    pub marked: BTreeSet<String>,
    /// Filter: only runs with this text in name, method, model, state or tags.
    pub filter: String,
    /// Whether runs are sorted by name instead of start time.
    pub by_name: bool,
    /// Details of the displayed runs.
    pub details: BTreeMap<String, Details>,
    /// Selected page on the right.
    pub tab: Option<Tab>,
    /// Selected metric. A run without it shows its first metric.
    pub metric: Option<String>,
    /// Whether curves are shown without smoothing.
    pub is_raw: bool,
    /// Lines scrolled from the top of a text page, or from the end of the log.
    pub scroll: usize,
    /// Maximum of `scroll`, from the last drawing.
    pub scroll_max: usize,
    /// Index of the selected snapshot.
    pub snapshot: usize,
    /// Selection of completions.
    pub view: View,
    /// The selected completions.
    pub page: Page,
    /// Open dialog.
    pub dialog: Option<Dialog>,
    /// Last message.
    pub notice: Option<Notice>,
    /// Current time in Unix seconds.
    pub now: u64,
}

impl Browser {
    /// Returns the selected page.
    pub fn tab(&self) -> Tab {
        self.tab.unwrap_or(Tab::Curves)
    }

    /// Returns the listed runs in order.
    pub fn visible(&self) -> Vec<&Entry> {
        let filter = self.filter.to_lowercase();
        let fits = |entry: &&Entry| {
            let words = [Some(&entry.name), entry.method.as_ref(), entry.model.as_ref()];
            let texts = words.into_iter().flatten().chain(&entry.tags).map(|word| word.to_lowercase());
            filter.is_empty() || entry.state.name().contains(&filter) || texts.into_iter().any(|t| t.contains(&filter))
        };
        let mut found: Vec<&Entry> = self.entries.iter().filter(fits).collect();
        if !self.by_name {
            found.sort_by(|a, b| b.started.cmp(&a.started).then_with(|| a.name.cmp(&b.name)));
        }
        found
    }

    /// Returns the selected run.
    pub fn entry(&self) -> Option<&Entry> {
        self.entries.iter().find(|entry| Some(&entry.name) == self.selected.as_ref())
    }

    /// Returns the details of the selected run.
    pub fn details(&self) -> Option<&Details> {
        self.details.get(self.selected.as_ref()?)
    }

    /// Returns the names of the runs whose curves are drawn: the selected one, then the marked ones.
    pub fn drawn(&self) -> Vec<&str> {
        let selected = self.selected.as_deref();
        let others = self.marked.iter().map(String::as_str).filter(|name| Some(*name) != selected);
        selected.into_iter().chain(others).collect()
    }

    /// Returns the metric to draw: the selected one if the run has it, otherwise the first with more than one point.
    pub fn metric(&self) -> Option<&str> {
        let Details { keys, rows, .. } = self.details()?;
        let chosen = self.metric.as_ref().filter(|metric| keys.contains(metric));
        let is_curve = |key: &&String| rows.iter().filter(|row| row.values.get(key).is_some()).nth(1).is_some();
        chosen.or_else(|| keys.iter().find(is_curve)).or_else(|| keys.first()).map(String::as_str)
    }

    /// Replaces the runs. Runs that have disappeared are no longer selected or marked.
    pub fn set_entries(&mut self, entries: Vec<Entry>) {
        let place = self.place();
        self.entries = entries;
        let names: BTreeSet<&String> = self.entries.iter().map(|entry| &entry.name).collect();
        self.marked.retain(|name| names.contains(name));
        self.details.retain(|name, _| names.contains(name));
        let is_listed = |name: &String| self.visible().iter().any(|entry| entry.name == *name);
        if !self.selected.as_ref().is_some_and(is_listed) {
            self.select(place.unwrap_or(0));
        }
    }

    /// Returns the position of the selected run in the list.
    pub fn place(&self) -> Option<usize> {
        self.visible().iter().position(|entry| Some(&entry.name) == self.selected.as_ref())
    }

    /// Selects the run at `place`, or the last one.
    pub fn select(&mut self, place: usize) {
        let visible = self.visible();
        let name = visible.get(place.min(visible.len().saturating_sub(1))).map(|entry| entry.name.clone());
        if name != self.selected {
            self.selected = name;
            (self.scroll, self.snapshot, self.view.index) = (0, 0, 0);
            self.view.step = None;
        }
    }

    /// Shows a message at the bottom.
    pub fn notify(&mut self, text: impl Into<String>) {
        self.notice = Some(Notice { text: text.into(), is_error: false });
    }

    /// Shows an error at the bottom.
    pub fn complain(&mut self, error: &gradus::Error) {
        let hint = error.hint().map_or(String::new(), |hint| format!(" ({hint})"));
        self.notice = Some(Notice { text: format!("{error}{hint}"), is_error: true });
    }
}
