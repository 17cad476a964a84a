//! BART and Blenderbot: an encoder and a decoder with layer norms, biases and learned positions. BART (Lewis et al. 2019,
//! <https://arxiv.org/abs/1910.13461>) and the small Blenderbot normalize after each layer, Blenderbot (Roller et al. 2020,
//! <https://arxiv.org/abs/2004.13637>) before it.
//!
//! Field names are those of `transformers`' `BartModel`, `BlenderbotModel` and `BlenderbotSmallModel`; config keys are those of their
//! `config.json`.

use std::sync::Arc;

use burn::module::Module;
use burn::tensor::Tensor;
use gradus_kernels::{
    AttentionExtras, AttentionShape, Mask, attention_across_with, attention_with, branch, recompute_of,
};
use serde::Deserialize;

use super::activation::{Activation, FeedForward};
use super::batch::Sources;
use super::body::{Body, Running, TrunkInfo, equal_heads};
use super::build::Builder;
use super::context::Context;
use super::defaults::{deviation, gelu, tenth, yes};
use super::dropout::{DropoutSite, Dropping};
use super::layers::{Embedding, LayerNorm, Linear, Linears, linears};

/// ε of the norms, which is not configurable.
pub(super) const EPSILON: f64 = 1e-5;

/// The keys of `config.json` that the computation depends on.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct BartConfig {
    /// Vocabulary size, V.
    pub vocab_size: usize,
    /// Width of the hidden states, D.
    pub d_model: usize,
    /// Number of encoder blocks.
    pub encoder_layers: usize,
    /// Width of the encoder's feed-forward layers.
    pub encoder_ffn_dim: usize,
    /// Number of the encoder's heads.
    pub encoder_attention_heads: usize,
    /// Number of decoder blocks.
    pub decoder_layers: usize,
    /// Width of the decoder's feed-forward layers.
    pub decoder_ffn_dim: usize,
    /// Number of the decoder's heads.
    pub decoder_attention_heads: usize,
    /// Number of positions, of the encoder and of the decoder.
    pub max_position_embeddings: usize,
    /// `gelu`, `gelu_new`, `gelu_pytorch_tanh` or `relu`.
    #[serde(default = "gelu")]
    pub activation_function: String,
    /// Dropout of the embeddings and of each layer's output.
    #[serde(default = "tenth")]
    pub dropout: f32,
    /// Dropout of the attention's probabilities.
    #[serde(default)]
    pub attention_dropout: f32,
    /// Dropout of the activations.
    #[serde(default)]
    pub activation_dropout: f32,
    /// Probability of skipping a whole layer; not supported.
    #[serde(default)]
    pub encoder_layerdrop: f32,
    /// Probability of skipping a whole layer of the decoder; not supported.
    #[serde(default)]
    pub decoder_layerdrop: f32,
    /// Standard deviation of newly initialized weights.
    #[serde(default = "deviation")]
    pub init_std: f32,
    /// Whether embeddings are multiplied by √D.
    #[serde(default)]
    pub scale_embedding: bool,
    /// Whether the LM head is the embedding table.
    #[serde(default = "yes")]
    pub tie_word_embeddings: bool,
}

impl BartConfig {
    /// Rejects unsupported values.
    ///
    /// # Errors
    /// Describes the problem.
    fn check(&self) -> Result<(), String> {
        for (key, value) in
            [("encoder_layerdrop", self.encoder_layerdrop), ("decoder_layerdrop", self.decoder_layerdrop)]
        {
            if value != 0.0 {
                return Err(format!("`{key}` is {value}: leaving out whole layers is not supported; set it to 0"));
            }
        }
        Ok(())
    }
}

/// One of the families.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BartKind {
    Bart,
    Blenderbot,
    BlenderbotSmall,
}

impl BartKind {
    /// Number of rows of the position table before the first position.
    pub(crate) fn offset(self) -> usize {
        if self == Self::Bart { 2 } else { 0 }
    }

    /// Whether layers normalize their inputs, and the stack its output. Otherwise layers normalize their outputs, and the stack its
    /// embeddings.
    pub(crate) fn normalizes_before(self) -> bool {
        self == Self::Blenderbot
    }
}

