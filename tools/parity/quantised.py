"""Model directories quantized by bitsandbytes and written by transformers.

Each folder contains the files of `save_pretrained` for the quantized model, and
  expected.json           sequences, and the config of the model
  source.safetensors      the original weights
  expected.safetensors    values.<name>: every quantized weight as bitsandbytes dequantizes it, `[out, in]`
                          logits.<i>: of sequence i, by the unquantized classes with those weights

Needs bitsandbytes in addition to the requirements: `pip install bitsandbytes==0.50.2`.
"""

import pathlib
import shutil
import tempfile

from common import arguments, meta, write_json

import bitsandbytes
import torch
from bitsandbytes.backends.default.ops import _dequantize_4bit_compute
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, GPT2Config, LlamaConfig, set_seed
from transformers.pytorch_utils import Conv1D

SEED = 22
SEQUENCES = [[5, 9, 2, 40, 7, 7, 31], [90, 3, 11]]

ids = dict(vocab_size=96, pad_token_id=0, bos_token_id=1, eos_token_id=2)


def gpt2():
    return GPT2Config(**ids, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, n_embd=32, n_layer=1, n_head=4, n_positions=48)


def llama(**more):
    base = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
                max_position_embeddings=64, tie_word_embeddings=False)
    return LlamaConfig(**{**ids, **base, **more})


NF4 = dict(load_in_4bit=True, bnb_4bit_quant_type="nf4")
# Inputs of 32 and 40 numbers: blocks of 64 continue from one output to the next, and the last one is short.
MODELS = {
    "gpt2-nf4": (gpt2(), dict(**NF4, bnb_4bit_use_double_quant=True)),
    "gpt2-int8": (gpt2(), dict(load_in_8bit=True)),
    "llama-nf4": (llama(hidden_size=64, intermediate_size=40), dict(**NF4, bnb_4bit_use_double_quant=True)),
    "llama-nf4-plain": (llama(intermediate_size=40), NF4),
    "llama-int8": (llama(), dict(load_in_8bit=True)),
}


def dequantised(module):
    """The weight of a quantized layer, `[out, in]`."""
    if isinstance(module, bitsandbytes.nn.Linear4bit):
        # The CPU kernel of 0.50.2 reads the wrong block if a width is not a multiple of 64. The default one is correct.
        state = module.weight.quant_state
        absmax = state.absmax
        if state.nested:
            absmax = bitsandbytes.functional.dequantize_blockwise(absmax, state.state2) + state.offset
        return _dequantize_4bit_compute(module.weight.data.reshape(-1), absmax, state.code, 64, state.shape, torch.float32)
    codes, largest = module.weight.CB if module.weight.CB is not None else module.weight.data, module.weight.SCB
    return codes.float() * largest.float().unsqueeze(1) / 127


def write(out, config, quantisation):
    set_seed(SEED)
    plain = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in plain.parameters():
            if parameter.dim() == 2:
                parameter.mul_(8)
    with tempfile.TemporaryDirectory() as source:
        plain.save_pretrained(source)
        model = AutoModelForCausalLM.from_pretrained(
            source, quantization_config=BitsAndBytesConfig(**quantisation), dtype=torch.float32, device_map="cpu"
        ).eval()
        shutil.rmtree(out, ignore_errors=True)
        model.save_pretrained(out)
        shutil.copy(pathlib.Path(source) / "model.safetensors", out / "source.safetensors")
    expected, layers = {}, dict(plain.named_modules())
    kinds = (bitsandbytes.nn.Linear4bit, bitsandbytes.nn.Linear8bitLt)
    for name, module in model.named_modules():
        if isinstance(module, kinds):
            values = dequantised(module).contiguous()
            expected[f"values.{name}"] = values
            with torch.no_grad():
                layers[name].weight.copy_(values.T if isinstance(layers[name], Conv1D) else values)
    assert expected
    with torch.no_grad():
        for i, ids in enumerate(SEQUENCES):
            expected[f"logits.{i}"] = plain(torch.tensor([ids])).logits[0].contiguous()
    save_file(expected, out / "expected.safetensors")
    write_json(out / "expected.json", {"meta": meta(SEED, "bitsandbytes", "accelerate"), "sequences": SEQUENCES})
    print(out.name, len(load_file(out / "model.safetensors")), "tensors")


def main():
    out = arguments("quantised")
    for name, (config, quantisation) in MODELS.items():
        write(out / name, config, quantisation)


main()
