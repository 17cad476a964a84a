"""Display of a run's progress: a bar in a terminal, a changing line in a notebook."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gradus._errors import in_python

if TYPE_CHECKING:
    from gradus._callables import Rewards

#: The most important metrics, with their names in a bar.
_SHOWN = (
    ("reward", "reward"),
    ("objective/scores", "reward"),
    ("objective/kl", "kl"),
    ("loss", "loss"),
    ("accuracy", "accuracy"),
    ("rewards/accuracies", "accuracy"),
)
_WIDTH = 24


def _numbers(metrics: dict[str, float], prefix: str = "") -> str:
    shown: dict[str, float] = {}
    for key, name in _SHOWN:
        value = metrics.get(prefix + key)
        if value is not None:
            # Held-out metrics keep the name that they have in the metrics of the run.
            shown.setdefault(prefix + key if prefix else name, value)
    return " ".join(f"{name} {value:.4g}" for name, value in shown.items())


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _in_notebook() -> bool:
    # IPython is used only if it is already running.
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and shell.__class__.__name__ == "ZMQInteractiveShell"


def _display(data: dict[str, str], **options: Any) -> Any:
    """Show data in a notebook."""
    return importlib.import_module("IPython.display").display(data, raw=True, **options)


class Silent:
    """Displays nothing."""

    def begin(self, name: str, total: int | None, done: int) -> None:
        """Called when a phase of work begins."""

    def step(self, step: int, total: int, metrics: dict[str, float]) -> None:
        """Called after a step."""

    def within(self, what: str, done: int, total: int) -> None:
        """Called during the work within a step."""

    def say(self, text: str) -> None:
        """Called with a message for the user."""

    def close(self) -> None:
        """Called when the run has ended."""


class Bar(Silent):
    """A single changing line, on a terminal or in a notebook. If stderr is neither, prints a line every few seconds."""

    def __init__(self) -> None:
        self.name = ""
        self.done = 0
        self.first = 0
        self.total: int | None = None
        self.numbers = ""
        self.inside = ""
        self.stepped = ""
        self.since = time.monotonic()
        self.shown = 0.0
        self.width = 0
        self.display: Any = None
        self.changes = sys.stderr.isatty()
        if _in_notebook():
            self.display = _display({"text/plain": ""}, display_id=True)

    def begin(self, name: str, total: int | None, done: int) -> None:
        self.name, self.total, self.done, self.first, self.inside = name, total, done, done, ""
        self.since = time.monotonic()
        self._draw(now=True)

    def step(self, step: int, total: int, metrics: dict[str, float]) -> None:
        self.done, self.total, self.numbers, self.inside = step, total, _numbers(metrics), ""
        self.stepped = self._line(is_last=True)
        self._draw(now=step == total)

    def within(self, what: str, done: int, total: int) -> None:
        self.inside = f"{what} {done}/{total}"
        self._draw(now=False)

    def say(self, text: str) -> None:
        self._clear()
        if self.display is not None:
            _display({"text/plain": text})
        else:
            print(text, file=sys.stderr)
        self._draw(now=True)

    def close(self) -> None:
        # Leave the last step on screen, not the work after it.
        if self.stepped and (self.changes or self.display is not None):
            self._show(self.stepped)
        if self.display is None and self.changes and self.width:
            print(file=sys.stderr)

    def _line(self, is_last: bool = False) -> str:
        if not self.total:
            return self.name
        share = min(self.done / self.total, 1.0)
        full = round(share * _WIDTH)
        took = time.monotonic() - self.since
        did = self.done - self.first
        goes_on = did > 0 and self.done < self.total and not is_last
        left = f", {_duration(took / did * (self.total - self.done))} left" if goes_on else ""
        parts = [f"{self.name} {'█' * full}{'░' * (_WIDTH - full)} {self.done}/{self.total}{left}", self.inside, self.numbers]
        return "  ".join(part for part in parts if part)

    def _columns(self) -> int:
        """Return the width of the terminal. A longer line would wrap and could not be overwritten."""
        try:
            return os.get_terminal_size(sys.stderr.fileno()).columns or 80
        except (OSError, ValueError):
            return 80

    def _clear(self) -> None:
        if self.display is None and self.changes and self.width:
            print("\r" + " " * self.width + "\r", end="", file=sys.stderr)
            self.width = 0

    def _draw(self, now: bool) -> None:
        elapsed = time.monotonic() - self.shown
        patience = 0.1 if self.changes or self.display is not None else 10.0
        if not now and elapsed < patience:
            return
        if now and not self.changes and self.display is None and elapsed < 1.0:
            return
        self.shown = time.monotonic()
        self._show(self._line())

    def _show(self, line: str) -> None:
        if self.changes and self.display is None:
            line = line[: self._columns() - 1]
        if self.display is not None:
            self.display.update({"text/plain": line}, raw=True)
        elif self.changes:
            print("\r" + line.ljust(self.width), end="", file=sys.stderr, flush=True)
            self.width = len(line)
        else:
            print(line, file=sys.stderr)


def _stops(answer: Any) -> bool:
    """Return true if a callback returned false, also as a number of numpy. Other values, such as None and 0, do not stop a run."""
    return type(answer).__name__ in ("bool", "bool_") and not answer


def _check_callback(name: str, function: Any, arguments: str) -> None:
    """Refuse a callback that cannot be called as ``name(arguments)``, before the run begins."""
    if function is None:
        return
    if not callable(function):
        raise TypeError(f"`{name}` is a `{type(function).__name__}`, but a function `{name}({arguments})` is expected")
    import inspect

    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*arguments.split(", "))
    except TypeError as error:
        raise TypeError(f"`{name}` is called as `{name}({arguments})`, but the given function takes `{signature}`: {error}") from None


class Watcher:
    """Receives all events of a run, draws the progress, and calls the user's callbacks."""

    def __init__(
        self,
        progress: bool | None,
        on_step: Callable[..., Any] | None,
        on_evaluation: Callable[..., Any] | None,
        on_rollouts: Callable[..., Any] | None,
    ) -> None:
        _check_callback("on_step", on_step, "step, total, metrics")
        _check_callback("on_evaluation", on_evaluation, "step, metrics, best")
        _check_callback("on_rollouts", on_rollouts, "step, rollouts")
        shows = progress if progress is not None else sys.stderr.isatty() or _in_notebook()
        self.bar = Bar() if shows else Silent()
        self.on_step = on_step
        self.on_evaluation = on_evaluation
        self.on_rollouts = on_rollouts
        #: Rewards that store values of trained completions.
        self.rewards: Sequence[Rewards] = ()

    def __call__(self, kind: str, details: dict[str, Any]) -> bool | None:
        answer = None
        if kind == "step":
            self.bar.step(details["step"], details["total"], details["metrics"])
            if self.on_step is not None:
                answer = self.on_step(details["step"], details["total"], details["metrics"])
        elif kind == "within":
            self.bar.within(details["what"], details["done"], details["total"])
        elif kind == "evaluation":
            for reward in self.rewards:
                reward.evaluated()
            best = ", best so far" if details["best"] else ""
            self.bar.say(f"step {details['step']}: {_numbers(details['metrics'], 'eval_')}{best}")
            if self.on_evaluation is not None:
                answer = self.on_evaluation(details["step"], details["metrics"], details["best"])
        elif kind == "rollouts":
            for reward in self.rewards:
                reward.trained()
            if self.on_rollouts is not None:
                answer = self.on_rollouts(details["step"], details["rollouts"])
        elif kind == "phase":
            self.bar.begin(details["name"], details["total"], details["done"])
        elif kind == "message":
            self.bar.say(details["text"])
        elif kind == "warning":
            self.bar.say(f"warning: {in_python(details['text'])}")
        return False if _stops(answer) else None
