//! What a method hands over to a model: sequences of a source and a target, and who shares a beginning with whom.
//!
//! The model makes a [`Batch`] of them. A decoder-only model joins source and target and stores common beginnings once; a
//! model with an encoder packs each source of a group once, for all targets that read it. Nothing above the models
//! concatenates, groups or masks.

use gradus_kernels::CrossSegments;

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

    /// How many positions a model needs for it: for all ids; or where an encoder reads the source apart from what its
    /// decoder reads, for the longer of the two.
    pub fn positions(&self, separate: bool) -> usize {
        if separate { self.source.len().max(self.read_after_start()) } else { self.tokens() }
    }

    /// How many ids a decoder reads that writes the target, the id that it begins with included: the last id predicts
    /// nothing, and is read only where the sequence is scored as a whole.
    fn read_after_start(&self) -> usize {
        match self.counted {
            Counted::Nothing => self.target.len() + 1,
            Counted::All | Counted::Mask(_) => self.target.len().max(1),
        }
    }

    /// How many ids are predicted.
    pub fn targets(&self) -> usize {
        self.predicted().count()
    }

    /// The ids that are predicted, as positions in the target. The first of all has nothing before it.
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
        (0..target.len()).filter(counts).filter(move |t| source.len() + t > 0)
    }

    fn joined(&self) -> Vec<u32> {
        [self.source, self.target].concat()
    }

    /// What a decoder reads that predicts the target from `start` on.
    fn after(&self, start: u32) -> Vec<u32> {
        [&[start], &self.target[..self.read_after_start() - 1]].concat()
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

    /// All sequences: of pairs all first ones, then all second ones.
    pub fn sequences(&self) -> Vec<Sequence<'a>> {
        self.numbered().0
    }

    /// Ids of all sequences.
    pub fn tokens(&self) -> usize {
        self.numbered().0.iter().map(Sequence::tokens).sum()
    }

    /// The most positions that a sequence needs; see [`Sequence::positions`].
    pub fn positions(&self, separate: bool) -> usize {
        self.numbered().0.iter().map(|sequence| sequence.positions(separate)).max().unwrap_or(0)
    }

    /// Whether any is scored as a whole: a decoder then reads all of its target, behind the id that it begins with.
    pub fn are_scored(&self) -> bool {
        self.numbered().0.iter().any(|sequence| sequence.counted == Counted::Nothing)
    }

    /// Ids of all sequences that are predicted.
    pub fn targets(&self) -> usize {
        self.numbered().0.iter().map(Sequence::targets).sum()
    }

    /// Ids of all sources, each counted once in its group: what an encoder reads.
    pub fn sources(&self) -> usize {
        let (sequences, groups) = self.numbered();
        let of_group = |group: &Vec<usize>| -> usize {
            let is_first = |(at, i): &(usize, &usize)| {
                group[..*at].iter().all(|&earlier| sequences[earlier].source != sequences[**i].source)
            };
            group.iter().enumerate().filter(is_first).map(|(_, &i)| sequences[i].source.len()).sum()
        };
        groups.iter().map(of_group).sum()
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
    Separate,
}

/// Tokens as a model reads them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    /// What the decoder reads: in a model without an encoder, everything.
    pub packed: Packed,
    /// What the encoder reads, where there is one.
    pub sources: Option<Sources>,
}

/// What an encoder reads, and who reads what it makes of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sources {
    /// The sources, each whole.
    pub packed: Packed,
    /// Which of them each sequence of the decoder reads.
    pub cross: CrossSegments,
}

impl Input {
    /// Prompts, which a model without an encoder continues.
    ///
    /// # Panics
    /// When there is none, or one is empty.
    pub(super) fn prompts(prompts: &[&[u32]]) -> Self {
        Self { packed: Packed::new(prompts), sources: None }
    }

    /// Prompts that an encoder reads; a decoder begins with `start` for each.
    ///
    /// # Panics
    /// As [`prompts`](Self::prompts).
    pub(super) fn sources(prompts: &[&[u32]], start: u32) -> Self {
        let all = (0..prompts.len()).collect();
        Self::across(Packed::new(prompts.iter().map(|_| [start])), prompts, all)
    }

    /// Tree `t` of `packed` reads source `source_of[t]` of `sources`.
    fn across(packed: Packed, sources: &[&[u32]], source_of: Vec<usize>) -> Self {
        let sources = Packed::new(sources);
        let cross = CrossSegments::new(packed.segments().clone(), sources.segments().clone(), source_of);
        Self { packed, sources: Some(Sources { packed: sources, cross }) }
    }

    /// How many tokens are computed, by encoder and decoder together.
    pub fn tokens(&self) -> usize {
        self.packed.tokens() + self.sources.as_ref().map_or(0, |sources| sources.packed.tokens())
    }
}

