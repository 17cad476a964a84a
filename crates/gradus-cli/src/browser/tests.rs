//! Tests from keys to text on the screen, and tests of the file access.

use std::path::PathBuf;

use gradus::run::database::{Record, RolloutTable};
use gradus::run::{Metrics, MetricsRow};
use gradus::runs::{Entry, Figure, Key, Library, Snapshot, SnapshotKind, Status, metric_keys};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::draw::{Theme, draw};
use super::keeper::Keeper;
use super::state::{Browser, Details, Dialog, Page, Tab};
use super::update::Effect;

fn entry(name: &str, state: Status, started: u64) -> Entry {
    Entry {
        name: name.into(),
        path: PathBuf::from("runs").join(name),
        state,
        replaced_run: None,
        reason: (state == Status::Failed).then(|| "no room".to_owned()),
        problems: Vec::new(),
        method: Some("grpo".into()),
        model: Some("runs/sft/model".into()),
        data: Some("prompts.jsonl".into()),
        step: 30,
        steps: Some(40),
        figure: Some(Figure {
            key: "eval_reward".into(),
            greater_is_better: true,
            last: 0.5,
            last_step: 40,
            best: 0.75,
            best_step: 20,
        }),
        started: Some(started),
        changed: Some(900),
        size_bytes: 5_000_000,
        tags: vec!["good".into()],
        note: Some("the odd one".into()),
    }
}

fn details(slope: f64) -> Details {
    let row = |step: usize| {
        let values: Metrics =
            [("loss", 2.0 - slope * step as f64), ("eval_reward", slope * step as f64)].into_iter().collect();
        MetricsRow { step, values }
    };
    let rows: Vec<MetricsRow> = (0..=30).map(row).collect();
    let snapshot = |kind, step, defect: Option<&str>| Snapshot {
        kind,
        step: Some(step),
        path: "runs/ppo/best".into(),
        value: Some(0.5),
        size_bytes: 1_000_000,
        defect: defect.map(str::to_owned),
    };
    let key = |path: &str, value: &str, is_set| Key { path: path.into(), value: value.into(), is_set };
    Details {
        keys: metric_keys(&rows),
        rows,
        settings: vec![key("model", "runs/sft/model", true), key("train.seed", "42", false)],
        snapshots: vec![
            snapshot(SnapshotKind::Checkpoint, 20, None),
            snapshot(SnapshotKind::Checkpoint, 30, Some("model.safetensors: missing")),
            snapshot(SnapshotKind::Best, 20, None),
        ],
        log: (1..=100).map(|line| format!("      {line}.0s  line {line}")).collect(),
        warnings: vec!["completions are getting longer".into()],
    }
}

fn browser() -> Browser {
    let mut browser = Browser { root: "runs".into(), now: 1000, ..Browser::default() };
    browser.set_entries(vec![
        entry("demo/grpo", Status::Finished, 1),
        entry("ppo", Status::Running, 3),
        entry("sft-that-failed", Status::Failed, 2),
    ]);
    browser.details.insert("ppo".into(), details(0.01));
    browser.details.insert("demo/grpo".into(), details(0.02));
    browser.details.insert("sft-that-failed".into(), Details::default());
    browser
}

fn page() -> Page {
    let record = |row: usize, completion: &str, reward: f64| Record {
        step: 20,
        prompt_index: row,
        prompt: "How was it?".into(),
        completion: completion.into(),
        reward: Some(reward),
        length: 3,
        stop_reason: "stop_id".into(),
        ..Record::default()
    };
    Page {
        table: RolloutTable::Eval,
        steps: vec![0, 10, 20],
        step: 20,
        records: vec![record(0, "Very good.", 1.5), record(1, "A second\nline \u{1b}[31m", -0.5)],
        ..Page::default()
    }
}

fn screen(browser: &Browser, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a test backend");
    let drawn = terminal.draw(|frame| {
        draw(frame, browser, Theme::new(true));
    });
    drawn.expect("it draws");
    let buffer = terminal.backend().buffer().clone();
    let line = |y: u16| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..height).map(line).collect::<Vec<_>>().join("\n")
}

#[track_caller]
fn shows(screen: &str, expected: &[&str]) {
    for expected in expected {
        assert!(screen.contains(expected), "`{expected}` is not in\n{screen}");
    }
}

fn press(browser: &mut Browser, keys: &str) -> Option<Effect> {
    keys.chars().fold(None, |_, letter| {
        let code = match letter {
            '\n' => KeyCode::Enter,
            '\u{1b}' => KeyCode::Esc,
            letter => KeyCode::Char(letter),
        };
        browser.press(KeyEvent::from(code))
    })
}

