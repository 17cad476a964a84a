//! Every reader of foreign bytes, fed with files that were changed at random: whatever they hold, it answers, with a value or
//! one error, in bounded time and memory, and never panics.
//!
//! The ordinary run takes ten thousand files a reader. `tools/fuzz/run` makes a long one: `GRADUS_FUZZ_CASES` says how many,
//! and `GRADUS_FUZZ_SEED` begins elsewhere. A file that a reader fails at is left in the directory that the message
//! names; it belongs into `tests/fixtures/hostile/READER/`, which is tried first.

#![expect(clippy::print_stdout, reason = "the tally of a long run")]

mod mutate;
mod readers;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mutate::Mutator;
use readers::Reader;

/// No file may take more processor time. In a debug build everything takes ten times as long as it does for users.
const LONGEST: Duration = Duration::from_secs(5);

/// Files a reader in an ordinary run, busy machine or not.
const CASES: u64 = 10_000;

/// What the whole test program may hold at its peak, in kibibytes: the largest file has 128 KiB.
const MOST_MEMORY: u64 = 2 << 20;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// What became of the files of one reader.
#[derive(Debug, Default)]
struct Tally {
    read: u64,
    refused: u64,
    longest: Duration,
}

/// Measures the processor time of this thread, which other work on the machine does not use up; where the system does not
/// tell it, the time that passes.
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
/// How it fails.
fn try_reading(reader: &Reader, directory: &Path, bytes: &[u8], tally: &mut Tally) -> Result<(), String> {
    let clock = Clock::start();
    let read = catch_unwind(AssertUnwindSafe(|| (reader.read)(directory, bytes)));
    let took = clock.elapsed();
    tally.longest = tally.longest.max(took);
    match read {
        Err(_) => return Err("it panicked".into()),
        Ok(_) if took > LONGEST => return Err(format!("it took {took:?}")),
        // An error is one message that says something, and not the whole file.
        Ok(Err(message)) if message.trim().is_empty() => return Err("it said nothing".into()),
        Ok(Err(message)) if message.len() > 20_000 => return Err(format!("its message has {} bytes", message.len())),
        Ok(Ok(())) => tally.read += 1,
        Ok(Err(_)) => tally.refused += 1,
    }
    Ok(())
}

#[track_caller]
fn check(name: &str) {
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
    println!("{name:18} {read:7} read, {refused:7} refused, the longest {longest:.0?}");
    if let Some(peak) = peak_kibibytes() {
        assert!(peak < MOST_MEMORY, "{name}: {peak} KiB at the peak");
    }
}

/// What was found before, with its path.
fn found(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/hostile").join(name);
    let Ok(entries) = std::fs::read_dir(&folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), std::fs::read(path).expect("readable"))).collect()
}

fn peak_kibibytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// A test for each reader; one that is not here is missed below.
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
