//! The house rules that the compiler does not check: who may use whom, who may print, what every document lists.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Who may use whom: each part of the library and what it may use, from the ground up. A part may only use parts above
/// its own line, so the table is also the proof that there is no circle.
///
/// A part is a module (`math`) or, where two sides of one module stand at different heights, a submodule
/// (`train::run`); the longest name that fits a file or a path counts. Within one module, anything goes.
const PARTS: &[(&str, &[&str])] = &[
    ("error", &[]),
    ("rng", &[]),
    ("files", &[]),
    ("machine", &[]),
    ("math", &[]),
    ("text", &[]),
    ("loss", &["gradus_kernels"]),
    ("model", &["gradus_kernels"]),
    ("run", &[]),
    ("data", &["text"]),
    ("task", &["data", "text"]),
    ("metric", &["text", "model"]),
    ("generate", &["model", "gradus_kernels"]),
    ("rollout", &["generate", "model", "text", "data"]),
    // What the algorithms and both loops take a step with.
    ("train::batches", &[]),
    ("memory", &["model", "train::batches"]),
    ("train::stats", &["run"]),
    ("train::objective", &[]),
    ("train::optimizer", &["model", "gradus_kernels"]),
    ("train::learner", &["model"]),
    ("train::settings", &["math", "model", "run"]),
    ("reward", &["rollout", "model", "text", "data", "metric", "train::batches", "train::objective"]),
    (
        "algorithm",
        &[
            "math",
            "loss",
            "model",
            "rollout",
            "run",
            "train::batches",
            "train::stats",
            "train::objective",
            "train::optimizer",
            "train::learner",
            "train::settings",
        ],
    ),
    (
        "train",
        &[
            "algorithm",
            "loss",
            "model",
            "data",
            "text",
            "task",
            "generate",
            "rollout",
            "reward",
            "metric",
            "run",
            "math",
        ],
    ),
    (
        "config",
        &["train", "algorithm", "reward", "rollout", "generate", "task", "data", "text", "model", "run", "machine"],
    ),
    ("run::index", &["run", "config"]),
    // The ways in, one behind each command: from a checked plan to a finished run, from a model to its answers.
    ("train::prepare", &[ALL_BELOW]),
    ("train::examples", &[ALL_BELOW]),
    ("train::forecast", &[ALL_BELOW]),
    ("train::models", &[ALL_BELOW]),
    ("train::run", &[ALL_BELOW]),
    ("inference", &[ALL_BELOW]),
    (
        "bench",
        &[
            "machine",
            "model",
            "data",
            "generate",
            "train",
            "train::learner",
            "train::optimizer",
            "train::settings",
            "gradus_kernels",
        ],
    ),
    ("compare", &[ALL_BELOW]),
    ("demo", &[ALL_BELOW]),
];

/// Stands for every part above the line.
const ALL_BELOW: &str = "*";

/// What every module may use: the error type, the streams of random numbers, and how files are written.
const GROUND: &[&str] = &["error", "rng", "files"];

/// What must not be found in the code of a module, and why.
const FORBIDDEN: &[(&str, &[&str], &str)] = &[
    ("math", &["burn::", "std::fs", "std::io", "tracing::"], "host arithmetic has no tensors, no files and no log"),
    ("loss", &["std::fs", "std::io", "tracing::"], "a loss has no files and no log"),
    ("text", &["burn::"], "text has no tensors"),
    ("data", &["burn::"], "data has no tensors"),
    ("", &["clap::", "axum::", "tokio::", "indicatif::"], "arguments, HTTP and progress bars belong to the binary"),
    ("", &["static mut "], "no global mutable state"),
    ("", &["unsafe {", "unsafe fn", "unsafe impl"], "unsafe code belongs to gradus-kernels"),
];

/// Files that are only there for tests.
const TESTS: &[&str] = &["tests.rs", "test_support.rs"];

fn workspace() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A source file: its path below `src`, and its code without comments and without its tests.
struct Source {
    path: String,
    code: String,
}

impl Source {
    /// The module of the library it belongs to.
    fn module(&self) -> &str {
        self.path.split(['/', '.']).next().expect("a path has a first part")
    }
}

fn sources(crate_name: &str) -> Vec<Source> {
    let root = workspace().join("crates").join(crate_name).join("src");
    let mut files = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a source folder") {
            let path = entry.expect("a folder entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") && !TESTS.iter().any(|name| path.ends_with(name)) {
                let code = code_of(&std::fs::read_to_string(&path).expect("a source file"));
                let path = path.strip_prefix(&root).expect("below the root").to_string_lossy().replace('\\', "/");
                files.push(Source { path, code });
            }
        }
    }
    assert!(!files.is_empty(), "{crate_name} has sources");
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}

