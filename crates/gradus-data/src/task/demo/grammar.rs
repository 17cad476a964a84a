//! Random sentences of the review language: prompts and neutral reviews.
//!
//! ```text
//! review    = sentence+
//! sentence  = clause [connective clause] "." | verdict ["because" clause] "." | fact "."
//! clause    = subject verb [degree] quality
//! subject   = "it" | "the" noun | "its" noun
//! ```

use rand::Rng;
use rand::seq::IndexedRandom;

use super::words::{
    COLORS, CONNECTIVES, DEGREES, FACTS, KINDS, PROMPTS, QUALITIES, TOPICS, Topic, VERBS, VERDICTS, topic,
};
use crate::rng::Stream;

/// Maximum number of words in a review. With the end token, a review then has 24 tokens.
pub const WORDS_MAX: usize = 23;

/// Probability that a part of another product is named: reviews are not always on topic.
const OFF_TOPIC: f64 = 0.15;

/// A request for a review.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// Words of the request.
    pub text: String,
    /// Product to review.
    pub topic: &'static Topic,
}

impl Prompt {
    /// Recognizes a prompt by the product that it names.
    pub fn from_text(text: &str) -> Option<Self> {
        let topic = text.split_whitespace().find_map(topic)?;
        Some(Self { text: text.into(), topic })
    }
}

/// Returns all possible prompts in a fixed order.
pub fn prompts() -> Vec<Prompt> {
    let mut all = Vec::new();
    for (start, end) in PROMPTS {
        for topic in TOPICS {
            let kinds = std::iter::once("").chain(KINDS.iter().copied());
            for kind in kinds {
                for color in std::iter::once("").chain(COLORS.iter().copied()) {
                    let words = [*start, kind, color, topic.name, *end];
                    let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
                    all.push(Prompt { text: words.join(" "), topic });
                }
            }
        }
    }
    all
}

/// Mood of a reviewer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    Pleased,
    Undecided,
    Annoyed,
}

/// Returns a neutral review of `topic`: one to three sentences, equally often good and bad, mostly but not always on topic.
pub fn review(topic: &Topic, rng: &mut Stream) -> String {
    let mood = *pick(&[Mood::Pleased, Mood::Undecided, Mood::Annoyed], rng);
    let count = rng.random_range(1..=3);
    let mut words: Vec<&str> = Vec::new();
    for _ in 0..count {
        let sentence = sentence(topic, mood, rng);
        if words.len() + sentence.len() <= WORDS_MAX {
            words.extend(sentence);
        }
    }
    words.join(" ")
}

fn sentence(topic: &Topic, mood: Mood, rng: &mut Stream) -> Vec<&'static str> {
    let mut words = Vec::new();
    match rng.random_range(0..100) {
        0..62 => {
            words.extend(clause(topic, mood, rng));
            if rng.random_bool(0.4) {
                words.push(*pick(CONNECTIVES, rng));
                words.extend(clause(topic, mood, rng));
            }
        }
        62..80 => {
            words.extend(valued(VERDICTS, mood, rng).split_whitespace());
            if rng.random_bool(0.4) {
                words.push("because");
                words.extend(clause(topic, mood, rng));
            }
        }
        _ => {
            let (start, ends) = pick(FACTS, rng);
            words.extend(start.split_whitespace());
            words.push(*pick(ends, rng));
        }
    }
    words.push(".");
    words
}

fn clause(topic: &Topic, mood: Mood, rng: &mut Stream) -> Vec<&'static str> {
    let mut words = match rng.random_range(0..100) {
        0..25 => vec!["it"],
        25..40 => vec!["the", topic_or_other(topic, rng).name],
        40..80 => vec!["the", aspect(topic, rng)],
        _ => vec!["its", aspect(topic, rng)],
    };
    words.push(*pick(VERBS, rng));
    if rng.random_bool(0.5) {
        words.push(pick(DEGREES, rng).0);
    }
    words.push(valued(QUALITIES, mood, rng));
    words
}

fn aspect(topic: &Topic, rng: &mut Stream) -> &'static str {
    pick::<&str>(&topic_or_other(topic, rng).aspects, rng)
}

fn topic_or_other(topic: &Topic, rng: &mut Stream) -> &'static Topic {
    if rng.random_bool(OFF_TOPIC) {
        return pick(TOPICS, rng);
    }
    TOPICS.iter().find(|known| *known == topic).expect("a topic of the language")
}

/// Picks a word that suits the mood with probability 0.8, else any word.
fn valued(table: &'static [(&'static str, f32)], mood: Mood, rng: &mut Stream) -> &'static str {
    let suits = |value: f32| match mood {
        Mood::Pleased => value > 0.0,
        Mood::Undecided => value.abs() <= 2.0,
        Mood::Annoyed => value < 0.0,
    };
    let suited: Vec<&str> = table.iter().filter(|(_, value)| suits(*value)).map(|(word, _)| *word).collect();
    if rng.random_bool(0.8) { pick::<&str>(&suited, rng) } else { pick(table, rng).0 }
}

fn pick<'a, T>(from: &'a [T], rng: &mut Stream) -> &'a T {
    from.choose(rng).expect("tables are not empty")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Purpose, Seed};

    #[test]
    fn there_are_many_prompts_and_each_names_its_topic() {
        let all = prompts();
        let texts: std::collections::HashSet<&str> = all.iter().map(|prompt| prompt.text.as_str()).collect();
        assert_eq!(all.len(), PROMPTS.len() * TOPICS.len() * (KINDS.len() + 1) * (COLORS.len() + 1));
        assert_eq!(texts.len(), all.len());
        for prompt in &all {
            assert_eq!(Prompt::from_text(&prompt.text).as_ref(), Some(prompt));
            assert!(prompt.text.split_whitespace().count() <= 11);
        }
    }

    #[test]
    fn reviews_are_varied_and_short() {
        let mut seen = std::collections::HashSet::new();
        for i in 0..5000 {
            let review = review(&TOPICS[i % TOPICS.len()], &mut Seed(1).stream(Purpose::Demo, 0, i as u64));
            assert!(review.ends_with('.') && review.split_whitespace().count() <= WORDS_MAX, "{review}");
            seen.insert(review);
        }
        assert!(seen.len() > 4000, "only {} distinct", seen.len());
    }
}
