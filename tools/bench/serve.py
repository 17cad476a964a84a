"""How `gradus serve` bears many at once: 10,000 tasks and 200 runs, 50 people who change something every second and 8 chats that stream, all on
one server. Prints the times of pages and of what is kept, and fails on any error.

    python tools/bench/serve.py target/release/gradus MODEL
"""

import argparse
import http.cookiejar
import json
import pathlib
import re
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
import urllib.parse
import urllib.request

TASKS, RUNS, PEOPLE, CHATS = 10_000, 200, 50, 8


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


class Person:
    """A browser without a window."""

    def __init__(self, url):
        self.url = url
        self.opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))
        self.csrf = re.search(r'name="csrf" content="(\w+)"', self.get("/annotate")).group(1)

    def get(self, path):
        with self.opener.open(self.url + path) as answer:
            self.at = answer.geturl()
            return answer.read().decode()

    def post(self, path, body, kind="application/json"):
        headers = {"Content-Type": kind, "X-CSRF-Token": self.csrf}
        with self.opener.open(urllib.request.Request(self.url + path, data=body.encode(), headers=headers)) as answer:
            return answer.read().decode()


def annotate(url, i, token, kept, pages, until):
    person = Person(url)
    form = {"name": f"person-{i}", "token": token}
    person.post("/annotate/enter", urllib.parse.urlencode(form), "application/x-www-form-urlencoded")
    while time.monotonic() < until:
        begun = time.monotonic()
        person.get("/annotate/big")
        pages.append(time.monotonic() - begun)
        task = urllib.parse.urlparse(person.at).path
        for ranks, state in [({}, "open"), ({"1v2": "first"}, "open"), ({"1v2": "first"}, "done")]:
            begun = time.monotonic()
            person.post(f"{task}/keep", json.dumps({"answer": {"ranks": ranks}, "state": state, "seconds": 1.0}))
            kept.append(time.monotonic() - begun)
            time.sleep(1)


def chat(url, tokens, until):
    body = {"model": "model", "prompt": "The tea", "max_tokens": 100, "stream": True}
    while time.monotonic() < until:
        request = urllib.request.Request(f"{url}/v1/completions", data=json.dumps(body).encode(), headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            lines = [line for line in answer.read().decode().splitlines() if line.startswith("data: {")]
        assert not any("error" in json.loads(line[6:]) for line in lines)
        tokens.append(len(lines) - 1)


def shown(times):
    times = sorted(1000 * time for time in times)
    return f"median {statistics.median(times):.1f} ms, 95 % {times[int(0.95 * len(times))]:.1f} ms, most {times[-1]:.1f} ms, {len(times)} of them"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("--seconds", type=float, default=20)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        root = pathlib.Path(root)
        tokens = folder(root, arguments.binary, arguments.model)
        server = subprocess.Popen([arguments.binary, "serve", str(root), "--port", "0", "--json"], stdout=subprocess.PIPE, text=True)
        try:
            url = json.loads(server.stdout.readline())["url"].rstrip("/")
            person = Person(url)
            for path in ["/", "/chat", "/annotate", "/runs", "/runs", "/runs/show?run=runs/run-007"]:
                begun = time.monotonic()
                person.get(path)
                print(f"{path}: {1000 * (time.monotonic() - begun):.0f} ms")
            kept, pages, said, errors = [], [], [], []
            until = time.monotonic() + arguments.seconds

            def guarded(work, *given):
                try:
                    work(*given)
                except Exception as error:
                    errors.append(repr(error))

            work = [(annotate, url, i, token, kept, pages, until) for i, token in enumerate(tokens)]
            work += [(chat, url, said, until)] * CHATS
            threads = [threading.Thread(target=guarded, args=one) for one in work]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            print(f"{PEOPLE} people and {CHATS} chats for {arguments.seconds:.0f} s")
            print(f"a task's page: {shown(pages)}\nwhat is kept: {shown(kept)}\ntokens streamed: {sum(said) / arguments.seconds:.0f}/s")
            assert not errors, errors[:5]
            print("no error")
        finally:
            server.kill()


if __name__ == "__main__":
    main()
