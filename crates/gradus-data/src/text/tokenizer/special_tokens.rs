//! Special tokens, and tokens that are stored next to the vocabulary.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use serde_json::Value;
use tokenizers::AddedToken;

use super::read::read_json;
use crate::text::tokenizer_bounds;
use crate::{Error, Result};

#[derive(Debug, Clone, Default)]
pub(super) struct Special {
    pub bos: Option<String>,
    pub eos: Option<String>,
    pub pad: Option<String>,
    pub unk: Option<String>,
    /// All named special tokens, as chat templates see them (`bos_token`, …).
    pub named: Vec<(String, String)>,
    /// The named special tokens and further ones, with the flags that the files state.
    tokens: Vec<AddedToken>,
}

impl Special {
    /// Reads the special tokens from the files. `usual` supplies those that neither file mentions.
    pub fn read(config: &Value, map: &Value, usual: &dyn Fn(&str) -> Option<&'static str>) -> Self {
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
        let extra = extra_tokens(config, if lists { &Value::Null } else { map });
        let tokens = found.into_iter().map(|(_, token)| token).chain(extra).collect();
        Self { bos, eos, pad, unk, named, tokens }
    }
}

/// Returns the special tokens besides the seven named ones, in the order in which transformers 5.23 adds them.
///
/// `extra_special_tokens` is an object of named tokens or a list. Older files call the list `additional_special_tokens`. In `config`, it
/// counts if the newer key is absent or empty. Else it counts if the newer key is absent from both files or gives an object last. Then the
/// older list of `map` wins.
fn extra_tokens(config: &Value, map: &Value) -> Vec<AddedToken> {
    const NEW: &str = "extra_special_tokens";
    const OLD: &str = "additional_special_tokens";
    let is_empty = |value: &Value| match value {
        Value::Array(list) => list.is_empty(),
        Value::Object(named) => named.is_empty(),
        other => other.is_null(),
    };
    let mut older = config.get(OLD);
    let of_config = config.get(NEW).filter(|value| older.is_none() || !is_empty(value)).or_else(|| older.take());
    // An empty list is there, unlike `None`, so the older list does not count.
    let (mut named, mut listed) = (Vec::new(), None);
    for value in [of_config, map.get(NEW)].into_iter().flatten() {
        match value {
            Value::Object(tokens) => {
                named.extend(special_tokens(tokens.values()));
                listed = None;
            }
            Value::Array(tokens) => listed.get_or_insert_with(Vec::new).extend(special_tokens(tokens.iter())),
            _ => listed = Some(Vec::new()),
        }
    }
    let older = map.get(OLD).or(older).and_then(Value::as_array);
    let listed = listed.unwrap_or_else(|| older.map(|list| special_tokens(list.iter())).unwrap_or_default());
    [named, listed].concat()
}

fn special_tokens<'v>(values: impl Iterator<Item = &'v Value>) -> Vec<AddedToken> {
    values.filter_map(|token| added_token(token, true)).collect()
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
pub(super) fn missing_special_tokens(
    inner: &tokenizers::Tokenizer,
    special: &Special,
    rows: Option<u64>,
) -> Vec<AddedToken> {
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
pub(super) fn token_text(value: Option<&Value>) -> Option<String> {
    match value? {
        Value::String(text) => Some(text.clone()),
        Value::Object(token) => token.get("content")?.as_str().map(str::to_owned),
        _ => None,
    }
}

/// Adds the tokens that are stored next to the vocabulary: in `tokenizer_config.json` as `added_tokens_decoder` (id to token), or
/// else in `added_tokens.json` (token to id).
///
/// A token that `tokenizer.json` already has keeps its id there. Without that file (`is_old`), and for all other tokens, the id must be
/// the next free one. A token at or beyond `rows` is left out.
pub(super) fn add_tokens(
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
