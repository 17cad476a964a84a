//! axolotl's YAML files: `axolotl train FILE`. The key `rl` determines the method.

use serde_json::{Value as Json, json};

use super::trainer_arguments::{self as shared, LoraNames, NO_LIMIT, Names};
use super::{FilesBelow, Original, YamlBuilder, data_names, set_data};
use crate::error::Diagnostic;

const NAMES: Names = Names {
    section: "",
    micro_batch: "micro_batch_size",
    epochs: "num_epochs",
    schedule: "lr_scheduler",
    optimizer: "optimizer",
    usual_epochs: 1.0,
    usual_micro_batch: 1,
    steps_evaluate: true,
};

/// axolotl's defaults for keys that a file leaves out.
const SCHEDULE: &str = "cosine";
const SEQUENCE_LEN: usize = 512;
/// TRL's defaults for CPO, whose trainer runs `rl: simpo`.
const CPO_BETA: f64 = 0.1;
const CPO_ALPHA: f64 = 1.0;
/// Share of all steps of the warm-up, and its most steps.
const WARMUP: (f64, f64) = (0.03, 100.0);

const LORA: LoraNames = LoraNames {
    targets: "lora_target_modules",
    dora: "peft_use_dora",
    stabilized: "peft_use_rslora",
    rank: "lora_r",
    usual: (8, Some(16.0), 0.0),
    usual_targets: None,
};

/// Chat templates of axolotl that also exist here, and the system message that they add to conversations without one.
const TEMPLATES: &[(&str, &str, Option<&str>)] = &[
    ("chatml", "chatml", None),
    ("gemma", "gemma", None),
    ("llama3", "llama3", None),
    ("mistral_v1", "mistral", None),
    ("phi_3", "phi3", None),
    ("qwen_25", "qwen", Some(shared::QWEN_SYSTEM)),
];

/// Keys of axolotl that change no result here.
const WITHOUT_EFFECT: &[&str] = &[
    "bnb_config_kwargs",
    "dataset_prepared_path",
    "dataset_processes",
    "debug",
    "eval_sample_packing",
    "gptq",
    "is_llama_derived_model",
    "is_mistral_derived_model",
    "load_in_4bit",
    "load_in_8bit",
    "model_type",
    "plugins",
    "strict",
    "tokenizer_type",
    "train_on_inputs",
    "val_set_size",
];

pub(super) fn convert(from: &Original) -> Result<YamlBuilder, Diagnostic> {
    let mut to = YamlBuilder::default();
    to.set("model", from.text("base_model").ok_or_else(|| Original::missing("base_model"))?);
    to.set_some("tokenizer", from.text("tokenizer_config"));
    let method = method(from, &mut to)?;
    // `max_grad_norm: null` has no effect: axolotl passes no null on, so transformers clips at its default, 1.
    shared::arguments(from, &mut to, &NAMES);
    shared::noise(from, &mut to, "neftune_noise_alpha", method);
    schedule(from, &mut to);
    WITHOUT_EFFECT.iter().for_each(|key| from.see_all(key));
    from.see_all("sample_packing"); // for `sft` alone
    data(from, &mut to)?;
    if method == "sft" {
        loss(from, &mut to);
    }
    let (rows, passes) = shared::batch(from, &NAMES);
    to.set("train.batch_size", rows.saturating_mul(passes));
    if method != "grpo" {
        to.set("train.micro_batch_size", rows);
    }
    length(from, &mut to, method);
    adapter(from, &mut to, method);
    for key in ["wandb_project", "wandb_entity", "wandb_name"] {
        if let Some(name) = from.text(key).filter(|name| !name.is_empty()) {
            to.set("train.wandb", true);
            to.set(&format!("train.{key}"), name);
        }
    }
    if let Some(name) = from.text("chat_template") {
        match TEMPLATES.iter().find(|(theirs, ..)| *theirs == name) {
            Some((_, ours, system)) => {
                to.set("train.chat_template", *ours);
                if let Some(system) = system {
                    system_message(from, &mut to, system);
                }
            }
            None if name == "tokenizer_default" => {}
            None => {
                from.note("chat_template", format!("gradus has no template `{name}`: the model's own template is used"))
            }
        }
    }
    for (theirs, ours) in [("saves_per_epoch", "save_steps"), ("evals_per_epoch", "eval_steps")] {
        if from.number(theirs).is_some() {
            from.note(theirs, format!("gradus counts intervals in steps: write `train.{ours}`"));
            if ours == "eval_steps" {
                to.set("train.eval_steps", 0);
            }
        }
    }
    shared::patience(from, &mut to, "early_stopping_patience");
    Ok(to)
}

