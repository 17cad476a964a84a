//! Gradients summed over ranks.
//!
//! Every rank sends each other rank a part of its sums, adds up the parts that it receives in the order of the tree of lanes, and sends the
//! result to all. Each number crosses the network as often as in a ring all-reduce, and the order of the sum does not depend on the number
//! of ranks.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{Device, Tensor, TensorData};
use gradus_kernels::{HostValues, host_values};

use crate::ranks::{Lanes, Node, REDUCED_AT_ONCE, Ranks, Summand, combine, nodes_of};

/// A trained parameter: its name, its number of elements and its device.
pub(super) type Parameter = (String, usize, Device);

/// Gradients of one parameter on one rank: one for each node of the tree of lanes on this rank. `None` if the node's losses do not depend
/// on the parameter.
pub(super) type Nodes = Vec<Option<Tensor<1>>>;

/// A rank has failed in its lanes, so there is no sum.
#[derive(Debug)]
pub(super) struct Abandoned;

/// Sums `parameters` over the lanes of all ranks. `own` holds this rank's gradients of each parameter, or `None` if this rank has failed.
pub(super) fn sum(
    (lanes, ranks): (Lanes, Ranks),
    parameters: &[Parameter],
    own: Option<&[Nodes]>,
) -> Result<Vec<(String, Tensor<1>)>, Abandoned> {
    // For each node, which parameters have a gradient: a loss need not depend on all of them.
    let nodes = nodes_of(lanes.own()).len();
    let of_nodes = |own: &[Nodes]| -> Vec<Vec<bool>> {
        (0..nodes).map(|node| own.iter().map(|nodes| nodes[node].is_some()).collect()).collect()
    };
    let present = ranks.all("which gradients there are", &own.map(of_nodes));
    let (Some(own), Some(present)) = (own, present.into_iter().collect::<Option<Vec<_>>>()) else {
        return Err(Abandoned);
    };
    let holders: Vec<Holder> =
        present.into_iter().enumerate().map(|(rank, present)| Holder::new(rank, lanes, present)).collect();
    let is_anywhere = |parameter: usize| holders.iter().any(|holder| holder.present.iter().any(|node| node[parameter]));
    let layout = Layout::new(parameters, (0..parameters.len()).filter(|&parameter| is_anywhere(parameter)));
    // On a CPU these are handles: nothing is copied.
    let values_of = |node: usize| -> Vec<Option<HostValues>> {
        own.iter().map(|nodes| nodes[node].clone().map(host_values)).collect()
    };
    let values: Vec<Vec<Option<HostValues>>> = (0..nodes).map(values_of).collect();
    let mut sums: Vec<Vec<f32>> = layout.ranges.iter().map(|(_, range)| Vec::with_capacity(range.len())).collect();
    for start in (0..layout.len()).step_by(REDUCED_AT_ONCE) {
        let block = start..layout.len().min(start + REDUCED_AT_ONCE);
        let pieces: Vec<Range<usize>> = (0..ranks.size()).map(|rank| piece(&block, rank, ranks.size())).collect();

        // 1. Every rank receives the piece that it adds up.
        let mut sends: Vec<Vec<u8>> = pieces.iter().map(|_| Vec::new()).collect();
        for of_node in &values {
            for (send, piece) in sends.iter_mut().zip(&pieces) {
                for (parameter, part) in layout.parts(piece) {
                    if let Some(values) = &of_node[parameter] {
                        extend(send, &values[part]);
                    }
                }
            }
        }
        let received = ranks.exchange("gradients", sends.into_iter().map(Arc::new).collect());

        // 2. Each rank sums its piece, in the order of the tree.
        let mine = &pieces[ranks.rank()];
        let mut found: Vec<BTreeMap<Node, PartialSum>> = layout.parts(mine).map(|_| BTreeMap::new()).collect();
        for (holder, bytes) in holders.iter().zip(&received) {
            let mut rest = bytes.as_slice();
            for (node, present) in holder.nodes.iter().zip(&holder.present) {
                for (i, (parameter, part)) in layout.parts(mine).enumerate() {
                    let sum = present[parameter].then(|| {
                        let (own, others) = rest.split_at(4 * part.len());
                        rest = others;
                        PartialSum(numbers(own).collect())
                    });
                    found[i].extend(sum.map(|sum| (*node, sum)));
                }
            }
        }
        let held: Vec<Node> = holders.iter().flat_map(|holder| holder.nodes.iter().copied()).collect();
        let mut summed = Vec::with_capacity(4 * mine.len());
        for mut nodes in found {
            let mut take = |node: Node| held.contains(&node).then(|| nodes.remove(&node));
            let PartialSum(sum) = combine(Node::root(lanes.count()), &mut take).expect("some lane has it");
            extend(&mut summed, &sum);
        }

        // 3. Every rank receives all pieces.
        let all = ranks.all_bytes("summed gradients", Arc::new(summed));
        for (bytes, piece) in all.iter().zip(&pieces) {
            let mut rest = bytes.as_slice();
            for (i, part) in layout.ranges_in(piece) {
                let (own, others) = rest.split_at(4 * part.len());
                sums[i].extend(numbers(own));
                rest = others;
            }
        }
    }
    let named = layout.ranges.iter().zip(sums).map(|((parameter, range), values)| {
        let (name, _, device) = &parameters[*parameter];
        (name.clone(), Tensor::from_data(TensorData::new(values, [range.len()]), device))
    });
    Ok(named.collect())
}

