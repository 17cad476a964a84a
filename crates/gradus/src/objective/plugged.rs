//! Offline methods that a program registers by name. Their types are erased, so that one type adapts all of them to the
//! built-in interface.

use std::any::Any;
use std::marker::PhantomData;
use std::ops::Deref;

use burn::tensor::Tensor;
use serde_json::Value;

use super::{LossContext, Objective, OfflineMethod, PairScore, Readings, StepId, TrainingExample};
use crate::batches::MicroBatch;
use crate::data::{Examples, Row, TokenizeOptions};
use crate::error::Result;
use crate::method::Method;
use crate::model::{CausalLm, Reference, Rows, TrainingInfo};
use crate::pretrained::{LabelPlan, Pretrained};
use crate::progress::Progress;
use crate::stats::Stats;

/// A registered offline method of language models, with its keys.
pub struct PluggedOffline(Box<dyn ErasedMethod>);

/// A tokenized row of a registered method.
pub struct PluggedExample(Box<dyn ErasedExample>);

/// An example on which the objective of a registered method trains.
pub struct PluggedTrainingExample(Box<dyn Any>);

/// The objective of a registered method.
pub struct PluggedObjective(Box<dyn Objective<Model = CausalLm, Example = PluggedTrainingExample>>);

impl PluggedOffline {
    /// Wraps a method.
    pub fn new<M>(method: M) -> Self
    where
        M: OfflineMethod<Objective: Objective<Model = CausalLm>> + Send + Sync + 'static,
    {
        Self(Box::new(method))
    }
}

/// [`OfflineMethod`] with erased types.
trait ErasedMethod: Method + Send + Sync {
    fn labels(&self, train: &[Row], from: &Pretrained) -> Result<Option<LabelPlan>>;
    fn examples(&self, rows: &[Row], from: &Pretrained, options: TokenizeOptions) -> Result<Examples<PluggedExample>>;
    fn reference_width(&self) -> usize;
    fn score_with_reference(&self, reference: &CausalLm, examples: &[&PluggedExample]) -> Vec<f32>;
    fn with_reference(&self, example: PluggedExample, numbers: &[f32]) -> PluggedTrainingExample;
    fn objective(&self, reference: Option<Reference>) -> PluggedObjective;
    fn at_server(&self, from: &Pretrained, progress: &dyn Progress) -> Result<Option<PluggedObjective>>;
}

/// An example of [`ErasedMethod`].
trait ErasedExample {
    fn rows(&self) -> Rows<'_>;
    fn into_training(self: Box<Self>) -> PluggedTrainingExample;
    fn as_any(&self) -> &dyn Any;
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

/// An example of the method `M`.
struct ExampleOf<M: OfflineMethod>(M::Example, PhantomData<M>);

impl<M: OfflineMethod + 'static> ErasedExample for ExampleOf<M> {
    fn rows(&self) -> Rows<'_> {
        M::rows(&self.0)
    }

    fn into_training(self: Box<Self>) -> PluggedTrainingExample {
        let example: TrainingExample<M> = self.0.into();
        PluggedTrainingExample(Box::new(example))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

impl PluggedExample {
    /// Returns the example of the method that made it.
    fn as_example<M: OfflineMethod + 'static>(&self) -> &M::Example {
        let example: &ExampleOf<M> = self.0.as_any().downcast_ref().expect("an example of this method");
        &example.0
    }
}

impl From<PluggedExample> for PluggedTrainingExample {
    fn from(example: PluggedExample) -> Self {
        example.0.into_training()
    }
}

