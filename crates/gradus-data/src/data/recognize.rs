//! Recognizes the kind of a row from its columns, and reads the row.

use serde_json::{Map, Value};

use super::foreign::alpaca_history;
use super::message::{Message, kind_name, names};
use super::options::{LoadOptions, Need};
use super::row::{Content, Labels, Request, RowData, RowKind};
use super::transcript::use_line_feeds;
use super::{feedback, grounded, toxicity, unpaired, words};

/// Hint that lists the known row formats.
const FORMS: &str = "known forms: `text`; `messages`; `prompt` + `completion`, with or without `label`; `prompt` + `chosen` + `rejected`; \
                     `chosen` + `rejected`; `prompt`; `conversations` (ShareGPT); `instruction` + `output` (Alpaca); \
                     `question` + `answer`, with or without `passages`; `input_ids`; `chosen_ids` + `rejected_ids`";

/// Returns the kind of rows with these columns.
///
/// # Errors
/// If no format fits the purpose of the rows: a message and a hint.
pub fn recognize(columns: &Map<String, Value>, options: &LoadOptions) -> Result<RowKind, (String, String)> {
    if options.need == Need::Columns {
        return Ok(RowKind::Columns);
    }
    fitting(columns, options).first().map(|form| form.kind).ok_or_else(|| refusal(columns, options))
}

/// Returns a remark if rows with these columns fit a second form, with columns that the first one does not read. Without a purpose, no form
/// takes precedence, so there is no remark.
pub(super) fn other_form(columns: &Map<String, Value>, options: &LoadOptions) -> Option<String> {
    if matches!(options.need, Need::Any | Need::Columns) {
        return None;
    }
    let forms = fitting(columns, options);
    let (read, others) = forms.split_first()?;
    // A form that is a part of another one is no alternative to it.
    let is_alternative = |form: &&Form<'_>| !form.only(read).is_empty() && !read.only(form).is_empty();
    let other = others.iter().find(is_alternative)?;
    let listed = |names: &[&str]| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" + ");
    let (named, only_read) = (listed(&read.columns), listed(&read.only(other)));
    let other = listed(&other.columns);
    Some(format!(
        "the columns fit two forms: {named} takes precedence over {other} for this purpose; to read {other} instead, \
         leave out {only_read}"
    ))
}

/// A form that rows fit: their kind, and those of their columns that belong to it.
struct Form<'a> {
    kind: RowKind,
    columns: Vec<&'a str>,
}

impl<'a> Form<'a> {
    /// Returns the columns that do not belong to `other`.
    fn only(&self, other: &Form<'_>) -> Vec<&'a str> {
        self.columns.iter().copied().filter(|name| !other.columns.contains(name)).collect()
    }
}

/// Returns the forms that rows with these columns fit and that suit the purpose, by precedence.
fn fitting<'a>(columns: &Map<String, Value>, options: &'a LoadOptions) -> Vec<Form<'a>> {
    let has = |name: &str| columns.contains_key(name);
    let pair = has("chosen") && has("rejected");
    let text: &str = &options.text_column;
    let token_pair =
        (has("chosen_ids") && has("rejected_ids")) || (has("chosen_input_ids") && has("rejected_input_ids"));
    let token_columns = vec!["chosen_ids", "rejected_ids", "chosen_input_ids", "rejected_input_ids"];
    let candidates = [
        (feedback::fits(columns), RowKind::Feedback, vec!["question", "passages", "feedback"]),
        (grounded::fits(columns), RowKind::Grounded, vec!["question", "passages", "answer", "text"]),
        (toxicity::fits(columns), RowKind::ScoredContinuation, vec!["prompt", "continuation"]),
        (token_pair, RowKind::TokenPreference, token_columns),
        (pair && has("conversations"), RowKind::ShareGptPreference, vec!["conversations", "chosen", "rejected"]),
        (pair && has("prompt"), RowKind::Preference, vec!["prompt", "chosen", "rejected"]),
        (pair, RowKind::ImplicitPreference, vec!["chosen", "rejected"]),
        (unpaired::fits(columns, options.need), RowKind::Unpaired, unpaired::columns_read(columns)),
        (has("input_ids"), RowKind::Tokens, vec!["input_ids"]),
        (has("messages"), RowKind::Messages, vec!["messages"]),
        (has("prompt") && has("completion"), RowKind::PromptCompletion, vec!["prompt", "completion"]),
        (words::fits(columns), RowKind::Words, vec!["tokens", "text"]),
        (has(text), RowKind::Text, vec![text]),
        (has("conversations"), RowKind::ShareGpt, vec!["conversations"]),
        (has("instruction") && has("output"), RowKind::Alpaca, vec!["instruction", "output"]),
        (has("question") && has("answer"), RowKind::QuestionAnswer, vec!["question", "answer"]),
        (has("prompt"), RowKind::Prompt, vec!["prompt"]),
    ];
    let first = first_read(options.need);
    let mut forms: Vec<Form<'_>> = candidates
        .into_iter()
        .filter(|(found, kind, _)| *found && suits(*kind, columns, options.need))
        .map(|(_, kind, mut names)| {
            names.retain(|name| columns.contains_key(*name));
            Form { kind, columns: names }
        })
        .collect();
    // The sort is stable, so the other forms keep the order above.
    forms.sort_by_key(|form| first.iter().position(|kind| *kind == form.kind).unwrap_or(first.len()));
    forms
}

