#!/usr/bin/env python3
"""Whole training steps of gradus and of TRL on one GPU, with the same random weights and rows: one JSON object per line.

    tools/gpu/beside.py --gradus target/gpu/bundle/gradus [--device gpu] [--small] [--only sft,lora,grpo]

The model has Qwen3-0.6B's shape. Both sides multiply in bf16 and keep trained weights and moments in f32:

    sft    8 rows of 2,048 tokens per step, all weights
    lora   the same rows, rank 16 on all linear layers
    grpo   32 prompts, 8 completions of up to 256 tokens each, a regular expression as reward, no KL term; TRL samples with
           `generate` of transformers

Needs numpy; for TRL's side also trl, peft and datasets. Without them, only gradus runs. The time of a step is that between the ends of two
consecutive steps, after the first steps. `tools/gpu/run` calls this script. `--small` is a rehearsal with tiny sizes, in which TRL computes
on the processor.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import numpy

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/bench"))

import shapes  # noqa: E402
from make_inputs import text  # noqa: E402
from memory import Peak  # noqa: E402
from process import LineWatch  # noqa: E402

# Steps that are not counted, in which kernels are compiled and memory is allocated.
WARM_UP = {"sft": 2, "lora": 2, "grpo": 1}
RULE = r"w\d*77\b"
RANK = 16
LARGE = {"rows": 8, "length": 2048, "prompts": 32, "group": 8, "prompt": 64, "new": 256, "steps": {"sft": 6, "lora": 6, "grpo": 2}}
SMALL = {"rows": 2, "length": 64, "prompts": 2, "group": 4, "prompt": 8, "new": 8, "steps": {"sft": 2, "lora": 2, "grpo": 2}}
TINY = {
    **shapes.MODELS["qwen3-0.6b"], "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
}  # fmt: skip


def rows(kind, size, vocabulary):
    """The rows of all steps. Both sides add an end token to a row of `sft`."""
    rng = numpy.random.default_rng(shapes.SEED)
    steps = size["steps"][kind] + WARM_UP[kind]
    if kind == "grpo":
        return [{"prompt": text(rng, size["prompt"], vocabulary)} for _ in range(size["prompts"] * steps)]
    return [{"text": text(rng, size["length"] - 1, vocabulary)} for _ in range(size["rows"] * steps)]


def run(command, limit, env=None):
    """Runs `command`. Returns why it failed, or nothing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, env=env, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"stopped at its limit of {limit:.0f} s"}
    return None if done.returncode == 0 else {"failed": done.stderr[-2000:]}


def of_gradus(gradus, device, limit, kind, size, model, data, folder):
    """The times at which steps of gradus end, from the lines of `metrics.jsonl`, and the logged steps."""
    out = folder / "run"
    shutil.rmtree(out, ignore_errors=True)
    method = "grpo" if kind == "grpo" else "sft"
    command = [gradus, method, "--model", model, "--data", data, "--output-dir", out, "--no-shuffle", "--device", device]
    command += ["--max-steps", size["steps"][kind] + WARM_UP[kind], "--eval-fraction", 0, "--eval-steps", -1, "--save-steps", 0]
    if device != "gpu:software":
        command += ["--compute", "bf16", "--micro-batch-tokens", 16384]
    if kind == "grpo":
        command += ["--batch-size", size["prompts"], "--group-size", size["group"], "--max-new-tokens", size["new"]]
        command += ["--kl-coefficient", 0, "--reward-rule-regex", RULE]
    else:
        command += ["--batch-size", size["rows"], "--max-length", size["length"]]
    if kind == "lora":
        command += ["--lora-rank", RANK, "--lora-targets", "all-linear"]
    watch = LineWatch(out / "metrics.jsonl")
    watch.start()
    failed = run([str(word) for word in command], limit)
    watch.over = True
    watch.join()
    watch.look()
    if failed:
        return failed
    logged = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return {"ends": watch.stamps, "logged": logged}


