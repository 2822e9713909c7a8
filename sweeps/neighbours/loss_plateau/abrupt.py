"""Analysis of the plateau of the loss, its end, and their dependence on the scale of relevant attention."""

import numpy as np
import pandas as pd

from jaxattn.lab.books import Finding, Measured, cell_names
from jaxattn.lab.results import judge

STEPS = "steps until the drop"


def losses(n: int = 16, p: int = 17) -> dict[str, float]:
    """Compute losses of predictors that know the token frequencies, and in addition y_1 or all n outputs.

    Inputs are unpredictable. A sum modulo p is 0 for p - 1 of (p - 1)² pairs, and each other value for p - 2.
    """
    inputs, shares = (n - 1) * np.log(p - 1), np.array([p - 1, *[p - 2] * (p - 1)]) / (p - 1) ** 2
    outputs = -(n - 1) * (shares * np.log(shares)).sum()
    first = np.log(p - 1)
    return {
        "frequencies": (inputs + first + outputs) / (2 * n),
        "partial": (inputs + outputs) / (2 * n),
        "solution": inputs / (2 * n),
    }


def crossing(values: pd.Series, level: float) -> float:
    """Return the interpolated step at which a series first exceeds a level, NaN if it never does."""
    above = values.to_numpy() > level
    if not above.any():
        return np.nan
    last = max(int(above.argmax()), 1)
    return float(np.interp(level, values.iloc[last - 1 : last + 1], values.index[last - 1 : last + 1]))


def one_seed(run: pd.DataFrame) -> dict[str, float]:
    """Measure one seed from its metrics by step."""
    known, loss = losses(), run["test_loss"]
    first = (known["frequencies"] + known["partial"]) / 2
    half = (known["partial"] + known["solution"]) / 2
    drop = crossing(-loss, -half)
    early = run[run.index <= (drop if drop > 0 else np.inf)]
    plateau = early[early["test_loss"] < first]
    attention, cosine = run["relevant_attention"] / run["relevant_attention"].iloc[0], run["cosine"]
    return {
        "loss at the start / log 18": loss.iloc[0] / np.log(18),
        "loss on the plateau / loss of the partial solution": (
            plateau["test_loss"] / known["partial"]
        ).median(),
        "first output on the plateau": plateau["first_output"].median(),
        "other outputs on the plateau": plateau["other_outputs"].median(),
        "repetitions on the plateau / those of the task": plateau["repetitions"].median() / (14 / 240),
        "cosine at the start": cosine.iloc[0],
        "largest cosine": cosine.max(),
        "largest cosine - cosine at the end": cosine.max() - cosine.iloc[-1],
        "relevant attention at the start / equal shares": run["relevant_attention"].iloc[0] / (31 / 392),
        "relevant attention on the plateau / that at the start": attention[plateau.index].median(),
        "steps from relevant attention to the drop": drop - crossing(attention, (1 + attention.iloc[-1]) / 2),
        "loss at the end / loss of the solution": loss.iloc[-1] / known["solution"],
        "other outputs at the end": run["other_outputs"].iloc[-1],
        "steps until the first output": crossing(run["first_output"], 0.9),
        STEPS: drop if drop > 0 else float(run.index[-1]),
        "drops": float(drop > 0),
        "repetitions until the drop": early["repetitions"].mean(),
        "cosine until the drop": early["cosine"].mean(),
    }


def finding(name: str, samples: pd.Series) -> Finding:
    """Build a finding: the mean over the seeds that have a value."""
    return Finding(name, judge.mean(samples), f"{samples.notna().sum()} of {len(samples)} seeds")


def compared(key: str, longer: pd.DataFrame, shorter: pd.DataFrame) -> pd.Series:
    """Return `longer[key] / shorter[key]` by seed; NaN for `STEPS` if it is unknown which run drops first."""
    a, b = longer[STEPS], shorter[STEPS]
    unknown = ((longer["drops"] == 0) & (a <= b)) | ((shorter["drops"] == 0) & (b <= a))
    return (longer[key] / shorter[key]).mask(unknown & (key == STEPS))


def abrupt(results, batches, item) -> Measured:
    """Measure every block, and compare scaled attention and larger batches with c = 1 seed by seed."""
    findings, blocks = [], {}
    for study in (results, batches):
        for cell, name in cell_names(study):
            records = study.records[study.records["cell"] == cell]
            wide = records.pivot_table(index=["seed", "step"], columns="metric", values="value")
            seeds = {seed: one_seed(run.droplevel("seed")) for seed, run in wide.groupby("seed")}
            blocks[name] = pd.DataFrame(seeds).T
            shown = blocks[name] if name == "c = 1" else blocks[name][["drops", STEPS]]
            findings += [finding(f"{name}: {key}", x) for key, x in shown.items()]
    one = blocks["c = 1"]
    for key in (STEPS, "repetitions until the drop", "cosine until the drop"):
        for name in ("c = 0.2", "c = 0.5"):
            findings.append(finding(f"{key}, {name} / c = 1", compared(key, blocks[name], one)))
        for name in ("c = 2.5", "c = 10"):
            findings.append(finding(f"{key}, c = 1 / {name}", compared(key, one, blocks[name])))
    larger = compared(STEPS, one, blocks["batch of 128"])
    return Measured([*findings, finding(f"{STEPS}, batch of 64 / batch of 128", larger)], {})
