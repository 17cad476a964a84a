//! Processes that a program has started, also those that left its process group.
//!
//! A program starts with an environment variable whose name is its own. All processes that it starts inherit the variable, whatever
//! their group, session and parent are. On Linux, `/proc` shows the variables of every process of the user. On other systems, only the
//! process group ends with a program.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Maximum number of passes over all processes, and the time between two of them. A killed process takes a moment to end.
#[cfg(target_os = "linux")]
const PASSES: usize = 20;
#[cfg(target_os = "linux")]
const PAUSE: std::time::Duration = std::time::Duration::from_millis(5);

/// The variable that only one program and its descendants have.
pub(super) struct Marker {
    variable: String,
}

impl Marker {
    /// Creates a marker that no other program has. Ids of processes repeat, so the name also contains a random number.
    pub fn new() -> Self {
        let random = RandomState::new().build_hasher().finish();
        Self { variable: format!("GRADUS_PROGRAM_{}_{random:016x}", std::process::id()) }
    }

    /// Name of the variable. Any value will do.
    pub fn variable(&self) -> &str {
        &self.variable
    }

    /// Kills these processes, and all that have the variable or descend from one that has, until none is left.
    #[cfg(target_os = "linux")]
    pub fn kill_all(&self, mut found: Vec<u32>) {
        use nix::sys::signal::{Signal, kill};

        for _ in 0..PASSES {
            for id in found {
                // It may have ended meanwhile.
                let _ = kill(nix::unistd::Pid::from_raw(id.cast_signed()), Signal::SIGKILL);
            }
            found = self.descendants(None);
            if found.is_empty() {
                return;
            }
            std::thread::sleep(PAUSE);
        }
    }

    #[cfg(not(target_os = "linux"))]
    pub fn kill_all(&self, _: Vec<u32>) {}

    /// Returns the processes that have the variable, and those whose ancestor has it or is `root`. Processes that have ended are left
    /// out.
    #[cfg(target_os = "linux")]
    pub fn descendants(&self, root: Option<u32>) -> Vec<u32> {
        let own = std::process::id();
        // In a container, `/proc` may be that of the host, with other ids.
        let is_own = std::fs::read_link("/proc/self").is_ok_and(|link| link.as_os_str() == own.to_string().as_str());
        let Some(entries) = std::fs::read_dir("/proc").ok().filter(|_| is_own) else { return Vec::new() };
        let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let all: Vec<(u32, u32)> = ids.filter(|id| *id != own).filter_map(|id| Some((id, parent(id)?))).collect();
        let mut found: Vec<u32> = all.iter().map(|(id, _)| *id).filter(|id| self.is_on(*id)).collect();
        found.extend(root);
        let mut next = 0;
        while let Some(&ancestor) = found.get(next) {
            for (id, parent) in &all {
                if *parent == ancestor && !found.contains(id) {
                    found.push(*id);
                }
            }
            next += 1;
        }
        found.retain(|id| Some(*id) != root);
        found
    }

    #[cfg(not(target_os = "linux"))]
    pub fn descendants(&self, _: Option<u32>) -> Vec<u32> {
        Vec::new()
    }

    /// Returns whether a process has the variable. Those of other users cannot be read.
    #[cfg(target_os = "linux")]
    fn is_on(&self, id: u32) -> bool {
        let Ok(variables) = std::fs::read(format!("/proc/{id}/environ")) else { return false };
        let name = self.variable.as_bytes();
        let mut variables = variables.split(|byte| *byte == 0);
        variables.any(|variable| variable.strip_prefix(name).is_some_and(|rest| rest.starts_with(b"=")))
    }
}

/// Returns the parent of a process, unless the process has ended.
#[cfg(target_os = "linux")]
fn parent(id: u32) -> Option<u32> {
    let stat = std::fs::read(format!("/proc/{id}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // The name of the program is in parentheses and may contain some itself.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(parent)
}
