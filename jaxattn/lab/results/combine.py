"""Operations on results: merge folders, select cells, average over cells, and compare paired cells."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pandas as pd

from jaxattn.core.errors import InputError
from jaxattn.lab.results.labels import setting, unknown_metric
from jaxattn.lab.results.run import Run
from jaxattn.lab.storage import provenance
from jaxattn.lab.study.effective import effective_tables, settings_table

AnyRun = TypeVar("AnyRun", bound=Run)


def combine(folders: Sequence[AnyRun]) -> AnyRun:
    """Merge results folders: shards of a sweep, additional seeds for the same cells, or different sweeps.

    Cells with the same settings, data and code become one cell that contains the seeds from all folders.
    Other cells are kept separate. Cells of sweeps with different names have a setting "sweep". Cells that
    would otherwise look alike have the settings in which they differ, or "folder" if only their data or code
    differ.

    The result does not depend on the order of the folders.

    Returns:
        The merged results. Cells are renumbered, and each keeps the labels and scales of metrics that its own
        folder declares.

    Raises:
        InputError: two folders contain the same run.
    """
    if len(folders) == 1:
        return folders[0]
    folders = sorted(folders, key=lambda folder: str(folder.directory))
    several = len({folder.manifest["name"] for folder in folders}) > 1
    cells: dict[str, dict[str, Any]] = {}
    tables: dict[str, list[pd.DataFrame]] = {"records": [], "tokens": []}
    owner: dict[tuple[int, int], Run] = {}
    failures = []
    for folder in folders:
        number = {}
        for cell in folder.manifest["cells"]:
            named = {"sweep": folder.manifest["name"]} if several else {}
            key = json.dumps([cell["key"], named, cell["settings"]], sort_keys=True)
            number[cell["cell"]] = cells.setdefault(key, _entry(folder, cell, named, len(cells)))["cell"]
        for name, table in (("records", folder.records), ("tokens", folder.tokens)):
            tables[name].append(table.assign(cell=table["cell"].map(number).astype("int32")))
        for cell, seed in tables["records"][-1][["cell", "seed"]].drop_duplicates().itertuples(index=False):
            before = owner.setdefault((int(cell), int(seed)), folder)
            if before is not folder:
                raise InputError(
                    f"{folder.directory}: seed {seed} is also in {before.directory}; "
                    "pass only one of these folders"
                )
        failures += [
            failure | {"cell": number[failure["cell"]]} for failure in folder.manifest.get("failures", [])
        ]
    manifest = dict(folders[0].manifest) | {
        "name": " + ".join(dict.fromkeys(folder.manifest["name"] for folder in folders)),
        "cells": _distinguished(list(cells.values())),
        "seeds": sorted({seed for _, seed in owner}),
        "failures": failures,
        "status": "finished" if all(folder.finished for folder in folders) else "running",
        "batches": [],
        "made_by": [maker for folder in folders for maker in provenance.package_versions(folder.manifest)],
    }
    joined = {name: _in_order(pd.concat(parts, ignore_index=True)) for name, parts in tables.items()}
    # Drop the study, because its cell numbers do not match the renumbered cells.
    return replace(
        folders[0], study=None, manifest=manifest, records=joined["records"], tokens=joined["tokens"]
    )


def _in_order(table: pd.DataFrame) -> pd.DataFrame:
    """Sort rows by cell and seed, so that the order does not depend on the names of folders with seeds."""
    return table.sort_values(["cell", "seed"], kind="stable", ignore_index=True) if len(table) else table


def _entry(folder: Run, cell: Mapping[str, Any], named: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return the entry of a cell for the merged manifest, with what its own folder declares."""
    declared = {name: cell.get(name, folder.manifest.get(name, {})) for name in ("labels", "scales")}
    return {
        **cell,
        "cell": number,
        "settings": {**named, **cell["settings"]},
        "config": cell.get("config", folder.manifest["config"]),
        "folder": cell.get("folder", folder.directory.name),
        "sweep": cell.get("sweep", folder.manifest["name"]),
        **declared,
    }


