//! The tokenizer of a Hugging Face model directory.
//!
//! `tokenizer.json` defines how text becomes ids. `tokenizer_config.json`, `special_tokens_map.json` and `added_tokens.json` add tokens
//! and name those that begin, end and pad a text; the class of the tokenizer supplies defaults. If `tokenizer.json` is missing,
//! older files are read: `vocab.json` + `merges.txt` (GPT-2, RoBERTa, BART, Blenderbot, Qwen), `vocab.txt` (BERT, DistilBERT), and
//! those of SentencePiece (T5, ALBERT, DeBERTa, XLM-RoBERTa, Llama, Gemma).

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, OnceLock};

use serde_json::{Map, Value, json};
use tokenizers::utils::truncation::{TruncationDirection, TruncationParams, truncate_encodings};
use tokenizers::{
    AddedToken, Encoding, PostProcessor, PostProcessorWrapper, PreTokenizerWrapper, SplitDelimiterBehavior,
    decoders::byte_level::ByteLevel, decoders::wordpiece::WordPiece as WordPieceDecoder, models::bpe::BPE,
    models::wordpiece::WordPiece, normalizers::bert::BertNormalizer, normalizers::unicode::NFC,
    pre_tokenizers::bert::BertPreTokenizer, pre_tokenizers::sequence::Sequence as PreTokenizerSequence,
    pre_tokenizers::split::Split, pre_tokenizers::split::SplitPattern, processors::roberta::RobertaProcessing,
    processors::template::TemplateProcessing,
};

use super::convention::Convention;
use super::{byt5, sentencepiece, tokenizer_bounds};
use crate::{Error, Result, border, files};

/// Converts text to ids and back, with the special tokens of one model directory. Copies share the vocabulary.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: Arc<tokenizers::Tokenizer>,
    /// The same tokenizer with a space in front of every word, created at the first use for words. `None` if words need no such
    /// space.
    of_words: Option<Arc<OnceLock<tokenizers::Tokenizer>>>,
    special: Special,
    special_ids: HashSet<u32>,
    /// Tokens that were added to the vocabulary; they are spelled as text.
    added_ids: HashSet<u32>,
    spelling: Spelling,
    vocab_size: usize,
    longest: Option<usize>,
    appends_eos: bool,
    directory: PathBuf,
}

/// How a vocabulary spells bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spelling {
    /// Every token is text.
    Text,
    /// A character stands for each byte, as in GPT-2.
    ByteLevel,
    /// `<0x0A>` is a byte, other tokens are text, as in Llama 2.
    ByteFallback,
}

impl Spelling {
    fn of(inner: &tokenizers::Tokenizer) -> Self {
        let decoder = inner.get_decoder().and_then(|decoder| serde_json::to_value(decoder).ok()).unwrap_or_default();
        let one = std::slice::from_ref(&decoder);
        let steps = decoder.get("decoders").and_then(Value::as_array).map_or(one, Vec::as_slice);
        let has = |name: &str| steps.iter().any(|step| step.get("type").and_then(Value::as_str) == Some(name));
        match (has("ByteLevel"), has("ByteFallback")) {
            (true, _) => Self::ByteLevel,
            (false, true) => Self::ByteFallback,
            (false, false) => Self::Text,
        }
    }
}

/// Byte of each character of a byte-level vocabulary.
static BYTES: LazyLock<BTreeMap<char, u8>> =
    LazyLock::new(|| byt5::characters().into_iter().zip(0..=u8::MAX).collect());

#[derive(Debug, Clone, Default)]
struct Special {
    bos: Option<String>,
    eos: Option<String>,
    pad: Option<String>,
    unk: Option<String>,
    /// All named special tokens, as chat templates see them (`bos_token`, …).
    named: Vec<(String, String)>,
    /// The named special tokens and further ones, with the flags that the files state.
    tokens: Vec<AddedToken>,
}

/// A tokenized text with the position of each token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Byte range in the text of each id.
    pub offsets: Vec<(usize, usize)>,
}

