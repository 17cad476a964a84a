//! Configuration of rewards.

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

/// File of a run that holds the answers of judges.
const JUDGEMENTS: &str = "judgements.jsonl";

/// One reward. The key selects its kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RewardConfig {
    /// A reward model: a directory, a run or a hub name.
    Model(String),
    /// A classifier and its rewarded label.
    Classifier(ClassifierConfig),
    /// A rule.
    Rule(RuleConfig),
    /// A metric of each completion (docs/metrics.md). The key selects the metric, as in `rouge: {}`. Metrics that have
    /// no value for a single new completion cannot be rewards: `diversity`, `distinct`, `perplexity`, and `spice` over
    /// `scene_graphs`.
    Metric(MetricConfig),
    /// Harmlessness of the completion, as a whole or by sentences.
    Toxicity(ToxicityConfig),
    /// An external program as a list of arguments. For each JSON object that it reads, it prints a number, null or an
    /// object of parts.
    #[serde(deserialize_with = "read_program")]
    #[schemars(schema_with = "schema_of_program::<CommandConfig>")]
    Command(CommandConfig),
    /// A language model as a judge, at an OpenAI-compatible endpoint: `http://localhost:8000/v1`.
    Judge(JudgeConfig),
    /// Tests that the completion's Python program must pass, in a sandbox (Linux).
    Code(CodeConfig),
    /// Models that judge the segments of a completion: sentences, parts of sentences, or the whole.
    FineGrained(FineGrainedConfig),
    /// A registered plugin reward (docs/plugins.md). The key is its name and contains its options.
    Plugin(Plugin<dyn Reward>),
    /// A weighted sum of rewards.
    Mix(Vec<WeightedReward>),
}

impl RewardConfig {
    /// Whether this reward starts a program.
    pub fn starts_program(&self) -> bool {
        match self {
            Self::Command(_) | Self::Code(_) => true,
            Self::Metric(metric) => metric.starts_program(),
            Self::Mix(parts) => parts.iter().any(|part| part.reward.starts_program()),
            Self::Model(_) | Self::Classifier(_) | Self::Rule(_) | Self::FineGrained(_) => false,
            Self::Toxicity(_) | Self::Judge(_) | Self::Plugin(_) => false,
        }
    }

    /// Returns the same reward. Its judges record their answers in the directory of the run unless they name a file.
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

    /// Returns the same reward for one of several `processes` that score at the same time: each has an equal share of a service's limits,
    /// and at least one connection.
    #[must_use]
    pub fn shared_by(self, processes: usize) -> Self {
        match self {
            Self::Judge(judge) => Self::Judge(JudgeConfig {
                requests_per_second: judge.requests_per_second / processes as f64,
                connections: (judge.connections / processes).max(1),
                ..judge
            }),
            Self::Toxicity(config) => {
                Self::Toxicity(ToxicityConfig { scorer: config.scorer.shared_by(processes), ..config })
            }
            Self::Metric(metric) => Self::Metric(metric.shared_by(processes)),
            Self::Mix(parts) => {
                let inner = |part: WeightedReward| WeightedReward { reward: part.reward.shared_by(processes), ..part };
                Self::Mix(parts.into_iter().map(inner).collect())
            }
            other => other,
        }
    }

