//! Tests of a directory with runs in every state.

use std::fs;
use std::path::{Path, PathBuf};

use super::*;
use crate::error::Error;
use crate::run::checkpoint::{CheckpointParts, moments};
use crate::run::tensors::write_tensors;
use crate::run::{Checkpoint, Claim, Existing, NamedTensor, RunState, TrainerState};

const CONFIG: &str = "model: gpt2 # set\ndata: d.jsonl\noutput_dir: runs/a\nmethod:\n  ppo:\n    clip_range: 0.2\n\
                      train:\n  best_metric: eval_reward\n  max_steps: 40 # set\n";

#[test]
fn models_of_runs_are_named_by_their_run() {
    for (model, short) in [
        ("runs/sft/model", "sft"),
        ("/a/runs/dpo/best/", "dpo"),
        ("Qwen/Qwen3-0.6B", "Qwen3-0.6B"),
        ("C:\\runs\\sft\\model", "sft"),
        ("./model", "model"),
    ] {
        assert_eq!(short_model(model), short, "{model}");
    }
}

struct Runs {
    _directory: tempfile::TempDir,
    library: Library,
}

impl Runs {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let library = Library::new(directory.path().join("runs"));
        Self { _directory: directory, library }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.library.root().join(name)
    }

    /// A run with three logged steps.
    fn add(&self, name: &str) -> (RunDir, Claim) {
        let (run, mut claim) = RunDir::claim(self.path(name), Existing::Refuse).unwrap();
        claim.begin().unwrap();
        fs::write(run.config(), CONFIG).unwrap();
        let rows = "{\"step\":1,\"loss\":3.0,\"eval_reward\":0.25}\n{\"step\":2,\"loss\":2.0,\"eval_reward\":0.75}\n\
                    {\"step\":3,\"loss\":1.0,\"eval_reward\":0.5}\n";
        fs::write(run.metrics(), rows).unwrap();
        (run, claim)
    }

    fn finished(&self, name: &str) -> RunDir {
        let (run, claim) = self.add(name);
        fs::write(run.results(), "{\"steps\":3,\"best\":{\"step\":2,\"value\":0.75}}").unwrap();
        claim.end(None).unwrap();
        run
    }

    fn status(&self, name: &str) -> (Status, Option<String>) {
        let entry = self.library.entry(name).unwrap();
        (entry.state, entry.reason)
    }
}

fn model(path: &Path) {
    fs::create_dir_all(path).unwrap();
    fs::write(path.join("config.json"), "{}").unwrap();
    let tensor = NamedTensor::new("w".to_owned(), [2], vec![1.0, 2.0]);
    write_tensors(&path.join("model.safetensors"), &[tensor]).unwrap();
}

fn checkpoint(run: &RunDir, step: usize) {
    let run_state = RunState { step, best: Some((2, 0.75)), ..RunState::default() };
    let trainer_state = TrainerState { max_steps: 60, ..TrainerState::default() };
    let optimizer = moments("w", &[2], Some(&[0.1, 0.2]), &[0.1, 0.2]);
    let parts =
        CheckpointParts { run_state: &run_state, trainer_state: &trainer_state, seed: 1, optimizer: &optimizer };
    Checkpoint::write(run, &parts, 9, |at| {
        model(at);
        fs::write(at.join("tokenizer.json"), "{}").unwrap();
        Ok(())
    })
    .unwrap();
}

#[test]
fn every_state_is_told_from_the_files() {
    let runs = Runs::new();
    assert!(runs.library.entries().is_empty(), "the directory need not exist");
    runs.finished("done");
    let (_, claim) = runs.add("busy");
    assert_eq!(runs.status("busy"), (Status::Running, None));
    assert_eq!(runs.status("done"), (Status::Finished, None));

    let (_, stopped) = runs.add("stopped");
    stopped.end(Some(&Error::Interrupted)).unwrap();
    assert_eq!(runs.status("stopped"), (Status::Interrupted, Some("stopped by the user".into())));
    let (_, failed) = runs.add("failed");
    failed.end(Some(&Error::input("no room"))).unwrap();
    assert_eq!(runs.status("failed"), (Status::Failed, Some("no room".into())));

    // A kill leaves the state `running`, and a free lock.
    fs::create_dir_all(runs.path("killed")).unwrap();
    for name in ["config.yml", "metrics.jsonl", "state.json", ".lock"] {
        fs::copy(runs.path("busy").join(name), runs.path("killed").join(name)).unwrap();
    }
    assert_eq!(runs.status("killed"), (Status::Interrupted, Some("the process was killed".into())));
    fs::write(runs.path("killed").join("results.json"), "{}").unwrap();
    assert_eq!(runs.status("killed").0, Status::Finished, "killed after everything was written");
    drop(claim);

    // Runs of versions without `state.json`.
    for name in ["state.json", ".lock"] {
        fs::remove_file(runs.path("done").join(name)).unwrap();
    }
    assert_eq!(runs.status("done").0, Status::Finished);
    fs::remove_file(runs.path("done").join("results.json")).unwrap();
    assert_eq!(runs.status("done"), (Status::Interrupted, Some("it ended without results".into())));
}

