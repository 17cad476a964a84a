"""Chat templates of several forms, rendered and tokenized by transformers' apply_chat_template.

  <name>.jinja   the templates, similar to common ones; together they use most features of such templates
  cases.json     for each template and conversation: text with and without generation prompt, or the error; ids and
                 assistant mask of the text without it (tokenizer of rows/tokenizer)
"""

import warnings

from common import FIXTURES, arguments, meta, write_json

from transformers import AutoTokenizer

SEED = 0
warnings.filterwarnings("ignore")

TEMPLATES = {}

TEMPLATES["chatml"] = r"""{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a helpful assistant.<|im_end|>
' }}{% endif %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""

TEMPLATES["chatml_training"] = r"""{#- The same turns, with the answers marked for the loss. -#}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_start|>assistant\n' }}
        {%- generation -%}
        {{ message.content }}<|im_end|>
        {%- endgeneration -%}
        {{- '\n' }}
    {%- else %}
        {{- '<|im_start|>' ~ message.role ~ '\n' ~ message.content ~ '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""

TEMPLATES["headers"] = r"""{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = "1 Jan 2025" %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\n" }}
{%- endif %}
{{- "Today Date: " + date_string + "\n\n" }}
{%- if tools is not none %}
    {{- "You have these functions. Answer with {\"name\": name, \"parameters\": values}.\n\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}
        {%- if message['content'] is string %}{{ message['content'] | trim }}{% else %}
            {%- for part in message['content'] if part['type'] == 'text' %}{{ part['text'] | trim }}{% endfor %}
        {%- endif %}
        {{- '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}
            {{- raise_exception("One call at a time, please.") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
        {{- '{"name": "' + call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- call.arguments | tojson }}
        {{- "}<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\n\n" }}
        {%- if message.content is mapping or message.content is iterable and message.content is not string %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""

TEMPLATES["thinking"] = r"""{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\n\n' }}
    {%- endif %}
    {{- "# Tools\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools><|im_end|>\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\n') %}
            {%- endif %}
        {%- endif %}
        {{- '<|im_start|>' + message.role + '\n' }}
        {%- generation %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
            {%- else %}
                {{- content }}
            {%- endif %}
        {%- else %}
            {{- content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}
                    {{- '\n' }}
                {%- endif %}
                {%- if tool_call.function %}
                    {%- set tool_call = tool_call.function %}
                {%- endif %}
                {{- '<tool_call>\n{"name": "' }}
                {{- tool_call.name }}
                {{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments | tojson }}
                {%- endif %}
                {{- '}\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>' }}
        {%- endgeneration %}
        {{- '\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' }}
        {{- content }}
        {{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}"""

TEMPLATES["alternating"] = r"""{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '
' }}{% if role == 'model' %}{% generation %}{{ message['content'] | trim }}<end_of_turn>{% endgeneration %}{% else %}{{ message['content'] | trim + '<end_of_turn>' }}{% endif %}{{ '
' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model
'}}{% endif %}"""

TEMPLATES["macros"] = r"""{%- macro parts(content, depth=1) -%}
    {%- if content is string -%}
        {{ content | replace('\t', '    ') }}
    {%- elif content is mapping -%}
        {%- for key, value in content.items() -%}
            {{ key | upper }}={{ parts(value, depth + 1) }}{{ '' if loop.last else ';' }}
        {%- endfor -%}
    {%- elif content is iterable -%}
        {%- for part in content -%}
            {%- if part.type == 'text' -%}{{ parts(part.text, depth=depth + 1) }}{%- else -%}[{{ part.type | title }} {{ loop.index }}/{{ loop.length }}]{%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ content | default('nothing', true) }}
    {%- endif -%}
{%- endmacro -%}
{%- macro tool_names(tools) -%}
    {{ tools | map(attribute='function') | map(attribute='name') | join(', ') }}
{%- endmacro -%}
{%- set state = namespace(system='', count=0, seen=[]) -%}
{%- for message in messages if message.role == 'system' -%}
    {%- set state.system = state.system + ('\n\n' if state.system else '') + parts(message.content) -%}
{%- endfor -%}
{{ bos_token }}{% if state.system %}{{ state.system | trim }}

{% endif %}
{% if tools %}
Tools: {{ tool_names(tools) }}
{% endif %}
{%- for message in messages -%}
    {%- if message.role == 'system' -%}{% continue %}{%- endif -%}
    {%- if state.count >= 6 -%}{% break %}{%- endif -%}
    {%- set state.count = state.count + 1 -%}
    {%- if message.role not in state.seen -%}{%- set state.seen = state.seen + [message.role] -%}{%- endif -%}
    {%- set body -%}
        {{ parts(message['content']) }}
    {%- endset -%}
    [{{ message.role[0:2] | capitalize }}{{ message.role[-1] }} {{ state.count }}] {{ body | trim }} ({{ body | length }}){{ eos_token if message.role == 'assistant' }}
{% endfor -%}
Roles: {{ state.seen | join('+') }}; even: {{ 'yes' if state.count is divisibleby 2 else 'no' }}; half: {{ state.count // 2 }}.
{%- if add_generation_prompt %}

[Ast {{ state.count + 1 }}]{% endif %}
"""

TEMPLATES["printing"] = r"""{% for message in messages %}
{{ loop.index }}. {{ message.role }}:{{ message.content }}|{{ message.missing }}|{{ message.name | default('-') }}
{% if message.extra is defined %}
 {{ message.extra }} {{ message.extra | tojson }}
{{ message.extra | tojson(indent=2) }}
 {{ message.extra | tojson(separators=(',', ':')) }} {{ message.extra | tojson(sort_keys=True) }} {{ message.extra | tojson(ensure_ascii=True) }}
{% endif %}
{% endfor %}
{{ true }} {{ none }} {{ 1.0 }} {{ 7 / 2 }} {{ 7 // 2 }} {{ -7 % 3 }} {{ 2 ** 3 }} {{ [1, 'a', none] }} {{ range(3) | list }} {{ 'a' * 3 }} {{ "x" in "xyz" }}
    {%- if add_generation_prompt %} >{% endif %}
"""


def say(*pairs):
    return [{"role": role, "content": text} for role, text in pairs]


TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds <a> & 'b', é", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}}},
    {"type": "function", "function": {"name": "now", "description": "The time", "parameters": {}}}]
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": [2.5, True, None, "é<"]}}}
CONVERSATIONS = {
    "one_question": (say(("user", "How far is the island?")), None, {}),
    "turns": (say(("system", "Short answers."), ("user", "Tea?"), ("assistant", "Yes."), ("user", "Sugar?"), ("assistant", "No.")), None, {}),
    "no_system": (say(("user", "Tea?"), ("assistant", "Yes."), ("user", "Sugar?"), ("assistant", "No.")), None, {}),
    "spaces": (say(("user", "  two spaces \n"), ("assistant", "\n\nline\n "), ("user", ""), ("assistant", "\tx")), None, {}),
    "unicode": (say(("user", "naïve 漢字 🙂 e\u0301"), ("assistant", "ß → ﬁ \u00a0 🙃🏽")), None, {}),
    "reasoning": ([*say(("user", "Seven plus five?"), ("assistant", "<think>\nadd them\n</think>\n\ntwelve"), ("user", "Sure?")),
                   {"role": "assistant", "content": "Yes.", "reasoning_content": "\nstill twelve\n"}], None, {}),
    "no_thinking": (say(("user", "Seven plus five?")), None, {"enable_thinking": False}),
    "tool": ([*say(("system", "Use tools."), ("user", "1 + 2.5?")), {"role": "assistant", "content": "", "tool_calls": [CALL]},
              *say(("tool", "3.5"), ("assistant", "It is 3.5."))], TOOLS, {}),
    "two_tools": ([*say(("user", "1 + 2.5?")), {"role": "assistant", "content": "Wait.", "tool_calls": [CALL, CALL]},
                   *say(("tool", "3.5"), ("tool", "4"))], TOOLS, {"date_string": "2 Feb 2030"}),
    "parts": ([{"role": "user", "content": [{"type": "text", "text": "Look:\t"}, {"type": "image"}, {"type": "text", "text": "what?"}]},
               *say(("assistant", "A ship."))], None, {}),
    "wrong_order": (say(("assistant", "Hello."), ("user", "Hi."), ("user", "Hi again.")), None, {}),
    "many": (say(*[("user" if i % 2 == 0 else "assistant", f"turn {i}") for i in range(9)]), None, {}),
    "extra": ([{"role": "user", "content": "x", "name": "Ann", "extra": {
        "b": [1, 2.0, -0.5, True, None], "a": {"é": "<&'\">", "slash": "a/b\\c\n"}, "numbers": [0.1, 1e-7, 1e16, 123456789012, 1.5e300]}},
        {"role": "assistant", "content": None, "extra": []}], None, {}),
}
ONLY = {"extra": ("printing",), "parts": ("headers", "thinking", "macros"), "two_tools": ("headers", "thinking", "macros")}
EVERYWHERE = ("one_question", "turns", "no_system", "spaces", "unicode")


def wanted(template, conversation):
    if conversation in ONLY:
        return template in ONLY[conversation]
    if conversation in EVERYWHERE:
        return True
    return template not in ("chatml", "printing") or conversation == "wrong_order" and template == "chatml"


def render(tokenizer, template, messages, tools, more, prompt):
    try:
        return {"text": tokenizer.apply_chat_template(messages, tools=tools, chat_template=template, tokenize=False,
                                                      add_generation_prompt=prompt, **more)}
    except Exception as error:  # exceptions of the template, and everything that Jinja rejects
        return {"error": f"{type(error).__name__}: {error}"}


def main():
    out = arguments("chat_templates")
    tokenizer = AutoTokenizer.from_pretrained(FIXTURES / "rows/tokenizer")
    cases = []
    for name, template in TEMPLATES.items():
        (out / f"{name}.jinja").write_text(template, encoding="utf-8")
        for key, (messages, tools, more) in CONVERSATIONS.items():
            if not wanted(name, key):
                continue
            case = {"template": name, "conversation": key, "plain": render(tokenizer, template, messages, tools, more, False),
                    "with_generation_prompt": render(tokenizer, template, messages, tools, more, True)}
            if "text" in case["plain"]:
                marked = "{% generation" in template or "{%- generation" in template
                encoded = tokenizer.apply_chat_template(messages, tools=tools, chat_template=template, return_dict=True,
                                                        return_assistant_tokens_mask=marked, **more)
                case["ids"] = encoded["input_ids"]
                if marked:
                    case["assistant_mask"] = encoded["assistant_masks"]
            else:
                print(name, key, case["plain"]["error"])
            cases.append(case)
    conversations = {key: {"messages": m, "tools": t, "variables": v} for key, (m, t, v) in CONVERSATIONS.items()}
    write_json(out / "cases.json", {"meta": meta(SEED, "tokenizers", "jinja2"), "tokenizer": "rows/tokenizer",
                                    "conversations": conversations, "cases": cases})
    print(len(cases), "cases")


main()