/// Returns the forms that take precedence over all others for this purpose. These are the columns that TRL 1.16 reads.
fn first_read(need: Need) -> &'static [RowKind] {
    match need {
        Need::Sft => &[RowKind::Tokens, RowKind::PromptCompletion, RowKind::Messages],
        Need::Score => &[RowKind::PromptCompletion],
        Need::Preference => &[RowKind::TokenPreference, RowKind::Preference],
        Need::Unpaired => &[RowKind::Unpaired, RowKind::Preference],
        // All of these sample from the column `prompt`.
        Need::Prompt => &[RowKind::ScoredContinuation, RowKind::Preference, RowKind::PromptCompletion, RowKind::Prompt],
        Need::Any | Need::Columns => &[],
    }
}

/// Whether rows of this kind, with these columns, suit the purpose.
fn suits(kind: RowKind, columns: &Map<String, Value>, need: Need) -> bool {
    let is_pair = matches!(
        kind,
        RowKind::TokenPreference | RowKind::ShareGptPreference | RowKind::Preference | RowKind::ImplicitPreference
    );
    match need {
        Need::Any | Need::Columns => true,
        // Undesirable completions must not be trained on silently. For other purposes, a label is a column like any other.
        Need::Sft => !matches!(
            kind,
            RowKind::Prompt | RowKind::TokenPreference | RowKind::Feedback | RowKind::Unpaired | RowKind::Words
        ),
        Need::Preference => is_pair,
        Need::Unpaired => kind == RowKind::Unpaired || (is_pair && kind != RowKind::TokenPreference),
        Need::Prompt => !matches!(
            kind,
            RowKind::TokenPreference
                | RowKind::Tokens
                | RowKind::Text
                | RowKind::Feedback
                | RowKind::Unpaired
                | RowKind::Words
        ),
        // Pairs have two scores, all other rows that can be trained on have one.
        Need::Score if is_pair => !columns.contains_key("completion") && !columns.contains_key("input_ids"),
        Need::Score => suits(kind, columns, Need::Sft),
    }
}

