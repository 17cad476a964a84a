"""Python functions and classes as tools and environments of a configuration."""

from __future__ import annotations

import enum
import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Literal

from gradus._callables import _accepted, _number

_SCALARS: dict[Any, str] = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}

_SIMPLE: dict[Any, dict[str, Any]] = {
    **{kind: {"type": name} for kind, name in _SCALARS.items()},
    list: {"type": "array"},
    tuple: {"type": "array"},
    dict: {"type": "object"},
    Any: {},
}

#: Methods of an environment that are not tools.
_OWN = ("reset", "get_reward", "step")

#: Keys of the answer to a turn.
_ANSWER = ("replies", "reward", "done", "metrics")


def _choices(values: list[Any]) -> dict[str, Any]:
    """Return the JSON schema of a choice of values."""
    if not values or not all(type(value) in _SCALARS for value in values):
        raise TypeError(f"a choice of {values}, but one or more numbers, texts, booleans or None are expected")
    names = list(dict.fromkeys(_SCALARS[type(value)] for value in values))
    return {"type": names[0] if len(names) == 1 else names, "enum": values}


def _type(hint: Any) -> dict[str, Any]:
    """Return the JSON schema of a type, as ``transformers.utils.get_json_schema`` does. A type without one is a ``TypeError``."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _choices([member.value for member in hint])
    simple = hint if origin is None or (not arguments and origin in (list, tuple, dict)) else None
    if simple is not None:
        known = _SIMPLE.get(origin or hint) if isinstance(hint, Hashable) else None
        if known is None:
            raise TypeError(_unknown(hint))
        return dict(known)
    if origin in (typing.Union, types.UnionType):
        kinds = [_type(argument) for argument in arguments if argument is not type(None)]
        if len(kinds) == 1:
            found = kinds[0]
        elif all(kind.keys() == {"type"} and isinstance(kind["type"], str) for kind in kinds):
            names = sorted({kind["type"] for kind in kinds})
            found = {"type": names[0] if len(names) == 1 else names}
        else:
            found = {"anyOf": kinds}
        return {**found, "nullable": True} if type(None) in arguments else found
    if origin is Literal:
        return _choices(list(arguments))
    if origin is list:
        return {"type": "array", "items": _type(arguments[0])}
    count = len(arguments)
    if origin is tuple and count > 1 and ... not in arguments:
        return {"type": "array", "prefixItems": [_type(argument) for argument in arguments]}
    if origin is dict and len(arguments) == 2:
        return {"type": "object", "additionalProperties": _type(arguments[1])}
    raise TypeError(_unknown(hint))


def _unknown(hint: Any) -> str:
    """Describe a type without a JSON schema."""
    shown = f"{hint.__module__}.{hint.__qualname__}".removeprefix("builtins.") if isinstance(hint, type) else str(hint)
    return (
        f"the type `{shown}`, which has no schema that the policy could see\n"
        "hint: use `int`, `float`, `str`, `bool`, `Literal`, an `Enum`, or lists, tuples, dicts and unions of these"
    )


def _described(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with the description of the argument. ``(choices: ["a", "b"])`` at its end lists all values."""
    found = re.search(r"\(choices:\s*(.*?)\)\s*$", text, flags=re.IGNORECASE)
    if found is None:
        return {**schema, "description": text}
    try:
        values = json.loads(found[1])
    except ValueError:
        values = None
    if not isinstance(values, list):
        raise TypeError(f"the choices `{found[1]}`, but a list in JSON is expected, such as `(choices: [\"a\", \"b\"])`")
    values = [value.strip() if isinstance(value, str) else value for value in values]
    return {**schema, "enum": values, "description": text[: found.start()].strip()}


