//! DeBERTa (He et al. 2020, <https://arxiv.org/abs/2006.03654>; v3: 2021, <https://arxiv.org/abs/2111.09543>): attention scores also depend
//! on pairs of content and distance.
//!
//! v1 projects to queries, keys and values by one layer without bias, and to distances by separate layers. v2 and v3 have one layer for
//! each, buckets of distances, and a convolution.
//!
//! Field names are those of `transformers`' `DebertaModel` and `DebertaV2Model`; config keys are those of their `config.json`.

#![expect(non_snake_case, reason = "fields have the names of the tensors on disk")]

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use gradus_kernels::{
    AttentionShape, Layout, Mask, PositionBuckets, Precision, Relative, attention_disentangled, branch, embedding,
    recompute_of,
};
use serde::Deserialize;
use serde_json::Value;

use super::bert::{BertConfig, Inner, Output};
use super::block::{BlockSettings, EmbeddingSizes, Embeddings, Problem, Sizes};
use super::{Body, EncoderInfo, Running, TextBatch};
use crate::model::activation::Activation;
use crate::model::build::{Builder, Init};
use crate::model::defaults::{one, yes};
use crate::model::directory::ModelDir;
use crate::model::dropout::{DropoutSite, Dropping};
use crate::model::family::EncoderFamily;
use crate::model::layers::{Embedding, LayerNorm, Linear, Linears, linears};

/// Keys of `config.json` that BERT does not have.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct DebertaConfig {
    #[serde(default)]
    embedding_size: Option<usize>,
    #[serde(default)]
    attention_head_size: Option<usize>,
    #[serde(default)]
    relative_attention: bool,
    #[serde(default = "minus_one")]
    max_relative_positions: i64,
    #[serde(default = "minus_one")]
    position_buckets: i64,
    #[serde(default)]
    norm_rel_ebd: Option<String>,
    #[serde(default)]
    share_att_key: bool,
    /// A list, or names joined by `|`.
    #[serde(default)]
    pos_att_type: Value,
    #[serde(default = "yes")]
    position_biased_input: bool,
    /// Default 0, unlike in BERT.
    #[serde(default)]
    type_vocab_size: usize,
    #[serde(default)]
    conv_kernel_size: usize,
    #[serde(default = "one")]
    conv_groups: usize,
    #[serde(default = "tanh")]
    conv_act: String,
    /// Only v1: whether the scores of heads are mixed; not supported.
    #[serde(default)]
    talking_head: bool,
}

fn minus_one() -> i64 {
    -1
}
fn tanh() -> String {
    "tanh".into()
}

impl DebertaConfig {
    /// Reads the configuration of the model in `dir`. Keys that v1 does not have are reset, even if its file sets them.
    fn read(dir: &ModelDir, family: EncoderFamily) -> Result<Self, Problem> {
        let config: Self = dir.read_config()?;
        if family != EncoderFamily::DebertaV1 {
            return Ok(config);
        }
        if config.talking_head {
            return Err(Problem::Config(
                "`talking_head` is true: heads whose scores are mixed are not supported".into(),
            ));
        }
        Ok(Self {
            attention_head_size: None,
            position_buckets: -1,
            norm_rel_ebd: None,
            share_att_key: false,
            conv_kernel_size: 0,
            ..config
        })
    }

    /// Returns whether content-to-position and position-to-content scores are used.
    fn scored(&self) -> Result<[bool; 2], String> {
        let names: Vec<String> = match &self.pos_att_type {
            Value::Null => Vec::new(),
            Value::String(text) => text.to_lowercase().split('|').map(|name| name.trim().to_owned()).collect(),
            Value::Array(names) => names.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect(),
            other => return Err(format!("`pos_att_type` is {other}, but a list of `c2p` and `p2c` is needed")),
        };
        match names.iter().find(|name| !["c2p", "p2c"].contains(&name.as_str())) {
            Some(name) => Err(format!("`pos_att_type` `{name}` is not supported (known: c2p, p2c)")),
            None => Ok(["c2p", "p2c"].map(|name| names.iter().any(|found| found == name))),
        }
    }

