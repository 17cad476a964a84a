//! Language models: a trunk, with or without an encoder, and an LM head, tied to the embedding or separate.

use std::ops::Range;
use std::sync::Arc;

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, TensorData};
use gradus_kernels::{FrozenWeight, Layout, LmHead, TokenLogprobs, branch, multiplies_in, packs_weights, recompute_of};

use super::adapter::{self, Adaptable, AdapterTensors, Attached, HeadPlace, TaskType};
use super::batch::{Batch, Rows, Targets};
use super::build::{Builder, Fresh, Init, Source};
use super::context::{Context, KvCache};
use super::directory::ModelDir;
use super::layers::{Head, Layers, select_rows};
use super::lora::Lora;
use super::noise::EmbeddingNoise;
use super::parameters::SharedTensor;
use super::position_budget::PositionBudget;
use super::support;
use super::trunk::Trunk;
use super::weights::open_weights;
use crate::error::{Error, Result};
use crate::rng::Stream;
use gradus_kernels::{Precision, Quantization, WeightFormat};

/// A language model, such as the policy or the reference. It predicts each token from the tokens before it and, with an encoder, from its
/// source.
#[derive(Module, Debug)]
pub struct CausalLm {
    /// All layers below the head.
    pub trunk: Trunk,
    /// LM head, unless it is the embedding table.
    pub lm_head: Option<Head>,
    /// The adapter's part of the LM head.
    head_lora: Option<Lora>,
    /// Bias of the logits, `[V]`: `final_logits_bias` of BART, which is never trained.
    #[module(skip)]
    logits_bias: Option<Arc<[f32]>>,
    #[module(skip)]
    compute: Precision,
    /// Packed LM head; `lm_head` is then `None`.
    #[module(skip)]
    frozen_head: Option<FrozenWeight>,
    /// Configuration of the trunk's adapter.
    #[module(skip)]
    adapter: Attached,
}

/// Largest number of logits in a block of rows: 64 MiB.
pub const BLOCK_LOGITS: usize = 16 << 20;

impl CausalLm {
    /// Loads the model in `dir` onto `device`, with its adapter if it has one.
    ///
    /// # Errors
    /// When the family is unknown, or weights are missing, misshapen, unexpected or damaged.
    pub fn load(dir: &ModelDir, device: &Device) -> Result<Self> {
        Self::read(dir, None, device)
    }

