use std::fs;
use std::path::{Path, PathBuf};

use gradus_environments::Reply;

use super::writer::prepare;
use super::*;
use crate::run::{Existing, KeptRecords, RunDir};

struct Fixture {
    _directory: tempfile::TempDir,
    run: RunDir,
}

fn fixture() -> Fixture {
    let directory = tempfile::tempdir().unwrap();
    let run = RunDir::create(directory.path().join("happy"), Existing::Refuse).unwrap();
    Fixture { _directory: directory, run }
}

/// Two prompts with two completions each; the reward of completion `i` of step `s` is `s + i/4`.
fn step(step: usize) -> Vec<Record> {
    let record = |i: usize| Record {
        step,
        epoch: step / 10,
        prompt_index: (step + i / 2) % 5,
        rollout_index: i % 2,
        prompt: format!("prompt {}", (step + i / 2) % 5),
        completion: format!("answer {i} of step {step}, 100 %_\\ done"),
        reward: (i != 3).then_some(step as f64 + i as f64 / 4.0),
        components: vec![("length".into(), Some(i as f64)), ("the \"best\".part".into(), None)],
        advantage: Some(1.0 - i as f64),
        kl: (i != 0).then_some(f64::from(0.1f32) * i as f64),
        length: 10 - i,
        stop_reason: if i == 2 { "length" } else { "stop_id" }.into(),
        segments: if i == 1 { vec![("length".into(), segments())] } else { Vec::new() },
        advantages: if i == 2 { segments() } else { Vec::new() },
        episode: (i == 3).then(episode),
        weight_version: (i == 0).then(|| format!("policy-v{step}")),
    };
    (0..4).map(record).collect()
}

/// Two turns; the second one ended the episode.
fn episode() -> EpisodeRecord {
    let turn = |text: &str, is_done: bool| {
        let replies = vec![Reply::Tool { name: "calculator".into(), id: None, content: "7".into() }];
        let observation = Observation { replies, reward: Some(0.5), is_done, ..Observation::default() };
        TurnRecord { text: text.into(), observation, is_read: !is_done }
    };
    let turns = vec![turn("3 + 4?", false), turn("It is 7.", true)];
    EpisodeRecord {
        name: "step 1, prompt 1, completion 4".into(),
        opening: Some("Calculate.".into()),
        turns,
        end: "done".into(),
        failure: None,
        reward: Some(1.0),
    }
}

/// A component on two tokens; the second token has no text.
fn segments() -> Vec<Segment> {
    let of = |(characters, value)| Segment { characters, value };
    [(0..6, -0.25), (6..6, 1.25)].map(of).to_vec()
}

fn evaluation(at: usize) -> Vec<Record> {
    let of =
        |record| Record { prompt_index: 7, advantage: None, advantages: Vec::new(), weight_version: None, ..record };
    step(at).into_iter().map(of).collect()
}

fn warning(step: usize) -> WarningRecord {
    WarningRecord { step, kind: "kl_bounds".into(), message: format!("at {step}") }
}

/// Writes the steps `from..=to` with an evaluation after every second one and a warning after every third.
fn write_steps(writer: &mut RolloutWriter, from: usize, to: usize) {
    for at in from..=to {
        writer.append(RolloutTable::Train, step(at)).unwrap();
        if at % 2 == 0 {
            writer.append(RolloutTable::Eval, evaluation(at)).unwrap();
        }
        writer.warn(if at % 3 == 0 { vec![warning(at)] } else { Vec::new() }).unwrap();
    }
}

/// A finished database of `steps` steps without interruption.
fn whole(run: &RunDir, steps: usize) -> Vec<u8> {
    let mut writer = RolloutWriter::open(&run.rollouts(), 0).unwrap();
    writer.append(RolloutTable::Eval, evaluation(0)).unwrap();
    write_steps(&mut writer, 1, steps);
    writer.finish().unwrap();
    fs::read(run.rollouts()).unwrap()
}

/// Files next to `rollouts.sqlite` that SQLite or a rewrite left.
fn sidecar(run: &RunDir) -> Vec<PathBuf> {
    let entries = fs::read_dir(run.path()).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| *path != run.rollouts() && path.to_string_lossy().contains("rollouts.sqlite")).collect()
}

