//! Tests that a server that is killed in the middle of saves loses nothing that it acknowledged.
//!
//! The server runs in a separate process: this test program, started again with an environment variable.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;

use gradus::device::DeviceChoice;
use gradus_web::{LEASE_MINUTES, NewProject, Role, invite, new_project};
use serde_json::{Value, json};

use crate::client::{Server, Visitor};

/// Environment variable with the folder to serve.
const FOLDER: &str = "GRADUS_TEST_SERVES";

/// Prefix of the address in the output of the process.
const MARK: &str = "serves at ";

/// Number of times the server is killed.
const KILLS: u64 = 30;

/// Starts a server for a folder in a separate process.
fn start(folder: &Path) -> (Child, Server) {
    let own = std::env::current_exe().expect("the program has a path");
    let mut child = Command::new(own)
        .args(["--exact", "killed::serves_until_it_is_killed", "--ignored", "--nocapture"])
        .env(FOLDER, folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("a process");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let address = lines.map_while(Result::ok).find_map(|line| line.split_once(MARK).map(|(_, rest)| rest.to_owned()));
    let socket: SocketAddr = address.expect("it serves").trim().parse().expect("an address");
    (child, Server::elsewhere(socket))
}

#[test]
#[ignore = "a process of its own, which another test starts and kills"]
fn serves_until_it_is_killed() {
    let folder = PathBuf::from(std::env::var_os(FOLDER).expect("a folder"));
    let server = Server::over(&folder);
    // The test harness captures printed output, so this writes to stdout directly.
    let mut out = std::io::stdout().lock();
    writeln!(out, "{MARK}{}", server.address.socket).and_then(|()| out.flush()).expect("somebody reads");
    drop(out);
    loop {
        std::thread::park();
    }
}

/// Returns the stored number, and the revision that a page starts from.
fn stored(visitor: &Visitor<'_>) -> (u64, Value) {
    let state = visitor.get("/annotate/tea/task/1/state").json();
    let feedback = state["answer"]["feedback"].as_str().filter(|text| !text.is_empty());
    (feedback.map_or(0, |text| text.parse().expect("a number")), state["revision"].clone())
}

#[test]
fn nothing_that_was_acknowledged_is_lost() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("rows.jsonl");
    let row = json!({ "prompt": "Q", "completions": ["a", "b"], "models": ["x", "y"] });
    fs::write(&data, format!("{row}\n")).expect("written");
    let new = NewProject {
        name: "tea".into(),
        data: data.to_string_lossy().into_owned(),
        labels: "comparison".into(),
        annotators: 1,
        lease_minutes: LEASE_MINUTES,
        max_tasks: None,
        sampled: None,
        uncertain_to: None,
        device: DeviceChoice::cpu(),
    };
    new_project(folder.path(), &new, &mut |_, _| {}).expect("a project");
    let token = invite(folder.path(), "ada", Role::Annotator).expect("a token");
    let (mut acknowledged, mut sent) = (0u64, 0u64);
    for round in 0..KILLS {
        let (mut child, server) = start(folder.path());
        let visitor = Visitor::of(&server);
        assert_eq!(visitor.form("/annotate/enter", &[("name", "ada"), ("token", &token)]).status, 303);
        assert_eq!(visitor.get("/annotate/tea").status, 303);
        let (found, revision) = stored(&visitor);
        assert!((acknowledged..=sent).contains(&found), "round {round}: {found}, but {acknowledged} was acknowledged");
        // Saves continue while the server is killed. Each round kills it after a different number of saves.
        let (sender, receiver) = channel();
        std::thread::scope(|scope| {
            let saves = scope.spawn(|| {
                let sender = sender;
                loop {
                    sent += 1;
                    let answer = json!({ "feedback": sent.to_string() });
                    let page = format!("page {round}");
                    let body = json!({ "answer": answer, "state": "open", "seconds": 0.0, "revision": revision, "page": page });
                    match visitor.try_script("/annotate/tea/task/1/keep", &body) {
                        Some(answer) if answer.status == 200 => acknowledged = sent,
                        // There was no response: the server has ended.
                        Some(answer) if answer.status != 0 => panic!("{answer:?}"),
                        _ => return,
                    }
                    let _ = sender.send(());
                }
            });
            receiver.iter().take(1 + (round * 7 % 11) as usize).for_each(drop);
            child.kill().expect("killed");
            saves.join().expect("the saves end with the server");
        });
        child.wait().expect("ended");
    }
    let (mut child, server) = start(folder.path());
    let visitor = Visitor::of(&server);
    assert_eq!(visitor.form("/annotate/enter", &[("name", "ada"), ("token", &token)]).status, 303);
    let (found, _) = stored(&visitor);
    assert!((acknowledged..=sent).contains(&found), "{found}, but {acknowledged} was acknowledged");
    assert!(acknowledged >= KILLS, "{acknowledged} saves in {KILLS} rounds");
    child.kill().expect("killed");
    child.wait().expect("ended");
}
