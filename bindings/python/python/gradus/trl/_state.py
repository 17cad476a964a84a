"""The state of a run for callbacks and scripts: the classes of transformers with the same names and fields."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from gradus.trl._check import error


class TrainOutput(NamedTuple):
    """The return value of `train()`."""

    global_step: int
    training_loss: float
    metrics: dict[str, float]


@dataclass
class TrainerState:
    """The progress of a run."""

    epoch: float | None = None
    global_step: int = 0
    max_steps: int = 0
    logging_steps: int = 10
    eval_steps: int = 0
    save_steps: int = 0
    train_batch_size: int | None = None
    num_train_epochs: float = 0
    num_input_tokens_seen: int = 0
    log_history: list[dict[str, float]] = field(default_factory=list)
    best_metric: float | None = None
    best_global_step: int | None = None
    best_model_checkpoint: str | None = None
    is_local_process_zero: bool = True
    is_world_process_zero: bool = True
    is_hyper_param_search: bool = False


@dataclass
class TrainerControl:
    """Requests of callbacks. gradus grants only `should_training_stop`."""

    should_training_stop: bool = False
    should_epoch_stop: bool = False
    should_save: bool = False
    should_evaluate: bool = False
    should_log: bool = False


CALLED: Final = (
    "on_init_end",
    "on_train_begin",
    "on_step_begin",
    "on_step_end",
    "on_log",
    "on_evaluate",
    "on_train_end",
)
"""The methods of a callback that gradus calls."""

_NOT_CALLED: Final = (
    "on_epoch_begin",
    "on_epoch_end",
    "on_substep_end",
    "on_pre_optimizer_step",
    "on_optimizer_step",
    "on_prediction_step",
    "on_predict",
    "on_save",
    "on_push_begin",
)

_NOT_GRANTED: Final = ("should_epoch_stop", "should_save", "should_evaluate", "should_log")


def _defines(callback: Any, method: str) -> bool:
    """Whether the callback overrides the empty method of transformers' base class."""
    for cls in type(callback).__mro__:
        if method in vars(cls):
            return not (cls.__name__ == "TrainerCallback" and cls.__module__.startswith("transformers."))
    return False


class Callbacks:
    """The callbacks of a trainer."""

    def __init__(self, callbacks: Iterable[Any] | None) -> None:
        self._all: list[Any] = []
        self._warned: set[str] = set()
        for callback in callbacks or ():
            self.add(callback)

    def __len__(self) -> int:
        return len(self._all)

    def add(self, callback: Any) -> None:
        """Adds an object, or an instance of a class that needs no arguments.

        Raises:
            ConfigError: if it has a method that gradus never calls.
        """
        callback = callback() if isinstance(callback, type) else callback
        never = [method for method in _NOT_CALLED if _defines(callback, method)]
        if never:
            raise error(
                f"the callback `{type(callback).__name__}` has {', '.join(f'`{one}`' for one in never)}, which gradus does not call. "
                f"Leave it out, or use {', '.join(f'`{one}`' for one in CALLED)}."
            )
        self._all.append(callback)

    def remove(self, callback: Any) -> Any:
        """Removes an object, or the first of a class, and returns it."""
        for one in self._all:
            if one is callback or type(one) is callback:
                self._all.remove(one)
                return one
        return None

    def call(self, event: str, args: Any, state: TrainerState, control: TrainerControl, **details: Any) -> TrainerControl:
        """Calls the method `event` of all callbacks. Returns the control, which one of them may have replaced."""
        for callback in self._all:
            method = getattr(callback, event, None)
            if method is not None:
                control = method(args, state, control, **details) or control
        for name in _NOT_GRANTED:
            if getattr(control, name, False):
                setattr(control, name, False)
                if name not in self._warned:
                    self._warned.add(name)
                    warnings.warn(f"a callback set `control.{name}`, which has no effect in gradus", stacklevel=2)
        return control


_LAST: Final = ("learning_rate", "grad_norm", "epoch", "num_tokens", "num_examples", "episodes", "kl_coef", "entropy_coef")
"""Numbers whose last value counts, not their mean: the state of a run, and the norm of the last step as in transformers."""


class Means:
    """Combines the numbers of several logged rows: means, weighted by the number of steps of each row."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, float]] = {}
        self._last: dict[str, float] = {}

    def add(self, metrics: Mapping[str, float | None], steps: int) -> None:
        """Adds a row that represents this number of steps."""
        for name, value in metrics.items():
            if value is None:
                continue
            if name in _LAST:
                self._last[name] = value
            else:
                total, weight = self._sums.get(name, (0.0, 0.0))
                self._sums[name] = (total + value * steps, weight + steps)

    def take(self) -> dict[str, float]:
        """Returns the combined row and starts a new one."""
        found = {name: total / weight for name, (total, weight) in self._sums.items()} | self._last
        self._sums, self._last = {}, {}
        return found
