"""Metrics that use a model, computed by their reference tools with the small models in the fixtures and a separate language model.

  gpt2/           a GPT-2 with a byte-level tokenizer, in the format of `save_pretrained`
  t5/             a T5 whose tokenizer ends texts with `</s>`
  conv_*          random weights of SummaC's convolution, also as PyTorch writes them
  rows.json       edge cases, and the values of the tools for them
"""

import json
import math
import os
import sys
import types

from common import FIXTURES, METRICS, arguments, meta, write_json

# NLTK reads only this folder.
os.environ["NLTK_DATA"] = str(METRICS)

# `bert-score` uses it for plots, which are not needed.
for name in ("matplotlib", "matplotlib.pyplot", "mpl_toolkits", "mpl_toolkits.axes_grid1"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["mpl_toolkits.axes_grid1"].make_axes_locatable = None

import bert_score
import nltk
import torch
from nltk.data import FileSystemPathPointer
from nltk.tokenize.punkt import PunktSentenceTokenizer, load_punkt_params
from summac import model_summac
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

SEED = 91
ENCODERS = FIXTURES / "encoders"
# Maximum number of ids that the encoders of the fixtures read.
POSITIONS = 30
LONG = "Nobody asked for more water before breakfast. The cold kettle waits on the stove. Boiled water makes good tea. "

ROWS = [
    dict(prompt="The kettle sings before the tea is poured. Nobody asked for more water.\n\nThe cup is warm and full.",
         prediction="The tea is poured before breakfast.", references=["The kettle sings before the tea is poured."], intent=[1]),
    dict(prompt="Hello there. <EOU>Is the tea warm? <EOU>", prediction="the cup is cold", references=["a warm cup", "the cup is cold"],
         intent=[2]),
    dict(prompt=LONG * 3, prediction=LONG * 2, references=[LONG, "Water was boiled."], intent=[3]),
    dict(prompt="Boiled water makes good tea, please.", prediction="", references=["more tea for everyone, please"], intent=[1]),
    dict(prompt="", prediction="?!... -- !!", references=["Water was boiled!"], intent=[2]),
    dict(prompt="Naïve perhaps; 水 was boiled – 🍵 too.\nAnd the cup is full of it.", prediction="naïve 水 🍵, perhaps it was not boiled",
         references=["naïve, perhaps"], intent=[3]),
    dict(prompt="The tea is warm and the cup is full.", prediction="tea", references=["tea"], intent=[3]),
    dict(prompt="She poured the water slowly, and nobody sings.", prediction="  she poured the water slowly \n",
         references=["she poured the water slowly", "", "tea"], intent=[2]),
    dict(prompt="First line of a page\n\nSecond part of that page\n\nthird", prediction="One long enough line\nAnother long enough line\nno",
         references=[""], intent=[1]),
    dict(prompt="Nobody sings before breakfast. <EOU> <EOU>tea<EOU> ", prediction="the cup is cold", references=["the cup is cold", "a warm cup"],
         intent=[1]),
    dict(prompt="the tea is warm and the cup is full<EOU>no<EOU>", prediction="more water", references=["tea", "more water, please"], intent=[3]),
    dict(prompt="no<EOU>she poured the water slowly", prediction="more water", references=["more water, please", "tea"], intent=[2]),
    # Characters that only Python treats as white space; and texts without a token with a weight, before one with a value.
    dict(prompt="\x1cthe tea is warm\x1f", prediction="\x1c\x1f", references=["tea", "\x1c"], intent=[2]),
    dict(prompt="the tea is warm", prediction="\x1cthe cup is cold\x1e", references=["[SEP]", "the cup is cold", "</s>"], intent=[1]),
]
# Training text of the language model's tokenizer.
LEARNED = 12
# Concepts of CommonGen, by row.
for i, row in enumerate(ROWS):
    row["concepts"] = [["tea", "kettle"], ["cup", "cold"], ["water", "sing", "Nobody"], ["tea"], []][i % 5]
PREDICTIONS = [row["prediction"] for row in ROWS]
PROMPTS = [row["prompt"] for row in ROWS]


def case(metric, options, values):
    """A corpus value and one value per row for each key. A value that is not a number is null."""
    number = lambda value: None if value is None or math.isnan(value) else float(value)
    written = {key: {"value": number(value), "rows": None if rows is None else [number(row) for row in rows]}
               for key, (value, rows) in values.items()}
    return {"metric": metric, "options": options, "values": written}


def mean(values):
    values = [value for value in values if value is not None]
    return sum(values) / len(values)


def language_model(out):
    """A byte-level tokenizer with every byte, and a model with weights far from the usual ones."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(PROMPTS[:LEARNED], trainers.BpeTrainer(
        vocab_size=290, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<|endoftext|>", eos_token="<|endoftext|>")
    torch.manual_seed(SEED)
    config = GPT2Config(vocab_size=len(tokenizer), n_positions=40, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
                        attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(0.3 * torch.randn(parameter.shape))
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return model, tokenizer


def loss(model, ids, labels):
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), labels=torch.tensor([labels])).loss.item()


def alone(model, ids):
    """`evaluate`'s perplexity of one text."""
    return math.exp(loss(model, ids, ids)) if len(ids) > 1 else None


def through(model, tokenizer, text, stride, length):
    """RL4LMs' loop, which is that of transformers' guide; windows that predict nothing are skipped."""
    ids = tokenizer(text)["input_ids"]
    losses, counted = [], 0
    for i in range(0, len(ids), stride):
        begin, end = max(i + stride - length, 0), min(i + stride, len(ids))
        window, new = ids[begin:end], end - i
        if len(window) > 1:
            losses.append(loss(model, window, [-100] * (len(window) - new) + window[len(window) - new:]) * new)
            counted += new
    return math.exp(sum(losses) / counted) if counted else None


def perplexities(out):
    model, tokenizer = language_model(out / "gpt2")
    here = "model=FIXTURES/../metric_models/gpt2"
    ids = lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]
    started = [alone(model, [tokenizer.bos_token_id] + ids(text)[:39]) for text in PREDICTIONS]
    yield case("perplexity", [here], {"perplexity": (mean(started), started)})
    plain = [alone(model, ids(text)[:12]) for text in PREDICTIONS]
    yield case("perplexity", [here, "add_start_token=false", "max_length=12"], {"perplexity": (mean(plain), plain)})
    for of, texts in [("prediction", [[text] for text in PREDICTIONS]), ("references", [row["references"] for row in ROWS])]:
        for stride, length in [(7, 16), (16, 16), (40, 40)]:
            rows = [through(model, tokenizer, "\n\n".join(row), stride, length) for row in texts]
            whole = through(model, tokenizer, "\n\n".join(text for row in texts for text in row), stride, length)
            yield case("perplexity", [here, f"of={of}", f"stride={stride}", f"max_length={length}"],
                       {"perplexity": (whole, None), "perplexity/rows": (mean(rows), rows)})


