//! What requests for completions and for answers have in common: the model, the distribution, the limits.

use gradus::generate::SamplingParams;
use gradus::rng::{Purpose, Seed, Stream};
use serde_json::Value;

use super::Refused;
use super::fields::Fields;

/// The most completions of a prompt, and of a request.
pub const COMPLETIONS_MAX: usize = 128;

/// The most stop strings, and the bytes of each: every token is looked at for all of them.
const STOPS_MAX: usize = 16;
const STOP_BYTES: usize = 1024;

/// The most tokens that are told beside each.
pub const LIKELIEST_MAX: usize = 20;

/// What is asked for, whatever the prompt.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// The name of the model.
    pub model: String,
    /// How completions are drawn.
    pub params: SamplingParams,
    /// Strings that end a completion.
    pub stop: Vec<String>,
    /// The seed of all of them: a random one where none is given.
    pub seed: Seed,
    /// Completions of each prompt.
    pub n: usize,
    /// Whether the answer is a stream of events.
    pub is_streamed: bool,
    /// Whether the stream ends with what was used.
    pub tells_usage: bool,
    /// Whether ids are told.
    pub tells_ids: bool,
}

impl Wanted {
    /// Takes its fields.
    ///
    /// # Errors
    /// With the first that is wrong.
    pub fn read(fields: &mut Fields) -> Result<Self, Refused> {
        let Some(model) = fields.text("model")? else {
            return Err(Refused::field("model", "`model` is missing; `/v1/models` lists those that are there"));
        };
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
            top_k: match fields.take("top_k") {
                // vLLM's word for all of them.
                Some(value) if value.as_i64() == Some(-1) => None,
                Some(value) => match value.as_u64() {
                    Some(k) => Some(k as usize).filter(|k| *k > 0),
                    None => {
                        return Err(Refused::field(
                            "top_k",
                            format!("`top_k` is {value}, but a whole number is needed"),
                        ));
                    }
                },
                None => None,
            },
            typical_p: match fields.number("typical_p", 0.0..=1.0)?.unwrap_or(1.0) as f32 {
                0.0 => f32::MIN_POSITIVE,
                typical_p => typical_p,
            },
            no_repeat_ngram_size: fields.count("no_repeat_ngram_size", 0..=1 << 24)?.unwrap_or(0),
            encoder_no_repeat_ngram_size: fields.count("encoder_no_repeat_ngram_size", 0..=1 << 24)?.unwrap_or(0),
            repetition_penalty: fields.number("repetition_penalty", 0.01..=100.0)?.unwrap_or(1.0) as f32,
            min_new_tokens: fields.count("min_tokens", 0..=1 << 24)?.unwrap_or(0),
            stop_ids: ids(fields, "stop_token_ids")?,
            ..defaults
        };
        let mut options = Fields::of(fields.object("stream_options")?);
        let tells_usage = options.flag("include_usage")?;
        Ok(Self {
            model,
            params,
            stop: stop(fields)?,
            seed: Seed(seed(fields)?),
            n,
            is_streamed: fields.flag("stream")?,
            tells_usage,
            tells_ids: fields.flag("return_token_ids")?,
        })
    }

    /// The random streams of prompt `prompt`: those of `gradus generate`.
    pub fn streams(&self, prompt: usize) -> Vec<Stream> {
        let first = prompt * self.n;
        (first..first + self.n).map(|i| self.seed.stream(Purpose::Generate, 0, i as u64)).collect()
    }
}

fn ids(fields: &mut Fields, name: &str) -> Result<Vec<u32>, Refused> {
    let Some(value) = fields.take(name) else { return Ok(Vec::new()) };
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let ids = value.as_array().and_then(|ids| ids.iter().map(id).collect());
    ids.ok_or_else(|| Refused::field(name, format!("`{name}` must be a list of token ids")))
}

fn stop(fields: &mut Fields) -> Result<Vec<String>, Refused> {
    let wrong = || {
        let wanted = format!("a string or a list of at most {STOPS_MAX}, each of 1 to {STOP_BYTES} bytes, is needed");
        Refused::field("stop", format!("`stop` is something else: {wanted}"))
    };
    let stops: Vec<String> = match fields.take("stop") {
        None => Vec::new(),
        Some(Value::String(stop)) => vec![stop],
        Some(value) => serde_json::from_value(value).map_err(|_| wrong())?,
    };
    let fits = stops.len() <= STOPS_MAX && stops.iter().all(|stop| (1..=STOP_BYTES).contains(&stop.len()));
    if fits { Ok(stops) } else { Err(wrong()) }
}

fn seed(fields: &mut Fields) -> Result<u64, Refused> {
    match fields.take("seed") {
        None => {
            let mut bytes = [0; 8];
            getrandom::fill(&mut bytes).map_err(|error| Refused::request(error.to_string()))?;
            Ok(u64::from_le_bytes(bytes))
        }
        Some(value) => {
            let seed = value.as_u64().or_else(|| value.as_i64().map(i64::cast_unsigned));
            seed.ok_or_else(|| Refused::field("seed", format!("`seed` is {value}, but a whole number is needed")))
        }
    }
}