/// The trunk of BART and Blenderbot, `model.*`.
#[derive(Module, Debug)]
pub struct BartModel {
    shared: Embedding,
    encoder: Encoder,
    decoder: Decoder,
    #[module(skip)]
    config: BartConfig,
    #[module(skip)]
    activate: FeedForward,
    #[module(skip)]
    kind: BartKind,
    /// Start id of the decoder.
    #[module(skip)]
    start: u32,
    /// Runtime settings.
    #[module(skip)]
    pub(super) running: Running,
}

#[derive(Module, Debug)]
struct Encoder {
    embed_positions: Embedding,
    layers: Vec<EncoderLayer>,
    layernorm_embedding: Option<LayerNorm>,
    layer_norm: Option<LayerNorm>,
}

#[derive(Module, Debug)]
struct Decoder {
    embed_positions: Embedding,
    layers: Vec<DecoderLayer>,
    layernorm_embedding: Option<LayerNorm>,
    layer_norm: Option<LayerNorm>,
}

/// A block without attention to sources: of an encoder, and of OPT.
#[derive(Module, Debug)]
pub(super) struct EncoderLayer {
    self_attn: Attention,
    self_attn_layer_norm: LayerNorm,
    fc1: Linear,
    fc2: Linear,
    final_layer_norm: LayerNorm,
}

#[derive(Module, Debug)]
struct DecoderLayer {
    self_attn: Attention,
    self_attn_layer_norm: LayerNorm,
    encoder_attn: Attention,
    encoder_attn_layer_norm: LayerNorm,
    fc1: Linear,
    fc2: Linear,
    final_layer_norm: LayerNorm,
}

#[derive(Module, Debug)]
struct Attention {
    k_proj: Linear,
    v_proj: Linear,
    q_proj: Linear,
    out_proj: Linear,
}

impl BartModel {
    /// # Errors
    /// When the configuration requests something unsupported.
    pub(crate) fn build(mut b: Builder<'_>, config: BartConfig, kind: BartKind, start: u32) -> Result<Self, String> {
        config.check()?;
        let activate = Activation::feed_forward("activation_function", &config.activation_function)?;
        let (d, std) = (config.d_model, config.init_std);
        let encoder = {
            let mut b = b.enter("encoder");
            let layer = |i| EncoderLayer::build(b.enter("layers").enter(i), [d, config.encoder_ffn_dim], true, std);
            let layers = (0..config.encoder_layers).map(layer).collect();
            let (embed_positions, layernorm_embedding, layer_norm) = ends(&mut b, &config, kind);
            Encoder { embed_positions, layers, layernorm_embedding, layer_norm }
        };
        let decoder = {
            let mut b = b.enter("decoder");
            let layer = |i| {
                let mut b = b.enter("layers");
                let mut b = b.enter(i);
                DecoderLayer {
                    self_attn: Attention::build(b.enter("self_attn"), d, true, std),
                    self_attn_layer_norm: norm(&mut b, d, "self_attn_layer_norm"),
                    encoder_attn: Attention::build(b.enter("encoder_attn"), d, true, std),
                    encoder_attn_layer_norm: norm(&mut b, d, "encoder_attn_layer_norm"),
                    fc1: Linear::build(b.enter("fc1"), d, config.decoder_ffn_dim, true, std),
                    fc2: Linear::build(b.enter("fc2"), config.decoder_ffn_dim, d, true, std),
                    final_layer_norm: norm(&mut b, d, "final_layer_norm"),
                }
            };
            let layers = (0..config.decoder_layers).map(layer).collect();
            let (embed_positions, layernorm_embedding, layer_norm) = ends(&mut b, &config, kind);
            Decoder { embed_positions, layers, layernorm_embedding, layer_norm }
        };
        let shared = Embedding::build_shared(&mut b, config.vocab_size, d, std);
        Ok(Self { shared, encoder, decoder, config, activate, kind, start, running: Running::default() })
    }

    /// The configuration.
    pub fn config(&self) -> &BartConfig {
        &self.config
    }

    fn shape(&self, heads: usize, mask: Mask) -> AttentionShape {
        equal_heads(self.config.d_model, heads, mask, self.running.compute)
    }

    /// Shapes of the decoder's self-attention and of its attention to the sources.
    fn layer_shapes(&self) -> [AttentionShape; 2] {
        [Mask::Causal, Mask::Bidirectional].map(|mask| self.shape(self.config.decoder_attention_heads, mask))
    }

