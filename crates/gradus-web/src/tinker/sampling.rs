//! Completions and log-probabilities of prompts for Tinker's clients.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use gradus::generate::{Completion, Engine, Event, Request, SamplingParams, StopReason, StopRule};
use gradus::inference::score_text;
use gradus::model::{CausalLm, Rows, Sequence, Targets};
use gradus::rng::{Purpose, Seed};
use gradus::text::{StopStrings, Tokenizer};
use gradus::{Error, Result};
use prost::Message;
use serde::Deserialize;
use serde_json::Value;

use super::outcome::{Failure, RequestResult};
use super::proto::{self, DType, Encoding, SampleResponse, SampledSequence, TopkLogprobs, bytes_of};

/// Maximum number of completions per prompt.
pub const SAMPLES_MAX: usize = 1024;

/// Maximum number of most likely ids per token.
const LIKELIEST_MAX: usize = 128;

/// Maximum number of stop strings, and maximum size of each in bytes. All of them are checked at every token.
const STOPS_MAX: usize = 64;
const STOP_BYTES: usize = 1024;

/// Initial capacity of a row in tokens.
const CAPACITY: usize = 256;

/// Body of `POST /api/v1/asample`.
#[derive(Debug, Clone, Deserialize)]
pub struct SampleBody {
    /// Number of completions.
    #[serde(default = "one")]
    pub num_samples: usize,
    /// Prompt in parts.
    pub prompt: Prompt,
    /// Sampling parameters.
    pub sampling_params: Params,
    /// Id of the sampler.
    pub sampling_session_id: Option<String>,
    /// Number of the request.
    pub seq_id: Option<u64>,
    /// Whether log-probabilities of the prompt are requested.
    #[serde(default)]
    prompt_logprobs: Option<bool>,
    #[serde(default)]
    topk_prompt_logprobs: usize,
    #[serde(default)]
    topk_sample_logprobs: usize,
    #[serde(default)]
    target_prompt_logprobs: Option<JsonTensor>,
    #[serde(default)]
    prompt_alt_tokens_k: i64,
    #[serde(default)]
    prompt_logprobs_last_n: Option<i64>,
    #[serde(default)]
    record_stability_info: Option<bool>,
}

fn one() -> usize {
    1
}

/// A prompt in parts.
#[derive(Debug, Clone, Deserialize)]
pub struct Prompt {
    chunks: Vec<Value>,
}

/// Sampling parameters.
#[derive(Debug, Clone, Deserialize)]
pub struct Params {
    max_tokens: Option<i64>,
    seed: Option<i128>,
    #[serde(default)]
    stop: Value,
    temperature: Option<f64>,
    top_k: Option<i64>,
    top_p: Option<f64>,
}

/// A tensor in JSON.
#[derive(Debug, Clone, Deserialize)]
struct JsonTensor {
    data: Vec<i64>,
    dtype: String,
    shape: Option<Vec<i64>>,
    sparse_crow_indices: Option<Vec<i64>>,
    sparse_col_indices: Option<Vec<i64>>,
}

/// Parsed request to a sampler.
#[derive(Debug, Clone, PartialEq)]
pub struct SampleRequest {
    prompt: Vec<u32>,
    samples: usize,
    params: SamplingParams,
    /// Whether the model's own stop ids are ignored.
    is_endless: bool,
    stop: Vec<String>,
    seed: Seed,
    /// Number of last prompt tokens whose log-probabilities are returned, if requested.
    prompt_logprobs: Option<usize>,
    likeliest_of_prompt: usize,
    targets: Option<PromptTargets>,
}

/// Ids whose log-probabilities at positions of the prompt are requested.
#[derive(Debug, Clone, PartialEq)]
struct PromptTargets {
    /// For each cell, the scored position of the prompt and the id.
    cells: Vec<(usize, Option<u32>)>,
    /// Shape in the request.
    shape: Vec<i64>,
    /// Row starts and columns of a sparse matrix.
    sparse: Option<(Vec<i64>, Vec<i64>)>,
}

impl SampleRequest {
    /// Returns the number of requested completions.
    pub fn samples(&self) -> usize {
        self.samples
    }
}

