"""Reports arguments that are rejected, have no effect, or are unknown."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import inspect
import re
import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from gradus.trl._arguments import CONFIGS, EARLIER, GONE, TRAINERS, Honored, NoEffect, Refused, Treatment, fields_of

if TYPE_CHECKING:
    from gradus.trl._configs import BaseConfig


def error(message: str) -> ValueError:
    """Creates a `gradus.ConfigError`. The module is loaded only if there is an error."""
    made: ValueError = importlib.import_module("gradus").ConfigError(message)
    return made


def plain(value: Any) -> Any:
    """Returns the value of an enumeration, and a tuple as a list, so that equivalent inputs are equal."""
    value = getattr(value, "value", value)
    return list(value) if isinstance(value, tuple) else value


def means(value: Any, other: Any) -> bool:
    """Whether both values are equivalent; `1` and `True` are not."""
    value, other = plain(value), plain(other)
    if isinstance(value, bool) != isinstance(other, bool):
        return False
    try:
        return bool(value == other)
    except Exception:  # arrays and tensors cannot be compared
        return False


def shown(value: Any) -> str:
    """Returns the value as an error shows it. Objects are shown by their class."""
    value = plain(value)
    simple = value is None or isinstance(value, (bool, int, float, str, list, dict))
    text = repr(value) if simple else f"an object of the class {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def default(one: dataclasses.Field[Any]) -> Any:
    """Returns the default of a field."""
    return one.default_factory() if one.default_factory is not dataclasses.MISSING else one.default


def config(args: BaseConfig) -> None:
    """Checks a configuration and raises for the first field with a rejected value.

    Raises:
        ConfigError: with the value, the reason and the alternative.
    """
    name = type(args).__name__
    for one, treatment in _given(args):
        if isinstance(treatment, Refused):
            _refuse(f"`{name}({one}=...)`", getattr(args, one), treatment)


def trainer(name: str, arguments: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Checks the arguments of a trainer in the same way."""
    for one, treatment in TRAINERS[name].items():
        if isinstance(treatment, Refused) and not means(arguments[one], defaults.get(one)):
            _refuse(f"`{name}({one}=...)`", arguments[one], treatment)


def without_effect(args: BaseConfig) -> None:
    """Warns once about all given arguments without effect."""
    reasons = [
        f"`{one}={shown(getattr(args, one))}`: {treatment.reason}"
        for one, treatment in _given(args)
        if isinstance(treatment, NoEffect)
    ]
    if reasons:
        warnings.warn(f"these arguments have no effect on the results of gradus: {'; '.join(reasons)}", stacklevel=5)


def _given(args: BaseConfig) -> Iterable[tuple[str, Treatment]]:
    """Returns the fields whose value is not the default."""
    table = fields_of(_table_name(type(args)))
    for one in dataclasses.fields(args):
        if one.name in table and not means(getattr(args, one.name), default(one)):
            yield one.name, table[one.name]


def _table_name(cls: type) -> str:
    """Returns the name of our class that a user's class inherits from."""
    return next(base.__name__ for base in cls.__mro__ if base.__name__ in CONFIGS)


def _refuse(where: str, value: Any, treatment: Refused) -> None:
    if any(means(value, other) for other in treatment.accepts):
        return
    raise error(f"{where} is {shown(value)}, but {treatment.reason}. {treatment.instead}")


def names_of_keys(text: str, config: str) -> list[str]:
    """Returns a note for each key of gradus in the text of an error, if a field of this configuration has another name for it."""
    fields = fields_of(config)
    notes = []
    for key in dict.fromkeys(re.findall(r"`(\w+)[`=]", text)):
        for name, treatment in fields.items() if key not in fields else ():
            if isinstance(treatment, Honored) and key in treatment.keys:
                notes.append(f"`{key}` is `{config}({name}=...)`: {treatment.note}" if treatment.note else f"`{key}` is `{config}({name}=...)`")
    return notes


def unknown(cls: str, name: str, known: Iterable[str]) -> str:
    """Returns the error text for a name that no field of a configuration, or no argument of a trainer, has."""
    config = cls.replace("Trainer", "Config")
    current = EARLIER.get(name, name)
    if cls in TRAINERS and current in fields_of(config):
        return f"{cls} has no argument `{name}`: it is in the configuration. Write `args={config}({current}=...)`."
    if name in GONE:
        return f"{cls} has no argument `{name}`. {GONE[name]}."
    if name in EARLIER:
        return f"{cls} has no argument `{name}`. Write `{EARLIER[name]}`, and only that."
    close = difflib.get_close_matches(name, list(known), n=1)
    hint = f" Did you mean `{close[0]}`?" if close else " docs/trl.md lists the arguments."
    return f"{cls} has no argument `{name}`.{hint}"


def defaults_of(init: Any) -> dict[str, Any]:
    """Returns the defaults of a function's parameters."""
    parameters = inspect.signature(init).parameters.values()
    return {one.name: one.default for one in parameters if one.default is not one.empty}