    /// Encodes sources, `[M, D]`.
    fn encode(&self, sources: &Sources, dropping: Dropping) -> Tensor<2> {
        let Encoder { embed_positions, layers, layernorm_embedding, layer_norm } = &self.encoder;
        let packed = &sources.packed;
        let shape = self.shape(self.config.encoder_attention_heads, Mask::Bidirectional);
        let segments = Arc::new(packed.segments().clone());
        let placed = self.embed(packed.ids()) + self.positions(embed_positions, &packed.positions());
        let placed = normed(layernorm_embedding.as_ref(), placed);
        let mut x = dropping.apply(placed, self.config.dropout, DropoutSite::Embedding);
        let again = self.running.recompute && x.is_autodiff();
        for (i, layer) in layers.iter().enumerate() {
            let (settings, segments) = (self.block_settings(i, dropping), Arc::clone(&segments));
            let run = move |layer: &EncoderLayer, [x]: [Tensor<2>; 1]| {
                layer.forward(x, settings, |[q, k, v]| {
                    attention_with(q, k, v, settings.extras(DropoutSite::Attention), &segments, shape)
                })
            };
            x = if again { recompute_of(layer, [x], run) } else { run(layer, [x]) };
        }
        normed(layer_norm.as_ref(), x)
    }

    fn decode(&self, context: &mut Context<'_>, encoded: Option<Tensor<2>>, dropping: Dropping) -> Tensor<2> {
        let Decoder { embed_positions, layers, layernorm_embedding, layer_norm } = &self.decoder;
        let [shape, across_shape] = self.layer_shapes();
        let positions = self.positions(embed_positions, &context.positions());
        let embedded = self.embed(context.ids());
        let placed = match self.kind {
            // This family normalizes before it adds the positions.
            BartKind::BlenderbotSmall => normed(layernorm_embedding.as_ref(), embedded) + positions,
            BartKind::Bart | BartKind::Blenderbot => normed(layernorm_embedding.as_ref(), embedded + positions),
        };
        let mut x = dropping.apply(placed, self.config.dropout, DropoutSite::DecoderEmbedding);
        let again = context.trained_across(self.running.recompute, &x);
        for (i, layer) in layers.iter().enumerate() {
            let settings = self.block_settings(self.config.encoder_layers + i, dropping);
            let encoded = encoded.clone().map(branch);
            let DecoderLayer { self_attn, self_attn_layer_norm, encoder_attn, encoder_attn_layer_norm, .. } = layer;
            match again.clone() {
                // Attention and the feed-forward layer are recomputed separately: together they may have more parameters than one operation
                // takes.
                Some((segments, cross)) => {
                    let own = (self_attn.clone(), self_attn_layer_norm.clone());
                    let attention = (own, (encoder_attn.clone(), encoder_attn_layer_norm.clone()));
                    let inputs = [x, encoded.expect("an encoder has sources")];
                    x = recompute_of(&attention, inputs, move |(own, across), [x, encoded]| {
                        let x = settings.attended(&own.0, &own.1, x, |[q, k, v]| {
                            attention_with(q, k, v, settings.extras(DropoutSite::Attention), &segments, shape)
                        });
                        settings.crossed(&across.0, &across.1, x, |q| {
                            let [k, v] = across.0.keys_and_values(encoded, settings);
                            attention_across_with(
                                q,
                                k,
                                v,
                                settings.extras(DropoutSite::CrossAttention),
                                &cross,
                                across_shape,
                            )
                        })
                    });
                    let fed = (layer.fc1.clone(), layer.fc2.clone(), layer.final_layer_norm.clone());
                    x = recompute_of(&fed, [x], move |(fc1, fc2, norm), [x]| settings.fed([fc1, fc2], norm, x));
                }
                None => {
                    x = settings.attended(self_attn, self_attn_layer_norm, x, |qkv| {
                        context.attend(i, shape, settings.extras(DropoutSite::Attention), qkv)
                    });
                    x = settings.crossed(encoder_attn, encoder_attn_layer_norm, x, |q| {
                        let dropout = settings.extras(DropoutSite::CrossAttention).dropout;
                        context.attend_across(i, across_shape, dropout, q, || {
                            encoder_attn.keys_and_values(encoded.expect("an encoder has sources"), settings)
                        })
                    });
                    x = settings.fed([&layer.fc1, &layer.fc2], &layer.final_layer_norm, x);
                }
            }
        }
        normed(layer_norm.as_ref(), x)
    }