impl SampleBody {
    /// Parses the request.
    ///
    /// # Errors
    /// A description of the invalid field.
    pub fn read(self) -> Result<SampleRequest, String> {
        let mut prompt = Vec::new();
        for chunk in &self.prompt.chunks {
            let kind = chunk.get("type").and_then(Value::as_str).unwrap_or("encoded_text");
            if kind != "encoded_text" {
                return Err(format!("`prompt` has a chunk of the type `{kind}`; only text is supported"));
            }
            let tokens = chunk.get("tokens").and_then(Value::as_array).ok_or("a chunk of `prompt` has no `tokens`")?;
            for token in tokens {
                let id = token.as_u64().and_then(|id| u32::try_from(id).ok());
                prompt.push(id.ok_or_else(|| format!("`prompt` has {token}, which is not a token"))?);
            }
        }
        let samples = match self.num_samples {
            n if (1..=SAMPLES_MAX).contains(&n) => n,
            n => return Err(format!("`num_samples` is {n}, but 1 to {SAMPLES_MAX} are possible")),
        };
        if self.prompt_alt_tokens_k != 0 {
            return Err("`prompt_alt_tokens_k` is not supported by this server: leave it out".into());
        }
        if self.record_stability_info == Some(true) {
            return Err("`record_stability_info` is not supported by this server: leave it out".into());
        }
        for (name, k) in
            [("topk_prompt_logprobs", self.topk_prompt_logprobs), ("topk_sample_logprobs", self.topk_sample_logprobs)]
        {
            if k > LIKELIEST_MAX {
                return Err(format!("`{name}` is {k}, but at most {LIKELIEST_MAX} is allowed"));
            }
        }
        let is_requested = self.prompt_logprobs == Some(true);
        let prompt_logprobs = match self.prompt_logprobs_last_n {
            None => is_requested.then_some(prompt.len()),
            Some(_) if !is_requested => return Err("`prompt_logprobs_last_n` needs `prompt_logprobs`".into()),
            Some(n) if n >= 1 && (n as usize) < prompt.len() => Some(n as usize),
            Some(n) => {
                let most = prompt.len().saturating_sub(1);
                return Err(format!("`prompt_logprobs_last_n` is {n}, but 1 to {most} are possible for this prompt"));
            }
        };
        let targets = self.target_prompt_logprobs.map(|tensor| targets(tensor, prompt.len())).transpose()?;
        let Params { max_tokens, seed, stop, temperature, top_k, top_p } = self.sampling_params;
        let (stop, stop_ids, is_endless) = stops(&stop)?;
        let params = SamplingParams {
            temperature: temperature.unwrap_or(1.0) as f32,
            top_k: match top_k.unwrap_or(-1) {
                k if k > 0 => Some(k as usize),
                0 | -1 => None,
                k => return Err(format!("`top_k` is {k}, but a whole number above 0, or -1 for all, is needed")),
            },
            top_p: top_p.unwrap_or(1.0) as f32,
            max_new_tokens: match max_tokens {
                None => usize::MAX,
                Some(n) if n >= 1 => usize::try_from(n).unwrap_or(usize::MAX),
                Some(n) => return Err(format!("`max_tokens` is {n}, but must be at least 1")),
            },
            stop_ids,
            likeliest: self.topk_sample_logprobs,
            ..SamplingParams::default()
        };
        params.check().map_err(|error| error.to_string())?;
        let seed = match seed {
            Some(seed) => Seed(seed as u64),
            None => Seed(random().map_err(|error| error.to_string())?),
        };
        let likeliest_of_prompt = self.topk_prompt_logprobs;
        Ok(SampleRequest {
            prompt,
            samples,
            params,
            is_endless,
            stop,
            seed,
            prompt_logprobs,
            likeliest_of_prompt,
            targets,
        })
    }
}

/// Returns a random seed.
///
/// # Errors
/// The system provides no randomness.
pub fn random() -> Result<u64> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|error| Error::input(error.to_string()))?;
    Ok(u64::from_le_bytes(bytes))
}

/// Parses stop strings and stop ids. Also returns whether only the length stops a completion.
fn stops(stop: &Value) -> Result<(Vec<String>, Vec<u32>, bool), String> {
    let wrong = || {
        format!(
            "`stop` is not a string, a list of strings or a list of token ids: at most {STOPS_MAX} strings of 1 to \
             {STOP_BYTES} bytes are possible"
        )
    };
    let list = match stop {
        Value::Null => return Ok((Vec::new(), Vec::new(), false)),
        Value::String(text) => vec![Value::String(text.clone())],
        Value::Array(list) => list.clone(),
        _ => return Err(wrong()),
    };
    let (mut strings, mut ids) = (Vec::new(), Vec::new());
    for value in &list {
        match value {
            Value::String(text) if (1..=STOP_BYTES).contains(&text.len()) => strings.push(text.clone()),
            Value::Number(number) => {
                ids.push(number.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(wrong)?);
            }
            _ => return Err(wrong()),
        }
    }
    if strings.len() > STOPS_MAX {
        return Err(wrong());
    }
    Ok((strings, ids, list.is_empty()))
}

