//! The built-in methods. No other file lists them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::algorithm::{
    OnlineMethod, Plugged, Unbound, a2c::A2cConfig, grpo::GrpoConfig, nlpo::NlpoConfig, ppo::PpoConfig,
    rloo::RlooConfig, trpo::TrpoConfig,
};
use crate::method::{Head, Iteration, Method, Shared};
use crate::objective::{
    OfflineMethod, PluggedOffline, classify::ClassifyConfig, cpo::CpoConfig, distill::DistillConfig, dpo::DpoConfig,
    kto::KtoConfig, orpo::OrpoConfig, reward_model::RewardModelConfig, sft::SftConfig, simpo::SimpoConfig,
};
use crate::plugin::{Kind, Plugin};
use crate::settings::TrainConfig;

/// The method with its own keys.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MethodConfig {
    /// Supervised fine-tuning.
    Sft(SftConfig),
    /// A Bradley–Terry reward model.
    Reward(RewardModelConfig),
    /// A classifier of texts or tokens.
    Classify(ClassifyConfig),
    /// Direct preference optimization.
    Dpo(DpoConfig),
    /// Odds ratio preference optimization.
    Orpo(OrpoConfig),
    /// Contrastive preference optimization.
    Cpo(CpoConfig),
    /// Simple preference optimization, with a reference-free reward.
    Simpo(SimpoConfig),
    /// Kahneman–Tversky optimization of marked completions.
    Kto(KtoConfig),
    /// Distillation of a teacher, on completions of the student.
    Distill(DistillConfig),
    /// Proximal policy optimization with a critic.
    Ppo(PpoConfig),
    /// Natural language policy optimization: PPO under a mask of unlikely tokens.
    Nlpo(NlpoConfig),
    /// Advantage actor–critic.
    A2c(A2cConfig),
    /// Trust region policy optimization.
    Trpo(TrpoConfig),
    /// Group relative policy optimization.
    Grpo(GrpoConfig),
    /// REINFORCE with the mean of the other completions as its baseline (leave one out).
    Rloo(RlooConfig),
    /// A method that the program registered by name (docs/plugins.md). The name is the key, with the method's keys inside.
    Plugin(Plugin<dyn Method>),
}

/// A method that a program registered, with its keys.
pub enum PluggedMethod {
    /// A method that trains on its own rollouts.
    Online(Plugged),
    /// A method that trains on fixed examples.
    Offline(PluggedOffline),
}

impl Kind for dyn Method {
    const NAME: &'static str = "method";
    type Make = PluggedMethod;
}

impl MethodConfig {
    /// Calls `visitor` with the method's concrete type. The only `match` on the method in the program.
    pub fn visit<'a, V: Visitor<'a>>(&'a self, visitor: V) -> V::Output {
        match self {
            Self::Sft(keys) => visitor.offline(keys),
            Self::Reward(keys) => visitor.offline(keys),
            Self::Classify(keys) => visitor.offline(keys),
            Self::Dpo(keys) => visitor.offline(keys),
            Self::Orpo(keys) => visitor.offline(keys),
            Self::Cpo(keys) => visitor.offline(keys),
            Self::Simpo(keys) => visitor.offline(keys),
            Self::Kto(keys) => visitor.offline(keys),
            Self::Distill(keys) => visitor.offline(keys),
            Self::Ppo(keys) => visitor.online(keys),
            Self::Nlpo(keys) => visitor.online(keys),
            Self::A2c(keys) => visitor.online(keys),
            Self::Trpo(keys) => visitor.online(keys),
            Self::Grpo(keys) => visitor.online(keys),
            Self::Rloo(keys) => visitor.online(keys),
            Self::Plugin(plugin) => match plugin.make() {
                Ok(PluggedMethod::Online(keys)) => visitor.online(keys),
                Ok(PluggedMethod::Offline(keys)) => visitor.offline(keys),
                Err(_) => visitor.online(&Unbound),
            },
        }
    }

    /// Whether a program registered it.
    pub fn is_plugin(&self) -> bool {
        matches!(self, Self::Plugin(_))
    }

