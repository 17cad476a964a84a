//! What requests for completions and for answers have in common: the model, the distribution, the limits.

use gradus::generate::SamplingParams;
use gradus::rng::{Purpose, Seed, Stream, stream_of_key};
use serde_json::{Map, Value, json};

use super::fields::Fields;
use super::refused::Refused;
use crate::desk::Token;

/// The most completions of a prompt, and of a request.
pub const COMPLETIONS_MAX: usize = 128;

/// The most stop strings, and the bytes of each: every token is looked at for all of them.
const STOPS_MAX: usize = 16;
const STOP_BYTES: usize = 1024;

/// The most tokens that are told beside each.
pub const LIKELIEST_MAX: usize = 20;

/// The most ids that are told beside each of a prompt's: a teacher may tell all of its vocabulary. `SCORES_MAX` bounds the answer.
const PROMPT_LIKELIEST_MAX: usize = 1 << 18;

/// The most numbers that are told of the ids of prompts.
const SCORES_MAX: usize = 1 << 20;

/// What is asked for, whatever the prompt.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// The name of the model.
    pub model: String,
    /// How completions are drawn.
    pub params: SamplingParams,
    /// Strings that end a completion.
    pub stop: Vec<String>,
    /// What stands before the names of its fields in messages.
    before: String,
    /// What all of them are drawn from.
    draws: Draws,
    /// Completions of each prompt.
    pub n: usize,
    /// Whether the answer is a stream of events.
    pub is_streamed: bool,
    /// Whether the stream ends with what was used.
    pub tells_usage: bool,
    /// Whether ids are told.
    pub tells_ids: bool,
    /// Whether ids stand for the texts of tokens.
    pub ids_for_texts: bool,
    /// Whether it is told which weights sampled.
    pub tells_versions: bool,
    /// How many of the likeliest ids are told beside each of the prompt's, where those are scored at all.
    pub prompt_logprobs: Option<usize>,
}

/// What completions are drawn from.
#[derive(Debug, Clone)]
enum Draws {
    /// The streams of a seed: a random one where none is given.
    Seed(Seed),
    /// A stream for each completion, as the request has them.
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

impl Wanted {
    /// Takes its fields.
    ///
    /// # Errors
    /// With the first that is wrong.
    pub fn read(fields: &mut Fields) -> Result<Self, Refused> {
        let model = fields.needed("model", "the name of a model that `/v1/models` lists", |value| {
            value.as_str().map(str::to_owned)
        })?;
        Self::of(model, fields)
    }

