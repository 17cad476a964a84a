"""Compares one iteration of fine-grained PPO with torch and transformers: 8 prompts × 4, a T5 policy and critic, three Longformers.

    python fine_grained.py --gradus BIN --python PYTHON                                    # T5-base and Longformer-base, about 20 GB
    python fine_grained.py --gradus BIN --python PYTHON --layers 2 --width 64 --new-tokens 16      # a quick trial

Weights are random and in f32. Rewards are those of FineGrainedRLHF: a label for each sentence from two classifiers of tokens (one
of them also reads the prompt), and a score for the whole completion from a third model. Both sides write completions of the same length and
train on them four times in mini-batches of four. The measured time is that from the end of the first iteration to the end of the second.
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time

import process

VOCABULARY, PROMPTS, GROUP, PART, PASSES = 32128, 8, 4, 4, 4
KL, CLIP, VALUE_CLIP, LAMBDA, LEARNING_RATE = 0.3, 0.2, 0.2, 0.95, 1e-5
SPECIAL = ["<pad>", "</s>", "<s>", "<unk>"]
# Every eighth word ends a sentence. All words begin with a capital letter, so each can start the next sentence.
WORDS = SPECIAL + [f"W{i}." if i % 8 == 0 else f"W{i}" for i in range(VOCABULARY - len(SPECIAL))]


def make(work, layers, width, rows, prompt_tokens):
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import (LongformerConfig, LongformerForSequenceClassification, LongformerForTokenClassification,
                              PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration)

    torch.manual_seed(0)
    tokens = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokens.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    named = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    t5 = T5Config(vocab_size=VOCABULARY, d_model=width, d_kv=64, d_ff=4 * width, num_layers=layers, num_decoder_layers=layers,
                  num_heads=max(1, width // 64), decoder_start_token_id=0, pad_token_id=0, eos_token_id=1, dropout_rate=0.0)
    T5ForConditionalGeneration(t5).save_pretrained(work / "t5")
    tokens.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    PreTrainedTokenizerFast(tokenizer_object=tokens, **named).save_pretrained(work / "t5")
    tokens.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 2), ("</s>", 1)])
    for name, kind, labels in [("relevance", LongformerForTokenClassification, ["Ignore", "NF-ERR", "O"]),
                               ("factuality", LongformerForTokenClassification, ["F-ERR", "Ignore", "O"]),
                               ("completeness", LongformerForSequenceClassification, ["score"])]:
        config = LongformerConfig(
            vocab_size=VOCABULARY, hidden_size=width, num_hidden_layers=layers, num_attention_heads=max(1, width // 64),
            intermediate_size=4 * width, attention_window=512, max_position_embeddings=4098, type_vocab_size=1, pad_token_id=0,
            bos_token_id=2, eos_token_id=1, sep_token_id=1, num_labels=len(labels), id2label=dict(enumerate(labels)),
            label2id={label: i for i, label in enumerate(labels)})
        kind(config).save_pretrained(work / name)
        PreTrainedTokenizerFast(tokenizer_object=tokens, **named, bos_token="<s>").save_pretrained(work / name)
    stream = random.Random(0)
    lines = [{"prompt": " ".join(stream.choices(WORDS[len(SPECIAL):], k=prompt_tokens - 1))} for _ in range(rows)]
    (work / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def configuration(work, new_tokens, prompt_tokens):
    """Runs gradus with FineGrainedRLHF's preset and these models."""
    segments = {"segments": "sentence"}
    return {
        "model": str(work / "t5"), "data": str(work / "prompts.jsonl"), "output_dir": str(work / "run"), "preset": "fine_grained",
        "method": {"ppo": {"max_new_tokens": new_tokens, "sampling": {"min_new_tokens": new_tokens},
                           "critic": {"model": str(work / "t5")}}},
        "reward": {"fine_grained": {
            "relevance": {"model": str(work / "relevance"), **segments, "prompt": "answer:", "values": {"O": 0.3, "NF-ERR": -0.3}},
            "factuality": {"model": str(work / "factuality"), **segments, "prompt": "{prompt} answer:", "values": {"O": 0.5, "F-ERR": -0.5}},
            "completeness": {"model": str(work / "completeness"), "text": "{prompt} answer: {completion}", "scale": 0.3},
        }},
        "train": {"batch_size": PROMPTS, "max_steps": 2, "max_length": prompt_tokens + new_tokens, "warmup_steps": 0, "lr_schedule": "constant",
                  "eval_steps": -1, "eval_fraction": 0, "save_steps": 0, "shuffle": False, "threads": process.THREADS},
    }  # fmt: skip


