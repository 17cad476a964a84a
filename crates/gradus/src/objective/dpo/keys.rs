//! Configuration of DPO.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Keys of `method.dpo`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DpoConfig {
    /// Strength of the pull toward the reference. Default 0.1 (Rafailov et al. 2023).
    pub beta: f64,
    /// Loss on the log-ratios of policy and reference; several losses are added. Default `sigmoid`.
    pub loss_type: DpoLosses,
    /// Weight of each loss of `loss_type`. Default: 1 each.
    pub loss_weights: Option<Vec<f64>>,
    /// Probability that a label is wrong (`sigmoid`, `robust`, `exo_pair`, `aot`, `aot_unpaired`). Default 0.
    pub label_smoothing: f64,
    /// Weight, from 0 to 1, of tokens beyond the length of the pair's shorter completion (LD-DPO). Default: the same as
    /// all others.
    pub ld_alpha: Option<f64>,
    /// Divergence from the reference (f-DPO; only for losses on the difference of both sides). Default `reverse_kl`.
    pub f_divergence_type: Divergence,
    /// Parameter α of `alpha_divergence`. Default 0.5 (TRL).
    pub f_alpha_divergence_coef: f64,
    /// Temperature τ of `discopop`, at which it changes from logistic to exponential. Default 0.05 (Lu et al. 2024).
    pub discopop_tau: f64,
    /// Weight each pair by how likely the policy itself is to write completions like its two (WPO). Default false.
    pub use_weighting: bool,
    /// Source of the reference's log-probabilities. Default `precomputed`: one pass before training, after which the
    /// reference is dropped.
    pub reference: ReferenceLogprobs,
    /// The reference: a model directory. Default: the start model of the training.
    pub reference_model: Option<String>,
}

impl Default for DpoConfig {
    fn default() -> Self {
        Self {
            beta: 0.1,
            loss_type: DpoLosses(vec![DpoLossType::Sigmoid]),
            loss_weights: None,
            label_smoothing: 0.0,
            ld_alpha: None,
            f_divergence_type: Divergence::ReverseKl,
            f_alpha_divergence_coef: 0.5,
            discopop_tau: 0.05,
            use_weighting: false,
            reference: ReferenceLogprobs::Precomputed,
            reference_model: None,
        }
    }
}

impl DpoConfig {
    /// Returns each loss with its weight.
    pub fn losses(&self) -> impl Iterator<Item = (DpoLossType, f64)> {
        let weight = |i: usize| self.loss_weights.as_ref().map_or(1.0, |weights| weights[i]);
        self.loss_type.0.iter().enumerate().map(move |(i, &loss)| (loss, weight(i)))
    }

    /// Whether the reference runs in each step.
    pub fn is_live(&self) -> bool {
        self.reference == ReferenceLogprobs::Live
    }

    /// Whether a loss sorts the pairs of a step and therefore needs all of them at once.
    pub fn sorts(&self) -> bool {
        self.loss_type.0.iter().any(|loss| matches!(loss, DpoLossType::Aot | DpoLossType::AotUnpaired))
    }
}

/// One loss, or a list of losses that are added: `sigmoid` or `[sigmoid, sft]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DpoLosses(pub Vec<DpoLossType>);

/// Losses of DPO. `Δ = s_w − s_l` is the log-ratio of the chosen completion minus that of the rejected one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DpoLossType {
    /// −log σ(βΔ), Rafailov et al. 2023.
    Sigmoid,
    /// max(0, 1 − βΔ), Zhao et al. 2023 (SLiC).
    Hinge,
    /// (Δ̄ − 1/(2β))² on length-normalized log-ratios, Azar et al. 2023.
    Ipo,
    /// Reverse KL to labels, assuming that a share of them is wrong, Ji et al. 2024 (EXO).
    ExoPair,
    /// Noise contrastive alignment, Chen et al. 2024.
    NcaPair,
    /// Unbiased if a share of the labels is flipped, Chowdhury et al. 2024.
    Robust,
    /// Binary classifier optimization, Jung et al. 2024.
    BcoPair,
    /// Self-play preference optimization with win rates 1 and 0, Wu et al. 2024.
    SppoHard,
    /// Optimal transport: sorted differences under policy and reference, Melnyk et al. 2024.
    Aot,
    /// Optimal transport: sorted log-ratios of chosen and rejected, Melnyk et al. 2024.
    AotUnpaired,
    /// Anchored: makes the chosen completion more probable, D'Oosterlinck et al. 2024.
    ApoZero,
    /// Anchored: makes both less probable, the rejected one more so, D'Oosterlinck et al. 2024.
    ApoDown,
    /// Log-ratio modulated, Lu et al. 2024 (DiscoPOP).
    Discopop,
    /// Negative log-likelihood of the chosen completions, averaged over the tokens of a step.
    Sft,
    /// −log σ(βΔ̄) on length-normalized log-ratios.
    SigmoidNorm,
}

