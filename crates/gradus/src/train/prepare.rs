//! Preparation of every run: the start model's directory, its tokenizer, and the rows.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use rand::seq::SliceRandom;

use super::fingerprint;
use crate::config::{MixedData, Plan};
use crate::data::{
    self, BadRows, Counts, Dataset, ImplicitPrompt, LoadOptions, Need, ReferenceRule, Row, RowLocation, SkippedRow,
    TokenizeOptions,
};
use crate::error::{Error, Result};
use crate::model::{self, open_model};
use crate::observer::{Event, Observer};
use crate::pretrained::{Pretrained, TextFiles};
use crate::process::Interrupt;
use crate::ranks::Ranks;
use crate::reward::config::RewardConfig;
use crate::rng::{Purpose, Stream};
use crate::run::{DataFingerprint, Existing};
use crate::shell;
use crate::task::{self, DataConfig};
use crate::text::Tokenizer;

/// The start model's directory and its tokenizer.
#[derive(Debug)]
pub struct Start {
    /// The directory, its tokenizer and its chat template.
    pub model: Pretrained,
    /// Fingerprint that the rows must have, for a resumed run.
    pub expected_data: Option<DataFingerprint>,
    /// Fingerprint of the rows, once they have been read.
    pub data: OnceCell<DataFingerprint>,
    /// Ranks that must read the same rows.
    pub ranks: Ranks,
}

impl Start {
    /// Opens the start model of `plan` and checks its tokenizer.
    ///
    /// # Errors
    /// If a file is missing or corrupt, or the vocabularies disagree.
    pub fn open(plan: &Plan) -> Result<Self> {
        let mut dir = open_model(&plan.config().model)?;
        if let Some(adapter) = &plan.config().adapter {
            dir = dir.with_adapter(&model::resolve(adapter, &mut |_, _, _| {})?)?;
        }
        if let (Some(adapter), Some(_)) = (&dir.adapter, &plan.config().lora) {
            let message = format!("`{}` is an adapter already, but `lora` requests a new one", plan.config().model);
            return Err(Error::input(message).with_hint(format!(
                "leave `lora` out to continue it, or merge it into its base first: `gradus merge --model {} --output \
                 DIR`",
                shell::path(&adapter.path)
            )));
        }
        let text =
            TextFiles { tokenizer: plan.config().tokenizer.clone(), chat_template: plan.train().chat_template.clone() };
        let model = Pretrained::of(dir, &text)?;
        Ok(Self { model, expected_data: None, data: OnceCell::new(), ranks: Ranks::ALONE })
    }

    /// Returns true if an adapter is trained instead of the model itself.
    pub fn adapts(&self, plan: &Plan) -> bool {
        plan.config().lora.is_some() || self.model.dir.adapter.is_some()
    }

    /// Reads [`rows`] and checks that they are those of the run so far and of all ranks.
    ///
    /// # Errors
    /// If they cannot be read, or differ.
    pub fn rows(
        &self,
        plan: &Plan,
        need: Need,
        is_usable: &dyn Fn(&Row) -> bool,
        interrupt: &Interrupt,
    ) -> Result<Split> {
        let split = rows(plan, &self.model.tokenizer, need, is_usable, interrupt)?;
        let found = fingerprint::of(&split.train, &split.held_out, &split.test);
        if let Some(expected) = &self.expected_data {
            fingerprint::check(expected, &found)?;
        }
        fingerprint::check_rows_of_ranks(self.ranks, &found)?;
        // Rows are read once per run; a second reading would give the same.
        let _ = self.data.set(found);
        Ok(split)
    }
}

/// Downloads the models of `plan` from the hub, with progress for the observer.
///
/// # Errors
/// If the hub cannot be reached, or has no such model.
pub fn fetch_models(plan: &Plan, observer: &mut dyn Observer) -> Result<()> {
    let config = plan.config();
    let mut names = vec![config.model.as_str()];
    names.extend(config.adapter.as_deref());
    names.extend(config.tokenizer.as_deref());
    let cast = plan.method().method().cast(&config.shared());
    names.extend(cast.names());
    for name in names {
        let mut shown = String::new();
        model::resolve(name, &mut |file, done, total| {
            if shown != file {
                shown = file.to_owned();
                let name = format!("downloading {file}");
                observer.event(&Event::Phase { name: &name, total: Some(total), done });
            }
            observer.event(&Event::Progress { done });
        })?;
    }
    Ok(())
}

