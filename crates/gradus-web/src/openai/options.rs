//! Common fields of requests for completions and for answers: the model, the distribution, the limits.

use std::sync::Arc;

use gradus::generate::SamplingParams;
use gradus::rng::{Purpose, Seed, Stream, stream_of_key};
use serde_json::{Map, Value, json};

use super::fields::Fields;
use super::refused::Refused;
use crate::app::App;
use crate::model_queue::Token;
use crate::serving::main_model;

/// Maximum number of completions per prompt and per request.
pub const COMPLETIONS_MAX: usize = 128;

/// Maximum number of stop strings, and maximum size of each in bytes. All of them are checked at every token.
const STOPS_MAX: usize = 16;
const STOP_BYTES: usize = 1024;

/// Maximum number of most likely tokens per position.
pub const LIKELIEST_MAX: usize = 20;

/// Maximum number of most likely ids per position of a prompt. A teacher may return its whole vocabulary; `SCORES_MAX` limits the response.
const PROMPT_LIKELIEST_MAX: usize = 1 << 18;

/// Maximum number of scores of prompt ids.
const SCORES_MAX: usize = 1 << 20;

/// Common fields of a request.
#[derive(Debug, Clone)]
pub struct CompletionOptions {
    /// Name of the model.
    pub model: String,
    /// Sampling parameters.
    pub params: SamplingParams,
    /// Strings that end a completion.
    pub stop: Vec<String>,
    /// Prefix of its field names in messages.
    before: String,
    /// Source of randomness.
    draws: Draws,
    /// Number of completions per prompt.
    pub n: usize,
    /// Whether the response is a stream of events.
    pub is_streamed: bool,
    /// Whether the stream ends with token counts.
    pub includes_usage: bool,
    /// Whether token ids are returned.
    pub returns_ids: bool,
    /// Whether token ids are returned instead of token texts.
    pub ids_for_texts: bool,
    /// Whether the version of the weights is returned.
    pub returns_versions: bool,
    /// Number of most likely ids to return per position of the prompt, if its log-probabilities are requested.
    pub prompt_logprobs: Option<usize>,
}

/// Source of randomness of completions.
#[derive(Debug, Clone)]
enum Draws {
    /// Streams derived from a seed. Without a given seed, it is random.
    Seed(Seed),
    /// One stream per completion, given in the request.
    Streams(Vec<Stream>),
}

/// Fields of vLLM that would change the samples, unless they are empty.
const REFUSED: [&str; 12] = [
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "logits_processors",
    "allowed_token_ids",
    "bad_words",
    "truncate_prompt_tokens",
    "prompt_embeds",
    "use_beam_search",
    "thinking_token_budget",
];

/// Fields with ids, which only the model's vocabulary can decide on.
pub const IDS: [&str; 4] = ["suppress_tokens", "bad_words_ids", "forced_bos_token_id", "forced_eos_token_id"];

impl CompletionOptions {
    /// Parses the fields. A request without `model` uses the default model of the server.
    ///
    /// # Errors
    /// A field is invalid; the first one is reported. Also if there is no `model`, and the server has no default one.
    pub async fn read(app: &Arc<App>, fields: &mut Fields) -> Result<Self, Refused> {
        let named = fields.read_as("model", "the name of a model that `/v1/models` lists", |value| {
            value.as_str().map(str::to_owned)
        })?;
        let model = match named {
            Some(model) => model,
            None => main_model(app).await.map_err(|refused| Refused { param: Some("model".into()), ..refused })?,
        };
        // Texts never have special tokens.
        let is_true = |value: &Value| value.as_bool() == Some(true);
        fields.refuse("skip_special_tokens", is_true)?;
        // Responses contain the text, with its thoughts.
        fields.refuse("detokenize", is_true)?;
        fields.refuse("include_reasoning", is_true)?;
        let mut options = Self::of(model, fields)?;
        options.read_stream(fields)?;
        Ok(options)
    }