impl DpoLossType {
    /// Whether the loss supports label smoothing.
    pub fn smooths_labels(self) -> bool {
        matches!(self, Self::Sigmoid | Self::Robust | Self::ExoPair | Self::Aot | Self::AotUnpaired)
    }

    /// Whether the loss depends only on the difference of both sides. Divergences other than the reverse KL require
    /// this.
    pub fn is_of_difference(self) -> bool {
        matches!(
            self,
            Self::Sigmoid | Self::SigmoidNorm | Self::Hinge | Self::Ipo | Self::ExoPair | Self::Robust | Self::Discopop
        )
    }
}

/// Divergence from the reference: Wang et al. 2024 (f-DPO).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Divergence {
    /// KL(policy ‖ reference), as in the original DPO.
    ReverseKl,
    /// KL(reference ‖ policy).
    ForwardKl,
    /// Jensen–Shannon divergence.
    JsDivergence,
    /// Between forward and reverse KL, set by `f_alpha_divergence_coef`.
    AlphaDivergence,
}

/// Source of the reference's log-probabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReferenceLogprobs {
    /// One pass over the data before training.
    Precomputed,
    /// One forward pass of the reference in each step.
    Live,
}

impl fmt::Display for DpoLosses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        match names.as_slice() {
            [name] => f.write_str(name),
            names => write!(f, "[{}]", names.join(", ")),
        }
    }
}

impl fmt::Display for DpoLossType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // serde can serialize a variant's name into a formatter.
        self.serialize(f)
    }
}

impl Serialize for DpoLosses {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [loss] => loss.serialize(serializer),
            losses => losses.serialize(serializer),
        }
    }
}

// Written by hand because an untagged enum would report every mistake as "did not match any variant".
impl<'de> Deserialize<'de> for DpoLosses {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrMore;

        impl<'de> Visitor<'de> for OneOrMore {
            type Value = DpoLosses;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a loss such as `sigmoid`, or a list of them")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<DpoLosses, E> {
                DpoLossType::deserialize(de::value::StrDeserializer::new(name)).map(|loss| DpoLosses(vec![loss]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<DpoLosses, A::Error> {
                Vec::deserialize(de::value::SeqAccessDeserializer::new(list)).map(DpoLosses)
            }
        }

        deserializer.deserialize_any(OneOrMore)
    }
}

impl JsonSchema for DpoLosses {
    fn schema_name() -> Cow<'static, str> {
        "DpoLosses".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let one = generator.subschema_for::<DpoLossType>();
        json_schema!({ "anyOf": [one.clone(), { "type": "array", "items": one }] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_loss_is_a_word_and_several_are_a_list() {
        for (text, losses) in [
            ("\"hinge\"", vec![DpoLossType::Hinge]),
            ("[\"sigmoid\",\"sft\"]", vec![DpoLossType::Sigmoid, DpoLossType::Sft]),
        ] {
            let read: DpoLosses = serde_json::from_str(text).expect(text);
            assert_eq!(read, DpoLosses(losses));
            assert_eq!(serde_json::to_string(&read).expect("losses have names"), text);
        }
        let one: DpoLosses = serde_json::from_str("[\"exo_pair\"]").expect("a list of one");
        assert_eq!((one.to_string(), one.0), ("exo_pair".to_owned(), vec![DpoLossType::ExoPair]));
        let wrong = serde_json::from_str::<DpoLosses>("3").expect_err("a number is no loss").to_string();
        assert!(wrong.contains("a loss such as `sigmoid`, or a list of them"), "{wrong}");
    }

    #[test]
    fn weights_are_ones_unless_given() {
        let losses = DpoLosses(vec![DpoLossType::Sigmoid, DpoLossType::Sft]);
        let config = DpoConfig { loss_type: losses, ..DpoConfig::default() };
        assert!(config.losses().all(|(_, weight)| weight == 1.0));
        let config = DpoConfig { loss_weights: Some(vec![0.8, 0.2]), ..config };
        assert_eq!(config.losses().last(), Some((DpoLossType::Sft, 0.2)));
    }
}
