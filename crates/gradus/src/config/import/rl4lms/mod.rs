//! RL4LMs' YAML files, with the keys of its `train_text_generation.py`. Defaults of transformers are written out,
//! because `max_length: 20` and `top_k: 50` apply without being visible.

mod generation;
mod scores;

use serde_json::{Map, Value as Json, json};

use super::trainer_arguments::{self as shared, HUGGING_FACE, Names};
use super::{Original, YamlBuilder};
use crate::error::Diagnostic;
use generation::{evaluation, new_tokens, sampling};
use scores::{metrics, reward};

/// Longest input of the tokenizers of T5, to which supervised training cuts inputs, references and prompts.
const T5_LENGTH: usize = 512;
/// Defaults of an algorithm's constructor that differ from `preset: rl4lms`: transitions per environment, the learning
/// rate, and transitions per mini-batch for algorithms with mini-batches (TRPO's critic).
fn constructor(algorithm: &str) -> (usize, f64, Option<usize>) {
    match algorithm {
        "a2c" => (5, 7e-4, None),
        "trpo" => (2048, 1e-3, Some(128)),
        _ => (2048, 3e-4, Some(64)),
    }
}
/// Default number of passes over a buffer.
const EPOCHS: usize = 10;
/// Defaults for the iterations between updates of a mask's network, and for the minimum number of tokens it keeps.
const MASK_UPDATE: usize = 1000;
const MASK_KEEPS: usize = 100;
/// Prefix of texts to summarize in T5's pre-training.
const T5_PREFIX: &str = "summarize:";
/// Names of the arguments of transformers' `Trainer` in supervised files.
const TRAINER: Names = Names { section: "alg.training_args.", ..HUGGING_FACE };
/// Row limit that covers a whole split, for evaluations.
const WHOLE_SPLIT: usize = 1_000_000;

pub(super) fn convert(from: &Original) -> Result<YamlBuilder, Diagnostic> {
    let mut to = YamlBuilder::default();
    let algorithm = from.text("alg.id").ok_or_else(|| Original::missing("alg.id"))?;
    for key in ["tokenizer.padding_side", "tokenizer.pad_token_as_eos_token", "train_evaluation.eval_batch_size"] {
        from.see_all(key); // there is no padding, and batches of evaluations are limited by tokens
    }
    match algorithm.as_str() {
        "ppo" | "nlpo" | "a2c" | "trpo" => online(from, &mut to, &algorithm)?,
        id if id.contains("supervised") => supervised(from, &mut to)?,
        id => {
            let message = format!("`alg.id` is `{id}`, which is not an algorithm of RL4LMs");
            return Err(Diagnostic { message, locations: Vec::new(), hint: None });
        }
    }
    commas(from);
    Ok(to)
}

/// Notes a comma after a boolean or a number. In YAML it is part of the value: `True,` is a text.
fn commas(from: &Original) {
    for (path, text) in from.plain_texts() {
        let is_value = |text: &str| text.parse::<f64>().is_ok() || matches!(text, "True" | "true" | "False" | "false");
        if let Some(meant) = text.strip_suffix(',').filter(|meant| is_value(meant)) {
            from.note(&path, format!("`{path}` is the text `{text}`, not `{meant}`: the comma is part of the text"));
        }
    }
}

/// Converts the model, and notes a different tokenizer.
fn model(from: &Original, to: &mut YamlBuilder, path: &str) -> Result<(), Diagnostic> {
    let model = from.text(path).ok_or_else(|| Original::missing(path))?;
    if let Some(tokenizer) = from.text("tokenizer.model_name").filter(|tokenizer| *tokenizer != model) {
        let key = "tokenizer.model_name";
        from.note(
            key,
            format!("`{key}` is `{tokenizer}`: the tokenizer is read from the directory of the model, `{model}`"),
        );
    }
    if ["bart", "blenderbot"].iter().any(|kind| model.to_lowercase().contains(kind)) {
        from.note(
            path,
            format!(
                "RL4LMs also applies the generation configuration of `{model}` (beams, `min_length`, \
                 `no_repeat_ngram_size`, forced ids); gradus applies only its forced ids"
            ),
        );
    }
    to.set("model", model);
    Ok(())
}

