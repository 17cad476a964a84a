"""The goals, and whether the results meet them."""

import summary
import workloads

TRAINING = {"sft": "SFT", "dpo": "DPO", "reward": "reward model", "grpo": "GRPO"}
SEQ2SEQ = {"sft": "fine-tuning step", "generate": "sampling", "ppo": "PPO iteration"}
SEQ2SEQ_GOALS = {"sft": 3, "generate": 5, "ppo": 6}
LEVEL = 0.95  # "level with": not slower than repeated runs differ


def at_least(what, value, goal, unit="×"):
    met = None if value is None else value >= goal
    shown = f"≥ {goal * 100:.0f} %" if unit == "%" else f"≥ {goal:g}{unit}"
    return {"what": what, "value": value, "goal": shown, "unit": unit, "met": met}


def at_most(what, value, goal, unit):
    met = None if value is None else value <= goal
    return {"what": what, "value": value, "goal": f"≤ {goal:g}{unit}", "unit": unit, "met": met}


def all_goals(results):
    entries = results["workloads"]

    def faster(name, other="trl"):
        return summary.speedup(entries.get(name), other)

    yield at_least("SFT, f32, against TRL", faster("sft_f32"), 3.5)
    yield at_least("SFT, bf16, against TRL", faster("sft_bf16"), 2)
    for precision in ("f32", "bf16"):
        entry, peak = entries.get(f"sft_{precision}"), summary.peak_gflops(results, precision)
        share = summary.peak_share(results, entry, peak) if entry else None
        yield at_least(f"SFT, {precision}, share of gradus's matrix peak", share, 0.7, "%")
    yield at_least("DPO, f32, against TRL", faster("dpo_f32"), 5)
    yield at_least("reward model, f32, against TRL", faster("reward_f32"), 5)
    yield at_least("GRPO, f32, end to end, against TRL", faster("grpo_f32"), 8)
    yield at_least("GRPO, bf16, end to end, against TRL", faster("grpo_bf16"), 5)
    for batch in (8, 64):
        for precision in ("f32", "bf16"):
            what = f"generation, batch {batch}, {precision}, against transformers"
            yield at_least(what, faster(f"generate_{batch}_{precision}"), 5)
    for batch, goal in ((1, LEVEL), (8, 1.3), (64, 1.3)):
        for precision in ("f32", "bf16"):
            what = f"generation, batch {batch}, {precision}, against llama.cpp"
            yield at_least(what, faster(f"generate_{batch}_{precision}", "llama"), goal)
    yield at_least("small model, SFT steps/s, against TRL", faster("small_sft"), 10)
    yield at_least("small model, GRPO steps/s, against TRL", faster("small_grpo"), 10)
    fixed = summary.step_s(entries.get("nano_sft"), "gradus")
    size, length = workloads.parameters(workloads.MODELS["nano"]), workloads.named("nano_sft")["length"]
    what = f"fixed cost of a step (a model of {size:,} parameters, {length} tokens)"
    yield at_most(what, fixed and fixed * 1000, 2, " ms")
    for work in (work for work in workloads.ALL if work["group"] == "seq2seq"):
        batch = f" of {work['batch']} sequences" if work["kind"] == "generate" else ""
        what = f"{SEQ2SEQ[work['kind']]}{batch}, {work['model']}, f32, against torch"
        yield at_least(what, faster(work["name"]), SEQ2SEQ_GOALS[work["kind"]])
        yield at_most(f"peak memory, {what}", summary.memory_ratio(entries.get(work["name"])), 0.6, "×")
    for kind in TRAINING:
        for precision in ("f32", "bf16"):
            ratio = summary.memory_ratio(entries.get(f"{kind}_{precision}"))
            yield at_most(f"peak memory, {TRAINING[kind]}, {precision}, against TRL", ratio, 0.6, "×")
