//! Conversion of a tokenizer to llama.cpp's form.
//!
//! Two kinds are supported. Byte-level BPE must split text in a way for which llama.cpp has a name. The merges of
//! character-level BPE with byte fallback (SentencePiece's) become scores.

use std::collections::{HashMap, HashSet};

use serde_json::{Value as Json, json};

use super::gguf::Value;
use crate::error::{Error, Result, excerpt};
use crate::pretrained::Pretrained;
use crate::text::{ChatTemplate, Tokenizer};

/// llama.cpp's codes for kinds of tokens.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// Character for a space in SentencePiece's vocabularies.
const SPACE: &str = "\u{2581}";

/// llama.cpp's name of the pre-tokenization of Llama 3. With it, a word that is a token stays whole even if no merges make it.
const LLAMA_3: &str = "llama-bpe";

/// Forms of Unicode. llama.cpp has none of them, but they change few texts.
const FORMS: [&str; 4] = ["NFC", "NFD", "NFKC", "NFKD"];

/// Pre-tokenization patterns in `tokenizer.json`, with llama.cpp's names.
const CUTS: [(&str, &str); 2] = [
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        "qwen2",
    ),
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        LLAMA_3,
    ),
];

/// The steps of a tokenizer before its merges, in llama.cpp's words. All other steps are refused, because llama.cpp would ignore them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Steps {
    /// Byte-level BPE with this pre-tokenization.
    Bytes(&'static str),
    /// SentencePiece's: spaces become [`SPACE`], with or without another one in front of every text.
    Pieces { has_prefix: bool },
}

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
    let steps = steps(&json, notes).and_then(|steps| check_model(model, &json, &merges, steps).map(|()| steps));
    let steps = steps.map_err(refuse)?;
    let is_bytes = matches!(steps, Steps::Bytes(_));
    let (mut tokens, mut types) = (vec![None; size], vec![UNUSED; size]);
    let mut put = |id: usize, token: &str, kind: i32| {
        if let Some(place) = tokens.get_mut(id) {
            *place = Some(token.to_owned());
            types[id] = kind;
        }
    };
    let id_of = |value: &Json| value.as_u64().map(|id| id as usize);
    for (token, id) in model["vocab"].as_object().into_iter().flatten() {
        let kind = match model["unk_token"] == token.as_str() {
            true if !is_bytes => UNKNOWN,
            _ if !is_bytes && is_byte(token) => BYTE,
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
    match steps {
        Steps::Bytes(name) => {
            add("ggml.model", Value::Text("gpt2".into()));
            add("ggml.pre", Value::Text(name.into()));
            add("ggml.merges", Value::Texts(merges.iter().map(|[a, b]| format!("{a} {b}")).collect()));
        }
        Steps::Pieces { has_prefix } => {
            add("ggml.model", Value::Text("llama".into()));
            add("ggml.pre", Value::Text("default".into()));
            add("ggml.scores", Value::Numbers(scores(&tokens, &merges)));
            add("ggml.add_space_prefix", Value::Flag(has_prefix));
        }
    }
    add("ggml.tokens", Value::Texts(tokens));
    add("ggml.token_type", Value::Counts(types));
    special(files, &mut add, notes)?;
    let flagged = flagged(&json);
    if !flagged.is_empty() {
        notes.push(format!(
            "llama.cpp ignores the flags of added tokens ({}): texts with spaces or letters next to them get other ids",
            excerpt(&flagged.join(", "), 200)
        ));
    }
    // Keys and names are those of llama.cpp's converter.
    let mut names = Vec::new();
    for (name, source) in files.template.iter().flat_map(ChatTemplate::named) {
        let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        if name == "default" {
            add("chat_template", Value::Text(source.clone()));
        } else if !name.is_empty() && !names.contains(&name) {
            add(&format!("chat_template.{name}"), Value::Text(source.clone()));
            names.push(name);
        }
    }
    if !names.is_empty() {
        add("chat_templates", Value::Texts(names));
    }
    Ok(metadata)
}

/// Adds the ids that start, end and pad texts.
///
/// # Errors
/// If no id ends a text, or the tokenizer puts other tokens around it.
fn special(files: &Pretrained, add: &mut dyn FnMut(&str, Value), notes: &mut Vec<String>) -> Result<()> {
    let tokenizer = &files.tokenizer;
    let mut ends = files.stop_ids();
    // The tokenizer's end id comes first. Other stop ids end a turn or a message.
    if let Some(at) = tokenizer.eos_id().and_then(|id| ends.iter().position(|&end| end == id)) {
        ends[..=at].rotate_right(1);
    }
    if ends.is_empty() {
        let message =
            "no token ends a text. llama.cpp would then end texts at the id 11 (byte-level BPE) or 2 (SentencePiece)";
        return Err(
            Error::model(tokenizer.directory(), message).with_hint("name one in `tokenizer_config.json`: `eos_token`")
        );
    }
    if let Some(lost) = ends.get(3..).filter(|lost| !lost.is_empty()) {
        let lost: Vec<String> =
            lost.iter().map(|id| format!("`{}` ({id})", tokenizer.token(*id).unwrap_or_default())).collect();
        notes.push(format!(
            "the file has only three ids that end a completion: llama.cpp may not end at {}",
            lost.join(", ")
        ));
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
    let (begins, ends) = surroundings(tokenizer)?;
    add("ggml.add_bos_token", Value::Flag(begins));
    add("ggml.add_eos_token", Value::Flag(ends));
    Ok(())
}

/// Returns whether the tokenizer itself starts every text with bos, and ends it with eos.
///
/// # Errors
/// If it puts other tokens around a text, because llama.cpp puts no others.
fn surroundings(tokenizer: &Tokenizer) -> Result<(bool, bool)> {
    let (bare, whole) = (tokenizer.encode("a", false)?, tokenizer.encode("a", true)?);
    let bos = tokenizer.bos_id().filter(|&bos| whole.first() == Some(&bos) && bare.first() != Some(&bos));
    let eos = tokenizer.eos_id().filter(|_| tokenizer.appends_eos());
    let expected: Vec<u32> = bos.into_iter().chain(bare).chain(eos).collect();
    if whole != expected {
        let tokens: Vec<String> = whole.iter().map(|&id| tokenizer.token(id).unwrap_or_default()).collect();
        let message = format!(
            "the tokenizer reads the text `a` as `{}`. llama.cpp can only put `bos_token` in front of a text and `eos_token` behind it",
            tokens.join(" ")
        );
        return Err(Error::model(tokenizer.directory(), message)
            .with_hint("name these tokens in `tokenizer_config.json`, or remove the others from `post_processor` in `tokenizer.json`"));
    }
    Ok((bos.is_some(), eos.is_some()))
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
    let mut ranks = HashMap::new();
    for (rank, pair) in merges.iter().enumerate() {
        ranks.entry(pair.concat()).or_insert(rank);
    }
    tokens.iter().map(|token| ranks.get(token).map_or(-1e9, |&rank| -(rank as f32))).collect()
}

/// Returns the steps of a normalizer or a pre-tokenizer, without what does not change tokens.
fn parts(step: &Json) -> Vec<Json> {
    let list = ["pretokenizers", "normalizers"].into_iter().find_map(|key| step[key].as_array());
    let mut steps = match list {
        Some(list) => list.clone(),
        None if step.is_null() => Vec::new(),
        None => vec![step.clone()],
    };
    for step in steps.iter_mut().filter_map(Json::as_object_mut) {
        step.remove("trim_offsets");
    }
    steps
}

/// Returns the pre-tokenizers of byte-level BPE that llama.cpp has, with its names of them.
fn byte_levels() -> Vec<(&'static str, Vec<Json>)> {
    let bytes = |splits: bool| json!({ "type": "ByteLevel", "add_prefix_space": false, "use_regex": splits });
    let digits = json!({ "type": "Digits", "individual_digits": true });
    let mut known = vec![("gpt-2", vec![bytes(true)]), ("smollm", vec![digits, bytes(true)])];
    for (pattern, name) in CUTS {
        // Every character belongs to a match, so removing what is between the matches keeps the same pieces. Tokenizers that were converted
        // from tiktoken are of the second form.
        for (behavior, invert) in [("Isolated", false), ("Removed", true)] {
            let split =
                json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": behavior, "invert": invert });
            known.push((name, vec![split, bytes(false)]));
        }
    }
    known
}

/// Returns the steps of the tokenizer `json` before its merges. Adds a note about steps that llama.cpp lacks, if they change few texts.
///
/// # Errors
/// Which step llama.cpp does not have.
fn steps(json: &Json, notes: &mut Vec<String>) -> Result<Steps, String> {
    let is_form = |step: &Json| step["type"].as_str().is_some_and(|name| FORMS.contains(&name));
    let (forms, normalizers): (Vec<Json>, Vec<Json>) = parts(&json["normalizer"]).into_iter().partition(is_form);
    let cuts = parts(&json["pre_tokenizer"]);
    let unknown = |what: &str| {
        let message = format!("the {what} of the tokenizer is {}", json[what]);
        excerpt(&message, 300)
    };
    if !forms.is_empty() {
        let forms: Vec<&str> = forms.iter().filter_map(|form| form["type"].as_str()).collect();
        notes.push(format!(
            "llama.cpp does not normalize texts, but the tokenizer does ({}): it gives other ids to texts that this step changes",
            forms.join(", ")
        ));
    }
    if cuts.iter().any(|cut| cut["type"] == "ByteLevel") {
        let known = byte_levels().into_iter().find(|(_, steps)| *steps == cuts);
        let (name, _) = known.ok_or_else(|| unknown("pre_tokenizer"))?;
        return if normalizers.is_empty() { Ok(Steps::Bytes(name)) } else { Err(unknown("normalizer")) };
    }
    // SentencePiece's spaces come from the normalizer or from the pre-tokenizer.
    let prefix = json!({ "type": "Prepend", "prepend": SPACE });
    let spaces = json!({ "type": "Replace", "pattern": { "String": " " }, "content": SPACE });
    // Gemma's pre-tokenizer splits at spaces when no space is left.
    let idle =
        json!({ "type": "Split", "pattern": { "String": " " }, "behavior": "MergedWithPrevious", "invert": false });
    if !normalizers.is_empty() {
        let has_prefix = normalizers == [prefix, spaces.clone()];
        if !has_prefix && normalizers != [spaces] {
            return Err(unknown("normalizer"));
        }
        let is_idle = cuts.iter().all(|cut| *cut == idle);
        return if is_idle { Ok(Steps::Pieces { has_prefix }) } else { Err(unknown("pre_tokenizer")) };
    }
    let [metaspace] = &cuts[..] else { return Err(unknown("pre_tokenizer")) };
    let (scheme, splits) = (metaspace["prepend_scheme"].as_str(), &metaspace["split"]);
    let known = json!({ "type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": splits });
    if *metaspace != known {
        return Err(unknown("pre_tokenizer"));
    }
    if *splits == true
        && let Some(token) = tokens(&json["model"]).find(|token| token.chars().skip(1).any(|c| SPACE.starts_with(c)))
    {
        return Err(format!("the pre-tokenizer cuts texts before spaces, but the token `{token}` has a space inside"));
    }
    let differs = match scheme {
        Some("never") => return Ok(Steps::Pieces { has_prefix: false }),
        Some("always") => "a text that begins with a space",
        _ => "a text that begins with a space, and one behind a special token, as in conversations",
    };
    notes.push(format!(
        "llama.cpp puts a space in front of every text and behind every special token, but the tokenizer does not (`prepend_scheme: {}`): \
         {differs}, gets other ids",
        scheme.unwrap_or_default()
    ));
    Ok(Steps::Pieces { has_prefix: true })
}

/// Returns the tokens of a model, without those that are added to it.
fn tokens(model: &Json) -> impl Iterator<Item = &String> {
    model["vocab"].as_object().into_iter().flat_map(|vocabulary| vocabulary.keys())
}

/// Checks the settings of the merges. `model` is a part of `json`.
///
/// # Errors
/// Which setting llama.cpp does not have.
fn check_model(model: &Json, json: &Json, merges: &[[String; 2]], steps: Steps) -> Result<(), String> {
    for key in ["continuing_subword_prefix", "end_of_word_suffix"] {
        if let Some(mark) = model[key].as_str().filter(|mark| !mark.is_empty()) {
            return Err(format!("the tokenizer marks parts of words with `{mark}` (`{key}`)"));
        }
    }
    if matches!(steps, Steps::Pieces { .. }) && model["byte_fallback"] != true {
        return Err("the tokenizer is BPE without bytes".into());
    }
    // This setting only concerns tokens that no merge makes.
    if (model["ignore_merges"] == true) != (steps == Steps::Bytes(LLAMA_3)) {
        let made: HashSet<String> = merges.iter().map(|pair| pair.concat()).collect();
        let added = json["added_tokens"].as_array().into_iter().flatten();
        let added: HashSet<&str> = added.filter_map(|token| token["content"].as_str()).collect();
        let is_unmade = |token: &&String| {
            let token = token.as_str();
            token.chars().nth(1).is_some() && !made.contains(token) && !added.contains(token) && !is_byte(token)
        };
        if let Some(token) = tokens(model).find(is_unmade) {
            let is_ignored = &model["ignore_merges"];
            return Err(format!("no merge makes the token `{token}`, and `ignore_merges` is {is_ignored}"));
        }
    }
    Ok(())
}

/// Whether `token` spells a byte, such as `<0x0A>`.
fn is_byte(token: &str) -> bool {
    token.len() == 6 && token.starts_with("<0x") && token.ends_with('>')
}

/// Returns the added tokens with flags that llama.cpp ignores, and these flags. A normalized token is searched with SentencePiece's spaces.
fn flagged(json: &Json) -> Vec<String> {
    let has_spaces = parts(&json["normalizer"]).iter().any(|step| step["type"] == "Prepend");
    let added = json["added_tokens"].as_array().into_iter().flatten();
    let described = added.filter_map(|token| {
        let flags = ["lstrip", "rstrip", "single_word", "normalized"].into_iter();
        let flags: Vec<&str> =
            flags.filter(|&flag| token[flag] == true && (flag != "normalized" || has_spaces)).collect();
        (!flags.is_empty()).then(|| format!("`{}`: {}", token["content"].as_str().unwrap_or_default(), flags.join(" ")))
    });
    described.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(normalizer: Json, pre_tokenizer: Json) -> (Result<Steps, String>, Vec<String>) {
        let mut notes = Vec::new();
        let vocab = json!({ "a": 0, "b": 1, "\u{2581}": 2, "\u{2581}a": 3 });
        let json = json!({ "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "model": { "vocab": vocab } });
        let steps = steps(&json, &mut notes);
        (steps, notes)
    }

    fn sequence(key: &str, steps: &[&Json]) -> Json {
        json!({ "type": "Sequence", key: steps })
    }

    fn split(pattern: &str, behavior: &str) -> Json {
        json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": behavior, "invert": false })
    }

    fn bytes(add_prefix_space: bool, use_regex: bool) -> Json {
        json!({ "type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": true, "use_regex": use_regex })
    }

    #[test]
    fn pre_tokenizers_of_bytes_are_known_by_their_names() {
        let cuts = |steps: &[&Json]| sequence("pretokenizers", steps);
        let digits = json!({ "type": "Digits", "individual_digits": true });
        let name = |pre_tokenizer: Json| match found(Json::Null, pre_tokenizer) {
            (Ok(Steps::Bytes(name)), notes) if notes.is_empty() => Some(name),
            _ => None,
        };
        assert_eq!(name(bytes(false, true)), Some("gpt-2"));
        assert_eq!(name(cuts(&[&digits, &bytes(false, true)])), Some("smollm"));
        for (pattern, known) in CUTS {
            assert_eq!(name(cuts(&[&split(pattern, "Isolated"), &bytes(false, false)])), Some(known));
            let mut matches = split(pattern, "Removed");
            matches["invert"] = true.into();
            assert_eq!(name(cuts(&[&matches, &bytes(false, false)])), Some(known));
        }
        // A space in front, another pattern, no pattern, one that splits twice, and one that removes what it finds.
        let known = split(CUTS[0].0, "Isolated");
        for pre_tokenizer in [
            bytes(true, true),
            cuts(&[&digits, &bytes(true, true)]),
            cuts(&[&known, &bytes(true, false)]),
            cuts(&[&split("a+", "Isolated"), &bytes(false, false)]),
            bytes(false, false),
            cuts(&[&known, &bytes(false, true)]),
            cuts(&[&split(CUTS[0].0, "Removed"), &bytes(false, false)]),
        ] {
            let (refused, _) = found(Json::Null, pre_tokenizer.clone());
            let message = refused.expect_err("llama.cpp lacks it");
            assert!(message.starts_with("the pre_tokenizer of the tokenizer is {"), "{message}");
        }
        let (refused, _) = found(json!({ "type": "Lowercase" }), bytes(false, true));
        assert_eq!(refused, Err("the normalizer of the tokenizer is {\"type\":\"Lowercase\"}".into()));
        let (normalized, notes) = found(json!({ "type": "NFC" }), bytes(false, true));
        assert_eq!((normalized, notes.len()), (Ok(Steps::Bytes("gpt-2")), 1));
    }

    /// The differences that are refused or noted were seen between llama.cpp 11549 and transformers 5.23.
    #[test]
    fn spaces_of_sentencepiece_are_put_in_one_of_two_places() {
        let prefix = json!({ "type": "Prepend", "prepend": SPACE });
        let replace = |from: &str| json!({ "type": "Replace", "pattern": { "String": from }, "content": SPACE });
        let steps = |steps: &[&Json]| sequence("normalizers", steps);
        let metaspace = |scheme: &str, split: bool| json!({ "type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": split });
        let gemma =
            json!({ "type": "Split", "pattern": { "String": " " }, "behavior": "MergedWithPrevious", "invert": false });
        let pieces = |has_prefix: bool| Ok(Steps::Pieces { has_prefix });
        let llama = steps(&[&prefix, &replace(" ")]);
        for (normalizer, pre_tokenizer, expected, note) in [
            (llama.clone(), Json::Null, pieces(true), None),
            (replace(" "), gemma, pieces(false), None),
            (Json::Null, metaspace("never", false), pieces(false), None),
            (Json::Null, metaspace("always", true), pieces(true), Some("a text that begins with a space, gets")),
            (Json::Null, metaspace("first", false), pieces(true), Some("and one behind a special token")),
        ] {
            let (steps, notes) = found(normalizer, pre_tokenizer);
            assert_eq!((steps, notes.len()), (expected, usize::from(note.is_some())));
            assert!(notes.iter().all(|found| found.contains(note.unwrap_or_default())), "{notes:?}");
        }
        let punctuation = json!({ "type": "Punctuation", "behavior": "Isolated" });
        for (normalizer, pre_tokenizer, what) in [
            (Json::Null, Json::Null, "pre_tokenizer"),
            (prefix.clone(), Json::Null, "normalizer"),
            (replace("a"), Json::Null, "normalizer"),
            (steps(&[&prefix, &replace(" "), &replace("a")]), Json::Null, "normalizer"),
            (llama.clone(), punctuation.clone(), "pre_tokenizer"),
            (llama, metaspace("first", false), "pre_tokenizer"),
            (Json::Null, punctuation, "pre_tokenizer"),
        ] {
            let (refused, _) = found(normalizer, pre_tokenizer);
            let message = refused.expect_err("llama.cpp lacks it");
            assert!(message.starts_with(&format!("the {what} of the tokenizer is ")), "{message}");
        }
    }

    #[test]
    fn words_are_cut_before_spaces_only_if_no_token_has_one_inside() {
        let metaspace = json!({ "type": "Metaspace", "replacement": SPACE, "prepend_scheme": "never", "split": true });
        let mut json =
            json!({ "normalizer": null, "pre_tokenizer": metaspace, "model": { "vocab": { "\u{2581}a": 0 } } });
        assert_eq!(steps(&json, &mut Vec::new()), Ok(Steps::Pieces { has_prefix: false }));
        json["model"]["vocab"] = json!({ "\u{2581}\u{2581}": 0 });
        let message = steps(&json, &mut Vec::new()).expect_err("llama.cpp does not cut");
        assert!(message.ends_with("but the token `\u{2581}\u{2581}` has a space inside"), "{message}");
    }

    #[test]
    fn settings_of_merges_are_those_of_llama_cpp() {
        let check = |model: Json, steps: Steps| {
            let json = json!({ "model": model, "added_tokens": [{ "content": "<s>" }] });
            let merges = merges(&json!({ "merges": ["a b"] })).expect("a list");
            check_model(&json["model"], &json, &merges, steps)
        };
        let model = |ignores: bool, token: &str| json!({ "vocab": { "a": 0, "ab": 1, "<s>": 2, token: 3 }, "ignore_merges": ignores });
        let [llama, gpt2] = [LLAMA_3, "gpt-2"].map(Steps::Bytes);
        for (ignores, steps) in [(true, llama), (false, gpt2), (true, gpt2), (false, llama)] {
            assert_eq!(check(model(ignores, "b"), steps), Ok(()));
            let unmade = check(model(ignores, "abc"), steps);
            assert_eq!(unmade.is_ok(), ignores == (steps == llama), "{unmade:?}");
        }
        let ends = check(json!({ "end_of_word_suffix": "</w>" }), gpt2);
        assert_eq!(ends, Err("the tokenizer marks parts of words with `</w>` (`end_of_word_suffix`)".into()));
        let without_bytes = check(json!({ "byte_fallback": false }), Steps::Pieces { has_prefix: true });
        assert_eq!(without_bytes, Err("the tokenizer is BPE without bytes".into()));
    }

    #[test]
    fn the_first_merge_that_makes_a_token_gives_its_score() {
        let merges = merges(&json!({ "merges": ["a b", ["b", "c"], ["a", "bc"], "ab c"] })).expect("two forms");
        let tokens = ["a", "ab", "bc", "abc"].map(String::from);
        assert_eq!(scores(&tokens, &merges), [-1e9, 0.0, -1.0, -2.0]);
    }

    #[test]
    fn flags_of_added_tokens_are_named() {
        let token = |content: &str, flag: &str| json!({ "content": content, flag: true });
        let mut json = json!({
            "added_tokens": [token("<a>", "lstrip"), token("<b>", "special"), token("new", "single_word"), token("<c>", "normalized")],
            "normalizer": null,
        });
        assert_eq!(flagged(&json), ["`<a>`: lstrip", "`new`: single_word"]);
        json["normalizer"] = json!({ "type": "Prepend", "prepend": SPACE });
        assert_eq!(flagged(&json)[2..], ["`<c>`: normalized"]);
    }
}
