//! What a method hands over to a model: sequences of a source and a target, and who shares a beginning with whom.
//!
//! The model makes a [`Batch`] of them. A decoder-only model joins source and target and stores common beginnings once;
//! nothing above the models concatenates, groups or masks.

use super::dropout::DropoutStream;
use super::packed::{Packed, common_prefix};
use super::support::Support;

/// One sequence: what is given, what follows it, and which of what follows counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sequence<'a> {
    /// The ids that are given: a prompt. Empty for plain text.
    pub source: &'a [u32],
    /// The ids that follow.
    pub target: &'a [u32],
    /// Which ids of `target` count.
    pub counted: Counted<'a>,
}

/// Which ids of a target count: they carry loss, and their logprobs are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted<'a> {
    /// All, except an id that nothing stands before.
    All,
    /// None: the sequence is scored as a whole.
    Nothing,
    /// Those at which the mask is true: a tool's answer within a completion does not count. One entry per id.
    Mask(&'a [bool]),
}

impl<'a> Sequence<'a> {
    /// A text that is predicted from its first id on.
    pub fn text(ids: &'a [u32]) -> Self {
        Self { source: &[], target: ids, counted: Counted::All }
    }

    /// A text that is scored as a whole.
    pub fn scored(ids: &'a [u32]) -> Self {
        Self { counted: Counted::Nothing, ..Self::text(ids) }
    }

    /// A prompt and its completion.
    pub fn completion(source: &'a [u32], target: &'a [u32]) -> Self {
        Self { source, target, counted: Counted::All }
    }

    /// How many ids, source and target together.
    pub fn tokens(&self) -> usize {
        self.source.len() + self.target.len()
    }

    /// How many ids are predicted.
    pub fn targets(&self) -> usize {
        self.predicted().count()
    }

    /// The ids that are predicted, as positions in source and target joined. The first of all has nothing before it.
    fn predicted(&self) -> impl Iterator<Item = usize> {
        let Self { source, target, counted } = *self;
        if let Counted::Mask(mask) = counted {
            assert_eq!(mask.len(), target.len(), "one entry of the mask per id");
        }
        let counts = move |t: &usize| match counted {
            Counted::All => true,
            Counted::Nothing => false,
            Counted::Mask(mask) => mask[*t],
        };
        (0..target.len()).filter(counts).map(move |t| source.len() + t).filter(|&t| t > 0)
    }

    fn joined(&self) -> Vec<u32> {
        [self.source, self.target].concat()
    }
}

