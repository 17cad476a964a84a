//! Metrics of a model on a data set: a language model's loss, a reward model's accuracy, or the rewards of samples.

use serde::Serialize;
use serde_json::{Map, Value};

use super::means::Means;
use super::metrics::{MetricValue, values};
use super::score::check_finite;
use super::{PASSES, check_room, naming_columns, open_files};
use crate::data::left_out;
use crate::data::{
    self, BadRows, Dataset, Examples, LoadOptions, Need, PreferenceExample, ReferenceRule, RowData, Side,
    TokenizeOptions, TooLong,
};
use crate::device::DeviceChoice;
use crate::error::{Error, Result};
use crate::evaluation::{Evaluation, Measuring, further_remarks};
use crate::generate::{BeamParams, SamplingParams};
use crate::host::read;
use crate::metric::{MetricConfig, NeededColumn, Resampling, Row, by_prompt};
use crate::metric_models::MetricModels;
use crate::model::open_model;
use crate::model::{CausalLm, Classifier, ModelShape, PositionBudget, Ranker, Rows, Task, WeightFormat};
use crate::objective::classify::{Classify, ClassifyConfig};
use crate::objective::dpo::{DpoConfig, preferred};
use crate::objective::reward_model::{BradleyTerry, RewardModelConfig};
use crate::objective::sft;
use crate::objective::{Objective, OfflineMethod};
use crate::pretrained::{IdReader, LabelPlan, Pretrained, TextFiles};
use crate::reports::{PairTexts, PairsReport};
use crate::reward::config::{Learned, RewardConfig};
use crate::reward::{self, Interrupt};
use crate::rng::Seed;
use crate::rollout::{LocalEngine, Policy, Prompt, Sampler};
use crate::run::Metrics;
use crate::task::{self, DataConfig, PostProcess};

/// Settings of an evaluation.
#[derive(Debug, Clone, PartialEq)]
pub struct EvalOptions {
    /// Directory or hub name of the model. A reward model is evaluated on preferences, a classifier on rows with
    /// labels, and a language model on texts or prompts.
    pub model: String,
    /// Adapter on the model: a directory in peft's format or a hub name.
    pub adapter: Option<String>,
    /// Rows to evaluate on: where they are and how they are read.
    pub data: DataConfig,
    /// Columns with other names, as (name in the file, name here).
    pub rename: Vec<(String, String)>,
    /// Reward for samples of the data's prompts. Without it and without metrics, the data's own texts are evaluated.
    pub reward: Option<RewardConfig>,
    /// Metrics for samples of the data's prompts. If there are none, those of the task.
    pub metrics: Vec<MetricConfig>,
    /// Post-processing of samples before metrics.
    pub post_process: Option<PostProcess>,
    /// Samples per prompt.
    pub group_size: usize,
    /// Beam search for samples.
    pub beams: Option<BeamParams>,
    /// Maximum number of tokens in a prompt, and the side at which prompts are cut.
    pub prompt_cut: Option<(usize, Side)>,
    /// Resampling for the intervals of metrics.
    pub resampling: Resampling,
    /// Model that the KL of samples is measured against.
    pub reference: Option<String>,
    /// Sampling settings.
    pub params: SamplingParams,
    /// Strings that end a completion.
    pub stop: Vec<String>,
    /// Seed of every random stream.
    pub seed: Seed,
    /// Handling of invalid rows.
    pub bad_rows: BadRows,
    /// Columns and labels for the evaluation of a classifier.
    pub classify: ClassifyConfig,
    /// Maximum number of rows.
    pub max_rows: Option<usize>,
    /// Maximum length of a row in tokens. Longer texts are cut, as in training.
    pub max_length: usize,
    /// Files that replace the tokenizer and the chat template.
    pub text: TextFiles,
    /// Whether to fill [`EvalResult::pairs`]. Only a reward model on pairs has it; other models are rejected.
    pub report: bool,
    /// Device to compute on.
    pub device: DeviceChoice,
}

