//! `gradus score`: log-probabilities, rewards or labels of given rows as JSON lines, in the order of the rows.

use gradus::Error;
use gradus::data::{RowLocation, Side};
use gradus::inference::{ClassesOptions, ScoreOptions, classes, logprobs, rewards};
use gradus::model::Precision;
use gradus::process::Interrupt;
use serde::Serialize;

use super::bad_rows::BadRowArgs;
use super::columns::ColumnArgs;
use super::device::DeviceArgs;
use super::generate::max_rows;
use super::text::TextArgs;
use crate::output::Output;
use crate::watch::{fetch, fetch_data, interrupt};

/// Arguments of `gradus score`.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("scorer").required(true))]
pub struct ScoreArgs {
    /// Language model: print `logprobs`, `sum` and `mean` of each row's completion
    #[arg(long, value_name = "DIR", group = "scorer")]
    model: Option<String>,
    /// Reward model: print the `reward` of each row
    #[arg(long, value_name = "DIR", group = "scorer")]
    reward_model: Option<String>,
    /// Classifier: print `logits`, `label` and `probabilities` of each row; a token head prints lists with one entry per token
    #[arg(long, value_name = "DIR", group = "scorer")]
    classifier: Option<String>,
    /// Text that a classifier reads, with columns in braces [default: `text`, or `{prompt}{completion}`]
    #[arg(long, value_name = "PATTERN", requires = "classifier")]
    text: Option<String>,
    /// Second text that a classifier reads after the first: `--text '{premise}' --pair '{hypothesis}'`
    #[arg(long, value_name = "PATTERN", requires = "classifier")]
    pair: Option<String>,
    /// Truncate rows that exceed a classifier's positions, on the left or right [default: such rows are errors]
    #[arg(long, value_name = "SIDE", requires = "classifier")]
    truncate: Option<Side>,
    /// Number format of a classifier's matrix products: f32 or bf16
    #[arg(long, value_name = "TYPE", default_value = "f32", requires = "classifier")]
    compute: Precision,
    /// Adapter on the model, in peft's format
    #[arg(long, value_name = "DIR", conflicts_with = "classifier")]
    adapter: Option<String>,
    /// Rows of any form that `gradus sft` or `gradus dpo` reads: completions, conversations, texts, pairs or token ids; for a classifier also
    /// `tokens` or any columns
    #[arg(long, value_name = "PATH")]
    data: String,
    /// End each row with the end-of-text token [default: as the reward model was trained, if its directory records it; otherwise nothing is
    /// added]
    #[arg(long, conflicts_with = "classifier")]
    add_eos: bool,
    /// Add no end-of-text token, however the reward model was trained
    #[arg(long, conflicts_with_all = ["classifier", "add_eos"])]
    no_add_eos: bool,
    #[command(flatten)]
    columns: ColumnArgs,
    /// Use at most this many rows
    #[arg(long, value_name = "N", value_parser = max_rows)]
    max_rows: Option<usize>,
    #[command(flatten)]
    bad_rows: BadRowArgs,
    #[command(flatten)]
    text_files: TextArgs,
    #[command(flatten)]
    on: DeviceArgs,
}

/// A line of the output. If rows may be missing, it names its row.
#[derive(Serialize)]
struct ScoreLine<T> {
    #[serde(skip_serializing_if = "Option::is_none")]
    place: Option<String>,
    #[serde(flatten)]
    of_row: T,
}

/// Prints the score of a row, unless a host program has interrupted the command.
fn print<T: Serialize>(out: &Output, interrupt: &Interrupt, place: Option<String>, of_row: T) -> anyhow::Result<()> {
    if interrupt.is_raised() {
        return Err(Error::Interrupted.into());
    }
    out.json_line(&ScoreLine { place, of_row })
}

/// Scores the rows, and prints each one as soon as it has a score.
pub fn run(args: ScoreArgs, out: &Output) -> anyhow::Result<()> {
    let remarks = score(args, out)?;
    remarks.iter().for_each(|remark| out.warn(remark));
    Ok(())
}

/// Prints the scores. Returns remarks on rows that are left out.
fn score(args: ScoreArgs, out: &Output) -> anyhow::Result<Vec<String>> {
    let (skips, interrupt) = (args.bad_rows.skips(), interrupt());
    let place = |location: &RowLocation| skips.then(|| location.to_string());
    if let Some(model) = args.classifier {
        args.text_files.refuse("cannot be used with `--classifier`: a classifier uses its own tokenizer")?;
        let options = ClassesOptions {
            model,
            data: args.data,
            text: args.text,
            pair: args.pair,
            truncate: args.truncate,
            rename: args.columns.renames()?,
            max_rows: args.max_rows,
            bad_rows: args.bad_rows.into(),
            compute: args.compute,
            device: args.on.device,
        };
        fetch(&options.model, out)?;
        fetch_data(&options.data, out)?;
        let mut bar = out.counter("rows");
        let mut progress = |done, total| bar.set(done, total);
        return classes(&options, &mut progress, &mut |at, of_row| print(out, &interrupt, place(at), of_row));
    }
    let is_reward = args.reward_model.is_some();
    let options = ScoreOptions {
        model: args.reward_model.or(args.model).expect("clap requires one of the three"),
        adapter: args.adapter,
        data: args.data,
        add_eos: (args.add_eos || args.no_add_eos).then_some(args.add_eos),
        rename: args.columns.renames()?,
        max_rows: args.max_rows,
        bad_rows: args.bad_rows.into(),
        text: args.text_files.into(),
        device: args.on.device,
    };
    fetch(&options.model, out)?;
    fetch_data(&options.data, out)?;
    let mut bar = out.counter("rows");
    let mut progress = |done: usize, total: usize| bar.set(done, total);
    match is_reward {
        true => rewards(&options, &mut progress, &mut |at, of_row| print(out, &interrupt, place(at), of_row)),
        false => logprobs(&options, &mut progress, &mut |at, of_row| print(out, &interrupt, place(at), of_row)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_program_stops_the_scores() {
        let (out, interrupt) = (Output::captured(), Interrupt::default());
        print(&out, &interrupt, None, [("sum", -1.5)].into_iter().collect::<std::collections::BTreeMap<_, _>>())
            .expect("nothing has stopped it");
        interrupt.raise();
        let stopped = print(&out, &interrupt, None, std::collections::BTreeMap::<String, f32>::new());
        let error = stopped.expect_err("it was stopped");
        assert!(matches!(error.downcast_ref(), Some(Error::Interrupted)), "{error:?}");
        assert_eq!(out.take().output, "{\"sum\":-1.5}\n");
    }
}
