//! Missing and damaged model files, with the exact message of each.

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use gradus::Error;
use gradus::config::{Plan, RunConfig};
use gradus::machine::Machine;
use gradus::model::{CausalLm, ModelDir, RewardModel};
use gradus::train::observer::Silent;
use serde_json::{Value, json};

/// Copies the fixture `name` to a separate directory.
fn copy(name: &str) -> tempfile::TempDir {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/models").join(name);
    let to = tempfile::tempdir().expect("temporary directory");
    for file in std::fs::read_dir(from).expect("fixture") {
        let file = file.expect("entry").path();
        std::fs::copy(&file, to.path().join(file.file_name().expect("name"))).expect("copied");
    }
    to
}

fn load(dir: &Path) -> Result<(), Error> {
    CausalLm::load(&ModelDir::open(dir)?, &Device::flex()).map(drop)
}

/// Asserts that loading `dir` fails with exactly `message`, in which `[DIR]` stands for the directory, and with this
/// hint.
#[track_caller]
fn fails(dir: &Path, message: &str, hint: Option<&str>) {
    let error = load(dir).expect_err("a bad model");
    assert_eq!(error.to_string().replace(&dir.display().to_string(), "[DIR]"), message);
    assert_eq!(error.hint(), hint);
}

fn edit_config(dir: &Path, from: &str, to: &str) {
    let path = dir.join("config.json");
    let text = std::fs::read_to_string(&path).expect("config");
    assert!(text.contains(from), "{from}");
    std::fs::write(path, text.replace(from, to)).expect("written");
}

fn weights(dir: &Path) -> PathBuf {
    dir.join("model.safetensors")
}

const DAMAGED: Option<&str> = Some("the file is damaged or was not downloaded completely; fetch it again");
const MISFIT: Option<&str> = Some("check that `config.json` and the weights belong together");

#[test]
fn a_truncated_file_says_how_much_is_missing() {
    let dir = copy("gpt2");
    let bytes = std::fs::read(weights(dir.path())).expect("weights");
    std::fs::write(weights(dir.path()), &bytes[..bytes.len() - 100]).expect("cut");
    let (whole, cut) = (bytes.len(), bytes.len() - 100);
    let message = format!("[DIR]/model.safetensors: truncated: its header promises {whole} bytes, the file has {cut}");
    fails(dir.path(), &message, DAMAGED);
    std::fs::write(weights(dir.path()), b"abc").expect("cut");
    fails(dir.path(), "[DIR]/model.safetensors: 3 bytes are too few for a safetensors file", DAMAGED);
}

#[test]
fn wrong_shapes_and_missing_tensors_are_listed_together() {
    let dir = copy("gpt2");
    edit_config(dir.path(), "\"vocab_size\": 96", "\"vocab_size\": 97");
    edit_config(dir.path(), "\"n_layer\": 2", "\"n_layer\": 3");
    let error = load(dir.path()).expect_err("a misfit").to_string();
    for part in
        ["the weights do not fit `config.json`: ", "missing tensor `transformer.h.2.ln_1.weight` [32]", "and 3 more"]
    {
        assert!(error.contains(part), "{part} in {error}");
    }
    let shape = copy("gpt2");
    edit_config(shape.path(), "\"vocab_size\": 96", "\"vocab_size\": 97");
    let message = "[DIR]: the weights do not fit `config.json`: tensor `transformer.wte.weight` has shape [96, 32], \
                   expected [97, 32]";
    fails(shape.path(), message, MISFIT);
}

#[test]
fn unexpected_tensors_are_named() {
    let dir = copy("gpt2");
    edit_config(dir.path(), "\"n_layer\": 2", "\"n_layer\": 1");
    let error = load(dir.path()).expect_err("a misfit").to_string();
    assert!(error.contains("unexpected tensor `transformer.h.1.attn.c_attn.bias`"), "{error}");
}

#[test]
fn missing_files_are_named_and_pickles_are_never_executed() {
    let dir = copy("gpt2");
    std::fs::remove_file(weights(dir.path())).expect("removed");
    fails(
        dir.path(),
        "[DIR]: no weights",
        Some("a model directory holds `model.safetensors` or `pytorch_model.bin`, or shards of either with an index"),
    );
    // The older format: a pickle of a number, twice, and one that would run a command.
    let magic = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.";
    let sized =
        [&magic[..], b"\x80\x02M\xe9\x03.", b"\x80\x02}.", b"cposix\nsystem\nX\x04\x00\x00\x00true\x85R."].concat();
    std::fs::write(dir.path().join("pytorch_model.bin"), sized).expect("written");
    let error = load(dir.path()).expect_err("a program");
    let expected = "its pickle uses `posix.system`, which is not part of a weight file; it is not executed";
    assert!(error.to_string().ends_with(expected), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("save_pretrained")), "{error}");
    std::fs::write(dir.path().join("config.json"), "{\"model_type\": }").expect("written");
    fails(dir.path(), "[DIR]/config.json:1: not valid JSON: expected value at line 1 column 16", None);
    std::fs::remove_file(dir.path().join("config.json")).expect("removed");
    fails(dir.path(), "[DIR]: no `config.json`: this is not a model directory", None);
}

