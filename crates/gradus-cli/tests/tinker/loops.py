"""Training loops over Tinker's public client, as its cookbook writes them, against `gradus serve --training-api`.

`TINKER_BASE_URL` names the server. Each function is a test; the arguments say which are run.
"""

import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tinker
import torch
from tinker import types

os.environ.setdefault("TINKER_API_KEY", "tml-local")
BASE = os.environ.get("TINKER_TEST_MODEL", "qwen3")
FOLDER = os.environ["TINKER_TEST_FOLDER"]
ADAM = types.AdamParams(learning_rate=1e-2)


def text_datum(ids, weights=None):
    """A text that is learned from its first id on, or as `weights` say."""
    weights = [1.0] * (len(ids) - 1) if weights is None else weights
    return types.Datum(
        model_input=types.ModelInput.from_ints(list(ids[:-1])),
        loss_fn_inputs={
            "target_tokens": types.TensorData.from_numpy(np.array(ids[1:], dtype=np.int64)),
            "weights": types.TensorData.from_numpy(np.array(weights, dtype=np.float32)),
        },
    )


def rl_datum(prompt, completion, logprobs, advantage):
    ids = list(prompt) + list(completion)
    before = len(prompt) - 1
    return types.Datum(
        model_input=types.ModelInput.from_ints(ids[:-1]),
        loss_fn_inputs={
            "target_tokens": types.TensorData.from_numpy(np.array(ids[1:], dtype=np.int64)),
            "logprobs": types.TensorData.from_numpy(np.array([0.0] * before + list(logprobs), dtype=np.float32)),
            "advantages": types.TensorData.from_numpy(
                np.array([0.0] * before + [advantage] * len(completion), dtype=np.float32)
            ),
        },
    )


def step(client, data, loss="cross_entropy", adam=ADAM, config=None):
    """The two requests of a step are sent before either is waited for."""
    forward = client.forward_backward(data, loss, config)
    optim = client.optim_step(adam)
    found, _ = forward.result(), optim.result()
    return found


def model(service, **keys):
    keys = {"base_model": BASE, "rank": 4, "seed": 7, **keys}
    return service.create_lora_training_client(**keys).result()


def session():
    """What a client does before it trains."""
    client = tinker.RestClient()
    supported = client.get_server_capabilities().result().supported_models
    assert [of.model_name for of in supported if of.model_name == BASE] == [BASE], supported
    service = tinker.ServiceClient(user_metadata={"test": "session"})
    training = model(service)
    info = training.get_info()
    assert info.model_data.model_name == BASE and info.lora_rank == 4 and info.is_lora, info
    tokenizer = training.get_tokenizer()
    ids = tokenizer.encode("The tea is warm.")
    assert tokenizer.decode(ids) == "The tea is warm.", ids
    service.close("success").result()


def supervised():
    """Cross-entropy on a few texts; checkpoints; going on from one; sampling from it."""
    service = tinker.ServiceClient()
    training = model(service)
    tokenizer = training.get_tokenizer()
    texts = ["The tea is warm.", "The cup is full.", "The pot is new."]
    data = [text_datum(tokenizer.encode(text)) for text in texts]
    losses = [step(training, data).metrics["loss:sum"] for _ in range(12)]
    assert losses[-1] < 0.5 * losses[0], losses

    saved = training.save_state("half").result().path
    assert saved == f"tinker://{training.model_id}/weights/half", saved
    later = [step(training, data).metrics["loss:sum"] for _ in range(2)]
    # From the checkpoint with its optimizer the same steps give the same bits.
    again = service.create_training_client_from_state_with_optimizer(saved).result()
    assert [step(again, data).metrics["loss:sum"] for _ in range(2)] == later
    # Without it the moments begin anew.
    fresh = service.create_training_client_from_state(saved).result()
    first = [step(fresh, data).metrics["loss:sum"] for _ in range(2)]
    assert first[0] == later[0] and first[1] != later[1], (first, later)

    path = training.save_weights_for_sampler("sampler").result().path
    sampler = service.create_sampling_client(model_path=path).result()
    prompt = types.ModelInput.from_ints(tokenizer.encode("The tea is"))
    params = types.SamplingParams(max_tokens=8, temperature=0.0)
    found = sampler.sample(prompt, 1, params).result().sequences[0]
    assert "warm" in tokenizer.decode(found.tokens), tokenizer.decode(found.tokens)
    rest = tinker.RestClient()
    runs = rest.list_training_runs().result()
    assert training.model_id in [run.training_run_id for run in runs.training_runs], runs
    assert saved in [of.tinker_path for of in rest.list_user_checkpoints().result().checkpoints]
    assert training.model_id.split(":")[0] in rest.list_sessions().result().sessions
    listed = rest.list_checkpoints(training.model_id).result().checkpoints
    assert sorted(of.tinker_path for of in listed) == sorted([saved, path]), listed
    info = rest.get_weights_info_by_tinker_path(saved).result()
    assert (info.base_model, info.lora_rank) == (BASE, 4), info
    try:
        training.save_state("half").result()
        raise AssertionError("a checkpoint was written over")
    except tinker.RequestFailedError as error:
        assert "exists already" in str(error) and error.category == types.RequestErrorCategory.User
    training.save_state("half", overwrite=True).result()


