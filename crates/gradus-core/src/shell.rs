//! Words of shell commands that messages and job files contain.

use std::borrow::Cow;
use std::path::Path;

/// Quotes `text` as one word of a POSIX shell, if it needs quotes.
///
/// ```
/// use gradus_core::shell::word;
///
/// assert_eq!(word("runs/dpo-1"), "runs/dpo-1");
/// assert_eq!(word("my runs"), "'my runs'");
/// assert_eq!(word("it's"), r"'it'\''s'");
/// assert_eq!(word(""), "''");
/// ```
pub fn word(text: &str) -> Cow<'_, str> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-+=:@%,".contains(letter);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.into(),
        false => format!("'{}'", text.replace('\'', r"'\''")).into(),
    }
}

/// Quotes a path as one word of a POSIX shell, if it needs quotes.
pub fn path(path: &Path) -> String {
    word(&path.to_string_lossy()).into_owned()
}