    /// Returns the required columns, each with the name of the reward that reads it.
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
            Self::Rule(
                RuleConfig::Length(_)
                | RuleConfig::Regex(_)
                | RuleConfig::Substring(_)
                | RuleConfig::Lexicon(_)
                | RuleConfig::SoftOverlong(_)
                | RuleConfig::RepeatPenalty(_)
                | RuleConfig::ThinkFormat {},
            ) => Vec::new(),
            Self::Judge(_) | Self::Model(_) | Self::Classifier(_) | Self::FineGrained(_) => Vec::new(),
            Self::Metric(_) | Self::Toxicity(_) | Self::Command(_) | Self::Plugin(_) => Vec::new(),
        }
    }

    /// Whether a metric compares completions to the references of their rows.
    pub fn compares(&self) -> bool {
        match self {
            Self::Metric(_) => true,
            Self::Mix(parts) => parts.iter().any(|part| part.reward.compares()),
            Self::Model(_) | Self::Classifier(_) | Self::FineGrained(_) | Self::Rule(_) | Self::Toxicity(_) => false,
            Self::Command(_) | Self::Judge(_) | Self::Code(_) | Self::Plugin(_) => false,
        }
    }

    /// Returns the learned rewards that it contains.
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
    /// Returns the parts that judge segments: name, weight in the whole, and settings.
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
            Self::Model(_) | Self::Classifier(_) | Self::Rule(_) | Self::Metric(_) | Self::Toxicity(_) => Vec::new(),
            Self::Command(_) | Self::Judge(_) | Self::Code(_) | Self::Plugin(_) => Vec::new(),
        }
    }

    /// Returns the models that its metrics and scorers use.
    pub fn metric_models(&self) -> Vec<MetricModel<'_>> {
        match self {
            Self::Metric(metric) => metric.models(),
            Self::Toxicity(toxicity) => {
                let name = toxicity.scorer.model();
                name.map(|name| MetricModel { name, usage: ModelUse::Classifier }).into_iter().collect()
            }
            Self::Mix(parts) => parts.iter().flat_map(|part| part.reward.metric_models()).collect(),
            Self::Model(_) | Self::Classifier(_) | Self::FineGrained(_) | Self::Rule(_) => Vec::new(),
            Self::Command(_) | Self::Judge(_) | Self::Code(_) | Self::Plugin(_) => Vec::new(),
        }
    }
}

/// A reward computed by a model.
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
    /// Returns the model's directory or hub name.
    pub fn name(self) -> &'a str {
        match self {
            Self::Model(name) => name,
            Self::Classifier(config) => &config.model,
            Self::Segments(config) => &config.model,
        }
    }
}

/// Reward by how well a label of a classifier fits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClassifierConfig {
    /// The classifier: a `…ForSequenceClassification` directory or a hub name.
    pub model: String,
    /// Rewarded label, by name or index. Default: the only one, if the model has one.
    #[serde(default)]
    pub label: Option<LabelName>,
    /// Value of the label that becomes the reward. Default: its probability, or the number itself for a regression
    /// model.
    #[serde(default)]
    pub value: Option<ClassifierValue>,
    /// Template of the input text, with `{prompt}`, `{completion}`, `{reference}` and any column of the row in braces.
    /// Default: the prompt followed by the completion.
    #[serde(default)]
    pub text: Option<String>,
    /// Template of a second input text, such as a hypothesis after its premise. Default: none.
    #[serde(default)]
    pub pair: Option<String>,
    /// Side at which texts longer than the classifier's positions are cut. Default: such a text is an error.
    #[serde(default)]
    pub truncate: Option<Side>,
}

impl ClassifierConfig {
    /// Returns the first mistake in its patterns and the key with it.
    pub(crate) fn mistake(&self) -> Option<(&'static str, String)> {
        TextForm::parse(self.text.as_deref(), self.pair.as_deref(), None).err()
    }
}

// Written by hand because an untagged enum would report every mistake as "did not match any variant".

/// A reward and its weight in a mix.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WeightedReward {
    /// Weight of the reward.
    pub weight: f64,
    /// The reward.
    pub reward: RewardConfig,
    /// Replace the value of each completion by the mean over a group of this many consecutive completions, up to this
    /// one (RL4LMs' code does this to `intent_accuracy`, over its environments). Default: each completion keeps its own
    /// value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub running_mean_over: Option<usize>,
}

/// A rule that scores the completion's text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RuleConfig {
    /// Closeness of the completion's length to a target.
    Length(LengthRule),
    /// DAPO's penalty: 0 up to `max_length` − `cache` tokens, then falling to −1 at `max_length`.
    SoftOverlong(SoftOverlongRule),
    /// 1 if the regular expression matches anywhere in the completion, otherwise 0.
    Regex(String),
    /// 1 if the completion equals the named column, apart from white space at the ends, otherwise 0.
    ExactMatch(String),
    /// 1 if the completion contains the text, otherwise 0.
    Substring(String),
    /// 1 if the last number of the completion equals that of the named column (GSM8K's `#### n` is understood),
    /// otherwise 0.
    NumericAnswer(String),
    /// 1 if the answer of the completion equals that of the named column mathematically, otherwise 0: `\frac{1}{2}`,
    /// `0.5` and `1/2` are equal, and so are `(x+1)^2` and `x^2+2x+1`.
    Math(MathRule),
    /// The value of `math`, scaled by the length of the completion along a cosine.
    CosineLength(CosineRule),
    /// 1 if the completion begins with thoughts between `<think>` and `</think>`, otherwise 0.
    ThinkFormat {},
    /// −1 if the completion repeats this prefix, the part of the prompt after it, `generate` or `sentence`, otherwise 0
    /// (RL4LMs' shaping for CommonGen, whose prefix is `generate a sentence with: `).
    RepeatPenalty(String),
    /// Mean valence of the completion's words, from a lexicon file in VADER's format.
    Lexicon(PathBuf),
}

