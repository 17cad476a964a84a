//! GPT-2: learned positions, pre-norm blocks, one projection for queries, keys and values, weights stored `[in, out]`.
//!
//! Field names are those of `transformers`' `GPT2Model`; config keys are those of its `config.json`.

use burn::module::Module;
use burn::tensor::Tensor;
use gradus_kernels::{AttentionShape, Mask, attention_fused_dropping, recompute};
use serde::Deserialize;

use super::activation::{Activation, FeedForward};
use super::body::{Body, Running, TrunkInfo, equal_heads};
use super::build::Builder;
use super::context::Context;
use super::defaults::{deviation, tenth, yes};
use super::dropout::{DropoutSite, Dropping};
use super::layers::{Embedding, LayerNorm, Linear, Linears, linears};

/// The keys of `config.json` that the computation depends on.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Gpt2Config {
    /// Vocabulary size, V.
    pub vocab_size: usize,
    /// Width of the hidden states, D.
    pub n_embd: usize,
    /// Number of blocks, L.
    pub n_layer: usize,
    /// Number of heads, H.
    pub n_head: usize,
    /// Number of rows of the position table.
    pub n_positions: usize,
    /// Width of the feed-forward layer; 4 D when absent.
    #[serde(default)]
    pub n_inner: Option<usize>,
    /// `gelu_new`, `gelu`, `gelu_pytorch_tanh` or `relu`.
    #[serde(default = "gelu_new")]
    pub activation_function: String,
    /// ε of the layer norms.
    #[serde(default = "epsilon")]
    pub layer_norm_epsilon: f64,
    /// Standard deviation of newly initialized weights.
    #[serde(default = "deviation")]
    pub initializer_range: f32,
    /// Whether scores are divided by √head_dim.
    #[serde(default = "yes")]
    pub scale_attn_weights: bool,
    /// Whether scores are also divided by the layer's number, counted from 1.
    #[serde(default)]
    pub scale_attn_by_inverse_layer_idx: bool,
    /// Whether the LM head is the embedding table.
    #[serde(default = "yes")]
    pub tie_word_embeddings: bool,
    /// Dropout of the embeddings' sum.
    #[serde(default = "tenth")]
    pub embd_pdrop: f32,
    /// Dropout of the attention's probabilities.
    #[serde(default = "tenth")]
    pub attn_pdrop: f32,
    /// Dropout of the outputs of attention and the feed-forward layer.
    #[serde(default = "tenth")]
    pub resid_pdrop: f32,
}

fn gelu_new() -> String {
    "gelu_new".into()
}
fn epsilon() -> f64 {
    1e-5
}

/// The trunk of GPT-2, `transformer.*`.
#[derive(Module, Debug)]
pub struct Gpt2Model {
    wte: Embedding,
    wpe: Embedding,
    h: Vec<Block>,
    ln_f: LayerNorm,
    #[module(skip)]
    config: Gpt2Config,
    #[module(skip)]
    activate: FeedForward,
    /// Runtime settings.
    #[module(skip)]
    pub(super) running: Running,
}

#[derive(Module, Debug)]
struct Block {
    ln_1: LayerNorm,
    attn: Attention,
    ln_2: LayerNorm,
    mlp: Mlp,
}

#[derive(Module, Debug)]
struct Attention {
    c_attn: Linear,
    c_proj: Linear,
}

#[derive(Module, Debug)]
struct Mlp {
    c_fc: Linear,
    c_proj: Linear,
}

impl Gpt2Model {
    /// # Errors
    /// When the activation is unknown.
    pub(crate) fn build(mut b: Builder<'_>, config: Gpt2Config) -> Result<Self, String> {
        let activate = Activation::feed_forward("activation_function", &config.activation_function)?;
        let (d, std) = (config.n_embd, config.initializer_range);
        let (inner, epsilon) = (config.n_inner.unwrap_or(4 * d), config.layer_norm_epsilon);
        // The initial weights of residual projections are divided by √(2L), as in `transformers`.
        let residual = std / (2.0 * config.n_layer as f32).sqrt();
        let blocks = (0..config.n_layer).map(|i| {
            let mut b = b.enter("h");
            let mut b = b.enter(i);
            let ln_1 = LayerNorm::build(b.enter("ln_1"), d, epsilon);
            let mut a = b.enter("attn");
            let attn = Attention {
                c_attn: Linear::build_conv1d(a.enter("c_attn"), d, 3 * d, std),
                c_proj: Linear::build_conv1d(a.enter("c_proj"), d, d, residual),
            };
            let ln_2 = LayerNorm::build(b.enter("ln_2"), d, epsilon);
            let mut m = b.enter("mlp");
            let mlp = Mlp {
                c_fc: Linear::build_conv1d(m.enter("c_fc"), d, inner, std),
                c_proj: Linear::build_conv1d(m.enter("c_proj"), inner, d, residual),
            };
            Block { ln_1, attn, ln_2, mlp }
        });
        let h = blocks.collect();
        Ok(Self {
            wte: Embedding::build(b.enter("wte"), config.vocab_size, d, std),
            wpe: Embedding::build(b.enter("wpe"), config.n_positions, d, std),
            h,
            ln_f: LayerNorm::build(b.enter("ln_f"), d, epsilon),
            config,
            activate,
            running: Running::default(),
        })
    }

