//! Conversion of a tokenizer to llama.cpp's form.
//!
//! Two kinds are supported. Byte-level BPE must split text in a way for which llama.cpp has a name. The merges of
//! character-level BPE with byte fallback (SentencePiece's) become scores.

use serde_json::Value as Json;

use super::gguf::Value;
use crate::error::{Error, Result};
use crate::pretrained::Pretrained;
use crate::text::Tokenizer;

/// llama.cpp's codes for kinds of tokens.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// Character for a space in SentencePiece's vocabularies.
const SPACE: &str = "\u{2581}";

/// Pre-tokenization patterns in `tokenizer.json`, with llama.cpp's names.
const CUTS: [(&str, &str); 2] = [
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        "qwen2",
    ),
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        "llama-bpe",
    ),
];

/// Returns the keys for the tokenizer and the chat template in `files`, for a model with `size` ids. Adds a note about what the format cannot
/// express.
///
/// # Errors
/// If it is of an unsupported kind.
pub(super) fn metadata(files: &Pretrained, size: usize, notes: &mut Vec<String>) -> Result<Vec<(String, Value)>> {
    let tokenizer = &files.tokenizer;
    let json = tokenizer.to_json()?;
    let refuse = |what: String| {
        Error::model(tokenizer.directory(), format!("{what}, which cannot be written as GGUF")).with_hint(
            "supported are byte-level BPE with the pre-tokenizers of GPT-2, Llama 3, Qwen and SmolLM, and \
                        SentencePiece's BPE",
        )
    };
    let model = &json["model"];
    if model["type"] != "BPE" {
        return Err(refuse(format!("the tokenizer is of the kind {}", model["type"])));
    }
    let merges = merges(model).ok_or_else(|| refuse("the merges of the tokenizer are of an unknown form".into()))?;
    let is_bytes = names(&json["pre_tokenizer"]).contains(&"ByteLevel");
    let (mut tokens, mut types) = (vec![None; size], vec![UNUSED; size]);
    let mut put = |id: usize, token: &str, kind: i32| {
        if let Some(place) = tokens.get_mut(id) {
            *place = Some(token.to_owned());
            types[id] = kind;
        }
    };
    let id_of = |value: &Json| value.as_u64().map(|id| id as usize);
    for (token, id) in model["vocab"].as_object().into_iter().flatten() {
        let is_byte = !is_bytes && token.len() == 6 && token.starts_with("<0x") && token.ends_with('>');
        let kind = match model["unk_token"] == token.as_str() {
            true if !is_bytes => UNKNOWN,
            _ if is_byte => BYTE,
            _ => NORMAL,
        };
        id_of(id).into_iter().for_each(|id| put(id, token, kind));
    }
    for added in json["added_tokens"].as_array().into_iter().flatten() {
        let (Some(id), Some(token)) = (id_of(&added["id"]), added["content"].as_str()) else { continue };
        let is_unknown = !is_bytes && model["unk_token"] == token;
        let kind = if added["special"] == true { CONTROL } else { USER_DEFINED };
        put(id, token, if is_unknown { UNKNOWN } else { kind });
    }
    let tokens: Vec<String> =
        tokens.into_iter().enumerate().map(|(id, token)| token.unwrap_or_else(|| format!("[PAD{id}]"))).collect();
    let mut metadata = vec![];
    let mut add = |key: &str, value: Value| metadata.push((format!("tokenizer.{key}"), value));
    if is_bytes {
        let cut =
            cut(&json["pre_tokenizer"]).ok_or_else(|| refuse("the tokenizer has an unknown pre-tokenizer".into()))?;
        add("ggml.model", Value::Text("gpt2".into()));
        add("ggml.pre", Value::Text(cut.into()));
        add("ggml.merges", Value::Texts(merges.iter().map(|[a, b]| format!("{a} {b}")).collect()));
    } else {
        if model["byte_fallback"] != true {
            return Err(refuse("the tokenizer is BPE without bytes".into()));
        }
        add("ggml.model", Value::Text("llama".into()));
        add("ggml.pre", Value::Text("default".into()));
        add("ggml.scores", Value::Numbers(scores(&tokens, &merges)));
        add("ggml.add_space_prefix", Value::Flag(prefixes_space(&json)));
    }
    add("ggml.tokens", Value::Texts(tokens));
    add("ggml.token_type", Value::Counts(types));
    special(files, &mut add)?;
    let lost = lost_normalizers(&json["normalizer"]);
    if !lost.is_empty() {
        notes.push(format!(
            "llama.cpp does not normalize texts, but the tokenizer does ({}): it gives other ids to texts that this step changes",
            lost.join(", ")
        ));
    }
    if let Some(template) = &files.template {
        add("chat_template", Value::Text(template.source().to_owned()));
    }
    Ok(metadata)
}

