"""The HTML of a run in a notebook: curves of its metrics, and a table of their changes."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from gradus._run import Run, counted

Points = list[tuple[float, float]]

#: Metrics whose curves come first, if a run has them. The held-out metric (`eval_…`) is drawn in the same plot.
_FIRST = ("reward", "objective/scores", "objective/kl", "loss", "accuracy", "rewards/accuracies", "margin", "rewards/margins")
#: Metrics with another name on held-out rows: both are KL per completion, while `kl` is per token.
_SAME = {"objective/kl": "eval_kl"}
#: Parts of the names of metrics that describe the progress of a run instead of its results.
_LAST = ("time/", "clip_ratio/", "logprobs/", "epoch", "num_", "tokens_per_s", "episodes", "learning_rate", "_std", "/std", "/min", "/max")
_CURVES = 4
_LINES = 8
#: Colors that are visible on white and on black; everything else has the color of the surrounding text.
_TRAINING, _HELD_OUT = "#2a78d6", "#d9730d"


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and value == value and abs(value) != float("inf") else None


def _points(columns: Mapping[str, Sequence[Any]], name: str) -> Points:
    """Return the steps at which a metric was logged, with its values."""
    pairs = ((_number(step), _number(value)) for step, value in zip(columns.get("step", ()), columns.get(name, ())))
    return [(step, value) for step, value in pairs if step is not None and value is not None]


def _curve(name: str, lines: Sequence[tuple[str, Points]]) -> str:
    """Return a plot of a metric over steps, as SVG."""
    width, height, edge = 250, 100, 14
    points = [point for _, line in lines for point in line]
    left, right = min(step for step, _ in points), max(step for step, _ in points)
    low, high = min(value for _, value in points), max(value for _, value in points)
    across = (width - 2 * edge) / ((right - left) or 1)
    # Halves, because the distance of two values may exceed the largest number.
    half = (high / 2 - low / 2) or 1
    drawn: list[str] = []
    for color, line in lines:
        places = [(edge + (step - left) * across, height - edge - (value / 2 - low / 2) / half * (height - 2 * edge)) for step, value in line]
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        drawn.append(f'<polyline points="{corners}" fill="none" stroke="{color}" stroke-width="1.6" stroke-linejoin="round"/>')
        # A line with few points is hard to see.
        if len(places) <= 12:
            drawn.extend(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{color}"/>' for x, y in places)
    text = 'font-size="9" fill="currentColor" fill-opacity="0.65"'
    marks = (
        f'<text x="{edge}" y="9" {text}>{high:.4g}</text><text x="{edge}" y="{height - 3}" {text}>{low:.4g}</text>'
        f'<text x="{width - edge}" y="{height - 3}" text-anchor="end" {text}>step {right:.0f}</text>'
    )
    label = html.escape(name)
    return (
        f'<figure style="display:inline-block;margin:0 1.2em 1em 0"><figcaption style="font-weight:600">{label}</figcaption>'
        f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" aria-label="{label} over steps">'
        f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="3" fill="none" stroke="currentColor" '
        f'stroke-opacity="0.2"/>{"".join(drawn)}{marks}</svg></figure>'
    )


def _curves(columns: Mapping[str, Sequence[Any]]) -> str:
    names = list(dict.fromkeys(name.removeprefix("eval_") for name in columns if name != "step"))
    if "objective/kl" in names and "kl" in names:
        names.remove("kl")
    rank = {name: number for number, name in enumerate(_FIRST)}
    # Other held-out metrics were requested by the user, so they come before metrics that training logs by itself.
    names.sort(
        key=lambda name: (
            rank.get(name, len(rank)),
            any(part in name for part in _LAST),
            f"eval_{name}" not in columns,
        )
    )
    figures: list[str] = []
    held_out = False
    for name in names:
        lines = [(_TRAINING, _points(columns, name)), (_HELD_OUT, _points(columns, _SAME.get(name, f"eval_{name}")))]
        lines = [(color, points) for color, points in lines if len(points) > 1]
        # A metric that never changes gets no curve.
        if len({value for _, points in lines for _, value in points}) > 1:
            figures.append(_curve(name, lines))
            held_out = held_out or any(color == _HELD_OUT for color, _ in lines)
        if len(figures) == _CURVES:
            break
    if not figures:
        return ""
    legend = (
        f'<div style="font-size:0.85em"><span style="color:{_TRAINING}">●</span> training '
        f'<span style="color:{_HELD_OUT}">●</span> held-out rows</div>'
        if held_out
        else ""
    )
    return f"<div>{''.join(figures)}</div>{legend}"


def _table(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return a table with the metrics of the first and the last model."""
    side = 'style="text-align:right;padding:0.1em 0.8em"'
    lines: list[str] = []
    for name in after:
        first, last = _number(before.get(name)), _number(after[name])
        if first is not None and last is not None and len(lines) < _LINES:
            lines.append(
                f'<tr><th scope="row" style="text-align:left;font-weight:400">{html.escape(name)}</th>'
                f"<td {side}>{first:.4g}</td><td {side}>{last:.4g}</td></tr>"
            )
    if not lines:
        return ""
    head = f'<tr><th></th><th scope="col" {side}>before</th><th scope="col" {side}>after</th></tr>'
    return f'<table style="margin:0.6em 0;font-size:0.9em">{head}{"".join(lines)}</table>'


def page(run: Run) -> str:
    """Return a run as self-contained HTML."""
    results = run.results
    about = [str(results["method"])] if "method" in results else []
    if "steps" in results:
        about.append(counted(results["steps"]))
    seconds = _number(results.get("elapsed_s"))
    if seconds is not None:
        about.append(f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min")
    if not run.finished:
        about.append("stopped before its end: <code>run.resume()</code> continues it")
    head = f"<p><code>{html.escape(str(run.path))}</code>{''.join(f' · {one}' for one in about)}</p>"
    return f"<div>{head}{_curves(run.metrics)}{_table(results.get('before') or {}, results.get('after') or {})}</div>"