/// Result of an evaluation.
#[derive(Debug, Clone, PartialEq)]
pub struct EvalResult {
    /// Number of rows.
    pub rows: usize,
    /// Remarks on rows that were changed or left out, one sentence each.
    pub remarks: Vec<String>,
    /// Values of the metrics.
    pub metrics: Metrics,
    /// Standard errors of the metrics that are means over rows.
    pub errors: Map<String, Value>,
    /// Metrics of samples, with intervals.
    pub values: Vec<MetricValue>,
    /// The samples, if there are any.
    pub samples: Vec<Prediction>,
    /// Scores of a reward model for every pair, if [`EvalOptions::report`] requests them.
    pub pairs: Option<PairsReport>,
}

/// A sample with its references.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Prediction {
    /// Id of the row in its data set.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub id: Value,
    /// The prompt.
    pub prompt: String,
    /// The model's text after post-processing.
    pub prediction: String,
    /// Texts that the metrics compare the sample with.
    pub references: Vec<String>,
    /// Metrics of this sample alone.
    pub metrics: Map<String, Value>,
}

impl EvalResult {
    fn new(rows: usize, remarks: Vec<String>, metrics: Metrics) -> Self {
        Self { rows, remarks, metrics, errors: Map::new(), values: Vec::new(), samples: Vec::new(), pairs: None }
    }

    /// Adds `means` to the metrics, with their standard errors.
    fn with(mut self, means: &Means) -> Self {
        for (name, value) in means.metrics().iter() {
            self.metrics.set(name, value);
        }
        self.errors.extend(means.errors());
        self
    }

    /// Renames the metrics.
    fn named(mut self, name: impl Fn(&str) -> String) -> Self {
        self.metrics = self.metrics.iter().map(|(known, value)| (name(known), value)).collect();
        self.errors = self.errors.into_iter().map(|(known, error)| (name(&known), error)).collect();
        self
    }

    /// Returns `{"rows": …, metric: …, "standard_errors": {metric: …}}`; with metrics of samples also
    /// `"intervals": {metric: [low, high]}`, and with remarks `"remarks": [text]`.
    pub fn to_json(&self) -> Map<String, Value> {
        let mut object = Map::from_iter([("rows".to_owned(), self.rows.into())]);
        object.extend(self.metrics.to_json());
        if !self.errors.is_empty() {
            object.insert("standard_errors".into(), self.errors.clone().into());
        }
        let interval =
            |of: &MetricValue| Some((of.key.clone(), Value::from(vec![of.interval?.low, of.interval?.high])));
        let intervals: Map<String, Value> = self.values.iter().filter_map(interval).collect();
        if !intervals.is_empty() {
            object.insert("intervals".into(), intervals.into());
        }
        if !self.remarks.is_empty() {
            object.insert("remarks".into(), self.remarks.clone().into());
        }
        object
    }
}

/// What an evaluation measures. It follows from the model, the rows and the settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvalKind {
    /// Samples of a language model.
    Samples,
    /// A language model, on the texts of the rows.
    Texts,
    /// A classifier, on rows with labels.
    Labels,
    /// A reward model, on pairs.
    Pairs,
}

/// An evaluation whose model is open.
pub struct ModelEvaluation<'a> {
    options: &'a EvalOptions,
    files: Pretrained,
    kind: EvalKind,
}

impl<'a> ModelEvaluation<'a> {
    /// Opens the model.
    ///
    /// # Errors
    /// If the model is invalid, or has no report although the options request one.
    pub fn open(options: &'a EvalOptions, interrupt: &Interrupt) -> Result<Self> {
        let files = open_files(&options.model, options.adapter.as_deref(), &options.text)?;
        // On pairs, a classifier with a single number is evaluated as a reward model.
        let ranks = files.dir.ranks() && are_pairs(options, interrupt);
        if options.report && !ranks && !files.dir.is_reward_model() {
            let message =
                format!("there is no report: `{}` is not a reward model, or the rows are not pairs", options.model);
            return Err(Error::input(message).with_hint("a report shows the pairs that a reward model orders wrongly"));
        }
        let samples = options.reward.is_some() || !options.metrics.is_empty() || options.data.task.is_some();
        let kind = match (ranks, samples) {
            (true, _) => EvalKind::Pairs,
            (false, _) if files.dir.is_classifier() => EvalKind::Labels,
            (false, _) if files.dir.is_reward_model() => EvalKind::Pairs,
            (false, true) => EvalKind::Samples,
            (false, false) => EvalKind::Texts,
        };
        Ok(Self { options, files, kind })
    }

