//! Who may change adapters and weights, and from where they may come.

use std::path::{Path, PathBuf};

use axum::http::HeaderMap;
use gradus::{Error, Result};

use crate::secret::{given, same};
use crate::within;

/// The right to change adapters and weights.
#[derive(Debug, Clone)]
pub struct Changing {
    /// What must be known for it.
    token: String,
    /// Adapters and weights lie in these folders.
    folders: Vec<PathBuf>,
}

impl Changing {
    /// The right for who knows `token`, with files in `folders`.
    ///
    /// # Errors
    /// When one of them is not there.
    pub fn new(token: String, folders: &[PathBuf]) -> Result<Self> {
        let real = |folder: &PathBuf| {
            let real = folder.canonicalize().map_err(|error| Error::io(folder, error))?;
            if real.is_dir() { Ok(real) } else { Err(Error::input(format!("`{}` is no folder", folder.display()))) }
        };
        Ok(Self { token, folders: folders.iter().map(real).collect::<Result<_>>()? })
    }

    /// The token.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Whether the request knows the token.
    pub fn is_known(&self, headers: &HeaderMap) -> bool {
        given(headers).is_some_and(|given| same(&given, &self.token))
    }

    /// The real path of a folder with weights. What is not there and what lies elsewhere is refused with the same words, so
    /// that nobody learns what is there.
    pub(super) fn folder(&self, given: &Path) -> std::result::Result<PathBuf, String> {
        let inside = || {
            let path = given.canonicalize().ok().filter(|path| path.is_dir())?;
            let folder = self.folders.iter().find(|folder| path.starts_with(folder))?;
            Some((path, folder))
        };
        let Some((path, folder)) = inside() else {
            return Err("there is no such folder inside those that `--allow-weights` names".into());
        };
        within::check(folder, &path).map_err(|error| error.to_string())?;
        Ok(path)
    }
}
