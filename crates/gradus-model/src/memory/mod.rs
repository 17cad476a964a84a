//! Forecast of the memory that a run needs in each phase, before any of it is allocated.
//!
//! [`terms`] has the formulas, one per kind of allocation; this file combines those that exist at the same time. The passes are exactly
//! those of the run, because its order of rows depends only on the seed. Completions are counted at their largest length, because they are
//! not known before sampling.

mod suggestion;
pub mod terms;

use rand::seq::SliceRandom;
use serde::Serialize;

use crate::batches::{MicroBatch, Order};
use crate::generate::{PREFILL_TOKENS, ROWS_AT_ONCE};
use crate::model::WeightFormat;
use crate::ranks::REDUCED_AT_ONCE;
use crate::rng::Purpose;
use terms::{DeviceKind, Head, Model, Moments, NUMBER, PassSize};

/// Everything about a run that determines its memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// Model that is trained.
    pub policy: Model,
    /// Critic with its own trunk. It is trained, too.
    pub critic: Option<Model>,
    /// Frozen reference.
    pub reference: Reference,
    /// Reward models.
    pub rewards: Vec<Model>,
    /// Models that metrics use. Their texts are assumed to be as long as a pass may be.
    pub metrics: Vec<Model>,
    /// Bytes of weights that reference and critic share with the policy until its first step.
    pub shared_at_first: u64,
    /// All rows: texts, pairs, or prompts with a completion.
    pub rows: Vec<RowSize>,
    /// Selection of the rows of each step.
    pub steps: Steps,
    /// Limits of a pass.
    pub passes: MicroBatch,
    /// Whether the longest pass is run as a trial before the first step.
    pub tries_longest: bool,
    /// State that the optimizer keeps for each trained parameter.
    pub moments: Moments,
    /// Number of ranks that share the lanes of `passes`. The forecast is for one of them.
    pub ranks: usize,
    /// Whether each rank keeps only its share of the moments.
    pub shards_moments: bool,
    /// Whether a GPU keeps the moments in host memory.
    pub offloads_moments: bool,
    /// Whether a lagged copy of the policy is held and read during sampling.
    pub has_lagged: bool,
    /// Number of vectors, each as long as the policy's trained parameters, that are held while something other than the optimizer updates
    /// the policy before the critic is trained. `None` if the optimizer updates the policy.
    pub vectors: Option<u64>,
    /// Completions that online methods sample together, per iteration and per evaluation.
    pub sampling: Vec<Sampling>,
    /// Format of the weights during sampling.
    pub sampling_weights: WeightFormat,
    /// Bytes of the rows in memory, as text and as ids, and of the tokenizer.
    pub host_bytes: u64,
    /// GPU that computes; `None` for the CPU.
    pub gpu: Option<String>,
}

/// Tokens of a text, of a pair, or of a prompt with a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowSize {
    /// Tokens of all its sequences, as the limits of a pass count them.
    pub tokens: usize,
    /// Predicted tokens.
    pub targets: usize,
    /// Tokens that are computed: the common beginning of a pair's sequences counts once.
    pub computed: usize,
    /// Computed tokens that an encoder reads.
    pub sources: usize,
    /// Computed tokens if the previous row has the same prompt, which is then not computed again.
    pub computed_after: usize,
}

/// How long a frozen reference is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reference {
    /// There is no reference.
    None,
    /// It is used once before training and then dropped. `None` if it shares the policy's weights.
    BeforeTraining(Option<Model>),
    /// It is held during the whole run.
    WholeRun(Model),
}

/// Rows of each step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Steps {
    /// Order of the rows.
    pub order: Order,
    /// Number of steps, or of iterations in online methods.
    pub count: usize,
    /// How often each row is repeated: completions per prompt.
    pub group_size: usize,
    /// Mini-batches, one optimizer step each, of a batch.
    pub mini_batches: usize,
    /// Number of passes over a batch.
    pub update_epochs: usize,
    /// Whether each mini-batch sorts the completions of a prompt together again.
    pub regroups: bool,
}

