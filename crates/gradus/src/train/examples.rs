//! From the rows of a plan to the examples of its method: those that are trained on, and those held out.

use serde_json::{Value, json};

use super::fit;
use super::player::Player;
use super::prepare::{MAX_EVAL_PROMPTS, Split, Start, report, tokenize_options};
use crate::config::Plan;
use crate::data::{self, Examples, Need, Place, Row, RowData, SkippedRow, TokenizeOptions};
use crate::error::{Error, Result};
use crate::files::atomic;
use crate::generate::SamplingParams;
use crate::method::Cast;
use crate::model::ModelShape;
use crate::objective::OfflineMethod;
use crate::observer::{Event, Observer};
use crate::rollout::Prompt;
use crate::run::RunDir;

/// What rows became, in parts.
pub struct Parts<E> {
    /// Examples to train on.
    pub train: Vec<E>,
    /// Examples held out.
    pub held_out: Vec<E>,
    /// Examples of the test rows.
    pub test: Vec<E>,
    /// Which rows they are not.
    pub not_trained: NotTrained,
}

/// The rows that are not trained on.
pub struct NotTrained {
    /// Those held out: the number in its data, and the place.
    pub held_out: Vec<(usize, Place)>,
    /// Those that are bad and left out.
    pub skipped: Vec<SkippedRow>,
}

impl NotTrained {
    /// Writes `held_out_rows.jsonl` and `skipped_rows.jsonl`; what is empty is not there.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(&self, run: &RunDir) -> Result<()> {
        let of_row = |(index, place): &(usize, Place)| {
            let mut row = json!({ "row": index + 1, "file": place.file.display().to_string(), "line": place.line });
            if let Some(number) = place.row_in_array {
                row["row_in_array"] = number.into();
            }
            format!("{row}\n")
        };
        let held_out: String = self.held_out.iter().map(of_row).collect();
        let skipped: String = self.skipped.iter().map(|row| format!("{}\n", json!(row))).collect();
        for (path, lines) in [(run.held_out_rows(), held_out), (run.skipped_rows(), skipped)] {
            if !lines.is_empty() {
                atomic::write_bytes(&path, lines.as_bytes())?;
            }
        }
        Ok(())
    }
}

/// What an offline method learns from and is looked at with.
pub struct Fixed<E> {
    /// The examples.
    pub parts: Parts<E>,
    /// Prompts of the rows held out with their answers as references, where metrics of completions are asked for.
    pub prompts: Vec<Prompt>,
    /// The same of the test rows.
    pub test_prompts: Vec<Prompt>,
}

/// What an offline method learns from.
///
/// # Errors
/// When the rows cannot be read, none is left to train on, or one is too long for a model.
pub fn fixed<M: OfflineMethod>(
    method: &M,
    plan: &Plan,
    start: &Start,
    cast: &Cast<Player>,
    observer: &mut dyn Observer,
) -> Result<Fixed<M::Example>> {
    let split = start.rows(plan, method.need(), &|_| true, &observer.interrupt())?;
    if let Some(labels) = method.labels(&split.train, &start.model)? {
        // Rows are read once a run; a second reading gives the same.
        let _ = start.model.labels.set(labels);
    }
    let options = tokenize_options(plan, &start.model, Some(plan.train().max_length))?;
    let parts = parts(&split, |rows| method.examples(rows, &start.model, options.clone()), observer)?;
    let apart = cast.policy.shape.has_encoder();
    let rows = || parts.train.iter().chain(&parts.held_out).chain(&parts.test).map(M::rows);
    let needed = rows().map(|rows| rows.positions(apart)).max().unwrap_or(0);
    let taken = usize::from(apart && rows().any(|rows| rows.are_scored()));
    fit::check_positions(cast, (needed, taken))?;
    let mut prompts = |rows: &[Row]| match plan.train().evaluation.metrics.is_empty() || rows.is_empty() {
        true => Ok(Vec::new()),
        false => answered_prompts(plan, start, rows, observer),
    };
    let (prompts, test_prompts) = (prompts(&split.held_out)?, prompts(&split.test)?);
    Ok(Fixed { parts, prompts, test_prompts })
}

/// Prompts of rows with answers, which become the references of metrics. Rows that share a prompt and everything beside it are one.
fn answered_prompts(plan: &Plan, start: &Start, rows: &[Row], observer: &mut dyn Observer) -> Result<Vec<Prompt>> {
    let mut prompts: Vec<Row> = Vec::new();
    for row in rows {
        let (prompt, answer) = match &row.data {
            RowData::Instruction { answer, .. } => {
                let mut row = row.clone();
                row.columns.entry("references").or_insert_with(|| vec![answer.clone()].into());
                prompts.push(row);
                continue;
            }
            RowData::PromptCompletion { prompt, completion }
            | RowData::Unpaired { prompt, completion, is_desirable: true } => (prompt.clone(), completion),
            RowData::Preference { prompt: Some(prompt), chosen, .. } => (prompt.clone(), chosen),
            // What its prompt is, its reader says; its references are columns, or there are none.
            _ => {
                prompts.push(row.clone());
                continue;
            }
        };
        let mut columns = row.columns.clone();
        if !["references", "reference", "answer"].iter().any(|name| columns.contains_key(*name)) {
            columns.insert("references".into(), vec![answer.plain()].into());
        }
        let data = RowData::Prompt(prompt);
        if prompts.last().is_none_or(|last| last.data != data || last.columns != columns) {
            prompts.push(Row { data, columns, ..row.clone() });
        }
    }
    let room = room(plan, start, max_new_tokens(plan))?;
    let options = tokenize_options(plan, &start.model, Some(room))?;
    let made = data::prompts(&prompts, &start.model.tokenizer, start.model.template.as_ref(), &options)?;
    report("completed in evaluations", &made.counts, observer);
    let mut examples = made.examples;
    if !plan.is_set("train.max_eval_rows") {
        examples.truncate(MAX_EVAL_PROMPTS);
    }
    Ok(examples)
}

