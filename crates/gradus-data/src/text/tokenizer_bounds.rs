//! Limits on how much `tokenizer.json` may enlarge a text. They are checked before the library reads the file.
//!
//! Texts are encoded in this process, for speed. The library accepts any number of steps that each make a text longer, pieces of
//! any length, and unchecked tables. Here every step gets the maximum factor by which it can lengthen a text, and the product is
//! limited. Everything else that costs time or memory is limited, too.
//!
//! Steps are recognized by their keys, not by their names, because older files omit the names.

use std::collections::HashSet;
use std::fmt;

use base64::Engine as _;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Maximum factor by which a text may grow before it is cut into pieces, or after ids have become text. Known tokenizers stay below
/// 70.
const GROWTH: f64 = 256.0;

/// Maximum number of steps of each kind. Known tokenizers have ten.
const STEPS: usize = 64;

/// Maximum size of a piece of any vocabulary, in bytes. Known pieces have some hundred.
pub(super) const PIECE_BYTES: usize = 4096;

/// Maximum size of a piece of a Unigram vocabulary, in bytes. At every byte of a text, the library visits and copies all pieces
/// that begin there. SentencePiece makes pieces of 16 characters.
const UNIGRAM_BYTES: usize = 256;

/// Maximum size in bytes of a prefix, a suffix, or the replacement of an unknown piece.
const AFFIX_BYTES: usize = 256;

/// Maximum number of characters in a word for WordPiece, whose time grows with the square. Known tokenizers have 100.
const WORD_CHARACTERS: u64 = 1000;

/// Maximum number of tokens around a text, and of copies of a text.
const AROUND: usize = 64;
const COPIES: f64 = 16.0;

/// Maximum number of ids. No embedding has as many rows.
pub(super) const IDS: usize = 1 << 24;

/// Rejects a `tokenizer.json` that can make a large output from a small input.
///
/// # Errors
/// The value that is too large and its limit, or that the file is not a tokenizer.
pub(super) fn check(bytes: &[u8]) -> Result<(), String> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let file = Keys(File::default()).deserialize(&mut json).map_err(|error| format!("not a tokenizer: {error}"))?;
    let text = growth(&file.normalizer, &in_text)? * growth(&file.pre_tokenizer, &in_text)?;
    bounded("the normalizer and the pre-tokenizer make a text", text)?;
    bounded("the decoder makes a text", growth(&file.decoder, &in_decoder)?)?;
    let copies = growth(&file.post_processor, &in_post_processor)?;
    if copies > COPIES {
        return Err(format!("the post-processor copies a text {copies} times, but at most {COPIES} times is allowed"));
    }
    check_added(&file.added_tokens)?;
    check_model(&file.model)
}

fn bounded(what: &str, growth: f64) -> Result<(), String> {
    match growth > GROWTH {
        true => Err(format!("{what} up to {growth:.0} times as long, but at most {GROWTH} times is allowed")),
        false => Ok(()),
    }
}

fn at_most(what: &str, found: usize, most: usize) -> Result<(), String> {
    if found > most { Err(format!("{what} has {found} bytes, but at most {most} are allowed")) } else { Ok(()) }
}

/// Growth factor of a single step, or why the step is rejected.
type Factor<'f> = &'f dyn Fn(&Map<String, Value>) -> Result<f64, String>;

/// Multiplies the factors of a step and all steps in it.
fn growth(step: &[Value], factor: Factor<'_>) -> Result<f64, String> {
    let (mut product, mut steps) = (1.0, 0);
    let mut waiting: Vec<&Value> = step.iter().collect();
    while let Some(value) = waiting.pop() {
        match value {
            Value::Array(items) => waiting.extend(items),
            Value::Object(map) => {
                steps += 1;
                product *= factor(map)?;
                waiting.extend(map.values().filter(|value| value.is_array() || value.is_object()));
            }
            _ => {}
        }
    }
    // A pattern is an object within its step.
    match steps > 2 * STEPS {
        true => Err(format!("the tokenizer has more than {STEPS} steps of one kind")),
        false => Ok(product),
    }
}

