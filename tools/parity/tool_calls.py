"""Tool calls in chat templates: the text that templates write, the calls that transformers reads in it, and the answer that TRL appends.

  <family>.jinja  our own templates in the style of the families; two more are elsewhere in the repository
  tokenizer/      the tokenizer of rows/ with the special tokens of all families
  cases.json      for each template and conversation: text, some ids, each turn with calls as written and as read, and the ids that
                  TRL's GRPO trainer appends (those of the text, if the template requires call ids, which TRL does not provide)
  texts.json      the calls that transformers reads in valid and invalid turns of models; below `parts` also the thoughts, with and without
                  a prompt that opens a thought

`--real FOLDER --out OTHER` does the same with the templates of TRL's package and with those of FOLDER (files `*.jinja`), and
writes them and `cases.json` to OTHER, outside the repository. `GRADUS_CHAT_TEMPLATES=OTHER cargo test -p gradus --test parity
tool_calls` then compares with them.
"""

import argparse
import copy
import pathlib
import types

from common import FIXTURES, meta, write_json

import trl.chat_template_utils as templates
from transformers import AutoTokenizer
from transformers.utils.chat_parsing import parse_response
from trl import GRPOTrainer

ROOT = pathlib.Path(__file__).resolve().parents[2]
SEED = 0
MARKS = ["<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>", "[INST]", "[/INST]",
         "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[CALL_ID]", "[ARGS]",
         "[TOOL_CONTENT]"]

LLAMA = r"""{{- bos_token }}
{%- for message in messages %}
    {%- if message.tool_calls %}
        {%- if message.tool_calls | length > 1 %}{{- raise_exception('one call a turn, please') }}{%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson }}{{- '}<|eot_id|>' }}
    {%- elif message.role == 'tool' %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\n\n' }}{{- message.content | tojson }}{{- '<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' }}
        {%- if tools and loop.first %}
            {%- for tool in tools %}{{- tool | tojson(indent=4) }}{{- '\n\n' }}{%- endfor %}
        {%- endif %}
        {{- message.content | trim }}{{- '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}
"""

