//! Edits of one pair: tercom's greedy search over shifts of runs of words. Each shift costs as much as one edit.

/// Longest run that is shifted.
const RUN_MAX: usize = 10;
/// Maximum distance over which a run is shifted.
const DISTANCE_MAX: usize = 50;
/// Half the width of the band around the diagonal in which edit distances are computed.
const BAND: usize = 25;
/// Maximum number of shifts tried per pair.
const SHIFTS_MAX: usize = 1000;
/// Larger than any number of edits, and far from overflow.
const INFINITY: u32 = u32::MAX / 2;

/// Returns the number of edits that turn the prediction into the reference.
pub fn edits(prediction: &[u32], reference: &[u32]) -> usize {
    if reference.is_empty() {
        return prediction.len();
    }
    let mut search = Search { reference, table: EditTable::new(prediction.len(), reference.len()), tried: 0 };
    let mut words = prediction.to_vec();
    let mut shifts = 0;
    while let Some(better) = search.best_shift(&words) {
        words = better;
        shifts += 1;
    }
    shifts + search.table.distance(&words, reference) as usize
}

struct Search<'a> {
    reference: &'a [u32],
    table: EditTable,
    tried: usize,
}

/// A shift, ordered by tercom's preferences: most edits saved, longest, earliest, to the earliest place.
type Shift = (i64, usize, std::cmp::Reverse<usize>, std::cmp::Reverse<usize>);

impl Search<'_> {
    /// Returns the words after the best shift. `None` if no shift saves edits or too many shifts were tried.
    fn best_shift(&mut self, words: &[u32]) -> Option<Vec<u32>> {
        let before = self.table.distance(words, self.reference);
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
                    // Before the position of the run, and after each of its words.
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
                        // Words before both positions have not moved, so their rows of the table are unchanged.
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

/// Moves the run of `length` words at `start` in front of the word `to`. A target within the run counts from its start.
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

/// Type of an edit, from the prediction to the reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Edit {
    Keep,
    Substitute,
    Insert,
    Delete,
}

/// Alignment of the words of prediction and reference.
struct Alignment {
    /// Position in the prediction of each word of the reference; −1 before the first word.
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

    /// Returns whether the run is wrong in the prediction, missing in the reference, and not shifted within itself.
    fn is_worth_trying(&self, start: usize, at: usize, length: usize) -> bool {
        let place = self.places[at];
        self.prediction_wrong[start..start + length].contains(&true)
            && self.reference_wrong[at..at + length].contains(&true)
            && !(start as isize <= place && place < (start + length) as isize)
    }
}

/// Edit distances between prefixes of the prediction and of the reference, within a band around the diagonal. Memory and time therefore
/// grow with the length of the texts, not with its square.
struct EditTable {
    /// Rows of the words that are shifted, from the second row on, with `stride` cells each.
    costs: Vec<u32>,
    /// Edit that leads to each of these cells.
    edits: Vec<Edit>,
    /// First row: one insertion per word of the reference.
    first: Vec<u32>,
    /// Rows for a tried shift.
    above: Vec<u32>,
    row: Vec<u32>,
    rows: usize,
    width: usize,
    stride: usize,
    ratio: f64,
    band: usize,
}

/// The computed cells of a row. All other cells cost infinitely much.
#[derive(Clone, Copy)]
struct Cells<'a> {
    start: usize,
    costs: &'a [u32],
}

impl Cells<'_> {
    fn get(&self, j: usize) -> u32 {
        j.checked_sub(self.start).and_then(|i| self.costs.get(i)).copied().unwrap_or(INFINITY)
    }
}

impl EditTable {
    fn new(prediction: usize, reference: usize) -> Self {
        let width = reference + 1;
        let ratio = if prediction > 0 { reference as f64 / prediction as f64 } else { 1.0 };
        // If one text is far longer, the bands of neighboring rows must still overlap.
        let is_wide = (BAND as f64) < ratio / 2.0;
        let band = if is_wide { (ratio / 2.0 + BAND as f64).ceil() as usize } else { BAND };
        // The last row reaches the last column, which rounding may put one column further from the diagonal.
        let stride = width.min(2 * band + 2);
        let cells = prediction * stride;
        Self {
            costs: vec![INFINITY; cells],
            edits: vec![Edit::Insert; cells],
            first: (0..width as u32).collect(),
            above: Vec::with_capacity(stride),
            row: Vec::with_capacity(stride),
            rows: prediction,
            width,
            stride,
            ratio,
            band,
        }
    }

