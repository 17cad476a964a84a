//! Converts the rows of a plan to examples of its method, for training and for evaluation.

use serde_json::{Map, Value, json};

use super::fit;
use super::player::Player;
use super::prepare::{MAX_EVAL_PROMPTS, Split, Start, report, tokenize_options};
use crate::config::Plan;
use crate::data::{self, Examples, Need, Row, RowData, RowLocation, SkippedRow, TokenizeOptions};
use crate::error::{Error, Result};
use crate::files::atomic;
use crate::generate::SamplingParams;
use crate::method::Cast;
use crate::model::ModelShape;
use crate::objective::OfflineMethod;
use crate::observer::{Event, Observer};
use crate::rollout::Prompt;
use crate::run::RunDir;

/// Examples by the use of their rows.
pub struct ExampleSplits<E> {
    /// Training examples.
    pub train: Vec<E>,
    /// Held-out examples.
    pub held_out: Vec<E>,
    /// Test examples.
    pub test: Vec<E>,
    /// Rows without training examples.
    pub not_trained: NotTrained,
}

/// Rows that are not trained on.
pub struct NotTrained {
    /// Held-out rows: index in the data, and location.
    pub held_out: Vec<(usize, RowLocation)>,
    /// Bad rows that are skipped.
    pub skipped: Vec<SkippedRow>,
}