/// Parses the cells of `target_prompt_logprobs`.
fn targets(tensor: JsonTensor, prompt: usize) -> Result<PromptTargets, String> {
    let JsonTensor { data, dtype, shape, sparse_crow_indices, sparse_col_indices } = tensor;
    let wrong = |why: String| Err(format!("`target_prompt_logprobs` {why}"));
    if dtype != "int64" {
        return wrong(format!("has the type `{dtype}`, but int64 is needed"));
    }
    let rows = prompt.saturating_sub(1);
    let Some([n, k]) = shape.as_deref().and_then(|shape| <[i64; 2]>::try_from(shape).ok()) else {
        return wrong(format!("has the shape {shape:?}, but [{rows}, K] is needed"));
    };
    if n != rows as i64 || !(1..=1 << 20).contains(&k) {
        return wrong(format!("has the shape [{n}, {k}], but [{rows}, K] is needed"));
    }
    // Row `i` describes position `i + 1` of the prompt, which the previous token predicts.
    let id = |id: i64| u32::try_from(id).ok();
    let (cells, sparse) = match (sparse_crow_indices, sparse_col_indices) {
        (None, None) if data.len() == rows * k as usize => {
            (data.iter().enumerate().map(|(at, &target)| (at / k as usize, id(target))).collect(), None)
        }
        (Some(begins), Some(columns)) => {
            let is_whole = begins.len() == rows + 1
                && begins.first() == Some(&0)
                && begins.last() == Some(&(data.len() as i64))
                && begins.is_sorted()
                && columns.len() == data.len()
                && columns.iter().all(|column| (0..k).contains(column));
            if !is_whole {
                return wrong("is a broken sparse matrix".into());
            }
            let row = |at: usize| begins.partition_point(|&begin| begin <= at as i64) - 1;
            let cells = data.iter().enumerate().map(|(at, &target)| (row(at), id(target))).collect();
            (cells, Some((begins, columns)))
        }
        _ => return wrong(format!("has {} numbers, but its shape is [{n}, {k}]", data.len())),
    };
    Ok(PromptTargets { cells, shape: vec![n, k], sparse })
}

/// A sampler in memory: a model and its rows.
pub struct Sampling {
    model: CausalLm,
    tokenizer: Tokenizer,
    stop_ids: Vec<u32>,
    engine: Engine<'static>,
    /// For each row of the engine, the request and the index of the completion.
    rows: HashMap<usize, (u64, usize)>,
    running: BTreeMap<u64, Running>,
}

struct Running {
    prompt: Vec<u32>,
    stop: Arc<[String]>,
    sampled: Vec<Option<Completion>>,
    likeliest: Vec<Vec<Vec<(u32, f32)>>>,
    likeliest_count: usize,
    response: SampleResponse,
}

impl Sampling {
    /// Creates a sampler that processes up to `places` rows together. Its requests take turns.
    pub fn new(model: CausalLm, tokenizer: Tokenizer, stop_ids: Vec<u32>, places: usize) -> Self {
        let engine = Engine::shared(&model, places, CAPACITY);
        Self { model, tokenizer, stop_ids, engine, rows: HashMap::new(), running: BTreeMap::new() }
    }

    /// Returns whether any row is being sampled.
    pub fn is_busy(&self) -> bool {
        !self.rows.is_empty()
    }