/// Completions that are sampled together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sampling {
    /// Number of prompts.
    pub prompts: usize,
    /// Completions per prompt.
    pub group_size: usize,
    /// Tokens of the longest prompt.
    pub prompt_tokens: usize,
    /// Largest number of tokens of a completion.
    pub new_tokens: usize,
}

/// One phase of a run and its memory at the peak, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Phase {
    /// `load`, `reference`, `trial`, `sampling`, `scoring`, `measuring`, `update`, `ranks`, `optimizer` or `checkpoint`.
    pub name: &'static str,
    /// Weights of all models.
    pub weights: u64,
    /// Gradients.
    pub gradients: u64,
    /// Moments of the optimizer.
    pub moments: u64,
    /// Results of the forward pass that the backward pass needs.
    pub activations: u64,
    /// Other temporary memory: logits, caches, copies, gradients in transit.
    pub working: u64,
    /// Pages that the allocator holds in addition.
    pub pages: u64,
    /// The program, its tokenizer and the rows.
    pub program: u64,
}

impl Phase {
    /// Sum of all parts.
    pub fn total(&self) -> u64 {
        self.parts().map(|(_, bytes)| bytes).sum()
    }

    /// Parts with their names.
    pub fn parts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let Self { weights, gradients, moments, activations, working, pages, program, .. } = *self;
        let named = [
            ("weights", weights),
            ("gradients", gradients),
            ("moments", moments),
            ("activations", activations),
            ("working memory", working),
            ("kept pages", pages),
            ("program and data", program),
        ];
        named.into_iter()
    }
}

/// Memory forecast of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Forecast {
    /// Phases in the order of their first occurrence, with their memory on the device that computes.
    pub phases: Vec<Phase>,
    /// GPU of the phases; `None` if they are in host memory.
    pub gpu: Option<String>,
    /// Bytes of host memory, if a GPU computes.
    pub host_bytes: Option<u64>,
    /// Tokens of the longest pass.
    pub longest_pass_tokens: usize,
    /// The largest total, in bytes.
    pub peak_bytes: u64,
}

impl Forecast {
    /// Phase with the largest total.
    pub fn peak(&self) -> &Phase {
        self.phases.iter().max_by_key(|phase| phase.total()).expect("a run has phases")
    }
}

/// Bytes of the program itself, measured with two threads. The pages of the program file that a run reads are 40 MB. Another 15 MB are in use
/// before the weights are read. The rest is what threads hold for their parts of a product, and half-used pages: together 100 MB for models of
/// 9 to 51 million parameters.
const PROGRAM: u64 = 96 << 20;

/// Memory that the allocator holds beyond the memory in use, as a fraction of the latter. The binary keeps freed memory for the next step,
/// and a freed block seldom fits a request of another size. With [`PROGRAM`] and [`KEPT_BY_THREADS`], the forecast of a run in one process is at
/// least its peak, for models of 12 to 124 million parameters.
const KEPT: f64 = 0.16;

/// Bytes that the allocator holds in addition, whatever the memory in use: each thread keeps freed blocks of its own.
const KEPT_BY_THREADS: u64 = 32 << 20;

/// As [`KEPT`], for the memory of a GPU.
const KEPT_ON_GPU: f64 = 0.19;

/// Bytes that a GPU's driver and kernels take in a program that computes on it. CUDA alone takes about half a gigabyte on recent GPUs.
const GPU_PROGRAM: u64 = 512 << 20;

/// Bytes for drawing the plots at the end of a run.
const PLOTS: u64 = 12 << 20;

/// Number of rows whose passes are examined one by one. The number of steps has no limit.
const ROWS_WALKED: usize = 500_000;

