"""Left-padded batches through transformers' `generate`, on the models of `models.py`; run after it.

For each model, `fixture.json` contains the prompts, the greedy tokens of a left-padded batch of them, and the logprobs of
those tokens. Packed prompts must give the same.
"""

from common import FIXTURES, arguments, meta, write_json

import torch
from transformers import AutoModelForCausalLM

SEED = 60
NEW_TOKENS = 10


def run(name):
    generator = torch.Generator().manual_seed(SEED)
    model = AutoModelForCausalLM.from_pretrained(FIXTURES / "models" / name, attn_implementation="eager", dtype=torch.float32)
    prompts = [torch.randint(3, model.config.vocab_size, (length,), generator=generator).tolist() for length in (3, 11, 7)]
    width = max(map(len, prompts))
    ids = torch.tensor([[model.config.pad_token_id] * (width - len(row)) + row for row in prompts])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in prompts])
    out = model.generate(ids, attention_mask=mask, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=False,
                         output_logits=True, return_dict_in_generate=True)
    tokens = out.sequences[:, width:]
    logprobs = torch.stack([logits.log_softmax(-1) for logits in out.logits], 1).gather(2, tokens[:, :, None])[:, :, 0]
    return {"model": name, "prompts": prompts, "tokens": tokens, "logprobs": logprobs}


def main():
    out = arguments("padding")
    write_json(out / "fixture.json", {"meta": meta(SEED), "cases": [run(name) for name in ("gpt2", "llama-gqa", "qwen3-tied")]})


if __name__ == "__main__":
    main()
