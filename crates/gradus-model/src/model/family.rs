//! Families of models: their names in `config.json`, and the tensor and class names that follow from them.
//!
//! Everything that differs between families is a `match` without `_`, here or in the computation. So a new family compiles only after every
//! such place handles it.
//!
//! Llama and similar models are rows of a table ([`DecoderFamily`]), which a program can extend.

use serde_json::{Map, Value};

use super::decoder::family as decoder;
use super::decoder::family::DecoderFamily;
use crate::error::{Error, Result};

/// A family of language models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// GPT-2.
    Gpt2,
    /// GPT-NeoX, the family of Pythia.
    GptNeox,
    /// OPT.
    Opt,
    /// Llama and similar models, or a family that the program has added.
    Decoder(&'static DecoderFamily),
    /// T5 and Flan-T5.
    T5,
    /// mT5.
    Mt5,
    /// BART.
    Bart,
    /// Blenderbot.
    Blenderbot,
    /// Blenderbot Small.
    BlenderbotSmall,
}

#[deny(clippy::wildcard_enum_match_arm)]
impl Family {
    /// Returns all families, with those that the program has added.
    pub fn all() -> Vec<Self> {
        let decoders = decoder::all().into_iter().map(Self::Decoder);
        let with_encoder = [Self::T5, Self::Mt5, Self::Bart, Self::Blenderbot, Self::BlenderbotSmall];
        [Self::Gpt2, Self::GptNeox, Self::Opt].into_iter().chain(decoders).chain(with_encoder).collect()
    }

    /// Returns the family with this `model_type`.
    pub fn named(name: &str) -> Option<Self> {
        Self::all().into_iter().find(|family| family.name() == name)
    }

    /// Returns `model_type`, the class prefix in `architectures`, and the class of language models there.
    fn names(self) -> [&'static str; 3] {
        match self {
            Self::Gpt2 => ["gpt2", "GPT2", "GPT2LMHeadModel"],
            Self::GptNeox => ["gpt_neox", "GPTNeoX", "GPTNeoXForCausalLM"],
            Self::Opt => ["opt", "OPT", "OPTForCausalLM"],
            Self::Decoder(of) => [of.model_type, of.class, of.language_class],
            Self::T5 => ["t5", "T5", "T5ForConditionalGeneration"],
            Self::Mt5 => ["mt5", "MT5", "MT5ForConditionalGeneration"],
            Self::Bart => ["bart", "Bart", "BartForConditionalGeneration"],
            Self::Blenderbot => ["blenderbot", "Blenderbot", "BlenderbotForConditionalGeneration"],
            Self::BlenderbotSmall => ["blenderbot-small", "BlenderbotSmall", "BlenderbotSmallForConditionalGeneration"],
        }
    }

