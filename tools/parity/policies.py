"""RL4LMs' and FineGrainedRLHF's PPO (also on T5, with FineGrainedRLHF's critic), A2C and NLPO on recorded rollouts; RMSprop;
a Fisher-vector product.

Neither system can be installed with a current PyTorch. So this script contains their arithmetic, written from its description,
with padded tensors and masks. It shares no code with gradus. Run after `trajectories.py` and
`seq2seq_training.py`.

Each `run.json` contains the corresponding keys of gradus (`method`, `train`), so the test needs no translation.
"""

import math
import shutil

import common
import replay
from common import arguments, meta, plain, write_json
from ppo import completion_logits, logprobs_of, rollouts, values_of
from replay import weights
from safetensors.torch import load_file, save_file

import torch
from transformers import AutoModelForSeq2SeqLM, BartConfig, T5Config, T5Model

SEED = 29
ITERATIONS = 5
BATCH = 8
LONGEST = 9


class Decoders:
    """A policy that reads prompt and completion as one text, and its critic."""

    start_model, value_model, ids = "qwen3", "qwen3-reward", (5, 320)
    load = staticmethod(replay.load)
    completion_logits = staticmethod(completion_logits)
    values_of = staticmethod(values_of)


class TwoLayerCritic(torch.nn.Module):
    """FineGrainedRLHF's: the decoder's states through `Linear`, `GELU`, `Linear`."""

    def __init__(self, trunk):
        super().__init__()
        self.trunk = trunk
        width = trunk.config.d_model
        self.score = torch.nn.ModuleDict({"dense": torch.nn.Linear(width, width), "out": torch.nn.Linear(width, 1)})

    def forward(self, source, read):
        states = self.trunk(input_ids=source, decoder_input_ids=read, use_cache=False).last_hidden_state
        return self.score["out"](torch.nn.functional.gelu(self.score["dense"](states)))[..., 0]


class EncoderDecoders:
    """A T5, and a smaller one with a head of two layers."""

    start_model, value_model, ids = "t5", "t5-critic", (3, 26)

    @staticmethod
    def read(row, start=0):
        """The source and the decoder's input: the ids before each id of the completion."""
        return torch.tensor([row["prompt_ids"]]), torch.tensor([[start, *row["completion_ids"][:-1]]])

    @classmethod
    def completion_logits(cls, model, row, temperature):
        source, read = cls.read(row, model.config.decoder_start_token_id)
        return model(input_ids=source, decoder_input_ids=read, use_cache=False).logits[0] / temperature

    @classmethod
    def values_of(cls, model, row):
        return model(*cls.read(row))[0]

    @staticmethod
    def load(models, name):
        if name != "t5-critic":
            return AutoModelForSeq2SeqLM.from_pretrained(models / name, attn_implementation="eager", dtype=torch.float32)
        critic = TwoLayerCritic(T5Model(T5Config.from_pretrained(models / name)))
        state = load_file(models / name / "model.safetensors")
        named = {key if key.startswith("score.") else f"trunk.{key}": value for key, value in state.items()}
        missing = critic.load_state_dict(named, strict=False)
        assert all(key.endswith("embed_tokens.weight") for key in missing.missing_keys) and not missing.unexpected_keys, missing
        return critic

    @staticmethod
    def write_critic(models):
        """A model with other sizes than the policy's and the same vocabulary."""
        torch.manual_seed(SEED)
        sizes = dict(d_model=20, d_kv=6, d_ff=28, num_layers=1, num_heads=2, dropout_rate=0.0)
        policy = T5Config.from_pretrained(models / "t5")
        config = T5Config(vocab_size=policy.vocab_size, relative_attention_num_buckets=8, relative_attention_max_distance=16,
                          decoder_start_token_id=0, architectures=["T5ForSequenceClassification"], num_labels=1, **sizes)
        critic = TwoLayerCritic(T5Model(config))
        out = models / "t5-critic"
        shutil.copytree(models / "t5", out, dirs_exist_ok=True)
        config.save_pretrained(out)
        state = {key.removeprefix("trunk."): value for key, value in critic.state_dict().items() if not key.endswith("embed_tokens.weight")}
        save_file({key: value.contiguous() for key, value in state.items()}, out / "model.safetensors", metadata={"format": "pt"})


