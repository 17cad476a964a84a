"""A sentence model trained by NLTK and a lexicon in WordNet's format, both with our own words, for checks of METEOR.
Run before `metrics.py`."""

import os
import pathlib
import random

import metric_rows
from common import METRICS, arguments

SEED = 20261122

# Synsets by part of speech: lemmas and their meaning.
SYNSETS = {
    "noun": [
        (["clock", "timepiece", "Clock_tower"], "what shows the time"),
        (["timepiece", "chronometer"], "what measures time"),
        (["boat", "vessel", "ship"], "what floats"),
        (["cat", "feline", "Felis"], "an animal that purrs"),
        (["rose", "blossom"], "a flower"),
        (["goose"], "a bird"),
        (["letter", "missive"], "what is posted"),
        (["village", "hamlet"], "a few houses"),
        (["man", "adult_male"], "a grown person"),
    ],
    "verb": [
        (["repair", "mend", "fix"], "make whole"),
        (["carry", "bear"], "bring along"),
        (["run", "race"], "move fast"),
        (["accept", "take"], "receive"),
        (["repair", "go"], "betake oneself"),
    ],
    "adj": [
        (["old", "aged"], "not young"),
        (["glad(p)", "happy", "well-chosen"], "of good cheer"),
        (["broken", "ruined"], "not whole"),
    ],
    "adv": [
        (["gladly", "fain"], "with pleasure"),
        (["generously", "liberally"], "without sparing"),
    ],
}
EXCEPTIONS = {"noun": ["geese goose", "men man"], "verb": ["ran run"], "adj": ["elder old"], "adv": []}
LETTERS = {"noun": "n", "verb": "v", "adj": "a", "adv": "r"}
HEADER = "  1 A few words of our own in the format of WordNet 3.0.  \n"


def wordnet(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for number, (part, synsets) in enumerate(SYNSETS.items()):
        data, index = HEADER, {}
        for lemmas, gloss in synsets:
            offset = len(data.encode())
            words = " ".join(f"{lemma} 0" for lemma in lemmas)
            frames = " 01 + 02 00" if part == "verb" else ""
            data += f"{offset:08d} {number:02d} {LETTERS[part]} {len(lemmas):02x} {words} 000{frames} | {gloss}  \n"
            for lemma in lemmas:
                index.setdefault(lemma.split("(")[0].lower(), []).append(offset)
        (folder / f"data.{part}").write_text(data)
        lines = [f"{lemma} {LETTERS[part]} {len(of)} 0 {len(of)} 0 {' '.join(f'{offset:08d}' for offset in of)}  \n"
                 for lemma, of in sorted(index.items())]
        (folder / f"index.{part}").write_text(HEADER + "".join(lines))
        (folder / f"{part}.exc").write_text("".join(f"{line}\n" for line in EXCEPTIONS[part]))
    (folder / "lexnames").write_text("".join(f"{i:02d}\t{part}.all\t{i + 1}\n" for i, part in enumerate(SYNSETS)))


def corpus(rng):
    """Sentences with abbreviations, initials, numbers and names before and after periods."""
    people = ["Mrs. Hale", "Dr. Ivo Lindt", "Mr. J. Ott", "Prof. Amis", "Gen. Rook", "the clockmaker", "an apprentice"]
    places = ["on St. Mark's Square", "near Mt. Arden", "in the U.S. embassy", "at 5 p.m. sharp", "in Jan. or Feb. of that year",
              "on the No. 7 tram", "in vol. 3 of the book", "approx. 3.5 miles away", "i.e. at home", "e.g. on Sundays"]
    things = ["sold roses", "mended clocks", "wrote letters", "met Smith Bros. and Co. again", "was late", "heard the bells"]
    starts = ["However", "The", "They", "But", "In", "It", "Then"]
    made = []
    for _ in range(1500):
        person, thing, place = rng.choice(people), rng.choice(things), rng.choice(places)
        start = rng.choice([f"{rng.choice(starts)}, {person}", person[0].upper() + person[1:]])
        made.append(f"{start} {thing} {place}{rng.choice(['.', '.', '.', '!', '?', '...', '.”'])}")
    made += [metric_rows.sentence(rng) for _ in range(500)]
    rng.shuffle(made)
    return " ".join(made)


def punkt(folder):
    from nltk.tokenize.punkt import PunktTrainer, save_punkt_params

    trainer = PunktTrainer()
    trainer.INCLUDE_ALL_COLLOCS = True
    trainer.train(corpus(random.Random(SEED)), finalize=False)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    save_punkt_params(trainer.get_params(), dir=str(folder))
    # They are written in the order of Python's sets.
    for path in folder.iterdir():
        lines = sorted(path.read_text(encoding="utf-8").splitlines())
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    out = arguments(METRICS)
    # NLTK writes only to this folder.
    os.environ["NLTK_DATA"] = str(out)
    wordnet(out / "wordnet")
    punkt(pathlib.Path(out / "punkt"))
