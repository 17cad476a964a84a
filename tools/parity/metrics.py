"""Values of the reference tools for the rows in `metric_rows.py`: rows and values for our own rows, only values for data
sets. Needs the packages of `requirements-metrics.txt`."""

import importlib.metadata
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import metric_rows
from common import METRICS, arguments

# NLTK reads only this folder.
os.environ["NLTK_DATA"] = str(METRICS)

SEED = 20261122
LIBRARIES = ["sacrebleu", "rouge-score", "nltk", "pycocoevalcap", "py-rouge", "sacremoses", "torchmetrics"]


def rounded(value):
    return None if value is None or value != value else float(f"{value:.10g}")


def case(metric, options, keys, corpus, row, rows):
    """`corpus(rows)` returns one value per key; `row` returns the same for one row."""
    whole = corpus(rows)
    each = [row(one) for one in rows]
    return {
        "metric": metric,
        "options": options,
        "values": {key: {"value": rounded(whole[i]), "rows": [rounded(of[i]) for of in each]} for i, key in enumerate(keys)},
    }


def of_corpus(metric, options, score, rows):
    """A metric of sacreBLEU's interface: a row is a corpus of one."""
    def value(some):
        most = max(len(row["references"]) for row in some)
        streams = [[row["references"][i] if i < len(row["references"]) else None for row in some] for i in range(most)]
        return [score.corpus_score([row["prediction"] for row in some], streams).score / 100]
    return case(metric, options, [metric], value, lambda row: value([row]), rows)


def of_mean(metric, options, keys, row, rows):
    """A metric whose corpus value is the mean of its rows."""
    def corpus(some):
        values = [row(one) for one in some]
        return [sum(of) / len(of) for of in zip(*values)]
    return case(metric, options, keys, corpus, row, rows)


def sacrebleu_cases(rows):
    from sacrebleu.metrics import BLEU, CHRF, TER

    for tokenize in ["13a", "intl", "char", "zh", "none"]:
        yield of_corpus("sacre_bleu", [f"tokenize={tokenize}"], BLEU(tokenize=tokenize), rows)
    for smooth in ["none", "floor", "add-k"]:
        yield of_corpus("sacre_bleu", [f"smooth_method={smooth}"], BLEU(smooth_method=smooth), rows)
    yield of_corpus("sacre_bleu", ["smooth_method=floor", "smooth_value=0.5", "lowercase=true"],
                    BLEU(smooth_method="floor", smooth_value=0.5, lowercase=True), rows)
    yield of_corpus("sacre_bleu", ["use_effective_order=true", "max_ngram_order=6"],
                    BLEU(effective_order=True, max_ngram_order=6), rows)
    yield of_corpus("chrf", [], CHRF(), rows)
    yield of_corpus("chrf", ["word_order=2"], CHRF(word_order=2), rows)
    yield of_corpus("chrf", ["char_order=8", "beta=1", "lowercase=true", "whitespace=true", "eps_smoothing=true"],
                    CHRF(char_order=8, beta=1, lowercase=True, whitespace=True, eps_smoothing=True), rows)
    yield of_corpus("ter", [], TER(), rows)
    yield of_corpus("ter", ["normalized=true", "case_sensitive=true"], TER(normalized=True, case_sensitive=True), rows)
    yield of_corpus("ter", ["normalized=true", "no_punct=true", "asian_support=true"],
                    TER(normalized=True, no_punct=True, asian_support=True), rows)


def bleu_cases(rows):
    """coco's scorer with the shortest reference equals the `nmt` script's BLEU, except for tiny constants in its quotients: an order
    without a match is nearly 0, but 0 in the script."""
    from pycocoevalcap.bleu.bleu_scorer import BleuScorer

    def value(some):
        if not any(row["prediction"].split() for row in some) or not all(text.split() for row in some for text in row["references"]):
            return [None]
        # Without any n-gram of an order, there is no match.
        if all(len(row["prediction"].split()) < 4 for row in some):
            return [0.0]
        scorer = BleuScorer(n=4)
        for row in some:
            scorer += (row["prediction"], row["references"])
        score = scorer.compute_score(option="shortest", verbose=0)[0][3]
        # One match in a hundred words, over all orders, exceeds this value.
        return [score if score > 1e-3 else 0.0]
    yield case("bleu", [], ["bleu"], value, lambda row: value([row]), rows)