#[test]
fn an_entry_has_what_a_list_shows() {
    let runs = Runs::new();
    let run = runs.finished("demo/ppo");
    Labels { tags: vec!["first".into()], note: Some("odd".into()) }.write(run.path()).unwrap();
    let entry = runs.library.entry("demo/ppo").unwrap();
    let figure = Figure {
        key: "eval_reward".into(),
        greater_is_better: true,
        last: 0.5,
        last_step: 3,
        best: 0.75,
        best_step: 2,
    };
    assert_eq!(entry.figure, Some(figure.clone()));
    let smaller = CONFIG.replace("train:\n", "train:\n  greater_is_better: false # set\n");
    fs::write(run.config(), smaller).unwrap();
    let expected = Figure { greater_is_better: false, best: 0.25, best_step: 1, ..figure };
    assert_eq!(runs.library.entry("demo/ppo").unwrap().figure, Some(expected));
    assert_eq!((entry.method.as_deref(), entry.model.as_deref()), (Some("ppo"), Some("gpt2")));
    assert_eq!((entry.step, entry.steps, entry.progress()), (3, Some(40), Some(3.0 / 40.0)));
    assert_eq!((entry.tags, entry.note), (vec!["first".to_owned()], Some("odd".to_owned())));
    assert!(entry.size_bytes > 100 && entry.changed >= entry.started && entry.problems.is_empty());
    checkpoint(&run, 3);
    assert_eq!(runs.library.entry("ppo").unwrap().steps, Some(60), "the checkpoint knows better");
}

#[test]
fn a_history_begins_with_the_start() {
    let runs = Runs::new();
    let run = runs.finished("a");
    fs::write(run.results(), "{\"before\":{\"eval_reward\":-1.0,\"note\":\"x\"}}").unwrap();
    let rows = history(run.path()).unwrap();
    let found: Vec<_> = rows.iter().map(|row| (row.step, row.values.get("eval_reward"))).collect();
    assert_eq!(found, [(0, Some(-1.0)), (1, Some(0.25)), (2, Some(0.75)), (3, Some(0.5))]);
    fs::remove_file(run.metrics()).unwrap();
    fs::remove_file(run.results()).unwrap();
    assert!(history(run.path()).unwrap().is_empty());
}

#[test]
fn without_evaluations_the_training_metric_decides() {
    let runs = Runs::new();
    let run = runs.finished("a");
    fs::write(run.metrics(), "{\"step\":1,\"objective/scores\":1,\"loss\":1}\n{\"step\":2,\"loss\":0.5}\n").unwrap();
    assert_eq!(runs.library.entry("a").unwrap().figure.unwrap().key, "objective/scores");
    fs::write(run.metrics(), "{\"step\":1,\"loss\":1}\n{\"step\":2,\"loss\":3}\n{\"step\":3,\"loss\":null}\n").unwrap();
    let figure = runs.library.entry("a").unwrap().figure.unwrap();
    assert_eq!((figure.key.as_str(), figure.last, figure.best, figure.best_step), ("loss", 3.0, 1.0, 1));
    assert_eq!(figure.selected(), None, "a training metric selects no model");
    let written = serde_json::to_value(&figure).unwrap();
    assert_eq!(written["last"], 3.0);
    assert!(written["best"].is_null() && written["best_step"].is_null(), "{written}");
    fs::write(run.metrics(), "{\"step\":1,\"eval_reward\":1,\"loss\":1}\n").unwrap();
    let figure = runs.library.entry("a").unwrap().figure.unwrap();
    assert_eq!(figure.selected(), Some(1.0));
    assert_eq!(serde_json::to_value(&figure).unwrap()["best"], 1.0);
}

#[test]
fn a_tie_with_the_start_does_not_beat_it() {
    let runs = Runs::new();
    let run = runs.finished("a");
    let figure = |text: &str| {
        fs::write(run.metrics(), text).unwrap();
        runs.library.entry("a").unwrap().figure.unwrap()
    };
    let tie =
        "{\"step\":0,\"eval_reward\":0.75}\n{\"step\":1,\"eval_reward\":0.5}\n{\"step\":2,\"eval_reward\":0.75}\n";
    let found = figure(tie);
    assert_eq!((found.best, found.best_step, found.last_step), (0.75, 0, 2));
    assert!(found.never_beat_start(), "a tie");
    assert!(
        !figure("{\"step\":0,\"eval_reward\":0.75}\n{\"step\":1,\"loss\":3}\n").never_beat_start(),
        "not evaluated yet"
    );
    assert!(!figure("{\"step\":0,\"eval_reward\":0.5}\n{\"step\":1,\"eval_reward\":0.75}\n").never_beat_start());
}

