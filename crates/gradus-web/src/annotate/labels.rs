//! Label sets: types of spans and of missing information, a correction, comparisons, and questions with a scale.
//!
//! A label set is a YAML file. Any part may be omitted; the page shows the parts of its label set.

use std::collections::HashSet;
use std::path::Path;

use gradus::{Error, Result};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

/// Maximum size of a file in bytes, and maximum number of types or questions of a kind.
const BYTES: u64 = 1 << 20;
const MOST: usize = 50;

/// Maximum number of steps of a scale, which the page shows as one button for each value.
const STEPS: u8 = 20;

/// Columns of exported rows. Answers to questions are further columns of these rows, under the names of the questions.
const COLUMNS: [&str; 5] = ["question", "passages", "gold", "feedback", "preference"];

/// Built-in label sets: name and YAML.
pub const BUILT_IN: &[(&str, &str)] = &[
    ("fine-grained", include_str!("sets/fine-grained.yml")),
    ("comparison", include_str!("sets/comparison.yml")),
    ("comparison-strength", include_str!("sets/comparison-strength.yml")),
    ("likert-imdb", include_str!("sets/likert-imdb.yml")),
    ("likert-commongen", include_str!("sets/likert-commongen.yml")),
    ("likert-dialogue", include_str!("sets/likert-dialogue.yml")),
    ("likert-summarisation", include_str!("sets/likert-summarisation.yml")),
    ("likert-totto", include_str!("sets/likert-totto.yml")),
];

/// A label set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabelSet {
    /// Name of the label set.
    pub name: String,
    /// Labeling policy, one paragraph each.
    #[serde(default)]
    pub instructions: Vec<String>,
    /// Example, one paragraph each.
    #[serde(default)]
    pub example: Vec<String>,
    /// Frequent questions about the policy, with answers.
    #[serde(default)]
    pub faq: Vec<FaqEntry>,
    /// Types of spans of the first answer. If several types fit, the first one takes precedence.
    #[serde(default)]
    pub spans: Vec<Type>,
    /// Types of information that the first answer lacks.
    #[serde(default)]
    pub missing: Vec<Type>,
    /// Whether the first answer is corrected.
    #[serde(default)]
    pub correction: bool,
    /// Whether all pairs of answers are compared.
    #[serde(default)]
    pub comparison: bool,
    /// Strengths of a preference, from the weakest. If empty, only the preferred answer is requested.
    #[serde(default)]
    pub strengths: Vec<Strength>,
    /// Questions about the first answer, each with a scale.
    #[serde(default)]
    pub questions: Vec<Question>,
}

/// A question about the policy, and its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaqEntry {
    /// Question.
    pub question: String,
    /// Answer to the question.
    pub answer: String,
}

/// Strength of a preference.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Strength {
    /// Name in files.
    pub name: String,
    /// Text on the page.
    pub label: String,
    /// Minimum difference of the rewards of the two answers: the `margin` of preference rows.
    pub margin: f64,
}

/// A type of spans, or of missing information.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Type {
    /// Name in files.
    pub name: String,
    /// Text on the page.
    pub label: String,
    /// Color, `#RRGGBB`.
    #[serde(alias = "color")]
    pub color: String,
    /// Additional information required for a span of this type.
    #[serde(default)]
    pub asks: Asks,
    /// Reminder on the page.
    #[serde(default)]
    pub note: String,
}

/// Additional information required for a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Asks {
    /// Nothing.
    #[default]
    Nothing,
    /// The earlier text of the answer that the span repeats.
    EarlierText,
    /// The passage and sentences that the span contradicts.
    Sentences,
}

/// A question with a scale.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// Name in files.
    pub name: String,
    /// Text on the page.
    pub question: String,
    /// Lowest value.
    #[serde(deserialize_with = "end_of_scale")]
    pub from: u8,
    /// Highest value.
    #[serde(deserialize_with = "end_of_scale")]
    pub to: u8,
    /// Meaning of the lowest value.
    #[serde(default)]
    pub low: String,
    /// Meaning of the highest value.
    #[serde(default)]
    pub high: String,
}

/// Describes the scales that a question may have.
fn possible_scales() -> String {
    format!("a scale is of whole numbers from 0 to {}, the lowest one first, with at most {STEPS} steps", u8::MAX)
}

fn end_of_scale<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<u8, D::Error> {
    let end = i64::deserialize(deserializer)?;
    u8::try_from(end).map_err(|_| D::Error::custom(format!("a scale has the end {end}, but {}", possible_scales())))
}

