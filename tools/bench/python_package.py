"""Measures the cost of the Python package: a reward in Python compared with the same one in Rust, the import, and the transfer of a table.

    python tools/bench/python_package.py --model DIR        # in an environment with gradus-rl (a release build), numpy and pyarrow

Both sides of a comparison alternate in one process, so a slow phase of the machine affects both. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROUNDS = 5
STEPS = 8
TARGET = 32


def step_seconds(model: str, reward: Any, folder: Path) -> tuple[float, float]:
    """The median seconds of a GRPO step of 64 completions of 64 tokens, without the first, and those of its reward."""
    import gradus

    began: list[float] = []

    def on_step(step: int, total: int, metrics: dict[str, float]) -> None:
        began.append(time.perf_counter())

    rows = [{"prompt": f"Story {i}: once"} for i in range(8)]
    run = gradus.grpo(
        model, rows, reward=reward, output_dir=folder, max_steps=STEPS, batch_size=8, group_size=8, max_new_tokens=64,
        sampling={"min_new_tokens": 64}, eval_steps=-1, save_steps=0, seed=1, progress=False, on_step=on_step,
    )
    step = statistics.median(after - before for before, after in zip(began, began[1:]))
    return step, statistics.median(row["time/reward_s"] for row in run.rows[1:])


def close_to_target(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """The rule `length` of the configuration, in Python."""
    return [max(0.0, 1.0 - abs(len(ids) - TARGET) / TARGET) for ids in completion_ids]


def rewards(model: str) -> dict[str, Any]:
    """Alternates both sides. Step times vary by more than the cost of a reward, so the result has the share of the reward and the ratio."""
    sides: dict[str, list[tuple[float, float]]] = {"rust": [], "python": []}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(ROUNDS):
            for side, reward in (("rust", {"rule": {"length": {"target": TARGET}}}), ("python", close_to_target)):
                sides[side].append(step_seconds(model, reward, Path(folder) / f"{side}{turn}"))
    ratios = [python[0] / rust[0] for python, rust in zip(sides["python"], sides["rust"])]
    found: dict[str, Any] = {"ratio_of_steps": statistics.median(ratios), "ratios": ratios}
    for side, times in sides.items():
        found[side] = {
            "step_s": statistics.median(step for step, _ in times),
            "reward_s": statistics.median(reward for _, reward in times),
        }
    found["cost"] = (found["python"]["reward_s"] - found["rust"]["reward_s"]) / found["rust"]["step_s"]
    return found


def import_ms() -> float:
    """The median milliseconds that `import gradus` adds to the start of the interpreter."""

    def start(code: str) -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - began

    start("import gradus")
    return 1000 * statistics.median(start("import gradus") - start("pass") for _ in range(9))


def table() -> dict[str, Any]:
    """Seconds and memory to transfer a million rows."""
    import gradus
    import pyarrow
    from gradus._data import as_path

    count = 1_000_000
    prompts = pyarrow.array([f"prompt {i} of many, with some words" for i in range(count)])
    completions = pyarrow.array([f" completion {i}, with as many words" for i in range(count)])
    rows = pyarrow.table({"prompt": prompts, "completion": completions})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    path = as_path(rows)
    seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    os.unlink(path)
    return {"rows": count, "table_mb": rows.nbytes / 1e6, "seconds": seconds, "more_memory_mb": (after - before) / 1e3}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="a language model, such as stories260K")
    model = parser.parse_args().model
    os.environ.setdefault("GRADUS_CACHE", tempfile.mkdtemp())
    found = {"import_ms": import_ms(), "table": table(), "reward": rewards(model)}
    import gradus

    found["processor"] = gradus.doctor()["processor"]
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
