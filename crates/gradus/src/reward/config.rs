//! Which rewards a configuration can name.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Reward;
use super::code::CodeConfig;
use super::fine_grained::{FineGrainedConfig, SegmentConfig};
use super::judge::{JudgeConfig, Pairwise, Verdict};
pub use super::label::{ClassifierValue, LabelName};
use super::toxicity::ToxicityConfig;
use crate::data::{Side, TextForm};
use crate::metric::{MetricConfig, MetricModel, ModelUse};
use crate::plugin::Plugin;
use crate::process::{TIMEOUT_S, default_timeout_s, read_program, schema_of_program};

/// The file of a run that holds what judges said.
const JUDGEMENTS: &str = "judgements.jsonl";

/// One reward: the choice is the key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RewardConfig {
    /// A reward model directory or hub name.
    Model(String),
    /// A classifier, and the label that is rewarded.
    Classifier(ClassifierConfig),
    /// A rule.
    Rule(RuleConfig),
    /// A metric of each completion (docs/metrics.md): the choice is the key, as in `rouge: {}`. Metrics without a value of one
    /// new completion cannot be rewards: `diversity`, `distinct`, `perplexity`, and `spice` over `scene_graphs`.
    Metric(MetricConfig),
    /// How harmless the completion is, as a whole or by sentences.
    Toxicity(ToxicityConfig),
    /// An external program: arguments as a list. One JSON object a line in; a number, null or an object of parts a line out.
    #[serde(deserialize_with = "read_program")]
    #[schemars(schema_with = "schema_of_program::<CommandConfig>")]
    Command(CommandConfig),
    /// A language model as a judge, behind an endpoint of OpenAI's form: `http://localhost:8000/v1`.
    Judge(JudgeConfig),
    /// The completion's Python program must pass tests, in a sandbox (Linux).
    Code(CodeConfig),
    /// Parts that judge the segments of a completion: sentences, parts of sentences, or the whole.
    FineGrained(FineGrainedConfig),
    /// A reward that the program was given by name (docs/plugins.md): its name is the key, below which its options stand.
    Plugin(Plugin<dyn Reward>),
    /// A weighted sum of rewards.
    Mix(Vec<WeightedReward>),
}

impl RewardConfig {
    /// Whether a program is started for it.
    pub fn starts_program(&self) -> bool {
        match self {
            Self::Command(_) | Self::Code(_) => true,
            Self::Metric(metric) => metric.starts_program(),
            Self::Mix(parts) => parts.iter().any(|part| part.reward.starts_program()),
            Self::Model(_) | Self::Classifier(_) | Self::Rule(_) | Self::FineGrained(_) => false,
            Self::Toxicity(_) | Self::Judge(_) | Self::Plugin(_) => false,
        }
    }

    /// The same reward, whose judges keep what they said in the directory of a run unless they name a file.
    #[must_use]
    pub fn recorded_in(self, run: &Path) -> Self {
        match self {
            Self::Judge(judge) => {
                let record = judge.record.or_else(|| Some(run.join(JUDGEMENTS)));
                Self::Judge(JudgeConfig { record, ..judge })
            }
            Self::Mix(parts) => {
                let inner = |part: WeightedReward| WeightedReward { reward: part.reward.recorded_in(run), ..part };
                Self::Mix(parts.into_iter().map(inner).collect())
            }
            other => other,
        }
    }

    /// The columns without which it fails, each after the name of the reward that reads it.
    pub fn columns(&self) -> Vec<(&'static str, &str)> {
        match self {
            Self::Rule(RuleConfig::ExactMatch(column)) => vec![("exact_match", column)],
            Self::Rule(RuleConfig::NumericAnswer(column)) => vec![("numeric_answer", column)],
            Self::Rule(RuleConfig::Math(rule)) => vec![("math", &rule.column)],
            Self::Rule(RuleConfig::CosineLength(rule)) => vec![("cosine_length", &rule.column)],
            Self::Code(code) => vec![("code", &code.tests)],
            Self::Judge(JudgeConfig { verdict: Verdict::Pairwise(Pairwise::Column(column)), .. }) => {
                vec![("judge", column)]
            }
            Self::Mix(parts) => parts.iter().flat_map(|part| part.reward.columns()).collect(),
            _ => Vec::new(),
        }
    }

    /// Whether a metric compares completions with the references of their rows.
    pub fn compares(&self) -> bool {
        match self {
            Self::Metric(_) => true,
            Self::Mix(parts) => parts.iter().any(|part| part.reward.compares()),
            _ => false,
        }
    }

    /// The learned rewards that it names.
    pub fn models(&self) -> Vec<Learned<'_>> {
        match self {
            Self::Model(name) => vec![Learned::Model(name)],
            Self::Classifier(config) => vec![Learned::Classifier(config)],
            Self::FineGrained(FineGrainedConfig(parts)) => parts.values().map(Learned::Segments).collect(),
            Self::Mix(parts) => parts.iter().flat_map(|part| part.reward.models()).collect(),
            Self::Rule(_) | Self::Metric(_) | Self::Toxicity(_) | Self::Command(_) => Vec::new(),
            Self::Judge(_) | Self::Code(_) | Self::Plugin(_) => Vec::new(),
        }
    }
}

