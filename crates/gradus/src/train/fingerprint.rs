//! Fingerprints of data sets (number of rows and a hash of their content) and of models. A run is only resumed with the data and models
//! that it was trained with.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::player::Player;

use crate::data::{Content, Message, Request, Row, RowData};
use crate::error::{Error, Result};
use crate::files::TOKENIZERS;
use crate::method::{Cast, TrainedBy};
use crate::model::{ModelDir, Rows, weight_files};
use crate::ranks::Ranks;
use crate::run::{Checkpoint, DataFingerprint, RowsFingerprint};
use crate::text::ChatTemplate;

/// Fingerprint of all splits of the rows.
pub(crate) fn of(train: &[Row], held_out: &[Row], test: &[Row]) -> DataFingerprint {
    let test = (!test.is_empty()).then(|| rows(test));
    DataFingerprint { train: rows(train), held_out: rows(held_out), test }
}

/// Checks that the rows are those of the run so far.
///
/// # Errors
/// [`Error::Input`] that names the split that differs, and how.
pub(crate) fn check(expected: &DataFingerprint, found: &DataFingerprint) -> Result<()> {
    let Some((name, was, is)) = differing(expected, found) else { return Ok(()) };
    let how = match was == is {
        true => format!("the {is} {name} rows differ from those before the checkpoint"),
        false => format!("there are {is} {name} rows, but {was} before the checkpoint"),
    };
    Err(Error::input(format!("the data has changed: {how}"))
        .with_hint("restore the old data to continue exactly, or start a new run from the checkpoint with `--model`"))
}

/// Returns the name of the first split that differs, and its number of rows in both.
fn differing(one: &DataFingerprint, other: &DataFingerprint) -> Option<(&'static str, usize, usize)> {
    let none = rows(&[]);
    let test = [one, other].map(|print| print.test.as_ref().unwrap_or(&none));
    let parts = [
        ("training", &one.train, &other.train),
        ("held-out", &one.held_out, &other.held_out),
        ("test", test[0], test[1]),
    ];
    let (name, one, other) = parts.into_iter().find(|(_, one, other)| one != other)?;
    Some((name, one.rows, other.rows))
}

/// Checks that all ranks have read the same rows.
///
/// # Errors
/// [`Error::Input`] that names the first rank and split that differ, and how.
pub(crate) fn check_rows_of_ranks(ranks: Ranks, own: &DataFingerprint) -> Result<()> {
    let Some((rank, [first, other])) = ranks.first_difference("the rows", own) else { return Ok(()) };
    let how = match differing(&first, &other) {
        Some((name, expected, found)) if expected != found => {
            let row = if found == 1 { "row" } else { "rows" };
            format!("it has {found} {name} {row}, but rank 0 has {expected}")
        }
        Some((name, _, found)) => format!("its {found} {name} rows differ"),
        None => "their order differs".to_owned(),
    };
    Err(Error::input(format!("rank {rank} has other rows than rank 0: {how}")).with_hint(
        "all ranks must read the same rows: copy the files to all machines again; a task program that draws its rows needs a fixed seed",
    ))
}

/// Fingerprints of the models' files that a rank reads, by what they are.
pub(crate) type ReadFiles = BTreeMap<String, String>;

/// Fingerprints of all models of a run, and of the checkpoint that it resumes from.
///
/// # Errors
/// If a file cannot be read.
pub(crate) fn of_read_files(cast: &Cast<Player>, checkpoint: Option<&Checkpoint>) -> Result<ReadFiles> {
    let players = [Some(&cast.policy), cast.critic.as_ref(), cast.reference.as_ref()].into_iter().flatten();
    let mut found = ReadFiles::new();
    for player in players.chain(&cast.rewards).chain(&cast.metrics) {
        if let Entry::Vacant(entry) = found.entry(format!("the model `{}`", player.name)) {
            entry.insert(read_of(&player.dir)?);
        }
    }
    if let Some(checkpoint) = checkpoint {
        let print = format!("step {}, {}", checkpoint.run_state.step, model(&checkpoint.path)?);
        found.insert("the checkpoint".into(), print);
    }
    Ok(found)
}

