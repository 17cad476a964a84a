//! A module in training: the module, the sum of its gradients and its optimizer.

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
use reduction::{GradientMessage, RankGradients, Reduction};

/// A module in training. Callers accumulate losses over micro-batches and then take one step.
#[derive(Debug)]
pub struct Learner<M: Module> {
    /// `None` only while [`change`](Self::change) moves the module.
    module: Option<M>,
    optimizer: Optimizer,
    /// Sum of the current lane; after [`reduce`](Self::reduce), of the whole step.
    gradients: GradientSum,
    /// Sums of the lanes that have ended.
    lanes: LaneSums<GradientSum>,
    /// Set before the last forward pass of the step, and consumed by its backward pass.
    last_pass: Option<LastPass<M>>,
    /// Thread that sums over ranks since that pass began.
    reduction: Option<JoinHandle<Result<GradientSum, Abandoned>>>,
    version: u64,
}

/// The last pass of a step on this rank. Its gradients are summed over ranks during its backward pass.
#[derive(Debug)]
struct LastPass<M> {
    /// The module, which reports its gradients.
    module: M,
    lane: usize,
    reduction: Reduction,
    sender: Sender<GradientMessage>,
    receiver: Receiver<GradientMessage>,
}

/// The part of a learner that a checkpoint stores, whatever the module is.
#[derive(Debug, Clone, Copy)]
pub struct LearnerState<'a> {
    /// Optimizer of the learner.
    pub optimizer: &'a Optimizer,
    /// [`Learner::version`] of its parameters.
    pub version: u64,
}

impl<M: Module> Learner<M> {
    /// Starts or continues with `optimizer`. `module` must be on a device with autodiff.
    pub fn new(module: M, mut optimizer: Optimizer) -> Self {
        optimizer.reserve(&module);
        Self::without_moments(module, optimizer)
    }

    /// As [`new`](Self::new), but without moments: for a module that is not moved by its optimizer.
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

    /// Returns the module with autodiff, which records forward passes.
    pub fn module(&self) -> &M {
        match &self.last_pass {
            Some(pass) => &pass.module,
            None => self.module.as_ref().expect("the module is in its place between steps"),
        }
    }

    /// Returns the module without autodiff, for sampling and evaluation. It shares the weights.
    pub fn frozen(&self) -> M {
        self.module().valid()
    }

