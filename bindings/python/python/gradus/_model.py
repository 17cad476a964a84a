"""A loaded model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, overload

from gradus import _native
from gradus._arrays import floats, numbers
from gradus._commands import command

#: A text, a conversation (a list of messages), or ids of tokens.
Prompt: TypeAlias = "str | Sequence[Mapping[str, Any]] | Sequence[int]"
Message: TypeAlias = dict[str, Any]
Weights: TypeAlias = Literal["f32", "bf16", "int8", "nf4"]


class Completion(dict[str, Any]):
    """A completion: ``prompt``, ``completion``, ``completion_ids``, ``logprobs`` and ``stop`` (why it ended). ``str`` is its text."""

    def __str__(self) -> str:
        return str(self["completion"])


def _prompt(prompt: Any) -> Any:
    return numbers(prompt) if hasattr(prompt, "tolist") else prompt


def _stop(stop: str | Sequence[str] | None) -> list[str]:
    return [] if stop is None else [stop] if isinstance(stop, str) else list(stop)


#: What other libraries call the arguments of `generate`, and what that is here.
_ELSEWHERE = {
    "do_sample": "draw with a `temperature` above 0; 0 takes the likeliest token",
    "eos_token_id": "it is `stop_ids` here",
    "max_completion_tokens": "it is `max_new_tokens` here",
    "max_length": "it is `max_new_tokens` here, without the prompt",
    "max_tokens": "it is `max_new_tokens` here",
    "min_tokens": "it is `min_new_tokens` here",
    "n": "it is `group_size` here",
    "num_beams": "beams are searched by the command `gradus generate --num-beams`",
    "num_return_sequences": "it is `group_size` here",
    "stop_strings": "it is `stop` here",
    "stop_token_ids": "it is `stop_ids` here",
}


def _drawing(params: dict[str, Any]) -> dict[str, Any]:
    """The settings of drawing, without names of other libraries."""
    for name in params:
        if name in _ELSEWHERE:
            raise TypeError(f"unknown argument `{name}`: {_ELSEWHERE[name]}")
    return params


class Model:
    """A language model in memory. It answers one call at a time; more threads wait.

    Drawing takes the names of ``transformers``' ``GenerationConfig``: ``max_new_tokens``, ``temperature``, ``top_k``, ``top_p``,
    ``min_p``, ``typical_p``, ``repetition_penalty``, ``no_repeat_ngram_size``, ``min_new_tokens``, ``suppress_tokens``,
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
        #: What was loaded: a directory, a run or a hub name.
        self.name = os.fspath(path)
        #: The adapter that was loaded with it.
        self.adapter = None if adapter is None else os.fspath(adapter)
        self._session = _native.NativeSession(
            self.name,
            self.adapter,
            weights,
            device,
            None if tokenizer is None else os.fspath(tokenizer),
            None if chat_template is None else os.fspath(chat_template),
            format,
        )

    def __repr__(self) -> str:
        return f"<gradus.Model {self.name!r}>"

    @property
    def path(self) -> Path:
        """The directory of the model."""
        return Path(self._session.directory)

    @property
    def vocab_size(self) -> int:
        """Ids that the model knows."""
        return self._session.vocab_size

    @property
    def max_positions(self) -> int | None:
        """The most tokens of a prompt and its completion together; None where there is no limit."""
        return self._session.max_positions

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text."""
        return self._session.encode(text, add_special_tokens)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of ids."""
        return self._session.decode(numbers(ids), skip_special_tokens)

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
        """Completions of a list of prompts (texts, conversations, lists of ids): ``group_size`` of each, one after the other. A text
        alone gives one completion.

        The same seed draws the same completions as ``gradus generate``.
        """
        if group_size < 1:
            raise ValueError(f"`group_size` is {group_size}, but must be at least 1")
        is_one = isinstance(prompts, str)
        if not isinstance(prompts, (str, list, tuple)) and not hasattr(prompts, "__iter__"):
            raise TypeError(f"`prompts` is a `{type(prompts).__name__}`, but a text or a list of prompts is expected")
        prompts = prompts if isinstance(prompts, str) else list(prompts)
        if not is_one and any(isinstance(prompt, Mapping) for prompt in prompts):
            raise TypeError("`prompts` holds messages, but each prompt is a text or a whole conversation: pass `[conversation]`")
        if is_one and group_size != 1:
            raise TypeError("a text alone has one completion: pass a list of prompts with `group_size`")
        asked = [prompts] if is_one else [_prompt(prompt) for prompt in prompts]
        found = [Completion(one) for one in self._session.generate(asked, group_size, _drawing(params), _stop(stop), seed)]
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
        """The pieces of one completion as they are drawn. ``template`` holds further variables of the chat template."""
        row = self._session.submit(_prompt(prompt), list(tools), dict(template or {}), _drawing(params), _stop(stop), seed)
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
        """The answer to a conversation, as a message; a text is the first turn of a user."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        pieces = self.stream(list(messages), tools=tools, stop=stop, seed=seed, template=template, **params)
        return {"role": "assistant", "content": "".join(pieces)}

    def logprobs(self, prompts: Sequence[Prompt], completions: Sequence[str | Sequence[int]]) -> list[Any]:
        """Log-probabilities of the tokens of each completion after its prompt, at temperature 1, in nats; an array for each row.

        A completion that is a text is tokenized by itself.
        """
        if len(prompts) != len(completions):
            raise ValueError(f"there are {len(prompts)} prompts, but {len(completions)} completions")
        rows = [(_prompt(prompt), _prompt(completion)) for prompt, completion in zip(prompts, completions)]
        return [floats(one) for one in self._session.logprobs(rows)]

    def score(self, data: Any, **arguments: Any) -> list[dict[str, Any]]:
        """``logprobs``, ``sum`` and ``mean`` of the completion of each row of ``data``, tokenized as training does."""
        return score(data, model=self.name, adapter=self.adapter, **arguments)

    def merge(self, output: str | os.PathLike[str], **arguments: Any) -> dict[str, Any]:
        """Fold the adapter into the weights and write the model to ``output``."""
        return merge(self.name, output, adapter=self.adapter, **arguments)

    def quantize(self, format: Literal["int8", "nf4"], output: str | os.PathLike[str], **arguments: Any) -> dict[str, Any]:
        """Write the model with its linear layers in 8 or 4 bits; the report says what that costs."""
        return quantize(self.name, format, output, **arguments)

    def export(self, output: str | os.PathLike[str], **arguments: Any) -> dict[str, Any]:
        """Write the model as GGUF, for llama.cpp."""
        return export(self.name, output, adapter=self.adapter, **arguments)

    def evaluate(self, data: Any, **arguments: Any) -> dict[str, Any]:
        """Measure the model on rows."""
        return evaluate(self.name, data, adapter=self.adapter, **arguments)


def load(model: str | os.PathLike[str], **options: Any) -> Model:
    """Load a model directory, a run (its model), a checkpoint or a hub name. ``options`` are those of :class:`Model`."""
    return Model(model, **options)


def score(data: Any, **arguments: Any) -> list[dict[str, Any]]:
    """Log-probabilities (``model=``), rewards (``reward_model=``) or labels (``classifier=``) of rows, one dict a row."""
    found: list[dict[str, Any]] = command("score", lines=True, data=data, **arguments)
    return found


def evaluate(model: str | os.PathLike[str] | None, data: Any, **arguments: Any) -> dict[str, Any]:
    """Measure a model on rows: what ``gradus eval --json`` prints. ``arguments`` are its flags."""
    found: dict[str, Any] = command("eval", model=model, data=data, **arguments)
    return found


def merge(model: str | os.PathLike[str], output: str | os.PathLike[str], **arguments: Any) -> dict[str, Any]:
    """Merge an adapter into its base model: what ``gradus merge --json`` prints."""
    found: dict[str, Any] = command("merge", model=model, output=output, **arguments)
    return found


def quantize(
    model: str | os.PathLike[str], format: Literal["int8", "nf4"], output: str | os.PathLike[str], **arguments: Any
) -> dict[str, Any]:
    """Write a model with its linear layers in 8 or 4 bits: what ``gradus quantize --json`` prints."""
    found: dict[str, Any] = command("quantize", model=model, format=format, output=output, **arguments)
    return found


def export(model: str | os.PathLike[str], output: str | os.PathLike[str], **arguments: Any) -> dict[str, Any]:
    """Write a model as GGUF: what ``gradus export --json`` prints."""
    found: dict[str, Any] = command("export", model=model, output=output, **arguments)
    return found
