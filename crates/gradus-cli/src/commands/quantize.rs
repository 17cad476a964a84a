//! `gradus quantize`: stores linear layers in 8 or 4 bits, and measures the loss.

use std::path::PathBuf;

use gradus::generate::SamplingParams;
use gradus::inference::{QuantizeOptions, QuantizeReport, quantize};
use gradus::model::Quantization;
use gradus::rng::Seed;

use super::device::DeviceArgs;
use super::generate::max_rows;
use super::text::TextArgs;
use crate::output::Output;
use crate::table::{aligned, bytes, count, percent};
use crate::watch::{end_on_interrupts, fetch, fetch_data, short};

/// Arguments of `gradus quantize`.
#[derive(Debug, clap::Args)]
pub struct QuantizeArgs {
    /// Model, a language model or a reward model: a Hugging Face directory or a hub name
    #[arg(long, value_name = "DIR")]
    model: String,
    /// Number format of the linear layers: int8 or nf4
    #[arg(long, value_name = "FORMAT")]
    format: Quantization,
    /// Directory of the quantized model [default: a subdirectory of the model's, named after the format]
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Replace an existing model
    #[arg(long)]
    overwrite: bool,
    /// Data that both models are compared on: preferences for a reward model, prompts for other models [default: texts that the model
    /// samples without a prompt]
    #[arg(long, value_name = "PATH")]
    data: Option<String>,
    /// Use at most this many rows [default: all pairs, 64 prompts]
    #[arg(long, value_name = "N", value_parser = max_rows)]
    max_rows: Option<usize>,
    /// Maximum length of a row in tokens
    #[arg(long, value_name = "N", default_value_t = 1024)]
    max_length: usize,
    /// Number of tokens sampled after each prompt
    #[arg(long, value_name = "N", default_value_t = 64)]
    max_new_tokens: usize,
    /// Divide logits by this value while sampling; 0 takes the most likely token
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    temperature: f32,
    /// Seed of every random stream
    #[arg(long, value_name = "N", default_value_t = 42)]
    seed: u64,
    #[command(flatten)]
    text_files: TextArgs,
    #[command(flatten)]
    on: DeviceArgs,
}

/// Quantizes the model, and prints a table, or JSON with `--json`.
pub fn run(args: QuantizeArgs, out: &Output) -> anyhow::Result<()> {
    fetch(&args.model, out)?;
    args.data.iter().try_for_each(|data| fetch_data(data, out))?;
    end_on_interrupts(out);
    let params = SamplingParams {
        temperature: args.temperature,
        max_new_tokens: args.max_new_tokens,
        ..SamplingParams::default()
    };
    let options = QuantizeOptions {
        model: args.model,
        format: args.format,
        output: args.output,
        overwrite: args.overwrite,
        data: args.data,
        max_rows: args.max_rows,
        max_length: args.max_length,
        params,
        seed: Seed(args.seed),
        text: args.text_files.into(),
        device: args.on.device,
    };
    let mut spinner = None;
    let report = quantize(&options, &mut |what| {
        drop(spinner.take());
        spinner = Some(out.spinner(what));
    });
    drop(spinner);
    let report = report?;
    for remark in &report.remarks {
        out.warn(remark);
    }
    out.result(&report, || table(&report))
}

/// Formats a share of pairs. One pair of some hundred is visible in it.
fn of_pairs(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}

fn table(report: &QuantizeReport) -> String {
    let (before, after) = (&report.before, &report.after);
    let row = |name: &str, cells: [String; 3]| [vec![name.to_owned()], cells.into()].concat();
    let sizes = |name: &str, before: u64, after: u64| {
        row(name, [bytes(before), bytes(after), percent(after as f64 / before.max(1) as f64)])
    };
    let mut rows = vec![
        row("", ["before".into(), report.format.into(), "of original".into()]),
        sizes("linear layers in memory", before.linear_bytes, after.linear_bytes),
        sizes("all weights in memory", before.weight_bytes, after.weight_bytes),
        sizes("weights on disk", before.disk_bytes, after.disk_bytes),
    ];
    let mut rates = |name: &str, before: Option<f64>, after: Option<f64>| {
        if let (Some(before), Some(after)) = (before, after) {
            rows.push(row(name, [count(before), count(after), percent(after / before)]));
        }
    };
    rates("sampling, tokens/s", before.decode_tokens_per_s, after.decode_tokens_per_s);
    rates("scoring, tokens/s", before.score_tokens_per_s, after.score_tokens_per_s);
    let mut text = format!("{}\n\n{}", report.output.display(), aligned(&rows));
    let mut facts = Vec::new();
    let mut fact = |name: &str, value: String| facts.push(vec![name.to_owned(), value]);
    if let Some(found) = &report.policy {
        fact("completions, tokens", format!("{}, {}", found.completions, found.tokens));
        fact("KL(before ‖ after), nats per token", short(found.kl));
        fact("  maximum", short(found.largest_kl));
        fact("error of a logprob", short(found.logprob_error));
        fact("  maximum", short(found.largest_logprob_error));
        fact("same most likely token", percent(found.agreement));
    }
    if let Some(found) = &report.reward {
        fact("pairs", found.pairs.to_string());
        fact("accuracy before", of_pairs(found.accuracy_before));
        fact("accuracy after", of_pairs(found.accuracy_after));
        fact("same preference", of_pairs(found.agreement));
        fact("correlation of rewards", found.correlation.map_or("–".into(), |r| format!("{r:.6}")));
        fact("error of a reward", short(found.reward_error));
        fact("  maximum", short(found.largest_reward_error));
    }
    if !facts.is_empty() {
        text += &format!("\n{}", aligned(&facts));
    }
    text
}
