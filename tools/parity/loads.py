"""Loads model and adapter directories of gradus with transformers and peft, and reports missing and unexpected
tensors.

    python loads.py DIR [DIR ...]

For a language model, it also prints the mean log-probability of a fixed row of ids (with an encoder, given the same row). For
a reward model or a classifier, it prints the scores. Compare them with `gradus score` on the same ids. Exit code 1 if a name is missing
or unexpected.
"""

import json
import pathlib
import sys

import torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoModelForSequenceClassification, AutoModelForTokenClassification


def adapted(directory: pathlib.Path):
    """The model of an adapter, and the names that only the file or only peft has, or whose values differ."""
    config = json.loads((directory / "adapter_config.json").read_text())
    scores, base = config["task_type"] == "SEQ_CLS", config["base_model_name_or_path"]
    language = AutoModelForSeq2SeqLM if config["task_type"] == "SEQ_2_SEQ_LM" else AutoModelForCausalLM
    kind, labels = (AutoModelForSequenceClassification, {"num_labels": 1}) if scores else (language, {})
    model = PeftModel.from_pretrained(kind.from_pretrained(base, **labels), directory)
    stored, found = load_file(directory / "adapter_model.safetensors"), get_peft_model_state_dict(model)
    wrong = set(stored) ^ set(found) | {key for key in set(stored) & set(found) if not torch.equal(stored[key], found[key])}
    return model, scores, {"differ": sorted(wrong)} if wrong else {}


def check(directory: str) -> bool:
    if (pathlib.Path(directory) / "adapter_config.json").exists():
        model, scores, problems = adapted(pathlib.Path(directory))
        config = model.config
    else:
        config = AutoConfig.from_pretrained(directory)
        labels_tokens = config.architectures[0].endswith("ForTokenClassification")
        scores = config.architectures[0].endswith("ForSequenceClassification") or labels_tokens
        language = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        labels = AutoModelForTokenClassification if labels_tokens else AutoModelForSequenceClassification
        kind = labels if scores else language
        model, info = kind.from_pretrained(directory, output_loading_info=True)
        problems = {key: sorted(info[key]) for key in ("missing_keys", "unexpected_keys", "mismatched_keys") if info[key]}
    model.eval()
    # Ids that avoid the ends of the vocabulary, because special tokens are usually there.
    ids = torch.arange(10, 30) % (config.vocab_size - 20) + 10
    with torch.no_grad():
        more = {"labels": ids[None]} if config.is_encoder_decoder else {}
        logits = model(ids[None], **more).logits[0].float()
    if scores:
        # One number for a reward model, one per label for a classifier, and those of the first token for a classifier of tokens.
        numbers = logits.flatten(0, -2)[0] if logits.dim() > 1 else logits.flatten()
        figure = "score " + " ".join(f"{number:.6f}" for number in numbers.tolist())
    else:
        shift = 0 if config.is_encoder_decoder else 1
        logprobs = torch.log_softmax(logits[: len(ids) - shift], -1).gather(1, ids[shift:, None])
        figure = f"mean logprob {logprobs.mean().item():.6f}"
    print(f"{directory}: {type(model).__name__}: {problems or 'all tensors present'}; {figure}")
    return not problems


if __name__ == "__main__":
    sys.exit(0 if all([check(directory) for directory in sys.argv[1:]]) else 1)
