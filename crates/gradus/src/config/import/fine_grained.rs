//! FineGrainedRLHF's YAML files (`fine_grained_config.yml`, `baseline_config.yml`). Constants in its scripts are part
//! of `preset: fine_grained`. This module converts the file, and numbers per GPU to those of a launch on two GPUs.

use serde_json::{Value as Json, json};

use super::{Original, YamlBuilder, evaluation_rule};
use crate::error::Diagnostic;

/// Number of GPUs in its launch script.
const CARDS: usize = 2;
/// Number of warm-up rollouts, independent of `n_warmup_steps`.
const WARMUP: usize = 100;
/// Default of transformers for sampling, which also applies to `top_k: null`.
const HF_TOP_K: usize = 50;
/// Number of questions in evaluations: all of them.
const HELD_OUT: usize = 500;
/// Input templates: `QUESTION` and `PASSAGES` in front of the segments that token classifiers read, `WHOLE` for reward
/// models of whole answers.
const QUESTION: &str = "question: {question} answer:";
const PASSAGES: &str = "{reward_prompt} answer:";
const WHOLE: &str = "{reward_prompt} answer: {completion}";

pub(super) fn convert(from: &Original) -> Result<YamlBuilder, Diagnostic> {
    let mut to = YamlBuilder::default();
    let policy = "model.policy_model.ckpt";
    to.set("model", from.text(policy).ok_or_else(|| Original::missing(policy))?);
    to.set("data", "data/train.json");
    to.set("eval_data", "data/dev.json");
    from.note(
        policy,
        "the original reads the data from `tasks/qa_feedback/data`; copy them to `data/`, or change the paths",
    );
    to.set_some("output_dir", from.text("logging.save_dir"));
    to.set("preset", "fine_grained");
    for key in ["model.policy_model.input_padding_side", "train.cuda_deterministic"] {
        from.see_all(key); // there is no padding, and everything is deterministic
    }
    if from.flag("logging.wandb_log") == Some(true) {
        to.set("train.wandb", true);
    }
    for (theirs, ours) in
        [("wandb_project", "wandb_project"), ("wandb_entity", "wandb_entity"), ("run_name", "wandb_name")]
    {
        to.set_some(&format!("train.{ours}"), from.text(&format!("logging.{theirs}")));
    }
    critic(from, &mut to);
    sampling(from, &mut to);
    ppo(from, &mut to)?;
    reward(from, &mut to)?;
    train(from, &mut to)?;
    Ok(to)
}

fn critic(from: &Original, to: &mut YamlBuilder) {
    if from.flag("model.value_model.policy_value_sharing") == Some(true) {
        let key = "model.value_model.policy_value_sharing";
        from.note(key, format!("`{key}` fails in the original; in gradus, the critic shares the policy's trunk"));
        to.set("method.ppo.critic.trunk", "shared");
        from.see_all("model.value_model.ckpt");
    } else {
        to.set_some("method.ppo.critic.model", from.text("model.value_model.ckpt"));
    }
    let frozen = "model.value_model.freeze_value_model";
    if from.flag(frozen) == Some(true) {
        match from.flag("model.value_model.policy_value_sharing") {
            Some(true) => from.note(frozen, format!("`{frozen}`: the shared trunk is the policy's, which is trained")),
            _ => to.set("method.ppo.critic.freeze_trunk", true),
        }
    }
}

fn sampling(from: &Original, to: &mut YamlBuilder) {
    let theirs = |key: &str| format!("model.policy_model.train_generation_kwargs.{key}");
    let top_k = top_k(from, &theirs("top_k"));
    to.set("method.ppo.sampling.top_k", if top_k == 0 { Json::Null } else { top_k.into() });
    to.set_some("method.ppo.sampling.top_p", from.json(&theirs("top_p")));
    to.set("method.ppo.temperature", from.json(&theirs("temperature")).unwrap_or_else(|| json!(1.0)));
    if from.flag(&theirs("do_sample")) == Some(false) {
        from.note(
            &theirs("do_sample"),
            "rollouts are greedy in the original; gradus samples them, because greedy rollouts give no training signal",
        );
    }
    evaluation(from, to);
}

/// Converts the sampling of evaluations. The original samples by default, and then it does not read `num_beams`. Otherwise it reads only
/// `num_beams` and `num_return_sequences`.
fn evaluation(from: &Original, to: &mut YamlBuilder) {
    let kwargs = "model.policy_model.eval_generation_kwargs";
    let theirs = |key: &str| format!("{kwargs}.{key}");
    let beams = from.count(&theirs("num_beams")).filter(|beams| *beams > 1);
    if from.flag(&theirs("do_sample")) == Some(false) {
        match beams {
            Some(beams) => to.set("train.evaluation.beams.num_beams", beams),
            None => to.set("train.evaluation.temperature", 0),
        }
        ["temperature", "top_k", "top_p"].iter().for_each(|key| from.see_all(&theirs(key)));
    } else {
        if beams.is_some() {
            let message = "the original does not read `num_beams` if it samples (`do_sample`): left out";
            from.note(&theirs("num_beams"), message);
        }
        let temperature = from.json(&theirs("temperature")).unwrap_or_else(|| json!(1.0));
        to.set("train.evaluation.temperature", temperature);
        to.set("train.evaluation.top_k", top_k(from, &theirs("top_k")));
        evaluation_rule(from, to, kwargs, ("top_p", 1));
    }
    to.set_some("train.evaluation.samples", from.some(&theirs("num_return_sequences")));
}

