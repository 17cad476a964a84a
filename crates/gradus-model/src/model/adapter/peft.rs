//! `adapter_config.json`: peft's keys (0.21), read and written.

use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::lora_config::LoraConfig;
use super::targets::{Matcher, Rules, Targets};
use crate::error::{Error, Result};
use crate::files;

/// Purpose of the adapted model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskType {
    /// A language model: `CAUSAL_LM`.
    CausalLm,
    /// A language model with an encoder: `SEQ_2_SEQ_LM`.
    Seq2SeqLm,
    /// A scalar reward model or a text classifier: `SEQ_CLS`. Its head is trained with the adapter.
    SequenceClassification,
    /// A token classifier: `TOKEN_CLS`. Its head is trained with the adapter.
    TokenClassification,
}

impl TaskType {
    fn name(self) -> &'static str {
        match self {
            Self::CausalLm => "CAUSAL_LM",
            Self::Seq2SeqLm => "SEQ_2_SEQ_LM",
            Self::SequenceClassification => "SEQ_CLS",
            Self::TokenClassification => "TOKEN_CLS",
        }
    }

    /// Returns `modules_to_save`: peft's names for the head. A model has one of them.
    fn heads(self) -> Value {
        match self {
            Self::CausalLm | Self::Seq2SeqLm => Value::Null,
            Self::SequenceClassification | Self::TokenClassification => json!(["classifier", "score"]),
        }
    }
}

/// Content of `adapter_config.json`.
#[derive(Debug, Clone, PartialEq)]
pub struct PeftConfig {
    /// All keys of the file, so that saving writes them unchanged.
    raw: Map<String, Value>,
    /// Rank r, unless `rank_pattern` overrides it.
    pub rank: usize,
    /// Scale α, unless `alpha_pattern` overrides it.
    pub alpha: f64,
    /// Dropout of A's input in training.
    pub dropout: f64,
    /// Adapted layers.
    pub target_modules: Targets,
    exclude_modules: Option<Targets>,
    layers: Option<(Vec<usize>, Vec<String>)>,
    /// Patterns in the order of the file, as in [`Self::alpha_pattern`]: the first one that matches a layer counts.
    rank_pattern: Vec<(String, usize)>,
    alpha_pattern: Vec<(String, f64)>,
    /// Whether the scale is α/√r instead of α/r.
    pub use_rslora: bool,
    /// Whether the norms of the rows are trained, too.
    pub use_dora: bool,
    /// Purpose of the adapted model.
    pub task_type: TaskType,
    /// Parts of heads that are trained completely and saved with the adapter.
    heads: Vec<String>,
    /// Base model: a directory or a hub name.
    pub base: Option<String>,
}

/// File that identifies the directory of an adapter.
pub(crate) const CONFIG_FILE: &str = "adapter_config.json";

/// peft's name for the head of a language model.
pub(crate) const HEAD: &str = "lm_head";

/// Keys that do not affect results, or only affected the initialization.
const WITHOUT_EFFECT: [&str; 13] = [
    "peft_type",
    "peft_version",
    "inference_mode",
    "revision",
    "auto_mapping",
    "megatron_core",
    "qalora_group_size",
    "fan_in_fan_out",
    "init_lora_weights",
    "eva_config",
    "task_type",
    "bias",
    "modules_to_save",
];

/// Names of heads and their parts. Nothing else can be trained completely.
const HEADS: [&str; 5] = ["classifier", "score", "pre_classifier", "pooler", "head"];

/// Largest rank: no layer is wide enough for a larger one.
const MOST_RANK: usize = 1 << 16;

impl PeftConfig {
    /// Creates peft's configuration from `config`.
    pub(super) fn new(
        config: &LoraConfig,
        target_modules: Targets,
        fan_in_fan_out: bool,
        task_type: TaskType,
        base: String,
    ) -> Result<Self> {
        // JSON would hold `null` in their place, and readers would take defaults.
        for (name, value) in [("alpha", config.alpha), ("dropout", config.dropout)] {
            if !value.is_finite() {
                return Err(Error::input(format!("`{name}` of the adapter is {value}, but a finite number is needed")));
            }
        }
        let Value::Object(raw) = json!({
            "alpha_pattern": {},
            "auto_mapping": null,
            "base_model_name_or_path": base,
            "bias": "none",
            "exclude_modules": null,
            "fan_in_fan_out": fan_in_fan_out,
            "inference_mode": true,
            "init_lora_weights": true,
            "layer_replication": null,
            "layers_pattern": null,
            "layers_to_transform": null,
            "lora_alpha": config.alpha,
            "lora_bias": false,
            "lora_dropout": config.dropout,
            "modules_to_save": task_type.heads(),
            "peft_type": "LORA",
            "r": config.rank,
            "rank_pattern": {},
            "revision": null,
            "target_modules": target_modules.to_json(),
            "task_type": task_type.name(),
            "use_dora": config.dora,
            "use_rslora": config.rank_stabilised,
        }) else {
            unreachable!("an object literal")
        };
        Self::from_json(raw).map_err(Error::input)
    }

