//! `gradus plan FILE`: what a run will need in memory, before anything of it runs.

use std::fmt::Write as _;

use clap::ArgMatches;
use gradus::device::DeviceChoice;
use gradus::machine::Machine;
use gradus::memory::{Forecast, Phase};
use gradus::train::forecast;
use serde::Serialize;

use super::train;
use crate::output::Output;
use crate::table::{aligned, bytes};
use crate::watch::Watcher;

/// What is printed with `--json`.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    forecast: Forecast,
    /// Memory that this process may use.
    memory_bytes: Option<u64>,
    /// Whether the peak is below it.
    fits: bool,
}

/// Reads and tokenises the rows, and shows a line for every phase; fails as the run would where it does not fit.
pub fn run(matches: &ArgMatches, out: &Output) -> anyhow::Result<()> {
    let plan = train::plan(None, matches)?;
    let workload = forecast::workload(&plan, &mut Watcher::new(out))?;
    let machine = Machine::detect();
    train::warn_of_bf16(&plan, &machine, out);
    if *plan.device() != DeviceChoice::cpu() {
        out.warn(format_args!(
            "the forecast is that of `cpu`: on `{}` a run needs more, and is not checked",
            plan.device()
        ));
    }
    let forecast = workload.forecast();
    let fits = machine.memory_bytes.is_none_or(|memory| memory >= forecast.peak_bytes);
    let report = Report { forecast, memory_bytes: machine.memory_bytes, fits };
    out.result(&report, || text(&report.forecast, &machine))?;
    forecast::check(&workload, &machine)?;
    Ok(())
}

fn text(forecast: &Forecast, machine: &Machine) -> String {
    let heading = ["phase", "weights", "gradients", "moments", "activations", "working", "pages", "program", "total"];
    let row = |phase: &Phase| {
        let parts = phase.parts().map(|(_, part)| bytes(part));
        std::iter::once(phase.name.to_owned()).chain(parts).chain([bytes(phase.total())]).collect()
    };
    let rows: Vec<Vec<String>> =
        std::iter::once(heading.map(str::to_owned).to_vec()).chain(forecast.phases.iter().map(row)).collect();
    let mut text = aligned(&rows);
    let _ = write!(text, "\npeak {} in `{}`", bytes(forecast.peak_bytes), forecast.peak().name);
    let _ = write!(text, ", where the longest pass has {} tokens", forecast.longest_pass_tokens);
    if let Some(memory) = machine.memory_bytes {
        let _ = write!(text, "; this machine has {}", bytes(memory));
        if let Some(free) = machine.memory_free_bytes {
            let _ = write!(text, ", {} of it free now", bytes(free));
        }
    }
    text.push('\n');
    text
}
