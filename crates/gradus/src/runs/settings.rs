//! The configuration of a run as flat keys, and what differs between several.

use std::fs;
use std::path::Path;

use serde::Serialize;

use crate::error::{Error, Result};

/// How the line of a key ends that was asked for.
const MARK: &str = " # set";

/// One key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Key {
    /// Its dotted path: `train.batch_size`.
    pub path: String,
    /// Its value as it stands in the file.
    pub value: String,
    /// Whether somebody asked for it.
    pub is_set: bool,
}

/// The keys of a resolved `config.yml` in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// All of them.
    pub keys: Vec<Key>,
}

/// A key that is not the same everywhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Its dotted path; keys of methods read `method.clip_range` whatever the method.
    pub key: String,
    /// One value a run; none where the run has no such key.
    pub values: Vec<Option<String>>,
    /// Whether somebody asked for one of the values.
    pub is_set: bool,
}

impl Difference {
    /// Whether it says more than that one method has a key, at its default, that the other has not.
    pub fn is_telling(&self) -> bool {
        self.is_set || self.values.iter().all(Option::is_some)
    }
}

impl Settings {
    /// Reads a `config.yml` that gradus wrote.
    ///
    /// # Errors
    /// [`Error::Io`], or [`Error::Data`] for a line that is no key.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).map_err(|source| Error::io(path, source))?;
        Self::parse(&text).map_err(|(line, message)| Error::data(path, Some(line), message))
    }

    /// Reads its text: a key a line, two blanks a level, values on one line.
    ///
    /// # Errors
    /// The number of the line and what is wrong with it.
    pub fn parse(text: &str) -> std::result::Result<Self, (usize, String)> {
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

    /// The value of a key as it stands in the file.
    pub fn get(&self, path: &str) -> Option<&str> {
        self.keys.iter().find(|key| key.path == path).map(|key| key.value.as_str())
    }

    /// The value of a key without quotes; `null` is none.
    pub fn text(&self, path: &str) -> Option<String> {
        let value = self.get(path).filter(|value| *value != "null")?;
        // Quotes are JSON's, apart from `\U`.
        Some(serde_json::from_str(value).unwrap_or_else(|_| value.to_owned()))
    }

    /// The name of the method.
    pub fn method(&self) -> Option<&str> {
        let part = |key: &'_ Key| key.path.strip_prefix("method.").map(|rest| rest.len());
        let key = self.keys.iter().find(|key| part(key).is_some())?;
        key.path.split('.').nth(1)
    }
}

/// The keys that are not the same in all runs, in the order of the first. The output directory is always another one.
pub fn differences(runs: &[Settings]) -> Vec<Difference> {
    let flat: Vec<Vec<Key>> = runs.iter().map(comparable).collect();
    let mut order: Vec<&str> = Vec::new();
    for keys in &flat {
        order.extend(keys.iter().map(|key| key.path.as_str()).filter(|key| !order.contains(key)).collect::<Vec<_>>());
    }
    let of = |keys: &'_ [Key], wanted: &str| keys.iter().find(|key| key.path == wanted).cloned();
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

/// `method` as a key of its own, and the keys of any method under one name.
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

    const PPO: &str = "# Written by gradus 0.1.0. `# set` marks what was asked for; the rest are defaults.\n\
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
