//! Fuzz tests: each parser of untrusted bytes reads files with random changes. Whatever they contain, it must return a
//! value or one error, in bounded time and memory, without a panic.
//!
//! Each reader has a process of its own, because its memory is measured: a test starts this program again for itself alone.
//!
//! The ordinary run uses ten thousand files per reader. `tools/fuzz/run` starts a long one: `GRADUS_FUZZ_CASES` sets
//! the number, and `GRADUS_FUZZ_SEED` the start. A file on which a reader fails is left in the directory that the
//! message names. Add it to `tests/fixtures/hostile/READER/`, whose files are tried first.

#![expect(clippy::print_stdout, reason = "the tally of a long run")]
#![allow(clippy::disallowed_methods, reason = "tests read the environment")]

#[path = "../support/counting.rs"]
mod counting;
mod mutate;
mod readers;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use mutate::Mutator;
use readers::Reader;

/// Maximum CPU time per file. A debug build takes about ten times as long as users' builds.
const LONGEST: Duration = Duration::from_secs(5);

/// Number of files per reader in an ordinary run.
const CASES: u64 = 10_000;

/// Maximum number of bytes in use while a reader reads files; the largest file has 128 KiB.
const MOST_MEMORY: usize = 1 << 28;

/// Variable that is set in the process of one reader.
const ALONE: &str = "GRADUS_FUZZ_ALONE";

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Outcomes of the files of one reader.
#[derive(Debug, Default)]
struct Tally {
    read: u64,
    refused: u64,
    longest: Duration,
}

/// Measures the CPU time of this thread, which excludes other work on the machine; falls back to wall time if the
/// system does not report it.
enum Clock {
    Processor(Duration),
    Wall(Instant),
}

impl Clock {
    fn start() -> Self {
        Self::processor().map_or_else(|| Self::Wall(Instant::now()), Self::Processor)
    }

    fn elapsed(&self) -> Duration {
        match self {
            Self::Processor(start) => Self::processor().unwrap_or(*start).saturating_sub(*start),
            Self::Wall(start) => start.elapsed(),
        }
    }

    fn processor() -> Option<Duration> {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
        text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
    }
}

/// Reads one file.
///
/// # Errors
/// A description of the failure.
fn try_reading(reader: &Reader, directory: &Path, bytes: &[u8], tally: &mut Tally) -> Result<(), String> {
    let clock = Clock::start();
    let read = catch_unwind(AssertUnwindSafe(|| (reader.read)(directory, bytes)));
    let took = clock.elapsed();
    tally.longest = tally.longest.max(took);
    match read {
        Err(_) => return Err("it panicked".into()),
        Ok(_) if took > LONGEST => return Err(format!("it took {took:?}")),
        // An error must have a message that is not empty and does not quote the whole file.
        Ok(Err(message)) if message.trim().is_empty() => return Err("it said nothing".into()),
        Ok(Err(message)) if message.len() > 20_000 => return Err(format!("its message has {} bytes", message.len())),
        Ok(Ok(())) => tally.read += 1,
        Ok(Err(_)) => tally.refused += 1,
    }
    Ok(())
}

/// Checks a reader in a process of its own.
#[track_caller]
fn check(name: &str) {
    if std::env::var_os(ALONE).is_some() {
        return check_here(name);
    }
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command.args([name, "--exact", "--nocapture", "--include-ignored"]).env(ALONE, "1").stdin(Stdio::null());
    // Ten thousand small files wait for a disk 90 % of the time; files in memory do not.
    if Path::new("/dev/shm").is_dir() {
        command.env("TMPDIR", "/dev/shm");
    }
    let output = command.output().expect("it starts again");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && stdout.contains("1 passed"), "{name}: {}\n{stdout}\n{stderr}", output.status);
    stdout.lines().filter(|line| line.starts_with(name)).for_each(|line| println!("{line}"));
}

/// Checks a reader in this process.
#[track_caller]
fn check_here(name: &str) {
    let reader = readers::all().into_iter().find(|reader| reader.name == name).expect("a reader of this name");
    let directory = tempfile::tempdir().expect("a temporary directory");
    for (path, bytes) in found(name) {
        let tried = try_reading(&reader, directory.path(), &bytes, &mut Tally::default());
        assert_eq!(tried, Ok(()), "{}", path.display());
    }
    let seeds = (reader.seeds)();
    for seed in &seeds {
        let read = (reader.read)(directory.path(), seed);
        assert!(read.is_ok(), "{name}: what is not changed can be read: {read:?}");
    }
    let mut mutator = Mutator::new(number("GRADUS_FUZZ_SEED").unwrap_or(1));
    let mut tally = Tally::default();
    for case in 0..number("GRADUS_FUZZ_CASES").unwrap_or(CASES) {
        let bytes = mutator.next(&seeds);
        if let Err(failure) = try_reading(&reader, directory.path(), &bytes, &mut tally) {
            let kept = std::env::temp_dir().join(format!("gradus-hostile-{name}-{case}"));
            std::fs::write(&kept, &bytes).expect("written");
            panic!("{name}, case {case}: {failure}; the file is {}", kept.display());
        }
    }
    let Tally { read, refused, longest } = tally;
    let peak = counting::peak();
    println!(
        "{name:18} {read:7} read, {refused:7} refused, the longest {longest:.0?}, {} MiB at the peak",
        peak.div_ceil(1 << 20)
    );
    assert!(peak < MOST_MEMORY, "{name}: {peak} bytes at the peak");
}

/// Returns the files of earlier findings, with their paths.
fn found(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/hostile").join(name);
    let Ok(entries) = std::fs::read_dir(&folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), std::fs::read(path).expect("readable"))).collect()
}

/// Defines a test for each reader; the test below finds missing ones.
macro_rules! readers {
    ($($name:ident),* $(,)?) => {
        $(#[test] fn $name() { check(stringify!($name)); })*

        #[test]
        fn every_reader_has_its_test() {
            let tested = [$(stringify!($name)),*];
            let all: Vec<&str> = readers::all().iter().map(|reader| reader.name).collect();
            assert_eq!(all, tested);
        }
    };
}

readers!(
    json_lines,
    json_array,
    csv,
    text,
    gzip,
    parquet,
    arrow,
    arrow_types,
    tokenizer,
    sentencepiece,
    tokenizer_config,
    chat_template,
    model_config,
    encoder_config,
    classifier_config,
    weights,
    torch_weights,
    shard_index,
    adapter_config,
    configuration,
    metrics,
    state,
    tensors,
    lexicon,
    rollouts,
);