impl<M> ErasedMethod for M
where
    M: OfflineMethod<Objective: Objective<Model = CausalLm>> + Send + Sync + 'static,
{
    fn labels(&self, train: &[Row], from: &Pretrained) -> Result<Option<LabelPlan>> {
        OfflineMethod::labels(self, train, from)
    }

    fn examples(&self, rows: &[Row], from: &Pretrained, options: TokenizeOptions) -> Result<Examples<PluggedExample>> {
        let Examples { examples, counts, skipped } = OfflineMethod::examples(self, rows, from, options)?;
        let erased = |example| PluggedExample(Box::new(ExampleOf::<M>(example, PhantomData)));
        Ok(Examples { examples: examples.into_iter().map(erased).collect(), counts, skipped })
    }

    fn reference_width(&self) -> usize {
        OfflineMethod::reference_width(self)
    }

    fn score_with_reference(&self, reference: &CausalLm, examples: &[&PluggedExample]) -> Vec<f32> {
        let own: Vec<&M::Example> = examples.iter().map(|example| example.as_example::<M>()).collect();
        OfflineMethod::score_with_reference(self, reference, &own)
    }

    fn with_reference(&self, example: PluggedExample, numbers: &[f32]) -> PluggedTrainingExample {
        let example: Box<ExampleOf<M>> = example.0.into_any().downcast().expect("an example of this method");
        PluggedTrainingExample(Box::new(OfflineMethod::with_reference(self, example.0, numbers)))
    }

    fn objective(&self, reference: Option<Reference>) -> PluggedObjective {
        PluggedObjective(Box::new(Erased(OfflineMethod::objective(self, reference))))
    }

    fn at_server(&self, from: &Pretrained, progress: &dyn Progress) -> Result<Option<PluggedObjective>> {
        let served = OfflineMethod::at_server(self, from, progress)?;
        Ok(served.map(|objective| PluggedObjective(Box::new(Erased(objective)))))
    }
}

impl Deref for PluggedOffline {
    type Target = dyn Method;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl OfflineMethod for PluggedOffline {
    type Example = PluggedExample;
    type Objective = PluggedObjective;

    fn labels(&self, train: &[Row], from: &Pretrained) -> Result<Option<LabelPlan>> {
        self.0.labels(train, from)
    }

    fn examples(&self, rows: &[Row], from: &Pretrained, options: TokenizeOptions) -> Result<Examples<PluggedExample>> {
        self.0.examples(rows, from, options)
    }

    fn rows(example: &PluggedExample) -> Rows<'_> {
        example.0.rows()
    }

    fn reference_width(&self) -> usize {
        self.0.reference_width()
    }

    fn score_with_reference(&self, reference: &CausalLm, examples: &[&PluggedExample]) -> Vec<f32> {
        self.0.score_with_reference(reference, examples)
    }

    fn with_reference(&self, example: PluggedExample, numbers: &[f32]) -> PluggedTrainingExample {
        self.0.with_reference(example, numbers)
    }

    fn objective(&self, reference: Option<Reference>) -> PluggedObjective {
        self.0.objective(reference)
    }

    fn at_server(&self, from: &Pretrained, progress: &dyn Progress) -> Result<Option<PluggedObjective>> {
        self.0.at_server(from, progress)
    }
}

impl PluggedTrainingExample {
    /// Returns the example of the objective that made it.
    fn as_example<E: 'static>(&self) -> &E {
        self.0.downcast_ref().expect("an example of this objective")
    }
}

