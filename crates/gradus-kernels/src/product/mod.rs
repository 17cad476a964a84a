//! Matrix products over strided slices, in f32 or with operands rounded to bf16.
//!
//! Both operands are cut into words that a micro-kernel ([`tile`]) reads in order, as in Goto & van de Geijn 2008
//! (<https://doi.org/10.1145/1356052.1356053>): panels of B stay in the first-level cache, blocks of rows of A in the
//! second. A weight that meets many products is packed once ([`PackedMatrix`]); what it holds in fewer bits than tiles
//! read is expanded one panel of one stretch at a time.
//!
//! A result is the sum over the inner dimension in one fixed order, whatever the number of rows, the tile or the
//! threads: a token gets the same bits alone, in a batch, in training and in sampling.

mod expand;
mod pack;
mod packed;
mod tile;

use std::cell::Cell;
use std::ops::Range;
use std::thread::LocalKey;

use rayon::prelude::*;

pub use packed::Format;
pub(crate) use packed::PackedMatrix;
pub use tile::Precision;
use tile::{COLUMNS, DEPTH, Kernel, Lines, ROW_STRIDE, ROWS, Tile};

/// A matrix inside a slice: element `(r, c)` is `values[r · row_stride + c · column_stride]`, one stride being 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mat<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Mat<'a> {
    /// A row-major matrix with `row_stride` elements from one row to the next.
    ///
    /// # Panics
    /// When the last element lies outside `values`.
    pub(crate) fn strided(values: &'a [f32], rows: usize, columns: usize, row_stride: usize) -> Self {
        if rows > 0 && columns > 0 {
            assert!((rows - 1) * row_stride + columns <= values.len(), "matrix outside its slice");
        }
        Self { values, rows, columns, row_stride, column_stride: 1 }
    }

    /// A dense row-major matrix.
    pub(crate) fn dense(values: &'a [f32], rows: usize, columns: usize) -> Self {
        Self::strided(values, rows, columns, columns)
    }

    /// The transpose, without copying.
    pub(crate) fn t(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }
}

/// How many threads a product uses. The result does not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Threads {
    /// All of the pool: for one large product.
    All,
    /// The caller's: inside a task that is itself one of many.
    One,
}

/// `C = scale · A × B`, or `C += scale · A × B`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Product {
    precision: Precision,
    threads: Threads,
    scale: f32,
}

impl Product {
    /// On all threads.
    pub(crate) const fn new(precision: Precision) -> Self {
        Self { precision, threads: Threads::All, scale: 1.0 }
    }

    /// On the caller's thread.
    pub(crate) const fn single(precision: Precision) -> Self {
        Self { precision, threads: Threads::One, scale: 1.0 }
    }

    /// With the result multiplied by `scale`.
    pub(crate) fn scaled(self, scale: f32) -> Self {
        Self { scale, ..self }
    }

    /// A new dense result. Rows begin as `start` (a bias), one number a column, or as 0.
    ///
    /// # Panics
    /// When the inner dimensions differ, or `start` has another number of columns.
    pub(crate) fn fresh(self, start: Option<&[f32]>, a: Mat<'_>, b: Mat<'_>) -> Vec<f32> {
        fresh(a, b.columns, start, |output, start| self.run(output, Begin::At(start), a, b))
    }

    /// Overwrites `output`, row-major with rows `stride` apart.
    ///
    /// # Panics
    /// When the inner dimensions differ, or the result does not fit `output`.
    pub(crate) fn store(self, output: &mut [f32], stride: usize, a: Mat<'_>, b: Mat<'_>) {
        if a.columns == 0 {
            output.chunks_mut(stride.max(1)).take(a.rows).for_each(|row| row[..b.columns].fill(0.0));
        }
        self.run(Output::new(output, stride, a.rows, b.columns), Begin::At(&[]), a, b);
    }

    /// Adds to `output`.
    ///
    /// # Panics
    /// As [`store`](Self::store).
    pub(crate) fn add(self, output: &mut [f32], stride: usize, a: Mat<'_>, b: Mat<'_>) {
        self.run(Output::new(output, stride, a.rows, b.columns), Begin::There, a, b);
    }

    fn run(self, output: Output, begin: Begin<'_>, a: Mat<'_>, b: Mat<'_>) {
        assert_eq!(a.columns, b.rows, "inner dimensions");
        let Self { precision, threads, scale } = self;
        // Below this, waking the other threads costs more than they save.
        let is_small = a.rows * a.columns * b.columns < SMALL;
        let threads = if is_small { Threads::One } else { threads };
        let (panels, inner) = (b.columns.div_ceil(COLUMNS), a.columns.div_ceil(precision.per_word()));
        if a.rows == 0 || b.columns == 0 {
            return;
        }
        let pack = |panel: usize, depth: &Range<usize>, words: &mut [u32]| {
            pack::pack_panel(words, &b, panel * COLUMNS, depth, precision);
        };
        in_parts(threads, inner, panels, pack, |words, first, count, depth| {
            let begin = if depth.start > 0 { Begin::There } else { begin };
            let panels = Panels { words, scales: &[], first, count };
            let (kernel, lines) = (Kernel::best(), precision.into());
            Block { a, panels, depth, lines, kernel, output, columns: b.columns, scale, begin }.run(threads);
        });
    }
}

