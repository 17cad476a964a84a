"""The sections of `docs/benchmarks.md`, each a function from results to Markdown."""

import summary
import workloads

PRECISIONS = ("f32", "bf16")
TITLES = {"sft": "SFT", "dpo": "DPO", "reward": "reward model", "grpo": "GRPO", "ppo": "PPO"}
GIB = 2**30


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def number(value, digits=3):
    """Three significant digits, without an exponent."""
    if value is None:
        return "–"
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def times(value):
    return "–" if value is None else f"{number(value)}×"


def seconds(value):
    if value is None:
        return "–"
    return f"{number(value)} s" if value >= 1 else f"{number(value * 1000)} ms"


def gib(value):
    return "–" if value is None else f"{value / GIB:.2f} GiB"


def opening(results):
    machine, versions = results["machine"], results["versions"]
    caches = ", ".join(f"{level} {size}" for level, size in machine["caches"].items())
    cpu = f"{machine['cpu']} (family {machine['family']}, model {machine['model']}; caches {caches})"
    peak = results.get("torch_peak_gflops", {})
    rows = [
        ["processor", cpu],
        ["cores used", f"{results['threads']} of {machine['cores']}"],
        ["instruction sets", ", ".join(machine["flags"])],
        ["memory", f"{machine['memory_bytes'] / GIB:.1f} GiB"],
        ["system", f"{machine['system']}, {machine['architecture']}"],
        ["versions", ", ".join(f"{name} {version}" for name, version in versions.items())],
        ["matrix product 2048³, torch", ", ".join(f"{p} {number(peak.get(p))} GFLOP/s" for p in PRECISIONS)],
    ]
    mine = {p: summary.peak_gflops(results, p) for p in PRECISIONS}
    if any(mine.values()):
        rows.append(["matrix product, gradus", ", ".join(f"{p} {number(mine[p])} GFLOP/s" for p in PRECISIONS)])
    read = ((results.get("gradus_bench") or {}).get("machine") or {}).get("read_gb_s")
    if read:
        rows.append(["memory read", f"{number(read)} GB/s"])
    rows.append(["measured on", results["date"]])
    text = "This page compares gradus with TRL, `transformers` and llama.cpp. All use the same weights, rows and cores. "
    text += "Their processes alternate.\n"
    text += "[`tools/bench`](../tools/bench/README.md) generates the page from its measurements. Do not edit it by hand."
    return f"# Benchmarks\n\n{text}\n\n{table(['', ''], rows)}"


def measured(value, unit):
    if value is None:
        return "–"
    return f"{value * 100:.0f} %" if unit == "%" else number(value) + unit


def goals(found):
    words = {True: "met", False: "**not met**", None: "not measured"}
    rows = []
    for goal in found:
        rows.append([goal["what"], measured(goal["value"], goal["unit"]), goal["goal"], words[goal["met"]]])
    return "## Goals\n\n" + table(["measure", "value", "goal", "result"], rows)


def counted(count, what):
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def size(work):
    """The size of a step in words."""
    group, new = work.get("group_size"), work.get("new_tokens")
    if work["group"] == "seq2seq":
        each = f"{work['length']} source tokens and {new} target tokens"
        return f"{counted(work['batch'], 'row')} of {each}" + (", a separate critic" if work["kind"] == "ppo" else "")
    note = ", TRL with gradient checkpointing" if work.get("checkpointing") else ""
    return {
        "sft": f"{counted(work['batch'], 'row')} of {work['length']} tokens{note}",
        "dpo": f"{counted(work['batch'], 'pair')} of up to {work['length']} tokens, reference in the step",
        "reward": f"{counted(work['batch'], 'pair')} of up to {work['length']} tokens",
        "grpo": f"{counted(work['batch'], 'prompt')} of {work['length']} tokens × {group}, {new} new tokens",
        "generate": f"{work['batch']} × ({work['length']} + {new}) tokens",
    }[work["kind"]]


def of_group(results, *groups):
    """The entries of some groups, in the order of the workloads."""
    known = (results["workloads"].get(work["name"]) for work in workloads.ALL)
    return [entry for entry in known if entry and entry["work"]["group"] in groups]


