use super::*;
use crate::run::{Existing, Metrics, MetricsLog};

const BOTH: EnabledTrackers = EnabledTrackers { tensorboard: true, wandb: true };

fn row(step: usize) -> MetricsRow {
    // 1000 tokens per step, at 500 tokens per second.
    let entries = [("loss", 1.0 / step as f64), ("num_tokens", 1000.0 * step as f64), ("tokens_per_s", 500.0)];
    MetricsRow { step, values: entries.into_iter().collect() }
}

fn start(directory: &Path) -> RunDir {
    let run = RunDir::create(directory.join("happy"), Existing::Refuse).unwrap();
    fs::write(run.config(), "model: gpt2 # set\nmethod:\n  grpo:\n    group_size: 2\n").unwrap();
    run
}

/// Logs the steps, passes them to the trackers, and stops without finishing.
fn log(run: &RunDir, steps: std::ops::RangeInclusive<usize>) -> Option<Trackers> {
    let mut metrics = MetricsLog::resume(&run.metrics(), steps.start() - 1).unwrap();
    let mut trackers = None;
    for step in steps {
        metrics.append(step, &row(step).values).unwrap();
        match &mut trackers {
            None => trackers = Some(Trackers::open(run, BOTH).unwrap()),
            Some(open) => open.append(&row(step)).unwrap(),
        }
    }
    trackers
}

/// Paths below the run, and contents, of all tracker files.
fn files(run: &RunDir) -> Vec<(String, Vec<u8>)> {
    let (mut found, mut folders) = (Vec::new(), vec![run.path().join("tensorboard"), run.path().join("wandb")]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(run.path()).unwrap().display().to_string();
                found.push((name, fs::read(path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

#[test]
fn a_run_that_went_on_ends_with_the_same_files() {
    let directory = tempfile::tempdir().unwrap();
    let run = start(directory.path());
    log(&run, 1..=6).unwrap().finish().unwrap();
    let expected = files(&run);
    // Killed after step 5, in the middle of a row. The last checkpoint is from step 3.
    log(&run, 1..=5).unwrap();
    for (name, _) in expected.iter().filter(|(name, _)| !name.ends_with(".yaml")) {
        let mut file = File::options().append(true).open(run.path().join(name)).unwrap();
        file.write_all(b"torn").unwrap();
    }
    log(&run, 4..=6).unwrap().finish().unwrap();
    let names = |files: &[(String, Vec<u8>)]| files.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&files(&run)), names(&expected), "the same start and id");
    assert!(files(&run) == expected, "the same bytes");
    assert_eq!(expected.len(), 3);
}

#[test]
fn weights_and_biases_are_told_project_entity_and_name() {
    let directory = tempfile::tempdir().unwrap();
    let run = start(directory.path());
    let plain = WandbRun::describe(&run, None, 0).unwrap();
    assert_eq!((plain.project.as_str(), plain.entity, plain.name.as_str()), ("gradus", None, "happy"));
    let train = "train:\n  wandb_project: study\n  wandb_entity: lab\n  wandb_name: first try\n";
    fs::write(run.config(), format!("model: gpt2\n{train}")).unwrap();
    let named = WandbRun::describe(&run, None, 0).unwrap();
    assert_eq!(
        (named.project.as_str(), named.entity.as_deref(), named.name.as_str()),
        ("study", Some("lab"), "first try")
    );
    let bytes = Wandb::new(named).begin();
    // `RunRecord`: entity is field 2, project field 3, display_name field 8.
    for field in [b"\x12\x03lab\x1a\x05study".as_slice(), b"\x42\x09first try"] {
        assert!(bytes.windows(field.len()).any(|part| part == field), "{field:?}");
    }
}

#[test]
fn nothing_is_written_that_nobody_wants() {
    let directory = tempfile::tempdir().unwrap();
    let run = start(directory.path());
    Trackers::open(&run, EnabledTrackers::default()).unwrap().finish().unwrap();
    assert!(!run.path().join("tensorboard").exists() && !run.path().join("wandb").exists());
}

#[test]
fn the_clock_is_in_the_rows() {
    let mut clock = TrainingClock::default();
    assert_eq!([1, 2, 5].map(|step| clock.after(&row(step))), [2.0, 4.0, 10.0]);
    let unknown = MetricsRow { step: 6, values: Metrics::from_iter([("num_tokens", 9e9), ("tokens_per_s", f64::NAN)]) };
    assert_eq!(clock.after(&unknown), 10.0);
}

#[test]
fn names_carry_the_start_and_the_id() {
    assert_eq!(tensorboard::started_at(&tensorboard::file_name(1_795_194_257)), Some(1_795_194_257));
    assert_eq!(tensorboard::started_at("events.out.tfevents.12.host.34.0"), None);
    // `date -u -d @1795194257 +%Y%m%d_%H%M%S`, and the leap day of 2024.
    for (stamp, seconds) in
        [("20261120_170417", 1_795_194_257), ("20240229_235959", 1_709_251_199), ("19700101_000000", 0)]
    {
        let name = format!("offline-run-{stamp}-abc12345");
        assert_eq!(wandb::named(&name), Some((seconds, "abc12345".to_owned())));
        assert_eq!(wandb::stamp(seconds), stamp);
    }
    assert_eq!(wandb::named("offline-run-20261320-abc"), None);
    assert_eq!(wandb::named("latest-run"), None);
}
