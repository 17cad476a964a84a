//! T5, T5 v1.1, FLAN-T5 and mT5: an encoder and a decoder with RMS norms before each layer, without biases. Positions enter the scores as a
//! bias by distance, which is trained in the first block of a stack and shared by all its blocks. Raffel et al. 2020,
//! <https://arxiv.org/abs/1910.10683>; gated feed-forward layers: Shazeer 2020, <https://arxiv.org/abs/2002.05202>.
//!
//! Field names are those of `transformers`' `T5ForConditionalGeneration`; config keys are those of its `config.json`. Scores are not
//! divided by √head_dim. Instead, the initial weights of the queries are smaller.

#![expect(non_snake_case, reason = "fields have the names of the tensors on disk")]

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use gradus_kernels::{
    AttentionExtras, AttentionShape, Gelu, Mask, PositionBias, PositionBuckets, Precision, WeightFormat,
    attention_across_with, attention_with, branch, packs_weights, recompute_of,
};
use serde::Deserialize;
use std::sync::Arc;

use super::activation::{Activation, FeedForward as Activate, Gate};
use super::batch::Sources;
use super::body::{Body, Running, TrunkInfo};
use super::build::Builder;
use super::checkpoint::Checkpoint;
use super::context::Context;
use super::defaults::{tenth, yes};
use super::directory::ModelDir;
use super::dropout::{DropoutSite, Dropping};
use super::layers::{Embedding, Linear, Linears, RmsNorm, linears};
use super::packed::Packed;
use crate::error::{Error, Result};

/// The keys of `config.json` that the computation depends on.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct T5Config {
    /// Vocabulary size, V.
    pub vocab_size: usize,
    /// Width of the hidden states, D.
    pub d_model: usize,
    /// Width of one head.
    pub d_kv: usize,
    /// Width of the feed-forward layer.
    pub d_ff: usize,
    /// Number of encoder blocks.
    pub num_layers: usize,
    /// Number of decoder blocks; the number of encoder blocks when absent.
    #[serde(default)]
    pub num_decoder_layers: Option<usize>,
    /// Number of heads, H.
    pub num_heads: usize,
    /// Number of buckets of distances.
    #[serde(default = "buckets")]
    pub relative_attention_num_buckets: usize,
    /// Smallest distance of the last bucket.
    #[serde(default = "max_distance")]
    pub relative_attention_max_distance: usize,
    /// Dropout of embeddings, of attention's probabilities, of activations, and of each layer's output.
    #[serde(default = "tenth")]
    pub dropout_rate: f32,
    /// ε of the norms.
    #[serde(default = "epsilon")]
    pub layer_norm_epsilon: f64,
    /// Factor of the standard deviations of initial weights.
    #[serde(default = "one")]
    pub initializer_factor: f64,
    /// `relu`, `gated-gelu` or another supported activation.
    #[serde(default = "relu")]
    pub feed_forward_proj: String,
    /// Whether the LM head is the embedding table.
    #[serde(default = "yes")]
    pub tie_word_embeddings: bool,
    /// Whether the decoder's states are divided by √D before the head. When absent, they are divided if the head is tied.
    #[serde(default)]
    pub scale_decoder_outputs: Option<bool>,
}

fn buckets() -> usize {
    32
}
fn max_distance() -> usize {
    128
}
fn epsilon() -> f64 {
    1e-6
}
fn one() -> f64 {
    1.0
}
fn relu() -> String {
    "relu".into()
}

/// Activation of a feed-forward network.
#[derive(Debug, Clone, Copy)]
pub(crate) enum FedActivation {
    /// Activation between two linear layers.
    Plain(Activate),
    /// Gate multiplied by a second linear layer.
    Gated(Gate),
}

impl FedActivation {
    /// Whether it has a gate.
    pub(crate) fn is_gated(self) -> bool {
        matches!(self, Self::Gated(_))
    }
}

