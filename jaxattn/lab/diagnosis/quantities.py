"""Table of the statistics of a diagnosis, with a verdict relative to the null band of random models."""

from collections.abc import Iterable

import numpy as np
import pandas as pd

from jaxattn.lab.results.correlations import CORRELATIONS, Floats
from jaxattn.lab.results.intervals import TAILS

PAIRS = (
    "E·v against α",
    "E·v against posterior difference",
    "E·p against |α|",
    "E·p against |posterior difference|",
)
SELECTED = "sequences that select an important token"
TIED = "sequences in which an important token ties for the highest score"
_NAMES = [(pair, statistic) for pair in PAIRS for statistic in CORRELATIONS]
_NAMES += [(SELECTED, "share"), (TIED, "share")]
# Number of statistics for E·v. They precede the statistics for E·p.
OF_VALUES = 2 * len(CORRELATIONS)


def quantity_table(point: Floats, interval: Floats, null: Floats, healthy: Floats) -> pd.DataFrame:
    """Build a table with one row per statistic.

    The Q statistics are those in `_NAMES`. `point` has shape (Q,), `interval` (2, Q), `null` (draws, Q) and
    `healthy` (Q,).
    """
    low, high = interval
    # Correlations may be undefined for some random models; compute the null band from all other models.
    known = np.isfinite(null).any(axis=0)
    band = np.nanquantile(np.where(known, null, 0.0), TAILS, axis=0)
    null_low, null_high = np.where(known, band, np.nan)
    table = pd.DataFrame(_NAMES[: len(point)], columns=["quantity", "statistic"]).assign(
        value=point, low=low, high=high, null_low=null_low, null_high=null_high, healthy=healthy
    )
    return table.assign(verdict=[_verdict(*row) for row in zip(point, null_low, null_high, strict=True)])


def _verdict(value: float, low: float, high: float) -> str:
    if not np.isfinite([value, low, high]).all():
        return "not defined"
    return (
        "above the null band"
        if value > high
        else "below the null band"
        if value < low
        else "inside the null band"
    )


def verdict_lines(quantities: pd.DataFrame, important: str, *, shared: bool) -> Iterable[str]:
    """Yield a sentence for each statistic that is defined: its value, the null band, and what it shows.

    `shared` is True if all attention heads share the same v.
    """
    meaning = {
        PAIRS[0]: "the head reads a token as evidence for a label",
        PAIRS[1]: "the head reads a token as evidence for a label",
        PAIRS[2]: "attention prefers important tokens",
        PAIRS[3]: "attention prefers important tokens",
        SELECTED: "attention selects important tokens",
        TIED: "important tokens tie more than by chance",
    }
    rows = quantities[quantities["statistic"].isin(["Spearman, tokens", "share"])]
    rows = rows[(rows["quantity"] != TIED) | (rows["value"] > 0)]
    # Other sentences give the reasons why statistics are not defined.
    rows = rows[rows["verdict"] != "not defined"]
    several = quantities["head"].nunique() > 1
    for row in rows.itertuples(index=False):
        once = shared and row.quantity in PAIRS[:2]
        if once and row.head > 0:
            continue
        head = f"head {row.head}, " if several and not once else ""
        yes = (
            meaning[row.quantity]
            if row.verdict.startswith("above")
            else f"no sign that {meaning[row.quantity]}"
        )
        band = f"[{row.null_low:.3f}, {row.null_high:.3f}]"
        step = f" (one gradient step: {row.healthy:.3f})" if np.isfinite(row.healthy) else ""
        which = f" ({important})" if row.quantity == SELECTED else ""
        yield f"{head}{row.quantity}{which}: {row.value:.3f} is {row.verdict} {band}: {yes}{step}"
