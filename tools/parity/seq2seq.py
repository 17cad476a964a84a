"""Encoder–decoder model directories written by transformers, with logits, gradients and greedy tokens.

Each folder contains the files of `save_pretrained`, and
  expected.json         sources, targets, loss (mean NLL over all targets' ids), greedy tokens, results of beam search
  expected.safetensors  logits.<i> `[T, V]` of pair i run alone, one line per id of the target; grad.<state dict name> of the loss

adapters/<name>/ are adapters that peft wrote for them, with logits.<i>, and merged.<i> after merge_and_unload.
"""

import json
import shutil

from common import arguments, meta, write_json

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import (
    AutoModelForSeq2SeqLM,
    BartConfig,
    BlenderbotConfig,
    BlenderbotSmallConfig,
    MT5Config,
    T5Config,
    set_seed,
)

SEED = 30
VOCAB = 90
PAD, EOS = 0, 1
NEW_TOKENS = 11
ids = dict(vocab_size=VOCAB, pad_token_id=PAD, eos_token_id=EOS, decoder_start_token_id=PAD)


def t5(kind=T5Config, **more):
    """Odd sizes; heads that together are wider than the model; distances that reach the last bucket."""
    base = dict(d_model=22, d_kv=6, d_ff=34, num_layers=2, num_decoder_layers=2, num_heads=5,
                relative_attention_num_buckets=8, relative_attention_max_distance=12, dropout_rate=0.0)
    return kind(**{**ids, **base, **more})


def bart(kind=BartConfig, **more):
    """Stacks of different depth, heads and width; as many positions as the longest source has tokens."""
    base = dict(vocab_size=VOCAB, pad_token_id=PAD, bos_token_id=2, eos_token_id=EOS, decoder_start_token_id=EOS, d_model=24,
                encoder_layers=2, encoder_ffn_dim=34, encoder_attention_heads=3, decoder_layers=2, decoder_ffn_dim=28,
                decoder_attention_heads=4, max_position_embeddings=20, dropout=0.0, forced_eos_token_id=None)
    return kind(**{**base, **more})


MODELS = {
    "t5": t5(),
    "t5-gated": t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False, num_decoder_layers=3, d_kv=4),
    "t5-silu": t5(feed_forward_proj="gated-silu", num_layers=1, num_decoder_layers=1, d_model=16),
    "mt5": t5(MT5Config, num_layers=1, num_heads=3),
    "bart": bart(),
    "bart-scaled": bart(scale_embedding=True, activation_function="gelu_new", encoder_layers=1, decoder_layers=1),
    "blenderbot": bart(BlenderbotConfig, scale_embedding=True, encoder_no_repeat_ngram_size=0, activation_function="relu"),
    "blenderbot-small": bart(BlenderbotSmallConfig, encoder_layers=1, decoder_layers=1),
}
# A separate head, as in the first checkpoints of v1.1, FLAN and mT5.
UNTIED = {"t5-gated", "mt5"}


# Beams, and processors over the ids of the decoder, which include its start id but not the source.
BEAMS = [
    dict(num_beams=4, num_return_sequences=2),
    dict(num_beams=4, no_repeat_ngram_size=3, early_stopping=True),
    dict(num_beams=3, min_new_tokens=6, length_penalty=0.5),
    dict(num_beams=4, forced_bos_token_id=7, forced_eos_token_id=EOS),
    dict(num_beams=1, repetition_penalty=1.7),
]
ADAPTERS = {
    "t5": ("t5-gated", dict(r=3, lora_alpha=7, target_modules=["q", "v", "wi_1"])),
    "bart-dora": ("bart", dict(r=2, lora_alpha=4, target_modules="all-linear", use_dora=True)),
}


