"""Verdicts of `math-verify` on mathematical answers: pairs of a gold answer and a text.

    pip install math-verify==0.9.0 latex2sympy2_extended==1.11.0 antlr4-python3-runtime==4.13.2
    python tools/parity/mathematics.py > crates/gradus-metrics/tests/fixtures/mathematics.jsonl

The first line contains the versions and the seed. Each other line is [gold, text, verdict], with a reason if gradus decides otherwise.
The answers come from `mathematics_answers.py` (by hand) and from `mathematics_random.py`.
"""

import importlib.metadata
import itertools
import json
import logging
import random

from math_verify import parse, verify

from mathematics_answers import (
    ANNOUNCEMENTS, ANSWERS, DIFFERENT, EQUATIONS, GROUPS, MORE, NOTATION, RAW, TEXTS, UNIT_FORMS, UNITS,
)
from mathematics_random import FORMS, GOLDS, Maker

SEED = 29
# Random pairs in the style of MATH and of GSM8K.
RANDOM, PLAIN = 1200, 400

# On a busy machine, the default of five seconds is not enough.
PATIENCE = 120


def verdict(gold, text):
    gold, text = (parse(side, parsing_timeout=PATIENCE) for side in (gold, text))
    return verify(gold, text, timeout_seconds=PATIENCE)


def by_hand(dice):
    """Each spelling of a value with the others, and with other values."""
    for groups in (GROUPS, MORE):
        for i, group in enumerate(groups):
            forms = itertools.cycle(FORMS[i % len(FORMS) :] + FORMS[: i % len(FORMS)])
            for gold, answer in itertools.product(group[:3], group):
                yield f"${gold}$", next(forms).format(answer)
            for k in (1, 2, 5):
                yield f"${group[0]}$", next(forms).format(groups[(i + k) % len(groups)][0])
    yield from ((f"${gold}$", text) for gold, text in TEXTS)
    yield from RAW
    yield from NOTATION
    for form, unit in itertools.product(UNIT_FORMS, UNITS):
        yield "$18$", form.format(n=18, unit=unit)
    yield from (("$18$", UNIT_FORMS[0].format(n=19, unit=unit)) for unit in UNITS)
    for announcement, equation in itertools.product(ANNOUNCEMENTS, EQUATIONS):
        yield "#### 18", f"{announcement} {equation}"
    for answer in ANSWERS:
        for other in (answer, answer, dice.choice(ANSWERS)):
            yield dice.choice(GOLDS).format(answer), dice.choice(FORMS).format(other)


def main():
    logging.disable(logging.CRITICAL)
    names = ["math-verify", "latex2sympy2_extended", "sympy", "antlr4-python3-runtime"]
    print(json.dumps({**{name: importlib.metadata.version(name) for name in names}, "seed": SEED}))
    maker = Maker(SEED)
    pairs = [*by_hand(random.Random(SEED)), *maker.pairs(RANDOM), *maker.plain_pairs(PLAIN)]
    for gold, text in dict.fromkeys(pairs):
        print(json.dumps([gold, text, verdict(gold, text)], ensure_ascii=False))
    for gold, text, reason in DIFFERENT:
        print(json.dumps([gold, text, verdict(gold, text), reason], ensure_ascii=False))


if __name__ == "__main__":
    main()
