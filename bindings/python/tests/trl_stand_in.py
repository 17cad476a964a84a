"""`gradus.trl` without the native module: a package `gradus` that contains only two exceptions and an empty `Model`.

The checks of arguments need no native code. If `gradus` can be imported, this module does nothing.
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
    """Whether there is a native module. It may be broken; the tests will show that."""
    spec = importlib.util.find_spec("gradus")
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    return any(importlib.machinery.PathFinder.find_spec("gradus._native", [folder]) is not None for folder in folders)


def native() -> bool:
    """Whether `gradus` can be imported as a whole. Otherwise a stand-in replaces it."""
    if is_built():
        importlib.import_module("gradus")
        return True
    stand_in = types.ModuleType("gradus")
    stand_in.__path__ = [str(PACKAGE)]
    sys.modules["gradus"] = stand_in
    from gradus._errors import ConfigError, InputError

    setattr(stand_in, "ConfigError", ConfigError)
    setattr(stand_in, "InputError", InputError)
    setattr(stand_in, "Model", type("Model", (), {}))
    return False


HAS_NATIVE = native()