def fill(model, generator):
    """Weights far from the usual initialization, so that a wrong operation changes the output visibly."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1:
                center = 1.0 if "norm" in name and name.endswith("weight") else 0.0
                parameter.copy_(center + 0.2 * noise)
            elif name == "model.shared.weight":
                parameter.copy_((0.1 if model.config.scale_embedding else 0.5) * noise)
            elif "embed_positions" in name:
                parameter.copy_(0.3 * noise)
            elif name == "shared.weight":
                # Tied heads of T5 read states divided by the root of the width.
                parameter.copy_((1.5 if getattr(model.config, "scale_decoder_outputs", False) else 0.5) * noise)
            elif "relative_attention_bias" in name:
                parameter.copy_(noise)
            elif name.endswith((".q.weight", ".k.weight")):
                parameter.copy_(0.25 * noise)
            else:
                parameter.copy_(0.3 * noise)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.copy_(torch.randn(model.final_logits_bias.shape, generator=generator))


def untie(model):
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())


def forward(model, source, target):
    """Logits for every id of `target`; the first ones follow the start token."""
    return model(input_ids=torch.tensor([source]), labels=torch.tensor([target]), use_cache=False).logits[0]


def greedy(model, source):
    """Greedy tokens of full forward passes, and the smallest difference between the best and the second logit."""
    new, margin = [], float("inf")
    for _ in range(NEW_TOKENS):
        start = torch.tensor([[model.config.decoder_start_token_id, *new]])
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([source]), decoder_input_ids=start, use_cache=False).logits
        top = logits[0, -1].topk(2)
        margin = min(margin, (top.values[0] - top.values[1]).item())
        new.append(top.indices[0].item())
    return new, margin


def sequences(lengths, generator):
    return [torch.randint(3, VOCAB, (length,), generator=generator).tolist() for length in lengths]


def search(model, source, stop, settings):
    out = model.generate(torch.tensor([source]), max_new_tokens=NEW_TOKENS, do_sample=False, use_cache=False, eos_token_id=stop,
                         return_dict_in_generate=True, output_scores=True, **settings)
    found = []
    for row in out.sequences[:, 1:].tolist():
        end = next((i + 1 for i, token in enumerate(row) if token in stop), len(row))
        found.append(row[:end])
    return {"ids": found, "scores": out.sequences_scores.tolist() if settings["num_beams"] > 1 else None}


def beams(model, sources, greedy):
    # Ids that end some of them early.
    stop = sorted({EOS, greedy[0][3], greedy[1][6]})
    searches = [{**settings, "found": [search(model, source, stop, settings) for source in sources]} for settings in BEAMS]
    return {"stop": stop, "searches": searches}


def adapt(name, base, more, root):
    out = root / "adapters" / name
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    expected = json.loads((root / base / "expected.json").read_text())
    pairs = list(zip(expected["sources"], expected["targets"]))
    torch.manual_seed(SEED)
    model = AutoModelForSeq2SeqLM.from_pretrained(root / base, attn_implementation="eager", dtype=torch.float32)
    model = get_peft_model(model, LoraConfig(task_type="SEQ_2_SEQ_LM", **more)).eval()
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "lora_B" in parameter_name:
                parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
        tensors = {f"logits.{i}": forward(model, *pair).contiguous() for i, pair in enumerate(pairs)}
        model.save_pretrained(out)
        merged = model.merge_and_unload()
        tensors |= {f"merged.{i}": forward(merged, *pair).contiguous() for i, pair in enumerate(pairs)}
    (out / "README.md").unlink(missing_ok=True)
    config = json.loads((out / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = base
    config["target_modules"].sort()
    (out / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    save_file(tensors, out / "expected.safetensors")


def build(name, config, out, seed):
    generator = torch.Generator().manual_seed(seed)
    model = AutoModelForSeq2SeqLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    if name in UNTIED:
        untie(model)
    fill(model, generator)
    sources = [[*row, EOS] for row in sequences((6, 19, 11), generator)]
    targets = [[*row, EOS] for row in sequences((8, 3, 17), generator)]
    logits = [forward(model, *pair) for pair in zip(sources, targets)]
    sums = [torch.nn.functional.cross_entropy(z, torch.tensor(t), reduction="sum") for z, t in zip(logits, targets)]
    count = sum(map(len, targets))
    loss = sum(sums) / count
    loss.backward()
    new, margins = zip(*(greedy(model, source) for source in sources))
    if min(margins) < 0.02 or any(token == EOS for row in new for token in row):
        return build(name, config, out, seed + 1)
    for source, row in zip(sources, new):
        # Its cache expects as many decoder blocks as the encoder has.
        tokens = model.generate(torch.tensor([source]), max_new_tokens=NEW_TOKENS, do_sample=False, num_beams=1, use_cache=False)
        assert tokens[0].tolist() == [config.decoder_start_token_id, *row], name

    tensors = {f"logits.{i}": z.detach().contiguous() for i, z in enumerate(logits)}
    gradients = {f"grad.{name}": parameter.grad.clone() for name, parameter in model.named_parameters()}
    save_file({**tensors, **gradients}, out / "expected.safetensors")
    write_json(out / "expected.json", {
        "meta": meta(seed, "safetensors"),
        "sources": sources,
        "targets": targets,
        "loss": loss,
        "greedy": new,
        "greedy_smallest_margin": min(margins),
        "beams": beams(model, sources, new),
        "logits_std": torch.cat(logits).std(),
    })
    model.save_pretrained(out)
    again, report = AutoModelForSeq2SeqLM.from_pretrained(out, attn_implementation="eager", dtype=torch.float32,
                                                          output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"], report
    for pair, z in zip(zip(sources, targets), logits):
        torch.testing.assert_close(forward(again.eval(), *pair), z, rtol=0, atol=1e-6)


def main():
    root = arguments("seq2seq")
    set_seed(SEED)
    for name, config in MODELS.items():
        out = root / name
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        build(name, config, out, SEED)
        print(name, sum(f.stat().st_size for f in out.iterdir()) // 1024, "KB")
    for name, (base, more) in ADAPTERS.items():
        adapt(name, base, more, root)
    write_json(root / "fixture.json", {"meta": meta(SEED, "safetensors"), "models": list(MODELS)})


main()