    /// Returns `model_type`.
    pub fn name(self) -> &'static str {
        self.names()[0]
    }

    /// Returns the class prefix in `architectures`.
    pub fn class(self) -> &'static str {
        self.names()[1]
    }

    /// Returns the class of language models in `architectures`.
    pub fn language_class(self) -> &'static str {
        self.names()[2]
    }

    /// Returns the name prefix of every trunk tensor.
    pub fn base_prefix(self) -> &'static str {
        match self {
            Self::Gpt2 => "transformer.",
            Self::GptNeox => "gpt_neox.",
            Self::T5 | Self::Mt5 => "",
            Self::Decoder(_) | Self::Opt | Self::Bart | Self::Blenderbot | Self::BlenderbotSmall => "model.",
        }
    }

    /// Returns the name of the LM head in files.
    pub fn head_name(self) -> &'static str {
        match self {
            Self::GptNeox => "embed_out",
            Self::Gpt2
            | Self::Opt
            | Self::Decoder(_)
            | Self::T5
            | Self::Mt5
            | Self::Bart
            | Self::Blenderbot
            | Self::BlenderbotSmall => "lm_head",
        }
    }

    /// Whether an encoder reads the prompt, and a decoder writes the completion.
    pub fn has_encoder(self) -> bool {
        match self {
            Self::T5 | Self::Mt5 | Self::Bart | Self::Blenderbot | Self::BlenderbotSmall => true,
            Self::Gpt2 | Self::GptNeox | Self::Opt | Self::Decoder(_) => false,
        }
    }

    /// Whether its encoder can be used alone, as a [`T5Encoder`](super::T5Encoder).
    pub fn has_t5_encoder(self) -> bool {
        match self {
            Self::T5 | Self::Mt5 => true,
            Self::Gpt2
            | Self::GptNeox
            | Self::Opt
            | Self::Decoder(_)
            | Self::Bart
            | Self::Blenderbot
            | Self::BlenderbotSmall => false,
        }
    }

    /// Whether the weights of its linear layers are stored transposed, `[in, out]`.
    pub(super) fn stores_transposed(self) -> bool {
        match self {
            Self::Gpt2 => true,
            Self::GptNeox
            | Self::Opt
            | Self::Decoder(_)
            | Self::T5
            | Self::Mt5
            | Self::Bart
            | Self::Blenderbot
            | Self::BlenderbotSmall => false,
        }
    }

    /// Returns name suffixes of the attention layers in its blocks.
    pub fn attention_layers(self) -> &'static [&'static str] {
        match self {
            Self::Gpt2 => &["c_attn", "attn.c_proj"],
            Self::GptNeox => &["query_key_value", "attention.dense"],
            Self::Decoder(of) if of.fused => &["qkv_proj", "o_proj"],
            Self::Decoder(_) => &["q_proj", "k_proj", "v_proj", "o_proj"],
            Self::T5 | Self::Mt5 => &["q", "k", "v", "o"],
            Self::Opt | Self::Bart | Self::Blenderbot | Self::BlenderbotSmall => {
                &["q_proj", "k_proj", "v_proj", "out_proj"]
            }
        }
    }

    /// Returns name suffixes of the feed-forward layers in its blocks.
    pub fn feed_forward_layers(self) -> &'static [&'static str] {
        match self {
            Self::Gpt2 => &["mlp.c_fc", "mlp.c_proj"],
            Self::GptNeox => &["dense_h_to_4h", "dense_4h_to_h"],
            Self::Decoder(of) if of.fused => &["gate_up_proj", "down_proj"],
            Self::Decoder(_) => &["gate_proj", "up_proj", "down_proj"],
            Self::T5 | Self::Mt5 => &["wi", "wi_0", "wi_1", "wo"],
            Self::Opt | Self::Bart | Self::Blenderbot | Self::BlenderbotSmall => &["fc1", "fc2"],
        }
    }

    /// Returns the defaults of `transformers` for keys missing in `config.json`, if a family with an encoder differs from its relatives.
    /// Decoders have their own ([`DecoderFamily::defaults`]).
    fn defaults(self) -> &'static str {
        match self {
            Self::Mt5 => r#"{"feed_forward_proj": "gated-gelu", "decoder_start_token_id": 0}"#,
            Self::Bart => r#"{"decoder_start_token_id": 2}"#,
            Self::Blenderbot | Self::BlenderbotSmall => r#"{"decoder_start_token_id": 1}"#,
            Self::Gpt2 | Self::GptNeox | Self::Opt | Self::Decoder(_) | Self::T5 => "{}",
        }
    }

    /// Returns the general names that `transformers` accepts for the family's own keys of `config.json` (`attribute_map`).
    fn synonyms(self) -> Synonyms {
        match self {
            Self::Gpt2 => &[
                ("hidden_size", "n_embd"),
                ("max_position_embeddings", "n_positions"),
                ("num_attention_heads", "n_head"),
                ("num_hidden_layers", "n_layer"),
            ],
            Self::T5 | Self::Mt5 => &[
                ("hidden_size", "d_model"),
                ("num_attention_heads", "num_heads"),
                ("num_hidden_layers", "num_layers"),
                ("head_dim", "d_kv"),
            ],
            Self::Bart | Self::Blenderbot | Self::BlenderbotSmall => &[
                ("hidden_size", "d_model"),
                ("num_attention_heads", "encoder_attention_heads"),
                ("num_hidden_layers", "encoder_layers"),
            ],
            Self::GptNeox | Self::Opt | Self::Decoder(_) => &[],
        }
    }
}

