//! On-policy distillation: trains a student to match a teacher's next-token distributions on its own completions, the
//! teacher's, or those of the rows.
//!
//! Generalized knowledge distillation, Agarwal et al. 2024, <https://arxiv.org/abs/2306.13649>. Follows TRL 1.16's
//! experimental trainer, with two differences: one random draw per step decides whether the student samples, however
//! the step is split into micro-batches; and at most one block of logits is in memory at a time.
//!
//! A server may host the teacher. It then returns the most probable ids at each position, and the divergence is
//! computed over these, as in TRL's server distillation.

use std::sync::Arc;
use std::time::Duration;

use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};
use rand::Rng;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{LossContext, Objective, OfflineMethod, StepId};
use crate::batches::MicroBatch;
use crate::data::{self, Examples, Need, Row, SftExample, TokenizeOptions, TooLong};
use crate::error::{Error, Result};
use crate::generate::{NoStopRule, SamplingParams, generate};
use crate::loss::distill::{Support, jensen_shannon, jensen_shannon_among};
use crate::loss::reduce::sum;
use crate::method::{Cast, Defaults, Head, Method, Problems, Shared};
use crate::model::{CausalLm, ModelShape, Reference, Rows, Sequence};
use crate::pretrained::Pretrained;
use crate::progress::Progress;
use crate::readings::Readings;
use crate::rng::Purpose;
use crate::rollout::server::{Endpoint, Passage, Scorer, ServerKind, TokenScore};
use crate::settings::{TrainConfig, server_key};
use crate::stats::Stats;

/// Keys of `method.distill`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DistillConfig {
    /// The teacher: a directory, a run or a hub name, with the student's tokenizer. `train.frozen_weights` sets how its
    /// weights are stored. Required, unless `teacher_server` is given.
    pub teacher_model: Option<String>,
    /// Server that hosts the teacher, in place of `teacher_model` (docs/servers.md).
    pub teacher_server: Option<TeacherServerConfig>,
    /// Position of the divergence between the forward KL (0) and the reverse KL (1). Default 0.5 (TRL).
    pub beta: f64,
    /// Share λ of steps that train on completions sampled by the student itself. Default 0.5 (TRL).
    pub lmbda: f64,
    /// Let the teacher sample the completions of the other steps, instead of using those of the rows. Default false
    /// (TRL).
    pub seq_kd: bool,
    /// Sampling temperature; the divergence is computed at temperature 1. Default 0.9 (TRL).
    pub temperature: f64,
    /// Maximum length of a sampled completion in tokens. Default 128 (TRL).
    #[schemars(range(min = 1, max = 100_000_000))]
    pub max_new_tokens: usize,
}

impl Default for DistillConfig {
    fn default() -> Self {
        Self {
            teacher_model: None,
            teacher_server: None,
            beta: 0.5,
            lmbda: 0.5,
            seq_kd: false,
            temperature: 0.9,
            max_new_tokens: 128,
        }
    }
}

/// Settings of a teacher on a server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TeacherServerConfig {
    /// Address of the server, such as `http://localhost:8000`.
    pub server: String,
    /// Protocol of the server: `gradus`, `vllm` or `sglang`. Default `vllm`.
    pub kind: ServerKind,
    /// Name of the teacher on the server. Default: the first model that the server lists.
    pub model: Option<String>,
    /// Environment variable that holds the API key of the server. Default: the server needs no key.
    pub key_variable: Option<String>,
    /// Number of most probable ids that the teacher returns per position. With `beta` above 0, the actual id is
    /// compared as well. Default 20, vLLM's limit unless it is started with `--max-logprobs`. TRL: 1.
    #[schemars(range(max = 1_000_000))]
    pub top_k: usize,
    /// Also compare the total probability of all other ids. Default true (TRL).
    pub add_tail: bool,
    /// Number of concurrent requests, each for one row. Default 16.
    #[schemars(range(min = 1, max = 1_024))]
    pub connections: usize,
    /// Time limit of one request in seconds. Default 1800.
    pub timeout_s: f64,
    /// Seconds that the run waits for a server that does not answer, before it writes a checkpoint and ends. Default
    /// 600.
    pub wait_s: f64,
}

