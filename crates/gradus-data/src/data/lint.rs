//! The linter finds rows that can be read and tokenized but teach the wrong thing.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use rayon::prelude::*;
use serde::Serialize;

use super::feedback::{Joined, conflicts, join};
use super::implicit::{split_shared_prompt, trl_boundary, turn_boundary};
use super::reader::extension;
use super::row::{Content, Request, Row, RowData};
use super::row_location::RowLocation;
use super::stats::parts;
use super::template_columns::TemplateColumns;
use super::tokenize::row_sequences;
use super::transcript::turns;
use super::{Message, TokenizeOptions, labels_of_rows, unpaired};
use crate::text::{ChatTemplate, Tokenizer};

/// Subject of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// A text, a message or a turn of a transcript is empty.
    EmptyTurn,
    /// `chosen` and `rejected` are equal.
    IdenticalPair,
    /// `chosen` or `rejected` begins by repeating the whole prompt.
    RepeatsPrompt,
    /// Roles are out of order or unknown, or an answer is not the assistant's.
    WrongRoles,
    /// The row equals an earlier one, with all its columns.
    DuplicateRow,
    /// The row has the content of an earlier one, but other columns, such as another label.
    SameContent,
    /// Longer than `max_length` in tokens.
    TooLong,
    /// No end-of-text or end-of-turn token carries loss, so the row never teaches the model to stop.
    NoStopToken,
    /// The row cannot be tokenized.
    Untokenizable,
    /// The prompt tokenizes differently alone than together with its completion.
    PromptMismatch,
    /// An answer contains the next turn of the transcript.
    ForeignTurn,
    /// Preferences among the answers of a row contradict each other.
    Contradiction,
    /// The question of an annotated row is not in its QA split exactly once, or has another reference there.
    Unjoined,
    /// Labels of words that teach nothing or are inconsistent.
    Labels,
    /// The two rules for finding the shared prompt of both answers disagree.
    AmbiguousPrompt,
    /// A field of a CSV file has so many lines that a stray quote may have merged other rows into it.
    ManyLines,
}

impl FindingKind {
    /// Returns the kind in words, for the heading of its findings.
    pub fn describe(self) -> &'static str {
        match self {
            Self::EmptyTurn => "empty turns",
            Self::IdenticalPair => "identical pairs",
            Self::RepeatsPrompt => "answers that repeat the prompt",
            Self::WrongRoles => "wrong roles",
            Self::DuplicateRow => "duplicated rows",
            Self::SameContent => "rows that differ from another one only in further columns",
            Self::TooLong => "rows over the length limit",
            Self::NoStopToken => "rows without an end to learn",
            Self::Untokenizable => "rows that cannot be tokenized",
            Self::PromptMismatch => "prompts that tokenize differently alone",
            Self::ForeignTurn => "answers that continue with another turn",
            Self::Contradiction => "preferences that contradict each other",
            Self::Unjoined => "questions that differ from the QA split",
            Self::Labels => "labels without effect, or with a wrong one",
            Self::AmbiguousPrompt => "pairs whose prompt depends on the rule",
            Self::ManyLines => "CSV fields that span many lines",
        }
    }

    /// Returns whether the finding needs no repair.
    pub fn is_remark(self) -> bool {
        matches!(
            self,
            Self::SameContent | Self::PromptMismatch | Self::AmbiguousPrompt | Self::TooLong | Self::ManyLines
        )
    }
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Kind of the finding.
    pub kind: FindingKind,
    /// Location of the row.
    pub location: RowLocation,
    /// Description of what was found.
    pub message: String,
}

/// All findings of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FindingGroup {
    /// The kind.
    pub kind: FindingKind,
    /// Number of rows.
    pub count: usize,
    /// First ten findings.
    pub first: Vec<Finding>,
}