/// Adds `family` to the families that this process opens, trains, samples and saves.
///
/// It holds for the whole process, like `AutoConfig.register` of `transformers`. From then on, every model directory with this `model_type`
/// is of this family. Call it before the program opens models.
///
/// # Errors
/// If its `model_type` is empty or belongs to another family, or if its defaults are not a JSON object.
pub fn register_family(family: DecoderFamily) -> Result<()> {
    let name = family.model_type;
    let refuse = |problem: &str| Err(Error::input(format!("the family `{name}` cannot be added: {problem}")));
    if name.is_empty() {
        return refuse("its `model_type` is empty");
    }
    if serde_json::from_str::<Map<String, Value>>(family.defaults).is_err() {
        return refuse("its `defaults` are not a JSON object");
    }
    let is_free = families().iter().all(|known| *known != name) && decoder::add(family);
    if is_free { Ok(()) } else { refuse("another family has this `model_type`") }
}

/// A family of encoders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EncoderFamily {
    Bert,
    DistilBert,
    Roberta,
    XlmRoberta,
    Camembert,
    Longformer,
    Albert,
    ModernBert,
    /// DeBERTa v1.
    DebertaV1,
    /// DeBERTa v2 and v3.
    Deberta,
}

#[deny(clippy::wildcard_enum_match_arm)]
impl EncoderFamily {
    /// All families.
    pub const ALL: [Self; 10] = [
        Self::Bert,
        Self::DistilBert,
        Self::Roberta,
        Self::XlmRoberta,
        Self::Camembert,
        Self::Longformer,
        Self::Albert,
        Self::ModernBert,
        Self::DebertaV1,
        Self::Deberta,
    ];

    /// Returns the family with this `model_type`.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|family| family.name() == name)
    }

    /// Returns `model_type`, the class prefix in `architectures`, and the name prefix of every encoder tensor.
    fn names(self) -> [&'static str; 3] {
        match self {
            Self::Bert => ["bert", "Bert", "bert."],
            Self::DistilBert => ["distilbert", "DistilBert", "distilbert."],
            Self::Roberta => ["roberta", "Roberta", "roberta."],
            Self::XlmRoberta => ["xlm-roberta", "XLMRoberta", "roberta."],
            Self::Camembert => ["camembert", "Camembert", "roberta."],
            Self::Longformer => ["longformer", "Longformer", "longformer."],
            Self::Albert => ["albert", "Albert", "albert."],
            Self::ModernBert => ["modernbert", "ModernBert", "model."],
            Self::DebertaV1 => ["deberta", "Deberta", "deberta."],
            Self::Deberta => ["deberta-v2", "DebertaV2", "deberta."],
        }
    }

    /// Returns `model_type`.
    pub fn name(self) -> &'static str {
        self.names()[0]
    }

    /// Returns the class prefix in `architectures`.
    pub fn class(self) -> &'static str {
        self.names()[1]
    }

    /// Returns the name prefix of every encoder tensor.
    pub fn base_prefix(self) -> &'static str {
        self.names()[2]
    }

    /// Returns name suffixes of the attention layers in its blocks.
    pub fn attention_layers(self) -> &'static [&'static str] {
        match self {
            Self::Bert | Self::Roberta | Self::XlmRoberta | Self::Camembert | Self::Longformer => {
                &["query", "key", "value", "attention.output.dense"]
            }
            Self::DistilBert => &["q_lin", "k_lin", "v_lin", "out_lin"],
            Self::Albert => &["query", "key", "value", "attention.dense"],
            Self::ModernBert => &["Wqkv", "attn.Wo"],
            Self::DebertaV1 => &["in_proj", "attention.output.dense"],
            Self::Deberta => &["query_proj", "key_proj", "value_proj", "attention.output.dense"],
        }
    }

    /// Returns the defaults of `transformers` for keys missing in `config.json`, if they differ from BERT's.
    fn defaults(self) -> &'static str {
        match self {
            Self::Albert => {
                r#"{"hidden_act": "gelu_new", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
                    "classifier_dropout_prob": 0.1}"#
            }
            Self::DebertaV1 | Self::Deberta => r#"{"layer_norm_eps": 1e-7}"#,
            Self::Longformer => r#"{"attention_window": 512}"#,
            Self::Bert | Self::DistilBert | Self::Roberta | Self::XlmRoberta | Self::Camembert | Self::ModernBert => {
                "{}"
            }
        }
    }

    /// Returns the general names of its keys; see [`Family::synonyms`].
    fn synonyms(self) -> Synonyms {
        match self {
            Self::DistilBert => {
                &[("hidden_size", "dim"), ("num_attention_heads", "n_heads"), ("num_hidden_layers", "n_layers")]
            }
            Self::Bert
            | Self::Roberta
            | Self::XlmRoberta
            | Self::Camembert
            | Self::Longformer
            | Self::Albert
            | Self::ModernBert
            | Self::DebertaV1
            | Self::Deberta => &[],
        }
    }

    /// Whether the tensor `name` belongs to a head or pooler, not to an encoder of this family.
    pub(super) fn is_of_a_head(self, name: &str) -> bool {
        is_of_another_head(name) || self.is_of_own_head(name)
    }

    /// Whether the tensor `name` belongs to a head or pooler of this family.
    pub(super) fn is_of_own_head(self, name: &str) -> bool {
        let begins = ["classifier.", "pre_classifier.", "pooler.", "head."];
        begins.iter().any(|begin| name.starts_with(begin))
            || name.strip_prefix(self.base_prefix()).is_some_and(|rest| rest.starts_with("pooler."))
    }
}

