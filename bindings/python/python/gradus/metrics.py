"""Metrics of generated text, with the same values as the common tools."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from gradus import _native


class Score(dict[str, float]):
    """The values of a metric: by part, or under the metric's name if it has no parts."""

    #: The values of each row, by the same names. Parts without values per row are missing.
    rows: dict[str, list[float]]

    def __init__(self, values: Mapping[str, float], rows: dict[str, list[float]]) -> None:
        super().__init__(values)
        self.rows = rows

    def __float__(self) -> float:
        """The value of a metric with a single one."""
        if len(self) != 1:
            raise TypeError(f"there are {len(self)} values ({', '.join(self)}): choose one")
        return next(iter(self.values()))


def compute(
    name: str,
    predictions: Sequence[str],
    references: Sequence[str | Sequence[str]] | None = None,
    *,
    prompts: Sequence[str] | None = None,
    columns: Mapping[str, Sequence[Any]] | None = None,
    **options: Any,
) -> Score:
    """Measure predictions.

    ``references`` has one or several texts for each prediction, ``prompts`` the prompts, ``columns`` other inputs of the metric.
    ``options`` are the metric's own: ``gradus.explain("train.evaluation.metrics")`` lists metrics and options.

    >>> compute("rouge", ["the cat sat"], ["the cat sat down"])["rouge1"]
    0.857...
    """
    if isinstance(predictions, str) or isinstance(references, str):
        raise TypeError("a single text was given, but a list of texts is expected, with one for each prediction")
    predictions = list(predictions)
    count = len(predictions)
    texts = [[]] * count if references is None else [[one] if isinstance(one, str) else list(one) for one in references]
    asked = None if prompts is None else list(prompts)
    beside: dict[str, Sequence[Any]] = {"references": texts, **({} if asked is None else {"prompts": asked}), **(columns or {})}
    for what, values in beside.items():
        if len(values) != count:
            raise ValueError(f"`predictions` has {count} entries, but `{what}` has {len(values)}: each prediction needs one")
    rows = [{name: values[i] for name, values in (columns or {}).items()} for i in range(count)]
    found, remark = _native.measure(name, options, predictions, texts, asked, rows)
    if remark:
        warnings.warn(f"`{name}` is computed {remark}", stacklevel=2)
    return Score(
        {part or name: value for part, value, _ in found},
        {part or name: values for part, _, values in found if values is not None},
    )
