//! The methods there are: the only file that lists them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::algorithm::{
    OnlineMethod, Unbound, a2c::A2cConfig, grpo::GrpoConfig, nlpo::NlpoConfig, ppo::PpoConfig, rloo::RlooConfig,
    trpo::TrpoConfig,
};
use crate::method::{Head, Iteration, Method, Shared};
use crate::objective::{
    OfflineMethod, classify::ClassifyConfig, cpo::CpoConfig, distill::DistillConfig, dpo::DpoConfig, kto::KtoConfig,
    orpo::OrpoConfig, reward_model::RewardModelConfig, sft::SftConfig, simpo::SimpoConfig,
};
use crate::plugin::Plugin;
use crate::settings::TrainConfig;

/// The method and its own keys.
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
    /// A method that the program was given by name (docs/plugins.md): its name is the key, below which its keys stand.
    Plugin(Plugin<dyn OnlineMethod>),
}

impl MethodConfig {
    /// Shows the method to `visitor` as what it is. The only `match` on the method in the program.
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
                Ok(keys) => visitor.online(keys),
                Err(_) => visitor.online(&Unbound),
            },
        }
    }

    /// The plug-in, where it is one.
    pub(super) fn plugin_mut(&mut self) -> Option<&mut Plugin<dyn OnlineMethod>> {
        if let Self::Plugin(plugin) = self { Some(plugin) } else { None }
    }
}

/// Who has to know which kind of method it is, and of which types.
pub trait Visitor<'a> {
    /// What comes of it.
    type Output;

    /// A method that learns from fixed examples.
    fn offline<M: OfflineMethod>(self, method: &'a M) -> Self::Output;

    /// A method that learns from what it samples.
    fn online<M: OnlineMethod>(self, method: &'a M) -> Self::Output;
}

impl MethodConfig {
    /// Every method that there always is with its defaults, in the order in which they are listed.
    pub fn all() -> Vec<Self> {
        let schema = schemars::schema_for!(Self).to_value();
        let sides = schema["oneOf"].as_array().expect("a choice of methods");
        let names = sides.iter().filter_map(|side| side["properties"].as_object()?.keys().next());
        let own = names.filter(|name| *name != "plugin");
        own.map(|name| Self::named(name).expect("every key has a default")).collect()
    }

    /// The method that is called so, with its defaults.
    pub fn named(name: &str) -> Option<Self> {
        serde_json::from_value(json!({ name: {} })).ok()
    }

    /// What all methods say of themselves.
    pub fn method(&self) -> &dyn Method {
        self.visit(Any)
    }

    /// The key that names it.
    pub fn name(&self) -> &'static str {
        self.method().name()
    }

    /// How it samples and goes over the samples; `None` where it learns from fixed examples.
    pub fn iteration(&self) -> Option<Iteration<'_>> {
        self.visit(Sampled)
    }

    /// Whether it samples completions and so needs a reward.
    pub fn is_online(&self) -> bool {
        self.iteration().is_some()
    }

    /// Whether it makes a policy out of a policy, which can be compared.
    pub fn makes_policy(&self) -> bool {
        let shared = Shared { train: &TrainConfig::default(), reward: None };
        self.method().cast(&shared).policy.head == Head::Language
    }
}

/// The names of the methods for which `holds`, as in "`ppo`, `nlpo`, `a2c`, `trpo`, `grpo` or `rloo`".
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
