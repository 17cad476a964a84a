//! Sums a step's gradients over ranks, one bucket of neighboring parameters at a time.
//!
//! The sum can run during the last backward pass of a step. That pass produces the gradients of the last layers first, so they cross the
//! network while the gradients of earlier layers are computed (as in PyTorch's `DistributedDataParallel`). Every element is the sum of the
//! same numbers in the same order, so the bits do not depend on the time or the bucket of the exchange.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use gradus_kernels::{GraphDepth, can_watch, watched};

use super::across::{self, Abandoned, Nodes, Parameter};
use super::gradient_sum::{Flat, GradientSum};
use super::shares::parameters;
use crate::model::{NamedMapper, map_named};
use crate::ranks::{LaneSums, Lanes, REDUCED_AT_ONCE, Ranks, add};

/// Gradients that this rank holds in a step.
#[derive(Debug)]
pub(super) struct RankGradients {
    /// Sums of the lanes that have ended.
    pub lanes: LaneSums<GradientSum>,
    /// The current lane, and its sum before the current pass.
    pub current: Option<(usize, GradientSum)>,
}

impl RankGradients {
    /// Removes and returns the sums of a parameter, with `gradient` of the current pass added to the current lane.
    fn nodes(&mut self, name: &str, gradient: Option<Tensor<1>>) -> Nodes {
        let mut sums = self.lanes.take_each(|sum| sum.take(name).map(Flat));
        if let Some((lane, sum)) = &mut self.current {
            sums.push(*lane, add(sum.take(name).map(Flat), gradient.map(Flat)));
        }
        sums.into_nodes().map(|sum| sum.map(|Flat(sum)| sum)).collect()
    }
}

/// The parameters to sum, their order, and the ranks.
#[derive(Debug)]
pub(super) struct Reduction {
    lanes: Lanes,
    ranks: Ranks,
    /// In reverse order of the module, because backward passes produce the gradients of the last parameters first.
    parameters: Vec<Parameter>,
    /// Minimum number of elements in a bucket; a larger parameter is a bucket of its own.
    at_once: usize,
}

/// A message from the backward pass: a parameter's index and gradient, or `None` at the end of the pass. Parameters without a message have
/// no gradient.
pub(super) type GradientMessage = Option<(usize, Tensor<1>)>;

impl Reduction {
    pub fn new<M: Module>(module: &M, lanes: Lanes, ranks: Ranks) -> Self {
        let mut parameters = parameters(module);
        parameters.reverse();
        Self { lanes, ranks, parameters, at_once: REDUCED_AT_ONCE }
    }

    /// Splits the parameters into ranges that are exchanged together.
    fn buckets(&self) -> Vec<Range<usize>> {
        let (mut buckets, mut start, mut numbers) = (Vec::new(), 0, 0);
        for (i, (_, n, _)) in self.parameters.iter().enumerate() {
            numbers += n;
            if numbers >= self.at_once || i + 1 == self.parameters.len() {
                buckets.push(start..i + 1);
                (start, numbers) = (i + 1, 0);
            }
        }
        buckets
    }

    /// Sums the gradients that `own` returns, bucket by bucket. `own` returns `None` if this rank has failed.
    fn run(&self, mut own: impl FnMut(Range<usize>) -> Option<Vec<Nodes>>) -> Result<GradientSum, Abandoned> {
        let mut sums = Vec::with_capacity(self.parameters.len());
        for bucket in self.buckets() {
            let nodes = own(bucket.clone());
            sums.extend(across::sum((self.lanes, self.ranks), &self.parameters[bucket], nodes.as_deref())?);
        }
        Ok(sums.into_iter().collect())
    }

    /// Sums the gradients in `own`, which is `None` if this rank has failed.
    ///
    /// # Errors
    /// If a rank has failed.
    pub fn of(&self, own: Option<RankGradients>) -> Result<GradientSum, Abandoned> {
        let mut own = own;
        self.run(|bucket| {
            let own = own.as_mut()?;
            Some(self.parameters[bucket].iter().map(|(name, ..)| own.nodes(name, None)).collect())
        })
    }

