//! Sentiment by a lexicon: the mean valence of the completion's words.
//!
//! The file format, the tokenization and the negation rule are VADER's (Hutto and Gilbert 2014,
//! <https://ojs.aaai.org/index.php/ICWSM/article/view/14550>; constants as in vaderSentiment 3.3.2). Left out are
//! VADER's degree adverbs, capitals, exclamation marks, "but", idioms, and the mapping of the sum to [−1, 1]. The
//! result is a plain mean in the lexicon's own units: a reader can verify it by hand, and longer text does not score
//! higher for being long.

use std::collections::HashMap;
use std::path::Path;

use super::{Reward, Scores, score_each};
use crate::error::{Error, Result, excerpt};
use crate::rollout::Rollouts;

/// Factor of a valence if one of the three preceding words is a negation.
const NEGATION_FACTOR: f32 = -0.74;

/// Number of preceding words that are searched for a negation.
const NEGATION_REACH: usize = 3;

/// Negations, in addition to all words that contain `n't`.
const NEGATIONS: &[&str] = &[
    "aint", "arent", "cannot", "cant", "couldnt", "darent", "despite", "didnt", "doesnt", "dont", "hadnt", "hasnt",
    "havent", "isnt", "mightnt", "mustnt", "neednt", "neither", "never", "none", "nope", "nor", "not", "nothing",
    "nowhere", "oughtnt", "rarely", "seldom", "shant", "shouldnt", "uh-uh", "uhuh", "wasnt", "werent", "without",
    "wont", "wouldnt",
];

/// Words and emoticons with their mean valence, from −4 to 4.
#[derive(Debug, Clone, Default)]
pub struct Lexicon {
    valences: HashMap<String, f32>,
}

impl Lexicon {
    /// Reads a file in VADER's format: token, TAB, mean valence, then optionally another TAB and any text.
    ///
    /// # Errors
    /// If the file cannot be read, is empty, or a line has no number in its second column.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|source| Error::io(path, source))?;
        let mut valences = HashMap::new();
        for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let mut fields = line.split('\t');
            let (token, valence) = (fields.next().unwrap_or_default(), fields.next());
            let valence = valence.and_then(|field| field.trim().parse::<f32>().ok()).filter(|v| v.is_finite());
            let Some(valence) = valence else {
                let message = format!("expected a token, a TAB and a number (found `{}`)", excerpt(line, 40));
                return Err(Error::data(path, Some(i + 1), message));
            };
            // Words are looked up in lower case, so `:D` counts only if the file has no `:d`.
            let (token, lower) = (token.trim(), token.trim().to_lowercase());
            if token == lower {
                valences.insert(lower, valence);
            } else {
                valences.entry(lower).or_insert(valence);
            }
        }
        if valences.is_empty() {
            return Err(Error::data(path, None, "the lexicon is empty"));
        }
        Ok(Self { valences })
    }

    /// Creates a lexicon of these tokens (in lower case) and valences.
    pub fn new<S: Into<String>>(entries: impl IntoIterator<Item = (S, f32)>) -> Self {
        Self { valences: entries.into_iter().map(|(token, valence)| (token.into(), valence)).collect() }
    }

    /// Divides the sum of the words' valences by the number of words; returns 0 (neutral) without words.
    ///
    /// Words outside the lexicon count as 0. Each negation among the three words before a valence multiplies it by
    /// −0.74. `no` negates the words after it and counts as 0 itself if the next word has a valence.
    pub fn mean_valence(&self, text: &str) -> f32 {
        let mut words: Vec<String> = words(text);
        // A lone dash or full stop is not a word; a lone `:)` is one if the lexicon contains it.
        words.retain(|word| word.contains(char::is_alphanumeric) || self.valences.contains_key(word));
        let sum: f32 = (0..words.len()).map(|i| self.valence_at(&words, i)).sum();
        if words.is_empty() { 0.0 } else { sum / words.len() as f32 }
    }

    fn valence_at(&self, words: &[String], i: usize) -> f32 {
        let Some(&valence) = self.valences.get(&words[i]) else { return 0.0 };
        let next_counts = words.get(i + 1).is_some_and(|next| self.valences.contains_key(next));
        if words[i] == "no" && next_counts {
            return 0.0;
        }
        let before = &words[i.saturating_sub(NEGATION_REACH)..i];
        // A word with its own valence does not negate, except `no` within two words.
        let negates = |word: &&String| is_negation(word) && !self.valences.contains_key(*word);
        let near_no = before.iter().rev().take(2).any(|word| word == "no");
        let negations = before.iter().filter(negates).count() + usize::from(near_no);
        valence * NEGATION_FACTOR.powi(negations as i32)
    }
}

