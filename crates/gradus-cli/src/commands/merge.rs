//! `gradus merge`: merges an adapter into its base model.

use std::path::PathBuf;

use gradus::inference::{MergeOptions, merge};
use gradus::model::SavedWeights;

use super::device::DeviceArgs;
use crate::output::Output;
use crate::watch::{end_on_interrupts, fetch};

/// Arguments of `gradus merge`.
#[derive(Debug, clap::Args)]
pub struct MergeArgs {
    /// Base model: a Hugging Face directory or a hub name; or an adapter that names its base
    #[arg(long, value_name = "DIR")]
    model: String,
    /// Adapter, in peft's format
    #[arg(long, value_name = "DIR")]
    adapter: Option<String>,
    /// Directory of the merged model
    #[arg(long, value_name = "DIR")]
    output: PathBuf,
    /// Replace an existing model
    #[arg(long)]
    overwrite: bool,
    /// Number format of the weights on disk: f32, bf16 or f16
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    weights: SavedWeights,
    #[command(flatten)]
    on: DeviceArgs,
}

/// Merges the models, and reports how much rounding changes the model's outputs.
pub fn run(args: MergeArgs, out: &Output) -> anyhow::Result<()> {
    fetch(&args.model, out)?;
    end_on_interrupts(out);
    let MergeArgs { model, adapter, output, overwrite, weights, on: DeviceArgs { device } } = args;
    let options = MergeOptions { model, adapter, output, overwrite, weights, device };
    let spinner = out.spinner("merging");
    let merged = merge(&options)?;
    drop(spinner);
    out.result(&merged, || {
        format!(
            "{}\nlargest difference of a logit, merged against unmerged: {:.2e} (largest logit {:.1}, {} tokens)",
            merged.output.display(),
            merged.largest_difference,
            merged.largest,
            merged.tokens
        )
    })
}
