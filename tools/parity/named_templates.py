"""The chat templates of `--chat-template NAME`, rendered by transformers' apply_chat_template.

  named.json     for each template and conversation: text with and without generation prompt, or the error, and the ranges of
                 the assistant's part in the text without it

Needs only transformers and Jinja2, no torch.
"""

import argparse
import importlib.metadata
import json
import os
import pathlib
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from transformers import AutoTokenizer  # noqa: E402
from transformers.utils.chat_template_utils import render_jinja_template  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEMPLATES = ROOT / "crates/gradus-data/src/text/templates"
FIXTURES = ROOT / "crates/gradus/tests/fixtures/parity"


def say(*pairs):
    return [{"role": role, "content": text} for role, text in pairs]


TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds <a> & 'b', é", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}},
    {"type": "function", "function": {"name": "now", "description": "The time", "parameters": {}}}]
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": [2.5, True, None, "é<"]}}}
CONVERSATIONS = {
    "one_question": (say(("user", "How far is the island?")), None),
    "turns": (say(("system", "Short answers."), ("user", "Tea?"), ("assistant", "Yes."), ("user", "Sugar?"), ("assistant", "No.")), None),
    "no_system": (say(("user", "Tea?"), ("assistant", "Yes."), ("user", "Sugar?"), ("assistant", "No.")), None),
    "spaces": (say(("user", "  two spaces \n"), ("assistant", "\n\nline\n "), ("user", ""), ("assistant", "\tx")), None),
    "unicode": (say(("user", "naïve 漢字 🙂 e\u0301"), ("assistant", "ß → ﬁ \u00a0 🙃🏽")), None),
    "tool": ([*say(("system", "Use tools."), ("user", "1 + 2.5?")), {"role": "assistant", "content": "", "tool_calls": [CALL]},
              *say(("tool", "3.5"), ("assistant", "It is 3.5."))], TOOLS),
    "two_tools": ([*say(("user", "1 + 2.5?")), {"role": "assistant", "content": "Wait.", "tool_calls": [CALL, CALL]},
                   *say(("tool", "3.5"), ("tool", "4"))], TOOLS),
    "wrong_order": (say(("assistant", "Hello."), ("user", "Hi."), ("user", "Hi again.")), None),
    "other_role": (say(("user", "Hi."), ("narrator", "It rains.")), None),
    "late_system": (say(("user", "Hi."), ("assistant", "Hello."), ("system", "Be brief.")), None),
}


def render(tokenizer, template, messages, tools, prompt):
    try:
        return {"text": tokenizer.apply_chat_template(messages, tools=tools, chat_template=template, tokenize=False,
                                                      add_generation_prompt=prompt)}
    except Exception as error:  # exceptions of the template
        return {"error": f"{type(error).__name__}: {error}"}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path, default=FIXTURES / "chat_templates", help="folder to write (default: the committed one)")
    out = parser.parse_args().out
    tokenizer = AutoTokenizer.from_pretrained(FIXTURES / "rows/tokenizer")
    cases = []
    for path in sorted(TEMPLATES.glob("*.jinja")):
        template = path.read_text(encoding="utf-8")
        for key, (messages, tools) in CONVERSATIONS.items():
            case = {"template": path.stem, "conversation": key, "plain": render(tokenizer, template, messages, tools, False),
                    "with_generation_prompt": render(tokenizer, template, messages, tools, True)}
            if "text" in case["plain"]:
                _, ranges = render_jinja_template([messages], tools=tools, chat_template=template, return_assistant_tokens_mask=True,
                                                  **tokenizer.special_tokens_map)
                text = case["plain"]["text"]
                # From characters to bytes.
                case["assistant"] = [[len(text[:at].encode()) for at in pair] for pair in ranges[0]]
            else:
                print(path.stem, key, case["plain"]["error"])
            cases.append(case)
    versions = {name: importlib.metadata.version(name) for name in ("transformers", "tokenizers", "jinja2")}
    meta = {"script": f"tools/parity/{pathlib.Path(sys.argv[0]).name}", "python": sys.version.split()[0], "libraries": versions}
    conversations = {key: {"messages": m, "tools": t} for key, (m, t) in CONVERSATIONS.items()}
    found = {"meta": meta, "tokenizer": "rows/tokenizer", "conversations": conversations, "cases": cases}
    (out / "named.json").write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    print(len(cases), "cases")


main()
