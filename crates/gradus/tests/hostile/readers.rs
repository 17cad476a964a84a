//! Parsers of untrusted bytes, and valid files for them.

use std::io::Write;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use gradus::config::RunConfig;
use gradus::data::{LoadOptions, load, open, write_rows};
use gradus::files::output::Outputs;
use gradus::learner::optimizer::{AdamWConfig, MomentFormat};
use gradus::model::{AdapterDir, CausalLm, Classifier, ModelDir, save_causal};
use gradus::optimizer_state;
use gradus::reward::Lexicon;
use gradus::rng::{Purpose, Seed};
use gradus::run::checkpoint::{moments, moments_in_int8};
use gradus::run::claim;
use gradus::run::database::{Query, Record, RolloutTable, Segment};
use gradus::run::tensors::{read_state, write_state};
use gradus::run::{Existing, NamedTensor, RolloutDb, RolloutWriter, RunDir, read_metrics};
use gradus::text::{ChatTemplate, RenderOptions, Tokenizer};
use serde_json::{Map, Value, json};

/// A parser of files.
pub struct Reader {
    /// Name of the reader and of its folder of earlier findings.
    pub name: &'static str,
    /// Valid files.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Parses these bytes, from a file in this directory if needed.
    pub read: fn(&Path, &[u8]) -> Result<(), String>,
}

