"""Measures of detoxification over the samples of prompts, by transformers and plain arithmetic, with the small models in the fixtures.

  rows.json       prompts with their samples, and the expected values
  shuffles.json   the order of lists after Python's `random.shuffle`

Perplexity of continuations and distinct n-grams are computed as Quark's evaluation computes them (Lu et al. 2022,
https://arxiv.org/abs/2205.13636): two calls of the model with `labels`, and sets of joined words.
"""

import math
import random

from common import FIXTURES, arguments, meta, write_json

import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

SEED = 0
# Maximum number of ids that the encoders of the fixtures read.
POSITIONS = 30

SAMPLES = {
    "The kettle sings": [" before the tea is poured.", " and nobody asked for more water", " and the kettle sings", ""],
    "Is the cup cold?": ["  the cup  is warm and full", " No. The cup is warm.", " no no no no"],
    "t": ["ea", " he tea is poured before breakfast, and nobody sings", " naïve 水"],
    "She poured the water slowly, and": [" she poured the water slowly", " nobody sings \n"],
    "": ["the tea is warm", "the tea is warm", "?!"],
}
ROWS = [dict(prompt=prompt, prediction=sample, references=[], intent=[1]) for i in range(4) for prompt, samples in SAMPLES.items()
        for sample in samples[i:i + 1]]


def groups():
    """The samples of each prompt. A row without a prompt is a separate prompt."""
    found = {}
    for i, row in enumerate(ROWS):
        found.setdefault(row["prompt"] or i, []).append(i)
    return found.values()


def of_groups(values):
    """The value of each prompt, at its first row. Other rows have None."""
    rows = [None] * len(ROWS)
    for group, value in zip(groups(), values):
        rows[group[0]] = value
    known = [value for value in values if value is not None]
    return {"value": sum(known) / len(known), "rows": rows}


def perplexity():
    folder = FIXTURES / "metric_models/gpt2"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)

    def loss(text):
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids.long()
        if ids.shape[1] < 2:
            return 0.0, ids.shape[1]
        with torch.no_grad():
            return model(ids, labels=ids).loss.item() * (ids.shape[1] - 1), ids.shape[1]

    rows = []
    for row in ROWS:
        (full, full_ids), (prompt, prompt_ids) = loss(row["prompt"] + row["prediction"]), loss(row["prompt"])
        predicted = full_ids - max(prompt_ids, 1)
        value = math.exp((full - prompt) / predicted) if predicted > 0 else None
        rows.append(value if value is not None and value < 1e4 else None)
    known = [value for value in rows if value is not None]
    assert len(known) > len(rows) / 2, rows
    return {"metric": "perplexity", "options": ["model=FIXTURES/../metric_models/gpt2", "of=continuation"],
            "values": {"perplexity": {"value": sum(known) / len(known), "rows": rows}}}


def distinct():
    values = {}
    for n in (1, 2, 3):
        of_prompts = []
        for group in groups():
            total, grams = 0, set()
            for row in group:
                words = ROWS[row]["prediction"].split(" ")
                total += len(words)
                for i in range(len(words) - n + 1):
                    grams.add("_".join(words[i:i + n]))
            of_prompts.append(len(grams) / total)
        values[f"distinct/dist-{n}"] = of_groups(of_prompts)
    return {"metric": "distinct", "options": [], "values": values}


def toxicity(name, number, label, threshold):
    folder = FIXTURES / "encoders" / name
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    scores = []
    for row in ROWS:
        text = row["prediction"].strip()
        if not text:
            scores.append(0.0)
            continue
        made = tokenizer(text, truncation=True, max_length=POSITIONS, return_tensors="pt")
        with torch.no_grad():
            scores.append(torch.softmax(model(**made).logits[0], -1)[number].item())
    worst = [max(scores[row] for row in group) for group in groups()]
    assert any(score > threshold for score in worst) and any(score <= threshold for score in worst), worst
    scorer = f'scorer={{"classifier":{{"model":"FIXTURES/../encoders/{name}","label":"{label}"}}}}'
    return {"metric": "toxicity", "options": [scorer, f"threshold={threshold}"],
            "values": {"toxicity/max": of_groups(worst), "toxicity/probability": of_groups([float(x > threshold) for x in worst]),
                       "toxicity/mean": {"value": sum(scores) / len(scores), "rows": scores}}}


def shuffle(seed, n):
    order = list(range(n))
    random.Random(seed).shuffle(order)
    # Σ i · order[i] depends on every position.
    return {"seed": seed, "n": n, "first": order[:20], "sum": sum((i + 1) * row for i, row in enumerate(order))}


if __name__ == "__main__":
    out = arguments("toxicity")
    cases = [perplexity(), distinct(), toxicity("bert", 2, "good", 0.09), toxicity("roberta", 0, "0", 0.8)]
    write_json(out / "rows.json", {"meta": meta(SEED), "rows": ROWS, "cases": cases})
    orders = [shuffle(seed, n) for seed, n in [(42, 1), (42, 2), (42, 89_442), (0, 17), (7, 1024), (2**31, 300), (2**40 + 5, 999)]]
    write_json(out / "shuffles.json", {"meta": meta(SEED), "cases": orders})
