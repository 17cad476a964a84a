//! Shares of the optimizer's moments: the trained parameters of a module end to end, cut into one part per rank.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

use super::across::{extend, numbers};
use crate::model::{NamedVisitor, visit_named};
use crate::ranks::Ranks;
use gradus_kernels::{Codes, Int8Moments};

/// Returns the trained parameters of a module in the order of its fields: name, number of elements and device.
pub(super) fn parameters<M: Module>(module: &M) -> Vec<(String, usize, Device)> {
    let mut found = Vec::new();
    let each = |name, n, device| found.push((name, n, device));
    visit_named(module, &mut ParameterVisitor(each));
    found
}

/// Parameters end to end, cut into one part per rank. Each rank keeps the moments of its part (ZeRO-1, Rajbhandari et al. 2020,
/// <https://arxiv.org/abs/1910.02054>).
#[derive(Debug)]
pub(super) struct Shares {
    pub(super) ranks: Ranks,
    /// Range of each parameter, in order of names.
    pub(super) ranges: BTreeMap<String, Range<usize>>,
    /// Number of elements of all parameters.
    len: usize,
    /// Device of the parameters.
    pub(super) device: Option<Device>,
}

impl Shares {
    pub(super) fn new<M: Module>(ranks: Ranks, module: &M) -> Self {
        let parameters = parameters(module);
        let device = parameters.first().map(|(.., device)| device.clone());
        let mut len = 0;
        let range = |(name, n, _): (String, usize, Device)| {
            len += n;
            (name, len - n..len)
        };
        let ranges = parameters.into_iter().map(range).collect();
        Self { ranks, ranges, len, device }
    }

    /// Returns the range of the parameter `name` that `rank` keeps. It consists of whole blocks of codes.
    pub(super) fn of(&self, rank: usize, name: &str) -> Range<usize> {
        let range = &self.ranges[name];
        let at = |rank: usize| {
            let at = (self.len * rank / self.ranks.size()).clamp(range.start, range.end);
            if at == range.end { range.len() } else { (at - range.start) / Int8Moments::BLOCK * Int8Moments::BLOCK }
        };
        at(rank)..at(rank + 1)
    }

    /// Returns the range that this rank keeps.
    pub(super) fn own(&self, name: &str) -> Range<usize> {
        self.of(self.ranks.rank(), name)
    }

    /// Joins the parts of the parameters `names` from all ranks. `own` holds the bytes of this rank. `join` receives the parts of all
    /// ranks, in order. `bytes` returns the size in bytes of a number of elements.
    pub(super) fn gather<'n, T>(
        &self,
        names: impl Iterator<Item = &'n String>,
        own: Vec<u8>,
        bytes: impl Fn(usize) -> usize,
        join: impl Fn(&str, &[&[u8]]) -> T,
    ) -> Vec<(String, T)> {
        let all = self.ranks.all_bytes("shares of parameters", Arc::new(own));
        let mut rests: Vec<&[u8]> = all.iter().map(Vec::as_slice).collect();
        let mut of_name = |name: &String| {
            let mut parts = Vec::with_capacity(rests.len());
            for (rank, rest) in rests.iter_mut().enumerate() {
                let (part, others) = rest.split_at(bytes(self.of(rank, name).len()));
                parts.push(part);
                *rest = others;
            }
            (name.clone(), join(name, &parts))
        };
        names.map(&mut of_name).collect()
    }

    /// Calls [`gather`](Self::gather) for numbers in f32.
    pub(super) fn gather_numbers(&self, own: &BTreeMap<String, Vec<f32>>) -> BTreeMap<String, Vec<f32>> {
        let mut bytes = Vec::new();
        own.values().for_each(|values| extend(&mut bytes, values));
        let join = |name: &str, parts: &[&[u8]]| {
            let mut values = Vec::with_capacity(self.ranges[name].len());
            parts.iter().for_each(|part| values.extend(numbers(part)));
            values
        };
        self.gather(own.keys(), bytes, |n| 4 * n, join).into_iter().collect()
    }

    /// Joins the codes of all ranks. In each part, the scales of the blocks follow the codes.
    pub(super) fn joined(&self, name: &str, parts: &[&[u8]]) -> Codes {
        let mut whole = Codes { codes: Vec::with_capacity(self.ranges[name].len()), sizes: Vec::new() };
        for (rank, part) in parts.iter().enumerate() {
            let (codes, sizes) = part.split_at(self.of(rank, name).len());
            whole.codes.extend_from_slice(codes);
            whole.sizes.extend(numbers(sizes));
        }
        whole
    }
}

/// Passes the name, the size and the device of every trained parameter to `each`.
struct ParameterVisitor<F>(F);

impl<F: FnMut(String, usize, Device)> NamedVisitor for ParameterVisitor<F> {
    fn visit<const D: usize>(&mut self, name: String, param: &Param<Tensor<D>>) {
        if param.is_require_grad() {
            (self.0)(name, param.shape().num_elements(), param.val().device().inner());
        }
    }
}
