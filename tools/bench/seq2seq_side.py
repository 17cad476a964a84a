"""One process of a plain `transformers` and torch loop over an encoder–decoder model, with the interface of trl_side.py.

    python seq2seq_side.py WORKLOAD.json --model DIR --rows FILE --out RESULT.json

No maintained trainer has PPO for such models, so this script contains the loops as a careful user would write them: padded batches,
`generate` with its cache, no gradient where none is needed, AdamW in its fused form, everything in one dtype. On both sides, the measured time
includes the tokenization of batches.
"""

import argparse
import json
import pathlib
import re
import time

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
from workloads import WARM_UP

torch.set_num_threads(2)
RULE = re.compile(r"w\d*77\b")
KL, CLIP, VALUE_CLIP, VALUE_WEIGHT, GAMMA, LAMBDA, UPDATE_EPOCHS = 0.05, 0.2, 0.2, 0.1, 1.0, 0.95, 4
LEARNING_RATE = 2e-5


def dtype_of(work):
    return torch.bfloat16 if work["precision"] == "bf16" else torch.float32


def load(work, model):
    return AutoModelForSeq2SeqLM.from_pretrained(model, dtype=dtype_of(work))


def encode(tokenizer, texts):
    """Ids with the end token, padded on the right, and the mask."""
    rows = [tokenizer(text, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id] for text in texts]
    longest = max(map(len, rows))
    ids = torch.tensor([row + [tokenizer.pad_token_id] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    return ids, mask


def batches(work, rows):
    lines = [json.loads(line) for line in open(rows)]
    for step in range(work["max_steps"]):
        yield lines[step * work["batch"] : (step + 1) * work["batch"]]


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0, fused=True)


def sft(work, model, rows):
    tokenizer, network = AutoTokenizer.from_pretrained(model), load(work, model).train()
    optimizer, seconds, first = adamw(network), [], None
    for batch in batches(work, rows):
        began = time.monotonic()
        ids, mask = encode(tokenizer, [row["prompt"] for row in batch])
        labels, label_mask = encode(tokenizer, [row["completion"] for row in batch])
        loss = network(input_ids=ids, attention_mask=mask, labels=labels.masked_fill(label_mask == 0, -100)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        first = first or {"loss": loss.item()}
        seconds.append(time.monotonic() - began)
    return {"settings": {"learning_rate": LEARNING_RATE}, "step_s": seconds[WARM_UP:], "first": first}


def sampling(work, new):
    exact = {"min_new_tokens": new, "max_new_tokens": new}
    return {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, **exact}


def generate(work, model, rows):
    """Calls of `generate` on the whole batch, from text to text, after a warm-up call."""
    tokenizer, network = AutoTokenizer.from_pretrained(model), load(work, model).eval()
    prompts = [json.loads(line)["prompt"] for line in open(rows)]
    seconds = []
    for call in range(work["steps"] + 1):
        chosen = sampling(work, work["new_tokens"] if call else 8)
        began = time.monotonic()
        ids, mask = encode(tokenizer, prompts)
        with torch.inference_mode():
            out = network.generate(input_ids=ids, attention_mask=mask, **chosen)
        tokenizer.batch_decode(out)
        seconds.append(time.monotonic() - began)
        if out.shape != (work["batch"], 1 + chosen["max_new_tokens"]):
            raise SystemExit(f"generate returned the shape {tuple(out.shape)}, which is not the expected one")
    return {"settings": {"dtype": str(dtype_of(work)), **chosen}, "step_s": seconds[1:]}


class Critic(torch.nn.Module):
    """An encoder–decoder trunk with a linear head on each state of the decoder."""

    def __init__(self, network):
        super().__init__()
        self.trunk = network
        self.head = torch.nn.Linear(network.config.d_model, 1, dtype=network.dtype)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)

    def forward(self, ids, mask, read):
        out = self.trunk.base_model_forward(ids, mask, read)
        return self.head(out).squeeze(-1).float()


def base_model_forward(self, ids, mask, read):
    encoded = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
    return self.decoder(
        input_ids=read, encoder_hidden_states=encoded, encoder_attention_mask=mask, use_cache=False
    ).last_hidden_state


def logprobs(network, ids, mask, out):
    """Log-probability of each id after the start, `[B, T]`."""
    logits = network(input_ids=ids, attention_mask=mask, decoder_input_ids=out[:, :-1], use_cache=False).logits.float()
    return torch.log_softmax(logits, -1).gather(-1, out[:, 1:, None]).squeeze(-1)


def advantages(rewards, values):
    last, result = torch.zeros(rewards.shape[0]), torch.zeros_like(rewards)
    for t in reversed(range(rewards.shape[1])):
        after = values[:, t + 1] if t + 1 < rewards.shape[1] else 0.0
        last = rewards[:, t] + GAMMA * after - values[:, t] + GAMMA * LAMBDA * last
        result[:, t] = last
    return result, result + values


def update(network, critic, optimizers, rollout):
    ids, mask, out, old, old_values, advantage, returns = rollout
    log_ratio = logprobs(network, ids, mask, out) - old
    ratio = log_ratio.exp()
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
    values = critic(ids, mask, out[:, :-1])
    clipped = old_values + (values - old_values).clamp(-VALUE_CLIP, VALUE_CLIP)
    value_loss = 0.5 * torch.maximum((values - returns) ** 2, (clipped - returns) ** 2)
    (-surrogate.mean() + VALUE_WEIGHT * value_loss.mean()).backward()
    for model, optimizer in ((network, optimizers[0]), (critic, optimizers[1])):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def ppo(work, model, rows):
    type_of = AutoModelForSeq2SeqLM.from_pretrained(model).__class__
    type_of.base_model_forward = base_model_forward
    tokenizer = AutoTokenizer.from_pretrained(model)
    network, reference = load(work, model).eval(), load(work, model).eval().requires_grad_(False)
    critic = Critic(load(work, model).eval())
    optimizers, seconds = (adamw(network), adamw(critic)), []
    chosen = sampling(work, work["new_tokens"])
    for batch in batches(work, rows):
        began = time.monotonic()
        ids, mask = encode(tokenizer, [row["prompt"] for row in batch])
        with torch.no_grad():
            out = network.generate(input_ids=ids, attention_mask=mask, **chosen)
            old, ref = (logprobs(model, ids, mask, out) for model in (network, reference))
            values = critic(ids, mask, out[:, :-1])
            rewards = -KL * (old - ref)
            texts = tokenizer.batch_decode(out, skip_special_tokens=True)
            rewards[:, -1] += torch.tensor([1.0 if RULE.search(text) else 0.0 for text in texts])
            advantage, returns = advantages(rewards, values)
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        for _ in range(UPDATE_EPOCHS):
            update(network, critic, optimizers, (ids, mask, out, old, values, advantage, returns))
        seconds.append(time.monotonic() - began)
    return {"settings": {"update_epochs": UPDATE_EPOCHS, **chosen}, "step_s": seconds[WARM_UP:]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("work", help="a workload as JSON")
    parser.add_argument("--model")
    parser.add_argument("--rows")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    work = json.loads(arguments.work)
    side = {"sft": sft, "generate": generate, "ppo": ppo}[work["kind"]]
    arguments.out.write_text(json.dumps(side(work, arguments.model, arguments.rows)))


if __name__ == "__main__":
    main()