#[test]
fn rows_come_back_as_they_were_written() {
    let Fixture { run, _directory } = fixture();
    whole(&run, 3);
    assert_eq!(sidecar(&run), [] as [PathBuf; 0], "a finished run has one file");
    let db = RolloutDb::open(&run).unwrap();
    let shown = |record: Record| Record { kl: record.kl.map(crate::run::metrics::readable), ..record };
    let expected: Vec<Record> = (1..=3).flat_map(step).map(shown).collect();
    assert_eq!(db.query(&Query::default()).unwrap(), expected);
    let expected: Vec<Record> = [0, 2].into_iter().flat_map(evaluation).map(shown).collect();
    assert_eq!(db.query(&Query { table: RolloutTable::Eval, ..Query::default() }).unwrap(), expected);
    assert_eq!(db.warnings().unwrap(), [warning(3)]);
    assert_eq!(
        (db.steps(RolloutTable::Train).unwrap(), db.steps(RolloutTable::Eval).unwrap()),
        (vec![1, 2, 3], vec![0, 2])
    );
    assert_eq!(db.components(RolloutTable::Train).unwrap(), ["length", "the \"best\".part"]);
}

#[test]
fn others_read_it_with_plain_sql() {
    let Fixture { run, _directory } = fixture();
    whole(&run, 3);
    let connection = Connection::open(run.rollouts()).unwrap();
    let one = |text: &str| connection.query_row(text, [], |row| row.get::<_, f64>(0)).unwrap();
    assert_eq!(one("SELECT count(*) FROM rollouts WHERE json_extract(components, '$.length') >= 2"), 6.0);
    // Steps 1 to 3 have rewards s, s + ¼, s + ½ and none: Σ = 3 · 6 + 3 · ¾.
    assert_eq!(one("SELECT sum(reward) FROM rollouts"), 20.25);
    assert_eq!(one("SELECT kl FROM rollouts WHERE id = 2"), 0.1, "an f32's digits");
    assert_eq!(one("SELECT json_extract(segments, '$.length[0][2]') FROM rollouts WHERE id = 2"), -0.25);
    assert_eq!(one("SELECT count(segments) FROM rollouts"), 3.0, "one a step, NULL elsewhere");
    assert_eq!(one("SELECT json_extract(advantages, '$[1][2]') FROM rollouts WHERE id = 3"), 1.25);
    assert_eq!(one("SELECT count(advantages) FROM rollouts"), 3.0, "one a step, NULL elsewhere");
    let mode: String = connection.query_row("PRAGMA journal_mode", [], |row| row.get(0)).unwrap();
    assert_eq!(mode, "delete");
}

