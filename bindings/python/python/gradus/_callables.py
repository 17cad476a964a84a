"""Python functions as rewards, metrics, post-processors, tasks, observers, tools and environments of a configuration."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any


class TrainerState:
    """State of the run, as passed to reward functions."""

    def __init__(self, global_step: int, max_steps: int) -> None:
        #: Number of finished steps.
        self.global_step = global_step
        #: Total number of steps.
        self.max_steps = max_steps

    def __repr__(self) -> str:
        return f"TrainerState(global_step={self.global_step}, max_steps={self.max_steps})"


def name_of(function: Callable[..., Any]) -> str:
    """Return a name for a function that is valid in a configuration: lower-case letters, digits and ``_``."""
    name = getattr(function, "__name__", None) or type(function).__name__
    name = re.sub(r"[^a-z0-9_]+", "_", name.lower()).strip("_")
    return name if name[:1].isalpha() else f"f_{name}".rstrip("_")


def names_of(functions: Sequence[Callable[..., Any]]) -> list[str]:
    """Return the names of functions as :func:`name_of`, with numbers for equal ones."""
    names: list[str] = []
    for function in functions:
        name = name_of(function)
        count = sum(known == name or known.startswith(f"{name}_") for known in names)
        names.append(f"{name}_{count + 1}" if count else name)
    return names


def _accepted(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of ``arguments`` that ``function`` accepts: all if it has ``**kwargs`` or its signature is unknown.

    A required parameter that is not in ``arguments`` is an error.
    """
    import inspect

    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return dict(arguments)
    for name, parameter in parameters.items():
        is_given = name in arguments and parameter.kind is not parameter.POSITIONAL_ONLY
        is_open = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if parameter.default is parameter.empty and not is_given and not is_open:
            known = ", ".join(f"`{one}`" for one in arguments)
            raise TypeError(f"`{name_of(function)}` needs an argument `{name}`, but functions here are called with {known}, by name")
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(arguments)
    return {name: value for name, value in arguments.items() if name in parameters}


