//! `gradus cluster slurm|kubernetes|skypilot FILE`: job files that start a run with several ranks on a cluster.
//!
//! The script or manifest goes to stdout, so that it can be read first. `--submit` submits it.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use clap::{Args, Subcommand, ValueEnum};
use gradus::Error;
use gradus::config::{Plan, Request, RunConfig};
use gradus::device;
use gradus::machine::Machine;
use gradus::shell;
use gradus::train::forecast;
use gradus_environments::process::spawn;
use serde_json::json;

use crate::output::Output;
use crate::watch::{STOPPING, Watcher};

/// Arguments of `gradus cluster`.
#[derive(Debug, Args)]
pub struct ClusterArgs {
    #[command(subcommand)]
    system: System,
}

#[derive(Debug, Subcommand)]
enum System {
    /// Print a batch script for Slurm
    Slurm(SlurmArgs),
    /// Print an MPIJob for Kubernetes with Kubeflow's MPI operator
    Kubernetes(KubernetesArgs),
    /// Print a task for SkyPilot
    Skypilot(SkypilotArgs),
}

/// Arguments for all cluster systems.
#[derive(Debug, Args)]
struct RunArgs {
    /// The configuration file of the run. It names an `output_dir` on a file system that all nodes share
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Number of machines
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    nodes: u32,
    /// Number of ranks per machine; one per processor socket is usual
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    ranks_per_node: u32,
    /// Number of cores per rank
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    cpus: u32,
    /// Memory per machine in gigabytes. Default: the forecast of `gradus plan`, plus a quarter
    #[arg(long, value_name = "GB", value_parser = clap::value_parser!(u64).range(1..))]
    memory: Option<u64>,
    /// Name of the job. Default: name of the output directory
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Submit the job instead of printing it
    #[arg(long)]
    submit: bool,
}

#[derive(Debug, Args)]
struct SlurmArgs {
    #[command(flatten)]
    run: RunArgs,
    /// Time limit of the job
    #[arg(long, value_name = "D-HH:MM:SS", default_value = SLURM_TIME, value_parser = slurm_time)]
    time: String,
    /// Partition of the cluster
    #[arg(long, value_name = "NAME", value_parser = one_word)]
    partition: Option<String>,
}

#[derive(Debug, Args)]
struct KubernetesArgs {
    #[command(flatten)]
    run: RunArgs,
    /// Container image with gradus, an MPI and an SSH server (docs/ranks.md)
    #[arg(long, value_name = "IMAGE", required = true)]
    image: String,
    /// The MPI in the image
    #[arg(long, value_name = "MPI", required = true)]
    mpi: MpiImplementation,
    /// Numeric ID of the user in the pods
    #[arg(long, value_name = "ID", default_value_t = 0)]
    user: u32,
    /// Home folder of the user in the image. The keys of SSH go to `.ssh` in it. A user other than root needs `.sshd_config` there.
    /// Default: `/root`, or `/home/mpiuser` for other users
    #[arg(long, value_name = "DIR")]
    home: Option<String>,
    /// Claim of the volume that all pods share
    #[arg(long, value_name = "NAME", required = true)]
    volume_claim: String,
    /// Mount point of the volume in the pods
    #[arg(long, value_name = "DIR", default_value = "/data")]
    mount: String,
}

#[derive(Debug, Args)]
struct SkypilotArgs {
    #[command(flatten)]
    run: RunArgs,
    /// Command that installs gradus and an MPI on a machine, such as `pip install ./gradus_rl-*.whl mpich` with the
    /// wheel in the working directory (docs/ranks.md)
    #[arg(long, value_name = "COMMAND", required = true)]
    setup: String,
    /// SkyPilot's name of the GPU, such as `H100`, if `train.device` is a GPU
    #[arg(long, value_name = "NAME", value_parser = one_word)]
    accelerator: Option<String>,
}

