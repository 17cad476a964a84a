//! A Hugging Face model directory: its unchanged configuration and its other files.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use gradus_kernels::Quantization;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::adapter::{CONFIG_FILE, PeftConfig, TaskType};
use super::classifier::{Scope, Task};
use super::config_check::{self, token_id};
use super::family::{EncoderFamily, Family, defaults, with_own_names};
use super::hub_model::resolve;
use crate::error::{Error, Result};
use crate::files::{self, atomic};

/// Files of the tokenizer, which are copied byte for byte next to every saved model.
const TOKENIZER_FILES: [&str; 13] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "spiece.model",
    "tokenizer.model",
    "sentencepiece.bpe.model",
    "spm.model",
    TEMPLATES[0],
    TEMPLATES[1],
];

/// Chat templates among the tokenizer files.
const TEMPLATES: [&str; 2] = ["chat_template.jinja", "additional_chat_templates"];

/// Weight files of a model with their shard indices, in order of precedence.
pub(super) const WEIGHT_FILES: [(&str, &str); 2] =
    [("model.safetensors", "model.safetensors.index.json"), ("pytorch_model.bin", "pytorch_model.bin.index.json")];

/// A model directory on disk.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelDir {
    /// Path of the directory.
    pub path: PathBuf,
    /// `config.json` with all its keys.
    pub config: Map<String, Value>,
    /// `generation_config.json`, if it exists.
    pub generation_config: Option<Map<String, Value>>,
    /// Adapter of this model.
    pub adapter: Option<AdapterDir>,
    /// New head of this encoder; `None` for the head that it has.
    pub head: Option<Task>,
    /// Directory of its tokenizer, if it is elsewhere. All models saved from this one get that tokenizer.
    pub tokenizer: Option<PathBuf>,
    /// Chat template that replaces the stored one in all models saved from this one.
    pub chat_template: Option<String>,
    /// Number format of the weights of all models saved from this one.
    pub saved_weights: SavedWeights,
}

/// The key of `config.json` that holds a [`TrainingInfo`].
const TRAINING_INFO_KEY: &str = "gradus";
/// File that holds a [`TrainingInfo`] next to an adapter, whose own configuration has only peft's keys.
const TRAINING_INFO_FILE: &str = "gradus.json";

/// Key of that file for the task of a classifier's head.
const HEAD: &str = "head";

/// Key of the start id of a decoder.
const DECODER_START: &str = "decoder_start_token_id";

/// Writes the task of a classifier's head next to its adapter.
///
/// # Errors
/// When the file is broken or cannot be written.
pub(super) fn write_head(head: Map<String, Value>, to: &Path) -> Result<()> {
    let path = to.join(TRAINING_INFO_FILE);
    let mut left = read_object(&path)?.unwrap_or_default();
    left.insert(HEAD.into(), head.into());
    let text = serde_json::to_string_pretty(&left).expect("JSON values serialize") + "\n";
    atomic::write_bytes(&path, text.as_bytes())
}

/// Facts about the training of a model that later uses need. They are in `config.json` under `gradus`, or in `gradus.json` for an adapter.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TrainingInfo {
    /// Largest number of tokens in a training text; longer texts were cut.
    pub max_length: Option<usize>,
    /// Mean of a reward model's scores over its training texts.
    pub score_mean: Option<f64>,
    /// Standard deviation of these scores, as a population.
    pub score_std: Option<f64>,
    /// Sentence splitter of the training texts, if the model was trained on segments.
    pub sentences: Option<String>,
    /// Whether the training texts of a reward model ended with the end-of-sequence token.
    pub add_eos: Option<bool>,
    /// Whether overlong texts of a reward model lost their beginning and kept their end.
    pub keeps_end: Option<bool>,
    /// Columns of the training rows of a classifier.
    pub columns: ClassifierColumns,
}

/// Columns of a classifier's rows, as far as they differ from the defaults.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClassifierColumns {
    /// Template of the input text.
    pub text: Option<String>,
    /// Template of the second input text.
    pub pair: Option<String>,
    /// Column of the labels.
    pub label_column: Option<String>,
}

