//! Finds rows that teach little or nothing: ties, equal answers, short answers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::ImplicitPrompt;
use super::implicit::split_shared_prompt;
use super::row::{Content, Row, RowData};
use crate::text::Tokenizer;
use crate::{Error, Result};

/// Rules for leaving out rows. By default none is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RowFilter {
    /// Leave out pairs that the data marks as ties: `margin` is 0, or both answers have the same score (`score_chosen` and
    /// `score_rejected`, `chosen_score` and `rejected_score`, `chosen_rating` and `rejected_rating`). Default false.
    pub drop_ties: bool,
    /// Leave out pairs with equal answers. White space around an answer does not count. Default false.
    pub drop_equal: bool,
    /// Leave out rows with an answer of fewer characters than this. An answer is `completion`, `chosen`, `rejected`, the last
    /// message of the assistant, or the whole of a plain text. White space around it does not count. Default 0: none.
    pub min_characters: usize,
    /// Leave out rows with an answer of fewer tokens than this. Default 0: none.
    pub min_tokens: usize,
}

/// Number of rows that a [`RowFilter`] left out. A row counts once, for the first reason that applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Dropped {
    /// Rows checked.
    pub rows: usize,
    /// Pairs marked as ties.
    pub ties: usize,
    /// Pairs with equal answers.
    pub equal: usize,
    /// Rows with a short answer.
    pub short: usize,
}

/// Names of columns with the two scores of a pair.
const SCORES: [[&str; 2]; 3] =
    [["score_chosen", "score_rejected"], ["chosen_score", "rejected_score"], ["chosen_rating", "rejected_rating"]];

/// Returns whether the data marks a pair as a tie: its margin is 0, or its answers have the same score.
pub fn is_tie(row: &Row) -> bool {
    let margin = match &row.data {
        RowData::Preference { margin, .. } | RowData::TokenPreference { margin, .. } => *margin,
        _ => return false,
    };
    margin == Some(0.0) || SCORES.iter().any(|[chosen, rejected]| same_score(&row.columns, chosen, rejected))
}

fn same_score(columns: &Map<String, Value>, chosen: &str, rejected: &str) -> bool {
    let score = |name: &str| columns.get(name).and_then(Value::as_f64);
    score(chosen).is_some_and(|chosen| score(rejected) == Some(chosen))
}

/// Returns whether both answers of a pair are equal, ignoring white space around them.
pub fn has_equal_answers(row: &Row) -> bool {
    match &row.data {
        RowData::Preference { chosen, rejected, .. } => chosen.plain().trim() == rejected.plain().trim(),
        RowData::TokenPreference { chosen_ids, rejected_ids, .. } => chosen_ids == rejected_ids,
        _ => false,
    }
}

/// Returns the answers that a row trains on, without white space around them. For a pair, the chosen answer is first.
pub fn answers(row: &Row, rule: ImplicitPrompt) -> Vec<String> {
    let texts = match &row.data {
        RowData::Text(text) => vec![text.clone()],
        RowData::Messages(messages) => {
            let last = messages.iter().rfind(|message| message.role == "assistant");
            last.map(|message| message.content.clone()).into_iter().collect()
        }
        RowData::PromptCompletion { completion, .. } | RowData::Unpaired { completion, .. } => {
            vec![last_of(completion)]
        }
        RowData::Instruction { answer, .. } => vec![answer.clone()],
        RowData::Preference { prompt: Some(_), chosen, rejected, .. } => vec![last_of(chosen), last_of(rejected)],
        RowData::Preference { prompt: None, chosen, rejected, .. } => match split_shared_prompt(chosen, rejected, rule)
        {
            Ok((_, chosen, rejected)) => vec![last_of(&chosen), last_of(&rejected)],
            Err(_) => vec![last_of(chosen), last_of(rejected)],
        },
        RowData::Prompt(_)
        | RowData::Tokens { .. }
        | RowData::TokenPreference { .. }
        | RowData::Columns
        | RowData::Words(_)
        | RowData::Feedback(_) => Vec::new(),
    };
    texts.into_iter().map(|text| text.trim().to_owned()).collect()
}

/// Returns an answer as text. Of several messages it is the last one, the assistant's.
fn last_of(content: &Content) -> String {
    match content {
        Content::Text(text) => text.clone(),
        Content::Messages(messages) => messages.last().map(|message| message.content.clone()).unwrap_or_default(),
    }
}

/// Reason for leaving a row out.
enum Reason {
    Tie,
    Equal,
    Short,
}

impl RowFilter {
    /// Returns whether the filter can leave out rows.
    pub fn is_on(&self) -> bool {
        *self != Self::default()
    }

    /// Returns the remaining rows in their order, and the counts of the others. [`Row::index`] does not change.
    ///
    /// # Errors
    /// [`Error::Input`] if no row remains, or if `min_tokens` is set without a `tokenizer`; errors of the tokenizer.
    pub fn apply(
        &self,
        rows: Vec<Row>,
        rule: ImplicitPrompt,
        tokenizer: Option<&Tokenizer>,
    ) -> Result<(Vec<Row>, Dropped)> {
        let mut dropped = Dropped { rows: rows.len(), ..Dropped::default() };
        if !self.is_on() || rows.is_empty() {
            return Ok((rows, dropped));
        }
        let mut kept = Vec::with_capacity(rows.len());
        for row in rows {
            match self.reason(&row, rule, tokenizer)? {
                None => kept.push(row),
                Some(Reason::Tie) => dropped.ties += 1,
                Some(Reason::Equal) => dropped.equal += 1,
                Some(Reason::Short) => dropped.short += 1,
            }
        }
        if kept.is_empty() {
            let message = format!("no row is left: {}", dropped.remark().unwrap_or_default());
            return Err(Error::input(message).with_hint(dropped.hint()));
        }
        Ok((kept, dropped))
    }

