//! The program, started by itself: a run that must not share its process with others has one of its own.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use anyhow::Context as _;
use gradus::text::render::{self, Starter};
use gradus_environments::sandbox;

/// The program itself, with no arguments yet. Whatever they become, no shell reads them.
pub fn gradus() -> anyhow::Result<Command> {
    let mut command = match PROGRAM.get() {
        Some(Starter { program, arguments }) => {
            let mut command = Command::new(program);
            command.args(arguments);
            command
        }
        None => Command::new(std::env::current_exe()?),
    };
    command.stdin(Stdio::null());
    Ok(command)
}

/// How the program is started, where its file is another one: an interpreter with a module.
static PROGRAM: OnceLock<Starter> = OnceLock::new();

/// Says how this program is started again. The first call decides.
pub fn start_as(program: Starter) {
    PROGRAM.get_or_init(|| program.clone());
    register(program);
}

/// From now on, what strangers wrote runs in processes of its own, which are this program too.
pub fn register_children() -> anyhow::Result<()> {
    if PROGRAM.get().is_none() {
        register(render::this_program().context("chat templates need a process of their own")?);
    }
    Ok(())
}

/// Chat templates are rendered, and programs of a policy run, by processes that `starter` starts.
fn register(starter: Starter) {
    sandbox::register(starter.program.clone(), starter.arguments.clone());
    render::register(starter);
}

/// Begins it; what it says of itself goes to `log`.
pub fn begin(mut command: Command, log: &Path) -> anyhow::Result<Child> {
    let log = fs::File::create(log).with_context(|| log.display().to_string())?;
    command.stdout(Stdio::null()).stderr(log);
    command.spawn().with_context(|| "the program cannot be started again".to_owned())
}

/// Asks it to stop, as Ctrl-C does. That it has ended meanwhile is no error.
pub fn interrupt(child: &Child) {
    #[cfg(unix)]
    {
        use nix::sys::signal::{Signal, kill};
        let _ = kill(nix::unistd::Pid::from_raw(child.id().cast_signed()), Signal::SIGINT);
    }
    #[cfg(not(unix))]
    let _ = child;
}

/// Has a run stop, after a checkpoint, when this process ends, however it ends: the run waits for the end of its input
/// (`--stop-with-stdin`), and the other end of that pipe is held here.
pub fn stops_with_us(command: &mut Command) {
    command.stdin(Stdio::piped());
}

/// Lets it go on when what started it ends: Ctrl-C on a terminal reaches a whole group of processes.
pub fn stands_alone(command: &mut Command) {
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(command, 0);
    #[cfg(not(unix))]
    let _ = command;
}
