"""Writes `docs/benchmarks.md` from the results of `bench.py` and `hot_spots.py`. Every figure comes from their files.

    python render.py
"""

import argparse
import json
import pathlib

import bench
import goals
import pages

HERE = pathlib.Path(__file__).resolve().parent


def page(results, spots):
    sections = [
        pages.opening(results),
        pages.goals(goals.all_goals(results)),
        pages.steps(results),
        pages.generation(results),
        pages.small(results),
        pages.seq2seq(results),
        pages.memory(results),
        pages.growth(results),
        pages.hot_spots(results, spots),
        pages.method(results),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--results", type=pathlib.Path, default=HERE / "results/cpu.json", help="file of bench.py")
    parser.add_argument("--hot-spots", type=pathlib.Path, default=HERE / "results/hot_spots.json", help="of hot_spots.py")
    parser.add_argument("--out", type=pathlib.Path, default=HERE.parents[1] / "docs/benchmarks.md", help="page to write")
    arguments = parser.parse_args()
    spots = arguments.hot_spots
    spots = json.loads(spots.read_text()) if spots.exists() else {}
    arguments.out.write_text(page(bench.load(arguments.results), spots))


if __name__ == "__main__":
    main()
