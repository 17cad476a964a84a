"""`gradus.trl` without the native module: a package `gradus` that has nothing but the exceptions.

The checks of arguments need no native code. Where `gradus` can be imported, nothing happens here.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "python" / "gradus"
REPOSITORY = Path(__file__).resolve().parents[3]


def native() -> bool:
    """Whether `gradus` can be imported as a whole; else a stand-in is put in its place."""
    try:
        import gradus
        import gradus._native  # noqa: F401

        return hasattr(gradus, "ConfigError")
    except ImportError:
        pass
    stand_in = types.ModuleType("gradus")
    stand_in.__path__ = [str(PACKAGE)]
    sys.modules["gradus"] = stand_in
    if importlib.util.find_spec("gradus._errors") is not None:
        from gradus._errors import ConfigError
    else:

        class ConfigError(ValueError):  # type: ignore[no-redef]
            pass

    stand_in.ConfigError = ConfigError  # type: ignore[attr-defined]
    return False


HAS_NATIVE = native()
