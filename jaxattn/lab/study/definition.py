"""Definition of a study: tables for data, model, phases and probes, a grid over their keys, and the seeds."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Annotated, Any, Literal

import msgspec

from jaxattn.base import Phase
from jaxattn.core.errors import InputError, explain
from jaxattn.core.settings import Count, PositiveInt
from jaxattn.core.spec import Spec, plain_values
from jaxattn.lab.study import grid, randomness
from jaxattn.lab.study.import_paths import ImportPaths
from jaxattn.lab.study.randomness import PARTS, Part
from jaxattn.lab.study.reader import Reader
from jaxattn.lab.study.registry import describe
from jaxattn.lab.study.setting import Cell, Setting
from jaxattn.lab.study.tree import check_keys, check_values

MAX_SEEDS = 1_000_000


class Tables(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Contents of a sweep file.

    Cells are the product of `axes`, `zip` (axes that vary together), `halton` and `cells` (an explicit list),
    except those that match an entry of `exclude`. Each entry of `blocks` is a variant of the file with
    changed keys and a separate grid. `seeds` is a number of seeds, a range "first:end" or a list. `hold`
    lists the sources of randomness for which every seed uses the keys of seed 0.
    """

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
    data: dict[str, Any] | str
    model: dict[str, Any] | str
    phases: Annotated[tuple[dict[str, Any] | str, ...], msgspec.Meta(min_length=1)]
    loss: dict[str, Any] | str = "classification"
    description: str = ""
    seeds: (
        Annotated[int, msgspec.Meta(ge=1, le=MAX_SEEDS)]
        | Annotated[str, msgspec.Meta(pattern=r"^\d{1,9}:\d{1,9}$")]
        | tuple[Count, ...]
    ) = 1
    dtype: Literal["float32", "float64"] = "float32"
    hold: tuple[Part, ...] = ()
    chunk: PositiveInt | None = None
    probes: dict[str, Any] = {}
    axes: grid.Axes = {}
    zip: grid.Axes = {}
    halton: grid.Halton | None = None
    cells: tuple[dict[str, int | float | str | bool], ...] = ()
    exclude: tuple[dict[str, Any], ...] = ()
    blocks: dict[str, dict[str, Any]] = {}
    figures: tuple[dict[str, Any] | str, ...] = ()


