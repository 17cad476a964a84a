"""Exports the fixture models with gradus and compares llama.cpp's logits with those of transformers.

    python gguf_logits.py --gradus target/debug/gradus [--tokenizers DIR ...]

Needs `llama-cpp-python` and `gguf`, which are not in the requirements. Writes nothing into the repository. For every model of `models/` that can be
exported, it prints the largest difference of a logit in f32, and the mean one in bf16 and q8_0, relative to the largest logit.
In llama.cpp, Gemma's and GPT-2's GELU is a table of half precision, and q8_0 also rounds activations. `--tokenizers` names model directories
whose tokenizers are also compared: ids of our own texts.
"""

import argparse
import ctypes
import json
import os
import pathlib
import subprocess
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import llama_cpp
import numpy
from safetensors.numpy import load_file

FIXTURES = pathlib.Path(__file__).resolve().parents[2] / "crates/gradus/tests/fixtures/parity"
BOUNDS = {"f32": 2e-3, "bf16": 1e-2, "q8_0": 5e-2}
TEXTS = ["Hello world", "The price is 1234.50 euros.", " two  spaces\n\nand lines", "naïve café – 漢字 🙂", "don't WE'LL it's", "x=1;\n\ty=22"]


def export(gradus, model, weights, out):
    call = [gradus, "-q", "export", "--model", str(model), "--weights", weights, "--output", str(out)]
    found = subprocess.run(call, capture_output=True, text=True)
    return None if found.returncode == 0 else found.stderr.strip().splitlines()[0]


def scaled(source, to):
    """The model with scores divided by the root of a head's width, as llama.cpp computes Gemma's, and its logits from transformers."""
    import torch
    from transformers import AutoModelForCausalLM

    config = json.loads((source / "config.json").read_text())
    if config.get("query_pre_attn_scalar", config.get("head_dim")) == config.get("head_dim"):
        return source, load_file(source / "expected.safetensors")
    to.mkdir()
    config["query_pre_attn_scalar"] = config["head_dim"]
    (to / "config.json").write_text(json.dumps(config))
    (to / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes())
    model = AutoModelForCausalLM.from_pretrained(to, attn_implementation="eager", dtype=torch.float32).eval()
    rows = json.loads((source / "expected.json").read_text())["sequences"]
    with torch.no_grad():
        return to, {f"logits.{i}": model(torch.tensor([row])).logits[0].numpy() for i, row in enumerate(rows)}


def logits(file, rows, vocabulary):
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = 0
    model = llama_cpp.llama_model_load_from_file(str(file).encode(), params)
    assert model, file
    found = []
    for row in rows:
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = options.n_batch = options.n_ubatch = 64
        options.n_threads = options.n_threads_batch = 1
        options.flash_attn_type = 0
        # The cache in full precision.
        options.type_k = options.type_v = 0
        context = llama_cpp.llama_init_from_model(model, options)
        batch = llama_cpp.llama_batch_init(len(row), 0, 1)
        batch.n_tokens = len(row)
        for i, token in enumerate(row):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, i, 1, 0, 1
        assert llama_cpp.llama_decode(context, batch) == 0
        values = [numpy.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, i), (vocabulary,)).copy() for i in range(len(row))]
        found.append(numpy.stack(values))
        llama_cpp.llama_batch_free(batch)
        llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
    return found


def compare(gradus, source, folder):
    model, wanted = scaled(source, folder / source.name)
    rows = json.loads((source / "expected.json").read_text())["sequences"]
    config = json.loads((source / "config.json").read_text())
    # At most the file's number of tokens is computed, because a window is the whole context of some models.
    limit = 10**9 if config["model_type"].startswith("gemma") else config.get("sliding_window") or 10**9
    rows = [row[:limit] for row in rows]
    for weights, bound in BOUNDS.items():
        file = folder / f"{source.name}-{weights}.gguf"
        if reason := export(gradus, model, weights, file):
            return print(f"{source.name}: {reason}")
        worst = 0.0
        for i, found in enumerate(logits(file, rows, config["vocab_size"])):
            expected = wanted[f"logits.{i}"][: len(rows[i])]
            far = numpy.abs(found - expected)
            worst = max(worst, float((far.max() if weights == "f32" else far.mean()) / numpy.abs(expected).max()))
        print(f"{source.name}, {weights}: {worst:.1e}")
        assert worst < bound, (source.name, weights, worst)


