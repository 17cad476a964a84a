"""Writes rows of other libraries to files that gradus reads."""

from __future__ import annotations

import itertools
import json
import math
import os
import warnings
from collections.abc import Iterable, Mapping, Sized
from numbers import Integral
from pathlib import Path
from typing import Any, TypeAlias

from gradus import _native

#: Rows: a path, a hub name, a table with Arrow's interface (``datasets``, ``polars``, ``pandas``, ``pyarrow``, ``duckdb``), or dicts.
Rows: TypeAlias = Any


def cache_directory() -> Path:
    """Return the folder for rows from Python: ``$GRADUS_CACHE``, or ``gradus`` in the user's cache folder."""
    own = os.environ.get("GRADUS_CACHE")
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "gradus"


def _table(rows: Any) -> Any | None:
    """Return the object with Arrow's stream interface for these rows, if there is one."""
    # `datasets.Dataset` holds a pyarrow table; a selection of its rows is applied first.
    if type(rows).__module__.startswith("datasets.") and hasattr(rows, "data"):
        if (getattr(rows, "format", None) or {}).get("type") == "custom":
            # The table holds the rows before the transform of `set_transform` or `with_transform`.
            return None
        if getattr(rows, "_indices", None) is not None:
            rows = rows.flatten_indices()
        rows = rows.data
        rows = getattr(rows, "table", rows)
    return rows if hasattr(rows, "__arrow_c_stream__") else None


def _dicts(rows: Any, name: str) -> Iterable[Any]:
    """Return the rows as dicts."""
    if type(rows).__module__.startswith("pandas.") and hasattr(rows, "to_dict"):
        # Without pyarrow, pandas has no Arrow interface.
        records: list[dict[str, Any]] = rows.to_dict("records")
        return records
    if isinstance(rows, Mapping):
        parts = ", ".join(f"`{part}`" for part in rows)
        first = next(iter(rows), "train")
        if type(rows).__module__.startswith("datasets."):
            advice = f'pass one of its splits, such as data["{first}"]'
        else:
            advice = "pass a list of dicts, one for each row"
        raise TypeError(f"`{name}` is one `{type(rows).__name__}` with {parts}, but rows are expected: {advice}")
    if not isinstance(rows, Iterable):
        raise TypeError(
            f"`{name}` is a `{type(rows).__name__}`, but a path, a hub name, a table or an iterable of dicts is expected"
        )
    return rows


def _refuse_images(row: Mapping[str, Any], number: int) -> None:
    for name in ("image", "images"):
        if row.get(name) is not None:
            raise ValueError(f"row {number} has images (column `{name}`), but gradus trains on text")


def _plain(value: Any) -> Any:
    """Convert values that ``json`` does not support: numbers and arrays of numpy, dates, paths, missing values of pandas."""
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    # An array also has `item`, which returns the number of an array of one number.
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "item"):
        return value.item()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"a `{type(value).__name__}` cannot be a value of a row")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain)


def _without_nan(value: Any) -> Any:
    """Return a value with None for NaN, which marks missing values in pandas. An infinite number is an error."""
    if isinstance(value, float):
        if math.isinf(value):
            raise ValueError("a number is not finite: write None in its place, or leave the column out")
        return None if math.isnan(value) else value
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(item) for item in value]
    return value if value is None or isinstance(value, (str, int)) else _without_nan(_plain(value))


def _checked(row: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return a copy of a row that ``json`` can write: NaN is None. An error names the column."""
    found: dict[str, Any] = {}
    for column, value in row.items():
        try:
            found[column] = _without_nan(value)
            _json({column: found[column]})
        except RecursionError:
            raise ValueError(f"row {number}, column `{column}`: a value contains itself or is nested too deeply") from None
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"row {number}, column `{column}`: {error}") from None
    return found


def _line(row: Mapping[str, Any], number: int) -> str:
    """Return a row as a line of JSON."""
    try:
        line = _json(dict(row)) + "\n"
    except (TypeError, ValueError, RecursionError):
        # Only rows that `json` refuses need this slower check.
        line = _json(_checked(row, number)) + "\n"
    try:
        line.encode()
    except UnicodeEncodeError as error:
        found = ascii(error.object[error.start])
        raise ValueError(
            f"row {number} has the character {found}, which is half of a surrogate pair and cannot be written as UTF-8: remove it, or "
            "replace it with `text.encode('utf-8', 'replace').decode()`"
        ) from None
    return line


#: A warning appears after so many characters of rows without a length, and each time their number has doubled.
_LONG = 200_000_000


def _write_rows(rows: Iterable[Any], folder: Path, name: str, max_rows: int | None) -> Path:
    """Write dicts as JSON lines one by one, so that a generator is never fully in memory. Reading stops after ``max_rows``."""
    import tempfile

    handle, path = tempfile.mkstemp(suffix=".jsonl", dir=folder)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            number, written, limit = 0, 0, _LONG
            for number, row in enumerate(itertools.islice(rows, max_rows), 1):
                if not isinstance(row, Mapping):
                    raise TypeError(
                        f"row {number} is a `{type(row).__name__}`, but a dict with its columns is expected, such as "
                        '{"text": "…"} or {"prompt": "…", "completion": "…"}'
                    )
                _refuse_images(row, number)
                line = _line(row, number)
                written += len(line)
                if written >= limit and not isinstance(rows, Sized):
                    limit *= 2
                    end = "the last row" if max_rows is None else f"row {max_rows}"
                    warnings.warn(
                        f"`{name}` has {number} rows so far. gradus reads it up to {end} before it begins. To read fewer rows, pass "
                        "`itertools.islice(rows, count)`",
                        stacklevel=2,
                    )
                file.write(line)
            if number == 0:
                raise ValueError("there are no rows")
    except BaseException:
        # The rows may also be interrupted by Ctrl-C.
        Path(path).unlink(missing_ok=True)
        raise
    return Path(path)


def limit_of(max_rows: Any) -> int | None:
    """Return the largest number of rows to read, or None. The native module refuses a value that is no positive number."""
    number = int(max_rows) if isinstance(max_rows, Integral) else 0
    return number if number > 0 else None


def as_path(rows: Rows, name: str = "data", *, max_rows: int | None = None) -> str:
    """Return the path of a file with these rows: the path itself, or a file in the cache folder that is named after its content.

    At most ``max_rows`` rows of an iterable are read, because it may have no end. A run stores the path, so ``gradus runs resume`` finds the rows again.
    """
    if isinstance(rows, str):
        return rows
    if isinstance(rows, os.PathLike):
        return str(os.fspath(rows))
    if type(rows).__name__ == "Series":
        raise TypeError(f"`{name}` is a `Series`, which is one column, but a table is expected: pass `series.to_frame()`, or a list of dicts")
    folder = cache_directory() / "rows"
    folder.mkdir(parents=True, exist_ok=True)
    table = _table(rows)
    if table is not None:
        return _native.write_table(table, str(folder))
    written = _write_rows(_dicts(rows, name), folder, name, max_rows)
    try:
        return _native.keep_file(str(written), str(folder))
    finally:
        written.unlink(missing_ok=True)