def reinforcement():
    """Groups of completions, their rewards less the mean of the group, and each loss for it."""
    service = tinker.ServiceClient()
    reward = lambda ids: sum(i < 48 for i in ids) / max(len(ids), 1)
    prompt = [5, 40, 9]
    for loss, config in [
        ("importance_sampling", None),
        ("ppo", {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}),
        ("cispo", None),
        ("dro", {"beta": 0.05}),
    ]:
        training = model(service)
        means = []
        for i in range(16):
            sampler = training.save_weights_and_get_sampling_client().result()
            params = types.SamplingParams(max_tokens=8, seed=i, temperature=1.0)
            found = sampler.sample(types.ModelInput.from_ints(prompt), 16, params).result()
            assert len({of.sequence_id for of in found.sequences}) == 16
            rewards = [reward(of.tokens) for of in found.sequences]
            mean = sum(rewards) / len(rewards)
            data = [
                rl_datum(prompt, of.tokens, of.logprobs, r - mean) for of, r in zip(found.sequences, rewards)
            ]
            told = step(training, data, loss, config=config)
            # The sampler's log-probabilities are the trainer's.
            if i == 0:
                for of, out in zip(found.sequences, told.loss_fn_outputs):
                    own = out["logprobs"].to_numpy()[len(prompt) - 1 :]
                    assert np.abs(own - np.array(of.logprobs)).max() < 2e-4, loss
            means.append(mean)
        assert sum(means[-3:]) > sum(means[:3]) + 0.2, (loss, means)


def distillation():
    """On-policy: the student samples, the teacher says what it thinks of the sample, and the difference is the advantage."""
    service = tinker.ServiceClient()
    teacher_training = model(service, rank=8)
    teach = [text_datum([5, 40, 9] + [11 + (i + j) % 8 for j in range(8)]) for i in range(8)]
    for _ in range(10):
        step(teacher_training, teach)
    teacher = teacher_training.save_weights_and_get_sampling_client().result()
    student_training = model(service)
    prompt, kls = [5, 40, 9], []
    for i in range(20):
        student = student_training.save_weights_and_get_sampling_client().result()
        params = types.SamplingParams(max_tokens=8, seed=i)
        found = student.sample(types.ModelInput.from_ints(prompt), 16, params).result().sequences
        data, kl = [], []
        futures = [teacher.compute_logprobs(types.ModelInput.from_ints(prompt + list(of.tokens))) for of in found]
        for of, future in zip(found, futures):
            thought = future.result()
            assert thought[0] is None and len(thought) == len(prompt) + len(of.tokens)
            reverse = np.array(of.logprobs) - np.array(thought[len(prompt) :])
            kl.append(reverse.mean())
            datum = rl_datum(prompt, of.tokens, of.logprobs, 0.0)
            advantages = np.array([0.0] * (len(prompt) - 1) + list(-reverse), dtype=np.float32)
            datum.loss_fn_inputs["advantages"] = types.TensorData.from_numpy(advantages)
            data.append(datum)
        step(student_training, data, "importance_sampling")
        kls.append(float(np.mean(kl)))
    assert sum(kls[-3:]) < 0.7 * sum(kls[:3]), kls


