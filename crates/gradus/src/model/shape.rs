//! The sizes of a model, from its `config.json` alone: what memory and arithmetic follow from.

use super::Quantisation;
use super::bart::{BartConfig, BartKind};
use super::decoder::{Anatomy, Norms};
use super::directory::ModelDir;
use super::encoder::{Encoder, Sizes};
use super::gpt2::Gpt2Config;
use super::room::Room;
use super::t5::T5Config;
use super::trunk::{Family, read_config};
use crate::error::{Error, Result};

/// The sizes of a model. All counts are of numbers, not bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelShape {
    /// Ids, V.
    pub vocabulary: usize,
    /// Width of the hidden states, D.
    pub width: usize,
    /// Blocks, L: those of the decoder, where there is an encoder.
    pub layers: usize,
    /// Blocks of the encoder; 0 without one.
    pub encoder_layers: usize,
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
    /// The longest sequence that can be sampled and trained alike, where there is a limit.
    pub max_positions: Option<usize>,
    /// The longest sequence that the model is made for, where there is a limit. It is longer than `max_positions` where
    /// angles depend on the length of the sequence (dynamic scaling, longrope).
    pub made_for: Option<usize>,
    /// Whether rotary angles depend on the length of the whole sequence (dynamic scaling, longrope): rows then share nothing.
    pub angles_vary: bool,
    /// How a block is made.
    pub block: Block,
    /// Whether queries and keys are normalised.
    pub qk_norm: bool,
    /// Whether the LM head is the embedding table.
    pub tied: bool,
    /// How the linear layers of the blocks are quantised on disk, and stay in memory.
    pub quantised: Option<Quantisation>,
    /// Width of the encoder's feed-forward layer.
    pub encoder_inner: usize,
    /// Biases of one block, and all norms of a decoder's. Of a T5: the two tables of biases by distance. Of a BART: all biases,
    /// norms, and the second table of positions.
    biases: usize,
}

/// A linear layer of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinearShape {
    /// Its name in the trunk, such as `h.0.attn.c_attn`.
    pub name: String,
    /// Inputs.
    pub inputs: usize,
    /// Outputs.
    pub outputs: usize,
    /// Whether it belongs to the feed-forward layer.
    pub is_fed: bool,
}

/// How a block is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Block {
    /// GPT-2: layer norms, one projection for queries, keys and values, two linear layers around a GELU.
    Gpt2,
    /// Llama and its kin: RMS norms, rotary positions, linear layers around a gated activation.
    Decoder {
        /// Whether queries, keys and values are one linear layer, and gate and up another.
        fused: bool,
        /// Whether there are norms both before and after attention and the feed-forward layer.
        norms_around: bool,
        /// Whether numbers of what is added may be dropped.
        drops: bool,
    },
    /// T5: an encoder's blocks of attention and a feed-forward layer; a decoder's with attention to the sources between
    /// them. RMS norms, no biases.
    T5 {
        /// Whether the feed-forward layer has a gate.
        gated: bool,
    },
    /// BART, Blenderbot: the same with layer norms, biases and two linear layers around a GELU.
    Bart,
    /// An encoder alone, which only a classifier has.
    Encoder {
        /// Whether the feed-forward layer has a gate.
        gated: bool,
        /// Weights of the linear layers; blocks may share theirs.
        matrices: usize,
        /// All other weights.
        others: usize,
    },
}

impl ModelShape {
    /// The sizes that `dir`'s configuration describes.
    ///
    /// # Errors
    /// When the family is unknown, a key is missing, or sizes do not fit each other.
    pub fn of(dir: &ModelDir) -> Result<Self> {
        if dir.is_encoder() {
            return Ok(Self::encoder(Encoder::sizes(dir)?));
        }
        let shape = match Family::of(dir)? {
            Family::Gpt2 => Self::gpt2(&read_config(dir)?),
            Family::T5 => Self::t5(dir, &read_config(dir)?, true)?,
            Family::Mt5 => Self::t5(dir, &read_config(dir)?, false)?,
            family @ (Family::Bart | Family::Blenderbot | Family::BlenderbotSmall) => {
                Self::bart(&read_config(dir)?, family.bart_kind())
            }
            family @ (Family::Llama
            | Family::Mistral
            | Family::Qwen2
            | Family::Qwen3
            | Family::Gemma2
            | Family::Gemma3
            | Family::SmolLm3
            | Family::Phi3
            | Family::Olmo2) => Self::decoder(dir, family)?,
        };
        Ok(Self { quantised: dir.quantisation(), ..shape })
    }

