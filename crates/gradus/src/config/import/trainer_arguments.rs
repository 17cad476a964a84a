//! The keys of transformers' `TrainingArguments`, which the files of TRL, LLaMA-Factory, RL4LMs and, under other names, axolotl share.

use serde_json::{Map, Value as Json, json};

use super::{Original, YamlBuilder, unquoted};
use crate::config::method::MethodConfig;

/// A tool's names for keys, and its defaults.
pub(super) struct Names {
    /// Prefix of all paths: the section with the keys, and a dot. Empty if the keys are at the top.
    pub section: &'static str,
    /// Rows per pass on one device.
    pub micro_batch: &'static str,
    /// Passes over the data.
    pub epochs: &'static str,
    /// Learning rate schedule.
    pub schedule: &'static str,
    /// The optimizer.
    pub optimizer: &'static str,
    /// Default number of passes over the data.
    pub usual_epochs: f64,
    /// Default number of rows per pass.
    pub usual_micro_batch: usize,
    /// Whether `eval_steps` alone requests evaluations, without `eval_strategy`.
    pub steps_evaluate: bool,
}

impl Names {
    /// Returns the path of a key.
    fn path(&self, key: &str) -> String {
        format!("{}{key}", self.section)
    }
}

/// Names in `TrainingArguments`.
pub(super) const HUGGING_FACE: Names = Names {
    section: "",
    micro_batch: "per_device_train_batch_size",
    epochs: "num_train_epochs",
    schedule: "lr_scheduler_type",
    optimizer: "optim",
    usual_epochs: 3.0,
    usual_micro_batch: 8,
    steps_evaluate: false,
};

/// Keys that change no result here: batches of evaluations, numbers of processes, output.
const WITHOUT_EFFECT: &[&str] = &[
    "attn_implementation",
    "bnb_4bit_quant_type",
    "bnb_4bit_use_double_quant",
    "dataloader_num_workers",
    "dataloader_pin_memory",
    "dataloader_prefetch_factor",
    "dataset_num_proc",
    "ddp_find_unused_parameters",
    "ddp_timeout",
    "disable_dropout",
    "do_eval",
    "do_train",
    "eval_accumulation_steps",
    "eval_batch_size",
    "flash_attention",
    "flash_attn",
    "gradient_checkpointing_kwargs",
    "lora_task_type",
    "low_cpu_mem_usage",
    "overwrite_cache",
    "overwrite_output_dir",
    "pad_to_multiple_of",
    "pad_to_sequence_len",
    "padding_free",
    "per_device_eval_batch_size",
    "plot_loss",
    "preprocessing_num_workers",
    "remove_unused_columns",
    "save_only_model",
    "sdp_attention",
    "tf32",
    "tokenized_dataset",
    "trust_remote_code",
    "use_liger_kernel",
    "xformers_attention",
];

/// Keys of TRL that concern vLLM. gradus samples completions itself, so none of them changes a result.
const OF_VLLM: &[&str] = &[
    "use_vllm",
    "vllm_enable_sleep_mode",
    "vllm_gpu_memory_utilization",
    "vllm_group_port",
    "vllm_importance_sampling_cap",
    "vllm_importance_sampling_clip_max",
    "vllm_importance_sampling_clip_min",
    "vllm_importance_sampling_correction",
    "vllm_importance_sampling_mode",
    "vllm_max_model_length",
    "vllm_mode",
    "vllm_model_impl",
    "vllm_server_base_url",
    "vllm_server_host",
    "vllm_server_port",
    "vllm_server_timeout",
    "vllm_tensor_parallel_size",
];

/// A setting of a schedule in transformers, and its key here.
type Setting = (&'static str, &'static str);

/// Schedules of transformers with the same name here, and their settings.
const SCHEDULES: &[(&str, &[Setting])] = &[
    ("linear", &[]),
    ("cosine", &[("num_cycles", "num_cycles")]),
    ("cosine_with_min_lr", &[("min_lr", "min_lr"), ("min_lr_rate", "min_lr_ratio"), ("num_cycles", "num_cycles")]),
    (
        "cosine_warmup_with_min_lr",
        &[
            ("min_lr", "min_lr"),
            ("min_lr_rate", "min_lr_ratio"),
            ("num_cycles", "num_cycles"),
            ("warmup_lr_rate", "warmup_lr_ratio"),
        ],
    ),
    ("cosine_with_restarts", &[("num_cycles", "num_cycles")]),
    ("polynomial", &[("power", "power"), ("lr_end", "lr_end")]),
    ("inverse_sqrt", &[("timescale", "timescale")]),
    (
        "warmup_stable_decay",
        &[
            ("num_decay_steps", "decay_steps"),
            ("num_stable_steps", "stable_steps"),
            ("warmup_type", "warmup_type"),
            ("decay_type", "decay_type"),
            ("min_lr_ratio", "min_lr_ratio"),
            ("num_cycles", "num_cycles"),
        ],
    ),
];

