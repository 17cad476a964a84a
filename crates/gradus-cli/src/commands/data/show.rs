//! `gradus data show`: an overview of a data set.

use std::fmt::Write as _;
use std::path::PathBuf;

use gradus::data::feedback::FeedbackCounts;
use gradus::data::{
    BadRows, Content, Dataset, Histogram, LabelTotals, Message, Quantiles, Row, RowData, Stats, TokenizeOptions,
    TrainedSequence, measure, parts, profile, trained_sequences,
};
use gradus::files::output::Outputs;
use gradus::reports::RowsReport;
use serde_json::{Value, json};

use super::{RowArgs, Text, TokenArgs, grouped, rows};
use crate::output::Output;

/// Arguments of `gradus data show`.
#[derive(Debug, clap::Args)]
pub struct ShowArgs {
    #[command(flatten)]
    rows: RowArgs,
    #[command(flatten)]
    tokens: TokenArgs,
    /// Show this many examples
    #[arg(long, value_name = "N", default_value_t = 2)]
    examples: usize,
    /// Show the examples as a model is trained on them: the chat template's text with its special tokens, with ⟦ and ⟧ around the parts
    /// that carry loss, and ✂ where `--max-length` cuts. Tokens are then counted after the cut
    #[arg(long, requires = "model")]
    as_trained: bool,
    /// With `--as-trained`: put loss only on messages of the assistant, as `sft --assistant-only-loss` does
    #[arg(long, requires = "as_trained")]
    assistant_only_loss: bool,
    /// Tokenize at most this many rows, evenly spaced
    #[arg(long, value_name = "N", default_value_t = 4000)]
    sample: usize,
    /// Write a page FILE.html with plots (lengths, how often the longer answer is chosen, turns, first words, ties, equal and short
    /// answers), and the same data as FILE.json
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// Replace the files of `--report` if they exist
    #[arg(long, requires = "report")]
    overwrite: bool,
}

/// Shows the data set.
pub fn run(args: ShowArgs, out: &Output) -> anyhow::Result<()> {
    // An existing output is reported before rows are read. The input files are known only afterwards.
    args.report.as_deref().map(|path| Outputs::new(args.overwrite).report(path)).transpose()?;
    let dataset = args.rows.load(BadRows::Skip, out)?;
    let outputs = || Outputs::new(args.overwrite).reading_all(&dataset.source.files);
    let files = args.report.as_deref().map(|path| outputs().report(path)).transpose()?;
    let text = args.tokens.text()?;
    let options = TokenizeOptions {
        assistant_only_loss: args.assistant_only_loss,
        ..args.tokens.options(args.rows.rule(), text.as_ref())
    };
    let tokenizer = text.as_ref().map(|text| (&text.tokenizer, text.template.as_ref()));
    let stats = measure(&dataset, tokenizer, &options, args.sample, args.as_trained);
    let shown = |row: &Row| match text.as_ref().filter(|_| args.as_trained) {
        Some(text) => trained(row, text, &options),
        None => parts(row, &options).into_iter().map(|(name, part)| (name.to_owned(), part)).collect(),
    };
    // A conversation has a line for each turn.
    let lines: Vec<Option<Vec<(String, String)>>> = match args.as_trained {
        true => Vec::new(),
        false => dataset.rows.iter().take(args.examples).map(turns).collect(),
    };
    let examples: Examples =
        dataset.rows.iter().take(args.examples).map(|row| (row.location.to_string(), shown(row))).collect();
    for error in dataset.bad.first() {
        out.warn(error);
    }
    if let Some(files) = &files {
        let tokenizer = text.as_ref().map(|text| &text.tokenizer);
        let profile = profile(&dataset.rows, &options, tokenizer, args.sample)?;
        let report = RowsReport { dataset: &dataset, profile: &profile };
        files.write(&report.page(), &report.to_json())?;
        out.note(format_args!("the report is in {}", files.page().display()));
    }
    let value = json!({
        "name": dataset.name,
        "files": dataset.source.files,
        "split": dataset.source.split,
        "format": dataset.format.map(|(format, _)| format),
        "gzip": dataset.format.map(|(_, gzip)| gzip),
        "kind": dataset.kind,
        "bad_rows": dataset.bad.count(),
        "stats": stats,
        "examples": examples.iter().map(|(place, parts)| {
            let mut row: serde_json::Map<String, Value> =
                parts.iter().map(|(name, text)| (name.clone(), text.as_str().into())).collect();
            row.insert("place".into(), place.as_str().into());
            Value::Object(row)
        }).collect::<Vec<_>>(),
    });
    out.result(&value, || {
        let mut text = report(&dataset, &stats, args.tokens.model.is_some());
        for (i, (place, parts)) in examples.iter().enumerate() {
            let _ = writeln!(text, "\n{place}");
            for (name, part) in lines.get(i).and_then(Option::as_ref).unwrap_or(parts) {
                let _ = match args.as_trained {
                    true => writeln!(text, "  {name}\n{part}"),
                    false => writeln!(text, "  {name:<11} {}", clip(part, name == "prompt")),
                };
            }
        }
        text
    })
}