impl Workload {
    /// Moves the computation to the GPU with this name, which has its own memory.
    #[must_use]
    pub fn on_gpu(self, name: String) -> Self {
        let there = |model: Model| Model { device: DeviceKind::Gpu, ..model };
        let reference = match self.reference {
            Reference::None => Reference::None,
            Reference::BeforeTraining(model) => Reference::BeforeTraining(model.map(there)),
            Reference::WholeRun(model) => Reference::WholeRun(there(model)),
        };
        let all = |models: Vec<Model>| models.into_iter().map(there).collect();
        Self {
            policy: there(self.policy),
            critic: self.critic.map(there),
            reference,
            rewards: all(self.rewards),
            metrics: all(self.metrics),
            gpu: Some(name),
            ..self
        }
    }

    /// Computes the peak of every phase.
    pub fn forecast(&self) -> Forecast {
        let mut phases = vec![self.load()];
        if let Reference::BeforeTraining(model) = self.reference {
            // Without its own weights, the reference shares those of the policy that are not packed.
            let (frozen, model) = match model {
                Some(model) => (model.frozen_weights(), model),
                None => (self.policy.packed_to_sample(self.policy.weights), self.policy),
            };
            let held = self.before("reference");
            let working = model.forward(self.longest_pass(usize::MAX));
            phases.push(Phase { weights: held.weights + frozen, working, ..held });
        }
        let longest = self.longest_pass(self.steps.order.batch_size * self.steps.group_size);
        let first = self.at_first("trial");
        if self.tries_longest {
            phases.push(self.backward(longest, 0, first, None));
        }
        let (update, pass) = self.update();
        if !self.sampling.is_empty() {
            phases.push(self.sampling());
            phases.push(self.scoring(pass));
        }
        phases.extend(self.measuring());
        phases.push(update);
        phases.extend(self.reduction());
        phases.extend([self.optimizer(), self.checkpoint()]);
        for phase in &mut phases {
            phase.pages = self.kept((phase.total() - phase.program) as f64);
        }
        let peak_bytes = phases.iter().map(Phase::total).max().unwrap_or(0);
        let longest_pass_tokens = if self.tries_longest { longest.tokens } else { pass.tokens };
        let host_bytes = self.gpu.as_ref().map(|_| self.on_host());
        Forecast { phases, gpu: self.gpu.clone(), host_bytes, longest_pass_tokens, peak_bytes }
    }

    /// Bytes that the allocator holds in addition to `in_use` bytes.
    fn kept(&self, in_use: f64) -> u64 {
        match self.gpu {
            Some(_) => (KEPT_ON_GPU * in_use) as u64,
            None => (KEPT * in_use) as u64 + KEPT_BY_THREADS,
        }
    }

    /// Host memory if a GPU computes: the program, its rows, and a tensor in transit. Quantized weights stay in host memory in addition to
    /// their copies on the GPU.
    fn on_host(&self) -> u64 {
        let models =
            self.trained().chain(self.whole_run_reference()).chain(self.rewards.iter().chain(&self.metrics).copied());
        let on_the_way = PLOTS.max(2 * self.policy.largest_tensor());
        // A tensor and its gradient are both present while they are moved.
        let moments = if self.offloads() { self.moments() } else { 0 };
        moments + PROGRAM + self.host_bytes + on_the_way + models.map(|model| model.kept_on_host()).sum::<u64>()
    }

    /// Longest pass that `count` of the rows can make up, with each row repeated as in a step.
    fn longest_pass(&self, count: usize) -> PassSize {
        let group = self.steps.group_size;
        let lengths: Vec<usize> = self.rows.iter().flat_map(|row| std::iter::repeat_n(row.tokens, group)).collect();
        let chosen = self.passes.longest(&lengths, count);
        self.pass(&chosen.into_iter().map(|i| i / group).collect::<Vec<_>>())
    }

    /// Computed size of a pass over `rows`.
    fn pass(&self, rows: &[usize]) -> PassSize {
        let mut pass = PassSize::default();
        for (i, &row) in rows.iter().enumerate() {
            let RowSize { targets, computed, computed_after, sources, .. } = self.rows[row];
            pass.targets += targets;
            if i > 0 && rows[i - 1] == row {
                pass.tokens += computed_after;
            } else {
                pass.tokens += computed - sources;
                pass.sources += sources;
            }
        }
        pass
    }