impl ClassifierColumns {
    fn fields(&mut self) -> [(&'static str, &mut Option<String>); 3] {
        [("text", &mut self.text), ("pair", &mut self.pair), ("label_column", &mut self.label_column)]
    }

    fn from_json(found: &Map<String, Value>) -> Self {
        let mut columns = Self::default();
        for (key, value) in columns.fields() {
            *value = found.get(key).and_then(Value::as_str).map(str::to_owned);
        }
        columns
    }

    fn to_json(&self) -> Map<String, Value> {
        let mut columns = self.clone();
        let set = columns.fields().into_iter().filter_map(|(key, value)| Some((key.to_owned(), value.take()?.into())));
        set.collect()
    }
}

impl TrainingInfo {
    /// Writes the facts that are set into the model directory or adapter directory `to`.
    ///
    /// # Errors
    /// When a file is broken or cannot be written.
    pub fn write(&self, to: &Path) -> Result<()> {
        let found = self.to_json();
        if found.is_empty() {
            return Ok(());
        }
        let path = to.join("config.json");
        let (path, object) = match read_object(&path)? {
            Some(mut config) => {
                config.insert(TRAINING_INFO_KEY.into(), found.into());
                (path, config)
            }
            None => {
                let path = to.join(TRAINING_INFO_FILE);
                let mut left = read_object(&path)?.unwrap_or_default();
                left.extend(found);
                (path, left)
            }
        };
        let text = serde_json::to_string_pretty(&object).expect("JSON values serialize") + "\n";
        // Writes a new file, because the old one may be hard-linked to a checkpoint's.
        atomic::write_bytes(&path, text.as_bytes())
    }

    fn from_json(found: &Map<String, Value>) -> Self {
        let number = |key: &str| found.get(key).and_then(Value::as_f64).filter(|number| number.is_finite());
        Self {
            max_length: found.get("max_length").and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok()),
            score_mean: number("score_mean"),
            score_std: number("score_std").filter(|std| *std > 0.0),
            sentences: found.get("sentences").and_then(Value::as_str).map(str::to_owned),
            add_eos: found.get("add_eos").and_then(Value::as_bool),
            keeps_end: found.get("keeps_end").and_then(Value::as_bool),
            columns: found
                .get("columns")
                .and_then(Value::as_object)
                .map(ClassifierColumns::from_json)
                .unwrap_or_default(),
        }
    }

    fn to_json(&self) -> Map<String, Value> {
        let mut found = Map::new();
        let mut insert = |key: &str, value: Option<Value>| value.and_then(|value| found.insert(key.into(), value));
        insert("max_length", self.max_length.map(Value::from));
        insert("score_mean", self.score_mean.map(Value::from));
        insert("score_std", self.score_std.map(Value::from));
        insert("sentences", self.sentences.clone().map(Value::from));
        insert("add_eos", self.add_eos.map(Value::from));
        insert("keeps_end", self.keeps_end.map(Value::from));
        let columns = self.columns.to_json();
        insert("columns", (!columns.is_empty()).then(|| columns.into()));
        found
    }
}

/// Number format of the weights of a saved model on disk. Memory and training state keep 32 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SavedWeights {
    /// IEEE 754 single precision: exactly the trained values.
    #[default]
    F32,
    /// The upper half of f32, rounded to nearest, ties to even: the range of f32 and 8 bits of precision.
    Bf16,
    /// IEEE 754 half precision, rounded in the same way: 11 bits of precision, at most 65,504.
    F16,
}

impl SavedWeights {
    /// All formats.
    pub const ALL: &'static [Self] = &[Self::F32, Self::Bf16, Self::F16];

    /// Returns the name in configurations and flags.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        }
    }

    /// Returns the name in `config.json`.
    pub(super) fn dtype(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::Bf16 => "bfloat16",
            Self::F16 => "float16",
        }
    }
}

impl FromStr for SavedWeights {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().copied().find(|weights| weights.name() == text);
        found.ok_or_else(|| {
            format!("`{text}` is none of {}", Self::ALL.iter().map(|of| of.name()).collect::<Vec<_>>().join(", "))
        })
    }
}

