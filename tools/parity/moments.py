"""Numbers in eight bits and AdamW steps by bitsandbytes on the CPU, for `crates/gradus-kernels/fixtures/moments.txt`.

Also needs bitsandbytes 0.50.2 from PyPI:

    ~/gradus-parity/bin/python tools/parity/moments.py [--out FILE]
"""

import argparse
import logging
import pathlib

import numpy as np
import torch

logging.disable(logging.WARNING)
import bitsandbytes as bnb  # noqa: E402
import bitsandbytes.functional as functional  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
NUMBERS, PARAMETERS, STEPS, SEED = 1500, 4196, 3, 7


def mixed(i):
    """Thirty-two bits; Rust computes the same ones."""
    product = i * 40_503 & 0xFFFFFFFF
    return i * 2_654_435_761 & 0xFFFFFFFF ^ (product << 13 | product >> 19) & 0xFFFFFFFF


def number(i, signed):
    bits = mixed(i)
    size = np.float32(bits >> 8) / np.float32(1 << (24 + (bits & 15)))
    return -size if signed and bits & 16 else size


def words(values):
    return " ".join(f"{bits:08x}" for bits in np.asarray(values, np.float32).view(np.uint32))


def codes(values):
    return bytes(values.numpy()).hex()


def blocks(write):
    for name, signed in [("signed", True), ("unsigned", False)]:
        mapped = functional.create_dynamic_map(signed=signed)
        numbers = torch.tensor(np.array([number(i, signed) for i in range(NUMBERS)], np.float32))
        found, state = functional.quantize_blockwise(numbers, code=mapped, blocksize=256)
        write(f"{name} map", words(mapped))
        write(f"{name} codes", codes(found))
        write(f"{name} sizes", words(state.absmax))
        write(f"{name} numbers", words(functional.dequantize_blockwise(found, state)[:256]))


def steps(write):
    """Three steps. Weights and gradients are the numbers defined above, with other gradients at each step."""
    at = SEED
    def numbers():
        nonlocal at
        at += PARAMETERS
        return torch.tensor(np.array([number(i, True) for i in range(at - PARAMETERS, at)], np.float32))

    parameter = torch.nn.Parameter(numbers())
    optimizer = bnb.optim.AdamW8bit([parameter], lr=0.01, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)
    for step in range(1, STEPS + 1):
        parameter.grad = numbers()
        optimizer.step()
        state = optimizer.state[parameter]
        write(f"step {step} parameters", words(parameter.detach()[::41]))
        for order, moment in [("first", "1"), ("second", "2")]:
            write(f"step {step} {order} codes", codes(state[f"state{moment}"]))
            write(f"step {step} {order} sizes", words(state[f"absmax{moment}"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default=ROOT / "crates/gradus-kernels/fixtures/moments.txt", type=pathlib.Path)
    torch.set_num_threads(1)
    lines = [
        f"bitsandbytes {bnb.__version__}, torch {torch.__version__.split('+')[0]}: numbers as bits of f32, codes as bytes; "
        f"the numbers of a step begin at {SEED}"
    ]
    write = lambda name, values: lines.append(f"{name}: {values}")  # noqa: E731
    blocks(write)
    steps(write)
    parser.parse_args().out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
