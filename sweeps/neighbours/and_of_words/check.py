"""AND of two words: changes of values and scores, and when each type of sentence is learned."""

import numpy as np
import pandas as pd

from jaxattn.lab.books import around, at_least, cells, mean

TYPES = ("both", "first", "second", "neither")
RIGHT = "when all sentences are classified correctly"
# Sign that the paper states, metric and text. The value of word 3, and scores with it as a key, fall.
VALUES = {
    "value_1": (1, f"value of word 1 {RIGHT}"),
    "value_2": (1, f"value of word 2 {RIGHT}"),
    "value_3": (-1, f"minus the value of word 3 {RIGHT}"),
}
SCORES = {
    "score_12": (1, "final change of the score of word 1 as a key for word 2 as a query"),
    "score_21": (1, "final change of the score of word 2 as a key for word 1 as a query"),
    "score_31": (-1, "minus the final change of the score of word 3 as a key for word 1 as a query"),
    "score_32": (-1, "minus the final change of the score of word 3 as a key for word 2 as a query"),
}


def check(results):
    """Measure both rules at the step from which all sentences are classified correctly, and at the end."""
    for cell in cells(results["study"]):
        rule = cell["data.rule"]
        last, first = ends(cell)

        def finding(id, text, samples, expected, published, rule=rule):
            # XOR is added here, and nothing is published about it.
            about = {"expected": expected, "published": published} if rule == "and" and expected else {}
            return mean(f"{rule}.{id}", f"{rule.upper()} task: {text}", samples, **about)

        for key, (sign, text) in VALUES.items():
            yield finding(key, text, sign * first[key], at_least(0.0), "> 0")
        for key, (sign, text) in SCORES.items():
            yield finding(key, text, sign * last[key], at_least(0.0), "> 0")
        text = f"share of the final change of scores that is reached {RIGHT}"
        moved = first["moved"] / last["moved"]
        yield finding("moved", text, moved, around(0.0, 0.1), "attention does not move")
        losses = np.log10(last[[f"loss_{of}" for of in TYPES]].to_numpy())
        words, together = "log10 of the largest loss divided by the smallest,", "all fall together"
        near = around(0.0, 1.0)
        text = f"{words} sentence types with word 1 or word 2"
        yield finding("losses_with_a_word", text, np.ptp(losses[:, :3], axis=1), near, together)
        text = f"{words} all sentence types"
        yield finding("losses", text, np.ptp(losses, axis=1), near, together)
        yield finding("test_accuracy", "test accuracy", last["test_accuracy"], None, "")


def ends(cell):
    """Return the metrics at the end, and at the first step with all sentences right; one row per seed."""
    seeds = cell.wide()
    last = pd.DataFrame([one.iloc[-1] for one in seeds]).reset_index(drop=True)
    places = [since(one["train_accuracy"] == 1) for one in seeds]
    first = pd.DataFrame([one.iloc[k] for one, k in zip(seeds, places, strict=True)])
    return last, first.reset_index(drop=True)


def since(holds: pd.Series) -> int:
    """Return the index from which a condition always holds; the last index if there is none."""
    fails = np.flatnonzero(~holds.to_numpy())
    return min(int(fails[-1]) + 1, len(holds) - 1) if len(fails) else 0


def tables(results):
    """Return when each type of sentence is learned, its final loss, and its test accuracy."""
    rows = []
    for cell in cells(results["study"]):
        last, _ = ends(cell)
        for of in TYPES:
            steps = [one.index[since(one[f"right_{of}"] > 0.999)] for one in cell.wide()]
            row = {"rule": cell["data.rule"], "type": of}
            row["median step from which on all sentences of the type are classified correctly"] = float(
                np.median(steps)
            )
            test = last[f"test_right_{of}"].mean()
            rows.append(row | {"loss at the end": last[f"loss_{of}"].mean(), "test accuracy": test})
    return {"By type of sentence": pd.DataFrame(rows)}
