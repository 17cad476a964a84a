"""Adapters that peft wrote for the models of `models.py` and the classifiers of `encoders.py`, with logits, gradients and the merged
logits. Run after both.

Each folder contains the files of `save_pretrained`, and
  expected.json         base, sequences, loss (mean next-token NLL over all sequences' targets), scores or logits
  expected.safetensors  logits.<i> `[T, V]` of sequence i run alone; merged.<i> after merge_and_unload;
                        grad.<name in adapter_model.safetensors> of the loss
"""

import json
import shutil

from common import FIXTURES, arguments, meta, write_json

import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoModelForTokenClassification

SEED = 50
MODELS = FIXTURES / "models"

CAUSAL = {
    "gpt2": ("gpt2", dict(r=4, lora_alpha=8, target_modules=["c_attn", "attn.c_proj"])),
    "gpt2-all-linear": ("gpt2-inverse-layer", dict(r=3, lora_alpha=5, target_modules="all-linear", use_rslora=True)),
    "gpt2-dora": ("gpt2", dict(r=4, lora_alpha=4, target_modules=["c_attn", "c_fc", "c_proj"], use_dora=True)),
    "pythia": ("pythia", dict(r=4, lora_alpha=8, target_modules=["query_key_value", "dense", "dense_h_to_4h"])),
    "pythia-all-linear": ("pythia-sequential", dict(r=2, lora_alpha=6, target_modules="all-linear")),
    "opt-all-linear": ("opt-narrow", dict(r=2, lora_alpha=6, target_modules="all-linear")),
    "llama-pattern": ("llama-gqa", dict(r=4, lora_alpha=8, target_modules=r".*\.(q_proj|down_proj)",
                                        rank_pattern={"down_proj": 2}, alpha_pattern={r"layers\.1\..*q_proj": 32},
                                        layers_to_transform=None)),
    "llama-layers": ("llama-tied-bias", dict(r=2, lora_alpha=6, target_modules=["q_proj", "k_proj", "o_proj", "up_proj"],
                                             layers_to_transform=[1], layers_pattern="layers",
                                             exclude_modules=["k_proj"])),
    "qwen2": ("qwen2", dict(r=3, lora_alpha=9, target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "up_proj"])),
    "gemma3-all-linear": ("gemma3", dict(r=2, lora_alpha=5, target_modules="all-linear")),
    "phi3": ("phi3-window", dict(r=3, lora_alpha=6, target_modules=["qkv_proj", "o_proj", "gate_up_proj"])),
    "qwen3-dora": ("qwen3", dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "gate_proj"], use_dora=True,
                                 use_rslora=True)),
    # The head: tied to the embedding table, separate, and with capped logits.
    "gpt2-head": ("gpt2", dict(r=4, lora_alpha=8, target_modules=["c_attn", "lm_head"])),
    "llama-head": ("llama-gqa", dict(r=2, lora_alpha=6, target_modules=["down_proj", "lm_head"])),
    "gemma2-head": ("gemma2", dict(r=3, lora_alpha=6, target_modules=["lm_head"])),
}
REWARD = {
    "gpt2-reward": ("gpt2-reward", dict(r=4, lora_alpha=8, target_modules=["c_attn"])),
    "llama-reward": ("llama-gqa", dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])),
}

ATTENTION = ["query", "key", "value"]
CLASSIFIERS = {
    "bert": dict(r=4, lora_alpha=8, target_modules=[*ATTENTION, "attention.output.dense"]),
    "bert-token": dict(r=3, lora_alpha=6, target_modules=ATTENTION, use_dora=True),
    "roberta": dict(r=4, lora_alpha=8, target_modules=ATTENTION),
    "longformer": dict(r=2, lora_alpha=4, target_modules=ATTENTION),
    "albert": dict(r=4, lora_alpha=8, target_modules=[*ATTENTION, "attention.dense"]),
    "distilbert": dict(r=4, lora_alpha=8, target_modules=["q_lin", "v_lin"], modules_to_save=["pre_classifier"]),
    "deberta": dict(r=4, lora_alpha=8, target_modules=["query_proj", "value_proj"], modules_to_save=["pooler"]),
    "modernbert": dict(r=4, lora_alpha=8, target_modules=["Wqkv", "attn.Wo"], modules_to_save=["head"]),
}


