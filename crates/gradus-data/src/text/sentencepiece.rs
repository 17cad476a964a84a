//! Converts SentencePiece's own file (`spiece.model`, `tokenizer.model`, …) to an equivalent `tokenizer.json`.
//!
//! The file is a protocol buffer with the pieces, their scores, and the normalization table. It does not contain what a tokenizer
//! class adds: moved ids, additional tokens, spaces, and tokens around a text. These follow the behavior of each class in
//! `transformers` 4.

use std::collections::HashMap;
use std::path::Path;

use base64::Engine as _;
use prost::Message as _;
use serde_json::{Value, json};

use super::convention::Convention;
use crate::{Error, Result, files};

/// Names of such files next to a model.
pub(super) const FILES: [&str; 4] = ["spiece.model", "tokenizer.model", "sentencepiece.bpe.model", "spm.model"];

/// Maximum size of such a file in bytes. Known files have four million.
const BYTES: u64 = 32 << 20;

/// SentencePiece's symbol for a space.
const SPACE: &str = "▁";

/// The used fields of `ModelProto`.
#[derive(Clone, PartialEq, prost::Message)]
struct Model {
    #[prost(message, repeated, tag = "1")]
    pieces: Vec<Piece>,
    #[prost(message, optional, tag = "2")]
    trainer: Option<TrainerSpec>,
    #[prost(message, optional, tag = "3")]
    normalizer: Option<Normalizer>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Piece {
    #[prost(string, optional, tag = "1")]
    piece: Option<String>,
    #[prost(float, optional, tag = "2")]
    score: Option<f32>,
    #[prost(int32, optional, tag = "3")]
    kind: Option<i32>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct TrainerSpec {
    #[prost(int32, optional, tag = "3")]
    model_type: Option<i32>,
    #[prost(int32, optional, tag = "40")]
    unk_id: Option<i32>,
    #[prost(string, optional, tag = "45")]
    unk_piece: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Normalizer {
    #[prost(bytes = "vec", optional, tag = "2")]
    precompiled_charsmap: Option<Vec<u8>>,
}

/// `Piece::kind` of control tokens, such as `</s>`, and of user-defined tokens.
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;

/// A piece with its score.
type Scored = (String, f64);

/// Converts the file in `path` to the `tokenizer.json` of a tokenizer of `class`.
///
/// # Errors
/// If the file is not SentencePiece's, or its kind is not supported.
pub(super) fn read(path: &Path, class: Option<Convention>, config: &Value) -> Result<Value> {
    let bytes = files::read(path, BYTES).map_err(|error| Error::io(path, error))?;
    let model = Model::decode(bytes.as_slice())
        .map_err(|error| Error::model(path, format!("not a file of SentencePiece: {error}")))?;
    let Some(class) = class else {
        let message = "the class of the tokenizer for this file is not set";
        return Err(Error::model(path, message)
            .with_hint("set it in `tokenizer_config.json`, as `\"tokenizer_class\": \"T5Tokenizer\"`"));
    };
    if model.pieces.is_empty() {
        return Err(Error::model(path, "not a file of SentencePiece: it has no pieces"));
    }
    of_class(&model, class, config).map_err(|what| Error::model(path, what))
}

fn of_class(model: &Model, class: Convention, config: &Value) -> Result<Value, String> {
    let Pieces { pieces, unknown, added } = pieces(model, class, config)?;
    let ids: HashMap<&str, usize> = pieces.iter().enumerate().map(|(id, (piece, _))| (piece.as_str(), id)).collect();
    if ids.len() < pieces.len() {
        let twice = pieces.iter().enumerate().find(|(id, (piece, _))| ids[piece.as_str()] != *id);
        return Err(format!("the piece `{}` exists twice", twice.map_or("", |(_, (piece, _))| piece)));
    }
    let has_bytes = matches!(class, Convention::Llama | Convention::Gemma);
    let core = match model.trainer.as_ref().and_then(|trainer| trainer.model_type).unwrap_or(1) {
        1 => json!({ "type": "Unigram", "unk_id": unknown, "vocab": pieces, "byte_fallback": has_bytes }),
        2 => {
            let unk = model.trainer.as_ref().and_then(|trainer| trainer.unk_piece.as_deref()).unwrap_or("<unk>");
            json!({
                "type": "BPE", "dropout": null, "unk_token": unk, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": has_bytes, "ignore_merges": false,
                "vocab": ids, "merges": merges(&pieces, &ids),
            })
        }
        _ => return Err("it cuts texts into words or characters, which is not supported".to_owned()),
    };
    let added: Vec<Value> = added
        .iter()
        .filter_map(|(token, special)| {
            // A mask token absorbs the spaces before it.
            let lstrip = token == class.token("mask_token").unwrap_or("") && class != Convention::Deberta;
            Some(json!({
                "id": ids.get(token.as_str())?, "content": token, "single_word": false, "lstrip": lstrip, "rstrip": false,
                "normalized": false, "special": special,
            }))
        })
        .collect();
    let decoder = if has_bytes {
        let strip = json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 });
        let strip = (class == Convention::Llama && flag(config, "add_prefix_space", true)).then_some(strip);
        let steps = [replace(string(SPACE), " "), json!({ "type": "ByteFallback" }), json!({ "type": "Fuse" })];
        json!({ "type": "Sequence", "decoders": steps.into_iter().chain(strip).collect::<Vec<_>>() })
    } else {
        metaspace(config, true)
    };
    Ok(json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": normalizer(model, class, config), "pre_tokenizer": pre_tokenizer(class, config),
        "post_processor": around(class, config, &ids)?, "decoder": decoder, "model": core,
    }))
}