/// Writes axolotl's default schedule and warm-up, if the file sets none.
fn schedule(from: &Original, to: &mut YamlBuilder) {
    if from.text(NAMES.schedule).is_none() {
        to.set("train.lr_schedule", SCHEDULE);
    }
    if from.text(NAMES.schedule).is_none_or(|name| name == SCHEDULE) {
        cosine(from, to);
    }
    // `constant_with_warmup` is `constant` here, but it has a warm-up.
    let is_constant = from.text(NAMES.schedule).as_deref() == Some("constant");
    if is_constant || ["warmup_steps", "warmup_ratio"].into_iter().any(|key| from.number(key).is_some()) {
        return;
    }
    let (share, most) = WARMUP;
    match from.number("max_steps").filter(|steps| *steps > 0.0) {
        Some(steps) => {
            let warmup = (share * steps).floor().min(most);
            // axolotl has no warm-up of one step.
            to.set("train.warmup_steps", if warmup > 0.0 { warmup.max(2.0) } else { 0.0 });
        }
        None => {
            to.set("train.warmup_steps", share);
            from.note(
                "warmup_ratio",
                format!(
                    "axolotl warms up over {share} of all steps, but over {most} at most: write `train.warmup_steps: {most}` \
                     if the run has more than {} steps",
                    (most / share).floor()
                ),
            );
        }
    }
}

/// Converts axolotl's own variants of a cosine, which replace that of transformers.
fn cosine(from: &Original, to: &mut YamlBuilder) {
    let above_zero = |key: &str| from.number(key).filter(|ratio| *ratio > 0.0);
    let (lowest, constant) = (above_zero("cosine_min_lr_ratio"), above_zero("cosine_constant_lr_ratio"));
    if from.flag("lr_quadratic_warmup") == Some(true) {
        from.note("lr_quadratic_warmup", "gradus has no quadratic warm-up: the warm-up is linear");
        return;
    }
    let Some(lowest) = lowest else { return };
    to.set("train.lr_schedule", json!({ "cosine_with_min_lr": { "min_lr_ratio": lowest } }));
    if constant.is_some() {
        from.note(
            "cosine_constant_lr_ratio",
            "in axolotl, the learning rate is lowest after this share of all steps; gradus has no such schedule, and the cosine \
             ends with the run",
        );
    }
}

/// Converts the longest row, and what happens to longer ones. The method `grpo` reads neither key. Plain texts are cut into pieces before axolotl
/// applies its strategy, so none of them is left out.
fn length(from: &Original, to: &mut YamlBuilder, method: &str) {
    let key = "excess_length_strategy";
    let (most, strategy) = (from.some("sequence_len"), from.text(key));
    if method == "grpo" {
        to.set("train.max_length", NO_LIMIT);
        return;
    }
    to.set("train.max_length", most.unwrap_or(SEQUENCE_LEN));
    if method == "sft" && reads_plain_texts(from) {
        from.note_with_hint(
            "datasets",
            "axolotl cuts each text of the type `completion` into pieces of `sequence_len` tokens, but gradus keeps the first \
             `train.max_length` tokens of a row"
                .into(),
            "write `method.sft.packing: true` to train on the rest, too: it joins all rows and cuts them into blocks",
        );
        return;
    }
    match strategy.as_deref() {
        Some("truncate") => to.set("train.too_long", "truncate"),
        None | Some("drop") => to.set("train.too_long", "skip"),
        Some(other) => {
            to.set("train.too_long", "skip");
            from.note(
                key,
                format!(
                    "`{other}` has no equivalent: `train.too_long` is `skip`, and gradus reports how many rows it skips"
                ),
            );
        }
    }
}

/// Returns whether a data set has the type `completion`, or one that begins with it.
fn reads_plain_texts(from: &Original) -> bool {
    types(from).iter().flatten().any(|kind| kind.starts_with("completion"))
}

/// Returns the types of the data sets to train on. Those that are mappings have none.
fn types(from: &Original) -> Vec<Option<String>> {
    let Some(Json::Array(parts)) = from.peek("datasets") else { return Vec::new() };
    parts.iter().map(|part| part["type"].as_str().map(str::to_owned)).collect()
}

/// Whether rows of this type are conversations, which the chat template renders.
fn is_chat(kind: &str) -> bool {
    ["chat_template", "sharegpt"].iter().any(|name| kind.starts_with(name))
}

/// Returns the number of data sets with conversations, and that of all data sets.
fn chats(from: &Original) -> (usize, usize) {
    let kinds = types(from);
    (kinds.iter().flatten().filter(|kind| is_chat(kind)).count(), kinds.len())
}