    /// Returns the buckets of distances; `None` if attention is not relative.
    fn buckets(&self, positions: usize) -> Result<Option<PositionBuckets>, String> {
        if !self.relative_attention {
            return Ok(None);
        }
        let reach = if self.max_relative_positions < 1 { positions } else { self.max_relative_positions as usize };
        match self.position_buckets {
            ..=0 => Ok(Some(PositionBuckets::deberta(None, reach))),
            buckets @ (1..4) => Err(format!("`position_buckets` is {buckets}, but at least 4 are needed")),
            buckets if reach <= buckets as usize / 2 + 1 => {
                Err(format!("`position_buckets` {buckets} are too many for {reach} relative positions"))
            }
            buckets if farthest(buckets as usize, reach) > FARTHEST => {
                Err(format!("`position_buckets` {buckets} are too few for {reach} relative positions"))
            }
            buckets => Ok(Some(PositionBuckets::deberta(Some(buckets as usize), reach))),
        }
    }
}

/// Upper bound of distances, so that the table of distances is finite. No text has as many tokens.
const FARTHEST: f64 = 16_777_216.0;

/// Returns the approximate distance of tokens in the last of `buckets`. For an odd number of buckets, it exceeds `reach`.
fn farthest(buckets: usize, reach: usize) -> f64 {
    let half = (buckets / 2) as f64;
    half * ((reach - 1) as f64 / half).powf((buckets as f64 - half) / (half - 1.0))
}

/// Reads the sizes of the model in `dir`.
pub(super) fn sizes(dir: &ModelDir, family: EncoderFamily) -> Result<Sizes, Problem> {
    let (config, own): (BertConfig, _) = (dir.read_config()?, DebertaConfig::read(dir, family)?);
    config.check()?;
    let (d, heads, inner) = (config.hidden_size, config.num_attention_heads, config.intermediate_size);
    let head_dim = own.attention_head_size.unwrap_or(d / heads);
    Ok(Sizes {
        vocabulary: config.vocab_size,
        width: d,
        layers: config.num_hidden_layers,
        heads,
        head_dim,
        inner,
        max_positions: own.position_biased_input.then_some(config.max_position_embeddings),
        gated: false,
    })
}

/// The encoder of DeBERTa.
#[derive(Module, Debug)]
pub struct DebertaModel {
    pub(super) embeddings: Embeddings,
    encoder: Blocks,
    #[module(skip)]
    config: BertConfig,
    /// Whether content-to-position and position-to-content scores are used.
    #[module(skip)]
    scored: [bool; 2],
    #[module(skip)]
    activation: Activation,
    /// Activation of the convolution.
    #[module(skip)]
    after: Activation,
    #[module(skip)]
    shape: AttentionShape,
    #[module(skip)]
    buckets: Option<PositionBuckets>,
    #[module(skip)]
    pub(super) info: EncoderInfo,
    #[module(skip)]
    pub(super) running: Running,
}

#[derive(Module, Debug)]
struct Blocks {
    layer: Vec<Block>,
    rel_embeddings: Option<Embedding>,
    /// Norm of the table of distances.
    LayerNorm: Option<LayerNorm>,
    conv: Option<Convolution>,
}

#[derive(Module, Debug)]
struct Block {
    attention: Attention,
    intermediate: Inner,
    output: Output,
}

#[derive(Module, Debug)]
struct Attention {
    self_: SelfAttention,
    output: Output,
}

#[derive(Module, Debug)]
#[expect(clippy::large_enum_variant, reason = "handles of tensors; a block has one")]
enum SelfAttention {
    Fused(Fused),
    Separate(Separate),
}

/// Attention of v1.
#[derive(Module, Debug)]
struct Fused {
    /// Queries, keys and values of the first head, then those of the next, and so on.
    in_proj: Linear,
    q_bias: Param<Tensor<1>>,
    v_bias: Param<Tensor<1>>,
    pos_proj: Option<Linear>,
    pos_q_proj: Option<Linear>,
}

/// Attention of v2 and v3.
#[derive(Module, Debug)]
struct Separate {
    query_proj: Linear,
    key_proj: Linear,
    value_proj: Linear,
    /// Projections of the distances; `None` if they share those of the contents.
    pos_key_proj: Option<Linear>,
    pos_query_proj: Option<Linear>,
}

