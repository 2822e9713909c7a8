"""The figure with a slider for the exact flow of one seed of a study."""

import jax
import numpy as np

from jaxattn.attention.scores import one_layer
from jaxattn.core.errors import InputError
from jaxattn.dynamics.flows.exact_flow import exact_flow
from jaxattn.lab.explorer.figure import Explorer, explore
from jaxattn.lab.loaded import Results
from jaxattn.theory import max_margin

KIND, MODEL = "exact_flow", "one_layer"
# Settings of the phase that are arguments of `exact_flow`.
_SETTINGS = ("until_norm", "until_arc_length", "until_direction", "max_steps", "rtol", "gradient_rtol")


def explore_run(results: Results, *, seed: int, cell: int = 0) -> Explorer:
    """Build the interactive figure for the last exact flow of one seed.

    A results folder contains the end of a flow, but not its path. The path is therefore computed again, from
    the parameters at the start of the phase and the data of the seed.

    Args:
        results: results of a study of one layer with a phase of kind "exact_flow".
        seed: the seed.
        cell: index of the cell.

    Returns:
        The figure, as built by `explore` with the max-margin direction of the selection at the end.

    Raises:
        InputError: the study has no such phase, or another model; the seed or cell is unknown; or the
            selection at the end has no max-margin direction.
    """
    tables = results.tables(cell)
    flows = [table for table in tables["phases"] if table["kind"] == KIND]
    if not flows or tables["model"]["kind"] != MODEL:
        raise InputError(
            f"{results.directory}: expected a phase of kind {KIND!r} and the model {MODEL!r}, got "
            f"{', '.join(table['kind'] for table in tables['phases'])} and {tables['model']['kind']}"
        )
    settings = {name: flows[-1][name] for name in _SETTINGS if flows[-1].get(name) is not None}
    with jax.enable_x64(True):
        params = results.params(cell=cell, seed=seed, phase=flows[-1]["name"], step=0)
        scores = one_layer(params, results.dataset(seed=seed, cell=cell).train)
        path = exact_flow(scores, np.asarray(params.p), **settings)
        limit = max_margin(scores, path.selection)
    of_cell = f" of cell {cell}" if len(results.cells) > 1 else ""
    return explore(scores, path, limit, title=f"Flow of seed {seed}{of_cell}")
