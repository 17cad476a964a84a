//! Matrix products over strided slices, in f32 or with operands rounded to bf16.
//!
//! Both operands are packed into words that a micro-kernel ([`tile`]) reads in order, as in Goto & van de Geijn 2008
//! (<https://doi.org/10.1145/1356052.1356053>). Panels of B stay in the first-level cache, blocks of rows of A in the second. A weight of
//! many products is packed once ([`PackedMatrix`]). If it is stored in fewer bits than tiles read, one panel of one stretch is expanded at
//! a time.
//!
//! The sum over the inner dimension has one fixed order, whatever the number of rows, the tile or the threads. So a token gets the same
//! bits alone, in a batch, in training and in sampling.

mod codes;
mod expand;
mod format;
mod pack;
mod packed;
mod tile;

use std::cell::Cell;
use std::ops::Range;
use std::thread::LocalKey;

use rayon::prelude::*;

pub use format::{Precision, Quantization, WeightFormat};

pub(crate) use packed::{COLUMNS_UNIT, Columns, PackedMatrix};
use tile::{COLUMNS, DEPTH, DEPTH_UNIT, Kernel, Lines, ROW_STRIDE, ROWS, Tile};

/// A matrix inside a slice: element `(r, c)` is `values[r · row_stride + c · column_stride]`. One of the strides is 1.
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
    /// If the last element is outside `values`.
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

    /// A range of rows of a row-major matrix.
    pub(crate) fn rows(self, rows: std::ops::Range<usize>) -> Self {
        assert!(rows.start < rows.end && rows.end <= self.rows && self.column_stride == 1, "rows outside the matrix");
        Self { values: &self.values[rows.start * self.row_stride..], rows: rows.len(), ..self }
    }

    /// The transpose, without a copy.
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

/// Number of threads of a product. It does not affect the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Threads {
    /// All threads of the pool, for one large product.
    All,
    /// The caller's thread, inside a task that is itself one of many.
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
    /// A product on all threads.
    pub(crate) const fn new(precision: Precision) -> Self {
        Self { precision, threads: Threads::All, scale: 1.0 }
    }

    /// A product on the caller's thread.
    pub(crate) const fn single(precision: Precision) -> Self {
        Self { precision, threads: Threads::One, scale: 1.0 }
    }

    /// Multiplies the result by `scale`.
    pub(crate) fn scaled(self, scale: f32) -> Self {
        Self { scale, ..self }
    }

    /// Returns a new dense result. Each row starts from `start` (a bias, one number per column) or from 0.
    ///
    /// # Panics
    /// If the inner dimensions differ, or `start` has another number of columns.
    pub(crate) fn fresh(self, start: Option<&[f32]>, a: Mat<'_>, b: Mat<'_>) -> Vec<f32> {
        let [values] =
            fresh(a, [(b.columns, start)], |[(output, start)]| self.run(output, StartFrom::Bias(start), a, b));
        values
    }

    /// Overwrites `output`, row-major with rows `stride` apart.
    ///
    /// # Panics
    /// If the inner dimensions differ, or the result does not fit into `output`.
    pub(crate) fn store(self, output: &mut [f32], stride: usize, a: Mat<'_>, b: Mat<'_>) {
        if a.columns == 0 {
            output.chunks_mut(stride.max(1)).take(a.rows).for_each(|row| row[..b.columns].fill(0.0));
        }
        self.run(Output::new(output, stride, a.rows, b.columns), StartFrom::Bias(&[]), a, b);
    }

    /// Adds the product to `output`.
    ///
    /// # Panics
    /// As [`store`](Self::store).
    pub(crate) fn add(self, output: &mut [f32], stride: usize, a: Mat<'_>, b: Mat<'_>) {
        self.run(Output::new(output, stride, a.rows, b.columns), StartFrom::Output, a, b);
    }

    fn run(self, output: Output, start_from: StartFrom<'_>, a: Mat<'_>, b: Mat<'_>) {
        assert_eq!(a.columns, b.rows, "inner dimensions");
        let Self { precision, threads, scale } = self;
        let task = Task::new(a, b.columns, precision.into(), output, scale, start_from);
        let threads = if task.work() < SMALL { Threads::One } else { threads };
        task.run(threads, |panel, depth, words| {
            pack::pack_panels(words, depth.len() * COLUMNS, &b, panel * COLUMNS, depth, precision);
        });
    }
}

