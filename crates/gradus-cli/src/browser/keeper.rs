//! File access of the browser: reads changed files and performs the actions that keys request.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use gradus::run::claim::is_held;
use gradus::run::database::{Query, RolloutDb, RolloutTable, Sort};
use gradus::runs::{
    Entry, Library, Settings, Status, export, history, last_warnings, log_tail, metric_keys, snapshots,
};

use super::state::{Browser, Details, Dialog, Order, Page};
use super::update::Effect;
use crate::commands::runs::compare;

/// Maximum number of log lines in memory.
const LOG: usize = 500;
/// Maximum number of warnings in memory.
const WARNINGS: usize = 100;
/// Maximum number of completions per step in memory.
const RECORDS: usize = 2000;

/// Marker that changes whenever a run changes: its lock, and sizes and times of the files that grow or are replaced.
type Mark = (bool, Vec<Option<(u64, SystemTime)>>);

/// Reads runs, and reads a run again only after it has changed.
pub struct Keeper {
    library: Library,
    entries: BTreeMap<PathBuf, (Mark, Entry)>,
    details: BTreeMap<String, Mark>,
    page: Option<Mark>,
}

impl Keeper {
    /// Creates a keeper of the runs in `library`.
    pub fn new(library: Library) -> Self {
        Self { library, entries: BTreeMap::new(), details: BTreeMap::new(), page: None }
    }

    /// Reads the runs that changed.
    pub fn refresh(&mut self, browser: &mut Browser) {
        let mut entries = Vec::new();
        let mut known = std::mem::take(&mut self.entries);
        for (name, path) in self.library.names() {
            let mark = mark(&path);
            let entry = match known.remove(&path) {
                Some((old, entry)) if old == mark => entry,
                _ => Entry::read(name, &path),
            };
            entries.push(entry.clone());
            self.entries.insert(path, (mark, entry));
        }
        browser.set_entries(entries);
    }

    /// Reads what the screen shows if it is missing or has changed.
    pub fn fill(&mut self, browser: &mut Browser) {
        let drawn: Vec<String> = browser.drawn().into_iter().map(str::to_owned).collect();
        for name in drawn {
            let Some(entry) = browser.entries.iter().find(|entry| entry.name == name) else { continue };
            let mark = self.entries.get(&entry.path).map(|(mark, _)| mark.clone()).unwrap_or_default();
            if self.details.get(&name) != Some(&mark) || !browser.details.contains_key(&name) {
                let details = details(entry);
                browser.details.insert(name.clone(), details);
                self.details.insert(name, mark);
            }
        }
        self.fill_page(browser);
    }

    fn fill_page(&mut self, browser: &mut Browser) {
        let Some(entry) = browser.entry().filter(|_| browser.tab() == super::state::Tab::Samples) else { return };
        let mark = self.entries.get(&entry.path).map(|(mark, _)| mark.clone());
        let mut of = (entry.name.clone(), browser.view);
        of.1.index = 0;
        if browser.page.of != of || self.page != mark {
            browser.page = page(entry, of);
            browser.view.index = browser.view.index.min(browser.page.records.len().saturating_sub(1));
            self.page = mark;
        }
    }

    /// Performs an action that a key requested. Effects that leave the browser are handled by the caller.
    pub fn act(&mut self, effect: Effect, browser: &mut Browser) {
        if let Err(error) = self.try_act(effect, browser) {
            browser.complain(&error);
        }
        self.refresh(browser);
    }

