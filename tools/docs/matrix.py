#!/usr/bin/env python3
"""Tries every method with every family of models, and writes the result to docs/support.md.

    tools/docs/matrix.py --gradus target/debug/gradus            writes the page (a few minutes)
    tools/docs/matrix.py --gradus target/debug/gradus --run      also takes two steps of every combination (much longer)
    tools/docs/matrix.py --gradus target/debug/gradus --check    checks that the page has every method and family (a second)

The script makes a model of two layers of each family. `gradus plan` then checks each method with it, with all weights and with LoRA.
It opens the model and the rows and refuses combinations that cannot be trained. One method of each family also takes two steps. The script also tries
the formats of an adapter's base and of files for each family.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import standins
from pages import ROOT

PAGE = ROOT / "docs/support.md"
METHODS = [*standins.OFFLINE, *standins.ONLINE]
ENCODERS = ["bert", "distilbert", "roberta", "longformer", "albert", "modernbert", "deberta", "deberta-v2"]
WAYS = {"W": [], "L": ["--lora-rank", "2"]}
# Formats of an adapter's frozen base. They do not depend on the method.
BASES = ["bf16", "int8", "nf4"]


class Tried:
    def __init__(self, gradus: pathlib.Path, folder: pathlib.Path) -> None:
        self.gradus, self.folder = gradus, folder
        self.environment = {**os.environ, "HF_HUB_OFFLINE": "1"}

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.gradus), "--quiet", *words]
        return subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False)

    def works(self, what: str, *words: str) -> bool:
        """Whether a command succeeds. A refusal has exit code 1 and a message. Any other failure ends the script."""
        done = self.call(*words)
        if done.returncode not in (0, 1, 2) or (done.returncode != 0 and "error:" not in done.stderr):
            raise SystemExit(f"{what}: exit code {done.returncode}\n{done.stderr}")
        return done.returncode == 0


def families(gradus: pathlib.Path) -> tuple[list[str], list[str]]:
    """Decoders (and models with an encoder and a decoder), and encoders, as the binary lists them."""
    with tempfile.TemporaryDirectory() as folder:
        standins.tokenizer(pathlib.Path(folder) / "words", {})
        words = ["new-model", "--family", "no-such-family", "--tokenizer", "words", "--output", "model"]
        told = Tried(gradus, pathlib.Path(folder)).call(*words).stderr
    listed = re.search(r"hint: the families are (.*)", told)
    if not listed:
        raise SystemExit(f"new-model lists no families:\n{told}")
    names = [name.strip(" `") for name in re.split(r",| and ", listed.group(1)) if name.strip(" `")]
    return [name for name in names if not is_encoder(name)], [name for name in names if is_encoder(name)]


def is_encoder(name: str) -> bool:
    return name in ENCODERS or "roberta" in name or name == "camembert"


def arguments(method: str, model: str) -> list[str]:
    data = {
        "sft": "rows",
        "classify": "labeled",
        "kto": "marked",
        "distill": "rows",
        **dict.fromkeys(standins.ONLINE, "prompts"),
    }.get(method, "pairs")
    words = [method, "--model", model, "--data", f"{data}.jsonl", "--max-steps", "2", "--batch-size", "4"]
    words += ["--eval-steps", "-1", "--eval-fraction", "0", "--max-length", "96", "--overwrite", "--output-dir", "run"]
    words += ["--threads", "1"]
    if method in standins.ONLINE:
        words += ["--reward-rule-substring", "kettle", "--max-new-tokens", "6"]
    if method == "distill":
        words += ["--teacher-model", model, "--max-new-tokens", "6"]
    return words


def page(tried: Tried, decoders: list[str], encoders: list[str], everything: bool) -> str:
    table: dict[str, dict[str, str]] = {}
    exported: dict[str, list[str]] = {}
    for family in [*decoders, *encoders]:
        encoder = family in encoders
        words = tried.folder / ("words-encoder" if encoder else "words")
        more = ["--labels", "bad,good"] if encoder else []
        made = tried.call("new-model", "--family", family, "--tokenizer", str(words), "--output", family, *more)
        if made.returncode != 0:
            raise SystemExit(f"{family}: {made.stderr}")
        table[family] = {}
        for method in METHODS:
            words_of = arguments(method, family)
            marks = []
            for way, flags in WAYS.items():
                command = [*words_of, *flags]
                is_planned = tried.works(f"{method} {family}", "plan", *command)
                is_run = everything or method == ("classify" if encoder else "sft")
                if is_planned and is_run and not tried.works(f"{method} {family}", *command):
                    raise SystemExit(f"{method} {family} {flags}: `plan` accepts this run, but the run fails: {tried.call(*command).stderr}")
                marks += [way] if is_planned else []
            table[family][method] = "".join(marks)
            print(f"{family} {method}: {table[family][method] or '-'}", file=sys.stderr, flush=True)
        forms = {
            "GGUF": ["export", "--model", family, "--output", "model.gguf", "--overwrite"],
            "INT8": ["quantize", "--model", family, "--format", "int8", "--output", "small", "--overwrite"],
            "NF4": ["quantize", "--model", family, "--format", "nf4", "--output", "small", "--overwrite"],
        }
        exported[family] = [form for form, command in forms.items() if tried.works(f"{form} {family}", *command)]
        words_of = [*arguments("classify" if encoder else "sft", family), "--lora-rank", "2"]
        works = [base for base in BASES if tried.works(f"{base} {family}", *words_of, "--frozen-weights", base)]
        exported[family] += [f"base in {base}" for base in works]
    return markdown(table, exported, decoders, encoders)


def rows(names: list[str], methods: list[str], table: dict[str, dict[str, str]]) -> list[str]:
    lines = ["| family | " + " | ".join(f"`{method}`" for method in methods) + " |", "|---" * (len(methods) + 1) + "|"]
    for family in names:
        cells = [table[family][method] for method in methods]
        lines.append(f"| `{family}` | " + " | ".join(cells) + " |")
    return lines


def markdown(table: dict, exported: dict, decoders: list[str], encoders: list[str]) -> str:
    trained = [method for method in METHODS if any(table[family][method] for family in decoders)]
    of_encoders = [method for method in METHODS if any(table[family][method] for family in encoders)]
    lines = [
        "# What works with what",
        "",
        "`tools/docs/matrix.py` writes this page. It makes a small model of each family and checks each method with `gradus plan`. A mark means",
        "that gradus accepts the run. An empty cell means that gradus refuses the combination with a message.",
        "",
        "| mark | trained |",
        "|---|---|",
        "| W | all weights |",
        "| L | a LoRA adapter |",
        "",
        "## Language models",
        "",
        "Families are named as `model_type` in `config.json` and in `gradus new-model --family`.",
        "",
        *rows(decoders, trained, table),
        "",
        "## Encoders",
        "",
        *rows(encoders, of_encoders, table),
        "",
        "## Formats of weights",
        "",
        "Every family is read and written as a Hugging Face directory in f32, bf16 or f16 (`train.saved_weights`). Other formats depend on the",
        "family ([files](formats.md)). *Base* is the frozen base of an adapter in memory (`train.frozen_weights`). *Quantized* is a directory that",
        "`gradus quantize` writes. *GGUF* is a file that `gradus export` writes. This command can also refuse a tokenizer. All models of this",
        "page have a byte-level BPE tokenizer.",
        "",
        "| family | base in bf16 | base in INT8 | base in NF4 | quantized to INT8 | quantized to NF4 | GGUF |",
        "|---|---|---|---|---|---|---|",
    ]
    for family in [*decoders, *encoders]:
        forms = [*(f"base in {base}" for base in BASES), "INT8", "NF4", "GGUF"]
        cells = ["yes" if form in exported[family] else "" for form in forms]
        lines.append(f"| `{family}` | " + " | ".join(cells) + " |")
    lines += [
        "",
        "## Devices",
        "",
        "All combinations compute on the CPU. With the cargo feature `cuda` or `wgpu`, the same models compute on a GPU in f32",
        "([devices](devices.md)). A base in INT8 or NF4 needs the CPU.",
        "",
    ]
    return "\n".join(lines)


def check(decoders: list[str], encoders: list[str]) -> int:
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    missing = [name for name in [*decoders, *encoders] if f"| `{name}` |" not in text]
    missing += [method for method in METHODS if f" `{method}` |" not in text]
    if missing:
        print(f"docs/support.md lacks {', '.join(missing)}: run tools/docs/matrix.py again", file=sys.stderr)
        return 1
    print(f"docs/support.md: {len(decoders)} families of language models, {len(encoders)} of encoders, {len(METHODS)} methods")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gradus", required=True, type=pathlib.Path, help="the binary")
    parser.add_argument("--run", action="store_true", help="also take two steps of every combination")
    parser.add_argument("--check", action="store_true", help="check that the page has every method and family")
    options = parser.parse_args()
    gradus = options.gradus.resolve()
    decoders, encoders = families(gradus)
    if options.check:
        return check(decoders, encoders)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        standins.tokenizer(folder / "words", {})
        special = {"bos_token": "<s>", "cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>"}
        standins.tokenizer(folder / "words-encoder", special)
        for file in ["rows", "pairs", "prompts", "labeled"]:
            text = standins.lines(standins.rows_of(f"{file}.jsonl")[:16])
            (folder / f"{file}.jsonl").write_text(text, encoding="utf-8")
        marked = [{**row, "label": i % 2 == 0} for i, row in enumerate(standins.rows_of("rows.jsonl")[:16])]
        for row in marked:
            del row["prediction"], row["references"]
        (folder / "marked.jsonl").write_text(standins.lines(marked), encoding="utf-8")
        text = page(Tried(gradus, folder), decoders, encoders, options.run)
        PAGE.write_text(text, encoding="utf-8")
    return check(decoders, encoders)


if __name__ == "__main__":
    sys.exit(main())
