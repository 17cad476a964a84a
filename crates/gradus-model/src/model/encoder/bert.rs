//! BERT (Devlin et al. 2018, <https://arxiv.org/abs/1810.04805>); RoBERTa, whose positions begin after that of the padding (Liu et al.
//! 2019, <https://arxiv.org/abs/1907.11692>); and Longformer, a RoBERTa whose attention has windows and global tokens (Beltagy et al. 2020,
//! <https://arxiv.org/abs/2004.05150>).
//!
//! Field names are those of `transformers`' `BertModel`; config keys are those of its `config.json`.

#![expect(non_snake_case, reason = "fields have the names of the tensors on disk")]

use burn::module::Module;
use burn::tensor::Tensor;
use gradus_kernels::{Mask, attention_across_with, embedding};
use serde::Deserialize;

use super::block::{
    BlockSettings, EmbeddingSizes, Embeddings, Probabilities, Problem, Sizes, check_probabilities, check_sizes, stack,
};
use super::texts::{QueryTokens, TextAttention};
use super::{Body, EncoderInfo, Running, TextBatch};
use crate::model::activation::Activation;
use crate::model::body::equal_heads;
use crate::model::build::Builder;
use crate::model::defaults::{deviation, gelu, tenth};
use crate::model::directory::ModelDir;
use crate::model::dropout::{DropoutSite, Dropping};
use crate::model::family::EncoderFamily;
use crate::model::layers::{LayerNorm, Linear, Linears, linears};

/// Keys of `config.json` for BERT and similar models.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct BertConfig {
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub intermediate_size: usize,
    pub max_position_embeddings: usize,
    #[serde(default = "two")]
    pub type_vocab_size: usize,
    #[serde(default = "gelu")]
    pub hidden_act: String,
    #[serde(default = "tenth")]
    pub hidden_dropout_prob: f32,
    #[serde(default = "tenth")]
    pub attention_probs_dropout_prob: f32,
    #[serde(default = "epsilon")]
    pub layer_norm_eps: f64,
    #[serde(default = "deviation")]
    pub initializer_range: f32,
    #[serde(default)]
    pub pad_token_id: Option<u32>,
    /// Other values than `absolute`, such as `relative_key`, are not supported.
    #[serde(default)]
    pub position_embedding_type: Option<String>,
    /// Whether tokens read only earlier ones, if the family has this form.
    #[serde(default)]
    pub is_decoder: Option<bool>,
}

fn two() -> usize {
    2
}
fn epsilon() -> f64 {
    1e-12
}

impl BertConfig {
    /// Rejects unsupported values.
    pub fn check(&self) -> Result<(), String> {
        check_sizes(
            [("hidden_size", self.hidden_size), ("num_attention_heads", self.num_attention_heads)],
            self.num_hidden_layers,
            self.vocab_size,
        )?;
        if let Some(kind) = self.position_embedding_type.as_deref().filter(|kind| *kind != "absolute") {
            return Err(format!("`position_embedding_type` `{kind}` is not supported (known: absolute)"));
        }
        check_probabilities(&[
            ("hidden_dropout_prob", self.hidden_dropout_prob),
            ("attention_probs_dropout_prob", self.attention_probs_dropout_prob),
        ])
    }

    /// Reads and checks the configuration of a BERT, RoBERTa or Longformer.
    fn read(dir: &ModelDir, family: EncoderFamily) -> Result<Self, Problem> {
        let config: Self = dir.read_config()?;
        config.check()?;
        config.check_direction(family)?;
        Ok(config)
    }

    /// Rejects the decoders of BERT and RoBERTa. Longformer has none.
    fn check_direction(&self, family: EncoderFamily) -> Result<(), String> {
        match self.is_decoder == Some(true) && family != EncoderFamily::Longformer {
            true => Err("`is_decoder` is true, so its tokens read only earlier ones, but only encoders are supported; set it to \
                         false if the weights are those of an encoder"
                .into()),
            false => Ok(()),
        }
    }

    /// Dropout probabilities in a block.
    pub fn probabilities(&self) -> Probabilities {
        let hidden = self.hidden_dropout_prob;
        Probabilities { attention: self.attention_probs_dropout_prob, attended: hidden, fed: hidden }
    }
}