/// Writes the default system message of a template. Only conversations can have one.
fn system_message(from: &Original, to: &mut YamlBuilder, system: &str) {
    match chats(from) {
        (0, _) => {}
        (chats, all) if chats == all => to.set("train.system_prompt", system),
        _ => from.note_with_hint(
            "chat_template",
            format!(
                "axolotl begins conversations without a system message with \"{system}\"; gradus does not, because not all data sets are \
                 conversations"
            ),
            "turn the other rows into `messages`, and write this text as `train.system_prompt`",
        ),
    }
}

/// Restricts the loss of conversations to the assistant's turns, as axolotl does unless `train_on_inputs` is set.
fn loss(from: &Original, to: &mut YamlBuilder) {
    let (chats, all) = chats(from);
    if chats == 0 || from.flag("train_on_inputs") == Some(true) {
        return;
    }
    if chats == all {
        to.set("method.sft.assistant_only_loss", true);
    } else {
        from.note_with_hint(
            "datasets",
            "in conversations, axolotl trains on the assistant's turns alone; gradus trains on all turns, because not all data sets are \
             conversations"
                .into(),
            "turn the other rows into `messages`, and write `method.sft.assistant_only_loss: true`",
        );
    }
}

fn method(from: &Original, to: &mut YamlBuilder) -> Result<&'static str, Diagnostic> {
    if from.flag("reward_model") == Some(true) {
        to.set("method.reward", json!({}));
        return Ok("reward");
    }
    let beta = from.number("rl_beta");
    let beta = beta.or_else(|| from.number("dpo_beta"));
    let method = match from.text("rl").as_deref() {
        None => {
            to.set("method.sft", json!({}));
            if from.flag("sample_packing") == Some(true) {
                from.note(
                    "sample_packing",
                    "gradus stores rows end to end without padding, so packing is not needed; `train.batch_size` counts \
                     rows, not blocks",
                );
            }
            if from.flag("train_on_inputs") == Some(true) {
                to.set("method.sft.completion_only_loss", false);
            }
            return Ok("sft");
        }
        Some("dpo") => {
            to.set("method.dpo", json!({}));
            to.set_some("method.dpo.label_smoothing", from.unquoted("dpo_label_smoothing"));
            "dpo"
        }
        Some("ipo") => {
            to.set("method.dpo.loss_type", "ipo");
            "dpo"
        }
        Some("orpo") => {
            to.set("method.orpo", json!({}));
            to.set_some("method.orpo.beta", from.unquoted("orpo_alpha"));
            "orpo"
        }
        Some("simpo") => {
            to.set("method.simpo.cpo_alpha", from.unquoted("cpo_alpha").unwrap_or(json!(CPO_ALPHA)));
            to.set("method.simpo.beta", CPO_BETA);
            to.set_some("method.simpo.simpo_gamma", from.unquoted("simpo_gamma"));
            "simpo"
        }
        Some("kto") => {
            to.set("method.kto", json!({}));
            to.set_some("method.kto.desirable_weight", from.unquoted("kto_desirable_weight"));
            to.set_some("method.kto.undesirable_weight", from.unquoted("kto_undesirable_weight"));
            "kto"
        }
        Some(rl @ ("grpo" | "gdpo")) => {
            grpo(from, to, rl);
            return Ok("grpo");
        }
        Some(other) => {
            let message = format!("`rl` is `{other}`, but dpo, ipo, orpo, simpo, kto, grpo or gdpo is needed");
            return Err(Diagnostic { message, locations: Vec::new(), hint: None });
        }
    };
    to.set_some(&format!("method.{method}.beta"), beta);
    Ok(method)
}

/// Converts GRPO. axolotl uses TRL's, with TRL's keys below `trl`. Its GDPO is TRL's GRPO with another aggregation of rewards.
fn grpo(from: &Original, to: &mut YamlBuilder, rl: &str) {
    to.set("method.grpo", json!({}));
    if rl == "gdpo" {
        to.set("method.grpo.multi_objective_aggregation", "normalize_then_sum");
    }
    for (theirs, ours) in [
        ("num_generations", "group_size"),
        ("max_completion_length", "max_new_tokens"),
        ("beta", "kl_coefficient"),
        ("temperature", "temperature"),
        ("num_iterations", "update_epochs"),
        ("epsilon", "clip_range"),
        ("epsilon_high", "clip_range_high"),
        ("loss_type", "loss_type"),
        ("multi_objective_aggregation", "multi_objective_aggregation"),
        ("mask_truncated_completions", "mask_truncated_completions"),
    ] {
        to.set_some(&format!("method.grpo.{ours}"), from.unquoted(&format!("trl.{theirs}")));
    }
    from.note(
        "trl.reward_funcs",
        "the rewards are Python functions: write `reward`, or pass them to `gradus.grpo(reward=…)` in Python",
    );
    from.see_all("trl.reward_funcs");
    shared::vllm(from, "trl.");
    from.see_all("vllm");
    from.note(
        "micro_batch_size",
        "Axolotl counts the completions of a batch, gradus the prompts: check `train.batch_size`",
    );
}

