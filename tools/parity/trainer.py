"""Losses summed over tokens, their gradients and one AdamW step, for programs with their own loop.

The formulas are those of Tinker's documentation: cross-entropy, importance sampling, PPO, CISPO and DRO, each summed over tokens. Gradients
of several calls are added. Run after `trajectories.py`.
"""

import json

import torch
from transformers import AutoModelForCausalLM

from common import FIXTURES, arguments, meta

SEED = 5
LEARNING_RATE, CLIP = 1e-3, 1.5
LOSSES = {
    "cross_entropy": {},
    "importance_sampling": {},
    "ppo": {"low": 0.8, "high": 1.2},
    "cispo": {"high": 1.1},
    "dro": {"beta": 0.3},
}


def draw(generator):
    data = []
    for prompt, completion in [(3, 5), (1, 2), (6, 9)]:
        ids = lambda n: torch.randint(3, 90, (n,), generator=generator).tolist()
        weights = torch.randn(completion, generator=generator)
        weights[0] = 0.0
        # Far enough from the policy's own values that some ratios are clipped.
        shift = 0.3 * torch.randn(completion, generator=generator)
        data.append({"prompt": ids(prompt), "completion": ids(completion), "weights": weights.tolist(), "shift": shift.tolist()})
    return data


def logprobs(model, datum):
    ids = torch.tensor([datum["prompt"] + datum["completion"]])
    all_logprobs = torch.log_softmax(model(ids).logits[0, :-1], -1)
    return all_logprobs.gather(-1, ids[0, 1:, None])[len(datum["prompt"]) - 1 :, 0]


def loss_of(name, keys, found, old, weights):
    if name == "cross_entropy":
        return -(weights * found).sum()
    ratio = torch.exp(found - old)
    if name == "importance_sampling":
        return -(ratio * weights).sum()
    if name == "ppo":
        return -torch.minimum(ratio * weights, ratio.clamp(keys["low"], keys["high"]) * weights).sum()
    if name == "dro":
        return -(weights * found - 0.5 * keys["beta"] * (found - old) ** 2).sum()
    return -(ratio.detach().clamp(max=keys["high"]) * weights * found).sum()


def main():
    out = arguments("trainer")
    generator = torch.Generator().manual_seed(SEED)
    cases = []
    for name, keys in LOSSES.items():
        model = AutoModelForCausalLM.from_pretrained(FIXTURES / "trajectories/models/gpt2", dtype=torch.float32).eval()
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), eps=1e-12, weight_decay=0.0)
        data = draw(generator)
        steps = []
        for datum in data:
            with torch.no_grad():
                datum["old_logprobs"] = (logprobs(model, datum) + torch.tensor(datum.pop("shift"))).tolist()
        for _ in range(2):
            found = [logprobs(model, datum) for datum in data]
            loss = sum(
                loss_of(name, keys, found, torch.tensor(datum["old_logprobs"]), torch.tensor(datum["weights"]))
                for found, datum in zip(found, data)
            )
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad()
            steps.append({"loss": loss.item(), "grad_norm": norm.item(), "logprobs": [of.tolist() for of in found]})
        cases.append({"loss": name, **keys, "data": data, "steps": steps})
    text = json.dumps({"meta": meta(SEED), "learning_rate": LEARNING_RATE, "max_grad_norm": CLIP, "cases": cases}, indent=1)
    (out / "fixture.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
