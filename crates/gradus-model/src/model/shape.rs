//! Sizes of a model, from its `config.json` alone: the basis of estimates of memory and arithmetic.

use std::collections::{HashMap, HashSet};

use gradus_kernels::Int8Moments;

use super::Quantization;
use super::adapter::{HEAD, PeftConfig, TaskType};
use super::bart::BartConfig;
use super::build::{Builder, Shapes};
use super::decoder::{DecoderFamily, Norms};
use super::directory::ModelDir;
use super::encoder::{Encoder, Sizes};
use super::family::Family;
use super::gpt_neox::{self, GptNeoxConfig};
use super::gpt2::Gpt2Config;
use super::layers::{Linear, Linears};
use super::opt::OptConfig;
use super::position_budget::PositionBudget;
use super::t5::T5Config;
use super::trunk::Trunk;
use crate::device::DeviceChoice;
use crate::error::{Error, Result};

/// Sizes of a model. Counts are numbers of parameters, not bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelShape {
    /// Vocabulary size, V.
    pub vocabulary: usize,
    /// Width of the hidden states, D.
    pub width: usize,
    /// Width of the hidden states that a head reads: D, except in OPT with narrower embeddings.
    pub head_width: usize,
    /// Number of blocks, L; of the decoder, if there is an encoder.
    pub layers: usize,
    /// Number of encoder blocks; 0 without an encoder.
    pub encoder_layers: usize,
    /// Number of query heads.
    pub heads: usize,
    /// Number of key and value heads.
    pub kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Width of the feed-forward layer.
    pub inner: usize,
    /// Length of the longest sequence with the same results in sampling and training; `None` if there is no limit.
    pub max_positions: Option<usize>,
    /// Length of the longest sequence that the model is designed for; `None` if there is no limit. It exceeds `max_positions` if angles
    /// depend on the length of the sequence (dynamic scaling, longrope).
    pub made_for: Option<usize>,
    /// Whether rotary angles depend on the length of the whole sequence (dynamic scaling, longrope). Rows then share no tokens.
    pub angles_vary: bool,
    /// Structure of a block.
    pub block: Block,
    /// Whether queries and keys are normalized.
    pub qk_norm: bool,
    /// Whether the LM head is the embedding table.
    pub tied: bool,
    /// Quantization of the blocks' linear layers, on disk and in memory.
    pub quantized: Option<Quantization>,
    /// Width of the encoder's feed-forward layer.
    pub encoder_inner: usize,
    /// Parameter counts below the head.
    counts: Counts,
}

/// Parameter counts of a trunk or an encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Counts {
    all: usize,
    of_linears: usize,
    /// Parameters in tensors that are too small for 8-bit moments.
    of_small: usize,
}

/// Sizes of an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AdapterSize {
    /// Number of its parameters.
    pub numbers: usize,
    /// Number of parameters in tensors that are too small for 8-bit moments.
    pub of_small: usize,
    /// Whether it adapts feed-forward layers.
    pub feed_forward: bool,
}

impl AdapterSize {
    fn add(&mut self, numbers: usize) {
        self.numbers += numbers;
        self.of_small += small(numbers);
    }
}

/// Returns `numbers` if a tensor of this size is too small for 8-bit moments, else 0.
fn small(numbers: usize) -> usize {
    if numbers < Int8Moments::LEAST { numbers } else { 0 }
}

/// A linear layer of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinearShape {
    /// Name in the trunk, such as `h.0.attn.c_attn`.
    pub name: String,
    /// Number of inputs.
    pub inputs: usize,
    /// Number of outputs.
    pub outputs: usize,
    /// Whether it belongs to the feed-forward layer.
    pub is_fed: bool,
}

/// Structure of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Block {
    /// GPT-2, GPT-NeoX and OPT: layer norms, ungrouped heads, two linear layers around a GELU.
    Gpt2 {
        /// Whether the feed-forward layer reads the input of attention, not its output.
        parallel: bool,
    },
    /// Llama and similar models: RMS norms, rotary positions, linear layers around a gated activation.
    Decoder {
        /// Whether one linear layer computes queries, keys and values, and another gate and up.
        fused: bool,
        /// Whether there are norms both before and after attention and the feed-forward layer.
        norms_around: bool,
        /// Whether the layers of queries, keys and values have biases, and whether those of gate and up have.
        biases: [bool; 2],
    },
    /// T5: encoder blocks with attention and a feed-forward layer; decoder blocks with attention to the sources between them. RMS norms, no
    /// biases.
    T5 {
        /// Whether the feed-forward layer has a gate.
        gated: bool,
    },
    /// BART, Blenderbot: like T5, but with layer norms, biases and two linear layers around a GELU.
    Bart,
    /// An encoder without a decoder, which only a classifier has.
    Encoder {
        /// Whether the feed-forward layer has a gate.
        gated: bool,
    },
}