/// Explains that no format fits the purpose of the rows: a message and a hint.
fn refusal(columns: &Map<String, Value>, options: &LoadOptions) -> (String, String) {
    let has = |name: &str| columns.contains_key(name);
    if feedback::fits(columns) {
        let hint = "`gradus data convert --to preference` converts it to pairs, `--to r1` and `--to r2` to rows of \
                    segments with labels";
        return ("rows with feedback must be converted before training".into(), hint.into());
    }
    let column = match options.need {
        Need::Preference if has("chosen") => "rejected",
        Need::Preference => "chosen",
        Need::Unpaired if has("prompt") && has("completion") || has("messages") => "label",
        Need::Sft | Need::Score | Need::Unpaired if has("prompt") => "completion",
        Need::Sft => options.text_column.as_str(),
        Need::Prompt | Need::Score | Need::Unpaired => "prompt",
        Need::Any | Need::Columns => {
            let hint = format!("{FORMS}; name your own columns, such as `--column prompt=YOURS`");
            return (format!("no known form in the columns {}", names(columns)), hint);
        }
    };
    if options.need == Need::Unpaired
        && let Some(value) = columns.get(column).filter(|_| column == "label")
        && let Err(message) = unpaired::label(unpaired::label_column(options), value)
    {
        return (message, "write true or false, or 1 or 0, in this column: other words are not accepted".into());
    }
    let renamed = |column: &str| {
        let same = columns.keys().find(|name| name.trim().eq_ignore_ascii_case(column));
        same.map_or_else(|| format!("{column}=YOURS"), |name| format!("{column}={name}"))
    };
    let hint = match options.need {
        Need::Preference if columns.contains_key("label") => {
            "rows with a `label` are for `gradus kto`; pairs have `chosen` and `rejected`".to_owned()
        }
        Need::Preference => {
            let missing = ["prompt", "chosen", "rejected"].into_iter().filter(|name| !columns.contains_key(*name));
            let flags: Vec<String> = missing.map(|name| format!("--column {}", renamed(name))).collect();
            format!("pairs have `prompt`, `chosen` and `rejected`; name your own columns: `{}`", flags.join(" "))
        }
        Need::Prompt => format!("prompts have `prompt`; name your own column: `--column {}`", renamed("prompt")),
        Need::Any | Need::Columns | Need::Sft | Need::Unpaired | Need::Score => {
            format!("{FORMS}; `--column {column}=YOURS` names your own")
        }
    };
    (format!("missing column `{column}` (found {})", names(columns)), hint)
}

/// Returns the column with images, if there is one. TRL has them in these columns.
fn image_column(columns: &Map<String, Value>) -> Option<&'static str> {
    let is_empty = |value: &Value| value.is_null() || value.as_array().is_some_and(Vec::is_empty);
    ["image", "images"].into_iter().find(|name| columns.get(*name).is_some_and(|value| !is_empty(value)))
}

/// Reads a row as `kind`. Returns its data and the remaining columns.
pub(super) fn read_row(
    kind: RowKind,
    columns: Map<String, Value>,
    options: &LoadOptions,
) -> Result<(RowData, Map<String, Value>), String> {
    if !matches!(options.need, Need::Any | Need::Columns)
        && let Some(name) = image_column(&columns)
    {
        return Err(format!(
            "the column `{name}` has images, but gradus reads only text; to train without them, rename the column: \
             `--column unused={name}`"
        ));
    }
    let mut take = Columns { columns, found: String::new() };
    take.found = names(&take.columns);
    let mut data = match kind {
        RowKind::Text => RowData::Text(take.string(&options.text_column)?),
        RowKind::Messages => RowData::Messages(take.messages("messages")?),
        RowKind::ShareGpt => RowData::Messages(with_system(take.messages("conversations")?, &mut take)),
        RowKind::PromptCompletion => {
            let (prompt, completion) = (take.content("prompt")?, take.content("completion")?);
            same_form(&prompt, &completion, "completion")?;
            RowData::PromptCompletion { prompt, completion }
        }
        RowKind::QuestionAnswer => {
            // Rewards look for the answer in the columns, so it stays there too.
            let (question, answer) = (take.keep_string("question")?, take.keep_string("answer")?);
            RowData::Instruction { history: Vec::new(), request: Request::Question(question), answer }
        }
        RowKind::Alpaca => RowData::Instruction {
            history: alpaca_history(&mut take.columns)?,
            request: Request::Task {
                instruction: take.string("instruction")?,
                input: take.optional_string("input")?.unwrap_or_default(),
            },
            answer: take.string("output")?,
        },
        RowKind::Preference => take.preference(false)?,
        RowKind::ImplicitPreference => RowData::Preference {
            prompt: None,
            chosen: take.content("chosen")?,
            rejected: take.content("rejected")?,
            margin: take.margin()?,
        },
        RowKind::ShareGptPreference => take.preference(true)?,
        RowKind::Unpaired => take.unpaired(options)?,
        RowKind::Prompt => RowData::Prompt(take.content("prompt")?),
        RowKind::Tokens => take.tokens()?,
        RowKind::TokenPreference => take.token_preference()?,
        RowKind::Columns => RowData::Columns,
        RowKind::Grounded => {
            let row = grounded::read(&mut take.columns)?;
            RowData::PromptCompletion { prompt: Content::Text(row.prompt), completion: Content::Text(row.answer) }
        }
        RowKind::ScoredContinuation => {
            let row = toxicity::read(&mut take.columns)?;
            let (prompt, completion) = (Content::Text(row.prompt), Content::Text(row.continuation));
            RowData::PromptCompletion { prompt, completion }
        }
        RowKind::Words => RowData::Words(words::read(&mut take.columns)?),
        RowKind::Feedback => RowData::Feedback(Box::new(feedback::read(&mut take.columns)?)),
    };
    use_line_feeds(&mut data);
    // Rewards of sampled completions look for the right answer in the columns.
    if options.need == Need::Prompt
        && let Some((name, answer)) = data.answer()
    {
        take.columns.entry(name).or_insert_with(|| answer.into());
    }
    Ok((data, take.columns))
}

