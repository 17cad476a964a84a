//! Rules for adapters, dropout and noise on embeddings.

use crate::config::RunConfig;
use crate::config::method::names;
use crate::method::Problems;

pub(super) fn check(problems: &mut Problems<'_>, config: &RunConfig) {
    let adapts = config.adapter.is_some() || config.lora.is_some();
    problems.require(!adapts || config.train.sampling_weights.is_none(), &["train.sampling_weights"], || {
        let message = "`train.sampling_weights` is set, but with an adapter, sampling uses the base weights as they \
                       are stored";
        (message.into(), Some("use `train.frozen_weights`: it also stores the base in this format in training".into()))
    });
    let cast = config.method.method().cast(&config.shared());
    // A reference that follows the policy stays in f32.
    let reference = cast.reference.as_ref().filter(|_| !config.train.sync_ref_model);
    let others = [&cast.critic, &cast.lagged].into_iter().flatten().chain(reference).chain(&cast.rewards);
    let is_read = adapts || others.count() > 0;
    problems.require(is_read || config.train.frozen_weights.is_none(), &["train.frozen_weights"], || {
        let message = "`train.frozen_weights` is given, but the run trains all weights of its only model: only the base \
                       under an adapter, references, critics and reward models read it";
        (message.into(), Some("leave it out, or train an adapter (`lora.rank`)".into()))
    });
    drops_well(problems, config, "train.dropout", config.train.dropout.then_some("true".into()));
    check_noise(problems, config);
    let Some(lora) = &config.lora else { return };
    problems.require(config.adapter.is_none(), &["adapter", "lora"], || {
        let message = "`adapter` continues an adapter and `lora` creates a new one: a run can have only one of them";
        (message.into(), Some("leave `lora` out, or merge the adapter into its base first (`gradus merge`)".into()))
    });
    problems.at_least("lora.rank", lora.rank, 1);
    problems.above_zero("lora.alpha", lora.alpha);
    problems.zero_to_below("lora.dropout", lora.dropout, 1.0);
    problems.require(
        lora.targets.is_empty() || lora.target_pattern.is_none(),
        &["lora.targets", "lora.target_pattern"],
        || ("`lora.targets` and `lora.target_pattern` both select layers".into(), None),
    );
    drops_well(problems, config, "lora.dropout", (lora.dropout != 0.0).then(|| lora.dropout.to_string()));
}

/// Rejects dropout for methods that compare several models; `value` is the value of `key`.
fn drops_well(problems: &mut Problems<'_>, config: &RunConfig, key: &'static str, value: Option<String>) {
    let Some(value) = value.filter(|_| !config.method.method().drops_out()) else { return };
    let method = config.method.name();
    let message = format!(
        "`{key}` is {value}, but {method} compares logprobs of one text under several models: dropout would make them \
         differ at random",
    );
    let takers = names("and", |method| method.method().drops_out());
    problems.require(false, &[key], || (message, Some(format!("leave it out; it is for {takers}"))));
}

/// Rejects noise on embeddings for methods that are not trained with it.
fn check_noise(problems: &mut Problems<'_>, config: &RunConfig) {
    let (key, alpha) = ("train.neftune_noise_alpha", config.train.neftune_noise_alpha);
    problems.at_least(key, alpha, 0.0);
    problems.require(alpha == 0.0 || config.method.method().adds_noise(), &[key], || {
        let message = format!("`{key}` is {alpha}, but {} trains without noise on embeddings", config.method.name());
        let takers = names("and", |method| method.method().adds_noise());
        (message, Some(format!("leave it out; it is for {takers}")))
    });
}