impl ModelShape {
    /// Reads the sizes from the configuration of `dir`.
    ///
    /// # Errors
    /// When the family is unknown, a key is missing, or sizes do not fit each other.
    pub fn of(dir: &ModelDir) -> Result<Self> {
        if dir.is_encoder() {
            return Ok(Self { counts: counted(dir)?, ..Self::encoder(Encoder::sizes(dir)?) });
        }
        let shape = match dir.family()? {
            Family::Gpt2 => Self::gpt2(&dir.read_config()?),
            Family::GptNeox => Self::gpt_neox(dir, &dir.read_config()?)?,
            Family::Opt => Self::opt(&dir.read_config()?),
            Family::T5 => Self::t5(dir, &dir.read_config()?, true)?,
            Family::Mt5 => Self::t5(dir, &dir.read_config()?, false)?,
            Family::Bart | Family::Blenderbot | Family::BlenderbotSmall => Self::bart(&dir.read_config()?),
            Family::Decoder(family) => Self::decoder(dir, family)?,
        };
        Ok(Self { quantized: dir.quantization(), counts: counted(dir)?, ..shape })
    }

    fn gpt2(config: &Gpt2Config) -> Self {
        let (d, inner) = (config.n_embd, config.n_inner.unwrap_or(4 * config.n_embd));
        Self {
            vocabulary: config.vocab_size,
            width: d,
            head_width: d,
            layers: config.n_layer,
            encoder_layers: 0,
            encoder_inner: 0,
            heads: config.n_head,
            kv_heads: config.n_head,
            head_dim: d / config.n_head.max(1),
            inner,
            max_positions: Some(config.n_positions),
            made_for: Some(config.n_positions),
            angles_vary: false,
            block: Block::Gpt2 { parallel: false },
            qk_norm: false,
            tied: config.tie_word_embeddings,
            quantized: None,
            counts: Counts::default(),
        }
    }

    fn gpt_neox(dir: &ModelDir, config: &GptNeoxConfig) -> Result<Self> {
        let refuse = |message| Error::model(dir.path.join("config.json"), message);
        let rope = gpt_neox::angles(config, &dir.config).map_err(refuse)?;
        Ok(Self {
            vocabulary: config.vocab_size,
            width: config.hidden_size,
            head_width: config.hidden_size,
            layers: config.num_hidden_layers,
            encoder_layers: 0,
            encoder_inner: 0,
            heads: config.num_attention_heads,
            kv_heads: config.num_attention_heads,
            head_dim: config.head_dim(),
            inner: config.intermediate_size,
            max_positions: Some(rope.max_sampled()),
            made_for: Some(rope.made_for()),
            angles_vary: rope.limit().is_some(),
            block: Block::Gpt2 { parallel: config.use_parallel_residual },
            qk_norm: false,
            tied: config.tie_word_embeddings,
            quantized: None,
            counts: Counts::default(),
        })
    }

    fn opt(config: &OptConfig) -> Self {
        let (d, heads) = (config.hidden_size, config.num_attention_heads);
        Self {
            vocabulary: config.vocab_size,
            width: d,
            head_width: config.embedding_width(),
            layers: config.num_hidden_layers,
            encoder_layers: 0,
            encoder_inner: 0,
            heads,
            kv_heads: heads,
            head_dim: d / heads.max(1),
            inner: config.ffn_dim,
            max_positions: Some(config.max_position_embeddings),
            made_for: Some(config.max_position_embeddings),
            angles_vary: false,
            block: Block::Gpt2 { parallel: false },
            qk_norm: false,
            tied: config.tie_word_embeddings,
            quantized: None,
            counts: Counts::default(),
        }
    }

    fn decoder(dir: &ModelDir, family: &DecoderFamily) -> Result<Self> {
        let (config, structure) =
            family.read(&dir.config).map_err(|message| Error::model(dir.path.join("config.json"), message))?;
        Ok(Self {
            vocabulary: config.vocab_size,
            width: config.hidden_size,
            head_width: config.hidden_size,
            layers: config.num_hidden_layers,
            encoder_layers: 0,
            encoder_inner: 0,
            heads: config.num_attention_heads,
            kv_heads: config.kv_heads(),
            head_dim: config.head_dim(),
            inner: config.intermediate_size,
            max_positions: Some(structure.max_positions()),
            made_for: Some(structure.made_for()),
            angles_vary: structure.limit().is_some(),
            block: Block::Decoder {
                fused: structure.fused,
                norms_around: structure.norms == Norms::Around,
                biases: [structure.attention_biases[0], config.mlp_bias],
            },
            qk_norm: structure.qk_norm.is_some(),
            tied: config.tie_word_embeddings,
            quantized: None,
            counts: Counts::default(),
        })
    }

