//! Names of TRL, `transformers`, peft and RL4LMs that differ here, and keys that have moved, for the hint on an unknown
//! key.

use super::moved;
use super::schema::Schema;

/// A name in another tool and its counterpart here.
struct Foreign {
    /// Names in other tools, in snake case.
    names: &'static [&'static str],
    /// Keys here, with `*` for the method. The first one that the method has is used. Empty if there is no counterpart.
    keys: &'static [&'static str],
    /// The difference, as the end of a sentence. Without a key, it is the whole sentence.
    note: &'static str,
}

const fn same(names: &'static [&'static str], keys: &'static [&'static str]) -> Foreign {
    Foreign { names, keys, note: "" }
}

const fn noted(names: &'static [&'static str], keys: &'static [&'static str], note: &'static str) -> Foreign {
    Foreign { names, keys, note }
}

const fn nothing(names: &'static [&'static str], note: &'static str) -> Foreign {
    Foreign { names, keys: &[], note }
}

const FOREIGN: &[Foreign] = &[
    same(&["lr", "learning_rate_policy"], &["train.learning_rate"]),
    same(&["lr_scheduler_type", "lr_scheduler", "warmup_style"], &["train.lr_schedule"]),
    noted(
        &["lr_scheduler_kwargs", "cosine_min_lr_ratio", "min_lr_ratio"],
        &["train.lr_schedule"],
        "a name with its settings, such as `{ cosine_with_min_lr: { min_lr_ratio: 0.1 } }`",
    ),
    noted(&["warmup_ratio"], &["train.warmup_steps"], "below 1 it is a share of all steps"),
    nothing(
        &["gradient_accumulation_steps"],
        "not needed: `batch_size` counts the rows of a whole step, the batch per device times the accumulation steps; the memory of a step \
         depends on `micro_batch_size`",
    ),
    noted(
        &["per_device_train_batch_size", "train_batch_size"],
        &["train.batch_size"],
        "it counts the rows of a whole step, not the rows of one forward pass",
    ),
    nothing(
        &["per_device_eval_batch_size", "eval_batch_size"],
        "evaluations choose their own batch size; it does not change results",
    ),
    same(&["model_name_or_path", "model_id", "base_model", "model_name"], &["model"]),
    same(&["dataset_name", "dataset", "train_file", "train_data", "data_path"], &["data"]),
    same(&["eval_dataset", "validation_file"], &["eval_data"]),
    nothing(
        &["packing", "pack", "padding_free"],
        "rows are always packed end to end, without padding; `--packing` of `sft` cuts texts into blocks of one length",
    ),
    same(&["num_train_epochs", "num_epochs", "n_epochs"], &["train.epochs"]),
    same(&["steps", "num_steps", "max_train_steps", "training_steps"], &["train.max_steps"]),
    same(&["drop_ties"], &["train.filter.drop_ties"]),
    same(&["drop_equal"], &["train.filter.drop_equal"]),
    same(&["min_characters"], &["train.filter.min_characters"]),
    same(&["max_seq_length", "max_seq_len", "cutoff_len", "block_size", "model_max_length"], &["train.max_length"]),
    same(&["optim", "optimizer_type"], &["train.optimizer"]),
    noted(&["adam_beta1", "adam_beta2"], &["train.adam_betas"], "both values as a list"),
    noted(&["bf16", "torch_dtype", "dtype", "mixed_precision"], &["train.compute"], "`f32` or `bf16`"),
    nothing(&["fp16"], "there is no f16 in training; `compute` is `f32` or `bf16`"),
    same(&["gradient_checkpointing", "use_gradient_checkpointing"], &["train.recompute"]),
    same(&["save_total_limit"], &["train.keep_checkpoints"]),
    noted(
        &["eval_strategy", "evaluation_strategy", "do_eval"],
        &["train.eval_steps"],
        "0 evaluates at the start and the end, -1 never",
    ),
    noted(&["save_strategy"], &["train.save_steps"], "0 saves only at the end"),
    nothing(&["report_to"], "`wandb` and `tensorboard` are separate switches"),
    same(&["metric_for_best_model", "load_best_model_at_end"], &["train.best_metric"]),
    same(&["dataset_text_field"], &["train.text_column"]),
    nothing(
        &["dataset_num_proc", "dataloader_num_workers"],
        "rows are tokenized on all cores; there is nothing to set",
    ),
    nothing(
        &["resume_from_checkpoint"],
        "pass `--resume`, which resumes from the last checkpoint in the output directory",
    ),
    nothing(&["overwrite_output_dir"], "pass `--overwrite`"),
    nothing(
        &["push_to_hub", "hub_model_id"],
        "nothing is uploaded; `model/` in the run directory is a model for the hub",
    ),
    same(&["use_peft", "peft", "use_lora"], &["lora.rank"]),
    nothing(&["trust_remote_code"], "code of models is never executed"),
    nothing(&["attn_implementation", "use_liger_kernel"], "kernels are always fused; there is nothing to set"),
    nothing(&["disable_tqdm"], "`--quiet` shows no progress"),
    nothing(&["logging_dir"], "all logs are in the run directory, `output_dir`"),
    noted(
        &["run_name"],
        &["train.wandb_name"],
        "this is the name at Weights & Biases; in gradus, the last part of `output_dir` is the name of the run",
    ),
    nothing(
        &["precompute_ref_log_probs"],
        "the result is the same: `dpo` computes the reference's log-probabilities before training, unless \
         `method.dpo.reference` is `live`; `kto` computes them in each step, but before training with \
         `loss_type: apo_zero_unpaired`",
    ),
    nothing(
        &["dataset_train_split", "dataset_split"],
        "append the split to the name of the data, as in `data: NAME:SPLIT`",
    ),
    nothing(&["rpo_alpha"], "a list of losses does this: `loss_type: [sigmoid, sft]` with `loss_weights`"),
    nothing(&["reward_weights"], "each reward of a `mix` has its own weight: see `gradus config explain reward.mix`"),
    noted(
        &["steps_per_generation"],
        &["method.*.mini_batches"],
        "the steps per iteration; each iteration samples completions once",
    ),
    same(&["neftune_alpha", "noisy_embedding_alpha"], &["train.neftune_noise_alpha"]),
    same(&["lora_r", "r"], &["lora.rank"]),
    same(&["lora_alpha"], &["lora.alpha"]),
    same(&["lora_dropout"], &["lora.dropout"]),
    same(&["lora_target_modules", "target_modules"], &["lora.targets"]),
    noted(&["load_in_4bit", "quantization"], &["train.frozen_weights"], "`nf4` is the 4-bit format"),
    noted(&["load_in_8bit"], &["train.frozen_weights"], "`int8` is the 8-bit format"),
    same(&["num_generations", "num_return_sequences", "n_samples"], &["method.*.group_size"]),
    same(
        &["max_completion_length", "response_length", "max_response_length", "max_tokens"],
        &["method.*.max_new_tokens"],
    ),
    nothing(&["do_sample"], "temperature 0 selects the most likely id, and any other temperature samples"),
    nothing(&["penalty_alpha"], "there is no contrastive search; docs/generation.md lists the settings of sampling"),
    nothing(
        &["constraints", "force_words_ids"],
        "there are no constrained beams; `bad_words_ids` and `suppress_tokens` exclude ids",
    ),
    nothing(
        &["assistant_model", "prompt_lookup_num_tokens"],
        "there is no assisted decoding, which only makes sampling faster",
    ),
    same(&["ppo_epochs", "num_ppo_epochs", "num_iterations", "noptepochs"], &["method.*.update_epochs"]),
    same(&["num_mini_batches"], &["method.*.mini_batches"]),
    same(&["cliprange", "epsilon", "clip_epsilon"], &["method.*.clip_range"]),
    same(&["epsilon_high", "cliprange_high"], &["method.*.clip_range_high"]),
    noted(
        &["use_vllm", "vllm_server_base_url", "vllm_server_host"],
        &["rollouts.server"],
        "the address of the server; docs/servers.md",
    ),
    same(&["vllm_importance_sampling_correction"], &["rollouts.importance_sampling_correction"]),
    same(&["vllm_importance_sampling_mode"], &["rollouts.importance_sampling_mode"]),
    same(
        &["vllm_importance_sampling_clip_max", "vllm_importance_sampling_cap"],
        &["rollouts.importance_sampling_clip_max"],
    ),
    same(&["vllm_importance_sampling_clip_min"], &["rollouts.importance_sampling_clip_min"]),
    same(&["cliprange_value", "vf_clip"], &["method.*.value_clip_range"]),
    same(&["vf_coef", "value_loss_coef"], &["method.*.value_coefficient"]),
    same(&["ent_coef", "entropy_coef"], &["method.*.entropy_coefficient"]),
    same(&["entropy_coef_min"], &["method.*.entropy_coefficient_min"]),
    same(&["entropy_coef_max"], &["method.*.entropy_coefficient_max"]),
    same(&["entropy_coef_delta"], &["method.*.entropy_coefficient_delta"]),
    same(&["gamma"], &["method.*.discount", "method.*.simpo_gamma"]),
    same(&["lam", "lambda", "gae_lam"], &["method.*.gae_lambda"]),
    same(&["kl_coef", "init_kl_coef", "init_kl_coeff"], &["method.*.kl.coefficient"]),
    noted(
        &["beta"],
        &["method.*.kl_coefficient", "method.*.kl.coefficient"],
        "for methods that sample; methods that train on preferences have `--beta`",
    ),
    same(&["target_kl_value", "kl_target"], &["method.*.kl.target"]),
    same(&["ref_model", "ref_model_name", "reference_model_path"], &["method.*.reference_model"]),
    same(&["reward_model_path", "reward_model_name_or_path"], &["reward.model"]),
    noted(
        &["reward_funcs", "reward_function", "reward_fn"],
        &["reward.command"],
        "a program, such as `python3 reward.py`; `reward.model` is a model, and the Python package takes functions",
    ),
];