impl Default for TeacherServerConfig {
    fn default() -> Self {
        Self {
            server: String::new(),
            kind: ServerKind::default(),
            model: None,
            key_variable: None,
            top_k: 20,
            add_tail: true,
            connections: 16,
            timeout_s: 1800.0,
            wait_s: 600.0,
        }
    }
}

/// Configuration key of a teacher on a server.
const TEACHER_SERVER: &str = "method.distill.teacher_server";

impl TeacherServerConfig {
    fn endpoint(&self) -> Result<Endpoint> {
        Ok(Endpoint {
            url: self.server.clone(),
            kind: self.kind,
            model: self.model.clone(),
            key: server_key(self.key_variable.as_deref(), &self.server, TEACHER_SERVER)?,
            connections: self.connections,
            timeout: Duration::from_secs_f64(self.timeout_s),
            wait: Duration::from_secs_f64(self.wait_s),
            keys: TEACHER_SERVER,
        })
    }
}

impl Method for DistillConfig {
    fn name(&self) -> &'static str {
        "distill"
    }

    fn about(&self) -> &'static str {
        "Train a student to imitate a teacher on its completions"
    }

    fn defaults(&self) -> Defaults {
        Defaults { learning_rate: 2e-5, too_long: TooLong::Truncate, best_metric: "eval_loss" }
    }

    fn need(&self) -> Need {
        Need::Sft
    }

    fn cast(&self, shared: &Shared<'_>) -> Cast {
        let alone = Cast::alone(shared, Head::Language);
        match &self.teacher_server {
            Some(_) => alone,
            None => alone.with_teacher(shared, self.teacher_model.as_deref().unwrap_or_default()),
        }
    }

    fn sampled_tokens(&self) -> Option<usize> {
        self.samples().then_some(self.max_new_tokens)
    }

    fn compares_logits(&self) -> bool {
        true
    }

    fn rules(&self, problems: &mut Problems<'_>, train: &TrainConfig) {
        let is_named = self.teacher_model.as_ref().is_some_and(|name| !name.trim().is_empty());
        let is_known = is_named || self.teacher_server.is_some();
        problems.require(is_known, &["method.distill.teacher_model", "method"], || {
            let message =
                "`distill` needs a `method.distill.teacher_model`: the student imitates its distributions".into();
            (message, Some("name a larger model with the student's tokenizer; as a flag, `--teacher-model DIR`".into()))
        });
        if let Some(server) = &self.teacher_server {
            self.server_rules(problems, server);
            problems.require(!is_named, &[TEACHER_SERVER, "method.distill.teacher_model"], || {
                let message =
                    "`method.distill.teacher_model` and `teacher_server` are both given, but there can be only one \
                     teacher";
                (message.into(), Some("leave one of them out".into()))
            });
        }
        problems.within("method.distill.beta", self.beta, 0.0..=1.0);
        problems.within("method.distill.lmbda", self.lmbda, 0.0..=1.0);
        problems.above_zero("method.distill.temperature", self.temperature);
        problems.at_least("method.distill.max_new_tokens", self.max_new_tokens, 1);
        let (new, longest) = (self.max_new_tokens, train.max_length);
        let keys = ["method.distill.max_new_tokens", "train.max_length"];
        problems.require(!self.samples() || new < longest, &keys, || {
            let message = format!(
                "`method.distill.max_new_tokens` is {new}, but `train.max_length` is {longest}, prompt and completion together: no prompt fits"
            );
            (message, Some(format!("raise `train.max_length` above {new}")))
        });
        problems.require(
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
    fn server_rules(&self, problems: &mut Problems<'_>, server: &TeacherServerConfig) {
        let TeacherServerConfig { connections, timeout_s, wait_s, top_k, .. } = *server;
        problems.server(TEACHER_SERVER, &server.server, connections, (timeout_s, wait_s));
        let key = format!("{TEACHER_SERVER}.top_k");
        problems.require(top_k > 0 || self.beta > 0.0, &[&key, "method.distill.beta"], || {
            let message = format!("`{key}` is 0, but with `beta: 0` only the teacher's most likely ids are compared");
            (message, Some("set it to at least 1".into()))
        });
        problems.require(top_k + usize::from(self.beta > 0.0) > 1 || server.add_tail, &[&key], || {
            let message =
                format!("one id is compared, and `{TEACHER_SERVER}.add_tail` is false: its share is always 1");
            (message, Some(format!("raise `{key}`, or leave `add_tail` out")))
        });
        problems.require(!self.seq_kd, &[TEACHER_SERVER, "method.distill.seq_kd"], || {
            let message = "`method.distill.seq_kd` is given, but a teacher at a server does not sample".into();
            (message, Some("let the server complete the prompts first, and train on these rows".into()))
        });
    }

    /// Whether some steps sample completions.
    fn samples(&self) -> bool {
        self.lmbda > 0.0 || self.seq_kd
    }
}

/// A prompt with a completion.
#[derive(Debug, Clone, PartialEq)]
pub struct DistillExample {
    /// Number of ids at the start that are the prompt (with an encoder: its source).
    pub prompt_len: usize,
    /// Prompt and completion.
    pub ids: Vec<u32>,
    /// Sampling parameters of a completion that replaces this one.
    pub params: Arc<SamplingParams>,
    /// A server teacher's scores of each predicted id, once they were requested.
    pub scores: Option<Arc<Vec<TokenScore>>>,
}

fn sequence(example: &DistillExample) -> Sequence<'_> {
    let (prompt, completion) = example.ids.split_at(example.prompt_len);
    Sequence::completion(prompt, completion)
}

