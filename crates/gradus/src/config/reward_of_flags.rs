//! The reward of a command that makes no run, such as `gradus eval`.

use super::flags::{Flag, tree};
use super::read::read;
use super::rules;
use super::schema::Schema;
use crate::error::{Error, Result};
use crate::method::Problems;
use crate::reward::config::RewardConfig;

/// Reads the reward that flags define. Types and rules are those of a run. `None` without such flags.
///
/// # Errors
/// [`Error::Config`] with every problem.
pub fn reward_of_flags(flags: &[Flag]) -> Result<Option<RewardConfig>> {
    let root = tree(flags).map_err(Error::Config)?;
    let mut reading = read(&Schema::run_config().only("reward"), &root);
    reading.problems.extend(reading.low.into_iter().map(|found| found.diagnostic));
    if !reading.problems.is_empty() {
        return Err(Error::Config(reading.problems));
    }
    let Some(value) = reading.value.get("reward") else { return Ok(None) };
    let reward = serde_json::from_value(value.clone()).map_err(|error| Error::input(error.to_string()))?;
    let location = |key: &str| root.at(key).and_then(|(node, location)| location.or(node.location.as_ref())).cloned();
    let mut problems = Problems::new(&location);
    rules::check_reward(&mut problems, &reward, "reward");
    match problems.into_problems() {
        problems if problems.is_empty() => Ok(Some(reward)),
        problems => Err(Error::Config(problems.into_iter().map(|problem| problem.diagnostic).collect())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::flags::{Scope, flags};
    use crate::error::Location;

    fn flag(name: &str, value: &str) -> Flag {
        let specs = flags(&Schema::run_config(), Scope::Method("ppo"));
        let spec = specs.into_iter().find(|spec| spec.name == name).expect("a flag of a reward");
        Flag { spec, written: format!("--{name}"), values: vec![value.into()] }
    }

    #[test]
    fn flags_define_a_reward_under_the_rules_of_a_run() {
        assert_eq!(reward_of_flags(&[]).expect("no reward"), None);
        let found = reward_of_flags(&[flag("reward-rule-regex", "a+")]).expect("a reward");
        let expected =
            crate::config::RunConfig::parse("{model: m, data: d, method: {ppo: {}}, reward: {rule: {regex: a+}}}");
        assert_eq!(found, expected.expect("a configuration").config.reward);
        let wrong = [flag("reward-rule-regex", "("), flag("reward-rule-length-target", "x")];
        for flag in wrong {
            let Err(Error::Config(problems)) = reward_of_flags(std::slice::from_ref(&flag)) else {
                panic!("{} is invalid", flag.written)
            };
            assert_eq!(problems[0].locations, [Location::Flag(flag.written)]);
        }
    }
}
