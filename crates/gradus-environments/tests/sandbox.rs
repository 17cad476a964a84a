//! Attacks on the sandbox. This test is a program of its own, because it is started again for each confined program.

#![allow(clippy::print_stdout, reason = "it is its own test harness")]
#![allow(clippy::disallowed_methods, reason = "tests read the environment")]

use std::io::{BufRead as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use gradus_environments::functions::Python;
use gradus_environments::sandbox::{self, End, ProgramOutput, Sandbox, SandboxConfig};
use gradus_environments::{Call, Environment, Start, Toolbox, Turn};

#[path = "../../gradus/tests/support/skip.rs"]
mod skip;

fn main() -> ExitCode {
    if let Some(error) = sandbox::answer(std::env::args_os().skip(1)) {
        let _ = std::io::stderr().write_all(error.as_bytes());
        return ExitCode::from(sandbox::UNCONFINED);
    }
    if std::env::args().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS;
    }
    // Without a registered program, nothing runs.
    let refused = Sandbox::open(&SandboxConfig::default()).expect_err("nothing is registered");
    assert!(refused.to_string().contains("it has registered no sandbox"), "{refused}");
    sandbox::register(std::env::current_exe().expect("this program"), Vec::new());
    if std::env::args().nth(1).as_deref() == Some(WAIT) {
        wait();
        return ExitCode::SUCCESS;
    }
    let sandbox = match Sandbox::open(&config(60)) {
        Ok(sandbox) => sandbox,
        Err(error) => {
            skip::skipped("sandbox", &error.to_string());
            return ExitCode::SUCCESS;
        }
    };
    for (name, test) in TESTS {
        test(&sandbox);
        println!("test {name} ... ok");
    }
    ExitCode::SUCCESS
}

type Test = fn(&Sandbox);
const TESTS: &[(&str, Test)] = &[
    ("programs_compute", programs_compute),
    ("time_ends", time_ends),
    ("memory_ends", memory_ends),
    ("output_ends", output_ends),
    ("silence_is_no_end", silence_is_no_end),
    ("the_module_is_main", the_module_is_main),
    ("a_virtual_environment_keeps_its_packages", a_virtual_environment_keeps_its_packages),
    ("nobody_outlives_the_parent", nobody_outlives_the_parent),
    ("no_file_is_changed_or_read", no_file_is_changed_or_read),
    ("no_network", no_network),
    ("no_processes_and_no_signals", no_processes_and_no_signals),
    ("no_way_past_the_library", no_way_past_the_library),
    ("a_crash_is_an_outcome", a_crash_is_an_outcome),
    ("a_tool_answers_with_what_went_wrong", a_tool_answers_with_what_went_wrong),
    ("nobody_is_left", nobody_is_left),
];

fn config(seconds: u64) -> SandboxConfig {
    SandboxConfig { seconds, ..SandboxConfig::default() }
}

fn run(sandbox: &Sandbox, code: &str) -> ProgramOutput {
    sandbox.run(code, "").expect("started")
}

/// Runs lines that must all be rejected. A line that succeeds prints `THROUGH`.
#[track_caller]
fn all_refused(sandbox: &Sandbox, setup: &str, lines: &[&str]) {
    let tries: String =
        lines.iter().map(|line| format!("try:\n    {line}\n    print('THROUGH', {line:?})\nexcept (OSError, ValueError, RuntimeError) as error:\n    print(type(error).__name__)\n")).collect();
    let outcome = run(sandbox, &format!("{setup}\n{tries}\nprint('end')"));
    assert!(outcome.stdout.ends_with("end\n") && !outcome.stdout.contains("THROUGH"), "{outcome:?}");
}

