//! Rewards by a classifier: how well a label fits a text built from prompt, completion and columns.

use burn::tensor::Device;

use super::config::ClassifierConfig;
use super::label::{ClassifierValue, LabelName};
use super::{Reward, RewardError, Score, Scores, config_error, interrupted, report};
use crate::batches::MicroBatch;
use crate::data::{TextForm, column_text};
use crate::error::{Error, Result};
use crate::host::read;
use crate::model::{Classifier, ModelDir, Reading, Scope, Task, Text, WeightFormat};
use crate::progress::{Progress, Unwatched};
use crate::rollout::{Prompt, Rollout, Rollouts};
use crate::text::think::without_thoughts_after;
use crate::text::{Joined, Pattern, Tokenizer};

/// Default template of the input text.
const TEXT: &str = "{prompt}{completion}";

/// A classifier with its own tokenizer, and the part of its output that is the reward.
///
/// Text between `<think>` and `</think>` is not part of the answer and is left out.
pub struct ClassifierReward {
    model: Classifier,
    tokenizer: Tokenizer,
    text: Pattern,
    form: TextForm,
    label: usize,
    value: ClassifierValue,
    passes: MicroBatch,
}

impl ClassifierReward {
    /// Loads the classifier in `dir` onto `device`, which tracks no gradients. `weights` sets the format of its
    /// weights.
    ///
    /// # Errors
    /// If `dir` holds no text classifier, `config` does not fit it, or a file is missing or corrupt.
    pub fn load(
        dir: &ModelDir,
        config: &ClassifierConfig,
        device: &Device,
        weights: WeightFormat,
        passes: MicroBatch,
    ) -> Result<Self> {
        let task = Task::of(dir)?;
        let refuse = |(message, hint): (String, String)| config_error(message, Some(hint));
        if task.scope == Scope::Token {
            let message = format!("`{}` classifies tokens, but a reward needs a classifier of texts", config.model);
            let hint =
                "use a `…ForSequenceClassification` model; `fine_grained` rewards segments by a classifier of tokens";
            return Err(refuse((message, hint.into())));
        }
        let (label, value) =
            resolve_label(&task, &config.model, config.label.as_ref(), config.value).map_err(refuse)?;
        let model = Classifier::load_packed(dir, weights, device)?.into_frozen(weights);
        let tokenizer = Tokenizer::of_model(dir.tokenizer_dir(), &dir.path)?;
        dir.check_vocabulary(tokenizer.vocab_size())?;
        let pattern = |text: &str| Pattern::parse(text).map_err(|message| config_error(message, None));
        let text = pattern(config.text.as_deref().unwrap_or(TEXT))?;
        let pair = config.pair.as_deref().map(pattern).transpose()?;
        let limit = [model.encoder.max_positions(), tokenizer.longest()].into_iter().flatten().min();
        let cut = config.truncate.zip(limit).map(|(side, limit)| side.to(limit));
        let form = TextForm { text: None, pair, cut };
        Ok(Self { model, tokenizer, text, form, label, value, passes })
    }

    /// Returns the ids that the classifier reads for a rollout.
    fn read(&self, prompt: &Prompt, rollout: &Rollout) -> Result<Joined, RewardError> {
        let (prompt_text, answer_text) = without_thoughts_after(&prompt.text, &rollout.completion);
        let value = |name: &str| match name {
            "prompt" => Ok(prompt_text.to_string()),
            "completion" => Ok(answer_text.to_string()),
            column => column_text(&prompt.columns, column).map_err(RewardError::new),
        };
        let first = self.text.fill(value)?;
        let second = self.form.pair.as_ref().map(|pair| pair.fill(value)).transpose()?;
        let joined = self.tokenizer.encode_joined(&first, second.as_deref(), self.form.cut);
        let joined = joined.map_err(|error: Error| RewardError::from(&error))?;
        self.model.encoder.check(&text(&joined)).map_err(|message| {
            let error = RewardError::new(message);
            match self.model.encoder.max_positions().is_some_and(|limit| limit < joined.ids.len()) {
                true => {
                    error.with_hint("`truncate: right` cuts texts at their end, `truncate: left` at their beginning")
                }
                false => error,
            }
        })?;
        Ok(joined)
    }
}