def rouge_cases(rows):
    from rouge_score.rouge_scorer import RougeScorer

    types = ["rouge1", "rouge2", "rougeL", "rougeLsum"]
    for stemmer in [True, False]:
        scorer = RougeScorer(types, use_stemmer=stemmer)
        keys = [f"rouge/{of}" for of in types]
        yield of_mean("rouge", [f"use_stemmer={json.dumps(stemmer)}"], keys,
                      lambda row: [scorer.score_multi(row["references"], row["prediction"])[of].fmeasure for of in types], rows)
    first = RougeScorer(types, use_stemmer=True)
    yield of_mean("rouge", ["references=first"], keys, lambda row: [first.score(row["references"][0], row["prediction"])[of].fmeasure for of in types], rows)
    yield of_mean("rouge", ["references=repr"], keys, lambda row: [first.score(str(row["references"]), row["prediction"])[of].fmeasure for of in types], rows)


def squad_cases(rows):
    from torchmetrics.functional.text import squad

    def row(one, key):
        given = {"prediction_text": one["prediction"], "id": "0"}
        answers = {"answers": {"answer_start": [0] * len(one["references"]), "text": one["references"]}, "id": "0"}
        return [float(squad([given], [answers])[key]) / 100]
    yield of_mean("exact_match", [], ["exact_match"], lambda one: row(one, "exact_match"), rows)
    yield of_mean("token_f1", [], ["token_f1"], lambda one: row(one, "f1"), rows)


def python_rouge():
    """py-rouge gets the path of its tables from a part of setuptools that no longer exists."""
    import types

    place = types.ModuleType("pkg_resources")
    place.resource_filename = lambda package, name: str(pathlib.Path(importlib.util.find_spec(package.split(".")[0]).origin).parent / name)
    sys.modules.setdefault("pkg_resources", place)
    import nltk
    import rouge

    # Its texts are one sentence of letters and digits, so NLTK's sentence model, which is not available, has no effect.
    words = nltk.tokenize.destructive.NLTKWordTokenizer()
    rouge.Rouge.tokenize_text = staticmethod(lambda text, language="english": words.tokenize(text))
    return rouge


def python_rouge_cases(rows):
    rouge = python_rouge()

    def row(scorer, one):
        return [max(scorer.get_scores([one["prediction"]], [[text]])["rouge-l"]["f"] for text in one["references"])]
    for options, keywords in [
        (["stemming=false"], {"stemming": False}),
        (["stemming=false", "length_limit=10", "length_limit_type=words", "weight_factor=1.2", "alpha=0.3"],
         {"stemming": False, "length_limit": 10, "length_limit_type": "words", "weight_factor": 1.2, "alpha": 0.3}),
        (["length_limit=30"], {"length_limit": 30}),
    ]:
        scorer = rouge.Rouge(metrics=["rouge-l"], apply_avg=True, **keywords)
        if "stemming" not in keywords:
            # Without the package's tables, as if none were named.
            rouge.Rouge.WORDNET_KEY_VALUE.clear()
        yield of_mean("rouge_l_max", options, ["rouge_l_max"], lambda one: row(scorer, one), rows)


def nltk_words():
    """NLTK's `word_tokenize` over the sentence model in the fixtures."""
    from nltk.data import FileSystemPathPointer
    from nltk.tokenize.destructive import NLTKWordTokenizer
    from nltk.tokenize.punkt import PunktSentenceTokenizer, load_punkt_params

    sentences = PunktSentenceTokenizer()
    sentences._params = load_punkt_params(FileSystemPathPointer(str(METRICS / "punkt")))
    words = NLTKWordTokenizer()
    return lambda text: [word for sentence in sentences.tokenize(text) for word in words.tokenize(sentence)]


def meteor_cases(rows):
    from nltk.corpus.reader.wordnet import WordNetCorpusReader
    from nltk.translate.meteor_score import meteor_score

    words = nltk_words()

    class NoSynonyms:
        def synsets(self, word):
            return []

    class Words(WordNetCorpusReader):
        def map_wn(self, version="wordnet"):
            """Versions that need the whole WordNet, which is not available."""

    wordnet = Words(str(METRICS / "wordnet"), None)
    for options, source in [(["punkt=FIXTURES/punkt"], NoSynonyms()), (["punkt=FIXTURES/punkt", "wordnet=FIXTURES/wordnet"], wordnet)]:
        yield of_mean("meteor", options, ["meteor"],
                      lambda one: [meteor_score([words(text) for text in one["references"]], words(one["prediction"]), wordnet=source)], rows)
    yield of_mean("meteor", ["punkt=FIXTURES/punkt", "alpha=0.5", "beta=1.5", "gamma=0.3"], ["meteor"],
                  lambda one: [meteor_score([words(text) for text in one["references"]], words(one["prediction"]), wordnet=NoSynonyms(), alpha=0.5, beta=1.5, gamma=0.3)], rows)