def custom():
    """A loss of the client's own: DPO between two halves of the data. And top-K targets."""
    service = tinker.ServiceClient()
    training = model(service)
    pairs = [([5, 40, 9, 11, 12, 13], [5, 40, 9, 20, 21, 22])]
    data = [text_datum(ids) for pair in pairs for ids in pair]
    with_reference = [training.forward(data, "cross_entropy").result().loss_fn_outputs]
    reference = [torch.tensor(out["logprobs"].to_numpy()) for out in with_reference[0]]

    def dpo(data, logprobs):
        chosen = (logprobs[0] - reference[0]).sum()
        rejected = (logprobs[1] - reference[1]).sum()
        loss = -torch.nn.functional.logsigmoid(0.5 * (chosen - rejected))
        return loss, {"margin:mean": float((chosen - rejected).detach())}

    losses, margins = [], []
    for _ in range(6):
        future = training.forward_backward_custom(data, dpo)
        training.optim_step(ADAM).result()
        found = future.result()
        losses.append(found.metrics["loss:sum"])
        margins.append(found.metrics["margin:mean"])
    assert abs(losses[0] - np.log(2)) < 1e-5 and losses[-1] < 0.2 and margins[-1] > 1.0, (losses, margins)

    # Two targets at each id, as distillation over the likeliest ids has them.
    targets = np.array([[11, 12], [13, 14], [15, 16]], dtype=np.int64)
    weights = np.array([[0.25, 0.75], [0.5, 0.5], [1.0, 0.0]], dtype=np.float32)
    datum = types.Datum(
        model_input=types.ModelInput.from_ints([5, 40, 9]),
        loss_fn_inputs={
            "target_tokens": types.TensorData.from_numpy(targets),
            "weights": types.TensorData.from_numpy(weights),
        },
    )
    found = training.forward_backward([datum], "cross_entropy").result()
    logprobs = found.loss_fn_outputs[0]["logprobs"].to_numpy().reshape(3, 2)
    alone = training.forward([text_datum([5, 40, 9, 15])], "cross_entropy").result()
    assert abs(logprobs[2, 0] - alone.loss_fn_outputs[0]["logprobs"].to_numpy()[2]) < 1e-5
    assert abs(found.metrics["loss:sum"] + (logprobs * weights).sum()) < 1e-4
    training.optim_step(ADAM).result()


def sampling():
    """What samplers tell besides completions."""
    service = tinker.ServiceClient()
    sampler = service.create_sampling_client(base_model=BASE).result()
    tokenizer = sampler.get_base_model() and model(service).get_tokenizer()
    ids = tokenizer.encode("The tea is warm.")
    prompt = types.ModelInput.from_ints(ids)
    params = types.SamplingParams(max_tokens=6, seed=3)
    found = sampler.sample(prompt, 3, params, include_prompt_logprobs=True, topk_prompt_logprobs=4, topk_sample_logprobs=2)
    found = found.result()
    again = sampler.sample(prompt, 3, params).result()
    assert [of.tokens for of in found.sequences] == [of.tokens for of in again.sequences]
    assert found.prompt_logprobs[0] is None and len(found.prompt_logprobs) == len(ids)
    assert found.topk_prompt_logprobs[0] is None and all(len(of) == 4 for of in found.topk_prompt_logprobs[1:])
    for of in found.sequences:
        assert len(of.logprobs) == len(of.tokens) and len(of.topk_logprobs) == len(of.tokens)
    assert all(of is None for of in sampler.compute_logprobs(prompt, prompt_logprobs_last_n=2).result()[:-2])
    targets = torch.full((len(ids) - 1, 2), -1, dtype=torch.int64)
    targets[1, 0], targets[2, 1] = ids[2], 7
    for tensor in [types.TensorData.from_torch(targets), types.TensorData.from_torch_sparse(targets, pad_value=-1)]:
        told = sampler.sample(prompt, 1, types.SamplingParams(max_tokens=1), target_prompt_logprobs=tensor).result()
        scored = told.target_prompt_logprobs
        value = scored.to_torch()
        value = value.to_dense() if value.layout != torch.strided else value
        assert abs(float(value[1, 0]) - found.prompt_logprobs[2]) < 1e-5, value
    # A text that fills the model has log-probabilities, and no room for a completion.
    supported = tinker.RestClient().get_server_capabilities().result().supported_models
    longest = next(of.max_context_length for of in supported if of.model_name == BASE)
    full = types.ModelInput.from_ints([5] * longest)
    assert len(sampler.compute_logprobs(full).result()) == longest
    (none,) = sampler.sample(full, 1, params).result().sequences
    assert list(none.tokens) == [] and none.stop_reason == "length"
    stopped = sampler.sample(prompt, 1, types.SamplingParams(max_tokens=50, stop=[i for i in range(3, 320)])).result()
    assert len(stopped.sequences[0].tokens) == 1 and stopped.sequences[0].stop_reason == "stop"
    endless = sampler.sample(prompt, 1, types.SamplingParams(max_tokens=50, stop=[])).result()
    assert len(endless.sequences[0].tokens) == 50 and endless.sequences[0].stop_reason == "length"


