//! Validation of `config.json` and `generation_config.json` when a model is opened: the type and the range of every used key, and the sizes
//! that must fit each other. All problems are reported together.
//!
//! Accepted values need no further check where they are used, and mistyped values are never ignored.

use std::path::Path;

use serde_json::{Map, Value};

use super::decoder::Rotation;
use super::family::{EncoderFamily, Family, with_own_names};
use crate::error::{Error, Result, excerpt};

/// Type and range of a key.
#[derive(Debug, Clone, Copy)]
enum ValueType {
    /// An integer within these bounds.
    Count(u64, u64),
    /// A number above the first bound and at most the second.
    Above(f64, f64),
    /// A number from the first bound to the second.
    From(f64, f64),
    /// A dropout probability: from 0 to below 1.
    Share,
    Flag,
    Text,
    Texts,
    /// A list of numbers from 0 to this bound.
    Numbers(f64),
    /// A token id; negative values mean no id.
    Id,
    /// One id, alone or as a list.
    OneId,
    /// One id, or several.
    Ids,
    /// An object with its own keys.
    Object(&'static [Key]),
}

/// Whether a key may be absent or `null`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    Needed,
    Optional,
    Nullable,
}

type Key = (&'static str, Presence, ValueType);

use Presence::{Needed, Nullable, Optional};
use ValueType::{Above, Count, Flag, From, Id, Ids, Numbers, Object, OneId, Share, Text, Texts};

// No known model exceeds these bounds, and within them no arithmetic with sizes overflows.
const VOCABULARY: ValueType = Count(1, 1 << 24);
const WIDTH: ValueType = Count(1, 1 << 20);
const INNER: ValueType = Count(1, 1 << 22);
const LAYERS: ValueType = Count(1, 1 << 12);
const HEADS: ValueType = Count(1, 1 << 13);
const HEAD_DIM: u64 = 1 << 13;
const POSITIONS: ValueType = Count(1, 1 << 31);
const EPSILON: ValueType = From(0.0, 1.0);
const DEVIATION: ValueType = From(0.0, 1e6);
const FACTOR: ValueType = From(1e-6, 1e6);

const COMMON: &[Key] = &[
    ("model_type", Nullable, Text),
    ("architectures", Nullable, Texts),
    ("eos_token_id", Nullable, Ids),
    ("pad_token_id", Nullable, Id),
    ("quantization_config", Nullable, Object(QUANTIZATION)),
];

const QUANTIZATION: &[Key] =
    &[("quant_method", Nullable, Text), ("load_in_8bit", Nullable, Flag), ("load_in_4bit", Nullable, Flag)];

const GPT2: &[Key] = &[
    ("vocab_size", Needed, VOCABULARY),
    ("n_embd", Needed, WIDTH),
    ("n_layer", Needed, LAYERS),
    ("n_head", Needed, HEADS),
    // GPT-2 has its own table of positions.
    ("n_positions", Needed, Count(1, 1 << 24)),
    ("n_inner", Nullable, INNER),
    ("activation_function", Optional, Text),
    ("layer_norm_epsilon", Optional, EPSILON),
    ("initializer_range", Optional, DEVIATION),
    ("scale_attn_weights", Optional, Flag),
    ("scale_attn_by_inverse_layer_idx", Optional, Flag),
    ("tie_word_embeddings", Optional, Flag),
    ("embd_pdrop", Optional, Share),
    ("attn_pdrop", Optional, Share),
    ("resid_pdrop", Optional, Share),
];

const GPT_NEOX: &[Key] = &[
    ("vocab_size", Needed, VOCABULARY),
    ("hidden_size", Needed, WIDTH),
    ("num_hidden_layers", Needed, LAYERS),
    ("num_attention_heads", Needed, HEADS),
    ("intermediate_size", Needed, INNER),
    ("max_position_embeddings", Optional, POSITIONS),
    ("hidden_act", Optional, Text),
    ("layer_norm_eps", Optional, EPSILON),
    ("initializer_range", Optional, DEVIATION),
    ("attention_bias", Optional, Flag),
    ("use_parallel_residual", Optional, Flag),
    ("tie_word_embeddings", Optional, Flag),
    ("rotary_pct", Nullable, Above(0.0, 1.0)),
    ("rotary_emb_base", Nullable, ROPE_BASE),
    ("rope_scaling", Nullable, Object(ROPE)),
    ("attention_dropout", Optional, Share),
    ("hidden_dropout", Optional, Share),
];

const OPT: &[Key] = &[
    ("vocab_size", Needed, VOCABULARY),
    ("hidden_size", Needed, WIDTH),
    ("num_hidden_layers", Needed, LAYERS),
    ("num_attention_heads", Needed, HEADS),
    ("ffn_dim", Needed, INNER),
    // OPT has its own table of positions.
    ("max_position_embeddings", Optional, Count(1, 1 << 24)),
    ("word_embed_proj_dim", Nullable, WIDTH),
    ("do_layer_norm_before", Optional, Flag),
    ("_remove_final_layer_norm", Optional, Flag),
    ("enable_bias", Optional, Flag),
    ("layer_norm_elementwise_affine", Optional, Flag),
    ("activation_function", Optional, Text),
    ("dropout", Optional, Share),
    ("attention_dropout", Optional, Share),
    ("layerdrop", Optional, Share),
    ("init_std", Optional, DEVIATION),
    ("tie_word_embeddings", Optional, Flag),
];

/// Keys of Llama and similar models.
const DECODER: &[Key] = &[
    ("vocab_size", Needed, VOCABULARY),
    ("hidden_size", Needed, WIDTH),
    ("intermediate_size", Needed, INNER),
    ("num_hidden_layers", Needed, LAYERS),
    ("num_attention_heads", Needed, HEADS),
    ("num_key_value_heads", Nullable, HEADS),
    ("head_dim", Nullable, Count(2, HEAD_DIM)),
    ("max_position_embeddings", Optional, POSITIONS),
    ("rms_norm_eps", Optional, EPSILON),
    ("initializer_range", Optional, DEVIATION),
    ("attention_bias", Optional, Flag),
    ("mlp_bias", Optional, Flag),
    ("hidden_act", Optional, Text),
    ("tie_word_embeddings", Optional, Flag),
    ("sliding_window", Nullable, Count(1, 1 << 31)),
    ("use_sliding_window", Optional, Flag),
    ("max_window_layers", Optional, Count(0, 1 << 31)),
    ("layer_types", Nullable, Texts),
    ("attention_dropout", Optional, Share),
    ("resid_pdrop", Optional, Share),
    ("residual_dropout", Optional, Share),
    ("attention_out_bias", Optional, Flag),
    ("embedding_multiplier", Optional, FACTOR),
    ("attention_multiplier", Optional, FACTOR),
    ("residual_multiplier", Optional, FACTOR),
    ("logits_scaling", Optional, FACTOR),
    ("no_rope_layers", Nullable, Numbers(1.0)),
    ("no_rope_layer_interval", Optional, LAYERS),
    ("rope_theta", Nullable, ROPE_BASE),
    ("rope_scaling", Nullable, Object(ROPE)),
    ("partial_rotary_factor", Nullable, Above(0.0, 1.0)),
    ("original_max_position_embeddings", Nullable, Above(1.0, 1e12)),
    ("hidden_activation", Optional, Text),
    ("query_pre_attn_scalar", Optional, Above(0.0, 1e6)),
    ("sliding_window_pattern", Optional, LAYERS),
    ("attn_logit_softcapping", Nullable, Above(0.0, 1e6)),
    ("final_logit_softcapping", Nullable, Above(0.0, 1e6)),
    ("use_bidirectional_attention", Nullable, Flag),
    ("rope_local_base_freq", Nullable, ROPE_BASE),
];

/// If all layers use the same rotary angles.
const ONE_ROPE: &[Key] = &[("rope_parameters", Nullable, Object(ROPE))];

const TWO_ROPES: &[Key] = &[(
    "rope_parameters",
    Nullable,
    Object(&[("full_attention", Nullable, Object(ROPE)), ("sliding_attention", Nullable, Object(ROPE))]),
)];

const ROPE_BASE: ValueType = Above(1.0, 1e12);
const ROPE: &[Key] = &[
    ("rope_type", Nullable, Text),
    ("type", Nullable, Text),
    ("rope_theta", Nullable, ROPE_BASE),
    ("factor", Nullable, Above(0.0, 1e6)),
    ("low_freq_factor", Nullable, Above(0.0, 1e6)),
    ("high_freq_factor", Nullable, Above(0.0, 1e6)),
    ("original_max_position_embeddings", Nullable, Above(1.0, 1e12)),
    ("short_factor", Nullable, Numbers(1e6)),
    ("long_factor", Nullable, Numbers(1e6)),
    ("attention_factor", Nullable, Above(0.0, 1e6)),
    ("mscale", Nullable, From(0.0, 1e6)),
    ("mscale_all_dim", Nullable, From(0.0, 1e6)),
    ("beta_fast", Nullable, Above(0.0, 1e6)),
    ("beta_slow", Nullable, Above(0.0, 1e6)),
    ("truncate", Nullable, Flag),
    ("partial_rotary_factor", Nullable, Above(0.0, 1.0)),
];

const T5: &[Key] = &[
    ("vocab_size", Needed, VOCABULARY),
    ("d_model", Needed, WIDTH),
    ("d_kv", Needed, Count(1, HEAD_DIM)),
    ("d_ff", Needed, INNER),
    ("num_layers", Needed, LAYERS),
    ("num_decoder_layers", Nullable, LAYERS),
    ("num_heads", Needed, HEADS),
    ("relative_attention_num_buckets", Optional, Count(4, 1 << 16)),
    ("relative_attention_max_distance", Optional, Count(1, 1 << 31)),
    ("dropout_rate", Optional, Share),
    ("layer_norm_epsilon", Optional, EPSILON),
    ("initializer_factor", Optional, DEVIATION),
    ("feed_forward_proj", Optional, Text),
    ("tie_word_embeddings", Optional, Flag),
    ("scale_decoder_outputs", Nullable, Flag),
];

const BART: &[Key] = &[
    ("vocab_size", Needed, VOCABULARY),
    ("d_model", Needed, WIDTH),
    ("encoder_layers", Needed, LAYERS),
    ("encoder_ffn_dim", Needed, INNER),
    ("encoder_attention_heads", Needed, HEADS),
    ("decoder_layers", Needed, LAYERS),
    ("decoder_ffn_dim", Needed, INNER),
    ("decoder_attention_heads", Needed, HEADS),
    ("max_position_embeddings", Needed, Count(1, 1 << 24)),
    ("activation_function", Optional, Text),
    ("dropout", Optional, Share),
    ("attention_dropout", Optional, Share),
    ("activation_dropout", Optional, Share),
    ("encoder_layerdrop", Optional, From(0.0, 1.0)),
    ("decoder_layerdrop", Optional, From(0.0, 1.0)),
    ("init_std", Optional, DEVIATION),
    ("scale_embedding", Optional, Flag),
    ("tie_word_embeddings", Optional, Flag),
];

/// Keys of encoders, for all families. The reader of each family checks which keys it needs; these bounds exclude impossible values.
const ENCODER: &[Key] = &[
    ("vocab_size", Optional, VOCABULARY),
    ("hidden_size", Optional, WIDTH),
    ("dim", Optional, WIDTH),
    ("embedding_size", Nullable, WIDTH),
    ("intermediate_size", Optional, INNER),
    ("hidden_dim", Optional, INNER),
    ("num_hidden_layers", Optional, LAYERS),
    ("n_layers", Optional, LAYERS),
    ("num_hidden_groups", Optional, LAYERS),
    ("inner_group_num", Optional, LAYERS),
    ("num_attention_heads", Optional, HEADS),
    ("n_heads", Optional, HEADS),
    ("max_position_embeddings", Optional, Count(1, 1 << 24)),
    ("type_vocab_size", Optional, Count(0, 1 << 16)),
    ("attention_head_size", Nullable, Count(1, HEAD_DIM)),
    ("position_buckets", Optional, From(-1.0, 65536.0)),
    ("max_relative_positions", Optional, From(-1.0, 1e9)),
    ("conv_kernel_size", Optional, Count(0, 1 << 12)),
    ("local_attention", Optional, Count(0, 1 << 24)),
    ("global_attn_every_n_layers", Optional, LAYERS),
    ("layer_norm_eps", Optional, EPSILON),
    ("norm_eps", Optional, EPSILON),
    ("initializer_range", Optional, DEVIATION),
    ("hidden_dropout_prob", Optional, Share),
    ("attention_probs_dropout_prob", Optional, Share),
    ("classifier_dropout", Nullable, Share),
    ("dropout", Optional, Share),
    ("attention_dropout", Optional, Share),
    ("seq_classif_dropout", Optional, Share),
    ("global_rope_theta", Nullable, ROPE_BASE),
    ("local_rope_theta", Nullable, ROPE_BASE),
    ("pad_token_id", Nullable, Count(0, 1 << 24)),
];

/// Start and end ids of models with an encoder, in either file.
const WITH_ENCODER: &[Key] = &[
    ("decoder_start_token_id", Nullable, OneId),
    ("forced_bos_token_id", Nullable, OneId),
    ("forced_eos_token_id", Nullable, OneId),
];

const GENERATION: &[Key] = &[("eos_token_id", Nullable, Ids)];

/// Key of a generation configuration that replaces a missing `decoder_start_token_id`.
const GENERATION_WITH_ENCODER: &[Key] = &[("bos_token_id", Nullable, OneId)];

/// Checks both files in `directory`.
///
/// # Errors
/// [`Error::Model`] with every problem of the first file that has a problem.
pub(super) fn check(
    directory: &Path,
    config: &Map<String, Value>,
    generation: Option<&Map<String, Value>>,
) -> Result<()> {
    let model_type = config.get("model_type").and_then(Value::as_str).unwrap_or_default();
    let family = Family::named(model_type);
    let has_encoder = family.is_some_and(Family::has_encoder);
    let (own, mut found) = with_own_names(model_type, config.clone());
    let config = &own;
    keys("", config, COMMON, &mut found);
    if let Some(family) = family {
        of_family(family).iter().for_each(|list| keys("", config, list, &mut found));
        if found.is_empty() {
            sizes(family, config, &mut found);
        }
    }
    if has_encoder {
        keys("", config, WITH_ENCODER, &mut found);
        if generation.is_none() {
            forced_ids(config, config, &mut found);
        }
    }
    if EncoderFamily::named(model_type).is_some() {
        keys("", config, ENCODER, &mut found);
    }
    report(&directory.join("config.json"), &found)?;
    let Some(generation) = generation else { return Ok(()) };
    keys("", generation, GENERATION, &mut found);
    if has_encoder {
        keys("", generation, WITH_ENCODER, &mut found);
        keys("", generation, GENERATION_WITH_ENCODER, &mut found);
        forced_ids(config, generation, &mut found);
    }
    report(&directory.join("generation_config.json"), &found)
}

/// Reports forced ids of `source` outside the vocabulary. Unlike other ids, these are used as indices.
fn forced_ids(config: &Map<String, Value>, source: &Map<String, Value>, problems: &mut Vec<String>) {
    let vocabulary = count(config, "vocab_size").unwrap_or(u64::MAX);
    for key in ["forced_bos_token_id", "forced_eos_token_id"] {
        if let Some(id) = token_id(source, key).filter(|&id| u64::from(id) >= vocabulary) {
            problems.push(format!("`{key}` is {id}, but the vocabulary has {vocabulary} ids"));
        }
    }
}

/// Returns the id of a token, which may also be a list of one id. Negative numbers mean no id.
pub(super) fn token_id(config: &Map<String, Value>, key: &str) -> Option<u32> {
    let value = config.get(key)?;
    let id = value.as_array().map_or(Some(value), |list| list.first())?;
    id.as_u64().and_then(|id| u32::try_from(id).ok())
}

#[deny(clippy::wildcard_enum_match_arm)]
fn of_family(family: Family) -> &'static [&'static [Key]] {
    match family {
        Family::Gpt2 => &[GPT2],
        Family::GptNeox => &[GPT_NEOX, ONE_ROPE],
        Family::Opt => &[OPT],
        Family::T5 | Family::Mt5 => &[T5],
        Family::Bart | Family::Blenderbot | Family::BlenderbotSmall => &[BART],
        Family::Decoder(of) => match of.rotation {
            Rotation::Everywhere | Rotation::InSomeLayers => &[DECODER, ONE_ROPE],
            Rotation::OwnInWindows => &[DECODER, TWO_ROPES],
        },
    }
}

