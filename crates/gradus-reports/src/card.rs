//! The model card: `README.md` in a saved model directory, in the format of the Hugging Face hub. It names the method, the data, the
//! metrics of the held-out rows, the configuration, and the license from the base model's own card. It warns if the run diverged or never
//! improved on its start. It contains no measurement of time or memory, so a resumed run writes the same card.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Map, Value};

use crate::error::Result;
use crate::files::atomic;
use crate::run::metrics::{is_measurement, remarks};
use crate::run_report::results_warnings;

/// Largest card of a base model that is read, in bytes.
const BASE_BYTES_MAX: u64 = 1 << 20;
/// Longest value that is copied from a base model's card, in characters.
const LICENSE_MAX: usize = 200;
/// Maximum number of held-out metrics on a card.
const METRICS_MAX: usize = 16;

/// License of a base model according to its card: `license`, `license_name` and `license_link`, as far as they are present.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct License(Vec<(&'static str, String)>);

impl License {
    /// Reads the license from `README.md` in the directory of the base model. Empty if the file is missing or unreadable.
    pub fn of(base: &Path) -> Self {
        let file = base.join("README.md");
        let is_small = std::fs::metadata(&file).is_ok_and(|found| found.is_file() && found.len() <= BASE_BYTES_MAX);
        let text = if is_small { std::fs::read_to_string(&file).unwrap_or_default() } else { String::new() };
        Self::parse(&text)
    }

    fn parse(card: &str) -> Self {
        let mut lines = card.lines();
        if lines.next().map(str::trim_end) != Some("---") {
            return Self::default();
        }
        let mut found = Vec::new();
        for line in lines.take_while(|line| line.trim_end() != "---") {
            for key in ["license", "license_name", "license_link"] {
                let Some(value) = line.strip_prefix(key).and_then(|rest| rest.strip_prefix(':')) else { continue };
                let value = value.trim().trim_matches(['"', '\'']);
                let is_plain = !value.is_empty() && value.chars().all(|c| !c.is_control());
                if is_plain && value.chars().count() <= LICENSE_MAX {
                    found.push((key, value.to_owned()));
                }
            }
        }
        Self(found)
    }
}

/// Writes `README.md` into `directory`, if that exists. `results` is the content of `results.json`, and `config` the text of `config.yml`.
///
/// # Errors
/// If the file cannot be written.
pub fn write(directory: &Path, results: &Map<String, Value>, config: &str, license: &License) -> Result<()> {
    if !directory.is_dir() {
        return Ok(());
    }
    let is_adapter = directory.join("adapter_config.json").exists();
    let path = directory.join("README.md");
    atomic::write_bytes(&path, card(results, config, license, is_adapter).as_bytes())
}

fn card(results: &Map<String, Value>, config: &str, license: &License, is_adapter: bool) -> String {
    let text = |key: &str| results.get(key).and_then(Value::as_str).unwrap_or("unknown");
    let (method, data, version) = (text("method"), text("data"), text("gradus"));
    let base = base_name(text("model"));
    let library = if is_adapter { "peft" } else { "transformers" };
    let mut card = format!("---\nlibrary_name: {library}\ntags: [gradus, {method}]\n");
    // A model that was loaded but is no local directory comes from the hub.
    if base == text("model") && !Path::new(base).exists() {
        let _ = writeln!(card, "base_model: {}", Value::from(base));
    }
    for (key, value) in &license.0 {
        let _ = writeln!(card, "{key}: {}", Value::from(value.as_str()));
    }
    let what = if is_adapter { "An adapter for" } else { "A model trained from" };
    let _ = write!(
        card,
        "---\n\n# {base} after {method}\n\n{what} `{base}` with `{method}` of gradus {version}.\n\n{}| | |\n|---|---|\n| \
         method | `{method}` |\n| start model | {} |\n| data | {} |\n| seed | {} |\n",
        warnings(results),
        code(base),
        code(base_name(data)),
        results.get("seed").unwrap_or(&Value::Null),
    );
    for (name, key) in [("steps", "steps"), ("tokens", "tokens")] {
        if let Some(number) = results.get(key).and_then(Value::as_u64) {
            let _ = writeln!(card, "| {name} | {number} |");
        }
    }
    match license.0.iter().find(|(key, _)| *key == "license") {
        Some((_, name)) => {
            let _ = writeln!(card, "| license of the start model | {} |", code(name));
        }
        None => card += "| license of the start model | not in its card |\n",
    }
    metrics(&mut card, results);
    let _ = write!(
        card,
        "\n## Configuration\n\n`gradus train config.yml` with this file repeats the run:\n\n<details><summary>config.yml</summary>\n\n\
         ```yaml\n{}\n```\n\n</details>\n",
        config.replace("```", "'''").trim_end()
    );
    card
}