/// Names of MPI implementations in an MPIJob.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
enum MpiImplementation {
    /// Open MPI.
    OpenMpi,
    /// MPICH.
    Mpich,
    /// Intel MPI.
    Intel,
}

impl MpiImplementation {
    /// Returns the value of `mpiImplementation`.
    fn name(self) -> &'static str {
        match self {
            Self::OpenMpi => "OpenMPI",
            Self::Mpich => "MPICH",
            Self::Intel => "Intel",
        }
    }

    /// Returns the start of a command with `ranks` processes, which are not bound to cores. MPICH binds none by default. Open MPI needs permission to
    /// run as root.
    fn launcher(self, ranks: u64, is_root: bool) -> String {
        match self {
            Self::OpenMpi if is_root => format!("mpirun --allow-run-as-root -n {ranks} --bind-to none"),
            Self::OpenMpi => format!("mpirun -n {ranks} --bind-to none"),
            Self::Mpich => format!("mpirun -n {ranks}"),
            Self::Intel => format!("mpirun -genv I_MPI_PIN 0 -n {ranks}"),
        }
    }

    /// Returns the field of the launcher's container for its command. The field `command` would replace the entrypoint of the operator's images. With
    /// MPICH and Intel MPI, this entrypoint waits for the names of the workers, and adds Intel's `mpirun` to `PATH`.
    fn command_field(self) -> &'static str {
        match self {
            Self::OpenMpi => "command",
            Self::Mpich | Self::Intel => "args",
        }
    }
}

/// Properties of a run that job files need.
struct Job {
    name: String,
    file: String,
    ranks: u64,
    nodes: u32,
    ranks_per_node: u32,
    cpus: u32,
    /// Number of GPUs per machine.
    gpus: u32,
    gigabytes: u64,
}

impl Job {
    fn new(args: &RunArgs, out: &Output) -> anyhow::Result<Self> {
        let request = Request { file: Some(&args.file), ..Request::default() };
        let mut written = RunConfig::load(&request)?;
        let machine = Machine::detect();
        let device = written.config.train.device.clone();
        let gpus = gpus(&device);
        // This machine need not have the GPU. The rest of the configuration is checked as for the CPU.
        let lacks_gpu = gpus > 0 && device::canonical(&device).is_some_and(|name| !machine.devices.contains(&name));
        if lacks_gpu {
            "cpu".clone_into(&mut written.config.train.device);
        }
        let plan = Plan::check(&written, &machine)?.on_ranks();
        out.notes(plan.notes());
        if !plan.is_set("output_dir") {
            let message = format!("`{}` has no `output_dir`", args.file.display());
            let hint = "set one on a file system that all nodes share: a restarted job resumes from there";
            return Err(Error::input(message).with_hint(hint).into());
        }
        let ranks = u64::from(args.nodes) * u64::from(args.ranks_per_node);
        plan.check_ranks(ranks)?;
        if gpus > 0 && args.ranks_per_node > 1 {
            let message = format!(
                "`train.device` is `{device}`, so the {} ranks of a machine would share one GPU",
                args.ranks_per_node
            );
            return Err(Error::input(message).with_hint("start one rank per machine: `--ranks-per-node 1`").into());
        }
        let gigabytes = match args.memory {
            Some(gigabytes) => gigabytes,
            None => gigabytes(&plan, lacks_gpu.then_some(device.as_str()), ranks, args.ranks_per_node, out)?,
        };
        let name = args.name.as_deref().map_or_else(|| job_name(plan.output_dir()), allowed);
        let RunArgs { nodes, ranks_per_node, cpus, .. } = *args;
        let file = shell::path(&args.file);
        Ok(Self { name, file, ranks, nodes, ranks_per_node, cpus, gpus, gigabytes })
    }

    /// Number of cores per machine.
    fn machine_cpus(&self) -> u64 {
        u64::from(self.cpus) * u64::from(self.ranks_per_node)
    }

