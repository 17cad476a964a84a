//! Resources that a machine may withdraw before or during a run: write permission, memory, the correct time.

use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::COMMON;
#[cfg(target_os = "linux")]
use crate::full::checkpoints;
use crate::full::{goes_on, uninterrupted};
use crate::process::{Lab, binary};

/// Runs the binary in `directory` under the limits that `shell` sets first.
fn below(shell: &str, arguments: &str, directory: &Path) -> Output {
    let script = format!("{shell}; exec '{}' {arguments}", binary());
    let mut command = Command::new("sh");
    command.args(["-c", &script]).current_dir(directory).env("NO_COLOR", "1").stdin(Stdio::null());
    command.output().expect("a shell runs")
}

/// A file system that becomes read-only at some moment.
#[cfg(target_os = "linux")]
#[test]
fn a_file_system_that_becomes_read_only() {
    let lab = Lab::new("sft", "gpt2", "texts.jsonl", COMMON).durable();
    let expected = uninterrupted(&lab);
    let directory = lab.directory("frozen");
    let Some(disk) = Disk::new(&directory) else { return };
    lab.caught(
        &directory,
        || checkpoints(&directory) > 0,
        |child| {
            let id = child.id().to_string();
            let send = |signal: &str| {
                Command::new("kill").args([signal, &id]).status().expect("`kill` runs");
            };
            send("-STOP");
            let is_in_time = !directory.join("run/model").exists();
            if is_in_time {
                disk.fail();
            }
            send("-CONT");
            if !is_in_time {
                return false;
            }
            let code = child.wait().expect("it ends").code();
            let mut stderr = String::new();
            child.stderr.take().expect("it is piped").read_to_string(&mut stderr).expect("text");
            assert_eq!(code, Some(1), "{stderr}");
            assert!(stderr.contains("Read-only file system"), "{stderr}");
            true
        },
    );
    disk.repair();
    goes_on(&lab, &directory, &expected);
}

/// A disk image with an ext4 file system that becomes read-only after an error. It is unmounted in any case.
#[cfg(target_os = "linux")]
struct Disk<'a> {
    directory: &'a Path,
    image: std::path::PathBuf,
}

#[cfg(target_os = "linux")]
impl<'a> Disk<'a> {
    /// Creates the disk. `None`, with a visible message, if that is not possible.
    fn new(directory: &'a Path) -> Option<Self> {
        let image = directory.with_extension("ext4");
        std::fs::File::create(&image).and_then(|file| file.set_len(64 << 20)).expect("a file of zeros");
        let disk = Self { directory, image };
        let formatted = Self::runs(Command::new("mkfs.ext4").arg("-q").arg(&disk.image));
        let made = formatted && disk.mount() && disk.trigger().is_some_and(|file| file.exists());
        if !made {
            crate::skip::skipped(
                "ext4",
                "no disk of its own can be mounted here (it takes root, loop devices and ext4)",
            );
        }
        made.then_some(disk)
    }

    fn runs(command: &mut Command) -> bool {
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    }

    fn mount(&self) -> bool {
        let mut command = Command::new("mount");
        Self::runs(command.args(["-o", "loop,errors=remount-ro"]).arg(&self.image).arg(self.directory))
    }

    /// Returns the path of the kernel's file that simulates a disk error.
    fn trigger(&self) -> Option<std::path::PathBuf> {
        let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
        let at = self.directory.to_str()?;
        let line = mounts.lines().find(|line| line.split(' ').nth(1) == Some(at))?;
        let device = line.split(' ').next()?.strip_prefix("/dev/")?;
        Some(Path::new("/sys/fs/ext4").join(device).join("trigger_fs_error"))
    }

    fn fail(&self) {
        std::fs::write(self.trigger().expect("it is mounted"), "1").expect("the kernel simulates an error");
    }

    fn repair(&self) {
        assert!(Self::runs(Command::new("umount").arg(self.directory)), "nobody uses it any more");
        // Exit code 1: errors were corrected.
        let checked = Command::new("e2fsck").arg("-fy").arg(&self.image).output().expect("it comes with ext4");
        assert!(checked.status.code().is_some_and(|code| code <= 1), "{checked:?}");
        assert!(self.mount(), "it can be mounted again");
    }
}

#[cfg(target_os = "linux")]
impl Drop for Disk<'_> {
    fn drop(&mut self) {
        Self::runs(Command::new("umount").arg("-l").arg(self.directory));
    }
}

/// Under increasing memory limits, the run dies at different places. Each time, it can be resumed.
#[cfg(target_os = "linux")]
#[test]
fn memory_that_does_not_suffice() {
    if let Some(device) = crate::process::device() {
        // Drivers of GPUs reserve more addresses than all of these limits.
        return crate::skip::skipped("processor", &format!("limits of memory on `{device}`"));
    }
    let lab = Lab::new("sft", "gpt2", "texts.jsonl", COMMON);
    let expected = uninterrupted(&lab);
    let directory = lab.directory("small");
    let mut died = 0;
    for megabytes in (40..400).step_by(10) {
        let limit = format!("ulimit -c 0; ulimit -v {}", megabytes * 1024);
        let is_begun = directory.join("run/config.yml").exists();
        let rest = if is_begun { "--resume".to_owned() } else { lab.arguments().join(" ") };
        match below(&limit, &format!("sft --output-dir run --quiet {rest}"), &directory).status.success() {
            true => break,
            false => died += 1,
        }
    }
    assert!(died > 0, "40 MB are too few");
    goes_on(&lab, &directory, &expected);
    // The limit counts as the machine's memory. A run that cannot fit is rejected before any allocation.
    let report = below("ulimit -v 300000", "doctor --json", &directory);
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).expect("doctor says JSON");
    assert_eq!(report["memory_bytes"], 300_000 * 1024, "{report}");
}

/// A run that began in the future because of a wrong clock, and ended before it began.
#[test]
fn a_clock_that_was_set_back() {
    let lab = Lab::new("sft", "gpt2", "texts.jsonl", COMMON);
    let expected = uninterrupted(&lab);
    let directory = lab.directory("late");
    lab.run_whole(&directory);
    let state = directory.join("run/state.json");
    let text = std::fs::read_to_string(&state).expect("a state");
    for (started, ended) in [("99999999999", "5"), ("9223372036854775807", "0"), ("0", "18446744073709551615")] {
        let with = |text: &str, key: &str, value: &str| -> String {
            let of_key = format!("\"{key}\": ");
            let lines = text.lines().map(|line| match line.trim_start().starts_with(&of_key) {
                true => format!("  {of_key}{value},\n"),
                false => format!("{line}\n"),
            });
            lines.collect()
        };
        std::fs::write(&state, with(&with(&text, "started", started), "ended", ended)).expect("written");
        for command in ["runs list --runs-dir .", "runs show run --runs-dir .", "runs list --runs-dir . --json"] {
            let output = below("touch -d 2100-01-01 run/metrics.jsonl", command, &directory);
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{command}: {stderr}");
            assert!(String::from_utf8_lossy(&output.stdout).contains("finished"), "{command}");
        }
    }
    std::fs::remove_dir_all(directory.join("run/checkpoints/step-000009")).expect("the last checkpoint");
    goes_on(&lab, &directory, &expected);
}
