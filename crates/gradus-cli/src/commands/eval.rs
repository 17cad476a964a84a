//! `gradus eval`: metrics of a model on a data set, or of the predictions that a data set holds.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{ArgMatches, Args as _, Command, FromArgMatches as _};
use gradus::config::{Flag, Request, RunConfig};
use gradus::device::DeviceChoice;
use gradus::inference::{EvalOptions, Measured, MetricOptions, MetricReport, evaluate, measure};
use gradus::metric::{Resampling, configure};
use gradus::reward::config::RewardConfig;

use super::generate::SamplingArgs;
use crate::flags;
use crate::output::Output;
use crate::table::aligned;
use crate::watch::{fetch, fetch_data, short};

/// Arguments of `gradus eval`, beside the flags of rewards.
#[derive(Debug, clap::Args)]
struct EvalArgs {
    /// The model. A reward model is measured on preferences, a classifier on rows with labels; another on texts, or with a
    /// reward on samples
    #[arg(long, value_name = "DIR", required_unless_present = "metrics")]
    model: Option<String>,
    /// An adapter on the model, in peft's format
    #[arg(long, value_name = "DIR", requires = "model")]
    adapter: Option<String>,
    /// The rows: a file, a directory or a hub name
    #[arg(long, value_name = "PATH")]
    data: String,
    /// Metrics of the rows themselves, without a model: rows with `prediction` (or `completion`) and `references` (or
    /// `reference`); docs/metrics.md lists them
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',', conflicts_with = "model")]
    metrics: Vec<String>,
    /// An option of the metrics that have it, or as METRIC.KEY=VALUE of one; may be given several times
    #[arg(long, value_name = "KEY=VALUE", requires = "metrics")]
    metric_option: Vec<String>,
    /// Resamples of rows for the 95 % intervals of metrics; 0 for none
    #[arg(long, value_name = "N", default_value_t = 1000, requires = "metrics")]
    bootstrap: usize,
    /// A model that the KL of samples is measured against
    #[arg(long, value_name = "DIR", requires = "model")]
    reference_model: Option<String>,
    /// Use at most this many rows
    #[arg(long, value_name = "N")]
    max_rows: Option<usize>,
    /// Longest row in tokens
    #[arg(long, value_name = "N", default_value_t = 1024)]
    max_length: usize,
    /// A chat template file that replaces the model's own
    #[arg(long, value_name = "FILE", requires = "model")]
    chat_template: Option<PathBuf>,
    /// Where to compute: cpu; gpu or gpu:1 where built in (`gradus doctor` lists them)
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: DeviceChoice,
    #[command(flatten)]
    sampling: SamplingArgs,
}

/// Adds the arguments.
pub fn arguments(command: Command) -> Command {
    flags::add_rewards(EvalArgs::augment_args(command))
}

/// Measures, and prints a table, or JSON with `--json`.
pub fn run(matches: &ArgMatches, out: &Output) -> anyhow::Result<()> {
    let args = EvalArgs::from_arg_matches(matches)?;
    let reward = reward(&flags::given_rewards(matches))?;
    let Some(model) = args.model.clone() else {
        anyhow::ensure!(reward.is_none(), "a reward scores samples of a model: `--metrics` measures rows without one");
        return metrics(&args, out);
    };
    let options = EvalOptions {
        params: args.sampling.params(),
        seed: args.sampling.seed(),
        stop: args.sampling.stop,
        model,
        adapter: args.adapter,
        data: args.data,
        reward,
        reference: args.reference_model,
        max_rows: args.max_rows,
        max_length: args.max_length,
        chat_template: args.chat_template,
        device: args.device,
    };
    fetch(&options.model, out)?;
    fetch_data(&options.data, out)?;
    let spinner = out.spinner("measuring");
    let found = evaluate(&options)?;
    drop(spinner);
    for remark in &found.remarks {
        out.warn(remark);
    }
    out.result(&found.to_json(), || table(&found))
}

/// Measures the predictions of the rows.
fn metrics(args: &EvalArgs, out: &Output) -> anyhow::Result<()> {
    let options = MetricOptions {
        data: args.data.clone(),
        metrics: configure(&args.metrics, &args.metric_option)?,
        max_rows: args.max_rows,
        resampling: Resampling { samples: args.bootstrap, seed: args.sampling.seed() },
    };
    fetch_data(&options.data, out)?;
    let spinner = out.spinner("measuring");
    let found = measure(&options)?;
    drop(spinner);
    out.result(&found.to_json(), || metric_table(&found))
}

/// A line a value: its key, the value and its 95 % interval.
fn metric_table(found: &MetricReport) -> String {
    let number = |value: f64| if value.is_nan() { "–".to_owned() } else { format!("{value:.4}") };
    let mut rows = vec![vec![format!("{} rows", found.rows), "value".into(), "95 % interval".into()]];
    for of in &found.values {
        let interval = of.interval.map_or_else(String::new, |of| format!("{} – {}", number(of.low), number(of.high)));
        rows.push(vec![of.key.clone(), number(of.value), interval]);
    }
    aligned(&rows)
}

/// The reward that the flags name, read and checked as that of a run is.
fn reward(given: &[Flag]) -> anyhow::Result<Option<RewardConfig>> {
    if given.is_empty() {
        return Ok(None);
    }
    let base = "{model: '-', data: '-', method: {ppo: {}}}";
    Ok(RunConfig::read(base, &Request { flags: given, ..Request::default() })?.config.reward)
}

fn table(found: &Measured) -> String {
    let mut text = format!("{:<24} {}\n", "rows", found.rows);
    for (name, value) in found.metrics.iter() {
        let _ = writeln!(text, "{name:<24} {}", short(value));
    }
    text
}