    /// Returns the command of each rank. It resumes where an earlier job ended.
    fn command(&self) -> String {
        format!("gradus train {} --resume --threads {}", self.file, self.cpus)
    }
}

/// Returns the number of GPUs that a machine needs for `train.device`. Devices are numbered from 0.
pub(super) fn gpus(device: &str) -> u32 {
    let name = device::canonical(device).unwrap_or_default();
    match name.split_once(':') {
        // `gpu:software` has no number, and computes on the CPU.
        Some((_, number)) => number.parse().map_or(0, |number: u32| number.saturating_add(1)),
        None => u32::from(matches!(&*name, "gpu" | "cuda")),
    }
}

/// Computes the main memory in gigabytes of a machine with `on_machine` of the run's ranks: the forecast plus a quarter. `gpu` names the device of
/// the run if this machine lacks it.
pub(super) fn gigabytes(
    plan: &Plan,
    gpu: Option<&str>,
    ranks: u64,
    on_machine: u32,
    out: &Output,
) -> anyhow::Result<u64> {
    let workload = match forecast::workload(plan, ranks as usize, &mut Watcher::new(out, STOPPING)) {
        Err(Error::Interrupted) => return Err(Error::Interrupted.into()),
        found => found.context("the memory cannot be forecast on this machine; set it with `--memory`")?,
    };
    let forecast = match gpu {
        Some(gpu) => workload.on_gpu(gpu.to_owned()).forecast(),
        None => workload.forecast(),
    };
    let of_rank = forecast.host_bytes.unwrap_or(forecast.peak_bytes) as f64;
    Ok((of_rank * f64::from(on_machine) * 1.25 / 1e9).ceil() as u64)
}

/// Returns the name of a job that writes into `directory`.
pub(super) fn job_name(directory: &Path) -> String {
    allowed(&directory.file_name().map_or("gradus".into(), |name| name.to_string_lossy()))
}

/// Length of a job's name. Kubernetes names a pod after the job, with up to 13 characters more (`-worker-65535`), in at most 63.
const NAME_LENGTH: usize = 50;

/// Changes `name` to one that all systems allow: letters, digits and hyphens, with a letter first.
fn allowed(name: &str) -> String {
    let letter = |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '-' };
    let mut name = name.chars().map(letter).collect::<String>().trim_matches('-').to_owned();
    if name.starts_with(|first: char| first.is_ascii_digit()) {
        name.insert_str(0, "run-");
    }
    name.truncate(NAME_LENGTH);
    match name.trim_end_matches('-') {
        "" => "gradus".into(),
        name => name.to_owned(),
    }
}

/// Parses an argument that is one word of a job file. A second word could be an option, and a second line an instruction.
pub(super) fn one_word(text: &str) -> Result<String, String> {
    match text.is_empty() || text.contains(|letter: char| letter.is_whitespace() || letter.is_control()) {
        true => Err("expected a name without spaces and line breaks".into()),
        false => Ok(text.to_owned()),
    }
}

/// Parses a time limit that Slurm accepts.
pub(super) fn slurm_time(text: &str) -> Result<String, String> {
    let is_unlimited = ["UNLIMITED", "INFINITE"].iter().any(|word| text.eq_ignore_ascii_case(word));
    match is_unlimited || slurm_seconds(text).is_some() {
        true => Ok(text.to_owned()),
        false => Err(
            "expected a time limit such as `90` (minutes), `2:00:00`, `1-12` (days-hours), `1-00:00:00` or `UNLIMITED`"
                .into(),
        ),
    }
}

/// Default time limit of a job on Slurm.
pub(super) const SLURM_TIME: &str = "1-00:00:00";

/// Seconds before the time limit at which Slurm asks a run to stop. Of short limits, at most a quarter.
const SLURM_LEAD: u64 = 300;