    /// The configuration.
    pub fn config(&self) -> &Gpt2Config {
        &self.config
    }

    /// Shape of every layer's attention, before layer-dependent scaling.
    fn attention_shape(&self) -> AttentionShape {
        let shape = equal_heads(self.config.n_embd, self.config.n_head, Mask::Causal, self.running.compute);
        match self.config.scale_attn_weights {
            true => shape,
            false => AttentionShape { scale: 1.0, ..shape },
        }
    }

    /// Shape of layer `layer`'s attention.
    pub(crate) fn layer_shape(&self, layer: usize) -> AttentionShape {
        let shape = self.attention_shape();
        match self.config.scale_attn_by_inverse_layer_idx {
            true => AttentionShape { scale: shape.scale / (layer + 1) as f32, ..shape },
            false => shape,
        }
    }
}

linears! {
    Gpt2Model: h;
    Block: attn, mlp;
    Attention: c_attn, c_proj;
    Mlp: c_fc, c_proj;
}

impl Body for Gpt2Model {
    fn forward(&self, context: &mut Context<'_>) -> Tensor<2> {
        let dropping = Dropping { stream: context.dropout(), own: self.running.dropout };
        let x = context.add_noise(self.wte.forward(context.ids())) + self.wpe.forward(&context.positions());
        let mut x = dropping.apply(x, self.config.embd_pdrop, DropoutSite::Embedding);
        let again = context.trained_segments(self.running.recompute, &x);
        for (layer, block) in self.h.iter().enumerate() {
            let (shape, dropout) = (self.layer_shape(layer), dropping.attention(self.config.attn_pdrop, layer));
            let settings =
                BlockSettings { layer, activate: self.activate, dropping, probability: self.config.resid_pdrop };
            x = match again.clone() {
                Some(segments) => recompute(block, x, move |block: &Block, x| {
                    block.forward(x, settings, |qkv| attention_fused_dropping(qkv, dropout, &segments, shape))
                }),
                None => block.forward(x, settings, |qkv| context.attend_fused(layer, shape, dropout, qkv)),
            };
        }
        self.ln_f.forward(x)
    }

    fn embedding(&self) -> Tensor<2> {
        self.wte.weight.val()
    }

    fn attention(&self) -> [Vec<AttentionShape>; 2] {
        [(0..self.config.n_layer).map(|layer| self.layer_shape(layer)).collect(), Vec::new()]
    }

    fn info(&self) -> TrunkInfo {
        let config = &self.config;
        TrunkInfo {
            vocabulary: config.vocab_size,
            width: config.n_embd,
            max_positions: Some(config.n_positions),
            angles_vary: false,
            initializer_range: config.initializer_range,
            ties_head: config.tie_word_embeddings,
            head_scale: 1.0,
            logit_cap: None,
            decoder_start: None,
        }
    }
}

/// Settings that a block is computed with, in addition to its weights.
#[derive(Clone, Copy)]
struct BlockSettings {
    layer: usize,
    activate: FeedForward,
    dropping: Dropping,
    /// Dropout of the outputs of attention and the feed-forward layer.
    probability: f32,
}

impl Block {
    /// Adds attention and the feed-forward layer to `x_nd`; `attend` computes the attention output from queries, keys and values side by
    /// side.
    fn forward(
        &self,
        x_nd: Tensor<2>,
        settings: BlockSettings,
        attend: impl FnOnce(Tensor<2>) -> Tensor<2>,
    ) -> Tensor<2> {
        let BlockSettings { layer, activate, dropping, probability } = settings;
        let masks = dropping.stream;
        let (c_attn, c_fc) = (&self.attn.c_attn, &self.mlp.c_fc);
        let qkv = c_attn.forward(self.ln_1.forward_for(c_attn, x_nd.clone(), masks), masks);
        let attended = self.attn.c_proj.forward(attend(qkv), masks);
        let x = x_nd + dropping.apply(attended, probability, DropoutSite::Attended(layer));
        let inner = c_fc.forward(self.ln_2.forward_for(c_fc, x.clone(), masks), masks);
        let fed = self.mlp.c_proj.forward_activated(activate(inner), &[c_fc], masks);
        x + dropping.apply(fed, probability, DropoutSite::FedForward(layer))
    }
}