/// Adds the ids that start, end and pad texts.
fn special(files: &Pretrained, add: &mut dyn FnMut(&str, Value)) -> Result<()> {
    let tokenizer = &files.tokenizer;
    let mut ends = files.stop_ids();
    // The tokenizer's end id comes first. Other stop ids end a turn or a message.
    if let Some(at) = tokenizer.eos_id().and_then(|id| ends.iter().position(|&end| end == id)) {
        ends[..=at].rotate_right(1);
    }
    let id = |token: Option<&str>| token.and_then(|token| tokenizer.token_id(token));
    let ids = [
        ("bos", tokenizer.bos_id()),
        ("eos", ends.first().copied()),
        ("eot", ends.get(1).copied()),
        ("eom", ends.get(2).copied()),
        ("unknown", id(tokenizer.unk_token())),
        ("padding", id(tokenizer.pad_token())),
    ];
    for (name, id) in ids.into_iter().filter_map(|(name, id)| Some((name, id?))) {
        add(&format!("ggml.{name}_token_id"), Value::U32(id));
    }
    add("ggml.add_bos_token", Value::Flag(begins_with_bos(tokenizer)?));
    add("ggml.add_eos_token", Value::Flag(tokenizer.appends_eos()));
    Ok(())
}

/// Whether the tokenizer itself starts every text with bos.
fn begins_with_bos(tokenizer: &Tokenizer) -> Result<bool> {
    let first = |add_special| Ok::<_, Error>(tokenizer.encode("a", add_special)?.first().copied());
    let bos = tokenizer.bos_id();
    Ok(bos.is_some() && first(true)? == bos && first(false)? != bos)
}

/// Returns the merges, in order.
fn merges(model: &Json) -> Option<Vec<[String; 2]>> {
    let pair = |merge: &Json| match merge {
        Json::String(text) => text.split_once(' ').map(|(a, b)| [a.to_owned(), b.to_owned()]),
        Json::Array(pair) => match &pair[..] {
            [Json::String(a), Json::String(b)] => Some([a.clone(), b.clone()]),
            _ => None,
        },
        _ => None,
    };
    model["merges"].as_array()?.iter().map(pair).collect()
}

/// Returns scores for llama.cpp, which applies the merge with the highest score first: minus the rank of the first
/// merge that makes the token.
fn scores(tokens: &[String], merges: &[[String; 2]]) -> Vec<f32> {
    let mut ranks = std::collections::HashMap::new();
    for (rank, pair) in merges.iter().enumerate() {
        ranks.entry(pair.concat()).or_insert(rank);
    }
    tokens.iter().map(|token| ranks.get(token).map_or(-1e9, |&rank| -(rank as f32))).collect()
}

/// Returns the types of a step and of the steps in it.
fn names(step: &Json) -> Vec<&str> {
    parts(step).into_iter().filter_map(|part| part["type"].as_str()).collect()
}

/// Returns a step, or the steps of a sequence.
fn parts(step: &Json) -> Vec<&Json> {
    let list = ["pretokenizers", "normalizers"].into_iter().find_map(|key| step[key].as_array());
    list.map_or_else(|| vec![step], |list| list.iter().collect())
}

