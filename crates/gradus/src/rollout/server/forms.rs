//! Request and answer formats of each kind of server. Every deviation in an answer is an error with a message.

use std::sync::Arc;

use rand::RngCore;
use serde_json::{Map, Value, json};

use crate::generate::SamplingParams;
use crate::rng::stream_of_key;

/// Number that vLLM writes for an unknown log-probability.
pub(super) const UNKNOWN_LOGPROB: f64 = -9999.0;

/// Amount by which rounding may lift a log-probability above 0.
pub(super) const ROUNDING: f64 = 1e-3;

/// Maximum bytes of an answer per token: its id, name, text and log-probability.
const TOKEN_BYTES: usize = 1024;

/// Maximum bytes of the rest of an answer.
pub(super) const FRAME_BYTES: usize = 1 << 20;

/// Request for completions of one prompt.
pub(super) struct CompletionRequest {
    /// Ids of the prompt.
    pub prompt: Vec<u32>,
    /// Keys of the random streams, one per completion.
    pub keys: Vec<String>,
    /// Sampling parameters.
    pub params: Arc<SamplingParams>,
    /// Strings that end a completion.
    pub stop: Arc<[String]>,
    /// Size of the vocabulary.
    pub vocabulary: usize,
}

/// One completion.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ServerCompletion {
    pub ids: Vec<u32>,
    /// Log-probabilities; NaN if the server does not report one.
    pub logprobs: Vec<f32>,
    /// Whether it was cut at the length limit.
    pub is_cut: bool,
    /// Name of the weights, if the server reports it.
    pub version: Option<String>,
}

/// Problem with an answer.
#[derive(Debug, PartialEq)]
pub(super) enum AnswerProblem {
    /// The completion was interrupted by a pause or a restart.
    BrokenOff,
    /// The answer cannot be used.
    Unusable(String),
}

fn unusable<T>(message: impl Into<String>) -> Result<T, AnswerProblem> {
    Err(AnswerProblem::Unusable(message.into()))
}

impl CompletionRequest {
    /// Returns the maximum size of an answer in bytes.
    pub fn limit(&self) -> u64 {
        let tokens = self.keys.len() * (self.params.max_new_tokens + self.prompt.len() + 1);
        (FRAME_BYTES + tokens * TOKEN_BYTES) as u64
    }

    /// Derives a seed for servers without random streams.
    fn seed(key: &str) -> u64 {
        // Integers of other languages are signed.
        stream_of_key(key).map_or(0, |mut stream| stream.next_u64() >> 1)
    }

    /// Returns the request to vLLM or gradus at `/v1/completions`; gradus gets a random stream per completion.
    pub fn openai(&self, model: &str, has_streams: bool) -> Value {
        let params = &self.params;
        let mut body = json!({
            "model": model,
            "prompt": self.prompt,
            "n": self.keys.len(),
            "max_tokens": params.max_new_tokens,
            // A later turn of an episode may have less room.
            "min_tokens": params.min_new_tokens.min(params.max_new_tokens),
            "temperature": number(params.temperature),
            "top_p": number(params.top_p),
            "top_k": params.top_k.map_or(-1, |k| k as i64),
            "min_p": number(params.min_p),
            "repetition_penalty": number(params.repetition_penalty),
            "stop_token_ids": params.stop_ids,
            "stop": &*self.stop,
            "logprobs": 0,
            "return_token_ids": true,
            "return_tokens_as_token_ids": true,
            "return_weight_versions": true,
        });
        if has_streams {
            body["random_streams"] = json!(self.keys);
            body["typical_p"] = number(params.typical_p);
            body["no_repeat_ngram_size"] = json!(params.no_repeat_ngram_size);
            body["encoder_no_repeat_ngram_size"] = json!(params.encoder_no_repeat_ngram_size);
            body["suppress_tokens"] = json!(params.suppress_tokens);
            body["bad_words_ids"] = json!(params.bad_words_ids);
            body["forced_bos_token_id"] = json!(params.forced_bos_token_id);
            body["forced_eos_token_id"] = json!(params.forced_eos_token_id);
        } else {
            body["seed"] = json!(self.keys.first().map_or(0, |key| Self::seed(key)));
        }
        body
    }

