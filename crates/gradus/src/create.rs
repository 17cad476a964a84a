//! `gradus new-model`: a model of any family with random weights, for tests and teaching.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::device::DeviceChoice;
use crate::error::{Error, Result};
use crate::files::atomic;
use crate::files::output::Outputs;
use crate::machine::{Machine, gigabytes};
use crate::model::{
    CausalLm, Classifier, Family, ModelDir, ModelShape, families, resolve, save_causal, save_classifier,
};
use crate::rng::{Purpose, Seed};
use crate::suggest::nearest;
use crate::text::Tokenizer;

/// Size of a new model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// 2 layers of width 64: trains in seconds.
    Tiny,
    /// 4 layers of width 256: trains in minutes.
    Small,
}

impl std::str::FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "tiny" => Ok(Self::Tiny),
            "small" => Ok(Self::Small),
            _ => Err("`tiny` or `small` is needed; `--set KEY=VALUE` changes single sizes".into()),
        }
    }
}

/// Description of a model to create.
#[derive(Debug, Clone)]
pub struct NewModel {
    /// Model family: `model_type` of `config.json`.
    pub family: String,
    /// Size of the model.
    pub size: Size,
    /// Directory or hub name of its tokenizer.
    pub tokenizer: String,
    /// Values of `config.json` that override those of the size.
    pub set: Vec<(String, Value)>,
    /// Labels of a classifier (encoders only); if empty, two unnamed labels.
    pub labels: Vec<String>,
    /// Seed of the weights.
    pub seed: Seed,
    /// Whether the directory of another model may be replaced.
    pub overwrite: bool,
}

/// Summary of a created model.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Created {
    /// Model family.
    pub family: String,
    /// Number of parameters.
    pub parameters: u64,
    /// Size of the vocabulary.
    pub vocabulary: usize,
}

/// Largest number of layers for which lists are made. Every family refuses more.
const MOST_LAYERS: u64 = 4096;

/// Dimensions from which configurations are built.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    width: usize,
    inner: usize,
    layers: usize,
    heads: usize,
    positions: usize,
}

impl Size {
    fn numbers(self) -> Sizes {
        match self {
            Self::Tiny => Sizes { width: 64, inner: 128, layers: 2, heads: 4, positions: 512 },
            Self::Small => Sizes { width: 256, inner: 1024, layers: 4, heads: 8, positions: 1024 },
        }
    }
}

/// Creates the model in `output`, atomically.
///
/// # Errors
/// [`Error::Input`] for an unknown family or key, or if `output` exists and is not empty; also if the tokenizer cannot
/// be read, a value does not give a valid model, or a file cannot be written.
pub fn create(new: &NewModel, output: &Path) -> Result<Created> {
    let known = families();
    if !known.contains(&new.family.as_str()) {
        let hint = nearest(&new.family, known.iter().copied())
            .map_or_else(|| format!("the families are {}", known.join(", ")), |near| format!("did you mean `{near}`?"));
        return Err(Error::input(format!("there is no family `{}`", new.family)).with_hint(hint));
    }
    let directory = resolve(&new.tokenizer, &mut |_, _, _| {})?;
    let output = Outputs::new(new.overwrite).reading(&directory).model_dir(output)?;
    let tokenizer = Tokenizer::from_dir(&directory)?;
    let config = config(new, &tokenizer)?;
    let mut parameters = 0;
    output.write(|at| {
        // Loaded like any other model, so that invalid values are rejected with their reason.
        let written = serde_json::to_string_pretty(&config).expect("JSON values serialize");
        atomic::write_bytes(&at.join("config.json"), written.as_bytes())?;
        ModelDir { path: directory.clone(), ..ModelDir::unsaved(config.clone()) }.copy_tokenizer(at)?;
        let dir = ModelDir::open(at)?;
        check_memory(&dir, Machine::detect().memory_bytes)?;
        let (device, mut stream) = (DeviceChoice::cpu().device(), new.seed.stream(Purpose::Init, 0, 0));
        if dir.is_encoder() {
            let model = Classifier::random(&dir, &mut stream, &device)?;
            parameters = burn::module::Module::num_params(&model) as u64;
            save_classifier(&model, &dir, at)
        } else {
            let model = CausalLm::random(&dir, &mut stream, &device)?;
            parameters = burn::module::Module::num_params(&model) as u64;
            save_causal(&model, &dir, at)
        }
    })?;
    Ok(Created { family: new.family.clone(), parameters, vocabulary: tokenizer.vocab_size() })
}