/// The pieces of a tokenizer.
struct Pieces {
    /// All pieces, in the order of their ids.
    pieces: Vec<Scored>,
    /// Id of the unknown token.
    unknown: usize,
    /// Tokens that are never cut, and whether they are special.
    added: Vec<(String, bool)>,
}

/// Returns the pieces of the file, as `class` changes them.
fn pieces(model: &Model, class: Convention, config: &Value) -> Result<Pieces, String> {
    let kinds = model.pieces.iter().filter(|piece| matches!(piece.kind, Some(CONTROL | USER_DEFINED)));
    let mut added: Vec<(String, bool)> =
        kinds.map(|piece| (text(piece), piece.kind == Some(CONTROL) || class.is_special(piece.piece()))).collect();
    let pieces: Vec<Scored> = model.pieces.iter().map(|piece| (text(piece), f64::from(piece.score()))).collect();
    // Some classes replace the first pieces of the file.
    let instead = |first: &[&str], of: usize| {
        let first = first.iter().map(|piece| ((*piece).to_owned(), 0.0));
        first.chain(pieces.iter().skip(of).cloned()).collect::<Vec<Scored>>()
    };
    let in_file = model.trainer.as_ref().and_then(|trainer| trainer.unk_id).unwrap_or(0).max(0) as usize;
    let (mut pieces, unknown) = match class {
        Convention::T5 => {
            let mut pieces = pieces;
            let extra = config.get("extra_ids").and_then(Value::as_u64).unwrap_or(100).min(1000);
            for id in (0..extra).rev() {
                let token = format!("<extra_id_{id}>");
                added.push((token.clone(), true));
                pieces.push((token, 0.0));
            }
            (pieces, in_file)
        }
        Convention::XlmRoberta => {
            let mut pieces = instead(&["<s>", "<pad>", "</s>", "<unk>"], 3);
            pieces.push(("<mask>".to_owned(), 0.0));
            (pieces, 3)
        }
        Convention::Camembert => {
            let mut pieces = instead(&["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"], 1);
            pieces[4].1 = -100.0;
            pieces.push(("<mask>".to_owned(), 0.0));
            (pieces, 3)
        }
        Convention::Albert => (pieces.into_iter().map(penalised).collect(), in_file),
        Convention::Deberta => (pieces, in_file),
        Convention::Llama => (instead(&["<unk>", "<s>", "</s>"], 3), 0),
        Convention::Gemma => (with_tab(instead(&["<pad>", "<eos>", "<bos>"], 3)), 3),
        _ => return Err("tokenizers of its class do not read files of SentencePiece".to_owned()),
    };
    // Tokens that the class has but the file lacks are appended.
    for name in ["unk_token", "sep_token", "pad_token", "cls_token", "mask_token"] {
        let Some(token) = class.token(name) else { continue };
        if class == Convention::Deberta && !pieces.iter().any(|(piece, _)| piece == token) {
            pieces.push((token.to_owned(), 0.0));
        }
        if pieces.iter().any(|(piece, _)| piece == token) && !added.iter().any(|(known, _)| known == token) {
            added.push((token.to_owned(), true));
        }
    }
    Ok(Pieces { pieces, unknown, added })
}