#[test]
fn a_small_screen_has_everything_that_matters() {
    let browser = browser();
    let text = screen(&browser, 80, 24);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0].trim_end(), " gradus runs · runs · 3 runs, 1 running");
    // The run started last comes first.
    assert_eq!(lines[1], "    run              figure │ ppo  ▶ running  #good  the odd one");
    assert_eq!(lines[2], " ▶  ppo              0.5000 │ grpo · from sft · 5.0 MB · 1 min ago · on prompts.");
    assert_eq!(
        &lines[3][..lines[3].find("  eval").expect("a figure")],
        " ✗  …t-that-failed   0.5000 │ step 30/40 ██████░░ 75 %"
    );
    shows(
        &text,
        &["curves samples config snapshots log warnings 1", "eval_reward  1 of 2 metrics", "━━ ppo  0 → 0.3000"],
    );
    assert_eq!(lines[23], " ↑↓ run  ←→ page  m metric  s smooth  space mark  c compare  ? help  q quit");
    assert!(text.chars().any(|letter| ('\u{2801}'..='\u{28ff}').contains(&letter)), "no curve:\n{text}");
    assert!(lines.iter().all(|line| line.chars().count() <= 80));
}

#[test]
fn ranges_beyond_the_largest_number_are_drawn() {
    for (losses, label) in [([-1.7e308, 0.0, 1.7e308], "-1.70e308"), ([1.75e308; 3], "1.80e308")] {
        let row = |(step, &loss): (usize, &f64)| MetricsRow { step, values: [("loss", loss)].into_iter().collect() };
        let rows: Vec<MetricsRow> = losses.iter().enumerate().map(row).collect();
        let mut browser = browser();
        browser.details.insert("ppo".into(), Details { keys: metric_keys(&rows), rows, ..Details::default() });
        let text = screen(&browser, 100, 30);
        shows(&text, &[label]);
        assert!(!text.contains("inf") && !text.contains("NaN"), "{text}");
        let dots = text.chars().filter(|letter| ('\u{2801}'..='\u{28ff}').contains(letter)).count();
        assert!(dots >= 15, "{dots} cells with dots:\n{text}");
    }
}

#[test]
fn a_large_screen_shows_more_of_each_run() {
    let mut browser = browser();
    press(&mut browser, "G ");
    let text = screen(&browser, 200, 60);
    shows(
        &text,
        &[
            "3 runs, 1 running, 1 marked",
            "    run                           method         step  figure │",
            "●✓  demo/grpo                     grpo          30/40  0.5000 │",
            " 1 curves  2 samples  3 config  4 snapshots  5 log  6 warnings 1",
            "eval_reward 0.5000, best 0.7500 at 20",
        ],
    );
    // No size causes a panic.
    for (width, height) in [(1, 1), (20, 5), (40, 10), (61, 3), (300, 100)] {
        for tab in Tab::ALL {
            screen(&Browser { tab: Some(tab), dialog: Some(Dialog::Help), ..self::browser() }, width, height);
            screen(&Browser { tab: Some(tab), page: page(), ..self::browser() }, width, height);
        }
    }
}

#[test]
fn runs_are_chosen_marked_and_filtered() {
    let mut browser = browser();
    assert_eq!(browser.selected.as_deref(), Some("ppo"));
    assert_eq!(press(&mut browser, "j"), None);
    assert_eq!(browser.selected.as_deref(), Some("sft-that-failed"));
    press(&mut browser, "jjjj");
    assert_eq!(browser.selected.as_deref(), Some("demo/grpo"), "the end holds");
    press(&mut browser, " k ");
    assert_eq!(browser.marked.iter().map(String::as_str).collect::<Vec<_>>(), ["demo/grpo", "sft-that-failed"]);
    assert_eq!(press(&mut browser, "c"), Some(Effect::Compare(vec!["demo/grpo".into(), "sft-that-failed".into()])));
    press(&mut browser, "/ppo\n");
    assert_eq!(browser.visible().len(), 1);
    assert_eq!(browser.selected.as_deref(), Some("ppo"));
    shows(&screen(&browser, 100, 20), &["only `ppo` (Esc shows all)"]);
    assert_eq!(press(&mut browser, "\u{1b}"), None);
    assert_eq!((browser.visible().len(), browser.marked.len()), (3, 2));
    assert_eq!(press(&mut browser, "\u{1b}"), None, "it never leaves the browser");
    assert!(browser.marked.is_empty());
    press(&mut browser, "S");
    assert_eq!(browser.visible()[0].name, "demo/grpo");
    assert_eq!(press(&mut browser, "q"), Some(Effect::Quit));
    let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    browser.dialog = Some(Dialog::Help);
    assert_eq!(browser.press(ctrl_c), Some(Effect::Quit), "also out of a dialog");
}