impl OfflineMethod for DistillConfig {
    type Example = DistillExample;
    type Objective = Distill;

    fn examples(&self, rows: &[Row], from: &Pretrained, options: TokenizeOptions) -> Result<Examples<DistillExample>> {
        if self.samples() {
            from.dir.check_sampling_start()?;
        }
        let rows = data::with_prompt_split(rows)?;
        let options = TokenizeOptions { completion_only_loss: None, assistant_only_loss: false, ..options };
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
            DistillExample { prompt_len, ids, params: Arc::clone(&params), scores: None }
        };
        let fits = |example: &DistillExample| {
            !self.samples() || (example.prompt_len > 0 && room.holds(example.prompt_len, self.max_new_tokens))
        };
        let all: Vec<DistillExample> = made.examples.into_iter().map(with_prompt).collect();
        if self.samples() && all.iter().all(|example| example.prompt_len == 0) {
            let hint = "give rows with `prompt` and `completion`, or with `input_ids` and a `completion_mask`. Without sampling \
                        (`--lmbda 0`, no `--seq-kd`), rows need no prompt";
            return Err(
                Error::input("no row has a prompt, but `distill` samples completions of prompts").with_hint(hint)
            );
        }
        let examples: Vec<DistillExample> = all.into_iter().filter(fits).collect();
        counts.skipped += counts.kept - examples.len();
        if self.samples() {
            // The limit is that of the prompt, not that of the row.
            counts.limit = None;
        }
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

    fn objective(&self, reference: Option<Reference>) -> Distill {
        let teacher = Teacher::Local(Arc::new(reference.expect("its cast has a teacher").model()));
        Distill { config: self.clone(), teacher }
    }

    fn at_server(&self, from: &Pretrained, progress: &dyn Progress) -> Result<Option<Distill>> {
        let Some(server) = &self.teacher_server else { return Ok(None) };
        if ModelShape::of(&from.dir)?.has_encoder() {
            return Err(Error::input("a teacher at a server scores texts, but the student has an encoder")
                .with_hint("name the teacher as `teacher_model`"));
        }
        let scorer = Scorer::connect(&server.endpoint()?, server.top_k, progress)?;
        scorer.check_tokenizer(&from.tokenizer, progress)?;
        Ok(Some(Distill { config: self.clone(), teacher: Teacher::AtServer(scorer, server.clone()) }))
    }
}