/// Returns the number of seconds before the end of the time limit `time` at which a run is asked to stop.
fn slurm_lead(time: &str) -> u64 {
    // Slurm rounds limits up to minutes. The limit 0 is none.
    let limit = slurm_seconds(time).map(|limit| limit.div_ceil(60).saturating_mul(60)).filter(|&limit| limit > 0);
    limit.map_or(SLURM_LEAD, |limit| SLURM_LEAD.min(limit / 4))
}

/// Parses a time limit as Slurm does: `M`, `M:S`, `H:M:S`, `D-H`, `D-H:M` or `D-H:M:S`. `None` for words such as `UNLIMITED`.
fn slurm_seconds(time: &str) -> Option<u64> {
    let numbers = |text: &str| text.split(':').map(|number| number.parse::<u64>().ok()).collect::<Option<Vec<_>>>();
    let (days, [hours, minutes, seconds]) = match time.split_once('-') {
        Some((days, rest)) => (
            days.parse::<u64>().ok()?,
            match numbers(rest)?[..] {
                [hours] => [hours, 0, 0],
                [hours, minutes] => [hours, minutes, 0],
                [hours, minutes, seconds] => [hours, minutes, seconds],
                _ => return None,
            },
        ),
        None => (
            0,
            match numbers(time)?[..] {
                [minutes] => [0, minutes, 0],
                [minutes, seconds] => [0, minutes, seconds],
                [hours, minutes, seconds] => [hours, minutes, seconds],
                _ => return None,
            },
        ),
    };
    let parts = [(days, 86_400), (hours, 3600), (minutes, 60), (seconds, 1)];
    parts.into_iter().try_fold(0_u64, |sum, (count, unit)| sum.checked_add(count.checked_mul(unit)?))
}

/// Head of a Slurm batch script: resources and signal handling.
pub(super) struct SlurmJob<'a> {
    pub name: &'a str,
    /// Options of this kind of job, such as `--nodes=4`.
    pub options: Vec<String>,
    /// Number of cores per task.
    pub cpus: u32,
    /// Number of GPUs per machine.
    pub gpus: u32,
    /// Memory per machine in gigabytes.
    pub gigabytes: u64,
    pub time: &'a str,
    pub partition: Option<&'a str>,
    /// Path of the log, with Slurm's placeholders.
    pub log: &'a str,
}

impl SlurmJob<'_> {
    pub fn head(&self) -> String {
        let Self { name, options, cpus, gpus, gigabytes, time, partition, log } = self;
        let all = [format!("--job-name={name}")].into_iter().chain(options.iter().cloned());
        let all =
            all.chain([format!("--cpus-per-task={cpus}"), format!("--mem={gigabytes}G"), format!("--time={time}")]);
        let all = all.chain((*gpus > 0).then(|| format!("--gres=gpu:{gpus}")));
        let all = all.chain(partition.map(|name| format!("--partition={name}"))).chain([format!("--output={log}")]);
        let lines: String = all.map(|option| format!("#SBATCH {option}\n")).collect();
        let lead = slurm_lead(time);
        format!(
            "#!/bin/bash\n{lines}# {lead} seconds before the time limit, training writes a checkpoint and stops. A restarted \
             job resumes from it,\n# and adds to the log.\n#SBATCH --signal=TERM@{lead}\n#SBATCH --requeue\n#SBATCH \
             --open-mode=append\n"
        )
    }
}

fn slurm(args: &SlurmArgs, job: &Job) -> String {
    let Job { name, nodes, ranks_per_node, cpus, gpus, gigabytes, .. } = job;
    let log = format!("{name}-%j.log");
    let head = SlurmJob {
        name,
        options: vec![format!("--nodes={nodes}"), format!("--ntasks-per-node={ranks_per_node}")],
        cpus: *cpus,
        gpus: *gpus,
        gigabytes: *gigabytes,
        time: &args.time,
        partition: args.partition.as_deref(),
        log: &log,
    };
    format!(
        "{head}# `--mpi=pmix` for Open MPI, `--mpi=pmi2` for MPICH; `srun --mpi=list` lists the available ones.\nsrun \
         --cpus-per-task={cpus} --kill-on-bad-exit=1 {command}\n",
        head = head.head(),
        command = job.command(),
    )
}

