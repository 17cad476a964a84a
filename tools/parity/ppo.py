"""Ten optimizer steps of PPO on recorded rollouts of one length, with separate policy and value model.

TRL 1.16 no longer has PPO, so this script contains the loop, as in TRL 1.12: rewards, GAE and whitening once per
iteration, then epochs of mini-batches in file order, AdamW over both models together, no gradient clipping, a linear
schedule that moves once per iteration. Every mean runs over the completion tokens of the mini-batch.

Completions have one length, and TRL 1.12's own trainer must give the same numbers. To check this, unpack TRL 1.12
  pip install --no-deps --target DIR trl==1.12.0
and set TRL_PPO=DIR. With different lengths, TRL 1.12 places the score one position later and counts one value more.
`ppo_ragged.py` uses another implementation for that case.
"""

import math
import os
import sys
import tempfile

import common  # noqa: F401  (environment first)

if "TRL_PPO" in os.environ:
    sys.path.insert(0, os.environ["TRL_PPO"])

import replay  # noqa: E402
from common import arguments, meta, write_json  # noqa: E402
from replay import weights  # noqa: E402

import torch  # noqa: E402

SEED = 13
ITERATIONS = 5
BATCH = 8
RUNS = {
    "ppo": {"num_ppo_epochs": 2, "num_mini_batches": 1, "learning_rate": 2e-3, "temperature": 0.7, "kl_coef": 0.05,
            "kl_estimator": "k1", "cliprange": 0.2, "cliprange_value": 0.2, "vf_coef": 0.1, "gamma": 1.0, "lam": 0.95,
            "whiten_rewards": False, "missing_eos_penalty": None},
}


def rollouts(generator):
    pick = lambda low, high: torch.randint(low, high, (1,), generator=generator).item()  # noqa: E731
    rows = []
    for iteration in range(ITERATIONS):
        for _ in range(BATCH):
            prompt = [pick(5, 320) for _ in range(pick(3, 9))]
            answer = [pick(5, 320) for _ in range(6)]
            rows.append({"iteration": iteration, "prompt_ids": prompt, "completion_ids": answer,
                         "score": round(torch.randn(1, generator=generator).item(), 3)})
    return rows


def completion_logits(model, row, temperature):
    tokens = torch.tensor([row["prompt_ids"] + row["completion_ids"]])
    start = len(row["prompt_ids"]) - 1
    return model(input_ids=tokens, use_cache=False).logits[0, start:-1] / temperature


def logprobs_of(logits, row):
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(row["completion_ids"])[:, None])[:, 0]


def values_of(model, row):
    """Values of the states before each completion token."""
    tokens = torch.tensor([row["prompt_ids"] + row["completion_ids"]])
    states = getattr(model, model.base_model_prefix)(input_ids=tokens, use_cache=False).last_hidden_state[0]
    return model.score(states)[len(row["prompt_ids"]) - 1: -1, 0]


def whiten(rows, keep_mean=False):
    flat = torch.cat(rows)
    out = (flat - flat.mean()) * torch.rsqrt(flat.var(unbiased=True) + 1e-8)
    return list((out + flat.mean() if keep_mean else out).split([len(row) for row in rows]))


