"""Shared fixtures: models, rows, and the command line for comparison."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[3]
MODELS = REPOSITORY / "crates/gradus/tests/fixtures/parity/trajectories/models"


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Store rows from Python in a folder of the tests."""
    if "GRADUS_CACHE" not in os.environ:
        monkeypatch.setenv("GRADUS_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def gpt2() -> Path:
    """A language model with two layers."""
    return MODELS / "gpt2"


@pytest.fixture
def qwen3() -> Path:
    """A language model with a chat template."""
    return MODELS / "qwen3"


@pytest.fixture
def reward_model() -> Path:
    """A reward model."""
    return MODELS / "qwen3-reward"


@pytest.fixture
def prompts() -> list[dict[str, Any]]:
    """Rows with prompts and an additional column."""
    words = ["The kettle", "A bird", "Some rain", "The old clock", "Two cats", "A letter", "The road", "Her coat"]
    return [{"prompt": word, "length": len(word)} for word in words]


@pytest.fixture
def pairs() -> list[dict[str, str]]:
    """Preference pairs."""
    return [
        {"prompt": f"Question {i}:", "chosen": " a good answer", "rejected": " no"} for i in range(8)
    ]


@pytest.fixture
def texts() -> list[dict[str, str]]:
    """Texts to train on."""
    return [{"prompt": f"Number {i} is", "completion": f" followed by {i + 1}."} for i in range(8)]


def command(*arguments: str | os.PathLike[str], code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the command line as a process."""
    words = [sys.executable, "-m", "gradus", *(os.fspath(argument) for argument in arguments)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done
