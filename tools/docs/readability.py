#!/usr/bin/env python3
"""Measures how hard the pages are to read: Flesch-Kincaid grade and median sentence length.

    tools/docs/readability.py                      every page
    tools/docs/readability.py --revision HEAD~1    the pages as they were in another revision
    tools/docs/readability.py --max-grade 11       exit code 1 if a page is above this grade
    tools/docs/readability.py --longest 5 docs/data.md     and the longest sentences of a page

Code blocks, tables, headings, images and addresses are left out. Inline code counts as one word of one syllable,
because names of keys and files do not affect the difficulty of the prose.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import statistics
import subprocess
import sys

from pages import ROOT, lines_outside_code, pages

WORD = re.compile(r"[A-Za-z][A-Za-z'’-]*|\d[\d,.%]*")
# A period after one of these does not end a sentence.
ABBREVIATIONS = re.compile(r"\b(al|e\.g|i\.e|vs|cf|etc|eq|no|fig)\.$", re.IGNORECASE)


def paragraphs(text: str) -> list[str]:
    """The prose of a page: a paragraph or an item of a list is one entry."""
    found: list[str] = []
    current: list[str] = []

    def close() -> None:
        if current:
            found.append(" ".join(current))
            current.clear()

    for _, line in lines_outside_code(text):
        stripped = line.strip().lstrip(">").strip()
        if not stripped or stripped.startswith(("|", "#", "![", "<")):
            close()
            continue
        item = re.match(r"([-*+]|\d+\.)\s+(.*)", stripped)
        if item:
            close()
            stripped = item.group(2)
        current.append(stripped)
    close()
    return found


def plain(paragraph: str) -> str:
    """The text that a reader sees, with `code` in place of inline code."""
    paragraph = re.sub(r"(`+).+?\1", "code", paragraph)
    paragraph = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", paragraph)
    paragraph = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", paragraph)
    paragraph = re.sub(r"<?https?://\S+", "", paragraph)
    return paragraph.replace("*", "")


def sentences(paragraph: str) -> list[str]:
    found: list[str] = []
    start = 0
    for end in re.finditer(r"[.!?][)\"”]?(?=\s|$)", paragraph):
        piece = paragraph[start : end.end()]
        if ABBREVIATIONS.search(piece):
            continue
        found.append(piece)
        start = end.end()
    found.append(paragraph[start:])
    return [piece.strip() for piece in found if WORD.search(piece)]


def syllables(word: str) -> int:
    """An estimate by groups of vowels; numbers count one."""
    word = re.sub(r"[^a-z]", "", word.lower())
    if len(word) <= 3:
        return 1
    if not word.endswith(("ses", "ces", "ges", "xes", "ted", "ded")):
        word = re.sub(r"(?:[^laeiouy]es|[^lt]ed|[^laeiouy]e)$", "", word)
    return max(1, len(re.findall(r"[aeiouy]{1,2}", word)))


def measure(text: str) -> tuple[int, float, float, list[str]]:
    """Words, grade, median sentence length, and the sentences."""
    every = [piece for paragraph in paragraphs(text) for piece in sentences(plain(paragraph))]
    words = [WORD.findall(piece) for piece in every]
    count = sum(map(len, words))
    if not count:
        return 0, 0.0, 0.0, every
    spoken = sum(syllables(word) for piece in words for word in piece)
    grade = 0.39 * count / len(every) + 11.8 * spoken / count - 15.59
    return count, grade, statistics.median(map(len, words)), every


def read(page: pathlib.Path, revision: str | None) -> str | None:
    if revision is None:
        return page.read_text(encoding="utf-8")
    name = f"{revision}:{page.relative_to(ROOT).as_posix()}"
    shown = subprocess.run(["git", "show", name], cwd=ROOT, capture_output=True, text=True, check=False)
    return shown.stdout if shown.returncode == 0 else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=pathlib.Path, help="pages to measure; default: all")
    parser.add_argument("--revision", help="measure the pages of this revision")
    parser.add_argument("--max-grade", type=float, help="fail if a page is above this grade")
    parser.add_argument("--longest", type=int, default=0, metavar="N", help="show the N longest sentences of each page")
    options = parser.parse_args()
    over = []
    print("| page | words | grade | median sentence |\n|---|---|---|---|")
    for page in [page.resolve() for page in options.pages] or pages():
        text = read(page, options.revision)
        if text is None:
            continue
        count, grade, median, every = measure(text)
        name = page.relative_to(ROOT).as_posix()
        print(f"| {name} | {count} | {grade:.1f} | {median:.0f} |")
        for sentence in sorted(every, key=lambda piece: -len(WORD.findall(piece)))[: options.longest]:
            print(f"    {len(WORD.findall(sentence))}: {sentence}")
        if options.max_grade is not None and grade > options.max_grade:
            over.append(f"{name}: grade {grade:.1f}, at most {options.max_grade:g} is allowed")
    for line in over:
        print(line, file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
