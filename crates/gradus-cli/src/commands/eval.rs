//! `gradus eval`: metrics of a model on a data set, or of predictions in a data set.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args as _, Command, FromArgMatches as _};
use gradus::Error;
use gradus::config::reward_of_flags;
use gradus::data::{Side, TextForm};
use gradus::files::output::Outputs;
use gradus::inference::{
    EvalKind, EvalOptions, EvalResult, MetricOptions, MetricValue, ModelEvaluation, Prediction, measure,
};
use gradus::metric::{MetricConfig, Resampling, configure};
use gradus::objective::classify::ClassifyConfig;
use gradus::reward::config::RewardConfig;
use gradus::task::{PostProcess, TaskConfig};

use super::bad_rows::BadRowArgs;
use super::columns::ColumnArgs;
use super::device::DeviceArgs;
use super::generate::{BeamArgs, SamplingArgs, max_rows};
use super::text::TextArgs;
use crate::flags;
use crate::output::Output;
use crate::table::aligned;
use crate::watch::{fetch, fetch_data, fetch_rows, interrupt_of, short};

/// Arguments of `gradus eval`, without the reward flags.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("outputs").multiple(true)))]
struct EvalArgs {
    /// Model to measure. A reward model is measured on preferences, a classifier on rows with labels; other models on texts, or with a
    /// reward on samples
    #[arg(long, value_name = "DIR", required_unless_present = "metrics")]
    model: Option<String>,
    /// Adapter on the model, in peft's format
    #[arg(long, value_name = "DIR", requires = "model")]
    adapter: Option<String>,
    /// Rows: a file, a directory or a hub name
    #[arg(long, value_name = "PATH", required_unless_present = "task")]
    data: Option<String>,
    /// Task whose prompts the model completes: its name, or its name and keys as YAML. The task's metrics are measured
    #[arg(long, value_name = "TASK", requires = "model")]
    task: Option<String>,
    /// Split: train, validation or test. Default for a task: validation
    #[arg(long, value_name = "SPLIT", requires = "model")]
    split: Option<String>,
    /// Metrics that compare completions with their references. Without a model, metrics of the rows themselves: rows with `prediction` (or
    /// `completion`) and `references` (or `reference`); docs/metrics.md lists them
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',')]
    metrics: Vec<String>,
    /// Transform completions before metrics see them: three_sentence_summary
    #[arg(long, value_name = "WORD", requires = "model", value_parser = post_process)]
    post_process: Option<PostProcess>,
    /// Write every completion with its references and metrics as JSON lines
    #[arg(long, value_name = "FILE", requires = "model", group = "outputs")]
    predictions: Option<PathBuf>,
    /// For a reward model on pairs: write a page FILE.html about its errors (the wrongly ordered pairs, accuracy by length and by
    /// confidence, calibration), and the same data as FILE.json
    #[arg(long, value_name = "FILE.html", requires = "model", group = "outputs")]
    report: Option<PathBuf>,
    /// Replace the files of `--predictions` and `--report`, whatever they contain. Predictions that `eval` wrote are always replaced
    #[arg(long, requires = "outputs")]
    overwrite: bool,
    /// Samples per prompt. Metrics of toxicity and of distinct n-grams evaluate them together
    #[arg(long, value_name = "N", default_value = "1", requires = "model")]
    samples: NonZeroUsize,
    /// Maximum length of a prompt in tokens; longer ones are truncated
    #[arg(long, value_name = "N", requires = "model")]
    max_prompt_length: Option<usize>,
    /// Side at which prompts are truncated: left or right
    #[arg(long, value_name = "SIDE", default_value = "left", requires = "max_prompt_length")]
    prompt_truncation: Side,
    #[command(flatten)]
    beams: BeamArgs,
    /// Option of all metrics that have it, or of one as METRIC.KEY=VALUE; may be given several times
    #[arg(long, value_name = "KEY=VALUE", requires = "metrics")]
    metric_option: Vec<String>,
    /// Resamples of prompts, each with all its rows, for the 95 % intervals of metrics; 0 for none
    #[arg(long, value_name = "N", default_value_t = 1000)]
    bootstrap: usize,
    /// Reference model: for the KL of samples, or for the implicit rewards of pairs (as in DPO)
    #[arg(long, value_name = "DIR", requires = "model")]
    reference_model: Option<String>,
    #[command(flatten)]
    bad_rows: BadRowArgs,
    /// For a classifier: the column with the labels [default: `label`; for tokens the first existing one of `labels`, `tags`, `ner_tags`]
    #[arg(long, value_name = "NAME", requires = "model")]
    label_column: Option<String>,
    /// For a classifier of tokens: the label of words that are not measured, such as `Ignore`
    #[arg(long, value_name = "LABEL", requires = "model")]
    ignored_label: Option<String>,
    /// For a classifier: the label for "nothing found", such as `O`. `detection/…` then measures all other labels against it
    #[arg(long, value_name = "LABEL", requires = "model")]
    negative_label: Option<String>,
    /// Text that a classifier reads, with columns in braces [default: `text`, or `{prompt}{completion}`]
    #[arg(long, value_name = "PATTERN", requires = "model", value_parser = pattern)]
    text: Option<String>,
    /// Second text that a classifier reads after the first
    #[arg(long, value_name = "PATTERN", requires = "model", value_parser = pattern)]
    pair: Option<String>,
    #[command(flatten)]
    columns: ColumnArgs,
    /// Use at most this many rows
    #[arg(long, value_name = "N", value_parser = max_rows)]
    max_rows: Option<usize>,
    /// Maximum length of a row in tokens; longer texts are cut
    #[arg(long, value_name = "N", default_value_t = 1024, requires = "model")]
    max_length: usize,
    #[command(flatten)]
    text_files: TextArgs,
    #[command(flatten)]
    on: DeviceArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
}

