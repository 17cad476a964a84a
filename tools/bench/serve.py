"""Measures `gradus serve` under load: 10,000 tasks and 200 runs, 50 people who change something every second, and 8 streaming chats, all on
one server. Prints the times of pages and of saves, and fails on any error. Before that, it measures the speed of one streamed completion and, alternately, of
`gradus bench` with the same model (a model of GPT-2's shape with random weights). `--stream SHAPE` selects another one of
`workloads.py`; `--stream none` skips this part.

    python tools/bench/serve.py target/release/gradus MODEL

Separate processes simulate people and chats. Their work is not part of the server's, but they share its processors. People begin within
three seconds and pause between half a second and one and a half, so they are not synchronized.
"""

import argparse
import http.client
import json
import multiprocessing
import pathlib
import random
import re
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
import urllib.parse

import workloads

TASKS, RUNS, PEOPLE, CHATS = 10_000, 200, 50, 8

# Streamed completion: tokens of the prompt, sampled tokens, and number of measurements per side.
PROMPT, STREAMED, TURNS = 64, 128, 3


def folder(root, binary, model):
    shutil.copytree(model, root / "model")
    for i in range(RUNS):
        run = root / f"runs/run-{i:03}"
        run.mkdir(parents=True)
        (run / "config.yml").write_text("# Written by gradus 0.1.0.\nmodel: model # set\ndata: rows.jsonl\nmethod:\n  dpo:\n    beta: 0.1\n")
        rows = ({"step": step, "loss": 1 / step, "learning_rate": 1e-5, "grad_norm": 1.0} for step in range(1, 1001))
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = root / "rows.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"Question {i}?", "completions": ["a b", "c d"]}) + "\n" for i in range(TASKS)))
    annotate = [binary, "annotate", "--folder", str(root)]
    subprocess.run([*annotate, "new", "big", "--data", str(data), "--labels", "comparison", "--annotators", "2"], check=True, capture_output=True)
    invite = lambda i: subprocess.run([*annotate, "invite", f"person-{i}"], check=True, capture_output=True, text=True).stdout.strip()
    return [invite(i) for i in range(PEOPLE)]


class Server:
    """A server over a folder, which ends with the block."""

    def __init__(self, binary, root):
        self.process = subprocess.Popen([binary, "serve", str(root), "--port", "0", "--json", "--quiet"], stdout=subprocess.PIPE, text=True)
        self.host = urllib.parse.urlparse(json.loads(self.process.stdout.readline())["url"]).netloc

    def __enter__(self):
        return self.host

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


class Person:
    """A simulated browser. It keeps its connection, as browsers do."""

    def __init__(self, host):
        self.host, self.cookie, self.csrf = host, None, ""
        self.connection = http.client.HTTPConnection(host)
        self.csrf = re.search(r'name="csrf" content="(\w+)"', self.get("/annotate")).group(1)

    def ask(self, method, path, body=None, kind="application/json"):
        headers = {"X-CSRF-Token": self.csrf, "Content-Type": kind} if body is not None else {}
        if self.cookie:
            headers["Cookie"] = self.cookie
        self.connection.request(method, path, body, headers)
        answer = self.connection.getresponse()
        text = answer.read()
        self.cookie = (answer.getheader("Set-Cookie") or self.cookie or "").split(";")[0]
        if answer.status == 303:
            self.at = answer.getheader("Location")
            return self.ask("GET", self.at)
        assert answer.status < 300, f"{method} {path}: {answer.status}"
        return text.decode()

    def get(self, path):
        return self.ask("GET", path)


def annotate(host, i, token, kept, pages, until):
    person, chance = Person(host), random.Random(i)
    pause = lambda: time.sleep(chance.uniform(0.5, 1.5))
    time.sleep(chance.uniform(0, 3))
    person.ask("POST", "/annotate/enter", urllib.parse.urlencode({"name": f"person-{i}", "token": token}), "application/x-www-form-urlencoded")
    while time.monotonic() < until:
        begun = time.monotonic()
        person.get("/annotate/big")
        pages.append(time.monotonic() - begun)
        task = person.at
        for ranks, state in [({}, "open"), ({"1v2": "first"}, "open"), ({"1v2": "first"}, "done")]:
            pause()
            body = json.dumps({"answer": {"ranks": ranks}, "state": state, "seconds": 1.0})
            begun = time.monotonic()
            person.ask("POST", f"{task}/keep", body)
            kept.append(time.monotonic() - begun)


