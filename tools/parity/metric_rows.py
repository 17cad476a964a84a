"""Rows for the measurement of metrics: our own sentences, combined and perturbed with a seed; edge cases; and rows of data sets
outside the repository (of which only numbers are written)."""

import csv
import gzip
import json
import pathlib
import random

SUBJECTS = ["The old clockmaker", "Mrs. Hale", "A small grey cat", "Nobody in the village", "Dr. Ivo Lindt", "The café's owner",
            "My sister-in-law", "The U.S. team", "Every third visitor", "She", "They", "An apprentice (aged 17)"]
VERBS = ["repaired", "was painting", "didn't notice", "has been selling", "could not carry", "gladly accepted", "is running towards",
         "examined", "cannot remember", "wanted to photograph", "described", "generously donated"]
OBJECTS = ["the broken clock", "3.5 litres of milk", "1,200 roses", "a \"very rare\" stamp", "two wooden boats", "the naïve drawing",
           "its own reflection", "a recipe for plum jam", "the lighthouse's lamp", "some letters from 1987-04-12", "an unfinished bridge",
           "half of the apples"]
ENDS = ["near the river.", "before sunrise!", "at 7 p.m. on Friday.", "because it was raining...", "for $15.50.", "with great care;",
        "in the market square, e.g. on Sundays.", "— or so they said.", "and then went home?", "while others watched.", "again & again.",
        "without a word."]
SPARE = ["quickly", "old", "the", "a", "never", "blue", "relational", "happily", "houses", "running", "it's", "10", ",", "mended",
         "timepiece", "vessels", "feline", "blossoms", "bears", "raced", "aged", "missives", "fain"]


def perturbed(rng, text):
    words = text.split(" ")
    for _ in range(rng.randint(0, 5)):
        at = rng.randrange(len(words))
        match rng.randrange(5):
            case 0 if len(words) > 2:
                del words[at]
            case 1:
                words.insert(at, rng.choice(SPARE))
            case 2:
                words[at] = rng.choice(SPARE)
            case 3:
                other = rng.randrange(len(words))
                words[at], words[other] = words[other], words[at]
            case 4:
                run = words[at:at + 3]
                del words[at:at + 3]
                to = rng.randint(0, len(words))
                words[to:to] = run
    return " ".join(words)


def sentence(rng):
    return " ".join(rng.choice(words) for words in (SUBJECTS, VERBS, OBJECTS, ENDS))


def own(seed, count):
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        lines = rng.choice([1, 1, 1, 2, 3])
        glue = rng.choice([" ", "\n"])
        truth = [sentence(rng) for _ in range(lines)]
        texts = [glue.join(perturbed(rng, line) for line in truth) for _ in range(1 + rng.choice([1, 1, 2, 3]))]
        rows.append({"prediction": texts[0], "references": texts[1:]})
    return rows


def sentences(seed, count, references):
    """Rows of one sentence, each with the given number of references."""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        truth = sentence(rng)
        texts = [perturbed(rng, truth) for _ in range(1 + references)]
        rows.append({"prediction": texts[0], "references": texts[1:]})
    return rows


LONG = " ".join(f"{word}{i % 7}" for i, word in enumerate(["one", "two", "three", "four", "five"] * 30))

