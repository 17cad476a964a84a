"""Tiny SentencePiece files without a `tokenizer.json`, and the results of the fast tokenizers of transformers 4 for them,
class by class. Needs transformers 4.57.1, sentencepiece and protobuf; no torch."""

import argparse
import json
import shutil
import tempfile
from pathlib import Path

import sentencepiece
import transformers
from transformers import AutoTokenizer

HERE = Path(__file__).parent
FIXTURES = HERE / "../../crates/gradus/tests/fixtures/parity"

# Training text of the pieces.
SUBJECTS = ["The king", "A traveller", "My old friend", "Nobody", "The quick brown fox", "She", "Their daughter"]
VERBS = ["drinks", "sells", "remembers", "counted", "will bring", "has lost", "never wanted"]
OBJECTS = ["the tea", "12,345 apples", "a naïve idea", "“quoted” words", "the ﬁnal chapter", "3, 4 or 15 cups", "Ünïcode"]
ENDS = ["in the morning.", "at noon,", "before the war!", "without a word?", "on the mountain;", "(again)."]
SENTENCES = [f"{s} {v} {o} {e}" for s in SUBJECTS for v in VERBS for o in OBJECTS for e in ENDS]

# Two normalization rules: a ligature, and a wide letter.
RULES = "FB01\t66 69\nFF21\t41\n"

TEXTS = [
    "The king drinks  the tea 12, naïve",
    " leading and trailing ",
    "a\nb\tc",
    "",
    "</s> special <pad> in text",
    "12,345 cups; ``quoted'' \"x\"",
    "<0x41> \u200b中文 Ünï",
    "\u2581under score",
    "a   b\n\n\nc",
    "The KING, and the wife.<mask>[SEP] end [MASK]",
    "the ﬁnal Ａ <extra_id_0> and <start_of_turn>user",
]

# Class, file, training options, content of tokenizer_config.json.
UNIGRAM = {"model_type": "unigram", "vocab_size": 220, "hard_vocab_limit": False}
BPE = {"model_type": "bpe", "vocab_size": 420, "byte_fallback": True, "normalization_rule_name": "identity"}
BPE |= {"split_digits": True, "remove_extra_whitespaces": False}
T5 = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
ALBERT = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "control_symbols": ["[CLS]", "[SEP]", "[MASK]"]}
DEBERTA = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3, "pad_piece": "[PAD]", "bos_piece": "[CLS]"}
DEBERTA |= {"eos_piece": "[SEP]", "unk_piece": "[UNK]"}
GEMMA = {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "eos_piece": "<eos>", "bos_piece": "<bos>"}
GEMMA |= {"user_defined_symbols": ["<start_of_turn>", "<end_of_turn>"]}
CASES = [
    ("t5", "T5Tokenizer", "spiece.model", UNIGRAM | T5, {}),
    ("t5_few", "T5Tokenizer", "spiece.model", UNIGRAM | T5, {"extra_ids": 2}),
    ("albert", "AlbertTokenizer", "spiece.model", UNIGRAM | ALBERT, {}),
    ("albert_cased", "AlbertTokenizer", "spiece.model", UNIGRAM | ALBERT, {"do_lower_case": False, "keep_accents": True}),
    ("deberta", "DebertaV2Tokenizer", "spm.model", UNIGRAM | DEBERTA, {"do_lower_case": False}),
    ("deberta_lower", "DebertaV2Tokenizer", "spm.model", UNIGRAM | DEBERTA, {"do_lower_case": True, "split_by_punct": True}),
    ("xlm_roberta", "XLMRobertaTokenizer", "sentencepiece.bpe.model", UNIGRAM, {}),
    ("llama", "LlamaTokenizer", "tokenizer.model", BPE, {"legacy": True}),
    ("llama_new", "LlamaTokenizer", "tokenizer.model", BPE, {"legacy": False, "add_eos_token": True}),
    ("gemma", "GemmaTokenizer", "tokenizer.model", BPE | GEMMA, {}),
]


def train(folder, options):
    options = dict(options)
    if options.get("normalization_rule_name") is None:
        rules = folder / "rules.tsv"
        rules.write_text(RULES)
        options["normalization_rule_tsv"] = str(rules)
    prefix = folder / "trained"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES), model_prefix=str(prefix), minloglevel=2, num_threads=1, **options
    )
    return prefix.with_suffix(".model")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=FIXTURES / "sentencepiece")
    out = parser.parse_args().out
    shutil.rmtree(out, ignore_errors=True)
    expected = {}
    for name, kind, file, options, config in CASES:
        case = out / name
        case.mkdir(parents=True)
        with tempfile.TemporaryDirectory() as folder:
            (case / file).write_bytes(train(Path(folder), options).read_bytes())
        (case / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind, **config}) + "\n")
        tokenizer = AutoTokenizer.from_pretrained(case, use_fast=True)
        assert tokenizer.is_fast
        rows = []
        for text in TEXTS:
            ids = tokenizer(text)["input_ids"]
            pair = tokenizer(text, "and more")
            rows.append({
                "text": text,
                "ids": ids,
                "pair": pair["input_ids"],
                "decoded": tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False),
            })
        names = ["bos_token", "eos_token", "pad_token", "unk_token"]
        special = {name: getattr(tokenizer, name) for name in names}
        expected[name] = {"size": len(tokenizer), "special": special, "texts": rows}
    versions = {"transformers": transformers.__version__, "sentencepiece": sentencepiece.__version__}
    (out / "expected.json").write_text(json.dumps({"versions": versions, "cases": expected}, ensure_ascii=False, indent=0) + "\n")


if __name__ == "__main__":
    main()
