//! Input of a model: sequences of a source and a target, grouped by common beginnings.
//!
//! The model builds a [`Batch`] from them. A decoder-only model joins source and target and stores common beginnings once. A model with an
//! encoder packs each source of a group once, for all targets that read it. Code above the models never concatenates, groups or masks.

use burn::tensor::Tensor;
use gradus_kernels::CrossSegments;

use super::dropout::DropoutStream;
use super::noise::SequenceNoise;
use super::packed::{Packed, common_prefix};
use super::support::Support;

/// One sequence: a given part, the part that follows it, and the ids of the latter that count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sequence<'a> {
    /// Given ids: a prompt. Empty for plain text.
    pub source: &'a [u32],
    /// Ids that follow.
    pub target: &'a [u32],
    /// Ids of `target` that count.
    pub counted: Counted<'a>,
}

/// Ids of a target that count: they carry loss, and their logprobs are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted<'a> {
    /// All ids, except one without any id before it.
    All,
    /// No ids: the sequence is scored as a whole.
    Nothing,
    /// The ids at which the mask is true, one entry per id. For example, a tool's answer within a completion does not count.
    Mask(&'a [bool]),
}

impl<'a> Sequence<'a> {
    /// Creates a text that is predicted from its first id on.
    pub fn text(ids: &'a [u32]) -> Self {
        Self { source: &[], target: ids, counted: Counted::All }
    }

    /// Creates a text that is scored as a whole.
    pub fn scored(ids: &'a [u32]) -> Self {
        Self { counted: Counted::Nothing, ..Self::text(ids) }
    }

    /// Creates a prompt with its completion.
    pub fn completion(source: &'a [u32], target: &'a [u32]) -> Self {
        Self { source, target, counted: Counted::All }
    }

    /// Number of ids, source and target together.
    pub fn tokens(&self) -> usize {
        self.source.len() + self.target.len()
    }

    /// Number of positions that a model needs: the number of all ids. If a separate encoder reads the source, it is the longer of the two
    /// inputs.
    pub fn positions(&self, separate: bool) -> usize {
        if separate { self.source.len().max(self.read_after_start()) } else { self.tokens() }
    }

    /// Number of ids that a decoder reads to write the target, including its start id. The last id predicts nothing, so it is read only if
    /// the sequence is scored as a whole.
    fn read_after_start(&self) -> usize {
        match self.counted {
            Counted::Nothing => self.target.len() + 1,
            Counted::All | Counted::Mask(_) => self.target.len().max(1),
        }
    }

    /// Number of predicted ids.
    pub fn targets(&self) -> usize {
        self.predicted().count()
    }

    /// Positions of the predicted ids in the target. The very first id of a sequence has no id before it and is not predicted.
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

    /// Decoder input that predicts the target, beginning with `start`.
    fn after(&self, start: u32) -> Vec<u32> {
        [&[start], &self.target[..self.read_after_start() - 1]].concat()
    }
}

