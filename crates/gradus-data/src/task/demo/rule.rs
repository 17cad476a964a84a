//! Defines a good review: the preference that labels the pairs and that policies should learn.
//!
//! `score = sentiment + specifics − strays − length − errors`; each term is a field of [`Judgement`].

use super::parse::{Sentence, sentences};
use super::words::{Topic, is_noun};

/// Maximum number of product parts that count as specific.
pub const SPECIFICS_MAX: usize = 2;

/// Number of words without a cost.
pub const WORDS_FREE: usize = 16;

/// Cost of each word beyond [`WORDS_FREE`].
pub const WORD_COST: f32 = 0.25;

/// Cost of each sentence outside the language. An empty text counts as one.
pub const ERROR_COST: f32 = 2.0;

/// Terms of a review's true score.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Judgement {
    /// Mean valence of the opinions, −4.5 to 4.5; 0 without opinions.
    pub sentiment: f32,
    /// 1 for each different part of the product that an opinion names, up to [`SPECIFICS_MAX`].
    pub specifics: f32,
    /// 1 for each opinion about another product or a part of one.
    pub strays: f32,
    /// [`WORD_COST`] for each word beyond [`WORDS_FREE`].
    pub length: f32,
    /// [`ERROR_COST`] for each sentence outside the language.
    pub errors: f32,
}

impl Judgement {
    /// Returns the true score.
    pub fn score(&self) -> f32 {
        self.sentiment + self.specifics - self.strays - self.length - self.errors
    }
}

/// Scores a review of `topic`.
pub fn judge(topic: &Topic, text: &str) -> Judgement {
    let sentences = sentences(text);
    let mut opinions = Vec::new();
    let mut errors = usize::from(sentences.is_empty());
    for sentence in sentences {
        match sentence {
            Sentence::Grammatical(stated) => opinions.extend(stated),
            Sentence::Ungrammatical => errors += 1,
        }
    }
    let nouns: Vec<&str> = opinions.iter().filter_map(|opinion| opinion.noun).collect();
    let named = topic.aspects.iter().filter(|aspect| nouns.contains(aspect)).count();
    let strays = nouns.iter().filter(|noun| is_noun(noun) && **noun != topic.name && !topic.aspects.contains(noun));
    let sentiment: f32 = opinions.iter().map(|opinion| opinion.valence).sum();
    Judgement {
        sentiment: if opinions.is_empty() { 0.0 } else { sentiment / opinions.len() as f32 },
        specifics: named.min(SPECIFICS_MAX) as f32,
        strays: strays.count() as f32,
        length: WORD_COST * text.split_whitespace().count().saturating_sub(WORDS_FREE) as f32,
        errors: ERROR_COST * errors as f32,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::grammar::review;
    use super::super::words::{QUALITIES, TOPICS, topic};
    use super::*;
    use crate::rng::{Purpose, Seed};

    #[track_caller]
    fn check(text: &str, expected: f32) {
        let judgement = judge(topic("kettle").expect("a topic"), text);
        assert_eq!(judgement.score(), expected, "{text}: {judgement:?}");
    }

    #[test]
    fn scores_a_reader_can_redo() {
        check("it is good .", 1.5);
        check("the lid is good .", 2.5); // 1.5 and one part named
        check("the lid is good and the spout is bad .", 2.0); // (1.5 − 1.5)/2 and two parts
        check("the lid is good and the lid is good .", 2.5); // one part, named twice
        check("the kettle is good .", 1.5); // the product itself is not specific
        check("the saddle is good .", 0.5); // a part of a bike
        check("the bike is good .", 0.5);
        check("it arrived on monday .", 0.0);
        check("", -2.0);
        check("excellent excellent excellent", -2.0);
        check("it is excellent . excellent", 1.0);
        // 20 words: 4 above the limit.
        check(&"it arrived on monday . ".repeat(4), -1.0);
    }

    proptest! {
        #[test]
        fn a_better_word_scores_higher_and_a_stray_lower(seed in any::<u64>(), t in 0..TOPICS.len(), q in 1..QUALITIES.len()) {
            let topic = &TOPICS[t];
            let rest = review(topic, &mut Seed(seed).stream(Purpose::Demo, 0, 0));
            let with = |noun: &str, quality: &str| judge(topic, &format!("the {noun} is {quality} . {rest}")).score();
            // The table is in descending order.
            let (better, worse) = (QUALITIES[q - 1], QUALITIES[q]);
            let (high, low) = (with(topic.name, better.0), with(topic.name, worse.0));
            let right = if better.1 > worse.1 { high > low } else { high == low };
            prop_assert!(right);
            let other = &TOPICS[(t + 1) % TOPICS.len()];
            prop_assert!(with(other.name, better.0) < high);
            prop_assert!(with(topic.aspects[0], better.0) >= high);
        }

        #[test]
        fn more_words_and_errors_cost(seed in any::<u64>(), t in 0..TOPICS.len()) {
            let topic = &TOPICS[t];
            let text = review(topic, &mut Seed(seed).stream(Purpose::Demo, 0, 0));
            let base = judge(topic, &text).score();
            let fact = judge(topic, &format!("{text} the box was red .")).score();
            let long = text.split_whitespace().count() + 5 > WORDS_FREE;
            let right = if long { fact < base } else { fact == base };
            prop_assert!(right);
            let salad = judge(topic, &format!("{text} lid lid .")).score();
            prop_assert!(salad <= base - ERROR_COST);
        }
    }
}
