//! Checks that files written by pages stay in the served folder, even if it contains links.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use gradus::{Error, Result};

/// Returns the folder `name` in `folder`, and creates it if necessary.
///
/// # Errors
/// It cannot be created, or is a link that leads out of `folder`.
pub fn made(folder: &Path, name: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    // Checked before creation, because the target of a link may not exist yet.
    check_link(folder, &path)?;
    std::fs::create_dir_all(&path).map_err(|error| Error::io(&path, error))?;
    Ok(path)
}

/// Rejects `path` if it, or anything in it, is a link that leads out of `folder`. A missing path is accepted.
///
/// # Errors
/// A link leads out of the folder (the first one is reported), or a directory cannot be read.
pub fn check(folder: &Path, path: &Path) -> Result<()> {
    let (mut rest, mut seen) = (vec![path.to_owned()], BTreeSet::new());
    while let Some(path) = rest.pop() {
        check_link(folder, &path)?;
        // Links to directories within the folder are followed, but each directory only once.
        if path.is_dir() && path.canonicalize().is_ok_and(|real| seen.insert(real)) {
            let entries = std::fs::read_dir(&path).map_err(|error| Error::io(&path, error))?;
            rest.extend(entries.flatten().map(|entry| entry.path()));
        }
    }
    Ok(())
}

fn check_link(folder: &Path, path: &Path) -> Result<()> {
    let leads_in = || {
        let (real, folder) = (path.canonicalize().ok()?, folder.canonicalize().ok()?);
        real.starts_with(folder).then_some(())
    };
    match path.is_symlink() && leads_in().is_none() {
        true => Err(Error::input(format!("`{}` is a link that leads out of the served folder", path.display()))
            .with_hint("remove the link, or do this from the command line")),
        false => Ok(()),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_may_lead_around_in_the_folder_and_not_out_of_it() {
        let (folder, outside) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let (root, at) = (folder.path(), |name: &str| folder.path().join(name));
        let link = |to: &Path, name: &str| symlink(to, at(name)).expect("a link");
        fs::create_dir_all(at("run/checkpoints/step-1")).expect("a folder");
        link(&at("run"), "run/itself");
        link(&at("run/checkpoints"), "run/inside");
        check(root, &at("run")).expect("all of it is in the folder");
        check(root, &at("nothing")).expect("it is not there");
        // The name under which the link is found depends on the order of the directories.
        let refused = |path: &str, link: &str| {
            let message = check(root, &at(path)).expect_err("refused").to_string();
            assert!(message.contains(&format!("/{link}`")), "{message}");
        };
        link(outside.path(), "run/checkpoints/step-2");
        refused("run", "step-2");
        link(&outside.path().join("nothing"), "models");
        refused("models", "models");
        assert!(made(root, "models").is_err() && !outside.path().join("nothing").exists());
        assert_eq!(made(root, "data").expect("made"), at("data"));
    }
}