/// Longformer's key: one window for all layers, or one per layer.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct LongformerConfig {
    attention_window: serde_json::Value,
}

impl LongformerConfig {
    /// Returns the distance that each of `layers` layers attends to on either side.
    fn distances(&self, layers: usize) -> Result<Vec<usize>, String> {
        let wrong =
            || format!("`attention_window` is {}: a positive even number, or one per layer", self.attention_window);
        let size = |value: &serde_json::Value| value.as_u64().map(|window| window as usize);
        let windows: Option<Vec<usize>> = match &self.attention_window {
            serde_json::Value::Array(windows) => windows.iter().map(size).collect(),
            window => size(window).map(|window| vec![window; layers]),
        };
        let windows = windows.filter(|windows| windows.len() == layers).ok_or_else(wrong)?;
        match windows.iter().all(|&window| window > 0 && window % 2 == 0) {
            true => Ok(windows.into_iter().map(|window| window / 2).collect()),
            false => Err(wrong()),
        }
    }
}

/// Reads the sizes of BERT and similar models.
pub(super) fn sizes(dir: &ModelDir, family: EncoderFamily) -> Result<Sizes, Problem> {
    let config = BertConfig::read(dir, family)?;
    let (d, layers, inner) = (config.hidden_size, config.num_hidden_layers, config.intermediate_size);
    let before = if family == EncoderFamily::Bert { 0 } else { config.pad_token_id.unwrap_or(1) as usize + 1 };
    Ok(Sizes {
        vocabulary: config.vocab_size,
        width: d,
        layers,
        heads: config.num_attention_heads,
        head_dim: d / config.num_attention_heads,
        inner,
        max_positions: Some(config.max_position_embeddings.saturating_sub(before)),
        gated: false,
    })
}

/// The encoder of BERT, RoBERTa and Longformer.
#[derive(Module, Debug)]
pub struct BertModel {
    pub(super) embeddings: Embeddings,
    encoder: Blocks,
    #[module(skip)]
    config: BertConfig,
    #[module(skip)]
    activation: Activation,
    /// Id of the padding, if positions begin after its position (RoBERTa).
    #[module(skip)]
    padding: Option<u32>,
    /// Distance that each layer attends to on either side; `None` without windows.
    #[module(skip)]
    distances: Option<Vec<usize>>,
    #[module(skip)]
    pub(super) info: EncoderInfo,
    #[module(skip)]
    pub(super) running: Running,
}

#[derive(Module, Debug)]
struct Blocks {
    layer: Vec<Block>,
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
    Whole(Whole),
    Windowed(Windowed),
}

#[derive(Module, Debug)]
struct Whole {
    query: Linear,
    key: Linear,
    value: Linear,
}

/// Attention with separate projections for global tokens.
#[derive(Module, Debug)]
struct Windowed {
    query: Linear,
    key: Linear,
    value: Linear,
    query_global: Linear,
    key_global: Linear,
    value_global: Linear,
}

#[derive(Module, Debug)]
pub(super) struct Inner {
    pub dense: Linear,
}

#[derive(Module, Debug)]
pub(super) struct Output {
    pub dense: Linear,
    pub LayerNorm: LayerNorm,
}

impl Output {
    pub fn build(mut b: Builder<'_>, [input, output]: [usize; 2], epsilon: f64, deviation: f32) -> Self {
        Self {
            dense: Linear::build(b.enter("dense"), input, output, true, deviation),
            LayerNorm: LayerNorm::build(b.enter("LayerNorm"), output, epsilon),
        }
    }
}