class Smooth(EncoderDecoders):
    """Models without a ReLU, so that differences are as exact as derivatives. One scales its states before a tied head. The
    other has norms after its layers."""

    # Both: widths that are not multiples of block sizes, stacks of different depth.
    ids_of = dict(pad_token_id=0, eos_token_id=1, vocab_size=29)
    configurations = {
        "t5-gated": T5Config(**ids_of, decoder_start_token_id=0, d_model=18, d_kv=5, d_ff=22, num_layers=1, num_decoder_layers=2,
                             num_heads=3, relative_attention_num_buckets=8, relative_attention_max_distance=16, dropout_rate=0.0,
                             feed_forward_proj="gated-gelu", initializer_factor=0.7),
        "bart": BartConfig(**ids_of, bos_token_id=None, decoder_start_token_id=1, forced_eos_token_id=None, d_model=18,
                           encoder_layers=1, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=3,
                           encoder_ffn_dim=20, decoder_ffn_dim=26, max_position_embeddings=24, dropout=0.0, init_std=0.3),
    }

    def __init__(self, name):
        self.start_model = name

    @classmethod
    def write(cls, models):
        for i, (name, config) in enumerate(cls.configurations.items()):
            torch.manual_seed(SEED + 10 + i)
            model = AutoModelForSeq2SeqLM.from_config(config)
            shutil.copytree(models / "t5", models / name, dirs_exist_ok=True)
            model.save_pretrained(models / name)


def ragged(generator, ids=(5, 320)):
    pick = lambda low, high: torch.randint(low, high, (1,), generator=generator).item()  # noqa: E731
    rows = []
    for iteration in range(ITERATIONS):
        for _ in range(BATCH):
            prompt = [pick(*ids) for _ in range(pick(3, 9))]
            answer = [pick(*ids) for _ in range(pick(1, LONGEST + 1))]
            if pick(0, 2):
                answer[-1] = 2
            rows.append({"iteration": iteration, "prompt_ids": prompt, "completion_ids": answer,
                         "score": round(torch.randn(1, generator=generator).item(), 3)})
    return rows


def pad(rows, width=None):
    """`[B, T]`, padded with zeros at the end, and the mask."""
    width = width or max(len(row) for row in rows)
    padded = torch.stack([torch.cat([row, row.new_zeros(width - len(row))]) for row in rows])
    mask = torch.stack([torch.arange(width) < len(row) for row in rows]).to(padded.dtype)
    return padded, mask


def mean(x, mask):
    return (x * mask).sum() / mask.sum()


def gae(rewards, values, gamma, lam):
    advantages, last = torch.zeros_like(rewards), 0
    for t in reversed(range(rewards.shape[1])):
        after = values[:, t + 1] if t + 1 < rewards.shape[1] else 0.0
        last = rewards[:, t] + gamma * after - values[:, t] + gamma * lam * last
        advantages[:, t] = last
    return advantages


def norm_of(parameters):
    return torch.stack([p.grad.norm() for p in parameters if p.grad is not None]).norm()


class Controller:
    def __init__(self, coefficient, target):
        self.coefficient, self.target = coefficient, target

    def step(self, kl):
        if self.target is not None:
            self.coefficient *= 1 + 0.1 * min(max((kl - self.target) / self.target, -0.2), 0.2)


def mask_of(logits, top_p, keep):
    """Tokens that the mask model allows: the smallest set whose mass reaches `top_p`, at least `keep`; and the margin."""
    ordered, order = torch.sort(logits, descending=True)
    mass = ordered.softmax(-1).cumsum(-1)
    removed = mass > top_p
    removed[..., : keep - 1] = False
    removed = torch.cat([torch.zeros_like(removed[..., :1]), removed[..., :-1]], -1)
    allowed = torch.zeros_like(removed).scatter(-1, order, ~removed)
    allowed[..., 2] = True
    return allowed, (mass - top_p).abs().min().item()


def masked(logits, allowed):
    return torch.where(allowed, logits, torch.tensor(-1e30)).log_softmax(-1)


