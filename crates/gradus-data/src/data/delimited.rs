//! CSV and TSV files with a header.
//!
//! Fields are parsed like the `csv` crate does, but more strictly. That crate accepts an unclosed quote, text after a closing
//! quote, and a row of any size. Here each of these is an error.

use std::collections::HashSet;
use std::io::BufRead;

use serde_json::{Map, Value};

use super::json;
use super::raw::{Origin, ROW_BYTES, RawRow, too_large};
use super::row_location::RowLocation;
use crate::error::excerpt;
use crate::{Error, Result};

/// Maximum number of columns of a file: the bookkeeping of a field takes more memory than an empty field's bytes.
const COLUMNS: usize = 100_000;

/// Streaming iterator over the rows of a CSV or TSV file.
pub(super) struct Delimited {
    origin: Origin,
    records: Records,
    header: Vec<String>,
    done: bool,
}

impl Delimited {
    pub fn open(origin: Origin, input: Box<dyn BufRead>, delimiter: u8) -> Result<Self> {
        let mut records = Records::new(input, delimiter);
        let fault = records.read(&origin)?.and_then(|record| record.fault);
        // Names are trimmed because people align tables with blanks.
        let header: Vec<String> =
            records.fields().map(|name| String::from_utf8_lossy(name).trim().to_owned()).collect();
        if let Some(fault) = fault {
            return Err(fault.error(&RowLocation::new(&origin.file, 1)));
        }
        if records.found > COLUMNS {
            let message = format!("the header has {} columns, but at most {COLUMNS} are read", records.found);
            return Err(Error::data(&*origin.file, Some(1), message)
                .with_hint("check that the file is CSV (commas) or TSV (tabs), as its name says"));
        }
        if let [only] = header.as_slice() {
            if only.contains('\0') {
                let message = "the file is not UTF-8: it looks like UTF-16";
                return Err(Error::data(&*origin.file, Some(1), message).with_hint("save it as UTF-8"));
            }
            let other = [(';', "semicolons"), ('\t', "tabs"), (',', "commas"), ('|', "vertical bars")];
            let other = other.into_iter().find(|(c, _)| *c != char::from(delimiter) && only.matches(*c).count() > 0);
            if let Some((_, name)) = other.filter(|(c, _)| only.split(*c).all(|part| part.trim().len() < 60)) {
                let message =
                    format!("the header is one column, `{}`: fields seem to be separated by {name}", excerpt(only, 60));
                return Err(Error::data(&*origin.file, Some(1), message)
                    .with_hint("save it with commas as `.csv`, or with tabs as `.tsv`"));
            }
        }
        records.most = header.len().max(1);
        let mut seen = HashSet::new();
        if let Some(twice) = header.iter().find(|name| !seen.insert(*name)) {
            return Err(Error::data(&*origin.file, Some(1), format!("two columns are named `{}`", excerpt(twice, 60))));
        }
        Ok(Self { origin, records, header, done: false })
    }

    fn row(&self, record: &Record) -> Result<RawRow> {
        let location = RowLocation::new(&self.origin.file, record.line);
        if let Some(fault) = record.fault {
            return Err(fault.error(&location));
        }
        let (found, expected) = (self.records.found, self.header.len());
        if found != expected {
            let plural = if found == 1 { "" } else { "s" };
            return Err(location
                .error(format!("{found} field{plural}, but the header has {expected}"))
                .with_hint("put fields that hold commas, quotes or line ends in double quotes"));
        }
        let mut columns = Map::new();
        for (name, field) in self.header.iter().zip(self.records.fields()) {
            let text = std::str::from_utf8(field)
                .map_err(|_| location.error(format!("column `{name}` is not valid UTF-8")))?;
            columns.insert(name.clone(), cell(name, text));
        }
        Ok(RawRow { location, columns })
    }
}

impl Iterator for Delimited {
    type Item = Result<RawRow>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        match self.records.read(&self.origin) {
            Ok(Some(record)) => Some(self.row(&record)),
            Ok(None) => None,
            Err(fatal) => {
                self.done = true;
                Some(Err(fatal))
            }
        }
    }
}

/// Splits bytes into records and fields. Holds one record at a time.
struct Records {
    input: Box<dyn BufRead>,
    delimiter: u8,
    /// Current line, from 1.
    line: usize,
    /// Fields of the last record, concatenated without their quotes.
    text: Vec<u8>,
    /// End of each of the first `most` fields in `text`.
    ends: Vec<usize>,
    /// Number of fields in the last record.
    found: usize,
    /// Maximum number of stored fields, so that a row of commas takes no more memory than its bytes.
    most: usize,
}

/// Properties of a record besides its fields.
struct Record {
    /// Line on which it begins, from 1.
    line: usize,
    /// First fault of the record. Reading continues after it.
    fault: Option<Fault>,
}

