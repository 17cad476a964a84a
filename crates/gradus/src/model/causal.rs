//! Language models: a trunk, with or without an encoder, and an LM head, tied to the embedding or its own.

use std::ops::Range;
use std::sync::Arc;

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, TensorData};
use gradus_kernels::{FrozenWeight, Layout, LmHead, TokenLogprobs, branch, packs_weights, recompute_of};

use super::adapter::{self, Adaptable, AdapterTensors, Attached, HeadPlace, TaskType};
use super::batch::{Batch, Rows, Targets};
use super::build::{Builder, Fresh, Init, Source};
use super::context::{Context, KvCache};
use super::directory::ModelDir;
use super::layers::{Head, Layers, select_rows};
use super::lora::Lora;
use super::parameters::SharedTensor;
use super::position_budget::PositionBudget;
use super::support;
use super::trunk::Trunk;
use super::weights::open_weights;
use crate::error::{Error, Result};
use crate::rng::Stream;
use gradus_kernels::{Precision, Quantization, WeightFormat};

/// A language model: the policy, the reference. What comes next is predicted from what came before; of a model with an
/// encoder also from its source.
#[derive(Module, Debug)]
pub struct CausalLm {
    /// Everything below the head.
    pub trunk: Trunk,
    /// The LM head, where it is not the embedding table.
    pub lm_head: Option<Head>,
    /// What an adapter adds to the LM head.
    head_lora: Option<Lora>,
    /// What is added to the logits of every token, `[V]`: `final_logits_bias` of BART, which is never trained.
    #[module(skip)]
    logits_bias: Option<Arc<[f32]>>,
    #[module(skip)]
    compute: Precision,
    /// The LM head, packed; `lm_head` is then absent.
    #[module(skip)]
    frozen_head: Option<FrozenWeight>,
    /// What the low-rank parts of the trunk are.
    #[module(skip)]
    adapter: Attached,
}

/// Logits of a block of rows at most: 64 MiB.
pub const BLOCK_LOGITS: usize = 16 << 20;

impl CausalLm {
    /// Reads the model in `dir` onto `device`, with its adapter where it has one.
    ///
    /// # Errors
    /// When the family is unknown, or weights are missing, misshapen, unexpected or damaged.
    pub fn load(dir: &ModelDir, device: &Device) -> Result<Self> {
        Self::read(dir, None, device)
    }

