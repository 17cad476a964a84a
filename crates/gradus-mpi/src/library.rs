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

/// Libraries to try, in order. Those that belong to the launcher come first.
#[expect(clippy::disallowed_methods, reason = "a variable in the table of ARCHITECTURE.md")]
fn order(launcher: Option<Launcher>) -> Vec<(String, Abi)> {
    let mut names: Vec<(&str, Abi)> = NAMES.to_vec();
    match launcher {
        Some(Launcher::OpenMpi) => names.sort_by_key(|(_, abi)| *abi != Abi::OpenMpi),
        Some(Launcher::Hydra) => names.sort_by_key(|(_, abi)| *abi == Abi::OpenMpi),
        Some(Launcher::Pmix | Launcher::Slurm) | None => {}
    }
    if let Some(path) = env::var_os(VARIABLE) {
        let path = path.to_string_lossy().into_owned();
        let is_of = |part: &str| path.contains(part);
        let abi = match () {
            () if is_of("libmpi_abi") => Abi::Standard,
            () if is_of("mpich") || is_of(".so.12") || is_of(".12.dylib") => Abi::Mpich,
            () => Abi::OpenMpi,
        };
        return vec![(path, abi)];
    }
    let folders = folders();
    let mut found = Vec::new();
    for (name, abi) in names {
        // Next to the launcher first, because a system-wide library may belong to another one.
        found.extend(
            folders.iter().map(|folder| folder.join(name)).filter(|path| path.is_file()).map(|path| (path, abi)),
        );
        found.push((PathBuf::from(name), abi));
    }
    found.into_iter().map(|(path, abi)| (path.to_string_lossy().into_owned(), abi)).collect()
}

/// Opens the first library that can be used.
pub fn open(launcher: Option<Launcher>) -> Result<(Box<dyn Engine>, MpiLibrary), Error> {
    let order = order(launcher);
    let mut unusable = None;
    for (path, abi) in &order {
        // SAFETY: MPI libraries do nothing harmful when they are loaded, and the user chose or installed this one.
        let Ok(library) = (unsafe { Library::new(path) }) else { continue };
        match abi.engine(library) {
            Ok((engine, version)) => return Ok((engine, MpiLibrary { path: path.clone(), version, abi: *abi })),
            Err(reason) => unusable = Some(Error::Unusable { library: path.clone(), reason }),
        }
    }
    let looked_for = order.into_iter().map(|(path, _)| path).collect();
    Err(unusable.unwrap_or(Error::NotFound { looked_for }))
}

/// Lists the usable libraries on this machine without initializing any. For reports only.
pub fn candidates() -> Vec<MpiLibrary> {
    let mut found: Vec<MpiLibrary> = Vec::new();
    for (path, abi) in order(None) {
        // SAFETY: as in `open`.
        let Ok(library) = (unsafe { Library::new(&path) }) else { continue };
        if let Ok((_, version)) = abi.engine(library) {
            let is_new = !found.iter().any(|other| other.version == version && other.abi == abi);
            if is_new {
                found.push(MpiLibrary { path, version, abi });
            }
        }
    }
    found
}
