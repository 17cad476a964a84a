//! Answers of a program for one completion.
//!
//! `null` for no judgement, a number for the whole completion, or an object of named parts. Each part is a number,
//! `null`, or a list of `[start, end, value]` in characters of the completion. The value of a segment is assigned to
//! its last token.

use std::ops::Range;

use serde_json::Value;

use crate::error::Result;
use crate::reward::place::last_token;
use crate::reward::{RewardPart, Score};

/// One answer line of a program.
#[derive(Debug, Clone, PartialEq)]
pub enum Judgement {
    /// Value of the whole completion, or `None` for no judgement.
    Whole(Option<f32>),
    /// Values by part, without those that do not apply.
    Parts(Vec<(String, PartValue)>),
}

/// Value of a part.
#[derive(Debug, Clone, PartialEq)]
pub enum PartValue {
    /// One value for the whole completion.
    Whole(f32),
    /// Values of ranges of characters.
    Segments(Vec<(Range<usize>, f32)>),
}

impl Judgement {
    /// Parses `line`; returns `None` for any other form.
    pub fn parse(line: &str) -> Option<Self> {
        Some(match serde_json::from_str(line.trim()).ok()? {
            Value::Null => Self::Whole(None),
            Value::Object(parts) => {
                let given = parts.into_iter().filter(|(_, part_value)| !part_value.is_null());
                Self::Parts(
                    given
                        .map(|(name, part_value)| Some((name, parse_part_value(&part_value)?)))
                        .collect::<Option<_>>()?,
                )
            }
            value => Self::Whole(Some(finite(&value)?)),
        })
    }

    /// Converts the answer to the score of a completion of `tokens` ids. `ranges` returns the byte range of each token
    /// in `completion` and is called only if a part has segments.
    ///
    /// # Errors
    /// The inner result fails if a part has an empty name, or a segment is outside the completion; the outer one if `ranges` fails.
    pub fn score(
        self,
        completion: &str,
        tokens: usize,
        ranges: impl FnOnce() -> Result<Vec<Range<usize>>>,
    ) -> Result<Result<Score, String>> {
        let parts = match self {
            Self::Whole(None) => return Ok(Ok(Score::unscored())),
            Self::Whole(Some(value)) => return Ok(Ok(Score::sequence(value, tokens))),
            Self::Parts(parts) => parts,
        };
        if parts.iter().any(|(name, _)| name.is_empty()) {
            return Ok(Err("a part has an empty name; name it, or print a number for a reward without parts".into()));
        }
        let has_segments = parts.iter().any(|(_, part_value)| matches!(part_value, PartValue::Segments(_)));
        let ranges_t = if has_segments { ranges()? } else { Vec::new() };
        let rewards_t = |part_value| match part_value {
            PartValue::Whole(value) => {
                let mut rewards_t = vec![0.0; tokens];
                rewards_t.last_mut().into_iter().for_each(|last| *last = value);
                Ok(rewards_t)
            }
            PartValue::Segments(segments) => spread(&segments, completion, &ranges_t),
        };
        let part = |(name, part_value): (String, PartValue)| match rewards_t(part_value) {
            Ok(rewards_t) => Ok(RewardPart { name, weight: 1.0, rewards_t }),
            Err(message) => Err(format!("`{name}`: {message}")),
        };
        Ok(parts.into_iter().map(part).collect::<Result<_, _>>().map(|parts| Score { parts, ..Score::default() }))
    }
}

/// Assigns the value of each segment to the last token that contributes to its text.
fn spread(segments: &[(Range<usize>, f32)], completion: &str, ranges_t: &[Range<usize>]) -> Result<Vec<f32>, String> {
    // Start of each character, and the end of the last one.
    let bytes: Vec<usize> = completion.char_indices().map(|(at, _)| at).chain([completion.len()]).collect();
    let mut rewards_t = vec![0.0; ranges_t.len()];
    for (Range { start, end }, value) in segments {
        if start >= end {
            return Err(format!("the segment [{start}, {end}] is empty: its start must be below its end"));
        }
        let Some(last) = bytes.get(*end).and_then(|end| last_token(ranges_t, *end)) else {
            let characters = bytes.len() - 1;
            return Err(format!("the segment [{start}, {end}] is not within the completion's {characters} characters"));
        };
        rewards_t[last] += value;
    }
    Ok(rewards_t)
}

