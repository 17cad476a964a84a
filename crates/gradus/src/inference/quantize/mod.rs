//! Writing a model with its linear layers in 8 or 4 bits, and what that costs: size, speed, answers before and after.

mod policy;
mod reward;

use std::path::{Path, PathBuf};

use burn::module::Module;
use serde::Serialize;

pub use policy::PolicyQuality;
pub use reward::RewardQuality;

use super::open_files;
use crate::device::DeviceChoice;
use crate::error::{Error, Result};
use crate::files::output::Outputs;
use crate::generate::SamplingParams;
use crate::model::{
    CausalLm, ModelDir, Quantization, RewardModel, Trunk, WeightFormat, save_causal, save_reward_model,
};
use crate::pretrained::{Pretrained, TextFiles};
use crate::pretrained::{name_padding, pad_id};
use crate::rng::Seed;

/// The report, in the directory of the quantized model.
pub const REPORT_FILE: &str = "quantization.json";

/// What to quantize, and on what to compare.
#[derive(Debug, Clone, PartialEq)]
pub struct QuantizeOptions {
    /// The model: a directory or a hub name.
    pub model: String,
    /// The format of its linear layers.
    pub format: Quantization,
    /// Where the quantized model goes. Default: a folder of the model's own directory, named after the format.
    pub output: Option<PathBuf>,
    /// Whether it may replace a model that is there.
    pub overwrite: bool,
    /// Preference rows for a reward model. For another, rows with prompts; without them, texts are sampled from nothing.
    pub data: Option<String>,
    /// Use at most this many rows. Default: all pairs, 64 prompts.
    pub max_rows: Option<usize>,
    /// Longest row in tokens.
    pub max_length: usize,
    /// How the completions are drawn that both models are compared on; stop ids come from the model.
    pub params: SamplingParams,
    /// The seed of every random stream.
    pub seed: Seed,
    /// What replaces its tokenizer and chat template.
    pub text: TextFiles,
    /// Where to compute.
    pub device: DeviceChoice,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QuantizeReport {
    /// The model, as it was named.
    pub model: String,
    /// `int8` or `nf4`.
    pub format: &'static str,
    /// Where the quantized model is.
    pub output: PathBuf,
    /// The model as it was, all weights in f32.
    pub before: Side,
    /// The quantized model, read from its files.
    pub after: Side,
    /// How a language model's answers moved.
    pub policy: Option<PolicyQuality>,
    /// How a reward model's did.
    pub reward: Option<RewardQuality>,
    /// What happened to rows on the way, one sentence each.
    pub remarks: Vec<String>,
}

/// Size and speed of one model.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Side {
    /// Bytes of the files with the weights.
    pub disk_bytes: u64,
    /// Bytes of all weights in memory.
    pub weight_bytes: u64,
    /// Of them, those of the linear layers of the trunk: what is quantized.
    pub linear_bytes: u64,
    /// Sampled tokens a second, the prompts' time included; of language models.
    pub decode_tokens_per_s: Option<f64>,
    /// Scored tokens a second.
    pub score_tokens_per_s: Option<f64>,
}

