//! Structure of a packed batch: which tokens form a sequence.

use std::ops::Range;

/// Sequences laid end to end, each alone or followed by continuations.
///
/// A continuation sees its root and itself. So the completions of one prompt are computed with the prompt's tokens in memory once. Every
/// token belongs to one segment, a root or a continuation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Segments {
    trees: Vec<Tree>,
    tokens: usize,
    /// Global tokens, in order.
    global: Vec<usize>,
    /// Tables of the attention kernels.
    #[cfg(feature = "gpu")]
    tables: crate::table::OnDevices,
}

/// A root with its continuations, stored contiguously.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tree {
    /// Index of the first token.
    pub start: usize,
    /// Number of tokens of the root.
    pub root: usize,
    /// Number of tokens of each continuation.
    pub continuations: Vec<usize>,
}

/// One sequence or continuation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Its own tokens.
    pub tokens: Range<usize>,
    /// Tokens of the root that it continues; empty for a root.
    pub prefix: Range<usize>,
}

impl Segment {
    /// Number of tokens of prefix and segment together.
    pub fn length(&self) -> usize {
        self.prefix.len() + self.tokens.len()
    }
}

impl Tree {
    /// Number of all tokens.
    pub fn length(&self) -> usize {
        self.root + self.continuations.iter().sum::<usize>()
    }

    /// Returns the root, then its continuations. Token indices count from `start`.
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
    /// Sequences of these lengths, without continuations.
    pub fn sequences(lengths: impl IntoIterator<Item = usize>) -> Self {
        let mut segments = Self::default();
        lengths.into_iter().for_each(|length| segments.push(length, Vec::new()));
        segments
    }

    /// Adds a root of `root` tokens and its continuations.
    pub fn push(&mut self, root: usize, continuations: Vec<usize>) {
        let tree = Tree { start: self.tokens, root, continuations };
        self.tokens += tree.length();
        self.trees.push(tree);
        #[cfg(feature = "gpu")]
        {
            self.tables = Default::default();
        }
    }

    /// Makes `tokens` global. If the mask has a window, global tokens see all tokens of their sequence beyond the window, and all of these
    /// see them (Longformer's global attention).
    ///
    /// # Panics
    /// If a token does not exist.
    pub fn with_global(mut self, tokens: impl IntoIterator<Item = usize>) -> Self {
        self.global = tokens.into_iter().collect();
        self.global.sort_unstable();
        self.global.dedup();
        let last = self.global.last();
        assert!(last.is_none_or(|&last| last < self.tokens), "a global token lies outside {} tokens", self.tokens);
        self
    }

    /// Number of all tokens, N.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Iterates over all segments, in token order.
    pub fn iter(&self) -> impl Iterator<Item = Segment> {
        self.trees.iter().flat_map(|tree| tree.segments(tree.start))
    }

    pub(crate) fn trees(&self) -> &[Tree] {
        &self.trees
    }

    /// Whether some token is global.
    #[cfg(feature = "gpu")]
    pub(crate) fn has_global(&self) -> bool {
        !self.global.is_empty()
    }

    /// Copies of the tables on devices.
    #[cfg(feature = "gpu")]
    pub(crate) fn on_devices(&self) -> &crate::table::OnDevices {
        &self.tables
    }

    /// Global tokens among `tokens`.
    pub(crate) fn global(&self, tokens: &Range<usize>) -> &[usize] {
        let before = |end: usize| self.global.partition_point(|&token| token < end);
        &self.global[before(tokens.start)..before(tokens.end)]
    }
}

/// Queries of one packed batch that read the sequences of another. Each tree of segments reads one whole sequence, and several may read the
/// same one. The targets of a group share their source, which an encoder packs once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CrossSegments {
    targets: Segments,
    sources: Segments,
    /// Index of the source that each tree of the targets reads.
    source_of: Vec<usize>,
    /// Tables of the attention kernels.
    #[cfg(feature = "gpu")]
    tables: crate::table::OnDevices,
}

impl CrossSegments {
    /// Root `t` of `targets` and its continuations read sequence `source_of[t]` of `sources`.
    ///
    /// # Panics
    /// If the number of sources is not the number of roots, a source does not exist, or a source has continuations.
    pub fn new(targets: Segments, sources: Segments, source_of: Vec<usize>) -> Self {
        assert_eq!(source_of.len(), targets.trees.len(), "one source a root");
        assert!(source_of.iter().all(|&source| source < sources.trees.len()), "a source does not exist");
        assert!(sources.trees.iter().all(|tree| tree.continuations.is_empty()), "sources are whole sequences");
        Self {
            targets,
            sources,
            source_of,
            #[cfg(feature = "gpu")]
            tables: Default::default(),
        }
    }

    /// Number of reading tokens, N, and of tokens that are read, M.
    pub fn tokens(&self) -> [usize; 2] {
        [self.targets.tokens, self.sources.tokens]
    }

    /// Tokens of each source.
    #[cfg(any(test, feature = "gpu"))]
    pub(crate) fn sources(&self) -> impl Iterator<Item = Range<usize>> {
        self.sources.trees.iter().map(|source| source.start..source.start + source.root)
    }

    /// Copies of the tables on devices.
    #[cfg(feature = "gpu")]
    pub(crate) fn on_devices(&self) -> &crate::table::OnDevices {
        &self.tables
    }

    /// Each tree with the tokens that it reads, in token order.
    pub(crate) fn trees(&self) -> impl Iterator<Item = (&Tree, Range<usize>)> {
        self.targets.trees.iter().zip(&self.source_of).map(|(tree, &source)| {
            let source = &self.sources.trees[source];
            (tree, source.start..source.start + source.root)
        })
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

    #[test]
    fn global_tokens_are_those_of_a_range() {
        let segments = Segments::sequences([3, 4]).with_global([5, 0, 3, 5]);
        assert_eq!(segments.global(&(0..3)), [0]);
        assert_eq!(segments.global(&(3..7)), [3, 5]);
        assert!(segments.global(&(1..3)).is_empty());
    }

    #[test]
    #[should_panic(expected = "sources are whole sequences")]
    fn a_source_is_whole() {
        let mut sources = Segments::default();
        sources.push(2, vec![1]);
        CrossSegments::new(Segments::sequences([1]), sources, vec![0]);
    }
}
