//! What a run will hold in memory, phase by phase, before anything of it is allocated.
//!
//! [`terms`] has the formulas, one for each thing that is held; this file says which are held together. The passes are
//! those that the run will make: its order of rows depends on the seed alone. Only completions are not known before they
//! are sampled; they count as long as they may become.

mod suggestion;
pub mod terms;

use rand::seq::SliceRandom;
use serde::Serialize;

use crate::batches::{MicroBatch, Order};
use crate::generate::{PREFILL_TOKENS, ROWS_AT_ONCE};
use crate::model::WeightFormat;
use crate::ranks::REDUCED_AT_ONCE;
use crate::rng::Purpose;
use terms::{Head, Model, Moments, NUMBER, Pass, Place};

/// What a run computes, by the sizes that memory follows from.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// The model that is trained.
    pub policy: Model,
    /// A critic with a trunk of its own: trained too.
    pub critic: Option<Model>,
    /// The frozen reference.
    pub reference: Reference,
    /// Reward models.
    pub rewards: Vec<Model>,
    /// What metrics ask. The texts that they read are as long as a pass may be.
    pub metrics: Vec<Model>,
    /// Bytes of weights that reference and critic share with the policy until its first step.
    pub shared_at_first: u64,
    /// Every row, pair or prompt with a completion.
    pub rows: Vec<Row>,
    /// Which of them each step takes.
    pub steps: Steps,
    /// How large a pass may be.
    pub passes: MicroBatch,
    /// Whether the longest pass is tried before the first step.
    pub tries_longest: bool,
    /// What the optimizer remembers of each trained number.
    pub moments: Moments,
    /// The ranks that share the lanes of `passes`. What is forecast is the memory of one of them.
    pub ranks: usize,
    /// Whether each rank keeps only its share of the moments.
    pub shards_moments: bool,
    /// Whether a GPU leaves the moments to the machine's own memory.
    pub offloads_moments: bool,
    /// Whether a copy of the policy is held that follows it, and reads what is sampled.
    pub has_lagged: bool,
    /// Where something else than the optimizer moves the policy, before the critic learns: vectors as long as what it trains
    /// that are held meanwhile.
    pub vectors: Option<u64>,
    /// What online methods sample: in an iteration, in an evaluation.
    pub sampling: Vec<Sampling>,
    /// How the weights that sample are held.
    pub sampling_weights: WeightFormat,
    /// Bytes of the rows in memory, as text and as ids, and of the tokenizer.
    pub host_bytes: u64,
    /// The GPU that computes; `None`: the processor.
    pub gpu: Option<String>,
}

/// A row, a pair, or a prompt with a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Tokens of all its sequences: what the limits of a pass count.
    pub tokens: usize,
    /// Predicted tokens.
    pub targets: usize,
    /// Tokens that are computed: what a pair's sequences begin with counts once.
    pub computed: usize,
    /// How many of them an encoder reads.
    pub sources: usize,
    /// The same where its neighbor before it is the same prompt: then the prompt is computed already.
    pub computed_after: usize,
}

/// Where a frozen reference is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reference {
    /// Nowhere.
    None,
    /// It is asked once before training and then forgotten; `None`: it shares the policy's weights.
    First(Option<Model>),
    /// Beside the policy.
    Beside(Model),
}

/// Which rows the steps take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Steps {
    /// The order of the rows.
    pub order: Order,
    /// Steps, or iterations of online methods.
    pub count: usize,
    /// How often each row comes: completions of a prompt.
    pub group_size: usize,
    /// Parts of a batch that are stepped on one after the other.
    pub mini_batches: usize,
    /// How often a step goes over its batch.
    pub update_epochs: usize,
    /// Whether each part puts the completions of a prompt together again.
    pub regroups: bool,
}

/// Completions that are sampled together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sampling {
    /// Prompts.
    pub prompts: usize,
    /// Completions of each.
    pub group_size: usize,
    /// Tokens of the longest prompt.
    pub prompt_tokens: usize,
    /// Tokens of a completion at most.
    pub new_tokens: usize,
}