def cider_of(rows):
    from pycocoevalcap.cider.cider_scorer import CiderScorer

    scorer = CiderScorer(n=4, sigma=6.0)
    for row in rows:
        scorer += (row["prediction"], row["references"])
    whole, each = scorer.compute_score()
    return {"cider": {"value": rounded(float(whole)), "rows": [rounded(float(of)) for of in each]}}


def tokenised(texts):
    """Stanford's words of each text, as `pycocoevalcap` splits a line, in Java. A line with one word separates the texts, because the
    tokenizer looks beyond the end of a line for the beginning of a sentence."""
    from pycocoevalcap.tokenizer import ptbtokenizer

    jar = pathlib.Path(ptbtokenizer.__file__).parent / ptbtokenizer.STANFORD_CORENLP_3_4_1_JAR
    command = ["java", "-cp", str(jar), "edu.stanford.nlp.process.PTBTokenizer", "-preserveLines", "-lowerCase"]
    lines = "".join(" ".join(text.splitlines()) + "\nx\n" for text in texts)
    found = subprocess.run(command, input=lines, capture_output=True, text=True, check=True).stdout.split("\n")
    assert found[1::2] == ["x"] * len(texts), "expected one line for each text"
    return [" ".join(word for word in line.rstrip().split(" ") if word not in ptbtokenizer.PUNCTUATIONS) for line in found[:-1:2]]


def cider_cases(rows):
    yield {"metric": "cider", "options": ["tokenizer=whitespace"], "values": cider_of(rows)}
    texts = iter(tokenised([text for row in rows for text in [row["prediction"], *row["references"]]]))
    words = [{"prediction": next(texts), "references": [next(texts) for _ in row["references"]]} for row in rows]
    yield {"metric": "cider", "options": [], "values": cider_of(words)}


FAMILIES = [sacrebleu_cases, bleu_cases, rouge_cases, python_rouge_cases, squad_cases, meteor_cases, cider_cases]


def cases(rows):
    return [found for family in FAMILIES for found in family(rows)]


ROOTS = ["sk", "relat", "happ", "geo", "hope", "nation", "vibr", "electric", "organ", "fl", "tr", "by", "agree", "control", "fall",
         "miss", "buzz", "plan", "box", "snow", "cav", "crim", "archaeo", "sens", "form", "decis", "oed", "y", "eey", "ayy", "naïv", "über", "x"]
ENDS = ["", "s", "ss", "es", "ies", "ied", "sses", "y", "e", "ee", "eed", "ed", "ing", "ating", "bling", "izing", "ational", "tional", "enci",
        "anci", "izer", "bli", "abli", "alli", "ally", "entli", "eli", "ousli", "ization", "ation", "ator", "alism", "iveness", "fulness",
        "ousness", "aliti", "iviti", "biliti", "fulli", "fully", "logi", "logy", "icate", "ative", "alize", "iciti", "ical", "ful", "ness",
        "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion", "sion", "tion", "ou", "ism", "ate", "iti",
        "ous", "ive", "ize", "ll", "alling", "tting", "ssed", "zzed", "ying"]
IRREGULAR = ["sky", "skies", "dying", "lying", "tying", "news", "innings", "outings", "cannings", "howe", "proceed", "exceed", "succeed"]

LINES = ["The cat ( a grey one ) sat , slept and left .", "` ` So , \" he said , \" it 's the Jones ' house . \"", "It costs $ 5 , or £ 3.50 [ sic ] .",
         "a @-@ b &amp; c &lt; d &#124; e &quot; f &apos; g", "¿ Qué ? ¡ Sí ! „ so “ says she", "天 气 很 好 。 we 're off", "  two  blanks  ",
         "' quoted ' and 'twas 's n't", "<null>", "2001 - 2003 , st. john 's ( b )", "100 % sure ; really : yes !",
         "it ' s \" odd \" \" twice \"", "x 't y 'z 9 's", "( [ { nested } ] )"]