fn kubernetes(args: &KubernetesArgs, job: &Job) -> String {
    let Job { name, nodes, ranks, ranks_per_node, gigabytes, .. } = job;
    let volumes = json!([{ "name": "shared", "persistentVolumeClaim": { "claimName": args.volume_claim } }]);
    let mounts = json!([{ "name": "shared", "mountPath": args.mount }]);
    let mut limits = json!({ "cpu": job.machine_cpus(), "memory": format!("{gigabytes}G") });
    if job.gpus > 0 {
        limits["nvidia.com/gpu"] = job.gpus.into();
    }
    let is_root = args.user == 0;
    let home = args.home.as_deref().unwrap_or(if is_root { "/root" } else { "/home/mpiuser" });
    // Images can name another user, who could not read the keys.
    let user = json!({ "runAsUser": args.user });
    let pod = |container: serde_json::Value| json!({ "spec": { "containers": [container], "volumes": volumes } });
    let command = format!("{} {}", args.mpi.launcher(*ranks, is_root), job.command());
    let launcher = pod(json!({
        "name": "launcher", "image": args.image, "workingDir": args.mount, "volumeMounts": mounts,
        "securityContext": user, args.mpi.command_field(): ["/bin/sh", "-c", command],
    }));
    let mut worker = json!({
        "name": "worker", "image": args.image, "workingDir": args.mount, "volumeMounts": mounts,
        "securityContext": user, "resources": { "limits": limits },
    });
    // The operator starts the server for root, with the configuration of the system. Only root can read the host keys there.
    if !is_root {
        worker["command"] = json!(["/usr/sbin/sshd", "-De", "-f", format!("{home}/.sshd_config")]);
    }
    let worker = pod(worker);
    let manifest = json!({
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": { "name": name },
        "spec": {
            "mpiImplementation": args.mpi.name(),
            "sshAuthMountPath": format!("{home}/.ssh"),
            "slotsPerWorker": ranks_per_node,
            "runPolicy": { "cleanPodPolicy": "Running", "backoffLimit": 3 },
            "mpiReplicaSpecs": {
                "Launcher": { "replicas": 1, "template": launcher },
                "Worker": { "replicas": nodes, "template": worker },
            },
        },
    });
    // JSON is valid YAML.
    serde_json::to_string_pretty(&manifest).expect("plain data") + "\n"
}

fn skypilot(args: &SkypilotArgs, job: &Job) -> anyhow::Result<String> {
    let Job { name, nodes, ranks, ranks_per_node, gigabytes, .. } = job;
    let cpus = job.machine_cpus();
    let setup = args.setup.replace('\n', "\n  ");
    let accelerators = match (&args.accelerator, job.gpus) {
        (None, 0) => String::new(),
        (Some(_), 0) => {
            let message = "`--accelerator` requests GPUs, but `train.device` is not a GPU";
            return Err(Error::input(message).with_hint("leave it out, or set `train.device: gpu`").into());
        }
        (Some(name), count) => format!("  accelerators: \"{name}:{count}\"\n"),
        (None, _) => {
            let message = "`train.device` is a GPU, and SkyPilot needs its name";
            let hint = "add `--accelerator NAME`, such as `--accelerator H100`; `sky gpus list` lists the names";
            return Err(Error::input(message).with_hint(hint).into());
        }
    };
    Ok(format!(
        "name: \"{name}\"\nnum_nodes: {nodes}\n# SkyPilot copies this folder to every machine.\nworkdir: \
         .\nresources:\n\x20 cpus: {cpus}+\n\x20 memory: {gigabytes}+\n{accelerators}setup: |2\n\x20 \
         {setup}\nrun: |\n\x20 # The first machine starts the ranks on all machines.\n\x20 if [ \
         \"$SKYPILOT_NODE_RANK\" = 0 ]; then\n\x20   HOSTS=$(echo \"$SKYPILOT_NODE_IPS\" | sed \
         's/$/:{ranks_per_node}/' | paste -sd, -)\n\x20   mpiexec -n {ranks} -hosts \"$HOSTS\" {command}\n\x20 fi\n",
        command = job.command(),
    ))
}

