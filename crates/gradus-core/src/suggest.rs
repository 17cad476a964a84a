//! "Did you mean": the nearest of the valid words.

use strsim::osa_distance;

/// Beyond this many edits, it is a different word and not a typo.
const EDITS_MAX: usize = 3;

/// Returns the candidate nearest to `word`, if it is close enough to be a typo.
///
/// Up to a third of the letters may differ, and at least one.
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
