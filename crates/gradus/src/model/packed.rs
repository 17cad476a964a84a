//! Packed sequences: token ids laid end to end, with no padding anywhere, and common beginnings stored once.

use gradus_kernels::{Segment, Segments};

/// `B` sequences packed into `N` tokens.
///
/// Attention is bounded by sequence and positions restart at 0 in each, so a packed batch gives every sequence the
/// numbers it would have alone. Sequences that begin alike may share the tokens of their beginning: these are computed
/// once, and take the gradient of all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packed {
    ids: Vec<u32>,
    segments: Segments,
    /// Where the tokens of each sequence lie: those it shares, then its own.
    sequences: Vec<Segment>,
}

impl Packed {
    /// Packs `sequences` end to end.
    ///
    /// # Panics
    /// When there is no sequence, or one is empty.
    pub fn new<S: AsRef<[u32]>>(sequences: impl IntoIterator<Item = S>) -> Self {
        let (mut ids, mut lengths) = (Vec::new(), Vec::new());
        for sequence in sequences {
            assert!(!sequence.as_ref().is_empty(), "a packed sequence has at least one token");
            ids.extend_from_slice(sequence.as_ref());
            lengths.push(sequence.as_ref().len());
        }
        assert!(!lengths.is_empty(), "a packed batch has at least one sequence");
        let segments = Segments::sequences(lengths);
        Self { ids, sequences: segments.iter().collect(), segments }
    }

    /// Packs `sequences`, those of each group with what they have in common at their beginning stored once. `groups`
    /// names every sequence once; sequences keep their numbers.
    ///
    /// # Panics
    /// When there is no sequence, one is empty, or `groups` does not name each once.
    pub(super) fn sharing<S: AsRef<[u32]>>(sequences: &[S], groups: &[Vec<usize>]) -> Self {
        let (mut ids, mut segments) = (Vec::new(), Segments::default());
        let mut placed = vec![None; sequences.len()];
        for group in groups.iter().filter(|group| !group.is_empty()) {
            let members: Vec<&[u32]> = group.iter().map(|&i| sequences[i].as_ref()).collect();
            assert!(members.iter().all(|member| !member.is_empty()), "a packed sequence has at least one token");
            let root = common_prefix(&members);
            let start = ids.len();
            ids.extend_from_slice(&members[0][..root]);
            let prefix = start..start + root;
            for (&i, member) in group.iter().zip(&members) {
                let from = ids.len();
                ids.extend_from_slice(&member[root..]);
                assert!(placed[i].is_none(), "a sequence belongs to one group");
                placed[i] = Some(Segment { tokens: from..ids.len(), prefix: prefix.clone() });
            }
            segments.push(root, members.iter().map(|member| member.len() - root).collect());
        }
        let sequences: Option<Vec<Segment>> = placed.into_iter().collect();
        let sequences = sequences.expect("every sequence belongs to a group");
        assert!(!sequences.is_empty(), "a packed batch has at least one sequence");
        Self { ids, segments, sequences }
    }

    /// All token ids, `[N]`.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Which tokens see each other.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// How many sequences, `B`.
    pub fn sequences(&self) -> usize {
        self.sequences.len()
    }

    /// How many tokens, `N`; shared ones count once.
    pub fn tokens(&self) -> usize {
        self.ids.len()
    }

    /// How many tokens sequence `i` has, shared ones included.
    pub fn length(&self, i: usize) -> usize {
        self.sequences[i].length()
    }

    /// The packed index of token `t` of sequence `i`.
    pub fn index(&self, i: usize, t: usize) -> usize {
        let Segment { tokens, prefix } = &self.sequences[i];
        if t < prefix.len() { prefix.start + t } else { tokens.start + t - prefix.len() }
    }

    /// The packed index of each sequence's last token, `[B]`: where a scalar reward is read.
    pub fn last_indices(&self) -> Vec<usize> {
        (0..self.sequences()).map(|i| self.index(i, self.length(i) - 1)).collect()
    }

    /// Position of each token within its sequence, `[N]`, from 0.
    pub fn positions(&self) -> Vec<u32> {
        let of_segment = |segment: Segment| segment.prefix.len() as u32..segment.length() as u32;
        self.segments.iter().flat_map(of_segment).collect()
    }
}

/// How many ids all members begin with. One alone shares all of its own.
pub(super) fn common_prefix(members: &[&[u32]]) -> usize {
    let first = members[0];
    let common = |other: &&[u32]| first.iter().zip(*other).take_while(|(a, b)| a == b).count();
    members[1..].iter().map(common).min().unwrap_or(first.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_of_a_group_share_what_they_have_in_common() {
        let sequences = [vec![1, 2, 3], vec![7], vec![1, 2, 4, 5], vec![1, 2]];
        let packed = Packed::sharing(&sequences, &[vec![0, 2, 3], vec![1]]);
        assert_eq!(packed.ids(), [1, 2, 3, 4, 5, 7]);
        assert_eq!(packed.positions(), [0, 1, 2, 2, 3, 0]);
        assert_eq!(packed.last_indices(), [2, 5, 4, 1]);
        let read = |i: usize| (0..packed.length(i)).map(|t| packed.ids()[packed.index(i, t)]).collect::<Vec<_>>();
        assert_eq!((0..4).map(read).collect::<Vec<_>>(), sequences);
    }

    #[test]
    fn alone_every_sequence_lies_whole() {
        let sequences = [vec![1, 2], vec![1, 2, 3]];
        let alone = Packed::sharing(&sequences, &[vec![0], vec![1]]);
        assert_eq!((alone.ids(), alone.positions()), (&[1, 2, 1, 2, 3][..], vec![0, 1, 0, 1, 2]));
        assert_eq!(alone.last_indices(), Packed::new(&sequences).last_indices());
    }
}
