"""Measures that compare the shapes of E·v and E·p with the published ones.

The shapes are those of the means of E·v and E·p in bins of the posterior difference.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from jaxattn.core.errors import InputError
from jaxattn.core.fractions import bin_numbers
from jaxattn.lab.books.book import Item
from jaxattn.lab.books.findings import Finding, Measured
from jaxattn.lab.books.metrics import cell_names, last, last_phase, values
from jaxattn.lab.books.tables import Curve
from jaxattn.lab.results.correlations import axis, quantile_bins, spearman
from jaxattn.lab.results.judge import Estimate, jackknifed, share
from jaxattn.lab.results.run import Run
from jaxattn.lab.results.tokens import final_tokens

_Rows = NDArray[np.float64]


class _Binned(NamedTuple):
    """Bin means and standard deviations, over all seeds (row 0) and with each seed left out (other rows).

    Attributes:
        centres: (m,); bin centres.
        tokens: (m,); mean number of tokens per seed.
        mean: (1 + S, m), or (1, m) if there is only one seed; NaN for an empty bin.
        sd: standard deviations, with the shape of `mean`.
    """

    centres: _Rows
    tokens: _Rows
    mean: _Rows
    sd: _Rows

    @property
    def width(self) -> float:
        return float(self.centres[1] - self.centres[0]) if len(self.centres) > 1 else 0.0

    @property
    def over(self) -> str:
        seeds = len(self.mean) - 1 or 1
        return "one seed" if seeds == 1 else f"{seeds} seeds"


def binned(
    tokens: pd.DataFrame, quantity: str, *, edges: ArrayLike, x: str = "posterior_difference"
) -> _Binned:
    """Average a quantity within bins, over all seeds and with each seed left out in turn.

    `tokens` has columns seed, x and the quantity. `edges`, (m + 1,), contains the bin edges in ascending
    order; points outside them are dropped.
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
    return _Binned((edges[1:] + edges[:-1]) / 2, counts, mean, sd)


def lowest(rows: _Rows, centres: _Rows) -> _Rows:
    """Return the centre of the bin with the lowest value in each of B rows, (B,); NaN if none is finite."""
    return _per_row(lambda row: centres[np.nanargmin(row)] if np.isfinite(row).any() else math.nan, rows)


def u_shape(rows: _Rows, centres: _Rows) -> _Rows:
    """Return a score for the U-shape of each row about 0: 1 for a U, near 0 or negative if flat or monotone.

    Let x be the bin centres. The score is min(-Spearman(row, x) over x < 0, Spearman(row, x) over x > 0).

    Args:
        rows: (B, m).
        centres: (m,).

    Returns:
        The scores, (B,).
    """
    left, right = centres < 0, centres > 0
    return np.minimum(-spearman(rows[:, left], centres[left]), spearman(rows[:, right], centres[right]))


def longest_rise(rows: _Rows) -> tuple[_Rows, _Rows, _Rows]:
    """Find the longest run of increasing entries in each row; return its length and its first and last bin.

    Args:
        rows: (B, m); NaN entries are skipped.

    Returns:
        Number of entries, first bin and last bin, (B,) each.
    """
    found = np.array([_run(row) for row in rows], float)
    return found[:, 0], found[:, 1], found[:, 2]


def _run(row: _Rows) -> tuple[int, int, int]:
    used = np.flatnonzero(np.isfinite(row))
    best, start = (0, 0, 0), 0
    for k in range(len(used)):
        if k and row[used[k]] <= row[used[k - 1]]:
            start = k
        best = max(best, (k - start + 1, int(used[start]), int(used[k])), key=lambda run: run[0])
    return best


def sign_change(rows: _Rows, centres: _Rows) -> _Rows:
    """Return the fraction of bins in each of B rows whose mean has the same sign as the bin centre, (B,).

    Empty bins and bins centred at 0 are skipped.
    """

    def one(row: _Rows) -> float:
        use = np.isfinite(row) & (np.abs(centres) > 1e-9)
        return float((np.sign(row[use]) == np.sign(centres[use])).mean()) if use.any() else math.nan

    return _per_row(one, rows)


def _per_row(function: Callable[[_Rows], float], rows: _Rows) -> _Rows:
    return np.array([function(row) for row in rows], float)


LETTERS = {"Ev": "E·v", "Ep": "E·p"}
RISE, U, LOWEST = (
    "Spearman of E·v and the bin centres",
    "U-shape of E·p about 0 (1 for a U)",
    "where E·p is lowest",
)
LONGEST = "bins in the longest rise of E·v, "
WAYS = "share of seeds in which E·v "
# E·v counts as rising in a seed if its Spearman correlation is at least RISING, and as falling if it is at
# most -RISING.
RISING = 0.9
CORRELATION, PART = (-1.0, 1.0), (0.0, 1.0)