/// Location of each row, and its parts by name.
type Examples = Vec<(String, Vec<(String, String)>)>;

/// Returns the turns of a conversation, each with its author. `None` for other rows.
fn turns(row: &Row) -> Option<Vec<(String, String)>> {
    let of = |part: &str, content: &Content| match content {
        Content::Messages(messages) => messages.iter().map(turn).collect(),
        Content::Text(text) => vec![(part.to_owned(), text.clone())],
    };
    let marked = |part: &str, content: &Content| {
        let heading = (part.to_owned(), String::new());
        match content {
            Content::Messages(_) => std::iter::once(heading).chain(of(part, content)).collect(),
            Content::Text(_) => of(part, content),
        }
    };
    let is_several = |content: &Content| matches!(content, Content::Messages(messages) if messages.len() > 1);
    match &row.data {
        RowData::Messages(messages) => Some(messages.iter().map(turn).collect()),
        RowData::Prompt(prompt) if is_several(prompt) => Some(of("prompt", prompt)),
        RowData::PromptCompletion { prompt, completion } if is_several(prompt) || is_several(completion) => {
            Some([marked("prompt", prompt), marked("completion", completion)].concat())
        }
        RowData::Preference { prompt: Some(prompt), chosen, rejected, .. }
            if [prompt, chosen, rejected].into_iter().any(is_several) =>
        {
            Some([marked("prompt", prompt), marked("chosen", chosen), marked("rejected", rejected)].concat())
        }
        _ => None,
    }
}

/// Returns the author of a message, and its text with the tool calls.
fn turn(message: &Message) -> (String, String) {
    let name = message.extra.get("name").and_then(Value::as_str);
    let who = name.map_or_else(|| message.role.clone(), |name| format!("{} {name}", message.role));
    let call = |call: &Value| {
        let function = call.get("function").unwrap_or(call);
        let name = function.get("name").and_then(Value::as_str).unwrap_or("?");
        let arguments = match function.get("arguments") {
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
            None => String::new(),
        };
        format!("→ {name}({arguments})")
    };
    let calls = message.extra.get("tool_calls").and_then(Value::as_array).into_iter().flatten().map(call);
    let text = Some(message.content.clone()).filter(|text| !text.is_empty());
    (who, text.into_iter().chain(calls).collect::<Vec<_>>().join(" "))
}

/// Returns the text that a model is trained on, with marks around the parts that carry loss.
fn trained(row: &Row, text: &Text, options: &TokenizeOptions) -> Vec<(String, String)> {
    let found = match trained_sequences(row, &text.tokenizer, text.template.as_ref(), options) {
        Ok(found) => found,
        Err(message) => return vec![("cannot be trained on".into(), message)],
    };
    let marked = |parts: &[(String, bool)]| -> String {
        parts.iter().map(|(text, learned)| if *learned { format!("⟦{text}⟧") } else { text.clone() }).collect()
    };
    let shown = |TrainedSequence { name, parts, tokens, learned, cut }: TrainedSequence| {
        let mut heading = name.map(|name| format!("{name}: ")).unwrap_or_default();
        let _ = write!(heading, "{tokens} tokens, {learned} with loss");
        let mut text = marked(&parts);
        if cut > 0 {
            let _ = write!(heading, ", {cut} more cut off");
            if learned == 0 {
                heading.push_str("; nothing is left to learn");
            }
            text.push('✂');
        }
        (heading, text)
    };
    found.into_iter().map(shown).collect()
}

fn report(dataset: &Dataset, stats: &Stats, tokenized: bool) -> String {
    let mut text = String::new();
    let files = dataset.source.files.len();
    let _ = writeln!(text, "{}", dataset.name);
    let _ = writeln!(text, "  rows     {}", grouped(stats.rows));
    if dataset.bad.count() > 0 {
        let _ = writeln!(text, "  bad      {}", rows(dataset.bad.count()));
    }
    let _ = writeln!(text, "  kind     {}", dataset.kind.describe());
    let plural = if files == 1 { "" } else { "s" };
    let format = dataset
        .format
        .map_or(String::new(), |(format, gzip)| format!(", {}{}", format.describe(), if gzip { ", gzip" } else { "" }));
    let _ = writeln!(text, "  files    {files} file{plural}{format}, {}", bytes(stats.bytes));
    if let Some(split) = &dataset.source.split {
        let _ = writeln!(text, "  split    {split}");
    }
    if !stats.columns.is_empty() {
        let columns: Vec<&str> = stats.columns.iter().map(|(name, _)| name.as_str()).collect();
        let _ = writeln!(text, "  columns  {} (passed on to rewards and chat templates)", columns.join(", "));
    }

    if !stats.characters.is_empty() {
        let _ = writeln!(text, "\ncharacters  {}", HEADER);
        for field in &stats.characters {
            let _ = writeln!(text, "  {:<10}{}", field.name, line(&field.quantiles));
        }
    }
    if let Some(tally) = &stats.feedback {
        feedback(&mut text, tally);
    }
    if let Some(LabelTotals { unit, units, labels }) = &stats.labels {
        let _ = writeln!(text, "\nlabels     {} {unit}", grouped(*units));
        for (label, count) in labels {
            let _ = writeln!(text, "  {label:<24} {:>7}", grouped(*count));
        }
    }
    match &stats.tokens {
        Some(tokens) => {
            let _ = writeln!(text, "\ntokens      {}", HEADER);
            let _ = writeln!(text, "  {:<10}{}", "row", line(&tokens.quantiles));
            if tokens.sampled < stats.rows {
                let _ = writeln!(text, "  from {}, evenly spaced; `--sample` takes more", rows(tokens.sampled));
            }
            if let Some(failure) = &tokens.failure {
                let _ = writeln!(text, "  {} could not be tokenized: {failure}", rows(tokens.failed));
            }
            if tokens.cut > 0 {
                let _ = writeln!(text, "  {} cut at `--max-length`", rows(tokens.cut));
            }
            if tokens.dropped > 0 {
                let _ = writeln!(text, "  {} dropped: no token that carries loss is left", rows(tokens.dropped));
            }
            text.push('\n');
            bars(&mut text, &tokens.histogram, tokens.quantiles.max);
        }
        None if !tokenized => text.push_str("\n`--model DIR` counts tokens\n"),
        None => {}
    }
    text
}