/// Text after the closing quote of a field.
#[derive(Clone, Copy)]
struct Fault {
    /// Line of the opening quote.
    opened: usize,
    /// Line of the closing quote.
    closed: usize,
}

impl Fault {
    fn error(self, location: &RowLocation) -> Error {
        let Self { opened, closed } = self;
        let message = match opened == closed {
            true => format!("text follows the closing quote of a field on line {closed}"),
            false => format!(
                "a quote opens a field on line {opened}; it is closed on line {closed}, and text follows it on that \
                 line"
            ),
        };
        location.error(message).with_hint(
            "if the quote belongs to the text, put the whole field in quotes and write each quote in it twice (`\"\"`)",
        )
    }
}

/// Position of a byte within a record.
#[derive(Clone, Copy, PartialEq)]
enum At {
    /// Before the first byte of a field.
    Start,
    /// In a field without quotes, or after a closing quote.
    Plain,
    /// Between quotes. Holds the line of the opening quote.
    Quoted(usize),
    /// After a quote within quotes. It closes the field unless another quote follows.
    Closing(usize),
}

impl Records {
    fn new(input: Box<dyn BufRead>, delimiter: u8) -> Self {
        Self { input, delimiter, line: 1, text: Vec::new(), ends: Vec::new(), found: 0, most: COLUMNS }
    }

    fn fields(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.text[start..end])
    }

    /// Reads the next record and skips empty lines. Returns `None` at the end of the file.
    ///
    /// # Errors
    /// If reading cannot continue: the input fails, a quote is never closed, or a record is too large.
    fn read(&mut self, origin: &Origin) -> Result<Option<Record>> {
        self.text.clear();
        self.ends.clear();
        self.found = 0;
        let (mut at, mut record, mut bytes) = (At::Start, Record { line: self.line, fault: None }, 0);
        loop {
            let buffer = self.input.fill_buf().map_err(|error| origin.failed(self.line - 1, &error))?;
            if buffer.is_empty() {
                return match at {
                    At::Quoted(opened) => Err(unclosed(origin, opened, "")),
                    At::Start if self.ends.is_empty() => Ok(None),
                    _ => {
                        self.found += 1;
                        if self.ends.len() < self.most {
                            self.ends.push(self.text.len());
                        }
                        Ok(Some(record))
                    }
                };
            }
            let (mut used, mut is_complete) = (0, false);
            for &byte in buffer {
                used += 1;
                let mut is_field_end = false;
                let ends_line = matches!(byte, b'\n' | b'\r');
                at = match at {
                    At::Start if byte == b'"' => At::Quoted(self.line),
                    At::Quoted(opened) if byte == b'"' => At::Closing(opened),
                    At::Quoted(_) => {
                        self.text.push(byte);
                        at
                    }
                    At::Closing(opened) if byte == b'"' => {
                        self.text.push(byte);
                        At::Quoted(opened)
                    }
                    _ if byte == self.delimiter => {
                        is_field_end = true;
                        At::Start
                    }
                    // An empty line is not a record.
                    At::Start if ends_line && self.ends.is_empty() => At::Start,
                    _ if ends_line => {
                        (is_field_end, is_complete) = (true, true);
                        At::Start
                    }
                    _ => {
                        if let At::Closing(opened) = at {
                            record.fault.get_or_insert(Fault { opened, closed: self.line });
                        }
                        self.text.push(byte);
                        At::Plain
                    }
                };
                if is_field_end {
                    self.found += 1;
                    if self.ends.len() < self.most {
                        self.ends.push(self.text.len());
                    }
                }
                self.line += usize::from(byte == b'\n');
                if is_complete {
                    break;
                }
                if at == At::Start && self.ends.is_empty() {
                    record.line = self.line;
                }
            }
            self.input.consume(used);
            if is_complete {
                return Ok(Some(record));
            }
            bytes = if at == At::Start && self.ends.is_empty() { 0 } else { bytes + used };
            if bytes > ROW_BYTES {
                return Err(match at {
                    At::Quoted(opened) => unclosed(origin, opened, &format!(" within {ROW_BYTES} bytes")),
                    _ => too_large(&origin.file, record.line),
                });
            }
        }
    }
}

/// Returns the error for an unclosed field. It concerns the whole file, because nothing is read after it.
fn unclosed(origin: &Origin, line: usize, within: &str) -> Error {
    let message = format!("the quote that opens a field on line {line} is not closed{within}");
    Error::data(&*origin.file, None, message).with_hint(
        "if the quote belongs to the text, put the whole field in quotes and write each quote in it twice (`\"\"`)",
    )
}