CAPTIONS = [
    "I cannot go; gonna wanna gotta lemme gimme d'ye 'tis 'twas y'all c'mon wannabe", "The colour of the centre's theatre is grey, he organised it",
    "He said \"hello\" and 'bye' to the \"man\"'s dog. (\"quoted\")", "“Curly” ‘single’ don’t it’s — and – then … ... ....",
    "It costs €5, £6, $7.50, ¢50, US$3 and 5% or 1/2 or ½ cup", "A (b) [c] {d} <e> & f/g * h # i @ j ~ k ^ l _ m | n \\ o",
    "Mr. Smith went to the U.S. and U.K. on Jan. 5, 2010 at 5 p.m. with Inc. Co. and Ph.D. etc.",
    "e-mail me@x.com or www.x.com http://a.b/c?d=e (555) 555-1234 555-1234 1-800-555-1234",
    "the rock 'n' roll '90s 1990's 90's James' dogs' O'Neil l'avion", ":) :-) ;) <3 :D =) xD :P :( 8)",
    "AT&T R&B Q&A a&b well-known 3-year-old --yes yes-- yes--no a - b", "It's 5:30pm 10:30 a.m. 3:15PM 12/25/2010 2010-12-25 3.5.1 1,000,000.50 .5 -5 +5",
    "Hello!!! what?? what?! ok...fine yes.no end.", "don't won't can't I'm you're he'll she'd they've CAN'T Don'T 'em 'til 'cause",
    "#hashtag @user <br /> </p> <a href=\"x\">link</a> &amp; &lt; &quot;x&quot;", "=( x :[ :| the U.S a few. the U.S. The U.S. said. He is B. The angle B. And a.",
    "J. Smith and J. R. R. Tolkien met T. at noon. i.e. No. 5 no. Yes no. 5 fig. 5 Fig. x", "Inc. The Inc. said, Co. Ltd. the Corp. He etc. The vs. Bob St. John St. The",
    "hasn't HASN'T isn't. it'd ne'er e'er o'er ta'en ma'am ol' goin' l'il li'l B'Av M'Henry X'Y say'a", "s*** **** ** * ## #### ____ _ << >> 5%-6% 20€ Rs 500",
    "x=5 x+y x-y x*y 2+2=4 2*3=6 5-3=2 10:30-11:00 1-2 1+1 2-1.5 6-4, 250,000-75", "and/or he/she/it n/a km/h HD/Blu-ray 300g/5 c++ C# f# Node.js A$ HK$ nt$ $5bn £5m",
    "U.S.-led anti-U.S. D.C. J.R.R.'s (B.) \"B.\" etc.) foo., bar. foo.. 3/4's 4's", "a -- b --- c ---- d ----- e x------y \\*",
    "° × ÷ • ² x₂ ™ ⅔ ≈ 10° naïve soft\u00adhyphen \u200b zero", "sun ☀ and \ufe0f smile 😀 party🎉time 日本 語。", "'s alone 're and 'd, n't too",
    "mid-'90s post-9/11 late-1990s COVID-19 Y'know j'ai d'Artagnan O's",
]


def words():
    """Stanford's words, stems in both of NLTK's modes, the number of words of a text and the hash of their stems, and detokenized lines."""
    import zlib

    from nltk.stem.porter import PorterStemmer
    from sacremoses import MosesDetokenizer

    modes = [PorterStemmer(), PorterStemmer(mode=PorterStemmer.ORIGINAL_ALGORITHM)]
    made = [root + end for root in ROOTS for end in ENDS] + IRREGULAR
    known = sorted(set((metric_rows.MATERIAL / "tinyshakespeare/input.txt").read_text(encoding="utf-8").split()))
    hashes = [zlib.crc32("\n".join(mode.stem(word) for word in known).encode()) for mode in modes]
    detokenizer = MosesDetokenizer(lang="en")
    rows = metric_rows.edges() + metric_rows.own(SEED, 200)
    from nltk.tokenize.destructive import NLTKWordTokenizer

    lines = LINES + [" ".join(NLTKWordTokenizer().tokenize(row["prediction"])) for row in rows]
    captions = CAPTIONS + [row["prediction"] for row in rows if "\n" not in row["prediction"]]
    return {
        "stanford": [[text, found.split()] for text, found in zip(captions, tokenised(captions))],
        "stems": [[word, *(mode.stem(word) for mode in modes)] for word in made],
        "shakespeare": {"words": len(known), "crc32": hashes},
        "detokenised": [[line, detokenizer.detokenize(line.split(" "))] for line in lines],
    }


def main():
    out = arguments(METRICS)
    origin = {
        "script": "tools/parity/metrics.py",
        "seed": SEED,
        "python": sys.version.split()[0],
        "libraries": {name: importlib.metadata.version(name) for name in LIBRARIES},
    }
    write(out / "words.json", {"origin": origin, **words()})
    sets = {"own": metric_rows.own(SEED, 200), "edges": metric_rows.edges()}
    for name, rows in sets.items():
        write(out / f"{name}.json", {"origin": origin, "rows": rows, "cases": cases(rows)})
    for name, rows in metric_rows.material().items():
        write(out / f"{name}.json", {"origin": origin, "count": len(rows), "cases": cases(rows)})


def write(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
