//! Starting this program again, for runs that need their own process.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use anyhow::Context as _;
use gradus::text::render::{self, Starter};
use gradus_environments::process::spawn;
use gradus_environments::sandbox;

/// Returns a command that starts this program, without arguments. No shell interprets the arguments.
pub fn gradus() -> anyhow::Result<Command> {
    let mut command = match PROGRAM.get() {
        Some(Starter { program, arguments, .. }) => {
            let mut command = Command::new(program);
            command.args(arguments);
            command
        }
        None => {
            let program = std::env::current_exe()?;
            anyhow::ensure!(
                program.exists(),
                "the program of gradus was replaced or removed after it started: restart it"
            );
            Command::new(program)
        }
    };
    command.stdin(Stdio::null());
    Ok(command)
}

/// Command that starts the program, if it is not the current executable: for example, an interpreter with a module.
static PROGRAM: OnceLock<Starter> = OnceLock::new();

/// Sets the command that starts this program again. Only the first call has an effect.
pub fn start_as(program: Starter) {
    PROGRAM.get_or_init(|| program.clone());
    register(program);
}

/// Runs untrusted code in separate processes of this program from now on.
pub fn register_children() -> anyhow::Result<()> {
    if PROGRAM.get().is_none() {
        register(render::this_program().context("chat templates need their own process")?);
    }
    Ok(())
}

/// Renders chat templates and runs programs of a policy in processes that `starter` starts.
fn register(starter: Starter) {
    sandbox::register(starter.program.clone(), starter.arguments.clone());
    render::register(starter);
}

/// Makes writes beyond the limit on file sizes (`ulimit -f`) fail with an error. By default, the system ends the process without a message.
pub fn fail_at_file_size_limit() {
    #[cfg(unix)]
    {
        // Programs that this process starts do not inherit a handler, unlike an ignored signal. The flag means nothing.
        let flag = std::sync::Arc::default();
        // Without the handler, the process ends as before.
        let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, flag);
    }
}

/// Ends this process at once, while another thread is inside a library that does not return. Handlers of the library at exit could wait for that
/// thread.
pub fn exit_at_once(code: u8) -> ! {
    #[cfg(unix)]
    signal_hook::low_level::exit(code.into());
    #[cfg(not(unix))]
    std::process::exit(code.into())
}

/// Starts the command. Its stderr goes to `log`.
pub fn begin(mut command: Command, log: &Path) -> anyhow::Result<Child> {
    let log = fs::File::create(log).with_context(|| log.display().to_string())?;
    command.stdout(Stdio::null()).stderr(log);
    spawn(&mut command).with_context(|| "gradus cannot start another process of itself".to_owned())
}

/// Asks the process to stop, as Ctrl-C does. It is not an error if it has already ended.
pub fn interrupt(child: &Child) {
    #[cfg(unix)]
    {
        use nix::sys::signal::{Signal, kill};
        let _ = kill(nix::unistd::Pid::from_raw(child.id().cast_signed()), Signal::SIGINT);
    }
    #[cfg(not(unix))]
    let _ = child;
}

/// Makes a run stop after a checkpoint when this process ends for any reason. The run waits for the end of its stdin (`--stop-with-stdin`),
/// and this process holds the other end of that pipe.
pub fn stops_with_us(command: &mut Command) {
    command.stdin(Stdio::piped());
}

/// Lets the process continue when this process ends. Ctrl-C on a terminal signals a whole process group, so it gets its own group.
pub fn stands_alone(command: &mut Command) {
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(command, 0);
    #[cfg(not(unix))]
    let _ = command;
}