    fn gpt2(config: &Gpt2Config) -> Self {
        let (d, inner) = (config.n_embd, config.n_inner.unwrap_or(4 * config.n_embd));
        Self {
            vocabulary: config.vocab_size,
            width: d,
            layers: config.n_layer,
            encoder_layers: 0,
            encoder_inner: 0,
            heads: config.n_head,
            kv_heads: config.n_head,
            head_dim: d / config.n_head.max(1),
            inner,
            learned_positions: config.n_positions,
            max_positions: Some(config.n_positions),
            made_for: Some(config.n_positions),
            angles_vary: false,
            block: Block::Gpt2,
            qk_norm: false,
            tied: config.tie_word_embeddings,
            quantised: None,
            // Of the four linear layers, 3D + D + inner + D, and of both norms.
            biases: 5 * d + inner + 2 * d,
        }
    }

    fn decoder(dir: &ModelDir, family: Family) -> Result<Self> {
        let (config, anatomy) =
            Anatomy::of(family, &dir.config).map_err(|message| Error::model(dir.path.join("config.json"), message))?;
        Ok(Self {
            vocabulary: config.vocab_size,
            width: config.hidden_size,
            layers: config.num_hidden_layers,
            encoder_layers: 0,
            encoder_inner: 0,
            heads: config.num_attention_heads,
            kv_heads: config.kv_heads(),
            head_dim: config.head_dim(),
            inner: config.intermediate_size,
            learned_positions: 0,
            max_positions: Some(anatomy.max_positions()),
            made_for: Some(anatomy.made_for()),
            angles_vary: anatomy.limit().is_some(),
            block: Block::Decoder {
                fused: anatomy.fused,
                norms_around: anatomy.norms == Norms::Around,
                drops: config.resid_pdrop > 0.0,
            },
            qk_norm: anatomy.qk_norm.is_some(),
            tied: config.tie_word_embeddings,
            quantised: None,
            biases: anatomy.bias_numbers(&config) + anatomy.norm_numbers(&config),
        })
    }

    fn encoder(sizes: Sizes) -> Self {
        let Sizes { vocabulary, width, layers, heads, head_dim, inner, max_positions, gated, matrices, others } = sizes;
        Self {
            vocabulary,
            width,
            layers,
            encoder_layers: 0,
            encoder_inner: 0,
            heads,
            kv_heads: heads,
            head_dim,
            inner,
            learned_positions: 0,
            max_positions,
            made_for: max_positions,
            angles_vary: false,
            block: Block::Encoder { gated, matrices, others },
            qk_norm: false,
            tied: true,
            quantised: None,
            biases: 0,
        }
    }

    fn t5(dir: &ModelDir, config: &T5Config, may_scale: bool) -> Result<Self> {
        let scales = may_scale && config.scale_decoder_outputs != Some(false);
        let refuse = |message| Error::model(dir.path.join("config.json"), message);
        Ok(Self {
            vocabulary: config.vocab_size,
            width: config.d_model,
            layers: config.decoder_layers(),
            encoder_layers: config.num_layers,
            encoder_inner: config.d_ff,
            heads: config.num_heads,
            kv_heads: config.num_heads,
            head_dim: config.d_kv,
            inner: config.d_ff,
            learned_positions: 0,
            max_positions: None,
            made_for: None,
            angles_vary: false,
            block: Block::T5 { gated: config.activation().map_err(refuse)?.is_gated() },
            qk_norm: false,
            // Where nothing is scaled, the checkpoint has a head of its own, whatever newer files say of it.
            tied: config.tie_word_embeddings && scales,
            quantised: None,
            biases: 2 * config.relative_attention_num_buckets * config.num_heads,
        })
    }

    fn bart(config: &BartConfig, kind: BartKind) -> Self {
        let (d, heads) = (config.d_model, config.decoder_attention_heads);
        let positions = config.max_position_embeddings + kind.offset();
        // Attention 4 D, or twice that, and the feed-forward layer I + D; a norm after each; one more in each stack.
        let of_encoder = config.encoder_layers * (4 * d + config.encoder_ffn_dim + d + 2 * 2 * d);
        let of_decoder = config.decoder_layers * (8 * d + config.decoder_ffn_dim + d + 3 * 2 * d);
        Self {
            vocabulary: config.vocab_size,
            width: d,
            layers: config.decoder_layers,
            encoder_layers: config.encoder_layers,
            encoder_inner: config.encoder_ffn_dim,
            heads,
            kv_heads: heads,
            head_dim: d / heads.max(1),
            inner: config.decoder_ffn_dim,
            learned_positions: positions,
            max_positions: Some(config.max_position_embeddings),
            made_for: Some(config.max_position_embeddings),
            angles_vary: false,
            block: Block::Bart,
            qk_norm: false,
            tied: config.tie_word_embeddings,
            quantised: None,
            biases: of_encoder + of_decoder + 2 * 2 * d + positions * d,
        }
    }

