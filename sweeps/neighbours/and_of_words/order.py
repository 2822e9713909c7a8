"""Analysis of both rules: changes of values and scores, and when each type of sentence is learned."""

import numpy as np
import pandas as pd

from jaxattn.lab.books import Finding, Measured
from jaxattn.lab.results import judge

TYPES = ("both", "first", "second", "neither")


def order(results, item) -> Measured:
    """Measure both rules at the step from which all sentences are classified correctly, and at the end."""
    findings, rows = [], []
    for entry in results.manifest["cells"]:
        rule, records = entry["settings"]["data.rule"], results.records
        records = records[records["cell"] == entry["cell"]]
        wide = records.pivot_table(index=["seed", "step"], columns="metric", values="value")
        seeds = [one.droplevel("seed") for _, one in wide.groupby("seed")]
        last = pd.DataFrame([one.iloc[-1] for one in seeds]).reset_index(drop=True)
        places = [_since(one["train_accuracy"] == 1) for one in seeds]
        first = pd.DataFrame([one.iloc[k] for one, k in zip(seeds, places, strict=True)]).reset_index(
            drop=True
        )

        def add(name: str, samples: pd.Series, rule: str = rule) -> None:
            findings.append(Finding(f"{rule}: {name}", judge.mean(samples), f"{len(samples)} seeds"))

        for sign, word in ((1, 1), (1, 2), (-1, 3)):
            add(f"{'-' * (sign < 0)}value of word {word} when all are right", sign * first[f"value_{word}"])
        for sign, pair in ((1, "12"), (1, "21"), (-1, "31"), (-1, "32")):
            add(f"{'-' * (sign < 0)}change of score {pair} at the end", sign * last[f"score_{pair}"])
        add("share of the change of scores when all are right", first["moved"] / last["moved"])
        losses = np.log10(last[[f"loss_{of}" for of in TYPES]].to_numpy())
        add("log10 of largest over smallest loss, types with a word", np.ptp(losses[:, :3], axis=1))
        add("log10 of largest over smallest loss, all types", np.ptp(losses, axis=1))
        add("test accuracy", last["test_accuracy"])
        for of in TYPES:
            steps = [one.index[_since(one[f"right_{of}"] > 0.999)] for one in seeds]
            test = last[f"test_right_{of}"].mean()
            rows.append({"rule": rule, "type": of, "right from step (median)": float(np.median(steps))})
            rows[-1] |= {"loss at the end": last[f"loss_{of}"].mean(), "test accuracy": test}
    return Measured(findings, {"By type of sentence": pd.DataFrame(rows)})


def _since(holds: pd.Series) -> int:
    """Return the index from which a condition always holds; the last index if there is none."""
    fails = np.flatnonzero(~holds.to_numpy())
    return min(int(fails[-1]) + 1, len(holds) - 1) if len(fails) else 0
