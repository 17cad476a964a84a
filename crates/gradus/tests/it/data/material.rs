//! Real data sets and tokenizers, if they are available.

use gradus::data::{
    FindingKind, LoadOptions, Need, RowData, RowKind, TokenizeOptions, lint, load, preference_examples, prompts,
    sft_examples,
};
use gradus::text::{StopStrings, Tokenizer};
use serde_json::Value;

use crate::support::{material, skipped};

#[test]
fn tokenizers_give_the_known_ids() {
    let Some(tokenizers) = material("tokenizers") else { return };
    let golden: Value = serde_json::from_slice(&std::fs::read(tokenizers.join("golden_ids.json")).unwrap()).unwrap();
    let mut compared = 0;
    for (name, cases) in golden.as_object().unwrap() {
        let directory = tokenizers.join(name);
        if !directory.is_dir() {
            skipped("tokenizer", &format!("{name} has known ids, but is not part of the material"));
            continue;
        }
        let tokenizer = Tokenizer::from_dir(&directory).unwrap();
        for case in cases.as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            let ids: Vec<u32> = case["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
            assert_eq!(tokenizer.encode(text, true).unwrap(), ids, "{name}: {text}");
            assert_eq!(tokenizer.decode(&ids, true).unwrap(), case["decoded"].as_str().unwrap(), "{name}: {text}");
            compared += 1;
        }
    }
    assert!(compared >= 60, "only {compared} texts were compared");
}

#[test]
fn gpt2_reads_from_its_two_old_files() {
    let Some(source) = material("tokenizers/gpt2") else { return };
    let folder = super::Folder::new();
    for file in ["vocab.json", "merges.txt", "tokenizer_config.json"] {
        std::fs::copy(source.join(file), folder.path(file)).unwrap();
    }
    let (old, new) = (Tokenizer::from_dir(&folder.path("")).unwrap(), Tokenizer::from_dir(&source).unwrap());
    let text = "Hello world, naïve 漢字 🙂\n\n  two<|endoftext|>";
    assert_eq!(old.encode(text, true).unwrap(), new.encode(text, true).unwrap());
    assert_eq!((old.vocab_size(), old.eos_id()), (50257, Some(50256)));
}

