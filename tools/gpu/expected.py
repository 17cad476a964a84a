#!/usr/bin/env python3
"""Computes the tables of docs/gpu.md: bytes and operations of each kernel, and their time according to the data sheets.

    tools/gpu/expected.py            prints them
    tools/gpu/expected.py --write    writes them into the page
    tools/gpu/expected.py --check    exit code 1 if the tables in the page are not current

Bytes are those that the memory of the card must transfer: every input once, every output once, and the data that a
kernel reads again because the cache cannot keep it. A multiplication and an addition count as two operations. The
time is the longest of three: bytes over bandwidth, operations over the rate of their kind, and launches.
"""

import argparse
import pathlib
import sys
from dataclasses import dataclass

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "gpu.md"
BEGIN, END = "<!-- tools/gpu/expected.py -->", "<!-- end -->"

# NVIDIA's data sheets of H100 SXM and H200 SXM: bandwidth in bytes/s; rates in operations/s without sparsity.
# https://www.nvidia.com/en-us/data-center/h100/ and https://www.nvidia.com/en-us/data-center/h200/
CHIPS = {
    "H100": {"bandwidth": 3.35e12, "f32": 67e12, "bf16": 989e12},
    "H200": {"bandwidth": 4.8e12, "f32": 67e12, "bf16": 989e12},
}
# Minimum time of a launch in a sequence of launches, and the share of bandwidth and arithmetic that kernels reach. These are assumptions
# until they are measured. Attention loads eight numbers from shared memory for every sixteen multiplications and
# additions; products are those of CubeCL, in bf16 with tensor cores.
LAUNCH = 3e-6
REACHED = {"bandwidth": 0.85, "f32": 0.6, "attention": 0.4, "bf16": 0.6}


