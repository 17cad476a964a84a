"""Compares gradus' metrics with the Python tools that give the same values, on the same rows in one run: seconds and their ratio.

    python metrics_side.py --gradus target/release/gradus [--rows 10000] [--references 2] [--only chrf,ter]

The rows are sentences that are generated from a seed. The time of gradus is that of a process on all cores, including reading rows and
writing every row's value as JSON. The time of a tool covers the corpus value and the value of each row, for texts in memory, as a user
would call it. Needs the packages of tools/parity/requirements-metrics.txt.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "parity"))
import metric_rows  # noqa: E402
from common import METRICS  # noqa: E402

SEED = 7
REPETITIONS = 3


def sacrebleu(name):
    def run(rows):
        from sacrebleu.metrics import BLEU, CHRF, TER

        metric = {"sacre_bleu": BLEU, "chrf": CHRF, "ter": TER}[name]()
        predictions = [row["prediction"] for row in rows]
        streams = list(zip(*[row["references"] for row in rows]))
        return metric.corpus_score(predictions, [list(stream) for stream in streams]).score / 100
    return run


def rouge(rows):
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rouge1", "rouge2", "rougeL", "rougeLsum"], use_stemmer=True)
    scores = [scorer.score_multi(row["references"], row["prediction"])["rougeL"].fmeasure for row in rows]
    return sum(scores) / len(scores)


def meteor(rows):
    from metrics import nltk_words
    from nltk.translate.meteor_score import meteor_score

    class NoSynonyms:
        def synsets(self, word):
            return []
    words = nltk_words()
    scores = [meteor_score([words(text) for text in row["references"]], words(row["prediction"]), wordnet=NoSynonyms()) for row in rows]
    return sum(scores) / len(scores)


def cider(rows):
    from pycocoevalcap.cider.cider_scorer import CiderScorer

    scorer = CiderScorer(n=4, sigma=6.0)
    for row in rows:
        scorer += (row["prediction"], row["references"])
    return float(scorer.compute_score()[0])


def cider_of_texts(rows):
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    texts = [{i: [{"caption": text} for text in some] for i, some in enumerate(side)}
             for side in ([row["references"] for row in rows], [[row["prediction"]] for row in rows])]
    references, predictions = [PTBTokenizer().tokenize(side) for side in texts]
    return float(Cider().compute_score(references, predictions)[0])


# Metric, gradus' options, the key of both sides, the tool.
SIDES = [
    ("sacre_bleu", [], "sacre_bleu", sacrebleu("sacre_bleu")),
    ("chrf", [], "chrf", sacrebleu("chrf")),
    ("ter", [], "ter", sacrebleu("ter")),
    ("rouge", [], "rouge/rougeL", rouge),
    ("meteor", [f"punkt={METRICS / 'punkt'}"], "meteor", meteor),
    ("cider", ["tokenizer=whitespace"], "cider", cider),
    ("cider", [], "cider", cider_of_texts),
]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gradus", type=pathlib.Path, required=True)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--references", type=int, default=2)
    parser.add_argument("--only", help="metrics, separated by commas")
    arguments = parser.parse_args()
    only = arguments.only.split(",") if arguments.only else None
    rows = metric_rows.sentences(SEED, arguments.rows, arguments.references)
    with tempfile.TemporaryDirectory() as folder:
        data = pathlib.Path(folder) / "rows.jsonl"
        data.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
        print(f"{'metric':<12} {'tool s':>8} {'gradus s':>9} {'ratio':>7}   tool's value, gradus' value")
        for name, options, key, tool in SIDES:
            if only and name not in only:
                continue
            began = time.monotonic()
            expected = tool(rows)
            of_tool = time.monotonic() - began
            command = [str(arguments.gradus), "eval", "--data", str(data), "--metrics", name, "--bootstrap", "0", "--json"]
            for option in options:
                command += ["--metric-option", option]
            seconds = []
            for _ in range(REPETITIONS):
                began = time.monotonic()
                answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                seconds.append(time.monotonic() - began)
            found = json.loads(answer)["metrics"][key]
            fastest = sorted(seconds)[len(seconds) // 2]
            print(f"{name:<12} {of_tool:8.2f} {fastest:9.3f} {of_tool / fastest:7.1f}   {expected:.8f} {found:.8f}")


if __name__ == "__main__":
    main()
