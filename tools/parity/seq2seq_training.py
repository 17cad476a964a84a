"""Ten steps of fine-tuning an encoder–decoder model in a plain loop over transformers, with torch's AdamW.

models/t5/            start model and tokenizer, in `trajectories/`
sft_t5/, sft_t5_smoothed/
  rows.jsonl          prompts and completions, in the order of training
  run.json            start model, hyper-parameters, ten steps, norms of the final weights
pairs_t5/rows.jsonl   prompts with a better and a worse completion, for runs that are compared with each other
"""

import json
import shutil

from common import arguments, meta, write_json

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration, get_scheduler, set_seed

SEED, STEPS, BATCH = 31, 10, 4
WORDS = "the a sun moon sea sky river stone bird tree is was warm cold blue old over under and rises falls sleeps sings".split()
RUNS = {
    "sft_t5": dict(learning_rate=2e-3, lr_scheduler_type="linear", max_grad_norm=1.0, weight_decay=0.0),
    "sft_t5_smoothed": dict(learning_rate=1e-3, lr_scheduler_type="constant", max_grad_norm=0.5, weight_decay=0.0,
                            label_smoothing=0.1),
}


def tokenizer():
    """A tokenizer of words, with T5's end token after every text."""
    vocabulary = {word: i for i, word in enumerate(["<pad>", "</s>", "<unk>", *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")


def rows(generator):
    draw = lambda n: [WORDS[i] for i in torch.randint(len(WORDS), (n,), generator=generator)]
    lengths = torch.randint(2, 12, (STEPS * BATCH,), generator=generator).tolist()
    made = []
    for n in lengths:
        words = draw(n)
        made.append({"prompt": " ".join(words), "completion": " ".join(reversed(words[: max(1, n // 2)]))})
    return made


def run(name, options, model, tokens, data, out):
    optimizer = torch.optim.AdamW(model.parameters(), lr=options["learning_rate"], weight_decay=options["weight_decay"])
    schedule = get_scheduler(options["lr_scheduler_type"], optimizer, num_warmup_steps=0, num_training_steps=STEPS)
    smoothing, steps = options.get("label_smoothing", 0.0), []
    for step in range(STEPS):
        batch = data[step * BATCH:(step + 1) * BATCH]
        source = tokens([row["prompt"] for row in batch], padding=True, return_tensors="pt")
        target = [torch.tensor(tokens(text_target=row["completion"]).input_ids) for row in batch]
        labels = pad_sequence(target, batch_first=True, padding_value=-100)
        logits = model(input_ids=source.input_ids, attention_mask=source.attention_mask, labels=labels).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=smoothing)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), options["max_grad_norm"])
        steps.append({"loss": loss, "grad_norm": norm, "learning_rate": schedule.get_last_lr()[0]})
        optimizer.step()
        schedule.step()
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in data))
    norms = {name: {"norm": parameter.norm()} for name, parameter in model.named_parameters()}
    write_json(folder / "run.json", {
        "meta": meta(SEED, "safetensors"), "start_model": "t5", "hyper_parameters": options, "steps": steps,
        "final_weights": norms,
    })
    print(name, [round(step["loss"].item(), 3) for step in steps])


def main():
    out = arguments("trajectories")
    tokens, start = tokenizer(), out / "models" / "t5"
    config = T5Config(vocab_size=len(tokens), d_model=24, d_kv=5, d_ff=36, num_layers=2, num_heads=3, dropout_rate=0.0,
                      relative_attention_num_buckets=8, relative_attention_max_distance=16, decoder_start_token_id=0)
    set_seed(SEED)
    shutil.rmtree(start, ignore_errors=True)
    T5ForConditionalGeneration(config).save_pretrained(start)
    tokens.save_pretrained(start)
    generator = torch.Generator().manual_seed(SEED)
    for name, options in RUNS.items():
        model = T5ForConditionalGeneration.from_pretrained(start, attn_implementation="eager", dtype=torch.float32).train()
        run(name, options, model, tokens, rows(generator), out)
    pairs = [{"prompt": row["prompt"], "chosen": row["completion"], "rejected": row["prompt"]} for row in rows(generator)]
    (out / "pairs_t5").mkdir(exist_ok=True)
    (out / "pairs_t5" / "rows.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))


main()
