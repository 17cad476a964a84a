//! Rules that the compiler does not check: dependencies between modules, printing, and the contents of documents.

use std::collections::BTreeSet;
use std::path::PathBuf;

use gradus::config::MethodConfig;

/// Allowed dependencies: each module of the library and the modules that it uses, from the bottom up. A module may only
/// use modules above its own line, so the table also proves that there is no cycle. Within one module, anything is
/// allowed. The compiler checks the larger borders: a module uses no crate above its own.
const PARTS: &[(&str, &[&str])] = &[
    ("error", &[]),
    ("rng", &[]),
    ("files", &[]),
    ("border", &[]),
    ("ranks", &["gradus_mpi"]),
    ("progress", &[]),
    ("device", &["gradus_kernels"]),
    ("machine", &["device", "gradus_kernels"]),
    ("threads", &[]),
    ("host", &[]),
    ("hub", &[]),
    ("math", &[]),
    ("search", &[]),
    ("shell", &[]),
    ("suggest", &[]),
    ("visible", &[]),
    ("text", &["suggest", "visible", "gradus_metrics", "gradus_environments"]),
    // Extensions by users: by name in their own programs, or as programs that exchange lines.
    // Environments and tools of programs are plug-ins, too.
    ("plugin", &["suggest", "gradus_environments"]),
    ("process", &["gradus_environments"]),
    // A user can interrupt the wait for a service.
    ("service", &["process"]),
    ("toxicity", &["process", "service"]),
    ("metric", &["plugin", "process", "suggest", "toxicity", "gradus_metrics"]),
    ("loss", &[]),
    ("run", &["search", "shell", "gradus_environments"]),
    // Charts and pages: of a run, of several runs, and what a run writes for other programs.
    ("calendar", &[]),
    ("html", &["visible"]),
    ("plots", &["html", "run"]),
    ("page", &["html", "plots", "run"]),
    ("run_report", &["html", "page", "plots", "run"]),
    ("card", &["run", "run_report"]),
    ("comparison", &["html", "page", "plots", "run", "run_report", "visible"]),
    ("trackers", &["calendar", "run", "run_report"]),
    // A model larger than the machine's memory is rejected before any of it is read. A run directory can stand for its
    // model.
    ("model", &["device", "hub", "machine", "run", "gradus_kernels"]),
    ("pretrained", &["model", "text"]),
    ("data", &["hub", "text"]),
    ("observer", &["plugin", "process", "run"]),
    ("task", &["data", "metric", "plugin", "process"]),
    ("generate", &["model", "gradus_kernels"]),
    ("rollout", &["generate", "model", "text", "data", "gradus_environments"]),
    // Batches for objectives and algorithms.
    ("batches", &[]),
    // Metrics use models through a trait of their own and depend on no implementation.
    ("metric_models", &["batches", "host", "metric", "model", "text"]),
    ("memory", &["batches", "generate", "model", "gradus_kernels"]),
    ("stats", &["run"]),
    ("readings", &["host", "stats"]),
    ("learner", &["model", "gradus_kernels"]),
    ("optimizer_state", &["learner", "run", "gradus_kernels"]),
    (
        "settings",
        &[
            "batches",
            "data",
            "generate",
            "learner",
            "math",
            "metric",
            "model",
            "plugin",
            "rollout",
            "run",
            "task",
            "trackers",
            "gradus_environments",
        ],
    ),
    // Sources of training signal: rewards, fixed examples, rollouts.
    (
        "reward",
        &[
            "batches",
            "data",
            "host",
            "metric",
            "model",
            "plugin",
            "process",
            "rollout",
            "service",
            "text",
            "toxicity",
            "gradus_environments",
            "gradus_metrics",
        ],
    ),
    // Description of a method, independent of its data.
    ("method", &["data", "generate", "memory", "metric", "model", "reward", "rollout", "settings"]),
    (
        "objective",
        &[
            "batches",
            "data",
            "generate",
            "host",
            "loss",
            "math",
            "method",
            "model",
            "pretrained",
            "readings",
            // A teacher may run on a server.
            "rollout",
            "settings",
            "stats",
        ],
    ),
    (
        "algorithm",
        &[
            "batches", "data", "generate", "host", "learner", "loss", "math", "method", "model", "readings", "rollout",
            "run", "settings", "stats",
        ],
    ),
    (
        "evaluation",
        &[
            "algorithm",
            "batches",
            "math",
            "metric",
            "metric_models",
            "model",
            "process",
            "reward",
            "rollout",
            "stats",
            "task",
            "text",
        ],
    ),
    (
        "config",
        &[
            "algorithm",
            "data",
            "device",
            "evaluation",
            "machine",
            "method",
            "metric",
            "model",
            "objective",
            "observer",
            "generate",
            "plugin",
            "reward",
            "rollout",
            "run",
            "settings",
            "shell",
            "suggest",
            "task",
            "gradus_environments",
        ],
    ),
    // Reports about rows and about scores of reward models.
    ("reports", &["data", "html", "math", "objective", "page", "plots", "run"]),
    ("runs", &["math", "run", "suggest"]),
    // Entry points, one per command: from a model to its answers, from a checked plan to a finished run.
    (
        "inference",
        &[
            "batches",
            "data",
            "device",
            "evaluation",
            "generate",
            "host",
            "math",
            "metric",
            "metric_models",
            "model",
            "objective",
            "pretrained",
            "process",
            "reports",
            "reward",
            "rollout",
            "run",
            "task",
            "text",
            "gradus_kernels",
        ],
    ),
    ("create", &["device", "machine", "model", "suggest", "text"]),
    (
        "trainer",
        &[
            "batches",
            "device",
            "generate",
            "host",
            "learner",
            "loss",
            "model",
            "optimizer_state",
            "pretrained",
            "run",
            "text",
        ],
    ),
    (
        "train",
        &[
            "algorithm",
            "batches",
            "card",
            "config",
            "data",
            "device",
            "evaluation",
            "generate",
            "learner",
            "machine",
            "math",
            "memory",
            "method",
            "metric_models",
            "model",
            "objective",
            "observer",
            "optimizer_state",
            "plots",
            "plugin",
            "pretrained",
            "process",
            "reports",
            "reward",
            "rollout",
            "run",
            "run_report",
            "settings",
            "shell",
            "stats",
            "task",
            "text",
            "trackers",
            "gradus_environments",
        ],
    ),
    (
        "training",
        &[
            "algorithm",
            "config",
            "machine",
            "method",
            "model",
            "objective",
            "observer",
            "reward",
            "rollout",
            "run",
            "train",
        ],
    ),
    (
        "bench",
        &[
            "batches",
            "data",
            "device",
            "generate",
            "learner",
            "machine",
            "model",
            "objective",
            "settings",
            "train",
            "gradus_kernels",
        ],
    ),
    (
        "compare",
        &[
            "comparison",
            "config",
            "data",
            "evaluation",
            "generate",
            "metric_models",
            "model",
            "reward",
            "rollout",
            "run",
            "run_report",
            "train",
        ],
    ),
    ("sweep", &["math", "run"]),
    ("demo", &["compare", "comparison", "config", "device", "machine", "model", "run", "task", "train"]),
];