#[test]
fn marked_runs_are_drawn_over_each_other() {
    let mut browser = browser();
    press(&mut browser, "G g");
    shows(&screen(&browser, 120, 30), &["━━ ppo  0 → 0.3000", "━━ demo/grpo  0 → 0.6000"]);
    press(&mut browser, "m");
    shows(&screen(&browser, 120, 30), &["loss  2 of 2 metrics", "━━ ppo  2.000 → 1.700"]);
    press(&mut browser, "s");
    shows(&screen(&browser, 120, 30), &["as measured"]);
}

#[test]
fn samples_go_step_by_step() {
    let mut browser = browser();
    browser.page = page();
    press(&mut browser, "2");
    let text = screen(&browser, 120, 30);
    shows(
        &text,
        &["evaluation, step 20  3 of 3 steps · 1 of 2 · as sampled", "reward 1.500 · 3 tokens · stop_id", "Very good."],
    );
    shows(&text, &["A second", "line \u{fffd}[31m"]);
    press(&mut browser, "n");
    assert!(!screen(&browser, 120, 30).contains("Very good."));
    press(&mut browser, "[");
    assert_eq!(browser.view.step, Some(10));
    press(&mut browser, "oe");
    assert_eq!((browser.view.table, browser.view.step, browser.view.index), (Some(RolloutTable::Train), None, 0));
    shows(&screen(&browser, 120, 30), &["best first"]);
}

#[test]
fn pages_of_text_scroll() {
    let mut browser = browser();
    press(&mut browser, "3");
    shows(&screen(&browser, 80, 24), &["● model       runs/sft/model", "  train.seed  42"]);
    press(&mut browser, "4");
    shows(&screen(&browser, 80, 24), &["eval_reward", "not complete: model.safetensors: missing"]);
    press(&mut browser, "6");
    shows(&screen(&browser, 80, 24), &["! completions are getting longer"]);
    press(&mut browser, "5");
    shows(&screen(&browser, 80, 24), &["line 100"]);
    browser.scroll_max = 83;
    press(&mut browser, "K");
    let text = screen(&browser, 80, 24);
    assert!(text.contains("line 90") && !text.contains("line 91"), "back in time:\n{text}");
    press(&mut browser, "J");
    shows(&screen(&browser, 80, 24), &["line 100"]);
}

#[test]
fn actions_ask_before_they_act() {
    let mut browser = browser();
    assert_eq!(press(&mut browser, "r"), None);
    assert_eq!(browser.notice.as_ref().map(|notice| notice.text.as_str()), Some("ppo is running"));
    press(&mut browser, "jr");
    shows(&screen(&browser, 80, 24), &["resume sft-that-failed from its last checkpoint?", "y yes"]);
    let resume = Effect::Resume { name: "sft-that-failed".into(), max_steps: None };
    assert_eq!(press(&mut browser, "y"), Some(resume));
    assert_eq!(press(&mut browser, "dn"), None, "no is no");
    assert_eq!(press(&mut browser, "dy"), Some(Effect::Remove("sft-that-failed".into())));
    let rename = Effect::Rename { old: "sft-that-failed".into(), new: "sft-that-failed2".into() };
    assert_eq!(press(&mut browser, "R2\n"), Some(rename));
    assert_eq!(press(&mut browser, "R2\u{1b}"), None);

    let Some(Effect::Label { name, labels }) = press(&mut browser, "t odd\n") else { panic!("no labels") };
    assert_eq!((name.as_str(), labels.tags.join(" ")), ("sft-that-failed", "good odd".into()));
    assert_eq!(labels.note.as_deref(), Some("the odd one"));
    let long = "x".repeat(50);
    assert_eq!(press(&mut browser, &format!("t{long}\n")), None);
    assert!(browser.notice.as_ref().is_some_and(|notice| notice.is_error));

    press(&mut browser, "g");
    let Some(Effect::Export { snapshot, output }) = press(&mut browser, "x\n") else { panic!("no export") };
    assert_eq!((snapshot.name().as_str(), output), ("best", PathBuf::from("models/ppo-best")));
    let Some(Effect::Export { snapshot, .. }) = press(&mut browser, "4x\n") else { panic!("no export") };
    assert_eq!(snapshot.name(), "step 20", "the chosen one on its page");

    assert_eq!(press(&mut browser, "D"), None);
    let question_of = |browser: &Browser| match &browser.dialog {
        Some(Dialog::Confirm { question, .. }) => question.clone(),
        other => panic!("no question: {other:?}"),
    };
    assert_eq!(question_of(&browser), "remove step 20 of ppo with 1.0 MB?");
    assert_eq!(press(&mut browser, "y"), Some(Effect::RemoveCheckpoint { name: "ppo".into(), step: 20 }));
    assert_eq!(press(&mut browser, "nD"), None);
    let cost = "it is the newest: the run would resume from step 20";
    assert_eq!(question_of(&browser), format!("remove step 30 of ppo with 1.0 MB? {cost}"));
    assert_eq!(press(&mut browser, "xnD"), None);
    assert_eq!(browser.notice.as_ref().map(|notice| &*notice.text), Some("only checkpoints can be removed one by one"));
    browser.entries[0].step = 40;
    assert_eq!(press(&mut browser, "Gr"), None);
    let longer = Effect::Resume { name: "demo/grpo".into(), max_steps: Some(800) };
    assert_eq!(press(&mut browser, "0\n"), Some(longer), "twice as many are offered");
}

