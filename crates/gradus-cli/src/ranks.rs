//! Runs on several ranks: their start, their output, and their common end.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Arg, ArgMatches};
use gradus::Error;
use gradus::ranks::{Launch, LaunchError, Launcher, Mpi, PATIENCE, Ranks};

use crate::output::Output;
use crate::report;

/// Time that a failed rank waits for the first rank to report the error.
const LAST_WORDS: Duration = Duration::from_secs(30);
/// Time for the launcher to forward what this process has printed. An abort ends the launcher's own processes, too.
const FORWARDING: Duration = Duration::from_millis(500);

/// Adds `--ranks` and `--rank-timeout` to a command that trains.
pub fn arguments() -> [Arg; 2] {
    let number = clap::value_parser!(u64).range(1..=65_536);
    [
        Arg::new("ranks").long("ranks").value_name("N").value_parser(number).help(
            "Train with N processes on this machine, started by `mpiexec`. On a cluster, start gradus with `mpirun` or \
             `srun`",
        ),
        Arg::new("rank-timeout")
            .long("rank-timeout")
            .value_name("SECONDS")
            .value_parser(number)
            .help(format!("Set how long a rank waits for another before the run ends. Default {}", PATIENCE.as_secs())),
    ]
}

/// Values of [`arguments`].
#[derive(Debug, Clone, Copy, Default)]
pub struct RankArgs {
    ranks: Option<u64>,
    timeout: Option<u64>,
}

impl RankArgs {
    /// Returns the given values.
    pub fn of(matches: &ArgMatches) -> Self {
        let number = |name: &str| matches.get_one::<u64>(name).copied();
        Self { ranks: number("ranks"), timeout: number("rank-timeout") }
    }
}

/// Returns what the launcher's environment describes, if a launcher started this process.
///
/// # Errors
/// The environment is inconsistent.
pub fn launch() -> anyhow::Result<Option<Launch>> {
    let found = Launch::detect();
    found.map_err(|error| {
        let hint = match &error {
            LaunchError::Ambiguous { first, second } => format!(
                "remove the variables of the launcher that is not running, such as `{}` or `{}`, with `unset`",
                first.launcher.size_variable(),
                second.launcher.size_variable()
            ),
            LaunchError::NoSize { .. } => {
                "start gradus with `mpirun` or `srun`, which set the number of processes. If no launcher is \
                                           running, remove `PMIX_RANK` with `unset`"
                    .to_owned()
            }
            LaunchError::Unreadable { .. } | LaunchError::NoMpi { .. } => {
                "start gradus with `mpirun`, `mpiexec` or `srun`, or with `--ranks N`".to_owned()
            }
        };
        Error::input(error.to_string()).with_hint(hint).into()
    })
}

/// Rejects a command that would run once per rank.
///
/// # Errors
/// The launcher started more than one process.
pub fn refuse_copies(command: &str) -> anyhow::Result<()> {
    match launch()? {
        Some(Launch { rank, size, launcher, .. }) if size > 1 => {
            let_first_speak(rank);
            let message = format!(
                "{} started `gradus {command}` {size} times, but this command runs in one process",
                launcher.name()
            );
            Err(Error::input(message)
                .with_hint(format!(
                    "only training shares work among ranks: start this without the launcher. If none is running, \
                     remove its variables from the environment, such as `{}`",
                    launcher.size_variable()
                ))
                .into())
        }
        _ => Ok(()),
    }
}

/// Replaces this process by a launcher of several processes, if `--ranks` requests them and no launcher has started them. An interactive
/// shell of Slurm counts as no launcher.
///
/// # Errors
/// There is no launcher, or it started another number of processes.
pub fn start(args: RankArgs) -> anyhow::Result<()> {
    let Some(requested) = args.ranks else { return Ok(()) };
    if let Some(launch) = launch()? {
        if launch.size as u64 == requested {
            return Ok(());
        }
        let name = launch.launcher.name();
        match launch.size {
            // An interactive shell of Slurm.
            1 if matches!(launch.launcher, Launcher::Slurm | Launcher::Pmix) => {}
            1 => {
                let message = format!("`--ranks` is {requested}, but {name} started 1 process");
                let hint =
                    "use either `--ranks`, without a launcher, or a launcher of several processes, without `--ranks`";
                return Err(Error::input(message).with_hint(hint).into());
            }
            size => {
                let message = format!("`--ranks` is {requested}, but {name} started {size} processes");
                let hint = "leave `--ranks` out: the launcher sets the number of ranks";
                return Err(Error::input(message).with_hint(hint).into());
            }
        }
    }
    let Some(launcher) = launcher() else {
        let message = "`--ranks` needs MPI, and there is no `mpiexec` in `PATH`";
        return Err(Error::input(message)
            .with_hint("install it: `pip install mpich`, or the package `mpich` or `openmpi-bin`")
            .into());
    };
    let program = std::env::current_exe().context("the path of gradus is unknown")?;
    let mut command = Command::new(&launcher);
    command.arg("-n").arg(requested.to_string()).arg(program).args(std::env::args_os().skip(1));
    // Those of a shell that another launcher started.
    Launch::variables().for_each(|variable| {
        command.env_remove(variable);
    });
    // The user may request more ranks than cores. Open MPI rejects that, and root, without these variables.
    command.envs([
        ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
        ("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"),
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        // In a job of Slurm, MPICH would start its processes with `srun`, which waits for the cores of an interactive shell.
        ("HYDRA_LAUNCHER", "fork"),
    ]);
    replace(command).with_context(|| format!("`{}` cannot be started", launcher.display()))
}

