//! Arrow files from pyarrow and `datasets` (`tools/parity/arrow_files.py`), damaged files, and files written by gradus.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_buffer::OffsetBuffer;
use gradus::data::arrow::arrow_array::ffi_stream::{FFI_ArrowArrayStream, RecordBatchStreamReader};
use gradus::data::arrow::arrow_array::types::Int8Type;
use gradus::data::arrow::arrow_array::{
    Array, ArrayRef, DictionaryArray, Int8Array, ListArray, NullArray, RecordBatch, RecordBatchIterator, StringArray,
    Time32MillisecondArray, TimestampMillisecondArray,
};
use gradus::data::arrow::arrow_schema::{ArrowError, DataType, Field, Schema};
use gradus::data::arrow::write_stream;
use gradus::data::{Format, LoadOptions, RowData, load, open, resolve, write_rows};
use gradus::files::output::OutputFile;
use serde_json::{Map, Value, json};

use super::{Folder, gzip};

type Columns = Map<String, Value>;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity/arrow").join(name)
}

fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(fixture(name)).expect("the fixture is part of the repository")
}

/// Returns the rows that the script wrote as JSON next to the fixtures.
fn expected(name: &str) -> Vec<Columns> {
    let all: Value = serde_json::from_slice(&bytes("fixture.json")).expect("JSON");
    let rows = name.split('/').fold(&all, |value, key| &value[key]);
    serde_json::from_value(rows.clone()).expect("rows")
}

fn rows(path: &Path) -> Vec<Columns> {
    open(path).expect("known").map(|row| row.expect("a row").columns).collect()
}

/// Returns the rows of a file up to its first error, and that error without the folder.
fn rows_and_error(folder: &Folder, path: &Path) -> (Vec<Columns>, Option<String>) {
    let message_of = |error: gradus::Error| error.to_string().replace(&format!("{}/", folder.0.path().display()), "");
    let found = match open(path) {
        Ok(found) => found,
        Err(error) => return (Vec::new(), Some(message_of(error))),
    };
    let mut good = Vec::new();
    for row in found {
        match row {
            Ok(row) => good.push(row.columns),
            Err(error) => return (good, Some(message_of(error))),
        }
    }
    (good, None)
}

fn error(name: &str, content: impl AsRef<[u8]>) -> String {
    let folder = Folder::new();
    let path = PathBuf::from(folder.write(name, content));
    rows_and_error(&folder, &path).1.expect("bad input")
}

fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true)))
        .expect("a batch")
}

/// Returns the bytes of a stream of these batches.
fn stream(batches: Vec<RecordBatch>) -> Vec<u8> {
    let folder = Folder::new();
    let path = folder.path("a.arrow");
    let schema = batches[0].schema();
    let count = batches.iter().map(|batch| batch.num_rows() as u64).sum::<u64>();
    assert_eq!(write_stream(batches.into_iter().map(Ok), &schema, &path).expect("written"), count);
    std::fs::read(path).expect("readable")
}

#[test]
fn every_type_is_read_as_pyarrow_reads_it_and_as_parquet_holds_it() {
    let arrow = rows(&fixture("types.arrow"));
    let parquet = rows(&fixture("types.parquet"));
    assert_eq!(arrow.len(), 3);
    for (ours, theirs) in arrow.iter().zip(&parquet) {
        assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>());
        for (name, value) in ours {
            assert_eq!(Some(value), theirs.get(name), "column `{name}`");
        }
    }
    for (ours, expected) in arrow.iter().zip(expected("types")) {
        for (name, value) in expected {
            assert_eq!(ours.get(&name), Some(&value), "column `{name}`");
        }
    }
    let timed = &arrow[0];
    // Only a column with a time zone holds points in time.
    assert_eq!(timed["timestamp_us"], "2024-02-29 12:30:15.123456");
    assert_eq!(timed["timestamp_utc"], "2024-02-29 12:30:15.123456 +00:00");
    assert_eq!(timed["date32"], "2024-02-29");
    assert_eq!(timed["decimal128"], "-1234567.891");
}

