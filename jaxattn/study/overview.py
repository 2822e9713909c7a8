"""What a sweep will do, before it is run: cells, groups of one shape, units, memory, what is done."""

from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from jaxattn.study import units
from jaxattn.study.check import plain
from jaxattn.study.config import Assumption1, Independent, MultiRelevant, Sweep
from jaxattn.study.grid import PRESENTATION
from jaxattn.study.memory import Memory, predict
from jaxattn.study.store import Store


def overview(sweep: Sweep, directory: Path) -> tuple[pd.DataFrame, str]:
    """Lay out a sweep.

    Args:
        sweep: what would run.
        directory: the results folder it would run in.

    Returns:
        One row per cell: its settings, the group of cells that differ from it in floating-point numbers only
        and so need programs of the same shapes, seeds, units, seeds per unit, predicted memory of its
        largest unit ("?" where texts would have to be read first), and units done. And a sentence on the
        whole.

    Raises:
        InputError: a cell whose sizes do not fit.
    """
    folder = Store(directory)
    cut = units.plan(sweep, folder.units())
    groups: dict[bytes, int] = {}
    memories: dict[int, Memory] = {}
    rows = []
    for number in dict.fromkeys(unit.cell.number for unit in cut):
        own = [unit for unit in cut if unit.cell.number == number]
        config = own[0].cell.config
        group = groups.setdefault(shape(config), len(groups))
        width = max(len(unit.seeds) for unit in own)
        if isinstance(config.data, Assumption1 | MultiRelevant | Independent) and group not in memories:
            memories[group] = predict(config)
        rows.append(
            {
                "cell": number,
                **own[0].cell.settings,
                "group": group,
                "seeds": sum(len(unit.seeds) for unit in own),
                "units": len(own),
                "seeds per unit": width,
                "memory": f"{memories[group].of(width) / 2**20:,.0f} MiB" if group in memories else "?",
                "done": f"{sum(folder.is_marked(unit.name) for unit in own)} of {len(own)}",
            }
        )
    done = sum(folder.is_marked(unit.name) for unit in cut)
    whole = f"{sweep.name}: {len(rows)} cells in {len(groups)} groups, {len(cut)} units, {done} of them done"
    return pd.DataFrame(rows), whole


def shape(config: Sweep) -> bytes:
    """Write down what decides the shapes of a cell's programs: its config without floating-point numbers."""
    kept = {key: value for key, value in plain(config).items() if key not in PRESENTATION}
    return msgspec.json.encode(_without_floats(kept), order="deterministic")


def _without_floats(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _without_floats(x) for key, x in tree.items() if not isinstance(x, float)}
    if isinstance(tree, list):
        return [_without_floats(x) for x in tree]
    return tree
