//! CSV and TSV files with a header.

use std::collections::HashSet;
use std::io::{self, BufRead, Read};
use std::sync::Arc;

use csv::{ByteRecord, ErrorKind, Reader, ReaderBuilder};
use serde_json::{Map, Value};

use super::place::Place;
use super::reader::{Origin, ROW_BYTES, RawRow, too_large};
use crate::error::excerpt;
use crate::{Error, Result};

pub(super) struct Delimited {
    origin: Origin,
    reader: Reader<ByLine>,
    header: Vec<String>,
    record: ByteRecord,
    done: bool,
}

/// Passes on what it reads, as long as lines end: a record that never does would be held whole.
struct ByLine {
    input: Box<dyn BufRead>,
    /// Bytes since the last end of a line.
    since_end: usize,
}

impl Read for ByLine {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buffer)?;
        self.since_end = match buffer[..count].iter().rposition(|&byte| byte == b'\n') {
            Some(end) => count - end - 1,
            None => self.since_end + count,
        };
        if self.since_end > ROW_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, too_large()));
        }
        Ok(count)
    }
}

impl Delimited {
    pub fn open(origin: Origin, input: Box<dyn BufRead>, delimiter: u8) -> Result<Self> {
        let mut reader = ReaderBuilder::new().delimiter(delimiter).from_reader(ByLine { input, since_end: 0 });
        let header = match reader.byte_headers() {
            Ok(header) => header.clone(),
            Err(e) => return Err(failed(&origin, e)),
        };
        let header: Vec<String> = header.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
        let mut seen = HashSet::new();
        if let Some(twice) = header.iter().find(|name| !seen.insert(*name)) {
            return Err(Error::data(&*origin.file, Some(1), format!("two columns are named `{}`", excerpt(twice, 60))));
        }
        Ok(Self { origin, reader, header, record: ByteRecord::new(), done: false })
    }

    fn row(&self) -> Result<RawRow> {
        let line = self.record.position().map_or(0, |p| p.line() as usize);
        let place = Place::new(&self.origin.file, line);
        let mut columns = Map::new();
        for (name, field) in self.header.iter().zip(self.record.iter()) {
            let text =
                std::str::from_utf8(field).map_err(|_| place.error(format!("column `{name}` is not valid UTF-8")))?;
            columns.insert(name.clone(), cell(name, text));
        }
        Ok(RawRow { place, columns })
    }
}

/// A cell is text, but message lists and token ids are written as JSON.
fn cell(name: &str, text: &str) -> Value {
    const LISTS: [&str; 12] = [
        "messages",
        "conversations",
        "tools",
        "chat_template_kwargs",
        "input_ids",
        "labels",
        "completion_mask",
        "assistant_masks",
        "prompt_ids",
        "chosen_ids",
        "rejected_ids",
        "history",
    ];
    const CONTENTS: [&str; 4] = ["prompt", "completion", "chosen", "rejected"];
    let start = text.trim_start();
    let structured = (LISTS.contains(&name) && start.starts_with(['[', '{']))
        || (CONTENTS.contains(&name) && (start.starts_with("[{") || start.starts_with("{\"")));
    if structured && let Ok(value) = serde_json::from_str(text) {
        return value;
    }
    Value::from(text)
}

fn failed(origin: &Origin, error: csv::Error) -> Error {
    let line = error.position().map(|p| p.line() as usize);
    match error.into_kind() {
        ErrorKind::Io(e) => origin.failed(line.unwrap_or(0), &e),
        ErrorKind::UnequalLengths { expected_len, len, .. } => {
            let message = format!("{len} fields where the header has {expected_len}");
            Error::data(&*origin.file, line, message)
                .with_hint("fields with commas, quotes or line ends stand in double quotes")
        }
        other => Error::data(&*origin.file, line, format!("not valid CSV: {other:?}")),
    }
}

impl Iterator for Delimited {
    type Item = Result<RawRow>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        match self.reader.read_byte_record(&mut self.record) {
            Ok(true) => Some(self.row()),
            Ok(false) => None,
            Err(e) => {
                self.done = !matches!(e.kind(), ErrorKind::UnequalLengths { .. });
                let origin = Origin { file: Arc::clone(&self.origin.file), gzip: self.origin.gzip };
                Some(Err(failed(&origin, e)))
            }
        }
    }
}
