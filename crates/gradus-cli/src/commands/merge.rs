//! `gradus merge`: folds an adapter into its base.

use std::path::PathBuf;

use gradus::device::DeviceChoice;
use gradus::inference::{MergeOptions, merge};
use gradus::model::SavedWeights;

use crate::output::Output;
use crate::watch::fetch;

/// Arguments of `gradus merge`.
#[derive(Debug, clap::Args)]
pub struct MergeArgs {
    /// The base: a Hugging Face directory or a hub name; or an adapter that names its base
    #[arg(long, value_name = "DIR")]
    model: String,
    /// The adapter, in peft's format
    #[arg(long, value_name = "DIR")]
    adapter: Option<String>,
    /// Where the merged model goes
    #[arg(long, value_name = "DIR")]
    output: PathBuf,
    /// Replace the model that is there
    #[arg(long)]
    overwrite: bool,
    /// How the weights lie on disk: f32, bf16 or f16
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    weights: SavedWeights,
    /// Where to compute: cpu; gpu or gpu:1 where built in (`gradus doctor` lists them)
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: DeviceChoice,
}

/// Merges, and says how far the model's answers moved by rounding.
pub fn run(args: MergeArgs, out: &Output) -> anyhow::Result<()> {
    fetch(&args.model, out)?;
    let MergeArgs { model, adapter, output, overwrite, weights, device } = args;
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
