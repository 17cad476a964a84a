//! Rules for rollouts from a server.

use crate::config::RunConfig;
use crate::config::method::{MethodConfig, names};
use crate::generate::{SamplingParams, TrainedLogprobs};
use crate::method::Problems;
use crate::rollout::server::unknown_settings;

pub(super) fn check(problems: &mut Problems<'_>, config: &RunConfig) {
    let Some(rollouts) = &config.rollouts else { return };
    let method = config.method.name();
    let Some(iteration) = config.method.iteration() else {
        let message = format!("`rollouts` is given, but `{method}` samples nothing");
        let hint = Some(format!("leave it out, or use {}", names("or", MethodConfig::is_online)));
        return problems.require(false, &["rollouts"], || (message, hint));
    };
    problems.server("rollouts", &rollouts.server, rollouts.connections, (rollouts.timeout_s, rollouts.wait_s));
    problems.require(!rollouts.shared.as_os_str().is_empty(), &["rollouts.shared"], || {
        let message = "`rollouts.shared` is missing: it names a folder that this process and the server both see";
        (message.into(), None)
    });
    let (low, high) = (rollouts.importance_sampling_clip_min, rollouts.importance_sampling_clip_max);
    let bounds = ["rollouts.importance_sampling_clip_min", "rollouts.importance_sampling_clip_max"];
    for (key, bound) in bounds.into_iter().zip([low, high]) {
        problems.at_least(key, bound.unwrap_or(0.0), 0.0);
    }
    if let (Some(low), Some(high)) = (low, high) {
        problems.require(low < high, &bounds, || {
            (format!("`{}` is {low}, but must be below `{}` ({high})", bounds[0], bounds[1]), None)
        });
    }
    let corrects = rollouts.importance_sampling_correction;
    let cuts = !rollouts.importance_sampling_mode.masks();
    problems.require(!(corrects && cuts && low.is_none() && high.is_none()), &bounds, || {
        let message = "`rollouts.importance_sampling_mode` clips ratios to bounds, but no bound is set";
        (message.into(), Some("give `importance_sampling_clip_max`, such as 3".into()))
    });
    for (key, is_given) in [("environment", config.environment.is_some()), ("tools", !config.tools.is_empty())] {
        problems.require(!is_given || rollouts.max_staleness == 0, &["rollouts.max_staleness", key], || {
            let message = format!("`rollouts.max_staleness` is above 0, but with `{key}` turns wait for answers");
            (message, Some("leave it out: iterations with episodes are not sampled ahead".into()))
        });
    }
    let refused = [(
        "train.sampling_weights",
        config.train.sampling_weights.is_some(),
        "the server stores the weights for sampling",
    )];
    for (key, is_given, why) in refused {
        problems.require(!is_given, &["rollouts", key], || {
            (format!("`{key}` and `rollouts` are both given, but {why}"), Some("leave one of them out".into()))
        });
    }
    let key = |name: &str| format!("method.{method}.sampling.{name}");
    problems.require(
        iteration.rollouts.sampling.trained_logprobs == TrainedLogprobs::Raw,
        &[&key("trained_logprobs")],
        || {
            let message = format!(
                "`{}` must be `raw` with `rollouts`: a server returns no other logprobs",
                key("trained_logprobs")
            );
            (message, None)
        },
    );
    for name in unknown_settings(rollouts.kind, &iteration.rollouts.sampling.apply(SamplingParams::default())) {
        problems.require(false, &["rollouts.kind", &key(name)], || {
            (format!("`{}` is set, but this kind of server has no such setting", key(name)), None)
        });
    }
    config.method.method().rollouts_rules(problems, rollouts);
}
