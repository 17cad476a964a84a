//! Preferences by how much of the information that an answer needs stands in it: FineGrainedRLHF's files for completeness (R3).

use std::collections::BTreeSet;

use super::{ANSWERS, Feedback, MissingKind, PAIRS, Preference};
use crate::text::{Level, SentenceSplitter, match_score, segments};

/// From what match on a passage's sentence counts as said.
const SAID: f64 = 0.85;

/// A sentence of a passage: both from 1.
type SentenceId = (usize, usize);

/// The passage sentences that a complete answer says: those of the corrected answer, without those that matter little and are
/// no part of the first answer.
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
    for (part, id) in said(&feedback.corrected, &known, splitter) {
        found.insert(id);
        // In the order of the text: a later part that the first answer lacks removes the sentence again.
        match minor.contains(&id) && !first.contains(&part.to_lowercase()) {
            true => removed.insert(id),
            false => removed.remove(&id),
        };
    }
    found.difference(&removed).copied().collect()
}

/// Which answer of each of [`PAIRS`] covers more of the [`information`]; nothing where there is none.
pub fn coverage_preferences(feedback: &Feedback, splitter: &dyn SentenceSplitter) -> Option<[Preference; PAIRS.len()]> {
    let information = information(feedback, splitter);
    if information.is_empty() {
        return None;
    }
    let known = sentences(feedback);
    // Shares of one set compare as its counts do.
    let mut covered = [0; ANSWERS];
    for (count, answer) in covered.iter_mut().zip(&feedback.answers) {
        let said: BTreeSet<SentenceId> = said(answer, &known, splitter).into_iter().map(|(_, id)| id).collect();
        *count = said.intersection(&information).count();
    }
    Some(PAIRS.map(|(first, second)| Preference::of(covered[first].cmp(&covered[second]))))
}

/// All passage sentences, their white space normalized.
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

/// The parts of a text's sentences that a passage says, each with the sentence that says it best: the first of those.
fn said(text: &str, known: &[(SentenceId, String)], splitter: &dyn SentenceSplitter) -> Vec<(String, SentenceId)> {
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
        best.filter(|(_, score)| *score >= SAID).map(|(id, _)| id)
    };
    let parts = segments(splitter, &text, Level::SubSentence).into_iter().map(|range| normalized(&text[range]));
    parts.filter_map(|part| best(&part).map(|id| (part, id))).collect()
}