#[test]
fn questions_filter_sort_and_page() {
    let Fixture { run, _directory } = fixture();
    whole(&run, 12);
    let db = RolloutDb::open(&run).unwrap();
    let check = |query: Query, expected: &[(usize, usize)]| {
        let found = db.query(&query).unwrap();
        // The length identifies each completion of a step.
        let found: Vec<_> = found.iter().map(|record| (record.step, 10 - record.length)).collect();
        assert_eq!(found, expected, "{query:?}");
        assert_eq!(db.count(&Query { limit: Some(1), offset: 1, ..query }).unwrap(), expected.len());
    };
    let query = Query::default;
    let in_step_3 = || Query { first_step: Some(3), last_step: Some(3), ..query() };
    check(in_step_3(), &[(3, 0), (3, 1), (3, 2), (3, 3)]);
    check(Query { text: Some("ANSWER 1 of step 1,".into()), ..query() }, &[(1, 1)]);
    check(
        Query { text: Some("2, 100 %_\\ d".into()), last_step: Some(2), ..query() },
        &[(2, 0), (2, 1), (2, 2), (2, 3)],
    );
    check(Query { text: Some("answer%step".into()), ..query() }, &[]);
    check(Query { text: Some("prompt 4".into()), last_step: Some(4), ..query() }, &[(3, 2), (3, 3), (4, 0), (4, 1)]);
    check(Query { prompt_index: Some(1), last_step: Some(3), ..query() }, &[(1, 0), (1, 1)]);
    check(Query { min_reward: Some(12.25), ..query() }, &[(12, 1), (12, 2)]);
    check(Query { max_reward: Some(1.25), ..query() }, &[(1, 0), (1, 1)]);
    check(Query { stop_reason: Some("length".into()), last_step: Some(2), ..query() }, &[(1, 2), (2, 2)]);
    let bound = |name: &str, min, max| vec![ComponentBound { name: name.into(), min, max }];
    check(Query { components: bound("length", Some(1.0), Some(2.0)), ..in_step_3() }, &[(3, 1), (3, 2)]);
    check(Query { components: bound("the \"best\".part", None, Some(9.0)), ..query() }, &[]);
    check(Query { sort: Sort::Reward, descending: true, ..in_step_3() }, &[(3, 2), (3, 1), (3, 0), (3, 3)]);
    check(Query { sort: Sort::Reward, ..in_step_3() }, &[(3, 0), (3, 1), (3, 2), (3, 3)]);
    check(Query { sort: Sort::Kl, ..in_step_3() }, &[(3, 1), (3, 2), (3, 3), (3, 0)]);
    check(Query { sort: Sort::Advantage, ..in_step_3() }, &[(3, 3), (3, 2), (3, 1), (3, 0)]);
    check(Query { sort: Sort::Length, ..in_step_3() }, &[(3, 3), (3, 2), (3, 1), (3, 0)]);
    let page = Query { sort: Sort::Step, descending: true, limit: Some(2), offset: 3, ..query() };
    let page = db.query(&page).unwrap();
    assert_eq!(page.iter().map(|record| (record.step, record.length)).collect::<Vec<_>>(), [(12, 7), (11, 10)]);
    // Evaluations have no advantage; sorting by it must still work.
    let query = Query { table: RolloutTable::Eval, sort: Sort::Advantage, limit: Some(1), ..query() };
    assert_eq!(db.query(&query).unwrap()[0].step, 0);
}

#[test]
fn searches_fold_letters_of_all_alphabets() {
    let Fixture { run, _directory } = fixture();
    let texts = ["Ärger ÜBER Öl", "ΟΔΟΣ", "Привет, МИР", "plain"];
    let of =
        |(i, text): (usize, &&str)| Record { step: 1, prompt_index: i, prompt: (*text).into(), ..Record::default() };
    let mut writer = RolloutWriter::open(&run.rollouts(), 0).unwrap();
    writer.append(RolloutTable::Train, texts.iter().enumerate().map(of).collect()).unwrap();
    let later = |(i, text): (usize, &&str)| Record {
        step: 2,
        completion: (*text).into(),
        prompt: String::new(),
        ..of((i, text))
    };
    writer.append(RolloutTable::Train, texts.iter().enumerate().map(later).collect()).unwrap();
    writer.finish().unwrap();
    // Another program wrote bytes that are no text.
    let bytes = "INSERT INTO rollouts SELECT 99, 3, epoch, 5, 0, x'ff', x'ff', reward, components, advantage, kl, length, stop_reason, \
                 segments, advantages, episode, weight_version FROM rollouts WHERE id = 1";
    Connection::open(run.rollouts()).unwrap().execute_batch(bytes).unwrap();
    let db = RolloutDb::open(&run).unwrap();
    for (text, expected) in [
        ("ärger über", Some(0)),
        ("öL", Some(0)),
        ("οδος", Some(1)),
        ("ΟΔΟσ", Some(1)),
        ("привет, мир", Some(2)),
        ("ä%", None),
    ] {
        let query = Query { text: Some(text.into()), ..Query::default() };
        let found: Vec<_> = db.query(&query).unwrap().iter().map(|record| (record.step, record.prompt_index)).collect();
        let expected_rows: Vec<_> = expected.iter().flat_map(|&index| [(1, index), (2, index)]).collect();
        assert_eq!(found, expected_rows, "{text}");
        assert_eq!(db.count(&query).unwrap(), expected_rows.len(), "{text}");
        let mut pairs = db.diff(RolloutTable::Train, 1, 2).unwrap();
        query.select_pairs(&mut pairs);
        let found: Vec<_> = pairs.iter().map(|(before, _)| before.prompt_index).collect();
        assert_eq!(found, Vec::from_iter(expected), "{text}");
    }
}

