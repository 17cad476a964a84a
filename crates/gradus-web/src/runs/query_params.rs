//! Parameters in the address of a page.

use std::path::PathBuf;

use gradus::runs::Library;

use crate::app::App;
use crate::page_error::PageError;

/// Names and values of the parameters. A name may occur several times.
pub type QueryParams = Vec<(String, String)>;

/// Returns the first non-empty value of a name.
pub fn first<'a>(params: &'a QueryParams, name: &str) -> Option<&'a str> {
    params.iter().find(|(key, value)| key == name && !value.is_empty()).map(|(_, value)| value.as_str())
}

/// Returns the directory of the run `name` in the folder.
pub fn find(app: &App, name: &str) -> Result<PathBuf, PageError> {
    let names = Library::new(&app.folder).names();
    let found = names.into_iter().find(|(known, _)| known == name).map(|(_, path)| path);
    found.ok_or_else(|| PageError::missing("There is no such run; it may have been renamed or removed."))
}
