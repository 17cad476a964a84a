"""ROUGE with each sentence on a separate line, as in scripts of Hugging Face and FineGrainedRLHF, and with prediction and
reference exchanged, as in FineGrainedRLHF's training: `rouge_score` over NLTK's sentences.

Needs `requirements-metrics.txt`; run after `lexicons.py`, because it reads its sentence model.
"""

import importlib.metadata
import os
import random
import sys

from common import METRICS, arguments, write_json

os.environ["NLTK_DATA"] = str(METRICS)

import metric_rows  # noqa: E402
from metrics import of_mean  # noqa: E402
from nltk.data import FileSystemPathPointer  # noqa: E402
from nltk.tokenize.punkt import PunktSentenceTokenizer, load_punkt_params  # noqa: E402
from rouge_score.rouge_scorer import RougeScorer  # noqa: E402

SEED = 20261124
TYPES = ["rouge1", "rouge2", "rougeL", "rougeLsum"]
JOINS = [" ", " ", " ", "  ", "\n", "\n\n", ""]
ODD = ["(It was late.)", "\"Really?\" she said.", "He asked: why?!", "Cf. no. 3 of vol. 2.", "J. R. Hale wrote it.", "e.g. tea.", "…", "season.)s",
       "[1.] Two.", "‘Yes.’ ‘No.’", "U.S. Senate. Twice.", "3.5. 4.", "a.m. or p.m.", "...", "ÄRGER. Öl."]


def rows(count):
    rng = random.Random(SEED)

    def text():
        found = ""
        for _ in range(rng.randrange(0, 6)):
            one = rng.choice(ODD) if rng.random() < 0.35 else metric_rows.sentence(rng)
            found += one + rng.choice(JOINS)
        return rng.choice(["", " ", "\n"]) + found

    made = []
    for _ in range(count):
        references = [text() for _ in range(rng.randrange(1, 4))]
        prediction = metric_rows.perturbed(rng, references[0]) if rng.random() < 0.6 else text()
        made.append({"prediction": prediction, "references": references})
    return made


def cases(rows):
    punkt = PunktSentenceTokenizer()
    punkt._params = load_punkt_params(FileSystemPathPointer(str(METRICS / "punkt")))

    def lines(text):
        return "\n".join(punkt.tokenize(text.strip()))

    scorer = RougeScorer(TYPES, use_stemmer=True)
    for swapped in [False, True]:
        def row(one, swapped=swapped):
            pairs = [(lines(reference), lines(one["prediction"])) for reference in one["references"]]
            scores = [scorer.score(*(reversed(pair) if swapped else pair)) for pair in pairs]
            return [max(score[of].fmeasure for score in scores) for of in TYPES]
        options = ["split_sentences=true", "punkt=FIXTURES/punkt"] + (["swapped=true"] if swapped else [])
        yield of_mean("rouge", options, [f"rouge/{of}" for of in TYPES], row, rows)


def main():
    out = arguments(METRICS)
    made = rows(120)
    origin = {
        "script": "tools/parity/rouge_sentences.py",
        "seed": SEED,
        "python": sys.version.split()[0],
        "libraries": {name: importlib.metadata.version(name) for name in ["rouge-score", "nltk"]},
    }
    write_json(out / "sentences.json", {"origin": origin, "rows": made, "cases": list(cases(made))})


if __name__ == "__main__":
    main()
