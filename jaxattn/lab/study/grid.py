"""Build the cells of a study from its grid: blocks, product and zipped axes, Halton points, listed cells."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from jaxattn.core.errors import InputError, at
from jaxattn.core.settings import Count, PositiveInt
from jaxattn.core.spec import Spec
from jaxattn.lab.study.import_paths import ImportPaths
from jaxattn.lab.study.reader import merged_tables
from jaxattn.lab.study.setting import Cell
from jaxattn.lab.study.tree import assign, flatten, location_of_entry, number_entries, parents_first

# Tables that define the grid. A block may contain them; a cell may not.
GRID = ("axes", "zip", "halton", "cells", "exclude")
# Settings of the study and its grid that individual cells do not contain.
PRESENTATION = ("name", "description", "figures", "seeds", "blocks", *GRID)
# Maximum number of cells; creating and checking this many cells takes a few seconds.
_MAX_CELLS = 100_000
_OF_ALL_CELLS = frozenset(PRESENTATION) - {"name"}

Axes = dict[str, Annotated[tuple[int | float | str | bool, ...], msgspec.Meta(min_length=1)]]


class Range(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of a quasi-random axis. `log` makes the axis logarithmic; `integer` rounds the values."""

    low: float
    high: float
    log: bool = False
    integer: bool = False


