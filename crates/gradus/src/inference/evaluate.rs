//! Metrics of a model on a data set: a language model's loss, a reward model's accuracy, or what samples are worth.

use std::path::PathBuf;

use serde::Serialize;
use serde_json::{Map, Value};

use super::metrics::{MetricValue, values};
use super::{PASSES, open_files};
use crate::data::{self, LoadOptions, Need, Side, TokeniseOptions, TooLong};
use crate::device::DeviceChoice;
use crate::error::Result;
use crate::evaluation::{Evaluation, Measuring};
use crate::generate::{BeamParams, SamplingParams};
use crate::metric::{MetricConfig, Resampling, Row};
use crate::metric_models::MetricModels;
use crate::model::open_model;
use crate::model::{CausalLm, Classifier, ModelShape, Ranker, Task, WeightFormat};
use crate::objective::classify::{Classify, ClassifyConfig};
use crate::objective::reward_model::{BradleyTerry, RewardModelConfig};
use crate::objective::sft::{Sft, SftConfig};
use crate::objective::{Objective, OfflineMethod};
use crate::pretrained::{LabelPlan, Pretrained, Reader};
use crate::reward::config::{Learned, RewardConfig};
use crate::reward::{self, Interrupt};
use crate::rng::Seed;
use crate::rollout::Sampler;
use crate::run::Metrics;
use crate::settings::Settings;
use crate::settings::TrainConfig;
use crate::stats::NEW_TOKENS;
use crate::task::{self, DataConfig, PostProcess};

/// What to measure.
#[derive(Debug, Clone, PartialEq)]
pub struct EvalOptions {
    /// The model: a directory or a hub name. A reward model is measured on preferences, a classifier on rows with labels,
    /// another on texts or prompts.
    pub model: String,
    /// An adapter on it: a directory in peft's format or a hub name.
    pub adapter: Option<String>,
    /// The rows.
    pub data: DataConfig,
    /// Samples of the data's prompts are scored with this; without it and without metrics, the data's own texts are measured.
    pub reward: Option<RewardConfig>,
    /// Samples of the data's prompts are measured with these; without any, those of a task with its own.
    pub metrics: Vec<MetricConfig>,
    /// What is done to samples before metrics see them.
    pub post_process: Option<PostProcess>,
    /// Samples are searched for with beams.
    pub beams: Option<BeamParams>,
    /// Prompts keep so many tokens at most, and are cut at this side.
    pub prompt_cut: Option<(usize, Side)>,
    /// How intervals of metrics are drawn.
    pub resampling: Resampling,
    /// A model that the KL of samples is measured against.
    pub reference: Option<String>,
    /// How samples are drawn.
    pub params: SamplingParams,
    /// Strings that end a completion.
    pub stop: Vec<String>,
    /// The seed of every random stream.
    pub seed: Seed,
    /// Use at most this many rows.
    pub max_rows: Option<usize>,
    /// Longest row in tokens.
    pub max_length: usize,
    /// A chat template file that replaces the model's own.
    pub chat_template: Option<PathBuf>,
    /// Where to compute.
    pub device: DeviceChoice,
}

/// What was measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// Rows measured.
    pub rows: usize,
    /// What happened to rows on the way, one sentence each.
    pub remarks: Vec<String>,
    /// The numbers.
    pub metrics: Metrics,
    /// What metrics say of samples, with intervals.
    pub values: Vec<MetricValue>,
    /// The samples, where there are any.
    pub samples: Vec<Prediction>,
}

/// A sample beside what it was to be.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Prediction {
    /// What the sample is called in its data set.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub id: Value,
    /// The prompt.
    pub prompt: String,
    /// What the model wrote, after what was done to it.
    pub prediction: String,
    /// The references.
    pub references: Vec<String>,
    /// What metrics say of it alone.
    pub metrics: Map<String, Value>,
}

impl Measured {
    fn new(rows: usize, remarks: Vec<String>, metrics: Metrics) -> Self {
        Self { rows, remarks, metrics, values: Vec::new(), samples: Vec::new() }
    }

