//! Files and directories that the user names as outputs of a command.
//!
//! Only [`Outputs`] creates an [`OutputFile`] or an [`OutputDir`], and all code that writes to a path from the user takes one of
//! these. This guarantees three things: no file is replaced unless the user requested it (`--overwrite`) or gradus wrote the file
//! itself; no input is ever replaced; two outputs are never the same file.

use std::fs;
use std::io::{BufWriter, Write};
use std::path::{Component, Path, PathBuf};

use super::atomic::{self, Unfinished, parent, sibling, sync_directory};
use super::durable;
use crate::error::{Diagnostic, Error, Result};

/// Outputs of one command.
#[derive(Debug, Default)]
pub struct Outputs {
    overwrite: bool,
    inputs: Vec<PathBuf>,
    taken: Vec<PathBuf>,
}

impl Outputs {
    /// Creates an empty set. `overwrite` permits outputs to replace existing files.
    pub fn new(overwrite: bool) -> Self {
        Self { overwrite, ..Self::default() }
    }

    /// Adds a file or directory that the command reads. No output may replace it, even with `overwrite`.
    #[must_use]
    pub fn reading(mut self, input: impl AsRef<Path>) -> Self {
        self.inputs.push(input.as_ref().to_owned());
        self
    }

    /// Like [`Self::reading`], for several inputs.
    #[must_use]
    pub fn reading_all<P: AsRef<Path>>(self, inputs: impl IntoIterator<Item = P>) -> Self {
        inputs.into_iter().fold(self, Self::reading)
    }

    /// Registers the output file `path`.
    ///
    /// # Errors
    /// [`Error::Config`] if a file exists that may not be replaced, or the path is an input or the same as another output.
    pub fn file(&mut self, path: &Path) -> Result<OutputFile> {
        self.file_unless(path, |_| false)
    }

    /// Like [`Self::file`], but a file for which `is_ours` returns true may always be replaced.
    ///
    /// # Errors
    /// As for [`Self::file`].
    pub fn file_unless(&mut self, path: &Path, is_ours: impl FnOnce(&Path) -> bool) -> Result<OutputFile> {
        let shown = path.display();
        if path.is_dir() {
            return Err(refused(format!("`{shown}` is a directory, but the output is a file"), "choose another name"));
        }
        self.take(path)?;
        let found = fs::symlink_metadata(path).is_ok();
        let may_replace = self.overwrite || (found && is_ours(path));
        // A pipe or a device holds nothing that could be lost.
        if found && !may_replace && !is_stream(path) {
            return Err(refused(format!("`{shown}` exists; `--overwrite` replaces it"), ""));
        }
        // A link is kept, and its target is replaced.
        let at = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        Ok(OutputFile { path: path.to_owned(), at, may_replace })
    }

    /// Registers the page `path`, which must end in `.html`, and a file of the same name that ends in `.json`.
    ///
    /// # Errors
    /// As for [`Self::file`], or if the name ends otherwise.
    pub fn report(&mut self, path: &Path) -> Result<ReportFiles> {
        if path.extension().is_none_or(|extension| extension != "html") {
            let message = format!("`{}` cannot be the name of a report: it does not end in `.html`", path.display());
            return Err(refused(message, "the page has this name; its numbers have the same name with `.json`"));
        }
        Ok(ReportFiles { page: self.file(path)?, json: self.file(&path.with_extension("json"))? })
    }

    /// Registers the directory `path` for a model. With `--overwrite` it may replace the directory of another model, but nothing
    /// else.
    ///
    /// # Errors
    /// As for [`Self::file`].
    pub fn model_dir(&mut self, path: &Path) -> Result<OutputDir> {
        self.take(path)?;
        let shown = path.display();
        let is_vacant = is_vacant(path);
        if !is_vacant && !self.overwrite {
            return Err(refused(
                format!("output directory `{shown}` exists and is not empty"),
                "choose another `--output`, or replace the model in it with `--overwrite`",
            ));
        }
        if !is_vacant && let Some(foreign) = foreign_to_a_model(path) {
            return Err(refused(
                format!("`{shown}` {foreign}: `--overwrite` would remove files that are not part of a model"),
                "choose another `--output`, or remove it",
            ));
        }
        Ok(OutputDir::new(path, self.overwrite))
    }