    fn embed(&self, ids: &[u32]) -> Tensor<2> {
        let embedded = self.shared.forward(ids);
        if self.config.scale_embedding { embedded * (self.config.d_model as f32).sqrt() } else { embedded }
    }

    fn positions(&self, table: &Embedding, positions: &[u32]) -> Tensor<2> {
        let offset = self.kind.offset() as u32;
        table.forward(&positions.iter().map(|position| position + offset).collect::<Vec<_>>())
    }

    fn block_settings(&self, block: usize, dropping: Dropping) -> BlockSettings {
        let BartConfig { dropout, attention_dropout, activation_dropout, .. } = self.config;
        let probabilities =
            Probabilities { added: dropout, attention: attention_dropout, activation: activation_dropout };
        BlockSettings {
            block,
            activate: self.activate,
            dropping,
            probabilities,
            normalizes_before: self.kind.normalizes_before(),
        }
    }
}

linears! {
    BartModel: encoder, decoder;
    Encoder: layers;
    Decoder: layers;
    EncoderLayer: self_attn, fc1, fc2;
    DecoderLayer: self_attn, encoder_attn, fc1, fc2;
    Attention: k_proj, v_proj, q_proj, out_proj;
}

impl Body for BartModel {
    fn forward(&self, context: &mut Context<'_>) -> Tensor<2> {
        let dropping = Dropping { stream: context.dropout(), own: self.running.dropout };
        let encoded = context.sources().map(|sources| self.encode(sources, dropping));
        self.decode(context, encoded, dropping)
    }

    fn embedding(&self) -> Tensor<2> {
        self.shared.weight.val()
    }

    fn attention(&self) -> [Vec<AttentionShape>; 2] {
        self.layer_shapes().map(|shape| vec![shape; self.config.decoder_layers])
    }

    fn info(&self) -> TrunkInfo {
        let config = &self.config;
        TrunkInfo {
            vocabulary: config.vocab_size,
            width: config.d_model,
            max_positions: Some(config.max_position_embeddings),
            angles_vary: false,
            initializer_range: config.init_std,
            ties_head: config.tie_word_embeddings,
            head_scale: 1.0,
            logit_cap: None,
            decoder_start: Some(self.start),
        }
    }
}

fn norm(b: &mut Builder<'_>, width: usize, name: &str) -> LayerNorm {
    LayerNorm::build(b.enter(name), width, EPSILON)
}

/// Builds the position table of a stack, and the norms at its ends.
fn ends(b: &mut Builder<'_>, config: &BartConfig, kind: BartKind) -> (Embedding, Option<LayerNorm>, Option<LayerNorm>) {
    let (d, rows) = (config.d_model, config.max_position_embeddings + kind.offset());
    let positions = Embedding::build(b.enter("embed_positions"), rows, d, config.init_std);
    let before = kind.normalizes_before();
    let first = (!before).then(|| LayerNorm::build(b.enter("layernorm_embedding"), d, EPSILON));
    let last = before.then(|| LayerNorm::build(b.enter("layer_norm"), d, EPSILON));
    (positions, first, last)
}

fn normed(norm: Option<&LayerNorm>, x_nd: Tensor<2>) -> Tensor<2> {
    match norm {
        Some(norm) => norm.forward(x_nd),
        None => x_nd,
    }
}

/// Settings that a block is computed with, in addition to its weights.
#[derive(Clone, Copy)]
pub(super) struct BlockSettings {
    /// Number of the block; the decoder's follow the encoder's.
    pub block: usize,
    pub activate: FeedForward,
    pub dropping: Dropping,
    pub probabilities: Probabilities,
    pub normalizes_before: bool,
}

/// Dropout probabilities.
#[derive(Clone, Copy)]
pub(super) struct Probabilities {
    /// Dropout of a layer's output.
    pub added: f32,
    pub attention: f32,
    pub activation: f32,
}

impl EncoderLayer {
    /// Builds a block of width `d` with feed-forward layers of width `inner`.
    pub(super) fn build(mut b: Builder<'_>, [d, inner]: [usize; 2], bias: bool, deviation: f32) -> Self {
        Self {
            self_attn: Attention::build(b.enter("self_attn"), d, bias, deviation),
            self_attn_layer_norm: norm(&mut b, d, "self_attn_layer_norm"),
            fc1: Linear::build(b.enter("fc1"), d, inner, bias, deviation),
            fc2: Linear::build(b.enter("fc2"), inner, d, bias, deviation),
            final_layer_norm: norm(&mut b, d, "final_layer_norm"),
        }
    }