/// Adds the arguments.
pub fn arguments(command: Command) -> Command {
    flags::add_rewards(EvalArgs::augment_args(command))
}

/// Measures the metrics, and prints a table, or JSON with `--json`.
pub fn run(matches: &ArgMatches, out: &Output) -> anyhow::Result<()> {
    let args = EvalArgs::from_arg_matches(matches)?;
    let reward = reward_of_flags(&flags::given_rewards(matches))?;
    let samples = reward.is_some() || args.task.is_some() || !args.metrics.is_empty();
    if args.model.is_none() || !samples {
        refuse_sampling(matches)?;
    }
    // The metrics of a task are measured if nothing else is requested.
    if args.metrics.is_empty() && (args.task.is_none() || reward.is_some()) {
        refuse_intervals(matches)?;
    }
    let Some(model) = args.model.clone() else {
        args.text_files.refuse("needs `--model`: without a model, completions are measured as they are")?;
        anyhow::ensure!(
            reward.is_none(),
            "a reward scores samples of a model: pass `--model`, or measure the rows with `--metrics`"
        );
        return metrics(&args, out);
    };
    // Rows for the evaluation of a task.
    let split = args.split.as_deref().or(args.task.as_ref().map(|_| "validation"));
    let data = flags::data(args.data.as_deref(), args.task.as_deref(), split)?;
    if args.task.is_some() {
        args.columns.refuse("cannot be used with `--task`: a task has its own column names")?;
    }
    let options = EvalOptions {
        rename: args.columns.renames()?,
        metrics: configure(&args.metrics, &args.metric_option)?,
        post_process: args.post_process,
        group_size: args.samples.get(),
        beams: args.beams.params()?,
        prompt_cut: args.max_prompt_length.map(|most| (most, args.prompt_truncation)),
        resampling: Resampling { samples: args.bootstrap, seed: args.sampling.seed().0 },
        params: args.sampling.params()?,
        seed: args.sampling.seed(),
        stop: args.sampling.stop,
        model,
        adapter: args.adapter,
        data,
        reward,
        reference: args.reference_model,
        bad_rows: args.bad_rows.into(),
        classify: ClassifyConfig {
            label_column: args.label_column,
            ignored_label: args.ignored_label,
            negative_label: args.negative_label,
            text: args.text,
            pair: args.pair,
            ..ClassifyConfig::default()
        },
        max_rows: args.max_rows,
        max_length: args.max_length,
        text: args.text_files.into(),
        report: args.report.is_some(),
        device: args.on.device,
    };
    let mut outputs = Outputs::new(args.overwrite).reading_all(args.data.as_deref());
    let predictions = args.predictions.as_deref().map(|path| outputs.file_unless(path, holds_predictions));
    let predictions = predictions.transpose()?;
    let report = args.report.as_deref().map(|path| outputs.report(path)).transpose()?;
    fetch(&options.model, out)?;
    fetch_rows(&options.data, out)?;
    let spinner = out.spinner("measuring");
    let asks = options.reward.as_ref().is_some_and(RewardConfig::starts_program)
        || options.metrics.iter().any(MetricConfig::starts_program)
        || options.data.task.as_ref().is_some_and(TaskConfig::starts_program);
    let interrupt = interrupt_of(asks, out);
    let evaluation = ModelEvaluation::open(&options, &interrupt)?;
    refuse_unread(matches, evaluation.kind())?;
    let found = evaluation.run(&interrupt)?;
    drop(spinner);
    if let Some(file) = &predictions {
        let line = |sample: &Prediction| serde_json::to_string(sample).map(|line| line + "\n");
        let lines: String = found.samples.iter().map(line).collect::<Result<_, _>>()?;
        file.write(|file| file.write_all(lines.as_bytes()))?;
    }
    if let (Some(files), Some(pairs)) = (&report, &found.pairs) {
        files.write(&pairs.page(), &pairs.to_json())?;
        out.note(format_args!("the report is in {}", files.page().display()));
    }
    for remark in &found.remarks {
        out.warn(remark);
    }
    warn_undefined(&found.values, out);
    out.result(&found.to_json(), || table(&found))
}

