//! Runs on several ranks, one of which or whose launcher is killed: no process remains, and the resumed run, on any number of ranks, ends
//! with the bits of an undisturbed run on a single rank.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use super::compare::{differences, snapshot};
use super::process::{Killer, Lab, finish, wait};
use super::{COMMON, ONLINE, ROUNDS, skip};

/// Number of cases in this file.
const CASES: usize = 6;

/// Returns the launchers to test: those in the directories of `GRADUS_TEST_MPI`, and the first one in `PATH`.
fn launchers() -> Vec<PathBuf> {
    let folders =
        |variable: &str| std::env::split_paths(&std::env::var_os(variable).unwrap_or_default()).collect::<Vec<_>>();
    let named = folders("GRADUS_TEST_MPI").into_iter().map(|root| root.join("bin/mpiexec"));
    let first = folders("PATH").into_iter().map(|folder| folder.join("mpiexec")).find(|path| path.is_file());
    named.filter(|path| path.is_file()).chain(first).collect()
}

/// Returns the processes that work in `directory`, with their programs.
fn processes(directory: &Path) -> Vec<(String, PathBuf)> {
    let works_there =
        |entry: &std::fs::DirEntry| std::fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd == directory);
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten().filter(works_there);
    let program = |entry: &std::fs::DirEntry| std::fs::read_link(entry.path().join("exe")).ok();
    all.filter_map(|entry| Some((entry.file_name().to_string_lossy().into_owned(), program(&entry)?))).collect()
}

/// Returns the ids of the ranks among them.
fn ranks(directory: &Path) -> Vec<String> {
    let is_gradus = |program: &Path| program.file_name().is_some_and(|name| name == "gradus");
    processes(directory).into_iter().filter(|(_, program)| is_gradus(program)).map(|(id, _)| id).collect()
}

/// Kills a rank or the launcher once. `None` if nothing was killed.
fn kill_one(lab: &Lab, directory: &Path, killer: &mut Killer, time: Duration) -> Option<String> {
    let resume = directory.join("run/config.yml").exists();
    let mut child = lab.start(directory, resume);
    let pause = Duration::from_micros(killer.below(time.as_micros() as u64));
    wait(&mut child, |start| start.elapsed() >= pause && !ranks(directory).is_empty());
    let mut found = ranks(directory);
    let victim =
        if killer.below(3) == 0 { None } else { found.get(killer.below(found.len() as u64) as usize).cloned() };
    let story = match victim {
        Some(id) => {
            Command::new("kill").args(["-KILL", &id]).status().expect("`kill` runs");
            "a rank was killed"
        }
        None => {
            child.kill().expect("a process can be killed");
            "the launcher was killed"
        }
    };
    end_launcher(&mut child, directory);
    let output = child.wait_with_output().expect("it ends");
    let start = Instant::now();
    while !found.is_empty() {
        assert!(start.elapsed() < Duration::from_secs(300), "{story} after {pause:?}, and {found:?} still run");
        std::thread::sleep(Duration::from_millis(5));
        found = ranks(directory);
    }
    (!output.status.success()).then(|| {
        killer.kills += 1;
        format!("{story} after {} ms", pause.as_millis())
    })
}

/// Waits until the launcher ends. It is killed if it still runs long after its last rank: if a rank is killed while it starts, the launcher
/// of Open MPI 4.1 can wait forever, for a message of that rank.
fn end_launcher(child: &mut Child, directory: &Path) {
    let mut last_seen = Instant::now();
    while child.try_wait().expect("a process can be asked").is_none() {
        if !ranks(directory).is_empty() {
            last_seen = Instant::now();
        }
        if last_seen.elapsed() > Duration::from_secs(60) {
            eprintln!("the launcher did not end after its ranks and was killed");
            child.kill().expect("a process can be killed");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Runs the case `name` on a single rank, and on 2 to 4 ranks that are killed and resumed on other numbers of ranks.
fn check(name: &str, method: &str, model: &str, data: &str, more: &[&[&str]]) {
    let launchers = launchers();
    if launchers.is_empty() || !Path::new("/proc/self/cwd").exists() {
        skip::skipped("mpiexec", "runs on several ranks that are killed");
        return;
    }
    let rounds = std::env::var("GRADUS_KILLS").ok().and_then(|rounds| rounds.parse::<usize>().ok());
    let rounds = rounds.map_or(ROUNDS, |rounds| rounds.div_ceil(CASES));
    let arguments = [COMMON, &["--lanes", "4", "--threads", "1"], &more.concat()].concat();
    let mut lab = Lab::new(method, model, data, &arguments);
    let whole = lab.directory("whole");
    lab.run_whole(&whole);
    let expected = snapshot(&whole.join("run"));
    for launcher in launchers {
        let launcher = launcher.to_string_lossy().into_owned();
        let launched = |lab: &mut Lab, ranks: u64| lab.launched_by(&[&launcher, "-n", &ranks.to_string()]);
        launched(&mut lab, 2);
        let undisturbed = lab.directory(&format!("ranks-{}", launcher.replace('/', "-")));
        let time = lab.run_whole(&undisturbed);
        let found = differences(&expected, &snapshot(&undisturbed.join("run")));
        assert!(found.is_empty(), "{name} on 2 ranks of {launcher}:\n{}", found.join("\n"));
        let mut killer = Killer::new(name, time);
        for round in 0..rounds {
            let directory = lab.directory(&format!("round-{round}"));
            let mut story = Vec::new();
            for _ in 0..=killer.below(2) {
                let ranks = 1 + killer.below(4);
                launched(&mut lab, ranks);
                story.extend(
                    kill_one(&lab, &directory, &mut killer, time).map(|what| format!("{what} of {ranks} ranks")),
                );
            }
            let ranks = 1 + killer.below(4);
            launched(&mut lab, ranks);
            story.push(format!("then {ranks} ranks"));
            finish(lab.start(&directory, directory.join("run/config.yml").exists()), &story.join(", "));
            let found = differences(&expected, &snapshot(&directory.join("run")));
            assert!(found.is_empty(), "{name}, {launcher}, round {round}, {}:\n{}", story.join(", "), found.join("\n"));
            std::fs::remove_dir_all(&directory).expect("it can be removed");
        }
        eprintln!("{name} on ranks of {launcher}: {rounds} runs, {} kills, identical", killer.kills);
    }
}

#[test]
fn sft_on_ranks() {
    check("sft on ranks", "sft", "gpt2", "texts.jsonl", &[]);
}

#[test]
fn reward_model_on_ranks() {
    check("reward on ranks", "reward", "qwen3", "pairs.jsonl", &[]);
}

#[test]
fn dpo_of_an_adapter_on_ranks() {
    check("dpo on ranks", "dpo", "gpt2", "pairs.jsonl", &[&["--lora-rank", "2"]]);
}

#[test]
fn grpo_on_ranks() {
    check(
        "grpo on ranks",
        "grpo",
        "qwen3",
        "prompts.jsonl",
        &[ONLINE, &["--group-size", "3", "--kl-coefficient", "0.05"]],
    );
}

#[test]
fn ppo_on_ranks() {
    let more = ["--kl-target", "0.01", "--kl-horizon", "20", "--mini-batches", "2", "--update-epochs", "2"];
    check("ppo on ranks", "ppo", "qwen3", "prompts.jsonl", &[ONLINE, &more]);
}

#[test]
fn sft_of_t5_on_ranks() {
    check("sft of t5 on ranks", "sft", "t5", "pairs.jsonl", &[]);
}
