//! Resolves the value of `--data`: a file, a directory of shards, or a data set on the hub.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::dataset_card::{CARD, configs};
use super::reader::extension;
use super::splits::{
    Source, canonical, choose, choose_config, choose_split, data_or_text, is_data_file, is_text_file, no_data_file,
    split_of,
};
use super::{hub_rows, saved};
use crate::files::check_regular;
use crate::hub::OnProgress;
use crate::{Error, Result};

/// Finds the files of `name`: a path or a hub name, either of them with an optional `:split`, `:config` or `:config:split`. Downloads
/// report to `on_progress`.
///
/// A directory resolves to its data files in name order, or to its text files if it has no data files. A directory that
/// `save_to_disk` of `datasets` wrote resolves to the files that it lists, in that order. If the header of `README.md` has `configs`,
/// only the files of one config are read: the requested one, else the default. If there are splits, in that header or in the names of
/// files and folders (`train`, `test`, `validation`), only one is read: the requested one, else `train`, else the only one.
///
/// # Errors
/// If the path or data set, a data file in it, the config or the split does not exist, or the header cannot be read.
pub fn resolve(name: &str, on_progress: OnProgress<'_>) -> Result<Source> {
    let path = Path::new(name);
    let (mut before, mut parts): (&str, Vec<&str>) = (name, Vec::new());
    loop {
        if Path::new(before).exists() {
            return local(Path::new(before), &parts);
        }
        if looks_like_hub_name(before) {
            return hub_rows::fetch(before, None, &parts, on_progress);
        }
        match before.rsplit_once(':') {
            Some((rest, part)) if parts.len() < 2 && !part.contains(['/', '\\', '[', ']']) => {
                before = rest;
                parts.insert(0, part);
            }
            _ => break,
        }
    }
    if let Some(whole) = without_slice(name) {
        return Err(Error::data(path, None, "names a slice of a split, but only whole splits can be read")
            .with_hint(format!("use `{whole}`, and limit its rows with `max_rows`")));
    }
    Err(Error::data(path, None, "no such file or directory"))
}

/// Returns the whole split of a name with a slice, as `datasets` writes it: `NAME:train` for `NAME:train[:10%]`.
fn without_slice(name: &str) -> Option<&str> {
    let (whole, _) = name.strip_suffix(']')?.rsplit_once('[')?;
    let (_, split) = whole.rsplit_once(':')?;
    (!split.is_empty() && !split.contains(['/', '\\'])).then_some(whole)
}

/// Finds the data files of `split` in a directory or a data set on the hub. If there is a `folder`, only files below it count. A
/// path of a file resolves to that file. Downloads report to `on_progress`.
///
/// # Errors
/// As for [`resolve`].
pub fn resolve_split(name: &str, folder: Option<&str>, split: &str, on_progress: OnProgress<'_>) -> Result<Source> {
    let path = Path::new(name);
    if path.exists() {
        let inner = folder.map(|folder| path.join(folder)).filter(|inner| inner.is_dir());
        return local(inner.as_deref().unwrap_or(path), &[split]);
    }
    if looks_like_hub_name(name) {
        return hub_rows::fetch(name, folder, &[split], on_progress);
    }
    Err(Error::data(path, None, "no such file or directory"))
}

/// Finds the files of `split` below a directory whose names (without `.gz`) satisfy `accepts_name`, in name order. A path of a file
/// resolves to that file. This is for data sets of plain text; nothing is downloaded.
///
/// # Errors
/// If the directory cannot be read.
pub fn text_files(path: &Path, split: &str, accepts_name: &dyn Fn(&str) -> bool) -> Result<Vec<PathBuf>> {
    let is_selected = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        accepts_name(name.strip_suffix(".gz").unwrap_or(name))
    };
    if !path.is_dir() {
        return Ok(if is_selected(path) { vec![path.to_owned()] } else { Vec::new() });
    }
    let mut files = Vec::new();
    collect(path, &mut Vec::new(), &is_selected, &mut files)?;
    files.retain(|file| {
        let inside = file.strip_prefix(path).unwrap_or(file);
        split_of(&inside.to_string_lossy()).as_deref() == Some(canonical(split).unwrap_or(split))
    });
    files.sort();
    Ok(files)
}

/// Returns whether a name has the form `owner/name` or `name`, without anything that only paths have.
fn looks_like_hub_name(name: &str) -> bool {
    let legal = |part: &str| {
        !part.is_empty()
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
            && part.starts_with(|c: char| c.is_ascii_alphanumeric())
    };
    let parts: Vec<&str> = name.split('/').collect();
    parts.len() <= 2
        && parts.iter().all(|p| legal(p))
        && !is_data_file(Path::new(name))
        && !is_text_file(Path::new(name))
}

