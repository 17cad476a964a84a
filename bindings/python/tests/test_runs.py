"""Training from Python: the same bits as from the command line, callables, callbacks, errors."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import gradus
import numpy
import pytest
from conftest import command
from gradus._errors import in_python

SHORT: dict[str, Any] = {"max_steps": 2, "batch_size": 4, "seed": 3, "eval_steps": -1, "progress": False}
ONLINE: dict[str, Any] = {**SHORT, "max_new_tokens": 6}
ONCE: dict[str, Any] = {**ONLINE, "max_steps": 1}
LONGER: dict[str, Any] = {**ONLINE, "max_steps": 5}
EVALUATED: dict[str, Any] = {**SHORT, "eval_steps": 1}


def weights(run: gradus.Run | Path) -> bytes:
    path = run.path if isinstance(run, gradus.Run) else run
    return (path / "model" / "model.safetensors").read_bytes()


def flags(keys: dict[str, Any]) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in keys.items() if name != "progress"]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


#: Variables of launchers, which the tests may also run under.
LAUNCHERS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMI_SIZE", "PMIX_RANK", "RANK", "SLURM_PROCID", "WORLD_SIZE")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, "`mpiexec` started 2 processes, and this is rank 1"),
        ({"RANK": "0", "WORLD_SIZE": "4"}, "`WORLD_SIZE` is 4"),
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, None),
        ({}, None),
    ],
)
def test_copies_that_a_launcher_started_have_a_warning(
    variables: dict[str, str], expected: str | None, tmp_path: Path, gpt2: Path, texts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = gradus.sft(gpt2, texts, output_dir=tmp_path / "run", **SHORT)
    found = [(str(one.message), one.filename) for one in caught if one.category is UserWarning]
    if expected is None:
        assert found == []
    else:
        ((message, file),) = found
        assert message.startswith(expected) and "`gradus train CONFIG` with `mpiexec`" in message
        assert file == __file__
    assert run.finished


@pytest.mark.parametrize("method", ["sft", "dpo", "grpo"])
def test_weights_are_those_of_the_command_line(
    method: str, tmp_path: Path, gpt2: Path, texts: Any, pairs: Any, prompts: Any
) -> None:
    rows = {"sft": texts, "dpo": pairs, "grpo": prompts}[method]
    keys = dict(ONLINE if method == "grpo" else SHORT)
    data = write(tmp_path / "rows.jsonl", rows)
    if method == "grpo":
        keys["reward_rule_length_target"] = 10
    there = tmp_path / "there"
    command(method, "--model", gpt2, "--data", data, "--output-dir", there, "--quiet", *flags(keys))
    here = getattr(gradus, method)(gpt2, rows, output_dir=tmp_path / "here", **keys)
    assert weights(here) == weights(there)
    # Passing the file by name gives the same result.
    again = getattr(gradus, method)(str(gpt2), str(data), output_dir=tmp_path / "again", **keys)
    assert weights(again) == weights(there)


def test_a_run_has_metrics_completions_and_a_model(tmp_path: Path, gpt2: Path, prompts: Any) -> None:
    run = gradus.grpo(gpt2, prompts, reward=lambda completions, **_: [float(len(text)) for text in completions],
                      output_dir=tmp_path / "run", **ONLINE)
    assert run.finished and run.results["steps"] == 2
    metrics = run.metrics
    assert metrics["step"] == [1, 2] and len(metrics["reward"]) == 2
    completions = list(run.completions)
    assert len(completions) == len(run.completions) == 2 * 4 * 8
    assert {row["step"] for row in completions} == {1, 2}
    assert len(run.completions.of_step(1)) == 32
    assert len(run.completions.to_dict()["step"]) == 64
    page = run._repr_html_()
    assert "<svg" in page and "reward over steps" in page and "grpo · 2 steps" in page
    assert gradus.Run(run.path).finished and repr(gradus.Run(run.path)) == repr(run)
    assert run.plots and run.report.exists() and "grpo" in run.config
    assert len(run.model.generate(["The"], max_new_tokens=2)) == 1
    assert repr(run).startswith("<gradus.Run ")


def test_rewards_have_the_contract_of_trl(tmp_path: Path, gpt2: Path, prompts: Any) -> None:
    seen: dict[str, Any] = {}

    def brevity(prompts: Any, completions: Any, completion_ids: Any, length: Any, trainer_state: Any, log_extra: Any, log_metric: Any) -> list[float]:
        seen.setdefault("steps", []).append(trainer_state.global_step)
        assert len(prompts) == len(completions) == len(completion_ids) == len(length) == 32
        assert all(len(prompt) == number for prompt, number in zip(prompts, length))
        assert all(isinstance(ids[0], int) for ids in completion_ids)
        log_metric("mean_length", sum(length) / len(length))
        log_extra("first", [text[:1] for text in completions])
        return [1.0 / (1 + len(text)) for text in completions]

    async def slow(completions: Any, **_: Any) -> list[float | None]:
        await asyncio.sleep(0.2)
        return [None if i % 2 else 0.5 for i in range(len(completions))]

    async def slower(completions: Any, **_: Any) -> list[float]:
        await asyncio.sleep(0.2)
        return [0.25] * len(completions)

    begun = time.monotonic()
    run = gradus.grpo(gpt2, prompts, reward=[brevity, slow, slower], reward_weights=[1.0, 2.0, 0.5],
                      output_dir=tmp_path / "run", **ONLINE)
    assert time.monotonic() - begun > 0.4
    assert seen["steps"] == [0, 1]
    row = run.rows[0]
    assert row["rewards/slow/mean"] == pytest.approx(0.5)
    assert row["rewards/slower/mean"] == pytest.approx(0.25)
    assert any(name.endswith("mean_length") for name in row), row
    assert len(run.extra["first"]) == 64
    # The reward is the weighted sum of the functions that returned a score.
    first, second = run.completions.of_step(1)[:2]
    assert first["components"]["slower"] == 0.25
    assert first["reward"] == pytest.approx(1.0 / (1 + len(first["completion"])) + 2.0 * 0.5 + 0.5 * 0.25)
    assert second["reward"] == pytest.approx(1.0 / (1 + len(second["completion"])) + 0.5 * 0.25)


def test_asynchronous_rewards_keep_their_event_loop(tmp_path: Path, gpt2: Path, prompts: Any) -> None:
    loops: set[Any] = set()
    one_at_a_time = asyncio.Semaphore(1)

    async def limited(completions: Any, **_: Any) -> list[float]:
        loops.add(asyncio.get_running_loop())

        async def ask(text: str) -> float:
            # A semaphore belongs to the loop in which it was first waited for, as the connections of a client do.
            async with one_at_a_time:
                await asyncio.sleep(0)
                return float(len(text))

        return await asyncio.gather(*map(ask, completions))

    gradus.grpo(gpt2, prompts, reward=limited, output_dir=tmp_path / "run", **ONLINE)
    gradus.grpo(gpt2, prompts, reward=limited, output_dir=tmp_path / "another", **ONLINE)
    assert len(loops) == 1


def test_an_asynchronous_reward_that_fails_ends_the_others(tmp_path: Path, gpt2: Path, prompts: Any) -> None:
    ended: list[str] = []

    async def fails(completions: Any, **_: Any) -> list[float]:
        await asyncio.sleep(0)
        raise RuntimeError("no answer")

    async def waits(completions: Any, **_: Any) -> list[float]:
        try:
            await asyncio.sleep(600)
        finally:
            ended.append("waits")
        return [0.0] * len(completions)

    with pytest.raises(RuntimeError, match="no answer"):
        gradus.grpo(gpt2, prompts, reward=[fails, waits], output_dir=tmp_path / "run", **ONLINE)
    assert ended == ["waits"]


def test_rewards_know_the_step_of_the_run(tmp_path: Path, gpt2: Path, prompts: Any) -> None:
    seen: list[tuple[int, int]] = []

    def brevity(completions: Any, trainer_state: Any, **_: Any) -> list[float]:
        seen.append((trainer_state.global_step, trainer_state.max_steps))
        return [1.0 / (1 + len(text)) for text in completions]

    three: dict[str, Any] = {**ONLINE, "max_steps": 3}
    gradus.grpo(gpt2, prompts, reward=brevity, output_dir=tmp_path / "run", logging_steps=10, **three)
    assert seen == [(0, 3), (1, 3), (2, 3)], "whatever is logged"
    seen.clear()
    gradus.grpo(gpt2, prompts, reward=brevity, output_dir=tmp_path / "stopped", on_step=lambda *_: False, **three)
    gradus.resume(tmp_path / "stopped", reward=brevity, progress=False)
    assert seen == [(0, 3), (1, 3), (2, 3)], "also after a resumption"
    seen.clear()
    evaluated: dict[str, Any] = {**ONCE, "eval_steps": 1}
    gradus.grpo(gpt2, prompts, eval_data=prompts[:4], reward=brevity, output_dir=tmp_path / "evaluated", **evaluated)
    assert seen == [(0, 1), (0, 1), (1, 1)], "evaluations come before and after the step"


def test_extra_values_are_those_of_the_trained_completions(tmp_path: Path, gpt2: Path, prompts: Any) -> None:
    called = 0

    def brevity(completions: Any, log_extra: Any, **_: Any) -> list[float]:
        nonlocal called
        called += 1
        log_extra("text", completions)
        return [1.0 / (1 + len(text)) for text in completions]

    evaluated: dict[str, Any] = {**ONLINE, "eval_steps": 1}
    run = gradus.grpo(gpt2, prompts, eval_data=prompts[:4], reward=brevity, output_dir=tmp_path / "run", **evaluated)
    assert called > 2, "it also scores evaluations"
    assert run.extra["text"] == [row["completion"] for row in run.completions]


def test_async_rewards_run_side_by_side(tmp_path: Path, gpt2: Path, prompts: Any) -> None:
    barrier = 0

    def waits(name: str) -> Any:
        async def reward(completions: Any, **_: Any) -> list[float]:
            nonlocal barrier
            barrier += 1
            for _look in range(500):
                if barrier % 2 == 0:
                    return [1.0] * len(completions)
                await asyncio.sleep(0.01)
            raise RuntimeError("the other reward never began")

        reward.__name__ = name
        return reward

    gradus.grpo(gpt2, prompts, reward=[waits("one"), waits("two")], output_dir=tmp_path / "run", **ONLINE)


def test_functions_and_reward_models_mix(tmp_path: Path, qwen3: Path, reward_model: Path, prompts: Any) -> None:
    def brevity(completions: Any, **_: Any) -> list[float]:
        return [-float(len(text)) for text in completions]

    run = gradus.grpo(qwen3, prompts, reward=[brevity, str(reward_model), {"rule": {"length": {"target": 4}}}],
                      output_dir=tmp_path / "run", **ONCE)
    names = [name for name in run.rows[0] if name.startswith("rewards/") and name.endswith("/mean")]
    assert {"rewards/brevity/mean", "rewards/model/mean", "rewards/length/mean"} <= set(names), run.rows[0]


def test_conversations_reach_rewards_as_messages(tmp_path: Path, qwen3: Path) -> None:
    rows = [{"prompt": [{"role": "user", "content": f"say {i}"}]} for i in range(4)]

    def reward(prompts: Any, completions: Any, **_: Any) -> list[float]:
        assert prompts[0][0]["role"] == "user" and prompts[0][0]["content"].startswith("say")
        assert completions[0][0]["role"] == "assistant" and isinstance(completions[0][0]["content"], str)
        return [0.0 if i % 2 else 1.0 for i in range(len(prompts))]

    gradus.grpo(qwen3, rows, reward=reward, output_dir=tmp_path / "run", **ONCE)


def test_an_exception_in_a_reward_stops_the_run_with_its_traceback(tmp_path: Path, gpt2: Path, prompts: Any) -> None:
    calls = 0

    def fails(completions: Any, **_: Any) -> list[float]:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyError("no such word")
        return [float(len(text)) for text in completions]

    with pytest.raises(gradus.RewardError, match="`fails`: KeyError") as caught:
        gradus.grpo(gpt2, prompts, reward=fails, output_dir=tmp_path / "run", **ONLINE)
    assert caught.value.row is not None
    cause = caught.value.__cause__
    assert isinstance(cause, KeyError) and cause.__traceback__ is not None
    assert "in rows" in "".join(cause.__notes__)
    # The step before is saved, and the run resumes from there with a working function.
    run = gradus.resume(tmp_path / "run", reward=fails, progress=False)
    assert run.finished and run.results["steps"] == 2


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ([1.0], "returned 1 values for 32 completions"),
        ("text", "returned a `str`"),
        ([float("nan")] * 32, "is nan, but a finite number is needed"),
        (["x"] * 32, "is a `str`, but a number is needed"),
        (None, "returned a `NoneType`"),
        ([10**400] * 32, r"of completion 1 \(row \d+\) is an integer that is too large for a float"),
    ],
)
def test_what_a_reward_returns_is_checked(answer: Any, error: str, tmp_path: Path, gpt2: Path, prompts: Any) -> None:
    with pytest.raises(gradus.RewardError, match=error):
        gradus.grpo(gpt2, prompts, reward=lambda **_: answer, output_dir=tmp_path / "run", **ONLINE)


def test_an_exception_without_a_message_has_its_name(tmp_path: Path, gpt2: Path, prompts: Any) -> None:
    def fails(**_: Any) -> list[float]:
        raise LookupError

    with pytest.raises(gradus.RewardError, match=r"`fails`: LookupError(\n|$)") as caught:
        gradus.grpo(gpt2, prompts, reward=fails, output_dir=tmp_path / "run", **ONLINE)
    # A traceback shows the name with which a program catches the exception.
    assert f"{type(caught.value).__module__}.{type(caught.value).__qualname__}" == "gradus.RewardError"


def test_a_function_may_return_the_coroutine_of_another(tmp_path: Path, gpt2: Path, prompts: Any) -> None:
    async def judged(completions: Any, scale: float) -> list[float]:
        await asyncio.sleep(0)
        return [scale] * len(completions)

    run = gradus.grpo(gpt2, prompts, reward=lambda completions, **_: judged(completions, 0.5), output_dir=tmp_path / "run", **ONCE)
    assert run.rows[0]["reward"] == pytest.approx(0.5)
    assert repr(run).startswith(f"<gradus.Run {str(run.path)!r}: 1 step") and "1 steps" not in repr(run) + run._repr_html_()


def test_a_reward_that_hangs_has_a_time_limit(tmp_path: Path, gpt2: Path, prompts: Any) -> None:
    release = threading.Event()

    def hangs(completions: Any, **_: Any) -> list[float]:
        release.wait()
        return [0.0] * len(completions)

    with pytest.raises(gradus.RewardError, match="no answer after 0.3 s(.|\n)*raise `reward_timeout_s`"):
        gradus.grpo(gpt2, prompts, reward=hangs, reward_timeout_s=0.3, output_dir=tmp_path / "run", **ONLINE)
    release.set()


def test_a_reward_may_ask_a_model(tmp_path: Path, gpt2: Path, prompts: Any) -> None:
    judge = gradus.load(gpt2)

    def likely(prompts: Any, completions: Any, **_: Any) -> list[float | None]:
        found = judge.logprobs(prompts, [text or " " for text in completions])
        return [float(one.mean()) if len(one) else None for one in found]

    run = gradus.grpo(gpt2, prompts, reward=likely, output_dir=tmp_path / "run", threads=1, **ONLINE)
    assert run.rows[0]["reward"] < 0


def test_metrics_and_post_processors_may_be_functions(tmp_path: Path, gpt2: Path, texts: Any) -> None:
    def shout(text: str) -> str:
        return text.upper() + "!"

    def ends(predictions: Any, references: Any, **_: Any) -> list[float]:
        assert len(predictions) == len(references)
        return [1.0 if text.endswith("!") else 0.0 for text in predictions]

    def several(predictions: Any) -> dict[str, Any]:
        return {"count": len(predictions), "length": [len(text) for text in predictions]}

    run = gradus.sft(gpt2, texts, eval_data=texts[:4], output_dir=tmp_path / "run", **EVALUATED,
                     evaluation_metrics=[ends, several, "ter"], evaluation_post_process=shout, evaluation_max_new_tokens=4)
    last = run.rows[-1]
    assert last["eval_ends"] == 1.0 and last["eval_several/count"] == 4 and "eval_ter" in last


def test_a_post_processor_without_a_text_is_named(tmp_path: Path, gpt2: Path, texts: Any) -> None:
    def forgets(text: str) -> Any:
        text.strip()

    with pytest.raises(TypeError, match="the post-processor `forgets` returned a `NoneType`, but a text is needed"):
        gradus.sft(gpt2, texts, eval_data=texts[:4], output_dir=tmp_path / "run", **EVALUATED,
                   evaluation_metrics="ter", evaluation_post_process=forgets, evaluation_max_new_tokens=4)


def test_a_task_may_be_a_function_or_an_object(tmp_path: Path, gpt2: Path) -> None:
    asked: list[str] = []

    def numbers(split: str) -> Any:
        asked.append(split)
        for i in range(12 if split == "train" else 4):
            yield {"prompt": f"{i}:", "references": str(i + 1), "level": i % 3}

    class Task:
        def samples(self, split: str) -> Any:
            return list(numbers(split))

    seen: list[Any] = []

    def judged(completions: Any, level: Any, **_: Any) -> list[float]:
        seen.extend(level)
        return [float(len(text)) for text in completions]

    run = gradus.grpo(gpt2, {"task": numbers}, reward=judged, output_dir=tmp_path / "function", **ONLINE)
    assert run.finished and "train" in asked and set(seen) <= {0, 1, 2}
    evaluated: dict[str, Any] = {**ONLINE, "eval_steps": 1, "evaluation_metrics": "ter"}
    run = gradus.grpo(gpt2, {"task": Task()}, reward=judged, output_dir=tmp_path / "object", **evaluated)
    assert "validation" in asked and "eval_ter" in run.rows[-1]

    def broken(split: str) -> Any:
        yield {"prompt": "1:", "references": [2]}

    with pytest.raises(TypeError, match="a reference of sample 1 is a `int`, but a text is needed") as raised:
        gradus.grpo(gpt2, {"task": broken}, reward=judged, output_dir=tmp_path / "broken", **ONLINE)
    assert "raised by the task `broken`" in "".join(raised.value.__notes__)
    with pytest.raises(TypeError, match="sample 1 has no text `prompt` \\(found `text`\\)"):
        gradus.grpo(gpt2, {"task": lambda split: [{"text": "a"}]}, reward=judged, output_dir=tmp_path / "other", **ONLINE)


def test_observers_hear_everything_and_may_stop(tmp_path: Path, gpt2: Path, prompts: Any) -> None:
    heard: list[str] = []

    def watch(kind: str, details: dict[str, Any]) -> bool | None:
        heard.append(kind)
        return False if kind == "step" and details["step"] == 2 else None

    reward = {"rule": {"length": {"target": 10}}}
    run = gradus.grpo(gpt2, prompts, reward=reward, output_dir=tmp_path / "run", observers=[watch], **LONGER)
    assert not run.finished and {"phase", "step", "rollouts", "checkpoint"} <= set(heard) and heard.count("step") == 2
    with pytest.raises(gradus.ConfigError, match="which a configuration cannot hold"):
        gradus.resume(run, progress=False)

    def broken(kind: str, details: dict[str, Any]) -> None:
        if kind == "step":
            raise LookupError("no such place")

    with pytest.raises(LookupError, match="no such place"):
        gradus.grpo(gpt2, prompts, reward=reward, output_dir=tmp_path / "broken", observers=broken, **LONGER)
    # Two functions with the same name are both called.
    both = [lambda kind, details: heard.append("first"), lambda kind, details: heard.append("second")]
    gradus.grpo(gpt2, prompts, reward=reward, output_dir=tmp_path / "two", observers=both, **ONCE)
    assert heard.count("first") == heard.count("second") > 0


def test_callbacks_hear_and_stop(tmp_path: Path, gpt2: Path, prompts: Any) -> None:
    heard: list[Any] = []

    def on_step(step: int, total: int, metrics: dict[str, float]) -> bool:
        heard.append((step, total, metrics["reward"]))
        return step < 2

    def on_rollouts(step: int, rollouts: list[dict[str, Any]]) -> None:
        heard.append(len(rollouts))
        assert rollouts[0].keys() == {"row", "prompt", "completion", "tokens", "reward", "rewards", "advantage"}

    reward = {"rule": {"length": {"target": 10}}}
    run = gradus.grpo(gpt2, prompts, reward=reward, output_dir=tmp_path / "run", on_step=on_step, on_rollouts=on_rollouts,
                      **LONGER)
    assert not run.finished and not gradus.Run(run.path).finished and "run.resume()" in run._repr_html_()
    assert [one for one in heard if isinstance(one, int)] == [32, 32]
    assert [one[:2] for one in heard if isinstance(one, tuple)] == [(1, 5), (2, 5)]
    # The run resumes where it stopped, and ends with the weights of an uninterrupted run.
    resumed = gradus.resume(run, progress=False)
    whole = gradus.grpo(gpt2, prompts, reward=reward, output_dir=tmp_path / "whole", **LONGER)
    assert resumed.finished and weights(resumed) == weights(whole)


class Terminal(io.StringIO):
    """A terminal of 80 columns that records the output."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_one_line_that_changes(tmp_path: Path, gpt2: Path, prompts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    reward = {"rule": {"length": {"target": 10}}}
    shown: dict[str, Any] = {**LONGER, "progress": None, "eval_steps": 5}
    gradus.grpo(gpt2, prompts, reward=reward, output_dir=tmp_path / "run", **shown)
    monkeypatch.undo()
    lines = terminal.getvalue().split("\n")
    assert all(len(part) < 80 for line in lines for part in line.split("\r") if "█" in part or "░" in part)
    # The last step remains visible, and held-out metrics have the same name as in the metrics of the run.
    last = lines[-2].split("\r")[-1]
    assert last.startswith("training ") and " 5/5  " in last and "reward " in last and "left" not in last
    assert any("step 5: eval_reward " in line for line in lines)