/// Convolution over the embeddings, whose output is added to that of the first block.
#[derive(Module, Debug)]
struct Convolution {
    conv: Kernel,
    LayerNorm: LayerNorm,
}

#[derive(Module, Debug)]
struct Kernel {
    /// `[out, in, size]`.
    weight: Param<Tensor<3>>,
    bias: Param<Tensor<1>>,
}

impl DebertaModel {
    pub(super) fn build(mut b: Builder<'_>, dir: &ModelDir, family: EncoderFamily) -> Result<Self, Problem> {
        let (config, own): (BertConfig, _) = (dir.read_config()?, DebertaConfig::read(dir, family)?);
        config.check()?;
        let activation = Activation::named("hidden_act", &config.hidden_act)?;
        let after = Activation::named("conv_act", &own.conv_act)?;
        if own.conv_kernel_size > 0 && (own.conv_groups != 1 || own.conv_kernel_size % 2 == 0) {
            return Err(Problem::Config(format!(
                "`conv_groups` {} with `conv_kernel_size` {}: only 1 group and odd sizes are supported",
                own.conv_groups, own.conv_kernel_size
            )));
        }
        let scored = own.scored()?;
        let buckets = own.buckets(config.max_position_embeddings)?;
        let (d, inner, heads, std) =
            (config.hidden_size, config.intermediate_size, config.num_attention_heads, config.initializer_range);
        let head_dim = own.attention_head_size.unwrap_or(d / heads);
        let all = heads * head_dim;
        // Number of kinds of scores.
        let kinds = 1 + scored.map(usize::from).iter().sum::<usize>();
        let scale = ((head_dim * kinds) as f32).sqrt().recip();
        let shape = AttentionShape {
            heads,
            kv_heads: heads,
            head_dim,
            scale,
            mask: Mask::Bidirectional,
            cap: None,
            precision: Precision::F32,
        };
        let sizes = EmbeddingSizes {
            vocabulary: config.vocab_size,
            positions: if own.position_biased_input { config.max_position_embeddings } else { 0 },
            types: own.type_vocab_size,
            width: own.embedding_size.unwrap_or(d),
            output: d,
            epsilon: config.layer_norm_eps,
            deviation: std,
        };
        let embeddings = Embeddings::build(b.enter("embeddings"), sizes);
        // Scores with their own projections of the distances.
        let separate = scored.map(|scored| scored && buckets.is_some() && !own.share_att_key);
        let layer = (0..config.num_hidden_layers).map(|i| {
            let mut b = b.enter(format_args!("encoder.layer.{i}"));
            let norms = config.layer_norm_eps;
            let self_ = SelfAttention::build(b.enter("attention.self"), family, [d, all], separate, std);
            Block {
                attention: Attention {
                    self_,
                    output: Output::build(b.enter("attention.output"), [all, d], norms, std),
                },
                intermediate: Inner { dense: Linear::build(b.enter("intermediate.dense"), d, inner, true, std) },
                output: Output::build(b.enter("output"), [inner, d], norms, std),
            }
        });
        let layer = layer.collect();
        let mut b_encoder = b.enter("encoder");
        let rows = buckets.as_ref().map(PositionBuckets::buckets);
        let is_normed = own.norm_rel_ebd.as_deref().is_some_and(|names| names.to_lowercase().contains("layer_norm"));
        let encoder = Blocks {
            layer,
            rel_embeddings: rows.map(|rows| Embedding::build(b_encoder.enter("rel_embeddings"), rows, d, std)),
            LayerNorm: is_normed.then(|| LayerNorm::build(b_encoder.enter("LayerNorm"), d, config.layer_norm_eps)),
            conv: (own.conv_kernel_size > 0)
                .then(|| Convolution::build(b_encoder.enter("conv"), d, own.conv_kernel_size, &config)),
        };
        let info = EncoderInfo {
            has_global: false,
            vocabulary: config.vocab_size,
            width: d,
            // Larger distances use the last bucket, so only a position table limits the length.
            max_positions: own.position_biased_input.then_some(config.max_position_embeddings),
            types: own.type_vocab_size.max(1),
            initializer_range: std,
        };
        let running = Running::default();
        Ok(Self { embeddings, encoder, config, scored, activation, after, shape, buckets, info, running })
    }

