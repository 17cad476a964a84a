//! `gradus runs list`: lists all runs in a table.

use std::cmp::Ordering;
use std::path::PathBuf;

use gradus::Error;
use gradus::runs::{Entry, Figure, Library, Status, is_run};

use super::painted;
use crate::numbers::{now, short_model};
use crate::output::{Output, Paint, visible_line};
use crate::table::{age, bytes, laid_out};
use crate::watch::short;

/// Arguments of `gradus runs list`.
#[derive(Debug, Default, clap::Args)]
pub struct ListArgs {
    /// Directory of the runs, or one run [default: that of `--runs-dir`]
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Show only runs of these methods
    #[arg(long, value_name = "METHOD", value_delimiter = ',')]
    method: Vec<String>,
    /// Show only runs in these states
    #[arg(long, value_name = "STATE", value_delimiter = ',')]
    state: Vec<State>,
    /// Show only runs with all of these tags
    #[arg(long, value_name = "TAG", value_delimiter = ',')]
    tag: Vec<String>,
    /// Sort key, with the largest first: last change, start, best figure, steps or bytes; or the name
    #[arg(long, value_name = "KEY", default_value = "changed")]
    sort: Sort,
    /// Reverse the order
    #[arg(long)]
    reverse: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum State {
    Running,
    Finished,
    Interrupted,
    Failed,
    Broken,
}

#[derive(Debug, Clone, Copy, Default, clap::ValueEnum)]
enum Sort {
    #[default]
    Changed,
    Started,
    Figure,
    Step,
    Size,
    Name,
}

impl State {
    fn status(self) -> Status {
        match self {
            Self::Running => Status::Running,
            Self::Finished => Status::Finished,
            Self::Interrupted => Status::Interrupted,
            Self::Failed => Status::Failed,
            Self::Broken => Status::Broken,
        }
    }
}

/// Shows the matching runs.
pub fn run(args: &ListArgs, library: &Library, out: &Output) -> anyhow::Result<()> {
    let own = args.directory.as_ref().map(Library::new);
    let library = own.as_ref().unwrap_or(library);
    let mut entries = match &args.directory {
        Some(directory) if !directory.is_dir() => {
            let error = Error::input(format!("the directory `{}` does not exist", directory.display()));
            return Err(error.with_hint("`gradus runs show NAME` shows a run").into());
        }
        Some(directory) if is_run(directory) => vec![Entry::read(directory.display().to_string(), directory)],
        _ => {
            let found = library.search();
            if let Some(folder) = found.unsearched {
                out.note(format_args!(
                    "folders as deep as `{}` were not searched; `gradus runs list DIR` searches below a folder",
                    visible_line(&folder.display().to_string())
                ));
            }
            Entry::read_all(found.names)
        }
    };
    let all = entries.len();
    entries.retain(|entry| fits(args, entry));
    entries.sort_by(|a, b| order(args.sort, a, b).then_with(|| a.name.cmp(&b.name)));
    if args.reverse {
        entries.reverse();
    }
    if entries.is_empty() && !out.is_json() {
        let shown = library.root().display();
        out.note(match all {
            0 => {
                format!("no runs in `{shown}`; training writes runs there, and `--runs-dir DIR` sets another directory")
            }
            _ => format!("none of the {all} runs in `{shown}` matches"),
        });
        return Ok(());
    }
    out.result(&entries, || table(&entries, now(), out.data_width(), out.data_paint()))
}

fn fits(args: &ListArgs, entry: &Entry) -> bool {
    let method = |requested: &String| entry.method.as_ref() == Some(requested);
    (args.method.is_empty() || args.method.iter().any(method))
        && (args.state.is_empty() || args.state.iter().any(|state| state.status() == entry.state))
        && args.tag.iter().all(|tag| entry.tags.contains(tag))
}

fn order(sort: Sort, a: &Entry, b: &Entry) -> Ordering {
    match sort {
        Sort::Changed => b.changed.cmp(&a.changed),
        Sort::Started => b.started.cmp(&a.started),
        Sort::Step => b.step.cmp(&a.step),
        Sort::Size => b.size_bytes.cmp(&a.size_bytes),
        Sort::Name => Ordering::Equal,
        Sort::Figure => better(a.figure.as_ref(), b.figure.as_ref()),
    }
}

/// Orders better figures first. Figures of the same metric are grouped; runs without a figure come last.
fn better(a: Option<&Figure>, b: Option<&Figure>) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) if a.key == b.key && a.greater_is_better => b.best.total_cmp(&a.best),
        (Some(a), Some(b)) if a.key == b.key => a.best.total_cmp(&b.best),
        (Some(a), Some(b)) => a.key.cmp(&b.key),
        (a, b) => b.is_some().cmp(&a.is_some()),
    }
}

/// Columns that are removed, in this order, until the table fits the terminal.
const DISPENSABLE: [usize; 6] = [8, 2, 9, 7, 1, 5];

