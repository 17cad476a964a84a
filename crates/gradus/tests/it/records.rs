//! Records of a run besides its metrics: completions and warnings, also if it was interrupted.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail where they stand")]

use std::fs;
use std::path::{Path, PathBuf};

use gradus::Error;
use gradus::config::{Plan, RunConfig};
use gradus::machine::Machine;
use gradus::run::database::{Query, RolloutTable};
use gradus::run::{Existing, RolloutDb, RunDir};
use gradus::trackers::{EnabledTrackers, Trackers};
use gradus::train::observer::{Event, Observer};

/// Stores the warnings, and stops the run after a number of logged steps.
#[derive(Default)]
struct Watcher {
    warnings: Vec<String>,
    stop_after: Option<usize>,
    steps: usize,
}

impl Observer for Watcher {
    fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Warning(text) if text.starts_with("step") => self.warnings.push((*text).to_owned()),
            Event::Step { .. } => self.steps += 1,
            _ => {}
        }
    }

    fn should_stop(&mut self) -> bool {
        self.stop_after == Some(self.steps)
    }
}

/// Directory for the rows and runs of one test.
struct TestDir {
    directory: tempfile::TempDir,
}

impl TestDir {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let rows: String = (0..20).map(|i| format!("{{\"prompt\": \"{i}: what is red?\"}}\n")).collect();
        fs::write(directory.path().join("prompts.jsonl"), rows).unwrap();
        Self { directory }
    }

    /// GRPO with a reward that no completion earns.
    fn plan(&self, name: &str, train: &str) -> Plan {
        Plan::check(&RunConfig::parse(&self.config(name, train)).unwrap(), &Machine::detect()).unwrap()
    }

    fn config(&self, name: &str, train: &str) -> String {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/trajectories/models/qwen3");
        format!(
            "model: {}\ndata: {}\noutput_dir: {}\n\
             method: {{grpo: {{group_size: 2, max_new_tokens: 5, kl_coefficient: 0.1}}}}\n\
             reward: {{mix: [{{weight: 1, reward: {{rule: {{substring: never to be found}}}}}}]}}\n\
             train: {{max_steps: 9, batch_size: 3, eval_steps: 3, eval_fraction: 0.2, save_steps: 4{train}}}\n",
            model.display(),
            self.directory.path().join("prompts.jsonl").display(),
            self.path(name).display(),
        )
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn run(&self, name: &str) -> RunDir {
        RunDir::open(self.path(name)).unwrap()
    }
}

#[test]
fn completions_and_warnings_of_a_run_are_in_its_database() {
    let dir = TestDir::new();
    let mut watcher = Watcher::default();
    gradus::train::run(&dir.plan("whole", ""), &mut watcher).unwrap();
    let run = dir.run("whole");
    let db = RolloutDb::open(&run).unwrap();

    let rollouts = db.query(&Query::default()).unwrap();
    assert_eq!(rollouts.len(), 9 * 3 * 2);
    for (i, record) in rollouts.iter().enumerate() {
        assert_eq!((record.step, record.rollout_index), (1 + i / 6, i % 2));
        assert!(record.prompt.contains(&format!("{}: what", record.prompt_index)), "{record:?}");
        assert_eq!(record.components, [("substring".to_owned(), Some(0.0))]);
        assert_eq!((record.reward, record.advantage), (Some(0.0), Some(0.0)));
        assert!((1..=5).contains(&record.length) && ["length", "stop_id"].contains(&record.stop_reason.as_str()));
    }
    // The policy equals the reference at first.
    assert!(rollouts[..6].iter().all(|record| record.kl.unwrap().abs() < 1e-4));
    // 20 prompts, a fifth of them held out: steps of 3 prompts pass over the other 16 in 5⅓ steps.
    let epochs: Vec<usize> = rollouts.iter().step_by(6).map(|record| record.epoch).collect();
    assert_eq!(epochs, [0, 0, 0, 0, 0, 0, 1, 1, 1]);

    assert_eq!(db.steps(RolloutTable::Eval).unwrap(), [0, 3, 6, 9]);
    let evaluated = db.query(&Query { table: RolloutTable::Eval, ..Query::default() }).unwrap();
    assert!(evaluated.iter().all(|record| record.advantage.is_none() && record.kl.is_some()));
    assert_eq!(db.diff(RolloutTable::Eval, 0, 9).unwrap().len(), 4);

    // Five tokens are too few for an untrained model.
    let cut = rollouts[..30].iter().filter(|record| record.stop_reason == "length").count();
    assert!(cut > 15, "{cut} of 30");
    let flat = "100 % of the groups of the last 5 steps have the same reward throughout, and gave no training signal";
    let expected = [
        ("flat_groups", flat.to_owned()),
        (
            "cut_off",
            format!(
                "{:.0} % of the completions of the last 5 steps were cut off at `max_new_tokens`: they were rewarded for \
                 an unfinished text, and the policy does not learn to end it; give it more tokens",
                cut as f64 / 0.3
            ),
        ),
    ];
    let (log, warnings) = (fs::read_to_string(run.log()).unwrap(), db.warnings().unwrap());
    assert_eq!((warnings.len(), watcher.warnings.len()), (2, 2));
    for ((found, warning), (kind, message)) in warnings.iter().zip(watcher.warnings).zip(&expected) {
        assert_eq!((found.step, &*found.kind, &*found.message), (5, *kind, &**message));
        assert_eq!(warning, format!("step 5: {message}"));
        assert!(log.contains(&format!("warning: {warning}")));
    }
}