    /// Models in training.
    fn trained(&self) -> impl Iterator<Item = Model> {
        std::iter::once(self.policy).chain(self.critic)
    }

    /// Bytes of the trained weights; their gradients take as much.
    fn trained_weights(&self) -> u64 {
        self.trained().map(|model| model.trained()).sum()
    }

    /// Models that the optimizer updates.
    fn stepped(&self) -> impl Iterator<Item = Model> {
        self.trained().skip(usize::from(self.vectors.is_some()))
    }

    /// Bytes of the weights that the optimizer updates.
    fn stepped_weights(&self) -> u64 {
        self.stepped().map(|model| model.trained()).sum()
    }

    /// Reference, if it is held during the whole run.
    fn whole_run_reference(&self) -> Option<Model> {
        match self.reference {
            Reference::WholeRun(model) => Some(model),
            Reference::None | Reference::BeforeTraining(_) => None,
        }
    }

    /// Bytes of the lagged copy of the trained weights. The policy's own weights serve as this copy until the first step.
    fn lagged(&self) -> u64 {
        if self.has_lagged { self.policy.trained() } else { 0 }
    }

    /// Bytes of the moments on this rank.
    fn moments(&self) -> u64 {
        let all: u64 = self.stepped().map(|model| model.moments(self.moments)).sum();
        all / if self.shards_moments { self.ranks as u64 } else { 1 }
    }

    /// Whether the moments are in a different memory than the weights.
    fn offloads(&self) -> bool {
        self.offloads_moments && self.gpu.is_some()
    }

    /// Memory held from the first step on: weights, moments, the program.
    fn held(&self, name: &'static str) -> Phase {
        let others = self.rewards.iter().chain(&self.metrics).copied();
        let frozen = self.whole_run_reference().into_iter().chain(others);
        let held = self.trained().map(|model| model.held()).chain(frozen.map(|model| model.frozen_weights()));
        let program = if self.gpu.is_some() { GPU_PROGRAM } else { PROGRAM + self.host_bytes };
        let moments = if self.offloads() { 0 } else { self.moments() };
        Phase {
            name,
            weights: held.sum::<u64>() + self.lagged(),
            gradients: 0,
            moments,
            activations: 0,
            working: 0,
            pages: 0,
            program,
        }
    }

    /// Memory held when the first step begins, while some weights are still shared.
    fn at_first(&self, name: &'static str) -> Phase {
        let held = self.held(name);
        Phase { weights: held.weights - self.shared_at_first - self.lagged(), ..held }
    }

    /// Memory held before training is set up, without moments.
    fn before(&self, name: &'static str) -> Phase {
        Phase { moments: 0, ..self.at_first(name) }
    }

    /// Reading the weights, one tensor at a time.
    fn load(&self) -> Phase {
        let on_the_way = if self.gpu.is_some() { 1 } else { 2 };
        Phase { working: on_the_way * self.policy.largest_tensor(), ..self.before("load") }
    }

    /// Sampling: packed weights, KV cache, and the prompts' forward pass or the logits of all prompts and rows.
    fn sampling(&self) -> Phase {
        let shape = self.policy.shape;
        let working = |&Sampling { prompts, group_size, prompt_tokens, new_tokens }: &Sampling| {
            let prompts = prompts.min((ROWS_AT_ONCE / group_size.max(1)).max(1));
            let rows = prompts * group_size;
            let cached = (prompts * prompt_tokens + rows * new_tokens) as u64;
            // The bound exceeds any real memory and leaves room for additions.
            let a_token = 2 * self.policy.attended_number() * (shape.layers * shape.kv_width()) as u64;
            let cache = a_token.saturating_mul(cached).min(u64::MAX >> 8);
            let at_once = (prompts * prompt_tokens).min(PREFILL_TOKENS.max(prompt_tokens));
            let prefill = match shape.has_encoder() {
                true => self.policy.forward(PassSize { tokens: prompts, targets: 0, sources: at_once }),
                false => self.policy.forward(PassSize { tokens: at_once, targets: 0, sources: 0 }),
            };
            let logits = 4 * shape.vocabulary as u64 * (prompts + rows) as u64;
            let readers = 1 + u64::from(self.has_lagged);
            // On a GPU, each token joins a layer's keys and values: a copy of them, plus the scores of its heads.
            let joined = match self.gpu {
                Some(_) => {
                    let scores = 2 * NUMBER * (rows * shape.heads * (prompt_tokens + new_tokens)) as u64;
                    cache / shape.layers.max(1) as u64 + scores
                }
                None => 0,
            };
            let readers_hold = readers * (self.policy.packed_to_sample(self.sampling_weights) + cache);
            readers_hold + prefill.max(readers * (logits + joined))
        };
        Phase { working: self.sampling.iter().map(working).max().unwrap_or(0), ..self.held("sampling") }
    }

