//! Parameters in the address of a page.

use std::path::PathBuf;

use gradus::runs::Library;

use crate::app::App;
use crate::failed::Failed;

/// Names and values of the parameters. A name may occur several times.
pub type Asked = Vec<(String, String)>;

/// Returns the first non-empty value of a name.
pub fn first<'a>(asked: &'a Asked, name: &str) -> Option<&'a str> {
    asked.iter().find(|(key, value)| key == name && !value.is_empty()).map(|(_, value)| value.as_str())
}

/// Returns the directory of the run `name` in the folder.
pub fn find(app: &App, name: &str) -> Result<PathBuf, Failed> {
    let names = Library::new(&app.folder).names();
    let found = names.into_iter().find(|(known, _)| known == name).map(|(_, path)| path);
    found.ok_or_else(|| Failed::missing("There is no such run; it may have been renamed or removed."))
}
