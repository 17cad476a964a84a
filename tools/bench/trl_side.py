"""One process of TRL or transformers: reads a workload, runs it, writes `{"settings": …, "step_s": …}`.

    python trl_side.py WORKLOAD.json --model DIR --rows FILE --out RESULT.json

The trainers are TRL's own. A step is the time between two calls of `on_step_end`; the first ones are warm-up.
All other settings are TRL's defaults. Gradient checkpointing is off unless the workload sets it,
which makes TRL faster.
"""

import argparse
import json
import pathlib
import re
import tempfile
import time

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from workloads import WARM_UP

torch.set_num_threads(2)
LOGGED = ("loss", "num_tokens", "completions/mean_length")
RULE = re.compile(r"w\d*77\b")


class Stamps(TrainerCallback):
    def __init__(self):
        self.times = []

    def on_step_end(self, args, state, control, **kwargs):
        self.times.append(time.monotonic())


def settings(work):
    """Arguments of all trainers."""
    return {
        "use_cpu": True, "bf16": work["precision"] == "bf16",
        "gradient_checkpointing": work.get("checkpointing", False),
        "per_device_train_batch_size": work["batch"], "gradient_accumulation_steps": 1, "max_steps": work["max_steps"],
        "report_to": "none", "save_strategy": "no", "disable_tqdm": True, "logging_steps": 1,
        "train_sampling_strategy": "sequential",
    }  # fmt: skip


def rule(completions, **_):
    return [1.0 if RULE.search(text) else 0.0 for text in completions]


def trainer(work, model, data, folder, chosen):
    common = {"output_dir": folder, **chosen}
    if work["kind"] == "sft":
        from trl import SFTConfig, SFTTrainer

        return SFTTrainer(model=model, args=SFTConfig(**common), train_dataset=data)
    if work["kind"] == "dpo":
        from trl import DPOConfig, DPOTrainer

        return DPOTrainer(model=model, args=DPOConfig(**common), train_dataset=data)
    if work["kind"] == "reward":
        from trl import RewardConfig, RewardTrainer

        return RewardTrainer(model=model, args=RewardConfig(**common), train_dataset=data)
    from trl import GRPOConfig, GRPOTrainer

    return GRPOTrainer(model=model, reward_funcs=rule, args=GRPOConfig(**common), train_dataset=data)


def train(work, model, rows):
    from datasets import load_dataset

    chosen = settings(work)
    if work["kind"] == "grpo":
        chosen.pop("train_sampling_strategy")
        chosen |= {
            "per_device_train_batch_size": work["batch"] * work["group_size"], "num_generations": work["group_size"],
            "max_completion_length": work["new_tokens"], "beta": work["beta"], "shuffle_dataset": False,
        }  # fmt: skip
    stamps = Stamps()
    with tempfile.TemporaryDirectory() as folder:
        data = load_dataset("json", data_files=rows, split="train", cache_dir=f"{folder}/cache")
        running = trainer(work, model, data, folder, chosen)
        running.add_callback(stamps)
        running.train()
    first = {key: running.state.log_history[0][key] for key in LOGGED if key in running.state.log_history[0]}
    step_s = [after - before for before, after in zip(stamps.times[WARM_UP - 1 :], stamps.times[WARM_UP:])]
    return {"settings": chosen, "step_s": step_s, "first": first}


def generate(work, model, rows):
    """Calls of `generate` on the whole batch, from ids to ids, after a warm-up call."""
    dtype = torch.bfloat16 if work["precision"] == "bf16" else torch.float32
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    network = AutoModelForCausalLM.from_pretrained(model, dtype=dtype).eval()
    prompts = [json.loads(line)["prompt"] for line in open(rows)]
    chosen = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "max_new_tokens": work["new_tokens"]}
    seconds = []
    for call in range(work["steps"] + 1):
        sampling = chosen if call else {**chosen, "max_new_tokens": 8}
        began = time.monotonic()
        batch = tokenizer(prompts, return_tensors="pt", padding=True)
        with torch.inference_mode():
            out = network.generate(**batch, **sampling)
        tokenizer.batch_decode(out)
        seconds.append(time.monotonic() - began)
        if out.shape != (work["batch"], work["length"] + sampling["max_new_tokens"]):
            raise SystemExit(f"generate returned the shape {tuple(out.shape)}, which is not the expected one")
    return {"settings": {"dtype": str(dtype), **chosen}, "step_s": seconds[1:]}


def matrix_peak(precision, size=2048, repetitions=12):
    """GFLOP/s of the best of several square products."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    left, right = torch.randn(size, size).to(dtype), torch.randn(size, size).to(dtype)
    best = float("inf")
    for _ in range(repetitions):
        began = time.monotonic()
        left @ right
        best = min(best, time.monotonic() - began)
    return 2 * size**3 / best / 1e9


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("work", help="a workload as JSON, or `peak`")
    parser.add_argument("--model")
    parser.add_argument("--rows")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    if arguments.work == "peak":
        answer = {precision: matrix_peak(precision) for precision in ("f32", "bf16")}
    else:
        work = json.loads(arguments.work)
        answer = (generate if work["kind"] == "generate" else train)(work, arguments.model, arguments.rows)
    arguments.out.write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