    fn reason(&self, row: &Row, rule: ImplicitPrompt, tokenizer: Option<&Tokenizer>) -> Result<Option<Reason>> {
        if self.drop_ties && is_tie(row) {
            return Ok(Some(Reason::Tie));
        }
        if self.drop_equal && has_equal_answers(row) {
            return Ok(Some(Reason::Equal));
        }
        if self.min_characters == 0 && self.min_tokens == 0 {
            return Ok(None);
        }
        let answers = answers(row, rule);
        if answers.iter().any(|answer| answer.chars().count() < self.min_characters) {
            return Ok(Some(Reason::Short));
        }
        if self.min_tokens == 0 {
            return Ok(None);
        }
        if let RowData::TokenPreference { chosen_ids, rejected_ids, .. } = &row.data {
            let shortest = chosen_ids.len().min(rejected_ids.len());
            return Ok((shortest < self.min_tokens).then_some(Reason::Short));
        }
        let Some(tokenizer) = tokenizer else {
            return Err(Error::input("`min_tokens` needs a tokenizer").with_hint("name a model with `--model`"));
        };
        for answer in &answers {
            if tokenizer.encode(answer, false)?.len() < self.min_tokens {
                return Ok(Some(Reason::Short));
            }
        }
        Ok(None)
    }
}

impl Dropped {
    /// Returns the number of rows left out.
    pub fn count(&self) -> usize {
        self.ties + self.equal + self.short
    }

    /// Returns a hint that names the filters that left no row.
    fn hint(&self) -> String {
        let off = [(self.ties, "--filter-drop-ties"), (self.equal, "--filter-drop-equal")];
        let off = off.into_iter().filter(|(count, _)| *count > 0).map(|(_, flag)| format!("leave out `{flag}`"));
        let lower = "lower `--filter-min-characters` or `--filter-min-tokens`".to_owned();
        let advice: Vec<String> = off.chain((self.short > 0).then_some(lower)).collect();
        format!("{} (keys of `train.filter`)", advice.join(", "))
    }

    /// Returns a sentence about the rows left out, or `None` if every row remains.
    pub fn remark(&self) -> Option<String> {
        let ties = if self.ties == 1 { "tie" } else { "ties" };
        let parts = [(self.ties, ties), (self.equal, "with equal answers"), (self.short, "with a short answer")];
        let parts = parts.into_iter().filter(|(count, _)| *count > 0);
        let named: Vec<String> = parts.map(|(count, what)| format!("{count} {what}")).collect();
        let (count, rows) = (self.count(), self.rows);
        (count > 0).then(|| format!("{count} of {rows} rows are left out: {}", named.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::RowLocation;

    fn pair(chosen: &str, rejected: &str, margin: Option<f32>, columns: Value) -> Row {
        let text = |text: &str| Content::Text(text.into());
        let data =
            RowData::Preference { prompt: Some(text("Tea?")), chosen: text(chosen), rejected: text(rejected), margin };
        let Value::Object(columns) = columns else { unreachable!() };
        Row {
            location: RowLocation { file: std::path::Path::new("pairs.jsonl").into(), line: 1, row_in_array: None },
            index: 0,
            data,
            columns,
        }
    }

    #[test]
    fn each_row_is_left_out_for_its_first_reason() {
        let none = || serde_json::json!({});
        let rows = || {
            vec![
                pair(" Yes, please.", " No, thanks.", Some(1.0), none()),
                pair(" Yes, please.", " No, thanks.", Some(0.0), none()),
                pair(
                    " Yes, please.",
                    " No, thanks.",
                    None,
                    serde_json::json!({"score_chosen": 3, "score_rejected": 3.0}),
                ),
                pair(" Yes, please.", "Yes, please. ", None, none()),
                pair(" Yes, please.", " No", None, none()),
            ]
        };
        let rule = ImplicitPrompt::default();
        let all = RowFilter { drop_ties: true, drop_equal: true, min_characters: 3, min_tokens: 0 };
        let (kept, dropped) = all.apply(rows(), rule, None).expect("one row stays");
        assert_eq!((kept.len(), dropped), (1, Dropped { rows: 5, ties: 2, equal: 1, short: 1 }));
        let expected = "4 of 5 rows are left out: 2 ties, 1 with equal answers, 1 with a short answer";
        assert_eq!(dropped.remark().as_deref(), Some(expected));
        let (kept, dropped) = RowFilter::default().apply(rows(), rule, None).expect("all stay");
        assert_eq!((kept.len(), dropped.count(), dropped.remark()), (5, 0, None));
        let strict = RowFilter { min_characters: 100, ..RowFilter::default() };
        let error = strict.apply(rows(), rule, None).expect_err("nothing stays").to_string();
        assert!(error.starts_with("no row is left: 5 of 5 rows"), "{error}");
        let tokens = RowFilter { min_tokens: 2, ..RowFilter::default() };
        let error = tokens.apply(rows(), rule, None).expect_err("no tokenizer").to_string();
        assert!(error.contains("`min_tokens` needs a tokenizer"), "{error}");
    }
}