/// Sequences of a method. Their grouping declares which of them share a beginning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rows<'a> {
    /// No sequences share a beginning.
    Alone(Vec<Sequence<'a>>),
    /// The sequences of a group share their beginning: completions of one prompt. Sequences are numbered group after group.
    Groups(Vec<Vec<Sequence<'a>>>),
    /// The two sequences of a pair share their beginning. The first sequences of all pairs are numbered before the second ones.
    Pairs(Vec<[Sequence<'a>; 2]>),
}

impl<'a> Rows<'a> {
    /// Creates plain texts that are predicted from their first id on.
    pub fn texts<S: AsRef<[u32]>>(texts: &'a [S]) -> Self {
        Self::Alone(texts.iter().map(|ids| Sequence::text(ids.as_ref())).collect())
    }

    /// Creates plain texts that are scored as a whole.
    pub fn scored<S: AsRef<[u32]>>(texts: &'a [S]) -> Self {
        Self::Alone(texts.iter().map(|ids| Sequence::scored(ids.as_ref())).collect())
    }

    /// Returns all sequences by number, and the groups of numbers that share a beginning.
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

    /// All sequences; in pairs, all first ones, then all second ones.
    pub fn sequences(&self) -> Vec<Sequence<'a>> {
        self.numbered().0
    }

    /// Returns the same sequences with the same numbers, but none shares its beginning.
    #[must_use]
    pub fn apart(&self) -> Self {
        Self::Alone(self.sequences())
    }

    /// Returns the row of each sequence and its place within that row, `[B]`. A row is a text, a group or a pair.
    pub(super) fn places(&self) -> Vec<(usize, usize)> {
        let (sequences, groups) = self.numbered();
        let mut places_b = vec![(0, 0); sequences.len()];
        for (row, members) in groups.iter().enumerate() {
            members.iter().enumerate().for_each(|(part, &i)| places_b[i] = (row, part));
        }
        places_b
    }

    /// Number of ids of all sequences.
    pub fn tokens(&self) -> usize {
        self.numbered().0.iter().map(Sequence::tokens).sum()
    }

    /// Largest number of positions that a sequence needs; see [`Sequence::positions`].
    pub fn positions(&self, separate: bool) -> usize {
        self.numbered().0.iter().map(|sequence| sequence.positions(separate)).max().unwrap_or(0)
    }

    /// Whether any sequence is scored as a whole. A decoder then reads its start id and the whole target.
    pub fn are_scored(&self) -> bool {
        self.numbered().0.iter().any(|sequence| sequence.counted == Counted::Nothing)
    }

    /// Number of predicted ids of all sequences.
    pub fn targets(&self) -> usize {
        self.numbered().0.iter().map(Sequence::targets).sum()
    }

    /// Number of ids of all sources, each counted once per group: the encoder's input.
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

    /// Number of computed ids if common beginnings are stored once.
    pub fn computed(&self) -> usize {
        let (sequences, groups) = self.numbered();
        let again = |group: &Vec<usize>| {
            let members: Vec<Vec<u32>> = group.iter().map(|&i| sequences[i].joined()).collect();
            common_prefix(&members.iter().map(Vec::as_slice).collect::<Vec<_>>()) * (group.len() - 1)
        };
        self.tokens() - groups.iter().filter(|group| !group.is_empty()).map(again).sum::<usize>()
    }
}

/// Whether the states of a common beginning are the same in every sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Beginnings {
    /// They are the same and stored once.
    Shared,
    /// They depend on the rest of the sequence.
    Separate,
}

/// Tokens that a model reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    /// Input of the decoder. In a model without an encoder, the whole input.
    pub packed: Packed,
    /// Input of the encoder, if there is one.
    pub sources: Option<Sources>,
}

/// Input of an encoder, and its readers in the decoder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sources {
    /// Sources, without shared beginnings.
    pub packed: Packed,
    /// Source that each sequence of the decoder reads.
    pub cross: CrossSegments,
}

impl Input {
    /// Creates prompts that a model without an encoder continues.
    ///
    /// # Panics
    /// When there is no prompt, or one is empty.
    pub(super) fn prompts(prompts: &[&[u32]]) -> Self {
        Self { packed: Packed::new(prompts), sources: None }
    }

    /// Creates prompts for an encoder. The decoder begins with `start` for each.
    ///
    /// # Panics
    /// As [`prompts`](Self::prompts).
    pub(super) fn sources(prompts: &[&[u32]], start: u32) -> Self {
        let all = (0..prompts.len()).collect();
        Self::across(Packed::new(prompts.iter().map(|_| [start])), prompts, all)
    }

    /// Builds an input in which tree `t` of `packed` reads source `source_of[t]` of `sources`.
    fn across(packed: Packed, sources: &[&[u32]], source_of: Vec<usize>) -> Self {
        let sources = Packed::new(sources);
        let cross = CrossSegments::new(packed.segments().clone(), sources.segments().clone(), source_of);
        Self { packed, sources: Some(Sources { packed: sources, cross }) }
    }

    /// Number of computed tokens, encoder and decoder together.
    pub fn tokens(&self) -> usize {
        self.packed.tokens() + self.sources.as_ref().map_or(0, |sources| sources.packed.tokens())
    }
}

/// Sequences of one forward pass, as the model computes them.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    input: Input,
    targets: Targets,
    dropout: Option<DropoutStream>,
    noise: Option<SequenceNoise>,
}

impl Batch {
    /// Joins source and target of each sequence, for a decoder-only model.
    ///
    /// # Panics
    /// When there is no sequence, one has no ids, or a mask does not have the length of its target.
    pub(super) fn joined(rows: &Rows<'_>, beginnings: Beginnings) -> Self {
        let (sequences, groups) = rows.numbered();
        let joined: Vec<Vec<u32>> = sequences.iter().map(Sequence::joined).collect();
        let packed = match (rows, beginnings) {
            (Rows::Alone(_), _) | (_, Beginnings::Separate) => Packed::new(&joined),
            _ => Packed::sharing(&joined, &groups),
        };
        let targets = Targets::new(&packed, &sequences, |sequence, t| sequence.source.len() + t);
        Self { input: Input { packed, sources: None }, targets, dropout: None, noise: None }
    }

