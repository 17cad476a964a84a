//! Decoders: Llama and similar models, with RMS norms, rotary positions, grouped queries and a gated feed-forward layer. [`DecoderStructure`]
//! describes the differences between families.
//!
//! Field names are those of `transformers`' `LlamaModel`, `MistralModel`, `Qwen2Model`, `Qwen3Model`, `Gemma2Model`, `Gemma3TextModel`,
//! `SmolLM3Model`, `Phi3Model`, `Olmo2Model`, `Olmo3Model`, `GemmaModel`, `GraniteModel` and `SeedOssModel`; config keys are those of their `config.json`.

mod config;
pub(super) mod family;
mod structure;
mod windows;

use burn::module::Module;
use burn::tensor::Tensor;
use gradus_kernels::{Activated, AttentionExtras, AttentionShape, Operands, Precision, attention_operands};

pub use config::DecoderConfig;
pub use family::{DecoderFamily, StructureOf};
pub use structure::{DecoderStructure, LayerStructure, Norms, QkNorm};
pub use windows::{Rotation, Rule, Windows};

pub use super::activation::Gate;
pub use super::rope::Rope;
pub use gradus_kernels::{Gelu, Mask};

use super::body::{Body, Running, TrunkInfo};
use super::build::Builder;
use super::context::Context;
use super::dropout::{DropoutSite, Dropping};
use super::layers::{Embedding, Linear, Linears, RmsNorm, linears};
use super::rope::Angles;

/// The trunk of Llama and similar models, `model.*`.
#[derive(Module, Debug)]
pub struct Decoder {
    embed_tokens: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    #[module(skip)]
    config: DecoderConfig,
    #[module(skip)]
    structure: DecoderStructure,
    /// Runtime settings.
    #[module(skip)]
    pub(in crate::model) running: Running,
}

#[derive(Module, Debug)]
struct Layer {
    input_layernorm: Option<RmsNorm>,
    self_attn: Attention,
    /// Norm of attention's output if there is a norm after the feed-forward layer, too. Otherwise norm of the feed-forward layer's input.
    post_attention_layernorm: RmsNorm,
    pre_feedforward_layernorm: Option<RmsNorm>,
    mlp: Mlp,
    post_feedforward_layernorm: Option<RmsNorm>,
}

#[derive(Module, Debug)]
#[expect(clippy::large_enum_variant, reason = "handles of tensors; a layer has one")]
enum Attention {
    Separate(Separate),
    Fused(Fused),
}

/// Attention with separate linear layers for queries, keys and values.
#[derive(Module, Debug)]
struct Separate {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    q_norm: Option<RmsNorm>,
    k_norm: Option<RmsNorm>,
}

/// Attention with one linear layer for queries, keys and values (Phi-3).
#[derive(Module, Debug)]
struct Fused {
    qkv_proj: Linear,
    o_proj: Linear,
}

#[derive(Module, Debug)]
#[expect(clippy::large_enum_variant, reason = "handles of tensors; a layer has one")]
enum Mlp {
    Separate(SeparateMlp),
    Fused(FusedMlp),
}

#[derive(Module, Debug)]
struct SeparateMlp {
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
}

/// Feed-forward layer with one linear layer for gate and up (Phi-3).
#[derive(Module, Debug)]
struct FusedMlp {
    gate_up_proj: Linear,
    down_proj: Linear,
}