/// Returns all readers.
pub fn all() -> Vec<Reader> {
    let reader = |name, seeds, read| Reader { name, seeds, read };
    vec![
        reader("json_lines", json_lines, |at, bytes| rows(at, "rows.jsonl", bytes)),
        reader("json_array", json_array, |at, bytes| rows(at, "rows.json", bytes)),
        reader("csv", csv, |at, bytes| rows(at, "rows.csv", bytes)),
        reader("text", text, |at, bytes| rows(at, "rows.txt", bytes)),
        reader("gzip", gzip, |at, bytes| rows(at, "rows.jsonl.gz", bytes)),
        reader("parquet", parquet, |at, bytes| rows(at, "rows.parquet", bytes)),
        reader("arrow", arrow, |at, bytes| rows(at, "rows.arrow", bytes)),
        reader("arrow_types", arrow_types, |at, bytes| every_row(&write(at, "rows.arrow", bytes))),
        reader("tokenizer", tokenizer, |at, bytes| {
            write(at, "tokenizer.json", bytes);
            let _ = std::fs::remove_file(at.join("tokenizer_config.json"));
            use_tokenizer(at)
        }),
        reader("sentencepiece", sentencepiece, |at, bytes| {
            write(at, "tokenizer.model", bytes);
            write(at, "tokenizer_config.json", br#"{"tokenizer_class": "LlamaTokenizer"}"#);
            let _ = std::fs::remove_file(at.join("tokenizer.json"));
            use_tokenizer(at)
        }),
        reader(
            "tokenizer_config",
            || vec![fixture("t5", "tokenizer_config.json")],
            |at, bytes| {
                write(at, "tokenizer.json", &fixture("t5", "tokenizer.json"));
                write(at, "tokenizer_config.json", bytes);
                use_tokenizer(at)
            },
        ),
        reader("chat_template", chat_template, use_template),
        reader("model_config", model_config, |at, bytes| {
            write(at, "config.json", bytes);
            with_message(ModelDir::open(at).and_then(|dir| gradus::model::ModelShape::of(&dir)))
        }),
        reader("encoder_config", encoder_config, |at, bytes| {
            write(at, "config.json", bytes);
            with_message(ModelDir::open(at).and_then(|dir| gradus::model::ModelShape::of(&dir)))
        }),
        reader(
            "classifier_config",
            || vec![encoder("bert", "config.json")],
            |at, bytes| {
                write(at, "config.json", bytes);
                write(at, "model.safetensors", &encoder("bert", "model.safetensors"));
                with_message(ModelDir::open(at).and_then(|dir| Classifier::load(&dir, &Device::flex())))
            },
        ),
        reader("weights", weights, |at, bytes| {
            write(at, "config.json", tiny_config().to_string().as_bytes());
            write(at, "model.safetensors", bytes);
            with_message(ModelDir::open(at).and_then(|dir| CausalLm::load(&dir, &Device::flex())))
        }),
        reader("torch_weights", torch_weights, |at, bytes| {
            let config = fixtures().join("models/gpt2/config.json");
            write(at, "config.json", &std::fs::read(config).expect("a fixture"));
            write(at, "pytorch_model.bin", bytes);
            with_message(ModelDir::open(at).and_then(|dir| CausalLm::load(&dir, &Device::flex())))
        }),
        reader("shard_index", shard_index, |at, bytes| {
            write(at, "config.json", tiny_config().to_string().as_bytes());
            write(at, "model-1.safetensors", &weights()[0]);
            let _ = std::fs::remove_file(at.join("model.safetensors"));
            write(at, "model.safetensors.index.json", bytes);
            with_message(ModelDir::open(at).and_then(|dir| CausalLm::load(&dir, &Device::flex())))
        }),
        reader("adapter_config", adapter_config, |at, bytes| {
            write(at, "adapter_config.json", bytes);
            with_message(AdapterDir::open(at))
        }),
        reader("configuration", configuration, |_, bytes| {
            let text = String::from_utf8_lossy(bytes);
            with_message(RunConfig::parse(&text))
        }),
        reader("metrics", metrics, |at, bytes| with_message(read_metrics(&write(at, "metrics.jsonl", bytes)))),
        reader("state", state, |at, bytes| {
            write(at, "state.json", bytes);
            with_message(claim::read_state(at))
        }),
        reader("tensors", tensors, |at, bytes| {
            let tensors = read_state(&write(at, "optimizer.safetensors", bytes)).map_err(|error| error.to_string())?;
            let (betas, moments) = ([0.9, 0.999], MomentFormat::Int8);
            let config = AdamWConfig { betas, epsilon: 1e-8, weight_decay: 0.0, moments };
            optimizer_state::read(tensors, "", config.into(), &Device::flex()).map(drop)
        }),
        reader("lexicon", lexicon, |at, bytes| with_message(Lexicon::read(&write(at, "lexicon.txt", bytes)))),
        reader("rollouts", rollouts, |at, bytes| {
            write(at, "rollouts.sqlite", bytes);
            write(at, "metrics.jsonl", b"");
            let run = RunDir::open(at).expect("a run directory");
            with_message(RolloutDb::open(&run).and_then(|db| db.query(&Query::default())))
        }),
    ]
}

fn with_message<T>(read: gradus::Result<T>) -> Result<(), String> {
    read.map(drop).map_err(|error| error.to_string())
}

fn write(directory: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = directory.join(name);
    std::fs::write(&path, bytes).expect("files can be written");
    path
}

fn fixture(model: &str, name: &str) -> Vec<u8> {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/trajectories/models");
    std::fs::read(models.join(model).join(name)).expect("the fixture is part of the repository")
}

fn encoder(model: &str, name: &str) -> Vec<u8> {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/encoders");
    std::fs::read(models.join(model).join(name)).expect("the fixture is part of the repository")
}

fn encoder_config() -> Vec<Vec<u8>> {
    ["bert", "distilbert", "longformer", "albert", "modernbert", "deberta"]
        .map(|model| encoder(model, "config.json"))
        .to_vec()
}

fn rows(directory: &Path, name: &str, bytes: &[u8]) -> Result<(), String> {
    let path = write(directory, name, bytes);
    with_message(load(&path.display().to_string(), &LoadOptions::default()))
}

/// Rows of several kinds, each a separate data set.
fn data() -> Vec<Vec<Value>> {
    vec![
        vec![json!({ "text": "The tea is good." }), json!({ "text": "Grüße 👋" })],
        vec![json!({ "prompt": "Tea?", "chosen": " Yes.", "rejected": " No.", "margin": 0.5, "id": 3 })],
        vec![json!({ "messages": [{ "role": "user", "content": "Hi" }, { "role": "assistant", "content": "Hello" }] })],
        vec![json!({ "prompt": "2 + 2 =", "completion": " 4", "weight": 1.5 })],
        vec![json!({ "input_ids": [1, 2, 3], "completion_mask": [0, 1, 1] })],
    ]
}

/// Rows whose columns contain lists and mappings of several kinds.
fn nested() -> Vec<Vec<Value>> {
    let answer = "Wärmer tea. It sings.";
    let feedback = json!({
        "question": "Tea?", "passages": [["Tea", "It sings.", "It is warm."]], "gold": "Yes.",
        "prediction 1": answer, "prediction 2": "a", "prediction 3": "b", "prediction 4": "c",
        "feedback": {
            "errors": [{ "error type": "Irrelevant", "explanation": "", "start": 0, "end": 11 }],
            "missing-info": [{ "error type": "Missing-Answer", "passage_id": 1, "sentence_id": [0, 2] }],
            "corrected-prediction": "Yes."
        },
        "preference": [0, 1, 2, 0, 1, 2]
    });
    let passages = json!([{ "wikipage": "Tea", "content": "It sings." }]);
    let scored = |text: &str| json!({ "text": text, "toxicity": 0.5, "threat": null });
    vec![
        vec![feedback],
        vec![json!({ "question": "Tea?", "passages": passages, "answer": ["Yes.", "No."] })],
        vec![json!({ "prompt": scored("Tea"), "continuation": scored(" is"), "challenging": false })],
    ]
}

fn json_lines() -> Vec<Vec<u8>> {
    let lines = |rows: Vec<Value>| rows.iter().map(|row| format!("{row}\n")).collect::<String>().into_bytes();
    data().into_iter().chain(nested()).map(lines).collect()
}

fn json_array() -> Vec<Vec<u8>> {
    data().into_iter().map(|rows| Value::Array(rows).to_string().into_bytes()).collect()
}

fn csv() -> Vec<Vec<u8>> {
    let texts = ["text\nThe tea is good.\n\"a, \"\"b\"\"\nc\"\n", "prompt,chosen,rejected\nTea?,Yes.,No.\n"];
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn text() -> Vec<Vec<u8>> {
    let texts =
        ["The tea is good.\n\nA cup of it.\n", "One\n<|endoftext|>\nTwo\r\n<|endoftext|>\r\n<|endoftext|>\nThree"];
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn gzip() -> Vec<Vec<u8>> {
    let pack = |bytes: Vec<u8>| {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        packed.write_all(&bytes).expect("memory takes it");
        packed.finish().expect("memory takes it")
    };
    json_lines().into_iter().map(pack).collect()
}

fn parquet() -> Vec<Vec<u8>> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = |rows: Vec<Value>| {
        let path = directory.path().join("rows.parquet");
        let rows: Vec<Map<String, Value>> =
            rows.iter().map(|row| row.as_object().expect("an object").clone()).collect();
        write_rows(&Outputs::new(true).file(&path).expect("may be written"), &rows).expect("written");
        std::fs::read(path).expect("readable")
    };
    data().into_iter().map(file).collect()
}

/// Arrow files from gradus and from other libraries: compressed, in the file format, with growing dictionaries.
fn arrow() -> Vec<Vec<u8>> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = |rows: Vec<Value>| {
        let path = directory.path().join("rows.arrow");
        let rows: Vec<Map<String, Value>> =
            rows.iter().map(|row| row.as_object().expect("an object").clone()).collect();
        write_rows(&Outputs::new(true).file(&path).expect("may be written"), &rows).expect("written");
        std::fs::read(path).expect("readable")
    };
    let theirs = ["saved/data-00000-of-00003.arrow", "dictionaries.arrow"];
    data().into_iter().chain(nested()).map(file).chain(theirs.map(arrow_fixture)).collect()
}

/// Files with a column of every type, which are not training rows.
fn arrow_types() -> Vec<Vec<u8>> {
    ["types.arrow", "batches.arrow", "file.arrow", "lz4.arrow", "lz4.feather", "zstd.arrow", "legacy.arrow"]
        .map(arrow_fixture)
        .to_vec()
}

fn arrow_fixture(name: &str) -> Vec<u8> {
    std::fs::read(fixtures().join("arrow").join(name)).expect("the fixture is part of the repository")
}

/// Reads rows of any columns and returns the first error.
fn every_row(path: &Path) -> Result<(), String> {
    with_message(open(path).and_then(|mut rows| rows.try_for_each(|row| row.map(drop))))
}

/// One tokenizer of each model, and one with every step that changes a text.
fn tokenizer() -> Vec<Vec<u8>> {
    let steps = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": { "type": "Sequence", "normalizers": [
            { "type": "Prepend", "prepend": "▁" },
            { "type": "Replace", "pattern": { "String": " " }, "content": "▁" },
            { "type": "Replace", "pattern": { "Regex": " {2,}" }, "content": " " },
            { "type": "NFKC" }, { "type": "Lowercase" }, { "type": "StripAccents" },
            { "type": "Strip", "strip_left": true, "strip_right": true }
        ] },
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": [
            { "type": "Split", "pattern": { "Regex": "\\p{N}{1,3}" }, "behavior": "Isolated", "invert": false },
            { "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true },
            { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true }
        ] },
        "post_processor": { "type": "TemplateProcessing", "single": [{ "Sequence": { "id": "A", "type_id": 0 } }], "pair": [], "special_tokens": {} },
        "decoder": { "type": "Sequence", "decoders": [
            { "type": "Replace", "pattern": { "String": "▁" }, "content": " " }, { "type": "ByteFallback" },
            { "type": "Fuse" }, { "type": "Strip", "content": " ", "start": 1, "stop": 0 }
        ] },
        "model": { "type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true,
            "vocab": { "<unk>": 0, "t": 1, "e": 2, "te": 3, "a": 4, "tea": 5 }, "merges": ["t e", "te a"] }
    });
    let fixtures = [fixture("t5", "tokenizer.json"), fixture("gpt2", "tokenizer.json")];
    let encoders = ["bert", "deberta"].map(|model| encoder(model, "tokenizer.json"));
    [steps.to_string().into_bytes()].into_iter().chain(fixtures).chain(encoders).collect()
}

