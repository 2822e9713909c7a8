"""How items are measured: from a finished run to findings and tables."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from jaxattn.claims.rows import Tolerance, around, at_least
from jaxattn.paper import published
from jaxattn.paper.compare import (
    Binned,
    Estimate,
    Finding,
    binned,
    estimate,
    longest_rise,
    lowest,
    over_seeds,
    share,
    sign_change,
    u_shape,
)
from jaxattn.paper.published import Curve, Number
from jaxattn.results.binning import axis
from jaxattn.results.correlations import spearman
from jaxattn.results.fits import power_law
from jaxattn.results.numbers import format_number, setting
from jaxattn.results.run import Run
from jaxattn.results.statistics import last_steps
from jaxattn.results.tokens import at_end

# What counts as the same shape; chosen here, since the paper shows its curves and gives no measure of them.
RISING, U_SHAPED, NEAR_ZERO = at_least(0.9), at_least(0.8), around(0.0, 0.3)
SAME_RANKS, SAME_MINIMUM, SAME_RUN = at_least(0.8), 0.2, 5.0
SAME_SIGNS, SAME_ORDER = at_least(0.9), at_least(0.7)
LETTERS = {"Ev": "E·v", "Ep": "E·p"}


class Measured(NamedTuple):
    """What a run says about an item.

    Attributes:
        findings: numbers, with verdicts where something is published.
        tables: further tables by title.
    """

    findings: list[Finding]
    tables: dict[str, pd.DataFrame]


Measure = Callable[[Run], Measured]


def shapes(results: Run, cell: int = 0) -> Measured:
    """Measure the shapes of Figures 1-3: E·v increasing, E·p U-shaped with its minimum near 0."""
    ev, ep = (_bins(results, quantity, cell) for quantity in ("Ev", "Ep"))
    findings = [
        Finding(
            "Spearman of E·v and the bin centres",
            estimate(spearman(ev.mean, ev.centres), between=(-1.0, 1.0)),
            ev.over,
            RISING,
            "increasing",
        ),
        _rise(ev, None),
        Finding(
            "U-shape of E·p about 0 (1 for a U)",
            estimate(u_shape(ep.mean, ep.centres), between=(-1.0, 1.0)),
            ep.over,
            U_SHAPED,
            "U-shaped",
        ),
        Finding(
            "where E·p is lowest",
            estimate(lowest(ep.mean, ep.centres), width=ep.width),
            ep.over,
            NEAR_ZERO,
            "U-shaped",
        ),
    ]
    return Measured(findings, {"Bin means": _table(ev, ep)})


def beside(ev_curve: Curve, ep_curve: Curve) -> Measure:
    """Hold bin means against published ones: ranks, the place of the minimum, the range of rise."""

    def measure(results: Run) -> Measured:
        ev, ep = _bins(results, "Ev"), _bins(results, "Ep")
        best = ep_curve.centres[int(np.argmin(ep_curve.values))]
        findings = [
            Finding(
                f"Spearman of {curve.name} and the published bin means",
                estimate(spearman(own.mean, np.array(curve.values)), between=(-1.0, 1.0)),
                own.over,
                SAME_RANKS,
                "1",
            )
            for own, curve in ((ev, ev_curve), (ep, ep_curve))
        ]
        findings += [
            _rise(ev, ev_curve),
            Finding(
                f"where {_letters(ep_curve)} is lowest",
                estimate(lowest(ep.mean, ep.centres), width=ep.width),
                ep.over,
                around(round(best, 3), SAME_MINIMUM),
                f"{best:.3f}",
            ),
        ]
        return Measured(findings, {"Bin means": _table(ev, ep, ev_curve, ep_curve)})

    return measure


def start(results: Run) -> Measured:
    """Hold accuracy and loss of each block against the published ones; show them along the way."""
    frozen = {
        "test_accuracy": (published.FROZEN_ACCURACY, 0.05),
        "loss": (published.FROZEN_LOSS, 0.05),
    }
    expected: dict[str, dict[str, tuple[Number, float]]] = {
        "E at its start": frozen,
        "E at its start, more steps": frozen,
        "all trained": {
            "test_accuracy": (published.TRAINED_ACCURACY, 0.03),
            "loss": (published.TRAINED_LOSS, 0.05),
        },
    }
    findings = []
    for cell, name in _cells(results):
        for metric in ("test_accuracy", "train_accuracy", "loss"):
            number, distance = expected.get(name, {}).get(metric, (None, 0.0))
            findings.append(
                Finding(
                    f"{name}: {metric.replace('_', ' ')}",
                    *last(results, cell, metric),
                    around(number.value, distance) if number else None,
                    f"≈ {number.value:g}" if number else "-",
                )
            )
    records = results.records[results.records["metric"].isin(["test_accuracy", "loss"])]
    wide = records.pivot_table(index=["cell", "step"], columns="metric", values="value").reset_index()
    names = wide.pop("cell").map(dict(_cells(results)))
    wide.insert(0, "", names)
    return Measured(
        findings, {"Along the way, mean over seeds": wide.rename(columns=lambda x: x.replace("_", " "))}
    )


def spread(results: Run) -> Measured:
    """Measure how much smaller the spread within bins is after one step on E than after joint training.

    For every size of the step: mean over the bins of the standard deviation, joint ÷ one step; and the same
    with each spread divided by the range of its bin means first, which does not depend on the step's size.
    """
    cells = dict(_cells(results))
    joint = next(cell for cell, name in cells.items() if name == "E trained to the end")
    findings, rows = [], []
    for quantity, number in (("Ev", published.STD_RATIO_EV), ("Ep", published.STD_RATIO_EP)):
        to_the_end = _bins(results, quantity, joint)
        for cell in cells:
            own = _bins(results, quantity, cell)
            sd, height = np.nanmean(own.sd, axis=1), np.nanmax(own.mean, axis=1) - np.nanmin(own.mean, axis=1)
            size = results.settings(cell).get("phases.embed.step_size")
            rows.append(
                {
                    "": "E trained to the end" if cell == joint else f"one step, η0 = {size:g}",
                    "quantity": LETTERS[quantity],
                    "mean spread within bins": sd[0],
                    "range of the bin means": height[0],
                    "spread ÷ range": sd[0] / height[0],
                }
            )
            if cell == joint:
                continue
            ratio = np.nanmean(to_the_end.sd, axis=1) / sd
            name = f"spread of {LETTERS[quantity]}, to the end ÷ one step of {size:g}"
            within = Tolerance(number.value / 2, 2 * number.value, f"{number.value:g} within a factor of 2")
            findings.append(Finding(name, estimate(ratio), own.over, within, f"{number.value:g}"))
    return Measured(findings, {"Spread within bins": pd.DataFrame(rows)})


def four_classes(results: Run) -> Measured:
    """Hold E·v_2 and E·v_4 against their published rows: the sign change at 0 and the order.

    The x-axis of the rows is not named. It is taken for the class's posterior difference, and α is tried too.
    """
    findings, tables = [], {}
    for label, curve in ((1, published.YELP_EV_2), (3, published.YELP_EV_4)):
        step = curve.centres[1] - curve.centres[0]
        near = np.linspace(curve.centres[0] - step / 2, curve.centres[-1] + step / 2, 20)
        tokens = _tokens(results, 0, label)
        own = binned(tokens, "Ev", edges=near)
        whole = binned(tokens, "Ev", edges=np.linspace(-1 / 3, 1, 21))
        # Equally many tokens in each of as many bins.
        alpha = np.quantile(tokens["alpha"], np.linspace(0, 1, 20))
        by_alpha = binned(tokens, "Ev", x="alpha", edges=np.maximum.accumulate(alpha))
        name = f"E·v_{label + 1}"
        published_signs = float(sign_change(np.array([curve.values]), np.array(curve.centres))[0])
        findings += [
            Finding(
                f"{name}: bins whose sign is that of the posterior difference, published range",
                estimate(sign_change(own.mean, own.centres), between=(0.0, 1.0)),
                own.over,
                SAME_SIGNS,
                format_number(published_signs),
            ),
            Finding(
                f"{name}: Spearman with the published rows",
                estimate(spearman(own.mean, np.array(curve.values)), between=(-1.0, 1.0)),
                own.over,
                SAME_ORDER,
                "1",
            ),
            Finding(
                f"{name}: Spearman with the posterior difference, its whole range",
                estimate(spearman(whole.mean, whole.centres), between=(-1.0, 1.0)),
                whole.over,
                RISING,
                "rows rise",
            ),
            Finding(
                f"{name}: bins whose sign is that of α, 19 bins of equally many tokens",
                estimate(sign_change(by_alpha.mean, by_alpha.centres), between=(0.0, 1.0)),
                by_alpha.over,
                SAME_SIGNS,
                format_number(published_signs),
            ),
            Finding(
                f"{name}: Spearman with the published rows, the same bins",
                estimate(spearman(by_alpha.mean, np.array(curve.values)), between=(-1.0, 1.0)),
                by_alpha.over,
                SAME_ORDER,
                "1",
            ),
        ]
        class_name = at_end(results, phase=_last_phase(results, 0)).name(label)
        tables[f"Class {class_name}, the published {name}"] = pd.DataFrame(
            {
                "posterior difference": [f"{x:.4f}" for x in curve.centres],
                "tokens per seed": own.tokens,
                f"{name}, ours": own.mean[0],
                f"{name}, published": curve.values,
                "α, 19 bins of equally many tokens": [f"{x:.1e}" for x in by_alpha.centres],
                f"{name}, ours over α": by_alpha.mean[0],
            }
        )
    return Measured(findings, tables)


def law(results: Run) -> Measured:
    """Fit the power of d in the error of the one-step law."""
    records = last_steps(results.records)
    records = results.with_axes(records[records["metric"] == "one_step_error"])
    wide = records.pivot_table(index="model.dim", columns="seed", values="value").sort_index()
    fit = power_law(wide.index.to_numpy(float), wide.to_numpy(float))
    finding = Finding(
        "power of d in the error per unit of η0",
        Estimate(fit.slope, fit.low, fit.high, fit.seeds),
        f"{fit.seeds} seeds",
        around(-0.5, 0.05),
        f"{published.LAW_POWER.value:g}",
    )
    errors = {"d": list(wide.index), "error per unit of η0": wide.mean(axis=1).tolist()}
    return Measured([finding], {"Error of the one-step law": pd.DataFrame(errors)})


def over_dimensions(results: Run) -> Measured:
    """Measure the shapes of E·v and E·p and the test accuracy in every cell; nothing is published."""
    found = variations(results)
    return Measured([_unpublished(finding) for finding in found.findings], found.tables)


def variations(results: Run) -> Measured:
    """Measure the shapes in every cell, with verdicts."""
    findings, rows = [], []
    for cell, name in _cells(results):
        found = shapes(results, cell).findings
        findings += [replace(f, measured=f"{name}: {f.measured}") for f in found if f.criterion]
        row = {"": name} | {f.measured.partition(",")[0]: f.text for f in found}
        rows.append(row | {"test accuracy": _finding(results, cell, "test_accuracy", "").text})
    return Measured(findings, {"Shapes": pd.DataFrame(rows)})


def cells(*metrics: str) -> Measure:
    """Measure metrics at the end of every cell."""

    def measure(results: Run) -> Measured:
        findings = [
            _finding(results, cell, metric, f"{name}: ")
            for metric in metrics
            for cell, name in _cells(results)
        ]
        return Measured(findings, {})

    return measure


def directions(results: Run) -> Measured:
    """Count the seeds in which E·v rises along the bins, and those in which it falls, in every cell."""
    findings, rows = [], []
    for cell, name in _cells(results):
        values = _values(results, cell, "spearman_Ev_bins")
        for way, sign in (("rises", 1), ("falls", -1)):
            named = f"{name}: share of seeds in which E·v {way}"
            findings.append(Finding(named, share(sign * values >= RISING.low), f"{len(values)} seeds"))
        accuracy = _finding(results, cell, "test_accuracy", "").text
        every = ", ".join(f"{x:.2f}" for x in values)
        rows.append(
            {"": name, "Spearman of E·v and the bin centres, each seed": every, "test accuracy": accuracy}
        )
    return Measured(findings, {"Every seed": pd.DataFrame(rows)})


def purity(results: Run) -> Measured:
    """Measure the shapes, and how well E·v of a word tells its purity: Spearman over words."""
    found = shapes(results)
    lone = [_finding(results, 0, metric, "") for metric in ("spearman_Ev_tokens", "test_accuracy")]
    return Measured([_unpublished(finding) for finding in found.findings] + lone, found.tables)


def _unpublished(finding: Finding) -> Finding:
    return replace(finding, criterion=None, published="-")


def _finding(results: Run, cell: int, metric: str, prefix: str) -> Finding:
    return Finding(f"{prefix}{metric.replace('_', ' ')}", *last(results, cell, metric))


def last(results: Run, cell: int, metric: str) -> tuple[Estimate, str]:
    """Estimate the metric at the end of the last phase of a cell over seeds, and say over what it is."""
    values = _values(results, cell, metric)
    if not len(values):
        return Estimate(np.nan, np.nan, np.nan), "not measured"
    found = over_seeds(values)
    if metric.endswith(("accuracy", "mass")):
        value, low, high = np.clip(found[:3], 0.0, 1.0).tolist()
        found = Estimate(value, low, high, found.seeds)
    if found.seeds < len(values):
        return found, f"{found.seeds} of {len(values)} seeds, which have a value"
    return found, "one seed" if len(values) == 1 else f"{len(values)} seeds"


def _values(results: Run, cell: int, metric: str) -> NDArray[np.float64]:
    """List the metric of every seed at the end of the last phase of a cell."""
    records = results.records
    records = records[(records["cell"] == cell) & (records["phase"] == _last_phase(results, cell))]
    return last_steps(records[records["metric"] == metric])["value"].to_numpy(float)


def _cells(results: Run) -> list[tuple[int, str]]:
    """Number and name of every cell: its block, and its other settings."""
    named = []
    for entry in results.manifest["cells"]:
        others = [f"{key} = {setting(x)}" for key, x in entry["settings"].items() if key != "block"]
        block = entry["settings"].get("block")
        named.append((int(entry["cell"]), ", ".join([*([block] if block else []), *others])))
    return named


def _last_phase(results: Run, cell: int) -> str:
    # Cells of different blocks may have different phases.
    return str(results.records["phase"][results.records["cell"] == cell].iloc[-1])


def _tokens(results: Run, cell: int = 0, label: int | None = None) -> pd.DataFrame:
    tokens = at_end(results, cell=cell, average=False, phase=_last_phase(results, cell)).table
    return tokens if label is None else tokens[tokens["class"] == label]


def _bins(results: Run, quantity: str, cell: int = 0) -> Binned:
    own = axis(results, cell)
    return binned(
        _tokens(results, cell), quantity, edges=np.linspace(own["low"], own["high"], own["bins"] + 1)
    )


def _rise(own: Binned, curve: Curve | None) -> Finding:
    bins, first, last = longest_rise(own.mean)
    name = "bins in the longest rise of E·v"
    where = f", {own.centres[int(first[0])]:.2f} to {own.centres[int(last[0])]:.2f}"
    if curve is None:
        return Finding(name + where, estimate(bins), own.over)
    target = longest_rise(np.array([curve.values]))
    ends = [curve.centres[int(place[0])] for place in target[1:]]
    text = f"{target[0][0]:.0f}, {ends[0]:.2f} to {ends[1]:.2f}"
    return Finding(name + where, estimate(bins), own.over, around(float(target[0][0]), SAME_RUN), text)


def _table(ev: Binned, ep: Binned, *curves: Curve) -> pd.DataFrame:
    table = {"posterior difference": [f"{x:.2f}" for x in ev.centres], "tokens per seed": ev.tokens}
    for letters, own, curve in zip(LETTERS.values(), (ev, ep), _padded(curves), strict=True):
        name = _letters(curve) if curve else letters
        table |= {f"{name}, ours": own.mean[0], f"{name}, spread": own.sd[0]}
        table |= {f"{name}, published": curve.values} if curve else {}
    return pd.DataFrame(table)


def _letters(curve: Curve) -> str:
    """The quantity of a curve as its model writes it: E·p, or E·W2 p."""
    return curve.name.partition(", ")[2]


def _padded(curves: Sequence[Curve]) -> Sequence[Curve | None]:
    return curves or (None, None)
