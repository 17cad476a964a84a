"""Classifiers on encoders, written by transformers, with tokenizers, logits and gradients.

Each folder contains the files of `save_pretrained`, and
  expected.json         rows (`ids`, with some `types` and `global`); texts, and the results of the tokenizer and the model for them
  expected.safetensors  logits.<i>, `[K]` or `[T, K]`, of row i run alone; weights.<i> of the same shape;
                        grad.<state dict name> of the sum of all logits, each times its weight
"""

import shutil

from common import arguments, meta, write_json

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AlbertConfig,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    BertConfig,
    DebertaConfig,
    DebertaV2Config,
    DistilBertConfig,
    LongformerConfig,
    ModernBertConfig,
    PreTrainedTokenizerFast,
    RobertaConfig,
    set_seed,
)

SEED = 80
VOCAB = 150
LENGTHS = (3, 11, 26)
TEXTS = [
    ("The kettle sings before the tea is poured.", None),
    ("a warm cup", "the cup is cold"),
    ("Nobody asked for more water, so none was boiled; naïve, perhaps!", "Water was boiled."),
    ("tea", "no"),
]
CORPUS = [text for pair in TEXTS for text in pair if text] + [
    "the tea is warm and the cup is full", "she poured the water slowly", "more tea for everyone, please",
    "the cold kettle waits on the stove", "nobody sings before breakfast", "boiled water makes good tea",
]
LABELS = {"id2label": {0: "bad", 1: "so-so", 2: "good"}, "label2id": {"bad": 0, "so-so": 1, "good": 2}}