def prepare(policy, reference, critic, batch, o):
    """All parts of an iteration that the updates do not change."""
    with torch.no_grad():
        old = [logprobs_of(completion_logits(policy, row, o["temperature"]), row) for row in batch]
        ref = [logprobs_of(completion_logits(reference, row, o["temperature"]), row) for row in batch]
        values = [values_of(critic, row) for row in batch]
    scores = []
    for row in batch:
        missing = o["missing_eos_penalty"] is not None and 2 not in row["completion_ids"]
        scores.append(row["score"] - (o["missing_eos_penalty"] if missing else 0.0))
    divergence = [a - b if o["kl_estimator"] == "k1" else torch.exp(b - a) - 1 - (b - a) for a, b in zip(old, ref)]
    rewards = [-o["kl_coef"] * k for k in divergence]
    penalty = torch.stack([r.sum() for r in rewards]).mean()
    for reward, score in zip(rewards, scores):
        reward[-1] += score
    if o["whiten_rewards"]:
        rewards = whiten(rewards, keep_mean=True)
    advantages = []
    for reward, value in zip(rewards, values):
        after = torch.cat([value[1:], value.new_zeros(1)])
        errors = reward + o["gamma"] * after - value
        weight = o["gamma"] * o["lam"]
        advantages.append(torch.stack([sum(weight ** (j - t) * errors[j] for j in range(t, len(errors))) for t in range(len(errors))]))
    returns = [a + v for a, v in zip(advantages, values)]
    advantages = whiten(advantages)
    metrics = {"objective/kl": torch.stack([k.sum() for k in divergence]).mean(), "objective/scores": sum(scores) / len(scores),
               "objective/non_score_reward": penalty}
    return {"old": old, "values": values, "advantages": advantages, "returns": returns}, metrics


def update(policy, critic, batch, fixed, members, optimizer, o):
    take = lambda key: torch.cat([fixed[key][i] for i in members])  # noqa: E731
    old, before, advantages, returns = take("old"), take("values"), take("advantages"), take("returns")
    logits = [completion_logits(policy, batch[i], o["temperature"]) for i in members]
    new = torch.cat([logprobs_of(z, batch[i]) for z, i in zip(logits, members)])
    values = torch.cat([values_of(critic, batch[i]) for i in members])
    ratio = torch.exp(new - old)
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - o["cliprange"], 1 + o["cliprange"])
    policy_loss = torch.max(plain, clipped).mean()
    near = torch.clamp(values, before - o["cliprange_value"], before + o["cliprange_value"])
    first, second = (values - returns) ** 2, (near - returns) ** 2
    value_loss = 0.5 * torch.max(first, second).mean()
    loss = policy_loss + o["vf_coef"] * value_loss
    loss.backward()
    norm = lambda model: torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()  # noqa: E731
    with torch.no_grad():
        flat = torch.cat(logits)
        entropy = -(flat.log_softmax(-1) * flat.softmax(-1)).sum(-1).mean()
    step = {"loss": loss, "grad_norm_policy": norm(policy), "grad_norm_value": norm(critic),
            "learning_rate": optimizer.param_groups[0]["lr"],
            "metrics": {"loss/policy_avg": policy_loss, "loss/value_avg": value_loss,
                        "policy/clipfrac_avg": (clipped > plain).float().mean(), "val/clipfrac_avg": (second > first).float().mean(),
                        "policy/approxkl_avg": 0.5 * ((new - old) ** 2).mean(), "policy/entropy_avg": entropy,
                        "val/ratio": ratio.mean()}}
    optimizer.step()
    optimizer.zero_grad()
    return common.plain(step)


def train(models, rows, o, dtype):
    policy, reference = (replay.load(models, "qwen3", dtype) for _ in range(2))
    critic = replay.load(models, "qwen3-reward", dtype)
    optimizer = torch.optim.AdamW([*policy.parameters(), *critic.parameters()], lr=o["learning_rate"], weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: (ITERATIONS - k) / ITERATIONS)
    iterations, steps = [], []
    for iteration in range(ITERATIONS):
        batch = [row for row in rows if row["iteration"] == iteration]
        fixed, metrics = prepare(policy, reference, critic, batch, o)
        iterations.append(common.plain({"iteration": iteration, "metrics": metrics, **(fixed if iteration < 2 else {})}))
        size = BATCH // o["num_mini_batches"]
        for _ in range(o["num_ppo_epochs"]):
            for start in range(0, BATCH, size):
                steps.append({"iteration": iteration, **update(policy, critic, batch, fixed, range(start, start + size), optimizer, o)})
        schedule.step()
    return policy, critic, iterations, steps


