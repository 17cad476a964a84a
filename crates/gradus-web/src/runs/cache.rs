//! Cache of runs. Reading all lines of all runs takes long, and most runs do not change.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use gradus::runs::{Entry, Library, Status};

/// Files that an entry is read from.
const FILES: [&str; 6] = ["config.yml", "metrics.jsonl", "state.json", "results.json", "tags.json", "log.txt"];

/// Size and time of each file that exists.
type Stamp = [Option<(u64, SystemTime)>; FILES.len()];

/// Runs that were read.
#[derive(Debug, Default)]
pub struct Cache(Mutex<HashMap<PathBuf, (Stamp, Entry)>>);

impl Cache {
    /// Returns all runs below `folder` by name. Reads the runs whose files have changed, and those that are running, because a trainer may
    /// end without writing anything.
    pub fn entries(&self, folder: &Path) -> Vec<Entry> {
        let names = Library::new(folder).names();
        // A partial update after a panic only means missing entries.
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|path, _| names.iter().any(|(_, own)| own == path));
        let stamps: Vec<Stamp> = names.iter().map(|(_, path)| stamp(path)).collect();
        let is_known = |(path, stamp): (&PathBuf, &Stamp)| {
            known.get(path).is_some_and(|(before, entry)| before == stamp && entry.state != Status::Running)
        };
        let fresh = names.iter().zip(&stamps).filter(|((_, path), stamp)| !is_known((path, stamp)));
        let (fresh, stamps): (Vec<_>, Vec<_>) = fresh.map(|(run, stamp)| (run.clone(), *stamp)).unzip();
        for (entry, stamp) in Entry::read_all(fresh).into_iter().zip(stamps) {
            known.insert(entry.path.clone(), (stamp, entry));
        }
        names.iter().filter_map(|(_, path)| known.get(path).map(|(_, entry)| entry.clone())).collect()
    }
}

fn stamp(path: &Path) -> Stamp {
    FILES.map(|name| {
        let found = std::fs::metadata(path.join(name)).ok()?;
        Some((found.len(), found.modified().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_changed_is_read_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let run = folder.path().join("run");
        std::fs::create_dir(&run).expect("a folder");
        let metrics = run.join("metrics.jsonl");
        std::fs::write(&metrics, "{\"step\": 1, \"loss\": 2.0}\n").expect("written");
        let cache = Cache::default();
        let steps = || cache.entries(folder.path()).iter().map(|entry| entry.step).collect::<Vec<_>>();
        assert_eq!((steps(), steps()), (vec![1], vec![1]));
        // The cached value differs from the files, which shows that they were not read again.
        cache.0.lock().expect("it").get_mut(&run).expect("it was read").1.step = 77;
        assert_eq!(steps(), [77]);
        std::fs::write(&metrics, "{\"step\": 1, \"loss\": 2.0}\n{\"step\": 2, \"loss\": 1.0}\n").expect("written");
        assert_eq!(steps(), [2]);
        std::fs::remove_dir_all(&run).expect("removed");
        assert!(steps().is_empty() && cache.0.lock().expect("it").is_empty());
    }
}