/// Factor of a normalizer or a pre-tokenizer. They run on each part between added tokens, which may be one byte. So text that is
/// put in front of a part counts for each byte.
fn in_text(step: &Map<String, Value>) -> Result<f64, String> {
    if let Some(charsmap) = step.get("precompiled_charsmap").and_then(Value::as_str) {
        return charsmap_growth(charsmap);
    }
    if let Some(growth) = replacement_growth(step) {
        return Ok(growth);
    }
    if let Some(prepended) = step.get("prepend").and_then(Value::as_str) {
        return Ok(1.0 + prepended.len() as f64);
    }
    if let Some(space) = step.get("replacement").and_then(Value::as_str) {
        return Ok(1.0 + space.len() as f64);
    }
    // Every byte becomes a character of up to two bytes, possibly with a space in front.
    if step.contains_key("trim_offsets") || step.get("type").is_some_and(|kind| kind == "ByteLevel") {
        return Ok(4.0);
    }
    // Chinese characters get spaces around them.
    Ok(if step.contains_key("handle_chinese_chars") { 2.0 } else { 1.0 })
}

/// Factor of a decoder. A step that is not a replacement may still add a space to each byte.
fn in_decoder(step: &Map<String, Value>) -> Result<f64, String> {
    let is_frame = step.contains_key("decoders") || ["String", "Regex"].iter().any(|key| step.contains_key(*key));
    let shrinks = ["ByteFallback", "Fuse", "Strip", "ByteLevel", "Metaspace"];
    let shrinks = step.get("type").and_then(Value::as_str).is_some_and(|kind| shrinks.contains(&kind));
    Ok(replacement_growth(step).unwrap_or(if is_frame || shrinks { 1.0 } else { 2.0 }))
}

/// Factor of a post-processor: the number of copies of the text.
fn in_post_processor(step: &Map<String, Value>) -> Result<f64, String> {
    let lists = step.values().filter_map(Value::as_array).map(Vec::len);
    if let Some(length) = lists.max().filter(|length| *length > AROUND) {
        return Err(format!("the post-processor has a list of {length} parts, but at most {AROUND} are allowed"));
    }
    let copies = |key: &str| {
        let parts = step.get(key).and_then(Value::as_array).into_iter().flatten();
        parts.filter(|part| part.get("Sequence").is_some()).count()
    };
    Ok(copies("single").max(copies("pair")).max(1) as f64)
}

/// Factor of a step that replaces a pattern by a text.
fn replacement_growth(step: &Map<String, Value>) -> Option<f64> {
    let content = step.get("content").and_then(Value::as_str)?.len() as f64;
    let shortest = match step.get("pattern")? {
        Value::String(text) => text.len(),
        Value::Object(pattern) => match (pattern.get("String"), pattern.get("Regex")) {
            (Some(Value::String(text)), None) => text.len(),
            // A pattern that this parser does not understand may match the empty text at every position.
            (None, Some(Value::String(regex))) => {
                regex_syntax::parse(regex).ok().and_then(|parsed| parsed.properties().minimum_len()).unwrap_or(0)
            }
            _ => 0,
        },
        _ => 0,
    };
    Some(if shortest == 0 { 1.0 + content } else { (content / shortest as f64).max(1.0) })
}