EDGES = [
    ("", ["A plain sentence."]),
    ("", ["", "A plain sentence."]),
    ("A plain sentence.", ["", "A plain sentence."]),
    ("...!?", ["A plain sentence."]),
    ("?!", ["?!"]),
    (", . ; :", [". , : ;"]),
    ("word", ["word"]),
    ("word", ["other"]),
    ("a", ["a b c d e f g h"]),
    ("the the the the the the", ["the cat is on the mat"]),
    ("A plain sentence.", ["A plain sentence."]),
    ("A plain sentence.", ["a PLAIN sentence"]),
    ("Exactly the same sentence, of some length.", ["Exactly the same sentence, of some length."] * 3),
    ("die Straße ist naß; über 3,5 km", ["Die Strasse ist nass: über 3.5 km", "die Straße war naß"]),
    ("天气很好。我们去公园吧", ["今天天气很好，我们去公园。", "天气不错。"]),
    ("パンを 食べます・ｶﾅ", ["パンを食べました。"]),
    ("emoji 🙂🙂 and ½ of „quotes“ – “here” €5", ["emoji 🙂 and ½ of «quotes» — 'here' 5€"]),
    ("İstanbul’da ΣΑΣ ﬁne e\u0301tude", ["istanbul'da σας fine étude"]),
    ("tabs\tand\nlines\u00a0and\u3000blanks\x1fhere", ["tabs and lines and blanks here"]),
    ("&quot;quoted&quot; &amp; &lt;tags&gt; line-\nbreak <skipped>", ["\"quoted\" & <tags> linebreak"]),
    ("a-b 3-4 5- -6 1.5 .5 5. a.b, c,d 1,000", ["a - b 3 - 4 5 - - 6 1 . 5 .5 5 . a . b , c , d 1,000"]),
    ("e f g h a b c d i j k l", ["a b c d e f g h i j k l", "l k j i h g f e d c b a"]),
    ("I cannot can't wanna gonna 'tis they'll O'Neil's dogs' \"so\" ''so'' ``so''", ["I can not cannot want to 'Tis they will dogs"]),
    ("(He said: [yes] {no} <maybe>) 100% #tag @name; a--b ... end..", ["He said yes -- no. 100 % tag name; a - b"]),
    ("running runs ran easily flies dies skies happy news", ["run running easy fly die sky happiness new"]),
    (LONG, [LONG[60:] + " " + LONG[:60]]),
    ("short", [LONG]),
    (LONG, ["short"]),
    ("first line\nsecond line is longer\n\nfourth", ["second line\nfirst line is longer", "fourth\nfirst line"]),
    ("a b a b a b a b", ["b a b a b a b a", "a a a a b b b b", "a b", "b", "a b c", "c d", "b a", "a a"]),
    ("eight references for one prediction", [f"{i} references for {'one' if i % 2 else 'a'} prediction" for i in range(8)]),
    ("He said “yes.” She left. ‘No.’ It rains. «Oui.» They go.", ["He said yes. She left. No. It rains.", "“Yes.” It rains."]),
    ("the dog's\nbed in a cafe\u0301'xy ½'xy हिन्दी'क end.\x1f", ["the dogs bed in a café 'xy' end."]),
    ("It's 5 o'clock. Mr. Smith left at 5 p.m. He didn't wait. \"Why?\" she asked. J. K. R. agreed.",
     ["It is 5 o'clock. Mr. Smith left at 5 p.m. and did not wait. \"Why?\" she asked."]),
]


def edges():
    return [{"prediction": prediction, "references": references} for prediction, references in EDGES]


MATERIAL = pathlib.Path(__file__).resolve().parents[3] / "shared/material"


def material():
    """Rows of the data sets, with simple rules that a test repeats."""
    sets = {}
    with open(MATERIAL / "commongen/commongen.dev.jsonl", encoding="utf-8") as lines:
        scenes = [json.loads(line)["scene"] for line in lines]
    sets["commongen"] = [{"prediction": s[0], "references": s[1:]} for s in scenes if len(s) > 1][:300]
    with open(MATERIAL / "tldr/instructgpt_tldr_samples.csv", encoding="utf-8", newline="") as file:
        samples = list(csv.DictReader(file))
    sets["tldr"] = [{"prediction": s["sample"], "references": [s["ref_text"]]} for s in samples[::5]]
    with gzip.open(MATERIAL / "multi30k_de_en/test_2016_flickr.en.gz", "rt", encoding="utf-8", newline="\n") as file:
        english = file.read().split("\n")
    with gzip.open(MATERIAL / "multi30k_de_en/test_2016_flickr.de.gz", "rt", encoding="utf-8", newline="\n") as file:
        german = file.read().split("\n")
    sets["multi30k"] = [{"prediction": english[i], "references": [english[i + 1], english[i + 2], german[i]]} for i in range(300)]
    with open(MATERIAL / "cnn_dailymail/qags_mturk_cnndm.jsonl", encoding="utf-8") as lines:
        articles = [json.loads(line) for line in lines]
    sets["cnn_dailymail"] = [{"prediction": "\n".join(s["sentence"] for s in a["summary_sentences"]),
                              "references": [a["article"].replace(". ", ".\n")[:500]]} for a in articles][:210]
    return sets
