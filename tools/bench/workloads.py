"""The measured models, workloads and sizes. All other scripts read this table.

A workload is a dictionary:

    name       unique; also the key in the results
    group      `main`, `small`, or the growth curve it belongs to
    kind       sft, dpo, reward, grpo, ppo or generate
    model      a key of MODELS
    precision  f32 or bf16
    batch      rows, pairs or prompts per step; for `generate`, parallel sequences
    length     tokens per row (sft), of the longest answer with its prompt (dpo, reward), of a prompt (grpo, generate)
    steps      measured steps of one process, after WARM_UP steps (generate: calls)
    group_size, new_tokens, beta   if the kind has them
    checkpointing   whether TRL runs with gradient checkpointing, its default; off if missing
"""


def gpt2(layers, wide, heads, vocabulary=50257, positions=1024):
    shape = {"n_layer": layers, "n_embd": wide, "n_head": heads}
    return {**shape, "vocab_size": vocabulary, "n_positions": positions}


def t5(layers, wide, heads, feed_forward):
    shape = {"num_layers": layers, "d_model": wide, "num_heads": heads, "d_kv": 64, "d_ff": feed_forward}
    return {**shape, "vocab_size": 32128}


MODELS = {
    "124M": gpt2(12, 768, 12),
    "62M": gpt2(8, 576, 9),
    "30M": gpt2(6, 384, 6),
    "8M": gpt2(4, 256, 4, vocabulary=16000),
    "4M": gpt2(4, 256, 4, vocabulary=2000, positions=256),
    "nano": gpt2(1, 32, 2, vocabulary=256, positions=64),
    "t5-small": t5(6, 512, 8, 2048),
    "t5-base": t5(12, 768, 12, 3072),
}


def parameters(shape):
    """Number of parameters of a model; the head is the embedding table."""
    if "d_model" in shape:
        wide, inner = shape["d_model"], shape["num_heads"] * shape["d_kv"]
        attention, fed = 4 * wide * inner, 2 * wide * shape["d_ff"]
        blocks = shape["num_layers"] * (3 * attention + 2 * fed + 5 * wide)
        return shape["vocab_size"] * wide + blocks + 2 * wide + 2 * 32 * shape["num_heads"]
    wide = shape["n_embd"]
    block = 12 * wide * wide + 13 * wide
    return (shape["vocab_size"] + shape["n_positions"] + 2) * wide + shape["n_layer"] * block


def train_flops(work):
    """Useful operations of one SFT step, counted as in `gradus bench`: six per weight and token.

    Weights of the blocks count for every token, and the head for every predicted token. Attention's own products do not count.
    """
    shape, rows, length = MODELS[work["model"]], work["batch"], work["length"]
    blocks, head = shape["n_layer"] * 12 * shape["n_embd"] ** 2, shape["vocab_size"] * shape["n_embd"]
    return 6 * rows * (blocks * length + head * (length - 1))


# Steps that are not counted, because the first steps allocate their memory page by page.
WARM_UP = 2


def workload(name, group, kind, model="124M", precision="f32", batch=4, length=256, steps=2, **more):
    work = {"name": name, "group": group, "kind": kind, "model": model, "precision": precision, "batch": batch}
    work |= {"length": length, "steps": steps, **more}
    work["max_steps"] = 1 if kind == "generate" else steps + WARM_UP
    return work


def main_table():
    for precision in ("f32", "bf16"):
        yield workload(f"sft_{precision}", "main", "sft", precision=precision)
        yield workload(f"dpo_{precision}", "main", "dpo", precision=precision)
        yield workload(f"reward_{precision}", "main", "reward", precision=precision)
        grpo = {"batch": 2, "length": 64, "group_size": 8, "new_tokens": 64, "beta": 0.0}
        yield workload(f"grpo_{precision}", "main", "grpo", precision=precision, **grpo)
        for batch, calls in ((1, 3), (8, 2), (64, 1)):
            sizes = {"batch": batch, "length": 64, "steps": calls, "new_tokens": 64}
            yield workload(f"generate_{batch}_{precision}", "generate", "generate", precision=precision, **sizes)


    yield workload("sft_f32_checkpointing", "main", "sft", checkpointing=True)