impl Decoder {
    pub(crate) fn build(mut b: Builder<'_>, config: DecoderConfig, structure: DecoderStructure) -> Self {
        let (d, std) = (config.hidden_size, config.initializer_range);
        let (head_dim, [width, kv_width]) = (config.head_dim(), config.widths());
        let norm = |b: Builder<'_>, width| RmsNorm::build(b, width, config.rms_norm_eps, structure.norm_offset);
        let layers = (0..config.num_hidden_layers).map(|i| {
            let mut b = b.enter("layers");
            let mut b = b.enter(i);
            let mut stream_norm = |name: &str, is_there: bool| is_there.then(|| norm(b.enter(name), d));
            let input_layernorm = stream_norm("input_layernorm", structure.norms != Norms::After);
            let post_attention_layernorm = stream_norm("post_attention_layernorm", true).expect("every block has one");
            let pre_feedforward_layernorm = stream_norm("pre_feedforward_layernorm", structure.norms == Norms::Around);
            let post_feedforward_layernorm =
                stream_norm("post_feedforward_layernorm", structure.norms != Norms::Before);
            let mut a = b.enter("self_attn");
            let [bias, output_bias] = structure.attention_biases;
            let self_attn = match structure.fused {
                true => Attention::Fused(Fused {
                    qkv_proj: Linear::build(a.enter("qkv_proj"), d, width + 2 * kv_width, bias, std),
                    o_proj: Linear::build(a.enter("o_proj"), width, d, output_bias, std),
                }),
                false => {
                    let mut qk_norm = |name: &str, width| match structure.qk_norm {
                        None => None,
                        Some(QkNorm::Heads) => Some(norm(a.enter(name), head_dim)),
                        Some(QkNorm::Whole) => Some(norm(a.enter(name), width)),
                    };
                    let (q_norm, k_norm) = (qk_norm("q_norm", width), qk_norm("k_norm", kv_width));
                    Attention::Separate(Separate {
                        q_proj: Linear::build(a.enter("q_proj"), d, width, bias, std),
                        k_proj: Linear::build(a.enter("k_proj"), d, kv_width, bias, std),
                        v_proj: Linear::build(a.enter("v_proj"), d, kv_width, bias, std),
                        o_proj: Linear::build(a.enter("o_proj"), width, d, output_bias, std),
                        q_norm,
                        k_norm,
                    })
                }
            };
            let mut m = b.enter("mlp");
            let (inner, bias) = (config.intermediate_size, config.mlp_bias);
            let mlp = match structure.fused {
                true => Mlp::Fused(FusedMlp {
                    gate_up_proj: Linear::build(m.enter("gate_up_proj"), d, 2 * inner, bias, std),
                    down_proj: Linear::build(m.enter("down_proj"), inner, d, bias, std),
                }),
                false => Mlp::Separate(SeparateMlp {
                    gate_proj: Linear::build(m.enter("gate_proj"), d, inner, bias, std),
                    up_proj: Linear::build(m.enter("up_proj"), d, inner, bias, std),
                    down_proj: Linear::build(m.enter("down_proj"), inner, d, bias, std),
                }),
            };
            Layer {
                input_layernorm,
                self_attn,
                post_attention_layernorm,
                pre_feedforward_layernorm,
                mlp,
                post_feedforward_layernorm,
            }
        });
        let layers = layers.collect();
        let embed_tokens = Embedding::build(b.enter("embed_tokens"), config.vocab_size, d, std);
        let norm = norm(b.enter("norm"), d);
        Self { embed_tokens, layers, norm, config, structure, running: Running::default() }
    }

    /// The configuration.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// Shape of every layer's attention.
    fn layer_shapes(&self) -> Vec<AttentionShape> {
        let (config, structure) = (&self.config, &self.structure);
        let shape = |layer: &LayerStructure| AttentionShape {
            heads: config.num_attention_heads,
            kv_heads: config.kv_heads(),
            head_dim: config.head_dim(),
            scale: structure.score_scale,
            cap: structure.score_cap,
            mask: layer.mask,
            precision: self.running.compute,
        };
        structure.layers.iter().map(shape).collect()
    }
}

linears! {
    Decoder: layers;
    Layer: self_attn, mlp;
    enum Attention: Separate, Fused;
    Separate: q_proj, k_proj, v_proj, o_proj;
    Fused: qkv_proj, o_proj;
    enum Mlp: Separate, Fused;
    SeparateMlp: gate_proj, up_proj, down_proj;
    FusedMlp: gate_up_proj, down_proj;
}

