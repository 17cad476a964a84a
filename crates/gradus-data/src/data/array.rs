//! Reads a JSON array row by row, so that an array of any size is never held in memory as a whole.

use std::io::{self, BufRead};

use super::raw::{Origin, ROW_BYTES, RawRow, parse_object, too_large};
use super::row_location::RowLocation;
use crate::{Error, Result};

pub(super) struct JsonArray {
    origin: Origin,
    input: Box<dyn BufRead>,
    line: usize,
    rows: usize,
    last_line: usize,
    /// Line on which the last row begins.
    row_line: usize,
    state: ArrayState,
}

#[derive(PartialEq)]
enum ArrayState {
    Start,
    Inside,
    Done,
}

impl JsonArray {
    pub fn new(origin: Origin, input: Box<dyn BufRead>) -> Self {
        Self { origin, input, line: 1, rows: 0, last_line: 0, row_line: 1, state: ArrayState::Start }
    }

    fn peek(&mut self) -> io::Result<Option<u8>> {
        self.input.fill_buf().map(|buffer| buffer.first().copied())
    }

    fn skip(&mut self, byte: u8) {
        self.line += usize::from(byte == b'\n');
        self.input.consume(1);
    }

    fn skip_space(&mut self) -> io::Result<Option<u8>> {
        while let Some(byte) = self.peek()? {
            if !byte.is_ascii_whitespace() {
                return Ok(Some(byte));
            }
            self.skip(byte);
        }
        Ok(None)
    }

    /// Moves to the next row. Returns `false` at the end of the array.
    fn advance(&mut self) -> io::Result<Result<bool>> {
        if self.state == ArrayState::Start {
            self.skip_space()?;
            self.input.consume(1); // the `[` by which the array was recognized
            self.last_line = self.line;
            self.state = ArrayState::Inside;
        }
        let mut next = self.skip_space()?;
        if self.rows > 0 && next == Some(b',') {
            self.input.consume(1);
            next = self.skip_space()?;
            if next == Some(b']') {
                let message = format!("not valid JSON on line {}: no row between `,` and `]`", self.line);
                return Ok(Err(
                    Error::data(&*self.origin.file, None, message).with_hint("remove the comma after the last row")
                ));
            }
        } else if self.rows > 0 && next.is_some_and(|b| b != b']') {
            return Ok(Err(self.broken("`,` or `]` expected between rows")));
        }
        match next {
            Some(b']') => {
                self.input.consume(1);
                match self.skip_space()? {
                    None => Ok(Ok(false)),
                    Some(_) => Ok(Err(self.broken("text after the end of the array"))),
                }
            }
            Some(_) => Ok(Ok(true)),
            None => Ok(Err(self.broken("the array is not closed"))),
        }
    }

    fn broken(&self, what: &str) -> Error {
        Error::data(&*self.origin.file, None, format!("not valid JSON on line {}: {what}", self.line))
            .with_hint("the file may be cut off")
    }

    /// Returns the bytes of one element, with brackets balanced outside strings. Returns `None` if the file ends inside the
    /// element.
    fn element(&mut self) -> io::Result<Option<Vec<u8>>> {
        let (mut bytes, mut depth, mut in_string, mut escaped) = (Vec::new(), 0usize, false, false);
        while let Some(byte) = self.peek()? {
            if in_string {
                in_string = byte != b'"' || escaped;
                escaped = byte == b'\\' && !escaped;
            } else {
                match byte {
                    b'"' => in_string = true,
                    b'{' | b'[' => depth += 1,
                    b'}' | b']' if depth > 0 => depth -= 1,
                    b',' | b']' if depth == 0 => return Ok(Some(bytes)),
                    _ => {}
                }
            }
            self.skip(byte);
            if bytes.len() == ROW_BYTES {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            bytes.push(byte);
            if depth == 0 && matches!(byte, b'}' | b']') && !in_string {
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }

    fn row(&mut self) -> io::Result<Option<Result<RawRow>>> {
        match self.advance()? {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(e) => {
                self.state = ArrayState::Done;
                return Ok(Some(Err(e)));
            }
        }
        let mut location = RowLocation::new(&self.origin.file, self.line);
        self.rows += 1;
        self.row_line = self.line;
        if self.line == self.last_line {
            location.row_in_array = Some(self.rows);
        }
        let element = self.element()?;
        self.last_line = self.line;
        match element {
            Some(bytes) => Ok(Some(parse_object(&bytes, location))),
            None => {
                self.state = ArrayState::Done;
                Ok(Some(Err(
                    self.broken(&format!("row {} is not closed; it begins on line {}", self.rows, location.line))
                )))
            }
        }
    }
}

impl Iterator for JsonArray {
    type Item = Result<RawRow>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.state == ArrayState::Done {
            return None;
        }
        match self.row() {
            Ok(row) => {
                if row.is_none() {
                    self.state = ArrayState::Done;
                }
                row
            }
            Err(e) => {
                self.state = ArrayState::Done;
                Some(Err(match e.kind() {
                    io::ErrorKind::FileTooLarge => too_large(&self.origin.file, self.row_line),
                    _ => self.origin.failed(self.line.saturating_sub(1), &e),
                }))
            }
        }
    }
}
