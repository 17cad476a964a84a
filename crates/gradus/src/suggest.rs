//! "Did you mean": the nearest of the words that would be right.

use strsim::osa_distance;

/// More edits than this are another word, not a slip.
const EDITS_MAX: usize = 3;

/// The candidate nearest to `word`, when it is near enough to be meant.
///
/// Short words may differ in fewer letters: not more than a third of them, but one at least.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let length = word.chars().count();
    let allowed = EDITS_MAX.min((length / 3).max(1));
    let plain = |word: &str| word.replace('-', "_").to_lowercase();
    let word = plain(word);
    candidates
        .into_iter()
        .map(|candidate| (osa_distance(&word, &plain(candidate)), candidate))
        .filter(|(edits, _)| *edits <= allowed)
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggests_only_what_may_have_been_meant() {
        let keys = ["clip_range", "clip_range_high", "delta", "stop"];
        assert_eq!(nearest("clip-range", keys), Some("clip_range"));
        assert_eq!(nearest("cliprange", keys), Some("clip_range"));
        assert_eq!(nearest("dleta", keys), Some("delta"), "a swap of neighbors is one edit");
        assert_eq!(nearest("temperature", keys), None);
        assert_eq!(nearest("drop", keys), None, "two of four letters");
    }
}
