"""Compares dense and holistic rewards of detoxification at a size that a laptop can train: models, rows, runs, table and picture.

    python detoxification.py make --material DIR --out detoxification      # models and rows
    python detoxification.py run --gradus BIN --out detoxification         # pre-training, scorer, runs of three seeds
    python detoxification.py table --out detoxification --plot FILE.svg    # from the files of the runs

The rows are RealToxicityPrompts from the folder DIR. Each text is one sentence. So the documents for training the policy consist of four
sentences, and a completion has several. The scorer is trained on the scores of the same sentences, and on two or three sentences
together, which are toxic if one of them is. Only `make` needs torch and transformers.
"""

import argparse
import json
import pathlib
import random
import statistics
import subprocess
import time

import plot as pictures

SEEDS = [1, 2, 3]
KINDS = ["fine_grained", "holistic"]
# Short sentences, so that a completion has room for several.
WORDS, LEARNED, HELD_OUT = 24, 2600, 400
STEPS, EVERY = 50, 5
# Without it, an empty completion is the most harmless one, and both kinds of run converge to it.
FEWEST = 48
# The reward is the change of toxicity or its negative. So the mean reward of held-out completions measures their mean toxicity.
MEASURE = "eval_reward"


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def documents(rows, stream, sentences, count):
    order = stream.sample(rows, len(rows))
    joined = [order[i:i + sentences] for i in range(0, len(order) - sentences + 1, sentences)][:count]
    return [(" ".join((row["prompt"]["text"] + row["continuation"]["text"]).strip() for row in group), group) for group in joined]


def make(material, out):
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    out.mkdir(parents=True, exist_ok=True)
    stream = random.Random(0)
    with (material / "realtoxicityprompts/quark_val.jsonl").open() as lines:
        rows = [json.loads(line) for line in lines]
    rows = [row for row in rows if row["prompt"]["toxicity"] is not None and row["continuation"]["toxicity"] is not None]
    rows = [row for row in rows if len((row["prompt"]["text"] + row["continuation"]["text"]).split()) <= WORDS]
    stream.shuffle(rows)
    learned, held_out = rows[:LEARNED], rows[LEARNED:LEARNED + HELD_OUT]
    texts = [text for _ in range(6) for text, _ in documents(learned, stream, 4, len(learned))]
    write(out / "documents.jsonl", [{"text": text} for text in texts])

    def scored(rows):
        sides = [(row[side]["text"].strip(), row[side]["toxicity"] >= 0.5) for row in rows for side in ("prompt", "continuation")]
        groups = [(text, any(row[side]["toxicity"] >= 0.5 for row in group for side in ("prompt", "continuation")))
                  for sentences in (2, 3) for text, group in documents(rows, stream, sentences, len(rows))]
        made = [{"text": text, "label": "toxic" if is_toxic else "harmless"} for text, is_toxic in sides + groups]
        stream.shuffle(made)
        return made

    write(out / "scored.jsonl", scored(learned))
    write(out / "scored_held_out.jsonl", scored(held_out))
    write(out / "prompts.jsonl", [{"prompt": row["prompt"]["text"]} for row in learned])
    write(out / "held_out.jsonl", [{"prompt": row["prompt"]["text"]} for row in held_out])

    tokens = Tokenizer(models.BPE())
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    tokens.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=4096, special_tokens=["<|endoftext|>", "<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    named = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    PreTrainedTokenizerFast(tokenizer_object=tokens, **named).save_pretrained(out / "policy")
    torch.manual_seed(0)
    size = {"n_positions": 256, "n_embd": 128, "n_layer": 3, "n_head": 4}
    config = GPT2Config(vocab_size=tokens.get_vocab_size(), bos_token_id=0, eos_token_id=0, **size)
    GPT2LMHeadModel(config).save_pretrained(out / "policy")

    tokens.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    named = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<|endoftext|>", "cls_token": "<s>", "sep_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=tokens, **named).save_pretrained(out / "encoder")
    size = {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 384, "max_position_embeddings": 256}
    config = BertConfig(vocab_size=tokens.get_vocab_size(), pad_token_id=0, num_labels=2, **size,
                        id2label={0: "harmless", 1: "toxic"}, label2id={"harmless": 0, "toxic": 1})
    BertForSequenceClassification(config).save_pretrained(out / "encoder")


def configuration(kind, out):
    """A run. Both kinds differ only in one part, and its rewards have the same sum."""
    part = {"model": str(out / "scorer/model"), "label": "toxic", "weight": -1}
    if kind == "holistic":
        part |= {"text": "{completion}", "segments": "whole"}
    else:
        part |= {"text": "{so_far}", "segments": "sentence", "change": True}
    return {
        "model": str(out / "sft/model"), "data": str(out / "prompts.jsonl"), "eval_data": str(out / "held_out.jsonl"),
        "method": {"ppo": {"max_new_tokens": 64, "temperature": 1, "sampling": {"top_p": 0.9, "min_new_tokens": FEWEST}, "update_epochs": 2, "mini_batches": 2,
                           "gae_lambda": 0.95, "kl": {"coefficient": 0.02}}},
        "reward": {"fine_grained": {"toxicity": part}},
        "train": {"max_steps": STEPS, "batch_size": 32, "learning_rate": 3e-4, "warmup_steps": 5, "eval_steps": EVERY, "max_eval_rows": 200,
                  "evaluation": {"metrics": ["distinct", {"perplexity": {"model": str(out / "sft/model")}}]}},
    }  # fmt: skip


