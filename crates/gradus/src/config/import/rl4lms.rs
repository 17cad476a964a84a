//! RL4LMs' YAML files, with the keys of its `train_text_generation.py`. Defaults of transformers are written out,
//! because `max_length: 20` and `top_k: 50` apply without being visible.

use serde_json::{Map, Value as Json, json};

use super::{Original, YamlBuilder};
use crate::error::Diagnostic;

/// Defaults of transformers for keys that a file leaves out.
const HF_TOP_K: usize = 50;
const HF_MAX_LENGTH: usize = 20;
/// Longest input of the tokenizers of T5, to which supervised training cuts inputs, references and prompts.
const T5_LENGTH: usize = 512;
/// RL4LMs' default prompt prefix for CommonGen.
const REPEATED: &str = "generate a sentence with: ";
/// Classifier that is hard-coded in the original.
const INTENTS: &str = "rajkumarrrk/roberta-daily-dialog-intent-classifier";
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
/// Tasks whose references are German.
const GERMAN: [&str; 3] = ["iwslt2017en_de", "wmt14_processed_en_de", "wmt16newsonly"];
/// Path of CommonGen's preference model, which is not published as a model directory.
const PREFERENCES: &str = "models/t5-11b-commongen-preferences";
/// Command of the SPICE authors' program.
const SPICE: [&str; 4] = ["java", "-Xmx8G", "-jar", "spice-1.0.jar"];
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

/// Returns the maximum number of tokens per completion; `episode` is the limit of an episode, if there is one.
fn new_tokens(from: &Original, kwargs: &str, has_encoder: bool, episode: Option<usize>) -> Option<usize> {
    let given = from.some(&format!("{kwargs}.max_new_tokens"));
    let length = from.some(&format!("{kwargs}.max_length"));
    match (given, episode) {
        (Some(new), Some(longest)) => {
            if new != longest {
                let key = format!("{kwargs}.max_new_tokens");
                from.note(
                    &key,
                    format!("`{key}` is {new}, `env.args.max_episode_length` {longest}: the smaller one is used"),
                );
            }
            Some(new.min(longest))
        }
        (Some(new), None) => Some(new),
        (None, Some(longest)) => {
            // `max_length` counts the decoder's start token.
            let cut = length.unwrap_or(HF_MAX_LENGTH).saturating_sub(usize::from(has_encoder));
            from.note(
                kwargs,
                format!(
                    "`{kwargs}` has no `max_new_tokens`: transformers stops at {cut} tokens, and an episode that did \
                     not end by itself got no reward; in gradus, completions have up to {longest} tokens \
                     (`env.args.max_episode_length`), and all are rewarded"
                ),
            );
            Some(longest)
        }
        (None, None) => {
            let cut = length.unwrap_or(HF_MAX_LENGTH).saturating_sub(usize::from(has_encoder));
            from.note(
                kwargs,
                format!("`{kwargs}` has no `max_new_tokens`: it is set to {cut}, where transformers stops"),
            );
            Some(cut)
        }
    }
}

/// Returns `min_length`. With an encoder (`has_encoder`), it counts the decoder's start token.
fn least(from: &Original, kwargs: &str, has_encoder: bool) -> Option<usize> {
    from.count(&format!("{kwargs}.min_length")).map(|least| least.saturating_sub(usize::from(has_encoder)))
}