/// Flags that change which rows share a step, and what gradus does instead.
const CHANGES_STEPS: &[(&str, &str)] = &[
    (
        "dataloader_drop_last",
        "the original leaves out the last rows of an epoch if they do not fill a batch; gradus trains on them: shorten \
         the data to a multiple of `train.batch_size`",
    ),
    (
        "group_by_length",
        "in the original, rows of similar length share a step; gradus chooses the rows of a step regardless of their \
         length: left out",
    ),
];

/// Returns the rows per pass, and the passes per optimizer step on one device.
pub(super) fn batch(from: &Original, names: &Names) -> (usize, usize) {
    let rows = from.some(&names.path(names.micro_batch)).unwrap_or(names.usual_micro_batch);
    (rows, from.some(&names.path("gradient_accumulation_steps")).unwrap_or(1))
}

/// Converts everything but the batch, the data and the method's own keys. The keys must be at the top of the file.
pub(super) fn arguments(from: &Original, to: &mut YamlBuilder, names: &Names) {
    WITHOUT_EFFECT.iter().for_each(|key| from.see_all(key));
    for (key, meaning) in CHANGES_STEPS {
        if from.flag(key) == Some(true) {
            from.note(key, *meaning);
        }
    }
    to.set_some("output_dir", from.text("output_dir"));
    length(from, to, names);
    for (theirs, ours) in [
        ("learning_rate", "learning_rate"),
        ("weight_decay", "weight_decay"),
        ("max_grad_norm", "max_grad_norm"),
        ("seed", "seed"),
        ("save_total_limit", "keep_checkpoints"),
    ] {
        to.set_some(&format!("train.{ours}"), from.unquoted(theirs));
    }
    // RMSprop reads no keys of AdamW.
    if from.text(names.optimizer).as_deref() != Some("rmsprop") {
        to.set_some("train.adam_epsilon", from.unquoted("adam_epsilon"));
        betas(from, to, names);
    }
    schedule(from, to, names);
    optimizer(from, to, names);
    intervals(from, to, names);
    precision(from, to);
    recompute(from, to, names);
    trackers(from, to);
}

/// Converts the length of a run: the steps, if they are above 0, else the epochs.
pub(super) fn length(from: &Original, to: &mut YamlBuilder, names: &Names) {
    let epochs = from.number(&names.path(names.epochs));
    match from.number(&names.path("max_steps")).filter(|steps| *steps > 0.0) {
        Some(steps) => to.set("train.max_steps", steps as u64),
        None => to.set("train.epochs", epochs.unwrap_or(names.usual_epochs)),
    }
}

/// Converts the decay rates of AdamW's moments.
pub(super) fn betas(from: &Original, to: &mut YamlBuilder, names: &Names) {
    let betas = (from.number(&names.path("adam_beta1")), from.number(&names.path("adam_beta2")));
    if betas != (None, None) {
        to.set("train.adam_betas", json!([betas.0.unwrap_or(0.9), betas.1.unwrap_or(0.999)]));
    }
}

/// Converts the noise on embeddings under `key`, if `method` is trained with noise.
pub(super) fn noise(from: &Original, to: &mut YamlBuilder, key: &str, method: &str) {
    let Some(alpha) = from.number(key).filter(|alpha| *alpha != 0.0) else { return };
    match MethodConfig::named(method).is_some_and(|method| method.method().adds_noise()) {
        true => to.set("train.neftune_noise_alpha", alpha),
        false => from.note(key, format!("gradus trains `{method}` without noise on embeddings: left out")),
    }
}

/// Converts gradient checkpointing. It may name the place of the stored activations, which changes only memory and time.
pub(super) fn recompute(from: &Original, to: &mut YamlBuilder, names: &Names) {
    let key = names.path("gradient_checkpointing");
    let is_placed = from.text(&key).is_some_and(|text| matches!(text.as_str(), "offload" | "offload_disk"));
    if is_placed || from.flag(&key) == Some(true) {
        to.set("train.recompute", true);
    }
}