/// Notation of keys in a hint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spelling {
    /// A key in a file: `train.learning_rate`.
    Key,
    /// A flag: `--learning-rate`.
    Flag,
    /// An argument of a function: `learning_rate`.
    Argument,
}

/// Returns the part of a key that appears in its flag.
fn flag(key: &str) -> &str {
    key.strip_prefix("train.").or_else(|| key.strip_prefix("method.*.")).unwrap_or(key)
}

/// Returns the hint on a key of an earlier version whose place has changed.
fn of_moved(name: &str, method: Option<&str>, spelling: Spelling) -> Option<String> {
    let schema = Schema::run_config();
    // `--no-NAME` turns the key NAME off.
    let (off, name) = match (spelling, name.strip_prefix("no_")) {
        (Spelling::Flag, Some(name)) => ("no-", name),
        _ => ("", name),
    };
    let key = moved::find(&schema, name, method)?;
    let own = key.splitn(3, '.').nth(2)?;
    let is_section = schema.field(&key).is_some_and(|field| !schema.fields(&field.shape).is_empty());
    Some(match spelling {
        Spelling::Key if name.starts_with("method.") || method.is_some() => format!("it is now `{key}`"),
        // Without a method, only shared keys are arguments.
        Spelling::Key | Spelling::Argument if method.is_none() => {
            format!("it is now `method.METHOD.{own}`, for methods that have it")
        }
        Spelling::Flag if is_section => return None,
        Spelling::Flag => {
            let only = if method.is_none() { ", for methods that have it" } else { "" };
            format!("it is now `--{off}{}`{only}", own.replace(['.', '_'], "-"))
        }
        Spelling::Argument if is_section => {
            let (section, key) = own.split_once('.').unwrap_or((own, ""));
            format!("it is now a key of `{section}`: `{section}={{\"{key}\": {{…}}}}`")
        }
        Spelling::Key | Spelling::Argument => format!("it is now `{}`", own.replace('.', "_")),
    })
}

