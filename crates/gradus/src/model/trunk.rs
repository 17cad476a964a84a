//! The trunk of a model: everything below the head. The one `match` on the architecture.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use gradus_kernels::{AttentionShape, Precision, WeightFormat, is_fused};
use rayon::prelude::*;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::batch::{Batch, Beginnings, Rows};
use super::build::Builder;
use super::context::{Context, KvCache};
use super::directory::ModelDir;
use super::gpt2::{Gpt2Config, Gpt2Model};
use super::layers::Linear;
use super::llama::{Kind, LlamaConfig, LlamaModel};
use super::quant;
use super::rope::Rope;
use super::windows::Windows;
use crate::error::{Error, Result};

/// Token ids in, hidden states out.
#[derive(Module, Debug)]
pub enum Trunk {
    /// GPT-2.
    Gpt2(Gpt2Model),
    /// Llama, Mistral, Qwen2 and Qwen3.
    Llama(LlamaModel),
}

/// A family: what `config.json` calls it, and the names that follow from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    Gpt2,
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
}

impl Family {
    pub(crate) fn of(dir: &ModelDir) -> Result<Self> {
        match dir.model_type() {
            "gpt2" => Ok(Self::Gpt2),
            "llama" => Ok(Self::Llama),
            "mistral" => Ok(Self::Mistral),
            "qwen2" => Ok(Self::Qwen2),
            "qwen3" => Ok(Self::Qwen3),
            other => Err(Error::model(
                dir.path.join("config.json"),
                format!("model type `{other}` is not supported (known: gpt2, llama, mistral, qwen2, qwen3)"),
            )),
        }
    }

    /// What stands before every trunk tensor's name.
    pub(crate) fn base_prefix(self) -> &'static str {
        match self {
            Self::Gpt2 => "transformer.",
            Self::Llama | Self::Mistral | Self::Qwen2 | Self::Qwen3 => "model.",
        }
    }

    /// The class prefix in `architectures`.
    pub(crate) fn class(self) -> &'static str {
        match self {
            Self::Gpt2 => "GPT2",
            Self::Llama => "Llama",
            Self::Mistral => "Mistral",
            Self::Qwen2 => "Qwen2",
            Self::Qwen3 => "Qwen3",
        }
    }

    /// The causal class in `architectures`.
    pub(crate) fn causal_class(self) -> &'static str {
        match self {
            Self::Gpt2 => "GPT2LMHeadModel",
            Self::Llama => "LlamaForCausalLM",
            Self::Mistral => "MistralForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
        }
    }

    /// Which layers have windows.
    fn windows(self) -> Windows {
        match self {
            Self::Gpt2 | Self::Llama => Windows::Never,
            Self::Mistral => Windows::Everywhere,
            Self::Qwen2 | Self::Qwen3 => Windows::ByLayer,
        }
    }

    /// Which of Llama's kind it is.
    pub(super) fn llama_kind(self) -> Kind {
        match self {
            Self::Qwen2 => Kind::Qwen2,
            Self::Qwen3 => Kind::Qwen3,
            _ => Kind::Llama,
        }
    }
}

/// What is dropped with probability 1 is nothing but zeros.
fn check_probability(key: &str, value: f32) -> Result<(), String> {
    match (0.0..1.0).contains(&value) {
        true => Ok(()),
        false => Err(format!("`{key}` is {value}, but a probability of dropout is at least 0 and below 1")),
    }
}

pub(crate) fn read_config<C: DeserializeOwned>(dir: &ModelDir) -> Result<C> {
    serde_json::from_value(Value::Object(dir.config.clone()))
        .map_err(|error| Error::model(dir.path.join("config.json"), error.to_string()))
}

impl Trunk {
    /// The trunk that `dir` describes, with tensors from the builder.
    pub(crate) fn build(b: &mut Builder<'_>, dir: &ModelDir) -> Result<Self> {
        let family = Family::of(dir)?;
        let refuse = |message: String| Error::model(dir.path.join("config.json"), message);
        quant::check_method(dir)?;
        let b = b.enter(family.base_prefix().trim_end_matches('.'));
        Ok(match family {
            Family::Gpt2 => {
                let config: Gpt2Config = read_config(dir)?;
                if !["gelu_new", "gelu", "gelu_pytorch_tanh", "relu"].contains(&config.activation_function.as_str()) {
                    let name = &config.activation_function;
                    return Err(refuse(format!("`activation_function` `{name}` is not supported")));
                }
                if !config.n_embd.is_multiple_of(config.n_head) {
                    return Err(refuse(format!(
                        "`n_embd` {} is not a multiple of `n_head` {}",
                        config.n_embd, config.n_head
                    )));
                }
                let Gpt2Config { embd_pdrop, attn_pdrop, resid_pdrop, .. } = config;
                for (key, value) in
                    [("embd_pdrop", embd_pdrop), ("attn_pdrop", attn_pdrop), ("resid_pdrop", resid_pdrop)]
                {
                    check_probability(key, value).map_err(refuse)?;
                }
                Self::Gpt2(Gpt2Model::build(b, config))
            }
            Family::Llama | Family::Mistral | Family::Qwen2 | Family::Qwen3 => {
                let config: LlamaConfig = read_config(dir)?;
                if config.hidden_act != "silu" {
                    return Err(refuse(format!("`hidden_act` `{}` is not supported", config.hidden_act)));
                }
                if !config.num_attention_heads.is_multiple_of(config.kv_heads()) {
                    return Err(refuse(format!(
                        "`num_attention_heads` {} is not a multiple of `num_key_value_heads` {}",
                        config.num_attention_heads,
                        config.kv_heads()
                    )));
                }
                let rope = Rope::from_config(&dir.config, config.head_dim(), config.max_position_embeddings);
                check_probability("attention_dropout", config.attention_dropout).map_err(refuse)?;
                let masks = config.masks(family.windows()).map_err(refuse)?;
                Self::Llama(LlamaModel::build(b, config, rope.map_err(refuse)?, masks, family.llama_kind()))
            }
        })
    }