def step_row(entry):
    work = entry["work"]
    mine, theirs = (summary.step_s(entry, side) for side in ("gradus", "trl"))
    count = summary.tokens(work)
    rate = number(count / mine) if count and mine else "–"
    return [seconds(mine), seconds(theirs), times(summary.speedup(entry)), rate]


def steps(results):
    entries = of_group(results, "main")
    if not entries:
        return None
    entries.sort(key=lambda entry: list(TITLES).index(entry["work"]["kind"]))
    rows = []
    for entry in entries:
        work = entry["work"]
        rows.append([TITLES[work["kind"]], size(work), work["precision"], *step_row(entry)])
    shape = workloads.parameters(workloads.MODELS["124M"])
    text = f"The table shows the time per step on GPT-2's shape ({shape / 1e6:.0f} million parameters, 50,257 tokens) with "
    text += "random weights.\nThe token rate counts the tokens of the rows. For GRPO, it counts the sampled tokens."
    head = ["method", "step", "precision", "gradus", "TRL", "speedup", "gradus, tokens/s"]
    return f"## Training steps\n\n{text}\n\n{table(head, rows)}{shares(results)}{failures(entries)}"


def shares(results):
    """The share of the matrix peak that SFT's products reach."""
    parts = []
    for precision in PRECISIONS:
        entry = results["workloads"].get(f"sft_{precision}")
        if not entry:
            continue
        flops = workloads.train_flops(entry["work"])
        mine = summary.step_s(entry, "gradus")
        peak = summary.peak_gflops(results, precision)
        if mine and peak:
            share = f"{flops / mine / 1e7 / peak:.0f} %"
            parts.append(f"{number(flops / mine / 1e9)} GFLOP/s in {precision} ({share} of the matrix peak)")
        elif mine:
            parts.append(f"{number(flops / mine / 1e9)} GFLOP/s in {precision}")
    if not parts:
        return ""
    text = f"\n\nThe matrix products of SFT run at {' and '.join(parts)}."
    if any("matrix peak" in part for part in parts):
        text += " The matrix peak is the speed of gradus for a 2048³ product, as in the first table."
    return text


def failures(entries):
    lines = []
    for entry in entries:
        for side, why in entry["failed"].items():
            last = why.strip().splitlines()[-1] if why.strip() else "no message"
            lines.append(f"- {entry['work']['name']}, {side}: not available ({last})")
    return "\n\n" + "\n".join(lines) if lines else ""


def generation(results):
    entries = of_group(results, "generate")
    if not entries:
        return None
    entries.sort(key=lambda entry: (entry["work"]["precision"] != "f32", entry["work"]["batch"]))
    rows = []
    for entry in entries:
        work, count = entry["work"], summary.tokens(entry["work"])
        spent = [summary.step_s(entry, side) for side in ("gradus", "trl", "llama")]
        rates = [number(count / s) if s and s > 0 else "–" for s in spent]
        ratios = [times(summary.speedup(entry, side)) for side in ("trl", "llama")]
        rows.append([work["batch"], work["precision"], *rates, *ratios])
    head = ["sequences", "precision", "gradus", "transformers", "llama.cpp", "speedup over transformers", "over llama.cpp"]
    sizes = {f"{entry['work']['length']} prompt tokens and {entry['work']['new_tokens']} new tokens" for entry in entries}
    text = "The table shows new tokens per second, end to end. The time includes the prompts. "
    text += f"Each sequence has {' or '.join(sorted(sizes))}. The temperature is 1."
    return f"## Generation\n\n{text}\n\n{table(head, rows)}{quantized(entries)}{failures(entries)}"


def quantized(entries):
    """Both sides with 8-bit weights, if they were measured."""
    rows = []
    for entry in entries:
        count, spent = summary.tokens(entry["work"]), [summary.step_s(entry, s) for s in ("gradus_int8", "llama_q8_0")]
        if all(spent):
            mine, theirs = spent
            rows.append([entry["work"]["batch"], number(count / mine), number(count / theirs), times(theirs / mine)])
    if not rows:
        return ""
    head = ["sequences", "gradus, INT8", "llama.cpp, q8_0", "speedup"]
    text = "The next table shows the same with 8-bit weights. Both sides pack the weights before the measurement starts."
    return f"\n\n{text}\n\n{table(head, rows)}"