    /// Parses the fields of streams.
    ///
    /// # Errors
    /// A field is invalid, or `stream_options` asks for token counts without a stream.
    pub fn read_stream(&mut self, fields: &mut Fields) -> Result<(), Refused> {
        self.is_streamed = fields.flag("stream")?;
        let mut stream_options = fields.within("stream_options")?;
        self.includes_usage = stream_options.flag("include_usage")?;
        // Chunks have no padding, so there is nothing to switch off.
        stream_options.flag("include_obfuscation")?;
        // vLLM counts tokens in each chunk if this is true.
        stream_options.refuse("continuous_usage_stats", |value| value.as_bool() == Some(false))?;
        stream_options.finish()?;
        if self.includes_usage && !self.is_streamed {
            let param = stream_options.path("include_usage");
            return Err(Refused::field(&param, format!("`{param}` needs `stream: true`")));
        }
        Ok(())
    }

    /// Parses the fields other than the model and those of streams.
    ///
    /// # Errors
    /// A field is invalid; the first one is reported.
    pub fn of(model: String, fields: &mut Fields) -> Result<Self, Refused> {
        let is_nothing = |value: &Value| match value {
            Value::Bool(is_set) => !is_set,
            Value::Array(list) => list.is_empty(),
            Value::Object(object) => object.is_empty(),
            _ => false,
        };
        let others = ["ignore_eos", "include_stop_str_in_output", "flat_logprobs"];
        for name in REFUSED.into_iter().chain(others) {
            fields.refuse(name, is_nothing)?;
        }
        let is_zero = |value: &Value| value.as_f64() == Some(0.0);
        fields.refuse("presence_penalty", is_zero)?;
        fields.refuse("frequency_penalty", is_zero)?;
        fields.refuse("length_penalty", |value| value.as_f64() == Some(1.0))?;
        fields.refuse("logit_bias", |value| value.as_object().is_some_and(serde_json::Map::is_empty))?;
        let n = fields.count("n", 1..=COMPLETIONS_MAX)?.unwrap_or(1);
        let defaults = SamplingParams::default();
        let params = SamplingParams {
            temperature: fields.number("temperature", 0.0..=100.0)?.unwrap_or(1.0) as f32,
            top_p: match fields.number("top_p", 0.0..=1.0)?.unwrap_or(1.0) as f32 {
                // OpenAI's clients send 0 for the most likely token alone.
                0.0 => f32::MIN_POSITIVE,
                top_p => top_p,
            },
            min_p: fields.number("min_p", 0.0..=1.0)?.unwrap_or(0.0) as f32,
            top_k: fields
                .read_as("top_k", "a whole number, or −1 for all tokens,", |value| {
                    // In vLLM, −1 means all tokens.
                    value.as_u64().or_else(|| (value.as_i64() == Some(-1)).then_some(0))
                })?
                .map(|k| k as usize)
                .filter(|k| *k > 0),
            typical_p: match fields.number("typical_p", 0.0..=1.0)?.unwrap_or(1.0) as f32 {
                0.0 => f32::MIN_POSITIVE,
                typical_p => typical_p,
            },
            no_repeat_ngram_size: fields.count("no_repeat_ngram_size", 0..=1 << 24)?.unwrap_or(0),
            encoder_no_repeat_ngram_size: fields.count("encoder_no_repeat_ngram_size", 0..=1 << 24)?.unwrap_or(0),
            repetition_penalty: fields.number("repetition_penalty", 0.01..=100.0)?.unwrap_or(1.0) as f32,
            min_new_tokens: fields.count("min_tokens", 0..=1 << 24)?.unwrap_or(0),
            stop_ids: ids(fields, "stop_token_ids")?,
            suppress_tokens: ids(fields, "suppress_tokens")?,
            bad_words_ids: id_lists(fields, "bad_words_ids")?,
            forced_bos_token_id: id(fields, "forced_bos_token_id")?,
            forced_eos_token_id: id(fields, "forced_eos_token_id")?,
            ..defaults
        };
        Ok(Self {
            model,
            params,
            before: fields.path(""),
            stop: stop(fields)?,
            draws: match streams(fields, n)? {
                Some(streams) => Draws::Streams(streams),
                None => Draws::Seed(Seed(seed(fields)?)),
            },
            n,
            is_streamed: false,
            includes_usage: false,
            returns_ids: fields.flag("return_token_ids")?,
            ids_for_texts: fields.flag("return_tokens_as_token_ids")?,
            returns_versions: fields.flag("return_weight_versions")?,
            prompt_logprobs: fields.count("prompt_logprobs", 0..=PROMPT_LIKELIEST_MAX)?,
        })
    }