impl LabelSet {
    /// Opens the label set `name`: a built-in one, or a file.
    ///
    /// # Errors
    /// It does not exist or is invalid.
    pub fn open(name: &str) -> Result<Self> {
        if let Some((_, text)) = BUILT_IN.iter().find(|(known, _)| *known == name) {
            return Self::read(text, name);
        }
        let path = Path::new(name);
        let known: Vec<&str> = BUILT_IN.iter().map(|(known, _)| *known).collect();
        let size = std::fs::metadata(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Error::input(format!("there is no label set `{name}`"))
                .with_hint(format!("pass a YAML file, or one of {}", known.join(", "))),
            _ => Error::io(path, error),
        })?;
        if !size.is_file() || size.len() > BYTES {
            return Err(Error::input(format!("`{name}`: a label set is a file of at most {BYTES} bytes")));
        }
        Self::read(&std::fs::read_to_string(path).map_err(|error| Error::io(path, error))?, name)
    }

    /// Parses a label set. Messages refer to it as `name`.
    ///
    /// # Errors
    /// It is invalid.
    pub fn read(text: &str, name: &str) -> Result<Self> {
        let set: Self = serde_saphyr::from_str(text)
            .map_err(|error| Error::input(format!("`{name}`: {}", error.without_snippet())))?;
        match set.problem() {
            Some(problem) => Err(Error::input(format!("`{name}`: {problem}"))),
            None => Ok(set),
        }
    }

    fn problem(&self) -> Option<String> {
        let names = self.spans.iter().chain(&self.missing).map(|kind| &kind.name);
        let names: Vec<&String> = names.chain(self.questions.iter().map(|question| &question.name)).collect();
        let mut seen = HashSet::new();
        if let Some(twice) = names.iter().find(|name| !seen.insert(name.as_str())) {
            return Some(format!("`{twice}` is given twice"));
        }
        if let Some(taken) = self.questions.iter().find(|question| is_column(&question.name)) {
            return Some(format!(
                "the question `{}` has the name of a column of exported rows; choose another name",
                taken.name
            ));
        }
        let is_color = |color: &str| {
            color
                .strip_prefix('#')
                .is_some_and(|digits| digits.len() == 6 && digits.bytes().all(|b| b.is_ascii_hexdigit()))
        };
        let types = || self.spans.iter().chain(&self.missing);
        if let Some(wrong) = types().find(|kind| !is_color(&kind.color)) {
            return Some(format!(
                "the color of `{}` is `{}`, but one such as `#137752` is needed",
                wrong.name, wrong.color
            ));
        }
        if let Some(wrong) =
            self.questions.iter().find(|question| question.from >= question.to || question.to - question.from > STEPS)
        {
            let Question { name, from, to, .. } = wrong;
            return Some(format!("the scale of `{name}` goes from {from} to {to}, but {}", possible_scales()));
        }
        let mut seen = HashSet::new();
        if let Some(twice) = self.strengths.iter().find(|strength| !seen.insert(strength.name.as_str())) {
            return Some(format!("the strength `{}` is given twice", twice.name));
        }
        // Reward models read margins as f32.
        let is_fine = |margin: f64| (margin as f32).is_finite() && margin >= 0.0;
        if let Some(wrong) = self.strengths.iter().find(|of| !is_fine(of.margin)) {
            return Some(format!("the margin of `{}` is {}, but 0 or more is needed", wrong.name, wrong.margin));
        }
        if !self.strengths.is_empty() && !self.comparison {
            return Some("`strengths` need comparisons, but `comparison` is not set".into());
        }
        if names.len() + self.strengths.len() > MOST {
            return Some(format!("{} types and questions are more than {MOST}", names.len()));
        }
        let asks_nothing = names.is_empty() && !self.correction && !self.comparison;
        asks_nothing.then(|| {
            "it has no tasks for annotators: set `spans`, `missing`, `correction`, `comparison` or \
                      `questions`"
                .to_owned()
        })
    }

    /// Returns whether people look at a single answer, instead of only comparing several.
    pub fn is_about_one(&self) -> bool {
        self.correction || !(self.spans.is_empty() && self.missing.is_empty() && self.questions.is_empty())
    }
}

/// Returns whether exported rows have this column, apart from the questions.
fn is_column(name: &str) -> bool {
    COLUMNS.contains(&name) || name.strip_prefix("prediction ").is_some_and(|number| number.parse::<usize>().is_ok())
}

/// Background colors of the light and dark mode (`style.css`).
const LIGHT: [f64; 3] = [255.0, 255.0, 255.0];
const DARK: [f64; 3] = [23.0, 23.0, 22.0];

/// Minimum contrast between a mark and the background, from 1 to 21, for meaningful parts of a page (WCAG 2.2, 1.4.11).
const CONTRAST: f64 = 3.0;

/// Computes WCAG's relative luminance of an sRGB color, 0 to 1.
fn luminance(color: [f64; 3]) -> f64 {
    let linear = |value: f64| {
        let value = value / 255.0;
        if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
    };
    0.2126 * linear(color[0]) + 0.7152 * linear(color[1]) + 0.0722 * linear(color[2])
}

/// Computes WCAG's contrast of two colors.
fn contrast(one: [f64; 3], other: [f64; 3]) -> f64 {
    let (one, other) = (luminance(one), luminance(other));
    (one.max(other) + 0.05) / (one.min(other) + 0.05)
}

/// Mixes a color with as little white or black as necessary to be visible on `paper`.
fn seen_on(paper: [f64; 3], color: [f64; 3]) -> [f64; 3] {
    let away = if luminance(paper) > 0.5 { 0.0 } else { 255.0 };
    let mixed = |part: f64| color.map(|value| (value + part * (away - value)).round());
    let parts = (0..=20).map(|part| mixed(f64::from(part) / 20.0));
    parts.clone().find(|color| contrast(paper, *color) >= CONTRAST).unwrap_or_else(|| mixed(1.0))
}

