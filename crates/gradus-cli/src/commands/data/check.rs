//! `gradus data check`: finds rows that are readable but harmful for training.

use std::fmt::Write as _;

use gradus::data::{BadRows, Dataset, FindingGroup, LoadOptions, TemplateColumns, lint, lint_join, load};
use serde_json::json;

use super::{RowArgs, TokenArgs, rows};
use crate::output::Output;

/// Arguments of `gradus data check`.
#[derive(Debug, clap::Args)]
pub struct CheckArgs {
    #[command(flatten)]
    rows: RowArgs,
    #[command(flatten)]
    tokens: TokenArgs,
    /// QA split that rows with fine-grained feedback annotate. Every question must be in it, with the same reference
    #[arg(long, value_name = "DATA")]
    questions: Option<String>,
}

/// Checks the rows. Problems cause exit code 1, remarks do not.
pub fn run(args: CheckArgs, out: &Output) -> anyhow::Result<()> {
    let dataset = args.rows.load(BadRows::Skip, out)?;
    let text = args.tokens.text()?;
    let options = args.tokens.options(args.rows.rule(), text.as_ref());
    let (tokenizer, template) = match &text {
        Some(text) => (Some(&text.tokenizer), text.template.as_ref()),
        None => {
            out.note("`--model DIR` also checks lengths and end-of-text tokens");
            (None, None)
        }
    };
    let mut groups = lint(&dataset.rows, tokenizer, template, &options);
    if let Some(questions) = &args.questions {
        let split = load(questions, &LoadOptions::default())?;
        groups.extend(lint_join(&dataset.rows, &split.rows));
    }
    let value = json!({
        "rows": dataset.rows.len() + dataset.bad.count(),
        "bad_rows": {
            "count": dataset.bad.count(),
            "first": dataset.bad.first().iter().map(ToString::to_string).collect::<Vec<_>>(),
        },
        "findings": groups.iter().map(|group| json!({
            "kind": group.kind,
            "remark": group.kind.is_remark(),
            "count": group.count,
            "first": group.first.iter().map(|finding| json!({
                "file": &*finding.location.file,
                "line": finding.location.line,
                "message": finding.message,
            })).collect::<Vec<_>>(),
        })).collect::<Vec<_>>(),
    });
    out.result(&value, || report(&dataset, &groups))?;
    let problems = dataset.bad.count() + groups.iter().filter(|g| !g.kind.is_remark()).map(|g| g.count).sum::<usize>();
    if problems > 0 {
        let plural = if problems == 1 { "" } else { "s" };
        anyhow::bail!("{problems} problem{plural} in {}", rows(dataset.rows.len() + dataset.bad.count()));
    }
    Ok(())
}

fn report(dataset: &Dataset, groups: &[FindingGroup]) -> String {
    let mut text = String::new();
    if dataset.bad.count() > 0 {
        let _ = writeln!(text, "bad rows: {}", rows(dataset.bad.count()));
        for error in dataset.bad.first() {
            let _ = writeln!(text, "  {error}");
        }
        more(&mut text, dataset.bad.count(), dataset.bad.first().len());
    }
    for group in groups {
        let remark = if group.kind.is_remark() { " (remark)" } else { "" };
        let _ = writeln!(text, "{}: {}{remark}", group.kind.describe(), rows(group.count));
        for finding in &group.first {
            let _ = writeln!(text, "  {}: {}", finding.location, finding.message);
        }
        more(&mut text, group.count, group.first.len());
    }
    if text.is_empty() {
        text = format!("{}: {}{}, no problems found", dataset.name, rows(dataset.rows.len()), form(dataset));
    }
    text
}

/// Describes the form of the rows, and lists the columns outside this form. Rows of an unintended form are readable, too. Other purposes than
/// that of this command may read other forms.
fn form(dataset: &Dataset) -> String {
    let mut others: Vec<&str> = Vec::new();
    for row in &dataset.rows {
        let is_read = |name: &str| row.data.is_conversation() && TemplateColumns::NAMES.contains(&name);
        let names = row.columns.keys().map(String::as_str);
        let new: Vec<&str> = names.filter(|name| !is_read(name) && !others.contains(name)).collect();
        others.extend(new);
    }
    let others: Vec<String> = others.iter().take(5).map(|name| format!("`{name}`")).collect();
    let outside = match others.is_empty() {
        true => String::new(),
        false => format!(" (not of this form: {})", others.join(", ")),
    };
    format!(" of {}{outside}", dataset.kind.describe())
}

fn more(text: &mut String, count: usize, shown: usize) {
    if count > shown {
        let _ = writeln!(text, "  … and {} more", count - shown);
    }
}
