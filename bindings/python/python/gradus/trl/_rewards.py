"""Reward functions: the names of their metrics in gradus and in TRL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from gradus._callables import names_of, reads_environments
from gradus.trl._check import error
from gradus.trl._objects import is_object

_Value = TypeVar("_Value")

_EVALUATED: Final = ("reward", "reward_std", "kl", "length", "clipped_ratio", "rewards/", "environment/", "tools/")
"""Metrics of evaluations that do not come from `log_metric`: names, and beginnings of names."""


def functions_of(rewards: Any) -> list[Callable[..., Any]]:
    """Returns the functions among the rewards. A model is none, though it can be called."""
    given = rewards if isinstance(rewards, (list, tuple)) else [rewards]
    return [one for one in given if callable(one) and not is_object(one)]


def refuse_environments(rewards: Any) -> None:
    """Raises for a function that reads the environments of the episodes. The trainer has none.

    Raises:
        ConfigError: with the alternative.
    """
    for function in functions_of(rewards):
        if reads_environments(function):
            raise error(
                f"the reward function `{getattr(function, '__name__', type(function).__name__)}` has a parameter `environments`, but the trainer "
                "has no `environment_factory`. Give one, or leave the parameter out."
            )


class RewardNames:
    """Converts names of metrics. Names of gradus are in lower case, and begin with `rewards/` for what `log_metric` logs."""

    def __init__(self, rewards: Any) -> None:
        count = len(rewards) if isinstance(rewards, (list, tuple)) else 1
        functions = functions_of(rewards)
        self._theirs: dict[str, str] = {}
        seen: Counter[str] = Counter()
        for ours, function in zip(names_of(functions), functions):
            name = str(getattr(function, "__name__", type(function).__name__))
            seen[name] += 1
            self._theirs[ours] = name if seen[name] == 1 else f"{name}_{seen[name]}"
        #: Where gradus logs numbers about the sum of several rewards.
        self._sum = None if count < 2 else "python" if count == len(functions) else "mix"

    def theirs(self, metrics: Mapping[str, _Value]) -> dict[str, _Value]:
        """Returns metrics with TRL's names. A logged metric whose name is taken keeps the one of gradus."""
        found: dict[str, _Value] = {}
        for name, value in metrics.items():
            of = "eval_" if name.startswith("eval_") else ""
            known = self._known(name.removeprefix(of))
            if known is not None:
                new = of + known
                found[name if new != name and new in metrics else new] = value
        return found

    def _known(self, name: str) -> str | None:
        """Returns TRL's name for a metric, or None if TRL has no such metric."""
        if not name.startswith("rewards/"):
            return name
        inner = name.removeprefix("rewards/")
        part, _, rest = inner.partition("/")
        if part in self._theirs:
            return f"rewards/{self._theirs[part]}/{rest}" if rest in ("mean", "std") else rest or part
        if rest in ("mean", "std"):
            return None if part == self._sum else name
        return inner if self._sum == "python" else name

    def ours(self, name: str) -> str:
        """Returns the name of gradus for a metric of evaluations, without `eval_`."""
        for ours, theirs in self._theirs.items():
            for statistic in ("mean", "std"):
                if name == f"rewards/{theirs}/{statistic}":
                    return f"rewards/{ours}/{statistic}"
        is_logged = not any(name.startswith(known) if known.endswith("/") else name == known for known in _EVALUATED)
        if is_logged and self._sum == "python":
            return f"rewards/{name}"
        if is_logged and len(self._theirs) == 1:
            return f"rewards/{next(iter(self._theirs))}/{name}"
        return name