fn is_negation(word: &str) -> bool {
    word.contains("n't") || NEGATIONS.binary_search(&word).is_ok()
}

/// Splits text into words as VADER does: at white space, in lower case, without punctuation at the ends. If at most two
/// characters would be left, the token is kept whole, because it may be an emoticon.
fn words(text: &str) -> Vec<String> {
    let each = text.split_whitespace().map(|token| {
        let token = token.replace('’', "'").to_lowercase();
        let stripped = token.trim_matches(|c: char| c.is_ascii_punctuation());
        if stripped.chars().count() <= 2 && !is_plain_word(stripped) { token } else { stripped.to_string() }
    });
    each.filter(|word| !word.is_empty()).collect()
}

/// Two letters form a word (`ok,` is `ok`), not an emoticon such as `:d` or `8)`.
fn is_plain_word(stripped: &str) -> bool {
    stripped.chars().count() == 2 && stripped.chars().all(char::is_alphabetic)
}

/// Reward by the mean valence of the completion's words.
#[derive(Debug, Clone)]
pub struct LexiconReward {
    lexicon: Lexicon,
}

impl LexiconReward {
    /// Creates the reward of a lexicon.
    pub fn new(lexicon: Lexicon) -> Self {
        Self { lexicon }
    }
}

impl Reward for LexiconReward {
    fn name(&self) -> String {
        "lexicon".into()
    }

    fn score(&mut self, rollouts: &Rollouts) -> Scores {
        score_each(rollouts, |_, rollout| Ok(self.lexicon.mean_valence(&rollout.completion)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lexicon() -> Lexicon {
        Lexicon::new([("good", 2.0), ("bad", -2.5), (":)", 2.0), ("no", -1.2), ("ok", 1.0), ("fun", 2.4)])
    }

    #[track_caller]
    fn check(text: &str, expected: f32) {
        let found = lexicon().mean_valence(text);
        assert!((found - expected).abs() < 1e-6, "{text}: {found} instead of {expected}");
    }

    #[test]
    fn the_mean_is_over_all_words() {
        check("Good!", 2.0);
        check("a good day", 2.0 / 3.0);
        check("good, bad", -0.25);
        check("plain words", 0.0);
        check("a good day .", 2.0 / 3.0);
        check("", 0.0);
    }

    #[test]
    fn emoticons_keep_their_punctuation_and_words_lose_it() {
        check(":)", 2.0);
        check("\"good\".", 2.0);
        check("ok,", 1.0);
        check("see :) there", 2.0 / 3.0);
    }

    #[test]
    fn a_negation_reaches_three_words() {
        check("not good", -1.48 / 2.0); // 2 · −0.74
        check("isn’t very very good", -1.48 / 4.0);
        check("not one two three good", 2.0 / 5.0);
        check("never not good", 2.0 * 0.5476 / 3.0); // twice: 0.74²
        check("without fun", 2.4 * -0.74 / 2.0);
    }

    #[test]
    fn no_negates_the_next_word_or_stands_for_itself() {
        check("no fun", 2.4 * -0.74 / 2.0);
        check("no kettle", -1.2 / 2.0);
    }

    #[test]
    fn negations_are_sorted_for_the_search() {
        assert!(NEGATIONS.is_sorted());
    }

    #[test]
    fn the_published_lexicon_is_read_whole() {
        let Some(path) = crate::test_support::material("metrics/vader/vader_lexicon.txt") else { return };
        let vader = Lexicon::read(&path).expect("readable");
        // love 3.2, wonderful 2.7, happy 2.7; hate −2.7 negated; `:)` 2.0.
        for (text, sum) in
            [("I love this wonderful, happy dog!", 8.6), ("I do not hate it", 2.7 * 0.74), ("see you :)", 2.0)]
        {
            let expected = sum / text.split(' ').count() as f32;
            let found = vader.mean_valence(text);
            assert!((found - expected).abs() < 1e-5, "{text}: {found} instead of {expected}");
        }
    }

    #[test]
    fn a_file_with_a_bad_line_names_it() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("lexicon.txt");
        std::fs::write(&path, "good\t1.9\t0.9\t[2, 2]\nbad -2.5\n").expect("writable");
        let error = Lexicon::read(&path).unwrap_err();
        let expected = format!("{}:2: expected a token, a TAB and a number (found `bad -2.5`)", path.display());
        assert_eq!(error.to_string(), expected);
        std::fs::write(&path, "\n").expect("writable");
        assert!(Lexicon::read(&path).unwrap_err().to_string().ends_with("the lexicon is empty"));
    }
}