fn flag(config: &Value, name: &str, default: bool) -> bool {
    config.get(name).and_then(Value::as_bool).unwrap_or(default)
}

fn replace(pattern: Value, content: &str) -> Value {
    json!({ "type": "Replace", "pattern": pattern, "content": content })
}

fn string(text: &str) -> Value {
    json!({ "String": text })
}

fn metaspace(config: &Value, split: bool) -> Value {
    let scheme = match (flag(config, "add_prefix_space", true), flag(config, "legacy", true)) {
        (false, _) => "never",
        (true, true) => "always",
        (true, false) => "first",
    };
    json!({ "type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": split })
}

fn normalizer(model: &Model, class: Convention, config: &Value) -> Value {
    let table = model.normalizer.as_ref().and_then(|normalizer| normalizer.precompiled_charsmap.as_ref());
    let table = table.filter(|table| !table.is_empty()).map(
        |table| json!({ "type": "Precompiled", "precompiled_charsmap": base64::engine::general_purpose::STANDARD.encode(table) }),
    );
    let spaces = |content: &str| replace(json!({ "Regex": " {2,}" }), content);
    let sequence = |steps: Vec<Value>| json!({ "type": "Sequence", "normalizers": steps });
    let strip = |left: bool| json!({ "type": "Strip", "strip_left": left, "strip_right": true });
    match class {
        Convention::Albert => {
            let mut steps = vec![replace(string("``"), "\""), replace(string("''"), "\"")];
            if !flag(config, "keep_accents", false) {
                steps.extend([json!({ "type": "NFKD" }), json!({ "type": "StripAccents" })]);
            }
            steps.extend(flag(config, "do_lower_case", true).then(|| json!({ "type": "Lowercase" })));
            steps.extend(table);
            steps.push(spaces(" "));
            sequence(steps)
        }
        Convention::Deberta => {
            let lower = flag(config, "do_lower_case", false).then(|| json!({ "type": "Lowercase" }));
            sequence(lower.into_iter().chain([strip(true)]).chain(table).chain([spaces(" ")]).collect())
        }
        Convention::Llama if !flag(config, "legacy", true) => Value::Null,
        Convention::Llama => {
            let prepend =
                flag(config, "add_prefix_space", true).then(|| json!({ "type": "Prepend", "prepend": SPACE }));
            sequence(prepend.into_iter().chain([replace(string(" "), SPACE)]).collect())
        }
        Convention::Gemma => replace(string(" "), SPACE),
        _ => sequence(table.into_iter().chain([strip(false), spaces(SPACE)]).collect()),
    }
}

fn pre_tokenizer(class: Convention, config: &Value) -> Value {
    match class {
        Convention::Llama if flag(config, "legacy", true) => Value::Null,
        Convention::Llama => metaspace(config, false),
        Convention::Gemma => {
            json!({ "type": "Split", "pattern": string(" "), "behavior": "MergedWithPrevious", "invert": false })
        }
        Convention::Deberta => {
            let punctuation =
                flag(config, "split_by_punct", false).then(|| json!({ "type": "Punctuation", "behavior": "Isolated" }));
            let steps: Vec<Value> = punctuation.into_iter().chain([metaspace(config, true)]).collect();
            json!({ "type": "Sequence", "pretokenizers": steps })
        }
        _ => metaspace(config, true),
    }
}

fn text(piece: &Piece) -> String {
    piece.piece().to_owned()
}