/// Keys of the length rule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LengthRule {
    /// The wanted length in tokens.
    #[schemars(range(min = 1))]
    pub target: usize,
    /// Half width of the triangle around the target: the reward is 1 at the target and 0 at this distance and beyond.
    /// Default: `target`.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub tolerance: Option<usize>,
}

/// Keys of the rule for mathematical answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MathRule {
    /// Column of the right answer: a text that contains the answer, or bare LaTeX. A row without an answer there is not
    /// scored.
    pub column: String,
    /// Mark after which the answer is searched, such as `</think>`; a completion without the mark is wrong. Default:
    /// none.
    #[serde(default)]
    pub after: Option<String>,
}

/// Keys of the rule that scales correctness by length.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CosineRule {
    /// Column of the right answer, as in `math`.
    pub column: String,
    /// Mark after which the answer is searched, as in `math`. Default: none.
    #[serde(default)]
    pub after: Option<String>,
    /// Number of tokens from which on a completion counts as longest.
    #[schemars(range(min = 1))]
    pub max_length: usize,
    /// Rewards of right completions. Default: 1 for the shortest, 0.5 for the longest.
    #[serde(default = "right_ends")]
    pub right: Ends,
    /// Rewards of wrong completions. Default: −1 for the shortest, −0.5 for the longest.
    #[serde(default = "wrong_ends")]
    pub wrong: Ends,
}

/// Rewards of the shortest and of the longest completion.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ends {
    /// Reward of the shortest completion.
    pub short: f64,
    /// Reward of the longest completion.
    pub long: f64,
}

fn right_ends() -> Ends {
    Ends { short: 1.0, long: 0.5 }
}

fn wrong_ends() -> Ends {
    Ends { short: -1.0, long: -0.5 }
}

/// Keys of the soft penalty on long completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SoftOverlongRule {
    /// Number of tokens, the stop id included, from which on the full penalty applies.
    pub max_length: usize,
    /// Number of tokens before `max_length` over which the penalty grows.
    pub cache: usize,
}

/// An external program that scores completions: `[program, args…]`, or a mapping with `program` and more.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CommandConfig {
    /// The program and its arguments.
    pub program: Vec<String>,
    /// Time limit for one batch of completions in seconds. Default 60.
    #[serde(default = "default_timeout_s")]
    pub timeout_s: f64,
    /// Name of the reward in the log, without `/`. Default `command`.
    #[serde(default)]
    pub name: Option<String>,
}

impl From<Vec<String>> for CommandConfig {
    fn from(program: Vec<String>) -> Self {
        Self { program, timeout_s: TIMEOUT_S, name: None }
    }
}

impl CommandConfig {
    /// Creates the settings of `program` with the default time limit.
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
    fn processes_share_the_limits_of_a_service() {
        let services = |rate: f64, connections: usize| {
            let limits = format!("requests_per_second: {rate}, connections: {connections}");
            let scorer = format!(
                "scorer: {{ recorded: {{ file: f, otherwise: {{ service: {{ url: 'http://s', {limits} }} }} }} }}"
            );
            let parts = [
                format!("judge: {{ url: 'http://j', model: m, {limits} }}"),
                format!("toxicity: {{ {scorer} }}"),
                format!("metric: {{ toxicity: {{ {scorer} }} }}"),
            ];
            let part = |reward: &String| format!("{{ weight: 1, reward: {{ {reward} }} }}");
            parse(&format!("mix: [{}]", parts.iter().map(part).collect::<Vec<_>>().join(", "))).expect("a mix")
        };
        assert_eq!(services(9.0, 8).shared_by(3), services(3.0, 2));
        assert_eq!(services(1.0, 1).shared_by(2), services(0.5, 1));
        assert_eq!(services(9.0, 8).shared_by(1), services(9.0, 8));
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
