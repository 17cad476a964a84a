"""Samples that RL4LMs' own data pools make from a few rows of our own; and NumPy's permutations.

The pools are those of https://github.com/allenai/RL4LMs at 97df0bd. Nothing is copied from it: `RL4LMS` names a
checkout. The script replaces its downloads. Files have the format of the public data sets. Only the content of the data is ours.

    RL4LMS=~/RL4LMs ~/gradus-parity/bin/python tools/parity/tasks.py
"""

import json
import os
import pathlib
import sys
import tempfile

import numpy
from common import arguments, meta

OUT = arguments("tasks")
CHECKOUT = os.environ["RL4LMS"]
HOME = tempfile.mkdtemp()
os.environ["HOME"] = HOME
sys.path.insert(0, CHECKOUT)

import datasets  # noqa: E402
import nltk.tokenize  # noqa: E402
from nltk.tokenize import NLTKWordTokenizer  # noqa: E402

# Each text is one sentence, so NLTK's sentence model, which is not in its package, has no effect.
nltk.tokenize.word_tokenize = NLTKWordTokenizer().tokenize
TABLE = {}
datasets.load_dataset = lambda *names, **options: TABLE["rows"] if "split" not in options else TABLE["rows"][options["split"]]

# The package's own `__init__` imports everything, but the two modules work without it.
import importlib.util  # noqa: E402
import types  # noqa: E402

for name in ("rl4lms", "rl4lms.data_pools", "rl4lms.data_pools.task_utils", "rl4lms.data_pools.task_utils.totto"):
    sys.modules[name] = types.ModuleType(name)


def module(name, path):
    spec = importlib.util.spec_from_file_location(name, pathlib.Path(CHECKOUT) / path)
    found = importlib.util.module_from_spec(spec)
    sys.modules[name] = found
    spec.loader.exec_module(found)
    return found


module("rl4lms.data_pools.text_generation_pool", "rl4lms/data_pools/text_generation_pool.py")
utils = "rl4lms.data_pools.task_utils.totto"
sys.modules[utils].preprocess_utils = module(
    f"{utils}.preprocess_utils", "rl4lms/data_pools/task_utils/totto/preprocess_utils.py"
)
pools = module("pools", "rl4lms/data_pools/custom_text_generation_pools.py")

SPLITS = {"train": "train", "validation": "val", "test": "test"}
CASES = []


