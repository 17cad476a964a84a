"""Train language models from human feedback: SFT, reward models, DPO, PPO, GRPO and others, with Python rewards.

    import gradus

    def brevity(completions, **_):
        return [1.0 / (1 + len(text)) for text in completions]

    run = gradus.grpo("Qwen/Qwen3-0.6B", [{"prompt": "The kettle"}], reward=brevity, max_steps=10)
    print(run.model.generate("The kettle"))

Every method is a function (``sft``, ``dpo``, ``grpo``, ``ppo``, …) that returns a :class:`Run`. :func:`load` opens a model, and
:class:`Trainer` has the primitives for custom training loops.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from gradus import _native
from gradus._native import __version__

# Child processes render the chat templates of models. They run this interpreter with this package.
_native.set_program(sys.executable, ["-m", "gradus"])

from gradus import metrics
from gradus._commands import doctor, explain, new_model
from gradus._data import Rows
from gradus._errors import (
    ConfigError,
    DataError,
    DivergedError,
    Error,
    FileError,
    InputError,
    Interrupted,
    ModelError,
    NetworkError,
    RewardError,
    UsageError,
)
from gradus._methods import (
    a2c,
    classify,
    cpo,
    distill,
    dpo,
    grpo,
    kto,
    nlpo,
    orpo,
    ppo,
    reward_model,
    rloo,
    sft,
    simpo,
    trpo,
)
from gradus._model import Completion, Model, evaluate, export, load, merge, quantize, score
from gradus._run import Completions, Run
from gradus._training import plan, resume, run

if "IPython" in sys.modules:
    from gradus import _signatures

    _signatures.complete()

__all__ = [
    "Completion",
    "Completions",
    "ConfigError",
    "DataError",
    "Datum",
    "DivergedError",
    "Error",
    "FileError",
    "ForwardBackward",
    "InputError",
    "Interrupted",
    "Model",
    "ModelError",
    "NetworkError",
    "OptimStep",
    "RewardError",
    "Rows",
    "Run",
    "Sample",
    "Trainer",
    "UsageError",
    "__version__",
    "a2c",
    "classify",
    "cpo",
    "distill",
    "doctor",
    "dpo",
    "evaluate",
    "explain",
    "export",
    "grpo",
    "kto",
    "load",
    "merge",
    "metrics",
    "new_model",
    "nlpo",
    "orpo",
    "plan",
    "ppo",
    "quantize",
    "resume",
    "reward_model",
    "rloo",
    "run",
    "score",
    "sft",
    "simpo",
    "trl",
    "trpo",
]

if TYPE_CHECKING:
    from gradus import trl
    from gradus._trainer import Datum, ForwardBackward, OptimStep, Sample, Trainer

#: Imported at their first use, because most programs do not need them.
_LATER = {
    "Datum": "gradus._trainer",
    "ForwardBackward": "gradus._trainer",
    "OptimStep": "gradus._trainer",
    "Sample": "gradus._trainer",
    "Trainer": "gradus._trainer",
}


# With this function, type checkers would accept every name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        import importlib

        if name == "trl":
            return importlib.import_module("gradus.trl")
        if name in _LATER:
            return getattr(importlib.import_module(_LATER[name]), name)
        raise AttributeError(f"module 'gradus' has no attribute {name!r}")


def __dir__() -> list[str]:
    # Names for tab completion.
    return sorted(__all__)
