//! What all trainers share: the keys under `train`, and what the loops take from them.

mod episode;
mod evaluation;
mod resolved;
mod rollouts;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::batches::MicroBatch;
use crate::data::{RowFilter, parse_rename};
pub use crate::data::{Side, TooLong};
pub use crate::learner::optimizer::MomentFormat;
use crate::learner::optimizer::{AdamWConfig, OptimizerConfig, RmsPropConfig};
use crate::model::{self, Precision, SavedWeights, WeightFormat};
pub use episode::{EnvironmentConfig, EpisodeConfig, ToolConfig};
pub use evaluation::EvaluationConfig;
pub use resolved::Settings;
pub use rollouts::{ImportanceSamplingMode, RolloutsConfig, server_key};

/// Keys of every method.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TrainConfig {
    /// Passes over the data. Default 1. `max_steps` wins where both are given.
    pub epochs: f64,
    /// Optimizer steps (online methods: iterations). Default: from `epochs`.
    pub max_steps: Option<usize>,
    /// Rows (offline: rows or pairs; online: prompts) a step. Default 8 (TRL).
    #[schemars(range(max = 1_000_000))]
    pub batch_size: usize,
    /// Rows of one forward and backward pass. Default: bounded by `micro_batch_tokens`. The result does not depend on it.
    pub micro_batch_size: Option<usize>,
    /// Tokens of one forward and backward pass at most. Default 4096.
    #[schemars(range(max = 100_000_000))]
    pub micro_batch_tokens: usize,
    /// In how many parts the rows of an optimizer step are added up: a power of two. Within a part, gradients are added up in the order
    /// of the rows, and the parts in a fixed binary tree. So a run gives the same bits on any number of ranks up to this one. Default: 1;
    /// 8 for a run that is started on ranks (`--ranks`, `mpirun`, `srun`).
    #[schemars(range(max = 65_536))]
    pub lanes: Option<usize>,
    /// Keep the moments of the optimizer once over all ranks, each rank its share (ZeRO-1), instead of once on each. The results are the
    /// same bits. Default false.
    pub shard_moments: bool,
    /// Compute the longest pass once before the first step, without an update, so that memory trouble shows at once. Default true; the result does not depend on it.
    pub try_longest: bool,
    /// Refuse a run that needs more memory than the machine has, before anything is loaded. Default true.
    pub memory_check: bool,
    /// Gradient checkpointing (TRL's `gradient_checkpointing`): compute each transformer block again in the backward pass
    /// instead of keeping its activations. Less memory for one more forward pass (about a third more arithmetic); the result is the same, to the bit. Default false (TRL: true).
    pub recompute: bool,
    /// Peak learning rate. Default by method, as in TRL.
    pub learning_rate: Option<f64>,
    /// How the learning rate falls after warm-up. Default `linear` (TRL).
    pub lr_schedule: LrSchedule,
    /// Steps over which the learning rate rises from 0; below 1, a fraction of all steps. Default 0.
    pub warmup_steps: f64,
    /// Weight decay, never on biases and norms: AdamW's is decoupled, RMSprop's part of the gradient. Default 0 (TRL).
    pub weight_decay: f64,
    /// The optimizer. Default `adamw` (TRL).
    pub optimizer: OptimizerName,
    /// AdamW's decay rates of the two moments. Default [0.9, 0.999] (TRL).
    pub adam_betas: [f64; 2],
    /// AdamW's epsilon. Default 1e-8 (TRL).
    pub adam_epsilon: f64,
    /// How AdamW's two moments are held: `f32`, or `int8` (bitsandbytes' 8-bit AdamW): a quarter of the memory, for a small error in each
    /// step. Default `f32` (TRL).
    pub moments: MomentFormat,
    /// Hold the moments in the machine's own memory while a GPU computes. The processor makes the optimizer's steps: each step copies weights
    /// and gradients to it and weights back. Default false; on `cpu` it changes nothing.
    pub offload_moments: bool,
    /// RMSprop's decay rate of the squared gradient's mean. Default 0.99 (PyTorch, A2C in RL4LMs).
    pub rmsprop_alpha: f64,
    /// RMSprop's epsilon, added to the root of that mean. Default 1e-8 (PyTorch; A2C in RL4LMs 1e-5).
    pub rmsprop_epsilon: f64,
    /// Gradients are scaled down to this norm; 0 turns it off. Default 1 (TRL).
    pub max_grad_norm: f64,
    /// Longest row in tokens, prompt and completion together; where an encoder reads the prompt, each of them. Default 1024 (TRL).
    pub max_length: usize,
    /// The treatment of longer rows. The default depends on the method, as in TRL.
    pub too_long: Option<TooLong>,
    /// Longest prompt in tokens that completions are sampled for; longer ones are cut. Rows of preferences are cut by `too_long` alone.
    /// Default: no prompt is cut, and prompts without room for a completion within `max_length` are left out.
    pub max_prompt_length: Option<usize>,
    /// The side at which such prompts are cut. Default `left` (RL4LMs).
    pub prompt_truncation: Side,
    /// Rows that are left out of training and evaluation: ties, equal answers, short answers. Default: none.
    pub filter: RowFilter,
    /// Leave bad rows out instead of ending the run: gradus reports how many, and `skipped_rows.jsonl` in the run directory lists each
    /// with what is wrong. Default false.
    pub skip_bad_rows: bool,
    /// Use at most this many training rows.
    pub max_rows: Option<usize>,
    /// Draw those `max_rows` rows at random by the seed, instead of taking the first of the file. Default false.
    pub max_rows_at_random: bool,
    /// Use at most this many held-out rows. Default 1000; online methods 100, unless it is given.
    pub max_eval_rows: usize,
    /// The share of training rows held out when there is no `eval_data`; 0 turns it off. Default 0.05, but at least 16 rows (or a fifth of fewer than 80), and none without shuffling.
    pub eval_fraction: f64,
    /// Write an event file for TensorBoard, `tensorboard/`, beside `metrics.jsonl`. Default false.
    pub tensorboard: bool,
    /// Write an offline run of Weights & Biases, `wandb/offline-run-…`, for `wandb sync`. Default false.
    pub wandb: bool,
    /// The project of the run there. Default `gradus`.
    pub wandb_project: Option<String>,
    /// The user or team that the project belongs to. Default: whoever uploads it.
    pub wandb_entity: Option<String>,
    /// The name of the run there. Default: the name of the run directory.
    pub wandb_name: Option<String>,
    /// Evaluate every so many steps; 0 only at the end; -1 never. Default 0.
    pub eval_steps: i64,
    /// Evaluate on so many held-out rows, drawn anew with replacement each time. Default: on all of them, every time the same.
    pub eval_sample: Option<usize>,
    /// How evaluations complete held-out prompts, and what measures the completions.
    pub evaluation: EvaluationConfig,
    /// Write a checkpoint every so many steps; 0 only at the end. Default 0.
    pub save_steps: usize,
    /// Keep this many checkpoints. Default 2.
    pub keep_checkpoints: usize,
    /// Append to `metrics.jsonl` every so many steps. Default 1.
    pub logging_steps: usize,
    /// Keep every completion that was trained on in `rollouts.sqlite` (online methods); those of evaluations and warnings
    /// are kept there either way. Default true: they show what the reward really pays for, and a thousand steps of
    /// 64 completions of 200 tokens take about 100 MB.
    pub save_rollouts: bool,
    /// The held-out metric that decides which model is `best/`, and whether larger or smaller is better follows from
    /// its name. Default by method.
    pub best_metric: Option<String>,
    /// Stop when the best metric has not improved for so many evaluations; 0 never. Default 0.
    pub early_stopping_patience: usize,
    /// Shuffle the rows each epoch. Default true; `--no-shuffle` keeps the file's order.
    pub shuffle: bool,
    /// Draw prompts with replacement, with probabilities in proportion to their column `weight` (1 without one) to this power. 0 draws all alike. For
    /// online methods only (RL4LMs' priority sampler, whose weights are all 1). Default: none, so every prompt comes once an epoch.
    pub priority_scale: Option<f64>,
    /// Dropout as the model's configuration says, instead of none. For sft, reward, classify, and for the updates of online methods except trpo.
    /// Completions are sampled and scored without dropout. The ratios of ppo, nlpo and a2c compare with logprobs without dropout, so the first
    /// ratios are not 1 (FineGrainedRLHF). The ratios of grpo and rloo compare with logprobs with dropout (TRL). Default false.
    pub dropout: bool,
    /// The seed of every random stream. Default 42 (TRL).
    pub seed: u64,
    /// Where to compute: `cpu`; in a build with the cargo feature `cuda` or `wgpu` also `gpu`, `gpu:1` and so on (`gradus
    /// doctor` lists them). Default `cpu`.
    pub device: String,
    /// How the operands of matrix products are held: `f32` or `bf16` (about twice as fast where the processor
    /// multiplies it; weights, sums and the optimizer stay in f32, frozen models are kept in bf16). Default `f32`.
    #[serde(with = "model::word")]
    #[schemars(schema_with = "model::word::schema::<Precision>")]
    pub compute: Precision,
    /// How the weights that completions are sampled with are held: `f32`, `bf16`, `int8` or `nf4`. Coarser than `compute`,
    /// sampling is faster, logprobs are computed again by the policy itself, and how far the two are apart is
    /// reported. Default: as `compute`.
    #[serde(with = "model::word::optional")]
    #[schemars(schema_with = "model::word::optional::schema::<WeightFormat>")]
    pub sampling_weights: Option<WeightFormat>,
    /// How weights are held that are not trained (the base under an adapter, reference, reward models): `f32`, `bf16`,
    /// `int8` or `nf4` (under an adapter QLoRA, Dettmers et al. 2023). Default: as `compute`.
    #[serde(with = "model::word::optional")]
    #[schemars(schema_with = "model::word::optional::schema::<WeightFormat>")]
    pub frozen_weights: Option<WeightFormat>,
    /// How the weights of `model/` and `best/` lie on disk: `f32`, `bf16` or `f16` (half the size, rounded). Checkpoints, adapters
    /// and critics keep `f32`. Default `f32`.
    #[serde(with = "model::word")]
    #[schemars(schema_with = "model::word::schema::<SavedWeights>")]
    pub saved_weights: SavedWeights,
    /// Threads. Default: one per core.
    #[schemars(range(max = 1_024))]
    pub threads: Option<usize>,
    /// The column that holds plain text for language modeling. Default `text`.
    pub text_column: String,
    /// Columns that are read under other names, as `name=column`: `prompt=question` takes the column `question` for the prompt.
    pub column: Vec<String>,
    /// The system message of every conversation that has none of its own. Rows that are not conversations are refused then. Default: none.
    pub system_prompt: Option<String>,
    /// Read transcripts (`\n\nHuman: …\n\nAssistant: …`, as in HH-RLHF) as conversations, which the model's chat template
    /// renders. Default false: they are trained on as they are written.
    pub transcripts_as_messages: bool,
    /// A chat template that replaces the model's own: a file, or the name of one (`chatml`, `gemma`, `llama2`, `llama3`,
    /// `mistral`, `phi3`, `qwen`, `zephyr`).
    pub chat_template: Option<std::path::PathBuf>,
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            epochs: 1.0,
            max_steps: None,
            batch_size: 8,
            micro_batch_size: None,
            micro_batch_tokens: 4096,
            lanes: None,
            shard_moments: false,
            try_longest: true,
            memory_check: true,
            recompute: false,
            learning_rate: None,
            lr_schedule: LrSchedule::Linear,
            warmup_steps: 0.0,
            weight_decay: 0.0,
            optimizer: OptimizerName::AdamW,
            adam_betas: [0.9, 0.999],
            adam_epsilon: 1e-8,
            moments: MomentFormat::F32,
            offload_moments: false,
            rmsprop_alpha: 0.99,
            rmsprop_epsilon: 1e-8,
            max_grad_norm: 1.0,
            max_length: 1024,
            max_prompt_length: None,
            prompt_truncation: Side::Left,
            too_long: None,
            filter: RowFilter::default(),
            skip_bad_rows: false,
            max_rows: None,
            max_rows_at_random: false,
            max_eval_rows: 1000,
            eval_fraction: 0.05,
            eval_steps: 0,
            eval_sample: None,
            evaluation: EvaluationConfig::default(),
            save_steps: 0,
            keep_checkpoints: 2,
            logging_steps: 1,
            save_rollouts: true,
            tensorboard: false,
            wandb: false,
            wandb_project: None,
            wandb_entity: None,
            wandb_name: None,
            best_metric: None,
            early_stopping_patience: 0,
            shuffle: true,
            priority_scale: None,
            dropout: false,
            seed: 42,
            device: "cpu".into(),
            compute: Precision::F32,
            sampling_weights: None,
            frozen_weights: None,
            saved_weights: SavedWeights::F32,
            threads: None,
            text_column: "text".into(),
            column: Vec::new(),
            system_prompt: None,
            transcripts_as_messages: false,
            chat_template: None,
        }
    }
}

