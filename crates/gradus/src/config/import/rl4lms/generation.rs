//! Lengths and sampling settings of RL4LMs' files, in rollouts and evaluations.

use serde_json::Value as Json;

use super::super::{Original, YamlBuilder, evaluation_rule};

/// Defaults of transformers for keys that a file leaves out.
const HF_TOP_K: usize = 50;
const HF_MAX_LENGTH: usize = 20;
/// Rules that rollouts and evaluations can set, with their defaults in transformers, which have no effect.
const RULES: [(&str, u8); 5] = [
    ("top_p", 1),
    ("typical_p", 1),
    ("repetition_penalty", 1),
    ("no_repeat_ngram_size", 0),
    ("encoder_no_repeat_ngram_size", 0),
];

/// Returns the maximum number of tokens per completion; `episode` is the limit of an episode, if there is one.
pub(super) fn new_tokens(from: &Original, kwargs: &str, has_encoder: bool, episode: Option<usize>) -> Option<usize> {
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

pub(super) fn sampling(from: &Original, to: &mut YamlBuilder, algorithm: &str, kwargs: &str, has_encoder: bool) {
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
    for (name, _) in RULES {
        to.set_some(&key(&format!("sampling.{name}")), from.json(&theirs(name)));
    }
    match from.json(&theirs("forced_bos_token_id")) {
        Some(_) if !has_encoder => from.note(
            &theirs("forced_bos_token_id"),
            "`forced_bos_token_id` is left out: without an encoder, transformers forces no id after a prompt",
        ),
        first => to.set_some(&key("sampling.forced_bos_token_id"), first),
    }
    for name in ["forced_eos_token_id", "bad_words_ids"] {
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

/// Converts the sampling of evaluations, if the file sets it. Otherwise evaluations sample like rollouts.
pub(super) fn evaluation(from: &Original, to: &mut YamlBuilder, kwargs: &str, has_encoder: bool) {
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
    for rule in RULES {
        evaluation_rule(from, to, kwargs, rule);
    }
    for name in ["forced_bos_token_id", "forced_eos_token_id", "bad_words_ids"] {
        let Some(of_rollouts) = to.sampling(name) else { continue };
        if from.json(&theirs(name)).as_ref() != Some(of_rollouts) {
            let message =
                format!("in gradus, `{name}` of rollouts also applies to evaluations; in RL4LMs, it does not");
            from.note(&theirs(name), message);
        }
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