/// Sequences as a method hands them over: how they are grouped says which of them share what they begin with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rows<'a> {
    /// Nobody shares.
    Alone(Vec<Sequence<'a>>),
    /// Those of a group share: completions of one prompt. Sequences are numbered group after group.
    Groups(Vec<Vec<Sequence<'a>>>),
    /// The two of a pair share. The first of all pairs are numbered before the second of all.
    Pairs(Vec<[Sequence<'a>; 2]>),
}

impl<'a> Rows<'a> {
    /// Plain texts, predicted from their first id on.
    pub fn texts<S: AsRef<[u32]>>(texts: &'a [S]) -> Self {
        Self::Alone(texts.iter().map(|ids| Sequence::text(ids.as_ref())).collect())
    }

    /// Plain texts, scored as a whole.
    pub fn scored<S: AsRef<[u32]>>(texts: &'a [S]) -> Self {
        Self::Alone(texts.iter().map(|ids| Sequence::scored(ids.as_ref())).collect())
    }

    /// All sequences by their numbers, and the numbers that share.
    fn numbered(&self) -> (Vec<Sequence<'a>>, Vec<Vec<usize>>) {
        match self {
            Self::Alone(sequences) => (sequences.clone(), (0..sequences.len()).map(|i| vec![i]).collect()),
            Self::Groups(groups) => {
                let numbers = groups.iter().scan(0, |next, group| {
                    *next += group.len();
                    Some((*next - group.len()..*next).collect())
                });
                (groups.concat(), numbers.collect())
            }
            Self::Pairs(pairs) => {
                let [first, second] = [0, 1].map(|side| pairs.iter().map(move |pair| pair[side]));
                (first.chain(second).collect(), (0..pairs.len()).map(|i| vec![i, pairs.len() + i]).collect())
            }
        }
    }

    /// Ids of all sequences.
    pub fn tokens(&self) -> usize {
        self.numbered().0.iter().map(Sequence::tokens).sum()
    }

    /// Ids of the longest sequence.
    pub fn longest(&self) -> usize {
        self.numbered().0.iter().map(Sequence::tokens).max().unwrap_or(0)
    }

    /// Ids of all sequences that are predicted.
    pub fn targets(&self) -> usize {
        self.numbered().0.iter().map(Sequence::targets).sum()
    }

    /// Ids that are computed where common beginnings are stored once.
    pub fn computed(&self) -> usize {
        let (sequences, groups) = self.numbered();
        let again = |group: &Vec<usize>| {
            let members: Vec<Vec<u32>> = group.iter().map(|&i| sequences[i].joined()).collect();
            common_prefix(&members.iter().map(Vec::as_slice).collect::<Vec<_>>()) * (group.len() - 1)
        };
        self.tokens() - groups.iter().filter(|group| !group.is_empty()).map(again).sum::<usize>()
    }
}

/// Whether a model gives the tokens of a common beginning the same numbers in every sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Beginnings {
    /// It does: they are stored once.
    Shared,
    /// They depend on what follows.
    Apart,
}

/// Sequences as a model computes them in one forward pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    packed: Packed,
    targets: Targets,
    dropout: Option<DropoutStream>,
}

impl Batch {
    /// Source and target of each sequence joined: what a decoder-only model computes.
    ///
    /// # Panics
    /// When there is no sequence, one has no ids, or a mask has another length than its target.
    pub(super) fn joined(rows: &Rows<'_>, beginnings: Beginnings) -> Self {
        let (sequences, groups) = rows.numbered();
        let joined: Vec<Vec<u32>> = sequences.iter().map(Sequence::joined).collect();
        let packed = match (rows, beginnings) {
            (Rows::Alone(_), _) | (_, Beginnings::Apart) => Packed::new(&joined),
            _ => Packed::sharing(&joined, &groups),
        };
        let targets = Targets::new(&packed, &sequences);
        Self { packed, targets, dropout: None }
    }

    /// The same in a pass whose dropout draws its masks from `stream`, where there is one.
    #[must_use]
    pub fn dropping(self, stream: Option<DropoutStream>) -> Self {
        Self { dropout: stream, ..self }
    }

    /// What the masks of dropout are drawn from; without it nothing is dropped.
    pub fn dropout(&self) -> Option<DropoutStream> {
        self.dropout
    }

    /// The same batch with logprobs taken among `supports_m`, one of each token that counts; over all ids where there are
    /// none.
    ///
    /// # Panics
    /// When there are more or fewer.
    pub fn among(mut self, supports_m: Vec<Support>) -> Self {
        assert!(supports_m.is_empty() || supports_m.len() == self.targets.len(), "one support per token that counts");
        self.targets.supports_m = supports_m;
        self
    }

    /// The tokens and what they see.
    pub fn packed(&self) -> &Packed {
        &self.packed
    }

    /// The tokens that count.
    pub fn targets(&self) -> &Targets {
        &self.targets
    }

    /// How many tokens of each sequence count, `[B]`.
    pub fn counts_b(&self) -> &[usize] {
        &self.targets.counts_b
    }

    /// How many tokens are computed, `N`; shared ones count once.
    pub fn tokens(&self) -> usize {
        self.packed.tokens()
    }

    /// Where each sequence ends, `[B]`: where a scalar reward is read.
    pub fn last_indices(&self) -> Vec<usize> {
        self.packed.last_indices()
    }
}

/// Which tokens of a batch are predicted, and from where, sequence after sequence.
///
/// The token at packed index `i` is predicted by the hidden state of the token before it in the same sequence; the first
/// token of a sequence is never a target.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Targets {
    /// Packed indices of the hidden states, `[M]`.
    pub positions: Vec<usize>,
    /// The ids they predict, `[M]`.
    pub ids: Vec<u32>,
    /// How many targets each sequence has, `[B]`; they sum to `M`.
    pub counts_b: Vec<usize>,
    /// What each of them could have been, `[M]`, where logprobs are taken among these alone; empty for all ids.
    pub supports_m: Vec<Support>,
}

