//! Unusable tokenizer directories, and the content read from usable ones.

use std::path::Path;

use gradus::text::{ChatTemplate, RenderOptions, Tokenizer};
use serde_json::{Value, json};

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
    assert_eq!(
        error(&folder),
        "m: no tokenizer: it has none of `tokenizer.json`, `vocab.json` with `merges.txt`, `vocab.txt` (BERT) and \
         SentencePiece's `spiece.model`, `tokenizer.model`, `sentencepiece.bpe.model` or `spm.model`"
    );
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
        // Texts are read unchanged.
        assert_eq!(tokenizer.encode("tea", false).unwrap(), [tokenizer.token_id("tea").unwrap()]);
        tokenizer.encode_words(&words, None).expect("ids")
    };
    // The tokenizer's own ids of words if its file requests the prefix space.
    let content = plain.replace("\"add_prefix_space\":false", "\"add_prefix_space\":true");
    let content = content.replace("\"add_prefix_space\": false", "\"add_prefix_space\": true");
    let expected = {
        let folder = Folder::new();
        folder.write("m/tokenizer.json", content);
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

/// Keys of `tokenizer_config.json` and other files change the ids as in transformers 5.23 (`tools/parity/tokenizer_files.py`).
#[test]
fn settings_next_to_a_vocabulary_change_ids_as_in_transformers() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/tokenizers");
    let read = |name: &str| std::fs::read_to_string(fixtures.join(name)).expect("the fixture");
    let expected: Value = serde_json::from_str(&read("cases.json")).expect("JSON");
    let texts: Vec<String> = serde_json::from_value(expected["texts"].clone()).expect("texts");
    let cases = expected["cases"].as_object().expect("cases");
    for (name, case) in cases {
        let folder = Folder::new();
        for file in case["files"].as_array().expect("files") {
            let file = file.as_str().expect("a name");
            folder.write(&format!("m/{file}"), read(file));
        }
        let changes = case["tokenizer"].as_object().expect("changes");
        if !changes.is_empty() {
            let mut whole: Value = serde_json::from_str(&read("tokenizer.json")).expect("JSON");
            for (key, step) in changes {
                whole[key.as_str()] = step.clone();
            }
            folder.write("m/tokenizer.json", whole.to_string());
        }
        for (file, content) in case["others"].as_object().expect("other files") {
            folder.write(&format!("m/{file}"), content.to_string());
        }
        let tokenizer = Tokenizer::from_dir(&folder.path("m")).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(Some(tokenizer.vocab_size() as u64), case["size"].as_u64(), "{name}");
        assert_eq!(tokenizer.eos_token(), case["eos"].as_str(), "{name}");
        for (text, ids) in texts.iter().zip(case["ids"].as_array().expect("ids of each text")) {
            let ids: Vec<u32> = serde_json::from_value(ids.clone()).expect("ids");
            assert_eq!(tokenizer.encode(text, true).expect("ids"), ids, "{name}: {text:?}");
        }
    }
    assert!(cases.len() >= 30, "only {} cases were compared", cases.len());
}

