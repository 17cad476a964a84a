//! Tokenizer of ByT5. It has no file: every byte of a text is an id.
//!
//! Xue et al. 2022, <https://arxiv.org/abs/2105.13626>. Ids 0 to 2 are `<pad>`, `</s>` and `<unk>`. The 256 bytes follow, then
//! `<extra_id_0>` and so on. Checked against `transformers`' `ByT5Tokenizer`.

use serde_json::{Map, Value, json};

/// Tokens before that of byte 0.
const SPECIAL: [&str; 3] = ["<pad>", "</s>", "<unk>"];
/// Default number of `<extra_id_…>` tokens.
const EXTRA: u64 = 125;
/// Limit on their number, above that of any model.
const MOST_EXTRA: u64 = 10_000;

/// Builds the equivalent `tokenizer.json`. `config` is `tokenizer_config.json`.
pub(super) fn json(config: &Value) -> Value {
    let extra = config.get("extra_ids").and_then(Value::as_u64).unwrap_or(EXTRA).min(MOST_EXTRA);
    let extra: Vec<String> = (0..extra).map(|id| format!("<extra_id_{id}>")).collect();
    let bytes = characters();
    let tokens = SPECIAL.map(str::to_owned).into_iter().chain(bytes.iter().map(char::to_string)).chain(extra.clone());
    let vocabulary: Map<String, Value> = tokens.enumerate().map(|(id, token)| (token, id.into())).collect();
    let added = |token: &str| {
        let flags =
            json!({ "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true });
        let Value::Object(mut entry) = flags else { unreachable!("an object literal") };
        entry.insert("id".into(), vocabulary[token].clone());
        entry.insert("content".into(), token.into());
        Value::Object(entry)
    };
    let added: Vec<Value> = SPECIAL.into_iter().chain(extra.iter().map(String::as_str)).map(added).collect();
    let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false });
    let text = |id: &str| json!({ "Sequence": { "id": id, "type_id": 0 } });
    let end = json!({ "SpecialToken": { "id": SPECIAL[1], "type_id": 0 } });
    json!({
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": bytes,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [text("A"), end],
            "pair": [text("A"), end, text("B"), end],
            "special_tokens": { (SPECIAL[1]): { "id": SPECIAL[1], "ids": [1], "tokens": [SPECIAL[1]] } },
        },
        "decoder": bytes,
        "model": { "type": "BPE", "vocab": vocabulary, "merges": [] },
    })
}

/// Returns the character for each byte in byte-level vocabularies: itself if it is visible, else a character from 256 on.
pub(super) fn characters() -> Vec<char> {
    let is_seen = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut hidden = 0;
    let mut of = |byte: u8| {
        if is_seen(byte) {
            return char::from(byte);
        }
        hidden += 1;
        char::from_u32(255 + hidden).expect("a character below 512")
    };
    (0..=u8::MAX).map(&mut of).collect()
}