/// Checks that the models' files are the same on all ranks.
///
/// # Errors
/// [`Error::Input`] that names the first rank and model that differ.
pub(crate) fn check_files_of_ranks(ranks: Ranks, own: &ReadFiles) -> Result<()> {
    let Some((rank, [first, other])) = ranks.first_difference("the models", own) else { return Ok(()) };
    let differs = |name: &&String| first.get(*name) != other.get(*name);
    let name = first.keys().chain(other.keys()).find(differs).map_or("the models", String::as_str);
    Err(Error::input(format!("rank {rank} reads other files than rank 0: {name} differs")).with_hint(
        "all ranks must read the same files: copy them to all machines again, or use a file system that the machines share",
    ))
}

/// Fingerprints of the models whose files a resumed run reads again, by their configured names. These are the models that are not trained,
/// and if `adapts`, the base of every model. All other weights are in the checkpoint.
///
/// # Errors
/// [`Error::Io`] if files cannot be read.
pub(crate) fn of_models(cast: &Cast<Player>, adapts: bool) -> Result<BTreeMap<String, String>> {
    let players = [Some(&cast.policy), cast.critic.as_ref(), cast.reference.as_ref()].into_iter().flatten();
    let read_again = |player: &&Player| adapts || player.role.trained_by == TrainedBy::Nobody;
    let mut fingerprints = BTreeMap::new();
    for player in players.chain(&cast.rewards).chain(&cast.metrics).filter(read_again) {
        if !fingerprints.contains_key(&player.name) {
            fingerprints.insert(player.name.clone(), model(&player.dir.path)?);
        }
    }
    Ok(fingerprints)
}

/// Checks that the files of models are those of the run so far. Models that the run did not have before are not checked, because the
/// configuration shows them.
///
/// # Errors
/// [`Error::Model`] that names the first model that differs.
pub(crate) fn check_models(expected: &BTreeMap<String, String>, found: &BTreeMap<String, String>) -> Result<()> {
    let changed = |(name, print): &(&String, &String)| found.get(*name).is_some_and(|found| found != *print);
    let Some((name, _)) = expected.iter().find(changed) else { return Ok(()) };
    Err(Error::model(name, "its files differ from those before the checkpoint").with_hint(
        "restore the old files to continue exactly, or start a new run with the model as it is now (`--output-dir`)",
    ))
}

/// Fingerprint of the inputs of a reference: the ids of all examples, the models, and the settings that determine its log-probabilities.
pub(crate) fn of_question<'a>(
    examples: impl Iterator<Item = Rows<'a>>,
    models: &BTreeMap<String, String>,
    settings: &str,
) -> String {
    let mut hash = Fnv::default();
    for sequence in examples.flat_map(|rows| rows.sequences()) {
        hash.ids(sequence.source);
        hash.ids(sequence.target);
    }
    models.iter().flat_map(|(name, print)| [name, print]).for_each(|text| hash.text(text));
    hash.text(settings);
    format!("{:016x}", hash.0)
}

/// Fingerprint of numbers, by their bits.
pub(crate) fn of_numbers(numbers: &[f32]) -> String {
    let mut hash = Fnv::default();
    numbers.iter().for_each(|number| hash.bytes(&number.to_bits().to_le_bytes()));
    format!("{:016x}", hash.0)
}

/// Number of evenly spread samples of a file of weights, and their length.
const STRETCHES: u64 = 64;
const STRETCH_BYTES: u64 = 4096;

/// Hash of the lengths of a model's files and of samples of their content. Training changes weights everywhere, and reading the whole files
/// would cost as much as loading the model.
fn model(directory: &Path) -> Result<String> {
    let io = |source| Error::io(directory, source);
    let is_part = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.ends_with(".safetensors") || matches!(name, "config.json" | "adapter_config.json")
    };
    let entries = fs::read_dir(directory).map_err(io)?.collect::<std::io::Result<Vec<_>>>().map_err(io)?;
    let mut files: Vec<PathBuf> = entries.iter().map(fs::DirEntry::path).filter(is_part).collect();
    files.sort();
    let mut hash = Fnv::default();
    for path in files {
        hash.text(&path.file_name().unwrap_or_default().to_string_lossy());
        stretches(&path, &mut hash).map_err(|source| Error::io(&path, source))?;
    }
    Ok(format!("{:016x}", hash.0))
}

