"""Findings: numbers measured in finished runs, with the criteria of an item and the resulting verdicts.

A measure is a function `(results, item, *, settings) -> Measured`. It receives one `results` argument
per study, and the settings in its item.toml entry.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd

from jaxattn.core.errors import InputError
from jaxattn.lab.books.book import Item
from jaxattn.lab.books.tables import Measure
from jaxattn.lab.results import judge
from jaxattn.lab.results.judge import Basis, Criterion, Estimate
from jaxattn.lab.results.labels import format_number
from jaxattn.lab.results.run import Run
from jaxattn.lab.study.import_paths import ImportPaths

_F = TypeVar("_F", bound=Callable[..., Any])
# Built-in measures, keyed by `kind`.
_KINDS: Mapping[str, str] = MappingProxyType(
    {
        **{name: f"jaxattn.lab.books.metrics:{name}" for name in ("cells", "along", "law")},
        **{
            name: f"jaxattn.lab.books.shapes:{name}"
            for name in ("shapes", "variations", "directions", "beside", "spread", "classes")
        },
        "choices": "jaxattn.lab.books.choices:choices",
    }
)


@dataclass(frozen=True)
class Finding:
    """Measured number, with the criterion that it should satisfy.

    Attributes:
        measured: description of the measured quantity.
        estimate: the number, which is a mean over seeds or a fraction of seeds, with its interval.
        over: description of the samples from which the interval is computed, such as "64 seeds".
        criterion: the required range, or None.
        published: the published number, or "-".
        basis: origin of the criterion; None to use the basis of the measure.
        cell: prefix that makes the name unique if several cells have a finding with this name, else empty.
        statement: the statement being tested, if the item has several.
        setting: description of the data and sizes.
        certificate: certificate for the reference direction or value, or "-".
        why: reason why some seeds have no value.
        old: True if the finding was recorded by an earlier version, which computed intervals differently.
    """

    measured: str
    estimate: Estimate
    over: str = ""
    criterion: Criterion | None = None
    published: str = "-"
    basis: Basis | None = None
    cell: str = ""
    statement: str = ""
    setting: str = ""
    certificate: str = "-"
    why: str = ""
    old: bool = False

    @property
    def name(self) -> str:
        """Return the name of the finding, which is unique among the findings of a measure."""
        return f"{self.cell}: {self.measured}" if self.cell else self.measured

    @property
    def verdict(self) -> str:
        """Return the verdict implied by the interval and the criterion."""
        return judge.verdict(self.estimate, self.criterion, self.basis or "published")

    @property
    def judged(self) -> bool:
        """Return True if the finding has a criterion or is guaranteed by the theory."""
        return self.criterion is not None or self.basis == "promised"

    @property
    def text(self) -> str:
        """Format the estimate with its interval: "-0.499 [-0.518, -0.481]" or "64 of 64 [0.944, 1.00]"."""
        _, low, high, seeds, _, hits = self.estimate
        if not (seeds or np.isfinite(self.estimate.value)):
            return "no value"
        if hits is not None and seeds:
            return f"{hits} of {seeds} [{format_number(low)}, {format_number(high)}]"
        return self.estimate.text(f"(no spread over {seeds} seeds)")

    @property
    def counted(self) -> str:
        """Describe the sample as "64 seeds" or, if seeds have no value, as "995 of 1000: in 5 REASON"."""
        seeds, missing = self.estimate.seeds, self.estimate.missing
        if not (self.why and missing):
            return self.over or f"{seeds} seeds"
        return f"{seeds} of {seeds + missing}: in {missing} {self.why}"


class Measured(NamedTuple):
    """Return value of a measure function.

    Attributes:
        findings: the findings.
        tables: additional tables, keyed by title.
    """

    findings: list[Finding]
    tables: dict[str, pd.DataFrame]


def declare_names(*names: str) -> Callable[[_F], _F]:
    """Return a decorator that declares the finding names of a custom measure.

    `jaxattn reproduce --check` can then check criteria against these names before the first run.

        @declare_names("exponent of d", "test accuracy at d = *")
        def measure(results, item): ...

    Args:
        names: the names; `*` matches any string.
    """

    def decorate(function: _F) -> _F:
        function.names = names  # type: ignore[attr-defined]
        return function

    return decorate


def declared_names(kind: str, item: Item) -> tuple[str, ...]:
    """Return the names declared for a measure with `declare_names`, or () if there are none."""
    return vars(_function(kind, item)).get("names", ())


def load_measure(measure: Measure, item: Item) -> Callable[..., Measured]:
    """Return the function that implements a measure; the function maps runs to findings without criteria.

    Raises:
        InputError: the measure does not exist, or does not accept the settings.
        UserCodeError: the measure's code raised an exception on import.
    """
    kind = measure.kind
    location = f"{item.folder / 'item.toml'}: measures"
    if kind not in _KINDS and ":" not in kind:
        raise InputError(
            f"{location}: unknown kind {kind!r}; use one of {', '.join(_KINDS)}, or your own function as "
            "FILE.py:NAME"
        )
    function = _function(kind, item)
    parameters = inspect.signature(function)
    try:
        parameters.bind(*measure.studies, item, **measure.settings)
    except TypeError as error:
        takes = f"its parameters are {parameters}, with the runs of its studies first"
        raise InputError(f"{location}: {kind}: {error}; {takes}") from None
    return lambda *runs: function(*runs, item, **measure.settings)


def _function(kind: str, item: Item) -> Any:
    if kind in _KINDS:
        return ImportPaths(item.folder).load(_KINDS[kind])
    other, _, rest = kind.partition(":")
    if ":" in rest:
        return ImportPaths(item.book.other(other)).load(rest)
    return ImportPaths(item.folder).load(kind)


def measure_item(runs: Sequence[Run], request: Measure, item: Item) -> Measured:
    """Apply a measure to runs, and attach the item's criteria to its findings.

    Raises:
        InputError: a required criterion matches no finding; a finding has a name that the
            measure does not declare; or the measure cannot be loaded, as described in `load_measure`.
    """
    found = load_measure(request, item)(*runs)
    names = [finding.name for finding in found.findings]
    declared = declared_names(request.kind, item)
    for name in names if declared else ():
        if not any(fnmatchcase(name, pattern) for pattern in declared):
            raise InputError(
                f"{request.kind}: no declared name matches the finding {name!r}; add it to @declare_names"
            )
    for pattern, expected in request.criteria.items():
        if not expected.optional and not any(fnmatchcase(name, pattern) for name in names):
            raise InputError(f"criteria: no finding matches {pattern!r}; choose from {', '.join(names)}")
    return Measured(with_criteria(found.findings, request), found.tables)


def with_criteria(findings: Sequence[Finding], request: Measure) -> list[Finding]:
    """Return the findings, each with the first criterion that matches its name, if there is one."""
    held = []
    for finding in findings:
        fits = [x for pattern, x in request.criteria.items() if fnmatchcase(finding.name, pattern)]
        own = replace(finding, basis=finding.basis or request.basis)
        if fits:
            first = fits[0]
            own = replace(
                own, criterion=first.criterion, published=first.published, basis=first.basis or request.basis
            )
        held.append(own)
    return held


def share(measured: str, satisfied: Any, *, known: Any = True, **about: Any) -> Finding:
    """Build a finding for a yes/no condition: the fraction of seeds that satisfy it.

    Args:
        measured: description of the condition.
        satisfied: (S,) bool.
        known: (S,) bool; False for seeds to exclude.
        about: additional fields of `Finding`.
    """
    return Finding(measured, judge.share(satisfied, known), **about)


def mean(
    measured: str, samples: Any, *, between: tuple[float, float] = judge.ANYTHING, **about: Any
) -> Finding:
    """Build a finding for a quantity with one value per seed: the mean over the seeds that have a value.

    Args:
        measured: name of the quantity.
        samples: (S,) float; NaN or inf for a seed without a value.
        between: possible range of the quantity; the interval is clipped to it.
        about: additional fields of `Finding`.
    """
    return Finding(measured, judge.mean(np.asarray(samples), between), **about)