    /// Sums while a backward pass reports its gradients.
    ///
    /// # Errors
    /// If a rank has failed.
    pub fn sum_during_backward(
        &self,
        mut own: RankGradients,
        messages: &Receiver<GradientMessage>,
    ) -> Result<GradientSum, Abandoned> {
        let mut ready: Vec<Option<Nodes>> = self.parameters.iter().map(|_| None).collect();
        let mut is_over = false;
        self.run(|bucket| {
            while !is_over && ready[bucket.clone()].iter().any(Option::is_none) {
                match messages.recv() {
                    Ok(Some((i, gradient))) => ready[i] = Some(own.nodes(&self.parameters[i].0, Some(gradient))),
                    Ok(None) => is_over = true,
                    // The pass was aborted.
                    Err(_) => return None,
                }
            }
            let of = |i: usize| ready[i].take().unwrap_or_else(|| own.nodes(&self.parameters[i].0, None));
            Some(bucket.map(of).collect())
        })
    }

    /// Returns `module` with its gradients reported over a channel, or `None` if a device has no kernel for this.
    pub fn watch<M: Module>(&self, module: &M) -> Option<(M, Sender<GradientMessage>, Receiver<GradientMessage>)> {
        if !self.parameters.iter().all(|(_, _, device)| can_watch(device)) {
            return None;
        }
        let (sender, receiver) = channel();
        let numbers = self.parameters.iter().enumerate().map(|(i, (name, ..))| (name.as_str(), i)).collect();
        let depth = GraphDepth::first(&self.parameters.first()?.2);
        let mut watcher = Watcher { numbers, depth, sender: &sender };
        let module = map_named(module.clone(), &mut watcher);
        Some((module, sender, receiver))
    }
}

struct Watcher<'a> {
    numbers: HashMap<&'a str, usize>,
    /// Depth of the next parameter.
    depth: GraphDepth,
    sender: &'a Sender<GradientMessage>,
}