fn programs_compute(sandbox: &Sandbox) {
    let outcome = run(sandbox, "import math, json, re, collections, fractions, itertools\nprint(math.factorial(20))");
    assert_eq!((outcome.stdout.as_str(), outcome.end), ("2432902008176640000\n", End::Code(0)), "{outcome:?}");
    let outcome = sandbox.run("print(input()[::-1])", "é⟩\nmore").expect("started");
    assert_eq!(outcome.stdout, "⟩é\n", "{outcome:?}");
    let outcome = run(sandbox, "import threading\nt = threading.Thread(target=print, args=(1,))\nt.start(); t.join()");
    assert_eq!(outcome.stdout, "1\n", "threads may be made: {outcome:?}");
    assert_eq!(run(sandbox, "import sys; sys.exit(3)").end, End::Code(3));
    assert!(run(sandbox, "1/0").stderr.ends_with("ZeroDivisionError: division by zero\n"));
    assert!(run(sandbox, "def f(:").stderr.contains("SyntaxError"));
    assert_eq!(run(sandbox, "import os\nprint(sorted(os.environ) == sorted(set(os.environ) & {'PATH', 'HOME', 'LANG', 'OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'PYTHONDONTWRITEBYTECODE', 'LC_CTYPE'}))").stdout, "True\n");
}

fn time_ends(_: &Sandbox) {
    let sandbox = &Sandbox::open(&config(1)).expect("a sandbox");
    for code in ["while True: pass", "10 ** 10 ** 9", "import re\nre.match('(a+)+$', 'a' * 64 + 'b')"] {
        assert!(matches!(run(sandbox, code).end, End::OverLimit | End::OutOfTime), "{code}");
    }
    assert_eq!(run(sandbox, "import time\ntime.sleep(60)").end, End::OutOfTime);
    let ignoring = "import signal, time\nfor s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError): pass\ntime.sleep(60)";
    assert_eq!(run(sandbox, ignoring).end, End::OutOfTime);
}

fn memory_ends(sandbox: &Sandbox) {
    for code in
        ["x = 'x' * (1 << 30)", "import mmap\nmmap.mmap(-1, 1 << 30)", "x = []\nwhile True: x.append(bytes(1 << 20))"]
    {
        let outcome = run(sandbox, code);
        assert!(matches!(outcome.end, End::Code(1) | End::OverLimit | End::Killed(_)), "{code}: {outcome:?}");
    }
    // Threads have stacks, which count toward the limit.
    let outcome = run(
        sandbox,
        "import threading, time\nfor _ in range(100000): threading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
    );
    assert_ne!(outcome.end, End::Code(0), "{outcome:?}");
    let outcome =
        run(sandbox, "import os\nn = 0\ntry:\n    while True: os.pipe(); n += 2\nexcept OSError: print(n < 64)");
    assert_eq!(outcome.stdout, "True\n", "{outcome:?}");
}

fn output_ends(sandbox: &Sandbox) {
    for code in [
        "while True: print('x' * 1000)",
        "import sys\nwhile True: sys.stderr.write('x' * 1000)",
        "import os\nwhile True: os.write(1, b'\\0' * 100000)",
    ] {
        let outcome = run(sandbox, code);
        assert!(matches!(outcome.end, End::TooMuchOutput), "{code}: {:?}", outcome.end);
        assert!(outcome.stdout.len() + outcome.stderr.len() < 400_000);
    }
}

fn silence_is_no_end(sandbox: &Sandbox) {
    let outcome = run(sandbox, "import os, time\nos.close(1); os.close(2)\ntime.sleep(1)\nos._exit(7)");
    assert_eq!(outcome.end, End::Code(7), "{outcome:?}");
    let outcome = run(sandbox, "import os\nwith open(os.devnull, 'w') as sink: print('nothing', file=sink)\nprint(1)");
    assert_eq!(outcome.stdout, "1\n", "{outcome:?}");
}

