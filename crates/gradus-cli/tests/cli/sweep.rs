//! `gradus sweep`: many runs from one file. Finished runs are kept and compared over seeds.

use serde_json::Value;

use crate::harness::{CliTest, fixture_model, signal, wait_until};

fn sweep(keys: &str) -> CliTest {
    let file = format!(
        "model: {}\ndata: {{ task: {{ increasing_numbers: {{ prompt: the, n_samples: 8 }} }} }}\noutput_dir: out\n\
         method: {{ grpo: {{ max_new_tokens: 4, group_size: 2 }} }}\nreward: {{ rule: {{ length: {{ target: 3 }} }} }}\n\
         train: {{ max_steps: 1, batch_size: 2, max_eval_rows: 4 }}\n{keys}\n",
        fixture_model("qwen3")
    );
    CliTest::with("sweep.yml", &file)
}

/// Returns whether a run has logged more than the evaluation before its first step.
fn has_stepped(run: &std::path::Path) -> bool {
    std::fs::read_to_string(run.join("metrics.jsonl")).is_ok_and(|rows| rows.lines().count() >= 2)
}

fn shown(test: &CliTest, arguments: &[&str]) -> Value {
    let all = [&["sweep", "sweep.yml", "--json"], arguments].concat();
    serde_json::from_str(&test.succeeds(&all)).expect("JSON")
}

#[test]
fn every_point_is_run_with_every_seed_and_finished_runs_are_kept() {
    let test = sweep("sweep: { grid: { train.learning_rate: [1e-6, 1e-2] }, seeds: [1, 2], at_once: 2 }");
    let before = shown(&test, &["--show"]);
    assert_eq!((&before["best"], &before["points"][0]["runs"]), (&Value::Null, &2.into()));
    assert!(!test.path().join("out").exists(), "nothing runs only to be shown");
    let found = shown(&test, &[]);
    assert_eq!(found["metric"], "eval_reward");
    let points = found["points"].as_array().expect("points");
    assert!(points.len() == 2 && points.iter().all(|point| point["interval"].is_array()), "{found}");
    // The table agrees with the results of the runs.
    for point in points {
        let name = point["name"].as_str().expect("a name");
        for (i, seed) in [1, 2].iter().enumerate() {
            let results: Value =
                serde_json::from_str(&test.read(&format!("out/{name}/seed-{seed}/results.json"))).expect("JSON");
            assert_eq!((&results["after"]["eval_reward"], &results["seed"]), (&point["values"][i], &(*seed).into()));
        }
    }
    assert_eq!(found["best"], points[0]["name"]);
    assert!(points[0]["mean"].as_f64() >= points[1]["mean"].as_f64());
    assert_eq!(serde_json::from_str::<Value>(&test.read("out/sweep.json")).expect("JSON"), found);
    // A second call trains only the missing runs.
    let name = points[0]["name"].as_str().expect("a name");
    let kept = test.path().join(format!("out/{name}/seed-1/results.json"));
    let written = std::fs::metadata(&kept).and_then(|file| file.modified()).expect("there");
    std::fs::remove_dir_all(test.path().join(format!("out/{name}/seed-2"))).expect("removed");
    let run = test.run(&["sweep", "sweep.yml"]);
    assert!(run.code == 0 && run.stderr.contains("4 runs in out, 1 to do"), "{run:?}");
    assert_eq!(std::fs::metadata(&kept).and_then(|file| file.modified()).expect("there"), written);
    assert_eq!(shown(&test, &["--show"]), found, "the same seeds give the same numbers");
    // Files of others are kept.
    let own = test.read("out/sweep.json");
    for (name, before) in [("out/sweep.json", "{\"title\": \"mine\"}"), ("out/sweep.txt", "mine")] {
        let kept = test.read(name);
        std::fs::remove_file(test.path().join("out/sweep.json")).expect("removed");
        test.write(name, before);
        let run = test.run(&["sweep", "sweep.yml"]);
        assert!(
            run.code == 2 && run.stderr.contains(&format!("`{name}` exists; `--overwrite` replaces it")),
            "{run:?}"
        );
        assert_eq!(test.read(name), before);
        test.write("out/sweep.json", &own);
        test.write(name, &kept);
    }
    // A different file cannot continue in the same directory.
    test.write("sweep.yml", &test.read("sweep.yml").replace("target: 3", "target: 2"));
    let run = test.run(&["sweep", "sweep.yml"]);
    assert!(run.code != 0 && run.stderr.contains("was started with another configuration"), "{run:?}");
}

