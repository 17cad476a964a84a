//! `gradus export`: writes a model in the file format of another program.

use std::path::PathBuf;

use gradus::inference::{ExportOptions, GgufWeights, export};

use super::text::TextArgs;
use crate::output::Output;
use crate::table::bytes;
use crate::watch::{end_on_interrupts, fetch};

/// Arguments of `gradus export`.
#[derive(Debug, clap::Args)]
pub struct ExportArgs {
    /// Model: a Hugging Face directory or a hub name; or an adapter that names its base
    #[arg(long, value_name = "DIR")]
    model: String,
    /// Adapter to merge into the model
    #[arg(long, value_name = "DIR")]
    adapter: Option<String>,
    /// File format: gguf, for llama.cpp and programs based on it
    #[arg(long, value_name = "FORMAT", default_value = "gguf", value_parser = ["gguf"], hide_possible_values = true)]
    format: String,
    /// Number format of the weights: f32, bf16 or q8_0
    #[arg(long, value_name = "FORMAT", default_value = "bf16")]
    weights: GgufWeights,
    /// File to write
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    /// Replace the file if it exists
    #[arg(long)]
    overwrite: bool,
    #[command(flatten)]
    text_files: TextArgs,
}

/// Writes the file and prints a summary.
pub fn run(args: ExportArgs, out: &Output) -> anyhow::Result<()> {
    fetch(&args.model, out)?;
    end_on_interrupts(out);
    let options = ExportOptions {
        model: args.model,
        adapter: args.adapter,
        weights: args.weights,
        output: args.output,
        overwrite: args.overwrite,
        text: args.text_files.into(),
    };
    let spinner = out.spinner("exporting");
    let exported = export(&options)?;
    drop(spinner);
    exported.notes.iter().for_each(|note| out.note(note));
    if exported.kept_in_f32 > 0 {
        out.note(format_args!(
            "{} tensors stay in f32: their row length is not a multiple of 32",
            exported.kept_in_f32
        ));
    }
    out.result(&exported, || {
        format!(
            "{}: {} in {}, {} tensors, {}",
            exported.output.display(),
            exported.architecture,
            exported.weights.name(),
            exported.tensors,
            bytes(exported.bytes)
        )
    })
}
