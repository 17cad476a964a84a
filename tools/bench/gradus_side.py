"""Runs of the `gradus` binary: the command of a workload, and the seconds per step from its output."""

import json
import shutil

import process
from workloads import WARM_UP

LOGGED = ("loss", "num_tokens", "completions/mean_length")  # of the first step, to compare the sides
RULE = r"w\d*77\b"  # the reward of trl_side.py


class Unavailable(Exception):
    """This build of gradus does not have the flag."""


def train_command(binary, work, model, rows, out):
    command = [binary, work["kind"], "--model", model, "--data", rows, "--output-dir", out, "--no-shuffle"]
    command += ["--batch-size", work["batch"], "--max-steps", work["max_steps"], "--threads", process.THREADS]
    command += ["--eval-fraction", 0, "--eval-steps", -1, "--save-steps", 0]
    if work["kind"] == "dpo":
        command += ["--reference", "live"]  # TRL's default; each row is used once
    if work["group"] == "seq2seq":
        command += ["--learning-rate", 2e-5, "--lr-schedule", "constant"]
    if work["kind"] == "ppo":
        command += ["--max-new-tokens", work["new_tokens"], "--sampling-min-new-tokens", work["new_tokens"]]
        command += ["--temperature", 1, "--reward-rule-regex", RULE]
    if work["kind"] == "grpo":
        command += ["--group-size", work["group_size"], "--max-new-tokens", work["new_tokens"]]
        command += ["--kl-coefficient", work["beta"], "--reward-rule-regex", RULE]
    return command + compute(work)


def compute(work):
    return [] if work["precision"] == "f32" else ["--compute", work["precision"]]


def train(binary, work, model, rows, folder):
    """Seconds between the ends of consecutive steps: between the lines of `metrics.jsonl`. The first steps are warm-up."""
    out = folder / "run"
    shutil.rmtree(out, ignore_errors=True)
    command = train_command(binary, work, model, rows, out)
    ran = run(command, folder / "gradus.log", watched=out / "metrics.jsonl")
    logged = json.loads((out / "metrics.jsonl").read_text().splitlines()[0])
    shutil.rmtree(out, ignore_errors=True)
    first = {key: logged[key] for key in LOGGED if key in logged}
    stamps = ran.pop("stamps")
    if len(stamps) != work["max_steps"]:
        raise process.Failed(f"{len(stamps)} steps were logged, but {work['max_steps']} were expected")
    step_s = [after - before for before, after in zip(stamps[WARM_UP - 1 :], stamps[WARM_UP:])]
    return {**ran, "command": shown(command), "step_s": step_s, "first": first}


def generate(binary, work, model, _rows, folder, weights=None):
    """`gradus bench`: the median of several calls after a warm-up call. Weights are packed once, as by `gradus generate`."""
    report = folder / "generation.json"
    command = [binary, "bench", "--json", "--quiet", "--no-training", "--model", model, "--repetitions", work["steps"]]
    command += ["--generate-batch", work["batch"], "--prompt-tokens", work["length"], "--new-tokens", work["new_tokens"]]
    command += ["--threads", process.THREADS] + compute(work)
    command += ["--weights", weights or work["precision"]]
    ran = run(command, report)
    ran.pop("stamps")
    (measured,) = json.loads(report.read_text())["generation"]
    return {**ran, "command": shown(command), "step_s": [measured["seconds"]]}


def run(command, log, watched=None):
    try:
        return process.run(command, log, watched)
    except process.Failed as error:
        if "--compute" in command and "--compute" in str(error):
            raise Unavailable(f"this build does not have `--compute {command[command.index('--compute') + 1]}`") from error
        raise


def shown(command):
    """The command as a reader would type it: paths shortened to their last part."""
    words = [str(word).rsplit("/", 1)[-1] if "/" in str(word) else str(word) for word in command]
    return " ".join(f"'{word}'" if "\\" in word else word for word in words)


def bench(binary, folder):
    """The output of `gradus bench --json` for this machine, or None if this build does not have the command."""
    try:
        process.run([binary, "bench", "--json", "--quiet", "--threads", process.THREADS], folder / "peak.json")
    except process.Failed:
        return None
    return (folder / "peak.json").read_text()
