"""Beam search of transformers: ids and scores of every returned sequence, on the models of `models.py` and `seq2seq.py`.

The script chooses two stop ids for each model from the ids of its plain beams, so that beams end early, late and never.
Run after both.
"""

import json

import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from common import FIXTURES, arguments, meta

MODELS = ["models/gpt2", "models/llama-gqa", "models/qwen3", "models/mistral-window", "seq2seq/t5", "seq2seq/t5-gated",
          "seq2seq/bart", "seq2seq/blenderbot"]
PROMPTS = [[3, 7, 7, 1, 20], [5], [11, 2, 9, 4, 9, 11, 2, 9], [8, 8, 8]]
NEW = 10

SETTINGS = [
    {"num_beams": 4},
    {"num_beams": 4, "num_return_sequences": 4},
    {"num_beams": 2, "num_return_sequences": 2, "length_penalty": 0.0},
    {"num_beams": 3, "num_return_sequences": 3, "length_penalty": 2.0},
    {"num_beams": 3, "num_return_sequences": 3, "length_penalty": -1.5},
    {"num_beams": 4, "num_return_sequences": 4, "no_repeat_ngram_size": 3},
    {"num_beams": 4, "num_return_sequences": 2, "no_repeat_ngram_size": 1, "repetition_penalty": 1.4},
    {"num_beams": 4, "num_return_sequences": 4, "min_new_tokens": 6},
    {"num_beams": 4, "num_return_sequences": 4, "min_new_tokens": 10},
    {"num_beams": 4, "num_return_sequences": 4, "early_stopping": True},
    {"num_beams": 4, "num_return_sequences": 4, "early_stopping": "never"},
    {"num_beams": 4, "num_return_sequences": 4, "early_stopping": "never", "length_penalty": 2.0},
    {"num_beams": 4, "num_return_sequences": 4, "early_stopping": "never", "length_penalty": -1.0},
    {"num_beams": 4, "num_return_sequences": 4, "early_stopping": True, "length_penalty": 0.3},
    {"num_beams": 4, "num_return_sequences": 4, "forced_eos_token_id": "stop"},
    {"num_beams": 3, "num_return_sequences": 3, "forced_bos_token_id": 6},
    {"num_beams": 3, "num_return_sequences": 3, "suppress_tokens": [1, 2, 3], "bad_words_ids": [[4, 5], [9]]},
    {"num_beams": 7, "num_return_sequences": 7, "max_new_tokens": 3},
    {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 1},
    {"num_beams": 1},
    {"num_beams": 4, "num_return_sequences": 4, "encoder_no_repeat_ngram_size": 1},
    {"num_beams": 4, "num_return_sequences": 4, "encoder_no_repeat_ngram_size": 2, "no_repeat_ngram_size": 3},
    {"num_beams": 1, "encoder_no_repeat_ngram_size": 2},
]


def generate(model, prompt, stop, settings):
    settings = {"max_new_tokens": NEW, "do_sample": False, **settings}
    if settings.get("forced_eos_token_id") == "stop":
        settings["forced_eos_token_id"] = stop[0]
    # The start id of a decoder is not part of the completion.
    given = 1 if model.config.is_encoder_decoder else len(prompt)
    out = model.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long), eos_token_id=stop,
        pad_token_id=model.config.vocab_size - 1, return_dict_in_generate=True, output_scores=True,
        # The cache of transformers 5.23 requires as many layers in a decoder as in its encoder.
        use_cache=not model.config.is_encoder_decoder, **settings,
    )
    sequences = []
    for ids in out.sequences[:, given:].tolist():
        end = next((i + 1 for i, id in enumerate(ids) if id in stop), len(ids))
        sequences.append(ids[:end])
    scores = out.sequences_scores.tolist() if settings["num_beams"] > 1 else None
    return {"ids": sequences, "scores": scores}


def main():
    out = arguments("beams")
    cases = []
    for name in MODELS:
        kind = AutoModelForSeq2SeqLM if name.startswith("seq2seq") else AutoModelForCausalLM
        model = kind.from_pretrained(FIXTURES / name, dtype=torch.float32).eval()
        start = model.generation_config.decoder_start_token_id or getattr(model.config, "decoder_start_token_id", None)
        model.generation_config = type(model.generation_config)(decoder_start_token_id=start)
        plain = generate(model, PROMPTS[0], [model.config.vocab_size - 1], {"num_beams": 4, "num_return_sequences": 4})
        # The fourth id of the best beam, and the seventh of the last.
        stop = [plain["ids"][0][3], plain["ids"][3][6]]
        stop = list(dict.fromkeys(stop))
        for prompt in PROMPTS:
            for settings in SETTINGS:
                first = settings.get("forced_bos_token_id")
                given = 1 if model.config.is_encoder_decoder else len(prompt)
                if first is not None and (given > 1 or first in stop):
                    # transformers forces it only at the first position. If it ends all beams, transformers returns padding.
                    continue
                answer = generate(model, prompt, stop, settings)
                cases.append({"model": name, "prompt": prompt, "stop": stop, "settings": settings, **answer})
    path = out / "fixture.json"
    lines = ",\n".join(json.dumps(case) for case in cases)
    path.write_text('{"meta": ' + json.dumps(meta(None)) + ',\n"cases": [\n' + lines + "\n]}\n")


if __name__ == "__main__":
    main()
