//! Reads Arrow IPC row by row: the stream format, in which `datasets` caches and saves, and the file format (Feather version 2).
//!
//! [`write_stream`] writes record batches unchanged. The Arrow crates are re-exported, so that callers build batches with the same
//! version. `arrow_array::ffi_stream` imports batches from other languages.

use std::collections::HashMap;
use std::io::{self, BufRead, Read};

pub use arrow_array;
use arrow_array::{ArrayRef, RecordBatch};
use arrow_buffer::Buffer;
use arrow_ipc::convert::{try_fb_to_schema, try_schema_from_ipc_buffer};
use arrow_ipc::reader::{read_dictionary, read_record_batch};
use arrow_ipc::{CompressionType, Endianness, Message, MessageHeader, root_as_footer, root_as_message};
pub use arrow_schema;
use arrow_schema::{ArrowError, Schema, SchemaRef};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::Map;

use super::arrow_value::{Problem, check_fields, value};
use super::raw::{Origin, ROW_BYTES, RawRow};
use super::row_location::RowLocation;
pub use super::write_arrow::write_stream;
use crate::{Error, Result, border};

/// First and last bytes of the file format.
pub(super) const MAGIC: &[u8] = b"ARROW1";
/// First bytes of every message. Streams from before Arrow 0.15 do not have them.
pub(super) const CONTINUATION: [u8; 4] = [0xff; 4];
/// Maximum size of the metadata of one message, and of the footer of a file. A schema needs some kilobytes; the metadata of a batch
/// needs a few bytes per column.
const METADATA_BYTES: u64 = 64 << 20;
/// Maximum size of one decompressed record batch. Libraries write a thousand rows or some megabytes per batch.
const BATCH_BYTES: u64 = 4 << 30;
/// Rows that a batch may have in addition to those that fit into its bytes: columns of nulls take no bytes.
const ROWS_WITHOUT_BYTES: u64 = 1 << 16;

/// Returns whether `head` can be the message length with which an older stream begins.
pub(super) fn begins_older_stream(head: &[u8]) -> bool {
    let length = head.first_chunk().map(|&bytes| u64::from(u32::from_le_bytes(bytes)));
    length.is_some_and(|length| (8..=METADATA_BYTES).contains(&length))
}

/// Decodes the schema that Arrow's libraries store as base64 in the metadata of Parquet files. Returns `None` if it is damaged: it only adds
/// to the schema of Parquet.
pub(super) fn stored_schema(text: &str) -> Option<Schema> {
    let bytes = BASE64_STANDARD.decode(text).ok()?;
    border::catch_panic(|| try_schema_from_ipc_buffer(&bytes).ok()).ok()?
}

/// Iterator over the rows of an Arrow stream or file.
pub(super) struct ArrowRows {
    origin: Origin,
    input: Box<dyn BufRead>,
    /// Remaining bytes, if the size of the file is known.
    left: Option<u64>,
    is_file: bool,
    schema: SchemaRef,
    dictionaries: HashMap<i64, ArrayRef>,
    batch: Option<RecordBatch>,
    /// Index of the next row in the batch, from 0.
    next_in_batch: usize,
    batches: usize,
    /// Number of rows read.
    row: usize,
    done: bool,
}

/// Reason why reading stops.
enum Fault {
    Io(io::Error),
    CutOff,
    Invalid(String),
    /// Valid data that gradus does not read, and a hint.
    Unsupported(String, &'static str),
}

impl From<ArrowError> for Fault {
    fn from(error: ArrowError) -> Self {
        let text = error.to_string();
        // The prefix with the kind of the error, such as `Ipc error: `, does not help the reader.
        let what = text.split_once("rror: ").map_or(text.as_str(), |(_, what)| what);
        Self::Invalid(crate::error::excerpt(what.lines().next().unwrap_or_default(), 300))
    }
}

/// Like [`border::catch_panic`], for a call that returns an error of its own.
fn catch<T>(call: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
    border::catch_panic(call).unwrap_or_else(|panicked| Err(Fault::Invalid(panicked)))
}

impl ArrowRows {
    /// Reads the schema. Reading never seeks backward, so pipes and compressed files work too.
    pub fn open(origin: Origin, input: Box<dyn BufRead>) -> Result<Self> {
        let size = std::fs::metadata(&origin.file).ok().filter(|found| found.is_file() && !origin.gzip);
        let mut rows = Self {
            left: size.map(|found| found.len()),
            origin,
            input,
            is_file: false,
            schema: Schema::empty().into(),
            dictionaries: HashMap::new(),
            batch: None,
            next_in_batch: 0,
            batches: 0,
            row: 0,
            done: false,
        };
        match rows.read_schema() {
            Ok(()) => Ok(rows),
            Err(fault) => Err(rows.error(fault)),
        }
    }

