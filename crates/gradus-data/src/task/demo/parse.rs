//! Parses words back into sentences: which are in the language, and which opinions they state.

use super::words::{CONNECTIVES, DEGREES, FACTS, QUALITIES, VERBS, VERDICTS, is_noun, value};

/// A parsed sentence.
#[derive(Debug, Clone, PartialEq)]
pub enum Sentence<'a> {
    /// A sentence of the language with its opinions. A plain fact has none.
    Grammatical(Vec<Opinion<'a>>),
    /// Not in the language, or cut off before its full stop.
    Ungrammatical,
}

/// An opinion: its subject and its value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Opinion<'a> {
    /// Product or part that is named; `None` for "it".
    pub noun: Option<&'a str>,
    /// Valence, −4.5 to 4.5.
    pub valence: f32,
}

/// Splits a text into sentences: one per full stop, and one for words after the last.
pub fn sentences(text: &str) -> Vec<Sentence<'_>> {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.split_inclusive(|word| *word == ".").map(sentence).collect()
}

fn sentence<'a>(words: &[&'a str]) -> Sentence<'a> {
    let opinions = match words {
        [words @ .., "."] => statement(words).or_else(|| verdict(words)).or_else(|| is_fact(words).then(Vec::new)),
        _ => None,
    };
    opinions.map_or(Sentence::Ungrammatical, Sentence::Grammatical)
}

fn statement<'a>(words: &[&'a str]) -> Option<Vec<Opinion<'a>>> {
    match words.iter().position(|word| CONNECTIVES.contains(word)) {
        Some(at) => Some(vec![clause(&words[..at])?, clause(&words[at + 1..])?]),
        None => Some(vec![clause(words)?]),
    }
}

fn clause<'a>(words: &[&'a str]) -> Option<Opinion<'a>> {
    let (noun, rest) = match words {
        ["it", rest @ ..] => (None, rest),
        ["the" | "its", noun, rest @ ..] if is_noun(noun) => (Some(*noun), rest),
        _ => return None,
    };
    let (factor, quality) = match rest {
        [verb, quality] if VERBS.contains(verb) => (1.0, quality),
        [verb, degree, quality] if VERBS.contains(verb) => (value(DEGREES, degree)?, quality),
        _ => return None,
    };
    Some(Opinion { noun, valence: factor * value(QUALITIES, quality)? })
}

fn verdict<'a>(words: &[&'a str]) -> Option<Vec<Opinion<'a>>> {
    let (phrase, reason) = match words.iter().position(|word| *word == "because") {
        Some(at) => (&words[..at], Some(clause(&words[at + 1..])?)),
        None => (words, None),
    };
    let valence = value(VERDICTS, &phrase.join(" "))?;
    Some(std::iter::once(Opinion { noun: None, valence }).chain(reason).collect())
}

fn is_fact(words: &[&str]) -> bool {
    let Some((end, start)) = words.split_last() else { return false };
    FACTS.iter().any(|(fact, ends)| ends.contains(end) && start.iter().copied().eq(fact.split_whitespace()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::grammar::review;
    use super::super::words::{TOPICS, all};
    use super::*;
    use crate::rng::{Purpose, Seed};

    #[track_caller]
    fn check(text: &str, expected: &[(Option<&str>, f32)]) {
        let opinions: Vec<_> = expected.iter().map(|&(noun, valence)| Opinion { noun, valence }).collect();
        assert_eq!(sentences(text), [Sentence::Grammatical(opinions)], "{text}");
    }

    #[test]
    fn what_sentences_say() {
        check("it is good .", &[(None, 1.5)]);
        check("the lid looks extremely great .", &[(Some("lid"), 3.0)]);
        check("its lid is bad but the lamp is nice .", &[(Some("lid"), -1.5), (Some("lamp"), 1.0)]);
        check("i love it because the seat feels quite plain .", &[(None, 3.0), (Some("seat"), 0.0)]);
        check("i would never buy it again .", &[(None, -2.0)]);
        check("the box was blue .", &[]);
    }

    #[test]
    fn what_is_no_sentence() {
        for text in [
            "it is good",
            ".",
            "it good .",
            "the is good .",
            "it is very .",
            "it is very very good .",
            "it is good and .",
            "it is good and it is bad and it is plain .",
            "i love it because .",
            "i love .",
            "the box was monday .",
            "excellent excellent .",
        ] {
            assert_eq!(sentences(text), [Sentence::Ungrammatical], "{text}");
        }
        assert_eq!(sentences(""), []);
    }

    proptest! {
        #[test]
        fn everything_generated_parses(seed in any::<u64>(), topic in 0..TOPICS.len()) {
            let text = review(&TOPICS[topic], &mut Seed(seed).stream(Purpose::Demo, 0, 0));
            for sentence in sentences(&text) {
                prop_assert!(matches!(sentence, Sentence::Grammatical(_)), "{}", text);
            }
        }

        #[test]
        fn random_words_hardly_ever_do(seed in any::<u64>()) {
            use rand::Rng;
            let (words, mut rng) = (all(), Seed(seed).stream(Purpose::Demo, 0, 0));
            let salad: Vec<&str> = (0..12).map(|_| words[rng.random_range(0..words.len())]).collect();
            let grammatical = sentences(&salad.join(" ")).iter().filter(|s| **s != Sentence::Ungrammatical).count();
            prop_assert!(grammatical <= 1);
        }
    }
}
