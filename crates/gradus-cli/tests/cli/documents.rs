//! This binary accepts every command line in README and docs.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::CliTest;

fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let docs = std::fs::read_dir(root.join("docs")).expect("docs").map(|entry| entry.expect("an entry").path());
    let mut found: Vec<_> = docs.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect();
    found.extend(["README.md", "CONTRIBUTING.md", "SECURITY.md"].map(|name| root.join(name)));
    found.sort();
    found
}

/// Returns the code blocks that call gradus, with the line number before each.
fn blocks(path: &Path) -> Vec<(usize, String)> {
    let text = std::fs::read_to_string(path).expect("readable");
    let (mut found, mut block) = (Vec::new(), None::<(usize, String)>);
    for (number, line) in text.lines().enumerate().map(|(i, line)| (i + 1, line.trim_start())) {
        match (line.starts_with("```"), &mut block) {
            (true, Some(_)) => found.extend(block.take()),
            (true, None) => block = Some((number, String::new())),
            (false, Some((_, inner))) => *inner += &format!("{}\n", line.strip_prefix("$ ").unwrap_or(line)),
            (false, None) => {}
        }
    }
    found.retain(|(_, block)| block.split_whitespace().any(|word| word == "gradus"));
    found
}

/// Removes ` > FILE` from a block. It redirects output and is not an argument.
fn without_redirections(block: &str) -> String {
    let mut text = block.to_owned();
    while let Some(at) = text.find(" > ") {
        let file = &text[at + 3..];
        let end = file.find(char::is_whitespace).unwrap_or(file.len());
        text.replace_range(at..at + 3 + end, "");
    }
    text
}

/// Returns the arguments of each `gradus` call in a block, as parsed by a shell. Nothing else in the block is run.
fn calls(block: &str, directory: &Path) -> Vec<Vec<String>> {
    let function = r#"gradus() { for word in "$@"; do printf '%s\001' "$word" >&3; done; printf '\002' >&3; }"#;
    let script =
        format!("exec 3>&1 >/dev/null\n{function}\n{}", without_redirections(block).replace(['<', '>', '['], ""));
    // Variables for the reader to replace, such as `$MODEL`.
    let variables =
        block.split('$').skip(1).map(|rest| rest.split(|c: char| !(c.is_ascii_uppercase() || c == '_')).next());
    let mut shell = Command::new("/bin/sh");
    shell.envs(variables.flatten().filter(|name| !name.is_empty()).map(|name| (name, name)));
    let output = shell.args(["-c", &script]).env("PATH", "").current_dir(directory).output();
    let text = String::from_utf8_lossy(&output.expect("a shell").stdout).into_owned();
    let words = |call: &str| call.split('\u{1}').filter(|word| !word.is_empty()).map(str::to_owned).collect();
    text.split('\u{2}').filter(|call| call.contains('\u{1}')).map(words).collect()
}

#[test]
#[cfg(unix)]
fn every_command_of_the_documents_is_taken() {
    let test = CliTest::new();
    let (mut wrong, mut count) = (String::new(), 0);
    for path in documents() {
        for (line, block) in blocks(&path) {
            for call in calls(&block, test.path()) {
                count += 1;
                // `--help` takes effect only after everything before it was parsed, including checks of values.
                let mut arguments: Vec<&str> = call.iter().map(String::as_str).collect();
                arguments.push("--help");
                let run = test.run(&arguments);
                // A document is not wrong because this machine has no GPU.
                let lacks_device = run.stderr.contains("this build finds");
                if run.code != 0 && !lacks_device {
                    let name = path.file_name().expect("a name").to_string_lossy();
                    wrong += &format!("{name}:{line}: gradus {}\n{}\n", call.join(" "), run.stderr);
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(count >= 60, "{count} commands were found");
}

#[test]
#[cfg(unix)]
fn the_image_is_built_from_all_that_cargo_reads() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository");
    let context = CliTest::new();
    let ignore = std::fs::read_to_string(root.join(".dockerignore")).expect("readable");
    for kept in ignore.lines().filter_map(|line| line.strip_prefix('!')) {
        let (stem, is_pattern) = kept.strip_suffix('*').map_or((kept, false), |stem| (stem, true));
        for entry in std::fs::read_dir(&root).expect("the repository") {
            let (name, path) = entry.map(|entry| (entry.file_name(), entry.path())).expect("an entry");
            let name = name.to_str().expect("UTF-8");
            if name == kept || is_pattern && name.starts_with(stem) {
                // Docker copies a link as a link. Its target must be in the context, too.
                let copied = Command::new("cp").arg("-RP").arg(path).arg(context.path()).status();
                assert!(copied.expect("cp").success(), "{name} is not copied");
            }
        }
    }
    // With `-L`, only links without a target still have the type of a link.
    let dangling = Command::new("find").args(["-L", ".", "-type", "l"]).current_dir(context.path()).output();
    let dangling = dangling.expect("find");
    assert!(dangling.status.success(), "{}", String::from_utf8_lossy(&dangling.stderr));
    let links = String::from_utf8_lossy(&dangling.stdout);
    assert!(links.is_empty(), "targets of these links are missing in .dockerignore:\n{links}");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--no-deps", "--offline", "--locked", "--format-version", "1"]);
    let output = cargo.current_dir(context.path()).output().expect("cargo");
    assert!(output.status.success(), "of what .dockerignore lets through: {}", String::from_utf8_lossy(&output.stderr));
}
