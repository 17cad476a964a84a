"""The exceptions of gradus.

Each has the text that the command line prints, with names of arguments instead of flags. ``hint`` contains a remedy, if one is
known.
"""

from __future__ import annotations

import re
from typing import Any

#: A flag in quotes or at the beginning of a line, optionally with a placeholder: `--max-steps`, `--adapter DIR`. Whole commands
#: (`gradus runs list --json`) are kept.
_FLAG = re.compile(r"(?:(?<=[`'])|^ *)--([a-z][a-z0-9-]*)(?: (?=[A-Z]+[`']))?", re.MULTILINE)


def in_python(text: str) -> str:
    """Return a text of the command line with ``max_steps`` instead of ``--max-steps``."""
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
