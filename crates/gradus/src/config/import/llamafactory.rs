//! LLaMA-Factory's YAML files: `llamafactory-cli train FILE`. The stage determines the method.

use std::path::Path;

use serde_json::{Value as Json, json};

use super::trainer_arguments::{self as shared, HUGGING_FACE, LoraNames};
use super::{Original, YamlBuilder};
use crate::data::{self, Content, LoadOptions, Message, Need, Row, RowData};
use crate::error::{self, Diagnostic};

/// LLaMA-Factory's defaults for keys that a file leaves out.
const CUTOFF: usize = 2048;
const LEARNING_RATE: f64 = 5e-5;
const PREF_BETA: f64 = 0.1;
const SIMPO_GAMMA: f64 = 0.5;
const MAX_NEW_TOKENS: usize = 1024;
/// Default of TRL 0.9, whose PPO LLaMA-Factory runs.
const KL_COEFFICIENT: f64 = 0.2;

const LORA: LoraNames = LoraNames {
    targets: "lora_target",
    dora: "use_dora",
    stabilized: "use_rslora",
    rank: "lora_rank",
    usual: (8, None, 0.0),
    usual_targets: Some("all"),
};

/// Templates of LLaMA-Factory that exist here, under the same or another name, and the system message that they add to conversations without one.
const TEMPLATES: &[(&str, &str, Option<&str>)] = &[
    ("chatml", "chatml", None),
    ("gemma", "gemma", None),
    ("gemma2", "gemma", None),
    ("gemma3", "gemma", None),
    ("llama3", "llama3", None),
    ("phi", "phi3", None),
    ("qwen", "qwen", Some(shared::QWEN_SYSTEM)),
];

/// Templates of LLaMA-Factory that differ from those with the same name here in spaces and line ends.
const NAMESAKES: &[&str] = &["llama2", "mistral", "zephyr"];

/// Number of rows of a file that the import looks at.
const ROWS_LOOKED_AT: usize = 1000;