    /// `{"rows": …, metric: …}`; with metrics of samples also `"intervals": {metric: [low, high]}`.
    pub fn to_json(&self) -> Map<String, Value> {
        let mut object = Map::from_iter([("rows".to_owned(), self.rows.into())]);
        object.extend(self.metrics.to_json());
        let interval =
            |of: &MetricValue| Some((of.key.clone(), Value::from(vec![of.interval?.low, of.interval?.high])));
        let intervals: Map<String, Value> = self.values.iter().filter_map(interval).collect();
        if !intervals.is_empty() {
            object.insert("intervals".into(), intervals.into());
        }
        object
    }
}

/// Measures the model.
///
/// # Errors
/// What is wrong with the model, the rows or the reward; [`Error::Interrupted`](crate::Error::Interrupted) where `interrupt`
/// ended the wait for a reward program.
pub fn evaluate(options: &EvalOptions, interrupt: &Interrupt) -> Result<Measured> {
    let files = open_files(&options.model, options.adapter.as_deref(), options.chat_template.as_deref())?;
    // One that gives a number is a reward model to rows with pairs.
    let pairs = LoadOptions { max_rows: Some(1), ..LoadOptions::needing(Need::Preference) };
    if files.dir.ranks() && task::load(&options.data, &pairs).is_ok() {
        return preferences(options, &files);
    }
    if files.dir.is_classifier() {
        return labels(options, &files);
    }
    let samples_wanted = options.reward.is_some() || !options.metrics.is_empty() || options.data.task.is_some();
    match (samples_wanted, files.dir.is_reward_model()) {
        (true, false) => samples(options, &files, interrupt),
        (_, true) => preferences(options, &files),
        (false, false) => texts(options, &files),
    }
}

fn rows(options: &EvalOptions, need: Need) -> Result<Vec<data::Row>> {
    let load = LoadOptions { max_rows: options.max_rows, ..LoadOptions::needing(need) };
    Ok(task::load(&options.data, &load)?.rows)
}

/// Longer rows are cut, also those that are longer than the model has positions.
fn tokenise(options: &EvalOptions, files: &Pretrained) -> Result<TokeniseOptions> {
    let tokenise = super::tokenise(files)?;
    let most = ModelShape::of(&files.dir)?.max_positions.unwrap_or(usize::MAX);
    Ok(TokeniseOptions { max_length: Some(options.max_length.min(most)), too_long: TooLong::Truncate, ..tokenise })
}

/// What a classifier makes of rows with labels.
fn labels(options: &EvalOptions, files: &Pretrained) -> Result<Measured> {
    let rows = rows(options, Need::Columns)?;
    let task = Task::of(&files.dir)?;
    let weights_k = vec![1.0; task.labels.len()];
    files.labels.get_or_init(|| LabelPlan { task, weights_k, sentences: None });
    let made = ClassifyConfig::default().examples(&rows, files, tokenise(options, files)?)?;
    let model = Classifier::load(&files.dir, &options.device.device())?;
    let stats = Classify::default().evaluate(&model, &made.examples.iter().collect::<Vec<_>>(), PASSES)?;
    let metrics = stats.without(NEW_TOKENS).metrics("");
    Ok(Measured::new(made.examples.len(), made.counts.remarks(), metrics))
}

fn texts(options: &EvalOptions, files: &Pretrained) -> Result<Measured> {
    let rows = rows(options, Need::Sft)?;
    let made = data::sft_examples(&rows, &files.tokenizer, files.template.as_ref(), &tokenise(options, files)?)?;
    let model = CausalLm::load(&files.dir, &options.device.device())?;
    let stats = Sft::new(&SftConfig::default()).evaluate(&model, &made.examples.iter().collect::<Vec<_>>(), PASSES)?;
    let mut metrics = stats.without(NEW_TOKENS).metrics("");
    if let Some(loss) = metrics.get("loss") {
        metrics.set("perplexity", loss.exp());
    }
    Ok(Measured::new(made.examples.len(), made.counts.remarks(), metrics))
}