    /// Reserves a path. It must not be an input, a directory with an input in it, or another output.
    fn take(&mut self, path: &Path) -> Result<()> {
        let shown = path.display();
        let own = identity(path);
        let holds = |input: &&PathBuf| is_same_file(path, input) || identity(input).starts_with(&own);
        if let Some(input) =
            self.inputs.iter().find(holds).filter(|_| fs::symlink_metadata(path).is_ok() && !is_stream(path))
        {
            let message = match is_same_file(path, input) {
                true => format!("`{shown}` is an input and would be replaced"),
                false => format!("`{shown}` would be replaced, but it contains the input `{}`", input.display()),
            };
            return Err(refused(message, "choose another name for the output"));
        }
        if let Some(other) = self.taken.iter().find(|other| is_same_file(path, other)).filter(|_| !is_stream(path)) {
            return Err(refused(
                format!("two outputs are one file: `{}` and `{shown}`", other.display()),
                "give each output its own name",
            ));
        }
        self.taken.push(path.to_owned());
        Ok(())
    }
}

/// Creates the error for a mistake on the command line.
fn refused(message: String, hint: &str) -> Error {
    let hint = (!hint.is_empty()).then(|| hint.to_owned());
    Error::Config(vec![Diagnostic { message, locations: Vec::new(), hint }])
}

/// Returns whether nothing is at `path`, or an empty directory.
fn is_vacant(path: &Path) -> bool {
    match fs::symlink_metadata(path) {
        Err(_) => true,
        Ok(_) => fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none()),
    }
}

/// Returns what distinguishes a directory from a model's directory, or `None` for a model's directory.
fn foreign_to_a_model(path: &Path) -> Option<String> {
    let Ok(entries) = fs::read_dir(path) else { return Some("is not a directory".into()) };
    let is_model = ["config.json", "adapter_config.json"].iter().any(|name| path.join(name).is_file());
    if !is_model {
        return Some("holds no model".into());
    }
    let folder = entries.flatten().find(|entry| entry.path().is_dir())?;
    Some(format!("holds the directory `{}`", folder.file_name().to_string_lossy()))
}

/// A file that may be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputFile {
    /// Path as the user gave it.
    path: PathBuf,
    /// Real path, after following links.
    at: PathBuf,
    may_replace: bool,
}

impl OutputFile {
    /// Registers a single new file, which must not exist yet.
    ///
    /// # Errors
    /// As for [`Outputs::file`].
    pub fn new(path: &Path) -> Result<Self> {
        Outputs::default().file(path)
    }

    /// Returns the path as the user gave it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the file atomically and creates its parent directories.
    ///
    /// # Errors
    /// The error of `write`, or [`Error::Io`].
    pub fn write(&self, write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<()> {
        commit([self.stage(write)?])
    }

    /// Writes the content to a temporary file next to the final one, for [`commit`]. Without a commit, the temporary file is
    /// removed.
    ///
    /// # Errors
    /// As for [`Self::write`].
    pub fn stage(&self, write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<Staged> {
        let io = |source| Error::io(&self.path, source);
        let mut staged = Staged { file: self.clone(), temporary: None, _registered: None };
        if is_stream(&self.path) {
            let mut stream = BufWriter::new(fs::File::options().write(true).open(&self.path).map_err(io)?);
            write(&mut stream).and_then(|()| stream.flush()).map_err(io)?;
            return Ok(staged);
        }
        fs::create_dir_all(parent(&self.at)).map_err(io)?;
        let temporary = sibling(&self.at, "tmp");
        staged._registered = Some(Unfinished::new(&temporary));
        let created = fs::File::create_new(&temporary).map_err(io)?;
        staged.temporary = Some(temporary);
        let mut file = BufWriter::new(created);
        write(&mut file).and_then(|()| file.flush()).and_then(|()| durable::sync(file.get_ref())).map_err(io)?;
        Ok(staged)
    }
}

/// Content of an [`OutputFile`] in a temporary file.
#[derive(Debug)]
pub struct Staged {
    file: OutputFile,
    /// Path of the temporary file. `None` after the rename, and for streams.
    temporary: Option<PathBuf>,
    /// Entry of the temporary file in the list of those that the end of the process removes.
    _registered: Option<Unfinished>,
}

impl Drop for Staged {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            let _ = fs::remove_file(temporary);
        }
    }
}