/// Rejects data files without the columns that the method or the reward reads, according to their first rows. Data from tasks or from the
/// hub are checked when they are read.
///
/// # Errors
/// The first file without such a column.
pub fn check_columns(plan: &Plan) -> Result<()> {
    // An early check only avoids leaving a new run directory behind. A run that is replaced stays until the new one begins anyway.
    if plan.existing() == Existing::Overwrite && plan.output_dir().is_dir() {
        return Ok(());
    }
    let (config, options) = (plan.config(), load_options(plan, plan.method().method().need())?);
    // Rows that are filtered out or changed by an environment need no column of the reward.
    let is_scored = plan.method().is_online() && config.environment.is_none() && !plan.train().filter.is_on();
    let of_reward = config.reward.as_ref().filter(|_| is_scored).map_or_else(Vec::new, RewardConfig::columns);
    let held_out = config.held_out().filter(|_| plan.train().eval_steps >= 0);
    let mixed = config.mix.iter().map(|source| source.data.clone());
    for data in [config.data.clone()].into_iter().chain(mixed).chain(held_out).chain(config.test()) {
        let is_here = data.from.as_ref().is_some_and(|path| Path::new(path).is_file() || Path::new(path).is_dir());
        if data.task.is_some() || !is_here {
            continue;
        }
        let Some(row) = data::first_row(&data.name(), &options)? else { continue };
        if let Some((reward, column)) = of_reward.iter().find(|(_, column)| !row.columns.contains_key(*column)) {
            let found: Vec<String> = row.columns.keys().map(|name| format!("`{name}`")).collect();
            let found = if found.is_empty() { "only the prompt".into() } else { found.join(", ") };
            let message = format!("missing column `{column}`, which the reward `{reward}` reads (found {found})");
            let hint = format!("name your own column: `--column {column}=YOURS`, or another one in the reward");
            return Err(row.location.error(message).with_hint(hint));
        }
    }
    Ok(())
}

fn load_options(plan: &Plan, need: Need) -> Result<LoadOptions> {
    let train = plan.train();
    Ok(LoadOptions {
        text_column: train.text_column.clone(),
        rename: train.renames().map_err(Error::input)?,
        bad_rows: bad_rows(plan),
        ..LoadOptions::needing(need)
    })
}

/// Training rows and rows for evaluation.
#[derive(Debug)]
pub struct Split {
    /// Training rows, in the order of the file.
    pub train: Vec<Row>,
    /// Held-out rows, which are never trained on.
    pub held_out: Vec<Row>,
    /// `train.max_rows`, if the data have that many rows.
    pub max_rows: Option<usize>,
    /// `train.max_eval_rows`: most rows that are held out, or read as test rows.
    pub max_eval_rows: usize,
    /// Whether the run evaluates the held-out rows. If not, they are only kept from training.
    pub evaluates: bool,
    /// Test rows, which are never trained on.
    pub test: Vec<Row>,
    /// Bad rows that were skipped.
    pub skipped: Vec<SkippedRow>,
    /// Number of rows that `train.filter` left out, one sentence per source of rows.
    pub filtered: Vec<String>,
    /// Surprises when reading the rows, one sentence each.
    pub remarks: Vec<String>,
}

impl Split {
    /// Held-out rows that the run evaluates.
    pub fn evaluated(&self) -> &[Row] {
        if self.evaluates { &self.held_out } else { &[] }
    }

    /// Key and value of the limit of training rows, if it was reached.
    pub fn train_limit(&self) -> Option<(&'static str, usize)> {
        Some(("train.max_rows", self.max_rows?))
    }

    /// Key and value of the limit of held-out or test rows, if `rows` reach it.
    pub fn eval_limit(&self, rows: &[Row]) -> Option<(&'static str, usize)> {
        (rows.len() >= self.max_eval_rows).then_some(("train.max_eval_rows", self.max_eval_rows))
    }
}

