//! gradus as the first process of a container, whose signals the system ignores unless they have a handler.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};

use crate::process::binary;

/// Starts a process as the first one of a namespace.
const FIRST: [&str; 5] = ["--user", "--map-root-user", "--pid", "--fork", "--kill-child"];

#[test]
fn the_first_process_ends_at_a_signal() {
    let can_start = Command::new("unshare").args(FIRST).arg("true").stderr(Stdio::null()).status();
    if !can_start.is_ok_and(|status| status.success()) {
        return crate::skip::skipped("unshare", "a command that is the first process of a namespace");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let prompts = folder.path().join("prompts.jsonl");
    std::fs::write(&prompts, "{\"prompt\": \"The tea is\"}\n".repeat(20_000)).expect("written");
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../gradus/tests/fixtures/parity/trajectories/models/gpt2");
    for signal in ["INT", "TERM"] {
        let mut outer = Command::new("unshare")
            .args(FIRST)
            .arg(binary())
            .args(["generate", "--model", model, "--max-new-tokens", "16", "--prompts"])
            .arg(&prompts)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let mut rows = BufReader::new(outer.stdout.take().expect("a pipe"));
        rows.read_line(&mut String::new()).expect("the first row");
        let id = outer.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).expect("Linux lists children");
        let sent = Command::new("kill").args(["-s", signal, children.trim()]).status();
        assert!(sent.is_ok_and(|status| status.success()), "the process {children} gets the signal");
        // Without a handler, all rows follow, and the exit code is 0.
        rows.read_to_end(&mut Vec::new()).expect("the other rows");
        assert_eq!(outer.wait().expect("it ends").code(), Some(130), "{signal}");
    }
}