    /// Rejects a minimum length above the maximum length, as vLLM does.
    ///
    /// # Errors
    /// The error contains both lengths.
    pub fn check_length(&self, max_tokens: usize) -> Result<(), Refused> {
        let least = self.params.min_new_tokens;
        if least <= max_tokens {
            return Ok(());
        }
        let (min, max) = (self.path("min_tokens"), self.path("max_tokens"));
        Err(Refused::field(&min, format!("`{min}` is {least}, but `{max}` is {max_tokens}")))
    }

    /// Returns the name of a field in messages.
    pub fn path(&self, name: &str) -> String {
        format!("{}{name}", self.before)
    }

    /// Returns the random streams of prompt `prompt`: those of `gradus generate`, unless the request contains others.
    pub fn streams(&self, prompt: usize) -> Vec<Stream> {
        let all = prompt * self.n..(prompt + 1) * self.n;
        match &self.draws {
            Draws::Seed(seed) => all.map(|i| seed.stream(Purpose::Generate, 0, i as u64)).collect(),
            Draws::Streams(streams) => streams[all].to_vec(),
        }
    }

    /// Rejects random streams unless there is one for each completion of `prompts` prompts.
    ///
    /// # Errors
    /// Their number differs. The error contains both numbers.
    pub fn check_streams(&self, prompts: usize) -> Result<(), Refused> {
        match &self.draws {
            Draws::Streams(streams) if streams.len() != prompts * self.n => {
                let (found, needed) = (streams.len(), prompts * self.n);
                let param = self.path("random_streams");
                let message = format!("`{param}` has {found} keys, but there are {needed} completions");
                Err(Refused::field(&param, message))
            }
            _ => Ok(()),
        }
    }

    /// Rejects log-probabilities of prompts in a stream, as vLLM does.
    ///
    /// # Errors
    /// Both are requested.
    pub fn refuse_scored_streams(&self) -> Result<(), Refused> {
        if !self.is_streamed || self.prompt_logprobs.is_none() {
            return Ok(());
        }
        let param = self.path("prompt_logprobs");
        Err(Refused::field(&param, format!("`{param}` cannot be streamed: leave out `stream`")))
    }

    /// Rejects log-probabilities of too many ids. The prompts have `tokens` tokens.
    ///
    /// # Errors
    /// There are too many.
    pub fn check_scored(&self, tokens: usize) -> Result<(), Refused> {
        let Some(likeliest) = self.prompt_logprobs else { return Ok(()) };
        let all = tokens.saturating_mul(likeliest + 1);
        if all <= SCORES_MAX {
            return Ok(());
        }
        let param = self.path("prompt_logprobs");
        let message = format!("`{param}` {likeliest} of {tokens} tokens are {all} numbers, more than {SCORES_MAX}");
        Err(Refused::field(&param, message))
    }

    /// Converts the scores of a prompt to vLLM's form: `null` for the first id, then the ids with their log-probabilities.
    pub fn scored_prompt(tokens: &[Token]) -> Value {
        let one = |text: &str, logprob: Option<f32>, rank: Option<usize>| json!({ "logprob": logprob, "rank": rank, "decoded_token": text });
        let entry = |token: &Token| {
            token.logprob?;
            let mut all = Map::new();
            for (i, of) in token.likeliest.iter().enumerate() {
                all.insert(of.id.to_string(), one(&of.text, Some(of.logprob), Some(i + 1)));
            }
            all.entry(token.id.to_string()).or_insert_with(|| one(&token.text, token.logprob, token.rank));
            Some(Value::Object(all))
        };
        tokens.iter().map(entry).collect()
    }