/// Token ids of one text, or of two that are read together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joined {
    /// Token ids, including special ones.
    pub ids: Vec<u32>,
    /// Text that each id belongs to, 0 or 1.
    pub types: Vec<u32>,
}

/// Cut of a long text. The limit counts tokens, including special ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Cuts the beginning.
    Left(usize),
    /// Cuts the end.
    Right(usize),
}

/// Upper estimate of the bytes per token.
const BYTES_A_TOKEN: usize = 16;

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
            directory,
        };
        // A text must end with eos with special tokens, and must not without them: the letter alone may be unknown, and the unknown
        // token may be eos.
        let last = |add_special| Ok::<_, Error>(tokenizer.encode("a", add_special)?.last().copied());
        let eos = tokenizer.eos_id();
        tokenizer.appends_eos = eos.is_some() && last(true)? == eos && last(false)? != eos;
        Ok(tokenizer)
    }

    /// Returns the ids of `text`. With `add_special`, they include the special tokens that the tokenizer adds (Llama's bos, …).
    ///
    /// # Errors
    /// If the tokenizer's library fails at the text, or if a limit is exceeded.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        let encoding = self.catch(|inner| inner.encode_fast(text, add_special))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Returns the ids of `text` like [`encode`](Self::encode), or `None` if the text clearly has more than `most`.
    ///
    /// Only the beginning of a long text is tokenized first, because tokenizing takes a hundred times the memory of the text.
    ///
    /// # Errors
    /// As for [`encode`](Self::encode).
    pub fn encode_within(&self, text: &str, add_special: bool, most: usize) -> Result<Option<Vec<u32>>> {
        let enough = most.saturating_mul(BYTES_A_TOKEN).max(1 << 16);
        if text.len() > enough {
            let beginning = self.encode(&text[..text.floor_char_boundary(enough)], false)?.len();
            // The cut may change tokens near it, and therefore slightly their number.
            if beginning > most.saturating_mul(2) {
                return Ok(None);
            }
        }
        self.encode(text, add_special).map(Some)
    }

    /// Tokenizes one text, or two that are read together, with the special tokens around them. `cut` shortens them, the longer of
    /// two texts first.
    ///
    /// # Errors
    /// If a text cannot be encoded, or the limit leaves no room besides special tokens.
    pub fn encode_joined(&self, first: &str, second: Option<&str>, cut: Option<Cut>) -> Result<Joined> {
        let encode = |text: &str| self.catch(|inner| inner.encode_fast(text, false));
        let (first, second) = self.cut(encode(first)?, second.map(encode).transpose()?, cut)?;
        let joined = self.catch(|inner| inner.post_process(first, second, true))?;
        Ok(Joined { ids: joined.get_ids().to_vec(), types: joined.get_type_ids().to_vec() })
    }

    /// Tokenizes a text given as words, with the special tokens around it. Also returns the position of the first token of each
    /// word, or `None` if the word has no token or was cut off. For byte-level tokenizers such as RoBERTa's, a space is added in
    /// front of every word, whatever their files state. Without it, which is `transformers`' default, the words would run together.
    ///
    /// # Errors
    /// As for [`encode_joined`](Self::encode_joined).
    pub fn encode_words(&self, words: &[String], cut: Option<Cut>) -> Result<(Joined, Vec<Option<usize>>)> {
        // `encode_fast` does not record words.
        let encoding = self.catch(|inner| self.for_words(inner).encode(words, false))?;
        let (encoding, _) = self.cut(encoding, None, cut)?;
        let joined = self.catch(|inner| inner.post_process(encoding, None, true))?;
        let mut firsts = vec![None; words.len()];
        for (token, word) in joined.get_word_ids().iter().enumerate() {
            if let Some(first) = word.and_then(|word| firsts.get_mut(word as usize)) {
                first.get_or_insert(token);
            }
        }
        Ok((Joined { ids: joined.get_ids().to_vec(), types: joined.get_type_ids().to_vec() }, firsts))
    }

    /// Returns the tokenizer for words.
    fn for_words<'t>(&'t self, inner: &'t tokenizers::Tokenizer) -> &'t tokenizers::Tokenizer {
        let Some(spaced) = &self.of_words else { return inner };
        spaced.get_or_init(|| {
            let mut spaced = inner.clone();
            if let Some(PreTokenizerWrapper::ByteLevel(bytes)) = inner.get_pre_tokenizer() {
                spaced.with_pre_tokenizer(Some(bytes.add_prefix_space(true)));
            }
            spaced
        })
    }

    /// Applies `cut` to encodings that have no special tokens yet.
    fn cut(&self, first: Encoding, second: Option<Encoding>, cut: Option<Cut>) -> Result<(Encoding, Option<Encoding>)> {
        let (limit, direction) = match cut {
            None => return Ok((first, second)),
            Some(Cut::Left(limit)) => (limit, TruncationDirection::Left),
            Some(Cut::Right(limit)) => (limit, TruncationDirection::Right),
        };
        let added = self.inner.get_post_processor().map_or(0, |with| with.added_tokens(second.is_some()));
        let Some(max_length) = limit.checked_sub(added).filter(|&room| room > 0) else {
            let message = format!("{limit} tokens leave no room next to {added} special ones");
            return Err(Error::model(&self.directory, message));
        };
        let params = TruncationParams { max_length, direction, ..TruncationParams::default() };
        self.catch(|_| truncate_encodings(first, second, &params))
    }

    /// Returns the ids of `text` and their byte ranges, without special tokens around the text.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_with_offsets(&self, text: &str) -> Result<Encoded> {
        let encoding = self.catch(|inner| inner.encode(text, false))?;
        Ok(Encoded { ids: encoding.get_ids().to_vec(), offsets: encoding.get_offsets().to_vec() })
    }

    /// Decodes `ids` to text. `skip_special` leaves out special tokens.
    ///
    /// # Errors
    /// If the tokenizer's library fails at the ids.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        self.catch(|inner| inner.decode(ids, skip_special))
    }

    /// Returns the maximum length in ids that the files allow (`model_max_length`). Other tools cut the input of classifiers to it.
    pub fn longest(&self) -> Option<usize> {
        self.longest
    }

    /// Returns the vocabulary size with added tokens: one more than the largest id.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Returns the id of a token, given by its exact text.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Returns a token as the vocabulary spells it (`Ġthe`, `▁the`).
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// Returns the bytes of a token that may be part of a character: of every token of a byte-level vocabulary, and of `<0x0A>` and the
    /// like of others. `None` for tokens that are spelled as text.
    pub fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        if self.spelling == Spelling::Text || self.added_ids.contains(&id) {
            return None;
        }
        let token = self.token(id)?;
        match self.spelling {
            Spelling::Text => None,
            Spelling::ByteLevel => token.chars().map(|character| BYTES.get(&character).copied()).collect(),
            Spelling::ByteFallback => {
                let digits = token.strip_prefix("<0x")?.strip_suffix('>').filter(|digits| digits.len() == 2)?;
                Some(vec![u8::from_str_radix(digits, 16).ok()?])
            }
        }
    }

    /// Returns whether `id` is a special token, which is skipped when decoding for people.
    pub fn is_special(&self, id: u32) -> bool {
        self.special_ids.contains(&id)
    }

    /// Returns the ids of all special tokens in ascending order.
    pub fn special_ids(&self) -> Vec<u32> {
        let mut ids: Vec<u32> = self.special_ids.iter().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// Returns the end-of-text token.
    pub fn eos_token(&self) -> Option<&str> {
        self.special.eos.as_deref()
    }

    /// Returns the beginning-of-text token.
    pub fn bos_token(&self) -> Option<&str> {
        self.special.bos.as_deref()
    }

    /// Returns the padding token, or the eos token if there is none.
    pub fn pad_token(&self) -> Option<&str> {
        self.special.pad.as_deref().or(self.eos_token())
    }

    /// Returns the token for unknown text.
    pub fn unk_token(&self) -> Option<&str> {
        self.special.unk.as_deref()
    }

    /// Returns the id of [`Self::eos_token`].
    pub fn eos_id(&self) -> Option<u32> {
        self.eos_token().and_then(|t| self.token_id(t))
    }

    /// Returns the id of [`Self::bos_token`].
    pub fn bos_id(&self) -> Option<u32> {
        self.bos_token().and_then(|t| self.token_id(t))
    }

    /// Returns the id of [`Self::pad_token`].
    pub fn pad_id(&self) -> Option<u32> {
        self.pad_token().and_then(|t| self.token_id(t))
    }

    /// Returns whether the tokenizer itself ends every text with eos (T5, BERT families). Then eos is not appended as text.
    pub fn appends_eos(&self) -> bool {
        self.appends_eos
    }

    /// Returns the special tokens by their names in chat templates (`bos_token`, `eos_token`, …).
    pub fn named_special_tokens(&self) -> &[(String, String)] {
        &self.special.named
    }

    /// Serializes the tokenizer as in `tokenizer.json`.
    ///
    /// # Errors
    /// If it cannot be serialized.
    pub fn to_json(&self) -> Result<Value> {
        let text = self.catch(|inner| inner.to_string(false))?;
        serde_json::from_str(&text).map_err(|error| Error::model(&self.directory, error.to_string()))
    }

    /// Returns the directory from which the tokenizer was loaded.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Calls the library and converts its errors and panics. A file that was loaded may still be unusable.
    fn catch<T>(&self, call: impl FnOnce(&tokenizers::Tokenizer) -> tokenizers::Result<T>) -> Result<T> {
        let failed = |error: String| Error::model(&self.directory, format!("the tokenizer failed: {error}"));
        border::catch_panic(|| call(&self.inner)).map_err(failed)?.map_err(|error| failed(error.to_string()))
    }
}

