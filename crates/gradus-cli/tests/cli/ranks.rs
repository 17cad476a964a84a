//! Tests runs on several ranks under MPI, which print one output and report one error. Also tests the job files for clusters.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::harness::{CliTest, Run, fixture_model, signal, wait_until};
use crate::skip;

/// Returns whether `PATH` has an `mpiexec`. Otherwise the test is skipped.
fn has_mpi(what: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found: Option<PathBuf> =
        std::env::split_paths(&path).map(|folder| folder.join("mpiexec")).find(|path| path.is_file());
    if found.is_none() {
        skip::skipped("mpiexec", what);
    }
    found.is_some()
}

fn place() -> CliTest {
    let row =
        |i: usize| format!("{{\"prompt\": \"{i}: the tea is\", \"chosen\": \" good.\", \"rejected\": \" bad.\"}}\n");
    CliTest::with("pairs.jsonl", &(0..40).map(row).collect::<String>())
}

/// Arguments of a short DPO run. Flags in `more` replace the defaults.
fn dpo<'a>(model: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let usual = [["--model", model], ["--data", "pairs.jsonl"], ["--max-steps", "4"], ["--learning-rate", "1e-3"]];
    let left = usual.into_iter().filter(|[flag, _]| !more.contains(flag)).flatten();
    ["dpo"].into_iter().chain(left).chain(more.iter().copied()).collect()
}

