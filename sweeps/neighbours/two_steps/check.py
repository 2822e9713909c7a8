"""Two gradient steps: exponents of n and d in the ρ/√d at which training and test data become right."""

import numpy as np

from jaxattn.lab.books import around, mean, of_estimate
from jaxattn.lab.results.fits import power_law

# Minimum accuracy at which a run counts as fitting training data, or as right on test data.
LEVEL = 0.95
FITTED = "the largest ρ/√d at which training data are fitted"
RIGHT = "the smallest ρ/√d at which test data are classified correctly"
EXPECTED = {
    ("n", "fitted"): (around(-0.5, 0.1), "-1/2"),
    ("d", "fitted"): (around(0.0, 0.1), "0"),
    ("n", "right"): (around(-0.5, 0.1), "-1/2, of max-margin"),
    ("d", "right"): (around(0.0, 0.1), "0, of max-margin"),
}


def check(results):
    """Find each seed's largest ρ/√d that fits noisy labels, and the smallest one that generalises."""
    records = results["study"].with_axes(results["study"].records.query("step == 2"))
    benign = []
    for key, letter in (("data.sequences", "n"), ("data.dim", "d")):
        rows = records.dropna(subset=key)
        fitted = edge(rows[rows["metric"] == "train_accuracy"], key, lambda x: x < LEVEL)
        right = edge(rows[rows["metric"] == "test_accuracy"], key, lambda x: x >= LEVEL)
        for id, text, table in (("fitted", FITTED, fitted), ("right", RIGHT, right)):
            fit = power_law(table.index.to_numpy(float), table.to_numpy(float))
            expected, published = EXPECTED[letter, id]
            about = {"expected": expected, "published": published}
            yield of_estimate(f"{id}.{letter}", f"exponent of {letter} in {text}", fit.estimate, **about)
        if letter == "n":
            scaled = fitted.mul(np.sqrt(fitted.index), axis=0).mean()
            yield mean("fitted.scaled", f"{FITTED}, times √n".removeprefix("the "), scaled)
        benign.append((right < fitted).where(fitted.notna()).mean())
    text = "share of sizes with benign overfitting for some ρ/√d"
    yield mean("benign", text, (benign[0] + benign[1]) / 2, between=(0.0, 1.0))


def edge(rows: object, key: str, crossed: object) -> object:
    """Return the geometric mean of the ratios around a crossing, by key and seed; NaN without a crossing."""

    def edge(one: object) -> float:
        one = one.sort_values("data.ratio")
        ratios, over = one["data.ratio"].to_numpy(float), crossed(one["value"].to_numpy())
        place = int(over.argmax())
        return np.sqrt(ratios[place - 1] * ratios[place]) if over.any() and place else np.nan

    return rows.groupby([key, "seed"])[["data.ratio", "value"]].apply(edge).unstack()