    /// Returns the table of distances, `[2 · span, D]`, normalized if the model has a norm for it.
    fn distances(&self) -> Option<Tensor<2>> {
        let table = self.encoder.rel_embeddings.as_ref()?.weight.val();
        Some(match &self.encoder.LayerNorm {
            Some(norm) => norm.forward(table),
            None => table,
        })
    }
}

linears! {
    DebertaModel: encoder;
    Blocks: layer;
    Block: attention, intermediate, output;
    Attention: self_, output;
    enum SelfAttention: Fused, Separate;
    Fused: in_proj, pos_proj, pos_q_proj;
    Separate: query_proj, key_proj, value_proj, pos_key_proj, pos_query_proj;
}

impl Body for DebertaModel {
    fn forward(&self, texts: &TextBatch) -> Tensor<2> {
        let hidden = self.config.hidden_dropout_prob;
        let dropping = Dropping { stream: texts.dropout(), own: self.running.dropout };
        let embedded = self.embeddings.forward(texts, &texts.packed().positions());
        let embedded = dropping.apply(embedded, hidden, DropoutSite::Embedding);
        let distances = self.distances();
        let again = self.running.recompute && embedded.is_autodiff();
        let (shape, scored) = (self.shape, self.scored);
        let (probabilities, activation) = (self.config.probabilities(), self.activation);
        // The convolution reads the embeddings, too.
        let mut x = if self.encoder.conv.is_some() { branch(embedded.clone()) } else { embedded.clone() };
        for (i, block) in self.encoder.layer.iter().enumerate() {
            let settings = BlockSettings { block: i, dropping, probabilities, activation };
            let (text_attention, buckets) = (texts.text_attention(), self.buckets.clone());
            let run = move |block: &Block, x: Tensor<2>, distances: Option<Tensor<2>>| {
                let Attention { self_, output } = &block.attention;
                let [q, k, v] = self_.project(&x, shape, settings);
                let relative = distances.zip(buckets.clone()).map(|(distances, buckets)| {
                    let distances = dropping.apply(distances, hidden, DropoutSite::Relative(i));
                    self_.relative(distances, buckets, scored, settings)
                });
                let dropout = settings.extras(DropoutSite::Attention).dropout;
                let attended = attention_disentangled([q, k, v], relative, dropout, &text_attention.segments, shape);
                let x = settings.attended(&output.dense, &output.LayerNorm, x, attended);
                settings.fed([&block.intermediate.dense, &block.output.dense], &block.output.LayerNorm, x)
            };
            x = match distances.clone().map(branch) {
                Some(distances) if again => {
                    recompute_of(block, [x, distances], move |block, [x, distances]| run(block, x, Some(distances)))
                }
                None if again => recompute_of(block, [x], move |block, [x]| run(block, x, None)),
                distances => run(block, x, distances),
            };
            if let Some(conv) = self.encoder.conv.as_ref().filter(|_| i == 0) {
                let text_attention = conv.conv.forward(&embedded, texts);
                let added = self.after.of(dropping.apply(text_attention, hidden, DropoutSite::Encoded));
                x = conv.LayerNorm.forward(x + added);
            }
        }
        x
    }

    fn keep_layers(&mut self, layers: usize) -> usize {
        let all = self.encoder.layer.len();
        self.encoder.layer.truncate(layers);
        all
    }
}

impl SelfAttention {
    /// Builds attention from `d` to `all` heads together; `separate` tells which scores have their own projections of the distances.
    fn build(mut b: Builder<'_>, family: EncoderFamily, [d, all]: [usize; 2], separate: [bool; 2], std: f32) -> Self {
        let [c2p, p2c] = separate;
        let mut linear = |name: &str, outputs, has_bias| Linear::build(b.enter(name), d, outputs, has_bias, std);
        match family == EncoderFamily::DebertaV1 {
            true => Self::Fused(Fused {
                in_proj: linear("in_proj", 3 * all, false),
                pos_proj: c2p.then(|| linear("pos_proj", all, false)),
                pos_q_proj: p2c.then(|| linear("pos_q_proj", all, true)),
                q_bias: b.param("q_bias", [all], Init::Constant(0.0)),
                v_bias: b.param("v_bias", [all], Init::Constant(0.0)),
            }),
            false => Self::Separate(Separate {
                query_proj: linear("query_proj", all, true),
                key_proj: linear("key_proj", all, true),
                value_proj: linear("value_proj", all, true),
                pos_key_proj: c2p.then(|| linear("pos_key_proj", all, true)),
                pos_query_proj: p2c.then(|| linear("pos_query_proj", all, true)),
            }),
        }
    }

