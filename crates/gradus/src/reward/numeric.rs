//! A numeric answer, as in GSM8K: compares the completion's number to the row's.

use super::{Reward, RewardError, Scores, column_text, score_each};
use crate::rollout::Rollouts;

/// 1 if the completion's answer equals that of the named column as a number, otherwise 0.
///
/// The answer is the first number after the last `####`, or else the last number of the text. A completion without a
/// number is a wrong answer; a column without one is an error.
#[derive(Debug, Clone)]
pub struct NumericAnswerReward {
    column: String,
}

impl NumericAnswerReward {
    /// Creates the reward of a column that holds a number or a text that ends in one.
    pub fn new(column: &str) -> Self {
        Self { column: column.into() }
    }
}

impl Reward for NumericAnswerReward {
    fn name(&self) -> String {
        "numeric_answer".into()
    }

    fn score(&mut self, rollouts: &Rollouts) -> Scores {
        score_each(rollouts, |prompt, rollout| {
            let text = column_text(prompt, &self.column)?;
            let expected = last_number(&text).ok_or_else(|| {
                RewardError::new(format!("the column `{}` holds no number (found `{text}`)", self.column))
            })?;
            Ok(if last_number(&rollout.completion).as_ref() == Some(&expected) { 1.0 } else { 0.0 })
        })
    }
}

/// Returns the numeric answer of a text in a normal form: no commas, no `+`, no leading or trailing zeros, no `-0`.
///
/// Answers are compared as text, so no digit is lost to rounding.
fn last_number(text: &str) -> Option<String> {
    let marked = text.rfind("####").and_then(|at| numbers(&text[at + 4..]).into_iter().next());
    marked.or_else(|| numbers(text).pop())
}

/// Returns all numbers of a text in order: an optional sign that does not follow a word or a number, an optional `$`
/// after it, digits with commas between groups of three, and an optional fraction.
fn numbers(text: &str) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    let digit = |i: usize| chars.get(i).is_some_and(char::is_ascii_digit);
    let (mut found, mut i) = (Vec::new(), 0);
    while i < chars.len() {
        let starts = digit(i) || (chars[i] == '.' && digit(i + 1));
        if !starts {
            i += 1;
            continue;
        }
        let negative = is_negative(&chars[..i]);
        let (mut whole, mut fraction, mut grouped) = (String::new(), String::new(), false);
        while digit(i) {
            whole.push(chars[i]);
            i += 1;
            let group_follows = chars.get(i) == Some(&',') && (1..=3).all(|k| digit(i + k)) && !digit(i + 4);
            if group_follows && (grouped || whole.len() <= 3) {
                grouped = true;
                i += 1;
            }
        }
        if chars.get(i) == Some(&'.') && digit(i + 1) {
            i += 1;
            while digit(i) {
                fraction.push(chars[i]);
                i += 1;
            }
        }
        found.push(normal_form(negative, &whole, &fraction));
    }
    found
}

/// Whether the characters before a number's digits make it negative: a minus that is neither a subtraction nor a
/// hyphen.
fn is_negative(before: &[char]) -> bool {
    let before = before.strip_suffix(&['$']).unwrap_or(before);
    match before {
        [rest @ .., '-' | '−'] => !rest.last().is_some_and(|c| c.is_alphanumeric() || matches!(c, ')' | '%')),
        _ => false,
    }
}

fn normal_form(negative: bool, whole: &str, fraction: &str) -> String {
    let (whole, fraction) = (whole.trim_start_matches('0'), fraction.trim_end_matches('0'));
    let whole = if whole.is_empty() { "0" } else { whole };
    let sign = if negative && (whole != "0" || !fraction.is_empty()) { "-" } else { "" };
    if fraction.is_empty() { format!("{sign}{whole}") } else { format!("{sign}{whole}.{fraction}") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::test_rollouts::{rollouts, totals};
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<&str>) {
        assert_eq!(last_number(text).as_deref(), expected, "{text}");
    }

    #[test]
    fn the_answer_of_a_text() {
        check("2/2=<<2/2=1>>1 bolt\nSo it takes 2+1=<<2+1=3>>3\n#### 3", Some("3"));
        check("#### 70,000", Some("70000"));
        check("#### $1,234,567.50", Some("1234567.5"));
        check("#### -12 degrees, and 5 more", Some("-12"));
        check("I think 7, no: it is 8.", Some("8"));
        check("first #### 3 and then #### 4", Some("4"));
        check("42 ####", Some("42"));
        check("no number here", None);
        check("", None);
    }

    #[test]
    fn signs_are_not_subtractions() {
        check("10-3", Some("3"));
        check("x-3", Some("3"));
        check("(2)-3", Some("3"));
        check("= -3", Some("-3"));
        check("−3", Some("-3"));
        check("-$3.20", Some("-3.2"));
        check("+3", Some("3"));
        check("-0.0", Some("0"));
    }

    #[test]
    fn commas_group_thousands_and_separate_lists() {
        check("1,2,3", Some("3"));
        check("12,345", Some("12345"));
        check("1,2345", Some("2345"));
        check("1,234,567", Some("1234567"));
        check("100, 200", Some("200"));
        check("3.14.", Some("3.14"));
        check("007.50", Some("7.5"));
        check(".5", Some("0.5"));
    }

    #[test]
    fn every_answer_of_gsm8k_is_found() {
        let Some(path) = crate::test_support::material("gsm8k/test.jsonl") else { return };
        let text = std::fs::read_to_string(path).expect("readable");
        for line in text.lines() {
            let row: serde_json::Value = serde_json::from_str(line).expect("JSON");
            let answer = row["answer"].as_str().expect("a text");
            let (_, number) = answer.rsplit_once("#### ").expect("the mark");
            check(answer, Some(&number.replace(',', "")));
        }
    }

    #[test]
    fn completions_are_compared_as_numbers() {
        let made = rollouts([
            ("p", json!({ "answer": "so\n#### 1,000" }), "it is 1000.00"),
            ("p", json!({ "answer": 18 }), "#### 18"),
            ("p", json!({ "answer": "18" }), "eighteen"),
            ("p", json!({ "answer": 2.5 }), "2.50 litres"),
        ]);
        assert_eq!(totals(&mut NumericAnswerReward::new("answer"), &made), [1.0, 1.0, 0.0, 1.0]);
    }

    #[test]
    fn a_column_without_a_number_is_an_error() {
        let made = rollouts([("p", json!({ "answer": "none" }), "3")]);
        let error = super::super::apply(&mut NumericAnswerReward::new("answer"), &made).unwrap_err();
        let expected = "reward for prompt 1: `numeric_answer`: the column `answer` holds no number (found `none`)";
        assert_eq!(error.to_string(), expected);
    }
}