fn table(entries: &[Entry], now: u64, width: Option<usize>, paint: Paint) -> String {
    let headings =
        ["name", "method", "model", "state", "step", "key figure", "last", "best", "size", "changed", "tags"];
    let mut rows = vec![headings.map(str::to_owned).to_vec()];
    rows.extend(entries.iter().map(|entry| row(entry, now)));
    let has_tags = entries.iter().any(|entry| !entry.tags.is_empty());
    let mut columns: Vec<usize> = (0..if has_tags { 11 } else { 10 }).collect();
    let width_of = |c: usize| rows.iter().map(|row| row[c].chars().count()).max().unwrap_or(0) + 2;
    for dispensable in DISPENSABLE {
        let all: usize = columns.iter().map(|&c| width_of(c)).sum();
        if width.is_some_and(|width| all > width + 2) {
            columns.retain(|&c| c != dispensable);
        }
    }
    let shown: Vec<Vec<String>> = rows.iter().map(|row| columns.iter().map(|&c| row[c].clone()).collect()).collect();
    let style = |r: usize, c: usize, cell: String| match (r, columns[c]) {
        (0, _) => paint.faint(&cell),
        (_, 0) => paint.bold(&cell),
        (_, 3) => painted(entries[r - 1].state, &cell, paint),
        (_, 7) if entries[r - 1].figure.as_ref().is_some_and(Figure::never_beat_start) => paint.warning(&cell),
        _ => cell,
    };
    let mut text = laid_out(&shown, |c| matches!(columns[c], 4 | 6..=9), style);
    for entry in entries {
        let why = match entry.state {
            Status::Broken => entry.problems.first(),
            Status::Failed => entry.reason.as_ref(),
            _ => None,
        };
        if let Some(why) = why {
            let what = if entry.state == Status::Failed { "failed" } else { "cannot be read" };
            let head = painted(entry.state, &format!("{} {what}:", visible_line(&entry.name)), paint);
            text += &format!("{head} {}\n", visible_line(&in_one_line(why)));
        }
        if let Some(replaced) = &entry.replaced_run {
            text += &format!("{} {}\n", visible_line(&format!("{}:", entry.name)), visible_line(replaced));
        }
    }
    text
}

fn row(entry: &Entry, now: u64) -> Vec<String> {
    let dash = || "–".to_owned();
    let figure = |value: fn(&Figure) -> f64| entry.figure.as_ref().map_or_else(dash, |figure| short(value(figure)));
    let cells = [
        entry.name.clone(),
        entry.method.clone().unwrap_or_else(dash),
        entry.model.as_deref().map_or_else(dash, |model| short_model(model).to_owned()),
        entry.state.name().to_owned(),
        steps(entry),
        entry.figure.as_ref().map_or_else(dash, |figure| figure.key.clone()),
        figure(|figure| figure.last),
        entry.figure.as_ref().and_then(|figure| Some((figure, figure.selected()?))).map_or_else(
            dash,
            |(figure, best)| match figure.never_beat_start() {
                true => format!("{} (start)", short(best)),
                false => short(best),
            },
        ),
        bytes(entry.size_bytes),
        entry.changed.map_or_else(dash, |changed| format!("{} ago", age(now.saturating_sub(changed)))),
        entry.tags.join(" "),
    ];
    // The widths count what is shown.
    cells.iter().map(|cell| visible_line(cell)).collect()
}

/// Formats `40/100`, or `40` if the total is unknown.
pub fn steps(entry: &Entry) -> String {
    entry.steps.map_or_else(|| entry.step.to_string(), |steps| format!("{}/{steps}", entry.step))
}

/// Shortens an error to one line. If its first line introduces the output of a program, the last line of the output follows, which is
/// usually the error of the program.
fn in_one_line(error: &str) -> String {
    let mut lines = error.lines().filter(|line| !line.trim().is_empty());
    let first = lines.next().unwrap_or_default();
    match lines.next_back() {
        Some(last) if first.ends_with(':') => format!("{first} {}", last.trim()),
        _ => first.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_in_one_line_ends_with_the_error_of_the_program() {
        let error = "the program `r` failed (exit status: 3); its last output:\nTraceback:\n  line 1\nValueError: no\n";
        let expected = "the program `r` failed (exit status: 3); its last output: ValueError: no";
        assert_eq!(in_one_line(error), expected);
        assert_eq!(in_one_line("no room\nfor a file"), "no room");
        assert_eq!(in_one_line("it has no end:"), "it has no end:");
        assert_eq!(in_one_line(""), "");
    }

    #[test]
    fn a_narrow_terminal_gets_what_matters() {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("config.yml"), "method:\n  sft:\n    packing: false\n").expect("a file");
        let entries = [Entry::read("a-run-with-a-name".into(), directory.path())];
        let heading = |width| {
            let text = table(&entries, 0, width, Paint::plain());
            text.lines().next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
        };
        let all = "name method model state step key figure last best size changed";
        assert_eq!((heading(None), heading(Some(200))), (all.to_owned(), all.to_owned()));
        assert_eq!(heading(Some(80)), "name method state step key figure last best changed");
        assert_eq!(heading(Some(30)), "name state step last");
    }
}