/// Translates `name` from another tool, or from an earlier version. Dashes and underscores are equivalent. With a `method`, only keys of that
/// method are suggested.
pub fn translate(name: &str, method: Option<&str>, spelling: Spelling) -> Option<String> {
    let name = name.trim_start_matches('-').replace('-', "_").to_lowercase();
    if let Some(hint) = of_moved(&name, method, spelling) {
        return Some(hint);
    }
    let found = FOREIGN.iter().find(|foreign| foreign.names.contains(&name.as_str()))?;
    let Some(first) = found.keys.first() else { return Some(format!("`{name}` in other tools: {}", found.note)) };
    let key = match method {
        Some(method) => {
            let schema = Schema::run_config();
            let has = |key: &&&str| !key.contains('*') || schema.field(&key.replace('*', method)).is_some();
            *found.keys.iter().find(has)?
        }
        None => *first,
    };
    let place = match spelling {
        Spelling::Key => key.replace('*', method.unwrap_or("METHOD")),
        Spelling::Flag => format!("--{}", flag(key).replace(['.', '_'], "-")),
        Spelling::Argument => flag(key).replace('.', "_"),
    };
    let note = if found.note.is_empty() { String::new() } else { format!(" ({})", found.note) };
    let only = match (key.contains(".*."), spelling, method) {
        (true, Spelling::Flag, None) => ", for methods that have it",
        _ => "",
    };
    Some(format!("it is `{place}` here{only}{note}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{MethodConfig, Scope, flags};

    #[test]
    fn every_translation_leads_to_a_key_and_a_flag_that_exist_and_no_name_is_taken() {
        let schema = Schema::run_config();
        let methods: Vec<&str> = MethodConfig::all().iter().map(MethodConfig::name).collect();
        let all: Vec<String> =
            methods.iter().flat_map(|method| flags(&schema, Scope::Method(method))).map(|flag| flag.name).collect();
        for foreign in FOREIGN {
            for name in foreign.names {
                // The same word may be a flag here, if its key is elsewhere.
                let own = format!("--{}", name.replace('_', "-"));
                let leads_there = || translate(name, None, Spelling::Flag).is_some_and(|hint| hint.contains(&own));
                assert!(!all.contains(&own[2..].to_owned()) || leads_there(), "`{name}` is a flag of ours");
            }
            for key in foreign.keys {
                let exists = methods.iter().any(|method| schema.field(&key.replace('*', method)).is_some());
                assert!(exists, "`{key}`");
            }
            if foreign.keys.is_empty() {
                continue;
            }
            let shown = translate(foreign.names[0], None, Spelling::Flag).expect("translated");
            let flag = shown.split('`').nth(1).expect("a flag").trim_start_matches("--").to_owned();
            let leads = all.iter().any(|name| *name == flag || name.starts_with(&format!("{flag}-")));
            assert!(leads, "`--{flag}` for `{}`", foreign.names[0]);
        }
        let mut names: Vec<&str> = FOREIGN.iter().flat_map(|foreign| foreign.names).copied().collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "a name has two translations");
    }

    #[test]
    fn names_are_translated_in_the_spelling_that_was_used() {
        assert_eq!(translate("--lr", None, Spelling::Flag).as_deref(), Some("it is `--learning-rate` here"));
        assert_eq!(
            translate("num_generations", Some("grpo"), Spelling::Key).as_deref(),
            Some("it is `method.grpo.group_size` here")
        );
        assert_eq!(translate("learning_rate", None, Spelling::Key), None);
        // KTO computes the reference's numbers before training only with one of its losses.
        let hint = translate("precompute_ref_log_probs", Some("kto"), Spelling::Key).expect("translated");
        assert!(hint.ends_with("but before training with `loss_type: apo_zero_unpaired`"), "{hint}");
        // Keys whose place has changed.
        for (name, method, spelling, expected) in [
            ("--part-size", Some("ppo"), Spelling::Flag, Some("it is now `--quirks-part-size`")),
            ("--no-sum-parts", Some("nlpo"), Spelling::Flag, Some("it is now `--no-quirks-sum-parts`")),
            ("--whitening-rewards", Some("a2c"), Spelling::Flag, Some("it is now `--quirks-whitening-rewards`")),
            ("--part-size", None, Spelling::Flag, Some("it is now `--quirks-part-size`, for methods that have it")),
            ("--whitening", Some("a2c"), Spelling::Flag, None),
            ("--part-size", Some("grpo"), Spelling::Flag, None),
            ("method.ppo.part_size", None, Spelling::Key, Some("it is now `method.ppo.quirks.part_size`")),
        ] {
            assert_eq!(translate(name, method, spelling).as_deref(), expected, "{name}");
        }
        // Only keys of the method are suggested.
        for (method, name, expected) in [
            ("simpo", "gamma", Some("it is `--simpo-gamma` here")),
            ("ppo", "gamma", Some("it is `--discount` here")),
            ("grpo", "gamma", None),
            ("grpo", "beta", Some("it is `--kl-coefficient` here")),
            ("ppo", "beta", Some("it is `--kl-coefficient` here")),
        ] {
            let found = translate(name, Some(method), Spelling::Flag);
            assert_eq!(
                found.as_deref().map(|hint| hint.split(" (").next().unwrap_or(hint)),
                expected,
                "{method} {name}"
            );
        }
    }
}