/// Renames files that belong together to their final names, after all of them are written.
///
/// # Errors
/// [`Error::Config`] if a file now exists that may not be replaced; [`Error::Io`].
pub fn commit(files: impl IntoIterator<Item = Staged>) -> Result<()> {
    let mut done: Vec<PathBuf> = Vec::new();
    for mut staged in files {
        let Some(temporary) = staged.temporary.clone() else { continue };
        let OutputFile { path, at, may_replace } = &staged.file;
        let io = |source| Error::io(path, source);
        // Different names may be the same file, for example on a file system that ignores case.
        let may_replace = *may_replace && !done.iter().any(|other| is_same_file(other, at));
        if may_replace {
            fs::rename(&temporary, at).map_err(io)?;
            staged.temporary = None;
        } else {
            // Unlike a rename, a link fails if the file exists. On a file system without links, the only option is to check before
            // renaming.
            match fs::hard_link(&temporary, at) {
                Ok(()) => {}
                Err(_) if fs::symlink_metadata(at).is_err() => {
                    fs::rename(&temporary, at).map_err(io)?;
                    staged.temporary = None;
                }
                Err(_) => {
                    let message =
                        format!("`{}` was created in the meantime; `--overwrite` replaces it", path.display());
                    return Err(refused(message, ""));
                }
            }
        }
        sync_directory(parent(at)).map_err(io)?;
        done.push(at.clone());
    }
    Ok(())
}

/// A page, and a file with its numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportFiles {
    page: OutputFile,
    json: OutputFile,
}

impl ReportFiles {
    /// Returns the path of the page as the user gave it.
    pub fn page(&self) -> &Path {
        self.page.path()
    }

    /// Writes both files, or neither.
    ///
    /// # Errors
    /// As for [`OutputFile::write`].
    pub fn write(&self, page: &str, numbers: &serde_json::Value) -> Result<()> {
        let json = serde_json::to_string_pretty(numbers).expect("JSON values serialize") + "\n";
        let files = [(&self.page, page), (&self.json, &json)];
        let staged: Result<Vec<Staged>> =
            files.into_iter().map(|(file, text)| file.stage(|to| to.write_all(text.as_bytes()))).collect();
        commit(staged?)
    }
}

/// A directory that may be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputDir {
    /// Path as the user gave it.
    path: PathBuf,
    /// Path to replace. A link is kept, and its target is replaced.
    at: PathBuf,
    /// Whether files that have no successor may be removed.
    may_remove: bool,
}

impl OutputDir {
    fn new(path: &Path, may_remove: bool) -> Self {
        let target = if path.is_symlink() { path.canonicalize().ok() } else { None };
        Self { path: path.to_owned(), at: target.unwrap_or_else(|| path.to_owned()), may_remove }
    }

    /// Registers the directory of a model that a program saves again and again. It may replace an earlier model whose files all have
    /// successors, and nothing else. [`write`](Self::write) compares the names.
    ///
    /// # Errors
    /// [`Error::Input`] if `path` is a file, or a directory with other content than a model.
    pub fn of_saved_model(path: &Path) -> Result<Self> {
        if !is_vacant(path)
            && let Some(foreign) = foreign_to_a_model(path)
        {
            let message = format!("`{}` {foreign}, so no model is saved there", path.display());
            return Err(Error::input(message).with_hint("save the model to a new directory"));
        }
        Ok(Self::new(path, false))
    }

    /// Fills the directory atomically, like [`atomic::write_dir`].
    ///
    /// # Errors
    /// As for [`atomic::write_dir`]; also if the directory holds a file that `fill` does not write, unless `--overwrite` permits its removal.
    pub fn write(&self, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        let filled = atomic::fill_dir(&self.at, fill)?;
        if !self.may_remove
            && let Some(name) = without_successor(&self.at, filled.location())
        {
            let message = format!("`{}` holds `{name}`, which is no file of the new model", self.path.display());
            return Err(Error::input(message).with_hint("save the model to a new directory, or move the file"));
        }
        filled.finish()
    }