    /// Reads the file `path`.
    ///
    /// # Errors
    /// When it is missing or broken, or uses an unsupported feature that would change the results.
    pub fn read(path: &Path) -> Result<Self> {
        let text = files::read(path, files::SETTINGS_BYTES).map_err(|source| Error::io(path, source))?;
        let raw: Map<String, Value> =
            serde_json::from_slice(&text).map_err(|error| Error::model(path, format!("broken JSON: {error}")))?;
        Self::from_json(raw).map_err(|message| {
            Error::model(path, message).with_hint("merge the adapter with peft (`merge_and_unload`), or train it again")
        })
    }

    fn from_json(raw: Map<String, Value>) -> Result<Self, String> {
        let mut keys = Keys { rest: raw.clone() };
        let peft_type = keys.text("peft_type")?;
        if peft_type.as_deref() != Some("LORA") {
            return Err(format!("`peft_type` is {peft_type:?}, only \"LORA\" is known"));
        }
        let task_type = match keys.text("task_type")?.as_deref() {
            None | Some("CAUSAL_LM") => TaskType::CausalLm,
            Some("SEQ_2_SEQ_LM") => TaskType::Seq2SeqLm,
            Some("SEQ_CLS") => TaskType::SequenceClassification,
            Some("TOKEN_CLS") => TaskType::TokenClassification,
            Some(other) => {
                let known = "CAUSAL_LM, SEQ_2_SEQ_LM, SEQ_CLS and TOKEN_CLS";
                return Err(format!("`task_type` is \"{other}\", known are {known}"));
            }
        };
        if let Some(bias) = keys.text("bias")?.filter(|bias| bias != "none") {
            return Err(format!("`bias` is \"{bias}\": trained biases are not supported"));
        }
        let heads = keys.take("modules_to_save");
        let names = heads.as_ref().and_then(Value::as_array).into_iter().flatten();
        let names: Option<Vec<String>> =
            names.map(|name| name.as_str().filter(|name| HEADS.contains(name)).map(str::to_owned)).collect();
        let Some(names) = names else {
            return Err(format!(
                "`modules_to_save` is {}: only heads can be trained whole ({})",
                heads.unwrap_or_default(),
                HEADS.join(", ")
            ));
        };
        match keys.take("init_lora_weights") {
            None | Some(Value::Bool(_)) => {}
            Some(Value::String(kind)) if matches!(kind.as_str(), "gaussian" | "orthogonal" | "eva") => {}
            Some(other) => return Err(format!("`init_lora_weights` is {other}: it changes the base's weights too")),
        }
        let targets = keys.take("target_modules").unwrap_or_default();
        let target_modules = Targets::read(&targets)
            .ok_or_else(|| format!("`target_modules` is {targets}, expected names or a pattern"))?;
        if let Targets::Names(names) = &target_modules
            && let Some(name) = names.iter().find(|name| is_embedding(name))
        {
            return Err(format!("`target_modules` has `{name}`: adapters of embeddings are not supported"));
        }
        let exclude_modules = keys.take("exclude_modules").as_ref().and_then(Targets::read);
        let layers = match keys.take("layers_to_transform") {
            None => Vec::new(),
            Some(layers) => {
                // A number alone is a list of one.
                let list = if layers.is_array() { layers } else { json!([layers]) };
                serde_json::from_value(list).map_err(|error| format!("`layers_to_transform`: {error}"))?
            }
        };
        let lists = match keys.take("layers_pattern") {
            None => Vec::new(),
            Some(Value::String(list)) => vec![list],
            Some(list) => serde_json::from_value(list).map_err(|error| format!("`layers_pattern`: {error}"))?,
        };
        let ties = keys.is_true("ensure_weight_tying")?;
        let config = Self {
            rank: keys.rank("r")?.unwrap_or(8),
            alpha: keys.number("lora_alpha")?.unwrap_or(8.0),
            dropout: keys.number("lora_dropout")?.unwrap_or(0.0),
            target_modules,
            exclude_modules,
            // As in peft, an empty list selects all layers.
            layers: (!layers.is_empty()).then_some((layers, lists)),
            rank_pattern: keys.patterns("rank_pattern")?,
            alpha_pattern: keys.patterns("alpha_pattern")?,
            use_rslora: keys.is_true("use_rslora")?,
            use_dora: keys.is_true("use_dora")?,
            task_type,
            heads: names,
            base: keys.text("base_model_name_or_path")?.filter(|base| !base.is_empty()),
            raw,
        };
        let ranks = [config.rank].into_iter().chain(config.rank_pattern.iter().map(|(_, rank)| *rank));
        if let Some(rank) = ranks.into_iter().find(|rank| !(1..=MOST_RANK).contains(rank)) {
            return Err(format!("the rank `r` is {rank}, but must be at least 1 and at most {MOST_RANK}"));
        }
        if !(0.0..1.0).contains(&config.dropout) {
            return Err(format!("`lora_dropout` is {}, but must be at least 0 and below 1", config.dropout));
        }
        // It gives a tied embedding the adapter of the head, and has no effect on other layers.
        if ties && config.matcher().is_ok_and(|matcher| matcher.matches_head(HEAD)) {
            return Err(format!("the adapter of `{HEAD}` also changes the embedding (`ensure_weight_tying`: true)"));
        }
        keys.nothing_left()?;
        Ok(config)
    }