class Run:
    """Runs one algorithm over recorded rows."""

    def __init__(self, models, o, seed=SEED):
        self.o, self.family = o, o.get("family", Decoders)
        self.policy, self.reference, self.lagged = (self.family.load(models, self.family.start_model) for _ in range(3))
        self.critic = self.family.load(models, self.family.value_model)
        self.parameters = [*self.policy.parameters(), *self.critic.parameters()]
        kind = torch.optim.RMSprop if o.get("rmsprop") else torch.optim.AdamW
        more = dict(alpha=0.99, eps=1e-5) if o.get("rmsprop") else dict(eps=o.get("eps", 1e-8))
        self.optimizer = kind(self.parameters, lr=o["lr"], weight_decay=0.0, **more)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda k: (ITERATIONS - k) / ITERATIONS)
        self.controller = Controller(o["kl_coef"], o.get("kl_target"))
        self.generator = torch.Generator().manual_seed(seed)
        self.margin = math.inf

    def sample(self, row):
        """Samples a completion under the mask of the lagged policy."""
        ids = []
        with torch.no_grad():
            while len(ids) < LONGEST and 2 not in ids:
                tokens = torch.tensor([row["prompt_ids"] + ids])
                allowed, margin = mask_of(self.lagged(input_ids=tokens).logits[0, -1], self.o["top_p"], self.o["keep"])
                self.margin = min(self.margin, margin)
                odds = masked(self.policy(input_ids=tokens).logits[0, -1], allowed).exp()
                # The padding token's embedding has no gradient in `transformers`.
                odds[0] = 0
                ids.append(torch.multinomial(odds, 1, generator=self.generator).item())
        row["completion_ids"] = ids

    def evaluate(self, row, allowed):
        """Logprobs used for training, unmasked ones, entropies."""
        logits = self.family.completion_logits(self.policy, row, 1.0)
        shown = logits.log_softmax(-1) if allowed is None else masked(logits, allowed)
        entropy = -(shown.exp() * shown).sum(-1)
        at = torch.tensor(row["completion_ids"])[:, None]
        return shown.gather(1, at)[:, 0], logprobs_of(logits, row), entropy

    def iteration(self, rows):
        o = self.o
        allowed = [None] * len(rows)
        if "top_p" in o:
            for row in rows:
                self.sample(row)
            with torch.no_grad():
                allowed = [mask_of(completion_logits(self.lagged, row, 1.0), o["top_p"], o["keep"])[0] for row in rows]
        with torch.no_grad():
            found = [self.evaluate(row, mask) for row, mask in zip(rows, allowed)]
            old, mask = pad([logprobs for logprobs, _, _ in found])
            raw, _ = pad([logprobs for _, logprobs, _ in found])
            ref, _ = pad([logprobs_of(self.family.completion_logits(self.reference, row, 1.0), row) for row in rows])
            values, _ = pad([self.family.values_of(self.critic, row) for row in rows])
        kl = raw - ref
        rewards = -self.controller.coefficient * kl
        for i, row in enumerate(rows):
            rewards[i, len(row["completion_ids"]) - 1] += row["score"]
        measured = {"kl_coef": self.controller.coefficient}
        self.controller.step(mean(kl, mask).item())
        if o["whiten"] == "fine_grained":
            rewards = self.whiten(rewards, mask, shift=False)
            advantages = gae(rewards, values, o["gamma"], o["lam"])
            returns = advantages + values
            advantages = self.whiten(advantages, mask, shift=True)
        else:
            if o.get("norm_reward"):
                flat = rewards[mask > 0]
                rewards = (rewards - flat.mean()) / (flat.std(unbiased=False) + 1e-8) * mask
            advantages = gae(rewards, values, o["gamma"], o["lam"])
            returns = advantages + values
        steps = self.update(rows, allowed, mask, old, values, advantages, returns)
        self.schedule.step()
        return {"metrics": measured, "advantages": [a[m > 0] for a, m in zip(advantages, mask)],
                "returns": [a[m > 0] for a, m in zip(returns, mask)], "steps": steps}

    @staticmethod
    def whiten(x, mask, shift):
        mu = mean(x, mask)
        sigma = torch.sqrt(mean(x * x, mask) - mu**2)
        y = (x - mu) / torch.sqrt(sigma + 1e-8)
        return y if shift else y + mu

    def update(self, rows, allowed, mask, old, values, advantages, returns):
        o, steps = self.o, []
        size = BATCH // o["mini_batches"]
        for _ in range(o["epochs"]):
            for start in range(0, BATCH, size):
                self.optimizer.zero_grad()
                step = {"loss": 0.0, "policy": 0.0, "value": 0.0, "lr": self.optimizer.param_groups[0]["lr"]}
                part = o.get("part", size)
                approx_kl = 0.0
                for at in range(start, start + size, part):
                    chosen = list(range(at, at + part))
                    m = mask[chosen]
                    found = [self.evaluate(rows[i], allowed[i]) for i in chosen]
                    new, _ = pad([logprobs for logprobs, _, _ in found], mask.shape[1])
                    entropy, _ = pad([e for _, _, e in found], mask.shape[1])
                    now, _ = pad([self.family.values_of(self.critic, rows[i]) for i in chosen], mask.shape[1])
                    a = advantages[chosen]
                    if o["whiten"] == "mini_batch":
                        flat = a[m > 0]
                        a = (a - flat.mean()) / (flat.std() + 1e-8)
                    delta = (new - old[chosen]) * m
                    ratio = delta.exp()
                    if o.get("a2c"):
                        policy = -mean(a * new, m)
                    else:
                        policy = -mean(torch.min(a * ratio, a * ratio.clamp(1 - o["clip"], 1 + o["clip"])), m)
                    near = values[chosen] + (now - values[chosen]).clamp(-o["clip_v"], o["clip_v"]) if o["clip_v"] else now
                    errors = (returns[chosen] - near) ** 2
                    if o.get("larger"):
                        errors = torch.max(errors, (returns[chosen] - now) ** 2)
                    value = mean(errors, m) * (0.5 if o["whiten"] == "fine_grained" else 1.0)
                    loss = policy + o["vf_coef"] * value - o.get("ent_coef", 0.0) * mean(entropy, m)
                    if o.get("length_weights"):
                        weight = m.sum(1).mean() / mask.sum(1).mean()
                        loss, policy, value = loss * weight, policy * weight, value * weight
                    loss.backward()
                    approx_kl = mean((delta.exp() - 1) - delta, m).item()
                    for key, term in (("loss", loss), ("policy", policy), ("value", value)):
                        step[key] += term.item()
                if o.get("target_kl") and approx_kl > 1.5 * o["target_kl"]:
                    return [*steps, {**step, "stopped": True}]
                step["grad_norm_policy"] = norm_of(self.policy.parameters())
                step["grad_norm_value"] = norm_of(self.critic.parameters())
                if o["max_grad_norm"]:
                    torch.nn.utils.clip_grad_norm_(self.parameters, o["max_grad_norm"])
                self.optimizer.step()
                steps.append(plain(step))
        return steps

    def run(self, rows):
        found = []
        for iteration in range(ITERATIONS):
            found.append(plain(self.iteration([row for row in rows if row["iteration"] == iteration])))
            if "refresh" in self.o and (iteration + 1) % self.o["refresh"] == 0:
                self.lagged.load_state_dict(self.policy.state_dict())
        return found