/// Combines all problems into one error, which lists the first ten.
fn report(path: &Path, problems: &[String]) -> Result<()> {
    const SHOWN: usize = 10;
    if problems.is_empty() {
        return Ok(());
    }
    let more = problems.len().saturating_sub(SHOWN);
    let rest = if more > 0 { format!("; and {more} more") } else { String::new() };
    let shown = problems.iter().take(SHOWN).cloned().collect::<Vec<_>>().join("; ");
    Err(Error::model(path, format!("{shown}{rest}")))
}

/// Reports every key of `object` with an invalid value; `prefix` is prepended to its name.
fn keys(prefix: &str, object: &Map<String, Value>, keys: &[Key], problems: &mut Vec<String>) {
    for &(name, presence, value_type) in keys {
        match object.get(name) {
            None if presence == Needed => problems.push(format!("`{prefix}{name}` is missing")),
            None => {}
            Some(Value::Null) if presence == Nullable => {}
            Some(Value::Object(inner)) if matches!(value_type, Object(_)) => {
                let Object(of_inner) = value_type else { continue };
                self::keys(&format!("{prefix}{name}."), inner, of_inner, problems);
            }
            Some(value) if !value_type.holds(value) => {
                let shown = excerpt(&value.to_string(), 40);
                problems.push(format!("`{prefix}{name}` is `{shown}`, but {} is needed", value_type.words()));
            }
            Some(_) => {}
        }
    }
}

