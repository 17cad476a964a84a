"""Conversion between numbers of the native module and arrays."""

from __future__ import annotations

import importlib.util
from typing import Any


def floats(data: bytes) -> Any:
    """Return a ``numpy.ndarray`` of ``float32``, or an ``array.array`` if numpy is not installed."""
    if importlib.util.find_spec("numpy") is not None:
        import numpy

        return numpy.frombuffer(data, dtype=numpy.float32)
    from array import array

    found = array("f")
    found.frombytes(data)
    return found


def numbers(values: Any) -> list[Any]:
    """Return the values of a sequence or an array as a list."""
    if hasattr(values, "tolist"):
        values = values.tolist()
    return list(values)
