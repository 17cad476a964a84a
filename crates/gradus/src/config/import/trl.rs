//! YAML files of TRL's command line: `trl dpo --config FILE`. The method is a subcommand there, not a key.

use serde_json::{Value as Json, json};

use super::trainer_arguments::{self as shared, HUGGING_FACE, LoraNames, NO_LIMIT};
use super::{FilesBelow, Original, YamlBuilder, data_names, set_data, whole_split, with_split};
use crate::error::Diagnostic;

/// A subcommand of TRL whose files can be imported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrlCommand {
    /// `trl sft`.
    Sft,
    /// `trl reward`.
    Reward,
    /// `trl dpo`.
    Dpo,
    /// `trl kto`.
    Kto,
    /// `trl grpo`.
    Grpo,
    /// `trl rloo`.
    Rloo,
}

impl TrlCommand {
    /// All subcommands.
    pub const ALL: [Self; 6] = [Self::Sft, Self::Reward, Self::Dpo, Self::Kto, Self::Grpo, Self::Rloo];

    /// Returns the subcommand, which is also the method here.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sft => "sft",
            Self::Reward => "reward",
            Self::Dpo => "dpo",
            Self::Kto => "kto",
            Self::Grpo => "grpo",
            Self::Rloo => "rloo",
        }
    }

    /// Returns pairs of the method's keys in TRL and here.
    fn keys(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Sft => &[
                ("loss_type", "loss_type"),
                ("completion_only_loss", "completion_only_loss"),
                ("assistant_only_loss", "assistant_only_loss"),
            ],
            Self::Reward => &[("center_rewards_coefficient", "center_rewards_coefficient")],
            Self::Dpo => &[
                ("beta", "beta"),
                ("loss_type", "loss_type"),
                ("loss_weights", "loss_weights"),
                ("label_smoothing", "label_smoothing"),
                ("ld_alpha", "ld_alpha"),
                ("f_divergence_type", "f_divergence_type"),
                ("f_alpha_divergence_coef", "f_alpha_divergence_coef"),
                ("use_weighting", "use_weighting"),
                ("discopop_tau", "discopop_tau"),
            ],
            Self::Kto => &[
                ("beta", "beta"),
                ("loss_type", "loss_type"),
                ("desirable_weight", "desirable_weight"),
                ("undesirable_weight", "undesirable_weight"),
            ],
            Self::Grpo => &[
                ("beta", "kl_coefficient"),
                ("delta", "delta"),
                ("loss_type", "loss_type"),
                ("importance_sampling_level", "importance_sampling_level"),
                ("sapo_temperature_pos", "sapo_temperature_pos"),
                ("sapo_temperature_neg", "sapo_temperature_neg"),
                ("vespo_k_pos", "vespo_k_pos"),
                ("vespo_lambda_pos", "vespo_lambda_pos"),
                ("vespo_k_neg", "vespo_k_neg"),
                ("vespo_lambda_neg", "vespo_lambda_neg"),
                ("multi_objective_aggregation", "multi_objective_aggregation"),
                ("top_entropy_quantile", "top_entropy_quantile"),
                ("entropy_coef", "entropy_coefficient"),
                ("use_adaptive_entropy", "use_adaptive_entropy"),
                ("use_bias_correction_kl", "kl_bias_correction"),
            ],
            Self::Rloo => &[
                ("beta", "kl_coefficient"),
                ("normalize_advantages", "normalize_advantages"),
                ("reward_clip_range", "reward_clip_range"),
            ],
        }
    }
}

const LORA: LoraNames = LoraNames {
    targets: "lora_target_modules",
    dora: "use_dora",
    stabilized: "use_rslora",
    rank: "lora_r",
    usual: (16, Some(32.0), 0.05),
    usual_targets: None,
};

/// No limit for `train.micro_batch_tokens`, as `gradus.trl` sets it for the loss `bnpo`.
const ALL_TOKENS: usize = 100_000_000;

/// Default number of optimizer steps after which the reference follows the policy.
const SYNC_STEPS: usize = 512;
/// The default of `inverse_sqrt` in `transformers`.
const INVERSE_SQRT_STEPS: usize = 10_000;

/// Losses of TRL's DPO that read `label_smoothing`.
const SMOOTHED: [&str; 4] = ["robust", "exo_pair", "aot", "aot_unpaired"];

