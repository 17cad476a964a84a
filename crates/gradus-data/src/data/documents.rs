//! Plain text. A file is one document, or several that are separated by lines of `<|endoftext|>`.

use std::io::{BufRead, Read};

use serde_json::{Map, Value};

use super::raw::{Origin, ROW_BYTES, RawRow};
use super::row_location::RowLocation;
use crate::{Error, Result};

/// Line between two documents, as in the text files of GPT-2 and its successors.
pub(super) const DOCUMENT_END: &str = "<|endoftext|>";

/// Returns why [`Documents`] would not return `text` unchanged from a file that holds it, or `None` if it would.
pub(super) fn misfit(text: &str, is_first: bool) -> Option<String> {
    if text.split('\n').any(|line| line.trim_ascii() == DOCUMENT_END) {
        return Some(format!("has a line `{DOCUMENT_END}`, which ends a document"));
    }
    let what = if text.trim().is_empty() {
        "is empty, so readers skip it"
    } else if text.ends_with(['\n', '\r']) {
        "ends in a line end, which readers cut off"
    } else if is_first && text.starts_with('\u{feff}') {
        "begins with a byte order mark, which readers cut off"
    } else {
        return None;
    };
    Some(what.into())
}

/// Iterator over the documents of a file, as rows with one column, `text`. Skips empty documents.
pub(super) struct Documents {
    origin: Origin,
    input: Box<dyn BufRead>,
    line: usize,
    done: bool,
}

impl Documents {
    pub fn new(origin: Origin, input: Box<dyn BufRead>) -> Self {
        Self { origin, input, line: 0, done: false }
    }

    /// Reads the next document and the location where it begins. Returns `None` after the last one.
    fn read(&mut self) -> Result<Option<(RowLocation, String)>> {
        let mut bytes = Vec::new();
        let location = RowLocation::new(&self.origin.file, self.line + 1);
        while !self.done {
            let begin = bytes.len();
            let room = (ROW_BYTES + 1 - begin) as u64;
            match self.input.by_ref().take(room).read_until(b'\n', &mut bytes) {
                Ok(0) => {
                    self.done = true;
                    break;
                }
                Ok(_) => self.line += 1,
                Err(error) => {
                    self.done = true;
                    return Err(self.origin.failed(self.line, &error));
                }
            }
            if bytes.len() > ROW_BYTES {
                self.done = true;
                let line = location.line;
                let message =
                    format!("the document on line {line} has more than {ROW_BYTES} bytes, the limit for a document");
                return Err(Error::data(&*self.origin.file, None, message)
                    .with_hint(format!("put lines with `{DOCUMENT_END}` into it, or split the file")));
            }
            if bytes[begin..].trim_ascii() == DOCUMENT_END.as_bytes() {
                bytes.truncate(begin);
                break;
            }
        }
        let text = String::from_utf8(bytes).map_err(|error| {
            location.error(format!("not valid UTF-8 at byte {} of the document", error.utf8_error().valid_up_to() + 1))
        })?;
        let text = text.trim_end_matches(['\n', '\r']);
        Ok((!self.done || !text.is_empty()).then(|| (location, text.to_owned())))
    }
}

impl Iterator for Documents {
    type Item = Result<RawRow>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.read() {
                Ok(Some((_, text))) if text.trim().is_empty() => {}
                Ok(Some((location, text))) => {
                    return Some(Ok(RawRow {
                        location,
                        columns: Map::from_iter([("text".to_owned(), Value::from(text))]),
                    }));
                }
                Ok(None) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn documents(text: &[u8]) -> Vec<Result<(usize, String), String>> {
        let origin = Origin { file: std::path::Path::new("a.txt").into(), gzip: false };
        let documents = Documents::new(origin, Box::new(std::io::Cursor::new(text.to_vec())));
        let read = |row: Result<RawRow>| match row {
            Ok(row) => Ok((row.location.line, row.columns["text"].as_str().expect("a text").to_owned())),
            Err(Error::Data { line, message, .. }) => Err(format!("{line:?} {message}")),
            Err(other) => Err(other.to_string()),
        };
        documents.map(read).collect()
    }

    #[test]
    fn a_file_is_a_document_or_several() {
        let doc = |line, text: &str| Ok((line, text.to_owned()));
        assert_eq!(documents(b"One.\n\n  Two.\n"), [doc(1, "One.\n\n  Two.")]);
        assert_eq!(
            documents(b"One\n<|endoftext|>\nTwo\nlines <|endoftext|>\r\n<|endoftext|>\r\n\n<|endoftext|>\nThree"),
            [doc(1, "One"), doc(3, "Two\nlines <|endoftext|>"), doc(8, "Three")]
        );
        assert_eq!(documents(b""), []);
        assert_eq!(documents(b"\n<|endoftext|>\n\n"), []);
        assert_eq!(
            documents(b"a\n<|endoftext|>\nb\xff\n<|endoftext|>\nc"),
            [doc(1, "a"), Err("Some(3) not valid UTF-8 at byte 2 of the document".into()), doc(5, "c")]
        );
    }

    #[test]
    fn a_text_fits_if_it_is_read_as_it_was_written() {
        for text in [
            "a",
            " a\n\n b ",
            "\na",
            "a\r\nb",
            "a <|endoftext|>\nb",
            "<|endoftext|>a",
            "\u{b}a",
            "a\u{85}",
            "",
            " \n\t",
            "a\n",
            "a\r",
            "a\n\n",
            "<|endoftext|>",
            "a\n<|endoftext|>\nb",
            "a\n \t<|endoftext|>\r\nb",
            "\u{a0}",
        ] {
            let read = documents(format!("{text}\n{DOCUMENT_END}\nnext\n").as_bytes());
            let is_whole = read.len() == 2 && read[0] == Ok((1, text.to_owned()));
            assert_eq!(misfit(text, false).is_none(), is_whole, "{text:?}");
        }
        assert!(misfit("\u{feff}a", true).is_some() && misfit("\u{feff}a", false).is_none());
    }

    #[test]
    fn an_endless_document_ends_the_file() {
        let found = documents(&vec![b'x'; ROW_BYTES + 2]);
        assert_eq!(
            found,
            [Err("None the document on line 1 has more than 67108864 bytes, the limit for a document".into())]
        );
    }
}