    /// Forward passes over finished rollouts: rewards, the reference, the critic's values.
    fn scoring(&self, pass: PassSize) -> Phase {
        let models = self.rewards.iter().copied().chain(self.whole_run_reference()).chain(self.critic);
        let working = models.map(|model| model.forward(pass)).max().unwrap_or(0);
        Phase { working, ..self.held("scoring") }
    }

    /// Passes of the models that metrics use, over their own texts.
    fn measuring(&self) -> Option<Phase> {
        let tokens = self.passes.tokens.min(self.rows.iter().map(|row| row.tokens).sum());
        let working = self.metrics.iter().map(|model| {
            let targets = if model.head == Head::Language { tokens } else { 0 };
            match model.shape.has_encoder() {
                true => model.forward(PassSize { tokens: 0, targets, sources: tokens }),
                false => model.forward(PassSize { tokens, targets, sources: 0 }),
            }
        });
        Some(Phase { working: working.max()?, ..self.held("measuring") })
    }

    /// Bytes of the lane sums that a rank holds in addition to the current lane: at most one per level of their tree.
    fn lanes(&self) -> u64 {
        let own = self.passes.lanes.count().div_ceil(self.ranks);
        u64::from(own.next_power_of_two().trailing_zeros()) * self.trained_weights()
    }

    /// Summing the gradients of all ranks: the rank's own, the sum, and three blocks in transit.
    fn reduction(&self) -> Option<Phase> {
        let sums = self.trained_weights();
        let blocks = 3 * sums.min(4 * REDUCED_AT_ONCE as u64);
        (self.ranks > 1).then(|| Phase { gradients: 2 * sums, working: blocks, ..self.held("ranks") })
    }

    /// Pass of all steps that needs the most memory, including the gradients of the passes before it.
    fn update(&self) -> (Phase, PassSize) {
        let (first, later, sums) = (self.at_first("update"), self.held("update"), self.trained_weights());
        let mut most = (first, PassSize::default());
        let mut consider = |pass: PassSize, sums: u64, held: Phase| {
            let phase = self.backward(pass, sums, held, self.vectors);
            if phase.total() > most.0.total() {
                most = (phase, pass);
            }
        };
        let (mut is_first, mut walked) = (true, 0);
        for (iteration, batch) in self.batches().enumerate() {
            for part in self.parts(iteration, &batch) {
                let lengths: Vec<usize> = part.iter().map(|&row| self.rows[row].tokens).collect();
                for (i, range) in self.passes.in_lanes(&lengths).into_iter().flatten() {
                    let sums = if i > 0 { sums + self.lanes() } else { 0 };
                    consider(self.pass(&part[range]), sums, if is_first { first } else { later });
                }
                is_first = false;
                walked += part.len();
                if walked > ROWS_WALKED {
                    break;
                }
            }
            if walked > ROWS_WALKED {
                // After that many rows, the longest pass that any step can hold stands for the remaining passes.
                consider(self.pass(&self.longest()), sums + self.lanes(), later);
                break;
            }
        }
        most
    }

