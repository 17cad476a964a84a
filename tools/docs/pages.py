"""The pages of the documentation, and functions of the other scripts in this folder that read Markdown."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Files at the root of the repository that people read. The changelog is a list and has no prose to measure.
AT_ROOT = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "AGENTS.md"]


def pages(root: pathlib.Path = ROOT) -> list[pathlib.Path]:
    """All existing pages of `docs/` and of the root of the repository."""
    at_root = [root / name for name in AT_ROOT if (root / name).exists()]
    return at_root + sorted(page for page in (root / "docs").glob("*.md") if page.name != "SUMMARY.md")


def lines_outside_code(text: str) -> Iterator[tuple[int, str]]:
    """The lines outside fenced blocks and comments, with their numbers from 1."""
    fence = None
    text = re.sub(r"<!--.*?-->", lambda found: "\n" * found.group().count("\n"), text, flags=re.DOTALL)
    for number, line in enumerate(text.splitlines(), start=1):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if mark and fence is None:
            fence = mark.group(1)
        elif mark and mark.group(1).startswith(fence or "~"):
            fence = None
        elif fence is None:
            yield number, line


def anchor(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    heading = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return kept.replace(" ", "-")
