//! How the tokens of a packed batch belong together.

use std::ops::Range;

/// Sequences laid end to end, each alone or followed by others that continue it.
///
/// A continuation sees its root and itself: the completions of one prompt are computed with the prompt's tokens in
/// memory once. Every token belongs to one segment, a root or a continuation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Segments {
    trees: Vec<Tree>,
    tokens: usize,
}

/// A root with its continuations, next to each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tree {
    /// The first token.
    pub start: usize,
    /// Tokens of the root.
    pub root: usize,
    /// Tokens of each continuation.
    pub continuations: Vec<usize>,
}

/// One sequence or continuation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Its own tokens.
    pub tokens: Range<usize>,
    /// The tokens of the root that it continues; empty for a root.
    pub prefix: Range<usize>,
}

impl Segment {
    /// Prefix and own tokens together.
    pub fn length(&self) -> usize {
        self.prefix.len() + self.tokens.len()
    }
}

impl Tree {
    /// All tokens.
    pub fn length(&self) -> usize {
        self.root + self.continuations.iter().sum::<usize>()
    }

    /// The root, then its continuations; token numbers count from `start`.
    pub fn segments(&self, start: usize) -> impl Iterator<Item = Segment> {
        let root = Segment { tokens: start..start + self.root, prefix: start..start };
        let continuations = self.continuations.iter().scan(start + self.root, move |from, length| {
            let tokens = *from..*from + length;
            *from = tokens.end;
            Some(Segment { tokens, prefix: start..start + self.root })
        });
        std::iter::once(root).chain(continuations)
    }
}

impl Segments {
    /// Sequences of these lengths, none continuing another.
    pub fn sequences(lengths: impl IntoIterator<Item = usize>) -> Self {
        let mut segments = Self::default();
        lengths.into_iter().for_each(|length| segments.push(length, Vec::new()));
        segments
    }

    /// Adds a root of `root` tokens and what continues it.
    pub fn push(&mut self, root: usize, continuations: Vec<usize>) {
        let tree = Tree { start: self.tokens, root, continuations };
        self.tokens += tree.length();
        self.trees.push(tree);
    }

    /// All tokens, N.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Every segment, in the order of its tokens.
    pub fn iter(&self) -> impl Iterator<Item = Segment> {
        self.trees.iter().flat_map(|tree| tree.segments(tree.start))
    }

    pub(crate) fn trees(&self) -> &[Tree] {
        &self.trees
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn continuations_follow_their_root() {
        let mut segments = Segments::sequences([3]);
        segments.push(2, vec![4, 1]);
        let found: Vec<(Range<usize>, Range<usize>)> = segments.iter().map(|s| (s.tokens, s.prefix)).collect();
        assert_eq!(found, [(0..3, 0..0), (3..5, 3..3), (5..9, 3..5), (9..10, 3..5)]);
        assert_eq!(segments.tokens(), 10);
    }
}