/// Sequences as a model computes them in one forward pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    input: Input,
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
            (Rows::Alone(_), _) | (_, Beginnings::Separate) => Packed::new(&joined),
            _ => Packed::sharing(&joined, &groups),
        };
        let targets = Targets::new(&packed, &sequences, |sequence, t| sequence.source.len() + t);
        Self { input: Input { packed, sources: None }, targets, dropout: None }
    }

    /// Sources for an encoder, each of a group's once, and targets for a decoder that begins with `start` and predicts
    /// every id of them, the first from `start`.
    ///
    /// # Panics
    /// When there is no sequence, one has no source, or a mask has another length than its target.
    pub(super) fn across(rows: &Rows<'_>, start: u32) -> Self {
        let (sequences, groups) = rows.numbered();
        let (mut sources, mut readers): (Vec<&[u32]>, Vec<Vec<usize>>) = (Vec::new(), Vec::new());
        for group in groups {
            let first = sources.len();
            for i in group {
                let source = sequences[i].source;
                match sources[first..].iter().position(|known| *known == source) {
                    Some(known) => readers[first + known].push(i),
                    None => {
                        sources.push(source);
                        readers.push(vec![i]);
                    }
                }
            }
        }
        let read: Vec<Vec<u32>> = sequences.iter().map(|sequence| sequence.after(start)).collect();
        let packed = Packed::sharing(&read, &readers);
        let targets = Targets::new(&packed, &sequences, |_, t| t + 1);
        let source_of = (0..sources.len()).collect();
        Self { input: Input::across(packed, &sources, source_of), targets, dropout: None }
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
    pub fn with_supports(mut self, supports_m: Vec<Support>) -> Self {
        assert!(supports_m.is_empty() || supports_m.len() == self.targets.len(), "one support per token that counts");
        self.targets.supports_m = supports_m;
        self
    }

    /// What the model reads.
    pub fn input(&self) -> &Input {
        &self.input
    }

    /// The tokens of the decoder and what they see.
    pub fn packed(&self) -> &Packed {
        &self.input.packed
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
        self.input.tokens()
    }

    /// Where each sequence ends, `[B]`: where a scalar reward is read.
    pub fn last_indices(&self) -> Vec<usize> {
        self.input.packed.last_indices()
    }
}

/// Which tokens of a batch are predicted, and from where, sequence after sequence.
///
/// A token is predicted by the hidden state of the token before it in the same sequence; the first token of a sequence is
/// never a target, unless a decoder begins with a token of its own.
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
    /// `place` says where an id of a sequence's target stands among what the decoder reads of the sequence.
    fn new(packed: &Packed, sequences: &[Sequence<'_>], place: impl Fn(&Sequence<'_>, usize) -> usize) -> Self {
        let mut targets = Self::default();
        for (i, sequence) in sequences.iter().enumerate() {
            let before = targets.ids.len();
            for t in sequence.predicted() {
                targets.positions.push(packed.index(i, place(sequence, t) - 1));
                targets.ids.push(sequence.target[t]);
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
        let separate = Batch::joined(&rows, Beginnings::Separate);
        assert_eq!(separate.packed().ids(), [1, 2, 3, 1, 2, 4, 5, 1, 2, 6]);
        assert_eq!(separate.targets().ids, *ids);
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
    fn a_source_is_packed_once_for_all_of_its_group_that_read_it() {
        let across = |rows: &Rows<'_>| Batch::across(rows, 9);
        let group = [&[3][..], &[4, 5, 6], &[4, 5, 7]].map(|target| Sequence::completion(&[1, 2], target));
        let rows = Rows::Groups(vec![group.to_vec(), vec![Sequence::completion(&[1, 2], &[6])]]);
        let batch = across(&rows);
        let Sources { packed, cross } = batch.input().sources.as_ref().expect("sources");
        assert_eq!((packed.ids(), cross.tokens()), (&[1, 2, 1, 2][..], [6, 4]));
        // The start is shared; the last id of a target is not read.
        assert_eq!(batch.packed().ids(), [9, 4, 5, 4, 5, 9]);
        let Targets { positions, ids, counts_b, .. } = batch.targets();
        assert_eq!((&ids[..], &counts_b[..]), (&[3, 4, 5, 6, 4, 5, 7, 6][..], &[1, 3, 3, 1][..]));
        assert_eq!(positions, &[0, 0, 1, 2, 0, 3, 4, 5]);
        assert_eq!((batch.tokens(), rows.sources()), (10, 4));

        // Two sources in one group; what is scored as a whole is read to its end; an empty target predicts nothing.
        let scored = |source, target| Sequence { counted: Counted::Nothing, ..Sequence::completion(source, target) };
        let batch = across(&Rows::Pairs(vec![[scored(&[1], &[2]), scored(&[3], &[2, 4])]]));
        assert_eq!(batch.input().sources.as_ref().expect("sources").packed.ids(), [1, 3]);
        assert_eq!((batch.packed().ids(), batch.last_indices()), (&[9, 2, 9, 2, 4][..], vec![1, 4]));
        let batch = across(&Rows::Alone(vec![Sequence::completion(&[1], &[])]));
        assert_eq!((batch.packed().ids(), batch.counts_b()), (&[9][..], &[0][..]));
        let mask = [false, true];
        let masked = Sequence { counted: Counted::Mask(&mask), ..Sequence::completion(&[1], &[5, 6]) };
        let batch = across(&Rows::Alone(vec![masked]));
        assert_eq!((&batch.targets().positions[..], &batch.targets().ids[..]), (&[1][..], &[6][..]));
    }

    #[test]
    fn prompts_of_an_encoder_are_its_sources() {
        let input = Input::sources(&[&[1, 2], &[3]], 9);
        assert_eq!((input.packed.ids(), input.tokens()), (&[9, 9][..], 5));
        assert_eq!(input.sources.expect("sources").packed.ids(), [1, 2, 3]);
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