/// An adapter's directory.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterDir {
    /// Path of the directory.
    pub path: PathBuf,
    /// `adapter_config.json`.
    pub config: PeftConfig,
    /// Facts about its training.
    pub training_info: TrainingInfo,
    /// Task of a classifier's head, with the keys that `config.json` of a whole model would have.
    pub head: Option<Map<String, Value>>,
}

impl ModelDir {
    /// Reads the configuration of the model directory `path`. For an adapter's directory, opens the base with the adapter on it.
    ///
    /// # Errors
    /// When the directory or its `config.json` is missing or is not JSON, when a used key is mistyped or out of range, or when an adapter's
    /// base cannot be found.
    pub fn open(path: &Path) -> Result<Self> {
        if is_adapter(path) {
            let adapter = AdapterDir::open(path)?;
            let Some(base) = &adapter.config.base else {
                return Err(Error::model(path, "an adapter without the name of its base model")
                    .with_hint("pass its base as `--model` and this directory as `--adapter`"));
            };
            let base = resolve(base, &mut |_, _, _| {}).and_then(|base| Self::open_model(&base)).map_err(|error| {
                Error::model(path, format!("its base `{base}` cannot be opened: {error}"))
                    .with_hint("pass the base as `--model` and this directory as `--adapter`")
            })?;
            return Ok(base.with(adapter));
        }
        Self::open_model(path)
    }

    fn open_model(path: &Path) -> Result<Self> {
        if !path.is_dir() {
            let what = if path.exists() { "is a file, not a model directory" } else { "no such model directory" };
            return Err(
                Error::model(path, what).with_hint("a model directory holds `config.json` and `model.safetensors`")
            );
        }
        let config = read_object(&path.join("config.json"))?
            .ok_or_else(|| Error::model(path, "no `config.json`: this is not a model directory"))?;
        let generation_config = read_object(&path.join("generation_config.json"))?;
        config_check::check(path, &config, generation_config.as_ref())?;
        Ok(Self { path: path.into(), generation_config, ..Self::unsaved(config) })
    }

    /// Adds the adapter in `path`.
    ///
    /// # Errors
    /// When there is no adapter in `path`, or the model already has one.
    pub fn with_adapter(self, path: &Path) -> Result<Self> {
        if let Some(adapter) = &self.adapter {
            let on = adapter.path.display();
            return Err(Error::model(path, format!("the model has the adapter `{on}` already"))
                .with_hint("merge that one into its base with `gradus merge`"));
        }
        Ok(self.with(AdapterDir::open(path)?))
    }

    /// Adds an adapter. A tokenizer next to the adapter takes precedence, because the adapter was trained with it.
    fn with(self, adapter: AdapterDir) -> Self {
        let has_tokenizer = files::TOKENIZERS.iter().any(|file| adapter.path.join(file).is_file());
        let tokenizer = if has_tokenizer { Some(adapter.path.clone()) } else { self.tokenizer.clone() };
        Self { adapter: Some(adapter), tokenizer, ..self }
    }

    /// Returns the model without its adapter.
    #[must_use]
    pub fn without_adapter(&self) -> Self {
        Self { adapter: None, ..self.clone() }
    }

    /// Creates a directory that does not exist on disk yet, for a model built from `config`.
    pub fn unsaved(config: Map<String, Value>) -> Self {
        Self {
            path: PathBuf::new(),
            config,
            generation_config: None,
            adapter: None,
            head: None,
            tokenizer: None,
            chat_template: None,
            saved_weights: SavedWeights::F32,
        }
    }

    /// Returns the quantization of its linear layers from its configuration.
    pub fn quantization(&self) -> Option<Quantization> {
        let config = self.config.get("quantization_config")?;
        let says = |key: &str| config.get(key).and_then(Value::as_bool).unwrap_or(false);
        match (says("load_in_8bit"), says("load_in_4bit")) {
            (true, _) => Some(Quantization::Int8),
            (_, true) => Some(Quantization::Nf4),
            _ => None,
        }
    }