pub(super) fn convert(from: &Original, command: TrlCommand) -> Result<YamlBuilder, Diagnostic> {
    let mut to = YamlBuilder::default();
    let model = "model_name_or_path";
    to.set("model", from.text(model).ok_or_else(|| Original::missing(model))?);
    to.set(&format!("method.{}", command.name()), json!({}));
    shared::arguments(from, &mut to, &HUGGING_FACE);
    data(from, &mut to)?;
    length(from, &mut to, command);
    shared::unclipped(from, &mut to);
    shared::noise(from, &mut to, "neftune_noise_alpha", command.name());
    let drops = dropout(from, &mut to, command);
    order(from, &mut to, command);
    for (theirs, ours) in command.keys() {
        to.set_some(&format!("method.{}.{ours}", command.name()), from.unquoted(theirs));
    }
    if from.flag("use_peft") == Some(true) {
        shared::lora(from, &mut to, command.name(), &LORA);
        if !drops {
            keep_adapter(from, &mut to);
        }
    } else {
        let keys = ["lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "use_rslora", "use_dora"];
        if let Some(key) = keys.into_iter().find(|key| from.json(key).is_some()) {
            from.note(key, format!("without `use_peft: true`, TRL trains no adapter: `{key}` is left out"));
        }
    }
    if !matches!(command, TrlCommand::Sft | TrlCommand::Reward) {
        sync(from, &mut to, command);
    }
    match command {
        TrlCommand::Grpo | TrlCommand::Rloo => online(from, &mut to, command)?,
        TrlCommand::Sft | TrlCommand::Reward | TrlCommand::Dpo | TrlCommand::Kto => {
            let (rows, passes) = shared::batch(from, &HUGGING_FACE);
            to.set("train.batch_size", rows.saturating_mul(passes));
            to.set("train.micro_batch_size", rows);
        }
    }
    if command == TrlCommand::Sft {
        to.set_some("train.text_column", from.text("dataset_text_field"));
        smoothing_of_sft(from, &mut to);
        packing(from, &mut to);
    }
    if matches!(command, TrlCommand::Sft | TrlCommand::Reward) {
        template(from, &mut to);
    }
    if command == TrlCommand::Dpo {
        smoothing(from, &mut to);
    }
    from.see_all("precompute_ref_log_probs"); // the same values, computed once or at every step
    Ok(to)
}

/// Converts the longest row. Methods that sample drop no prompt in TRL, and have no such key.
fn length(from: &Original, to: &mut YamlBuilder, command: TrlCommand) {
    let samples = matches!(command, TrlCommand::Grpo | TrlCommand::Rloo);
    if samples || from.is_null("max_length") {
        to.set("train.max_length", NO_LIMIT);
    } else {
        to.set_some("train.max_length", from.some("max_length"));
    }
}

/// Converts the dropout of the model, and returns whether TRL trains with dropout.
fn dropout(from: &Original, to: &mut YamlBuilder, command: TrlCommand) -> bool {
    let usually_off = matches!(command, TrlCommand::Reward | TrlCommand::Dpo | TrlCommand::Kto);
    let drops = !from.flag("disable_dropout").unwrap_or(usually_off);
    match command {
        TrlCommand::Dpo | TrlCommand::Kto => {
            if drops {
                let name = command.name();
                from.note(
                    "disable_dropout",
                    format!("gradus trains `{name}` without dropout, because it compares two models: left out"),
                );
            }
        }
        TrlCommand::Sft | TrlCommand::Reward | TrlCommand::Grpo | TrlCommand::Rloo => {
            if drops {
                to.set("train.dropout", true);
            }
        }
    }
    drops
}

/// Converts a reference that follows the policy. TRL reads the other two keys only with the first.
fn sync(from: &Original, to: &mut YamlBuilder, command: TrlCommand) {
    let [alpha, steps] = ["ref_model_mixup_alpha", "ref_model_sync_steps"];
    let (found, every) = (from.number(alpha), from.some(steps));
    if from.flag("sync_ref_model") != Some(true) {
        return;
    }
    to.set("train.sync_ref_model", true);
    to.set_some(&format!("train.{alpha}"), found);
    to.set(&format!("train.{steps}"), every.unwrap_or(SYNC_STEPS));
    if command == TrlCommand::Dpo {
        to.set("method.dpo.reference", "live");
    }
}

/// Turns off the dropout of the adapter, as TRL does with that of the model.
fn keep_adapter(from: &Original, to: &mut YamlBuilder) {
    if to.0.pointer("/lora/dropout").is_none() {
        return;
    }
    to.set("lora.dropout", 0);
    if from.number("lora_dropout").is_some_and(|share| share > 0.0) {
        from.note(
            "lora_dropout",
            "TRL turns off the dropout of the adapter too (`disable_dropout`): `lora.dropout` is set to 0",
        );
    }
}

/// Converts the order of the rows. Methods that sample read `shuffle_dataset` alone; in `sft`, either key shuffles.
fn order(from: &Original, to: &mut YamlBuilder, command: TrlCommand) {
    let strategy = from.text("train_sampling_strategy");
    if matches!(command, TrlCommand::Grpo | TrlCommand::Rloo) {
        to.set_some("train.shuffle", from.flag("shuffle_dataset"));
        return;
    }
    let shuffles = command == TrlCommand::Sft && from.flag("shuffle_dataset") == Some(true);
    // TRL pairs the neighboring rows of KTO, and so keeps their order by default.
    let usual = if command == TrlCommand::Kto { "sequential" } else { "random" };
    match strategy.as_deref().unwrap_or(usual) {
        "sequential" => to.set("train.shuffle", shuffles),
        "random" => to.set_some("train.shuffle", shuffles.then_some(true)),
        other => from.note(
            "train_sampling_strategy",
            format!("the order `{other}` has no equivalent: `train.shuffle` keeps its default, true"),
        ),
    }
}

/// Converts the chat template. In TRL, anything but a Jinja file names a model whose template is copied.
fn template(from: &Original, to: &mut YamlBuilder) {
    let key = "chat_template_path";
    let Some(path) = from.text(key) else { return };
    if [".jinja", ".j2"].into_iter().any(|end| path.ends_with(end)) {
        to.set("train.chat_template", path);
    } else {
        from.note(
            key,
            format!(
                "`{path}` is not a Jinja file: set `train.chat_template` to the `chat_template.jinja` of this model"
            ),
        );
    }
}

/// Sets the label smoothing of DPO to 0 if TRL does not read it.
fn smoothing(from: &Original, to: &mut YamlBuilder) {
    let key = "label_smoothing";
    if from.number(key).is_none_or(|share| share == 0.0) {
        return;
    }
    let losses = shared::texts(from.json("loss_type"));
    let has = |names: &[&str]| losses.iter().any(|loss| names.contains(&loss.as_str()));
    if !has(&SMOOTHED) {
        to.set("method.dpo.label_smoothing", 0);
        from.note(
            key,
            format!(
                "TRL reads `{key}` only for the losses {}: `method.dpo.label_smoothing` is set to 0",
                SMOOTHED.map(|loss| format!("`{loss}`")).join(", ")
            ),
        );
    } else if has(&["sigmoid"]) {
        from.note(key, format!("gradus also applies `{key}` to the loss `sigmoid`; TRL does not"));
    }
}

/// Converts the label smoothing of supervised fine-tuning. The loss `dft` has none.
fn smoothing_of_sft(from: &Original, to: &mut YamlBuilder) {
    let key = "label_smoothing_factor";
    if from.text("loss_type").as_deref() != Some("dft") {
        to.set_some("method.sft.label_smoothing", from.unquoted(key));
    } else if from.number(key).is_some_and(|share| share != 0.0) {
        from.note(key, format!("the loss `dft` has no label smoothing: `{key}` is left out"));
    }
}

/// Converts packing. Blocks of whole rows need no key here, because rows are stored end to end; blocks that cut rows do.
fn packing(from: &Original, to: &mut YamlBuilder) {
    let strategy = from.text("packing_strategy");
    if from.flag("packing") != Some(true) {
        return;
    }
    match strategy.as_deref() {
        Some("wrapped") => to.set("method.sft.packing", true),
        _ => from.note(
            "packing",
            "gradus stores rows end to end without padding, so packing is not needed; `train.batch_size` counts rows, \
             not blocks",
        ),
    }
}

/// Converts the rows: a data set with its splits, or a mixture.
fn data(from: &Original, to: &mut YamlBuilder) -> Result<(), Diagnostic> {
    let name = from.text("dataset_name");
    let (train, test) = (from.text("dataset_train_split"), from.text("dataset_test_split"));
    if let Some(entries) = from.entries("datasets") {
        let names: Vec<String> = entries.iter().flat_map(|entry| data_names(from, entry, FilesBelow::Path)).collect();
        entries.iter().for_each(|entry| from.note_unread_in(entry));
        if !set_data(to, &names) {
            return Err(Original::missing("datasets[0].path"));
        }
    } else {
        let name = name.ok_or_else(|| Original::missing("dataset_name"))?;
        let split = train.as_deref().map(|split| whole_split(from, "dataset_train_split", split));
        to.set("data", with_split(&name, split));
        if shared::holds_out(to) {
            let test = whole_split(from, "dataset_test_split", test.as_deref().unwrap_or("test"));
            to.set("eval_data", format!("{name}:{test}"));
        }
    }
    if !shared::holds_out(to) {
        to.set("train.eval_fraction", 0);
    }
    Ok(())
}

fn online(from: &Original, to: &mut YamlBuilder, command: TrlCommand) -> Result<(), Diagnostic> {
    let key = |ours: &str| format!("method.{}.{ours}", command.name());
    let group = from.some("num_generations").unwrap_or(if command == TrlCommand::Grpo { 8 } else { 2 });
    to.set(&key("group_size"), group);
    for (theirs, ours) in [
        ("max_completion_length", "max_new_tokens"),
        ("temperature", "temperature"),
        ("num_iterations", "update_epochs"),
        ("epsilon", "clip_range"),
        ("epsilon_high", "clip_range_high"),
        ("mask_truncated_completions", "mask_truncated_completions"),
        ("top_p", "sampling.top_p"),
        ("min_p", "sampling.min_p"),
        ("repetition_penalty", "sampling.repetition_penalty"),
    ] {
        to.set_some(&key(ours), from.unquoted(theirs));
    }
    to.set_some(&key("sampling.top_k"), from.count("top_k").filter(|k| *k > 0));
    if let Some(scale) = from.unquoted("scale_rewards") {
        let scale = match scale {
            Json::Bool(true) => json!("group"),
            Json::Bool(false) => json!("none"),
            other => other,
        };
        let aggregation = "multi_objective_aggregation";
        let sums = command == TrlCommand::Rloo || from.text(aggregation).as_deref() != Some("normalize_then_sum");
        if sums {
            to.set(&key("scale_rewards"), scale);
        } else if scale != "group" {
            let message =
                format!("TRL does not read `scale_rewards` with `{aggregation}: normalize_then_sum`: it is left out");
            from.note("scale_rewards", message);
        }
    }
    if command == TrlCommand::Grpo {
        adaptive_entropy(from, to);
    }
    to.set_some("train.max_prompt_length", from.some("max_prompt_length"));
    // There, a pass counts completions; here, a step counts prompts.
    let (rows, passes) = shared::batch(from, &HUGGING_FACE);
    let (completions, updates) = rollouts(from, rows, passes)?;
    if !completions.is_multiple_of(group) {
        let message = format!(
            "`per_device_train_batch_size` × the passes of a generation is {completions} completions, which is not a \
             multiple of `num_generations`, {group}"
        );
        return Err(Diagnostic { message, locations: Vec::new(), hint: None });
    }
    to.set("train.batch_size", completions / group);
    to.set("train.micro_batch_size", rows);
    if command == TrlCommand::Grpo && from.text("loss_type").as_deref() == Some("bnpo") {
        // This loss depends on the rows of a pass, so their number alone divides a step.
        to.set("train.micro_batch_tokens", ALL_TOKENS);
    }
    if updates > 1 {
        to.set(&key("mini_batches"), updates);
    }
    let repeats = updates.saturating_mul(from.some("num_iterations").unwrap_or(1));
    if repeats > 1
        && let Some(steps) = from.number("max_steps").filter(|steps| *steps > 0.0)
    {
        let steps = (steps as usize).div_ceil(repeats);
        to.set("train.max_steps", steps);
        from.note(
            "max_steps",
            format!("TRL counts optimizer steps; a step of gradus samples and takes {repeats} of them: {steps} steps"),
        );
    }
    if repeats > 1 {
        intervals(from, to, repeats);
    }
    shared::vllm(from, "");
    rewards(from, to);
    Ok(())
}

/// Converts the bounds of the entropy bonus, which TRL reads only if it adapts.
fn adaptive_entropy(from: &Original, to: &mut YamlBuilder) {
    let adapts = from.flag("use_adaptive_entropy") == Some(true);
    for (theirs, ours) in [
        ("entropy_coef_min", "entropy_coefficient_min"),
        ("entropy_coef_max", "entropy_coefficient_max"),
        ("entropy_coef_delta", "entropy_coefficient_delta"),
        ("entropy_target", "entropy_target"),
    ] {
        let Some(value) = from.unquoted(theirs) else { continue };
        match adapts {
            true => to.set(&format!("method.grpo.{ours}"), value),
            false => from.note(
                theirs,
                format!("without `use_adaptive_entropy: true`, TRL does not read `{theirs}`: it is left out"),
            ),
        }
    }
}

/// Divides intervals, warm-up and steps of a schedule by the optimizer steps of an iteration, with the rounding of `gradus.trl`.
fn intervals(from: &Original, to: &mut YamlBuilder, repeats: usize) {
    let note = |key: &str, steps: &dyn std::fmt::Display| {
        from.note(
            key,
            format!(
                "TRL counts optimizer steps in `{key}`; a step of gradus samples and takes {repeats} of them: \
                 `train.{key}` is {steps}"
            ),
        );
    };
    for key in ["logging_steps", "save_steps", "eval_steps", "ref_model_sync_steps"] {
        let theirs = to.0.pointer(&format!("/train/{key}")).and_then(Json::as_u64).unwrap_or(0);
        if theirs > 0 {
            let steps = ((theirs as f64 / repeats as f64).round_ties_even() as u64).max(1);
            to.set(&format!("train.{key}"), steps);
            note(key, &steps);
        }
    }
    let key = "eval_delay";
    if let Some(theirs) = to.0.pointer("/train/eval_delay").and_then(Json::as_u64) {
        let steps = theirs.div_ceil(repeats as u64);
        to.set("train.eval_delay", steps);
        note(key, &steps);
    }
    let key = "warmup_steps";
    // Below 1, it is a share of all steps.
    let theirs = to.0.pointer("/train/warmup_steps").and_then(Json::as_f64).unwrap_or(0.0);
    if theirs >= 1.0 {
        let steps = (theirs / repeats as f64).max(1.0);
        to.set(&format!("train.{key}"), steps);
        note(key, &steps);
    }
    // Without warm-up, the default of `transformers` is a number of optimizer steps.
    if to.0.pointer("/train/lr_schedule").and_then(Json::as_str) == Some("inverse_sqrt") && theirs == 0.0 {
        to.set("train.lr_schedule", serde_json::json!({ "inverse_sqrt": { "timescale": INVERSE_SQRT_STEPS } }));
    }
    for key in ["inverse_sqrt.timescale", "warmup_stable_decay.decay_steps", "warmup_stable_decay.stable_steps"] {
        let path = format!("train.lr_schedule.{key}");
        let theirs = to.0.pointer(&format!("/{}", path.replace('.', "/"))).and_then(Json::as_f64).unwrap_or(0.0);
        if theirs >= 1.0 {
            let steps = ((theirs / repeats as f64).round_ties_even() as u64).max(1);
            to.set(&path, steps);
            from.note(
                "lr_scheduler_kwargs",
                format!(
                    "TRL counts optimizer steps in `lr_scheduler_kwargs`; a step of gradus samples and takes {repeats} of them: \
                     `{path}` is {steps}"
                ),
            );
        }
    }
}

/// Returns the completions of a round of sampling, and the optimizer steps of one pass over them. A pass of the model
/// has `rows` completions, and an optimizer step adds up `passes` of them.
fn rollouts(from: &Original, rows: usize, passes: usize) -> Result<(usize, usize), Diagnostic> {
    let wrong = |message: String| Diagnostic { message, locations: Vec::new(), hint: None };
    let (whole, parts) = (from.some("generation_batch_size"), from.some("steps_per_generation"));
    let parts = match (whole, parts) {
        (Some(whole), Some(parts)) => {
            return Err(wrong(format!(
                "`generation_batch_size` is {whole} and `steps_per_generation` is {parts}: remove one of them, which \
                 follows from the other"
            )));
        }
        (Some(whole), None) if !whole.is_multiple_of(rows) => {
            return Err(wrong(format!(
                "`generation_batch_size` is {whole}, which is not a multiple of `per_device_train_batch_size`, {rows}: \
                 change one of them"
            )));
        }
        (Some(whole), None) => whole / rows,
        (None, parts) => parts.unwrap_or(passes),
    };
    if parts.is_multiple_of(passes) {
        return Ok((rows.saturating_mul(parts), parts / passes));
    }
    if passes.is_multiple_of(parts) && from.some("num_iterations").unwrap_or(1) == 1 {
        // The rounds within an optimizer step sample from the same policy.
        let key = if whole.is_some() { "generation_batch_size" } else { "steps_per_generation" };
        from.note(
            key,
            format!(
                "TRL samples {} times for an optimizer step; gradus samples once, for all prompts of the step",
                passes / parts
            ),
        );
        return Ok((rows.saturating_mul(passes), 1));
    }
    let origin = if whole.is_some() { " (from `generation_batch_size`)" } else { "" };
    Err(wrong(format!(
        "`steps_per_generation`{origin} is {parts} and `gradient_accumulation_steps` is {passes}, but gradus takes a \
         whole number of optimizer steps after each round of sampling: make the first a multiple of the second"
    )))
}

/// Converts the rewards. TRL lists the reward model first, then the functions, and weighs them in this order.
fn rewards(from: &Original, to: &mut YamlBuilder) {
    let models = shared::texts(from.json("reward_model_name_or_path"));
    let models = models.into_iter().map(|model| (json!({ "model": model }), None::<String>));
    let functions = shared::texts(from.json("reward_funcs")).into_iter().map(|name| match name.as_str() {
        "accuracy_reward" => (json!({ "rule": { "math": { "column": "solution" } } }), None),
        "think_format_reward" => (json!({ "rule": { "think_format": {} } }), None),
        _ => (Json::Null, Some(name)),
    });
    let listed: Vec<(Json, Option<String>)> = models.chain(functions).collect();
    let weights = reward_weights(from, listed.len());
    let mut parts = Vec::new();
    for (i, (reward, unknown)) in listed.into_iter().enumerate() {
        let weight = weights.as_ref().and_then(|weights| weights.get(i)).copied();
        match unknown {
            None => parts.push((weight.unwrap_or(1.0), reward)),
            Some(name) => {
                let weighs = weight.map(|weight| format!(" with the weight {weight}")).unwrap_or_default();
                from.note(
                    "reward_funcs",
                    format!(
                        "`{name}` is a Python function: pass it{weighs} to `gradus.{{grpo,rloo}}(reward=…)` in Python, \
                         or turn it into a program (`reward: {{ command: […] }}`)"
                    ),
                );
            }
        }
    }
    match parts.len() {
        0 => from.note("reward_funcs", "no reward could be imported: write `reward` before you train"),
        1 if weights.is_none() => to.set("reward", parts.remove(0).1),
        _ => {
            let weigh = |(weight, reward): (f64, Json)| json!({ "weight": weight, "reward": reward });
            to.set("reward.mix", parts.into_iter().map(weigh).collect::<Vec<Json>>());
        }
    }
}

/// Returns the weights of all `rewards` rewards, in TRL's order. Refuses a list that does not weigh each of them.
fn reward_weights(from: &Original, rewards: usize) -> Option<Vec<f64>> {
    let key = "reward_weights";
    let needed = format!("a list with one number per reward, {rewards} in all,");
    let Json::Array(items) = from.unquoted(key)? else {
        return from.refuse(key, "not a list", &needed);
    };
    if items.len() != rewards {
        return from.refuse(key, &format!("a list of length {}", items.len()), &needed);
    }
    let weights: Option<Vec<f64>> = items.iter().map(Json::as_f64).collect();
    weights.or_else(|| from.refuse(key, &Json::Array(items).to_string(), &needed))
}
