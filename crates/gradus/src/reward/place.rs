//! Position of a segment of a completion among its tokens.

use std::ops::Range;

/// Returns the last token that has some of the text before byte `end`. `ranges_t` are the byte ranges of the tokens, in
/// order and without gaps. Returns `None` if no token has any of the text.
pub(super) fn last_token(ranges_t: &[Range<usize>], end: usize) -> Option<usize> {
    ranges_t.iter().rposition(|range| !range.is_empty() && range.start < end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_without_text_have_no_segment() {
        // Tokens: `a`, ` b`, the first byte of a character, the rest of it, an end token.
        let ranges_t = [0..1, 1..3, 3..3, 3..5, 5..5];
        assert_eq!([1, 2, 3, 4, 5, 9].map(|end| last_token(&ranges_t, end)), [0, 1, 1, 3, 3, 3].map(Some));
        assert_eq!((last_token(&ranges_t, 0), last_token(&[0..0, 0..0], 3)), (None, None));
    }
}
