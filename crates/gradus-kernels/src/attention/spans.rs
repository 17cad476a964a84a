//! Spans of keys and the queries that attend to them: the kernel's input for every kind of attention.

use std::ops::Range;

use super::Mask;
use crate::segments::{CrossSegments, Segments};

/// All spans of keys with the queries that read them.
#[derive(Debug, Clone)]
pub(super) struct KeySpans {
    /// Rows of queries.
    pub queries: usize,
    /// Rows of keys.
    pub keys: usize,
    pub list: Vec<KeySpan>,
}

/// Neighboring keys and all queries that read any of them. Together with one key/value head this is the unit of parallel work: no part of
/// its output or gradients is shared with another unit.
#[derive(Debug, Clone)]
pub(super) struct KeySpan {
    /// Rows of the keys.
    pub keys: Range<usize>,
    pub query_spans: Vec<QuerySpan>,
}

/// Neighboring queries of one sequence.
#[derive(Debug, Clone)]
pub(super) struct QuerySpan {
    /// Rows of the queries.
    pub queries: Range<usize>,
    /// Index of the first query among all queries of the span.
    pub at: usize,
    pub positions: Positions,
    pub mask: Mask,
    /// Keys of the sequence in order, counted from the start of the span: first its prefix, then its own.
    pub prefix: Range<usize>,
    pub own: Range<usize>,
    /// Copies of the sequence's global tokens, which are visible at any distance.
    pub global: Global,
}

/// Positions of queries in their sequence.
#[derive(Debug, Clone)]
pub(super) enum Positions {
    /// Consecutive positions, starting at this one.
    From(usize),
    /// Individual positions, in order.
    At(Vec<usize>),
}

/// Global tokens of one sequence.
#[derive(Debug, Clone, Default)]
pub(super) struct Global {
    /// Rows of the copies, counted from the start of the span: those of the prefix, then the sequence's own.
    pub copies: [Range<usize>; 2],
    /// Positions in the sequence, in order.
    pub positions: Vec<usize>,
}

impl QuerySpan {
    /// Number of tokens of the sequence.
    pub fn length(&self) -> usize {
        self.prefix.len() + self.own.len()
    }

    /// Position of query `i` in the sequence.
    pub fn position(&self, i: usize) -> usize {
        match &self.positions {
            Positions::From(first) => first + i,
            Positions::At(positions) => positions[i],
        }
    }
}

impl KeySpan {
    /// Number of queries.
    pub fn queries(&self) -> usize {
        self.query_spans.iter().map(|query_span| query_span.queries.len()).sum()
    }

    /// Rows of the queries in as few ranges as possible, each with its first index among all queries of the span.
    pub fn query_rows(&self) -> Vec<(Range<usize>, usize)> {
        let mut rows: Vec<(Range<usize>, usize)> = Vec::with_capacity(1);
        for QuerySpan { queries, at, .. } in self.query_spans.iter().filter(|query_span| !query_span.queries.is_empty())
        {
            match rows.last_mut() {
                Some((last, from)) if last.end == queries.start && *from + last.len() == *at => last.end = queries.end,
                _ => rows.push((queries.clone(), *at)),
            }
        }
        rows
    }
}

impl KeySpans {
    /// Spans in which every token of `segments` reads its own sequence.
    pub fn within(segments: &Segments, mask: Mask) -> Self {
        let span = |(keys, query_spans)| KeySpan { keys, query_spans };
        let of_trees = segments.trees().iter().map(|tree| {
            let query_spans = tree.segments(0).map(|segment| QuerySpan {
                queries: tree.start + segment.tokens.start..tree.start + segment.tokens.end,
                at: segment.tokens.start,
                positions: Positions::From(segment.prefix.len()),
                mask,
                prefix: segment.prefix,
                own: segment.tokens,
                global: Global::default(),
            });
            (tree.start..tree.start + tree.length(), query_spans.collect())
        });
        Self { queries: segments.tokens(), keys: segments.tokens(), list: of_trees.map(span).collect() }
    }