/// Reads the rows, applies `train.filter` (with `tokenizer` to count tokens), and holds some rows out, unless `eval_data` or a task
/// provides others. A run without evaluations holds rows out only if the user set `train.eval_fraction`. Only `is_usable` rows are held out;
/// the next ones replace the others. An `interrupt` ends the wait for a program.
///
/// # Errors
/// If the rows cannot be read, or the filter leaves none.
pub fn rows(
    plan: &Plan,
    tokenizer: &Tokenizer,
    need: Need,
    is_usable: &dyn Fn(&Row) -> bool,
    interrupt: &Interrupt,
) -> Result<Split> {
    let (config, train) = (plan.config(), plan.train());
    let options = load_options(plan, need)?;
    let mut remarks: Vec<String> = Vec::new();
    let mut load = |data: &DataConfig, options: &LoadOptions| {
        let Dataset { rows, bad, remarks: more, .. } = task::load(data, options, interrupt)?;
        // Rows may be read twice.
        remarks.extend(more.into_iter().filter(|remark| !remarks.contains(remark)).collect::<Vec<_>>());
        Ok::<_, Error>((rows, bad.into_skipped()))
    };
    let drawn_from_all = train.max_rows.filter(|_| train.max_rows_at_random);
    let first = if drawn_from_all.is_some() { None } else { train.max_rows };
    let (mut rows, mut skipped) = load(&config.data, &LoadOptions { max_rows: first, ..options.clone() })?;
    if let Some(most) = drawn_from_all {
        rows = draw(rows, most, plan.seed().stream(Purpose::Rows, 0, 0));
    }
    let max_rows = train.max_rows.filter(|&most| rows.len() >= most);
    // Number of rows up to the end of each source.
    let mut ends = vec![rows.len()];
    for (i, source) in config.mix.iter().enumerate() {
        let (more, bad) = load(&source.data, &LoadOptions { max_rows: source.max_rows, ..options.clone() })?;
        skipped.extend(bad);
        rows.extend(drawn(more, source, plan.seed().stream(Purpose::Mix, 0, i as u64))?);
        ends.push(rows.len());
    }
    // Rows of several sources are numbered consecutively.
    rows.iter_mut().enumerate().for_each(|(index, row)| row.index = index);
    // Filtered after the rows have their numbers, so that records refer to positions in the data.
    let mut filtered = Vec::new();
    let mut filter = |rows: Vec<Row>, what: &str| {
        let (rows, dropped) = train.filter.apply(rows, ImplicitPrompt::default(), Some(tokenizer))?;
        filtered.extend(dropped.remark().map(|remark| format!("{what}: {remark}")));
        Ok::<_, Error>(rows)
    };
    rows = filter(rows, "`data`")?;
    let most = most_held_out(plan, need);
    // Rows of another source, limited to the number that is evaluated.
    let mut load_separate = |data: &DataConfig, key: &str| {
        let first = (!train.filter.is_on()).then_some(most);
        let (mut found, mut bad) = load(data, &LoadOptions { max_rows: first, ..options.clone() })?;
        found = filter(found, key)?;
        if train.filter.is_on() {
            found.retain(is_usable);
            found.truncate(most);
        } else if found.len() + bad.len() >= most && !(bad.is_empty() && found.iter().all(is_usable)) {
            (found, bad) = load(data, &options)?;
            found.retain(is_usable);
            found.truncate(most);
        }
        skipped.extend(bad);
        Ok::<_, Error>(found)
    };
    let test = config.test().map_or(Ok(Vec::new()), |data| load_separate(&data, "`test_data`"))?;
    let evaluates = train.eval_steps >= 0;
    let held_out = match config.held_out() {
        Some(_) if !evaluates => Vec::new(),
        None if !evaluates && !plan.is_set("train.eval_fraction") => Vec::new(),
        Some(data) => load_separate(&data, "`eval_data`")?,
        None => {
            let (held_out, repeats) = hold_out(&mut rows, &ends, most, plan, is_usable);
            if repeats > 0 {
                let what = if repeats == 1 { "1 row is".into() } else { format!("{repeats} rows are") };
                remarks.push(format!("{what} not trained on: the sources of `mix` share rows, and these are held out"));
            }
            held_out
        }
    };
    Ok(Split { train: rows, held_out, max_rows, max_eval_rows: most, evaluates, test, skipped, filtered, remarks })
}

fn bad_rows(plan: &Plan) -> BadRows {
    if plan.train().skip_bad_rows { BadRows::Skip } else { BadRows::FailOrSkip }
}