    /// Rejects weights that are not quantized by bitsandbytes.
    ///
    /// # Errors
    /// When another method quantized them.
    pub(super) fn check_quantization(&self) -> Result<()> {
        let method = self.config.get("quantization_config").and_then(|config| config.get("quant_method"));
        match method.and_then(Value::as_str) {
            None | Some("bitsandbytes") => Ok(()),
            Some(method) => {
                Err(Error::model(self.path.join("config.json"), format!("weights quantized by `{method}`")).with_hint(
                    "bitsandbytes' INT8 and NF4 can be read; or quantize the original with `gradus quantize`",
                ))
            }
        }
    }

    /// Returns the family of language models that it belongs to.
    ///
    /// # Errors
    /// When the family is unknown or an encoder.
    pub fn family(&self) -> Result<Family> {
        Family::named(self.model_type()).ok_or_else(|| {
            let name = self.model_type();
            let known = Family::all().into_iter().map(Family::name).collect::<Vec<_>>().join(", ");
            let refuse = |message: String| Error::model(self.path.join("config.json"), message);
            if EncoderFamily::named(name).is_some() {
                return refuse(format!("model type `{name}` is an encoder, which predicts no text"))
                    .with_hint("it can score: `gradus score --classifier DIR`");
            }
            if name == "gemma3" {
                let message = "model type `gemma3` also reads images; only its text part, `gemma3_text`, is supported";
                let hint = "in transformers: `Gemma3ForCausalLM.from_pretrained(DIR).save_pretrained(TO)`";
                return refuse(message.into()).with_hint(hint);
            }
            refuse(format!("model type `{name}` is not supported (known: {known})"))
        })
    }

    /// Returns the family of encoders that it belongs to.
    ///
    /// # Errors
    /// When it is another kind of model.
    pub(crate) fn encoder_family(&self) -> Result<EncoderFamily> {
        EncoderFamily::named(self.model_type()).ok_or_else(|| {
            let (name, known) = (self.model_type(), EncoderFamily::ALL.map(EncoderFamily::name).join(", "));
            let message = format!("model type `{name}` is not a supported encoder (known: {known})");
            Error::model(self.path.join("config.json"), message)
        })
    }