    /// Returns the optimizer, for checkpoints.
    pub fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }

    /// Uses other constants for the following steps and keeps the optimizer's state.
    ///
    /// # Panics
    /// If an optimizer of `config` keeps other moments.
    pub fn reconfigure(&mut self, config: OptimizerConfig) {
        self.optimizer.reconfigure(config);
    }

    /// Continues with another optimizer, such as one read from a file.
    pub fn set_optimizer(&mut self, mut optimizer: Optimizer) {
        optimizer.reserve(self.module());
        self.optimizer = optimizer;
    }

    /// Returns true if no loss was accumulated since the last step.
    pub fn is_fresh(&self) -> bool {
        self.gradients.is_empty() && self.reduction.is_none()
    }

    /// Number of changes of the parameters since this learner was created. It increases before the first parameter changes, so equal
    /// versions mean equal parameters, even after an interrupted change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the part that a checkpoint stores.
    pub fn state(&self) -> LearnerState<'_> {
        LearnerState { optimizer: &self.optimizer, version: self.version }
    }

    /// Announces that the next forward pass is the last one of `lane` in this step. If `lane` is also the last lane of this rank, the sum
    /// over ranks begins during the backward pass in [`accumulate`](Self::accumulate). Ranks must then exchange nothing else until
    /// [`reduce`](Self::reduce).
    pub fn begin_last_pass(&mut self, lane: usize, lanes: Lanes) {
        let Some(ranks) = lanes.ranks().for_exchange_thread().filter(|_| lane + 1 == lanes.own().end) else { return };
        let reduction = Reduction::new(self.module(), lanes, ranks);
        self.last_pass = reduction.watch(self.module()).map(|(module, sender, receiver)| LastPass {
            module,
            lane,
            reduction,
            sender,
            receiver,
        });
    }

    /// Runs the backward pass of `loss`, `[1]`, and adds the gradients of the module's parameters to the step's sum.
    pub fn accumulate(&mut self, loss: &Tensor<1>) {
        let Some(LastPass { lane, reduction, sender, receiver, .. }) = self.last_pass.take() else {
            let mut gradients = loss.backward();
            self.gradients.add(self.module.as_ref().expect("the module is in its place between steps"), &mut gradients);
            return;
        };
        let current = Some((lane, std::mem::take(&mut self.gradients)));
        let own = RankGradients { lanes: std::mem::take(&mut self.lanes), current };
        self.reduction = Some(std::thread::spawn(move || reduction.sum_during_backward(own, &receiver)));
        drop(loss.backward());
        // The receiver is gone if a rank has failed.
        drop(sender.send(None));
    }

    /// Ends a lane: its sum is what was accumulated since the previous lane ended.
    pub fn end_lane(&mut self, lane: usize) {
        if self.reduction.is_some() {
            // The sum over ranks includes this lane.
            return;
        }
        let sum = std::mem::take(&mut self.gradients);
        self.lanes.push(lane, (!sum.is_empty()).then_some(sum));
    }

    /// Adds up the lanes of all ranks, after all lanes of this rank have ended or one has failed (`is_ok` is false). Every rank then has
    /// the whole gradient, with the same bits for any number of ranks. If a rank has failed, no rank has a gradient.
    pub fn reduce(&mut self, lanes: Lanes, is_ok: bool) {
        self.last_pass = None;
        let (current, own) = (std::mem::take(&mut self.gradients), std::mem::take(&mut self.lanes));
        debug_assert!(current.is_empty() || !is_ok, "a lane has not ended");
        let sum = match self.reduction.take() {
            Some(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            None if lanes.ranks().is_alone() => Ok(own.into_sum().filter(|_| is_ok).unwrap_or_default()),
            None => {
                let own = is_ok.then_some(RankGradients { lanes: own, current: None });
                Reduction::new(self.module(), lanes, lanes.ranks()).of(own)
            }
        };
        // This rank may have failed after its sum with the others began.
        self.gradients = sum.ok().filter(|_| is_ok).unwrap_or_default();
    }

    /// Takes one optimizer step with the accumulated gradients. Returns their norm before clipping to `max_grad_norm`.
    ///
    /// # Errors
    /// If a gradient contains a NaN or an infinity; the message names the parameter. The weights are unchanged.
    pub fn step(&mut self, learning_rate: f64, max_grad_norm: f64) -> Result<f64, String> {
        Ok(self.ready(max_grad_norm)?.take(learning_rate))
    }

    /// Returns the norm of the accumulated gradients.
    pub fn gradient_norm(&self) -> f64 {
        self.gradients.norm()
    }

    /// Prepares a step with the accumulated gradients, clipped to `max_grad_norm`, without taking it. If several learners step together,
    /// all of them can be checked before the first one moves.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn ready(&mut self, max_grad_norm: f64) -> Result<Step<'_, M>, String> {
        self.ready_with_joint_norm(max_grad_norm, 0.0)
    }

    /// As [`ready`](Self::ready), but clips by the joint norm of these gradients and of other gradients whose norm is `others`.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn ready_with_joint_norm(&mut self, max_grad_norm: f64, others: f64) -> Result<Step<'_, M>, String> {
        let mut gradients = std::mem::take(&mut self.gradients);
        let norm = gradients.clip_by_joint_norm(max_grad_norm, others);
        if !norm.is_finite() {
            let name = gradients.first_not_finite().unwrap_or("several parameters together");
            return Err(format!("the gradient of `{name}` is not finite"));
        }
        Ok(Step { learner: self, gradients, norm })
    }

    /// Changes the parameters. All changes go through this function.
    fn change(&mut self, changed: impl FnOnce(&mut Optimizer, M) -> M) {
        self.version += 1;
        let module = self.module.take().expect("the module is in its place between steps");
        self.module = Some(changed(&mut self.optimizer, module));
    }

    /// Discards the accumulated gradients.
    pub fn discard(&mut self) {
        (self.gradients, self.lanes, self.last_pass) = (GradientSum::default(), LaneSums::default(), None);
    }
}

/// A step with finite gradients that can be taken. Dropping it discards its gradients.
#[must_use = "the weights move when it is taken"]
#[derive(Debug)]
pub struct Step<'l, M: Module> {
    learner: &'l mut Learner<M>,
    gradients: GradientSum,
    norm: f64,
}

impl<M: Module> Step<'_, M> {
    /// Moves the weights and returns the norm of the gradient before clipping.
    pub fn take(self, learning_rate: f64) -> f64 {
        let Self { learner, gradients, norm } = self;
        learner.change(|optimizer, module| optimizer.step(learning_rate, module, gradients));
        norm
    }
}