def of_trl(kind, size, model, data, folder, on_cpu):
    """The same of TRL, in this process."""
    import re

    from datasets import load_dataset
    from transformers import TrainerCallback

    rule, ends = re.compile(RULE), []

    class Stamps(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            ends.append(time.monotonic())

    def reward(completions, **_):
        return [1.0 if rule.search(completion) else 0.0 for completion in completions]

    common = {
        "output_dir": str(folder / "trl"), "max_steps": size["steps"][kind] + WARM_UP[kind], "bf16": True, "gradient_checkpointing": False,
        "report_to": "none", "save_strategy": "no", "disable_tqdm": True, "logging_steps": 1, "use_cpu": on_cpu,
        "model_init_kwargs": {"dtype": "float32"}, "optim": "adamw_torch" if on_cpu else "adamw_torch_fused",
    }  # fmt: skip
    loaded = load_dataset("json", data_files=str(data), split="train", cache_dir=str(folder / "cache"))
    if kind == "grpo":
        from trl import GRPOConfig, GRPOTrainer

        # All completions of a step are sampled together; 32 of them fit into a pass with their logits.
        passes = max(1, size["prompts"] * size["group"] // 32)
        args = GRPOConfig(
            **common, per_device_train_batch_size=size["prompts"] * size["group"] // passes, gradient_accumulation_steps=passes,
            num_generations=size["group"], max_completion_length=size["new"], beta=0.0, shuffle_dataset=False,
        )  # fmt: skip
        trainer = GRPOTrainer(model=str(model), reward_funcs=reward, args=args, train_dataset=loaded)
    else:
        from trl import SFTConfig, SFTTrainer

        adapter = None
        if kind == "lora":
            from peft import LoraConfig

            adapter = LoraConfig(r=RANK, target_modules="all-linear", task_type="CAUSAL_LM")
        args = SFTConfig(
            **common, per_device_train_batch_size=size["rows"], max_length=size["length"], train_sampling_strategy="sequential"
        )
        trainer = SFTTrainer(model=str(model), args=args, train_dataset=loaded, peft_config=adapter)
    trainer.add_callback(Stamps())
    trainer.train()
    return {"ends": ends, "logged": trainer.state.log_history}


def summary(kind, size, side, found):
    """One line of the output. The first logged values show whether both sides did the same work."""
    if "ends" not in found:
        return {"work": kind, "side": side, **found}
    ends, logged = found["ends"], found["logged"]
    steps = [after - before for before, after in zip(ends[WARM_UP[kind] - 1 :], ends[WARM_UP[kind] :])]
    line = {"work": kind, "side": side, "step_s": [round(step, 4) for step in steps]}
    line |= {key: logged[0][key] for key in ("loss", "num_tokens", "completions/mean_length") if key in logged[0]}
    if steps:
        middle = statistics.median(steps)
        line["median_s"] = round(middle, 4)
        if kind != "grpo":
            line["tokens_per_s"] = round(size["rows"] * size["length"] / middle)
    return line


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gradus", type=pathlib.Path, help="the binary")
    parser.add_argument("--device", default="gpu", help="gpu, cuda or gpu:software [gpu]")
    parser.add_argument("--small", action="store_true", help="a rehearsal with tiny sizes")
    parser.add_argument("--only", default="sft,lora,grpo", help="kinds of steps, separated by commas [sft,lora,grpo]")
    parser.add_argument("--limit", type=float, default=120, help="time limit for one kind on one side, in seconds [120]")
    parser.add_argument("--trl", nargs=4, metavar=("KIND", "MODEL", "DATA", "OUT"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    size = SMALL if args.small else LARGE
    with tempfile.TemporaryDirectory(prefix="gradus-beside-") as name:
        folder = pathlib.Path(name)
        if args.trl:
            kind, model, data, out = args.trl
            found = of_trl(kind, size, pathlib.Path(model), pathlib.Path(data), folder, args.small)
            pathlib.Path(out).write_text(json.dumps(found))
            return
        shape = TINY if args.small else shapes.MODELS["qwen3-0.6b"]
        model, data, out = folder / "model", folder / "rows.jsonl", folder / "trl.json"
        shapes.write_model(model, shape)
        missing = [name for name in ("trl", "peft", "datasets") if importlib.util.find_spec(name) is None]
        for kind in args.only.split(","):
            data.write_text("".join(json.dumps(row) + "\n" for row in rows(kind, size, shape["vocab_size"])))
            with Peak() as peak:
                found = of_gradus(args.gradus.resolve(), args.device, args.limit, kind, size, model, data, folder)
            print(json.dumps({**summary(kind, size, "gradus", found), "peak_mib": peak.mib}), flush=True)
            if missing:
                print(json.dumps({"work": kind, "side": "trl", "left_out": f"not installed: {', '.join(missing)}"}), flush=True)
                continue
            itself = [sys.executable, __file__, "--trl", kind, model, data, out, *(["--small"] if args.small else [])]
            env = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
            with Peak() as peak:
                found = run(itself, args.limit, env) or json.loads(out.read_text())
            print(json.dumps({**summary(kind, size, "trl", found), "peak_mib": peak.mib}), flush=True)


if __name__ == "__main__":
    main()