/// Finds rows that teach the wrong thing. Checks of lengths and stop tokens need a tokenizer.
///
/// `options.max_length` and `options.too_long` must be those of the training run.
pub fn lint(
    rows: &[Row],
    tokenizer: Option<&Tokenizer>,
    template: Option<&ChatTemplate>,
    options: &TokenizeOptions,
) -> Vec<FindingGroup> {
    let mut findings: Vec<Vec<(FindingKind, String)>> = rows
        .par_iter()
        .map(|row| {
            let mut found = Vec::new();
            check_content(row, options, &mut found);
            check_lines(row, options, &mut found);
            match tokenizer {
                Some(tokenizer) => check_tokens(row, tokenizer, template, options, &mut found),
                None => check_template_columns(row, &mut found),
            }
            found
        })
        .collect();
    for (found, misfit) in findings.iter_mut().zip(labels_of_rows::misfits(rows)) {
        found.extend(misfit.map(|message| (FindingKind::Labels, message)));
    }
    for (found, wrong) in findings.iter_mut().zip(unpaired::wrong_labels(rows)) {
        found.extend(wrong.map(|message| (FindingKind::Labels, message)));
    }
    for (row, finding) in repetitions(rows) {
        findings[row].push(finding);
    }
    group(rows, findings)
}

/// Finds annotated rows that cannot be joined with the rows of their QA split.
pub fn lint_join(rows: &[Row], split: &[Row]) -> Vec<FindingGroup> {
    let location = |i: usize| &split[i].location;
    let found = join(rows, split).into_iter().map(|joined| match joined {
        Joined::Row(_) => None,
        Joined::OtherReference(i) => Some(format!("`gold` is not the first answer of {}", location(i))),
        Joined::Missing => Some("the question is not in the QA split".into()),
        Joined::Twice([first, second]) => {
            Some(format!("{} and {} have the same question", location(first), location(second)))
        }
    });
    group(
        rows,
        found.map(|message| message.into_iter().map(|message| (FindingKind::Unjoined, message)).collect()).collect(),
    )
}

const SHOWN: usize = 10;

fn group(rows: &[Row], findings: Vec<Vec<(FindingKind, String)>>) -> Vec<FindingGroup> {
    let mut groups: Vec<FindingGroup> = Vec::new();
    for (row, found) in rows.iter().zip(findings) {
        let mut seen = Vec::new();
        for (kind, message) in found {
            let at = groups.iter().position(|g| g.kind == kind).unwrap_or_else(|| {
                groups.push(FindingGroup { kind, count: 0, first: Vec::new() });
                groups.len() - 1
            });
            let group = &mut groups[at];
            if !seen.contains(&kind) {
                group.count += 1;
                seen.push(kind);
                if group.first.len() < SHOWN {
                    group.first.push(Finding { kind, location: row.location.clone(), message });
                }
            }
        }
    }
    groups.sort_by_key(|group| group.kind);
    groups
}

type Found = Vec<(FindingKind, String)>;