    /// Rows of the longest pass that a step can hold.
    fn longest(&self) -> Vec<usize> {
        let Steps { order, group_size, .. } = self.steps;
        let mut rows: Vec<usize> = (0..self.rows.len()).collect();
        rows.sort_by_key(|&row| std::cmp::Reverse(self.rows[row].tokens));
        // A row has at least one token, so a pass holds no more rows than tokens.
        let candidates = rows.into_iter().flat_map(|row| std::iter::repeat_n(row, group_size));
        let candidates: Vec<usize> = candidates.take(self.passes.tokens.saturating_add(1)).collect();
        let lengths: Vec<usize> = candidates.iter().map(|&row| self.rows[row].tokens).collect();
        let chosen = self.passes.longest(&lengths, order.batch_size.saturating_mul(group_size));
        chosen.into_iter().map(|at| candidates[at]).collect()
    }

    /// Rows of every step, in order.
    fn batches(&self) -> impl Iterator<Item = Vec<usize>> {
        let Steps { order, count, group_size, .. } = self.steps;
        let batches = if self.sampling.is_empty() { order.batches(count) } else { order.full_batches(count) };
        batches.map(move |batch| batch.into_iter().flat_map(|row| std::iter::repeat_n(row, group_size)).collect())
    }

    /// Mini-batches of a batch, in order; see `algorithm::Update::order`.
    fn parts(&self, iteration: usize, batch: &[usize]) -> Vec<Vec<usize>> {
        let Steps { order, mini_batches, update_epochs, regroups, .. } = self.steps;
        let mut parts = Vec::new();
        let walked = (ROWS_WALKED / batch.len().max(1)).saturating_add(1);
        for epoch in 0..update_epochs.min(walked) {
            let mut rollouts: Vec<usize> = (0..batch.len()).collect();
            if mini_batches > 1 && order.shuffle {
                rollouts.shuffle(&mut order.seed.stream(Purpose::UpdateOrder, iteration as u64, epoch as u64));
            }
            for part in rollouts.chunks_mut(batch.len().div_ceil(mini_batches.max(1)).max(1)) {
                if regroups {
                    part.sort_unstable();
                }
                parts.push(part.iter().map(|&rollout| batch[rollout]).collect());
            }
        }
        parts
    }

    /// Forward and backward pass on top of the `held` memory, with `sums` bytes of gradients from earlier passes. With `vectors`, the
    /// policy's pass holds those, and the critic's pass follows.
    fn backward(&self, pass: PassSize, sums: u64, held: Phase, vectors: Option<u64>) -> Phase {
        let held = Phase { gradients: sums, ..held };
        let (policy, critic) = (self.policy, self.critic);
        // Bytes of the policy's gradients during the critic's pass. Its own pass is over.
        let after = if vectors.is_some() { 0 } else { policy.trained() };
        let vectors = vectors.unwrap_or(0) * policy.trained();
        let mut moments_of_it = vec![
            Phase { activations: policy.saved(pass), working: vectors + policy.backward_begin(pass), ..held },
            Phase { working: vectors + policy.backward_end(pass), ..held },
        ];
        if let Some(critic) = critic {
            let kept = Phase { gradients: sums.max(after), ..held };
            moments_of_it.push(Phase { activations: critic.saved(pass), working: critic.backward_begin(pass), ..kept });
            moments_of_it.push(Phase { working: critic.backward_end(pass), ..kept });
        }
        moments_of_it.into_iter().max_by_key(Phase::total).unwrap_or(held)
    }

    /// The optimizer's step, in place.
    fn optimizer(&self) -> Phase {
        Phase { gradients: self.stepped_weights(), ..self.held("optimizer") }
    }

    /// Writing a checkpoint, one tensor at a time, and the plots at the end.
    fn checkpoint(&self) -> Phase {
        let largest = self.policy.largest_tensor().min(self.policy.trained());
        let working = if self.gpu.is_some() { largest } else { PLOTS.max(2 * largest) };
        Phase { working, ..self.held("checkpoint") }
    }
}
