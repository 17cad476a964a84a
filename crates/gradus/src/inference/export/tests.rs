//! Reads exported files with a separate reader and compares them with the original model.

use crate::pretrained::TextFiles;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::*;
use crate::model::named_tensors;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity").join(name)
}

/// Content of a file: keys as text, and tensors as stored.
#[derive(Debug, Default)]
struct File {
    metadata: BTreeMap<String, String>,
    tensors: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
}

struct Reader<'a>(&'a [u8], usize);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        self.1 += N;
        self.0[self.1 - N..self.1].try_into().expect("so many bytes")
    }
    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }
    fn u64(&mut self) -> usize {
        u64::from_le_bytes(self.take()) as usize
    }
    fn text(&mut self) -> String {
        let length = self.u64();
        self.1 += length;
        String::from_utf8(self.0[self.1 - length..self.1].to_vec()).expect("UTF-8")
    }
    fn value(&mut self, kind: u32) -> String {
        match kind {
            4 => self.u32().to_string(),
            5 => i32::from_le_bytes(self.take()).to_string(),
            6 => f32::from_le_bytes(self.take()).to_string(),
            7 => (self.take::<1>()[0] == 1).to_string(),
            8 => self.text(),
            9 => {
                let (kind, count) = (self.u32(), self.u64());
                (0..count).map(|_| self.value(kind)).collect::<Vec<_>>().join("|")
            }
            other => panic!("type {other}"),
        }
    }
}

fn half(bits: u16) -> f32 {
    let (exponent, rest) = (bits >> 10 & 31, f32::from(bits & 0x3ff));
    match exponent {
        0 => rest * 2.0f32.powi(-24),
        _ => (1.0 + rest / 1024.0) * 2.0f32.powi(i32::from(exponent) - 15),
    }
}

fn read(path: &Path) -> File {
    let bytes = std::fs::read(path).expect("a file");
    let mut reader = Reader(&bytes, 0);
    assert_eq!((reader.take(), reader.u32()), (*b"GGUF", 3));
    let (tensors, metadata) = (reader.u64(), reader.u64());
    let mut file = File::default();
    for _ in 0..metadata {
        let (key, kind) = (reader.text(), reader.u32());
        let value = reader.value(kind);
        assert!(file.metadata.insert(key, value).is_none(), "a key twice");
    }
    let infos: Vec<(String, Vec<usize>, u32, usize)> = (0..tensors)
        .map(|_| {
            let (name, count) = (reader.text(), reader.u32());
            let mut dims: Vec<usize> = (0..count).map(|_| reader.u64()).collect();
            dims.reverse();
            (name, dims, reader.u32(), reader.u64())
        })
        .collect();
    let data = reader.1.next_multiple_of(32);
    for (name, dims, kind, offset) in infos {
        assert_eq!(offset % 32, 0, "{name}");
        let (size, mut at) = (dims.iter().product::<usize>(), Reader(&bytes, data + offset));
        let values: Vec<f32> = match kind {
            0 => (0..size).map(|_| f32::from_le_bytes(at.take())).collect(),
            30 => (0..size).map(|_| f32::from_bits(u32::from(u16::from_le_bytes(at.take())) << 16)).collect(),
            8 => (0..size / 32)
                .flat_map(|_| {
                    let scale = half(u16::from_le_bytes(at.take()));
                    at.take::<32>().map(|byte| f32::from(byte as i8) * scale)
                })
                .collect(),
            other => panic!("type {other}"),
        };
        file.tensors.insert(name, (dims, values));
    }
    file
}

fn exported(model: &Path, weights: GgufWeights) -> Result<(File, Exported)> {
    let folder = tempfile::tempdir().expect("a folder");
    let output = folder.path().join("model.gguf");
    let options = ExportOptions {
        model: model.display().to_string(),
        adapter: None,
        weights,
        output: output.clone(),
        overwrite: false,
        text: TextFiles::default(),
    };
    let result = export(&options)?;
    assert_eq!(result.bytes, std::fs::metadata(&output).expect("the file").len());
    Ok((read(&output), result))
}