#[test]
fn more_values_keep_the_finished_runs_and_their_directories() {
    let test = sweep("sweep: { grid: { train.learning_rate: [1e-6, 1e-2] }, seeds: [1] }");
    test.succeeds(&["sweep", "sweep.yml"]);
    // A value in front changes the numbers of all others.
    test.write("sweep.yml", &test.read("sweep.yml").replace("[1e-6, 1e-2]", "[1e-4, 1e-6, 1e-2]"));
    let before = shown(&test, &["--show"]);
    let run = test.run(&["sweep", "sweep.yml"]);
    assert!(run.code == 0 && run.stderr.contains("3 runs in out, 1 to do"), "{run:?}");
    let found = shown(&test, &["--show"]);
    for (table, finished) in [(before, 2), (found, 3)] {
        let points = table["points"].as_array().expect("points");
        let mut names: Vec<&str> = points.iter().filter_map(|point| point["name"].as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["1-learning_rate=0.0001", "1-learning_rate=1e-6", "2-learning_rate=0.01"]);
        let values = |point: &Value| point["values"].as_array().map_or(0, Vec::len);
        assert_eq!(points.iter().map(values).sum::<usize>(), finished);
    }
}

#[test]
fn a_run_whose_directory_was_removed_starts_again_with_other_settings() {
    let test = sweep("sweep: { seeds: [1] }");
    test.succeeds(&["sweep", "sweep.yml"]);
    test.write("sweep.yml", &test.read("sweep.yml").replace("target: 3", "target: 2"));
    let run = test.run(&["sweep", "sweep.yml"]);
    let error = "`out/1/seed-1` was started with another configuration";
    assert!(run.code == 1 && run.stderr.contains(error), "{run:?}");
    std::fs::remove_dir_all(test.path().join("out/1/seed-1")).expect("removed");
    let run = test.run(&["sweep", "sweep.yml"]);
    assert!(run.code == 0 && run.stderr.contains("1 runs in out, 1 to do"), "{run:?}");
    assert!(test.read("out/1/seed-1/config.yml").contains("target: 2"));
}

#[test]
fn a_run_that_fails_is_named_and_the_others_are_finished() {
    let test = sweep("sweep: { grid: { train.max_length: [5, 64] } }");
    let run = test.run(&["sweep", "sweep.yml"]);
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.stderr.contains("seed-42 failed: error:") && run.stderr.contains("1 of 2 runs failed"), "{run:?}");
    let found = shown(&test, &["--show"]);
    assert!(found["best"].as_str().is_some_and(|best| best.starts_with("2-max_length=64")), "{found}");
}