/// Runs gradus on ranks. Lines of the launcher itself are removed.
fn on_ranks(test: &CliTest, arguments: &[&str]) -> Run {
    let output = test.command(arguments).output().expect("the binary runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let lines = |text: String| text.lines().filter(|line| is_ours(line)).map(|line| format!("{line}\n")).collect();
    Run { code: output.status.code().unwrap_or(-1), stdout: text(&output.stdout), stderr: lines(text(&output.stderr)) }
}

/// Returns whether gradus printed this line about an error.
fn is_ours(line: &str) -> bool {
    ["error:", "hint:", "  -->", "interrupted"].iter().any(|start| line.starts_with(start))
}

#[test]
fn two_ranks_write_what_one_writes() {
    if !has_mpi("a run on two ranks") {
        return;
    }
    let (test, model) = (place(), fixture_model("gpt2"));
    test.succeeds(&dpo(&model, &["--lanes", "8", "--output-dir", "one"]));
    for (name, more) in [("two", [].as_slice()), ("sharded", &["--shard-moments"])] {
        let run = on_ranks(&test, &dpo(&model, &[&["--ranks", "2", "--output-dir", name], more].concat()));
        assert_eq!((run.code, run.stdout.trim()), (0, name), "{}", run.stderr);
        let file = |run: &str, file: &str| std::fs::read(test.path().join(run).join(file)).expect("a file of the run");
        for part in ["model/model.safetensors", "checkpoints/step-000004/optimizer.safetensors"] {
            assert!(file("one", part) == file(name, part), "{name}: {part}");
        }
    }
}

/// Scripts of clusters pass `--resume` at their first start, too.
#[test]
fn lanes_are_those_of_the_checkpoint_if_there_is_one() {
    let (test, model) = (place(), fixture_model("gpt2"));
    let flags = |directory| dpo(&model, &["--output-dir", directory, "--resume", "--max-steps", "2"]);
    let plan = |directory| [&["plan"][..], &flags(directory)[..], &["--ranks", "2", "--quiet"]].concat();
    test.succeeds(&plan("run"));
    assert!(!test.path().join("run").exists());
    // A run that was interrupted before its first checkpoint begins again.
    test.succeeds(&dpo(&model, &["--output-dir", "run", "--max-steps", "1", "--lr-schedule", "constant"]));
    let config = test.read("run/config.yml");
    test.write("begun/config.yml", &config);
    test.succeeds(&plan("begun"));
    let refused = test.run(&plan("run"));
    let expected = "error: 2 ranks cannot share a run with `train.lanes: 1`\n";
    assert!(refused.code == 1 && refused.stderr.contains(expected), "{refused:?}");
    if has_mpi("a run that begins on two ranks with `--resume`") {
        let run = on_ranks(&test, &[&flags("new")[..], &["--ranks", "2"]].concat());
        assert_eq!((run.code, run.stdout.trim()), (0, "new"), "{}", run.stderr);
    }
}

#[test]
fn the_run_manager_resumes_on_ranks() {
    if !has_mpi("a run that is resumed on two ranks") {
        return;
    }
    let (test, model) = (place(), fixture_model("gpt2"));
    let constant = ["--lr-schedule", "constant", "--lanes", "8", "--output-dir"];
    test.succeeds(&dpo(&model, &[&constant[..], &["runs/one"]].concat()));
    test.succeeds(&dpo(&model, &[&constant[..], &["runs/two", "--max-steps", "2"]].concat()));
    let run = on_ranks(&test, &["runs", "resume", "two", "--max-steps", "4", "--ranks", "2"]);
    assert_eq!((run.code, run.stdout.trim()), (0, "runs/two"), "{}", run.stderr);
    let weights = |run: &str| std::fs::read(test.path().join(run).join("model/model.safetensors")).expect("weights");
    assert!(weights("runs/one") == weights("runs/two"));
    // The run is complete, which is one error.
    let run = on_ranks(&test, &["runs", "resume", "two", "--ranks", "2"]);
    let expected = "error: `two` has finished all 4 steps\n";
    assert!(run.code != 0 && run.stderr.starts_with(expected) && run.stderr.matches("error:").count() == 1, "{run:?}");
}

#[test]
fn an_error_is_said_once() {
    if !has_mpi("errors on two ranks") {
        return;
    }
    let (test, model) = (place(), fixture_model("gpt2"));
    let ranks = ["--ranks", "2"];
    let stderr_of = |more: &[&str]| {
        let run = on_ranks(&test, &dpo(&model, &[&ranks, more].concat()));
        assert_ne!(run.code, 0);
        run.stderr
    };
    assert_eq!(stderr_of(&["--data", "nothing.jsonl"]), "error: nothing.jsonl: no such file or directory\n");
    assert_eq!(
        stderr_of(&["--batch-size", "0"]),
        "error: `train.batch_size` is 0, but must be at least 1\n  --> flag `--batch-size`\n"
    );
    let refused = stderr_of(&["--lanes", "1", "--output-dir", "none"]);
    assert!(refused.starts_with("error: 2 ranks cannot share a run with `train.lanes: 1`\nhint: "), "{refused}");
    assert!(!test.path().join("none").exists());
    std::fs::create_dir(test.path().join("taken")).expect("made");
    test.write("taken/notes.txt", "mine");
    let refused = stderr_of(&["--output-dir", "taken"]);
    assert!(refused.starts_with("error: output directory `taken` exists and is not empty\n"), "{refused}");
    assert_eq!(refused.matches("error:").count(), 1, "{refused}");
}

/// Runs a command line on each rank. Lines of the launcher itself are removed.
fn on_different_ranks(test: &CliTest, ranks: [(&[&str], &[&str]); 2]) -> Run {
    let mut command = Command::new("mpiexec");
    for (number, (program, arguments)) in ranks.into_iter().enumerate() {
        command.args((number > 0).then_some(":")).args(["-n", "1"]);
        command.args(program).arg(env!("CARGO_BIN_EXE_gradus")).args(arguments);
    }
    command.current_dir(test.path()).env("NO_COLOR", "1").stdin(Stdio::null()).envs([
        ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
        ("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"),
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ]);
    let output = command.output().expect("the launcher starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let lines = |text: String| text.lines().filter(|line| is_ours(line)).map(|line| format!("{line}\n")).collect();
    Run { code: output.status.code().unwrap_or(-1), stdout: text(&output.stdout), stderr: lines(text(&output.stderr)) }
}

#[test]
fn a_rank_that_cannot_join_does_not_hold_up_the_others() {
    if !has_mpi("a rank that cannot join") {
        return;
    }
    let (test, model) = (place(), fixture_model("gpt2"));
    let fine = dpo(&model, &["--output-dir", "run", "--rank-timeout", "20"]);
    let without_mpi = ["env", "GRADUS_MPI=/nowhere/libmpi.so"];
    let run = on_different_ranks(&test, [(&[], &fine), (&without_mpi, &fine)]);
    // It names itself and its machine.
    assert!(run.code != 0 && run.stderr.contains("error: rank 1 on `"), "{run:?}");
    assert!(run.stderr.contains("started 2 processes, and this one cannot join them: `/nowhere/libmpi.so`"), "{run:?}");
    // The launcher may end rank 0 first.
    let others: Vec<&str> = run.stderr.lines().filter(|line| line.starts_with("error: rank 0")).collect();
    assert!(others.iter().all(|line| line.ends_with(": the other ranks have not joined within 20 s")), "{run:?}");
    assert!(!test.path().join("run").exists());
    // A wrong command line on one rank ends both at once.
    let fine = dpo(&model, &["--output-dir", "run"]);
    let wrong = dpo(&model, &["--output-dir", "run", "--bogus", "1"]);
    let run = on_different_ranks(&test, [(&[], &fine), (&[], &wrong)]);
    assert!(run.code != 0 && run.stderr.starts_with("error: rank 1: unexpected argument '--bogus' found\n"), "{run:?}");
    assert_eq!(run.stderr.matches("error:").count(), 1, "{run:?}");
    let run = on_different_ranks(&test, [(&[], &wrong), (&[], &fine)]);
    assert!(run.code != 0 && run.stderr.starts_with("error: unexpected argument '--bogus' found\n"), "{run:?}");
    assert_eq!(run.stderr.matches("error:").count(), 1, "{run:?}");
}

#[test]
fn an_error_before_the_ranks_join_is_shown_once() {
    if !has_mpi("errors of all ranks") {
        return;
    }
    let (test, model) = (place(), fixture_model("gpt2"));
    for (more, expected) in
        [(["--ranks", "3"], "`--ranks` is 3, but "), (["--bogus", "1"], "error: unexpected argument '--bogus' found\n")]
    {
        let arguments = dpo(&model, &more);
        let run = on_different_ranks(&test, [(&[], &arguments), (&[], &arguments)]);
        assert!(run.code != 0 && run.stderr.contains(expected), "{run:?}");
        assert_eq!(run.stderr.matches("error:").count(), 1, "{run:?}");
    }
}

#[test]
fn copies_of_one_process_are_refused() {
    let (test, model) = (place(), fixture_model("gpt2"));
    let run = |arguments: &[&str], variables: &[(&str, &str)]| {
        let output = test.command(arguments).envs(variables.iter().copied()).output().expect("the binary runs");
        (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, text) = run(&["data", "check", "pairs.jsonl"], &[("PMI_RANK", "0"), ("PMI_SIZE", "2")]);
    assert!(
        code == 1
            && text
                .starts_with("error: `mpiexec` started `gradus data` 2 times, but this command runs in one process\n"),
        "{text}"
    );
    // Variables that are left in the environment can name any rank.
    let left = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "4")];
    let (code, text) = run(&["runs", "list", "."], &left);
    let expected = "error: Open MPI's `mpirun` started `gradus runs` 4 times, but this command runs in one process\n";
    assert!(code == 1 && text.starts_with(expected) && text.contains("such as `OMPI_COMM_WORLD_SIZE`"), "{text}");
    // No MPI is initialized then: MPICH would end the process without this message, because the connection to the launcher is closed.
    let left = [("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("PMI_FD", "99")];
    let (code, text) = run(&["runs", "list", "."], &left);
    assert!(code == 1 && text.starts_with("error: `mpiexec` started `gradus runs` 2 times"), "{text}");
    let (code, text) = run(&["runs", "list", ".", "--bogus"], &left);
    assert!(code == 2 && text.starts_with("error: unexpected argument '--bogus' found"), "{text}");
    let (code, text) =
        run(&dpo(&model, &[]), &[("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("GRADUS_MPI", "/nowhere/libmpi.so")]);
    let expected =
        ": `mpiexec` started 2 processes, and this one cannot join them: `/nowhere/libmpi.so` cannot be used: ";
    assert!(code == 1 && text.starts_with("error: rank 0") && text.contains(expected), "{text}");
    assert!(
        text.contains("If no launcher is running, remove its variables, such as `PMI_SIZE`, with `unset`"),
        "{text}"
    );
    let (code, text) = run(&dpo(&model, &[]), &[("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("PMI_FD", "99")]);
    assert!(code == 1 && text.contains("the connection to the launcher is closed (`PMI_FD` is 99)"), "{text}");
    let srun = [("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "2"), ("GRADUS_MPI", "/nowhere/libmpi.so")];
    let (code, text) = run(&dpo(&model, &[]), &srun);
    assert!(code == 1 && text.contains("\nhint: start MPICH with `srun --mpi=pmi2` and Open MPI with"), "{text}");
    let (code, text) = run(&dpo(&model, &[]), &[("RANK", "1"), ("WORLD_SIZE", "2")]);
    assert!(code == 1 && text.contains("`WORLD_SIZE` is 2, as torchrun sets it"), "{text}");
    let (code, text) = run(&dpo(&model, &["--ranks", "2"]), &[("PATH", "/nowhere")]);
    assert!(
        code == 1 && text.starts_with("error: `--ranks` needs MPI, and there is no `mpiexec` in `PATH`\n"),
        "{text}"
    );
    assert!(!test.path().join("runs").exists(), "nothing was begun");
    // Resuming is training, too.
    let resume = ["runs", "resume", "run"];
    let (code, text) = run(&[&resume[..], &["--ranks", "2"]].concat(), &[("PATH", "/nowhere")]);
    assert!(code == 1 && text.starts_with("error: `--ranks` needs MPI"), "{text}");
    let launched = [("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("GRADUS_MPI", "/nowhere/libmpi.so")];
    let (code, text) = run(&resume, &launched);
    assert!(code == 1 && text.starts_with("error: there is no run `run`"), "{text}");
}

#[test]
fn ranks_start_in_an_interactive_shell_of_slurm() {
    let (test, model) = (place(), fixture_model("gpt2"));
    // A replacement for `mpiexec`.
    let mpiexec = test.write("bin/mpiexec", "#!/bin/sh\necho \"$2 ${SLURM_STEP_NUM_TASKS-none} $HYDRA_LAUNCHER\"\n");
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&mpiexec, executable).expect("it can be made executable");
    let path = format!("{}:{}", test.path().join("bin").display(), std::env::var("PATH").unwrap_or_default());
    let run = |variables: [(&str, &str); 2]| {
        let mut command = test.command(&dpo(&model, &["--ranks", "2"]));
        let output = command.env("PATH", &path).envs(variables).output().expect("the binary runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (text(&output.stdout), text(&output.stderr))
    };
    let (stdout, stderr) = run([("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "1")]);
    // MPICH must not start its processes with `srun`: the shell has the cores.
    assert_eq!(stdout, "2 none fork\n", "{stderr}");
    let (stdout, stderr) = run([("PMI_RANK", "0"), ("PMI_SIZE", "1")]);
    assert!(
        stdout.is_empty() && stderr.starts_with("error: `--ranks` is 2, but `mpiexec` started 1 process\n"),
        "{stderr}"
    );
}

#[test]
fn copies_of_a_launcher_without_a_size_are_refused() {
    let (test, model) = (place(), fixture_model("gpt2"));
    let run = |variables: &[(&str, &str)]| {
        let output = test.command(&dpo(&model, &[])).envs(variables.iter().copied()).output().expect("the binary runs");
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let text = run(&[("PMIX_RANK", "1")]);
    assert!(
        text.starts_with("error: `PMIX_RANK` is 1, as `prterun` sets it, but no variable states the number"),
        "{text}"
    );
    let left = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1"), ("PMI_RANK", "1"), ("PMI_SIZE", "2")];
    let text = run(&left);
    assert!(text.starts_with("error: Open MPI's `mpirun` set rank 0 of 1 in the environment, but"), "{text}");
    assert!(text.contains("\nhint: remove the variables of the launcher that is not running"), "{text}");
    assert!(!test.path().join("runs").exists(), "nothing was begun");
}

#[test]
fn all_ranks_stop_when_they_are_asked_and_go_on() {
    if !has_mpi("an interrupted run on two ranks") {
        return;
    }
    let (test, model) = (place(), fixture_model("gpt2"));
    let steps = ["--max-steps", "400", "--lr-schedule", "constant"];
    let started = dpo(&model, &[&["--ranks", "2", "--output-dir", "run", "--save-steps", "1000"], &steps[..]].concat());
    let mut child =
        test.command(&started).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary runs");
    wait_until("a step is logged", || {
        assert_eq!(child.try_wait().expect("a process can be asked"), None, "it ended before it was told to");
        std::fs::read_to_string(test.path().join("run/metrics.jsonl")).is_ok_and(|text| text.lines().count() > 2)
    });
    // The launcher passes the signal on to the ranks. Some launchers kill ranks that take too long.
    signal("-INT", &child.id().to_string());
    let output = child.wait_with_output().expect("it ends");
    assert!(!output.status.success());
    let steps = std::fs::read_dir(test.path().join("run/checkpoints")).into_iter().flatten().flatten();
    let step = steps.filter_map(|entry| entry.file_name().to_str()?.strip_prefix("step-")?.parse::<usize>().ok()).max();
    // Open MPI kills its processes; MPICH lets them stop.
    if let Some(step) = step {
        let resumed = test.run(&["dpo", "--output-dir", "run", "--resume", "--max-steps", &(step + 1).to_string()]);
        assert_eq!((resumed.code, resumed.stdout.trim()), (0, "run"), "{}", resumed.stderr);
    }
}

const CONFIG: &str = "output_dir: runs/Tea 1\nmethod: {dpo: {}}\ndata: pairs.jsonl\n";

#[test]
fn a_script_for_slurm_can_be_handed_over() {
    let (test, model) = (place(), fixture_model("gpt2"));
    test.write("run.yml", &format!("{CONFIG}model: {model}\n"));
    let slurm = ["cluster", "slurm", "run.yml", "--nodes", "2", "--ranks-per-node", "2", "--cpus", "4", "-q"];
    let script = test.succeeds(&[&slurm[..], &["--partition", "long,short"]].concat());
    for line in [
        "#SBATCH --job-name=tea-1",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=2",
        "#SBATCH --cpus-per-task=4",
        "#SBATCH --signal=TERM@300",
        "#SBATCH --open-mode=append",
        "#SBATCH --partition=long,short",
        "srun --cpus-per-task=4 --kill-on-bad-exit=1 gradus train run.yml --resume --threads 4",
    ] {
        assert!(script.lines().any(|found| found == line), "{line} in\n{script}");
    }
    let memory =
        script.lines().find_map(|line| line.strip_prefix("#SBATCH --mem=")?.strip_suffix('G')?.parse::<u64>().ok());
    assert!(memory.is_some_and(|gigabytes| gigabytes >= 1), "{script}");
    assert!(!script.contains("--gres"), "{script}");
    // A shell can parse the script.
    let checked = Command::new("bash").args(["-n", "-c", &script]).status();
    assert!(checked.is_ok_and(|status| status.success()), "{script}");

    // A replacement for `sbatch`.
    let sbatch = test.write("bin/sbatch", "#!/bin/sh\ncp \"$1\" got.sbatch\n");
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&sbatch, executable).expect("it can be made executable");
    let path = format!("{}:{}", test.path().join("bin").display(), std::env::var("PATH").unwrap_or_default());
    let arguments = ["cluster", "slurm", "run.yml", "--memory", "3", "--submit", "-q"];
    let status = test.command(&arguments).env("PATH", &path).status().expect("the binary runs");
    assert!(status.success() && test.read("got.sbatch").contains("#SBATCH --mem=3G\n"));
    let refused = test.command(&["cluster", "slurm", "run.yml", "--submit", "-q"]).env("PATH", "/nowhere").output();
    let text = String::from_utf8_lossy(&refused.expect("the binary runs").stderr).into_owned();
    assert!(text.starts_with("error: `sbatch` cannot be started: "), "{text}");
}

#[test]
fn kubernetes_and_skypilot_get_what_they_read() {
    let (test, model) = (place(), fixture_model("gpt2"));
    test.write("run.yml", &format!("{CONFIG}model: {model}\n"));
    let kubernetes =
        ["cluster", "kubernetes", "run.yml", "--nodes", "4", "--image", "me/gradus", "--volume-claim", "shared", "-q"];
    let manifest = |more: &[&str]| -> serde_json::Value {
        serde_json::from_str(&test.succeeds(&[&kubernetes[..], more].concat())).expect("JSON, which is YAML")
    };
    let manifests = [manifest(&["--mpi", "openmpi"]), manifest(&["--mpi", "mpich", "--user", "1000"])];
    for (manifest, (implementation, keys, user, field, mpirun, server)) in manifests.iter().zip([
        ("OpenMPI", "/root/.ssh", 0, "command", "mpirun --allow-run-as-root -n 4 --bind-to none gradus train ", None),
        ("MPICH", "/home/mpiuser/.ssh", 1000, "args", "mpirun -n 4 gradus train ", Some("/home/mpiuser/.sshd_config")),
    ]) {
        let spec = &manifest["spec"];
        assert_eq!((&spec["mpiImplementation"], &spec["sshAuthMountPath"]), (&implementation.into(), &keys.into()));
        let container = |role: &str| spec["mpiReplicaSpecs"][role]["template"]["spec"]["containers"][0].clone();
        for role in ["Launcher", "Worker"] {
            assert_eq!(container(role)["securityContext"]["runAsUser"], user);
        }
        let command = container("Launcher")[field][2].as_str().map(str::to_owned).expect("a command");
        assert!(command.starts_with(mpirun), "{command}");
        assert_eq!(container("Worker")["command"][3].as_str(), server);
    }
    let [manifest, _] = manifests;
    assert_eq!((&manifest["apiVersion"], &manifest["kind"]), (&"kubeflow.org/v2beta1".into(), &"MPIJob".into()));
    let replicas = &manifest["spec"]["mpiReplicaSpecs"];
    assert_eq!((&replicas["Launcher"]["replicas"], &replicas["Worker"]["replicas"]), (&1.into(), &4.into()));
    let launcher = &replicas["Launcher"]["template"]["spec"]["containers"][0];
    let command = "mpirun --allow-run-as-root -n 4 --bind-to none gradus train run.yml --resume --threads 8";
    assert_eq!(launcher["command"][2], command);
    let claim = &replicas["Worker"]["template"]["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"];
    assert_eq!(*claim, "shared");
    let setup = ["--setup", "pip install ./gradus_rl-*.whl mpich"];
    let run = test.run(&["cluster", "skypilot", "run.yml", "--nodes", "2", "-q"]);
    assert!(run.code == 2 && run.stderr.contains("--setup <COMMAND>"), "{run:?}");
    let task = test.succeeds(&[&["cluster", "skypilot", "run.yml", "--nodes", "2", "-q"][..], &setup].concat());
    let installs = "setup: |2\n  pip install ./gradus_rl-*.whl mpich\n";
    for part in
        ["name: \"tea-1\"\n", "num_nodes: 2\n", "workdir: .\n", installs, "-n 2 -hosts \"$HOSTS\" gradus train run.yml"]
    {
        assert!(task.contains(part), "{part} in\n{task}");
    }

    // A replacement for `sky`, which also reads its file several times and requires the ending.
    let sky = test.write("bin/sky", "#!/bin/sh\ncat \"$3\" > copy && cp \"$3\" got && echo \"$3\" > named\n");
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&sky, executable).expect("it can be made executable");
    let path = format!("{}:{}", test.path().join("bin").display(), std::env::var("PATH").unwrap_or_default());
    let arguments = [&["cluster", "skypilot", "run.yml", "--nodes", "2", "--submit", "-q"][..], &setup].concat();
    let status = test.command(&arguments).env("PATH", &path).status().expect("the binary runs");
    assert!(status.success() && test.read("got") == task);
    let named = test.read("named");
    assert!(named.ends_with(".yml\n") && !std::path::Path::new(named.trim_end()).exists(), "{named}");
}

/// The machine that writes the job file need not have a GPU.
#[test]
fn jobs_of_gpu_runs_request_gpus() {
    let (test, model) = (place(), fixture_model("gpt2"));
    test.write("run.yml", &format!("{CONFIG}model: {model}\ntrain: {{device: \"gpu:1\", compute: bf16}}\n"));
    let script = test.succeeds(&["cluster", "slurm", "run.yml", "--nodes", "2", "-q"]);
    assert!(script.contains("\n#SBATCH --gres=gpu:2\n"), "{script}");
    let kubernetes =
        ["cluster", "kubernetes", "run.yml", "--image", "i", "--volume-claim", "v", "--mpi", "mpich", "-q"];
    let manifest: serde_json::Value = serde_json::from_str(&test.succeeds(&kubernetes)).expect("JSON, which is YAML");
    let worker = &manifest["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0];
    assert_eq!(worker["resources"]["limits"]["nvidia.com/gpu"], 2);
    let skypilot = ["cluster", "skypilot", "run.yml", "--setup", "true", "-q"];
    let task = test.succeeds(&[&skypilot[..], &["--accelerator", "H100"]].concat());
    assert!(task.contains("\n  accelerators: \"H100:2\"\n"), "{task}");
    let run = test.run(&skypilot);
    assert!(run.code == 1 && run.stderr.contains("\nhint: add `--accelerator NAME`"), "{run:?}");
    test.fails(
        &["cluster", "slurm", "run.yml", "--ranks-per-node", "2", "-q"],
        1,
        "error: `train.device` is `gpu:1`, so the 2 ranks of a machine would share one GPU\n\
         hint: start one rank per machine: `--ranks-per-node 1`\n",
    );
    // A GPU that the run does not use is refused, and so is a name that is no device.
    test.write("run.yml", &format!("{CONFIG}model: {model}\n"));
    let run = test.run(&[&skypilot[..], &["--accelerator", "H100"]].concat());
    assert!(run.code == 1 && run.stderr.contains("`--accelerator` requests GPUs, but"), "{run:?}");
    test.write("run.yml", &format!("{CONFIG}model: {model}\ntrain: {{device: tpu}}\n"));
    let run = test.run(&["cluster", "slurm", "run.yml", "-q"]);
    assert!(run.code == 2 && run.stderr.contains("`train.device` is `tpu`"), "{run:?}");
}

/// The way out of too many ranks.
const FEWER: &str = "hint: at most one rank per lane: start fewer ranks, or raise `train.lanes`. Runs with other lanes \
                     differ in the rounding of sums\n";

#[test]
fn what_a_cluster_cannot_run_is_refused() {
    let (test, model) = (place(), fixture_model("gpt2"));
    test.write("run.yml", &format!("method: {{dpo: {{}}}}\ndata: pairs.jsonl\nmodel: {model}\n"));
    test.fails(
        &["cluster", "slurm", "run.yml"],
        1,
        "error: `run.yml` has no `output_dir`\n\
         hint: set one on a file system that all nodes share: a restarted job resumes from there\n",
    );
    test.write("run.yml", &format!("{CONFIG}model: {model}\n"));
    test.fails(
        &["cluster", "slurm", "run.yml", "--nodes", "9"],
        1,
        &format!("error: 9 ranks cannot share a run with `train.lanes: 8`\n{FEWER}"),
    );
    // More than 32 bits can count.
    for system in [&["slurm"][..], &["skypilot", "--setup", "true"]] {
        let many = ["run.yml", "--nodes", "65536", "--ranks-per-node", "65536", "--memory", "1"];
        test.fails(
            &[&["cluster"][..], system, &many].concat(),
            1,
            &format!("error: 4294967296 ranks cannot share a run with `train.lanes: 8`\n{FEWER}"),
        );
    }
    for time in ["1:00\n#SBATCH --account=x", "soon", "1-00:00:00:00", "00:30:00 --wrap", ""] {
        let run = test.run(&["cluster", "slurm", "run.yml", "--time", time]);
        assert!(run.code == 2 && run.stderr.contains("expected a time limit such as `90`"), "{run:?}");
    }
    test.succeeds(&["cluster", "slurm", "run.yml", "--time", "unlimited", "-q"]);
    for partition in ["a b", "a\n#SBATCH --account=x", ""] {
        let run = test.run(&["cluster", "slurm", "run.yml", "--partition", partition]);
        assert!(run.code == 2 && run.stderr.contains("expected a name without spaces"), "{run:?}");
    }
    // The forecast refuses what the run refuses.
    let plan = ["plan", "dpo", "--model", &model, "--data", "pairs.jsonl", "--ranks"];
    test.fails(
        &[&plan[..], &["9"]].concat(),
        1,
        &format!("error: 9 ranks cannot share a run with `train.lanes: 8`\n{FEWER}"),
    );
    test.succeeds(&[&plan[..], &["8", "--quiet"]].concat());
}