/// Crates below the library.
const CRATES: &[&str] = &["gradus_kernels", "gradus_metrics", "gradus_environments", "gradus_mpi"];

/// Modules that every module may use: the error type, random streams, file access, the guard around libraries that
/// panic, progress, and the ranks that share work.
const GROUND: &[&str] = &["error", "rng", "files", "border", "progress", "ranks"];

/// Forbidden text in the code of a module, and the reason.
const FORBIDDEN: &[(&str, &[&str], &str)] = &[
    ("math", &["burn::", "std::fs", "std::io", "tracing::"], "host arithmetic has no tensors, no files and no log"),
    ("loss", &["std::fs", "std::io", "tracing::"], "a loss has no files and no log"),
    ("", &["clap::", "axum::", "tokio::", "indicatif::"], "arguments, HTTP and progress bars belong to the binary"),
    ("", &["static mut "], "no global mutable state"),
    ("", &[".spawn()"], "gradus_environments::process::spawn starts programs"),
    ("", &["unsafe {", "unsafe fn", "unsafe impl"], "unsafe code belongs to gradus-kernels"),
];

/// Library crates, which print nothing.
pub(super) const LIBRARIES: &[&str] = &[
    "gradus",
    "gradus-core",
    "gradus-data",
    "gradus-model",
    "gradus-reports",
    "gradus-kernels",
    "gradus-metrics",
    "gradus-environments",
    "gradus-mpi",
    "gradus-web",
];