/// The nodes and gradients that one rank holds.
struct Holder {
    nodes: Vec<Node>,
    /// For each node, whether it has a gradient of each parameter.
    present: Vec<Vec<bool>>,
}

impl Holder {
    fn new(rank: usize, lanes: Lanes, present: Vec<Vec<bool>>) -> Self {
        Self { nodes: nodes_of(lanes.of_rank(rank)), present }
    }
}

/// Offsets of the summed parameters, stored end to end.
struct Layout {
    /// Each parameter's index and its range of numbers.
    ranges: Vec<(usize, Range<usize>)>,
}

impl Layout {
    fn new(parameters: &[Parameter], chosen: impl Iterator<Item = usize>) -> Self {
        let mut end = 0;
        let range = |parameter: usize| {
            let start = end;
            end += parameters[parameter].1;
            (parameter, start..end)
        };
        Self { ranges: chosen.map(range).collect() }
    }

    fn len(&self) -> usize {
        self.ranges.last().map_or(0, |(_, range)| range.end)
    }

    /// The ranges that `piece` overlaps, each with the overlapping range within its parameter.
    fn ranges_in(&self, piece: &Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> {
        let first = self.ranges.partition_point(|(_, range)| range.end <= piece.start);
        let Range { start, end } = *piece;
        let touched = self.ranges.iter().enumerate().skip(first).take_while(move |(_, (_, range))| range.start < end);
        touched.map(move |(i, (_, range))| (i, start.max(range.start) - range.start..end.min(range.end) - range.start))
    }

    /// The parameters that `piece` overlaps, each with the overlapping range within the parameter.
    fn parts(&self, piece: &Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> {
        self.ranges_in(piece).map(|(i, part)| (self.ranges[i].0, part))
    }
}

/// The piece of `block` that rank `rank` of `size` adds up.
fn piece(block: &Range<usize>, rank: usize, size: usize) -> Range<usize> {
    let at = |rank: usize| block.start + block.len() * rank / size;
    at(rank)..at(rank + 1)
}

/// Sum of some lanes, for a part of a parameter.
struct PartialSum(Vec<f32>);

impl Summand for PartialSum {
    fn plus(mut self, other: Self) -> Self {
        self.0.iter_mut().zip(&other.0).for_each(|(sum, x)| *sum += x);
        self
    }
}

/// Appends numbers in the byte order of the network, little-endian.
pub(super) fn extend(bytes: &mut Vec<u8>, values: &[f32]) {
    let start = bytes.len();
    bytes.resize(start + 4 * values.len(), 0);
    bytes[start..].as_chunks_mut().0.iter_mut().zip(values).for_each(|(bytes, value)| *bytes = value.to_le_bytes());
}

/// Decodes numbers that [`extend`] has encoded.
pub(super) fn numbers(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks().0.iter().map(|bytes: &[u8; 4]| f32::from_le_bytes(*bytes))
}
