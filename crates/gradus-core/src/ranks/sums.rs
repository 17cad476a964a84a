//! Sums over lanes in a binary tree; each rank holds neighboring leaves.

use std::ops::Range;

/// A value that can be summed.
pub trait Summand: Sized {
    /// Adds two neighbors; `self` has the lower lanes.
    fn plus(self, other: Self) -> Self;
}

/// A node of the tree: a lane at level 0, and the sum of two neighbors above.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Node {
    /// Number of levels above the lanes; a lane has level 0.
    pub level: u32,
    /// Position within its level, from the left.
    pub index: usize,
}

impl Node {
    /// Root of the tree over `lanes` lanes.
    pub fn root(lanes: usize) -> Self {
        Self { level: lanes.trailing_zeros(), index: 0 }
    }

    /// The two nodes whose sum it is; `None` for a lane.
    fn children(self) -> Option<[Self; 2]> {
        let level = self.level.checked_sub(1)?;
        Some([0, 1].map(|side| Self { level, index: 2 * self.index + side }))
    }

    /// Parent of `left` and this node, if these are its children.
    fn parent_with(self, left: Self) -> Option<Self> {
        let are_neighbors = left.level == self.level && left.index + 1 == self.index && self.index % 2 == 1;
        are_neighbors.then_some(Self { level: self.level + 1, index: left.index / 2 })
    }
}

/// Partial sums of neighboring lanes. Lanes are added in order; a lane without rows has no sum.
#[derive(Debug, Clone)]
pub struct LaneSums<S> {
    nodes: Vec<(Node, Option<S>)>,
}

impl<S> Default for LaneSums<S> {
    fn default() -> Self {
        Self { nodes: Vec::new() }
    }
}

impl<S: Summand> LaneSums<S> {
    /// Adds the next lane.
    pub fn push(&mut self, lane: usize, sum: Option<S>) {
        let (mut node, mut sum) = (Node { level: 0, index: lane }, sum);
        while let Some(parent) = self.nodes.last().and_then(|(left, _)| node.parent_with(*left)) {
            let (_, left) = self.nodes.pop().expect("there is a last one");
            (node, sum) = (parent, add(left, sum));
        }
        self.nodes.push((node, sum));
    }

    /// Takes a part out of each sum.
    pub fn take_each<P: Summand>(&mut self, mut take: impl FnMut(&mut S) -> Option<P>) -> LaneSums<P> {
        let nodes = self.nodes.iter_mut().map(|(node, sum)| (*node, sum.as_mut().and_then(&mut take)));
        LaneSums { nodes: nodes.collect() }
    }

    /// Sums of the nodes, in order.
    pub fn into_nodes(self) -> impl Iterator<Item = Option<S>> {
        self.nodes.into_iter().map(|(_, sum)| sum)
    }

    /// Sum of all lanes; for a rank that holds all of them.
    pub fn into_sum(self) -> Option<S> {
        self.nodes.into_iter().map(|(_, sum)| sum).reduce(add).flatten()
    }
}

/// Nodes that these lanes form.
pub fn nodes_of(lanes: Range<usize>) -> Vec<Node> {
    struct Nothing;
    impl Summand for Nothing {
        fn plus(self, _: Self) -> Self {
            self
        }
    }
    let mut sums = LaneSums::<Nothing>::default();
    lanes.for_each(|lane| sums.push(lane, None));
    sums.nodes.into_iter().map(|(node, _)| node).collect()
}

/// Adds two optional sums.
pub fn add<S: Summand>(left: Option<S>, right: Option<S>) -> Option<S> {
    match (left, right) {
        (Some(left), Some(right)) => Some(left.plus(right)),
        (left, right) => left.or(right),
    }
}

/// Computes the sum at `node` from nodes of several ranks. `take` returns the sum of a node, or `None` if no rank holds that node.
pub fn combine<S: Summand>(node: Node, take: &mut impl FnMut(Node) -> Option<Option<S>>) -> Option<S> {
    if let Some(held) = take(node) {
        return held;
    }
    let [left, right] = node.children()?.map(|child| combine(child, take));
    add(left, right)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records the order of the additions.
    impl Summand for String {
        fn plus(self, other: Self) -> Self {
            format!("({self}+{other})")
        }
    }

    fn summed(lanes: Range<usize>, has: impl Fn(usize) -> bool) -> LaneSums<String> {
        let mut sums = LaneSums::default();
        lanes.for_each(|lane| sums.push(lane, has(lane).then(|| lane.to_string())));
        sums
    }

    #[test]
    fn lanes_are_added_up_in_a_tree() {
        assert_eq!(summed(0..8, |_| true).into_sum().unwrap(), "(((0+1)+(2+3))+((4+5)+(6+7)))");
        assert_eq!(summed(0..8, |lane| lane % 3 == 0).into_sum().unwrap(), "((0+3)+6)");
        assert_eq!(summed(0..4, |_| false).into_sum(), None);
    }

    #[test]
    fn any_number_of_ranks_gives_the_same_sum() {
        for lanes in [1, 2, 4, 8, 16] {
            for has in [(|_| true) as fn(usize) -> bool, |lane| lane % 3 != 1, |lane| lane == 5] {
                let alone = summed(0..lanes, has).into_sum();
                for ranks in 1..=lanes {
                    let mut held = Vec::new();
                    for rank in 0..ranks {
                        let own = crate::ranks::share(lanes, 1, rank, ranks);
                        let sums = summed(own.clone(), has);
                        assert_eq!(nodes_of(own), sums.nodes.iter().map(|(node, _)| *node).collect::<Vec<_>>());
                        held.extend(sums.nodes);
                    }
                    let mut take = |node: Node| held.iter().find(|(held, _)| *held == node).map(|(_, sum)| sum.clone());
                    assert_eq!(combine(Node::root(lanes), &mut take), alone, "{lanes} lanes on {ranks} ranks");
                }
            }
        }
    }
}