# Families that gradus does not read, by the beginning of their names in the tool's table.
OTHERS = ("xlnet", "xlm-mlm", "google/electra", "amazon/bort", "facebook/", "vinai/", "YituTech", "microsoft/mpnet", "squeezebert",
          "tuner007", "google/pegasus", "sshleifer", "allenai/led", "microsoft/prophetnet", "microsoft/xprophet", "zhiheng",
          "google/bigbird", "google/byt5")


def layers():
    """The tool's layer for every model of a family that gradus reads."""
    return {name: layer for name, layer in bert_score.utils.model2layers.items() if not name.startswith(OTHERS)}


def text_to_text(out):
    """Words with a leading blank each, as in T5, and a model with weights far from the usual ones."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(PROMPTS[:LEARNED] + ["good tea", "bad water"], trainers.UnigramTrainer(
        vocab_size=100, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>"))
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)])
    tokenizer.decoder = decoders.Metaspace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", pad_token="<pad>", unk_token="<unk>",
                                        model_max_length=POSITIONS)
    torch.manual_seed(SEED)
    config = T5Config(vocab_size=len(tokenizer), d_model=16, d_kv=6, d_ff=20, num_layers=3, num_decoder_layers=1, num_heads=2,
                      relative_attention_num_buckets=8, relative_attention_max_distance=12, dropout_rate=0.0, decoder_start_token_id=0)
    model = T5ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(0.4 * torch.randn(parameter.shape))
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return model, tokenizer


def preferences(out):
    """RL4LMs' preference model of CommonGen: which of two words a T5 would generate."""
    model, tokenizer = text_to_text(out / "t5")
    for penalty, good, bad in [(0.0, "good", "bad"), (0.5, "good", "bad"), (2.0, "water", "tea")]:
        words = [tokenizer.encode(word)[0] for word in (good, bad)]
        found = []
        for row in ROWS:
            made = tokenizer([row["prediction"]], truncation=True, return_tensors="pt")
            with torch.no_grad():
                logits = model(**made, decoder_input_ids=torch.tensor([[model.config.decoder_start_token_id]])).logits[0, 0]
            missing = sum(concept not in row["prediction"].lower() for concept in row["concepts"])
            found.append(torch.softmax(logits[words], -1)[0].item() / (1 + penalty * missing))
        options = ["model=FIXTURES/../metric_models/t5", f"concept_penalty={penalty}", f"good={good}", f"bad={bad}"]
        yield case("common_gen_preference", options, {"common_gen_preference": (mean(found), found)})