def reads_environments(function: Callable[..., Any]) -> bool:
    """Whether a reward function has a parameter ``environments``."""
    import inspect

    try:
        return "environments" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def _number(value: Any, what: str) -> float:
    """Return ``value`` as a finite number."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, (int, float)):
        try:
            number = float(value)
        except OverflowError:
            raise ValueError(f"{what} is an integer that is too large for a float") from None
        if math.isfinite(number):
            return number
        raise ValueError(f"{what} is {number}, but a finite number is needed")
    raise TypeError(f"{what} is a `{type(value).__name__}`, but a number is needed")


class Rewards:
    """One or several reward functions, called with every batch of completions.

    Functions have TRL's contract. They are called with the keyword arguments that they accept: ``prompts``, ``completions``,
    ``completion_ids``, ``trainer_state``, ``log_extra``, ``log_metric`` and every column of the rows, each a list with one entry per
    completion. They return a list of numbers. ``None`` means that the function gives the completion no score. Async functions run
    concurrently. A function with a parameter ``environments`` gets the environment of each episode, or ``None`` if it failed to begin.
    """

    def __init__(self, functions: Sequence[tuple[str, Callable[..., Any], float]]) -> None:
        self.functions = list(functions)
        #: Whether a function reads the environments of the episodes.
        self.reads_environments = any(reads_environments(function) for _, function, _ in self.functions)
        #: Number of optimizer steps per step of the run, for callers that count those.
        self.optimizer_steps = 1
        #: Values that functions logged with ``log_extra``: columns with one value per trained completion.
        self.extra: dict[str, list[Any]] = {}
        #: The same for completions of which it is not known yet whether the run trains on them.
        self._scored: dict[str, list[Any]] = {}

    def trained(self) -> None:
        """Keep the logged values: the run has trained on the completions."""
        for column, values in self._scored.items():
            self.extra.setdefault(column, []).extend(values)
        self._scored.clear()

    def evaluated(self) -> None:
        """Drop the logged values: the completions belong to an evaluation."""
        self._scored.clear()

    def __call__(
        self,
        prompts: list[Any],
        completions: list[Any],
        completion_ids: list[list[int]],
        columns: dict[str, list[Any]],
        rows: list[int],
        step: int,
        total: int,
        environments: list[Any] | None = None,
    ) -> tuple[list[str], list[float], list[list[float | None]], list[tuple[str, float]]]:
        logged: list[tuple[str, float]] = []
        state = TrainerState(step * self.optimizer_steps, total * self.optimizer_steps)

        def log_metric(name: str, value: Any) -> None:
            logged.append((str(name), _number(value, f"the metric `{name}`")))

        def log_extra(column: str, values: Sequence[Any]) -> None:
            values = list(values)
            if len(values) != len(prompts):
                raise ValueError(f"`log_extra` got {len(values)} values of `{column}` for {len(prompts)} completions")
            self._scored.setdefault(str(column), []).extend(values)

        arguments: dict[str, Any] = {
            **columns,
            "prompts": prompts,
            "completions": completions,
            "completion_ids": completion_ids,
            "trainer_state": state,
            "log_extra": log_extra,
            "log_metric": log_metric,
        }

        def accepted(function: Callable[..., Any]) -> dict[str, Any]:
            is_given = environments is not None and reads_environments(function)
            return _accepted(function, arguments | {"environments": environments} if is_given else arguments)

        waiting: dict[int, Any] = {}
        found: list[Any] = []
        for number, (name, function, _) in enumerate(self.functions):
            try:
                found.append(function(**accepted(function)))
                # Not only async functions return coroutines, but also a lambda that calls one.
                if isinstance(found[-1], Coroutine):
                    waiting[number] = found[-1]
            except Exception as error:
                for coroutine in waiting.values():
                    coroutine.close()
                error.add_note(_where(name, rows))
                raise
        if waiting:
            from . import _event_loop

            try:
                answers = _event_loop.run(list(waiting.values()))
            except Exception as error:
                error.add_note(_where(", ".join(self.functions[number][0] for number in waiting), rows))
                raise
            for number, answer in zip(waiting, answers):
                found[number] = answer
        values = [
            _checked(name, answer, rows) for (name, _, _), answer in zip(self.functions, found)
        ]
        names = [name for name, _, _ in self.functions]
        return names, [weight for _, _, weight in self.functions], values, logged


def _where(name: str, rows: Sequence[int]) -> str:
    numbers = sorted(set(rows))
    listed = ", ".join(str(number) for number in numbers[:10]) + (", …" if len(numbers) > 10 else "")
    return f"raised by the reward `{name}`, which scored completions of the prompts in rows {listed}"


def _checked(name: str, answer: Any, rows: Sequence[int]) -> list[float | None]:
    """Return a number or ``None`` for each completion."""
    if hasattr(answer, "tolist"):
        answer = answer.tolist()
    if isinstance(answer, (str, bytes, Mapping)) or not hasattr(answer, "__iter__"):
        raise TypeError(
            f"the reward `{name}` returned a `{type(answer).__name__}`, but a list with a number or None for each of "
            f"{len(rows)} completions is needed"
        )
    values = list(answer)
    if len(values) != len(rows):
        raise ValueError(f"the reward `{name}` returned {len(values)} values for {len(rows)} completions")
    return [
        None if value is None else _number(value, f"the reward `{name}` of completion {number} (row {row})")
        for number, (value, row) in enumerate(zip(values, rows), 1)
    ]


class Metric:
    """A metric function, called with the keyword arguments that it accepts: ``predictions``, ``references``, ``prompts``, ``rows``.

    It returns a number for all rows, a list with a number for each row, or a dict of these.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        self.function = function

    def __call__(
        self,
        predictions: list[str],
        references: list[list[str]],
        prompts: list[str],
        rows: list[dict[str, Any]],
    ) -> list[tuple[str, float | None, list[float] | None]]:
        arguments = {"predictions": predictions, "references": references, "prompts": prompts, "rows": rows}
        answer = self.function(**_accepted(self.function, arguments))
        parts = answer if isinstance(answer, Mapping) else {"": answer}
        return [(str(part), *self._part(str(part), value)) for part, value in parts.items()]

    def _part(self, part: str, value: Any) -> tuple[float | None, list[float] | None]:
        what = f"the metric `{self.name}/{part}`" if part else f"the metric `{self.name}`"
        if hasattr(value, "tolist"):
            value = value.tolist()
        if isinstance(value, Sequence) and not isinstance(value, str):
            return None, [_number(item, f"{what} of row {number}") for number, item in enumerate(value, 1)]
        return _number(value, what), None