    /// Parses their answer.
    pub fn read_openai(&self, answer: &Value) -> Result<Vec<ServerCompletion>, AnswerProblem> {
        let Some(choices) = answer["choices"].as_array() else { return unusable("the answer has no `choices`") };
        let n = self.keys.len();
        if choices.len() != n {
            return unusable(format!("{n} completions were requested, but the answer has {}", choices.len()));
        }
        let mut found: Vec<Option<ServerCompletion>> = vec![None; n];
        for choice in choices {
            let index = choice["index"].as_u64().map_or(n, |index| index as usize);
            let Some(place) = found.get_mut(index) else {
                return unusable(format!("a completion has the index {}, but there are {n}", choice["index"]));
            };
            if place.replace(self.read_choice(choice)?).is_some() {
                return unusable(format!("two completions have the index {index}"));
            }
        }
        // There are as many entries as places, and no two share one.
        Ok(found.into_iter().flatten().collect())
    }

    fn read_choice(&self, choice: &Value) -> Result<ServerCompletion, AnswerProblem> {
        const UNSUPPORTED: &str = ": the server does not support `return_token_ids`";
        if ids_at(choice, "prompt_token_ids", UNSUPPORTED)? != self.prompt {
            return unusable("the prompt of the server differs from the one it was sent (`prompt_token_ids`)");
        }
        let ids = ids_at(choice, "token_ids", UNSUPPORTED)?;
        let is_cut = is_cut(choice["finish_reason"].as_str())?;
        let logprobs = &choice["logprobs"];
        let (Some(names), Some(values)) = (logprobs["tokens"].as_array(), logprobs["token_logprobs"].as_array()) else {
            return unusable("a completion has no log-probabilities (`logprobs`)");
        };
        if names.len() != ids.len() || values.len() != ids.len() {
            let (names, values) = (names.len(), values.len());
            return unusable(format!(
                "a completion has {} ids, but {names} tokens and {values} log-probabilities",
                ids.len()
            ));
        }
        for (name, id) in names.iter().zip(&ids) {
            let named = name.as_str().and_then(|name| name.strip_prefix("token_id:")?.parse::<u32>().ok());
            if named != Some(*id) {
                return unusable(format!("a log-probability is that of {name}, but the id is {id}"));
            }
        }
        let logprobs = values.iter().map(logprob).collect::<Result<_, _>>()?;
        let version = choice["weight_versions"].as_array().filter(|spans| !spans.is_empty());
        let version = match version.map(Vec::as_slice) {
            None => None,
            Some([span]) => span["version"].as_str().map(str::to_owned),
            Some(spans) => {
                return unusable(format!("a completion was sampled with {} versions of the weights", spans.len()));
            }
        };
        self.checked(ServerCompletion { ids, logprobs, is_cut, version })
    }

    /// Returns the request to SGLang at `/generate`.
    pub fn sglang(&self, adapter: Option<&str>) -> Value {
        let params = &self.params;
        let of = |key: &String| {
            let mut one = json!({
                "max_new_tokens": params.max_new_tokens,
                "min_new_tokens": params.min_new_tokens,
                "temperature": number(params.temperature),
                "top_p": number(params.top_p),
                "top_k": params.top_k.map_or(-1, |k| k as i64),
                "min_p": number(params.min_p),
                "repetition_penalty": number(params.repetition_penalty),
                "stop_token_ids": params.stop_ids,
                "skip_special_tokens": false,
                "sampling_seed": Self::seed(key) >> 32,
            });
            if !self.stop.is_empty() {
                one["stop"] = json!(&*self.stop);
            }
            one
        };
        let mut body = Map::from_iter([
            ("input_ids".to_owned(), json!(vec![&self.prompt; self.keys.len()])),
            ("sampling_params".to_owned(), self.keys.iter().map(of).collect()),
            ("return_logprob".to_owned(), json!(true)),
            ("logprob_start_len".to_owned(), json!(-1)),
            ("stream".to_owned(), json!(false)),
        ]);
        if let Some(adapter) = adapter {
            body.insert("lora_path".to_owned(), json!(vec![adapter; self.keys.len()]));
        }
        Value::Object(body)
    }

