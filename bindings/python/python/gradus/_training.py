"""Training runs from keyword arguments."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from gradus import _native
from gradus._callables import Callables, Rewards
from gradus._data import as_path, limit_of
from gradus._errors import ConfigError
from gradus._model import Model
from gradus._progress import Watcher
from gradus._run import Run

#: Error of the native module for a function that the configuration names but the call lacks.
_FORGOTTEN = re.compile(r"(?:plugin|observers\[\d+\])` names `(\w+)`, but this program has no such plug-ins|unknown key `(\w+)` in `[^`]*plugin`")

#: Arguments that contain rows.
_ROWS = ("data", "eval_data", "test_data")


def _name_model(given: dict[str, Any]) -> None:
    """Replace a loaded model by its name, and by the options that it was loaded with. Arguments of the call take precedence."""
    model = given.get("model")
    if isinstance(model, Model):
        advice = 'leave `weights` out; `frozen_weights` of the training function holds the weights below an adapter in fewer bits'
        files = model._measured_files("training", advice)
        given.update({name: value for name, value in files.items() if name == "model" or given.get(name) is None})
    elif model is not None and not isinstance(model, (str, os.PathLike)):
        raise TypeError(
            f"`model` is a `{type(model).__name__}`, but a directory, a hub name, a `Run` or a `gradus.Model` is expected: save other "
            "models with their own `save_pretrained(directory)` and pass the directory"
        )


def _max_rows(given: dict[str, Any], *, is_complete: bool) -> int | None:
    """Return the number of first rows of ``data`` that the run uses, or None for all. ``is_complete``: there are no other keys."""
    part = given.get("train")
    train = {**(part if isinstance(part, Mapping) else {}), **{name: value for name, value in given.items() if value is not None}}
    # With `max_rows_at_random`, which a configuration file may also set, the rows are drawn from all rows.
    return limit_of(train.get("max_rows")) if is_complete and not train.get("max_rows_at_random") else None


def _configuration(given: dict[str, Any], callables: Callables, *, is_complete: bool) -> dict[str, Any]:
    """Return the arguments that are keys of the configuration, with functions and tables replaced by configuration values.

    ``is_complete``: no configuration file has further keys.
    """
    reward = given.pop("reward", None)
    weights: Sequence[float] | None = given.pop("reward_weights", None)
    timeout_s: float | None = given.pop("reward_timeout_s", None)
    _name_model(given)
    answering = {name: given.pop(name, None) for name in ("tools", "environment")}
    keys = {name: callables.replace_functions(value) for name, value in given.items() if name not in _ROWS and value is not None}
    for name in _ROWS:
        rows = given.get(name)
        if rows is None:
            continue
        # A mapping as in a configuration describes the source of the rows (`{"task": …}`, `{"from": …, "split": …}`).
        is_part = isinstance(rows, dict) and bool({"from", "task", "split"} & rows.keys())
        limit = _max_rows(given, is_complete=is_complete) if name == "data" else None
        keys[name] = callables.replace_functions(rows) if is_part else as_path(rows, name, max_rows=limit)
    if reward is not None:
        keys["reward"] = callables.reward(reward, weights, timeout_s)
    elif weights is not None or timeout_s is not None:
        raise TypeError("`reward_weights` and `reward_timeout_s` need a `reward`")
    if answering["tools"] is not None:
        keys["tools"] = callables.tools(answering["tools"])
    if answering["environment"] is not None:
        keys["environment"] = callables.environment(answering["environment"])
    if callable(keys.get("evaluation_post_process")):
        keys["evaluation_post_process"] = callables.post_process(keys["evaluation_post_process"])
    if "observers" in keys:
        keys["observers"] = callables.observers(keys["observers"])
    if "evaluation_metrics" in keys:
        keys["evaluation_metrics"] = callables.metrics(keys["evaluation_metrics"])
    callables.connect()
    return keys


def train(method: str | None, given: dict[str, Any]) -> Run:
    """Train with ``method``. Without it, the configuration or the run to resume determines the method."""
    config = given.pop("config", None)
    overwrite, resume, resume_from = given.pop("overwrite", False), given.pop("resume", False), given.pop("resume_from", None)
    if overwrite and (resume or resume_from is not None):
        raise TypeError("`overwrite` and `resume` cannot be combined")
    watcher = Watcher(
        given.pop("progress", None),
        given.pop("on_step", None),
        given.pop("on_evaluation", None),
        given.pop("on_rollouts", None),
    )
    optimizer_steps: int = given.pop("_optimizer_steps", 1)
    callables = Callables()
    if "reward" in given and given["reward"] is None and not resume and config is None and resume_from is None:
        is_rewarded = given.get("environment") is not None
        if not is_rewarded and not any(name.startswith("reward_") and value is not None for name, value in given.items()):
            raise ConfigError(
                f"`{method}` needs a `reward`: it learns from the rewards of its own completions\n"
                "hint: pass a function, the directory or hub name of a reward model, a mapping such as "
                '{"rule": {"length": {"target": 50}}}, or a list of these'
            )
    keys = _configuration(given, callables, is_complete=config is None)
    rewards = [function for _, _, function in callables.registered if isinstance(function, Rewards)]
    for reward in rewards:
        reward.optimizer_steps = optimizer_steps
    watcher.rewards = rewards
    existing = "overwrite" if overwrite else "resume" if resume else "refuse"
    try:
        directory, _, finished = _native.train(
            method,
            keys,
            None if config is None else os.fspath(config),
            existing,
            None if resume_from is None else str(resume_from),
            callables.registered,
            watcher,
            watcher.on_rollouts is not None,
        )
    except ConfigError as error:
        forgotten = _FORGOTTEN.search(str(error))
        if forgotten is None or existing != "resume":
            raise
        raise ConfigError(
            f"the run was trained with the function `{forgotten[1] or forgotten[2]}`, which a configuration cannot hold\n"
            "hint: pass it again: `gradus.resume(run, reward=…)`, with all functions in their places"
        ) from None
    finally:
        watcher.bar.close()
    extra: dict[str, list[Any]] = {}
    for reward in rewards:
        extra.update(reward.extra)
    return Run(directory, finished=finished, extra=extra)


def resume(run: str | os.PathLike[str], **arguments: Any) -> Run:
    """Resume a run from its last checkpoint.

    ``arguments`` are keys that may change, and the functions of the run, because a configuration cannot store them.
    """
    return train(None, {**arguments, "output_dir": os.fspath(run), "resume": True})


def run(config: str | os.PathLike[str], **arguments: Any) -> Run:
    """Start the run that a configuration file describes. ``arguments`` override it."""
    return train(None, {**arguments, "config": config})


def plan(method: str | None = None, **given: Any) -> dict[str, Any]:
    """Estimate the memory of a run phase by phase, without training. The arguments are those of the method's function."""
    config = given.pop("config", None)
    for name in ("overwrite", "resume", "resume_from", "progress", "on_step", "on_evaluation", "on_rollouts"):
        given.pop(name, None)
    callables = Callables()
    keys = _configuration(given, callables, is_complete=config is None)
    method = {"reward_model": "reward"}.get(method or "", method)
    found: dict[str, Any] = _native.plan(method, keys, None if config is None else os.fspath(config), callables.registered)
    return found