    /// Returns the computed columns of row `i`. The last row reaches the last column.
    fn columns(&self, i: usize) -> std::ops::Range<usize> {
        if i == 0 {
            return 0..self.width;
        }
        let diagonal = (i as f64 * self.ratio).floor() as usize;
        let end = if i == self.rows { self.width } else { self.width.min(diagonal + self.band) };
        diagonal.saturating_sub(self.band)..end
    }

    /// Returns the stored row `i`.
    fn kept(&self, i: usize) -> Cells<'_> {
        let columns = self.columns(i);
        let costs = match i {
            0 => &self.first,
            _ => &self.costs[(i - 1) * self.stride..][..columns.len()],
        };
        Cells { start: columns.start, costs }
    }

    /// Computes the distance of `words` and stores all rows.
    fn distance(&mut self, words: &[u32], reference: &[u32]) -> u32 {
        let mut row = std::mem::take(&mut self.row);
        for i in 1..=words.len() {
            let columns = self.columns(i);
            let (above, at) = (self.kept(i - 1), (i - 1) * self.stride);
            row.clear();
            let mut edits = Vec::with_capacity(columns.len());
            for j in columns {
                let (cost, edit) = cell(words[i - 1], reference, above, row.last().copied(), j);
                row.push(cost);
                edits.push(edit);
            }
            self.costs[at..at + row.len()].copy_from_slice(&row);
            self.edits[at..at + row.len()].copy_from_slice(&edits);
        }
        self.row = row;
        self.kept(words.len()).get(self.width - 1)
    }

    /// Computes the distance of words whose first `known` words are those of the table. The table does not change.
    fn distance_after(&mut self, words: &[u32], reference: &[u32], known: usize) -> u32 {
        let (mut above, mut row) = (std::mem::take(&mut self.above), std::mem::take(&mut self.row));
        for i in known + 1..=words.len() {
            row.clear();
            let of = match i - 1 {
                kept if kept == known => self.kept(known),
                computed => Cells { start: self.columns(computed).start, costs: &above },
            };
            for j in self.columns(i) {
                row.push(cell(words[i - 1], reference, of, row.last().copied(), j).0);
            }
            std::mem::swap(&mut above, &mut row);
        }
        let start = self.columns(words.len()).start;
        let distance = match words.len() {
            kept if kept == known => self.kept(known).get(self.width - 1),
            _ => Cells { start, costs: &above }.get(self.width - 1),
        };
        (self.above, self.row) = (above, row);
        distance
    }

    /// Returns the edits of the last call of [`Self::distance`], from the beginning.
    fn path(&self, mut i: usize, mut j: usize) -> Vec<Edit> {
        let mut path = Vec::with_capacity(i.max(j));
        while i > 0 || j > 0 {
            let edit = match i {
                0 => Edit::Insert,
                _ => self.edits[(i - 1) * self.stride + j - self.columns(i).start],
            };
            path.push(edit);
            i -= usize::from(edit != Edit::Insert);
            j -= usize::from(edit != Edit::Delete);
        }
        path.reverse();
        path
    }
}

/// Computes a cell of the table. Keeping or substituting is preferred to deleting, and deleting to inserting. `before` is the cell to its
/// left.
fn cell(word: u32, reference: &[u32], above: Cells<'_>, before: Option<u32>, j: usize) -> (u32, Edit) {
    if j == 0 {
        return (above.get(0) + 1, Edit::Delete);
    }
    let diagonal = above.get(j - 1);
    let mut best = if word == reference[j - 1] { (diagonal, Edit::Keep) } else { (diagonal + 1, Edit::Substitute) };
    if above.get(j) + 1 < best.0 {
        best = (above.get(j) + 1, Edit::Delete);
    }
    let before = before.unwrap_or(INFINITY);
    if before + 1 < best.0 {
        best = (before + 1, Edit::Insert);
    }
    best
}