fn local(path: &Path, parts: &[&str]) -> Result<Source> {
    // This includes pipes and devices, such as `/dev/stdin`.
    if !path.is_dir() {
        return Ok(Source { files: vec![path.to_path_buf()], ..Source::default() });
    }
    if let Some(splits) = saved::splits(path)? {
        let (_, split) = choose_config(path, &[], &[], parts)?;
        let (chosen, other_splits) = choose_split(path, splits, split)?;
        let folder = chosen.as_ref().map_or_else(|| path.to_owned(), |split| path.join(split));
        let files = data_or_text(row_files(&folder)?);
        if files.is_empty() {
            return Err(no_data_file(&folder));
        }
        return Ok(Source { files, split: chosen, other_splits });
    }
    let files = row_files(path)?;
    let relative = files
        .iter()
        .map(|f| f.strip_prefix(path).unwrap_or(f).to_string_lossy().replace('\\', "/"))
        .collect::<Vec<_>>();
    choose(path, &configs(&path.join(CARD))?, &relative, parts)
        .map(|chosen| Source { files: chosen.files.iter().map(|f| path.join(f)).collect(), ..chosen })
}

/// Returns the data files and text files of a directory in reading order.
fn row_files(path: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    collect(path, &mut Vec::new(), &|file: &Path| is_data_file(file) || is_text_file(file), &mut files)?;
    files.sort();
    if files.is_empty() && saved::files(path)?.is_some() {
        return Err(Error::data(path, None, "no rows: the data set is empty"));
    }
    in_order_of_lists(files)
}

/// Orders sorted files for reading: the files of a directory with a list are replaced by that list, in its order.
fn in_order_of_lists(files: Vec<PathBuf>) -> Result<Vec<PathBuf>> {
    let mut lists = HashMap::new();
    for folder in files.iter().filter(|file| is_arrow(file)).filter_map(|file| file.parent()) {
        if !lists.contains_key(folder)
            && let Some(listed) = saved::files(folder)?
        {
            lists.insert(folder.to_owned(), listed);
        }
    }
    let mut ordered = Vec::with_capacity(files.len());
    for file in files {
        match file.parent().and_then(|folder| lists.get_mut(folder)) {
            // The first file of the directory adds the whole list.
            Some(listed) => ordered.append(listed),
            None => ordered.push(file),
        }
    }
    Ok(ordered)
}

fn is_arrow(path: &Path) -> bool {
    extension(path).as_deref() == Some("arrow")
}