/// Samples the number of `rows` that `source` requests, in the order of the file.
fn drawn(rows: Vec<Row>, source: &MixedData, stream: Stream) -> Result<Vec<Row>> {
    let count = source.rows.unwrap_or(rows.len());
    if count > rows.len() {
        let message = format!("`mix` requests {count} rows of `{}`, which has {}", source.data, rows.len());
        return Err(Error::input(message).with_hint("request fewer, or leave `rows` out to use all"));
    }
    Ok(draw(rows, count, stream))
}

/// Samples at most `count` of `rows` at random, in the order of the file.
fn draw(mut rows: Vec<Row>, count: usize, mut stream: Stream) -> Vec<Row> {
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.shuffle(&mut stream);
    let mut chosen = vec![false; rows.len()];
    order[..count.min(rows.len())].iter().for_each(|&row| chosen[row] = true);
    let mut index = 0;
    rows.retain(|_| {
        index += 1;
        chosen[index - 1]
    });
    rows
}

/// Default number of held-out prompts of online methods, because each costs a completion per evaluation.
pub(super) const MAX_EVAL_PROMPTS: usize = 100;

fn most_held_out(plan: &Plan, need: Need) -> usize {
    let most = plan.train().max_eval_rows;
    if need == Need::Prompt && !plan.is_set("train.max_eval_rows") { most.min(MAX_EVAL_PROMPTS) } else { most }
}

/// Minimum for meaningful evaluations. A small data set gives up to a fifth of its rows for them.
const FEWEST_HELD_OUT: usize = 16;

/// Number of `rows` to hold out. With `--no-shuffle` it is 0, unless a share is set.
fn held_out_rows(plan: &Plan, rows: usize) -> usize {
    let share = (rows as f64 * plan.train().eval_fraction) as usize;
    match (plan.is_set("train.eval_fraction"), plan.train().shuffle) {
        (true, _) => share,
        (false, true) => share.max(FEWEST_HELD_OUT.min(rows / 5)),
        (false, false) => 0,
    }
}

/// Removes the rows to hold out, at most `most`: at random, or without shuffling the last ones of each source, by its share. `ends` has the
/// number of rows up to the end of each source. Both parts keep the order of the data. Unusable rows are replaced by other rows, but at most a
/// quarter of all rows is considered. Training rows that repeat a held-out row are dropped. Returns the held-out rows and the number of
/// dropped rows.
fn hold_out(
    rows: &mut Vec<Row>,
    ends: &[usize],
    most: usize,
    plan: &Plan,
    is_usable: &dyn Fn(&Row) -> bool,
) -> (Vec<Row>, usize) {
    // Rows of one source are never the same row.
    let first: Vec<usize> = if ends.len() > 1 { first_occurrences(rows) } else { (0..rows.len()).collect() };
    let shuffles = plan.train().shuffle;
    let mut strata: Vec<Vec<usize>> = vec![Vec::new(); ends.len()];
    for row in (0..rows.len()).filter(|&row| first[row] == row) {
        let source = ends.partition_point(|&end| end <= rows[row].index);
        strata[if shuffles { 0 } else { source }].push(row);
    }
    if shuffles {
        strata[0].shuffle(&mut plan.seed().stream(Purpose::Split, 0, 0));
    }
    let sizes: Vec<usize> = strata.iter().map(Vec::len).collect();
    let count = held_out_rows(plan, sizes.iter().sum()).min(most);
    let mut chosen = vec![false; rows.len()];
    for (stratum, count) in strata.iter().zip(data::shares(count, &sizes)) {
        let looked_at = stratum.iter().rev().take(count.max(stratum.len() / 4));
        looked_at.filter(|&&row| is_usable(&rows[row])).take(count).for_each(|&row| chosen[row] = true);
    }
    let (mut held_out, mut repeats) = (Vec::new(), 0);
    for (index, row) in std::mem::take(rows).into_iter().enumerate() {
        match chosen[first[index]] {
            false => rows.push(row),
            true if first[index] == index => held_out.push(row),
            true => repeats += 1,
        }
    }
    (held_out, repeats)
}