fn as_examples<'e, E: 'static>(examples: &[&'e PluggedTrainingExample]) -> Vec<&'e E> {
    examples.iter().map(|example| example.as_example()).collect()
}

fn erased<E: 'static>(examples: Vec<E>) -> Vec<PluggedTrainingExample> {
    examples.into_iter().map(|example| PluggedTrainingExample(Box::new(example))).collect()
}

/// An objective whose examples are erased.
struct Erased<O>(O);

impl<O: Objective<Model = CausalLm, Example: 'static>> Objective for Erased<O> {
    type Model = CausalLm;
    type Example = PluggedTrainingExample;

    fn tokens(&self, example: &PluggedTrainingExample) -> usize {
        self.0.tokens(example.as_example())
    }

    fn targets(&self, example: &PluggedTrainingExample) -> usize {
        self.0.targets(example.as_example())
    }

    fn weight(&self, example: &PluggedTrainingExample) -> f64 {
        self.0.weight(example.as_example())
    }

    fn regenerate(
        &self,
        model: &CausalLm,
        examples: &[&PluggedTrainingExample],
        at: StepId,
        stats: &mut Stats,
    ) -> Result<Option<Vec<PluggedTrainingExample>>, String> {
        Ok(self.0.regenerate(model, &as_examples(examples), at, stats)?.map(erased))
    }

    fn with_batch_context(
        &self,
        model: &CausalLm,
        examples: &[&PluggedTrainingExample],
        passes: MicroBatch,
        progress: &dyn Progress,
    ) -> Result<Option<Vec<PluggedTrainingExample>>> {
        Ok(self.0.with_batch_context(model, &as_examples(examples), passes, progress)?.map(erased))
    }

    fn loss(
        &self,
        model: &CausalLm,
        examples: &[&PluggedTrainingExample],
        context: LossContext,
        measured: &mut Readings<Stats>,
    ) -> Option<Tensor<1>> {
        self.0.loss(model, &as_examples(examples), context, measured)
    }

    fn evaluate(
        &self,
        model: &CausalLm,
        examples: &[&PluggedTrainingExample],
        passes: MicroBatch,
        progress: &dyn Progress,
    ) -> Result<Stats> {
        self.0.evaluate(model, &as_examples(examples), passes, progress)
    }

    fn scores(&self, model: &CausalLm, examples: &[&PluggedTrainingExample], passes: MicroBatch) -> Vec<PairScore> {
        self.0.scores(model, &as_examples(examples), passes)
    }

    fn report(&self, model: &CausalLm, examples: &[&PluggedTrainingExample], passes: MicroBatch) -> Option<Value> {
        self.0.report(model, &as_examples(examples), passes)
    }

    fn training_info(
        &self,
        model: &CausalLm,
        examples: &[&PluggedTrainingExample],
        passes: MicroBatch,
    ) -> TrainingInfo {
        self.0.training_info(model, &as_examples(examples), passes)
    }

    fn describe(&self, example: &PluggedTrainingExample) -> Value {
        self.0.describe(example.as_example())
    }
}

impl Objective for PluggedObjective {
    type Model = CausalLm;
    type Example = PluggedTrainingExample;

    fn tokens(&self, example: &PluggedTrainingExample) -> usize {
        self.0.tokens(example)
    }

    fn targets(&self, example: &PluggedTrainingExample) -> usize {
        self.0.targets(example)
    }

    fn weight(&self, example: &PluggedTrainingExample) -> f64 {
        self.0.weight(example)
    }

    fn regenerate(
        &self,
        model: &CausalLm,
        examples: &[&PluggedTrainingExample],
        at: StepId,
        stats: &mut Stats,
    ) -> Result<Option<Vec<PluggedTrainingExample>>, String> {
        self.0.regenerate(model, examples, at, stats)
    }

    fn with_batch_context(
        &self,
        model: &CausalLm,
        examples: &[&PluggedTrainingExample],
        passes: MicroBatch,
        progress: &dyn Progress,
    ) -> Result<Option<Vec<PluggedTrainingExample>>> {
        self.0.with_batch_context(model, examples, passes, progress)
    }

    fn loss(
        &self,
        model: &CausalLm,
        examples: &[&PluggedTrainingExample],
        context: LossContext,
        measured: &mut Readings<Stats>,
    ) -> Option<Tensor<1>> {
        self.0.loss(model, examples, context, measured)
    }

    fn evaluate(
        &self,
        model: &CausalLm,
        examples: &[&PluggedTrainingExample],
        passes: MicroBatch,
        progress: &dyn Progress,
    ) -> Result<Stats> {
        self.0.evaluate(model, examples, passes, progress)
    }

    fn scores(&self, model: &CausalLm, examples: &[&PluggedTrainingExample], passes: MicroBatch) -> Vec<PairScore> {
        self.0.scores(model, examples, passes)
    }

    fn report(&self, model: &CausalLm, examples: &[&PluggedTrainingExample], passes: MicroBatch) -> Option<Value> {
        self.0.report(model, examples, passes)
    }

    fn training_info(
        &self,
        model: &CausalLm,
        examples: &[&PluggedTrainingExample],
        passes: MicroBatch,
    ) -> TrainingInfo {
        self.0.training_info(model, examples, passes)
    }

    fn describe(&self, example: &PluggedTrainingExample) -> Value {
        self.0.describe(example)
    }
}