fn check_content(row: &Row, options: &TokenizeOptions, found: &mut Found) {
    match &row.data {
        RowData::Text(text) => check_blank("text", &Content::Text(text.clone()), found),
        RowData::Messages(messages) => {
            check_messages("messages", messages, found);
            check_roles(messages, true, found);
        }
        RowData::Prompt(prompt) => {
            check_blank("prompt", prompt, found);
            if let Content::Messages(messages) = prompt {
                check_roles(messages, false, found);
            }
        }
        RowData::PromptCompletion { prompt, completion } | RowData::Unpaired { prompt, completion, .. } => {
            check_blank("prompt", prompt, found);
            check_answer("completion", prompt, completion, found);
        }
        RowData::Instruction { request, answer, .. } => {
            let (request_in, request, answer_in) = match request {
                Request::Task { instruction, .. } => ("instruction", instruction, "output"),
                Request::Question(question) => ("question", question, "answer"),
            };
            check_blank(request_in, &Content::Text(request.clone()), found);
            check_answer(answer_in, &Content::Text(request.clone()), &Content::Text(answer.clone()), found);
        }
        RowData::Preference { prompt, chosen, rejected, .. } => {
            if chosen == rejected {
                found.push((FindingKind::IdenticalPair, "`chosen` and `rejected` are the same".into()));
            }
            match prompt {
                Some(prompt) => {
                    check_blank("prompt", prompt, found);
                    check_answer("chosen", prompt, chosen, found);
                    check_answer("rejected", prompt, rejected, found);
                }
                None => check_implicit(chosen, rejected, options, found),
            }
        }
        RowData::TokenPreference { chosen_ids, rejected_ids, .. } => {
            if chosen_ids == rejected_ids {
                found.push((FindingKind::IdenticalPair, "`chosen_ids` and `rejected_ids` are the same".into()));
            }
        }
        RowData::Feedback(feedback) => {
            check_blank("question", &Content::Text(feedback.question.clone()), found);
            for (i, answer) in feedback.answers.iter().enumerate() {
                check_blank(&format!("prediction {}", i + 1), &Content::Text(answer.clone()), found);
            }
            if let Some([a, b, c]) = feedback.preferences.as_ref().and_then(conflicts) {
                let message = format!("the preferences among the answers {a}, {b} and {c} contradict each other");
                found.push((FindingKind::Contradiction, message));
            }
        }
        // Rows of words are checked together, elsewhere.
        RowData::Tokens { .. } | RowData::Columns | RowData::Words(_) => {}
    }
}

/// Maximum number of lines that a field of a CSV file usually has.
const MANY_LINES: usize = 50;

/// Checks the number of lines. A quote that is closed far below merges the rows between into one field, and the file is still
/// valid.
fn check_lines(row: &Row, options: &TokenizeOptions, found: &mut Found) {
    if !matches!(extension(&row.location.file).as_deref(), Some("csv" | "tsv"))
        || matches!(row.data, RowData::Messages(_))
    {
        return;
    }
    let columns = row.columns.iter().filter_map(|(name, value)| Some((name.as_str(), value.as_str()?.to_owned())));
    for (name, text) in parts(row, options).into_iter().chain(columns) {
        let lines = text.split('\n').count();
        if lines > MANY_LINES {
            let message = format!("`{name}` spans {lines} lines; look for a stray quote where it begins");
            found.push((FindingKind::ManyLines, message));
        }
    }
}

fn check_blank(name: &str, content: &Content, found: &mut Found) {
    if let Content::Messages(messages) = content {
        return check_messages(name, messages, found);
    }
    if content.is_blank() {
        found.push((FindingKind::EmptyTurn, format!("`{name}` is empty")));
    }
}

fn check_messages(name: &str, messages: &[Message], found: &mut Found) {
    let empty = |m: &Message| m.content.trim().is_empty() && !m.extra.contains_key("tool_calls");
    if let Some(at) = messages.iter().position(empty) {
        found
            .push((FindingKind::EmptyTurn, format!("message {} of `{name}` ({}) is empty", at + 1, messages[at].role)));
    }
}

fn check_answer(name: &str, prompt: &Content, answer: &Content, found: &mut Found) {
    check_blank(name, answer, found);
    match (prompt, answer) {
        (Content::Text(prompt), Content::Text(answer)) => {
            if !prompt.trim().is_empty() && answer.trim_start().starts_with(prompt.trim()) {
                found.push((FindingKind::RepeatsPrompt, format!("`{name}` begins with the whole prompt")));
            }
            check_foreign_turn(name, answer, found);
        }
        (Content::Messages(prompt), Content::Messages(answer)) => {
            if !prompt.is_empty() && answer.starts_with(prompt) {
                found.push((FindingKind::RepeatsPrompt, format!("`{name}` begins with all messages of the prompt")));
            } else {
                check_roles(&[&prompt[..], answer].concat(), true, found);
            }
        }
        _ => {}
    }
}

fn check_foreign_turn(name: &str, answer: &str, found: &mut Found) {
    if answer.contains("\n\nHuman:") {
        let message = format!("`{name}` continues with `\\n\\nHuman:` after the answer");
        found.push((FindingKind::ForeignTurn, message));
    }
}

