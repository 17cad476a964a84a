"""Writes the input of both sides: model directories with random weights, and rows of exact token lengths.

    python make_inputs.py --out FOLDER

Nothing is downloaded. A word is a token (`w0`, `w1`, …), so a text of n words has n tokens on both sides. No text
ends early: the last norm's bias points away from the embeddings of the special tokens, so their logits are near −100.
"""

import argparse
import json
import pathlib

import numpy
from safetensors.numpy import save_file

import workloads

SEED = 7
NORM_BIAS = 0.3


def weights(shape, rng):
    """GPT-2's tensors under the names of `transformers`."""
    wide, layers, vocabulary = shape["n_embd"], shape["n_layer"], shape["vocab_size"]

    def normal(*size, deviation=0.02):
        return (rng.standard_normal(size, dtype=numpy.float32) * numpy.float32(deviation)).astype(numpy.float32)

    bias = numpy.full(wide, NORM_BIAS, dtype=numpy.float32)
    table = normal(vocabulary, wide)
    table[-2:] = -100.0 * bias / float(bias @ bias)  # <pad> and <|endoftext|>
    tensors = {"wte.weight": table, "wpe.weight": normal(shape["n_positions"], wide)}
    tensors |= {"ln_f.weight": numpy.ones(wide, numpy.float32), "ln_f.bias": bias}
    for layer in range(layers):
        for norm in ("ln_1", "ln_2"):
            tensors[f"h.{layer}.{norm}.weight"] = numpy.ones(wide, numpy.float32)
            tensors[f"h.{layer}.{norm}.bias"] = numpy.zeros(wide, numpy.float32)
        for name, into, out in (("attn.c_attn", 1, 3), ("attn.c_proj", 1, 1), ("mlp.c_fc", 1, 4), ("mlp.c_proj", 4, 1)):
            deviation = 0.02 / (2 * layers) ** 0.5 if name.endswith("c_proj") else 0.02
            tensors[f"h.{layer}.{name}.weight"] = normal(into * wide, out * wide, deviation=deviation)
            tensors[f"h.{layer}.{name}.bias"] = numpy.zeros(out * wide, numpy.float32)
    return {f"transformer.{name}": tensor for name, tensor in tensors.items()}


def tokenizer(vocabulary):
    """A tokenizer file whose tokens are words between spaces."""
    words = {f"w{i}": i for i in range(vocabulary - 2)} | {"<pad>": vocabulary - 2, "<|endoftext|>": vocabulary - 1}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    special = [{"id": words[name], "content": name, **flags} for name in ("<pad>", "<|endoftext|>")]
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "w0"},
    }  # fmt: skip


def write_t5(folder, shape):
    """T5 v1.0 as `transformers` creates it, with the tokenizer of words. Sources and targets end with its end token."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    vocabulary = shape["vocab_size"]
    ids = {"pad_token_id": vocabulary - 2, "eos_token_id": vocabulary - 1, "decoder_start_token_id": vocabulary - 2}
    torch.manual_seed(SEED)
    T5ForConditionalGeneration(T5Config(**shape, **ids, dropout_rate=0.0)).save_pretrained(folder)
    names = {"eos_token": "<|endoftext|>", "pad_token": "<pad>", "unk_token": "w0"}
    fast = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(vocabulary)))
    (folder / "tokenizer_config.json").write_text(json.dumps(fast, indent=1))


def write_model(folder, shape):
    if "d_model" in shape:
        write_t5(folder, shape)
        return
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = shape["vocab_size"]
    config = {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new",
        "n_inner": None, "layer_norm_epsilon": 1e-5, "initializer_range": 0.02, "tie_word_embeddings": True,
        "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "dtype": "float32", "use_cache": True,
        "bos_token_id": vocabulary - 1, "eos_token_id": vocabulary - 1, "pad_token_id": vocabulary - 2, **shape,
    }  # fmt: skip
    names = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<pad>", "unk_token": "w0"}
    fast = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": shape["n_positions"], **names}
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(vocabulary)))
    (folder / "tokenizer_config.json").write_text(json.dumps(fast, indent=1))
    tensors = weights(shape, numpy.random.default_rng(SEED))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def text(rng, words, vocabulary):
    return " ".join(f"w{i}" for i in rng.integers(0, vocabulary - 2, words))


def pair_lengths(rng, pairs, longest):
    """Lengths of 2 × `pairs` answers with their prompt and eos: evenly spaced from half of the longest to the longest."""
    return [int(length) for length in rng.permutation(numpy.linspace(longest // 2, longest, 2 * pairs).round())]


def rows(work, vocabulary):
    """The rows of all steps of one workload. Every step has the same number of tokens, whatever the order of steps."""
    rng = numpy.random.default_rng(SEED)
    batch, length = work["batch"], work["length"]
    for _ in range(work["max_steps"]):
        if work["kind"] == "sft" and work["group"] == "seq2seq":
            for _ in range(batch):
                # Both sides add an end token to each.
                source, target = (text(rng, words - 1, vocabulary) for words in (length, work["new_tokens"]))
                yield {"prompt": source, "completion": target}
        elif work["kind"] == "sft":
            for _ in range(batch):
                yield {"text": text(rng, length - 1, vocabulary)}  # both sides add the end-of-text token
        elif work["kind"] in ("dpo", "reward"):
            prompt = length // 4
            lengths = pair_lengths(rng, batch, length)
            for chosen, rejected in zip(lengths[::2], lengths[1::2]):
                answers = [" " + text(rng, total - prompt - 1, vocabulary) for total in (chosen, rejected)]
                yield {"prompt": text(rng, prompt, vocabulary), "chosen": answers[0], "rejected": answers[1]}
        else:
            for _ in range(batch):
                # A source gets an end token, on both sides.
                yield {"prompt": text(rng, length - (work["group"] == "seq2seq"), vocabulary)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder to write models and rows to")
    parser.add_argument("--only", type=workloads.names, default=None, help="workloads by name, group or kind, separated by commas")
    arguments = parser.parse_args()
    for work in workloads.chosen(arguments.only):
        shape = workloads.MODELS[work["model"]]
        model = arguments.out / "models" / work["model"]
        if not (model / "model.safetensors").exists():
            write_model(model, shape)
        file = workloads.rows_file(arguments.out, work)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json.dumps(row) + "\n" for row in rows(work, shape["vocab_size"])))


if __name__ == "__main__":
    main()
