//! `gradus data split`: splits rows into training rows and held-out rows.

use std::collections::HashSet;
use std::path::PathBuf;

use gradus::data::{BadRows, Dropped, HeldOut, Need, SplitBy, split, stage_rows};
use gradus::files::output::{Outputs, commit};
use gradus::rng::{Purpose, Seed};
use rand::seq::SliceRandom;
use serde_json::json;

use super::{FilterArgs, RowArgs, rows};
use crate::output::Output;

/// Arguments of `gradus data split`.
#[derive(Debug, clap::Args)]
pub struct SplitArgs {
    #[command(flatten)]
    rows: RowArgs,
    /// File for the training rows. Its name determines the format: .jsonl, .json, .csv, .tsv, .parquet, .arrow or, for texts, .txt,
    /// optionally with .gz
    #[arg(long, value_name = "FILE")]
    train: PathBuf,
    /// File for the held-out rows
    #[arg(long, value_name = "FILE")]
    test: PathBuf,
    /// Size of the held-out part: below 1 a share of all rows, otherwise a number of rows
    #[arg(long, value_name = "X", default_value = "0.1", value_parser = size)]
    test_size: HeldOut,
    /// Keep rows with the same value of this column together
    #[arg(long, value_name = "COLUMN", conflicts_with = "stratify")]
    by: Option<String>,
    /// Give both files the same share of each value of this column
    #[arg(long, value_name = "COLUMN")]
    stratify: Option<String>,
    /// Seed of the random split
    #[arg(long, value_name = "N", default_value_t = 42)]
    seed: u64,
    #[command(flatten)]
    filter: FilterArgs,
    /// Replace the files if they exist
    #[arg(long)]
    overwrite: bool,
}

fn size(text: &str) -> Result<HeldOut, String> {
    let message = || "expected a share between 0 and 1, or a number of rows from 1".to_owned();
    if let Ok(count) = text.parse::<usize>() {
        return if count > 0 { Ok(HeldOut::Rows(count)) } else { Err(message()) };
    }
    let share = text.parse::<f64>().ok().filter(|share| *share > 0.0 && *share < 1.0);
    share.map(HeldOut::Share).ok_or_else(message)
}

/// Splits the rows and writes both files.
pub fn run(args: SplitArgs, out: &Output) -> anyhow::Result<()> {
    let files = [&args.train, &args.test];
    let claim = |mut outputs: Outputs| files.iter().map(|file| outputs.file(file)).collect::<gradus::Result<Vec<_>>>();
    // Existing outputs are reported before rows are read. The input files are known only afterwards.
    claim(Outputs::new(args.overwrite))?;
    let mut dataset = args.rows.load_as(Need::Columns, BadRows::Fail, out)?;
    let filter = args.filter.filter();
    let mut dropped = Dropped::default();
    if filter.is_on() {
        // Rows are written with their original columns. Filters need recognized rows, which know their answers.
        let recognized = args.rows.load(BadRows::Fail, out)?.rows;
        let (kept, found) = args.filter.apply(recognized, args.rows.rule(), out)?;
        let kept: HashSet<usize> = kept.iter().map(|row| row.index).collect();
        dataset.rows.retain(|row| kept.contains(&row.index));
        dropped = found;
    }
    let claimed = claim(Outputs::new(args.overwrite).reading_all(&dataset.source.files))?;
    let by = match (args.by, args.stratify) {
        (Some(column), _) => SplitBy::Together(column),
        (_, Some(column)) => SplitBy::Stratified(column),
        _ => SplitBy::Rows,
    };
    let mut stream = Seed(args.seed).stream(Purpose::Split, 0, 0);
    let sides = split(&dataset.rows, args.test_size, &by, &mut |groups| groups.shuffle(&mut stream))?;
    let mut staged = Vec::new();
    for (file, side) in claimed.iter().zip(&sides) {
        let columns: Vec<_> = side.iter().map(|&row| dataset.rows[row].columns.clone()).collect();
        staged.push(stage_rows(file, &columns)?.0);
    }
    // A split consists of both files: neither appears under its name before both are complete.
    commit(staged)?;
    let counts = sides.map(|side| side.len());
    let mut value = json!({ "train": args.train, "test": args.test, "train_rows": counts[0], "test_rows": counts[1] });
    if filter.is_on() {
        value["dropped"] = json!(dropped);
    }
    out.result(&value, || {
        let line = |(file, count): (&&PathBuf, usize)| format!("{}: {}\n", file.display(), rows(count));
        files.iter().zip(counts).map(line).collect()
    })
}