def refused():
    """What makes no sense is refused with the right category, and the client can go on."""
    service = tinker.ServiceClient()
    training = model(service)
    good = text_datum([5, 40, 9, 11])
    tensor = lambda values, dtype: types.TensorData.from_numpy(np.array(values, dtype=dtype))

    def bad(ids=(5, 40, 9), **inputs):
        inputs = {"target_tokens": tensor([40, 9, 11], np.int64), "weights": tensor([1, 1, 1], np.float32), **inputs}
        inputs = {name: of for name, of in inputs.items() if of is not None}
        return types.Datum(model_input=types.ModelInput.from_ints(list(ids)), loss_fn_inputs=inputs)

    cases = [
        (bad(ids=(5, 40, 100_000)), "cross_entropy", "holds the id 100000"),
        (bad(target_tokens=tensor([40, 9, 100_000], np.int64)), "cross_entropy", "holds the id 100000"),
        (bad(target_tokens=tensor([40, 9, -2], np.int64)), "cross_entropy", "-2 is not a token"),
        (bad(ids=(5, 40)), "cross_entropy", "has the shape [3]"),
        (bad(weights=tensor([1, 1], np.float32)), "cross_entropy", "`weights` has the shape [2]"),
        (bad(weights=tensor([1, float("nan"), 1], np.float32)), "cross_entropy", "number 2 of `weights` is NaN"),
        (bad(weights=tensor([1, 1, 1], np.int64)), "cross_entropy", "`weights` has the type int64"),
        (bad(target_tokens=tensor([40, 9, 11], np.float32)), "cross_entropy", "`target_tokens` has the type float32"),
        (bad(target_tokens=None), "cross_entropy", "`target_tokens` is missing"),
        (bad(), "ppo", "`logprobs` is missing"),
        (bad(), "gspo", "`loss_fn` is `gspo`"),
        (bad(advantages=tensor([1, 1, 1], np.float32)), "cross_entropy", "has `advantages`"),
        (bad(ids=[3] * 300, target_tokens=tensor([3] * 300, np.int64), weights=None), "cross_entropy", "256"),
    ]
    for datum, loss, message in cases:
        future = training.forward_backward([good, datum], loss)
        optim = training.optim_step(ADAM)
        for each, expected in [(future, message), (optim, "the gradient is incomplete")]:
            try:
                each.result()
                raise AssertionError(f"not refused: {message}")
            except tinker.RequestFailedError as error:
                assert expected in str(error), (expected, error)
                assert error.category == types.RequestErrorCategory.User, error
    for params, message in [
        (types.AdamParams(learning_rate=float("inf")), "`learning_rate` is NaN"),
        (types.AdamParams(beta1=1.0), "`beta1` is 1"),
        (types.AdamParams(eps=-1.0), "`eps` is -1"),
    ]:
        training.forward_backward([good], "cross_entropy").result()
        try:
            training.optim_step(params).result()
            raise AssertionError(f"not refused: {message}")
        except (tinker.RequestFailedError, tinker.APIStatusError) as error:
            assert message in str(error), error
    try:
        training.optim_step(ADAM).result()
        raise AssertionError("a step without a gradient")
    except tinker.RequestFailedError as error:
        assert "there is no gradient" in str(error)
    assert step(training, [good]).metrics["loss:sum"] > 0
    for call, message in [
        (lambda: model(service, base_model="nothing"), "there is no base model `nothing`"),
        (lambda: service.create_sampling_client(model_path="tinker://x/weights/../y").result(), "not the address"),
        (lambda: service.create_training_client_from_state("tinker://x/weights/y").result(), "there is no checkpoint"),
        (lambda: model(service, rank=0), "`lora_config.rank` is 0"),
        (lambda: training.save_state("../x").result(), "cannot be the name of a checkpoint"),
    ]:
        try:
            call()
            raise AssertionError(f"not refused: {message}")
        except tinker.TinkerError as error:
            assert message in str(error), (message, error)