@dataclass
class Model:
    """Sizes of a model, and of the parts that are computed at once."""

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocabulary: int

    def matrices(self):
        """Number of elements in the matrices of one layer."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return self.width * (2 * q + 2 * kv) + 3 * self.width * self.inner

    def parameters(self):
        norms = 2 * self.width + 2 * self.head_dim
        return self.layers * (self.matrices() + norms) + self.width + self.vocabulary * self.width


QWEN = Model("Qwen3-0.6B", 28, 1024, 16, 8, 128, 3072, 151_936)


@dataclass
class Kernel:
    """One kernel, or a group of kernels that run together, once per step."""

    name: str
    bytes: float
    arithmetic: float
    rate: str
    launches: int

    def parts(self, chip):
        """Seconds that each of its limits requires."""
        # Attention multiplies in f32 for every storage type.
        rate = chip["f32" if self.rate == "attention" else self.rate]
        return {
            "memory": self.bytes / (chip["bandwidth"] * REACHED["bandwidth"]),
            "arithmetic": self.arithmetic / (rate * REACHED[self.rate]),
            "launches": self.launches * LAUNCH,
        }

    def seconds(self, chip):
        return max(self.parts(chip).values())

    def bound(self, chip):
        parts = self.parts(chip)
        return max(parts, key=parts.get)


def step(model, tokens, size):
    """The kernels of one training step of `tokens` tokens in one sequence; `size` bytes per number."""
    n, d, layers = tokens, model.width, model.layers
    q, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    # Products use tensor cores in bf16, and ordinary cores in f32, because tf32 is only used on request.
    products = "bf16" if size == 2 else "f32"
    # Norms: two over the width and two over the heads per layer, and the last one. Backward, the products with γ are summed by
    # two more passes over gradient and input.
    normed = n * (layers * (2 * d + q + kv) + d)
    yield Kernel("norms, forward", 2 * size * normed, 6 * normed, "f32", 4 * layers + 1)
    yield Kernel("norms, backward", 5 * size * normed, 14 * normed, "f32", 3 * (4 * layers + 1))
    turned = n * layers * (q + kv)
    yield Kernel("rotary, both", 2 * 2 * size * turned, 2 * 6 * turned, "f32", 4 * layers)
    gated = n * layers * model.inner
    yield Kernel("SwiGLU, forward twice", 2 * 3 * size * gated, 2 * 8 * gated, "f32", 2 * layers)
    yield Kernel("SwiGLU, backward", 5 * size * gated, 14 * gated, "f32", layers)
    pairs = layers * model.heads * n * (n + 1) / 2
    # Each tile of queries reads half of the keys and values on average. The cache can keep those of one layer.
    moved = size * n * layers * (2 * q + 2 * kv)
    yield Kernel("attention, forward", moved, 4 * model.head_dim * pairs, "attention", layers)
    yield Kernel("attention, backward", 3 * moved, 14 * model.head_dim * pairs, "attention", 3 * layers)
    head = model.vocabulary * d
    rows = min(n, 4096)
    chunks = -(-model.vocabulary // max((16 << 20) // rows // 2048 * 2048, 2048))
    logits = n * model.vocabulary
    yield Kernel(
        "log-probabilities, forward",
        size * head + 3 * size * logits,
        2 * head * n + 8 * logits,
        products,
        2 * chunks + 1,
    )
    yield Kernel(
        "log-probabilities, backward",
        3 * size * head + 4 * 3 * head + 6 * size * logits,
        6 * head * n + 12 * logits,
        products,
        6 * chunks,
    )
    yield Kernel("embedding, both", size * (3 * n * d + head), n * d, "f32", 3)
    weights = layers * model.matrices()
    moved = 3 * size * weights + 3 * size * n * layers * (2 * d + 2 * q + 2 * kv + 3 * model.inner)
    yield Kernel("products of layers", moved, 6 * weights * n, products, 3 * 7 * layers)
    tensors = layers * 11 + 2
    # The number of tensors per launch is `TENSORS` in `gpu/sums.rs` and `gpu/adamw.rs`.
    yield Kernel("gradient norm", 4 * model.parameters(), 2 * model.parameters(), "f32", -(-tensors // 32))
    yield Kernel("AdamW", 7 * 4 * model.parameters(), 14 * model.parameters(), "f32", -(-tensors // 16))


def table(model, tokens, size):
    kernels = list(step(model, tokens, size))
    yield "| kernel | GB moved | GFLOP | launches | " + " | ".join(f"{chip}, ms | bound by" for chip in CHIPS) + " |"
    yield "|---" * (4 + 2 * len(CHIPS)) + "|"
    for kernel in kernels:
        times = [f"{kernel.seconds(chip) * 1e3:.2f} | {kernel.bound(chip)}" for chip in CHIPS.values()]
        sizes = f"{kernel.bytes / 1e9:.2f} | {kernel.arithmetic / 1e9:.0f} | {kernel.launches}"
        yield f"| {kernel.name} | {sizes} | " + " | ".join(times) + " |"
    totals = [sum(kernel.seconds(chip) for kernel in kernels) for chip in CHIPS.values()]
    rest = f"{sum(k.bytes for k in kernels) / 1e9:.2f} | {sum(k.arithmetic for k in kernels) / 1e9:.0f}"
    launches = sum(kernel.launches for kernel in kernels)
    yield f"| all | {rest} | {launches} | " + " | ".join(f"{total * 1e3:.2f} | " for total in totals) + "|"
    rates = [f"{tokens / total:,.0f} tokens per second on one {name}" for name, total in zip(CHIPS, totals)]
    yield ""
    yield f"This is at most {' and '.join(rates)}."


def text():
    tokens = 2048
    lines = []
    for name, size in [("f32", 4), ("bf16", 2)]:
        lines += [f"### One step in {name}", ""]
        lines += [f"Full fine-tuning of {QWEN.name}'s shape ({QWEN.parameters() / 1e6:.0f} M parameters), one sequence of {tokens:,} tokens.", ""]
        lines += list(table(QWEN, tokens, size)) + [""]
    names = {"bandwidth": "the bandwidth", "f32": "the rate in f32", "bf16": "the rate in bf16"}
    names["attention"] = "the rate in f32 for attention"
    assumed = ", ".join(f"{share:.0%} of {names[what]}" for what, share in REACHED.items())
    lines += [f"The assumptions: {assumed}, and {LAUNCH * 1e6:.0f} µs per launch.", ""]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the tables into docs/gpu.md")
    parser.add_argument("--check", action="store_true", help="fail if the tables in docs/gpu.md are not current")
    args = parser.parse_args()
    if not args.write and not args.check:
        print(text())
        return
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    new = f"{before}{BEGIN}\n\n{text()}\n{END}{after}"
    if args.check and new != page:
        sys.exit(f"{PAGE}: the tables are not current; run tools/gpu/expected.py --write")
    if args.write:
        PAGE.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