fn sentencepiece() -> Vec<Vec<u8>> {
    vec![std::fs::read(fixtures().join("sentencepiece/llama/tokenizer.model")).expect("a fixture")]
}

fn use_tokenizer(directory: &Path) -> Result<(), String> {
    let tokenizer = Tokenizer::from_dir(directory).map_err(|error| error.to_string())?;
    let ids = tokenizer.encode("The tea is good. Grüße\n", true).map_err(|error| error.to_string())?;
    with_message(tokenizer.decode(&ids, false))
}

fn chat_template() -> Vec<Vec<u8>> {
    let mut seeds = vec![fixture("gpt2", "chat_template.jinja")];
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/chat_templates");
    for entry in std::fs::read_dir(folder).expect("templates").flatten() {
        if entry.path().extension().is_some_and(|extension| extension == "jinja") {
            seeds.push(std::fs::read(entry.path()).expect("readable"));
        }
    }
    seeds.sort();
    seeds
}

fn use_template(directory: &Path, bytes: &[u8]) -> Result<(), String> {
    thread_local! {
        static TOKENIZER: Tokenizer = {
            let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/trajectories/models/gpt2");
            Tokenizer::from_dir(&models).expect("a tokenizer")
        };
    }
    let source = String::from_utf8_lossy(bytes);
    let messages = [json!({ "role": "user", "content": "Hi" }), json!({ "role": "assistant", "content": "Hello" })];
    let template = TOKENIZER.with(|tokenizer| ChatTemplate::from_source(&source, directory.join("t.jinja"), tokenizer));
    let template = template.map_err(|error| error.to_string())?;
    // A template may reject the conversation and still be readable.
    let _ = template.render(&messages, &RenderOptions::default()).map_err(|error| error.to_string());
    Ok(())
}

