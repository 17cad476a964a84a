//! Search for MPI libraries.

use std::env;
use std::path::{Path, PathBuf};

use libloading::Library;

use crate::Error;
use crate::abi::{Abi, Engine};
use crate::launch::Launcher;

/// A library that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MpiLibrary {
    /// Name or path that it was opened by.
    pub path: String,
    /// First line of its version text.
    pub version: String,
    /// Its binary interface.
    abi: Abi,
}

impl MpiLibrary {
    /// Returns the name of its binary interface.
    pub fn abi(&self) -> &'static str {
        match self.abi {
            Abi::Standard => "standard ABI",
            Abi::OpenMpi => "Open MPI",
            Abi::Mpich => "MPICH",
        }
    }
}

/// Names of libraries, each with its interface.
const NAMES: [(&str, Abi); 6] = if cfg!(target_os = "macos") {
    [
        ("libmpi_abi.1.dylib", Abi::Standard),
        ("libmpi_abi.0.dylib", Abi::Standard),
        ("libmpi_abi.dylib", Abi::Standard),
        ("libmpi.40.dylib", Abi::OpenMpi),
        ("libmpi.12.dylib", Abi::Mpich),
        ("libmpich.12.dylib", Abi::Mpich),
    ]
} else {
    [
        ("libmpi_abi.so.1", Abi::Standard),
        ("libmpi_abi.so.0", Abi::Standard),
        ("libmpi_abi.so", Abi::Standard),
        ("libmpi.so.40", Abi::OpenMpi),
        ("libmpi.so.12", Abi::Mpich),
        // Name on Debian.
        ("libmpich.so.12", Abi::Mpich),
    ]
};

/// Environment variable with the path of a library, for use if the search finds none or the wrong one.
pub const VARIABLE: &str = "GRADUS_MPI";

/// Folders of libraries next to the launcher in `PATH` (`pip install mpich` puts them there), and of the installations in environment
/// variables.
#[expect(clippy::disallowed_methods, reason = "a variable in the table of ARCHITECTURE.md")]
fn folders() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let paths = env::var_os("PATH").unwrap_or_default();
    for folder in env::split_paths(&paths) {
        for program in ["mpiexec", "mpirun"] {
            let program = folder.join(program);
            let real = program.canonicalize();
            let programs = [program.is_file().then_some(program.clone()), real.ok()];
            for program in programs.into_iter().flatten() {
                if let Some(root) = program.parent().and_then(Path::parent) {
                    found.extend([root.join("lib"), root.join("lib64")]);
                }
            }
        }
    }
    let roots = ["MPI_ROOT", "MPI_HOME", "I_MPI_ROOT"].into_iter().filter_map(env::var_os);
    found.extend(roots.map(|root| PathBuf::from(root).join("lib")));
    found.retain(|folder| folder.is_dir());
    let mut seen = Vec::new();
    found.retain(|folder| {
        let is_new = !seen.contains(folder);
        seen.push(folder.clone());
        is_new
    });
    found
}

/// Path of the library in [`VARIABLE`].
#[expect(clippy::disallowed_methods, reason = "a variable in the table of ARCHITECTURE.md")]
fn named() -> Option<String> {
    env::var_os(VARIABLE).map(|path| path.to_string_lossy().into_owned())
}

/// Libraries to try, in order. Those that belong to the launcher come first.
fn order(launcher: Option<Launcher>) -> Vec<String> {
    let mut names: Vec<(&str, Abi)> = NAMES.to_vec();
    match launcher {
        Some(Launcher::OpenMpi) => names.sort_by_key(|(_, abi)| *abi != Abi::OpenMpi),
        Some(Launcher::Hydra) => names.sort_by_key(|(_, abi)| *abi == Abi::OpenMpi),
        Some(Launcher::Pmix | Launcher::Slurm) | None => {}
    }
    if let Some(path) = named() {
        return vec![path];
    }
    let folders = folders();
    let mut found = Vec::new();
    for (name, _) in names {
        // Next to the launcher first, because a system-wide library may belong to another one.
        found.extend(folders.iter().map(|folder| folder.join(name)).filter(|path| path.is_file()));
        found.push(PathBuf::from(name));
    }
    found.into_iter().map(|path| path.to_string_lossy().into_owned()).collect()
}