impl Body for Decoder {
    fn forward(&self, context: &mut Context<'_>) -> Tensor<2> {
        let (positions, lengths) = (context.positions(), context.lengths());
        let tables: Vec<Angles> = self.structure.ropes.iter().map(|rope| rope.angles(&positions, &lengths)).collect();
        let dropping = Dropping { stream: context.dropout(), own: self.running.dropout };
        let scaled = |x: Tensor<2>| match self.structure.embedding_scale {
            1.0 => x,
            scale => x * scale,
        };
        let embedded = self.embed_tokens.forward(context.ids());
        let mut x = match self.structure.noise_before_scale {
            true => scaled(context.add_noise(embedded)),
            false => context.add_noise(scaled(embedded)),
        };
        let again = context.trained_segments(self.running.recompute, &x);
        let layers = self.layers.iter().zip(&self.structure.layers).zip(self.layer_shapes());
        for (i, ((layer, structure), shape)) in layers.enumerate() {
            let dropout = dropping.attention(self.config.attention_dropout, i);
            let extras = AttentionExtras { bias: None, dropout };
            let settings = LayerSettings {
                layer: i,
                dropping,
                probability: self.structure.residual_dropout,
                scale: self.structure.residual_scale,
                gate: self.structure.gate,
                angles: structure.rope.map(|of| tables[of].clone()),
                shape,
                operands: attention_operands(&shape, &x.device()),
                compute: self.running.compute,
            };
            x = context.run_layer(again.clone(), (i, shape, extras), layer, x, move |layer: &Layer, x, attend| {
                layer.forward(x, &settings, attend)
            });
        }
        self.norm.forward(x)
    }

    fn embedding(&self) -> Tensor<2> {
        self.embed_tokens.weight.val()
    }

    fn attention(&self) -> [Vec<AttentionShape>; 2] {
        [self.layer_shapes(), Vec::new()]
    }

    fn info(&self) -> TrunkInfo {
        let config = &self.config;
        TrunkInfo {
            vocabulary: config.vocab_size,
            width: config.hidden_size,
            max_positions: Some(self.structure.max_positions()),
            angles_vary: self.structure.limit().is_some(),
            initializer_range: config.initializer_range,
            ties_head: config.tie_word_embeddings,
            head_scale: self.structure.head_scale,
            logit_cap: self.structure.logit_cap,
            decoder_start: None,
        }
    }
}

/// Settings that a layer is computed with, in addition to its weights.
struct LayerSettings {
    layer: usize,
    dropping: Dropping,
    /// Dropout of the outputs of attention and the feed-forward layer.
    probability: f32,
    /// Factor of these outputs.
    scale: f32,
    gate: Gate,
    angles: Option<Angles>,
    shape: AttentionShape,
    /// Precision in which attention takes queries, keys and values.
    operands: Precision,
    /// Precision of products.
    compute: Precision,
}

impl Layer {
    /// Adds attention and the feed-forward layer to `x_nd`; `attend` computes the attention output from queries, keys and values.
    fn forward(
        &self,
        x_nd: Tensor<2>,
        settings: &LayerSettings,
        attend: impl FnOnce([Tensor<2>; 3]) -> Tensor<2>,
    ) -> Tensor<2> {
        let [before_attention, after_attention, before_fed, after_fed] = self.norms();
        let LayerSettings { layer, dropping, probability, scale, .. } = *settings;
        let normed = |norm: Option<&RmsNorm>, x: Tensor<2>| norm.map_or(x.clone(), |norm| norm.forward(x));
        let normed_for = |norm: Option<&RmsNorm>, x: Tensor<2>, readers: &[&Linear]| match norm {
            Some(norm) => norm.forward_for(readers, x, dropping.stream),
            None => x,
        };
        let scaled = |x: Tensor<2>| if scale == 1.0 { x } else { x * scale };
        let read = normed_for(before_attention, x_nd.clone(), &self.self_attn.readers());
        let qkv = self.self_attn.read(read, settings);
        let output = match &self.self_attn {
            Attention::Separate(a) => &a.o_proj,
            Attention::Fused(a) => &a.o_proj,
        };
        // Without anything in between, the product is added to the stream while it is written.
        let is_added = |after: Option<&RmsNorm>| after.is_none() && scale == 1.0 && !dropping.drops(probability);
        let x = match is_added(after_attention) {
            true => output.forward_onto(x_nd, attend(qkv), dropping.stream),
            false => {
                let attended = normed(after_attention, output.forward(attend(qkv), dropping.stream));
                x_nd + scaled(dropping.apply(attended, probability, DropoutSite::Attended(layer)))
            }
        };
        let read = normed_for(before_fed, x.clone(), &self.mlp.readers());
        let (activated, down, makers) = self.mlp.activated(read, settings);
        match is_added(after_fed) {
            true => down.forward_activated_onto(x, activated, &makers, dropping.stream),
            false => {
                let fed = normed(after_fed, down.forward_activated(activated, &makers, dropping.stream));
                x + scaled(dropping.apply(fed, probability, DropoutSite::FedForward(layer)))
            }
        }
    }