/// Whether `value` of a data set's `key` is axolotl's default, or changes no result here.
fn is_usual(key: &str, value: &Json) -> bool {
    match key {
        "ds_type" | "preprocess_shards" | "trust_remote_code" => true,
        "chat_template" => value.as_str() == Some("tokenizer_default"),
        "drop_system_message" | "split_thinking" => value.as_bool() == Some(false),
        "field" => value.as_str() == Some("text"),
        "field_messages" => matches!(value.as_str(), Some("messages" | "conversations")),
        "message_field_role" => matches!(value.as_str(), Some("role" | "from")),
        "message_field_content" => matches!(value.as_str(), Some("content" | "value")),
        "message_property_mappings" => value.as_object().is_some_and(|names| {
            names.iter().all(|(name, found)| match name.as_str() {
                "role" => is_usual("message_field_role", found),
                "content" => is_usual("message_field_content", found),
                name => found.as_str() == Some(name),
            })
        }),
        "roles_to_train" => value.as_array().is_some_and(|roles| {
            !roles.is_empty() && roles.iter().all(|role| matches!(role.as_str(), Some("assistant" | "gpt")))
        }),
        "shards" => value.as_u64() == Some(1),
        "train_on_eos" | "train_on_eot" => value.as_str() == Some("turn"),
        _ => value.is_null(),
    }
}

/// Returns the names of the data sets at `key`, a list. Notes what gradus does not read of them.
fn data_sets(from: &Original, key: &str) -> Vec<String> {
    let (mut names, mut kinds) = (Vec::new(), Vec::new());
    for entry in from.entries(key).unwrap_or_default() {
        names.extend(data_names(from, &entry, FilesBelow::WorkingDirectory));
        if let Some(Json::Object(keys)) = from.peek(&entry) {
            if let Some(kind) = keys.get("type").and_then(Json::as_str) {
                from.see_all(&format!("{entry}.type"));
                kinds.push(kind.to_owned());
            }
            keys.iter()
                .filter(|(key, value)| is_usual(key, value))
                .for_each(|(key, _)| from.see_all(&format!("{entry}.{key}")));
        }
        from.note_unread_in(&entry);
    }
    if !kinds.is_empty() {
        from.note(key, format!("the types {} are not read: gradus recognizes rows by their columns", kinds.join(", ")));
    }
    names
}

fn data(from: &Original, to: &mut YamlBuilder) -> Result<(), Diagnostic> {
    if !set_data(to, &data_sets(from, "datasets")) {
        return Err(Original::missing("datasets[0].path"));
    }
    let share = from.number("val_set_size").filter(|share| *share > 0.0);
    let held_out = data_sets(from, "test_datasets");
    shared::note_one_held_out(from, "test_datasets", &held_out);
    match (held_out.first(), share) {
        (Some(file), _) => to.set("eval_data", file.as_str()),
        (None, Some(share)) if share < 1.0 => to.set("train.eval_fraction", share),
        (None, Some(rows)) => {
            from.note("val_set_size", format!("the original holds out {rows} rows; `train.eval_fraction` is a share"));
        }
        (None, None) => to.set("train.eval_fraction", 0),
    }
    let measures = to.0.get("eval_data").is_some() || share.is_some();
    if measures && !shared::holds_out(to) {
        to.set("train.eval_steps", 0);
    }
    Ok(())
}

fn adapter(from: &Original, to: &mut YamlBuilder, method: &str) {
    let all = from.flag("lora_target_linear") == Some(true);
    match from.text("adapter").as_deref() {
        Some(kind @ ("lora" | "qlora")) => {
            shared::lora(from, to, method, &LORA);
            if all {
                to.set("lora.targets", json!(["all-linear"]));
            }
            if kind == "qlora" {
                to.set("train.frozen_weights", "nf4");
            }
        }
        Some(other) => from.note("adapter", format!("`{other}` has no equivalent: all weights are trained")),
        None => {}
    }
    to.set_some("adapter", from.text("lora_model_dir").filter(|folder| !folder.is_empty()));
}
