//! Streams untyped rows from one data file. The format, including gzip, is detected from the content.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use flate2::bufread::GzDecoder;

use super::array::JsonArray;
use super::arrow::{self, ArrowRows};
use super::delimited::Delimited;
use super::documents::Documents;
use super::parquet::ParquetRows;
use super::raw::{Origin, ROW_BYTES, RawRow, parse_object, too_large};
use super::row_location::RowLocation;
use crate::{Error, Result, files};

/// Format of a data file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// One JSON object per line.
    JsonLines,
    /// One JSON array of objects.
    JsonArray,
    /// Comma-separated values with a header.
    Csv,
    /// Tab-separated values with a header.
    Tsv,
    /// Parquet.
    Parquet,
    /// Arrow IPC, as a stream or as a file.
    Arrow,
    /// Plain text.
    Text,
}

impl Format {
    /// Returns the format in words.
    pub fn describe(self) -> &'static str {
        match self {
            Self::JsonLines => "JSON lines",
            Self::JsonArray => "JSON array",
            Self::Csv => "CSV",
            Self::Tsv => "TSV",
            Self::Parquet => "Parquet",
            Self::Arrow => "Arrow",
            Self::Text => "plain text",
        }
    }
}

/// Iterator over the rows of one file.
///
/// A bad row is an [`Error::Data`] with its line, and reading continues after it. Any other error ends the iteration.
pub struct Rows {
    /// Format of the file.
    pub format: Format,
    /// Whether it is compressed with gzip.
    pub gzip: bool,
    rows: Box<dyn Iterator<Item = Result<RawRow>>>,
}

impl Iterator for Rows {
    type Item = Result<RawRow>;
    fn next(&mut self) -> Option<Self::Item> {
        self.rows.next()
    }
}

/// Windows' editors write it at the beginning of a text file. It is not part of the text.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Opens a data file.
///
/// # Errors
/// If it cannot be read, or has none of the known formats.
pub fn open(path: &Path) -> Result<Rows> {
    let file: Arc<Path> = path.into();
    let mut plain = BufReader::with_capacity(1 << 16, File::open(path).map_err(|e| Error::io(path, e))?);
    let head = plain.fill_buf().map_err(|e| Error::io(path, e))?;
    let gzip = head.starts_with(&[0x1f, 0x8b]);
    if let Some(Compression { name, command, .. }) = UNREAD.iter().find(|unread| head.starts_with(unread.magic)) {
        return Err(Error::data(path, None, format!("compressed with {name}, which gradus does not read"))
            .with_hint(format!("decompress it first: `{command} FILE`; gzip files can be read directly")));
    }
    let mut input: Box<dyn BufRead> = if gzip { gunzip(plain) } else { Box::new(plain) };
    let origin = Origin { file, gzip };
    let head = input.fill_buf().map_err(|e| origin.failed(0, &e))?;
    if head.starts_with(b"PAR1") {
        return Ok(Rows { format: Format::Parquet, gzip, rows: Box::new(ParquetRows::open(origin, input)?) });
    }
    if is_arrow(path, head)? {
        return Ok(Rows { format: Format::Arrow, gzip, rows: Box::new(ArrowRows::open(origin, input)?) });
    }
    if head.starts_with(BYTE_ORDER_MARK) {
        input.consume(BYTE_ORDER_MARK.len());
    }
    let head = input.fill_buf().map_err(|e| origin.failed(0, &e))?;
    let first = head.iter().copied().find(|b| !b.is_ascii_whitespace());
    let format = match (extension(path).as_deref(), first) {
        (Some("csv"), _) => Format::Csv,
        (Some("tsv"), _) => Format::Tsv,
        (Some("txt"), _) => Format::Text,
        (_, Some(b'[')) => Format::JsonArray,
        (_, Some(b'{') | None) | (Some("jsonl" | "ndjson" | "json"), _) => Format::JsonLines,
        (_, Some(_)) => {
            let start: String = String::from_utf8_lossy(&head[..head.len().min(12)]).escape_debug().collect();
            let message = format!("not a data file: it begins with `{start}`");
            return Err(Error::data(path, None, message).with_hint(
                "gradus reads JSON lines, JSON arrays, CSV (named .csv or .tsv), Parquet, Arrow and text (named .txt), plain or gzipped",
            ));
        }
    };
    let rows: Box<dyn Iterator<Item = Result<RawRow>>> = match format {
        Format::JsonArray => Box::new(JsonArray::new(origin, input)),
        Format::Csv => Box::new(Delimited::open(origin, input, b',')?),
        Format::Tsv => Box::new(Delimited::open(origin, input, b'\t')?),
        Format::Text => Box::new(Documents::new(origin, input)),
        _ => Box::new(JsonLines { origin, input, line: 0, buffer: Vec::new(), done: false }),
    };
    Ok(Rows { format, gzip, rows })
}

/// Returns whether a file that begins with `head` is Arrow. The name decides if the content is ambiguous: for streams from before
/// Arrow 0.15, and for empty files.
fn is_arrow(path: &Path, head: &[u8]) -> Result<bool> {
    if head.starts_with(b"FEA1") {
        return Err(Error::data(path, None, "Feather version 1, which gradus does not read").with_hint(
            "write it as version 2: `pyarrow.feather.write_feather(pyarrow.feather.read_table(\"FILE\"), \"NEW\")`",
        ));
    }
    if head.starts_with(arrow::MAGIC) || head.starts_with(&arrow::CONTINUATION) {
        return Ok(true);
    }
    let is_named = matches!(extension(path).as_deref(), Some("arrow" | "feather"));
    Ok(is_named && (head.is_empty() || arrow::begins_older_stream(head)))
}