class Task:
    """A task: a function of a split, or an object with a method ``samples``, that returns the split's samples in a fixed order.

    It is called with ``"train"``, ``"validation"`` or ``"test"``. A sample is a dict with a ``prompt`` and optional
    ``references``: a text or a list. Its other keys are columns that rewards and metrics read.
    """

    def __init__(self, name: str, task: Any) -> None:
        self.name = name
        self.give: Callable[[str], Any] = task.samples if hasattr(task, "samples") else task

    def __call__(self, split: str, most: int | None) -> list[tuple[str, list[str], dict[str, Any]]]:
        import itertools

        try:
            samples = self.give(split)
            if isinstance(samples, (str, bytes, Mapping)) or not hasattr(samples, "__iter__"):
                raise TypeError(f"it gave a `{type(samples).__name__}`, but an iterable of dicts is needed")
            wanted = itertools.islice(samples, most) if most is not None else samples
            return [self._sample(number, sample) for number, sample in enumerate(wanted, 1)]
        except Exception as error:
            error.add_note(f"raised by the task `{self.name}`, when its samples for {split!r} were requested")
            raise

    def _sample(self, number: int, sample: Any) -> tuple[str, list[str], dict[str, Any]]:
        if not isinstance(sample, Mapping):
            raise TypeError(f"sample {number} is a `{type(sample).__name__}`, but a dict with a `prompt` is needed")
        columns = dict(sample)
        prompt = columns.pop("prompt", None)
        if not isinstance(prompt, str):
            found = ", ".join(f"`{key}`" for key in sample) or "nothing"
            raise TypeError(f"sample {number} has no text `prompt` (found {found})")
        references = columns.pop("references", ())
        references = [references] if isinstance(references, str) else list(references)
        for reference in references:
            if not isinstance(reference, str):
                raise TypeError(f"a reference of sample {number} is a `{type(reference).__name__}`, but a text is needed")
        return prompt, references, columns


