//! `gradus train FILE` and the commands of the methods: all the same run, with flags of their own.

use std::path::PathBuf;

use clap::ArgMatches;
use gradus::config::{Plan, Request, RunConfig, Scope};
use gradus::machine::Machine;
use gradus::run::Existing;

use crate::flags;
use crate::output::Output;
use crate::watch::Watcher;

/// Trains what the file and the flags say. `method` is that of the command; `train` leaves it to the file.
pub fn run(method: Option<&str>, matches: &ArgMatches, out: &Output) -> anyhow::Result<()> {
    let plan = plan(method, matches)?;
    if let Some(threads) = plan.train().threads {
        gradus::machine::use_threads(threads)?;
    }
    let outcome = gradus::train::run(&plan, &mut Watcher::new(out))?;
    out.result(&outcome.results, || outcome.directory.display().to_string())
}

fn plan(method: Option<&str>, matches: &ArgMatches) -> anyhow::Result<Plan> {
    let given = flags::given(matches, method.map_or(Scope::Shared, Scope::Method));
    let (resume, overwrite) = (matches.get_flag("resume"), matches.get_flag("overwrite"));
    let mut file = matches.get_one::<PathBuf>("file").cloned();
    if resume && file.is_none() {
        // The run knows what it was: `--resume --output-dir DIR` is enough.
        let directory = given.iter().find(|flag| flag.spec.key == "output_dir").and_then(|flag| flag.values.last());
        file = directory.map(|directory| PathBuf::from(directory).join("config.yml")).filter(|file| file.is_file());
    }
    let written = RunConfig::load(&Request { file: file.as_deref(), method, flags: &given })?;
    let existing = match (resume, overwrite) {
        (true, _) => Existing::Resume,
        (_, true) => Existing::Overwrite,
        _ => Existing::Refuse,
    };
    Ok(Plan::check(&written, &Machine::detect())?.on_existing(existing))
}
