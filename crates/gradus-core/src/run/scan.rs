//! Reads a few metrics of a long `metrics.jsonl`. Other values are skipped without being stored, which takes a tenth of the time.

use std::fmt;
use std::path::Path;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use super::metrics::read_metrics;
use crate::error::{Error, Result};
use crate::files;

/// Calls `visit` for every row with its step and its finite values of `keys`. An incomplete last line is left out.
///
/// # Errors
/// As [`read_metrics`].
pub fn scan_metrics(path: &Path, keys: &[&str], visit: &mut dyn FnMut(usize, &[Option<f64>])) -> Result<()> {
    let bytes = files::read_run(path).map_err(|source| Error::io(path, source))?;
    let (mut values, mut rows_read) = (vec![None; keys.len()], 0);
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        if line.trim_ascii().is_empty() {
            continue;
        }
        values.fill(None);
        let mut row = serde_json::Deserializer::from_slice(line);
        let step = RowSeed { keys, values: &mut values }.deserialize(&mut row).ok().flatten();
        match step.filter(|_| row.end().is_ok()) {
            Some(step) => {
                visit(step, &values);
                rows_read += 1;
            }
            // The full reader decides whether the line is invalid, and reports its number.
            None => {
                for row in &read_metrics(path)?[rows_read..] {
                    let of = |key: &&str| row.values.get(key).filter(|value| value.is_finite());
                    visit(row.step, &keys.iter().map(of).collect::<Vec<_>>());
                }
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Deserializes only the step and the requested values of a row.
struct RowSeed<'k> {
    keys: &'k [&'k str],
    values: &'k mut [Option<f64>],
}

impl<'de> DeserializeSeed<'de> for RowSeed<'_> {
    type Value = Option<usize>;

    fn deserialize<D: Deserializer<'de>>(self, of: D) -> Result<Self::Value, D::Error> {
        of.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for RowSeed<'_> {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with a `step`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut step = None;
        while let Some(key) = map.next_key_seed(Key(self.keys))? {
            match key {
                Named::Step => step = map.next_value::<Value>()?.as_u64().and_then(|step| usize::try_from(step).ok()),
                Named::Requested(at) => {
                    self.values[at] = map.next_value::<Value>()?.as_f64().filter(|value| value.is_finite());
                }
                Named::Other => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(step)
    }
}

/// The key of an entry.
enum Named {
    Step,
    Requested(usize),
    Other,
}

struct Key<'k>(&'k [&'k str]);

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = Named;

    fn deserialize<D: Deserializer<'de>>(self, of: D) -> Result<Named, D::Error> {
        of.deserialize_str(self)
    }
}

impl Visitor<'_> for Key<'_> {
    type Value = Named;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<Named, E> {
        Ok(match self.0.iter().position(|requested| *requested == key) {
            _ if key == "step" => Named::Step,
            Some(at) => Named::Requested(at),
            None => Named::Other,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn scanned(text: impl AsRef<[u8]>) -> Result<Vec<(usize, Vec<Option<f64>>)>> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.jsonl");
        fs::write(&path, text).unwrap();
        let mut found = Vec::new();
        scan_metrics(&path, &["loss", "kl"], &mut |step, values| found.push((step, values.to_vec())))?;
        // Both readers agree.
        let rows = read_metrics(&path)?;
        let of = |key: &str, at: usize| rows[at].values.get(key).filter(|value| value.is_finite());
        let same: Vec<_> = (0..rows.len()).map(|at| (rows[at].step, vec![of("loss", at), of("kl", at)])).collect();
        assert_eq!(found, same);
        Ok(found)
    }

    #[test]
    fn what_is_wanted_is_what_the_other_reader_finds() {
        let text = "{\"step\":1,\"loss\":2.0,\"kl\":0.1,\"deep\":{\"loss\":7}}\n\n{\"k\\u006c\":3,\"step\":2,\"loss\":null}\n\
                    {\"loss\":\"no\",\"kl\":[1],\"step\":3}\n{\"step\":4,\"loss\":1,\"loss\":5}\n{\"step\":5,\"lo";
        let found = scanned(text).unwrap();
        assert_eq!(found.len(), 4);
        assert_eq!(found[0], (1, vec![Some(2.0), Some(0.1)]));
        assert_eq!(found[3].1[0], Some(5.0));
        assert!(scanned("").unwrap().is_empty());
        // Invalid UTF-8 is accepted.
        let found =
            scanned(b"{\"step\":1,\"kl\":1}\n{\"step\":2,\"x\":\"\xff\",\"kl\":2}\n{\"step\":3,\"kl\":3}\n").unwrap();
        assert_eq!(found.iter().map(|row| row.1[1]).collect::<Vec<_>>(), [Some(1.0), Some(2.0), Some(3.0)]);
    }

    #[test]
    fn a_broken_line_is_named_as_by_the_other_reader() {
        for text in [
            "{\"step\":1}\n[1]\n{\"step\":3}\n",
            "{\"step\":1}\n{\"loss\":1}\n",
            "{\"step\":1} {\"step\":2}\n",
            "{\"step\":-1}\n",
        ] {
            let message = scanned(text).unwrap_err().to_string();
            assert!(message.contains("not a JSON object with a `step`"), "{message}");
        }
    }
}