/// Lowers the scores of pieces that end with a digit and a comma, as ALBERT's class avoids them.
fn penalised((piece, score): Scored) -> Scored {
    let mut ends = piece.chars().rev();
    let is_number = ends.next() == Some(',') && ends.next().is_some_and(char::is_numeric);
    (piece, if is_number { score - 100.0 } else { score })
}

/// Replaces the byte piece of the tab by a tab, which Gemma's first files lack.
fn with_tab(mut pieces: Vec<Scored>) -> Vec<Scored> {
    if !pieces.iter().any(|(piece, _)| piece == "\t")
        && let Some(byte) = pieces.iter_mut().find(|(piece, _)| piece == "<0x09>")
    {
        *byte = ("\t".to_owned(), 0.0);
    }
    pieces
}

/// Returns the merges in order: by the score of the resulting piece, then the longer left part first.
fn merges(pieces: &[Scored], ids: &HashMap<&str, usize>) -> Vec<[String; 2]> {
    // Score, characters of the left part, characters of the right part, both parts.
    let mut found: Vec<(f64, usize, usize, [&str; 2])> = Vec::new();
    for (piece, score) in pieces {
        let mut local: Vec<(usize, usize, usize, usize, [&str; 2])> = Vec::new();
        let length = piece.chars().count();
        for (characters, (byte, _)) in piece.char_indices().enumerate().skip(1) {
            let (left, right) = piece.split_at(byte);
            if let (Some(&first), Some(&second)) = (ids.get(left), ids.get(right)) {
                local.push((first, second, characters, length - characters, [left, right]));
            }
        }
        local.sort_unstable_by_key(|&(first, second, ..)| (first, second));
        found.extend(local.into_iter().map(|(_, _, left, right, pair)| (*score, left, right, pair)));
    }
    // The sort is stable: equal entries stay in the order of the pieces.
    found.sort_by(|a, b| b.0.total_cmp(&a.0).then((b.1, b.2).cmp(&(a.1, a.2))));
    found.into_iter().map(|(.., pair)| pair.map(str::to_owned)).collect()
}

/// Builds the post-processor with the tokens around a text.
fn around(class: Convention, config: &Value, ids: &HashMap<&str, usize>) -> Result<Value, String> {
    let [before, after] = match class {
        Convention::T5 => [vec![], vec!["</s>"]],
        Convention::XlmRoberta | Convention::Camembert => [vec!["<s>"], vec!["</s>"]],
        Convention::Albert | Convention::Deberta => [vec!["[CLS]"], vec!["[SEP]"]],
        _ => {
            // The configuration may override the defaults of the class.
            let adds = |key: &str, default: bool| config.get(key).and_then(Value::as_bool).unwrap_or(default);
            let token = |name: &str| class.token(name).into_iter().collect::<Vec<_>>();
            let bos = if adds("add_bos_token", true) { token("bos_token") } else { vec![] };
            let eos = if adds("add_eos_token", false) { token("eos_token") } else { vec![] };
            [bos, eos]
        }
    };
    let special = |token: &str, of: u8| json!({ "SpecialToken": { "id": token, "type_id": of } });
    let sequence = |id: &str, of: u8| json!({ "Sequence": { "id": id, "type_id": of } });
    let part = |id: &str, of: u8, before: &[&str]| {
        let tokens = |list: &[&str]| list.iter().map(|token| special(token, of)).collect::<Vec<_>>();
        [tokens(before), vec![sequence(id, of)], tokens(&after)].concat()
    };
    let second = match class {
        Convention::T5 => part("B", 0, &[]),
        Convention::XlmRoberta | Convention::Camembert => part("B", 0, &["</s>"]),
        Convention::Albert | Convention::Deberta => part("B", 1, &[]),
        _ => part("B", 1, &before),
    };
    let single = part("A", 0, &before);
    let pair = [single.clone(), second].concat();
    let mut tokens = serde_json::Map::new();
    for token in before.iter().chain(&after) {
        let id = ids.get(token).ok_or_else(|| format!("it has no piece `{token}`, which is added to every text"))?;
        tokens.insert((*token).to_owned(), json!({ "id": token, "ids": [id], "tokens": [token] }));
    }
    Ok(json!({ "type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens }))
}
