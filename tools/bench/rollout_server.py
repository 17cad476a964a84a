"""Measures how much time one step of staleness saves: GRPO with `gradus serve`, with and without `max_staleness: 1`.

    python tools/bench/rollout_server.py target/release/gradus MODEL [--steps 20]

The server and the trainer are two processes, each on a separate core (`taskset`). The script first chooses how many completions the server
samples in parallel, so that sampling and training take about the same time. The log-probabilities that the trainer recomputes count as
training. When sampling runs in parallel with training, this part of the cost of sampling remains. The script prints the seconds per step of
both runs, from their metrics.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile


def rows(path):
    text = "".join(json.dumps({"prompt": f"Tell me about number {i} and its friends."}) + "\n" for i in range(64))
    path.write_text(text)


def pinned(core, *command, **options):
    return subprocess.Popen(["taskset", "-c", str(core), *map(str, command)], **options)


class Server:
    """`gradus serve` on the first core."""

    def __init__(self, gradus, model, shared, places):
        environment = {**os.environ, "GRADUS_WEIGHTS_TOKEN": "a-token-for-the-benchmark", "RAYON_NUM_THREADS": "1"}
        self.process = pinned(0, gradus, "serve", shared, "--model", model, "--port", "0", "--places", places, "--allow-weights", shared,
                              "--json", stdout=subprocess.PIPE, text=True, env=environment, stderr=subprocess.DEVNULL)
        self.url = json.loads(self.process.stdout.readline())["url"].rstrip("/")

    def end(self):
        self.process.terminate()
        self.process.wait()


def train(gradus, server, model, folder, name, tokens, staleness, steps):
    """Runs GRPO on the second core. Returns the time of each step by phase, without the first three steps."""
    config = {
        "model": str(model), "data": str(folder / "rows.jsonl"), "output_dir": str(folder / name),
        "method": {"grpo": {"group_size": 8, "max_new_tokens": tokens}},
        "reward": {"rule": {"length": {"target": tokens // 2}}},
        "rollouts": {"server": server.url, "kind": "gradus", "shared": str(folder / "shared"), "key_variable": "GRADUS_WEIGHTS_TOKEN",
                     "max_staleness": staleness},
        "train": {"max_steps": steps, "batch_size": 8, "eval_steps": -1, "threads": 1, "learning_rate": 1e-6, "save_rollouts": False},
    }
    path = folder / f"{name}.yml"
    path.write_text(json.dumps(config))
    environment = {**os.environ, "GRADUS_WEIGHTS_TOKEN": "a-token-for-the-benchmark"}
    process = pinned(1, gradus, "train", path, "--quiet", env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    said = process.communicate()[1]
    if process.returncode:
        sys.exit(f"{name} failed: {said}")
    metrics = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
    phases = ["sampling", "reward", "advantages", "update", "record"]
    found = {phase: [row.get(f"time/{phase}_s", 0.0) for row in metrics[3:]] for phase in phases}
    found["step"] = [sum(times) for times in zip(*found.values())]
    return {phase: statistics.median(times) for phase, times in found.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("gradus", type=pathlib.Path)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--places", type=int, nargs="*", default=[64, 32, 16, 8, 4])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        rows(folder / "rows.jsonl")
        (folder / "shared").mkdir()
        gradus, model = options.gradus.resolve(), options.model.resolve()

        def run(server, name, staleness, steps):
            return train(gradus, server, model, folder, name, options.tokens, staleness, steps)

        # With the fastest server, sampling is hidden, so only the log-probabilities remain of its time.
        server = Server(gradus, model, folder / "shared", options.places[0])
        again = run(server, "again", 1, 10)["sampling"]
        server.end()
        best = None
        for places in options.places:
            server = Server(gradus, model, folder / "shared", places)
            found = run(server, f"places-{places}", 0, 10)
            server.end()
            sampling = found["sampling"] - again
            training = found["step"] - sampling
            print(f"{places} completions in parallel: sampling {sampling:.3f} s, training {training:.3f} s", flush=True)
            if best is None or abs(sampling - training) < best[0]:
                best = (abs(sampling - training), places)
        server = Server(gradus, model, folder / "shared", best[1])
        turns = {0: [], 1: []}
        # Alternately, so that a busy moment affects both.
        for turn in range(3):
            for staleness, times in turns.items():
                times.append(run(server, f"run-{staleness}-{turn}", staleness, options.steps))
        server.end()
        for staleness, times in turns.items():
            print(f"max_staleness {staleness}:", json.dumps([{k: round(v, 3) for k, v in t.items()} for t in times]))
        mean = {staleness: statistics.mean(t["step"] for t in times) for staleness, times in turns.items()}
        print(f"a step takes {mean[0]:.3f} s; with sampling one step ahead, {mean[1]:.3f} s: {1 - mean[1] / mean[0]:.0%} less")


main()
