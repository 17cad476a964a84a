"""What the reference tools say of the rows in `metric_rows.py`: of our own the rows and the answers, of data sets the answers
alone. Needs the packages of `requirements-metrics.txt`."""

import importlib.metadata
import importlib.util
import json
import os
import pathlib
import sys

import metric_rows
from common import FIXTURES, arguments

# NLTK reads nowhere else.
os.environ["NLTK_DATA"] = str(FIXTURES / "metrics")

SEED = 20261122
LIBRARIES = ["sacrebleu", "rouge-score", "nltk", "pycocoevalcap", "py-rouge", "sacremoses", "torchmetrics"]


def rounded(value):
    return None if value is None or value != value else float(f"{value:.10g}")


def case(metric, options, keys, corpus, row, rows):
    """`corpus(rows)` gives one value a key; `row` the same of one row."""
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
    """coco's scorer with the shortest reference is the `nmt` script's BLEU but for tiny constants in its quotients: an order
    without a match is nearly 0 there, where the script gives 0."""
    from pycocoevalcap.bleu.bleu_scorer import BleuScorer

    def value(some):
        if not any(row["prediction"].split() for row in some) or not all(text.split() for row in some for text in row["references"]):
            return [None]
        # Without any n-gram of an order there is no match.
        if all(len(row["prediction"].split()) < 4 for row in some):
            return [0.0]
        scorer = BleuScorer(n=4)
        for row in some:
            scorer += (row["prediction"], row["references"])
        score = scorer.compute_score(option="shortest", verbose=0)[0][3]
        # One match in a hundred words, all orders, is more than this.
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
    """py-rouge asks setuptools, which no longer has that part, where its tables lie."""
    import types

    place = types.ModuleType("pkg_resources")
    place.resource_filename = lambda package, name: str(pathlib.Path(importlib.util.find_spec(package.split(".")[0]).origin).parent / name)
    sys.modules.setdefault("pkg_resources", place)
    import nltk
    import rouge

    # Its texts are one sentence of letters and digits: NLTK's sentence model, which is not there, has nothing to say.
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
            # Without the package's tables, as where none are named.
            rouge.Rouge.WORDNET_KEY_VALUE.clear()
        yield of_mean("rouge_l_max", options, ["rouge_l_max"], lambda one: row(scorer, one), rows)


def nltk_words():
    """NLTK's `word_tokenize` over the sentence model in the fixtures."""
    from nltk.data import FileSystemPathPointer
    from nltk.tokenize.destructive import NLTKWordTokenizer
    from nltk.tokenize.punkt import PunktSentenceTokenizer, load_punkt_params

    sentences = PunktSentenceTokenizer()
    sentences._params = load_punkt_params(FileSystemPathPointer(str(FIXTURES / "metrics/punkt")))
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
            """From other versions of the whole WordNet, which is not there."""

    wordnet = Words(str(FIXTURES / "metrics/wordnet"), None)
    for options, source in [(["punkt=FIXTURES/punkt"], NoSynonyms()), (["punkt=FIXTURES/punkt", "wordnet=FIXTURES/wordnet"], wordnet)]:
        yield of_mean("meteor", options, ["meteor"],
                      lambda one: [meteor_score([words(text) for text in one["references"]], words(one["prediction"]), wordnet=source)], rows)
    yield of_mean("meteor", ["punkt=FIXTURES/punkt", "alpha=0.5", "beta=1.5", "gamma=0.3"], ["meteor"],
                  lambda one: [meteor_score([words(text) for text in one["references"]], words(one["prediction"]), wordnet=NoSynonyms(), alpha=0.5, beta=1.5, gamma=0.3)], rows)


def cider_cases(rows):
    from pycocoevalcap.cider.cider_scorer import CiderScorer

    scorer = CiderScorer(n=4, sigma=6.0)
    for row in rows:
        scorer += (row["prediction"], row["references"])
    whole, each = scorer.compute_score()
    values = {"cider": {"value": rounded(float(whole)), "rows": [rounded(float(of)) for of in each]}}
    yield {"metric": "cider", "options": ["tokenizer=whitespace"], "values": values}


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


def words():
    """Stems in both of NLTK's modes, how many words a text has and what their stems hash to, and detokenised lines."""
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
    return {
        "stems": [[word, *(mode.stem(word) for mode in modes)] for word in made],
        "shakespeare": {"words": len(known), "crc32": hashes},
        "detokenised": [[line, detokenizer.detokenize(line.split(" "))] for line in lines],
    }


def main():
    out = arguments("metrics")
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