fn model_config() -> Vec<Vec<u8>> {
    let decoder = |name: &str| {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/models");
        std::fs::read(models.join(name)).expect("the fixture is part of the repository")
    };
    // Soft caps, two RoPE bases in both spellings, layers without positions, factors for long sequences.
    let decoders = [
        "gemma2/config",
        "gemma3/config",
        "gemma3-rope/config_legacy",
        "smollm3-window/config",
        "phi3-rope-longrope/config",
    ];
    let of_decoders = decoders.map(|name| decoder(&format!("{name}.json")));
    ["gpt2", "qwen3", "t5"].map(|model| fixture(model, "config.json")).into_iter().chain(of_decoders).collect()
}

/// A model of a few hundred parameters.
fn tiny_config() -> Value {
    json!({
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 6, "n_embd": 4, "n_layer": 1, "n_head": 2,
        "n_positions": 8, "n_inner": 4
    })
}

fn weights() -> Vec<Vec<u8>> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let dir = ModelDir::unsaved(tiny_config().as_object().expect("an object").clone());
    let mut stream = Seed(1).stream(Purpose::Init, 0, 0);
    let model = CausalLm::random(&dir, &mut stream, &Device::flex()).expect("a model");
    save_causal(&model, &dir, directory.path()).expect("saved");
    vec![std::fs::read(directory.path().join("model.safetensors")).expect("written")]
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity")
}