/// Drops comments that fill a line, and everything from the test module on (it stands last in every file).
fn code_of(text: &str) -> String {
    let mut code = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let opens_tests = lines.peek().is_some_and(|next| next.starts_with("mod ") && next.ends_with('{'));
        if line == "#[cfg(test)]" && opens_tests {
            break;
        }
        if !line.trim_start().starts_with("//") {
            code.push_str(line);
            code.push('\n');
        }
    }
    code
}

/// The paths that a file's code names, two parts deep: of `crate::x::Y`, `crate::{x, y::{Z, w::V}}`: `x::Y`, `x`,
/// `y::Z`, `y::w`; and `gradus_kernels`.
fn used(code: &str) -> BTreeSet<String> {
    let mut paths = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        tree(&code[at + "crate::".len()..], &[], &mut paths);
    }
    if code.contains("gradus_kernels") {
        paths.insert("gradus_kernels".into());
    }
    paths
}

/// Reads one use tree and adds its paths; returns how many bytes it took.
fn tree(text: &str, before: &[String], paths: &mut BTreeSet<String>) -> usize {
    if let Some(group) = text.strip_prefix('{') {
        let mut at = 0;
        loop {
            at += group[at..].len() - group[at..].trim_start_matches(|c: char| c.is_whitespace() || c == ',').len();
            if group[at..].starts_with('}') || at >= group.len() {
                return at + 2;
            }
            at += tree(&group[at..], before, paths).max(1);
        }
    }
    let word: String = text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    let path = [before, std::slice::from_ref(&word)].concat();
    if let Some(rest) = text[word.len()..].strip_prefix("::") {
        let is_tree = rest.starts_with(|c: char| c.is_alphanumeric() || c == '_' || c == '{');
        if is_tree {
            return word.len() + 2 + tree(rest, &path, paths);
        }
    }
    paths.insert(path[..path.len().min(2)].join("::"));
    word.len()
}

/// The part of the library that `path` (`train::run::Outcome`) belongs to.
fn part_of(path: &str) -> Option<&'static str> {
    let fits = |name: &str| path == name || path.strip_prefix(name).is_some_and(|rest| rest.starts_with("::"));
    PARTS.iter().map(|(name, _)| *name).filter(|name| fits(name)).max_by_key(|name| name.len())
}