    /// Takes the fields but for the model, which is `model`.
    ///
    /// # Errors
    /// With the first that is wrong.
    pub fn of(model: String, fields: &mut Fields) -> Result<Self, Refused> {
        let is_nothing = |value: &Value| match value {
            Value::Bool(is_set) => !is_set,
            Value::Array(list) => list.is_empty(),
            Value::Object(object) => object.is_empty(),
            _ => false,
        };
        for name in REFUSED.into_iter().chain(["ignore_eos", "include_stop_str_in_output"]) {
            fields.refuse(name, is_nothing)?;
        }
        let is_zero = |value: &Value| value.as_f64() == Some(0.0);
        fields.refuse("presence_penalty", is_zero)?;
        fields.refuse("frequency_penalty", is_zero)?;
        fields.refuse("logit_bias", |value| value.as_object().is_some_and(serde_json::Map::is_empty))?;
        let n = fields.count("n", 1..=COMPLETIONS_MAX)?.unwrap_or(1);
        let defaults = SamplingParams::default();
        let params = SamplingParams {
            temperature: fields.number("temperature", 0.0..=100.0)?.unwrap_or(1.0) as f32,
            top_p: match fields.number("top_p", 0.0..=1.0)?.unwrap_or(1.0) as f32 {
                // OpenAI's clients write 0 for the likeliest alone.
                0.0 => f32::MIN_POSITIVE,
                top_p => top_p,
            },
            min_p: fields.number("min_p", 0.0..=1.0)?.unwrap_or(0.0) as f32,
            top_k: fields
                .read_as("top_k", "a whole number, or −1 for all tokens,", |value| {
                    // vLLM's word for all of them is −1.
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
        let tells_usage = fields.within("stream_options")?.flag("include_usage")?;
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
            is_streamed: fields.flag("stream")?,
            tells_usage,
            tells_ids: fields.flag("return_token_ids")?,
            ids_for_texts: fields.flag("return_tokens_as_token_ids")?,
            tells_versions: fields.flag("return_weight_versions")?,
            prompt_logprobs: fields.count("prompt_logprobs", 0..=PROMPT_LIKELIEST_MAX)?,
        })
    }

    /// The name of a field in messages.
    fn path(&self, name: &str) -> String {
        format!("{}{name}", self.before)
    }

    /// The random streams of prompt `prompt`: those of `gradus generate`, unless the request has others.
    pub fn streams(&self, prompt: usize) -> Vec<Stream> {
        let all = prompt * self.n..(prompt + 1) * self.n;
        match &self.draws {
            Draws::Seed(seed) => all.map(|i| seed.stream(Purpose::Generate, 0, i as u64)).collect(),
            Draws::Streams(streams) => streams[all].to_vec(),
        }
    }

    /// Refuses random streams where there is not one for each completion of `prompts` prompts.
    ///
    /// # Errors
    /// With both numbers.
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

    /// Refuses scores of prompts within a stream, as vLLM does.
    ///
    /// # Errors
    /// When both are asked for.
    pub fn refuse_scored_streams(&self) -> Result<(), Refused> {
        if !self.is_streamed || self.prompt_logprobs.is_none() {
            return Ok(());
        }
        let param = self.path("prompt_logprobs");
        Err(Refused::field(&param, format!("`{param}` cannot be streamed: leave out `stream`")))
    }

    /// Refuses scores of more ids than an answer should have; the prompts have `tokens` tokens.
    ///
    /// # Errors
    /// When there are too many.
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

    /// What `score` gives of a prompt, in vLLM's form: nothing of the first id, then the ids with their log-probabilities.
    pub fn scored_prompt(tokens: &[Token]) -> Value {
        let one = |text: &str, logprob: Option<f32>, rank: Option<usize>| json!({ "logprob": logprob, "rank": rank, "decoded_token": text });
        let told = |token: &Token| {
            token.logprob?;
            let mut all = Map::new();
            for (i, (id, text, logprob)) in token.likeliest.iter().enumerate() {
                all.insert(id.to_string(), one(text, Some(*logprob), Some(i + 1)));
            }
            all.entry(token.id.to_string()).or_insert_with(|| one(&token.text, token.logprob, token.rank));
            Some(Value::Object(all))
        };
        tokens.iter().map(told).collect()
    }

    /// Which weights sampled a completion of `tokens` tokens, where that is told.
    pub fn versions(&self, version: &str, tokens: usize) -> Option<Value> {
        self.tells_versions.then(|| json!([{ "version": version, "start": 0, "end": tokens }]))
    }

    /// A token in the answer: its text, or its id.
    pub fn text_of(&self, id: u32, text: &str) -> String {
        if self.ids_for_texts { as_id(id) } else { text.to_owned() }
    }
}

/// An id in the place of a text.
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

/// The keys of the streams that completions are drawn from: 32 bytes each, in hexadecimal digits.
fn streams(fields: &mut Fields, n: usize) -> Result<Option<Vec<Stream>>, Refused> {
    let read = |value: &Value| stream_of_key(value.as_str()?);
    fields.read_as("random_streams", "a list of keys of 64 hexadecimal digits, one for each completion,", |value| {
        let streams: Option<Vec<Stream>> = value.as_array()?.iter().map(read).collect();
        streams.filter(|streams| streams.len() % n == 0)
    })
}

/// Token ids; none where the value is something else.
pub fn ids_of(value: &Value) -> Option<Vec<u32>> {
    value.as_array()?.iter().map(|id| u32::try_from(id.as_u64()?).ok()).collect()
}

fn ids(fields: &mut Fields, name: &str) -> Result<Vec<u32>, Refused> {
    Ok(fields.read_as(name, "a list of token ids", ids_of)?.unwrap_or_default())
}

fn stop(fields: &mut Fields) -> Result<Vec<String>, Refused> {
    let wanted = format!("a string or a list of at most {STOPS_MAX}, each of 1 to {STOP_BYTES} bytes,");
    let stops = fields.read_as("stop", &wanted, |value| {
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
