//! `gradus new-model`: creates a model with random weights.

use std::path::PathBuf;

use gradus::create::{NewModel, Size, create};
use gradus::rng::Seed;
use serde_json::Value;

use crate::output::Output;
use crate::table::count;
use crate::watch::{end_on_interrupts, fetch};

/// Arguments of `gradus new-model`.
#[derive(Debug, clap::Args)]
pub struct NewModelArgs {
    /// Model family, as in `model_type` of `config.json`: gpt2, llama, qwen3, t5, bart, bert, longformer, …
    #[arg(long, value_name = "FAMILY")]
    family: String,
    /// Size: tiny (2 layers of width 64) or small (4 layers of width 256)
    #[arg(long, value_name = "SIZE", default_value = "tiny")]
    size: Size,
    /// Tokenizer to store with the model: a directory or a hub name
    #[arg(long, value_name = "DIR")]
    tokenizer: String,
    /// Directory to write
    #[arg(long, value_name = "DIR")]
    output: PathBuf,
    /// Replace the model in the directory
    #[arg(long)]
    overwrite: bool,
    /// Set a key of `config.json`, such as num_hidden_layers=3; may be given several times
    #[arg(long, value_name = "KEY=VALUE", value_parser = setting)]
    set: Vec<(String, Value)>,
    /// Labels of an encoder's classifier
    #[arg(long, value_name = "LABEL,LABEL", value_delimiter = ',')]
    labels: Vec<String>,
    /// Seed of the weights
    #[arg(long, value_name = "N", default_value_t = 42)]
    seed: u64,
}

/// Parses a key and its value. Values that are not JSON are text.
fn setting(text: &str) -> Result<(String, Value), String> {
    let (key, value) = text.split_once('=').ok_or("expected `KEY=VALUE`")?;
    Ok((key.to_owned(), serde_json::from_str(value).unwrap_or_else(|_| value.into())))
}

/// Writes the model and prints a summary.
pub fn run(args: NewModelArgs, out: &Output) -> anyhow::Result<()> {
    let NewModelArgs { family, size, tokenizer, output, overwrite, set, labels, seed } = args;
    fetch(&tokenizer, out)?;
    end_on_interrupts(out);
    let made = create(&NewModel { family, size, tokenizer, set, labels, seed: Seed(seed), overwrite }, &output)?;
    out.note(format_args!("{}: {} parameters with random weights", made.family, count(made.parameters as f64)));
    out.result(&made, || output.display().to_string())
}