#[test]
fn every_tensor_is_there_under_its_name() {
    for (name, architecture, change) in [
        ("gpt2", "gpt2", 0.0),
        ("llama-gqa", "llama", 0.0),
        ("llama-rope-llama3", "llama", 0.0),
        ("mistral-window", "llama", 0.0),
        ("qwen2", "qwen2", 0.0),
        ("qwen3", "qwen3", 0.0),
        ("gemma3", "gemma3", 1.0),
        ("gemma3-rope", "gemma3", 1.0),
    ] {
        let path = fixture("models").join(name);
        // Gemma 3's fixture divides its scores by a different root than llama.cpp.
        let folder = name.starts_with("gemma3").then(|| scaled(&path));
        let dir = folder.as_ref().map_or(path, |folder| folder.path().into());
        let model =
            CausalLm::load(&ModelDir::open(&dir).expect("opens"), &DeviceChoice::cpu().device()).expect("loads");
        let [plain, bf16, q8] = GgufWeights::ALL.map(|weights| {
            let (file, result) = exported(&dir, weights).expect("can be written");
            assert_eq!((result.architecture, &file.metadata["general.architecture"][..]), (architecture, architecture));
            file
        });
        let held = named_tensors(&model);
        assert_eq!(plain.tensors.len(), held.len() + usize::from(name == "llama-rope-llama3"), "{name}");
        // The sum of squares is independent of order and different for every tensor.
        let square = |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x).powi(2)).sum::<f64>();
        for tensor in held {
            let is_norm = tensor.name.ends_with("norm.weight") && !tensor.name.contains("ln_");
            let offset = if is_norm { change } else { 0.0 };
            let expected_sum = square(&mut tensor.values.iter().map(|x| x + offset));
            let found = plain.tensors.values().filter(|(dims, values)| {
                dims.iter().product::<usize>() == tensor.values.len()
                    && (square(&mut values.iter().copied()) / expected_sum - 1.0).abs() < 1e-6
            });
            assert_eq!(found.count(), 1, "{name}: {}", tensor.name);
        }
        // The other formats round each number: to 8 significant bits, or to a 254th of its block's range with a scale of 11 bits.
        for (file, bound) in [(bf16, 1.0 / 256.0), (q8, 1.0 / 254.0 + 1.0 / 2048.0)] {
            for (name, (dims, values)) in file.tensors {
                let (expected, exact) = &plain.tensors[&name];
                assert_eq!(&dims, expected, "{name}");
                for (found, exact) in values.chunks(32).zip(exact.chunks(32)) {
                    let largest = exact.iter().fold(0.0f32, |most, value| most.max(value.abs()));
                    let off = found.iter().zip(exact).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                    assert!(off <= bound * largest, "{name}: {off} of {largest}");
                }
            }
        }
    }
}

/// Returns the model with scores divided by the root of a head's width.
fn scaled(path: &Path) -> tempfile::TempDir {
    changed(path, &[("\"query_pre_attn_scalar\": 7", "\"query_pre_attn_scalar\": 10")])
}

/// Returns the model with changes of its configuration: a text and the one in its place.
fn changed(path: &Path, changes: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let to = folder.path();
    std::fs::copy(path.join("model.safetensors"), to.join("model.safetensors")).expect("copied");
    let mut config = std::fs::read_to_string(path.join("config.json")).expect("a configuration");
    for (from, by) in changes {
        assert!(config.contains(from), "{from}");
        config = config.replace(from, by);
    }
    std::fs::write(to.join("config.json"), config).expect("written");
    folder
}

#[test]
fn queries_lie_in_pairs_and_norms_count_from_0() {
    let path = fixture("models/llama-gqa");
    let (file, _) = exported(&path, GgufWeights::F32).expect("can be written");
    let model = CausalLm::load(&ModelDir::open(&path).expect("opens"), &DeviceChoice::cpu().device()).expect("loads");
    let held: BTreeMap<String, Vec<f32>> = named_tensors(&model)
        .into_iter()
        .map(|tensor| (tensor.name.into_owned(), tensor.values.into_owned()))
        .collect();
    // Two key heads of eight rows of length 32: rows 0, 4, 1, 5, … of each.
    let (keys, expected) = (&file.tensors["blk.1.attn_k.weight"].1, &held["trunk.layers.1.self_attn.k_proj.weight"]);
    for (row, from) in [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15].into_iter().enumerate() {
        assert_eq!(keys[row * 32..][..32], expected[from * 32..][..32], "row {row}");
    }
    assert_eq!(file.tensors["blk.1.attn_v.weight"].1, held["trunk.layers.1.self_attn.v_proj.weight"]);
    assert_eq!(file.tensors["output.weight"].0, [96, 32]);
    for (key, value) in [
        ("llama.block_count", "2"),
        ("llama.attention.head_count_kv", "2"),
        ("llama.attention.key_length", "8"),
        ("llama.rope.freq_base", "10000"),
        ("general.file_type", "0"),
        ("tokenizer.ggml.model", "no_vocab"),
    ] {
        assert_eq!(file.metadata[key], value, "{key}");
    }
    let gemma = scaled(&fixture("models/gemma3"));
    let (file, _) = exported(gemma.path(), GgufWeights::F32).expect("can be written");
    assert_eq!(file.metadata["gemma3.attention.sliding_window_pattern"], "3");
    assert_eq!(
        [&file.metadata["gemma3.rope.freq_base"][..], &file.metadata["gemma3.rope.freq_base_swa"]],
        ["1000000", "10000"]
    );
    let (_, result) = exported(&fixture("models/mistral-window"), GgufWeights::Q8).expect("can be written");
    assert!(result.notes.join(" ").contains("the context is the window, 5 tokens"), "{:?}", result.notes);
}

