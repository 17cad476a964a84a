//! Runs on several ranks: their start, their output, and their common end.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::Context as _;
use clap::{Arg, ArgMatches};
use gradus::Error;
use gradus::ranks::{Launch, LaunchError, Launcher, Mpi, PATIENCE, Ranks};
use gradus::run::claim::host;

use crate::output::Output;
use crate::process::exit_at_once;
use crate::report;
use crate::watch;

/// Time that a failed rank waits for the first rank to report the error.
const LAST_WORDS: Duration = Duration::from_secs(30);
/// Time for the launcher to forward what this process has printed. An abort ends the launcher's own processes, too.
const FORWARDING: Duration = Duration::from_millis(500);

/// Time limit for joining the other ranks to report an error. The options of the run may be unknown then.
const JOINING_TO_REPORT: Duration = Duration::from_secs(30);
/// Time for the launcher to end this process after the first rank has failed. Some launchers do so.
const LAUNCHER_ENDS: Duration = Duration::from_secs(2);

/// True if this process has called MPI, which it can initialize only once.
static HAS_CALLED_MPI: AtomicBool = AtomicBool::new(false);

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
        Some(launch) if launch.size > 1 => {
            let_first_report(launch.rank);
            let message = format!(
                "{} started `gradus {command}` {} times, but this command runs in one process",
                launch.launcher.name(),
                launch.size
            );
            Err(Error::input(message)
                .with_hint(format!(
                    "only training shares work among ranks: start this without the launcher. {}",
                    unset(&launch)
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

/// Lets the first rank report an error that all ranks have. Some launchers then end this process. Others do not, and this process reports it, too.
fn let_first_report(rank: usize) {
    if rank > 0 {
        std::thread::sleep(LAUNCHER_ENDS);
    }
}

/// Returns the name of a rank in messages that it prints itself, such as "rank 1 on `node-2`".
fn name_of(rank: usize) -> String {
    match host() {
        Some(host) => format!("rank {rank} on `{host}`"),
        None => format!("rank {rank}"),
    }
}

/// Runs `call`, which nothing can interrupt. If it takes longer than `limit`, another thread runs `late`, which ends the process.
fn with_deadline<T>(limit: Duration, late: impl FnOnce() + Send + 'static, call: impl FnOnce() -> T) -> T {
    let (running, ended) = channel::<()>();
    std::thread::spawn(move || {
        // The channel closes at the end of the call.
        if ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            late();
        }
    });
    let result = call();
    drop(running);
    result
}

/// Initializes MPI, which waits until all ranks have done so.
fn open_mpi(launch: &Launch, limit: Duration, late: impl FnOnce() + Send + 'static) -> Result<Mpi, String> {
    HAS_CALLED_MPI.store(true, Ordering::SeqCst);
    with_deadline(limit, late, || Mpi::open(launch)).map_err(|error| error.to_string())
}

/// Advice for variables that a launcher has left in the environment.
fn unset(launch: &Launch) -> String {
    format!(
        "If no launcher is running, remove its variables, such as `{}`, with `unset`",
        launch.launcher.size_variable()
    )
}

/// Shows the error of a command, if any, and returns the exit code. All ranks of a launcher end at an error of one of them.
pub fn finish(result: anyhow::Result<()>, out: &Output) -> u8 {
    let launch = Launch::detect().ok().flatten();
    match (result, launch.filter(|launch| has_others(launch, std::io::stdin().is_terminal()))) {
        (Err(error), Some(launch)) if !HAS_CALLED_MPI.load(Ordering::SeqCst) => end_before_joining(error, launch, out),
        (result, _) => report::finish(result, out),
    }
}

/// Returns whether other ranks of the same command can exist. Launchers connect the stdin of a rank to a pipe. At a terminal, a shell inherited the
/// variables of the launcher that started it, such as `srun --pty`.
fn has_others(launch: &Launch, is_at_terminal: bool) -> bool {
    launch.size > 1 && !is_at_terminal
}

/// Returns the longest time that a rank waits at the end. The others wait while the first rank saves. If one of them ended first, some launchers
/// would end the first one. So a short `--rank-timeout` does not shorten their wait.
fn leaving_limit(is_first: bool, patience: Duration) -> Duration {
    if is_first { patience } else { 2 * patience.max(PATIENCE) }
}

/// Ends all ranks because of an error that this rank had before it joined the others, such as an unknown argument. It joins them now. So the
/// others do not wait for it, and an error that all ranks have is shown once.
fn end_before_joining(error: anyhow::Error, launch: Launch, out: &Output) -> u8 {
    let code = report::code(&error);
    if launch.rank == 0 {
        // First the error: MPI may be missing, or end this process.
        report::finish(Err(error), out);
        return match open_mpi(&launch, JOINING_TO_REPORT, move || exit_at_once(code)) {
            Ok(mpi) => {
                std::thread::sleep(FORWARDING);
                mpi.abort(code.into())
            }
            Err(_) => code,
        };
    }
    let report = {
        let text = format!("{} {}: {}", out.paint().error("error:"), name_of(launch.rank), report::text(&error));
        let out = out.clone();
        move || out.error(&text)
    };
    let late = {
        let report = report.clone();
        move || {
            report();
            exit_at_once(code)
        }
    };
    match open_mpi(&launch, JOINING_TO_REPORT, late) {
        Ok(mpi) => {
            let ranks = Ranks::new(Box::new(mpi), PATIENCE);
            let joined = Joined { ranks, launch: Some(launch), patience: PATIENCE, silence: None };
            report::finish(joined.end(Err(error), out), out)
        }
        Err(_) => {
            let_first_report(launch.rank);
            report();
            code
        }
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

/// Warning about `ranks` on a machine with fewer cores.
fn crowding(ranks: usize, cores: usize) -> Option<String> {
    let cores_text = if cores == 1 { "1 core".to_owned() } else { format!("{cores} cores") };
    (ranks > cores).then(|| {
        format!(
            "{ranks} ranks run on this machine, which has only {cores_text}: more ranks than cores make training slower"
        )
    })
}

/// The ranks of a training command, and the output of this rank.
pub struct Joined {
    /// Communicator of the ranks.
    pub ranks: Ranks,
    launch: Option<Launch>,
    /// Longest time that this rank waits for the others.
    patience: Duration,
    silence: Option<Output>,
}

impl Joined {
    /// Returns a single rank.
    fn alone() -> Self {
        Self { ranks: Ranks::ALONE, launch: None, patience: PATIENCE, silence: None }
    }

    /// Joins the ranks that a launcher started. Without a launcher, there is a single rank.
    ///
    /// # Errors
    /// There is no MPI, or it does not belong to the launcher. If another rank does not join, this process ends.
    pub fn new(args: RankArgs, out: &Output) -> anyhow::Result<Self> {
        let Some(launch) = launch()? else { return Ok(Self::alone()) };
        let patience = args.timeout.map_or(PATIENCE, Duration::from_secs);
        let name = name_of(launch.rank);
        let late = {
            let (name, out) = (name.clone(), out.clone());
            move || {
                let_first_report(launch.rank);
                let limit = patience.as_secs();
                let message = format!("{name}: the other ranks have not joined within {limit} s");
                let hint = "look for an earlier error of another rank. It may have failed to start, its machine may be down, or the network \
                            between them. `--rank-timeout` sets a longer wait";
                exit_at_once(report::finish(Err(Error::input(message).with_hint(hint).into()), &out))
            }
        };
        let ranks = match (open_mpi(&launch, patience, late), launch.size) {
            (Ok(mpi), _) => Ranks::new(Box::new(mpi), patience),
            // There is no other process to communicate with.
            (Err(_), 1) => Ranks::ALONE,
            (Err(error), size) => {
                let_first_report(launch.rank);
                let message = format!(
                    "{name}: {} started {size} processes, and this one cannot join them: {error}",
                    launch.launcher.name()
                );
                let install = format!(
                    "install the MPI library of the launcher (`pip install mpich`, or the package `mpich` or `openmpi-bin`), or set its path: \
                     `GRADUS_MPI=/path/to/libmpi.so.12`. {}",
                    unset(&launch)
                );
                let hint = match launch.launcher {
                    // Nothing but its own variables: Slurm has offered the library no way to connect.
                    Launcher::Slurm => format!(
                        "start MPICH with `srun --mpi=pmi2` and Open MPI with `srun --mpi=pmix`; `srun --mpi=list` lists what \
                         this Slurm has. If there is no MPI, {install}"
                    ),
                    _ => install,
                };
                return Err(Error::input(message).with_hint(hint).into());
            }
        };
        let silence = (!ranks.is_first()).then(Output::captured);
        if silence.is_some() {
            // The signal reaches every rank, and all stop together. The first one prints the answer.
            watch::catch_interrupts(None);
        }
        Ok(Self { ranks, launch: Some(launch), patience, silence })
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
        self.sharing(cores).map(|ranks| (cores / ranks).max(1))
    }

    /// Returns a warning if more ranks share this machine than it has cores.
    pub fn crowding(&self, cores: usize) -> Option<String> {
        self.sharing(cores).and_then(|ranks| crowding(ranks, cores))
    }

    /// Returns the number of ranks that share the cores of this machine. `None` if the launcher has bound ranks to cores.
    fn sharing(&self, cores: usize) -> Option<usize> {
        let local = self.launch.filter(|launch| launch.size > 1)?.local_size?;
        let all = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let all = all.lines().filter(|line| line.starts_with("processor")).count();
        (cores >= all).then_some(local)
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
                ranks.finish(self.patience);
                result
            }
            Ok(()) => {
                self.leave("the results of this run are complete".to_owned(), 0, out);
                Ok(())
            }
            // All ranks have stopped at the same step.
            Err(error) if matches!(error.downcast_ref::<Error>(), Some(Error::Interrupted)) => {
                self.leave(error.to_string(), report::INTERRUPTED, out);
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

    /// Leaves MPI, which waits for all ranks. If one does not leave, or a signal arrives, this process ends without it. The first rank then
    /// reports the `state` of the run and ends with `code`.
    fn leave(&self, state: String, code: u8, out: &Output) {
        let is_first = self.ranks.is_first();
        let limit = leaving_limit(is_first, self.patience);
        if is_first {
            watch::end_on_interrupts_with(out, format!("ending without the other ranks: {state}"), code);
        }
        let late = {
            let (name, out) = (name_of(self.ranks.rank()), out.clone());
            move || {
                let seconds = limit.as_secs();
                if is_first {
                    out.warn(format_args!(
                        "ending without the other ranks, which have not ended within {seconds} s: {state}"
                    ));
                    exit_at_once(code);
                }
                let message = format!("{name} has finished, but the other ranks have not ended within {seconds} s");
                exit_at_once(report::finish(Err(Error::input(message).into()), &out))
            }
        };
        // `late` ends this process first.
        with_deadline(limit, late, || self.ranks.finish(limit.saturating_mul(2)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_does_not_return_has_a_deadline() {
        // The call ends only after the deadline.
        let (passed, noticed) = channel();
        let late = move || passed.send("late").expect("the call waits");
        assert_eq!(with_deadline(Duration::ZERO, late, || noticed.recv()), Ok("late"));
        // A call that returns is not late: the channel closes without a message.
        let (passed, noticed) = channel();
        let late = move || passed.send("late").expect("the test waits");
        assert_eq!(with_deadline(Duration::MAX, late, || 7), 7);
        assert!(noticed.recv().is_err());
    }

    #[test]
    fn a_shell_that_a_launcher_started_is_no_rank() {
        let launch = |size| Launch { rank: 0, size, local_rank: None, local_size: None, launcher: Launcher::Slurm };
        assert!(has_others(&launch(2), false));
        assert!(!has_others(&launch(2), true));
        assert!(!has_others(&launch(1), false));
    }

    /// The first rank may save longer than a short `--rank-timeout`.
    #[test]
    fn the_first_rank_has_time_to_save() {
        assert_eq!(leaving_limit(true, Duration::from_secs(5)), Duration::from_secs(5));
        assert_eq!(leaving_limit(false, Duration::from_secs(5)), Duration::from_secs(3600));
        assert_eq!(leaving_limit(false, Duration::from_secs(7200)), Duration::from_secs(14_400));
    }

    #[test]
    fn more_ranks_than_cores_get_a_warning() {
        assert_eq!(crowding(2, 2), None);
        let warning = crowding(3, 1).expect("they share one core");
        assert!(warning.starts_with("3 ranks run on this machine, which has only 1 core:"), "{warning}");
    }
}