def bert(kind=BertConfig, **more):
    base = dict(vocab_size=VOCAB, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=34,
                max_position_embeddings=30, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return kind(**{**base, **more})


def roberta(kind=RobertaConfig, **more):
    return bert(kind, **{"type_vocab_size": 1, "layer_norm_eps": 1e-5, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
                         "max_position_embeddings": 32, **more})


def distilbert(**more):
    base = dict(vocab_size=VOCAB, dim=24, n_layers=2, n_heads=4, hidden_dim=34, max_position_embeddings=30, dropout=0.0,
                attention_dropout=0.0, seq_classif_dropout=0.0)
    return DistilBertConfig(**{**base, **more})


def albert(**more):
    return bert(AlbertConfig, **{"embedding_size": 10, "num_hidden_layers": 3, "num_hidden_groups": 2, "inner_group_num": 2,
                                 "classifier_dropout_prob": 0.0, **more})


def modernbert(**more):
    base = dict(vocab_size=VOCAB, hidden_size=24, num_hidden_layers=4, num_attention_heads=2, intermediate_size=20,
                max_position_embeddings=64, local_attention=6, pad_token_id=0, bos_token_id=2, eos_token_id=3, cls_token_id=2,
                sep_token_id=3)
    return ModernBertConfig(**{**base, **more})


def deberta(**more):
    base = dict(relative_attention=True, pos_att_type=["p2c", "c2p"], position_biased_input=False, type_vocab_size=0,
                position_buckets=6, norm_rel_ebd="layer_norm", share_att_key=True, max_position_embeddings=20,
                pooler_hidden_act="gelu", layer_norm_eps=1e-7)
    return bert(DebertaV2Config, **{**base, **more})


def deberta_v1(**more):
    base = dict(relative_attention=True, pos_att_type=["c2p", "p2c"], position_biased_input=False, type_vocab_size=0,
                max_position_embeddings=20, pooler_hidden_act="gelu", layer_norm_eps=1e-7)
    return bert(DebertaConfig, **{**base, **more})


SEQUENCE = {
    "bert": bert(**LABELS),
    "bert-regression": bert(num_labels=1, hidden_act="gelu_new", num_hidden_layers=1),
    "bert-any": bert(num_labels=4, problem_type="multi_label_classification", num_hidden_layers=1, hidden_act="relu"),
    "roberta": roberta(**LABELS),
    # Rows of ids can have types, although the tokenizers of the class give none.
    "roberta-types": roberta(type_vocab_size=2, num_labels=2, num_hidden_layers=1),
    "distilbert": distilbert(num_labels=2),
    "longformer": roberta(LongformerConfig, num_labels=2, attention_window=[4, 8], sep_token_id=2),
    "albert": albert(num_labels=2),
    "modernbert": modernbert(num_labels=2),
    "modernbert-mean": modernbert(num_labels=3, classifier_pooling="mean", norm_bias=True, attention_bias=True, mlp_bias=True,
                                  classifier_bias=True, num_hidden_layers=3, hidden_size=16),
    "deberta": deberta(**LABELS),
    "deberta-v2": deberta(num_labels=1, share_att_key=False, norm_rel_ebd="none", position_buckets=-1, conv_kernel_size=3,
                          conv_act="gelu", type_vocab_size=2, position_biased_input=True, max_position_embeddings=30,
                          max_relative_positions=8, embedding_size=12),
    "deberta-v1": deberta_v1(**LABELS),
}
TOKEN = {
    "bert-token": bert(num_labels=3, num_hidden_layers=1),
    "roberta-token": roberta(num_labels=2, num_hidden_layers=1),
    "distilbert-token": distilbert(num_labels=3, n_layers=1),
    "longformer-token": roberta(LongformerConfig, num_labels=3, attention_window=6, sep_token_id=2),
    "longformer-wide": roberta(LongformerConfig, num_labels=2, attention_window=64, num_hidden_layers=1, sep_token_id=2),
    "albert-token": albert(num_labels=2, num_hidden_layers=2, num_hidden_groups=1, inner_group_num=1),
    "modernbert-token": modernbert(num_labels=2, num_hidden_layers=2),
    "deberta-token": deberta(num_labels=2, pos_att_type=["c2p"], share_att_key=False, num_hidden_layers=1),
    "deberta-v1-token": deberta_v1(num_labels=2, pos_att_type=["p2c"], type_vocab_size=2, position_biased_input=True,
                                   max_position_embeddings=30, max_relative_positions=8, num_hidden_layers=1),
}
# Global tokens of a row, if they are not the default of the class.
GLOBAL = {"longformer": {1: [0, 3, 7], 2: []}, "longformer-wide": {2: [5]}}


def fill(model, generator):
    """Weights far from the usual initialization, so that a wrong operation changes the output visibly."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1:
                center = 1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0
                parameter.copy_(center + 0.2 * noise)
            elif "embeddings" in name:
                parameter.copy_(0.5 * noise)
            else:
                parameter.copy_(0.3 * noise)


def wordpiece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=VOCAB, special_tokens=special))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    tokenizer.decoder = decoders.WordPiece()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=["input_ids", "token_type_ids", "attention_mask"],
                                   unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]",
                                   sep_token="[SEP]", mask_token="[MASK]")


def sentencepiece():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents()])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    tokenizer.train_from_iterator(
        CORPUS, trainers.UnigramTrainer(vocab_size=120, special_tokens=special, unk_token="[UNK]"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)])
    tokenizer.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=["input_ids", "token_type_ids", "attention_mask"],
                                   unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]",
                                   sep_token="[SEP]", mask_token="[MASK]", bos_token="[CLS]", eos_token="[SEP]")


def byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    # Not every byte: the fixture would be twice as large.
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=special))
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>", cls_token="<s>",
                                   sep_token="</s>", mask_token="<mask>", bos_token="<s>", eos_token="</s>",
                                   model_input_names=["input_ids", "attention_mask"])


TOKENIZERS = {"bert": wordpiece, "bert-token": wordpiece, "roberta": byte_level, "deberta": sentencepiece, "bert-regression": wordpiece,
              "deberta-v1": sentencepiece,
              "longformer": byte_level}


def forward(model, row):
    more = {}
    if "types" in row:
        more["token_type_ids"] = torch.tensor([row["types"]])
    if "global" in row:
        mask = torch.zeros(1, len(row["ids"]), dtype=torch.long)
        mask[0, row["global"]] = 1
        more["global_attention_mask"] = mask
    ids = torch.tensor([row["ids"]])
    return model(input_ids=ids, attention_mask=torch.ones_like(ids), **more).logits[0]


def rows(name, config, generator):
    made = []
    for i, length in enumerate(LENGTHS):
        row = {"ids": torch.randint(5, VOCAB, (length,), generator=generator).tolist()}
        if name.startswith(("bert", "albert", "deberta-v2", "deberta-v1-token", "roberta-types")) and i > 0:
            row["types"] = [0] * 4 + [1] * (length - 4)
        if i in GLOBAL.get(name, {}):
            row["global"] = GLOBAL[name][i]
        if name == "roberta-token" and i == 1:
            # Padding in the middle of a text keeps the position of padding.
            row["ids"][4] = config.pad_token_id
        made.append(row)
    return made


def texts(model, tokenizer):
    found, limit = [], 12
    for first, second in TEXTS:
        made = tokenizer(first, second, return_token_type_ids=True)
        row = {"ids": made["input_ids"]}
        reads_types = "token_type_ids" in tokenizer.model_input_names and getattr(model.config, "type_vocab_size", 0) > 1
        if reads_types:
            row["types"] = made["token_type_ids"]
        entry = {"text": first, "pair": second, "ids": made["input_ids"], "types": made["token_type_ids"]}
        for side in ("left", "right"):
            tokenizer.truncation_side = side
            cut = tokenizer(first, second, truncation=True, max_length=limit, return_token_type_ids=True)
            entry[f"cut_{side}"] = cut["input_ids"]
        tokenizer.truncation_side = "right"
        with torch.no_grad():
            entry["logits"] = forward(model, row)
        found.append(entry)
    return {"limit": limit, "texts": found}


def write(kind, name, config, out, seed):
    generator = torch.Generator().manual_seed(seed)
    model = kind.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    fill(model, generator)
    made = rows(name, config, generator)
    logits = [forward(model, row) for row in made]
    weights = [torch.randn(z.shape, generator=generator) for z in logits]
    # torch gives the rows of padding no gradient, at any position.
    weights = [w * float(config.pad_token_id not in row["ids"]) for w, row in zip(weights, made)]
    sum((z * w).sum() for z, w in zip(logits, weights)).backward()
    tensors = {f"logits.{i}": z.detach().contiguous() for i, z in enumerate(logits)}
    tensors |= {f"weights.{i}": w for i, w in enumerate(weights)}
    tensors |= {f"grad.{n}": p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    more = {}
    if name in TOKENIZERS:
        tokenizer = TOKENIZERS[name]()
        assert len(tokenizer) <= VOCAB, len(tokenizer)
        more = texts(model, tokenizer)
        tokenizer.save_pretrained(out)
    save_file(tensors, out / "expected.safetensors")
    write_json(out / "expected.json", {"meta": meta(seed, "safetensors", "tokenizers"), "rows": made, **more})
    model.save_pretrained(out)
    again, report = kind.from_pretrained(out, attn_implementation="eager", dtype=torch.float32, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"], report
    for row, z in zip(made, logits):
        torch.testing.assert_close(forward(again.eval(), row), z, rtol=0, atol=1e-6)


def main():
    root = arguments("encoders")
    set_seed(SEED)
    for kind, configs in ((AutoModelForSequenceClassification, SEQUENCE), (AutoModelForTokenClassification, TOKEN)):
        for name, config in configs.items():
            out = root / name
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir()
            write(kind, name, config, out, SEED)
            print(name, sum(f.stat().st_size for f in out.iterdir()) // 1024, "KB")


main()