/// Files that add tokens or templates to those of a tokenizer.
const BESIDE_TOKENIZERS: [&str; 5] =
    ["merges.txt", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"];

/// Hash of all that a run reads of a model: configuration, adapter, tokenizer, and samples of the weights as in [`model`]. Other files in
/// the directory do not count, because a hub cache may hold other files on each machine.
fn read_of(dir: &ModelDir) -> Result<String> {
    let mut hash = Fnv::default();
    hash.columns(&dir.config);
    dir.generation_config.iter().for_each(|config| hash.columns(config));
    dir.chat_template.iter().for_each(|template| hash.text(template));
    let mut sampled = weight_files(&dir.path)?.unwrap_or_default();
    let mut whole = Vec::new();
    if let Some(adapter) = &dir.adapter {
        sampled.push(adapter.path.join("adapter_model.safetensors"));
        whole.extend(["adapter_config.json", "gradus.json"].map(|name| adapter.path.join(name)));
    }
    // The other files are read only without the first one.
    let tokenizers = if dir.tokenizer_dir().join(TOKENIZERS[0]).is_file() { 1 } else { TOKENIZERS.len() };
    let names = TOKENIZERS.into_iter().take(tokenizers).chain(BESIDE_TOKENIZERS);
    whole.extend(names.map(|name| dir.tokenizer_dir().join(name)));
    whole.extend(ChatTemplate::additional_files(dir.tokenizer_dir())?);
    // The loader reports missing files.
    for path in sampled.iter().filter(|path| path.is_file()) {
        stretches(path, &mut hash).map_err(|source| Error::io(path, source))?;
    }
    for path in whole.iter().filter(|path| path.is_file()) {
        hash.text(&path.file_name().unwrap_or_default().to_string_lossy());
        let bytes = fs::read(path).map_err(|source| Error::io(path, source))?;
        hash.number(bytes.len() as u64);
        hash.bytes(&bytes);
    }
    Ok(format!("{:016x}", hash.0))
}

fn stretches(path: &Path, hash: &mut Fnv) -> std::io::Result<()> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    hash.number(length);
    let last = length.saturating_sub(STRETCH_BYTES);
    let mut starts: Vec<u64> = (0..STRETCHES).map(|i| last / (STRETCHES - 1) * i).chain([last]).collect();
    starts.dedup();
    for start in starts {
        let mut bytes = Vec::with_capacity(STRETCH_BYTES as usize);
        file.seek(SeekFrom::Start(start))?;
        (&mut file).take(STRETCH_BYTES).read_to_end(&mut bytes)?;
        hash.bytes(&bytes);
    }
    Ok(())
}

fn rows(rows: &[Row]) -> RowsFingerprint {
    let mut hash = Fnv::default();
    for row in rows {
        hash.number(row.index as u64);
        hash.data(&row.data);
        hash.columns(&row.columns);
    }
    RowsFingerprint { rows: rows.len(), fnv1a: format!("{:016x}", hash.0) }
}