impl T5Config {
    /// Number of decoder blocks.
    pub fn decoder_layers(&self) -> usize {
        self.num_decoder_layers.unwrap_or(self.num_layers)
    }

    /// Width of all heads together.
    pub fn inner(&self) -> usize {
        self.num_heads * self.d_kv
    }

    /// Rejects invalid sizes.
    ///
    /// # Errors
    /// Describes the problem.
    pub(crate) fn check(&self) -> Result<(), String> {
        let (buckets, distance) = (self.relative_attention_num_buckets, self.relative_attention_max_distance);
        if distance > buckets / 2 {
            return Ok(());
        }
        Err(format!(
            "`relative_attention_num_buckets` is {buckets} and `relative_attention_max_distance` {distance}: there are more \
             distances than half of the buckets"
        ))
    }

    /// Returns the activation.
    ///
    /// # Errors
    /// When it is unknown.
    pub(crate) fn activation(&self) -> Result<FedActivation, String> {
        let (key, name) = ("feed_forward_proj", self.feed_forward_proj.as_str());
        let found = match name.strip_prefix("gated-") {
            None => Activation::feed_forward(key, name).map(FedActivation::Plain),
            // `transformers` uses the tanh approximation for this name.
            Some("gelu") => Ok(FedActivation::Gated(Gate::Gelu(Gelu::Tanh))),
            Some(gate) => Gate::named(key, gate).map(FedActivation::Gated),
        };
        let known = "relu, gelu, gelu_new, gated-gelu, gated-silu";
        found.map_err(|_| format!("`{key}` `{name}` is not supported (known: {known})"))
    }
}

/// Properties of a family in addition to its configuration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct T5Info {
    /// Start id of the decoder.
    pub start: u32,
    /// Factor of the decoder's states before the head.
    pub head_scale: f32,
    /// Activation of the feed-forward layers.
    pub activation: FedActivation,
}

/// The trunk of T5 and mT5.
#[derive(Module, Debug)]
pub struct T5Model {
    shared: Embedding,
    encoder: Encoder,
    decoder: Decoder,
    #[module(skip)]
    config: T5Config,
    #[module(skip)]
    info: T5Info,
    /// Buckets of distances in the encoder and in the decoder.
    #[module(skip)]
    buckets: [PositionBuckets; 2],
    /// Runtime settings.
    #[module(skip)]
    pub(super) running: Running,
}

#[derive(Module, Debug)]
struct Encoder {
    block: Vec<EncoderBlock>,
    final_layer_norm: RmsNorm,
}

#[derive(Module, Debug)]
struct Decoder {
    block: Vec<DecoderBlock>,
    final_layer_norm: RmsNorm,
}

#[derive(Module, Debug)]
struct EncoderBlock {
    layer: (SelfAttention, FeedForward),
}

#[derive(Module, Debug)]
struct DecoderBlock {
    layer: (SelfAttention, CrossAttention, FeedForward),
}

#[derive(Module, Debug)]
struct SelfAttention {
    SelfAttention: Attention,
    layer_norm: RmsNorm,
}

#[derive(Module, Debug)]
struct CrossAttention {
    EncDecAttention: Attention,
    layer_norm: RmsNorm,
}

#[derive(Module, Debug)]
struct FeedForward {
    DenseReluDense: Dense,
    layer_norm: RmsNorm,
}

#[derive(Module, Debug)]
struct Attention {
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    /// `[R, H]`, in the first block of a stack.
    relative_attention_bias: Option<Embedding>,
}

#[derive(Module, Debug)]
#[expect(clippy::large_enum_variant, reason = "handles of tensors; a block has one")]
enum Dense {
    Plain(Plain),
    Gated(Gated),
}

#[derive(Module, Debug)]
struct Plain {
    wi: Linear,
    wo: Linear,
}

#[derive(Module, Debug)]
struct Gated {
    wi_0: Linear,
    wi_1: Linear,
    wo: Linear,
}