/// Converts an early stop after the number of evaluations at `key`. Call this after the data, which may turn off evaluations.
pub(super) fn patience(from: &Original, to: &mut YamlBuilder, key: &str) {
    let Some(evaluations) = from.count(key).filter(|&evaluations| evaluations > 0) else { return };
    if to.0.pointer("/train/eval_steps").and_then(Json::as_i64).is_none_or(|steps| steps <= 0) {
        from.note(key, "an early stop needs evaluations during training, and the number of steps between them is not known: left out");
        return;
    }
    to.set("train.early_stopping_patience", evaluations);
    // transformers looks at the loss, unless the file names a metric.
    if to.0.pointer("/train/best_metric").is_none() {
        to.set("train.best_metric", "eval_loss");
    }
}

/// Turns off gradient clipping if `max_grad_norm` is written as `null`: transformers then clips nothing.
pub(super) fn unclipped(from: &Original, to: &mut YamlBuilder) {
    if from.is_null("max_grad_norm") {
        to.set("train.max_grad_norm", 0);
    }
}

/// Converts the learning rate schedule with its settings, and its warm-up.
pub(super) fn schedule(from: &Original, to: &mut YamlBuilder, names: &Names) {
    let above_zero = |key: &str| from.number(&names.path(key)).filter(|warmup| *warmup > 0.0);
    let (steps, share) = (above_zero("warmup_steps"), above_zero("warmup_ratio"));
    let warmup = steps.or(share);
    to.set_some("train.warmup_steps", warmup);
    let key = names.path(names.schedule);
    let name = from.text(&key);
    let place = names.path("lr_scheduler_kwargs");
    let settings = mapping(from, &place);
    match name.as_deref() {
        // transformers reads no settings for either of them.
        Some(name @ "constant") => {
            to.set("train.lr_schedule", name);
            if warmup.is_some() {
                to.set("train.warmup_steps", 0);
                from.note(
                    &key,
                    "in transformers, the schedule `constant` has no warm-up, unlike `constant_with_warmup`: \
                     `train.warmup_steps` is set to 0",
                );
            }
        }
        Some("constant_with_warmup") => to.set("train.lr_schedule", "constant"),
        Some(name) => match SCHEDULES.iter().find(|(known, _)| *known == name) {
            Some((_, known)) => to.set("train.lr_schedule", shape(from, name, known, &place, settings)),
            None => from.note(
                &key,
                format!("the schedule `{name}` has no equivalent: `train.lr_schedule` keeps its default, `linear`"),
            ),
        },
        None if settings.is_empty() => {}
        None => from.note(&place, format!("`{place}` is given without `{key}`: left out")),
    }
}

/// Returns a schedule as a name, or as a name with its settings. `place` is the path of the settings.
fn shape(from: &Original, name: &str, known: &[Setting], place: &str, settings: Map<String, Json>) -> Json {
    let mut keys = Map::new();
    for (theirs, value) in settings {
        match known.iter().find(|(known, _)| *known == theirs) {
            Some(_) if value.is_null() => {}
            Some((_, ours)) => {
                keys.insert((*ours).to_owned(), unquoted(value));
            }
            None => from.note(place, format!("the schedule `{name}` has no setting `{theirs}`: left out")),
        }
    }
    if keys.is_empty() {
        return name.into();
    }
    if name == "cosine" {
        // Here, only the cosine with a lowest learning rate has a number of waves.
        keys.insert("min_lr_ratio".into(), json!(0));
        return json!({ "cosine_with_min_lr": keys });
    }
    json!({ name: keys })
}

/// Returns the mapping at `path`, which may also be written as JSON. Empty if there is none.
fn mapping(from: &Original, path: &str) -> Map<String, Json> {
    let parsed = match from.json(path) {
        None => return Map::new(),
        Some(Json::String(text)) => serde_json::from_str(&text).unwrap_or_default(),
        Some(value) => value,
    };
    match parsed {
        Json::Object(settings) => settings,
        _ => {
            from.reject(path, format!("`{path}` is not a mapping, but a mapping is needed"));
            Map::new()
        }
    }
}

/// Marks the keys of vLLM as read, which are below `section`. Notes bounds that would change TRL's loss.
pub(super) fn vllm(from: &Original, section: &str) {
    OF_VLLM.iter().for_each(|key| from.see_all(&format!("{section}{key}")));
    if from.flag(&format!("{section}use_vllm")) != Some(true) {
        return;
    }
    let bounds = [
        ("vllm_importance_sampling_cap", true),
        ("vllm_importance_sampling_clip_max", true),
        ("vllm_importance_sampling_clip_min", false),
    ];
    for (key, is_upper) in bounds {
        let excludes = |bound: f64| if is_upper { bound < 1.0 } else { bound > 1.0 };
        let path = format!("{section}{key}");
        if from.number(&path).is_some_and(excludes) {
            from.note(
                &path,
                "the sampler of gradus has the probabilities of the trained model, so the ratio is 1: left out",
            );
        }
    }
}

