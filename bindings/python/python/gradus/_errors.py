"""The exceptions of gradus.

Each has the text that the command line prints, with names of arguments instead of flags. ``hint`` contains a remedy, if one is
known.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

#: A flag, optionally with a value: --max-steps, --max-steps 3, --adapter=DIR.
_ONE = r"--[a-z][a-z0-9-]*(?:[ =][^\s`-][^\s`]*)?"
_PARTS = re.compile(r"--([a-z][a-z0-9-]*)(?:[ =]([^\s`-][^\s`]*))?")

#: The command that resumes a run, with its directory as a word of a shell.
_RESUME = re.compile(r"`gradus [a-z0-9_-]+ --output-dir (\S+|'.*?') --resume`")

#: Flags alone in backticks: `--max-steps 3`, `--column chosen=A --column rejected=B`. Other commands (`gradus runs list --json`) are kept.
_FLAGS = re.compile(rf"`({_ONE}(?: {_ONE})*)`")

#: A flag in other quotes, at the beginning of a line, or before other words; optionally with a placeholder.
_FLAG = re.compile(r"(?:(?<=[`'])|^ *)--([a-z][a-z0-9-]*)(?: (?=[A-Z]+[`']))?", re.MULTILINE)

#: Values that Python code has without quotes: numbers, and placeholders such as DIR or NAME|FILE.
_BARE = re.compile(r"[0-9]+(\.[0-9]+)?(e-?[0-9]+)?|[A-Z][A-Z_|]*")


def _arguments(found: re.Match[str]) -> str:
    """Return flags in backticks as arguments. A flag that is repeated has a list."""
    values: dict[str, list[str]] = {}
    for one in _PARTS.finditer(found[1]):
        own = values.setdefault(one[1].replace("-", "_"), [])
        if one[2] is not None:
            own.append(one[2] if _BARE.fullmatch(one[2]) else f'"{one[2]}"')
    parts: list[str] = []
    for name, given in values.items():
        value = f"[{', '.join(given)}]" if len(given) > 1 else "".join(given)
        parts.append(f"{name}={value}" if value else name)
    return f"`{', '.join(parts)}`"


def _resume(found: re.Match[str]) -> str:
    (directory,) = shlex.split(found[1])
    return f"`gradus.resume({json.dumps(directory, ensure_ascii=False)})`"


def in_python(text: str) -> str:
    """Return a text of the command line with ``max_steps`` instead of ``--max-steps``, and ``max_steps=3`` instead of ``--max-steps 3``.

    The command that resumes a run becomes ``gradus.resume("DIR")``.
    """
    text = _RESUME.sub(_resume, text)
    text = _FLAGS.sub(_arguments, text)
    return _FLAG.sub(lambda found: found[1].replace("-", "_") + ("=" if found[0].endswith(" ") else ""), text)


class Error(Exception):
    """Base class of all errors that gradus raises."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*(in_python(one) if isinstance(one, str) else one for one in arguments))
        self._hint: str | None = None

    @property
    def hint(self) -> str | None:
        """A remedy, if one is known."""
        if self._hint is not None:
            return self._hint
        lines = [line.removeprefix("hint: ") for line in str(self).splitlines() if line.startswith("hint: ")]
        return "\n".join(lines) or None

    @hint.setter
    def hint(self, text: str | None) -> None:
        self._hint = None if text is None else in_python(text)


def _first_part(text: str) -> str:
    lines = text.split("\n\nUsage:")[0].splitlines()
    return "\n".join(line.strip().replace("tip: ", "hint: ", 1) for line in lines if line.strip())


class InputError(Error, ValueError):
    """The input is wrong."""


class ConfigError(InputError):
    """The arguments or the configuration file are wrong. The text names every problem."""


class DataError(InputError):
    """A data file or a row is wrong. ``row`` is its line or number, from 1."""

    row: int | None = None


class ModelError(InputError):
    """A model directory cannot be used."""


class UsageError(InputError, TypeError):
    """A command was called with arguments that it does not have."""

    def __init__(self, *arguments: Any) -> None:
        # The shell syntax of the command does not help in Python.
        super().__init__(*(_first_part(one) if isinstance(one, str) else one for one in arguments))


class RewardError(Error, RuntimeError):
    """A reward could not be computed. ``row`` is the first row of the request, from 1."""

    row: int | None = None


class DivergedError(Error, ArithmeticError):
    """A loss, a gradient or a reward became infinite or NaN in ``step``."""

    step: int | None = None


class FileError(Error, OSError):
    """A file could not be read or written."""


class NetworkError(Error, ConnectionError):
    """A hub or a server could not be reached, or rejected the request."""


class Interrupted(Error):
    """The work was stopped."""


# Tracebacks show the public name, such as `gradus.RewardError`.
for _class in [value for value in globals().values() if isinstance(value, type) and issubclass(value, Error)]:
    _class.__module__ = "gradus"
