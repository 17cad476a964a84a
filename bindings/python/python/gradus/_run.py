"""A run directory and its contents."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import sqlite3

    from gradus._model import Model


def counted(steps: int) -> str:
    """Return a number of steps with its noun."""
    return f"{steps} step" if steps == 1 else f"{steps} steps"


class Run:
    """A run directory, with its metrics, plots, completions and model.

    ``str(run)`` is the directory, so a run can be passed wherever a model or a run is expected.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, finished: bool | None = None, extra: dict[str, list[Any]] | None = None
    ) -> None:
        #: The run directory.
        self.path = Path(path)
        if not self.path.is_dir():
            raise FileNotFoundError(f"there is no run directory `{self.path}`: `gradus runs list` shows the runs below `runs`")
        if finished is None and not (self.path / "config.yml").is_file():
            raise FileNotFoundError(
                f"`{self.path}` is no run directory, because it has no `config.yml`: `gradus runs list {self.path}` shows the runs in it"
            )
        #: Whether the run has finished. Otherwise it was stopped or is still running, and ``resume`` continues it.
        self.finished = self._state() == "finished" if finished is None else finished
        #: Columns that reward functions logged with ``log_extra``, over all completions that the run trained on. Those of evaluations
        #: are left out.
        self.extra = extra or {}

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    def __str__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        results = self.results
        best = results.get("best") or {}
        # A run that has not finished has no results, only metrics.
        steps = results["steps"] if "steps" in results else max((row["step"] for row in self.rows), default=0)
        shown = f", best {best['metric']} {best['value']:.4g} at step {best['step']}" if best.get("metric") else ""
        return f"<gradus.Run {str(self.path)!r}: {counted(steps)}{shown}>"

    def _state(self) -> str | None:
        path = self.path / "state.json"
        found: str | None = json.loads(path.read_text(encoding="utf-8")).get("state") if path.exists() else None
        return found

    @property
    def results(self) -> dict[str, Any]:
        """The content of ``results.json``: the steps, metrics before and after, the best ones. Empty if the run has not finished."""
        path = self.path / "results.json"
        if not path.exists():
            return {}
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of ``metrics.jsonl``: one per logged step, with ``step`` and the metrics."""
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return []
        with path.open(encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.strip()]

    @property
    def metrics(self) -> dict[str, list[float | None]]:
        """The metrics as columns of equal length, for ``pandas.DataFrame`` and ``polars.DataFrame``; None if a step has no value."""
        rows = self.rows
        names = list(dict.fromkeys(name for row in rows for name in row))
        return {name: [row.get(name) for row in rows] for name in names}

    @property
    def config(self) -> str:
        """The configuration of the run, including all defaults, as YAML."""
        return (self.path / "config.yml").read_text(encoding="utf-8")

    @property
    def plots(self) -> dict[str, Path]:
        """The plots by name: SVG or PNG files."""
        return {path.stem: path for path in sorted((self.path / "plots").glob("*")) if path.suffix in (".svg", ".png")}

    @property
    def report(self) -> Path:
        """The HTML page with the curves, the numbers and the configuration of the run."""
        return self.path / "report.html"

    @property
    def completions(self) -> Completions:
        """The completions sampled during training. Empty for methods that do not sample."""
        return Completions(self.path / "rollouts.sqlite")

    @property
    def model_path(self) -> Path:
        """The directory of the trained model. If the run has not finished, the best or newest one."""
        for name in ("model", "best"):
            if (self.path / name).is_dir():
                return self.path / name
        checkpoints = sorted((self.path / "checkpoints").glob("*")) if (self.path / "checkpoints").is_dir() else []
        if checkpoints:
            return checkpoints[-1]
        raise FileNotFoundError(f"`{self.path}` has no model yet")

    @property
    def best_path(self) -> Path:
        """The directory of the best model by ``best_metric``, or of the final model if nothing was evaluated."""
        best = self.path / "best"
        return best if best.is_dir() else self.model_path

    @property
    def model(self) -> Model:
        """The trained model, loaded again at each access."""
        from gradus._model import load

        return load(self.model_path)

    def resume(self, **arguments: Any) -> Run:
        """Continue from the last checkpoint. ``arguments`` are keys that may change, and the callables that the run needs again."""
        from gradus._training import resume

        return resume(self.path, **arguments)

    def _repr_html_(self) -> str:
        from gradus._page import page

        return page(self)


#: Columns of the table of completions that contain JSON.
_JSON = ("components", "segments", "advantages", "episode")


def _completion(row: sqlite3.Row) -> dict[str, Any]:
    found = dict(row)
    for name in _JSON:
        if isinstance(found.get(name), str):
            found[name] = json.loads(found[name])
    return found


class Completions:
    """Completions of a run, newest last: rows of ``rollouts.sqlite``. ``components`` is a dict with the value of each reward."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def _query(self, text: str, *values: Any) -> Iterator[sqlite3.Row]:
        if not self.path.exists():
            return
        import sqlite3

        connection = sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True)
        try:
            connection.row_factory = sqlite3.Row
            yield from connection.execute(text, values)
        finally:
            connection.close()

    def __len__(self) -> int:
        return next((int(row[0]) for row in self._query("SELECT count(*) FROM rollouts")), 0)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for row in self._query("SELECT * FROM rollouts ORDER BY id"):
            yield _completion(row)

    def of_step(self, step: int) -> list[dict[str, Any]]:
        """Return the completions of one step, counted from 1."""
        return [_completion(row) for row in self._query("SELECT * FROM rollouts WHERE step = ? ORDER BY id", step)]

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the completions as columns, for ``pandas.DataFrame`` and ``polars.DataFrame``."""
        rows = list(self)
        return {name: [row[name] for row in rows] for name in (rows[0] if rows else {})}

    def __repr__(self) -> str:
        return f"<gradus.Completions: {len(self)} in {str(self.path)!r}>"
