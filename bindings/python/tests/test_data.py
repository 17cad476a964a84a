"""Rows of other libraries."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradus
import pytest
from gradus._data import as_path

ROWS = [
    {"prompt": "a", "completion": " b", "n": 1, "tags": ["x", "y"], "m": {"k": 0.5}},
    {"prompt": "c", "completion": " d", "n": 2, "tags": [], "m": {"k": None}},
]
ITSELF: dict[str, Any] = {"prompt": "a"}
ITSELF["m"] = ITSELF


def loaded(rows: Any) -> list[dict[str, Any]]:
    """Returns the rows as gradus reads them."""
    from gradus._commands import command

    found: list[dict[str, Any]] = command("data", "show", lines=False, positional=[as_path(rows)])
    return found


def test_dicts_generators_and_paths(tmp_path: Path) -> None:
    def rows() -> Iterator[dict[str, Any]]:
        yield from ROWS

    one, two = as_path(ROWS), as_path(rows())
    assert one == two and [json.loads(line) for line in Path(one).read_text().splitlines()] == ROWS
    assert as_path("some/name") == "some/name" and as_path(tmp_path) == os.fspath(tmp_path)


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        ([], "there are no rows"),
        ([1], "row 1 is a `int`, but a dict with its columns is expected"),
        (3, "`data` is a `int`"),
        ([{"prompt": "a"}, {"prompt": {1, 2}}], "row 2, column `prompt`: a `set` cannot be a value of a row"),
        ([{"prompt": "a", "z": [-float("inf")]}], "row 1, column `z`: a number is not finite: write None"),
        ([ITSELF], "row 1, column `m`: a value contains itself"),
        ([{"prompt": "a", "images": ["x.png"]}], "row 1 has images"),
        ({"prompt": ["a"], "completion": ["b"]}, "one `dict` with `prompt`, `completion`.* a list of dicts, one for each row"),
        ([*ROWS, None], "row 3 is a `NoneType`"),
        ([{"prompt": "a"}, {"prompt": "a \ud83d"}], "row 2 has the character '.ud83d', which is half of a surrogate pair"),
    ],
)
def test_what_cannot_be_rows_is_said(rows: Any, error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        as_path(rows)


def test_a_column_is_no_table() -> None:
    pandas: Any = pytest.importorskip("pandas", reason="pandas is not installed")
    with pytest.raises(TypeError, match=r"`data` is a `Series`, which is one column.*`series.to_frame\(\)`"):
        as_path(pandas.Series(["a", "b"]))


def test_rows_that_fail_leave_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADUS_CACHE", str(tmp_path))

    def failing(error: BaseException) -> Iterator[dict[str, Any]]:
        yield from ROWS
        raise error

    for error in (OSError("the network is gone"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            as_path(failing(error))
    with pytest.raises(TypeError):
        as_path([*ROWS, None])
    assert list((tmp_path / "rows").iterdir()) == []


def test_arrays_of_numpy_are_lists() -> None:
    numpy: Any = pytest.importorskip("numpy", reason="skipped: numpy is not installed")
    rows = [{"one": numpy.array([1]), "more": numpy.array([[1.5], [2.5]]), "number": numpy.float32(0.5)}]
    (line,) = Path(as_path(rows)).read_text().splitlines()
    assert json.loads(line) == {"one": [1], "more": [[1.5], [2.5]], "number": 0.5}


def test_nan_is_a_missing_value_as_in_pandas() -> None:
    numpy: Any = pytest.importorskip("numpy", reason="skipped: numpy is not installed")
    pandas: Any = pytest.importorskip("pandas", reason="skipped: pandas is not installed")
    pyarrow: Any = pytest.importorskip("pyarrow", reason="skipped: pyarrow is not installed")
    frame = pandas.DataFrame([{"prompt": "a", "z": 0.5}, {"prompt": "b", "z": None}])
    records = frame.to_dict("records")
    assert str(records[1]["z"]) == "nan"
    lines = Path(as_path(records)).read_text().splitlines()
    assert [json.loads(line)["z"] for line in lines] == pyarrow.Table.from_pandas(frame)["z"].to_pylist() == [0.5, None]
    nested = [{"one": numpy.float32("nan"), "more": numpy.array([1.0, float("nan")]), "m": {"k": (float("nan"),)}}]
    assert json.loads(Path(as_path(nested)).read_text()) == {"one": None, "more": [1.0, None], "m": {"k": [None]}}
    assert json.loads(Path(as_path([{"date": pandas.NaT, "n": pandas.NA}])).read_text()) == {"date": None, "n": None}


def endless() -> Iterator[dict[str, Any]]:
    """Returns rows without an end. Whoever reads too many of them gets an error."""
    yield from ({"text": f"Once upon a time {number}."} for number in range(50))
    raise AssertionError("too many rows were read")


def test_reading_stops_after_the_last_row_that_is_used(gpt2: Path, tmp_path: Path) -> None:
    assert len(Path(as_path(endless(), max_rows=3)).read_text().splitlines()) == 3
    assert len(gradus.load(gpt2).score(endless(), max_rows=3)) == 3
    run = gradus.sft(gpt2, endless(), max_rows=5, max_steps=1, batch_size=4, eval_fraction=0, output_dir=tmp_path / "run")
    assert run.finished
    run = gradus.sft(gpt2, endless(), train={"max_rows": 5}, max_steps=1, batch_size=4, eval_fraction=0, output_dir=tmp_path / "two")
    assert run.finished
    with pytest.raises(AssertionError, match="too many rows"):
        # Rows at random are drawn from all rows.
        gradus.sft(gpt2, endless(), max_rows=5, max_rows_at_random=True, max_steps=1, output_dir=tmp_path / "three")
    config = tmp_path / "run.yml"
    config.write_text(json.dumps({"model": str(gpt2), "data": "rows.jsonl", "method": {"sft": {}}, "train": {"max_rows_at_random": True}}))
    with pytest.raises(AssertionError, match="too many rows"):
        gradus.run(config, data=endless(), max_rows=5, output_dir=tmp_path / "four")


def test_long_reading_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    from gradus import _data

    monkeypatch.setattr(_data, "_LONG", 100)
    with pytest.warns(UserWarning, match="`data` has .* rows so far.*up to the last row.*islice") as caught:
        as_path({"text": "x" * 40} for _ in range(10))
    # Each line has 53 characters: `{"text": "` and `"}` and the end of the line. Warnings follow at 100, 200 and 400.
    assert [str(one.message).split()[2] for one in caught] == ["2", "4", "8"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # A list has an end.
        as_path([{"text": "x" * 40} for _ in range(10)])


def test_transforms_of_datasets_are_applied() -> None:
    datasets: Any = pytest.importorskip("datasets", reason="skipped: datasets is not installed")

    def upper(batch: dict[str, list[str]]) -> dict[str, list[str]]:
        return {"prompt": [text.upper() for text in batch["prompt"]]}

    rows = datasets.Dataset.from_list([{"prompt": "a"}, {"prompt": "b"}]).with_transform(upper)
    lines = Path(as_path(rows)).read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"prompt": "A"}, {"prompt": "B"}]


def test_tables_are_handed_over_without_json(gpt2: Path) -> None:
    pyarrow: Any = pytest.importorskip("pyarrow", reason="skipped: pyarrow is not installed")
    path = as_path(pyarrow.Table.from_pylist(ROWS))
    assert path.endswith(".arrow")
    assert as_path(pyarrow.Table.from_pylist(ROWS)) == path
    assert pyarrow.ipc.open_stream(path).read_all().to_pylist() == ROWS
    here = gradus.load(gpt2).score(pyarrow.Table.from_pylist(ROWS))
    assert here == gradus.load(gpt2).score(ROWS)


@pytest.mark.parametrize("library", ["polars", "pandas", "datasets"])
def test_libraries_of_tables(library: str, gpt2: Path) -> None:
    module = pytest.importorskip(library, reason=f"skipped: {library} is not installed")
    rows = [{"prompt": row["prompt"], "completion": row["completion"]} for row in ROWS]
    table = {
        "polars": lambda: module.DataFrame(rows),
        "pandas": lambda: module.DataFrame(rows),
        "datasets": lambda: module.Dataset.from_list([*rows, rows[0]]).select([0, 1]),
    }[library]()
    assert gradus.load(gpt2).score(table) == gradus.load(gpt2).score(rows)
    if library == "datasets":
        with pytest.raises(TypeError, match=r"one `DatasetDict` with `test`.* data\[\"test\"\]"):
            as_path(module.DatasetDict(test=module.Dataset.from_list(rows)))
        stream = module.Dataset.from_list(rows).to_iterable_dataset()
        assert gradus.load(gpt2).score(stream) == gradus.load(gpt2).score(rows)
