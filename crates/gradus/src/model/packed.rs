//! Packed sequences: token ids laid end to end, with no padding anywhere.

use std::ops::Range;

/// `B` sequences packed end to end into `N` tokens.
///
/// Attention is bounded by sequence and positions restart at 0 in each, so a packed batch gives every sequence the
/// numbers it would have alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packed {
    ids: Vec<u32>,
    starts: Vec<usize>,
}

impl Packed {
    /// Packs `sequences` in order.
    ///
    /// # Panics
    /// When there is no sequence, or one is empty.
    pub fn new<S: AsRef<[u32]>>(sequences: impl IntoIterator<Item = S>) -> Self {
        let (mut ids, mut starts) = (Vec::new(), vec![0]);
        for sequence in sequences {
            assert!(!sequence.as_ref().is_empty(), "a packed sequence has at least one token");
            ids.extend_from_slice(sequence.as_ref());
            starts.push(ids.len());
        }
        assert!(starts.len() > 1, "a packed batch has at least one sequence");
        Self { ids, starts }
    }

    /// All token ids, `[N]`.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Cumulative lengths: `B + 1` entries from 0 to `N`.
    pub fn starts(&self) -> &[usize] {
        &self.starts
    }

    /// How many sequences, `B`.
    pub fn sequences(&self) -> usize {
        self.starts.len() - 1
    }

    /// How many tokens, `N`.
    pub fn tokens(&self) -> usize {
        self.ids.len()
    }

    /// The tokens of sequence `i`, as a range of packed indices.
    pub fn range(&self, i: usize) -> Range<usize> {
        self.starts[i]..self.starts[i + 1]
    }

    /// The packed index of each sequence's last token, `[B]`: where a scalar reward is read.
    pub fn last_indices(&self) -> Vec<usize> {
        self.starts[1..].iter().map(|end| end - 1).collect()
    }

    /// Position of each token within its sequence, `[N]`, from 0.
    pub fn positions(&self) -> Vec<u32> {
        (0..self.sequences()).flat_map(|i| 0..self.range(i).len() as u32).collect()
    }
}

/// Which tokens of a packed batch are predicted, and from where.
///
/// The token at packed index `i` is predicted by the hidden state at `i − 1` of the same sequence; the first token of
/// a sequence is never a target.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Targets {
    /// Packed indices of the hidden states, `[M]`.
    pub positions: Vec<usize>,
    /// The ids they predict, `[M]`.
    pub ids: Vec<u32>,
    /// How many targets each sequence has, `[B]`; they sum to `M`.
    pub counts_b: Vec<usize>,
}

impl Targets {
    /// The tokens of `packed` at which `loss_mask_n` is true, except each sequence's first.
    ///
    /// # Panics
    /// When the mask does not have one entry per token.
    pub fn new(packed: &Packed, loss_mask_n: &[bool]) -> Self {
        assert_eq!(loss_mask_n.len(), packed.tokens(), "one loss mask entry per token");
        let mut targets = Self::default();
        for sequence in 0..packed.sequences() {
            let range = packed.range(sequence);
            let before = targets.ids.len();
            for (i, &counts) in loss_mask_n.iter().enumerate().take(range.end).skip(range.start + 1) {
                if counts {
                    targets.positions.push(i - 1);
                    targets.ids.push(packed.ids()[i]);
                }
            }
            targets.counts_b.push(targets.ids.len() - before);
        }
        targets
    }

    /// The last `completion_lengths[i]` tokens of each sequence.
    ///
    /// # Panics
    /// When a completion is as long as its sequence: its first token has nothing to be predicted from.
    pub fn completions(packed: &Packed, completion_lengths: &[usize]) -> Self {
        assert_eq!(completion_lengths.len(), packed.sequences(), "one completion length per sequence");
        let mut loss_mask_n = vec![false; packed.tokens()];
        for (i, &length) in completion_lengths.iter().enumerate() {
            let range = packed.range(i);
            assert!(length < range.len(), "a completion follows at least one prompt token");
            loss_mask_n[range.end - length..range.end].fill(true);
        }
        Self::new(packed, &loss_mask_n)
    }

    /// How many targets, `M`.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }
}