MISTRAL_HEAD = r"""{%- macro wanted(id) %}
    {%- if id is not defined or id is not string or id | length != 9 %}{{- raise_exception('ids of calls have nine characters') }}{%- endif %}
    {{- id }}
{%- endmacro %}
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- if tools and loop.first %}{{- '[AVAILABLE_TOOLS]' }}{{- tools | tojson }}{{- '[/AVAILABLE_TOOLS]' }}{%- endif %}
        {{- '[INST]' + message.content + '[/INST]' }}
"""
MISTRAL_LIST = MISTRAL_HEAD + r"""    {%- elif message.tool_calls %}
        {{- '[TOOL_CALLS][' }}
        {%- for call in message.tool_calls %}
            {{- '{"name": "' + call.function.name + '", "arguments": ' }}{{- call.function.arguments | tojson }}
            {{- ', "id": "' + wanted(call.id) + '"}' }}{%- if not loop.last %}{{- ', ' }}{%- endif %}
        {%- endfor %}
        {{- ']' + eos_token }}
    {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS]{"content": ' }}{{- message.content | tojson }}{{- ', "call_id": "' + wanted(message.tool_call_id) + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- message.content + eos_token }}
    {%- endif %}
{%- endfor %}
"""
MISTRAL_NAMES = MISTRAL_HEAD + r"""    {%- elif message.tool_calls %}
        {{- message.content }}
        {%- for call in message.tool_calls %}
            {{- '[TOOL_CALLS]' + call.function.name + '[CALL_ID]' + wanted(call.id) + '[ARGS]' }}{{- call.function.arguments | tojson }}
        {%- endfor %}
        {{- eos_token }}
    {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS]' + wanted(message.tool_call_id) + '[TOOL_CONTENT]' + message.content + '[/TOOL_RESULTS]' }}
    {%- else %}
        {{- message.content + eos_token }}
    {%- endif %}
{%- endfor %}
"""
# Values without types: all except text are written as JSON.
CODER = r"""{{- '<|im_start|>system\n' }}
{%- if tools %}{%- for tool in tools %}{{- tool | tojson }}{{- '\n' }}{%- endfor %}{%- endif %}
{{- '<|im_end|>\n' }}
{%- for message in messages %}
    {%- if message.tool_calls %}
        {{- '<|im_start|>assistant\n' + message.content }}
        {%- for call in message.tool_calls %}
            {%- if message.content or not loop.first %}{{- '\n' }}{%- endif %}
            {{- '<tool_call>\n<function=' + call.function.name + '>\n' }}
            {%- for key, value in call.function.arguments | items %}
                {{- '<parameter=' + key + '>\n' }}{{- value if value is string else value | tojson }}{{- '\n</parameter>\n' }}
            {%- endfor %}
            {{- '</function>\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.previtem and loop.previtem.role != 'tool' %}{{- '<|im_start|>user\n' }}{%- endif %}
        {{- '<tool_response>\n' + message.content + '\n</tool_response>\n' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""
# A family that omits calls and reads the tools under another name.
SMOL = r"""{{- '<|im_start|>system\n' }}
{%- if xml_tools %}
    {%- for tool in xml_tools %}{{- tool | string }}{{- '\n' }}{%- endfor %}
    {{- '<tool_call>{"name": …, "arguments": …}</tool_call>' }}
{%- endif %}
{{- '<|im_end|>\n' }}
{%- for message in messages %}
    {{- '<|im_start|>' + ('user' if message.role == 'tool' else message.role) + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""
OURS = {"llama": LLAMA, "mistral_list": MISTRAL_LIST, "mistral_names": MISTRAL_NAMES, "smol": SMOL, "coder": CODER}
# Templates that are already in the repository.
ELSEWHERE = {"qwen": "crates/gradus-data/src/text/templates/qwen.jinja",
             "thinking": "crates/gradus/tests/fixtures/parity/chat_templates/thinking.jinja"}
QWEN, XML, HEADERS, LIST = ("hermes", "<|im_end|>"), ("qwen3_coder", "<|im_end|>"), ("llama3", "<|eot_id|>"), ("mistral", "<eos>")
FORMS = {"qwen": QWEN, "thinking": QWEN, "smol": QWEN, "llama": HEADERS, "mistral_list": LIST, "mistral_names": LIST, "coder": XML}
# Families for which transformers has a reader of calls.
READERS = {"hermes": templates.qwen3_template, "qwen3_coder": templates.qwen3_5_template, "llama3": templates.llama3_template}

TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds <a> & 'b', é", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}}},
    {"type": "function", "function": {"name": "look_up", "description": "Looks up", "parameters": {"type": "object", "properties": {
        "query": {"type": "string"}, "options": {"type": "object"}}}}}]


def say(*pairs):
    return [{"role": role, "content": text} for role, text in pairs]


def calls(*given, text=""):
    made = [{"type": "function", "id": f"call{i}abcd", "function": {"name": name, "arguments": arguments}} for i, (name, arguments) in enumerate(given)]
    return {"role": "assistant", "content": text, "tool_calls": made}


def answer(name, content, i=0):
    return {"role": "tool", "name": name, "content": content, "tool_call_id": f"call{i}abcd"}


HARD = {"query": "a \"quoted\" \\ word,\n\ttab, 漢字 🙂 é \u2028 </tool> {braces} [TOOL] 'single' <b>&amp;</b>", "options": {
    "nested": {"list": [1, -2.5, 1e-07, 12345678901234, True, False, None, "x", [], {}]}, "": "empty key", "é": "ß"}}
CONVERSATIONS = {
    "one": [*say(("user", "1 + 2?")), calls(("add", {"a": 1, "b": 2})), answer("add", "3"), *say(("assistant", "It is 3."))],
    "with_text": [*say(("user", "1 + 2?")), calls(("add", {"a": 1, "b": 2}), text="Let me add."), answer("add", "3")],
    "several": [*say(("user", "Both?")), calls(("add", {"a": 1, "b": 2}), ("look_up", {"query": "x"})), answer("add", "3"),
                answer("look_up", "nothing", 1), *say(("assistant", "3, and nothing."))],
    "twice": [*say(("user", "And?")), calls(("add", {"a": 1, "b": 2})), answer("add", "3"), calls(("add", {"a": 3, "b": 4})),
              answer("add", "7"), *say(("assistant", "7."), ("user", "Thanks."), ("assistant", "Sure."))],
    "hard": [*say(("user", "Hard?")), calls(("look_up", HARD)), answer("look_up", "{\"found\": [\"é\", 1]}\nand <more> \"text\"")],
    "nothing": [*say(("user", "Now?")), calls(("look_up", {})), answer("look_up", "")],
    "no_call": say(("user", "Tea?"), ("assistant", "Yes.")),
}

# Turns in the format of models.
TEXTS = {
    "hermes": [
        '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>',
        '<tool_call>{"name":"add","arguments":{"a":1,"b":2}}</tool_call>',
        'First this.\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>\n<tool_call>\n{"name": "look_up", "arguments": {"query": "x"}}\n</tool_call>',
        '<tool_call>\n{"arguments": {"a": 1}, "name": "add"}\n</tool_call>',
        '<tool_call>\n{"name": "add"}\n</tool_call>',
        '<tool_call>\n{"name": "add", "arguments": null}\n</tool_call>',
        '<tool_call>\n{"name": "add", "arguments": {"a": 1, "a": 2}}\n</tool_call>',
        '<tool_call>\n{"name": "add", "arguments": {"a": 1.0, "b": -0.0, "c": 1E5, "d": 123456789012345678}}\n</tool_call>',
        '<tool_call>\n{"name": "look_up", "arguments": {"query": "\\u00e9\\ud83d\\ude42\\n\\"\\\\"}}\n</tool_call>',
        '<tool_call>\n{"name": "look_up", "arguments": {"query": "a < b > c </b>"}}\n</tool_call> and more text',
        '<tool_call>\n{"name": "add", "arguments": {"a": "1", "b": 2}}\n</tool_call>',
        '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}',
        '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}</tool_call>',
        "<tool_call>{'name': 'add', 'arguments': {}}</tool_call>",
        '<tool_call>add(1, 2)</tool_call>',
        '<tool_call></tool_call>',
        '<tool_call>\n{"name": 3, "arguments": {}}\n</tool_call>',
        '<tool_call>\n[1]\n</tool_call>',
        '<tool_call>\n{"name": "add", "arguments": {"a": 1,}}\n</tool_call>',
        '<think>\nadd them: <tool_call>{"name": "no"}</tool_call>\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>',
        '<think>\nshort\n</think>\n\nIt is 3.',
        'No call: {"name": "add", "arguments": {}}',
        'It is 3.',
        '',
    ],
    "qwen3_coder": [
        '<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2\n</parameter>\n</function>\n</tool_call>',
        'First this.\n\n<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=look_up>\n<parameter=query>\nx\n</parameter>\n</function>\n</tool_call>',
        '<tool_call><function=add><parameter=a>1</parameter><parameter=b>2.0</parameter></function></tool_call>',
        '<tool_call>\n<function=look_up>\n<parameter=query>\n75001\n</parameter>\n<parameter=options>\n{"a": [1, {"b": null}]}\n</parameter>\n</function>\n</tool_call>',
        '<tool_call>\n<function=look_up>\n<parameter=query>\nseveral\n\nlines <b> & {"x": 1}\n</parameter>\n</function>\n</tool_call>',
        '<tool_call>\n<function=look_up>\n<parameter=query>\n\n</parameter>\n<parameter=options>\nnot JSON\n</parameter>\n</function>\n</tool_call>',
        '<tool_call>\n<function=look_up>\n</function>\n</tool_call>',
        '<tool_call>\n<function=unknown>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>',
        '<tool_call>\n<function=add>\n<parameter=a>\nseven\n</parameter>\n<parameter=c>\n3\n</parameter>\n</function>\n</tool_call> and more text',
        '<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</tool_call>',
        '<think>\nadd: <tool_call><function=no></function></tool_call>\n</think>\n\n<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>',
        '<function=add>\n<parameter=a>\n1\n</parameter>\n</function>',
        'It is 3.',
        '',
    ],
    "llama3": [
        '{"name": "add", "parameters": {"a": 1, "b": 2}}',
        '{"name":"add","parameters":{"a":1,"b":2}}',
        '{"name": "look_up", "parameters": {"query": "\\u00e9 {\\"x\\": 1}", "options": {"a": [1, {"b": null}]}}}',
        '{"name": "look_up", "parameters": {}}',
        '{"name": "add", "parameters": {"a": "1", "b": "2"}}',
        '{"name": "add", "parameters": {"a": 1, "b": 2}',
        '{"name": "add", "parameters": {"a": 1 "b": 2}}',
        'The set {1, 2} has two elements.',
        '{1, 2} is a set.',
        'It is 3.',
        '',
    ],
}

# Turns with marks in places where they mean something else. `True`: the prompt ends with `<think>`.
ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
ADD_CODER = '<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2\n</parameter>\n</function>\n</tool_call>'
PARTS = {
    "hermes": [
        ('<tool_call>\n{"name": "look_up", "arguments": {"query": "use <think> tags"}}\n</tool_call>', False),
        ('<tool_call>\n{"name": "look_up", "arguments": {"query": "end </think> here"}}\n</tool_call>', False),
        (f"{ADD}\n</think>\n", False),
        (f"answer </think>\n{ADD}", False),
        (f"<think>\nperhaps {ADD}", False),
        (f"<think>\n\n</think>\n\n<think>x{ADD}</think> done", False),
        (f"I use the <think> tag.\n{ADD}", False),
        (f"perhaps {ADD}", True),
        (f"perhaps {ADD}\n</think>\n\n{ADD}", True),
        ("short\n</think>\n\nIt is 3.", True),
    ],
    "qwen3_coder": [
        ("</think>\n\n<tool_call>\n<function=look_up>\n<parameter=query>\n<think> x </think>\n</parameter>\n</function>\n</tool_call>", True),
        ("<tool_call>\n<function=look_up>\n<parameter=query>\n<think> x </think>\n</parameter>\n</function>\n</tool_call>", False),
        (f"perhaps {ADD_CODER}", True),
        (f"perhaps {ADD_CODER}\n</think>\n\n{ADD_CODER}", True),
        (f"perhaps {ADD_CODER}", False),
    ],
    "llama3": [
        ('{"name": "look_up", "parameters": {"query": "<think>"}}', False),
        ('Sure: {"name": "add", "parameters": {"a": 1, "b": 2}}', False),
        ('{"name": "Bob", "age": 3}', False),
        ('{"age": 3, "name": "Bob"}', False),
        ('{"x": 1, "y": {"name": 2}}', False),
        ('{ "name" of the thing is unclear', False),
    ],
}


def render(tok, source, messages, prompt):
    # The key from which SmolLM3 reads its tools.
    shown = {"xml_tools": TOOLS} if "xml_tools" in source else {}
    try:
        return {"text": tok.apply_chat_template(messages, tools=TOOLS, chat_template=source, tokenize=False, add_generation_prompt=prompt, **shown)}
    except Exception as error:  # exceptions of the template, and everything that Jinja rejects
        return {"error": f"{type(error).__name__}: {error}"}


def parsed(form, text, mark, prefix=""):
    # Other families end turns with other special tokens.
    return parse_response(text + (mark if mark in ("<|im_end|>", "<|eot_id|>") else ""), READERS[form], prefix=prefix, tools=TOOLS)


def reading(form, text, mark):
    """Content and calls that transformers reads in a turn, or its error. None if it has no reader."""
    if form not in READERS:
        return None
    try:
        read = parsed(form, text, mark)
    except Exception as error:
        return {"error": type(error).__name__}
    found = [call["function"] for call in read.get("tool_calls") or []]
    return {"content": read.get("content") or "", "calls": found}


def part_of(form, text, begins_in_thought):
    """Like `reading`, with the thought, after a prompt that may open it."""
    mark = "<|eot_id|>" if form == "llama3" else "<|im_end|>"
    read = parsed(form, text, mark, READERS[form]["start_anchor"] + "<think>\n" if begins_in_thought else "")
    return {"text": text, "begins_in_thought": begins_in_thought, "thought": read.get("reasoning_content") or "", "content": read.get("content") or "",
            "calls": [call["function"] for call in read.get("tool_calls") or []]}


def suffix(tok, source, tool_messages):
    """The ids that TRL appends to a turn with calls."""
    stand_in = types.SimpleNamespace(_is_vlm=False, processing_class=tok, chat_template=source, chat_template_kwargs={}, _tokenizer=tok)
    try:
        return GRPOTrainer._get_tool_suffix_ids(stand_in, tool_messages)
    except Exception as error:
        return None  # the template requires ids, which TRL does not provide


def case_of(tok, source, form, mark, name, messages, trained=None):
    """`trained` is TRL's replacement for a template that changes earlier turns."""
    ending = copy.deepcopy(tok)
    ending.eos_token = mark
    case = {"template": name, "plain": render(tok, source, messages, False)}
    if messages[-1]["role"] == "tool":
        case["with_generation_prompt"] = render(tok, source, messages, True)
    if "text" not in case["plain"]:
        answers = [message for message in messages if message["role"] == "tool"]
        case["suffix"] = suffix(ending, trained or source, answers) if answers else None
        return case
    if messages is CONVERSATIONS["hard"]:
        case["ids"] = tok(case["plain"]["text"], add_special_tokens=False)["input_ids"]
    turns = []
    for i, message in enumerate(messages):
        if not message.get("tool_calls"):
            continue
        before, whole = render(tok, source, messages[:i], True)["text"], render(tok, source, messages[: i + 1], False)["text"]
        if not whole.startswith(before) or mark not in whole[len(before):]:
            continue
        text = whole[len(before): whole.rindex(mark)]
        answers = []
        for later in messages[i + 1:]:
            if later["role"] != "tool":
                break
            answers.append(later)
        behind = suffix(ending, trained or source, answers) if answers else []
        if behind is None:
            through = render(tok, source, messages[: i + 1 + len(answers)], True).get("text", "")
            begins = len(before) + len(text) + len(mark)
            behind = tok(through[begins:], add_special_tokens=False)["input_ids"] if through.startswith(whole[:begins]) else None
        turns.append({"message": i, "text": text, "read": reading(form, text, mark), "answers": len(answers), "suffix": behind})
    case["turns"] = turns
    return case


def write(out, sources, more):
    tok = AutoTokenizer.from_pretrained(FIXTURES / "rows/tokenizer")
    tok.add_special_tokens({"extra_special_tokens": [*tok.extra_special_tokens, *MARKS]})
    tok.chat_template = None
    tok.save_pretrained(out / "tokenizer")
    cases = []
    for name, (source, form, mark, trained) in sources.items():
        for key, messages in CONVERSATIONS.items():
            cases.append({"conversation": key, **case_of(tok, source, form, mark, name, messages, trained)})
    forms = {name: {"form": form, "mark": mark} for name, (_, form, mark, _) in sources.items()}
    write_json(out / "cases.json", {"meta": meta(SEED, "tokenizers", "jinja2", "trl"), "tools": TOOLS, "templates": forms, **more,
                                    "conversations": CONVERSATIONS, "cases": cases})
    print(len(cases), "cases of", len(sources), "templates")


# Format of real templates, by the beginning of their names. gradus reads no format of the others.
REAL = [("qwen2_5_vl", None), ("qwen3_5", XML), ("qwen3_6", XML), ("qwen3_8", XML), ("Qwen3.5", XML), ("Qwen3-Coder", XML), ("nemotron_3", XML),
        ("NVIDIA-Nemotron-3", XML), ("StepFun3.5", XML), ("qwen2_5", QWEN),
        ("qwen3", QWEN), ("Qwen-Qw", QWEN), ("NousResearch-Hermes", QWEN), ("Bielik", QWEN), ("MiMo", QWEN), ("llama3_1", HEADERS),
        ("llama3_2", HEADERS), ("meta-llama-Llama-3", HEADERS), ("mistralai-", LIST), ("Mistral-", LIST), ("unsloth-mistral", LIST),
        ("ibm-granite-granite-4.", ("hermes", "<|end_of_text|>")), ("Reka", ("hermes", "<sep>"))]
# The templates that TRL uses in training instead of others.
TRAINED = {"qwen3": "qwen3_training", "Qwen-Qwen3-0.6B": "qwen3_training"}


def real(folder, out):
    shipped = pathlib.Path(templates.__file__).parent / "chat_templates"
    files = sorted([*shipped.glob("*.jinja"), *pathlib.Path(folder).glob("*.jinja")])
    sources = {}
    for path in files:
        form, mark = next((form for name, form in REAL if path.stem.startswith(name)), None) or (None, "<|im_end|>")
        trained = shipped / f"{TRAINED[path.stem]}.jinja" if path.stem in TRAINED else None
        sources[path.stem] = (path.read_text(encoding="utf-8"), form, mark, trained and trained.read_text(encoding="utf-8"))
        (out / path.name).write_text(sources[path.stem][0], encoding="utf-8")
    write(out, sources, {})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--real", type=pathlib.Path, help="a folder of chat templates to use in addition to those of TRL")
    parser.add_argument("--out", type=pathlib.Path, default=FIXTURES / "tool_calls", help="folder to write (default: the committed one)")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.real:
        return real(given.real, given.out)
    sources = {}
    for name, (form, mark) in FORMS.items():
        if name in OURS:
            (given.out / f"{name}.jinja").write_text(OURS[name], encoding="utf-8")
        source = OURS.get(name) or (ROOT / ELSEWHERE[name]).read_text(encoding="utf-8")
        trained = (ROOT / ELSEWHERE["qwen"]).read_text(encoding="utf-8") if name == "thinking" else None
        sources[name] = (source, form, mark, trained)
    write(given.out, sources, {"elsewhere": ELSEWHERE})
    texts = {form: [{"text": text, "read": reading(form, text, "<|eot_id|>" if form == "llama3" else "<|im_end|>")} for text in list_]
             for form, list_ in TEXTS.items()}
    parts = {form: [part_of(form, text, begins) for text, begins in list_] for form, list_ in PARTS.items()}
    write_json(given.out / "texts.json", {"meta": meta(SEED, "trl"), **texts, "parts": parts})


main()