def adapt(model, task_type, more, generator):
    """A new adapter whose B (and lengths of rows) are changed, so that they have an effect."""
    torch.manual_seed(SEED)
    model = get_peft_model(model, LoraConfig(task_type=task_type, **more)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "lora_B" in name:
                parameter.copy_(0.2 * noise)
            elif "lora_magnitude" in name:
                parameter.mul_(1 + 0.2 * noise)
            elif ("score" in name or "classifier" in name) and "modules_to_save" in name:
                parameter.copy_(0.3 * noise)
    return model


def gradients(model):
    """Tensors by their names in the adapter's file."""
    names = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            plain = name.replace(".default", "").replace(".modules_to_save", "").replace("lora_magnitude_vector.weight",
                                                                                         "lora_magnitude_vector")
            names[f"grad.{plain}"] = parameter.grad.clone()
    # In addition to the adapter of a head, peft saves the head.
    stored = {f"grad.{key}" for key in get_peft_model_state_dict(model) if ".base_layer." not in key}
    assert set(names) == stored, (set(names) ^ stored)
    return names


def write(model, base, out):
    model.save_pretrained(out)
    (out / "README.md").unlink(missing_ok=True)
    config = json.loads((out / "adapter_config.json").read_text())
    # The path of the base differs from machine to machine.
    config["base_model_name_or_path"] = base
    if isinstance(config["target_modules"], list):
        config["target_modules"].sort()
    (out / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def causal(name, base, more, out):
    generator = torch.Generator().manual_seed(SEED)
    model = AutoModelForCausalLM.from_pretrained(MODELS / base, attn_implementation="eager", dtype=torch.float32)
    rows = [torch.randint(3, model.config.vocab_size, (length,), generator=generator).tolist() for length in (7, 12, 25)]
    model = adapt(model, "CAUSAL_LM", more, generator)
    logits = [model(input_ids=torch.tensor([row]), use_cache=False).logits[0] for row in rows]
    sums = [torch.nn.functional.cross_entropy(z[:-1], torch.tensor(row[1:]), reduction="sum") for z, row in zip(logits, rows)]
    loss = sum(sums) / sum(len(row) - 1 for row in rows)
    loss.backward()
    tensors = {f"logits.{i}": z.detach().contiguous() for i, z in enumerate(logits)} | gradients(model)
    write(model, base, out)
    head = model.get_base_model().lm_head
    if hasattr(head, "base_layer") and model.config.tie_word_embeddings:
        # If it were merged into the table itself, the adapter would also change the embeddings.
        head.base_layer.weight = torch.nn.Parameter(head.base_layer.weight.detach().clone())
    merged = model.merge_and_unload()
    with torch.no_grad():
        tensors |= {f"merged.{i}": merged(input_ids=torch.tensor([row]), use_cache=False).logits[0].contiguous()
                    for i, row in enumerate(rows)}
    save_file(tensors, out / "expected.safetensors")
    write_json(out / "expected.json", {"meta": meta(SEED, "peft", "safetensors"), "base": base, "sequences": rows, "loss": loss})


def reward(name, base, more, out):
    generator = torch.Generator().manual_seed(SEED)
    model = AutoModelForSequenceClassification.from_pretrained(MODELS / base, num_labels=1, attn_implementation="eager",
                                                               dtype=torch.float32)
    rows = [torch.randint(3, model.config.vocab_size, (length,), generator=generator).tolist() for length in (6, 13, 22)]
    model = adapt(model, "SEQ_CLS", more, generator)
    scores = torch.cat([model(input_ids=torch.tensor([row]), use_cache=False).logits[0] for row in rows])
    scores.sum().backward()
    tensors = gradients(model)
    write(model, base, out)
    save_file(tensors, out / "expected.safetensors")
    write_json(out / "expected.json", {"meta": meta(SEED, "peft", "safetensors"), "base": base, "sequences": rows,
                                       "scores": scores})


def classifier(name, more, out):
    base = FIXTURES / "encoders" / name
    generator = torch.Generator().manual_seed(SEED)
    of_tokens = name.endswith("-token")
    auto = AutoModelForTokenClassification if of_tokens else AutoModelForSequenceClassification
    model = auto.from_pretrained(base, attn_implementation="eager", dtype=torch.float32)
    rows = [torch.randint(5, 100, (length,), generator=generator).tolist() for length in (6, 13, 9)]
    model = adapt(model, "TOKEN_CLS" if of_tokens else "SEQ_CLS", more, generator)
    logits = [model(input_ids=torch.tensor([row])).logits[0] for row in rows]
    sum(z.sum() for z in logits).backward()
    tensors = gradients(model)
    write(model, name, out)
    save_file(tensors, out / "expected.safetensors")
    write_json(out / "expected.json", {"meta": meta(SEED, "peft", "safetensors"), "base": name, "sequences": rows,
                                       "logits": [z.reshape(-1) for z in logits]})


def main():
    out = arguments("adapters")
    for name, more in CLASSIFIERS.items():
        folder = out.parent / "encoder_adapters" / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        classifier(name, more, folder)
        print(name, sum(file.stat().st_size for file in folder.iterdir()) // 1024, "KiB")
    for kind, cases in ((causal, CAUSAL), (reward, REWARD)):
        for name, (base, more) in cases.items():
            folder = out / name
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            kind(name, base, more, folder)
            print(name, sum(file.stat().st_size for file in folder.iterdir()) // 1024, "KiB")


if __name__ == "__main__":
    main()