/// Returns the maximum number of bytes that a table of SentencePiece makes of one byte.
///
/// The table is a double array of `u32` over the bytes to replace, preceded by its length in bytes. The replacements follow, each
/// ending with a zero byte. The library queries it with graphemes of up to five bytes.
///
/// # Errors
/// If the library would read beyond the table.
fn charsmap_growth(charsmap: &str) -> Result<f64, String> {
    const LONGEST: usize = 5;
    let broken = |what: &str| format!("the table `precompiled_charsmap` is broken: {what}");
    let bytes =
        base64::engine::general_purpose::STANDARD.decode(charsmap).map_err(|error| broken(&error.to_string()))?;
    let (length, rest) = bytes.split_first_chunk::<4>().ok_or_else(|| broken("it has no length"))?;
    let length = u32::from_le_bytes(*length) as usize / 4 * 4;
    let (array, texts) = rest
        .split_at_checked(length)
        .ok_or_else(|| broken(&format!("it declares {length} bytes, but {} follow", rest.len())))?;
    let units: Vec<u32> =
        array.chunks_exact(4).map(|unit| u32::from_le_bytes(unit.try_into().expect("four bytes"))).collect();
    let texts = std::str::from_utf8(texts).map_err(|_| broken("its replacements are not UTF-8"))?;
    let unit = |at: usize| units.get(at).copied().ok_or_else(|| broken("it points beyond its end"));
    let offset = |unit: u32| ((unit >> 10) << ((unit & (1 << 9)) >> 6)) as usize;

    let mut growth: f64 = 1.0;
    let mut level = vec![offset(unit(0)?)];
    let mut seen: HashSet<usize> = level.iter().copied().collect();
    for bytes in 1..=LONGEST {
        let mut next = Vec::new();
        for node in level {
            for label in 1..=255_u32 {
                let at = node ^ label as usize;
                let child = unit(at)?;
                // A leaf has the highest bit set and therefore no label.
                if child & ((1 << 31) | 0xff) != label {
                    continue;
                }
                let node = at ^ offset(child);
                let leaf = unit(node)?;
                if (child >> 8) & 1 == 1 {
                    let start = (leaf & ((1 << 31) - 1)) as usize;
                    let text = texts.get(start..).ok_or_else(|| broken("it points beyond its replacements"))?;
                    let length = text.find('\0').unwrap_or(text.len());
                    growth = growth.max(length as f64 / bytes as f64);
                }
                if seen.insert(node) {
                    next.push(node);
                }
            }
        }
        level = next;
    }
    Ok(growth)
}

fn check_added(added: &[Value]) -> Result<(), String> {
    let tokens = added.iter().filter_map(Value::as_array).flatten();
    let texts = tokens.filter_map(|token| token.get("content")?.as_str());
    match texts.map(str::len).max() {
        Some(longest) => at_most("an added token", longest, PIECE_BYTES),
        None => Ok(()),
    }
}

fn check_model(model: &Model) -> Result<(), String> {
    if model.is_unigram {
        at_most("a piece of the Unigram vocabulary", model.longest, UNIGRAM_BYTES)?;
    }
    at_most("a piece of the vocabulary", model.longest, PIECE_BYTES)?;
    for (key, value) in &model.facts {
        let length = value.as_str().map_or(0, str::len);
        at_most(&format!("`{key}` of the tokenizer's model"), length, AFFIX_BYTES)?;
        if let Some(most) = value.as_u64().filter(|most| key == "max_input_chars_per_word" && *most > WORD_CHARACTERS) {
            return Err(format!("`{key}` is {most}, but at most {WORD_CHARACTERS} is allowed"));
        }
    }
    Ok(())
}

/// The checked parts of the file. A duplicate key counts twice, because the library decides which of the two it uses.
#[derive(Default)]
struct File {
    normalizer: Vec<Value>,
    pre_tokenizer: Vec<Value>,
    post_processor: Vec<Value>,
    decoder: Vec<Value>,
    added_tokens: Vec<Value>,
    model: Model,
}

/// The checked parts of the model. The vocabulary is measured but not stored.
#[derive(Default)]
struct Model {
    /// Unigram's vocabulary is a list; all others are mappings.
    is_unigram: bool,
    longest: usize,
    facts: Vec<(String, Value)>,
}

/// Reads a mapping key by key.
struct Keys<T>(T);

/// Reader of a mapping's values by key.
trait Read {
    fn read<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error>;
}

impl Read for File {
    fn read<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        let list = match key {
            "normalizer" => &mut self.normalizer,
            "pre_tokenizer" => &mut self.pre_tokenizer,
            "post_processor" => &mut self.post_processor,
            "decoder" => &mut self.decoder,
            "added_tokens" => &mut self.added_tokens,
            "model" => {
                self.model = map.next_value_seed(Keys(std::mem::take(&mut self.model)))?;
                return Ok(());
            }
            _ => return map.next_value::<IgnoredAny>().map(drop),
        };
        list.push(map.next_value()?);
        Ok(())
    }
}

impl Read for Model {
    fn read<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        match key {
            "vocab" => map.next_value_seed(Pieces(self)),
            "unk_token" | "continuing_subword_prefix" | "end_of_word_suffix" | "max_input_chars_per_word" => {
                self.facts.push((key.to_owned(), map.next_value()?));
                Ok(())
            }
            _ => map.next_value::<IgnoredAny>().map(drop),
        }
    }
}

