//! Packed sequences: token ids end to end, without padding, and with common beginnings stored once.

use gradus_kernels::{Segment, Segments};

/// `B` sequences packed into `N` tokens.
///
/// Attention stays within a sequence and positions restart at 0, so a sequence has the same results in a packed batch
/// as alone. Sequences may share the tokens of a common beginning. These are computed once, and their gradient is the
/// sum over all sequences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packed {
    ids: Vec<u32>,
    segments: Segments,
    /// Location of the tokens of each sequence: the shared ones, then its own.
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

    /// Packs `sequences` and stores the common beginning of each group once. `groups` contains the number of every
    /// sequence once; sequences keep their numbers.
    ///
    /// # Panics
    /// When there is no sequence, one is empty, or `groups` does not contain each once.
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

    /// Segments of tokens that attend to each other.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// Number of sequences, `B`.
    pub fn sequences(&self) -> usize {
        self.sequences.len()
    }

    /// Number of tokens, `N`; shared ones count once.
    pub fn tokens(&self) -> usize {
        self.ids.len()
    }

    /// Number of tokens of sequence `i`, including shared ones.
    pub fn length(&self, i: usize) -> usize {
        self.sequences[i].length()
    }

    /// Packed index of token `t` of sequence `i`.
    pub fn index(&self, i: usize, t: usize) -> usize {
        let Segment { tokens, prefix } = &self.sequences[i];
        if t < prefix.len() { prefix.start + t } else { tokens.start + t - prefix.len() }
    }

    /// Packed index of each sequence's last token, `[B]`, where a scalar reward is read.
    pub fn last_indices(&self) -> Vec<usize> {
        (0..self.sequences()).map(|i| self.index(i, self.length(i) - 1)).collect()
    }

    /// Position of each token within its sequence, `[N]`, from 0.
    pub fn positions(&self) -> Vec<u32> {
        let of_segment = |segment: Segment| segment.prefix.len() as u32..segment.length() as u32;
        self.segments.iter().flat_map(of_segment).collect()
    }
}

/// Length of the common beginning of all members. A single member shares all its ids.
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