/// Arguments that only evaluations of samples read, in addition to those of [`SamplingArgs`] and [`BeamArgs`].
const OF_SAMPLES: [&str; 5] = ["post_process", "predictions", "samples", "max_prompt_length", "prompt_truncation"];

/// Further arguments that only evaluations of language models read. Without a model, metrics measure the rows.
const OF_LANGUAGE: [&str; 3] = ["metrics", "metric_option", "reference_model"];

/// Arguments that only evaluations of classifiers read.
const OF_CLASSIFIERS: [&str; 5] = ["label_column", "ignored_label", "negative_label", "text", "pair"];

/// Returns the first given flag among the arguments that `is_of` selects by their ids.
fn given(matches: &ArgMatches, is_of: impl Fn(&str) -> bool) -> Option<String> {
    let is_given = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
    let all = arguments(Command::new("eval"));
    let found = all.get_arguments().find(|of| is_of(of.get_id().as_str()) && is_given(of.get_id().as_str()));
    found.and_then(Arg::get_long).map(str::to_owned)
}

/// Returns whether the argument `id` sets how completions are sampled, or what is done with them. The seed also draws the resamples of rows.
fn is_of_samples(id: &str) -> bool {
    let settings = SamplingArgs::augment_args(BeamArgs::augment_args(Command::new("eval")));
    let sets = settings.get_arguments().any(|setting| setting.get_id() == id && id != "seed");
    sets || OF_SAMPLES.contains(&id)
}

/// Refuses settings of samples where no samples are requested.
fn refuse_sampling(matches: &ArgMatches) -> gradus::Result<()> {
    match given(matches, is_of_samples) {
        Some(flag) => {
            Err(Error::input(format!("`--{flag}` is given, but the rows are measured and nothing is sampled"))
                .with_hint("leave it out, or sample completions of a model: pass a reward, `--metrics` or `--task`"))
        }
        None => Ok(()),
    }
}

/// Refuses settings of intervals where no metrics are measured.
fn refuse_intervals(matches: &ArgMatches) -> gradus::Result<()> {
    match given(matches, |id| id == "bootstrap") {
        Some(flag) => Err(Error::input(format!("`--{flag}` is given, but no metrics are measured"))
            .with_hint("leave it out; only the intervals of metrics are resampled")),
        None => Ok(()),
    }
}

/// Refuses settings that an evaluation of this kind does not read.
fn refuse_unread(matches: &ArgMatches, kind: EvalKind) -> gradus::Result<()> {
    let (language, classifier) = ("a language model", "a classifier");
    let found = match kind {
        EvalKind::Samples | EvalKind::Texts => language,
        EvalKind::Labels => classifier,
        EvalKind::Pairs => "a reward model",
    };
    let rewards = flags::add_rewards(Command::new("eval"));
    let is_reward = |id: &str| rewards.get_arguments().any(|reward| reward.get_id() == id);
    let of_language = given(matches, |id| is_of_samples(id) || OF_LANGUAGE.contains(&id) || is_reward(id));
    let of_classifier = given(matches, |id| OF_CLASSIFIERS.contains(&id));
    let given = [(of_language, language), (of_classifier, classifier)];
    let unread = given.into_iter().find_map(|(flag, model)| Some((flag?, model)).filter(|_| model != found));
    let Some((flag, model)) = unread else { return Ok(()) };
    let message = format!("`--{flag}` is given, but only the evaluation of {model} reads it, and the model is {found}");
    Err(Error::input(message).with_hint(format!("leave it out, or name {model} as `--model`")))
}

