//! The right-hand matrix of many products, packed once.

use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;

use super::format::{Precision, Quantization, WeightFormat};
use super::tile::{COLUMNS, DEPTH_UNIT, Lines};
use super::{
    ALONE_WORDS, FEW_ROWS, Mat, Orientation, Output, PACKED_ROWS, PANELS_PACKED, PanelBlock, SMALL, StartFrom, Task,
    Threads, Words,
};
use super::{codes, fresh, pack, shares, with_scratch};
use crate::parts::one_in_parts;
use crate::quantized::{Absmax, Int8, Nf4, Quantized};

/// The right-hand matrix of a product, packed once for many products. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct PackedMatrix {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) format: WeightFormat,
    pub(super) operand: Precision,
    /// Panel after panel, each with all lines of the inner dimension.
    pub(super) words: Arc<Vec<u32>>,
    pub(super) scaling: Arc<Scaling>,
}

/// Scales of the numbers.
#[derive(Debug)]
pub(super) enum Scaling {
    None,
    /// One scale per column and the largest magnitude from which it is computed, including the padding columns of the last panel.
    Columns {
        absmax: Vec<f32>,
        scales: Vec<f32>,
    },
    /// Values of the 16 codes, and the largest magnitude of each block of 64.
    Blocks {
        map: [f32; 16],
        absmax: Absmax,
    },
}

impl Scaling {
    fn columns(absmax: Vec<f32>) -> Self {
        let scales = absmax.iter().map(|largest| largest / 127.0).collect();
        Self::Columns { absmax, scales }
    }
}

impl PackedMatrix {
    /// Packs `b`.
    pub(crate) fn new(b: Mat<'_>, format: WeightFormat) -> Self {
        if format == WeightFormat::NF4 {
            return Self::from_nf4(Nf4::quantize(&by_column(&b), [b.columns, b.rows]));
        }
        let panel = format.panel_words(b.rows);
        let panels = b.columns.div_ceil(COLUMNS);
        let mut absmax = vec![0.0; if format == WeightFormat::INT8 { panels * COLUMNS } else { 0 }];
        let operand = format.operand();
        let inner = b.rows.div_ceil(operand.per_word());
        let (words, scaling) = if format == WeightFormat::INT8 {
            let mut words = vec![0u32; panel * panels];
            let pack = |((panel, words), absmax): ((usize, &mut [u32]), &mut [f32])| {
                pack::pack_bytes(words, absmax, &b, panel * COLUMNS);
            };
            let by_panel = words.par_chunks_mut(panel.max(1)).enumerate();
            by_panel.zip(absmax.par_chunks_mut(COLUMNS)).for_each(pack);
            (words, Scaling::columns(absmax))
        } else {
            let words = one_in_parts(panel * panels, panel * PANELS_PACKED, |i, words| {
                pack::pack_panels(words, panel, &b, i * PANELS_PACKED * COLUMNS, &(0..inner), operand);
            });
            (words, Scaling::None)
        };
        Self::of([b.rows, b.columns], format, words, scaling)
    }

    fn of([rows, columns]: [usize; 2], format: WeightFormat, words: Vec<u32>, scaling: Scaling) -> Self {
        Self { rows, columns, format, operand: format.operand(), words: Arc::new(words), scaling: Arc::new(scaling) }
    }

    /// Returns the matrix `[in, out]` of a quantized weight.
    pub(crate) fn from_quantized(weight: Quantized) -> Self {
        match weight {
            Quantized::Int8(weight) => Self::from_int8(&weight),
            Quantized::Nf4(weight) => Self::from_nf4(weight),
        }
    }

    fn from_int8(weight: &Int8) -> Self {
        let [columns, rows] = weight.shape();
        let words = codes::pack_bytes(weight.codes(), rows, columns);
        let mut absmax = weight.absmax().to_vec();
        absmax.resize(columns.next_multiple_of(COLUMNS), 0.0);
        Self::of([rows, columns], WeightFormat::INT8, words, Scaling::columns(absmax))
    }

    fn from_nf4(weight: Nf4) -> Self {
        let [columns, rows] = weight.shape();
        let words = codes::pack_codes(weight.codes(), rows, columns);
        let (_, map, absmax) = weight.into_parts();
        Self::of([rows, columns], WeightFormat::NF4, words, Scaling::Blocks { map, absmax })
    }

    /// Returns the codes and scales as they were given, or `None` for a matrix of floats.
    pub(crate) fn quantized(&self) -> Option<Quantized> {
        let shape = [self.columns, self.rows];
        match &*self.scaling {
            Scaling::None => None,
            Scaling::Columns { absmax, .. } => {
                let codes = codes::unpack_bytes(&self.words, self.rows, self.columns);
                let weight = Int8::new(shape, codes, absmax[..self.columns].to_vec());
                Some(Quantized::Int8(weight.expect("sizes that were checked")))
            }
            Scaling::Blocks { map, absmax } => {
                let codes = codes::unpack_codes(&self.words, self.rows, self.columns);
                let weight = Nf4::new(shape, codes, *map, absmax.clone());
                Some(Quantized::Nf4(weight.expect("sizes that were checked")))
            }
        }
    }