impl NamedMapper for Watcher<'_> {
    fn map<const D: usize>(&mut self, name: String, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let number = self.numbers.get(name.as_str()).filter(|_| param.is_require_grad());
        let Some(&number) = number else { return param };
        let sender = self.sender.clone();
        // The receiver is gone if a rank has failed.
        let ready = move |gradient| drop(sender.send(Some((number, gradient))));
        let depth = self.depth.next();
        let depth = std::mem::replace(&mut self.depth, depth);
        param.map(|value| watched(value, &depth, ready))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::sync_channel;
    use std::time::Duration;

    use burn::tensor::{Device, TensorData};

    use super::super::Learner;
    use super::super::optimizer::{AdamWConfig, MomentFormat, Optimizer};
    use super::*;
    use crate::host::read;
    use crate::ranks::{ExchangeError, Link, Wait, threads};

    #[derive(Module, Debug)]
    struct Net {
        first: Param<Tensor<2>>,
        second: Param<Tensor<2>>,
        /// No loss depends on it.
        third: Param<Tensor<1>>,
    }

    fn tensor<const R: usize>(shape: [usize; R], seed: usize) -> Tensor<R> {
        let value = |i: usize| ((i * 7919 + seed * 104_729) % 1000) as f32 / 1000.0 - 0.5;
        let values: Vec<f32> = (0..shape.iter().product()).map(value).collect();
        Tensor::from_data(TensorData::new(values, shape), &Device::flex().autodiff())
    }

    fn net() -> Net {
        Net {
            first: Param::from_tensor(tensor([8, 8], 1)),
            second: Param::from_tensor(tensor([8, 4], 2)),
            third: Param::from_tensor(tensor([5], 3)),
        }
    }

    fn learner() -> Learner<Net> {
        let (betas, moments) = ([0.9, 0.999], MomentFormat::F32);
        Learner::new(net(), Optimizer::new(AdamWConfig { betas, epsilon: 1e-8, weight_decay: 0.0, moments }))
    }

    fn loss(net: &Net, row: usize) -> Tensor<1> {
        // `first` is used twice.
        let first = net.first.val();
        (tensor([3, 8], row).matmul(first.clone()).tanh().matmul(first).tanh().matmul(net.second.val()))
            .powi_scalar(2)
            .sum()
    }

    /// Gradients of eight lanes of two passes each, on each of `size` ranks.
    fn gradients(size: usize, begins_early: bool) -> Vec<[Vec<f32>; 3]> {
        let run = move |ranks: Ranks| {
            let (mut learner, lanes) = (learner(), Lanes::new(8, ranks));
            for lane in lanes.own() {
                for pass in 0..2 {
                    if begins_early && pass == 1 {
                        learner.begin_last_pass(lane, lanes);
                    }
                    let loss = loss(learner.module(), 2 * lane + pass);
                    learner.accumulate(&loss);
                }
                learner.end_lane(lane);
            }
            assert_eq!(learner.reduction.is_some(), begins_early && size > 1);
            learner.reduce(lanes, true);
            ["first", "second", "third"].map(|name| learner.gradients.get(name).unwrap_or_default())
        };
        let start = |link| std::thread::spawn(move || run(Ranks::new(link, Duration::from_secs(600))));
        let running: Vec<_> = threads(size).into_iter().map(start).collect();
        running.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    }

    #[test]
    fn the_sum_has_the_same_bits_beside_the_last_pass_and_after_it() {
        let expected = gradients(1, false).remove(0);
        assert!(expected[0].len() == 64 && expected[1].len() == 32 && expected[2].is_empty());
        for size in [1, 2, 3, 4, 8] {
            for begins_early in [false, true] {
                assert!(gradients(size, begins_early).iter().all(|found| *found == expected), "{size} ranks");
            }
        }
    }

    #[test]
    fn a_rank_that_failed_leaves_nobody_waiting() {
        let run = |ranks: Ranks| {
            let (mut learner, lanes) = (learner(), Lanes::new(2, ranks));
            let is_ok = ranks.rank() == 0;
            if is_ok {
                let lane = lanes.own().start;
                learner.begin_last_pass(lane, lanes);
                let loss = loss(learner.module(), lane);
                learner.accumulate(&loss);
                learner.end_lane(lane);
            }
            learner.reduce(lanes, is_ok);
            (learner.is_fresh(), ranks.all("afterward", &ranks.rank()))
        };
        let start = |link| std::thread::spawn(move || run(Ranks::new(link, Duration::from_secs(600))));
        let running: Vec<_> = threads(2).into_iter().map(start).collect();
        for thread in running {
            assert_eq!(thread.join().expect("no rank panics"), (true, vec![0, 1]));
        }
    }

    /// Reports each exchange.
    struct ReportingLink(Box<dyn Link>, std::sync::mpsc::SyncSender<()>);

    impl Link for ReportingLink {
        fn rank(&self) -> usize {
            self.0.rank()
        }

        fn size(&self) -> usize {
            self.0.size()
        }

        fn lets_threads(&self) -> bool {
            self.0.lets_threads()
        }

        fn exchange(
            &self,
            sends: &[(usize, Arc<Vec<u8>>)],
            receives: &[(usize, usize)],
            wait: Wait,
        ) -> Result<Vec<Vec<u8>>, ExchangeError> {
            let found = self.0.exchange(sends, receives, wait);
            let _ = self.1.send(());
            found
        }

        fn abort(&self, code: i32) -> ! {
            self.0.abort(code)
        }

        fn finish(&self) {
            self.0.finish();
        }
    }

    #[test]
    fn a_bucket_crosses_while_others_are_computed() {
        let (sender, crossed) = sync_channel(100);
        let run = |link| {
            let lanes = Lanes::new(2, Ranks::new(link, Duration::from_secs(600)));
            // One parameter per bucket.
            let reduction = Reduction { at_once: 1, ..Reduction::new(&net(), lanes, lanes.ranks()) };
            let (sender, receiver) = channel();
            let current = Some((lanes.own().start, GradientSum::default()));
            let own = RankGradients { lanes: LaneSums::default(), current };
            (sender, std::thread::spawn(move || reduction.sum_during_backward(own, &receiver)))
        };
        let running: Vec<_> = threads(2)
            .into_iter()
            .map(|link| run(Box::new(ReportingLink(link, sender.clone())) as Box<dyn Link>))
            .collect();
        let of = |number: usize, n: usize| Some((number, tensor([n], 4).inner()));
        // The last parameter comes first. For each bucket, two ranks exchange three times (presence, gradients, sums), each time with a
        // header.
        for (number, n) in [(0, 5), (1, 32)] {
            for (sender, _) in &running {
                sender.send(of(number, n)).expect("it listens");
            }
            for _ in 0..2 * 3 * 2 {
                crossed.recv_timeout(Duration::from_secs(600)).expect("the bucket crosses before the pass is over");
            }
        }
        for (sender, _) in &running {
            sender.send(None).expect("it listens");
        }
        for (_, thread) in running {
            let sum = thread.join().expect("no panic").expect("no failure");
            let twice = read(&(tensor([5], 4).inner() * 2.0));
            assert_eq!(sum.get("third"), Some(twice));
            assert_eq!(sum.get("first"), None);
        }
    }
}