fn sampling(from: &Original, to: &mut YamlBuilder, algorithm: &str, kwargs: &str, has_encoder: bool) {
    let key = |name: &str| format!("method.{algorithm}.{name}");
    let theirs = |name: &str| format!("{kwargs}.{name}");
    if from.flag(&theirs("do_sample")) != Some(true) {
        from.note(kwargs, "RL4LMs does not sample rollouts (`do_sample`); gradus does");
    }
    if from.count(&theirs("num_beams")).is_some_and(|beams| beams != 1) {
        from.note(&theirs("num_beams"), "RL4LMs generates rollouts by beam search; gradus samples them");
    }
    if from.node(&theirs("top_k")).is_none() {
        from.note(kwargs, format!("`{kwargs}` has no `top_k`: it is set to {HF_TOP_K}, the default of transformers"));
    }
    let top_k = from.count(&theirs("top_k")).unwrap_or(HF_TOP_K);
    to.set(&key("sampling.top_k"), if top_k == 0 { Json::Null } else { top_k.into() });
    to.set(&key("sampling.min_new_tokens"), least(from, kwargs, has_encoder).unwrap_or(0));
    to.set_some(&key("sampling.top_p"), from.json(&theirs("top_p")));
    for name in ["typical_p", "repetition_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size"] {
        to.set_some(&key(&format!("sampling.{name}")), from.json(&theirs(name)));
    }
    for name in ["forced_bos_token_id", "forced_eos_token_id", "bad_words_ids"] {
        to.set_some(&key(&format!("sampling.{name}")), from.json(&theirs(name)));
    }
    if let Some(count) = from.some(&theirs("num_return_sequences")).filter(|count| *count > 1) {
        from.note(
            &theirs("num_return_sequences"),
            format!(
                "RL4LMs expects one completion per prompt; gradus samples {count} (`group_size`), so an iteration has \
                 {count} times as many completions"
            ),
        );
        to.set(&key("group_size"), count);
    }
    to.set_some(&key("temperature"), from.json(&theirs("temperature")));
    if algorithm == "nlpo" && from.number(&theirs("temperature")).is_some_and(|temperature| temperature != 1.0) {
        from.note(
            &theirs("temperature"),
            "RL4LMs computes logprobs, ratios and KL at temperature 1; gradus, with a mask, at the sampling \
             temperature",
        );
    }
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
    let (top, keeps) = (from.number(&theirs("top_mask")), from.count(&theirs("min_tokens_to_keep")));
    match (kind.as_str(), top) {
        ("learned_top_p", Some(top)) => {
            to.set("method.nlpo.top_p", top);
            to.set("method.nlpo.min_tokens_to_keep", keeps.unwrap_or(MASK_KEEPS) + usize::from(has_encoder));
        }
        (_, Some(top)) => {
            to.set("method.nlpo.top_k", top as usize);
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
    to.set("method.nlpo.mask_update_iterations", iterations);
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

/// Options of `py-rouge` that are converted, and `max_n`, which ROUGE-L does not read.
const PY_ROUGE: &[&str] =
    &["limit_length", "length_limit", "length_limit_type", "stemming", "alpha", "weight_factor", "max_n"];

/// Returns the arguments of a reward that are converted, besides `shaping_fn`; `None` if all are passed on.
fn arguments_of_reward(id: &str) -> Option<&'static [&'static str]> {
    let known: &[&str] = match id {
        "bleu" | "sacre_bleu" | "ter" | "chrf" => return None,
        "increasing_numbers" => &["min_tokens"],
        "rouge" => &["rouge_type", "use_single_ref"],
        "rouge_l_max" => PY_ROUGE,
        "learned_reward" => &["model_name", "label_ix", "include_prompt_for_eval"],
        "spider" => &["cider_coeff", "spice_coeff"],
        "bert_score" => &["language"],
        "bleurt" => &["config_name", "checkpoint"],
        "intent_accuracy" => &["shape", "intent_coeff", "auto_coeff"],
        "common_gen_preference_model" => &["concept_penalty_coeff", "meteor_coeff"],
        _ => &[],
    };
    Some(known)
}

/// Returns the arguments of a metric that are converted or change no result; `None` if all are passed on.
fn arguments_of_metric(id: &str) -> Option<&'static [&'static str]> {
    let known: &[&str] = match id {
        "diversity" | "bleu" | "sacre_bleu" | "ter" | "chrf" | "parent_totto" | "bleu_totto" | "dates"
        | "increasing_numbers" => return None,
        "rouge" => &["use_single_ref"],
        "rouge_l_max" => PY_ROUGE,
        "bert_score" => &["language"],
        "bleurt" => &["config_name", "checkpoint"],
        "learned_reward" => &["model_name", "label_ix", "include_prompt_for_eval", "batch_size"],
        // The perplexity is that of the trained model, with its own tokenizer.
        "causal_perplexity" => &["stride", "use_text_from_meta_data", "tokenizer_id", "model_type"],
        "summaCConv" => &["models", "bins", "granularity", "nli_labels", "agg", "start_file", "device"],
        "summaCZS" => &["model_name", "granularity", "op1", "op2", "use_ent", "use_con", "device"],
        _ => &[],
    };
    Some(known)
}

/// Converts a reward of RL4LMs; `None` if there is no counterpart.
fn named_reward(from: &Original, id: &str, args: &Map<String, Json>) -> Option<Json> {
    let given = |key: &str| args.get(key).cloned().unwrap_or_default();
    let metric = |name: &str, keys: Json| Some(json!({ "metric": { name: keys } }));
    let mut plain = args.clone();
    plain.shift_remove("shaping_fn");
    match id {
        "increasing_numbers" => {
            plain.retain(|key, _| key == "min_tokens");
            metric("increasing_numbers", json!(plain))
        }
        "sentences_with_dates" => metric("dates", json!({})),
        "meteor" => metric("meteor", json!({ "references": "repr" })),
        "rouge" => {
            let first = given("use_single_ref") != json!(false);
            metric(
                "rouge",
                json!({ "rouge_type": given("rouge_type"), "references": if first { "first" } else { "repr" } }),
            )
        }
        "rouge_combined" => metric("rouge", json!({ "references": "first" })),
        "bleu" | "sacre_bleu" | "ter" | "chrf" => metric(id, json!(plain)),
        "rouge_l_max" => metric("rouge_l_max", json!(py_rouge(from, "reward_fn", &plain))),
        "parent" => metric("parent_totto", json!({})),
        "common_gen_repeat_penalty" | "common_gen_repeat_penalty_batched" => {
            Some(json!({ "rule": { "repeat_penalty": REPEATED } }))
        }
        "learned_reward" => {
            let mut keys = json!({ "model": given("model_name"), "truncate": "left" });
            keys["label"] = given("label_ix").to_string().into();
            if given("include_prompt_for_eval") == json!(false) {
                keys["text"] = "{completion}".into();
            }
            Some(json!({ "classifier": keys }))
        }
        "spider" => {
            let weight = |key: &str| given(key).as_f64().filter(|weight| *weight != 0.0);
            let cider = weight("cider_coeff")
                .map(|weight| json!({ "weight": weight, "reward": { "metric": { "cider": captions() } } }));
            let spice = weight("spice_coeff").map(|weight| {
                from.note(
                    "reward_fn.args",
                    "SPICE is computed by its authors' program: put `spice-1.0.jar` into the working directory of the \
                     run, or change `program`",
                );
                let mut options = captions();
                options["program"] = json!(SPICE);
                json!({ "weight": weight, "reward": { "metric": { "spice": options } } })
            });
            let parts: Vec<Json> = [spice, cider].into_iter().flatten().collect();
            if parts.is_empty() {
                return None;
            }
            Some(json!({ "mix": parts }))
        }
        "bert_score" => metric("bert_score", bert_score(args)),
        "bleurt" => metric("bleurt", bleurt(args)),
        "intent_accuracy" => {
            let weight = |key: &str| given(key).as_f64().unwrap_or(1.0);
            let part = |key: &str, metric: Json| json!({ "weight": weight(key), "reward": { "metric": metric } });
            let mut parts = vec![part("intent_coeff", json!({ "intent_accuracy": { "model": INTENTS } }))];
            if given("shape") != json!(false) {
                let mut shaping = part("auto_coeff", json!({ "meteor": { "references": "repr" } }));
                // METEOR is the mean over all samples of a batch of environments so far, including this one.
                shaping["running_mean_over"] = from.some("env.n_envs").unwrap_or(1).into();
                parts.push(shaping);
            }
            Some(json!({ "mix": parts }))
        }
        "common_gen_preference_model" => {
            from.note(
                "reward_fn.id",
                format!(
                    "in RL4LMs, `common_gen_preference_model` downloads the weights of a T5 (its default has eleven \
                     billion parameters, and computes in f32); in gradus, `{PREFERENCES}` must be a model directory \
                     with them (docs/metrics.md describes how to create it)"
                ),
            );
            let mut keys = json!({ "model": PREFERENCES });
            if let Some(penalty) = given("concept_penalty_coeff").as_f64().filter(|penalty| *penalty != 0.0) {
                keys["concept_penalty"] = penalty.into();
            }
            let preference = json!({ "metric": { "common_gen_preference": keys } });
            Some(match given("meteor_coeff").as_f64().filter(|weight| *weight != 0.0) {
                None => preference,
                Some(weight) => json!({ "mix": [
                    { "weight": 1, "reward": preference },
                    { "weight": weight, "reward": { "metric": { "meteor": { "references": "repr" } } } },
                ] }),
            })
        }
        _ => None,
    }
}

/// Returns the options of CIDEr and SPICE: the words are spaCy's, and rows of one prompt count as one.
fn captions() -> Json {
    json!({ "keyed_by": "prompt", "tokenizer": "spacy" })
}

/// Returns the options of `py-rouge` that also exist here. The others have its defaults. `place` is the path of the metric or reward.
fn py_rouge(from: &Original, place: &str, args: &Map<String, Json>) -> Map<String, Json> {
    if args.get("stemming") != Some(&json!(false)) {
        from.note(
            place,
            "`rouge_l_max` stems words with tables of `py-rouge`, which gradus does not include: for equal values, set \
             `tables` to the directory of `py-rouge` (docs/metrics.md)",
        );
    }
    args.iter()
        .filter(|(key, _)| *key != "max_n" && PY_ROUGE.contains(&key.as_str()))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// Returns the encoder that `bert-score` uses for a language.
fn bert_score(args: &Map<String, Json>) -> Json {
    let model = match args.get("language").and_then(Json::as_str).unwrap_or("en") {
        "en" => "FacebookAI/roberta-large",
        "zh" => "google-bert/bert-base-chinese",
        "tr" => "dbmdz/bert-base-turkish-cased",
        _ => "google-bert/bert-base-multilingual-cased",
    };
    json!({ "model": model })
}

/// Returns options for BLEURT: the checkpoint that is published for PyTorch. The original reads references as one text.
fn bleurt(args: &Map<String, Json>) -> Json {
    let name = ["config_name", "checkpoint"].into_iter().find_map(|key| args.get(key).and_then(Json::as_str));
    let name = name.unwrap_or("bleurt-base-128");
    let mut options = json!({ "model": format!("Elron/{name}"), "references": "repr" });
    // It was trained with this many ids, fewer than the model has positions.
    if let Some(longest) = name.rsplit('-').next().and_then(|last| last.parse::<usize>().ok()) {
        options["max_length"] = longest.into();
    }
    options
}

fn learned_reward(args: &Map<String, Json>) -> Json {
    let given = |key: &str| args.get(key).cloned().unwrap_or_default();
    let mut options = json!({ "model": given("model_name"), "label": given("label_ix").to_string() });
    if given("include_prompt_for_eval") == json!(false) {
        options["include_prompt"] = false.into();
    }
    json!({ "learned_reward": options })
}

/// Natural language inference models of `summac`, with the numbers of their labels for entailment and contradiction.
const INFERENCE: [(&str, &str, u8, u8); 8] = [
    ("snli-base", "boychaboy/SNLI_roberta-base", 0, 2),
    ("snli-large", "boychaboy/SNLI_roberta-large", 0, 2),
    ("mnli-base", "microsoft/deberta-base-mnli", 2, 0),
    ("mnli", "FacebookAI/roberta-large-mnli", 2, 0),
    ("anli", "ynie/roberta-large-snli_mnli_fever_anli_R1_R2_R3-nli", 0, 2),
    ("vitc-base", "tals/albert-base-vitaminc-mnli", 0, 1),
    ("vitc", "tals/albert-xlarge-vitaminc-mnli", 0, 1),
    ("vitc-only", "tals/albert-xlarge-vitaminc", 0, 1),
];

/// Granularities in `summac`.
const GRANULARITIES: [&str; 5] = ["document", "paragraph", "sentence", "2sents", "mixed"];

/// Returns the options of `summac_conv`; `None` if a model, the bins or the granularity is unknown.
fn summac_conv(args: &Map<String, Json>) -> Option<Json> {
    let given = |key: &str| args.get(key).and_then(Json::as_str);
    let names: Vec<&str> = match args.get("models") {
        Some(models) => models.as_array()?.iter().map(Json::as_str).collect::<Option<_>>()?,
        None => vec!["mnli", "anli", "vitc"],
    };
    let judge = |name: &&str| {
        let (_, model, entailment, contradiction) = INFERENCE.into_iter().find(|(known, ..)| known == name)?;
        Some(
            json!({ "model": model, "entailment": entailment.to_string(), "contradiction": contradiction.to_string() }),
        )
    };
    let mut judges = names.iter().map(judge).collect::<Option<Vec<Json>>>()?.into_iter();
    let mut options = judges.next()?;
    let more: Vec<Json> = judges.collect();
    if !more.is_empty() {
        options["more_models"] = more.into();
    }
    let (bins, file) = (given("bins").unwrap_or("even50"), given("start_file")?);
    if !["even50", "percentile"].contains(&bins) {
        return None;
    }
    options["bins"] = bins.into();
    // `default` means the file that `summac` downloads.
    options["weights"] = if file == "default" { "summac_conv_vitc_sent_perc_e.bin" } else { file }.into();
    for (key, usual) in [("granularity", "sentence"), ("nli_labels", "e"), ("agg", "mean")] {
        options[key] = given(key).unwrap_or(usual).into();
    }
    GRANULARITIES.contains(&options["granularity"].as_str()?).then_some(options)
}

/// Returns the options of `summac_zs`; `None` if the model or the granularity is unknown.
fn summac_zs(args: &Map<String, Json>) -> Option<Json> {
    let name = args.get("model_name").and_then(Json::as_str).unwrap_or("mnli");
    let (_, model, entailment, contradiction) = INFERENCE.into_iter().find(|(known, ..)| *known == name)?;
    let mut options = json!({
        "model": model, "entailment": entailment.to_string(), "contradiction": contradiction.to_string(),
    });
    let granularity = args.get("granularity").and_then(Json::as_str).unwrap_or("paragraph");
    let known = |part: &str| GRANULARITIES.contains(&part);
    let (of_document, of_summary) = granularity.split_once('-').unwrap_or((granularity, granularity));
    if !known(of_document) || !known(of_summary) {
        return None;
    }
    options["granularity"] = of_document.into();
    if of_summary != of_document {
        options["summary_granularity"] = of_summary.into();
    }
    for key in ["op1", "op2", "use_ent", "use_con"] {
        if let Some(value) = args.get(key) {
            options[key] = value.clone();
        }
    }
    Some(options)
}

fn reward(from: &Original, to: &mut YamlBuilder) -> Result<(), Diagnostic> {
    let id = from.text("reward_fn.id").ok_or_else(|| Original::missing("reward_fn.id"))?;
    let place = "reward_fn.args";
    let args = match from.glance(place) {
        Some(Json::Object(args)) => args,
        _ => Map::new(),
    };
    match arguments_of_reward(&id) {
        Some(known) => {
            from.see_all(&format!("{place}.shaping_fn"));
            known.iter().for_each(|key| from.see_all(&format!("{place}.{key}")));
        }
        None => from.see_all(place),
    }
    let Some(main) = named_reward(from, &id, &args) else {
        let message = format!("the reward `{id}` has no equivalent");
        return Err(Diagnostic {
            message,
            locations: Vec::new(),
            hint: Some("write `reward` by hand (docs/config.md)".into()),
        });
    };
    let shaping = args.get("shaping_fn").and_then(Json::as_str).map(|id| (id, named_reward(from, id, &Map::new())));
    let reward = match shaping {
        Some((_, Some(shaping))) => {
            json!({ "mix": [{ "weight": 1, "reward": main }, { "weight": 1, "reward": shaping }] })
        }
        Some((id, None)) => {
            from.note("reward_fn.args", format!("the shaping `{id}` has no equivalent: left out"));
            main
        }
        None => main,
    };
    to.set("reward", reward);
    Ok(())
}

fn metrics(from: &Original, to: &mut YamlBuilder) {
    let Some(Json::Array(metrics)) = from.json("train_evaluation.metrics") else { return };
    let mut found: Vec<Json> = Vec::new();
    for (i, metric) in metrics.iter().enumerate() {
        let args = metric["args"].as_object().cloned().unwrap_or_default();
        let id = metric["id"].as_str().unwrap_or_default();
        let place = format!("train_evaluation.metrics[{i}]");
        let ours = match id {
            "meteor" => json!({ "meteor": { "references": "repr" } }),
            "rouge" if args.get("use_single_ref") == Some(&json!(false)) => {
                json!({ "rouge": { "references": "repr" } })
            }
            "rouge" => json!({ "rouge": { "references": "first" } }),
            "rouge_l_max" => json!({ "rouge_l_max": py_rouge(from, &place, &args) }),
            "cider" => json!({ "cider": captions() }),
            "diversity" | "bleu" | "sacre_bleu" | "ter" | "chrf" | "parent_totto" | "bleu_totto" | "dates"
            | "increasing_numbers" => json!({ id: args }),
            "bert_score" => {
                let language = args.get("language").and_then(Json::as_str).unwrap_or("en");
                let task = from.text("datapool.id").unwrap_or_default();
                if language == "en" && GERMAN.contains(&task.as_str()) {
                    from.note(
                        &place,
                        format!(
                            "BERTScore reads the texts of `{task}` as English, but they are German (`language: de`)"
                        ),
                    );
                }
                json!({ "bert_score": bert_score(&args) })
            }
            "bleurt" => json!({ "bleurt": bleurt(&args) }),
            "intent_accuracy" => json!({ "intent_accuracy": { "model": INTENTS } }),
            "learned_reward" => learned_reward(&args),
            "causal_perplexity" => {
                let mut options = json!({ "of": "references" });
                if args.get("use_text_from_meta_data") == Some(&json!(true)) {
                    options = json!({ "column": "reference" });
                }
                options["stride"] = args.get("stride").cloned().unwrap_or_else(|| 512.into());
                json!({ "perplexity": options })
            }
            "summaCConv" if args.contains_key("start_file") => match summac_conv(&args) {
                Some(options) => json!({ "summac_conv": options }),
                None => {
                    from.note(&place, "unknown granularity, bins or model of `summaCConv`: left out");
                    continue;
                }
            },
            "summaCZS" => match summac_zs(&args) {
                Some(options) => json!({ "summac_zs": options }),
                None => {
                    from.note(&place, "unknown granularity or model of `summaCZS`: left out");
                    continue;
                }
            },
            _ => {
                let why = match id {
                    "summaCConv" => {
                        ": `summac_conv` needs a trained convolution, which the original initializes at random without `start_file`"
                    }
                    "spice" => {
                        ": it needs its authors' program (add `spice: { program: [java, -Xmx8G, -jar, spice-1.0.jar], \
                         keyed_by: prompt, tokenizer: spacy }`)"
                    }
                    _ => ": it has no equal",
                };
                from.note(&place, format!("the metric `{id}` is left out{why}"));
                continue;
            }
        };
        if let Some(known) = arguments_of_metric(id) {
            for key in args.keys().filter(|key| !known.contains(&key.as_str())) {
                let path = format!("{place}.args.{key}");
                from.note(&path, format!("`{path}` has no equivalent: left out"));
            }
        }
        if found.contains(&ours) {
            from.note(&place, format!("`{id}` is listed twice"));
        } else {
            found.push(ours);
        }
    }
    to.set("train.evaluation.metrics", found);
}

/// Converts the sampling of evaluations, if the file sets it. Otherwise evaluations sample like rollouts.
fn evaluation(from: &Original, to: &mut YamlBuilder, kwargs: &str, has_encoder: bool) {
    if from.node(kwargs).is_none() {
        let (section, _) = kwargs.rsplit_once('.').expect("a section and its key");
        let message = format!("`{section}` has no `generation_kwargs`: evaluations sample as rollouts do");
        if section == "train_evaluation" {
            from.note(section, message);
        }
        return;
    }
    let theirs = |name: &str| format!("{kwargs}.{name}");
    let key = |name: &str| format!("train.evaluation.{name}");
    to.set_some(&key("max_new_tokens"), new_tokens(from, kwargs, has_encoder, None));
    to.set_some(&key("min_new_tokens"), least(from, kwargs, has_encoder).or(Some(0)));
    let beams = from.count(&theirs("num_beams")).filter(|beams| *beams > 1);
    let samples = from.flag(&theirs("do_sample")) == Some(true);
    for name in ["top_p", "typical_p", "repetition_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size"] {
        to.set_some(&key(name), from.json(&theirs(name)));
    }
    let temperature = from.number(&theirs("temperature"));
    to.set_some(&key("samples"), from.some(&theirs("num_return_sequences")).filter(|count| *count > 1));
    if let Some(beams) = beams {
        to.set(&key("beams.num_beams"), beams);
        for name in ["length_penalty", "num_beam_groups", "diversity_penalty"] {
            to.set_some(&key(&format!("beams.{name}")), from.json(&theirs(name)));
        }
        if let Some(early) = from.flag(&theirs("early_stopping")) {
            to.set(&key("beams.early_stopping"), early.to_string());
        }
    }
    from.see_all(&theirs("top_k"));
    if samples || beams.is_none() {
        let top_k = from.count(&theirs("top_k")).unwrap_or(HF_TOP_K);
        to.set(&key("temperature"), if samples { temperature.unwrap_or(1.0) } else { 0.0 });
        to.set(&key("top_k"), top_k);
    }
    if let Some(process) = from.text(&theirs("post_processing_fn.id")) {
        to.set(&key("post_process"), process);
    }
    from.see_all(&theirs("post_processing_fn"));
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
    let rows = from.some(&theirs("per_device_train_batch_size")).unwrap_or(8);
    let passes = from.some(&theirs("gradient_accumulation_steps")).unwrap_or(1);
    to.set("train.batch_size", rows.saturating_mul(passes));
    // transformers' `Trainer` uses the dropout of the model's configuration.
    to.set("train.dropout", true);
    to.set("train.epochs", from.json(&theirs("num_train_epochs")).unwrap_or_else(|| json!(3)));
    to.set_some("train.weight_decay", from.json(&theirs("weight_decay")));
    to.set_some("train.max_grad_norm", from.json(&theirs("max_grad_norm")));
    let warmup = |name: &str| from.number(&theirs(name)).filter(|steps| *steps > 0.0);
    let (steps, share) = (warmup("warmup_steps"), warmup("warmup_ratio"));
    to.set_some("train.warmup_steps", steps.or(share));
    to.set_some("train.seed", from.json(&theirs("seed")));
    to.set_some("train.adam_epsilon", from.json(&theirs("adam_epsilon")));
    let betas = (from.number(&theirs("adam_beta1")), from.number(&theirs("adam_beta2")));
    if betas != (None, None) {
        to.set("train.adam_betas", json!([betas.0.unwrap_or(0.9), betas.1.unwrap_or(0.999)]));
    }
    let is_on = |name: &str| from.flag(&theirs(name)) == Some(true);
    let (bf16, fp16) = (is_on("bf16"), is_on("fp16"));
    if bf16 || fp16 {
        to.set("train.compute", "bf16");
    }
    if fp16 {
        from.note(&theirs("fp16"), "gradus computes products in bf16, with weights in f32");
    }
    let schedule = from.text(&theirs("lr_scheduler_type")).unwrap_or_else(|| "linear".into());
    let ours = match schedule.as_str() {
        "constant_with_warmup" => {
            if steps.or(share).is_none() {
                from.note(&theirs("lr_scheduler_type"), "`constant_with_warmup` without steps of warm-up is constant");
            }
            "constant"
        }
        known @ ("linear" | "cosine" | "constant") => known,
        other => {
            from.note(
                &theirs("lr_scheduler_type"),
                format!("the schedule `{other}` has no equivalent: linear is used"),
            );
            "linear"
        }
    };
    to.set("train.lr_schedule", ours);
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