def many():
    """Eight clients at once lose nothing: each ends with the bits of one that was alone."""
    texts = [[5, 40, 9, 11 + i, 12, 13] for i in range(8)]

    def train(i):
        service = tinker.ServiceClient()
        training = model(service, seed=i, rank=2)
        losses = []
        for _ in range(6):
            losses.append(step(training, [text_datum(texts[i])]).metrics["loss:sum"])
            sampler = training.save_weights_and_get_sampling_client().result()
            found = sampler.sample(types.ModelInput.from_ints(texts[i][:3]), 2, types.SamplingParams(max_tokens=4, seed=i))
            losses.append([of.tokens for of in found.result().sequences])
        return losses

    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(train, range(8)))
    assert [train(i) for i in (0, 5)] == [together[0], together[5]]
    # A batch that is cut into chunks, which arrive in any order, is one batch.
    service = tinker.ServiceClient()
    data = [text_datum(texts[i % 8]) for i in range(2500)]
    training = model(service)
    found = training.forward_backward(data, "cross_entropy").result()
    assert len(found.loss_fn_outputs) == 2500
    whole = found.metrics["loss:sum"]
    alone = sum(training.forward([of], "cross_entropy").result().metrics["loss:sum"] for of in data[:8])
    assert abs(whole - alone * 2500 / 8) < 2e-4 * whole, (whole, alone)


def survives():
    """The server is killed and started again whenever this prints `now`; nothing changes but the time."""
    data = [text_datum([5, 40, 9, 11, 12, 13])]

    def train(disturb):
        service = tinker.ServiceClient()
        training = model(service)
        found = []
        for i in range(6):
            futures = [training.forward_backward(data, "cross_entropy"), training.optim_step(ADAM)]
            if disturb and i % 2:
                print("now", flush=True)
            found.append(futures[0].result().metrics["loss:sum"])
            futures[1].result()
            sampler = training.save_weights_and_get_sampling_client().result()
            params = types.SamplingParams(max_tokens=6, seed=i)
            future = sampler.sample(types.ModelInput.from_ints([5, 40, 9]), 2, params)
            if disturb and i == 4:
                print("now", flush=True)
            found.append([of.tokens for of in future.result().sequences])
        return found

    assert train(False) == train(True)


