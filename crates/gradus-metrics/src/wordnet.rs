//! Synonyms from a WordNet directory, with the lookup of NLTK's `wordnet` corpus.
//!
//! Fellbaum 1998; file formats of `wndb(5WN)`. The directory has `index.*`, `data.*` and `*.exc` for the four parts of speech, as WordNet
//! 3.0 and NLTK's `corpora/wordnet`. Checked against `nltk` 3.10.4.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Read as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use zip::ZipArchive;
use zip::result::ZipError;

use crate::error::{Error, Result};
use crate::files;
use crate::treebank::Rules;

/// A part of speech: the suffix of its file names, and NLTK's rules that map an inflected form to a base form.
struct PartOfSpeech {
    file: &'static str,
    endings: &'static [(&'static str, &'static str)],
}

const PARTS_OF_SPEECH: [PartOfSpeech; 4] = [
    PartOfSpeech {
        file: "noun",
        endings: &[
            ("s", ""),
            ("ses", "s"),
            ("ves", "f"),
            ("xes", "x"),
            ("zes", "z"),
            ("ches", "ch"),
            ("shes", "sh"),
            ("men", "man"),
            ("ies", "y"),
        ],
    },
    PartOfSpeech {
        file: "verb",
        endings: &[
            ("s", ""),
            ("ies", "y"),
            ("es", "e"),
            ("es", ""),
            ("ed", "e"),
            ("ed", ""),
            ("ing", "e"),
            ("ing", ""),
        ],
    },
    PartOfSpeech { file: "adj", endings: &[("er", ""), ("est", ""), ("er", "e"), ("est", "e")] },
    PartOfSpeech { file: "adv", endings: &[] },
];

/// The synsets of one part of speech.
#[derive(Debug)]
struct Lexicon {
    /// Offsets of the synsets of each lower-case lemma.
    index: HashMap<String, Vec<u32>>,
    /// Single-word lemmas of each synset, by the synset's offset.
    lemmas: HashMap<u32, Vec<String>>,
    exceptions: HashMap<String, Vec<String>>,
}

/// Location of the files of a WordNet.
enum Source<'a> {
    Directory(&'a Path),
    /// An archive with one directory, `wordnet/`.
    Archive(ZipArchive<File>, &'a Path),
}

impl Source<'_> {
    /// Reads a file. Returns its path and text.
    fn read(&mut self, name: &str) -> Result<(PathBuf, String)> {
        let (path, bytes) = match self {
            Self::Directory(directory) => {
                let path = directory.join(name);
                let bytes = files::read(&path)?;
                (path, bytes)
            }
            Self::Archive(archive, file) => {
                let path = file.join("wordnet").join(name);
                let mut bytes = Vec::new();
                let entry = archive.by_name(&format!("wordnet/{name}")).map_err(|error| broken(&path, &error))?;
                entry.take(files::MOST_BYTES).read_to_end(&mut bytes).map_err(|error| Error::io(&path, error))?;
                (path, bytes)
            }
        };
        Ok((path, String::from_utf8_lossy(&bytes).into_owned()))
    }
}

fn open_archive(path: &Path) -> Result<ZipArchive<File>> {
    let file = files::open(path)?;
    // If the library panics on malformed bytes, the file is invalid.
    catch_unwind(AssertUnwindSafe(|| ZipArchive::new(file)))
        .map_err(|_| Error::data(path, None, "not a readable archive of WordNet"))?
        .map_err(|error| broken(path, &error))
}

fn broken(path: &Path, error: &ZipError) -> Error {
    Error::data(path, None, format!("not a readable archive of WordNet: {error}"))
}

/// Returns the directories that NLTK searches for its data, in its order.
#[expect(clippy::disallowed_methods, reason = "a variable in the table of ARCHITECTURE.md")]
fn nltk_data() -> Vec<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let mut folders: Vec<PathBuf> =
        set("NLTK_DATA").map(|folders| std::env::split_paths(&folders).collect()).unwrap_or_default();
    folders.extend(set("HOME").or_else(|| set("USERPROFILE")).map(|home| PathBuf::from(home).join("nltk_data")));
    for prefix in ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(set).map(PathBuf::from) {
        folders.extend(["nltk_data", "share/nltk_data", "lib/nltk_data"].map(|folder| prefix.join(folder)));
    }
    let system =
        ["/usr/share/nltk_data", "/usr/local/share/nltk_data", "/usr/lib/nltk_data", "/usr/local/lib/nltk_data"];
    folders.extend(system.map(PathBuf::from));
    folders
}

/// Finds WordNet in an NLTK data directory, unpacked or as the downloaded archive.
fn installed(folder: &Path) -> Option<PathBuf> {
    let unpacked = folder.join("corpora/wordnet");
    let archive = folder.join("corpora/wordnet.zip");
    match unpacked.join("index.noun").is_file() {
        true => Some(unpacked),
        false => Some(archive).filter(|path| path.is_file()),
    }
}

/// A WordNet in memory, for synonyms.
#[derive(Debug)]
pub struct WordNet {
    parts: Vec<Lexicon>,
}

impl WordNet {
    /// Opens the WordNet that an option names. `none` means no WordNet. Without a name, NLTK's data directories are searched.
    ///
    /// # Errors
    /// Same as [`read`](Self::read).
    pub fn open(name: Option<&Path>) -> Result<Option<Self>> {
        match name {
            Some(name) if name == Path::new("none") => Ok(None),
            Some(name) => Self::read(name).map(Some),
            None => {
                nltk_data().into_iter().find_map(|folder| installed(&folder)).map(|path| Self::read(&path)).transpose()
            }
        }
    }

