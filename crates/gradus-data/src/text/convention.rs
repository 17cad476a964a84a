//! Defaults of tokenizer classes. Many directories on the hub do not name special tokens and rely on the class. `tokenizer_class`
//! names it, or else it follows from the `model_type` of the model.

use serde_json::Value;

/// A tokenizer class, with the defaults that files may leave open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Convention {
    Gpt2,
    /// GPT-NeoX, Pythia.
    GptNeox,
    /// RoBERTa, BART, Longformer, LED.
    Roberta,
    /// XLM-RoBERTa.
    XlmRoberta,
    /// CamemBERT.
    Camembert,
    Blenderbot,
    BlenderbotSmall,
    /// T5, mT5.
    T5,
    ByT5,
    /// BERT, DistilBERT.
    Bert,
    Albert,
    DebertaV1,
    /// DeBERTa 2 and 3.
    Deberta,
    /// Llama 1 and 2, Mistral's first models.
    Llama,
    Gemma,
    /// Qwen 2 and 3.
    Qwen2,
}

impl Convention {
    /// Returns the class that `tokenizer_config.json` or `config.json` names, or that belongs to the model type. Returns `None` for
    /// any other class, because no defaults are known for it.
    pub fn of(tokenizer_config: &Value, model_config: &Value) -> Option<Self> {
        let text = |of: &'static str, config: &Value| config.get(of).and_then(Value::as_str).map(str::to_owned);
        let class = text("tokenizer_class", tokenizer_config).or_else(|| text("tokenizer_class", model_config));
        match class {
            Some(class) => Self::of_kind(class.strip_suffix("Fast").unwrap_or(&class).strip_suffix("Tokenizer")?),
            None => Self::of_kind(&text("model_type", model_config)?),
        }
    }

    /// Parses `kind` in the spelling of classes (`XLMRoberta`) or of models (`xlm-roberta`).
    fn of_kind(kind: &str) -> Option<Self> {
        Some(match kind.replace('-', "").to_ascii_lowercase().as_str() {
            "gpt2" => Self::Gpt2,
            "gptneox" | "gpt_neox" => Self::GptNeox,
            "roberta" | "bart" | "longformer" | "led" => Self::Roberta,
            "xlmroberta" => Self::XlmRoberta,
            "camembert" => Self::Camembert,
            "blenderbot" => Self::Blenderbot,
            "blenderbotsmall" => Self::BlenderbotSmall,
            "t5" | "mt5" => Self::T5,
            "byt5" => Self::ByT5,
            "bert" | "distilbert" => Self::Bert,
            "albert" => Self::Albert,
            "deberta" => Self::DebertaV1,
            "debertav2" => Self::Deberta,
            "llama" | "mistral" | "ministral" => Self::Llama,
            "gemma" | "gemma2" => Self::Gemma,
            "qwen2" | "qwen3" => Self::Qwen2,
            _ => return None,
        })
    }

    /// Returns the class's default for the special token `name`, such as `eos_token`.
    pub fn token(self, name: &str) -> Option<&'static str> {
        let [begin, end, unknown, separator, padding, first, mask] = match self {
            Self::Gpt2 => ["<|endoftext|>", "<|endoftext|>", "<|endoftext|>", "", "", "", ""],
            Self::GptNeox => ["<|endoftext|>", "<|endoftext|>", "<|endoftext|>", "", "<|padding|>", "", ""],
            Self::Roberta | Self::XlmRoberta | Self::Camembert | Self::Blenderbot => {
                ["<s>", "</s>", "<unk>", "</s>", "<pad>", "<s>", "<mask>"]
            }
            Self::BlenderbotSmall => ["__start__", "__end__", "__unk__", "", "__null__", "", ""],
            Self::T5 | Self::ByT5 => ["", "</s>", "<unk>", "", "<pad>", "", ""],
            Self::Bert => ["", "", "[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"],
            Self::Albert => ["[CLS]", "[SEP]", "<unk>", "[SEP]", "<pad>", "[CLS]", "[MASK]"],
            Self::DebertaV1 | Self::Deberta => ["[CLS]", "[SEP]", "[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"],
            Self::Llama => ["<s>", "</s>", "<unk>", "", "", "", ""],
            Self::Gemma => ["<bos>", "<eos>", "<unk>", "", "<pad>", "", ""],
            Self::Qwen2 => ["", "<|endoftext|>", "", "", "<|endoftext|>", "", ""],
        };
        let token = match name {
            "bos_token" => begin,
            "eos_token" => end,
            "unk_token" => unknown,
            "sep_token" => separator,
            "pad_token" => padding,
            "cls_token" => first,
            "mask_token" => mask,
            _ => "",
        };
        (!token.is_empty()).then_some(token)
    }

    /// Returns whether `vocab.json` and `merges.txt` are byte-level, as for GPT-2.
    pub fn is_byte_level(self) -> bool {
        matches!(self, Self::Gpt2 | Self::GptNeox | Self::Roberta | Self::Blenderbot | Self::Qwen2 | Self::DebertaV1)
    }

    /// Returns whether the older file of the class is SentencePiece's. It then also decides which tokens are added around a text.
    pub fn is_sentencepiece(self) -> bool {
        use Convention::{Albert, Camembert, Deberta, Gemma, Llama, T5, XlmRoberta};
        matches!(self, T5 | Albert | Deberta | XlmRoberta | Camembert | Llama | Gemma)
    }

    /// Returns whether the older files of the class put a beginning-of-text token in front of each text by default.
    pub fn adds_bos(self) -> bool {
        matches!(self, Self::Llama | Self::Gemma)
    }

    /// Returns whether the class puts its special tokens around texts if `tokenizer.json` has no post-processor.
    pub fn surrounds(self) -> bool {
        use Convention::{Albert, Bert, Camembert, Deberta, DebertaV1, Roberta, T5, XlmRoberta};
        matches!(self, T5 | Bert | Roberta | XlmRoberta | Camembert | Albert | Deberta | DebertaV1)
    }

    /// Returns whether `add_bos_token` and `add_eos_token` have an effect on the older files of the class.
    pub fn has_choice_of_ends(self) -> bool {
        matches!(self, Self::Gpt2 | Self::GptNeox | Self::Qwen2 | Self::Llama | Self::Gemma)
    }

    /// Returns whether, by default, a space is added in front of the text.
    pub fn adds_space(self) -> bool {
        self == Self::Blenderbot
    }

    /// Returns whether the class tells two texts apart by token types. The others mark the boundary only with a separator.
    pub fn has_types(self) -> bool {
        !matches!(self, Self::Roberta | Self::XlmRoberta | Self::Camembert)
    }

    /// Returns whether a token is special although its file marks it as ordinary.
    pub fn is_special(self, token: &str) -> bool {
        self == Self::Gemma && ["<start_of_turn>", "<end_of_turn>"].contains(&token)
    }
}
