//! Tokenizer directories that cannot be used, and what is read from those that can.

use std::path::Path;

use gradus::text::{ChatTemplate, Tokenizer};

use super::Folder;

fn fixture() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/rows/tokenizer")
}

fn error(folder: &Folder) -> String {
    let error = Tokenizer::from_dir(&folder.path("m")).expect_err("an unusable tokenizer").to_string();
    error.replace(&folder.path("").display().to_string(), "")
}

#[test]
fn missing_and_corrupt_files() {
    let folder = Folder::new();
    assert_eq!(error(&folder), "m: no such model directory");
    folder.write("m/config.json", "{}");
    assert_eq!(error(&folder), "m: no tokenizer: neither `tokenizer.json` nor `vocab.json` with `merges.txt`");
    let whole = std::fs::read(fixture().join("tokenizer.json")).unwrap();
    folder.write("m/tokenizer.json", &whole[..whole.len() / 2]);
    let message = error(&folder);
    assert!(message.starts_with("m/tokenizer.json: not a tokenizer: "), "{message}");
    folder.write("m/tokenizer.json", whole);
    folder.write("m/tokenizer_config.json", "{\"eos_token\": ");
    let message = error(&folder);
    assert!(message.starts_with("m/tokenizer_config.json: not valid JSON: "), "{message}");
}

#[test]
fn words_of_roberta_s_kin_have_a_space_before_them() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/encoders/longformer");
    let plain = String::from_utf8(std::fs::read(fixture.join("tokenizer.json")).unwrap()).unwrap();
    let words = ["The", "tea", "</s>", "is</s>it", "", " cup"].map(str::to_owned);
    let read = |tokenizer: &str, config: &str, model: &str| {
        let folder = Folder::new();
        folder.write("m/tokenizer.json", tokenizer);
        folder.write("m/tokenizer_config.json", config);
        folder.write("m/config.json", model);
        let tokenizer = Tokenizer::from_dir(&folder.path("m")).expect("a tokenizer");
        // Texts are read as they are.
        assert_eq!(tokenizer.encode("tea", false).unwrap(), [tokenizer.token_id("tea").unwrap()]);
        tokenizer.encode_words(&words, None).expect("ids")
    };
    // What the tokenizer itself makes of words where its file asks for the space.
    let asked = plain.replace("\"add_prefix_space\":false", "\"add_prefix_space\":true");
    let asked = asked.replace("\"add_prefix_space\": false", "\"add_prefix_space\": true");
    let expected = {
        let folder = Folder::new();
        folder.write("m/tokenizer.json", asked);
        Tokenizer::from_dir(&folder.path("m")).expect("a tokenizer").encode_words(&words, None).expect("ids")
    };
    let other = r#"{"tokenizer_class": "TokenizersBackend"}"#;
    let glued = read(&plain, other, r#"{"model_type": "longformer"}"#);
    assert_ne!(glued.0.ids, expected.0.ids);
    for class in ["LongformerTokenizer", "LongformerTokenizerFast", "RobertaTokenizer"] {
        let config = format!("{{\"tokenizer_class\": \"{class}\", \"add_prefix_space\": false}}");
        assert_eq!(read(&plain, &config, "{}"), expected, "{class}");
    }
    assert_eq!(read(&plain, "{}", r#"{"model_type": "longformer"}"#), expected);
    assert_eq!(read(&plain, "{}", r#"{"model_type": "modernbert"}"#), glued);
    assert_eq!(read(&plain, "{}", "broken"), glued);
}

#[test]
fn special_tokens_are_strings_or_objects() {
    let folder = Folder::new();
    folder.write("m/tokenizer.json", std::fs::read(fixture().join("tokenizer.json")).unwrap());
    folder.write(
        "m/tokenizer_config.json",
        r#"{"eos_token": {"content": "<eos>"}, "pad_token": null, "bos_token": "<bos>"}"#,
    );
    let tokenizer = Tokenizer::from_dir(&folder.path("m")).unwrap();
    assert_eq!((tokenizer.eos_token(), tokenizer.eos_id()), (Some("<eos>"), Some(2)));
    assert_eq!(tokenizer.pad_token(), Some("<eos>"), "pads with eos where there is no pad token");
    assert_eq!(tokenizer.bos_id(), Some(1));
    assert!(tokenizer.is_special(2) && !tokenizer.is_special(282));
    assert!(!tokenizer.appends_eos());
}

#[test]
fn add_eos_token_replaces_the_post_processor() {
    let folder = Folder::new();
    folder.write("m/tokenizer.json", std::fs::read(fixture().join("tokenizer.json")).unwrap());
    let config = r#"{"eos_token": "<eos>", "bos_token": "<bos>", "add_bos_token": true, "add_eos_token": true}"#;
    folder.write("m/tokenizer_config.json", config);
    let tokenizer = Tokenizer::from_dir(&folder.path("m")).unwrap();
    assert_eq!(tokenizer.encode("Tea?", true).unwrap(), [1, 56, 73, 69, 35, 2]);
    assert_eq!(tokenizer.encode("Tea?", false).unwrap(), [56, 73, 69, 35]);
    assert!(tokenizer.appends_eos());
}

#[test]
fn the_template_file_wins_over_the_configuration() {
    let folder = Folder::new();
    folder.write("m/tokenizer.json", std::fs::read(fixture().join("tokenizer.json")).unwrap());
    folder.write("m/tokenizer_config.json", r#"{"chat_template": [{"name": "default", "template": "from the list"}]}"#);
    let directory = folder.path("m");
    let tokenizer = Tokenizer::from_dir(&directory).unwrap();
    let render = || {
        let template = ChatTemplate::from_dir(&directory, &tokenizer).unwrap().expect("a template");
        template.render(&[serde_json::json!({"role": "user", "content": "a"})], &Default::default()).unwrap().text
    };
    assert_eq!(render(), "from the list");
    folder.write("m/chat_template.jinja", "from the file");
    assert_eq!(render(), "from the file");
    folder.write("m/chat_template.jinja", "{% if %}");
    let message = ChatTemplate::from_dir(&directory, &tokenizer).unwrap_err().to_string();
    assert!(message.contains("chat_template.jinja: not a valid chat template: "), "{message}");
}