/// Has `pack` make the words of [`PANELS_AT_ONCE`] panels at a time, one stretch of the inner dimension after the other,
/// and hands them on: the words, the first panel, how many there are, the stretch.
fn in_parts(
    threads: Threads,
    inner: usize,
    panels: usize,
    pack: impl Fn(usize, &Range<usize>, &mut [u32]) + Sync,
    multiply: impl Fn(Words<'_>, usize, usize, Range<usize>),
) {
    let size = inner.min(DEPTH) * COLUMNS * panels.min(PANELS_AT_ONCE);
    with_scratch(&PANELS, size, |words| {
        for first in (0..panels).step_by(PANELS_AT_ONCE) {
            let count = (panels - first).min(PANELS_AT_ONCE);
            for depth in depths(inner) {
                let stride = depth.len() * COLUMNS;
                let words = &mut words[..stride * count];
                let pack_one = |(i, words): (usize, &mut [u32])| pack(first + i, &depth, words);
                match threads {
                    Threads::All => words.par_chunks_mut(stride).enumerate().for_each(pack_one),
                    Threads::One => words.chunks_mut(stride).enumerate().for_each(pack_one),
                }
                multiply(Words::Stored { words, stride }, first, count, depth);
            }
        }
    });
}

/// Multiply-adds of a product that one thread does alone: some ten microseconds.
const SMALL: usize = 1 << 20;
/// Rows of A that one task packs: their words fit the second-level cache.
const TASK_ROWS: usize = 16 * ROWS;
/// Rows up to which a product with a packed matrix packs all of A.
const FEW_ROWS: usize = 8 * ROWS;
/// Panels of B that are packed at a time.
const PANELS_AT_ONCE: usize = 64;

/// The inner dimension in parts of [`DEPTH`] words.
fn depths(inner: usize) -> impl Iterator<Item = Range<usize>> {
    (0..inner).step_by(DEPTH).map(move |from| from..(from + DEPTH).min(inner))
}

thread_local! {
    /// Memory for packed panels, kept from product to product.
    static PANELS: Cell<Vec<u32>> = const { Cell::new(Vec::new()) };
    /// Memory for packed rows.
    static PACKED_ROWS: Cell<Vec<u32>> = const { Cell::new(Vec::new()) };
    /// Memory for one stretch of an expanded panel.
    static EXPANDED: Cell<Vec<u32>> = const { Cell::new(Vec::new()) };
    /// Memory for what it is turned from.
    static TURNED: Cell<Vec<u32>> = const { Cell::new(Vec::new()) };
}

/// Runs `run` on `words` words of unspecified content from `scratch`; a nested call gets memory of its own.
fn with_scratch<R>(scratch: &'static LocalKey<Cell<Vec<u32>>>, words: usize, run: impl FnOnce(&mut [u32]) -> R) -> R {
    let mut memory = scratch.take();
    if memory.len() < words {
        memory.resize(words, 0);
    }
    let result = run(&mut memory[..words]);
    scratch.set(memory);
    result
}

/// A new dense result of `a.rows × columns`, which `run` writes whole: given the place, and what every row begins as.
fn fresh(a: Mat<'_>, columns: usize, start: Option<&[f32]>, run: impl FnOnce(Output, &[f32])) -> Vec<f32> {
    let start = start.unwrap_or(&[]);
    assert!(start.is_empty() || start.len() == columns, "one start a column");
    let size = a.rows * columns;
    if a.columns == 0 {
        return if start.is_empty() { vec![0.0; size] } else { start.repeat(a.rows) };
    }
    let mut values = Vec::with_capacity(size);
    run(Output { start: values.as_mut_ptr(), stride: columns }, start);
    // SAFETY: the capacity is there, and the products have written every row and column of it.
    unsafe { values.set_len(size) };
    values
}

/// What a product is added to.
#[derive(Debug, Clone, Copy)]
enum Begin<'a> {
    /// What lies in the output.
    There,
    /// One number for each column; none for 0.
    At(&'a [f32]),
}

/// Where tiles write; each task has rows or columns of its own.
#[derive(Clone, Copy)]
struct Output {
    start: *mut f32,
    stride: usize,
}

// SAFETY: tasks write to tiles that do not overlap, inside a slice that the product borrows mutably.
unsafe impl Send for Output {}
// SAFETY: as above.
unsafe impl Sync for Output {}

impl Output {
    /// # Panics
    /// When `rows` rows of `columns` do not fit `values`.
    fn new(values: &mut [f32], stride: usize, rows: usize, columns: usize) -> Self {
        assert!(columns <= stride || rows <= 1, "rows of the output overlap");
        assert!(rows == 0 || (rows - 1) * stride + columns <= values.len(), "output outside its slice");
        Self { start: values.as_mut_ptr(), stride }
    }
}

/// Where the words of a panel come from.
#[derive(Clone, Copy)]
enum Words<'a> {
    /// They lie there, panels `stride` words apart.
    Stored { words: &'a [u32], stride: usize },
    /// They are made of a packed matrix, one stretch of one panel at a time.
    Expanded { matrix: &'a PackedMatrix, side: Side },
}

/// Which matrix a product takes of the one that is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Itself,
    Transpose,
}

/// Panels of B.
#[derive(Clone, Copy)]
struct Panels<'a> {
    words: Words<'a>,
    /// One for every column of the matrix, or none.
    scales: &'a [f32],
    /// The number of the first.
    first: usize,
    count: usize,
}

