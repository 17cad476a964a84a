"""Commands of the command line, run within this process."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from numbers import Number
from typing import Any

from gradus import _native
from gradus._data import as_path, limit_of

#: Methods whose command name has another meaning in Python.
METHOD_NAMES = {"reward": "reward_model"}

#: Arguments that may be rows of another library.
_ROWS = frozenset({"data", "prompts"})


def _words(name: str, value: Any, max_rows: int | None) -> list[str]:
    """Return the command-line words for one argument. Of rows, at most ``max_rows`` are read."""
    flag = "--" + name.replace("_", "-")
    if value is None or value is False:
        return []
    if value is True:
        return [flag]
    if name in _ROWS:
        value = as_path(value, name, max_rows=max_rows)
    if isinstance(value, (str, os.PathLike)):
        return [f"{flag}={os.fspath(value)}"]
    if isinstance(value, Mapping):
        return [f"{flag}={json.dumps(value)}"]
    if isinstance(value, Iterable):
        return [f"{flag}={item}" for item in value]
    if not isinstance(value, Number):
        raise TypeError(f"`{name}` is a `{type(value).__name__}`, but a text, a path, a number, a list or a dict is expected")
    return [f"{flag}={value}"]


def command(*name: str, lines: bool = False, positional: Iterable[Any] = (), **arguments: Any) -> Any:
    """Return the command's output with ``--json``: one value, or one per line. Its warnings become Python warnings."""
    # Some commands do not count the bad rows that they skip.
    max_rows = None if arguments.get("skip_bad_rows") else limit_of(arguments.get("max_rows"))
    words = [word for key, value in arguments.items() for word in _words(key, value, max_rows)]
    output, messages = _native.call([*name, *words, *(str(word) for word in positional)])
    for message in messages:
        text = message.removeprefix("warning: ")
        if text != message:
            warnings.warn(text, stacklevel=3)
    if lines:
        return [json.loads(line) for line in output.splitlines() if line]
    return json.loads(output) if output.strip() else None


def doctor() -> dict[str, Any]:
    """Return a description of the machine: CPU, threads, memory, devices, and what this build supports."""
    found: dict[str, Any] = command("doctor")
    return found


class Keys(list[dict[str, Any]]):
    """Keys of the configuration: dicts with ``key``, ``type``, ``default``, ``required`` and ``doc``, and with ``argument`` if a
    function takes the key. Displayed as text, and as a table in a notebook."""

    def __repr__(self) -> str:
        import textwrap

        return "\n".join(
            f"{name} ({kind})\n{textwrap.fill(doc, 100, initial_indent='    ', subsequent_indent='    ')}"
            for name, kind, doc in self._lines()
        )

    def _repr_html_(self) -> str:
        import html

        left = 'style="text-align:left;vertical-align:top"'
        lines = (
            f"<tr><td {left}><code>{html.escape(name)}</code></td><td {left}>{html.escape(kind)}</td><td {left}>{html.escape(doc)}</td></tr>"
            for name, kind, doc in self._lines()
        )
        return f"<table>{''.join(lines)}</table>"

    def _lines(self) -> Iterator[tuple[str, str, str]]:
        for one in self:
            yield one.get("argument", one["key"]), one["type"].replace("`", ""), one["doc"]


def explain(key: str | Callable[..., Any] | None = None) -> Keys:
    """Explain keys of the configuration: all keys of a method (``"grpo"`` or ``gradus.grpo``), one key (``"learning_rate"``), a
    part (``"train.evaluation"``), or every key."""
    name: str | None = key if key is None or isinstance(key, str) else key.__name__
    methods = {METHOD_NAMES.get(method["name"], method["name"]): method for method in _native.keys()}
    if name is None or name not in methods:
        return Keys(command("config", "explain", positional=[] if name is None else [name]))
    known = {one["key"]: one for one in command("config", "explain")}
    return Keys({"argument": one["name"], **known[one["key"]]} for one in methods[name]["keys"] if one["key"] in known)


def new_model(output: str | os.PathLike[str], **arguments: Any) -> dict[str, Any]:
    """Create a model of any family with random weights. Returns the output of ``gradus new-model --json``."""
    found: dict[str, Any] = command("new-model", output=output, **arguments)
    return found