/// Multiply-adds that one thread does alone: some ten microseconds. Waking other threads would cost more than they save.
const SMALL: usize = 1 << 20;
/// Largest number of rows of A per thread.
const TASK_ROWS: usize = 16 * ROWS;
/// Words of A that one thread packs at a time. With the words of B and C that pass through, they fit into the second-level cache.
const TASK_WORDS: usize = 96 << 10;
/// Largest number of rows for which a product with a packed matrix packs all of A.
const FEW_ROWS: usize = 8 * ROWS;
/// Words of A that one thread packs while the others wait.
const ALONE_WORDS: usize = 64 << 10;
/// Words of B that are packed at a time. They fit into the last-level cache.
const BLOCK_WORDS: usize = 2 << 20;
/// Largest number of stretches per block. While a panel is multiplied with some rows, stretch after stretch, their results stay in the
/// first-level cache.
const BLOCK_STRETCHES: usize = 4;
/// Panels that one thread packs at a time. They are neighbors in memory.
const PANELS_PACKED: usize = 8;

/// Range of part `index` if `0..total` is divided into `count` parts whose sizes differ by at most one.
fn share(total: usize, count: usize, index: usize) -> Range<usize> {
    index * total / count..(index + 1) * total / count
}

thread_local! {
    /// Scratch memory for packed panels, reused between products.
    static PANELS: Cell<Vec<u32>> = const { Cell::new(Vec::new()) };
    /// Scratch memory for packed rows.
    static PACKED_ROWS: Cell<Vec<u32>> = const { Cell::new(Vec::new()) };
    /// Scratch memory for one stretch of an expanded panel.
    static EXPANDED: Cell<Vec<u32>> = const { Cell::new(Vec::new()) };
    /// Scratch memory for a stretch before it is transposed.
    static TURNED: Cell<Vec<u32>> = const { Cell::new(Vec::new()) };
}

/// Runs `run` on `words` words of unspecified content from `scratch`. A nested call gets memory of its own.
fn with_scratch<R>(scratch: &'static LocalKey<Cell<Vec<u32>>>, words: usize, run: impl FnOnce(&mut [u32]) -> R) -> R {
    let mut memory = scratch.take();
    if memory.len() < words {
        memory.resize(words, 0);
    }
    let result = run(&mut memory[..words]);
    scratch.set(memory);
    result
}

