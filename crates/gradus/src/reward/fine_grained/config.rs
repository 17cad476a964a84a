//! Keys of `reward.fine_grained`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::reward::label::{ClassifierValue, LabelName};
use crate::text::{Level, Pattern};

/// Parts of a reward, by the names under which they are logged. The reward of a token is the weighted sum of the values
/// that the parts assign to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct FineGrainedConfig(pub BTreeMap<String, SegmentConfig>);

/// A model that judges the segments of a completion, and the rewards for its output. The reward of a segment is
/// assigned to its last token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SegmentConfig {
    /// The model: a token classifier (which reads all segments at once, each after a separator), a text classifier, or
    /// a reward model; a directory or a hub name.
    pub model: String,
    /// Judged unit: the `whole` completion, each `sentence`, or each `sub_sentence`. Default: `sentence` for token
    /// classifiers, `whole` for others.
    #[serde(default)]
    pub segments: Option<Level>,
    /// Text that a token classifier reads before the segments. Column names and `prompt` in braces are replaced by
    /// their text. Default `{prompt}`.
    #[serde(default)]
    pub prompt: Option<String>,
    /// Text that other models read for each segment: `{prompt}`, `{completion}`, `{segment}`, `{so_far}` (the
    /// completion up to the end of the segment) and the names of columns in braces are replaced. Default:
    /// `{prompt}{so_far}`, which for the whole is prompt and completion.
    #[serde(default)]
    pub text: Option<String>,
    /// Column that holds a list, such as `passages`. The model is run once per element, which `prompt` or `text` names
    /// as `{passages}`, or as `{passages.content}` if it has fields. The lowest value over the elements counts; for an
    /// empty list, the highest of `values`. Needs `values`. Default: the model is run once.
    #[serde(default)]
    pub each: Option<String>,
    /// Divide the reward of a whole completion evenly among its segments of this level, instead of placing all of it on
    /// the last token. Default: the last token.
    #[serde(default)]
    pub spread: Option<Level>,
    /// Word before each segment that a token classifier reads. Default `</s>`.
    #[serde(default)]
    pub separator: Option<String>,
    /// Reward of a segment by its most probable label among the listed ones, at least two. Without `values` the reward
    /// is a number: the score of a reward model, or of a classifier the number that `label` and `value` select.
    #[serde(default)]
    pub values: BTreeMap<String, f64>,
    /// Label whose `value` counts. Default: the only one, if the model has one.
    #[serde(default)]
    pub label: Option<LabelName>,
    /// Value of the label. Default: its probability, or the number itself for a regression model.
    #[serde(default)]
    pub value: Option<ClassifierValue>,
    /// Use the change of the number as reward: the number of the text up to the segment's end minus that of the text
    /// before it (0 before the first segment). Default false.
    #[serde(default)]
    pub change: bool,
    /// Token that gets the reward of a segment.
    #[serde(default)]
    pub segment_end: SegmentEnd,
    /// A number s becomes ((s − mean) / std) · scale + bias. Default: the mean of the training scores that the model's
    /// directory stores, otherwise 0.
    #[serde(default)]
    pub mean: Option<f64>,
    /// See `mean`. Default: the standard deviation of the training scores that the model's directory stores, otherwise
    /// 1.
    #[serde(default)]
    pub std: Option<f64>,
    /// See `mean`. Default 0.
    #[serde(default)]
    pub bias: f64,
    /// See `mean`. Default 1.
    #[serde(default = "one")]
    pub scale: f64,
    /// Factor of the part in the sum. 0 measures the part without rewarding it. Default 1.
    #[serde(default = "one")]
    pub weight: f64,
    /// Maximum number of tokens that the model reads; longer texts lose their end, and lost segments get the reward 0.
    /// Default: the length that the model was trained with, if its directory states it, otherwise its number of
    /// positions.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub max_length: Option<usize>,
}

/// Token that gets the reward of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SegmentEnd {
    /// The token that writes the last character that is not white space.
    #[default]
    Text,
    /// The token at the length of the text up to the segment's end, tokenized again (FineGrainedRLHF). A blank at the
    /// end of a part of a sentence may be a token of its own; the reward is then on the first token of the next part.
    Retokenised,
}

fn one() -> f64 {
    1.0
}

impl SegmentConfig {
    /// Creates the settings of `model` with all other keys at their defaults.
    pub fn of(model: impl Into<String>) -> Self {
        Self {
            model: model.into(),
            segments: None,
            prompt: None,
            text: None,
            each: None,
            spread: None,
            separator: None,
            values: BTreeMap::new(),
            label: None,
            value: None,
            change: false,
            segment_end: SegmentEnd::Text,
            mean: None,
            std: None,
            bias: 0.0,
            scale: 1.0,
            weight: 1.0,
            max_length: None,
        }
    }

    /// Returns the mistakes in its values, by key.
    pub(crate) fn mistakes(&self) -> Vec<(&'static str, String)> {
        let mut found = Vec::new();
        let mut unless = |holds: bool, key: &'static str, message: String| {
            if !holds {
                found.push((key, message));
            }
        };
        unless(!self.model.trim().is_empty(), "model", "it is empty".into());
        for (key, pattern) in [("prompt", &self.prompt), ("text", &self.text)] {
            if let Some(Err(message)) = pattern.as_deref().map(Pattern::parse) {
                unless(false, key, message);
            }
        }
        unless(
            self.prompt.is_none() || self.text.is_none(),
            "text",
            "a classifier of tokens reads a `prompt`, others a `text`".into(),
        );
        unless(self.values.len() != 1, "values", "one label is not a choice: name two or more".into());
        for (key, value) in
            [("scale", self.scale), ("bias", self.bias), ("weight", self.weight), ("mean", self.mean.unwrap_or(0.0))]
        {
            unless(value.is_finite(), key, format!("it is {value}, but a finite number is needed"));
        }
        let std = self.std.unwrap_or(1.0);
        unless(std > 0.0 && std.is_finite(), "std", format!("it is {std}, but a number above 0 is needed"));
        unless(self.values.values().all(|value| value.is_finite()), "values", "a value is not a finite number".into());
        unless(self.max_length != Some(0), "max_length", "it is 0".into());
        let has_values = !self.values.is_empty();
        let of_numbers = [
            ("label", self.label.is_some()),
            ("value", self.value.is_some()),
            ("mean", self.mean.is_some()),
            ("std", self.std.is_some()),
            ("bias", self.bias != 0.0),
            ("scale", self.scale != 1.0),
            ("change", self.change),
        ];
        for (key, given) in of_numbers {
            unless(!(has_values && given), key, "it applies to numbers, but `values` sets the values of labels".into());
        }
        let needs_values = "without `values`, an empty list has no value";
        unless(self.each.is_none() || has_values, "each", needs_values.into());
        let whole = self.segments == Some(Level::Whole);
        let is_divided = self.segments.is_some_and(|level| level != Level::Whole);
        let divided = "`segments` divide the completion already: leave one of them out";
        unless(self.spread.is_none() || !is_divided, "spread", divided.into());
        let pieces = "a completion is spread over each `sentence` or `sub_sentence`";
        unless(self.spread != Some(Level::Whole), "spread", pieces.into());
        unless(
            !(self.change && whole),
            "change",
            "a whole completion has no changes: set `segments` to `sentence`".into(),
        );
        found
    }
}
