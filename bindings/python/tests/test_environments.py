"""Tools and environments in Python."""

from __future__ import annotations

import datetime
import enum
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradus
import pytest
from gradus._environments import Environment, Tool
from tools_of_tests import TOOLS

ROWS = [{"messages": [{"role": "user", "content": "Let us play. "}], "secret": n, "environment": "one"} for n in range(4)]
KEYS: dict[str, Any] = {
    "max_steps": 2,
    "batch_size": 4,
    "group_size": 4,
    "seed": 3,
    "eval_steps": -1,
    "progress": False,
    "max_new_tokens": 60,
    "stop": ["e", "a"],
    "learning_rate": 1e-3,
}

ONCE: dict[str, Any] = {**KEYS, "max_steps": 1}


def weights(run: gradus.Run) -> bytes:
    return (run.path / "model" / "model.safetensors").read_bytes()


def test_schemas_are_those_of_transformers() -> None:
    recorded = json.loads((Path(__file__).parent / "tool_schemas.json").read_text())
    assert len(recorded["tools"]) == len(TOOLS)
    for tool, expected in zip([Tool(function) for function in TOOLS], recorded["tools"]):
        returns = expected.pop("return", None)
        assert {"name": tool.name, "description": tool.description, "parameters": tool.parameters} == expected
        assert tool.returns == returns


def test_what_cannot_be_shown_to_the_policy_is_refused() -> None:
    def untyped(query):  # type: ignore[no-untyped-def]
        return query

    def open_ended(*queries: str) -> str:
        return ""

    with pytest.raises(TypeError, match="the argument `query` of the tool `untyped` has no type hint"):
        Tool(untyped)
    with pytest.raises(TypeError, match=r"the tool `open_ended` takes `\*queries"):
        Tool(open_ended)
    with pytest.raises(TypeError, match="a class, a function that creates one"):
        Environment(3)  # type: ignore[arg-type]

    def dated(day: datetime.date) -> str:
        return ""

    def spread(days: tuple[int, ...]) -> str:
        return ""

    def chosen(unit: str) -> str:
        """Chooses.

        Args:
            unit: The unit. (choices: [celsius])
        """
        return unit

    # Only the policy's own texts need a type that it can see.
    def listed() -> datetime.date:
        return datetime.date.today()

    def silent():  # type: ignore[no-untyped-def]
        return None

    # The description of the result ends at `Raises:` alone, as in transformers 5.23.
    def converted(amount: float) -> float:
        """Converts.

        Returns:
            The amount.

        Notes:
            In euros.

        Raises:
            ValueError: If it is negative.
        """
        return amount

    assert Tool(converted).returns == {"type": "number", "description": "The amount.\n\nNotes:\n    In euros."}
    assert Tool(listed).returns is None and Tool(silent).returns is None
    with pytest.raises(TypeError, match="the argument `day` of the tool `dated` has the type `datetime.date`, which has no schema"):
        Tool(dated)
    with pytest.raises(TypeError, match=r"has the type `tuple\[int, \.\.\.\]`"):
        Tool(spread)
    with pytest.raises(TypeError, match=r"the argument `unit` of the tool `chosen` has the choices `\[celsius\]`, but a list in JSON"):
        Tool(chosen)


class Unit(enum.Enum):
    CELSIUS = "c"
    FAHRENHEIT = "f"


def test_text_after_the_arguments_belongs_to_no_argument() -> None:
    def weather(city: str, unit: Unit, scale: str = "celsius") -> str:
        """Gets the weather.

        Args:
            city: The name
              of the city.
            unit: The unit.
            scale: The scale. (choices: ["celsius", "fahrenheit"])

        Note: the data come from the national service.
        """
        return city

    tool = Tool(weather)
    assert tool.description == "Gets the weather."
    # As `transformers.utils.get_json_schema` of 5.23 returns.
    assert tool.parameters["properties"] == {
        "city": {"type": "string", "description": "The name of the city."},
        "unit": {"type": "string", "enum": ["c", "f"], "description": "The unit."},
        "scale": {"type": "string", "enum": ["celsius", "fahrenheit"], "description": "The scale."},
    }


class Counting:
    """Answers two of three turns, and rewards their length."""

    made = 0

    def __init__(self) -> None:
        type(self).made += 1
        self.turns: list[str] = []

    def reset(self, secret: int, seed: int, **_: Any) -> str:
        self.secret = secret
        return f"Number {secret + seed % 2}."

    def step(self, text: str) -> dict[str, Any]:
        self.turns.append(text)
        last = len(self.turns) == 3
        return {"replies": None if last else "go on", "reward": len(text) % 3, "done": last, "metrics": {"read": len(text)}}

    async def get_reward(self) -> float:
        return float(self.secret)


