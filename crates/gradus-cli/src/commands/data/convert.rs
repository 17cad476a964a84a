//! `gradus data convert`: writes the rows in another format or form.

use std::collections::BTreeMap;
use std::path::PathBuf;

use gradus::data::feedback::{
    Feedback, SegmentForm, coverage_preferences, preference_rows, segment_labels, segment_row,
};
use gradus::data::{BadRows, Form, Row, RowData, RowErrors, Target, convert, unpaired, write_rows};
use gradus::files::output::{OutputFile, Outputs};
use gradus::text::{Level, RuleSplitter, SentenceSplitter};
use serde_json::{Map, Value, json};

use super::{FilterArgs, RowArgs, grouped, rows};
use crate::output::Output;

/// Arguments of `gradus data convert`.
#[derive(Debug, clap::Args)]
pub struct ConvertArgs {
    #[command(flatten)]
    rows: RowArgs,
    /// File to write. Its name determines the format: .jsonl, .json, .csv, .tsv, .parquet, .arrow or, for texts, .txt, optionally with .gz
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// Form of the new rows: `same`, `text`, `messages`, `prompt-completion`, `preference`, `unpaired` (with a label; a pair becomes two
    /// rows) or `prompt`; for rows with fine-grained feedback: `preference` (a row for every two answers of which one is better), `r1` and
    /// `r2` (segments with labels: relevance, factuality) or `r3` (the same rows, with answers compared by the information that they cover)
    #[arg(long, value_name = "KIND", default_value = "same")]
    to: Kind,
    /// For `r1` and `r2`: minimum number of words of a span that counts, unless a fact is wrong
    #[arg(long, value_name = "N", default_value_t = SegmentForm::R1.fewest_words)]
    min_span_words: usize,
    /// For `r1` and `r2`: unit that gets a label, `sentence` or `sub_sentence`. Default: `sub_sentence` for `r1`, `sentence` for `r2`
    #[arg(long, value_name = "LEVEL")]
    segments: Option<Segments>,
    /// For `r1` and `r2`: include the passages in the text before the answer. Default: no for `r1`, yes for `r2`
    #[arg(long, value_name = "YES|NO")]
    passages: Option<YesNo>,
    /// Form of prompts and answers: `as-is`, `text` or `messages`
    #[arg(long, value_name = "FORM", default_value = "as-is")]
    form: RowForm,
    #[command(flatten)]
    filter: FilterArgs,
    /// Replace the file if it exists
    #[arg(long)]
    overwrite: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Kind {
    Same,
    Text,
    Messages,
    PromptCompletion,
    Preference,
    Unpaired,
    Prompt,
    R1,
    R2,
    R3,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
enum Segments {
    Sentence,
    SubSentence,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum YesNo {
    Yes,
    No,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum RowForm {
    AsIs,
    Text,
    Messages,
}

/// Converts the rows.
pub fn run(args: ConvertArgs, out: &Output) -> anyhow::Result<()> {
    // An existing output is reported before rows are read. The input files are known only afterwards.
    Outputs::new(args.overwrite).file(&args.output)?;
    let mut dataset = args.rows.load(BadRows::Fail, out)?;
    let (kept, dropped) = args.filter.apply(std::mem::take(&mut dataset.rows), args.rows.rule(), out)?;
    dataset.rows = kept;
    let file = Outputs::new(args.overwrite).reading_all(&dataset.source.files).file(&args.output)?;
    let is_annotated = dataset.rows.iter().any(|row| matches!(row.data, RowData::Feedback(_)));
    let target = match args.to {
        Kind::Preference if is_annotated => return built(&args, &file, &dataset.rows, out),
        Kind::R1 | Kind::R2 | Kind::R3 => return built(&args, &file, &dataset.rows, out),
        Kind::Same => Target::Same,
        Kind::Text => Target::Text,
        Kind::Messages => Target::Messages,
        Kind::PromptCompletion => Target::PromptCompletion,
        Kind::Preference => Target::Preference,
        Kind::Unpaired => Target::Unpaired,
        Kind::Prompt => Target::Prompt,
    };
    let form = match args.form {
        RowForm::AsIs => Form::AsIs,
        RowForm::Text => Form::Text,
        RowForm::Messages => Form::Messages,
    };
    let mut errors = RowErrors::default();
    let all = match target {
        Target::Unpaired => unpaired(&dataset.rows, args.rows.rule())?,
        _ => dataset.rows.as_slice().into(),
    };
    let mut converted = Vec::with_capacity(all.len());
    for row in all.iter() {
        match convert(row, target, form, args.rows.rule()) {
            Ok(columns) => converted.push(columns),
            Err(message) => errors.push(row.location.error(message)),
        }
    }
    if let Some(error) = errors.into_error(dataset.rows.len()) {
        return Err(error.into());
    }
    let format = write_rows(&file, &converted)?;
    let mut value = json!({ "output": args.output, "format": format, "rows": converted.len() });
    if args.filter.filter().is_on() {
        value["dropped"] = json!(dropped);
    }
    out.result(&value, || format!("{}: {}, {}", args.output.display(), rows(converted.len()), format.describe()))
}

/// Writes rows for reward models, made from rows with feedback.
fn built(args: &ConvertArgs, file: &OutputFile, from: &[Row], out: &Output) -> anyhow::Result<()> {
    let splitter = &RuleSplitter;
    let with_args = |form: SegmentForm| SegmentForm {
        fewest_words: args.min_span_words,
        level: args.segments.map_or(form.level, |segments| match segments {
            Segments::Sentence => Level::Sentence,
            Segments::SubSentence => Level::SubSentence,
        }),
        reads_passages: args.passages.map_or(form.reads_passages, |passages| passages == YesNo::Yes),
        ..form
    };
    let mut rows: Vec<Map<String, Value>> = Vec::new();
    let mut labels: BTreeMap<&str, usize> = BTreeMap::new();
    let mut dropped = 0;
    for row in from {
        let RowData::Feedback(feedback) = &row.data else {
            let error = row.location.error("the row has no fine-grained feedback");
            return Err(error
                .with_hint("`r1`, `r2` and `r3` need rows with `passages`, `prediction 1` and `feedback`")
                .into());
        };
        let made: Vec<Map<String, Value>> = match args.to {
            Kind::R1 | Kind::R2 => {
                let form = with_args(if matches!(args.to, Kind::R1) { SegmentForm::R1 } else { SegmentForm::R2 });
                let made = segment_row(feedback, row.index, &form, splitter);
                if made.is_some() {
                    segment_labels(feedback, &form, splitter)
                        .into_iter()
                        .for_each(|label| *labels.entry(label).or_default() += 1);
                }
                made.into_iter().collect()
            }
            Kind::R3 => coverage_preferences(feedback, splitter)
                .map(|preferences| {
                    let covered = Feedback { preferences: Some(preferences), ..(**feedback).clone() };
                    covered.to_columns().into_iter().chain(row.columns.clone()).collect()
                })
                .into_iter()
                .collect(),
            _ if feedback.preferences.is_none() => {
                let error = row.location.error("the row compares no two answers: it has no `preference`");
                return Err(error
                    .with_hint(
                        "`r1` and `r2` need no `preference`, and `r3` derives one from the coverage of the answers",
                    )
                    .into());
            }
            _ => preference_rows(feedback),
        };
        dropped += usize::from(made.is_empty());
        rows.extend(made);
    }
    if rows.is_empty() {
        anyhow::bail!("none of {} has anything to train on", super::rows(from.len()));
    }
    let format = write_rows(file, &rows)?;
    let value = json!({
        "output": args.output, "format": format, "rows": rows.len(), "dropped": dropped, "labels": labels,
        "sentences": splitter.name(),
    });
    out.result(&value, || {
        let counts: Vec<String> = labels.iter().map(|(label, count)| format!("{label} {}", grouped(*count))).collect();
        let labels = if counts.is_empty() { String::new() } else { format!("; segments: {}", counts.join(", ")) };
        let left_out = if dropped == 0 {
            String::new()
        } else {
            format!("; {} skipped: nothing to train on", super::rows(dropped))
        };
        format!("{}: {}, {}{left_out}{labels}", args.output.display(), super::rows(rows.len()), format.describe())
    })
}
