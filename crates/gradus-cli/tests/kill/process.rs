//! Starts runs and kills them at random moments.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::skip::skipped;

/// Allows more ranks than cores, and root, in tests.
const LAUNCHING: [(&str, &str); 4] = [
    ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
    ("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"),
    ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
];

/// Returns the path of the tested program. Cargo sets the variable, and so does a script that runs these tests elsewhere.
pub fn binary() -> String {
    std::env::var("CARGO_BIN_EXE_gradus").unwrap_or_else(|_| env!("CARGO_BIN_EXE_gradus").to_owned())
}

/// The device of all runs, unless it is the default.
pub fn device() -> Option<String> {
    std::env::var("GRADUS_TEST_DEVICE").ok()
}

/// Whether runs can compute in bf16. If not, reports that `what` is skipped.
pub fn computes_in_bf16(what: &str) -> bool {
    let Some(device) = device() else { return true };
    let report = Command::new(binary()).args(["doctor", "--json"]).output().expect("the binary runs");
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).expect("doctor says JSON");
    let lists = |key: &str| report[key].as_array().is_some_and(|names| names.iter().any(|name| *name == device));
    let lacks = lists("devices") && !lists("bf16_devices");
    if lacks {
        skipped("bf16", &format!("{what} on `{device}`"));
    }
    !lacks
}

/// A directory with the data and arguments of all runs of one case.
pub struct Lab {
    folder: tempfile::TempDir,
    method: String,
    arguments: Vec<String>,
    /// Command before the program: a launcher.
    launcher: Vec<String>,
    /// Whether the program waits until its files are on the disk.
    is_durable: bool,
}

/// Returns one row per sentence about cups and kettles.
fn rows(row: impl Fn(&str, &str, &str) -> String) -> String {
    let things = ["tea", "cup", "pot", "lid", "milk", "jug"];
    let words = [("good", "bad"), ("warm", "cold"), ("full", "empty"), ("new", "old")];
    let all = things.iter().flat_map(|thing| words.iter().map(move |(yes, no)| (thing, yes, no)));
    all.map(|(thing, yes, no)| row(thing, yes, no) + "\n").collect()
}

impl Lab {
    /// Writes the data. `model` is a fixture of the library.
    pub fn new(method: &str, model: &str, data: &str, more: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory can be made");
        let write =
            |name: &str, text: String| std::fs::write(folder.path().join(name), text).expect("it can be written");
        write("texts.jsonl", rows(|thing, yes, _| format!("{{\"text\": \"The {thing} is {yes}.\"}}")));
        write(
            "pairs.jsonl",
            rows(|thing, yes, no| {
                format!("{{\"prompt\": \"The {thing} is\", \"chosen\": \" {yes}.\", \"rejected\": \" {no}.\"}}")
            }),
        );
        write("prompts.jsonl", rows(|thing, yes, _| format!("{{\"prompt\": \"The {yes} {thing} is\"}}")));
        // Tests start in the directory of their package, also on another machine than the one that built them.
        let models = Path::new("../gradus/tests/fixtures/parity/trajectories/models");
        let model = std::fs::canonicalize(models.join(model)).expect("a fixture of the repository");
        let data = folder.path().join(data);
        let mut arguments = vec!["--model".to_owned(), model.display().to_string()];
        arguments.extend(["--data".to_owned(), data.display().to_string()]);
        // If a flag is given twice, the last value counts.
        let mut flags: Vec<&[&str]> = more.chunks(2).collect();
        let last = |flag: &str| more.chunks(2).rfind(|pair| pair[0] == flag).map(|pair| pair[1]);
        flags.retain(|pair| last(pair[0]) == Some(pair[1]));
        arguments.extend(flags.concat().iter().map(|&text| text.to_owned()));
        if let Some(device) = device() {
            arguments.extend(["--device".to_owned(), device]);
        }
        Self { folder, method: method.to_owned(), arguments, launcher: Vec::new(), is_durable: false }
    }

    /// Starts runs that wait until their files are on the disk, as release builds do.
    pub fn durable(self) -> Self {
        Self { is_durable: true, ..self }
    }

    /// Starts runs with this launcher from now on.
    pub fn launched_by(&mut self, launcher: &[&str]) {
        self.launcher = launcher.iter().map(|&word| word.to_owned()).collect();
    }

    /// Arguments of a run, without its directory.
    pub fn arguments(&self) -> &[String] {
        &self.arguments
    }

    /// Creates an empty directory. Runs in it are called `run`, so that their files contain the same paths.
    pub fn directory(&self, name: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::create_dir(&path).expect("it can be made");
        path
    }

