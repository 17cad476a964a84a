//! Rules of the methods.

use super::Problems;
use crate::algorithm::grpo::GrpoConfig;
use crate::algorithm::ppo::{CriticTrunk, PpoConfig};
use crate::config::{MethodConfig, RunConfig};
use crate::objective::dpo::{DpoConfig, DpoLossType};

pub(super) fn check(problems: &mut Problems<'_>, config: &RunConfig) {
    match &config.method {
        MethodConfig::Sft(sft) => problems.zero_to_below("method.sft.label_smoothing", sft.label_smoothing, 1.0),
        MethodConfig::Reward(reward) => {
            problems.at_least("method.reward.center_rewards_coefficient", reward.center_rewards_coefficient, 0.0);
        }
        MethodConfig::Dpo(dpo) => check_dpo(problems, dpo),
        MethodConfig::Ppo(ppo) => check_ppo(problems, ppo, config),
        MethodConfig::Grpo(grpo) => check_grpo(problems, grpo, config),
    }
}

fn check_dpo(problems: &mut Problems<'_>, dpo: &DpoConfig) {
    problems.above_zero("method.dpo.beta", dpo.beta);
    problems.zero_to_below("method.dpo.label_smoothing", dpo.label_smoothing, 0.5);
    let name = match dpo.loss_type {
        DpoLossType::Sigmoid => return,
        DpoLossType::Hinge => "hinge",
        DpoLossType::Ipo => "ipo",
    };
    problems.unless(dpo.label_smoothing == 0.0, &["method.dpo.label_smoothing", "method.dpo.loss_type"], || {
        let message = format!(
            "`method.dpo.label_smoothing` is {}, but `loss_type: {name}` has no label smoothing: only `sigmoid` reads a label as a probability",
            dpo.label_smoothing
        );
        (message, Some("use `loss_type: sigmoid`, or set `label_smoothing` to 0".into()))
    });
}

fn check_ppo(problems: &mut Problems<'_>, ppo: &PpoConfig, config: &RunConfig) {
    let online = Online {
        method: "ppo",
        group_size: ppo.group_size,
        max_new_tokens: ppo.max_new_tokens,
        temperature: ppo.temperature,
        update_epochs: ppo.update_epochs,
        mini_batches: ppo.mini_batches,
        clip_range: ppo.clip_range,
        entropy_coefficient: ppo.entropy_coefficient,
        stop: &ppo.stop,
    };
    problems.at_least("method.ppo.group_size", ppo.group_size, 1);
    online.check(problems, config);
    problems.at_least("method.ppo.value_clip_range", ppo.value_clip_range, 0.0);
    problems.at_least("method.ppo.value_coefficient", ppo.value_coefficient, 0.0);
    problems.within("method.ppo.discount", ppo.discount, 0.0..=1.0);
    problems.within("method.ppo.gae_lambda", ppo.gae_lambda, 0.0..=1.0);
    problems.at_least("method.ppo.missing_eos_penalty", ppo.missing_eos_penalty.unwrap_or(0.0), 0.0);
    problems.above_zero("method.ppo.target_kl", ppo.target_kl.unwrap_or(1.0));

    problems.at_least("method.ppo.kl.coefficient", ppo.kl.coefficient, 0.0);
    problems.above_zero("method.ppo.kl.horizon", ppo.kl.horizon);
    if let Some(target) = ppo.kl.target {
        problems.above_zero("method.ppo.kl.target", target);
        let fine = ppo.kl.coefficient != 0.0;
        problems.unless(fine, &["method.ppo.kl.target", "method.ppo.kl.coefficient"], || {
            let message = format!(
                "`method.ppo.kl.target` is {target}, but `method.ppo.kl.coefficient` is 0: the controller multiplies the coefficient, so it would stay 0"
            );
            (message, Some("start from a small coefficient such as 0.05".into()))
        });
    }

    let critic = &ppo.critic;
    problems.at_least("method.ppo.critic.learning_rate", critic.learning_rate.unwrap_or(0.0), 0.0);
    let shared = critic.trunk == CriticTrunk::Shared;
    for (key, given, reason) in [
        (
            "method.ppo.critic.model",
            critic.model.is_some(),
            "it is a head on the policy and starts from no other model",
        ),
        ("method.ppo.critic.learning_rate", critic.learning_rate.is_some(), "one optimiser steps policy and critic"),
    ] {
        problems.unless(!(shared && given), &[key, "method.ppo.critic.trunk"], || {
            let message = format!("`{key}` is given, but the critic shares the policy's trunk: {reason}");
            (message, Some("leave it out, or use `trunk: separate`".into()))
        });
    }
}