def commands(gradus, out):
    """Every command, by the folder of its run."""
    yield out / "sft", [
        gradus, "sft", "--model", out / "policy", "--data", out / "documents.jsonl", "--output-dir", out / "sft", "--epochs", "4",
        "--batch-size", "16", "--learning-rate", "2e-3", "--lr-schedule", "cosine", "--warmup-steps", "50", "--max-length", "256", "--too-long", "truncate",
        "--eval-fraction", "0", "--eval-steps", "-1"]
    yield out / "scorer", [
        gradus, "classify", "--model", out / "encoder", "--data", out / "scored.jsonl", "--eval-data", out / "scored_held_out.jsonl",
        "--output-dir", out / "scorer", "--epochs", "3", "--batch-size", "32", "--learning-rate", "1e-3", "--lr-schedule", "cosine",
        "--max-length", "256", "--too-long", "truncate", "--eval-steps", "-1"]
    for seed in SEEDS:
        for kind in KINDS:
            run = out / f"{kind}-{seed}"
            (out / f"{kind}.yml").write_text(json.dumps(configuration(kind, out), indent=1))
            yield run, [gradus, "train", out / f"{kind}.yml", "--seed", str(seed), "--output-dir", run]


def run(gradus, out):
    for folder, command in commands(gradus, out):
        if (folder / "results.json").exists():
            continue
        command = [str(word) for word in command]
        print("$", " ".join(command), flush=True)
        began = time.monotonic()
        done = subprocess.run(command + ["--overwrite"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            raise SystemExit(done.stdout[-4000:])
        print(f"  {time.monotonic() - began:.0f} s", flush=True)


def curve(folder, key):
    """The values of a metric of evaluations, by step."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    sign = -1 if key == MEASURE else 1
    return {line["step"]: sign * line[key] for line in lines if line.get(key) is not None}


def reached(points, threshold):
    """The step at which the straight line between evaluations first meets the threshold, or None."""
    before = None
    for step, value in sorted(points.items()):
        if value <= threshold:
            if before is None or before[1] <= threshold:
                return float(step)
            return before[0] + (before[1] - threshold) / (before[1] - value) * (step - before[0])
        before = (step, value)
    return None


def spread(values):
    return f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f}"


def table(out, plot):
    curves = {kind: [curve(out / f"{kind}-{seed}", MEASURE) for seed in SEEDS] for kind in KINDS}
    steps = sorted(set.intersection(*(set(points) for kind in KINDS for points in curves[kind])))
    lengths = {kind: [curve(out / f"{kind}-{seed}", "eval_length") for seed in SEEDS] for kind in KINDS}
    names = [kind.replace("_", "-") for kind in KINDS]
    print(f"| step | {' | '.join(f'toxicity, {name} | tokens' for name in names)} |\n|---|" + "---|---|" * len(KINDS))
    for step in steps:
        of = lambda kind: f"{spread([points[step] for points in curves[kind]])} | {statistics.mean(points[step] for points in lengths[kind]):.1f}"
        print(f"| {step} | {' | '.join(of(kind) for kind in KINDS)} |")
    last = steps[-1]
    for name, key in [("KL, nats per completion", "eval_kl"), ("distinct pairs of words", "eval_distinct/dist-2"),
                      ("perplexity by the policy before training", "eval_perplexity")]:
        for step in (0, last):
            found = [spread([curve(out / f"{kind}-{seed}", key)[step] for seed in SEEDS]) for kind in KINDS]
            print(f"| {name}, step {step} | {' | | '.join(found)} | |")
    threshold = statistics.mean(points[last] for points in curves["holistic"])
    print(f"\nsteps until the toxicity falls to {threshold:.3f}, the mean of the holistic runs at the last step:")
    for kind in KINDS:
        found = [reached(points, threshold) for points in curves[kind]]
        shown = ", ".join("never" if step is None else f"{step:.0f}" for step in found)
        known = [step for step in found if step is not None]
        mean = f"; mean {statistics.mean(known):.0f} ± {statistics.stdev(known):.0f}" if len(known) == len(SEEDS) else ""
        print(f"{kind}: {shown}{mean}")
    if plot:
        title = "Mean toxicity of held-out samples: three seeds, their mean, lowest and highest"
        plot.write_text(pictures.curves(title, {kind.replace("_", "-"): curves[kind] for kind in KINDS}))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["make", "run", "table"])
    parser.add_argument("--material", type=pathlib.Path)
    parser.add_argument("--gradus", type=pathlib.Path, default=pathlib.Path("gradus"))
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("detoxification"))
    parser.add_argument("--plot", type=pathlib.Path)
    given = parser.parse_args()
    out = given.out.resolve()
    if given.what == "make":
        make(given.material, out)
    elif given.what == "run":
        run(given.gradus.resolve() if given.gradus.exists() else given.gradus, out)
    else:
        table(out, given.plot)


if __name__ == "__main__":
    main()