    /// Returns the path as the user gave it.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Returns the first name in `old` that `new` lacks.
fn without_successor(old: &Path, new: &Path) -> Option<String> {
    let names = fs::read_dir(old).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.filter(|name| !new.join(name).exists()).min().map(|name| name.to_string_lossy().into_owned())
}

/// Returns whether both paths lead to the same file or directory, even if it does not exist yet.
pub fn is_same_file(one: &Path, other: &Path) -> bool {
    inode(one).is_some_and(|of| Some(of) == inode(other)) || identity(one) == identity(other)
}

#[cfg(unix)]
fn inode(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt as _;
    fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

#[cfg(not(unix))]
fn inode(_: &Path) -> Option<(u64, u64)> {
    None
}

/// Returns the canonical path. For a missing file, it is the canonical path of the nearest existing directory and the rest.
fn identity(path: &Path) -> PathBuf {
    if let Ok(found) = path.canonicalize() {
        return found;
    }
    match path.components().next_back() {
        Some(Component::Normal(name)) => identity(parent(path)).join(name),
        Some(Component::ParentDir) => {
            let mut above = identity(parent(path));
            above.pop();
            above
        }
        Some(Component::CurDir) => identity(parent(path)),
        _ => path.to_owned(),
    }
}

/// Returns whether the path is a pipe or a device, which is written to but never replaced.
fn is_stream(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &'static str) -> impl FnOnce(&mut dyn Write) -> std::io::Result<()> {
        move |file| file.write_all(text.as_bytes())
    }

    fn names(directory: &Path) -> Vec<String> {
        let names = fs::read_dir(directory).expect("readable").flatten();
        let mut names: Vec<String> = names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn what_is_there_stays_unless_it_may_be_replaced() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("new/rows.jsonl");
        OutputFile::new(&path).expect("nothing is there").write(text("first")).expect("written");
        let message = OutputFile::new(&path).expect_err("it is there").to_string();
        assert_eq!(message, format!("`{}` exists; `--overwrite` replaces it", path.display()));
        let ours = |of: &Path| fs::read(of).is_ok_and(|bytes| bytes == b"first");
        Outputs::new(false).file_unless(&path, ours).expect("ours").write(text("second")).expect("written");
        assert!(Outputs::new(false).file_unless(&path, ours).is_err(), "ours no more");
        Outputs::new(true).file(&path).expect("asked for").write(text("third")).expect("written");
        assert_eq!(fs::read_to_string(&path).expect("there"), "third");
        assert_eq!(names(&directory.path().join("new")), ["rows.jsonl"], "nothing else is left");
        assert!(Outputs::new(true).file(directory.path()).is_err(), "a directory is no file");
    }

    #[test]
    fn a_file_that_appears_meanwhile_stays() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("rows.jsonl");
        let file = OutputFile::new(&path).expect("nothing is there");
        let staged = file.stage(text("ours")).expect("written");
        fs::write(&path, "theirs").expect("written");
        let message = commit([staged]).expect_err("it is there").to_string();
        assert!(message.contains("was created in the meantime"), "{message}");
        assert_eq!(fs::read_to_string(&path).expect("there"), "theirs");
        assert_eq!(names(directory.path()), ["rows.jsonl"]);
    }