#[test]
fn every_form_holds_the_same_rows() {
    let expected = expected("texts");
    assert_eq!(expected.len(), 7);
    let folder = Folder::new();
    for name in ["batches.arrow", "lz4.arrow", "zstd.arrow", "legacy.arrow", "file.arrow", "lz4.feather"] {
        let found = open(&fixture(name)).expect("known");
        assert_eq!((found.format, found.gzip), (Format::Arrow, false), "{name}");
        let lines: Vec<(usize, Columns)> =
            found.map(|row| row.map(|row| (row.location.line, row.columns)).unwrap()).collect();
        let numbered: Vec<(usize, Columns)> =
            expected.iter().cloned().enumerate().map(|(i, row)| (i + 1, row)).collect();
        assert_eq!(lines, numbered, "{name}");
        let packed = PathBuf::from(folder.write(&format!("{name}.gz"), gzip(&bytes(name))));
        assert_eq!(rows(&packed), expected, "{name}");
    }
    // The content determines the format if it can.
    for name in ["batches.arrow", "file.arrow"] {
        assert_eq!(rows(Path::new(&folder.write("rows.jsonl", bytes(name)))), expected, "{name}");
    }
    assert_eq!(rows(&fixture("dictionaries.arrow")), self::expected("dictionaries"));
}

#[test]
fn directories_of_datasets_hold_the_rows_that_it_saved() {
    let texts = |source: &Path, split: &str| -> Vec<Columns> {
        let name = format!("{}{split}", source.display());
        let files = resolve(&name, &mut |_, _, _| {}).expect("found").files;
        files.iter().flat_map(|file| rows(file)).collect()
    };
    assert_eq!(texts(&fixture("saved"), ""), expected("saved"));
    assert_eq!(texts(&fixture("chosen"), ""), expected("chosen"));
    for (split, name) in [("", "train"), (":train", "train"), (":test", "test"), (":extra", "extra")] {
        assert_eq!(texts(&fixture("splits"), split), expected(&format!("splits/{name}")), "{split}");
    }
    let source = resolve(&fixture("splits").to_string_lossy(), &mut |_, _, _| {}).expect("found");
    assert_eq!(source.split.as_deref(), Some("train"));
    assert_eq!(source.other_splits, ["test", "extra"]);
    let options = LoadOptions::default();
    let dataset = load(&fixture("saved").to_string_lossy(), &options).expect("rows");
    assert_eq!(dataset.rows[7].data, RowData::Text("row 7".into()));
}

#[test]
fn texts_that_are_json_are_read_as_their_values() {
    let expected = expected("json");
    assert_eq!(expected[1]["tools"][0]["parameters"]["properties"]["b"]["type"], "array");
    assert_eq!(rows(&fixture("json/data-00000-of-00001.arrow")), expected);
    assert_eq!(rows(&fixture("json.parquet")), expected);
}

