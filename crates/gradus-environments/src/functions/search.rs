//! Search over a local folder: the passages that match a query best, by BM25.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::tool::Tool;
use crate::toolbox::Function;

/// Usual constants of Okapi BM25 (Robertson and Zaragoza 2009): saturation of the word count, and weight of the length.
const K1: f64 = 1.2;
const B: f64 = 0.75;

/// Maximum number of files, and of bytes in all files.
const FILES: usize = 10_000;
const BYTES: u64 = 256 << 20;

/// Maximum length of a passage in characters. Longer paragraphs are split.
const PASSAGE: usize = 1000;

/// Configuration of the search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SearchConfig {
    /// The folder to search, with files of the types `.txt`, `.md` and `.jsonl` (the column `text`), or one such file.
    pub folder: PathBuf,
    /// The number of passages per search. Default 3.
    #[serde(default = "three")]
    pub results: usize,
}

fn three() -> usize {
    3
}

struct Passage {
    file: String,
    text: String,
    words: usize,
}

/// Index of the passages of a folder or a file.
pub struct Search {
    tool: Tool,
    passages: Vec<Passage>,
    /// For each word, the passages that contain it, with counts.
    places: HashMap<String, Vec<(usize, u32)>>,
    mean: f64,
    results: usize,
}

impl Search {
    /// Reads the folder or the file.
    ///
    /// # Errors
    /// Returns [`Error::Config`] if it cannot be read, contains no searchable text, or is too large.
    pub fn open(config: &SearchConfig) -> Result<Self> {
        let mut files = Vec::new();
        let is_file = config.folder.is_file();
        if is_file && is_readable(&config.folder) {
            files.push(config.folder.clone());
        } else if !is_file {
            walk(&config.folder, &mut files)?;
        }
        files.sort();
        let folder = if is_file { config.folder.parent().unwrap_or(&config.folder) } else { &config.folder };
        let (mut passages, mut bytes) = (Vec::new(), 0);
        for file in files {
            bytes += file.metadata().map_or(0, |metadata| metadata.len());
            if bytes > BYTES {
                let message = format!("`{}` holds more than {} MB to search", config.folder.display(), BYTES >> 20);
                return Err(Error::config(message));
            }
            let text = std::fs::read_to_string(&file)
                .map_err(|error| Error::config(format!("`{}` cannot be read: {error}", file.display())))?;
            let name = file.strip_prefix(folder).unwrap_or(&file).display().to_string();
            let texts: Vec<String> = match file.extension().is_some_and(|extension| extension == "jsonl") {
                true => rows(&file, &text)?,
                false => vec![text],
            };
            passages.extend(texts.iter().flat_map(|text| paragraphs(text)).map(|text| Passage {
                file: name.clone(),
                words: words(&text).count(),
                text,
            }));
        }
        if passages.is_empty() {
            let message = format!("`{}` holds nothing to search", config.folder.display());
            return Err(Error::config(message).with_hint("files of the kinds .txt, .md and .jsonl are read"));
        }
        let mut places: HashMap<String, Vec<(usize, u32)>> = HashMap::new();
        for (i, passage) in passages.iter().enumerate() {
            let mut counts: BTreeMap<String, u32> = BTreeMap::new();
            words(&passage.text).for_each(|word| *counts.entry(word).or_default() += 1);
            counts.into_iter().for_each(|(word, count)| places.entry(word).or_default().push((i, count)));
        }
        let mean = passages.iter().map(|passage| passage.words as f64).sum::<f64>() / passages.len() as f64;
        let parameters = json!({
            "type": "object",
            "properties": { "query": { "type": "string", "description": "Words to look for" } },
            "required": ["query"],
        });
        let description = "Searches documents and returns the passages that fit best.".to_owned();
        let tool = Tool { name: "search".to_owned(), description, parameters, returns: None };
        Ok(Self { tool, passages, places, mean: mean.max(1.0), results: config.results.max(1) })
    }

    /// Returns the best passages for `query`, the best first. Ties keep the order of the passages.
    fn best(&self, query: &str) -> Vec<&Passage> {
        let mut scores: BTreeMap<usize, f64> = BTreeMap::new();
        let mut terms: Vec<String> = words(query).collect();
        terms.sort();
        terms.dedup();
        for word in &terms {
            let Some(places) = self.places.get(word) else { continue };
            let (all, with) = (self.passages.len() as f64, places.len() as f64);
            let rarity = ((all - with + 0.5) / (with + 0.5)).ln_1p();
            for &(i, count) in places {
                let count = f64::from(count);
                let length = 1.0 - B + B * self.passages[i].words as f64 / self.mean;
                *scores.entry(i).or_default() += rarity * count * (K1 + 1.0) / (count + K1 * length);
            }
        }
        let mut order: Vec<(usize, f64)> = scores.into_iter().collect();
        order.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        order.into_iter().take(self.results).map(|(i, _)| &self.passages[i]).collect()
    }
}