    /// Begins a request. If the prompt fills the model, returns its result: completions without tokens.
    ///
    /// # Errors
    /// The prompt is too long, or contains an unknown id.
    pub fn begin(&mut self, seq: u64, request: &SampleRequest) -> Result<Option<RequestResult>, Failure> {
        let SampleRequest { prompt, samples, params, .. } = request;
        self.model.position_budget().check_text("the prompt", prompt.len(), 0)?;
        let mut params = params.clone();
        if !request.is_endless {
            params.stop_ids.extend(&self.stop_ids);
        }
        match self.model.position_budget().after(prompt.len()) {
            Some(0) => {
                let vocabulary = self.model.vocab_size();
                if let Some(id) = prompt.iter().find(|&&id| id as usize >= vocabulary) {
                    let message =
                        format!("the prompt has token id {id}, but the model's vocabulary has {vocabulary} ids");
                    return Err(Failure::user(message));
                }
                let (mut response, k) = (self.of_prompt(request)?, params.likeliest);
                let empty = SampledSequence {
                    stop_reason: proto::StopReason::Length.into(),
                    tokens: Vec::new(),
                    logprobs: Some(Vec::new()),
                    topk_sampled_logprobs: (k > 0).then(|| topk(std::iter::empty(), k, 0)),
                };
                response.sequences = vec![empty; *samples];
                return Ok(Some(RequestResult::Proto(response.encode_to_vec())));
            }
            Some(room) => params.max_new_tokens = params.max_new_tokens.min(room),
            None => {}
        }
        let response = self.of_prompt(request)?;
        let streams = (0..*samples as u64).map(|i| request.seed.stream(Purpose::Generate, 0, i)).collect();
        let params = Arc::new(params);
        let likeliest_count = params.likeliest;
        let rows = self.engine.submit_for(seq, Request { prompt: prompt.clone(), params, streams, is_kept: false })?;
        self.rows.extend(rows.enumerate().map(|(i, row)| (row, (seq, i))));
        let (prompt, stop, sampled) = (prompt.clone(), request.stop.clone().into(), vec![None; *samples]);
        let likeliest = vec![Vec::new(); *samples];
        self.running.insert(seq, Running { prompt, stop, sampled, likeliest, likeliest_count, response });
        Ok(None)
    }

    /// Computes the response about the prompt.
    fn of_prompt(&self, request: &SampleRequest) -> Result<SampleResponse> {
        let SampleRequest { prompt, prompt_logprobs, likeliest_of_prompt, targets, .. } = request;
        let mut response = SampleResponse::default();
        let k = *likeliest_of_prompt;
        if prompt_logprobs.is_some() || k > 0 {
            let scores = score_text(&self.model, prompt, k)?;
            // The first token has no context.
            let first = prompt.len() - prompt_logprobs.unwrap_or(prompt.len()).min(prompt.len());
            let is_requested = |at: usize| at > 0 && at >= first;
            if prompt_logprobs.is_some() {
                let of = |at: usize| if is_requested(at) { scores[at - 1].logprob } else { f32::NAN };
                let values: Vec<f32> = (0..prompt.len()).map(of).collect();
                response.prompt_logprobs = Some(bytes_of(&values, f32::to_le_bytes));
            }
            if k > 0 {
                let rows =
                    (0..prompt.len()).map(|at| if is_requested(at) { &scores[at - 1].likeliest[..] } else { &[] });
                response.topk_prompt_logprobs = Some(topk(rows, k, prompt.len()));
            }
        }
        if let Some(targets) = targets {
            response.target_prompt_logprobs = Some(self.of_targets(prompt, targets)?);
        }
        Ok(response)
    }

    /// Computes the log-probabilities of the requested ids.
    fn of_targets(&self, prompt: &[u32], targets: &PromptTargets) -> Result<proto::Tensor> {
        let vocabulary = self.model.vocab_size();
        let named = targets.cells.iter().filter_map(|(_, id)| *id).chain(prompt.iter().copied());
        if let Some(id) = named.into_iter().find(|id| *id as usize >= vocabulary) {
            let message = format!("the token id {id} is unknown: the model's vocabulary has {vocabulary} ids");
            return Err(Error::input(message));
        }
        self.model.position_budget().check_text("the prompt", prompt.len(), 0)?;
        let requested: Vec<(usize, usize, u32)> =
            targets.cells.iter().enumerate().filter_map(|(at, (row, id))| Some((at, *row, (*id)?))).collect();
        if requested.is_empty() {
            return Err(Error::input("`target_prompt_logprobs` has no token"));
        }
        let batch = self.model.batch(&Rows::Alone(vec![Sequence::text(prompt)]));
        let of = Targets {
            positions: requested.iter().map(|(_, row, _)| batch.packed().index(0, *row)).collect(),
            ids: requested.iter().map(|(_, _, id)| *id).collect(),
            counts_b: vec![requested.len()],
            supports_m: Vec::new(),
        };
        let found = self.model.token_logprobs(self.model.hidden(&batch), &of, 1.0).logprobs_m;
        let found: Vec<f32> = found.into_data().try_into_vec().map_err(|_| Error::input("no numbers came back"))?;
        let mut all = vec![f32::NAN; targets.cells.len()];
        requested.iter().zip(found).for_each(|((at, _, _), logprob)| all[*at] = logprob);
        let values = bytes_of(&all, f32::to_le_bytes);
        let encoding = match &targets.sparse {
            None => Encoding::Dense(values),
            Some((begins, columns)) => Encoding::SparseCsr(proto::SparseCsr {
                values,
                crow_indices: bytes_of(begins, i64::to_le_bytes),
                col_indices: bytes_of(columns, i64::to_le_bytes),
            }),
        };
        let (encoding, dtype) = (Some(encoding), DType::Float32.into());
        Ok(proto::Tensor { encoding, dtype, shape: targets.shape.clone() })
    }

