//! Scalar reward models: a trunk with one linear output, read at each sequence's last token.
//!
//! On disk they are `…ForSequenceClassification` directories (`score.weight`), so that other software can serve them. Their `pad_token_id`
//! differs from every end-of-sequence id, because `transformers` finds the last token by it.

use std::sync::Arc;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use gradus_kernels::{Precision, Quantization, WeightFormat};

use super::adapter::{self, Adaptable, AdapterTensors, Attached, TaskType};
use super::batch::{Batch, Rows};
use super::build;
use super::build::{Builder, Init, Source, normal};
use super::causal::CausalLm;
use super::context::Context;
use super::directory::ModelDir;
use super::layers::{Layers, select_rows};
use super::scalar_head::{HeadLayers, ScalarHead};
use super::trunk::Trunk;
use super::weights::open_weights;
use crate::error::{Error, Result};
use crate::rng::Stream;

/// A scalar reward model; also the critic.
#[derive(Module, Debug)]
pub struct RewardModel {
    /// All layers below the head.
    pub trunk: Trunk,
    /// Head on the trunk.
    pub score: ScalarHead,
    /// Configuration of the trunk's adapter.
    #[module(skip)]
    adapter: Attached,
}

/// Whether a tensor belongs to the head of a language model: its weights, and BART's bias of the logits.
fn is_of_lm_head(name: &str) -> bool {
    matches!(name, "lm_head.weight" | "embed_out.weight" | "final_logits_bias")
}

impl RewardModel {
    /// Loads the reward model in `dir` onto `device`.
    ///
    /// # Errors
    /// When `dir` holds another kind of model, or weights are missing, misshapen, unexpected or damaged.
    pub fn load(dir: &ModelDir, device: &Device) -> Result<Self> {
        Self::read(dir, None, device)
    }

    /// Like [`load`](Self::load), for a model whose linear layers are not trained; see [`CausalLm::load_packed`].
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_packed(dir: &ModelDir, weights: WeightFormat, device: &Device) -> Result<Self> {
        Self::read(dir, Some(weights), device)
    }

    fn read(dir: &ModelDir, weights: Option<WeightFormat>, device: &Device) -> Result<Self> {
        dir.family()?;
        if !dir.is_reward_model() {
            let found = dir.architecture();
            return Err(Error::model(
                &dir.path,
                format!("`{found}` is not a reward model (…ForSequenceClassification)"),
            )
            .with_hint("train one with `gradus reward`"));
        }
        let mut checkpoint = open_weights(dir)?;
        if !dir.has_score() {
            // The head comes with the adapter.
            checkpoint = checkpoint
                .with_fresh(|name, shape, _| (name == "score.weight").then(|| vec![0.0; shape.iter().product()]));
        }
        let mut model = Self::build(&mut checkpoint, dir, weights, device, Init::Constant(0.0))?;
        checkpoint.ignore_where(is_of_lm_head);
        checkpoint.finish()?;
        let Some(found) = &dir.adapter else { return Ok(model) };
        let mut tensors = AdapterTensors::open(&found.path)?;
        adapter::attach_saved(&mut model.trunk, None, dir.family()?.base_prefix(), &found.config, &mut tensors)?;
        match tensors.score(model.trunk.dims().1, device) {
            Some(score) => model.score = score,
            None if dir.has_score() => {}
            None => return Err(Error::model(&found.path, "the adapter has no `score`, and neither has its base")),
        }
        tensors.finish()?;
        model.adapter = Some(Arc::new(found.config.clone()));
        Ok(model)
    }

