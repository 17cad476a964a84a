//! NLTK's `word_tokenize`: sentences, and the words of each.

use std::path::Path;

use crate::error::Result;
use crate::punkt::Punkt;
use crate::treebank::{self, Rules};

/// Finds words as NLTK's `word_tokenize`: sentences by [`Punkt`], then the words of each by [`treebank::words`].
#[derive(Debug, Clone, Default)]
pub struct WordTokenizer {
    punkt: Punkt,
}

impl WordTokenizer {
    /// With the sentence model of a directory of NLTK's data, or with a list of abbreviations.
    ///
    /// # Errors
    /// A directory that cannot be read.
    pub fn new(punkt: Option<&Path>) -> Result<Self> {
        Ok(Self { punkt: Punkt::open(punkt)? })
    }

    /// The words of a text.
    pub fn words(&self, text: &str, rules: Rules) -> Vec<String> {
        self.punkt.sentences_by(text, rules).into_iter().flat_map(|sentence| treebank::words(sentence, rules)).collect()
    }

    /// The words of a text in lower case, by today's rules.
    pub fn lower(&self, text: &str) -> Vec<String> {
        self.words(text, Rules::Today).into_iter().map(|word| word.to_lowercase()).collect()
    }
}
