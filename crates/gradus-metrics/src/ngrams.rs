//! Words and n-grams as small integers, so that text is never compared or counted.

use std::collections::HashMap;

use rayon::prelude::*;

/// Numbers words in the order in which they first occur.
#[derive(Debug, Default)]
pub struct Words<'a> {
    ids: HashMap<&'a str, u32>,
}

impl<'a> Words<'a> {
    /// Returns the number of a word.
    pub fn id(&mut self, word: &'a str) -> u32 {
        let next = self.ids.len() as u32;
        *self.ids.entry(word).or_insert(next)
    }

    /// Returns the number of distinct words.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Returns the numbers of several words.
    pub fn ids(&mut self, words: impl IntoIterator<Item = &'a str>) -> Vec<u32> {
        words.into_iter().map(|word| self.id(word)).collect()
    }
}

/// Minimum number of n-grams that are sorted on all threads.
const PARALLEL: usize = 1 << 14;

/// The n-grams of several sequences, for one n after the other. They are named by numbers from 0; equal n-grams have equal names.
///
/// The name of an n-gram is derived from the name of its first n − 1 items and its last item. Each order therefore costs one sort, whatever
/// n is.
#[derive(Debug)]
pub struct Grams {
    /// Start of each sequence, then the end of the last one.
    starts: Vec<usize>,
    items: Vec<u32>,
    /// Name of the n-gram that begins at each position. Positions too near an end keep an old name.
    names: Vec<u32>,
    order: usize,
    /// Number of distinct names.
    kinds: usize,
    scratch: Vec<(u64, u32)>,
}

impl Grams {
    /// Creates the 1-grams of these sequences.
    pub fn new<S: AsRef<[u32]>>(sequences: impl IntoIterator<Item = S>) -> Self {
        let (mut starts, mut items) = (vec![0], Vec::new());
        for sequence in sequences {
            items.extend_from_slice(sequence.as_ref());
            starts.push(items.len());
        }
        let names = vec![0; items.len()];
        let mut grams = Self { starts, items, names, order: 0, kinds: 0, scratch: Vec::new() };
        grams.lengthen();
        grams
    }

    /// Extends n-grams to (n + 1)-grams.
    pub fn lengthen(&mut self) {
        self.order += 1;
        self.scratch.clear();
        for sequence in 0..self.starts.len() - 1 {
            for place in self.places(sequence) {
                let last = self.items[place + self.order - 1];
                self.scratch.push((u64::from(self.names[place]) << 32 | u64::from(last), place as u32));
            }
        }
        if self.scratch.len() < PARALLEL {
            self.scratch.sort_unstable();
        } else {
            self.scratch.par_sort_unstable();
        }
        let mut name = 0;
        for i in 0..self.scratch.len() {
            let (key, place) = self.scratch[i];
            name += u32::from(i > 0 && self.scratch[i - 1].0 != key);
            self.names[place as usize] = name;
        }
        self.kinds = if self.scratch.is_empty() { 0 } else { name as usize + 1 };
    }

    /// Returns the number of distinct names.
    pub fn kinds(&self) -> usize {
        self.kinds
    }

    /// Returns the n-grams of a sequence in order.
    pub fn names(&self, sequence: usize) -> &[u32] {
        &self.names[self.places(sequence)]
    }

    /// Counts in `counts` how often each name occurs in a sequence.
    pub fn count(&self, sequence: usize, counts: &mut Vec<u32>) {
        counts.clear();
        counts.resize(self.kinds, 0);
        for &name in self.names(sequence) {
            counts[name as usize] += 1;
        }
    }

    fn places(&self, sequence: usize) -> std::ops::Range<usize> {
        let (start, end) = (self.starts[sequence], self.starts[sequence + 1]);
        start..(end + 1).saturating_sub(self.order).max(start)
    }
}

/// `Σ min(a, b)`: the number of n-grams that two counts share.
pub fn shared(a: &[u32], b: &[u32]) -> u32 {
    a.iter().zip(b).map(|(a, b)| a.min(b)).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn words_are_numbered_as_they_come() {
        assert_eq!(Words::default().ids("a b a c".split(' ')), [0, 1, 0, 2]);
    }

    #[test]
    fn grams_longer_than_a_sequence_are_none() {
        let mut grams = Grams::new([vec![5, 5], vec![], vec![5, 7, 5]]);
        assert_eq!((grams.names(0), grams.names(1), grams.names(2)), (&[0, 0][..], &[][..], &[0, 1, 0][..]));
        grams.lengthen();
        assert_eq!((grams.names(0), grams.names(2)), (&[0][..], &[1, 2][..]));
        grams.lengthen();
        assert_eq!((grams.names(0), grams.names(1), grams.names(2)), (&[][..], &[][..], &[0][..]));
        let mut counts = vec![9; 9];
        grams.count(2, &mut counts);
        assert_eq!(counts, [1]);
    }

    proptest! {
        #[test]
        fn equal_windows_have_equal_names(
            sequences in prop::collection::vec(prop::collection::vec(0u32..4, 0..9), 1..4), order in 1usize..5,
        ) {
            let mut grams = Grams::new(&sequences);
            (1..order).for_each(|_| grams.lengthen());
            let mut found: Vec<(&[u32], u32)> = Vec::new();
            for (i, sequence) in sequences.iter().enumerate() {
                prop_assert_eq!(grams.names(i).len(), (sequence.len() + 1).saturating_sub(order));
                found.extend(sequence.windows(order).zip(grams.names(i).iter().copied()));
            }
            for a in &found {
                for b in &found {
                    prop_assert_eq!(a.0 == b.0, a.1 == b.1);
                }
            }
        }
    }
}
