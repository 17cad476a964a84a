"""A loaded model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from numbers import Number
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from gradus import _native
from gradus._arrays import floats, one_text, seed_of, token_ids
from gradus._commands import command
from gradus._errors import InputError

#: A text, a conversation (a list of messages), or token ids.
Prompt: TypeAlias = "str | Sequence[Mapping[str, Any]] | Sequence[int]"
Message: TypeAlias = dict[str, Any]
Weights: TypeAlias = Literal["f32", "bf16", "int8", "nf4"]


class Completion(dict[str, Any]):
    """A completion: ``prompt``, ``completion``, ``completion_ids``, ``logprobs`` and ``stop`` (why it ended). ``str`` gives its text."""

    def __str__(self) -> str:
        return str(self["completion"])


def _prompt(prompt: Any, what: str) -> Any:
    """Return a text or a conversation unchanged, and ids as a list."""
    is_ids = hasattr(prompt, "tolist") or (isinstance(prompt, (list, tuple)) and bool(prompt) and isinstance(prompt[0], Number))
    return token_ids(prompt, what) if is_ids else prompt


def _stop(stop: str | Sequence[str] | None) -> list[str]:
    return [] if stop is None else [stop] if isinstance(stop, str) else list(stop)


#: Names of other libraries for arguments of `generate`, with the equivalent in gradus.
_ELSEWHERE = {
    "do_sample": "sample with a `temperature` above 0; 0 takes the most likely token",
    "eos_token_id": "it is `stop_ids` here",
    "max_completion_tokens": "it is `max_new_tokens` here",
    "max_length": "it is `max_new_tokens` here, without the prompt",
    "max_tokens": "it is `max_new_tokens` here",
    "min_tokens": "it is `min_new_tokens` here",
    "n": "it is `group_size` here",
    "num_beams": "use the command `gradus generate --num-beams` for beam search",
    "num_return_sequences": "it is `group_size` here",
    "stop_strings": "it is `stop` here",
    "stop_token_ids": "it is `stop_ids` here",
}


def sampling(params: dict[str, Any]) -> dict[str, Any]:
    """Return the sampling parameters, and reject names of other libraries."""
    for name in params:
        if name in _ELSEWHERE:
            raise TypeError(f"unknown argument `{name}`: {_ELSEWHERE[name]}")
    return params


#: Attributes of models of `transformers`, with the equivalent in gradus.
_OF_MODELS = {
    "push_to_hub": "gradus uploads nothing. Upload the directory `model.path`, such as with `hf upload`",
    "save_pretrained": "a loaded model already has files, in `model.path`. Copy them, or call `trainer.save_model(directory)` of `gradus.trl`",
}


class Model:
    """A language model in memory. It processes one call at a time; other threads wait.

    ``score``, ``evaluate``, ``merge``, ``quantize``, ``export`` and training functions read the files of the model again, with its
    ``adapter``, ``tokenizer``, ``chat_template`` and ``device``. ``format`` concerns conversations that are sampled or passed to
    ``logprobs``.

    Sampling parameters have the names of ``transformers``' ``GenerationConfig``: ``max_new_tokens``, ``temperature``, ``top_k``,
    ``top_p``, ``min_p``, ``typical_p``, ``repetition_penalty``, ``no_repeat_ngram_size``, ``min_new_tokens``, ``suppress_tokens``,
    ``bad_words_ids`` and others.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        adapter: str | os.PathLike[str] | None = None,
        weights: Weights = "f32",
        device: str = "cpu",
        tokenizer: str | os.PathLike[str] | None = None,
        chat_template: str | os.PathLike[str] | None = None,
        format: Literal["template", "hh", "plain"] | None = None,
    ) -> None:
        #: The name or path of the loaded model: a directory, a run or a hub name.
        self.name = os.fspath(path)
        #: The adapter that was loaded with the model.
        self.adapter = None if adapter is None else os.fspath(adapter)
        self._weights, self._device = weights, device
        self._tokenizer = None if tokenizer is None else os.fspath(tokenizer)
        self._chat_template = None if chat_template is None else os.fspath(chat_template)
        self._session = _native.NativeSession(
            self.name, self.adapter, weights, device, self._tokenizer, self._chat_template, format
        )

    def __repr__(self) -> str:
        return f"<gradus.Model {self.name!r}>"

    # With this method, type checkers would accept every attribute.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            advice = f": {_OF_MODELS[name]}" if name in _OF_MODELS else ""
            # With `name` and `obj`, Python suggests a similar attribute.
            raise AttributeError(f"'{type(self).__name__}' object has no attribute {name!r}{advice}", name=name, obj=self)

    @property
    def path(self) -> Path:
        """The directory of the model."""
        return Path(self._session.directory)

    @property
    def vocab_size(self) -> int:
        """The size of the vocabulary."""
        return self._session.vocab_size

    @property
    def max_positions(self) -> int | None:
        """The maximum number of tokens of a prompt and its completion together, or None without a limit."""
        return self._session.max_positions

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a text."""
        return self._session.encode(one_text(text), add_special_tokens)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of ids."""
        return self._session.decode(token_ids(ids, "`ids`", self.vocab_size), skip_special_tokens)

    @overload
    def generate(
        self, prompts: str, *, stop: str | Sequence[str] | None = None, seed: int = 42, **params: Any
    ) -> Completion: ...

    @overload
    def generate(
        self,
        prompts: list[Any] | tuple[Any, ...],
        *,
        group_size: int = 1,
        stop: str | Sequence[str] | None = None,
        seed: int = 42,
        **params: Any,
    ) -> list[Completion]: ...

    def generate(
        self,
        prompts: str | list[Any] | tuple[Any, ...],
        *,
        group_size: int = 1,
        stop: str | Sequence[str] | None = None,
        seed: int = 42,
        **params: Any,
    ) -> Completion | list[Completion]:
        """Return ``group_size`` completions of each prompt (texts, conversations, lists of ids), in the order of the prompts. A
        single text gives a single completion.

        The same seed gives the same completions as ``gradus generate``.
        """
        if group_size < 1:
            raise ValueError(f"`group_size` is {group_size}, but must be at least 1")
        is_one = isinstance(prompts, str)
        if not isinstance(prompts, (str, list, tuple)) and not hasattr(prompts, "__iter__"):
            raise TypeError(f"`prompts` is a `{type(prompts).__name__}`, but a text or a list of prompts is expected")
        prompts = prompts if isinstance(prompts, str) else list(prompts)
        if not is_one and any(isinstance(prompt, Mapping) for prompt in prompts):
            raise TypeError("`prompts` holds messages, but each prompt is a text or a whole conversation: pass `[conversation]`")
        if not is_one and any(isinstance(prompt, Number) for prompt in prompts):
            raise TypeError("`prompts` holds token ids, but each prompt is a text, a conversation or a list of ids: pass `[ids]`")
        if is_one and group_size != 1:
            raise TypeError("a single text has one completion: pass a list of prompts with `group_size`")
        asked = [prompts] if is_one else [_prompt(prompt, f"prompt {number}") for number, prompt in enumerate(prompts, 1)]
        found = [Completion(one) for one in self._session.generate(asked, group_size, sampling(params), _stop(stop), seed_of(seed))]
        for one in found:
            one["logprobs"] = floats(one["logprobs"])
        return found[0] if is_one else found

    def stream(
        self,
        prompt: Prompt,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        stop: str | Sequence[str] | None = None,
        seed: int = 42,
        template: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> Iterator[str]:
        """Yield the pieces of one completion as they are sampled. ``template`` holds additional variables of the chat template."""
        row = self._session.submit(
            _prompt(prompt, "`prompt`"), list(tools), dict(template or {}), sampling(params), _stop(stop), seed_of(seed)
        )
        try:
            ended = False
            while not ended:
                told = self._session.next(row)
                ended = not told
                for _, text, end in told:
                    if text:
                        yield text
                    ended = ended or end is not None
        finally:
            self._session.cancel(row)

    def chat(
        self,
        messages: str | Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        stop: str | Sequence[str] | None = None,
        seed: int = 42,
        template: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> Message:
        """Return the answer to a conversation as a message. A text is the first user turn."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        pieces = self.stream(list(messages), tools=tools, stop=stop, seed=seed, template=template, **params)
        return {"role": "assistant", "content": "".join(pieces)}

    def logprobs(self, prompts: Sequence[Prompt], completions: Sequence[str | Sequence[int]]) -> list[Any]:
        """Return the log-probabilities of the tokens of each completion after its prompt, at temperature 1, in nats; one array per row.

        A completion given as text is tokenized separately from its prompt. With a tokenizer of SentencePiece, the tokens may differ from
        those of the whole text: use :meth:`score`, or pass ids.
        """
        for name, given in (("prompts", prompts), ("completions", completions)):
            if isinstance(given, str):
                raise TypeError(f"`{name}` is one text, but a list is needed, such as `[{given[:20]!r}]`")
            if isinstance(given, Mapping):
                raise TypeError(f"`{name}` is a `{type(given).__name__}`, but a list is needed")
            if not hasattr(given, "__len__"):
                raise TypeError(f"`{name}` is a `{type(given).__name__}`, but a list is needed: pass `list({name})`")
        if len(prompts) != len(completions):
            raise ValueError(f"there are {len(prompts)} prompts, but {len(completions)} completions")
        rows = [
            (_prompt(prompt, f"prompt {number}"), _prompt(completion, f"completion {number}"))
            for number, (prompt, completion) in enumerate(zip(prompts, completions), 1)
        ]
        return [floats(one) for one in self._session.logprobs(rows)]

    def _files(self, *options: str) -> dict[str, str]:
        """Return the arguments for the files of the model: its name, and those of ``options`` that it was loaded with."""
        device = None if self._device == "cpu" else self._device
        given = {
            "adapter": self.adapter,
            "tokenizer": self._tokenizer,
            "chat_template": self._chat_template,
            "device": device,
        }
        return {"model": self.name} | {name: value for name in options if (value := given[name]) is not None}

    def _measured_files(self, what: str, advice: str) -> dict[str, str]:
        """Return all arguments for the files of the model. ``what`` reads them in full precision, so other weights are refused."""
        if self._weights != "f32":
            raise InputError(
                f"the model was loaded with `weights=\"{self._weights}\"`, but {what} reads the weights of its files, in `f32`\nhint: {advice}"
            )
        return self._files("adapter", "tokenizer", "chat_template", "device")

    def score(self, data: Any, **arguments: Any) -> list[dict[str, Any]]:
        """Return ``logprobs``, ``sum`` and ``mean`` of the completion of each row of ``data``, tokenized as in training."""
        return score(data, model=self, **arguments)

    def merge(self, output: str | os.PathLike[str], **arguments: Any) -> dict[str, Any]:
        """Fold the adapter into the weights and write the model to ``output``."""
        return merge(self, output, **arguments)

    def quantize(self, format: Literal["int8", "nf4"], output: str | os.PathLike[str], **arguments: Any) -> dict[str, Any]:
        """Write the model with its linear layers in 8 or 4 bits. The report contains the loss of accuracy. An adapter must be merged first."""
        return quantize(self, format, output, **arguments)

    def export(self, output: str | os.PathLike[str], **arguments: Any) -> dict[str, Any]:
        """Write the model as GGUF, for llama.cpp."""
        return export(self, output, **arguments)

    def evaluate(self, data: Any, **arguments: Any) -> dict[str, Any]:
        """Measure the model on rows."""
        return evaluate(self, data, **arguments)


#: A model: a directory, a run, a checkpoint, a hub name, or a loaded model.
ModelName: TypeAlias = "str | os.PathLike[str] | Model"

#: Names of other libraries for arguments of `load`, with the equivalent in gradus.
_LOADING = {
    "device_map": "it is `device` here",
    "dtype": "it is `weights` here, such as `weights=\"bf16\"`",
    "load_in_4bit": "it is `weights=\"nf4\"` here",
    "load_in_8bit": "it is `weights=\"int8\"` here",
    "quantization_config": "it is `weights=\"int8\"` or `weights=\"nf4\"` here",
    "torch_dtype": "it is `weights` here, such as `weights=\"bf16\"`",
}

_QUANTIZED = "write such a model with `quantize`, load it and measure it; or load this one without `weights`"


def load(model: str | os.PathLike[str], **options: Any) -> Model:
    """Load a model directory, a run (its model), a checkpoint or a hub name. ``options`` are the arguments of :class:`Model`."""
    known = Model.__init__.__kwdefaults__ or {}
    for name in options:
        if name not in known:
            listed = ", ".join(f"`{one}`" for one in known)
            raise TypeError(f"unknown argument `{name}`: {_LOADING.get(name, f'`load` takes {listed}')}")
    return Model(model, **options)


def score(data: Any, *, model: ModelName | None = None, **arguments: Any) -> list[dict[str, Any]]:
    """Return log-probabilities (``model=``), rewards (``reward_model=``) or labels (``classifier=``) of rows, one dict per row."""
    files = model._measured_files("`score`", _QUANTIZED) if isinstance(model, Model) else {"model": model}
    found: list[dict[str, Any]] = command("score", lines=True, **{**files, "data": data, **arguments})
    return found


def evaluate(model: ModelName | None, data: Any, **arguments: Any) -> dict[str, Any]:
    """Measure a model on rows. Returns the output of ``gradus eval --json``; ``arguments`` are its flags."""
    files = model._measured_files("`evaluate`", _QUANTIZED) if isinstance(model, Model) else {"model": model}
    # A mapping as in a configuration describes the source of the rows.
    is_part = isinstance(data, dict) and bool(data) and data.keys() <= {"task", "from", "split"}
    rows = {"data" if name == "from" else name: value for name, value in data.items()} if is_part else {"data": data}
    found: dict[str, Any] = command("eval", **{**files, **rows, **arguments})
    return found


def merge(model: ModelName, output: str | os.PathLike[str], **arguments: Any) -> dict[str, Any]:
    """Merge an adapter into its base model. Returns the output of ``gradus merge --json``."""
    files = model._files("adapter", "device") if isinstance(model, Model) else {"model": model}
    found: dict[str, Any] = command("merge", **{**files, "output": output, **arguments})
    return found


def quantize(
    model: ModelName, format: Literal["int8", "nf4"], output: str | os.PathLike[str], **arguments: Any
) -> dict[str, Any]:
    """Write a model with its linear layers in 8 or 4 bits. Returns the output of ``gradus quantize --json``."""
    if isinstance(model, Model) and model.adapter is not None:
        raise InputError(
            f"`quantize` writes whole models, but `{model.name}` was loaded with the adapter `{model.adapter}`\n"
            "hint: merge it first: `model.merge(directory)`, and `gradus.quantize(directory, …)`"
        )
    files = model._files("tokenizer", "chat_template", "device") if isinstance(model, Model) else {"model": model}
    found: dict[str, Any] = command("quantize", **{**files, "format": format, "output": output, **arguments})
    return found


def export(model: ModelName, output: str | os.PathLike[str], **arguments: Any) -> dict[str, Any]:
    """Write a model as GGUF. Returns the output of ``gradus export --json``."""
    files = model._files("adapter", "tokenizer", "chat_template") if isinstance(model, Model) else {"model": model}
    found: dict[str, Any] = command("export", **{**files, "output": output, **arguments})
    return found
