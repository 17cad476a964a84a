//! Agreement of two people on marked characters and their types.

use std::collections::HashSet;
use std::ops::Range;

use super::Defined;

/// A marked range of characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// Range of characters (not bytes).
    pub characters: Range<usize>,
    /// Type of the span.
    pub kind: String,
}

/// Computes the F1 of the characters in one person's spans against the other's: 2 · both / (one + other), over the texts in `pairs`. A
/// character counts together with its type.
///
/// # Errors
/// Neither person marked anything.
pub fn span_f1<'a>(pairs: impl IntoIterator<Item = (&'a [Span], &'a [Span])>) -> Defined {
    let (mut both, mut all) = (0usize, 0usize);
    for (one, other) in pairs {
        let characters = |spans: &'a [Span]| -> HashSet<(usize, &'a str)> {
            spans.iter().flat_map(|span| span.characters.clone().map(move |at| (at, span.kind.as_str()))).collect()
        };
        let (one, other) = (characters(one), characters(other));
        both += one.intersection(&other).count();
        all += one.len() + other.len();
    }
    if all == 0 { Err("nobody marked anything") } else { Ok(2.0 * both as f64 / all as f64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(characters: Range<usize>, kind: &str) -> Span {
        Span { characters, kind: kind.into() }
    }

    #[test]
    fn characters_count_with_their_type() {
        let one = [span(0..10, "a"), span(20..30, "b")];
        // 5 characters of the first span, none of the second, whose type differs.
        let other = [span(5..15, "a"), span(20..30, "a")];
        assert_eq!(span_f1([(&one[..], &other[..])]), Ok(2.0 * 5.0 / 40.0));
        assert_eq!(span_f1([(&one[..], &one[..])]), Ok(1.0));
        assert_eq!(span_f1([(&one[..], &[][..])]), Ok(0.0));
        // Characters marked twice count once.
        assert_eq!(span_f1([(&[span(0..4, "a"), span(2..6, "a")][..], &[span(0..6, "a")][..])]), Ok(1.0));
        assert!(span_f1([(&[][..], &[][..])]).is_err());
    }
}