def shapes(results: Run, item: Item, *, cell: int = 0, metrics: tuple[str, ...] = ()) -> Measured:
    """Measure whether E·v rises with the posterior difference and E·p is U-shaped about 0, in one cell.

    These are the shapes in Figures 1-3 of the paper. The final values of the given metrics are also measured.
    """
    ev, ep = (_bins(results, quantity, cell) for quantity in ("Ev", "Ep"))
    findings = [
        Finding(RISE, jackknifed(spearman(ev.mean, ev.centres), CORRELATION), ev.over),
        _longest(ev),
        Finding(U, jackknifed(u_shape(ep.mean, ep.centres), CORRELATION), ep.over),
        Finding(LOWEST, jackknifed(lowest(ep.mean, ep.centres), width=ep.width), ep.over),
        *(last(results, cell, metric) for metric in metrics),
    ]
    return Measured(findings, {"Bin means": _table(ev, ep)})


def variations(results: Run, item: Item) -> Measured:
    """Measure the shapes in each cell; see `shapes`."""
    findings, rows = [], []
    for cell, name in cell_names(results):
        found = shapes(results, item, cell=cell).findings
        findings += [
            Finding(f"{name}: {each.measured}", each.estimate, each.over)
            for each in found
            if each.measured in (RISE, U, LOWEST)
        ]
        row = {"": name} | {each.measured.partition(",")[0]: each.text for each in found}
        rows.append(row | {"test accuracy": last(results, cell, "test_accuracy").text})
    return Measured(findings, {"Shapes": pd.DataFrame(rows)})


def directions(results: Run, item: Item) -> Measured:
    """Measure how often E·v rises or falls with the posterior difference.

    The findings are fractions of seeds, for each cell.
    """
    findings, rows = [], []
    for cell, name in cell_names(results):
        each = values(results, cell, "spearman_Ev_bins")
        for way, sign in (("rises", 1), ("falls", -1)):
            counted = f"{name}: {WAYS}{way}"
            findings.append(Finding(counted, share(sign * each >= RISING), f"{len(each)} seeds"))
        rows.append(
            {
                "": name,
                f"{RISE}, each seed": ", ".join(f"{x:.2f}" for x in each),
                "test accuracy": last(results, cell, "test_accuracy").text,
            }
        )
    return Measured(findings, {"Every seed": pd.DataFrame(rows)})


def beside(results: Run, item: Item) -> Measured:
    """Compare the means of E·v and E·p in bins with the published curves.

    The findings are the rank correlations with the curves, the number of bins in the longest rise of E·v, and
    the centre of the bin in which E·p is lowest.
    """
    ev, ep = _bins(results, "Ev"), _bins(results, "Ep")
    curves = item.published("Ev"), item.published("Ep")
    findings = [
        Finding(f"Spearman of {curve.name} and the published bin means", _ranks(own.mean, curve), own.over)
        for own, curve in zip((ev, ep), curves, strict=True)
    ]
    least = f"where {curves[1].letters} is lowest"
    findings += [
        _longest(ev),
        Finding(least, jackknifed(lowest(ep.mean, ep.centres), width=ep.width), ep.over),
    ]
    return Measured(findings, {"Bin means": _table(ev, ep, *curves)})


def spread_name(letters: str, size: Any) -> str:
    """Return the name under which `spread` reports its result for the quantity `letters` and a step size."""
    return f"spread of {letters}, to the end ÷ one step of {size:g}"


def spread(results: Run, item: Item, *, to_the_end: str) -> Measured:
    """Compare the spread of E·v and of E·p within bins after one step on E and after joint training.

    The spread is the standard deviation within a bin, averaged over bins. The finding for each quantity and
    step size is the spread after joint training, divided by the spread after one step. The table also divides
    each spread by the range of the bin means, which removes the dependence on the step size. `to_the_end` is
    the name of the block in which E is trained to convergence.
    """
    cells = dict(cell_names(results))
    if to_the_end not in cells.values():
        raise InputError(
            f"to_the_end: no cell named {to_the_end!r}; choose one of {', '.join(cells.values())}"
        )
    joint = next(cell for cell, name in cells.items() if name == to_the_end)
    findings, rows = [], []
    for quantity, letters in LETTERS.items():
        trained = _bins(results, quantity, joint)
        for cell in cells:
            own = _bins(results, quantity, cell)
            sd, height = np.nanmean(own.sd, axis=1), np.nanmax(own.mean, axis=1) - np.nanmin(own.mean, axis=1)
            size = results.settings(cell).get("phases.embed.step_size")
            rows.append(
                {
                    "": to_the_end if cell == joint else f"one step, η0 = {size:g}",
                    "quantity": letters,
                    "mean spread within bins": sd[0],
                    "range of the bin means": height[0],
                    "spread ÷ range": sd[0] / height[0],
                }
            )
            if cell != joint:
                ratio = np.nanmean(trained.sd, axis=1) / sd
                name = spread_name(letters, size)
                findings.append(Finding(name, jackknifed(ratio), own.over))
    return Measured(findings, {"Spread within bins": pd.DataFrame(rows)})