impl RewardConfig {
    /// What judges segments, by the names of its parts, each with what it weighs in the whole.
    pub fn segments(&self) -> Vec<(&str, f64, &SegmentConfig)> {
        match self {
            Self::FineGrained(FineGrainedConfig(parts)) => {
                parts.iter().map(|(name, part)| (name.as_str(), part.weight, part)).collect()
            }
            Self::Mix(parts) => {
                let inner =
                    parts.iter().flat_map(|of| of.reward.segments().into_iter().map(move |part| (of.weight, part)));
                inner.map(|(outer, (name, weight, part))| (name, outer * weight, part)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The models that its metrics and scorers ask.
    pub fn asked(&self) -> Vec<MetricModel<'_>> {
        match self {
            Self::Metric(metric) => metric.models(),
            Self::Toxicity(toxicity) => {
                let name = toxicity.scorer.model();
                name.map(|name| MetricModel { name, asked: ModelUse::Classifier }).into_iter().collect()
            }
            Self::Mix(parts) => parts.iter().flat_map(|part| part.reward.asked()).collect(),
            _ => Vec::new(),
        }
    }
}

/// A reward that a model gives.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Learned<'a> {
    /// A reward model, by its directory or hub name.
    Model(&'a str),
    /// A classifier.
    Classifier(&'a ClassifierConfig),
    /// A model that judges segments.
    Segments(&'a SegmentConfig),
}

impl<'a> Learned<'a> {
    /// The model's directory or hub name.
    pub fn name(self) -> &'a str {
        match self {
            Self::Model(name) => name,
            Self::Classifier(config) => &config.model,
            Self::Segments(config) => &config.model,
        }
    }
}

/// How much a label of a classifier fits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClassifierConfig {
    /// The classifier: a `…ForSequenceClassification` directory or a hub name.
    pub model: String,
    /// The label that is rewarded, by name or number. Default: the only one there is.
    #[serde(default)]
    pub label: Option<LabelName>,
    /// The value of the label that becomes the reward. Default: its probability, or the number itself for a regression model.
    #[serde(default)]
    pub value: Option<ClassifierValue>,
    /// The text that is read: `{prompt}`, `{completion}`, `{reference}` and any column of the row stand in braces. Default:
    /// prompt and completion, one after the other.
    #[serde(default)]
    pub text: Option<String>,
    /// A second text that is read beside the first, such as a hypothesis beside its premise. Default: none.
    #[serde(default)]
    pub pair: Option<String>,
    /// The side at which texts longer than the classifier's positions are cut. Default: such a text is an error.
    #[serde(default)]
    pub truncate: Option<Side>,
}

impl ClassifierConfig {
    /// What is wrong with its patterns, by key.
    pub(crate) fn mistake(&self) -> Option<(&'static str, String)> {
        TextForm::parse(self.text.as_deref(), self.pair.as_deref(), None).err()
    }
}

// Written by hand because an untagged enum would answer every mistake with "did not match any variant".

/// A reward and its weight in a mix.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WeightedReward {
    /// Its weight.
    pub weight: f64,
    /// The reward.
    pub reward: RewardConfig,
    /// Instead of each completion's value, the mean over so many completions in a row, up to this one (RL4LMs' code shapes
    /// `intent_accuracy` so, over its environments). Default: its own value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running_mean_over: Option<usize>,
}

/// A rule that scores the completion's text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RuleConfig {
    /// Closeness of the completion's length to a target.
    Length(LengthRule),
    /// DAPO's penalty: 0, and from `max_length` − `cache` tokens on down to −1 at `max_length`.
    SoftOverlong(SoftOverlongRule),
    /// 1 when the regular expression is found in the completion, else 0.
    Regex(String),
    /// 1 when the completion equals the named column, white space at the ends aside, else 0.
    ExactMatch(String),
    /// 1 when the text is found in the completion, else 0.
    Substring(String),
    /// 1 when the last number of the completion equals that of the named column (GSM8K's `#### n` understood), else 0.
    NumericAnswer(String),
    /// 1 when the answer of the completion equals that of the named column as mathematics, else 0: `\frac{1}{2}`, `0.5` and `1/2` are
    /// equal, and so are `(x+1)^2` and `x^2+2x+1`.
    Math(MathRule),
    /// The same, scaled by the length of the completion along a cosine.
    CosineLength(CosineRule),
    /// 1 when the completion begins with thoughts between `<think>` and `</think>`, else 0.
    ThinkFormat {},
    /// −1 when the completion repeats the prompt after this prefix, the prefix, `generate` or `sentence`, else 0 (RL4LMs'
    /// shaping for CommonGen, whose prefix is `generate a sentence with: `).
    RepeatPenalty(String),
    /// Mean valence of the completion's words by a lexicon file in VADER's format.
    Lexicon(PathBuf),
}

/// Keys of the length rule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LengthRule {
    /// The wanted length in tokens.
    pub target: usize,
    /// Half width of the triangle around the target: reward 1 at the target, 0 at this distance and beyond. Default: `target`.
    #[serde(default)]
    pub tolerance: Option<usize>,
}