    fn encoder(sizes: Sizes) -> Self {
        let Sizes { vocabulary, width, layers, heads, head_dim, inner, max_positions, gated } = sizes;
        Self {
            vocabulary,
            width,
            head_width: width,
            layers,
            encoder_layers: 0,
            encoder_inner: 0,
            heads,
            kv_heads: heads,
            head_dim,
            inner,
            max_positions,
            made_for: max_positions,
            angles_vary: false,
            block: Block::Encoder { gated },
            qk_norm: false,
            tied: true,
            quantized: None,
            counts: Counts::default(),
        }
    }

    fn t5(dir: &ModelDir, config: &T5Config, may_scale: bool) -> Result<Self> {
        let scales = may_scale && config.scale_decoder_outputs != Some(false);
        let refuse = |message| Error::model(dir.path.join("config.json"), message);
        Ok(Self {
            vocabulary: config.vocab_size,
            width: config.d_model,
            head_width: config.d_model,
            layers: config.decoder_layers(),
            encoder_layers: config.num_layers,
            encoder_inner: config.d_ff,
            heads: config.num_heads,
            kv_heads: config.num_heads,
            head_dim: config.d_kv,
            inner: config.d_ff,
            max_positions: None,
            made_for: None,
            angles_vary: false,
            block: Block::T5 { gated: config.activation().map_err(refuse)?.is_gated() },
            qk_norm: false,
            // If nothing is scaled, the checkpoint has a separate head, whatever newer files declare.
            tied: config.tie_word_embeddings && scales,
            quantized: None,
            counts: Counts::default(),
        })
    }

    fn bart(config: &BartConfig) -> Self {
        let (d, heads) = (config.d_model, config.decoder_attention_heads);
        Self {
            vocabulary: config.vocab_size,
            width: d,
            head_width: d,
            layers: config.decoder_layers,
            encoder_layers: config.encoder_layers,
            encoder_inner: config.encoder_ffn_dim,
            heads,
            kv_heads: heads,
            head_dim: d / heads.max(1),
            inner: config.decoder_ffn_dim,
            max_positions: Some(config.max_position_embeddings),
            made_for: Some(config.max_position_embeddings),
            angles_vary: false,
            block: Block::Bart,
            qk_norm: false,
            tied: config.tie_word_embeddings,
            quantized: None,
            counts: Counts::default(),
        }
    }

    /// Limits of the lengths of prompts and completions.
    pub fn position_budget(&self) -> PositionBudget {
        PositionBudget::new(self.max_positions, self.has_encoder())
    }

    /// Limits of the lengths of given texts, in training and in measurements. Sampling may have fewer positions.
    pub fn text_budget(&self) -> PositionBudget {
        PositionBudget::new(self.made_for, self.has_encoder())
    }

    /// Whether the model has an encoder.
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

    /// Computes the sizes of the adapter `config` on this model, which is in `dir`.
    ///
    /// # Errors
    /// When the family is unknown, or a pattern is not a valid regular expression.
    pub fn adapter_size(&self, config: &PeftConfig, dir: &ModelDir) -> Result<AdapterSize> {
        let (prefix, matcher) = (dir.base_prefix()?, config.matcher()?);
        let mut size = AdapterSize::default();
        for LinearShape { name, inputs, outputs, is_fed } in linear_layers(dir)? {
            let name = format!("{prefix}{name}");
            if matcher.matches(&name) {
                let (rank, _) = matcher.rank_and_scale(&name);
                [rank * inputs, rank * outputs].into_iter().for_each(|numbers| size.add(numbers));
                size.add(if config.use_dora { outputs } else { 0 });
                size.feed_forward |= is_fed;
            }
        }
        if dir.is_encoder() {
            // The layer in front of the labels, which is trained with the adapter.
            size.add(self.width * self.width);
        }
        if config.task_type == TaskType::SequenceClassification {
            size.add(self.head_width);
        }
        if config.task_type == TaskType::CausalLm && matcher.matches_head(HEAD) {
            let (rank, _) = matcher.rank_and_scale(HEAD);
            [rank * self.head_width, rank * self.vocabulary].into_iter().for_each(|numbers| size.add(numbers));
        }
        Ok(size)
    }

    /// Number of the blocks' weights in matrix products. Without an encoder, every token is multiplied by each of them once.
    pub fn trunk_matrices(&self) -> usize {
        self.counts.of_linears
    }