def classes(results: Run, item: Item) -> Measured:
    """Compare E·v_k with published curves for some classes k: signs of bin means, and rank correlations.

    The x-axis of the published curves is unlabelled, so both the posterior difference of the class and α
    are tried.
    """
    findings, tables = [], {}
    for label in map(int, item.curves):
        curve = item.published(str(label))
        centres = np.array(curve.centres)
        step, count = centres[1] - centres[0], len(centres)
        tokens = _tokens(results, 0, label)
        near = np.linspace(centres[0] - step / 2, centres[-1] + step / 2, count + 1)
        own = binned(tokens, "Ev", edges=near)
        whole = binned(tokens, "Ev", edges=np.linspace(-1 / 3, 1, 21))
        # For comparison, also bin by α, with the same number of bins and equal numbers of tokens per bin.
        alpha = np.quantile(tokens["alpha"], np.linspace(0, 1, count + 1))
        by_alpha = binned(tokens, "Ev", x="alpha", edges=np.maximum.accumulate(alpha))
        name, equal = curve.letters, f"{count} bins of equally many tokens"
        findings += [
            Finding(f"{name}: bins whose sign is that of the posterior difference, published range",
                    _signs(own), own.over),
            Finding(f"{name}: Spearman with the published rows", _ranks(own.mean, curve), own.over),
            Finding(f"{name}: Spearman with the posterior difference, its whole range",
                    jackknifed(spearman(whole.mean, whole.centres), CORRELATION), whole.over),
            Finding(f"{name}: bins whose sign is that of α, {equal}", _signs(by_alpha), by_alpha.over),
            Finding(f"{name}: Spearman with the published rows, the same bins",
                    _ranks(by_alpha.mean, curve), by_alpha.over),
        ]  # fmt: skip
        class_name = final_tokens(results, phase=last_phase(results, 0)).name(label)
        tables[f"Class {class_name}, the published {name}"] = pd.DataFrame(
            {
                "posterior difference": [f"{x:.4f}" for x in centres],
                "tokens per seed": own.tokens,
                f"{name}, ours": own.mean[0],
                f"{name}, published": curve.values,
                f"α, {equal}": [f"{x:.1e}" for x in by_alpha.centres],
                f"{name}, ours over α": by_alpha.mean[0],
            }
        )
    return Measured(findings, tables)


def _ranks(rows: _Rows, curve: Curve) -> Estimate:
    return jackknifed(spearman(rows, np.array(curve.values)), CORRELATION)


def _signs(own: _Binned) -> Estimate:
    return jackknifed(sign_change(own.mean, own.centres), PART)


def _longest(own: _Binned) -> Finding:
    bins, first, final = longest_rise(own.mean)
    where = f"{own.centres[int(first[0])]:.2f} to {own.centres[int(final[0])]:.2f}"
    estimate = jackknifed(bins, (1, len(own.centres)))
    return Finding(f"{LONGEST}{where}", estimate, own.over)


def _tokens(results: Run, cell: int = 0, label: int | None = None) -> pd.DataFrame:
    tokens = final_tokens(results, cell=cell, average=False, phase=last_phase(results, cell)).table
    return tokens if label is None else tokens[tokens["class"] == label]


def _bins(results: Run, quantity: str, cell: int = 0) -> _Binned:
    own = axis(results, cell)
    return binned(
        _tokens(results, cell), quantity, edges=np.linspace(own["low"], own["high"], own["bins"] + 1)
    )


def _table(ev: _Binned, ep: _Binned, *curves: Curve) -> pd.DataFrame:
    table: dict[str, ArrayLike] = {
        "posterior difference": [f"{x:.2f}" for x in ev.centres],
        "tokens per seed": ev.tokens,
    }
    for letters, own, curve in zip(LETTERS.values(), (ev, ep), curves or (None, None), strict=True):
        name = curve.letters if curve else letters
        table |= {f"{name}, ours": own.mean[0], f"{name}, spread": own.sd[0]}
        table |= {f"{name}, published": curve.values} if curve else {}
    return pd.DataFrame(table)
