"""Models in memory, commands, metrics and training primitives."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gradus
import numpy
import pytest
from conftest import REPOSITORY, command


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_completions_are_those_of_the_command_line(gpt2: Path) -> None:
    words = ["The kettle", "A bird"]
    flags = ["--group-size", "3", "--max-new-tokens", "8", "--temperature", "0.7", "--top-k", "20", "--seed", "5"]
    there = lines(command("generate", "--model", gpt2, *(f"--prompt={word}" for word in words), *flags).stdout)
    here = gradus.load(gpt2).generate(words, group_size=3, max_new_tokens=8, temperature=0.7, top_k=20, seed=5)
    assert len(here) == len(there) == 6
    for one, other in zip(here, there):
        assert {**one, "logprobs": None} == {**other, "logprobs": None}
        assert one["logprobs"].dtype == numpy.float32
        assert (one["logprobs"] == numpy.float32(other["logprobs"])).all()


def test_a_single_text_gives_a_single_completion(gpt2: Path) -> None:
    model = gradus.load(gpt2)
    one = model.generate("The kettle", max_new_tokens=4, temperature=0)
    assert str(one) == one["completion"] and one["prompt"] == "The kettle"
    ids = model.encode("The kettle")
    assert model.generate([ids], max_new_tokens=4, temperature=0)[0]["completion_ids"] == one["completion_ids"]
    assert model.generate([numpy.array(ids)], max_new_tokens=4, temperature=0)[0]["completion_ids"] == one["completion_ids"]
    assert model.decode(ids) == "The kettle"


def test_streams_join_to_the_completion(qwen3: Path) -> None:
    model = gradus.load(qwen3)
    messages = [{"role": "user", "content": "hello"}]
    whole = model.chat(messages, max_new_tokens=12, seed=2)
    assert "".join(model.stream(messages, max_new_tokens=12, seed=2)) == whole["content"]
    assert model.chat("hello", max_new_tokens=12, seed=2) == whole
    # Two concurrent streams do not affect each other, and a dropped stream is released.
    one, two = (model.stream(messages, max_new_tokens=12, seed=seed) for seed in (2, 3))
    pieces = [next(one, ""), next(two, "")]
    del two
    assert "".join([pieces[0], *one]) == whole["content"]


def test_logprobs_of_texts_outside_lists_are_refused(gpt2: Path) -> None:
    with pytest.raises(TypeError, match=r"`prompts` is one text, but a list is needed, such as `\['Once'\]`"):
        gradus.load(gpt2).logprobs("Once", [" more"])
    with pytest.raises(TypeError, match="`completions` is a `dict`, but a list is needed"):
        gradus.load(gpt2).logprobs(["Once"], {"a": 1})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="`completions` is one text"):
        gradus.load(gpt2).logprobs(["Once"], " upon")
    with pytest.raises(TypeError, match=r"`prompts` is a `generator`, but a list is needed: pass `list\(prompts\)`"):
        gradus.load(gpt2).logprobs((text for text in ["Once"]), [" upon"])  # type: ignore[arg-type]


def test_logprobs_beyond_the_positions_name_both_lengths(gpt2: Path) -> None:
    # The model has 192 positions.
    with pytest.raises(ValueError, match="row 2 has 3 tokens of a prompt and 190 of a completion, but the model has 192 positions"):
        gradus.load(gpt2).logprobs([[1], [1, 2, 3]], [[2], [4] * 190])


def test_logprobs_are_those_of_sampling(gpt2: Path) -> None:
    model = gradus.load(gpt2)
    found = model.generate(["The kettle", "A bird"], max_new_tokens=6, temperature=1.0)
    again = model.logprobs([one["prompt"] for one in found], [one["completion_ids"] for one in found])
    for one, logprobs in zip(found, again):
        numpy.testing.assert_allclose(logprobs, one["logprobs"], rtol=0, atol=2e-5)


def test_wrong_settings_are_refused(gpt2: Path) -> None:
    model = gradus.load(gpt2)
    with pytest.raises(TypeError, match="did you mean `temperature`"):
        model.generate("a", temprature=1.0)
    with pytest.raises(TypeError, match="unknown argument `max_tokens`: it is `max_new_tokens` here"):
        model.generate("a", max_tokens=3)
    with pytest.raises(TypeError, match="`num_return_sequences`: it is `group_size` here"):
        list(model.stream("a", num_return_sequences=3))
    with pytest.raises(ValueError, match="`top_p` is 2, but must be above 0 and at most 1"):
        model.generate("a", top_p=2.0)
    with pytest.raises(TypeError, match="`top_k` cannot be a `str`"):
        model.generate("a", top_k="many")
    for number in (-1, 2**70):
        with pytest.raises(ValueError, match=f"`max_new_tokens` is {number}, which is below 0 or too large"):
            model.generate("a", max_new_tokens=number)
    with pytest.raises(ValueError, match="`seed` is -1, but must be at least 0"):
        model.generate("a", seed=-1)
    with pytest.raises(ValueError, match="`seed` is -1"):
        gradus.Trainer(gpt2, seed=-1)
    with pytest.raises(TypeError, match=r"`prompts` holds token ids.*pass `\[ids\]`"):
        model.generate([1, 2, 3])
    several: Any = ["Hi"]
    with pytest.raises(TypeError, match="`text` is a `list`, but one text is expected"):
        model.encode(several)
    with pytest.raises(ValueError, match="`ids` has 1000000 at place 2"):
        model.decode([1, 10**6])
    with pytest.raises(TypeError, match="unknown argument `torch_dtype`: it is `weights` here"):
        gradus.load(gpt2, torch_dtype="bf16")
    with pytest.raises(TypeError, match="unknown argument `wieghts`: `load` takes `adapter`, `weights`"):
        gradus.load(gpt2, wieghts="bf16")
    with pytest.raises(AttributeError, match="has no attribute 'save_pretrained': a loaded model already has files"):
        getattr(model, "save_pretrained")
    assert not hasattr(model, "push_to_hub") and not hasattr(model, "nothing")
    with pytest.raises(AttributeError) as caught:
        getattr(model, "generat")
    # Python suggests `generate` from these.
    assert (caught.value.name, caught.value.obj) == ("generat", model)
    with pytest.raises(ValueError, match="message 1"):
        model.chat([{"content": "no role"}])
    with pytest.raises(gradus.ModelError):
        gradus.load("/nowhere/at/all")
    with pytest.raises(ValueError, match="`weights` is `f64`"):
        gradus.load(gpt2, weights="f64")


def test_scores_are_those_of_the_command_line(tmp_path: Path, qwen3: Path, reward_model: Path) -> None:
    rows = [{"prompt": "a b", "completion": " c d"}, {"prompt": "e", "completion": " f g h"}]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    there = lines(command("score", "--model", qwen3, "--data", data).stdout)
    assert gradus.load(qwen3).score(rows) == there
    there = lines(command("score", "--reward-model", reward_model, "--data", data).stdout)
    assert gradus.score(rows, reward_model=reward_model) == there


def test_models_are_written(tmp_path: Path, gpt2: Path) -> None:
    report = gradus.quantize(gpt2, "int8", tmp_path / "int8", max_new_tokens=4)
    assert report["format"] == "int8" and (tmp_path / "int8" / "config.json").exists()
    exported = gradus.load(gpt2).export(tmp_path / "model.gguf", weights="f32")
    assert exported["tensors"] > 10 and (tmp_path / "model.gguf").stat().st_size > 1000
    with pytest.raises(gradus.InputError):
        gradus.export(gpt2, tmp_path / "model.gguf")
    made = tmp_path / "tiny"
    gradus.new_model(made, family="llama", tokenizer=gpt2)
    assert gradus.load(made).vocab_size > 0


def test_a_model_with_an_adapter_is_not_quantized_without_it(tmp_path: Path, gpt2: Path, texts: Any) -> None:
    keys: Any = {"lora_rank": 2, "lora_targets": "all-linear", "max_steps": 1, "eval_fraction": 0.0, "progress": False}
    run = gradus.sft(gpt2, texts, output_dir=tmp_path / "run", **keys)
    model = gradus.load(gpt2, adapter=run.model_path)
    with pytest.raises(gradus.InputError, match="was loaded with the adapter") as raised:
        model.quantize("int8", tmp_path / "int8")
    assert "model.merge" in str(raised.value.hint)
    assert not (tmp_path / "int8").exists()


TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"


def test_options_of_a_loaded_model_reach_scores_evaluations_and_training(tmp_path: Path, gpt2: Path) -> None:
    rows = [{"prompt": [{"role": "user", "content": "Hi"}], "completion": [{"role": "assistant", "content": "Hello"}]}]
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE)
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(gpt2 / name, bare)
    model = gradus.load(bare, tokenizer=gpt2, chat_template=template)
    expected = gradus.score(rows, model=gpt2, chat_template=template)
    assert model.score(rows) == expected == gradus.score(rows, model=model)
    assert model.evaluate(rows)["loss"] == gradus.evaluate(model, rows)["loss"]
    run = gradus.sft(model, rows, output_dir=tmp_path / "run", max_steps=1, eval_fraction=0.0, progress=False)
    assert run.finished
    with pytest.raises(TypeError, match="`reference_model` is a `Model`"):
        gradus.evaluate(gpt2, rows, reference_model=model)


def test_quantized_weights_are_not_measured_as_others(tmp_path: Path, gpt2: Path, texts: Any) -> None:
    model = gradus.load(gpt2, weights="int8")
    with pytest.raises(gradus.InputError, match='`weights="int8"`, but `score` reads the weights of its files'):
        model.score(texts)
    with pytest.raises(gradus.InputError, match="but `evaluate` reads"):
        model.evaluate(texts)
    with pytest.raises(gradus.InputError, match="but training reads"):
        gradus.sft(model, texts, output_dir=tmp_path / "run", max_steps=1)
    with pytest.raises(gradus.ConfigError, match="`weights` is `nf4`, but without `lora`"):
        gradus.Trainer(gpt2, weights="nf4")
    assert gradus.Trainer(gpt2, weights="nf4", lora=2).version == 0


def test_the_rows_of_an_evaluation_may_be_named_as_in_a_configuration(tmp_path: Path, gpt2: Path) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text('{"prompt": "a b", "completion": " c d"}\n')
    assert gradus.evaluate(gpt2, {"from": str(data)}) == gradus.evaluate(gpt2, data)
    with pytest.raises(gradus.ConfigError, match="`data.task` is the word `nothing`"):
        gradus.evaluate(gpt2, {"task": "nothing"})


def test_prompts_that_are_none_are_said(gpt2: Path) -> None:
    model = gradus.load(gpt2)
    nothing: Any = None
    with pytest.raises(TypeError, match="`prompts` is a `NoneType`"):
        model.generate(nothing)
    with pytest.raises(TypeError, match="pass `\\[conversation\\]`"):
        model.generate([{"role": "user", "content": "Hello"}])


def test_commands_are_refused_with_their_text(gpt2: Path) -> None:
    with pytest.raises(gradus.UsageError, match="unexpected argument .wieghts"):
        gradus.export(gpt2, "x.gguf", wieghts="f32")


def test_the_machine_and_the_keys() -> None:
    assert gradus.doctor()["threads"] >= 1
    keys = gradus.explain("train.learning_rate")
    assert any("learning_rate" in json.dumps(key) for key in keys)


def test_metrics_have_the_values_of_the_tools() -> None:
    found = gradus.metrics.compute(
        "rouge",
        ["the cat sat on the mat", "it rains"],
        [["the cat sat on a mat", "a cat was on the mat"], "it is raining today"],
    )
    assert found.keys() == {"rouge1", "rouge2", "rougeL", "rougeLsum"}
    with pytest.raises(TypeError, match="a list of texts is expected"):
        gradus.metrics.compute("rouge", "a cat", "a cat")
    bleu = gradus.metrics.compute("sacre_bleu", ["the cat sat on the mat"], ["the cat sat on the mat"])
    assert float(bleu) == pytest.approx(1.0) and bleu.rows["sacre_bleu"] == pytest.approx([1.0])
    with pytest.raises(gradus.InputError, match="no metric is called `rogue`"):
        gradus.metrics.compute("rogue", ["a"], ["b"])
    with pytest.raises(gradus.InputError, match="no references"):
        gradus.metrics.compute("rouge", ["a"])
    with pytest.raises(gradus.InputError, match="no column `prompt`, which must hold the document"):
        gradus.metrics.compute("summac_zs", ["a"], model="none")
    with pytest.raises(ValueError, match="`predictions` has 1 entries, but `references` has 2"):
        gradus.metrics.compute("rouge", ["a"], ["b", "c"])
    assert float(gradus.metrics.compute("chrf", ["abc"], ["abd"], word_order=2)) < 1


FIXTURE = REPOSITORY / "crates/gradus/tests/fixtures/parity/trainer/fixture.json"


def test_the_primitives_are_those_of_torch(gpt2: Path) -> None:
    fixture = json.loads(FIXTURE.read_text())
    assert len(fixture["cases"]) == 5
    for case in fixture["cases"]:
        trainer = gradus.Trainer(gpt2)
        data = [
            gradus.Datum(
                datum["prompt"],
                numpy.array(datum["completion"]),
                numpy.array(datum["weights"], dtype=numpy.float32),
                datum["old_logprobs"],
            )
            for datum in case["data"]
        ]
        constants = {name: value for name, value in case.items() if name in ("low", "high", "beta")}
        for step in case["steps"]:
            # Two calls add up to the result of one.
            parts = [trainer.forward_backward(part, case["loss"], **constants) for part in (data[:1], data[1:])]
            assert sum(part.loss for part in parts) == pytest.approx(step["loss"], rel=1e-4, abs=1e-4)
            for logprobs, expected in zip([one for part in parts for one in part.logprobs], step["logprobs"]):
                numpy.testing.assert_allclose(logprobs, expected, rtol=0, atol=1e-4)
            done = trainer.optim_step(fixture["learning_rate"], max_grad_norm=fixture["max_grad_norm"])
            assert done.grad_norm == pytest.approx(step["grad_norm"], rel=1e-3)
        assert trainer.version == len(case["steps"])


def test_reinforce_in_thirty_lines(tmp_path: Path, gpt2: Path) -> None:
    trainer = gradus.Trainer(gpt2, seed=1)
    prompt = trainer.encode("The kettle")
    means = []
    for step in range(20):
        samples = trainer.sample([prompt], group_size=16, seed=step, max_new_tokens=8)
        # Even ids are rewarded.
        rewards = numpy.array([numpy.mean([token % 2 == 0 for token in sample.ids]) for sample in samples])
        advantages = rewards - rewards.mean()
        data = [
            gradus.Datum(prompt, sample.ids, numpy.full(len(sample.ids), advantage / len(samples)), sample.logprobs)
            for sample, advantage in zip(samples, advantages)
        ]
        found = trainer.forward_backward(data, "importance_sampling")
        # The sampling policy is the training policy.
        for sample, logprobs in zip(samples, found.logprobs):
            numpy.testing.assert_allclose(logprobs, sample.logprobs, rtol=0, atol=2e-5)
        trainer.optim_step(1e-2)
        means.append(rewards.mean())
    assert means[-1] > means[0] + 0.3, means
    for _ in range(2):
        trainer.save(tmp_path / "model")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(gradus.InputError, match="holds no model"):
        trainer.save(tmp_path / "other")
    assert (tmp_path / "other" / "notes.txt").exists()
    assert gradus.load(tmp_path / "model").generate("The", max_new_tokens=1)["completion_ids"]


def test_dro_is_the_policy_gradient_with_a_penalty(gpt2: Path) -> None:
    trainer = gradus.Trainer(gpt2)
    prompt, completion = [3, 4], [5, 6, 7]
    logprobs = trainer.logprobs([prompt], [completion])[0]
    shift = numpy.array([0.5, -1.0, 0.25])
    advantages = numpy.array([1.0, -2.0, 0.0])
    data = [gradus.Datum(prompt, completion, advantages, logprobs - shift)]
    for constants, beta in (({}, 0.05), ({"beta": 0.5}, 0.5)):
        expected = -(advantages * logprobs - beta / 2 * shift**2).sum()
        assert trainer.forward_backward(data, "dro", **constants).loss == pytest.approx(expected, rel=1e-4)


def test_the_bounds_of_a_loss_have_the_defaults_of_tinker(gpt2: Path) -> None:
    trainer = gradus.Trainer(gpt2)
    prompt, completion = [3, 4], [5, 6, 7]
    logprobs = trainer.logprobs([prompt], [completion])[0]
    shift = numpy.log(numpy.array([6.0, 2.0, 0.1]))
    advantages = numpy.array([1.0, -2.0, 0.5])
    data = [gradus.Datum(prompt, completion, advantages, logprobs - shift)]
    for constants, ratios in (
        ({}, [4.0, 2.0, 0.1]),
        ({"high": 1.5}, [1.5, 1.5, 0.1]),
        ({"low": 0.8}, [4.0, 2.0, 0.8]),
    ):
        expected = -(advantages * ratios * logprobs).sum()
        assert trainer.forward_backward(data, "cispo", **constants).loss == pytest.approx(expected, rel=1e-4)
    # min(r·A, clip(r, 0.8, 1.2)·A)
    expected = -(1.2 * 1.0 + 2.0 * -2.0 + 0.1 * 0.5)
    assert trainer.forward_backward(data, "ppo").loss == pytest.approx(expected, rel=1e-4)
    with pytest.raises(ValueError, match="`low` is 2, but `high` is only 1.2"):
        trainer.forward_backward(data, "ppo", low=2)


def test_a_step_that_would_destroy_the_policy_is_refused(gpt2: Path) -> None:
    trainer = gradus.Trainer(gpt2)
    with pytest.raises(gradus.InputError, match="there is no gradient") as raised:
        trainer.optim_step(1e-3)
    assert "forward_backward" in str(raised.value.hint)
    trainer.forward_backward([gradus.Datum([3], [4, 5], [1.0, 1.0])], "cross_entropy")
    for learning_rate in (float("nan"), float("inf"), -1e-3):
        with pytest.raises(gradus.InputError, match="`learning_rate` is"):
            trainer.optim_step(learning_rate)
    with pytest.raises(gradus.InputError, match="`max_grad_norm` is -1.0, but a number of at least 0 is needed"):
        trainer.optim_step(1e-3, max_grad_norm=-1.0)
    assert trainer.version == 0
    assert trainer.optim_step(1e-3).grad_norm > 0
    with pytest.raises(gradus.InputError, match=r"`betas\[0\]` is 2.0, but a number from 0 to below 1 is needed"):
        gradus.Trainer(gpt2, betas=(2.0, 3.0))
    with pytest.raises(gradus.InputError, match="`weight_decay` is -1.0"):
        gradus.Trainer(gpt2, weight_decay=-1)


def test_ids_that_are_none_are_named(gpt2: Path) -> None:
    model, trainer = gradus.load(gpt2), gradus.Trainer(gpt2)
    with pytest.raises(gradus.InputError, match="prompt 2 has -1 at place 1"):
        model.generate(["a", [-1, 2]])
    with pytest.raises(gradus.InputError, match="prompt 1 has `1.5` at place 2, but token ids are whole numbers"):
        model.generate([[1, 1.5]])
    with pytest.raises(gradus.InputError, match="completion 1 has -1"):
        model.logprobs([[1]], [[-1]])
    with pytest.raises(gradus.InputError, match="`completion` of datum 1 has -100 at place 2"):
        trainer.forward_backward([gradus.Datum([3], [4, -100], [1.0, 1.0])], "cross_entropy")
    with pytest.raises(gradus.InputError, match="`weights` of datum 1 is a `NoneType`"):
        trainer.forward_backward([gradus.Datum([3], [4], None)], "cross_entropy")
    with pytest.raises(TypeError, match="`stop_ids` end them"):
        trainer.sample([[3]], stop=["x"])


def test_a_bad_datum_is_named(gpt2: Path) -> None:
    trainer = gradus.Trainer(gpt2)
    with pytest.raises(gradus.InputError, match="datum 1 has 1 `weights`, but its completion has 2 ids"):
        trainer.forward_backward([gradus.Datum([3], [4, 5], [1.0])], "cross_entropy")
    with pytest.raises(ValueError, match="`loss` is `mse`"):
        trainer.forward_backward([], "mse")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`lora`"):
        gradus.Trainer(gpt2, lora={"rnak": 3})
