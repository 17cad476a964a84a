//! Completions of a data set's prompts, in the order of the prompts.

use std::path::Path;

use serde::Serialize;

use super::open_files;
use super::score::check_finite;
use crate::data::{
    self, BadRows, Content, Dataset, LoadOptions, Need, Row, RowData, RowLocation, TokenizeOptions, left_out,
};
use crate::device::DeviceChoice;
use crate::error::Error;
use crate::generate::{BeamParams, SamplingParams};
use crate::model::{CausalLm, PositionBudget, Precision, WeightFormat};
use crate::pretrained::TextFiles;
use crate::progress::Unwatched;
use crate::rng::{Purpose, Seed};
use crate::rollout::{LocalEngine, Policy, Prompt, RolloutSource, Sampler};

/// Default number of prompts that are sampled together. Their completions are returned before the next prompts start.
const PROMPTS_AT_ONCE: usize = 64;

/// Source of the prompts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompts {
    /// The prompts of a file, a directory or a hub name.
    Data(String),
    /// Given texts.
    Texts(Vec<String>),
}

impl Prompts {
    /// Returns the rows, and remarks on how they were read and on those that are left out.
    fn rows(&self, options: &SampleOptions) -> Result<(Vec<Row>, Vec<String>), Error> {
        let max_rows = options.max_rows;
        let texts = match self {
            Self::Data(name) => {
                let (bad_rows, rename) = (options.bad_rows, options.rename.clone());
                let load = LoadOptions { max_rows, bad_rows, rename, ..LoadOptions::needing(Need::Prompt) };
                let Dataset { rows, bad, mut remarks, .. } = data::load(name, &load)?;
                remarks.extend(left_out(&bad.into_skipped()));
                return Ok((rows, remarks));
            }
            Self::Texts(texts) => texts,
        };
        let row = |(index, text): (usize, &String)| Row {
            location: RowLocation { file: Path::new("--prompt").into(), line: index + 1, row_in_array: None },
            index,
            data: RowData::Prompt(Content::Text(text.clone())),
            columns: serde_json::Map::new(),
        };
        Ok((texts.iter().take(max_rows.unwrap_or(usize::MAX)).enumerate().map(row).collect(), Vec::new()))
    }
}

/// Settings of sampling.
#[derive(Debug, Clone, PartialEq)]
pub struct SampleOptions {
    /// Directory or hub name of the model.
    pub model: String,
    /// Adapter on the model: a directory in peft's format or a hub name.
    pub adapter: Option<String>,
    /// The prompts.
    pub prompts: Prompts,
    /// Distribution and limits. The model's own stop ids are added.
    pub params: SamplingParams,
    /// Completions per prompt.
    pub group_size: usize,
    /// Beam search for the completions.
    pub beams: Option<BeamParams>,
    /// Strings that end a completion.
    pub stop: Vec<String>,
    /// Seed of every random stream.
    pub seed: Seed,
    /// Columns of the prompts' data set with other names, as (name in the file, name here).
    pub rename: Vec<(String, String)>,
    /// Maximum number of prompts.
    pub max_rows: Option<usize>,
    /// Handling of invalid rows of the prompts' data set.
    pub bad_rows: BadRows,
    /// Maximum number of prompts that are sampled together. With fewer, completions are returned earlier and `progress`
    /// is called more often; the completions are the same. Default 64.
    pub at_once: Option<usize>,
    /// Number format of the operands of matrix products, unless the format of the weights determines it.
    pub compute: Precision,
    /// Format of the weights in memory. Logprobs are those of the rounded model.
    pub weights: WeightFormat,
    /// Files that replace the tokenizer and the chat template.
    pub text: TextFiles,
    /// Device to compute on.
    pub device: DeviceChoice,
}