    /// Number of weights of the LM head, tied or not. Every predicted token is multiplied by each of them once.
    pub fn head_matrix(&self) -> usize {
        self.vocabulary * self.head_width
    }

    /// Number of all parameters below the head.
    pub fn trunk_parameters(&self) -> usize {
        self.counts.all
    }

    /// Number of these parameters in tensors that are too small for 8-bit moments.
    pub fn small_parameters(&self) -> usize {
        self.counts.of_small
    }

    /// Number of all parameters of the language model.
    pub fn parameters(&self) -> usize {
        self.trunk_parameters() + if self.tied { 0 } else { self.head_matrix() }
    }
}

/// Name and shape of a tensor.
type NamedShape = (String, Vec<usize>);

/// Returns, for the part of the model in `dir` below its head, the names of the linear layers and the names and shapes of all tensors.
fn tensors(dir: &ModelDir) -> Result<(Vec<String>, Vec<NamedShape>)> {
    let (mut shapes, device) = (Shapes::default(), DeviceChoice::cpu().device().clone());
    let mut b = Builder::new(&mut shapes, &device);
    let names = |linears: Vec<(String, &mut Linear)>| linears.into_iter().map(|(name, _)| name).collect();
    let names = match dir.is_encoder() {
        true => names(Encoder::build(&mut b, dir)?.linears_mut()),
        false => names(Trunk::build(&mut b, dir)?.linears_mut()),
    };
    let prefix = dir.base_prefix()?;
    let own = |(name, shape): (String, Vec<usize>)| (name.strip_prefix(prefix).unwrap_or(&name).to_owned(), shape);
    Ok((names, shapes.0.into_iter().map(own).collect()))
}

fn counted(dir: &ModelDir) -> Result<Counts> {
    let (linears, tensors) = tensors(dir)?;
    let linears: HashSet<String> = linears.into_iter().map(|name| format!("{name}.weight")).collect();
    let size = |(_, shape): &NamedShape| shape.iter().product::<usize>();
    let of_linears = tensors.iter().filter(|(name, _)| linears.contains(name)).map(size).sum();
    let of_small = tensors.iter().map(|tensor| small(size(tensor))).sum();
    Ok(Counts { all: tensors.iter().map(size).sum(), of_linears, of_small })
}

/// Returns all linear layers of the model in `dir`, below its head.
///
/// # Errors
/// When the family is unknown, or its configuration is not supported.
pub(super) fn linear_layers(dir: &ModelDir) -> Result<Vec<LinearShape>> {
    let (names, tensors) = tensors(dir)?;
    let shapes: HashMap<String, Vec<usize>> = tensors.into_iter().collect();
    let (attention, lies_across) = dir.attention_layers()?;
    let layer = |name: String| {
        let ends = |end: &&str| name == **end || name.ends_with(&format!(".{end}"));
        let is_fed = !attention.iter().any(ends);
        let shape = shapes.get(&format!("{name}.weight")).map_or(&[][..], Vec::as_slice);
        let (outputs, inputs) = match shape {
            [inputs, outputs] if lies_across => (*outputs, *inputs),
            [outputs, inputs] => (*outputs, *inputs),
            _ => (0, 0),
        };
        LinearShape { name, inputs, outputs, is_fed }
    };
    Ok(names.into_iter().map(layer).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{CausalLm, Classifier, named_tensors};
    use burn::tensor::Device;
    use std::path::Path;

    #[test]
    fn counts_what_encoders_hold() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gradus/tests/fixtures/parity/encoders");
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
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gradus/tests/fixtures/parity/models");
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
            "pythia",
            "opt",
            "opt-narrow",
            "../seq2seq/t5",
            "../seq2seq/t5-gated",
            "../seq2seq/bart",
        ] {
            let dir = ModelDir::open(&fixtures.join(name)).expect("a fixture");
            let shape = ModelShape::of(&dir).expect("a known family");
            let model = CausalLm::load(&dir, &Device::flex()).expect("a fixture");
            let tensors = named_tensors(&model);
            let count = |keep: &dyn Fn(&str, usize) -> bool| -> usize {
                tensors.iter().filter(|t| keep(&t.name, t.shape.len())).map(|t| t.values.len()).sum()
            };
            let is_table = |name: &str| {
                ["wte", "wpe", "embed_tokens", "embed_in", "lm_head", "shared", "relative", "embed_positions"]
                    .iter()
                    .any(|t| name.contains(t))
            };
            assert_eq!(shape.parameters(), count(&|_, _| true), "{name}");
            assert_eq!(shape.trunk_matrices(), count(&|name, rank| rank == 2 && !is_table(name)), "{name}");
            assert_eq!(shape.trunk_parameters(), count(&|name, _| !name.contains("lm_head")), "{name}");
        }
    }
}