    fn read_schema(&mut self) -> Result<(), Fault> {
        let head = self.input.fill_buf().map_err(Fault::Io)?;
        if head.starts_with(MAGIC) {
            self.is_file = true;
            // The magic is padded to eight bytes.
            self.read(8)?;
        }
        let Some(bytes) = self.read_metadata()? else { return Err(Fault::Invalid("it has no schema".into())) };
        let message = message(&bytes)?;
        let Some(schema) = message.header_as_schema() else {
            let what = format!("it begins with {}, not with a schema", name_of(message.header_type()));
            return Err(Fault::Invalid(what));
        };
        if schema.endianness() != Endianness::Little {
            let hint = "write it on a machine that stores the lowest byte first, or as JSON lines";
            return Err(Fault::Unsupported("its numbers are stored with the highest byte first".into(), hint));
        }
        let schema = catch(|| Ok(try_fb_to_schema(schema)?))?;
        check_fields(schema.fields(), None).map_err(|(what, hint)| Fault::Unsupported(what, hint))?;
        self.schema = schema.into();
        self.read_body(&message).map(drop)
    }

    /// Reads exactly `length` bytes. Memory grows with the bytes read, so a wrong length cannot exhaust it.
    fn read(&mut self, length: u64) -> Result<Vec<u8>, Fault> {
        if self.left.is_some_and(|left| left < length) {
            return Err(Fault::CutOff);
        }
        let reserved = if self.left.is_some() { length } else { length.min(1 << 20) };
        let mut bytes = Vec::with_capacity(usize::try_from(reserved).map_err(|_| Fault::CutOff)?);
        self.input.by_ref().take(length).read_to_end(&mut bytes).map_err(Fault::Io)?;
        if (bytes.len() as u64) < length {
            return Err(Fault::CutOff);
        }
        self.left = self.left.map(|left| left - length);
        Ok(bytes)
    }

    fn read_length(&mut self) -> Result<[u8; 4], Fault> {
        Ok(*self.read(4)?.first_chunk().expect("four bytes were read"))
    }

    /// Reads the metadata of the next message. Returns `None` at the end.
    fn read_metadata(&mut self) -> Result<Option<Vec<u8>>, Fault> {
        let length = match self.read_length()? {
            CONTINUATION => self.read_length()?,
            length => length,
        };
        match u64::from(u32::from_le_bytes(length)) {
            0 => Ok(None),
            length if length > METADATA_BYTES => {
                Err(Fault::Invalid(format!("a message is described by {length} bytes, more than {METADATA_BYTES}")))
            }
            length => self.read(length).map(Some),
        }
    }

    /// Reads the body of a message.
    fn read_body(&mut self, message: &Message<'_>) -> Result<Buffer, Fault> {
        let length =
            u64::try_from(message.bodyLength()).map_err(|_| Fault::Invalid("a batch of negative size".into()))?;
        if self.left.is_none_or(|left| length <= left) && length > BATCH_BYTES {
            return Err(too_much(length));
        }
        self.read(length).map(Buffer::from_vec)
    }

    /// Reads messages up to the next record batch. Returns `None` at the end.
    fn read_batch(&mut self) -> Result<Option<RecordBatch>, Fault> {
        loop {
            let Some(bytes) = self.read_metadata()? else { return self.check_end().map(|()| None) };
            let message = message(&bytes)?;
            let body = self.read_body(&message)?;
            let version = message.version();
            if let Some(batch) = message.header_as_record_batch() {
                check_batch(batch, &body)?;
                self.batches += 1;
                let (schema, dictionaries) = (self.schema.clone(), &self.dictionaries);
                return catch(|| Ok(Some(read_record_batch(&body, batch, schema, dictionaries, None, &version)?)));
            }
            let Some(dictionary) = message.header_as_dictionary_batch() else {
                let what = format!("{} where a batch of rows is expected", name_of(message.header_type()));
                return Err(Fault::Invalid(what));
            };
            check_batch(dictionary.data().ok_or_else(|| Fault::Invalid("a dictionary without values".into()))?, &body)?;
            let (schema, dictionaries) = (&self.schema, &mut self.dictionaries);
            catch(|| Ok(read_dictionary(&body, dictionary, schema, dictionaries, &version)?))?;
        }
    }