/// Rejects a model whose weights need more than `memory` bytes.
fn check_memory(dir: &ModelDir, memory: Option<u64>) -> Result<()> {
    let needed = (ModelShape::of(dir)?.parameters() as u64).saturating_mul(size_of::<f32>() as u64);
    match memory.filter(|&memory| memory < needed) {
        None => Ok(()),
        Some(memory) => {
            let message = format!("the weights need {}, but this machine has {}", gigabytes(needed), gigabytes(memory));
            Err(Error::input(message).with_hint("set smaller sizes with `--set KEY=VALUE`"))
        }
    }
}

/// Builds `config.json` from the family, the size, the tokenizer's ids and the overrides.
fn config(new: &NewModel, tokenizer: &Tokenizer) -> Result<Map<String, Value>> {
    let mut sizes = new.size.numbers();
    // Some families list a value for each layer, so these lists need the number of layers that is set.
    if let Some((_, layers)) = new.set.iter().rfind(|(key, _)| key == "num_hidden_layers") {
        let layers = layers.as_u64().filter(|layers| *layers <= MOST_LAYERS);
        sizes.layers = layers.map_or(sizes.layers, |layers| layers as usize);
    }
    let mut config = of_family(&new.family, sizes, tokenizer);
    config.insert("model_type".into(), json!(new.family));
    config.insert("vocab_size".into(), json!(tokenizer.vocab_size()));
    config.insert("initializer_range".into(), json!(0.02));
    let token = |id: Option<u32>| id.map_or(Value::Null, Value::from);
    for (key, id) in [
        ("bos_token_id", tokenizer.bos_id()),
        ("eos_token_id", tokenizer.eos_id()),
        ("pad_token_id", tokenizer.pad_id()),
    ] {
        config.entry(key).or_insert_with(|| token(id));
    }
    for (key, value) in &new.set {
        if !config.contains_key(key) {
            let keys = || config.keys().map(String::as_str);
            let hint = match nearest(key, keys()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("`{}` has {}", new.family, keys().collect::<Vec<_>>().join(", ")),
            };
            return Err(Error::input(format!("`{key}` is not a key of a new `{}` model", new.family)).with_hint(hint));
        }
        config.insert(key.clone(), value.clone());
    }
    if !new.labels.is_empty() {
        let by_number = new.labels.iter().enumerate().map(|(i, label)| (i.to_string(), json!(label)));
        config.insert("id2label".into(), Value::Object(by_number.collect()));
        let by_label = new.labels.iter().enumerate().map(|(i, label)| (label.clone(), json!(i)));
        config.insert("label2id".into(), Value::Object(by_label.collect()));
    }
    Ok(config)
}

