"""Shows where gradus spends its time: samples of `perf` during steady steps, by purpose of the code.

    python hot_spots.py --gradus PATH [--only sft_f32,generate_64_bf16]

Needs Linux's `perf` and the models and rows of `bench.py`. Writes `results/hot_spots.json`.
`render.py` makes a section of `docs/benchmarks.md` from it.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import gradus_side
import process
import workloads

HERE = pathlib.Path(__file__).resolve().parent
WORKLOADS = ("sft_f32", "sft_bf16", "reward_f32", "dpo_f32", "grpo_f32", "grpo_bf16", "generate_8_f32",
             "generate_8_bf16", "generate_64_f32", "generate_64_bf16", "small_sft", "small_grpo")  # fmt: skip
FREQUENCY = 499
# Seconds of warm-up before the samples count: the first call allocates its memory from the system.
GENERATION_WARM_UP_S = 7.0
PROFILED_S = 8.0

# The first pattern that matches a symbol counts. A symbol without a match is "other".
KINDS = {
    "product arithmetic": r"product::tile::",
    "packing operands": r"product::",
    "attention": r"attention::|decode::|softmax_in_place",
    "LM head and drawing": r"token_logprobs::|simd::(sum_exp|maximum)|generate::",
    "norms, activations, sums": r"norm::|gelu::|swiglu::|rope::|activation::|add_rows|parts::|macerator|burn",
    "AdamW": r"adamw::|optimizer::",
    "memory": r"clear_page|mem(set|move|cpy)|page_fault|anonymous_page|\bmi_|_mi_|mmap",
    "waiting": r"sched|finish_task|futex|spin_unlock|yield|rayon|crossbeam|syscall|exit_to_user|switch|latch",
}


def kind(symbol):
    return next((name for name, pattern in KINDS.items() if re.search(pattern, symbol)), "other")


def started(binary, work, args):
    """The process, and a function that returns whether the profiled part has begun and whether it has ended."""
    model, rows = args.work / "models" / work["model"], workloads.rows_file(args.work, work)
    if work["kind"] == "generate":
        said = args.work / "hot_spots.err"
        command = [binary, "bench", "--json", "--no-training", "--model", model, "--repetitions", 40]
        command += ["--generate-batch", work["batch"], "--prompt-tokens", work["length"]]
        command += ["--new-tokens", work["new_tokens"], "--threads", process.THREADS] + gradus_side.compute(work)
        command += ["--weights", work["precision"]]
        child = launch(command, said)
        return child, lambda: "sampling" in said.read_text(), lambda: False
    out = args.work / "hot_spots"
    shutil.rmtree(out, ignore_errors=True)
    steps = 400 if work["model"] == "4M" else 12
    command = gradus_side.train_command(binary, {**work, "max_steps": steps}, model, rows, out)
    child = launch(command, args.work / "hot_spots.err")

    def lines():
        log = out / "metrics.jsonl"
        return len(log.read_text().splitlines()) if log.exists() else 0

    return child, lambda: lines() >= workloads.WARM_UP, lambda: lines() >= steps


def launch(command, said):
    environment = {**os.environ, **process.ENVIRONMENT}
    with open(said, "wb") as err:
        words = [str(word) for word in command]
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=err, env=environment)


def profile(binary, work, args):
    """Shares of the time of all threads, by kind of code. The rest is idle time of threads."""
    data = args.work / "perf.data"
    child, has_begun, is_over = started(binary, work, args)
    while not has_begun():
        if child.poll() is not None:
            raise process.Failed(f"{work['name']} ended with exit code {child.returncode}")
        time.sleep(0.02)
    time.sleep(GENERATION_WARM_UP_S if work["kind"] == "generate" else 0.0)
    command = ["perf", "record", "--quiet", "-e", "cpu-clock", "-F", str(FREQUENCY), "-o", data, "-p", str(child.pid)]
    perf = subprocess.Popen([str(word) for word in command], stderr=subprocess.DEVNULL)
    began = time.monotonic()
    while time.monotonic() - began < PROFILED_S and not is_over() and child.poll() is None:
        time.sleep(0.02)
    perf.send_signal(signal.SIGINT)
    seconds = time.monotonic() - began
    perf.wait()
    child.kill()
    child.wait()
    script = ["perf", "script", "-i", str(data), "-F", "ip,sym"]
    symbols = subprocess.run(script, capture_output=True, text=True, check=True).stdout.split("\n")
    counts = dict.fromkeys([*KINDS, "other"], 0)
    for symbol in filter(None, map(str.strip, symbols)):
        counts[kind(symbol)] += 1
    whole = FREQUENCY * seconds * process.THREADS
    shares = {name: count / whole for name, count in counts.items()}
    return {"seconds": seconds, "shares": shares, "idle": max(0.0, 1.0 - sum(shares.values()))}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gradus", type=pathlib.Path, required=True, help="binary of `cargo build --profile profiling`, with the names of functions")
    parser.add_argument("--only", type=workloads.names, default=list(WORKLOADS), help=", ".join(WORKLOADS))
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("/tmp/gradus-bench"), help="folder with the models and rows of bench.py")
    parser.add_argument("--results", type=pathlib.Path, default=HERE / "results/hot_spots.json", help="file to write")
    args = parser.parse_args()
    process.two_cores()
    found = json.loads(args.results.read_text()) if args.results.exists() else {}
    for work in workloads.ALL:
        if work["name"] in args.only:
            found[work["name"]] = profile(args.gradus.resolve(), work, args)
            shares = sorted(found[work["name"]]["shares"].items(), key=lambda share: -share[1])
            print(f"{work['name']:18}", ", ".join(f"{name} {share:.1%}" for name, share in shares[:4]), flush=True)
    args.results.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
