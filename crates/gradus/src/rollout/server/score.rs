//! Scores of given ids by a served model: the log-probability of each id, and the most probable ids at its position.
//!
//! vLLM and gradus return them as `prompt_logprobs`, SGLang as `input_token_logprobs` and `input_top_logprobs`.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::ServerKind;
use super::forms::{FRAME_BYTES, ROUNDING, UNKNOWN_LOGPROB, ids};

/// Maximum bytes of an answer per log-probability: its id, number, rank and text.
const SCORE_BYTES: usize = 256;

/// Amount by which the sum of the top probabilities may exceed 1: formats with few bits round.
const MASS_ROUNDING: f64 = 0.02;

/// Ids to score.
#[derive(Debug, Clone, PartialEq)]
pub struct Passage {
    /// All ids of the text, including those that are only context.
    pub ids: Vec<u32>,
    /// Index of the first scored id; at least 1, because the first id of a text has no context.
    pub first: usize,
}

/// Score of one id by a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenScore {
    /// The id.
    pub id: u32,
    /// Log-probability of the id in nats; `None` if the server does not report it.
    pub logprob: Option<f32>,
    /// Most probable ids at its position with their log-probabilities, best first; -9999 marks an impossible id.
    pub likeliest: Vec<(u32, f32)>,
}

/// Returns path and body of the request for the ids of a text.
pub(super) fn text_request(kind: ServerKind, model: &str, text: &str) -> (&'static str, Value) {
    match kind {
        ServerKind::Sglang => {
            let sampling = json!({ "max_new_tokens": 0, "temperature": 1.0 });
            let body = json!({
                "text": text, "sampling_params": sampling, "return_logprob": true, "logprob_start_len": 0, "stream": false,
            });
            ("/generate", body)
        }
        kind => {
            let mut body = json!({ "model": model, "prompt": text, "max_tokens": 1, "return_token_ids": true });
            scores_alone(&mut body, kind == ServerKind::Gradus);
            ("/v1/completions", body)
        }
    }
}

/// gradus scores without sampling; vLLM samples at least one token.
fn scores_alone(body: &mut Value, is_gradus: bool) {
    if is_gradus {
        body["max_tokens"] = json!(0);
        body["echo"] = json!(true);
    }
}

/// Parses the ids of the text from the answer to [`text_request`].
pub(super) fn ids_of_text(kind: ServerKind, answer: &Value) -> Result<Vec<u32>, String> {
    match kind {
        ServerKind::Sglang => {
            let entries = answer["meta_info"]["input_token_logprobs"].as_array();
            let found = entries.and_then(|entries| entries.iter().map(|entry| id(&entry[1])).collect());
            found.ok_or_else(|| "the answer has no ids of the text (`input_token_logprobs`)".into())
        }
        _ => ids(&only_choice(answer)?["prompt_token_ids"]).ok_or_else(no_prompt_ids),
    }
}

fn no_prompt_ids() -> String {
    "the answer has no `prompt_token_ids`: the server does not support `return_token_ids`".into()
}

fn only_choice(answer: &Value) -> Result<&Value, String> {
    match answer["choices"].as_array().map(Vec::as_slice) {
        Some([choice]) => Ok(choice),
        Some(choices) => Err(format!("one prompt was scored, but the answer has {} `choices`", choices.len())),
        None => Err("the answer has no `choices`".into()),
    }
}

fn id(value: &Value) -> Option<u32> {
    u32::try_from(value.as_u64()?).ok()
}

/// Parses a log-probability; `None` if it is unknown.
fn logprob(value: &Value) -> Result<Option<f32>, String> {
    match value {
        Value::Null => Ok(None),
        Value::Number(number) => match number.as_f64() {
            Some(UNKNOWN_LOGPROB) => Ok(None),
            Some(logprob) if logprob <= ROUNDING => Ok(Some(logprob as f32)),
            _ => Err(format!("a log-probability is {number}, above 0")),
        },
        other => Err(format!("a log-probability is {other}, not a number")),
    }
}

impl Passage {
    /// Returns the maximum size of an answer in bytes.
    pub(super) fn limit(&self, likeliest: usize) -> u64 {
        (FRAME_BYTES + self.ids.len() * (likeliest + 2) * SCORE_BYTES) as u64
    }

    /// Returns the request to vLLM or gradus at `/v1/completions`.
    pub(super) fn openai(&self, model: &str, likeliest: usize, is_gradus: bool) -> Value {
        let mut body = json!({
            "model": model,
            "prompt": self.ids,
            "max_tokens": 1,
            "temperature": 1.0,
            "prompt_logprobs": likeliest,
            "return_token_ids": true,
        });
        scores_alone(&mut body, is_gradus);
        body
    }

