"""Runs both sides alternately on the same weights and rows, and writes the measurements as JSON.

    python bench.py --gradus ../../target/release/gradus --python VENV/bin/python

Results of a workload replace those of an earlier run. Other results stay. `render.py` makes the page from the file.
"""

import argparse
import datetime
import json
import pathlib
import subprocess
import sys
import time

import gradus_side
import machine
import process
import workloads

HERE = pathlib.Path(__file__).resolve().parent
QUICK = ("sft", "dpo_f32", "grpo", "generate_8_f32", "generate_8_bf16", "small")


def gradus_run(args, work, model, rows):
    kind = gradus_side.generate if work["kind"] == "generate" else gradus_side.train
    return kind(args.gradus, work, model, rows, args.work)


def python_run(args, python, script, words):
    """Runs one process of a Python side, and reads its measurements from the file that it writes."""
    out = args.work / "side.json"
    out.unlink(missing_ok=True)
    ran = process.run([python, HERE / script, *words, "--out", out], args.work / "side.log")
    ran.pop("stamps")
    return {**ran, **json.loads(out.read_text())}


def trl_run(args, work, model, rows):
    script = "seq2seq_side.py" if work["group"] == "seq2seq" else "trl_side.py"
    return python_run(args, args.python, script, [json.dumps(work), "--model", model, "--rows", rows])


def llama_run(args, work, model, rows, weights=None):
    words = [json.dumps(work), "--model", model, "--weights", weights or work["precision"]]
    return python_run(args, args.llama_python, "llama_side.py", words)


def gradus_int8_run(args, work, model, rows):
    return gradus_side.generate(args.gradus, work, model, rows, args.work, "int8")


def llama_q8_0_run(args, work, model, rows):
    return llama_run(args, work, model, rows, "q8_0")


SIDES = {
    "gradus": gradus_run,
    "trl": trl_run,
    "llama": llama_run,
    "gradus_int8": gradus_int8_run,
    "llama_q8_0": llama_q8_0_run,
}


def applies(args, side, work):
    if side in ("gradus", "trl"):
        return True
    # Weights with 8 bits in addition to those with 16.
    asked = args.llama_python is not None and work["kind"] == "generate" and work["group"] != "seq2seq"
    return asked and (side == "llama" or work["precision"] == "bf16")


def measure(args, work):
    """The runs of both sides, which alternate. A side that cannot run reports the reason and is not started again."""
    model, rows = args.work / "models" / work["model"], workloads.rows_file(args.work, work)
    sides = [side for side in args.sides if applies(args, side, work)]
    entry = {"work": work, "runs": {side: [] for side in sides}, "failed": {}}
    repetitions = args.repetitions if work["group"] in ("main", "generate", "small", "seq2seq") else 1
    for _ in range(repetitions):
        for side in sides:
            if side in entry["failed"]:
                continue
            began = time.monotonic()
            try:
                ran = SIDES[side](args, work, model, rows)
            except (process.Failed, gradus_side.Unavailable) as error:
                entry["failed"][side] = str(error)[-400:]
                say(f"{work['name']:18} {side:7} {str(error)[-200:]}")
                continue
            entry["runs"][side].append(ran)
            mean = sum(ran["step_s"]) / len(ran["step_s"])
            peak, took = ran["peak_bytes"] / 2**30, time.monotonic() - began
            say(f"{work['name']:18} {side:7} {mean:9.4f} s per step, {peak:5.2f} GiB, {took:5.0f} s in total")
    return entry


def say(line):
    print(line, flush=True)


def load(file):
    return json.loads(file.read_text()) if file.exists() else {"workloads": {}}


def save(file, results):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(rounded(results), indent=1) + "\n")


def rounded(value):
    """Rounds to six significant digits, which is more than the clocks resolve."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def peaks(args, results):
    """Measures the speed of matrix products of both sides on this machine."""
    if "trl" in args.sides:
        found = python_run(args, args.python, "trl_side.py", ["peak"])
        results["torch_peak_gflops"] = {precision: found[precision] for precision in ("f32", "bf16")}
    if "gradus" in args.sides:
        bench = gradus_side.bench(args.gradus, args.work)
        results["gradus_bench"] = json.loads(bench) if bench else None


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gradus", type=pathlib.Path, required=True, help="the binary")
    parser.add_argument("--python", type=pathlib.Path, required=True, help="interpreter with requirements.txt installed")
    parser.add_argument("--llama-python", type=pathlib.Path, help="interpreter with requirements-llama.txt installed")
    parser.add_argument("--work", type=pathlib.Path, default="/tmp/gradus-bench", help="folder for models and rows")
    parser.add_argument("--results", type=pathlib.Path, default=HERE / "results/cpu.json", help="file to write")
    parser.add_argument("--only", type=workloads.names, help="workloads by name, group or kind, separated by commas")
    parser.add_argument("--sides", type=workloads.names, default=list(SIDES), help=", ".join(SIDES))
    parser.add_argument("--repetitions", type=int, default=2, help="processes per side and workload; growth curves have one")
    parser.add_argument("--quick", action="store_true", help="one repetition of one step of a few workloads")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.only, chosen.repetitions = chosen.only or list(QUICK), 1
    return chosen


def main():
    args = arguments()
    chosen = workloads.chosen(args.only)
    if args.quick:
        chosen = [{**work, "steps": 1 if work["group"] != "small" else work["steps"] // 4} for work in chosen]
        chosen = [{**work, "max_steps": work["steps"] + workloads.WARM_UP} for work in chosen]
    args.work.mkdir(parents=True, exist_ok=True)
    subprocess.run([args.python, HERE / "make_inputs.py", "--out", args.work, "--only", ",".join(w["name"] for w in chosen)],
                   check=True)  # fmt: skip
    results = load(args.results)
    results["machine"], results["versions"] = machine.describe(), machine.versions(args.gradus, args.python)
    results["threads"] = process.THREADS
    results["arguments"] = [argument.rsplit("/", 1)[-1] for argument in sys.argv[1:]]
    results["date"] = datetime.date.today().isoformat()
    began = time.monotonic()
    peaks(args, results)
    for work in chosen:
        results["workloads"][work["name"]] = measure(args, work)
        save(args.results, results)
    results["elapsed_s"] = time.monotonic() - began
    save(args.results, results)
    say(f"{len(chosen)} workloads in {results['elapsed_s']:.0f} s; written to {args.results}")


if __name__ == "__main__":
    main()