    /// Returns what is measured.
    pub fn kind(&self) -> EvalKind {
        self.kind
    }

    /// Measures.
    ///
    /// # Errors
    /// If a row or the reward is invalid; [`Error::Interrupted`](crate::Error::Interrupted) if `interrupt` ends the wait
    /// for a reward program.
    pub fn run(&self, interrupt: &Interrupt) -> Result<EvalResult> {
        match self.kind {
            EvalKind::Samples => samples(self.options, &self.files, interrupt),
            EvalKind::Texts => texts(self.options, &self.files, interrupt),
            EvalKind::Labels => labels(self.options, &self.files, interrupt),
            EvalKind::Pairs => preferences(self.options, &self.files, interrupt),
        }
    }
}

/// Evaluates the model.
///
/// # Errors
/// As for [`ModelEvaluation::open`] and [`ModelEvaluation::run`].
pub fn evaluate(options: &EvalOptions, interrupt: &Interrupt) -> Result<EvalResult> {
    ModelEvaluation::open(options, interrupt)?.run(interrupt)
}

/// Returns the rows, and remarks on changed or omitted ones.
fn rows(options: &EvalOptions, need: Need, interrupt: &Interrupt) -> Result<(Vec<data::Row>, Vec<String>)> {
    let (max_rows, bad_rows, rename) = (options.max_rows, options.bad_rows, options.rename.clone());
    let load = LoadOptions { max_rows, bad_rows, rename, ..LoadOptions::needing(need) };
    let Dataset { rows, bad, mut remarks, .. } = task::load(&options.data, &load, interrupt)?;
    remarks.extend(left_out(&bad.into_skipped()));
    Ok((rows, remarks))
}

/// Returns all remarks on the rows.
fn remarks<E>(mut remarks: Vec<String>, made: &Examples<E>) -> Vec<String> {
    remarks.extend(made.counts.remarks());
    remarks.extend(left_out(&made.skipped));
    remarks
}

/// Rows over `max_length` are cut.
fn tokenize(options: &EvalOptions, files: &Pretrained) -> Result<TokenizeOptions> {
    let (max_length, bad_rows) = (Some(options.max_length), options.bad_rows);
    Ok(TokenizeOptions { max_length, bad_rows, too_long: TooLong::Truncate, ..super::tokenize(files)? })
}

/// Rejects rows that exceed the model's positions, as training does. Each length is that of a row's prompt and completion.
fn check_rooms(
    rows: &[data::Row],
    lengths: impl Iterator<Item = (usize, (usize, usize))>,
    room: PositionBudget,
) -> Result<()> {
    let way_out = |limit: usize| format!("`--max-length {limit}` cuts rows that are too long");
    let mut lengths = lengths;
    lengths.try_for_each(|(row, lengths)| check_room(&rows[row].location, lengths, room, &way_out))
}

/// Returns the lengths of both answers of pairs for [`check_rooms`].
fn lengths(pairs: &[PreferenceExample]) -> impl Iterator<Item = (usize, (usize, usize))> {
    pairs.iter().flat_map(|pair| {
        let of = |ids: &Vec<u32>| (pair.row, (pair.prompt_len, ids.len().saturating_sub(pair.prompt_len)));
        [of(&pair.chosen_ids), of(&pair.rejected_ids)]
    })
}