def tokenizer(gradus, directory, folder):
    from transformers import AutoTokenizer

    file = folder / f"tokenizer-{pathlib.Path(directory).name}.gguf"
    if reason := export(gradus, directory, "q8_0", file):
        return print(f"{directory}: {reason}")
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(file).encode(), params)
    vocabulary = llama_cpp.llama_model_get_vocab(model)
    theirs = AutoTokenizer.from_pretrained(directory)
    differ = 0
    for text in TEXTS:
        data, buffer = text.encode(), (ctypes.c_int32 * 256)()
        count = llama_cpp.llama_tokenize(vocabulary, data, len(data), buffer, 256, True, True)
        found, wanted = list(buffer[:count]), theirs(text)["input_ids"]
        if found != wanted:
            differ += 1
            print(f"{directory}: {text!r}: {found} instead of {wanted}")
    ends = [llama_cpp.llama_vocab_eos(vocabulary), llama_cpp.llama_vocab_bos(vocabulary)]
    template = llama_cpp.llama_model_chat_template(model, None)
    print(f"{directory}: {len(TEXTS) - differ} of {len(TEXTS)} texts; eos and bos {ends}; template {'yes' if template else 'no'}")
    llama_cpp.llama_model_free(model)


def own_tokenizers(folder):
    """Small models with tokenizers of every kind that can be exported, trained on the texts of this file."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    bytes_alone = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytes_cut = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = pre_tokenizers.Digits(individual_digits=True)
    cuts = {
        "gpt-2": bytes_cut,
        "qwen2": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(words % ""), "isolated"), bytes_alone]),
        "llama-3": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(words % "{1,3}"), "isolated"), bytes_alone]),
        "smollm": pre_tokenizers.Sequence([digits, bytes_cut]),
    }
    special = ["<unk>", "<s>", "</s>", "<|im_end|>"]
    corpus = [pathlib.Path(__file__).read_text(), *TEXTS] * 3
    for name in [*cuts, "sentencepiece", "gemma"]:
        if name in cuts:
            tokenizer = Tokenizer(models.BPE())
            tokenizer.pre_tokenizer, tokenizer.decoder = cuts[name], decoders.ByteLevel()
            alphabet = pre_tokenizers.ByteLevel.alphabet()
            trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
        else:
            tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
            spaces = normalizers.Replace(" ", "\u2581")
            tokenizer.normalizer = spaces if name == "gemma" else normalizers.Sequence([normalizers.Prepend("\u2581"), spaces])
            tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
            fallback = [f"<0x{byte:02X}>" for byte in range(256)]
            trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=special + fallback, show_progress=False)
        # SentencePiece does not split into words. Pieces must not cross a line's beginning, as they do in a text of one word.
        pieces = corpus if name in cuts else [word for text in corpus for word in text.split()]
        tokenizer.train_from_iterator(pieces, trainer)
        out = folder / f"own-{name}"
        fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
        fast.save_pretrained(out)
        if name not in cuts:
            # Bytes are part of the vocabulary, not tokens of their own.
            path = out / "tokenizer.json"
            data = json.loads(path.read_text())
            data["added_tokens"] = [token for token in data["added_tokens"] if not token["content"].startswith("<0x")]
            path.write_text(json.dumps(data))
        size = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=len(fast))
        LlamaForCausalLM(LlamaConfig(**size, bos_token_id=1, eos_token_id=[2, 3], pad_token_id=0)).save_pretrained(out)
        yield out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gradus", required=True)
    parser.add_argument("--tokenizers", nargs="*", default=[])
    options = parser.parse_args()
    quiet = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    with tempfile.TemporaryDirectory() as folder:
        for source in sorted(path for path in (FIXTURES / "models").iterdir() if (path / "expected.json").exists()):
            if not source.name.endswith("-reward"):
                compare(options.gradus, source, pathlib.Path(folder))
        for directory in [*own_tokenizers(pathlib.Path(folder)), *options.tokenizers]:
            tokenizer(options.gradus, directory, pathlib.Path(folder))


main()