    /// Like [`load`](Self::load), for a model whose linear layers are not trained: packs them in the format `weights`, one by one.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_packed(dir: &ModelDir, weights: WeightFormat, device: &Device) -> Result<Self> {
        Self::read(dir, Some(weights), device)
    }

    fn read(dir: &ModelDir, weights: Option<WeightFormat>, device: &Device) -> Result<Self> {
        if dir.has_score() {
            return Err(Error::model(&dir.path, "this is a reward model, which predicts no tokens")
                .with_hint("pass it where a reward model is expected, and pass a language model here"));
        }
        let mut checkpoint = open_weights(dir)?;
        let model = Self::build(&mut checkpoint, dir, weights, device)?;
        checkpoint.finish()?;
        model.with_saved_adapter(dir)
    }

    /// Attaches the adapter that `dir` has.
    ///
    /// # Errors
    /// When it does not fit, or belongs to a reward model.
    pub fn with_saved_adapter(mut self, dir: &ModelDir) -> Result<Self> {
        let Some(found) = &dir.adapter else { return Ok(self) };
        if found.config.task_type == TaskType::SequenceClassification {
            return Err(Error::model(&found.path, "this is the adapter of a reward model, not of a language model"));
        }
        let mut tensors = AdapterTensors::open(&found.path)?;
        let (trunk, head, _) = self.adapted_parts();
        adapter::attach_saved(trunk, head, dir.family()?.base_prefix(), &found.config, &mut tensors)?;
        let brought = if self.head_lora.is_some() { tensors.base_head(self.trunk.dims()) } else { None };
        if let Some(own) = brought {
            // peft saves the head next to its adapter. A packed head may be rounded, so it is not compared.
            let is_ours = self.frozen_head.is_some() || own == values(self.head_weight());
            if !is_ours {
                return Err(Error::model(
                    &found.path,
                    format!("its `{}` differs from that of its base", adapter::HEAD),
                )
                .with_hint("merge the adapter with peft (`merge_and_unload`) and use the merged model"));
            }
        }
        tensors.finish()?;
        self.adapter = Some(Arc::new(found.config.clone()));
        Ok(self)
    }

    /// Creates a model with newly initialized weights from the configuration of `dir`.
    ///
    /// # Errors
    /// When the configuration is not supported.
    pub fn random(dir: &ModelDir, stream: &mut Stream, device: &Device) -> Result<Self> {
        Self::build(&mut Fresh(stream), dir, None, device)
    }

    fn build(source: &mut dyn Source, dir: &ModelDir, weights: Option<WeightFormat>, device: &Device) -> Result<Self> {
        let mut b = Builder::new(source, device).packing(weights);
        let trunk = Trunk::build(&mut b, dir)?;
        let mut head = b.enter(dir.family()?.head_name());
        // A tied model may still have a head in its files. It stays separate if its values differ.
        let lm_head = if !trunk.ties_head() || head.holds("weight") {
            let ((v, d), std) = (trunk.dims(), trunk.initializer_range());
            let weight = head.param("weight", [v, d], Init::Normal(std));
            let tied = trunk.ties_head() && weight.val().equal(trunk.embedding()).all().into_scalar::<bool>();
            (!tied).then_some(Head { weight })
        } else {
            None
        };
        let logits_bias = b.holds("final_logits_bias").then(|| {
            let bias = b.param("final_logits_bias", [1, trunk.dims().0], Init::Constant(0.0)).val();
            let values: Vec<f32> = bias.into_data().try_to_vec().expect("f32");
            Arc::from(values)
        });
        let (head_lora, frozen_head, adapter) = (None, None, None);
        Ok(Self { trunk, lm_head, head_lora, logits_bias, compute: Precision::F32, frozen_head, adapter })
    }

    /// Sets the precision of the operands of products. Weights, sums and everything between products stay in f32.
    pub fn with_compute(mut self, compute: Precision) -> Self {
        self.trunk.set_precision(compute);
        self.compute = compute;
        self
    }

    /// Precision of the operands of products.
    pub fn compute(&self) -> Precision {
        self.compute
    }

    /// Removes gradients and packs the weights in the format `weights` for many forward passes: for sampling, and for models that are never
    /// trained. The original weights are freed.
    pub fn into_frozen(self, weights: WeightFormat) -> Self {
        let mut frozen = self.valid();
        frozen.pack_weights(weights);
        frozen
    }

    /// Removes gradients and converts the linear layers of the trunk to `format`. Layers that are packed already do not change.
    #[must_use]
    pub fn quantized(self, format: Quantization) -> Self {
        let mut model = self.valid();
        model.trunk.freeze_weights(format.into());
        model
    }

    /// Packs the weights of trunk and head, unless they are packed already.
    fn pack_weights(&mut self, weights: WeightFormat) {
        let device = self.trunk.device();
        let is_narrow = weights == WeightFormat::BF16 && multiplies_in(&device, Precision::Bf16);
        if self.frozen_head.is_none() && (packs_weights(&device) || is_narrow) {
            self.frozen_head = Some(FrozenWeight::new(self.head_weight(), Layout::OutIn, head_format(weights)));
            self.lm_head = None;
        }
        self.trunk.freeze_weights(weights);
    }

    /// Returns the LM head.
    pub fn head(&self) -> LmHead {
        let head = match &self.frozen_head {
            Some(weight) => LmHead::frozen(weight.clone()),
            None => LmHead::dense(self.head_weight(), self.compute),
        };
        let parts = self.head_lora.as_ref().map(Lora::parts);
        adapted(head, parts, self.compute).capped(self.trunk.logit_cap())
    }

    /// The adapter's tensors for the head, with the names of their file.
    pub(super) fn head_tensors(&self) -> Vec<SharedTensor> {
        let Some(lora) = &self.head_lora else { return Vec::new() };
        let ([a, b], _) = lora.parts();
        let named = |part: &str, tensor| SharedTensor::new(format!("{}.{part}.weight", adapter::HEAD), tensor);
        vec![named("lora_A", a), named("lora_B", b)]
    }

    fn head_weight(&self) -> Tensor<2> {
        let weight_vd = self.lm_head.as_ref().map_or_else(|| self.trunk.embedding(), |head| head.weight.val());
        match self.bias_of_logits() {
            None => weight_vd,
            Some(bias_v) => {
                let bias = TensorData::new(bias_v.to_vec(), [bias_v.len(), 1]);
                let bias_v1 = Tensor::from_data(bias, &weight_vd.device());
                Tensor::cat(vec![weight_vd, bias_v1], 1)
            }
        }
    }

    /// Bias of the logits, unless it is all 0. It is one more column of the head, multiplied by a 1 that is appended to every hidden state.
    fn bias_of_logits(&self) -> Option<&[f32]> {
        self.logits_bias.as_deref().filter(|bias_v| bias_v.iter().any(|&bias| bias != 0.0))
    }

    /// `final_logits_bias` for saving, `[1, V]`, if there is one.
    pub(super) fn logits_bias(&self) -> Option<Tensor<2>> {
        let bias_v = self.logits_bias.as_deref()?;
        Some(Tensor::from_data(TensorData::new(bias_v.to_vec(), [1, bias_v.len()]), &self.trunk.device().inner()))
    }

    /// Size of the vocabulary, V.
    pub fn vocab_size(&self) -> usize {
        self.trunk.dims().0
    }

    /// Length of the longest sequence that it can compute; `None` if there is no limit.
    pub fn max_positions(&self) -> Option<usize> {
        self.trunk.max_positions()
    }

    /// Limits of the lengths of prompts and completions.
    pub fn position_budget(&self) -> PositionBudget {
        self.trunk.position_budget()
    }

    /// Builds a batch from `rows`; see [`Trunk::batch`].
    pub fn batch(&self, rows: &Rows<'_>) -> Batch {
        self.trunk.batch(rows)
    }

    /// Builds a batch from `rows` with noise on the embeddings; see [`Trunk::batch_with_noise`].
    pub fn batch_with_noise(&self, rows: &Rows<'_>, noise: Option<EmbeddingNoise>) -> Batch {
        self.trunk.batch_with_noise(rows, noise)
    }

    /// Computes final hidden states of a batch, `[N, D]`, with gradient to the trunk's weights.
    pub fn hidden(&self, batch: &Batch) -> Tensor<2> {
        self.trunk.forward(&mut Context::Packed(batch))
    }

    /// Computes logprobs and entropies of the `M` `targets`, `[M]` each, from final hidden states, `[N, D]`. The logprobs carry gradient to the
    /// states and to the head. The logits are never in memory as a whole, unless the targets
    /// have supports. Adjacent targets at the same position share its logits.
    pub fn token_logprobs(&self, hidden_nd: Tensor<2>, targets: &Targets, temperature: f32) -> TokenLogprobs {
        let before_head = |positions: &[usize]| self.before_head(select_rows(hidden_nd, positions));
        match targets.supports_m.as_slice() {
            [] => {
                let mut begins = vec![0];
                let of_positions = targets.positions.chunk_by(|a, b| a == b);
                begins.extend(of_positions.scan(0, |end, same| {
                    *end += same.len();
                    Some(*end)
                }));
                let (_, firsts) = begins.split_last().expect("it begins with 0");
                let positions: Vec<usize> = firsts.iter().map(|&first| targets.positions[first]).collect();
                let hidden_nd = before_head(&positions);
                gradus_kernels::row_logprobs(hidden_nd, &self.head(), &begins, &targets.ids, temperature)
            }
            supports_m => {
                let hidden_md = before_head(&targets.positions);
                support::logprobs(hidden_md, &self.head(), &targets.ids, supports_m, temperature)
            }
        }
    }

    /// Computes logits of `targets` from final hidden states at `temperature`, `[M, V]`. Ids outside of a target's support have far lower
    /// logits than all others.
    pub fn token_logits(&self, hidden_nd: Tensor<2>, targets: &Targets, temperature: f32) -> Tensor<2> {
        let hidden_md = self.before_head(select_rows(hidden_nd, &targets.positions));
        support::logits(hidden_md, &self.head(), &targets.supports_m, temperature)
    }

    /// Computes logprobs and entropies of the counted tokens of a batch, at a temperature above 0.
    ///
    /// Lengths are not checked: [`position_budget`](Self::position_budget) does that. A model with rotary angles also computes longer
    /// sequences than it was made for.
    pub fn logprobs(&self, batch: &Batch, temperature: f32) -> TokenLogprobs {
        self.token_logprobs(self.hidden(batch), batch.targets(), temperature)
    }

    /// Computes the final hidden states that predict the targets of a batch, `[M, D]`.
    pub fn before_targets(&self, batch: &Batch) -> Tensor<2> {
        select_rows(self.hidden(batch), &batch.targets().positions)
    }

    /// Applies `of_block` to the logits of each row of `hidden_md`, `[M]`. `of_block` receives the logits of a block of rows and the range
    /// of these rows, and returns one value per row. The backward pass computes the logits of a block again, so that only one block is in
    /// memory at a time. Other tensors that `of_block` reads must not carry gradient.
    pub fn over_logits<F>(&self, hidden_md: Tensor<2>, of_block: F) -> Tensor<1>
    where
        F: Fn(Tensor<2>, Range<usize>) -> Tensor<1> + Clone + Send + Sync + 'static,
    {
        self.over_blocks((BLOCK_LOGITS / self.vocab_size()).max(1), hidden_md, of_block)
    }

    /// [`over_logits`](Self::over_logits) with `rows` rows per block.
    fn over_blocks<F>(&self, rows: usize, hidden_md: Tensor<2>, of_block: F) -> Tensor<1>
    where
        F: Fn(Tensor<2>, Range<usize>) -> Tensor<1> + Clone + Send + Sync + 'static,
    {
        let hidden_md = self.before_head(hidden_md);
        let (m, cap, compute) = (hidden_md.dims()[0], self.trunk.logit_cap(), self.compute);
        // All parameters are passed as inputs.
        let nothing: Vec<Head> = Vec::new();
        let weight_vd = self.frozen_head.is_none().then(|| branch(self.head_weight()));
        let low_rank = self.head_lora.as_ref().map(|lora| {
            let (parts, scale) = lora.parts();
            (parts.map(branch), scale)
        });
        let of_rows = |start: usize| {
            let block = start..m.min(start + rows);
            let rows_rd = hidden_md.clone().narrow(0, block.start, block.len());
            let of_block = of_block.clone();
            let one_column = move |logits_rv| of_block(logits_rv, block.clone()).unsqueeze_dim::<2>(1);
            let frozen = || LmHead::frozen(self.frozen_head.clone().expect("a head is dense or frozen"));
            match (&weight_vd, low_rank.clone()) {
                (Some(weight_vd), None) => {
                    recompute_of(&nothing, [rows_rd, weight_vd.clone()], move |_, [x, weight_vd]| {
                        one_column(LmHead::dense(weight_vd, compute).capped(cap).logits(x))
                    })
                }
                (Some(weight_vd), Some(([a, b], scale))) => {
                    recompute_of(&nothing, [rows_rd, weight_vd.clone(), a, b], move |_, [x, weight_vd, a, b]| {
                        let head = LmHead::dense(weight_vd, compute).adapted([a, b], scale, compute);
                        one_column(head.capped(cap).logits(x))
                    })
                }
                (None, None) => {
                    let head = frozen().capped(cap);
                    recompute_of(&nothing, [rows_rd], move |_, [x]| one_column(head.logits(x)))
                }
                (None, Some(([a, b], scale))) => {
                    let head = frozen();
                    recompute_of(&nothing, [rows_rd, a, b], move |_, [x, a, b]| {
                        one_column(head.clone().adapted([a, b], scale, compute).capped(cap).logits(x))
                    })
                }
            }
        };
        Tensor::cat((0..m).step_by(rows).map(of_rows).collect(), 0).squeeze_dim::<1>(1)
    }

    /// Computes logits of every token (of the decoder), `[N, V]`: for tests and small models.
    pub fn logits(&self, batch: &Batch) -> Tensor<2> {
        self.logits_of(self.hidden(batch))
    }

    /// Computes logits from the rows of `hidden_bd`, `[B, V]`: for sampling.
    pub fn logits_of(&self, hidden_bd: Tensor<2>) -> Tensor<2> {
        self.head().logits(self.before_head(hidden_bd))
    }

    /// Prepares final hidden states for the head.
    fn before_head(&self, hidden_nd: Tensor<2>) -> Tensor<2> {
        let hidden_nd = match self.trunk.head_scale() {
            1.0 => hidden_nd,
            scale => hidden_nd * scale,
        };
        match self.bias_of_logits() {
            None => hidden_nd,
            Some(_) => {
                let ones = Tensor::ones([hidden_nd.dims()[0], 1], &hidden_nd.device());
                Tensor::cat(vec![hidden_nd, ones], 1)
            }
        }
    }

    /// Creates an empty KV cache for sampling with `slots` rows and initial room for `capacity` new tokens.
    pub(crate) fn new_cache(&self, slots: usize, capacity: usize) -> KvCache {
        self.trunk.new_cache(slots, capacity)
    }
}