def small(results):
    entries = of_group(results, "small")
    if not entries:
        return None
    rows = []
    for entry in entries:
        work = entry["work"]
        count = workloads.parameters(workloads.MODELS[work["model"]])
        rows.append([TITLES[work["kind"]], f"{count:,}", size(work), *step_row(entry)[:3]])
    head = ["method", "parameters", "step", "gradus", "TRL", "speedup"]
    text = "The table shows the time of steps with little arithmetic, in f32."
    return f"## Small models\n\n{text}\n\n{table(head, rows)}{failures(entries)}"


def seq2seq(results):
    entries = of_group(results, "seq2seq")
    if not entries:
        return None
    rows = []
    for entry in entries:
        work = entry["work"]
        peaks = [summary.peak_bytes(entry, side) for side in ("gradus", "trl")]
        title = TITLES.get(work["kind"], "generation")
        memory = [*map(gib, peaks), times(summary.memory_ratio(entry))]
        rows.append([title, work["model"], size(work), *step_row(entry)[:3], *memory])
    counts = " and ".join(
        f"{model} ({workloads.parameters(workloads.MODELS[model]) / 1e6:.0f} million parameters)"
        for model in dict.fromkeys(entry["work"]["model"] for entry in entries)
    )
    text = f"The models are T5 v1.0 in f32, with random weights and the sizes of {counts}.\nThe other side is a loop over "
    text += "`transformers` and torch ([`seq2seq_side.py`](../tools/bench/seq2seq_side.py)), because no maintained trainer "
    text += "has PPO for such models."
    head = ["method", "model", "step", "gradus", "torch", "speedup", "gradus, peak", "torch, peak", "ratio"]
    return f"## Encoder–decoder models\n\n{text}\n\n{table(head, rows)}{failures(entries)}"


def memory(results):
    rows = []
    for entry in of_group(results, "main", "generate", "small"):
        work = entry["work"]
        peaks = [summary.peak_bytes(entry, side) for side in ("gradus", "trl")]
        ratio = summary.memory_ratio(entry)
        title = TITLES.get(work["kind"], "generation")
        rows.append([title, work["model"], size(work), work["precision"], *map(gib, peaks), times(ratio)])
    if not rows:
        return None
    head = ["method", "model", "step", "precision", "gradus", "TRL or transformers", "ratio"]
    text = "The table shows the peak resident memory of the whole process, including loading and saving. "
    text += "The operating system measures it."
    return f"## Peak memory\n\n{text}\n\n{table(head, rows)}"


CURVES = {
    "batch": ("Batch", "rows", lambda work: work["batch"]),
    "length": ("Length, with the same number of tokens per step", "tokens per row", lambda work: work["length"]),
    "group_size": ("Group size", "completions per prompt", lambda work: work["group_size"]),
    "model": ("Model size", "parameters", lambda work: f"{workloads.parameters(workloads.MODELS[work['model']]):,}"),
}


def growth(results):
    parts = []
    for group, (title, unit, key) in CURVES.items():
        entries = of_group(results, group)
        if not entries:
            continue
        rows = []
        for entry in entries:
            peaks = [gib(summary.peak_bytes(entry, side)) for side in ("gradus", "trl")]
            rows.append([key(entry["work"]), *step_row(entry), *peaks])
        work = entries[0]["work"]
        count = workloads.parameters(workloads.MODELS[work["model"]])
        model = "" if group == "model" else f" of a model with {count / 1e6:.0f} million parameters"
        text = f"The table shows {TITLES[work['kind']]} steps{model}, in f32. A step of the first line has {size(work)}."
        head = [unit, "gradus", "TRL", "speedup", "gradus, tokens/s", "gradus, peak", "TRL, peak"]
        parts.append(f"### {title}\n\n{text}\n\n{table(head, rows)}{failures(entries)}")
    return "## Scaling\n\n" + "\n\n".join(parts) if parts else None


# Heads of columns that differ from the keys of `hot_spots.json`.
RENAMED = {"LM head and drawing": "LM head and sampling"}


