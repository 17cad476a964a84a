//! How right labels are: a count of every pair of a true and a found label, and what follows from it.

/// Counts of texts or tokens by true and found label: `[K, K]`, a row for every true label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confusion {
    labels: usize,
    counts_kk: Vec<usize>,
}

/// How right one label is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClassScore {
    /// Of those that were found to have it, the share that has it; 0 where none was found.
    pub precision: f64,
    /// Of those that have it, the share that was found; 0 where none has it.
    pub recall: f64,
    /// Their harmonic mean, `2 P R / (P + R)`; 0 where both are.
    pub f1: f64,
    /// How many have it.
    pub support: usize,
    /// How many were found to have it.
    pub found: usize,
}

impl Confusion {
    /// Of `labels` labels, before anything is counted.
    pub fn new(labels: usize) -> Self {
        Self { labels, counts_kk: vec![0; labels * labels] }
    }

    /// Counts one.
    ///
    /// # Panics
    /// When a label is not below their number.
    pub fn add(&mut self, wanted: usize, found: usize) {
        assert!(wanted < self.labels && found < self.labels, "a label is below their number");
        self.counts_kk[wanted * self.labels + found] += 1;
    }

    /// How many of the true label `wanted` were found to have each.
    pub fn row(&self, wanted: usize) -> &[usize] {
        &self.counts_kk[wanted * self.labels..][..self.labels]
    }

    /// All that were counted.
    pub fn total(&self) -> usize {
        self.counts_kk.iter().sum()
    }

    /// The share that was right; 0 of nothing.
    pub fn accuracy(&self) -> f64 {
        share((0..self.labels).map(|label| self.row(label)[label]).sum(), self.total())
    }

    /// How right "any label but `negative`" is, and how often that was right or wrong rightly: of the labels that say that something
    /// was found it does not matter which.
    pub fn detection(&self, negative: usize) -> (ClassScore, f64) {
        let sum = |wanted: &dyn Fn(usize) -> bool, found: &dyn Fn(usize) -> bool| -> usize {
            let cells = (0..self.labels).flat_map(|w| (0..self.labels).map(move |f| (w, f)));
            cells.filter(|&(w, f)| wanted(w) && found(f)).map(|(w, f)| self.row(w)[f]).sum()
        };
        let (is, any) = (|label: usize| label != negative, |_: usize| true);
        let right = sum(&is, &is);
        let class = ClassScore::new(right, sum(&any, &is), sum(&is, &any));
        (class, share(right + self.row(negative)[negative], self.total()))
    }

    /// How right each label is.
    pub fn classes(&self) -> Vec<ClassScore> {
        let of_label = |label: usize| {
            let right = self.row(label)[label];
            let found = (0..self.labels).map(|wanted| self.row(wanted)[label]).sum();
            ClassScore::new(right, found, self.row(label).iter().sum())
        };
        (0..self.labels).map(of_label).collect()
    }
}

impl ClassScore {
    /// Of `right` found rightly, `found` in all, and `support` that have the label.
    pub fn new(right: usize, found: usize, support: usize) -> Self {
        Self {
            precision: share(right, found),
            recall: share(right, support),
            // 2 · right / (found + support): the same, without dividing by what may be 0.
            f1: share(2 * right, found + support),
            support,
            found,
        }
    }
}

/// The mean F1 of the labels that any text has or was found to have, as scikit-learn's `f1_score(average="macro")`.
pub fn macro_f1(classes: &[ClassScore]) -> f64 {
    let seen: Vec<f64> = classes.iter().filter(|class| class.support + class.found > 0).map(|class| class.f1).collect();
    if seen.is_empty() { 0.0 } else { seen.iter().sum::<f64>() / seen.len() as f64 }
}

fn share(part: usize, all: usize) -> f64 {
    if all == 0 { 0.0 } else { part as f64 / all as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn precision_recall_and_f1_follow_from_the_counts() {
        // True 0: found 0, 0, 1. True 1: found 1. True 2: found 0, 2. Nothing has label 3.
        let mut counts = Confusion::new(4);
        for (wanted, found) in [(0, 0), (0, 0), (0, 1), (1, 1), (2, 0), (2, 2)] {
            counts.add(wanted, found);
        }
        assert_eq!((counts.row(0), counts.row(2), counts.total()), (&[2, 1, 0, 0][..], &[1, 0, 1, 0][..], 6));
        assert_eq!(counts.accuracy(), 4.0 / 6.0);
        let classes = counts.classes();
        let expected = [(2.0 / 3.0, 2.0 / 3.0, 3, 3), (0.5, 1.0, 1, 2), (1.0, 0.5, 2, 1)];
        for (class, (precision, recall, support, found)) in classes.iter().zip(expected) {
            assert_eq!(*class, ClassScore { precision, recall, f1: 2.0 / 3.0, support, found });
        }
        assert_eq!(classes[3], ClassScore { precision: 0.0, recall: 0.0, f1: 0.0, support: 0, found: 0 });
        assert!((macro_f1(&classes) - 2.0 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn a_label_that_nothing_has_lowers_the_mean_once_it_is_found() {
        let mut counts = Confusion::new(3);
        counts.add(0, 0);
        assert_eq!(macro_f1(&counts.classes()), 1.0);
        counts.add(0, 1);
        // Of label 0: P 1, R ½, F1 ⅔; of label 1: 0.
        assert!((macro_f1(&counts.classes()) - 1.0 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn what_was_found_is_told_from_nothing() {
        // Label 2 is negative. True 0: found 0, 1, 2. True 2: found 2, 2, 0. Nothing has label 1.
        let mut counts = Confusion::new(3);
        for (wanted, found) in [(0, 0), (0, 1), (0, 2), (2, 2), (2, 2), (2, 0)] {
            counts.add(wanted, found);
        }
        let (class, accuracy) = counts.detection(2);
        // Label 1 in place of 0 is as good: 2 of the 3 found, 2 of the 3 there; 4 of all 6 are right.
        assert_eq!((class.precision, class.recall, class.support, class.found), (2.0 / 3.0, 2.0 / 3.0, 3, 3));
        assert_eq!(accuracy, 4.0 / 6.0);
        assert_eq!(counts.classes()[2].f1, 2.0 * 2.0 / (3.0 + 3.0));
    }

    #[test]
    fn nothing_is_zero() {
        let counts = Confusion::new(2);
        assert_eq!((counts.accuracy(), macro_f1(&counts.classes())), (0.0, 0.0));
    }
}
