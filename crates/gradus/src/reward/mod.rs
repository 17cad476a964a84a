//! Rewards: the value of a completion, per token.
//!
//! A sequence-level reward is on the last token of the completion, a sentence-level one on the last token of the
//! sentence. Holistic and fine-grained training therefore share one code path.
//!
//! A new kind needs one file in this directory, one variant of [`config::RewardConfig`] and one arm of [`build`].
//! Library users implement [`Reward`] or wrap a closure in [`FnReward`].

mod classifier;
pub mod code;
mod command;
pub mod config;
mod environment;
pub mod fine_grained;
mod function;
pub mod judge;
mod label;
mod learned;
mod length;
mod lexicon;
mod matching;
mod mathematics;
mod metric;
mod mix;
mod numeric;
mod overlong;
mod place;
mod repeat;
mod running_mean;
mod score;
mod think;
mod toxicity;

use burn::tensor::Device;

use crate::batches::MicroBatch;
use crate::error::{Diagnostic, Error};
use crate::metric::Models;
use crate::model::{ModelDir, WeightFormat};
use crate::plugin::Kind;
use crate::progress::{Progress, Unwatched};
use crate::ranks::Ranks;
use crate::rollout::{EpisodeEnd, Prompt, Rollout, Rollouts};
use config::{Learned, RewardConfig, RuleConfig, WeightedReward};
use fine_grained::{FineGrainedConfig, SegmentConfig};

/// Creates the reward of completions in an environment: the environment's own reward, added with this weight to
/// `reward` if there is one.
///
/// # Errors
/// [`Error::Config`] if the weight is not finite.
pub(crate) fn in_environment(reward: Option<Box<dyn Reward>>, weight: f64) -> crate::Result<Box<dyn Reward>> {
    let own = Box::new(EnvironmentReward);
    Ok(match reward {
        None => own,
        Some(reward) => Box::new(MixReward::new(vec![(1.0, reward), (weight, own)])?),
    })
}

/// A reward that could not be computed for one rollout.
pub use crate::error::Failure as RewardError;
pub use crate::process::Interrupt;
pub use classifier::ClassifierReward;
pub use code::CodeReward;
pub use command::CommandReward;
pub use environment::EnvironmentReward;
pub use fine_grained::{JudgedSegment, Judgement, SegmentReward};
pub use function::FnReward;
pub use judge::JudgeReward;
pub use learned::ModelReward;
pub use length::LengthReward;
pub use lexicon::{Lexicon, LexiconReward};
pub use matching::{ExactMatchReward, RegexReward, SubstringReward};
pub use mathematics::{CosineReward, MathReward};
pub use metric::MetricReward;
pub(crate) use metric::{check_references, measured_rows, row_of};
pub use mix::MixReward;
pub use numeric::NumericAnswerReward;
pub use overlong::SoftOverlong;
pub use repeat::RepeatPenalty;
pub use running_mean::RunningMean;
pub use score::{Count, RewardPart, Score};
pub use think::ThinkFormatReward;
pub use toxicity::{ToxicityConfig, ToxicityReward};

/// One entry per rollout, in order. A failure is an `Err` for its rollout and never becomes 0: 0 is a judgement.
pub type Scores = Vec<Result<Score, RewardError>>;

/// Scores completions. This is the library's extension point: implement it for your own reward.
pub trait Reward: Send {
    /// Returns the name under which this reward is logged (`rewards/<name>/mean`).
    fn name(&self) -> String;

    /// Scores the rollouts.
    fn score(&mut self, rollouts: &Rollouts) -> Scores;

    /// [`score`](Self::score) that reports to `progress` how many rollouts are scored. Implement it for slow rewards;
    /// the default reports nothing until the end.
    fn score_with_progress(&mut self, rollouts: &Rollouts, _progress: &dyn Progress) -> Scores {
        self.score(rollouts)
    }

    /// Returns remarks that readers of the values for `prompts` need, such as a missing file that changes how a metric is computed.
    fn remarks(&self, _prompts: &[&Prompt]) -> Vec<String> {
        Vec::new()
    }