impl Special {
    /// Reads the special tokens from the files. `usual` supplies those that neither file mentions.
    fn read(config: &Value, map: &Value, usual: &dyn Fn(&str) -> Option<&'static str>) -> Self {
        const NAMES: [&str; 7] =
            ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
        // As in transformers, the older file wins unless the newer one lists all added tokens.
        let lists = config.get("added_tokens_decoder").is_some_and(Value::is_object);
        let files = if lists { [config, map] } else { [map, config] };
        let find = |name: &str| {
            let is_open = config.get(name).is_none() && map.get(name).is_none();
            let configured = files.into_iter().find_map(|of| added_token(of.get(name)?, true));
            configured.or_else(|| usual(name).filter(|_| is_open).map(|token| AddedToken::from(token, true)))
        };
        let found: Vec<(String, AddedToken)> =
            NAMES.iter().filter_map(|&name| Some((name.to_owned(), find(name)?))).collect();
        let text = |name: &str| find(name).map(|token| token.content);
        let [bos, eos, pad, unk] = ["bos_token", "eos_token", "pad_token", "unk_token"].map(text);
        let named = found.iter().map(|(name, token)| (name.clone(), token.content.clone())).collect();
        let extra = files.map(extra_tokens).into_iter().find(|tokens| !tokens.is_empty()).unwrap_or_default();
        let tokens = found.into_iter().map(|(_, token)| token).chain(extra).collect();
        Self { bos, eos, pad, unk, named, tokens }
    }
}