/// Evaluates a classifier on rows with labels.
fn labels(options: &EvalOptions, files: &Pretrained, interrupt: &Interrupt) -> Result<EvalResult> {
    let (rows, notes) = rows(options, Need::Columns, interrupt)?;
    let task = Task::of(&files.dir)?;
    let recorded = files.dir.training_info().columns;
    let classify = options.classify.clone().or_recorded(recorded.clone());
    let negative_label = classify.negative_label.clone();
    classify.check_labels(&task)?;
    let missing = classify.missing_ignored(&rows, &task)?;
    let weights_k = vec![1.0; task.labels.len()];
    files.labels.get_or_init(|| LabelPlan { task, weights_k, sentences: None });
    let made = classify.examples(&rows, files, tokenize(options, files)?);
    let made = made.map_err(|error| naming_columns(error, "`--text`, `--pair` and `--label-column`", &recorded))?;
    let model = Classifier::load(&files.dir, &options.device.device())?;
    let examples: Vec<_> = made.examples.iter().collect();
    let stats = Classify { negative_label, ..Classify::default() }.evaluate(&model, &examples, PASSES, interrupt)?;
    let metrics = stats.metrics("");
    check_finite("the loss", metrics.get("loss").unwrap_or_default())?;
    let remarks = remarks(notes, &made).into_iter().chain(missing).collect();
    Ok(EvalResult::new(made.examples.len(), remarks, metrics))
}

fn texts(options: &EvalOptions, files: &Pretrained, interrupt: &Interrupt) -> Result<EvalResult> {
    let (rows, notes) = rows(options, Need::Sft, interrupt)?;
    if options.reference.is_some() && !are_pairs(options, interrupt) {
        let message =
            "there is a reference model, but the rows are not pairs, and texts are not compared with a reference";
        return Err(
            Error::input(message).with_hint("leave out `--reference-model`, or sample completions: pass a reward")
        );
    }
    let made = data::sft_examples(&rows, &files.tokenizer, files.template.as_ref(), &tokenize(options, files)?)?;
    let texts = made.examples.iter().map(|text| (text.row, (text.source_len, text.ids.len() - text.source_len)));
    check_rooms(&rows, texts, ModelShape::of(&files.dir)?.text_budget())?;
    let model = CausalLm::load(&files.dir, &options.device.device())?;
    let mut means = Means::default();
    let lengths: Vec<usize> = made.examples.iter().map(|example| example.ids.len()).collect();
    for pass in PASSES.split(&lengths) {
        let batch = model.batch(&Rows::Alone(made.examples[pass].iter().map(sft::sequence).collect()));
        if batch.targets().is_empty() {
            continue;
        }
        let found = model.logprobs(&batch, 1.0);
        let parts = [found.entropies_m, found.correct_m, -found.logprobs_m].map(|values_m| read(&values_m));
        let mut begin = 0;
        for &count in batch.counts_b() {
            for (name, values) in ["entropy", "mean_token_accuracy", "loss"].into_iter().zip(&parts) {
                let what = format!("`{name}` of a token");
                values[begin..begin + count].iter().try_for_each(|&value| check_finite(&what, f64::from(value)))?;
                means.add_values(name, &values[begin..begin + count]);
            }
            begin += count;
        }
    }
    let mut measured = EvalResult::new(made.examples.len(), remarks(notes, &made), Metrics::default()).with(&means);
    if let Some(loss) = measured.metrics.get("loss") {
        let perplexity = loss.exp();
        if perplexity.is_finite() {
            measured.metrics.set("perplexity", perplexity);
            // The slope of the exponential times the error of its argument.
            if let Some(error) = measured.errors.get("loss").and_then(Value::as_f64) {
                measured.errors.insert("perplexity".into(), (error * perplexity).into());
            }
        } else {
            let remark =
                format!("there is no perplexity: e to the power of the loss, {loss}, is too large for a number");
            measured.remarks.push(remark);
        }
    } else {
        ["loss", "perplexity"].into_iter().for_each(|name| measured.metrics.set(name, f64::NAN));
        let most = options.max_length;
        let why = format!("within {most} tokens (`--max-length`), no row has a token to predict");
        measured.remarks.push(format!("`loss` and `perplexity` are undefined: {why}"));
    }
    if rows.iter().any(|row| matches!(row.data, RowData::Preference { .. })) {
        // Metrics of pairs name the answer that they belong to, as `rewards/chosen` does.
        measured = measured.named(|name| format!("{name}/chosen"));
    }
    match options.reference.is_some() {
        true => Ok(measured.with(&implicit(options, files, &model, interrupt)?)),
        false => Ok(measured),
    }
}