def trl_steps(models, rows, o):
    """The losses of TRL 1.12's own trainer on the same rollouts, or None without it."""
    import trl

    if "TRL_PPO" not in os.environ:
        return None
    assert trl.__version__.startswith("1.12."), trl.__version__
    import numpy
    from datasets import Dataset
    from trl.experimental.ppo import PPOConfig, PPOTrainer, ppo_trainer

    tok = replay.tokenizer()
    tok.padding_side = "left"
    width = max(len(row["prompt_ids"]) for row in rows)
    state = {"iteration": 0}

    def batch_generation(policy, queries, *_):
        batch = [row for row in rows if row["iteration"] == state["iteration"]]
        state["iteration"] += 1
        full = torch.tensor([[0] * (width - len(r["prompt_ids"])) + r["prompt_ids"] + r["completion_ids"] for r in batch])
        state["scores"] = torch.tensor([r["score"] for r in batch])
        return full, ppo_trainer.forward(policy, full, 0).logits[:, width - 1: -1] / (o["temperature"] + 1e-7)

    original = ppo_trainer.get_reward
    reward_model = replay.load(models, "qwen3-reward")

    def get_reward(model, *rest):
        return (None, state["scores"].clone(), None) if model is reward_model else original(model, *rest)

    ppo_trainer.batch_generation, ppo_trainer.get_reward = batch_generation, get_reward
    numpy.random.permutation = numpy.arange
    losses = []
    with tempfile.TemporaryDirectory() as scratch:
        names = ("num_ppo_epochs", "num_mini_batches", "learning_rate", "temperature", "kl_coef", "kl_estimator", "cliprange",
                 "cliprange_value", "vf_coef", "gamma", "lam", "whiten_rewards", "missing_eos_penalty")
        args = PPOConfig(output_dir=scratch, report_to=[], bf16=False, use_cpu=True, gradient_checkpointing=False,
                         per_device_train_batch_size=BATCH, gradient_accumulation_steps=1, total_episodes=BATCH * ITERATIONS,
                         response_length=6, num_sample_generations=0, save_strategy="no", disable_tqdm=True,
                         **{key: o[key] for key in names})
        data = Dataset.from_list([{"input_ids": [5] * width}] * BATCH)
        trainer = PPOTrainer(args=args, processing_class=tok, model=replay.load(models, "qwen3"),
                             ref_model=replay.load(models, "qwen3"), reward_model=reward_model,
                             value_model=replay.load(models, "qwen3-reward"), train_dataset=data, eval_dataset=data)
        backward = trainer.accelerator.backward

        def recording(loss, **more):
            losses.append(loss.item())
            backward(loss, **more)

        trainer.accelerator.backward = recording
        trainer.train()
    return losses


def main():
    root = arguments("trajectories")
    for name, options in RUNS.items():
        out = root / name
        out.mkdir(exist_ok=True)
        rows = rollouts(torch.Generator().manual_seed(SEED))
        replay.write_rows(out / "rollouts.jsonl", rows)
        policy, critic, iterations, steps = train(root / "models", rows, options, torch.float32)
        exact = train(root / "models", rows, options, torch.float64)[3]
        drift = {key: max(abs(a[key] - b[key]) for a, b in zip(steps, exact))
                 for key in ("loss", "grad_norm_policy", "grad_norm_value")}
        check = None
        if (theirs := trl_steps(root / "models", rows, options)) is not None:
            assert len(theirs) == len(steps)
            check = {"trl": "1.12.0", "largest_difference_of_loss": max(abs(a - b["loss"]) for a, b in zip(theirs, steps))}
            assert math.isfinite(check["largest_difference_of_loss"]) and check["largest_difference_of_loss"] < 1e-5, check
        print(name, drift, check)
        write_json(out / "run.json", {
            "meta": meta(SEED),
            "start_model": "qwen3", "reference_model": "qwen3", "value_model": "qwen3-reward",
            "hyper_parameters": {**options, "max_grad_norm": 0, "weight_decay": 0.0, "lr_scheduler_type": "linear",
                                 "batch_size": BATCH, "iterations": ITERATIONS},
            "checked_against": check,
            "largest_difference_by_rounding": drift,
            "iterations": iterations,
            "steps": steps,
            "final_policy": weights(policy), "final_value": weights(critic),
        })


if __name__ == "__main__":
    main()
