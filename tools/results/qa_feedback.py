"""Runs all of QA-Feedback at a size that a laptop can train: reward models on feedback, then PPO with them, with the recipes in `small/`.

    python qa_feedback.py make --material DIR --out qa      # models of random weights, and the rows split by question
    python qa_feedback.py run --gradus BIN --out qa         # rows of reward models, supervision, R1 to R3, preference, both PPO runs
    python qa_feedback.py table --out qa                    # from the files of the runs

Every fifth of the 500 questions of the development split is held out, for policies and for reward models. Only `make` needs torch and
transformers.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECIPES = ["sft", "relevance", "factuality", "completeness", "preference", "fine_grained", "holistic"]
EVERY = 5


def make(material, out):
    import torch
    from transformers import LongformerConfig, LongformerForSequenceClassification, T5Config, T5ForConditionalGeneration

    (out / "data").mkdir(parents=True, exist_ok=True)
    questions = json.loads((material / "qa_feedback/dev.json").read_text())
    feedback = {row["question"]: row for row in json.loads((material / "qa_feedback/dev_feedback.json").read_text())}
    parts = {"train": [row for i, row in enumerate(questions) if i % EVERY], "dev": questions[::EVERY]}
    for name, rows in parts.items():
        (out / f"data/{name}.json").write_text(json.dumps(rows))
        (out / f"data/{name}_feedback.json").write_text(json.dumps([feedback[row["question"]] for row in rows]))
    shutil.copy(out / "data/train.json", out / "data/train_1k.json")

    torch.manual_seed(0)
    longformer = LongformerConfig(
        vocab_size=50265, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256, attention_window=64,
        max_position_embeddings=1026, type_vocab_size=1, pad_token_id=1, bos_token_id=0, eos_token_id=2)
    t5 = T5Config(vocab_size=32128, d_model=64, d_kv=16, d_ff=256, num_layers=2, num_decoder_layers=2, num_heads=4,
                  decoder_start_token_id=0, pad_token_id=0, eos_token_id=1)
    for name, tokens, model in [("longformer-small", "longformer", LongformerForSequenceClassification(longformer)),
                                ("t5-small", "t5", T5ForConditionalGeneration(t5))]:
        model.save_pretrained(out / "models" / name)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(material / "tokenizers" / tokens / file, out / "models" / name / file)


def commands(gradus):
    """Every command, and the path that exists when it is done, in the folder of the data."""
    for split in ("train", "dev"):
        feedback = f"data/{split}_feedback.json"
        for form, to in [("r1", f"data/relevance/{split}.jsonl"), ("r2", f"data/factuality/{split}.jsonl"), ("r3", f"data/coverage/{split}.json"),
                         ("preference", f"data/preference/{split}.jsonl")]:
            yield to, [gradus, "data", "convert", feedback, "--to", form, "--output", to]
        to = f"data/completeness/{split}.jsonl"
        yield to, [gradus, "data", "convert", f"data/coverage/{split}.json", "--to", "preference", "--output", to]
    for recipe in RECIPES:
        done = f"runs/qa_feedback_small/{recipe}/results.json"
        yield done, [gradus, "train", ROOT / f"recipes/qa_feedback/small/{recipe}.yml", "--overwrite"]


def run(gradus, out):
    for done, command in commands(gradus):
        if (out / done).exists():
            continue
        (out / done).parent.mkdir(parents=True, exist_ok=True)
        command = [str(word) for word in command]
        print("$", " ".join(command), flush=True)
        began = time.monotonic()
        ended = subprocess.run(command, cwd=out, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if ended.returncode != 0:
            raise SystemExit(ended.stdout[-4000:])
        print(f"  {time.monotonic() - began:.0f} s", flush=True)


def table(out):
    def ends(recipe, keys):
        path = out / "runs/qa_feedback_small" / recipe / "metrics.jsonl"
        if not path.exists():
            return
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for key in keys:
            points = [(line["step"], line[key]) for line in lines if line.get(key) is not None]
            if points:
                (first, before), (last, after) = points[0], points[-1]
                print(f"| {recipe} | `{key}` | {before:.3f} (step {first}) | {after:.3f} (step {last}) |")

    print("| run | measure | at first | at the end |\n|---|---|---|---|")
    ends("sft", ["eval_loss", "eval_rouge/rougeLsum"])
    for recipe in ("relevance", "factuality"):
        ends(recipe, ["eval_loss", "eval_detection/f1", "eval_detection/accuracy"])
    for recipe in ("completeness", "preference"):
        ends(recipe, ["eval_loss", "eval_accuracy"])
    for recipe in ("fine_grained", "holistic"):
        ends(recipe, ["eval_reward", "eval_rewards/relevance/right", "eval_rewards/factuality/right", "eval_rewards/completeness/score",
                      "eval_rewards/preference/score", "eval_rouge/rougeLsum", "eval_length", "eval_kl"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["make", "run", "table"])
    parser.add_argument("--material", type=pathlib.Path)
    parser.add_argument("--gradus", type=pathlib.Path, default=pathlib.Path("gradus"))
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("qa"))
    given = parser.parse_args()
    if given.what == "make":
        make(given.material, given.out)
    elif given.what == "run":
        run(given.gradus.resolve() if given.gradus.exists() else given.gradus, given.out)
    else:
        table(given.out)


if __name__ == "__main__":
    main()
