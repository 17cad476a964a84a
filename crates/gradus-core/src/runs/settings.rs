//! Configurations of runs as flat keys, and the differences between several.

use std::path::Path;

use serde::Serialize;

use crate::error::{Error, Result};
use crate::files;

/// Suffix of the lines of keys that were set explicitly.
const MARK: &str = " # set";

/// A key of a configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Key {
    /// Dotted path: `train.batch_size`.
    pub path: String,
    /// Value as in the file.
    pub value: String,
    /// True if it was set explicitly.
    pub is_set: bool,
}

/// The keys of a resolved `config.yml`, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// All keys.
    pub keys: Vec<Key>,
}

/// A key whose values differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Dotted path. Keys of methods are `method.clip_range` for any method.
    pub key: String,
    /// One value per run; `None` if the run does not have the key.
    pub values: Vec<Option<String>>,
    /// True if any of the values was set explicitly.
    pub is_set: bool,
}

impl Difference {
    /// Returns false if the key is at its default, and some runs only lack it because of their method.
    pub fn is_telling(&self) -> bool {
        self.is_set || self.values.iter().all(Option::is_some)
    }
}

impl Settings {
    /// Reads a `config.yml` that gradus wrote.
    ///
    /// # Errors
    /// [`Error::Io`], or [`Error::Data`] for an invalid line.
    pub fn read(path: &Path) -> Result<Self> {
        let text = files::read_run_text(path).map_err(|source| Error::io(path, source))?;
        Self::parse(&text).map_err(|(line, message)| Error::data(path, Some(line), message))
    }

    /// Parses its text: one key per line, two spaces of indentation per level, values on one line.
    ///
    /// # Errors
    /// Number of the invalid line, and the problem.
    pub fn parse(text: &str) -> Result<Self, (usize, String)> {
        let mut keys = Vec::new();
        let mut parents: Vec<String> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let content = line.trim_start();
            if content.is_empty() || content.starts_with('#') {
                continue;
            }
            let refuse = || (index + 1, format!("not a key with a value (found `{line}`)"));
            let depth = (line.len() - content.len()) / 2;
            let (content, is_set) = content.strip_suffix(MARK).map_or((content, false), |content| (content, true));
            let (name, value) = content.split_once(':').ok_or_else(refuse)?;
            if depth > parents.len() || name.is_empty() || name.contains(char::is_whitespace) {
                return Err(refuse());
            }
            parents.truncate(depth);
            parents.push(name.to_owned());
            if !value.trim().is_empty() {
                keys.push(Key { path: parents.join("."), value: value.trim().to_owned(), is_set });
            }
        }
        Ok(Self { keys })
    }

    /// Value of a key as in the file.
    pub fn get(&self, path: &str) -> Option<&str> {
        self.keys.iter().find(|key| key.path == path).map(|key| key.value.as_str())
    }

    /// Value of a key without quotes; `None` for `null`.
    pub fn text(&self, path: &str) -> Option<String> {
        let value = self.get(path).filter(|value| *value != "null")?;
        // The quoting is that of JSON, except for `\U`.
        Some(serde_json::from_str(value).unwrap_or_else(|_| value.to_owned()))
    }

    /// Name of the method.
    pub fn method(&self) -> Option<&str> {
        let part = |key: &'_ Key| key.path.strip_prefix("method.").map(|rest| rest.len());
        let key = self.keys.iter().find(|key| part(key).is_some())?;
        key.path.split('.').nth(1)
    }
}

/// Returns the keys whose values differ between runs, in the order of the first run. `output_dir` is left out, because it always differs.
pub fn differences(runs: &[Settings]) -> Vec<Difference> {
    let flat: Vec<Vec<Key>> = runs.iter().map(comparable).collect();
    let mut order: Vec<&str> = Vec::new();
    for keys in &flat {
        order.extend(keys.iter().map(|key| key.path.as_str()).filter(|key| !order.contains(key)).collect::<Vec<_>>());
    }
    let of = |keys: &'_ [Key], path: &str| keys.iter().find(|key| key.path == path).cloned();
    let difference = |key: &str| {
        let found: Vec<Option<Key>> = flat.iter().map(|keys| of(keys, key)).collect();
        let is_set = found.iter().flatten().any(|key| key.is_set);
        let values = found.into_iter().map(|key| key.map(|key| key.value)).collect();
        Difference { key: key.to_owned(), values, is_set }
    };
    order
        .into_iter()
        .filter(|key| *key != "output_dir")
        .map(difference)
        .filter(|difference| difference.values.windows(2).any(|pair| pair[0] != pair[1]))
        .collect()
}

