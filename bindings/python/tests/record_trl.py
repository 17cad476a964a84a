"""Records the arguments and methods of TRL's six trainers and the numbers of small runs: `python tests/record_trl.py`.

The result is tests/trl_arguments.json. The tests compare `gradus.trl` with this file, so they do not need TRL. If TRL is
installed, they compare the arguments with TRL too.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

METHODS = ("SFT", "DPO", "GRPO", "KTO", "RLOO", "Reward")
RECORD = Path(__file__).with_name("trl_arguments.json")


def library(name: str) -> Any:
    """Imports a package without types, which may be missing."""
    return importlib.import_module(name)


def plain(value: Any) -> Any:
    """Returns a default as JSON. A value without a JSON form fails here and not in the tests."""
    value = getattr(value, "value", value)
    if isinstance(value, tuple):
        value = list(value)
    json.dumps(value)
    return value


def fields_of(config: type) -> dict[str, Any]:
    found = {}
    for field in dataclasses.fields(config):
        assert field.init, field.name
        if field.default is not dataclasses.MISSING:
            found[field.name] = plain(field.default)
        elif field.default_factory is not dataclasses.MISSING:
            found[field.name] = plain(field.default_factory())
        else:
            raise TypeError(f"{config.__name__}.{field.name} has no default")
    return found


def parameters_of(trainer: Any) -> dict[str, Any]:
    """Returns names in order, with defaults. `required` lists the parameters without a default."""
    parameters = list(inspect.signature(trainer.__init__).parameters.values())[1:]
    return {
        "required": [one.name for one in parameters if one.default is one.empty],
        "defaults": {one.name: plain(one.default) for one in parameters if one.default is not one.empty},
    }


def methods_of(trainers: dict[str, Any]) -> dict[str, list[str]]:
    """Returns the methods that all trainers have, as `all`, and the others of each trainer."""
    found = {
        name: {method for method in dir(trainer) if not method.startswith("__") and callable(getattr(trainer, method))}
        for name, trainer in trainers.items()
    }
    shared = set.intersection(*found.values())
    return {"all": sorted(shared), **{name: sorted(methods - shared) for name, methods in found.items()}}


def record() -> dict[str, Any]:
    """Returns everything that needs no training."""
    trl, transformers = library("trl"), library("transformers")
    trainers = {f"{name}Trainer": getattr(trl, f"{name}Trainer") for name in METHODS}
    return {
        "trl": trl.__version__,
        "transformers": transformers.__version__,
        "configs": {f"{name}Config": fields_of(getattr(trl, f"{name}Config")) for name in METHODS},
        "trainers": {name: parameters_of(trainer) for name, trainer in trainers.items()},
        "methods": methods_of(trainers),
    }


def runs() -> dict[str, Any]:
    """Returns the logs of the jobs."""
    from trl_jobs import JOBS, numbers

    trl, rows_as = library("trl"), library("datasets").Dataset.from_list

    os.environ["HF_HUB_OFFLINE"] = "1"
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        return {name: numbers(trl, name, rows_as) for name in JOBS}


if __name__ == "__main__":
    RECORD.write_text(json.dumps({**record(), "runs": runs()}, indent=1) + "\n")
    print(f"wrote {RECORD}", file=sys.stderr)
