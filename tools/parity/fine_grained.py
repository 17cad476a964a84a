"""Outputs of transformers for the segments of completions, as FineGrainedRLHF's rewards compute them.

A Longformer with a token head reads `question: … answer: </s> segment </s> segment` as words, and its logits at the
separators count. One with a sequence head reads prompt and completion. The tokenizer's offsets give the last token of each
segment in the completion. Models and tokenizer are those of `encoders/`: run after `encoders.py`.
"""

import json

import torch
from common import FIXTURES, arguments, meta, write_json
from transformers import LongformerForSequenceClassification, LongformerForTokenClassification, PreTrainedTokenizerFast

ROWS = [
    # question, completion, its segments
    ("who sings", "The kettle sings. The tea is warm.", ["The kettle sings.", "The tea is warm."]),
    ("is it", "A cup", ["A cup"]),
    ("is it", "The cup is cold! The kettle is it.", ["The cup is cold!", "The kettle is it."]),
]
# Its last sentence does not fit in 30 positions.
LONG = ("the tea is warm and the cup is cold and it is", "The tea is it. The kettle sings before the tea. The cup is warm.",
        ["The tea is it.", "The kettle sings before the tea.", "The cup is warm."])


def main():
    out = arguments("fine_grained")
    encoders = FIXTURES / "encoders"
    tokenizer = PreTrainedTokenizerFast.from_pretrained(encoders / "longformer")
    tokens = LongformerForTokenClassification.from_pretrained(encoders / "longformer-token").eval()
    texts = LongformerForSequenceClassification.from_pretrained(encoders / "longformer").eval()
    most = tokens.config.max_position_embeddings - 2
    rows = []
    for question, completion, segments in [*ROWS, LONG]:
        words = f"question: {question} answer: {' '.join('</s> ' + segment for segment in segments)}".split()
        read = tokenizer(words, is_split_into_words=True, truncation=True, max_length=most, return_tensors="pt", return_token_type_ids=False)
        with torch.no_grad():
            logits = tokens(**read).logits[0]
        # The last separator ends the text.
        separators = (read.input_ids[0] == tokenizer.convert_tokens_to_ids("</s>")).nonzero().flatten().tolist()[:-1]
        written = tokenizer(completion, add_special_tokens=False, return_offsets_mapping=True)
        ends, at = [], 0
        for segment in segments:
            at = completion.index(segment, at) + len(segment)
            ends.append(max(i for i, (start, end) in enumerate(written.offset_mapping) if end > start and start < at))
        whole = tokenizer(f"question: {question} answer: {completion}", truncation=True, max_length=most, return_tensors="pt", return_token_type_ids=False)
        mask = torch.zeros_like(whole.input_ids)
        mask[:, 0] = 1
        with torch.no_grad():
            scores = texts(**whole, global_attention_mask=mask).logits[0]
        rows.append({
            "question": question, "completion": completion, "completion_ids": written.input_ids, "last_tokens": ends,
            "logits": [logits[at] for at in separators], "sequence_logits": scores, "tokens": whole.input_ids.shape[1],
        })
    write_json(out / "fixture.json", {"meta": meta(None, "tokenizers"), "rows": rows})


main()
