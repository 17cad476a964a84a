"""Models and tokenizers as objects in memory, and rows that a function changes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gradus.trl._check import error, shown


def is_object(value: Any) -> bool:
    """Whether it is a model or a tokenizer of transformers or peft, which must be saved before gradus can read it."""
    return hasattr(value, "save_pretrained") and not isinstance(value, (str, os.PathLike))


def name_of(model: Any) -> str:
    """Returns the directory or hub name that an object came from, or the text itself."""
    if isinstance(model, (str, os.PathLike)):
        return os.fspath(model)
    found = getattr(model, "name_or_path", None) or getattr(getattr(model, "config", None), "_name_or_path", None)
    return str(found or getattr(model, "path", "") or "")


def refuse_quantized(model: Any) -> None:
    """Raises for a model whose weights were quantized in memory, because its files would not be those of a trainable model.

    Raises:
        ConfigError: with the alternative.
    """
    if getattr(model, "is_quantized", False) or getattr(model, "quantization_method", None) is not None:
        raise error(
            "`model` is quantized in memory, and gradus reads weights from files. Pass the name or directory of the model, "
            "with `quantization_config` and `peft_config`."
        )


def saved(value: Any, directory: Path, *, again: bool) -> str:
    """Saves an object and returns the directory. `again`: an existing directory is from this run and is kept."""
    if not (again and directory.is_dir()):
        directory.mkdir(parents=True, exist_ok=True)
        value.save_pretrained(str(directory))
    return str(directory)


def rows_of(data: Any) -> int | None:
    """Returns the number of rows, if the data have a length."""
    if isinstance(data, (str, os.PathLike)) or not hasattr(data, "__len__"):
        return None
    try:
        return len(data)
    except TypeError:
        return None


def is_stream(data: Any) -> bool:
    """Whether the data are rows that can only be read one after the other, and that may have no end."""
    is_other = isinstance(data, (str, os.PathLike)) or hasattr(data, "__arrow_c_stream__")
    return isinstance(data, Iterable) and not is_other and rows_of(data) is None


class Mapped(Iterable[Mapping[str, Any]]):
    """Rows that a function changes while they are read. They can be read repeatedly."""

    def __init__(self, rows: Any, name: str, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
        if isinstance(rows, (str, os.PathLike)) or not isinstance(rows, Iterable):
            raise error(
                f"`{name}` is {shown(rows)}, but rows that Python can iterate over are needed for `formatting_func` and "
                "`chat_template_kwargs`. Load them, for example with `datasets.load_dataset`."
            )
        self._rows, self._change = rows, change

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return (self._change(row) for row in self._rows)