def keys(o):
    """The same settings as keys of gradus."""
    kl = {"coefficient": o["kl_coef"]}
    if o.get("kl_target"):
        kl |= {"target": o["kl_target"], "rate": 0.1, "unit": "token"}
    fine = o["whiten"] == "fine_grained"
    method = {"temperature": 1.0, "max_new_tokens": LONGEST, "discount": o["gamma"], "gae_lambda": o["lam"], "kl": kl,
              "value_coefficient": o["vf_coef"] * (1 if fine else 2), "entropy_coefficient": o.get("ent_coef", 0.0),
              "whiten_rewards": fine or bool(o.get("norm_reward")), "whiten_advantages": o["whiten"] is not None}
    quirks = {"clip_jointly": True}
    if fine:
        quirks["whitening"] = {"rewards": "root_of_deviation", "advantages": "root_of_deviation", "leak_padding": True}
    elif o["whiten"]:
        quirks["whitening"] = {"rewards": "biased_deviation", "center_rewards": True, "advantages": "deviation", "advantages_over": "mini_batch"}
    if not o.get("a2c"):
        method |= {"update_epochs": o["epochs"], "mini_batches": o["mini_batches"], "clip_range": o["clip"],
                   "value_clip_range": o["clip_v"], "target_kl": o.get("target_kl")}
        quirks |= {"value_clip": "larger" if o.get("larger") else "clipped", "target_kl_over": "mini_batch",
                   "part_size": o.get("part"), "sum_parts": fine, "length_weights": bool(o.get("length_weights"))}
    if "top_p" in o:
        method |= {"top_p": o["top_p"], "min_tokens_to_keep": o["keep"], "mask_update_iterations": o["refresh"]}
    if o.get("family") is EncoderDecoders:
        method["critic"] = {"head": "two_layer"}
    train = {"learning_rate": o["lr"], "max_grad_norm": float(o["max_grad_norm"]), "adam_epsilon": o.get("eps", 1e-8), "shuffle": False,
             "max_steps": ITERATIONS}
    if o.get("rmsprop"):
        train |= {"optimizer": "rmsprop", "rmsprop_epsilon": 1e-5}
    return {"method": {o["method"]: {**method, "quirks": quirks}}, "train": train}


