//! `gradus data`: shows, checks and converts a data set.

use gradus::data::{
    BadRows, Dataset, Dropped, ImplicitPrompt, LoadOptions, Need, Row, RowFilter, TokenizeOptions, TooLong,
};
use gradus::model::ModelDir;
use gradus::pretrained::TextFiles;
use gradus::task::{TaskConfig, load};
use gradus::text::{ChatTemplate, Tokenizer};

use super::columns::ColumnArgs;
use super::text::TextArgs;
use crate::flags;
use crate::output::Output;
use crate::watch::{fetch_rows, interrupt_of};

mod check;
mod convert;
mod show;
mod split;

/// Arguments of `gradus data`.
#[derive(Debug, clap::Args)]
pub struct DataArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Show sizes, lengths with a histogram, and examples
    Show(show::ShowArgs),
    /// Check rows for empty turns, identical pairs, missing end-of-text tokens, duplicates, wrong roles, …
    Check(check::CheckArgs),
    /// Write the rows in another format or form
    Convert(convert::ConvertArgs),
    /// Write some rows to one file and the others to another: at random, by a column's values, or stratified
    Split(split::SplitArgs),
}

/// Runs the subcommand.
pub fn run(args: DataArgs, out: &Output) -> anyhow::Result<()> {
    match args.verb {
        Verb::Show(args) => show::run(args, out),
        Verb::Check(args) => check::run(args, out),
        Verb::Convert(args) => convert::run(args, out),
        Verb::Split(args) => split::run(args, out),
    }
}

/// Selection and form of the rows to read.
#[derive(Debug, clap::Args)]
struct RowArgs {
    /// File, directory or hub name; `NAME:SPLIT` selects a split, `NAME:CONFIG` or `NAME:CONFIG:SPLIT` a config
    #[arg(value_name = "DATA", required_unless_present_any = ["task", "named"])]
    data: Option<String>,
    /// The same, under the name that other commands use
    #[arg(long = "data", id = "named", value_name = "DATA", conflicts_with = "data")]
    named: Option<String>,
    /// Task whose public files (by default those on the hub) provide the rows: its name, or its name and keys as YAML
    #[arg(long, value_name = "TASK")]
    task: Option<String>,
    /// Split of the task: train, validation or test
    #[arg(long, value_name = "SPLIT")]
    split: Option<String>,
    /// Column that holds plain text
    #[arg(long, value_name = "NAME", default_value = "text")]
    text_column: String,
    #[command(flatten)]
    columns: ColumnArgs,
    /// Read at most this many rows
    #[arg(long, value_name = "N")]
    max_rows: Option<usize>,
    /// Rule that finds the end of a prompt that both answers contain: `turns` (HH transcripts by their turns) or `trl`
    #[arg(long, value_name = "RULE", default_value = "turns")]
    implicit_prompt: Rule,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Rule {
    Turns,
    Trl,
}

/// Tokenization of rows.
#[derive(Debug, clap::Args)]
struct TokenArgs {
    /// Model whose tokenizer and chat template measure the rows: a directory or a hub name
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    #[command(flatten)]
    text_files: TextArgs,
    /// System message for conversations that have none
    #[arg(long, value_name = "TEXT", requires = "model")]
    system_prompt: Option<String>,
    /// Read transcripts as conversations, as `train.transcripts_as_messages` does
    #[arg(long, requires = "model")]
    transcripts_as_messages: bool,
    /// Maximum length of a row in tokens
    #[arg(long, value_name = "N", default_value_t = 1024)]
    max_length: usize,
}

/// Filters for rows.
#[derive(Debug, clap::Args)]
struct FilterArgs {
    /// Leave out pairs that the data marks as ties: margin 0, or equal scores of both answers
    #[arg(long, alias = "filter-drop-ties")]
    drop_ties: bool,
    /// Leave out pairs with equal answers
    #[arg(long, alias = "filter-drop-equal")]
    drop_equal: bool,
    /// Leave out rows with an answer of fewer characters
    #[arg(long, alias = "filter-min-characters", value_name = "N", default_value_t = 0)]
    min_characters: usize,
    /// Leave out rows with an answer of fewer tokens, as the tokenizer of `--model` counts them
    #[arg(long, alias = "filter-min-tokens", value_name = "N", default_value_t = 0, requires = "model")]
    min_tokens: usize,
    /// Model whose tokenizer counts: a directory or a hub name
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
}

impl FilterArgs {
    fn filter(&self) -> RowFilter {
        let &Self { drop_ties, drop_equal, min_characters, min_tokens, .. } = self;
        RowFilter { drop_ties, drop_equal, min_characters, min_tokens }
    }