def bert_scores(out):
    baseline = out / "baseline.tsv"
    baseline.write_text("LAYER,P,R,F\n0,0.1,0.2,0.15\n1,0.31,0.32,0.33\n2,0.5,0.25,0.4\n")
    for name, layer, idf, rescaled in [("bert", 1, False, False), ("bert", 2, True, False), ("bert", 2, False, True),
                                       ("roberta", 2, False, False), ("roberta", 1, True, True), ("t5", 2, False, False),
                                       ("t5", 1, True, False)]:
        path = out / name if name == "t5" else ENCODERS / name
        # Slow tokenizers put a blank before RoBERTa's texts if `add_prefix_space` is set. Current ones have no such argument.
        # Empty texts have only the special tokens.
        def sent_encode(tokenizer, text, before=" " if name == "roberta" else ""):
            text = text.strip()
            return tokenizer.encode(before + text if text else "", max_length=POSITIONS, truncation=True)

        bert_score.utils.sent_encode = sent_encode
        references = [row["references"] for row in ROWS]
        # One pair at a time, because with a longer pair, padding counts as a cosine of 0.
        scorer = bert_score.BERTScorer(
            model_type=str(path), num_layers=layer, idf=idf, idf_sents=[text for row in references for text in row],
            batch_size=1, nthreads=0, device="cpu", baseline_path=str(baseline), rescale_with_baseline=rescaled, lang="en")
        found = scorer.score(PREDICTIONS, references, batch_size=1)
        options = [f"model=FIXTURES/../{path.parent.name}/{name}", f"layer={layer}"] + ["idf=true"] * idf
        options += ["baseline=FIXTURES/../metric_models/baseline.tsv"] * rescaled
        yield case("bert_score", options, {f"bert_score/{part}": (of.mean().item(), of.tolist())
                                           for part, of in zip(("precision", "recall", "f1"), found)})