/// Loads a library by its name or path. The error is the reason of the system.
fn load(path: &str) -> Result<Library, String> {
    // SAFETY: MPI libraries do nothing harmful when they are loaded, and the user chose or installed this one.
    unsafe { Library::new(path) }.map_err(|error| {
        let reason = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        reason.strip_prefix(&format!("{path}: ")).unwrap_or(&reason).to_owned()
    })
}

/// Finds the functions of a library that was loaded from `path`.
fn find(path: &str, library: Library) -> Result<(Box<dyn Engine>, MpiLibrary), Error> {
    let found = Abi::of(&library, path).and_then(|abi| {
        let (engine, version) = abi.engine(library)?;
        Ok((engine, MpiLibrary { path: path.to_owned(), version, abi }))
    });
    found.map_err(|reason| Error::Unusable { library: path.to_owned(), reason })
}

/// Opens the library that the user names, or else the first one that can be used.
pub fn open(launcher: Option<Launcher>) -> Result<(Box<dyn Engine>, MpiLibrary), Error> {
    if let Some(path) = named() {
        return match load(&path) {
            Ok(library) => find(&path, library),
            Err(reason) => Err(Error::Unusable { library: path, reason }),
        };
    }
    let order = order(launcher);
    let mut unusable = None;
    for path in &order {
        let Ok(library) = load(path) else { continue };
        match find(path, library) {
            Ok(found) => return Ok(found),
            Err(error) => unusable = Some(error),
        }
    }
    Err(unusable.unwrap_or(Error::NotFound { looked_for: order }))
}

/// Lists the usable libraries on this machine without initializing any. For reports only.
pub fn candidates() -> Vec<MpiLibrary> {
    let mut found: Vec<MpiLibrary> = Vec::new();
    for path in order(None) {
        let Ok(library) = load(&path) else { continue };
        if let Ok((_, new)) = find(&path, library)
            && !found.iter().any(|other| other.version == new.version && other.abi == new.abi)
        {
            found.push(new);
        }
    }
    found
}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    use super::*;

    #[test]
    fn the_reason_of_the_system_is_passed_on() {
        let path = env::temp_dir().join(format!("gradus-mpi-script-{}.so", std::process::id()));
        std::fs::write(&path, "INPUT(libmpi.so.12)\n").expect("written");
        let error = load(&path.display().to_string()).expect_err("no library");
        std::fs::remove_file(&path).expect("removed");
        assert!(!error.is_empty() && !error.contains("dlopen") && !error.contains("gradus-mpi-script"), "{error}");
    }

    #[test]
    fn a_library_without_mpi_is_refused() {
        let Ok(library) = load("libc.so.6") else { return };
        let error = find("/opt/mpich/libmpi_abi.so", library).err().map(|error| error.to_string());
        let expected = "`/opt/mpich/libmpi_abi.so` cannot be used: it has no `MPI_Get_library_version`";
        assert_eq!(error.as_deref(), Some(expected));
    }

    /// Names of files and folders say nothing about the interface.
    #[test]
    fn the_interface_does_not_depend_on_the_path() {
        let folder = env::temp_dir().join(format!("gradus-mpich-and-others-{}", std::process::id()));
        let candidates = candidates().into_iter().filter(|candidate| PathBuf::from(&candidate.path).is_absolute());
        for (number, candidate) in candidates.enumerate() {
            // The system remembers which library it loaded by a path, so each library needs a path of its own.
            let folder = folder.join(number.to_string());
            std::fs::create_dir_all(&folder).expect("made");
            let link = folder.join("libmpi.so");
            std::os::unix::fs::symlink(&candidate.path, &link).expect("linked");
            let path = link.display().to_string();
            let (_, found) = find(&path, load(&path).expect("it loads")).expect("it can be used");
            assert_eq!((found.abi, &found.version), (candidate.abi, &candidate.version));
        }
        let _ = std::fs::remove_dir_all(&folder);
    }
}