/// Adds the matching files below `directory`. `above` holds its parents: a link to one of them is a cycle and is not followed.
fn collect(
    directory: &Path,
    above: &mut Vec<PathBuf>,
    is_selected: &dyn Fn(&Path) -> bool,
    files: &mut Vec<PathBuf>,
) -> Result<()> {
    let own = directory.canonicalize().map_err(|e| Error::io(directory, e))?;
    if above.contains(&own) {
        return Ok(());
    }
    above.push(own);
    let entries = std::fs::read_dir(directory).map_err(|e| Error::io(directory, e))?;
    for entry in entries {
        let path = entry.map_err(|e| Error::io(directory, e))?.path();
        let hidden = path.file_name().and_then(|n| n.to_str()).is_none_or(|n| n.starts_with(['.', '_']));
        if hidden {
            continue;
        }
        if path.is_dir() {
            collect(&path, above, is_selected, files)?;
        } else if is_selected(&path) {
            // Opening a pipe would wait for a writer. A pipe that is named as the data is read.
            check_regular(&path).map_err(|e| Error::io(&path, e))?;
            files.push(path);
        }
    }
    above.pop();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::dataset_card::Config;
    use super::*;

    fn chosen(files: &[&str], parts: &[&str]) -> Result<(Vec<String>, Option<String>)> {
        chosen_with(&[], files, parts)
    }

    fn chosen_with(configs: &[Config], files: &[&str], parts: &[&str]) -> Result<(Vec<String>, Option<String>)> {
        let files: Vec<String> = files.iter().map(|f| (*f).to_owned()).collect();
        let source = choose(Path::new("d"), configs, &files, parts)?;
        Ok((source.files.iter().map(|f| f.to_string_lossy().into_owned()).collect(), source.split))
    }

    /// Returns the configs of a card with this header.
    fn declared(header: &str) -> Result<Vec<Config>> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let card = folder.path().join(CARD);
        std::fs::write(&card, format!("---\n{header}\n---\n# Rows\n")).expect("written");
        configs(&card).map_err(|error| error.relocated(folder.path(), Path::new("d")))
    }

    #[test]
    fn train_is_read_unless_another_split_is_named() {
        let files = ["data/test-0.parquet", "data/train-0.parquet", "data/train-1.parquet"];
        let (kept, split) = chosen(&files, &[]).unwrap();
        assert_eq!(kept, ["data/train-0.parquet", "data/train-1.parquet"]);
        assert_eq!(split.as_deref(), Some("train"));
        assert_eq!(chosen(&files, &["test"]).unwrap().0, ["data/test-0.parquet"]);
        let message = chosen(&files, &["dev"]).unwrap_err().to_string();
        assert_eq!(message, "d: no split `dev` (found `test`, `train`)");
        let message = chosen(&files, &["main", "test"]).unwrap_err().to_string();
        assert_eq!(message, "d: no config `main` (found no configs)");
    }

    #[test]
    fn shards_of_push_to_hub_have_the_split_in_their_name() {
        let files = [
            "data/dev-00000-of-00001-0123456789abcdef.parquet",
            "data/train_gen-00000-of-00001.parquet",
            "data/train_sft-00000-of-00002.parquet",
            "data/train_sft-00001-of-00002.parquet",
            "train.jsonl",
        ];
        assert_eq!(chosen(&files, &["train_sft"]).unwrap().0, files[2..4]);
        assert_eq!(chosen(&files, &["train_gen"]).unwrap().0, files[1..2]);
        // Another word for the split.
        assert_eq!(chosen(&files, &["validation"]).unwrap(), (vec![files[0].to_owned()], Some("dev".to_owned())));
        let message = chosen(&files, &[]).unwrap_err().to_string();
        assert_eq!(message, "d: several splits and no `train`: `dev`, `train_gen`, `train_sft`");
        // `datasets` reads the same names elsewhere by their words.
        let files = ["train_gen-00000-of-00001.parquet", "train_sft-00000-of-00001.parquet"];
        assert_eq!(chosen(&files, &[]).unwrap().1.as_deref(), Some("train"));
    }

    #[test]
    fn the_card_of_a_data_set_says_which_files_belong_to_which_split() {
        let files = ["notes.txt", "x/one.jsonl", "x/two.jsonl", "y.jsonl"];
        let of = |header: &str, parts: &[&str]| chosen_with(&declared(header).unwrap(), &files, parts).unwrap();
        let header = "license: mit\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: x/*.jsonl\n  \
                      - split: held.out\n    path: y.jsonl";
        assert_eq!(of(header, &[]), (vec!["x/one.jsonl".into(), "x/two.jsonl".into()], Some("train".into())));
        assert_eq!(of(header, &["held.out"]).0, ["y.jsonl"]);
        assert_eq!(of(header, &["default", "held.out"]).0, ["y.jsonl"]);
        let message = chosen_with(&declared(header).unwrap(), &files, &["test"]).unwrap_err().to_string();
        assert_eq!(message, "d: no split `test` (found `train`, `held.out`)");
        let one = |more: &str| format!("configs:\n- config_name: some\n  {more}");
        // In the order of the patterns, and as often as they match.
        assert_eq!(of(&one("data_files: [y.jsonl, 'x/*']"), &[]).0, ["y.jsonl", "x/one.jsonl", "x/two.jsonl"]);
        assert_eq!(of(&one("data_files: [y.jsonl, '*']"), &[]).0, ["y.jsonl", "y.jsonl"]);
        assert_eq!(of(&one("data_files: '*.txt'"), &[]).0, ["notes.txt"]);
        assert_eq!(of(&one("data_dir: ./x/"), &[]), (vec!["x/one.jsonl".into(), "x/two.jsonl".into()], None));
        assert_eq!(of(&one("data_dir: x\n  data_files: one.jsonl"), &[]).0, ["x/one.jsonl"]);
        assert_eq!(of("license: mit\nlicense: other", &[]).0, files[1..]);
        let message = |header: &str| chosen_with(&declared(header).unwrap(), &files, &[]).unwrap_err().to_string();
        assert_eq!(
            message(&one("data_files: [y.jsonl, z.jsonl]")),
            "d: `z.jsonl` in `README.md`, config `some`: there is no such data file"
        );
        assert_eq!(
            message(&one("data_files: https://host/y.jsonl")),
            "d: `https://host/y.jsonl` in `README.md`, config `some`: only files of the data set can be read"
        );
        for outside in ["data_files: ../a/*.jsonl", "data_files: x/../../a.jsonl", "data_dir: ../a\n  data_files: '*'"]
        {
            let message = message(&one(outside));
            assert!(message.ends_with("config `some`: only files of the data set can be read"), "{message}");
        }
        assert_eq!(
            message(&one("data_dir: ../a")),
            "d: `../a` in `README.md`, config `some`: only files of the data set can be read"
        );
        // A path may go up inside of the data set.
        assert_eq!(of(&one("data_files: x/../y.jsonl"), &[]).0, ["y.jsonl"]);
        assert_eq!(of(&one("data_dir: x\n  data_files: ../y.jsonl"), &[]).0, ["y.jsonl"]);
        assert_eq!(of(&one("data_dir: y/../x"), &[]).0, ["x/one.jsonl", "x/two.jsonl"]);
        // A config outside of it does not matter unless it is read.
        let header = "configs:\n- config_name: default\n  data_files: y.jsonl\n- config_name: other\n  data_dir: ../a";
        assert_eq!(of(header, &[]).0, ["y.jsonl"]);
        for parts in [&["other"][..], &["other", "train"]] {
            let error = chosen_with(&declared(header).unwrap(), &files, parts).unwrap_err().to_string();
            assert_eq!(error, "d:other: `../a` in `README.md`, config `other`: only files of the data set can be read");
        }
        assert_eq!(message(&one("data_files: z*")), "d: no data file in it");
    }

    #[test]
    fn one_config_is_read_unless_another_is_named() {
        let files = ["a.jsonl", "b.jsonl", "c/test.jsonl", "c/train.jsonl"];
        let two = "configs:\n- config_name: A\n  data_files: a.jsonl\n- config_name: B\n  data_files: b.jsonl";
        let of = |header: &str, parts: &[&str]| chosen_with(&declared(header).unwrap(), &files, parts);
        let error = of(two, &[]).unwrap_err();
        assert_eq!(error.to_string(), "d: several configs and no default: `A`, `B`");
        assert_eq!(error.hint(), Some("name one: `d:A`"));
        assert_eq!(of(two, &["B"]).unwrap().0, ["b.jsonl"]);
        assert_eq!(of(two, &["B", "train"]).unwrap().0, ["b.jsonl"]);
        assert_eq!(of(two, &["C"]).unwrap_err().to_string(), "d: no config `C` (found `A`, `B`)");
        assert_eq!(of(two, &["C", "train"]).unwrap_err().to_string(), "d: no config `C` (found `A`, `B`)");
        assert_eq!(of(two, &["B", "test"]).unwrap_err().to_string(), "d:B: no split `test` (found `train`)");
        let with_default = format!("{two}\n  default: true");
        assert_eq!(of(&with_default, &[]).unwrap().0, ["b.jsonl"]);
        assert_eq!(of(&with_default, &["train"]).unwrap().0, ["b.jsonl"]);
        assert_eq!(of(&with_default, &["A"]).unwrap().0, ["a.jsonl"]);
        // A split of the default config comes before a config of the same name.
        let same = "configs:\n- config_name: default\n  data_dir: c\n- config_name: test\n  data_files: a.jsonl";
        assert_eq!(of(same, &["test"]).unwrap().0, ["c/test.jsonl"]);
        assert_eq!(of(same, &["test", "train"]).unwrap().0, ["a.jsonl"]);
    }

    #[test]
    fn a_header_that_cannot_be_read_is_an_error_with_its_line() {
        let message = |header: &str| declared(header).unwrap_err().to_string();
        let broken = message("license: mit\nconfigs: [");
        assert!(broken.starts_with("d/README.md:3: the header cannot be read as YAML: "), "{broken}");
        let number = message("license: mit\nconfigs: 5");
        assert!(number.starts_with("d/README.md:3: the header cannot be read as YAML: "), "{number}");
        let second = |config: &str| message(&format!("configs:\n- config_name: A\n- {config}"));
        assert_eq!(second("data_files: a"), "d/README.md:4: a config has no `config_name`");
        assert_eq!(second("config_name: A"), "d/README.md:4: there is already a config `A`");
        assert!(
            second("{ config_name: B, data_files: [a, { split: b }] }")
                .starts_with("d/README.md:4: `data_files` of the config `B` has another form than a file, ")
        );
        let twice = "{ config_name: B, data_files: [{ split: a, path: b }, { split: a, path: c }] }";
        assert_eq!(second(twice), "d/README.md:4: `data_files` of the config `B` names the split `a` twice");
        assert_eq!(
            message("configs:\n- config_name: default\n- config_name: B\n  default: true"),
            "d/README.md: several default configs: `default`, `B`"
        );
    }

    #[test]
    fn shards_without_a_split_are_all_read() {
        assert_eq!(chosen(&["a.jsonl", "b.jsonl"], &[]).unwrap(), (vec!["a.jsonl".into(), "b.jsonl".into()], None));
        assert_eq!(chosen(&["harmless-base/test.jsonl.gz"], &[]).unwrap().1.as_deref(), Some("test"));
    }

    #[test]
    fn hub_names_are_told_from_paths() {
        for (name, hub) in
            [("Anthropic/hh-rlhf", true), ("gsm8k", true), ("rows.jsonl", false), ("./x", false), ("a/b/c", false)]
        {
            assert_eq!(looks_like_hub_name(name), hub, "{name}");
        }
    }
}