class Halton(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Quasi-random points over several axes."""

    points: PositiveInt
    axes: Annotated[dict[str, Range], msgspec.Meta(min_length=1)]
    seed: Count = 0


def grid_cells(
    tree: Mapping[str, Any],
    tables_of: Callable[[Mapping[str, Any]], Any],
    read: Callable[[Mapping[str, Any], int, Mapping[str, Any]], Cell],
    names: ImportPaths,
) -> list[Cell]:
    """Return the cells of a study, block by block.

    The cells of a block are the product of the explicit `cells`, the zipped axes, the Halton points and the
    product axes, except for the excluded cells. The last axis varies fastest. `tables_of` validates and
    returns the tables of a block or cell, and `read` creates a cell from its tables, index and axis values.

    Raises:
        InputError: a block or axis has an unknown key, a value makes a cell invalid, a value of a block or
            axis has no effect because another one replaces it, two cells of a block have the same settings,
            or the grid is empty.
    """
    result: list[Cell] = []
    for name, block in tree.get("blocks", {}).items() or [("", {})]:
        with at(f"blocks.{name}" if name else ""):
            for key in block:
                if key in PRESENTATION and key not in GRID:
                    raise InputError(f"{key} cannot differ between blocks; set it outside the blocks")
            own = merged_tables({key: x for key, x in tree.items() if key != "blocks"}, block, names)
            every = points(tables_of(own))
            _check_effect(own, block, dict.fromkeys(map(tuple, every)))
            if len(result) + len(every) > _MAX_CELLS:
                raise InputError(f"the blocks have more than {_MAX_CELLS:,} cells in total; use fewer values")
            first = len(result)
            for settings in every:
                result.append(_cell(len(result), own, name, settings, tables_of, read))
            _check_labels(result[first:])
    return result


def _check_effect(tree: Mapping[str, Any], block: Mapping[str, Any], swept: Iterable[Sequence[str]]) -> None:
    """Raise InputError if a cell sweeps a key twice, or a key that replaces a setting of its block.

    `swept` contains the keys of the cells. The entries of lists are addressed by name or index.
    """
    changed = {key: x for key, x in block.items() if key not in GRID}
    fixed = {}
    for key, x in flatten(changed).items():
        # A bare name is shorthand for a table with this `kind`.
        kind = ".kind" if isinstance(x, str | Spec) and location_of_entry(tuple(key.split("."))) else ""
        fixed[number_entries(tree, key) + kind] = key
    for keys in swept:
        known: dict[str, str] = {}
        for key in keys:
            same = known.setdefault(number_entries(tree, key), key)
            if same != key:
                raise InputError(f"{key}: the same setting as {same}; sweep only one of them")
        for place, key in known.items():
            for location, name in fixed.items():
                if f"{location}.".startswith(f"{place}."):
                    raise InputError(f"{name}: has no effect, because {key} is swept; remove one of them")


def _check_labels(cells: Sequence[Cell]) -> None:
    """Raise InputError if two cells have the same settings."""
    known: dict[str, Cell] = {}
    for cell in cells:
        if (same := known.setdefault(cell.config_hash, cell)) is not cell:
            labels = " and ".join(f"{each.number} ({_label(each.settings)})" for each in (same, cell))
            raise InputError(f"cells {labels} have the same settings; remove one of them")


def _label(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {value!r}" for key, value in settings.items())


def points(grid: Any) -> list[dict[str, Any]]:
    """Return the axis values of each cell in a block."""
    _check_size(grid)
    factors: tuple[Any, ...] = (
        grid.cells or ({},),
        zipped(grid.zip),
        halton(grid.halton),
        product(grid.axes),
    )
    _check_different(grid.axes)
    result = []
    for parts in itertools.product(*factors):
        settings: dict[str, Any] = {}
        for part in parts:
            for key in part:
                if key in settings:
                    raise InputError(f"{key}: swept twice; set it in only one of axes, zip, halton and cells")
            settings |= part
        result.append(settings)
    return list(_without_excluded(result, grid.exclude))


def check_lists(tree: Mapping[str, Any]) -> None:
    """Raise InputError unless each axis in the unvalidated tables is a nonempty list."""
    for table in ("axes", "zip"):
        axes = tree.get(table)
        for key, values in axes.items() if isinstance(axes, Mapping) else ():
            if not isinstance(values, list | tuple):
                raise InputError(
                    f"{table}.{key}: {values!r:.60} is not a list; use a list, such as [{values!r:.60}]"
                )
            if not values:
                raise InputError(f"{table}.{key}: the list is empty; add at least one value")


def _check_different(axes: Mapping[str, tuple[Any, ...]]) -> None:
    for key, values in axes.items():
        counts = Counter((isinstance(value, bool), value) for value in values)
        (_, value), number = counts.most_common(1)[0]
        if number > 1:
            raise InputError(f"axes.{key}: {value!r:.60} is listed twice; list each value once")


def _check_size(grid: Any) -> None:
    lengths = [len(grid.cells), *(len(values) for values in grid.axes.values())]
    lengths += [max(map(len, grid.zip.values()), default=1), grid.halton.points if grid.halton else 1]
    if (size := math.prod(length or 1 for length in lengths)) > _MAX_CELLS:
        raise InputError(
            f"axes: {size:,} cells, but at most {_MAX_CELLS:,} are allowed; use fewer values, or [halton] "
            "points instead of a full grid"
        )


def product(axes: dict[str, tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Return all combinations of axis values, with the last axis varying fastest."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def zipped(axes: dict[str, tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Return one dictionary per index i, with the i-th value of every axis, or [{}] if there are no axes.

    Raises:
        InputError: the axes differ in length.
    """
    lengths = {key: len(values) for key, values in axes.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{key} has {length}" for key, length in lengths.items())
        raise InputError(f"zip: lengths differ ({listed}); use the same number of values for every axis")
    return [dict(zip(axes, values, strict=True)) for values in zip(*axes.values(), strict=True)] or [{}]


def halton(wanted: Halton | None) -> list[dict[str, Any]]:
    """Return quasi-random points within the given bounds, or [{}] if `wanted` is None.

    For a given seed, requesting more points extends the sequence without changing earlier points.
    """
    if wanted is None:
        return [{}]
    for key, bounds in wanted.axes.items():
        if not bounds.low < bounds.high:
            raise InputError(f"halton.axes.{key}: low ({bounds.low}) must be below high ({bounds.high})")
        if bounds.log and bounds.low <= 0:
            raise InputError(
                f"halton.axes.{key}: low must be positive for a logarithmic axis, got {bounds.low}"
            )
    from scipy.stats import qmc  # slow to import

    unit = qmc.Halton(len(wanted.axes), scramble=True, rng=wanted.seed).random(wanted.points)
    return [
        {key: _between(bounds, x) for (key, bounds), x in zip(wanted.axes.items(), row, strict=True)}
        for row in unit.tolist()
    ]


def _between(bounds: Range, x: float) -> float | int:
    value: float
    if bounds.log:
        value = bounds.low * (bounds.high / bounds.low) ** x
    else:
        value = bounds.low + (bounds.high - bounds.low) * x
    return round(value) if bounds.integer else value


def _without_excluded(
    settings: list[dict[str, Any]], exclude: tuple[dict[str, Any], ...]
) -> Iterable[dict[str, Any]]:
    known = {key for row in settings for key in row}
    for number, condition in enumerate(exclude):
        for key in condition:
            if key not in known:
                swept = ", ".join(sorted(known)) or "nothing"
                raise InputError(f"exclude[{number}]: {key} is not swept; swept keys: {swept}")
    kept = [row for row in settings if not any(_matches(row, condition) for condition in exclude)]
    if not kept:
        raise InputError("exclude: all cells are excluded; remove some exclusions")
    return kept


def _matches(settings: dict[str, Any], condition: dict[str, Any]) -> bool:
    return bool(condition) and all(
        key in settings and settings[key] in (values if isinstance(values, list | tuple) else [values])
        for key, values in condition.items()
    )


def _cell(
    number: int,
    tree: Mapping[str, Any],
    block: str,
    settings: dict[str, Any],
    tables_of: Callable[[Mapping[str, Any]], Any],
    read: Callable[[Mapping[str, Any], int, Mapping[str, Any]], Cell],
) -> Cell:
    own: Any = {key: value for key, value in tree.items() if key not in _OF_ALL_CELLS}
    named = {"block": block} if block else {}
    with at(f"axes: cell {number} ({_label(named | settings)})" if settings else ""):
        for key, value in parents_first(settings):
            if key.partition(".")[0] in PRESENTATION:
                raise InputError(f"{key} cannot be swept; set it outside the axes")
            own = assign(own, key, value)
        tables_of(own)
        return read(own, number, named | settings)
