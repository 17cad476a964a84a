"""Model directories written by transformers, with logits, gradients, scores and greedy tokens.

Each folder contains the files of `save_pretrained`, and
  expected.json         sequences, loss (mean next-token NLL over all sequences' targets) or scores, greedy tokens
  expected.safetensors  logits.<i> `[T, V]` of sequence i run alone; grad.<state dict name> of the loss
  config_legacy.json    rope models only: the same model in the older spelling (rope_theta, rope_scaling, torch_dtype)
"""

import json
import shutil

from common import arguments, meta, write_json

import torch
from safetensors.torch import save_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    GPT2Config,
    GPTNeoXConfig,
    GraniteConfig,
    LlamaConfig,
    MinistralConfig,
    MistralConfig,
    Olmo2Config,
    Olmo3Config,
    OPTConfig,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
    SeedOssConfig,
    SmolLM3Config,
    set_seed,
)

SEED = 20
VOCAB = 96
PAD, BOS, EOS = 0, 1, 2
NEW_TOKENS = 12
ids = dict(vocab_size=VOCAB, pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS)
no_dropout = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)


def gpt2(**more):
    return GPT2Config(**{**ids, **no_dropout, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 48, **more})


def pythia(**more):
    base = dict(hidden_size=32, intermediate_size=52, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64)
    return GPTNeoXConfig(**{**ids, **base, **more})


def opt(**more):
    base = dict(hidden_size=32, ffn_dim=44, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64, dropout=0.0)
    return OPTConfig(**{**ids, **base, **more})


def llama(**more):
    base = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=False)
    return LlamaConfig(**{**ids, **base, **more})


def qwen3(**more):
    base = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, head_dim=16, max_position_embeddings=64)
    return Qwen3Config(**{**ids, **base, **more})


def qwen2(**more):
    """Biases only on queries, keys and values; their weights come from `fill`."""
    base = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, max_position_embeddings=64)
    return Qwen2Config(**{**ids, **base, **more})


def mistral(**more):
    """No `head_dim` means hidden size / heads, no `sliding_window` means all earlier tokens."""
    base = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, max_position_embeddings=64)
    return MistralConfig(**{**ids, **base, **more})


def ministral(**more):
    """Also the class that transformers uses for a `mistral` whose file has `layer_types`; see `as_mistral`."""
    base = dict(hidden_size=24, intermediate_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=6,
                max_position_embeddings=64)
    return MinistralConfig(**{**ids, **base, **more})


def gemma2(**more):
    """Caps that affect scores and logits, and a window shorter than every sequence on two of three layers."""
    base = dict(hidden_size=36, intermediate_size=50, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                head_dim=10, max_position_embeddings=64, query_pre_attn_scalar=7, sliding_window=5,
                attn_logit_softcapping=4.0, final_logit_softcapping=10.0)
    return Gemma2Config(**{**ids, **base, **more})


def gemma3(**more):
    """Two rotary bases; every third layer sees all tokens, the others a window."""
    base = dict(hidden_size=36, intermediate_size=50, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=1,
                head_dim=10, max_position_embeddings=64, query_pre_attn_scalar=7, sliding_window=4,
                sliding_window_pattern=3)
    return Gemma3TextConfig(**{**ids, **base, **more})


def smollm3(**more):
    base = dict(hidden_size=24, intermediate_size=38, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                max_position_embeddings=64)
    return SmolLM3Config(**{**ids, **base, **more})


def phi3(**more):
    base = dict(hidden_size=32, intermediate_size=50, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                max_position_embeddings=64, original_max_position_embeddings=64)
    return Phi3Config(**{**ids, **base, **more})


def olmo2(**more):
    base = dict(hidden_size=36, intermediate_size=50, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=3,
                max_position_embeddings=64)
    return Olmo2Config(**{**ids, **base, **more})


def olmo3(**more):
    """Every fourth layer sees all tokens, the others a window; only the former have scaled angles."""
    base = dict(hidden_size=24, intermediate_size=38, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
                max_position_embeddings=64, sliding_window=5, rope_parameters={
                    "full_attention": {"rope_type": "linear", "factor": 2.5, "rope_theta": 1000.0},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0}})
    return Olmo3Config(**{**ids, **base, **more})


def gemma(**more):
    """The name of the exact GELU, which means the other one here."""
    base = dict(hidden_size=36, intermediate_size=50, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=1,
                head_dim=10, max_position_embeddings=64, hidden_act="gelu")
    return GemmaConfig(**{**ids, **base, **more})