/// Returns the special tokens without a name in `of`: those in `extra_special_tokens`, which older files call
/// `additional_special_tokens`.
fn extra_tokens(of: &Value) -> Vec<AddedToken> {
    let listed = |name: &str| -> Vec<AddedToken> {
        match of.get(name) {
            Some(Value::Array(tokens)) => tokens.iter().filter_map(|token| added_token(token, true)).collect(),
            Some(Value::Object(tokens)) => tokens.values().filter_map(|token| added_token(token, true)).collect(),
            _ => Vec::new(),
        }
    };
    let extra = listed("extra_special_tokens");
    if extra.is_empty() { listed("additional_special_tokens") } else { extra }
}

/// Returns the token that `value` describes: a string, or an object with `content` and flags.
fn added_token(value: &Value, special: bool) -> Option<AddedToken> {
    let content = token_text(Some(value)).filter(|content| !content.is_empty())?;
    let flag = |name: &str, default: bool| value.get(name).and_then(Value::as_bool).unwrap_or(default);
    let token = AddedToken::from(content, special)
        .lstrip(flag("lstrip", false))
        .rstrip(flag("rstrip", false))
        .single_word(flag("single_word", false))
        .normalized(flag("normalized", !special));
    Some(token)
}

/// Returns the special tokens that the vocabulary lacks or does not mark as special. A token with an entry in the list of added tokens
/// keeps the flags of that entry.
///
/// As in transformers, an unknown token gets the next free id. It is left out if the model, which knows `rows` ids, has no row for it.
fn missing_special_tokens(inner: &tokenizers::Tokenizer, special: &Special, rows: Option<u64>) -> Vec<AddedToken> {
    let added = inner.get_added_tokens_decoder();
    let mut next = inner.get_vocab_size(false) as u64;
    for id in added.keys() {
        next = next.max(u64::from(*id) + 1);
    }
    let (mut missing, mut seen) = (Vec::new(), HashSet::new());
    for token in &special.tokens {
        if !seen.insert(token.content.as_str()) {
            continue;
        }
        let Some(id) = inner.token_to_id(&token.content) else {
            if rows.is_none_or(|rows| next < rows) {
                missing.push(token.clone());
                next += 1;
            }
            continue;
        };
        match added.get(&id) {
            Some(known) if known.special => {}
            Some(known) => missing.push(known.clone().special(true)),
            None => missing.push(token.clone()),
        }
    }
    missing
}

