//! Rules for a reference that follows the policy.

use crate::config::RunConfig;
use crate::method::Problems;

pub(super) fn check(problems: &mut Problems<'_>, config: &RunConfig) {
    let train = &config.train;
    let [sync, alpha, steps] = ["train.sync_ref_model", "train.ref_model_mixup_alpha", "train.ref_model_sync_steps"];
    problems.within(alpha, train.ref_model_mixup_alpha, 0.0..=1.0);
    problems.at_least(steps, train.ref_model_sync_steps, 1);
    if !train.sync_ref_model {
        return;
    }
    problems.require(config.method.method().reference_may_follow(), &[sync, "method"], || {
        let message = format!("`{sync}` is true, but the reference of this `{}` cannot follow the policy", config.method.name());
        let hint = "leave it out; it is for `dpo` with `reference: live`, `kto` with `loss_type: kto`, and `grpo` and `rloo` \
                    with a `kl_coefficient` above 0";
        (message, Some(hint.into()))
    });
    let adapts = [("lora", config.lora.is_some()), ("adapter", config.adapter.is_some())];
    if let Some((key, _)) = adapts.into_iter().find(|(_, is_given)| *is_given) {
        let message = format!(
            "`{sync}` is true, but with `{key}` the reference is the base of the adapter, which does not change"
        );
        problems.require(false, &[sync, key], || (message, Some("leave one of them out".into())));
    }
}
