"""Small replacements for the models and files that readers of the documentation have, and a `gradus` that runs their commands with fewer steps."""

from __future__ import annotations

import gzip
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

# Steps of the small language models take milliseconds. A step of an online method samples first.
OFFLINE_STEPS, ONLINE_STEPS = 20, 4
OFFLINE = ["sft", "reward", "classify", "dpo", "orpo", "cpo", "simpo", "kto", "distill"]
ONLINE = ["ppo", "nlpo", "a2c", "trpo", "grpo", "rloo"]

WORDS = "the kettle is warm and old but its lid looks fine so we like it a lot today".split()
PROMPTS = [f"Write about the {word}." for word in WORDS] * 6
TAGS = ["O", "THING"]


def sentence(seed: int, length: int = 8) -> str:
    return " ".join(WORDS[(seed * 7 + i * (3 + seed % 5)) % len(WORDS)] for i in range(length)) + f" {seed}."


def rows_of(name: str) -> list[dict]:
    """The rows of a data file, by its name."""
    count = range(96)
    prompts = [{"prompt": f"{PROMPTS[i]} {i}"} for i in count]
    pairs = [
        {"prompt": PROMPTS[i], "chosen": " " + sentence(i), "rejected": " " + sentence(i + 31, 5)} for i in count
    ]
    if "hh" in name:
        return [
            {side: f"\n\nHuman: {row['prompt']}\n\nAssistant:{row[side]}" for side in ("chosen", "rejected")}
            for row in pairs
        ]
    if name.startswith(("pairs", "test")):
        return pairs
    if name.startswith("prompts"):
        return [{**row, "answer": str(i)} for i, row in enumerate(prompts)]
    if name.startswith("texts"):
        return [{"prompt": PROMPTS[i], "prediction": sentence(i)} for i in count]
    if name.startswith(("labeled", "train")):
        return [{"text": sentence(i), "label": ["good", "bad"][i % 2]} for i in count]
    return [
        {
            "prompt": PROMPTS[i],
            "completion": " " + sentence(i),
            "prediction": sentence(i),
            "references": [sentence(i), sentence(i + 1)],
        }
        for i in count
    ]