impl Function for Search {
    fn tool(&self) -> &Tool {
        &self.tool
    }

    fn call(&self, arguments: &Map<String, Value>) -> Result<String, String> {
        let found = self.best(arguments.get("query").and_then(Value::as_str).unwrap_or_default());
        if found.is_empty() {
            return Ok("nothing found".to_owned());
        }
        let shown = |passage: &&Passage| format!("[{}] {}", passage.file, passage.text);
        Ok(found.iter().map(shown).collect::<Vec<_>>().join("\n\n"))
    }
}

/// Whether a file has a readable type.
fn is_readable(path: &Path) -> bool {
    path.extension().is_some_and(|kind| ["txt", "md", "jsonl"].iter().any(|readable| kind == *readable))
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let wrong = |error: std::io::Error| Error::config(format!("`{}` cannot be searched: {error}", folder.display()));
    for entry in std::fs::read_dir(folder).map_err(wrong)? {
        let entry = entry.map_err(wrong)?;
        let (path, kind) = (entry.path(), entry.file_type().map_err(wrong)?);
        // Links are not followed, because a folder may contain itself.
        if kind.is_dir() {
            walk(&path, files)?;
        } else if kind.is_file() && is_readable(&path) {
            files.push(path);
        }
        if files.len() > FILES {
            return Err(Error::config(format!("`{}` holds more than {FILES} files to search", folder.display())));
        }
    }
    Ok(())
}

/// Texts of the rows of a JSONL file.
fn rows(file: &Path, text: &str) -> Result<Vec<String>> {
    let row = |(number, line): (usize, &str)| {
        let wrong = |what: &str| Error::config(format!("{}:{}: {what}", file.display(), number + 1));
        let value: Value = serde_json::from_str(line).map_err(|error| wrong(&format!("not valid JSON: {error}")))?;
        let text = value.get("text").and_then(Value::as_str).ok_or_else(|| wrong("the row has no text `text`"))?;
        Ok(text.to_owned())
    };
    text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).map(row).collect()
}

/// Splits a text into paragraphs, and long paragraphs into pieces.
fn paragraphs(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for paragraph in text.split("\n\n").map(str::trim).filter(|paragraph| !paragraph.is_empty()) {
        let mut rest = paragraph;
        while let Some((end, _)) = rest.char_indices().nth(PASSAGE) {
            let cut = rest[..end].rfind(char::is_whitespace).filter(|cut| *cut > 0).unwrap_or(end);
            found.push(rest[..cut].to_owned());
            rest = rest[cut..].trim_start();
        }
        found.push(rest.to_owned());
    }
    found
}

/// Lower-case words of a text.
fn words(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).map(str::to_lowercase)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(query: &str) -> String {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("written");
        write("animals.md", "Cats sleep all day.\n\nA dog barks at the cat.\n\nBirds sing.");
        write(
            "more.jsonl",
            "{\"text\": \"The whale is no fish.\"}\n\n{\"text\": \"A fish swims, and a fish eats fish.\"}\n",
        );
        write("image.png", "cat");
        let config = SearchConfig { folder: folder.path().to_owned(), results: 2 };
        let search = Search::open(&config).expect("an index");
        search.call(&Map::from_iter([("query".to_owned(), json!(query))])).expect("found")
    }

    #[test]
    fn the_best_passages_come_first() {
        assert_eq!(
            search("Fish?"),
            "[more.jsonl] A fish swims, and a fish eats fish.\n\n[more.jsonl] The whale is no fish."
        );
        assert_eq!(search("the cat"), "[animals.md] A dog barks at the cat.\n\n[more.jsonl] The whale is no fish.");
        assert_eq!(search("BIRDS"), "[animals.md] Birds sing.");
        assert_eq!(search("unicorn"), "nothing found");
        assert_eq!(search(""), "nothing found");
    }

    #[test]
    fn what_cannot_be_searched_is_refused() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let open = |path: &Path| Search::open(&SearchConfig { folder: path.to_owned(), results: 3 }).err();
        let error = open(folder.path()).expect("refused");
        assert!(error.to_string().ends_with("holds nothing to search"), "{error}");
        assert!(open(&folder.path().join("gone")).expect("refused").to_string().contains("cannot be searched"));
        std::fs::write(folder.path().join("a.jsonl"), "{\"text\": 3}").expect("written");
        let error = open(folder.path()).expect("refused");
        assert!(error.to_string().ends_with("a.jsonl:1: the row has no text `text`"), "{error}");
    }

    #[test]
    fn long_paragraphs_are_cut_between_words() {
        let long = "word ".repeat(500);
        let pieces = paragraphs(&long);
        assert!(pieces.len() == 3 && pieces.iter().all(|piece| piece.chars().count() <= PASSAGE));
        assert_eq!(pieces.join(" "), long.trim());
    }
}