fn online(from: &Original, to: &mut YamlBuilder, algorithm: &str) -> Result<(), Diagnostic> {
    let policy = "alg.policy.args";
    model(from, to, &format!("{policy}.model_name"))?;
    let kind = from.text("alg.policy.id").unwrap_or_default();
    let has_encoder = kind.contains("seq2seq");
    data(from, to)?;
    to.set("preset", "rl4lms");
    let method = |key: &str| format!("method.{algorithm}.{key}");
    let longest = from.some("env.args.max_episode_length").unwrap_or(512);
    let rollouts = format!("{policy}.generation_kwargs");
    let new = new_tokens(from, &rollouts, has_encoder, Some(longest));
    let new = new.unwrap_or(longest);
    to.set(&method("max_new_tokens"), new);
    sampling(from, to, algorithm, &rollouts, has_encoder);
    batches(from, to, algorithm, new);

    let args = |key: &str| format!("alg.args.{key}");
    for (theirs, ours) in [
        ("ent_coef", "entropy_coefficient"),
        ("gamma", "discount"),
        ("gae_lambda", "gae_lambda"),
        ("clip_range", "clip_range"),
        ("target_kl", "target_kl"),
        ("normalize_advantage", "whiten_advantages"),
        ("cg_max_steps", "cg_max_steps"),
        ("cg_damping", "cg_damping"),
        ("line_search_shrinking_factor", "line_search_shrinking_factor"),
        ("line_search_max_iter", "line_search_max_iter"),
        ("n_critic_updates", "critic_updates"),
    ] {
        to.set_some(&method(ours), from.json(&args(theirs)));
    }
    if algorithm == "nlpo" && from.number(&args("ent_coef")).is_some_and(|coefficient| coefficient != 0.0) {
        let message =
            "RL4LMs sums the entropy of NLPO over the tokens under the mask; gradus sums it over the whole vocabulary";
        from.note(&args("ent_coef"), message);
    }
    // `null` means no clipping, as 0 does here.
    to.set_some(&method("value_clip_range"), from.number(&args("clip_range_vf")));
    if matches!(algorithm, "ppo" | "nlpo") {
        to.set(&method("update_epochs"), from.count(&args("n_epochs")).unwrap_or(EPOCHS));
    }
    // The value loss here is half the squared error.
    to.set_some(&method("value_coefficient"), from.number(&args("vf_coef")).map(|weight| weight * 2.0));
    from.see_all(&args("verbose"));
    let rate = from.json(&args("learning_rate")).unwrap_or_else(|| constructor(algorithm).1.into());
    to.set("train.learning_rate", rate);
    to.set_some("train.max_grad_norm", from.json(&args("max_grad_norm")));
    to.set_some("train.seed", from.json(&args("seed")));
    to.set_some("train.weight_decay", from.json(&format!("{policy}.weight_decay")));
    from.see_all(&format!("{policy}.apply_model_parallel"));
    optimizer(from, to, algorithm, policy);

    to.set_some(&method("kl.coefficient"), from.json("alg.kl_div.coeff"));
    to.set(&method("kl.target"), from.json("alg.kl_div.target_kl").unwrap_or_default());
    if from.flag("alg.kl_div.norm_reward") == Some(true) {
        to.set(&method("whiten_rewards"), true);
    }
    if algorithm == "nlpo" {
        mask(from, to, policy, has_encoder);
    }
    reward(from, to)?;
    prompts(from, to, &kind, policy, has_encoder);
    to.set_some("train.max_steps", from.count("train_evaluation.n_iters"));
    to.set_some("train.eval_steps", from.count("train_evaluation.eval_every"));
    let saves = from.count("train_evaluation.save_every");
    if saves.is_none() {
        from.note("train_evaluation", "`save_every` is missing: it is set to 20 iterations, the default of RL4LMs");
    }
    to.set("train.save_steps", saves.unwrap_or(20));
    to.set("train.max_eval_rows", WHOLE_SPLIT);
    metrics(from, to);
    evaluation(from, to, "train_evaluation.generation_kwargs", has_encoder);
    if algorithm == "nlpo" && to.0.pointer("/train/evaluation/beams").is_some() {
        let key = "train_evaluation.generation_kwargs.num_beams";
        from.note(key, "RL4LMs applies the mask to beam search in evaluations; gradus does not");
        to.set("method.nlpo.mask_at_eval", false);
    }
    Ok(())
}