/// Returns the files for experiment trackers.
fn tracked(run: &RunDir) -> Vec<(PathBuf, Vec<u8>)> {
    let (mut found, mut folders) = (Vec::new(), vec![run.path().join("tensorboard"), run.path().join("wandb")]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { found.push((path.clone(), fs::read(path).unwrap())) }
        }
    }
    found.sort();
    found
}

#[test]
fn trackers_get_what_was_logged_also_after_interruptions() {
    let dir = TestDir::new();
    let plan = dir.plan("run", ", tensorboard: true, wandb: true");
    for stop_after in [2, 3, 99] {
        let mut watcher = Watcher { stop_after: Some(stop_after), ..Watcher::default() };
        let existing = if dir.path("run").exists() { Existing::Resume } else { Existing::Refuse };
        let ended = gradus::train::run(&plan.clone().on_existing(existing), &mut watcher);
        assert_eq!(matches!(ended, Err(Error::Interrupted)), stop_after < 99, "{ended:?}");
    }
    let run = dir.run("run");
    let found = tracked(&run);
    let is_table = |(path, _): &&(PathBuf, Vec<u8>)| path.to_string_lossy().ends_with(".table.json");
    let tables: Vec<_> = found.iter().filter(is_table).collect();
    let paths: Vec<&PathBuf> = found.iter().map(|found| &found.0).collect();
    assert_eq!(found.len() - tables.len(), 3, "an event file, a log and its configuration: {paths:?}");
    // The completions of each evaluation form a table that the log refers to.
    assert_eq!(tables.len(), 4, "those after 0, 3, 6 and 9 steps: {paths:?}");
    let log = found.iter().find(|(path, _)| path.extension().is_some_and(|end| end == "wandb")).unwrap();
    for (path, content) in tables {
        let table: serde_json::Value = serde_json::from_slice(content).unwrap();
        assert_eq!((table["columns"][1].as_str(), table["data"].as_array().unwrap().len()), (Some("prompt"), 4));
        let name = path.file_name().unwrap().as_encoded_bytes();
        assert!(log.1.windows(name.len()).any(|part| part == name), "{}", path.display());
    }
    // Rebuilding the files from the logged rows gives the same files, with each row once.
    Trackers::open(&run, EnabledTrackers { tensorboard: true, wandb: true }).unwrap().finish().unwrap();
    assert!(tracked(&run) == found);
    let steps: Vec<usize> = gradus::run::read_metrics(&run.metrics()).unwrap().iter().map(|row| row.step).collect();
    assert_eq!(steps, (0..=9).collect::<Vec<_>>(), "the evaluation before training, and every step once");
}

#[cfg(unix)]
#[test]
fn parts_of_the_reward_are_recorded_token_by_token() {
    let dir = TestDir::new();
    // A program that judges the completion as a whole, and its first character if it has one.
    let script = r#"while read -r line; do case "$line" in
        *'"completion":""'*) echo '{"whole": 0.5}';;
        *) echo '{"whole": 0.5, "start": [[0, 1, 2]]}';;
    esac; done"#;
    let program = dir.directory.path().join("judge.sh");
    fs::write(&program, script).unwrap();
    let config = dir.config("run", "").replace(
        "{weight: 1, reward: {rule: {substring: never to be found}}}",
        &format!("{{weight: -2, reward: {{command: [sh, {}]}}}}", program.display()),
    );
    let plan = Plan::check(&RunConfig::parse(&config).unwrap(), &Machine::detect()).unwrap();
    gradus::train::run(&plan, &mut Watcher::default()).unwrap();
    let run = dir.run("run");
    let rollouts = RolloutDb::open(&run).unwrap().query(&Query::default()).unwrap();
    let mut spread = 0;
    for record in &rollouts {
        let of = |name: &str| record.components.iter().find(|(of, _)| of == name).and_then(|(_, value)| *value);
        let start = (!record.completion.is_empty()).then_some(2.0);
        assert_eq!((of("command/whole"), of("command/start")), (Some(0.5), start));
        assert_eq!(record.reward, Some(-2.0 * (0.5 + start.unwrap_or(0.0))), "{record:?}");
        for (name, segments) in &record.segments {
            assert_eq!((name.as_str(), segments.len(), segments[0].value), ("command/start", 1, 2.0));
            let characters = &segments[0].characters;
            assert!(characters.start == 0 && characters.end <= record.completion.chars().count(), "{record:?}");
            spread += 1;
        }
    }
    assert!(spread > rollouts.len() / 2, "{spread} of {}", rollouts.len());
    let rows = gradus::run::read_metrics(&run.metrics()).unwrap();
    for key in [
        "rewards/mix/mean",
        "rewards/command/whole/mean",
        "rewards/command/start/std",
        "eval_rewards/command/start/mean",
    ] {
        assert!(rows.iter().any(|row| row.values.get(key).is_some()), "{key}");
    }
}