fn optimizer(from: &Original, to: &mut YamlBuilder, names: &Names) {
    let key = names.optimizer;
    match from.text(key).as_deref() {
        // Paging decides only where moments are stored.
        None
        | Some("adamw" | "adamw_torch" | "adamw_torch_fused" | "adamw_hf" | "paged_adamw" | "paged_adamw_32bit") => {}
        Some("rmsprop") => to.set("train.optimizer", "rmsprop"),
        Some("adamw_bnb_8bit" | "adamw_8bit" | "paged_adamw_8bit") => to.set("train.moments", "int8"),
        Some(name) if name.contains("adamw") => {
            from.note(key, format!("`{name}` becomes `adamw` with moments in f32"));
        }
        Some(name) => from.note(key, format!("the optimizer `{name}` has no equivalent: `adamw` is used")),
    }
}

/// Converts the intervals of logging, saving and evaluation.
fn intervals(from: &Original, to: &mut YamlBuilder, names: &Names) {
    let every = |key: &str| {
        let number = from.number(key)?;
        if number > 0.0 && number < 1.0 {
            from.note(key, format!("`{key}` is a share of all steps: left out, write a number of steps"));
            return None;
        }
        (number >= 1.0).then_some(number as u64)
    };
    let logging = every("logging_steps");
    to.set_some("train.logging_steps", logging);
    let save = from.text("save_strategy");
    let steps = every("save_steps");
    match save.as_deref() {
        Some("no" | "false") => to.set("train.save_steps", 0), // without quotes, YAML 1.1 reads `no` as false
        Some("epoch" | "best") => {
            from.note(
                "save_strategy",
                "gradus saves checkpoints every `train.save_steps` steps, not by epoch or metric",
            );
        }
        _ => to.set_some("train.save_steps", steps),
    }
    let strategy = ["eval_strategy", "evaluation_strategy"].into_iter().find_map(|key| from.text(key));
    let steps = every("eval_steps");
    match strategy.as_deref() {
        Some("steps") => {
            // In transformers, only an absent interval, or 0, means that of logging. A share does not.
            let is_absent = from.number("eval_steps").is_none_or(|number| number == 0.0);
            to.set_some("train.eval_steps", steps.or(logging.filter(|_| is_absent)));
        }
        Some("epoch") => {
            from.note("eval_strategy", "held-out rows are measured every `train.eval_steps` steps and at the end")
        }
        None if steps.is_some() && names.steps_evaluate => to.set_some("train.eval_steps", steps),
        _ => to.set("train.eval_steps", -1),
    }
    let evaluates = to.0.pointer("/train/eval_steps").and_then(Json::as_i64);
    match evaluates {
        Some(-1) => from.see_all("eval_delay"),
        Some(_) => {
            let delay = from.number("eval_delay").filter(|delay| *delay > 0.0);
            to.set_some("train.eval_delay", delay.map(|delay| delay.ceil() as u64));
        }
        None => {}
    }
    from.see_all("load_best_model_at_end");
    if let Some(metric) = from.text("metric_for_best_model") {
        let metric = if metric.starts_with("eval_") { metric } else { format!("eval_{metric}") };
        to.set("train.best_metric", metric);
        to.set_some("train.greater_is_better", from.flag("greater_is_better"));
    }
    from.see_all("greater_is_better");
}

/// Whether the file evaluates held-out rows. If not, no training rows may be held out.
pub(super) fn holds_out(to: &YamlBuilder) -> bool {
    to.0.pointer("/train/eval_steps") != Some(&json!(-1))
}

fn precision(from: &Original, to: &mut YamlBuilder) {
    let is_on =
        |key: &str| from.text(key).is_some_and(|value| matches!(value.to_lowercase().as_str(), "true" | "auto"));
    let dtype = ["dtype", "torch_dtype"].into_iter().find_map(|key| from.text(key));
    let is_half = dtype.as_deref().is_some_and(|name| matches!(name, "bfloat16" | "float16" | "bf16" | "fp16"));
    let (bf16, fp16) = (is_on("bf16"), is_on("fp16"));
    if bf16 || fp16 || is_half {
        to.set("train.compute", "bf16");
    }
    if fp16 {
        from.note("fp16", "gradus computes products in bf16, with weights in f32");
    }
    for (key, format) in [("load_in_4bit", "nf4"), ("load_in_8bit", "int8")] {
        if from.flag(key) == Some(true) {
            to.set("train.frozen_weights", format);
        }
    }
    let key = "bnb_4bit_quant_type";
    if from.text(key).as_deref() == Some("fp4") && from.flag("load_in_4bit") == Some(true) {
        from.note(key, "gradus has no `fp4`: `train.frozen_weights` is set to `nf4`");
    }
}