    /// Returns the plug-in, if it is one.
    pub(super) fn plugin_mut(&mut self) -> Option<&mut Plugin<dyn Method>> {
        if let Self::Plugin(plugin) = self { Some(plugin) } else { None }
    }
}

/// An operation that depends on the kind and the type of a method.
pub trait Visitor<'a> {
    /// Result of the operation.
    type Output;

    /// Handles a method that trains on fixed examples.
    fn offline<M: OfflineMethod>(self, method: &'a M) -> Self::Output;

    /// Handles a method that trains on its own rollouts.
    fn online<M: OnlineMethod>(self, method: &'a M) -> Self::Output;
}

impl MethodConfig {
    /// Returns every built-in method with its defaults, in the order of lists.
    pub fn all() -> Vec<Self> {
        let schema = schemars::schema_for!(Self).to_value();
        let sides = schema["oneOf"].as_array().expect("a choice of methods");
        let names = sides.iter().filter_map(|side| side["properties"].as_object()?.keys().next());
        let own = names.filter(|name| *name != "plugin");
        own.map(|name| Self::named(name).expect("every key has a default")).collect()
    }

    /// Returns the built-in method `name` with its defaults.
    pub fn named(name: &str) -> Option<Self> {
        serde_json::from_value(json!({ name: {} })).ok()
    }

    /// Returns the interface that all methods share.
    pub fn method(&self) -> &dyn Method {
        self.visit(Any)
    }

    /// Returns the key of the method.
    pub fn name(&self) -> &'static str {
        self.method().name()
    }

    /// Returns the settings of sampling and updates; `None` for methods that train on fixed examples.
    pub fn iteration(&self) -> Option<Iteration<'_>> {
        self.visit(Sampled)
    }

    /// Whether it samples completions and therefore needs a reward.
    pub fn is_online(&self) -> bool {
        self.iteration().is_some()
    }

    /// Whether it trains a policy, so that it can be compared.
    pub fn makes_policy(&self) -> bool {
        let shared = Shared { train: &TrainConfig::default(), reward: None };
        self.method().cast(&shared).policy.head == Head::Language
    }
}

/// Returns the names of the methods for which `holds` is true, as in "`ppo`, `nlpo`, `a2c`, `trpo`, `grpo` or `rloo`".
pub(super) fn names(joined_by: &str, holds: impl Fn(&MethodConfig) -> bool) -> String {
    let names: Vec<String> = MethodConfig::all()
        .iter()
        .filter(|method| holds(method))
        .map(|method| format!("`{}`", method.name()))
        .collect();
    match names.as_slice() {
        [first @ .., last] if !first.is_empty() => format!("{} {joined_by} {last}", first.join(", ")),
        _ => names.concat(),
    }
}

struct Any;

impl<'a> Visitor<'a> for Any {
    type Output = &'a dyn Method;

    fn offline<M: OfflineMethod>(self, method: &'a M) -> &'a dyn Method {
        method
    }

    fn online<M: OnlineMethod>(self, method: &'a M) -> &'a dyn Method {
        method
    }
}

struct Sampled;

impl<'a> Visitor<'a> for Sampled {
    type Output = Option<Iteration<'a>>;

    fn offline<M: OfflineMethod>(self, _method: &'a M) -> Option<Iteration<'a>> {
        None
    }

    fn online<M: OnlineMethod>(self, method: &'a M) -> Option<Iteration<'a>> {
        Some(method.iteration())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_is_found_by_the_name_it_has() {
        let all = MethodConfig::all();
        assert!(all.len() >= 5, "{all:?}");
        for method in &all {
            assert_eq!(MethodConfig::named(method.name()).as_ref(), Some(method), "`{}`", method.name());
        }
        assert_eq!(MethodConfig::named("dppo"), None);
        assert_eq!(names("or", MethodConfig::is_online), "`ppo`, `nlpo`, `a2c`, `trpo`, `grpo` or `rloo`");
        assert_eq!(names("and", |method| method.name() == "dpo"), "`dpo`");
    }
}
