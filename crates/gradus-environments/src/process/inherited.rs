//! Starts programs, which inherit the standard channels and no other open files.
//!
//! Rust's own files are closed in programs. Those of C libraries may not be: a library of MPI has sockets to its launcher. While a program
//! holds copies of them, the launcher does not notice that this process has ended.

use std::process::{Child, Command};

/// Starts a program. It inherits no open files but the standard channels.
///
/// # Errors
/// If the program cannot be started.
pub fn spawn(command: &mut Command) -> std::io::Result<Child> {
    close_in_programs();
    command.spawn()
}

/// Marks all open files but the standard channels, so that programs do not inherit them. This process marks them, not the child: a step in
/// the child would require a fork, which takes long if this process has gigabytes of weights.
#[cfg(unix)]
fn close_in_programs() {
    let entries = std::fs::read_dir("/dev/fd").or_else(|_| std::fs::read_dir("/proc/self/fd"));
    let names = entries.into_iter().flatten().flatten().map(|entry| entry.file_name());
    let descriptors = names.filter_map(|name| name.to_str()?.parse::<libc::c_int>().ok());
    for descriptor in descriptors.filter(|descriptor| *descriptor > libc::STDERR_FILENO) {
        // SAFETY: the call sets a flag. If the descriptor has been closed meanwhile, it is an error without an effect.
        unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}

#[cfg(not(unix))]
fn close_in_programs() {}

#[cfg(all(test, unix))]
mod tests {
    use std::os::fd::AsRawFd as _;
    use std::process::Stdio;

    use super::*;

    #[test]
    fn a_program_inherits_the_standard_channels_only() {
        // Programs inherit this pipe by default, as they inherit the sockets of C libraries.
        let (reader, _writer) = nix::unistd::pipe().expect("a pipe");
        let script = format!("test -e /dev/fd/{} && echo open || echo closed", reader.as_raw_fd());
        let mut command = Command::new("sh");
        let child = spawn(command.args(["-c", &script]).stdout(Stdio::piped())).expect("a shell");
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "closed\n");
    }
}
