//! Rules for the keys of `sampling`.

use super::Problems;
use crate::generate::{SamplingConfig, TrainedLogprobs};
use crate::settings::TrainConfig;

/// Checks the sampling keys of `method`, whose completions have at most `max_new_tokens` tokens.
pub(super) fn check(
    problems: &mut Problems<'_>,
    method: &str,
    sampling: &SamplingConfig,
    max_new_tokens: usize,
    train: &TrainConfig,
) {
    let key = |name: &str| format!("method.{method}.sampling.{name}");
    problems.require(sampling.top_k != Some(0), &[&key("top_k")], || {
        let message = format!("`{}` is 0, but must be at least 1", key("top_k"));
        (message, Some("leave it out to sample from all tokens".into()))
    });
    for (name, p) in [("top_p", sampling.top_p), ("typical_p", sampling.typical_p)] {
        problems.require(p > 0.0 && p <= 1.0, &[&key(name)], || {
            (format!("`{}` is {p}, but must be above 0 and at most 1", key(name)), None)
        });
    }
    problems.within(&key("min_p"), sampling.min_p, 0.0..=1.0);
    problems.above_zero(&key("repetition_penalty"), sampling.repetition_penalty);
    problems.require(sampling.min_new_tokens <= max_new_tokens, &[&key("min_new_tokens")], || {
        let min = sampling.min_new_tokens;
        let message = format!("`{}` is {min}, but `max_new_tokens` is {max_new_tokens}", key("min_new_tokens"));
        (message, Some("no completion would ever end by itself".into()))
    });
    problems.require(sampling.bad_words_ids.iter().all(|word| !word.is_empty()), &[&key("bad_words_ids")], || {
        (format!("`{}` holds an empty sequence, which every token would complete", key("bad_words_ids")), None)
    });
    if sampling.trained_logprobs == TrainedLogprobs::Processed {
        let keys = [key("trained_logprobs"), key("repetition_penalty")];
        problems.require(sampling.repetition_penalty == 1.0, &[&keys[0], &keys[1]], || {
            let message = format!(
                "`{}` is `processed`, but `{}` is {}: training stores which tokens could be sampled, but not how much \
                 each was penalized",
                keys[0], keys[1], sampling.repetition_penalty
            );
            (message, Some("train on `raw` logprobs, or use `no_repeat_ngram_size`, which only bans".into()))
        });
        let coarse = train.sampling_weights.is_some();
        problems.require(!coarse, &[&keys[0], "train.sampling_weights"], || {
            let message = format!(
                "`{}` is `processed`, but `train.sampling_weights` is set: completions are then sampled from the \
                 coarser weights, not from the policy",
                keys[0]
            );
            (
                message,
                Some(
                    "train on `raw` logprobs, which the policy computes again, or leave out `train.sampling_weights`"
                        .into(),
                ),
            )
        });
    }
}
