//! `gradus data convert`: the same rows in another format or form.

use std::path::PathBuf;

use gradus::data::{BadRows, Form, RowErrors, Target, convert, write_rows};
use serde_json::json;

use super::{RowArgs, rows, usage};
use crate::output::Output;

/// Arguments of `gradus data convert`.
#[derive(Debug, clap::Args)]
pub struct ConvertArgs {
    #[command(flatten)]
    rows: RowArgs,
    /// Where to write; the name says the format: .jsonl, .json, .csv, .tsv or .parquet, with .gz behind it or not
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// What the rows become: `same`, `text`, `messages`, `prompt-completion`, `preference` or `prompt`
    #[arg(long, value_name = "KIND", default_value = "same")]
    to: Kind,
    /// How prompts and answers are written: `as-is`, as `text` or as `messages`
    #[arg(long, value_name = "FORM", default_value = "as-is")]
    form: Written,
    /// Replace the file if it is there
    #[arg(long)]
    overwrite: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Kind {
    Same,
    Text,
    Messages,
    PromptCompletion,
    Preference,
    Prompt,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Written {
    AsIs,
    Text,
    Messages,
}

/// Converts the rows.
pub fn run(args: ConvertArgs, out: &Output) -> anyhow::Result<()> {
    if args.output.exists() && !args.overwrite {
        return Err(usage(format!("`{}` exists; `--overwrite` replaces it", args.output.display())).into());
    }
    let dataset = args.rows.load(BadRows::Fail, out)?;
    let target = match args.to {
        Kind::Same => Target::Same,
        Kind::Text => Target::Text,
        Kind::Messages => Target::Messages,
        Kind::PromptCompletion => Target::PromptCompletion,
        Kind::Preference => Target::Preference,
        Kind::Prompt => Target::Prompt,
    };
    let form = match args.form {
        Written::AsIs => Form::AsIs,
        Written::Text => Form::Text,
        Written::Messages => Form::Messages,
    };
    let mut errors = RowErrors::default();
    let mut converted = Vec::with_capacity(dataset.rows.len());
    for row in &dataset.rows {
        match convert(row, target, form, args.rows.rule()) {
            Ok(columns) => converted.push(columns),
            Err(message) => errors.push(row.place.error(message)),
        }
    }
    if let Some(error) = errors.into_error(dataset.rows.len()) {
        return Err(error.into());
    }
    let format = write_rows(&args.output, &converted)?;
    let value = json!({ "output": args.output, "format": format, "rows": converted.len() });
    out.result(&value, || format!("{}: {}, {}", args.output.display(), rows(converted.len()), format.describe()))
}
