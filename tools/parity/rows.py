"""The tokens that TRL's trainers pass to their models: tokenizer directories, raw rows, processed rows, collated batches.

  tokenizer/, tokenizer_bos/   a small byte-level BPE with a chat template; the second one puts <bos> before plain text
  sft.json dpo.json reward.json grpo.json   cases: options, raw rows, outputs of the trainer's dataset and collator
  implicit_prompt.json         TRL's extract_prompt on pairs of strings and of conversations
  packing.json                 TRL's pack_dataset

In a case, `kept` lists the raw rows that were kept, `processed` one entry per kept row, `batch` all kept rows collated.
"""

import shutil
import tempfile

from common import arguments, meta, write_json

from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, GPT2Config, GPT2ForSequenceClassification, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, GRPOTrainer, RewardConfig, RewardTrainer, SFTConfig, SFTTrainer, extract_prompt, pack_dataset

SEED = 3
VOCAB = 320
SPECIALS = ["<pad>", "<bos>", "<eos>", "<|turn|>", "<|end|>"]

TEXT = """
The ferry left the harbour before sunrise, and the passengers watched the lights of the town grow small.
A cook in the galley asked whether anyone wanted tea. Nobody answered, because the engine was loud and the wind was louder.
How far is the island? It is eleven miles away, said the captain, and the weather will hold until the evening.
When the fog came, the captain slowed the ship and rang the bell every minute. The sound went out over the water and came back.
What is the capital of France? The capital of France is Paris. What colour is the sky? The sky is blue when the air is clear.
The cat sat on the warm stone and waited for the fisherman. The fisherman was late, as he was on most days.
Please write a short answer. Please explain the answer in two sentences. I am sorry, I cannot help with that question.
Human: Can you help me with the garden? Assistant: Yes, I can help you with the garden. Which plants would you like to grow?
Seven plus five is twelve, and twelve minus four is eight; the numbers 1, 2, 3, 10 and 100 are easy to add.
""" * 3

TEMPLATE = """\
{%- if tools %}{{ '<|turn|>tools\\n' }}{% for tool in tools %}{{ tool | tojson }}{{ '\\n' }}{% endfor %}{{ '<|end|>\\n' }}{% endif %}
{%- for message in messages %}
    {{- '<|turn|>' + message['role'] + '\\n' }}
    {%- if message['role'] == 'assistant' %}
        {%- generation %}{{ message['content'] | trim }}{{ '<|end|>' }}{% endgeneration %}
    {%- else %}
        {{- message['content'] | trim + '<|end|>' }}
    {%- endif %}
    {{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|turn|>assistant\\n' }}{% if thinking is defined and thinking %}{{ '<think>\\n' }}{% endif %}{% endif %}
"""


