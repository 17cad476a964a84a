//! Vocabulary of the review language, and the value of each word.

/// A product and the parts that a review can name.
#[derive(Debug, PartialEq, Eq)]
pub struct Topic {
    /// Name of the product.
    pub name: &'static str,
    /// Names of its parts.
    pub aspects: [&'static str; 4],
}

/// All products. A part may belong to several (`handle`, `lid`).
pub const TOPICS: &[Topic] = &[
    Topic { name: "kettle", aspects: ["spout", "lid", "handle", "base"] },
    Topic { name: "lamp", aspects: ["bulb", "shade", "switch", "stand"] },
    Topic { name: "chair", aspects: ["seat", "armrest", "frame", "cushion"] },
    Topic { name: "phone", aspects: ["screen", "battery", "speaker", "lens"] },
    Topic { name: "bike", aspects: ["saddle", "chain", "bell", "brake"] },
    Topic { name: "bag", aspects: ["strap", "zip", "pocket", "lining"] },
    Topic { name: "clock", aspects: ["dial", "alarm", "spring", "glass"] },
    Topic { name: "jacket", aspects: ["hood", "collar", "sleeve", "button"] },
    Topic { name: "radio", aspects: ["antenna", "knob", "tuner", "signal"] },
    Topic { name: "tent", aspects: ["pole", "door", "floor", "canopy"] },
    Topic { name: "pan", aspects: ["rim", "coating", "lid", "handle"] },
    Topic { name: "boot", aspects: ["sole", "heel", "lace", "tongue"] },
];

/// Qualities and their valence, −3 to 3.
pub const QUALITIES: &[(&str, f32)] = &[
    ("excellent", 3.0),
    ("wonderful", 3.0),
    ("great", 2.0),
    ("lovely", 2.0),
    ("sturdy", 1.5),
    ("good", 1.5),
    ("nice", 1.0),
    ("decent", 0.5),
    ("ordinary", 0.0),
    ("plain", 0.0),
    ("usual", 0.0),
    ("mediocre", -0.5),
    ("dull", -1.0),
    ("weak", -1.0),
    ("bad", -1.5),
    ("flimsy", -1.5),
    ("poor", -2.0),
    ("ugly", -2.0),
    ("terrible", -3.0),
    ("awful", -3.0),
];

/// Degrees, and the factor by which they multiply a quality's valence.
pub const DEGREES: &[(&str, f32)] =
    &[("slightly", 0.4), ("fairly", 0.7), ("quite", 0.9), ("really", 1.2), ("very", 1.3), ("extremely", 1.5)];

/// Verdicts on the product as a whole and their valence.
pub const VERDICTS: &[(&str, f32)] = &[
    ("i love it", 3.0),
    ("i recommend it", 2.0),
    ("i would buy it again", 2.0),
    ("i like it", 1.5),
    ("i use it daily", 1.0),
    ("i returned it", -1.5),
    ("i regret it", -2.0),
    ("i would never buy it again", -2.0),
    ("i hate it", -3.0),
];

/// Verbs between a subject and a quality.
pub const VERBS: &[&str] = &["is", "feels", "looks", "seems"];

/// Words between two statements.
pub const CONNECTIVES: &[&str] = &["and", "but", "while"];

/// Neutral facts: their beginnings, and the words they can end with.
pub const FACTS: &[(&str, &[&str])] = &[
    ("it arrived on", &["monday", "tuesday", "friday", "sunday"]),
    ("i ordered it in", &["march", "may", "june", "july"]),
    ("the box was", COLORS),
    ("it came with a", &["manual", "cable", "card", "sticker"]),
    ("i bought it for my", &["sister", "brother", "friend", "mother"]),
];

/// Colors, in prompts and facts.
pub const COLORS: &[&str] = &["red", "blue", "green", "black", "white", "yellow", "brown", "grey"];

/// Kinds, in prompts.
pub const KINDS: &[&str] = &["small", "big", "new", "old"];

/// Beginnings and ends of prompts.
pub const PROMPTS: &[(&str, &str)] = &[
    ("review of the", ":"),
    ("write a review of the", ":"),
    ("what do you think of the", "?"),
    ("tell me about the", "."),
    ("how is the", "?"),
];

/// Words of the grammar that are in no other table.
pub const GRAMMAR_WORDS: &[&str] = &["the", "it", "its", "because", ".", ":", "?"];

/// Returns the topic called `name`.
pub fn topic(name: &str) -> Option<&'static Topic> {
    TOPICS.iter().find(|topic| topic.name == name)
}

/// Returns whether `word` is a product or a part of one.
pub fn is_noun(word: &str) -> bool {
    TOPICS.iter().any(|topic| topic.name == word || topic.aspects.contains(&word))
}

/// Returns the value of `word` in a table.
pub fn value(table: &[(&str, f32)], word: &str) -> Option<f32> {
    table.iter().find(|(entry, _)| *entry == word).map(|(_, value)| *value)
}

/// Returns every word of the language once, in the order of the tables.
pub fn all() -> Vec<&'static str> {
    let phrases = GRAMMAR_WORDS
        .iter()
        .copied()
        .chain(PROMPTS.iter().map(|(start, _)| *start))
        .chain(KINDS.iter().copied())
        .chain(COLORS.iter().copied())
        .chain(TOPICS.iter().flat_map(|topic| std::iter::once(topic.name).chain(topic.aspects)))
        .chain(VERBS.iter().copied())
        .chain(CONNECTIVES.iter().copied())
        .chain(DEGREES.iter().map(|(word, _)| *word))
        .chain(QUALITIES.iter().map(|(word, _)| *word))
        .chain(VERDICTS.iter().map(|(phrase, _)| *phrase))
        .chain(FACTS.iter().flat_map(|(start, ends)| std::iter::once(*start).chain(ends.iter().copied())));
    let mut words: Vec<&str> = Vec::new();
    for word in phrases.flat_map(str::split_whitespace) {
        if !words.contains(&word) {
            words.push(word);
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vocabulary_is_small_and_without_doubles() {
        let words = all();
        assert!((150..=250).contains(&words.len()), "{} words", words.len());
        let mut sorted = words.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), words.len());
    }

    #[test]
    fn no_word_is_both_a_noun_and_something_else() {
        let others = VERBS.iter().chain(CONNECTIVES).chain(COLORS).chain(KINDS).chain(GRAMMAR_WORDS);
        for word in others.chain(QUALITIES.iter().map(|(word, _)| word)).chain(DEGREES.iter().map(|(word, _)| word)) {
            assert!(!is_noun(word), "{word}");
        }
    }
}