    /// Returns the name prefix of all tensors below the head.
    ///
    /// # Errors
    /// When the family is unknown.
    pub(crate) fn base_prefix(&self) -> Result<&'static str> {
        match EncoderFamily::named(self.model_type()) {
            Some(family) => Ok(family.base_prefix()),
            None => Ok(self.family()?.base_prefix()),
        }
    }

    /// Returns name suffixes of the attention layers in its blocks, and whether the weights of its linear layers are stored transposed.
    ///
    /// # Errors
    /// When the family is unknown.
    pub(super) fn attention_layers(&self) -> Result<(&'static [&'static str], bool)> {
        if let Some(family) = EncoderFamily::named(self.model_type()) {
            return Ok((family.attention_layers(), false));
        }
        let family = self.family()?;
        Ok((family.attention_layers(), family.stores_transposed()))
    }

    /// Returns `config.json` under the family's own names of keys, with the defaults of `transformers` for missing keys that differ between
    /// families.
    pub fn whole_config(&self) -> Map<String, Value> {
        let mut all: Map<String, Value> = serde_json::from_str(defaults(self.model_type())).expect("an object");
        let (own, _) = with_own_names(self.model_type(), self.config.clone());
        all.extend(own);
        all
    }

    /// Parses the keys of `config.json` that a computation reads.
    ///
    /// # Errors
    /// When a key is missing or mistyped.
    pub(crate) fn read_config<C: DeserializeOwned>(&self) -> Result<C> {
        serde_json::from_value(Value::Object(self.whole_config()))
            .map_err(|error| Error::model(self.path.join("config.json"), error.to_string()))
    }

    /// Sets the head; `None` keeps the head that it has.
    #[must_use]
    pub fn with_head(self, head: Option<Task>) -> Self {
        Self { head, ..self }
    }

    /// Whether this is a classifier: an encoder with a supported head.
    pub fn is_classifier(&self) -> bool {
        self.is_encoder() && self.scope().is_some()
    }

    /// Checks that this is a classifier, and returns its scope.
    ///
    /// # Errors
    /// When it is another kind of model.
    pub fn check_classifier(&self) -> Result<Scope> {
        self.encoder_family()?;
        if let Some(scope) = self.scope() {
            return Ok(scope);
        }
        let found = self.architecture();
        let message = format!("`{found}` is not a classifier (…ForSequenceClassification, …ForTokenClassification)");
        Err(Error::model(&self.path, message).with_hint("train a head on it with `gradus classify`"))
    }

    /// Scope of its classifier, from its adapter or from the class in `architectures`.
    pub(super) fn scope(&self) -> Option<Scope> {
        match self.adapter.as_ref().map(|adapter| adapter.config.task_type) {
            Some(TaskType::SequenceClassification) => Some(Scope::Sequence),
            Some(TaskType::TokenClassification) => Some(Scope::Token),
            Some(TaskType::CausalLm | TaskType::Seq2SeqLm) => None,
            None => [Scope::Sequence, Scope::Token]
                .into_iter()
                .find(|scope| self.architecture().ends_with(scope.class_end())),
        }
    }

    /// Returns the directory of its tokenizer.
    pub fn tokenizer_dir(&self) -> &Path {
        self.tokenizer.as_deref().unwrap_or(&self.path)
    }

    /// `model_type`, such as `gpt2`.
    pub fn model_type(&self) -> &str {
        self.config.get("model_type").and_then(Value::as_str).unwrap_or("")
    }

    /// The class in `architectures`, such as `GPT2LMHeadModel`.
    pub fn architecture(&self) -> &str {
        self.config.get("architectures").and_then(|list| list.get(0)).and_then(Value::as_str).unwrap_or("")
    }

    /// Whether this is an encoder, with any head.
    pub fn is_encoder(&self) -> bool {
        EncoderFamily::named(self.model_type()).is_some()
    }

    /// Returns the facts about its training.
    pub fn training_info(&self) -> TrainingInfo {
        match &self.adapter {
            Some(adapter) => adapter.training_info.clone(),
            None => self
                .config
                .get(TRAINING_INFO_KEY)
                .and_then(Value::as_object)
                .map(TrainingInfo::from_json)
                .unwrap_or_default(),
        }
    }

    /// Whether this is a scalar reward model.
    pub fn is_reward_model(&self) -> bool {
        match &self.adapter {
            Some(adapter) => adapter.config.task_type == TaskType::SequenceClassification && !self.is_encoder(),
            None => self.has_score(),
        }
    }

    /// Whether the weights, without the adapter, have a scalar head. A head on an encoder counts as a classifier's.
    pub(super) fn has_score(&self) -> bool {
        self.architecture().ends_with("ForSequenceClassification") && !self.is_encoder()
    }

    /// Returns every id that ends a completion: those of the generation configuration, then those of the model.
    pub fn eos_ids(&self) -> Vec<u32> {
        let mut ids = Vec::new();
        let sources = [self.generation_config.as_ref(), Some(&self.config)];
        for value in sources.into_iter().flatten().filter_map(|config| config.get("eos_token_id")) {
            let listed = value.as_array().map_or_else(|| vec![value], |list| list.iter().collect());
            for id in listed.into_iter().filter_map(Value::as_u64).filter_map(|id| u32::try_from(id).ok()) {
                if !ids.contains(&id) {
                    ids.push(id);
                }
            }
        }
        ids
    }

    /// Whether an encoder reads the prompt and a decoder writes the completion.
    ///
    /// # Errors
    /// When the family is unknown.
    pub fn has_encoder(&self) -> Result<bool> {
        if self.is_encoder() {
            return Ok(false);
        }
        Ok(self.family()?.has_encoder())
    }

    /// Checks that this model can continue texts.
    ///
    /// # Errors
    /// When the family is unknown or an encoder.
    pub fn check_writes(&self) -> Result<()> {
        self.family().map(drop)
    }

    /// Checks that this is an encoder.
    ///
    /// # Errors
    /// When the family is unknown or another kind of model.
    pub fn check_reads(&self) -> Result<()> {
        self.encoder_family().map(drop)
    }

    /// Returns the first and the last id of every completion, if the generation configuration forces them. As in `transformers`,
    /// `config.json` counts only if there is no generation configuration. Only models with an encoder have forced ids, because they were
    /// trained with them.
    pub fn forced_ids(&self) -> [Option<u32>; 2] {
        let source = self.generation_config.as_ref().unwrap_or(&self.config);
        let forced = |key: &str| token_id(source, key);
        match self.has_encoder() {
            Ok(true) => ["forced_bos_token_id", "forced_eos_token_id"].map(forced),
            _ => [None, None],
        }
    }

    /// Returns the start id of a decoder in training: `decoder_start_token_id` of the configuration, else of the generation configuration,
    /// else the default of `transformers` for the family.
    ///
    /// # Errors
    /// When none of them defines it.
    pub fn decoder_start(&self) -> Result<u32> {
        let whole = self.whole_config();
        let sources = [Some(&self.config), self.generation_config.as_ref(), Some(&whole)];
        let Some(id) = sources.into_iter().flatten().find_map(|config| token_id(config, DECODER_START)) else {
            let message = "no `decoder_start_token_id`: the first id of the decoder is unknown";
            return Err(Error::model(self.path.join("config.json"), message)
                .with_hint("T5 begins with its padding: `\"decoder_start_token_id\": 0`"));
        };
        self.known_start("config.json", DECODER_START, id)
    }

    /// Returns the start id of a decoder in sampling: `decoder_start_token_id` of the generation configuration, else its `bos_token_id`, as
    /// in `transformers`, else the start id in training.
    ///
    /// # Errors
    /// When none of them defines it.
    pub fn sampling_start(&self) -> Result<u32> {
        let own = self.generation_config.as_ref();
        let found = own.and_then(|own| {
            [DECODER_START, "bos_token_id"].into_iter().find_map(|key| token_id(own, key).map(|id| (key, id)))
        });
        match found {
            Some((key, id)) => self.known_start("generation_config.json", key, id),
            None => self.decoder_start(),
        }
    }

    /// Checks that sampling begins a decoder with the id of training. Otherwise, the probabilities of sampled completions are not those that
    /// training computes for them.
    ///
    /// # Errors
    /// When the two ids differ.
    pub fn check_sampling_start(&self) -> Result<()> {
        if !self.has_encoder()? {
            return Ok(());
        }
        let (trained, sampled) = (self.decoder_start()?, self.sampling_start()?);
        if trained == sampled {
            return Ok(());
        }
        let message =
            format!("sampling begins the decoder with id {sampled}, but training with id {trained} of `config.json`");
        Err(Error::model(self.path.join("generation_config.json"), message)
            .with_hint("a method that trains on its own samples needs the same `decoder_start_token_id` in both files"))
    }

    /// Returns a start id that the vocabulary has.
    fn known_start(&self, file: &str, key: &str, id: u32) -> Result<u32> {
        let vocabulary = self.config.get("vocab_size").and_then(Value::as_u64);
        match vocabulary.filter(|&vocabulary| u64::from(id) >= vocabulary) {
            None => Ok(id),
            Some(vocabulary) => {
                let message = format!("`{key}` is {id}, but the vocabulary has {vocabulary} ids");
                Err(Error::model(self.path.join(file), message))
            }
        }
    }

    /// Returns `pad_token_id` of the configuration.
    pub fn pad_id(&self) -> Option<u32> {
        self.config.get("pad_token_id").and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok())
    }

    /// Checks that the model's vocabulary covers all ids of a tokenizer with `tokens` ids. It may be larger, because tables are often
    /// padded.
    ///
    /// # Errors
    /// [`Error::Model`] when the tokenizer has ids beyond the model's vocabulary.
    pub fn check_vocabulary(&self, tokens: usize) -> Result<()> {
        let known = self.config.get("vocab_size").and_then(Value::as_u64).map_or(usize::MAX, |size| size as usize);
        if tokens <= known {
            return Ok(());
        }
        let message = format!("the tokenizer has {tokens} tokens, but the model's vocabulary only {known}");
        Err(Error::model(&self.path, message)
            .with_hint("put the tokenizer that the model was trained with next to it, or pass it with `--tokenizer`"))
    }

    /// Copies the tokenizer files into `to`, byte for byte. A chat template that was set replaces the stored templates.
    ///
    /// # Errors
    /// When a file cannot be copied.
    pub fn copy_tokenizer(&self, to: &Path) -> Result<()> {
        let from = self.tokenizer_dir();
        // A model saved over itself keeps its files: copying a file onto itself would empty it.
        let is_same = || std::fs::canonicalize(from).ok() == std::fs::canonicalize(to).ok();
        if !from.as_os_str().is_empty() && !is_same() {
            let files = TOKENIZER_FILES.iter().filter(|name| self.chat_template.is_none() || !TEMPLATES.contains(name));
            files.copied().try_for_each(|name| copy(&from.join(name), &to.join(name)))?;
        }
        let Some(template) = &self.chat_template else { return Ok(()) };
        // Readers prefer this file to a template within `tokenizer_config.json`.
        let file = to.join(TEMPLATES[0]);
        std::fs::write(&file, template).map_err(|error| Error::io(file, error))
    }
}