fn trackers(from: &Original, to: &mut YamlBuilder) {
    let named = match from.json("report_to") {
        Some(Json::String(name)) => vec![name],
        Some(Json::Array(names)) => names.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect(),
        _ => Vec::new(),
    };
    for name in named {
        match name.as_str() {
            "wandb" | "tensorboard" => to.set(&format!("train.{name}"), true),
            "none" => {}
            "all" => ["wandb", "tensorboard"].iter().for_each(|name| to.set(&format!("train.{name}"), true)),
            other => from.note("report_to", format!("gradus writes no files for `{other}`: left out")),
        }
    }
    to.set_some("train.wandb_name", from.text("run_name"));
}

/// Notes that only the first of several data sets at `key` becomes `eval_data`, which names one.
pub(super) fn note_one_held_out(from: &Original, key: &str, files: &[String]) {
    if let [first, others @ ..] = files
        && !others.is_empty()
    {
        let others = others.iter().map(|file| format!("`{file}`")).collect::<Vec<_>>().join(", ");
        from.note(key, format!("`eval_data` names one data set, `{first}`: {others} left out"));
    }
}

/// Returns a list of texts, from a list or from a text with commas.
pub(super) fn texts(value: Option<Json>) -> Vec<String> {
    match value {
        Some(Json::String(text)) => {
            text.split(',').map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect()
        }
        Some(Json::Array(items)) => items
            .into_iter()
            .filter_map(|item| match item {
                Json::String(text) => Some(text),
                _ => None,
            })
            .collect(),
        _ => Vec::new(),
    }
}

/// A tool's names for keys of an adapter, and its defaults.
pub(super) struct LoraNames {
    /// The layers.
    pub targets: &'static str,
    /// DoRA.
    pub dora: &'static str,
    /// Rank-stabilized LoRA.
    pub stabilized: &'static str,
    /// The rank.
    pub rank: &'static str,
    /// Default rank, scale and dropout. If there is no scale, it is twice the rank.
    pub usual: (usize, Option<f64>, f64),
    /// Default layers, in the tool's words. `None` if they are those of gradus, or none at all.
    pub usual_targets: Option<&'static str>,
}

/// Default system message of Qwen 2.5's chat template.
pub(super) const QWEN_SYSTEM: &str = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";

/// No limit for `train.max_length`: the largest number that a key accepts.
pub(super) const NO_LIMIT: usize = 1_000_000_000;

/// Methods for which the other tools turn dropout off.
const WITHOUT_DROPOUT: &[&str] = &["dpo", "orpo", "cpo", "simpo", "kto", "distill"];

/// Converts the adapter for `method`. The caller has checked that there is one.
pub(super) fn lora(from: &Original, to: &mut YamlBuilder, method: &str, names: &LoraNames) {
    let (rank, alpha, dropout) = names.usual;
    let rank = from.some(names.rank).unwrap_or(rank);
    to.set("lora.rank", rank);
    to.set("lora.alpha", from.number("lora_alpha").or(alpha).unwrap_or(2.0 * rank as f64));
    let given = from.number("lora_dropout");
    if !WITHOUT_DROPOUT.contains(&method) {
        to.set("lora.dropout", given.unwrap_or(dropout));
    } else if given.is_some_and(|share| share > 0.0) {
        from.note("lora_dropout", format!("the original turns dropout off for `{method}`: left out"));
    }
    let targets = texts(from.json(names.targets).or_else(|| names.usual_targets.map(Json::from)));
    let is_all = targets.iter().any(|name| matches!(name.as_str(), "all" | "all-linear"));
    if is_all {
        to.set("lora.targets", json!(["all-linear"]));
    } else if !targets.is_empty() {
        to.set("lora.targets", json!(targets));
    }
    for (theirs, ours) in [(names.dora, "dora"), (names.stabilized, "rank_stabilised")] {
        if from.flag(theirs) == Some(true) {
            to.set(&format!("lora.{ours}"), true);
        }
    }
}
