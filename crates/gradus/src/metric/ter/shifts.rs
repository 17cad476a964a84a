//! The edits of one pair: tercom's greedy search over shifts of runs of words, each costing as much as one edit.

/// The longest run that is shifted.
const RUN_MAX: usize = 10;
/// The furthest that a run is looked for.
const DISTANCE_MAX: usize = 50;
/// Half the width of the band around the diagonal in which edit distances are computed.
const BAND: usize = 25;
/// Shifts that are tried for a pair before the search ends.
const SHIFTS_MAX: usize = 1000;
/// More than any number of edits, and far from overflow.
const INFINITY: u32 = u32::MAX / 2;

/// How many edits make the reference of the prediction.
pub fn edits(prediction: &[u32], reference: &[u32]) -> usize {
    if reference.is_empty() {
        return prediction.len();
    }
    let mut search = Search { reference, table: Table::new(prediction.len(), reference.len()), tried: 0 };
    let mut words = prediction.to_vec();
    let mut shifts = 0;
    while let Some(better) = search.best_shift(&words) {
        words = better;
        shifts += 1;
    }
    shifts + search.table.distance(&words, reference, 0) as usize
}

struct Search<'a> {
    reference: &'a [u32],
    table: Table,
    tried: usize,
}

/// A shift, in the order in which tercom prefers them: most edits saved, longest, earliest, to the earliest place.
type Shift = (i64, usize, std::cmp::Reverse<usize>, std::cmp::Reverse<usize>);

impl Search<'_> {
    /// The words after the best shift, if one saves edits and there were not too many to try.
    fn best_shift(&mut self, words: &[u32]) -> Option<Vec<u32>> {
        let before = self.table.distance(words, self.reference, 0);
        let alignment = Alignment::of(&self.table.path(words.len(), self.reference.len()));
        let mut best: Option<Shift> = None;
        let mut shifted = Vec::with_capacity(words.len());
        'search: for start in 0..words.len() {
            let nearest = start.saturating_sub(DISTANCE_MAX);
            for at in nearest..self.reference.len().min(start + DISTANCE_MAX + 1) {
                let run =
                    words[start..].iter().zip(&self.reference[at..]).take(RUN_MAX).take_while(|(a, b)| a == b).count();
                for length in 1..=run {
                    if !alignment.is_worth_trying(start, at, length) {
                        continue;
                    }
                    let mut last = None;
                    // Before the run's place, and after each of its words.
                    for offset in 0..=length {
                        let to = match (at + offset).checked_sub(1) {
                            None => 0,
                            Some(place) => match alignment.places.get(place) {
                                Some(&place) => (place + 1) as usize,
                                None => break,
                            },
                        };
                        if last.replace(to) == Some(to) {
                            continue;
                        }
                        shift(words, start, length, to, &mut shifted);
                        // The words before both places have not moved, nor have their rows of the table.
                        let distance = self.table.distance_after(&shifted, self.reference, start.min(to));
                        let saved = i64::from(before) - i64::from(distance);
                        let found = (saved, length, std::cmp::Reverse(start), std::cmp::Reverse(to));
                        self.tried += 1;
                        best = best.max(Some(found));
                    }
                    if self.tried >= SHIFTS_MAX {
                        break 'search;
                    }
                }
            }
        }
        if self.tried >= SHIFTS_MAX {
            return None;
        }
        let (_, length, start, to) = best.filter(|(saved, ..)| *saved > 0)?;
        shift(words, start.0, length, to.0, &mut shifted);
        Some(shifted)
    }
}

/// Moves the run of `length` words from `start` before the word `to`; a target within the run counts from its start.
fn shift(words: &[u32], start: usize, length: usize, to: usize, out: &mut Vec<u32>) {
    let end = start + length;
    out.clear();
    if to < start {
        out.extend_from_slice(&words[..to]);
        out.extend_from_slice(&words[start..end]);
        out.extend_from_slice(&words[to..start]);
        out.extend_from_slice(&words[end..]);
    } else {
        let to = if to > end { to } else { (length + to).min(words.len()) };
        out.extend_from_slice(&words[..start]);
        out.extend_from_slice(&words[end..to]);
        out.extend_from_slice(&words[start..end]);
        out.extend_from_slice(&words[to..]);
    }
}

/// What an edit does, from the prediction to the reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Edit {
    Keep,
    Substitute,
    Insert,
    Delete,
}

/// Which words of prediction and reference stand opposite each other.
struct Alignment {
    /// For each word of the reference its place in the prediction; −1 before the first.
    places: Vec<isize>,
    reference_wrong: Vec<bool>,
    prediction_wrong: Vec<bool>,
}

