"""Loss plateau: its loss, its end, and their dependence on the scale of relevant attention and the batch."""

import numpy as np
import pandas as pd

from jaxattn.lab.books import around, at_least, cells, mean

DROP = "steps until the drop"
ABOVE_1, ABOVE_0 = (at_least(1.0), "above 1"), (at_least(0.0), "above 0")
SOON = (around(200.0, 200.0), "below 400")
OTHERS, COSINE = "accuracy of other outputs", "cosine of hidden states"
# Text, criterion and published value of c = 1, by id.
MEASURED = {
    "loss_start": ("loss at the start / log 18", around(1.0, 0.02), "1"),
    "loss_plateau": ("loss on the plateau / loss of the partial solution", around(1.0, 0.02), "1"),
    "first_output": ("accuracy of the first output on the plateau", at_least(0.9), "1"),
    "other_outputs": (f"{OTHERS} on the plateau", around(0.0625, 0.03), "1/16, the best constant"),
    "repetitions": ("repetitions on the plateau / those of the task", *ABOVE_1),
    "cosine_start": ("cosine at the start", around(0.0, 0.1), "near 0"),
    "cosine_largest": (f"largest {COSINE}", at_least(0.95), "above 0.95"),
    "cosine_fall": (f"largest {COSINE} - cosine at the end", *ABOVE_0),
    "attention_start": ("relevant attention at the start / equal shares", around(1.0, 0.1), "1"),
    "attention_plateau": ("relevant attention on the plateau / that at the start", *ABOVE_1),
    "attention_lead": ("steps from relevant attention to the drop", *ABOVE_0),
    "loss_end": ("loss at the end / loss of the solution", around(1.0, 0.02), "1"),
    "other_outputs_end": (f"{OTHERS} at the end", at_least(0.99), "1"),
    "first_output_steps": ("steps until the first output", None, ""),
    "drop": (DROP, *SOON),
    "drops": ("share of seeds whose loss drops", None, ""),
    "repetitions_until_drop": ("repetitions until the drop", None, ""),
    "cosine_until_drop": (f"{COSINE} until the drop", None, ""),
}
BLOCKS = {("batch of 128", "drop"): SOON}


def check(results):
    """Measure every block, and compare scaled attention and larger batches with c = 1 seed by seed."""
    every = [cell for name in ("study", "batches") for cell in cells(results[name])]
    blocks = {cell.name: block(cell) for cell in every}
    for cell in every:
        shown = MEASURED if cell.name == "c = 1" else ("drops", "drop")
        for id in shown:
            text, *expected = MEASURED[id]
            if cell.name != "c = 1":
                expected = BLOCKS.get((cell.name, id), (None, ""))
            yield finding(f"{cell.id}.{id}", f"{cell.name}: {text}", blocks[cell.name][id], *expected)
    one = blocks["c = 1"]
    for id in ("drop", "repetitions_until_drop", "cosine_until_drop"):
        text = MEASURED[id][0]
        for c in (0.2, 0.5):
            samples = compared(id, blocks[f"c = {c}"], one)
            yield finding(f"{id}.c={c}/1", f"{text}, c = {c} / c = 1", samples, *ABOVE_1)
        for c in ("2.5", "10"):
            samples = compared(id, one, blocks[f"c = {c}"])
            yield finding(f"{id}.c=1/{c}", f"{text}, c = 1 / c = {c}", samples, *ABOVE_1)
    larger = compared("drop", one, blocks["batch of 128"])
    yield finding("drop.batch=64/128", f"{DROP}, batch of 64 / batch of 128", larger, None, "")


def finding(id, text, samples, expected, published):
    """Build a finding: the mean over the seeds that have a value."""
    return mean(id, text, samples, expected=expected, published=published)


def block(cell):
    """Return the measurements of a cell, one row per seed."""
    return pd.DataFrame([one_seed(run) for run in cell.wide()])


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
        "loss_start": loss.iloc[0] / np.log(18),
        "loss_plateau": (plateau["test_loss"] / known["partial"]).median(),
        "first_output": plateau["first_output"].median(),
        "other_outputs": plateau["other_outputs"].median(),
        "repetitions": plateau["repetitions"].median() / (14 / 240),
        "cosine_start": cosine.iloc[0],
        "cosine_largest": cosine.max(),
        "cosine_fall": cosine.max() - cosine.iloc[-1],
        "attention_start": run["relevant_attention"].iloc[0] / (31 / 392),
        "attention_plateau": attention[plateau.index].median(),
        "attention_lead": drop - crossing(attention, (1 + attention.iloc[-1]) / 2),
        "loss_end": loss.iloc[-1] / known["solution"],
        "other_outputs_end": run["other_outputs"].iloc[-1],
        "first_output_steps": crossing(run["first_output"], 0.9),
        "drop": drop if drop > 0 else float(run.index[-1]),
        "drops": float(drop > 0),
        "repetitions_until_drop": early["repetitions"].mean(),
        "cosine_until_drop": early["cosine"].mean(),
    }


def compared(id: str, longer: pd.DataFrame, shorter: pd.DataFrame) -> pd.Series:
    """Return `longer[id] / shorter[id]` by seed; NaN for "drop" if it is unknown which run drops first."""
    a, b = longer["drop"], shorter["drop"]
    unknown = ((longer["drops"] == 0) & (a <= b)) | ((shorter["drops"] == 0) & (b <= a))
    return (longer[id] / shorter[id]).mask(unknown & (id == "drop"))