def _documentation(text: str) -> tuple[str, dict[str, str], str | None]:
    """Return the description, the description of each argument in ``Args:`` (Google style), and that of the result in ``Returns:``."""
    text = inspect.cleandoc(text)
    # The expression of transformers 5.23: the description may have more headings, such as `Examples:`.
    found_result = re.search(r"\n\s*Returns:\n\s*(.*?)[\n\s]*(Raises:|\Z)", text, re.DOTALL)
    returns = (found_result[1].strip() or None) if found_result else None
    parts = re.split(r"^(Args|Arguments|Returns|Raises|Yields|Examples?|Notes?):[ \t]*$", text, flags=re.MULTILINE)
    arguments: dict[str, str] = {}
    for heading, body in zip(parts[1::2], parts[2::2]):
        if heading not in ("Args", "Arguments"):
            continue
        last: str = ""
        margin: int | None = None
        for line in body.splitlines():
            if not line.strip():
                continue
            indent = len(line) - len(line.lstrip())
            margin = indent if margin is None else margin
            # A line further left ends the list.
            if indent < margin:
                break
            found = re.match(r"(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)", line[margin:])
            if found is not None:
                last = str(found[1])
                arguments[last] = str(found[2]).strip()
            elif last:
                arguments[last] = f"{arguments[last]} {line.strip()}".strip()
    return parts[0].strip(), arguments, returns


def _run(answer: Any) -> Any:
    """Return the answer. A coroutine is run first."""
    if inspect.iscoroutine(answer):
        from . import _event_loop

        return _event_loop.run([answer])[0]
    return answer


class Tool:
    """A function that the policy may call. The JSON schemas of its arguments and its result come from its type hints and its docstring.

    The tool's answer is ``str`` of the return value or, after an exception, the text of the exception, as in TRL.
    """

    def __init__(self, function: Callable[..., Any], name: str | None = None) -> None:
        self.function = function
        self.name = name or str(getattr(function, "__name__", type(function).__name__))
        #: Whether equal arguments always give equal results. If not, resumed runs use recorded results.
        self.deterministic = bool(getattr(function, "deterministic", False))
        description, documented, result = _documentation(inspect.getdoc(function) or "")
        self.description = description
        try:
            hints = typing.get_type_hints(function)
        except Exception as error:
            raise TypeError(f"the type hints of the tool `{self.name}` cannot be read: {error}") from None
        properties: dict[str, Any] = {}
        required: list[str] = []
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise TypeError(f"the tool `{self.name}` takes `{parameter}`, but the policy must see each argument by name")
            if parameter.name not in hints:
                raise TypeError(
                    f"the argument `{parameter.name}` of the tool `{self.name}` has no type hint\n"
                    "hint: write `def tool(query: str) -> str`: the policy sees the types"
                )
            try:
                schema = _type(hints[parameter.name])
                is_documented = parameter.name in documented
                properties[parameter.name] = _described(documented[parameter.name], schema) if is_documented else schema
            except TypeError as error:
                raise TypeError(f"the argument `{parameter.name}` of the tool `{self.name}` has {error}") from None
            if parameter.default is parameter.empty:
                required.append(parameter.name)
        self.parameters: dict[str, Any] = {"type": "object", "properties": properties}
        if required:
            self.parameters["required"] = required
        #: Schema of the result, or None. As in transformers, a type without a schema is no error, because the policy never writes a result.
        self.returns: dict[str, Any] | None = None
        if "return" in hints:
            try:
                self.returns = {**_type(hints["return"]), **({} if result is None else {"description": result})}
            except TypeError:
                pass

    def __call__(self, arguments: dict[str, Any]) -> str:
        return str(_run(self.function(**arguments)))


def _tools_of(environment: Any) -> list[Tool]:
    """Return the public methods of an environment as tools, except ``reset``, ``get_reward`` and ``step``."""
    found = []
    for name in dir(environment):
        if name.startswith("_") or name in _OWN:
            continue
        if not isinstance(inspect.getattr_static(environment, name), (types.FunctionType, types.MethodType)):
            continue
        found.append(Tool(getattr(environment, name), name))
    return found