/// Returns llama.cpp's name of the pre-tokenization.
fn cut(step: &Json) -> Option<&'static str> {
    let steps = parts(step);
    match &steps[..] {
        [bytes] if bytes["use_regex"] != false => Some("gpt-2"),
        [digits, bytes]
            if digits["type"] == "Digits" && digits["individual_digits"] == true && bytes["use_regex"] != false =>
        {
            Some("smollm")
        }
        [split, bytes] if split["type"] == "Split" && bytes["use_regex"] == false => {
            let pattern = split["pattern"]["Regex"].as_str()?;
            CUTS.iter().find(|(known, _)| *known == pattern).map(|(_, name)| *name)
        }
        _ => None,
    }
}

/// Returns the types of the normalizers that llama.cpp does not have. It has those that put SentencePiece's spaces into a text.
fn lost_normalizers(normalizer: &Json) -> Vec<&str> {
    let is_lost = |step: &&Json| match step["type"].as_str() {
        Some("Prepend") => step["prepend"] != SPACE,
        Some("Replace") => step["content"] != SPACE,
        _ => true,
    };
    parts(normalizer).into_iter().filter(is_lost).filter_map(|step| step["type"].as_str()).collect()
}

/// Whether a space is put in front of every text.
fn prefixes_space(json: &Json) -> bool {
    let normalizes =
        parts(&json["normalizer"]).iter().any(|step| step["type"] == "Prepend" && step["prepend"] == SPACE);
    let cuts = |step: &&Json| {
        step["type"] == "Metaspace" && step["prepend_scheme"] != "never" && step["add_prefix_space"] != false
    };
    normalizes || parts(&json["pre_tokenizer"]).iter().any(cuts)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ways_of_cutting_are_known_by_their_names() {
        let bytes = |use_regex: bool| json!({ "type": "ByteLevel", "add_prefix_space": false, "use_regex": use_regex });
        let split = |pattern: &str| json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated" });
        let sequence = |steps: Vec<Json>| json!({ "type": "Sequence", "pretokenizers": steps });
        let digits = json!({ "type": "Digits", "individual_digits": true });
        assert_eq!(cut(&bytes(true)), Some("gpt-2"));
        assert_eq!(cut(&sequence(vec![digits, bytes(true)])), Some("smollm"));
        for (pattern, name) in CUTS {
            assert_eq!(cut(&sequence(vec![split(pattern), bytes(false)])), Some(name));
        }
        // Another pattern, no pattern, and one that splits twice.
        for steps in [vec![split("a+"), bytes(false)], vec![bytes(false)], vec![split(CUTS[0].0), bytes(true)]] {
            assert_eq!(cut(&sequence(steps)), None);
        }
    }

    #[test]
    fn the_first_merge_that_makes_a_token_gives_its_score() {
        let merges = merges(&json!({ "merges": ["a b", ["b", "c"], ["a", "bc"], "ab c"] })).expect("two forms");
        let tokens = ["a", "ab", "bc", "abc"].map(String::from);
        assert_eq!(scores(&tokens, &merges), [-1e9, 0.0, -1.0, -2.0]);
    }

    #[test]
    fn a_space_before_every_text_is_said_in_one_of_two_places() {
        let prepend = json!({ "normalizer": { "type": "Sequence", "normalizers": [
            { "type": "Prepend", "prepend": SPACE }, { "type": "Replace", "pattern": { "String": " " }, "content": SPACE }
        ] } });
        let metaspace = |scheme: &str| json!({ "pre_tokenizer": { "type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme } });
        assert!(
            prefixes_space(&prepend) && prefixes_space(&metaspace("first")) && prefixes_space(&metaspace("always"))
        );
        assert!(!prefixes_space(&metaspace("never")) && !prefixes_space(&json!({ "normalizer": null })));
        assert_eq!(lost_normalizers(&prepend["normalizer"]), Vec::<&str>::new());
        assert_eq!(
            lost_normalizers(&json!({ "type": "Replace", "pattern": { "String": "a" }, "content": "b" })),
            ["Replace"]
        );
    }
}