/// Returns, for each row, the index of the first row that is the same: at the same place of the same file, with the same content.
fn first_occurrences(rows: &[Row]) -> Vec<usize> {
    // A file may have several names.
    let mut files: HashMap<&Path, PathBuf> = HashMap::new();
    for row in rows {
        let file = &*row.location.file;
        files.entry(file).or_insert_with(|| file.canonicalize().unwrap_or_else(|_| file.to_owned()));
    }
    let mut at_place: HashMap<(&Path, usize, Option<usize>), Vec<usize>> = HashMap::new();
    let first_of = |(index, row): (usize, &Row)| {
        let RowLocation { file, line, row_in_array } = &row.location;
        let known = at_place.entry((files[&**file].as_path(), *line, *row_in_array)).or_default();
        // A task may make several rows of one line.
        let is_same = |&first: &usize| rows[first].data == row.data && rows[first].columns == row.columns;
        let found = known.iter().copied().find(is_same);
        found.unwrap_or_else(|| {
            known.push(index);
            index
        })
    };
    rows.iter().enumerate().map(first_of).collect()
}

/// Returns the options for tokenizing rows for `model`, as `plan` sets them; `max_length` is in tokens.
///
/// # Errors
/// If the model's family is unknown.
pub fn tokenize_options(plan: &Plan, model: &Pretrained, max_length: Option<usize>) -> Result<TokenizeOptions> {
    Ok(TokenizeOptions {
        max_length,
        encoder_reads_prompt: model.dir.has_encoder()?,
        too_long: plan.too_long(),
        prompt_cut: plan.train().max_prompt_length.map(|most| (most, plan.train().prompt_truncation)),
        transcripts_as_messages: plan.train().transcripts_as_messages,
        system_prompt: plan.train().system_prompt.clone(),
        implicit_prompt: ImplicitPrompt::default(),
        references: match plan.config().reward.as_ref().is_some_and(RewardConfig::compares) {
            // Metrics measure only the held-out rows, so the others need no references.
            false if plan.train().evaluation.metrics.is_empty() => ReferenceRule::Any,
            _ => ReferenceRule::Texts,
        },
        bad_rows: bad_rows(plan),
        ..TokenizeOptions::default()
    })
}

