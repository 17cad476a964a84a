//! `gradus doctor`: what this machine has and what this build can use.

use std::fmt::Write as _;

use gradus::machine::Machine;

use crate::output::Output;

/// Arguments of `gradus doctor`: none.
#[derive(Debug, clap::Args)]
pub struct DoctorArgs {}

/// Shows the machine.
pub fn run(_: DoctorArgs, out: &Output) -> anyhow::Result<()> {
    let machine = Machine::detect();
    out.result(&machine, || table(&machine))
}

/// The MPI libraries that are here.
fn mpi() -> String {
    let found: Vec<String> = gradus::ranks::candidates()
        .iter()
        .map(|library| format!("{} ({}, {})", library.version, library.abi(), library.path))
        .collect();
    match found.is_empty() {
        true => "none: `pip install mpich`, or the package `mpich` or `openmpi-bin`, for `--ranks`".into(),
        false => found.join("\n             "),
    }
}

fn table(machine: &Machine) -> String {
    let gibibytes =
        |bytes: Option<u64>| bytes.map_or("unknown".into(), |b| format!("{:.1} GiB", b as f64 / (1u64 << 30) as f64));
    let list = |here: bool| {
        let names: Vec<_> =
            machine.processor_features.iter().filter(|(_, is)| *is == here).map(|(name, _)| *name).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(" ") }
    };
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<12} {value}");
    };
    line("devices", machine.devices.join(" "));
    line("processor", machine.processor.clone().unwrap_or_else(|| "unknown".into()));
    line("features", list(true));
    line("lacking", list(false));
    line(
        "bf16",
        if machine.bf16_warning().is_none() { "products of its own" } else { "no products: slower than f32" }.into(),
    );
    line("threads", machine.threads.to_string());
    line("memory", format!("{}, {} free", gibibytes(machine.memory_bytes), gibibytes(machine.memory_free_bytes)));
    line("mpi", mpi());
    line("build", machine.build.join(" "));
    for (name, version) in &machine.versions {
        line(name, (*version).to_owned());
    }
    text
}