/// One quotation per warning in the results.
fn warnings(results: &Map<String, Value>) -> String {
    results_warnings(results).iter().map(|text| format!("> **Warning:** {}\n\n", text.replace('\n', " "))).collect()
}

/// Appends the metrics of held-out rows before the first step and after the last one, and the remarks on them.
fn metrics(card: &mut String, results: &Map<String, Value>) {
    let section = |name: &str| results.get(name).and_then(Value::as_object);
    let Some(after) = section("after").filter(|after| !after.is_empty()) else { return };
    *card += "\n## Held-out rows\n\n| metric | before | after |\n|---|---|---|\n";
    let number =
        |value: Option<&Value>| value.and_then(Value::as_f64).map_or("–".to_owned(), |value| format!("{value:.4}"));
    for (key, value) in after.iter().filter(|(key, value)| value.is_number() && !is_measurement(key)).take(METRICS_MAX)
    {
        let before = section("before").and_then(|before| before.get(key));
        let _ = writeln!(card, "| {} | {} | {} |", code(key), number(before), number(Some(value)));
    }
    for remark in remarks(results) {
        let _ = write!(card, "\nNote: {}.\n", remark.replace('\n', " ").trim_end_matches('.'));
    }
}

/// Removes the parent folders of a local path, which mean nothing to other people. Names on the hub stay as they are.
fn base_name(name: &str) -> &str {
    let is_here = Path::new(name).is_absolute() || Path::new(name).exists();
    if is_here { name.trim_end_matches('/').rsplit('/').next().unwrap_or(name) } else { name }
}

/// Formats text as code in a table cell.
fn code(text: &str) -> String {
    format!("`{}`", text.replace(['`', '|', '\n', '\r'], " "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn results() -> Map<String, Value> {
        let results = json!({
            "gradus": "1.0.0", "method": "dpo", "model": "acme/base", "data": "/home/ada/pairs.jsonl", "seed": 42, "steps": 3,
            "tokens": 120, "elapsed_s": 1.5, "before": { "eval_loss": 0.75 }, "after": { "eval_loss": 0.5, "eval_note": "x" },
        });
        results.as_object().cloned().expect("an object")
    }

    #[test]
    fn a_card_names_what_was_done() {
        let license =
            License::parse("---\nlicense: \"apache-2.0\"\ntags: [a]\nlicense_link: LICENSE\n---\nlicense: mit\n");
        let card = card(&results(), "model: acme/base\n", &license, false);
        assert!(
            card.starts_with("---\nlibrary_name: transformers\ntags: [gradus, dpo]\nbase_model: \"acme/base\"\n"),
            "{card}"
        );
        assert!(card.contains("\nlicense: \"apache-2.0\"\nlicense_link: \"LICENSE\"\n---\n"), "{card}");
        assert!(card.contains("| data | `pairs.jsonl` |") && !card.contains("/home/ada"), "{card}");
        assert!(card.contains("| `eval_loss` | 0.7500 | 0.5000 |") && !card.contains("eval_note"), "{card}");
        assert!(card.contains("```yaml\nmodel: acme/base\n```"), "{card}");
    }

    #[test]
    fn a_card_repeats_the_warnings_and_remarks_of_the_results() {
        let plain = card(&results(), "", &License::default(), false);
        assert!(!plain.contains("Warning") && !plain.contains("Note"), "{plain}");
        let mut worse = results();
        worse.insert(
            "no_improvement".into(),
            json!("no evaluation beat the start: `eval_loss` was 0.5. It is too large."),
        );
        worse.insert("remarks".into(), json!(["`meteor` is computed without WordNet"]));
        let card = card(&worse, "", &License::default(), false);
        let warning =
            "\n\n> **Warning:** no evaluation beat the start: `eval_loss` was 0.5. It is too large.\n\n| | |\n";
        assert!(card.contains(warning), "{card}");
        assert!(card.contains("| 0.5000 |\n\nNote: `meteor` is computed without WordNet.\n"), "{card}");
    }

    #[test]
    fn a_base_without_a_card_or_with_an_odd_one_has_no_license() {
        let long = format!("---\nlicense: {}\n---\n", "x".repeat(LICENSE_MAX + 1));
        for card in ["", "license: mit\n", "---\nlicense:\n---\n", "---\nlicense: a\u{1b}b\n---\n", &long] {
            assert_eq!(License::parse(card), License::default(), "{card:?}");
        }
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(License::of(folder.path()), License::default());
        let written = card(&results(), "", &License::default(), true);
        assert!(written.contains("not in its card") && written.contains("library_name: peft"), "{written}");
    }
}
