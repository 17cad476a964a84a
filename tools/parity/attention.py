"""Attention layers of transformers on random inputs, with gradients, for the kernels' tests.

Writes `attention.txt`: each tensor is a line with its name and shape and a line with its numbers. The tests of
`gradus-kernels` have no JSON.

- `longformer`: `LongformerSelfAttention`, a window of 4 tokens to each side, two sequences of 24 and 19 tokens (this script pads the
  second to 24), with three and two global tokens.
- `t5`: `T5Attention`, a decoder's self-attention with its position bias, then cross-attention over 6 source tokens.
"""

import pathlib

from common import arguments, versions

import torch
from transformers import LongformerConfig, T5Config
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention
from transformers.models.t5.modeling_t5 import T5Attention

SEED = 70
FOLDER = pathlib.Path(__file__).resolve().parents[2] / "crates/gradus-kernels/fixtures"


def longformer(generator):
    config = LongformerConfig(hidden_size=6, num_attention_heads=2, attention_window=[8], attention_probs_dropout_prob=0.0)
    layer = LongformerSelfAttention(config, layer_id=0).eval()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.6, generator=generator)
    lengths, tokens = (24, 19), 24
    hidden = torch.randn(2, tokens, 6, generator=generator, requires_grad=True)
    mask = torch.zeros(2, tokens)
    mask[0, [0, 3, 17]] = 10000.0
    mask[1, [0, 12]] = 10000.0
    mask[1, lengths[1]:] = -10000.0
    (out,) = layer(hidden, attention_mask=mask, is_index_masked=mask < 0, is_index_global_attn=mask > 0, is_global_attn=True)
    weights = torch.randn(2, tokens, 6, generator=generator)
    real = (mask >= 0)[:, :, None]
    (out * weights * real).sum().backward()
    packed = lambda x: torch.cat([row[:length] for row, length in zip(x, lengths)])
    tensors = {"hidden": packed(hidden), "out": packed(out), "weights": packed(weights), "grad_hidden": packed(hidden.grad)}
    for name, linear in layer.named_children():
        tensors |= {f"{name}.weight": linear.weight, f"{name}.bias": linear.bias}
    return tensors


def t5(generator):
    config = T5Config(d_model=8, d_kv=3, num_heads=2, relative_attention_num_buckets=6, relative_attention_max_distance=10,
                      dropout_rate=0.0, is_decoder=True)
    own, cross = T5Attention(config, has_relative_attention_bias=True, layer_idx=0), T5Attention(config, layer_idx=1)
    for layer in (own, cross):
        for parameter in layer.parameters():
            torch.nn.init.normal_(parameter, std=0.6, generator=generator)
    tokens, sources = 17, 6
    hidden = torch.randn(1, tokens, 8, generator=generator, requires_grad=True)
    encoded = torch.randn(1, sources, 8, generator=generator, requires_grad=True)
    causal = torch.full((tokens, tokens), float("-inf")).triu(1)[None, None]
    bias = own.compute_bias(tokens, tokens) + causal
    middle, *_ = own(hidden, position_bias=bias)
    out, *_ = cross(middle, key_value_states=encoded)
    weights = torch.randn(1, tokens, 8, generator=generator)
    (out * weights).sum().backward()
    table = own.relative_attention_bias.weight
    tensors = {"hidden": hidden, "encoded": encoded, "middle": middle, "out": out, "weights": weights,
               "grad_hidden": hidden.grad, "grad_encoded": encoded.grad, "bias": table, "grad_bias": table.grad}
    tensors = {name: x[0] if x.dim() == 3 else x for name, x in tensors.items()}
    for name, layer in (("own", own), ("cross", cross)):
        tensors |= {f"{name}.{part}": getattr(layer, part).weight for part in "qkvo"}
    return tensors


def main():
    out = arguments(FOLDER)
    generator = torch.Generator().manual_seed(SEED)
    origin = ", ".join(f"{name} {version}" for name, version in versions().items())
    lines = [f"# tools/parity/attention.py, seed {SEED}, {origin}"]
    for family, tensors in (("longformer", longformer(generator)), ("t5", t5(generator))):
        for name, x in tensors.items():
            lines.append(" ".join([f"{family}.{name}", *map(str, x.shape)]))
            lines.append(" ".join(f"{value:.9g}" for value in x.detach().flatten().tolist()))
    (out / "attention.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