/// The expected results are those of `python3 FILE`.
fn the_module_is_main(sandbox: &Sandbox) {
    let code = "\
from __future__ import annotations
import dataclasses, pickle, sys, typing, unittest
@dataclasses.dataclass
class Node:
    value: int
    after: typing.Optional[Node] = None
class Test(unittest.TestCase):
    def test_nothing(self): pass
print(pickle.loads(pickle.dumps(Node(3))).value, sorted(typing.get_type_hints(Node)))
print(sys.modules['__main__'].Node is Node, unittest.main(exit=False).result.testsRun)
print(sorted(name for name in globals() if not name.startswith('__')))";
    let outcome = run(sandbox, code);
    let names = "['Node', 'Test', 'annotations', 'dataclasses', 'pickle', 'sys', 'typing', 'unittest']";
    assert_eq!(outcome.stdout, format!("3 ['after', 'value']\nTrue 1\n{names}\n"), "{outcome:?}");
}

fn a_virtual_environment_keeps_its_packages(_: &Sandbox) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("venv");
    let made = Command::new("python3").args(["-m", "venv", "--without-pip"]).arg(&path).output().expect("Python runs");
    if !made.status.success() {
        skip::skipped("venv", &String::from_utf8_lossy(&made.stderr));
        return;
    }
    let python = path.join("bin/python");
    let site = "import sysconfig; print(sysconfig.get_path('purelib'))";
    let site = Command::new(&python).args(["-c", site]).output().expect("Python runs").stdout;
    let site = String::from_utf8(site).expect("UTF-8");
    std::fs::write(Path::new(site.trim()).join("only_here.py"), "number = 7\n").expect("written");
    let sandbox = Sandbox::open(&SandboxConfig { python, ..config(60) }).expect("a sandbox");
    let outcome = run(&sandbox, "import only_here\nprint(only_here.number)");
    assert_eq!(outcome.stdout, "7\n", "{outcome:?}");
}

/// Argument with which this program runs a program that sleeps.
const WAIT: &str = "__wait";

fn wait() {
    let sandbox = Sandbox::open(&config(600)).expect("a sandbox");
    println!("open");
    let _ = run(&sandbox, "import time\ntime.sleep(60)");
}

fn nobody_outlives_the_parent(_: &Sandbox) {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    let mut parent = command.arg(WAIT).stdout(Stdio::piped()).spawn().expect("started");
    let mut line = String::new();
    let stdout = parent.stdout.take().expect("stdout is piped");
    std::io::BufReader::new(stdout).read_line(&mut line).expect("it says when its sandbox is open");
    assert_eq!(line, "open\n");
    // A child that is not yet Python may be any process of the parent.
    let programs = || children(parent.id()).into_iter().filter(|child| is_python(child)).collect::<Vec<_>>();
    wait_until("a program runs", || !programs().is_empty());
    let programs = programs();
    parent.kill().expect("killed");
    parent.wait().expect("ended");
    wait_until("the program has ended", || programs.iter().all(|program| !is_running(program)));
}

