//! Models: one file per family, read from and written to Hugging Face directories.
//!
//! A model is a [`Trunk`] (token ids in, hidden states out) and a head: [`CausalLm`] predicts tokens, [`RewardModel`] scores sequences and
//! serves as the critic. The model builds the [`Batch`] that it computes from the [`Rows`] of a method. Layers are written once and run in
//! a [`Context`]: packed sequences in training, a KV cache in sampling. The trunk of an encoder–decoder family (T5, BART) has both stacks.
//! Its batch holds the sources in addition to the decoder's input, and its context provides the attention to them.
//!
//! An [`Encoder`] (BERT and similar models) is not a trunk, because it does not predict tokens. A [`Classifier`] is an encoder with a head
//! that labels texts or tokens.

mod activation;
pub mod adapter;
pub mod bart;
mod batch;
mod body;
mod build;
mod causal;
mod checkpoint;
pub mod classifier;
mod config_check;
mod context;
pub mod decoder;
mod defaults;
mod directory;
mod dropout;
pub mod encoder;
mod family;
pub mod gpt2;
pub mod gpt_neox;
mod hub_model;
mod layers;
mod lora;
mod noise;
pub mod opt;
mod packed;
mod parameters;
mod pickle;
mod position_budget;
mod quantized;
mod ranker;
mod reference;
mod reward_model;
mod rope;
mod save;
mod scalar_head;
mod shape;
mod support;
pub mod t5;
mod torch_file;
mod trunk;
mod weights;
pub mod word;

pub use crate::files::NamedTensor;
pub use batch::{Batch, Counted, Input, Rows, Sequence, Sources, Targets};
pub use causal::{BLOCK_LOGITS, CausalLm, head_format};
pub use checkpoint::{tensors_of_file, weight_files};
pub use classifier::{Classifier, Reading, Scope, Task};
pub use context::{Context, KvCache};
pub use directory::{AdapterDir, ClassifierColumns, ModelDir, SavedWeights, TrainingInfo, open_model};
pub use dropout::DropoutStream;
pub use encoder::{Encoder, Text, TextBatch};
pub use family::{Family, families, register_family};
pub use gradus_kernels::{CacheRow, TokenLogprobs};
pub use gradus_kernels::{Precision, Quantization, WeightFormat, logits_held, longest_side_of_chunk};
pub use hub_model::{model_of, resolve};
pub use layers::select_rows;
pub use layers::{Embedding, Head, LayerNorm, Layers, Linear, Linears, RmsNorm};
pub use noise::EmbeddingNoise;
pub use packed::Packed;
pub use parameters::{NamedMapper, NamedVisitor, map_named, named_tensors, visit_named};
pub use parameters::{SharedTensor, shared_tensors};
pub use position_budget::PositionBudget;
pub use ranker::Ranker;
pub use reference::{REFERENCE_DIR, Reference, ReferenceSync};
pub use reward_model::RewardModel;
pub use save::{save_causal, save_classifier, save_reward_model};
pub use scalar_head::{HeadLayers, ScalarHead, TwoLayer};
pub use shape::{Block, LinearShape, ModelShape};
pub use support::Support;
pub use t5::T5Encoder;
pub use trunk::Trunk;