/// Checks a pattern of columns.
fn pattern(text: &str) -> Result<String, String> {
    TextForm::parse(Some(text), None, None).map(|_| text.to_owned()).map_err(|(_, message)| message)
}

/// Returns whether `eval` wrote this file: its first line has all keys of a prediction.
fn holds_predictions(path: &Path) -> bool {
    let first = gradus::data::lines(path).ok().and_then(|mut lines| lines.next()?.ok());
    let row: Option<serde_json::Value> = first.and_then(|(_, line)| serde_json::from_str(&line).ok());
    row.is_some_and(|row| ["prompt", "prediction", "references", "metrics"].iter().all(|key| row.get(key).is_some()))
}

/// Measures the predictions in the rows.
fn metrics(args: &EvalArgs, out: &Output) -> anyhow::Result<()> {
    let options = MetricOptions {
        data: args.data.clone().unwrap_or_default(),
        metrics: configure(&args.metrics, &args.metric_option)?,
        rename: args.columns.renames()?,
        bad_rows: args.bad_rows.into(),
        max_rows: args.max_rows,
        resampling: Resampling { samples: args.bootstrap, seed: args.sampling.seed().0 },
        device: args.on.device.clone(),
    };
    fetch_data(&options.data, out)?;
    let spinner = out.spinner("measuring");
    let asks = options.metrics.iter().any(MetricConfig::starts_program);
    let found = measure(&options, &interrupt_of(asks, out))?;
    drop(spinner);
    found.remarks.iter().for_each(|remark| out.warn(remark));
    warn_undefined(&found.values, out);
    out.result(&found.to_json(), || values_table(found.rows, &found.values))
}

/// Warns about metrics without a value, which are `null` in JSON and a dash in the table.
fn warn_undefined(values: &[MetricValue], out: &Output) {
    for of in values.iter().filter(|of| !of.value.is_finite()) {
        let reason = of.reason.as_deref().unwrap_or("the rows contain nothing to measure");
        out.warn(format_args!("`{}` is {}: {reason}", of.key, of.value));
    }
}

/// Formats one line per value: its key, the value and its 95 % interval.
fn values_table(count: usize, values: &[MetricValue]) -> String {
    let heads = vec![format!("{count} rows"), "value".into(), "95 % interval".into()];
    let rows: Vec<Vec<String>> = std::iter::once(heads).chain(values.iter().map(value_row)).collect();
    aligned(&rows)
}

fn value_row(of: &MetricValue) -> Vec<String> {
    let number = |value: f64| if value.is_nan() { "–".to_owned() } else { format!("{value:.4}") };
    let interval = of.interval.map_or_else(String::new, |of| format!("{} – {}", number(of.low), number(of.high)));
    vec![of.key.clone(), number(of.value), interval]
}

fn post_process(word: &str) -> Result<PostProcess, String> {
    serde_json::from_value(word.into()).map_err(|_| "expected `three_sentence_summary`".to_owned())
}

/// Formats one line per value. Metrics with an interval follow the others, in the same columns.
fn table(found: &EvalResult) -> String {
    let mut rows = vec![vec!["rows".to_owned(), found.rows.to_string()]];
    for (name, value) in found.metrics.iter().filter(|(name, _)| !found.values.iter().any(|of| of.key == *name)) {
        let error = found.errors.get(name).and_then(serde_json::Value::as_f64);
        let error = error.map(|error| format!("± {}", short(error)));
        rows.push([Some(name.to_owned()), Some(short(value)), error].into_iter().flatten().collect());
    }
    if !found.values.is_empty() {
        rows.push(vec![String::new(), "value".into(), "95 % interval".into()]);
        rows.extend(found.values.iter().map(value_row));
    }
    aligned(&rows)
}
