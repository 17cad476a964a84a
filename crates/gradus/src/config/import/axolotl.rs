//! axolotl's YAML files: `axolotl train FILE`. The key `rl` determines the method.

use serde_json::{Value as Json, json};

use super::trainer_arguments::{self as shared, LoraNames, NO_LIMIT, Names};
use super::{Original, YamlBuilder, with_split};
use crate::error::Diagnostic;

const NAMES: Names = Names {
    section: "",
    micro_batch: "micro_batch_size",
    epochs: "num_epochs",
    schedule: "lr_scheduler",
    optimizer: "optimizer",
    usual_epochs: 1.0,
    usual_micro_batch: 1,
};

/// axolotl's defaults for keys that a file leaves out.
const SCHEDULE: &str = "cosine";
const SEQUENCE_LEN: usize = 512;
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

/// Chat templates of axolotl that also exist here.
const TEMPLATES: &[(&str, &str)] = &[
    ("chatml", "chatml"),
    ("gemma", "gemma"),
    ("llama3", "llama3"),
    ("mistral_v1", "mistral"),
    ("phi_3", "phi3"),
    ("qwen_25", "qwen"),
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
        match TEMPLATES.iter().find(|(theirs, _)| *theirs == name) {
            Some((_, ours)) => to.set("train.chat_template", *ours),
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
    let Some(Json::Array(parts)) = from.json("datasets") else { return false };
    parts.iter().filter_map(|part| part["type"].as_str()).any(|kind| kind.starts_with("completion"))
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
            to.set("method.simpo", json!({}));
            to.set_some("method.simpo.cpo_alpha", from.unquoted("cpo_alpha"));
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

fn data(from: &Original, to: &mut YamlBuilder) -> Result<(), Diagnostic> {
    let files = |key: &str| -> Vec<String> {
        let Some(Json::Array(parts)) = from.json(key) else { return Vec::new() };
        let name = |part: &Json| {
            let path = part["data_files"].as_str().or_else(|| part["path"].as_str())?;
            Some(with_split(from, key, path, part["split"].as_str()))
        };
        let kinds: Vec<&str> = parts.iter().filter_map(|part| part["type"].as_str()).collect();
        if !kinds.is_empty() {
            from.note(
                key,
                format!("the types {} are not read: gradus recognizes rows by their columns", kinds.join(", ")),
            );
        }
        parts.iter().filter_map(name).collect()
    };
    let train = files("datasets");
    let Some((first, others)) = train.split_first() else { return Err(Original::missing("datasets[0].path")) };
    to.set("data", first.as_str());
    if !others.is_empty() {
        to.set("mix", others.iter().map(|data| json!({ "data": data })).collect::<Vec<Json>>());
    }
    let share = from.number("val_set_size").filter(|share| *share > 0.0);
    let held_out = files("test_datasets");
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
