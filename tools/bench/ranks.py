#!/usr/bin/env python3
"""Measures how much of the machine several ranks use, and estimates the cost of a network.

Compares one rank of N threads with N ranks of one thread each, alternately, on a model of GPT-2's size (`sft`, `grpo`). Prints a table of
tokens per second and their ratio, the bytes that a step sends, and a forecast for networks.

The forecast adds two parts. Each node computes its batch, and each rank sends and receives
8 P (N - 1) / N bytes for P trained parameters: t(N) = t(1) + 8 P (N - 1) / (N B) + 2 N L, with B bytes per second and a latency of L, where
every node has a batch as large as that of one node alone (weak scaling).
The forecast ignores that the exchange begins during the last backward pass, so a real step takes at most this time.

    tools/bench/ranks.py --gradus target/release/gradus --tokenizer DIR
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

NETWORKS = [("10 Gbit/s", 10e9 / 8, 50e-6), ("25 Gbit/s", 25e9 / 8, 30e-6), ("InfiniBand 200 Gbit/s", 200e9 / 8, 2e-6)]
NODES = [2, 4, 8, 16, 32, 64]


def run(gradus, arguments, folder, launched, ranks, threads):
    """Trains, and returns the tokens per second of the steps after the first."""
    output = folder / "run"
    command = [gradus, *arguments, "--output-dir", str(output), "--overwrite", "--quiet", "--threads", str(threads), "--lanes", "8"]
    if launched:
        command += ["--ranks", str(ranks)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return statistics.median(row["tokens_per_s"] for row in rows if row.get("step", 0) > 1 and "tokens_per_s" in row)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gradus", required=True)
    parser.add_argument("--tokenizer", required=True, help="a directory with a tokenizer.json")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=os.cpu_count())
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    given = parser.parse_args()
    gradus = str(Path(given.gradus).resolve())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = folder / "model"
        sizes = {"n_embd": given.width, "n_inner": 4 * given.width, "n_layer": given.layers, "n_head": given.width // 64, "n_positions": 512}
        words = [f"--set={key}={value}" for key, value in sizes.items()]
        subprocess.run(
            [gradus, "new-model", "--family", "gpt2", "--tokenizer", given.tokenizer, "--output", str(model), *words],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        rows = folder / "rows.jsonl"
        text = "The kettle on the stove sings when the water in it boils, and the cup beside it waits. "
        rows.write_text("".join(json.dumps({"text": text * (2 + i % 5)}) + "\n" for i in range(400)))
        prompts = folder / "prompts.jsonl"
        prompts.write_text("".join(json.dumps({"prompt": f"{i}: {text}"}) + "\n" for i in range(200)))
        common = ["--model", str(model), "--max-steps", str(given.steps), "--eval-steps", "-1", "--eval-fraction", "0", "--save-steps", "0"]
        cases = {
            "sft": ["sft", "--data", str(rows), "--batch-size", "16", "--max-length", "128", *common],
            "grpo": ["grpo", "--data", str(prompts), "--batch-size", "4", "--group-size", "4", "--max-new-tokens", "48",
                     "--reward-rule-regex", "e", *common],
        }
        print(f"one rank of {given.ranks} threads compared with {given.ranks} ranks of one thread, tokens/s, medians of {given.rounds} rounds\n")
        print("| method | one rank | ranks | ratio |\n|---|---|---|---|")
        speeds = {}
        for method, arguments in cases.items():
            found = {False: [], True: []}
            for _ in range(given.rounds):
                for launched in (False, True):
                    ranks, threads = (given.ranks, 1) if launched else (1, given.ranks)
                    found[launched].append(run(gradus, arguments, folder, launched, ranks, threads))
            alone, several = (statistics.median(found[launched]) for launched in (False, True))
            speeds[method] = alone
            print(f"| {method} | {alone:.0f} | {several:.0f} | {several / alone:.2f} |")
        header = (model / "model.safetensors").open("rb")
        length = int.from_bytes(header.read(8), "little")
        tensors = json.loads(header.read(length))
        parameters = 0
        for name, tensor in tensors.items():
            if name != "__metadata__":
                count = 1
                for size in tensor["shape"]:
                    count *= size
                parameters += count
        tokens = 16 * 128
        seconds = tokens / speeds["sft"]
        print(f"\n{parameters / 1e6:.1f} million parameters; a step of {tokens} tokens takes {seconds:.2f} s on one node of this kind")
        print(f"each of 2 ranks sends {8 * parameters / 2 / 1e6:.0f} MB per step\n")
        print("| network | " + " | ".join(f"{nodes} nodes" for nodes in NODES) + " |\n|---" * 1 + "|---" * (len(NODES)) + "|")
        for network, bandwidth, latency in NETWORKS:
            cells = []
            for nodes in NODES:
                # The batch grows with the nodes: each node has the batch of a single node.
                sending = 8 * parameters * (nodes - 1) / nodes / bandwidth + 2 * nodes * latency
                cells.append(f"{seconds / (seconds + sending):.2f}")
            print(f"| {network} | " + " | ".join(cells) + " |")
        print("\nshare of the ideal speed when every node has a batch of that size (weak scaling), without overlap")


if __name__ == "__main__":
    main()