/// Turns ShareGPT's `system` column into the first message.
fn with_system(mut messages: Vec<Message>, take: &mut Columns) -> Vec<Message> {
    let starts_with_system = messages.first().is_some_and(|m| m.role == "system");
    if !starts_with_system && let Some(Value::String(system)) = take.columns.get("system") {
        if !system.trim().is_empty() {
            messages.insert(0, Message::new("system", system.clone()));
        }
        take.columns.shift_remove("system");
    }
    messages
}

fn same_form(prompt: &Content, other: &Content, name: &str) -> Result<(), String> {
    match (prompt, other) {
        (Content::Text(_), Content::Messages(_)) => {
            Err(format!("column `prompt` is a string but `{name}` is a list of messages"))
        }
        (Content::Messages(_), Content::Text(_)) => {
            Err(format!("column `prompt` is a list of messages but `{name}` is a string"))
        }
        _ => Ok(()),
    }
}

struct Columns {
    columns: Map<String, Value>,
    /// Names of the original columns, for messages.
    found: String,
}

impl Columns {
    fn take(&mut self, name: &str) -> Result<Value, String> {
        self.columns.shift_remove(name).ok_or_else(|| format!("missing column `{name}` (found {})", self.found))
    }

    fn string(&mut self, name: &str) -> Result<String, String> {
        match self.take(name)? {
            Value::String(text) => Ok(text),
            other => Err(format!("column `{name}` is {}, expected a string", kind_name(&other))),
        }
    }

    fn keep_string(&mut self, name: &str) -> Result<String, String> {
        match self.columns.get(name) {
            Some(Value::String(text)) => Ok(text.clone()),
            _ => self.string(name),
        }
    }

    fn optional_string(&mut self, name: &str) -> Result<Option<String>, String> {
        match self.columns.get(name) {
            None | Some(Value::Null) => {
                self.columns.shift_remove(name);
                Ok(None)
            }
            Some(_) => self.string(name).map(Some),
        }
    }

    fn content(&mut self, name: &str) -> Result<Content, String> {
        match self.take(name)? {
            Value::String(text) => Ok(Content::Text(text)),
            list @ Value::Array(_) => messages_of(name, &list).map(Content::Messages),
            one @ Value::Object(_) => messages_of(name, &Value::Array(vec![one])).map(Content::Messages),
            other => Err(format!("column `{name}` is {}, expected a string or a list of messages", kind_name(&other))),
        }
    }

    fn messages(&mut self, name: &str) -> Result<Vec<Message>, String> {
        let value = self.take(name)?;
        messages_of(name, &value)
    }

