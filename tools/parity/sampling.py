"""What transformers' logits processors leave of fixed logits: the log-probabilities that sampling would use.

The processors are put together by transformers itself, from a GenerationConfig, so their order is its order.
A token that is cut off has null in place of its log-probability. In the row `ties`, which of several equal logits top_p
keeps depends on the order of an unstable sort: only the sorted values are comparable there.
"""

import math

from common import arguments, meta, write_json

import torch
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel

SEED = 5
VOCAB = 24


def logits():
    generator = torch.Generator().manual_seed(SEED)
    rows = {
        "spread": 1.5 * torch.randn(VOCAB, generator=generator),
        "flat": 0.2 * torch.randn(VOCAB, generator=generator),
        "peaked": torch.randn(VOCAB, generator=generator) + 12 * torch.nn.functional.one_hot(torch.tensor(7), VOCAB),
        "ties": torch.tensor([2.0, 2.0, 2.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5] + [0.0] * (VOCAB - 9)),
        "masked": torch.where(torch.arange(VOCAB) % 3 == 0, torch.tensor(-1e9), torch.randn(VOCAB, generator=generator)),
    }
    return {name: row.float() for name, row in rows.items()}


PREVIOUS = [3, 7, 7, 1, 20]
SETTINGS = [
    {}, {"temperature": 0.7}, {"temperature": 1.7}, {"temperature": 0.01}, {"top_k": 1}, {"top_k": 5}, {"top_k": 100},
    {"top_p": 0.9}, {"top_p": 0.3}, {"top_p": 0.01}, {"top_p": 0.999}, {"min_p": 0.05}, {"min_p": 0.5},
    {"repetition_penalty": 1.3}, {"repetition_penalty": 0.7},
    {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    {"temperature": 1.5, "top_k": 8, "top_p": 0.8, "min_p": 0.1, "repetition_penalty": 1.1},
]


def processed(model, row, settings):
    config = GenerationConfig(do_sample=True, **{"top_k": 0, "top_p": 1.0, "temperature": 1.0, **settings})
    processors = model._get_logits_processor(generation_config=config, input_ids_seq_length=len(PREVIOUS), device="cpu")
    return torch.log_softmax(processors(torch.tensor([PREVIOUS]), row[None].clone())[0], -1)


def main():
    out = arguments("sampling")
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_embd=4, n_layer=1, n_head=1, n_positions=8, bos_token_id=1,
                                       eos_token_id=2))
    rows = logits()
    cases = []
    for settings in SETTINGS:
        answer = {name: processed(model, row, settings) for name, row in rows.items()}
        cases.append({"settings": settings, "logprobs": {name: [None if math.isinf(x) else x for x in row.tolist()]
                                                         for name, row in answer.items()}})
    write_json(out / "sampling.json", {"meta": meta(SEED), "note": "row ties: compare sorted values under top_p",
                                       "previous_ids": PREVIOUS, "logits": rows, "cases": cases})
    print(len(cases), "settings")


main()