    /// Adds attention and the feed-forward layer to `x_nd`; `attend` computes the attention output from queries, keys and values.
    pub(super) fn forward(
        &self,
        x_nd: Tensor<2>,
        settings: BlockSettings,
        attend: impl FnOnce([Tensor<2>; 3]) -> Tensor<2>,
    ) -> Tensor<2> {
        let x = settings.attended(&self.self_attn, &self.self_attn_layer_norm, x_nd, attend);
        settings.fed([&self.fc1, &self.fc2], &self.final_layer_norm, x)
    }
}

impl BlockSettings {
    pub(super) fn extras(self, site: fn(usize) -> DropoutSite) -> AttentionExtras {
        let dropout = self.dropping.probabilities(self.probabilities.attention, site(self.block));
        AttentionExtras { bias: None, dropout }
    }

    /// Residual connection: adds the output of `layer` to `x_nd`, with the norm before or after.
    fn around(
        self,
        norm: &LayerNorm,
        x_nd: Tensor<2>,
        site: fn(usize) -> DropoutSite,
        layer: impl FnOnce(Tensor<2>) -> Tensor<2>,
    ) -> Tensor<2> {
        let read = if self.normalizes_before { norm.forward(x_nd.clone()) } else { x_nd.clone() };
        let x = x_nd + self.dropping.apply(layer(read), self.probabilities.added, site(self.block));
        if self.normalizes_before { x } else { norm.forward(x) }
    }

    /// Self-attention; `attend` computes the attention output from queries, keys and values.
    fn attended(
        self,
        attention: &Attention,
        norm: &LayerNorm,
        x_nd: Tensor<2>,
        attend: impl FnOnce([Tensor<2>; 3]) -> Tensor<2>,
    ) -> Tensor<2> {
        let masks = self.dropping.stream;
        self.around(norm, x_nd, DropoutSite::Attended, |x| {
            let Attention { q_proj, k_proj, v_proj, out_proj } = attention;
            out_proj.forward(attend(Linear::forward_each([q_proj, k_proj, v_proj], x, masks)), masks)
        })
    }

    /// Attention to the sources; `attend` computes the attention output from queries.
    fn crossed(
        self,
        attention: &Attention,
        norm: &LayerNorm,
        x_nd: Tensor<2>,
        attend: impl FnOnce(Tensor<2>) -> Tensor<2>,
    ) -> Tensor<2> {
        let masks = self.dropping.stream;
        self.around(norm, x_nd, DropoutSite::Crossed, |x| {
            attention.out_proj.forward(attend(attention.q_proj.forward(x, masks)), masks)
        })
    }

    /// Feed-forward layer.
    fn fed(self, [fc1, fc2]: [&Linear; 2], norm: &LayerNorm, x_nd: Tensor<2>) -> Tensor<2> {
        let (masks, p) = (self.dropping.stream, self.probabilities.activation);
        self.around(norm, x_nd, DropoutSite::FedForward, |x| {
            let activated = (self.activate)(fc1.forward(x, masks));
            match self.dropping.drops(p) {
                false => fc2.forward_activated(activated, &[fc1], masks),
                true => {
                    let dropped = self.dropping.apply(activated.tensor(), p, DropoutSite::Activation(self.block));
                    fc2.forward(dropped, masks)
                }
            }
        })
    }
}

impl Attention {
    fn build(mut b: Builder<'_>, d: usize, bias: bool, deviation: f32) -> Self {
        let mut linear = |name: &str| Linear::build(b.enter(name), d, d, bias, deviation);
        Self {
            k_proj: linear("k_proj"),
            v_proj: linear("v_proj"),
            q_proj: linear("q_proj"),
            out_proj: linear("out_proj"),
        }
    }

    /// Computes keys and values from the encoder's output.
    fn keys_and_values(&self, encoded_md: Tensor<2>, settings: BlockSettings) -> [Tensor<2>; 2] {
        Linear::forward_each([&self.k_proj, &self.v_proj], encoded_md, settings.dropping.stream)
    }
}