    #[test]
    fn files_that_belong_together_get_their_names_together() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        let mut outputs = Outputs::default();
        let (one, other) = (outputs.file(&at("one")).expect("new"), outputs.file(&at("other")).expect("new"));
        let first = one.stage(text("1")).expect("written");
        other.stage(|_| Err(std::io::ErrorKind::StorageFull.into())).expect_err("full");
        drop(first);
        assert!(names(directory.path()).is_empty(), "{:?}", names(directory.path()));
        commit([one.stage(text("1")).expect("written"), other.stage(text("2")).expect("written")]).expect("named");
        assert_eq!(names(directory.path()), ["one", "other"]);
    }

    #[cfg(unix)]
    #[test]
    fn files_are_compared_and_not_their_names() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        fs::create_dir(at("real")).expect("made");
        std::os::unix::fs::symlink(at("real"), at("link")).expect("linked");
        fs::write(at("real/rows"), "1").expect("written");
        std::os::unix::fs::symlink(at("real/rows"), at("rows")).expect("linked");
        fs::hard_link(at("real/rows"), at("hard")).expect("linked");
        for (one, other) in [
            ("x", "./x"),
            ("x", "real/../x"),
            ("link/new", "real/new"),
            ("link/none/new", "real/none/new"),
            ("none/../x", "x"),
            ("rows", "link/rows"),
            ("hard", "rows"),
        ] {
            assert!(is_same_file(&at(one), &at(other)), "{one} and {other}");
            let mut outputs = Outputs::new(true);
            outputs.file(&at(one)).expect("one");
            let message = outputs.file(&at(other)).expect_err("the same").to_string();
            assert!(message.starts_with("two outputs are one file"), "{message}");
        }
        assert!(!is_same_file(&at("real/new"), &at("new")));
        let mut outputs = Outputs::new(true).reading(at("rows"));
        let message = outputs.file(&at("real/rows")).expect_err("it is read").to_string();
        assert!(message.ends_with("is an input and would be replaced"), "{message}");
        let message = outputs.model_dir(&at("link")).expect_err("it is read").to_string();
        assert!(message.contains("would be replaced, but"), "{message}");
        // The target of a link is replaced, and the link is kept.
        Outputs::new(true).file(&at("rows")).expect("asked for").write(text("2")).expect("written");
        assert_eq!(fs::read_to_string(at("real/rows")).expect("there"), "2");
        assert!(at("rows").is_symlink());
    }

    #[test]
    fn only_a_model_is_replaced_by_a_model() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("model");
        let claim = |overwrite| Outputs::new(overwrite).model_dir(&path).map_err(|error| error.to_string());
        assert!(claim(false).is_ok());
        fs::create_dir(&path).expect("made");
        assert!(claim(false).is_ok(), "it is empty");
        fs::write(path.join("notes.txt"), "mine").expect("written");
        assert!(claim(false).is_err_and(|message| message.ends_with("exists and is not empty")));
        assert!(claim(true).is_err_and(|message| message.contains("holds no model")));
        fs::write(path.join("config.json"), "{}").expect("written");
        assert!(claim(true).is_ok() && claim(false).is_err());
        fs::create_dir(path.join("int8")).expect("made");
        assert!(claim(true).is_err_and(|message| message.contains("holds the directory `int8`")));
    }
    #[test]
    fn a_model_that_is_saved_again_removes_no_file_of_others() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("model");
        let save = |content: &'static str| {
            OutputDir::of_saved_model(&path)?.write(|at| {
                ["config.json", "model.safetensors"]
                    .iter()
                    .try_for_each(|name| fs::write(at.join(name), content).map_err(|source| Error::io(at, source)))
            })
        };
        let message = |found: Result<()>| found.expect_err("refused").to_string();
        save("first").expect("nothing is there");
        save("second").expect("each file has a successor");
        assert_eq!(fs::read_to_string(path.join("model.safetensors")).expect("there"), "second");
        fs::write(path.join("notes.txt"), "mine").expect("written");
        let found = message(save("third"));
        assert_eq!(found, format!("`{}` holds `notes.txt`, which is no file of the new model", path.display()));
        assert_eq!(names(&path), ["config.json", "model.safetensors", "notes.txt"]);
        assert_eq!(fs::read_to_string(path.join("model.safetensors")).expect("there"), "second");
        fs::remove_file(path.join("notes.txt")).expect("removed");
        fs::create_dir(path.join("src")).expect("made");
        assert!(message(save("third")).contains("holds the directory `src`"));
        fs::remove_file(path.join("config.json")).expect("removed");
        assert!(message(save("third")).contains("holds no model"));
        fs::remove_dir_all(&path).expect("removed");
        fs::write(&path, "mine").expect("written");
        assert!(message(save("third")).contains("is not a directory"));
        assert_eq!(names(directory.path()), ["model"], "nothing else is left");
    }

    #[cfg(unix)]
    #[test]
    fn a_link_to_a_directory_is_kept() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        fs::create_dir(at("real")).expect("made");
        std::os::unix::fs::symlink(at("real"), at("link")).expect("linked");
        let write = |path: &Path| fs::write(path.join("config.json"), "{}").map_err(|source| Error::io(path, source));
        OutputDir::of_saved_model(&at("link")).expect("it is empty").write(write).expect("written");
        assert!(at("link").is_symlink() && at("real/config.json").is_file());
    }
}