def hot_spots(results, spots):
    """Shares of all threads' time by purpose of the code, and the speedup if only the arithmetic took time."""
    found = [(entry, spots[entry["work"]["name"]]) for entry in of_group(results, "main", "generate", "small")
             if entry["work"]["name"] in spots]  # fmt: skip
    if not found:
        return None
    kinds = list(found[0][1]["shares"])
    rows = []
    for entry, spot in found:
        work, faster = entry["work"], summary.speedup(entry)
        arithmetic = spot["shares"]["product arithmetic"]
        title = TITLES.get(work["kind"], "generation")
        shares = [f"{spot['shares'][kind] * 100:.0f} %" for kind in kinds] + [f"{spot['idle'] * 100:.0f} %"]
        bound = times(faster / arithmetic) if faster else "–"
        rows.append([title, work["model"], size(work), work["precision"], *shares, times(faster), bound])
    names = [RENAMED.get(kind, kind) for kind in kinds]
    head = ["method", "model", "step", "precision", *names, "idle", "speedup over TRL or transformers", "upper limit"]
    text = (
        "The table shows shares of the time of both threads, sampled by `perf` over steady steps "
        "(`tools/bench/hot_spots.py`). Product arithmetic is the inner loop of matrix products. In generation, it "
        "includes waiting for weights from memory. The last column is the upper limit of the speedup with the same "
        "loop: it assumes that all other work takes no time."
    )
    return f"## Where the time goes\n\n{text}{units(results)}\n\n{table(head, rows)}"


def units(results):
    """The speed of the inner loop as a share of the maximum of the processor's units."""
    machine = (results.get("gradus_bench") or {}).get("machine") or {}
    parts = []
    for precision in PRECISIONS:
        peak, limit = summary.peak_gflops(results, precision), machine.get(f"arithmetic_gflops_{precision}")
        if peak and limit:
            parts.append(
                f" A 2048³ product in {precision} reaches {number(peak)} GFLOP/s. This is {peak / limit * 100:.0f} % of the "
                f"{number(limit)} GFLOP/s that the processor's units reach with all operands in cache."
            )
    return "".join(parts)


def agreement(results):
    same, differing, apart = summary.agreement(results)
    if not same and not differing:
        return []
    text = f"- The first step of both sides had the same number of tokens in {same} of {same + len(differing)} workloads"
    text += f" (not in {', '.join(differing)})" if differing else ""
    return [
        f"{text}. The relative difference of this step's SFT losses in f32 is at most {apart:.0e}, after TRL's losses "
        "are multiplied by n / (n − 1). For whole rows, TRL divides by all n tokens of a row, and gradus by the n − 1 "
        "predicted tokens."
    ]


def method(results):
    most, noisy, runs = summary.foreign(results)
    spread = summary.spread(results)
    between = []
    if spread is not None:
        between = [f"- The slower of two equal processes took {spread * 100:.0f} % longer (median)."]
    entry = results["workloads"].get("sft_f32") or next(iter(results["workloads"].values()), None)
    commands = [run["command"] for run in (entry or {"runs": {}})["runs"].get("gradus", [])[:1]]
    given = [run["settings"] for run in (entry or {"runs": {}})["runs"].get("trl", [])[:1]]
    lines = [
        "- Processes of gradus and of the other side alternate. A figure is the median over processes of the mean step.",
        "- A training step is the time between the ends of two consecutive steps. The first two steps of a process do not "
        "count.",
        "- Generation is the time of a call in a running process, after one warm-up call: `generate` in transformers, "
        "`gradus bench`, and batched decoding in llama.cpp. It includes sampling. All three prepare the weights when they "
        "load them.",
        "- TRL's trainers run with their defaults. For bf16, training uses autocast, and generation uses "
        "bf16 weights. Gradient checkpointing is a default of TRL, but it is off unless the table mentions it. This makes "
        "TRL faster. Neither side uses dropout.",
        "- Both sides compute DPO's reference within the step. GRPO's reward is a regular expression. GRPO has no KL term "
        "and no reference.",
        *between,
        *agreement(results),
        f"- Other processes used at most {number(most)} cores during a run. They used more than a tenth of a core in "
        f"{noisy} of {runs} runs.",
    ]
    if commands:
        lines.append(f"- The command of gradus for `{entry['work']['name']}`: `{commands[0]}`")
    if given:
        settings = ", ".join(f"{key}={value}" for key, value in given[0].items())
        lines.append(f"- The settings of TRL for `{entry['work']['name']}`: `{settings}`")
    return "## How it was measured\n\n" + "\n".join(lines)