    /// Whether the part `name` of a head (`classifier`, `pooler`) is trained and saved with the adapter.
    pub(crate) fn trains_head(&self, name: &str) -> bool {
        self.heads.iter().any(|head| head == name)
    }

    /// Changes the task type to `task_type`, and trains and saves `more` parts of heads.
    #[must_use]
    pub(crate) fn with_heads(&self, task_type: TaskType, more: &[&str]) -> Self {
        let mut config = self.clone();
        for name in more {
            if !config.trains_head(name) {
                config.heads.push((*name).to_owned());
            }
        }
        config.raw.insert("modules_to_save".into(), json!(config.heads));
        config.raw.insert("task_type".into(), json!(task_type.name()));
        config.task_type = task_type;
        config
    }

    /// Replaces a pattern of layers by the names of the layers that it selects. peft applies a pattern to all modules, and refuses the adapter if
    /// one of them is not a layer with weights, such as an activation.
    pub(super) fn name_targets(&mut self, layers: Vec<String>) {
        if matches!(self.target_modules, Targets::Pattern(_)) {
            self.target_modules = Targets::Names(layers);
            self.raw.insert("target_modules".into(), self.target_modules.to_json());
        }
    }

    /// Text of the file.
    pub(super) fn to_text(&self) -> String {
        serde_json::to_string_pretty(&self.raw).expect("plain data with string keys") + "\n"
    }

    /// Returns the matcher of the layers that get an adapter.
    pub(in crate::model) fn matcher(&self) -> Result<Matcher> {
        Matcher::new(Rules {
            targets: &self.target_modules,
            excluded: self.exclude_modules.as_ref(),
            layers: self.layers.clone(),
            rank: self.rank,
            alpha: self.alpha,
            rank_stabilised: self.use_rslora,
            rank_pattern: &self.rank_pattern,
            alpha_pattern: &self.alpha_pattern,
        })
    }

    /// Changes the base and the purpose of the adapter.
    #[must_use]
    pub fn based_on(&self, base: String, task_type: TaskType) -> Self {
        let mut config = self.clone();
        config.raw.insert("base_model_name_or_path".into(), json!(base));
        config.raw.insert("task_type".into(), json!(task_type.name()));
        config.raw.insert("modules_to_save".into(), task_type.heads());
        config.heads = serde_json::from_value(task_type.heads()).unwrap_or_default();
        (config.base, config.task_type) = (Some(base), task_type);
        config
    }
}

/// Whether a layer with this name looks up the vectors of ids.
fn is_embedding(name: &str) -> bool {
    const EMBEDDINGS: [&str; 10] = [
        "embed_tokens",
        "embed_in",
        "embed_positions",
        "wte",
        "wpe",
        "shared",
        "word_embeddings",
        "position_embeddings",
        "token_type_embeddings",
        "tok_embeddings",
    ];
    name.rsplit('.').next().is_some_and(|last| EMBEDDINGS.contains(&last))
}

