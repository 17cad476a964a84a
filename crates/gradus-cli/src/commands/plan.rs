//! `gradus plan FILE|METHOD`: forecasts the memory of a run without starting it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches, Command};
use gradus::config::{MethodConfig, Request};
use gradus::machine::Machine;
use gradus::memory::{Forecast, Phase};
use gradus::train::forecast;
use serde::Serialize;

use super::train;
use crate::flags;
use crate::output::Output;
use crate::table::{aligned, bytes};
use crate::watch::{STOPPING, Watcher};

/// Output with `--json`.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    forecast: Forecast,
    /// Memory that this process may use: of the machine, or of the GPU that computes.
    memory_bytes: Option<u64>,
    /// Whether the run fits: its peak is below that, and its memory outside the GPU is below the machine's memory.
    fits: bool,
}

/// Adds the arguments of `gradus plan`: a file or a method, and the keys of every method.
pub fn arguments(command: Command) -> Command {
    let what = Arg::new("what").value_name("FILE|METHOD").required(true);
    let what = what.help("Configuration file, which flags override; or a method, configured by flags");
    flags::add(command, what.value_parser(clap::value_parser!(PathBuf)), train::every_flag().shown())
}

/// Reads and tokenizes the rows, and prints a line for every phase. Fails like the run would if the run does not fit.
pub fn run(matches: &ArgMatches, out: &Output) -> anyhow::Result<()> {
    let what = matches.get_one::<PathBuf>("what").map(PathBuf::as_path);
    let method = what.and_then(Path::to_str).filter(|name| MethodConfig::named(name).is_some());
    let file = what.filter(|_| method.is_none());
    let given = train::every_flag().given(matches);
    let plan = train::plan(&Request { file, method, flags: &given, ..Request::default() }, matches)?;
    out.notes(plan.notes());
    let ranks = matches.get_one::<u64>("ranks").copied();
    let plan = if ranks.is_some() { plan.on_ranks() } else { plan };
    let ranks = ranks.unwrap_or(1);
    plan.check_ranks(ranks)?;
    let workload = forecast::workload(&plan, ranks as usize, &mut Watcher::new(out, STOPPING))?;
    let machine = Machine::detect();
    train::warn_of_bf16(&plan, &machine, out);
    let forecast = workload.forecast();
    if let Some(unknown) = forecast::unknown_memory(&forecast, &machine) {
        out.warn(format_args!("{unknown}"));
    }
    let memory_bytes = forecast.gpu.as_ref().map_or(machine.memory_bytes, |gpu| machine.device_memory(gpu));
    let checked = forecast::check(&workload, &machine);
    let report = Report { forecast, memory_bytes, fits: checked.is_ok() };
    out.result(&report, || text(&report.forecast, &machine))?;
    checked?;
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
    if let (Some(gpu), Some(own)) = (&forecast.gpu, forecast.host_bytes) {
        let memory = machine
            .device_memory(gpu)
            .map_or("an unknown amount of memory (its driver does not report it)".to_owned(), bytes);
        let _ = write!(text, "; `{gpu}` has {memory}; the program also needs {} of main memory", bytes(own));
    }
    if let Some(memory) = machine.memory_bytes {
        let _ = write!(text, "; this machine has {}", bytes(memory));
        if let Some(free) = machine.memory_free_bytes {
            let _ = write!(text, ", {} of it free now", bytes(free));
        }
    }
    text.push('\n');
    text
}
