//! OPT (Zhang et al. 2022, <https://arxiv.org/abs/2205.01068>): BART's blocks without an encoder, with norms before the layers. The model
//! with 350 million parameters has norms after them, and narrower embeddings.
//!
//! Field names are those of `transformers`' `OPTModel`; config keys are those of its `config.json`.

use burn::module::Module;
use burn::tensor::Tensor;
use gradus_kernels::{AttentionShape, Mask};
use serde::Deserialize;

use super::activation::{Activation, FeedForward};
use super::bart::{BlockSettings, EPSILON, EncoderLayer, Probabilities};
use super::body::{Body, Running, TrunkInfo, equal_heads};
use super::build::Builder;
use super::context::Context;
use super::defaults::{deviation, tenth, yes};
use super::dropout::{DropoutSite, Dropping};
use super::layers::{Embedding, LayerNorm, Linear, Linears, linears};

/// Number of rows of the position table before the first position.
const OFFSET: usize = 2;

/// The keys of `config.json` that the computation depends on.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct OptConfig {
    /// Vocabulary size, V.
    pub vocab_size: usize,
    /// Width of the hidden states between blocks, D.
    pub hidden_size: usize,
    /// Number of blocks, L.
    pub num_hidden_layers: usize,
    /// Number of heads, H.
    pub num_attention_heads: usize,
    /// Width of the feed-forward layer.
    pub ffn_dim: usize,
    /// Number of positions.
    #[serde(default = "max_positions")]
    pub max_position_embeddings: usize,
    /// Width of the embeddings and of the final hidden states; D when absent.
    #[serde(default)]
    pub word_embed_proj_dim: Option<usize>,
    /// Whether blocks normalize the inputs of their layers, not the outputs.
    #[serde(default = "yes")]
    pub do_layer_norm_before: bool,
    /// Whether there is no norm after the last block, as in models that were trained with an early version of `transformers`.
    #[serde(default, rename = "_remove_final_layer_norm")]
    pub removes_final_norm: bool,
    /// Whether linear layers have biases.
    #[serde(default = "yes")]
    pub enable_bias: bool,
    /// Whether norms have weights; a model without them is not supported.
    #[serde(default = "yes")]
    pub layer_norm_elementwise_affine: bool,
    /// `relu`, `gelu`, `gelu_new` or `gelu_pytorch_tanh`.
    #[serde(default = "relu")]
    pub activation_function: String,
    /// Dropout of the outputs of attention and the feed-forward layer.
    #[serde(default = "tenth")]
    pub dropout: f32,
    /// Dropout of the attention's probabilities.
    #[serde(default)]
    pub attention_dropout: f32,
    /// Probability of skipping a whole block; not supported.
    #[serde(default)]
    pub layerdrop: f32,
    /// Standard deviation of newly initialized weights.
    #[serde(default = "deviation")]
    pub init_std: f32,
    /// Whether the LM head is the embedding table.
    #[serde(default = "yes")]
    pub tie_word_embeddings: bool,
}

fn max_positions() -> usize {
    2048
}
fn relu() -> String {
    "relu".into()
}

impl OptConfig {
    /// Width of the embeddings and of the final hidden states.
    pub fn embedding_width(&self) -> usize {
        self.word_embed_proj_dim.unwrap_or(self.hidden_size)
    }

    /// Rejects unsupported values.
    ///
    /// # Errors
    /// Describes the problem.
    fn check(&self) -> Result<(), String> {
        if self.layerdrop != 0.0 {
            return Err(format!(
                "`layerdrop` is {}: leaving out whole layers is not supported; set it to 0",
                self.layerdrop
            ));
        }
        match self.layer_norm_elementwise_affine {
            true => Ok(()),
            false => Err("`layer_norm_elementwise_affine` is false: norms without weights are not supported".into()),
        }
    }
}

/// The trunk of OPT, `model.*`.
#[derive(Module, Debug)]
pub struct OptModel {
    decoder: Decoder,
    #[module(skip)]
    config: OptConfig,
    #[module(skip)]
    activate: FeedForward,
    /// Runtime settings.
    #[module(skip)]
    pub(super) running: Running,
}

#[derive(Module, Debug)]
struct Decoder {
    embed_tokens: Embedding,
    embed_positions: Embedding,
    project_in: Option<Linear>,
    layers: Vec<EncoderLayer>,
    final_layer_norm: Option<LayerNorm>,
    project_out: Option<Linear>,
}