/// Returns new dense results with as many rows as `a`. `results` holds the number of columns and the start value of each. `run` receives
/// the outputs and must write them completely.
fn fresh<'s, const N: usize>(
    a: Mat<'_>,
    results: [(usize, Option<&'s [f32]>); N],
    run: impl FnOnce([(Output, &'s [f32]); N]),
) -> [Vec<f32>; N] {
    let results = results.map(|(columns, start)| (columns, start.unwrap_or(&[])));
    for (columns, start) in results {
        assert!(start.is_empty() || start.len() == columns, "one start a column");
    }
    if a.columns == 0 {
        return results.map(|(columns, start)| match start {
            [] => vec![0.0; a.rows * columns],
            start => start.repeat(a.rows),
        });
    }
    let mut all = results.map(|(columns, _)| Vec::with_capacity(a.rows * columns));
    let outputs = all.each_mut().map(|values| values.as_mut_ptr());
    run(std::array::from_fn(|i| (Output { start: outputs[i], stride: results[i].0 }, results[i].1)));
    for (values, (columns, _)) in all.iter_mut().zip(results) {
        // SAFETY: the capacity suffices, and the products have written every row and column.
        unsafe { values.set_len(a.rows * columns) };
    }
    all
}

/// Start value of the sums of a product.
#[derive(Debug, Clone, Copy)]
enum StartFrom<'a> {
    /// The current content of the output.
    Output,
    /// One number per column, or 0 if empty.
    Bias(&'a [f32]),
}

/// Destination of tiles. Each task writes rows or columns of its own.
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
    /// If `rows` rows of `columns` do not fit into `values`.
    fn new(values: &mut [f32], stride: usize, rows: usize, columns: usize) -> Self {
        assert!(columns <= stride || rows <= 1, "rows of the output overlap");
        assert!(rows == 0 || (rows - 1) * stride + columns <= values.len(), "output outside its slice");
        Self { start: values.as_mut_ptr(), stride }
    }
}

/// Source of the words of a panel.
#[derive(Clone, Copy)]
enum Words<'a> {
    /// Stored words, with panels `stride` words apart.
    Stored { words: &'a [u32], stride: usize },
    /// Words that are expanded from a packed matrix, one stretch of one panel at a time.
    Expanded { matrix: Columns<'a>, orientation: Orientation },
}

/// Which form of a packed matrix a product uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Orientation {
    AsStored,
    Transpose,
}

/// A product without the source of B.
#[derive(Clone, Copy)]
struct Task<'a> {
    a: Mat<'a>,
    lines: Lines,
    kernel: Kernel,
    /// Words of the inner dimension, and how many of them are summed before they are added to the result.
    inner: usize,
    stretch: usize,
    /// One scale per column of B, or none.
    scales: &'a [f32],
    output: Output,
    columns: usize,
    scale: f32,
    start_from: StartFrom<'a>,
}

impl<'a> Task<'a> {
    fn new(a: Mat<'a>, columns: usize, lines: Lines, output: Output, scale: f32, start_from: StartFrom<'a>) -> Self {
        let inner = a.columns.div_ceil(lines.operand().per_word());
        // At most `DEPTH`, and of similar size.
        let stretch = inner.div_ceil(inner.div_ceil(DEPTH).max(1)).next_multiple_of(DEPTH_UNIT);
        Self { a, lines, kernel: Kernel::best(), inner, stretch, scales: &[], output, columns, scale, start_from }
    }

    /// Number of multiply-adds.
    fn work(&self) -> usize {
        self.a.rows * self.a.columns * self.columns
    }

    fn panels(&self) -> usize {
        self.columns.div_ceil(COLUMNS)
    }

    /// Words of the inner dimension that are processed at a time.
    fn depth(&self) -> usize {
        self.inner.min(self.stretch * BLOCK_STRETCHES)
    }

    /// All words of the inner dimension, [`depth`](Self::depth) at a time.
    fn depths(&self) -> impl Iterator<Item = Range<usize>> {
        let (depth, inner) = (self.depth(), self.inner);
        (0..inner).step_by(depth.max(1)).map(move |from| from..(from + depth).min(inner))
    }

    /// Calls `run` for all panels in blocks that are small enough to stay in cache. Its arguments are the panels and the words of the inner
    /// dimension, in increasing order.
    fn blocks(&self, mut run: impl FnMut(Range<usize>, Range<usize>)) {
        let count = (self.panels() * self.depth() * COLUMNS).div_ceil(BLOCK_WORDS);
        for block in 0..count {
            self.depths().for_each(|depth| run(share(self.panels(), count, block), depth));
        }
    }

    fn block<'w>(&self, words: Words<'w>, panels: Range<usize>, depth: Range<usize>) -> PanelBlock<'w>
    where
        'a: 'w,
    {
        PanelBlock { task: *self, words, panels, depth }
    }

    /// Computes the whole product. `pack` writes panels of B: it receives the first panel, the words of the inner dimension, and the
    /// target, which may hold several panels. The part of B that stays in cache is packed first. Then each thread packs the rows that it
    /// multiplies with it.
    fn run(&self, threads: Threads, pack: impl Fn(usize, &Range<usize>, &mut [u32]) + Sync) {
        if self.a.rows == 0 {
            return;
        }
        self.blocks(|panels, depth| {
            let stride = depth.len() * COLUMNS;
            with_scratch(&PANELS, stride * panels.len(), |words| {
                let some = |(first, words): (usize, &mut [u32])| pack(first, &depth, words);
                match threads {
                    Threads::All => {
                        let shares = shares(panels.clone(), PANELS_PACKED).into_iter();
                        let panels = split(words, shares.map(|panels| (stride * panels.len(), panels.start)));
                        panels.into_par_iter().for_each(|(words, first)| some((first, words)));
                    }
                    Threads::One => {
                        let firsts = panels.clone().step_by(PANELS_PACKED);
                        firsts.zip(words.chunks_mut(stride * PANELS_PACKED)).for_each(some);
                    }
                }
                self.block(Words::Stored { words, stride }, panels.clone(), depth.clone()).run(threads);
            });
        });
    }
}

/// Divides `range` into shares of up to `most`, of similar size and equally many per thread.
fn shares(range: Range<usize>, most: usize) -> Vec<Range<usize>> {
    let count = range.len().div_ceil(most).next_multiple_of(rayon::current_num_threads()).min(range.len());
    let of = |i| share(range.len(), count, i);
    (0..count).map(|i| range.start + of(i).start..range.start + of(i).end).collect()
}

/// Splits the start of `words` into pieces of the given sizes, each with the value that comes with its size.
fn split<T>(mut words: &mut [u32], sizes: impl Iterator<Item = (usize, T)>) -> Vec<(&mut [u32], T)> {
    sizes.map(|(size, with)| (words.split_off_mut(..size).expect("memory for all pieces"), with)).collect()
}

/// Some panels of B and a range of the inner dimension.
struct PanelBlock<'a> {
    task: Task<'a>,
    /// Words from the first line of the first panel.
    words: Words<'a>,
    panels: Range<usize>,
    depth: Range<usize>,
}