    /// Final hidden states, `[N, D]`.
    pub fn forward(&self, context: &mut Context<'_>) -> Tensor<2> {
        match self {
            Self::Gpt2(model) => model.forward(context),
            Self::Llama(model) => model.forward(context),
        }
    }

    /// The embedding table, `[V, D]`: the LM head of tied models.
    pub fn embedding(&self) -> Tensor<2> {
        match self {
            Self::Gpt2(model) => model.embedding(),
            Self::Llama(model) => model.embedding(),
        }
    }

    /// All linear layers with their names in the trunk, such as `h.0.attn.c_attn`.
    pub(crate) fn linears_mut(&mut self) -> Vec<(String, &mut Linear)> {
        match self {
            Self::Gpt2(model) => model.linears_mut(),
            Self::Llama(model) => model.linears_mut(),
        }
    }

    /// Holds the operands of all linear layers' products in `precision`; weights stay in f32.
    pub(crate) fn set_precision(&mut self, precision: Precision) {
        self.linears_mut().into_iter().for_each(|(_, linear)| linear.set_precision(precision));
    }

    /// Has the backward pass run the blocks again instead of keeping what they computed: the same gradients, to the bit,
    /// with the activations of one block in memory at a time, for one more forward pass.
    pub fn set_recompute(&mut self, recompute: bool) {
        match self {
            Self::Gpt2(model) => model.recompute = recompute,
            Self::Llama(model) => model.recompute = recompute,
        }
    }

    /// Whether numbers are dropped as the configuration says, in passes that have masks.
    pub fn set_dropout(&mut self, dropout: bool) {
        match self {
            Self::Gpt2(model) => model.dropout = dropout,
            Self::Llama(model) => model.dropout = dropout,
        }
    }

    /// Packs the weights of all linear layers in `format`. A device without packed products keeps them as they are, unless
    /// that would change their values.
    pub(crate) fn freeze_weights(&mut self, format: WeightFormat) {
        if is_fused(&self.device()) || format != WeightFormat::F32 {
            self.linears_mut().into_par_iter().for_each(|(_, linear)| linear.freeze_weight(format));
        }
    }

    /// V and D.
    pub fn dims(&self) -> (usize, usize) {
        match self {
            Self::Gpt2(model) => (model.config().vocab_size, model.config().n_embd),
            Self::Llama(model) => (model.config().vocab_size, model.config().hidden_size),
        }
    }

    /// The standard deviation of fresh weights.
    pub(crate) fn initializer_range(&self) -> f32 {
        match self {
            Self::Gpt2(model) => model.config().initializer_range as f32,
            Self::Llama(model) => model.config().initializer_range as f32,
        }
    }

    /// Whether the configuration ties the LM head to the embedding.
    pub(crate) fn ties_head(&self) -> bool {
        match self {
            Self::Gpt2(model) => model.config().tie_word_embeddings,
            Self::Llama(model) => model.config().tie_word_embeddings,
        }
    }

    /// What is computed of `rows`. Sequences that are handed over together share the tokens that they all begin with, where
    /// this trunk gives such tokens the same numbers in all of them.
    ///
    /// # Panics
    /// When there is no sequence, one has no ids, or a mask has another length than its target.
    pub fn batch(&self, rows: &Rows<'_>) -> Batch {
        match self {
            // The angles of every token depend on how long its sequence becomes.
            Self::Llama(model) if model.depends_on_length() => Batch::joined(rows, Beginnings::Apart),
            _ => Batch::joined(rows, Beginnings::Shared),
        }
    }

    /// The longest sequence that can be computed, where there is a limit.
    ///
    /// Learned positions end with their table. Rotary ones go on, except where longer sequences change the angles of
    /// earlier tokens (dynamic scaling): sampling could then not agree with training.
    pub fn max_positions(&self) -> Option<usize> {
        match self {
            Self::Gpt2(model) => Some(model.config().n_positions),
            Self::Llama(model) if model.depends_on_length() => Some(model.config().max_position_embeddings),
            Self::Llama(_) => None,
        }
    }

    /// An empty cache for sampling: `slots` rows that have room for `capacity` new tokens at first.
    pub fn new_cache(&self, slots: usize, capacity: usize) -> KvCache {
        let shape = |layer: usize| -> AttentionShape {
            match self {
                Self::Gpt2(model) => model.layer_shape(layer),
                Self::Llama(model) => model.layer_shape(layer),
            }
        };
        let layers = match self {
            Self::Gpt2(model) => model.config().n_layer,
            Self::Llama(model) => model.config().num_hidden_layers,
        };
        KvCache::new((0..layers).map(shape), slots, capacity)
    }

    /// The device of the weights.
    pub fn device(&self) -> Device {
        self.embedding().device()
    }
}