    /// Starts a run in `directory`, or resumes the one there with no other arguments than its directory.
    pub fn start(&self, directory: &Path, resume: bool) -> Child {
        let binary = binary();
        let words: Vec<&str> = self.launcher.iter().map(String::as_str).chain([binary.as_str()]).collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).envs(LAUNCHING);
        if self.is_durable {
            command.env("GRADUS_DURABLE", "1");
        }
        command.arg(&self.method).args(["--output-dir", "run", "--quiet"]);
        if resume {
            command.arg("--resume");
        } else {
            command.args(&self.arguments);
        }
        command.current_dir(directory).env_remove("GRADUS_LOG").env("NO_COLOR", "1").stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the binary runs")
    }

    /// Starts a run, waits for `is_there`, and calls `act` on the process. Starts again if the run ends before `is_there` or if `act`
    /// returns false because it came too late.
    pub fn caught(&self, directory: &Path, is_there: impl Fn() -> bool, mut act: impl FnMut(&mut Child) -> bool) {
        for _ in 0..50 {
            let mut child = self.start(directory, false);
            wait(&mut child, |_| is_there());
            let ended = child.try_wait().expect("a process can be asked").is_some();
            if !ended && act(&mut child) {
                return;
            }
            finish(child, "the run that was over too soon");
            std::fs::remove_dir_all(directory.join("run")).expect("it can be removed");
        }
        panic!("50 runs were over before they could be caught");
    }

    /// Runs from start to end and returns the elapsed time.
    pub fn run_whole(&self, directory: &Path) -> Duration {
        let start = Instant::now();
        finish(self.start(directory, false), "the uninterrupted run");
        start.elapsed()
    }

    /// Runs to the end and kills the run one to `most` times on the way. Returns a description of the kills.
    pub fn run_killed(&self, directory: &Path, killer: &mut Killer, most: usize) -> String {
        let mut story = Vec::new();
        let kills = 1 + killer.below(most as u64) as usize;
        while story.len() < kills {
            // Before a run has a configuration, it cannot be resumed.
            let resume = directory.join("run/config.yml").exists();
            let child = self.start(directory, resume);
            match killer.kill(child, &directory.join("run")) {
                Some(moment) => {
                    story.push(format!("stopped {moment}{}", if resume { " after a resumption" } else { "" }))
                }
                None if story.is_empty() => {
                    // The run ended before it could be killed. Start again.
                    std::fs::remove_dir_all(directory.join("run")).expect("it can be removed");
                }
                None => break,
            }
        }
        let resume = directory.join("run/config.yml").exists();
        finish(self.start(directory, resume), &story.join(", "));
        story.join(", ")
    }
}

/// Waits for a process, which must succeed.
pub fn finish(child: Child, story: &str) {
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{story}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Kills processes at random moments. The moments depend only on the name, as far as the machine allows.
pub struct Killer {
    state: u64,
    /// Duration of an uninterrupted run.
    time: Duration,
    /// Number of kills.
    pub kills: usize,
    /// Number of kills while a file was being written.
    pub while_writing: usize,
    /// Number of interruptions after which a checkpoint was written.
    pub interruptions: usize,
}

impl Killer {
    pub fn new(name: &str, time: Duration) -> Self {
        let state = name.bytes().fold(42, |state: u64, byte| state.wrapping_mul(31).wrapping_add(u64::from(byte)));
        Self { state, time, kills: 0, while_writing: 0, interruptions: 0 }
    }

    /// Returns a random number below `bound` (SplitMix64).
    pub fn below(&mut self, bound: u64) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound.max(1)
    }

    /// Kills a process and returns a description of the moment. `None` if the process had already ended.
    fn kill(&mut self, mut child: Child, run: &Path) -> Option<String> {
        let moment = match self.below(3) {
            0 => {
                let pause = Duration::from_micros(self.below(self.time.as_micros() as u64));
                wait(&mut child, |start| start.elapsed() >= pause);
                format!("after {} ms", pause.as_millis())
            }
            1 => {
                let (metrics, more) = (run.join("metrics.jsonl"), self.below(4) as usize);
                let lines =
                    || std::fs::read(&metrics).map_or(0, |text| text.iter().filter(|&&byte| byte == b'\n').count());
                let target = lines() + more;
                wait(&mut child, |_| lines() >= target);
                format!("at line {target} of metrics.jsonl")
            }
            _ => {
                // The n-th time that a temporary file of a checkpoint or model appears.
                let (mut left, mut seen) = (1 + self.below(5), false);
                wait(&mut child, |_| {
                    let is = temporary(run) || temporary(&run.join("checkpoints"));
                    left -= u64::from(is && !seen);
                    seen = is;
                    left == 0
                });
                "while writing".to_owned()
            }
        };
        let writing = temporary(run) || temporary(&run.join("checkpoints"));
        // One in four is Ctrl-C: the run writes a checkpoint at an unusual step, and ends with exit code 130.
        let is_polite = self.below(4) == 0;
        if is_polite {
            let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).stderr(Stdio::null()).status();
            sent.expect("`kill` runs");
        } else {
            // Sends SIGKILL.
            child.kill().expect("a process can be killed");
        }
        let output = child.wait_with_output().expect("it ends");
        match output.status.code() {
            Some(0) => None,
            Some(130) if is_polite => {
                self.interruptions += 1;
                Some(format!("interrupted {moment}"))
            }
            Some(code) => panic!("it ended with {code} by itself: {}", String::from_utf8_lossy(&output.stderr)),
            None => {
                self.kills += 1;
                self.while_writing += usize::from(writing);
                Some(moment)
            }
        }
    }
}

/// Waits until `is_time` returns true or the process has ended.
pub fn wait(child: &mut Child, mut is_time: impl FnMut(Instant) -> bool) {
    let start = Instant::now();
    while child.try_wait().expect("a process can be asked").is_none() && !is_time(start) {
        assert!(start.elapsed() < Duration::from_secs(1200), "a run of nine steps hangs");
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Returns whether a file is being written in `directory`.
fn temporary(directory: &Path) -> bool {
    let mut entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.any(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.starts_with('.') && (name.contains(".tmp-") || name.contains(".old-")) && !name.starts_with(".probe")
    })
}
