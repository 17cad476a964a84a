"""Where transformers drops what: models of `models.py` and `seq2seq.py` in training, with masks that are a function of a
key; run after them.

Every call of `torch.nn.functional.dropout` is answered with the mask that gradus defines for its place: a number is dropped
where `mix(key of the place + index) >> 32 < p · 2³²`. The sequences are laid end to end, so the second begins at row T₁.

fixture.json          for each model its probabilities, the key, sequences (or sources and targets), loss (mean next-token NLL)
<model>.safetensors   logits.<i> of sequence i; grad.<state dict name> of the loss, of the first block's attention
"""

import numpy as np
from common import FIXTURES, arguments, meta, write_json

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

SEED = 70
KEY = 0x0123_4567_89AB_CDEF
CASES = {
    "gpt2": dict(embd_pdrop=0.1, attn_pdrop=0.2, resid_pdrop=0.3),
    "qwen3": dict(attention_dropout=0.25),
    "mistral-window": dict(attention_dropout=0.25),
}
ACROSS = {
    "t5-gated": dict(dropout_rate=0.15),
}
EMBEDDING, ATTENDED, FED_FORWARD, ATTENTION = 1, 2, 3, 4
DECODER_EMBEDDING, CROSSED, CROSS_ATTENTION, ACTIVATION, ENCODED, DECODED = 5, 6, 7, 8, 9, 10
WORD = (1 << 64) - 1


def mix(index):
    """SplitMix64, of integers modulo 2⁶⁴."""
    z = (index * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) & WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
    return z ^ (z >> 31)


def key_of(kind, block):
    return KEY ^ mix((kind << 32) + block + 1)


def is_dropped(index, p):
    return mix(index & WORD) >> 32 < int(float(np.float32(p)) * 2**32)


def mask(x, place, p, row):
    """`x` is [1, T, D], or [1, H, T, T] of attention; `row` is the first packed row of the sequence."""
    if place[0] in (ATTENTION, CROSS_ATTENTION):
        _, heads, queries, keys = x.shape
        rows = [[mix(key_of(*place) ^ mix((h << 32) + row + q)) for q in range(queries)] for h in range(heads)]
        dropped = [[[is_dropped(of_row + k, p) for k in range(keys)] for of_row in head] for head in rows]
    else:
        _, tokens, width = x.shape
        key = key_of(*place)
        dropped = [[is_dropped(key + (row + t) * width + d, p) for d in range(width)] for t in range(tokens)]
    return torch.tensor(np.where(dropped, 0.0, 1 / (1 - p)), dtype=torch.float32).reshape(x.shape)


def places(model):
    """The places in the order in which a forward pass comes by them."""
    blocks = range(model.config.num_hidden_layers)
    if model.config.model_type == "gpt2":
        return [(EMBEDDING, 0)] + [(kind, i) for i in blocks for kind in (ATTENTION, ATTENDED, FED_FORWARD)]
    return [(ATTENTION, i) for i in blocks]


def run(name, probabilities, out):
    model = AutoModelForCausalLM.from_pretrained(FIXTURES / "models" / name, attn_implementation="eager",
                                                 dtype=torch.float32, **probabilities).train()
    generator = torch.Generator().manual_seed(SEED)
    rows = [torch.randint(3, model.config.vocab_size, (length,), generator=generator).tolist() for length in (5, 14)]
    plain, logits, start = torch.nn.functional.dropout, [], 0
    for row in rows:
        left = places(model)

        def drop(x, p=0.5, training=True, inplace=False):
            assert training
            return x * mask(x, left.pop(0), p, start)

        torch.nn.functional.dropout = drop
        logits.append(model(input_ids=torch.tensor([row]), use_cache=False).logits[0])
        torch.nn.functional.dropout = plain
        assert not left, left
        start += len(row)
    sums = [torch.nn.functional.cross_entropy(z[:-1], torch.tensor(row[1:]), reduction="sum") for z, row in zip(logits, rows)]
    loss = sum(sums) / sum(len(row) - 1 for row in rows)
    loss.backward()
    tensors = {f"logits.{i}": z.detach().contiguous() for i, z in enumerate(logits)}
    for key, parameter in model.named_parameters():
        if ".0.attn.c_attn" in key or ".0.self_attn.q_proj" in key or ".0.self_attn.v_proj" in key:
            tensors[f"grad.{key}"] = parameter.grad.contiguous()
    save_file(tensors, out / f"{name}.safetensors")
    return {"model": name, "probabilities": probabilities, "sequences": rows, "loss": loss}


def places_across(model, source, target):
    """The places of a T5 in the order in which a forward pass comes by them, each with the first packed row."""
    config = model.config
    encoder, decoder = range(config.num_layers), range(config.num_layers, config.num_layers + config.num_decoder_layers)
    fed = (ACTIVATION, FED_FORWARD)
    of_encoder = [(EMBEDDING, 0)] + [(kind, i) for i in encoder for kind in (ATTENTION, ATTENDED, *fed)] + [(ENCODED, 0)]
    own = (ATTENTION, ATTENDED, CROSS_ATTENTION, CROSSED)
    of_decoder = [(DECODER_EMBEDDING, 0)] + [(kind, i) for i in decoder for kind in (*own, *fed)] + [(DECODED, 0)]
    return [(place, source) for place in of_encoder] + [(place, target) for place in of_decoder]


def run_across(name, probabilities, out):
    model = AutoModelForSeq2SeqLM.from_pretrained(FIXTURES / "seq2seq" / name, attn_implementation="eager",
                                                  dtype=torch.float32, **probabilities).train()
    generator = torch.Generator().manual_seed(SEED)
    draw = lambda length: torch.randint(3, model.config.vocab_size, (length,), generator=generator).tolist()
    pairs = [(draw(7), draw(5)), (draw(4), draw(9))]
    plain, logits, start = torch.nn.functional.dropout, [], [0, 0]
    for source, target in pairs:
        left = places_across(model, *start)

        def drop(x, p=0.5, training=True, inplace=False):
            assert training
            place, row = left.pop(0)
            return x * mask(x, place, p, row)

        torch.nn.functional.dropout = drop
        logits.append(model(input_ids=torch.tensor([source]), labels=torch.tensor([target]), use_cache=False).logits[0])
        torch.nn.functional.dropout = plain
        assert not left, left
        start = [start[0] + len(source), start[1] + len(target)]
    sums = [torch.nn.functional.cross_entropy(z, torch.tensor(t), reduction="sum") for z, (_, t) in zip(logits, pairs)]
    loss = sum(sums) / sum(len(target) for _, target in pairs)
    loss.backward()
    tensors = {f"logits.{i}": z.detach().contiguous() for i, z in enumerate(logits)}
    for key, parameter in model.named_parameters():
        if ".block.0." in key and (".q." in key or ".v." in key or "relative" in key):
            tensors[f"grad.{key}"] = parameter.grad.contiguous()
    save_file(tensors, out / f"{name}.safetensors")
    sources, targets = zip(*pairs)
    return {"model": name, "probabilities": probabilities, "sources": sources, "targets": targets, "loss": loss}


def main():
    out = arguments("dropout")
    cases = [run(name, probabilities, out) for name, probabilities in CASES.items()]
    across = [run_across(name, probabilities, out) for name, probabilities in ACROSS.items()]
    write_json(out / "fixture.json", {"meta": meta(SEED, "safetensors"), "key": str(KEY), "cases": cases, "across": across})


main()
