//! Settings of all trainers: the keys under `train`, and their resolved values.

mod episode;
mod evaluation;
mod lr_schedule;
mod resolved;
mod rollouts;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::batches::MicroBatch;
use crate::data::{RowFilter, parse_rename};
pub use crate::data::{Side, TooLong};
pub use crate::learner::optimizer::MomentFormat;
use crate::learner::optimizer::{AdamWConfig, OptimizerConfig, RmsPropConfig};
use crate::model::{self, Precision, ReferenceSync, SavedWeights, WeightFormat};
pub use episode::{EnvironmentConfig, EpisodeConfig, ToolConfig};
pub use evaluation::EvaluationConfig;
pub use lr_schedule::{
    CosineWarmupWithMinLr, CosineWithMinLr, CosineWithRestarts, InverseSqrtDecay, LrCurve, LrSchedule, PolynomialDecay,
    WarmupStableDecay,
};
pub use resolved::{Settings, StepSettings};
pub(crate) use rollouts::server_key;
pub use rollouts::{ImportanceSamplingMode, RolloutsConfig};

/// Maximum number of steps of a run.
pub(crate) const STEPS_MAX: usize = 1_000_000_000;

/// Keys of every method.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TrainConfig {
    /// Passes over the data. Default 1. If both are given, `max_steps` counts.
    pub epochs: f64,
    /// Optimizer steps (online methods: iterations). Default: from `epochs`.
    #[schemars(range(min = 1))]
    pub max_steps: Option<usize>,
    /// Rows per step (offline: rows or pairs; online: prompts). Default 8 (TRL).
    #[schemars(range(min = 1, max = 1_000_000))]
    pub batch_size: usize,
    /// Rows per forward and backward pass. Default: limited by `micro_batch_tokens`. It changes the result only by rounding. With dropout
    /// and with grpo's `loss_type: bnpo` it changes more: each pass draws its own dropout masks, and `bnpo` averages over passes.
    #[schemars(range(min = 1))]
    pub micro_batch_size: Option<usize>,
    /// Maximum number of tokens per forward and backward pass. Default 4096. It changes the result as `micro_batch_size` does.
    #[schemars(range(min = 1, max = 100_000_000))]
    pub micro_batch_tokens: usize,
    /// Number of parts in which the rows of an optimizer step are added up: a power of two. Within a part, gradients are added up in the
    /// order of the rows; the parts are added up in a fixed binary tree. A run therefore gives the same bits on any number of ranks up to
    /// this one. Default: 1; 8 for a run that is started on ranks (`--ranks`, `mpirun`, `srun`).
    #[schemars(range(min = 1, max = 65_536))]
    pub lanes: Option<usize>,
    /// Divide the moments of the optimizer among all ranks (ZeRO-1) instead of storing them on each. The results have the same bits.
    /// Default false.
    pub shard_moments: bool,
    /// Compute the longest pass once before the first step, without an update, so that a lack of memory shows at once. Default true; the
    /// result does not depend on it.
    pub try_longest: bool,
    /// Reject a run that needs more memory than the machine or its GPU has, before anything is loaded. Default true.
    pub memory_check: bool,
    /// Gradient checkpointing (TRL's `gradient_checkpointing`): compute each transformer block again in the backward pass instead of
    /// keeping its activations. This saves memory for one more forward pass (about a third more arithmetic); the result has the same bits.
    /// Default false (TRL: true).
    pub recompute: bool,
    /// Peak learning rate. Default by method, as in TRL.
    pub learning_rate: Option<f64>,
    /// Decay of the learning rate after warm-up: a name, or a name with its settings, such as `{ cosine_with_min_lr: { min_lr_ratio: 0.1 } }`.
    /// Default `linear` (TRL).
    pub lr_schedule: LrSchedule,
    /// Steps over which the learning rate rises from 0; below 1, a fraction of all steps. Default 0.
    pub warmup_steps: f64,
    /// Weight decay, never applied to biases and norms. AdamW's is decoupled; RMSprop's is part of the gradient. Default 0 (TRL).
    pub weight_decay: f64,
    /// The optimizer. Default `adamw` (TRL).
    pub optimizer: OptimizerName,
    /// AdamW's decay rates of the two moments. Default [0.9, 0.999] (TRL).
    pub adam_betas: [f64; 2],
    /// AdamW's epsilon. Default 1e-8 (TRL).
    pub adam_epsilon: f64,
    /// Format of AdamW's two moments: `f32`, or `int8` (bitsandbytes' 8-bit AdamW): a quarter of the memory, for a small error in each
    /// step. Default `f32` (TRL).
    pub moments: MomentFormat,
    /// Store the moments in the machine's main memory while a GPU computes. The processor then takes the optimizer's steps: each step
    /// copies weights and gradients to it and weights back. Default false; no effect on `cpu`.
    pub offload_moments: bool,
    /// RMSprop's decay rate of the mean squared gradient. Default 0.99 (PyTorch, A2C in RL4LMs).
    pub rmsprop_alpha: f64,
    /// RMSprop's epsilon, added to the root of that mean. Default 1e-8 (PyTorch; A2C in RL4LMs 1e-5).
    pub rmsprop_epsilon: f64,
    /// Maximum norm of the gradients, which are scaled down to it; 0 turns it off. Default 1 (TRL).
    pub max_grad_norm: f64,
    /// Longest row in tokens, prompt and completion together; for models with an encoder, each of them. Default 1024 (TRL).
    #[schemars(range(min = 2))]
    pub max_length: usize,
    /// The treatment of longer rows. The default depends on the method, as in TRL.
    pub too_long: Option<TooLong>,
    /// Longest prompt in tokens that completions are sampled for; longer ones are cut. Preference rows are cut only by `too_long`. Default:
    /// no prompt is cut, and prompts that leave no space for a completion within `max_length` are left out.
    #[schemars(range(min = 1))]
    pub max_prompt_length: Option<usize>,
    /// Side at which such prompts are cut. Default `left` (RL4LMs).
    pub prompt_truncation: Side,
    /// Rows that are left out of training and evaluation: ties, equal answers, short answers. Default: none.
    pub filter: RowFilter,
    /// Skip bad rows instead of ending the run. gradus reports their number, and `skipped_rows.jsonl` in the run directory lists each with
    /// its problem. Default false.
    pub skip_bad_rows: bool,
    /// Use at most this many training rows.
    #[schemars(range(min = 1))]
    pub max_rows: Option<usize>,
    /// Choose those `max_rows` rows at random by the seed, instead of the first ones of the file. Default false.
    pub max_rows_at_random: bool,
    /// Use at most this many held-out rows. Default 1000; for online methods 100.
    pub max_eval_rows: usize,
    /// Share of training rows held out if there is no `eval_data`; 0 turns it off. Default 0.05, but at least 16 rows (or a fifth of fewer
    /// than 80), and none without shuffling or with `eval_steps: -1`.
    pub eval_fraction: f64,
    /// Write an event file for TensorBoard, `tensorboard/`, next to `metrics.jsonl`. Default false.
    pub tensorboard: bool,
    /// Write an offline run of Weights & Biases, `wandb/offline-run-…`, for `wandb sync`. Default false.
    pub wandb: bool,
    /// Project of the run in Weights & Biases. Default `gradus`.
    pub wandb_project: Option<String>,
    /// User or team that owns the project. Default: the user who uploads the run.
    pub wandb_entity: Option<String>,
    /// Name of the run in Weights & Biases. Default: the name of the run directory.
    pub wandb_name: Option<String>,
    /// Evaluate every so many steps; 0: only at the end; -1: never. Default 0.
    pub eval_steps: i64,
    /// Evaluate after this many steps at the earliest. Evaluations before the first step and after the last one stay. Default 0 (TRL).
    pub eval_delay: usize,
    /// Evaluate on so many held-out rows, sampled with replacement for each evaluation. Default: on all of them.
    #[schemars(range(min = 1))]
    pub eval_sample: Option<usize>,
    /// Sampling of completions of held-out prompts in evaluations, and their metrics.
    pub evaluation: EvaluationConfig,
    /// Write a checkpoint every so many steps; 0: only at the end. Default 0.
    pub save_steps: usize,
    /// Keep this many checkpoints. Default 2.
    #[schemars(range(min = 1))]
    pub keep_checkpoints: usize,
    /// Append to `metrics.jsonl` every so many steps. Default 1.
    #[schemars(range(min = 1))]
    pub logging_steps: usize,
    /// Store every completion of training in `rollouts.sqlite` (online methods). Completions of evaluations and warnings are always stored
    /// there. Default true: they show what the reward really favors, and a thousand steps of 64 completions of 200 tokens take about 100
    /// MB.
    pub save_rollouts: bool,
    /// Held-out metric that selects `best/`. Default by method.
    pub best_metric: Option<String>,
    /// Whether larger values of the best metric are better (transformers). Without the key, its name decides. Smaller is better if the name
    /// contains `loss`, `error` or `perplexity`, if one of its words is `kl`, `approxkl` or `toxicity`, or if its last word is `ter`. Words
    /// are separated by `_` or `/`. Larger is better for all other metrics, and for all `rewards/…`.
    pub greater_is_better: Option<bool>,
    /// Stop when the best metric has not improved for so many evaluations; 0: never. Default 0.
    pub early_stopping_patience: usize,
    /// Shuffle the rows each epoch. Default true; `--no-shuffle` keeps the file's order.
    pub shuffle: bool,
    /// Sample prompts with replacement, with probabilities proportional to their column `weight` (1 without one) to this power; 0 makes
    /// them equal. For online methods only (RL4LMs' priority sampler, whose weights are all 1). Default: none, so every prompt occurs once
    /// per epoch.
    pub priority_scale: Option<f64>,
    /// Use the dropout of the model's configuration instead of none. For sft, reward, classify, orpo, cpo, simpo, and for the updates of online methods
    /// except trpo. Completions are sampled and scored without dropout. The ratios of ppo, nlpo and a2c compare with logprobs without
    /// dropout, so the first ratios are not 1 (FineGrainedRLHF). The ratios of grpo and rloo compare with logprobs with dropout (TRL).
    /// Default false.
    pub dropout: bool,
    /// Add uniform noise to the embeddings of a step (NEFTune, Jain et al. 2023). The noise of a row with L tokens is at most this value
    /// divided by √(L·D), where D is the width of the embeddings. For sft, dpo, orpo, cpo and simpo, with models that have no encoder.
    /// Evaluations, completions and the reference have no noise. Default 0: no noise (TRL).
    pub neftune_noise_alpha: f64,
    /// Let the reference follow the policy (TR-DPO, Gorbatovski et al. 2024): see `ref_model_mixup_alpha` and `ref_model_sync_steps`. For
    /// dpo with `reference: live`, kto with `loss_type: kto`, and grpo and rloo with a `kl_coefficient`, without an adapter. The reference
    /// is then held in f32, whatever `frozen_weights` is. Default false (TRL).
    pub sync_ref_model: bool,
    /// Weight α of the policy when the reference follows it: the reference becomes α · policy + (1 − α) · reference. Default 0.6 (TRL).
    pub ref_model_mixup_alpha: f64,
    /// The reference follows the policy after every so many steps (online methods: iterations). Default 512 (TRL).
    #[schemars(range(min = 1))]
    pub ref_model_sync_steps: usize,
    /// Seed of every random stream. Default 42 (TRL).
    pub seed: u64,
    /// Device for all computations: `cpu`; in a build with the cargo feature `cuda` or `wgpu` also `gpu`, `gpu:1` and so on;
    /// with `cuda` also `cuda`, `cuda:1` and so on; with `wgpu` also `gpu:software` (`gradus doctor` lists them). Default `cpu`.
    pub device: String,
    /// Format of the operands of matrix products: `f32` or `bf16` (about twice as fast if the processor multiplies it; weights, sums and
    /// the optimizer stay in f32, frozen models are kept in bf16). Default `f32`.
    #[serde(with = "model::word")]
    #[schemars(schema_with = "model::word::schema::<Precision>")]
    pub compute: Precision,
    /// Format of the weights for sampling: `f32`, `bf16`, `int8` or `nf4`. A coarser format than `compute` samples faster. The policy then
    /// computes the logprobs again, and gradus reports how far the two differ. Default: as `compute`.
    #[serde(with = "model::word::optional")]
    #[schemars(schema_with = "model::word::optional::schema::<WeightFormat>")]
    pub sampling_weights: Option<WeightFormat>,
    /// Format of weights that are not trained (the base under an adapter, reference, reward models): `f32`, `bf16`, `int8` or `nf4` (under
    /// an adapter QLoRA, Dettmers et al. 2023). Default: as `compute`.
    #[serde(with = "model::word::optional")]
    #[schemars(schema_with = "model::word::optional::schema::<WeightFormat>")]
    pub frozen_weights: Option<WeightFormat>,
    /// Format of the weights of `model/` and `best/` on disk: `f32`, `bf16` or `f16` (half the size, rounded). Checkpoints, adapters and
    /// critics keep `f32`. Default `f32`.
    #[serde(with = "model::word")]
    #[schemars(schema_with = "model::word::schema::<SavedWeights>")]
    pub saved_weights: SavedWeights,
    /// Number of threads. Default: one per core.
    #[schemars(range(min = 1, max = 1_024))]
    pub threads: Option<usize>,
    /// Column with plain text for language modeling. Default `text`.
    pub text_column: String,
    /// Columns to read under other names, as `name=column`: `prompt=question` reads the column `question` as the prompt.
    pub column: Vec<String>,
    /// System message of every conversation that has none. Rows that are not conversations are then rejected. Default: none.
    pub system_prompt: Option<String>,
    /// Read transcripts (`\n\nHuman: …\n\nAssistant: …`, as in HH-RLHF) as conversations, which the model's chat template renders. Default
    /// false: they are used as plain text.
    pub transcripts_as_messages: bool,
    /// Chat template that replaces the model's own: a file, or a name (`chatml`, `gemma`, `llama2`, `llama3`, `mistral`, `phi3`, `qwen`,
    /// `zephyr`).
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
            eval_delay: 0,
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
            greater_is_better: None,
            early_stopping_patience: 0,
            shuffle: true,
            priority_scale: None,
            dropout: false,
            neftune_noise_alpha: 0.0,
            sync_ref_model: false,
            ref_model_mixup_alpha: 0.6,
            ref_model_sync_steps: 512,
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