pub(super) fn convert(from: &Original) -> Result<YamlBuilder, Diagnostic> {
    let mut to = YamlBuilder::default();
    let is_chat = from.text("stage").as_deref() != Some("pt");
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
    let files = data(from, &mut to)?;
    if method == "sft" && is_chat && from.flag("train_on_prompt") != Some(true) {
        loss(from, &mut to, &files);
    }
    shared::patience(from, &mut to, "early_stopping_steps");
    let (rows, passes) = shared::batch(from, &HUGGING_FACE);
    to.set("train.batch_size", rows.saturating_mul(passes));
    if method != "ppo" {
        to.set("train.micro_batch_size", rows);
    }
    length(from, &mut to, method, is_chat);
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
    template(from, &mut to, is_chat);
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
            for (theirs, ours, usual) in [
                ("ppo_epochs", "update_epochs", json!(4)),
                ("max_new_tokens", "max_new_tokens", json!(MAX_NEW_TOKENS)),
                ("temperature", "temperature", json!(0.95)),
                ("top_p", "sampling.top_p", json!(0.7)),
                ("repetition_penalty", "sampling.repetition_penalty", json!(1)),
                ("ppo_target", "kl.target", json!(6)),
                ("ppo_whiten_rewards", "whiten_rewards", json!(false)),
            ] {
                to.set(&format!("method.ppo.{ours}"), from.unquoted(theirs).unwrap_or(usual));
            }
            to.set("method.ppo.kl.coefficient", KL_COEFFICIENT);
            // 0 samples from all tokens there.
            let top_k = from.number("top_k").unwrap_or(50.0);
            to.set_some("method.ppo.sampling.top_k", (top_k > 0.0).then_some(top_k as u64));
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

/// Converts the longest row, and what happens to longer ones.
fn length(from: &Original, to: &mut YamlBuilder, method: &str, is_chat: bool) {
    let key = "cutoff_len";
    let most = from.some(key).unwrap_or(CUTOFF);
    if method == "ppo" {
        // There, only the prompt counts.
        let new = from.count("max_new_tokens").unwrap_or(MAX_NEW_TOKENS);
        to.set("train.max_length", most.saturating_add(new));
        to.set("train.max_prompt_length", most);
        to.set("train.prompt_truncation", "right");
        return;
    }
    to.set("train.max_length", most);
    if method == "reward" {
        to.set("train.too_long", "truncate");
        to.set("method.reward.truncation", "left");
    }
    if is_chat {
        let cut = if method == "reward" { "the beginning of both texts" } else { "the end of the row" };
        from.note(
            key,
            format!("LLaMA-Factory shortens prompt and answer of a longer row in proportion; gradus cuts {cut}"),
        );
    }
}

/// Reads the first rows of a local file. `None` if there is no such file.
fn first_rows(file: &str) -> Option<error::Result<Vec<Row>>> {
    let options = LoadOptions { max_rows: Some(ROWS_LOOKED_AT), ..LoadOptions::needing(Need::Sft) };
    Path::new(file).is_file().then(|| data::load(file, &options).map(|found| found.rows))
}

/// Restricts the loss to the assistant's turns. Rows with one answer need no key for this.
fn loss(from: &Original, to: &mut YamlBuilder, files: &[String]) {
    let turns =
        "LLaMA-Factory trains on the assistant's turns alone; gradus trains on all turns of conversations (`messages`)";
    let hint = "write `method.sft.assistant_only_loss: true` if the rows are conversations";
    let mut rows = Vec::new();
    for file in files {
        match first_rows(file) {
            Some(Ok(found)) => rows.extend(found),
            Some(Err(error)) => {
                from.note_with_hint(
                    "dataset",
                    format!("{turns}, because the import cannot read `{file}`: {error}"),
                    hint,
                );
                return;
            }
            None => {
                let hint = format!("{hint}. An import that finds the files does this by itself");
                from.note_with_hint("dataset", turns.into(), &hint);
                return;
            }
        }
    }
    let has_answer = |messages: &[Message]| messages.iter().any(|message| message.role == "assistant");
    let has_messages = rows.iter().any(|row| matches!(row.data, RowData::Messages(_)));
    // Answers in the column `history` are trained on, too.
    let has_history =
        rows.iter().any(|row| matches!(&row.data, RowData::Instruction { history, .. } if has_answer(history)));
    if !has_messages && !has_history {
        return;
    }
    // `assistant_only_loss` refuses such rows.
    let has_texts = rows.iter().any(|row| {
        let is_chat = matches!(
            row.data,
            RowData::Messages(_)
                | RowData::Instruction { .. }
                | RowData::PromptCompletion { prompt: Content::Messages(_), .. }
        );
        !is_chat
    });
    if has_texts {
        let message = format!("{turns}, because some rows are no conversations");
        let hint = "turn the other rows into `messages`, and write `method.sft.assistant_only_loss: true`";
        from.note_with_hint("dataset", message, hint);
        return;
    }
    to.set("method.sft.assistant_only_loss", true);
    if has_history {
        // Otherwise, the loss would be on the last answer.
        to.set("method.sft.completion_only_loss", false);
    }
}

/// Converts `dataset`, and returns the files to train on. Its names refer to `dataset_info.json`, which stores the paths of files.
fn data(from: &Original, to: &mut YamlBuilder) -> Result<Vec<String>, Diagnostic> {
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
    Ok(names.iter().map(file).collect())
}

/// Converts the chat template and its system message. Texts of the stage `pt` have neither.
fn template(from: &Original, to: &mut YamlBuilder, is_chat: bool) {
    let (name, mut system) = (from.text("template"), from.text("default_system"));
    if let Some(name) = name {
        match TEMPLATES.iter().find(|(theirs, ..)| *theirs == name) {
            Some((_, ours, usual)) => {
                to.set("train.chat_template", *ours);
                system = system.or_else(|| usual.map(str::to_owned));
            }
            None if NAMESAKES.contains(&name.as_str()) => from.note_with_hint(
                "template",
                format!(
                    "the template `{name}` of gradus has other spaces and line ends, and no default system message: the model's own chat \
                     template is used"
                ),
                "write LLaMA-Factory's form to a Jinja file, and name it with `train.chat_template`",
            ),
            None => {
                from.note("template", format!("gradus has no template `{name}`: the model's own chat template is used"));
            }
        }
    }
    to.set_some("train.system_prompt", system.filter(|text| is_chat && !text.is_empty()));
}