    /// Packs sources for an encoder, once per group, and targets for a decoder. The decoder begins with `start` and predicts every id of
    /// the targets.
    ///
    /// # Panics
    /// When there is no sequence, one has no source, or a mask does not have the length of its target.
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
        Self { input: Input::across(packed, &sources, source_of), targets, dropout: None, noise: None }
    }

    /// Sets the stream from which the dropout masks of the pass are drawn; `None` for no dropout.
    #[must_use]
    pub fn dropping(self, stream: Option<DropoutStream>) -> Self {
        Self { dropout: stream, ..self }
    }

    /// Stream of the dropout masks; `None` for no dropout.
    pub fn dropout(&self) -> Option<DropoutStream> {
        self.dropout
    }

    /// Adds noise to the embeddings of the pass. Its sequences must share no tokens.
    pub(super) fn noisy(self, noise: SequenceNoise) -> Self {
        Self { noise: Some(noise), ..self }
    }

    /// Adds the noise of the pass, if it has any, to the embeddings `x_nd` of the decoder, `[N, D]`.
    pub(super) fn add_noise(&self, x_nd: Tensor<2>) -> Tensor<2> {
        match &self.noise {
            Some(noise) => noise.added(x_nd, self.packed()),
            None => x_nd,
        }
    }

    /// Normalizes logprobs over `supports_m`, one support per counted token. Without supports, they are normalized over all ids.
    ///
    /// # Panics
    /// When the numbers differ.
    pub fn with_supports(mut self, supports_m: Vec<Support>) -> Self {
        assert!(supports_m.is_empty() || supports_m.len() == self.targets.len(), "one support per token that counts");
        self.targets.supports_m = supports_m;
        self
    }

    /// Input of the model.
    pub fn input(&self) -> &Input {
        &self.input
    }

    /// Tokens of the decoder and their attention structure.
    pub fn packed(&self) -> &Packed {
        &self.input.packed
    }

    /// Counted tokens.
    pub fn targets(&self) -> &Targets {
        &self.targets
    }

    /// Number of counted tokens of each sequence, `[B]`.
    pub fn counts_b(&self) -> &[usize] {
        &self.targets.counts_b
    }

    /// Number of computed tokens, `N`; shared ones count once.
    pub fn tokens(&self) -> usize {
        self.input.tokens()
    }

    /// Index of the last token of each sequence, `[B]`, where a scalar reward is read.
    pub fn last_indices(&self) -> Vec<usize> {
        self.input.packed.last_indices()
    }
}

/// Predicted tokens of a batch and the hidden states that predict them, sequence after sequence.
///
/// A token is predicted by the hidden state of the token before it in the same sequence. So the first token of a sequence is never a
/// target, unless the decoder has a start token.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Targets {
    /// Packed indices of the hidden states, `[M]`.
    pub positions: Vec<usize>,
    /// Predicted ids, `[M]`.
    pub ids: Vec<u32>,
    /// Number of targets of each sequence, `[B]`; they sum to `M`.
    pub counts_b: Vec<usize>,
    /// Support of each target, `[M]`, if logprobs are normalized over supports; empty for all ids.
    pub supports_m: Vec<Support>,
}

impl Targets {
    /// `place` maps an id of a sequence's target to its position in the decoder's input.
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

    /// Number of targets, `M`.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there are no targets.
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
        assert_eq!(rows.places(), [(0, 0), (0, 1), (1, 0)]);
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
        // Both answers to the first prompt begin with 2, so more than the prompt is shared.
        assert_eq!(batch.packed().ids(), [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!((&batch.targets().ids[..], batch.counts_b()), (&[2, 3, 6, 2, 4, 7][..], &[2, 1, 2, 1][..]));
        assert_eq!(batch.targets().positions, [0, 1, 4, 0, 1, 4]);
        assert_eq!((rows.tokens(), rows.targets(), rows.computed()), (10, 6, 7));
        assert_eq!(rows.places(), [(0, 0), (1, 0), (0, 1), (1, 1)]);
        let apart = joined(&rows.apart());
        assert_eq!(apart.packed().ids(), [1, 2, 3, 5, 6, 1, 2, 4, 5, 7]);
        assert_eq!(apart.targets().ids, batch.targets().ids);
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

        // Two sources in one group. A sequence that is scored as a whole is read to its end; an empty target predicts nothing.
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