    /// Cancels a request.
    pub fn cancel(&mut self, seq: u64) {
        self.running.remove(&seq);
        let gone: Vec<usize> = self.rows.iter().filter(|(_, (of, _))| *of == seq).map(|(row, _)| *row).collect();
        for row in gone {
            self.rows.remove(&row);
            self.engine.cancel(row);
        }
    }

    /// Samples one token for every row. Returns the finished requests.
    pub fn step(&mut self) -> Vec<(u64, RequestResult)> {
        let mut stops = Stops { tokenizer: &self.tokenizer, rows: &self.rows, running: &self.running };
        let events = self.engine.step(&mut stops);
        let mut done = Vec::new();
        for event in events {
            match event {
                Event::Token { row, likeliest, .. } => {
                    let Some((seq, i)) = self.rows.get(&row) else { continue };
                    if let Some(running) = self.running.get_mut(seq).filter(|running| running.likeliest_count > 0) {
                        running.likeliest[*i].push(likeliest);
                    }
                }
                Event::Finished { row, completion } => {
                    let Some((seq, i)) = self.rows.remove(&row) else { continue };
                    let Some(running) = self.running.get_mut(&seq) else { continue };
                    running.sampled[i] = Some(completion);
                    if running.sampled.iter().all(Option::is_some) {
                        let running = self.running.remove(&seq).expect("it was just there");
                        done.push((seq, running.outcome()));
                    }
                }
            }
        }
        done
    }
}

impl Running {
    fn outcome(self) -> RequestResult {
        let Self { sampled, likeliest, likeliest_count, mut response, .. } = self;
        for (completion, likeliest) in sampled.into_iter().flatten().zip(likeliest) {
            let stop_reason = match completion.stop {
                StopReason::Length => proto::StopReason::Length,
                StopReason::StopId | StopReason::StopString => proto::StopReason::Stop,
            };
            response.sequences.push(SampledSequence {
                stop_reason: stop_reason.into(),
                tokens: bytes_of(&completion.ids, |id| id.cast_signed().to_le_bytes()),
                logprobs: Some(bytes_of(&completion.logprobs, f32::to_le_bytes)),
                topk_sampled_logprobs: (likeliest_count > 0)
                    .then(|| topk(likeliest.iter().map(Vec::as_slice), likeliest_count, likeliest.len())),
            });
        }
        RequestResult::Proto(response.encode_to_vec())
    }
}

/// Value of an empty cell of [`topk`] in Tinker's clients.
const EMPTY: (i32, f32) = (0, -99_999.0);

/// Arranges the most likely ids of several positions as a matrix.
fn topk<'a>(rows: impl Iterator<Item = &'a [(u32, f32)]>, k: usize, length: usize) -> TopkLogprobs {
    let (mut ids, mut logprobs) = (Vec::new(), Vec::new());
    for row in rows {
        for i in 0..k {
            let (id, logprob) = row.get(i).map_or(EMPTY, |(id, logprob)| (id.cast_signed(), *logprob));
            ids.push(id);
            logprobs.push(logprob);
        }
    }
    let (token_ids, logprobs) = (bytes_of(&ids, i32::to_le_bytes), bytes_of(&logprobs, f32::to_le_bytes));
    TopkLogprobs { token_ids, logprobs, k: k as u32, length: length as u32 }
}

/// Stop strings of all rows.
struct Stops<'a> {
    tokenizer: &'a Tokenizer,
    rows: &'a HashMap<usize, (u64, usize)>,
    running: &'a BTreeMap<u64, Running>,
}

impl StopRule for Stops<'_> {
    fn stops(&mut self, row: usize, completion_ids: &[u32]) -> bool {
        let Some(running) = self.rows.get(&row).and_then(|(seq, _)| self.running.get(seq)) else { return true };
        !running.stop.is_empty()
            && StopStrings::new(self.tokenizer, running.stop.iter().cloned()).stops(&running.prompt, completion_ids)
    }
}
