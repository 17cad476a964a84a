"""Numbers in bf16 and in blocks of q8_0, encoded by the package `gguf`. Needs `gguf`, which is not in the requirements.

Numbers are written as their 32 bits, bytes as hexadecimal digits.
"""

from common import arguments, meta, write_json

import gguf
import numpy

SEED = 20
TYPES = {"bf16": gguf.GGMLQuantizationType.BF16, "q8_0": gguf.GGMLQuantizationType.Q8_0}


def case(name, values, *formats):
    values = numpy.asarray(values, "<f4")
    found = {key: gguf.quants.quantize(values, TYPES[key]).tobytes().hex() for key in formats}
    return {"name": name, "bits": values.view("<u4").tolist(), **found}


def main():
    out = arguments("gguf")
    draw = numpy.random.default_rng(SEED).standard_normal
    both = ("bf16", "q8_0")
    # Ties at rounding on both sides, and a block whose largest number is negative.
    halves = numpy.array([(i - 16) / 2 for i in range(31)] + [-127.0], "f4")
    cases = [
        case("normal", draw(64), *both),
        case("tiny", draw(32) * 1e-7, *both),
        case("smaller than half precision", draw(32) * 1e-12, *both),
        case("large", draw(32) * 1e5, *both),
        case("zeros", numpy.zeros(32), *both),
        case("halves", halves, *both),
        case("one spike", [0.0] * 31 + [-3.7], *both),
        case("ends of bf16", [float("inf"), float("-inf"), -0.0, 3.3895314e38, 1.0039062, 1.0117188, 1e-40], "bf16"),
    ]
    write_json(out / "blocks.json", {"meta": meta(SEED, "gguf"), "cases": cases})


main()