impl Targets {
    fn new(packed: &Packed, sequences: &[Sequence<'_>]) -> Self {
        let mut targets = Self::default();
        for (i, sequence) in sequences.iter().enumerate() {
            let before = targets.ids.len();
            for t in sequence.predicted() {
                targets.positions.push(packed.index(i, t - 1));
                targets.ids.push(packed.ids()[packed.index(i, t)]);
            }
            targets.counts_b.push(targets.ids.len() - before);
        }
        targets
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

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(rows: &Rows<'_>) -> Batch {
        Batch::joined(rows, Beginnings::Shared)
    }

    #[test]
    fn the_completions_of_a_group_share_their_prompt() {
        let group = [&[3][..], &[4, 5]].map(|target| Sequence::completion(&[1, 2], target));
        let rows = Rows::Groups(vec![group.to_vec(), vec![Sequence::completion(&[1, 2], &[6])]]);
        let batch = joined(&rows);
        assert_eq!(batch.packed().ids(), [1, 2, 3, 4, 5, 1, 2, 6]);
        let Targets { positions, ids, counts_b, .. } = batch.targets();
        assert_eq!((&positions[..], &ids[..], &counts_b[..]), (&[1, 1, 3, 6][..], &[3, 4, 5, 6][..], &[1, 2, 1][..]));
        assert_eq!(batch.last_indices(), [2, 4, 7]);
        assert_eq!((rows.tokens(), rows.targets(), rows.computed()), (10, 4, 8));
        let apart = Batch::joined(&rows, Beginnings::Apart);
        assert_eq!(apart.packed().ids(), [1, 2, 3, 1, 2, 4, 5, 1, 2, 6]);
        assert_eq!(apart.targets().ids, *ids);
    }

    #[test]
    fn the_first_of_all_pairs_come_before_the_second_of_all() {
        let pair = |prompt: &'static [u32], chosen: &'static [u32], rejected: &'static [u32]| {
            [chosen, rejected].map(|target| Sequence::completion(prompt, target))
        };
        let rows = Rows::Pairs(vec![pair(&[1], &[2, 3], &[2, 4]), pair(&[5], &[6], &[7])]);
        let batch = joined(&rows);
        // Both answers to the first prompt begin with 2: more than the prompt is shared.
        assert_eq!(batch.packed().ids(), [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!((&batch.targets().ids[..], batch.counts_b()), (&[2, 3, 6, 2, 4, 7][..], &[2, 1, 2, 1][..]));
        assert_eq!(batch.targets().positions, [0, 1, 4, 0, 1, 4]);
        assert_eq!((rows.tokens(), rows.targets(), rows.computed()), (10, 6, 7));
    }

    #[test]
    fn a_mask_leaves_out_the_middle_and_nothing_stands_before_the_first() {
        let mask = [true, false, false, true];
        let sequence = Sequence { counted: Counted::Mask(&mask), ..Sequence::completion(&[1], &[2, 3, 4, 5]) };
        let rows = Rows::Alone(vec![sequence, Sequence::text(&[1, 2, 3]), Sequence::scored(&[1, 2])]);
        let targets = joined(&rows).targets;
        assert_eq!((targets.positions, targets.ids), (vec![0, 3, 5, 6], vec![2, 5, 2, 3]));
        assert_eq!(targets.counts_b, [2, 2, 0]);
        assert_eq!((rows.targets(), rows.computed()), (4, 10));
    }
}
