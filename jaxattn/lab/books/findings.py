"""Findings: the numbers of a finished run of an item, held against what is published, and their verdicts.

A measure makes them: a function `(results, item, *, settings) -> Measured`, whose settings are those of
[measure] in item.toml; its findings have no criteria yet.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from jaxattn.core.errors import InputError
from jaxattn.lab.books.book import Item
from jaxattn.lab.results import judge
from jaxattn.lab.results.fits import power_law
from jaxattn.lab.results.judge import ENOUGH_SEEDS, VERDICTS, Criterion, Estimate
from jaxattn.lab.results.labels import setting
from jaxattn.lab.results.run import Run
from jaxattn.lab.results.statistics import last_steps
from jaxattn.lab.study.import_paths import ImportPaths

AGREES, DIFFERS, CANNOT_TELL, MEASURED = VERDICTS["published"]
RULE = (
    "A number agrees if its whole 95 % interval lies within the criterion, differs if none of it does, and "
    "cannot tell if it straddles the criterion or has no interval. It is only measured if nothing is "
    "published to hold it against. Intervals are over seeds: Student's t, with the jackknife's standard "
    "error where all seeds together make a number; of shares those of Clopper and Pearson. One seed has "
    "none. Nor has a number that is the same whichever seed is left out, which is held against the "
    f"criterion itself from {ENOUGH_SEEDS} seeds on. An interval of a bin is never narrower than the bin."
)
OLD = (
    "Not so yet on this page: intervals of shapes are percentile bootstrap intervals, which cover less than "
    "95 % with few seeds; with fewer than six, tokens within bins were resampled as well. They will be made "
    "again."
)


@dataclass(frozen=True)
class Finding:
    """One measured number beside what is published.

    Attributes:
        measured: the number's name.
        estimate: the number.
        over: what the interval is over, in words.
        criterion: where it has to lie; None if nothing is published.
        published: the published number, "-" if there is none.
        old: whether it was made by an earlier version, whose intervals were others.
    """

    measured: str
    estimate: Estimate
    over: str
    criterion: Criterion | None = None
    published: str = "-"
    old: bool = False

    @property
    def verdict(self) -> str:
        """What interval and criterion say."""
        return judge.verdict(self.estimate, self.criterion, "published")

    @property
    def text(self) -> str:
        """The number with its interval."""
        return self.estimate.text(f"whichever of {self.estimate.seeds} seeds is left out")


class Measured(NamedTuple):
    """What a run says about an item.

    Attributes:
        findings: numbers.
        tables: further tables by title.
    """

    findings: list[Finding]
    tables: dict[str, pd.DataFrame]


def verdict(findings: Sequence[Finding]) -> str:
    """Put the verdicts of an item together: "agrees", or how many of its findings say what."""
    said = [finding.verdict for finding in findings if finding.criterion is not None]
    if not said:
        return MEASURED
    if len(set(said)) == 1:
        return said[0]
    counts = [f"{word} in {said.count(word)}" for word in (AGREES, DIFFERS, CANNOT_TELL) if word in said]
    return ", ".join(counts)


KINDS: Mapping[str, str] = MappingProxyType(
    {
        "cells": "jaxattn.lab.books.findings:cells",
        "along": "jaxattn.lab.books.findings:along",
        "law": "jaxattn.lab.books.findings:law",
        "shapes": "jaxattn.lab.books.shapes:shapes",
        "variations": "jaxattn.lab.books.shapes:variations",
        "directions": "jaxattn.lab.books.shapes:directions",
        "beside": "jaxattn.lab.books.shapes:beside",
        "spread": "jaxattn.lab.books.shapes:spread",
        "classes": "jaxattn.lab.books.shapes:classes",
        "choices": "jaxattn.lab.books.choices:choices",
    }
)


def load(item: Item) -> Callable[..., Measured]:
    """Look up the measure of an item; code beside item.toml is imported.

    Raises:
        InputError: no such measure, or settings that it does not take.
    """
    settings = dict(item.measure)
    kind = settings.pop("kind")
    place = f"{item.folder / 'item.toml'}: measure"
    if kind not in KINDS and ":" not in str(kind):
        raise InputError(f"{place}: no kind {kind!r}; give one of {', '.join(KINDS)}, or mine.py:NAME")
    function = ImportPaths(item.folder).load(KINDS.get(kind, kind))
    try:
        inspect.signature(function).bind(None, item, **settings)
    except TypeError as error:
        raise InputError(f"{place}: {kind}: {error}") from None
    return lambda results: function(results, item, **settings)


def measure(results: Run, item: Item) -> Measured:
    """Measure a run of an item, and hold its findings against the item's criteria.

    Raises:
        InputError: a criterion that no finding has the name of; and as `load`.
    """
    found = load(item)(results)
    names = [finding.measured for finding in found.findings]
    for pattern in item.criteria:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise InputError(f"criteria: no finding {pattern!r}; there are {', '.join(names)}")
    return Measured(hold(found.findings, item), found.tables)


def hold(findings: Sequence[Finding], item: Item) -> list[Finding]:
    """Give findings the criteria that an item has for their names; the first that fits."""
    held = []
    for finding in findings:
        fits = [x for pattern, x in item.criteria.items() if fnmatchcase(finding.measured, pattern)]
        held.append(
            replace(finding, criterion=fits[0].criterion, published=fits[0].published) if fits else finding
        )
    return held


# What `along` measures, and the finding of `law`.
ALONG = ("test_accuracy", "train_accuracy", "loss")
POWER = "power of d in the error per unit of η0"


def cells(results: Run, item: Item, *, metrics: Sequence[str]) -> Measured:
    """Measure metrics at the end of every cell."""
    findings = [last(results, cell, metric, name) for metric in metrics for cell, name in named(results)]
    return Measured(findings, {})


def along(results: Run, item: Item) -> Measured:
    """Measure accuracy and loss at the end of every cell; show them along the way."""
    findings = [last(results, cell, metric, name) for cell, name in named(results) for metric in ALONG]
    records = results.records[results.records["metric"].isin(["test_accuracy", "loss"])]
    wide = records.pivot_table(index=["cell", "step"], columns="metric", values="value").reset_index()
    names = wide.pop("cell").map(dict(named(results)))
    wide.insert(0, "", names)
    wide = wide.rename(columns=lambda x: x.replace("_", " "))
    return Measured(findings, {"Along the way, mean over seeds": wide})


def law(results: Run, item: Item) -> Measured:
    """Fit the power of d in the error of the one-step law."""
    records = last_steps(results.records)
    records = results.with_axes(records[records["metric"] == "one_step_error"])
    wide = records.pivot_table(index="model.dim", columns="seed", values="value").sort_index()
    fit = power_law(wide.index.to_numpy(float), wide.to_numpy(float))
    finding = Finding(POWER, fit.estimate, f"{fit.seeds} seeds")
    errors = {"d": list(wide.index), "error per unit of η0": wide.mean(axis=1).tolist()}
    return Measured([finding], {"Error of the one-step law": pd.DataFrame(errors)})


def named_metric(metric: str, name: str = "") -> str:
    """Return the name of the finding of a metric, in a cell of some name."""
    words = metric.replace("_", " ")
    return f"{name}: {words}" if name else words


def last(results: Run, cell: int, metric: str, of: str = "") -> Finding:
    """Measure a metric over seeds at the end of the last phase of a cell, which has the name `of`."""
    name, samples = named_metric(metric, of), values(results, cell, metric)
    if not len(samples):
        return Finding(name, Estimate(np.nan, np.nan, np.nan), "not measured")
    between = (0.0, 1.0) if metric.endswith(("accuracy", "mass")) else judge.ANYTHING
    found = judge.mean(samples, between)
    if found.missing:
        return Finding(name, found, f"{found.seeds} of {len(samples)} seeds, which have a value")
    return Finding(name, found, "one seed" if len(samples) == 1 else f"{len(samples)} seeds")


def values(results: Run, cell: int, metric: str) -> NDArray[np.float64]:
    """List the metric of every seed at the end of the last phase of a cell."""
    records = results.records
    records = records[(records["cell"] == cell) & (records["phase"] == last_phase(results, cell))]
    return last_steps(records[records["metric"] == metric])["value"].to_numpy(float)


def named(results: Run) -> list[tuple[int, str]]:
    """Number and name of every cell."""
    return [(int(entry["cell"]), cell_name(entry["settings"])) for entry in results.manifest["cells"]]


def cell_name(settings: Mapping[str, object]) -> str:
    """Return the name of a cell: its block, and its other settings."""
    others = [f"{key} = {setting(x)}" for key, x in settings.items() if key != "block"]
    block = settings.get("block")
    return ", ".join([*([str(block)] if block else []), *others])


def last_phase(results: Run, cell: int) -> str:
    """Name the last phase of a cell; cells of different blocks may have different ones."""
    return str(results.records["phase"][results.records["cell"] == cell].iloc[-1])