    /// Checks the bytes after the end marker: none in the stream format, a list of all batches in the file format.
    fn check_end(&mut self) -> Result<(), Fault> {
        if !self.is_file {
            return self.check_nothing_follows();
        }
        let mut rest = Vec::new();
        self.input.by_ref().take(METADATA_BYTES + 1).read_to_end(&mut rest).map_err(Fault::Io)?;
        if rest.len() as u64 > METADATA_BYTES {
            return Err(Fault::Invalid(format!("more than {METADATA_BYTES} bytes follow the last batch")));
        }
        let Some((footer, length)) = rest.strip_suffix(MAGIC).and_then(<[u8]>::split_last_chunk) else {
            return Err(Fault::CutOff);
        };
        let start =
            usize::try_from(u32::from_le_bytes(*length)).ok().and_then(|length| footer.len().checked_sub(length));
        // A separate vector gives the footer the alignment that the library needs.
        let footer = start.map(|start| footer[start..].to_vec()).ok_or(Fault::CutOff)?;
        let footer = root_as_footer(&footer).map_err(|_| Fault::Invalid("its footer is damaged".into()))?;
        let listed = footer.recordBatches().map_or(0, |batches| batches.len());
        if listed != self.batches {
            let what = format!("its footer lists {listed} batches of rows, but {} come before it", self.batches);
            return Err(Fault::Invalid(what));
        }
        Ok(())
    }

    /// Rejects a second stream after the first, because its rows would be lost. Trailing zeros are allowed.
    fn check_nothing_follows(&mut self) -> Result<(), Fault> {
        loop {
            let rest = self.input.fill_buf().map_err(Fault::Io)?;
            if rest.iter().any(|&byte| byte != 0) {
                let hint = "if several files were joined, keep them apart in one directory instead";
                return Err(Fault::Unsupported("other data follows the end of its stream".into(), hint));
            }
            match rest.len() {
                0 => return Ok(()),
                length => self.input.consume(length),
            }
        }
    }

    fn error(&self, fault: Fault) -> Error {
        let after = match self.row {
            0 => "before the first row".to_owned(),
            row => format!("after row {row}"),
        };
        let error = |message: String| Error::data(&*self.origin.file, None, message);
        match fault {
            Fault::Io(e) => self.origin.failed(self.row, &e),
            Fault::CutOff => error(format!("the Arrow data is cut off {after}"))
                .with_hint("the file is not complete: copy or download it again, or close the writer that makes it"),
            Fault::Invalid(what) => error(format!("not valid Arrow data {after}: {what}"))
                .with_hint("the file may be damaged; copy or download it again"),
            Fault::Unsupported(what, hint) => error(what).with_hint(hint),
        }
    }

    /// Converts row `at` of the batch.
    fn columns(&self, batch: &RecordBatch, at: usize) -> Result<RawRow> {
        let location = RowLocation::new(&self.origin.file, self.row);
        let mut room = ROW_BYTES;
        let mut columns = Map::with_capacity(batch.num_columns());
        for (field, array) in self.schema.fields().iter().zip(batch.columns()) {
            let found = border::catch_panic(|| value(field, array, at, &mut room));
            let problem = match found {
                Ok(Ok(value)) => {
                    columns.insert(field.name().clone(), value);
                    continue;
                }
                Ok(Err(problem)) => problem,
                Err(panicked) => Problem::Is(format!("cannot be read: {panicked}")),
            };
            return Err(problem.error(&location, field.name()));
        }
        Ok(RawRow { location, columns })
    }
}

impl Iterator for ArrowRows {
    type Item = Result<RawRow>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.done {
            if let Some(batch) = self.batch.take().filter(|batch| self.next_in_batch < batch.num_rows()) {
                self.row += 1;
                let row = self.columns(&batch, self.next_in_batch);
                self.next_in_batch += 1;
                self.batch = Some(batch);
                // An error without a line, such as a row that is too large, ends the file.
                self.done = matches!(&row, Err(Error::Data { line: None, .. }));
                return Some(row);
            }
            match self.read_batch() {
                Ok(Some(batch)) => (self.batch, self.next_in_batch) = (Some(batch), 0),
                Ok(None) => self.done = true,
                Err(fault) => {
                    self.done = true;
                    return Some(Err(self.error(fault)));
                }
            }
        }
        None
    }
}

