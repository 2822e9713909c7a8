"""Predict the names of an item's findings before a run, and check its criteria against them."""

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from types import MappingProxyType

from jaxattn.core.errors import InputError
from jaxattn.lab.api import Study
from jaxattn.lab.books.book import Item
from jaxattn.lab.books.findings import declared_names
from jaxattn.lab.books.metrics import ALONG, POWER, cell_name, named_metric
from jaxattn.lab.books.shapes import LETTERS, LONGEST, LOWEST, RISE, WAYS, U, spread_name
from jaxattn.lab.books.tables import Measure

_Names = Callable[..., list[str]]


def _prefixes(study: Study) -> list[str]:
    return [cell_name(cell.settings) for cell in study.cells]


def _cells(study: Study, item: Item, *, metrics: Sequence[str]) -> list[str]:
    return [named_metric(metric, name) for metric in metrics for name in _prefixes(study)]


def _along(study: Study, item: Item) -> list[str]:
    return [named_metric(metric, name) for name in _prefixes(study) for metric in ALONG]


def _law(study: Study, item: Item) -> list[str]:
    return [POWER]


def _shapes(study: Study, item: Item, *, cell: int = 0, metrics: Sequence[str] = ()) -> list[str]:
    return [RISE, f"{LONGEST}*", U, LOWEST, *map(named_metric, metrics)]


def _variations(study: Study, item: Item) -> list[str]:
    return [f"{name}: {measured}" for name in _prefixes(study) for measured in (RISE, U, LOWEST)]


def _directions(study: Study, item: Item) -> list[str]:
    return [f"{name}: {WAYS}{way}" for name in _prefixes(study) for way in ("rises", "falls")]


def _beside(study: Study, item: Item) -> list[str]:
    curves = [item.published(quantity) for quantity in LETTERS]
    ranks = [f"Spearman of {curve.name} and the published bin means" for curve in curves]
    return [*ranks, f"{LONGEST}*", f"where {curves[1].letters} is lowest"]


def _spread(study: Study, item: Item, *, to_the_end: str) -> list[str]:
    others = [cell.settings for cell in study.cells if cell_name(cell.settings) != to_the_end]
    sizes = [settings["phases.embed.step_size"] for settings in others]
    return [spread_name(letters, size) for letters in LETTERS.values() for size in sizes]


# Functions that predict finding names for built-in measures. Custom measures use `declare_names`. The names
# of all other findings are known only after a run.
MEASURED_NAMES: Mapping[str, _Names] = MappingProxyType(
    {
        "cells": _cells,
        "along": _along,
        "law": _law,
        "shapes": _shapes,
        "variations": _variations,
        "directions": _directions,
        "beside": _beside,
        "spread": _spread,
    }
)


def known_names(measure: Measure, item: Item, study: Study) -> list[str] | None:
    """Return the names of a measure's findings, or None if no name can be predicted before a run.

    Parts of a name that are known only after a run are replaced by `*`.
    """
    if found := MEASURED_NAMES.get(measure.kind):
        return found(study, item, **measure.settings)
    return list(declared_names(measure.kind, item)) or None


def fits_name(name: str, pattern: str) -> bool:
    """Return True if a criterion's pattern matches a finding's name; either may contain `*`."""
    return fnmatchcase(name, pattern) or fnmatchcase(pattern, name)


def check_names(measure: Measure, item: Item, known: Sequence[str] | None) -> None:
    """Check that each criterion of a measure matches a finding name; skip the check if `known` is None.

    Raises:
        InputError: a criterion that is not optional matches no name.
    """
    for pattern, expected in measure.criteria.items() if known is not None else ():
        if not expected.optional and not any(fits_name(name, pattern) for name in known or ()):
            location = item.folder / "item.toml"
            raise InputError(
                f"{location}: criteria: no finding matches {pattern!r}; choose from {', '.join(known or ())}"
            )