/// One stretch of a run and what it holds at its peak, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Phase {
    /// `load`, `reference`, `trial`, `sampling`, `scoring`, `measuring`, `update`, `optimizer` or `checkpoint`.
    pub name: &'static str,
    /// Weights of all models.
    pub weights: u64,
    /// Gradients.
    pub gradients: u64,
    /// The optimizer's moments.
    pub moments: u64,
    /// What the backward pass needs of the forward pass.
    pub activations: u64,
    /// Everything else that comes and goes: logits, caches, copies, gradients on their way.
    pub working: u64,
    /// Pages that the allocator holds beyond all this.
    pub pages: u64,
    /// The program, its tokenizer and the rows.
    pub program: u64,
}

impl Phase {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.parts().map(|(_, bytes)| bytes).sum()
    }

    /// Its parts with their names.
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

/// What a run will hold.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Forecast {
    /// The phases, in the order in which they first come: in the memory of the device that computes.
    pub phases: Vec<Phase>,
    /// The GPU whose memory that is; `None`: the machine's own.
    pub gpu: Option<String>,
    /// Bytes of the machine's own memory, where a GPU computes.
    pub host_bytes: Option<u64>,
    /// Tokens of the longest pass.
    pub longest_pass_tokens: usize,
    /// The largest total, in bytes.
    pub peak_bytes: u64,
}

impl Forecast {
    /// The phase that needs most.
    pub fn peak(&self) -> &Phase {
        self.phases.iter().max_by_key(|phase| phase.total()).expect("a run has phases")
    }
}

/// Bytes of the program itself: code, allocator, thread stacks.
const PROGRAM: u64 = 16 << 20;

/// What the allocator holds beyond what is in use, as a fraction of it. The binary keeps freed memory for the next step,
/// and a block of one size seldom fits where one of another was. Measured for every method with GPT-2's 124 million
/// parameters 0.15 to 0.20, with 17 million 0.22 for SFT and 0.26 to 0.33, run by run, for GRPO.
const KEPT: f64 = 0.19;

/// Bytes that a GPU's driver takes for a program that computes on it, with its kernels. CUDA's own take about half a gigabyte on
/// recent GPUs.
const GPU_PROGRAM: u64 = 512 << 20;

/// Bytes of the last moments of a run: plots are drawn.
const PLOTS: u64 = 12 << 20;

/// Rows whose passes are looked at one by one; a run has any number of steps.
const ROWS_WALKED: usize = 500_000;