#[test]
fn a_family_or_a_kind_that_is_not_known_is_refused() {
    let dir = copy("gpt2");
    edit_config(dir.path(), "\"model_type\": \"gpt2\"", "\"model_type\": \"mamba\"");
    fails(
        dir.path(),
        "[DIR]/config.json: model type `mamba` is not supported (known: gpt2, gpt_neox, opt, llama, mistral, ministral, qwen2, qwen3, gemma2, \
         gemma3_text, smollm3, phi3, olmo2, olmo3, gemma, granite, seed_oss, t5, mt5, bart, \
         blenderbot, blenderbot-small)",
        None,
    );
    edit_config(dir.path(), "\"model_type\": \"mamba\"", "\"model_type\": \"gemma3\"");
    fails(
        dir.path(),
        "[DIR]/config.json: model type `gemma3` also reads images; only its text part, `gemma3_text`, is supported",
        Some("in transformers: `Gemma3ForCausalLM.from_pretrained(DIR).save_pretrained(TO)`"),
    );
    let causal = copy("gpt2");
    let opened = ModelDir::open(causal.path()).expect("opens");
    let error = RewardModel::load(&opened, &Device::flex()).expect_err("no reward model");
    let message = "`GPT2LMHeadModel` is not a reward model (…ForSequenceClassification)";
    assert_eq!(error.to_string(), format!("{}: {message}", causal.path().display()));
    assert_eq!(error.hint(), Some("train one with `gradus reward`"));
}

/// Returns name, number of values and start of the values of the first tensor in a safetensors file.
fn first_tensor(bytes: &[u8]) -> (String, usize, usize) {
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).expect("a header");
    let entries = header.as_object().expect("an object").iter();
    let first = entries.filter(|(name, _)| *name != "__metadata__").find(|(_, entry)| entry["data_offsets"][0] == 0);
    let (name, entry) = first.expect("a tensor");
    let end = entry["data_offsets"][1].as_u64().expect("a number") as usize;
    (name.clone(), end / 4, 8 + length)
}

#[test]
fn numbers_that_are_not_finite_are_named() {
    for (value, shown) in [(f32::NAN, "NaN"), (f32::NEG_INFINITY, "-inf")] {
        let dir = copy("gpt2");
        let mut bytes = std::fs::read(weights(dir.path())).expect("weights");
        let (name, count, start) = first_tensor(&bytes);
        bytes[start + 4..start + 8].copy_from_slice(&value.to_le_bytes());
        std::fs::write(weights(dir.path()), &bytes).expect("written");
        let message = format!("[DIR]/model.safetensors: tensor `{name}` holds {shown} (number 2 of {count})");
        let hint = "nothing can be computed with it: the training that wrote it went wrong, or the file is damaged";
        fails(dir.path(), &message, Some(hint));
    }
}

#[test]
fn sizes_far_from_the_weights_are_refused_before_anything_is_allocated() {
    for (from, to, expected) in [
        ("\"n_layer\": 2", "\"n_layer\": 4000", "it describes a model of "),
        ("\"vocab_size\": 96", "\"vocab_size\": 16000000", "it describes a model of "),
        ("\"n_embd\": 32", "\"n_embd\": 1048576", "it describes a model of "),
        ("\"n_layer\": 2", "\"n_layer\": 1000000000000", "a whole number from 1 to 4096 is needed"),
    ] {
        let dir = copy("gpt2");
        edit_config(dir.path(), from, to);
        let error = load(dir.path()).expect_err("no such model").to_string();
        assert!(error.contains(expected), "{to}: {error}");
    }
}

#[test]
#[cfg(unix)]
fn files_that_are_larger_than_they_look_or_no_files_are_refused() {
    let dir = copy("gpt2");
    let file = std::fs::File::create(weights(dir.path())).expect("created");
    file.set_len(1 << 30).expect("a file with a hole");
    std::os::unix::fs::FileExt::write_all_at(&file, &(200_000_000_u64).to_le_bytes(), 0).expect("written");
    let message = "[DIR]/model.safetensors: its header has 200000000 bytes, but at most 100000000 are read";
    fails(dir.path(), message, DAMAGED);

    let elements: u64 = 1 << 41;
    let header = json!({ "a": { "dtype": "F32", "shape": [elements], "data_offsets": [0, 4 * elements] } }).to_string();
    let mut start = (header.len() as u64).to_le_bytes().to_vec();
    start.extend_from_slice(header.as_bytes());
    std::fs::write(weights(dir.path()), &start).expect("written");
    let file = std::fs::File::options().write(true).open(weights(dir.path())).expect("opened");
    if file.set_len(start.len() as u64 + 4 * elements).is_ok() {
        let error = load(dir.path()).expect_err("larger than any memory").to_string();
        assert!(error.contains("its tensors have 8796093022208 bytes, but this machine has "), "{error}");
    }

    std::fs::remove_file(weights(dir.path())).expect("removed");
    std::os::unix::fs::symlink("/dev/urandom", weights(dir.path())).expect("linked");
    fails(dir.path(), "[DIR]/model.safetensors: it is a device, but a file is needed", None);

    std::fs::remove_file(weights(dir.path())).expect("removed");
    let index = dir.path().join("model.safetensors.index.json");
    for name in [json!("../model.safetensors"), json!("/etc/passwd"), json!(".."), json!(7)] {
        std::fs::write(&index, json!({ "weight_map": { "a": name } }).to_string()).expect("written");
        let message = format!(
            "[DIR]/model.safetensors.index.json: the shard of `a` is `{name}`, but must be the name of a file in the \
             directory"
        );
        fails(dir.path(), &message, None);
    }
}