#[test]
fn a_broken_run_is_listed_with_the_reason_and_hides_no_other() {
    let runs = Runs::new();
    for name in ["a", "b", "c", "d", "e"] {
        runs.finished(name);
    }
    fs::write(runs.path("a").join("metrics.jsonl"), "{\"step\":1}\nnonsense\n{\"step\":2}\n").unwrap();
    fs::write(runs.path("b").join("state.json"), "{").unwrap();
    fs::write(runs.path("c").join("config.yml"), b"\xff\xfe").unwrap();
    fs::write(runs.path("d").join("tags.json"), "[]]").unwrap();
    let entries = runs.library.entries();
    let states: Vec<_> = entries.iter().map(|entry| (entry.name.as_str(), entry.state)).collect();
    let broken = Status::Broken;
    assert_eq!(states, [("a", broken), ("b", broken), ("c", broken), ("d", broken), ("e", Status::Finished)]);
    assert!(entries[0].problems[0].ends_with("metrics.jsonl:2: not a JSON object with a `step` (found `nonsense`)"));
    assert_eq!(entries[0].method.as_deref(), Some("ppo"), "what can be read is");
    for entry in &entries[1..4] {
        assert_eq!(entry.problems.len(), 1, "{:?}", entry.problems);
    }
}

#[test]
fn names_are_found_guessed_or_explained() {
    let runs = Runs::new();
    for name in ["sft-gpt2-1", "demo/ppo", "demo/grpo", "other/grpo"] {
        runs.finished(name);
    }
    let find = |name: &str| {
        runs.library.find(name).map(|found| found.0).map_err(|error| {
            let hint = error.hint().unwrap_or_default().to_owned();
            format!("{error}; {hint}").replace(&runs.library.root().display().to_string(), "RUNS")
        })
    };
    assert_eq!(
        runs.library.names().iter().map(|named| named.0.as_str()).collect::<Vec<_>>(),
        ["demo/grpo", "demo/ppo", "other/grpo", "sft-gpt2-1"]
    );
    assert_eq!(find("demo/ppo/").as_deref(), Ok("demo/ppo"));
    assert_eq!(find("ppo").as_deref(), Ok("demo/ppo"));
    let path = runs.path("demo/ppo").display().to_string();
    assert_eq!(find(&path).as_deref(), Ok("demo/ppo"), "a path to a listed run has its name");
    assert_eq!(find("grpo"), Err("`grpo` may be `demo/grpo` or `other/grpo`; write the whole name".into()));
    assert_eq!(find("sft-gtp2-1"), Err("there is no run `sft-gtp2-1` in `RUNS`; did you mean `sft-gpt2-1`?".into()));
    assert_eq!(find("popo"), Err("there is no run `popo` in `RUNS`; did you mean `ppo`?".into()));
    let elsewhere = "`gradus runs list` shows the names; `--runs-dir DIR` sets another directory";
    assert_eq!(find("nothing-like-it"), Err(format!("there is no run `nothing-like-it` in `RUNS`; {elsewhere}")));
}

#[test]
fn runs_are_found_eight_levels_deep_and_deeper_folders_are_named() {
    let runs = Runs::new();
    runs.finished("1/2/3/4/5/6/7/8");
    assert_eq!(runs.library.search().unsearched, None);
    let names = || runs.library.names().into_iter().map(|named| named.0).collect::<Vec<_>>();
    assert_eq!(names(), ["1/2/3/4/5/6/7/8"]);
    runs.finished("a/b/c/d/e/f/g/h/i");
    assert_eq!(names(), ["1/2/3/4/5/6/7/8"]);
    assert_eq!(runs.library.search().unsearched, Some(runs.path("a/b/c/d/e/f/g/h/i")));
    #[cfg(unix)]
    {
        // A link to a parent is not followed again and again.
        std::os::unix::fs::symlink(runs.library.root(), runs.path("1/2/loop")).unwrap();
        assert_eq!(names(), ["1/2/3/4/5/6/7/8"]);
    }
}