    /// Norms before and after attention, and before and after the feed-forward layer.
    fn norms(&self) -> [Option<&RmsNorm>; 4] {
        let middle = Some(&self.post_attention_layernorm);
        let [before, after] = match self.post_feedforward_layernorm {
            None => [None, middle],
            Some(_) => [middle, self.pre_feedforward_layernorm.as_ref()],
        };
        [self.input_layernorm.as_ref(), before, after, self.post_feedforward_layernorm.as_ref()]
    }
}

impl Attention {
    /// Layers that read the input.
    fn readers(&self) -> Vec<&Linear> {
        match self {
            Self::Separate(a) => vec![&a.q_proj, &a.k_proj, &a.v_proj],
            Self::Fused(a) => vec![&a.qkv_proj],
        }
    }

    /// Computes queries, keys and values of `x_nd`, normalized and rotated.
    fn read(&self, x_nd: Tensor<2>, settings: &LayerSettings) -> [Tensor<2>; 3] {
        let (head_dim, masks) = (settings.shape.head_dim, settings.dropping.stream);
        let turn = |x: Tensor<2>, input: Precision| match &settings.angles {
            Some(angles) => angles.turn(x, head_dim, Operands { result: settings.operands, input }),
            None => x,
        };
        match self {
            Self::Separate(a) => {
                let turned = |x: Tensor<2>, norm: &Option<RmsNorm>, maker: &Linear| match (norm, &settings.angles) {
                    (Some(norm), Some(Angles { cos, sin })) if norm.weight.dims() == [head_dim] => {
                        norm.forward_heads(x, maker, [cos, sin], settings.operands)
                    }
                    (Some(norm), _) => turn(norm.forward_parts(x, maker), Precision::F32),
                    (None, _) => turn(x, Linear::made_by(&[maker])),
                };
                let layers = [&a.q_proj, &a.k_proj, &a.v_proj];
                let [q, k, v] = Linear::forward_each_for(settings.operands, layers, x_nd, masks);
                [turned(q, &a.q_norm, &a.q_proj), turned(k, &a.k_norm, &a.k_proj), v]
            }
            Self::Fused(a) => {
                let (q, kv) = (settings.shape.heads * head_dim, settings.shape.kv_heads * head_dim);
                let qkv = a.qkv_proj.forward(x_nd, masks);
                let part = |from, width| qkv.clone().narrow(1, from, width);
                [turn(part(0, q), Precision::F32), turn(part(q, kv), Precision::F32), part(q + kv, kv)]
            }
        }
    }
}

impl Mlp {
    /// Layers that read the input.
    fn readers(&self) -> Vec<&Linear> {
        match self {
            Self::Separate(m) => vec![&m.gate_proj, &m.up_proj],
            Self::Fused(m) => vec![&m.gate_up_proj],
        }
    }

    /// Returns the activation of `x_nd`, the layer that reads it, and the layers that made its inputs if nothing is in between.
    fn activated(&self, x_nd: Tensor<2>, settings: &LayerSettings) -> (Activated, &Linear, Vec<&Linear>) {
        let masks = settings.dropping.stream;
        let (gate, up, down, makers) = match self {
            Self::Separate(m) => {
                let [gate, up] = Linear::forward_each_for(settings.compute, [&m.gate_proj, &m.up_proj], x_nd, masks);
                (gate, up, &m.down_proj, vec![&m.gate_proj, &m.up_proj])
            }
            Self::Fused(m) => {
                let both = m.gate_up_proj.forward(x_nd, masks);
                let inner = both.dims()[1] / 2;
                (both.clone().narrow(1, 0, inner), both.narrow(1, inner, inner), &m.down_proj, Vec::new())
            }
        };
        (settings.gate.of(gate, up), down, makers)
    }
}
