//! Quality of predicted labels: a confusion matrix and the scores that follow from it.

/// Confusion matrix: counts of texts or tokens by true and predicted label, `[K, K]`, one row per true label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confusion {
    labels: usize,
    counts_kk: Vec<usize>,
}

/// Scores of one label.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClassScore {
    /// Share of the predictions of this label that are right; 0 if it was never predicted.
    pub precision: f64,
    /// Share of the items with this label that were predicted to have it; 0 if no item has it.
    pub recall: f64,
    /// Harmonic mean of precision and recall, `2 P R / (P + R)`; 0 if both are 0.
    pub f1: f64,
    /// Number of items that have the label.
    pub support: usize,
    /// Number of items that were predicted to have the label.
    pub found: usize,
}

impl Confusion {
    /// Creates an empty matrix for `labels` labels.
    pub fn new(labels: usize) -> Self {
        Self { labels, counts_kk: vec![0; labels * labels] }
    }

    /// Counts one item with the true label `expected` and the predicted label `found`.
    ///
    /// # Panics
    /// When a label is not below the number of labels.
    pub fn add(&mut self, expected: usize, found: usize) {
        assert!(expected < self.labels && found < self.labels, "a label is below their number");
        self.counts_kk[expected * self.labels + found] += 1;
    }

    /// Counts of the items with the true label `expected`, by predicted label.
    ///
    /// # Panics
    /// When the label is not below the number of labels.
    pub fn row(&self, expected: usize) -> &[usize] {
        &self.counts_kk[expected * self.labels..][..self.labels]
    }

    /// Number of counted items.
    pub fn total(&self) -> usize {
        self.counts_kk.iter().sum()
    }

    /// Share of items with the right label; 0 without items.
    pub fn accuracy(&self) -> f64 {
        share((0..self.labels).map(|label| self.row(label)[label]).sum(), self.total())
    }

    /// Scores of "any label but `negative`", and the accuracy of that binary decision. All labels other than `negative` are treated as one.
    ///
    /// # Panics
    /// When the label is not below the number of labels.
    pub fn detection(&self, negative: usize) -> (ClassScore, f64) {
        let sum = |expected: &dyn Fn(usize) -> bool, found: &dyn Fn(usize) -> bool| -> usize {
            let cells = (0..self.labels).flat_map(|w| (0..self.labels).map(move |f| (w, f)));
            cells.filter(|&(w, f)| expected(w) && found(f)).map(|(w, f)| self.row(w)[f]).sum()
        };
        let (is, any) = (|label: usize| label != negative, |_: usize| true);
        let right = sum(&is, &is);
        let class = ClassScore::new(right, sum(&any, &is), sum(&is, &any));
        (class, share(right + self.row(negative)[negative], self.total()))
    }

    /// Scores of each label.
    pub fn classes(&self) -> Vec<ClassScore> {
        let of_label = |label: usize| {
            let right = self.row(label)[label];
            let found = (0..self.labels).map(|expected| self.row(expected)[label]).sum();
            ClassScore::new(right, found, self.row(label).iter().sum())
        };
        (0..self.labels).map(of_label).collect()
    }
}

impl ClassScore {
    /// Computes the scores from the number of right predictions, of all predictions (`found`) and of items with the label (`support`).
    pub fn new(right: usize, found: usize, support: usize) -> Self {
        Self {
            precision: share(right, found),
            recall: share(right, support),
            // 2 · right / (found + support) equals the harmonic mean but does not divide by a term that may be 0.
            f1: share(2 * right, found + support),
            support,
            found,
        }
    }
}

/// Mean F1 of the labels that occur among the true or predicted labels, like scikit-learn's `f1_score(average="macro")`.
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
        // True 0: predicted 0, 0, 1. True 1: predicted 1. True 2: predicted 0, 2. No item has label 3.
        let mut counts = Confusion::new(4);
        for (expected, found) in [(0, 0), (0, 0), (0, 1), (1, 1), (2, 0), (2, 2)] {
            counts.add(expected, found);
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
        // Label 0: P 1, R ½, F1 ⅔. Label 1: F1 0.
        assert!((macro_f1(&counts.classes()) - 1.0 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn what_was_found_is_told_from_nothing() {
        // Label 2 is negative. True 0: predicted 0, 1, 2. True 2: predicted 2, 2, 0. No item has label 1.
        let mut counts = Confusion::new(3);
        for (expected, found) in [(0, 0), (0, 1), (0, 2), (2, 2), (2, 2), (2, 0)] {
            counts.add(expected, found);
        }
        let (class, accuracy) = counts.detection(2);
        // Label 1 instead of 0 counts as right: 2 of 3 predictions, 2 of 3 items with a label. 4 of all 6 are right.
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
