//! Tokenizers without `tokenizer.json`: `vocab.json` + `merges.txt` (GPT-2, RoBERTa, BART, Blenderbot, Qwen), `vocab.txt` (BERT,
//! DistilBERT), and the files of SentencePiece (T5, ALBERT, DeBERTa, XLM-RoBERTa, Llama, Gemma).

use std::path::Path;

use serde_json::{Map, Value, json};
use tokenizers::{
    AddedToken, PostProcessorWrapper, SplitDelimiterBehavior, decoders::byte_level::ByteLevel,
    decoders::wordpiece::WordPiece as WordPieceDecoder, models::bpe::BPE, models::wordpiece::WordPiece,
    normalizers::bert::BertNormalizer, normalizers::unicode::NFC, pre_tokenizers::bert::BertPreTokenizer,
    pre_tokenizers::sequence::Sequence as PreTokenizerSequence, pre_tokenizers::split::Split,
    pre_tokenizers::split::SplitPattern, processors::roberta::RobertaProcessing,
    processors::template::TemplateProcessing,
};

use super::read::from_json;
use super::special_tokens::{Special, token_text};
use crate::text::convention::Convention;
use crate::text::{byt5, sentencepiece};
use crate::{Error, Result, border, files};

/// Pattern with which Qwen 2's class splits texts before it merges bytes.
const QWEN_WORDS: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Hint on how to get a tokenizer for a model.
const SAVE: &str = "pass one from another directory with `--tokenizer`, or save it next to the weights: \
                    `AutoTokenizer.from_pretrained(…).save_pretrained(…)`";

/// Loads the files used without `tokenizer.json`: GPT-2's two files, BERT's file, or that of SentencePiece.
pub(super) fn load_old_files(
    directory: &Path,
    convention: Option<Convention>,
    config: &Value,
) -> Result<tokenizers::Tokenizer> {
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
    if matches!(convention, Some(Convention::GptNeox | Convention::Qwen2)) {
        inner.with_normalizer(Some(NFC)).map_err(|error| Error::model(directory, error.to_string()))?;
    }
    if convention == Some(Convention::Qwen2) {
        let words = Split::new(SplitPattern::Regex(QWEN_WORDS.to_owned()), SplitDelimiterBehavior::Isolated, false)
            .map_err(|error| Error::model(directory, error.to_string()))?;
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

/// Adds the special tokens that a class puts around texts, for older files, which cannot specify them.
pub(super) fn surround(
    inner: &mut tokenizers::Tokenizer,
    convention: Convention,
    config: &Value,
    special: &Special,
) -> Result<(), String> {
    // ByT5 has no file; the generated replacement already specifies them.
    if matches!(convention, Convention::Gpt2 | Convention::GptNeox | Convention::Qwen2 | Convention::ByT5) {
        return Ok(());
    }
    let space = config.get("add_prefix_space").and_then(Value::as_bool).unwrap_or(convention.adds_space());
    if convention.is_byte_level() {
        inner.with_pre_tokenizer(Some(ByteLevel::default().add_prefix_space(space)));
    }
    let around = tokens_around(inner, convention, special, space)?;
    inner.with_post_processor(Some(around));
    Ok(())
}

/// Returns the post-processor with the special tokens that a class puts around texts. `space` states whether the pre-tokenizer puts a space
/// in front of a text.
///
/// # Errors
/// If the vocabulary lacks one of these tokens.
pub(super) fn tokens_around(
    inner: &tokenizers::Tokenizer,
    convention: Convention,
    special: &Special,
    space: bool,
) -> Result<PostProcessorWrapper, String> {
    let token = |name: &str| {
        let text = special.named.iter().find(|(known, _)| known == name).map(|(_, text)| text.clone());
        let found = text.and_then(|text| inner.token_to_id(&text).map(|id| (text, id)));
        let file = if convention == Convention::Bert { "vocab.txt" } else { "vocab.json" };
        found.ok_or_else(|| format!("`{file}` has no `{name}`, which is added to every text"))
    };
    let template = |single: String, pair: String, tokens: Vec<(String, u32)>| -> Result<PostProcessorWrapper, String> {
        let template = TemplateProcessing::builder()
            .try_single(single)
            .and_then(|of| of.try_pair(pair))?
            .special_tokens(tokens)
            .build()
            .map_err(|error| error.to_string())?;
        Ok(template.into())
    };
    if matches!(convention, Convention::T5 | Convention::Blenderbot) {
        let end = token("eos_token")?;
        return template(format!("$A:0 {}:0", end.0), format!("$A:0 {0}:0 $B:0 {0}:0", end.0), vec![end]);
    }
    let [separator, first] = [token("sep_token")?, token("cls_token")?];
    if convention == Convention::Roberta {
        return Ok(RobertaProcessing::new(separator, first).add_prefix_space(space).into());
    }
    let single = format!("{}:0 $A:0 {}:0", first.0, separator.0);
    let pair = match convention {
        Convention::XlmRoberta | Convention::Camembert => format!("{single} {0}:0 $B:0 {0}:0", separator.0),
        _ => format!("{single} $B:1 {}:1", separator.0),
    };
    template(single, pair, vec![first, separator])
}

/// Sets the post-processor of older files if the configuration states `add_bos_token` or `add_eos_token`. If only `add_eos_token` is
/// stated, `adds_bos` decides about bos.
///
/// transformers 5.23 ignores both keys next to a `tokenizer.json`. Its version 4 followed them for Llama's and Gemma's classes.
pub(super) fn set_template(
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