    /// Parses its answer.
    pub fn read_sglang(&self, answer: &Value) -> Result<Vec<ServerCompletion>, AnswerProblem> {
        let Some(all) = answer.as_array() else { return unusable("the answer is not a list of completions") };
        let n = self.keys.len();
        if all.len() != n {
            return unusable(format!("{n} completions were requested, but the answer has {}", all.len()));
        }
        all.iter().map(|one| self.read_generated(one)).collect()
    }

    fn read_generated(&self, one: &Value) -> Result<ServerCompletion, AnswerProblem> {
        let ids = ids_at(one, "output_ids", "")?;
        let meta = &one["meta_info"];
        let prompt = meta["prompt_tokens"].as_u64();
        if prompt.is_some_and(|tokens| tokens != self.prompt.len() as u64) {
            return unusable("the prompt of the server differs from the one it was sent (`prompt_tokens`)");
        }
        let is_cut = is_cut(meta["finish_reason"]["type"].as_str())?;
        let Some(entries) = meta["output_token_logprobs"].as_array() else {
            return unusable("a completion has no log-probabilities (`output_token_logprobs`)");
        };
        if entries.len() != ids.len() {
            return unusable(format!("a completion has {} ids, but {} log-probabilities", ids.len(), entries.len()));
        }
        let mut logprobs = Vec::with_capacity(ids.len());
        for (entry, id) in entries.iter().zip(&ids) {
            if entry[1].as_u64() != Some(u64::from(*id)) {
                return unusable(format!("a log-probability is that of {}, but the id is {id}", entry[1]));
            }
            logprobs.push(logprob(&entry[0])?);
        }
        let version = meta["weight_version"].as_str().map(str::to_owned);
        self.checked(ServerCompletion { ids, logprobs, is_cut, version })
    }

    /// Rejects completions that the sampler cannot have produced.
    fn checked(&self, completed: ServerCompletion) -> Result<ServerCompletion, AnswerProblem> {
        let (ids, most) = (&completed.ids, self.params.max_new_tokens);
        if ids.is_empty() || ids.len() > most {
            return unusable(format!("a completion has {} tokens, but must have 1 to {most}", ids.len()));
        }
        match ids.iter().find(|id| **id as usize >= self.vocabulary) {
            Some(id) => unusable(format!(
                "a completion holds token id {id}, but the model's vocabulary has {} ids",
                self.vocabulary
            )),
            None => Ok(completed),
        }
    }
}

/// Converts a setting by its decimal notation, not by its bits.
fn number(value: f32) -> Value {
    value.to_string().parse::<f64>().map_or(Value::Null, |value| json!(value))
}

pub(super) fn ids(value: &Value) -> Option<Vec<u32>> {
    value.as_array()?.iter().map(id).collect()
}

fn id(value: &Value) -> Option<u32> {
    u32::try_from(value.as_u64()?).ok()
}

/// Parses the field `name` of a completion, a list of ids. `why` follows the message that there is none.
fn ids_at(completion: &Value, name: &str, why: &str) -> Result<Vec<u32>, AnswerProblem> {
    let Some(list) = completion[name].as_array() else { return unusable(format!("a completion has no `{name}`{why}")) };
    let one = |(i, value): (usize, &Value)| {
        let wrong = || AnswerProblem::Unusable(format!("`{name}[{i}]` of a completion is {value}, not a token id"));
        id(value).ok_or_else(wrong)
    };
    list.iter().enumerate().map(one).collect()
}

fn is_cut(reason: Option<&str>) -> Result<bool, AnswerProblem> {
    match reason {
        Some("length") => Ok(true),
        Some("stop") => Ok(false),
        Some("abort") => Err(AnswerProblem::BrokenOff),
        Some(other) => unusable(format!("a completion ended with the reason `{other}`")),
        None => unusable("a completion has no `finish_reason`"),
    }
}

/// Parses a log-probability; NaN if it is unknown.
fn logprob(value: &Value) -> Result<f32, AnswerProblem> {
    match value {
        Value::Null => Ok(f32::NAN),
        Value::Number(number) => match number.as_f64() {
            Some(UNKNOWN_LOGPROB) => Ok(f32::NAN),
            Some(logprob) if logprob <= ROUNDING => Ok(logprob as f32),
            _ => unusable(format!("a log-probability is {number}, above 0")),
        },
        other => unusable(format!("a log-probability is {other}, not a number")),
    }
}