#[test]
fn the_list_of_a_saved_data_set_says_which_files_are_read() {
    let folder = Folder::new();
    let shard = |text: &str| stream(vec![batch(vec![("text", Arc::new(StringArray::from(vec![text])))])]);
    let name_of = |found: Vec<PathBuf>| -> Vec<String> {
        let name = |path: &PathBuf| path.file_name().expect("a name").to_string_lossy().into_owned();
        found.iter().map(name).collect()
    };
    let find = || resolve(&folder.path("d").to_string_lossy(), &mut |_, _, _| {});
    folder.write("d/a.arrow", shard("a"));
    folder.write("d/b.arrow", shard("b"));
    folder.write("d/cache-1.arrow", shard("c"));
    assert_eq!(name_of(find().expect("found").files), ["a.arrow", "b.arrow"]);
    folder.write("d/state.json", r#"{"_data_files": [{"filename": "b.arrow"}, {"filename": "a.arrow"}]}"#);
    folder.write("d/c.arrow", shard("not listed"));
    assert_eq!(name_of(find().expect("found").files), ["b.arrow", "a.arrow"]);
    folder.write("d/state.json", r#"{"state": "done"}"#);
    assert_eq!(name_of(find().expect("found").files), ["a.arrow", "b.arrow", "c.arrow"]);

    let error_of = |state: &str| {
        folder.write("d/state.json", state);
        folder.error_of(&folder.path("d").to_string_lossy(), &LoadOptions::default())
    };
    assert_eq!(
        error_of(r#"{"_data_files": [{"filename": "z.arrow"}]}"#),
        "d/z.arrow: the file is missing, but `state.json` next to it lists it"
    );
    let unknown = "d/state.json: expected a list of files with a `filename` under `_data_files`";
    assert_eq!(error_of(r#"{"_data_files": [{"filename": "../d/a.arrow"}]}"#), unknown);
    assert_eq!(error_of(r#"{"_data_files": 3}"#), unknown);
    assert!(error_of("{").starts_with("d/state.json: not valid JSON: EOF"));
    folder.write("d/dataset_dict.json", r#"{"splits": [".."]}"#);
    assert_eq!(error_of("{}"), "d/dataset_dict.json: expected a list of directories under `splits`");
    folder.write("d/dataset_dict.json", r#"{"splits": ["sft", "dpo"]}"#);
    assert_eq!(error_of("{}"), "d: several splits and no `train`: `sft`, `dpo`");
}

#[test]
fn what_rows_have_no_value_for_is_told_with_its_column() {
    for (name, kind) in [
        ("duration", "Duration(s)"),
        ("interval", "Interval(MonthDayNano)"),
        ("union", "Union(Sparse, 0: (\"0\": Int64))"),
        ("run_end", "RunEndEncoded(non-null Int32, Utf8)"),
        ("list_view", "ListView(Int64)"),
    ] {
        let message = error("a.arrow", bytes(&format!("{name}.arrow")));
        assert_eq!(message, format!("a.arrow: column `{name}` has the type {kind}, which rows cannot store"));
    }
    assert_eq!(error("a.arrow", bytes("same_names.arrow")), "a.arrow: two columns are named `text`");
    for (name, problem) in [
        ("duration", "column `duration` has the type Duration(s), which rows cannot store"),
        ("int96", "column `time` has the type INT96 (a timestamp of 96 bits), which rows cannot store"),
        ("same_names", "two columns are named `text`"),
        ("same_fields", "two columns are named `a`"),
    ] {
        let content = bytes(&format!("{name}.parquet"));
        assert_eq!(error("a.parquet", &content), format!("a.parquet: {problem}"));
        assert_eq!(error("a.parquet.gz", gzip(&content)), format!("a.parquet.gz: {problem}"));
    }
    assert_eq!(error("a.arrow", b"FEA1 and more"), "a.arrow: Feather version 1, which gradus does not read");
    assert_eq!(error("a.arrow", "hello\n"), "a.arrow: not a data file: it begins with `hello\\n`");
}

#[test]
fn a_bad_value_is_an_error_of_its_row_alone() {
    let errors_of = |name: &str, content: Vec<u8>| -> Vec<Option<String>> {
        let folder = Folder::new();
        let path = PathBuf::from(folder.write(name, content));
        let message_of =
            |error: gradus::Error| error.to_string().replace(&format!("{}/", folder.0.path().display()), "");
        open(&path).expect("known").map(|row| row.err().map(message_of)).collect()
    };
    let infinite = "a.arrow:2: column `score` holds a number that is not finite";
    assert_eq!(errors_of("a.arrow", bytes("nan.arrow")), [None, Some(infinite.to_owned())]);
    let twice = "a.arrow:2: column `map` holds a map with the key `a` twice";
    assert_eq!(errors_of("a.arrow", bytes("same_keys.arrow")), [None, Some(twice.to_owned())]);
    let twice = twice.replace(".arrow", ".parquet");
    assert_eq!(errors_of("a.parquet", bytes("same_keys.parquet")), [None, Some(twice)]);
    let is_json = [("ARROW:extension:name", "arrow.json")];
    let field = Field::new("meta", DataType::Utf8, true).with_metadata(is_json);
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["[1]", "[1", "{\"a\": 1, \"a\": 2}"]));
    let texts = RecordBatch::try_new(Arc::new(Schema::new(vec![field])), vec![texts]).expect("a batch");
    let refused = |line: usize, why: &str| {
        Some(format!("a.arrow:{line}: column `meta` holds a JSON text that is refused: {why}"))
    };
    assert_eq!(
        errors_of("a.arrow", stream(vec![texts])),
        [
            None,
            refused(2, "not valid JSON: the row ends too early"),
            refused(3, "the key `a` is given twice in one object"),
        ]
    );
    let times = batch(vec![
        ("time", Arc::new(Time32MillisecondArray::from(vec![0, -1, 0]))),
        ("at", Arc::new(TimestampMillisecondArray::from(vec![0, 0, i64::MAX]))),
    ]);
    assert_eq!(
        errors_of("a.arrow", stream(vec![times])),
        [
            None,
            Some("a.arrow:2: column `time` holds the time of day -1, below zero".to_owned()),
            Some("a.arrow:3: column `at` holds the time 9223372036854775807, which is outside the calendar".to_owned()),
        ]
    );
}

#[test]
fn a_file_that_is_cut_off_anywhere_says_after_which_row() {
    let whole = expected("texts");
    let folder = Folder::new();
    for name in ["batches.arrow", "zstd.arrow", "legacy.arrow", "file.arrow", "lz4.feather"] {
        let content = bytes(name);
        let mut seen = Vec::new();
        for length in 0..content.len() {
            for (cut, is_packed) in [(content[..length].to_vec(), false), (gzip(&content[..length]), true)] {
                // Compressing at every length would take long.
                if is_packed && !length.is_multiple_of(16) {
                    continue;
                }
                let path = PathBuf::from(folder.write("cut.arrow", cut));
                let (rows, error) = rows_and_error(&folder, &path);
                let error = error.unwrap_or_else(|| panic!("{name}: {length} bytes are read as whole"));
                assert_eq!(rows, whole[..rows.len()], "{name}, {length} bytes");
                let after = match rows.len() {
                    0 => "before the first row".to_owned(),
                    row => format!("after row {row}"),
                };
                let is_reported = error == format!("cut.arrow: the Arrow data is cut off {after}");
                // Too short to recognize the format.
                assert!(is_reported || length < 6, "{name}, {length} bytes: {error}");
                seen.push(rows.len());
            }
        }
        assert_eq!(seen.last(), Some(&whole.len()), "{name}");
    }
    let mut twice = bytes("batches.arrow");
    twice.extend(bytes("batches.arrow"));
    assert_eq!(error("a.arrow", twice), "a.arrow: other data follows the end of its stream");
    let mut padded = bytes("batches.arrow");
    padded.extend([0; 100]);
    assert_eq!(rows(Path::new(&folder.write("padded.arrow", padded))), whole);
}

/// Replaces the number `from`, which must occur, by `to` everywhere in `bytes`.
fn with_number(mut bytes: Vec<u8>, from: i64, to: i64) -> Vec<u8> {
    let places: Vec<usize> =
        (0..bytes.len().saturating_sub(7)).step_by(8).filter(|&at| bytes[at..at + 8] == from.to_le_bytes()).collect();
    assert!(!places.is_empty(), "{from} is in the file");
    places.into_iter().for_each(|at| bytes[at..at + 8].copy_from_slice(&to.to_le_bytes()));
    bytes
}

#[test]
fn a_file_stands_for_no_more_than_its_bytes_can_hold() {
    let empty = stream(vec![batch(vec![("nothing", Arc::new(NullArray::new(100_000)))])]);
    assert_eq!(
        error("a.arrow", empty),
        "a.arrow: not valid Arrow data before the first row: a batch declares 100000 values, but has 0 bytes"
    );
    // 7 notes of 80 bytes, compressed.
    for name in ["zstd.arrow", "lz4.feather"] {
        let message = error("a.arrow", with_number(bytes(name), 560, 1 << 40));
        assert_eq!(
            message,
            "a.arrow: not valid Arrow data before the first row: a compressed buffer declares an impossible size",
            "{name}"
        );
    }
    let column: ArrayRef = Arc::new(StringArray::from(vec!["x".repeat(4000)]));
    let content = stream(vec![batch(vec![("text", column)])]);
    let message = error("a.arrow", with_number(content.clone(), 4000, 1 << 50));
    assert_eq!(message, "a.arrow: not valid Arrow data before the first row: a buffer ends after its batch");
    let packed = gzip(&with_number(content.clone(), 4032 + 64, 1 << 50));
    let expected = "a.arrow: a batch of rows has 1125899906842624 bytes, but at most 4294967296 are read at once";
    assert_eq!(error("a.arrow", packed), expected);
    let plain = with_number(content, 4032 + 64, 1 << 50);
    assert_eq!(error("a.arrow", plain), "a.arrow: the Arrow data is cut off before the first row");

    // One row of a small file that refers seventy times to a text of one megabyte.
    let megabyte = StringArray::from(vec!["x".repeat(1 << 20)]);
    let texts: DictionaryArray<Int8Type> = DictionaryArray::new(Int8Array::from(vec![0; 70]), Arc::new(megabyte));
    let item = Field::new_list_field(texts.data_type().clone(), true);
    let offsets = OffsetBuffer::from_lengths([70]);
    let list = ListArray::new(Arc::new(item), offsets, Arc::new(texts), None);
    let message = error("a.arrow", stream(vec![batch(vec![("text", Arc::new(list))])]));
    assert_eq!(message, "a.arrow: the row on line 1 has more than 67108864 bytes, the limit for a row");
}

#[test]
fn rows_are_read_as_they_were_written() {
    let folder = Folder::new();
    let rows_of = |values: Vec<Value>| -> Vec<Columns> {
        values.into_iter().filter_map(|row| row.as_object().cloned()).collect()
    };
    let written = rows_of(vec![
        json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "n": {"k": 1, "l": [1.5]}, "o": {}}),
        json!({"messages": [{"role": "user", "content": "c"}], "n": {"k": null, "l": []}, "o": null}),
        json!({"messages": [], "n": null, "o": {}}),
        json!({"messages": null, "n": {"k": -4, "l": [1.0, null]}, "o": {}}),
    ]);
    for name in ["a.arrow", "a.arrow.gz"] {
        let path = folder.path(name);
        assert_eq!(write_rows(&OutputFile::new(&path).unwrap(), &written).expect("written"), Format::Arrow);
        assert_eq!(rows(&path), written, "{name}");
    }
    // Several batches, the last of which is not full.
    let many: Vec<Columns> = rows_of((0..2500).map(|i| json!({"text": format!("row {i}"), "n": i})).collect());
    let path = folder.path("many.arrow");
    write_rows(&OutputFile::new(&path).unwrap(), &many).expect("written");
    assert_eq!(rows(&path), many);
    let none = folder.path("none.arrow");
    write_rows(&OutputFile::new(&none).unwrap(), &[]).expect("written");
    assert_eq!(rows(&none), Vec::<Columns>::new());
}

#[test]
fn batches_are_written_whole_or_not_at_all() {
    let folder = Folder::new();
    let path = folder.path("a.arrow");
    let texts = |texts: &[&str]| batch(vec![("text", Arc::new(StringArray::from(texts.to_vec())))]);
    let schema = texts(&[]).schema();
    // As passed from another language: as a stream of C structs.
    let reader = RecordBatchIterator::new([Ok(texts(&["a", "b"])), Ok(texts(&["c"]))], schema.clone());
    let handed = RecordBatchStreamReader::try_new(FFI_ArrowArrayStream::new(Box::new(reader))).expect("a stream");
    assert_eq!(write_stream(handed, &schema, &path).expect("written"), 3);
    let read = |path: &Path| -> Vec<Value> { rows(path).into_iter().map(|row| row["text"].clone()).collect() };
    assert_eq!(read(&path), ["a", "b", "c"]);

    let error_of = |batches: Vec<Result<RecordBatch, ArrowError>>, schema: &Schema| {
        let error = write_stream(batches, schema, &path).expect_err("not written").to_string();
        error.replace(&format!("{}/", folder.0.path().display()), "")
    };
    let stopped = ArrowError::ComputeError("stopped".into());
    assert_eq!(
        error_of(vec![Ok(texts(&["d", "e"])), Err(stopped)], &schema),
        "a.arrow: the batch after row 2 cannot be written: Compute error: stopped"
    );
    let other = batch(vec![("n", Arc::new(Int8Array::from(vec![1])))]);
    assert_eq!(
        error_of(vec![Ok(other)], &schema),
        "a.arrow: the batch after row 0 cannot be written: Schema error: it has the fields `n`: Int8, expected `text`: Utf8"
    );
    assert_eq!(read(&path), ["a", "b", "c"]);
    assert_eq!(std::fs::read_dir(folder.0.path()).expect("a folder").count(), 1);
    let missing = write_stream([Ok(texts(&["a"]))], &schema, &folder.path("no/a.arrow")).expect_err("no folder");
    assert!(matches!(missing, gradus::Error::Io { .. }), "{missing}");
}

/// Not a test: `GRADUS_ROWS=arrow cargo test -p gradus --test it -- --ignored --nocapture a_million_rows` prints the
/// time that a format (`arrow`, `parquet`, `jsonl`) takes and the peak memory of the process. The first call for a
/// format only writes its file.
#[test]
#[ignore = "a measurement"]
fn a_million_rows() {
    let ending = std::env::var("GRADUS_ROWS").expect("a format");
    let path = std::env::temp_dir().join(format!("gradus-a-million-rows.{ending}"));
    if !path.exists() {
        let row = |i: usize| json!({"prompt": format!("Question number {i}?"), "completion": format!("The answer is {}.", i * 7)});
        let rows: Vec<Columns> = (0..1_000_000).map(row).filter_map(|row| row.as_object().cloned()).collect();
        write_rows(&OutputFile::new(&path).unwrap(), &rows).expect("written");
        return println!("{}: {} bytes", path.display(), std::fs::metadata(&path).expect("written").len());
    }
    let start = std::time::Instant::now();
    let rows = open(&path).expect("known").filter(Result::is_ok).count();
    let took = start.elapsed();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap_or("");
    println!("{ending}: {rows} rows in {took:.2?}, {peak}");
}