    /// Returns the remaining rows, and reports what was left out.
    fn apply(&self, rows: Vec<Row>, rule: ImplicitPrompt, out: &Output) -> anyhow::Result<(Vec<Row>, Dropped)> {
        let directory =
            self.model.as_deref().map(|name| gradus::model::resolve(name, &mut |_, _, _| {})).transpose()?;
        let tokenizer = directory.map(|directory| Tokenizer::from_dir(&directory)).transpose()?;
        let (rows, dropped) = self.filter().apply(rows, rule, tokenizer.as_ref())?;
        if let Some(remark) = dropped.remark() {
            out.note(remark);
        }
        Ok((rows, dropped))
    }
}

struct Text {
    tokenizer: Tokenizer,
    /// Whether an encoder reads prompts. Prompts and completions are then tokenized separately.
    encoder_reads_prompt: bool,
    template: Option<ChatTemplate>,
}

impl RowArgs {
    fn rule(&self) -> ImplicitPrompt {
        match self.implicit_prompt {
            Rule::Turns => ImplicitPrompt::Turns,
            Rule::Trl => ImplicitPrompt::Trl,
        }
    }

    fn load(&self, bad_rows: BadRows, out: &Output) -> anyhow::Result<Dataset> {
        self.load_as(Need::Any, bad_rows, out)
    }

    fn load_as(&self, need: Need, bad_rows: BadRows, out: &Output) -> anyhow::Result<Dataset> {
        let (rename, text_column) = (self.columns.renames()?, self.text_column.clone());
        let options = LoadOptions { need, text_column, rename, max_rows: self.max_rows, bad_rows };
        let named = self.data.as_deref().or(self.named.as_deref());
        let data = flags::data(named, self.task.as_deref(), self.split.as_deref())?;
        fetch_rows(&data, out)?;
        let asks = data.task.as_ref().is_some_and(TaskConfig::starts_program);
        let dataset = load(&data, &options, &interrupt_of(asks, out))?;
        dataset.remarks.iter().for_each(|remark| out.warn(remark));
        if let (Some(split), false) = (&dataset.source.split, dataset.source.other_splits.is_empty()) {
            let others: Vec<String> = dataset.source.other_splits.iter().map(|s| format!("`{s}`")).collect();
            let example = format!("{data}:{}", dataset.source.other_splits[0]);
            out.note(format_args!(
                "reading the split `{split}`; other splits: {}, as in `{example}`",
                others.join(", ")
            ));
        }
        Ok(dataset)
    }
}

impl TokenArgs {
    fn text(&self) -> anyhow::Result<Option<Text>> {
        let Some(name) = &self.model else {
            self.text_files.refuse("needs `--model`: the flag affects only the token counts of a model")?;
            return Ok(None);
        };
        let directory = &gradus::model::resolve(name, &mut |_, _, _| {})?;
        let files: TextFiles = self.text_files.clone().into();
        let beside = files.tokenizer.map(|name| gradus::model::resolve(&name, &mut |_, _, _| {})).transpose()?;
        let beside = beside.as_ref().unwrap_or(directory);
        let tokenizer = Tokenizer::of_model(beside, directory)?;
        let template = match &files.chat_template {
            Some(choice) => Some(ChatTemplate::chosen(choice, &tokenizer)?),
            None => ChatTemplate::from_dir(beside, &tokenizer)?,
        };
        // A directory may contain a tokenizer without a model.
        let encoder_reads_prompt = ModelDir::open(directory).and_then(|dir| dir.has_encoder()).unwrap_or(false);
        Ok(Some(Text { tokenizer, encoder_reads_prompt, template }))
    }

    fn options(&self, rule: ImplicitPrompt, text: Option<&Text>) -> TokenizeOptions {
        TokenizeOptions {
            max_length: Some(self.max_length),
            too_long: TooLong::Truncate,
            system_prompt: self.system_prompt.clone(),
            transcripts_as_messages: self.transcripts_as_messages,
            implicit_prompt: rule,
            encoder_reads_prompt: text.is_some_and(|text| text.encoder_reads_prompt),
            ..TokenizeOptions::default()
        }
    }
}

/// Formats `1234567` as `1,234,567`.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats `1 row`, `2,312 rows`.
fn rows(count: usize) -> String {
    format!("{} row{}", grouped(count), if count == 1 { "" } else { "s" })
}