impl Adaptable for CausalLm {
    type Below = Trunk;

    fn adapted(&self) -> (&Trunk, &Attached) {
        (&self.trunk, &self.adapter)
    }

    fn adapted_mut(&mut self) -> (&mut Trunk, &mut Attached) {
        (&mut self.trunk, &mut self.adapter)
    }

    fn adapted_parts(&mut self) -> (&mut Trunk, Option<HeadPlace<'_>>, &mut Attached) {
        let (outputs, inputs) = self.trunk.dims();
        let has_bias = self.bias_of_logits().is_some();
        let head = HeadPlace { widths: [inputs, outputs], has_bias, lora: &mut self.head_lora };
        (&mut self.trunk, Some(head), &mut self.adapter)
    }

    fn train_heads(&mut self) {
        self.head_lora.iter_mut().for_each(Lora::require_grad);
    }

    fn remove_head_adapter(&mut self, is_merged: bool) {
        let Some(lora) = self.head_lora.take() else { return };
        if !is_merged {
            return;
        }
        let weight_dv = match self.frozen_head.take() {
            Some(weight) => weight.dense().to_device(&self.trunk.device().inner()),
            None => self.head_weight().transpose(),
        };
        self.lm_head = Some(Head { weight: Param::from_tensor(lora.merged(weight_dv).transpose()) });
    }
}

