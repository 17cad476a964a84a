//! Texts to train on.

/// One text to train on.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Datum {
    /// Ids before the completion; at least one.
    pub prompt: Vec<u32>,
    /// Ids to train on.
    pub completion: Vec<u32>,
    /// One number per id of the completion: the weight of its log-probability in
    /// [`Loss::CrossEntropy`](super::Loss::CrossEntropy), its advantage in the other losses. An id with 0 carries no loss,
    /// except for the penalty of [`Loss::Dro`](super::Loss::Dro).
    pub weights: Vec<f32>,
    /// Log-probabilities of the completion under the policy that sampled it, at temperature 1, in nats; not used by
    /// [`Loss::CrossEntropy`](super::Loss::CrossEntropy). Those of [`Trainer::sample`](super::Trainer::sample) have the
    /// temperature of the sampling, unless [`untempered`](crate::generate::SamplingParams::untempered) is set.
    pub old_logprobs: Vec<f32>,
}

/// A text with targets at each id: candidates for the next id. Unlike in a [`Datum`], targets need not be the actual
/// next ids, and each id may have several. The targets of an id share its output layer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Targeted {
    /// Ids that the model reads.
    pub ids: Vec<u32>,
    /// Targets of the first id, then those of the second, and so on.
    pub targets: Vec<u32>,
    /// Number of targets of each id, which may be 0. If it is empty, all ids have the same number.
    pub counts: Vec<usize>,
    /// One number per target, as in a [`Datum`].
    pub weights: Vec<f32>,
    /// Log-probabilities of the targets under the policy that sampled them, at temperature 1, in nats; not used by
    /// [`Loss::CrossEntropy`](super::Loss::CrossEntropy).
    pub old_logprobs: Vec<f32>,
}

impl Targeted {
    /// Number of targets of each id.
    pub(super) fn counts(&self) -> impl Iterator<Item = usize> {
        let each = self.targets.len() / self.ids.len().max(1);
        (0..self.ids.len()).map(move |i| self.counts.get(i).copied().unwrap_or(each))
    }

    /// Splits a text into texts with at most `most` targets, or with more if one id has more. Their targets and numbers
    /// together are those of this text.
    ///
    /// # Panics
    /// If `counts` do not fit [`targets`](Self::targets).
    pub fn split(self, most: usize) -> Vec<Self> {
        if self.targets.len() <= most {
            return vec![self];
        }
        let counts: Vec<usize> = self.counts().collect();
        let (mut parts, mut from, mut first) = (Vec::new(), 0, 0);
        while first < self.targets.len() {
            assert!(from < counts.len(), "each target belongs to an id");
            let (mut to, mut last) = (from, first);
            while to < counts.len() && (last == first || last + counts[to] <= first + most) {
                last += counts[to];
                to += 1;
            }
            let of = |values: &[f32]| values.get(first..last).unwrap_or_default().to_vec();
            parts.push(Self {
                ids: self.ids[..to].to_vec(),
                targets: self.targets[first..last].to_vec(),
                counts: [&vec![0; from][..], &counts[from..to]].concat(),
                weights: of(&self.weights),
                old_logprobs: of(&self.old_logprobs),
            });
            (from, first) = (to, last);
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_with_many_targets_splits_between_its_ids() {
        let text = |ids: &[u32], targets: &[u32], counts: &[usize]| Targeted {
            ids: ids.to_vec(),
            targets: targets.to_vec(),
            counts: counts.to_vec(),
            weights: targets.iter().map(|&target| target as f32).collect(),
            old_logprobs: Vec::new(),
        };
        let even = text(&[1, 2, 3], &[11, 12, 21, 22, 31, 32], &[]);
        assert_eq!(even.clone().split(6), std::slice::from_ref(&even));
        let expected = [text(&[1, 2], &[11, 12, 21, 22], &[2, 2]), text(&[1, 2, 3], &[31, 32], &[0, 0, 2])];
        assert_eq!(even.split(5), expected);
        // The second id has more targets than one text may have, and the last id has none.
        let uneven = text(&[1, 2, 3, 4], &[11, 21, 22, 23, 31], &[1, 3, 1, 0]);
        let expected =
            [text(&[1], &[11], &[1]), text(&[1, 2], &[21, 22, 23], &[0, 3]), text(&[1, 2, 3, 4], &[31], &[0, 0, 1, 0])];
        assert_eq!(uneven.split(2), expected);
    }
}
