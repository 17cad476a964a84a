//! Files of a model of the review language: a tokenizer with one token per word, and the configuration of a small Llama.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::words::all;
use crate::error::{Error, Result};

/// Padding token, id 0.
pub const PAD: &str = "<pad>";
/// Token at the beginning of every text, id 1.
pub const BOS: &str = "<bos>";
/// Token at the end of a completion, id 2.
pub const EOS: &str = "<eos>";
/// Token for words outside the language, id 3.
pub const UNK: &str = "<unk>";

/// Maximum length of a text in tokens for the model.
const MAX_LENGTH: usize = 64;

/// Returns the vocabulary in the order of its ids: special tokens, then words.
pub fn vocabulary() -> Vec<&'static str> {
    [PAD, BOS, EOS, UNK].into_iter().chain(all()).collect()
}

/// Writes `tokenizer.json` and `tokenizer_config.json`.
///
/// # Errors
/// If a file cannot be written.
pub fn write_tokenizer(dir: &Path) -> Result<()> {
    write(dir, "tokenizer.json", &tokenizer())?;
    let config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "unk_token": UNK,
        "clean_up_tokenization_spaces": false,
        "model_max_length": MAX_LENGTH,
        "padding_side": "right",
    });
    write(dir, "tokenizer_config.json", &config)
}

/// Returns the configuration of a Llama with two layers, small enough to train in a minute on a laptop.
pub fn model_config() -> Map<String, Value> {
    let config = json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary().len(),
        "hidden_size": 96,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 24,
        "hidden_act": "silu",
        "max_position_embeddings": MAX_LENGTH,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "initializer_range": 0.02,
        "attention_bias": false,
        "mlp_bias": false,
        "attention_dropout": 0.0,
        "tie_word_embeddings": true,
        "use_cache": true,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "dtype": "float32",
        "torch_dtype": "float32",
    });
    let Value::Object(config) = config else { unreachable!("written as an object") };
    config
}

/// Returns the tokenizer in the format of the `tokenizers` library: words and punctuation, with `<bos>` in front.
fn tokenizer() -> Value {
    let words = vocabulary();
    let special = [PAD, BOS, EOS, UNK].iter().enumerate().map(|(id, token)| {
        json!({
            "id": id, "content": token, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false, "special": true,
        })
    });
    let vocab: Map<String, Value> = words.iter().enumerate().map(|(id, word)| (word.to_string(), id.into())).collect();
    let [bos, first, second] = [
        json!({ "SpecialToken": { "id": BOS, "type_id": 0 } }),
        json!({ "Sequence": { "id": "A", "type_id": 0 } }),
        json!({ "Sequence": { "id": "B", "type_id": 0 } }),
    ];
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": special.collect::<Vec<_>>(),
        "normalizer": null,
        // Splits off punctuation, so that `kettle :` and `kettle:` are equal, also at the boundary of prompt and completion.
        "pre_tokenizer": { "type": "Whitespace" },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [bos, first],
            "pair": [bos, first, second],
            "special_tokens": { BOS: { "id": BOS, "ids": [1], "tokens": [BOS] } },
        },
        "decoder": null,
        "model": { "type": "WordLevel", "vocab": vocab, "unk_token": UNK },
    })
}

fn write(dir: &Path, name: &str, value: &Value) -> Result<()> {
    let path = dir.join(name);
    let text = serde_json::to_string_pretty(value).expect("JSON values can be written") + "\n";
    std::fs::write(&path, text).map_err(|source| Error::io(&path, source))
}

#[cfg(test)]
mod tests {
    use super::super::grammar::{prompts, review};
    use super::super::words::TOPICS;
    use super::*;
    use crate::rng::{Purpose, Seed};

    fn loaded() -> tokenizers::Tokenizer {
        let dir = tempfile::tempdir().expect("a temporary directory");
        write_tokenizer(dir.path()).expect("writable");
        tokenizers::Tokenizer::from_file(dir.path().join("tokenizer.json")).expect("a tokenizer")
    }

    #[test]
    fn every_text_of_the_language_survives() {
        let tokenizer = loaded();
        let reviews = (0..200).map(|i| review(&TOPICS[i % 12], &mut Seed(1).stream(Purpose::Demo, 9, i as u64)));
        for text in reviews.chain(prompts().into_iter().map(|prompt| prompt.text)) {
            let ids = tokenizer.encode(text.as_str(), true).expect("encodable").get_ids().to_vec();
            assert_eq!(ids[0], 1);
            assert!(!ids.contains(&3), "an unknown word in: {text}");
            assert_eq!(ids.len(), text.split_whitespace().count() + 1);
            assert_eq!(tokenizer.decode(&ids, true).expect("decodable"), text);
        }
    }

    #[test]
    fn joined_texts_have_the_tokens_of_their_parts() {
        let tokenizer = loaded();
        let ids = |text: &str, special| tokenizer.encode(text, special).expect("encodable").get_ids().to_vec();
        let prompt = ids("review of the red kettle :", true);
        for completion in [" it is good .<eos>", "it is good .<eos>"] {
            let together = ids(&format!("review of the red kettle :{completion}"), true);
            assert_eq!(together, [prompt.clone(), ids(completion, false)].concat());
            assert_eq!(together.last(), Some(&2));
        }
    }

    #[test]
    fn the_model_fits_the_vocabulary() {
        let config = model_config();
        assert_eq!(config["vocab_size"], loaded().get_vocab_size(true));
        assert_eq!(config["head_dim"].as_u64().map(|d| d * 4), config["hidden_size"].as_u64());
    }
}
