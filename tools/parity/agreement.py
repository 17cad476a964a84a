"""Agreement of raters and strengths of models: Cohen's and Fleiss' kappa and a logistic regression by statsmodels,
Krippendorff's alpha by krippendorff. Needs `pip install statsmodels krippendorff`; no PyTorch."""

import importlib.metadata
import json
import pathlib
import sys

import krippendorff
import numpy as np
import statsmodels.api as sm
from statsmodels.stats.inter_rater import aggregate_raters, cohens_kappa, fleiss_kappa

SEED = 14
OUT = pathlib.Path(__file__).resolve().parents[2] / "crates/gradus-web/tests/fixtures/agreement.json"


def rated(rng, items, raters, labels, agreeing, missing=0.0):
    """Raters who give the true value with probability `agreeing`, and a random one otherwise. Some give none."""
    truth = rng.integers(labels, size=(items, 1))
    said = np.where(rng.random((items, raters)) < agreeing, truth, rng.integers(labels, size=(items, raters)))
    return [[None if rng.random() < missing else int(label) for label in item] for item in said]


def main():
    rng = np.random.default_rng(SEED)
    cohen, fleiss, alpha, strengths = [], [], [], []
    for labels, agreeing in [(2, 0.3), (3, 0.7), (5, 0.0), (4, 0.95)]:
        ratings = rated(rng, 40, 2, labels, agreeing)
        table = np.zeros((labels, labels))
        for one, other in ratings:
            table[one, other] += 1
        cohen.append({"ratings": ratings, "kappa": float(cohens_kappa(table).kappa)})
        ratings = rated(rng, 30, 4, labels, agreeing)
        fleiss.append({"ratings": ratings, "kappa": float(fleiss_kappa(aggregate_raters(np.array(ratings))[0]))})
    for labels, agreeing, missing in [(2, 0.5, 0.0), (5, 0.6, 0.2), (4, 0.1, 0.5), (7, 0.9, 0.3)]:
        ratings = rated(rng, 25, 3, labels, agreeing, missing)
        data = np.array([[np.nan if label is None else label for label in item] for item in ratings]).T
        domain = list(range(labels))
        levels = ("nominal", "ordinal", "interval")
        values = {level: float(krippendorff.alpha(data, level_of_measurement=level, value_domain=domain)) for level in levels}
        alpha.append({"ratings": ratings, **values})
    for models in (2, 3, 5):
        wins = rng.integers(1, 12, size=(models, models)).astype(float)
        wins[rng.random((models, models)) < 0.3] += 0.5
        np.fill_diagonal(wins, 0.0)
        rows, successes, failures = [], [], []
        for i in range(models):
            for j in range(i + 1, models):
                row = np.zeros(models)
                row[i], row[j] = 1, -1
                rows.append(row[1:])
                successes.append(wins[i, j])
                failures.append(wins[j, i])
        fitted = sm.GLM(np.column_stack([successes, failures]), np.array(rows), family=sm.families.Binomial()).fit(tol=1e-14, maxiter=200)
        strengths.append({"wins": wins.tolist(), "contrasts": fitted.params.tolist(), "errors": fitted.bse.tolist()})
    names = ("numpy", "statsmodels", "krippendorff")
    meta = {"script": "tools/parity/agreement.py", "seed": SEED, "python": sys.version.split()[0],
            "libraries": {name: importlib.metadata.version(name) for name in names}}
    whole = {"meta": meta, "cohen": cohen, "fleiss": fleiss, "alpha": alpha, "bradley_terry": strengths}
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(whole, separators=(",", ":")).replace('],"', '],\n"') + "\n")


if __name__ == "__main__":
    main()