/// Returns the number of most likely tokens to sample from; 0 means all.
fn top_k(from: &Original, key: &str) -> usize {
    from.count(key).unwrap_or_else(|| {
        from.note(
            key.rsplit_once('.').expect("a section and its key").0,
            format!("`{key}` has no value: it is set to {HF_TOP_K}, the default of transformers"),
        );
        HF_TOP_K
    })
}

fn ppo(from: &Original, to: &mut YamlBuilder) -> Result<(), Diagnostic> {
    for (theirs, ours) in [
        ("env.max_generated_len", "max_new_tokens"),
        ("env.train_num_samples_per_input", "group_size"),
        ("ppo.kl_coef", "kl.coefficient"),
        ("ppo.lam", "gae_lambda"),
        ("ppo.gamma", "discount"),
        ("ppo.vf_coef", "value_coefficient"),
        ("ppo.cliprange", "clip_range"),
        ("ppo.cliprange_value", "value_clip_range"),
        ("ppo.whiten_rewards", "whiten_rewards"),
        ("train.kl_threshold", "kl.stop_above"),
        ("train.n_ppo_epoch_per_rollout", "update_epochs"),
        ("train.training_batch_size_per_card", "quirks.part_size"),
    ] {
        to.set_some(&format!("method.ppo.{ours}"), from.json(theirs));
    }
    let weight = from.number("ppo.pg_coef").filter(|weight| *weight != 1.0);
    to.set_some("method.ppo.policy_coefficient", weight);
    let new = from.count("env.max_generated_len").ok_or_else(|| Original::missing("env.max_generated_len"))?;
    let read = from.count("env.max_input_len");
    to.set_some("train.max_length", read.map(|read| read.saturating_add(new)));
    to.set_some("train.max_prompt_length", read);
    Ok(())
}

/// Converts the parts of the reward. With a preference model, the others are measured but have no weight.
fn reward(from: &Original, to: &mut YamlBuilder) -> Result<(), Diagnostic> {
    let theirs = |part: &str, key: &str| format!("reward.{part}.{key}");
    let whole = from.text(&theirs("baseline_model", "ckpt"));
    let mut parts = serde_json::Map::new();
    for (model, name, label, segments, prompt, usual) in [
        ("relevance_model", "relevance", "NF-ERR", "sub_sentence", QUESTION, 0.3),
        ("factuality_model", "factuality", "F-ERR", "sentence", PASSAGES, 0.5),
    ] {
        let Some(ckpt) = from.text(&theirs(model, "ckpt")) else { continue };
        let worth = |key: &str, usual: f64| from.json(&theirs(model, key)).unwrap_or_else(|| json!(usual));
        let values = json!({ "O": worth("positive_reward", usual), label: worth("negative_reward", -usual) });
        parts.insert(name.into(), json!({ "model": ckpt, "segments": segments, "prompt": prompt, "values": values }));
    }
    for (model, name) in [("completeness_model", "completeness"), ("baseline_model", "preference")] {
        let Some(ckpt) = from.text(&theirs(model, "ckpt")) else { continue };
        let mut part = json!({ "model": ckpt, "text": WHOLE });
        for key in ["mean", "std", "bias", "scale"] {
            if let Some(value) = from.json(&theirs(model, key)) {
                part[key] = value;
            }
        }
        parts.insert(name.into(), part);
    }
    if parts.is_empty() {
        return Err(Original::missing("reward.relevance_model.ckpt"));
    }
    if whole.is_some() && parts.len() > 1 {
        from.note(
            "reward.baseline_model",
            "with `baseline_model`, the other rewards are only measured: their weight is 0",
        );
        for (_, part) in parts.iter_mut().filter(|(name, _)| *name != "preference") {
            part["weight"] = json!(0);
        }
    }
    to.set("reward.fine_grained", Json::Object(parts));
    Ok(())
}

fn train(from: &Original, to: &mut YamlBuilder) -> Result<(), Diagnostic> {
    let key = "train.sampling_batch_size_per_card";
    let prompts = from.count(key).ok_or_else(|| Original::missing(key))?.saturating_mul(CARDS);
    from.note(
        key,
        format!("`{key}` counts for each of the {CARDS} GPUs of its launch script: {prompts} prompts per iteration"),
    );
    to.set("train.batch_size", prompts);
    let samples = from.count("env.train_num_samples_per_input").unwrap_or(1);
    let episodes =
        from.count("train.total_episodes").map(|episodes| episodes.div_ceil(prompts.saturating_mul(samples).max(1)));
    to.set_some("train.max_steps", episodes);
    to.set_some("train.learning_rate", from.json("train.lr"));
    if let Some(steps) = from.count("train.n_warmup_steps").filter(|&steps| steps != WARMUP) {
        from.note(
            "train.n_warmup_steps",
            format!("`train.n_warmup_steps` is {steps}, but the original uses {WARMUP}: gradus does the same"),
        );
    }
    to.set("train.warmup_steps", WARMUP);
    let norm = from.json("train.max_grad_norm");
    if from.flag("train.clip_grad") == Some(true) {
        to.set_some("train.max_grad_norm", norm);
    } else {
        to.set("train.max_grad_norm", 0);
    }
    to.set_some("train.seed", from.json("train.seed"));
    to.set_some("train.eval_steps", from.count("train.eval_interval"));
    to.set_some("train.save_steps", from.count("train.eval_interval"));
    to.set_some("train.logging_steps", from.count("logging.log_interval"));
    to.set("train.max_eval_rows", HELD_OUT);
    to.set("train.compute", "bf16");
    to.set(
        "train.evaluation.metrics",
        json!([{ "rouge": { "rouge_type": "rougeLsum", "split_sentences": true, "swapped": true } }]),
    );
    Ok(())
}