/// Optimizers of the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerName {
    /// Adam with decoupled weight decay (Loshchilov and Hutter 2019).
    AdamW,
    /// RMSprop without momentum, not centered (Tieleman and Hinton 2012).
    RmsProp,
}

impl TrainConfig {
    /// Limits on the size of a forward pass.
    pub fn passes(&self) -> MicroBatch {
        MicroBatch::new(self.micro_batch_tokens, self.micro_batch_size)
    }

    /// Scale of the noise on embeddings in training; `None` for no noise.
    pub fn noise_alpha(&self) -> Option<f64> {
        (self.neftune_noise_alpha != 0.0).then_some(self.neftune_noise_alpha)
    }

    /// How the reference follows the policy; `None` if it does not.
    pub fn reference_sync(&self) -> Option<ReferenceSync> {
        let sync = ReferenceSync { alpha: self.ref_model_mixup_alpha, every: self.ref_model_sync_steps };
        self.sync_ref_model.then_some(sync)
    }

    /// Parses `column` into (name in the file, name in gradus).
    ///
    /// # Errors
    /// The first entry with another form.
    pub fn renames(&self) -> Result<Vec<(String, String)>, String> {
        let parse =
            |pair: &String| parse_rename(pair).map_err(|message| format!("`train.column` is `{pair}`: {message}"));
        self.column.iter().map(parse).collect()
    }

    /// Returns the optimizer with its constants.
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