#[test]
fn nobody_uses_what_stands_above_them() {
    for (i, (part, may_use)) in PARTS.iter().enumerate() {
        for used in may_use.iter().filter(|used| !["gradus_kernels", ALL_BELOW].contains(*used)) {
            let stands_below = PARTS[..i].iter().any(|(lower, _)| lower == used);
            assert!(stands_below, "the table lets `{part}` use `{used}`, which does not stand below it");
        }
    }
    let mut wrong = Vec::new();
    for source in sources("gradus").iter().filter(|source| source.path != "lib.rs") {
        let own = source.path.trim_end_matches(".rs").trim_end_matches("/mod").replace('/', "::");
        let Some(part) = part_of(&own) else {
            wrong.push(format!("{}: `{}` is not in the table of tests/layering.rs", source.path, source.module()));
            continue;
        };
        let line = PARTS.iter().position(|(name, _)| *name == part).expect("a part of the table");
        let may_use = match PARTS[line].1 {
            [ALL_BELOW] => PARTS[..line].iter().map(|(name, _)| *name).collect(),
            listed => listed.to_vec(),
        };
        for path in used(&source.code) {
            let module = path.split("::").next().expect("a path has a first part");
            // `crate::Error`, `crate::Result`: re-exports of the ground.
            let is_free =
                module.starts_with(char::is_uppercase) || module == source.module() || GROUND.contains(&module);
            let target = if path == "gradus_kernels" { "gradus_kernels" } else { part_of(&path).unwrap_or("?") };
            if !is_free && !may_use.contains(&target) {
                wrong.push(format!("{}: `{part}` must not use `{path}`", source.path));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn modules_are_free_of_what_is_not_theirs() {
    let mut wrong = Vec::new();
    for source in sources("gradus") {
        for (module, patterns, reason) in FORBIDDEN {
            if module.is_empty() || *module == source.module() {
                let found = patterns.iter().filter(|pattern| source.code.contains(*pattern));
                wrong.extend(found.map(|pattern| format!("{}: `{pattern}`: {reason}", source.path)));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn only_the_binary_prints_and_only_through_its_output() {
    let prints = |source: &Source| {
        let starts = ["println!", "print!", "eprintln!", "eprint!", "dbg!"];
        let is_call = |at: usize| !source.code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let found = |start: &&str| source.code.match_indices(*start).any(|(at, _)| is_call(at));
        starts.iter().find(|start| found(start)).map(|start| format!("{}: `{start}`", source.path))
    };
    let mut wrong: Vec<String> =
        ["gradus", "gradus-kernels"].into_iter().flat_map(sources).filter_map(|s| prints(&s)).collect();
    wrong.extend(sources("gradus-cli").iter().filter(|source| source.path != "output.rs").filter_map(prints));
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn the_binary_uses_the_library_and_not_its_kernels() {
    for source in sources("gradus-cli") {
        assert!(!source.code.contains("gradus_kernels"), "{}: kernels are reached through the library", source.path);
    }
}

fn names_in(folder: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(folder);
    let files = std::fs::read_dir(path).expect("a source folder");
    let names = files.map(|file| file.expect("a file").file_name().to_string_lossy().into_owned());
    names.filter(|name| name.ends_with(".rs") && name != "mod.rs").collect()
}

#[test]
fn every_loss_and_algorithm_has_its_papers() {
    let papers = std::fs::read_to_string(workspace().join("docs/papers.md")).expect("docs/papers.md");
    for (folder, not_methods) in [("loss", ["check.rs", "numeric.rs", "reduce.rs"].as_slice()), ("algorithm", &[])] {
        for name in names_in(folder).iter().filter(|name| !not_methods.contains(&name.as_str())) {
            assert!(papers.contains(&format!("`{folder}/{name}`")), "docs/papers.md does not name `{folder}/{name}`");
        }
    }
    for name in names_in("math").iter().filter(|name| *name != "stats.rs") {
        assert!(papers.contains(&format!("`math/{name}`")), "docs/papers.md does not name `math/{name}`");
    }
}

#[test]
fn the_scanner_sees_what_it_should() {
    let code = code_of(
        "//! crate::no\nuse crate::{error::{Error, Result}, math, rollout::Prompt};\nuse crate::train::{\n    TrainConfig, dpo::DpoConfig,\n};\n    // crate::no\nfn f() { crate::text::g::<u8>(crate::Error::input(1)) }\n#[cfg(test)]\nmod tests {\n    use crate::no;\n}\n",
    );
    let expected = [
        "error::Error",
        "error::Result",
        "math",
        "rollout::Prompt",
        "train::TrainConfig",
        "train::dpo",
        "text::g",
        "Error::input",
    ];
    assert_eq!(used(&code), BTreeSet::from(expected.map(str::to_owned)));
    assert_eq!(part_of("math::gae"), Some("math"));
    assert_eq!(part_of("mathematics"), None);
}

/// The keys of a configuration with their defaults, nested ones joined by a dot.
fn defaults(prefix: &str, value: &serde_json::Value) -> Vec<(String, serde_json::Value)> {
    match value {
        serde_json::Value::Object(keys) => {
            keys.iter().flat_map(|(key, value)| defaults(&format!("{prefix}.{key}"), value)).collect()
        }
        value => vec![(prefix.to_owned(), value.clone())],
    }
}

#[test]
fn every_default_stands_in_the_papers_as_it_is() {
    let papers = std::fs::read_to_string(workspace().join("docs/papers.md")).expect("docs/papers.md");
    let written: Vec<(&str, &str)> = papers
        .lines()
        .filter_map(|line| {
            let mut cells = line.split('|').skip(1).map(str::trim);
            Some((cells.next()?.strip_prefix('`')?.strip_suffix('`')?, cells.next()?))
        })
        .collect();
    let json = |value: Result<serde_json::Value, serde_json::Error>| value.expect("a configuration is JSON");
    let methods = [
        ("sft", json(serde_json::to_value(gradus::train::sft::SftConfig::default()))),
        ("reward", json(serde_json::to_value(gradus::train::reward_model::RewardModelConfig::default()))),
        ("dpo", json(serde_json::to_value(gradus::train::dpo::DpoConfig::default()))),
        ("ppo", json(serde_json::to_value(gradus::algorithm::ppo::PpoConfig::default()))),
        ("grpo", json(serde_json::to_value(gradus::algorithm::grpo::GrpoConfig::default()))),
    ];
    let mut wrong = Vec::new();
    let mut known = BTreeSet::new();
    for (method, config) in &methods {
        for (key, value) in defaults(method, config) {
            let cell = written.iter().find(|(name, _)| *name == key).map(|(_, cell)| *cell);
            let matches = cell.is_some_and(|cell| match &value {
                serde_json::Value::Null => cell == "–",
                serde_json::Value::Number(number) => cell.parse().ok() == number.as_f64(),
                serde_json::Value::String(text) => cell == text,
                other => serde_json::from_str(cell).ok().as_ref() == Some(other),
            });
            if !matches {
                wrong.push(format!("`{key}`: docs/papers.md says {cell:?}, the code {value}"));
            }
            known.insert(key);
        }
    }
    let is_method = |name: &str| methods.iter().any(|(method, _)| name.starts_with(&format!("{method}.")));
    wrong.extend(
        written
            .iter()
            .filter(|(name, _)| is_method(name) && !known.contains(*name))
            .map(|(name, _)| format!("`{name}`: in docs/papers.md, but no key")),
    );
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
