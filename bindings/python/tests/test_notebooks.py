"""The notebooks, at a small size: they run to their end, and their final number is correct."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
NAMES = [path.stem for path in NOTEBOOKS]


def cells(path: Path, kind: str) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == kind]


def source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def leave_out(what: str, missing: str) -> None:
    """Skip visibly, or fail if ``GRADUS_REQUIRE`` contains ``what``."""
    if what in os.environ.get("GRADUS_REQUIRE", "").split(","):
        pytest.fail(f"GRADUS_REQUIRE names {what}, but {missing}")
    pytest.skip(f"skipped: {what}: {missing}")


def material() -> None:
    """Require the folder of real data. The first cell of a notebook names the files in it."""
    folder = os.environ.get("GRADUS_MATERIAL")
    if not folder:
        leave_out("material", "GRADUS_MATERIAL is not set")
    elif not Path(folder).is_dir():
        leave_out("material", f"GRADUS_MATERIAL is {folder}, which is no folder")


def value_of(path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Run a notebook, and return the values that its last cell reports."""
    material()
    nbformat: Any = pytest.importorskip("nbformat", reason="skipped: nbformat is not installed")
    nbclient: Any = pytest.importorskip("nbclient", reason="skipped: nbclient is not installed")
    pytest.importorskip("ipykernel", reason="skipped: ipykernel is not installed")
    monkeypatch.setenv("GRADUS_NOTEBOOK_SIZE", "small")
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    client = nbclient.NotebookClient(notebook, timeout=1800, kernel_name="python3", resources={"metadata": {"path": str(directory)}})
    client.execute()
    results = [output for output in notebook.cells[-1].outputs if output.output_type == "execute_result"]
    found: dict[str, float] = ast.literal_eval(results[-1].data["text/plain"])
    return found


def test_there_are_notebooks() -> None:
    assert NAMES == ["dpo_hh_rlhf", "happy_stories", "reward_model_calibration"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_notebooks_are_small_and_say_what_they_need(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells(path, "code"))
    introduction = source(cells(path, "markdown")[0])
    assert introduction.startswith("# ") and "This notebook shows" in introduction and "it needs" in introduction
    first = source(cells(path, "code")[0])
    for folder in ("", str(path.parent)):
        monkeypatch.setenv("GRADUS_MATERIAL", folder)
        with pytest.raises(SystemExit, match="^skipped: set GRADUS_MATERIAL to a folder with .*weights/stories260K"):
            exec(compile(first, str(path), "exec"), {})


def test_stories_become_happier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = value_of(NOTEBOOKS[NAMES.index("happy_stories")], tmp_path, monkeypatch)
    # Rewards are between -1 and 1. Without learning, the difference is about 0.05.
    assert found["after"] > found["before"] + 0.2


def test_dpo_prefers_what_people_chose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = value_of(NOTEBOOKS[NAMES.index("dpo_hh_rlhf")], tmp_path, monkeypatch)
    # So few pairs are memorized.
    assert found["learned"] > 0.8 and 0 <= found["accuracy"] <= 1


def test_the_calibration_error_is_that_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = value_of(NOTEBOOKS[NAMES.index("reward_model_calibration")], tmp_path, monkeypatch)
    assert 0 < found["error"] < 1 and found["error"] == pytest.approx(found["of_the_run"], abs=1e-6)
