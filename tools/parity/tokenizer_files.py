"""The keys of `tokenizer_config.json`, and the files next to it, that change the ids of a text: small byte-level vocabularies, and the ids
of the classes of transformers for them. Needs transformers 5.23; no torch."""

import argparse
import json
import shutil
import tempfile
from pathlib import Path

import tokenizers
import transformers
from transformers import AutoTokenizer

HERE = Path(__file__).parent
FIXTURES = HERE / "../../crates/gradus/tests/fixtures/parity"

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
TEXTS = [
    "the tea",
    "  the tea, and a cup",
    "<s>a</s>the tea",
    "a  <mask> b",
    "the <|endoftext|> tea",
    "a <tool> b  foo  food",
    "<pad> a<new>b",
    "",
]


def token(content, special, **flags):
    usual = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    return {"content": content, "special": special} | usual | flags


def added(content, **flags):
    """A token as `tokenizer_config.json` names it, with flags."""
    return {"__type": "AddedToken"} | token(content, True, **flags)


def base():
    """The vocabulary of `rows/`, with other special tokens. Two more tokens are in the vocabulary, but not special."""
    whole = json.loads((FIXTURES / "rows/tokenizer/tokenizer.json").read_text())
    taken = {entry["content"] for entry in whole["added_tokens"]}
    pieces = sorted(whole["model"]["vocab"].items(), key=lambda item: item[1])
    pieces = SPECIAL + [piece for piece, _ in pieces if piece not in taken] + ["<|endoftext|>", "<mask>"]
    vocab = {piece: at for at, piece in enumerate(pieces)}
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in whole["model"]["merges"]]
    whole["model"] |= {"vocab": vocab, "merges": [pair.split(" ") for pair in merges]}
    whole["added_tokens"] = [{"id": vocab[content]} | token(content, True) for content in SPECIAL]
    before = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    texts = [{"Sequence": {"id": name, "type_id": at}} for at, name in enumerate("AB")]
    whole["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [before, texts[0]],
        "pair": [before, *texts],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
    }
    return whole, vocab, merges