#[test]
fn what_llama_cpp_does_not_compute_is_refused() {
    for (name, part) in [
        ("olmo2", "`olmo2` cannot be written as GGUF (possible: gpt2, llama"),
        ("gemma2", "not divided by the root of 10"),
        ("llama-rope-yarn", "of the kind dynamic, yarn or longrope"),
        ("gpt2-inverse-layer", "llama.cpp supports only GPT-2's own scaling"),
    ] {
        let error = exported(&fixture("models").join(name), GgufWeights::F32).expect_err("not possible").to_string();
        assert!(error.contains(part), "{part} in {error}");
    }
}

#[test]
fn a_gemma_whose_windows_llama_cpp_computes_differently_is_refused() {
    let scores = ("\"query_pre_attn_scalar\": 7", "\"query_pre_attn_scalar\": 10");
    let scaled_windows = ("\"rope_theta\": 50.0", "\"factor\": 4.0, \"rope_theta\": 50.0");
    let kind = ("\"rope_type\": \"default\"", "\"rope_type\": \"linear\"");
    let [no_windows, none_at_the_end] =
        [("\"sliding_attention\",", "\"full_attention\","), ("\"sliding_attention\"\n", "\"full_attention\"\n")];
    for (name, changes, part) in [
        (
            "gemma3-rope",
            &[scores, scaled_windows, kind][..],
            "the layers with windows are scaled, which llama.cpp does not",
        ),
        (
            "gemma3-rope",
            &[scores, no_windows][..],
            "no layer has a window, but llama.cpp loads gemma3 only with windows",
        ),
        (
            "gemma2",
            &[scores, no_windows, none_at_the_end][..],
            "no layer has a window, but llama.cpp loads gemma2 only with windows",
        ),
    ] {
        let folder = changed(&fixture("models").join(name), changes);
        let error = exported(folder.path(), GgufWeights::F32).expect_err("not possible").to_string();
        assert!(error.contains(part), "{part} in {error}");
    }
}

/// Copies the model `qwen3` with its tokenizer, and changes a file of it.
fn with_changed(file: &str, change: impl FnOnce(&mut serde_json::Value)) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for file in std::fs::read_dir(fixture("trajectories/models/qwen3")).expect("a folder") {
        let file = file.expect("readable").path();
        std::fs::copy(&file, folder.path().join(file.file_name().expect("a name"))).expect("copied");
    }
    let file = folder.path().join(file);
    let mut json = serde_json::from_slice(&std::fs::read(&file).expect("the file")).expect("JSON");
    change(&mut json);
    std::fs::write(&file, json.to_string()).expect("written");
    folder
}

#[test]
fn a_normalizer_that_llama_cpp_lacks_is_named() {
    let path = fixture("trajectories/models/qwen3");
    let (_, plain) = exported(&path, GgufWeights::Bf16).expect("can be written");
    assert_eq!(plain.notes, Vec::<String>::new());
    let folder = with_changed("tokenizer.json", |json| json["normalizer"] = serde_json::json!({ "type": "NFC" }));
    let (_, noted) = exported(folder.path(), GgufWeights::Bf16).expect("can be written");
    assert_eq!(noted.notes.len(), 1);
    assert!(
        noted.notes[0].starts_with("llama.cpp does not normalize texts, but the tokenizer does (NFC)"),
        "{:?}",
        noted.notes
    );
}