    /// Like [`within`](Self::within), with global tokens. Those of each tree are copied to its end, side by side. The copies see everything
    /// and are seen by everything; the originals are hidden.
    ///
    /// Also returns the original row of each row of the spans, and the row that holds each token's result.
    pub fn with_global(segments: &Segments, mask: Mask) -> (Self, Vec<u32>, Vec<u32>) {
        let mut spans = Self { queries: 0, keys: 0, list: Vec::new() };
        let (mut rows, mut places) = (Vec::new(), Vec::new());
        for tree in segments.trees() {
            let (base, length) = (spans.keys, tree.length());
            let global = segments.global(&(tree.start..tree.start + length));
            let copies = |tokens: &Range<usize>| {
                let before = |end: usize| global.partition_point(|&token| token < tree.start + end);
                before(tokens.start)..before(tokens.end)
            };
            let mut query_spans = Vec::new();
            for segment in tree.segments(0) {
                let continued = segment.prefix.len();
                let [of_prefix, of_own] = [copies(&segment.prefix), copies(&segment.tokens)];
                let standing = |copy: usize| continued + global[copy] - tree.start - segment.tokens.start;
                let own: Vec<usize> = of_own.clone().map(standing).collect();
                let before = of_prefix.clone().map(|copy| global[copy] - tree.start);
                let rows = |copies: Range<usize>| length + copies.start..length + copies.end;
                let query_span = |tokens: Range<usize>, positions, mask, global| QuerySpan {
                    queries: base + tokens.start..base + tokens.end,
                    at: tokens.start,
                    positions,
                    mask,
                    prefix: segment.prefix.clone(),
                    own: segment.tokens.clone(),
                    global,
                };
                let global = Global {
                    positions: before.chain(own.iter().copied()).collect(),
                    copies: [rows(of_prefix), rows(of_own.clone())],
                };
                query_spans.push(query_span(segment.tokens.clone(), Positions::From(continued), mask, global));
                if !own.is_empty() {
                    let positions = Positions::At(own);
                    query_spans.push(query_span(rows(of_own), positions, mask.without_window(), Global::default()));
                }
            }
            let tokens = tree.start..tree.start + length;
            rows.extend(tokens.clone().chain(global.iter().copied()).map(|token| token as u32));
            places.extend(tokens.map(|token| match global.binary_search(&token) {
                Ok(copy) => (base + length + copy) as u32,
                Err(_) => (base + token - tree.start) as u32,
            }));
            spans.keys += length + global.len();
            spans.list.push(KeySpan { keys: base..spans.keys, query_spans });
        }
        spans.queries = spans.keys;
        (spans, rows, places)
    }

    /// Spans in which queries read the sequences of another batch.
    pub fn across(cross: &CrossSegments, mask: Mask) -> Self {
        let [queries, keys] = cross.tokens();
        let mut list: Vec<KeySpan> = Vec::new();
        let mut of_source = std::collections::BTreeMap::new();
        for (tree, source) in cross.trees() {
            let i = *of_source.entry((source.start, source.end)).or_insert_with(|| {
                list.push(KeySpan { keys: source.clone(), query_spans: Vec::new() });
                list.len() - 1
            });
            let first = list[i].queries();
            list[i].query_spans.extend(tree.segments(0).map(|segment| QuerySpan {
                queries: tree.start + segment.tokens.start..tree.start + segment.tokens.end,
                at: first + segment.tokens.start,
                positions: Positions::From(segment.prefix.len()),
                mask,
                prefix: 0..0,
                own: 0..source.len(),
                global: Global::default(),
            }));
        }
        Self { queries, keys, list }
    }

    /// Exclusive upper bound of the positions that occur.
    pub fn longest(&self) -> usize {
        let of_query_span = |query_span: &QuerySpan| match query_span.queries.len() {
            0 => query_span.length(),
            n => query_span.length().max(query_span.position(n - 1) + 1),
        };
        self.list.iter().flat_map(|span| &span.query_spans).map(of_query_span).max().unwrap_or(0)
    }
}