impl PanelBlock<'_> {
    /// The stretches of the inner dimension that are summed at a time.
    fn stretches(&self) -> impl Iterator<Item = Range<usize>> {
        let (each, end) = (self.task.stretch, self.depth.end);
        self.depth.clone().step_by(each).map(move |from| from..(from + each).min(end))
    }

    /// Words of memory for `rows` packed rows.
    fn packed_size(&self, rows: usize) -> usize {
        self.depth.len().div_ceil(self.task.stretch) * rows * ROW_STRIDE
    }

    fn pack_rows(&self, threads: Threads, rows: &Range<usize>, packed: &mut [u32]) {
        let stretches = self.stretches().zip(packed.chunks_exact_mut(rows.len() * ROW_STRIDE));
        let pack = |(depth, packed): (Range<usize>, &mut [u32])| {
            pack::pack_rows(packed, &self.task.a, rows, &depth, self.task.lines.operand());
        };
        match threads {
            Threads::All => stretches.collect::<Vec<_>>().into_par_iter().for_each(pack),
            Threads::One => stretches.for_each(pack),
        }
    }

    /// Multiplies rows `rows`, packed in `packed`, with panels `panels`.
    fn multiply(&self, rows: &Range<usize>, packed: &[u32], panels: Range<usize>) {
        let width = self.task.lines.width();
        for panel in panels {
            for (depth, packed) in self.stretches().zip(packed.chunks_exact(rows.len() * ROW_STRIDE)) {
                let size = depth.len() * width;
                match self.words {
                    Words::Stored { words, stride } => {
                        let at = (panel - self.panels.start) * stride + (depth.start - self.depth.start) * width;
                        self.tiles(panel, &words[at..at + size], &depth, rows, packed);
                    }
                    Words::Expanded { matrix, orientation } => with_scratch(&EXPANDED, size, |words| {
                        matrix.expand(orientation, panel, &depth, words);
                        self.tiles(panel, words, &depth, rows, packed);
                    }),
                }
            }
        }
    }

    /// Multiplies rows `rows`, packed in `packed`, with the stretch `words` of panel `panel`.
    fn tiles(&self, panel: usize, words: &[u32], depth: &Range<usize>, rows: &Range<usize>, packed: &[u32]) {
        let Task { output, columns, scale, scales, start_from, kernel, lines, .. } = self.task;
        let column = panel * COLUMNS;
        let start_from = if depth.start > 0 { StartFrom::Output } else { start_from };
        let from_column = |values: &[f32]| if values.is_empty() { std::ptr::null() } else { values[column..].as_ptr() };
        for from in (0..rows.len()).step_by(ROWS) {
            let tile_rows = (rows.len() - from).min(ROWS);
            let a = &packed[from * ROW_STRIDE..(from + tile_rows) * ROW_STRIDE];
            let tile = Tile {
                a: a.as_ptr(),
                b: words.as_ptr(),
                c: output.start.wrapping_add((rows.start + from) * output.stride + column),
                c_stride: output.stride,
                depth: depth.len(),
                rows: tile_rows,
                columns: (columns - column).min(COLUMNS),
                scale,
                scales: from_column(scales),
                start: if let StartFrom::Bias(start) = start_from { from_column(start) } else { std::ptr::null() },
                add: matches!(start_from, StartFrom::Output),
            };
            // SAFETY: the slices above cover the operands, `Output::new` checked the result, and `Kernel::best` checked the CPU.
            unsafe { kernel.run(lines, tile) };
        }
    }

    /// Packs rows `rows` and multiplies them with panels `panels`.
    fn rows(&self, rows: Range<usize>, panels: Range<usize>) {
        with_scratch(&PACKED_ROWS, self.packed_size(rows.len()), |packed| {
            self.pack_rows(Threads::One, &rows, packed);
            self.multiply(&rows, packed, panels);
        });
    }

    /// Computes all rows, in parallel tasks if `threads` allows it.
    fn run(&self, threads: Threads) {
        let (m, panels) = (self.task.a.rows, self.panels.len());
        let tiles = m.div_ceil(ROWS);
        let most = (TASK_WORDS / self.depth.len()).clamp(ROWS, TASK_ROWS);
        let workers = if threads == Threads::One { 1 } else { rayon::current_num_threads() };
        // Parts of whole tiles, of similar size and equally many per thread.
        let at_least = if workers == 1 { 1 } else { 2 * workers };
        let row_tasks = m.div_ceil(most).max(at_least).next_multiple_of(workers).min(tiles);
        let panel_tasks = at_least.div_ceil(row_tasks).min(panels);
        let run = |task: usize| {
            let rows = share(tiles, row_tasks, task / panel_tasks);
            let panels = share(panels, panel_tasks, task % panel_tasks);
            let first = self.panels.start;
            self.rows(rows.start * ROWS..(rows.end * ROWS).min(m), first + panels.start..first + panels.end);
        };
        if workers == 1 {
            return (0..row_tasks * panel_tasks).for_each(run);
        }
        (0..row_tasks * panel_tasks).into_par_iter().for_each(run);
    }
}

/// Computes one full tile of zeros `times` times and returns the number of operations.
pub(crate) fn one_tile(precision: Precision, times: usize) -> usize {
    let (a, b) = (vec![0u32; ROWS * ROW_STRIDE], vec![0u32; DEPTH * COLUMNS]);
    let mut output = vec![0.0f32; ROWS * COLUMNS];
    let tile = Tile {
        a: a.as_ptr(),
        b: b.as_ptr(),
        c: output.as_mut_ptr(),
        c_stride: COLUMNS,
        depth: DEPTH,
        rows: ROWS,
        columns: COLUMNS,
        scale: 1.0,
        scales: std::ptr::null(),
        start: std::ptr::null(),
        add: true,
    };
    let kernel = Kernel::best();
    for _ in 0..times {
        // SAFETY: the vectors have these sizes, and `Kernel::best` checked the CPU.
        unsafe { kernel.run(precision.into(), tile) };
    }
    std::hint::black_box(&output);
    2 * times * ROWS * COLUMNS * DEPTH * precision.per_word()
}

#[cfg(test)]
mod tests;
