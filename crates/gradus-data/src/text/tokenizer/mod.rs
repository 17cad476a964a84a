//! The tokenizer of a Hugging Face model directory.

mod load;
mod old_files;
mod read;
mod special_tokens;

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, OnceLock};

use serde_json::Value;
use tokenizers::utils::truncation::{TruncationDirection, TruncationParams, truncate_encodings};
use tokenizers::{Encoding, PostProcessor, PreTokenizerWrapper};

use self::special_tokens::Special;
use super::byt5;
use crate::{Error, Result, border};

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
    /// Whether it tells two texts apart by token types; otherwise all types are 0.
    has_types: bool,
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
        Ok(self.joined(&joined))
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
        Ok((self.joined(&joined), firsts))
    }

    /// Returns the ids and types of texts with their special tokens.
    fn joined(&self, encoding: &Encoding) -> Joined {
        let ids = encoding.get_ids().to_vec();
        let types = if self.has_types { encoding.get_type_ids().to_vec() } else { vec![0; ids.len()] };
        Joined { ids, types }
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