/// Parses a cell. Cells are text, except message lists, lists of references and token ids, which are JSON.
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
    const REFERENCES: [&str; 2] = ["references", "reference"];
    let start = text.trim_start();
    let structured = (LISTS.contains(&name) && start.starts_with(['[', '{']))
        || (CONTENTS.contains(&name) && (start.starts_with("[{") || start.starts_with("{\"")));
    if structured && let Ok(value) = json::parse(text.as_bytes()) {
        return value;
    }
    // A reference may be any text, so only a list of texts is a list.
    if REFERENCES.contains(&name)
        && start.starts_with('[')
        && let Ok(Value::Array(values)) = json::parse(text.as_bytes())
        && !values.is_empty()
        && values.iter().all(Value::is_string)
    {
        return Value::Array(values);
    }
    Value::from(text)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;

    fn read(text: &[u8]) -> Vec<Result<Vec<Vec<u8>>, String>> {
        let origin = Origin { file: Arc::from(std::path::Path::new("a.csv")), gzip: false };
        // The small buffer makes records cross its end.
        let input = std::io::BufReader::with_capacity(3, std::io::Cursor::new(text.to_vec()));
        let (mut records, mut found) = (Records::new(Box::new(input), b','), Vec::new());
        loop {
            match records.read(&origin) {
                Ok(None) => return found,
                Ok(Some(Record { fault: None, .. })) => found.push(Ok(records.fields().map(<[u8]>::to_vec).collect())),
                Ok(Some(Record { fault: Some(fault), line })) => {
                    found.push(Err(fault.error(&RowLocation::new(&origin.file, line)).to_string()));
                }
                Err(fatal) => {
                    found.push(Err(fatal.to_string()));
                    return found;
                }
            }
        }
    }

    proptest! {
        #[test]
        fn fields_are_those_of_the_csv_crate(text in "[ab,\"\n\r]{0,24}") {
            let ours = read(text.as_bytes());
            prop_assume!(ours.iter().all(Result::is_ok));
            let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(text.as_bytes());
            let theirs: Vec<Vec<Vec<u8>>> = reader
                .byte_records()
                .map(|record| record.expect("readable").iter().map(<[u8]>::to_vec).collect())
                .collect();
            let ours: Vec<Vec<Vec<u8>>> = ours.into_iter().flatten().collect();
            prop_assert_eq!(ours, theirs);
        }
    }

    #[test]
    fn references_may_be_a_list_of_texts() {
        for (name, text, expected) in [
            ("references", r#"["a cat", "the cat"]"#, serde_json::json!(["a cat", "the cat"])),
            ("reference", " [\"a\"]", serde_json::json!(["a"])),
            ("references", "[1] a cat", "[1] a cat".into()),
            ("references", "[1, 2]", "[1, 2]".into()),
            ("answer", r#"["a"]"#, r#"["a"]"#.into()),
        ] {
            assert_eq!(cell(name, text), expected, "{name}");
        }
    }

    #[test]
    fn a_row_of_commas_takes_no_more_memory_than_its_bytes() {
        let origin = || Origin { file: Arc::from(std::path::Path::new("a.csv")), gzip: false };
        let commas = ",".repeat(1 << 20);
        let open = |text: String| Delimited::open(origin(), Box::new(std::io::Cursor::new(text)), b',');
        let mut rows = open(format!("a,b\n{commas}\n1,2\n")).expect("a header");
        let error = rows.next().expect("a row").expect_err("too many fields").to_string();
        assert_eq!(error, "a.csv:2: 1048577 fields, but the header has 2");
        assert!(rows.records.ends.capacity() < 100, "{}", rows.records.ends.capacity());
        assert_eq!(rows.next().expect("a row").expect("it is read").columns["b"], "2");
        let error = open(commas).err().expect("too many columns").to_string();
        assert_eq!(error, "a.csv:1: the header has 1048577 columns, but at most 100000 are read");
    }

    #[test]
    fn stray_quotes_are_errors() {
        let never = |line| Err(format!("a.csv: the quote that opens a field on line {line} is not closed"));
        let row = |text: &str| Ok(text.split('|').map(|field| field.as_bytes().to_vec()).collect::<Vec<_>>());
        assert_eq!(read(b"text\na\n\"b\nc\n"), [row("text"), row("a"), never(3)]);
        assert_eq!(read(b"a,b\n1,\"\"\"2\n"), [row("a|b"), never(2)]);
        assert_eq!(read(b"\n\na,\"b\nc\"\n"), [row("a|b\nc")]);
        let same = "a.csv:1: text follows the closing quote of a field on line 1";
        assert_eq!(read(b"\"a\" b\nc\n"), [Err(same.into()), row("c")]);
        let other = "a.csv:2: a quote opens a field on line 2; it is closed on line 3, and text follows it on that \
                     line";
        assert_eq!(read(b"t\n\"b\n\"c\" d\ne\n"), [row("t"), Err(other.into()), row("e")]);
    }
}
