//! A module with what it takes to train it: the sum of its gradients and its optimizer.

mod across;
pub mod flat;
pub mod gradient_sum;
pub mod optimizer;
mod reduction;
mod shares;

use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, Sender};
use std::thread::JoinHandle;

use across::Abandoned;
use burn::module::Module;
use burn::tensor::Tensor;

use crate::ranks::{LaneSums, Lanes};
use gradient_sum::GradientSum;
use optimizer::{Optimizer, OptimizerConfig};
use reduction::{News, Own, Reduction};

/// A module in training. Losses are accumulated over micro-batches, then one step is taken.
#[derive(Debug)]
pub struct Learner<M: Module> {
    /// `None` only while [`change`](Self::change) moves the module.
    module: Option<M>,
    optimizer: Optimizer,
    /// Of the lane under way; after [`reduce`](Self::reduce), of the whole step.
    gradients: GradientSum,
    /// Of the lanes before it.
    lanes: LaneSums<GradientSum>,
    /// For the pass to come, which is the last of the step.
    last_pass: Option<LastPass<M>>,
    /// The sum over ranks that began with that pass.
    reduction: Option<JoinHandle<Result<GradientSum, Abandoned>>>,
    version: u64,
}

/// The last pass of a step on this rank, whose gradients are summed over ranks while it goes back.
#[derive(Debug)]
struct LastPass<M> {
    /// The module, telling of its gradients.
    module: M,
    lane: usize,
    reduction: Reduction,
    sender: Sender<News>,
    receiver: Receiver<News>,
}

/// What a checkpoint keeps of a learner, whatever it trains.
#[derive(Debug, Clone, Copy)]
pub struct Trained<'a> {
    /// Its optimizer.
    pub optimizer: &'a Optimizer,
    /// Which parameters these are.
    pub version: u64,
}

impl<M: Module> Learner<M> {
    /// Starts (or goes on) with `optimizer`; `module` lives on a device with autodiff.
    pub fn new(module: M, mut optimizer: Optimizer) -> Self {
        optimizer.reserve(&module);
        Self::without_moments(module, optimizer)
    }

    /// The same for a module that something else than the optimizer moves: no moments are held.
    pub fn without_moments(module: M, optimizer: Optimizer) -> Self {
        Self {
            module: Some(module),
            optimizer,
            gradients: GradientSum::default(),
            lanes: LaneSums::default(),
            last_pass: None,
            reduction: None,
            version: 0,
        }
    }

    /// The module, with autodiff: forward passes through it are recorded.
    pub fn module(&self) -> &M {
        match &self.last_pass {
            Some(pass) => &pass.module,
            None => self.module.as_ref().expect("the module is in its place between steps"),
        }
    }

    /// The module without autodiff, sharing the weights: for sampling and evaluation.
    pub fn frozen(&self) -> M {
        self.module().valid()
    }