/// Returns the dimensions and options of a family.
fn of_family(family: &str, sizes: Sizes, tokenizer: &Tokenizer) -> Map<String, Value> {
    let Sizes { width, inner, layers, heads, positions } = sizes;
    let pad = tokenizer.pad_id().unwrap_or(0);
    // Token that starts a decoder or ends a text, if the tokenizer has one.
    let end = tokenizer.eos_id().unwrap_or(pad);
    let decoder = |more: Value| {
        let own = json!({
            "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": heads / 2, "max_position_embeddings": positions, "rms_norm_eps": 1e-6,
            "hidden_act": "silu", "attention_bias": false, "rope_parameters": { "rope_theta": 10_000.0, "rope_type": "default" },
            "tie_word_embeddings": false,
        });
        joined(own, more)
    };
    let t5 = |more: Value| {
        let own = json!({
            "d_model": width, "d_ff": inner, "d_kv": width / heads, "num_layers": layers, "num_decoder_layers": layers,
            "num_heads": heads, "relative_attention_num_buckets": 32, "relative_attention_max_distance": 128,
            "layer_norm_epsilon": 1e-6, "dropout_rate": 0.1, "initializer_factor": 1.0, "is_encoder_decoder": true,
            "tie_word_embeddings": true, "pad_token_id": pad, "decoder_start_token_id": pad,
        });
        joined(own, more)
    };
    let bart = |more: Value| {
        let own = json!({
            "d_model": width, "encoder_ffn_dim": inner, "decoder_ffn_dim": inner, "encoder_layers": layers,
            "decoder_layers": layers, "encoder_attention_heads": heads, "decoder_attention_heads": heads,
            "max_position_embeddings": positions, "activation_function": "gelu", "scale_embedding": false, "init_std": 0.02,
            "is_encoder_decoder": true, "tie_word_embeddings": true, "pad_token_id": pad, "decoder_start_token_id": end,
        });
        joined(own, more)
    };
    let bert = |more: Value| {
        let own = json!({
            "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
            "max_position_embeddings": positions, "hidden_act": "gelu", "layer_norm_eps": 1e-12, "type_vocab_size": 2,
            "pad_token_id": pad, "architectures": [format!("{family}ForSequenceClassification")],
        });
        joined(own, more)
    };
    // RoBERTa-like models start counting positions after the padding id.
    let roberta = json!({ "type_vocab_size": 1, "layer_norm_eps": 1e-5, "max_position_embeddings": positions + pad as usize + 1 });
    let windows = |every: usize| -> Vec<&str> {
        (1..=layers).map(|layer| if layer % every == 0 { "full_attention" } else { "sliding_attention" }).collect()
    };
    let gemma = json!({
        "hidden_activation": "gelu_pytorch_tanh", "head_dim": width / heads, "query_pre_attn_scalar": width / heads,
        "sliding_window": positions / 4, "layer_types": windows(2), "tie_word_embeddings": true,
    });
    let deberta = json!({
        "layer_norm_eps": 1e-7, "type_vocab_size": 0, "relative_attention": true, "max_relative_positions": -1,
        "pos_att_type": ["p2c", "c2p"], "position_biased_input": false, "pooler_hidden_size": width,
        "pooler_hidden_act": "gelu",
    });
    match family {
        "gpt2" => joined(
            json!({
                "n_embd": width, "n_inner": inner, "n_layer": layers, "n_head": heads, "n_positions": positions,
                "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": true,
                "attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1,
            }),
            json!({}),
        ),
        "gpt_neox" => {
            // A quarter of a head, if that is made of pairs.
            let part = if (width / heads).is_multiple_of(8) { 0.25 } else { 1.0 };
            joined(
                json!({
                    "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
                    "max_position_embeddings": positions, "hidden_act": "gelu", "layer_norm_eps": 1e-5, "rotary_pct": part,
                    "rotary_emb_base": 10_000, "use_parallel_residual": true, "attention_bias": true, "tie_word_embeddings": false,
                }),
                json!({}),
            )
        }
        "opt" => joined(
            json!({
                "hidden_size": width, "word_embed_proj_dim": width, "ffn_dim": inner, "num_hidden_layers": layers,
                "num_attention_heads": heads, "max_position_embeddings": positions, "activation_function": "relu",
                "do_layer_norm_before": true, "enable_bias": true, "dropout": 0.1, "attention_dropout": 0.0,
                "tie_word_embeddings": true, "init_std": 0.02,
            }),
            json!({}),
        ),
        "qwen3" => decoder(json!({ "head_dim": width / heads, "tie_word_embeddings": true })),
        "qwen2" => decoder(json!({ "tie_word_embeddings": true })),
        "smollm3" => decoder(json!({ "no_rope_layer_interval": 4, "tie_word_embeddings": true })),
        "phi3" => decoder(json!({ "original_max_position_embeddings": positions, "pad_token_id": pad })),
        "mistral" | "ministral" => decoder(json!({ "head_dim": width / heads, "sliding_window": null })),
        "gemma2" => {
            decoder(joined(gemma, json!({ "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0 })).into())
        }
        "gemma3_text" => {
            let angles = json!({
                "full_attention": { "rope_theta": 1_000_000.0, "rope_type": "default" },
                "sliding_attention": { "rope_theta": 10_000.0, "rope_type": "default" },
            });
            decoder(joined(gemma, json!({ "rope_parameters": angles, "sliding_window_pattern": 2 })).into())
        }
        "t5" => t5(json!({ "feed_forward_proj": "relu" })),
        "mt5" => t5(json!({ "feed_forward_proj": "gated-gelu" })),
        "bart" => bart(json!({})),
        "blenderbot" => bart(json!({ "scale_embedding": true })),
        "blenderbot-small" => bart(json!({})),
        "bert" => bert(json!({})),
        "roberta" | "xlm-roberta" | "camembert" => bert(roberta),
        "longformer" => {
            let more = json!({ "attention_window": vec![64; layers], "sep_token_id": end });
            bert(joined(roberta, more).into())
        }
        "albert" => bert(json!({
            "embedding_size": width / 2, "num_hidden_groups": 1, "inner_group_num": 1, "hidden_act": "gelu_new",
        })),
        "deberta" => bert(deberta),
        "deberta-v2" => {
            let more = json!({ "position_buckets": 64, "norm_rel_ebd": "layer_norm", "share_att_key": true });
            bert(joined(deberta, more).into())
        }
        "distilbert" => joined(
            json!({
                "dim": width, "hidden_dim": inner, "n_layers": layers, "n_heads": heads, "max_position_embeddings": positions,
                "activation": "gelu", "pad_token_id": pad, "architectures": ["DistilBertForSequenceClassification"],
            }),
            json!({}),
        ),
        "modernbert" => joined(
            json!({
                "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
                "max_position_embeddings": positions, "hidden_activation": "gelu", "norm_eps": 1e-5, "local_attention": 64,
                "layer_types": windows(2), "classifier_pooling": "mean", "pad_token_id": pad, "cls_token_id": tokenizer.bos_id(),
                "sep_token_id": tokenizer.eos_id(), "architectures": ["ModernBertForSequenceClassification"],
                "rope_parameters": {
                    "full_attention": { "rope_theta": 160_000.0, "rope_type": "default" },
                    "sliding_attention": { "rope_theta": 10_000.0, "rope_type": "default" },
                },
            }),
            json!({}),
        ),
        _ => match Family::named(family) {
            // Its other keys keep their defaults, so that they can be set.
            Some(Family::Decoder(of)) => {
                joined(serde_json::from_str(of.defaults).expect("an object"), decoder(json!({})).into())
            }
            _ => unreachable!("`families` lists `{family}`, and every other family has its sizes here"),
        },
    }
}

/// Merges two objects; keys of the second win.
fn joined(first: Value, second: Value) -> Map<String, Value> {
    let mut all = first.as_object().cloned().unwrap_or_default();
    all.extend(second.as_object().cloned().unwrap_or_default());
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pretrained::Pretrained;
    use crate::pretrained::TextFiles;

    fn tokenizer() -> String {
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/parity/trajectories/models/gpt2").to_owned()
    }

    fn new(family: &str) -> NewModel {
        let (family, tokenizer) = (family.to_owned(), tokenizer());
        NewModel {
            family,
            size: Size::Tiny,
            tokenizer,
            set: Vec::new(),
            labels: Vec::new(),
            seed: Seed(1),
            overwrite: false,
        }
    }

    #[test]
    fn a_model_without_room_in_memory_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let output = folder.path().join("model");
        // 106 TB. No weights are created.
        let set = vec![("vocab_size".to_owned(), json!(16_777_216)), ("n_embd".to_owned(), json!(1_048_576))];
        let error = create(&NewModel { set, ..new("gpt2") }, &output).expect_err("no machine has the memory");
        assert!(error.to_string().contains("the weights need 105557.5 GB"), "{error}");
        assert!(!output.exists());
        create(&new("gpt2"), &output).expect("a small model");
        let dir = ModelDir::open(&output).expect("a model");
        let bytes = 4 * ModelShape::of(&dir).expect("a shape").parameters() as u64;
        assert!(check_memory(&dir, None).is_ok() && check_memory(&dir, Some(bytes)).is_ok());
        assert!(check_memory(&dir, Some(bytes - 1)).is_err());
    }

    #[test]
    fn a_model_of_every_family_is_made_and_read_again() {
        let folder = tempfile::tempdir().expect("a folder");
        for family in families() {
            let output = folder.path().join(family);
            let made = create(&new(family), &output).unwrap_or_else(|error| panic!("{family}: {error}"));
            let files = Pretrained::of(ModelDir::open(&output).expect("a model"), &TextFiles::default())
                .expect("with its tokenizer");
            let device = DeviceChoice::cpu().device();
            let read = if files.dir.is_encoder() {
                let found = Classifier::load(&files.dir, &device).unwrap_or_else(|error| panic!("{family}: {error}"));
                burn::module::Module::num_params(&found)
            } else {
                let found = CausalLm::load(&files.dir, &device).unwrap_or_else(|error| panic!("{family}: {error}"));
                burn::module::Module::num_params(&found)
            };
            assert_eq!(read as u64, made.parameters, "{family}");
        }
    }

    #[test]
    fn lists_of_values_per_layer_follow_the_number_of_layers() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = |family: &str, set: &[(&str, Value)]| {
            let output = folder.path().join(format!("{family}-{}", set.len()));
            let set = set.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
            create(&NewModel { set, ..new(family) }, &output).unwrap_or_else(|error| panic!("{family}: {error}"));
            let text = std::fs::read(output.join("config.json")).expect("written");
            serde_json::from_slice::<Value>(&text).expect("JSON")
        };
        let layers = || ("num_hidden_layers", json!(3));
        for family in ["gemma2", "gemma3_text", "modernbert"] {
            let made = config(family, &[layers()]);
            let every_second = json!(["sliding_attention", "full_attention", "sliding_attention"]);
            assert_eq!((&made["num_hidden_layers"], &made["layer_types"]), (&json!(3), &every_second), "{family}");
        }
        assert_eq!(config("longformer", &[layers()])["attention_window"], json!([64, 64, 64]));
        let full = json!(vec!["full_attention"; 3]);
        assert_eq!(config("gemma2", &[("layer_types", full.clone()), layers()])["layer_types"], full);
    }

    #[test]
    fn what_makes_no_model_is_refused_and_leaves_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let output = folder.path().join("model");
        let refused = |new: &NewModel| {
            let error = create(new, &output).expect_err("refused");
            assert!(!output.exists() && std::fs::read_dir(folder.path()).expect("a folder").next().is_none());
            (error.to_string(), error.hint().unwrap_or_default().to_owned())
        };
        assert_eq!(refused(&new("gtp2")), ("there is no family `gtp2`".into(), "did you mean `gpt2`?".into()));
        let set = |key: &str, value: Value| NewModel { set: vec![(key.to_owned(), value)], ..new("gpt2") };
        let (message, hint) = refused(&set("n_layers", json!(3)));
        assert_eq!(
            (message.as_str(), hint.as_str()),
            ("`n_layers` is not a key of a new `gpt2` model", "did you mean `n_layer`?")
        );
        assert!(refused(&set("n_head", json!(3))).0.contains("n_head"));
        let made = create(&set("n_layer", json!(3)), &output).expect("made");
        // (512 + V) * 64 in embeddings, 3 blocks of 4*64*64 + 2*64*128 weights and 9*64 + 128 biases and norms, 128 in
        // the final norm.
        let vocabulary = made.vocabulary as u64;
        assert_eq!(made.parameters, (512 + vocabulary) * 64 + 3 * (32_768 + 9 * 64 + 128) + 128);
        assert!(create(&new("gpt2"), &output).expect_err("there").to_string().ends_with("exists and is not empty"));
    }
}