/// What moves weights against their gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerName {
    /// Adam with decoupled weight decay (Loshchilov and Hutter 2019).
    AdamW,
    /// RMSprop without momentum, not centered (Tieleman and Hinton 2012).
    RmsProp,
}

impl TrainConfig {
    /// How large a forward pass may be.
    pub fn passes(&self) -> MicroBatch {
        MicroBatch::new(self.micro_batch_tokens, self.micro_batch_size)
    }

    /// `column` as (name in the file, name here).
    ///
    /// # Errors
    /// The first that has another form.
    pub fn renames(&self) -> Result<Vec<(String, String)>, String> {
        let parse =
            |pair: &String| parse_rename(pair).map_err(|message| format!("`train.column` is `{pair}`: {message}"));
        self.column.iter().map(parse).collect()
    }

    /// The optimizer with its constants.
    pub fn optimizer(&self) -> OptimizerConfig {
        let weight_decay = self.weight_decay;
        match self.optimizer {
            OptimizerName::AdamW => {
                let (betas, epsilon, moments) = (self.adam_betas, self.adam_epsilon, self.moments);
                AdamWConfig { betas, epsilon, weight_decay, moments }.into()
            }
            OptimizerName::RmsProp => {
                RmsPropConfig { alpha: self.rmsprop_alpha, epsilon: self.rmsprop_epsilon, weight_decay }.into()
            }
        }
    }
}

/// The shape of the learning rate after warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LrSchedule {
    /// Falls to 0 in a straight line: update k of N has the multiplier (N − k)/N.
    Linear,
    /// Falls to 0 along half a cosine.
    Cosine,
    /// Stays.
    Constant,
}