/// `kill` and schedulers signal one process, a terminal signals all of them. Either way the runs are stopped once.
#[cfg(unix)]
#[test]
fn an_interrupt_stops_the_runs_and_the_same_command_goes_on_with_them() {
    use std::os::unix::process::CommandExt as _;
    use std::process::Stdio;
    for whole_group in [false, true] {
        let test = sweep("sweep: { seeds: [1, 2], at_once: 2 }");
        // The reward program answers the evaluation and the first step. Later requests wait for the file `go`, so no run ends before it is
        // interrupted.
        let go = test.path().join("go").display().to_string();
        let script = format!(
            "i=0; while read -r line; do i=$((i+1)); [ $i -le 8 ] || while [ ! -e {go} ]; do sleep 0.02; done; echo 1; done"
        );
        let file = test.read("sweep.yml").replace("max_steps: 1,", "max_steps: 3, logging_steps: 1,");
        let reward = format!("reward: {{ command: [sh, -c, '{script}'] }}\n");
        test.write("sweep.yml", &file.replace("reward: { rule: { length: { target: 3 } } }\n", &reward));
        let mut command = test.command(&["sweep", "sweep.yml"]);
        command.process_group(0).stdout(Stdio::null()).stderr(Stdio::piped());
        let child = command.spawn().expect("it runs");
        let run = |seed: usize| test.path().join(format!("out/1/seed-{seed}"));
        wait_until("both runs have done a step", || has_stepped(&run(1)) && has_stepped(&run(2)));
        signal("-INT", &format!("{}{}", if whole_group { "-" } else { "" }, child.id()));
        let output = child.wait_with_output().expect("it ends");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{stderr}");
        assert!(stderr.ends_with("run the same command again to resume\n"), "{stderr}");
        for seed in [1, 2] {
            assert!(!run(seed).join("results.json").exists(), "it was stopped before its end");
            let checkpoints = std::fs::read_dir(run(seed).join("checkpoints")).expect("checkpoints").count();
            assert_eq!(checkpoints, 1, "one of the step where it stopped");
        }
        test.write("go", "");
        let run = test.run(&["sweep", "sweep.yml"]);
        assert!(run.code == 0 && run.stderr.contains("2 runs in out, 2 to do"), "{run:?}");
        assert_eq!(shown(&test, &["--show"])["points"][0]["values"].as_array().map(Vec::len), Some(2));
    }
}