/// The crates whose modules programs use as `gradus::MODULE`, from the bottom up.
const LIBRARY: &[&str] = &["gradus-core", "gradus-data", "gradus-model", "gradus-reports", "gradus"];

/// Files that exist only for tests.
const TESTS: &[&str] = &["tests.rs", "test_support.rs", "loss/check.rs"];

fn workspace() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A source file: its path below `src`, and its code without comments and tests.
pub(super) struct Source {
    pub path: String,
    pub code: String,
}

impl Source {
    /// Returns the library module of the file.
    fn module(&self) -> &str {
        self.path.split(['/', '.']).next().expect("a path has a first part")
    }
}

/// Returns the source files of the crates behind `gradus`.
fn library() -> Vec<Source> {
    LIBRARY.iter().copied().flat_map(sources).collect()
}

pub(super) fn sources(crate_name: &str) -> Vec<Source> {
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

/// Removes whole-line comments, and everything from the test module on (which is last in every file).
fn code_of(text: &str) -> String {
    let mut code = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let opens_tests = lines.peek().is_some_and(|next| next.contains("mod ") && next.ends_with("{"));
        if line.starts_with("#[cfg(") && line.contains("test") && opens_tests {
            break;
        }
        if !line.trim_start().starts_with("//") {
            code.push_str(line);
            code.push('\n');
        }
    }
    code
}

/// Returns the library modules that the code of a file names: `x` and `y` for `crate::{x, y::{Z, w::V}}`; the target of
/// a `super::` that leads out of the file's own module; and the lower crates. `path` is the path of the file.
fn used(path: &str, code: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for root in ["crate::", "gradus_core::", "gradus_data::", "gradus_model::", "gradus_reports::"] {
        for (at, _) in code.match_indices(root) {
            first_names(&code[at + root.len()..], &mut names);
        }
    }
    // `a/b/c.rs` is the module `a::b::c`: three steps up lead out of `a`.
    let depth = path.trim_end_matches(".rs").trim_end_matches("/mod").split('/').count();
    let up = "super::".repeat(depth);
    for (at, _) in code.match_indices(&up).filter(|(at, _)| !code[..*at].ends_with("super::")) {
        first_names(&code[at + up.len()..], &mut names);
    }
    names.extend(CRATES.iter().filter(|name| code.contains(*name)).map(|name| (*name).to_owned()));
    names
}

/// Adds the first names of a use tree: `x` for `x::{y, z}`, both for `{x::y, z}`.
fn first_names(tree: &str, names: &mut BTreeSet<String>) {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let Some(group) = tree.strip_prefix('{') else {
        names.insert(tree.chars().take_while(|c| is_word(*c)).collect());
        return;
    };
    let (mut depth, mut starts) = (0, true);
    for (at, c) in group.char_indices() {
        match c {
            '}' if depth == 0 => return,
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => starts = true,
            c if is_word(c) && starts => {
                starts = false;
                first_names(&group[at..], names);
            }
            _ => {}
        }
    }
}