/// Waits before an error that all ranks would report, except on the first rank. A launcher ends this process when the
/// first rank fails, so that the error is shown once. Without a launcher, this process has to report it.
fn let_first_speak(rank: usize) {
    if rank > 0 {
        std::thread::sleep(Duration::from_secs(2));
    }
}

/// Returns the path of `mpiexec` or `mpirun`, from `PATH`.
#[expect(clippy::disallowed_methods, reason = "a variable in the table of ARCHITECTURE.md")]
fn launcher() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let named = |name: &str| folders.iter().map(|folder| folder.join(name)).find(|program| Path::is_file(program));
    named("mpiexec").or_else(|| named("mpirun"))
}

/// Replaces this process by another program, so that signals reach it.
#[cfg(unix)]
fn replace(mut command: Command) -> std::io::Result<()> {
    use std::os::unix::process::CommandExt as _;
    Err(command.exec())
}

#[cfg(not(unix))]
fn replace(mut command: Command) -> std::io::Result<()> {
    let status = command.status()?;
    std::process::exit(status.code().unwrap_or(1))
}

/// The ranks of a training command, and the output of this rank.
pub struct Joined {
    /// Communicator of the ranks.
    pub ranks: Ranks,
    launch: Option<Launch>,
    silence: Option<Output>,
}

impl Joined {
    /// Returns a single rank.
    fn alone() -> Self {
        Self { ranks: Ranks::ALONE, launch: None, silence: None }
    }

    /// Joins the ranks that a launcher started. Without a launcher, there is a single rank.
    ///
    /// # Errors
    /// There is no MPI, or it does not belong to the launcher.
    pub fn new(args: RankArgs) -> anyhow::Result<Self> {
        let Some(launch) = launch()? else { return Ok(Self::alone()) };
        let patience = args.timeout.map_or(PATIENCE, Duration::from_secs);
        let ranks = match (Mpi::open(&launch), launch.size) {
            (Ok(mpi), _) => Ranks::new(Box::new(mpi), patience),
            // There is no other process to communicate with.
            (Err(_), 1) => Ranks::ALONE,
            (Err(error), size) => {
                let_first_speak(launch.rank);
                let message = format!(
                    "{} started {size} processes, and this one cannot join them: {error}",
                    launch.launcher.name()
                );
                let install = "install the MPI library of the launcher (`pip install mpich`, or the package `mpich` or `openmpi-bin`), or set its \
                               path: `GRADUS_MPI=/path/to/libmpi.so.12`";
                let hint = match launch.launcher {
                    // Nothing but its own variables: Slurm has offered the library no way to connect.
                    Launcher::Slurm => format!(
                        "start MPICH with `srun --mpi=pmi2` and Open MPI with `srun --mpi=pmix`; `srun --mpi=list` lists what \
                         this Slurm has. If there is no MPI, {install}"
                    ),
                    _ => install.to_owned(),
                };
                return Err(Error::input(message).with_hint(hint).into());
            }
        };
        let silence = (!ranks.is_first()).then(Output::captured);
        if silence.is_some() {
            // The signal reaches every rank, and all stop together. The first one prints the answer.
            crate::watch::catch_interrupts(None);
        }
        Ok(Self { ranks, launch: Some(launch), silence })
    }

    /// Returns whether a launcher started this process, alone or with others.
    pub fn is_launched(&self) -> bool {
        self.launch.is_some()
    }

    /// Returns the output of this rank. Only the first rank prints.
    pub fn output<'o>(&'o self, out: &'o Output) -> &'o Output {
        self.silence.as_ref().unwrap_or(out)
    }

    /// Returns the default number of threads of this rank: its share of the cores. `None` if the launcher has already bound ranks to cores.
    pub fn threads(&self, cores: usize) -> Option<usize> {
        let local = self.launch.filter(|launch| launch.size > 1)?.local_size?;
        let all = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let all = all.lines().filter(|line| line.starts_with("processor")).count();
        (cores >= all).then(|| (cores / local).max(1))
    }

    /// Ends the command on all ranks. An error is shown once.
    ///
    /// # Errors
    /// The error of this rank, if this rank reports it.
    pub fn end(&self, result: anyhow::Result<()>, out: &Output) -> anyhow::Result<()> {
        let ranks = self.ranks;
        match result {
            // MPI must be finalized in any case.
            _ if ranks.is_alone() => {
                ranks.finish();
                result
            }
            Ok(()) => {
                ranks.finish();
                Ok(())
            }
            // All ranks have stopped at the same step.
            Err(error) if matches!(error.downcast_ref::<Error>(), Some(Error::Interrupted)) => {
                ranks.finish();
                match ranks.is_first() {
                    true => Err(error),
                    false => std::process::exit(i32::from(report::finish(Err(error), self.output(out)))),
                }
            }
            Err(error) if ranks.is_first() => {
                let code = report::finish(Err(error), out);
                std::thread::sleep(FORWARDING);
                ranks.abort(i32::from(code))
            }
            Err(error) => {
                ranks.fail(&report::text(&error));
                // The first rank reports the error and ends this process.
                std::thread::sleep(LAST_WORDS);
                let code = report::finish(Err(error.context(format!("rank {}", ranks.rank()))), out);
                std::thread::sleep(FORWARDING);
                ranks.abort(i32::from(code))
            }
        }
    }
}