#[test]
fn tokens_that_the_model_has_no_row_for_are_left_out() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/tokenizers");
    let folder = Folder::new();
    folder.write("m/tokenizer.json", std::fs::read(fixtures.join("tokenizer.json")).expect("the fixture"));
    folder.write("m/added_tokens.json", r#"{"<tool>": 321, "<call>": 322}"#);
    folder.write("m/tokenizer_config.json", r#"{"pad_token": "<new>", "eos_token": "<call>"}"#);
    let open = |config: &str| {
        folder.write("m/config.json", config);
        let found = Tokenizer::from_dir(&folder.path("m")).expect("a tokenizer");
        let is_special = |token: &str| found.token_id(token).is_some_and(|id| found.is_special(id));
        let ids = ["<tool>", "<call>", "<new>"].map(|token| found.token_id(token));
        (ids, ["<tool>", "<call>"].map(is_special), found.vocab_size())
    };
    assert_eq!(open("{}"), ([Some(321), Some(322), Some(323)], [false, true], 324));
    assert_eq!(open(r#"{"vocab_size": 324}"#), ([Some(321), Some(322), Some(323)], [false, true], 324));
    assert_eq!(open(r#"{"vocab_size": 323}"#), ([Some(321), Some(322), None], [false, true], 323));
    assert_eq!(open(r#"{"text_config": {"vocab_size": 322}}"#), ([Some(321), None, None], [false, false], 322));
    assert_eq!(open(r#"{"vocab_size": 321}"#), ([None; 3], [false, false], 321));
    // An id that is not the next free one belongs to another tokenizer.
    folder.write("m/added_tokens.json", r#"{"<tool>": 330}"#);
    folder.write("m/config.json", "{}");
    assert_eq!(error(&folder), "m: the id of the added token `<tool>` is 330 in its file, but 321 in the vocabulary");
    // A token of `tokenizer.json` keeps its id there.
    folder.write("m/added_tokens.json", r#"{"<pad>": 330}"#);
    let found = Tokenizer::from_dir(&folder.path("m")).expect("a tokenizer");
    assert_eq!((found.token_id("<pad>"), found.is_special(1)), (Some(1), true));
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

/// The texts are those of `apply_chat_template` of transformers 5.23.
#[test]
fn of_several_templates_one_is_for_tools() {
    let folder = Folder::new();
    folder.write("m/tokenizer.json", std::fs::read(fixture().join("tokenizer.json")).unwrap());
    let directory = folder.path("m");
    let tokenizer = Tokenizer::from_dir(&directory).unwrap();
    let render = || {
        let template = ChatTemplate::from_dir(&directory, &tokenizer).unwrap().expect("a template");
        let tools = [serde_json::json!({"type": "function", "function": {"name": "f", "parameters": {}}})];
        [None, Some(&tools[..])].map(|tools| {
            let options = RenderOptions { tools, ..RenderOptions::default() };
            let rendered = template.render(&[serde_json::json!({"role": "user", "content": "a"})], &options);
            rendered.map(|rendered| (rendered.text, rendered.assistant.is_some())).map_err(|error| error.to_string())
        })
    };
    let text = |text: &str, marks: bool| -> Result<(String, bool), String> { Ok((text.to_owned(), marks)) };
    // A list, and an object. Each template marks the assistant's text or does not.
    let marked = "{% generation %}plain{% endgeneration %}";
    for templates in [
        serde_json::json!([{"name": "default", "template": marked}, {"name": "tool_use", "template": "of tools"}]),
        serde_json::json!({"default": marked, "tool_use": "of tools"}),
    ] {
        let config = serde_json::json!({"chat_template": templates});
        folder.write("m/tokenizer_config.json", config.to_string());
        assert!(ChatTemplate::is_in(&directory).unwrap());
        assert_eq!(render(), [text("plain", true), text("of tools", false)]);
    }
    for templates in [serde_json::json!([]), serde_json::json!({}), Value::Null] {
        folder.write("m/tokenizer_config.json", serde_json::json!({"chat_template": templates}).to_string());
        assert!(!ChatTemplate::is_in(&directory).unwrap(), "{templates}");
    }
    // Without a template called `default`, only conversations with tools have one.
    folder.write("m/tokenizer_config.json", r#"{"chat_template": {"tool_use": "of tools", "rag": "of texts"}}"#);
    let [refused, found] = render();
    let refused = refused.expect_err("there is none");
    assert!(
        refused.contains("no template is called `default`, which conversations need (found `rag`, `tool_use`)"),
        "{refused}"
    );
    assert_eq!(found, text("of tools", false));
    // Files replace the configuration.
    folder.write("m/chat_template.jinja", "of the file");
    assert_eq!(render(), [text("of the file", false), text("of the file", false)]);
    folder.write("m/additional_chat_templates/tool_use.jinja", "of the folder");
    folder.write("m/additional_chat_templates/notes.txt", "{% if %}");
    assert_eq!(render(), [text("of the file", false), text("of the folder", false)]);
    folder.write("m/additional_chat_templates/default.jinja", "of the folder, too");
    assert_eq!(render(), [text("of the folder, too", false), text("of the folder", false)]);
    // No conversation uses a template with another name, so it need not be valid. A system's hidden files are no templates.
    folder.write("m/additional_chat_templates/rag.jinja", "{% if %}");
    folder.write("m/additional_chat_templates/._rag.jinja", b"\xff");
    assert_eq!(render(), [text("of the folder, too", false), text("of the folder", false)]);
    let named = ChatTemplate::from_dir(&directory, &tokenizer).unwrap().expect("a template").named().to_vec();
    assert_eq!(named[1], ("rag".to_owned(), "{% if %}".to_owned()));
    assert_eq!(named.len(), 3);
    folder.write("m/additional_chat_templates/tool_use.jinja", "{% if %}");
    let message = ChatTemplate::from_dir(&directory, &tokenizer).unwrap_err().to_string();
    assert!(message.contains("not a valid chat template: `tool_use`: "), "{message}");
}

/// As `t5-small`, `bart-base`, `gpt2` and similar models on the hub: the tokenizer's class defines the special tokens,
/// and the model determines the class.
#[test]
fn what_the_files_leave_open_is_the_classs() {
    let folder = Folder::new();
    let vocabulary =
        r#"{"<pad>": 0, "</s>": 1, "<unk>": 2, "tea": 3, "<s>": 4, "<|endoftext|>": 5, "[SEP]": 6, "[PAD]": 7}"#;
    let added = r#"[{"id": 1, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}]"#;
    let after = r#"{"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
                    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
                    "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}}}"#;
    folder.write(
        "m/tokenizer.json",
        format!(
            r#"{{"version": "1.0", "truncation": null, "padding": null, "added_tokens": {added}, "normalizer": null,
                "pre_tokenizer": {{"type": "WhitespaceSplit"}}, "post_processor": {after}, "decoder": null,
                "model": {{"type": "WordLevel", "vocab": {vocabulary}, "unk_token": "<unk>"}}}}"#
        ),
    );
    let open = |config: &str, tokenizer: &str| {
        folder.write("m/config.json", config);
        folder.write("m/tokenizer_config.json", tokenizer);
        let found = Tokenizer::from_dir(&folder.path("m")).expect("a tokenizer");
        let text = |token: Option<&str>| token.map(str::to_owned);
        (text(found.bos_token()), text(found.eos_token()), text(found.pad_token()), found.appends_eos())
    };
    let is = |bos: &str, eos: &str, pad: &str, appends: bool| {
        let [bos, eos, pad] = [bos, eos, pad].map(|token| (!token.is_empty()).then(|| token.to_owned()));
        (bos, eos, pad, appends)
    };
    let bare = r#"{"model_max_length": 512}"#;
    assert_eq!(open(r#"{"model_type": "t5"}"#, bare), is("", "</s>", "<pad>", true));
    assert_eq!(open(r#"{"model_type": "bart"}"#, bare), is("<s>", "</s>", "<pad>", true));
    assert_eq!(open(r#"{"model_type": "gpt2"}"#, bare), is("<|endoftext|>", "<|endoftext|>", "<|endoftext|>", false));
    assert_eq!(open(r#"{"model_type": "bert"}"#, bare), is("", "", "[PAD]", false));
    // A token that is not in the vocabulary does not count.
    assert_eq!(open(r#"{"model_type": "deberta-v2"}"#, bare), is("", "[SEP]", "[PAD]", false));
    assert_eq!(open(r#"{"model_type": "mt5", "tokenizer_class": "T5Tokenizer"}"#, "{}"), is("", "</s>", "<pad>", true));
    // Named tokens win, including those set to null; an unknown class implies nothing.
    assert_eq!(
        open(r#"{"model_type": "t5"}"#, r#"{"eos_token": "tea", "pad_token": null}"#),
        is("", "tea", "tea", false)
    );
    let class = r#"{"tokenizer_class": "BartTokenizerFast"}"#;
    assert_eq!(open(r#"{"model_type": "t5"}"#, class), is("<s>", "</s>", "<pad>", true));
    let class = r#"{"tokenizer_class": "PreTrainedTokenizerFast"}"#;
    assert_eq!(open(r#"{"model_type": "t5"}"#, class), is("", "", "", false));
    assert_eq!(open(r#"{"model_type": "another"}"#, "{}"), is("", "", "", false));
}

#[test]
fn old_files_of_other_tokenizers_are_refused() {
    let folder = Folder::new();
    folder.write("m/vocab.json", r#"{"__null__": 0, "tea</w>": 1}"#);
    folder.write("m/merges.txt", "#version: 0.2\n");
    folder.write("m/config.json", r#"{"model_type": "blenderbot-small"}"#);
    let message = "m: no `tokenizer.json`, and `vocab.json` with `merges.txt` are read only for byte-level tokenizers";
    assert_eq!(error(&folder), message);
    // Without the tokens around each text.
    folder.write("m/config.json", r#"{"model_type": "roberta"}"#);
    assert_eq!(error(&folder), "m: `vocab.json` has no `sep_token`, which is added to every text");
}

#[test]
fn dropout_of_merges_is_left_out() {
    let plain = std::fs::read_to_string(fixture().join("tokenizer.json")).expect("the fixture");
    let mut json: Value = serde_json::from_str(&plain).expect("JSON");
    assert_eq!(json["model"]["type"], "BPE");
    // The library would leave out every merge.
    json["model"]["dropout"] = json!(1.0);
    let folder = Folder::new();
    folder.write("m/tokenizer.json", json.to_string());
    folder.write("plain/tokenizer.json", plain);
    let [found, expected] = ["m", "plain"].map(|name| {
        let tokenizer = Tokenizer::from_dir(&folder.path(name)).expect("a tokenizer");
        tokenizer.encode("The tea is warm and the cup is full.", false).expect("ids")
    });
    assert_eq!(found, expected);
}

/// A model may have an embedding of token types that its tokenizer does not use, such as RoBERTa.
#[test]
fn a_tokenizer_without_types_gives_zeros() {
    let encoder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/encoders/bert/tokenizer.json");
    let folder = Folder::new();
    folder.write("m/tokenizer.json", std::fs::read_to_string(encoder).expect("the fixture"));
    for (settings, expected) in [
        (r#"{"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}"#, true),
        (r#"{"tokenizer_class": "BertTokenizer"}"#, true),
        (r#"{"tokenizer_class": "RobertaTokenizer"}"#, false),
        (r#"{"tokenizer_class": "BertTokenizer", "model_input_names": ["input_ids", "attention_mask"]}"#, false),
    ] {
        folder.write("m/tokenizer_config.json", settings);
        let tokenizer = Tokenizer::from_dir(&folder.path("m")).expect("a tokenizer");
        let joined = tokenizer.encode_joined("a warm cup", Some("the cup is cold"), None).expect("ids");
        assert_eq!(joined.types.len(), joined.ids.len());
        assert_eq!(joined.types.contains(&1), expected, "{settings}");
    }
}

/// BERT's `vocab.txt` is read like `BertTokenizer` of `transformers` 5.23.
#[test]
fn word_pieces_of_a_text_file_are_those_of_the_class() {
    let encoder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/encoders/bert");
    let read = |name: &str| -> serde_json::Value {
        serde_json::from_str(&std::fs::read_to_string(encoder.join(name)).expect("the fixture")).expect("JSON")
    };
    let vocab = read("tokenizer.json")["model"]["vocab"].as_object().expect("a vocabulary").clone();
    let mut pieces: Vec<(u64, &String)> =
        vocab.iter().map(|(piece, id)| (id.as_u64().expect("an id"), piece)).collect();
    pieces.sort();
    let lines: String = pieces.iter().map(|(_, piece)| format!("{piece}\n")).collect();
    let folder = Folder::new();
    folder.write("m/config.json", r#"{"model_type": "bert"}"#);
    folder.write("m/vocab.txt", &lines);
    let open = || Tokenizer::from_dir(&folder.path("m")).expect("a tokenizer");
    let ids = |value: &serde_json::Value| -> Vec<u32> { serde_json::from_value(value.clone()).expect("ids") };
    let texts = read("expected.json")["texts"].clone();
    for text in texts.as_array().expect("texts") {
        let (first, second) = (text["text"].as_str().expect("a text"), text["pair"].as_str());
        let joined = open().encode_joined(first, second, None).expect("ids");
        assert_eq!((joined.ids, joined.types), (ids(&text["ids"]), ids(&text["types"])), "{first}");
    }
    assert_eq!(open().pad_token(), Some("[PAD]"));
    // Flags of the class: BertTokenizer(vocab, do_lower_case=…, strip_accents=…, tokenize_chinese_chars=…).
    let tea = |flags: &str| {
        folder.write("m/tokenizer_config.json", flags);
        open().encode("Tea téa tea水tea", false).expect("ids")
    };
    let (known, unknown) =
        (vocab["tea"].as_u64().expect("an id") as u32, vocab["[UNK]"].as_u64().expect("an id") as u32);
    assert_eq!(tea("{}"), [known, known, known, unknown, known]);
    assert_eq!(tea(r#"{"do_lower_case": false}"#), [unknown, unknown, known, unknown, known]);
    assert_eq!(tea(r#"{"do_lower_case": false, "strip_accents": true}"#), [unknown, known, known, unknown, known]);
    assert_eq!(tea(r#"{"strip_accents": false}"#), [known, unknown, known, unknown, known]);
    assert_eq!(tea(r#"{"tokenize_chinese_chars": false}"#), [known, known, unknown]);
    // Invalid files.
    folder.write("m/vocab.txt", lines.replace("[CLS]\n", "[CLASS]\n"));
    assert_eq!(error(&folder), "m: `vocab.txt` has no `cls_token`, which is added to every text");
    folder.write("m/vocab.txt", "tea\n");
    assert_eq!(error(&folder), "m/vocab.txt: no piece is `[UNK]`, which stands for unknown text");
}

/// The ids are those of transformers 5.23.
#[test]
fn further_special_tokens_are_those_of_the_configuration_first() {
    let folder = Folder::new();
    folder.write("m/tokenizer.json", std::fs::read(fixture().join("tokenizer.json")).unwrap());
    for (config, map, expected) in [
        (json!({"additional_special_tokens": ["<tool>"]}), json!({"additional_special_tokens": ["<new>"]}), "<tool>"),
        (json!({"extra_special_tokens": ["<tool>"]}), json!({"additional_special_tokens": ["<new>"]}), "<tool>"),
        (json!({"extra_special_tokens": ["<tool>"], "additional_special_tokens": ["<new>"]}), json!({}), "<tool>"),
        (
            json!({"extra_special_tokens": {"tool_token": "<tool>"}, "additional_special_tokens": ["<new>"]}),
            json!({}),
            "<tool> <new>",
        ),
        (
            json!({"extra_special_tokens": {"tool_token": "<tool>"}, "additional_special_tokens": ["<new>"]}),
            json!({"additional_special_tokens": ["<old>"]}),
            "<tool> <old>",
        ),
        (
            json!({"extra_special_tokens": {}, "additional_special_tokens": ["<new>"]}),
            json!({"additional_special_tokens": ["<old>"]}),
            "<new>",
        ),
        (
            json!({"additional_special_tokens": ["<tool>"]}),
            json!({"extra_special_tokens": ["<new>", "<tool>"]}),
            "<tool> <new>",
        ),
        (json!({}), json!({"additional_special_tokens": ["<old>"]}), "<old>"),
        (json!({"extra_special_tokens": []}), json!({"additional_special_tokens": ["<old>"]}), ""),
        (json!({"extra_special_tokens": null}), json!({"additional_special_tokens": ["<old>"]}), ""),
        (json!({"extra_special_tokens": {}}), json!({"additional_special_tokens": ["<old>"]}), "<old>"),
        (
            json!({"extra_special_tokens": [], "additional_special_tokens": ["<new>"]}),
            json!({"additional_special_tokens": ["<old>"]}),
            "<new>",
        ),
        (
            json!({"additional_special_tokens": ["<tool>"]}),
            json!({"extra_special_tokens": {"x_token": "<new>"}}),
            "<new>",
        ),
        (
            json!({"extra_special_tokens": {"x_token": "<new>"}}),
            json!({"extra_special_tokens": ["<tool>"], "additional_special_tokens": ["<old>"]}),
            "<new> <tool>",
        ),
        (json!({"added_tokens_decoder": {}}), json!({"additional_special_tokens": ["<old>"]}), ""),
    ] {
        folder.write("m/tokenizer_config.json", config.to_string());
        folder.write("m/special_tokens_map.json", map.to_string());
        let found = Tokenizer::from_dir(&folder.path("m")).expect("a tokenizer");
        let tokens: Vec<String> = (320..found.vocab_size() as u32).filter_map(|id| found.token(id)).collect();
        assert_eq!(tokens.join(" "), expected, "{config} {map}");
        assert!((320..found.vocab_size() as u32).all(|id| found.is_special(id)), "{config} {map}");
    }
}

/// The tokens around texts are those of transformers 5.23, except in pairs of DeBERTa 1, which get one more `[SEP]` there.
#[test]
fn a_class_surrounds_texts_if_its_file_has_no_post_processor() {
    let folder = Folder::new();
    let vocabulary =
        ["<pad>", "</s>", "<unk>", "<s>", "[SEP]", "[PAD]", "[CLS]", "[UNK]", "[MASK]", "<mask>", "tea", "cup"];
    let words = |left_out: &str| {
        let vocab: serde_json::Map<String, Value> = (0..)
            .zip(vocabulary)
            .filter(|(_, token)| *token != left_out)
            .map(|(id, token): (u32, &str)| (token.to_owned(), id.into()))
            .collect();
        let model = json!({ "type": "WordLevel", "vocab": vocab, "unk_token": "<unk>" });
        tokenizer_file(&json!({ "pre_tokenizer": { "type": "WhitespaceSplit" } }), &model)
    };
    let read = |class: &str, model: &str| {
        folder.write("m/tokenizer_config.json", class);
        folder.write("m/config.json", json!({ "model_type": model }).to_string());
        let found = Tokenizer::from_dir(&folder.path("m")).expect("a tokenizer");
        let pair = found.encode_joined("tea", Some("cup"), None).expect("ids").ids;
        [found.encode("tea", true).expect("ids"), pair].map(|ids| {
            let tokens: Vec<String> = ids.into_iter().filter_map(|id| found.token(id)).collect();
            tokens.join(" ")
        })
    };
    folder.write("m/tokenizer.json", words(""));
    let bert = ["[CLS] tea [SEP]", "[CLS] tea [SEP] cup [SEP]"];
    let roberta = ["<s> tea </s>", "<s> tea </s> </s> cup </s>"];
    let t5 = ["tea </s>", "tea </s> cup </s>"];
    let bare = ["tea", "tea cup"];
    for (class, expected) in [
        ("Bert", bert),
        ("DistilBert", bert),
        ("Albert", bert),
        ("Deberta", bert),
        ("DebertaV2", bert),
        ("Roberta", roberta),
        ("Bart", roberta),
        ("Longformer", roberta),
        ("XLMRoberta", roberta),
        ("Camembert", roberta),
        ("T5", t5),
        ("GPT2", bare),
        ("Qwen2", bare),
        ("Llama", bare),
        ("Gemma", bare),
        ("Blenderbot", bare),
    ] {
        let class = json!({ "tokenizer_class": format!("{class}Tokenizer") }).to_string();
        assert_eq!(read(&class, ""), expected, "{class}");
    }
    assert_eq!(read("{}", "bert"), bert, "the model determines the class");
    assert_eq!(read(r#"{"tokenizer_class": "PreTrainedTokenizerFast"}"#, "bert"), bare);
    // The vocabulary lacks a token of the class.
    folder.write("m/tokenizer.json", words("[SEP]"));
    assert_eq!(read("{}", "bert"), bare);
}

/// Returns a tokenizer file with these steps and this model.
fn tokenizer_file(steps: &Value, model: &Value) -> String {
    let mut file = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": null, "post_processor": null, "decoder": null, "model": model
    });
    for (key, step) in steps.as_object().expect("steps by key") {
        file[key] = step.clone();
    }
    file.to_string()
}

#[test]
fn tokenizers_that_make_much_of_little_are_refused() {
    let words = json!({ "type": "WordLevel", "vocab": { "<unk>": 0, "a": 1 }, "unk_token": "<unk>" });
    let replace = json!({ "type": "Replace", "pattern": { "String": "a" }, "content": "a".repeat(200) });
    let prepend = json!({ "type": "Prepend", "prepend": "a".repeat(1 << 20) });
    let table = json!({ "type": "Precompiled", "precompiled_charsmap": "/////w==" });
    let sequence = |steps: Vec<Value>| json!({ "normalizer": { "type": "Sequence", "normalizers": steps } });
    let pieces: Vec<Value> = (1..=3000).map(|length| json!(["a".repeat(length), -1.0])).collect();
    let bytes = json!({ "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": false });
    let decoder = json!({ "type": "Sequence", "decoders": vec![json!({ "type": "Replace", "pattern": { "String": "" }, "content": "aa" }); 9] });
    let copies = vec![json!({ "Sequence": { "id": "A", "type_id": 0 } }); 40];
    let around = json!({ "type": "TemplateProcessing", "single": copies, "pair": [], "special_tokens": {} });
    let word_piece = json!({ "type": "WordPiece", "unk_token": "<unk>", "continuing_subword_prefix": "##", "max_input_chars_per_word": 1_000_000_000, "vocab": { "<unk>": 0 } });
    let sparse = json!({ "type": "WordLevel", "vocab": { "<unk>": 0, "a": 4_000_000_000_u32 }, "unk_token": "<unk>" });
    let unknown = json!({ "type": "WordLevel", "vocab": { "a": 0 }, "unk_token": "a".repeat(1 << 20) });
    for (steps, model, expected) in [
        (
            sequence(vec![replace.clone(); 4]),
            &words,
            "the normalizer and the pre-tokenizer make a text up to 1600000000 times as long, but at most 256 times is allowed",
        ),
        (sequence(vec![prepend; 50]), &words, "times as long, but at most 256 times is allowed"),
        (
            json!({ "normalizer": table }),
            &words,
            "the table `precompiled_charsmap` is broken: it declares 4294967292 bytes, but 0 follow",
        ),
        (
            json!({}),
            &json!({ "type": "Unigram", "unk_id": 0, "vocab": pieces }),
            "a piece of the Unigram vocabulary has 3000 bytes, but at most 256 are allowed",
        ),
        (
            json!({ "pre_tokenizer": { "type": "Sequence", "pretokenizers": vec![bytes; 20] } }),
            &words,
            "times as long, but at most 256 times is allowed",
        ),
        (json!({ "decoder": decoder }), &words, "the decoder makes a text up to 19683 times as long"),
        (json!({ "post_processor": around }), &words, "the post-processor copies a text 40 times, but at most 16"),
        (json!({}), &word_piece, "`max_input_chars_per_word` is 1000000000, but at most 1000 is allowed"),
        (json!({}), &sparse, "the largest token id is 4000000000, but at most 16777215 is allowed"),
        (json!({}), &unknown, "`unk_token` of the tokenizer's model has 1048576 bytes, but at most 256 are allowed"),
    ] {
        let folder = Folder::new();
        folder.write("m/tokenizer.json", tokenizer_file(&steps, model));
        let message = Tokenizer::from_dir(&folder.path("m")).expect_err("it is refused").to_string();
        let place = folder.path("m").display().to_string();
        assert!(message.starts_with(&place) && message.contains(expected), "{expected}: {message}");
    }
    // Usual steps are accepted: Llama's, T5's, and one replacement that lengthens a text.
    let llama = sequence(vec![
        json!({ "type": "Prepend", "prepend": "▁" }),
        json!({ "type": "Replace", "pattern": { "String": " " }, "content": "▁" }),
    ]);
    for steps in [llama, sequence(vec![replace])] {
        let folder = Folder::new();
        folder.write("m/tokenizer.json", tokenizer_file(&steps, &words));
        Tokenizer::from_dir(&folder.path("m")).expect("it is read");
    }
}

#[test]
fn ids_with_holes_count_up_to_the_largest() {
    let folder = Folder::new();
    let model = json!({ "type": "WordLevel", "vocab": { "<unk>": 0, "a": 90 }, "unk_token": "<unk>" });
    folder.write("m/tokenizer.json", tokenizer_file(&json!({}), &model));
    let tokenizer = Tokenizer::from_dir(&folder.path("m")).expect("it is read");
    assert_eq!((tokenizer.vocab_size(), tokenizer.token_id("a")), (91, Some(90)));
}

#[test]
fn a_text_that_is_far_too_long_is_not_read_to_its_end() {
    let tokenizer = Tokenizer::from_dir(&fixture()).expect("a tokenizer");
    let text = "Tea and more. ".repeat(20_000);
    assert_eq!(tokenizer.encode_within(&text, false, 100).expect("no error"), None);
    let whole = tokenizer.encode(&text, false).expect("ids");
    assert_eq!(tokenizer.encode_within(&text, false, whole.len()).expect("no error"), Some(whole));
}

/// SentencePiece files are read like the fast tokenizers of `transformers` 4.57.1
/// (`tools/parity/sentencepiece_files.py`).
#[test]
fn files_of_sentencepiece_are_read_as_their_classes_read_them() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/sentencepiece");
    let expected = std::fs::read_to_string(fixtures.join("expected.json")).expect("the fixture");
    let expected: Value = serde_json::from_str(&expected).expect("JSON");
    let ids = |value: &Value| -> Vec<u32> { serde_json::from_value(value.clone()).expect("ids") };
    let mut compared = 0;
    for (name, case) in expected["cases"].as_object().expect("cases") {
        let tokenizer = Tokenizer::from_dir(&fixtures.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        let special = &case["special"];
        assert_eq!(tokenizer.bos_token(), special["bos_token"].as_str(), "{name}");
        assert_eq!(tokenizer.eos_token(), special["eos_token"].as_str(), "{name}");
        assert_eq!(tokenizer.unk_token(), special["unk_token"].as_str(), "{name}");
        assert_eq!(tokenizer.vocab_size(), case["size"].as_u64().expect("a size") as usize, "{name}");
        if let Some(id) = tokenizer.token_id("<0xE6>") {
            assert_eq!(tokenizer.token_bytes(id), Some(vec![0xe6]), "{name}");
        }
        for row in case["texts"].as_array().expect("texts") {
            let text = row["text"].as_str().expect("a text");
            let found = tokenizer.encode(text, true).expect("ids");
            assert_eq!(found, ids(&row["ids"]), "{name}: {text:?}");
            let pair = tokenizer.encode_joined(text, Some("and more"), None).expect("ids");
            assert_eq!(pair.ids, ids(&row["pair"]), "{name}: {text:?}");
            assert_eq!(
                tokenizer.decode(&found, true).expect("a text"),
                row["decoded"].as_str().expect("a text"),
                "{name}: {text:?}"
            );
            compared += 1;
        }
    }
    assert!(compared >= 100, "only {compared} texts were compared");
}

#[test]
fn files_of_sentencepiece_that_cannot_be_read() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/sentencepiece");
    let folder = Folder::new();
    folder.write("m/spiece.model", std::fs::read(fixtures.join("t5/spiece.model")).expect("the fixture"));
    assert_eq!(error(&folder), "m/spiece.model: the class of the tokenizer for this file is not set");
    folder.write("m/tokenizer_config.json", r#"{"tokenizer_class": "GPT2Tokenizer"}"#);
    assert_eq!(error(&folder), "m/spiece.model: tokenizers of its class do not read files of SentencePiece");
    // The model type determines the class.
    std::fs::remove_file(folder.path("m/tokenizer_config.json")).expect("it is there");
    folder.write("m/config.json", r#"{"model_type": "t5"}"#);
    assert!(Tokenizer::from_dir(&folder.path("m")).expect("a tokenizer").appends_eos());
    folder.write("m/spiece.model", "no protocol buffer");
    let message = error(&folder);
    assert!(message.starts_with("m/spiece.model: not a file of SentencePiece: "), "{message}");
    folder.write("m/spiece.model", "");
    assert_eq!(error(&folder), "m/spiece.model: not a file of SentencePiece: it has no pieces");
}

/// Tokens added to an older vocabulary get the ids that their files state, or are rejected.
#[test]
fn added_tokens_keep_their_ids() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/sentencepiece/gemma");
    let folder = Folder::new();
    folder.write("m/tokenizer.model", std::fs::read(fixtures.join("tokenizer.model")).expect("the fixture"));
    let size = Tokenizer::from_dir(&fixtures).expect("a tokenizer").vocab_size();
    folder.write("m/tokenizer_config.json", r#"{"tokenizer_class": "GemmaTokenizer"}"#);
    folder.write("m/added_tokens.json", format!(r#"{{"<tool>": {size}}}"#));
    let tokenizer = Tokenizer::from_dir(&folder.path("m")).expect("a tokenizer");
    let id = tokenizer.token_id("<tool>").expect("the token");
    assert_eq!((id as usize, tokenizer.vocab_size()), (size, size + 1));
    assert!(tokenizer.encode("a<tool>b", false).expect("ids").contains(&id));
    folder.write("m/added_tokens.json", format!(r#"{{"<tool>": {}}}"#, size + 3));
    assert_eq!(
        error(&folder),
        format!("m: the id of the added token `<tool>` is {} in its file, but {size} in the vocabulary", size + 3)
    );
}

/// Ids of `ByT5Tokenizer` from `transformers` 4.57, which has no file except its settings.
#[test]
fn byt5_reads_bytes_and_has_no_file() {
    let folder = Folder::new();
    folder.write("m/config.json", r#"{"model_type": "t5"}"#);
    assert!(!Tokenizer::is_in(&folder.path("m")));
    folder.write("m/tokenizer_config.json", r#"{"tokenizer_class": "ByT5Tokenizer", "extra_ids": 125}"#);
    assert!(Tokenizer::is_in(&folder.path("m")));
    let tokenizer = Tokenizer::from_dir(&folder.path("m")).expect("a tokenizer");
    let ids = |text: &str| tokenizer.encode(text, true).expect("ids");
    assert_eq!(ids("Ünï a\n"), [198, 159, 113, 198, 178, 35, 100, 13, 1]);
    assert_eq!(ids("<extra_id_0> b"), [259, 35, 101, 1]);
    assert_eq!((tokenizer.vocab_size(), tokenizer.token_id("<extra_id_124>")), (384, Some(383)));
    assert_eq!((tokenizer.eos_id(), tokenizer.pad_token(), tokenizer.appends_eos()), (Some(1), Some("<pad>"), true));
    // The two bytes of `Ü`; a special token is text.
    assert_eq!([198, 159, 1].map(|id| tokenizer.token_bytes(id)), [Some(vec![0xc3]), Some(vec![0x9c]), None]);
    let every: String = ('\u{0}'..'\u{800}').collect();
    assert_eq!(tokenizer.decode(&ids(&every), true).expect("text"), every);
    assert_eq!(tokenizer.decode(&[4, 0, 1, 100, 259], true).expect("text"), "\u{1}a");
}
