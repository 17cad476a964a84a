//! Turns tasks into rows for training and sampling.

use serde_json::Value;

use super::{DataConfig, Files, Sample, Split};
use crate::data::{self, Content, Dataset, LoadOptions, Need, Row, RowData, RowKind, RowLocation, Source};
use crate::error::Result;
use crate::process::Interrupt;

/// Loads the rows that a configuration names: those of files, or those of a task. An `interrupt` ends the wait for a program.
///
/// # Errors
/// As for [`data::load`]; also if a task cannot supply rows for `options.need`.
pub fn load(config: &DataConfig, options: &LoadOptions, interrupt: &Interrupt) -> Result<Dataset> {
    let Some(task) = &config.task else { return data::load(&config.name(), options) };
    let split = config.split.unwrap_or(Split::Train);
    let files = Files::new(config.from.as_deref(), split, options.max_rows, interrupt).with_bad_rows(options.bad_rows);
    let mut samples = task.build()?.samples(&files)?;
    samples.truncate(options.max_rows.unwrap_or(usize::MAX));
    if samples.is_empty() {
        return Err(config.location().error("no rows: the data set is empty"));
    }
    let mut rows = rows(samples, split, options.need).map_err(|message| config.location().error(message))?;
    rows.truncate(options.max_rows.unwrap_or(usize::MAX));
    let kind = match rows[0].data {
        RowData::Prompt(_) => RowKind::Prompt,
        _ => RowKind::PromptCompletion,
    };
    let bad = files.into_left_out();
    let mut files: Vec<_> = rows.iter().map(|row| row.location.file.to_path_buf()).collect();
    files.dedup();
    files.retain(|file| file.is_file());
    let source = Source { files, split: Some(split.name().to_owned()), other_splits: Vec::new() };
    Ok(Dataset { name: config.to_string(), source, format: None, kind, rows, bad, remarks: Vec::new() })
}

/// Converts samples to rows: prompts with references and metadata as columns or, for training, one prompt and completion per
/// reference.
///
/// # Errors
/// If training needs references and there are none, or `need` is not possible with prompts and references.
pub fn rows(samples: Vec<(RowLocation, Sample)>, split: Split, need: Need) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    for (number, (location, sample)) in samples.into_iter().enumerate() {
        let Sample { prompt, references, mut metadata } = sample;
        metadata.entry("id").or_insert_with(|| format!("{}_{number}", split.short()).into());
        metadata.insert("references".into(), references.iter().cloned().map(Value::from).collect());
        let prompt = Content::Text(prompt);
        let data: Vec<RowData> = match need {
            Need::Prompt => vec![RowData::Prompt(prompt)],
            Need::Any if references.is_empty() => vec![RowData::Prompt(prompt)],
            Need::Any | Need::Sft | Need::Score => {
                if references.is_empty() {
                    return Err("the task has no references: there is nothing to train on".into());
                }
                let pair = |reference| RowData::PromptCompletion {
                    prompt: prompt.clone(),
                    completion: Content::Text(reference),
                };
                let count = if need == Need::Any { 1 } else { references.len() };
                references.into_iter().take(count).map(pair).collect()
            }
            Need::Preference | Need::Unpaired | Need::Columns => {
                return Err("a task has prompts and references, but pairs or labeled rows are needed".into());
            }
        };
        let row = |data| Row { location: location.clone(), index: 0, data, columns: metadata.clone() };
        rows.extend(data.into_iter().map(row));
    }
    rows.iter_mut().enumerate().for_each(|(index, row)| row.index = index);
    Ok(rows)
}
