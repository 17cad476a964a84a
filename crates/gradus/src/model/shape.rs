//! The sizes of a model, from its `config.json` alone: what memory and arithmetic follow from.

use super::Quantisation;
use super::directory::ModelDir;
use super::gpt2::Gpt2Config;
use super::llama::{Kind, LlamaConfig};
use super::rope::Rope;
use super::trunk::{Family, read_config};
use crate::error::{Error, Result};

/// The sizes of a model. All counts are of numbers, not bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelShape {
    /// Ids, V.
    pub vocabulary: usize,
    /// Width of the hidden states, D.
    pub width: usize,
    /// Blocks, L.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Width of the feed-forward layer.
    pub inner: usize,
    /// Rows of the table of learned positions; 0 with rotary ones.
    pub learned_positions: usize,
    /// The longest sequence that can be computed, where there is a limit.
    pub max_positions: Option<usize>,
    /// How a block is made.
    pub block: Block,
    /// Whether queries and keys are normalised head by head.
    pub qk_norm: bool,
    /// Whether the LM head is the embedding table.
    pub tied: bool,
    /// How the linear layers of the blocks are quantised on disk, and stay in memory.
    pub quantised: Option<Quantisation>,
    /// Biases of one block: of linear layers and norms.
    biases: usize,
}

/// How a block is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Block {
    /// GPT-2: layer norms, one projection for queries, keys and values, two linear layers around a GELU.
    Gpt2,
    /// Llama, Mistral, Qwen2, Qwen3: RMS norms, three projections, rotary positions, three linear layers around SwiGLU.
    Llama,
}

impl ModelShape {
    /// The sizes that `dir`'s configuration describes.
    ///
    /// # Errors
    /// When the family is unknown, a key is missing, or sizes do not fit each other.
    pub fn of(dir: &ModelDir) -> Result<Self> {
        let shape = match Family::of(dir)? {
            Family::Gpt2 => Self::gpt2(&read_config(dir)?),
            family @ (Family::Llama | Family::Mistral | Family::Qwen2 | Family::Qwen3) => {
                Self::llama(dir, &read_config(dir)?, family.llama_kind())?
            }
        };
        if shape.heads == 0 || shape.kv_heads == 0 || shape.vocabulary == 0 {
            return Err(Error::model(dir.path.join("config.json"), "a model has at least one head and one token"));
        }
        Ok(Self { quantised: dir.quantisation(), ..shape })
    }

    fn gpt2(config: &Gpt2Config) -> Self {
        let (d, inner) = (config.n_embd, config.n_inner.unwrap_or(4 * config.n_embd));
        Self {
            vocabulary: config.vocab_size,
            width: d,
            layers: config.n_layer,
            heads: config.n_head,
            kv_heads: config.n_head,
            head_dim: d / config.n_head.max(1),
            inner,
            learned_positions: config.n_positions,
            max_positions: Some(config.n_positions),
            block: Block::Gpt2,
            qk_norm: false,
            tied: config.tie_word_embeddings,
            quantised: None,
            // Of the four linear layers, 3D + D + inner + D, and of both norms.
            biases: 5 * d + inner + 2 * d,
        }
    }

    fn llama(dir: &ModelDir, config: &LlamaConfig, kind: Kind) -> Result<Self> {
        let rope = Rope::from_config(&dir.config, config.head_dim(), config.max_position_embeddings)
            .map_err(|message| Error::model(dir.path.join("config.json"), message))?;
        let (d, inner, head_dim) = (config.hidden_size, config.intermediate_size, config.head_dim());
        let (heads, kv_heads) = (config.num_attention_heads, config.kv_heads());
        let [own, output] = kind.attention_biases(config).map(usize::from);
        let attention = own * (heads + 2 * kv_heads) * head_dim + output * d;
        let feed_forward = if config.mlp_bias { 2 * inner + d } else { 0 };
        Ok(Self {
            vocabulary: config.vocab_size,
            width: d,
            layers: config.num_hidden_layers,
            heads,
            kv_heads,
            head_dim,
            inner,
            learned_positions: 0,
            max_positions: rope.depends_on_length().then_some(config.max_position_embeddings),
            block: Block::Llama,
            qk_norm: kind.has_qk_norm(),
            tied: config.tie_word_embeddings,
            quantised: None,
            biases: attention + feed_forward,
        })
    }

    /// Width of all query heads together.
    pub fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of all key heads together, and of all value heads.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// The linear layers of a block: name, inputs, outputs.
    pub fn linear_layers(&self) -> Vec<(&'static str, usize, usize)> {
        let (d, q, k, i) = (self.width, self.q_width(), self.kv_width(), self.inner);
        match self.block {
            Block::Gpt2 => {
                vec![("attn.c_attn", d, 3 * d), ("attn.c_proj", d, d), ("mlp.c_fc", d, i), ("mlp.c_proj", i, d)]
            }
            Block::Llama => vec![
                ("self_attn.q_proj", d, q),
                ("self_attn.k_proj", d, k),
                ("self_attn.v_proj", d, k),
                ("self_attn.o_proj", q, d),
                ("mlp.gate_proj", d, i),
                ("mlp.up_proj", d, i),
                ("mlp.down_proj", i, d),
            ],
        }
    }

    /// Weights of one block that enter matrix products.
    pub fn block_matrices(&self) -> usize {
        self.linear_layers().iter().map(|(_, inputs, outputs)| inputs * outputs).sum()
    }

    /// Weights of all blocks that enter matrix products: every token passes through each once.
    pub fn trunk_matrices(&self) -> usize {
        self.layers * self.block_matrices()
    }

    /// Weights of the LM head, tied or not: every predicted token passes through each once.
    pub fn head_matrix(&self) -> usize {
        self.vocabulary * self.width
    }

    /// All weights below the head.
    pub fn trunk_parameters(&self) -> usize {
        let scales = 2 * self.width + if self.qk_norm { 2 * self.head_dim } else { 0 };
        let final_norm = match self.block {
            Block::Gpt2 => 2 * self.width,
            Block::Llama => self.width,
        };
        let tables = (self.vocabulary + self.learned_positions) * self.width;
        tables + self.layers * (self.block_matrices() + self.biases + scales) + final_norm
    }

    /// All weights of the causal language model.
    pub fn parameters(&self) -> usize {
        self.trunk_parameters() + if self.tied { 0 } else { self.head_matrix() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{CausalLm, named_tensors};
    use burn::tensor::Device;
    use std::path::Path;

    #[test]
    fn counts_what_the_models_hold() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/models");
        for name in ["gpt2", "llama-gqa", "llama-tied-bias", "qwen2", "qwen3", "qwen3-tied", "llama-rope-yarn"] {
            let dir = ModelDir::open(&fixtures.join(name)).expect("a fixture");
            let shape = ModelShape::of(&dir).expect("a known family");
            let model = CausalLm::load(&dir, &Device::flex()).expect("a fixture");
            let tensors = named_tensors(&model);
            let count = |keep: &dyn Fn(&str, usize) -> bool| -> usize {
                tensors.iter().filter(|t| keep(&t.name, t.shape.len())).map(|t| t.values.len()).sum()
            };
            let is_table = |name: &str| ["wte", "wpe", "embed_tokens", "lm_head"].iter().any(|t| name.contains(t));
            assert_eq!(shape.parameters(), count(&|_, _| true), "{name}");
            assert_eq!(shape.trunk_matrices(), count(&|name, rank| rank == 2 && !is_table(name)), "{name}");
            assert_eq!(shape.trunk_parameters(), count(&|name, _| !name.contains("lm_head")), "{name}");
        }
    }
}