def lines(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def case(task, pool, files, splits=("train", "validation", "test"), rows=None, **options):
    """The samples of `pool` from `rows` (or from files below the home directory), and the files with the same rows."""
    if rows is not None:
        TABLE["rows"] = {split: datasets.Dataset.from_list(rows[split]) for split in rows}
    for split in splits:
        made = pool.prepare(split=SPLITS[split], **options)
        samples = [
            {
                "id": sample.id,
                "prompt": sample.prompt_or_input_text,
                "references": sample.references,
                "metadata": sample.meta_data or {},
            }
            for sample, _ in (made[i] for i in range(len(made)))
        ]
        assert samples, task
        CASES.append({"task": task, "files": files, "split": split, "samples": samples})


def by_split(rows):
    return {f"{split}.jsonl": lines(rows[split]) for split in rows}


def same(rows):
    return {split: rows for split in SPLITS}


# IMDB: 23 reviews, so that splits have different ends.
reviews = [
    {"text": " ".join(f"word{i}x{j}" for j in range(1 + i % 7)) + ("  twice" if i % 5 == 0 else ""), "label": i % 2}
    for i in range(23)
]
rows = {"train": reviews, "test": reviews[:9]}
case({"imdb": {"seed": 42}}, pools.IMDB, by_split(rows), rows=rows, seed=42)
case({"imdb": {"seed": 7}}, pools.IMDB, by_split(rows), splits=("validation",), rows=rows, seed=7)

# CommonGen, with a hidden target.
sets = [
    {"concepts": ["dog", "park", "run"], "target": "The dog runs in the park."},
    {"concepts": ["dog", "park", "run"], "target": "A dog is running through a park."},
    {"concepts": ["boat", "lake"], "target": ""},
]
keys = {"prefix": "generate a sentence with: ", "concept_separator_token": " ", "concept_end_token": "."}
case({"commongen": keys}, pools.CommonGen, by_split(same(sets)), rows=same(sets), **keys)
case({"commongen": {}}, pools.CommonGen, by_split(same(sets)), splits=("train",), rows=same(sets))
authors = [
    {"concept_set": "dog_N#park_N#run_V", "scene": [sets[0]["target"], sets[1]["target"]]},
    {"concept_set": "boat_N#lake_N", "scene": []},
]
case({"commongen": keys}, pools.CommonGen, by_split(same(authors)), splits=("train",), rows=same(sets), **keys)
text = {f"commongen.{split}.{end}.txt": "" for split in ("train", "dev") for end in ("src_alpha", "tgt")}
for split in ("train", "dev"):
    text[f"commongen.{split}.src_alpha.txt"] = "".join(" ".join(row["concepts"]) + "\n" for row in sets)
    text[f"commongen.{split}.tgt.txt"] = "".join(row["target"] + "\n" for row in sets)
case({"commongen": keys}, pools.CommonGen, text, splits=("train", "validation"), rows=same(sets), **keys)

# Summaries.
articles = [
    {"article": "Rain fell (again) on Monday, and the river rose.", "highlights": "Rain fell .\nThe river rose .", "id": "a"},
    {"article": "A short one", "highlights": "Short .", "id": "b"},
]
keys = {"prompt_prefix": "Summarize: ", "prompt_suffix": " TL;DR:"}
case({"cnn_daily_mail": keys}, pools.CNNDailyMail, by_split(same(articles)), rows=same(articles), **keys)
keys = {"truncate_article": 6}
case({"cnn_daily_mail": keys}, pools.CNNDailyMail, by_split(same(articles)), splits=("train",), rows=same(articles), **keys)
documents = [{"document": "It rained.\nThen it stopped.", "target": "Rain stopped.", "id": "1"}]
case({"xsum": {}}, pools.Xsum, by_split(same(documents)), splits=("train", "test"), rows=same(documents))

# ToTTo: headers over several columns and in rows, a cell with none, missing titles.
def cell(value, header=False, span=1):
    return {"value": value, "is_header": header, "column_span": span, "row_span": 1}


def annotated(*sentences):
    names = ("original_sentence", "sentence_after_deletion", "sentence_after_ambiguity", "final_sentence")
    return {name: [f"{sentence}{'' if name == 'final_sentence' else f' ({name})'}" for sentence in sentences] for name in names}


tables = [
    {
        "id": 0,
        "table_page_title": "Harbour lights",
        "table_webpage_url": "",
        "table_section_title": "By year",
        "table_section_text": "",
        "table": [
            [cell("Year", True), cell("Lights", True, 2)],
            [cell("", True), cell("red", True), cell("green", True)],
            [cell("1901", True), cell("3"), cell("5")],
            [cell("1902", True), cell("4", False, 2)],
        ],
        "highlighted_cells": [[2, 2], [3, 1], [0, 0]],
        "example_id": "17",
        "sentence_annotations": annotated("In 1901 there were five green lights.", "Five lights were green."),
        "overlap_subset": "True",
    },
    {
        "id": 1,
        "table_page_title": "",
        "table_webpage_url": "",
        "table_section_title": "",
        "table_section_text": "text",
        "table": [[cell("alone")]],
        "highlighted_cells": [[0, 0]],
        "example_id": "18",
        "sentence_annotations": annotated("It is alone."),
        "overlap_subset": "none",
    },
]
copies = lambda: {split: [json.loads(json.dumps(table)) for table in tables] for split in SPLITS}  # noqa: E731


class Rows:
    """Copies the rows, because the pool changes them."""

    def __getitem__(self, split):
        return copies()[split]


for representation in ("subtable", "fulltable"):
    TABLE["rows"] = Rows()
    case({"totto": {"representation": representation}}, pools.ToTTo, by_split(copies()), representation=representation)
authors = copies()
for split in authors:
    for table in authors[split]:
        named = table["sentence_annotations"]
        table["sentence_annotations"] = [dict(zip(named, values)) for values in zip(*named.values())]
        table["overlap_subset"] = table["overlap_subset"] == "True"
TABLE["rows"] = Rows()
case({"totto": {}}, pools.ToTTo, by_split(authors), splits=("train",))

# NarrativeQA: separate answers of one prompt.
answers = [
    ("Who came? \\n A King came to Dunmoor.", " The King "),
    ("Where to? \\n A King came to Dunmoor.", "dunmoor"),
    ("Who came? \\n A King came to Dunmoor.", "it's a KING"),
]
table = "".join(f"{prompt}\t{answer}\n" for prompt, answer in answers)
folder = pathlib.Path(HOME) / "narrative_qa"
folder.mkdir()
for split in SPLITS.values():
    (folder / f"{split}.tsv").write_text(table)
case({"narrative_qa": {}}, pools.NarrativeQA, {"train.tsv": table, "dev.tsv": table, "test.tsv": table})

# Translation, as columns and as text files.
pairs = [{"translation": {"en": "A red house.", "de": "Ein rotes Haus."}}, {"translation": {"en": "Two ducks", "de": "Zwei Enten"}}]
keys = {"prompt_prefix": "translate English to German: ", "prompt_suffix": " ="}
text = {f"{split}.{side}": "".join(row["translation"][side] + "\n" for row in pairs) for split in ("train", "val", "test") for side in ("en", "de")}
for task, pool in (
    ("iwslt2017en_de", pools.IWSLT2017EnDe),
    ("wmt14_processed_en_de", pools.WMT14PreprocessedEnDe),
    ("wmt16newsonly", pools.WMT16NewsOnlyDatasetEnDe),
):
    case({task: keys}, pool, by_split(same(pairs)), rows=same(pairs), **keys)
case({"iwslt2017en_de": keys}, pools.IWSLT2017EnDe, text, rows=same(pairs), **keys)
back = {"wmt_id": "wmt16", "source_language": "de", "target_language": "en", "prompt_prefix": "> "}
case({"wmt16": back}, pools.WMT, by_split(same(pairs)), rows=same(pairs), **back)

# CRD3: the lists of episodes, and the episodes.
turns = [
    {"NAMES": ["ANN"], "UTTERANCES": ["Hello.", "Who is there?"], "NUMBER": 0},
    {"NAMES": ["BOB", "CY"], "UTTERANCES": ["We are."], "NUMBER": 1},
    {"NAMES": ["ANN"], "UTTERANCES": ["Come in."], "NUMBER": 2},
    {"NAMES": ["DEE"], "UTTERANCES": ["Roll", "again."], "NUMBER": 3},
    {"NAMES": ["ANN"], "UTTERANCES": [], "NUMBER": 4},
]
files = {f"data/aligned data/{split}_files": "E1\nE2\n" for split in SPLITS.values()}
files |= {f"data/cleaned data/{episode}.json": json.dumps({"TURNS": turns[start:]}) for start, episode in enumerate(("E1", "E2"))}
for name, content in files.items():
    path = pathlib.Path(HOME) / "crd3/CRD3-master" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
for size in (2, 9):
    case({"crd3": {"max_context_size": size}}, pools.CRD3DialogueGeneration, files, splits=("train", "validation"), max_context_size=size)

# DailyDialog, as columns and as the authors' text files.
dialogues = [
    {"dialog": ["Hi .", "Hello !", "Tea ?", "Yes ."], "act": [1, 1, 2, 4], "emotion": [0, 4, 0, 0]},
    {"dialog": ["Bye ."], "act": [3], "emotion": [1]},
    {"dialog": ["Is it late ?", "No .", "Good ."], "act": [2, 1, 1], "emotion": [0, 0, 4]},
]
case({"daily_dialog": {"context_size": 2}}, pools.DailyDialog, by_split(same(dialogues)), rows=same(dialogues), context_size=2)
text = {
    "train/dialogues_train.txt": "".join("".join(f"{said} __eou__ " for said in row["dialog"]).strip() + "\n" for row in dialogues),
    "train/dialogues_act_train.txt": "".join(" ".join(map(str, row["act"])) + " \n" for row in dialogues),
    "train/dialogues_emotion_train.txt": "".join(" ".join(map(str, row["emotion"])) + " \n" for row in dialogues),
}
case({"daily_dialog": {"context_size": 1}}, pools.DailyDialog, text, splits=("train",), rows=same(dialogues), context_size=1)

origin = meta(42, "datasets", "nltk", "numpy", rl4lms="97df0bd2f7406a906206c9610aea795fbf52884c")


def write(name, content):
    """One case per line."""
    cases = ",\n".join(json.dumps(found, ensure_ascii=False) for found in content["cases"])
    origin = json.dumps(content["meta"], indent=1)
    (OUT / name).write_text(f'{{"meta": {origin},\n"cases": [\n{cases}\n]}}\n')


write("tasks.json", {"meta": origin, "cases": CASES})

orders = []
for seed, n in ((42, 25000), (42, 23), (0, 2), (7, 1), (12345, 5000), (2**40 + 7, 100_000)):
    order = numpy.random.default_rng(seed).permutation(n)
    orders.append({"seed": seed, "n": n, "first": order[:20].tolist(), "sum": sum((i + 1) * int(row) for i, row in enumerate(order))})
rows = datasets.Dataset.from_dict({"i": list(range(5000))}).shuffle(12345)["i"][:20]
assert list(rows) == orders[4]["first"], "the permutation of `datasets` differs from NumPy's"
write("permutations.json", {"meta": origin, "cases": orders})
print(len(CASES), "cases,", sum(len(found["samples"]) for found in CASES), "samples")
