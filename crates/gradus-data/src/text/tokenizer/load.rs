//! Loads the tokenizer of a model directory.
//!
//! `tokenizer.json` defines how text becomes ids. `tokenizer_config.json`, `special_tokens_map.json` and `added_tokens.json` add tokens
//! and name those that begin, end and pad a text; the class of the tokenizer supplies defaults. If `tokenizer.json` is missing,
//! older files are read.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{ModelWrapper, PostProcessorWrapper, PreTokenizerWrapper};

use super::old_files::{load_old_files, set_template, surround, tokens_around};
use super::read::{from_json, read_json};
use super::special_tokens::{Special, add_tokens, missing_special_tokens};
use super::{Spelling, Tokenizer};
use crate::text::convention::Convention;
use crate::text::tokenizer_bounds;
use crate::{Error, Result, files};

/// Name of the file that holds a whole tokenizer.
const WHOLE: &str = "tokenizer.json";

impl Tokenizer {
    /// Returns whether `directory` holds a tokenizer of any format.
    pub fn is_in(directory: &Path) -> bool {
        let has_file = files::TOKENIZERS.iter().any(|file| directory.join(file).is_file());
        // ByT5's tokenizer has no vocabulary; its settings name it.
        let settings = || read_json(&directory.join("tokenizer_config.json")).ok().flatten();
        has_file || settings().is_some_and(|config| Convention::of(&config, &Value::Null) == Some(Convention::ByT5))
    }

    /// Loads the tokenizer of a model directory.
    ///
    /// # Errors
    /// If a file is missing or corrupt. The message names it.
    pub fn from_dir(directory: &Path) -> Result<Self> {
        Self::of_model(directory, directory)
    }

    /// Loads the tokenizer in `directory` for the model in `model`. If no file next to the tokenizer names its class, the model's
    /// `config.json` decides.
    ///
    /// # Errors
    /// If a file is missing or corrupt. The message names it.
    pub fn of_model(directory: &Path, model: &Path) -> Result<Self> {
        let config = read_json(&directory.join("tokenizer_config.json"))?.unwrap_or(Value::Null);
        let special_map = read_json(&directory.join("special_tokens_map.json"))?.unwrap_or(Value::Null);
        // Errors in this file are reported when the model is loaded.
        let model_config = [directory, model].map(|of| read_json(&of.join("config.json")).ok().flatten());
        let model_config = model_config.into_iter().flatten().next().unwrap_or(Value::Null);
        let convention = Convention::of(&config, &model_config);
        let is_old = !directory.join(WHOLE).is_file();
        // Number of ids that the model knows.
        let rows = model_config.get("vocab_size").or_else(|| model_config.get("text_config")?.get("vocab_size"));
        let rows = rows.and_then(Value::as_u64);
        let mut inner = load_model(directory, convention, &config)?;
        remove_dropout(&mut inner, directory);
        add_tokens(&mut inner, directory, &config, rows.filter(|_| !is_old), is_old)?;
        // The caller decides on padding and truncation; a `tokenizer.json` that was saved by a trainer often sets both.
        inner.with_padding(None);
        inner.with_truncation(None).expect("no truncation is always valid");

        let known = |token: &str| inner.token_to_id(token).is_some();
        let special = Special::read(&config, &special_map, &|name| {
            convention.and_then(|of| of.token(name)).filter(|token| known(token))
        });
        let added = missing_special_tokens(&inner, &special, rows);
        inner.add_special_tokens(added).map_err(|e| Error::model(directory, e.to_string()))?;
        if let Some(convention) = convention {
            set_prefix_space(&mut inner, convention, &config);
        }
        if let Some(convention) = convention.filter(|of| is_old && !of.is_sentencepiece()) {
            surround(&mut inner, convention, &config, &special).map_err(|e| Error::model(directory, e))?;
        }
        if let Some(convention) = convention.filter(|of| !is_old && of.surrounds())
            && inner.get_post_processor().is_none()
        {
            let space = matches!(inner.get_pre_tokenizer(), Some(PreTokenizerWrapper::ByteLevel(bytes)) if bytes.add_prefix_space);
            // A vocabulary without these tokens stays without them.
            if let Ok(around) = tokens_around(&inner, convention, &special, space) {
                inner.with_post_processor(Some(around));
            }
        }
        if !is_old && convention == Some(Convention::GptNeox) {
            // In transformers 5.23, the class replaces what the file puts around a text, and adds nothing.
            inner.with_post_processor(Some(ByteLevel::default()));
        }
        if is_old && convention.is_none_or(Convention::has_choice_of_ends) {
            let adds_bos = convention.is_some_and(Convention::adds_bos);
            set_template(&mut inner, &config, &special, adds_bos).map_err(|e| Error::model(directory, e))?;
        }
        inner.set_encode_special_tokens(config.get("split_special_tokens").and_then(Value::as_bool).unwrap_or(false));

        let special_ids: HashSet<u32> =
            inner.get_added_tokens_decoder().into_iter().filter(|(_, token)| token.special).map(|(id, _)| id).collect();
        let vocab_size = vocabulary_size(&inner).map_err(|e| Error::model(directory, e))?;
        let added_ids = inner.get_added_tokens_decoder().into_iter().map(|(id, _)| id).collect();
        let spelling = Spelling::of(&inner);
        let of_words = spaces_words(&inner, convention).then(Arc::default);
        let inner = Arc::new(inner);
        let directory = directory.to_path_buf();
        // A missing limit is written as 1e30.
        let longest = config.get("model_max_length").and_then(Value::as_u64).and_then(|ids| usize::try_from(ids).ok());
        let mut tokenizer = Self {
            inner,
            of_words,
            special,
            special_ids,
            added_ids,
            spelling,
            vocab_size,
            longest,
            appends_eos: false,
            has_types: has_types(&config, convention),
            directory,
        };
        // A text must end with eos with special tokens, and must not without them: the letter alone may be unknown, and the unknown
        // token may be eos.
        let last = |add_special| Ok::<_, Error>(tokenizer.encode("a", add_special)?.last().copied());
        let eos = tokenizer.eos_id();
        tokenizer.appends_eos = eos.is_some() && last(true)? == eos && last(false)? != eos;
        Ok(tokenizer)
    }
}

