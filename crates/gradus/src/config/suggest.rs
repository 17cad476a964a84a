//! "Did you mean": the nearest of the words that would be right.

/// More edits than this are another word, not a slip.
const EDITS_MAX: usize = 3;

/// The candidate nearest to `word`, when it is near enough to be meant.
///
/// Short words may differ in fewer letters: not more than a third of them, but one at least.
pub(crate) fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let length = word.chars().count();
    let allowed = EDITS_MAX.min((length / 3).max(1));
    let plain = |word: &str| word.replace('-', "_").to_lowercase();
    let word = plain(word);
    candidates
        .into_iter()
        .map(|candidate| (edits(&word, &plain(candidate)), candidate))
        .filter(|(edits, _)| *edits <= allowed)
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

/// Insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b`
/// (Damerau–Levenshtein distance, optimal string alignment).
fn edits(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    for (j, edits) in rows[0].iter_mut().enumerate() {
        *edits = j;
    }
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let substitution = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = substitution.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = least;
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_edits() {
        assert_eq!(edits("clip_ragne", "clip_range"), 1, "a swap of neighbours");
        assert_eq!(edits("", "abc"), 3);
        assert_eq!(edits("kitten", "sitting"), 3);
    }

    #[test]
    fn suggests_only_what_may_have_been_meant() {
        let keys = ["clip_range", "clip_range_high", "delta", "stop"];
        assert_eq!(nearest("clip-range", keys), Some("clip_range"));
        assert_eq!(nearest("cliprange", keys), Some("clip_range"));
        assert_eq!(nearest("dleta", keys), Some("delta"));
        assert_eq!(nearest("temperature", keys), None);
        assert_eq!(nearest("drop", keys), None, "two of four letters");
    }
}