/// Whether the tensor `name` belongs to a head that no classifier has (of pre-training or an earlier task), or to a pooler that the
/// classifier does not read.
pub(super) fn is_of_another_head(name: &str) -> bool {
    const BEGINNINGS: [&str; 8] = [
        "cls.",
        "lm_head.",
        "vocab_",
        "predictions.",
        "sop_classifier.",
        "lm_predictions.",
        "mask_predictions.",
        "decoder.",
    ];
    BEGINNINGS.iter().any(|begin| name.starts_with(begin)) || name.contains("pooler.")
}

/// Returns the `model_type` of every supported family: language models first, then encoders.
pub fn families() -> Vec<&'static str> {
    Family::all().into_iter().map(Family::name).chain(EncoderFamily::ALL.map(EncoderFamily::name)).collect()
}

/// Returns the defaults of `transformers` for keys missing in `config.json`, as a JSON object; empty for an unknown family.
pub(super) fn defaults(model_type: &str) -> &'static str {
    match (Family::named(model_type), EncoderFamily::named(model_type)) {
        (Some(family), _) => family.defaults(),
        (None, Some(family)) => family.defaults(),
        (None, None) => "{}",
    }
}

/// Pairs of a general name of a key and the family's own name for it.
type Synonyms = &'static [(&'static str, &'static str)];

/// Adds the keys that `config` of a model of this type has only under a general name, under the family's own name. Also returns a problem for
/// every key whose two names have different values.
pub(super) fn with_own_names(model_type: &str, mut config: Map<String, Value>) -> (Map<String, Value>, Vec<String>) {
    let synonyms: Synonyms = match (Family::named(model_type), EncoderFamily::named(model_type)) {
        (Some(family), _) => family.synonyms(),
        (None, Some(family)) => family.synonyms(),
        (None, None) => &[],
    };
    let mut problems = Vec::new();
    for &(general, own) in synonyms {
        let set = |key: &str| config.get(key).filter(|value| !value.is_null()).cloned();
        match (set(general), set(own)) {
            (Some(value), None) => {
                config.insert(own.into(), value);
            }
            (Some(value), Some(of_own)) if value != of_own => problems.push(format!(
                "`{general}` is {value}, but `{own}` is {of_own}: they are two names of one key, so remove the wrong one"
            )),
            _ => {}
        }
    }
    (config, problems)
}
