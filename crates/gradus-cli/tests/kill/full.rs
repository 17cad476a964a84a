//! A full disk: the run reports it and ends, all earlier files are intact, and with free space it resumes to the same bits.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::COMMON;
use crate::compare::{differences, snapshot};
use crate::process::{Lab, binary, finish};

pub fn uninterrupted(lab: &Lab) -> std::collections::BTreeMap<String, Vec<u8>> {
    let whole = lab.directory("whole");
    lab.run_whole(&whole);
    snapshot(&whole.join("run"))
}

/// Checks that the run resumes where it stopped and reaches the same end.
pub fn goes_on(lab: &Lab, directory: &Path, expected: &std::collections::BTreeMap<String, Vec<u8>>) {
    finish(lab.start(directory, true), "with room again");
    let found = differences(expected, &snapshot(&directory.join("run")));
    assert!(found.is_empty(), "{}", found.join("\n"));
}

pub fn checkpoints(directory: &Path) -> usize {
    std::fs::read_dir(directory.join("run/checkpoints")).into_iter().flatten().flatten().count()
}

/// Every file over 50 KiB fails to be written, as all files would on a full disk. The tiny model alone has 100 KiB.
#[test]
fn a_file_that_cannot_grow() {
    let lab = Lab::new("sft", "gpt2", "texts.jsonl", COMMON);
    let expected = uninterrupted(&lab);
    let directory = lab.directory("limited");
    lab.caught(
        &directory,
        || directory.join("run/checkpoints/step-000002").exists(),
        |child| {
            child.kill().expect("a process can be killed");
            !child.wait().expect("it ends").success()
        },
    );

    let script = format!("ulimit -f 100; exec '{}' sft --output-dir run --resume", binary());
    let output = Command::new("sh").args(["-c", &script]).current_dir(&directory).stdin(Stdio::null()).output();
    let output = output.expect("a shell runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(
        stderr.contains("File too large") && stderr.contains("resume with `gradus sft --output-dir run --resume`"),
        "{stderr}"
    );
    assert!(stderr.contains("hint: free some disk space; everything written before is intact"), "{stderr}");
    goes_on(&lab, &directory, &expected);
}

/// A separate file system on a directory, unmounted in any case. Only root can create one.
#[cfg(target_os = "linux")]
pub struct Mounted<'a>(&'a Path);

#[cfg(target_os = "linux")]
impl<'a> Mounted<'a> {
    /// Mounts the file system. `None`, with a visible message, if that is not possible.
    pub fn new(directory: &'a Path, options: &str) -> Option<Self> {
        let mounted = Self(directory);
        if !mounted.mount(options) {
            crate::skip::skipped("mount", "no file system of its own can be mounted here (it takes root)");
            std::mem::forget(mounted);
            return None;
        }
        Some(mounted)
    }

    pub fn mount(&self, options: &str) -> bool {
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", options, "gradus-test"]).arg(self.0).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }
}

#[cfg(target_os = "linux")]
impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

/// A separate file system that is full after the first checkpoint.
#[cfg(target_os = "linux")]
#[test]
fn a_full_file_system() {
    let lab = Lab::new("reward", "qwen3", "pairs.jsonl", COMMON);
    let directory = lab.directory("small");
    let Some(mounted) = Mounted::new(&directory, "size=640k") else { return };
    let expected = uninterrupted(&lab);
    let output = lab.start(&directory, false).wait_with_output().expect("it ends");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("No space left on device"), "{stderr}");
    assert!(stderr.contains("hint: free some disk space; everything written before is intact"), "{stderr}");
    assert!(checkpoints(&directory) >= 1, "the disk was too small for the first checkpoint");
    assert!(mounted.mount("remount,size=64m"), "it can be made larger");
    goes_on(&lab, &directory, &expected);
    drop(mounted);
}