/// Reports how many rows were used. A reached `limit`, its key and value, is named: files may have more rows than were read.
pub fn report(what: &str, counts: &Counts, limit: Option<(&str, usize)>, observer: &mut dyn Observer) {
    let blocks = match counts.blocks {
        0 => String::new(),
        blocks => format!(" in {blocks} blocks"),
    };
    let limit = limit.map_or_else(String::new, |(key, most)| format!("; `{key}` is {most}"));
    let message = format!("{what}: {} of {} rows, {} tokens{blocks}{limit}", counts.kept, counts.rows, counts.tokens);
    observer.event(&Event::Message(&message));
    for remark in counts.remarks() {
        observer.event(&Event::Warning(&format!("{what}: {remark}")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RunConfig;
    use crate::data;
    use crate::machine::Machine;

    #[test]
    fn rows_drawn_from_all_keep_the_order_of_the_file_and_are_never_too_many() {
        let rows = |count: usize| -> Vec<Row> {
            let file = tempfile::Builder::new().suffix(".jsonl").tempfile().expect("a temporary file");
            let lines: Vec<String> = (0..count).map(|i| format!("{{\"text\": \"{i}\"}}")).collect();
            std::fs::write(file.path(), lines.join("\n")).expect("written");
            data::load(&file.path().display().to_string(), &LoadOptions::needing(Need::Sft)).expect("rows").rows
        };
        let stream = || crate::rng::Seed(1).stream(Purpose::Rows, 0, 0);
        let indices = |rows: Vec<Row>| rows.iter().map(|row| row.index).collect::<Vec<_>>();
        let few = indices(draw(rows(50), 10, stream()));
        assert!(few.len() == 10 && few.is_sorted() && few != (0..10).collect::<Vec<_>>(), "{few:?}");
        assert_eq!(indices(draw(rows(3), 10, stream())), [0, 1, 2]);
    }

    #[test]
    fn a_mix_takes_tasks() {
        let text = "{model: m, data: {task: increasing_numbers}, mix: [{data: {task: dates}, rows: 5}], \
                    method: {grpo: {}}, reward: {rule: {regex: a}}}";
        let plan = Plan::check(&RunConfig::parse(text).expect("it reads"), &Machine::detect()).expect("it can run");
        let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/parity/trajectories/models/gpt2");
        let tokenizer = Tokenizer::from_dir(std::path::Path::new(fixtures)).expect("a tokenizer");
        let split = rows(&plan, &tokenizer, Need::Prompt, &|_| true, &Interrupt::default()).expect("rows");
        assert_eq!(split.train.len(), 50 + 5);
        assert!(
            split.train[50..].iter().all(|row| row.location.file.ends_with("dates")),
            "{:?}",
            split.train[50].location
        );
        assert!(split.train.iter().enumerate().all(|(i, row)| row.index == i));
        let refused = text.replace("grpo: {}}, reward: {rule: {regex: a}}", "reward: {}}");
        let refused = RunConfig::parse(&refused.replace("{task: increasing_numbers}", "d"))
            .and_then(|written| Plan::check(&written, &Machine::detect()));
        let error = refused.expect_err("pairs are needed").to_string();
        assert!(
            error.contains("`mix[0].data.task` has prompts and references, but `reward` trains on pairs"),
            "{error}"
        );
    }

    #[test]
    fn max_rows_of_a_mix_takes_the_first_rows_of_that_source() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = |name: &str, rows: usize| {
            let lines: Vec<String> = (0..rows).map(|i| format!("{{\"text\": \"{name} {i}\"}}")).collect();
            let path = folder.path().join(format!("{name}.jsonl"));
            std::fs::write(&path, lines.join("\n")).expect("written");
            path.display().to_string()
        };
        let (one, many, few) = (file("one", 6), file("many", 9), file("few", 2));
        let text = format!(
            "{{model: m, data: '{one}', mix: [{{data: '{many}', max_rows: 4}}, {{data: '{few}', max_rows: 4}}], \
             method: {{sft: {{}}}}, train: {{max_rows: 4, eval_fraction: 0}}}}"
        );
        let plan = Plan::check(&RunConfig::parse(&text).expect("it reads"), &Machine::detect()).expect("it can run");
        let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/parity/trajectories/models/gpt2");
        let tokenizer = Tokenizer::from_dir(std::path::Path::new(fixtures)).expect("a tokenizer");
        let split = rows(&plan, &tokenizer, Need::Sft, &|_| true, &Interrupt::default()).expect("rows");
        let lines: Vec<_> =
            split.train.iter().map(|row| (row.location.file.display().to_string(), row.location.line)).collect();
        let expected = [(&one, 4), (&many, 4), (&few, 2)];
        let expected: Vec<_> = expected.iter().flat_map(|&(file, n)| (1..=n).map(move |i| (file.clone(), i))).collect();
        assert_eq!(lines, expected);
    }

    #[test]
    fn held_out_rows_of_a_mix_come_from_all_sources_and_are_never_trained_on() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = |name: &str, rows: usize| {
            let lines: Vec<String> = (1..=rows).map(|i| format!("{{\"text\": \"{name} {i}\"}}")).collect();
            let path = folder.path().join(format!("{name}.jsonl"));
            std::fs::write(&path, lines.join("\n")).expect("written");
            path.display().to_string()
        };
        let (one, other) = (file("one", 20), file("other", 10));
        let again = format!("{}/./one.jsonl", folder.path().display());
        let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/parity/trajectories/models/gpt2");
        let tokenizer = Tokenizer::from_dir(std::path::Path::new(fixtures)).expect("a tokenizer");
        let split = |mix: &str, shuffle: bool| {
            let text = format!(
                "{{model: m, data: '{one}', mix: [{mix}], method: {{sft: {{}}}}, train: {{shuffle: {shuffle}, \
                 eval_fraction: 0.2}}}}"
            );
            let plan =
                Plan::check(&RunConfig::parse(&text).expect("it reads"), &Machine::detect()).expect("it can run");
            rows(&plan, &tokenizer, Need::Sft, &|_| true, &Interrupt::default()).expect("rows")
        };
        let texts = |rows: &[Row]| -> Vec<String> {
            let text = |row: &Row| match &row.data {
                data::RowData::Text(text) => text.clone(),
                other => panic!("{other:?}"),
            };
            rows.iter().map(text).collect()
        };
        let two = split(&format!("{{data: '{other}'}}"), false);
        assert_eq!(texts(&two.held_out), ["one 17", "one 18", "one 19", "one 20", "other 9", "other 10"]);
        assert_eq!((two.train.len(), two.remarks), (24, Vec::new()));
        let twice = split(&format!("{{data: '{other}'}}, {{data: '{again}'}}"), false);
        assert_eq!(texts(&twice.held_out), texts(&two.held_out));
        assert_eq!(twice.train.len(), 24 + 16);
        let expected = "4 rows are not trained on: the sources of `mix` share rows, and these are held out";
        assert_eq!(twice.remarks, [expected]);
        let shuffled = split(&format!("{{data: '{again}'}}"), true);
        let (train, held_out) = (texts(&shuffled.train), texts(&shuffled.held_out));
        assert_eq!((train.len(), held_out.len()), (32, 4));
        assert!(held_out.iter().all(|text| !train.contains(text)), "{held_out:?} {train:?}");
    }

    #[test]
    fn without_evaluations_only_a_written_share_is_held_out() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = |name: &str| {
            let lines: Vec<String> = (0..20).map(|i| format!("{{\"text\": \"{name} {i}\"}}")).collect();
            let path = folder.path().join(format!("{name}.jsonl"));
            std::fs::write(&path, lines.join("\n")).expect("written");
            path.display().to_string()
        };
        let (data, other) = (file("data"), file("other"));
        let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/parity/trajectories/models/gpt2");
        let tokenizer = Tokenizer::from_dir(std::path::Path::new(fixtures)).expect("a tokenizer");
        let split = |eval_data: &str, train: &str| {
            let text = format!("{{model: m, data: '{data}', {eval_data}method: {{sft: {{}}}}, train: {{{train}}}}}");
            let plan =
                Plan::check(&RunConfig::parse(&text).expect("it reads"), &Machine::detect()).expect("it can run");
            let split = rows(&plan, &tokenizer, Need::Sft, &|_| true, &Interrupt::default()).expect("rows");
            let indices = |rows: &[Row]| rows.iter().map(|row| row.index).collect::<Vec<_>>();
            (indices(&split.train), indices(&split.held_out), split.evaluated().len())
        };
        let (train, held_out, evaluated) = split("", "eval_fraction: 0.2");
        assert_eq!((train.len(), held_out.len(), evaluated), (16, 4, 4));
        assert_eq!(split("", "eval_fraction: 0.2, eval_steps: -1"), (train, held_out, 0));
        let all: Vec<usize> = (0..20).collect();
        for (eval_data, share) in [("", ""), ("", "eval_fraction: 0, "), (&*format!("eval_data: '{other}', "), "")] {
            assert_eq!(split(eval_data, &format!("{share}eval_steps: -1")), (all.clone(), Vec::new(), 0));
        }
    }

    #[test]
    fn rows_of_a_mix_are_drawn_by_the_seed_in_the_order_of_the_file() {
        let file = tempfile::Builder::new().suffix(".jsonl").tempfile().expect("a temporary file");
        let lines: Vec<String> = (0..50).map(|i| format!("{{\"text\": \"{i}\"}}")).collect();
        std::fs::write(file.path(), lines.join("\n")).expect("written");
        let name = file.path().display().to_string();
        let load = || data::load(&name, &LoadOptions::needing(Need::Sft)).expect("rows").rows;
        let take = |rows: Option<usize>, seed: u64| {
            let source = MixedData { data: name.as_str().into(), rows, max_rows: None };
            let taken = drawn(load(), &source, crate::rng::Seed(seed).stream(Purpose::Mix, 0, 0))?;
            Ok::<_, Error>(taken.iter().map(|row| row.index).collect::<Vec<_>>())
        };
        let (once, other) = (take(Some(10), 1).expect("enough"), take(Some(10), 2).expect("enough"));
        assert!(once.len() == 10 && once.is_sorted() && once != other && once == take(Some(10), 1).expect("enough"));
        assert_eq!(take(None, 1).expect("all"), (0..50).collect::<Vec<_>>());
        let error = take(Some(51), 1).expect_err("too many").to_string();
        assert_eq!(error, format!("`mix` requests 51 rows of `{name}`, which has 50"));
    }
}