def tokenizers(root):
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=SPECIALS, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    bpe.train_from_iterator(TEXT.splitlines(), trainer)
    assert bpe.get_vocab_size() == VOCAB
    for name in ("tokenizer", "tokenizer_bos"):
        if name == "tokenizer_bos":
            bpe.post_processor = processors.Sequence([
                processors.ByteLevel(trim_offsets=False),
                processors.TemplateProcessing(single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", 1)]),
            ])
        wrapped = PreTrainedTokenizerFast(
            tokenizer_object=bpe, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>",
            additional_special_tokens=["<|turn|>", "<|end|>"], chat_template=TEMPLATE)
        shutil.rmtree(root / name, ignore_errors=True)
        wrapped.save_pretrained(root / name)


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def system(text):
    return {"role": "system", "content": text}


HH = "\n\nHuman: Can you help me with the garden?\n\nAssistant: Yes, which plants would you like to grow?\n\nHuman: Roses.\n\nAssistant:"
TEXTS = [
    {"text": "The cat sat on the warm stone."},
    {"text": "The sky is blue.<eos>"},
    {"text": "A ship\n\n  with  two   spaces, an é, 漢字 and 🙂"},
    {"text": "Tea?"},
    {"text": ""},
]
MESSAGES = [
    {"messages": [user("How far is the island?"), assistant("Eleven miles.")]},
    {"messages": [system("Answer in one word."), user("What colour is the sky?"), assistant("Blue."), user("And the sea?"),
                  assistant(" Blue too. \n")]},
    {"messages": [user("Write <|end|> in your answer, please."), assistant("I cannot.<eos>")]},
    {"messages": [user("When the fog came, what did the captain do? Please explain the answer in two sentences."),
                  assistant("He slowed the ship.")]},
]
PAIRS = [
    {"prompt": "What is the capital of France?", "completion": " The capital of France is Paris."},
    {"prompt": "The ca", "completion": "t sat on the warm stone."},
    {"prompt": "The ca", "completion": "ptain"},
    {"prompt": "Seven plus five is", "completion": " twelve<eos>"},
    {"prompt": "What colour is the sky when the air is clear? Please write a short answer.", "completion": "Blue"},
    {"prompt": "Tea?", "completion": ""},
]
CHAT_PAIRS = [
    {"prompt": [user("How far is the island?")], "completion": [assistant("Eleven miles.")]},
    {"prompt": [system("Short answers."), user("Hi"), assistant("Hello."), user("Tea?")],
     "completion": [assistant("Yes."), user("Sugar?"), assistant("No.")]},
    {"prompt": [user("Go on."), assistant("The cat")], "completion": [assistant(" sat.")]},
]
TOOL = {"type": "function", "function": {"name": "add", "description": "Adds <a> & <b>, é", "parameters": {"a": "int"}}}

SFT = {
    "text": (TEXTS, {}),
    "text_cut": (TEXTS, {"max_length": 6}),
    "text_bos": (TEXTS, {"tokenizer": "tokenizer_bos"}),
    "messages": (MESSAGES, {}),
    "messages_cut": (MESSAGES, {"max_length": 20}),
    "messages_assistant_only": (MESSAGES, {"assistant_only_loss": True}),
    "messages_assistant_only_cut": (MESSAGES, {"assistant_only_loss": True, "max_length": 34}),
    "messages_bos": (MESSAGES, {"tokenizer": "tokenizer_bos", "assistant_only_loss": True}),
    "messages_tools": ([{**MESSAGES[0], "tools": [TOOL]}, {**MESSAGES[1], "tools": [TOOL]}], {}),
    "messages_kwargs": ([{**row, "chat_template_kwargs": {"thinking": True}} for row in MESSAGES], {}),
    "conversations": ([{"conversations": [{"from": m["role"], "value": m["content"]} for m in row["messages"]]}
                       for row in MESSAGES], {}),
    "prompt_completion": (PAIRS, {}),
    "prompt_completion_all": (PAIRS, {"completion_only_loss": False}),
    "prompt_completion_cut": (PAIRS, {"max_length": 12}),
    "prompt_completion_bos": (PAIRS, {"tokenizer": "tokenizer_bos"}),
    "chat_prompt_completion": (CHAT_PAIRS, {}),
    "chat_prompt_completion_assistant_only": (CHAT_PAIRS, {"assistant_only_loss": True}),
    "chat_prompt_completion_kwargs": ([{**row, "chat_template_kwargs": {"thinking": True}} for row in CHAT_PAIRS], {}),
    "ids": ([{"input_ids": [5, 6, 7, 2]}, {"input_ids": [8, 2]}], {}),
    "ids_completion_mask": ([{"input_ids": [5, 6, 7, 2], "completion_mask": [0, 0, 1, 1]},
                             {"input_ids": [8, 9, 2], "completion_mask": [0, 1, 1]}], {"completion_only_loss": True}),
    "ids_assistant_masks": ([{"input_ids": [5, 6, 7, 2], "assistant_masks": [0, 1, 0, 1]}], {}),
    "ids_labels": ([{"input_ids": [5, 6, 7, 2], "labels": [-100, 6, -100, 2]}], {}),
}

PREFERENCES = [
    {"prompt": "What is the capital of France?", "chosen": " Paris.", "rejected": " I am sorry, I cannot help."},
    {"prompt": "The ca", "chosen": "t sat", "rejected": "ptain"},
    {"prompt": "The captain", "chosen": " slowed the ship.<eos>", "rejected": ""},
    {"prompt": "What colour is the sky when the air is clear?", "chosen": " It is blue when the air is clear.", "rejected": " Red."},
]
IMPLICIT = [
    {"chosen": HH + " Roses need water every day.", "rejected": HH + " Red is a colour."},
    {"chosen": HH + " I am not sure, but roses grow.", "rejected": HH + " I am sorry, I cannot help."},
    {"chosen": HH + " Yes.", "rejected": HH + " Yes. And the garden?"},
    {"chosen": "A: blue", "rejected": "A: black"},
]
CHAT_PREFERENCES = [
    {"prompt": [user("What colour is the sky?")], "chosen": [assistant("Blue.")], "rejected": [assistant("Red.")]},
    {"prompt": [system("Short."), user("Tea?")], "chosen": [assistant("Yes."), user("Sugar?"), assistant("No.")],
     "rejected": [assistant("Yes, please write a short answer.")]},
]
CHAT_IMPLICIT = [{"chosen": row["prompt"] + row["chosen"], "rejected": row["prompt"] + row["rejected"]} for row in CHAT_PREFERENCES]

DPO = {
    "strings": (PREFERENCES, {}),
    "strings_cut": (PREFERENCES, {"max_length": 11}),
    "strings_bos": (PREFERENCES, {"tokenizer": "tokenizer_bos"}),
    "implicit": (IMPLICIT, {}),
    "chat": (CHAT_PREFERENCES, {}),
    "chat_implicit": (CHAT_IMPLICIT, {}),
    "chat_cut": (CHAT_PREFERENCES, {"max_length": 29}),
    "chat_kwargs": ([{**row, "chat_template_kwargs": {"thinking": True}} for row in CHAT_PREFERENCES], {}),
}
REWARD = {
    "strings": (PREFERENCES, {}),
    "strings_too_long": (PREFERENCES, {"max_length": 16}),
    "strings_bos": (PREFERENCES, {"tokenizer": "tokenizer_bos"}),
    "strings_margin": ([{**row, "margin": 0.5 * i} for i, row in enumerate(PREFERENCES)], {}),
    "implicit": (IMPLICIT, {}),
    "chat": (CHAT_PREFERENCES, {}),
    "chat_implicit": (CHAT_IMPLICIT, {}),
    "ids": ([{"chosen_ids": [5, 6, 2], "rejected_ids": [7, 2]}], {}),
}
PROMPTS = {
    "strings": (["What colour is the sky?", "Tea?", " The ferry left\n"], {}),
    "strings_bos": (["What colour is the sky?", "Tea?"], {"tokenizer": "tokenizer_bos"}),
    "chat": ([row["prompt"] for row in CHAT_PAIRS], {}),
    "chat_bos": ([row["prompt"] for row in CHAT_PAIRS], {"tokenizer": "tokenizer_bos"}),
    "chat_kwargs": ([row["prompt"] for row in CHAT_PAIRS], {"chat_template_kwargs": {"thinking": True}}),
}


def tiny(kind):
    config = GPT2Config(vocab_size=VOCAB, n_embd=8, n_layer=1, n_head=1, n_positions=256, pad_token_id=0, bos_token_id=1,
                        eos_token_id=2, num_labels=1)
    return kind(config)


def run(trainer_kind, config_kind, model_kind, rows, options, keep, root):
    options = dict(options)
    tokenizer = AutoTokenizer.from_pretrained(root / options.pop("tokenizer", "tokenizer"))
    with tempfile.TemporaryDirectory() as scratch:
        args = config_kind(output_dir=scratch, report_to=[], bf16=False, use_cpu=True, gradient_checkpointing=False,
                           disable_tqdm=True, **{"max_length": 256, **options})
        data = Dataset.from_list([{**row, "row": i} for i, row in enumerate(rows)])
        extra = {"ref_model": tiny(model_kind)} if trainer_kind is DPOTrainer else {}
        trainer = trainer_kind(model=tiny(model_kind), args=args, train_dataset=data, processing_class=tokenizer, **extra)
        processed = list(trainer.train_dataset)
        assert processed, options
        batch = trainer.data_collator([{k: v for k, v in row.items() if k != "row"} for row in processed])
    return {
        "kept": [row["row"] for row in processed],
        "processed": [{k: row[k] for k in keep if k in row} for row in processed],
        "batch": dict(batch),
    }


def cases(table, root, *how):
    answer = []
    for name, (rows, options) in table.items():
        named = {"tokenizer": "tokenizer", "max_length": 256, **options}
        answer.append({"name": name, "options": named, "rows": rows, **run(*how[:3], rows, options, how[3], root)})
    return answer


def prompts(root):
    answer = []
    for name, (rows, options) in PROMPTS.items():
        tokenizer = AutoTokenizer.from_pretrained(root / options.get("tokenizer", "tokenizer"))
        trainer = object.__new__(GRPOTrainer)
        trainer.__dict__.update(_is_vlm=False, environment_factories=None, processing_class=tokenizer, tools=None,
                                chat_template=None, chat_template_kwargs=options.get("chat_template_kwargs", {}))
        ids, _, _ = trainer._tokenize_prompts(rows)
        answer.append({"name": name, "options": {"tokenizer": "tokenizer", **options}, "rows": [{"prompt": row} for row in rows],
                       "prompt_ids": ids})
    return answer


def implicit():
    pairs = IMPLICIT + CHAT_IMPLICIT + [
        {"chosen": "ab", "rejected": "abc"},
        {"chosen": "same", "rejected": "same"},
        {"chosen": "x", "rejected": "y"},
        {"chosen": "The answer  is", "rejected": "The answer  was"},
        {"chosen": "The answer \tyes", "rejected": "The answer \tno"},
        {"chosen": "naïve é", "rejected": "naïve è"},
        {"chosen": "ok 🙂", "rejected": "ok 🙃"},
        {"chosen": [user("Hi"), assistant("A"), user("B"), assistant("C")],
         "rejected": [user("Hi"), assistant("A"), user("B"), assistant("D"), user("E")]},
        {"chosen": [user("Hi"), assistant("A")], "rejected": [user("Hi"), assistant("A"), user("B")]},
    ]
    note = "strings are compared by Unicode character"
    return {"note": note, "cases": [{"row": pair, "expected": extract_prompt(dict(pair))} for pair in pairs]}


def packing():
    lengths = [3, 7, 2, 12, 5, 5, 1, 8, 4, 6, 0, 10]
    start, rows = 100, []
    for n in lengths:
        rows.append({"input_ids": list(range(start, start + n)), "labels": [-100] * min(n, 1) + list(range(start + 1, start + n))})
        start += n
    answer = []
    for strategy in ("bfd", "bfd_split", "wrapped"):
        packed = pack_dataset(Dataset.from_list(rows), 10, strategy)
        answer.append({"strategy": strategy, "max_length": 10, "packed": list(packed)})
    return {"rows": rows, "cases": answer}


def main():
    root = arguments("rows")
    tokenizers(root)
    files = {
        "sft": lambda: {"cases": cases(SFT, root, SFTTrainer, SFTConfig, GPT2LMHeadModel, ("input_ids", "labels"))},
        "dpo": lambda: {"cases": cases(DPO, root, DPOTrainer, DPOConfig, GPT2LMHeadModel, ("prompt_ids", "chosen_ids", "rejected_ids"))},
        "reward": lambda: {"cases": cases(REWARD, root, RewardTrainer, RewardConfig, GPT2ForSequenceClassification,
                                          ("chosen_ids", "rejected_ids"))},
        "grpo": lambda: {"cases": prompts(root)},
        "implicit_prompt": implicit,
        "packing": packing,
    }
    for name, build in files.items():
        answer = build()
        write_json(root / f"{name}.json", {"meta": meta(SEED, "trl", "tokenizers", "datasets"), **answer})
        for case in answer["cases"]:
            if "kept" in case:
                print(name, case["name"], case["kept"], "of", len(case["rows"]))
    write_json(root / "fixture.json", {"meta": meta(SEED, "trl", "tokenizers"), "files": list(files)})


main()