    /// Loads the trunk of the causal model in `dir` and initializes a new head from N(0, 1/√(D + 1)). The linear layers are packed in the
    /// format `weights`, if given.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn from_causal(
        dir: &ModelDir,
        weights: Option<WeightFormat>,
        stream: &mut Stream,
        device: &Device,
    ) -> Result<Self> {
        // The stream is used only once, for the head, so the closure can own a clone.
        let mut own = stream.clone();
        let mut checkpoint = open_weights(dir)?.with_fresh(move |name, shape, _| {
            let deviation = (shape.last().copied().unwrap_or(1) as f32 + 1.0).powf(-0.5);
            (name == "score.weight").then(|| normal(&mut own, shape.iter().product(), deviation))
        });
        let model = Self::build(&mut checkpoint, dir, weights, device, Init::Constant(0.0))?;
        checkpoint.ignore_where(is_of_lm_head);
        checkpoint.finish()?;
        Ok(model)
    }

    /// Creates a critic on a copy of the policy's trunk (adapter included), with a head of zeros (Ziegler et al. 2019).
    pub fn critic_from(policy: &CausalLm) -> Self {
        let ((_, d), device) = (policy.trunk.dims(), policy.trunk.device());
        let mut zeros = Zeros;
        let b = Builder::new(&mut zeros, &device);
        let score = ScalarHead::with_layers(HeadLayers::Linear, b, d, Init::Constant(0.0));
        let adapter = policy.adapter().map(|config| {
            Arc::new(config.based_on(config.base.clone().unwrap_or_default(), TaskType::SequenceClassification))
        });
        Self { trunk: policy.trunk.clone(), score, adapter }
    }

    /// Creates a model with newly initialized weights from the configuration of `dir`.
    ///
    /// # Errors
    /// When the configuration is not supported.
    pub fn random(dir: &ModelDir, stream: &mut Stream, device: &Device) -> Result<Self> {
        Self::build(&mut build::Fresh(stream), dir, None, device, Init::Normal(0.02))
    }

    fn build(
        source: &mut dyn Source,
        dir: &ModelDir,
        weights: Option<WeightFormat>,
        device: &Device,
        init: Init,
    ) -> Result<Self> {
        let mut b = Builder::new(source, device).packing(weights);
        let trunk = Trunk::build(&mut b, dir)?;
        let d = trunk.dims().1;
        let score = ScalarHead::build(b.enter("score"), d, init);
        Ok(Self { trunk, score, adapter: None })
    }

    /// Sets the number of layers of the head. If it changes, the head is initialized so that it outputs 0 for every state.
    #[must_use]
    pub fn with_head(mut self, layers: HeadLayers, stream: &mut Stream) -> Self {
        if self.score.layers() != layers {
            let ((_, d), device) = (self.trunk.dims(), self.trunk.device());
            let mut fresh = build::Fresh(stream);
            self.score = ScalarHead::with_layers(layers, Builder::new(&mut fresh, &device), d, Init::Constant(0.0));
        }
        self
    }

    /// Restricts training to the head: trunk and adapter keep their weights.
    #[must_use]
    pub fn train_head(self) -> Self {
        let mut model = self.no_grad();
        model.train_heads();
        model
    }

    /// Sets the precision of the operands of the trunk's products; the head stays in f32.
    pub fn with_compute(mut self, compute: Precision) -> Self {
        self.trunk.set_precision(compute);
        self
    }

    /// Removes gradients and packs the trunk in the format `weights`; see [`CausalLm::into_frozen`].
    pub fn into_frozen(self, weights: WeightFormat) -> Self {
        let mut frozen = self.valid();
        frozen.trunk.freeze_weights(weights);
        frozen
    }

    /// Removes gradients and converts the linear layers of the trunk to `format`. Layers that are packed already do not change.
    #[must_use]
    pub fn quantized(self, format: Quantization) -> Self {
        let mut model = self.valid();
        model.trunk.freeze_weights(format.into());
        model
    }

    /// Builds a batch from `rows`; see [`Trunk::batch`].
    pub fn batch(&self, rows: &Rows<'_>) -> Batch {
        self.trunk.batch(rows)
    }

    /// Computes the head's output at every token, `[N]`: a critic's values.
    pub fn values(&self, batch: &Batch) -> Tensor<1> {
        self.head(self.hidden(batch))
    }

    /// Computes the head's output at each sequence's last token, `[B]`: rewards.
    pub fn rewards(&self, batch: &Batch) -> Tensor<1> {
        self.head(select_rows(self.hidden(batch), &batch.last_indices()))
    }

    /// Computes final hidden states of a batch, `[N, D]`.
    fn hidden(&self, batch: &Batch) -> Tensor<2> {
        self.trunk.forward(&mut Context::Packed(batch))
    }

    /// Applies the head to each row of `hidden_nd`, `[N, D]` to `[N]`. `hidden_nd` and the head's weights carry gradient.
    pub fn head(&self, hidden_nd: Tensor<2>) -> Tensor<1> {
        self.score.forward(hidden_nd)
    }
}

impl Adaptable for RewardModel {
    type Below = Trunk;

    fn adapted(&self) -> (&Trunk, &Attached) {
        (&self.trunk, &self.adapter)
    }

    fn adapted_mut(&mut self) -> (&mut Trunk, &mut Attached) {
        (&mut self.trunk, &mut self.adapter)
    }

    fn train_heads(&mut self) {
        self.score = self.score.clone().set_require_grad(true);
    }
}

/// A source of zeros.
struct Zeros;

impl Source for Zeros {
    fn values(&mut self, _: &str, shape: &[usize], _: Init) -> Option<Vec<f32>> {
        Some(vec![0.0; shape.iter().product()])
    }

    fn holds(&self, _: &str) -> bool {
        false
    }
}