/// Computes the configured value of a label from logits.
pub(super) fn number(task: &Task, logits: &[f32], label: usize, value: ClassifierValue) -> f32 {
    match value {
        ClassifierValue::Logit => logits[label],
        ClassifierValue::LogOdds => task.log_odds(logits, label),
        ClassifierValue::Probability => task.probabilities(logits).expect("labels have probabilities")[label],
    }
}

/// Resolves the configured label of a task to its index, and the value of it to use.
pub(super) fn resolve_label(
    task: &Task,
    model: &str,
    label: Option<&LabelName>,
    value: Option<ClassifierValue>,
) -> Result<(usize, ClassifierValue), (String, String)> {
    let labels = || task.labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ");
    let label = match (label, task.labels.len()) {
        (Some(name), _) => task.label(&name.0).map_err(|message| (message, format!("name one of {}", labels())))?,
        (None, 1) => 0,
        (None, _) => {
            let message = format!("`{model}` has several labels, and none is set as the rewarded one");
            return Err((message, format!("set `label` to one of {}", labels())));
        }
    };
    let value = match (value, task.reading) {
        (None, Reading::Values) => ClassifierValue::Logit,
        (None, _) => ClassifierValue::Probability,
        (Some(value), Reading::Values) if value != ClassifierValue::Logit => {
            let message = format!("`{model}` outputs plain numbers, which have no probability");
            return Err((message, "set `value` to `logit`, or leave it out".into()));
        }
        (Some(value), _) => value,
    };
    Ok((label, value))
}

fn text(joined: &Joined) -> Text<'_> {
    Text { ids: &joined.ids, types: &joined.types, global: None }
}

impl Reward for ClassifierReward {
    fn name(&self) -> String {
        "classifier".into()
    }

    fn score(&mut self, rollouts: &Rollouts) -> Scores {
        self.score_with_progress(rollouts, &Unwatched)
    }