class Episode:
    """An episode with its own environment."""

    def __init__(self, name: str, environment: Any, arguments: Mapping[str, Any]) -> None:
        self.name = name
        self.environment = environment
        #: Whether the environment answers whole turns. Otherwise it answers calls of its tools.
        self.steps = callable(getattr(environment, "step", None))
        self.opening: str | None = None
        self.tools: list[Tool] = []
        try:
            reset = getattr(environment, "reset", None)
            if reset is not None:
                opening = _run(reset(**_accepted(reset, arguments)))
                if opening is not None and not isinstance(opening, str):
                    raise TypeError(f"`reset` returned a `{type(opening).__name__}`, but a text or None is needed")
                self.opening = opening
            if not self.steps:
                self.tools = _tools_of(environment)
        except Exception as error:
            error.add_note(f"raised by the environment when it began the episode of {name}")
            raise

    def step(self, turn: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a turn in the format of programs: ``replies``, ``reward``, ``done``, ``metrics``."""
        try:
            answer = _run(self.environment.step(**_accepted(self.environment.step, turn)))
        except Exception as error:
            error.add_note(f"raised by the environment in the episode of {self.name}")
            raise
        if answer is None or isinstance(answer, (str, list)):
            return {"replies": answer}
        if isinstance(answer, Mapping):
            unknown = [str(key) for key in answer if key not in _ANSWER]
            if unknown:
                found = ", ".join(f"`{key}`" for key in unknown)
                known = ", ".join(f"`{key}`" for key in _ANSWER)
                raise TypeError(f"`step` returned a dict with {found}, but its keys are {known}: correct or remove {found}")
            return dict(answer)
        raise TypeError(
            f"`step` returned a `{type(answer).__name__}`, but a text, a list of messages, a dict with `replies`, `reward`, `done` and "
            "`metrics`, or None is needed"
        )

    def finish(self) -> float | None:
        """Return the reward of the whole episode, or None if there is none."""
        get_reward = getattr(self.environment, "get_reward", None)
        if get_reward is None:
            return None
        try:
            reward = _run(get_reward())
            return None if reward is None else _number(reward, "what `get_reward` returned")
        except Exception as error:
            error.add_note(f"raised by the environment in the episode of {self.name}")
            raise


class Environment:
    """Creates an environment for each episode: a class or a function without arguments, or a dict of these.

    With a dict, the column ``environment`` of the row selects the entry.
    """

    def __init__(self, factory: Callable[[], Any] | Mapping[str, Callable[[], Any]]) -> None:
        self.factories: dict[str | None, Callable[[], Any]] = {}
        if isinstance(factory, Mapping):
            self.factories.update({str(name): one for name, one in factory.items()})
        else:
            self.factories[None] = factory
        if not self.factories or not all(callable(one) for one in self.factories.values()):
            raise TypeError("an environment is a class, a function that creates one, or a dict of these")
        self.deterministic = all(bool(getattr(one, "deterministic", False)) for one in self.factories.values())
        self.tools: list[Tool] = []
        for one in self.factories.values():
            example = one()
            for tool in [] if callable(getattr(example, "step", None)) else _tools_of(example):
                same = [known for known in self.tools if known.name == tool.name]
                if same and same[0].parameters != tool.parameters:
                    raise TypeError(f"two environments have a tool `{tool.name}` with different arguments")
                if not same:
                    self.tools.append(tool)

    def begin(self, name: str, seed: int, row: dict[str, Any]) -> Episode:
        """Create the environment of an episode and begin it."""
        chosen = None if None in self.factories else row.get("environment")
        factory = self.factories.get(chosen)
        if factory is None:
            known = ", ".join(f"`{one}`" for one in self.factories)
            raise ValueError(f"the column `environment` of {name} is `{chosen}`, but there are {known}")
        return Episode(name, factory(), {**row, "seed": seed})