def cases(size):
    whole, old = ["tokenizer.json"], ["vocab.json", "merges.txt"]
    backend, gpt2 = {"tokenizer_class": "PreTrainedTokenizerFast"}, {"tokenizer_class": "GPT2Tokenizer"}
    neox = {"tokenizer_class": "GPTNeoXTokenizer", "pad_token": "<pad>"}
    llama, roberta = {"tokenizer_class": "LlamaTokenizer"}, {"tokenizer_class": "RobertaTokenizer"}
    bytes_level = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    spaced = {"pre_tokenizer": bytes_level | {"add_prefix_space": True}}
    around = {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0], "trim_offsets": True, "add_prefix_space": False}
    around = {"post_processor": around}
    # As `save_pretrained` of transformers 4 writes them: all added tokens, not only new ones.
    listed = {str(at): token(content, True) for at, content in enumerate(SPECIAL)}
    tool = listed | {str(size): token("<tool>", True, rstrip=True)}
    foo = {str(size + 1): token("foo", False, single_word=True, normalized=True)}
    ends = {"bos_token": "<s>", "eos_token": "</s>"}

    def case(files, config, tokenizer=None, **others):
        return {"files": files, "tokenizer": tokenizer or {}, "others": {"tokenizer_config.json": config} | others}

    mapped = {"additional_special_tokens": ["<tool>"], "eos_token": token("</s>", True)}
    return {
        # `tokenizer.json` decides about the tokens around a text.
        "ends_backend_no_bos": case(whole, backend | ends | {"add_bos_token": False}),
        "ends_backend_eos": case(whole, backend | ends | {"add_bos_token": True, "add_eos_token": True}),
        "ends_gpt2": case(whole, gpt2 | ends | {"add_bos_token": False, "add_eos_token": True}),
        "ends_llama": case(whole, llama | ends | {"add_bos_token": False, "add_eos_token": True}),
        # The class decides about the space before a text.
        "space_gpt2": case(whole, gpt2 | {"add_prefix_space": True}),
        "space_neox": case(whole, neox, spaced),
        "ends_neox": case(whole, neox | ends | {"add_bos_token": True, "add_eos_token": True}),
        "space_roberta": case(whole, roberta | {"add_prefix_space": True}, around),
        "space_bart": case(whole, {"tokenizer_class": "BartTokenizer", "add_prefix_space": True}, around),
        "space_only_in_file_gpt2": case(whole, gpt2, spaced),
        "space_only_in_file_backend": case(whole, backend, spaced),
        "space_backend": case(whole, backend | {"add_prefix_space": True}),
        "space_by_model": case(whole, {"add_prefix_space": True}, **{"config.json": {"model_type": "gpt2"}}),
        # Tokens that `tokenizer.json` lacks.
        "tokens_by_id": case(whole, gpt2 | {"added_tokens_decoder": tool | foo}),
        "tokens_by_id_backend": case(whole, backend | {"added_tokens_decoder": tool | foo}),
        "tokens_by_id_only": case(
            whole, gpt2 | {"added_tokens_decoder": tool}, **{"added_tokens.json": {"foo": size + 1}}
        ),
        "tokens_in_file": case(whole, gpt2, **{"added_tokens.json": {"<tool>": size, "foo": size + 1}}),
        "tokens_with_flags": case(whole, backend | {"added_tokens_decoder": listed | {"2": token("</s>", True, rstrip=True)}}),
        "tokens_additional": case(whole, gpt2 | {"additional_special_tokens": ["<tool>", "<|endoftext|>", "<mask>"]}),
        "tokens_extra": case(whole, backend | {"extra_special_tokens": [added("<tool>", lstrip=True), "foo"]}),
        "tokens_extra_named": case(whole, backend | {"extra_special_tokens": {"tool_token": "<tool>"}}),
        "tokens_named": case(whole, backend | {"pad_token": "<new>", "mask_token": added("<mask>", lstrip=True)}),
        "tokens_in_map": case(whole, backend, **{"special_tokens_map.json": mapped}),
        "names_in_map": case(whole, backend | ends, **{"special_tokens_map.json": {"eos_token": "<pad>"}}),
        "names_in_map_and_ids": case(
            whole, backend | ends | {"added_tokens_decoder": listed}, **{"special_tokens_map.json": {"eos_token": "<pad>"}}
        ),
        "split": case(whole, backend | ends | {"split_special_tokens": True}),
        # Older files.
        "old_space_gpt2": case(old, gpt2 | {"add_prefix_space": True}),
        "old_gpt2": case(old, gpt2),
        "old_gpt2_other_names": case(old, gpt2 | ends | {"unk_token": "<unk>"}),
        "old_gpt2_bos": case(old, gpt2 | {"add_bos_token": True}),
        "old_gpt2_eos": case(old, gpt2 | ends | {"add_eos_token": True}),
        "old_neox": case(old, neox),
        "old_neox_eos": case(old, neox | {"add_eos_token": True}),
        "old_roberta": case(old, roberta),
        "old_roberta_ends": case(old, roberta | {"add_bos_token": True, "add_eos_token": False}),
        "old_roberta_space": case(old, roberta | {"add_prefix_space": True}),
        "old_roberta_mask": case(old, roberta | {"mask_token": added("<mask>", lstrip=True, normalized=True)}),
        "old_bart": case(old, {"tokenizer_class": "BartTokenizer"}),
        "old_tokens_by_id": case(old, roberta | {"added_tokens_decoder": tool | foo}),
        "old_tokens_in_file": case(old, gpt2, **{"added_tokens.json": {"<tool>": size, "foo": size + 1}}),
        "old_tokens_named": case(old, gpt2 | {"pad_token": "<new>"}),
        "old_split": case(old, roberta | {"split_special_tokens": True}),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=FIXTURES / "tokenizers")
    out = parser.parse_args().out
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    whole, vocab, merges = base()
    (out / "tokenizer.json").write_text(json.dumps(whole, ensure_ascii=False) + "\n")
    (out / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False) + "\n")
    (out / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{pair}\n" for pair in merges))
    found = cases(len(vocab))
    for name, case in found.items():
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            for file in case["files"]:
                shutil.copy(out / file, folder)
            if case["tokenizer"]:
                (folder / "tokenizer.json").write_text(json.dumps(whole | case["tokenizer"]))
            for file, content in case["others"].items():
                (folder / file).write_text(json.dumps(content))
            tokenizer = AutoTokenizer.from_pretrained(folder)
            ids = [tokenizer(text)["input_ids"] for text in TEXTS]
            case |= {"class": type(tokenizer).__name__, "size": len(tokenizer), "eos": tokenizer.eos_token, "ids": ids}
    versions = {"transformers": transformers.__version__, "tokenizers": tokenizers.__version__}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(case)}" for name, case in found.items())
    head = f'"versions": {json.dumps(versions)},\n"texts": {json.dumps(TEXTS)},\n'
    (out / "cases.json").write_text(f'{{\n{head}"cases": {{\n{lines}\n}}\n}}\n')


if __name__ == "__main__":
    main()