def test_a_class_answers_whole_turns(tmp_path: Path, qwen3: Path) -> None:
    run = gradus.grpo(qwen3, ROWS, environment=Counting, output_dir=tmp_path / "run", **KEYS)
    assert run.finished and Counting.made >= 32
    turns = run.metrics["environment/turns"][-1]
    assert turns is not None and turns > 1 and run.metrics["environment/failed"] == [0.0, 0.0]
    rows = list(run.completions)
    of = [row["episode"] for row in rows]
    assert all(episode["opening"].startswith("Number ") for episode in of)
    whole = [row for row, episode in zip(rows, of) if episode["end"] == "done"]
    assert whole
    for row in whole:
        turns = row["episode"]["turns"]
        expected = sum(len(turn["text"]) % 3 for turn in turns) + row["episode"]["reward"]
        assert row["reward"] == pytest.approx(expected)
    # It does not declare its answers deterministic, so a resumed run uses the recorded ones: the bits are the same.
    again = gradus.grpo(qwen3, ROWS, environment=Counting, output_dir=tmp_path / "again", **ONCE)
    more = gradus.resume(again.path, environment=Counting, max_steps=2)
    assert weights(more) == weights(run)


def test_rewards_read_the_environments_of_the_episodes(tmp_path: Path, qwen3: Path) -> None:
    scored: list[float] = []

    def of_environments(prompts: list[Any], environments: list[Counting], **rest: Any) -> list[float]:
        assert "environments" not in rest
        assert len({id(one) for one in environments}) == len(prompts) == 16
        for prompt, one in zip(prompts, environments):
            assert prompt[-1]["content"] in (f"Let us play. Number {one.secret}.", f"Let us play. Number {one.secret + 1}.")
        # After the episode, the object has all turns.
        values = [float(one.secret + len(one.turns)) for one in environments]
        scored.extend(values)
        return values

    async def of_others(completions: list[Any], **rest: Any) -> list[float]:
        assert "environments" not in rest
        # Each turn and each answer is a message, as in TRL.
        for completion in completions:
            assert {message["role"] for message in completion[0::2]} == {"assistant"}
            assert all(message == {"role": "user", "content": "go on"} for message in completion[1::2])
        assert any(len(completion) > 1 for completion in completions)
        return [0.0] * len(completions)

    rewards: list[Callable[..., Any]] = [of_environments, of_others]
    run = gradus.grpo(qwen3, ROWS, environment=Counting, reward=rewards, output_dir=tmp_path / "run", **ONCE)
    assert len(scored) == 16 and max(scored) > 3
    assert run.metrics["rewards/python/of_environments/mean"][0] == pytest.approx(sum(scored) / 16)
    # Recorded answers have no objects, so a resumed run plays its episodes again.
    more = gradus.resume(run.path, environment=Counting, reward=rewards, max_steps=2)
    assert more.finished and len(scored) == 32
    with pytest.raises(gradus.RewardError, match="needs an argument `environments`"):
        gradus.grpo(qwen3, ROWS, reward=of_environments, output_dir=tmp_path / "without", **ONCE)


def test_environments_that_rewards_read_are_not_replayed() -> None:
    from gradus._callables import Callables

    def of_environments(environments: list[Any]) -> list[float]:
        return [0.0 for _ in environments]

    for reward, expected in ((of_environments, True), (lambda completions, **_: [0.0 for _ in completions], False)):
        callables = Callables()
        callables.reward(reward, None, None)
        callables.environment(Counting)
        callables.connect()
        assert [one.deterministic for kind, _, one in callables.registered if kind == "environment"] == [expected]


def lookup(word: str) -> str:
    """Looks a word up.

    Args:
        word: The word.
    """
    if word == "hat":
        raise KeyError(word)
    return {"tea": "a drink"}.get(word, "nothing")


class Shelf:
    """An environment whose methods are its tools, as in TRL."""

    def reset(self, **row: Any) -> None:
        self.calls = 0

    def count(self, things: int) -> int:
        """Counts.

        Args:
            things: How many.
        """
        self.calls += 1
        return things + 1

    def get_reward(self) -> float:
        return float(self.calls)

    def _private(self) -> None: ...


