//! Rules that search for a text: a regular expression, a substring, equality with a column. The reward is 1 or 0.

use regex::Regex;

use super::{Reward, Scores, column_text, config_error, score_each};
use crate::rollout::Rollouts;

/// 1 if the pattern matches anywhere in the completion.
#[derive(Debug, Clone)]
pub struct RegexReward {
    pattern: Regex,
}

impl RegexReward {
    /// Creates the reward of a pattern in the syntax of the `regex` crate.
    ///
    /// # Errors
    /// If the pattern is not valid.
    pub fn new(pattern: &str) -> crate::Result<Self> {
        let pattern = Regex::new(pattern).map_err(|error| {
            let reason = match &error {
                // The parser's message shows the pattern with a caret over several lines; only its last line states the
                // problem.
                regex::Error::Syntax(text) => text.lines().last().unwrap_or_default().trim_start_matches("error: "),
                _ => "it is too large",
            };
            let hint = "look-around and back-references are not supported".to_string();
            config_error(format!("`{pattern}` is not a regular expression: {reason}"), Some(hint))
        })?;
        Ok(Self { pattern })
    }
}

impl Reward for RegexReward {
    fn name(&self) -> String {
        "regex".into()
    }

    fn score(&mut self, rollouts: &Rollouts) -> Scores {
        score_each(rollouts, |_, rollout| Ok(one_if(self.pattern.is_match(&rollout.completion))))
    }
}

/// 1 if the completion contains the text, with case and white space.
#[derive(Debug, Clone)]
pub struct SubstringReward {
    text: String,
}

impl SubstringReward {
    /// Creates the reward of a text.
    pub fn new(text: &str) -> Self {
        Self { text: text.into() }
    }
}

impl Reward for SubstringReward {
    fn name(&self) -> String {
        "substring".into()
    }

    fn score(&mut self, rollouts: &Rollouts) -> Scores {
        score_each(rollouts, |_, rollout| Ok(one_if(rollout.completion.contains(&self.text))))
    }
}

/// 1 if the completion equals the named column, apart from white space at the ends.
#[derive(Debug, Clone)]
pub struct ExactMatchReward {
    column: String,
}

impl ExactMatchReward {
    /// Creates the reward of a column.
    pub fn new(column: &str) -> Self {
        Self { column: column.into() }
    }
}

impl Reward for ExactMatchReward {
    fn name(&self) -> String {
        "exact_match".into()
    }

    fn score(&mut self, rollouts: &Rollouts) -> Scores {
        score_each(rollouts, |prompt, rollout| {
            let expected = column_text(prompt, &self.column)?;
            Ok(one_if(expected.trim() == rollout.completion.trim()))
        })
    }
}

fn one_if(holds: bool) -> f32 {
    if holds { 1.0 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::test_rollouts::{completions, rollouts, totals};
    use super::*;

    #[test]
    fn a_pattern_is_found_anywhere() {
        let mut reward = RegexReward::new(r"\b(good|great)\b").expect("valid");
        assert_eq!(totals(&mut reward, &completions(["a great day", "goodness", ""])), [1.0, 0.0, 0.0]);
    }

    #[test]
    fn a_broken_pattern_says_why() {
        let error = RegexReward::new("(a|b").unwrap_err();
        assert_eq!(error.to_string(), "`(a|b` is not a regular expression: unclosed group");
    }

    #[test]
    fn a_substring_is_found_as_written() {
        let texts = ["Thank you.", "thank you."];
        assert_eq!(totals(&mut SubstringReward::new("Thank"), &completions(texts)), [1.0, 0.0]);
    }

    #[test]
    fn a_column_is_compared_without_white_space_at_the_ends() {
        let made = rollouts([
            ("p", json!({ "answer": "yes\n" }), " yes"),
            ("p", json!({ "answer": "yes" }), "yes!"),
            ("p", json!({ "answer": 7 }), "7"),
        ]);
        assert_eq!(totals(&mut ExactMatchReward::new("answer"), &made), [1.0, 0.0, 1.0]);
    }
}
