"""Commands of the command line, within this process."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from gradus import _native
from gradus._data import as_path

#: Arguments whose value may be rows of another library.
_ROWS = frozenset({"data", "prompts"})


def _words(name: str, value: Any) -> list[str]:
    """The words of the command line for one argument."""
    flag = "--" + name.replace("_", "-")
    if value is None or value is False:
        return []
    if value is True:
        return [flag]
    if name in _ROWS:
        value = as_path(value, name)
    if isinstance(value, (str, os.PathLike)):
        return [f"{flag}={os.fspath(value)}"]
    if isinstance(value, Mapping):
        return [f"{flag}={json.dumps(value)}"]
    if isinstance(value, Iterable):
        return [f"{flag}={item}" for item in value]
    return [f"{flag}={value}"]


def command(*name: str, lines: bool = False, positional: Iterable[Any] = (), **arguments: Any) -> Any:
    """What the command prints with ``--json``: one value, or one a line. Its warnings become Python's."""
    words = [word for key, value in arguments.items() for word in _words(key, value)]
    output, messages = _native.call([*name, *words, *(str(word) for word in positional)])
    for message in messages:
        text = message.removeprefix("warning: ")
        if text != message:
            warnings.warn(text, stacklevel=3)
    if lines:
        return [json.loads(line) for line in output.splitlines() if line]
    return json.loads(output) if output.strip() else None


def doctor() -> dict[str, Any]:
    """The machine: processor, threads, memory, devices, and what this build can use."""
    found: dict[str, Any] = command("doctor")
    return found


def explain(key: str | None = None) -> list[dict[str, Any]]:
    """What a key, a part of the configuration or a method means: its keys, with types, defaults and texts."""
    found: list[dict[str, Any]] = command("config", "explain", positional=[] if key is None else [key])
    return found


def new_model(output: str | os.PathLike[str], **arguments: Any) -> dict[str, Any]:
    """Make a model of any family with random weights: what ``gradus new-model --json`` prints."""
    found: dict[str, Any] = command("new-model", output=output, **arguments)
    return found
