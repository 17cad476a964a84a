"""Functions that are tools: for the tests, and for the script that records what transformers makes of them."""

# mypy: disable-error-code="type-arg"
from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Optional, Union


def no_arguments() -> str:
    """Says what time it is."""
    return "noon"


def plain(query: str, results: int = 3) -> str:
    """
    Searches the texts.

    Args:
        query: What to look for.
        results: How many texts
            to return at most.

    Returns:
        The texts.
    """
    return query * results


def numbers(a: float, b: int, is_exact: bool) -> float:
    """Adds two numbers.

    They may be negative.

    Args:
        a: The first number.
        b: The second number: a whole one.
        is_exact: Whether to round.
    """
    return a + b


def containers(words: list[str], pair: tuple[int, str], sizes: dict[str, int], anything: Any, rest: list, names: dict) -> str:
    """Takes containers.

    Args:
        words: Words.
        pair: A number and a text.
        sizes: Sizes by name.
        anything: Anything.
        rest: A list.
        names: A mapping.
    """
    return ""


def choices(color: Literal["red", "green"], level: Literal[1, 2, 3] = 1, limit: Optional[int] = None) -> str:
    """Chooses.

    Args:
        color: The color.
        level: The level.
        limit: The limit.
    """
    return color


def unions(either: Union[int, str], any_of: Union[list[int], dict[str, str], None], new: int | float | None = None) -> str:
    """Takes one of several types.

    Args:
        either: A number or a text.
        any_of: A list or a mapping.
        new: A number.
    """
    return ""


TOOLS: list[Callable[..., Any]] = [no_arguments, plain, numbers, containers, choices, unions]
