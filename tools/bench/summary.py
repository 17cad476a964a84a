"""Summary of the runs of a workload: the median over processes, and ratios between sides."""

import statistics

import workloads


def step_s(entry, side):
    """Seconds per step: the mean of a process's steps, the median over processes. None if nothing was measured."""
    means = [statistics.fmean(run["step_s"]) for run in (entry or {"runs": {}})["runs"].get(side, [])]
    return statistics.median(means) if means else None


def spread(results):
    """Relative difference between the slowest and the fastest process of a workload and side; the median over all."""
    spreads = []
    for entry in results["workloads"].values():
        for runs in entry["runs"].values():
            means = [statistics.fmean(run["step_s"]) for run in runs]
            if len(means) > 1 and min(means) > 0:
                spreads.append(max(means) / min(means) - 1)
    return statistics.median(spreads) if spreads else None


def peak_bytes(entry, side):
    peaks = [run["peak_bytes"] for run in (entry or {"runs": {}})["runs"].get(side, [])]
    return statistics.median(peaks) if peaks else None


def speedup(entry, other="trl"):
    """How many times faster gradus is."""
    mine, theirs = step_s(entry, "gradus"), step_s(entry, other)
    return theirs / mine if mine and theirs and mine > 0 else None


def memory_ratio(entry):
    mine, theirs = peak_bytes(entry, "gradus"), peak_bytes(entry, "trl")
    return mine / theirs if mine and theirs else None


def tokens(work):
    """Tokens per step: tokens of the rows (sft), or new tokens (grpo, generate); None for pairs."""
    if work["kind"] == "sft":
        return work["batch"] * (work["length"] + work.get("new_tokens", 0))
    if work["kind"] in ("grpo", "ppo", "generate"):
        return work["batch"] * work.get("group_size", 1) * work["new_tokens"]
    return None


def peak_gflops(results, precision):
    """Speed of gradus's own matrix product on this machine in GFLOP/s, if the build measures it."""
    return ((results.get("gradus_bench") or {}).get("machine") or {}).get(f"matrix_gflops_{precision}")


def peak_share(results, entry, peak):
    """Speed of SFT's matrix products as a share of the matrix peak."""
    mine = step_s(entry, "gradus")
    return workloads.train_flops(entry["work"]) / mine / 1e9 / peak if mine and peak else None


def agreement(results):
    """Comparison of the first step: the number of workloads with the same tokens, those without, and the difference of SFT's f32 losses.

    TRL divides the loss of whole rows by all tokens. gradus divides by the predicted tokens, which are one fewer per row.
    """
    same, differing, apart = 0, [], 0.0
    for name, entry in results["workloads"].items():
        runs = [entry["runs"].get(side) or [{}] for side in ("gradus", "trl")]
        firsts = [processes[0]["first"] for processes in runs if "first" in processes[0]]
        if len(firsts) < 2:
            continue
        if entry["work"]["group"] == "seq2seq":
            # A plain loop does not count tokens. All tokens of a target are predicted.
            apart = max(apart, abs(firsts[0]["loss"] - firsts[1]["loss"]) / firsts[1]["loss"])
            continue
        counts = [(first.get("num_tokens"), first.get("completions/mean_length")) for first in firsts]
        same += counts[0] == counts[1]
        differing += [name] if counts[0] != counts[1] else []
        if entry["work"]["kind"] == "sft" and entry["work"]["precision"] == "f32":
            length = entry["work"]["length"]
            theirs = firsts[1]["loss"] * length / (length - 1)
            apart = max(apart, abs(firsts[0]["loss"] - theirs) / theirs)
    return same, differing, apart


def foreign(results):
    """The largest CPU use of other processes during any run, in cores, and the number of runs in which it exceeded a tenth."""
    runs = [run for entry in results["workloads"].values() for runs in entry["runs"].values() for run in runs]
    shares = [run["foreign_cpu"] for run in runs]
    return max(shares, default=0.0), sum(share > 0.1 for share in shares), len(shares)