#[test]
fn pairs_are_filtered_and_sorted_by_any_key() {
    // Rewards change by 2, −1, nothing known and 1; lengths by 0, 3, 5 and −4.
    let pair = |(i, (reward, length)): (usize, (Option<f64>, usize))| {
        let before = Record { prompt_index: i, reward: Some(1.0), length: 10, ..Record::default() };
        let components = vec![("tone".to_owned(), Some(i as f64)), ("odd".to_owned(), None)];
        let stop_reason = if i == 1 { "length" } else { "stop_id" }.into();
        let after =
            Record { completion: format!("Text {i}"), reward, length, components, stop_reason, ..before.clone() };
        (before, after)
    };
    let pairs = [(Some(3.0), 10), (Some(0.0), 13), (None, 15), (Some(2.0), 6)];
    let check = |query: Query, expected: &[usize]| {
        let mut pairs: Vec<_> = pairs.into_iter().enumerate().map(pair).collect();
        query.select_pairs(&mut pairs);
        let found: Vec<_> = pairs.iter().map(|(before, _)| before.prompt_index).collect();
        assert_eq!(found, expected, "{query:?}");
    };
    let query = Query::default;
    check(query(), &[0, 1, 2, 3]);
    check(Query { descending: true, ..query() }, &[0, 1, 2, 3]);
    check(Query { sort: Sort::Reward, ..query() }, &[1, 3, 0, 2]);
    check(Query { sort: Sort::Reward, descending: true, ..query() }, &[0, 3, 1, 2]);
    check(Query { sort: Sort::Length, ..query() }, &[3, 0, 1, 2]);
    check(Query { sort: Sort::Length, descending: true, ..query() }, &[2, 1, 0, 3]);
    check(Query { sort: Sort::Kl, descending: true, ..query() }, &[0, 1, 2, 3]);
    check(Query { text: Some("TEXT 2".into()), ..query() }, &[2]);
    check(Query { prompt_index: Some(3), ..query() }, &[3]);
    check(Query { stop_reason: Some("length".into()), ..query() }, &[1]);
    check(Query { max_reward: Some(2.0), ..query() }, &[1, 3]);
    let bound = |name: &str, min| vec![ComponentBound { name: name.into(), min, max: Some(2.0) }];
    check(Query { components: bound("tone", Some(1.0)), ..query() }, &[1, 2]);
    check(Query { components: bound("odd", None), ..query() }, &[]);
}

#[test]
fn two_steps_stand_side_by_side() {
    let Fixture { run, _directory } = fixture();
    whole(&run, 6);
    let db = RolloutDb::open(&run).unwrap();
    // Step 1 has prompts 1 and 2, step 6 the same, step 2 has 2 and 3.
    let pairs = |before, after| {
        let pairs = db.diff(RolloutTable::Train, before, after).unwrap();
        assert!(pairs.iter().all(|(a, b)| a.prompt == b.prompt && (a.step, b.step) == (before, after)));
        pairs.iter().map(|(a, b)| (a.prompt_index, a.rollout_index, b.rollout_index)).collect::<Vec<_>>()
    };
    assert_eq!(pairs(1, 6), [(1, 0, 0), (1, 1, 1), (2, 0, 0), (2, 1, 1)]);
    assert_eq!(pairs(1, 2), [(2, 0, 0), (2, 1, 1)]);
    assert_eq!(db.diff(RolloutTable::Eval, 0, 6).unwrap().len(), 4, "a prompt may stand in a step twice");
    let error = db.diff(RolloutTable::Eval, 0, 5).unwrap_err();
    assert_eq!(error.to_string(), "`eval_rollouts` has no completions of step 5");
    assert_eq!(error.hint(), Some("steps with completions: 0, 2, 4, 6"));
}