def torch_side(work, new_tokens):
    """The same iteration, written as a careful user would: padded batches, `generate` with its cache, no gradient where none is needed."""
    import seq2seq_side as plain
    import torch
    from transformers import (AutoTokenizer, LongformerForSequenceClassification, LongformerForTokenClassification,
                              T5ForConditionalGeneration)

    torch.set_num_threads(process.THREADS)
    T5ForConditionalGeneration.base_model_forward = plain.base_model_forward
    tokenizer = AutoTokenizer.from_pretrained(work / "t5")
    load = lambda: T5ForConditionalGeneration.from_pretrained(work / "t5").eval()
    policy, reference, critic = load(), load().requires_grad_(False), plain.Critic(load())
    judges = {name: LongformerForTokenClassification.from_pretrained(work / name).eval() for name in ("relevance", "factuality")}
    ranker = LongformerForSequenceClassification.from_pretrained(work / "completeness").eval()
    optimizers = [torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0, fused=True) for model in (policy, critic)]
    index = {word: i for i, word in enumerate(WORDS)}
    chosen = {"do_sample": True, "temperature": 0.7, "top_k": 20, "min_new_tokens": new_tokens, "max_new_tokens": new_tokens}

    def padded(texts):
        longest = max(map(len, texts))
        ids = torch.tensor([text + [0] * (longest - len(text)) for text in texts])
        return ids, torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in texts])

    def sentences(words):
        """The last word of each sentence."""
        ends = [t for t, word in enumerate(words) if word.endswith(".")]
        return ends if ends and ends[-1] == len(words) - 1 else ends + [len(words) - 1]

    @torch.no_grad()
    def rewards_of(prompts, completions):
        rewards = torch.zeros(len(completions), new_tokens)
        for name, right, wrong, worth in [("relevance", 2, 1, 0.3), ("factuality", 2, 0, 0.5)]:
            texts, asked = [], []
            for prompt, words in zip(prompts, completions):
                text = [2] + [index.get(word, 3) for word in ((prompt if name == "factuality" else []) + ["answer:"])]
                places, start = [], 0
                for end in sentences(words):
                    places.append(len(text))
                    text += [1] + [index[word] for word in words[start:end + 1]]
                    start = end + 1
                texts.append(text + [1])
                asked.append(places)
            for start in range(0, len(texts), 8):
                ids, mask = padded(texts[start:start + 8])
                logits = judges[name](input_ids=ids, attention_mask=mask, global_attention_mask=torch.zeros_like(mask)).logits
                for row, (logits_t, places) in enumerate(zip(logits, asked[start:start + 8]), start):
                    for place, end in zip(places, sentences(completions[row])):
                        rewards[row, end] += worth if logits_t[place, right] > logits_t[place, wrong] else -worth
        texts = [[2] + [index.get(word, 3) for word in prompt + ["answer:"] + words] + [1] for prompt, words in zip(prompts, completions)]
        for start in range(0, len(texts), 8):
            ids, mask = padded(texts[start:start + 8])
            rewards[start:start + 8, -1] += 0.3 * ranker(input_ids=ids, attention_mask=mask).logits[:, 0]
        return rewards

    def whiten(values):
        return (values - values.mean()) / values.std().sqrt()

    rows = [json.loads(line)["prompt"] for line in (work / "prompts.jsonl").open()]
    stamps = []
    for step in range(2):
        batch = [row for row in rows[step * PROMPTS:(step + 1) * PROMPTS] for _ in range(GROUP)]
        ids, mask = plain.encode(tokenizer, batch)
        with torch.no_grad():
            out = policy.generate(input_ids=ids, attention_mask=mask, **chosen)
            old, ref = (torch.cat([plain.logprobs(model, ids[i:i + 8], mask[i:i + 8], out[i:i + 8]) for i in range(0, len(batch), 8)])
                        for model in (policy, reference))
            values = torch.cat([critic(ids[i:i + 8], mask[i:i + 8], out[i:i + 8, :-1]) for i in range(0, len(batch), 8)])
            completions = [[WORDS[i] for i in row[1:].tolist()] for row in out]
            rewards = whiten(rewards_of([text.split() for text in batch], completions) - KL * (old - ref))
            advantage, returns = plain.advantages(rewards, values)
            advantage = whiten(advantage)
        for _ in range(PASSES):
            for i in range(0, len(batch), PART):
                part = slice(i, i + PART)
                ratio = (plain.logprobs(policy, ids[part], mask[part], out[part]) - old[part]).exp()
                surrogate = torch.minimum(ratio * advantage[part], ratio.clamp(1 - CLIP, 1 + CLIP) * advantage[part])
                found = critic(ids[part], mask[part], out[part, :-1])
                clipped = values[part] + (found - values[part]).clamp(-VALUE_CLIP, VALUE_CLIP)
                error = 0.5 * torch.maximum((found - returns[part]) ** 2, (clipped - returns[part]) ** 2)
                (-surrogate.mean() + error.mean()).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        stamps.append(time.monotonic())
    print(json.dumps({"iteration_s": stamps[1] - stamps[0]}))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gradus", type=pathlib.Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--prompt-tokens", type=int, default=300)
    parser.add_argument("--new-tokens", type=int, default=100)
    parser.add_argument("--side", choices=["make", "torch"])
    parser.add_argument("--work", type=pathlib.Path)
    given = parser.parse_args()
    if given.side == "make":
        return make(given.work, given.layers, given.width, 2 * PROMPTS, given.prompt_tokens)
    if given.side == "torch":
        return torch_side(given.work, given.new_tokens)
    process.two_cores()
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        sizes = ["--layers", given.layers, "--width", given.width, "--prompt-tokens", given.prompt_tokens, "--new-tokens", given.new_tokens]
        side = [given.python, __file__, "--work", work, *sizes, "--side"]
        subprocess.run([str(word) for word in [*side, "make"]], check=True, stdout=subprocess.DEVNULL)
        (work / "run.yml").write_text(json.dumps(configuration(work, given.new_tokens, given.prompt_tokens)))
        ours = process.run([given.gradus, "train", work / "run.yml", "--quiet"], work / "gradus.log", watched=work / "run/metrics.jsonl")
        theirs = process.run([*side, "torch"], work / "torch.log")
        ours_s = ours["stamps"][1] - ours["stamps"][0]
        theirs_s = json.loads((work / "torch.log").read_text().splitlines()[-1])["iteration_s"]
        print("| | gradus | torch and transformers | |\n|---|---|---|---|")
        print(f"| iteration, s | {ours_s:.1f} | {theirs_s:.1f} | {theirs_s / ours_s:.1f}× as fast |")
        print(f"| peak memory, MiB | {ours['peak_bytes'] / 2**20:.0f} | {theirs['peak_bytes'] / 2**20:.0f} | "
              f"{ours['peak_bytes'] / theirs['peak_bytes']:.2f}× |")


if __name__ == "__main__":
    main()
