"""The exceptions of gradus.

Each has the text that the command line prints. ``hint`` says what to do, where that is known.
"""

from __future__ import annotations


class Error(Exception):
    """Anything that gradus refuses or fails at."""

    hint: str | None = None


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


class RewardError(Error, RuntimeError):
    """A reward could not be computed. ``row`` is the first row that it was asked about, from 1."""

    row: int | None = None


class DivergedError(Error, ArithmeticError):
    """A loss, a gradient or a reward became infinite or not a number in ``step``."""

    step: int | None = None


class FileError(Error, OSError):
    """A file could not be read or written."""


class NetworkError(Error, ConnectionError):
    """A hub or a server could not be reached, or refused."""


class Interrupted(Error):
    """The work was stopped."""