    /// How long prompts and completions may be.
    pub fn room(&self) -> Room {
        Room::new(self.max_positions, self.has_encoder())
    }

    /// Whether there is an encoder.
    pub fn has_encoder(&self) -> bool {
        self.encoder_layers > 0
    }

    /// Width of all query heads together.
    pub fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of all key heads together, and of all value heads.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// The linear layers of a block: of attention to itself, to the sources, and of the feed-forward layer. Those of an
    /// encoder alone have no names here: nothing is put on them.
    fn linears_of_block(&self, i: usize) -> [Vec<(&'static str, usize, usize)>; 3] {
        let (d, q, k) = (self.width, self.q_width(), self.kv_width());
        match self.block {
            Block::Gpt2 => [
                vec![("attn.c_attn", d, 3 * d), ("attn.c_proj", d, d)],
                Vec::new(),
                vec![("mlp.c_fc", d, i), ("mlp.c_proj", i, d)],
            ],
            Block::Encoder { .. } => [Vec::new(), Vec::new(), Vec::new()],
            Block::Decoder { fused: true, .. } => [
                vec![("self_attn.qkv_proj", d, q + 2 * k), ("self_attn.o_proj", q, d)],
                Vec::new(),
                vec![("mlp.gate_up_proj", d, 2 * i), ("mlp.down_proj", i, d)],
            ],
            Block::Decoder { fused: false, .. } => [
                vec![
                    ("self_attn.q_proj", d, q),
                    ("self_attn.k_proj", d, k),
                    ("self_attn.v_proj", d, k),
                    ("self_attn.o_proj", q, d),
                ],
                Vec::new(),
                vec![("mlp.gate_proj", d, i), ("mlp.up_proj", d, i), ("mlp.down_proj", i, d)],
            ],
            Block::T5 { gated } => {
                let attention = vec![("q", d, q), ("k", d, k), ("v", d, k), ("o", q, d)];
                let fed = match gated {
                    true => vec![("wi_0", d, i), ("wi_1", d, i), ("wo", i, d)],
                    false => vec![("wi", d, i), ("wo", i, d)],
                };
                [attention.clone(), attention, fed]
            }
            Block::Bart => {
                let attention = vec![("q_proj", d, q), ("k_proj", d, k), ("v_proj", d, k), ("out_proj", q, d)];
                [attention.clone(), attention, vec![("fc1", d, i), ("fc2", i, d)]]
            }
        }
    }

    /// All linear layers of the trunk.
    pub fn linear_layers(&self) -> Vec<LinearShape> {
        let [of_encoder, of_decoder] = [self.encoder_inner, self.inner].map(|inner| self.linears_of_block(inner));
        let mut found = Vec::new();
        let mut add = |parts: &[Vec<(&str, usize, usize)>; 3], part: usize, prefix: String| {
            found.extend(parts[part].iter().map(|&(name, inputs, outputs)| LinearShape {
                name: format!("{prefix}.{name}"),
                inputs,
                outputs,
                is_fed: part == 2,
            }));
        };
        for layer in 0..self.encoder_layers {
            match self.block {
                Block::Bart => {
                    add(&of_encoder, 0, format!("encoder.layers.{layer}.self_attn"));
                    add(&of_encoder, 2, format!("encoder.layers.{layer}"));
                }
                _ => {
                    add(&of_encoder, 0, format!("encoder.block.{layer}.layer.0.SelfAttention"));
                    add(&of_encoder, 2, format!("encoder.block.{layer}.layer.1.DenseReluDense"));
                }
            }
        }
        for layer in 0..self.layers {
            match self.block {
                Block::Encoder { .. } => {}
                Block::Gpt2 => [0, 2].into_iter().for_each(|part| add(&of_decoder, part, format!("h.{layer}"))),
                Block::Decoder { .. } => {
                    [0, 2].into_iter().for_each(|part| add(&of_decoder, part, format!("layers.{layer}")));
                }
                Block::T5 { .. } => {
                    add(&of_decoder, 0, format!("decoder.block.{layer}.layer.0.SelfAttention"));
                    add(&of_decoder, 1, format!("decoder.block.{layer}.layer.1.EncDecAttention"));
                    add(&of_decoder, 2, format!("decoder.block.{layer}.layer.2.DenseReluDense"));
                }
                Block::Bart => {
                    add(&of_decoder, 0, format!("decoder.layers.{layer}.self_attn"));
                    add(&of_decoder, 1, format!("decoder.layers.{layer}.encoder_attn"));
                    add(&of_decoder, 2, format!("decoder.layers.{layer}"));
                }
            }
        }
        found
    }

    /// Weights of all blocks that enter matrix products: without an encoder every token passes through each once.
    pub fn trunk_matrices(&self) -> usize {
        if let Block::Encoder { matrices, .. } = self.block {
            return matrices;
        }
        let size = |parts: &[(&str, usize, usize)]| parts.iter().map(|(_, i, o)| i * o).sum::<usize>();
        let [own, across, fed] = self.linears_of_block(self.inner).map(|part| size(&part));
        let [encoder_own, _, encoder_fed] = self.linears_of_block(self.encoder_inner).map(|part| size(&part));
        self.layers * (own + across + fed) + self.encoder_layers * (encoder_own + encoder_fed)
    }

    /// Weights of the LM head, tied or not: every predicted token passes through each once.
    pub fn head_matrix(&self) -> usize {
        self.vocabulary * self.width
    }

    /// All weights below the head.
    pub fn trunk_parameters(&self) -> usize {
        let d = self.width;
        let norms = match self.block {
            Block::Gpt2 => self.layers * (self.biases + 2 * d) + 2 * d,
            Block::Decoder { .. } => self.layers * self.biases + d,
            Block::T5 { .. } => self.biases + d * (3 * self.layers + 2 * self.encoder_layers + 2),
            Block::Bart => self.biases,
            Block::Encoder { matrices, others, .. } => return matrices + others,
        };
        (self.vocabulary + self.learned_positions) * d + self.trunk_matrices() + norms
    }

    /// All weights of the language model.
    pub fn parameters(&self) -> usize {
        self.trunk_parameters() + if self.tied { 0 } else { self.head_matrix() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{CausalLm, Classifier, named_tensors};
    use burn::tensor::Device;
    use std::path::Path;

    #[test]
    fn counts_what_encoders_hold() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/encoders");
        let entries = std::fs::read_dir(fixtures).expect("fixtures");
        for path in entries.map(|entry| entry.expect("an entry").path()) {
            let dir = ModelDir::open(&path).expect("a fixture");
            let shape = ModelShape::of(&dir).expect("a known family");
            let mut model = Classifier::load(&dir, &Device::flex()).expect("a fixture");
            let held: usize = named_tensors(&model.encoder).iter().map(|tensor| tensor.values.len()).sum();
            assert_eq!(shape.trunk_parameters(), held, "{}", path.display());
            let linear: usize =
                model.encoder.linears_mut().iter().map(|(_, of)| of.widths().iter().product::<usize>()).sum();
            assert_eq!(shape.trunk_matrices(), linear, "{}", path.display());
            assert_eq!(shape.max_positions, model.encoder.max_positions(), "{}", path.display());
        }
    }

    #[test]
    fn counts_what_the_models_hold() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/models");
        for name in [
            "gpt2",
            "llama-gqa",
            "llama-tied-bias",
            "qwen2",
            "qwen3",
            "qwen3-tied",
            "llama-rope-yarn",
            "gemma2",
            "gemma3",
            "smollm3-window",
            "phi3-window",
            "olmo2",
            "../seq2seq/t5",
            "../seq2seq/t5-gated",
        ] {
            let dir = ModelDir::open(&fixtures.join(name)).expect("a fixture");
            let shape = ModelShape::of(&dir).expect("a known family");
            let model = CausalLm::load(&dir, &Device::flex()).expect("a fixture");
            let tensors = named_tensors(&model);
            let count = |keep: &dyn Fn(&str, usize) -> bool| -> usize {
                tensors.iter().filter(|t| keep(&t.name, t.shape.len())).map(|t| t.values.len()).sum()
            };
            let is_table = |name: &str| {
                ["wte", "wpe", "embed_tokens", "lm_head", "shared", "relative", "embed_positions"]
                    .iter()
                    .any(|t| name.contains(t))
            };
            assert_eq!(shape.parameters(), count(&|_, _| true), "{name}");
            assert_eq!(shape.trunk_matrices(), count(&|name, rank| rank == 2 && !is_table(name)), "{name}");
            assert_eq!(shape.trunk_parameters(), count(&|name, _| !name.contains("lm_head")), "{name}");
        }
    }
}