impl Alignment {
    fn of(path: &[Edit]) -> Self {
        let mut made = Self { places: Vec::new(), reference_wrong: Vec::new(), prediction_wrong: Vec::new() };
        let mut place = -1;
        for &edit in path {
            let is_wrong = edit != Edit::Keep;
            if edit != Edit::Insert {
                place += 1;
                made.prediction_wrong.push(is_wrong);
            }
            if edit != Edit::Delete {
                made.places.push(place);
                made.reference_wrong.push(is_wrong);
            }
        }
        made
    }

    /// Whether the run is wrong in the prediction, missing in the reference, and not shifted within itself.
    fn is_worth_trying(&self, start: usize, at: usize, length: usize) -> bool {
        let place = self.places[at];
        self.prediction_wrong[start..start + length].contains(&true)
            && self.reference_wrong[at..at + length].contains(&true)
            && !(start as isize <= place && place < (start + length) as isize)
    }
}

/// Edit distances between beginnings of the prediction and of the reference, within a band around the diagonal.
struct Table {
    /// The rows of the words whose shifts are tried, with the edit that each cell is made by.
    costs: Vec<u32>,
    edits: Vec<Edit>,
    /// The rows of a shift.
    above: Vec<u32>,
    row: Vec<u32>,
    width: usize,
    ratio: f64,
    band: usize,
}

impl Table {
    fn new(prediction: usize, reference: usize) -> Self {
        let width = reference + 1;
        let ratio = if prediction > 0 { reference as f64 / prediction as f64 } else { 1.0 };
        // Where one text is far longer, the bands of neighbouring rows must still overlap.
        let is_wide = (BAND as f64) < ratio / 2.0;
        let band = if is_wide { (ratio / 2.0 + BAND as f64).ceil() as usize } else { BAND };
        let mut costs = vec![INFINITY; (prediction + 1) * width];
        costs[..width].iter_mut().zip(0..).for_each(|(cost, j)| *cost = j);
        let edits = vec![Edit::Insert; (prediction + 1) * width];
        Self { costs, edits, above: vec![0; width], row: vec![0; width], width, ratio, band }
    }

    /// The columns of row `i` that are computed, of `rows` rows; the last row reaches the end.
    fn columns(&self, i: usize, rows: usize) -> std::ops::Range<usize> {
        let diagonal = (i as f64 * self.ratio).floor() as usize;
        let end = if i == rows { self.width } else { self.width.min(diagonal + self.band) };
        diagonal.saturating_sub(self.band)..end
    }

    /// The distance of `words`, whose first `known` rows are in the table; keeps all rows.
    fn distance(&mut self, words: &[u32], reference: &[u32], known: usize) -> u32 {
        for i in known + 1..=words.len() {
            let columns = self.columns(i, words.len());
            let (above, row) = self.costs[(i - 1) * self.width..(i + 1) * self.width].split_at_mut(self.width);
            let edits = &mut self.edits[i * self.width..(i + 1) * self.width];
            row.fill(INFINITY);
            for j in columns {
                (row[j], edits[j]) = cell(words[i - 1], reference, above, row, j);
            }
        }
        self.costs[words.len() * self.width + self.width - 1]
    }

    /// The distance of words whose first `known` are those of the table, which stays as it is.
    fn distance_after(&mut self, words: &[u32], reference: &[u32], known: usize) -> u32 {
        self.above.copy_from_slice(&self.costs[known * self.width..][..self.width]);
        for i in known + 1..=words.len() {
            let columns = self.columns(i, words.len());
            self.row.fill(INFINITY);
            for j in columns {
                self.row[j] = cell(words[i - 1], reference, &self.above, &self.row, j).0;
            }
            std::mem::swap(&mut self.above, &mut self.row);
        }
        self.above[self.width - 1]
    }

    /// The edits of the last call of [`Self::distance`], from the beginning.
    fn path(&self, mut i: usize, mut j: usize) -> Vec<Edit> {
        let mut path = Vec::with_capacity(i.max(j));
        while i > 0 || j > 0 {
            let edit = self.edits[i * self.width + j];
            path.push(edit);
            i -= usize::from(edit != Edit::Insert);
            j -= usize::from(edit != Edit::Delete);
        }
        path.reverse();
        path
    }
}

/// A cell of the table: keeping or substituting is preferred to deleting, that to inserting.
fn cell(word: u32, reference: &[u32], above: &[u32], row: &[u32], j: usize) -> (u32, Edit) {
    if j == 0 {
        return (above[0] + 1, Edit::Delete);
    }
    let is_same = word == reference[j - 1];
    let mut best = if is_same { (above[j - 1], Edit::Keep) } else { (above[j - 1] + 1, Edit::Substitute) };
    if above[j] + 1 < best.0 {
        best = (above[j] + 1, Edit::Delete);
    }
    if row[j - 1] + 1 < best.0 {
        best = (row[j - 1] + 1, Edit::Insert);
    }
    best
}
