//! `gradus runs audit`: signs of reward hacking, with their evidence.

use std::fmt::Write as _;

use gradus::run::RunDir;
use gradus::runs::{Audit, Library, audit};

use crate::output::{Output, Paint, visible_line};
use crate::report::FindingsExit;

/// Arguments of `gradus runs audit`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes: 0 nothing found; otherwise that of the most serious finding: 10 the held-out reward \
                        falls, 11 length, 12 repetition, 13 duplicates, 14 one part dominates, 15 a part saturates. 1 \
                        is an error, as in all commands."
)]
pub struct AuditArgs {
    /// Name of the run
    #[arg(value_name = "NAME")]
    name: String,
}

/// Prints the findings. The most serious one determines the exit code.
pub fn run(args: &AuditArgs, library: &Library, out: &Output) -> anyhow::Result<()> {
    let (name, path) = library.find(&args.name)?;
    let found = audit(&RunDir::open(path)?)?;
    out.result(&found, || page(&name, &found, out.data_paint()))?;
    match found.findings.first() {
        Some(first) => Err(FindingsExit(first.kind.code()).into()),
        None => Ok(()),
    }
}

fn page(name: &str, found: &Audit, paint: Paint) -> String {
    let [[a, b], [c, d]] = found.steps;
    let [before, now] = found.completions;
    let mut text = format!(
        "{}  steps {a} to {b} ({before} completions) against {c} to {d} ({now})\n",
        paint.bold(&visible_line(name))
    );
    if found.findings.is_empty() {
        let _ = writeln!(text, "  {}", paint.good("nothing found"));
    }
    for finding in &found.findings {
        let _ = writeln!(text, "  {} {}", paint.warning("•"), finding.message);
        if let Some(example) = &finding.example {
            let shown: String = example.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(160).collect();
            let _ = writeln!(text, "    {}", paint.faint(&shown));
        }
    }
    text
}