def granite(**more):
    base = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                max_position_embeddings=64, embedding_multiplier=3.0, attention_multiplier=0.2, residual_multiplier=0.7,
                logits_scaling=1.5, tie_word_embeddings=True)
    return GraniteConfig(**{**ids, **base, **more})


def seed_oss(**more):
    base = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                head_dim=12, max_position_embeddings=64)
    return SeedOssConfig(**{**ids, **base, **more})


def rope(**parameters):
    """A small base keeps several wavelengths inside the short sequences, so that every band of the scaling is used."""
    original = parameters.pop("max_position_embeddings", 64)
    return llama(intermediate_size=32, head_dim=16, num_attention_heads=2, num_key_value_heads=1,
                 max_position_embeddings=original, rope_parameters={"rope_theta": 1000.0, **parameters})


CAUSAL = {
    "gpt2": gpt2(),
    "gpt2-inverse-layer": gpt2(n_embd=24, n_layer=3, n_inner=56, scale_attn_by_inverse_layer_idx=True, layer_norm_epsilon=1e-3),
    "gpt2-unknown-keys": gpt2(n_embd=16, n_head=2, n_layer=1, vocab_size=48),
    "pythia": pythia(),
    # One block after the other, no biases of attention, the whole head rotated, the head tied.
    "pythia-sequential": pythia(use_parallel_residual=False, attention_bias=False, rotary_pct=1.0, hidden_act="gelu_new",
                                tie_word_embeddings=True, intermediate_size=32),
    "pythia-rope-linear": pythia(intermediate_size=32, hidden_size=48, rope_parameters={
        "rope_type": "linear", "factor": 2.5, "rope_theta": 1000.0, "partial_rotary_factor": 0.5}),
    "opt": opt(),
    # As the model with 350 million parameters: norms after the layers, narrow embeddings.
    "opt-narrow": opt(do_layer_norm_before=False, word_embed_proj_dim=20, enable_bias=False),
    "llama-gqa": llama(rms_norm_eps=1e-5),
    "llama-tied-bias": llama(tie_word_embeddings=True, attention_bias=True, mlp_bias=True, head_dim=12,
                             num_key_value_heads=4),
    "llama-sharded": llama(num_key_value_heads=1),
    "llama-rope-linear": rope(rope_type="linear", factor=2.5),
    "llama-rope-dynamic": rope(rope_type="dynamic", factor=2.0, max_position_embeddings=16),
    "llama-rope-llama3": rope(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                              original_max_position_embeddings=32),
    "llama-rope-yarn": rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=32,
                            max_position_embeddings=128),
    "qwen3-tied": qwen3(tie_word_embeddings=True),
    "qwen3": qwen3(tie_word_embeddings=False, head_dim=8, num_key_value_heads=4),
    "qwen2": qwen2(tie_word_embeddings=False, rope_parameters={"rope_type": "default", "rope_theta": 1000.0}),
    # Windows shorter than every sequence and than the tokens that greedy decoding adds.
    "mistral-window": mistral(sliding_window=5, intermediate_size=32),
    "mistral-layers": ministral(sliding_window=5, layer_types=["full_attention", "sliding_attention", "full_attention"]),
    "ministral": ministral(sliding_window=5, num_hidden_layers=2, intermediate_size=24),
    "qwen3-window": qwen3(use_sliding_window=True, sliding_window=4, max_window_layers=1, num_hidden_layers=3,
                          intermediate_size=24, head_dim=8),
    "qwen2-window": qwen2(use_sliding_window=True, sliding_window=4, max_window_layers=1, num_hidden_layers=3,
                          intermediate_size=24, tie_word_embeddings=True),
    "gemma2": gemma2(),
    "gemma3": gemma3(),
    "gemma3-rope": gemma3(num_hidden_layers=3, rope_parameters={
        "full_attention": {"rope_type": "linear", "factor": 2.5, "rope_theta": 1000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
    }),
    "smollm3": smollm3(no_rope_layers=[1, 0, 1]),
    "smollm3-window": smollm3(no_rope_layer_interval=2, use_sliding_window=True, sliding_window=5,
                              tie_word_embeddings=False),
    "phi3-window": phi3(sliding_window=5),
    "phi3-rope-longrope": phi3(
        original_max_position_embeddings=16, rms_norm_eps=1e-6, tie_word_embeddings=True,
        rope_parameters={"rope_type": "longrope", "rope_theta": 1000.0, "partial_rotary_factor": 0.75,
                         "short_factor": [1.0, 1.1, 1.3], "long_factor": [1.5, 2.5, 4.0]}),
    "olmo2": olmo2(),
    "olmo3": olmo3(),
    "gemma": gemma(),
    "granite": granite(),
    "seed_oss": seed_oss(),
}
REWARD = {
    "gpt2-reward": gpt2(n_embd=24, num_labels=1),
    "pythia-reward": pythia(num_labels=1),
    "opt-reward": opt(num_labels=1, word_embed_proj_dim=24, ffn_dim=32),
    "llama-reward": llama(num_labels=1, intermediate_size=32),
    "qwen2-reward": qwen2(num_labels=1, intermediate_size=32),
    "qwen3-reward": qwen3(num_labels=1, tie_word_embeddings=True, intermediate_size=32),
    "gemma2-reward": gemma2(num_labels=1, num_hidden_layers=2),
    "gemma3-reward": gemma3(num_labels=1, num_hidden_layers=3),
    "phi3-reward": phi3(num_labels=1),
    "seed_oss-reward": seed_oss(num_labels=1),
}
UNKNOWN_KEYS = {
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    "my_note": "kept as it is: é, 漢字, \"quotes\", \\ and \u2028",
    "my_list": [1, 2.5, None, True, {"nested": []}],
    "my_big_integer": 1000000000000000019884624838656,
    "my_small_float": 1e-30,
    "my_null": None,
    "n_ctx": 48,
    "model_max_note": {"b": 1, "a": 2},
}