/// The longest completion of evaluations where training samples none: as `gradus generate` has it.
pub fn max_new_tokens(plan: &Plan) -> usize {
    plan.train().evaluation.max_new_tokens.unwrap_or(SamplingParams::default().max_new_tokens)
}

/// Tokens that are left for a prompt before a completion of `max_new_tokens`.
fn room(plan: &Plan, start: &Start, max_new_tokens: usize) -> Result<usize> {
    let shape = ModelShape::of(&start.model.dir)?;
    let longest = shape.max_positions.unwrap_or(usize::MAX).min(plan.train().max_length);
    let room = shape.position_budget().within(longest).too_long(max_new_tokens);
    if room < 2 {
        return Err(Error::input(format!(
            "`max_new_tokens` ({max_new_tokens}) leaves no room for a prompt within {longest} tokens"
        ))
        .with_hint(format!(
            "this model reads {longest} tokens in all: pass `--max-new-tokens {}` or less",
            longest / 2
        )));
    }
    Ok(room)
}

/// Prompts for online methods, with room for `max_new_tokens`; the chat template shows the `tools`.
///
/// # Errors
/// As [`fixed`]; or when there is no room for any prompt.
pub fn prompts(
    plan: &Plan,
    start: &Start,
    cast: &Cast<Player>,
    (max_new_tokens, tools): (usize, &[Value]),
    observer: &mut dyn Observer,
) -> Result<Parts<Prompt>> {
    // What leaves no room for a whole completion is left out, in training or in evaluations.
    let max_new_tokens = max_new_tokens.max(plan.train().evaluation.max_new_tokens.unwrap_or(0));
    let room = room(plan, start, max_new_tokens)?;
    let options = TokenizeOptions { tools: tools.to_vec(), ..tokenize_options(plan, &start.model, Some(room))? };
    let make = |rows: &[Row]| data::prompts(rows, &start.model.tokenizer, start.model.template.as_ref(), &options);
    let is_usable = |row: &Row| make(std::slice::from_ref(row)).is_ok();
    let split = start.rows(plan, Need::Prompt, &is_usable, &observer.interrupt())?;
    let parts = parts(&split, make, observer)?;
    let prompts = || parts.train.iter().chain(&parts.held_out).chain(&parts.test);
    let longest = prompts().map(|prompt| prompt.ids.len()).max().unwrap_or(0);
    fit::check_positions(cast, (cast.policy.shape.position_budget().needed(longest, max_new_tokens), 0))?;
    Ok(parts)
}

/// Examples of all parts of the rows. Held-out rows of which nothing is left turn evaluation off.
fn parts<E>(
    split: &Split,
    make: impl Fn(&[Row]) -> Result<Examples<E>>,
    observer: &mut dyn Observer,
) -> Result<Parts<E>> {
    split.remarks.iter().for_each(|remark| observer.event(&Event::Warning(remark)));
    split.filtered.iter().for_each(|filtered| observer.event(&Event::Message(filtered)));
    let train = make(&split.train)?;
    report("training", &train.counts, observer);
    let mut skipped = split.skipped.clone();
    skipped.extend(train.skipped);
    let mut held_out = Vec::new();
    if !split.held_out.is_empty() {
        match make(&split.held_out) {
            Ok(made) => {
                report("held out", &made.counts, observer);
                skipped.extend(made.skipped);
                held_out = made.examples;
            }
            Err(error) => {
                observer.event(&Event::Warning(&format!("there is no evaluation: no held-out row is usable: {error}")))
            }
        }
    }
    let mut test = Vec::new();
    if !split.test.is_empty() {
        match make(&split.test) {
            Ok(made) => {
                report("test", &made.counts, observer);
                skipped.extend(made.skipped);
                test = made.examples;
            }
            // Test rows may be published without their answers.
            Err(error) => observer.event(&Event::Warning(&format!("no test row is usable as an example: {error}"))),
        }
    }
    if let Some(first) = skipped.first() {
        let place = first.line.map_or(String::new(), |line| format!(":{line}"));
        observer.event(&Event::Warning(&format!(
            "{}, the first {}{place}: {}; `skipped_rows.jsonl` lists them",
            if skipped.len() == 1 {
                "1 bad row is left out".into()
            } else {
                format!("{} bad rows are left out", skipped.len())
            },
            first.file.display(),
            first.problem
        )));
    }
    let rows = split.held_out.iter().map(|row| (row.index, row.place.clone())).collect();
    Ok(Parts { train: train.examples, held_out, test, not_trained: NotTrained { held_out: rows, skipped } })
}
