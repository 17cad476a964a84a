"""Sends requests to a running `gradus serve` with the `openai` client: models, an answer as a whole and streamed, log-probabilities, a
completion with echo, an error. Needs `pip install openai`.

    python tools/serve/openai_client.py http://127.0.0.1:8080 MODEL
"""

import sys

import openai


def main():
    url, model = sys.argv[1:3]
    client = openai.OpenAI(base_url=f"{url.rstrip('/')}/v1", api_key="none", max_retries=0)
    assert model in [found.id for found in client.models.list()], f"the server does not list {model}"

    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "The tea"}]
    ask = dict(model=model, messages=messages, max_tokens=12, seed=7)
    whole = client.chat.completions.create(**ask, logprobs=True, top_logprobs=2, n=2)
    for choice in whole.choices:
        print(choice.index, choice.finish_reason, repr(choice.message.content))
        assert len(choice.logprobs.content[0].top_logprobs) == 2
    assert whole.usage.completion_tokens == sum(len(choice.logprobs.content) for choice in whole.choices)

    pieces = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert text == whole.choices[0].message.content, "the streamed answer differs from the whole answer with the same seed"
    assert pieces[-1].usage.completion_tokens > 0

    scored = client.completions.create(model=model, prompt="The tea is warm", max_tokens=0, echo=True, logprobs=1)
    values = scored.choices[0].logprobs.token_logprobs
    assert values[0] is None and all(value <= 0 for value in values[1:])
    print("echo", scored.choices[0].logprobs.tokens, sum(values[1:]))

    for wrong, kind in [(dict(model="none"), openai.NotFoundError), (dict(temperature=-1), openai.BadRequestError)]:
        try:
            client.chat.completions.create(**{**ask, **wrong})
            raise SystemExit(f"the server accepted {wrong}, but an error was expected")
        except kind as error:
            print("refused:", error.message)
    print("ok")


if __name__ == "__main__":
    main()
