"""Compares Longformer with transformers: time and memory by the length of a text, and the scoring of QA-Feedback's texts.

    python longformer.py --gradus BIN --python PYTHON --material DIR                                       # a table of both
    python longformer.py --gradus BIN --python PYTHON --material DIR --layers 2 --width 64 --texts 20      # a quick trial

`PYTHON` has torch and transformers. Weights are random, by default with the size of `longformer-base-4096`. A value of gradus is
that of the whole command minus that of one short text. A value of transformers covers only the loop, after the model is loaded and warm. Both
sides get the same ids on the same two cores, one process after the other. The script prints the largest difference of the logits.
"""

import argparse
import json
import pathlib
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import process

LENGTHS = [512, 1024, 2048, 4096]
VOCABULARY = 50265


def make(folder, layers, width):
    """A model with random weights. Its tokenizer is never used, because rows are ids."""
    import torch
    from tokenizers import Tokenizer, models
    from transformers import LongformerConfig, LongformerForSequenceClassification, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = LongformerConfig(
        vocab_size=VOCABULARY, hidden_size=width, num_hidden_layers=layers, num_attention_heads=max(1, width // 64), intermediate_size=4 * width,
        attention_window=512, max_position_embeddings=4098, type_vocab_size=1, pad_token_id=1, bos_token_id=0, eos_token_id=2)
    model = LongformerForSequenceClassification(config)
    with torch.no_grad():
        # The head's weights are too small for a comparison.
        model.classifier.out_proj.weight.normal_(std=0.5)
    model.save_pretrained(folder)
    words = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3} | {f"w{i}": i for i in range(4, VOCABULARY)}
    tokens = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    named = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=tokens, **named).save_pretrained(folder)


def of_material(material, count):
    """The ids of questions with their passages and the answers of models, as reward models read them."""
    from tokenizers import Tokenizer

    tokens = Tokenizer.from_file(str(material / "tokenizers/longformer/tokenizer.json"))
    rows = json.loads((material / "qa_feedback/dev_feedback.json").read_text())
    answers = [(row, row[f"prediction {i}"]) for i in range(1, 5) for row in rows][:count]
    passages = lambda row: " ".join(f"wikipage: {title} text: {' '.join(text)}" for title, *text in row["passages"])
    return [tokens.encode(f"question: {row['question']} context: {passages(row)} answer: {answer}").ids for row, answer in answers]


def ids(stream, length):
    return [0] + [stream.randrange(4, VOCABULARY) for _ in range(length - 2)] + [2]


def torch_side(model, rows, batch):
    """Seconds of the loop over all rows in padded batches, growth of the peak, logits in order."""
    import torch
    from transformers import LongformerForSequenceClassification

    torch.set_num_threads(process.THREADS)
    network = LongformerForSequenceClassification.from_pretrained(model).eval()
    texts = [json.loads(line)["input_ids"] for line in open(rows)]

    def score(texts):
        longest = max(map(len, texts))
        padded = torch.tensor([text + [1] * (longest - len(text)) for text in texts])
        mask = torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in texts])
        with torch.inference_mode():
            return network(input_ids=padded, attention_mask=mask).logits.tolist()

    score([texts[0][:8]])
    before, began, logits = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic(), []
    for start in range(0, len(texts), batch):
        logits += score(texts[start:start + batch])
    seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"seconds": seconds, "bytes": (after - before) * 1024, "logits": logits}))


class Sides:
    def __init__(self, gradus, python, model, work):
        self.gradus, self.python, self.model, self.work = gradus, python, model, work
        self.start = None

    def gradus_of(self, rows):
        out = self.work / "gradus.jsonl"
        found = process.run([str(self.gradus), "score", "--classifier", str(self.model), "--data", str(rows)], out)
        lines = [json.loads(line) for line in out.read_text().splitlines() if line.startswith("{")]
        return found, [line["logits"] for line in lines]

    def both(self, texts, batch):
        rows = self.work / "rows.jsonl"
        if self.start is None:
            write(rows, [texts[0][:8]])
            self.start = min((self.gradus_of(rows)[0] for _ in range(3)), key=lambda found: found["wall_s"])
        write(rows, texts)
        found, ours = self.gradus_of(rows)
        command = [self.python, __file__, "--side", "torch", "--model", self.model, "--rows", rows, "--batch", batch]
        done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True, check=True)
        theirs = json.loads(done.stdout.splitlines()[-1])
        apart = max(abs(a - b) for ours, theirs in zip(ours, theirs["logits"], strict=True) for a, b in zip(ours, theirs, strict=True))
        return {
            "gradus_s": found["wall_s"] - self.start["wall_s"], "gradus_mib": (found["peak_bytes"] - self.start["peak_bytes"]) / 2**20,
            "torch_s": theirs["seconds"], "torch_mib": theirs["bytes"] / 2**20, "apart": apart,
        }


def write(path, texts):
    path.write_text("".join(json.dumps({"input_ids": text}) + "\n" for text in texts))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gradus", type=pathlib.Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--texts", type=int, default=1000, help="texts of QA-Feedback; 0 for none")
    parser.add_argument("--repeats", type=int, default=4, help="texts of each length")
    parser.add_argument("--batch", type=int, default=8, help="texts per padded batch of transformers; gradus forms its own batches")
    parser.add_argument("--material", type=pathlib.Path, help="a folder with `qa_feedback` and `tokenizers/longformer`")
    parser.add_argument("--side", choices=["torch", "make", "ids"])
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--rows", type=pathlib.Path)
    given = parser.parse_args()
    if given.side == "torch":
        return torch_side(given.model, given.rows, given.batch)
    if given.side == "make":
        return make(given.model, given.layers, given.width)
    if given.side == "ids":
        return write(given.rows, of_material(given.material, given.texts))
    process.two_cores()
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        size = ["--layers", str(given.layers), "--width", str(given.width)]
        subprocess.run([given.python, __file__, "--side", "make", "--model", str(work / "model"), *size], check=True)
        sides, stream = Sides(given.gradus, given.python, work / "model", work), random.Random(0)
        print("| tokens | gradus, s per text | transformers | ratio | gradus, MiB | transformers | largest difference of logits |\n|---|---|---|---|---|---|---|")
        for length in LENGTHS:
            found = sides.both([ids(stream, length) for _ in range(given.repeats)], 1)
            ours, theirs = found["gradus_s"] / given.repeats, found["torch_s"] / given.repeats
            print(f"| {length:,} | {ours:.3f} | {theirs:.3f} | {theirs / ours:.1f} | {found['gradus_mib']:.0f} | {found['torch_mib']:.0f} | "
                  f"{found['apart']:.1e} |", flush=True)
        if given.texts and given.material:
            rows = ["--rows", work / "texts.jsonl", "--material", given.material, "--texts", given.texts]
            subprocess.run([str(word) for word in [given.python, __file__, "--side", "ids", *rows]], check=True)
            texts = [json.loads(line)["input_ids"] for line in (work / "texts.jsonl").open()]
            found = sides.both(texts, given.batch)
            print(f"\n{len(texts)} texts of {statistics.mean(map(len, texts)):.0f} tokens on average: gradus {found['gradus_s']:.1f} s, transformers "
                  f"{found['torch_s']:.1f} s ({found['torch_s'] / found['gradus_s']:.1f}×), in batches of {given.batch}; "
                  f"{found['gradus_mib']:.0f} and {found['torch_mib']:.0f} MiB beyond the weights; largest difference of logits {found['apart']:.1e}")


if __name__ == "__main__":
    main()