    /// Reads a directory, or NLTK's `wordnet.zip`.
    ///
    /// # Errors
    /// A file is missing or has a malformed line.
    pub fn read(path: &Path) -> Result<Self> {
        let mut source = match path.extension().is_some_and(|extension| extension == "zip") {
            true => Source::Archive(open_archive(path)?, path),
            false => Source::Directory(path),
        };
        let parts = PARTS_OF_SPEECH.iter().map(|part| Lexicon::read(&mut source, part.file)).collect::<Result<_>>()?;
        Ok(Self { parts })
    }

    /// Returns the single-word lemmas in all synsets of `word`, for every part of speech. Inflections are removed once, or repeatedly with
    /// NLTK 3.7's rules.
    pub fn synonyms(&self, word: &str, rules: Rules) -> HashSet<&str> {
        let word = word.to_lowercase();
        let mut found = HashSet::new();
        for (lexicon, part) in self.parts.iter().zip(&PARTS_OF_SPEECH) {
            for form in lexicon.base_forms(&word, part.endings, rules) {
                for lemmas in lexicon.index[&form].iter().filter_map(|offset| lexicon.lemmas.get(offset)) {
                    found.extend(lemmas.iter().map(String::as_str));
                }
            }
        }
        found
    }
}

impl Lexicon {
    fn read(source: &mut Source<'_>, part: &str) -> Result<Self> {
        let mut read = |name: String| source.read(&name);
        let bad = |path: &Path, line: usize, what: &str| Error::data(path, Some(line + 1), format!("expected {what}"));
        let mut made = Self { index: HashMap::new(), lemmas: HashMap::new(), exceptions: HashMap::new() };
        // Lines that begin with a space belong to the license.
        let (path, text) = read(format!("index.{part}"))?;
        for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.starts_with(' ') && !line.trim().is_empty())
        {
            let (lemma, offsets) = index_line(line).ok_or_else(|| bad(&path, i, "a line of WordNet's index"))?;
            made.index.insert(lemma.to_owned(), offsets);
        }
        let (path, text) = read(format!("data.{part}"))?;
        for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.starts_with(' ') && !line.trim().is_empty())
        {
            let (offset, lemmas) = data_line(line).ok_or_else(|| bad(&path, i, "a synset of WordNet's data"))?;
            made.lemmas.insert(offset, lemmas);
        }
        let (_, text) = read(format!("{part}.exc"))?;
        for line in text.lines() {
            let mut words = line.split_whitespace().map(str::to_owned);
            if let Some(form) = words.next() {
                made.exceptions.insert(form, words.collect());
            }
        }
        Ok(made)
    }

    /// WordNet's `morphy`: returns the base forms of a word that are in the index.
    fn base_forms(&self, word: &str, endings: &[(&str, &str)], rules: Rules) -> Vec<String> {
        let known = |forms: &[String]| {
            let mut seen = HashSet::new();
            forms
                .iter()
                .filter(|form| self.index.contains_key(*form) && seen.insert(*form))
                .cloned()
                .collect::<Vec<_>>()
        };
        if let Some(exceptions) = self.exceptions.get(word) {
            return known(&[&[word.to_owned()][..], exceptions].concat());
        }
        let shorter = |forms: &[String]| {
            let of_one = |form: &String| {
                let ends = endings.iter().filter_map(|(old, new)| Some(format!("{}{new}", form.strip_suffix(old)?)));
                ends.collect::<Vec<_>>()
            };
            forms.iter().flat_map(of_one).collect::<Vec<String>>()
        };
        let mut forms = shorter(&[word.to_owned()]);
        let mut found = known(&[&[word.to_owned()][..], &forms].concat());
        // Each round shortens words or keeps their length, so the loop ends.
        let mut rounds = if rules == Rules::V3_7 { word.len() } else { 0 };
        while found.is_empty() && !forms.is_empty() && rounds > 0 {
            forms = shorter(&forms);
            forms.sort_unstable();
            forms.dedup();
            found = known(&forms);
            rounds -= 1;
        }
        found
    }
}

/// `lemma pos synsets pointers [symbol…] senses tagged offset…`
fn index_line(line: &str) -> Option<(&str, Vec<u32>)> {
    let mut fields = line.split_whitespace();
    let lemma = fields.next()?;
    let count: usize = fields.nth(1)?.parse().ok()?;
    let pointers: usize = fields.next()?.parse().ok()?;
    let offsets: Vec<u32> = fields.skip(pointers + 2).map(|field| field.parse().ok()).collect::<Option<_>>()?;
    (offsets.len() == count).then_some((lemma, offsets))
}

/// `offset file type words lemma id [lemma id…] …`, with the number of words in hexadecimal. The lemma of an adjective may end in a marker
/// in parentheses.
fn data_line(line: &str) -> Option<(u32, Vec<String>)> {
    let mut fields = line.split_whitespace();
    let offset = fields.next()?.parse().ok()?;
    let count = usize::from_str_radix(fields.nth(2)?, 16).ok()?;
    let mut lemmas = Vec::new();
    for _ in 0..count {
        let lemma = fields.next()?;
        fields.next()?;
        let lemma = lemma.split('(').next().unwrap_or(lemma);
        if !lemma.contains('_') {
            lemmas.push(lemma.to_owned());
        }
    }
    Some((offset, lemmas))
}