/// As in `cardiffnlp/twitter-roberta-base-sentiment` and others on the hub, no file names the special tokens.
#[test]
fn roberta_bart_and_longformer_read_from_their_two_old_files() {
    for name in ["roberta", "bart", "longformer"] {
        let Some(source) = material(&format!("tokenizers/{name}")) else { return };
        let folder = super::Folder::new();
        for file in ["vocab.json", "merges.txt"] {
            std::fs::copy(source.join(file), folder.path(file)).unwrap();
        }
        folder.write("config.json", format!(r#"{{"model_type": "{name}"}}"#));
        let (old, new) = (Tokenizer::from_dir(&folder.path("")).unwrap(), Tokenizer::from_dir(&source).unwrap());
        for text in ["Hello world, naïve 漢字 🙂\n\n  two", " leading", "a<mask>b</s>c", ""] {
            assert_eq!(old.encode(text, true).unwrap(), new.encode(text, true).unwrap(), "{name}: {text}");
            let [old, new] = [&old, &new].map(|of| of.encode_joined(text, Some("and more"), None).unwrap());
            assert_eq!(old.ids, new.ids, "{name}: {text}");
        }
        assert_eq!((old.eos_id(), old.pad_id(), old.appends_eos()), (new.eos_id(), new.pad_id(), true), "{name}");
    }
}

#[test]
fn t5_reads_from_its_file_of_sentencepiece() {
    let Some(source) = material("tokenizers/t5") else { return };
    let folder = super::Folder::new();
    std::fs::copy(source.join("spiece.model"), folder.path("spiece.model")).unwrap();
    folder.write("config.json", r#"{"model_type": "t5"}"#);
    let (old, new) = (Tokenizer::from_dir(&folder.path("")).unwrap(), Tokenizer::from_dir(&source).unwrap());
    let mut compared = 0;
    let rows = std::fs::read_to_string(source.join("../golden_ids.json")).unwrap();
    let golden: Value = serde_json::from_str(&rows).unwrap();
    for text in golden.as_object().unwrap().values().flat_map(|cases| cases.as_array().unwrap()) {
        let text = text["text"].as_str().unwrap();
        assert_eq!(old.encode(text, true).unwrap(), new.encode(text, true).unwrap(), "{text:?}");
        compared += 1;
    }
    assert!(compared >= 60, "only {compared} texts were compared");
    assert_eq!((old.vocab_size(), old.eos_id(), old.pad_id()), (32100, Some(1), Some(0)));
}

/// `vocab.json` and `merges.txt` of Qwen, with the tokens of its turns in `tokenizer_config.json`.
#[test]
fn qwen_reads_from_its_two_old_files() {
    let Some(source) = material("tokenizers/qwen3") else { return };
    let whole: Value = serde_json::from_slice(&std::fs::read(source.join("tokenizer.json")).unwrap()).unwrap();
    let folder = super::Folder::new();
    folder.write("vocab.json", whole["model"]["vocab"].to_string());
    let merges = whole["model"]["merges"].as_array().unwrap().iter().map(|pair| match pair {
        Value::String(pair) => format!("{pair}\n"),
        pair => format!("{} {}\n", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
    });
    folder.write("merges.txt", merges.collect::<String>());
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(source.join("tokenizer_config.json")).unwrap()).unwrap();
    let added = whole["added_tokens"].as_array().unwrap().iter();
    config["added_tokens_decoder"] = added.map(|token| (token["id"].to_string(), token.clone())).collect();
    folder.write("tokenizer_config.json", config.to_string());
    let (old, new) = (Tokenizer::from_dir(&folder.path("")).unwrap(), Tokenizer::from_dir(&source).unwrap());
    let golden = std::fs::read_to_string(source.join("../golden_ids.json")).unwrap();
    let golden: Value = serde_json::from_str(&golden).unwrap();
    for text in golden.as_object().unwrap().values().flat_map(|cases| cases.as_array().unwrap()) {
        let text = text["text"].as_str().unwrap();
        assert_eq!(old.encode(text, true).unwrap(), new.encode(text, true).unwrap(), "{text:?}");
    }
    let turn = "<|im_start|>user\nIt's 1234 cafe\u{301}<|im_end|>\n";
    assert_eq!(old.encode(turn, true).unwrap(), new.encode(turn, true).unwrap());
    assert_eq!((old.vocab_size(), old.eos_id()), (new.vocab_size(), new.eos_id()));
}

/// Blenderbot begins with a space and ends with `</s>` alone: transformers 4's `BlenderbotTokenizerFast` of the same files.
#[test]
fn blenderbots_two_old_files_end_every_text() {
    let Some(source) = material("tokenizers/roberta") else { return };
    let folder = super::Folder::new();
    for file in ["vocab.json", "merges.txt"] {
        std::fs::copy(source.join(file), folder.path(file)).unwrap();
    }
    folder.write("config.json", r#"{"model_type": "blenderbot"}"#);
    let (blenderbot, roberta) = (Tokenizer::from_dir(&folder.path("")).unwrap(), Tokenizer::from_dir(&source).unwrap());
    let around = roberta.encode(" Hello world", true).unwrap();
    assert_eq!(blenderbot.encode("Hello world", true).unwrap(), around[1..]);
}

#[test]
fn hh_transcripts_become_pairs_and_prompts() {
    let Some(data) = material("hh_rlhf/harmless-base") else { return };
    let Some(gpt2) = material("tokenizers/gpt2") else { return };
    let tokenizer = Tokenizer::from_dir(&gpt2).unwrap();
    let dataset = load(&data.to_string_lossy(), &LoadOptions::needing(Need::Preference)).unwrap();
    assert_eq!((dataset.rows.len(), dataset.kind), (2312, RowKind::ImplicitPreference));
    assert_eq!(dataset.source.split.as_deref(), Some("test"));

    let options = TokenizeOptions { max_length: Some(256), ..TokenizeOptions::default() };
    let pairs = preference_examples(&dataset.rows, &tokenizer, None, &options).unwrap();
    let counts = pairs.counts;
    assert_eq!(counts.rows, 2312);
    assert_eq!(counts.kept + counts.skipped + counts.without_loss, 2312);
    assert!(counts.truncated > 0 && counts.without_loss > 0, "{counts:?}");
    for pair in &pairs.examples {
        assert_eq!(pair.chosen_ids[..pair.prompt_len], pair.rejected_ids[..pair.prompt_len]);
        assert!(pair.chosen_ids.len() <= 256 && pair.rejected_ids.len() <= 256);
    }
    let found = prompts(&dataset.rows, &tokenizer, None, &options).unwrap();
    assert!(found.examples.iter().all(|prompt| prompt.text.ends_with("\n\nAssistant:")));

    let learned = sft_examples(&dataset.rows, &tokenizer, None, &TokenizeOptions::default()).unwrap();
    let eos = tokenizer.eos_id();
    let whole = learned.examples.iter().filter(|e| e.ids.last().copied() == eos).count();
    assert_eq!(whole, learned.counts.kept - learned.counts.truncated);

    let groups = lint(&dataset.rows, None, None, &TokenizeOptions::default());
    let ambiguous = groups.iter().find(|group| group.kind == FindingKind::AmbiguousPrompt);
    assert!(ambiguous.is_some_and(|group| group.count > 100), "many answers begin alike");
}

#[test]
fn other_tools_files_are_recognized() {
    for (name, kind, rows) in [
        ("preference_demo/dpo_en_demo.json", RowKind::ShareGptPreference, 300),
        ("preference_demo/alpaca_en_demo.json", RowKind::Alpaca, 999),
        ("preference_demo/kto_en_demo.json", RowKind::Messages, 300),
        ("preference_demo/torchtune_hh_rlhf_tiny.json", RowKind::ImplicitPreference, 1),
        ("gsm8k:test", RowKind::QuestionAnswer, 1319),
    ] {
        let Some(path) = material(name.split(':').next().unwrap_or(name)) else { continue };
        let split = name.split_once(':').map_or(String::new(), |(_, split)| format!(":{split}"));
        let dataset = load(&format!("{}{split}", path.display()), &LoadOptions::default()).unwrap();
        assert_eq!((dataset.kind, dataset.rows.len()), (kind, rows), "{name}");
    }
}

#[test]
fn stop_strings_are_seen_when_their_last_token_comes() {
    let Some(gpt2) = material("tokenizers/gpt2") else { return };
    let tokenizer = Tokenizer::from_dir(&gpt2).unwrap();
    let mut stops = StopStrings::new(&tokenizer, ["\n\nHuman:".to_owned(), "🙂".to_owned()]);
    for (text, ends) in [("Yes.\n\nHuman: and", true), ("Yes, a Human: no", false), ("smile 🙂!", true)] {
        let ids = tokenizer.encode(text, false).unwrap();
        let at = (1..=ids.len()).find(|length| stops.stops(&[], &ids[..*length]));
        assert_eq!(at.is_some(), ends, "{text}");
        if let Some(at) = at {
            let before = tokenizer.decode(&ids[..at - 1], false).unwrap();
            assert!(!before.contains("\n\nHuman:") && !before.contains('🙂'), "{text}: seen too late");
        }
    }
}

#[test]
fn a_stop_string_may_begin_with_the_space_that_a_tokenizer_hides() {
    let Some(stories) = material("weights/stories260K") else { return };
    let tokenizer = Tokenizer::from_dir(&stories).unwrap();
    let [before, all] = ["The little dog", "The little dog was"].map(|text| tokenizer.encode(text, true).unwrap());
    let (before, after) = (&before[..], &all[before.len()..]);
    for stop in [" was", " w", "was"] {
        let mut stops = StopStrings::new(&tokenizer, [stop.to_owned()]);
        assert!((1..=after.len()).any(|length| stops.stops(before, &after[..length])), "{stop:?} in {after:?}");
    }
    // Without a prompt, the text begins without the space.
    assert!(!StopStrings::new(&tokenizer, [" was".to_owned()]).stops(&[], after));
}

#[test]
fn prompts_with_toxicity_scores_are_read() {
    let Some(path) = material("realtoxicityprompts/quark_val.jsonl") else { return };
    let dataset = load(&path.to_string_lossy(), &LoadOptions::needing(Need::Prompt)).unwrap();
    assert_eq!((dataset.kind, dataset.rows.len()), (RowKind::ScoredContinuation, 5000));
    let scores: Vec<Option<f64>> = dataset.rows.iter().map(|row| row.columns["toxicity"].as_f64()).collect();
    let known: Vec<f64> = scores.iter().flatten().copied().collect();
    assert_eq!(scores.len() - known.len(), 19, "prompts without a score");
    assert!((known.iter().sum::<f64>() / known.len() as f64 - 0.307).abs() < 5e-4);
    assert_eq!(known.iter().filter(|&&score| score >= 0.5).count(), 1249);
    assert_eq!(dataset.rows.iter().filter(|row| row.columns["challenging"] == true).count(), 49);
    let words: Vec<usize> = dataset
        .rows
        .iter()
        .map(|row| match &row.data {
            RowData::PromptCompletion { prompt, .. } => prompt.plain().split_whitespace().count(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!((words.iter().min(), words.iter().max()), (Some(&2), Some(&29)));
    assert!((words.iter().sum::<usize>() as f64 / 5000.0 - 11.8).abs() < 0.05);
}

#[test]
fn broken_toxicity_scores_are_named() {
    let row = |score: &str| {
        format!(
            r#"{{"prompt": {{"text": "a", "toxicity": {score}}}, "continuation": {{"text": " b", "toxicity": null}}}}"#
        )
    };
    let found = super::Folder::new().error("a.jsonl", [row("0.5"), row("1.5")].join("\n"), &LoadOptions::default());
    assert_eq!(found, "a.jsonl:2: `prompt.toxicity` is 1.5, expected a number from 0 to 1, or null");
    let found = super::Folder::new().error("a.jsonl", row("0.5").replace("\" b\"", "3"), &LoadOptions::default());
    assert_eq!(found, "a.jsonl:1: `continuation.text` is a number, expected a string");
}