/// Sets the optimizer. A2C uses RMSprop by default, and the other algorithms use AdamW.
fn optimizer(from: &Original, to: &mut YamlBuilder, algorithm: &str, policy: &str) {
    if algorithm == "a2c" && from.flag("alg.args.use_rms_prop") != Some(false) {
        to.set_some("train.rmsprop_epsilon", from.json("alg.args.rms_prop_eps"));
        return;
    }
    if algorithm == "a2c" {
        to.set("train.optimizer", "adamw");
    }
    let theirs = |name: &str| format!("{policy}.optimizer_kwargs.{name}");
    to.set_some("train.adam_betas", from.json(&theirs("betas")));
    to.set_some("train.adam_epsilon", from.json(&theirs("eps")));
}

/// Converts a buffer of transitions to completions: as many as fill the buffer. Each mini-batch has at least the
/// configured number of transitions; if the buffer has fewer, there is one mini-batch.
fn batches(from: &Original, to: &mut YamlBuilder, algorithm: &str, new: usize) {
    let (usual, _, batch) = constructor(algorithm);
    let (environments, steps) = (from.some("env.n_envs").unwrap_or(1), from.some("alg.args.n_steps").unwrap_or(usual));
    let (buffer, given, new) = (environments.saturating_mul(steps), from.some("alg.args.batch_size"), new.max(1));
    let all = buffer.div_ceil(new).max(1);
    let together = batch.map_or(all, |usual| given.unwrap_or(usual).div_ceil(new).clamp(1, all));
    let mini_batches = all.div_ceil(together);
    let all = mini_batches.saturating_mul(together);
    to.set("train.batch_size", all);
    let mut message = format!(
        "{environments} environments × {steps} steps are {buffer} tokens: {all} completions of {new} per iteration"
    );
    if matches!(algorithm, "ppo" | "nlpo") {
        to.set(&format!("method.{algorithm}.mini_batches"), mini_batches);
        message += &format!(", in {mini_batches} mini-batches of {together}");
    } else if mini_batches > 1 {
        to.set(&format!("method.{algorithm}.critic_mini_batches"), mini_batches);
        message += &format!(", for the critic in {mini_batches} mini-batches of {together}");
    }
    from.note("alg.args.n_steps", message);
}

/// Converts the mask. With an encoder (`has_encoder`), it keeps one more token.
fn mask(from: &Original, to: &mut YamlBuilder, policy: &str, has_encoder: bool) {
    let theirs = |name: &str| format!("{policy}.{name}");
    let kind = from.text(&theirs("mask_type")).unwrap_or_else(|| "learned_top_k".into());
    let top_mask = theirs("top_mask");
    let (top, keeps) = (from.number(&top_mask), from.count(&theirs("min_tokens_to_keep")));
    match (kind.as_str(), top) {
        (_, Some(-1.0)) => {
            from.note(
                &top_mask,
                "`top_mask` is -1, the whole vocabulary: `method.nlpo.top_p` is 1, which masks no token",
            );
            to.set("method.nlpo.top_p", 1);
        }
        ("learned_top_p", Some(top)) => {
            if top <= 0.0 || top > 1.0 {
                from.reject(&top_mask, format!("`{top_mask}` is {top}, but must be above 0 and at most 1, or -1"));
            }
            to.set("method.nlpo.top_p", top);
            to.set("method.nlpo.min_tokens_to_keep", keeps.unwrap_or(MASK_KEEPS) + usize::from(has_encoder));
        }
        (_, Some(_)) => {
            to.set_some("method.nlpo.top_k", from.some(&top_mask));
            to.set("method.nlpo.min_tokens_to_keep", 1); // there, only top-p uses it
            if kind == "topk" {
                to.set("method.nlpo.mask_model", "policy");
            }
        }
        (_, None) => {
            from.note(&theirs("mask_type"), "`top_mask` is missing: the mask of RL4LMs does not work without it")
        }
    }
    let iterations = from.count(&theirs("target_update_iterations")).unwrap_or(MASK_UPDATE);
    // A mask of the policy itself follows it anyway.
    if to.0.pointer("/method/nlpo/mask_model").is_none() {
        to.set("method.nlpo.mask_update_iterations", iterations);
    }
}