    /// Returns the same matrix for products with operands in `operand`, if the format leaves that open.
    pub(crate) fn with_operand(&self, operand: Precision) -> Self {
        match self.format {
            WeightFormat::Quantized(Quantization::Nf4) => Self { operand, ..self.clone() },
            WeightFormat::Float(_) | WeightFormat::Quantized(Quantization::Int8) => self.clone(),
        }
    }

    /// Inner dimension and columns.
    pub(crate) fn dims(&self) -> [usize; 2] {
        [self.rows, self.columns]
    }

    /// Storage format.
    pub(crate) fn format(&self) -> WeightFormat {
        self.format
    }

    /// Precision of the other operand.
    pub(crate) fn precision(&self) -> Precision {
        self.operand
    }

    /// Size in memory, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let scaling = match &*self.scaling {
            Scaling::None => 0,
            Scaling::Columns { absmax, scales } => size_of_val(&absmax[..]) + size_of_val(&scales[..]),
            Scaling::Blocks { map, absmax } => size_of_val(map) + absmax.bytes(),
        };
        size_of_val(&self.words[..]) + scaling
    }

    /// All columns.
    fn all(&self) -> Columns<'_> {
        Columns { matrix: self, first: 0, columns: self.columns }
    }

    /// Columns `range`, which must begin at a multiple of [`COLUMNS_UNIT`].
    ///
    /// # Panics
    /// If it begins elsewhere or ends outside the matrix.
    pub(crate) fn columns(&self, range: Range<usize>) -> Columns<'_> {
        assert!(range.start.is_multiple_of(COLUMNS_UNIT) && range.end <= self.columns, "columns {range:?}");
        Columns { matrix: self, first: range.start / COLUMNS, columns: range.len() }
    }

    /// Returns a new dense result `a × self`; see [`Product::fresh`](super::Product::fresh).
    ///
    /// # Panics
    /// As [`Product::fresh`](super::Product::fresh).
    pub(crate) fn fresh(&self, start: Option<&[f32]>, a: Mat<'_>) -> Vec<f32> {
        let [values] = Self::fresh_each([(self, start)], a);
        values
    }

    /// Like [`fresh`](Self::fresh) for several matrices, each with the start value of its result.
    ///
    /// # Panics
    /// As [`fresh`](Self::fresh).
    pub(crate) fn fresh_each<const N: usize>(matrices: [(&Self, Option<&[f32]>); N], a: Mat<'_>) -> [Vec<f32>; N] {
        let all = matrices.map(|(matrix, _)| matrix.all());
        fresh(a, matrices.map(|(matrix, start)| (matrix.columns, start)), |outputs| {
            let tasks = all.iter().zip(outputs).map(|(columns, (output, start))| {
                (columns, columns.task(Orientation::AsStored, output, StartFrom::Bias(start), 1.0, a))
            });
            Columns::run_each(Orientation::AsStored, &tasks.collect::<Vec<_>>());
        })
    }

    /// Returns a new dense result `a × selfᵀ`, with the decoded numbers in the precision of its operands. The result equals that of the
    /// fully unpacked matrix to the bit, but only a part is unpacked at a time.
    ///
    /// # Panics
    /// As [`fresh`](Self::fresh).
    pub(crate) fn fresh_transposed(&self, a: Mat<'_>) -> Vec<f32> {
        let all = self.all();
        let run = |[(output, start)]: [(Output, &[f32]); 1]| {
            all.run(Orientation::Transpose, output, StartFrom::Bias(start), 1.0, a)
        };
        let [values] = fresh(a, [(self.rows, None)], run);
        values
    }
}

/// Alignment of [`PackedMatrix::columns`]: whole panels, and whole parts of the transpose's inner dimension.
pub(crate) const COLUMNS_UNIT: usize = 2 * DEPTH_UNIT;

/// A range of columns of a packed matrix.
#[derive(Clone, Copy)]
pub(crate) struct Columns<'a> {
    pub(super) matrix: &'a PackedMatrix,
    /// Panel of the first column.
    pub(super) first: usize,
    pub(super) columns: usize,
}

