"""PPO on completions of different lengths, with the arithmetic of verl 0.9.1 on padded tensors.

TRL 1.12 counts padding if completions differ in length (see `ppo.py`), so it cannot be the reference for this case. verl counts
only response tokens. All code between the models' outputs and the optimizer is verl's own, called and not
copied: `kl_penalty`, `masked_whiten`, `compute_gae_advantage_return`, `compute_policy_loss`, `compute_value_loss`,
`entropy_from_logits`, `agg_loss`. The models are transformers' on right-padded rows with an attention mask; gradients are autograd's, steps torch's AdamW and
`clip_grad_norm_`, all in float64. Unlike gradus, this script does not pack, share or reduce by weights, and it was not written from gradus' code.

verl leaves some decisions to its user. As in TRL, this script whitens rewards and keeps their mean before it computes
advantages, and a completion without end loses one point. The limit of the dual clip for negative advantages is never reached.

  pip install --no-deps --target /tmp/verl verl==0.9.1 omegaconf==2.4.0 antlr4-python3-runtime==4.9.3
  VERL=/tmp/verl python tools/parity/ppo_ragged.py

verl imports libraries for clusters, which its arithmetic does not use. Empty modules replace them. Run after
`trajectories.py`, whose models it starts from.
"""

import importlib.abc
import importlib.machinery
import os
import sys
from unittest.mock import MagicMock

import common  # noqa: F401  (environment first)

import replay
from common import arguments, meta, write_json