fn prompts(from: &Original, to: &mut YamlBuilder, kind: &str, policy: &str, has_encoder: bool) {
    let longest = from.count("env.args.max_prompt_length");
    to.set_some("train.max_prompt_length", longest);
    let side = from.text("env.args.prompt_truncation_side").unwrap_or_else(|| "left".into());
    let other = from.text(&format!("{policy}.prompt_truncation_side")).unwrap_or_else(|| "left".into());
    if side != other {
        let key = "env.args.prompt_truncation_side";
        from.note(
            key,
            format!(
                "RL4LMs cuts prompts at the {side} in rollouts and at the {other} in evaluations; gradus always at the {side}"
            ),
        );
    }
    let task = from.text("datapool.id").unwrap_or_default();
    if task == "totto" && side == "left" {
        from.note(
            "env.args.max_prompt_length",
            "prompts are cut at the left, which removes the beginning of ToTTo's tables",
        );
    }
    if task == "commongen" && side == "left" && longest.is_some_and(|longest| longest < 20) {
        from.note(
            "env.args.max_prompt_length",
            "such short prompts, cut at the left, may lose the beginning of their instruction",
        );
    }
    to.set("train.prompt_truncation", side);
    to.set("train.priority_scale", from.number("env.args.priority_scale").unwrap_or(0.0));
    from.see_all("tokenizer.truncation_side");
    if from.flag("env.args.terminate_on_eos") != Some(true) {
        from.note(
            "env.args",
            "in RL4LMs, episodes continue after the end of text (`terminate_on_eos`); in gradus, it ends a completion",
        );
    }
    if let Some(start) = from.count("env.args.context_start_token").filter(|_| !has_encoder) {
        let key = "env.args.context_start_token";
        from.note(
            key,
            format!("`{key}` is {start} for `{kind}`: in RL4LMs, every rewarded text begins with that token; left out"),
        );
    }
}

fn data(from: &Original, to: &mut YamlBuilder) -> Result<(), Diagnostic> {
    let id = from.text("datapool.id").ok_or_else(|| Original::missing("datapool.id"))?;
    let name = if id == "Xsum" { "xsum" } else { id.as_str() };
    let mut keys = match from.json("datapool.args") {
        Some(Json::Object(keys)) => keys,
        _ => Map::new(),
    };
    if let Some(most) = keys.shift_remove("max_size").and_then(|most| most.as_u64()) {
        to.set("train.max_rows", most);
    }
    match name {
        "imdb" if !keys.contains_key("seed") => {
            from.note(
                "datapool.id",
                "the pool `imdb` needs a `seed`, and RL4LMs cannot run the file without one: 42 is used",
            );
            keys.insert("seed".into(), 42.into());
        }
        "imdb_seq2seq" => {
            from.note("datapool.id", "RL4LMs draws the splits without a seed, and they overlap; in gradus, they do not")
        }
        "cnn_daily_mail" => {
            let prefix = keys.get("prompt_prefix").and_then(Json::as_str).unwrap_or_default().to_owned();
            let lower = prefix.to_lowercase();
            if prefix != lower && lower.starts_with(T5_PREFIX) {
                from.note(
                    "datapool.args.prompt_prefix",
                    format!("the prefix is `{prefix}`; T5 was pre-trained with `{T5_PREFIX} `, in lower case"),
                );
            }
        }
        "totto" => keys.retain(|key, _| key == "representation"),
        "narrative_qa" | "crd3" => {
            from.note(
                "datapool.id",
                format!("RL4LMs downloads `{name}`; in gradus, `data.from` is the path of its files (docs/tasks.md)"),
            );
        }
        _ => {}
    }
    to.set(&format!("data.task.{name}"), keys);
    // Both trainers measure the test split before and after training.
    to.set("test_data.split", "test");
    Ok(())
}