class Callables:
    """Collects the functions of a call and replaces them by entries of the configuration."""

    def __init__(self) -> None:
        #: ``(kind, name, callable)``, in the form that the native module takes.
        self.registered: list[tuple[str, str, Any]] = []

    def add(self, kind: str, name: str, function: Any) -> str:
        """Store ``function`` and return its name in the configuration."""
        taken = {known for of, known, _ in self.registered if of == kind}
        chosen, number = name, 1
        while chosen in taken:
            number += 1
            chosen = f"{name}_{number}"
        self.registered.append((kind, chosen, function))
        return chosen

    def reward(self, reward: Any, weights: Sequence[float] | None, timeout_s: float | None) -> Any:
        """Return the configuration of a reward: a function, the name of a reward model, a mapping, or a list of these."""
        several = isinstance(reward, (list, tuple))
        parts: list[Any] = list(reward) if several else [reward]
        if not parts:
            raise ValueError("`reward` is an empty list, but at least one reward is needed")
        if weights is None:
            weights = [1.0] * len(parts)
        elif len(weights) != len(parts):
            raise ValueError(f"`reward_weights` has {len(weights)} weights for {len(parts)} rewards")
        if all(callable(part) for part in parts):
            # Combined into one reward, so that async functions run concurrently.
            named = list(zip(names_of(parts), parts, map(float, weights)))
            return self._plugin(named[0][0] if len(named) == 1 else "python", named, timeout_s)
        if not several and weights[0] == 1.0:
            return self._one(reward, timeout_s)
        return {"mix": [{"reward": self._one(part, timeout_s), "weight": weight} for part, weight in zip(parts, weights)]}

    def _one(self, reward: Any, timeout_s: float | None) -> Any:
        if callable(reward):
            return self._plugin(name_of(reward), [(name_of(reward), reward, 1.0)], timeout_s)
        if isinstance(reward, Mapping):
            return self.replace_functions(dict(reward))
        if isinstance(reward, str) or hasattr(reward, "__fspath__"):
            return {"model": str(reward)}
        if hasattr(reward, "model_path"):
            return {"model": str(reward.model_path)}
        raise TypeError(
            f"a reward is a `{type(reward).__name__}`, but a function, the name of a reward model or a dict is expected"
        )

    def _plugin(
        self, name: str, functions: list[tuple[str, Callable[..., Any], float]], timeout_s: float | None
    ) -> dict[str, Any]:
        options: dict[str, Any] = {} if timeout_s is None else {"timeout_s": timeout_s}
        return {"plugin": {self.add("reward", name, Rewards(functions)): options}}

    def metrics(self, metrics: Any) -> Any:
        """Return the configuration of metrics: names, mappings and functions."""
        if callable(metrics) or isinstance(metrics, (str, Mapping)):
            metrics = [metrics]
        return [self._metric(metric) for metric in metrics]

    def _metric(self, metric: Any) -> Any:
        if not callable(metric):
            return metric
        name = name_of(metric)
        return {"plugin": {self.add("metric", name, Metric(name, metric)): {}}}

    def post_process(self, function: Any) -> Any:
        """Return the configuration of the post-processor, which changes completions before they are measured."""
        if not callable(function):
            return function
        return {"plugin": {self.add("post_processor", name_of(function), function): {}}}

    def task(self, task: Any) -> Any:
        """Return the configuration of a task: a configuration value, or a function or object that produces samples."""
        if not callable(task) and not callable(getattr(task, "samples", None)):
            return task
        name = name_of(task)
        return {"plugin": {self.add("task", name, Task(name, task)): {}}}

    def observers(self, observers: Any) -> Any:
        """Return the configuration of observers: functions ``observer(kind, details)``, or configuration values."""
        if callable(observers) or isinstance(observers, (str, Mapping)):
            observers = [observers]
        return [{self.add("observer", name_of(one), one): {}} if callable(one) else one for one in observers]

    def tools(self, tools: Any) -> Any:
        """Return the configuration of tools: functions, or mappings as in a configuration."""
        from gradus._environments import Tool

        if callable(tools) or isinstance(tools, Mapping):
            tools = [tools]
        tools = [Tool(tool) if callable(tool) else tool for tool in tools]
        return [
            {"plugin": {self.add("tool", name_of(tool.function), tool): {}}} if isinstance(tool, Tool) else tool for tool in tools
        ]

    def environment(self, environment: Any) -> Any:
        """Return the configuration of an environment: a mapping as in a configuration, or a factory that is called for each episode."""
        from gradus._environments import Environment

        if isinstance(environment, Mapping) and not (environment and all(callable(one) for one in environment.values())):
            return environment
        name = "environments" if isinstance(environment, Mapping) else name_of(environment)
        return {"plugin": {self.add("environment", name, Environment(environment)): {}}}

    def connect(self) -> None:
        """Let environments and tools answer again in a resumed run if rewards read the environments. Recorded answers have none."""
        if any(isinstance(one, Rewards) and one.reads_environments for _, _, one in self.registered):
            for kind, _, one in self.registered:
                if kind in ("environment", "tool"):
                    one.deterministic = True

    def replace_functions(self, value: Any) -> Any:
        """Return a mapping of the configuration with its functions replaced: rewards of a ``mix``, lists of ``metrics``."""
        if isinstance(value, Mapping):
            return {
                key: self.metrics(item)
                if key == "metrics" and isinstance(item, Sequence) and not isinstance(item, str)
                else self.post_process(item)
                if key == "post_process"
                else self.task(item)
                if key == "task" and not isinstance(item, (str, Mapping))
                else self._one(item, None)
                if callable(item)
                else self.replace_functions(item)
                for key, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self.replace_functions(item) for item in value]
        return value
