//! Permission to change adapters and weights, and the allowed folders.

use std::path::{Path, PathBuf};

use axum::http::HeaderMap;
use gradus::{Error, Result};

use crate::secret::{given, same};
use crate::within;

/// Permission to change adapters and weights.
#[derive(Debug, Clone)]
pub struct Changing {
    /// Required token.
    token: String,
    /// Allowed folders of adapters and weights.
    folders: Vec<PathBuf>,
}

impl Changing {
    /// Grants the permission to holders of `token`, for files in `folders`.
    ///
    /// # Errors
    /// A folder does not exist.
    pub fn new(token: String, folders: &[PathBuf]) -> Result<Self> {
        let real = |folder: &PathBuf| {
            let real = folder.canonicalize().map_err(|error| Error::io(folder, error))?;
            if real.is_dir() { Ok(real) } else { Err(Error::input(format!("`{}` is not a folder", folder.display()))) }
        };
        Ok(Self { token, folders: folders.iter().map(real).collect::<Result<_>>()? })
    }

    /// Returns the token.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Returns whether the request contains the token.
    pub fn is_known(&self, headers: &HeaderMap) -> bool {
        given(headers).is_some_and(|given| same(&given, &self.token))
    }

    /// Returns the real path of a folder with weights. Missing folders and folders outside the allowed ones get the same error, so that
    /// requests cannot probe which folders exist.
    pub(super) fn folder(&self, given: &Path) -> Result<PathBuf, String> {
        let inside = || {
            let path = given.canonicalize().ok().filter(|path| path.is_dir())?;
            let folder = self.folders.iter().find(|folder| path.starts_with(folder))?;
            Some((path, folder))
        };
        let Some((path, folder)) = inside() else {
            return Err("there is no such folder inside the folders of `--allow-weights`".into());
        };
        within::check(folder, &path).map_err(|error| error.to_string())?;
        Ok(path)
    }
}
