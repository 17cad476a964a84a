//! `gradus doctor`: the hardware of this machine, and what this build can use.

use std::fmt::Write as _;

use gradus::device::Nvidia;
use gradus::machine::Machine;
use serde::Serialize;

use crate::output::Output;

/// Arguments of `gradus doctor`: none.
#[derive(Debug, clap::Args)]
pub struct DoctorArgs {}

/// Prints the report.
pub fn run(_: DoctorArgs, out: &Output) -> anyhow::Result<()> {
    let report = Report { machine: Machine::detect(), nvidia: Nvidia::detect() };
    out.result(&report, || table(&report))
}

/// Content of the report.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    machine: Machine,
    nvidia: Nvidia,
}

/// Describes NVIDIA's software and GPUs, line by line.
fn nvidia(found: &Nvidia) -> String {
    let part = |name: &str, version: &Option<String>| match version {
        Some(version) => format!("{name} {version}"),
        None => format!("no {name}"),
    };
    let headers = found.headers.as_ref().map_or("no headers".to_owned(), |path| format!("headers {}", path.display()));
    let software = [part("driver for CUDA", &found.driver), part("NVRTC", &found.nvrtc), headers];
    let mut lines = vec![format!("{}, {}", software.join(", "), part("cuBLASLt", &found.cublas_lt))];
    lines.extend(found.devices.iter().map(|device| {
        let memory = gibibytes(Some(device.memory_bytes));
        format!("{}, compute capability {}, {memory}", device.name, device.compute_capability)
    }));
    // Without a driver and without CUDA in this build, there is no reason to install anything.
    if found.in_this_build || found.driver.is_some() {
        lines.extend(found.missing.iter().cloned());
    }
    if !found.in_this_build {
        lines.push("this build does not use NVIDIA GPUs: build with the cargo feature `cuda`".into());
    }
    lines.join("\n             ")
}

fn gibibytes(bytes: Option<u64>) -> String {
    bytes.map_or("unknown".into(), |bytes| format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64))
}

/// Describes the available MPI libraries.
fn mpi() -> String {
    let found: Vec<String> = gradus::ranks::candidates()
        .iter()
        .map(|library| format!("{} ({}, {})", library.version, library.abi(), library.path))
        .collect();
    match found.is_empty() {
        true => "none; for `--ranks`, install one: `pip install mpich`, or the package `mpich` or `openmpi-bin`".into(),
        false => found.join("\n             "),
    }
}

fn table(Report { machine, nvidia: found }: &Report) -> String {
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
    line("nvidia", nvidia(found));
    line("processor", machine.processor.clone().unwrap_or_else(|| "unknown".into()));
    line("features", list(true));
    line("lacking", list(false));
    line(
        "bf16",
        if machine.bf16_warning().is_none() { "native products" } else { "no native products: slower than f32" }.into(),
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
