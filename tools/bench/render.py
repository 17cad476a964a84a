"""Writes `docs/benchmarks.md` from the results of `bench.py`. Every figure on the page comes from that file.

    python render.py
"""

import argparse
import pathlib

import bench
import goals
import pages

HERE = pathlib.Path(__file__).resolve().parent


def page(results):
    sections = [
        pages.opening(results),
        pages.goals(goals.all_goals(results)),
        pages.steps(results),
        pages.generation(results),
        pages.small(results),
        pages.memory(results),
        pages.growth(results),
        pages.method(results),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--results", type=pathlib.Path, default=HERE / "results/cpu.json", help="file of bench.py")
    parser.add_argument("--out", type=pathlib.Path, default=HERE.parents[1] / "docs/benchmarks.md", help="page to write")
    arguments = parser.parse_args()
    arguments.out.write_text(page(bench.load(arguments.results)))


if __name__ == "__main__":
    main()