/// Replaces the keys of a method by a key `method` and keys that have the same path for any method.
fn comparable(settings: &Settings) -> Vec<Key> {
    let Some(method) = settings.method() else { return settings.keys.clone() };
    let own = format!("method.{method}.");
    let mut keys: Vec<Key> = Vec::new();
    for key in &settings.keys {
        let Some(rest) = key.path.strip_prefix(&own) else {
            keys.push(key.clone());
            continue;
        };
        if keys.iter().all(|known| known.path != "method") {
            keys.push(Key { path: "method".into(), value: method.into(), is_set: true });
        }
        keys.push(Key { path: format!("method.{rest}"), ..key.clone() });
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    const PPO: &str = "# Written by gradus 0.1.0. `# set` marks settings that were set; the others are defaults.\n\
                       model: \"a #\\n set\" # set\ndata: d.jsonl\noutput_dir: runs/a\nmethod:\n  ppo:\n    clip_range: 0.2\n    \
                       kl:\n      coefficient: 0.05 # set\nreward:\n  mix: [{ weight: 1, reward: { model: \"x: y\" } }]\n\
                       train:\n  seed: 42\n";

    #[test]
    fn a_resolved_file_is_read_key_by_key() {
        let settings = Settings::parse(PPO).unwrap();
        let paths: Vec<_> = settings.keys.iter().map(|key| (key.path.as_str(), key.is_set)).collect();
        assert_eq!(
            paths,
            [
                ("model", true),
                ("data", false),
                ("output_dir", false),
                ("method.ppo.clip_range", false),
                ("method.ppo.kl.coefficient", true),
                ("reward.mix", false),
                ("train.seed", false)
            ]
        );
        assert_eq!(settings.text("model").as_deref(), Some("a #\n set"));
        assert_eq!(settings.get("reward.mix"), Some("[{ weight: 1, reward: { model: \"x: y\" } }]"));
        assert_eq!((settings.method(), settings.text("train.seed").as_deref()), (Some("ppo"), Some("42")));
    }

    #[test]
    fn what_is_no_configuration_is_refused_with_its_line() {
        for (text, line) in [("model: a\nnonsense\n", 2), ("  deep: 1\n", 1), ("a b: 1\n", 1)] {
            assert_eq!(Settings::parse(text).unwrap_err().0, line, "{text}");
        }
    }

    #[test]
    fn only_what_differs_is_shown_and_methods_share_their_keys() {
        let ppo = Settings::parse(PPO).unwrap();
        let grpo =
            PPO.replace("ppo:", "grpo:").replace("runs/a", "runs/b").replace("42", "43").replace("    kl:\n", "");
        let grpo = Settings::parse(&grpo.replace("      coefficient: 0.05 # set", "    group_size: 8")).unwrap();
        let found = differences(&[ppo.clone(), grpo]);
        let shown: Vec<String> = found
            .iter()
            .map(|difference| {
                let values: Vec<&str> = difference.values.iter().map(|value| value.as_deref().unwrap_or("–")).collect();
                let telling = if difference.is_telling() { "" } else { " (default)" };
                format!("{}: {}{telling}", difference.key, values.join(" | "))
            })
            .collect();
        assert_eq!(
            shown,
            [
                "method: ppo | grpo",
                "method.kl.coefficient: 0.05 | –",
                "train.seed: 42 | 43",
                "method.group_size: – | 8 (default)"
            ]
        );
        assert!(differences(&[ppo.clone(), ppo]).is_empty());
    }
}
