"""Fixed logits after transformers' logits processors: the log-probabilities that sampling would use.

transformers itself combines the processors from a GenerationConfig, so their order is that of transformers.
A token that is cut off has null instead of a log-probability. In the row `ties`, the order of an unstable sort decides which of several
equal logits top_p keeps, so only the sorted values are comparable.
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
    {"typical_p": 0.2}, {"typical_p": 0.9}, {"typical_p": 0.999}, {"typical_p": 1.0}, {"temperature": 0.7, "typical_p": 0.5},
    {"temperature": 1.3, "top_k": 12, "top_p": 0.9, "min_p": 0.02, "typical_p": 0.6},
]

# Processors that read earlier ids: the ids, the number of prompt ids, and settings.
STOP = [2, 5]
REPEATED = [4, 9, 6, 4, 9, 11, 4, 9]
OF_IDS = [
    (REPEATED, 5, {"no_repeat_ngram_size": 1}), (REPEATED, 5, {"no_repeat_ngram_size": 2}),
    (REPEATED, 5, {"no_repeat_ngram_size": 3}), (REPEATED, 5, {"no_repeat_ngram_size": 4}),
    (REPEATED[:2], 1, {"no_repeat_ngram_size": 3}),
    (REPEATED, 6, {"min_new_tokens": 3, "eos_token_id": STOP}), (REPEATED, 6, {"min_new_tokens": 2, "eos_token_id": STOP}),
    (REPEATED, 5, {"bad_words_ids": [[7], [4, 9, 3], [9, 8], [11, 9, 1], [2]], "eos_token_id": STOP}),
    (REPEATED, 5, {"suppress_tokens": [0, 7, 23]}),
    ([3], 1, {"forced_bos_token_id": 8}), ([3, 6], 1, {"forced_bos_token_id": 8}),
    (REPEATED, 5, {"forced_eos_token_id": 2, "max_new_tokens": 4}),
    (REPEATED, 5, {"forced_eos_token_id": 2, "max_new_tokens": 5}),
    (REPEATED, 5, {"forced_eos_token_id": 2, "max_new_tokens": 4, "temperature": 0.7, "repetition_penalty": 1.3}),
    (REPEATED, 7, {"repetition_penalty": 1.2, "no_repeat_ngram_size": 2, "bad_words_ids": [[9, 8], [1]],
                   "min_new_tokens": 4, "eos_token_id": STOP, "suppress_tokens": [10, 12], "temperature": 0.8, "top_k": 12,
                   "top_p": 0.95, "min_p": 0.02}),
]


# The same with an encoder's input. None means that the prompt is used instead, as in `generate`.
SOURCE = [9, 6, 4, 9, 11, 8]
OF_SOURCES = [
    (None, REPEATED, 5, {"encoder_no_repeat_ngram_size": 1}), (None, REPEATED, 5, {"encoder_no_repeat_ngram_size": 2}),
    (None, REPEATED, 5, {"encoder_no_repeat_ngram_size": 3}), (None, REPEATED[:2], 1, {"encoder_no_repeat_ngram_size": 3}),
    (SOURCE, [1, 11], 1, {"encoder_no_repeat_ngram_size": 2}), (SOURCE, [1, 4, 9], 1, {"encoder_no_repeat_ngram_size": 3}),
    (SOURCE, [1], 1, {"encoder_no_repeat_ngram_size": 1}), (SOURCE, [1], 1, {"encoder_no_repeat_ngram_size": 2}),
    (SOURCE, [1, 5, 9], 1, {"encoder_no_repeat_ngram_size": 2, "no_repeat_ngram_size": 1, "repetition_penalty": 1.3}),
    (SOURCE, [1, 6, 9], 1, {"encoder_no_repeat_ngram_size": 2, "typical_p": 0.7, "temperature": 0.8}),
]


def processed(model, row, settings, previous=PREVIOUS, prompt_length=len(PREVIOUS), source=None):
    settings = dict(settings)
    # As GenerationMixin.generate prepares both before it creates the processors.
    eos = settings.pop("eos_token_id", None)
    if "max_new_tokens" in settings:
        settings["max_length"] = prompt_length + settings.pop("max_new_tokens")
    config = GenerationConfig(do_sample=True, **{"top_k": 0, "top_p": 1.0, "temperature": 1.0, **settings})
    config._eos_token_tensor = None if eos is None else torch.tensor(eos)
    processors = model._get_logits_processor(generation_config=config, input_ids_seq_length=prompt_length, device="cpu",
                                             encoder_input_ids=torch.tensor([source or previous[:prompt_length]]))
    return torch.log_softmax(processors(torch.tensor([previous]), row[None].clone())[0], -1)


def finite(answer):
    return {name: [None if math.isinf(x) else x for x in row.tolist()] for name, row in answer.items()}


def main():
    out = arguments("sampling")
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_embd=4, n_layer=1, n_head=1, n_positions=8, bos_token_id=1,
                                       eos_token_id=2))
    rows = logits()
    cases = []
    for settings in SETTINGS:
        answer = {name: processed(model, row, settings) for name, row in rows.items()}
        cases.append({"settings": settings, "logprobs": finite(answer)})
    of_ids = []
    for previous, prompt_length, settings in OF_IDS:
        answer = {name: processed(model, row, settings, previous, prompt_length) for name, row in rows.items()}
        of_ids.append({"previous_ids": previous, "prompt_length": prompt_length, "settings": settings,
                       "logprobs": finite(answer)})
    for source, previous, prompt_length, settings in OF_SOURCES:
        answer = {name: processed(model, row, settings, previous, prompt_length, source) for name, row in rows.items()}
        of_ids.append({"source_ids": source, "previous_ids": previous, "prompt_length": prompt_length, "settings": settings,
                       "logprobs": finite(answer)})
    write_json(out / "sampling.json", {"meta": meta(SEED), "note": "row ties: compare sorted values under top_p",
                                       "previous_ids": PREVIOUS, "logits": rows, "cases": cases, "cases_of_ids": of_ids})
    print(len(cases) + len(of_ids), "settings")


main()