def small_table():
    yield workload("small_sft", "small", "sft", model="4M", batch=8, length=64, steps=40)
    rollouts = {"group_size": 8, "new_tokens": 32, "beta": 0.0}
    yield workload("small_grpo", "small", "grpo", model="4M", batch=2, length=16, steps=12, **rollouts)
    yield workload("nano_sft", "small", "sft", model="nano", batch=1, length=8, steps=200)


def growth_table():
    for batch in (1, 2, 4, 8):
        yield workload(f"batch_{batch}", "batch", "sft", model="30M", batch=batch, length=128)
    for length in (64, 128, 256, 512, 1024):
        yield workload(f"length_{length}", "length", "sft", model="30M", batch=1024 // length, length=length)
    for size in (4, 8, 16, 32):
        sizes = {"batch": 1, "length": 64, "group_size": size, "new_tokens": 32, "beta": 0.0}
        yield workload(f"group_{size}", "group_size", "grpo", model="30M", **sizes)
    for model in ("4M", "8M", "30M", "62M"):
        yield workload(f"model_{model}", "model", "sft", model=model, batch=4, length=256)


def seq2seq_table():
    """Encoder–decoder models: rows are a source of `length` tokens and a target of `new_tokens`."""
    for model, batch in (("t5-small", 8), ("t5-base", 4)):
        sizes = {"model": model, "length": 128, "new_tokens": 64}
        yield workload(f"seq2seq_sft_{model}", "seq2seq", "sft", batch=batch, **sizes)
        for count in (8, 64):
            calls = {"steps": 2 if count == 8 else 1, "batch": count}
            yield workload(f"seq2seq_generate_{count}_{model}", "seq2seq", "generate", **sizes, **calls)
        yield workload(f"seq2seq_ppo_{model}", "seq2seq", "ppo", **{**sizes, "length": 64, "new_tokens": 32}, batch=8)


def extra_table():
    """Workloads that run only if they are named."""
    sizes = {"batch": 2, "length": 64, "group_size": 8, "new_tokens": 64, "beta": 0.04}
    yield workload("grpo_kl_f32", "extra", "grpo", **sizes)
    tiny = {"model": "4M", "batch": 2, "length": 32}
    for kind in ("sft", "dpo", "reward"):
        yield workload(f"tiny_{kind}", "tiny", kind, **tiny)
    rollouts = {"group_size": 4, "new_tokens": 8}
    yield workload("tiny_grpo", "tiny", "grpo", **tiny, **rollouts, beta=0.0)
    yield workload("tiny_generate", "tiny", "generate", **tiny, new_tokens=8)


ALL = [*main_table(), *small_table(), *seq2seq_table(), *growth_table(), *extra_table()]
DEFAULT_LEAVES_OUT = ("extra", "tiny")


def names(argument):
    return [name for name in argument.split(",") if name]


def chosen(only):
    """The workloads whose name, group, kind or precision is in `only`. Without `only`, all except the extra ones."""
    if not only:
        return [work for work in ALL if work["group"] not in DEFAULT_LEAVES_OUT]
    unknown = [name for name in only if not any(matches(work, name) for work in ALL)]
    if unknown:
        known = sorted({work[key] for work in ALL for key in ("name", "group", "kind")})
        raise SystemExit(f"no workload, group or kind `{unknown[0]}`; choose from: {', '.join(known)}")
    return [work for work in ALL if any(matches(work, name) for name in only)]


def named(name):
    return next(work for work in ALL if work["name"] == name)


def matches(work, name):
    if name == "growth":
        return work["group"] in ("batch", "length", "group_size", "model")
    if name == work["kind"]:
        return work["group"] in ("main", "generate")
    return name in (work["name"], work["group"])


def rows_file(folder, work):
    return folder / "rows" / f"{work['name']}.jsonl"