class Definition:
    """Validated definition of a study. The constructor raises InputError for invalid tables.

    Attributes:
        tree: the tables as given. In place of a table, there may be an object with settings.
        names: resolver for the import paths in the tables.
    """

    def __init__(self, tree: Mapping[str, object], names: ImportPaths | None = None) -> None:
        """Validate the tables; if a key is invalid, raise InputError with the key and a similar valid key."""
        self.tree: dict[str, Any] = plain_values(dict(tree))
        check_values(self.tree)
        self.names = names or ImportPaths()
        self._tables = _tables(self.tree)
        self._reader = Reader(self.names)
        self._base = self._reader.read(self.tree)
        # Create all cells now, so that invalid values raise an error immediately.
        for cell in self.cells:
            setting = cell.setting
            randomness.check_seeds(setting.data, setting.phases, setting.hold, len(self.seeds))

    @property
    def name(self) -> str:
        """Name of the study."""
        return self._tables.name

    @property
    def description(self) -> str:
        """Description of the study."""
        return self._tables.description

    @property
    def dtype(self) -> str:
        """Dtype of parameters and measurements."""
        return self._tables.dtype

    @property
    def chunk(self) -> int | None:
        """Number of runs to vmap together, or None if the study does not set this number."""
        return self._tables.chunk

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """The seeds in ascending order."""
        given = self._tables.seeds
        if isinstance(given, str):
            first, end = map(int, given.split(":"))
            if end - first > MAX_SEEDS:
                raise InputError(f"seeds: {given} has more than {MAX_SEEDS:,} seeds; use a shorter range")
            if first >= end:
                raise InputError(
                    f"seeds: {given} is an empty range; write the first seed and the last seed plus one, "
                    f"such as '{min(first, end)}:{max(first, end) + 1}'"
                )
            given = tuple(range(first, end))
        seeds = tuple(range(given)) if isinstance(given, int) else tuple(sorted(given))
        if len(set(seeds)) < len(seeds) or not seeds:
            fault = "a seed is listed twice; list each seed once" if seeds else "empty; list at least one"
            raise InputError(f"seeds: {fault}")
        return seeds

    @property
    def figures(self) -> tuple[dict[str, Any], ...]:
        """Figures of the study, each as a table with its kind."""
        return tuple({"kind": f} if isinstance(f, str) else f for f in self._tables.figures)

    @property
    def custom_figures(self) -> dict[str, Callable[..., object]]:
        """Return the custom figure functions, keyed by import path."""
        kinds = [figure["kind"] for figure in self.figures]
        return {kind: self.names.load(kind) for kind in kinds if ":" in kind}

    @cached_property
    def cells(self) -> list[Cell]:
        """The cells of the grid, in order."""
        return grid.grid_cells(self.tree, _tables, self._reader.read, self.names)

    @property
    def written(self) -> dict[str, Any]:
        """The tables as given, with tables in place of objects."""
        tables: dict[str, Any] = describe(self.tree, self.names)
        return tables

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases before any axis values are applied, in order."""
        return self._base.setting.phases

    @property
    def base(self) -> Setting:
        """Setting before any axis values are applied."""
        return self._base.setting

    @property
    def config(self) -> dict[str, Any]:
        """The complete tables with all settings, including defaults, as plain JSON values."""
        blocks = describe(self.tree.get("blocks", {}), self.names)
        tables = msgspec.structs.replace(self._tables, figures=self.figures, blocks=blocks)
        written: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(tables))
        del written["hold"]  # The tables of the base setting contain `hold` unless it is empty.
        return written | self._base.tables

    @property
    def config_hash(self) -> str:
        """Hash of the settings that determine the results, ignoring the axes."""
        return self._base.config_hash

    @property
    def custom_kinds(self) -> list[str]:
        """Import paths of the custom code in all cells."""
        every = [self.config, *(cell.tables for cell in self.cells)]
        # Cells with equal tables share one object; visit each object only once.
        parts = {id(part): part for tree in every for x in tree.values() for part in _tables_in(x)}
        return sorted({path for part in parts.values() for path in custom_paths(part)})


def _tables(tree: Mapping[str, Any]) -> Tables:
    # Most trees have no objects.
    with suppress(msgspec.ValidationError):
        return msgspec.convert(dict(tree), Tables)
    try:
        return msgspec.convert(_without_objects(dict(tree)), Tables)
    except msgspec.ValidationError as error:
        grid.check_lists(tree)
        keys = list(Tables.__struct_fields__)
        check_keys(tree, keys)
        required = [field.name for field in msgspec.structs.fields(Tables) if field.required]
        raise InputError(explain(str(error), "", tree, keys, _CHOICES, _PATTERNS, required)) from None


def _without_objects(tree: Any) -> Any:
    """Return a copy of a tree with an empty table in place of each object, because objects are valid."""
    if isinstance(tree, dict):
        return {key: _without_objects(x) for key, x in tree.items()}
    if isinstance(tree, list | tuple):
        return [_without_objects(x) for x in tree]
    return {} if isinstance(tree, Spec) else tree


_CHOICES: dict[str, list[str]] = {"dtype": ["float32", "float64"], "hold": [*PARTS]}
_PATTERNS = {
    "name": "expected letters, digits, '.', '_' and '-', a letter or digit first",
    "seeds": "expected a number, a range such as '0:20', or a list",
}


def _tables_in(x: Any) -> Sequence[Any]:
    return [x] if isinstance(x, dict) else x if isinstance(x, list) else ()


def custom_paths(tree: Any) -> Sequence[str]:
    """Return the import paths in tables, such as `module:Name`.

    These are values of the keys `kind`, `optimizer`, `loss` and `objective`, values in the table `clamps`,
    and entries of lists.
    """
    if isinstance(tree, dict):
        named = [x for key, x in tree.items() if key in ("kind", "optimizer", "loss", "objective")]
        clamps = tree.get("clamps")
        named += clamps.values() if isinstance(clamps, dict) else ()
        own = [x for x in named if isinstance(x, str) and ":" in x]
        return [*own, *(path for x in tree.values() for path in custom_paths(x))]
    if isinstance(tree, list | tuple):
        return [
            path for x in tree for path in ([x] if isinstance(x, str) and _is_code(x) else custom_paths(x))
        ]
    return []


def _is_code(text: str) -> bool:
    location, colon, name = text.partition(":")
    return (
        bool(colon)
        and name.isidentifier()
        and (location.endswith(".py") or location.replace(".", "").isidentifier())
    )