    fn margin(&mut self) -> Result<Option<f32>, String> {
        let found = match self.columns.shift_remove("margin") {
            None | Some(Value::Null) => return Ok(None),
            // An empty cell of a CSV file.
            Some(Value::String(text)) if text.trim().is_empty() => return Ok(None),
            Some(Value::Number(number)) => number.as_f64(),
            Some(Value::String(text)) => text.trim().parse().ok(),
            Some(other) => return Err(format!("column `margin` is {}, expected a number", kind_name(&other))),
        };
        match found {
            Some(margin) if margin.is_finite() => Ok(Some(margin as f32)),
            _ => Err("column `margin` is not a finite number".into()),
        }
    }

    fn preference(&mut self, share_gpt: bool) -> Result<RowData, String> {
        let prompt = if share_gpt {
            let messages = self.messages("conversations")?;
            Content::Messages(with_system(messages, self))
        } else {
            // Some data sets have the question as text, and answers that are whole conversations.
            let text = matches!(self.columns.get("prompt"), Some(Value::String(_)));
            if text && matches!(self.columns.get("chosen"), Some(Value::Array(_))) {
                let (chosen, rejected, margin) = (self.content("chosen")?, self.content("rejected")?, self.margin()?);
                return Ok(RowData::Preference { prompt: None, chosen, rejected, margin });
            }
            self.content("prompt")?
        };
        let (chosen, rejected, margin) = (self.content("chosen")?, self.content("rejected")?, self.margin()?);
        same_form(&prompt, &chosen, "chosen")?;
        same_form(&prompt, &rejected, "rejected")?;
        Ok(RowData::Preference { prompt: Some(prompt), chosen, rejected, margin })
    }

    fn unpaired(&mut self, options: &LoadOptions) -> Result<RowData, String> {
        let (prompt, completion) = match unpaired::is_conversation(&self.columns) {
            true => unpaired::split(self.messages("messages")?)?,
            false => (self.content("prompt")?, self.content("completion")?),
        };
        same_form(&prompt, &completion, "completion")?;
        let is_desirable = unpaired::label(unpaired::label_column(options), &self.take("label")?)?;
        Ok(RowData::Unpaired { prompt, completion, is_desirable })
    }

    fn ids(&mut self, name: &str) -> Result<Vec<u32>, String> {
        let value = self.take(name)?;
        let bad = |found: &str| format!("column `{name}` has {found}, expected a list of token ids");
        let Value::Array(list) = value else { return Err(bad(kind_name(&value))) };
        list.iter()
            .map(|v| v.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(|| bad(&format!("`{v}`"))))
            .collect()
    }

    fn mask(&mut self, name: &str, length: usize) -> Result<Option<Vec<bool>>, String> {
        let value = match self.columns.shift_remove(name) {
            None | Some(Value::Null) => return Ok(None),
            Some(value) => value,
        };
        let Value::Array(list) = value else {
            return Err(format!("column `{name}` is {}, expected a list of 0 and 1", kind_name(&value)));
        };
        if list.len() != length {
            return Err(format!("column `{name}` has {} entries but `input_ids` has {length}", list.len()));
        }
        let bit = |v: &Value| match (v.as_bool(), v.as_i64()) {
            (Some(bit), _) => Ok(bit),
            (_, Some(0)) => Ok(false),
            (_, Some(1)) => Ok(true),
            _ => Err(format!("column `{name}` has `{v}`, expected 0 or 1")),
        };
        list.iter().map(bit).collect::<Result<_, _>>().map(Some)
    }

    fn tokens(&mut self) -> Result<RowData, String> {
        let mut ids = self.ids("input_ids")?;
        let length = ids.len();
        let mut mask: Option<Vec<bool>> = None;
        let mut both = |other: Option<Vec<bool>>| {
            if let Some(other) = other {
                mask =
                    Some(mask.take().map_or(other.clone(), |m| m.iter().zip(&other).map(|(a, b)| *a && *b).collect()));
            }
        };
        let labels = self.columns.shift_remove("labels").filter(|v| !v.is_null());
        let labels = labels.map(|labels| read_labels(&labels, &ids)).transpose()?;
        if let Some((_, counted)) = &labels {
            both(counted.clone());
            self.columns.shift_remove("completion_mask");
            self.columns.shift_remove("assistant_masks");
        } else {
            both(self.mask("completion_mask", length)?);
            both(self.mask("assistant_masks", length)?);
        }
        if let Some(attended) = self.mask("attention_mask", length)? {
            // Positions with attention mask 0 are padding.
            let keep = |i: &usize| attended[*i];
            mask = mask.map(|m| (0..length).filter(keep).map(|i| m[i]).collect());
            ids = (0..length).filter(keep).map(|i| ids[i]).collect();
        }
        if ids.is_empty() {
            return Err("column `input_ids` is empty".into());
        }
        Ok(RowData::Tokens { ids, loss_mask: mask, labels: labels.map(|(labels, _)| labels) })
    }