impl Workload {
    /// The same on the GPU of this name, which has its own memory.
    #[must_use]
    pub fn on_gpu(self, name: String) -> Self {
        let there = |model: Model| Model { place: Place::Gpu, ..model };
        let reference = match self.reference {
            Reference::None => Reference::None,
            Reference::First(model) => Reference::First(model.map(there)),
            Reference::Beside(model) => Reference::Beside(there(model)),
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

    /// The peak of every phase.
    pub fn forecast(&self) -> Forecast {
        let mut phases = vec![self.load()];
        if let Reference::First(model) = self.reference {
            // Without one of its own the reference shares the weights that are not packed.
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
            phase.pages = (KEPT * (phase.total() - phase.program) as f64) as u64;
        }
        let peak_bytes = phases.iter().map(Phase::total).max().unwrap_or(0);
        let longest_pass_tokens = if self.tries_longest { longest.tokens } else { pass.tokens };
        let host_bytes = self.gpu.as_ref().map(|_| self.on_host());
        Forecast { phases, gpu: self.gpu.clone(), host_bytes, longest_pass_tokens, peak_bytes }
    }

    /// What is held in the machine's own memory where a GPU computes: the program, its rows, and a tensor on its way; quantized weights
    /// stay there beside their copies.
    fn on_host(&self) -> u64 {
        let models = self.trained().chain(self.beside()).chain(self.rewards.iter().chain(&self.metrics).copied());
        let on_the_way = PLOTS.max(2 * self.policy.largest_tensor());
        // A tensor and its gradient are there while they are moved.
        let moments = if self.offloads() { self.moments() } else { 0 };
        moments + PROGRAM + self.host_bytes + on_the_way + models.map(|model| model.kept_on_host()).sum::<u64>()
    }

    /// The longest pass that `count` of the rows can hold, each as often as it comes in a step.
    fn longest_pass(&self, count: usize) -> Pass {
        let group = self.steps.group_size;
        let lengths: Vec<usize> = self.rows.iter().flat_map(|row| std::iter::repeat_n(row.tokens, group)).collect();
        let chosen = self.passes.longest(&lengths, count);
        self.pass(&chosen.into_iter().map(|i| i / group).collect::<Vec<_>>())
    }

    /// What is computed of `rows` in one pass.
    fn pass(&self, rows: &[usize]) -> Pass {
        let mut pass = Pass::default();
        for (i, &row) in rows.iter().enumerate() {
            let Row { targets, computed, computed_after, sources, .. } = self.rows[row];
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

    /// The models in training.
    fn trained(&self) -> impl Iterator<Item = Model> {
        std::iter::once(self.policy).chain(self.critic)
    }

    /// What is trained; its gradients take as much.
    fn trained_weights(&self) -> u64 {
        self.trained().map(|model| model.trained()).sum()
    }

    /// The models that the optimizer moves.
    fn stepped(&self) -> impl Iterator<Item = Model> {
        self.trained().skip(usize::from(self.vectors.is_some()))
    }

    /// What of them it moves.
    fn stepped_weights(&self) -> u64 {
        self.stepped().map(|model| model.trained()).sum()
    }

    /// The reference, where it stays.
    fn beside(&self) -> Option<Model> {
        match self.reference {
            Reference::Beside(model) => Some(model),
            Reference::None | Reference::First(_) => None,
        }
    }

    /// The copy of what the policy trains, which is the policy's own until the first step.
    fn lagged(&self) -> u64 {
        if self.has_lagged { self.policy.trained() } else { 0 }
    }

    /// The moments of this rank.
    fn moments(&self) -> u64 {
        let all: u64 = self.stepped().map(|model| model.moments(self.moments)).sum();
        all / if self.shards_moments { self.ranks as u64 } else { 1 }
    }

    /// Whether moments are in another memory than weights.
    fn offloads(&self) -> bool {
        self.offloads_moments && self.gpu.is_some()
    }

    /// What is there from the first step on: weights, moments, the program.
    fn held(&self, name: &'static str) -> Phase {
        let asked = self.rewards.iter().chain(&self.metrics).copied();
        let frozen = self.beside().into_iter().chain(asked);
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

    /// What is there when the first step begins: weights that are still shared.
    fn at_first(&self, name: &'static str) -> Phase {
        let held = self.held(name);
        Phase { weights: held.weights - self.shared_at_first - self.lagged(), ..held }
    }

    /// What is there before training is set up: no moments yet.
    fn before(&self, name: &'static str) -> Phase {
        Phase { moments: 0, ..self.at_first(name) }
    }

    /// Reading the weights, tensor by tensor.
    fn load(&self) -> Phase {
        let on_the_way = if self.gpu.is_some() { 1 } else { 2 };
        Phase { working: on_the_way * self.policy.largest_tensor(), ..self.before("load") }
    }

    /// Sampling: the weights packed for it, the cache, the prompts' forward pass or the logits of all prompts and rows.
    fn sampling(&self) -> Phase {
        let shape = self.policy.shape;
        let working = |&Sampling { prompts, group_size, prompt_tokens, new_tokens }: &Sampling| {
            let prompts = prompts.min((ROWS_AT_ONCE / group_size.max(1)).max(1));
            let rows = prompts * group_size;
            let cached = (prompts * prompt_tokens + rows * new_tokens) as u64;
            // No memory is so large; and what is added to it has room.
            let a_token = 8 * (shape.layers * shape.kv_width()) as u64;
            let cache = a_token.saturating_mul(cached).min(u64::MAX >> 8);
            let at_once = (prompts * prompt_tokens).min(PREFILL_TOKENS.max(prompt_tokens));
            let prefill = match shape.has_encoder() {
                true => self.policy.forward(Pass { tokens: prompts, targets: 0, sources: at_once }),
                false => self.policy.forward(Pass { tokens: at_once, targets: 0, sources: 0 }),
            };
            let logits = 4 * shape.vocabulary as u64 * (prompts + rows) as u64;
            let readers = 1 + u64::from(self.has_lagged);
            // On a GPU a layer's keys and values are joined for each token: once more that layer's, and the scores of its heads.
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
    fn scoring(&self, pass: Pass) -> Phase {
        let models = self.rewards.iter().copied().chain(self.beside()).chain(self.critic);
        let working = models.map(|model| model.forward(pass)).max().unwrap_or(0);
        Phase { working, ..self.held("scoring") }
    }

    /// Passes of the models that metrics ask, over texts of their own.
    fn measuring(&self) -> Option<Phase> {
        let tokens = self.passes.tokens.min(self.rows.iter().map(|row| row.tokens).sum());
        let working = self.metrics.iter().map(|model| {
            let targets = if model.head == Head::Language { tokens } else { 0 };
            match model.shape.has_encoder() {
                true => model.forward(Pass { tokens: 0, targets, sources: tokens }),
                false => model.forward(Pass { tokens, targets, sources: 0 }),
            }
        });
        Some(Phase { working: working.max()?, ..self.held("measuring") })
    }

    /// The sums of lanes that a rank holds beside that of the lane under way: one a level of their tree at most.
    fn lanes(&self) -> u64 {
        let own = self.passes.lanes.count().div_ceil(self.ranks);
        u64::from(own.next_power_of_two().trailing_zeros()) * self.trained_weights()
    }

    /// The sum of the gradients of all ranks: the rank's own, the whole, and three blocks on their way.
    fn reduction(&self) -> Option<Phase> {
        let sums = self.trained_weights();
        let blocks = 3 * sums.min(4 * REDUCED_AT_ONCE as u64);
        (self.ranks > 1).then(|| Phase { gradients: 2 * sums, working: blocks, ..self.held("ranks") })
    }

    /// The pass of all steps that holds most, with what it holds: also the gradients of the passes before it.
    fn update(&self) -> (Phase, Pass) {
        let (first, later, sums) = (self.at_first("update"), self.held("update"), self.trained_weights());
        let mut most = (first, Pass::default());
        let mut consider = |pass: Pass, sums: u64, held: Phase| {
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
                // After so many, the longest pass that any step can hold is as good as what the rest would hold.
                consider(self.pass(&self.longest()), sums + self.lanes(), later);
                break;
            }
        }
        most
    }

    /// The rows of the longest pass that a step can hold.
    fn longest(&self) -> Vec<usize> {
        let Steps { order, group_size, .. } = self.steps;
        let mut rows: Vec<usize> = (0..self.rows.len()).collect();
        rows.sort_by_key(|&row| std::cmp::Reverse(self.rows[row].tokens));
        // A row has a token at least: no pass holds more rows than tokens.
        let candidates = rows.into_iter().flat_map(|row| std::iter::repeat_n(row, group_size));
        let candidates: Vec<usize> = candidates.take(self.passes.tokens.saturating_add(1)).collect();
        let lengths: Vec<usize> = candidates.iter().map(|&row| self.rows[row].tokens).collect();
        let chosen = self.passes.longest(&lengths, order.batch_size.saturating_mul(group_size));
        chosen.into_iter().map(|at| candidates[at]).collect()
    }

    /// The rows of every step, in order.
    fn batches(&self) -> impl Iterator<Item = Vec<usize>> {
        let Steps { order, count, group_size, .. } = self.steps;
        let batches = if self.sampling.is_empty() { order.batches(count) } else { order.full_batches(count) };
        batches.map(move |batch| batch.into_iter().flat_map(|row| std::iter::repeat_n(row, group_size)).collect())
    }

    /// The parts of a batch that are stepped on, in order; see `algorithm::Update::order`.
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

    /// Forward and backward of one pass on top of what is `held`, with `sums` bytes of gradients from passes before it; where
    /// there are `vectors`, of the policy with those, and then of the critic.
    fn backward(&self, pass: Pass, sums: u64, held: Phase, vectors: Option<u64>) -> Phase {
        let held = Phase { gradients: sums, ..held };
        let (policy, critic) = (self.policy, self.critic);
        // Of the policy's gradients beside the critic's pass: its own pass is over.
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

    /// Writing, tensor by tensor, and the plots at the end.
    fn checkpoint(&self) -> Phase {
        let largest = self.policy.largest_tensor().min(self.policy.trained());
        let working = if self.gpu.is_some() { largest } else { PLOTS.max(2 * largest) };
        Phase { working, ..self.held("checkpoint") }
    }
}