#[test]
fn going_on_removes_later_rows_and_ends_with_the_same_bytes() {
    let (reference, Fixture { run, _directory }) = (fixture(), fixture());
    let expected = whole(&reference.run, 9);
    let mut writer = RolloutWriter::open(&run.rollouts(), 0).unwrap();
    writer.append(RolloutTable::Eval, evaluation(0)).unwrap();
    write_steps(&mut writer, 1, 7);
    drop(writer);
    let mut writer = RolloutWriter::open(&run.rollouts(), 4).unwrap();
    writer.flush().unwrap();
    assert_eq!(RolloutDb::open(&run).unwrap().steps(RolloutTable::Train).unwrap(), [1, 2, 3, 4]);
    write_steps(&mut writer, 5, 9);
    writer.finish().unwrap();
    assert!(fs::read(run.rollouts()).unwrap() == expected, "the same bytes");
    // And again, with nothing left to do.
    RolloutWriter::open(&run.rollouts(), 9).unwrap().finish().unwrap();
    assert!(fs::read(run.rollouts()).unwrap() == expected, "still the same bytes");
    // Without a checkpoint, the completions of step 0 are written again, too.
    RolloutWriter::open(&run.rollouts(), 0).unwrap().finish().unwrap();
    assert_eq!(RolloutDb::open(&run).unwrap().steps(RolloutTable::Eval).unwrap(), [] as [usize; 0]);
}

#[test]
fn a_repeated_evaluation_replaces_its_rows() {
    let Fixture { run, _directory } = fixture();
    let mut writer = RolloutWriter::open(&run.rollouts(), 0).unwrap();
    write_steps(&mut writer, 1, 3);
    writer.append(RolloutTable::Test, evaluation(0)).unwrap();
    writer.append(RolloutTable::Test, evaluation(3)).unwrap();
    drop(writer);
    RolloutWriter::open(&run.rollouts(), KeptRecords::new(3, true)).unwrap().finish().unwrap();
    let database = RolloutDb::open(&run).unwrap();
    assert_eq!(database.steps(RolloutTable::Train).unwrap(), [1, 2, 3]);
    assert_eq!(database.steps(RolloutTable::Test).unwrap(), [0]);
}

/// Copies the files as a kill would leave them while the writer is running.
fn as_killed(run: &RunDir, to: &Path) -> RunDir {
    let copy = RunDir::create(to, Existing::Refuse).unwrap();
    for name in ["rollouts.sqlite", "rollouts.sqlite-wal", "rollouts.sqlite-journal"] {
        if run.path().join(name).is_file() {
            fs::copy(run.path().join(name), to.join(name)).unwrap();
        }
    }
    copy
}

#[test]
fn a_kill_loses_nothing_that_was_flushed() {
    let (reference, Fixture { run, _directory }) = (fixture(), fixture());
    let expected = whole(&reference.run, 30);
    let mut writer = RolloutWriter::open(&run.rollouts(), 0).unwrap();
    writer.append(RolloutTable::Eval, evaluation(0)).unwrap();
    for checkpoint in [5, 10, 15, 20] {
        write_steps(&mut writer, checkpoint - 4, checkpoint);
        writer.flush().unwrap();
        // Some of the later rows are on disk, others are not.
        write_steps(&mut writer, checkpoint + 1, checkpoint + 3);
        let copy = as_killed(&run, &run.path().join(format!("killed-{checkpoint}")));
        let mut again = RolloutWriter::open(&copy.rollouts(), checkpoint).unwrap();
        write_steps(&mut again, checkpoint + 1, 30);
        again.finish().unwrap();
        assert!(fs::read(copy.rollouts()).unwrap() == expected, "killed after {checkpoint}");
        drop(writer);
        writer = RolloutWriter::open(&run.rollouts(), checkpoint).unwrap();
    }
}

