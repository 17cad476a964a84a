//! LLaMA-Factory's YAML files: `llamafactory-cli train FILE`. The stage determines the method.

use serde_json::{Value as Json, json};

use super::trainer_arguments::{self as shared, HUGGING_FACE, LoraNames};
use super::{Original, YamlBuilder};
use crate::error::Diagnostic;

/// LLaMA-Factory's defaults for keys that a file leaves out.
const CUTOFF: usize = 2048;
const LEARNING_RATE: f64 = 5e-5;
const PREF_BETA: f64 = 0.1;
const SIMPO_GAMMA: f64 = 0.5;

const LORA: LoraNames = LoraNames {
    targets: "lora_target",
    dora: "use_dora",
    stabilized: "use_rslora",
    rank: "lora_rank",
    usual: (8, None, 0.0),
    usual_targets: Some("all"),
};

/// Templates of LLaMA-Factory that exist here, under the same or another name.
const TEMPLATES: &[(&str, &str)] = &[
    ("chatml", "chatml"),
    ("gemma", "gemma"),
    ("gemma2", "gemma"),
    ("gemma3", "gemma"),
    ("llama2", "llama2"),
    ("llama3", "llama3"),
    ("mistral", "mistral"),
    ("phi", "phi3"),
    ("qwen", "qwen"),
    ("zephyr", "zephyr"),
];

pub(super) fn convert(from: &Original) -> Result<YamlBuilder, Diagnostic> {
    let mut to = YamlBuilder::default();
    let model = "model_name_or_path";
    to.set("model", from.text(model).ok_or_else(|| Original::missing(model))?);
    to.set_some("adapter", from.text("adapter_name_or_path"));
    let method = method(from, &mut to)?;
    shared::arguments(from, &mut to, &HUGGING_FACE);
    shared::unclipped(from, &mut to);
    shared::noise(from, &mut to, "neftune_alpha", method);
    if from.json("learning_rate").is_none() {
        to.set("train.learning_rate", LEARNING_RATE);
    }
    data(from, &mut to)?;
    let (rows, passes) = shared::batch(from, &HUGGING_FACE);
    to.set("train.batch_size", rows.saturating_mul(passes));
    if method != "ppo" {
        to.set("train.micro_batch_size", rows);
    }
    to.set("train.max_length", from.some("cutoff_len").unwrap_or(CUTOFF));
    match from.text("finetuning_type").as_deref() {
        None | Some("lora") if to.0.get("adapter").is_none() => shared::lora(from, &mut to, method, &LORA),
        None | Some("lora") => from.note("adapter_name_or_path", "training continues with this adapter"),
        Some("full") => {}
        Some(other) => from.note("finetuning_type", format!("`{other}` has no equivalent: all weights are trained")),
    }
    match from.count("quantization_bit") {
        None => {}
        Some(4) => to.set("train.frozen_weights", "nf4"),
        Some(8) => to.set("train.frozen_weights", "int8"),
        Some(bits) => from.note("quantization_bit", format!("{bits} bits have no equivalent: left out")),
    }
    for key in ["quantization_method", "stage"] {
        from.see_all(key);
    }
    template(from, &mut to);
    Ok(to)
}

fn method(from: &Original, to: &mut YamlBuilder) -> Result<&'static str, Diagnostic> {
    let stage = from.text("stage").unwrap_or_else(|| "sft".into());
    let beta = from.number("pref_beta");
    let method = match stage.as_str() {
        "pt" => {
            to.set("method.sft.packing", from.flag("packing").unwrap_or(true));
            "sft"
        }
        "sft" => {
            to.set("method.sft", json!({}));
            if from.flag("train_on_prompt") == Some(true) {
                to.set("method.sft.completion_only_loss", false);
            }
            if from.flag("packing") == Some(true) {
                from.note("packing", "gradus stores rows end to end without padding, so packing is not needed");
            }
            "sft"
        }
        "rm" => {
            to.set("method.reward", json!({}));
            "reward"
        }
        "kto" => {
            to.set("method.kto.beta", beta.unwrap_or(PREF_BETA));
            to.set_some("method.kto.desirable_weight", from.unquoted("kto_chosen_weight"));
            to.set_some("method.kto.undesirable_weight", from.unquoted("kto_rejected_weight"));
            "kto"
        }
        "dpo" => preference(from, to, beta.unwrap_or(PREF_BETA))?,
        "ppo" => {
            to.set("method.ppo", json!({}));
            for (theirs, ours) in [
                ("ppo_epochs", "update_epochs"),
                ("max_new_tokens", "max_new_tokens"),
                ("temperature", "temperature"),
                ("top_p", "sampling.top_p"),
                ("top_k", "sampling.top_k"),
                ("ppo_target", "kl.target"),
                ("ppo_whiten_rewards", "whiten_rewards"),
            ] {
                to.set_some(&format!("method.ppo.{ours}"), from.unquoted(theirs));
            }
            to.set("reward.model", from.text("reward_model").ok_or_else(|| Original::missing("reward_model"))?);
            "ppo"
        }
        other => {
            let message = format!("`stage` is `{other}`, but pt, sft, rm, dpo, kto or ppo is needed");
            return Err(Diagnostic { message, locations: Vec::new(), hint: None });
        }
    };
    to.set_some(&format!("method.{method}.reference_model"), from.text("ref_model"));
    Ok(method)
}