/// A torch archive, and a file in the older format.
fn torch_weights() -> Vec<Vec<u8>> {
    let read = |name| std::fs::read(fixtures().join("torch_weights").join(name)).expect("a fixture");
    ["gpt2.bin", "gpt2-old.bin"].map(read).to_vec()
}

fn shard_index() -> Vec<Vec<u8>> {
    let bytes = weights().remove(0);
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let header: Map<String, Value> = serde_json::from_slice(&bytes[8..8 + length]).expect("a header");
    let names = header.keys().filter(|name| *name != "__metadata__");
    let map: Map<String, Value> = names.map(|name| (name.clone(), json!("model-1.safetensors"))).collect();
    vec![json!({ "metadata": { "total_size": 1 }, "weight_map": map }).to_string().into_bytes()]
}

fn adapter_config() -> Vec<Vec<u8>> {
    let config = json!({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8, "lora_dropout": 0.1,
        "target_modules": ["c_attn"], "rank_pattern": { "h.0": 2 }, "alpha_pattern": {}, "bias": "none",
        "base_model_name_or_path": "gpt2", "use_dora": false, "layers_to_transform": [0]
    });
    vec![config.to_string().into_bytes()]
}

fn configuration() -> Vec<Vec<u8>> {
    let texts = [
        "model: gpt2\ndata: rows.jsonl\nmethod: { sft: {} }\ntrain: { batch_size: 4, adam_betas: [0.9, 0.99] }\n",
        "model: gpt2\ndata: p.jsonl\nmethod:\n  ppo: { clip_range: 0.2, kl: { target: 6 } }\nreward:\n  mix:\n    - \
         { weight: 1, reward: { model: rm } }\n    - { weight: 0.5, reward: { rule: { regex: 'thank' } } }\n",
        "{\"model\": \"m\", \"data\": \"d\", \"method\": {\"dpo\": {\"beta\": 0.1}}, \"lora\": {\"rank\": 8}}",
    ];
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn metrics() -> Vec<Vec<u8>> {
    vec![b"{\"step\": 1, \"loss\": 2.5, \"x\": null}\n{\"step\": 2, \"loss\": 2.25, \"note\": \"a\"}\n".to_vec()]
}

fn state() -> Vec<Vec<u8>> {
    let state = json!({
        "state": "running", "started": 1_700_000_000, "ended": null, "steps": 40, "error": null,
        "process": { "pid": 4, "start_ticks": 9, "boot_id": "b", "host": "h" }, "gradus": "0.1.0"
    });
    vec![state.to_string().into_bytes()]
}

fn tensors() -> Vec<Vec<u8>> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("t.safetensors");
    let mut tensors = moments("a", &[2, 3], Some(&[0.5; 6]), &[0.5; 6]);
    tensors.extend(moments_in_int8("b", [(&[0, 128, 255], &[0.5]), (&[0, 1, 255], &[0.25])]));
    tensors.push(NamedTensor::new("step.", [1], vec![3.0]).into());
    write_state(&path, &tensors).expect("written");
    vec![std::fs::read(path).expect("readable")]
}

fn lexicon() -> Vec<Vec<u8>> {
    vec![b"good\t1.9\t0.9\t[2, 1, 1, 3]\nbad\t-2.5\t0.6\t[-3, -2]\n".to_vec()]
}

fn rollouts() -> Vec<Vec<u8>> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let run = RunDir::create(directory.path().join("run"), Existing::Refuse).expect("created");
    let mut writer = RolloutWriter::open(&run.rollouts(), 0).expect("opened");
    let record = |step: usize| Record {
        step,
        prompt: "Tea?".into(),
        completion: " Yes.".into(),
        reward: Some(1.0),
        components: vec![("rule".into(), Some(1.0))],
        segments: vec![("rule".into(), vec![Segment { characters: 0..3, value: 0.5 }])],
        advantages: vec![Segment { characters: 0..4, value: -0.25 }, Segment { characters: 4..5, value: 2.0 }],
        ..Record::default()
    };
    writer.append(RolloutTable::Train, (1..4).map(record).collect()).expect("written");
    writer.finish().expect("closed");
    vec![std::fs::read(run.rollouts()).expect("readable")]
}