impl AdapterDir {
    /// Reads the configuration of the adapter in `path`.
    ///
    /// # Errors
    /// When there is none, or it uses unsupported features.
    pub fn open(path: &Path) -> Result<Self> {
        let file = path.join(CONFIG_FILE);
        if !file.is_file() {
            return Err(Error::model(path, format!("no `{}`: this is not an adapter", CONFIG_FILE))
                .with_hint("an adapter holds `adapter_config.json` and `adapter_model.safetensors`"));
        }
        let left = read_object(&path.join(TRAINING_INFO_FILE))?.unwrap_or_default();
        let head = left.get(HEAD).and_then(Value::as_object).cloned();
        Ok(Self {
            path: path.into(),
            config: PeftConfig::read(&file)?,
            training_info: TrainingInfo::from_json(&left),
            head,
        })
    }
}

/// Whether `path` holds an adapter but no whole model.
fn is_adapter(path: &Path) -> bool {
    let holds = |name: &str| path.join(name).is_file();
    let has_weights = WEIGHT_FILES.iter().any(|(single, index)| holds(single) || holds(index));
    holds(CONFIG_FILE) && !has_weights
}

/// Copies a file or a folder; missing ones are skipped.
fn copy(from: &Path, to: &Path) -> Result<()> {
    if from.is_dir() {
        std::fs::create_dir_all(to).map_err(|error| Error::io(to, error))?;
        for entry in std::fs::read_dir(from).map_err(|error| Error::io(from, error))? {
            let entry = entry.map_err(|error| Error::io(from, error))?;
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
    } else if from.exists() {
        // The copy gets the default permissions of a new file, not those of the original.
        let copied =
            std::fs::File::open(from).and_then(|mut file| std::io::copy(&mut file, &mut std::fs::File::create(to)?));
        copied.map_err(|error| Error::io(to, error))?;
    }
    Ok(())
}

/// Reads the JSON object in `path`; `None` if there is no such file.
fn read_object(path: &Path) -> Result<Option<Map<String, Value>>> {
    let text = match files::read_text(path, files::SETTINGS_BYTES) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io(path, error)),
    };
    match serde_json::from_str(&text) {
        Ok(Value::Object(object)) => Ok(Some(object)),
        Ok(other) => Err(Error::model(path, format!("expected a JSON object, found {}", kind(&other)))),
        Err(error) => Err(Error::data(path, Some(error.line()), format!("not valid JSON: {error}"))),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// Opens the model directory given by a hub name or path.
///
/// # Errors
/// When there is none, or it is not a model directory.
pub fn open_model(name: &str) -> Result<ModelDir> {
    ModelDir::open(&resolve(name, &mut |_, _, _| {})?)
}
