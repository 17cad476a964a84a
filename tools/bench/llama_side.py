"""One process of llama.cpp. It writes the weights as GGUF if they are missing, then prefills and decodes a whole batch.

    python llama_side.py WORKLOAD.json --model DIR --weights f32|bf16|q8_0 --out RESULT.json

It uses the low-level interface. Every sequence of the batch has its own id. Each step decodes one token of all
sequences in one call and samples the next tokens with llama.cpp's own sampler. Input and output are ids.
"""

import argparse
import ctypes
import json
import pathlib
import time

import gguf
import numpy

THREADS = 2
TENSOR, FILE = gguf.GGMLQuantizationType, gguf.LlamaFileType
TYPES = {"f32": TENSOR.F32, "bf16": TENSOR.BF16, "q8_0": TENSOR.Q8_0}
FILE_TYPES = {"f32": FILE.ALL_F32, "bf16": FILE.MOSTLY_BF16, "q8_0": FILE.MOSTLY_Q8_0}
NAMES = {
    "ln_1": "attn_norm", "ln_2": "ffn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}  # fmt: skip


def safetensors(file):
    """The f32 tensors of a file of `make_inputs.py`."""
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            yield name, numpy.frombuffer(data[8 + length + begin : 8 + length + end], "<f4").reshape(entry["shape"])


def renamed(name, tensor):
    """GGUF's name and layout: GPT-2 stores its projections as `[in, out]`, GGUF as `[out, in]`."""
    name = name.removeprefix("transformer.")
    whole = {"wte.weight": "token_embd.weight", "wpe.weight": "position_embd.weight"}
    if name in whole:
        return whole[name], tensor
    if name.startswith("ln_f."):
        return name.replace("ln_f", "output_norm"), tensor
    _, layer, rest = name.split(".", 2)
    module, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{NAMES[module]}.{kind}", numpy.ascontiguousarray(tensor.T) if tensor.ndim == 2 else tensor


def convert(model, weights, out):
    config = json.loads((model / "config.json").read_text())
    writer = gguf.GGUFWriter(out, "gpt2")
    writer.add_block_count(config["n_layer"])
    writer.add_context_length(config["n_positions"])
    writer.add_embedding_length(config["n_embd"])
    writer.add_feed_forward_length(4 * config["n_embd"])
    writer.add_head_count(config["n_head"])
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    writer.add_file_type(FILE_TYPES[weights])
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(config["vocab_size"])
    for name, tensor in safetensors(model / "model.safetensors"):
        name, tensor = renamed(name, tensor)
        kind = TYPES["f32"] if tensor.ndim == 1 or name.startswith("position") else TYPES[weights]
        writer.add_tensor(name, gguf.quantize(tensor, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Context:
    """A model with room for `batch` sequences of `longest` tokens."""

    def __init__(self, file, batch, longest):
        import llama_cpp as api

        self.api = api
        silence = api.llama_log_callback(lambda level, text, data: None)
        api.llama_log_set(silence, ctypes.c_void_p(0))
        self.silence = silence  # llama.cpp keeps a pointer to it
        api.llama_backend_init()
        self.model = api.llama_model_load_from_file(str(file).encode(), api.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {file.name}")
        settings = api.llama_context_default_params()
        settings.n_ctx, settings.n_seq_max = batch * (-(-longest // 256) * 256), batch
        settings.n_batch = batch * longest
        settings.n_threads = settings.n_threads_batch = THREADS
        self.context = api.llama_init_from_model(self.model, settings)
        if not self.context:
            raise SystemExit("llama.cpp cannot create a context")
        chain = api.llama_sampler_chain_init(api.llama_sampler_chain_default_params())
        api.llama_sampler_chain_add(chain, api.llama_sampler_init_dist(7))
        self.sampler = chain
        self.room = api.llama_batch_init(batch * longest, 0, 1)

    def decode(self, tokens):
        """Computes `(token, position, sequence, wants_logits)`s in one call; returns indices of those with logits."""
        for i, (token, position, sequence, wanted) in enumerate(tokens):
            self.room.token[i], self.room.pos[i] = token, position
            self.room.n_seq_id[i], self.room.seq_id[i][0] = 1, sequence
            self.room.logits[i] = wanted
        self.room.n_tokens = len(tokens)
        if self.api.llama_decode(self.context, self.room) != 0:
            raise SystemExit("llama_decode failed")
        self.api.llama_synchronize(self.context)
        return [i for i, entry in enumerate(tokens) if entry[3]]

    def sample(self, index):
        return self.api.llama_sampler_sample(self.sampler, self.context, index)

    def generate(self, prompts, new_tokens):
        """Total seconds, and the seconds of sampling."""
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)
        began, sampling = time.monotonic(), 0.0
        length = len(prompts[0])
        tokens = [
            (int(token), t, sequence, t + 1 == length)
            for sequence, prompt in enumerate(prompts)
            for t, token in enumerate(prompt)
        ]
        for step in range(new_tokens):
            indices = self.decode(tokens)
            before = time.monotonic()
            drawn = [self.sample(index) for index in indices]
            sampling += time.monotonic() - before
            tokens = [(token, length + step, sequence, True) for sequence, token in enumerate(drawn)]
        return time.monotonic() - began, sampling


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("work", help="a workload as JSON")
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--weights", choices=TYPES, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    work = json.loads(arguments.work)
    file = arguments.model / f"{arguments.weights}.gguf"
    if not file.exists():
        convert(arguments.model, arguments.weights, file)
    prompts = numpy.random.default_rng(7).integers(0, 1000, (work["batch"], work["length"]))
    context = Context(file, work["batch"], work["length"] + work["new_tokens"])
    context.generate(prompts, 8)
    ran = [context.generate(prompts, work["new_tokens"]) for _ in range(work["steps"])]
    answer = {"step_s": [whole for whole, _ in ran], "sampling_s": [sampling for _, sampling in ran]}
    arguments.out.write_text(json.dumps({"settings": {"weights": arguments.weights}, **answer}))


if __name__ == "__main__":
    main()
