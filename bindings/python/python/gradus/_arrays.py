"""Numbers of the native module as arrays."""

from __future__ import annotations

import importlib.util
from typing import Any


def floats(data: bytes) -> Any:
    """A ``numpy.ndarray`` of ``float32``; without numpy an ``array.array``."""
    if importlib.util.find_spec("numpy") is not None:
        import numpy

        return numpy.frombuffer(data, dtype=numpy.float32)
    from array import array

    found = array("f")
    found.frombytes(data)
    return found


def numbers(values: Any) -> list[Any]:
    """A list of the values of a sequence or an array."""
    if hasattr(values, "tolist"):
        values = values.tolist()
    return list(values)