#[test]
fn nobody_uses_what_stands_above_them() {
    let mut wrong = Vec::new();
    let files = library();
    for (i, (part, may_use)) in PARTS.iter().enumerate() {
        let below = PARTS[..i].iter().map(|(name, _)| *name);
        let own: Vec<&Source> = files.iter().filter(|source| source.module() == *part).collect();
        if own.is_empty() {
            wrong.push(format!("the table lists `{part}`, which does not exist"));
        }
        let mut found = BTreeSet::new();
        for source in own {
            for name in used(&source.path, &source.code) {
                // `crate::Error`, `crate::Result`: re-exports of basic modules.
                let is_free = name.starts_with(char::is_uppercase) || name == *part || GROUND.contains(&name.as_str());
                if !is_free && !may_use.contains(&name.as_str()) {
                    wrong.push(format!("{}: `{part}` must not use `{name}`", source.path));
                }
                found.insert(name);
            }
        }
        for listed in *may_use {
            if !CRATES.contains(listed) && !below.clone().any(|lower| lower == *listed) {
                wrong.push(format!("the table lets `{part}` use `{listed}`, which does not stand below it"));
            }
            if !found.contains(*listed) {
                wrong.push(format!("the table lets `{part}` use `{listed}`, which it does not"));
            }
        }
    }
    let listed: BTreeSet<&str> = PARTS.iter().map(|(name, _)| *name).collect();
    let is_missing =
        |source: &&Source| !["lib.rs"].contains(&source.path.as_str()) && !listed.contains(source.module());
    let missing = files.iter().filter(is_missing);
    wrong.extend(missing.map(|source| format!("{}: not in the table of tests/it/layering.rs", source.path)));
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn modules_are_free_of_what_is_not_theirs() {
    let mut wrong = Vec::new();
    for source in library() {
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
fn devices_are_chosen_in_one_place() {
    let named = ["Device::flex", "Device::wgpu", "Device::default", "Device::enumerate"];
    let crates = LIBRARY.iter().chain(&["gradus-web", "gradus-cli"]);
    for source in crates.copied().flat_map(sources).filter(|source| source.path != "device.rs") {
        let found = named.iter().find(|name| source.code.contains(*name));
        assert_eq!(found, None, "{}: the device comes from the plan or from `--device`", source.path);
    }
}

#[test]
fn only_the_binary_prints_and_only_through_its_output() {
    let prints = |source: &Source| {
        // Terminal output goes through one function that escapes control sequences.
        let starts = ["println!", "print!", "eprintln!", "eprint!", "dbg!", "io::stdout(", "io::stderr(", "\\x1b"];
        let is_call = |at: usize| !source.code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let found = |start: &&str| source.code.match_indices(*start).any(|(at, _)| is_call(at));
        starts.iter().find(|start| found(start)).map(|start| format!("{}: `{start}`", source.path))
    };
    let mut wrong: Vec<String> = LIBRARIES.iter().copied().flat_map(sources).filter_map(|s| prints(&s)).collect();
    wrong.extend(sources("gradus-cli").iter().filter(|source| source.path != "output.rs").filter_map(prints));
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// The metrics crate is also used on its own, so it must not depend on models, tensors and configurations.
#[test]
fn metrics_stand_alone() {
    let manifest = std::fs::read_to_string(workspace().join("crates/gradus-metrics/Cargo.toml")).expect("a manifest");
    let depends = |name: &str| manifest.lines().any(|line| line.starts_with(name) && line.contains('='));
    let found =
        ["burn", "gradus ", "gradus-kernels", "tokenizers", "safetensors"].into_iter().find(|name| depends(name));
    assert_eq!(found, None, "gradus-metrics stands alone");
    let optional = manifest.lines().any(|line| line.starts_with("schemars =") && line.contains("optional = true"));
    assert!(optional, "whoever configures nothing needs no schema");
    for source in sources("gradus-metrics") {
        let found = ["std::process", "std::net", "tracing::", "static mut "]
            .into_iter()
            .find(|name| source.code.contains(name));
        assert_eq!(found, None, "{}: metrics of text read files and compute", source.path);
    }
}

#[test]
fn what_stands_on_the_library_does_not_use_its_kernels() {
    for source in ["gradus-web", "gradus-cli"].into_iter().flat_map(sources) {
        assert!(!source.code.contains("gradus_kernels"), "{}: kernels are reached through the library", source.path);
    }
}

#[test]
fn only_the_web_application_is_async_and_it_starts_no_program() {
    for source in sources("gradus-cli") {
        let found = ["axum::", "tokio::", "async "].into_iter().find(|name| source.code.contains(name));
        assert_eq!(found, None, "{}: HTTP belongs to gradus-web", source.path);
    }
    for source in sources("gradus-web") {
        // Data from a page can never become a command.
        assert!(!source.code.contains("process::"), "{}: the server starts no program", source.path);
    }
}

#[test]
fn files_are_written_where_nobody_loses_one() {
    // These files are not named by the user: configurations and logs in a folder of their own, and a conversation that
    // is appended to.
    let known = [
        ("gradus-cli", "process.rs", "File::create"),
        ("gradus-cli", "commands/chat/session.rs", "File::options("),
        ("gradus-web", "training/start.rs", "atomic::write"),
        // Creates `gradus.sqlite` with owner-only permissions before SQLite opens it.
        ("gradus-web", "store/mod.rs", "OpenOptions"),
        // Checkpoints of programs, in a folder of their own; none is overwritten unless the client requests it.
        ("gradus-web", "tinker/checkpoints.rs", "atomic::write"),
        ("gradus-web", "tinker/checkpoints.rs", "fs::rename("),
    ];
    let writes =
        ["fs::write(", "File::create", "File::options(", "OpenOptions", "fs::rename(", "fs::copy(", "atomic::write"];
    let mut wrong = Vec::new();
    for name in ["gradus-cli", "gradus-web"] {
        for source in sources(name) {
            let found = writes.iter().filter(|write| source.code.contains(*write));
            let found = found.filter(|write| !known.contains(&(name, source.path.as_str(), **write)));
            wrong.extend(found.map(|write| format!("{name}/{}: `{write}`", source.path)));
        }
    }
    assert!(wrong.is_empty(), "write through `gradus::files::output`:\n{}", wrong.join("\n"));
}

/// Returns the variant of `MethodConfig` that the code of a file names, as in `MethodConfig::Sft`.
fn variant(code: &str) -> Option<&str> {
    let named = code.match_indices("MethodConfig::").map(|(at, found)| &code[at + found.len()..]);
    named.into_iter().find(|rest| rest.starts_with(char::is_uppercase))
}

#[test]
fn a_method_is_named_in_its_own_file_and_in_one_match() {
    let mut wrong = Vec::new();
    let methods = MethodConfig::all();
    for (crate_name, source) in ["gradus", "gradus-web", "gradus-cli"]
        .iter()
        .flat_map(|name| sources(name).into_iter().map(move |source| (name, source)))
    {
        if let Some(found) = variant(&source.code) {
            let name: String = found.chars().take_while(|c| c.is_alphanumeric()).collect();
            wrong.push(format!("{crate_name}/{}: `MethodConfig::{name}`", source.path));
        }
        // Exceptions: the demonstration describes methods; a comparison is measured the way one of the methods samples;
        // importers map other systems' names of algorithms; plots assign colors; Tinker's clients name losses.
        let is_exception =
            ["demo/recipe.rs", "demo/report.rs", "config/comparison.rs", "plots/colors.rs", "tinker/data.rs"]
                .contains(&source.path.as_str())
                || source.path.starts_with("config/import/");
        let says = |name: &&str| source.code.contains(&format!("\"{name}\""));
        let is_own =
            |name: &str| source.code.contains(&format!("fn name(&self) -> &'static str {{\n        \"{name}\""));
        for name in methods.iter().map(MethodConfig::name).filter(|name| *name != "reward").filter(says) {
            if !is_exception && !is_own(name) {
                wrong.push(format!("{crate_name}/{}: \"{name}\"", source.path));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert!(variant("let x = MethodConfig::Dpo(y);").is_some() && variant("MethodConfig::all()").is_none());
    let files = library();
    let list = files.iter().find(|source| source.path == "config/method.rs").expect("the list of methods");
    assert_eq!(list.code.matches("match self").count(), 1, "config/method.rs has the only `match` on the method");
}

#[test]
fn a_test_that_is_left_out_says_so_in_one_way() {
    let mut folders = vec![workspace().join("crates")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
            if entry.is_dir() {
                folders.push(entry);
                continue;
            }
            let is_code = entry.extension().is_some_and(|extension| extension == "rs");
            if is_code && !entry.ends_with("support/skip.rs") && !entry.ends_with("layering.rs") {
                let text = std::fs::read_to_string(&entry).expect("a source file");
                let says = ["print!(\"skip", "println!(\"skip"].into_iter().find(|says| text.contains(says));
                assert_eq!(says, None, "{}: `support/skip.rs` says that a test is left out", entry.display());
            }
        }
    }
}

fn names_in(folder: &str) -> Vec<String> {
    let folders = LIBRARY.iter().map(|name| workspace().join("crates").join(name).join("src").join(folder));
    let path = folders.into_iter().find(|path| path.is_dir()).expect("a source folder");
    let files = std::fs::read_dir(path).expect("a source folder");
    let names = files.map(|file| file.expect("a file").file_name().to_string_lossy().into_owned());
    names.filter(|name| name.ends_with(".rs") && name != "mod.rs").collect()
}

#[test]
fn every_loss_and_algorithm_has_its_papers() {
    let papers = std::fs::read_to_string(workspace().join("docs/papers.md")).expect("docs/papers.md");
    for (folder, not_methods) in
        [("loss", ["check.rs", "numeric.rs", "reduce.rs"].as_slice()), ("algorithm", &["plugged.rs", "kl_config.rs"])]
    {
        let is_method = |name: &&String| ![not_methods, TESTS].concat().contains(&name.as_str());
        for name in names_in(folder).iter().filter(is_method) {
            assert!(papers.contains(&format!("`{folder}/{name}`")), "docs/papers.md does not name `{folder}/{name}`");
        }
    }
    for name in names_in("math").iter().filter(|name| *name != "stats.rs") {
        assert!(papers.contains(&format!("`math/{name}`")), "docs/papers.md does not name `math/{name}`");
    }
}

#[test]
fn every_file_in_the_papers_exists() {
    let papers = std::fs::read_to_string(workspace().join("docs/papers.md")).expect("docs/papers.md");
    let folders = [""].into_iter().chain(LIBRARIES.iter().copied()).map(|name| workspace().join("crates").join(name));
    let folders: Vec<PathBuf> = folders.flat_map(|folder| [folder.join("src"), folder]).collect();
    // Code is between backticks.
    for code in papers.split('`').skip(1).step_by(2) {
        let is_path = code.ends_with(".rs") || code.ends_with('/');
        let exists = || folders.iter().any(|folder| folder.join(code).exists());
        assert!(!is_path || exists(), "docs/papers.md names `{code}`, which does not exist");
    }
}

#[test]
fn the_scanner_sees_what_it_should() {
    let code = code_of(
        "//! crate::no\nuse crate::{error::{Error, Result}, math, rollout::Prompt};\nuse crate::train::{\n    TrainConfig, dpo::DpoConfig,\n};\nuse super::near;\nuse super::super::far::{a, b};\n    // crate::no\nfn f() { crate::text::g::<u8>(crate::Error::input(1)) }\n#[cfg(test)]\nmod tests {\n    use crate::no;\n}\n",
    );
    let expected = |more: &[&str]| {
        let names = ["error", "math", "rollout", "train", "text", "Error"];
        names.iter().chain(more).map(|name| (*name).to_owned()).collect::<BTreeSet<_>>()
    };
    assert_eq!(used("a/b.rs", &code), expected(&["far"]), "two steps up lead out of `a`");
    assert_eq!(used("a/b/mod.rs", &code), expected(&["far"]));
    assert_eq!(used("a/b/c.rs", &code), expected(&[]));
    assert_eq!(used("a.rs", "use super::near;"), BTreeSet::from(["near".to_owned()]));
}

/// Returns the keys of a configuration with their defaults; nested keys are joined by a dot.
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
    let keys = |method: MethodConfig| {
        let name = method.name();
        (name, json(serde_json::to_value(method))[name].take())
    };
    let methods: Vec<_> = MethodConfig::all().into_iter().map(keys).collect();
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