#[test]
fn advantages_are_recorded_token_by_token_as_they_enter_the_loss() {
    let dir = TestDir::new();
    let grpo = "grpo: {group_size: 2, max_new_tokens: 5, kl_coefficient: 0.1}";
    let rollouts = |name: &str, method: &str| {
        let config = dir.config(name, "").replace(grpo, method).replace("never to be found", "e");
        assert!(config.contains(method), "{config}");
        let plan = Plan::check(&RunConfig::parse(&config).unwrap(), &Machine::detect()).unwrap();
        gradus::train::run(&plan, &mut Watcher::default()).unwrap();
        let db = RolloutDb::open(&dir.run(name)).unwrap();
        let evaluations = db.query(&Query { table: RolloutTable::Eval, ..Query::default() }).unwrap();
        assert!(evaluations.iter().all(|record| record.advantages.is_empty()));
        db.query(&Query::default()).unwrap()
    };
    for record in rollouts("grpo", grpo) {
        assert!(record.advantages.is_empty() && record.advantage.is_some(), "one for all tokens: {record:?}");
    }
    let of_ppo = rollouts("ppo", "ppo: {max_new_tokens: 5}");
    for record in &of_ppo {
        assert_eq!(record.advantages.len(), record.length, "{record:?}");
        let mean = record.advantages.iter().map(|token| token.value).sum::<f64>() / record.length as f64;
        assert!((mean - record.advantage.unwrap()).abs() < 1e-5, "{mean}: {record:?}");
        let mut end = 0;
        for token in &record.advantages {
            assert_eq!(std::mem::replace(&mut end, token.characters.end), token.characters.start, "{record:?}");
        }
        assert_eq!(end, record.completion.chars().count(), "{record:?}");
    }
    // Whitened over the tokens of a step, as in TRL's default; equal rewards leave too little to whiten.
    let varies = |step: &usize| {
        let rewards: Vec<Option<f64>> =
            of_ppo.iter().filter(|record| record.step == *step).map(|record| record.reward).collect();
        rewards.iter().any(|reward| *reward != rewards[0])
    };
    let steps: Vec<usize> = (1..=9).filter(varies).collect();
    assert!(!steps.is_empty(), "{of_ppo:?}");
    for step in steps {
        let of_step = of_ppo.iter().filter(|record| record.step == step).flat_map(|record| &record.advantages);
        let values: Vec<f64> = of_step.map(|token| token.value).collect();
        let (count, sum) = (values.len() as f64, values.iter().sum::<f64>());
        let variance = values.iter().map(|value| (value - sum / count).powi(2)).sum::<f64>() / (count - 1.0);
        assert!((sum / count).abs() < 1e-5 && (variance - 1.0).abs() < 1e-2, "step {step}: {values:?}");
    }
}

#[test]
fn an_interrupted_run_records_what_a_whole_one_does() {
    let dir = TestDir::new();
    let mut whole = Watcher::default();
    gradus::train::run(&dir.plan("whole", ""), &mut whole).unwrap();
    let plan = dir.plan("parts", "");
    let mut warnings = Vec::new();
    for stop_after in [3, 3, 99] {
        let mut watcher = Watcher { stop_after: Some(stop_after), ..Watcher::default() };
        let existing = if dir.path("parts").exists() { Existing::Resume } else { Existing::Refuse };
        let ended = gradus::train::run(&plan.clone().on_existing(existing), &mut watcher);
        assert_eq!(matches!(ended, Err(Error::Interrupted)), stop_after < 99, "{ended:?}");
        warnings.extend(watcher.warnings);
    }
    assert_eq!(warnings, whole.warnings, "said once");
    let bytes = |name: &str| fs::read(dir.run(name).rollouts()).unwrap();
    assert!(bytes("whole") == bytes("parts"), "the same file");
}

#[test]
fn completions_need_not_be_kept() {
    let dir = TestDir::new();
    gradus::train::run(&dir.plan("run", ", save_rollouts: false"), &mut Watcher::default()).unwrap();
    let db = RolloutDb::open(&dir.run("run")).unwrap();
    assert_eq!(db.steps(RolloutTable::Train).unwrap(), [] as [usize; 0]);
    assert_eq!((db.steps(RolloutTable::Eval).unwrap().len(), db.warnings().unwrap().len()), (4, 2));
}