fn load_model(directory: &Path, convention: Option<Convention>, config: &Value) -> Result<tokenizers::Tokenizer> {
    let path = directory.join(WHOLE);
    match files::read(&path, files::TOKENIZER_BYTES) {
        Ok(bytes) => from_json(&path, &bytes)
            .map_err(|e| e.with_hint("the file may be cut off; copy it again from the original model directory")),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => load_old_files(directory, convention, config),
        Err(e) => Err(Error::io(path, e)),
    }
}

/// Removes the dropout of a BPE model, with one warning for each directory. The library draws it in every call from a generator without a
/// seed, also outside of training, so the same text would have other tokens each time.
fn remove_dropout(inner: &mut tokenizers::Tokenizer, directory: &Path) {
    static WARNED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    let ModelWrapper::BPE(bpe) = inner.get_model() else { return };
    let Some(dropout) = bpe.dropout.filter(|&dropout| dropout > 0.0) else { return };
    let mut whole = bpe.clone();
    whole.dropout = None;
    inner.with_model(whole);
    if WARNED.lock().unwrap_or_else(PoisonError::into_inner).insert(directory.to_path_buf()) {
        let path = directory.join(WHOLE);
        let path = path.display();
        tracing::warn!(
            "{path}: the tokenizer leaves out merges at random (`dropout` {dropout}). gradus uses all merges, so that a text \
             always has the same tokens"
        );
    }
}

/// Applies `add_prefix_space` of the configuration to a byte-level tokenizer. As in transformers, its class decides about the space and
/// not `tokenizer.json`. Qwen 2's tokenizer is no such case: its pre-tokenizer has several steps.
fn set_prefix_space(inner: &mut tokenizers::Tokenizer, convention: Convention, config: &Value) {
    // Blenderbot's default differs between versions of transformers, so its file decides.
    let default = (convention.is_byte_level() && convention != Convention::Blenderbot).then_some(false);
    let stated = config.get("add_prefix_space").and_then(Value::as_bool).filter(|_| convention.is_byte_level());
    let Some(adds) = stated.or(default) else { return };
    let Some(PreTokenizerWrapper::ByteLevel(bytes)) = inner.get_pre_tokenizer() else { return };
    let bytes = bytes.add_prefix_space(adds);
    inner.with_pre_tokenizer(Some(bytes));
    if let Some(PostProcessorWrapper::Roberta(around)) = inner.get_post_processor() {
        let around = around.clone().add_prefix_space(adds);
        inner.with_post_processor(Some(around));
    }
}

/// Returns whether words get a space in front although `tokenizer.json` does not add one: for byte-level tokenizers such as GPT-2's
/// and RoBERTa's, whose documentation requires it.
fn spaces_words(inner: &tokenizers::Tokenizer, convention: Option<Convention>) -> bool {
    let is_plain =
        matches!(inner.get_pre_tokenizer(), Some(PreTokenizerWrapper::ByteLevel(bytes)) if !bytes.add_prefix_space);
    is_plain && convention.is_some_and(Convention::is_byte_level)
}

/// Returns whether texts get token types: as `model_input_names` says, or else as the class does.
fn has_types(config: &Value, convention: Option<Convention>) -> bool {
    match config.get("model_input_names").and_then(Value::as_array) {
        Some(names) => names.iter().any(|name| name == "token_type_ids"),
        None => convention.is_none_or(Convention::has_types),
    }
}

/// Returns one more than the largest id. Vocabularies with gaps also index an embedding of that size.
///
/// # Errors
/// If a piece or an id exceeds its limit.
fn vocabulary_size(inner: &tokenizers::Tokenizer) -> Result<usize, String> {
    let (mut size, mut longest) = (inner.get_vocab_size(true), 0);
    for (piece, id) in inner.get_vocab(true) {
        size = size.max(id as usize + 1);
        longest = longest.max(piece.len());
    }
    if longest > tokenizer_bounds::PIECE_BYTES {
        let most = tokenizer_bounds::PIECE_BYTES;
        return Err(format!("a piece of the vocabulary has {longest} bytes, but at most {most} are allowed"));
    }
    if size > tokenizer_bounds::IDS {
        return Err(format!(
            "the largest token id is {}, but at most {} is allowed",
            size - 1,
            tokenizer_bounds::IDS - 1
        ));
    }
    Ok(size)
}