fn preference(from: &Original, to: &mut YamlBuilder, beta: f64) -> Result<&'static str, Diagnostic> {
    let loss = from.text("pref_loss").unwrap_or_else(|| "sigmoid".into());
    let extra = from.number("pref_ftx").filter(|weight| *weight > 0.0);
    let method = match loss.as_str() {
        "sigmoid" | "hinge" | "ipo" => {
            to.set("method.dpo.beta", beta);
            match extra {
                Some(weight) => {
                    to.set("method.dpo.loss_type", json!([loss, "sft"]));
                    to.set("method.dpo.loss_weights", json!([1.0, weight]));
                }
                None => to.set("method.dpo.loss_type", loss.as_str()),
            }
            to.set_some("method.dpo.label_smoothing", from.unquoted("dpo_label_smoothing"));
            to.set_some("method.dpo.ld_alpha", from.unquoted("ld_alpha"));
            "dpo"
        }
        "orpo" => {
            to.set("method.orpo.beta", beta);
            "orpo"
        }
        "simpo" => {
            to.set("method.simpo.beta", beta);
            to.set("method.simpo.simpo_gamma", from.number("simpo_gamma").unwrap_or(SIMPO_GAMMA));
            "simpo"
        }
        other => {
            let message = format!("`pref_loss` is `{other}`, but sigmoid, hinge, ipo, orpo or simpo is needed");
            return Err(Diagnostic { message, locations: Vec::new(), hint: None });
        }
    };
    if method != "dpo" && extra.is_some() {
        from.note("pref_ftx", format!("`pref_ftx` has no equivalent in `{method}`: left out"));
    }
    Ok(method)
}

/// Converts `dataset`. Its names refer to `dataset_info.json`, which stores the paths of files.
fn data(from: &Original, to: &mut YamlBuilder) -> Result<(), Diagnostic> {
    let folder = from.text("dataset_dir").unwrap_or_else(|| "data".into());
    let file = |name: &String| format!("{folder}/{name}.json");
    let names = shared::texts(from.json("dataset"));
    let Some((first, others)) = names.split_first() else { return Err(Original::missing("dataset")) };
    to.set("data", file(first));
    // There, the limit counts for each data set.
    let most = from.some("max_samples");
    to.set_some("train.max_rows", most);
    if !others.is_empty() {
        let part = |name: &String| match most {
            Some(most) => json!({ "data": file(name), "max_rows": most }),
            None => json!({ "data": file(name) }),
        };
        to.set("mix", others.iter().map(part).collect::<Vec<Json>>());
    }
    from.note(
        "dataset",
        format!(
            "names of `dataset_info.json` became files below `{folder}`: correct the paths where its entries \
                 differ"
        ),
    );
    let held_out = shared::texts(from.json("eval_dataset"));
    let share = from.number("val_size").filter(|share| *share > 0.0);
    let held_out: Vec<String> = held_out.iter().map(file).collect();
    shared::note_one_held_out(from, "eval_dataset", &held_out);
    if let Some(name) = held_out.first() {
        to.set("eval_data", name.as_str());
    } else if let Some(share) = share {
        if share < 1.0 {
            to.set("train.eval_fraction", share);
        } else {
            from.note("val_size", format!("the original holds out {share} rows; `train.eval_fraction` is a share"));
        }
    } else {
        to.set("train.eval_fraction", 0);
    }
    Ok(())
}

fn template(from: &Original, to: &mut YamlBuilder) {
    let Some(name) = from.text("template") else { return };
    match TEMPLATES.iter().find(|(theirs, _)| *theirs == name) {
        Some((_, ours)) => to.set("train.chat_template", *ours),
        None => {
            from.note("template", format!("gradus has no template `{name}`: the model's own chat template is used"))
        }
    }
}
