//! Missing and damaged model files: the exact message of each.

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use gradus::Error;
use gradus::model::{CausalLm, ModelDir, RewardModel};

/// A copy of the fixture `name` in a directory of its own.
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

/// Loading `dir` must fail with exactly `message`, `[DIR]` standing for the directory, and with this hint.
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
fn missing_files_are_named_and_pickles_are_never_opened() {
    let dir = copy("gpt2");
    std::fs::remove_file(weights(dir.path())).expect("removed");
    fails(
        dir.path(),
        "[DIR]: no `model.safetensors`",
        Some("a model directory holds `model.safetensors`, or shards with `model.safetensors.index.json`"),
    );
    std::fs::write(dir.path().join("pytorch_model.bin"), b"pickle").expect("written");
    let hint = load(dir.path()).expect_err("a pickle").hint().expect("a hint").to_owned();
    assert!(hint.contains("is a pickle and is never opened"), "{hint}");
    std::fs::write(dir.path().join("config.json"), "{\"model_type\": }").expect("written");
    fails(dir.path(), "[DIR]/config.json:1: not valid JSON: expected value at line 1 column 16", None);
    std::fs::remove_file(dir.path().join("config.json")).expect("removed");
    fails(dir.path(), "[DIR]: no `config.json`: this is not a model directory", None);
}

#[test]
fn a_family_or_a_kind_that_is_not_known_is_refused() {
    let dir = copy("gpt2");
    edit_config(dir.path(), "\"model_type\": \"gpt2\"", "\"model_type\": \"mamba\"");
    fails(dir.path(), "[DIR]/config.json: model type `mamba` is not supported (known: gpt2, llama, qwen3)", None);
    let causal = copy("gpt2");
    let opened = ModelDir::open(causal.path()).expect("opens");
    let error = RewardModel::load(&opened, &Device::flex()).expect_err("no reward model");
    let message = "`GPT2LMHeadModel` is not a reward model (…ForSequenceClassification)";
    assert_eq!(error.to_string(), format!("{}: {message}", causal.path().display()));
    assert_eq!(error.hint(), Some("train one with `gradus reward`"));
}