fn parse_part_value(value: &Value) -> Option<PartValue> {
    let Value::Array(segments) = value else { return Some(PartValue::Whole(finite(value)?)) };
    let place = |value: &Value| usize::try_from(value.as_u64()?).ok();
    let segment = |segment: &Value| match segment.as_array()?.as_slice() {
        [start, end, value] => Some((place(start)?..place(end)?, finite(value)?)),
        _ => None,
    };
    Some(PartValue::Segments(segments.iter().map(segment).collect::<Option<_>>()?))
}

fn finite(value: &Value) -> Option<f32> {
    value.as_f64().map(|value| value as f32).filter(|value| value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_numbers_null_and_parts() {
        assert_eq!(Judgement::parse(" 1.5\n"), Some(Judgement::Whole(Some(1.5))));
        assert_eq!(Judgement::parse("null"), Some(Judgement::Whole(None)));
        let parts = Judgement::parse(r#"{"style": 2, "facts": [[0, 4, 1], [5, 9, -0.5]], "length": null}"#);
        let segments = PartValue::Segments(vec![(0..4, 1.0), (5..9, -0.5)]);
        assert_eq!(
            parts,
            Some(Judgement::Parts(vec![("style".into(), PartValue::Whole(2.0)), ("facts".into(), segments)]))
        );
        for wrong in [
            "yes",
            "true",
            "[1]",
            "1e300",
            "{\"a\": \"b\"}",
            "{\"a\": [[0, 1]]}",
            "{\"a\": [[-1, 2, 0]]}",
            "{\"a\": [[0.0, 1.0, 1]]}",
        ] {
            assert_eq!(Judgement::parse(wrong), None, "{wrong}");
        }
    }

    /// Four ids: `Grün `, the first byte of `é`, the rest of it and ` da`, and a stop id.
    fn score(line: &str) -> Result<Score, String> {
        let ranges_t = || Ok(vec![0..6, 6..6, 6..11, 11..11]);
        Judgement::parse(line).expect("an answer").score("Grün é da", 4, ranges_t).expect("ranges are known")
    }

    #[test]
    fn a_segment_stands_on_its_last_token() {
        let found = score(r#"{"a": [[0, 4, 1], [2, 6, 2], [8, 9, 4]], "b": 3, "c": []}"#).expect("within");
        let rewards: Vec<&[f32]> = found.parts.iter().map(|part| &*part.rewards_t).collect();
        // Characters 5 and 8 belong to the third id.
        assert_eq!(rewards, [[1.0, 0.0, 6.0, 0.0], [0.0, 0.0, 0.0, 3.0], [0.0; 4]]);
    }

    #[test]
    fn a_segment_that_is_empty_or_outside_the_completion_is_refused() {
        for (segment, expected) in [
            ("[3, 3, 1]", "`a`: the segment [3, 3] is empty: its start must be below its end"),
            ("[4, 3, 1]", "`a`: the segment [4, 3] is empty: its start must be below its end"),
            ("[8, 10, 1]", "`a`: the segment [8, 10] is not within the completion's 9 characters"),
        ] {
            assert_eq!(score(&format!("{{\"a\": [{segment}]}}")), Err(expected.to_owned()));
        }
    }

    #[test]
    fn a_part_without_a_name_is_refused() {
        let message = score(r#"{"": 1, "b": 2}"#).expect_err("no name");
        assert_eq!(message, "a part has an empty name; name it, or print a number for a reward without parts");
    }

    #[test]
    fn no_ranges_are_asked_for_where_no_segment_is() {
        let parts = Judgement::parse(r#"{"a": 1, "b": 2}"#).expect("an answer");
        let found = parts.score("", 2, || panic!("not needed")).expect("no ranges").expect("no segments");
        assert_eq!(found.total(), Some(3.0));
    }
}
