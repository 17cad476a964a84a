"""The native module. Its functions are internal to this package."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

__version__: str

def main(arguments: Sequence[str]) -> int: ...
def set_program(program: str, arguments: Sequence[str]) -> None: ...
def call(arguments: Sequence[str]) -> tuple[str, list[str]]: ...
def keys() -> list[dict[str, Any]]: ...
def keep_file(path: str, folder: str) -> str: ...
def write_table(table: Any, folder: str) -> str: ...
def measure(
    name: str,
    options: dict[str, Any],
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    prompts: Sequence[str] | None,
    columns: Sequence[Mapping[str, Any]],
) -> tuple[list[tuple[str, float, list[float] | None]], str | None]: ...
def train(
    method: str | None,
    arguments: dict[str, Any],
    config: str | None,
    existing: str,
    resume_from: str | None,
    callables: Sequence[tuple[str, str, Any]],
    handler: Callable[[str, dict[str, Any]], bool | None],
    wants_rollouts: bool,
) -> tuple[str, Any, bool]: ...
def plan(
    method: str | None, arguments: dict[str, Any], config: str | None, callables: Sequence[tuple[str, str, Any]]
) -> dict[str, Any]: ...

class NativeSession:
    def __init__(
        self,
        model: str,
        adapter: str | None,
        weights: str,
        device: str,
        tokenizer: str | None,
        chat_template: str | None,
        format: str | None,
    ) -> None: ...
    @property
    def directory(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def max_positions(self) -> int | None: ...
    def encode(self, text: str, add_special_tokens: bool) -> list[int]: ...
    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str: ...
    def generate(
        self, prompts: Sequence[Any], group_size: int, arguments: dict[str, Any], stop: Sequence[str], seed: int
    ) -> list[dict[str, Any]]: ...
    def submit(
        self,
        prompt: Any,
        tools: Sequence[Mapping[str, Any]],
        variables: dict[str, Any],
        arguments: dict[str, Any],
        stop: Sequence[str],
        seed: int,
    ) -> int: ...
    def next(self, row: int) -> list[tuple[tuple[int, float] | None, str, str | None]]: ...
    def cancel(self, row: int) -> None: ...
    def logprobs(self, rows: Sequence[tuple[Any, Any]]) -> list[bytes]: ...

class NativeTrainer:
    def __init__(
        self,
        model: str,
        lora: dict[str, Any] | None,
        weights: str,
        compute_in: str,
        device: str,
        betas: Sequence[float],
        epsilon: float,
        weight_decay: float,
        seed: int,
    ) -> None: ...
    @property
    def version(self) -> int: ...
    def encode(self, text: str, add_special_tokens: bool) -> list[int]: ...
    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str: ...
    def forward_backward(
        self,
        rows: Sequence[tuple[list[int], list[int], list[float], list[float]]],
        name: str,
        low: float | None,
        high: float | None,
        beta: float,
    ) -> tuple[float, list[bytes], int]: ...
    def optim_step(self, learning_rate: float, max_grad_norm: float) -> tuple[float, int]: ...
    def logprobs(self, rows: Sequence[tuple[list[int], list[int]]]) -> list[bytes]: ...
    def sample(
        self, prompts: Sequence[list[int]], group_size: int, arguments: dict[str, Any], seed: int
    ) -> list[dict[str, Any]]: ...
    def save(self, directory: str) -> None: ...