impl T5Model {
    pub(crate) fn build(mut b: Builder<'_>, config: T5Config, info: T5Info) -> Self {
        let (buckets, reach) = (config.relative_attention_num_buckets, config.relative_attention_max_distance);
        let encoder = Encoder::build(b.enter("encoder"), &config, info.activation);
        let decoder = (0..config.decoder_layers()).map(|i| {
            let mut b = b.enter("decoder");
            let mut b = b.enter("block");
            let mut b = b.enter(i);
            let mut b = b.enter("layer");
            DecoderBlock {
                layer: (
                    SelfAttention::build(b.enter(0), &config, i == 0),
                    CrossAttention::build(b.enter(1), &config),
                    FeedForward::build(b.enter(2), &config, info.activation.is_gated()),
                ),
            }
        });
        let block = decoder.collect();
        let decoder = Decoder { block, final_layer_norm: final_norm(b.enter("decoder"), &config) };
        Self {
            shared: Embedding::build_shared(
                &mut b,
                config.vocab_size,
                config.d_model,
                config.initializer_factor as f32,
            ),
            encoder,
            decoder,
            buckets: [PositionBuckets::t5_bidirectional(buckets, reach), PositionBuckets::t5_causal(buckets, reach)],
            config,
            info,
            running: Running::default(),
        }
    }

    /// The configuration.
    pub fn config(&self) -> &T5Config {
        &self.config
    }

    /// Shapes of the decoder's self-attention and of its attention to the sources.
    fn layer_shapes(&self) -> [AttentionShape; 2] {
        [Mask::Causal, Mask::Bidirectional].map(|mask| attention_shape(&self.config, mask))
    }

    /// Encodes sources, `[M, D]`.
    fn encode(&self, sources: &Sources, dropping: Dropping) -> Tensor<2> {
        let run = Run {
            config: &self.config,
            activation: self.info.activation,
            buckets: &self.buckets[0],
            dropping,
            recompute: self.running.recompute,
        };
        self.encoder.forward(&self.shared, &sources.packed, run)
    }

    fn decode(&self, context: &mut Context<'_>, encoded: Option<Tensor<2>>, dropping: Dropping) -> Tensor<2> {
        let p = self.config.dropout_rate;
        let [shape, across_shape] = self.layer_shapes();
        let weight_hr = bias(self.decoder.block.iter().map(|block| &block.layer.0));
        let mut x = dropping.apply(self.shared.forward(context.ids()), p, DropoutSite::DecoderEmbedding);
        let again = context.trained_across(self.running.recompute, &x);
        for (i, DecoderBlock { layer: (own, across, fed) }) in self.decoder.block.iter().enumerate() {
            let (settings, buckets) =
                (self.block_settings(self.config.num_layers + i, dropping), self.buckets[1].clone());
            let weight_hr = branch(weight_hr.clone());
            let encoded = encoded.clone().map(branch);
            match again.clone() {
                // Attention and the feed-forward layer are recomputed separately: together they may have more parameters than one operation
                // takes.
                Some((segments, cross)) => {
                    let attention = (own.clone(), across.clone());
                    let inputs = [x, weight_hr, encoded.expect("an encoder has sources")];
                    x = recompute_of(&attention, inputs, move |(own, across), [x, weight_hr, encoded]| {
                        let extras = settings.extras(Some(PositionBias { weight_hr, buckets: buckets.clone() }));
                        let x = own.forward(x, settings, |[q, k, v]| attention_with(q, k, v, extras, &segments, shape));
                        across.forward(x, settings, |q, attention| {
                            let [k, v] = attention.keys_and_values(encoded, settings);
                            attention_across_with(q, k, v, settings.extras_across(), &cross, across_shape)
                        })
                    });
                    x = recompute_of(fed, [x], move |fed, [x]| fed.forward(x, settings));
                }
                None => {
                    let extras = settings.extras(Some(PositionBias { weight_hr, buckets }));
                    x = own.forward(x, settings, |qkv| context.attend(i, shape, extras, qkv));
                    x = across.forward(x, settings, |q, attention| {
                        let dropout = settings.extras_across().dropout;
                        context.attend_across(i, across_shape, dropout, q, || {
                            attention.keys_and_values(encoded.expect("an encoder has sources"), settings)
                        })
                    });
                    x = fed.forward(x, settings);
                }
            }
        }
        dropping.apply(self.decoder.final_layer_norm.forward(x), p, DropoutSite::Decoded)
    }