/// One completion.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sampled {
    /// Text of the prompt, rendered by the chat template if the row contains messages.
    pub prompt: String,
    /// The completion, without special tokens, cut before a stop string.
    pub completion: String,
    /// The sampled ids, including the stop id.
    pub completion_ids: Vec<u32>,
    /// Log-probability of each id under the model, in nats.
    pub logprobs: Vec<f32>,
    /// Reason for the end: `stop_id`, `stop_string` or `length`.
    pub stop: &'static str,
    /// Score that ranks it in a beam search.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub score: Option<f32>,
}

/// Samples completions and passes each to `each`. `progress` receives how many of how many prompts are done. Returns remarks on how
/// the rows were read and on those that are left out.
///
/// # Errors
/// If the model or a prompt is invalid, if a prompt leaves no room for its completion, or if `each` fails.
pub fn sample<E: From<Error>>(
    options: &SampleOptions,
    progress: &mut dyn FnMut(usize, usize),
    each: &mut dyn FnMut(Sampled) -> Result<(), E>,
) -> Result<Vec<String>, E> {
    let files = open_files(&options.model, options.adapter.as_deref(), &options.text)?;
    let mut params = options.params.clone().forcing(files.dir.forced_ids());
    params.check()?;
    options.beams.map_or(Ok(()), |beams| beams.check(options.group_size, params.temperature))?;
    options.device.check_compute("`--compute`", options.compute)?;
    params.stop_ids.extend(files.stop_ids());
    let (rows, mut remarks) = options.prompts.rows(options)?;
    let tokenize = TokenizeOptions { max_length: None, bad_rows: options.bad_rows, ..super::tokenize(&files)? };
    let made = data::prompts(&rows, &files.tokenizer, files.template.as_ref(), &tokenize)?;
    remarks.extend(left_out(&made.skipped));
    let prompts = made.examples;
    let model = CausalLm::load_packed(&files.dir, options.weights, &options.device.device())?;
    let model = model.with_compute(options.compute).into_frozen(options.weights);
    check_room(&prompts, params.max_new_tokens, model.position_budget())?;
    let sampler = Sampler {
        tokenizer: &files.tokenizer,
        group_size: options.group_size,
        params,
        beams: options.beams,
        stop: &options.stop,
        masking: None,
        episodes: None,
        progress: &Unwatched,
    };
    let policy = Policy { model, version: 0 };
    let total = prompts.len();
    let mut done = 0;
    progress(done, total);
    for chunk in prompts.chunks(options.at_once.unwrap_or(PROMPTS_AT_ONCE).max(1)) {
        let first = done * options.group_size;
        let stream = |i: usize| options.seed.stream(Purpose::Generate, 0, (first + i) as u64);
        let sampled = LocalEngine::default().sample(policy.clone(), chunk.to_vec(), &sampler, &stream)?;
        for rollout in sampled.rollouts {
            let sum = rollout.logprobs.iter().map(|&logprob| f64::from(logprob)).sum::<f64>();
            check_finite("the log-probability of a token", sum)?;
            each(Sampled {
                score: rollout.beam_score,
                prompt: chunk[rollout.prompt].text.clone(),
                completion: rollout.completion,
                completion_ids: rollout.completion_ids,
                logprobs: rollout.logprobs,
                stop: rollout.stop.name(),
            })?;
        }
        done += chunk.len();
        progress(done, total);
    }
    Ok(remarks)
}

fn check_room(prompts: &[Prompt], max_new_tokens: usize, room: PositionBudget) -> Result<(), Error> {
    prompts.iter().try_for_each(|prompt| {
        let checked = room.check(&format!("prompt {}", prompt.row + 1), prompt.ids.len(), max_new_tokens);
        let fits_alone = room.holds(prompt.ids.len(), 1);
        checked.map_err(|error| match room.reads_separately() {
            // Only one of prompt and completion is too long, and the error says which.
            true => error,
            false if fits_alone => error.with_hint("shorten the prompt or lower `--max-new-tokens`"),
            false => error.with_hint("shorten the prompt"),
        })
    })
}