import torch


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Replaces modules that verl imports and its arithmetic does not use."""

    names = {"ray", "tensordict", "hydra", "codetiming", "cachetools", "pyvers", "torchdata", "orjson"}

    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = MagicMock(name=spec.name)
        module.__spec__, module.__path__, module.__version__ = spec, [], "99.0"
        return module

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Absent())
sys.path.insert(1, os.environ["VERL"])

from verl.trainer.ppo import core_algos as verl  # noqa: E402
from verl.utils import torch_functional as functional  # noqa: E402

SEED, ITERATIONS, BATCH, EOS, PAD = 29, 4, 8, 2, 0
OPTIONS = {"num_ppo_epochs": 3, "num_mini_batches": 2, "learning_rate": 1e-3, "temperature": 0.8, "kl_coef": 0.1,
           "kl_estimator": "k3", "cliprange": 0.15, "cliprange_value": 0.1, "vf_coef": 0.5, "gamma": 0.98, "lam": 0.9,
           "whiten_rewards": True, "missing_eos_penalty": 1.0, "max_grad_norm": 3.0}
LONGEST = 9
NEVER = 1e9  # verl's dual clip (Ye et al. 2020) bounds the ratio by this if the advantage is negative


def rollouts():
    """Two of each eight are cut off at the maximum length. The other six end after one to eight tokens."""
    generator = torch.Generator().manual_seed(SEED)
    pick = lambda low, high: int(torch.randint(low, high, (1,), generator=generator))  # noqa: E731
    rows = []
    for iteration in range(ITERATIONS):
        for member in range(BATCH):
            words = LONGEST if member in (2, 5) else pick(0, LONGEST - 1)
            answer = [pick(5, 320) for _ in range(words)] + ([] if words == LONGEST else [EOS])
            rows.append({"iteration": iteration, "prompt_ids": [pick(5, 320) for _ in range(pick(2, 10))],
                         "completion_ids": answer, "score": round(torch.randn(1, generator=generator).item(), 3)})
    return rows


class Padded:
    """Rows padded to the length of the longest, and their responses separately."""

    def __init__(self, rows):
        pad = lambda ids, width: ids + [PAD] * (width - len(ids))  # noqa: E731
        whole = [row["prompt_ids"] + row["completion_ids"] for row in rows]
        width = max(map(len, whole))
        self.inputs = {"input_ids": torch.tensor([pad(ids, width) for ids in whole]), "use_cache": False,
                       "attention_mask": torch.tensor([[1] * len(ids) + [0] * (width - len(ids)) for ids in whole])}
        self.responses = torch.tensor([pad(row["completion_ids"], LONGEST) for row in rows])
        lengths = torch.tensor([len(row["completion_ids"]) for row in rows])
        self.mask = (torch.arange(LONGEST)[None] < lengths[:, None]).double()
        starts = torch.tensor([len(row["prompt_ids"]) for row in rows])
        self.before = (starts[:, None] - 1 + torch.arange(LONGEST)[None]).clamp(max=width - 1)
        self.scores = torch.zeros_like(self.mask)
        for i, row in enumerate(rows):
            penalty = 0.0 if row["completion_ids"][-1] == EOS else OPTIONS["missing_eos_penalty"]
            self.scores[i, lengths[i] - 1] = row["score"] - penalty

    def states(self, outputs):
        """Outputs of a model before each token of the responses."""
        return outputs.gather(1, self.before[..., None].expand(-1, -1, outputs.shape[-1]))

    def logits(self, policy):
        return self.states(policy(**self.inputs).logits) / OPTIONS["temperature"]

    def logprobs(self, policy):
        return functional.logprobs_from_logits_naive(self.logits(policy), self.responses)

    def values(self, critic):
        hidden = getattr(critic, critic.base_model_prefix)(**self.inputs).last_hidden_state
        return self.states(critic.score(hidden))[..., 0] * self.mask


def prepare(batch, policy, reference, critic):
    o, mask = OPTIONS, batch.mask
    with torch.no_grad():
        old, values = batch.logprobs(policy), batch.values(critic)
        divergence = verl.kl_penalty(old, batch.logprobs(reference), o["kl_estimator"]) * mask
    rewards = batch.scores - o["kl_coef"] * divergence
    rewards = functional.masked_whiten(rewards, mask, shift_mean=False) * mask
    advantages, returns = verl.compute_gae_advantage_return(rewards, values, mask, o["gamma"], o["lam"])
    metrics = {"objective/kl": divergence.sum(1).mean(), "objective/scores": batch.scores.sum(1).mean(),
               "objective/non_score_reward": (-o["kl_coef"] * divergence).sum(1).mean()}
    return {"old": old, "values": values, "advantages": advantages, "returns": returns}, metrics


def ragged(tensor, mask):
    return [row[keep.bool()].tolist() for row, keep in zip(tensor, mask)]


def update(rows, fixed, members, policy, critic, optimizers):
    o, part = OPTIONS, Padded([rows[i] for i in members])
    old, values, advantages, returns = (fixed[key][members] for key in ("old", "values", "advantages", "returns"))
    policy_loss, clipped, _, _ = verl.compute_policy_loss(old, part.logprobs(policy), advantages, part.mask,
                                                          cliprange=o["cliprange"], clip_ratio_c=NEVER)
    value_loss, value_clipped = verl.compute_value_loss(part.values(critic), returns, values, part.mask, o["cliprange_value"])
    policy_loss.backward()
    (o["vf_coef"] * value_loss).backward()
    norms = [torch.nn.utils.clip_grad_norm_(model.parameters(), o["max_grad_norm"]) for model in (policy, critic)]
    with torch.no_grad():
        entropy = verl.agg_loss(functional.entropy_from_logits(part.logits(policy)), part.mask, "token-mean")
    step = {"loss": policy_loss + o["vf_coef"] * value_loss, "grad_norm_policy": norms[0], "grad_norm_value": norms[1],
            "tokens": int(part.mask.sum()),
            "metrics": {"loss/policy_avg": policy_loss, "loss/value_avg": value_loss, "policy/clipfrac_avg": clipped,
                        "val/clipfrac_avg": value_clipped, "policy/entropy_avg": entropy}}
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return common.plain(step)


def train(models, rows, dtype):
    policy, reference = (replay.load(models, "qwen3", dtype) for _ in range(2))
    critic = replay.load(models, "qwen3-reward", dtype)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=OPTIONS["learning_rate"], weight_decay=0.0) for m in (policy, critic)]
    schedules = [torch.optim.lr_scheduler.LambdaLR(x, lambda k: (ITERATIONS - k) / ITERATIONS) for x in optimizers]
    iterations, steps = [], []
    for iteration in range(ITERATIONS):
        batch = [row for row in rows if row["iteration"] == iteration]
        padded = Padded(batch)
        fixed, metrics = prepare(padded, policy, reference, critic)
        kept = {key: ragged(fixed[key], padded.mask) for key in fixed} if iteration < 2 else {}
        iterations.append(common.plain({"iteration": iteration, "metrics": metrics, **kept}))
        for _ in range(OPTIONS["num_ppo_epochs"]):
            for members in torch.arange(BATCH).chunk(OPTIONS["num_mini_batches"]):
                steps.append({"iteration": iteration, **update(batch, fixed, members, policy, critic, optimizers)})
        for schedule in schedules:
            schedule.step()
    return policy, critic, iterations, steps


def main():
    root = arguments("trajectories")
    out = root / "ppo_ragged"
    out.mkdir(exist_ok=True)
    rows = rollouts()
    replay.write_rows(out / "rollouts.jsonl", rows)
    models = common.FIXTURES / "trajectories/models"
    policy, critic, iterations, steps = train(models, rows, torch.float64)
    rounded = train(models, rows, torch.float32)[3]
    keys = ("loss", "grad_norm_policy", "grad_norm_value")
    drift = {key: max(abs(a[key] - b[key]) for a, b in zip(steps, rounded)) for key in keys}
    clipped = [max(step["metrics"][key] for step in steps) for key in ("policy/clipfrac_avg", "val/clipfrac_avg")]
    assert min(clipped) > 0, "expected that both losses are clipped at least once"
    assert max(step["grad_norm_policy"] for step in steps) > OPTIONS["max_grad_norm"], "expected a gradient that is clipped"
    print(drift, clipped)
    write_json(out / "run.json", {
        "meta": meta(SEED, verl="0.9.1"),
        "start_model": "qwen3", "reference_model": "qwen3", "value_model": "qwen3-reward",
        "hyper_parameters": {**OPTIONS, "weight_decay": 0.0, "lr_scheduler_type": "linear", "batch_size": BATCH,
                             "iterations": ITERATIONS},
        "largest_difference_by_rounding": drift,
        "iterations": iterations,
        "steps": steps,
        "final_policy": replay.weights(policy), "final_value": replay.weights(critic),
    })


main()