/// Returns the colors of a label set as a style sheet, for light and dark mode.
pub fn stylesheet(labels: &LabelSet) -> String {
    let rgb = |text: &str| {
        let part = |at: usize| text.get(at..at + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        [1, 3, 5].map(|at| f64::from(part(at).unwrap_or(128)))
    };
    let rules = |paper: [f64; 3]| -> String {
        let types = labels.spans.iter().chain(&labels.missing).enumerate();
        let rule = |(at, kind): (usize, &Type)| {
            let [r, g, b] = seen_on(paper, rgb(&kind.color));
            format!(".kind-{at} {{ --kind: rgb({r} {g} {b}); }}\n")
        };
        types.map(rule).collect()
    };
    format!("{}@media (prefers-color-scheme: dark) {{\n{}}}\n", rules(LIGHT), rules(DARK))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_seen_on_both_papers() {
        // Black on white has the maximum contrast, 21. #777777 on white is known to have 4.48.
        assert!((contrast([0.0; 3], LIGHT) - 21.0).abs() < 1e-9);
        assert!((contrast([119.0; 3], LIGHT) - 4.48).abs() < 5e-3);
        for (color, paper) in
            [([17.0; 3], DARK), ([0.0, 65.0, 194.0], DARK), ([255.0, 128.0, 204.0], LIGHT), ([255.0; 3], LIGHT)]
        {
            assert!(contrast(paper, color) < CONTRAST, "{color:?} needs help");
            let seen = seen_on(paper, color);
            assert!((CONTRAST..7.0).contains(&contrast(paper, seen)), "{color:?} became {seen:?}");
        }
        assert_eq!(seen_on(LIGHT, [19.0, 119.0, 82.0]), [19.0, 119.0, 82.0], "what is seen stays");
        let css = stylesheet(&LabelSet::open("fine-grained").expect("a label set"));
        assert_eq!(css.matches(".kind-").count(), 16, "{css}");
        assert!(css.contains("dark) {\n.kind-0"), "{css}");
    }

    #[test]
    fn those_that_come_along_are_read() {
        for (name, _) in BUILT_IN {
            LabelSet::open(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        let set = LabelSet::open("fine-grained").expect("a label set");
        let names: Vec<&str> = set.spans.iter().map(|kind| kind.name.as_str()).collect();
        assert_eq!(names, ["Irrelevant", "Redundant", "Wrong-Grounding", "Unverifiable", "Incoherent"]);
        assert_eq!((set.spans[1].asks, set.spans[2].asks), (Asks::EarlierText, Asks::Sentences));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, word) in [
            ("name: x", "has no tasks for annotators"),
            ("name: x\nspans:\n  - { name: a, label: A, color: red }", "the color of `a` is `red`"),
            (
                "name: x\nmissing:\n  - { name: a, label: A, color: \"#000000\" }\n  - { name: a, label: B, color: \"#000000\" }",
                "`a` is given twice",
            ),
            ("name: x\nstrengths: [{ name: a, label: A, margin: 1 }]", "`comparison` is not set"),
            ("name: x\ncomparison: true\nstrengths: [{ name: a, label: A, margin: -1 }]", "the margin of `a` is -1"),
            (
                "name: x\ncomparison: true\nstrengths: [{ name: a, label: A, margin: 1 }, { name: a, label: B, margin: 1 }]",
                "the strength `a` is given twice",
            ),
            ("name: x\nquestions:\n  - { name: a, question: A, from: 5, to: 1 }", "from 5 to 1"),
            (
                "name: x\nquestions:\n  - { name: a, question: A, from: 0, to: 100 }",
                "the scale of `a` goes from 0 to 100, but a scale is of whole numbers from 0 to 255, the lowest one first, with at most 20 steps",
            ),
            (
                "name: x\nquestions:\n  - { name: a, question: A, from: -3, to: 3 }",
                "a scale has the end -3, but a scale is",
            ),
            (
                "name: x\nquestions:\n  - { name: gold, question: A, from: 1, to: 5 }",
                "the question `gold` has the name of a column of exported rows",
            ),
            ("name: x\nquestions:\n  - { name: prediction 2, question: A, from: 1, to: 5 }", "`prediction 2`"),
            ("name: x\ncolor: red", "color"),
            ("[", "`x.yml`"),
        ] {
            let message = LabelSet::read(text, "x.yml").expect_err("wrong").to_string();
            assert!(message.contains(word), "{message}");
        }
        // Label sets of earlier versions use this spelling.
        let old = "name: x\nspans:\n  - { name: a, label: A, color: \"#112233\" }";
        assert_eq!(LabelSet::read(old, "x.yml").expect("a set").spans[0].color, "#112233");
        let missing = LabelSet::open("nothing.yml").expect_err("missing");
        assert!(missing.hint().is_some_and(|hint| hint.contains("fine-grained")));
    }
}
