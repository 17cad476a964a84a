//! Synonyms from a WordNet directory, looked up as NLTK's `wordnet` corpus does.
//!
//! Fellbaum 1998; file formats of `wndb(5WN)`. The directory has `index.*`, `data.*` and `*.exc` of the four parts of speech, as
//! WordNet 3.0 and NLTK's `corpora/wordnet`. Checked against `nltk` 3.10.4.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use super::treebank::Rules;
use crate::error::{Error, Result};

/// A part of speech: the end of its file names, and NLTK's rules from an inflected form to a base form.
struct Part {
    file: &'static str,
    endings: &'static [(&'static str, &'static str)],
}

const PARTS: [Part; 4] = [
    Part {
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
    Part {
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
    Part { file: "adj", endings: &[("er", ""), ("est", ""), ("er", "e"), ("est", "e")] },
    Part { file: "adv", endings: &[] },
];

/// The synsets of one part of speech.
#[derive(Debug)]
struct Lexicon {
    /// From a lower-case lemma to the offsets of its synsets.
    index: HashMap<String, Vec<u32>>,
    /// From the offset of a synset to its lemmas of one word.
    lemmas: HashMap<u32, Vec<String>>,
    exceptions: HashMap<String, Vec<String>>,
}

/// A WordNet directory in memory.
#[derive(Debug)]
pub struct WordNet {
    parts: Vec<Lexicon>,
}

impl WordNet {
    /// Reads a directory.
    ///
    /// # Errors
    /// A file that is missing or has a line of another form.
    pub fn read(directory: &Path) -> Result<Self> {
        let parts = PARTS.iter().map(|part| Lexicon::read(directory, part.file)).collect::<Result<_>>()?;
        Ok(Self { parts })
    }

    /// The words of one word in all synsets of `word`, whatever its part of speech and inflection, which is taken off once, or with
    /// NLTK 3.7 again and again.
    pub fn synonyms(&self, word: &str, rules: Rules) -> HashSet<&str> {
        let word = word.to_lowercase();
        let mut found = HashSet::new();
        for (lexicon, part) in self.parts.iter().zip(&PARTS) {
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
    fn read(directory: &Path, part: &str) -> Result<Self> {
        let read = |name: String| {
            let path = directory.join(name);
            match std::fs::read(&path) {
                Ok(bytes) => Ok((path, String::from_utf8_lossy(&bytes).into_owned())),
                Err(error) => Err(Error::io(path, error)),
            }
        };
        let bad = |path: &Path, line: usize, what: &str| Error::data(path, Some(line + 1), format!("expected {what}"));
        let mut made = Self { index: HashMap::new(), lemmas: HashMap::new(), exceptions: HashMap::new() };
        // A line that begins with a blank is part of the licence.
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

    /// WordNet's `morphy`: the base forms of a word that are in the index.
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
        // Every round makes words shorter or keeps their length, so that there is an end to it.
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

/// `offset file type words lemma id [lemma id…] …`, the number of words in hexadecimal; a lemma of an adjective may end in a
/// mark in brackets.
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