/// FNV-1a with 64 bits. The length of each text precedes it, so that different sequences of texts have different input.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    }

    fn number(&mut self, number: u64) {
        self.bytes(&number.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.bytes(text.as_bytes());
    }

    fn ids(&mut self, ids: &[u32]) {
        self.number(ids.len() as u64);
        ids.iter().for_each(|id| self.bytes(&id.to_le_bytes()));
    }

    fn columns(&mut self, columns: &Map<String, Value>) {
        self.number(columns.len() as u64);
        for (name, value) in columns {
            self.text(name);
            self.text(&value.to_string());
        }
    }

    fn messages(&mut self, messages: &[Message]) {
        self.number(messages.len() as u64);
        for message in messages {
            self.text(&message.role);
            self.text(&message.content);
            self.columns(&message.extra);
        }
    }

    fn content(&mut self, content: &Content) {
        match content {
            Content::Text(text) => self.text(text),
            Content::Messages(messages) => self.messages(messages),
        }
    }

    fn margin(&mut self, margin: Option<f32>) {
        self.number(margin.map_or(u64::MAX, |margin| u64::from(margin.to_bits())));
    }

    /// Hashes a number for the kind of the row, then its content.
    fn data(&mut self, data: &RowData) {
        match data {
            RowData::Text(text) => {
                self.number(0);
                self.text(text);
            }
            RowData::Messages(messages) => {
                self.number(1);
                self.messages(messages);
            }
            RowData::PromptCompletion { prompt, completion } => {
                self.number(2);
                self.content(prompt);
                self.content(completion);
            }
            RowData::Instruction { history, request: Request::Task { instruction, input }, answer } => {
                self.number(3);
                self.messages(history);
                [instruction, input, answer].into_iter().for_each(|text| self.text(text));
            }
            RowData::Instruction { history, request: Request::Question(question), answer } => {
                self.number(10);
                self.messages(history);
                [question, answer].into_iter().for_each(|text| self.text(text));
            }
            RowData::Preference { prompt, chosen, rejected, margin } => {
                self.number(if prompt.is_some() { 4 } else { 5 });
                prompt.iter().chain([chosen, rejected]).for_each(|content| self.content(content));
                self.margin(*margin);
            }
            RowData::Unpaired { prompt, completion, is_desirable } => {
                self.number(11);
                self.content(prompt);
                self.content(completion);
                self.number(u64::from(*is_desirable));
            }
            RowData::Prompt(content) => {
                self.number(6);
                self.content(content);
            }
            RowData::Tokens { ids, loss_mask, labels } => {
                self.number(7);
                self.ids(ids);
                let mask: Vec<u8> = loss_mask.iter().flatten().map(|&counts| u8::from(counts)).collect();
                self.number(mask.len() as u64);
                self.bytes(&mask);
                // The mask already covers the choice of ids that carry loss.
                for labels in labels.iter().filter(|labels| labels.misfit.is_some()) {
                    self.ids(&labels.target);
                }
            }
            RowData::Columns => self.number(9),
            RowData::Words(words) => {
                self.number(12);
                words.words.iter().for_each(|word| self.text(word));
                words.labels.iter().for_each(|label| self.text(&label.to_string()));
            }
            // These rows are not trained on directly.
            RowData::Feedback(feedback) => {
                self.number(10);
                self.text(&feedback.question);
            }
            RowData::TokenPreference { prompt_ids, chosen_ids, rejected_ids, margin } => {
                self.number(8);
                [prompt_ids, chosen_ids, rejected_ids].into_iter().for_each(|ids| self.ids(ids));
                self.margin(*margin);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::RowLocation;
    use crate::ranks::{PATIENCE, threads};

    fn row(index: usize, data: RowData) -> Row {
        Row {
            location: RowLocation { file: std::path::Path::new("rows.jsonl").into(), line: 1, row_in_array: None },
            index,
            data,
            columns: Map::new(),
        }
    }

    fn texts(texts: &[&str]) -> Vec<Row> {
        texts.iter().enumerate().map(|(i, text)| row(i, RowData::Text((*text).to_owned()))).collect()
    }

    #[test]
    fn the_hash_is_fnv1a() {
        // http://www.isthe.com/chongo/src/fnv/test_fnv.c: "foobar".
        let mut hash = Fnv::default();
        hash.bytes(b"foobar");
        assert_eq!(hash.0, 0x8594_4171_f739_67e8);
    }

    #[test]
    fn a_model_differs_where_its_files_do() {
        let directory = tempfile::tempdir().expect("a directory");
        let write = |name: &str, bytes: &[u8]| fs::write(directory.path().join(name), bytes).expect("written");
        let print = || model(directory.path()).expect("a print");
        write("config.json", b"{}");
        // Longer than all samples together, so that not every byte is read; the first and the last are.
        let mut weights: Vec<u8> = (0..1_000_003u32).map(|i| (i % 251) as u8).collect();
        write("model.safetensors", &weights);
        let first = print();
        assert_eq!(print(), first);
        write("notes.txt", b"of no weight");
        assert_eq!(print(), first);
        for at in [0, weights.len() - 1] {
            weights[at] ^= 1;
            write("model.safetensors", &weights);
            assert_ne!(print(), first, "byte {at}");
            weights[at] ^= 1;
        }
        write("model.safetensors", &weights[1..]);
        assert_ne!(print(), first);
        write("model.safetensors", &weights);
        assert_eq!(print(), first);
        write("config.json", b"{ }");
        assert_ne!(print(), first);
    }

    /// Runs `work` on two ranks, each in a thread.
    fn on_two_ranks<T: Send>(work: impl Fn(Ranks) -> T + Sync) -> Vec<T> {
        std::thread::scope(|scope| {
            let work = &work;
            let start = |link| scope.spawn(move || work(Ranks::new(link, PATIENCE)));
            let ranks: Vec<_> = threads(2).into_iter().map(start).collect();
            ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect()
        })
    }

    #[test]
    fn ranks_with_other_rows_are_refused() {
        let error = |first: &'static [&'static str], second: &'static [&'static str]| {
            let errors = on_two_ranks(|ranks| {
                let own = of(&texts(if ranks.is_first() { first } else { second }), &[], &[]);
                check_rows_of_ranks(ranks, &own).err().map(|error| error.to_string())
            });
            assert_eq!(errors[0], errors[1]);
            errors[0].clone()
        };
        assert_eq!(error(&["one", "two"], &["one", "two"]), None);
        let expected = "rank 1 has other rows than rank 0: its 2 training rows differ";
        assert_eq!(error(&["one", "two"], &["one", "three"]).as_deref(), Some(expected));
        let expected = "rank 1 has other rows than rank 0: it has 1 training row, but rank 0 has 2";
        assert_eq!(error(&["one", "two"], &["one"]).as_deref(), Some(expected));
    }

    #[test]
    fn ranks_with_other_models_are_refused() {
        let errors = on_two_ranks(|ranks| {
            let policy = if ranks.is_first() { "1" } else { "2" };
            let own = [("the model `judge`", "7"), ("the model `policy`", policy)];
            let own: ReadFiles = own.map(|(name, print)| (name.to_owned(), print.to_owned())).into();
            check_files_of_ranks(ranks, &own).expect_err("they differ").to_string()
        });
        assert_eq!(errors, ["rank 1 reads other files than rank 0: the model `policy` differs"; 2]);
    }

    #[test]
    fn what_a_run_reads_of_a_model_is_compared() {
        let directory = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).expect("written");
        let dir = || ModelDir { path: directory.path().to_owned(), ..ModelDir::unsaved(Map::new()) };
        let print = || read_of(&dir()).expect("a print");
        write("model.safetensors", "weights");
        write("tokenizer.json", "{}");
        let first = print();
        // A hub cache may hold files of other programs.
        write("pytorch_model.bin", "weights");
        write("vocab.json", "{}");
        write("README.md", "notes");
        assert_eq!(print(), first);
        for (name, before) in [("model.safetensors", "weights"), ("tokenizer.json", "{}")] {
            write(name, "other");
            assert_ne!(print(), first, "{name}");
            write(name, before);
        }
        assert_eq!(print(), first);
        let folder = directory.path().join("additional_chat_templates");
        fs::create_dir(&folder).expect("a folder");
        write("additional_chat_templates/notes.txt", "notes");
        assert_eq!(print(), first);
        write("additional_chat_templates/tool_use.jinja", "one");
        let with_one = print();
        write("additional_chat_templates/tool_use.jinja", "two");
        assert!(![first.clone(), with_one].contains(&print()));
        fs::remove_dir_all(&folder).expect("removed");
        assert_eq!(print(), first);
        let templated = ModelDir { chat_template: Some("{{ messages }}".into()), ..dir() };
        assert_ne!(read_of(&templated).expect("a print"), first);
    }

    #[test]
    fn what_differs_is_named() {
        let before = of(&texts(&["one", "two"]), &[], &[]);
        check(&before, &of(&texts(&["one", "two"]), &[], &[])).unwrap();
        let message = |found: &DataFingerprint| check(&before, found).unwrap_err().to_string();
        assert_eq!(
            message(&of(&texts(&["onet", "wo"]), &[], &[])),
            "the data has changed: the 2 training rows differ from those before the checkpoint"
        );
        assert_eq!(
            message(&of(&texts(&["one"]), &[], &[])),
            "the data has changed: there are 1 training rows, but 2 before the checkpoint"
        );
        assert_eq!(
            message(&of(&texts(&["one", "two"]), &texts(&["three"]), &[])),
            "the data has changed: there are 1 held-out rows, but 0 before the checkpoint"
        );
        let mut with_column = texts(&["one", "two"]);
        with_column[1].columns.insert("answer".into(), 4.into());
        assert_ne!(of(&with_column, &[], &[]), before);
        let preference = |prompt: Option<&str>, chosen: &str| {
            let text = |text: &str| Content::Text(text.to_owned());
            let prompt = prompt.map(text);
            [row(0, RowData::Preference { prompt, chosen: text(chosen), rejected: text("c"), margin: None })]
        };
        assert_ne!(of(&preference(Some("a"), "b"), &[], &[]), of(&preference(None, "ab"), &[], &[]));
    }
}