impl ValueType {
    fn holds(self, value: &Value) -> bool {
        let number = value.as_f64();
        match self {
            Count(least, most) => value.as_u64().is_some_and(|count| (least..=most).contains(&count)),
            Above(least, most) => number.is_some_and(|number| number > least && number <= most),
            From(least, most) => number.is_some_and(|number| number >= least && number <= most),
            Share => number.is_some_and(|number| (0.0..1.0).contains(&number)),
            Flag => value.is_boolean(),
            Text => value.is_string(),
            Texts => value.as_array().is_some_and(|list| list.iter().all(Value::is_string)),
            Numbers(most) => value.as_array().is_some_and(|list| {
                list.iter().all(|number| number.as_f64().is_some_and(|number| (0.0..=most).contains(&number)))
            }),
            Id => value.as_i64().is_some_and(|id| id <= i64::from(u32::MAX)),
            OneId => match value.as_array().map(Vec::as_slice) {
                None => Id.holds(value),
                Some([id]) => Id.holds(id),
                Some(_) => false,
            },
            Ids => value.as_array().map_or(Id.holds(value), |list| list.iter().all(|id| Id.holds(id))),
            Object(_) => false,
        }
    }

    fn words(self) -> String {
        match self {
            Count(least, most) => format!("a whole number from {least} to {most}"),
            Above(least, most) => format!("a number above {least} and at most {most}"),
            From(least, most) => format!("a number from {least} to {most}"),
            Share => "a probability of dropout, at least 0 and below 1,".into(),
            Flag => "`true` or `false`".into(),
            Text => "a text".into(),
            Texts => "a list of texts".into(),
            Numbers(most) => format!("a list of numbers from 0 to {most}"),
            Id => "the id of a token".into(),
            OneId => "one id of a token".into(),
            Ids => "the id of a token or a list of ids".into(),
            Object(_) => "an object".into(),
        }
    }
}

