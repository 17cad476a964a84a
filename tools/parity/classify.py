"""Ten steps of training a classifier in a plain loop over transformers and torch: weighted labels of texts, labels of words, labels
of segments and pairs of texts as in FineGrainedRLHF (with Longformer).

encoders/ contains the start models and tokenizers. Written to trajectories/classify/:
  texts.jsonl, words.jsonl, segments.jsonl, pairs.jsonl   rows
  longformer-segments/, longformer-pairs/   start models: those of encoders/ with a tokenizer, and with one output
  fixture.json               per case: the loss and gradient norm of every step, learning rate, the sum of squares of every
                             final weight
"""

import json

from common import FIXTURES, arguments, meta, write_json

import torch
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification, AutoTokenizer, set_seed

SEED = 90
STEPS, BATCH, LEARNING_RATE = 10, 4, 1e-3
WORDS = "the tea is warm cold cup water poured kettle sings nobody breakfast boiled please".split()
WEIGHTS = {"bad": 3.0, "so-so": 0.5}


def texts(generator):
    rows = []
    for i in range(20):
        length = int(torch.randint(2, 9, (1,), generator=generator))
        words = [WORDS[int(k)] for k in torch.randint(0, len(WORDS), (length,), generator=generator)]
        rows.append({"text": " ".join(words), "label": ["bad", "so-so", "good"][(i * 7 + length) % 3]})
    return rows


def words(generator):
    rows = []
    for _ in range(20):
        length = int(torch.randint(2, 9, (1,), generator=generator))
        words = [WORDS[int(k)] for k in torch.randint(0, len(WORDS), (length,), generator=generator)]
        tags = [None if i % 3 == 2 else "LABEL_%d" % (len(word) % 3) for i, word in enumerate(words)]
        tags[0] = "LABEL_%d" % (len(words[0]) % 3)
        rows.append({"tokens": words, "labels": tags})
    return rows


def step(model, optimizer, schedule, loss):
    optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
    rate = schedule.get_last_lr()[0]
    optimizer.step()
    schedule.step()
    return {"loss": loss.item(), "grad_norm": norm, "learning_rate": rate}


def train(model, rows, loss):
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}], lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / STEPS)
    steps = []
    for i in range(STEPS):
        batch = [rows[(i * BATCH + j) % len(rows)] for j in range(BATCH)]
        steps.append(step(model, optimizer, schedule, loss(model, batch)))
    squares = {name: p.square().sum().item() for name, p in model.named_parameters()}
    return {"steps": steps, "squares": squares}


def of_texts(model, tokenizer):
    weight = torch.tensor([WEIGHTS.get(model.config.id2label[i], 1.0) for i in range(3)])

    def loss(model, batch):
        made = tokenizer([row["text"] for row in batch], padding=True, return_tensors="pt")
        gold = torch.tensor([model.config.label2id[row["label"]] for row in batch])
        return torch.nn.functional.cross_entropy(model(**made).logits, gold, weight=weight)

    return loss


def of_words(model, tokenizer):
    def loss(model, batch):
        made = tokenizer([row["tokens"] for row in batch], is_split_into_words=True, padding=True, return_tensors="pt")
        gold = torch.full(made["input_ids"].shape, -100)
        for i, row in enumerate(batch):
            seen = set()
            for t, word in enumerate(made.word_ids(i)):
                if word is not None and word not in seen and row["labels"][word] is not None:
                    gold[i, t] = model.config.label2id[row["labels"][word]]
                seen.add(word)
        return torch.nn.functional.cross_entropy(model(**made).logits.flatten(0, 1), gold.flatten(), ignore_index=-100)

    return loss


def segments(generator):
    """Rows in the format of `gradus data convert --to r1`. The labels are those of the start model, and the first label is ignored."""
    def some(low, high):
        length = int(torch.randint(low, high, (1,), generator=generator))
        return [WORDS[int(k)] for k in torch.randint(0, len(WORDS), (length,), generator=generator)]

    rows = []
    for i in range(20):
        words = ["the", *some(1, 2), "is"]
        tags = ["LABEL_0"] * len(words)
        for j in range(1 + i % 2):
            part = some(1, 3)
            words += ["</s>", *part]
            tags += [f"LABEL_{1 + (i + j + len(part)) % 2}"] + ["LABEL_0"] * len(part)
        rows.append({"id": str(i), "text": words, "feedback_tags": tags})
    return rows


def pairs(generator):
    def some():
        length = int(torch.randint(1, 4, (1,), generator=generator))
        return " ".join(WORDS[int(k)] for k in torch.randint(0, len(WORDS), (length,), generator=generator))

    return [{"prompt": f"{some()} is ", "chosen": some(), "rejected": some()} for _ in range(20)]


def of_segments(model, tokenizer):
    renamed = lambda batch: [
        {"tokens": row["text"], "labels": [None if tag == "LABEL_0" else tag for tag in row["feedback_tags"]]} for row in batch
    ]
    loss = of_words(model, tokenizer)
    return lambda model, batch: loss(model, renamed(batch))


def of_pairs(model, tokenizer):
    def scores(model, texts):
        made = tokenizer(texts, padding=True, return_tensors="pt", return_token_type_ids=False)
        return model(**made).logits.flatten()

    def loss(model, batch):
        chosen, rejected = ([row["prompt"] + row[side] for row in batch] for side in ("chosen", "rejected"))
        return -torch.nn.functional.logsigmoid(scores(model, chosen) - scores(model, rejected)).mean()

    return loss


def starts(out):
    """Start models: a Longformer with a token head, and one whose sequence head has one output."""
    tokenizer = AutoTokenizer.from_pretrained(FIXTURES / "encoders/longformer")
    tokens = AutoModelForTokenClassification.from_pretrained(FIXTURES / "encoders/longformer-token", dtype=torch.float32)
    ranker = AutoModelForSequenceClassification.from_pretrained(
        FIXTURES / "encoders/longformer", dtype=torch.float32, num_labels=1, ignore_mismatched_sizes=True)
    for name, model in (("longformer-segments", tokens), ("longformer-pairs", ranker)):
        torch.manual_seed(SEED)
        if name == "longformer-pairs":
            torch.nn.init.normal_(model.classifier.out_proj.weight, std=0.3)
            torch.nn.init.zeros_(model.classifier.out_proj.bias)
        for key in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            setattr(model.config, key, 0.0)
        model.save_pretrained(out / name)
        tokenizer.save_pretrained(out / name)
    return out


CASES = {
    "texts": (AutoModelForSequenceClassification, "bert", texts, of_texts),
    "words": (AutoModelForTokenClassification, "bert-token", words, of_words),
    "segments": (AutoModelForTokenClassification, "longformer-segments", segments, of_segments),
    "pairs": (AutoModelForSequenceClassification, "longformer-pairs", pairs, of_pairs),
}


def main():
    out = arguments("trajectories/classify")
    starts(out)
    set_seed(SEED)
    fixture = {"meta": meta(SEED, "safetensors", "tokenizers"), "batch_size": BATCH, "weights": WEIGHTS, "cases": {}}
    for name, (kind, start, make, loss_of) in CASES.items():
        rows = make(torch.Generator().manual_seed(SEED))
        (out / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        path = next(path for path in (out / start, FIXTURES / "encoders" / start) if path.is_dir())
        model = kind.from_pretrained(path, attn_implementation="eager", dtype=torch.float32).train()
        tokenizer = AutoTokenizer.from_pretrained(path)
        fixture["cases"][name] = {"start": start, **train(model, rows, loss_of(model, tokenizer))}
    write_json(out / "fixture.json", fixture)


main()