    fn token_preference(&mut self) -> Result<RowData, String> {
        for (old, new) in [("chosen_input_ids", "chosen_ids"), ("rejected_input_ids", "rejected_ids")] {
            if let Some(value) = self.columns.shift_remove(old) {
                self.columns.entry(new).or_insert(value);
            }
        }
        let prompt_ids = if self.columns.contains_key("prompt_ids") { self.ids("prompt_ids")? } else { Vec::new() };
        let (chosen_ids, rejected_ids) = (self.ids("chosen_ids")?, self.ids("rejected_ids")?);
        if prompt_ids.is_empty() && (chosen_ids.is_empty() || rejected_ids.is_empty()) {
            return Err("column `chosen_ids` or `rejected_ids` is empty".into());
        }
        Ok(RowData::TokenPreference { prompt_ids, chosen_ids, rejected_ids, margin: self.margin()? })
    }
}

fn messages_of(name: &str, value: &Value) -> Result<Vec<Message>, String> {
    let Value::Array(list) = value else {
        return Err(format!("column `{name}` is {}, expected a list of messages", kind_name(value)));
    };
    if list.is_empty() {
        return Err(format!("column `{name}` is an empty list, expected messages"));
    }
    let read =
        |(i, value): (usize, &Value)| Message::read(value).map_err(|e| format!("message {} of `{name}` {e}", i + 1));
    list.iter().enumerate().map(read).collect()
}

/// Reads labels and, if they align with `ids`, the loss mask that they define.
fn read_labels(labels: &Value, ids: &[u32]) -> Result<(Labels, Option<Vec<bool>>), String> {
    let Value::Array(list) = labels else {
        return Err(format!("column `labels` is {}, expected a list", kind_name(labels)));
    };
    let end = list.iter().rposition(|label| label.as_i64() != Some(-100)).map_or(0, |last| last + 1);
    let id = |(i, label): (usize, &Value)| {
        let id = label.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| {
            format!("column `labels` has {label} at position {i}, expected a token id (-100 only at the end)")
        })
    };
    let target: Result<Vec<u32>, String> = list[..end].iter().enumerate().map(id).collect();
    match (labels_mask(list, ids), target) {
        (Ok(mask), Ok(target)) => Ok((Labels { target, misfit: None, broken: None }, Some(mask))),
        (Ok(mask), Err(broken)) => Ok((Labels { target: Vec::new(), misfit: None, broken: Some(broken) }, Some(mask))),
        (Err(misfit), Ok(target)) => Ok((Labels { target, misfit: Some(misfit), broken: None }, None)),
        (Err(misfit), Err(_)) => Err(misfit),
    }
}

/// Computes the loss mask from labels: −100 for tokens without loss, else the token itself.
fn labels_mask(list: &[Value], ids: &[u32]) -> Result<Vec<bool>, String> {
    if list.len() != ids.len() {
        return Err(format!("column `labels` has {} entries but `input_ids` has {}", list.len(), ids.len()));
    }
    let bit = |(i, (label, id)): (usize, (&Value, &u32))| match label.as_i64() {
        Some(-100) => Ok(false),
        Some(label) if label == i64::from(*id) => Ok(true),
        _ => {
            Err(format!("column `labels` has {label} at position {i} where `input_ids` has {id}; expected it or -100"))
        }
    };
    list.iter().zip(ids).enumerate().map(bit).collect()
}