def lines(rows: list[dict]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def tokenizer(folder: pathlib.Path, extra: dict[str, str]) -> None:
    """A byte-level tokenizer without merges."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    characters = [chr(byte) for byte in printable] + [chr(256 + i) for i in range(256 - len(printable))]
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": i,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for i, token in enumerate(special)
        ],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {token: i for i, token in enumerate(special + characters)},
            "merges": [],
        },
    }
    names = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>", **extra}
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **names}), encoding="utf-8"
    )


# A comparison of two answers, as Label Studio exports it.
COMPARISON = [
    {
        "data": {"question": "How is the kettle?", "answer1": "It is warm.", "answer2": "It is very blue."},
        "annotations": [
            {
                "completed_by": {"email": "ada"},
                "result": [
                    {"from_name": "1v2", "to_name": "answer1", "type": "choices", "value": {"choices": ["first"]}}
                ],
            }
        ],
    }
]
CELL = {"column_span": 1, "is_header": False, "row_span": 1}
TABLE = {
    "example_id": 1,
    "table": [[{**CELL, "value": "Lid", "is_header": True}, {**CELL, "value": "warm"}]],
    "highlighted_cells": [[0, 1]],
    "table_page_title": "Kettles",
    "table_section_title": "Parts",
    "table_section_text": "",
    "sentence_annotations": [{"final_sentence": "The lid is warm.", "original_sentence": "The lid is warm."}],
    "overlap_subset": False,
}
# Human feedback on answers, in QA-Feedback's format.
FEEDBACK = [
    {
        "question": f"How is the {word}?",
        "passages": [["Kettles", "The kettle is warm.", "The lid is old."]],
        "gold": "The kettle is warm.",
        "prediction 1": "The kettle is warm. It is very blue.",
        "prediction 2": "It is warm.",
        "prediction 3": "It is old.",
        "prediction 4": "It is fine.",
        "feedback": {
            "errors": [{"error type": "Irrelevant", "explanation": "", "start": 20, "end": 36}],
            "missing-info": [],
            "corrected-prediction": "The kettle is warm.",
        },
        "preference": [1, 1, 1, 0, 0, 0],
    }
    for word in ("kettle", "lid", "pot")
]

# Names on the hub, with the family of the replacement and further arguments of `gradus new-model`.
MODELS: dict[str, tuple[str, list[str]]] = {
    "gpt2": ("gpt2", ["--set", "n_positions=1024"]),
    "t5-base": ("t5", []),
    "roberta-base": ("roberta", ["--labels", "bad,good"]),
    # BERTScore reads its layer 17.
    "FacebookAI/roberta-large": ("roberta", ["--labels", "bad,good", "--set", "num_hidden_layers=18"]),
    "Elron/bleurt-base-128": ("bert", ["--labels", "score"]),
}
DATA_SETS = {
    "google-research-datasets/totto": [TABLE] * 12,
    "allenai/common_gen": [{"concepts": ["kettle", "lid"], "target": sentence(i)} for i in range(48)],
}
# Runs that pages name, with the command that creates each; `{}` is the folder of replacements.
RUNS = {
    "sft": "sft --model gpt2 --data {}/rows.jsonl",
    "reward": "reward --model gpt2 --data {}/pairs.jsonl",
    "dpo": "dpo --model gpt2 --data {}/pairs.jsonl",
    "ppo": "ppo --model gpt2 --data {}/prompts.jsonl --reward-rule-substring kettle --max-new-tokens 6 --batch-size 4",
    "grpo": "grpo --model gpt2 --data {}/prompts.jsonl --reward-rule-substring kettle --max-new-tokens 6 --batch-size 8 --group-size 4",
}
FILES = ["rows.jsonl", "prompts.jsonl", "pairs.jsonl", "texts.jsonl", "labeled.jsonl", "test.jsonl", "train.jsonl", "hh.jsonl.gz"]
RUN_YML = """model: gpt2
data: rows.jsonl
method: { sft: {} }
output_dir: runs/from-file
"""

TRL_YAML = """model_name_or_path: gpt2
dataset_name: pairs.jsonl
learning_rate: 1.0e-6
per_device_train_batch_size: 4
gradient_accumulation_steps: 2
beta: 0.1
"""

GRADUS = '''#!{python}
"""Runs gradus with few steps, unless GRADUS_DOCS_FULL is set. `serve` continues in the background."""
import os, pathlib, re, shutil, subprocess, sys, time

REAL, STOCK = {real!r}, {stock!r}
OFFLINE, ONLINE = {offline!r}, {online!r}
OFFLINE_STEPS, ONLINE_STEPS = {offline_steps}, {online_steps}
FULL = bool(os.environ.get("GRADUS_DOCS_FULL"))
arguments = sys.argv[1:]
words = [word for word in arguments if not word.startswith("-")]
verb = words[0] if words else ""


def at_most(name, most):
    """Lowers the value of a flag; gives it where there is none."""
    if name in arguments:
        place = arguments.index(name) + 1
        if re.fullmatch(r"[0-9]+", arguments[place]) and int(arguments[place]) > most:
            arguments[place] = str(most)
    else:
        arguments.extend([name, str(most)])


def lower(name, most):
    if name in arguments:
        at_most(name, most)


def online(verb):
    if verb in OFFLINE + ONLINE:
        return verb in ONLINE
    file = next((word for word in words[1:] if word.endswith((".yml", ".yaml"))), None)
    text = pathlib.Path(file).read_text() if file and pathlib.Path(file).exists() else ""
    return re.search(r"\\b(" + "|".join(ONLINE) + r")\\b *:", text) is not None or verb == "compare"


if verb == "serve":
    if "--port" in arguments:
        del arguments[arguments.index("--port") : arguments.index("--port") + 2]
    log = open(os.environ["GRADUS_DOCS_SERVERS"] + ".log", "w+")
    server = subprocess.Popen([REAL, *arguments, "--port", "0"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    for _ in range(1200):
        log.seek(0)
        found = re.search(r"http://[0-9.]+:[0-9]+", log.read())
        if found or server.poll() is not None:
            break
        time.sleep(0.1)
    if not found:
        log.seek(0)
        sys.exit(log.read() or "gradus serve printed no address")
    with open(os.environ["GRADUS_DOCS_SERVERS"], "a") as servers:
        servers.write(f"{{server.pid}} {{found.group()}}\\n")
    print(found.group())
    sys.exit(0)
if not FULL:
    if verb == "demo":
        target = pathlib.Path(arguments[arguments.index("--output-dir") + 1] if "--output-dir" in arguments else "runs/demo")
        made = pathlib.Path(STOCK) / "demo"
        if not made.exists():
            subprocess.run([REAL, "demo", "--quick", "--quiet", "--output-dir", str(made)], check=True)
        shutil.copytree(made, target)
        sys.exit(0)
    if verb in OFFLINE + ONLINE + ["train", "compare"] and "--help" not in arguments:
        steps = ONLINE_STEPS if online(verb) else OFFLINE_STEPS
        if "--epochs" in arguments:
            del arguments[arguments.index("--epochs") : arguments.index("--epochs") + 2]
        at_most("--max-steps", steps)
        file = next((word for word in words[1:] if word.endswith((".yml", ".yaml"))), None)
        text = pathlib.Path(file).read_text() if file and pathlib.Path(file).exists() else ""
        # A file without evaluations stays without them.
        if verb in OFFLINE + ONLINE or (verb == "train" and "eval_steps:" in text and "eval_steps: -1" not in text):
            at_most("--eval-steps", steps // 2)
        at_most("--max-eval-rows", 8)
        if verb in ONLINE + ["compare"]:
            at_most("--max-new-tokens", 16)
        lower("--batch-size", 8)
        lower("--group-size", 4)
    if words[:2] == ["runs", "rollouts"]:
        lower("--step", ONLINE_STEPS)
        for name, join in [("--diff", ","), ("--steps", "..")]:
            if name in arguments:
                place = arguments.index(name) + 1
                ends = [str(min(int(end), ONLINE_STEPS)) for end in arguments[place].split(join)]
                arguments[place] = join.join(ends)
    if words[:2] == ["runs", "export"] and "--best" in arguments:
        arguments.remove("--best")  # so few steps beat no start
    if words[:2] == ["runs", "rm"]:
        lower("--step", ONLINE_STEPS)
    if words[:2] == ["runs", "resume"]:
        lower("--max-steps", ONLINE_STEPS + 2)
if words[1:2] == ["rm"]:
    arguments.append("--yes")
done = subprocess.run([REAL, *arguments], check=False)
# The exit code of an audit tells what it found. A run of these few steps has ended before it can be stopped.
if words[:2] == ["runs", "stop"] and done.returncode == 1:
    sys.exit(0)
sys.exit(0 if words[:2] == ["runs", "audit"] and done.returncode >= 10 else done.returncode)
'''


class Stock:
    """Creates a replacement when a page first needs it."""

    def __init__(self, gradus: pathlib.Path, folder: pathlib.Path) -> None:
        if not gradus.is_file():
            raise SystemExit(f"{gradus}: no such binary; build it with `cargo build --workspace`")
        self.gradus, self.folder = gradus, folder
        self.bin, self.hub = folder / "bin", folder / "hub"
        self.given: set[pathlib.Path] = set()
        self.bin.mkdir(parents=True)
        program = GRADUS.format(
            python=sys.executable,
            real=str(gradus),
            stock=str(folder),
            offline=OFFLINE,
            online=ONLINE,
            offline_steps=OFFLINE_STEPS,
            online_steps=ONLINE_STEPS,
        )
        (self.bin / "gradus").write_text(program, encoding="utf-8")
        (self.bin / "gradus").chmod(0o755)
        for name in FILES:
            text = lines(rows_of(name))
            if name.endswith(".gz"):
                (folder / name).write_bytes(gzip.compress(text.encode()))
            else:
                (folder / name).write_text(text, encoding="utf-8")
        (folder / "dev_feedback.json").write_text(json.dumps(FEEDBACK), encoding="utf-8")
        (folder / "export.json").write_text(json.dumps(COMPARISON), encoding="utf-8")
        (folder / "dpo.yaml").write_text(TRL_YAML, encoding="utf-8")
        (folder / "run.yml").write_text(RUN_YML, encoding="utf-8")
        (folder / "books").mkdir()
        (folder / "books/one.jsonl").write_text(lines([{"text": sentence(i, 40)} for i in range(24)]), encoding="utf-8")
        self.repository("models", "gpt2")  # most pages name it
        for name, rows in DATA_SETS.items():
            snapshot = self.snapshot("datasets", name)
            for split in ("train", "validation"):
                (snapshot / f"{split}.jsonl").write_text(lines(rows), encoding="utf-8")

    def call(self, *arguments: str) -> None:
        environment = {**os.environ, "HF_HOME": str(self.hub), "HF_HUB_OFFLINE": "1"}
        command = [str(self.bin / "gradus"), "--quiet", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"cannot create a stand-in: {' '.join(command)}\n{done.stdout}{done.stderr}")

    def snapshot(self, kind: str, name: str) -> pathlib.Path:
        """A folder in the hub's cache."""
        root = self.hub / "hub" / f"{kind}--{name.replace('/', '--')}"
        (root / "refs").mkdir(parents=True)
        (root / "refs/main").write_text("1", encoding="utf-8")
        snapshot = root / "snapshots/1"
        snapshot.mkdir(parents=True)
        return snapshot

    def repository(self, kind: str, name: str) -> None:
        if (self.hub / "hub" / f"{kind}--{name.replace('/', '--')}").exists():
            return
        family, more = MODELS[name]
        self.model(family, more, self.snapshot(kind, name))

    def model(self, family: str, more: list[str], output: pathlib.Path) -> None:
        words = self.folder / f"tokenizer-{family}"
        if not words.exists():
            is_encoder = family in ("roberta", "bert")
            extra = {"bos_token": "<s>", "cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>"} if is_encoder else {"bos_token": "<s>"}
            tokenizer(words, extra)
        self.call("new-model", "--family", family, "--tokenizer", str(words), "--output", str(output), "--overwrite", *more)

    def run(self, name: str) -> pathlib.Path:
        made = self.folder / "runs" / name
        if not made.exists():
            of = RUNS[name].format(self.folder).split()
            self.call(*of, "--output-dir", str(made), "--max-length", "96")
        return made

    def give(self, text: str, folder: pathlib.Path) -> None:
        """Copies files that a block names and that the folder does not have yet."""
        for name in MODELS:
            if re.search(rf"(?<![\w/-]){re.escape(name)}(?![\w-])", text):
                self.repository("models", name)
        for name in [*FILES, "run.yml", "books", "dev_feedback.json", "export.json", "dpo.yaml"]:
            if re.search(rf"(?<![\w/.-]){re.escape(name)}(?![\w.-])", text) and not (folder / name).exists() and not re.search(rf"(>|--output|-o) {re.escape(name)}", text):
                source = self.folder / name
                (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name)
        if re.search(r"run\.yml", text):
            self.give("rows.jsonl", folder)
        if "dpo.yaml" in text:
            self.give("pairs.jsonl gpt2", folder)
        if re.search(r"\bDIR\b", text) and not (folder / "DIR").exists():
            is_encoder = "classif" in text
            self.model("roberta" if is_encoder else "llama", ["--labels", "bad,good"] if is_encoder else [], folder / "DIR")
        if re.search(r"\bNAME\b", text) and not (folder / "runs/NAME").exists():
            shutil.copytree(self.run("grpo"), folder / "runs/NAME")
        for name in RUNS:
            numbered = re.findall(rf"\b{name}-1\b", text)
            named = re.search(rf"(?<![\w/])(?:runs/){name}(?![\w-])", text)
            # `runs` as a whole: the folder of the readers' runs.
            whole = re.search(r"\bgradus (?:serve runs|runs list)|--folder runs", text) and name in ("sft", "ppo")
            is_made = re.search(rf"--output-dir runs/{name}(?![\w-])", text)
            if is_made and folder / "runs" / name in self.given:
                shutil.rmtree(folder / "runs" / name)
                self.given.remove(folder / "runs" / name)
            for target in set() if is_made else {f"{name}-1"} if numbered else {name} if named or whole else set():
                if not (folder / "runs" / target).exists():
                    shutil.copytree(self.run(name), folder / "runs" / target)
                    self.given.add(folder / "runs" / target)
