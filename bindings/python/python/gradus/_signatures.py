"""Signatures that list every key for tab completion within a call, because IPython does not read typed dicts."""

from __future__ import annotations

import inspect
from typing import Any

from gradus import _methods


def with_keys(name: str) -> inspect.Signature:
    """Return the signature of a training function, with its keys instead of ``**keys``."""
    function: Any = getattr(_methods, name)
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    keys = getattr(_methods, parameters[-1].annotation.removeprefix("Unpack[").removesuffix("]"))
    kind = inspect.Parameter.KEYWORD_ONLY
    own = [inspect.Parameter(key, kind, default=None, annotation=of.__forward_arg__) for key, of in keys.__annotations__.items()]
    return signature.replace(parameters=[*parameters[:-1], *own])


def complete() -> None:
    """Set these signatures for all training functions."""
    for name in _methods.METHODS:
        getattr(_methods, name).__signature__ = with_keys(name)
