//! Effect of keys on the state, and actions that need the file system.

use std::path::PathBuf;

use gradus::run::database::RolloutTable;
use gradus::runs::{Entry, Labels, Snapshot, SnapshotKind, Status, without_checkpoint};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::state::{Action, Browser, Dialog, Tab};

/// Action outside the state.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Leave the browser.
    Quit,
    /// Read everything again.
    Refresh,
    /// Write tags and note.
    Label { name: String, labels: Labels },
    /// Rename a run.
    Rename { old: String, new: String },
    /// Remove a run.
    Remove(String),
    /// Remove a checkpoint.
    RemoveCheckpoint { name: String, step: usize },
    /// Copy a snapshot.
    Export { snapshot: Box<Snapshot>, output: PathBuf },
    /// Compare these runs.
    Compare(Vec<String>),
    /// Leave the browser and resume a run, with more steps if it has finished.
    Resume { name: String, max_steps: Option<usize> },
}

/// Lines that a page key scrolls.
const PAGE: usize = 10;

impl Browser {
    /// Handles a key.
    pub fn press(&mut self, key: KeyEvent) -> Option<Effect> {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Some(Effect::Quit);
        }
        self.notice = None;
        if let Some(dialog) = self.dialog.take() {
            return self.press_in(dialog, key);
        }
        self.press_on_tab(key.code).or_else(|| self.press_anywhere(key.code))
    }

    fn press_anywhere(&mut self, key: KeyCode) -> Option<Effect> {
        let place = self.place().unwrap_or(0);
        match key {
            KeyCode::Char('q') => return Some(Effect::Quit),
            KeyCode::Esc if self.filter.is_empty() => self.marked.clear(),
            KeyCode::Esc => {
                self.filter.clear();
                let place = self.place().unwrap_or(0);
                self.select(place);
            }
            KeyCode::Char('?') | KeyCode::F(1) => self.dialog = Some(Dialog::Help),
            KeyCode::Up | KeyCode::Char('k') => self.select(place.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select(place + 1),
            KeyCode::Home | KeyCode::Char('g') => self.select(0),
            KeyCode::End | KeyCode::Char('G') => self.select(usize::MAX),
            KeyCode::Right | KeyCode::Tab | KeyCode::Char('l') => self.show(self.tab().next(1)),
            KeyCode::Left | KeyCode::BackTab | KeyCode::Char('h') => self.show(self.tab().next(-1)),
            KeyCode::Char(digit @ '1'..='6') => self.show(Tab::ALL[digit as usize - '1' as usize]),
            KeyCode::PageDown | KeyCode::Char('J') => self.scroll_by(1),
            KeyCode::PageUp | KeyCode::Char('K') => self.scroll_by(-1),
            KeyCode::Char('u') | KeyCode::F(5) => return Some(Effect::Refresh),
            KeyCode::Char('S') => {
                self.by_name = !self.by_name;
                self.notify(if self.by_name { "sorted by name" } else { "sorted by start, newest first" });
            }
            KeyCode::Char('/') => self.open_dialog("show only runs with", self.filter.clone(), Action::Filter),
            KeyCode::Char('c') => return self.compare(),
            _ => return self.press_on_run(key),
        }
        None
    }

    /// Handles keys that concern the selected run.
    fn press_on_run(&mut self, key: KeyCode) -> Option<Effect> {
        let entry = self.entry()?.clone();
        let name = entry.name.clone();
        match key {
            KeyCode::Char(' ') => {
                if !self.marked.remove(&name) {
                    self.marked.insert(name);
                }
                let place = self.place().unwrap_or(0);
                self.select(place + 1);
            }
            KeyCode::Char('t') => self.open_dialog(format!("tags of {name}"), entry.tags.join(" "), Action::Tag(name)),
            KeyCode::Char('N') => {
                self.open_dialog(format!("note on {name}"), entry.note.unwrap_or_default(), Action::Note(name))
            }
            KeyCode::Char('R') => self.open_dialog(format!("new name of {name}"), name.clone(), Action::Rename(name)),
            KeyCode::Char('x') => self.ask_export(&name),
            KeyCode::Char('r') => self.ask_resume(&entry),
            KeyCode::Char('d') | KeyCode::Delete => {
                let size = crate::table::bytes(entry.size_bytes);
                let question = format!("remove {name} with {size} in {}?", entry.path.display());
                self.dialog = Some(Dialog::Confirm { question, what: Action::Remove(name) });
            }
            _ => {}
        }
        None
    }

    /// Handles keys of a single page. `None` also if the key has no meaning there.
    fn press_on_tab(&mut self, key: KeyCode) -> Option<Effect> {
        let tab = self.tab();
        match (tab, key) {
            (Tab::Curves, KeyCode::Char('m')) => self.next_metric(1),
            (Tab::Curves, KeyCode::Char('M')) => self.next_metric(-1),
            (Tab::Curves, KeyCode::Char('s')) => self.is_raw = !self.is_raw,
            (Tab::Samples, KeyCode::Char('n')) => {
                self.view.index = (self.view.index + 1).min(self.page.records.len().saturating_sub(1));
                self.scroll = 0;
            }
            (Tab::Samples, KeyCode::Char('p')) => {
                self.view.index = self.view.index.saturating_sub(1);
                self.scroll = 0;
            }
            (Tab::Samples, KeyCode::Char(']')) => self.next_step(1),
            (Tab::Samples, KeyCode::Char('[')) => self.next_step(-1),
            (Tab::Samples, KeyCode::Char('e')) => {
                self.view.table = Some(match self.page.table {
                    RolloutTable::Train => RolloutTable::Eval,
                    RolloutTable::Eval if self.page.has_tests => RolloutTable::Test,
                    RolloutTable::Eval | RolloutTable::Test => RolloutTable::Train,
                });
                (self.view.step, self.view.index, self.scroll) = (None, 0, 0);
            }
            (Tab::Samples, KeyCode::Char('o')) => {
                self.view.order = self.view.order.next();
                (self.view.index, self.scroll) = (0, 0);
            }
            (Tab::Snapshots, KeyCode::Char('n')) => {
                let count = self.details().map_or(0, |details| details.snapshots.len());
                self.snapshot = (self.snapshot + 1).min(count.saturating_sub(1));
            }
            (Tab::Snapshots, KeyCode::Char('p')) => self.snapshot = self.snapshot.saturating_sub(1),
            (Tab::Snapshots, KeyCode::Char('D')) => self.ask_remove_checkpoint(),
            _ => {}
        }
        None
    }

    /// Scrolls the page. The log is scrolled from its end.
    fn scroll_by(&mut self, direction: isize) {
        let is_down = (direction > 0) != (self.tab() == Tab::Log);
        self.scroll = match is_down {
            true => (self.scroll + PAGE).min(self.scroll_max),
            false => self.scroll.saturating_sub(PAGE),
        };
    }

    fn show(&mut self, tab: Tab) {
        self.tab = Some(tab);
        self.scroll = 0;
    }

    fn next_metric(&mut self, by: isize) {
        let Some(details) = self.details() else { return };
        let place = details.keys.iter().position(|key| Some(key.as_str()) == self.metric()).unwrap_or(0) as isize;
        let count = details.keys.len() as isize;
        if count > 0 {
            self.metric = Some(details.keys[(place + by).rem_euclid(count) as usize].clone());
        }
    }

    fn next_step(&mut self, by: isize) {
        let steps = &self.page.steps;
        let Some(place) = steps.iter().position(|step| *step == self.page.step) else { return };
        let place = (place as isize + by).clamp(0, steps.len() as isize - 1) as usize;
        self.view.step = Some(steps[place]);
        self.scroll = 0;
    }

    fn open_dialog(&mut self, title: impl Into<String>, text: String, what: Action) {
        let cursor = text.chars().count();
        self.dialog = Some(Dialog::Input { title: title.into(), text, cursor, what });
    }

    fn ask_export(&mut self, name: &str) {
        let on_page = self.tab() == Tab::Snapshots;
        let snapshots = self.details().map(|details| details.snapshots.clone()).unwrap_or_default();
        let whole = |snapshot: &&Snapshot| snapshot.defect.is_none();
        let of = |kind: SnapshotKind| snapshots.iter().filter(whole).rfind(|snapshot| snapshot.kind == kind);
        let chosen = match on_page {
            true => snapshots.get(self.snapshot),
            false => {
                of(SnapshotKind::Final).or_else(|| of(SnapshotKind::Best)).or_else(|| of(SnapshotKind::Checkpoint))
            }
        };
        let Some(snapshot) = chosen else {
            self.notify(format!("{name} has no snapshot yet"));
            return;
        };
        let output = format!("models/{}-{}", name.replace('/', "-"), snapshot.name().replace(' ', "-"));
        let title = format!("copy {} of {name} to", snapshot.name());
        self.open_dialog(title, output, Action::Export(Box::new(snapshot.clone())));
    }

    /// Asks for confirmation to remove the selected checkpoint. `best/` and the final model cannot be removed.
    fn ask_remove_checkpoint(&mut self) {
        let snapshots = self.details().map_or(&[][..], |details| &details.snapshots);
        let chosen = snapshots.get(self.snapshot).filter(|chosen| chosen.kind == SnapshotKind::Checkpoint);
        let Some((step, size, name)) =
            chosen.and_then(|chosen| Some((chosen.step?, chosen.size_bytes, self.selected.clone()?)))
        else {
            self.notify("only checkpoints can be removed one by one");
            return;
        };
        let cost = without_checkpoint(snapshots, step).map_or(String::new(), |cost| format!(" {cost}"));
        let question = format!("remove step {step} of {name} with {}?{cost}", crate::table::bytes(size));
        self.dialog = Some(Dialog::Confirm { question, what: Action::RemoveCheckpoint { name, step } });
    }

    fn ask_resume(&mut self, entry: &Entry) {
        let name = entry.name.clone();
        if entry.state == Status::Running {
            self.notify(format!("{name} is running"));
        } else if entry.state == Status::Finished && entry.steps.is_none_or(|steps| entry.step >= steps) {
            let title = format!("{name} has finished all {} steps; train to step", entry.step);
            self.open_dialog(title, (2 * entry.step).to_string(), Action::Lengthen(name));
        } else {
            let question = format!("resume {name} from its last checkpoint? This leaves the browser");
            self.dialog = Some(Dialog::Confirm { question, what: Action::Resume(name) });
        }
    }

    fn compare(&mut self) -> Option<Effect> {
        let mut names: Vec<String> = self.marked.iter().cloned().collect();
        // A single marked run is compared with the selected run.
        names.extend(self.selected.clone().filter(|name| names.len() < 2 && !names.contains(name)));
        if names.len() < 2 {
            self.notify("mark runs with the space bar, then compare them");
            return None;
        }
        Some(Effect::Compare(names))
    }

    /// Handles a key in an open dialog. The dialog was taken out of the state and is put back unless it is done.
    fn press_in(&mut self, dialog: Dialog, key: KeyEvent) -> Option<Effect> {
        match dialog {
            Dialog::Help => None,
            Dialog::Confirm { what, .. } => match key.code {
                KeyCode::Char('y' | 'Y') => self.confirmed(what),
                _ => None,
            },
            Dialog::Text { title, lines, scroll } => {
                let scroll = match key.code {
                    KeyCode::Down | KeyCode::Char('j') => scroll + 1,
                    KeyCode::Up | KeyCode::Char('k') => scroll.saturating_sub(1),
                    KeyCode::PageDown | KeyCode::Char(' ') => scroll + PAGE,
                    KeyCode::PageUp => scroll.saturating_sub(PAGE),
                    _ => return None,
                };
                self.dialog = Some(Dialog::Text { title, scroll: scroll.min(self.scroll_max), lines });
                None
            }
            Dialog::Input { title, text, cursor, what } => match key.code {
                KeyCode::Esc => None,
                KeyCode::Enter => self.entered(what, text.trim()),
                _ => {
                    let (text, cursor) = edited(text, cursor, key);
                    self.dialog = Some(Dialog::Input { title, text, cursor, what });
                    None
                }
            },
        }
    }

    fn confirmed(&mut self, what: Action) -> Option<Effect> {
        match what {
            Action::Remove(name) => Some(Effect::Remove(name)),
            Action::RemoveCheckpoint { name, step } => Some(Effect::RemoveCheckpoint { name, step }),
            Action::Resume(name) => Some(Effect::Resume { name, max_steps: None }),
            _ => None,
        }
    }

    fn entered(&mut self, what: Action, text: &str) -> Option<Effect> {
        let labels = |browser: &Self, name: &str| {
            let entry = browser.entries.iter().find(|entry| entry.name == name)?;
            Some(Labels { tags: entry.tags.clone(), note: entry.note.clone() })
        };
        match what {
            Action::Tag(name) => {
                let mut labels = Labels { tags: Vec::new(), ..labels(self, &name)? };
                for tag in text.split([' ', ',']).filter(|tag| !tag.is_empty()) {
                    if let Err(error) = labels.add(tag) {
                        self.complain(&error);
                        return None;
                    }
                }
                Some(Effect::Label { name, labels })
            }
            Action::Note(name) => {
                let note = Some(text.to_owned()).filter(|note| !note.is_empty());
                Some(Effect::Label { labels: Labels { note, ..labels(self, &name)? }, name })
            }
            Action::Rename(old) if text != old && !text.is_empty() => {
                Some(Effect::Rename { old, new: text.to_owned() })
            }
            Action::Export(snapshot) if !text.is_empty() => Some(Effect::Export { snapshot, output: text.into() }),
            Action::Lengthen(name) => match text.parse() {
                Ok(steps) => Some(Effect::Resume { name, max_steps: Some(steps) }),
                Err(_) => {
                    self.notify(format!("`{text}` is not a number of steps"));
                    None
                }
            },
            Action::Filter => {
                text.clone_into(&mut self.filter);
                let place = self.place().unwrap_or(0);
                self.select(place);
                None
            }
            _ => None,
        }
    }
}

/// Edits a line: returns the line and its cursor position after a key.
fn edited(text: String, cursor: usize, key: KeyEvent) -> (String, usize) {
    let mut letters: Vec<char> = text.chars().collect();
    let cursor = cursor.min(letters.len());
    let cursor = match key.code {
        KeyCode::Char('u') if key.modifiers.contains(KeyModifiers::CONTROL) => {
            letters.clear();
            0
        }
        KeyCode::Char(letter) if !key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT) => {
            letters.insert(cursor, letter);
            cursor + 1
        }
        KeyCode::Backspace if cursor > 0 => {
            letters.remove(cursor - 1);
            cursor - 1
        }
        KeyCode::Delete if cursor < letters.len() => {
            letters.remove(cursor);
            cursor
        }
        KeyCode::Left => cursor.saturating_sub(1),
        KeyCode::Right => (cursor + 1).min(letters.len()),
        KeyCode::Home => 0,
        KeyCode::End => letters.len(),
        _ => cursor,
    };
    (letters.into_iter().collect(), cursor)
}