impl BertModel {
    pub(super) fn build(mut b: Builder<'_>, dir: &ModelDir, family: EncoderFamily) -> Result<Self, Problem> {
        let config = BertConfig::read(dir, family)?;
        let activation = Activation::named("hidden_act", &config.hidden_act)?;
        let is_longformer = family == EncoderFamily::Longformer;
        let distances = match is_longformer {
            true => Some(dir.read_config::<LongformerConfig>()?.distances(config.num_hidden_layers)?),
            false => None,
        };
        let (d, std) = (config.hidden_size, config.initializer_range);
        let is_bert = family == EncoderFamily::Bert;
        let padding = (!is_bert).then_some(config.pad_token_id.unwrap_or(1));
        let before = padding.map_or(0, |padding| padding as usize + 1);
        let Some(max_positions) = config.max_position_embeddings.checked_sub(before).filter(|&left| left > 0) else {
            let rows = config.max_position_embeddings;
            return Err(format!("`max_position_embeddings` {rows} leaves no position after that of the padding").into());
        };
        let sizes = EmbeddingSizes {
            vocabulary: config.vocab_size,
            positions: config.max_position_embeddings,
            types: config.type_vocab_size,
            width: d,
            output: d,
            epsilon: config.layer_norm_eps,
            deviation: std,
        };
        let embeddings = Embeddings::build(b.enter("embeddings"), sizes);
        let layer = (0..config.num_hidden_layers).map(|i| {
            let mut b = b.enter(format_args!("encoder.layer.{i}"));
            let norms = config.layer_norm_eps;
            Block {
                attention: Attention {
                    self_: SelfAttention::build(b.enter("attention.self"), d, std, distances.is_some()),
                    output: Output::build(b.enter("attention.output"), [d, d], norms, std),
                },
                intermediate: Inner {
                    dense: Linear::build(b.enter("intermediate.dense"), d, config.intermediate_size, true, std),
                },
                output: Output::build(b.enter("output"), [config.intermediate_size, d], norms, std),
            }
        });
        let encoder = Blocks { layer: layer.collect() };
        let info = EncoderInfo {
            has_global: distances.is_some(),
            vocabulary: config.vocab_size,
            width: d,
            max_positions: Some(max_positions),
            types: config.type_vocab_size,
            initializer_range: std,
        };
        let running = Running::default();
        Ok(Self { embeddings, encoder, config, activation, padding, distances, info, running })
    }

    /// Returns each token's row in the position table.
    fn positions(&self, texts: &TextBatch) -> Vec<u32> {
        let packed = texts.packed();
        let Some(padding) = self.padding else { return packed.positions() };
        let mut positions = Vec::with_capacity(packed.tokens());
        for segment in packed.segments().iter() {
            // A padding token within a text has the position of the padding, and does not count.
            let mut next = padding;
            positions.extend(packed.ids()[segment.tokens].iter().map(|&id| {
                let counts = id != padding;
                next += u32::from(counts);
                if counts { next } else { padding }
            }));
        }
        positions
    }
}

impl BertModel {
    /// Computes final states of all tokens, or with `first` only of the first token of each text.
    fn states(&self, texts: &TextBatch, first: bool) -> Tensor<2> {
        let dropping = Dropping { stream: texts.dropout(), own: self.running.dropout };
        let embedded = self.embeddings.forward(texts, &self.positions(texts));
        let x = dropping.apply(embedded, self.config.hidden_dropout_prob, DropoutSite::Embedding);
        let (width, heads) = (self.config.hidden_size, self.config.num_attention_heads);
        let (probabilities, activation) = (self.config.probabilities(), self.activation);
        let compute = self.running.compute;
        stack(self.encoder.layer.iter(), x, self.running.recompute, |i| {
            let mask = self.distances.as_ref().map_or(Mask::Bidirectional, |of| Mask::BidirectionalWindow(of[i]));
            let (settings, text_attention) =
                (BlockSettings { block: i, dropping, probabilities, activation }, texts.text_attention());
            let first = first && i + 1 == self.encoder.layer.len();
            move |block: &Block, [x]| {
                let Attention { self_, output } = &block.attention;
                let [x, attended] = self_.forward(
                    settings,
                    x,
                    &text_attention,
                    |mask| equal_heads(width, heads, mask, compute),
                    mask,
                    first,
                );
                let x = settings.attended(&output.dense, &output.LayerNorm, x, attended);
                settings.fed([&block.intermediate.dense, &block.output.dense], &block.output.LayerNorm, x)
            }
        })
    }
}

linears! {
    BertModel: encoder;
    Blocks: layer;
    Block: attention, intermediate, output;
    Attention: self_, output;
    enum SelfAttention: Whole, Windowed;
    Whole: query, key, value;
    Windowed: query, key, value, query_global, key_global, value_global;
    Inner: dense;
    Output: dense;
}

impl Body for BertModel {
    fn forward(&self, texts: &TextBatch) -> Tensor<2> {
        self.states(texts, false)
    }

