"""Benign overfitting: published settings with fresh and reused noise, and the phase diagram."""

import numpy as np
import pandas as pd

from jaxattn.lab.books import around, mean, powers
from jaxattn.lab.results.statistics import last_steps

BENIGN = 0.95
METRICS = {
    "attention_clean": "attention on the relevant token, clean labels",
    "attention_flipped": "attention on the relevant token, flipped labels",
    "test_accuracy": "test accuracy",
    "train_accuracy": "training accuracy",
    "reused_noise": "test accuracy, test data with the noise of the training data",
}
FITTED = {"train_accuracy": (around(1.0, 0.02), "1.0")}
# Criterion and published value by ‖μ‖.
EXPECTED = {
    20: FITTED
    | {
        "reused_noise": (around(0.997, 0.002), "0.997"),
        "attention_clean": (around(0.99, 0.05), "near 0.99"),
        "attention_flipped": (around(0.01, 0.05), "near 0.01"),
    },
    10: FITTED | {"reused_noise": (around(0.995, 0.004), "0.995")},
    5: FITTED | {"reused_noise": (around(0.883, 0.05), "0.883")},
}


def check(results):
    """Measure final values for the published settings; find the smallest benign ‖μ‖ as a function of n."""
    wide = ends(results["study"])
    for (_, signal), rows in wide.loc["published"].groupby(level=["data.sequences", "data.signal"]):
        for metric, text in METRICS.items():
            expected, published = EXPECTED.get(signal, FITTED).get(metric, (None, ""))
            about = {"between": (0.0, 1.0), "expected": expected, "published": published}
            yield mean(f"mu={signal:g}.{metric}", f"‖μ‖ = {signal:g}: {text}", rows[metric], **about)
    least = smallest(wide)
    samples = powers(least.index.to_numpy(float), least.to_numpy().T)
    yield mean("exponent", "exponent of n in the smallest ‖μ‖ with a test accuracy of 0.95", samples)
    fitted = wide.loc["diagram"]["train_accuracy"].groupby(level="seed").mean()
    yield mean("diagram.train_accuracy", "training accuracy, mean over the phase diagram", fitted)


def ends(study):
    """Return the metrics at the end, one row per block, n, ‖μ‖ and seed."""
    records = study.with_axes(last_steps(study.records))
    records = records[records["metric"].isin([*METRICS, "true_accuracy"])]
    index = ["block", "data.sequences", "data.signal", "seed"]
    records = records.fillna({"data.sequences": 20})
    wide = records.pivot_table(index=index, columns="metric", values="value")
    # The first 20 of the 1,000 published test sequences reuse the noise of training sequences.
    wide["reused_noise"] = 0.98 * wide["test_accuracy"] + 0.02 * wide["true_accuracy"]
    return wide


def smallest(wide):
    """Return the smallest ‖μ‖ with a test accuracy of `BENIGN`, one row per n and one column per seed."""
    test = wide.loc["diagram"]["test_accuracy"].unstack("data.signal")
    return least_signal(test).unstack("seed")


def least_signal(test: pd.DataFrame) -> pd.Series:
    """Return the ‖μ‖ above which test accuracy exceeds `BENIGN`, by linear interpolation in log ‖μ‖."""
    signal, found = np.log(test.columns.to_numpy(float)), []
    for row in test.to_numpy():
        below = np.flatnonzero(row < BENIGN)
        if not len(below) or below[-1] + 1 == len(row):
            found.append(np.nan)
            continue
        k = below[-1]
        part = (BENIGN - row[k]) / (row[k + 1] - row[k])
        found.append(np.exp(signal[k] + part * (signal[k + 1] - signal[k])))
    return pd.Series(found, index=test.index)


def tables(results):
    """Return the smallest benign ‖μ‖ for each n."""
    least = smallest(ends(results["study"]))
    table = {
        "n": least.index,
        "smallest ‖μ‖ with a test accuracy of 0.95": np.exp(np.log(least).mean(axis=1)),
    }
    return {"Phase diagram, geometric mean over seeds": pd.DataFrame(table)}
