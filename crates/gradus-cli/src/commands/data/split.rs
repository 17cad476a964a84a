//! `gradus data split`: rows apart into those that are trained on and those that are held out.

use std::path::PathBuf;

use gradus::data::{BadRows, HeldOut, Need, SplitBy, split, write_rows};
use gradus::rng::{Purpose, Seed};
use rand::seq::SliceRandom;
use serde_json::json;

use super::{RowArgs, rows, usage};
use crate::output::Output;

/// Arguments of `gradus data split`.
#[derive(Debug, clap::Args)]
pub struct SplitArgs {
    #[command(flatten)]
    rows: RowArgs,
    /// Where the rows to train on go; the name says the format: .jsonl, .json, .csv, .tsv, .parquet or, for texts, .txt, with .gz behind it or not
    #[arg(long, value_name = "FILE")]
    train: PathBuf,
    /// Where the held-out rows go
    #[arg(long, value_name = "FILE")]
    test: PathBuf,
    /// How many are held out: below 1 a share of all rows, else their number
    #[arg(long, value_name = "X", default_value = "0.1", value_parser = size)]
    test_size: HeldOut,
    /// Rows with one value of this column stay together
    #[arg(long, value_name = "COLUMN", conflicts_with = "stratify")]
    by: Option<String>,
    /// Both files get the same share of each value of this column
    #[arg(long, value_name = "COLUMN")]
    stratify: Option<String>,
    /// Decides which rows fall where
    #[arg(long, value_name = "N", default_value_t = 42)]
    seed: u64,
    /// Replace the files if they are there
    #[arg(long)]
    overwrite: bool,
}

fn size(text: &str) -> Result<HeldOut, String> {
    let wanted = || "a share between 0 and 1, or a number of rows from 1, is needed".to_owned();
    if let Ok(count) = text.parse::<usize>() {
        return if count > 0 { Ok(HeldOut::Rows(count)) } else { Err(wanted()) };
    }
    let share = text.parse::<f64>().ok().filter(|share| *share > 0.0 && *share < 1.0);
    share.map(HeldOut::Share).ok_or_else(wanted)
}

/// Splits the rows.
pub fn run(args: SplitArgs, out: &Output) -> anyhow::Result<()> {
    let files = [&args.train, &args.test];
    anyhow::ensure!(args.train != args.test, usage("`--train` and `--test` name one file".into()));
    if let Some(taken) = files.iter().find(|file| file.exists() && !args.overwrite) {
        return Err(usage(format!("`{}` exists; `--overwrite` replaces it", taken.display())).into());
    }
    let dataset = args.rows.load_as(Need::Columns, BadRows::Fail, out)?;
    let by = match (args.by, args.stratify) {
        (Some(column), _) => SplitBy::Together(column),
        (_, Some(column)) => SplitBy::Stratified(column),
        _ => SplitBy::Rows,
    };
    let mut stream = Seed(args.seed).stream(Purpose::Split, 0, 0);
    let sides = split(&dataset.rows, args.test_size, &by, &mut |groups| groups.shuffle(&mut stream))?;
    for (file, side) in files.iter().zip(&sides) {
        let columns: Vec<_> = side.iter().map(|&row| dataset.rows[row].columns.clone()).collect();
        write_rows(file, &columns)?;
    }
    let counts = sides.map(|side| side.len());
    let value = json!({ "train": args.train, "test": args.test, "train_rows": counts[0], "test_rows": counts[1] });
    out.result(&value, || {
        let line = |(file, count): (&&PathBuf, usize)| format!("{}: {}\n", file.display(), rows(count));
        files.iter().zip(counts).map(line).collect()
    })
}