    fn try_act(&mut self, effect: Effect, browser: &mut Browser) -> gradus::Result<()> {
        match effect {
            Effect::Quit | Effect::Resume { .. } => {}
            Effect::Refresh => {
                self.entries.clear();
                self.details.clear();
                self.page = None;
                browser.notify("reloaded");
            }
            Effect::Label { name, labels } => {
                labels.write(&self.library.find(&name)?.1)?;
                browser.notify(format!("{name}: {}", labels.tags.join(" ")));
            }
            Effect::Rename { old, new } => {
                let path = self.library.rename(&old, &new)?;
                browser.notify(format!("renamed: the run is now in {}", path.display()));
                self.refresh(browser);
                let place = browser.visible().iter().position(|entry| entry.name == new);
                browser.select(place.unwrap_or(0));
            }
            Effect::Remove(name) => {
                self.library.remove(&name)?;
                browser.notify(format!("removed {name}"));
            }
            Effect::RemoveCheckpoint { name, step } => {
                self.library.remove_checkpoint(&name, step)?;
                browser.notify(format!("removed step {step} of {name}"));
            }
            Effect::Export { snapshot, output } => {
                let files = export(&snapshot, &output, false)?;
                browser.notify(format!("copied {} files to {}", files.len(), output.display()));
            }
            Effect::Compare(names) => {
                let found = compare::Compared::of(&self.library, &names)?;
                let directory = self.library.root().join("comparison");
                found.comparison.write(&directory)?;
                let text = found.text(&[], false, crate::output::Paint::plain());
                let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
                lines.extend([String::new(), format!("curves and report are in {}", directory.display())]);
                browser.dialog = Some(Dialog::Text { title: names.join(" · "), lines, scroll: 0 });
            }
        }
        Ok(())
    }
}

fn mark(path: &Path) -> Mark {
    let files = [
        "metrics.jsonl",
        "state.json",
        "results.json",
        "tags.json",
        "log.txt",
        "config.yml",
        "checkpoints",
        "rollouts.sqlite",
        "rollouts.sqlite-wal",
    ];
    let of = |name: &str| {
        let metadata = path.join(name).metadata().ok()?;
        Some((metadata.len(), metadata.modified().ok()?))
    };
    (is_held(path), files.map(of).to_vec())
}

/// Reads the details of a run. Unreadable files become warnings.
fn details(entry: &Entry) -> Details {
    let path = &entry.path;
    let mut warnings = entry.problems.clone();
    let rows = history(path).unwrap_or_default();
    let run = entry.directory();
    warnings.extend(last_warnings(path, WARNINGS));
    if entry.state == Status::Failed {
        warnings.extend(entry.reason.clone());
    }
    let metric = entry.figure.as_ref().map(|figure| figure.key.as_str());
    Details {
        keys: metric_keys(&rows),
        rows,
        settings: Settings::read(&path.join("config.yml")).unwrap_or_default().keys,
        snapshots: run.and_then(|run| snapshots(&run, metric)).unwrap_or_default(),
        log: log_tail(path, LOG),
        warnings,
    }
}

fn page(entry: &Entry, of: (String, super::state::View)) -> Page {
    let view = of.1;
    let mut page = Page { of, ..Page::default() };
    let read = || -> gradus::Result<Page> {
        let database = RolloutDb::open(&entry.directory()?)?;
        let table = match view.table {
            Some(table) => table,
            None if database.steps(RolloutTable::Eval)?.is_empty() => RolloutTable::Train,
            None => RolloutTable::Eval,
        };
        let steps = database.steps(table)?;
        let step = view.step.filter(|step| steps.contains(step)).or(steps.last().copied()).unwrap_or(0);
        let query = Query {
            table,
            first_step: Some(step),
            last_step: Some(step),
            sort: if view.order == Order::Sampled { Sort::Step } else { Sort::Reward },
            descending: view.order == Order::Best,
            limit: Some(RECORDS),
            ..Query::default()
        };
        let has_tests = !database.steps(RolloutTable::Test)?.is_empty();
        Ok(Page { table, has_tests, step, records: database.query(&query)?, steps, ..Page::default() })
    };
    match read() {
        Ok(found) => Page { of: page.of, ..found },
        Err(error) => {
            page.problem = Some(error.hint().map_or_else(|| error.to_string(), |hint| format!("{error}: {hint}")));
            page
        }
    }
}
