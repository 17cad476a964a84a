"""Diverse beam search of transformers: ids and scores of every returned sequence, on the models of `beams.py`.

transformers removed `num_beam_groups` in version 5, and offers the same code as `transformers-community/group-beam-search`. This
script needs an older transformers:

    python3.11 -m venv ~/gradus-groups
    ~/gradus-groups/bin/pip install torch 'transformers==4.49.0'
    ~/gradus-groups/bin/python tools/parity/group_beams.py

Run after `models.py` and `seq2seq.py`. In transformers, a finished group writes padding, and later groups are penalized for the same id. This
script suppresses the padding, so it has no effect.
"""

import json

import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from beams import PROMPTS, generate
from common import FIXTURES, arguments, meta

MODELS = ["models/gpt2", "models/llama-gqa", "seq2seq/t5", "seq2seq/bart"]

GROUPS = {"num_beams": 4, "num_return_sequences": 4, "num_beam_groups": 2, "diversity_penalty": 1.0}
SETTINGS = [
    GROUPS,
    {**GROUPS, "num_return_sequences": 1},
    {**GROUPS, "diversity_penalty": 0.1},
    {**GROUPS, "diversity_penalty": 8.0},
    {**GROUPS, "num_beam_groups": 4},
    {**GROUPS, "num_beams": 6, "num_return_sequences": 6, "num_beam_groups": 3, "diversity_penalty": 0.5},
    {**GROUPS, "num_beams": 6, "num_return_sequences": 6, "early_stopping": True},
    {**GROUPS, "num_beams": 6, "num_return_sequences": 6, "early_stopping": "never"},
    {**GROUPS, "early_stopping": "never", "length_penalty": 2.0},
    {**GROUPS, "early_stopping": "never", "length_penalty": -1.0},
    {**GROUPS, "early_stopping": True, "length_penalty": 0.0},
    {**GROUPS, "length_penalty": -1.5},
    {**GROUPS, "length_penalty": 2.0},
    {**GROUPS, "no_repeat_ngram_size": 2, "repetition_penalty": 1.4},
    {**GROUPS, "min_new_tokens": 6},
    {**GROUPS, "forced_eos_token_id": "stop"},
    {**GROUPS, "forced_bos_token_id": 6},
    {**GROUPS, "max_new_tokens": 3},
    {**GROUPS, "max_new_tokens": 1},
]


def main():
    out = arguments("beams")
    cases = []
    for name in MODELS:
        kind = AutoModelForSeq2SeqLM if name.startswith("seq2seq") else AutoModelForCausalLM
        model = kind.from_pretrained(FIXTURES / name, torch_dtype=torch.float32).eval()
        start = model.generation_config.decoder_start_token_id or getattr(model.config, "decoder_start_token_id", None)
        model.generation_config = type(model.generation_config)(decoder_start_token_id=start)
        padding = model.config.vocab_size - 1
        plain = generate(model, PROMPTS[0], [padding], {"num_beams": 4, "num_return_sequences": 4})
        stop = list(dict.fromkeys([plain["ids"][0][3], plain["ids"][3][6]]))
        for prompt in PROMPTS:
            for settings in SETTINGS:
                first = settings.get("forced_bos_token_id")
                given = 1 if model.config.is_encoder_decoder else len(prompt)
                if first is not None and (given > 1 or first in stop):
                    continue
                settings = {**settings, "suppress_tokens": [padding]}
                answer = generate(model, prompt, stop, settings)
                cases.append({"model": name, "prompt": prompt, "stop": stop, "settings": settings, **answer})
    lines = ",\n".join(json.dumps(case) for case in cases)
    text = '{"meta": ' + json.dumps(meta(None)) + ',\n"cases": [\n' + lines + "\n]}\n"
    (out / "groups.json").write_text(text)


if __name__ == "__main__":
    main()