    /// [`load`](Self::load) for a model whose linear layers are not trained: they are packed as `weights` says, one by one.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_packed(dir: &ModelDir, weights: WeightFormat, device: &Device) -> Result<Self> {
        Self::read(dir, Some(weights), device)
    }

    fn read(dir: &ModelDir, weights: Option<WeightFormat>, device: &Device) -> Result<Self> {
        if dir.has_score() {
            return Err(Error::model(&dir.path, "this is a reward model, which predicts no tokens")
                .with_hint("give it where a reward model is asked for, and a language model here"));
        }
        let mut checkpoint = open_weights(dir)?;
        let model = Self::build(&mut checkpoint, dir, weights, device)?;
        checkpoint.finish()?;
        model.with_saved_adapter(dir)
    }

    /// The same model with the adapter that `dir` has.
    ///
    /// # Errors
    /// When it does not fit, or is a reward model's.
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
            // peft saves the head beside its adapter. Packed, it may be rounded.
            let is_ours = self.frozen_head.is_some() || own == values(self.head_weight());
            if !is_ours {
                return Err(Error::model(
                    &found.path,
                    format!("it brings another `{}` than its base has", adapter::HEAD),
                )
                .with_hint("merge the adapter with peft (`merge_and_unload`) and take the merged model"));
            }
        }
        tensors.finish()?;
        self.adapter = Some(Arc::new(found.config.clone()));
        Ok(self)
    }

    /// A model with fresh weights, as `dir`'s configuration describes.
    ///
    /// # Errors
    /// When the configuration is not understood.
    pub fn random(dir: &ModelDir, stream: &mut Stream, device: &Device) -> Result<Self> {
        Self::build(&mut Fresh(stream), dir, None, device)
    }

    fn build(source: &mut dyn Source, dir: &ModelDir, weights: Option<WeightFormat>, device: &Device) -> Result<Self> {
        let mut b = Builder::new(source, device).packing(weights);
        let trunk = Trunk::build(&mut b, dir)?;
        let mut head = b.enter("lm_head");
        // A tied model may still bring a head of its own: it stays separate when its values differ.
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

    /// The same model with the operands of its products held as `compute` says; weights, sums and everything between
    /// the products stay in f32.
    pub fn with_compute(mut self, compute: Precision) -> Self {
        self.trunk.set_precision(compute);
        self.compute = compute;
        self
    }

    /// How the operands of products are held.
    pub fn compute(&self) -> Precision {
        self.compute
    }

    /// The same model without gradients, its weights packed as `weights` says for many forward passes: for sampling, and
    /// for models that are never trained. The weights packed are let go of.
    pub fn into_frozen(self, weights: WeightFormat) -> Self {
        let mut frozen = self.valid();
        frozen.pack_weights(weights);
        frozen
    }

    /// The same model without gradients, the linear layers of its trunk in `format`; layers that are packed already stay.
    #[must_use]
    pub fn quantized(self, format: Quantization) -> Self {
        let mut model = self.valid();
        model.trunk.freeze_weights(format.into());
        model
    }

    /// Packs the weights of trunk and head, unless they are packed already.
    fn pack_weights(&mut self, weights: WeightFormat) {
        if self.frozen_head.is_none() && packs_weights(&self.trunk.device()) {
            self.frozen_head = Some(FrozenWeight::new(self.head_weight(), Layout::OutIn, head_format(weights)));
            self.lm_head = None;
        }
        self.trunk.freeze_weights(weights);
    }

    /// The LM head.
    pub fn head(&self) -> LmHead {
        let head = match &self.frozen_head {
            Some(weight) => LmHead::frozen(weight.clone()),
            None => LmHead::dense(self.head_weight(), self.compute),
        };
        let parts = self.head_lora.as_ref().map(Lora::parts);
        adapted(head, parts, self.compute).capped(self.trunk.logit_cap())
    }

    /// What the adapter adds to the head, as it is written.
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

    /// What is added to logits, where it is anything: one more column of the head, which meets a 1 behind every hidden state.
    fn bias_of_logits(&self) -> Option<&[f32]> {
        self.logits_bias.as_deref().filter(|bias_v| bias_v.iter().any(|&bias| bias != 0.0))
    }

    /// `final_logits_bias` as it is written, `[1, V]`, where there is one.
    pub(super) fn logits_bias(&self) -> Option<Tensor<2>> {
        let bias_v = self.logits_bias.as_deref()?;
        Some(Tensor::from_data(TensorData::new(bias_v.to_vec(), [1, bias_v.len()]), &self.trunk.device().inner()))
    }

    /// Size of the vocabulary, V.
    pub fn vocab_size(&self) -> usize {
        self.trunk.dims().0
    }

    /// The longest sequence that can be computed, where there is a limit.
    pub fn max_positions(&self) -> Option<usize> {
        self.trunk.max_positions()
    }

    /// How long prompts and completions may be.
    pub fn position_budget(&self) -> PositionBudget {
        self.trunk.position_budget()
    }

    /// What is computed of `rows`; see [`Trunk::batch`].
    pub fn batch(&self, rows: &Rows<'_>) -> Batch {
        self.trunk.batch(rows)
    }

    /// Final hidden states of a batch, `[N, D]`.
    pub fn hidden(&self, batch: &Batch) -> Tensor<2> {
        self.trunk.forward(&mut Context::Packed(batch))
    }

    /// Logprobs and entropies of `targets` given final hidden states. Logits are never whole in memory, except where
    /// targets have supports.
    pub fn token_logprobs(&self, hidden_nd: Tensor<2>, targets: &Targets, temperature: f32) -> TokenLogprobs {
        let hidden_md = self.before_head(select_rows(hidden_nd, &targets.positions));
        match targets.supports_m.as_slice() {
            [] => gradus_kernels::token_logprobs(hidden_md, &self.head(), &targets.ids, temperature),
            supports_m => support::logprobs(hidden_md, &self.head(), &targets.ids, supports_m, temperature),
        }
    }

    /// Logits of `targets` at the temperature given final hidden states, `[M, V]`; far below all others where an id is not
    /// in a target's support.
    pub fn token_logits(&self, hidden_nd: Tensor<2>, targets: &Targets, temperature: f32) -> Tensor<2> {
        let hidden_md = self.before_head(select_rows(hidden_nd, &targets.positions));
        support::logits(hidden_md, &self.head(), &targets.supports_m, temperature)
    }

    /// Logprobs and entropies of the tokens of a batch that count.
    pub fn logprobs(&self, batch: &Batch, temperature: f32) -> TokenLogprobs {
        self.token_logprobs(self.hidden(batch), batch.targets(), temperature)
    }

    /// Final hidden states before the targets of a batch, `[M, D]`.
    pub fn before_targets(&self, batch: &Batch) -> Tensor<2> {
        select_rows(self.hidden(batch), &batch.targets().positions)
    }

    /// What `of_block` makes of the logits of each row of `hidden_md`, `[M]`: it is given the logits of a block of rows and
    /// which rows they are, and answers with one value a row. The backward pass computes the logits of a block again, so that
    /// those of one block are in memory at a time, whatever `of_block` does with them. Nothing else that it reads may carry
    /// gradient.
    pub fn over_logits<F>(&self, hidden_md: Tensor<2>, of_block: F) -> Tensor<1>
    where
        F: Fn(Tensor<2>, Range<usize>) -> Tensor<1> + Clone + Send + Sync + 'static,
    {
        self.over_blocks((BLOCK_LOGITS / self.vocab_size()).max(1), hidden_md, of_block)
    }

    /// [`over_logits`](Self::over_logits) with so many rows a block.
    fn over_blocks<F>(&self, rows: usize, hidden_md: Tensor<2>, of_block: F) -> Tensor<1>
    where
        F: Fn(Tensor<2>, Range<usize>) -> Tensor<1> + Clone + Send + Sync + 'static,
    {
        let hidden_md = self.before_head(hidden_md);
        let (m, cap, compute) = (hidden_md.dims()[0], self.trunk.logit_cap(), self.compute);
        // Its only parameters are those it is given as inputs.
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

    /// Logits of every token (of the decoder), `[N, V]`: for tests and small models.
    pub fn logits(&self, batch: &Batch) -> Tensor<2> {
        self.logits_of(self.hidden(batch))
    }

    /// Logits of the rows of `hidden_bd`, `[B, V]`: for sampling.
    pub(crate) fn logits_of(&self, hidden_bd: Tensor<2>) -> Tensor<2> {
        self.head().logits(self.before_head(hidden_bd))
    }

    /// Final hidden states as the head takes them.
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

    /// An empty cache for sampling: `slots` rows that have room for `capacity` new tokens at first.
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

    fn let_go_of_head(&mut self, is_merged: bool) {
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

/// The values of a weight, without gradient.
fn values(weight: Tensor<2>) -> Vec<f32> {
    let weight = if weight.is_autodiff() { weight.inner() } else { weight };
    weight.into_data().try_to_vec().expect("f32")
}

/// `head` with the parts of an adapter, where there are some.
fn adapted(head: LmHead, parts: Option<([Tensor<2>; 2], f32)>, compute: Precision) -> LmHead {
    match parts {
        None => head,
        Some((parts, scale)) => head.adapted(parts, scale, compute),
    }
}

/// How the LM head of a model is packed whose layers are packed in `layers`: 4 bits would hurt it most, and QLoRA leaves it
/// in 16.
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

    /// `Σ p²` of each row, a function of whole distributions.
    fn of_rows(logits_rv: Tensor<2>, _: Range<usize>) -> Tensor<1> {
        (log_softmax(logits_rv, 1) * 2.0).exp().sum_dim(1).squeeze_dim::<1>(1)
    }

    #[test]
    fn blocks_of_logits_give_the_values_and_gradients_of_all_at_once() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/models");
        // Tied heads, and one of its own.
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
