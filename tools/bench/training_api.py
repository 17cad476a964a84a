"""Compares a training step over Tinker's client with the same step of `gradus.Trainer`, alternately, on a model of GPT-2's shape with random weights.

    python tools/bench/training_api.py target/release/gradus

Both train the same adapter (rank 16, all linear layers and the head) on every token of the same texts. The interpreter needs the
packages `tinker`, `numpy` and `safetensors`, and `gradus` built with the same profile as the binary. A step is one `forward_backward` and one
`optim_step`. The time of the client's step is that from the first call to the last result.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

import numpy as np
import workloads
from make_inputs import write_model

RANK, SEED = 16, 3
TARGETS = ["c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj", "lm_head"]


def texts(rows, length, vocabulary):
    draw = np.random.default_rng(SEED)
    return [draw.integers(0, vocabulary - 2, length).tolist() for _ in range(rows)]


def over_the_client(model, data):
    import tinker
    from tinker import types

    def datum(ids):
        tensor = types.TensorData.from_numpy
        inputs = {
            "target_tokens": tensor(np.array(ids[1:], dtype=np.int64)),
            "weights": tensor(np.ones(len(ids) - 1, dtype=np.float32)),
        }
        return types.Datum(model_input=types.ModelInput.from_ints(ids[:-1]), loss_fn_inputs=inputs)

    service = tinker.ServiceClient()
    client = service.create_lora_training_client(base_model=model, rank=RANK, seed=SEED).result()
    rows = [datum(ids) for ids in data]

    def step():
        forward = client.forward_backward(rows, "cross_entropy")
        client.optim_step(types.AdamParams(learning_rate=1e-4)).result()
        return forward.result().metrics["loss:sum"]

    return step


def of_the_trainer(model, data):
    import gradus

    trainer = gradus.Trainer(model, lora={"rank": RANK, "alpha": 32, "targets": TARGETS}, seed=SEED)
    rows = [gradus.Datum(ids[:1], ids[1:], [1.0] * (len(ids) - 1)) for ids in data]

    def step():
        loss = trainer.forward_backward(rows, "cross_entropy").loss
        trainer.optim_step(1e-4, max_grad_norm=0.0)
        return loss

    return step


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--shape", default="124M")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--length", type=int, default=257)
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        model = pathlib.Path(root) / "model"
        shape = workloads.MODELS[arguments.shape]
        write_model(model, shape)
        command = [arguments.binary, "serve", root, "--training-api", "--json", "--port", "0"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            os.environ |= {"TINKER_BASE_URL": json.loads(server.stdout.readline())["url"].rstrip("/"), "TINKER_API_KEY": "tml-local"}
            data = texts(arguments.rows, arguments.length, shape["vocab_size"])
            sides = {"client": over_the_client("model", data), "trainer": of_the_trainer(str(model), data)}
            times = {name: [] for name in sides}
            for turn in range(arguments.turns + 1):
                losses = {}
                for name, step in sides.items():
                    begun = time.monotonic()
                    losses[name] = step()
                    # The first step warms up.
                    if turn:
                        times[name].append(time.monotonic() - begun)
                client, trainer = losses["client"], losses["trainer"]
                assert abs(client - trainer) < 1e-4 * abs(trainer), f"step {turn}: losses {client} and {trainer}"
            found = {name: statistics.median(of) for name, of in times.items()}
            tokens = arguments.rows * (arguments.length - 1)
            for name, seconds in found.items():
                print(f"{name}: {seconds:.3f} s per step of {tokens} tokens (minimum {min(times[name]):.3f}, maximum {max(times[name]):.3f})")
            print(f"the client's step takes {found['client'] / found['trainer']:.3f} times the trainer's")
        finally:
            server.kill()
            server.wait()


if __name__ == "__main__":
    main()
