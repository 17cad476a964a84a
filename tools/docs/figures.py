#!/usr/bin/env python3
"""Compares the figures of the documentation with new ones.

    tools/docs/figures.py FOLDER            compare docs/web/*.png with the screenshots in FOLDER
    tools/docs/figures.py FOLDER --write    replace those that differ

`GRADUS_PICTURES=FOLDER cargo test --workspace --test browser pictures` takes the screenshots. The figures of tutorials are compared by
`tools/docs/commands --full`. A figure is current if at most 1 % of its pixels differ visibly: fonts and the last bits of numbers may differ
between machines.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import shutil
import struct
import sys
import zlib

from pages import ROOT, pages

# A line before an image names the file that a command of the page writes. Commands that take hours are not repeated to compare it.
FIGURE = re.compile(r"<!--\s*figure( of long runs)?:\s*(\S+)\s*-->")
IMAGE = re.compile(r"!\[[^\]]*\]\(([^)\s]+)\)")
# Largest invisible difference of a color channel.
LEVELS = 24
SHARE = 0.01


def decode(file: pathlib.Path) -> tuple[int, int, int, list[bytes]]:
    """Width, height, bytes per pixel and rows of a PNG with 8 bits per channel, not interlaced."""
    data = file.read_bytes()
    if data[:8] != b"\x89PNG\r\n\x1a\n":
        raise ValueError(f"{file}: not a PNG file")
    at, packed, header = 8, b"", None
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + size]
        if kind == b"IHDR":
            header = struct.unpack(">IIBBBBB", body)
        elif kind == b"IDAT":
            packed += body
        at += 12 + size
    if header is None or header[2] != 8 or header[3] not in (0, 2, 4, 6) or header[6]:
        raise ValueError(f"{file}: unsupported PNG; expected 8 bits per channel, no palette and no interlacing")
    width, height, channels = header[0], header[1], {0: 1, 2: 3, 4: 2, 6: 4}[header[3]]
    raw, stride = zlib.decompress(packed), width * channels
    rows, above = [], bytes(stride)
    for y in range(height):
        start = y * (stride + 1)
        row = bytearray(raw[start + 1 : start + 1 + stride])
        unfilter(raw[start], row, above, channels)
        above = bytes(row)
        rows.append(above)
    return width, height, channels, rows


def unfilter(kind: int, row: bytearray, above: bytes, channels: int) -> None:
    """Undoes the filter of a row (PNG specification, section 9)."""
    for x in range(len(row)):
        left = row[x - channels] if x >= channels else 0
        up = above[x]
        if kind == 1:
            predicted = left
        elif kind == 2:
            predicted = up
        elif kind == 3:
            predicted = (left + up) // 2
        elif kind == 4:
            corner = above[x - channels] if x >= channels else 0
            guess = left + up - corner
            predicted = min((left, up, corner), key=lambda one: abs(guess - one))
        else:
            return
        row[x] = (row[x] + predicted) & 255


def difference(shown: pathlib.Path, drawn: pathlib.Path) -> str | None:
    """The difference between a figure and a new one, or None if the figure is current."""
    if not shown.exists():
        return "missing"
    if shown.read_bytes() == drawn.read_bytes():
        return None
    (width, height, channels, old), (*size, _, new) = decode(shown), decode(drawn)
    if [width, height] != size or len(old[0]) != len(new[0]):
        return f"{width} x {height} pixels, but the new figure has {size[0]} x {size[1]}"
    differing = 0
    for a, b in zip(old, new, strict=True):
        if a != b:
            differing += len({x // channels for x in range(len(a)) if abs(a[x] - b[x]) > LEVELS})
    share = differing / (width * height)
    return f"{100 * share:.1f} % of the pixels differ from the new figure" if share > SHARE else None


def unchecked() -> list[str]:
    """Images of pages without a source: they are no screenshots, and no comment names the file that a command draws."""
    wrong = []
    for page in pages():
        before = ""
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
            for image in IMAGE.findall(line):
                if "://" in image or pathlib.PurePath(image).parts[0] == "web" or FIGURE.search(before):
                    continue
                wrong.append(f"{page.relative_to(ROOT)}:{number}: {image} has no line `<!-- figure: FILE -->` before it")
            before = line if line.strip() else before
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="folder with new screenshots")
    parser.add_argument("--write", action="store_true", help="replace figures that differ")
    options = parser.parse_args()
    problems = 0
    for shown in sorted((ROOT / "docs/web").glob("*.png")):
        drawn = options.folder / shown.name
        found = difference(shown, drawn) if drawn.exists() else "no screenshot of this name"
        if found and drawn.exists() and options.write:
            shutil.copyfile(drawn, shown)
            print(f"{shown.relative_to(ROOT)}: replaced ({found})")
        elif found:
            problems += 1
            print(f"{shown.relative_to(ROOT)}: {found}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