    /// Returns whether the score of a completion depends on the other completions of the call, or on their order. On
    /// several ranks, one rank then scores the whole batch; otherwise, each rank scores its share. The default is `false`.
    fn depends_on_batch(&self) -> bool {
        false
    }
}

impl Kind for dyn Reward {
    const NAME: &'static str = "reward";
    type Make = dyn Fn(&dyn Models) -> crate::Result<Box<dyn Reward>> + Send + Sync;
}

/// Creates the configured reward. This is the only place that does so.
///
/// `load_model` opens learned rewards, and `models` opens the models of metrics; both carry the device and the batch
/// sizes. An `interrupt` ends every wait for an answer.
///
/// # Errors
/// If a pattern, a file or a program cannot be used.
pub fn build(
    config: &RewardConfig,
    load_model: &dyn Fn(Learned<'_>) -> crate::Result<Box<dyn Reward>>,
    models: &dyn Models,
    interrupt: &Interrupt,
) -> crate::Result<Box<dyn Reward>> {
    Ok(match config {
        RewardConfig::Model(name) => load_model(Learned::Model(name))?,
        RewardConfig::Classifier(classifier) => load_model(Learned::Classifier(classifier))?,
        RewardConfig::Rule(RuleConfig::Length(rule)) => Box::new(LengthReward::new(rule)?),
        RewardConfig::Rule(RuleConfig::Regex(pattern)) => Box::new(RegexReward::new(pattern)?),
        RewardConfig::Rule(RuleConfig::ExactMatch(column)) => Box::new(ExactMatchReward::new(column)),
        RewardConfig::Rule(RuleConfig::Substring(text)) => Box::new(SubstringReward::new(text)),
        RewardConfig::Rule(RuleConfig::NumericAnswer(column)) => Box::new(NumericAnswerReward::new(column)),
        RewardConfig::Rule(RuleConfig::Lexicon(path)) => Box::new(LexiconReward::new(Lexicon::read(path)?)),
        RewardConfig::Rule(RuleConfig::SoftOverlong(rule)) => Box::new(SoftOverlong::new(*rule)?),
        RewardConfig::Rule(RuleConfig::RepeatPenalty(prefix)) => Box::new(RepeatPenalty::new(prefix)),
        RewardConfig::Rule(RuleConfig::Math(rule)) => Box::new(MathReward::new(rule)),
        RewardConfig::Rule(RuleConfig::CosineLength(rule)) => Box::new(CosineReward::new(rule)?),
        RewardConfig::Rule(RuleConfig::ThinkFormat {}) => Box::new(ThinkFormatReward),
        RewardConfig::Metric(config) => Box::new(MetricReward::new(config, models, interrupt)?),
        RewardConfig::Toxicity(config) => Box::new(ToxicityReward::new(config, models, interrupt)?),
        RewardConfig::Command(command) => Box::new(CommandReward::start(command, interrupt)?),
        RewardConfig::Judge(config) => Box::new(JudgeReward::new(config, interrupt)?),
        RewardConfig::Code(config) => Box::new(CodeReward::new(config, interrupt)?),
        RewardConfig::Plugin(plugin) => plugin.make()?(models)?,
        RewardConfig::FineGrained(FineGrainedConfig(parts)) => {
            let part = |(name, part): (&String, &SegmentConfig)| {
                Ok((name.clone(), part.weight, load_model(Learned::Segments(part))?))
            };
            let parts = parts.iter().map(part).collect::<crate::Result<_>>()?;
            Box::new(MixReward::of_named("fine_grained", parts))
        }
        RewardConfig::Mix(parts) => {
            let part = |part: &WeightedReward| {
                let reward = build(&part.reward, load_model, models, interrupt)?;
                let reward = match part.running_mean_over {
                    Some(0) => {
                        let message =
                            "`running_mean_over` of a part of the reward's `mix` is 0, but must be at least 1";
                        return Err(config_error(message.into(), None));
                    }
                    Some(group) => Box::new(RunningMean::new(reward, group)),
                    None => reward,
                };
                Ok((part.weight, reward))
            };
            Box::new(MixReward::new(parts.iter().map(part).collect::<crate::Result<Vec<_>>>()?)?)
        }
    })
}

/// Loads the learned reward in `dir` onto a device that tracks no gradients. `weights` sets the format of its weights.
///
/// # Errors
/// If `dir` does not hold such a model, or a file is missing or corrupt.
pub fn load_learned(
    learned: Learned<'_>,
    dir: &ModelDir,
    device: &Device,
    weights: WeightFormat,
    passes: MicroBatch,
) -> crate::Result<Box<dyn Reward>> {
    Ok(match learned {
        Learned::Model(_) => Box::new(ModelReward::load(dir, device, weights, passes)?),
        Learned::Classifier(config) => Box::new(ClassifierReward::load(dir, config, device, weights, passes)?),
        Learned::Segments(config) => Box::new(SegmentReward::load(dir, config, device, weights, passes)?),
    })
}

/// Scores all rollouts and rejects unusable results: failures, wrong lengths, values that are not finite. In the
/// result, each part has a name. A rollout whose episode failed stays unscored, whatever the reward returns for it.
///
/// # Errors
/// The first failure, as [`Error::Reward`] with the prompt's row.
pub fn apply(reward: &mut dyn Reward, rollouts: &Rollouts) -> crate::Result<Vec<Score>> {
    apply_with_progress(reward, rollouts, &Unwatched)
}

/// [`apply`] that reports how many rollouts are scored.
///
/// # Errors
/// As [`apply`], and [`Error::Interrupted`] if `progress` ends the work.
pub fn apply_with_progress(
    reward: &mut dyn Reward,
    rollouts: &Rollouts,
    progress: &dyn Progress,
) -> crate::Result<Vec<Score>> {
    progress.advance(SCORED, 0, rollouts.len())?;
    let (name, scores) = (reward.name(), reward.score_with_progress(rollouts, progress));
    if scores.len() != rollouts.len() {
        let (given, expected) = (scores.len(), rollouts.len());
        return Err(Error::input(format!("the reward `{name}` returned {given} scores for {expected} completions")));
    }
    let mut checked = Vec::with_capacity(scores.len());
    for (i, score) in scores.into_iter().enumerate() {
        if rollouts.rollouts[i].failure().is_some() {
            checked.push(Score::unscored());
            continue;
        }
        let tokens = rollouts.rollouts[i].completion_ids.len();
        let mut score = score.and_then(|score| score.check(&name, tokens).map(|()| score)).map_err(|error| {
            let RewardError { message, hint, is_interrupted } = error;
            match is_interrupted {
                true => Error::Interrupted,
                false => {
                    Error::Reward { row: rollouts.prompt(i).row + 1, message: format!("`{name}`: {message}"), hint }
                }
            }
        })?;
        // The single part of a reward gets the reward's name, and its counts are named below it, as in a mix.
        for part in score.parts.iter_mut().filter(|part| part.name.is_empty()) {
            part.name.clone_from(&name);
            score.counts.iter_mut().for_each(|count| count.name = format!("{name}/{}", count.name));
        }
        checked.push(score);
    }
    Ok(checked)
}

/// [`apply_with_progress`] on all ranks: each rank scores its share of the groups and reports its own progress, and all
/// ranks receive all scores. If scores depend on the whole batch, the first rank computes all of them.
///
/// # Errors
/// As [`apply_with_progress`], on any rank.
pub(crate) fn apply_on(
    ranks: Ranks,
    reward: &mut dyn Reward,
    rollouts: &Rollouts,
    progress: &dyn Progress,
) -> crate::Result<Vec<Score>> {
    if ranks.is_alone() {
        return apply_with_progress(reward, rollouts, progress);
    }
    if reward.depends_on_batch() {
        let own = if ranks.is_first() { apply_with_progress(reward, rollouts, progress) } else { Ok(Vec::new()) };
        return Ok(ranks.all_ok("scores", own)?.into_iter().flatten().collect());
    }
    ranks.deal("scores", (rollouts.len(), rollouts.group_size), |own| match own.is_empty() {
        true => Ok(Vec::new()),
        false => apply_with_progress(reward, &rollouts.part(own), progress),
    })
}

/// Label of the reward's progress.
const SCORED: &str = "scored";

/// Reports that `done` of `total` rollouts are scored.
fn report(progress: &dyn Progress, done: usize, total: usize) -> Result<(), RewardError> {
    progress.advance(SCORED, done, total).map_err(|_| RewardError::interrupted())
}

/// Returns the scores of an interrupted run: an error for each rollout.
fn interrupted(rollouts: &Rollouts) -> Scores {
    vec![Err(RewardError::interrupted()); rollouts.len()]
}

/// Returns the error about a run in which no completion has a score. `rollouts` are the last ones of its `count` completions.
pub(crate) fn nothing_scored(name: &str, rollouts: &Rollouts, count: usize) -> Error {
    let ends: Vec<&EpisodeEnd> =
        rollouts.rollouts.iter().filter_map(|rollout| Some(&rollout.episode.as_ref()?.end)).collect();
    if name == EnvironmentReward.name() && !ends.is_empty() {
        return environment::no_reward(&ends);
    }
    Error::input(format!("the reward `{name}` has scored none of the {count} completions so far"))
        .with_hint("a reward may answer `null` (Python: `None`) for rows to which it does not apply; return a number for other rows")
}

/// Computes sequence-level scores from one value per rollout.
fn score_each(rollouts: &Rollouts, mut value: impl FnMut(&Prompt, &Rollout) -> Result<f32, RewardError>) -> Scores {
    let each = rollouts.rollouts.iter().map(|rollout| {
        let value = value(&rollouts.prompts[rollout.prompt], rollout)?;
        Ok(Score::sequence(value, rollout.completion_ids.len()))
    });
    each.collect()
}

/// Returns the text of a column that a rule compares to: a string unchanged, anything else as JSON.
fn column_text(prompt: &Prompt, column: &str) -> Result<String, RewardError> {
    match prompt.columns.get(column) {
        Some(serde_json::Value::String(text)) => Ok(text.clone()),
        Some(serde_json::Value::Null) => Err(RewardError::new(format!("the column `{column}` is null"))),
        Some(value) => Ok(value.to_string()),
        None => {
            let names: Vec<String> = prompt.columns.keys().map(|name| format!("`{name}`")).collect();
            let found = if names.is_empty() { "only the prompt".into() } else { names.join(", ") };
            Err(RewardError::new(format!("the row has no column `{column}` (found {found})")))
        }
    }
}

/// Creates a configuration error about the reward, without a location: the caller adds the position of the value.
fn config_error(message: String, hint: Option<String>) -> Error {
    Error::Config(vec![Diagnostic { message, locations: Vec::new(), hint }])
}

#[cfg(test)]
pub(crate) mod test_rollouts {
    use serde_json::{Map, Value};

    use crate::rollout::{Prompt, Rollout, Rollouts, StopReason};

    /// One rollout per row: prompt text, columns, completion. A completion has one id per word, plus a stop id.
    pub fn rollouts<'a>(rows: impl IntoIterator<Item = (&'a str, Value, &'a str)>) -> Rollouts {
        let mut made = Rollouts { prompts: Vec::new(), rollouts: Vec::new(), group_size: 1, tokenizer: None };
        for (row, (prompt, columns, completion)) in rows.into_iter().enumerate() {
            let columns = match columns {
                Value::Object(columns) => columns,
                _ => Map::new(),
            };
            made.prompts.push(Prompt {
                row,
                text: prompt.into(),
                ids: vec![1],
                encoder_reads_prompt: false,
                messages: None,
                columns,
            });
            let tokens = completion.split_whitespace().count() + 1;
            made.rollouts.push(Rollout::one_turn(row, completion, vec![2; tokens], StopReason::StopId));
        }
        made
    }

    /// Rollouts of these completions, without other columns.
    pub fn completions<'a>(texts: impl IntoIterator<Item = &'a str>) -> Rollouts {
        rollouts(texts.into_iter().map(|text| ("prompt", Value::Null, text)))
    }

    /// Stores the reports, and ends the work after a given number of them.
    #[derive(Default)]
    pub struct Reports {
        pub calls: std::cell::RefCell<Vec<(usize, usize)>>,
        pub stops_after: Option<usize>,
    }

    impl crate::progress::Progress for Reports {
        fn advance(&self, what: &'static str, done: usize, total: usize) -> crate::Result<()> {
            assert_eq!(what, "scored");
            let mut calls = self.calls.borrow_mut();
            calls.push((done, total));
            if self.stops_after == Some(calls.len()) { Err(crate::Error::Interrupted) } else { Ok(()) }
        }
    }

    /// Returns the reports of a reward while it scores rollouts.
    pub fn reports(reward: &mut dyn super::Reward, rollouts: &Rollouts) -> Vec<(usize, usize)> {
        let reports = Reports::default();
        super::apply_with_progress(reward, rollouts, &reports).expect("every completion is scored");
        reports.calls.into_inner()
    }

    /// Returns the sequence-level value of each rollout.
    pub fn totals(reward: &mut dyn super::Reward, rollouts: &Rollouts) -> Vec<f32> {
        let scores = super::apply(reward, rollouts).expect("every completion is scored");
        scores.iter().map(|score| score.total().expect("scored")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::test_rollouts::{completions, rollouts, totals};
    use super::*;

    fn no_model(learned: Learned<'_>) -> crate::Result<Box<dyn Reward>> {
        Err(Error::input(format!("no reward model `{}` here", learned.name())))
    }

    #[test]
    fn a_configuration_becomes_a_reward() {
        let yaml = "mix:
          - { weight: 2, reward: { rule: { substring: good } } }
          - { weight: -1, reward: { rule: { length: { target: 4 } } } }";
        let config: RewardConfig = serde_saphyr::from_str(yaml).expect("a mix");
        let mut reward = build(&config, &no_model, &crate::metric::NoModels, &Interrupt::default()).expect("buildable");
        // A length of 2 words with target and tolerance 4 scores 1 − 2/4.
        assert_eq!(totals(&mut *reward, &completions(["good kettle", "a plain grey kettle"])), [1.5, -1.0]);
    }

    #[test]
    fn a_failure_names_the_row_and_the_reward() {
        let mut reward = ExactMatchReward::new("answer");
        let made =
            rollouts([("p", serde_json::json!({ "answer": "a" }), "a"), ("p", serde_json::json!({ "reply": 1 }), "a")]);
        let error = apply(&mut reward, &made).unwrap_err();
        assert_eq!(
            error.to_string(),
            "reward for prompt 2: `exact_match`: the row has no column `answer` (found `reply`)"
        );
    }

    #[test]
    fn values_that_are_not_finite_and_wrong_lengths_are_refused() {
        let made = completions(["one two"]);
        let mut not_a_number = FnReward::new("mine", |_, _| Ok(Some(f32::NAN)));
        let error = apply(&mut not_a_number, &made).unwrap_err();
        assert_eq!(error.to_string(), "reward for prompt 1: `mine`: the reward is NaN, but a finite number is needed");

        struct Short;
        impl Reward for Short {
            fn name(&self) -> String {
                "short".into()
            }
            fn score(&mut self, rollouts: &Rollouts) -> Scores {
                rollouts.rollouts.iter().map(|_| Ok(Score::sequence(1.0, 1))).collect()
            }
        }
        let error = apply(&mut Short, &made).unwrap_err();
        assert_eq!(error.to_string(), "reward for prompt 1: `short`: 1 values for a completion of 3 tokens");
    }
}
