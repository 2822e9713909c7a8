"""Means of E·v and E·p in bins of the posterior difference, over all seeds and with each seed left out."""

from typing import NamedTuple

import numpy as np
import pandas as pd

from jaxattn.core.fractions import bin_numbers
from jaxattn.lab.results.correlations import axis, quantile_bins
from jaxattn.lab.results.tokens import final_tokens


class Binned(NamedTuple):
    """Bin means and standard deviations, over all seeds (row 0) and with each seed left out (other rows).

    Attributes:
        centres: bin centres with shape (m,).
        tokens: mean number of tokens per seed in each bin, with shape (m,).
        mean: bin means with shape (1 + S, m) for S seeds, or (1, m) for a single seed. The mean of an empty
            bin is NaN.
        sd: standard deviations with the shape of `mean`.
    """

    centres: np.ndarray
    tokens: np.ndarray
    mean: np.ndarray
    sd: np.ndarray

    @property
    def width(self):
        """Width of a bin."""
        return float(self.centres[1] - self.centres[0]) if len(self.centres) > 1 else 0.0


def tokens_of(cell, label=None):
    """Return a table of the tokens of all seeds at the end of the last phase of a cell.

    If `label` is given, the table contains only this class.
    """
    found = final_tokens(cell.run, cell=cell.cell, average=False, phase=cell.last_phase).table
    return found if label is None else found[found["class"] == label]


def binned(tokens, quantity, *, edges, x="posterior_difference"):
    """Average a quantity within bins, over all seeds and with each seed left out in turn.

    `tokens` is a table with a column "seed", and with the columns that `x` and `quantity` name. `edges`
    contains the m + 1 bin edges in ascending order. Points outside of them are dropped, and so are NaN and
    infinite values of the quantity.
    """
    edges = np.asarray(edges, float)
    bins = len(edges) - 1
    at, y = tokens[x].to_numpy(float), tokens[quantity].to_numpy(float)
    bin_index = quantile_bins(at, edges) if x == "alpha" else bin_numbers(at, edges)
    inside = (bin_index >= 0) & np.isfinite(y)
    bin_index, y = bin_index[inside], y[inside]
    seeds, seed_index = np.unique(tokens["seed"].to_numpy()[inside], return_inverse=True)
    cell, weights = seed_index * bins + bin_index, 1 - np.eye(1 + len(seeds), len(seeds), -1)
    weights = weights if len(seeds) > 1 else weights[:1]
    n, first, second = (
        weights @ np.bincount(cell, y**power, len(seeds) * bins).reshape(len(seeds), bins)
        for power in range(3)
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = first / n
        sd = np.sqrt(np.maximum(second / n - mean**2, 0))
    counts = np.bincount(bin_index, minlength=bins) / max(len(seeds), 1)
    return Binned((edges[1:] + edges[:-1]) / 2, counts, mean, sd)


def bins_of(cell, quantity):
    """Average E·v or E·p over the tokens in each bin of the figure of a cell.

    `quantity` is "Ev" or "Ep".
    """
    own = axis(cell.run, cell.cell)
    edges = np.linspace(own["low"], own["high"], own["bins"] + 1)
    return binned(tokens_of(cell), quantity, edges=edges)


def table_of(ev, ep, *curves):
    """Return a table of the bin means, next to the published curves if `curves` are given."""
    table = {"posterior difference": [f"{x:.2f}" for x in ev.centres], "tokens per seed": ev.tokens}
    for letters, own, curve in zip(("E·v", "E·p"), (ev, ep), curves or (None, None), strict=True):
        name = curve.letters if curve else letters
        table |= {f"{name}, measured": own.mean[0], f"{name}, spread": own.sd[0]}
        table |= {f"{name}, published": curve.values} if curve else {}
    return pd.DataFrame(table)