def fill(model, generator):
    """Weights far from the usual initialization, so that a wrong operation changes the output visibly."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1:
                norm = "norm" in name or ".ln_" in name
                # Gemma's norms multiply with 1 + w.
                center = 1.0 if norm and name.endswith("weight") and "Gemma" not in type(model).__name__ else 0.0
                parameter.copy_(center + 0.2 * noise)
            elif "wpe" in name or "embed_positions" in name:
                parameter.copy_(0.3 * noise)
            elif any(part in name for part in ("wte", "embed_tokens", "embed_in")):
                parameter.copy_(0.5 * noise)
            elif any(part in name for part in ("q_proj", "k_proj", "qkv_proj", "c_attn", "query_key_value")):
                parameter.copy_(0.35 * noise)
            else:
                parameter.copy_(0.25 * noise)


def forward(model, row, **more):
    """Runs one sequence alone. Dynamic rotary embeddings store the longest row so far; a short call resets them."""
    if (getattr(model.config, "rope_parameters", None) or {}).get("rope_type") == "dynamic":
        with torch.no_grad():
            model(input_ids=torch.tensor([[EOS]]), use_cache=False)
    return model(input_ids=torch.tensor([row]), use_cache=False, **more)


def greedy(model, row):
    """Greedy tokens of full forward passes, and the smallest difference between the best and the second logit."""
    row, margin = list(row), float("inf")
    for _ in range(NEW_TOKENS):
        with torch.no_grad():
            top = forward(model, row).logits[0, -1].topk(2)
        margin = min(margin, (top.values[0] - top.values[1]).item())
        row.append(top.indices[0].item())
    return row[-NEW_TOKENS:], margin


def sequences(vocab, lengths, generator):
    return [torch.randint(3, vocab, (length,), generator=generator).tolist() for length in lengths]


def gradients(model):
    return {f"grad.{name}": parameter.grad.clone() for name, parameter in model.named_parameters()}


def causal(name, config, out, seed):
    generator = torch.Generator().manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    fill(model, generator)
    rows = sequences(config.vocab_size, (7, 12, 25), generator)
    logits = [forward(model, row).logits[0] for row in rows]
    sums = [torch.nn.functional.cross_entropy(z[:-1], torch.tensor(row[1:]), reduction="sum") for z, row in zip(logits, rows)]
    count = sum(len(row) - 1 for row in rows)
    loss = sum(sums) / count
    loss.backward()
    new, margins = zip(*(greedy(model, row) for row in rows))
    if min(margins) < 0.02 or any(token == EOS for row in new for token in row):
        return causal(name, config, out, seed + 1)

    cached = []
    for row in rows:
        forward(model, row[:1])
        tokens = model.generate(torch.tensor([row]), attention_mask=torch.ones(1, len(row), dtype=torch.long),
                                max_new_tokens=NEW_TOKENS, do_sample=False)
        cached.append(tokens[0, len(row):].tolist())
    if "dynamic" not in name and "longrope" not in name:
        assert cached == list(new), name

    tensors = {f"logits.{i}": z.detach().contiguous() for i, z in enumerate(logits)}
    save_file({**tensors, **gradients(model)}, out / "expected.safetensors")
    write_json(out / "expected.json", {
        "meta": meta(seed, "safetensors"),
        "sequences": rows,
        "loss": loss,
        "loss_sums": sums,
        "targets": count,
        "greedy": new,
        "greedy_smallest_margin": min(margins),
        "greedy_with_cache": cached,
        "argmax_of_last": [z[-1].argmax() for z in logits],
        "logits_std": torch.cat(logits).std(),
    })
    model.save_pretrained(out, **({"max_shard_size": "25KB"} if "sharded" in name else {}))
    if name == "gpt2-unknown-keys":
        path = out / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **UNKNOWN_KEYS}, indent=2, ensure_ascii=False) + "\n")
    if name == "mistral-layers":
        as_mistral(out / "config.json")
    check(AutoModelForCausalLM, out, rows, logits)
    if "rope" in name:
        legacy(out, rows, logits)


def reward(name, config, out, seed):
    generator = torch.Generator().manual_seed(seed)
    model = AutoModelForSequenceClassification.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    fill(model, generator)
    rows = sequences(config.vocab_size, (6, 13, 22), generator)
    scores = torch.cat([forward(model, row).logits[0] for row in rows])
    scores.sum().backward()
    # Every token's score: the value head's view of the same weights.
    trunk = getattr(model, model.base_model_prefix)
    states = [trunk(input_ids=torch.tensor([row]), use_cache=False).last_hidden_state[0] for row in rows]
    tokens = {f"scores.{i}": model.score(state)[:, 0].detach().contiguous() for i, state in enumerate(states)}
    padded = max(map(len, rows))
    batch = torch.tensor([row + [PAD] * (padded - len(row)) for row in rows])
    together = model(input_ids=batch, attention_mask=(batch != PAD).long()).logits[:, 0]
    assert torch.allclose(together, scores, atol=1e-5)
    save_file({**tokens, **gradients(model)}, out / "expected.safetensors")
    write_json(out / "expected.json", {"meta": meta(seed, "safetensors"), "sequences": rows, "scores": scores})
    model.save_pretrained(out)
    check(AutoModelForSequenceClassification, out, rows, [score.view(1) for score in scores])


def check(kind, out, rows, wanted):
    """Checks that the saved directory, when it is loaded, gives the numbers of the fixture."""
    model, report = kind.from_pretrained(out, attn_implementation="eager", dtype=torch.float32, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"], report
    for row, z in zip(rows, wanted):
        torch.testing.assert_close(forward(model.eval(), row).logits[0], z, rtol=0, atol=1e-6)


def as_mistral(path):
    """The names in files of Mistral, from before transformers had a class of its own for layers without windows."""
    config = {**json.loads(path.read_text()), "architectures": ["MistralForCausalLM"], "model_type": "mistral"}
    path.write_text(json.dumps(config, indent=2) + "\n")


def legacy(out, rows, wanted):
    path = out / "config.json"
    now = path.read_text()
    config = json.loads(now)
    scaling = config.pop("rope_parameters")
    if "full_attention" in scaling:
        # Gemma 3: a separate base for windows, and the pattern instead of the layers' names.
        config["rope_local_base_freq"] = scaling["sliding_attention"]["rope_theta"]
        config["sliding_window_pattern"] = 3
        del config["layer_types"]
        scaling = scaling["full_attention"]
    is_neox = config["model_type"] == "gpt_neox"
    if "partial_rotary_factor" in scaling:
        config["rotary_pct" if is_neox else "partial_rotary_factor"] = scaling.pop("partial_rotary_factor")
    config["rotary_emb_base" if is_neox else "rope_theta"] = scaling.pop("rope_theta")
    config["rope_scaling"] = scaling
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config, indent=2) + "\n")
    check(AutoModelForCausalLM, out, rows, wanted)
    path.rename(out / "config_legacy.json")
    path.write_text(now)


def main():
    root = arguments("models")
    set_seed(SEED)
    for build, configs in ((causal, CAUSAL), (reward, REWARD)):
        for name, config in configs.items():
            out = root / name
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir()
            build(name, config, out, SEED)
            print(name, sum(f.stat().st_size for f in out.iterdir()) // 1024, "KB")
    write_json(root / "fixture.json", {"meta": meta(SEED, "safetensors"), "causal": list(CAUSAL), "reward": list(REWARD)})


main()