/// The distillation objective.
#[derive(Debug)]
pub struct Distill {
    config: DistillConfig,
    teacher: Teacher,
}

/// The model whose distributions the student imitates.
#[derive(Debug)]
enum Teacher {
    /// A model in this process. It carries no gradient.
    Local(Arc<CausalLm>),
    /// A model on a server, which returns its most probable ids.
    AtServer(Scorer, TeacherServerConfig),
}

/// The compared ids at each position with the teacher's log-probabilities, in rows of equal length.
#[derive(Debug, Clone, PartialEq)]
pub struct TeacherTopK {
    /// Length of a row.
    k: usize,
    /// Ids and log-probabilities; `None` pads shorter rows.
    rows: Vec<Option<(u32, f32)>>,
}

impl TeacherTopK {
    /// Collects the teacher's most probable ids and, if `beta` is above 0, the actual id of each position.
    pub fn of<'s>(scores: impl IntoIterator<Item = &'s TokenScore>, beta: f64) -> Self {
        let of_place = |score: &TokenScore| {
            let own = score.logprob.map(|logprob| (score.id, logprob)).filter(|_| beta > 0.0);
            let own = own.filter(|(id, _)| score.likeliest.iter().all(|(other, _)| other != id));
            // Impossible ids count toward the rest.
            let likeliest = score.likeliest.iter().copied().filter(|(_, logprob)| *logprob > IMPOSSIBLE);
            likeliest.chain(own).collect::<Vec<_>>()
        };
        let places: Vec<Vec<(u32, f32)>> = scores.into_iter().map(of_place).collect();
        let k = places.iter().map(Vec::len).max().unwrap_or(0).max(1);
        let padded = |place: Vec<(u32, f32)>| place.into_iter().map(Some).chain(std::iter::repeat(None)).take(k);
        Self { k, rows: places.into_iter().flat_map(padded).collect() }
    }

    /// Returns the rows of `block` as tensors.
    pub fn support(&self, block: std::ops::Range<usize>, device: &Device) -> Support {
        let shape = [block.len(), self.k];
        let rows = &self.rows[block.start * self.k..block.end * self.k];
        let ids: Vec<i64> = rows.iter().map(|place| place.map_or(0, |(id, _)| i64::from(id))).collect();
        let teacher: Vec<f32> = rows.iter().map(|place| place.map_or(0.0, |(_, logprob)| logprob)).collect();
        let absent: Vec<bool> = rows.iter().map(Option::is_none).collect();
        Support {
            ids_rk: Tensor::from_data(TensorData::new(ids, shape), device),
            teacher_rk: Tensor::from_data(TensorData::new(teacher, shape), device),
            absent_rk: Tensor::from_data(TensorData::new(absent, shape), device),
        }
    }
}

/// Log-probabilities below this belong to impossible ids.
const IMPOSSIBLE: f32 = -9000.0;

impl Distill {
    /// Returns the examples with completions sampled from `model`.
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
            scores: None,
            ..(*example).clone()
        };
        Ok(examples.iter().zip(found).map(with).collect())
    }
}

