"""Arrow files as pyarrow and `datasets` write them, the same tables as Parquet, and their rows as JSON.

    pip install datasets==5.2.0 pyarrow==26.0.1
    python tools/parity/arrow_files.py
    python tools/parity/arrow_files.py --check FILE.arrow …

`--check` reads files of gradus with pyarrow and with `Dataset.from_file`, and prints their rows as JSON lines.
"""

import argparse
import base64
import datetime
import decimal
import importlib.metadata
import json
import pathlib
import shutil
import sys

import datasets
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet

OUT = pathlib.Path(__file__).resolve().parents[2] / "crates/gradus/tests/fixtures/parity/arrow"


def stream(table, path, **options):
    batch = options.pop("batch", None)
    with pa.ipc.new_stream(path, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=batch)


def types():
    """Every type that rows support, with a null in each nullable column."""
    day, noon = datetime.date(2024, 2, 29), datetime.datetime(2024, 2, 29, 12, 30, 15, 123456)
    before = datetime.datetime(1969, 12, 31, 23, 59, 59, 999000)
    time = datetime.time(23, 59, 58, 765432)
    whole = datetime.time(1, 2, 3)
    D = decimal.Decimal
    columns = {
        "null": (pa.null(), [None, None, None]),
        "bool": (pa.bool_(), [True, None, False]),
        "int8": (pa.int8(), [-128, 127, None]),
        "int16": (pa.int16(), [-(2**15), 2**15 - 1, None]),
        "int32": (pa.int32(), [-(2**31), 2**31 - 1, None]),
        "int64": (pa.int64(), [-(2**63), 2**53 + 1, None]),
        "uint8": (pa.uint8(), [0, 255, None]),
        "uint16": (pa.uint16(), [0, 2**16 - 1, None]),
        "uint32": (pa.uint32(), [0, 2**32 - 1, None]),
        "uint64": (pa.uint64(), [0, 2**64 - 1, None]),
        "float16": (pa.float16(), [0.1, -65504.0, None]),
        "float32": (pa.float32(), [0.1, -3.4e38, None]),
        "float64": (pa.float64(), [0.1, -1.7e308, None]),
        "string": (pa.string(), ["größer", "", None]),
        "large_string": (pa.large_string(), ["漢字", "", None]),
        "string_view": (pa.string_view(), ["a text that is longer than a view", "short", None]),
        "binary": (pa.binary(), [b"\x00\xff", b"", None]),
        "large_binary": (pa.large_binary(), [b"\x00\xff", b"", None]),
        "fixed_binary": (pa.binary(2), [b"\x00\xff", b"ab", None]),
        "date32": (pa.date32(), [day, datetime.date(1969, 7, 20), None]),
        "date64": (pa.date64(), [day, datetime.date(1969, 7, 20), None]),
        "time32_s": (pa.time32("s"), [whole, datetime.time(0), None]),
        "time32_ms": (pa.time32("ms"), [time.replace(microsecond=765000), whole, None]),
        "time64_us": (pa.time64("us"), [time, whole, None]),
        "time64_ns": (pa.time64("ns"), [time, whole, None]),
        "timestamp_s": (pa.timestamp("s"), [noon.replace(microsecond=0), before.replace(microsecond=0), None]),
        "timestamp_ms": (pa.timestamp("ms"), [noon.replace(microsecond=123000), before, None]),
        "timestamp_us": (pa.timestamp("us"), [noon, before, None]),
        "timestamp_ns": (pa.timestamp("ns"), [noon, before, None]),
        "timestamp_utc": (pa.timestamp("us", tz="Europe/Berlin"), [noon, before, None]),
        "decimal128": (pa.decimal128(10, 3), [D("-1234567.891"), D("0.001"), None]),
        "decimal_whole": (pa.decimal128(5, 0), [D("12345"), D("-7"), None]),
        "decimal256": (pa.decimal256(50, 10), [D("-1" + "0" * 38 + ".0000000001"), D("5"), None]),
        "list": (pa.list_(pa.int64()), [[1, None, 3], [], None]),
        "large_list": (pa.large_list(pa.string()), [["a", None], [], None]),
        "fixed_list": (pa.list_(pa.int8(), 2), [[1, 2], [3, None], [4, 5]]),
        "struct": (pa.struct({"a": pa.int64(), "b": pa.list_(pa.string())}), [{"a": 1, "b": ["x"]}, {"a": None, "b": None}, None]),
        "list_of_structs": (
            pa.list_(pa.struct({"role": pa.string(), "content": pa.string()})),
            [[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None}], [], None],
        ),
        "map": (pa.map_(pa.string(), pa.int64()), [[("a", 1), ("b", None)], [], None]),
        "map_of_numbers": (pa.map_(pa.int32(), pa.bool_()), [[(-7, True)], [], None]),
        "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["yes", "no", None]),
    }
    arrays = [pa.array(values, kind) for kind, values in columns.values()]
    return pa.table(arrays, names=list(columns))