/// The part of a product that lies within one stretch of the inner dimension.
#[derive(Clone)]
struct Block<'a> {
    a: Mat<'a>,
    panels: Panels<'a>,
    depth: Range<usize>,
    lines: Lines,
    kernel: Kernel,
    output: Output,
    columns: usize,
    scale: f32,
    begin: Begin<'a>,
}

impl Block<'_> {
    fn pack_rows(&self, rows: Range<usize>, packed: &mut [u32]) {
        pack::pack_rows(packed, &self.a, &rows, &self.depth, self.lines.operand());
    }

    /// Rows `rows`, packed in `packed`, times one panel (counted within the block).
    fn panel(&self, panel: usize, rows: Range<usize>, packed: &[u32]) {
        let (number, size) = (self.panels.first + panel, self.depth.len() * self.lines.width());
        match self.panels.words {
            Words::Stored { words, stride } => self.tiles(number, &words[panel * stride..][..size], rows, packed),
            Words::Expanded { matrix, side } => with_scratch(&EXPANDED, size, |words| {
                matrix.expand(side, number, &self.depth, words);
                self.tiles(number, words, rows, packed);
            }),
        }
    }

    /// Rows `rows`, packed in `packed`, times the stretch `words` of panel `panel` of the matrix.
    fn tiles(&self, panel: usize, words: &[u32], rows: Range<usize>, packed: &[u32]) {
        let column = panel * COLUMNS;
        let scales = match self.panels.scales {
            [] => std::ptr::null(),
            scales => scales[column..].as_ptr(),
        };
        for from in (0..rows.len()).step_by(ROWS) {
            let tile_rows = (rows.len() - from).min(ROWS);
            let a = &packed[from * ROW_STRIDE..(from + tile_rows) * ROW_STRIDE];
            let tile = Tile {
                a: a.as_ptr(),
                b: words.as_ptr(),
                c: self.output.start.wrapping_add((rows.start + from) * self.output.stride + column),
                c_stride: self.output.stride,
                depth: self.depth.len(),
                rows: tile_rows,
                columns: (self.columns - column).min(COLUMNS),
                scale: self.scale,
                scales,
                start: match self.begin {
                    Begin::At([]) | Begin::There => std::ptr::null(),
                    Begin::At(start) => start[column..].as_ptr(),
                },
                add: matches!(self.begin, Begin::There),
            };
            // SAFETY: the slices above cover the operands, `Output::new` checked the result, and `Kernel::best` asked
            // the processor.
            unsafe { self.kernel.run(self.lines, tile) };
        }
    }

    /// Packs rows `rows` and multiplies them with panels `panels`.
    fn part(&self, rows: Range<usize>, panels: Range<usize>) {
        with_scratch(&PACKED_ROWS, rows.len() * ROW_STRIDE, |packed| {
            self.pack_rows(rows.clone(), packed);
            panels.for_each(|panel| self.panel(panel, rows.clone(), packed));
        });
    }

    /// Everything, in tasks for the pool where `threads` says so.
    fn run(&self, threads: Threads) {
        let (m, panels) = (self.a.rows, self.panels.count);
        let workers = rayon::current_num_threads();
        if threads == Threads::One || workers == 1 {
            (0..m).step_by(TASK_ROWS).for_each(|from| self.part(from..(from + TASK_ROWS).min(m), 0..panels));
            return;
        }
        // Two tasks a thread at least, of whole tiles.
        let rows_each = m.div_ceil(2 * workers).next_multiple_of(ROWS).min(TASK_ROWS);
        let row_tasks = m.div_ceil(rows_each);
        let panels_each = panels.div_ceil((2 * workers).div_ceil(row_tasks)).max(1);
        let panel_tasks = panels.div_ceil(panels_each);
        (0..row_tasks * panel_tasks).into_par_iter().for_each(|task| {
            let (row, panel) = (task / panel_tasks * rows_each, task % panel_tasks * panels_each);
            self.part(row..(row + rows_each).min(m), panel..(panel + panels_each).min(panels));
        });
    }
}

#[cfg(test)]
mod tests;