impl OptModel {
    /// # Errors
    /// When the configuration requests something unsupported.
    pub(crate) fn build(mut b: Builder<'_>, config: OptConfig) -> Result<Self, String> {
        config.check()?;
        let activate = Activation::feed_forward("activation_function", &config.activation_function)?;
        let (d, width, std) = (config.hidden_size, config.embedding_width(), config.init_std);
        let mut b = b.enter("decoder");
        let layer = |i| EncoderLayer::build(b.enter("layers").enter(i), [d, config.ffn_dim], config.enable_bias, std);
        let layers = (0..config.num_hidden_layers).map(layer).collect();
        let has_norm = config.do_layer_norm_before && !config.removes_final_norm;
        let is_projected = width != d;
        let decoder = Decoder {
            embed_tokens: Embedding::build(b.enter("embed_tokens"), config.vocab_size, width, std),
            embed_positions: Embedding::build(
                b.enter("embed_positions"),
                config.max_position_embeddings + OFFSET,
                d,
                std,
            ),
            project_in: is_projected.then(|| Linear::build(b.enter("project_in"), width, d, false, std)),
            layers,
            final_layer_norm: has_norm.then(|| LayerNorm::build(b.enter("final_layer_norm"), d, EPSILON)),
            project_out: is_projected.then(|| Linear::build(b.enter("project_out"), d, width, false, std)),
        };
        Ok(Self { decoder, config, activate, running: Running::default() })
    }

    /// The configuration.
    pub fn config(&self) -> &OptConfig {
        &self.config
    }

    /// Shape of every block's attention.
    fn attention_shape(&self) -> AttentionShape {
        let (width, heads) = (self.config.hidden_size, self.config.num_attention_heads);
        equal_heads(width, heads, Mask::Causal, self.running.compute)
    }
}

linears! {
    OptModel: decoder;
    Decoder: project_in, layers, project_out;
}

impl Body for OptModel {
    fn forward(&self, context: &mut Context<'_>) -> Tensor<2> {
        let (decoder, shape) = (&self.decoder, self.attention_shape());
        let dropping = Dropping { stream: context.dropout(), own: self.running.dropout };
        let projected = |layer: &Option<Linear>, x: Tensor<2>| match layer {
            Some(layer) => layer.forward(x, dropping.stream),
            None => x,
        };
        let positions: Vec<u32> = context.positions().iter().map(|position| position + OFFSET as u32).collect();
        let embedded = projected(&decoder.project_in, context.add_noise(decoder.embed_tokens.forward(context.ids())));
        let mut x = embedded + decoder.embed_positions.forward(&positions);
        let again = context.trained_segments(self.running.recompute, &x);
        for (block, layer) in decoder.layers.iter().enumerate() {
            let settings = BlockSettings {
                block,
                activate: self.activate,
                dropping,
                probabilities: Probabilities {
                    added: self.config.dropout,
                    attention: self.config.attention_dropout,
                    activation: 0.0,
                },
                normalizes_before: self.config.do_layer_norm_before,
            };
            let extras = settings.extras(DropoutSite::Attention);
            x = context.run_layer(
                again.clone(),
                (block, shape, extras),
                layer,
                x,
                move |layer: &EncoderLayer, x, attend| layer.forward(x, settings, attend),
            );
        }
        let x = match &decoder.final_layer_norm {
            Some(norm) => norm.forward(x),
            None => x,
        };
        projected(&decoder.project_out, x)
    }

    fn embedding(&self) -> Tensor<2> {
        self.decoder.embed_tokens.weight.val()
    }

    fn attention(&self) -> [Vec<AttentionShape>; 2] {
        [vec![self.attention_shape(); self.config.num_hidden_layers], Vec::new()]
    }

    fn info(&self) -> TrunkInfo {
        let config = &self.config;
        TrunkInfo {
            vocabulary: config.vocab_size,
            width: config.embedding_width(),
            max_positions: Some(config.max_position_embeddings),
            angles_vary: false,
            initializer_range: config.init_std,
            ties_head: config.tie_word_embeddings,
            head_scale: 1.0,
            logit_cap: None,
            decoder_start: None,
        }
    }
}