def test_a_run_goes_on_with_the_functions_that_it_had(tmp_path: Path, gpt2: Path, prompts: Any) -> None:
    def brevity(completions: Any, **_: Any) -> list[float]:
        return [1.0 / (1 + len(text)) for text in completions]

    def another(completions: Any, **_: Any) -> list[float]:
        return [0.0 for _text in completions]

    stopped = gradus.grpo(gpt2, prompts, reward=brevity, output_dir=tmp_path / "run", on_step=lambda *_: False, **LONGER)
    assert repr(stopped) == f"<gradus.Run {str(stopped.path)!r}: 1 step>"
    for given in ({}, {"reward": another}):
        with pytest.raises(gradus.ConfigError, match="trained with the function `brevity`") as caught:
            gradus.resume(stopped, progress=False, **given)
        assert "pass it again" in (caught.value.hint or "")
    resumed = gradus.resume(stopped, reward=brevity, progress=False)
    whole = gradus.grpo(gpt2, prompts, reward=brevity, output_dir=tmp_path / "whole", **LONGER)
    assert not stopped.finished and resumed.finished and weights(resumed) == weights(whole)
    assert repr(whole).startswith(f"<gradus.Run {str(whole.path)!r}: 5 steps")


def test_false_of_numpy_stops_a_run(tmp_path: Path, gpt2: Path, texts: Any) -> None:
    def few(step: int, total: int, metrics: dict[str, float]) -> Any:
        return numpy.float32(step) < 1

    assert not gradus.sft(gpt2, texts, output_dir=tmp_path / "few", on_step=few, **SHORT).finished
    # Other values do not stop it.
    assert gradus.sft(gpt2, texts, output_dir=tmp_path / "all", on_step=lambda *_: numpy.float32(0), **SHORT).finished


