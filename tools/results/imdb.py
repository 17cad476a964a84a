"""A small version of RL4LMs' film reviews: a policy of 260,000 parameters, a classifier trained here, and every online method of RL4LMs.

    python imdb.py --gradus target/release/gradus --material DIR --out DIR [--seeds 1,2,3] [--methods ppo,trpo] [--iterations 40]

DIR contains `imdb/` (`train.jsonl.gz`, `test.jsonl.gz`: `text`, `label`) and `weights/stories260K`. The classifier starts as a random
DistilBERT of three layers with a WordPiece vocabulary of the training reviews. Only this part needs torch, transformers and tokenizers. All
other parts are commands of gradus, which are printed. The script ends with a Markdown table: sentiment (the classifier's probability of "positive" for the
completion, at temperature 1) and perplexity of the policy on reviews, both on the test split, mean over the seeds ± 95 %.
"""

import argparse
import gzip
import json
import pathlib
import shlex
import statistics
import subprocess

T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
PROMPT, NEW, TEST = 64, 48, 400
METHODS = {
    "ppo": ["--learning-rate", "1e-4", "--update-epochs", "4", "--mini-batches", "4"],
    "nlpo": ["--learning-rate", "1e-4", "--update-epochs", "4", "--mini-batches", "4", "--top-p", "0.9"],
    "a2c": ["--learning-rate", "5e-4"],
    "trpo": [],
}


def encoder(reviews, out):
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import DistilBertConfig, DistilBertForSequenceClassification, PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    words = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    words.normalizer, words.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    words.train_from_iterator(reviews, trainers.WordPieceTrainer(vocab_size=6000, special_tokens=special))
    words.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=words, **names).save_pretrained(out)
    torch.manual_seed(0)
    config = DistilBertConfig(vocab_size=6000, dim=128, n_layers=3, n_heads=4, hidden_dim=512, max_position_embeddings=512, num_labels=2)
    DistilBertForSequenceClassification(config).save_pretrained(out)


def reviews(path):
    """The rows of a file in which some texts contain line ends that JSON would escape. A line that does not begin a row continues the previous
    one. A row that is cut off is skipped."""
    rows = []
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as lines:
        for line in lines:
            if line.startswith('{"id"'):
                rows.append(line)
            else:
                rows[-1] += line
    for row in rows:
        try:
            yield json.loads(row, strict=False)
        except json.JSONDecodeError:
            pass


class Study:
    def __init__(self, given):
        self.given, self.out = given, given.out
        self.imdb, self.base = self.out / "imdb", given.material / "weights/stories260K"
        self.imdb.mkdir(parents=True, exist_ok=True)
        for split in ("train", "test"):
            rows = [json.dumps(row) + "\n" for row in reviews(given.material / f"imdb/{split}.jsonl.gz")]
            (self.imdb / f"{split}.jsonl").write_text("".join(rows))
            print(f"{len(rows)} reviews written to {split}")

    def gradus(self, *words):
        command = [str(word) for word in (self.given.gradus, *words)]
        print("$ " + shlex.join(command), flush=True)
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(done.stderr)
        return done.stdout

    def train(self, method, name, *words):
        """Starts a run, unless it already exists."""
        run = self.out / name
        if not (run / "results.json").exists():
            self.gradus(method, "--output-dir", run, "--overwrite", "--quiet", *words)
        return run / "model"

    def classifier(self):
        start = self.out / "encoder"
        if not (start / "model.safetensors").exists():
            encoder((json.loads(line)["text"] for line in open(self.imdb / "train.jsonl")), start)
        rows = ["--data", self.imdb / "train.jsonl", "--eval-data", self.imdb / "test.jsonl", "--max-eval-rows", 2000]
        learn = ["--epochs", 4, "--learning-rate", 5e-4, "--batch-size", 32, "--max-length", 256, "--warmup-steps", 0.1, "--dropout"]
        return self.train("classify", "classifier", "--model", start, *rows, *learn)

    def prompts(self, split):
        return ["--task", "imdb", "--data", self.imdb, "--split", split, "--max-prompt-length", PROMPT, "--max-new-tokens", NEW]

    def sentiment(self, model, judge):
        scored = self.gradus("eval", "--json", "--quiet", "--model", model, *self.prompts("test"), "--max-rows", TEST, "--top-k", 50, "--seed", 1, *judge)
        texts = ["--data", self.imdb / "test.jsonl", "--max-rows", TEST, "--max-length", 256]
        read = self.gradus("eval", "--json", "--quiet", "--model", model, *texts)
        return json.loads(scored)["reward"], json.loads(read)["perplexity"]

    def run(self):
        judge = ["--reward-classifier-model", self.classifier(), "--reward-classifier-label", 1, "--reward-classifier-text", "{completion}"]
        learn = ["--learning-rate", 1e-3, "--batch-size", 32, "--max-length", 256, "--epochs", 2]
        policy = self.train("sft", "policy", "--model", self.base, "--data", self.imdb / "train.jsonl", *learn)
        found = {"zero-shot": [self.sentiment(policy, judge)]}
        for seed in self.given.seeds:
            tuned = ["--learning-rate", 5e-4, "--batch-size", 32, "--max-length", 256, "--epochs", 2, "--seed", seed]
            model = self.train("sft", f"supervised-{seed}", "--model", policy, "--task", "imdb_seq2seq", "--data", self.imdb, *tuned)
            found.setdefault("supervised", []).append(self.sentiment(model, judge))
            for method in self.given.methods:
                words = ["--model", policy, *self.prompts("train"), *judge, *METHODS[method], "--sampling-top-k", 50, "--temperature", 1, "--kl-coefficient", 0.02]
                steps = ["--batch-size", 64, "--max-steps", self.given.iterations, "--eval-steps", -1, "--seed", seed]
                model = self.train(method, f"{method}-{seed}", *words, *steps)
                found.setdefault(method, []).append(self.sentiment(model, judge))
        return found


def spread(values):
    mean = statistics.mean(values)
    if len(values) < 2:
        return f"{mean:.3f}"
    half = T_95[len(values)] * statistics.stdev(values) / len(values) ** 0.5
    return f"{mean:.3f} ± {half:.3f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gradus", type=pathlib.Path, required=True)
    parser.add_argument("--material", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[1, 2, 3])
    parser.add_argument("--methods", type=lambda text: text.split(","), default=list(METHODS))
    parser.add_argument("--iterations", type=int, default=40)
    found = Study(parser.parse_args()).run()
    print("\n| | sentiment | perplexity |\n|---|---|---|")
    for name, values in found.items():
        print(f"| {name} | {spread([value[0] for value in values])} | {spread([value[1] for value in values])} |")


if __name__ == "__main__":
    main()