fn check_implicit(chosen: &Content, rejected: &Content, options: &TokenizeOptions, found: &mut Found) {
    for (name, side) in [("chosen", chosen), ("rejected", rejected)] {
        match side {
            Content::Text(text) => {
                if let Some(turn) = turns(text).iter().position(|turn| turn.text.trim().is_empty()) {
                    found.push((FindingKind::EmptyTurn, format!("turn {} of `{name}` is empty", turn + 1)));
                } else if text.trim().is_empty() {
                    found.push((FindingKind::EmptyTurn, format!("`{name}` is empty")));
                }
            }
            Content::Messages(messages) => {
                check_messages(name, messages, found);
                check_roles(messages, true, found);
            }
        }
    }
    let (Content::Text(c), Content::Text(r)) = (chosen, rejected) else { return };
    if c == r {
        return;
    }
    if let Ok((_, Content::Text(answer), Content::Text(other))) =
        split_shared_prompt(chosen, rejected, options.implicit_prompt)
    {
        check_foreign_turn("chosen", &answer, found);
        check_foreign_turn("rejected", &other, found);
    }
    if let (Some(by_turns), Some(by_characters)) = (turn_boundary(c, r), trl_boundary(c, r))
        && by_turns != by_characters
    {
        let words = c.get(by_turns..by_characters).map_or(String::new(), |s| s.chars().take(40).collect());
        let message = format!("TRL's rule moves `{}` from the answers to the prompt", words.escape_debug());
        found.push((FindingKind::AmbiguousPrompt, message));
    }
}

/// Checks the order of roles: at most one system message, first; then user and assistant alternate, and tools follow the assistant.
fn check_roles(messages: &[Message], answered: bool, found: &mut Found) {
    let mut wrong = |message: String| found.push((FindingKind::WrongRoles, message));
    let mut last: Option<&str> = None;
    for (i, message) in messages.iter().enumerate() {
        let role = message.role.as_str();
        let fits = match role {
            "system" | "developer" => last.is_none() || last == Some("system"),
            "user" => last != Some("user"),
            "assistant" => matches!(last, Some("user" | "tool")),
            "tool" => matches!(last, Some("assistant" | "tool")),
            _ => return wrong(format!("message {} has the unknown role `{role}`", i + 1)),
        };
        if !fits {
            let before = last.map_or("at the start".to_owned(), |last| format!("after `{last}`"));
            return wrong(format!("message {} is `{role}` {before}", i + 1));
        }
        last = Some(if role == "developer" { "system" } else { role });
    }
    let last = last.unwrap_or_default();
    if answered && last != "assistant" {
        wrong(format!("the last message is `{last}`, not `assistant`"));
    } else if !answered && last == "assistant" {
        wrong("the prompt ends with `assistant`".to_owned());
    }
}

/// Checks what the row gives to a chat template. With a tokenizer, rendering the row checks it.
fn check_template_columns(row: &Row, found: &mut Found) {
    if row.data.is_conversation()
        && let Err(message) = TemplateColumns::read(&row.columns)
    {
        found.push((FindingKind::Untokenizable, message));
    }
}

fn check_tokens(
    row: &Row,
    tokenizer: &Tokenizer,
    template: Option<&ChatTemplate>,
    options: &TokenizeOptions,
    found: &mut Found,
) {
    let sequences = match row_sequences(row, tokenizer, template, options) {
        Ok(sequences) => sequences,
        Err(message) => return found.push((FindingKind::Untokenizable, message)),
    };
    let stops = |id: u32| {
        Some(id) == tokenizer.eos_id()
            || (tokenizer.is_special(id) && Some(id) != tokenizer.bos_id() && Some(id) != tokenizer.pad_id())
    };
    for sequence in sequences {
        let length = sequence.ids.len();
        let most = options.max_length.unwrap_or(usize::MAX);
        let of = sequence.name.map_or(String::new(), |name| format!("`{name}`: "));
        if length > most {
            found.push((FindingKind::TooLong, format!("{of}{length} tokens, limit {most}")));
        }
        if sequence.mismatch {
            found
                .push((FindingKind::PromptMismatch, format!("{of}the prompt's last token merges with the completion")));
        }
        let kept = sequence.ids.iter().zip(&sequence.loss_mask).take(most);
        if sequence.learns && !kept.skip(1).any(|(id, counts)| *counts && stops(*id)) {
            let why = if length > most { "the cut removes the end" } else { "no end-of-text token carries loss" };
            found.push((FindingKind::NoStopToken, format!("{of}{why}")));
        }
    }
}