    fn block_settings(&self, block: usize, dropping: Dropping) -> BlockSettings {
        BlockSettings { block, activation: self.info.activation, dropping, probability: self.config.dropout_rate }
    }
}

linears! {
    T5Model: encoder, decoder;
    Encoder: block;
    Decoder: block;
    EncoderBlock: layer.0, layer.1;
    DecoderBlock: layer.0, layer.1, layer.2;
    SelfAttention: SelfAttention;
    CrossAttention: EncDecAttention;
    FeedForward: DenseReluDense;
    Attention: q, k, v, o;
    enum Dense: Plain, Gated;
    Plain: wi, wo;
    Gated: wi_0, wi_1, wo;
}

impl Body for T5Model {
    fn forward(&self, context: &mut Context<'_>) -> Tensor<2> {
        let dropping = Dropping { stream: context.dropout(), own: self.running.dropout };
        let encoded = context.sources().map(|sources| self.encode(sources, dropping));
        self.decode(context, encoded, dropping)
    }

    fn embedding(&self) -> Tensor<2> {
        self.shared.weight.val()
    }

    fn attention(&self) -> [Vec<AttentionShape>; 2] {
        self.layer_shapes().map(|shape| vec![shape; self.config.decoder_layers()])
    }

    fn info(&self) -> TrunkInfo {
        let config = &self.config;
        TrunkInfo {
            vocabulary: config.vocab_size,
            width: config.d_model,
            max_positions: None,
            angles_vary: false,
            initializer_range: config.initializer_factor as f32,
            ties_head: config.tie_word_embeddings,
            head_scale: self.info.head_scale,
            logit_cap: None,
            decoder_start: Some(self.info.start),
        }
    }
}

/// Settings that an encoder runs with.
#[derive(Clone, Copy)]
struct Run<'a> {
    config: &'a T5Config,
    activation: FedActivation,
    /// Buckets of distances.
    buckets: &'a PositionBuckets,
    dropping: Dropping,
    recompute: bool,
}

impl Encoder {
    fn build(mut b: Builder<'_>, config: &T5Config, activation: FedActivation) -> Self {
        let block = (0..config.num_layers).map(|i| {
            let mut b = b.enter("block");
            let mut b = b.enter(i);
            let mut b = b.enter("layer");
            EncoderBlock {
                layer: (
                    SelfAttention::build(b.enter(0), config, i == 0),
                    FeedForward::build(b.enter(1), config, activation.is_gated()),
                ),
            }
        });
        let block = block.collect();
        Self { block, final_layer_norm: final_norm(b, config) }
    }

    /// Computes final hidden states of `texts`, `[M, D]`.
    fn forward(&self, shared: &Embedding, texts: &Packed, run: Run<'_>) -> Tensor<2> {
        let Run { config, activation, buckets, dropping, recompute } = run;
        let p = config.dropout_rate;
        let (segments, shape) = (Arc::new(texts.segments().clone()), attention_shape(config, Mask::Bidirectional));
        let weight_hr = bias(self.block.iter().map(|block| &block.layer.0));
        let mut x = dropping.apply(shared.forward(texts.ids()), p, DropoutSite::Embedding);
        let again = recompute && x.is_autodiff();
        for (i, block) in self.block.iter().enumerate() {
            let settings = BlockSettings { block: i, activation, dropping, probability: p };
            let (buckets, segments) = (buckets.clone(), Arc::clone(&segments));
            let run = move |block: &EncoderBlock, [x, weight_hr]: [Tensor<2>; 2]| {
                let extras = settings.extras(Some(PositionBias { weight_hr, buckets: buckets.clone() }));
                let (own, fed) = &block.layer;
                let x = own.forward(x, settings, |[q, k, v]| attention_with(q, k, v, extras, &segments, shape));
                fed.forward(x, settings)
            };
            let inputs = [x, branch(weight_hr.clone())];
            x = if again { recompute_of(block, inputs, run) } else { run(block, inputs) };
        }
        dropping.apply(self.final_layer_norm.forward(x), p, DropoutSite::Encoded)
    }
}

