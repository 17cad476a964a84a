"""Commands of the command line, within this process."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from gradus import _native
from gradus._data import as_path

#: Methods whose command has a name that means something else in Python.
METHOD_NAMES = {"reward": "reward_model"}

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


class Keys(list[dict[str, Any]]):
    """Keys of the configuration: dicts with ``key``, ``type``, ``default``, ``required`` and ``doc``, and with ``argument`` where a
    function takes them. It shows itself as text, in a notebook as a table."""

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
    """What keys of the configuration mean: all that a method takes (``"grpo"`` or ``gradus.grpo``), one (``"learning_rate"``), a part
    (``"train.evaluation"``), or every one."""
    name: str | None = key if key is None or isinstance(key, str) else key.__name__
    methods = {METHOD_NAMES.get(method["name"], method["name"]): method for method in _native.keys()}
    if name is None or name not in methods:
        return Keys(command("config", "explain", positional=[] if name is None else [name]))
    known = {one["key"]: one for one in command("config", "explain")}
    return Keys({"argument": one["name"], **known[one["key"]]} for one in methods[name]["keys"] if one["key"] in known)


def new_model(output: str | os.PathLike[str], **arguments: Any) -> dict[str, Any]:
    """Create a model of any family with random weights: what ``gradus new-model --json`` prints."""
    found: dict[str, Any] = command("new-model", output=output, **arguments)
    return found
