"""Compares gradus' encoders with `transformers` and `bert-score` on the same rows in one run: seconds and their ratio.

    python encoders_side.py --gradus target/release/gradus --tokenizer DIR [--rows 400] [--only classifier,bert_score] [--compute bf16]
        [--repetitions 3] [--work FOLDER]

The model has the size of RoBERTa-base and random weights. DIR contains a RoBERTa tokenizer. Texts consist of 1 to 24 sentences that are generated
from a seed. The time of gradus is that of a process that reads the model and the rows and writes the results. The other side has texts and
model in memory and uses batches of 32 sorted by length, the fastest common way. Both sides use the same two threads.
`--compute` is the type of the classifier's products, on both sides. BERTScore is measured in f32 only.
Needs the packages of tools/parity/requirements-metrics.txt, torch and transformers.
"""

import argparse
import json
import pathlib
import random
import statistics
import subprocess
import sys
import time

import process

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "parity"))
import metric_rows  # noqa: E402

SEED, BATCH = 7, 32
DTYPES = {"f32": "float32", "bf16": "bfloat16"}
SIZES = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}


def write_model(folder, tokenizer):
    import torch
    from transformers import AutoTokenizer, RobertaConfig, RobertaForSequenceClassification

    words = AutoTokenizer.from_pretrained(tokenizer)
    torch.manual_seed(SEED)
    config = RobertaConfig(vocab_size=len(words), max_position_embeddings=514, type_vocab_size=1, num_labels=2, **SIZES)
    RobertaForSequenceClassification(config).save_pretrained(folder)
    words.save_pretrained(folder)


def texts(count):
    """Texts of many lengths, each with a paraphrase."""
    rows, draw = metric_rows.sentences(SEED, count * 12, 1), random.Random(SEED)
    for _ in range(count):
        chosen = draw.sample(rows, draw.randint(1, 24))
        yield {"prediction": " ".join(row["prediction"] for row in chosen), "reference": " ".join(row["references"][0] for row in chosen)}


def classifier(folder, rows, compute):
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    words, model = AutoTokenizer.from_pretrained(folder), AutoModelForSequenceClassification.from_pretrained(folder, dtype=DTYPES[compute]).eval()
    lines = [row["prediction"] for row in rows]

    def run():
        order = sorted(range(len(lines)), key=lambda i: len(lines[i]))
        logits = [None] * len(lines)
        with torch.inference_mode():
            for start in range(0, len(order), BATCH):
                batch = order[start : start + BATCH]
                read = words([lines[i] for i in batch], padding=True, truncation=True, max_length=512, return_tensors="pt")
                for i, row in zip(batch, model(**read).logits.float().tolist()):
                    logits[i] = row
        return logits
    return run


def bert_score(folder, rows, _compute):
    import bert_score.utils
    from bert_score import BERTScorer

    # It requests a space before the text from RoBERTa's tokenizer with a keyword that transformers 5 ignores.
    bert_score.utils.sent_encode = lambda tokenizer, text: tokenizer.encode(" " + text.strip(), max_length=512, truncation=True)
    scorer = BERTScorer(model_type=str(folder), num_layers=SIZES["num_hidden_layers"], batch_size=BATCH, nthreads=0)
    predictions, references = ([row[name] for row in rows] for name in ("prediction", "reference"))
    return lambda: [[value] for value in scorer.score(predictions, references)[2].tolist()]


def gradus(command):
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, env={**process.os.environ, **process.ENVIRONMENT})
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return time.monotonic() - began, done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gradus", type=pathlib.Path, required=True)
    parser.add_argument("--tokenizer", type=pathlib.Path, required=True)
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--only", default="classifier,bert_score")
    parser.add_argument("--compute", choices=list(DTYPES), default="f32")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("/tmp/gradus-encoders"))
    given = parser.parse_args()
    process.two_cores()
    import torch

    torch.set_num_threads(process.THREADS)
    folder, data = given.work / "roberta", given.work / "rows.jsonl"
    if not (folder / "model.safetensors").exists():
        write_model(folder, given.tokenizer)
    rows = list(texts(given.rows))
    program = str(given.gradus.resolve())
    sides = {
        "classifier": (classifier, [program, "score", "--classifier", folder, "--data", data, "--text", "{prediction}", "--truncate", "right",
                                    "--compute", given.compute, "--quiet"],
                       lambda out: [json.loads(line)["logits"] for line in out.splitlines()]),
        "bert_score": (bert_score, [program, "eval", "--data", data, "--metrics", "bert_score", "--metric-option", f"model={folder}", "--metric-option",
                                    f"layer={SIZES['num_hidden_layers']}", "--bootstrap", "0", "--json", "--quiet"],
                       lambda out: [[row["bert_score/f1"]] for row in json.loads(out)["rows"]]),
    }
    data.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    print(f"{'model':<12} {'other s':>8} {'gradus s':>9} {'ratio':>6}   largest difference")
    for name in given.only.split(","):
        other, command, read = sides[name]
        run = other(folder, rows, given.compute)
        run()  # warm
        seconds = ([], [])
        for _ in range(given.repetitions):
            began = time.monotonic()
            expected = run()
            seconds[0].append(time.monotonic() - began)
            took, out = gradus([str(word) for word in command])
            seconds[1].append(took)
        a, b = (statistics.median(side) for side in seconds)
        apart = max(abs(x - y) for one, two in zip(expected, read(out)) for x, y in zip(one, two))
        print(f"{name:<12} {a:8.2f} {b:9.2f} {a / b:6.2f}   {apart:.1e}", flush=True)


if __name__ == "__main__":
    main()