fn final_norm(mut b: Builder<'_>, config: &T5Config) -> RmsNorm {
    RmsNorm::build(b.enter("final_layer_norm"), config.d_model, config.layer_norm_epsilon, 0.0)
}

fn attention_shape(config: &T5Config, mask: Mask) -> AttentionShape {
    let (heads, head_dim) = (config.num_heads, config.d_kv);
    AttentionShape { heads, kv_heads: heads, head_dim, scale: 1.0, mask, cap: None, precision: Precision::F32 }
}

/// Encoder of a T5 without the decoder: texts in, one state per token out.
#[derive(Module, Debug)]
pub struct T5Encoder {
    shared: Embedding,
    encoder: Encoder,
    #[module(skip)]
    config: T5Config,
    #[module(skip)]
    activation: FedActivation,
    #[module(skip)]
    buckets: PositionBuckets,
}

impl T5Encoder {
    /// Loads the first `layers` layers of the encoder in `dir`, followed by its last norm, like `T5EncoderModel` of transformers. The model
    /// is not trained: its linear layers are packed in the format `weights`. The decoder is not read.
    ///
    /// # Errors
    /// When the encoder does not have this layer, `dir` is another kind of model, or weights are missing, misshapen or damaged.
    pub fn load_packed(dir: &ModelDir, layers: usize, weights: WeightFormat, device: &Device) -> Result<Self> {
        let refuse = |message: String| Error::model(dir.path.join("config.json"), message);
        dir.check_quantization()?;
        let config: T5Config = dir.read_config()?;
        config.check().map_err(refuse)?;
        let activation = config.activation().map_err(refuse)?;
        let all = config.num_layers;
        if !(1..=all).contains(&layers) {
            let message = format!("layer {layers} is requested, but the encoder has layers 1 to {all}");
            return Err(Error::model(&dir.path, message));
        }
        let config = T5Config { num_layers: layers, ..config };
        let mut checkpoint = Checkpoint::open(&dir.path, "")?;
        let left_out: Vec<String> = (layers..all).map(|layer| format!("encoder.block.{layer}.")).collect();
        checkpoint.forget_where(|name| {
            let of_encoder = name.starts_with("encoder.") || name == "shared.weight";
            !of_encoder || left_out.iter().any(|layer| name.starts_with(layer))
        });
        let mut b = Builder::new(&mut checkpoint, device).packing(Some(weights));
        let (vocabulary, width, factor) = (config.vocab_size, config.d_model, config.initializer_factor as f32);
        let shared = Embedding::build_shared(&mut b, vocabulary, width, factor);
        let encoder = Encoder::build(b.enter("encoder"), &config, activation);
        let (buckets, reach) = (config.relative_attention_num_buckets, config.relative_attention_max_distance);
        let buckets = PositionBuckets::t5_bidirectional(buckets, reach);
        let mut model = Self { shared, encoder, config, activation, buckets }.valid();
        checkpoint.finish()?;
        if packs_weights(device) || weights != WeightFormat::F32 {
            model.encoder.linears_mut().into_iter().for_each(|(_, linear)| linear.freeze_weight(weights));
        }
        Ok(model)
    }

    /// Computes final hidden states of texts, `[N, D]`, one text after the other.
    ///
    /// # Panics
    /// When there is no text, or one is empty or has an id beyond the vocabulary ([`Self::check`]).
    pub fn forward(&self, texts: &[&[u32]]) -> Tensor<2> {
        let (activation, dropping) = (self.activation, Dropping { stream: None, own: false });
        let run = Run { config: &self.config, activation, buckets: &self.buckets, dropping, recompute: false };
        self.encoder.forward(&self.shared, &Packed::new(texts.iter().copied()), run)
    }