/// Values of a weight, without gradient.
fn values(weight: Tensor<2>) -> Vec<f32> {
    let weight = if weight.is_autodiff() { weight.inner() } else { weight };
    weight.into_data().try_to_vec().expect("f32")
}

/// Adds the parts of an adapter to `head`, if there are any.
fn adapted(head: LmHead, parts: Option<([Tensor<2>; 2], f32)>, compute: Precision) -> LmHead {
    match parts {
        None => head,
        Some((parts, scale)) => head.adapted(parts, scale, compute),
    }
}

/// Returns the format of a packed LM head, given the format of the other layers. 4 bits would harm the head most, and QLoRA keeps it in 16
/// bits.
pub fn head_format(layers: WeightFormat) -> WeightFormat {
    match layers {
        WeightFormat::Quantized(Quantization::Nf4) => WeightFormat::BF16,
        WeightFormat::Float(_) | WeightFormat::Quantized(Quantization::Int8) => layers,
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::activation::log_softmax;

    use super::*;
    use crate::host::read;
    use crate::model::ModelDir;

    /// `Σ p²` of each row, as an example of a function of whole distributions.
    fn of_rows(logits_rv: Tensor<2>, _: Range<usize>) -> Tensor<1> {
        (log_softmax(logits_rv, 1) * 2.0).exp().sum_dim(1).squeeze_dim::<1>(1)
    }

    #[test]
    fn blocks_of_logits_give_the_values_and_gradients_of_all_at_once() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../gradus/tests/fixtures/parity/models");
        // Two tied heads and a separate one.
        for name in ["gpt2", "llama-gqa", "gemma2"] {
            let dir = ModelDir::open(&root.join(name)).expect("a fixture");
            let model = CausalLm::load(&dir, &Device::flex().autodiff()).expect("a fixture");
            let texts = [(1..20u32).collect::<Vec<_>>(), vec![5, 3, 9]];
            let batch = model.batch(&Rows::texts(&texts));
            let m = batch.targets().len();
            let weights_m = Tensor::<1>::from_floats(
                &*(0..m).map(|i| (i as f32).sin()).collect::<Vec<_>>(),
                &model.head_weight().device(),
            );
            let gradients = |values_m: Tensor<1>| {
                let mut gradients = (values_m.clone() * weights_m.clone()).sum().backward();
                let of_head = model.head_weight().grad_remove(&mut gradients).expect("the head learns");
                let of_table = model.trunk.embedding().grad_remove(&mut gradients);
                (read(&values_m), read(&of_head.flatten::<1>(0, 1)), of_table.map(|g| read(&g.flatten::<1>(0, 1))))
            };
            let whole = gradients(of_rows(model.logits_of(model.before_targets(&batch)), 0..m));
            for rows in [1, 4, m, 1000] {
                let found = gradients(model.over_blocks(rows, model.before_targets(&batch), of_rows));
                let near = |found: &[f32], whole: &[f32]| {
                    let largest = whole.iter().fold(1e-6f32, |largest, x| largest.max(x.abs()));
                    found.iter().zip(whole).all(|(a, b)| (a - b).abs() <= 1e-5 * largest)
                };
                assert!(near(&found.0, &whole.0), "{name}, {rows} rows: values");
                assert!(near(&found.1, &whole.1), "{name}, {rows} rows: the head's gradient");
                let (found, whole) = (found.2.unwrap_or_default(), whole.2.clone().unwrap_or_default());
                assert!(found.len() == whole.len() && near(&found, &whole), "{name}, {rows} rows: what lies below");
            }
        }
    }
}
