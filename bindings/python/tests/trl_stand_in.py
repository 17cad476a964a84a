"""`gradus.trl` without the native module: a package `gradus` that has nothing but the exceptions.

The checks of arguments need no native code. Where `gradus` can be imported, nothing happens here.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
import types
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "python" / "gradus"
REPOSITORY = Path(__file__).resolve().parents[3]


def is_built() -> bool:
    """Whether there is a native module, which may be broken: that is for the tests to show."""
    spec = importlib.util.find_spec("gradus")
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    return any(importlib.machinery.PathFinder.find_spec("gradus._native", [folder]) is not None for folder in folders)


def native() -> bool:
    """Whether `gradus` can be imported as a whole; else a stand-in is put in its place."""
    if is_built():
        importlib.import_module("gradus")
        return True
    stand_in = types.ModuleType("gradus")
    stand_in.__path__ = [str(PACKAGE)]
    sys.modules["gradus"] = stand_in
    from gradus._errors import ConfigError

    setattr(stand_in, "ConfigError", ConfigError)
    return False


HAS_NATIVE = native()