    /// Checks that a text of these ids can be read.
    ///
    /// # Errors
    /// When there are no ids, or one is not in the vocabulary.
    pub fn check(&self, ids: &[u32]) -> Result<(), String> {
        let vocabulary = self.config.vocab_size;
        match ids.iter().find(|&&id| id as usize >= vocabulary) {
            Some(id) => Err(format!("id {id} is not in the vocabulary of {vocabulary} ids")),
            None if ids.is_empty() => Err("the text has no tokens".into()),
            None => Ok(()),
        }
    }
}

/// Returns the bias of a stack's first block, `[H, R]`, which all its blocks share.
fn bias<'a>(layers: impl Iterator<Item = &'a SelfAttention>) -> Tensor<2> {
    let mut found = layers.filter_map(|layer| layer.SelfAttention.relative_attention_bias.as_ref());
    found.next().expect("the first block has the bias").weight.val().transpose()
}

/// Settings that a block is computed with, in addition to its weights.
#[derive(Clone, Copy)]
struct BlockSettings {
    /// Number of the block; the decoder's follow the encoder's.
    block: usize,
    activation: FedActivation,
    dropping: Dropping,
    probability: f32,
}

impl BlockSettings {
    fn drop(self, x_nd: Tensor<2>, site: fn(usize) -> DropoutSite) -> Tensor<2> {
        self.dropping.apply(x_nd, self.probability, site(self.block))
    }

    /// Extras of the block's self-attention.
    fn extras(self, bias: Option<PositionBias>) -> AttentionExtras {
        AttentionExtras { bias, dropout: self.dropping.attention(self.probability, self.block) }
    }

    /// Extras of the block's attention to the sources.
    fn extras_across(self) -> AttentionExtras {
        let site = DropoutSite::CrossAttention(self.block);
        AttentionExtras { bias: None, dropout: self.dropping.probabilities(self.probability, site) }
    }
}

impl SelfAttention {
    fn build(mut b: Builder<'_>, config: &T5Config, has_bias: bool) -> Self {
        Self {
            SelfAttention: Attention::build(b.enter("SelfAttention"), config, has_bias),
            layer_norm: RmsNorm::build(b.enter("layer_norm"), config.d_model, config.layer_norm_epsilon, 0.0),
        }
    }

    /// Adds attention to `x_nd`; `attend` computes the attention output from queries, keys and values.
    fn forward(
        &self,
        x_nd: Tensor<2>,
        settings: BlockSettings,
        attend: impl FnOnce([Tensor<2>; 3]) -> Tensor<2>,
    ) -> Tensor<2> {
        let (a, masks) = (&self.SelfAttention, settings.dropping.stream);
        let normed = self.layer_norm.forward_for(&[&a.q, &a.k, &a.v], x_nd.clone(), masks);
        let attended = a.o.forward(attend(Linear::forward_each([&a.q, &a.k, &a.v], normed, masks)), masks);
        x_nd + settings.drop(attended, DropoutSite::Attended)
    }
}

impl CrossAttention {
    fn build(mut b: Builder<'_>, config: &T5Config) -> Self {
        Self {
            EncDecAttention: Attention::build(b.enter("EncDecAttention"), config, false),
            layer_norm: RmsNorm::build(b.enter("layer_norm"), config.d_model, config.layer_norm_epsilon, 0.0),
        }
    }

    /// Adds attention to the sources to `x_nd`; `attend` computes the attention output from queries.
    fn forward(
        &self,
        x_nd: Tensor<2>,
        settings: BlockSettings,
        attend: impl FnOnce(Tensor<2>, &Attention) -> Tensor<2>,
    ) -> Tensor<2> {
        let (a, masks) = (&self.EncDecAttention, settings.dropping.stream);
        let q = a.q.forward(self.layer_norm.forward_for(&[&a.q], x_nd.clone(), masks), masks);
        x_nd + settings.drop(a.o.forward(attend(q, a), masks), DropoutSite::Crossed)
    }
}