/// Placeholder scores that take as much memory as real ones.
fn placeholder_scores(targets: usize, top_k: usize, vocabulary: usize) -> Vec<TokenScore> {
    let logprob = -(vocabulary as f32).ln();
    let likeliest: Vec<(u32, f32)> = (0..top_k.min(vocabulary) as u32).map(|id| (id, logprob)).collect();
    vec![TokenScore { id: 0, logprob: Some(logprob), likeliest }; targets]
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
            (false, true) => match &self.teacher {
                Teacher::Local(teacher) => self.sampled(teacher, examples, at)?,
                Teacher::AtServer(..) => return Err("a teacher at a server does not sample".into()),
            },
            (false, false) => return Ok(None),
        };
        let new = |example: &DistillExample| (example.ids.len() - example.prompt_len) as f32;
        stats.mean_of("completions/mean_length", &sampled.iter().map(new).collect::<Vec<f32>>());
        Ok(Some(sampled))
    }

    /// Requests the scores of a teacher on a server.
    fn with_batch_context(
        &self,
        model: &CausalLm,
        examples: &[&DistillExample],
        passes: MicroBatch,
        progress: &dyn Progress,
    ) -> Result<Option<Vec<DistillExample>>> {
        let Teacher::AtServer(scorer, _) = &self.teacher else { return Ok(None) };
        let passage =
            |example: &&DistillExample| Passage { ids: example.ids.clone(), first: example.prompt_len.max(1) };
        let scores = passes.ranks().deal("the teacher's scores", (examples.len(), 1), |own| {
            scorer.score(examples[own].iter().map(passage).collect(), model.vocab_size(), progress)
        })?;
        let unknown = scores.iter().flatten().find(|score| score.logprob.is_none() && self.config.beta > 0.0);
        if let Some(TokenScore { id, .. }) = unknown {
            let message =
                format!("the teacher returned no log-probability for the id {id}, which `beta` above 0 needs");
            return Err(Error::input(message).with_hint("with `beta: 0`, only its most likely ids are compared"));
        }
        let with = |(example, scores): (&&DistillExample, Vec<TokenScore>)| DistillExample {
            scores: Some(Arc::new(scores)),
            ..(*example).clone()
        };
        Ok(Some(examples.iter().zip(scores).map(with).collect()))
    }

    fn loss(
        &self,
        model: &CausalLm,
        examples: &[&DistillExample],
        context: LossContext,
        measured: &mut Readings<Stats>,
    ) -> Option<Tensor<1>> {
        let rows = || Rows::Alone(examples.iter().map(|example| sequence(example)).collect());
        let batch = model.batch(&rows());
        if batch.targets().is_empty() {
            return None;
        }
        let beta = self.config.beta;
        let before_md = model.before_targets(&batch);
        let losses_m = match &self.teacher {
            Teacher::Local(teacher) => {
                let teacher = Arc::clone(teacher);
                let theirs_md = teacher.before_targets(&teacher.batch(&rows()));
                model.over_logits(before_md, move |student_rv, block| {
                    let teacher_rv = teacher.logits_of(theirs_md.clone().narrow(0, block.start, block.len()));
                    let v = student_rv.dims()[1].min(teacher_rv.dims()[1]);
                    let teacher_rv = if student_rv.is_autodiff() { teacher_rv.autodiff() } else { teacher_rv };
                    jensen_shannon(student_rv.narrow(1, 0, v), teacher_rv.narrow(1, 0, v), beta)
                })
            }
            Teacher::AtServer(_, server) => {
                let targets = batch.targets().len();
                let compared = match examples.iter().map(|example| example.scores.as_ref()).collect::<Option<Vec<_>>>()
                {
                    Some(scores) => TeacherTopK::of(scores.into_iter().flat_map(|scores| scores.iter()), beta),
                    // The trial of the longest pass runs before the teacher has scored anything.
                    None => TeacherTopK::of(&placeholder_scores(targets, server.top_k, model.vocab_size()), beta),
                };
                assert_eq!(compared.rows.len(), targets * compared.k, "a score for each id that is predicted");
                let (compared, add_tail) = (Arc::new(compared), server.add_tail);
                model.over_logits(before_md, move |student_rv, block| {
                    let support = compared.support(block, &student_rv.device());
                    jensen_shannon_among(student_rv, support, beta, add_tail)
                })
            }
        };
        measured.mean_of("divergence", &losses_m);
        Some(sum(losses_m) / context.totals.targets.max(1) as f64)
    }

    fn describe(&self, example: &DistillExample) -> Value {
        json!({ "ids": example.ids, "prompt_len": example.prompt_len })
    }
}
