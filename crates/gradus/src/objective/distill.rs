//! On-policy distillation: the student comes close to a teacher's next-token distributions, on its own completions, the
//! teacher's, or those of the rows.
//!
//! Generalised knowledge distillation, Agarwal et al. 2024, <https://arxiv.org/abs/2306.13649>. Follows TRL 1.16's experimental
//! trainer; differs in that one draw a step decides whether the student samples, whatever its micro-batches, and that no more
//! logits are held than a block of tokens has.

use std::sync::Arc;

use burn::module::Module;
use burn::tensor::Tensor;
use rand::Rng;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Objective, OfflineMethod, Pass, StepId};
use crate::data::{self, Examples, Need, Row, SftExample, TokeniseOptions, TooLong};
use crate::error::{Error, Result};
use crate::generate::{NoStopRule, SamplingParams, generate};
use crate::host::read;
use crate::loss::distill::jensen_shannon;
use crate::method::{Cast, Defaults, Head, Method, Problems, Shared};
use crate::model::{CausalLm, ModelShape, Rows, Sequence};
use crate::pretrained::Pretrained;
use crate::rng::Purpose;
use crate::settings::TrainConfig;
use crate::stats::Stats;

/// Keys of `method.distill`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DistillConfig {
    /// The teacher: a model directory or hub name, with the student's tokenizer. `train.frozen_weights` says how its weights lie. Required.
    pub teacher_model: Option<String>,
    /// Where between the forward KL (0) and the reverse KL (1) the divergence lies. Default 0.5 (TRL).
    pub beta: f64,
    /// The share of steps that learn from completions which the student samples itself, λ. Default 0.5 (TRL).
    pub lmbda: f64,
    /// Whether the teacher samples the completions of the other steps, in place of the rows' own. Default false (TRL).
    pub seq_kd: bool,
    /// Sampling temperature; the divergence is that of temperature 1. Default 0.9 (TRL).
    pub temperature: f64,
    /// Longest sampled completion in tokens. Default 128 (TRL).
    #[schemars(range(max = 100_000_000))]
    pub max_new_tokens: usize,
}

impl Default for DistillConfig {
    fn default() -> Self {
        Self { teacher_model: None, beta: 0.5, lmbda: 0.5, seq_kd: false, temperature: 0.9, max_new_tokens: 128 }
    }
}

impl Method for DistillConfig {
    fn name(&self) -> &'static str {
        "distill"
    }

    fn about(&self) -> &'static str {
        "Train a student on what a teacher says of its completions"
    }

    fn defaults(&self) -> Defaults {
        Defaults { learning_rate: 2e-5, too_long: TooLong::Truncate, best_metric: "eval_loss" }
    }

    fn need(&self) -> Need {
        Need::Sft
    }

    fn cast(&self, shared: &Shared<'_>) -> Cast {
        Cast::alone(shared, Head::Language).with_teacher(shared, self.teacher_model.as_deref().unwrap_or_default())
    }

    fn sampled_tokens(&self) -> Option<usize> {
        self.samples().then_some(self.max_new_tokens)
    }

    fn compares_logits(&self) -> bool {
        true
    }

    fn rules(&self, problems: &mut Problems<'_>, train: &TrainConfig) {
        let is_named = self.teacher_model.as_ref().is_some_and(|name| !name.trim().is_empty());
        problems.unless(is_named, &["method.distill.teacher_model", "method"], || {
            let message =
                "`distill` needs a `method.distill.teacher_model`: whose distributions the student learns".into();
            (message, Some("name a larger model with the student's tokenizer; as a flag, `--teacher-model DIR`".into()))
        });
        problems.within("method.distill.beta", self.beta, 0.0..=1.0);
        problems.within("method.distill.lmbda", self.lmbda, 0.0..=1.0);
        problems.above_zero("method.distill.temperature", self.temperature);
        problems.at_least("method.distill.max_new_tokens", self.max_new_tokens, 1);
        let (new, longest) = (self.max_new_tokens, train.max_length);
        let keys = ["method.distill.max_new_tokens", "train.max_length"];
        problems.unless(!self.samples() || new < longest, &keys, || {
            let message = format!(
                "`method.distill.max_new_tokens` is {new}, but `train.max_length` is {longest}, prompt and completion together: no prompt fits"
            );
            (message, Some(format!("raise `train.max_length` above {new}")))
        });
        problems.unless(
            !(self.seq_kd && self.lmbda == 1.0),
            &["method.distill.seq_kd", "method.distill.lmbda"],
            || {
                let message =
                    "`method.distill.seq_kd` is given, but with `lmbda: 1` the student samples every step".into();
                (message, Some("leave it out, or lower `lmbda`".into()))
            },
        );
    }
}

impl DistillConfig {
    /// Whether any step samples.
    fn samples(&self) -> bool {
        self.lmbda > 0.0 || self.seq_kd
    }
}

/// A prompt with a completion.
#[derive(Debug, Clone, PartialEq)]
pub struct DistillExample {
    /// How many ids, from the start, are the prompt: with an encoder, its source.
    pub prompt_len: usize,
    /// Prompt and completion.
    pub ids: Vec<u32>,
    /// How a completion in the place of this one is sampled.
    pub params: Arc<SamplingParams>,
}

fn sequence(example: &DistillExample) -> Sequence<'_> {
    let (prompt, completion) = example.ids.split_at(example.prompt_len);
    Sequence::completion(prompt, completion)
}

impl OfflineMethod for DistillConfig {
    type Example = DistillExample;
    type Objective = Distill;