/// Keys of the rule for answers of mathematics.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MathRule {
    /// The column of the right answer: a text with the answer in it, or bare LaTeX. A row without an answer there is not scored.
    pub column: String,
    /// The mark after which the answer is looked for, such as `</think>`; a completion without the mark is wrong. Default: none.
    #[serde(default)]
    pub after: Option<String>,
}

/// Keys of the rule that scales correctness by length.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CosineRule {
    /// The column of the right answer, as of `math`.
    pub column: String,
    /// The mark after which the answer is looked for, as of `math`. Default: none.
    #[serde(default)]
    pub after: Option<String>,
    /// Tokens from which on a completion counts as longest.
    pub max_length: usize,
    /// Rewards of right completions. Default: 1 for the shortest, 0.5 for the longest.
    #[serde(default = "right_ends")]
    pub right: Ends,
    /// Rewards of wrong completions. Default: −1 for the shortest, −0.5 for the longest.
    #[serde(default = "wrong_ends")]
    pub wrong: Ends,
}

/// The rewards of the shortest and of the longest completion.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ends {
    /// Of the shortest.
    pub short: f64,
    /// Of the longest.
    pub long: f64,
}

fn right_ends() -> Ends {
    Ends { short: 1.0, long: 0.5 }
}

fn wrong_ends() -> Ends {
    Ends { short: -1.0, long: -0.5 }
}

/// Keys of the soft penalty of long completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SoftOverlongRule {
    /// Tokens of a completion, its stop id included, from which on the penalty is whole.
    pub max_length: usize,
    /// Over how many tokens before that it grows.
    pub cache: usize,
}

/// An external program that scores completions: `[program, args…]`, or a mapping with `program` and more.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CommandConfig {
    /// The program and its arguments.
    pub program: Vec<String>,
    /// Seconds it may take for one batch of completions. Default 60.
    #[serde(default = "default_timeout_s")]
    pub timeout_s: f64,
    /// The name of the reward in the log. Default `command`.
    #[serde(default)]
    pub name: Option<String>,
}

impl From<Vec<String>> for CommandConfig {
    fn from(program: Vec<String>) -> Self {
        Self { program, timeout_s: TIMEOUT_S, name: None }
    }
}

impl CommandConfig {
    /// `program` with the default time limit.
    pub fn new<S: Into<String>>(program: impl IntoIterator<Item = S>) -> Self {
        program.into_iter().map(Into::into).collect::<Vec<String>>().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(yaml: &str) -> Result<RewardConfig, String> {
        serde_saphyr::from_str(yaml).map_err(|error| error.to_string())
    }

    #[test]
    fn a_command_is_a_list_or_a_mapping() {
        let list = parse("command: [python3, score.py, --strict]").expect("a list");
        assert_eq!(list, RewardConfig::Command(CommandConfig::new(["python3", "score.py", "--strict"])));
        let mapping = parse("command: { program: [./score], timeout_s: 5 }").expect("a mapping");
        let expected = CommandConfig { timeout_s: 5.0, ..CommandConfig::new(["./score"]) };
        assert_eq!(mapping, RewardConfig::Command(expected));
    }

    #[test]
    fn mistakes_in_a_command_are_named() {
        let unknown = parse("command: { program: [a], timeout: 5 }").unwrap_err();
        assert!(unknown.contains("timeout"), "{unknown}");
        let word = parse("command: score.sh").unwrap_err();
        assert!(word.contains("[program, args…]"), "{word}");
    }

    #[test]
    fn what_is_written_reads_back() {
        let config = RewardConfig::Mix(vec![
            WeightedReward {
                weight: 1.0,
                reward: RewardConfig::Model("runs/reward/model".into()),
                running_mean_over: None,
            },
            WeightedReward {
                weight: 0.5,
                reward: RewardConfig::Command(CommandConfig::new(["sh", "score.sh"])),
                running_mean_over: None,
            },
            WeightedReward {
                weight: 3.0,
                reward: RewardConfig::Classifier(ClassifierConfig {
                    model: "toxicity".into(),
                    label: Some(LabelName("toxic".into())),
                    value: Some(ClassifierValue::LogOdds),
                    text: Some("{completion}".into()),
                    pair: None,
                    truncate: Some(Side::Left),
                }),
                running_mean_over: None,
            },
            WeightedReward {
                weight: -2.0,
                reward: RewardConfig::Rule(RuleConfig::Length(LengthRule { target: 20, tolerance: None })),
                running_mean_over: None,
            },
        ]);
        let yaml = serde_saphyr::to_string(&config).expect("serializable");
        assert_eq!(parse(&yaml).expect("readable"), config);
    }
}
