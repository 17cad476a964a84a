//! Writes a model with linear layers in 8 or 4 bits, and measures the effect on size, speed and answers.

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

/// File name of the report in the directory of the quantized model.
pub const REPORT_FILE: &str = "quantization.json";

/// Settings of a quantization, and the data for the comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct QuantizeOptions {
    /// Directory or hub name of the model.
    pub model: String,
    /// Format of the linear layers.
    pub format: Quantization,
    /// Directory of the quantized model. Default: a folder in the model's directory, named after the format.
    pub output: Option<PathBuf>,
    /// Whether an existing model may be replaced.
    pub overwrite: bool,
    /// Preference rows for a reward model, or rows with prompts for a language model. Without them, language models
    /// sample texts from an empty prompt.
    pub data: Option<String>,
    /// Maximum number of rows. Default: all pairs, 64 prompts.
    pub max_rows: Option<usize>,
    /// Maximum length of a row in tokens.
    pub max_length: usize,
    /// Sampling settings of the completions on which the models are compared. Stop ids come from the model.
    pub params: SamplingParams,
    /// Seed of every random stream.
    pub seed: Seed,
    /// Files that replace the tokenizer and the chat template.
    pub text: TextFiles,
    /// Device to compute on.
    pub device: DeviceChoice,
}

/// Result of a quantization.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QuantizeReport {
    /// Name of the model, as given.
    pub model: String,
    /// `int8` or `nf4`.
    pub format: &'static str,
    /// Directory of the quantized model.
    pub output: PathBuf,
    /// The original model, with all weights in f32.
    pub before: ModelCost,
    /// The quantized model, read from its files.
    pub after: ModelCost,
    /// Change of a language model's output.
    pub policy: Option<PolicyQuality>,
    /// Change of a reward model's scores.
    pub reward: Option<RewardQuality>,
    /// Remarks on rows that were changed or left out, one sentence each.
    pub remarks: Vec<String>,
}

/// Size and speed of one model.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ModelCost {
    /// Size of the weight files in bytes.
    pub disk_bytes: u64,
    /// Size of all weights in memory in bytes.
    pub weight_bytes: u64,
    /// Share of `weight_bytes` in the linear layers of the trunk, which are quantized.
    pub linear_bytes: u64,
    /// Sampled tokens per second, including the time for prompts. Only for language models.
    pub decode_tokens_per_s: Option<f64>,
    /// Scored tokens per second.
    pub score_tokens_per_s: Option<f64>,
}

/// Quantizes a model, measures the effect, and writes the result. `progress` receives the name of each stage.
///
/// # Errors
/// If the model is already quantized or has an adapter, if [`Outputs::model_dir`] rejects the output, or if the model
/// or the rows are invalid.
pub fn quantize(options: &QuantizeOptions, progress: &mut dyn FnMut(&str)) -> Result<QuantizeReport> {
    let files = open_files(&options.model, None, &options.text)?;
    if files.dir.adapter.is_some() {
        return Err(Error::model(&options.model, "this is an adapter, not a whole model")
            .with_hint("merge it into its base with `gradus merge`, and quantize the result"));
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

/// Returns the directory of the quantized model.
fn output(options: &QuantizeOptions) -> Result<PathBuf> {
    Ok(match &options.output {
        Some(output) => output.clone(),
        None if Path::new(&options.model).is_dir() => Path::new(&options.model).join(options.format.name()),
        None => {
            let message =
                format!("`{}` comes from the hub, and gradus does not write into the hub's cache", options.model);
            return Err(Error::input(message).with_hint("set the directory of the quantized model with `--output DIR`"));
        }
    })
}

/// Rejects a model that is already quantized.
fn check(trunk: &Trunk, dir: &ModelDir) -> Result<()> {
    match trunk.quantization() {
        None => Ok(()),
        Some(format) => Err(Error::model(&dir.path, format!("its linear layers are in {} already", format.name()))
            .with_hint("quantize the original model")),
    }
}

/// Returns the size of a model, without its speed.
fn model_cost<M: Module>(model: &M, trunk: &Trunk, path: &Path) -> Result<ModelCost> {
    let packed = trunk.linear_bytes() as u64;
    let dense = if trunk.is_quantized() { packed } else { 0 };
    Ok(ModelCost {
        disk_bytes: weight_files(path)?,
        weight_bytes: 4 * model.num_params() as u64 + dense,
        linear_bytes: packed,
        decode_tokens_per_s: None,
        score_tokens_per_s: None,
    })
}

/// Returns the total size of the safetensors files in `path` in bytes.
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

/// Returns the report on `before` from `files` and `after` from `path`, without a comparison.
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
        before: model_cost(before.0, before.1, &files.dir.path)?,
        after: model_cost(after.0, after.1, path)?,
        policy: None,
        reward: None,
        remarks: Vec::new(),
    })
}

/// Weight format of both models during the comparison: everything that is not quantized is unchanged.
const HELD: WeightFormat = WeightFormat::F32;