/// Returns a finding for each row that repeats an earlier one: the whole row, or its content with other columns.
fn repetitions(rows: &[Row]) -> Vec<(usize, (FindingKind, String))> {
    let hashes: Vec<(u64, u64)> = rows.par_iter().map(|row| (hash(&row.data), hash_columns(row))).collect();
    let mut by_content: HashMap<u64, usize> = HashMap::with_capacity(rows.len());
    let mut by_row: HashMap<(u64, u64), usize> = HashMap::with_capacity(rows.len());
    let mut found = Vec::new();
    for (i, hash) in hashes.into_iter().enumerate() {
        let has_content = |earlier: &usize| rows[*earlier].data == rows[i].data;
        let first = *by_content.entry(hash.0).or_insert(i);
        let equal = *by_row.entry(hash).or_insert(i);
        if equal != i && has_content(&equal) && rows[equal].columns == rows[i].columns {
            found.push((i, (FindingKind::DuplicateRow, format!("the same as {}", rows[equal].location))));
        } else if first != i && has_content(&first) && !matches!(rows[i].data, RowData::Columns) {
            let (these, those) = (&rows[i].columns, &rows[first].columns);
            let differs = |name: &&String| these.get(*name) != those.get(*name);
            let further = those.keys().filter(|name| !these.contains_key(*name));
            let names: Vec<String> =
                these.keys().chain(further).filter(differs).map(|name| format!("`{name}`")).collect();
            let message =
                format!("the same content as {}, with a difference in {}", rows[first].location, names.join(", "));
            found.push((i, (FindingKind::SameContent, message)));
        }
    }
    found
}

fn hash_columns(row: &Row) -> u64 {
    let mut hasher = DefaultHasher::new();
    row.columns.hash(&mut hasher);
    hasher.finish()
}

fn hash(data: &RowData) -> u64 {
    let mut hasher = DefaultHasher::new();
    match data {
        RowData::Text(text) => text.hash(&mut hasher),
        RowData::Messages(messages) => messages.iter().for_each(|m| (&m.role, &m.content).hash(&mut hasher)),
        RowData::PromptCompletion { prompt, completion } => (prompt.plain(), completion.plain()).hash(&mut hasher),
        RowData::Unpaired { prompt, completion, is_desirable } => {
            (prompt.plain(), completion.plain(), is_desirable).hash(&mut hasher);
        }
        RowData::Instruction { request, answer, .. } => (request, answer).hash(&mut hasher),
        RowData::Preference { prompt, chosen, rejected, .. } => {
            (prompt.as_ref().map(Content::plain), chosen.plain(), rejected.plain()).hash(&mut hasher);
        }
        RowData::Prompt(prompt) => prompt.plain().hash(&mut hasher),
        RowData::Columns => {}
        RowData::Words(words) => words.hash(&mut hasher),
        RowData::Feedback(feedback) => (&feedback.question, &feedback.answers).hash(&mut hasher),
        RowData::Tokens { ids, loss_mask, labels } => (ids, loss_mask, labels).hash(&mut hasher),
        RowData::TokenPreference { prompt_ids, chosen_ids, rejected_ids, .. } => {
            (prompt_ids, chosen_ids, rejected_ids).hash(&mut hasher);
        }
    }
    hasher.finish()
}