    /// Computes queries, keys and values of `x_nd`.
    fn project(&self, x_nd: &Tensor<2>, shape: AttentionShape, settings: BlockSettings) -> [Tensor<2>; 3] {
        match self {
            Self::Separate(of) => settings.project([&of.query_proj, &of.key_proj, &of.value_proj], x_nd),
            Self::Fused(of) => {
                let (n, heads, size) = (x_nd.dims()[0], shape.heads, shape.head_dim);
                let all = of.in_proj.forward(x_nd.clone(), settings.dropping.stream).reshape([n, heads, 3, size]);
                let [q, k, v] = [0, 1, 2].map(|part| all.clone().narrow(2, part, 1).reshape([n, heads * size]));
                [q + of.q_bias.val().unsqueeze(), k, v + of.v_bias.val().unsqueeze()]
            }
        }
    }

    /// Computes keys and queries of the distances, if their scores are used. Without separate projections, those of the contents are used.
    fn relative(
        &self,
        distances: Tensor<2>,
        buckets: PositionBuckets,
        scored: [bool; 2],
        settings: BlockSettings,
    ) -> Relative {
        let [c2p, p2c] = scored;
        let through = |layer: &Linear| layer.forward(distances.clone(), settings.dropping.stream);
        let [key, query] = match self {
            Self::Separate(of) => [
                Some(of.pos_key_proj.as_ref().unwrap_or(&of.key_proj)),
                Some(of.pos_query_proj.as_ref().unwrap_or(&of.query_proj)),
            ],
            Self::Fused(of) => [of.pos_proj.as_ref(), of.pos_q_proj.as_ref()],
        };
        Relative { key_rd: key.filter(|_| c2p).map(through), query_rd: query.filter(|_| p2c).map(through), buckets }
    }
}

impl Convolution {
    fn build(mut b: Builder<'_>, d: usize, size: usize, config: &BertConfig) -> Self {
        Self {
            conv: Kernel {
                weight: b.param("conv.weight", [d, d, size], Init::Normal(config.initializer_range)),
                bias: b.param("conv.bias", [d], Init::Constant(0.0)),
            },
            LayerNorm: LayerNorm::build(b.enter("LayerNorm"), d, config.layer_norm_eps),
        }
    }
}

impl Kernel {
    /// Computes `yₜ = b + Σⱼ Wⱼ xₜ₊ⱼ`, with zeros beyond the ends of a text.
    fn forward(&self, x_nd: &Tensor<2>, texts: &TextBatch) -> Tensor<2> {
        let [out, input, size] = self.weight.dims();
        let n = texts.packed().tokens();
        // One more row, of zeros, for positions beyond the ends.
        let rows = Tensor::cat(vec![x_nd.clone(), Tensor::zeros([1, input], &x_nd.device())], 0);
        let parts = (0..size).map(|j| {
            let of_text = |text: std::ops::Range<usize>| {
                let at = |t: usize| (t + j).checked_sub(size / 2).filter(|at| text.contains(at)).unwrap_or(n) as u32;
                text.clone().map(at).collect::<Vec<u32>>()
            };
            let segments = texts.packed().segments();
            let neighbors: Vec<u32> = segments.iter().flat_map(|segment| of_text(segment.tokens)).collect();
            let weight = self.weight.val().narrow(2, j, 1).reshape([out, input]);
            let bias = (j == 0).then(|| self.bias.val());
            gradus_kernels::linear(embedding(rows.clone(), &neighbors), weight, bias, Layout::OutIn, Precision::F32)
        });
        parts.reduce(|sum, part| sum + part).expect("a kernel has a size")
    }
}
