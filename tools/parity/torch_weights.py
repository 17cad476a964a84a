"""PyTorch's weight files of the models of `models.py` and `seq2seq.py`. gradus must read the same values from them as from
safetensors. Run after both."""

import argparse
import json
from pathlib import Path

import safetensors.torch
import torch
import transformers

HERE = Path(__file__).parent
FIXTURES = HERE / "../../crates/gradus/tests/fixtures/parity"


def tied(name, tensors):
    """The state dictionary in the format of transformers' old `save_pretrained`: it contains tied tensors twice."""
    tensors = dict(tensors)
    if name == "gpt2":
        tensors["lm_head.weight"] = tensors["transformer.wte.weight"]
    if name == "t5":
        for other in ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"]:
            tensors.setdefault(other, tensors["shared.weight"])
    return tensors


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=FIXTURES / "torch_weights")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    gpt2 = safetensors.torch.load_file(FIXTURES / "models/gpt2/model.safetensors")
    t5 = safetensors.torch.load_file(FIXTURES / "seq2seq/t5/model.safetensors")

    # An archive, as torch.save writes since 1.6: a dictionary with parameters and a number beside them.
    state = tied("gpt2", gpt2)
    state["transformer.wte.weight"] = torch.nn.Parameter(state["transformer.wte.weight"])
    state["lm_head.weight"] = state["transformer.wte.weight"]
    torch.save(state, out / "gpt2.bin")
    # The older format, in half precision.
    half = {name: tensor.to(torch.bfloat16) for name, tensor in gpt2.items()}
    torch.save(half, out / "gpt2-old.bin", _use_new_zipfile_serialization=False)
    # Shards with an index, and views of one storage.
    names = sorted(tied("t5", t5))
    whole = tied("t5", t5)
    halves = {"pytorch_model-00001-of-00002.bin": names[: len(names) // 2], "pytorch_model-00002-of-00002.bin": names[len(names) // 2 :]}
    folder = out / "t5"
    folder.mkdir(exist_ok=True)
    for file, chosen in halves.items():
        flat = torch.cat([whole[name].reshape(-1) for name in chosen])
        at, state = 0, {}
        for name in chosen:
            count = whole[name].numel()
            state[name] = flat[at : at + count].view(whole[name].shape)
            at += count
        torch.save(state, folder / file)
    index = {"metadata": {}, "weight_map": {name: file for file, chosen in halves.items() for name in chosen}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index, indent=1) + "\n")
    # Refused files: a partial view, a training checkpoint.
    torch.save({"transformer.wte.weight": torch.arange(6.0).view(2, 3).T}, out / "transposed.bin")
    torch.save({"model": gpt2["transformer.wte.weight"], "optimizer": {"state": {}}}, out / "training.bin")
    meta = {"script": "torch_weights.py", "torch": torch.__version__, "transformers": transformers.__version__}
    (out / "fixture.json").write_text(json.dumps({"meta": meta}, indent=1) + "\n")


if __name__ == "__main__":
    main()