fn message(bytes: &[u8]) -> Result<Message<'_>, Fault> {
    root_as_message(bytes).map_err(|_| Fault::Invalid("the description of a message is damaged".into()))
}

fn name_of(header: MessageHeader) -> &'static str {
    match header {
        MessageHeader::Schema => "a schema",
        MessageHeader::DictionaryBatch => "a dictionary",
        MessageHeader::RecordBatch => "a batch of rows",
        MessageHeader::Tensor | MessageHeader::SparseTensor => "a tensor",
        _ => "a message without a known kind",
    }
}

fn too_much(bytes: u64) -> Fault {
    let what = format!("a batch of rows has {bytes} bytes, but at most {BATCH_BYTES} are read at once");
    Fault::Unsupported(
        what,
        "write smaller batches, such as `write_table(table, max_chunksize=1000)` of pyarrow's writers",
    )
}

/// Checks that a batch declares no more values than its bytes can hold, before the library allocates memory.
fn check_batch(batch: arrow_ipc::RecordBatch<'_>, body: &[u8]) -> Result<(), Fault> {
    let invalid = |what: &str| Fault::Invalid(what.into());
    let compression = batch.compression().map(|compression| compression.codec());
    let (mut stored, mut held) = (0u64, 0u64);
    for buffer in batch.buffers().into_iter().flatten() {
        let length = u64::try_from(buffer.length()).map_err(|_| invalid("a buffer of negative size"))?;
        let range = usize::try_from(buffer.offset()).ok().zip(usize::try_from(length).ok());
        let bytes = range.and_then(|(start, length)| body.get(start..)?.get(..length));
        let bytes = bytes.ok_or_else(|| invalid("a buffer ends after its batch"))?;
        stored = stored.saturating_add(length);
        held = held.saturating_add(match compression {
            Some(codec) if length > 0 => decompressed(codec, bytes)?,
            _ => length,
        });
    }
    // Each byte belongs to one buffer. With overlapping buffers, a small file could declare any amount of data.
    if stored > body.len() as u64 {
        return Err(invalid("its buffers overlap"));
    }
    if held > BATCH_BYTES {
        return Err(too_much(held));
    }
    // The smallest value takes one bit.
    let most = held.saturating_mul(8).saturating_add(ROWS_WITHOUT_BYTES);
    let lengths = batch.nodes().into_iter().flatten().map(|node| node.length());
    let is_too_much = |length: &i64| u64::try_from(*length).map_or(true, |length| length > most);
    match lengths.chain([batch.length()]).find(is_too_much) {
        Some(length) => Err(Fault::Invalid(format!("a batch declares {length} values, but has {held} bytes"))),
        None => Ok(()),
    }
}

/// Returns the size of a decompressed buffer from its first eight bytes, and checks it against the maximum ratio of the codec.
fn decompressed(codec: CompressionType, bytes: &[u8]) -> Result<u64, Fault> {
    // An LZ4 block expands each byte to at most 255; four bytes of zstd can expand to 128 KiB.
    let most_of_a_byte = match codec {
        CompressionType::LZ4_FRAME => 256,
        CompressionType::ZSTD => 1 << 15,
        _ => {
            let hint = "write it without compression, or with LZ4 or zstd";
            return Err(Fault::Unsupported(
                "its batches are compressed with a codec that gradus does not read".into(),
                hint,
            ));
        }
    };
    let invalid = || Fault::Invalid("a compressed buffer declares an impossible size".into());
    let (length, packed) = bytes.split_first_chunk().ok_or_else(invalid)?;
    match i64::from_le_bytes(*length) {
        // The buffer is stored uncompressed.
        -1 => Ok(packed.len() as u64),
        length => {
            let most = (packed.len() as u64).saturating_mul(most_of_a_byte);
            u64::try_from(length).ok().filter(|&length| length <= most).ok_or_else(invalid)
        }
    }
}