fn count(config: &Map<String, Value>, key: &str) -> Option<u64> {
    config.get(key).and_then(Value::as_u64)
}

/// Reports heads that rotary positions cannot rotate.
fn pairs(head_dim: u64, problems: &mut Vec<String>) {
    if head_dim < 2 || !head_dim.is_multiple_of(2) {
        let message = "rotary positions rotate pairs of numbers, so it must be even and at least 2";
        problems.push(format!(
            "a head is {head_dim} numbers wide (`head_dim`, or `hidden_size` by `num_attention_heads`): {message}"
        ));
    }
}

/// Reports sizes that are valid alone but do not fit each other.
fn sizes(family: Family, config: &Map<String, Value>, problems: &mut Vec<String>) {
    let config = &match family {
        Family::Decoder(of) => of.with_defaults(config),
        Family::Gpt2
        | Family::GptNeox
        | Family::Opt
        | Family::T5
        | Family::Mt5
        | Family::Bart
        | Family::Blenderbot
        | Family::BlenderbotSmall => config.clone(),
    };
    let count = |key: &str| count(config, key);
    let multiple = |(key, value): (&str, u64), (of, parts): (&str, u64), problems: &mut Vec<String>| {
        if !value.is_multiple_of(parts) {
            problems.push(format!("`{key}` {value} is not a multiple of `{of}` {parts}"));
        }
    };
    match family {
        Family::Decoder(_) => {
            let (Some(width), Some(heads)) = (count("hidden_size"), count("num_attention_heads")) else { return };
            let kv_heads = count("num_key_value_heads").unwrap_or(heads);
            multiple(("num_attention_heads", heads), ("num_key_value_heads", kv_heads), problems);
            let head_dim = count("head_dim").unwrap_or_else(|| {
                multiple(("hidden_size", width), ("num_attention_heads", heads), problems);
                width / heads
            });
            pairs(head_dim, problems);
        }
        Family::Opt | Family::GptNeox => {
            let (Some(width), Some(heads)) = (count("hidden_size"), count("num_attention_heads")) else { return };
            multiple(("hidden_size", width), ("num_attention_heads", heads), problems);
            if family == Family::GptNeox {
                pairs(width / heads, problems);
            }
        }
        Family::Gpt2 => {
            let (Some(width), Some(heads)) = (count("n_embd"), count("n_head")) else { return };
            multiple(("n_embd", width), ("n_head", heads), problems);
        }
        Family::Bart | Family::Blenderbot | Family::BlenderbotSmall => {
            let Some(width) = count("d_model") else { return };
            for key in ["encoder_attention_heads", "decoder_attention_heads"] {
                multiple(("d_model", width), (key, count(key).unwrap_or(1)), problems);
            }
        }
        Family::T5 | Family::Mt5 => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn problems(config: Value, generation: Value) -> String {
        let object = |value: Value| value.as_object().cloned();
        let config = object(config).expect("an object");
        match check("m".as_ref(), &config, object(generation).as_ref()) {
            Ok(()) => String::new(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn keys_have_a_general_and_an_own_name() {
        let gpt2 = |change: Value| {
            let mut config = json!({
                "model_type": "gpt2", "vocab_size": 9, "hidden_size": 4, "n_layer": 1, "n_head": 2, "max_position_embeddings": 8
            });
            config.as_object_mut().expect("an object").extend(change.as_object().expect("an object").clone());
            problems(config, Value::Null)
        };
        assert_eq!(gpt2(json!({})), "");
        assert_eq!(gpt2(json!({ "n_embd": 4, "n_positions": null })), "");
        assert_eq!(
            gpt2(json!({ "n_embd": 6 })),
            "m/config.json: `hidden_size` is 4, but `n_embd` is 6: they are two names of one key, so remove the wrong one"
        );
        assert_eq!(
            gpt2(json!({ "num_attention_heads": 3, "n_head": null })),
            "m/config.json: `n_embd` 4 is not a multiple of `n_head` 3"
        );
        assert_eq!(gpt2(json!({ "hidden_size": null })), "m/config.json: `n_embd` is missing");
    }

    fn llama(change: Value) -> Value {
        let mut config = json!({
            "model_type": "llama", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4
        });
        config.as_object_mut().expect("an object").extend(change.as_object().expect("an object").clone());
        config
    }

    #[test]
    fn every_problem_is_told_with_what_was_found_and_what_is_needed() {
        assert_eq!(problems(llama(json!({})), Value::Null), "");
        let many = json!({
            "hidden_size": "32", "num_hidden_layers": 0, "rope_theta": "500000", "num_attention_heads": null,
            "rms_norm_eps": true, "rope_scaling": { "rope_type": "linear", "factor": 0 }, "eos_token_id": [1, "2"],
            "attention_dropout": 1.5, "layer_types": "full_attention", "pad_token_id": -1
        });
        let expected = "m/config.json: `eos_token_id` is `[1,\"2\"]`, but the id of a token or a list of ids is needed; \
                        `hidden_size` is `\"32\"`, but a whole number from 1 to 1048576 is needed; \
                        `num_hidden_layers` is `0`, but a whole number from 1 to 4096 is needed; \
                        `num_attention_heads` is `null`, but a whole number from 1 to 8192 is needed; \
                        `rms_norm_eps` is `true`, but a number from 0 to 1 is needed; \
                        `layer_types` is `\"full_attention\"`, but a list of texts is needed; \
                        `attention_dropout` is `1.5`, but a probability of dropout, at least 0 and below 1, is needed; \
                        `rope_theta` is `\"500000\"`, but a number above 1 and at most 1000000000000 is needed; \
                        `rope_scaling.factor` is `0`, but a number above 0 and at most 1000000 is needed";
        assert_eq!(problems(llama(many), Value::Null), expected);
    }

    #[test]
    fn what_computation_would_fail_at_is_refused() {
        for (config, expected) in [
            (llama(json!({ "num_attention_heads": 0 })), "`num_attention_heads` is `0`"),
            (llama(json!({ "intermediate_size": 0 })), "`intermediate_size` is `0`"),
            (llama(json!({ "head_dim": 0 })), "`head_dim` is `0`"),
            (llama(json!({ "head_dim": 1 })), "`head_dim` is `1`"),
            (llama(json!({ "head_dim": 3 })), "a head is 3 numbers wide"),
            (
                llama(json!({ "num_attention_heads": 5 })),
                "`hidden_size` 32 is not a multiple of `num_attention_heads` 5",
            ),
            (llama(json!({ "num_key_value_heads": 3 })), "`num_attention_heads` 4 is not a multiple of"),
            (llama(json!({ "rope_theta": -1 })), "`rope_theta` is `-1`"),
            (llama(json!({ "num_hidden_layers": 1_000_000_000_000_u64 })), "`num_hidden_layers` is `1000000000000`"),
            (
                json!({ "model_type": "gpt2", "vocab_size": 9, "n_embd": 0, "n_layer": 1, "n_head": 1, "n_positions": 8 }),
                "`n_embd` is `0`",
            ),
            (
                json!({ "model_type": "gpt2", "vocab_size": 9, "n_embd": 4, "n_layer": 1, "n_head": 3, "n_positions": 8 }),
                "`n_embd` 4 is not a multiple of `n_head` 3",
            ),
            (
                json!({
                    "model_type": "opt", "vocab_size": 9, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 3,
                    "ffn_dim": 4
                }),
                "`hidden_size` 4 is not a multiple of `num_attention_heads` 3",
            ),
            (
                json!({
                    "model_type": "gpt_neox", "vocab_size": 9, "hidden_size": 4, "num_hidden_layers": 1,
                    "num_attention_heads": 4, "intermediate_size": 4
                }),
                "a head is 1 numbers wide",
            ),
            (json!({ "model_type": "t5", "vocab_size": 9 }), "`d_model` is missing; `d_kv` is missing"),
            (
                llama(json!({ "model_type": "granite", "logits_scaling": 0 })),
                "`logits_scaling` is `0`, but a number from",
            ),
            (
                llama(json!({ "model_type": "seed_oss", "attention_out_bias": "true" })),
                "`attention_out_bias` is `\"true\"`, but `true` or `false`",
            ),
            (
                llama(json!({ "model_type": "seed_oss", "residual_dropout": 1 })),
                "`residual_dropout` is `1`, but a probability",
            ),
            (json!({ "model_type": 3 }), "`model_type` is `3`, but a text is needed"),
        ] {
            let found = problems(config, Value::Null);
            assert!(found.contains(expected), "{expected} in {found}");
        }
        let bart = || {
            json!({
                "model_type": "bart", "vocab_size": 9, "d_model": 4, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 4,
                "decoder_ffn_dim": 4, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 8
            })
        };
        assert_eq!(problems(bart(), json!({ "forced_eos_token_id": [1], "decoder_start_token_id": [2] })), "");
        for (ids, expected) in [
            (
                json!([1, 2]),
                "m/generation_config.json: `forced_eos_token_id` is `[1,2]`, but one id of a token is needed",
            ),
            (json!([9]), "m/generation_config.json: `forced_eos_token_id` is 9, but the vocabulary has 9 ids"),
        ] {
            assert_eq!(problems(bart(), json!({ "forced_eos_token_id": ids })), expected);
        }
        let mistyped = json!({ "eos_token_id": "50256" });
        let expected =
            "m/generation_config.json: `eos_token_id` is `\"50256\"`, but the id of a token or a list of ids is needed";
        assert_eq!(problems(llama(json!({})), mistyped), expected);
    }
}