    fn first(&self, texts: &TextBatch) -> Tensor<2> {
        self.states(texts, true)
    }

    fn keep_layers(&mut self, layers: usize) -> usize {
        let all = self.encoder.layer.len();
        self.encoder.layer.truncate(layers);
        all
    }
}

impl SelfAttention {
    fn build(mut b: Builder<'_>, d: usize, deviation: f32, windowed: bool) -> Self {
        let mut linear = |name: &str| Linear::build(b.enter(name), d, d, true, deviation);
        let [query, key, value] = ["query", "key", "value"].map(&mut linear);
        if !windowed {
            return Self::Whole(Whole { query, key, value });
        }
        let [query_global, key_global, value_global] = ["query_global", "key_global", "value_global"].map(linear);
        Self::Windowed(Windowed { query, key, value, query_global, key_global, value_global })
    }

    /// Returns the states of the tokens that continue to the next layer, and their attention outputs under `mask`. Global tokens attend
    /// without a mask. All tokens continue, or with `first` only the first token of each text.
    fn forward(
        &self,
        settings: BlockSettings,
        x_nd: Tensor<2>,
        text_attention: &TextAttention,
        shape: impl Fn(Mask) -> gradus_kernels::AttentionShape,
        mask: Mask,
        first: bool,
    ) -> [Tensor<2>; 2] {
        let of = match self {
            Self::Whole(Whole { query, key, value }) => {
                return settings.attend([query, key, value], x_nd, text_attention, shape(mask), first);
            }
            Self::Windowed(of) => of,
        };
        let far = |global: &QueryTokens| {
            let (masks, own) = (settings.dropping.stream, embedding(x_nd.clone(), &global.tokens));
            let q = of.query_global.forward(own.clone(), masks);
            let [k, v] = [&of.key_global, &of.value_global].map(|layer| layer.forward(x_nd.clone(), masks));
            let extras = settings.extras(DropoutSite::CrossAttention);
            [own, attention_across_with(q, k, v, extras, &global.cross, shape(Mask::Bidirectional))]
        };
        // If only global tokens continue, the attention outputs of the others are not needed.
        if let Some(global) = text_attention.global.as_ref().filter(|global| first && **global == text_attention.first)
        {
            return far(global);
        }
        let near = settings.attend([&of.query, &of.key, &of.value], x_nd.clone(), text_attention, shape(mask), false);
        let [x, attended] = match &text_attention.global {
            None => near,
            Some(global) => {
                let ([x, near], [_, far]) = (near, far(global));
                [x, embedding(Tensor::cat(vec![near, far], 0), &global.places())]
            }
        };
        if first { [x, attended].map(|all| embedding(all, &text_attention.first.tokens)) } else { [x, attended] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_decoder_is_refused_as_an_encoder() {
        let config = |is_decoder: Option<bool>| -> BertConfig {
            serde_json::from_value(json!({
                "vocab_size": 9, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8,
                "max_position_embeddings": 8, "is_decoder": is_decoder
            }))
            .expect("a configuration")
        };
        for family in [EncoderFamily::Bert, EncoderFamily::Roberta, EncoderFamily::XlmRoberta, EncoderFamily::Camembert]
        {
            let message = config(Some(true)).check_direction(family).expect_err("refused");
            assert!(message.starts_with("`is_decoder` is true"), "{message}");
            assert_eq!(config(Some(false)).check_direction(family), Ok(()));
            assert_eq!(config(None).check_direction(family), Ok(()));
        }
        assert_eq!(config(Some(true)).check_direction(EncoderFamily::Longformer), Ok(()));
    }

    #[test]
    fn a_window_is_one_number_or_one_a_layer() {
        let distances = |value| LongformerConfig { attention_window: value }.distances(2);
        assert_eq!(distances(json!(512)), Ok(vec![256, 256]));
        assert_eq!(distances(json!([4, 8])), Ok(vec![2, 4]));
        for wrong in [json!(5), json!([4]), json!(0), json!("wide"), json!([4, 3])] {
            let message = distances(wrong.clone()).expect_err("refused");
            assert_eq!(message, format!("`attention_window` is {wrong}: a positive even number, or one per layer"));
        }
    }
}
