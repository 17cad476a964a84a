//! Fingerprints of data sets (number of rows and a hash of their content) and of models. A run is only resumed with the data and models
//! that it was trained with.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::player::Player;

use crate::data::{Content, Message, Request, Row, RowData};
use crate::error::{Error, Result};
use crate::method::{Cast, TrainedBy};
use crate::model::Rows;
use crate::run::{DataFingerprint, RowsFingerprint};

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
    let none = rows(&[]);
    let test = [expected, found].map(|print| print.test.as_ref().unwrap_or(&none));
    let parts = [
        ("training", &expected.train, &found.train),
        ("held-out", &expected.held_out, &found.held_out),
        ("test", test[0], test[1]),
    ];
    let Some((name, was, is)) = parts.into_iter().find(|(_, was, is)| was != is) else { return Ok(()) };
    let how = match was.rows == is.rows {
        true => format!("the {} {name} rows differ from those before the checkpoint", is.rows),
        false => format!("there are {} {name} rows, but {} before the checkpoint", is.rows, was.rows),
    };
    Err(Error::input(format!("the data has changed: {how}"))
        .with_hint("restore the old data to continue exactly, or start a new run from the checkpoint with `--model`"))
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