def completion(host, body):
    """Streams a completion. Returns its bytes, and the times of the first and the last token."""
    connection = http.client.HTTPConnection(host)
    connection.request("POST", "/v1/completions", json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
    answer, parts, times = connection.getresponse(), [], []
    while part := answer.read1():
        parts.append(part)
        times.append(time.monotonic())
    connection.close()
    events = [line for line in b"".join(parts).split(b"\n") if line.startswith(b"data: {")]
    assert answer.status == 200 and not any(b'"error"' in event for event in events), parts[:1]
    # The last event has no text. It contains the reason of the end.
    return len(events) - 1, times[0], times[-1]


def chat(host, said, until):
    while time.monotonic() < until:
        said.append(completion(host, {"model": "model", "prompt": "The tea", "max_tokens": 100})[0])


def together(work):
    """Does all of the work in threads and returns the errors."""
    errors = []

    def guarded(one, *given):
        try:
            one(*given)
        except Exception as error:
            errors.append(repr(error))

    threads = [threading.Thread(target=guarded, args=one) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def people(host, tokens, until, results):
    kept, pages = [], []
    errors = together([(annotate, host, i, token, kept, pages, until) for i, token in enumerate(tokens)])
    results.put(("people", (kept, pages), errors))


def chats(host, until, results):
    said = []
    errors = together([(chat, host, said, until)] * CHATS)
    results.put(("chats", said, errors))


def shown(times):
    times = sorted(1000 * time for time in times)
    return f"median {statistics.median(times):.1f} ms, 95th percentile {times[int(0.95 * len(times))]:.1f} ms, maximum {times[-1]:.1f} ms, {len(times)} requests"


def stream(binary, shape):
    """Tokens per second of one completion, streamed by the server and sampled by `gradus bench`, each after its first token."""
    from make_inputs import write_model

    with tempfile.TemporaryDirectory() as root:
        model = pathlib.Path(root) / "model"
        write_model(model, workloads.MODELS[shape])
        words = " ".join(f"w{i}" for i in range(PROMPT))
        body = {"model": "model", "prompt": words, "max_tokens": STREAMED, "temperature": 1.0, "top_p": 1.0}
        sizes = ["--prompt-tokens", str(PROMPT), "--new-tokens", str(STREAMED), "--generate-batch", "1"]
        bench = [binary, "bench", "--model", str(model), "--no-training", "--repetitions", "1", *sizes, "--json", "--quiet"]
        streamed, alone = [], []
        for turn in range(TURNS):
            with Server(binary, root) as host:
                completion(host, {**body, "max_tokens": 4})
                tokens, first, last = completion(host, {**body, "seed": turn})
                assert tokens == STREAMED, f"{tokens} tokens were streamed, but {STREAMED} were requested"
                streamed.append((tokens - 1) / (last - first))
            report = json.loads(subprocess.run(bench, check=True, capture_output=True, text=True).stdout)
            alone.append(report["generation"][0]["decode_tokens_per_s"])
        one, alone = statistics.median(streamed), [rate for rate in alone if rate is not None]
        if not alone:
            print(f"one completion of {shape}: {one:.1f} tokens/s streamed; `gradus bench` could not measure the time after the first token")
            return
        other = statistics.median(alone)
        print(f"one completion of {shape}: {one:.1f} tokens/s streamed, {other:.1f} sampled by `gradus bench`: {100 * one / other:.0f} %")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--stream", default="124M")
    arguments = parser.parse_args()
    if arguments.stream != "none":
        stream(arguments.binary, arguments.stream)
    with tempfile.TemporaryDirectory() as root:
        root = pathlib.Path(root)
        tokens = folder(root, arguments.binary, arguments.model)
        with Server(arguments.binary, root) as host:
            person = Person(host)
            for path in ["/", "/chat", "/annotate", "/runs", "/runs", "/runs/show?run=runs/run-007"]:
                begun = time.monotonic()
                person.get(path)
                print(f"{path}: {1000 * (time.monotonic() - begun):.0f} ms")
            results, until = multiprocessing.Queue(), time.monotonic() + arguments.seconds
            processes = [
                multiprocessing.Process(target=people, args=(host, tokens, until, results)),
                multiprocessing.Process(target=chats, args=(host, until, results)),
            ]
            for process in processes:
                process.start()
            found = {name: (value, errors) for name, value, errors in (results.get() for _ in processes)}
            for process in processes:
                process.join()
            (kept, pages), said = found["people"][0], found["chats"][0]
            print(f"{PEOPLE} people and {CHATS} chats for {arguments.seconds:.0f} s")
            print(f"a task's page: {shown(pages)}\nsaves: {shown(kept)}\ntokens streamed: {sum(said) / arguments.seconds:.0f}/s")
            errors = [error for _, errors in found.values() for error in errors]
            assert not errors, errors[:5]
            print("no errors")


if __name__ == "__main__":
    main()