RL4LMS = {"method": "ppo", "whiten": "mini_batch", "gamma": 0.99, "lam": 0.95, "kl_coef": 0.1, "kl_target": 0.05, "epochs": 3,
          "mini_batches": 4, "clip": 0.2, "clip_v": 0.0, "vf_coef": 0.5, "max_grad_norm": 0.5, "lr": 1e-3}
FINE_GRAINED = {"method": "ppo", "whiten": "fine_grained", "gamma": 1.0, "lam": 0.95, "kl_coef": 0.3, "epochs": 4,
                "mini_batches": 1, "part": 4, "length_weights": True, "clip": 0.2, "clip_v": 0.2, "larger": True,
                "vf_coef": 1.0, "max_grad_norm": 0, "lr": 5e-4, "eps": 1e-5}
RUNS = {
    "ppo_rl4lms": {**RL4LMS, "ent_coef": 0.01, "norm_reward": True},
    "ppo_rl4lms_stopping": {**RL4LMS, "clip_v": 0.1, "target_kl": 0.004},
    "ppo_fine_grained": FINE_GRAINED,
    "ppo_fine_grained_t5": {**FINE_GRAINED, "family": EncoderDecoders},
    "a2c": {"method": "a2c", "a2c": True, "rmsprop": True, "whiten": None, "gamma": 0.99, "lam": 1.0, "kl_coef": 0.1,
            "kl_target": 0.05, "epochs": 1, "mini_batches": 1, "clip_v": 0.0, "vf_coef": 0.5, "max_grad_norm": 0.5, "lr": 1e-4},
    "nlpo": {**RL4LMS, "method": "nlpo", "ent_coef": 0.01, "top_p": 0.9, "keep": 3, "refresh": 2},
}


def masks(models):
    """Tokens of recorded logits that RL4LMs' mask processor allows; special tokens are always allowed."""
    policy, rows = replay.load(models, "qwen3"), ragged(torch.Generator().manual_seed(SEED + 4))[:3]
    with torch.no_grad():
        logits = torch.cat([completion_logits(policy, row, 0.5) for row in rows])[:6]
    special, cases = [0, 1, 2], []
    for kind, top, keep in (("top_p", 0.9, 1), ("top_p", 0.5, 1), ("top_p", 0.1, 12), ("top_p", 0.9, 100), ("top_k", 10, 1), ("top_k", 319, 1)):
        kept = []
        for line in logits:
            if kind == "top_k":
                allowed = torch.zeros(len(line), dtype=torch.bool).scatter(0, line.topk(top).indices, True)
            else:
                ordered, order = torch.sort(line, descending=True)
                removed = torch.softmax(ordered, -1).cumsum(-1) > top
                removed[: keep - 1] = False
                removed[1:] = removed[:-1].clone()
                removed[0] = False
                allowed = torch.ones(len(line), dtype=torch.bool)
                allowed[order[removed]] = False
            allowed[special] = True
            kept.append(allowed.nonzero()[:, 0])
        cases.append({"kind": kind, "top": top, "min_tokens_to_keep": keep, "kept": kept})
    return {"meta": meta(SEED), "special": special, "logits": logits, "cases": cases}