#[test]
fn snapshots_are_complete_or_say_what_is_missing() {
    let runs = Runs::new();
    let run = runs.finished("a");
    for step in [1, 2, 3] {
        checkpoint(&run, step);
    }
    model(&run.best());
    model(&run.model());
    let weights = run.checkpoint(3).join("model.safetensors");
    let bytes = fs::read(&weights).unwrap();
    fs::write(&weights, &bytes[..bytes.len() - 1]).unwrap();
    let found = snapshots(&run, Some("eval_reward")).unwrap();
    let shown: Vec<_> = found.iter().map(|found| (found.name(), found.value, found.defect.is_none())).collect();
    assert_eq!(
        shown,
        [
            ("step 1".to_owned(), Some(0.25), true),
            ("step 2".to_owned(), Some(0.75), true),
            ("step 3".to_owned(), Some(0.5), false),
            ("best".to_owned(), Some(0.75), true),
            ("model".to_owned(), Some(0.5), true)
        ]
    );

    let output = runs.path("out");
    assert_eq!(export(&found[1], &output, false).unwrap(), ["config.json", "model.safetensors", "tokenizer.json"]);
    assert_eq!(fs::read(output.join("model.safetensors")).unwrap(), bytes);
    let again = export(&found[0], &output, false).unwrap_err();
    assert_eq!(again.to_string(), format!("output directory `{}` exists and is not empty", output.display()));
    export(&found[0], &output, true).expect("a model is replaced where that is wanted");
    let torn = export(&found[2], &runs.path("torn"), false).unwrap_err().to_string();
    assert!(torn.contains("not complete") && !runs.path("torn").exists(), "{torn}");
}

#[test]
fn renaming_keeps_everything_and_touches_no_running_run() {
    let runs = Runs::new();
    runs.finished("a");
    runs.finished("b");
    let message = |old: &str, new: &str| runs.library.rename(old, new).unwrap_err().to_string();
    for name in ["", "../x", "/tmp/x", "x/./../y", ".hidden"] {
        assert!(message("a", name).starts_with(&format!("`{name}` cannot be the name of a run")), "{name}");
    }
    assert!(message("a", "b").starts_with("there is already a `b` in "));
    assert!(message("a", "b/inner").ends_with("it would be inside another run"));
    assert_eq!(runs.library.rename("a", "good/a-2").unwrap(), runs.path("good/a-2"));
    assert_eq!(runs.library.entry("good/a-2").unwrap().step, 3);
    let (_, claim) = runs.add("busy");
    assert_eq!(message("busy", "c"), "`busy` is running and cannot be renamed");
    assert_eq!(runs.library.remove("busy").unwrap_err().to_string(), "`busy` is running and cannot be removed");
    drop(claim);
    runs.library.remove("busy").unwrap();
    assert!(!runs.path("busy").exists());
}

#[test]
#[cfg(unix)]
fn a_link_to_a_run_is_not_removed_or_renamed_as_if_it_were_the_run() {
    let runs = Runs::new();
    let run = runs.finished("z");
    fs::write(run.config(), format!("{}0.1.0\n{CONFIG}", crate::run::WRITTEN_BY)).unwrap();
    let link = runs.path("link");
    std::os::unix::fs::symlink(run.path(), &link).unwrap();
    let end = |what| format!("is not {what}: it is a link to `{}`", run.path().canonicalize().unwrap().display());
    // With `/` at the end, a path means the target of a link.
    for name in [link.display().to_string(), format!("{}/", link.display())] {
        let refused =
            [("removed", runs.library.remove(&name)), ("renamed", runs.library.rename(&name, "deep/er").map(drop))];
        for (what, refused) in refused {
            let error = refused.unwrap_err();
            assert!(error.to_string().ends_with(&end(what)), "{error}");
            assert!(error.hint().is_some());
        }
    }
    assert!(link.is_symlink() && run.config().is_file());
    runs.library.remove("z").unwrap();
    assert!(!run.path().exists());
}

#[test]
fn users_of_a_run_are_known() {
    let runs = Runs::new();
    runs.finished("sft");
    let sft = runs.path("sft");
    for (name, reward) in [("uses", format!("{{ model: \"{}/model\" }}", sft.display())), ("not", "null".into())] {
        let run = runs.finished(name);
        fs::write(run.config(), format!("{CONFIG}reward: {reward}\n")).unwrap();
    }
    let near = runs.finished("near");
    fs::write(near.config(), format!("model: {}-2/model\n", sft.display())).unwrap();
    assert_eq!(runs.library.users_of(&sft), ["uses"]);
}

#[test]
fn tags_are_single_words() {
    let mut labels = Labels::default();
    for tag in ["good", "good", "best-so-far"] {
        labels.add(tag).unwrap();
    }
    for tag in ["", "two words", "a,b", &"x".repeat(41)] {
        assert!(labels.add(tag).is_err(), "{tag}");
    }
    assert!(labels.remove("good") && !labels.remove("good"));
    assert_eq!(labels.tags, ["best-so-far"]);
}
