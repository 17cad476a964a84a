"""Runs of the `gradus` binary: the command of a workload, and seconds a step read off what it writes."""

import json
import shutil

import process

LOGGED = ("loss", "num_tokens", "completions/mean_length")  # of the first step, to compare the sides
RULE = r"w\d*77\b"  # the reward of trl_side.py


class Unavailable(Exception):
    """This build of gradus has no such flag."""


def train_command(binary, work, model, rows, out):
    command = [binary, work["kind"], "--model", model, "--data", rows, "--output-dir", out, "--no-shuffle"]
    command += ["--batch-size", work["batch"], "--max-steps", work["max_steps"], "--threads", process.THREADS]
    command += ["--eval-fraction", 0, "--eval-steps", -1, "--save-steps", 0]
    if work["kind"] == "dpo":
        command += ["--reference", "live"]  # as in TRL by default; each row is met once
    if work["kind"] == "grpo":
        command += ["--group-size", work["group_size"], "--max-new-tokens", work["new_tokens"]]
        command += ["--kl-coefficient", work["beta"], "--reward-rule-regex", RULE]
    return command + compute(work)


def compute(work):
    return [] if work["precision"] == "f32" else ["--compute", work["precision"]]


def train(binary, work, model, rows, folder):
    """Seconds between the ends of consecutive steps: between the lines of `metrics.jsonl`. The first step is warm-up."""
    out = folder / "run"
    shutil.rmtree(out, ignore_errors=True)
    command = train_command(binary, work, model, rows, out)
    ran = run(command, folder / "gradus.log", watched=out / "metrics.jsonl")
    logged = json.loads((out / "metrics.jsonl").read_text().splitlines()[0])
    shutil.rmtree(out, ignore_errors=True)
    first = {key: logged[key] for key in LOGGED if key in logged}
    stamps = ran.pop("stamps")
    if len(stamps) != work["max_steps"]:
        raise process.Failed(f"{len(stamps)} steps logged where {work['max_steps']} were asked for")
    step_s = [after - before for before, after in zip(stamps, stamps[1:])]
    return {**ran, "command": shown(command), "step_s": step_s, "first": first}


def generate(binary, work, model, rows, folder):
    """Wall time of the command less that of one new token to a prompt of one token: what loading and starting takes."""
    one = folder / "one.jsonl"
    one.write_text('{"prompt": "w1"}\n')
    command = [binary, "generate", "--json", "--model", model, "--temperature", 1] + compute(work)
    whole = command + ["--prompts", rows, "--max-new-tokens", work["new_tokens"]]
    seconds, peak, foreign = [], 0, []
    for _ in range(work["steps"]):
        start = run(command + ["--prompts", one, "--max-new-tokens", 1], folder / "gradus.log")
        ran = run(whole, folder / "gradus.log")
        ran.pop("stamps")
        seconds.append(ran["wall_s"] - start["wall_s"])
        peak, foreign = max(peak, ran["peak_bytes"]), [*foreign, ran["foreign_cpu"]]
    ran |= {"peak_bytes": peak, "foreign_cpu": max(foreign)}
    return {**ran, "command": shown(whole), "step_s": seconds}


def run(command, log, watched=None):
    try:
        return process.run(command, log, watched)
    except process.Failed as error:
        if "--compute" in command and "--compute" in str(error):
            raise Unavailable(f"`--compute {command[command.index('--compute') + 1]}` is not in this build") from error
        raise


def shown(command):
    """The command as a reader would type it: paths shortened to their last part."""
    words = [str(word).rsplit("/", 1)[-1] if "/" in str(word) else str(word) for word in command]
    return " ".join(f"'{word}'" if "\\" in word else word for word in words)


def bench(binary, folder):
    """What `gradus bench --json` says of this machine, or nothing where this build has no such command."""
    try:
        process.run([binary, "bench", "--json", "--quiet", "--threads", process.THREADS], folder / "peak.json")
    except process.Failed:
        return None
    return (folder / "peak.json").read_text()