def parity():
    """Losses, gradients and a step beside torch, on the adapter that peft reads from a checkpoint."""
    from pathlib import Path

    from peft import PeftModel
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    service = tinker.ServiceClient()
    generator = torch.Generator().manual_seed(5)

    def draw(n):
        return torch.randint(3, 90, (n,), generator=generator).tolist()

    for base in ["gpt2", "qwen3"]:
        training = model(service, base_model=base)
        # Not at zero, where half of the gradient is.
        for _ in range(3):
            step(training, [text_datum(draw(12)), text_datum(draw(7))])
        for loss, config in [
            ("cross_entropy", {}),
            ("importance_sampling", {}),
            ("ppo", {"clip_low_threshold": 0.9, "clip_high_threshold": 1.15}),
            ("cispo", {"clip_low_threshold": 0.95, "clip_high_threshold": 1.1}),
            ("dro", {"beta": 0.3}),
        ]:
            name = f"{base}-{loss}"
            path = training.save_state(f"{name}-before").result().path
            data, shifted = [], []
            for n in (9, 4, 12):
                ids = draw(n + 1)
                weights = torch.randn(n, generator=generator)
                weights[0] = 0.0
                shifted.append((ids, weights, 0.2 * torch.randn(n, generator=generator)))
            plain = AutoModelForCausalLM.from_pretrained(Path(FOLDER) / base, dtype=torch.float64)
            peft = PeftModel.from_pretrained(plain, directory(path), is_trainable=True).double()
            total, expected = 0.0, []
            for ids, weights, shift in shifted:
                logits = peft(torch.tensor([ids[:-1]])).logits[0]
                found = torch.log_softmax(logits, -1).gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]
                # As the client sends it.
                old = (found.detach() + shift).float()
                total = total + formula(loss, config, found, old.double(), weights.float().double()).sum()
                expected.append(found.detach())
                tensor = lambda values: types.TensorData.from_torch(values)
                inputs = {"target_tokens": tensor(torch.tensor(ids[1:]))}
                if loss == "cross_entropy":
                    inputs["weights"] = tensor(weights)
                else:
                    inputs |= {"logprobs": tensor(old), "advantages": tensor(weights)}
                data.append(types.Datum(model_input=types.ModelInput.from_ints(ids[:-1]), loss_fn_inputs=inputs))
            total.backward()
            found = training.forward_backward(data, loss, config or None).result()
            near(f"{name}, loss", found.metrics["loss:sum"], total.item(), 1e-6 * max(1.0, sum(len(w) for _, w, _ in shifted)))
            for out, logprobs in zip(found.loss_fn_outputs, expected):
                assert np.abs(out["logprobs"].to_numpy() - logprobs.numpy()).max() < 2e-6, name
            # With β₁ = 0 the first moment is the gradient.
            training.optim_step(types.AdamParams(learning_rate=0.0, beta1=0.0, weight_decay=0.0)).result()
            saved = training.save_state(f"{name}-after").result().path
            moments = load_file(f"{directory(saved)}/optimizer.safetensors")
            adapter = load_file(f"{directory(saved)}/adapter_model.safetensors")
            gradients = {n: p.grad for n, p in peft.named_parameters() if p.requires_grad}
            assert len(gradients) == len(adapter) and any("lm_head" in n for n in gradients), sorted(gradients)
            checked = 0
            largest = max(float(g.abs().max()) for g in gradients.values())
            for n, gradient in gradients.items():
                own = moments[moment(n)].reshape(gradient.shape)
                error = float((own.double() - gradient).abs().max())
                assert error <= 1e-6 * max(1.0, largest) + 2e-6 * largest, (name, n, error, largest)
                checked += 1
            assert checked >= 10, checked


def formula(loss, config, found, old, weights):
    ratio = torch.exp(found - old)
    low, high = config.get("clip_low_threshold"), config.get("clip_high_threshold")
    return {
        "cross_entropy": lambda: -found * weights,
        "importance_sampling": lambda: -ratio * weights,
        "ppo": lambda: -torch.minimum(ratio * weights, ratio.clamp(low, high) * weights),
        "cispo": lambda: -ratio.clamp(low, high).detach() * found * weights,
        "dro": lambda: -(found * weights - 0.5 * config.get("beta", 0) * (found - old) ** 2),
    }[loss]()


def near(what, found, expected, slack):
    assert abs(found - expected) <= slack, f"{what}: {found} instead of {expected}"


def directory(path):
    """Where a checkpoint lies."""
    run, kind, name = path.removeprefix("tinker://").split("/")
    return f"{FOLDER}/tinker/{run.replace(':', '-')}/{kind}/{name}"


def moment(name):
    """The name of a first moment, of peft's name of a parameter."""
    name = name.removeprefix("base_model.model.")
    for part in ("lora_A", "lora_B"):
        name = name.replace(f".{part}.default.weight", f".lora.{part.lower()}")
    if name.startswith("lm_head."):
        return "exp_avg." + name.replace("lm_head.lora.", "head_lora.")
    name = name.removeprefix("transformer.").removeprefix("model.")
    return f"exp_avg.trunk.{name}"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        globals()[name]()
        print(f"{name}: ok", flush=True)
