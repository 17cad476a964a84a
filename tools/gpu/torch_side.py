#!/usr/bin/env python3
"""The operations of `crates/gradus-kernels/benches/gpu.rs` in torch: one JSON object per line, with the same names and sizes.

    tools/gpu/torch_side.py [--device cuda] [--small] [--dtype float32]

Times are medians, measured until the device has finished. `tools/gpu/run` calls this script if torch is installed.
"""

import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F

LARGE = {"tokens": 2048, "width": 1024, "heads": 16, "kv_heads": 8, "head_dim": 128, "inner": 3072, "vocabulary": 151_936}
SMALL = {"tokens": 96, "width": 64, "heads": 4, "kv_heads": 2, "head_dim": 32, "inner": 192, "vocabulary": 1000}
BUDGET = 0.6


def median(device, run):
    def once():
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    once()
    repetitions = int(min(max(BUDGET / max(once(), 1e-6), 1), 50))
    return statistics.median(once() for _ in range(repetitions))


def cases(size, device, dtype):
    n, d, v = size["tokens"], size["width"], size["vocabulary"]
    heads, kv_heads, head_dim, inner = size["heads"], size["kv_heads"], size["head_dim"], size["inner"]

    def leaf(*shape):
        return torch.rand(shape, device=device, dtype=dtype).mul_(2).sub_(1).requires_grad_()

    cos, sin = (torch.rand(n, 1, head_dim // 2, device=device, dtype=dtype) for _ in range(2))
    ids = torch.arange(n, device=device) * 379 % v

    def rotate(x):
        a, b = x.view(n, heads, head_dim).chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).view(n, -1)

    def attend(q, k, v):
        outputs = []
        for rows in (slice(0, n // 3), slice(n // 3, n)):
            parts = [x[rows].view(1, -1, h, head_dim).transpose(1, 2) for x, h in ((q, heads), (k, kv_heads), (v, kv_heads))]
            out = F.scaled_dot_product_attention(*parts, is_causal=True, enable_gqa=True)
            outputs.append(out.transpose(1, 2).reshape(-1, heads * head_dim))
        return torch.cat(outputs)

    def logprobs(hidden, head):
        logprobs = F.log_softmax((hidden @ head.T).float(), dim=-1)
        return torch.stack([logprobs.gather(1, ids[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(-1)])

    yield "rms norm", [leaf(n, d), leaf(d)], lambda x, g: F.rms_norm(x, (d,), g, 1e-6)
    yield "rotary", [leaf(n, heads * head_dim)], rotate
    yield "swiglu", [leaf(n, inner), leaf(n, inner)], lambda a, b: F.silu(a) * b
    yield "product", [leaf(n, d), leaf(inner, d)], F.linear
    yield "attention", [leaf(n, heads * head_dim), leaf(n, kv_heads * head_dim), leaf(n, kv_heads * head_dim)], attend
    yield "embedding", [leaf(v, d)], lambda table: F.embedding(ids, table)
    yield "token log-probabilities", [leaf(n, d), leaf(v, d)], logprobs


def optimizer(size, device):
    parameter = torch.rand(size["inner"], size["width"], device=device, requires_grad=True)
    parameter.grad = torch.rand_like(parameter)
    fused = {"fused": True} if device.type == "cuda" else {}
    adamw = torch.optim.AdamW([parameter], lr=1e-3, weight_decay=0.1, **fused)
    return adamw.step


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--small", action="store_true", help="use small sizes, for a CPU")
    args = parser.parse_args()
    device, size = torch.device(args.device), SMALL if args.small else LARGE
    # As in gradus, f32 is not shortened to tf32.
    torch.backends.cuda.matmul.allow_tf32 = False
    for name, inputs, run in cases(size, device, getattr(torch, args.dtype)):
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

        def both():
            y = run(*inputs)
            torch.autograd.grad((y * y).sum(), inputs)

        with torch.no_grad():
            forward = median(device, lambda: run(*inputs))
        row = {"kernel": name, "forward_ms": forward * 1e3, "both_ms": median(device, both) * 1e3}
        if device.type == "cuda":
            row["peak_bytes"] = torch.cuda.max_memory_allocated()
        print(json.dumps(row), flush=True)
    print(json.dumps({"kernel": "adamw", "forward_ms": median(device, optimizer(size, device)) * 1e3}), flush=True)


if __name__ == "__main__":
    main()