def classifier(name):
    model = AutoModelForSequenceClassification.from_pretrained(ENCODERS / name, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(ENCODERS / name)

    def logits(first, second=None, side="right"):
        tokenizer.truncation_side = side
        # Lists, as these models are called: a single empty second text would be skipped.
        made = tokenizer([first], None if second is None else [second], truncation=True, max_length=POSITIONS, return_tensors="pt")
        with torch.no_grad():
            return model(**made).logits[0]

    return logits


def classified():
    for name in ("bert", "roberta"):
        logits, here = classifier(name), f"model=FIXTURES/../encoders/{name}"
        utterance = lambda row: [part for part in row["prompt"].split("<EOU>") if part.strip()] or [""]
        texts = [utterance(row)[-1] + row["prediction"] for row in ROWS]
        hits = [float(logits(text, side="left").argmax().item() == row["intent"][0] - 1) for text, row in zip(texts, ROWS)]
        yield case("intent_accuracy", [here], {"intent_accuracy": (mean(hits), hits)})
        for label, number, prompted in [("good", 2, True), ("0", 0, False)]:
            texts = [(row["prompt"] if prompted else "") + row["prediction"] for row in ROWS]
            found = [torch.softmax(logits(text, side="left"), -1)[number].item() for text in texts]
            yield case("learned_reward", [here, f"label={label}", f"include_prompt={str(prompted).lower()}"],
                       {"learned_reward": (mean(found), found)})
    logits = classifier("bert-regression")
    for references in ("max", "first", "repr"):
        used = {"max": lambda of: of, "first": lambda of: of[:1], "repr": lambda of: [str(of)]}[references]
        found = [max(logits(text, row["prediction"])[0].item() for text in used(row["references"])) for row in ROWS]
        yield case("bleurt", ["model=FIXTURES/../encoders/bert-regression", f"references={references}"],
                   {"bleurt": (mean(found), found)})


class OldCalls:
    """Functions of transformers 4 that `summac` calls."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def batch_encode_plus(self, pairs, truncation_strategy=None, **more):
        first, second = zip(*pairs)
        return self.tokenizer(list(first), list(second), **more)


def summacs(out):
    sentences = PunktSentenceTokenizer()
    sentences._params = load_punkt_params(FileSystemPathPointer(str(METRICS / "punkt")))
    nltk.tokenize.sent_tokenize = sentences.tokenize
    load = model_summac.SummaCImager.load_nli

    def load_nli(imager):
        load(imager)
        imager.tokenizer, imager.max_input_length = OldCalls(imager.tokenizer), POSITIONS

    model_summac.SummaCImager.load_nli = load_nli
    known = dict(model_card=str(ENCODERS / "bert"), entailment_idx=2, contradiction_idx=0)
    model_summac.model_map["fixture"] = known
    here = ["model=FIXTURES/../encoders/bert", "entailment=good", "contradiction=bad", "punkt=FIXTURES/punkt"]
    for options in [{}, dict(granularity="sentence"), dict(granularity="document", op2="min"), dict(granularity="2sents", op1="mean"),
                    dict(granularity="mixed", op1="min", op2="max"), dict(granularity="document-sentence", use_con=False),
                    dict(granularity="sentence", use_ent=False)]:
        scorer = model_summac.SummaCZS(model_name="fixture", imager_load_cache=False, device="cpu", **options)
        found = [float(score) for score in scorer.score(PROMPTS, PREDICTIONS)["scores"]]
        document, _, summary = options.pop("granularity", "").partition("-")
        written = [f"granularity={document}"] * bool(document) + [f"summary_granularity={summary}"] * bool(summary)
        written += [f"{key}={str(value).lower()}" for key, value in options.items()]
        yield case("summac_zs", here + written, {"summac_zs": (mean(found), found)})
    torch.manual_seed(SEED)
    for bins, labels, agg in [("percentile", "e", "mean"), ("even50", "ec", "max"), ("even50", "ecn", "min"),
                              ("even50", "c", "all")]:
        scorer = model_summac.SummaCConv(models=["fixture"], bins=bins, granularity="sentence", nli_labels=labels, device="cpu",
                                         imager_load_cache=False, agg=agg)
        name = f"conv_{bins}_{labels}.json"
        weights = {key: tensor.tolist() for key, tensor in scorer.state_dict().items()}
        (out / name).write_text(json.dumps(weights) + "\n")
        found = scorer.score(PROMPTS, PREDICTIONS)["scores"]
        yield case("summac_conv", here + [f"weights=FIXTURES/../metric_models/{name}", f"bins={bins}", f"nli_labels={labels}", f"agg={agg}"],
                   {"summac_conv": (mean(found), found)})
    model_summac.model_map["second"] = dict(model_card=str(ENCODERS / "roberta"), entailment_idx=0, contradiction_idx=1)
    more = [{"model": "FIXTURES/../encoders/roberta", "entailment": "bad", "contradiction": "1"}]
    more = "more_models=" + json.dumps(more, separators=(",", ":"))
    for bins, labels, agg, old in [("percentile", "e", "mean", True), ("even50", "ec", "all", False)]:
        scorer = model_summac.SummaCConv(models=["fixture", "second"], bins=bins, granularity="sentence", nli_labels=labels,
                                         device="cpu", imager_load_cache=False, agg=agg)
        name = f"conv_two_{bins}_{labels}.bin"
        torch.save(scorer.state_dict(), out / name, _use_new_zipfile_serialization=not old)
        found = scorer.score(PROMPTS, PREDICTIONS)["scores"]
        yield case("summac_conv", here + [f"weights=FIXTURES/../metric_models/{name}", f"bins={bins}", f"nli_labels={labels}", f"agg={agg}", more],
                   {"summac_conv": (mean(found), found)})


if __name__ == "__main__":
    out = arguments("metric_models")
    cases = [*perplexities(out), *preferences(out), *bert_scores(out), *classified(), *summacs(out)]
    write_json(out / "rows.json", {"meta": meta(SEED, "bert-score", "summac", "nltk"), "layers": layers(), "rows": ROWS, "cases": cases})
