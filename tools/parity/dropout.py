"""The places where transformers applies dropout and NEFTune's noise: models of `models.py`, `seq2seq.py` and `encoders.py` in training,
with masks and noise that are a function of a key. Run after them.

Every call of `torch.nn.functional.dropout` uses the mask that gradus defines for its place: a number is dropped
if `mix(key of the place + index) >> 32 < p · 2³²`. The sequences are packed end to end, so the second begins at row T₁.
Noise is added by transformers' own hook, whose uniform numbers are those that gradus defines for the place of a number in its sequence.

fixture.json          for each model its probabilities, the key, sequences (or sources and targets), loss (mean next-token NLL)
                      for each classifier its probabilities, logits of the first two rows of its fixture, and of their sum, each
                      times its weight, the sum of squares of every gradient
                      for each model with noise its alpha, sequences, loss, the last logits of each sequence, and the sum of squares
                      of every gradient
<model>.safetensors   logits.<i> of sequence i; grad.<state dict name> of the loss, of the first block's attention
"""

import json

import numpy as np
from common import FIXTURES, arguments, meta, write_json

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)
from transformers.integrations.neftune import activate_neftune

SEED = 70
KEY = 0x0123_4567_89AB_CDEF
CASES = {
    "gpt2": dict(embd_pdrop=0.1, attn_pdrop=0.2, resid_pdrop=0.3),
    "pythia": dict(hidden_dropout=0.15, attention_dropout=0.2),
    "opt": dict(dropout=0.15, attention_dropout=0.2),
    "qwen3": dict(attention_dropout=0.25),
    "mistral-window": dict(attention_dropout=0.25),
    "gemma2": dict(attention_dropout=0.25),
    "phi3-window": dict(attention_dropout=0.2, resid_pdrop=0.15),
}
ACROSS = {
    "t5-gated": dict(dropout_rate=0.15),
    # Norms after and before the output of a block is added.
    "bart": dict(dropout=0.15, attention_dropout=0.2, activation_dropout=0.1),
    "blenderbot": dict(dropout=0.15, attention_dropout=0.2, activation_dropout=0.1),
}
HIDDEN = dict(hidden_dropout_prob=0.15, attention_probs_dropout_prob=0.2)
CLASSIFIERS = {
    "bert": dict(**HIDDEN, classifier_dropout=0.3),
    "bert-token": HIDDEN,
    "roberta": HIDDEN,
    "distilbert": dict(dropout=0.15, attention_dropout=0.2, seq_classif_dropout=0.3),
    "albert": dict(**HIDDEN, classifier_dropout_prob=0.3),
    "modernbert": dict(embedding_dropout=0.1, attention_dropout=0.15, mlp_dropout=0.2, classifier_dropout=0.3),
    "deberta": dict(**HIDDEN, pooler_dropout=0.1),
    "deberta-token": HIDDEN,
    "deberta-v1": dict(**HIDDEN, pooler_dropout=0.1),
}
# Noise before positions are added (gpt2), after a factor of the embeddings (gemma2), before one (granite), and without either.
NOISE = {"gpt2": 5.0, "pythia": 5.0, "opt-narrow": 5.0, "gemma2": 40.0, "granite": 5.0, "qwen3": 10.0}
EMBEDDING, ATTENDED, FED_FORWARD, ATTENTION = 1, 2, 3, 4
DECODER_EMBEDDING, CROSSED, CROSS_ATTENTION, ACTIVATION, ENCODED, DECODED = 5, 6, 7, 8, 9, 10
RELATIVE, HEAD = 11, 12
WORD = (1 << 64) - 1


def mix(index):
    """SplitMix64 on integers modulo 2⁶⁴."""
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
        tokens, width = x.shape[-2:]
        key = key_of(*place)
        dropped = [[is_dropped(key + (row + t) * width + d, p) for d in range(width)] for t in range(tokens)]
    return torch.tensor(np.where(dropped, 0.0, 1 / (1 - p)), dtype=torch.float32).reshape(x.shape)


def places(model):
    """The places in the order of a forward pass."""
    blocks = range(model.config.num_hidden_layers)
    if model.config.model_type in ("gpt2", "gpt_neox"):
        return [(EMBEDDING, 0)] + [(kind, i) for i in blocks for kind in (ATTENTION, ATTENDED, FED_FORWARD)]
    if model.config.model_type in ("opt", "phi3"):
        return [(kind, i) for i in blocks for kind in (ATTENTION, ATTENDED, FED_FORWARD)]
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
        parts = (".0.attn.c_attn", ".0.self_attn.q_proj", ".0.self_attn.v_proj", ".0.self_attn.qkv_proj", ".0.mlp.gate_up",
                 ".0.attention.query_key_value")
        if any(part in key for part in parts):
            tensors[f"grad.{key}"] = parameter.grad.contiguous()
    save_file(tensors, out / f"{name}.safetensors")
    return {"model": name, "probabilities": probabilities, "sequences": rows, "loss": loss}