    /// Returns the version of the weights that sampled a completion of `tokens` tokens, if requested.
    pub fn versions(&self, version: &str, tokens: usize) -> Option<Value> {
        self.returns_versions.then(|| json!([{ "version": version, "start": 0, "end": tokens }]))
    }

    /// Returns a token for the response: its text, or its id. If its bytes are only a part of a character, they are written as
    /// `bytes:\xe2\x80`, as OpenAI did, so that different tokens have different names.
    pub fn text_of(&self, id: u32, text: &str, bytes: Option<&[u8]>) -> String {
        match bytes.filter(|bytes| std::str::from_utf8(bytes).is_err()) {
            _ if self.ids_for_texts => as_id(id),
            Some(bytes) => bytes.iter().fold("bytes:".to_owned(), |name, byte| format!("{name}\\x{byte:02x}")),
            None => text.to_owned(),
        }
    }
}

/// Formats an id in place of a text.
pub fn as_id(id: u32) -> String {
    format!("token_id:{id}")
}

fn id(fields: &mut Fields, name: &str) -> Result<Option<u32>, Refused> {
    Ok(fields.count(name, 0..=u32::MAX as usize)?.map(|id| id as u32))
}

fn id_lists(fields: &mut Fields, name: &str) -> Result<Vec<Vec<u32>>, Refused> {
    let lists = |value: &Value| value.as_array()?.iter().map(ids_of).collect();
    Ok(fields.read_as(name, "a list of lists of token ids", lists)?.unwrap_or_default())
}

/// Parses the keys of the random streams: 32 bytes each, in hexadecimal digits.
fn streams(fields: &mut Fields, n: usize) -> Result<Option<Vec<Stream>>, Refused> {
    let read = |value: &Value| stream_of_key(value.as_str()?);
    fields.read_as("random_streams", "a list of keys of 64 hexadecimal digits, one for each completion,", |value| {
        let streams: Option<Vec<Stream>> = value.as_array()?.iter().map(read).collect();
        streams.filter(|streams| streams.len() % n == 0)
    })
}

/// Parses token ids. `None` for any other value.
pub fn ids_of(value: &Value) -> Option<Vec<u32>> {
    value.as_array()?.iter().map(|id| u32::try_from(id.as_u64()?).ok()).collect()
}

fn ids(fields: &mut Fields, name: &str) -> Result<Vec<u32>, Refused> {
    Ok(fields.read_as(name, "a list of token ids", ids_of)?.unwrap_or_default())
}

fn stop(fields: &mut Fields) -> Result<Vec<String>, Refused> {
    let options = format!("a string or a list of at most {STOPS_MAX}, each of 1 to {STOP_BYTES} bytes,");
    let stops = fields.read_as("stop", &options, |value| {
        let stops: Vec<String> = match value {
            Value::String(stop) => vec![stop.clone()],
            value => serde_json::from_value(value.clone()).ok()?,
        };
        let fits = stops.len() <= STOPS_MAX && stops.iter().all(|stop| (1..=STOP_BYTES).contains(&stop.len()));
        fits.then_some(stops)
    });
    Ok(stops?.unwrap_or_default())
}

fn seed(fields: &mut Fields) -> Result<u64, Refused> {
    let given = fields
        .read_as("seed", "a whole number", |value| value.as_u64().or_else(|| value.as_i64().map(i64::cast_unsigned)))?;
    if let Some(seed) = given {
        return Ok(seed);
    }
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|error| Refused::request(error.to_string()))?;
    Ok(u64::from_le_bytes(bytes))
}
