//! `log.txt`: the messages on stderr, one per line.

use std::path::Path;

use crate::files;

/// Returns the last `count` lines of `log.txt` in the run directory `path`. Empty if there is no such file.
pub fn log_tail(path: &Path, count: usize) -> Vec<String> {
    let text = files::read_run(path.join("log.txt")).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].iter().map(|&line| line.to_owned()).collect()
}

/// Returns the last `count` warnings in `log.txt` of the run directory `path`, without times and duplicates.
pub fn last_warnings(path: &Path, count: usize) -> Vec<String> {
    let mut warnings: Vec<String> = Vec::new();
    for line in log_tail(path, usize::MAX) {
        if let Some((_, warning)) = line.split_once("s  warning: ") {
            warnings.retain(|known| known != warning);
            warnings.push(warning.to_owned());
        }
    }
    warnings.split_off(warnings.len().saturating_sub(count))
}