fn check_grpo(problems: &mut Problems<'_>, grpo: &GrpoConfig, config: &RunConfig) {
    let online = Online {
        method: "grpo",
        group_size: grpo.group_size,
        max_new_tokens: grpo.max_new_tokens,
        temperature: grpo.temperature,
        update_epochs: grpo.update_epochs,
        mini_batches: grpo.mini_batches,
        clip_range: grpo.clip_range,
        entropy_coefficient: grpo.entropy_coefficient,
        stop: &grpo.stop,
    };
    problems.unless(grpo.group_size >= 2, &["method.grpo.group_size"], || {
        let reason = "an advantage is the distance from the mean of the group, which is always 0 in a group of one";
        let message = format!("`method.grpo.group_size` is {}, but must be at least 2: {reason}", grpo.group_size);
        (message, Some("8 is usual; `gradus ppo` works with one completion a prompt".into()))
    });
    online.check(problems, config);
    problems.at_least("method.grpo.kl_coefficient", grpo.kl_coefficient, 0.0);
    if let Some(high) = grpo.clip_range_high {
        problems.above_zero("method.grpo.clip_range_high", high);
    }
    if let Some(delta) = grpo.delta {
        let least = 1.0 + grpo.clip_range_high.unwrap_or(grpo.clip_range);
        problems.unless(delta > least, &["method.grpo.delta", "method.grpo.clip_range_high"], || {
            let message = format!(
                "`method.grpo.delta` is {delta}, but must be above 1 + the upper clip range ({least}), which bounds the ratio already"
            );
            (message, None)
        });
    }
}

/// What PPO and GRPO have in common.
struct Online<'a> {
    method: &'static str,
    group_size: usize,
    max_new_tokens: usize,
    temperature: f64,
    update_epochs: usize,
    mini_batches: usize,
    clip_range: f64,
    entropy_coefficient: f64,
    stop: &'a [String],
}

impl Online<'_> {
    fn check(&self, problems: &mut Problems<'_>, config: &RunConfig) {
        let key = |name: &str| format!("method.{}.{name}", self.method);
        problems.at_least(&key("max_new_tokens"), self.max_new_tokens, 1);
        problems.at_least(&key("update_epochs"), self.update_epochs, 1);
        problems.at_least(&key("mini_batches"), self.mini_batches, 1);
        problems.between(&key("clip_range"), self.clip_range, 0.0, 1.0);
        problems.at_least(&key("entropy_coefficient"), self.entropy_coefficient, 0.0);
        problems.unless(self.temperature > 0.0, &[&key("temperature")], || {
            let reason = "training needs completions that differ";
            (format!("`{}` is {}, but must be above 0: {reason}", key("temperature"), self.temperature), None)
        });
        for (i, stop) in self.stop.iter().enumerate() {
            let key = key(&format!("stop[{i}]"));
            problems.unless(!stop.is_empty(), &[&key], || {
                (format!("`{key}` is empty, which would end every completion before it starts"), None)
            });
        }
        let (batch, mini_batches) = (config.train.batch_size * self.group_size, self.mini_batches);
        let divides = mini_batches == 0 || batch.is_multiple_of(mini_batches);
        problems.unless(divides, &["train.batch_size", &key("group_size"), &key("mini_batches")], || {
            let divisors: Vec<_> = (1..=batch).filter(|n| batch.is_multiple_of(*n)).collect();
            let below = divisors.iter().rev().find(|n| **n < mini_batches);
            let above = divisors.iter().find(|n| **n > mini_batches);
            let near: Vec<_> = below.into_iter().chain(above).map(ToString::to_string).collect();
            let message = format!(
                "`train.batch_size` × `{}` ({} × {} = {batch} completions) is not a multiple of `{}` ({mini_batches})",
                key("group_size"),
                config.train.batch_size,
                self.group_size,
                key("mini_batches"),
            );
            (message, Some(format!("{} mini-batches would divide it", near.join(" or "))))
        });
        let (prompt_and_completion, new) = (config.train.max_length, self.max_new_tokens);
        problems.unless(new < prompt_and_completion, &[&key("max_new_tokens"), "train.max_length"], || {
            let message = format!(
                "`{}` is {new}, but `train.max_length` is {prompt_and_completion}, prompt and completion together: no prompt fits",
                key("max_new_tokens")
            );
            (message, Some(format!("raise `train.max_length` above {new}")))
        });
    }
}