fn preferences(options: &EvalOptions, files: &Pretrained) -> Result<Measured> {
    let rows = rows(options, Need::Preference)?;
    let made = data::reward_examples(&rows, &files.tokenizer, files.template.as_ref(), &tokenise(options, files)?)?;
    let model = Ranker::load(&files.dir, &options.device.device())?;
    let objective = BradleyTerry::new(&RewardModelConfig::default());
    let stats = objective.evaluate(&model, &made.examples.iter().collect::<Vec<_>>(), PASSES)?;
    Ok(Measured::new(made.examples.len(), made.counts.remarks(), stats.metrics("")))
}

fn samples(options: &EvalOptions, files: &Pretrained, interrupt: &Interrupt) -> Result<Measured> {
    let device = options.device.device();
    let models = MetricModels::new(device.clone(), PASSES);
    let load = |learned: Learned<'_>| {
        reward::load_learned(learned, &open_model(learned.name())?, &device, WeightFormat::F32, PASSES)
    };
    let reward = options.reward.as_ref().map(|reward| reward::build(reward, &load, &models, interrupt)).transpose()?;
    let metrics = match (&options.data.task, options.metrics.as_slice()) {
        (Some(task), []) if reward.is_none() => task.task().metrics(),
        (_, asked) => asked.to_vec(),
    };
    let measuring = Measuring::new(&metrics, options.post_process, &models)?;
    let rows = rows(options, Need::Prompt)?;
    let model = CausalLm::load(&files.dir, &device)?;
    let room = model.room().within(options.max_length).too_long(options.params.max_new_tokens);
    let tokenise =
        TokeniseOptions { max_length: Some(room), prompt_cut: options.prompt_cut, ..super::tokenise(files)? };
    let made = data::prompts(&rows, &files.tokenizer, files.template.as_ref(), &tokenise)?;
    let longest =
        made.examples.iter().map(|prompt| prompt.ids.len()).max().unwrap_or(0) + options.params.max_new_tokens;
    let reference = match &options.reference {
        Some(name) => {
            let dir = open_model(name)?;
            let shape = ModelShape::of(&dir)?;
            let reader = Reader { part: "the reference", name, dir: &dir, shape: &shape };
            reader
                .check(files, &options.model, true)
                .map_err(|error| error.with_hint("a KL between models that read ids differently means nothing"))?;
            reader
                .check_positions(longest)
                .map_err(|error| error.with_hint("lower `--max-new-tokens` or `--max-length`"))?;
            Some(CausalLm::load(&dir, &device)?)
        }
        None => None,
    };
    let params = options.params.clone().forcing(files.dir.forced_ids());
    let params = SamplingParams { stop_ids: files.stop_ids(), ..params };
    let sampler = Sampler {
        tokenizer: &files.tokenizer,
        group_size: 1,
        params,
        beams: options.beams,
        stop: &options.stop,
        masking: None,
    };
    options.beams.map_or(Ok(()), |beams| beams.check(1))?;
    let config = TrainConfig { seed: options.seed.0, ..TrainConfig::default() };
    let settings = Settings::new(&config, 1, 0.0, "eval_reward");
    let evaluation = Evaluation {
        prompts: &made.examples,
        sampler: &sampler,
        reference: reference.as_ref(),
        settings: &settings,
        measuring: &measuring,
    };
    let found = match reward {
        Some(mut reward) => evaluation.run(&model, Some(&mut *reward))?,
        None => evaluation.run(&model, None)?,
    };
    let values = values(&found.measures, options.resampling);
    let rows = measuring.rows(&found.rollouts).into_iter().enumerate();
    let of_row = |(i, row): (usize, Row)| Prediction {
        id: row.metadata.get("id").cloned().unwrap_or_default(),
        prompt: row.prompt,
        prediction: row.prediction,
        references: row.references,
        metrics: values.iter().filter_map(|of| Some((of.key.clone(), of.rows.as_ref()?[i].into()))).collect(),
    };
    let samples = rows.map(of_row).collect();
    let metrics = found.stats.metrics("");
    Ok(Measured { rows: made.examples.len(), remarks: made.counts.remarks(), metrics, values, samples })
}