#[cfg(unix)]
#[test]
fn a_second_sweep_in_the_same_directory_is_refused() {
    use std::process::Stdio;
    let test = sweep("sweep: { seeds: [1] }");
    // The reward program answers after the file `go` exists.
    let go = test.path().join("go").display().to_string();
    let script = format!("while read -r line; do while [ ! -e {go} ]; do sleep 0.02; done; echo 1; done");
    let reward = format!("reward: {{ command: [sh, -c, '{script}'] }}\n");
    let file = test.read("sweep.yml").replace("reward: { rule: { length: { target: 3 } } }\n", &reward);
    test.write("sweep.yml", &file);
    let mut first =
        test.command(&["sweep", "sweep.yml"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
    wait_until("the run has begun", || test.path().join("out/1/seed-1/state.json").exists());
    let second = test.run(&["sweep", "sweep.yml"]);
    assert!(second.code == 1 && second.stdout.is_empty(), "{second:?}");
    assert!(second.stderr.contains("another gradus trains the runs of the sweep in `out`"), "{second:?}");
    assert_eq!(shown(&test, &["--show"])["points"][0]["runs"], 1, "showing needs no lock");
    test.write("go", "");
    assert!(first.wait().expect("it ends").success(), "the first sweep is not disturbed");
    let again = test.run(&["sweep", "sweep.yml"]);
    assert!(again.code == 0 && again.stderr.contains("1 runs in out, 0 to do"), "{again:?}");
}

/// This signal cannot be handled, but the runs notice the end of the sweep.
#[cfg(unix)]
#[test]
fn a_sweep_that_is_killed_leaves_no_run_behind() {
    use std::process::Stdio;
    let test = sweep("sweep: { seeds: [1, 2], at_once: 2 }");
    test.write("sweep.yml", &test.read("sweep.yml").replace("max_steps: 1,", "max_steps: 100000, logging_steps: 1,"));
    let mut child =
        test.command(&["sweep", "sweep.yml"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
    let run = |seed: usize| test.path().join(format!("out/1/seed-{seed}"));
    wait_until("both runs have done a step", || has_stepped(&run(1)) && has_stepped(&run(2)));
    child.kill().expect("killed");
    child.wait().expect("it ends");
    let checkpoints = |seed| std::fs::read_dir(run(seed).join("checkpoints")).map_or(0, Iterator::count);
    wait_until("both runs have stopped", || checkpoints(1) == 1 && checkpoints(2) == 1);
}

/// The same command finds its runs again, independent of the file's location.
#[test]
fn a_sweep_without_a_directory_goes_to_one_with_the_name_of_its_file() {
    let test = sweep("sweep: { grid: { train.learning_rate: [1e-6] }, seeds: [7] }");
    test.write("sweep.yml", &test.read("sweep.yml").replace("output_dir: out\n", ""));
    let run = test.run(&["sweep", "sweep.yml"]);
    assert!(run.code == 0 && run.stderr.contains("1 runs in runs/sweep, 1 to do"), "{run:?}");
    assert!(test.path().join("runs/sweep/1-learning_rate=1e-6/seed-7/results.json").is_file());
    let run = test.run(&["sweep", "sweep.yml"]);
    assert!(run.code == 0 && run.stderr.contains("1 runs in runs/sweep, 0 to do"), "{run:?}");
    assert!(run.stderr.contains("best: runs/sweep/1-learning_rate=1e-6"), "{run:?}");
}

#[test]
fn the_first_finished_run_shows_a_mistyped_metric() {
    let test = sweep("sweep: { seeds: [1, 2, 3], metric: eval_rewards }");
    let error = "error: `sweep.metric` is `eval_rewards`, which the run in `out/1/seed-1` does not measure\n";
    let refused = |arguments: &[&str]| {
        let run = test.run(&[&["sweep", "sweep.yml"], arguments].concat());
        assert!(run.code == 1 && run.stderr.contains(error), "{run:?}");
        assert!(run.stderr.contains("\nhint: it measures ") && run.stderr.contains("`eval_reward`, "), "{run:?}");
        assert!(!test.path().join("out/1/seed-2").exists(), "no other run has begun");
    };
    refused(&[]);
    refused(&[]);
    refused(&["--show"]);
    test.write("sweep.yml", &test.read("sweep.yml").replace("eval_rewards", "eval_reward"));
    let run = test.run(&["sweep", "sweep.yml"]);
    assert!(run.code == 0 && run.stderr.contains("3 runs in out, 2 to do"), "{run:?}");
}

#[cfg(unix)]
#[test]
fn slurm_trains_the_runs_as_an_array_of_jobs() {
    let keys = "sweep: { grid: { train.learning_rate: [1e-6, 1e-2] }, seeds: [1, 2], at_once: 3 }";
    let here = sweep(keys);
    let expected = shown(&here, &[]);
    let test = sweep(keys);
    // A replacement for Slurm that starts the jobs of the array one after the other.
    let jobs =
        "#!/bin/bash\ncp \"$1\" job.sh\nfor i in 0 1 2 3; do SLURM_ARRAY_TASK_ID=$i bash job.sh || exit 1; done\n";
    for (name, text) in [("sbatch", jobs), ("srun", "#!/bin/sh\nshift\nexec \"$@\"\n")] {
        let file = test.write(&format!("bin/{name}"), text);
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&file, executable).expect("it can be made executable");
    }
    let binary = std::path::Path::new(env!("CARGO_BIN_EXE_gradus")).parent().expect("a folder").display().to_string();
    let path = format!("{}:{binary}:{}", test.path().join("bin").display(), std::env::var("PATH").unwrap_or_default());
    let script = test.succeeds(&["sweep", "sweep.yml", "--slurm", "--cpus", "2", "--time", "2:00:00", "-q"]);
    for line in
        ["#SBATCH --array=0-3%3", "#SBATCH --cpus-per-task=2", "#SBATCH --time=2:00:00", "#SBATCH --signal=TERM@300"]
    {
        assert!(script.lines().any(|found| found == line), "{line} in\n{script}");
    }
    // `srun` is a launcher of ranks, whose default is more lanes.
    assert!(script.ends_with(" --resume --quiet --threads 2 --lanes 1\n"), "{script}");
    assert!(!test.path().join("out/sweep.json").exists(), "nothing was trained");
    let arguments = ["sweep", "sweep.yml", "--slurm", "--submit", "--cpus", "1", "-q"];
    let ended = test.command(&arguments).env("PATH", &path).output().expect("the binary runs");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert_eq!(shown(&test, &["--show"]), expected, "the same numbers as here");
    let again = test.run(&["sweep", "sweep.yml", "--slurm"]);
    assert!(again.code == 0 && again.stdout.is_empty(), "{again:?}");
    assert!(again.stderr.contains("all runs are finished: there is nothing to submit to Slurm"), "{again:?}");
    let run = test.run(&["sweep", "sweep.yml", "--cpus", "2"]);
    assert!(run.code == 2 && run.stderr.contains("--slurm"), "{run:?}");
}