    /// Parses their answer.
    pub(super) fn read_openai(&self, answer: &Value) -> Result<Vec<TokenScore>, String> {
        let choice = only_choice(answer)?;
        match ids(&choice["prompt_token_ids"]) {
            Some(prompt) if prompt != self.ids => {
                return Err("the prompt of the server differs from the one it was sent (`prompt_token_ids`)".into());
            }
            Some(_) => {}
            None => return Err(no_prompt_ids()),
        }
        let Some(places) = choice["prompt_logprobs"].as_array() else {
            return Err("the answer has no `prompt_logprobs`".into());
        };
        if places.len() != self.ids.len() {
            let (found, needed) = (places.len(), self.ids.len());
            return Err(format!("the prompt has {needed} ids, but `prompt_logprobs` has {found} places"));
        }
        let place = |(place, &id): (&Value, &u32)| {
            let Some(entries) = place.as_object() else {
                return Err(format!("`prompt_logprobs` has nothing for the id {id}"));
            };
            let (mut own, mut likeliest) = (None, Vec::with_capacity(entries.len()));
            for (name, entry) in entries {
                let Ok(of) = name.parse::<u32>() else {
                    return Err(format!("`prompt_logprobs` has the id `{name}`, which is not a number"));
                };
                let found = logprob(&entry["logprob"])?;
                if of == id {
                    own = Some(found);
                }
                likeliest.push((of, found.unwrap_or(UNKNOWN_LOGPROB as f32)));
            }
            let Some(logprob) = own else {
                return Err(format!("`prompt_logprobs` has no log-probability for the id {id} at its position"));
            };
            Ok(TokenScore { id, logprob, likeliest })
        };
        places.iter().zip(&self.ids).skip(self.first).map(place).collect()
    }

    /// Returns the request to SGLang at `/generate`.
    pub(super) fn sglang(&self, likeliest: usize) -> Value {
        json!({
            "input_ids": self.ids,
            "sampling_params": { "max_new_tokens": 0, "temperature": 1.0 },
            "return_logprob": true,
            // One position earlier: the first position of an answer has no log-probability.
            "logprob_start_len": self.first - 1,
            "top_logprobs_num": likeliest,
            "stream": false,
        })
    }

    /// Parses its answer.
    pub(super) fn read_sglang(&self, answer: &Value) -> Result<Vec<TokenScore>, String> {
        let (meta, needed) = (&answer["meta_info"], self.ids.len() + 1 - self.first);
        let places = |name: &str| match meta[name].as_array() {
            Some(places) if places.len() == needed => Ok(places),
            Some(places) => Err(format!("`{name}` has {} places, but {needed} were requested", places.len())),
            None => Err(format!("the answer has no `{name}`")),
        };
        let own = places("input_token_logprobs")?;
        // Without top ids, the list is missing.
        let top = if meta["input_top_logprobs"].is_null() { None } else { Some(places("input_top_logprobs")?) };
        let mut found = Vec::with_capacity(needed - 1);
        for (i, &expected) in self.ids[self.first..].iter().enumerate() {
            let entry = &own[i + 1];
            if id(&entry[1]) != Some(expected) {
                return Err(format!("a log-probability is that of {}, but the id is {expected}", entry[1]));
            }
            let mut likeliest = Vec::new();
            for entry in top.and_then(|top| top[i + 1].as_array()).into_iter().flatten() {
                let Some(of) = id(&entry[1]) else {
                    return Err(format!("`input_top_logprobs` has the id {}, which is not a number", entry[1]));
                };
                likeliest.push((of, logprob(&entry[0])?.unwrap_or(UNKNOWN_LOGPROB as f32)));
            }
            found.push(TokenScore { id: expected, logprob: logprob(&entry[0])?, likeliest });
        }
        Ok(found)
    }

    /// Keeps only the `likeliest` ids, best first, and rejects scores that no model can produce.
    pub(super) fn checked(
        &self,
        mut scores: Vec<TokenScore>,
        likeliest: usize,
        vocabulary: usize,
    ) -> Result<Vec<TokenScore>, String> {
        for TokenScore { id, likeliest: found, .. } in &mut scores {
            found.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            found.truncate(likeliest);
            if let Some((of, _)) = found.iter().find(|(of, _)| *of as usize >= vocabulary) {
                return Err(format!(
                    "the server returned the id {of}, but the student's vocabulary has {vocabulary} ids"
                ));
            }
            if found.len() < likeliest.min(vocabulary) {
                let found = found.len();
                return Err(format!(
                    "{likeliest} most likely ids were requested at the position of {id}, but {found} were returned"
                ));
            }
            let mut named: Vec<u32> = found.iter().map(|(of, _)| *of).collect();
            named.sort_unstable();
            if named.windows(2).any(|pair| pair[0] == pair[1]) {
                return Err(format!("the most likely ids at the position of {id} contain one twice"));
            }
            let mass: f64 = found.iter().map(|(_, logprob)| f64::from(*logprob).exp()).sum();
            if mass > 1.0 + MASS_ROUNDING {
                return Err(format!(
                    "the probabilities of the most likely ids at the position of {id} sum to {mass:.3}"
                ));
            }
        }
        Ok(scores)
    }
}