    /// The optimizer, for checkpoints.
    pub fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }

    /// Steps with other constants from now on; what is remembered of each parameter stays.
    ///
    /// # Panics
    /// When the optimizer of `config` remembers something else.
    pub fn reconfigure(&mut self, config: OptimizerConfig) {
        self.optimizer.reconfigure(config);
    }

    /// Goes on with another optimizer, such as one that was read from a file.
    pub fn set_optimizer(&mut self, mut optimizer: Optimizer) {
        optimizer.reserve(self.module());
        self.optimizer = optimizer;
    }

    /// Whether no loss was accumulated since the last step.
    pub fn is_fresh(&self) -> bool {
        self.gradients.is_empty() && self.reduction.is_none()
    }

    /// Counts the changes of the parameters since this learner was made. It moves before the first of them does, so
    /// equal versions mean equal parameters, whatever changed them and wherever that was interrupted.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// What a checkpoint keeps of it.
    pub fn trained(&self) -> Trained<'_> {
        Trained { optimizer: &self.optimizer, version: self.version }
    }

    /// The forward pass to come is the last one of `lane` in this step. If that is the last lane of this rank, the sum over ranks begins
    /// while [`accumulate`](Self::accumulate) goes back. Until [`reduce`](Self::reduce), ranks must exchange nothing else then.
    pub fn begin_last_pass(&mut self, lane: usize, lanes: Lanes) {
        let Some(ranks) = lanes.ranks().beside().filter(|_| lane + 1 == lanes.own().end) else { return };
        let reduction = Reduction::new(self.module(), lanes, ranks);
        self.last_pass = reduction.watch(self.module()).map(|(module, sender, receiver)| LastPass {
            module,
            lane,
            reduction,
            sender,
            receiver,
        });
    }

    /// Goes back `loss` and adds the gradients to the step's sum.
    pub fn accumulate(&mut self, loss: &Tensor<1>) {
        let Some(LastPass { lane, reduction, sender, receiver, .. }) = self.last_pass.take() else {
            let mut gradients = loss.backward();
            self.gradients.add(self.module.as_ref().expect("the module is in its place between steps"), &mut gradients);
            return;
        };
        let under_way = Some((lane, std::mem::take(&mut self.gradients)));
        let own = Own { lanes: std::mem::take(&mut self.lanes), under_way };
        self.reduction = Some(std::thread::spawn(move || reduction.beside(own, &receiver)));
        drop(loss.backward());
        // Nobody listens once a rank has failed.
        drop(sender.send(None));
    }

    /// The lane is over: what was accumulated since the one before is its sum.
    pub fn end_lane(&mut self, lane: usize) {
        if self.reduction.is_some() {
            // The sum over ranks has it.
            return;
        }
        let sum = std::mem::take(&mut self.gradients);
        self.lanes.push(lane, (!sum.is_empty()).then_some(sum));
    }

    /// All lanes of this rank are over, or one has failed: adds up those of all ranks. Every rank has the whole gradient then, the same
    /// bits on any number of ranks. Where a rank has failed, nobody has any.
    pub fn reduce(&mut self, lanes: Lanes, is_ok: bool) {
        self.last_pass = None;
        let (under_way, own) = (std::mem::take(&mut self.gradients), std::mem::take(&mut self.lanes));
        debug_assert!(under_way.is_empty() || !is_ok, "a lane has not ended");
        let sum = match self.reduction.take() {
            Some(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            None if lanes.ranks().is_alone() => Ok(own.into_sum().filter(|_| is_ok).unwrap_or_default()),
            None => {
                let own = is_ok.then_some(Own { lanes: own, under_way: None });
                Reduction::new(self.module(), lanes, lanes.ranks()).of(own)
            }
        };
        self.gradients = sum.unwrap_or_default();
    }

    /// One optimizer step over the accumulated gradients. Returns their norm before clipping to `max_grad_norm`.
    ///
    /// # Errors
    /// A NaN or an infinity in a gradient, with the parameter's name; the weights stay as they were.
    pub fn step(&mut self, learning_rate: f64, max_grad_norm: f64) -> Result<f64, String> {
        Ok(self.ready(max_grad_norm)?.take(learning_rate))
    }

    /// The norm of the accumulated gradients.
    pub fn gradient_norm(&self) -> f64 {
        self.gradients.norm()
    }

    /// The step over the accumulated gradients, clipped to `max_grad_norm` and not yet taken: where several learners step
    /// together, all are asked before the first one moves.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn ready(&mut self, max_grad_norm: f64) -> Result<Step<'_, M>, String> {
        self.ready_beside(max_grad_norm, 0.0)
    }

    /// [`ready`](Self::ready), clipped by the norm of these gradients and those of others, which is `others`, together.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn ready_beside(&mut self, max_grad_norm: f64, others: f64) -> Result<Step<'_, M>, String> {
        let mut gradients = std::mem::take(&mut self.gradients);
        let norm = gradients.clip_beside(max_grad_norm, others);
        if !norm.is_finite() {
            let name = gradients.first_not_finite().unwrap_or("several parameters together");
            return Err(format!("the gradient of `{name}` is not finite"));
        }
        Ok(Step { learner: self, gradients, norm })
    }

    /// The one way for parameters to change.
    fn change(&mut self, changed: impl FnOnce(&mut Optimizer, M) -> M) {
        self.version += 1;
        let module = self.module.take().expect("the module is in its place between steps");
        self.module = Some(changed(&mut self.optimizer, module));
    }

    /// Forgets the accumulated gradients.
    pub fn discard(&mut self) {
        (self.gradients, self.lanes, self.last_pass) = (GradientSum::default(), LaneSums::default(), None);
    }
}

/// A step that can be taken: its gradient is finite. Forgotten with its gradient where it is not.
#[must_use = "the weights move when it is taken"]
#[derive(Debug)]
pub struct Step<'l, M: Module> {
    learner: &'l mut Learner<M>,
    gradients: GradientSum,
    norm: f64,
}

impl<M: Module> Step<'_, M> {
    /// Moves the weights; returns the norm of the gradient before it was clipped.
    pub fn take(self, learning_rate: f64) -> f64 {
        let Self { learner, gradients, norm } = self;
        learner.change(|optimizer, module| optimizer.step(learning_rate, module, gradients));
        norm
    }
}