def test_calls_of_tools_are_answered() -> None:
    tool = Tool(lookup)
    assert tool({"word": "tea"}) == "a drink"
    environment = Environment({"one": Shelf})
    assert [tool.name for tool in environment.tools] == ["count"]
    episode = environment.begin("step 1", 5, {"environment": "one"})
    assert (episode.opening, episode.steps, episode.finish()) == (None, False, 0.0)
    assert episode.tools[0]({"things": 2}) == "3" and episode.finish() == 1.0
    with pytest.raises(ValueError, match="the column `environment` of step 2 is `two`, but there are `one`"):
        environment.begin("step 2", 5, {"environment": "two"})


def test_tools_stand_beside_those_of_gradus(tmp_path: Path, qwen3: Path) -> None:
    small = tmp_path / "small"
    gradus.new_model(family="qwen3", tokenizer=qwen3, output=small, set="max_position_embeddings=2048")
    reward: Any = {"rule": {"length": {"target": 5}}}
    keys: Any = {**KEYS, "max_steps": 1, "episode_tool_calls": "hermes", "max_new_tokens": 20}
    run = gradus.grpo(small, ROWS, tools=[lookup, {"calculator": {}}], reward=reward, output_dir=tmp_path / "run", **keys)
    prompt = next(iter(run.completions))["prompt"]
    assert '"name": "lookup"' in prompt and "Looks a word up." in prompt and '"name": "calculator"' in prompt
    # Transformers writes the type of the result behind the arguments.
    assert '"required": ["word"]}, "return": {"type": "string"}}}' in prompt
    assert "tools/call_frequency" in run.metrics
    shelves = gradus.grpo(small, ROWS, environment={"one": Shelf}, output_dir=tmp_path / "shelves", **keys)
    assert '"name": "count"' in next(iter(shelves.completions))["prompt"]
    assert shelves.metrics["reward"] == [0.0]


class Misspelled:
    """An environment whose answer has an unknown key."""

    def step(self, text: str) -> dict[str, Any]:
        return {"rewrd": 1, "done": True}


def test_an_unknown_key_of_an_answer_is_refused() -> None:
    episode = Environment(Misspelled).begin("step 1", 5, {})
    with pytest.raises(TypeError, match="`step` returned a dict with `rewrd`, but its keys are `replies`, `reward`, `done`, `metrics`"):
        episode.step({"text": "a"})


class Broken:
    def reset(self) -> None: ...

    def step(self, text: str) -> str:
        raise RuntimeError("out of paper")


class Forgetful:
    def reset(self, nobody_has_this: int) -> None: ...

    def step(self, text: str) -> Any:
        return 3


def sft_config(folder: Path, model: Path) -> Path:
    """A configuration of a method that does not sample."""
    (folder / "rows.jsonl").write_text('{"text": "a"}\n')
    file = folder / "sft.yml"
    file.write_text(f"model: {model}\ndata: {folder / 'rows.jsonl'}\nmethod: {{ sft: {{}} }}\n")
    return file


def test_an_exception_stops_the_run_with_its_traceback(tmp_path: Path, qwen3: Path) -> None:
    with pytest.raises(RuntimeError, match="out of paper") as raised:
        gradus.grpo(qwen3, ROWS, environment=Broken, output_dir=tmp_path / "broken", **KEYS)
    notes = raised.value.__notes__
    assert any("raised by the environment in the episode of step 1, prompt " in note for note in notes), notes
    assert any(entry.name == "step" for entry in raised.traceback)
    with pytest.raises(TypeError, match="needs an argument `nobody_has_this`"):
        gradus.grpo(qwen3, ROWS, environment=Forgetful, output_dir=tmp_path / "forgetful", **KEYS)
    with pytest.raises(gradus.ConfigError, match="environment"):
        gradus.run(sft_config(tmp_path, qwen3), environment=Counting, output_dir=tmp_path / "sft", progress=False)


def test_trl_takes_tools_and_environments(tmp_path: Path, qwen3: Path) -> None:
    import gradus.trl as trl

    args = trl.GRPOConfig(
        output_dir=str(tmp_path / "run"),
        max_steps=1,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=1,
        num_generations=4,
        max_completion_length=40,
        max_tool_calling_iterations=1,
        report_to="none",
    )
    rows = [{"prompt": row["messages"], "secret": row["secret"]} for row in ROWS]
    trainer = trl.GRPOTrainer(str(qwen3), args=args, train_dataset=rows, environment_factory=Counting)
    trainer.train()
    config = (tmp_path / "run" / "config.yml").read_text()
    assert "max_turns: 2" in config
    assert list(trainer.run.completions)[0]["episode"]["opening"].startswith("Number ")
    with pytest.raises(gradus.ConfigError, match="completions need a reward"):
        trl.GRPOTrainer(str(qwen3), args=args, train_dataset=rows)
