"""Models with common shapes and random weights: a few steps of `sft`, `dpo`, `grpo` and `reward` with LoRA.

    python shapes.py --gradus target/release/gradus [--work FOLDER] [--models qwen3-0.6b,…] [--methods sft,…] [--steps N]

Prints a Markdown table: seconds per step (the median after the first), peak memory as counted by the kernel, and the forecast of
`gradus plan`. Needs only numpy. Weights are written in bf16, and rows are words of one token each.
"""

import argparse
import json
import pathlib
import shutil
import statistics
import subprocess

import numpy

import process
from make_inputs import text, tokenizer

SEED = 7
RANK = 16
BATCH, LENGTH, NEW_TOKENS, GROUP = 4, 256, 48, 4
KINDS = ["sliding_attention"] * 5 + ["full_attention"]

# From the models' cards.
MODELS = {
    "qwen2.5-0.5b": {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896,
        "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "hidden_act": "silu",
        "use_sliding_window": False,
    },
    "gemma-3-270m": {
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "vocab_size": 262144, "hidden_size": 640,
        "intermediate_size": 2048, "num_hidden_layers": 18, "num_attention_heads": 4, "num_key_value_heads": 1,
        "head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 512, "layer_types": KINDS * 3,
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "hidden_activation": "gelu_pytorch_tanh",
    },
    "qwen3-0.6b": {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024,
        "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
        "head_dim": 128, "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "hidden_act": "silu",
    },
}  # fmt: skip
METHODS = ("sft", "dpo", "grpo", "reward")


def tensors(shape):
    """Names and shapes of tensors, and the value of constant ones."""
    d, inner, family = shape["hidden_size"], shape["intermediate_size"], shape["model_type"]
    head = shape.get("head_dim", d // shape["num_attention_heads"])
    q, kv = (shape[key] * head for key in ("num_attention_heads", "num_key_value_heads"))
    gemma = family == "gemma3_text"
    one = 0.0 if gemma else 1.0  # Gemma's norms multiply with 1 + w
    yield "model.embed_tokens.weight", (shape["vocab_size"], d), None
    for layer in range(shape["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        for part, out, into in (("q", q, d), ("k", kv, d), ("v", kv, d), ("o", d, q)):
            yield f"{name}self_attn.{part}_proj.weight", (out, into), None
            if family == "qwen2" and part != "o":
                yield f"{name}self_attn.{part}_proj.bias", (out,), 0.0
        for part, out, into in (("gate", inner, d), ("up", inner, d), ("down", d, inner)):
            yield f"{name}mlp.{part}_proj.weight", (out, into), None
        if family != "qwen2":
            yield f"{name}self_attn.q_norm.weight", (head,), one
            yield f"{name}self_attn.k_norm.weight", (head,), one
        norms = ["input_layernorm", "post_attention_layernorm"]
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"] if gemma else []
        for norm in norms:
            yield f"{name}{norm}.weight", (d,), one
    yield "model.norm.weight", (d,), one


def write_model(folder, shape):
    folder.mkdir(parents=True)
    vocabulary, rng = shape["vocab_size"], numpy.random.default_rng(SEED)
    names = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<pad>", "unk_token": "w0"}
    ids = {"bos_token_id": vocabulary - 1, "eos_token_id": vocabulary - 1, "pad_token_id": vocabulary - 2}
    config = {**shape, **ids, "tie_word_embeddings": True, "dtype": "bfloat16", "initializer_range": 0.02}
    fast = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    for file, content in (("config", config), ("tokenizer", tokenizer(vocabulary)), ("tokenizer_config", fast)):
        (folder / f"{file}.json").write_text(json.dumps(content))
    header, offset = {}, 0
    for name, size, _ in tensors(shape):
        end = offset + 2 * int(numpy.prod(size))
        header[name] = {"dtype": "BF16", "shape": size, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for _, size, value in tensors(shape):
            draws = rng.standard_normal(size, numpy.float32) * 0.02 if value is None else numpy.full(size, value, "f4")
            out.write((draws.view("u4") >> 16).astype("<u2").tobytes())


def rows(method, steps, vocabulary):
    rng = numpy.random.default_rng(SEED)
    say = lambda words: text(rng, words, vocabulary)  # noqa: E731
    for _ in range(BATCH * steps):
        if method == "sft":
            yield {"text": say(LENGTH - 1)}
        elif method == "grpo":
            yield {"prompt": say(LENGTH // 4)}
        else:
            half = LENGTH // 2
            yield {"prompt": say(half), "chosen": " " + say(half - 1), "rejected": " " + say(half // 2)}


def measure(gradus, work, model, method, steps):
    """Seconds per step, peak bytes, forecast bytes."""
    data, out, file = work / f"{model}-{method}.jsonl", work / "run", work / "run.yml"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows(method, steps, MODELS[model]["vocab_size"])))
    config = {"model": str(work / model), "data": str(data), "method": {method: {}}}
    if method == "grpo":
        config["method"] = {"grpo": {"group_size": GROUP, "max_new_tokens": NEW_TOKENS}}
        config["reward"] = {"rule": {"regex": r"w\d*77\b"}}
    file.write_text(json.dumps(config))
    shutil.rmtree(out, ignore_errors=True)
    flags = ["--output-dir", out, "--lora-rank", RANK, "--batch-size", BATCH, "--max-steps", steps, "--no-shuffle"]
    flags += ["--threads", process.THREADS, "--eval-fraction", 0, "--eval-steps", -1, "--save-steps", 0]
    flags = [str(flag) for flag in flags]
    plan = subprocess.run([gradus, "plan", file, *flags, "--json", "--quiet"], capture_output=True, text=True)
    if plan.returncode != 0:
        raise process.Failed(plan.stderr)
    ran = process.run([gradus, "train", file, *flags], work / "log.txt", watched=out / "metrics.jsonl")
    shutil.rmtree(out, ignore_errors=True)
    stamps = ran["stamps"]
    gaps = [after - before for before, after in zip(stamps, stamps[1:])]
    return statistics.median(gaps), ran["peak_bytes"], json.loads(plan.stdout)["peak_bytes"], ran["foreign_cpu"]


def chosen(known):
    return lambda given: [name for name in given.split(",") if name in known or parser_error(name, known)]


def parser_error(name, known):
    raise argparse.ArgumentTypeError(f"`{name}` is not one of {', '.join(known)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gradus", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("/tmp/gradus-shapes"))
    parser.add_argument("--models", type=chosen(MODELS), default=list(MODELS))
    parser.add_argument("--methods", type=chosen(METHODS), default=list(METHODS))
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()
    print("| model | method | step | peak memory | forecast | peak / forecast | load of other processes |\n|---|---|---|---|---|---|---|")
    for model in options.models:
        folder = options.work / model
        if not (folder / "model.safetensors").exists():
            shutil.rmtree(folder, ignore_errors=True)
            write_model(folder, MODELS[model])
        for method in options.methods:
            step, peak, forecast, foreign = measure(options.gradus.resolve(), options.work, model, method, options.steps)
            sizes = f"{peak / 1e9:.2f} GB | {forecast / 1e9:.2f} GB | {peak / forecast:.2f}"
            print(f"| {model} | {method} | {step:.1f} s | {sizes} | {foreign:.1f} cores |", flush=True)


if __name__ == "__main__":
    main()