def rmsprop():
    """Four steps over a matrix and a vector, with and without weight decay."""
    generator = torch.Generator().manual_seed(SEED)
    draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    start, gradients = draw(3, 4), [draw(3, 4) * scale for scale in (1.0, 0.1, 10.0, 0.0)]
    cases = []
    for alpha, eps, decay in ((0.99, 1e-5, 0.0), (0.9, 1e-8, 0.1)):
        weight = torch.nn.Parameter(start.clone())
        optimizer = torch.optim.RMSprop([weight], lr=0.01, alpha=alpha, eps=eps, weight_decay=decay)
        found = []
        for gradient in gradients:
            weight.grad = gradient.clone()
            optimizer.step()
            found.append(plain(weight))
        cases.append({"alpha": alpha, "epsilon": eps, "weight_decay": decay, "learning_rate": 0.01, "steps": found})
    return {"meta": meta(SEED), "start": start, "gradients": gradients, "cases": cases}


def fisher(models, family):
    """The Hessian of the mean KL(new ‖ old) at the old policy, times two vectors, by two backward passes."""
    policy = family.load(models, family.start_model)
    rows = ragged(torch.Generator().manual_seed(SEED + 2), family.ids)[:BATCH]
    parameters = dict(sorted(policy.named_parameters()))
    logprobs = torch.cat([family.completion_logits(policy, row, 1.0) for row in rows]).log_softmax(-1)
    kl = (logprobs.exp() * (logprobs - logprobs.detach())).sum(-1).mean()
    first = torch.autograd.grad(kl, parameters.values(), create_graph=True)
    flat = lambda tensors: torch.cat([t.flatten() for t in tensors])  # noqa: E731
    generator = torch.Generator().manual_seed(SEED + 3)
    advantages = [round(torch.randn(1, generator=generator).item(), 3) for row in rows for _ in row["completion_ids"]]
    chosen = torch.cat([logprobs_of(family.completion_logits(policy, row, 1.0), row) for row in rows])
    gradient = torch.autograd.grad((chosen * torch.tensor(advantages)).mean(), parameters.values())
    # One vector that any program can write down.
    line = lambda i, n: torch.sin(torch.arange(n, dtype=torch.float64) * 0.7 + 1.3 * i).float()  # noqa: E731
    wave = [line(i, p.numel()).reshape(p.shape) for i, p in enumerate(parameters.values())]
    cases = []
    for name, vector in (("gradient", gradient), ("wave", wave)):
        product = torch.autograd.grad(flat(first) @ flat(vector), parameters.values(), retain_graph=True)
        parts = {key: {"norm": p.norm(), "first": p.flatten()[:8]} for key, p in zip(parameters, product)}
        cases.append({"name": name, "curvature": flat(vector) @ flat(product), "norm": flat(product).norm(), "product": parts})
    return {"meta": meta(SEED), "start_model": family.start_model, "rows": rows, "advantages": advantages, "cases": cases}


def main():
    root = arguments("trajectories")
    EncoderDecoders.write_critic(root / "models")
    for name, options in RUNS.items():
        family = options.get("family", Decoders)
        out = root / name
        out.mkdir(exist_ok=True)
        # If a token is at the edge of the mask, rounding decides. Then other completions are sampled.
        for attempt in range(20):
            run, rows = Run(root / "models", options, SEED + attempt), ragged(torch.Generator().manual_seed(SEED), family.ids)
            iterations = run.run(rows)
            if run.margin > 4e-6:
                break
        assert run.margin > 4e-6, f"{name}: {run.margin}"
        replay.write_rows(out / "rollouts.jsonl", rows)
        print(name, [len(i["steps"]) for i in iterations], [round(i["steps"][-1]["loss"], 4) for i in iterations], run.margin)
        write_json(out / "run.json", {"meta": meta(SEED), "start_model": family.start_model, "value_model": family.value_model, **keys(options),
                                      "iterations": iterations, "final_policy": weights(run.policy), "final_value": {key.removeprefix("trunk."): value for key, value in weights(run.critic).items()}})
    write_json(root.parent / "losses/rmsprop.json", rmsprop())
    write_json(root.parent / "losses/masks.json", masks(root / "models"))
    write_json(root / "fisher.json", fisher(root / "models", Decoders))
    write_json(root / "fisher_t5.json", fisher(root / "models", EncoderDecoders))
    Smooth.write(root / "models")
    for name in Smooth.configurations:
        write_json(root / f"fisher_{name.replace('-', '_')}.json", fisher(root / "models", Smooth(name)))


if __name__ == "__main__":
    main()