/// Returns the lines of a text file, plain or gzipped, each with its location, without its line end and without a byte order mark.
///
/// # Errors
/// If the file cannot be opened. A line that cannot be read is an [`Error::Data`] and ends the iteration.
pub fn lines(path: &Path) -> Result<impl Iterator<Item = Result<(RowLocation, String)>> + use<>> {
    let mut plain = BufReader::with_capacity(1 << 16, files::open(path).map_err(|e| Error::io(path, e))?);
    let gzip = plain.fill_buf().map_err(|e| Error::io(path, e))?.starts_with(&[0x1f, 0x8b]);
    let input: Box<dyn BufRead> = if gzip { gunzip(plain) } else { Box::new(plain) };
    Ok(Lines { origin: Origin { file: path.into(), gzip }, input, line: 0, done: false })
}

struct Lines {
    origin: Origin,
    input: Box<dyn BufRead>,
    line: usize,
    done: bool,
}

impl Iterator for Lines {
    type Item = Result<(RowLocation, String)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let mut buffer = Vec::new();
        let read = self.input.by_ref().take(ROW_BYTES as u64 + 1).read_until(b'\n', &mut buffer);
        self.line += 1;
        let location = RowLocation::new(&self.origin.file, self.line);
        let line = match read {
            Ok(0) => {
                self.done = true;
                return None;
            }
            Ok(_) if buffer.len() > ROW_BYTES => Err(too_large(&self.origin.file, self.line)),
            Ok(_) => {
                buffer.pop_if(|last| *last == b'\n');
                buffer.pop_if(|last| *last == b'\r');
                if self.line == 1 && buffer.starts_with(BYTE_ORDER_MARK) {
                    buffer.drain(..BYTE_ORDER_MARK.len());
                }
                String::from_utf8(buffer).map_err(|e| {
                    location.error(format!("not valid UTF-8 at byte {} of the line", e.utf8_error().valid_up_to() + 1))
                })
            }
            Err(e) => Err(self.origin.failed(self.line - 1, &e)),
        };
        self.done = line.is_err();
        Some(line.map(|line| (location, line)))
    }
}

/// Decompresses a gzip file.
fn gunzip(plain: BufReader<File>) -> Box<dyn BufRead> {
    Box::new(BufReader::with_capacity(1 << 16, Gunzip { member: Some(GzDecoder::new(plain)) }))
}

/// The content of all members of a gzip file. As in gzip and in Python, zeros after a member are padding. Any other byte after a member
/// begins the next one.
struct Gunzip<R> {
    /// `None` at the end of the file.
    member: Option<GzDecoder<R>>,
}

impl<R: BufRead> Read for Gunzip<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.member {
            let read = member.read(into)?;
            if read > 0 || into.is_empty() {
                return Ok(read);
            }
            let more = skip_zeros(member.get_mut())?;
            // A decoder reads the header of a member when it is created.
            self.member = self.member.take().filter(|_| more).map(|member| GzDecoder::new(member.into_inner()));
        }
        Ok(0)
    }
}

/// Skips zeros. Returns whether another byte follows.
fn skip_zeros(input: &mut impl BufRead) -> io::Result<bool> {
    loop {
        let buffer = input.fill_buf()?;
        let (zeros, length) = (buffer.iter().take_while(|byte| **byte == 0).count(), buffer.len());
        input.consume(zeros);
        if zeros < length || length == 0 {
            return Ok(length > 0);
        }
    }
}

/// A compression that is not read.
struct Compression {
    extension: &'static str,
    /// First bytes of a file.
    magic: &'static [u8],
    name: &'static str,
    /// Command that removes it.
    command: &'static str,
}

const UNREAD: [Compression; 5] = [
    Compression { extension: "zst", magic: &[0x28, 0xb5, 0x2f, 0xfd], name: "zstd", command: "zstd -d" },
    Compression { extension: "xz", magic: &[0xfd, b'7', b'z', b'X', b'Z', 0], name: "xz", command: "xz -d" },
    Compression { extension: "bz2", magic: b"BZh", name: "bzip2", command: "bzip2 -d" },
    Compression { extension: "zip", magic: b"PK\x03\x04", name: "zip", command: "unzip" },
    Compression { extension: "lz4", magic: &[0x04, 0x22, 0x4d, 0x18], name: "LZ4", command: "lz4 -d" },
];

/// Returns whether a file name ends with that of a compression that is not read.
pub(super) fn has_unread_compression(path: &Path) -> bool {
    extension(path).is_some_and(|found| UNREAD.iter().any(|unread| unread.extension == found))
}

/// Returns the lower-case extension without `.gz`.
pub(super) fn extension(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?.to_ascii_lowercase();
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    name.rsplit_once('.').map(|(_, extension)| extension.to_owned())
}

struct JsonLines {
    origin: Origin,
    input: Box<dyn BufRead>,
    line: usize,
    buffer: Vec<u8>,
    done: bool,
}

impl Iterator for JsonLines {
    type Item = Result<RawRow>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.done {
            self.buffer.clear();
            match self.input.by_ref().take(ROW_BYTES as u64 + 1).read_until(b'\n', &mut self.buffer) {
                Ok(0) => self.done = true,
                Ok(_) => {
                    self.line += 1;
                    if self.buffer.len() > ROW_BYTES {
                        self.done = true;
                        return Some(Err(too_large(&self.origin.file, self.line)));
                    }
                    if self.buffer.iter().all(u8::is_ascii_whitespace) {
                        continue;
                    }
                    return Some(parse_object(
                        self.buffer.trim_ascii_end(),
                        RowLocation::new(&self.origin.file, self.line),
                    ));
                }
                Err(e) => {
                    self.done = true;
                    return Some(Err(self.origin.failed(self.line, &e)));
                }
            }
        }
        None
    }
}