/// Adds the counts of annotations.
fn feedback(text: &mut String, tally: &FeedbackCounts) {
    let mut kinds = |title: &str, counts: &[(&str, usize)], none: usize| {
        let total: usize = counts.iter().map(|(_, count)| count).sum();
        let _ = writeln!(text, "\n{title}  {}; none in {}", grouped(total), rows(none));
        for (name, count) in counts {
            let _ = writeln!(text, "  {name:<24} {:>7}", grouped(*count));
        }
    };
    kinds("errors", &tally.errors, tally.rows_without_errors);
    kinds("missing", &tally.missing, tally.rows_without_missing);
    let (same, empty) = (rows(tally.rows_uncorrected), rows(tally.rows_without_answer));
    let _ = writeln!(text, "\ncorrection  equal to the answer in {same}, empty in {empty}");
    if !tally.preferences.is_empty() {
        let _ = writeln!(text, "\npreferences    first  second neither");
    }
    for ([a, b], [first, second, neither]) in &tally.preferences {
        let _ = writeln!(text, "  {a} and {b}      {first:>7} {second:>7} {neither:>7}");
    }
}

const HEADER: &str = "    mean     min     p50     p90     p99     max";

fn line(quantiles: &Quantiles) -> String {
    let Quantiles { mean, min, p50, p90, p99, max } = quantiles;
    format!(" {mean:>7.1} {min:>7} {p50:>7} {p90:>7} {p99:>7} {max:>7}")
}

/// Draws one bar per bin. The last bin has a `+` if rows are longer than its width.
fn bars(text: &mut String, histogram: &Histogram, longest: usize) {
    const LONGEST: usize = 40;
    let Histogram { start, width, counts } = histogram;
    let most = counts.iter().copied().max().unwrap_or(0).max(1);
    let last = counts.len().saturating_sub(1);
    for (i, count) in counts.iter().enumerate() {
        let from = start + i * width;
        let to = from + width - 1;
        let range = match i == last && longest > to {
            true => format!("{from} +"),
            false if from == to => from.to_string(),
            false => format!("{from} – {to}"),
        };
        let bar = "█".repeat((count * LONGEST).div_ceil(most));
        let _ = writeln!(text, "  {range:>15} {bar} {}", grouped(*count));
    }
}

/// Shortens a text to one line: keeps the end of a prompt and the beginning of other texts.
fn clip(text: &str, end: bool) -> String {
    const WIDTH: usize = 100;
    let flat = text.replace('\n', "⏎");
    let length = flat.chars().count();
    if length <= WIDTH {
        return flat;
    }
    if end {
        format!("…{}", flat.chars().skip(length - WIDTH).collect::<String>())
    } else {
        format!("{}…", flat.chars().take(WIDTH).collect::<String>())
    }
}

fn bytes(count: u64) -> String {
    match count {
        0..1_000 => format!("{count} B"),
        1_000..1_000_000 => format!("{:.1} kB", count as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", count as f64 / 1e6),
        _ => format!("{:.2} GB", count as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_bin_is_open_only_if_a_row_is_longer() {
        let begins = |histogram: &Histogram, longest: usize, expected: &[&str]| {
            let mut text = String::new();
            bars(&mut text, histogram, longest);
            let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
            assert_eq!(lines.len(), expected.len(), "{text}");
            lines.iter().zip(expected).for_each(|(line, begin)| assert!(line.starts_with(begin), "{text}"));
        };
        let narrow = Histogram { start: 11, width: 1, counts: vec![2, 0, 1] };
        begins(&narrow, 13, &["11 █", "12  0", "13 █"]);
        let wide = Histogram { start: 10, width: 5, counts: vec![1, 3] };
        begins(&wide, 19, &["10 – 14 █", "15 – 19 █"]);
        begins(&wide, 20, &["10 – 14 █", "15 + █"]);
    }
}