#[test]
fn help_has_every_key() {
    let mut browser = browser();
    press(&mut browser, "?");
    for (width, height) in [(80, 24), (200, 60)] {
        let text = screen(&browser, width, height);
        for (key, what) in super::draw::KEYS.iter().filter(|(key, _)| !key.is_empty()) {
            shows(&text, &[key, what]);
        }
    }
    press(&mut browser, "x");
    assert_eq!(browser.dialog, None);
}

#[test]
fn the_files_behind_it_are_read_when_they_change() {
    let directory = tempfile::tempdir().expect("a directory");
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
        std::fs::write(path, text).expect("a file");
    };
    let config = "# Written by gradus 0.1.0\nmodel: m\ndata: d\nmethod:\n  sft:\n    packing: false\ntrain:\n  \
                  best_metric: eval_loss\n";
    for name in ["a", "b"] {
        write(&format!("{name}/config.yml"), config);
        write(&format!("{name}/metrics.jsonl"), "{\"step\":1,\"loss\":2}\n");
        write(&format!("{name}/log.txt"), "      0.1s  warning: short rows\n");
    }
    let mut browser = Browser::default();
    let mut keeper = Keeper::new(Library::new(directory.path()));
    keeper.refresh(&mut browser);
    keeper.fill(&mut browser);
    assert_eq!(browser.entries.len(), 2);
    let of = |browser: &Browser| browser.details().map(|details| (details.rows.len(), details.warnings.clone()));
    assert_eq!(of(&browser), Some((1, vec!["short rows".into()])));
    write("a/metrics.jsonl", "{\"step\":1,\"loss\":2}\n{\"step\":2,\"loss\":1.5}\n");
    keeper.refresh(&mut browser);
    keeper.fill(&mut browser);
    assert_eq!((of(&browser).map(|found| found.0), browser.entries[0].step), (Some(2), 2));
    press(&mut browser, "2");
    keeper.fill(&mut browser);
    assert!(browser.page.problem.as_ref().is_some_and(|problem| problem.contains("no `rollouts.sqlite`")));

    let effect = press(&mut browser, "tgood\n").expect("labels");
    keeper.act(effect, &mut browser);
    assert_eq!(browser.entries[0].tags, ["good"]);
    keeper.act(Effect::Rename { old: "a".into(), new: "z".into() }, &mut browser);
    assert_eq!(browser.selected.as_deref(), Some("z"), "it stays in view");
    keeper.act(Effect::Rename { old: "z".into(), new: "b".into() }, &mut browser);
    assert!(browser.notice.as_ref().is_some_and(|notice| notice.is_error && notice.text.contains("already a `b`")));
    keeper.act(Effect::Compare(vec!["b".into(), "z".into()]), &mut browser);
    assert!(matches!(&browser.dialog, Some(Dialog::Text { lines, .. }) if lines.len() > 5));
    shows(&screen(&browser, 80, 24), &["b · z", "Different settings"]);
    keeper.act(Effect::Remove("b".into()), &mut browser);
    assert_eq!(browser.entries.len(), 1);
    assert!(!directory.path().join("b").exists());
}