def plain(value):
    """A value of the JSON file, for types whose value does not depend on how a format writes time and decimals."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        is_map = value and all(isinstance(item, tuple) for item in value)
        return {str(key): plain(item) for key, item in value} if is_map else [plain(item) for item in value]
    return value


def rows(table):
    of_map = {field.name for field in table.schema if pa.types.is_map(field.type)}
    fix = lambda name, value: {} if name in of_map and value == [] else plain(value)
    return [{name: fix(name, value) for name, value in row.items()} for row in table.to_pylist()]


def make():
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    found = {}

    table = types()
    stream(table, OUT / "types.arrow")
    pa.parquet.write_table(table, OUT / "types.parquet")
    untimed = [name for name in table.column_names if not name.startswith(("date", "time", "decimal"))]
    found["types"] = rows(table.select(untimed))

    texts = pa.table({
        "prompt": [f"Question {i}?" for i in range(7)],
        "chosen": pa.array(["yes", "no", "yes", None, "yes", "no", "no"]).dictionary_encode(),
        "score": pa.array([i / 4 for i in range(7)], pa.float32()),
        # Long enough to be worth compressing.
        "note": ["tea " * 20] * 7,
    })
    found["texts"] = rows(texts)
    stream(texts, OUT / "batches.arrow", batch=3)
    stream(texts, OUT / "lz4.arrow", compression="lz4", batch=4)
    stream(texts, OUT / "zstd.arrow", compression="zstd")
    stream(texts, OUT / "legacy.arrow", use_legacy_format=True, metadata_version=pa.ipc.MetadataVersion.V4)
    with pa.ipc.new_file(OUT / "file.arrow", texts.schema) as writer:
        writer.write_table(texts, max_chunksize=3)
    pa.feather.write_feather(texts, OUT / "lz4.feather")

    # A dictionary that grows from batch to batch, and one that is replaced.
    parts = [pa.array(values).dictionary_encode() for values in (["a", "b"], ["a", "b", "c"], ["z", "a"])]
    schema = pa.schema({"text": parts[0].type})
    with pa.ipc.new_stream(OUT / "dictionaries.arrow", schema, options=pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)) as writer:
        for part in parts:
            writer.write_batch(pa.record_batch([part], schema=schema))
    found["dictionaries"] = [{"text": text} for part in parts for text in part.to_pylist()]

    # Types that rows do not support.
    for name, array in {
        "duration": pa.array([1], pa.duration("s")),
        "interval": pa.array([(1, 2, 3)], pa.month_day_nano_interval()),
        "union": pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])]),
        "run_end": pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), pa.array(["a"])),
        "list_view": pa.array([[1]], pa.list_view(pa.int64())),
    }.items():
        stream(pa.table({"text": ["a"], name: array}), OUT / f"{name}.arrow")
    stream(pa.table([pa.array(["a"]), pa.array(["b"])], names=["text", "text"]), OUT / "same_names.arrow")
    stream(pa.table({"text": ["a", "b"], "score": [0.5, float("nan")]}), OUT / "nan.arrow")
    repeated = pa.MapArray.from_arrays([0, 1, 3], ["a", "a", "a"], [1, 2, 3])
    stream(pa.table({"map": repeated}), OUT / "same_keys.arrow")
    # The same in Parquet, which has no type for durations, and an old type for timestamps.
    parquet = pa.parquet.write_table
    parquet(pa.table({"text": ["a"], "duration": pa.array([1], pa.duration("s"))}), OUT / "duration.parquet")
    parquet(pa.table([pa.array(["a"]), pa.array(["b"])], names=["text", "text"]), OUT / "same_names.parquet")
    same = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    parquet(pa.table({"text": ["a"], "struct": same}), OUT / "same_fields.parquet")
    parquet(pa.table({"map": repeated}), OUT / "same_keys.parquet")
    noon = datetime.datetime(2024, 2, 29, 12, 30, 15, 123456)
    parquet(pa.table({"text": ["a"], "time": pa.array([noon])}), OUT / "int96.parquet", use_deprecated_int96_timestamps=True)

    # Files of `datasets`: three shards, a filtered and shuffled set, splits with custom names, and a cached result.
    datasets.disable_progress_bars()
    saved = datasets.Dataset.from_dict({"text": [f"row {i}" for i in range(8)], "n": list(range(8))})
    saved.save_to_disk(OUT / "saved", num_shards=3)
    chosen = saved.shuffle(seed=1).filter(lambda row: row["n"] % 2 == 0)
    chosen.save_to_disk(OUT / "chosen")
    found["saved"], found["chosen"] = list(saved), list(chosen)
    splits = datasets.DatasetDict({name: saved.select([i]) for i, name in enumerate(["train", "test", "extra"])})
    splits.save_to_disk(OUT / "splits")
    found["splits"] = {name: list(split) for name, split in splits.items()}
    stream(pa.table({"text": ["not a row of the data set"]}), OUT / "saved" / "cache-0123456789abcdef.arrow")
    stream(pa.table({"indices": pa.array([1], pa.uint64())}), OUT / "saved" / "indices.arrow")

    # Values that differ from row to row have the type Json: in a column, in a struct in a list of structs, and in a list.
    call = lambda **arguments: {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}
    tool = lambda **properties: {"name": "f", "parameters": {"type": "object", "properties": properties}}
    user = {"role": "user", "content": "größer / \"b\"\n"}
    mixed = [
        {"messages": [user, call(a=1)], "tools": [tool(a={"type": "integer"})], "meta": {"a": 1}},
        {"messages": [user, call(b=[0.5, None]), None], "tools": [tool(b={"type": "array"}), tool()], "meta": "text"},
        {"messages": [], "tools": None, "meta": None},
    ]
    text, any_json = datasets.Value("string"), datasets.Json()
    parameters = {"type": text, "properties": any_json}
    tools = datasets.List({"name": text, "parameters": parameters})
    features = datasets.Features({"messages": datasets.List(any_json), "tools": tools, "meta": any_json})
    of_json = datasets.Dataset.from_list(mixed, features=features)
    of_json.save_to_disk(OUT / "json")
    of_json.to_parquet(OUT / "json.parquet")
    found["json"] = list(of_json)

    libraries = {name: importlib.metadata.version(name) for name in ("pyarrow", "datasets")}
    meta = {"script": "tools/parity/arrow_files.py", "python": sys.version.split()[0], "libraries": libraries}
    (OUT / "fixture.json").write_text(json.dumps({"meta": meta, **found}, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def check(paths):
    for path in paths:
        with pa.ipc.open_stream(path) as reader:
            table = reader.read_all()
        table.validate(full=True)
        assert datasets.Dataset.from_file(str(path)).to_list() == table.to_pylist(), path
        print(*(json.dumps(row, ensure_ascii=False) for row in table.to_pylist()), sep="\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", nargs="+", metavar="FILE")
    arguments = parser.parse_args()
    check(arguments.check) if arguments.check else make()
