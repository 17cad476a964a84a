"""Words by spaCy's tokenizer for English, for the tests of `gradus-metrics`.

    python3 -m venv ~/venv-spacy && ~/venv-spacy/bin/pip install spacy==3.8.18
    ~/venv-spacy/bin/python tools/parity/spacy_words.py

The texts are put together at random from the pieces below. Without whitespace tokens, as CIDEr and SPICE read them in RL4LMs.
"""

import json
import pathlib
import platform
import random

import spacy

SEED = 20270204
OUT = pathlib.Path(__file__).resolve().parents[2] / "crates/gradus-metrics/tests/fixtures/spacy.json"
SENTENCES = [
    "The dog is the boy's cat.",
    "He didn't say \"I'm leaving at 8p.m.\" (did he?), but she'd've known.",
    "Mr. Smith moved to St. Louis in Jan. 1999; the U.S. didn't notice...",
    "Visit https://www.example.com/a?b=1#c or mail me@example.org, please!",
    "It weighs 5kg, costs $3.50 and runs at 30km/h -- well-known, isn't it?",
    "a man in a red-and-white shirt,holding a sign;he's smiling:)",
    "We're going to the co-op and/or the theatre (w/o them).",
    "They said 'ello; rock 'n' roll is here to stay, y'all!",
    "Prices rose 3-5% (or 3–5 %) in 2019–2020, i.e. fast.",
    "The temperature was 20°C. In May. it fell to 10°F.",
    "He lives in N.Y. near D.C., not in the U.K.or the EU.",
    "\u201cCurly quotes,\u201d she said, \u201cdon\u2019t hurt; it\u2019s fine.\u201d",
    "Line one.\nLine two.\t Tabs  and   spaces \u00a0 end",
    "C++ and C# are languages; node.js isn't. v1.2.3-beta+build",
    "¡Hola! ¿Qué tal? Straße naïve façade Ünïcode ὕδωρ Привет мир.",
    "日本語のテキスト。これは句読点です！「はい」",
    "😀 Emoji😀in the middle 👍🏽 ☕️ end ♥.",
]
WORDS = "a dog dogs Dog DOG end U.S U.S. e.g e.g. Dr Mr Inc. co-op re-elect mother-in-law rock Rock naïve Straße I i we be is St Jan".split()
PIECES = (
    "n't 's 'S ’s 'll 'd 've 're 'm can't cannot won’t I'm it's its she'd he’ll let's y'all gonna o'clock 'em 'cause ma'am dont ill Well "
    ":) :( :-D ;) <3 xD ^_^ o.O 8) (: ._. ... .. . , ; : ! ? … …… -- --- - – — —— ~ / = < > + * ^ & # @ _ ( ) [ ] { } \" ' ` ´ ’ ‘ “ ” « » "
    "% $ £ € US$ C$ § ° ² ½ © 1 12 3.5 1,000 10a.m. 8pm 5kg 30km/h 20°C. 3rd 1990s +1 -2 5-6 a-b 5-a a=b a/b a:b x,y A.B a.B A.b "
    "www.a.com http://a.b/c?d me@a.org 1.2.3.4 10.0.0.1 8.8.8.8:80 a.b.cd foo.bar.baz :80 mb MB 5MB 7% 3$ $3 4+ и щ Д 中文 한국 ह 😀 🥲 ♥ ➔"
).split()


def texts():
    draw = random.Random(SEED)
    for _ in range(1500):
        pieces = [draw.choice(WORDS) if draw.random() < 0.4 else draw.choice(PIECES) for _ in range(draw.randint(2, 7))]
        yield "".join(piece + draw.choice(["", "", " "]) for piece in pieces)


def main():
    tokenizer = spacy.blank("en").tokenizer
    words = {text: [token.text for token in tokenizer(text) if token.text.strip()] for text in [*SENTENCES, *texts()]}
    origin = {"script": "tools/parity/spacy_words.py", "seed": SEED, "python": platform.python_version(), "libraries": {"spacy": spacy.__version__}}
    rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in words.items())
    OUT.write_text(f'{{"origin": {json.dumps(origin)},\n"words": [\n{rows}\n]}}\n')
    print(len(words), "texts,", OUT.stat().st_size, "bytes")


main()
