"""Functions of the trajectory scripts: start models with the tokenizer of rows/, the rows, the record of a run."""

import json
import shutil

from common import FIXTURES

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GPT2Config,
    Qwen3Config,
    TrainerCallback,
)

TOKENIZER = FIXTURES / "rows/tokenizer"
STEPS = 10
ids = dict(vocab_size=320, pad_token_id=0, bos_token_id=1, eos_token_id=2)
qwen3 = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
             head_dim=16, max_position_embeddings=256, tie_word_embeddings=True)
MODELS = {
    "qwen3": (AutoModelForCausalLM, Qwen3Config(**ids, **qwen3)),
    "gpt2": (AutoModelForCausalLM, GPT2Config(**ids, n_embd=24, n_layer=2, n_head=2, n_positions=192, resid_pdrop=0.0,
                                              embd_pdrop=0.0, attn_pdrop=0.0)),
    "qwen3-reward": (AutoModelForSequenceClassification, Qwen3Config(**ids, **{**qwen3, "num_hidden_layers": 1}, num_labels=1)),
}


def write_models(root):
    for seed, (name, (kind, config)) in enumerate(MODELS.items()):
        generator = torch.Generator().manual_seed(100 + seed)
        model = kind.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                if parameter.dim() == 1:
                    norm = ("norm" in key or ".ln_" in key) and key.endswith("weight")
                    parameter.copy_((1.0 if norm else 0.0) + 0.05 * noise)
                else:
                    parameter.copy_(0.15 * noise)
        shutil.rmtree(root / name, ignore_errors=True)
        model.save_pretrained(root / name)
        for file in TOKENIZER.iterdir():
            shutil.copyfile(file, root / name / file.name)


def load(root, name, dtype=torch.float32, attention="eager"):
    return MODELS[name][0].from_pretrained(root / name, attn_implementation=attention, dtype=dtype)


def tokenizer():
    return AutoTokenizer.from_pretrained(TOKENIZER)


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


class Recorder(TrainerCallback):
    """The learning rate of each update. TRL logs the next one."""

    def __init__(self):
        self.rates = []

    def on_pre_optimizer_step(self, args, state, control, optimizer=None, **_):
        self.rates.append(optimizer.param_groups[0]["lr"])


def weights(model):
    """A summary of every tensor that detects differences: its norm, its sum, four of its values.

    GPT-2's key bias has no effect on the output; Adam turns its rounding noise into steps, so that tensor is omitted.
    """
    summary = {}
    for name, parameter in model.named_parameters():
        if name.endswith("c_attn.bias"):
            continue
        flat = parameter.detach().double().flatten()
        places = [0, flat.numel() // 3, 2 * flat.numel() // 3, flat.numel() - 1]
        summary[name] = {"norm": flat.norm(), "sum": flat.sum(), "at": places, "values": flat[places]}
    return summary


def steps_of(trainer, recorder):
    """TRL's log, one entry per step, without times and constants."""
    dropped = ("epoch", "learning_rate", "step_time", "mfu", "total_flos")
    logs = [entry for entry in trainer.state.log_history if "grad_norm" in entry]
    assert len(logs) == STEPS == len(recorder.rates), (len(logs), len(recorder.rates))
    steps = []
    for entry, rate in zip(logs, recorder.rates):
        metrics = {k: v if v == v else None for k, v in entry.items()
                   if k not in (*dropped, "loss", "grad_norm", "step") and "time" not in k}
        steps.append({"step": entry["step"], "loss": entry["loss"], "grad_norm": entry["grad_norm"], "learning_rate": rate,
                      "metrics": metrics})
    return steps