/// Returns the implicit rewards of pairs relative to a reference, as in DPO with its default `beta`.
fn implicit(options: &EvalOptions, files: &Pretrained, model: &CausalLm, interrupt: &Interrupt) -> Result<Means> {
    let dpo = DpoConfig::default();
    let rows = rows(options, Need::Preference, interrupt)?.0;
    let made = dpo.examples(&rows, files, tokenize(options, files)?)?;
    check_rooms(&rows, lengths(&made.examples), ModelShape::of(&files.dir)?.text_budget())?;
    let separate = model.position_budget().reads_separately();
    let longest = made.examples.iter().map(|pair| DpoConfig::rows(pair).positions(separate)).max().unwrap_or(0);
    let Some(reference) = reference(options, files, longest)? else { return Ok(Means::default()) };
    let lengths: Vec<usize> = made.examples.iter().map(|pair| DpoConfig::rows(pair).tokens()).collect();
    let mut means = Means::default();
    for pass in PASSES.split(&lengths) {
        let pairs: Vec<&PreferenceExample> = made.examples[pass].iter().collect();
        let [policy, reference] = [model, &reference].map(|model| dpo.score_with_reference(model, &pairs));
        for (own, others) in policy.as_chunks::<2>().0.iter().zip(reference.as_chunks::<2>().0) {
            let [chosen, rejected] = [0, 1].map(|side| dpo.beta * f64::from(own[side] - others[side]));
            [chosen, rejected].into_iter().try_for_each(|reward| check_finite("an implicit reward", reward))?;
            means.add_row("rewards/chosen", chosen, 1.0);
            means.add_row("rewards/rejected", rejected, 1.0);
            means.add_row("rewards/accuracies", preferred(chosen, rejected), 1.0);
            means.add_row("rewards/margins", chosen - rejected, 1.0);
        }
    }
    Ok(means)
}

/// Loads the model that the policy is compared with. It must use the same ids and have room for `longest` of them.
fn reference(options: &EvalOptions, files: &Pretrained, longest: usize) -> Result<Option<CausalLm>> {
    let Some(name) = &options.reference else { return Ok(None) };
    let dir = open_model(name)?;
    let shape = ModelShape::of(&dir)?;
    let reader = IdReader { role: "the reference", name, dir: &dir, shape: &shape };
    reader
        .check(files, &options.model, true)
        .map_err(|error| error.with_hint("a KL between models with different ids has no meaning"))?;
    reader.check_positions(longest).map_err(|error| error.with_hint("lower `--max-new-tokens` or `--max-length`"))?;
    Ok(Some(CausalLm::load(&dir, &options.device.device())?))
}