fn supervised(from: &Original, to: &mut YamlBuilder) -> Result<(), Diagnostic> {
    model(from, to, "alg.model_name")?;
    let has_encoder = from.text("alg.model_type").as_deref() != Some("causal");
    data(from, to)?;
    if has_encoder {
        to.set("method.sft", json!({}));
    } else {
        to.set("method.sft.completion_only_loss", false);
        to.set("method.sft.add_eos", false);
    }
    let theirs = |name: &str| format!("alg.training_args.{name}");
    to.set("train.learning_rate", from.json(&theirs("learning_rate")).unwrap_or_else(|| json!(5e-5)));
    let (rows, passes) = shared::batch(from, &TRAINER);
    to.set("train.batch_size", rows.saturating_mul(passes));
    // transformers' `Trainer` uses the dropout of the model's configuration.
    to.set("train.dropout", true);
    shared::length(from, to, &TRAINER);
    to.set_some("train.weight_decay", from.json(&theirs("weight_decay")));
    to.set_some("train.max_grad_norm", from.json(&theirs("max_grad_norm")));
    to.set_some("train.seed", from.json(&theirs("seed")));
    to.set_some("train.adam_epsilon", from.json(&theirs("adam_epsilon")));
    shared::betas(from, to, &TRAINER);
    shared::recompute(from, to, &TRAINER);
    let is_on = |name: &str| from.flag(&theirs(name)) == Some(true);
    let (bf16, fp16) = (is_on("bf16"), is_on("fp16"));
    if bf16 || fp16 {
        to.set("train.compute", "bf16");
    }
    if fp16 {
        from.note(&theirs("fp16"), "gradus computes products in bf16, with weights in f32");
    }
    shared::schedule(from, to, &TRAINER);
    let schedule = theirs("lr_scheduler_type");
    if from.text(&schedule).as_deref() == Some("constant_with_warmup") && to.0.pointer("/train/warmup_steps").is_none()
    {
        from.note(&schedule, "`constant_with_warmup` without steps of warm-up is constant");
    }
    let logging = from.count(&theirs("logging_steps")).unwrap_or(500);
    from.note(
        &theirs("logging_steps"),
        "the original evaluates at every log: `train.eval_steps` is set to `logging_steps`",
    );
    to.set("train.logging_steps", logging);
    to.set("train.eval_steps", logging);
    to.set("train.save_steps", from.count(&theirs("save_steps")).unwrap_or(500));
    to.set_some("train.keep_checkpoints", from.json(&theirs("save_total_limit")));
    to.set("train.max_eval_rows", WHOLE_SPLIT);
    // `tokenizer.max_length` limits prompts of evaluations. Training rows, and other prompts, are cut at the tokenizer's own length.
    let tokenizer = from.text("tokenizer.model_name").or_else(|| from.text("alg.model_name"));
    let is_t5 = tokenizer.is_some_and(|name| name.to_lowercase().contains("t5"));
    if is_t5 {
        to.set("train.max_length", T5_LENGTH);
    }
    let prompts = from.count("tokenizer.max_length").or(is_t5.then_some(T5_LENGTH));
    to.set_some("train.max_prompt_length", prompts);
    to.set("train.prompt_truncation", from.text("tokenizer.truncation_side").unwrap_or_else(|| "left".into()));
    metrics(from, to);
    evaluation(from, to, "alg.generation_kwargs", has_encoder);
    Ok(())
}