impl Attention {
    fn build(mut b: Builder<'_>, config: &T5Config, has_bias: bool) -> Self {
        let (d, inner, factor) = (config.d_model, config.inner(), config.initializer_factor as f32);
        let deviation = |inputs: usize| factor * (inputs as f32).powf(-0.5);
        let bias = |mut b: Builder<'_>| {
            let rows = config.relative_attention_num_buckets;
            Embedding::build(b.enter("relative_attention_bias"), rows, config.num_heads, deviation(d))
        };
        Self {
            q: Linear::build(b.enter("q"), d, inner, false, deviation(d * config.d_kv)),
            k: Linear::build(b.enter("k"), d, inner, false, deviation(d)),
            v: Linear::build(b.enter("v"), d, inner, false, deviation(d)),
            o: Linear::build(b.enter("o"), inner, d, false, deviation(inner)),
            relative_attention_bias: has_bias.then(|| bias(b)),
        }
    }

    /// Computes keys and values from the encoder's output.
    fn keys_and_values(&self, encoded_md: Tensor<2>, settings: BlockSettings) -> [Tensor<2>; 2] {
        Linear::forward_each([&self.k, &self.v], encoded_md, settings.dropping.stream)
    }
}

impl FeedForward {
    fn build(mut b: Builder<'_>, config: &T5Config, is_gated: bool) -> Self {
        let (d, inner, factor) = (config.d_model, config.d_ff, config.initializer_factor as f32);
        let mut linear = |name: &str, inputs: usize, outputs: usize| {
            let mut b = b.enter("DenseReluDense");
            Linear::build(b.enter(name), inputs, outputs, false, factor * (inputs as f32).powf(-0.5))
        };
        let dense = match is_gated {
            false => Dense::Plain(Plain { wi: linear("wi", d, inner), wo: linear("wo", inner, d) }),
            true => Dense::Gated(Gated {
                wi_0: linear("wi_0", d, inner),
                wi_1: linear("wi_1", d, inner),
                wo: linear("wo", inner, d),
            }),
        };
        Self {
            DenseReluDense: dense,
            layer_norm: RmsNorm::build(b.enter("layer_norm"), d, config.layer_norm_epsilon, 0.0),
        }
    }

    /// Adds the output of the feed-forward layer to `x_nd`.
    fn forward(&self, x_nd: Tensor<2>, settings: BlockSettings) -> Tensor<2> {
        let masks = settings.dropping.stream;
        let (dense, norm) = (&self.DenseReluDense, &self.layer_norm);
        let layers = match dense {
            Dense::Plain(Plain { wi, .. }) => vec![wi],
            Dense::Gated(Gated { wi_0, wi_1, .. }) => vec![wi_0, wi_1],
        };
        let normed = norm.forward_for(&layers, x_nd.clone(), masks);
        let (activated, wo) = match (dense, settings.activation) {
            (Dense::Plain(Plain { wi, wo }), FedActivation::Plain(activate)) => {
                (activate(wi.forward(normed, masks)), wo)
            }
            (Dense::Gated(Gated { wi_0, wi_1, wo }), FedActivation::Gated(gate)) => {
                let [read, up] = Linear::forward_each([wi_0, wi_1], normed, masks);
                (gate.of(read, up), wo)
            }
            (Dense::Plain(_), FedActivation::Gated(_)) | (Dense::Gated(_), FedActivation::Plain(_)) => {
                unreachable!("the layers are built by the activation")
            }
        };
        let fed = match settings.dropping.drops(settings.probability) {
            false => wo.forward_activated(activated, &layers, masks),
            true => wo.forward(settings.drop(activated.tensor(), DropoutSite::Activation), masks),
        };
        x_nd + settings.drop(fed, DropoutSite::FedForward)
    }
}
