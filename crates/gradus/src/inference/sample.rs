//! Completions of a data set's prompts, in the order of the prompts.

use std::path::Path;

use serde::Serialize;

use super::open_files;
use super::score::check_finite;
use crate::data::{self, Content, LoadOptions, Need, Place, Row, RowData, TokenizeOptions};
use crate::device::DeviceChoice;
use crate::error::Error;
use crate::generate::{BeamParams, SamplingParams};
use crate::model::{CausalLm, PositionBudget, Precision, WeightFormat};
use crate::pretrained::TextFiles;
use crate::progress::Unwatched;
use crate::rng::{Purpose, Seed};
use crate::rollout::{LocalEngine, Policy, Prompt, RolloutSource, Sampler};

/// Prompts that are sampled together unless fewer are asked for; their completions are given out before the next are begun.
const PROMPTS_AT_ONCE: usize = 64;

/// What is completed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompts {
    /// The prompts of a file, a directory or a hub name.
    Data(String),
    /// These texts.
    Texts(Vec<String>),
}

impl Prompts {
    fn rows(&self, max_rows: Option<usize>, rename: &[(String, String)]) -> Result<Vec<Row>, Error> {
        let texts = match self {
            Self::Data(name) => {
                let load = LoadOptions { max_rows, rename: rename.to_vec(), ..LoadOptions::needing(Need::Prompt) };
                return Ok(data::load(name, &load)?.rows);
            }
            Self::Texts(texts) => texts,
        };
        let row = |(index, text): (usize, &String)| Row {
            place: Place { file: Path::new("--prompt").into(), line: index + 1, row_in_array: None },
            index,
            data: RowData::Prompt(Content::Text(text.clone())),
            columns: serde_json::Map::new(),
        };
        Ok(texts.iter().take(max_rows.unwrap_or(usize::MAX)).enumerate().map(row).collect())
    }
}

/// What to sample.
#[derive(Debug, Clone, PartialEq)]
pub struct SampleOptions {
    /// The model: a directory or a hub name.
    pub model: String,
    /// An adapter on it: a directory in peft's format or a hub name.
    pub adapter: Option<String>,
    /// The prompts.
    pub prompts: Prompts,
    /// The distribution and the limits; the model's own stop ids are added.
    pub params: SamplingParams,
    /// Completions of each prompt.
    pub group_size: usize,
    /// Search for the completions with beams.
    pub beams: Option<BeamParams>,
    /// Strings that end a completion.
    pub stop: Vec<String>,
    /// The seed of every random stream.
    pub seed: Seed,
    /// Columns of the prompts' data set under other names, as (name in the file, name here).
    pub rename: Vec<(String, String)>,
    /// Use at most this many prompts.
    pub max_rows: Option<usize>,
    /// Sample at most this many prompts together, so that completions come earlier and `progress` hears of them more often.
    /// What they become does not depend on it. Default 64.
    pub at_once: Option<usize>,
    /// How the operands of products are held, where the format of the weights leaves that open.
    pub compute: Precision,
    /// How the weights are held; logprobs are those of the model so rounded.
    pub weights: WeightFormat,
    /// What replaces its tokenizer and chat template.
    pub text: TextFiles,
    /// Where to compute.
    pub device: DeviceChoice,
}

/// One completion.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sampled {
    /// The prompt's text, rendered by the chat template where the row holds messages.
    pub prompt: String,
    /// The completion, without special tokens, cut before a stop string.
    pub completion: String,
    /// The sampled ids, the stop id included.
    pub completion_ids: Vec<u32>,
    /// Log-probability of each id under the model, in nats.
    pub logprobs: Vec<f32>,
    /// Why it ended: `stop_id`, `stop_string` or `length`.
    pub stop: &'static str,
    /// What a search with beams ranked it by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub score: Option<f32>,
}

/// Samples completions and gives each to `each`; `progress` hears how many of how many prompts are done.
///
/// # Errors
/// What is wrong with the model or the prompts, a prompt without room for its completion, or what `each` fails with.
pub fn sample<E: From<Error>>(
    options: &SampleOptions,
    progress: &mut dyn FnMut(usize, usize),
    each: &mut dyn FnMut(Sampled) -> Result<(), E>,
) -> Result<(), E> {
    let files = open_files(&options.model, options.adapter.as_deref(), &options.text)?;
    let mut params = options.params.clone().forcing(files.dir.forced_ids());
    params.check()?;
    options.device.check_compute("`--compute`", options.compute)?;
    params.stop_ids.extend(files.stop_ids());
    let rows = options.prompts.rows(options.max_rows, &options.rename)?;
    let tokenize = TokenizeOptions { max_length: None, ..super::tokenize(&files)? };
    let prompts = data::prompts(&rows, &files.tokenizer, files.template.as_ref(), &tokenize)?.examples;
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
    options.beams.map_or(Ok(()), |beams| beams.check(options.group_size))?;
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
            let score = |beams: &BeamParams| beams.score(&rollout.sampled_logprobs);
            each(Sampled {
                score: options.beams.as_ref().map(score),
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
    Ok(())
}

fn check_room(prompts: &[Prompt], max_new_tokens: usize, room: PositionBudget) -> Result<(), Error> {
    prompts.iter().try_for_each(|prompt| {
        let checked = room.check(&format!("prompt {}", prompt.row + 1), prompt.ids.len(), max_new_tokens);
        checked.map_err(|error| error.with_hint("shorten the prompt or lower `--max-new-tokens`"))
    })
}