    fn examples(&self, rows: &[Row], from: &Pretrained, options: TokeniseOptions) -> Result<Examples<DistillExample>> {
        let rows = data::answered(rows)?;
        let options = TokeniseOptions { completion_only_loss: None, assistant_only_loss: false, ..options };
        let made = data::sft_examples(&rows, &from.tokenizer, from.template.as_ref(), &options)?;
        let mut counts = made.counts;
        let room = ModelShape::of(&from.dir)?.position_budget().within(options.max_length.unwrap_or(usize::MAX));
        let params = SamplingParams {
            temperature: self.temperature as f32,
            max_new_tokens: self.max_new_tokens,
            stop_ids: from.stop_ids(),
            ..SamplingParams::default()
        };
        let params = Arc::new(params.forcing(from.dir.forced_ids()));
        let with_prompt = |SftExample { ids, loss_mask, .. }: SftExample| {
            let prompt_len = loss_mask.iter().position(|counts| *counts).unwrap_or(ids.len());
            DistillExample { prompt_len, ids, params: Arc::clone(&params) }
        };
        let fits = |example: &DistillExample| {
            !self.samples() || (example.prompt_len > 0 && room.holds(example.prompt_len, self.max_new_tokens))
        };
        let examples: Vec<DistillExample> = made.examples.into_iter().map(with_prompt).filter(fits).collect();
        counts.skipped += counts.kept - examples.len();
        counts.kept = examples.len();
        if examples.is_empty() {
            let message =
                format!("no row has a prompt that leaves room for `max_new_tokens` ({})", self.max_new_tokens);
            return Err(Error::input(message).with_hint("lower it, or raise `train.max_length`"));
        }
        Ok(Examples { examples, counts, skipped: made.skipped })
    }

    fn rows(example: &DistillExample) -> Rows<'_> {
        Rows::Alone(vec![sequence(example)])
    }

    fn objective(&self, reference: Option<CausalLm>) -> Distill {
        Distill { config: self.clone(), teacher: Arc::new(reference.expect("its cast has a teacher")) }
    }
}

/// The objective.
#[derive(Debug)]
pub struct Distill {
    config: DistillConfig,
    /// Carries no gradient.
    teacher: Arc<CausalLm>,
}

impl Distill {
    /// The examples with completions that `model` samples.
    fn sampled(
        &self,
        model: &CausalLm,
        examples: &[&DistillExample],
        at: StepId,
    ) -> Result<Vec<DistillExample>, String> {
        let prompts: Vec<&[u32]> = examples.iter().map(|example| &example.ids[..example.prompt_len]).collect();
        let Some(params) = examples.first().map(|example| &*example.params) else { return Ok(Vec::new()) };
        let found = at.ranks.deal("completions", (prompts.len(), 1), |own| {
            let stream = |i: usize| at.seed.stream(Purpose::Rollout, at.step, (own.start + i) as u64);
            let found = generate(model, &prompts[own.clone()], 1, params, &mut NoStopRule, &stream)?;
            Ok(found.into_iter().map(|completion| completion.ids).collect())
        });
        let found: Vec<Vec<u32>> = found.map_err(|error| error.to_string())?;
        let with = |(example, completion): (&&DistillExample, Vec<u32>)| DistillExample {
            ids: [&example.ids[..example.prompt_len], &completion].concat(),
            ..(*example).clone()
        };
        Ok(examples.iter().zip(found).map(with).collect())
    }
}

impl Objective for Distill {
    type Model = CausalLm;
    type Example = DistillExample;

    fn tokens(&self, example: &DistillExample) -> usize {
        example.ids.len()
    }

    fn targets(&self, example: &DistillExample) -> usize {
        sequence(example).targets()
    }

    fn regenerate(
        &self,
        model: &CausalLm,
        examples: &[&DistillExample],
        at: StepId,
        stats: &mut Stats,
    ) -> Result<Option<Vec<DistillExample>>, String> {
        let draw: f64 = at.seed.stream(Purpose::OnPolicy, at.step, 0).random();
        let is_on_policy = draw < self.config.lmbda;
        if self.config.samples() {
            stats.mean("on_policy", f64::from(u8::from(is_on_policy)), 1.0);
        }
        let sampled = match (is_on_policy, self.config.seq_kd) {
            (true, _) => self.sampled(&model.valid(), examples, at)?,
            (false, true) => self.sampled(&self.teacher, examples, at)?,
            (false, false) => return Ok(None),
        };
        let new = |example: &DistillExample| (example.ids.len() - example.prompt_len) as f32;
        stats.mean_of("completions/mean_length", &sampled.iter().map(new).collect::<Vec<f32>>());
        Ok(Some(sampled))
    }

    fn loss(&self, model: &CausalLm, examples: &[&DistillExample], pass: Pass, stats: &mut Stats) -> Option<Tensor<1>> {
        let rows = || Rows::Alone(examples.iter().map(|example| sequence(example)).collect());
        let batch = model.batch(&rows());
        if batch.targets().is_empty() {
            return None;
        }
        let (beta, teacher) = (self.config.beta, Arc::clone(&self.teacher));
        let theirs_md = teacher.before_targets(&teacher.batch(&rows()));
        let losses_m = model.over_logits(model.before_targets(&batch), move |student_rv, block| {
            let teacher_rv = teacher.logits_of(theirs_md.clone().narrow(0, block.start, block.len()));
            let v = student_rv.dims()[1].min(teacher_rv.dims()[1]);
            let teacher_rv = if student_rv.is_autodiff() { teacher_rv.autodiff() } else { teacher_rv };
            jensen_shannon(student_rv.narrow(1, 0, v), teacher_rv.narrow(1, 0, v), beta)
        });
        stats.mean_of("divergence", &read(&losses_m));
        Some(losses_m.sum() / pass.totals.targets.max(1) as f64)
    }

    fn describe(&self, example: &DistillExample) -> Value {
        json!({ "ids": example.ids, "prompt_len": example.prompt_len })
    }
}