impl Columns<'_> {
    /// Computes `output = scale · a × self` on all threads. Rows of `output` are `stride` apart.
    ///
    /// # Panics
    /// If the inner dimensions differ, or the result does not fit into `output`.
    pub(crate) fn multiply(&self, output: &mut [f32], stride: usize, scale: f32, a: Mat<'_>) {
        let output = Output::new(output, stride, a.rows, self.columns);
        self.run(Orientation::AsStored, output, StartFrom::Bias(&[]), scale, a);
    }

    /// Computes `output += scale · a × selfᵀ` on all threads.
    ///
    /// # Panics
    /// As [`multiply`](Self::multiply).
    pub(crate) fn add_transposed(&self, output: &mut [f32], stride: usize, scale: f32, a: Mat<'_>) {
        let output = Output::new(output, stride, a.rows, self.matrix.rows);
        self.run(Orientation::Transpose, output, StartFrom::Output, scale, a);
    }

    /// Inner dimension and columns of one side.
    fn dims_of(&self, orientation: Orientation) -> [usize; 2] {
        match orientation {
            Orientation::AsStored => [self.matrix.rows, self.columns],
            Orientation::Transpose => [self.columns, self.matrix.rows],
        }
    }

    /// Lines of a side that are read as stored, or `None` if they are expanded.
    fn stored(&self, orientation: Orientation) -> Option<Lines> {
        self.matrix.format.lines().filter(|_| orientation == Orientation::AsStored)
    }

    /// Describes the product `scale · a × orientation`.
    pub(super) fn task<'a>(
        &'a self,
        orientation: Orientation,
        output: Output,
        start_from: StartFrom<'a>,
        scale: f32,
        a: Mat<'a>,
    ) -> Task<'a> {
        let [rows, columns] = self.dims_of(orientation);
        assert_eq!(a.columns, rows, "inner dimensions");
        let scales: &[f32] = match &*self.matrix.scaling {
            Scaling::Columns { scales, .. } if self.stored(orientation).is_some() => &scales[self.first * COLUMNS..],
            _ => &[],
        };
        let lines = self.stored(orientation).unwrap_or(self.matrix.operand.into());
        Task { scales, ..Task::new(a, columns, lines, output, scale, start_from) }
    }

    /// Some panels and a range of the inner dimension of `task`.
    pub(super) fn block<'a>(
        &'a self,
        orientation: Orientation,
        task: Task<'a>,
        panels: Range<usize>,
        depth: Range<usize>,
    ) -> PanelBlock<'a> {
        let words = match self.stored(orientation) {
            Some(lines) => {
                let stride = self.matrix.format.panel_words(self.matrix.rows);
                let first = (self.first + panels.start) * stride + depth.start * lines.width();
                Words::Stored { words: &self.matrix.words[first..], stride }
            }
            None => Words::Expanded { matrix: *self, orientation },
        };
        PanelBlock { task, words, panels, depth }
    }

    fn run(&self, orientation: Orientation, output: Output, start_from: StartFrom<'_>, scale: f32, a: Mat<'_>) {
        Self::run_each(orientation, &[(self, self.task(orientation, output, start_from, scale, a))]);
    }

    /// Computes products of the same rows with `orientation` of several matrices.
    fn run_each<'t>(orientation: Orientation, tasks: &[(&'t Self, Task<'t>)]) {
        let is_few = tasks.iter().all(|(_, task)| task.a.rows <= FEW_ROWS);
        if is_few && tasks.windows(2).all(|two| two[0].1.lines.operand() == two[1].1.lines.operand()) {
            let tasks = tasks.iter().filter(|(_, task)| task.work() > 0);
            let blocks = tasks.map(|(matrix, task)| matrix.block(orientation, *task, 0..task.panels(), 0..task.inner));
            return run_few_rows(&blocks.collect::<Vec<_>>());
        }
        tasks.iter().for_each(|(matrix, task)| matrix.run_many_rows(orientation, *task));
    }

    fn run_many_rows(&self, orientation: Orientation, task: Task<'_>) {
        if task.work() == 0 {
            return;
        }
        if self.stored(orientation).is_some() {
            task.blocks(|panels, depth| self.block(orientation, task, panels, depth).run(Threads::All));
        } else {
            // Each stretch of a panel is expanded once for all rows.
            task.run(Threads::All, |first, depth, words| {
                let panels = words.chunks_exact_mut(depth.len() * COLUMNS);
                (first..).zip(panels).for_each(|(panel, words)| self.expand(orientation, panel, depth, words));
            });
        }
    }
}

/// Computes a product with few rows, which are the same in all blocks and packed once. The matrices are read once, panel after panel.
fn run_few_rows(blocks: &[PanelBlock<'_>]) {
    let Some(first) = blocks.first() else { return };
    let rows = 0..first.task.a.rows;
    with_scratch(&PACKED_ROWS, first.packed_size(rows.len()), |packed| {
        let threads = if packed.len() > ALONE_WORDS { Threads::All } else { Threads::One };
        first.pack_rows(threads, &rows, packed);
        if blocks.iter().map(|block| block.task.work()).sum::<usize>() < SMALL {
            return blocks.iter().for_each(|block| block.multiply(&rows, packed, block.panels.clone()));
        }
        let count: usize = blocks.iter().map(|block| block.panels.len()).sum();
        let each = count.div_ceil(2 * rayon::current_num_threads()).clamp(1, 64);
        let tasks =
            blocks.iter().flat_map(|block| shares(block.panels.clone(), each).into_iter().map(move |it| (block, it)));
        let tasks: Vec<_> = tasks.collect();
        tasks.into_par_iter().for_each(|(block, panels)| block.multiply(&rows, packed, panels));
    });
}

/// Returns the numbers of `b`, column after column.
fn by_column(b: &Mat<'_>) -> Vec<f32> {
    let mut values = vec![0.0; b.rows * b.columns];
    values.par_chunks_mut(b.rows.max(1)).enumerate().for_each(|(column, values)| {
        for (row, value) in values.iter_mut().enumerate() {
            *value = b.values[row * b.row_stride + column * b.column_stride];
        }
    });
    values
}