/// Polls until `is_true` returns true. The time limit is shorter than the sleep of [`wait`].
fn wait_until(what: &str, is_true: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_true() {
        assert!(begun.elapsed() < Duration::from_secs(50), "never true: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// State and parent of a process, from its folder in `/proc`.
fn state(process: &Path) -> Option<(String, u32)> {
    let stat = std::fs::read_to_string(process.join("stat")).ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}

/// Whether a process runs. One that ended may stay for a while, until its new parent learns of it.
fn is_running(process: &Path) -> bool {
    state(process).is_some_and(|(state, _)| state != "Z" && state != "X")
}

/// Whether a process runs Python, not yet the program that was started before it.
fn is_python(process: &Path) -> bool {
    std::fs::read_to_string(process.join("comm")).is_ok_and(|name| name.starts_with("python"))
}

/// Folders of the processes with this parent.
fn children(parent: u32) -> Vec<PathBuf> {
    let processes = std::fs::read_dir("/proc").expect("Linux").flatten().map(|entry| entry.path());
    processes.filter(|process| state(process).is_some_and(|(_, found)| found == parent)).collect()
}

fn no_file_is_changed_or_read(sandbox: &Sandbox) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("secret");
    std::fs::write(&file, "secret").expect("written");
    let setup = format!("import os, shutil\nfile, folder = {:?}, {:?}", file, folder.path());
    all_refused(
        sandbox,
        &setup,
        &[
            "open(file).read()",
            "open(file, 'w')",
            "open(file, 'a')",
            "open(folder + '/new', 'w')",
            "open('/tmp/new', 'w')",
            "open('/dev/shm/new', 'w')",
            "open('new', 'w')",
            "open('/etc/passwd').read()",
            "open('/proc/self/environ').read()",
            "open('/proc/1/cmdline').read()",
            "os.listdir('/')",
            "os.listdir(folder)",
            "os.listdir('/root')",
            "os.mkdir(folder + '/new')",
            "os.unlink(file)",
            "os.rename(file, file + '2')",
            "os.link(file, file + '2')",
            "os.symlink(file, folder + '/link')",
            "os.truncate(file, 0)",
            "os.chmod(file, 0o777)",
            "os.chown(file, 1, 1)",
            "os.utime(file)",
            "os.setxattr(file, 'user.a', b'a')",
            "os.mkfifo(folder + '/pipe')",
            "os.mknod(folder + '/node')",
            "os.chroot(folder)",
            "os.memfd_create('a')",
            "open('/usr/bin/new', 'w')",
        ],
    );
    assert_eq!(std::fs::read_to_string(&file).expect("there"), "secret");
    assert_eq!(std::fs::read_dir(folder.path()).expect("there").count(), 1);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_ne!(file.metadata().expect("there").permissions().mode() & 0o777, 0o777);
    }
}

fn no_network(sandbox: &Sandbox) {
    all_refused(
        sandbox,
        "import socket, urllib.request",
        &[
            "socket.socket()",
            "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
            "socket.socket(socket.AF_UNIX)",
            "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
            "socket.create_connection(('127.0.0.1', 80))",
            "socket.getaddrinfo('example.com', 80)",
            "urllib.request.urlopen('http://127.0.0.1')",
        ],
    );
}

fn no_processes_and_no_signals(sandbox: &Sandbox) {
    all_refused(
        sandbox,
        "import os, subprocess, multiprocessing, signal",
        &[
            "os.fork()",
            "os.posix_spawn('/bin/true', ['true'], {})",
            "subprocess.run(['true'])",
            "multiprocessing.Process(target=print).start()",
            "os.kill(os.getppid(), signal.SIGTERM)",
            "os.kill(-1, signal.SIGTERM)",
            "os.kill(1, 0)",
            "os.killpg(os.getpgid(os.getppid()), 0)",
            "os.setuid(1)",
            // The program may run as the user of the trainer.
            "os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
            "os.setpriority(os.PRIO_USER, 0, 19)",
            "os.sched_setaffinity(os.getppid(), [0])",
            "os.sched_setscheduler(os.getppid(), os.SCHED_IDLE, os.sched_param(0))",
            "os.sched_setparam(os.getppid(), os.sched_param(0))",
        ],
    );
    // `system` returns a number.
    assert_ne!(run(sandbox, "import os\nprint(os.system('true'))").stdout, "0\n");
}

/// Makes system calls directly by their numbers.
fn no_way_past_the_library(sandbox: &Sandbox) {
    if cfg!(not(target_arch = "x86_64")) {
        skip::skipped("x86-64", "the numbers of system calls are those of x86-64");
        return;
    }
    let setup = "\
import ctypes, os
_c = ctypes.CDLL(None, use_errno=True)
def call(*numbers):
    if _c.syscall(*[ctypes.c_long(n) for n in numbers]) < 0:
        raise OSError(ctypes.get_errno(), 'refused')
X32 = 0x40000000";
    all_refused(
        sandbox,
        setup,
        &[
            "call(41, 2, 1, 0)",
            "call(41 | X32, 2, 1, 0)",
            "call(57)",
            "call(58)",
            "call(56, 17, 0, 0, 0, 0)",
            "call(57 | X32)",
            "call(435, 0, 0)",
            "call(101, 0, 0, 0, 0)",
            "call(310, os.getppid(), 0, 0, 0, 0, 0)",
            "call(319, 0, 0)",
            "call(425, 8, 0)",
            "call(272, 0x10000000)",
            "call(321, 0, 0, 0)",
            "call(62, os.getppid(), 0)",
            "call(234, os.getppid(), os.getppid(), 0)",
            "call(200, os.getppid(), 0)",
            "call(434, os.getppid(), 0)",
            "call(302, os.getppid(), 0, 0, 0)",
            "call(165, 0, 0, 0, 0, 0)",
            "call(169, 0, 0, 0)",
            "call(29, 0, 4096, 0o1600)",
            "call(164, 0, 0)",
            "call(141, 0, os.getppid(), 19)",
            "call(203, os.getppid(), 0, 0)",
            "call(144, os.getppid(), 0, 0)",
            "call(142, os.getppid(), 0)",
            "call(314, os.getppid(), 0, 0)",
            "call(251, 1, os.getppid(), 3 << 13)",
            "call(256, os.getppid(), 0, 0, 0)",
            "call(279, os.getppid(), 0, 0, 0, 0, 0)",
            "call(157, 1, 0)",
            "call(157, 1 << 32 | 1, 0)",
        ],
    );
}

fn a_crash_is_an_outcome(sandbox: &Sandbox) {
    assert_eq!(run(sandbox, "import ctypes\nctypes.string_at(0)").end, End::Killed(11));
    assert_eq!(run(sandbox, "import os\nos._exit(0)").end, End::Code(0));
    assert_eq!(run(sandbox, "import os\nos.abort()").end, End::Killed(6));
    let long = "x = 1\n".repeat(400_000);
    assert!(run(sandbox, &long).stderr.contains("bytes, but at most"));
    let wrong = Sandbox::open(&SandboxConfig { python: PathBuf::from("/nowhere/python"), ..config(1) });
    assert!(wrong.expect_err("refused").to_string().contains("`/nowhere/python` cannot be used"));
    assert!(Sandbox::open(&SandboxConfig { memory_mb: 1, ..config(1) }).is_err());
    assert!(Sandbox::open(&config(0)).is_err());
}

fn a_tool_answers_with_what_went_wrong(_: &Sandbox) {
    for (seconds, code, expected) in [
        (60, "print(2 + 2)", "4\n"),
        (60, "2 + 2", "(the program printed nothing)"),
        (60, "1 / 0", "{'error': 'ZeroDivisionError: division by zero'}"),
        (1, "import time\ntime.sleep(9)", "{'error': 'the program took more than 1 s'}"),
        (60, "import os\nos.abort()", "{'error': 'the program was ended by signal 6'}"),
        (60, "raise KeyboardInterrupt", "{'error': 'the program was ended by signal 2: KeyboardInterrupt'}"),
    ] {
        let toolbox = Toolbox::new(vec![Box::new(Python::open(&config(seconds)).expect("a sandbox"))]);
        let toolbox = toolbox.expect("one tool");
        let start = Start { name: "a".into(), seed: 1, row: serde_json::Map::new() };
        let mut episode = toolbox.begin(&start).expect("begun").episode;
        let arguments = serde_json::json!({ "code": code }).as_object().cloned().expect("an object");
        let call = Call { id: None, name: "python".into(), arguments: Ok(arguments) };
        let turn = Turn { calls: vec![call], ..Turn::default() };
        let replies = episode.step(&turn).expect("answered").replies;
        assert_eq!(replies[0].content(), expected, "{code}");
    }
}

fn nobody_is_left(_: &Sandbox) {
    assert_eq!(children(std::process::id()), Vec::<PathBuf>::new());
}
