//! Rules for rewards.

use crate::config::method::names;
use crate::config::{MethodConfig, RunConfig};
use crate::method::Problems;
use crate::metric::{MetricConfig, mistake_in_name};
use crate::reward::config::{RewardConfig, RuleConfig};
use crate::reward::fine_grained::FineGrainedConfig;

pub(super) fn check(problems: &mut Problems<'_>, config: &RunConfig) {
    let method = config.method.name();
    match (&config.reward, config.method.is_online()) {
        // The rewards of an environment are sufficient.
        (None, true) if config.environment.is_some() => {}
        (None, true) => problems.require(false, &["reward", &format!("method.{method}")], || {
            let message = format!("`{method}` needs a `reward`: it learns from the rewards of its own completions");
            (
                message,
                Some(
                    "add `reward: { model: DIR }`, a `command`, a `rule`, a `classifier`, `fine_grained` parts, `toxicity` or a `mix`; as a flag, `--reward-model DIR`, `--reward-command \"python3 reward.py\"` or a rule such as `--reward-rule-regex TEXT`"
                        .into(),
                ),
            )
        }),
        (Some(_), false) => problems.require(false, &["reward"], || {
            let message =
                format!("`reward` is given, but `{method}` samples no completions to reward: it trains only on its \
                         data");
            (message, Some(format!("leave it out, or use {}", names("or", MethodConfig::is_online))))
        }),
        (Some(reward), true) => check_reward(problems, reward, "reward"),
        (None, false) => {}
    }
}

/// Checks a reward whose keys are below `path`.
pub(in crate::config) fn check_reward(problems: &mut Problems<'_>, reward: &RewardConfig, path: &str) {
    match reward {
        RewardConfig::Model(model) => {
            let key = format!("{path}.model");
            problems.require(!model.trim().is_empty(), &[&key], || (format!("`{key}` is empty"), None));
        }
        RewardConfig::Classifier(classifier) => {
            let key = |name: &str| format!("{path}.classifier.{name}");
            let model = key("model");
            problems.require(!classifier.model.trim().is_empty(), &[&model], || (format!("`{model}` is empty"), None));
            if let Some((name, message)) = classifier.mistake() {
                problems.require(false, &[&key(name)], || (format!("`{}`: {message}", key(name)), None));
            }
        }
        RewardConfig::FineGrained(FineGrainedConfig(parts)) => {
            let key = format!("{path}.fine_grained");
            problems.require(!parts.is_empty(), &[&key], || {
                (format!("`{key}` is empty"), Some("name a part: `relevance: { model: DIR, … }`".into()))
            });
            for (name, part) in parts {
                for (own, message) in part.mistakes() {
                    let key = format!("{key}.{name}.{own}");
                    problems.require(false, &[&key], || (format!("`{key}`: {message}"), None));
                }
            }
        }
        RewardConfig::Rule(rule) => check_rule(problems, rule, &format!("{path}.rule")),
        RewardConfig::Toxicity(toxicity) => {
            for (own, message) in toxicity.scorer.mistakes() {
                let key = format!("{path}.toxicity.scorer.{own}");
                problems.require(false, &[&key], || (format!("`{key}`: {message}"), None));
            }
        }
        RewardConfig::Judge(judge) => {
            for (own, message) in judge.mistakes() {
                let key = format!("{path}.judge.{own}");
                problems.require(false, &[&key], || (format!("`{key}`: {message}"), None));
            }
        }
        RewardConfig::Code(code) => {
            problems.at_least(&format!("{path}.code.at_once"), code.at_once, 1);
        }
        RewardConfig::Metric(MetricConfig::Plugin(_)) | RewardConfig::Plugin(_) => {} // checked with all plug-ins
        RewardConfig::Metric(metric) => {
            let error =
                metric.check_reward().err().or_else(|| metric.check_alone().err().map(|error| error.to_string()));
            if let Some(error) = error {
                let key = format!("{path}.metric");
                problems.require(false, &[&key], || (format!("`{key}`: {error}"), None));
            }
        }
        RewardConfig::Command(command) => {
            let key = format!("{path}.command");
            problems.require(!command.program.is_empty(), &[&key], || {
                (format!("`{key}` is empty"), Some("name the program and its arguments: `[python3, score.py]`".into()))
            });
            if let Some(mistake) = command.name.as_deref().and_then(mistake_in_name) {
                let key = format!("{key}.name");
                problems.require(false, &[&key], || (format!("`{key}` {mistake}"), None));
            }
        }
        RewardConfig::Mix(parts) => {
            let key = format!("{path}.mix");
            problems.require(!parts.is_empty(), &[&key], || (format!("`{key}` is empty"), None));
            for (i, part) in parts.iter().enumerate() {
                let weight = format!("{key}[{i}].weight");
                problems.require(part.weight != 0.0, &[&weight], || {
                    (format!("`{weight}` is 0, which leaves the reward without effect"), None)
                });
                check_reward(problems, &part.reward, &format!("{key}[{i}].reward"));
            }
        }
    }
}

fn check_rule(problems: &mut Problems<'_>, rule: &RuleConfig, path: &str) {
    match rule {
        RuleConfig::Length(length) => {
            problems.at_least(&format!("{path}.length.target"), length.target, 1);
            problems.at_least(&format!("{path}.length.tolerance"), length.tolerance.unwrap_or(1), 1);
        }
        RuleConfig::CosineLength(rule) => {
            problems.at_least(&format!("{path}.cosine_length.max_length"), rule.max_length, 1);
        }
        RuleConfig::Substring(text) => {
            let key = format!("{path}.substring");
            problems.require(!text.is_empty(), &[&key], || {
                (format!("`{key}` is empty, which every completion contains"), None)
            });
        }
        RuleConfig::Regex(pattern) => {
            let key = format!("{path}.regex");
            if let Err(error) = regex::Regex::new(pattern) {
                let reason = error.to_string();
                let reason = reason.lines().last().unwrap_or_default().trim_start_matches("error: ");
                problems.require(false, &[&key], || (format!("`{key}` is not a regular expression: {reason}"), None));
            }
        }
        _ => {}
    }
}
