"""Points in bins: which bin each is in, and means over bins."""

from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from jaxattn.core.errors import InputError
from jaxattn.results.run import Run

BINS = 20


def axis(results: Run, cell: int) -> dict[str, Any]:
    """Look up the bins of the posterior difference of a cell: those its probes have, or `BINS` over [-1, 1].

    Returns:
        bins, low and high, as `bin_means` takes them.
    """
    found: dict[str, Any] = {"bins": BINS, "low": -1.0, "high": 1.0}
    with suppress(InputError):
        if number := results.lookup(cell, "probes.bins"):
            ends = {end: results.lookup(cell, f"probes.{end}") for end in ("low", "high")}
            found = {"bins": number} | ends
    return found


def bin_numbers(x: ArrayLike, edges: ArrayLike) -> NDArray[np.int64]:
    """Number the bin of every point, -1 for none.

    Bin b is edges[b] ≤ x < edges[b + 1]; the last one holds its upper end too.

    Args:
        x: (N,); NaN is in no bin.
        edges: (m + 1,) ascending.

    Returns:
        (N,) from -1 to m - 1.
    """
    x, edges = np.asarray(x, float), np.asarray(edges, float)
    # Ratios of counts lie on edges, and were rounded to single precision.
    gaps = np.diff(edges[np.isfinite(edges)])
    slack = 1e-5 * gaps.min() if gaps.size else 0.0
    inside = (x >= edges[0] - slack) & (x <= edges[-1] + slack)
    number = np.clip(np.searchsorted(edges - slack, x, side="right") - 1, 0, len(edges) - 2)
    return np.where(inside, number, -1)


def quantile_edges(x: ArrayLike, bins: int) -> NDArray[np.float64]:
    """Bound bins that hold about equally many points; points that tie share a bin."""
    inner = np.unique(np.quantile(np.asarray(x, float), np.linspace(0, 1, bins + 1)[1:-1]))
    return np.concatenate([[-np.inf], inner, [np.inf]])


def bin_means(
    x: ArrayLike, y: ArrayLike, *, bins: int = BINS, low: float = -1.0, high: float = 1.0
) -> pd.DataFrame:
    """Average y in equal bins of x.

    Args:
        x: (N,).
        y: (N,).
        bins: number of bins.
        low: lower end of the first bin.
        high: upper end of the last bin.

    Returns:
        One row per bin: center, n, mean and sd (NaN for an empty bin). Points outside are left out.
    """
    edges = np.linspace(low, high, bins + 1)
    number = bin_numbers(x, edges)
    inside = number >= 0
    groups = pd.Series(np.asarray(y, float)[inside]).groupby(number[inside])
    n = np.bincount(number[inside], minlength=bins)
    table = pd.DataFrame({"center": (edges[1:] + edges[:-1]) / 2, "n": n})
    return table.assign(mean=groups.mean(), sd=groups.std(ddof=0))