def places_across(model, source, target):
    """The places of a T5 or a BART in the order of a forward pass, each with the first packed row."""
    config = model.config
    is_t5 = hasattr(config, "num_decoder_layers")
    layers, others = (config.num_layers, config.num_decoder_layers) if is_t5 else (config.encoder_layers, config.decoder_layers)
    encoder, decoder = range(layers), range(layers, layers + others)
    # Only T5 applies dropout to the output of a stack.
    end = lambda place: [(place, 0)] if is_t5 else []
    fed = (ACTIVATION, FED_FORWARD)
    of_encoder = [(EMBEDDING, 0)] + [(kind, i) for i in encoder for kind in (ATTENTION, ATTENDED, *fed)] + end(ENCODED)
    own = (ATTENTION, ATTENDED, CROSS_ATTENTION, CROSSED)
    of_decoder = [(DECODER_EMBEDDING, 0)] + [(kind, i) for i in decoder for kind in (*own, *fed)] + end(DECODED)
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
        is_first = ".block.0." in key or ".layers.0." in key and key.endswith("weight")
        if is_first and any(part in key for part in (".q.", ".v.", "relative", ".q_proj.", ".v_proj.")):
            tensors[f"grad.{key}"] = parameter.grad.contiguous()
    save_file(tensors, out / f"{name}.safetensors")
    sources, targets = zip(*pairs)
    return {"model": name, "probabilities": probabilities, "sources": sources, "targets": targets, "loss": loss}


def places_of_classifier(model, row, sequence):
    """The places in the order of a forward pass, each with the first row of its mask."""
    config, kind = model.config, model.config.model_type
    blocks = range(config.num_hidden_layers * getattr(config, "inner_group_num", 1))
    of_block = {
        "distilbert": (ATTENTION, FED_FORWARD), "albert": (ATTENTION, ATTENDED), "deberta-v2": (RELATIVE, ATTENTION, ATTENDED, FED_FORWARD),
        "deberta": (RELATIVE, ATTENTION, ATTENDED, FED_FORWARD),
        "modernbert": (ATTENTION, ATTENDED, ACTIVATION),
    }.get(kind, (ATTENTION, ATTENDED, FED_FORWARD))
    # All texts share the table of distances.
    of_blocks = [((place, i), 0 if place == RELATIVE else row) for i in blocks for place in of_block]
    of_texts = type(model).__name__.endswith("ForSequenceClassification")
    layers = (0, 1) if of_texts and kind in ("roberta", "deberta", "deberta-v2") else (1,)
    return [((EMBEDDING, 0), row)] + of_blocks + [((HEAD, i), sequence if of_texts else row) for i in layers]


def run_classifier(name, probabilities):
    path = FIXTURES / "encoders" / name
    kind = AutoModelForTokenClassification if name.endswith("-token") else AutoModelForSequenceClassification
    model = kind.from_pretrained(path, attn_implementation="eager", dtype=torch.float32, **probabilities).train()
    rows = json.loads((path / "expected.json").read_text())["rows"][:2]
    weights = load_file(path / "expected.safetensors")
    plain, logits, start = torch.nn.functional.dropout, [], 0
    for i, row in enumerate(rows):
        left = places_of_classifier(model, start, i)

        def drop(x, p=0.5, training=True, inplace=False):
            assert training
            place, first = left.pop(0)
            return x * mask(x, place, p, first)

        types = {"token_type_ids": torch.tensor([row["types"]])} if "types" in row else {}
        ids = torch.tensor([row["ids"]])
        torch.nn.functional.dropout = drop
        logits.append(model(input_ids=ids, attention_mask=torch.ones_like(ids), **types).logits[0])
        torch.nn.functional.dropout = plain
        assert not left, left
        start += len(row["ids"])
    sum((z * weights[f"weights.{i}"]).sum() for i, z in enumerate(logits)).backward()
    squares = {key: parameter.grad.square().sum().item() for key, parameter in model.named_parameters() if parameter.grad is not None}
    return {"model": name, "probabilities": probabilities, "logits": logits, "squares": squares}


def run_noisy(name, alpha):
    model = AutoModelForCausalLM.from_pretrained(FIXTURES / "models" / name, attn_implementation="eager", dtype=torch.float32)
    model.train()
    generator = torch.Generator().manual_seed(SEED)
    rows = [torch.randint(3, model.config.vocab_size, (length,), generator=generator).tolist() for length in (5, 14)]
    activate_neftune(model, alpha)
    plain, logits = torch.Tensor.uniform_, []
    for i, row in enumerate(rows):
        key = mix(KEY ^ mix((i << 32) + 1))

        def uniform(zeros, low, high):
            assert low == -high
            units = [(mix(key + j & WORD) >> 40) / 2**23 - 1 for j in range(zeros.numel())]
            return torch.tensor(units, dtype=torch.float32).reshape(zeros.shape) * high

        torch.Tensor.uniform_ = uniform
        logits.append(model(input_ids=torch.tensor([row]), use_cache=False).logits[0])
        torch.Tensor.uniform_ = plain
    sums = [torch.nn.functional.cross_entropy(z[:-1], torch.tensor(row[1:]), reduction="sum") for z, row in zip(logits, rows)]
    loss = sum(sums) / sum(len(row) - 1 for row in rows)
    loss.backward()
    squares = {key: parameter.grad.square().sum().item() for key, parameter in model.named_parameters()}
    return {"model": name, "alpha": alpha, "sequences": rows, "loss": loss, "last_logits": [z[-1] for z in logits], "squares": squares}


def main():
    out = arguments("dropout")
    cases = [run(name, probabilities, out) for name, probabilities in CASES.items()]
    across = [run_across(name, probabilities, out) for name, probabilities in ACROSS.items()]
    classifiers = [run_classifier(name, probabilities) for name, probabilities in CLASSIFIERS.items()]
    noise = [run_noisy(name, alpha) for name, alpha in NOISE.items()]
    write_json(out / "fixture.json", {"meta": meta(SEED, "safetensors"), "key": str(KEY), "cases": cases, "across": across,
                                      "classifiers": classifiers, "noise": noise})


main()