/// Returns the text of a special token, which is a string or an object with `content`.
fn token_text(value: Option<&Value>) -> Option<String> {
    match value? {
        Value::String(text) => Some(text.clone()),
        Value::Object(token) => token.get("content")?.as_str().map(str::to_owned),
        _ => None,
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

/// Returns whether words get a space in front although `tokenizer.json` does not add one: for byte-level tokenizers such as GPT-2's
/// and RoBERTa's, whose documentation requires it.
fn spaces_words(inner: &tokenizers::Tokenizer, convention: Option<Convention>) -> bool {
    let is_plain =
        matches!(inner.get_pre_tokenizer(), Some(PreTokenizerWrapper::ByteLevel(bytes)) if !bytes.add_prefix_space);
    is_plain && convention.is_some_and(Convention::is_byte_level)
}

/// Name of the file that holds a whole tokenizer.
const WHOLE: &str = "tokenizer.json";

fn load_model(directory: &Path, convention: Option<Convention>, config: &Value) -> Result<tokenizers::Tokenizer> {
    let path = directory.join(WHOLE);
    match files::read(&path, files::TOKENIZER_BYTES) {
        Ok(bytes) => from_json(&path, &bytes)
            .map_err(|e| e.with_hint("the file may be cut off; copy it again from the original model directory")),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => load_old_files(directory, convention, config),
        Err(e) => Err(Error::io(path, e)),
    }
}

/// Parses `bytes` of a `tokenizer.json`. `path` is their origin.
fn from_json(path: &Path, bytes: &[u8]) -> Result<tokenizers::Tokenizer> {
    tokenizer_bounds::check(bytes).map_err(|what| Error::model(path, what))?;
    border::catch_panic(|| tokenizers::Tokenizer::from_bytes(bytes).map_err(|error| error.to_string()))
        .flatten()
        .map_err(|error| Error::model(path, format!("not a tokenizer: {error}")))
}

/// Adds the tokens that are stored next to the vocabulary: in `tokenizer_config.json` as `added_tokens_decoder` (id to token), or
/// else in `added_tokens.json` (token to id).
///
/// A token that `tokenizer.json` already has keeps its id there. Without that file (`is_old`), and for all other tokens, the id must be
/// the next free one. A token at or beyond `rows` is left out.
fn add_tokens(
    inner: &mut tokenizers::Tokenizer,
    directory: &Path,
    config: &Value,
    rows: Option<u64>,
    is_old: bool,
) -> Result<()> {
    let mut tokens: BTreeMap<u64, AddedToken> = BTreeMap::new();
    let listed = config.get("added_tokens_decoder").and_then(Value::as_object);
    if let Some(listed) = listed {
        for (id, token) in listed {
            let special = token.get("special").and_then(Value::as_bool).unwrap_or(false);
            let (Ok(id), Some(token)) = (id.parse(), added_token(token, special)) else {
                let path = directory.join("tokenizer_config.json");
                return Err(Error::model(
                    path,
                    format!("`added_tokens_decoder` has `{id}: {token}`, which is not a token with an id"),
                ));
            };
            tokens.insert(id, token);
        }
    } else {
        let path = directory.join("added_tokens.json");
        let added = read_json(&path)?;
        for (token, id) in added.as_ref().and_then(Value::as_object).into_iter().flatten() {
            let id =
                id.as_u64().ok_or_else(|| Error::model(&path, format!("the id of `{token}` is {id}, not a number")))?;
            // The file has no flags. A token that is special is also named elsewhere, and becomes special there.
            tokens.insert(id, AddedToken::from(token.as_str(), false).normalized(false));
        }
    }
    let (mut kept, mut stated) = (Vec::new(), Vec::new());
    for (id, token) in tokens {
        if token.content.len() > tokenizer_bounds::PIECE_BYTES {
            let most = tokenizer_bounds::PIECE_BYTES;
            return Err(Error::model(directory, format!("the added token {id} has more than {most} bytes")));
        }
        let is_known = inner.token_to_id(&token.content).is_some();
        if !is_known && rows.is_some_and(|rows| id >= rows) {
            continue;
        }
        if is_old || !is_known {
            stated.push((id, token.content.clone()));
        }
        if listed.is_some() || !inner.get_added_vocabulary().get_vocab().contains_key(&token.content) {
            kept.push(token);
        }
    }
    if !kept.is_empty() {
        inner.add_tokens(kept).map_err(|error| Error::model(directory, error.to_string()))?;
    }
    for (id, content) in stated {
        let found = inner.token_to_id(&content).map(u64::from);
        if found != Some(id) {
            let found = found.map_or("none".to_owned(), |found| found.to_string());
            let message =
                format!("the id of the added token `{content}` is {id} in its file, but {found} in the vocabulary");
            return Err(Error::model(directory, message).with_hint("the files belong to different tokenizers"));
        }
    }
    Ok(())
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

/// Pattern with which Qwen 2's class splits texts before it merges bytes.
const QWEN_WORDS: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Hint on how to get a tokenizer for a model.
const SAVE: &str = "pass one from another directory with `--tokenizer`, or save it next to the weights: \
                    `AutoTokenizer.from_pretrained(…).save_pretrained(…)`";

/// Loads the files used without `tokenizer.json`: GPT-2's two files, BERT's file, or that of SentencePiece.
fn load_old_files(directory: &Path, convention: Option<Convention>, config: &Value) -> Result<tokenizers::Tokenizer> {
    let (vocab, merges) = (directory.join("vocab.json"), directory.join("merges.txt"));
    if !directory.is_dir() {
        return Err(Error::model(directory, "no such model directory"));
    }
    if convention == Some(Convention::ByT5) {
        return from_json(&directory.join("tokenizer_config.json"), byt5::json(config).to_string().as_bytes());
    }
    let pieces = directory.join("vocab.txt");
    if convention == Some(Convention::Bert) && pieces.is_file() {
        return load_word_pieces(&pieces, config);
    }
    if let Some(path) = sentencepiece::FILES.iter().map(|name| directory.join(name)).find(|path| path.is_file()) {
        let json = sentencepiece::read(&path, convention, config)?;
        return from_json(&path, json.to_string().as_bytes());
    }
    if !vocab.is_file() || !merges.is_file() {
        let message = "no tokenizer: it has none of `tokenizer.json`, `vocab.json` with `merges.txt`, `vocab.txt` (BERT) and \
                       SentencePiece's `spiece.model`, `tokenizer.model`, `sentencepiece.bpe.model` or `spm.model`";
        return Err(Error::model(directory, message).with_hint(SAVE));
    }
    let class = config.get("tokenizer_class").and_then(Value::as_str);
    if convention.map_or(class.is_some(), |of| !of.is_byte_level()) {
        let message = "no `tokenizer.json`, and `vocab.json` with `merges.txt` are read only for byte-level tokenizers";
        return Err(Error::model(directory, message).with_hint(SAVE));
    }
    let bpe = BPE::from_file(&vocab.to_string_lossy(), &merges.to_string_lossy());
    let bpe = border::catch_panic(|| bpe.build().map_err(|error| error.to_string()))
        .flatten()
        .map_err(|e| Error::model(directory, format!("`vocab.json` and `merges.txt` are not a tokenizer: {e}")))?;
    let mut inner = tokenizers::Tokenizer::new(bpe);
    let bytes = ByteLevel::default().add_prefix_space(false);
    inner.with_decoder(Some(ByteLevel::default()));
    if convention == Some(Convention::Qwen2) {
        let words = Split::new(SplitPattern::Regex(QWEN_WORDS.to_owned()), SplitDelimiterBehavior::Isolated, false)
            .map_err(|error| Error::model(directory, error.to_string()))?;
        inner.with_normalizer(Some(NFC)).map_err(|error| Error::model(directory, error.to_string()))?;
        inner.with_pre_tokenizer(Some(PreTokenizerSequence::new(vec![words.into(), bytes.use_regex(false).into()])));
        inner.with_post_processor(Some(bytes.use_regex(false).trim_offsets(false)));
        return Ok(inner);
    }
    inner.with_pre_tokenizer(Some(bytes));
    inner.with_post_processor(Some(ByteLevel::default()));
    // Classes name their special tokens. RoBERTa's vocabulary lists this one, too, but it is not special there.
    if convention.is_none() && inner.token_to_id("<|endoftext|>").is_some() {
        let end = AddedToken::from("<|endoftext|>".to_owned(), true);
        inner.add_special_tokens([end]).map_err(|e| Error::model(directory, e.to_string()))?;
    }
    Ok(inner)
}

/// Loads BERT's file: one word piece per line; the line number is its id.
fn load_word_pieces(path: &Path, config: &Value) -> Result<tokenizers::Tokenizer> {
    let text = files::read_text(path, files::TOKENIZER_BYTES).map_err(|error| Error::io(path, error))?;
    // Lines are split as in Python: a carriage return also ends a line, and other white space may be a piece.
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let lines = text.strip_suffix('\n').unwrap_or(&text).split('\n').zip(0..);
    let vocab: Map<String, Value> = lines.map(|(piece, id): (_, u32)| (piece.to_owned(), id.into())).collect();
    let unknown = token_text(config.get("unk_token")).unwrap_or_else(|| "[UNK]".to_owned());
    if !vocab.contains_key(&unknown) {
        let message = format!("no piece is `{unknown}`, which stands for unknown text");
        return Err(Error::model(path, message).with_hint("each line is a piece, and the line number is its id"));
    }
    let model = json!({
        "type": "WordPiece", "unk_token": unknown, "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": vocab,
    });
    let model: WordPiece =
        serde_json::from_str(&model.to_string()).map_err(|error| Error::model(path, error.to_string()))?;
    let mut inner = tokenizers::Tokenizer::new(model);
    let flag = |name: &str| config.get(name).and_then(Value::as_bool);
    let lowercase = flag("do_lower_case").unwrap_or(true);
    let chinese = flag("tokenize_chinese_chars").unwrap_or(true);
    inner
        .with_normalizer(Some(BertNormalizer::new(true, chinese, flag("strip_accents"), lowercase)))
        .map_err(|error| Error::model(path, error.to_string()))?;
    inner.with_pre_tokenizer(Some(BertPreTokenizer));
    inner.with_decoder(Some(WordPieceDecoder::default()));
    Ok(inner)
}

/// Adds the special tokens that a class puts around texts, for files that cannot specify them.
fn surround(
    inner: &mut tokenizers::Tokenizer,
    convention: Convention,
    config: &Value,
    special: &Special,
) -> Result<(), String> {
    // ByT5 has no file; the generated replacement already specifies them.
    if matches!(convention, Convention::Gpt2 | Convention::Qwen2 | Convention::ByT5) {
        return Ok(());
    }
    let space = config.get("add_prefix_space").and_then(Value::as_bool).unwrap_or(convention.adds_space());
    if convention.is_byte_level() {
        inner.with_pre_tokenizer(Some(ByteLevel::default().add_prefix_space(space)));
    }
    let token = |name: &str| {
        let text = special.named.iter().find(|(known, _)| known == name).map(|(_, text)| text.clone());
        let found = text.and_then(|text| inner.token_to_id(&text).map(|id| (text, id)));
        let file = if convention == Convention::Bert { "vocab.txt" } else { "vocab.json" };
        found.ok_or_else(|| format!("`{file}` has no `{name}`, which is added to every text"))
    };
    if matches!(convention, Convention::Bert | Convention::DebertaV1) {
        let [separator, first] = [token("sep_token")?, token("cls_token")?];
        let template = TemplateProcessing::builder()
            .try_single(format!("{}:0 $A:0 {}:0", first.0, separator.0))
            .and_then(|of| of.try_pair(format!("{0}:0 $A:0 {1}:0 $B:1 {1}:1", first.0, separator.0)))?
            .special_tokens(vec![first, separator])
            .build()
            .map_err(|error| error.to_string())?;
        inner.with_post_processor(Some(template));
        return Ok(());
    }
    if convention == Convention::Blenderbot {
        let end = token("eos_token")?;
        let template = TemplateProcessing::builder()
            .try_single(format!("$A:0 {}:0", end.0))
            .and_then(|template| template.try_pair(format!("$A:0 {}:0 $B:0 {}:0", end.0, end.0)))?
            .special_tokens(vec![end])
            .build()
            .map_err(|error| error.to_string())?;
        inner.with_post_processor(Some(template));
    } else {
        let [separator, first] = [token("sep_token")?, token("cls_token")?];
        inner.with_post_processor(Some(RobertaProcessing::new(separator, first).add_prefix_space(space)));
    }
    Ok(())
}

/// Sets the post-processor of older files if the configuration states `add_bos_token` or `add_eos_token`. If only `add_eos_token` is
/// stated, `adds_bos` decides about bos.
///
/// transformers 5.23 ignores both keys next to a `tokenizer.json`. Its version 4 followed them for Llama's and Gemma's classes.
fn set_template(
    inner: &mut tokenizers::Tokenizer,
    config: &Value,
    special: &Special,
    adds_bos: bool,
) -> Result<(), String> {
    let flag = |name: &str| config.get(name).and_then(Value::as_bool);
    let (bos, eos) = (flag("add_bos_token"), flag("add_eos_token"));
    if bos.is_none() && eos.is_none() {
        return Ok(());
    }
    let id = |token: &Option<String>| {
        let token = token.as_ref()?;
        inner.token_to_id(token).map(|id| (token.clone(), id))
    };
    let before = bos.unwrap_or(adds_bos).then(|| id(&special.bos)).flatten();
    let after = eos.unwrap_or(false).then(|| id(&special.eos)).flatten();
    let part = |text: &str, of: u8| -> Vec<String> {
        let token = |token: &Option<(String, u32)>| token.as_ref().map(|(text, _)| format!("{text}:{of}"));
        [token(&before), Some(format!("${text}:{of}")), token(&after)].into_iter().flatten().collect()
    };
    let (single, second) = (part("A", 0), part("B", 1));
    let pair = [single.clone(), second].concat();
    let mut tokens: Vec<(String, u32)> = before.into_iter().chain(after).collect();
    tokens.dedup();
    let template = TemplateProcessing::builder()
        .try_single(single)
        .and_then(|of| of.try_pair(pair))?
        .special_tokens(tokens)
        .build()
        .map_err(|e| e.to_string())?;
    inner.with_post_processor(Some(template));
    Ok(())
}

fn read_json(path: &Path) -> Result<Option<Value>> {
    let bytes = match files::read(path, files::TOKENIZER_BYTES) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::io(path, e)),
    };
    serde_json::from_slice(&bytes).map(Some).map_err(|e| Error::model(path, format!("not valid JSON: {e}")))
}