fn preferences(options: &EvalOptions, files: &Pretrained, interrupt: &Interrupt) -> Result<EvalResult> {
    let (rows, notes) = rows(options, Need::Preference, interrupt)?;
    // Long texts are cut on the same side as in training.
    let pair_cut = if files.dir.training_info().keeps_end == Some(true) { Side::Left } else { Side::Right };
    let tokenize = TokenizeOptions { pair_cut, ..tokenize(options, files)? };
    let made = data::reward_examples(&rows, &files.tokenizer, files.template.as_ref(), &tokenize)?;
    check_rooms(&rows, lengths(&made.examples), ModelShape::of(&files.dir)?.text_budget().read_whole())?;
    let model = Ranker::load(&files.dir, &options.device.device())?;
    let objective = BradleyTerry::new(&RewardModelConfig::default());
    let examples: Vec<&PreferenceExample> = made.examples.iter().collect();
    let (stats, scores) = objective.judged(&model, &examples, PASSES, interrupt)?;
    let mut means = Means::default();
    for score in &scores {
        let rewards = [score.chosen, score.rejected];
        rewards.into_iter().try_for_each(|reward| check_finite("a reward", f64::from(reward)))?;
        means.add_row("loss", score.loss(), 1.0);
        means.add_row("accuracy", f64::from(u8::from(score.is_right())), 1.0);
        means.add_row("margin", f64::from(score.chosen) - f64::from(score.rejected), 1.0);
        // The two texts of a pair are one observation.
        means.add_values("mean_reward", &rewards);
        means.add_row("longer_wins_accuracy", score.longer_wins(), 1.0);
    }
    let measured = EvalResult::new(examples.len(), remarks(notes, &made), stats.metrics(""));
    let pairs = options.report.then(|| PairsReport {
        model: options.model.clone(),
        data: options.data.to_string(),
        metrics: measured.metrics.clone(),
        pairs: scores.into_iter().zip(&examples).map(|(score, pair)| (texts_of(pair, &rows, files), score)).collect(),
    });
    Ok(EvalResult { errors: means.errors(), pairs, ..measured })
}

/// Returns the texts of a pair as in its row. For rows of token ids, they are decoded.
fn texts_of(pair: &PreferenceExample, rows: &[data::Row], files: &Pretrained) -> PairTexts {
    let row = &rows[pair.row];
    let parts = data::parts(row, &TokenizeOptions::default());
    let part = |name: &str| parts.iter().find(|(known, _)| *known == name).map(|(_, text)| text.clone());
    let shared = pair.chosen_ids.iter().zip(&pair.rejected_ids).take_while(|(chosen, rejected)| chosen == rejected);
    let (begin, shared) = pair.chosen_ids.split_at(shared.count());
    let decoded = |ids: &[u32]| files.tokenizer.decode(ids, true).unwrap_or_default();
    PairTexts {
        place: row.location.to_string(),
        prompt: part("prompt").unwrap_or_else(|| if parts.is_empty() { decoded(begin) } else { String::new() }),
        chosen: part("chosen").unwrap_or_else(|| decoded(shared)),
        rejected: part("rejected").unwrap_or_else(|| decoded(&pair.rejected_ids[begin.len()..])),
    }
}

/// Whether the rows are pairs.
fn are_pairs(options: &EvalOptions, interrupt: &Interrupt) -> bool {
    let rename = options.rename.clone();
    let pairs = LoadOptions { max_rows: Some(1), rename, ..LoadOptions::needing(Need::Preference) };
    task::load(&options.data, &pairs, interrupt).is_ok()
}

/// Returns the rows of each observation of a standard error, as for intervals of metrics: the rows of a prompt are one, because they are not
/// independent. If there is only one prompt, each row is one.
fn units(rows: &[Row]) -> Vec<Vec<usize>> {
    let prompts = by_prompt(rows);
    if prompts.len() > 1 { prompts } else { (0..rows.len()).map(|row| vec![row]).collect() }
}

