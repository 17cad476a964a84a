#!/usr/bin/env python3
"""Checks the links of every Markdown file in the repository, and the files that they name.

    tools/docs/links.py                 every tracked Markdown file
    tools/docs/links.py docs/data.md    only these files

A relative link must lead to a file or a folder of the repository, and its anchor to a heading of that file. A page of `docs/`
must be in docs/SUMMARY.md, and a name such as `docs/data.md` anywhere in the repository must be an existing page. The script does not
open addresses on the web. Exit code 1 if there is a problem.
"""

from __future__ import annotations

import argparse
import functools
import pathlib
import re
import subprocess
import sys
import urllib.parse

import figures
from pages import ROOT, anchor, lines_outside_code

LINK = re.compile(r"!?\[(?:[^\]\[]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
NAMED = re.compile(r"\bdocs/[\w-]+\.md\b")


def tracked(*patterns: str) -> list[pathlib.Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", *patterns]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file() and not (ROOT / name).is_symlink()]


@functools.cache
def anchors(page: pathlib.Path) -> frozenset[str]:
    """Anchors of a page: its headings (repeated ones with a number) and HTML ids."""
    found: list[str] = []
    for _, line in lines_outside_code(page.read_text(encoding="utf-8")):
        heading = re.match(r"#{1,6}\s+(.*?)\s*#*$", line)
        if heading:
            name = anchor(heading.group(1))
            same = sum(1 for one in found if one == name or re.fullmatch(re.escape(name) + r"-\d+", one))
            found.append(f"{name}-{same}" if same else name)
        found += re.findall(r"<[^>]+\b(?:id|name)=\"([^\"]+)\"", line)
    return frozenset(found)


def problem(page: pathlib.Path, target: str) -> str | None:
    """The problem of a link of a page, or None. Addresses have none."""
    if re.match(r"[a-z][a-z0-9+.-]*:", target, re.IGNORECASE):
        return None
    path, _, fragment = target.partition("#")
    path = urllib.parse.unquote(path)
    to = page if not path else (page.parent / path).resolve()
    if not to.exists():
        return "no such file"
    if ROOT not in [to, *to.parents]:
        return "leads out of the repository"
    if fragment and to.suffix == ".md" and fragment not in anchors(to):
        near = sorted(anchors(to))
        return f"no such heading; the page has: {', '.join(near)}"
    return None


def check(page: pathlib.Path) -> tuple[int, list[str]]:
    """Number of links of a page, and their problems."""
    name = page.relative_to(ROOT).as_posix()
    count, wrong = 0, []
    for number, line in lines_outside_code(page.read_text(encoding="utf-8")):
        line = re.sub(r"(`+).+?\1", lambda code: " " * len(code.group()) if "](" in code.group() else code.group(), line)
        for target in LINK.findall(line):
            count += 1
            found = problem(page, target)
            if found:
                wrong.append(f"{name}:{number}: {target}: {found}")
    return count, wrong


def not_in_summary() -> list[str]:
    """Pages that are missing in the table of contents, and duplicate entries."""
    summary = ROOT / "docs/SUMMARY.md"
    if not summary.exists():
        return ["docs/SUMMARY.md: missing"]
    listed = re.findall(r"\]\(([^)]+\.md)\)", summary.read_text(encoding="utf-8"))
    twice = [f"docs/SUMMARY.md: {name} is listed twice" for name in sorted({one for one in listed if listed.count(one) > 1})]
    pages = (page.name for page in sorted((ROOT / "docs").glob("*.md")) if page.name != "SUMMARY.md")
    return twice + [f"docs/{name}: not in docs/SUMMARY.md" for name in pages if name not in listed]


def wrong_names() -> list[str]:
    """Page names in sources, help and messages without such a page."""
    wrong = []
    for file in tracked("*.rs", "*.py", "*.yml", "*.toml", "*.md", "*.txt", "Dockerfile"):
        if file.name == "CHANGELOG.md":
            continue
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(lines, start=1):
            if "://" in line:
                continue
            for name in NAMED.findall(line):
                if not (ROOT / name).exists():
                    wrong.append(f"{file.relative_to(ROOT).as_posix()}:{number}: {name}: no such page")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=pathlib.Path, help="files to check; default: all Markdown files")
    options = parser.parse_args()
    files = [file.resolve() for file in options.files] or tracked("*.md")
    count, wrong = 0, []
    for file in files:
        links, found = check(file)
        count += links
        wrong += found
    if not options.files:
        wrong += not_in_summary() + wrong_names() + figures.unchecked()
    for line in wrong:
        print(line, file=sys.stderr)
    print(f"{count} links in {len(files)} files, {len(wrong)} problems")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