def _distinguished(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add settings to cells that look alike: those in which they differ, or the name of their folder."""
    alike: dict[str, list[dict[str, Any]]] = {}
    for cell in cells:
        alike.setdefault(json.dumps(cell["settings"], sort_keys=True), []).append(cell)
    added: dict[str, None] = {}
    tables: dict[int, dict[str, Any]] = {}
    for group in (group for group in alike.values() if len(group) > 1):
        own = settings_table({cell["cell"]: effective_tables(cell["config"], cell) for cell in group})
        texts = own.map(lambda x: json.dumps(x, sort_keys=True, default=str))
        keys = [str(key) for key in own if texts[key].nunique() > 1 and key not in group[0]["settings"]]
        if not keys or len(texts[keys].drop_duplicates()) < len(group):
            keys.append("folder")
            own["folder"] = [cell["folder"] for cell in group]
        added |= dict.fromkeys(keys)
        tables |= own[keys].to_dict("index")
    for number, found in tables.items():
        cells[number]["settings"] = {**{key: found.get(key) for key in added}, **cells[number]["settings"]}
    return cells


def choose(
    results: AnyRun,
    *,
    where: Mapping[str, object] | None = None,
    metrics: Sequence[str] = (),
    phases: Sequence[str] = (),
) -> AnyRun:
    """Return the results for the selected cells, metrics and phases.

    Args:
        results: the results to select from.
        where: required value of each config key, as a value or as the string printed in tables.
        metrics: names of the metrics; all if empty.
        phases: names of the phases; all if empty.

    Raises:
        InputError: a key, metric or phase does not exist, or nothing matches.
    """
    records = results.records
    for name, wanted in (("metric", metrics), ("phase", phases)):
        known = records[name].unique()
        missing = [x for x in wanted if x not in known]
        if missing and name == "metric":
            raise unknown_metric(missing[0], known)
        if missing:
            recorded = ", ".join(repr(str(x)) for x in sorted(known, key=str))
            raise InputError(f"{name} {missing[0]!r}: not recorded; the run recorded {recorded}")
        if wanted:
            records = records[records[name].isin(list(wanted))]
    kept = list(results.manifest["cells"])
    for key, value in (where or {}).items():
        values = [results.lookup(cell["cell"], key) for cell in kept]
        matching = _matching(key, values, value)
        kept = [cell for cell, own in zip(kept, values, strict=True) if own in matching]
    numbers = [cell["cell"] for cell in kept]
    records = records[records["cell"].isin(numbers)]
    if records.empty:
        raise InputError(
            f"{results.directory}: no combination of cell, phase and metric matches the filters; relax them"
        )
    tokens = results.tokens[results.tokens["cell"].isin(numbers)] if len(results.tokens) else results.tokens
    return replace(results, manifest=dict(results.manifest) | {"cells": kept}, records=records, tokens=tokens)


def group(results: AnyRun, by: Sequence[str]) -> AnyRun:
    """Average the values of each seed over the cells that agree in the given config keys.

        x_s = Σ_c x_cs / C

    Here x_cs is the value of seed s in cell c. For each (phase, step, metric), the sum is over the C cells of
    the group in which the metric was recorded for any seed. If seed s has no value in one of these cells, x_s
    is NaN, because the mean would be over fewer settings. Cells whose phase has fewer steps also enter the
    last row of the phase, with their own last step.

    A seed uses the same random numbers in every cell, so its values in different cells are not independent.
    `statistics.aggregate` therefore treats the seeds as the sample, and resamples whole seeds.

    Args:
        results: the results to group.
        by: config keys, swept or not.

    Returns:
        Results with one cell per combination of values, without token tables.

    Raises:
        InputError: a key does not exist, or the cells of a group have no seed in common.
    """
    values = {
        cell["cell"]: {key: results.lookup(cell["cell"], key) for key in by}
        for cell in results.manifest["cells"]
    }
    _require_common_seeds(results, values)

    def share(records: pd.DataFrame) -> pd.DataFrame:
        return records.assign(value=records["value"] / records["cells"])

    return _regroup(results, values, share, f"means over cells of the same {', '.join(by)}")


def _require_common_seeds(results: Run, values: Mapping[int, dict[str, Any]]) -> None:
    """Raise InputError if cells that are averaged seed by seed have no seed in common.

    This is the case for studies of different names that ran the same setting with other seeds.
    """
    seeds = {int(cell): set(own) for cell, own in results.records.groupby("cell")["seed"]}
    groups: dict[str, list[int]] = {}
    for cell, settings in values.items():
        if cell in seeds:
            groups.setdefault(json.dumps(settings, sort_keys=True), []).append(cell)
    for cells in groups.values():
        if len(cells) > 1 and not set.intersection(*(seeds[cell] for cell in cells)):
            raise InputError(
                f"cells {', '.join(map(str, cells[:5]))}: have no seed in common, so they cannot be averaged "
                "seed by seed; select some of them with where=..., or give the studies the same name"
            )


def paired(results: AnyRun, key: str, first: object, second: object) -> AnyRun:
    """Subtract the results for one value of a key from those for another value, seed by seed.

    The paired cells have the same settings, except for this key and keys zipped with it. They also use the
    same random numbers, so much of the noise cancels.

    Args:
        results: the results to compare.
        key: a swept key.
        first: value of the key whose results are subtracted, as a value or as the string printed in tables.
        second: value of the key from whose results those for `first` are subtracted, in the same form.

    Returns:
        Results with one cell per setting of the other axes. Each metric is the difference second - first,
        or NaN if either value is missing. If the lengths of a phase differ, its last row is the difference of
        the last steps of both.

    Raises:
        InputError: the key is not swept, or no cells can be paired.
    """
    if key not in results.axes:
        raise InputError(f"{key}: not swept; swept keys: {', '.join(results.axes) or 'none'}")
    together = _zipped(results, key)
    values = [cell["settings"].get(key) for cell in results.manifest["cells"]]
    sides = [(sign, _matching(key, values, wanted)) for sign, wanted in ((-1.0, first), (1.0, second))]
    rest, side = {}, {}
    for cell, value in zip(results.manifest["cells"], values, strict=True):
        for sign, matching in sides:
            if value in matching:
                rest[cell["cell"]] = {name: x for name, x in cell["settings"].items() if name not in together}
                side[cell["cell"]] = sign
    if set(side.values()) != {-1.0, 1.0}:
        known = ", ".join(dict.fromkeys(setting(value) for value in values if value is not None))
        raise InputError(f"{key}: {first!r} and {second!r} were not both swept; choose two of {known:.200}")

    def signed(records: pd.DataFrame) -> pd.DataFrame:
        signs = records["from"].map(side)
        series = [records[key] for key in ("cell", "phase", "step", "metric")]
        sides = signs.groupby(series, observed=True).transform("nunique")
        both = records[(records["cells"] == 2) & (sides == 2)]
        return both.assign(value=both["value"] * both["from"].map(side))

    low, high = (setting(matching[0]) for _, matching in sides)
    others = ", ".join(name for name in results.axes if name in together and name != key)
    words = f"differences ({key} = {high} minus {low}{f', with {others}' if others else ''})"
    found = _regroup(results, rest, signed, words)
    if not found.records["value"].notna().any():
        raise InputError(
            f"{key}: {first!r} and {second!r} have no combination of seed, phase, step and metric in common"
        )
    return replace(found, manifest=dict(found.manifest) | {"differences": True})


def _zipped(results: Run, key: str) -> set[str]:
    configs = [results.config(cell["cell"]) for cell in results.manifest["cells"]]
    grids = [grid for config in configs for grid in (config, *config.get("blocks", {}).values())]
    return {key}.union(*(grid["zip"] for grid in grids if key in (grid.get("zip") or {})))


def _regroup(
    results: AnyRun,
    values: Mapping[int, dict[str, Any]],
    weigh: Callable[[pd.DataFrame], pd.DataFrame],
    words: str,
) -> AnyRun:
    texts = {cell: json.dumps(settings, sort_keys=True) for cell, settings in values.items()}
    number = {text: k for k, text in enumerate(dict.fromkeys(texts.values()))}
    settings = {number[texts[cell]]: found for cell, found in values.items()}
    records = results.records[results.records["cell"].isin(list(values))]
    records = records.assign(**{"from": records["cell"]}, cell=records["cell"].map(texts).map(number))
    records = _with_common_end(records)
    series = records.groupby(["cell", "phase", "step", "metric"], observed=True)
    records = weigh(records.assign(cells=series["from"].transform("nunique")))
    keys = ["cell", "seed", "phase", "step", "metric"]
    terms = records.groupby(keys, sort=False, observed=True)
    # pandas skips NaN when it computes a sum, so drop every sum in which a term is missing.
    whole = terms["value"].count() == terms["cells"].first()
    records = terms["value"].sum().where(whole).reset_index()
    sources: dict[int, list[int]] = {}
    for cell in values:
        sources.setdefault(number[texts[cell]], []).append(cell)
    manifest = dict(results.manifest) | {
        "cells": [
            {"cell": k, "settings": found} | _common_entry(results, sources[k])
            for k, found in sorted(settings.items())
        ],
        "seeds": sorted(records["seed"].unique().tolist()),
        "failures": [],
        "batches": [],
        "derived": [*results.derived, words],
    }
    return replace(results, manifest=manifest, records=records, tokens=results.tokens.iloc[:0])


def _with_common_end(records: pd.DataFrame) -> pd.DataFrame:
    """Repeat the last row of a phase at the largest last step of the cells that are combined.

    The last row of a phase then combines the last step of every cell, also if their numbers of steps differ.
    The column `from` contains the original cells.
    """

    def last(of: str) -> pd.Series:
        return records.groupby([of, "phase", "metric"], observed=True)["step"].transform("max")

    own, common = last("from"), last("cell")
    shorter = (records["step"] == own) & (own < common)
    return pd.concat([records, records[shorter].assign(step=common[shorter])], ignore_index=True)


def _common_entry(results: Run, cells: Sequence[int]) -> dict[str, Any]:
    """Return the config of cells that are combined into one, and the settings on which they agree."""
    first, *others = (results.tables(cell) for cell in cells)
    for other in others:
        first = {key: _common(first.get(key), other.get(key)) for key in first}
    declared = {
        "labels": {name: x for cell in cells for name, x in results.labels(cell).items()},
        # A metric that the cells declare on different scales is averaged on a linear scale.
        "scales": _agreed([results.scales(cell) for cell in cells]),
    }
    return {"config": results.config(cells[0]), "tables": first, **declared}


def _agreed(declared: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first, *others = declared
    others = [other for other in others if other is not first]
    return {name: x for name, x in first.items() if all(other.get(name) == x for other in others)}


def _common(first: Any, other: Any) -> Any:
    """Return a value with the parts on which two values agree; None if there are none."""
    if isinstance(first, Mapping) and isinstance(other, Mapping):
        return {key: _common(x, other.get(key)) for key, x in first.items()}
    if isinstance(first, list) and isinstance(other, list) and len(first) == len(other):
        return [_common(x, y) for x, y in zip(first, other, strict=True)]
    return first if first == other else None


def _matching(key: str, values: Sequence[Any], wanted: object) -> list[Any]:
    if exact := [value for value in values if _equal(value, wanted)]:
        return exact
    printed = dict.fromkeys(x for x in values if isinstance(x, float) and setting(x) == str(wanted))
    if len(printed) > 1:
        listed = ", ".join(map(repr, list(printed)[:5]))
        raise InputError(f"{key}: {wanted} is ambiguous ({listed}); write the value with all its digits")
    return list(printed)


def _equal(value: Any, wanted: Any) -> bool:
    if value == wanted or str(value) == str(wanted):
        return True
    if isinstance(value, bool):
        return str(value).lower() == wanted
    try:
        return isinstance(value, int | float) and value == float(wanted)
    except (TypeError, ValueError):
        return False
