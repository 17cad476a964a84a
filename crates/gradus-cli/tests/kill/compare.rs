//! Comparison of all files of two runs, without measurements of the machine.

use std::collections::BTreeMap;
use std::path::Path;

use gradus::run::is_measurement;
use serde_json::Value;

/// Files that show measurements or times.
const SHOWN: [&str; 6] = [".lock", "state.json", "log.txt", "report.html", "plots/time.png", "plots/speed.png"];

/// Returns the contents of each file below `directory`, by path.
pub fn snapshot(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    collect(directory, "", &mut files);
    files
}

fn collect(directory: &Path, prefix: &str, files: &mut BTreeMap<String, Vec<u8>>) {
    for entry in std::fs::read_dir(directory).expect("a run's directory can be read") {
        let entry = entry.expect("an entry can be read");
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            collect(&entry.path(), &format!("{name}/"), files);
        } else if !SHOWN.contains(&name.as_str()) {
            let bytes = std::fs::read(entry.path()).expect("a file can be read");
            files.insert(name.clone(), comparable(&name, bytes));
        }
    }
}

/// Returns the bytes of a file, without measurements if it is JSON.
fn comparable(name: &str, bytes: Vec<u8>) -> Vec<u8> {
    let parse = |text: &[u8]| serde_json::from_slice::<Value>(text).unwrap_or_else(|error| panic!("{name}: {error}"));
    if name.ends_with(".jsonl") {
        let lines = bytes.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
        lines.flat_map(|line| (without(parse(line)).to_string() + "\n").into_bytes()).collect()
    } else if name.ends_with("checksums.json") {
        // Removes the checksums of two files that contain measurements.
        let mut value = parse(&bytes);
        let files = value["files"].as_object_mut().expect("sums by file");
        files.retain(|file, _| file != "run_state.json" && file != "trainer_state.json");
        value.to_string().into_bytes()
    } else if name.ends_with(".json") {
        without(parse(&bytes)).to_string().into_bytes()
    } else {
        bytes
    }
}

fn without(value: Value) -> Value {
    match value {
        Value::Object(object) => object
            .into_iter()
            .filter(|(key, _)| !is_measurement(key))
            .map(|(key, value)| (key, without(value)))
            .collect(),
        Value::Array(items) => items.into_iter().map(without).collect(),
        other => other,
    }
}

/// Lists the files that differ, with their first difference.
pub fn differences(expected: &BTreeMap<String, Vec<u8>>, found: &BTreeMap<String, Vec<u8>>) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, bytes) in expected {
        match found.get(name) {
            None => lines.push(format!("{name}: missing")),
            Some(other) if other != bytes => lines.push(format!("{name}: {}", first_difference(bytes, other))),
            Some(_) => {}
        }
    }
    lines.extend(found.keys().filter(|name| !expected.contains_key(*name)).map(|name| format!("{name}: not expected")));
    lines
}

fn first_difference(expected: &[u8], found: &[u8]) -> String {
    let at = expected.iter().zip(found).take_while(|(a, b)| a == b).count();
    let near = |bytes: &[u8]| {
        let part = &bytes[at.saturating_sub(60).min(bytes.len())..(at + 60).min(bytes.len())];
        String::from_utf8_lossy(part).into_owned()
    };
    format!(
        "{} against {} bytes, from byte {at}: `{}` against `{}`",
        expected.len(),
        found.len(),
        near(expected),
        near(found)
    )
}