    fn score_with_progress(&mut self, rollouts: &Rollouts, progress: &dyn Progress) -> Scores {
        let texts: Vec<Result<Joined, RewardError>> =
            rollouts.rollouts.iter().map(|rollout| self.read(&rollouts.prompts[rollout.prompt], rollout)).collect();
        let good: Vec<Text<'_>> = texts.iter().flatten().map(text).collect();
        let lengths: Vec<usize> = good.iter().map(|text| text.ids.len()).collect();
        let (labels, mut values) = (self.model.task().labels.len(), Vec::with_capacity(good.len()));
        for pass in self.passes.split(&lengths) {
            let logits = read(&self.model.logits(&self.model.batch(&good[pass])).flatten(0, 1));
            let value = |logits: &[f32]| number(self.model.task(), logits, self.label, self.value);
            values.extend(logits.chunks_exact(labels).map(value));
            if report(progress, values.len(), rollouts.len()).is_err() {
                return interrupted(rollouts);
            }
        }
        let mut values = values.into_iter();
        let mut score = |(text, rollout): (&Result<Joined, RewardError>, &Rollout)| {
            let value = text.as_ref().map(|_| values.next().expect("one value per text")).map_err(Clone::clone)?;
            Ok(Score::sequence(value, rollout.completion_ids.len()))
        };
        texts.iter().zip(&rollouts.rollouts).map(&mut score).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::reward::test_rollouts::{reports, rollouts, totals};

    const PASSES: MicroBatch = MicroBatch::new(64, None);

    fn fixture(name: &str) -> ModelDir {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/encoders").join(name);
        ModelDir::open(&path).expect("a fixture")
    }

    fn config(yaml: &str) -> ClassifierConfig {
        serde_saphyr::from_str(&format!("model: m\n{yaml}")).expect("a configuration")
    }

    fn load(name: &str, yaml: &str) -> Result<ClassifierReward> {
        ClassifierReward::load(&fixture(name), &config(yaml), &Device::flex(), WeightFormat::F32, PASSES)
    }

    /// The text of the fixture, as prompt and completion.
    fn tea() -> Rollouts {
        rollouts([
            ("The kettle sings before", json!({ "reference": "the cup is cold" }), " the tea is poured."),
            ("a warm ", json!({ "reference": "the cup is cold" }), "cup"),
        ])
    }

    /// Logits of text `i` of a fixture, computed by transformers.
    fn logits(name: &str, i: usize) -> Vec<f32> {
        let text = std::fs::read_to_string(fixture(name).path.join("expected.json")).expect("a fixture");
        let expected: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        serde_json::from_value(expected["texts"][i]["logits"].clone()).expect("logits")
    }

    #[test]
    fn the_value_of_a_label_is_the_reward() {
        let z = logits("bert", 0);
        let sum: f32 = z.iter().map(|z| z.exp()).sum();
        let p = z[2].exp() / sum;
        for (yaml, expected) in [
            ("label: good", p),
            ("label: 2\nvalue: probability", p),
            ("label: '2'\nvalue: logit", z[2]),
            ("label: good\nvalue: log_odds", (p / (1.0 - p)).ln()),
        ] {
            let found = totals(&mut load("bert", yaml).expect("loads"), &tea())[0];
            assert!((found - expected).abs() < 1e-4, "{yaml}: {found} instead of {expected}");
        }
    }

    #[test]
    fn every_pass_is_reported() {
        let passes = MicroBatch::new(1, None);
        let mut reward = ClassifierReward::load(
            &fixture("bert"),
            &config("label: good"),
            &Device::flex(),
            WeightFormat::F32,
            passes,
        )
        .expect("loads");
        assert_eq!(reports(&mut reward, &tea()), [(0, 2), (1, 2), (2, 2)]);
    }

    #[test]
    fn a_second_text_comes_from_a_column() {
        let yaml = "label: bad\nvalue: logit\ntext: '{prompt}{completion}'\npair: '{reference}'";
        let found = totals(&mut load("bert", yaml).expect("loads"), &tea())[1];
        assert!((found - logits("bert", 1)[0]).abs() < 1e-4, "{found}");
    }

    #[test]
    fn what_is_too_long_is_an_error_unless_it_is_cut() {
        let long = "the tea is warm and ".repeat(20);
        let made = rollouts([("a", json!({}), "b"), ("a", json!({}), long.as_str())]);
        let scores = load("bert", "label: good").expect("loads").score(&made);
        assert!(scores[0].is_ok());
        let error = scores[1].as_ref().expect_err("too long");
        assert!(error.message.ends_with("tokens, but the model has 30 positions"), "{error}");
        assert!(error.hint.as_ref().expect("a hint").starts_with("`truncate: right`"));
        for side in ["left", "right"] {
            let scores = load("bert", &format!("label: good\ntruncate: {side}")).expect("loads").score(&made);
            assert!(scores.iter().all(Result::is_ok));
        }
        let missing = load("bert", "label: good\ntext: '{intent}'").expect("loads").score(&tea());
        let error = missing[0].as_ref().expect_err("no such column");
        assert_eq!(error.message, "missing column `intent` (found `reference`)");
    }

    #[test]
    fn what_does_not_fit_the_classifier_is_told() {
        let error_of = |name: &str, yaml: &str| match load(name, yaml) {
            Err(Error::Config(found)) => (found[0].message.clone(), found[0].hint.clone().unwrap_or_default()),
            Err(other) => panic!("{name} is refused otherwise: {other}"),
            Ok(_) => panic!("{name} takes {yaml}"),
        };
        let labels = "`bad`, `so-so`, `good`";
        let (message, hint) = error_of("bert", "");
        assert_eq!(message, "`m` has several labels, and none is set as the rewarded one");
        assert_eq!(hint, format!("set `label` to one of {labels}"));
        let (message, _) = error_of("bert", "label: fine");
        assert!(message.contains(&format!("no label `fine`: the classifier has {labels}")), "{message}");
        let (message, _) = error_of("bert-token", "label: 0");
        assert!(message.contains("classifies tokens"), "{message}");
        let (message, _) = error_of("bert-regression", "value: probability");
        assert!(message.contains("have no probability"), "{message}");
        let (message, _) = error_of("bert", "label: good\ntext: '{prompt'");
        assert!(message.contains("has an unmatched"), "{message}");
        let value = totals(&mut load("bert-regression", "").expect("a value"), &tea())[0];
        assert!((value - logits("bert-regression", 0)[0]).abs() < 1e-4, "{value}");
    }
}