fn samples(options: &EvalOptions, files: &Pretrained, interrupt: &Interrupt) -> Result<EvalResult> {
    let device = options.device.device();
    let models = MetricModels::new(device.clone(), PASSES);
    let load = |learned: Learned<'_>| {
        reward::load_learned(learned, &open_model(learned.name())?, &device, WeightFormat::F32, PASSES)
    };
    let reward = options.reward.as_ref().map(|reward| reward::build(reward, &load, &models, interrupt)).transpose()?;
    let metrics = match (&options.data.task, options.metrics.as_slice()) {
        (Some(task), []) if reward.is_none() => task.build()?.metrics(),
        (_, configured) => configured.to_vec(),
    };
    let measuring = Measuring::new(&metrics, options.post_process.as_ref(), &models, interrupt)?;
    let references = match options.reward.as_ref().is_some_and(RewardConfig::compares) {
        _ if metrics.iter().any(|metric| metric.needs() == Some(NeededColumn::References)) => ReferenceRule::Required,
        false if metrics.is_empty() => ReferenceRule::Any,
        _ => ReferenceRule::Texts,
    };
    let (rows, notes) = rows(options, Need::Prompt, interrupt)?;
    let model = CausalLm::load(&files.dir, &device)?;
    let room = model.position_budget().within(options.max_length).too_long(options.params.max_new_tokens);
    let tokenize = TokenizeOptions {
        max_length: Some(room),
        prompt_cut: options.prompt_cut,
        references,
        bad_rows: options.bad_rows,
        ..super::tokenize(files)?
    };
    let made = data::prompts(&rows, &files.tokenizer, files.template.as_ref(), &tokenize)?;
    let prompts: Vec<&Prompt> = made.examples.iter().collect();
    let mut on_values = measuring.remarks(&prompts);
    if let Some(reward) = &reward {
        on_values.extend(further_remarks(&on_values, &**reward, &prompts));
    }
    let longest = made.examples.iter().map(|prompt| prompt.ids.len()).max().unwrap_or(0);
    let reference = reference(options, files, model.position_budget().needed(longest, options.params.max_new_tokens))?;
    let params = options.params.clone().forcing(files.dir.forced_ids());
    let params = SamplingParams { stop_ids: files.stop_ids(), ..params };
    options.beams.map_or(Ok(()), |beams| beams.check(options.group_size, params.temperature))?;
    let sampler = Sampler {
        tokenizer: &files.tokenizer,
        group_size: options.group_size,
        params,
        beams: options.beams,
        stop: &options.stop,
        masking: None,
        episodes: None,
        progress: interrupt,
    };
    let evaluation = Evaluation {
        prompts: &made.examples,
        sampler: &sampler,
        reference: reference.as_ref(),
        seed: options.seed,
        passes: PASSES,
        measuring: &measuring,
    };
    let (mut source, policy) = (LocalEngine::default(), Policy { model, version: 0 });
    let found = match reward {
        Some(mut reward) => evaluation.run(&mut source, &policy, Some(&mut *reward))?,
        None => evaluation.run(&mut source, &policy, None)?,
    };
    let rows = measuring.rows(&found.rollouts);
    let units = units(&rows);
    let values = values(&found.measures, &rows, options.resampling);
    let of_row = |(i, row): (usize, Row)| Prediction {
        id: row.metadata.get("id").cloned().unwrap_or_default(),
        prompt: row.prompt,
        prediction: row.prediction,
        references: row.references,
        metrics: values.iter().filter_map(|of| Some((of.key.clone(), of.rows.as_ref()?[i].into()))).collect(),
    };
    let samples = rows.into_iter().enumerate().map(of_row).collect();
    let mut means = Means::default();
    for kl in found.kls.iter().flatten() {
        check_finite("the KL to the reference", *kl)?;
    }
    for unit in &units {
        let judged: Vec<f32> = unit.iter().filter_map(|&row| found.scores[row].total()).collect();
        if !judged.is_empty() {
            means.add_values("reward", &judged);
        }
        if let Some(kls) = &found.kls {
            means.add_row("kl", unit.iter().map(|&row| kls[row]).sum(), unit.len() as f64);
        }
        let length = |&row: &usize| found.rollouts.rollouts[row].completion_ids.len() as f32;
        means.add_values("length", &unit.iter().map(length).collect::<Vec<f32>>());
    }
    let remarks = remarks(notes, &made).into_iter().chain(on_values).collect();
    let measured = EvalResult::new(made.examples.len(), remarks, found.stats.metrics(""));
    Ok(EvalResult { errors: means.errors(), values, samples, ..measured })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rows_of_a_prompt_are_one_observation() {
        let rows = |prompts: [&str; 4]| prompts.map(|prompt| Row { prompt: prompt.into(), ..Row::default() });
        assert_eq!(units(&rows(["a", "b", "a", "b"])), [[0, 2], [1, 3]]);
        assert_eq!(units(&rows(["a"; 4])), [[0], [1], [2], [3]]);
        assert_eq!(units(&rows([""; 4])), [[0], [1], [2], [3]]);
    }
}
