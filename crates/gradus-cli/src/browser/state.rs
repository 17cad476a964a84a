//! What the browser shows, as plain data: no terminal and no files.

use std::collections::{BTreeMap, BTreeSet};

use gradus::run::MetricsRow;
use gradus::run::database::{Record, Table};
use gradus::runs::{Entry, Key, Snapshot};

/// The right side's pages.
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
    /// All of them, as they stand from left to right.
    pub const ALL: [Self; 6] = [Self::Curves, Self::Samples, Self::Config, Self::Snapshots, Self::Log, Self::Warnings];

    /// Its heading.
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

    /// The one `by` places further, round the end.
    pub fn next(self, by: isize) -> Self {
        let place = Self::ALL.iter().position(|tab| *tab == self).unwrap_or(0) as isize;
        Self::ALL[(place + by).rem_euclid(Self::ALL.len() as isize) as usize]
    }
}

/// In what order completions are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// As they were sampled.
    #[default]
    Sampled,
    /// The best reward first.
    Best,
    /// The worst reward first.
    Worst,
}

impl Order {
    /// Its words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sampled => "as sampled",
            Self::Best => "best first",
            Self::Worst => "worst first",
        }
    }

    /// The next one.
    pub fn next(self) -> Self {
        match self {
            Self::Sampled => Self::Best,
            Self::Best => Self::Worst,
            Self::Worst => Self::Sampled,
        }
    }
}

/// Which completions are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct View {
    /// Those of training or of evaluations; where nobody chose, the one that has some.
    pub table: Option<Table>,
    /// Of which step; `None`: the last.
    pub step: Option<usize>,
    /// In what order.
    pub order: Order,
    /// The first one on the page, from 0.
    pub index: usize,
}

/// The completions of one step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Page {
    /// Which run and view they were read for; the index does not matter.
    pub of: (String, View),
    /// Which table it came to.
    pub table: Table,
    /// Whether there are completions of test prompts.
    pub has_tests: bool,
    /// The steps of the table.
    pub steps: Vec<usize>,
    /// Which step it came to.
    pub step: usize,
    /// Its completions.
    pub records: Vec<Record>,
    /// Why there are none.
    pub problem: Option<String>,
}

/// What is read of a run that is looked at.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Details {
    /// Logged rows, from the start's.
    pub rows: Vec<MetricsRow>,
    /// Their metrics, those that matter first.
    pub keys: Vec<String>,
    /// The configuration.
    pub settings: Vec<Key>,
    /// Models.
    pub snapshots: Vec<Snapshot>,
    /// The end of `log.txt`.
    pub log: Vec<String>,
    /// Warnings, the last ones last.
    pub warnings: Vec<String>,
}

/// What lies over everything and takes the keys.
#[derive(Debug, Clone, PartialEq)]
pub enum Dialog {
    /// The keys and what they do.
    Help,
    /// A question; only `y` is a yes.
    Confirm { question: String, what: Action },
    /// A line to write.
    Input { title: String, text: String, cursor: usize, what: Action },
    /// A text to read.
    Text { title: String, lines: Vec<String>, scroll: usize },
}

/// What a dialog is about.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// The tags of a run.
    Tag(String),
    /// The note on a run.
    Note(String),
    /// A new name.
    Rename(String),
    /// Where a snapshot goes.
    Export(Box<Snapshot>),
    /// A run that has all its steps goes on to more.
    Lengthen(String),
    /// A run goes on.
    Resume(String),
    /// A run goes.
    Remove(String),
    /// One of its checkpoints goes.
    RemoveCheckpoint { name: String, step: usize },
    /// Which runs are listed.
    Filter,
}

/// A sentence at the bottom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    pub text: String,
    pub is_error: bool,
}

/// Everything that is shown.
#[derive(Debug, Default)]
pub struct Browser {
    /// The directory of runs, for the title.
    pub root: String,
    /// All runs.
    pub entries: Vec<Entry>,
    /// The name of the one that is looked at.
    pub selected: Option<String>,
    /// The names of those that are compared.
    pub marked: BTreeSet<String>,
    /// Only runs with this text in name, method, model, state or tags.
    pub filter: String,
    /// Sorted by name, not by when they were started.
    pub by_name: bool,
    /// What is known of the runs that are looked at.
    pub details: BTreeMap<String, Details>,
    /// The page on the right.
    pub tab: Option<Tab>,
    /// Which metric is drawn; a run that does not have it shows its first.
    pub metric: Option<String>,
    /// Without the noise of single batches.
    pub is_raw: bool,
    /// Lines from the top of a text page; of the log, from its end.
    pub scroll: usize,
    /// How far `scroll` can go, as the last drawing found.
    pub scroll_max: usize,
    /// Which snapshot.
    pub snapshot: usize,
    /// Which completions.
    pub view: View,
    /// Those completions.
    pub page: Page,
    /// What lies over it.
    pub dialog: Option<Dialog>,
    /// What happened last.
    pub notice: Option<Notice>,
    /// Unix seconds.
    pub now: u64,
}

impl Browser {
    /// The page on the right.
    pub fn tab(&self) -> Tab {
        self.tab.unwrap_or(Tab::Curves)
    }

    /// The runs that are listed, in order.
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

    /// The run that is looked at.
    pub fn entry(&self) -> Option<&Entry> {
        self.entries.iter().find(|entry| Some(&entry.name) == self.selected.as_ref())
    }

    /// What is known of it.
    pub fn details(&self) -> Option<&Details> {
        self.details.get(self.selected.as_ref()?)
    }

    /// The runs whose curves are drawn: the one that is looked at, then the marked ones.
    pub fn drawn(&self) -> Vec<&str> {
        let selected = self.selected.as_deref();
        let others = self.marked.iter().map(String::as_str).filter(|name| Some(*name) != selected);
        selected.into_iter().chain(others).collect()
    }

    /// The metric that is drawn: the chosen one where the run has it, else its first that is more than a point.
    pub fn metric(&self) -> Option<&str> {
        let Details { keys, rows, .. } = self.details()?;
        let chosen = self.metric.as_ref().filter(|metric| keys.contains(metric));
        let is_curve = |key: &&String| rows.iter().filter(|row| row.values.get(key).is_some()).nth(1).is_some();
        chosen.or_else(|| keys.iter().find(is_curve)).or_else(|| keys.first()).map(String::as_str)
    }

    /// Takes in what is there now; what is gone is no longer selected or marked.
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

    /// Where the run that is looked at stands in the list.
    pub fn place(&self) -> Option<usize> {
        self.visible().iter().position(|entry| Some(&entry.name) == self.selected.as_ref())
    }

    /// Looks at the run at `place`, or the last one.
    pub fn select(&mut self, place: usize) {
        let visible = self.visible();
        let name = visible.get(place.min(visible.len().saturating_sub(1))).map(|entry| entry.name.clone());
        if name != self.selected {
            self.selected = name;
            (self.scroll, self.snapshot, self.view.index) = (0, 0, 0);
            self.view.step = None;
        }
    }

    /// Says something at the bottom.
    pub fn say(&mut self, text: impl Into<String>) {
        self.notice = Some(Notice { text: text.into(), is_error: false });
    }

    /// Says what went wrong.
    pub fn complain(&mut self, error: &gradus::Error) {
        let hint = error.hint().map_or(String::new(), |hint| format!(" ({hint})"));
        self.notice = Some(Notice { text: format!("{error}{hint}"), is_error: true });
    }
}