/// Keys that have not been read yet.
struct Keys {
    rest: Map<String, Value>,
}

impl Keys {
    fn take(&mut self, key: &str) -> Option<Value> {
        self.rest.remove(key).filter(|value| !value.is_null())
    }

    fn text(&mut self, key: &str) -> Result<Option<String>, String> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(format!("`{key}` is {other}, expected a text")),
        }
    }

    fn number(&mut self, key: &str) -> Result<Option<f64>, String> {
        match self.take(key) {
            None => Ok(None),
            Some(value) => value.as_f64().map(Some).ok_or_else(|| format!("`{key}` is {value}, expected a number")),
        }
    }

    fn rank(&mut self, key: &str) -> Result<Option<usize>, String> {
        let whole = |value: Value| {
            let rank = value.as_u64().and_then(|rank| usize::try_from(rank).ok());
            rank.ok_or_else(|| format!("`{key}` is {value}, expected a whole number"))
        };
        self.take(key).map(whole).transpose()
    }

    fn is_true(&mut self, key: &str) -> Result<bool, String> {
        match self.take(key) {
            None => Ok(false),
            Some(Value::Bool(is_true)) => Ok(is_true),
            Some(other) => Err(format!("`{key}` is {other}, expected `true` or `false`")),
        }
    }

    /// Returns the patterns of an object with their values, in the order of the file.
    fn patterns<T: DeserializeOwned>(&mut self, key: &str) -> Result<Vec<(String, T)>, String> {
        let read = |(pattern, value): (String, Value)| match serde_json::from_value::<T>(value) {
            Ok(value) => Ok((pattern, value)),
            Err(error) => Err(format!("`{key}`, `{pattern}`: {error}")),
        };
        match self.take(key) {
            None => Ok(Vec::new()),
            Some(Value::Object(patterns)) => patterns.into_iter().map(read).collect(),
            Some(other) => Err(format!("`{key}` is {other}, expected an object of patterns and numbers")),
        }
    }

    /// Rejects unknown keys that are set, because they would change the results.
    fn nothing_left(self) -> Result<(), String> {
        let is_off = |value: &Value| match value {
            Value::Null | Value::Bool(false) => true,
            Value::Object(map) => map.is_empty(),
            Value::Array(list) => list.is_empty(),
            Value::String(text) => text.is_empty(),
            _ => false,
        };
        let on = self.rest.iter().filter(|(key, value)| !WITHOUT_EFFECT.contains(&key.as_str()) && !is_off(value));
        let on: Vec<String> = on.map(|(key, value)| format!("`{key}`: {value}")).collect();
        if on.is_empty() { Ok(()) } else { Err(format!("the adapter uses unsupported features: {}", on.join(", "))) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(extra: Value) -> Result<PeftConfig, String> {
        let mut raw =
            json!({"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8, "target_modules": ["q"]});
        raw.as_object_mut().expect("object").extend(extra.as_object().expect("object").clone());
        PeftConfig::from_json(raw.as_object().expect("object").clone())
    }

    #[test]
    fn what_would_change_the_numbers_is_refused() {
        for (extra, message) in [
            (json!({"lora_bias": true}), "the adapter uses unsupported features: `lora_bias`: true"),
            (
                json!({"layer_replication": [[0, 4]]}),
                "the adapter uses unsupported features: `layer_replication`: [[0,4]]",
            ),
            (
                json!({"trainable_token_indices": [3]}),
                "the adapter uses unsupported features: `trainable_token_indices`: [3]",
            ),
            (
                json!({"target_parameters": ["x"]}),
                "the adapter uses unsupported features: `target_parameters`: [\"x\"]",
            ),
            (json!({"bias": "all"}), "`bias` is \"all\": trained biases are not supported"),
            (
                json!({"modules_to_save": ["lm_head"]}),
                "`modules_to_save` is [\"lm_head\"]: only heads can be trained whole (classifier, score, pre_classifier, pooler, head)",
            ),
            (
                json!({"init_lora_weights": "pissa"}),
                "`init_lora_weights` is \"pissa\": it changes the base's weights too",
            ),
            (
                json!({"target_modules": ["q_proj", "model.embed_tokens"]}),
                "`target_modules` has `model.embed_tokens`: adapters of embeddings are not supported",
            ),
            (
                json!({"target_modules": ["q_proj", "lm_head"], "ensure_weight_tying": true}),
                "the adapter of `lm_head` also changes the embedding (`ensure_weight_tying`: true)",
            ),
            (json!({"peft_type": "IA3"}), "`peft_type` is Some(\"IA3\"), only \"LORA\" is known"),
            (json!({"r": 0}), "the rank `r` is 0, but must be at least 1 and at most 65536"),
        ] {
            assert_eq!(read(extra).expect_err("refused"), message);
        }
    }

    #[test]
    fn numbers_that_the_file_cannot_hold_are_refused() {
        let make = |config: LoraConfig| {
            let targets = Targets::read(&json!(["q"])).expect("names");
            PeftConfig::new(&config, targets, false, TaskType::CausalLm, "base".into())
                .map_err(|error| error.to_string())
        };
        assert!(make(LoraConfig::default()).is_ok());
        for value in [f64::NAN, f64::INFINITY] {
            let expected = |name| format!("`{name}` of the adapter is {value}, but a finite number is needed");
            let found = make(LoraConfig { alpha: value, ..LoraConfig::default() });
            assert_eq!(found, Err(expected("alpha")));
            let found = make(LoraConfig { dropout: value, ..LoraConfig::default() });
            assert_eq!(found, Err(expected("dropout")));
        }
    }

    #[test]
    fn an_initialization_that_leaves_the_base_alone_is_fine() {
        for extra in
            [json!({"init_lora_weights": "eva", "eva_config": {"rho": 2.0}}), json!({"init_lora_weights": "gaussian"})]
        {
            read(extra.clone()).unwrap_or_else(|message| panic!("{extra}: {message}"));
        }
    }

    #[test]
    fn the_first_pattern_of_the_file_counts() {
        for (patterns, expected) in
            [(json!({"v_proj": 64, ".*_proj": 2}), [16.0, 0.5]), (json!({".*_proj": 2, "v_proj": 64}), [0.5, 0.5])]
        {
            let config = read(json!({"alpha_pattern": patterns})).expect("fine");
            let matcher = config.matcher().expect("patterns");
            let scale = |layer: &str| matcher.rank_and_scale(&format!("model.layers.0.self_attn.{layer}")).1;
            assert_eq!(["v_proj", "q_proj"].map(scale), expected, "{patterns}");
        }
        let ranks = json!({"v_proj": 2, ".*_proj": 8});
        let matcher = read(json!({"rank_pattern": ranks})).expect("fine").matcher().expect("patterns");
        assert_eq!(["v_proj", "q_proj"].map(|layer| matcher.rank_and_scale(layer).0), [2, 8]);
        let wrong = read(json!({"alpha_pattern": {"q": "2"}})).expect_err("no number");
        assert!(wrong.starts_with("`alpha_pattern`, `q`: invalid type"), "{wrong}");
        let wrong = read(json!({"rank_pattern": [2]})).expect_err("no object");
        assert_eq!(wrong, "`rank_pattern` is [2], expected an object of patterns and numbers");
    }

    #[test]
    fn an_empty_list_of_layers_is_all_layers() {
        for (layers, expected) in [(json!([]), [true, true]), (Value::Null, [true, true]), (json!([1]), [false, true])]
        {
            let config = read(json!({"layers_to_transform": layers, "layers_pattern": []})).expect("fine");
            let matcher = config.matcher().expect("names");
            let names = ["transformer.h.0.q", "transformer.h.1.q"];
            assert_eq!(names.map(|name| matcher.matches(name)), expected, "{layers}");
        }
    }

    #[test]
    fn a_layer_is_no_negative_number() {
        for layers in [json!(-1), json!([-1]), json!(1.5)] {
            let wrong = read(json!({ "layers_to_transform": layers })).expect_err("refused");
            assert!(wrong.starts_with("`layers_to_transform`: invalid "), "{layers}: {wrong}");
        }
    }

    #[test]
    fn what_is_off_is_kept_and_written_again() {
        let extra = json!({
            "loftq_config": {}, "eva_config": null, "peft_version": "0.21.2", "qalora_group_size": 16, "ensure_weight_tying": true,
        });
        let config = read(extra).expect("fine");
        let again: Map<String, Value> = serde_json::from_str(&config.to_text()).expect("JSON");
        assert_eq!(again, config.raw);
    }
}
