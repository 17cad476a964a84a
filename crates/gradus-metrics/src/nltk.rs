//! NLTK's `word_tokenize`: splits a text into sentences, then each sentence into words.

use std::path::Path;

use crate::error::Result;
use crate::punkt::Punkt;
use crate::treebank::{self, Rules};

/// Splits words as NLTK's `word_tokenize` does: sentences by [`Punkt`], then the words of each by [`treebank::words`].
#[derive(Debug, Clone, Default)]
pub struct WordTokenizer {
    punkt: Punkt,
}

impl WordTokenizer {
    /// Uses the sentence model of an NLTK data directory, or a list of abbreviations.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn new(punkt: Option<&Path>) -> Result<Self> {
        Ok(Self { punkt: Punkt::open(punkt)? })
    }

    /// Returns the words of a text.
    pub fn words(&self, text: &str, rules: Rules) -> Vec<String> {
        self.punkt.sentences_by(text, rules).into_iter().flat_map(|sentence| treebank::words(sentence, rules)).collect()
    }

    /// Returns the words of a text in lower case, by today's rules.
    pub fn lower(&self, text: &str) -> Vec<String> {
        self.words(text, Rules::Today).into_iter().map(|word| word.to_lowercase()).collect()
    }
}
