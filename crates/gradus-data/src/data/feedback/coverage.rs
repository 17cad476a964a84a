//! Preferences by how much of the required information an answer covers: FineGrainedRLHF's files for completeness (R3).

use std::collections::BTreeSet;

use super::{ANSWERS, Feedback, MissingKind, PAIRS, Preference};
use crate::text::{Level, SentenceSplitter, match_score, segments};

/// Minimum match score at which a part of an answer counts as stated by a passage sentence.
const MIN_MATCH_SCORE: f64 = 0.85;

/// Number of a passage and of a sentence in it, both from 1.
type SentenceId = (usize, usize);

/// Returns the passage sentences that a complete answer covers: those in the corrected answer, except minor ones that the first
/// answer lacks.
pub fn information(feedback: &Feedback, splitter: &dyn SentenceSplitter) -> BTreeSet<SentenceId> {
    let known = sentences(feedback);
    let minor: BTreeSet<SentenceId> = feedback
        .missing
        .iter()
        .filter(|missing| missing.kind == MissingKind::Minor)
        .flat_map(|missing| missing.sentences.iter().map(|&sentence| (missing.passage, sentence)))
        .collect();
    let first = feedback.answers[0].to_lowercase();
    let (mut found, mut removed) = (BTreeSet::new(), BTreeSet::new());
    for (part, id) in stated_parts(&feedback.corrected, &known, splitter) {
        found.insert(id);
        // In the order of the text: a later part that the first answer lacks removes the sentence again.
        match minor.contains(&id) && !first.contains(&part.to_lowercase()) {
            true => removed.insert(id),
            false => removed.remove(&id),
        };
    }
    found.difference(&removed).copied().collect()
}

/// Returns which answer of each of [`PAIRS`] covers more of the [`information`]. Returns `None` if there is no such information.
pub fn coverage_preferences(feedback: &Feedback, splitter: &dyn SentenceSplitter) -> Option<[Preference; PAIRS.len()]> {
    let information = information(feedback, splitter);
    if information.is_empty() {
        return None;
    }
    let known = sentences(feedback);
    // All shares have the same denominator, so the counts can be compared.
    let mut covered = [0; ANSWERS];
    for (count, answer) in covered.iter_mut().zip(&feedback.answers) {
        let stated: BTreeSet<SentenceId> =
            stated_parts(answer, &known, splitter).into_iter().map(|(_, id)| id).collect();
        *count = stated.intersection(&information).count();
    }
    Some(PAIRS.map(|(first, second)| Preference::of(covered[first].cmp(&covered[second]))))
}

/// Returns all passage sentences with normalized white space.
fn sentences(feedback: &Feedback) -> Vec<(SentenceId, String)> {
    let of_passage = |(p, passage): (usize, &super::Sentences)| {
        let normal = |(s, sentence): (usize, &String)| ((p + 1, s + 1), normalized(sentence));
        passage.sentences.iter().enumerate().map(normal).collect::<Vec<_>>()
    };
    feedback.passages.iter().enumerate().flat_map(of_passage).collect()
}

fn normalized(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the parts of a text that a passage states, each with its best matching sentence. The first sentence wins a tie.
fn stated_parts(
    text: &str,
    known: &[(SentenceId, String)],
    splitter: &dyn SentenceSplitter,
) -> Vec<(String, SentenceId)> {
    let text = normalized(text);
    let best = |part: &str| {
        let mut best: Option<(SentenceId, f64)> = None;
        for (id, sentence) in known {
            let score = match_score(sentence, part);
            if best.is_none_or(|(_, most)| score > most) {
                best = Some((*id, score));
            }
            if score == 1.0 {
                break;
            }
        }
        best.filter(|(_, score)| *score >= MIN_MATCH_SCORE).map(|(id, _)| id)
    };
    let parts = segments(splitter, &text, Level::SubSentence).into_iter().map(|range| normalized(&text[range]));
    parts.filter_map(|part| best(&part).map(|id| (part, id))).collect()
}