/// With a rollback journal, a kill leaves a part of the transaction in the file.
#[test]
fn the_first_reader_rolls_a_killed_commit_back() {
    let Fixture { run, _directory } = fixture();
    whole(&run, 3);
    let expected = RolloutDb::open(&run).unwrap().query(&Query::default()).unwrap();
    let connection = connect(&run.rollouts(), OpenFlags::SQLITE_OPEN_READ_WRITE).unwrap();
    // A cache of one page writes the pages of a large transaction before its commit.
    let work = "PRAGMA cache_size = 1; BEGIN; UPDATE rollouts SET prompt = hex(zeroblob(50000));";
    connection.execute_batch(work).unwrap();
    let copy = as_killed(&run, &run.path().join("killed"));
    drop(connection);
    let unread = connect(&copy.rollouts(), OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    let error = unread.pragma_query_value(None, "user_version", |_| Ok(())).unwrap_err();
    assert_eq!(error.sqlite_extended_error_code(), Some(rusqlite::ffi::SQLITE_READONLY_ROLLBACK), "{error}");
    assert_eq!(RolloutDb::open(&copy).unwrap().query(&Query::default()).unwrap(), expected);
    assert_eq!(sidecar(&copy), [] as [PathBuf; 0], "the journal is gone");
}

#[test]
fn a_slow_reader_does_not_hold_up_the_writer() {
    let Fixture { run, _directory } = fixture();
    let mut writer = RolloutWriter::open(&run.rollouts(), 0).unwrap();
    write_steps(&mut writer, 1, 2);
    writer.flush().unwrap();
    let reader = Connection::open_with_flags(run.rollouts(), OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    let mut statement = reader.prepare("SELECT step FROM rollouts").unwrap();
    let mut rows = statement.query([]).unwrap();
    rows.next().unwrap();
    write_steps(&mut writer, 3, 4);
    writer.flush().unwrap();
    writer.finish().unwrap();
    let mut seen = 1;
    while rows.next().unwrap().is_some() {
        seen += 1;
    }
    assert_eq!(seen, 8, "what was there when it began");
    assert_eq!(RolloutDb::open(&run).unwrap().steps(RolloutTable::Train).unwrap(), [1, 2, 3, 4]);
}

#[test]
fn a_full_disk_is_named_and_loses_nothing_before_it() {
    let Fixture { run, _directory } = fixture();
    let path = run.rollouts();
    let connection = connect(&path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE).unwrap();
    prepare(&path, &connection, 0.into(), false).unwrap();
    // A limit on pages acts like a full disk.
    connection.pragma_update_and_check(None, "max_page_count", 20, |_| Ok(())).unwrap();
    let mut writer = RolloutWriter::start(&path, connection).unwrap();
    write_steps(&mut writer, 1, 3);
    writer.flush().unwrap();
    let large = vec![Record { step: 4, prompt: "long ".repeat(100_000), ..Record::default() }];
    writer.append(RolloutTable::Train, large).unwrap();
    let error = writer.flush().unwrap_err();
    assert_eq!(error.to_string(), format!("{}: database or disk is full", path.display()));
    assert_eq!(error.hint(), Some("free some disk space; everything written before is intact"));
    let again = writer.append(RolloutTable::Train, step(5)).unwrap_err();
    assert_eq!(again.to_string(), format!("{}: its writer has failed before", path.display()));
    drop(writer);
    assert_eq!(RolloutDb::open(&run).unwrap().steps(RolloutTable::Train).unwrap(), [1, 2, 3]);
}

#[test]
fn files_that_are_no_rollout_database_are_refused() {
    let Fixture { run, _directory } = fixture();
    let refused = || {
        let (read, written) =
            (RolloutDb::open(&run).unwrap_err(), RolloutWriter::open(&run.rollouts(), 0).unwrap_err());
        assert_eq!(read.to_string(), written.to_string());
        read
    };
    let path = run.rollouts();
    let error = RolloutDb::open(&run).unwrap_err();
    assert_eq!(error.to_string(), "the run `happy` has no `rollouts.sqlite`");
    assert_eq!(error.hint(), Some("only online methods, such as ppo and grpo, sample completions"));

    fs::write(&path, "{\"step\": 1}\n".repeat(100)).unwrap();
    let expected = format!("{}: not a usable database: file is not a database", path.display());
    assert_eq!(refused().to_string(), expected);

    fs::remove_file(&path).unwrap();
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE notes (text TEXT)").unwrap();
    assert_eq!(refused().to_string(), format!("{}: not a rollout database of gradus", path.display()));

    fs::remove_file(&path).unwrap();
    whole(&run, 1);
    let newer = VERSION + 1;
    Connection::open(&path).unwrap().pragma_update(None, "user_version", newer).unwrap();
    let expected = format!(
        "{}: rollout database of version {newer}, but this gradus reads versions up to {VERSION}",
        path.display()
    );
    assert_eq!(refused().to_string(), expected);
}

/// Downgrades the tables to an earlier version.
fn as_version(path: &Path, version: i32) {
    let mut back = match version {
        5 => "",
        4 => "ALTER TABLE test_rollouts DROP COLUMN episode;",
        _ => "DROP TABLE test_rollouts;",
    }
    .to_owned();
    back += "ALTER TABLE rollouts DROP COLUMN weight_version;";
    if version < 5 {
        back += "ALTER TABLE rollouts DROP COLUMN episode; ALTER TABLE eval_rollouts DROP COLUMN episode;";
    }
    if version < 3 {
        back += "ALTER TABLE rollouts DROP COLUMN advantages;";
    }
    if version == 1 {
        back += "ALTER TABLE rollouts DROP COLUMN segments; ALTER TABLE eval_rollouts DROP COLUMN segments;";
    }
    Connection::open(path).unwrap().execute_batch(&format!("{back} PRAGMA user_version = {version};")).unwrap();
}

#[test]
fn databases_of_earlier_versions_are_read_and_gone_on_with() {
    for version in [1, 2, 3, 4, 5] {
        let Fixture { run, _directory } = fixture();
        whole(&run, 3);
        as_version(&run.rollouts(), version);
        let without = |record: Record| Record {
            kl: record.kl.map(crate::run::metrics::readable),
            segments: if version == 1 { Vec::new() } else { record.segments },
            advantages: if version < 3 { Vec::new() } else { record.advantages },
            episode: record.episode.filter(|_| version >= 5),
            weight_version: None,
            ..record
        };
        let old: Vec<Record> = (1..=3).flat_map(step).map(without).collect();
        let read = |table| RolloutDb::open(&run).unwrap().query(&Query { table, ..Query::default() }).unwrap();
        assert_eq!((read(RolloutTable::Train), read(RolloutTable::Test)), (old.clone(), Vec::new()), "read as it is");

        let mut writer = RolloutWriter::open(&run.rollouts(), 2).unwrap();
        write_steps(&mut writer, 3, 3);
        writer.finish().unwrap();
        let found = read(RolloutTable::Train);
        assert_eq!(found[..8], old[..8]);
        assert_eq!(found[8].weight_version.as_deref(), Some("policy-v3"), "{:?}", found[8]);
        assert_eq!(found[9].segments, [("length".to_owned(), segments())], "{:?}", found[9]);
        assert_eq!(found[10].advantages, segments(), "{:?}", found[10]);
        assert_eq!(found[11].episode, Some(episode()), "{:?}", found[11]);
        assert_eq!(read(RolloutTable::Eval).len(), 8);
    }
}

#[test]
fn an_evaluation_that_begins_again_stands_there_once() {
    let Fixture { run, _directory } = fixture();
    let mut writer = RolloutWriter::open(&run.rollouts(), 0).unwrap();
    for table in [RolloutTable::Eval, RolloutTable::Test, RolloutTable::Test] {
        writer.evaluation(table, 2, evaluation(2)).unwrap();
    }
    writer.evaluation(RolloutTable::Test, 0, evaluation(0)).unwrap();
    writer.finish().unwrap();
    let database = RolloutDb::open(&run).unwrap();
    let count = |table| database.count(&Query { table, ..Query::default() }).unwrap();
    let once = evaluation(2).len();
    assert_eq!([count(RolloutTable::Eval), count(RolloutTable::Test)], [once, 2 * once]);
    assert_eq!(database.steps(RolloutTable::Test).unwrap(), [0, 2]);
}

#[test]
fn where_machines_share_the_disk_a_rollback_journal_is_kept() {
    let Fixture { run, _directory } = fixture();
    let path = run.rollouts();
    let connection = connect(&path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE).unwrap();
    prepare(&path, &connection, 0.into(), true).unwrap();
    let mut writer = RolloutWriter::start(&path, connection).unwrap();
    writer.append(RolloutTable::Eval, evaluation(0)).unwrap();
    write_steps(&mut writer, 1, 3);
    writer.flush().unwrap();
    let sidecar = |end: &str| path.with_file_name(format!("rollouts.sqlite{end}")).exists();
    assert!(!sidecar("-wal") && !sidecar("-shm"), "no memory is shared");
    assert_eq!(
        RolloutDb::open(&run).unwrap().steps(RolloutTable::Train).unwrap(),
        [1, 2, 3],
        "it can be read meanwhile"
    );
    writer.finish().unwrap();
    let local = fixture();
    whole(&local.run, 3);
    assert!(std::fs::read(&path).unwrap() == std::fs::read(local.run.rollouts()).unwrap(), "the same bytes at the end");
}
