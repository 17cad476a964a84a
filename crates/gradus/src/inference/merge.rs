//! Merging of an adapter into its base.

use std::path::{Path, PathBuf};

use burn::tensor::Tensor;
use rand::Rng;
use serde::Serialize;

use super::open;
use crate::device::DeviceChoice;
use crate::error::{Error, Result};
use crate::files::output::Outputs;
use crate::host::read;
use crate::model::adapter::Adaptable;
use crate::model::{
    CausalLm, Classifier, ModelDir, RewardModel, Rows, SavedWeights, Sequence, Text, save_causal, save_classifier,
    save_reward_model,
};
use crate::pretrained::{name_padding, pad_id};
use crate::rng::{Purpose, Seed};
use crate::text::Tokenizer;

/// Settings of a merge.
#[derive(Debug, Clone, PartialEq)]
pub struct MergeOptions {
    /// The base: a directory or a hub name, or an adapter's directory, which names its base.
    pub model: String,
    /// The adapter, unless `model` is one.
    pub adapter: Option<String>,
    /// Directory of the merged model.
    pub output: PathBuf,
    /// Whether an existing model may be replaced.
    pub overwrite: bool,
    /// Format of the saved weights.
    pub weights: SavedWeights,
    /// Device to compute on.
    pub device: DeviceChoice,
}

/// Result of a merge.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Merged {
    /// Directory of the merged model.
    pub output: PathBuf,
    /// Largest difference between logits (for a reward model: scores) of the written model and of the base with the adapter.
    pub largest_difference: f32,
    /// Largest logit or score, for comparison.
    pub largest: f32,
    /// Number of tokens compared.
    pub tokens: usize,
}

/// Number of sequences for the comparison, and tokens per sequence.
const PROBES: usize = 4;
const PROBE_TOKENS: usize = 32;

/// Writes the base with the adapter merged into its weights, and measures the rounding error of the output.
///
/// # Errors
/// If there is no adapter, if it does not fit, or if [`Outputs::model_dir`] rejects the output.
pub fn merge(options: &MergeOptions) -> Result<Merged> {
    let dir = open(&options.model, options.adapter.as_deref())?;
    if dir.adapter.is_none() {
        return Err(Error::model(&dir.path, "this is a whole model: there is no adapter to merge")
            .with_hint("pass the adapter with `--adapter DIR`"));
    }
    let read = std::iter::once(&dir.path).chain(dir.adapter.as_ref().map(|adapter| &adapter.path));
    let output = Outputs::new(options.overwrite).reading_all(read).model_dir(&options.output)?;
    let base = ModelDir { saved_weights: options.weights, ..dir.without_adapter() };
    let (probes, has_encoder) = (probes(&dir), dir.has_encoder()?);
    let answers = |ask: &dyn Fn(&Rows<'_>) -> Vec<f32>| answers(&probes, has_encoder, ask);
    let device = options.device.device();
    // The model is measured as it was written, because its format may round the weights.
    let written = || ModelDir::open(&options.output);
    let (found, expected) = if dir.is_encoder() {
        let logits = |model: &Classifier, rows: &Rows<'_>| {
            let texts: Vec<Text<'_>> = rows.sequences().iter().map(|sequence| Text::new(sequence.target)).collect();
            read_all(&model.logits(&model.batch(&texts)))
        };
        let model = Classifier::load(&dir, &device)?;
        let expected = answers(&|rows| logits(&model, rows));
        let merged = model.merged();
        let base = base.with_head(Some(model.task().clone()));
        output.write(|path| {
            save_classifier(&merged, &base, path)?;
            dir.training_info().write(path)
        })?;
        drop((model, merged));
        let model = Classifier::load(&written()?, &device)?;
        (answers(&|rows| logits(&model, rows)), expected)
    } else if dir.is_reward_model() {
        let values = |model: &RewardModel, rows: &Rows<'_>| read_all(&model.values(&model.batch(rows)));
        let model = RewardModel::load(&dir, &device)?;
        let expected = answers(&|rows| values(&model, rows));
        let merged = model.merged();
        output.write(|path| {
            save_scalar(&merged, &base, path)?;
            dir.training_info().write(path)
        })?;
        drop((model, merged));
        let model = RewardModel::load(&written()?, &device)?;
        (answers(&|rows| values(&model, rows)), expected)
    } else {
        let logits = |model: &CausalLm, rows: &Rows<'_>| read_all(&model.logits(&model.batch(rows)));
        let model = CausalLm::load(&dir, &device)?;
        let expected = answers(&|rows| logits(&model, rows));
        let merged = model.merged();
        output.write(|path| save_causal(&merged, &base, path))?;
        drop((model, merged));
        let model = CausalLm::load(&written()?, &device)?;
        (answers(&|rows| logits(&model, rows)), expected)
    };
    let largest = |values: &mut dyn Iterator<Item = f32>| values.fold(0.0f32, |max, value| max.max(value.abs()));
    Ok(Merged {
        output: options.output.clone(),
        largest_difference: largest(&mut found.iter().zip(&expected).map(|(a, b)| a - b)),
        largest: largest(&mut expected.iter().copied()),
        tokens: probes.iter().map(Vec::len).sum(),
    })
}

fn save_scalar(model: &RewardModel, base: &ModelDir, path: &Path) -> Result<()> {
    let tokenizer = Tokenizer::of_model(base.tokenizer_dir(), &base.path)?;
    let pad_id = pad_id(base, &tokenizer);
    save_reward_model(model, base, path, pad_id)?;
    name_padding(path, &tokenizer, pad_id)
}

/// Returns token ids drawn uniformly from the vocabulary, always the same ones.
fn probes(dir: &ModelDir) -> Vec<Vec<u32>> {
    let number = |key: &str| dir.config.get(key).and_then(serde_json::Value::as_u64);
    let vocabulary = number("vocab_size").unwrap_or(1).max(1) as u32;
    let positions = number("n_positions").or_else(|| number("max_position_embeddings"));
    let tokens = positions.map_or(PROBE_TOKENS, |limit| PROBE_TOKENS.min(limit as usize));
    let mut stream = Seed(0).stream(Purpose::Bench, 0, 0);
    (0..PROBES).map(|_| (0..tokens).map(|_| stream.random_range(0..vocabulary)).collect()).collect()
}

/// Runs one sequence at a time, because the logits of all would be large. An encoder reads the same ids as the decoder.
fn answers(probes: &[Vec<u32>], has_encoder: bool, ask: &dyn Fn(&Rows<'_>) -> Vec<f32>) -> Vec<f32> {
    let sequence = |ids| if has_encoder { Sequence::completion(ids, ids) } else { Sequence::text(ids) };
    probes.iter().flat_map(|ids| ask(&Rows::Alone(vec![sequence(ids)]))).collect()
}

fn read_all<const R: usize>(tensor: &Tensor<R>) -> Vec<f32> {
    let size = tensor.dims().iter().product::<usize>();
    read(&tensor.clone().reshape([size]))
}
