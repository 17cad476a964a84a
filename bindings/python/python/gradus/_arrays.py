"""Conversion between numbers of the native module and arrays."""

from __future__ import annotations

import importlib.util
import operator
from typing import Any

from gradus._errors import InputError


def floats(data: bytes) -> Any:
    """Return a ``numpy.ndarray`` of ``float32``, or an ``array.array`` if numpy is not installed."""
    if importlib.util.find_spec("numpy") is not None:
        import numpy

        return numpy.frombuffer(data, dtype=numpy.float32)
    from array import array

    found = array("f")
    found.frombytes(data)
    return found


def numbers(values: Any, what: str) -> list[Any]:
    """Return the values of a sequence or an array as a list. ``what`` names them in errors."""
    if hasattr(values, "tolist"):
        values = values.tolist()
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise InputError(f"{what} is a `{type(values).__name__}`, but a list or an array of numbers is expected")
    return list(values)


def seed_of(value: Any) -> int:
    """Return a seed that the native module accepts."""
    try:
        seed = operator.index(value)
    except TypeError:
        raise TypeError(f"`seed` is a `{type(value).__name__}`, but a whole number is expected") from None
    if not 0 <= seed < 2**64:
        raise InputError(f"`seed` is {seed}, but must be at least 0 and below 2^64")
    return seed


def one_text(value: Any) -> str:
    """Return the argument ``text``, which is a single text."""
    if not isinstance(value, str):
        raise TypeError(f"`text` is a `{type(value).__name__}`, but one text is expected: encode several texts one by one")
    return value


def token_ids(values: Any, what: str, vocabulary: int = 2**32) -> list[int]:
    """Return token ids as a list. ``what`` names them in errors. They are below ``vocabulary``."""
    found: list[int] = []
    for place, value in enumerate(numbers(values, what), 1):
        try:
            number = operator.index(value)
        except TypeError:
            raise InputError(f"{what} has `{value!r}` at place {place}, but token ids are whole numbers") from None
        if not 0 <= number < vocabulary:
            raise InputError(f"{what} has {number} at place {place}, but token ids are at least 0 and below the size of the vocabulary")
        found.append(number)
    return found
