//! Measures a policy by the hidden rule. The numbers are exact and need no judge.

use super::grammar::Prompt;
use super::parse::{Sentence, sentences};
use super::rule::judge;

/// Averages over completions of known prompts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measures {
    /// Mean true score.
    pub true_score: f64,
    /// Share of sentences that are in the language.
    pub fluency: f64,
    /// Mean number of words.
    pub words: f64,
    /// Mean number of different parts of the product that are named, at most two.
    pub specifics: f64,
    /// Number of different completions divided by their number. It drops when a collapsed policy repeats itself.
    pub distinct: f64,
}

/// Measures completions, one per prompt.
///
/// # Panics
/// If the numbers of prompts and completions differ, or are 0.
pub fn measure(prompts: &[Prompt], completions: &[String]) -> Measures {
    assert_eq!(prompts.len(), completions.len(), "one completion a prompt");
    assert!(!prompts.is_empty(), "measures of nothing");
    let judged: Vec<_> = prompts.iter().zip(completions).map(|(prompt, text)| judge(prompt.topic, text)).collect();
    let (mut grammatical, mut all) = (0, 0);
    for text in completions {
        let sentences = sentences(text);
        grammatical += sentences.iter().filter(|sentence| matches!(sentence, Sentence::Grammatical(_))).count();
        all += sentences.len().max(1); // an empty text counts as one sentence outside the language
    }
    let different: std::collections::HashSet<&String> = completions.iter().collect();
    let mean = |sum: f64| sum / completions.len() as f64;
    Measures {
        true_score: mean(judged.iter().map(|judgement| f64::from(judgement.score())).sum()),
        fluency: f64::from(grammatical as u32) / all as f64,
        words: mean(completions.iter().map(|text| text.split_whitespace().count() as f64).sum()),
        specifics: mean(judged.iter().map(|judgement| f64::from(judgement.specifics)).sum()),
        distinct: mean(different.len() as f64),
    }
}

/// Returns the share of prompts for which the rule prefers `completions` to `baseline`. Ties count half.
///
/// # Panics
/// If the numbers of prompts and completions differ, or are 0.
pub fn preference_rate(prompts: &[Prompt], completions: &[String], baseline: &[String]) -> f64 {
    assert_eq!(prompts.len(), completions.len(), "one completion a prompt");
    assert_eq!(prompts.len(), baseline.len(), "one baseline completion a prompt");
    assert!(!prompts.is_empty(), "a rate of nothing");
    let each = prompts.iter().zip(completions.iter().zip(baseline)).map(|(prompt, (completion, baseline))| {
        let (ours, theirs) = (judge(prompt.topic, completion).score(), judge(prompt.topic, baseline).score());
        if ours == theirs { 0.5 } else { f64::from(u8::from(ours > theirs)) }
    });
    each.sum::<f64>() / prompts.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompts(topics: &[&str]) -> Vec<Prompt> {
        let texts = topics.iter().map(|topic| format!("how is the {topic} ?"));
        texts.map(|text| Prompt::from_text(&text).expect("a prompt")).collect()
    }

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| text.to_string()).collect()
    }

    #[test]
    fn measures_a_reader_can_redo() {
        let found = measure(&prompts(&["kettle", "bike"]), &texts(&["the lid is good . lid good .", "it is good ."]));
        // 1.5 + 1 − 2 and 1.5; two of three sentences; 8 and 4 words.
        let expected = Measures { true_score: 1.0, fluency: 2.0 / 3.0, words: 6.0, specifics: 0.5, distinct: 1.0 };
        assert_eq!(found, expected);
    }

    #[test]
    fn silence_is_not_fluent() {
        assert_eq!(measure(&prompts(&["bag"]), &texts(&[""])).fluency, 0.0);
    }

    #[test]
    fn the_preference_rate_counts_ties_half() {
        let prompts = prompts(&["kettle", "kettle", "kettle", "kettle"]);
        let ours = texts(&["it is good .", "it is bad .", "it is good .", "it is great ."]);
        let theirs = texts(&["it is bad .", "it is good .", "it is good .", "it is good ."]);
        assert_eq!(preference_rate(&prompts, &ours, &theirs), 0.625);
        assert_eq!(preference_rate(&prompts, &ours, &ours), 0.5);
    }
}