/// Copies a start model and applies `edit` to one of its JSON files.
fn altered(name: &str, file: &str, edit: impl FnOnce(&mut Value)) -> tempfile::TempDir {
    let to = copy(&format!("../trajectories/models/{name}"));
    let path = to.path().join(file);
    let mut json: Value = serde_json::from_slice(&std::fs::read(&path).expect("a file")).expect("JSON");
    edit(&mut json);
    std::fs::write(path, json.to_string()).expect("written");
    to
}

/// Swaps two tokens of the vocabulary.
fn swap_tokens(tokenizer: &mut Value) {
    let vocabulary = tokenizer["model"]["vocab"].as_object_mut().expect("a vocabulary");
    let names: Vec<String> = vocabulary.keys().take(2).cloned().collect();
    let ids: Vec<Value> = names.iter().map(|name| vocabulary[name].clone()).collect();
    (vocabulary[&names[0]], vocabulary[&names[1]]) = (ids[1].clone(), ids[0].clone());
}

/// Returns the error of a run of `model` with these keys.
fn refusal(model: &str, keys: &str) -> Error {
    let directory = tempfile::tempdir().expect("temporary directory");
    let data = directory.path().join("pairs.jsonl");
    let row = |i: usize| {
        let (prompt, chosen) = (format!("The bear {i} was"), " happy and went home.");
        json!({ "prompt": prompt, "chosen": chosen, "rejected": " sad." }).to_string() + "\n"
    };
    std::fs::write(&data, (0..8).map(row).collect::<String>()).expect("written");
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/trajectories/models").join(model);
    let text = format!(
        "model: {}\ndata: {}\noutput_dir: {}\n{keys}\ntrain: {{ max_steps: 1, batch_size: 2, eval_fraction: 0 }}\n",
        model.display(),
        data.display(),
        directory.path().join("run").display()
    );
    let plan = Plan::check(&RunConfig::parse(&text).expect("reads"), &Machine::detect()).expect("a plan");
    let error = gradus::train::run(&plan, &mut Silent).expect_err("models that do not fit");
    let planned = gradus::train::forecast::workload(&plan, 1, &mut Silent).expect_err("`gradus plan` says it too");
    assert_eq!(planned.to_string(), error.to_string());
    error
}

#[test]
fn a_reference_with_another_tokenizer_is_refused() {
    let reference = altered("qwen3", "tokenizer.json", swap_tokens);
    let error = refusal("qwen3", &format!("method: {{ dpo: {{ reference_model: {} }} }}", reference.path().display()));
    let message = error.to_string();
    let start = format!("the reference `{}` has a different tokenizer than the policy", reference.path().display());
    assert!(message.starts_with(&start) && message.contains(": id "), "{message}");
    assert!(error.hint().expect("a hint").starts_with("set a `reference_model` with the policy's tokenizer"));
}

#[test]
fn a_reference_with_a_smaller_vocabulary_or_fewer_positions_is_refused() {
    let smaller = altered("gpt2", "config.json", |config| config["vocab_size"] = 10.into());
    std::fs::remove_file(smaller.path().join("tokenizer.json")).expect("removed");
    let dpo = |path: &Path| format!("method: {{ dpo: {{ reference_model: {} }} }}", path.display());
    let message = refusal("gpt2", &dpo(smaller.path())).to_string();
    assert!(message.contains("has 10 ids, but the policy"), "{message}");

    let shorter = altered("gpt2", "config.json", |config| config["n_positions"] = 7.into());
    let error = refusal("gpt2", &dpo(shorter.path()));
    let message = error.to_string();
    assert!(message.contains("has 7 positions, but the longest sequence of this run has "), "{message}");
    assert_eq!(error.hint(), Some("set `train.max_length` to 7"));
}

#[test]
fn a_critic_that_would_start_from_a_reward_model_with_another_tokenizer_is_refused() {
    let reward = altered("qwen3-reward", "tokenizer.json", swap_tokens);
    let keys = |critic: &str| {
        format!("reward: {{ model: {} }}\nmethod: {{ ppo: {{ max_new_tokens: 4{critic} }} }}", reward.path().display())
    };
    let error = refusal("qwen3", &keys(""));
    let start = format!("the critic `{}` has a different tokenizer than the policy", reward.path().display());
    assert!(error.to_string().starts_with(&start), "{error}");
    assert!(error.hint().expect("a hint").contains("`critic.trunk: shared`"), "{error:?}");
}
