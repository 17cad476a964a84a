//! Converts compared answers to preference pairs.

use serde_json::{Map, Value};

use super::{Feedback, PAIRS, Preference};

/// Returns a row with `prompt`, `chosen` and `rejected` for every pair with a better answer. Empty if the answers were not
/// compared.
pub fn preference_rows(feedback: &Feedback) -> Vec<Map<String, Value>> {
    let prompt = format!("{} answer: ", feedback.prompt());
    let row = |((first, second), preference): ((usize, usize), &Preference)| {
        let (chosen, rejected) = match preference {
            Preference::Equal => return None,
            Preference::First => (first, second),
            Preference::Second => (second, first),
        };
        let mut row = Map::new();
        row.insert("prompt".into(), prompt.clone().into());
        row.insert("chosen".into(), feedback.answers[chosen].clone().into());
        row.insert("rejected".into(), feedback.answers[rejected].clone().into());
        Some(row)
    };
    PAIRS.into_iter().zip(feedback.preferences.iter().flatten()).filter_map(row).collect()
}

/// Returns the first three answers, numbered from 1, whose preferences contradict each other. They do if they form a cycle with at
/// least two strict preferences. Ties need not be transitive: if one answer ties with two others, either of those may be better.
pub fn conflicts(preferences: &[Preference; PAIRS.len()]) -> Option<[usize; 3]> {
    let sign = |first: usize, second: usize| {
        let at = PAIRS.iter().position(|pair| *pair == (first, second)).expect("a pair");
        preferences[at].sign()
    };
    let triples = [[0, 1, 2], [0, 1, 3], [0, 2, 3], [1, 2, 3]];
    let wrong = |[a, b, c]: [usize; 3]| contradict(sign(a, b), sign(b, c), sign(a, c));
    triples.into_iter().find(|triple| wrong(*triple)).map(|triple| triple.map(|answer| answer + 1))
}

/// Returns whether three preferences contradict each other: +1 if the first of two answers is better, −1 if the second is, 0 for a
/// tie. Ties need not be transitive.
pub fn contradict(ab: i8, bc: i8, ac: i8) -> bool {
    match (ab, bc) {
        (1, 1) => ac <= 0,
        (1, 0) | (0, 1) => ac < 0,
        (0, -1) | (-1, 0) => ac > 0,
        (-1, -1) => ac >= 0,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_of_27_triples_contradict() {
        let signs = [-1, 0, 1];
        let all =
            signs.into_iter().flat_map(|ab| signs.map(|bc| (ab, bc))).flat_map(|(ab, bc)| signs.map(|ac| (ab, bc, ac)));
        let found: Vec<(i8, i8, i8)> = all.filter(|&(ab, bc, ac)| contradict(ab, bc, ac)).collect();
        let expected =
            [(-1, -1, 0), (-1, -1, 1), (-1, 0, 1), (0, -1, 1), (0, 1, -1), (1, 0, -1), (1, 1, -1), (1, 1, 0)];
        assert_eq!(found, expected);
        assert!(!contradict(1, 0, 0) && !contradict(0, 0, 1) && !contradict(0, 0, -1));
    }

    #[test]
    fn the_answers_that_contradict_are_named() {
        let mut preferences = [Preference::Equal; 6];
        assert_eq!(conflicts(&preferences), None);
        // 2 beats 3, 3 beats 4, 4 beats 2.
        (preferences[3], preferences[5], preferences[4]) = (Preference::First, Preference::First, Preference::Second);
        assert_eq!(conflicts(&preferences), Some([2, 3, 4]));
    }
}
