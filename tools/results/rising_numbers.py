"""The synthetic task of RL4LMs for an encoder–decoder model: write numbers, each larger than the one before.

    python rising_numbers.py --out DIR      # model/ (a small random T5), rows.jsonl (for sft), prompts.jsonl, held_out.jsonl
    python rising_numbers.py                # the reward, as a program: reads completions, prints one number for each

Only the first form needs torch and transformers. A number is one token. The numbers of the rows rise more often than not, so
a model trained on them writes numbers, but rarely rising sequences.
"""

import argparse
import json
import pathlib
import random
import sys

LARGEST, TOKENS, ROWS = 199, 20, 4000
PROMPT = "let us generate some numbers"
WORDS = ["<pad>", "</s>", "<unk>", *PROMPT.split(), *map(str, range(LARGEST + 1))]


def reward(text):
    """RL4LMs' `increasing_numbers` with `min_tokens` 20: the length of the rising sequence that starts at the first number, divided by the number of tokens."""
    words, numbers = text.split(), []
    for word in words:
        try:
            numbers.append(float(word))
        except ValueError:
            pass
    if not numbers:
        return 0.0
    rising = 1
    while rising < len(numbers) and numbers[rising] > numbers[rising - 1]:
        rising += 1
    return rising / max(len(words), TOKENS / 2)


def row(stream):
    numbers = [stream.randint(0, 60)]
    while len(numbers) < TOKENS:
        rises = stream.random() < 0.75
        low, high = (numbers[-1] + 1, numbers[-1] + 12) if rises else (numbers[-1] - 40, numbers[-1])
        numbers.append(min(LARGEST, max(0, stream.randint(low, high))))
    return " ".join(map(str, numbers))


def model(out):
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

    tokens = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokens.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokens.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    named = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=tokens, **named).save_pretrained(out)
    sizes = {"d_model": 64, "d_kv": 16, "d_ff": 256, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4}
    config = T5Config(vocab_size=len(WORDS), decoder_start_token_id=0, **sizes)
    torch.manual_seed(0)
    T5ForConditionalGeneration(config).save_pretrained(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=pathlib.Path)
    out = parser.parse_args().out
    if out is None:
        for line in sys.stdin:
            print(reward(json.loads(line)["completion"]), flush=True)
        return
    model(out / "model")
    stream = random.Random(0)
    rows = [{"prompt": PROMPT, "completion": row(stream)} for _ in range(ROWS)]
    (out / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in rows))
    for name, count in (("prompts", 50), ("held_out", 50)):
        (out / f"{name}.jsonl").write_text(count * (json.dumps({"prompt": PROMPT}) + "\n"))


if __name__ == "__main__":
    main()
