//! Data files and folders of them in the served folder, for the training form. Pages refer to them by their names in this list.

use std::path::{Path, PathBuf};

use gradus::runs::is_run;

/// Maximum depth of the search.
const DEPTH_MAX: usize = 4;

/// Maximum number of listed files.
const MOST: usize = 500;

/// File extensions of data files, without an optional `.gz`.
const ENDINGS: [&str; 7] = ["jsonl", "ndjson", "json", "csv", "tsv", "parquet", "arrow"];

/// Returns the data files below `folder`, by name: their relative paths with `/`. Also returns folders that contain data files, with a `/`
/// at the end. Runs, models and links, which may lead out of the folder, are skipped.
pub fn data_files(folder: &Path) -> Vec<(String, PathBuf)> {
    let mut found = Vec::new();
    walk(folder, "", 0, &mut found);
    found.sort();
    found
}

fn is_data(name: &str) -> bool {
    let name = name.to_lowercase();
    let bare = name.strip_suffix(".gz").unwrap_or(&name);
    bare.rsplit_once('.').is_some_and(|(_, ending)| ENDINGS.contains(&ending))
}

fn walk(at: &Path, name: &str, depth: usize, found: &mut Vec<(String, PathBuf)>) {
    let is_other =
        depth > 0 && (is_run(at) || at.join("config.json").is_file() || at.join("adapter_config.json").is_file());
    if is_other {
        return;
    }
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(at).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    entries.sort();
    let mut holds_data = false;
    for path in entries {
        let Some(own) = path.file_name().and_then(|own| own.to_str()).filter(|own| !own.starts_with('.')) else {
            continue;
        };
        if path.is_symlink() || found.len() >= MOST {
            continue;
        }
        let name = if name.is_empty() { own.to_owned() } else { format!("{name}/{own}") };
        if path.is_dir() && depth < DEPTH_MAX {
            walk(&path, &name, depth + 1, found);
        } else if path.is_file() && is_data(own) {
            holds_data = true;
            found.push((name, path));
        }
    }
    if holds_data && depth > 0 {
        found.push((format!("{name}/"), at.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_found_and_runs_models_links_and_hidden_files_are_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let outside = tempfile::tempdir().expect("a folder");
        let write = |name: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            std::fs::write(path, "{}").expect("written");
        };
        for name in [
            "b.jsonl",
            "tea/a.parquet",
            "tea/c.CSV.gz",
            "run/config.yml",
            "run/metrics.jsonl",
            "model/config.json",
            "model/x.json",
            ".hidden.jsonl",
            ".d/x.jsonl",
            "notes.txt",
            "gradus.sqlite",
            "1/2/3/4/5/deep.jsonl",
        ] {
            write(name);
        }
        std::fs::write(outside.path().join("secret.jsonl"), "{}").expect("written");
        #[cfg(unix)]
        {
            let link =
                |from: &Path, to: &str| std::os::unix::fs::symlink(from, folder.path().join(to)).expect("a link");
            link(&outside.path().join("secret.jsonl"), "link.jsonl");
            link(outside.path(), "linked");
        }
        let names: Vec<String> = data_files(folder.path()).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["b.jsonl", "tea/", "tea/a.parquet", "tea/c.CSV.gz"]);
    }
}