impl NotTrained {
    /// Writes `held_out_rows.jsonl` and `skipped_rows.jsonl`. Empty lists have no file.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(&self, run: &RunDir) -> Result<()> {
        let of_row = |(index, location): &(usize, RowLocation)| {
            let mut row =
                json!({ "row": index + 1, "file": location.file.display().to_string(), "line": location.line });
            if let Some(number) = location.row_in_array {
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

/// Data of an offline method, for training and evaluation.
pub struct OfflineData<E> {
    /// The examples.
    pub splits: ExampleSplits<E>,
    /// Prompts of held-out rows with their answers as references, if completions are measured by metrics.
    pub prompts: Vec<Prompt>,
    /// The same for test rows.
    pub test_prompts: Vec<Prompt>,
}

/// Reads the data of an offline method.
///
/// # Errors
/// If the rows cannot be read, no training row is left, or a row is too long for a model.
pub fn offline_data<M: OfflineMethod>(
    method: &M,
    plan: &Plan,
    start: &Start,
    cast: &Cast<Player>,
    observer: &mut dyn Observer,
) -> Result<OfflineData<M::Example>> {
    let split = start.rows(plan, method.need(), &|_| true, &observer.interrupt())?;
    if let Some(labels) = method.labels(&split.train, &start.model)? {
        // Rows are read once per run; a second reading would give the same.
        let _ = start.model.labels.set(labels);
    }
    let options = tokenize_options(plan, &start.model, Some(plan.train().max_length))?;
    let splits = splits(&split, |rows| method.examples(rows, &start.model, options.clone()), observer)?;
    let has_encoder = cast.policy.shape.has_encoder();
    let rows = || splits.train.iter().chain(&splits.held_out).chain(&splits.test).map(M::rows);
    let needed = rows().map(|rows| rows.positions(has_encoder)).max().unwrap_or(0);
    let taken = usize::from(has_encoder && rows().any(|rows| rows.are_scored()));
    fit::check_positions(cast, (needed, taken))?;
    let mut prompts = |rows: &[Row]| match plan.train().evaluation.metrics.is_empty() || rows.is_empty() {
        true => Ok(Vec::new()),
        false => answered_prompts(plan, start, rows, observer),
    };
    let (prompts, test_prompts) = (prompts(split.evaluated())?, prompts(&split.test)?);
    Ok(OfflineData { splits, prompts, test_prompts })
}

/// Prompts of rows with answers, which become the references of metrics.
fn answered_prompts(plan: &Plan, start: &Start, rows: &[Row], observer: &mut dyn Observer) -> Result<Vec<Prompt>> {
    let prompts = rows_of_prompts(rows);
    let room = room(plan, start, max_new_tokens(plan), LengthKey::Evaluation)?;
    let options = tokenize_options(plan, &start.model, Some(room))?;
    let made = data::prompts(&prompts, &start.model.tokenizer, start.model.template.as_ref(), &options)?;
    report("completed in evaluations", &made.counts, None, observer);
    let mut examples = made.examples;
    if !plan.is_set("train.max_eval_rows") && examples.len() > MAX_EVAL_PROMPTS {
        examples.truncate(MAX_EVAL_PROMPTS);
        let message =
            format!("completed in evaluations: only the first {MAX_EVAL_PROMPTS}, unless `train.max_eval_rows` is set");
        observer.event(&Event::Message(&message));
    }
    Ok(examples)
}

/// Converts rows with answers to rows of prompts with references. The rows of one sample of a task, one for each of its references, become one
/// row: they have the same location and columns.
fn rows_of_prompts(rows: &[Row]) -> Vec<Row> {
    let mut prompts: Vec<Row> = Vec::new();
    for row in rows {
        let columns = with_references(row);
        let prompt = match &row.data {
            RowData::PromptCompletion { prompt, .. }
            | RowData::Unpaired { prompt, is_desirable: true, .. }
            | RowData::Preference { prompt: Some(prompt), .. } => prompt.clone(),
            // Each kind defines its own prompt.
            _ => {
                prompts.push(Row { columns, ..row.clone() });
                continue;
            }
        };
        let data = RowData::Prompt(prompt);
        let differs = |last: &Row| last.location != row.location || last.data != data || last.columns != columns;
        if prompts.last().is_none_or(differs) {
            prompts.push(Row { data, columns, ..row.clone() });
        }
    }
    prompts
}

/// Returns the columns of a row. If its own answer is its reference, they contain it as `references`. Rows of prompts have their answer in a
/// column, so both follow the order of [`data::references`].
fn with_references(row: &Row) -> Map<String, Value> {
    let mut columns = row.columns.clone();
    if let Some((name, answer)) = row.data.answer() {
        let mut all = columns.clone();
        all.insert(name.into(), answer.into());
        // Wrong references are reported when the prompt is read.
        if let Ok(Some((found, texts))) = data::reference_column(&all)
            && found == name
        {
            columns.insert("references".into(), texts.into());
        }
    }
    columns
}

/// Longest completion in evaluations of methods that do not sample in training. The default is that of `gradus generate`.
pub fn max_new_tokens(plan: &Plan) -> usize {
    plan.train().evaluation.max_new_tokens.unwrap_or(SamplingParams::default().max_new_tokens)
}

/// Number of positions that prompt and completion share.
fn longest(plan: &Plan, shape: &ModelShape) -> usize {
    shape.max_positions.unwrap_or(usize::MAX).min(plan.train().max_length)
}

/// Returns `most`, or less if it would leave less than half of the positions to the prompt.
///
/// # Errors
/// If the model's configuration is wrong.
pub fn shortened(most: usize, plan: &Plan, start: &Start) -> Result<usize> {
    let shape = ModelShape::of(&start.model.dir)?;
    let longest = longest(plan, &shape);
    Ok(most.min(if shape.has_encoder() { longest } else { longest / 2 }))
}

/// Key and flag of the length of completions.
#[derive(Debug, Clone, Copy)]
pub enum LengthKey {
    /// That of the method.
    Method,
    /// That of evaluations.
    Evaluation,
}

/// Number of tokens for a prompt that leaves space for a completion of `max_new_tokens`, which `key` sets.
///
/// # Errors
/// If there is no space for any prompt.
pub fn room(plan: &Plan, start: &Start, max_new_tokens: usize, key: LengthKey) -> Result<usize> {
    let shape = ModelShape::of(&start.model.dir)?;
    let longest = longest(plan, &shape);
    let room = shape.position_budget().within(longest).too_long(max_new_tokens);
    if room < 2 {
        let (key, flag) = match key {
            LengthKey::Method => ("max_new_tokens", "--max-new-tokens"),
            LengthKey::Evaluation => ("train.evaluation.max_new_tokens", "--evaluation-max-new-tokens"),
        };
        return Err(Error::input(format!(
            "`{key}` ({max_new_tokens}) leaves no room for a prompt within {longest} tokens"
        ))
        .with_hint(format!("prompt and completion share {longest} tokens: pass `{flag} {}` or less", longest / 2)));
    }
    Ok(room)
}

/// Reads the prompts of online methods, with space for `max_new_tokens`. The chat template shows the `tools`.
///
/// # Errors
/// As [`offline_data`], or if there is no space for any prompt.
pub fn prompts(
    plan: &Plan,
    start: &Start,
    cast: &Cast<Player>,
    (max_new_tokens, tools): (usize, &[Value]),
    observer: &mut dyn Observer,
) -> Result<ExampleSplits<Prompt>> {
    // Prompts that leave no space for a whole completion, in training or in evaluations, are left out.
    let (max_new_tokens, key) = match plan.train().evaluation.max_new_tokens {
        Some(evaluated) if evaluated > max_new_tokens => (evaluated, LengthKey::Evaluation),
        _ => (max_new_tokens, LengthKey::Method),
    };
    let room = room(plan, start, max_new_tokens, key)?;
    let options = TokenizeOptions { tools: tools.to_vec(), ..tokenize_options(plan, &start.model, Some(room))? };
    let make = |rows: &[Row]| data::prompts(rows, &start.model.tokenizer, start.model.template.as_ref(), &options);
    let is_usable = |row: &Row| make(std::slice::from_ref(row)).is_ok();
    let split = start.rows(plan, Need::Prompt, &is_usable, &observer.interrupt())?;
    let splits = splits(&split, make, observer)?;
    let prompts = || splits.train.iter().chain(&splits.held_out).chain(&splits.test);
    let longest = prompts().map(|prompt| prompt.ids.len()).max().unwrap_or(0);
    fit::check_positions(cast, (cast.policy.shape.position_budget().needed(longest, max_new_tokens), 0))?;
    check_forced_start(plan, start, longest)?;
    Ok(splits)
}

/// Rejects a forced first id if the policy continues a prompt of several tokens. Only a model with an encoder begins a
/// new text.
fn check_forced_start(plan: &Plan, start: &Start, longest: usize) -> Result<()> {
    let iteration = plan.method().iteration();
    let is_forced = iteration.is_some_and(|iteration| iteration.rollouts.sampling.forced_bos_token_id.is_some());
    if !is_forced || longest <= 1 || start.model.dir.has_encoder()? {
        return Ok(());
    }
    let message = format!(
        "`method.{}.sampling.forced_bos_token_id` is set, but `{}` has no encoder: such a model continues the prompt, \
         and no id is forced after prompts of more than one token",
        plan.method().name(),
        plan.config().model
    );
    Err(Error::input(message).with_hint("leave it out, or append the token to the prompts"))
}

/// Returns the error about bad rows that counts held-out rows, too, in the order of the data. `error` counts only training rows.
fn of_all_rows<E>(split: &Split, make: impl Fn(&[Row]) -> Result<Examples<E>>, error: Error) -> Error {
    let mut rows = [split.train.as_slice(), split.held_out.as_slice()].concat();
    rows.sort_by(|a, b| a.location.file.cmp(&b.location.file).then(a.index.cmp(&b.index)));
    make(&rows).err().unwrap_or(error)
}

/// Converts all splits of the rows. If no held-out row is usable, evaluation is turned off.
fn splits<E>(
    split: &Split,
    make: impl Fn(&[Row]) -> Result<Examples<E>>,
    observer: &mut dyn Observer,
) -> Result<ExampleSplits<E>> {
    split.remarks.iter().for_each(|remark| observer.event(&Event::Warning(remark)));
    split.filtered.iter().for_each(|filtered| observer.event(&Event::Message(filtered)));
    let train = make(&split.train).map_err(|error| of_all_rows(split, &make, error))?;
    report("training", &train.counts, split.train_limit(), observer);
    let mut skipped = split.skipped.clone();
    skipped.extend(train.skipped);
    let mut held_out = Vec::new();
    if split.held_out.len() > split.evaluated().len() {
        let rows = split.held_out.len();
        let message = format!("held out: {rows} rows, which are not evaluated because `eval_steps` is -1");
        observer.event(&Event::Message(&message));
    }
    if !split.evaluated().is_empty() {
        match make(split.evaluated()) {
            Ok(made) => {
                report("held out", &made.counts, split.eval_limit(&split.held_out), observer);
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
                report("test", &made.counts, split.eval_limit(&split.test), observer);
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
    let rows = split.held_out.iter().map(|row| (row.index, row.location.clone())).collect();
    Ok(ExampleSplits { train: train.examples, held_out, test, not_trained: NotTrained { held_out: rows, skipped } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::LoadOptions;

    #[test]
    fn only_the_references_of_a_sample_share_a_prompt() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("rows.jsonl");
        let row = |completion: &str| format!("{}\n", json!({ "prompt": "p", "completion": completion }));
        std::fs::write(&file, ["a", "a", "b", "a"].map(row).concat()).expect("written");
        let mut rows = data::load(&file.to_string_lossy(), &LoadOptions::needing(Need::Sft)).expect("rows").rows;
        assert_eq!(rows_of_prompts(&rows).len(), 4, "equal rows of a file are separate");
        // A task makes a row for each reference of a sample.
        for row in &mut rows {
            row.location.line = 1;
            row.columns.insert("references".into(), json!(["a", "b"]));
        }
        assert_eq!(rows_of_prompts(&rows).len(), 1);
        rows[3].columns.insert("id".into(), 2.into());
        assert_eq!(rows_of_prompts(&rows).len(), 2);
    }

    /// Methods that sample read rows as prompts. The others read them with their answers.
    #[test]
    fn references_do_not_depend_on_the_method() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("rows.jsonl");
        let turn = |role: &str, content: &str| json!([{ "role": role, "content": content }]);
        // An answer without a text.
        let call = json!({ "type": "function", "function": { "name": "clock", "arguments": {} } });
        let calls = json!([{ "role": "assistant", "content": "", "tool_calls": [call] }]);
        for (row, need, expected) in [
            (json!({ "prompt": "p", "completion": "c" }), Need::Sft, "c"),
            (json!({ "prompt": "p", "completion": "c", "answer": "a" }), Need::Sft, "a"),
            (json!({ "prompt": "p", "completion": "c", "answer": 42 }), Need::Sft, "c"),
            (json!({ "prompt": "p", "completion": "c", "answer": "" }), Need::Sft, "c"),
            (json!({ "prompt": turn("user", "p"), "completion": calls, "output": "o" }), Need::Sft, "o"),
            (json!({ "prompt": "p", "completion": "c", "chosen": "x", "rejected": "y" }), Need::Sft, "c"),
            (json!({ "prompt": "p", "completion": "c", "answer": "a", "reference": "r" }), Need::Sft, "r"),
            (json!({ "prompt": turn("user", "p"), "completion": turn("assistant", "c") }), Need::Sft, "c"),
            (json!({ "prompt": "p", "completion": "c", "label": true }), Need::Unpaired, "c"),
            (json!({ "prompt": "p", "chosen": "x", "rejected": "y" }), Need::Preference, "x"),
            (json!({ "instruction": "i", "output": "o" }), Need::Sft, "o"),
            (json!({ "question": "q", "answer": "a" }), Need::Sft, "a"),
            (json!({ "question": "q", "answer": "a", "reference": "r" }), Need::Sft, "r"),
        ] {
            std::fs::write(&file, row.to_string()).expect("written");
            let read = |need| {
                let mut loaded = data::load(&file.to_string_lossy(), &LoadOptions::needing(need)).expect("rows");
                loaded.rows.remove(0)
            };
            let expected = Ok(vec![expected.to_owned()]);
            assert_eq!(data::references(&with_references(&read(need))), expected, "{row}");
            assert_eq!(data::references(&read(Need::Prompt).columns), expected, "{row}");
        }
    }
}