def test_an_exception_in_a_callback_comes_out(tmp_path: Path, gpt2: Path, texts: Any) -> None:
    def on_step(step: int, total: int, metrics: dict[str, float]) -> None:
        raise LookupError("as asked")

    with pytest.raises(LookupError, match="as asked"):
        gradus.sft(gpt2, texts, output_dir=tmp_path / "run", on_step=on_step, **SHORT)


def test_ctrl_c_stops_at_a_checkpoint(tmp_path: Path, gpt2: Path, prompts: Any) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"""
import gradus
def on_step(step, total, metrics):
    print("step", step, flush=True)
try:
    gradus.grpo({str(gpt2)!r}, {prompts!r}, reward={{"rule": {{"length": {{"target": 9}}}}}}, output_dir="run", max_steps=100000,
                max_new_tokens=8, batch_size=4, eval_steps=-1, progress=False, on_step=on_step)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    )
    process = subprocess.Popen([sys.executable, script], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("step")
    process.send_signal(signal.SIGINT)
    rest = process.stdout.read()
    assert process.wait() == 0 and rest.splitlines()[-1] == "interrupted"
    assert list((tmp_path / "run" / "checkpoints").iterdir())


@pytest.mark.parametrize(
    ("keys", "error", "text"),
    [
        ({"learning_rte": 1.0}, TypeError, "sft() has no argument `learning_rte`: did you mean `learning_rate`?"),
        ({"per_device_train_batch_size": 4}, TypeError, "it is `batch_size` here"),
        ({"learning_rate": "fast"}, gradus.ConfigError, "`learning_rate`"),
        ({"learning_rate": float("inf")}, ValueError, "`learning_rate` is inf"),
        ({"max_steps": object()}, TypeError, "`max_steps` is a `object`"),
        ({"max_steps": 2**70}, ValueError, "does not fit into 64 bits"),
        ({"system_prompt": "\ud800"}, ValueError, "not valid Unicode"),
        ({"batch_size": 0}, gradus.ConfigError, "batch_size"),
        ({"frozen_weights": "nf4"}, gradus.ConfigError, "only the base under an adapter"),
        ({"overwrite": True, "resume": True}, TypeError, "cannot be combined"),
        ({"on_step": 3}, TypeError, "`on_step` is a `int`, but a function `on_step(step, total, metrics)` is expected"),
        ({"on_step": lambda metrics: None}, TypeError, "the given function takes `(metrics)`"),
        ({"on_evaluation": lambda step, metrics: None}, TypeError, "`on_evaluation` is called as `on_evaluation(step, metrics, best)`"),
    ],
)
def test_what_is_wrong_is_said(keys: Any, error: Any, text: str, tmp_path: Path, gpt2: Path, texts: Any) -> None:
    given: dict[str, Any] = {"output_dir": tmp_path / "run", **keys}
    with pytest.raises(error) as caught:
        gradus.sft(gpt2, texts, **given)
    assert text in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_keys_of_earlier_versions_are_read_from_files_and_named_as_arguments(tmp_path: Path, gpt2: Path, prompts: Any) -> None:
    old: dict[str, Any] = {"part_size": 1}
    with pytest.raises(TypeError, match=r"ppo\(\) has no argument `part_size`: it is now `quirks_part_size`"):
        gradus.ppo(gpt2, prompts, reward={"rule": {"regex": "e"}}, output_dir=tmp_path / "run", **old)
    data = write(tmp_path / "rows.jsonl", prompts)
    text = {"model": str(gpt2), "data": str(data), "output_dir": str(tmp_path / "run"), "reward": {"rule": {"regex": "e"}},
            "method": {"ppo": {"max_new_tokens": 2, **old}}, "train": {"max_steps": 1, "batch_size": 2, "eval_steps": -1}}
    file = tmp_path / "run.json"
    file.write_text(json.dumps(text))
    with pytest.warns(FutureWarning, match="`method.ppo.part_size` is now `method.ppo.quirks.part_size`"):
        run = gradus.run(file, progress=False)
    assert "quirks:\n" in (run.path / "config.yml").read_text()


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ("pass `--model`", "pass `model`"),
        ("use `--adapter DIR` or `--chat-template NAME|FILE`", "use `adapter=DIR` or `chat_template=NAME|FILE`"),
        ("pass `--max-new-tokens 128` or less", "pass `max_new_tokens=128` or less"),
        ("`--truncate right` cuts", '`truncate="right"` cuts'),
        ("`--column chosen=YOURS --column rejected=YOURS`", '`column=["chosen=YOURS", "rejected=YOURS"]`'),
        ("`--column prompt=question`", '`column="prompt=question"`'),
        ("resume with `gradus sft --output-dir runs/a --resume`", 'resume with `gradus.resume("runs/a")`'),
        (r"`gradus sft --output-dir 'it'\''s mine' --resume`", """`gradus.resume("it's mine")`"""),
        ("`gradus runs list --json` lists them", "`gradus runs list --json` lists them"),
    ],
)
def test_advice_is_what_python_code_can_say(printed: str, expected: str) -> None:
    assert in_python(printed) == expected and in_python(expected) == expected


def test_errors_have_the_text_of_the_command_line(tmp_path: Path, gpt2: Path) -> None:
    rows = write(tmp_path / "rows.jsonl", [{"prompt": "?", "completion": "!"}, {"prompt": None, "completion": "!"}])
    printed = command("sft", "--model", gpt2, "--data", rows, "--output-dir", tmp_path / "a", "--quiet", code=1).stderr
    with pytest.raises(gradus.DataError) as caught:
        gradus.sft(gpt2, rows, output_dir=tmp_path / "b", progress=False)
    assert f"error: {caught.value}" == in_python(printed.strip())
    assert "--skip-bad-rows" in printed and caught.value.hint is not None and "`skip_bad_rows`" in caught.value.hint
    with pytest.raises(gradus.ConfigError) as config:
        gradus.sft(gpt2, rows, output_dir=tmp_path / "b", warmup_steps=-1)
    printed = command("sft", "--model", gpt2, "--data", rows, "--warmup-steps=-1", code=2).stderr
    assert str(config.value).splitlines()[0] == in_python(printed.splitlines()[0].removeprefix("error: "))
    with pytest.raises(gradus.InputError, match="exists and is not empty"):
        gradus.sft(gpt2, rows, output_dir=gpt2)


def test_errors_name_arguments_and_hints(tmp_path: Path, gpt2: Path, texts: Any, pairs: Any, prompts: Any) -> None:
    with pytest.raises(gradus.ConfigError) as caught:
        gradus.sft(data=texts)
    assert "`model` is missing" in str(caught.value) and caught.value.hint == "pass `model`"
    with pytest.raises(gradus.UsageError) as usage:
        gradus.score(texts, modle=gpt2)
    assert "modle" in str(usage.value) and "model" in (usage.value.hint or "") and "Usage" not in str(usage.value)
    with pytest.raises(gradus.ConfigError) as missing:
        gradus.grpo(gpt2, prompts)
    assert "needs a `reward`" in str(missing.value) and "a function" in (missing.value.hint or "")
    offline: Any = gradus.dpo
    with pytest.raises(gradus.ConfigError, match="`dpo` samples no completions to reward"):
        offline(gpt2, pairs, reward=len)
    with pytest.raises(TypeError, match="`model` is a `object`"):
        offline(object(), pairs)
    with pytest.raises(gradus.RewardError, match="`texts`, but .* `prompts`, `completions`"):
        gradus.grpo(gpt2, prompts, reward=lambda texts: [0.0 for _ in texts], output_dir=tmp_path / "run", **ONLINE)
    with pytest.raises(FileNotFoundError, match="no run directory"):
        gradus.Run(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="is no run directory, because it has no `config.yml`"):
        gradus.Run(tmp_path)


def test_a_model_or_a_run_may_be_the_model(tmp_path: Path, gpt2: Path, texts: Any) -> None:
    first = gradus.sft(gpt2, texts, output_dir=tmp_path / "first", **SHORT)
    of_run = gradus.sft(first, texts, output_dir=tmp_path / "of_run", **SHORT)
    of_model = gradus.sft(first.model, texts, output_dir=tmp_path / "of_model", **SHORT)
    of_directory = gradus.sft(first.model_path, texts, output_dir=tmp_path / "of_directory", **SHORT)
    assert weights(of_run) == weights(of_model) == weights(of_directory) != weights(first)


def test_a_configuration_file_with_arguments_over_it(tmp_path: Path, gpt2: Path, texts: Any) -> None:
    data = write(tmp_path / "rows.jsonl", texts)
    config = tmp_path / "run.yml"
    config.write_text(f"model: {gpt2}\ndata: {data}\nmethod: {{ sft: {{}} }}\ntrain: {{ max_steps: 3, batch_size: 4, eval_steps: -1 }}\n")
    run = gradus.run(config, output_dir=tmp_path / "run", max_steps=1, progress=False)
    assert run.results["steps"] == 1
    again = gradus.run(config, output_dir=tmp_path / "again", train={"max_steps": 2}, progress=False)
    assert again.results["steps"] == 2


def test_plan_says_what_a_run_needs(gpt2: Path, texts: Any) -> None:
    plan = gradus.plan("sft", model=gpt2, data=texts, batch_size=4)
    assert plan["fits"] and plan["peak_bytes"] > 1_000_000 and plan["phases"]
