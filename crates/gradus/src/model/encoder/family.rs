//! The families of encoders: what `config.json` calls them, and the names that follow from it.

use super::super::directory::ModelDir;
use crate::error::{Error, Result};

/// A family of encoders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EncoderFamily {
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

impl EncoderFamily {
    /// All of them.
    pub(crate) const ALL: [Self; 10] = [
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

    /// The family that `model_type` names.
    pub(crate) fn named(model_type: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|family| family.model_type() == model_type)
    }

    /// The family of the model in `dir`.
    ///
    /// # Errors
    /// When it is no encoder's.
    pub(crate) fn of(dir: &ModelDir) -> Result<Self> {
        Self::named(dir.model_type()).ok_or_else(|| {
            let known = Self::ALL.map(Self::model_type).join(", ");
            let message = format!("model type `{}` is no encoder that is supported (known: {known})", dir.model_type());
            Error::model(dir.path.join("config.json"), message)
        })
    }

    /// What `config.json` calls it.
    pub(crate) fn model_type(self) -> &'static str {
        self.names()[0]
    }

    /// The class prefix in `architectures`.
    pub(crate) fn class(self) -> &'static str {
        self.names()[1]
    }

    /// What stands before every tensor's name of the encoder.
    pub(crate) fn base_prefix(self) -> &'static str {
        self.names()[2]
    }

    /// What `transformers` takes for keys that `config.json` lacks, where BERT has something else or nothing.
    pub(crate) fn defaults(self) -> &'static str {
        match self {
            Self::Albert => {
                r#"{"hidden_act": "gelu_new", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
                    "classifier_dropout_prob": 0.1}"#
            }
            Self::DebertaV1 | Self::Deberta => r#"{"layer_norm_eps": 1e-7}"#,
            Self::Longformer => r#"{"attention_window": 512}"#,
            _ => "{}",
        }
    }

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
}