/// llama.cpp 11549 reads texts otherwise than transformers 5.23 with each of these tokenizers.
#[test]
fn a_tokenizer_that_llama_cpp_lacks_is_refused() {
    let template = serde_json::json!({
        "type": "TemplateProcessing",
        "single": [{ "SpecialToken": { "id": "<|turn|>", "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }],
        "pair": [{ "Sequence": { "id": "A", "type_id": 0 } }, { "Sequence": { "id": "B", "type_id": 0 } }],
        "special_tokens": { "<|turn|>": { "id": "<|turn|>", "ids": [3], "tokens": ["<|turn|>"] } },
    });
    let around = with_changed("tokenizer.json", |json| json["post_processor"] = template);
    let spaces = with_changed("tokenizer.json", |json| json["pre_tokenizer"]["add_prefix_space"] = true.into());
    for (folder, part) in [
        (around, "the tokenizer reads the text `a` as `<|turn|> a`. llama.cpp can only put `bos_token`"),
        (spaces, "the pre_tokenizer of the tokenizer is {\"type\":\"ByteLevel\",\"add_prefix_space\":true,"),
    ] {
        let error = exported(folder.path(), GgufWeights::F32).expect_err("not possible").to_string();
        assert!(error.contains(part), "{part} in {error}");
    }
    // Without an end, llama.cpp takes one of its own.
    let endless = with_changed("tokenizer_config.json", |json| json["eos_token"] = serde_json::Value::Null);
    std::fs::remove_file(endless.path().join("generation_config.json")).expect("removed");
    let config = endless.path().join("config.json");
    let mut json: serde_json::Value = serde_json::from_slice(&std::fs::read(&config).expect("read")).expect("JSON");
    json["eos_token_id"] = serde_json::Value::Null;
    std::fs::write(&config, json.to_string()).expect("written");
    let error = exported(endless.path(), GgufWeights::F32).expect_err("not possible").to_string();
    assert!(error.contains("no token ends a text. llama.cpp would then end texts at the id 11"), "{error}");
}

#[test]
fn ends_beyond_the_third_and_flags_of_tokens_are_named() {
    let ends = with_changed("generation_config.json", |json| json["eos_token_id"] = serde_json::json!([2, 20, 21, 22]));
    let (file, result) = exported(ends.path(), GgufWeights::F32).expect("can be written");
    let ids = ["eos", "eot", "eom"].map(|name| file.metadata[&format!("tokenizer.ggml.{name}_token_id")].clone());
    assert_eq!(ids, ["2", "20", "21"]);
    assert_eq!(result.notes.len(), 1, "{:?}", result.notes);
    assert!(
        result.notes[0].starts_with("the file has only three ids that end a completion: llama.cpp may not end at `")
            && result.notes[0].ends_with("` (22)"),
        "{:?}",
        result.notes
    );
    let flags = with_changed("tokenizer.json", |json| json["added_tokens"][3]["rstrip"] = true.into());
    let (_, result) = exported(flags.path(), GgufWeights::F32).expect("can be written");
    assert_eq!(result.notes.len(), 1, "{:?}", result.notes);
    assert!(result.notes[0].starts_with("llama.cpp ignores the flags of added tokens (`<|turn|>`: rstrip)"));
}

#[test]
fn tokenizer_template_and_ends_are_in_the_file() {
    let path = fixture("trajectories/models/qwen3");
    let (file, _) = exported(&path, GgufWeights::Bf16).expect("can be written");
    let files = Pretrained::of(ModelDir::open(&path).expect("opens"), &TextFiles::default()).expect("a tokenizer");
    let tokens: Vec<&str> = file.metadata["tokenizer.ggml.tokens"].split('|').collect();
    assert_eq!(file.metadata["tokenizer.ggml.model"], "gpt2");
    assert_eq!(
        Some(file.metadata["tokenizer.ggml.eos_token_id"].clone()),
        files.tokenizer.eos_id().map(|id| id.to_string())
    );
    assert_eq!(file.metadata["tokenizer.chat_template"], files.template.as_ref().expect("a template").source());
    assert!(!file.metadata.contains_key("tokenizer.chat_templates"));
    let named = with_changed("config.json", |_| {});
    let folder = named.path().join("additional_chat_templates");
    std::fs::create_dir(&folder).expect("a folder");
    // A template that no conversation uses need not be valid for gradus.
    for (name, source) in [("tool_use", "of tools"), ("my-rag", "{% of %}"), ("my.rag", "of texts"), (".hidden", "")] {
        std::fs::write(folder.join(format!("{name}.jinja")), source).expect("written");
    }
    let (with_tools, _) = exported(named.path(), GgufWeights::Bf16).expect("can be written");
    assert_eq!(with_tools.metadata["tokenizer.chat_template"], file.metadata["tokenizer.chat_template"]);
    assert_eq!(with_tools.metadata["tokenizer.chat_template.tool_use"], "of tools");
    assert_eq!(with_tools.metadata["tokenizer.chat_template.my_rag"], "{% of %}");
    assert_eq!(with_tools.metadata["tokenizer.chat_templates"], "my_rag|tool_use");
    // Every id has its text, except if the text contains the separator of this test.
    let json = files.tokenizer.to_json().expect("JSON");
    let merges = json["model"]["merges"].as_array().expect("merges").len();
    assert_eq!(file.metadata["tokenizer.ggml.merges"].split('|').count(), merges);
    let kinds: Vec<&str> = file.metadata["tokenizer.ggml.token_type"].split('|').collect();
    let id = files.tokenizer.eos_id().expect("an end") as usize;
    assert_eq!((tokens[id], kinds[id]), (files.tokenizer.eos_token().expect("an end"), "3"));
}