/// Quantizes, measures and writes; `progress` is told what is being done.
///
/// # Errors
/// When the model is quantized already or has an adapter, [`Outputs::model_dir`] refuses the output, or what is wrong with the
/// model or the rows.
pub fn quantize(options: &QuantizeOptions, progress: &mut dyn FnMut(&str)) -> Result<QuantizeReport> {
    let files = open_files(&options.model, None, &options.text)?;
    if files.dir.adapter.is_some() {
        return Err(Error::model(&options.model, "this is an adapter, not a whole model")
            .with_hint("fold it into its base with `gradus merge`, and quantize the result"));
    }
    let name = output(options)?;
    let output = Outputs::new(options.overwrite).reading(&files.dir.path).model_dir(&name)?;
    progress("loading");
    let device = options.device.device();
    let name = options.format.name();
    let mut report = None;
    let mut finish = |path: &Path, mut found: QuantizeReport| {
        found.output = output.path().to_owned();
        let text = serde_json::to_string_pretty(&found).expect("a report serializes") + "\n";
        std::fs::write(path.join(REPORT_FILE), text).map_err(|error| Error::io(path, error))?;
        report = Some(found);
        Ok(())
    };
    let saved = |path: &Path| ModelDir::open(path);
    if files.dir.is_reward_model() {
        let model = RewardModel::load(&files.dir, &device)?;
        check(&model.trunk, &files.dir)?;
        progress(&format!("quantizing to {name}"));
        output.write(|path| {
            let pad_id = pad_id(&files.dir, &files.tokenizer);
            save_reward_model(&model.clone().quantized(options.format), &files.dir, path, pad_id)?;
            name_padding(path, &files.tokenizer, pad_id)?;
            let after = RewardModel::load(&saved(path)?, &device)?;
            finish(path, reward::compare(options, &files, model, after, path, progress)?)
        })?;
    } else {
        let model = CausalLm::load(&files.dir, &device)?;
        check(&model.trunk, &files.dir)?;
        progress(&format!("quantizing to {name}"));
        output.write(|path| {
            save_causal(&model.clone().quantized(options.format), &files.dir, path)?;
            let after = CausalLm::load(&saved(path)?, &device)?;
            finish(path, policy::compare(options, &files, model, after, path, progress)?)
        })?;
    }
    Ok(report.expect("written last"))
}

/// Where the quantized model goes.
fn output(options: &QuantizeOptions) -> Result<PathBuf> {
    Ok(match &options.output {
        Some(output) => output.clone(),
        None if Path::new(&options.model).is_dir() => Path::new(&options.model).join(options.format.name()),
        None => {
            let message = format!("`{}` comes from the hub, and nothing is written into its cache", options.model);
            return Err(Error::input(message).with_hint("say where the quantized model goes with `--output DIR`"));
        }
    })
}

/// Refuses a model that is quantized already.
fn check(trunk: &Trunk, dir: &ModelDir) -> Result<()> {
    match trunk.quantization() {
        None => Ok(()),
        Some(format) => Err(Error::model(&dir.path, format!("its linear layers are in {} already", format.name()))
            .with_hint("quantize the model that it was made of")),
    }
}

/// Size of a model, before its speed is known.
fn side<M: Module>(model: &M, trunk: &Trunk, path: &Path) -> Result<Side> {
    let packed = trunk.linear_bytes() as u64;
    let dense = if trunk.is_quantized() { packed } else { 0 };
    Ok(Side {
        disk_bytes: weight_files(path)?,
        weight_bytes: 4 * model.num_params() as u64 + dense,
        linear_bytes: packed,
        decode_tokens_per_s: None,
        score_tokens_per_s: None,
    })
}

/// Bytes of the safetensors files in `path`.
fn weight_files(path: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(path).map_err(|error| Error::io(path, error))? {
        let file = entry.map_err(|error| Error::io(path, error))?.path();
        if file.extension().is_some_and(|extension| extension == "safetensors") {
            bytes += std::fs::metadata(&file).map_err(|error| Error::io(&file, error))?.len();
        }
    }
    Ok(bytes)
}

/// The report on `before`, which lay in `files`, and `after`, which lies in `path`, with nothing compared yet.
fn sizes<M: Module>(
    options: &QuantizeOptions,
    files: &Pretrained,
    before: (&M, &Trunk),
    after: (&M, &Trunk),
    path: &Path,
) -> Result<QuantizeReport> {
    Ok(QuantizeReport {
        model: options.model.clone(),
        format: options.format.name(),
        output: PathBuf::new(),
        before: side(before.0, before.1, &files.dir.path)?,
        after: side(after.0, after.1, path)?,
        policy: None,
        reward: None,
        remarks: Vec::new(),
    })
}

/// How both models are held while they are compared: what is not quantized stays as it is.
const HELD: WeightFormat = WeightFormat::F32;