/// Prints the job file, or submits it.
pub fn run(args: ClusterArgs, out: &Output) -> anyhow::Result<()> {
    let (text, submit): (String, Option<&[&str]>) = match &args.system {
        System::Slurm(args) => (slurm(args, &Job::new(&args.run, out)?), args.run.submit.then_some(&["sbatch"])),
        System::Kubernetes(args) => {
            (kubernetes(args, &Job::new(&args.run, out)?), args.run.submit.then_some(&["kubectl", "apply", "-f"]))
        }
        System::Skypilot(args) => {
            (skypilot(args, &Job::new(&args.run, out)?)?, args.run.submit.then_some(&["sky", "launch", "-y"]))
        }
    };
    match submit {
        Some(command) => submit_with(command, &text),
        None => out.text(&text),
    }
}

/// Runs a program with the path of a file that contains `text`, after the arguments in `words`. Some programs read the file several times, so
/// it cannot be a pipe. It exists until the program ends.
pub(super) fn submit_with(words: &[&str], text: &str) -> anyhow::Result<()> {
    let program = words[0];
    let mut file = tempfile::Builder::new().prefix("gradus-").suffix(".yml").tempfile()?;
    file.write_all(text.as_bytes())?;
    let started = spawn(Command::new(program).args(&words[1..]).arg(file.path()));
    let status = started.and_then(|mut child| child.wait()).map_err(|error| {
        let hint = "leave `--submit` out to print the text that would be submitted";
        Error::input(format!("`{program}` cannot be started: {error}")).with_hint(hint)
    })?;
    match status.success() {
        true => Ok(()),
        false => Err(Error::input(format!("`{program}` rejected the job ({status})")).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `man sbatch`: acceptable time formats.
    #[test]
    fn a_run_is_asked_to_stop_within_its_time_limit() {
        for (time, seconds, lead) in [
            ("4", Some(240), 60),
            ("0:04:00", Some(240), 60),
            ("4:30", Some(270), 75),
            ("20", Some(1200), 300),
            ("2:00:00", Some(7200), 300),
            ("1-2", Some(93_600), 300),
            ("1-2:3", Some(93_780), 300),
            ("1-2:3:4", Some(93_784), 300),
            ("0:01", Some(1), 15),
            ("0", Some(0), 300),
            ("UNLIMITED", None, 300),
            ("1:2:3:4", None, 300),
            ("99999999999999999999", None, 300),
        ] {
            assert_eq!((slurm_seconds(time), slurm_lead(time)), (seconds, lead), "{time}");
        }
    }

    #[test]
    fn a_numbered_gpu_needs_those_before_it() {
        let devices = ["cpu", "gpu", "gpu:0", "gpu:3", "cuda", "cuda:1", "gpu:software", "tpu"];
        assert_eq!(devices.map(gpus), [0, 1, 1, 4, 1, 2, 0, 0]);
    }

    #[test]
    fn names_of_jobs_are_those_that_all_systems_allow() {
        let long = format!("{}-", "a".repeat(NAME_LENGTH - 1));
        for (path, expected) in [
            ("runs/Tea 1", "tea-1"),
            ("runs/实验", "gradus"),
            ("runs/--", "gradus"),
            ("runs/2024", "run-2024"),
            (&*format!("runs/{long}b"), &long[..NAME_LENGTH - 1]),
            ("/", "gradus"),
        ] {
            assert_eq!(job_name(Path::new(path)), expected);
        }
    }
}
