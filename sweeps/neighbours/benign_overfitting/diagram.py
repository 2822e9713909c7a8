"""Analysis of benign overfitting: published settings with fresh and reused noise, and the phase diagram."""

import numpy as np
import pandas as pd

from jaxattn.lab.books import Finding, Measured
from jaxattn.lab.results import judge
from jaxattn.lab.results.fits import powers
from jaxattn.lab.results.statistics import last_steps

BENIGN = 0.95
METRICS = ["train_accuracy", "test_accuracy", "true_accuracy", "attention_clean", "attention_flipped"]


def diagram(results, item) -> Measured:
    """Measure final values for the published settings; find the smallest benign ‖μ‖ as a function of n."""
    records = results.with_axes(last_steps(results.records))
    records = records[records["metric"].isin(METRICS)]
    index = ["block", "data.sequences", "data.signal", "seed"]
    records = records.fillna({"data.sequences": 20})
    wide = records.pivot_table(index=index, columns="metric", values="value")
    # The first 20 of the 1,000 published test sequences reuse the noise of training sequences.
    wide["test accuracy, reused noise"] = 0.98 * wide["test_accuracy"] + 0.02 * wide["true_accuracy"]
    findings = []
    for (_, signal), rows in wide.loc["published"].groupby(level=["data.sequences", "data.signal"]):
        for metric in rows.columns.drop("true_accuracy"):
            between = (0.0, 1.0)
            name = f"‖μ‖ = {signal:g}: {metric.replace('_', ' ')}"
            findings.append(Finding(name, judge.mean(rows[metric], between), f"{len(rows)} seeds"))
    test = wide.loc["diagram"]["test_accuracy"].unstack("data.signal")
    least = _least(test).unstack("seed")
    samples = powers(least.index.to_numpy(float), least.to_numpy().T)
    findings.append(Finding("power of n in the least ‖μ‖", judge.mean(samples), f"{len(samples)} seeds"))
    fitted = wide.loc["diagram"]["train_accuracy"].groupby(level="seed").mean()
    findings.append(Finding("diagram: train accuracy", judge.mean(fitted), f"{len(fitted)} seeds"))
    table = pd.DataFrame(
        {"n": least.index, "least ‖μ‖ with test accuracy 0.95": np.exp(np.log(least).mean(1))}
    )
    return Measured(findings, {"Phase diagram, geometric mean over seeds": table})


def _least(test: pd.DataFrame) -> pd.Series:
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