impl<'de, T: Read> DeserializeSeed<'de> for Keys<T> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, T: Read> Visitor<'de> for Keys<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a mapping")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<T, A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            self.0.read(&key, &mut map)?;
        }
        Ok(self.0)
    }
}

/// Measures a vocabulary: `{piece: id}` or `[[piece, score]]`.
struct Pieces<'m>(&'m mut Model);

impl<'de> DeserializeSeed<'de> for Pieces<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Pieces<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a vocabulary")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some((piece, _)) = map.next_entry::<String, IgnoredAny>()? {
            self.0.longest = self.0.longest.max(piece.len());
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        self.0.is_unigram = true;
        while let Some((piece, _)) = list.next_element::<(String, f64)>()? {
            self.0.longest = self.0.longest.max(piece.len());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn text_growth(step: Value) -> Result<f64, String> {
        growth(&[step], &in_text)
    }

    #[test]
    fn steps_multiply() {
        let replace =
            |pattern: Value, content: &str| json!({ "type": "Replace", "pattern": pattern, "content": content });
        assert_eq!(text_growth(replace(json!({ "String": "a" }), &"a".repeat(200))), Ok(200.0));
        assert_eq!(
            text_growth(replace(json!({ "String": "ab" }), "c")),
            Ok(1.0),
            "what makes it shorter counts as nothing"
        );
        assert_eq!(text_growth(replace(json!({ "Regex": " {2,}" }), "▁")), Ok(1.5));
        assert_eq!(text_growth(replace(json!({ "Regex": "x*" }), "yy")), Ok(3.0), "it matches nothing, everywhere");
        assert_eq!(text_growth(replace(json!({ "Regex": "(?=a)" }), "yy")), Ok(3.0), "an unknown pattern may too");
        let llama = json!({ "type": "Sequence", "normalizers": [
            { "type": "Prepend", "prepend": "▁" }, replace(json!({ "String": " " }), "▁")
        ] });
        assert_eq!(text_growth(llama), Ok(12.0));
        let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true });
        assert_eq!(text_growth(json!({ "type": "Sequence", "pretokenizers": [bytes.clone(), bytes] })), Ok(16.0));
        let many = vec![json!({ "type": "NFC" }); 200];
        assert!(
            text_growth(json!({ "type": "Sequence", "normalizers": many }))
                .is_err_and(|what| what.contains("64 steps"))
        );
    }

    /// Builds a table that replaces `a` by `text`.
    fn table(text: &str) -> Vec<u8> {
        // The root's children are at 0 ^ label; the leaf of `a` is at 256.
        let mut units = vec![0_u32; 512];
        let at = usize::from(b'a');
        units[at] = u32::from(b'a') | 1 << 8 | u32::try_from(at ^ 256).expect("small") << 10;
        units[256] = 1 << 31;
        let array: Vec<u8> = units.iter().flat_map(|unit| unit.to_le_bytes()).collect();
        [&u32::try_from(array.len()).expect("small").to_le_bytes()[..], &array, text.as_bytes(), &[0]].concat()
    }

    #[test]
    fn tables_are_walked() {
        let growth = |bytes: &[u8]| charsmap_growth(&base64::engine::general_purpose::STANDARD.encode(bytes));
        assert_eq!(growth(&table("bcd")), Ok(3.0));
        assert_eq!(growth(&table("")), Ok(1.0));
        let mut beyond = table("bcd");
        beyond[4 + 4 * 256] = 200;
        assert!(growth(&beyond).is_err_and(|what| what.contains("beyond its replacements")));
        assert!(growth(&table("bcd")[..100]).is_err_and(|what| what.contains("2048 bytes, but 96 follow")));
        assert!(charsmap_growth("/////w==").is_err_and(|what| what.contains("4294967292 bytes, but 0 follow")));
        assert!(charsmap_growth("").is_err() && charsmap_growth("?").is_err());
        let short = [&4_u32.to_le_bytes()[..], &[0; 4]].concat();
        assert!(growth(&short).is_err_and(|what| what.contains("beyond its end")));
    }
}
